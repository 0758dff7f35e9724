//! The external sort against a stable sort in memory, through crashes, faults and damage.
//!
//! Goal: whatever the records, the memory and the runs merged at once, the result is that of a
//! stable sort of which the last record of each key is kept; the memory is never exceeded; after a
//! crash at any call on the disk the sort goes on, and what was finished is not done again; damage
//! is reported and never returned.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use terrane_btree::{
    Duplicates, Error, KEY_BYTES_MAX, Records, Result, SortOptions, SortStats, SortedRecords,
    Sorter, VALUE_BYTES_MAX,
};
use terrane_io::checksum::crc32c;
use terrane_io::{Disk, MemoryDisk};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_io::{SimDisk, Survival};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Sweep;
use terrane_testkit::{ChaCha8Rng, golden};

use crate::{Pair, collect};

const DIR: &str = "/sort";

/// The memory of sorts that are to write many runs: that of the smallest blocks.
fn least_memory(fan_in: usize) -> usize {
    (fan_in + 2) * 4096
}

fn options(fan_in: usize) -> SortOptions {
    let mut options = SortOptions::new(Path::new(DIR), 0x1D);
    (options.fan_in, options.memory_bytes) = (fan_in, least_memory(fan_in));
    options
}

fn sim(seed: u64) -> Arc<SimDisk> {
    let disk = SimDisk::new(seed);
    disk.create_dir(Path::new(DIR)).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk
}

fn open(disk: &Arc<SimDisk>, options: &SortOptions) -> Result<Sorter> {
    Sorter::open(Arc::clone(disk) as Arc<dyn Disk>, options.clone())
}

/// The records of a slice as a stream.
struct Slice<'a> {
    pairs: &'a [Pair],
}

impl Records for Slice<'_> {
    fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let Some((first, rest)) = self.pairs.split_first() else { return Ok(None) };
        self.pairs = rest;
        Ok(Some((&first.0, &first.1)))
    }
}

/// Sorts up to the point where the result is read.
fn sorted(disk: &Arc<SimDisk>, options: &SortOptions, pairs: &[Pair]) -> Result<SortedRecords> {
    let mut sorter = open(disk, options)?;
    sorter.push_all(&mut Slice { pairs }, &mut |_| {})?;
    sorter.finish(&mut |_| {})
}

/// Sorts and reads the result.
fn sort(
    disk: &Arc<SimDisk>,
    options: &SortOptions,
    pairs: &[Pair],
) -> Result<(Vec<Pair>, SortedRecords)> {
    let mut records = sorted(disk, options, pairs)?;
    Ok((collect(&mut records)?, records))
}

/// The expected result.
fn model(pairs: &[Pair]) -> Vec<Pair> {
    pairs.iter().cloned().collect::<BTreeMap<_, _>>().into_iter().collect()
}

/// Records of 45 bytes with distinct keys, in no order.
fn distinct(count: u64) -> Vec<Pair> {
    let key = |number: u64| {
        let mut key = vec![0xAB; 32];
        key[20..28].copy_from_slice(&(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes());
        key
    };
    (0..count).map(|number| (key(number), vec![number as u8; 13])).collect()
}

/// Records of all sizes; keys come several times, and many have a long prefix in common.
fn drawn(rng: &mut ChaCha8Rng) -> Vec<Pair> {
    let count = *rng.pick(&[0, 1, 2, 50, 400, 1500]);
    let keys = 1 + rng.below(2 * count + 1);
    let key_bytes = *rng.pick(&[4, 20, 60]);
    let value_bytes = *rng.pick(&[1, 13, 200]);
    let pair = |_| {
        let number = rng.below(keys);
        let mut key = vec![7; (number % (key_bytes + 1)) as usize];
        key.extend_from_slice(&number.to_le_bytes()[..=(number % 4) as usize]);
        let value_bytes = if rng.chance(1, 100) { VALUE_BYTES_MAX } else { rng.index(value_bytes) };
        (key, rng.bytes(value_bytes))
    };
    (0..count).map(pair).collect()
}

#[test]
fn a_sort_is_a_stable_sort_of_which_the_last_of_each_key_is_kept() {
    let mut spilled = 0;
    for_each_seed(
        "a_sort_is_a_stable_sort_of_which_the_last_of_each_key_is_kept",
        60,
        |rng, seed| {
            let disk = sim(seed);
            let pairs = drawn(rng);
            let mut options = options(*rng.pick(&[2, 3, 4, 15]));
            options.memory_bytes *= *rng.pick(&[1, 1, 2, 5]);
            options.input_bytes = Some(
                pairs.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() as u64,
            );
            let (found, records) = sort(&disk, &options, &pairs).unwrap();
            assert_eq!(found, model(&pairs));
            let stats = records.stats();
            assert!(stats.memory_bytes_max <= options.memory_bytes, "{stats:?} of {options:?}");
            spilled += u64::from(stats.merges > 0);
            records.remove_files().unwrap();
            assert_eq!(disk.files(), Vec::<std::path::PathBuf>::new());
        },
    );
    assert!(spilled > 0, "no input was large enough for a merge");
}

#[test]
fn duplicates_are_refused_with_the_position_of_a_later_one() {
    let mut refused = 0;
    for_each_seed("duplicates_are_refused_with_the_position_of_a_later_one", 40, |rng, seed| {
        let disk = sim(seed);
        let mut pairs = distinct(*rng.pick(&[3, 60, 700]));
        let mut options = options(*rng.pick(&[2, 3]));
        options.duplicates = Duplicates::Reject;
        let (found, records) = sort(&disk, &options, &pairs).unwrap();
        assert_eq!(found, model(&pairs));
        records.remove_files().unwrap();

        // One key a second time, near its first place or far from it.
        let from = rng.index(pairs.len());
        let to = rng.index(pairs.len() + 1);
        pairs.insert(to, (pairs[from].0.clone(), b"again".to_vec()));
        let error = sort(&disk, &options, &pairs).map(|(found, _)| found).unwrap_err();
        let later = if to <= from { from + 1 } else { to };
        let later = later as u64;
        assert!(
            matches!(error, Error::DuplicateKey { position } if position == later),
            "{error:?} for record {later}, equal to another: {from} or {to}"
        );
        refused += 1;
    });

    assert!(refused > 0);
}

#[test]
fn a_sort_of_more_runs_than_a_manifest_names_keeps_to_its_memory() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    disk.create_dir(Path::new(DIR)).unwrap();
    let options = options(2);
    let mut sorter = Sorter::open(disk, options.clone()).unwrap();

    // Ten records fill the memory.
    let count = 11_000_u64;
    let key = |number: u64| (number * 7_919 % count).to_le_bytes().map(u8::reverse_bits);
    for number in 0..count {
        sorter.push(&key(number), &[number as u8; VALUE_BYTES_MAX]).unwrap();
    }

    assert!(sorter.stats().runs > 1024, "{:?}", sorter.stats());
    assert!(sorter.stats().merges > 0, "{:?}", sorter.stats());
    let mut records = sorter.finish(&mut |_| {}).unwrap();
    let keys: BTreeSet<[u8; 8]> = (0..count).map(key).collect();
    for expected in keys {
        assert_eq!(records.next_ref().unwrap().unwrap().0, expected);
    }

    assert!(records.next_ref().unwrap().is_none());
    assert!(records.stats().memory_bytes_max <= options.memory_bytes);
}

#[test]
fn an_input_that_fits_in_memory_never_touches_the_disk() {
    let disk = sim(1);
    let pairs = distinct(1000);
    let mut options = options(15);
    options.memory_bytes = 1 << 20;
    let before = disk.counts();
    let (found, records) = sort(&disk, &options, &pairs).unwrap();
    assert_eq!(found, model(&pairs));
    let during = disk.counts() - before;
    assert_eq!((during.writes, during.reads, during.syncs), (0, 0, 0));
    let stats = records.stats();
    assert_eq!((stats.runs, stats.written_bytes), (0, 0));
}

/// Each merge but the last is of few runs, so that as little as can be is written twice.
#[test]
fn no_more_runs_are_merged_than_must_be() {
    let disk = sim(1);
    let pairs = distinct(126 * 4);
    let options = options(3);
    let records = sorted(&disk, &options, &pairs).unwrap();
    let SortStats { runs, merges, written_bytes, .. } = records.stats();
    assert_eq!((runs, merges), (3, 0), "{written_bytes} bytes");
    drop(records);
    let disk = sim(1);
    let pairs = distinct(189 * 3 + 1);
    let records = sorted(&disk, &options, &pairs).unwrap();
    let SortStats { runs, merges, .. } = records.stats();

    // Four runs are one too many for a merge of three: two of them are merged.
    assert_eq!((runs, merges), (4, 1));
}

/// How far a sort has come when the power goes, by the bytes that a whole one writes.
#[test]
fn a_crash_at_any_call_is_gone_on_from_and_what_is_finished_is_not_done_again() {
    let options = options(2);
    let pairs = distinct(620);
    let expected = model(&pairs);
    let whole = sim(1);
    let (found, records) = sort(&whole, &options, &pairs).unwrap();
    assert_eq!(found, expected);
    let calls = whole.calls();
    let whole_bytes = whole.counts().write_bytes;
    let stats = records.stats();
    assert!(stats.runs >= 5 && stats.merges >= 3, "{stats:?}");

    // The longest run is that of the last merge but one; the manifest comes with each.
    let unit_bytes = 620_u64.div_ceil(4096 / 49 - 1) * 4096 + 2 * 1024;
    for call in 2..calls {
        for survival in
            [Survival::Nothing, Survival::Everything, Survival::Random(call), Survival::Torn(call)]
        {
            let disk = sim(1);
            disk.set_plan(FaultPlan::crash_at(call));
            let error = sort(&disk, &options, &pairs).map(|(found, _)| found).unwrap_err();
            assert!(matches!(error, Error::Disk(_)), "{error:?}");
            let crashed_bytes = disk.counts().write_bytes;

            // Once more, in the middle of going on.
            let again = disk.after_crash(survival);
            again.set_plan(FaultPlan::crash_at(call / 3));
            let again_bytes = match sort(&again, &options, &pairs) {
                Ok((found, _)) => {
                    assert_eq!(found, expected, "call {call}, {survival:?}");
                    0
                }
                Err(_) => again.counts().write_bytes,
            };
            again.set_plan(FaultPlan::default());
            let disk = if again.has_crashed() { again.after_crash(survival) } else { again };
            let before = disk.counts().write_bytes;
            let mut sorter = open(&disk, &options).unwrap();
            let finished = sorter.resumes_at();
            sorter.push_all(&mut Slice { pairs: &pairs }, &mut |_| {}).unwrap();
            let mut records = sorter.finish(&mut |_| {}).unwrap();
            assert_eq!(collect(&mut records).unwrap(), expected, "call {call}, {survival:?}");
            let runs = records.stats().runs;
            assert_eq!(runs, (620 - finished).div_ceil(126), "{finished} records were finished");
            let bytes = crashed_bytes + again_bytes + (disk.counts().write_bytes - before);
            assert!(
                bytes <= whole_bytes + 2 * unit_bytes,
                "call {call}, {survival:?}: {bytes} bytes written, {whole_bytes} without crashes"
            );
            records.remove_files().unwrap();
            assert_eq!(disk.files(), Vec::<std::path::PathBuf>::new());
        }
    }
}

#[test]
fn a_crash_while_files_are_removed_leaves_what_the_next_sort_removes() {
    let options = options(2);
    let pairs = distinct(300);
    for call in 0.. {
        let disk = sim(call);
        let (_, records) = sort(&disk, &options, &pairs).unwrap();
        let first = disk.calls();
        disk.set_plan(FaultPlan::crash_at(first + call));
        if records.remove_files().is_ok() {
            assert!(call > 4, "{call} calls were made");
            break;
        }
        let random = (0..32).map(Survival::Random);
        for survival in random.chain([Survival::Nothing, Survival::Everything]) {
            let disk = disk.after_crash(survival);
            let (found, records) = sort(&disk, &options, &pairs).unwrap();
            assert_eq!(found, model(&pairs), "call {call}, {survival:?}");
            records.remove_files().unwrap();
            assert_eq!(disk.files(), Vec::<std::path::PathBuf>::new());
        }
    }
}

#[test]
fn a_fault_at_any_call_is_reported_and_the_sort_opened_again_goes_on() {
    let options = options(2);
    let pairs = distinct(400);
    let start = sim(1);
    let mut reported = 0;
    let mut calls = 0;
    for kind in FaultKind::ERRORS {
        let struck = Sweep::whole(1).on(&start).fault(kind, Some(Repeat::Once), |disk, _| {
            match sort(disk, &options, &pairs) {
                Ok((found, _)) => assert_eq!(found, model(&pairs)),
                Err(error) => {
                    assert!(matches!(error, Error::Disk(_)), "{error:?}");
                    reported += 1;
                }
            }
            disk.set_plan(FaultPlan::default());
            let (found, records) = sort(disk, &options, &pairs).unwrap();
            assert_eq!(found, model(&pairs));
            records.remove_files().unwrap();
            assert_eq!(disk.files(), Vec::<std::path::PathBuf>::new());
        });
        calls = calls.max(struck);
    }

    assert!(reported > calls, "{reported} faults were reported");
}

/// A sort whose calls are tried again at once, without opening it anew.
#[test]
fn a_record_that_could_not_be_taken_can_be_pushed_again() {
    let options = options(2);
    let pairs = distinct(400);
    for call in 2..60 {
        let disk = sim(1);
        disk.set_plan(FaultPlan::fail(call, FaultKind::FailedSync, Repeat::Once));
        let mut sorter = open(&disk, &options).unwrap();
        for (key, value) in &pairs {
            if sorter.push(key, value).is_err() {
                sorter.push(key, value).unwrap();
            }
        }
        disk.set_plan(FaultPlan::default());
        let mut records = sorter.finish(&mut |_| {}).unwrap();
        assert_eq!(collect(&mut records).unwrap(), model(&pairs), "call {call}");
        records.remove_files().unwrap();
        assert_eq!(disk.files(), Vec::<std::path::PathBuf>::new());
    }
}

/// The files of a sort whose input has been read, and its records.
fn unfinished(count: u64) -> (Arc<SimDisk>, SortOptions, Vec<Pair>) {
    let disk = sim(1);
    let options = options(2);
    let pairs = distinct(count);
    drop(sorted(&disk, &options, &pairs).unwrap());
    (disk, options, pairs)
}

#[test]
fn a_flipped_bit_in_any_file_is_reported_with_the_file() {
    let (disk, options, pairs) = unfinished(200);
    for path in disk.files() {
        let bits = disk.read_raw(&path).unwrap().len() as u64 * 8;
        // A prime, so that bits of all places in a byte and a record are hit.
        for bit in (0..bits).step_by(61) {
            let damaged = disk.process_kill();
            damaged.flip_bit(&path, bit);
            let error = sort(&damaged, &options, &pairs).map(|(found, _)| found).unwrap_err();
            assert!(
                matches!(&error, Error::Corrupt { path: found, .. } if *found == path),
                "bit {bit} of {}: {error:?}",
                path.display()
            );
        }
    }
}

#[test]
fn reads_that_give_wrong_bytes_are_reported() {
    let (disk, options, pairs) = unfinished(600);
    let mut struck = 0;
    for kind in FaultKind::SILENT {
        Sweep::sampled(1, 5).on(&disk).fault(kind, Some(Repeat::Once), |disk, _| {
            match sort(disk, &options, &pairs) {
                // A sector of zeros can be read as zeros.
                Ok((found, _)) => assert_eq!(found, model(&pairs)),
                Err(error) => {
                    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
                    struck += 1;
                }
            }
        });
    }

    assert!(struck > by_effort(2, 10), "{struck} faults were found out");
}

#[test]
fn a_run_that_is_cut_or_missing_is_reported() {
    let (disk, options, pairs) = unfinished(200);
    let run = disk.files().into_iter().find(|path| path.extension().unwrap() == "run").unwrap();
    let bytes = disk.read_raw(&run).unwrap();
    let cut = disk.process_kill();
    cut.write_raw(&run, &bytes[..bytes.len() - 4096]);
    let error = sort(&cut, &options, &pairs).map(|(found, _)| found).unwrap_err();
    assert!(
        matches!(&error, Error::Corrupt { what, .. } if what.rule == "length of a run"),
        "{error}"
    );
    disk.remove(&run).unwrap();
    let error = sort(&disk, &options, &pairs).map(|(found, _)| found).unwrap_err();
    assert!(matches!(&error, Error::Disk(error) if error.is_not_found()), "{error}");
}

#[test]
fn a_sort_of_another_input_or_with_other_options_begins_anew() {
    let (disk, first, pairs) = unfinished(600);
    assert_eq!(open(&disk, &first).unwrap().resumes_at(), 600);
    let others: [fn(&mut SortOptions); 4] = [
        |options| options.input_identity += 1,
        |options| options.fan_in += 1,
        |options| options.memory_bytes *= 4,
        |options| options.duplicates = Duplicates::Reject,
    ];
    for change in others {
        let disk = disk.process_kill();
        let mut options = first.clone();
        change(&mut options);
        options.memory_bytes = options.memory_bytes.max(least_memory(options.fan_in));
        let sorter = open(&disk, &options).unwrap();
        assert_eq!(sorter.resumes_at(), 0, "{options:?}");
        drop(sorter);
        let left: Vec<_> = disk.files();
        assert_eq!(left, [Path::new(DIR).join("sort.lock")]);
        let (found, _) = sort(&disk, &options, &pairs).unwrap();
        assert_eq!(found, model(&pairs));
    }
}

#[test]
fn an_input_shorter_than_what_was_sorted_is_refused() {
    let (disk, options, pairs) = unfinished(600);
    let mut sorter = open(&disk, &options).unwrap();
    let error = sorter.push_all(&mut Slice { pairs: &pairs[..500] }, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::TruncatedInput { position: 500, bytes: 0 }), "{error:?}");
}

#[test]
fn a_duplicate_of_what_was_sorted_before_is_refused_with_its_place_in_the_whole_input() {
    let disk = sim(1);
    let mut options = options(2);
    let mut pairs = distinct(600);
    options.duplicates = Duplicates::Reject;
    pairs.push(pairs[3].clone());
    let mut sorter = open(&disk, &options).unwrap();
    sorter.push_all(&mut Slice { pairs: &pairs[..300] }, &mut |_| {}).unwrap();
    drop(sorter);
    assert!(open(&disk, &options).unwrap().resumes_at() > 100);
    let error = sort(&disk, &options, &pairs).map(|(found, _)| found).unwrap_err();
    assert!(matches!(error, Error::DuplicateKey { position: 600 }), "{error:?}");
}

#[test]
fn a_second_sort_of_the_directory_is_kept_out() {
    let disk = sim(1);
    let first = open(&disk, &options(2)).unwrap();
    let error = open(&disk, &options(2)).unwrap_err();
    assert!(matches!(error, Error::Disk(terrane_io::Error::Locked { .. })), "{error:?}");
    drop(first);
    drop(open(&disk, &options(2)).unwrap());
}

#[test]
fn a_disk_without_room_is_refused_at_once_and_a_full_one_can_be_gone_on_with() {
    let mut options = options(2);
    let pairs = distinct(600);
    options.input_bytes = Some(600 * 45);
    let disk = sim(1);
    disk.set_plan(FaultPlan::capacity(40 << 10));
    let error = open(&disk, &options).unwrap_err();
    assert!(
        matches!(error, Error::NoSpace { needed_bytes: 54_000, free_bytes: 40_960, .. }),
        "{error:?}"
    );
    options.input_bytes = None;
    let error = sort(&disk, &options, &pairs).map(|(found, _)| found).unwrap_err();
    assert!(matches!(&error, Error::Disk(error) if error.is_no_space()), "{error:?}");
    disk.set_plan(FaultPlan::default());
    options.input_bytes = Some(600 * 45);
    let sorter = open(&disk, &options).unwrap();
    assert!(sorter.resumes_at() > 0);
    drop(sorter);
    let (found, _) = sort(&disk, &options, &pairs).unwrap();
    assert_eq!(found, model(&pairs));
}

#[test]
fn options_and_records_out_of_range_are_refused() {
    let disk = sim(1);
    let cases: [fn(&mut SortOptions); 5] = [
        |options| options.fan_in = 1,
        |options| options.fan_in = 257,
        |options| options.memory_bytes = least_memory(2) - 1,
        |options| options.memory_bytes = 0,
        |options| options.fan_in = usize::MAX,
    ];
    for change in cases {
        let mut options = options(2);
        change(&mut options);
        let error = open(&disk, &options).unwrap_err();
        assert!(matches!(error, Error::InvalidConfig { .. }), "{options:?}: {error:?}");
    }

    let mut options = options(2);
    options.memory_bytes = usize::MAX / 2 - 1;
    let error = open(&disk, &options).unwrap().push(b"key", b"value").unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { option: "memory_bytes", .. }), "{error:?}");

    let mut sorter = open(&disk, &self::options(2)).unwrap();
    sorter.push(&[1; KEY_BYTES_MAX], &[2; VALUE_BYTES_MAX]).unwrap();
    for (key_bytes, value_bytes) in [(KEY_BYTES_MAX + 1, 0), (1, VALUE_BYTES_MAX + 1)] {
        let error = sorter.push(&vec![0; key_bytes], &vec![0; value_bytes]).unwrap_err();
        assert!(matches!(error, Error::RecordTooLarge { position: 1, .. }), "{error:?}");
    }

    // The empty key is a key.
    sorter.push(b"", b"").unwrap();
    let records = collect(&mut sorter.finish(&mut |_| {}).unwrap()).unwrap();
    assert_eq!(records[0], (vec![], vec![]));
    assert_eq!(records.len(), 2);
}

#[test]
fn progress_is_reported_of_reading_and_merging() {
    let disk = sim(1);
    let mut options = options(2);
    options.memory_bytes = 1 << 20;
    let count = 70_000_u64;
    let pairs: Vec<Pair> =
        (0..count).map(|number| (number.to_le_bytes().to_vec(), vec![])).collect();
    let mut read = Vec::new();
    let mut merged = Vec::new();
    let mut sorter = open(&disk, &options).unwrap();
    sorter.push_all(&mut Slice { pairs: &pairs }, &mut |records| read.push(records)).unwrap();
    assert_eq!(read, [65_536, 70_000]);
    let records = sorter.finish(&mut |records| merged.push(records)).unwrap();
    assert!(records.stats().merges > 0);
    assert_eq!(merged, [65_536]);
}

#[test]
fn golden_files_of_a_sort_are_what_is_written_and_are_read() {
    let mut options = options(2);
    options.duplicates = Duplicates::Reject;
    let disk = sim(1);
    let pairs = distinct(140);
    drop(sorted(&disk, &options, &pairs).unwrap());
    let files =
        [("sort.manifest", "sort.manifest", usize::MAX), ("sort.run", "sort.00000002.run", 4096)];
    let planted = sim(2);
    for path in disk.files() {
        planted.write_raw(&path, &disk.read_raw(&path).unwrap());
    }

    for (name, file, bytes) in files {
        let path = Path::new(DIR).join(file);
        let written = disk.read_raw(&path).unwrap();
        golden::check(
            concat!(env!("CARGO_MANIFEST_DIR"), "/.."),
            name,
            &written[..bytes.min(written.len())],
        );
        planted.write_raw(&path, &golden::read(concat!(env!("CARGO_MANIFEST_DIR"), "/.."), name));
    }

    assert_eq!(open(&planted, &options).unwrap().resumes_at(), 140);
    assert_eq!(sort(&planted, &options, &pairs).unwrap().0, model(&pairs));

    // Another version is refused by name, and nothing is removed.
    let path = Path::new(DIR).join("sort.manifest");
    let mut bytes = planted.read_raw(&path).unwrap();
    bytes[8..12].copy_from_slice(&7_u32.to_le_bytes());
    let (content, crc) = bytes.split_last_chunk_mut::<4>().unwrap();
    *crc = crc32c(content).to_le_bytes();
    planted.write_raw(&path, &bytes);
    let before = planted.files();
    let error = open(&planted, &options).unwrap_err();
    assert!(
        matches!(&error, Error::UnsupportedVersion { path: found, found: 7, newest: 1 } if *found == path),
        "{error:?}"
    );
    assert_eq!(planted.files(), before);
}
