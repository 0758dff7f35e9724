//! Canonical exports: equal contents give one stream of bytes.
//!
//! Goal: equal contents give equal bytes and one digest, whatever the history, configuration, salt
//! and disk; what is read back is what was written; nothing damaged is taken for an export, and
//! damage is reported with its place, without a panic and without memory for bytes that are not
//! there. Method: random histories that end in the same content; the format written once more by
//! hand; every byte changed, every length cut.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use sha2::{Digest as _, Sha256};
use terrane_lsm::{
    CompactionSchedule, Error, IndexKind, KEY_BYTES_MAX, MergeOperator, Session, SessionOptions,
    Table, TableConfig, Update,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::golden;
use terrane_testkit::seeds::for_each_seed;

use crate::{SALT, SessionDir, buffer_of, fill, key, name, value};

type Entries = BTreeMap<Vec<u8>, (Vec<u8>, Option<Vec<u8>>)>;

/// The format, as the document has it.
fn written(entries: &Entries) -> Vec<u8> {
    let mut bytes = [&b"TerraCan"[..], &1_u32.to_le_bytes()].concat();
    let mut hash = Sha256::new();
    for (key, (value, blob)) in entries {
        bytes.push(if blob.is_some() { 2 } else { 1 });
        let start = bytes.len();
        for part in [Some(key), Some(value), blob.as_ref()].into_iter().flatten() {
            bytes.extend(u32::try_from(part.len()).unwrap().to_le_bytes());
            bytes.extend(part);
        }
        hash.update(&bytes[start..]);
    }

    bytes.push(3);
    bytes.extend((entries.len() as u64).to_le_bytes());
    bytes.extend(hash.finalize());
    bytes
}

fn export(table: &Table) -> Vec<u8> {
    let mut bytes = Vec::new();
    let summary = table.export_canonical(&mut bytes).unwrap();
    let (rest, digest) = bytes.split_last_chunk::<32>().unwrap();
    assert_eq!((summary.bytes, &summary.digest), (bytes.len() as u64, digest));
    assert_eq!(rest.last_chunk(), Some(&summary.count.to_le_bytes()));
    bytes
}

/// Some content: keys and values of all kinds of lengths, blobs, the empty key.
fn content(rng: &mut impl Draw) -> Entries {
    let mut entries = Entries::new();
    for _ in 0..rng.index(60) {
        let key_len = [0, 1, 3, 40, KEY_BYTES_MAX][rng.index(5)];
        let value_len = [0, 7, 60, 5_000][rng.index(4)];
        let blob_len = rng.index(9_000);
        let blob = rng.chance(1, 3).then(|| rng.bytes(blob_len));
        entries.insert(rng.bytes(key_len), (rng.bytes(value_len), blob));
    }
    entries
}

/// A table that comes to hold the entries by some history: other values before, keys that go again,
/// upserts.
fn reach(table: &mut Table, entries: &Entries, rng: &mut impl Draw) {
    let mut left: Vec<_> = entries.iter().collect();
    let mut passing = Vec::new();
    while !left.is_empty() {
        let at = rng.index(left.len());
        let (key, (value, blob)) = left[at];
        match rng.below(4) {
            0 => table.insert_with_blob(key, b"other", b"blob").unwrap(),
            1 => {
                let key = rng.bytes(9);
                table.insert(&key, b"passing").unwrap();
                passing.push(key);
            }
            2 => table.delete(key).unwrap(),
            _ => {
                match blob {
                    Some(blob) => table.insert_with_blob(key, value, blob).unwrap(),
                    // The newest value wins, and drops the blob.
                    None if rng.chance(1, 2) => table.upsert(key, value).unwrap(),
                    None => table.insert(key, value).unwrap(),
                }
                left.swap_remove(at);
            }
        }
    }

    for key in passing.iter().filter(|key| !entries.contains_key(*key)) {
        table.delete(key).unwrap();
    }
}

#[test]
fn equal_contents_give_equal_bytes_whatever_their_history() {
    for_each_seed("equal_contents_give_equal_bytes_whatever_their_history", 4, |rng, _| {
        let entries = content(rng);
        let expected = written(&entries);
        for (salt, place) in (SALT..).zip(SessionDir::both()) {
            let session = place.try_open(salt).unwrap();
            for config in [
                buffer_of(1),
                buffer_of(7).index(IndexKind::Ordinary),
                buffer_of(3).compaction_schedule(CompactionSchedule::OneShot),
                buffer_of(1_000),
            ] {
                let mut table = session.new_table(&config).unwrap();
                reach(&mut table, &entries, rng);
                assert!(export(&table) == expected, "{config:?}");
                table.save_snapshot(&name("a"), "any label").unwrap();
                let mut bytes = Vec::new();
                let summary = session.export_canonical(&name("a"), &mut bytes).unwrap();
                assert!(bytes == expected);
                assert_eq!(summary.count, entries.len() as u64);
                session.delete_snapshot(&name("a")).unwrap();
            }
        }
    });
}

#[test]
fn what_is_read_back_is_what_was_written() {
    for_each_seed("what_is_read_back_is_what_was_written", 4, |rng, _| {
        let bytes = written(&content(rng));
        for place in SessionDir::both() {
            let session = place.open();
            for config in [buffer_of(2), TableConfig::default()] {
                let (table, summary) = session.import_canonical(&bytes[..], &config).unwrap();
                assert_eq!(table.config(), &config);
                assert_eq!(summary.bytes, bytes.len() as u64);
                assert!(export(&table) == bytes);
            }
            // Also from a source that gives a byte at a time.
            let slow = Slow(&bytes);
            let (table, _) = session.import_canonical(slow, &buffer_of(2)).unwrap();
            assert!(export(&table) == bytes);
        }
    });
}

struct Slow<'a>(&'a [u8]);

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(1);
        self.0.read(&mut buffer[..len])
    }
}

/// More than a batch of entries, and of blobs.
#[test]
fn exports_may_be_larger_than_a_batch() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let mut table = session.new_table(&buffer_of(500)).unwrap();
    fill(&mut table, 0..3_000);
    for number in 0..3u8 {
        table.insert_with_blob(&[number], b"", &value(number.into(), 3 << 20)).unwrap();
    }
    let bytes = export(&table);
    let (again, summary) = session.import_canonical(&bytes[..], &buffer_of(700)).unwrap();
    assert_eq!(summary.count, 3_003);
    assert!(export(&again) == bytes);
    assert_eq!(again.get(&key(7)).unwrap().value(), Some(value(7, 60).as_slice()));
}

/// A small export with both kinds of entries.
fn small() -> Vec<u8> {
    let mut entries = Entries::new();
    entries.insert(b"a".to_vec(), (b"one".to_vec(), None));
    entries.insert(b"b".to_vec(), (Vec::new(), Some(b"blob".to_vec())));
    entries.insert(b"c".to_vec(), (b"three".to_vec(), None));
    written(&entries)
}

fn import(session: &Session, bytes: &[u8]) -> Error {
    session.import_canonical(bytes, &buffer_of(2)).map(drop).unwrap_err()
}

#[test]
fn every_change_of_a_byte_is_noticed() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let whole = small();
    session.import_canonical(&whole[..], &buffer_of(2)).unwrap();

    for at in 0..whole.len() {
        for mask in [1, 2, 0x80, 0xFF] {
            let mut bytes = whole.clone();
            bytes[at] ^= mask;
            let error = import(&session, &bytes);
            match &error {
                Error::CanonicalMalformed { offset, .. } => {
                    assert!(*offset <= bytes.len() as u64, "{error}");
                }
                Error::CanonicalDigestMismatch { .. } => {}
                error => panic!("byte {at}: {error}"),
            }
        }
    }

    for len in 0..whole.len() {
        let error = import(&session, &whole[..len]);
        assert!(
            matches!(&error, Error::CanonicalMalformed { offset, .. }
                if *offset == if len < 8 { 0 } else { len as u64 }),
            "{len} bytes: {error}"
        );
    }

    let error = import(&session, &[&whole[..], &[0]].concat());
    assert!(matches!(&error, Error::CanonicalMalformed { offset, .. }
        if *offset == whole.len() as u64 + 1));

    // Nothing of all these attempts is left.
    assert!(place.runs().is_empty());
}

#[test]
fn each_rule_is_told_with_its_place() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let entry = |key: &[u8], value_len: u32| {
        let key_len = u32::try_from(key.len()).unwrap().to_le_bytes();
        [&[1][..], &key_len, key, &value_len.to_le_bytes()].concat()
    };

    let start = [&b"TerraCan"[..], &1_u32.to_le_bytes()].concat();
    let malformed = |rest: &[u8], place: u64, words: &str| {
        let error = import(&session, &[&start[..], rest].concat());
        assert!(
            matches!(&error, Error::CanonicalMalformed { offset, reason }
                if *offset == 12 + place && reason.contains(words)),
            "{words}: {error}"
        );
        assert!(error.to_string().starts_with(&format!("byte {}", 12 + place)), "{error}");
    };

    malformed(&[0], 0, "unknown tag 0");
    malformed(&[1, 0xA1, 0x0F, 0, 0], 5, "a key of 4001 bytes; the limit is 4000");

    // A length that no memory has room for, of bytes that never come.
    malformed(&entry(b"k", u32::MAX), 10, "ends early");
    malformed(&[&entry(b"k", 0)[..], &entry(b"k", 0)].concat(), 16, "not above");
    malformed(&[&entry(b"k", 0)[..], &entry(b"j", 0)].concat(), 16, "not above");
    malformed(&[&entry(b"k", 0)[..], &[3, 2, 0, 0, 0, 0, 0, 0, 0]].concat(), 19, "2 entries; 1");
    let error = import(&session, b"letters from home");
    assert!(matches!(error, Error::CanonicalMalformed { offset: 0, .. }), "{error}");

    let error = import(&session, b"TerraCan\x07\0\0\0");
    assert!(
        matches!(&error, Error::CanonicalMalformed { offset: 8, reason }
            if reason.contains("format version 7")),
        "{error}"
    );
}

/// Fails after some bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let len = bytes.len().min(self.0);
        self.0 -= len;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Full {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::TimedOut.into())
    }
}

#[test]
fn a_stream_that_fails_is_told_of_as_it_is() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let (table, _) = session.import_canonical(&small()[..], &buffer_of(2)).unwrap();

    for room in 0..small().len() {
        let error = table.export_canonical(Full(room)).unwrap_err();
        assert!(
            matches!(&error, Error::Stream { source } if source.kind() == io::ErrorKind::StorageFull),
            "{error}"
        );
    }

    table.export_canonical(Full(small().len())).unwrap();
    let error = session.import_canonical(Full(0), &buffer_of(2)).map(drop).unwrap_err();
    assert!(
        matches!(&error, Error::Stream { source } if source.kind() == io::ErrorKind::TimedOut),
        "{error}"
    );
}

/// Another merge operator, another salt, deletions and all: the golden file stays.
#[test]
fn golden_canonical_export() {
    let place = SessionDir::simulated(1);
    let session =
        Session::open(place.disk(), &place.dir(), &SessionOptions::with_salt(SALT).create_dir())
            .unwrap();
    let config = buffer_of(2).merge_operator(MergeOperator::concatenate());
    let mut table = session.new_table(&config).unwrap();

    let batch: [(&[u8], Update<'_>); 6] = [
        (b"account", Update::Insert(b"5")),
        (b"", Update::Insert(b"")),
        (b"gone", Update::Insert(b"soon")),
        (b"account", Update::Upsert(b"1")),
        (b"deed", Update::InsertWithBlob(b"house", b"a long paper")),
        (b"gone", Update::Delete),
    ];

    table.write_batch(&batch).unwrap();
    golden::check(concat!(env!("CARGO_MANIFEST_DIR"), "/.."), "canonical.small", &export(&table));
}
