//! Places of a medium that stay unreadable, under the engines of Terrane, and links in the place of
//! their files.
//!
//! Goal: wherever the bad place is, opening and reading give the right data or an error, and never
//! end in a panic. A store that can be opened says what it cannot read, and never that a value is
//! absent.
//!
//! Method: a small store on a simulated disk; each range of each of its files made bad in a copy of
//! the disk.

use std::path::Path;
use std::sync::Arc;

use terrane_backends::{BtreeDatabase, BtreeOptions, LsmDatabase, LsmOptions};
use terrane_io::EntryKind;
use terrane_io::{BadMedia, Disk, SimDisk};
use terrane_kv::{Database, Result};
use terrane_radix::{INDEXES, Root, Store};

use super::words::{commit, leaves, set, tree};
use super::{TREE, options};

const DIR: &str = "/store";
/// Bytes of a bad place.
const PLACE_BYTES: u64 = 4096;

#[derive(Debug, Clone, Copy)]
enum Engine {
    Lsm,
    Btree,
}

impl Engine {
    fn open(self, disk: &Arc<SimDisk>) -> Result<Arc<dyn Database>> {
        let disk: Arc<dyn Disk> = disk.clone();
        Ok(match self {
            Self::Lsm => {
                let options = LsmOptions::default().salt(7);
                Arc::new(LsmDatabase::open(disk, Path::new(DIR), &INDEXES, &options)?)
            }
            Self::Btree => {
                let mut options = BtreeOptions::default();
                options.memory_bytes = 1 << 20;
                Arc::new(BtreeDatabase::open(disk, Path::new(DIR), &INDEXES, &options)?)
            }
        })
    }

    fn open_read_only(self, disk: &Arc<SimDisk>) -> Result<Arc<dyn Database>> {
        let disk: Arc<dyn Disk> = disk.clone();
        match self {
            Self::Lsm => LsmDatabase::open_read_only(disk, Path::new(DIR), &INDEXES),
            Self::Btree => {
                let options = BtreeOptions::default();
                BtreeDatabase::open_read_only(disk, Path::new(DIR), &INDEXES, &options)
            }
        }
    }

    /// A disk with a store of two versions, part of it in the log and part in pages.
    fn disk_with_store(self) -> (Arc<SimDisk>, Root) {
        let disk = SimDisk::new(7);
        let mut root = Root::EMPTY;
        for round in 0..2 {
            let store = Store::open(self.open(&disk).unwrap(), &options()).unwrap();
            let tree = tree(&store);
            let changes: Vec<_> = (0..30)
                .map(|number| set(&format!("{number:02x}{round:02x}"), vec![number; 100]))
                .collect();
            root = commit(&tree, &root, &changes);
            store.close().unwrap();
        }

        (disk, root)
    }
}

/// Reads all of a store: `Some(true)` if it is right, `None` if there was an error.
fn read(database: Result<Arc<dyn Database>>, root: &Root) -> Option<bool> {
    let store = Store::open(database.ok()?, &options()).ok()?;
    let tree = store.tree(TREE).ok()?;
    tree.has_root(root).ok()?;
    let found = tree.leaves(root, &"".parse().unwrap()).ok()?;
    let found: std::result::Result<Vec<_>, _> = found.collect();
    Some(found.ok()?.len() == 60)
}

#[test]
fn a_bad_place_gives_an_error_or_the_right_data() {
    for engine in [Engine::Lsm, Engine::Btree] {
        let (disk, root) = engine.disk_with_store();
        assert_eq!(read(engine.open(&disk.clone_disk()), &root), Some(true), "{engine:?}");
        for file in disk.files() {
            let bytes = disk.read_raw(&file).unwrap().len() as u64;
            // The log is mostly empty.
            for place in (0..bytes.min(32 * PLACE_BYTES)).step_by(PLACE_BYTES as usize) {
                for is_reading in [false, true] {
                    let disk = disk.clone_disk();
                    disk.add_bad_range(&file, place..place + PLACE_BYTES, BadMedia::Read);
                    let database =
                        if is_reading { engine.open_read_only(&disk) } else { engine.open(&disk) };
                    let outcome = read(database, &root);
                    assert_ne!(outcome, Some(false), "{engine:?}: {} at {place}", file.display());
                }
            }
        }
    }
}

#[test]
fn a_link_in_the_place_of_a_file_is_not_followed() {
    for engine in [Engine::Lsm, Engine::Btree] {
        let (disk, root) = engine.disk_with_store();
        for file in disk.files() {
            let disk = disk.clone_disk();
            disk.plant_special(&file, EntryKind::Link);
            assert_ne!(read(engine.open(&disk), &root), Some(false), "{}", file.display());
        }
    }
}

/// The next reader sees the commits of another process; a reader keeps its snapshot.
#[test]
fn a_state_is_read_beside_its_writer() {
    for engine in [Engine::Lsm, Engine::Btree] {
        let (disk, root) = engine.disk_with_store();
        let writing = Store::open(engine.open(&disk).unwrap(), &options()).unwrap();
        let reading = Store::open(engine.open_read_only(&disk).unwrap(), &options()).unwrap();
        let own = tree(&writing);
        let seen = reading.tree(TREE).unwrap();
        let before = seen.leaves(&root, &"".parse().unwrap()).unwrap();

        let next = commit(&own, &root, &[set("aaaa", "new")]);
        assert_eq!(leaves(&seen, &next).len(), 61, "{engine:?}");
        assert_eq!(before.count(), 60);
        assert!(seen.commit(&next, &[set("bb", "no")]).is_err());
        reading.close().unwrap();
        writing.close().unwrap();
    }
}
