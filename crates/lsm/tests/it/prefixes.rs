//! Prefixes in the filters of runs.
//!
//! Goal: a cursor over the keys of one prefix reads from the runs that may have such a key and from
//! no others, and gives what a sorted map gives, whatever prefixes the runs were written with.
//! Method: pages counted by the simulated disk, for owners whose outputs are together in one run,
//! and for owners without any; histories with changing lengths of prefixes, forks, deletions of
//! ranges and verified snapshots, with ranges of every kind compared with the map.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Counts, SimDisk};
use terrane_lsm::{
    Compression, DiskCache, FilterPolicy, Session, SessionOptions, SnapshotName, Table,
    TableConfig, Update, Verify, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::{SALT, SessionDir, buffer_of, key};

const OWNER_BYTES: usize = 20;

/// The bytes of an owner, evenly spread.
fn owner(number: u64) -> Vec<u8> {
    key(number)[..OWNER_BYTES].to_vec()
}

/// A table with some outputs of each owner, all of an owner's in one batch; and its disk.
fn outputs(owners: u64, each: u32, config: &TableConfig) -> (Arc<SimDisk>, Session, Table) {
    let disk = SimDisk::new(1);
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(Arc::clone(&disk) as _, Path::new("/session"), &options).unwrap();
    let mut table = session.new_table(config).unwrap();
    for number in 0..owners {
        let output = |at: u32| [owner(number), at.to_le_bytes().to_vec()].concat();
        let keys: Vec<_> = (0..each).map(output).collect();
        let updates = |key| (key, Update::Insert(&[7; 60][..]));
        table.write_batch(&keys.iter().map(updates).collect::<Vec<_>>()).unwrap();
    }
    (disk, session, table)
}

fn spent(disk: &SimDisk, work: impl FnOnce()) -> Counts {
    let before = disk.counts();
    work();
    disk.counts() - before
}

/// Pages for each owner of these, who has so many outputs.
fn pages_each(disk: &SimDisk, table: &Table, owners: std::ops::Range<u64>, each: usize) -> f64 {
    let count = (owners.end - owners.start) as f64;
    let counts = spent(disk, || {
        for number in owners {
            let found: Vec<_> = table.prefix(&owner(number)).unwrap().collect();
            assert_eq!(found.len(), each);
            assert!(found.iter().all(Result::is_ok));
        }
    });
    counts.read_pages as f64 / count
}

/// Without prefixes in filters a cursor reads a page of each run. With them it reads one page where
/// one run answers, in spite of outputs that go on on the next page, and as a rule none where no
/// run does.
#[test]
fn a_prefix_costs_a_page_where_one_run_has_it_and_none_where_no_run_has() {
    let config = buffer_of(1_000).disk_cache(DiskCache::None);
    let (disk, _session, table) = outputs(20_000, 3, &config);
    let runs = table.stats().runs() as f64;
    assert!(runs >= 6.0, "{runs} runs");
    let without = pages_each(&disk, &table, 0..1_000, 3);
    assert!(without > 0.9 * runs, "{without} pages in {runs} runs");

    let config = config.prefix_bytes(OWNER_BYTES as u8);
    let (disk, _session, table) = outputs(20_000, 3, &config);
    assert!(table.stats().runs() as f64 >= 6.0);
    let present = pages_each(&disk, &table, 0..4_000, 3);
    let absent = pages_each(&disk, &table, 1_000_000..1_004_000, 0);
    println!("{without} pages without prefixes, {present} with, {absent} of an absent one");
    assert!(present <= 1.1, "{present} pages for a prefix that is there");
    assert!(absent <= 0.02, "{absent} pages for one that is not");

    // Downwards, and from a key within the prefix, it is the same.
    let counts = spent(&disk, || {
        for number in 0..1_000 {
            let from = [owner(number), 1_u32.to_le_bytes().to_vec()].concat();
            let to = [owner(number), u32::MAX.to_le_bytes().to_vec()].concat();
            assert_eq!(table.range(from..=to).unwrap().rev().count(), 2);
        }
    });
    assert!(counts.read_pages <= 1_100, "{counts:?}");
}

/// A lookup pays for the prefixes by no reads: filters take as much for each as for an entry.
#[test]
fn prefixes_in_filters_make_no_lookup_read_in_vain_more_often() {
    let config = buffer_of(1_000).disk_cache(DiskCache::None);
    let reads = |config: &TableConfig| {
        let (disk, _session, table) = outputs(20_000, 3, config);
        let absent: Vec<_> = (1_000_000..1_020_000_u64).map(key).collect();
        let counts = spent(&disk, || {
            assert!(table.get_many(&absent).unwrap().iter().all(|found| found.value().is_none()));
        });
        counts.read_pages as f64 / absent.len() as f64
    };
    let (without, with) = (reads(&config), reads(&config.clone().prefix_bytes(20)));
    assert!(with <= 0.012 && without <= 0.012, "{with} and {without} pages for an absent key");
}

/// A filter of the last level for owners of many outputs takes as many bits as without prefixes,
/// also after a bulk load, whose runs before the last have no filter.
#[test]
fn a_filter_is_laid_out_for_the_prefixes_that_there_are() {
    let bits = |prefix_bytes: Option<u8>| {
        let config = buffer_of(1_000).prefix_bytes(prefix_bytes);
        let session = SessionDir::simulated(1).open();
        let mut loader = session.bulk_load(&config).unwrap();
        for number in 0..30_000_u64 {
            let output = [owner(number / 300), key(number)[..8].to_vec()].concat();
            loader.write_batch(&[(output, Update::Insert(&[7; 60]))]).unwrap();
        }
        let table = loader.finish().unwrap();
        assert_eq!(table.stats().runs(), 1);
        table.stats().filter_bytes as f64 * 8.0 / 30_000.0
    };
    let (without, with) = (bits(None), bits(Some(20)));
    assert!(with <= 1.1 * without, "{with} bits an entry with prefixes, {without} without");
}

/// Half of the key space has a prefix for each key, half a few for all; slices that are made anew
/// take the number in their place from the old ones.
#[test]
fn slices_have_filters_for_the_prefixes_in_their_place() {
    let config = buffer_of(500).prefix_bytes(9).disk_cache(DiskCache::None);
    let disk = SimDisk::new(1);
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(Arc::clone(&disk) as _, Path::new("/session"), &options).unwrap();
    let mut table = session.new_table(&config).unwrap();
    let skewed = |number: u64| {
        let key = key(number);
        match number % 2 {
            0 => [b"A", &key[..]].concat(),
            _ => [b"B".as_slice(), &(number % 7).to_le_bytes(), &key].concat(),
        }
    };
    for number in 0..120_000_u64 {
        table.insert(&skewed(number), &[7; 20]).unwrap();
    }

    let absent: Vec<_> = (200_000..240_000_u64).step_by(2).map(skewed).collect();
    let counts = spent(&disk, || {
        assert!(table.get_many(&absent).unwrap().iter().all(|found| found.value().is_none()));
    });
    let each = counts.read_pages as f64 / absent.len() as f64;
    assert!(each <= 0.015, "{each} pages for an absent key, where each key has its prefix");
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A key of up to five bytes of three kinds, so that prefixes meet.
fn draw_key(rng: &mut impl Draw) -> Vec<u8> {
    let len = 1 + rng.index(5);
    (0..len).map(|_| *rng.pick(&[0, b'm', u8::MAX])).collect()
}

fn compare(rng: &mut impl Draw, table: &Table, model: &Model) {
    for _ in 0..12 {
        let bound = |key: Vec<u8>, kind| match kind {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        };
        let first = draw_key(rng);
        let mut other = first.clone();
        other.extend(draw_key(rng));
        let ends = if rng.chance(1, 2) { (first, other) } else { (first, draw_key(rng)) };
        if ends.0 >= ends.1 {
            continue;
        }
        let range = (bound(ends.0, rng.below(3)), bound(ends.1, rng.below(3)));
        let expected: Vec<_> =
            model.range(range.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
        let pair = |record: terrane_lsm::Result<terrane_lsm::Record>| {
            let record = record.unwrap();
            (record.key, record.value.into_vec())
        };
        let found: Vec<_> = table.range(range.clone()).unwrap().map(pair).collect();
        assert_eq!(found, expected, "{range:?}");
        let mut backwards: Vec<_> = table.range(range.clone()).unwrap().rev().map(pair).collect();
        backwards.reverse();
        assert_eq!(backwards, expected, "{range:?} backwards");
    }

    let prefix = draw_key(rng);
    let expected = model.keys().filter(|key| key.starts_with(&prefix)).count();
    assert_eq!(table.prefix(&prefix).unwrap().count(), expected, "{prefix:?}");
}

#[test]
fn ranges_are_those_of_a_map_whatever_prefixes_the_runs_were_written_with() {
    let name = "ranges_are_those_of_a_map";
    for_each_seed(name, by_effort(12, 400), |rng, seed| {
        let dir = SessionDir::simulated(seed);
        let session = dir.open();
        let lengths = [None, Some(1), Some(2), Some(3), Some(255)];
        let config = TableConfig::default()
            .write_buffer(WriteBuffer::Entries(*rng.pick(&[3, 20])))
            .filter(
                rng.pick(&[FilterPolicy::TotalFpr(0.1), FilterPolicy::BitsPerEntry(2.0)]).clone(),
            )
            .compression(*rng.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]))
            .size_ratio(2)
            .prefix_bytes(*rng.pick(&lengths));
        let mut table = session.new_table(&config).unwrap();
        let mut model = Model::new();
        let snapshot = SnapshotName::new("kept").unwrap();

        for step in 0..120_u32 {
            match rng.below(12) {
                0 => {
                    let config = table.config().clone().prefix_bytes(*rng.pick(&lengths));
                    table.set_config(&config).unwrap();
                }
                1 => table = table.fork().unwrap(),
                2 => {
                    let (one, other) = (draw_key(rng), draw_key(rng));
                    let (from, to) = if one <= other { (one, other) } else { (other, one) };
                    table.write_batch(&[(&from, Update::DeleteRange(Some(&to)))]).unwrap();
                    model.retain(|key, _| !(&from..&to).contains(&key));
                }
                3 => {
                    session.delete_snapshot_if_exists(&snapshot).unwrap();
                    table.save_snapshot(&snapshot, "").unwrap();
                    let options = terrane_lsm::OpenOptions::default().verify(Verify::Full);
                    table = session.open_snapshot_with(&snapshot, "", &options).unwrap();
                }
                _ => {
                    for _ in 0..5 {
                        let key = draw_key(rng);
                        if rng.chance(1, 4) {
                            table.delete(&key).unwrap();
                            model.remove(&key);
                        } else {
                            table.insert(&key, &step.to_le_bytes()).unwrap();
                            model.insert(key, step.to_le_bytes().to_vec());
                        }
                    }
                }
            }
            compare(rng, &table, &model);
        }
    });
}
