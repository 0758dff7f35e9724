//! Stores made with the library, and ways to damage them.
//!
//! While one test starts the program, its new process holds, until the program runs, all that other
//! tests have open, locks included. So the library never opens the store that the program is given,
//! but a copy of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use terrane::io::checksum::{crc32c, crc32c_append};
use terrane::io::{Disk, RealDisk};
use terrane::lsm::inspect::{Inspection, RunInfo};
use terrane::lsm::{
    PAGE_SIZE, Purpose, Session, SessionOptions, SnapshotName, TableConfig, WriteBuffer,
};

use crate::program::{Answer, command};

pub(crate) const LABEL: &str = "ledger of the tests";

/// The snapshots of a store.
pub(crate) const NAMES: [&str; 2] = ["early", "late"];

/// A closed store with two snapshots that share runs on several levels.
pub(crate) struct Store {
    root: TempDir,
}

impl Store {
    pub(crate) fn new() -> Self {
        let made = tempfile::tempdir().unwrap();
        let session = Session::open_dir(made.path(), &SessionOptions::with_salt(7)).unwrap();
        let config = TableConfig::default().write_buffer(WriteBuffer::Entries(100));

        let mut table = session.new_table(&config).unwrap();
        for number in 0..1_550_u32 {
            let key = format!("account {:08x}", number.wrapping_mul(0x9E37_79B9));
            let len = if number % 97 == 0 { 9_000 } else { 60 };
            table.insert(key.as_bytes(), &vec![number as u8; len]).unwrap();
            if number % 5 == 0 {
                let earlier = format!("account {:08x}", (number / 2).wrapping_mul(0x9E37_79B9));
                table.delete(earlier.as_bytes()).unwrap();
            }
            if number == 1_200 {
                table.save_snapshot(&SnapshotName::new(NAMES[0]).unwrap(), LABEL).unwrap();
            }
        }

        table.save_snapshot(&SnapshotName::new(NAMES[1]).unwrap(), LABEL).unwrap();
        drop(table);
        session.close().unwrap();
        let store = Self { root: tempfile::tempdir().unwrap() };
        copy_store(made.path(), &store.dir());

        store
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.root.path().join("store")
    }

    pub(crate) fn snapshot(&self, name: &str) -> PathBuf {
        self.dir().join("snapshots").join(format!("{name}.snapshot"))
    }

    /// The largest run of a level.
    pub(crate) fn run(&self) -> RunInfo {
        let active = std::fs::read_dir(self.dir().join("active")).unwrap();
        let runs = active.map(|entry| run_info(&entry.unwrap().path()));
        let level_runs = runs.filter(|run| run.meta.purpose == Purpose::Level);
        level_runs.max_by_key(|run| run.bytes).unwrap()
    }

    /// Returns the content of each snapshot; `None` if cursor or lookups cannot read all of it.
    pub(crate) fn contents(&self) -> BTreeMap<&'static str, Option<Content>> {
        let copy = tempfile::tempdir().unwrap();
        copy_store(&self.dir(), copy.path());
        let session = Session::open_dir(copy.path(), &SessionOptions::default()).ok();
        let content = |name| session.as_ref().and_then(|session| content(session, name));
        NAMES.map(|name| (name, content(name))).into()
    }

    /// Calls `terrane verify <store> --json` with further arguments.
    pub(crate) fn verify(&self, arguments: &[&str]) -> Answer {
        let mut command = command();
        command.arg("verify").arg(self.dir()).arg("--json").args(arguments);
        command.output().unwrap().into()
    }
}

/// How many entries, and a checksum of them all in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Content {
    entries: u64,
    crc: u32,
}

fn content(session: &Session, name: &str) -> Option<Content> {
    let table = session.open_snapshot(&SnapshotName::new(name).unwrap(), LABEL).ok()?;
    let mut cursor = table.cursor().ok()?;
    let mut content = Content { entries: 0, crc: 0 };
    while let Some(record) = cursor.next().transpose().ok()? {
        let value = record.value.into_vec();
        if table.get(&record.key).ok()?.value() != Some(&value) {
            return None;
        }
        content.entries += 1;
        for part in [&record.key, &value] {
            content.crc = crc32c_append(content.crc, &(part.len() as u64).to_le_bytes());
            content.crc = crc32c_append(content.crc, part);
        }
    }

    Some(content)
}

/// Copies the files of a store but for the lock.
fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_store(&entry.path(), &target);
        } else if entry.file_name() != "lock" {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Calls `terrane inspect <path>` with further arguments.
pub(crate) fn inspect(path: &Path, arguments: &[&str]) -> Answer {
    command().arg("inspect").arg(path).args(arguments).output().unwrap().into()
}

pub(crate) fn run_info(path: &Path) -> RunInfo {
    let disk: std::sync::Arc<dyn Disk> = RealDisk::auto();
    match terrane::lsm::inspect::inspect(&disk, path).unwrap() {
        Inspection::Run(run) => run,
        other => panic!("not a run: {other:?}"),
    }
}

/// Changes a byte of a file.
pub(crate) fn flip(path: &Path, offset: u64) {
    edit(path, |bytes| bytes[usize::try_from(offset).unwrap()] ^= 0x10);
}

pub(crate) fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Writes the checksum of a run's page anew.
pub(crate) fn reseal_page(bytes: &mut [u8], identity: u64, page: u32) {
    let at = page as usize * PAGE_SIZE;
    let seed = [&identity.to_le_bytes()[..], &page.to_le_bytes()].concat();
    let crc = crc32c_append(crc32c(&seed), &bytes[at + 4..at + PAGE_SIZE]);
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Writes the checksum of `metadata` or of a snapshot's file anew.
pub(crate) fn reseal_manifest(bytes: &mut [u8]) {
    let content = bytes.len() - 4;
    let crc = crc32c(&bytes[..content]);
    bytes[content..].copy_from_slice(&crc.to_le_bytes());
}
