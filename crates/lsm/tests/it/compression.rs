//! Compressed key pages.
//!
//! Goal: a table with compression holds what a table without it holds, a lookup stays one read, and
//! data that does not compress costs no more than before. Method: tables of the same entries with
//! and without compression, on a disk that counts. Crashes, damage, configurations drawn at random
//! and long histories are with the other tests, whose configurations have compression too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{Disk, SimDisk};
use terrane_lsm::inspect::{Inspection, RunInfo, inspect, inspect_page};
use terrane_lsm::verify::{Loss, repair, verify};
use terrane_lsm::{
    CompressedLevels, Compression, DiskCache, MergeOperator, RunMeta, Session, SessionOptions,
    TableConfig, Update,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::SeedableRng;
use terrane_testkit::draw::Draw;

use crate::{SALT, buffer_of, clear, content, fill, key, name, value};

const DIR: &str = "/session";
const PAGE_SIZE: u64 = 4096;

/// A value and its blob.
type Stored = (Vec<u8>, Option<Vec<u8>>);

/// Codecs there are.
const CODECS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

fn open(disk: &Arc<SimDisk>) -> Session {
    let options = SessionOptions::with_salt(SALT).create_dir();
    Session::open(Arc::clone(disk) as _, Path::new(DIR), &options).unwrap()
}

fn as_disk(disk: &Arc<SimDisk>) -> Arc<dyn Disk> {
    Arc::clone(disk) as Arc<dyn Disk>
}

fn compressed(config: TableConfig, compression: Compression) -> TableConfig {
    config.compression(compression).compressed_levels(CompressedLevels::From(1))
}

/// The finished run files of a session.
fn runs(disk: &Arc<SimDisk>) -> Vec<(PathBuf, RunInfo)> {
    let runs = disk.files().into_iter().filter(|path| path.extension().is_some_and(|e| e == "run"));
    // A run that is being written has no footer yet.
    let info = |path: PathBuf| match inspect(&as_disk(disk), &path) {
        Ok(Inspection::Run(run)) => Some((path, run)),
        _ => None,
    };
    runs.filter_map(info).collect()
}

/// Sum over the runs of a session.
fn sum(disk: &Arc<SimDisk>, of: impl Fn(&RunMeta) -> u32) -> u64 {
    runs(disk).iter().map(|(_, run)| u64::from(of(&run.meta))).sum()
}

#[test]
fn a_lookup_in_a_compressed_table_is_one_read_of_fewer_pages() {
    let mut pages = BTreeMap::new();
    for compression in [Compression::None].into_iter().chain(CODECS) {
        let disk = SimDisk::new(1);
        let session = open(&disk);
        let config = buffer_of(1_000).disk_cache(DiskCache::None);
        let mut table = session.new_table(&compressed(config, compression)).unwrap();
        fill(&mut table, 0..40_000);
        fill(&mut table, 5_000..6_000);
        clear(&mut table, 100..200);

        let keys: Vec<_> = (200..40_000).step_by(7).map(key).collect();
        let view = table.fork().unwrap();
        let before = disk.counts();
        for (number, found) in (200..).step_by(7).zip(view.get_many(&keys).unwrap()) {
            assert_eq!(found.value(), Some(value(number, 60).as_slice()), "{compression:?}");
        }
        let spent = disk.counts() - before;
        assert_eq!(spent.read_pages, spent.reads, "one page each");
        let reads = spent.reads as f64 / keys.len() as f64;
        assert!(reads < 1.03, "{compression:?}: {reads} reads for a key");
        assert!(view.get(&key(150)).unwrap().value().is_none());

        assert_eq!(content(&view).len(), 39_900);
        pages.insert(format!("{compression:?}"), sum(&disk, |meta| meta.key_pages));
        let is_compressed = sum(&disk, |meta| meta.compressed_pages) > 0;
        assert_eq!(is_compressed, compression != Compression::None);
    }

    // Values of 60 bytes that repeat eight, behind keys of 34 that do not compress.
    let plain = pages["None"];
    assert!(pages.values().all(|&pages| pages == plain || pages * 2 < plain), "{pages:?}");
}

#[test]
fn incompressible_entries_take_no_more_pages_and_no_codec() {
    let rng = &mut ChaCha8Rng::seed_from_u64(3);
    let values: Vec<Vec<u8>> = (0..20_000).map(|_| rng.bytes(60)).collect();
    let mut pages = Vec::new();
    for compression in [Compression::None].into_iter().chain(CODECS) {
        let disk = SimDisk::new(1);
        let session = open(&disk);
        let mut table = session.new_table(&compressed(buffer_of(1_000), compression)).unwrap();
        for (number, value) in (0..).zip(&values) {
            table.insert(&key(number), value).unwrap();
        }
        assert!(content(&table).iter().map(|(_, value)| value).is_sorted() || values.len() > 1);
        pages.push(sum(&disk, |meta| meta.key_pages));
        let helped = sum(&disk, |meta| meta.compressed_pages);
        assert!(helped * 50 <= *pages.last().unwrap(), "{compression:?}: {helped} pages");
    }
    // A page that is closed early for want of a codec's help may leave a little room.
    assert!(pages.iter().all(|&other| other <= pages[0] + pages[0] / 100), "{pages:?}");
}

/// Entries of all kinds: large ones between small ones, blobs, deletions, upserts, empty values,
/// keys of all lengths.
#[test]
fn entries_of_all_kinds_come_back_in_both_directions_and_after_a_snapshot() {
    for compression in CODECS {
        let rng = &mut ChaCha8Rng::seed_from_u64(8);
        let disk = SimDisk::new(1);
        let session = open(&disk);
        let config = buffer_of(300).merge_operator(MergeOperator::concatenate());
        let mut table = session.new_table(&compressed(config, compression)).unwrap();
        let mut model = BTreeMap::<Vec<u8>, Stored>::new();
        for number in 0..6_000_u64 {
            let at = rng.below(1_500);
            let key = [&at.to_le_bytes()[..2], &vec![b'k'; (at % 90) as usize]].concat();
            let len = *rng.pick(&[0, 3, 60, 60, 60, 300, 2_000, 4_060, 4_100, 9_000]);
            let len = if rng.chance(1, 12) { len } else { len.min(60) };
            let value = value(number, len);
            let blob = vec![at as u8; 100];
            match rng.below(6) {
                0 => {
                    table.delete(&key).unwrap();
                    model.remove(&key);
                }
                1 => {
                    table.insert_with_blob(&key, &value, &blob).unwrap();
                    model.insert(key, (value, Some(blob)));
                }
                2 if len < 60 => {
                    table.upsert(&key, &value).unwrap();
                    let old = model.remove(&key).map(|(old, _)| old).unwrap_or_default();
                    model.insert(key, ([old, value].concat(), None));
                }
                _ => {
                    table.write_batch(&[(&key, Update::Insert(&value))]).unwrap();
                    model.insert(key, (value, None));
                }
            }
            if number == 3_000 {
                // Saved in the middle of a compaction, which goes on behind its written pages.
                table.save_snapshot(&name("half"), "").unwrap();
                table = session.open_snapshot(&name("half"), "").unwrap();
            }
        }

        table.save_snapshot(&name("all"), "").unwrap();
        for table in [&table, &session.open_snapshot(&name("all"), "").unwrap()] {
            let read = |record: terrane_lsm::Record| {
                let blob =
                    record.blob.map(|blob| session.retrieve_blobs(&[blob]).unwrap().remove(0));
                (record.key, (record.value.into_vec(), blob))
            };
            let mut cursor = table.cursor().unwrap();
            let found: Vec<_> = cursor.next_many(10_000).unwrap().into_iter().map(read).collect();
            assert!(found.into_iter().eq(model.clone()), "{compression:?}");
            let mut back = Vec::new();
            while let Some(record) = cursor.prev().transpose().unwrap() {
                back.push(read(record));
            }
            back.reverse();
            assert!(back.into_iter().eq(model.clone()), "{compression:?}, downwards");

            let keys: Vec<_> = model.keys().collect();
            for (found, (value, _)) in table.get_many(&keys).unwrap().iter().zip(model.values()) {
                assert_eq!(found.value(), Some(value.as_slice()));
            }
            let from = keys[700].clone();
            let ranged = table.range(from.clone()..).unwrap().next_many(10_000).unwrap();
            assert_eq!(ranged.len(), model.range(from..).count());
        }
        assert!(sum(&disk, |meta| meta.compressed_pages) > 10, "{compression:?}");
        assert!(sum(&disk, |meta| meta.data_pages - meta.key_pages) > 10, "large entries");
        drop(table);
        session.close().unwrap();
        assert!(verify(&as_disk(&disk), Path::new(DIR), &mut |_, _| {}).unwrap().is_clean());
    }
}

#[test]
fn levels_are_compressed_from_the_one_that_the_configuration_names() {
    let levels = [CompressedLevels::From(1), CompressedLevels::From(2), CompressedLevels::Last];
    let mut compressed_pages = Vec::new();
    for compressed_levels in levels {
        let disk = SimDisk::new(1);
        let session = open(&disk);
        let config = buffer_of(500).compression(Compression::Lz4);
        let mut table = session.new_table(&config.compressed_levels(compressed_levels)).unwrap();
        fill(&mut table, 0..20_000);
        // Images of memtables are never compressed.
        table.save_snapshot(&name("saved"), "").unwrap();
        let of = |is_compressed: bool| {
            let runs = runs(&disk).into_iter().map(|(_, run)| run.meta);
            let with = runs.filter(|meta| (meta.compressed_pages > 0) == is_compressed);
            with.map(|meta| meta.entries).sum::<u64>()
        };
        compressed_pages.push((of(true), of(false)));
        assert_eq!(content(&table).len(), 20_000);
    }
    let [all, from_second, last] = compressed_pages[..] else { unreachable!() };
    let rises = all.0 > from_second.0 && from_second.0 >= last.0 && last.0 > 0;
    assert!(rises && all.1 < from_second.1 && from_second.1 <= last.1, "{compressed_pages:?}");
}

#[test]
fn compression_can_be_changed_on_a_table_in_use() {
    let disk = SimDisk::new(1);
    let session = open(&disk);
    let mut table = session.new_table(&buffer_of(200)).unwrap();
    let mut compressions = [Compression::None].into_iter().chain(CODECS).cycle();
    for round in 0..9 {
        let compression = compressions.next().unwrap();
        table.set_config(&compressed(buffer_of(200), compression)).unwrap();
        fill(&mut table, (0..1_500).map(|number| number * 9 + round));
        assert_eq!(content(&table).len() as u64, 1_500 * (round + 1));
    }
    let numbers: Vec<_> = (0..9 * 1_500).map(key).collect();
    assert!(table.get_many(&numbers).unwrap().iter().all(terrane_lsm::Lookup::is_found));
}

/// A run whose filter or index is damaged is rebuilt page for page, whatever its compaction packed
/// them by.
#[test]
fn filter_and_index_of_a_compressed_run_are_rebuilt_around_its_pages() {
    for compression in CODECS {
        let disk = SimDisk::new(1);
        let session = open(&disk);
        let mut table = session.new_table(&compressed(buffer_of(700), compression)).unwrap();
        fill(&mut table, 0..3_000);
        table.save_snapshot(&name("saved"), "").unwrap();
        let expected = content(&table);
        drop(table);
        session.close().unwrap();

        for (path, run) in runs(&disk).iter().filter(|(_, run)| run.meta.compressed_pages > 0) {
            let pages = u64::from(run.meta.data_pages);
            let before = disk.read_raw(path).unwrap();
            for page in [pages, pages + u64::from(run.meta.filter_pages), run.meta.pages() - 1] {
                disk.flip_bit(path, (page * PAGE_SIZE + 300) * 8);
                let found =
                    repair(&as_disk(&disk), Path::new(DIR), Loss::Refused, &mut |_, _| {}).unwrap();
                assert!(found.is_clean() && found.problems.len() == 1, "{:?}", found.problems);
                let after = disk.read_raw(path).unwrap();
                let data = (pages * PAGE_SIZE) as usize;
                assert!(after[..data] == before[..data], "the pages of entries stay as they are");
            }
        }
        let session = open(&disk);
        assert_eq!(content(&session.open_snapshot(&name("saved"), "").unwrap()), expected);
    }
}

#[test]
fn a_compressed_page_is_inspected_with_its_entries_and_its_codec() {
    for compression in CODECS {
        let disk = SimDisk::new(1);
        let session = open(&disk);
        let mut table = session.new_table(&compressed(buffer_of(500), compression)).unwrap();
        fill(&mut table, 0..2_000);
        drop(table.fork().unwrap());
        let (path, run) = runs(&disk).into_iter().next().unwrap();
        assert_eq!(run.version, 3);
        let page = inspect_page(&as_disk(&disk), &path, 0).unwrap();
        assert_eq!((page.kind, page.codec), ("key", Some(&*compression.to_string())));
        assert!(page.entries.len() > 80, "{} entries", page.entries.len());
        assert!(page.entries.is_sorted_by(|one, next| one.key < next.key));
        assert!(page.entries.iter().all(|entry| entry.value.len() == 60));
    }
}
