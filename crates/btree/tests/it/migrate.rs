//! Reading the directory of a mirage/index store.
//!
//! Goal: all records of its files come in the order in which they override each other, and nothing
//! else does; a directory that is damaged gives a typed error, whatever its bytes, and is never
//! changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use terrane_btree::{Error, MirageIndex, Records, Result, SortOptions, Sorter};
use terrane_io::SimDisk;
use terrane_io::{Access, Disk, OpenMode};

use crate::{Pair, collect};

const DIR: &str = "/store";

fn pair(key: u8, value: u8) -> Pair {
    (vec![key; 32], vec![value; 13])
}

fn big_endian(number: u64) -> [u8; 8] {
    number.swap_bytes().to_le_bytes()
}

/// A file with this fan-out and these records.
fn encode(fan: &[u64], pairs: &[Pair]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&big_endian(pairs.len() as u64 * 45));
    bytes.extend_from_slice(b"00000001");
    bytes.extend_from_slice(&big_endian(3));
    bytes.extend_from_slice(&big_endian(fan.len() as u64 * 8));
    bytes.extend(fan.iter().flat_map(|offset| big_endian(*offset)));
    bytes.extend(pairs.iter().flat_map(|(key, value)| [key.as_slice(), value].concat()));
    bytes
}

fn disk(files: &[(&str, Vec<u8>)]) -> Arc<SimDisk> {
    let disk = SimDisk::new(1);
    for (name, bytes) in files {
        disk.write_raw(Path::new(DIR).join("index").join(name), bytes);
    }
    disk
}

fn open(disk: &Arc<SimDisk>) -> Result<MirageIndex> {
    MirageIndex::open(disk.as_ref(), Path::new(DIR), 32, 13)
}

#[test]
fn the_records_of_all_files_come_in_the_order_in_which_they_override() {
    let data = encode(&[0, 45, 90], &[pair(9, 1), pair(2, 1)]);
    let log_async = encode(&[], &[pair(2, 2), pair(5, 2)]);

    // Bytes behind the records were not flushed.
    let log = [encode(&[], &[pair(5, 3)]), vec![0xEE; 70]].concat();
    let disk = disk(&[("data", data), ("log_async", log_async), ("log", log)]);
    let files = disk.files();
    let before = disk.counts();
    let mut index = open(&disk).unwrap();
    assert_eq!((index.records(), index.bytes()), (5, 225));
    let records = collect(&mut index).unwrap();
    assert_eq!(records, [pair(9, 1), pair(2, 1), pair(2, 2), pair(5, 2), pair(5, 3)]);
    assert_eq!(disk.files(), files);
    let during = disk.counts() - before;
    assert_eq!((during.writes, during.creates, during.syncs, during.locks), (0, 0, 0, 0));
}

/// Fifteen runs are merged at once; there are more of them, and the first attempt is given up in
/// the middle.
#[test]
fn a_migration_keeps_to_its_memory_and_goes_on_where_it_was_given_up() {
    let many: Vec<Pair> = (0..20_000_u64)
        .map(|number| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
            (key.to_vec(), vec![1; 13])
        })
        .collect();
    let newer: Vec<Pair> =
        many[500..700].iter().map(|(key, _)| (key.clone(), vec![2; 13])).collect();
    let disk = disk(&[("data", encode(&[0; 64], &many)), ("log", encode(&[], &newer))]);
    let mut options = SortOptions::new(Path::new(DIR), 1);
    options.memory_bytes = 17 * 4096;
    assert_eq!(options.fan_in, 15);
    options.input_bytes = Some(open(&disk).unwrap().bytes());
    let sorter = || Sorter::open(Arc::clone(&disk) as Arc<dyn Disk>, options.clone()).unwrap();

    let mut first = sorter();
    let mut index = open(&disk).unwrap();
    for _ in 0..12_000 {
        let (key, value) = index.next_ref().unwrap().unwrap();
        first.push(key, value).unwrap();
    }

    let given_up = first.stats();
    drop(first);
    let mut second = sorter();
    assert!(second.resumes_at() > 10_000);
    second.push_all(&mut open(&disk).unwrap(), &mut |_| {}).unwrap();
    let mut records = second.finish(&mut |_| {}).unwrap();
    let stats = records.stats();
    assert!(given_up.runs + stats.runs > 15 && stats.merges == 1, "{given_up:?}, {stats:?}");
    for stats in [given_up, stats] {
        assert!(stats.memory_bytes_max <= options.memory_bytes, "{stats:?}");
    }

    let mut expected = many.clone();
    expected[500..700].clone_from_slice(&newer);
    expected.sort();
    assert_eq!(collect(&mut records).unwrap(), expected);
    records.remove_files().unwrap();
    let left = disk.files();
    assert_eq!(left, ["/store/index/data", "/store/index/log"].map(PathBuf::from));
}

#[test]
fn files_that_are_missing_have_no_records_but_one_must_be_there() {
    let only_log = disk(&[("log", encode(&[], &[pair(1, 1)]))]);
    assert_eq!(collect(&mut open(&only_log).unwrap()).unwrap(), [pair(1, 1)]);
    let empty = disk(&[("data", encode(&[], &[]))]);
    assert_eq!(collect(&mut open(&empty).unwrap()).unwrap(), []);
    let error = open(&disk(&[("letters", vec![])])).unwrap_err();
    assert!(matches!(&error, Error::Disk(error) if error.is_not_found()), "{error:?}");
}

#[test]
fn other_sizes_are_read_and_impossible_ones_refused() {
    let disk = disk(&[("data", encode(&[], &[pair(1, 2)]))]);
    let mut index = MirageIndex::open(disk.as_ref(), Path::new(DIR), 4, 5).unwrap();
    assert_eq!(index.records(), 5);
    assert_eq!(collect(&mut index).unwrap()[0], (vec![1; 4], vec![1; 5]));
    for (key_bytes, value_bytes) in [(0, 0), (0, 45), (usize::MAX, usize::MAX)] {
        let error =
            MirageIndex::open(disk.as_ref(), Path::new(DIR), key_bytes, value_bytes).unwrap_err();
        assert!(matches!(error, Error::InvalidConfig { .. }), "{error:?}");
    }
}

#[test]
fn a_header_that_cannot_be_is_refused_by_the_rule_it_breaks() {
    let cases: [(usize, &[u8], &str); 6] = [
        (15, b"2", "version"),
        (0, &[0, 0, 0, 0, 0, 0, 0, 44], "bytes of records"),
        (0, &[0, 0, 0, 0, 0, 0, 0, 135], "bytes of records"),
        (0, &[0xFF; 8], "bytes of records"),
        (24, &[0, 0, 0, 0, 0, 0, 0, 7], "bytes of the fan-out"),
        (24, &[0xFF; 8], "bytes of the fan-out"),
    ];
    for (at, with, rule) in cases {
        let mut bytes = encode(&[0], &[pair(1, 1), pair(2, 2)]);
        bytes[at..at + with.len()].copy_from_slice(with);
        let error = open(&disk(&[("data", bytes)])).unwrap_err();
        assert!(matches!(&error, Error::Corrupt { what, .. } if what.rule == rule), "{error}");
    }

    let whole = encode(&[0], &[pair(1, 1)]);
    for cut in 0..whole.len() {
        let error = open(&disk(&[("data", whole[..cut].to_vec())])).unwrap_err();
        let is_typed = matches!(
            error,
            Error::Corrupt { .. } | Error::Disk(terrane_io::Error::ShortRead { .. })
        );
        assert!(is_typed, "{cut} bytes: {error:?}");
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let disk = disk(&[("data", encode(&[], &[pair(1, 1), pair(2, 2)]))]);
    let mut index = open(&disk).unwrap();
    let path = Path::new(DIR).join("index/data");
    let file = disk.open(&path, OpenMode::ReadWrite, Access::Buffered).unwrap();
    file.set_len(100).unwrap();
    let error = collect(&mut index).unwrap_err();
    assert!(matches!(error, Error::Disk(terrane_io::Error::ShortRead { .. })), "{error:?}");
}

proptest! {
    #[test]
    fn hostile_bytes_give_records_or_an_error(
        fields in prop::array::uniform4(prop_oneof![0..200_u64, any::<u64>()]),
        is_version in any::<bool>(),
        rest in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut bytes: Vec<u8> = fields.iter().flat_map(|field| big_endian(*field)).collect();
        if is_version {
            bytes[8..16].copy_from_slice(b"00000001");
        }

        bytes.extend_from_slice(&rest);
        if let Ok(mut index) = open(&disk(&[("log", bytes)])) {
            let expected = index.records();
            prop_assert_eq!(collect(&mut index).unwrap().len() as u64, expected);
        }
    }
}
