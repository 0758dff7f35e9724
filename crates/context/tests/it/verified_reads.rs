//! Verified reads: records that were forged, with checksums that fit, are found by their hashes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_context::{Address, Context, Error, Hash, Meta, Options, Result, Store, StoreReader};
use terrane_io::checksum::{crc32c, crc32c_append};
use terrane_io::{Access, Disk, MemoryDisk, OpenMode};

use crate::script::{DIR, create, open, options};

const CHUNK: &str = "chunk-000000";
const LARGE: [u8; 300] = [0xA5; 300];
const SMALL: &[u8] = b"a small value in its directory";

fn filled() -> (Arc<dyn Disk>, Hash) {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let store = create(&disk, &options().chunk_bytes(1 << 20)).unwrap();
    let mut context = store.empty();
    context.add(&["values", "large"], LARGE).unwrap();
    context.add(&["values", "other"], [7; 100]).unwrap();
    context.add(&["nodes", "below", "small"], SMALL).unwrap();
    let commit = store.commit(&context, &Meta::tezos(0, "")).unwrap();
    store.close().unwrap();
    (disk, commit)
}

fn chunk_path(disk: &dyn Disk) -> PathBuf {
    let entries = disk.list(Path::new(DIR)).unwrap();
    let chunk = entries.iter().find(|entry| entry.name.starts_with("chunk-")).expect(CHUNK);
    Path::new(DIR).join(&chunk.name)
}

/// Changes the first byte of a content in the only chunk, and mends the checksum of its record.
/// Returns the address of the record.
fn forge(disk: &dyn Disk, content: &[u8]) -> Address {
    let file = disk.open(&chunk_path(disk), OpenMode::ReadWrite, Access::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let found = bytes.windows(content.len()).position(|some| some == content).unwrap();

    // A record begins at a multiple of 8: its length as a varint, its body, its checksum.
    let mut start = found / 8 * 8;
    let (at, body, end) = loop {
        let at = Address { chunk: 0, unit: (start / 8) as u32 };
        let mut len = usize::from(bytes[start] & 0x7F);
        let mut body = start + 1;
        if bytes[start] >= 0x80 {
            len |= usize::from(bytes[start + 1]) << 7;
            body = start + 2;
        }
        let end = body + len;
        let is_record = bytes.len() > end + 4
            && located(at, &bytes[body..end]).to_le_bytes() == bytes[end..end + 4];
        if found < end && is_record {
            break (at, body, end);
        }
        start -= 8;
    };

    bytes[found] ^= 1;
    let crc = located(at, &bytes[body..end]).to_le_bytes();
    bytes[end..end + 4].copy_from_slice(&crc);
    file.write_at(&bytes[start..end + 4], start as u64).unwrap();
    at
}

fn located(at: Address, bytes: &[u8]) -> u32 {
    crc32c_append(crc32c(&at.to_u64().to_le_bytes()), bytes)
}

/// Values that the writer and a reader find at a path.
fn found(
    disk: &Arc<dyn Disk>,
    commit: &Hash,
    path: &[&str],
    verifies: bool,
) -> Vec<Result<Vec<u8>>> {
    let find = |context: Context| context.find(path).map(|value| value.expect("it is bound"));
    let options: Options = options().chunk_bytes(1 << 20).verify_reads(verifies);
    let store = open(disk, &options).unwrap();
    let writer = store.checkout(commit).and_then(|context| find(context.unwrap()));
    store.close().unwrap();
    let reader = StoreReader::open(Arc::clone(disk), Path::new(DIR), 1 << 20).unwrap();
    let reader = if verifies { reader.verify_reads() } else { reader };
    let reader = reader.checkout(commit).and_then(|context| find(context.unwrap()));
    vec![writer, reader]
}

#[test]
fn a_forged_record_with_a_valid_checksum_is_found_by_its_hash() {
    let paths: [(&[&str], &[u8], &str); 2] = [
        (&["values", "large"], &LARGE, "hash of a value"),
        (&["nodes", "below", "small"], SMALL, "hash of a node"),
    ];
    for (path, value, rule) in paths {
        let (disk, commit) = filled();
        for found in found(&disk, &commit, path, true) {
            assert_eq!(found.unwrap(), value, "{path:?}, as it was written");
        }
        let forged_at = forge(&*disk, value);

        // The checksum fits, so reads without hashes take the forged value.
        for found in found(&disk, &commit, path, false) {
            assert_eq!(found.unwrap()[1..], value[1..], "{path:?}");
        }
        for found in found(&disk, &commit, path, true) {
            let error = found.unwrap_err();
            let Error::Corrupt { path, address, what } = &error else { panic!("{error:?}") };
            assert_eq!((path.clone(), *address), (chunk_path(&*disk), Some(forged_at)));
            assert_eq!(what.rule, rule);
            assert!(error.is_corruption());
        }

        // The rest of the tree is readable.
        for found in found(&disk, &commit, &["values", "other"], true) {
            assert_eq!(found.unwrap(), [7; 100]);
        }
    }
}

#[test]
fn verified_reads_are_of_all_kinds_of_nodes() {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let options = options().verify_reads(true);
    let mut store: Store = create(&disk, &options).unwrap();
    let mut commit = None;

    // Inodes of two levels, deltas, and values of both kinds, each read back.
    for round in 0..4_u8 {
        let mut context = match &commit {
            Some(commit) => store.checkout(commit).unwrap().unwrap(),
            None => store.empty(),
        };
        let names = if round == 0 { 0..1_500 } else { 700..703 };
        for name in names {
            let value = vec![round; if name % 3 == 0 { 60 } else { 5 }];
            context.add(&["wide", &format!("{name}")], value).unwrap();
        }
        commit = Some(store.commit(&context, &Meta::tezos(i64::from(round), "")).unwrap());
        store.close().unwrap();
        store = open(&disk, &options).unwrap();
        let context = store.checkout(&commit.unwrap()).unwrap().unwrap();
        for (step, value) in context.list(&["wide"], 0, usize::MAX).unwrap() {
            assert!(value.to_value().unwrap().is_some(), "{step:?}");
        }
        assert_eq!(context.length(&["wide"]).unwrap(), 1_500);
    }
}
