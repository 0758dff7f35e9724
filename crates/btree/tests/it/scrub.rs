//! Scrubbing finds every rotten page, and mends those that are still in memory.

use std::path::Path;
use std::sync::Arc;

use terrane_btree::{Config, Index, IterRecords};
use terrane_io::{Disk, SimDisk};

use crate::model::DIR;

fn key(number: u64) -> Vec<u8> {
    format!("{number:032}").into_bytes()
}

/// An index of some thousand entries in some dozens of leaves.
fn index(disk: &Arc<SimDisk>) -> Index {
    let shared: Arc<dyn Disk> = disk.clone();
    let index = Index::create(shared, Path::new(DIR), &Config::fixed(32, 13)).unwrap();
    let entries = (0..5_000).map(|number| (key(number), vec![7; 13]));
    index.build_sorted(&mut IterRecords::new(entries), 90, |_| {}).unwrap();
    index
}

#[test]
fn a_scrub_reads_each_page_in_as_many_calls_as_it_likes() {
    let disk = SimDisk::new(1);
    let index = index(&disk);
    let leaves = index.stats().unwrap().level_pages[0];
    for step in [1, 7, 1_000] {
        let mut pages = 0;
        let mut calls = 0;
        loop {
            let report = index.scrub(step).unwrap();
            assert!(report.pages <= step + 2 && report.problems.is_empty());
            (pages, calls) = (pages + report.pages, calls + 1);
            if report.has_ended {
                break;
            }
        }
        assert!(pages >= leaves && calls >= leaves / step, "{pages} pages of {leaves} in {calls}");
    }
}

#[test]
fn a_rotten_page_is_mended_from_memory_or_reported_with_its_keys() {
    let disk = SimDisk::new(1);
    let index = index(&disk);
    let path = Path::new(DIR).join("tree");

    // In memory: the leaf of the first key. Not in memory: that of the last.
    assert!(index.mem(&key(0)).unwrap());
    let bytes = disk.read_raw(&path).unwrap();
    let page_of = |key: &[u8]| {
        let tail = &key[key.len() - 4..];
        let is_leaf_of = |page: &&[u8]| page[4] == 1 && page.windows(4).any(|w| w == tail);
        bytes.chunks(4096).skip(2).position(|page| is_leaf_of(&page)).unwrap() as u64 + 2
    };

    for number in [0, 4_999] {
        disk.flip_bit(&path, page_of(&key(number)) * 4096 * 8 + 5_000);
    }

    let report = index.scrub(1_000).unwrap();
    assert!(report.has_ended);
    assert_eq!((report.rewritten, report.problems.len()), (1, 1));
    let (low, high) = report.problems[0].keys.clone().unwrap();
    assert!(low <= key(4_999) && high.is_none());
    assert!(index.mem(&key(4_999)).is_err());
    assert!(index.mem(&key(2_500)).unwrap());
    let again = index.scrub(1_000).unwrap();
    assert_eq!((again.rewritten, again.problems.len()), (0, 1));
}
