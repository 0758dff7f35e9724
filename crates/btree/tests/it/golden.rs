//! The bytes on disk: golden files of an index, and what is refused.
//!
//! Goal: a change of any byte of a format does not pass unnoticed, and files of a released version
//! are read for ever. Method: a small index is written to a simulated disk whose clock stands
//! still; its files are the golden files. They are then planted on an empty disk and opened.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_btree::{Config, Error, Index, IndexReader, Loss, PAGE_SIZE, check};
use terrane_io::checksum::crc32c;
use terrane_io::{Disk, FixedClockDisk, SimDisk};
use terrane_testkit::golden;

use crate::model::DIR;

const CRATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Golden files, with the files of the index that they are.
const FILES: [(&str, &str); 4] = [
    ("btree.tree", "tree"),
    ("btree-log.mark", "synced"),
    ("btree-log.sealed", "log/00000000000000000000.log"),
    ("btree-log.last", "log/00000000000000008944.log"),
];

const LEASE: &str = "btree-lease.reader";

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn config() -> Config {
    Config::variable().memory_bytes(1 << 20).buffer_bytes(0).log_bytes_max(1 << 16)
}

fn path(file: &str) -> PathBuf {
    Path::new(DIR).join(file)
}

/// An index of some leaves and a node, with updates in its log that the leaves do not have.
fn write() -> (Arc<SimDisk>, Model) {
    let disk = SimDisk::new(1);
    let still = FixedClockDisk::new(disk.clone());
    let index = Index::create(still, Path::new(DIR), &config()).unwrap();
    let mut model = Model::new();
    for number in 0..150_u64 {
        let key = format!("account/{:04}", number * 37 % 150).into_bytes();
        let value = vec![number as u8; 40 + number as usize % 7];
        index.replace(&key, &value).unwrap();
        model.insert(key, value);
    }

    assert!(index.remove(b"account/0007").unwrap());
    model.remove(&b"account/0007"[..]);
    index.checkpoint().unwrap();
    index.replace(b"", b"the empty key").unwrap();
    index.replace(b"empty", b"").unwrap();
    index.flush(true).unwrap();
    model.insert(Vec::new(), b"the empty key".to_vec());
    model.insert(b"empty".to_vec(), Vec::new());

    // The state that a killed process leaves.
    let killed = disk.process_kill();
    drop(index);
    (killed, model)
}

#[test]
fn golden_files_of_an_index_are_what_is_written_and_are_read() {
    let (disk, model) = write();
    let names: Vec<_> = disk.files().into_iter().filter(|path| !path.ends_with("lock")).collect();
    assert_eq!(names.len(), FILES.len(), "{names:?}");
    for (golden, file) in FILES {
        golden::check(CRATE, golden, &disk.read_raw(path(file)).unwrap());
    }

    let reader = IndexReader::open(disk.clone(), Path::new(DIR), &config()).unwrap();
    let lease = disk.read_raw(path("readers/0.lease")).unwrap();
    golden::check(CRATE, LEASE, &lease[16..]);
    drop(reader);

    let planted = SimDisk::new(2);
    for (golden, file) in FILES {
        planted.write_raw(path(file), &golden::read(CRATE, golden));
    }

    planted.create_dir(&path("readers")).unwrap();
    let shared: Arc<dyn Disk> = planted.clone();
    let report = check(&shared, Path::new(DIR), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, []);
    assert!(report.height > 0 && report.leaves > 1 && report.log_updates == 2, "{report:?}");
    let index = Index::open(shared, Path::new(DIR), &config()).unwrap();
    let found: Model = index.iter().unwrap().map(Result::unwrap).collect();
    assert_eq!(found, model);
    assert_eq!(index.len().unwrap(), model.len() as u64);

    // And it can be gone on with.
    index.replace(b"more", b"").unwrap();
    index.close().unwrap();
}

#[test]
fn golden_files_of_an_unknown_version_are_refused_by_name() {
    let (disk, _) = write();
    for superblock in [0, 1] {
        let altered = disk.process_kill();
        let mut bytes = altered.read_raw(path("tree")).unwrap();
        let page = &mut bytes[superblock * PAGE_SIZE..(superblock + 1) * PAGE_SIZE];
        page[8..12].copy_from_slice(&7_u32.to_le_bytes());
        page[12..16].fill(0);
        let crc = crc32c(page);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
        altered.write_raw(path("tree"), &bytes);
        let shared: Arc<dyn Disk> = altered.clone();
        let errors = [
            Index::open(shared.clone(), Path::new(DIR), &config()).unwrap_err(),
            IndexReader::open(shared.clone(), Path::new(DIR), &config()).unwrap_err(),
            check(&shared, Path::new(DIR), &mut |_, _| {}).unwrap_err(),
            terrane_btree::repair(&shared, Path::new(DIR), Loss::Accepted, |_, _| {}).unwrap_err(),
        ];
        for error in errors {
            assert!(
                matches!(&error, Error::UnsupportedVersion { path: found, found: 7, newest: 2 }
                    if *found == path("tree")),
                "{error:?}"
            );
        }
        assert_eq!(altered.read_raw(path("tree")).unwrap(), bytes);
    }
}

#[test]
fn golden_folder_is_complete() {
    let mut expected = FILES.map(|(golden, _)| golden).to_vec();
    // Those of the sort are held to the code by its own tests.
    expected.extend([LEASE, "sort.manifest", "sort.run"]);
    golden::check_complete(CRATE, &expected);
}
