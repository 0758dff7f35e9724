//! Secondary indexes against a model, and after crashes and faults at every call.
//!
//! Goal: an index has exactly what its function makes of its table, as of the same commit, whatever
//! the commits are (insertions, upserts, deleted ranges, blobs, transactions, commits of a
//! manifest), and through flushes, checkpoints, roll-backs, ends of processes, changes of the list
//! of tables, and other versions of the function. A program without the function changes nothing.
//!
//! Method: random steps beside a model of the table; the expected index follows from the model. For
//! crashes and faults, a script with a derivation, commits and a derivation anew.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Disk, Fault, FaultKind, SimDisk};
use terrane_lsm::{
    BackupPlace, DerivedIndex, Durability, Error, FollowOptions, Follower, IndexEntries,
    IndexRange, MergeOperator, NamedTable, ReaderOptions, Store, StoreReader, Table, TableConfig,
    Update, WriteBatch, inspect,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Sweep};

use crate::store_script::{Content, batch, config, open, options};

const DIR: &str = "/store";

/// Entries of an index: index key, key, value.
type Entries = BTreeMap<(Vec<u8>, Vec<u8>), Vec<u8>>;

fn table_config() -> TableConfig {
    config().merge_operator(MergeOperator::concatenate())
}

/// Adds an entry for each byte of the value below 32, under that byte and, in odd versions, a zero
/// byte.
fn function(version: u32) -> impl Fn(&[u8], &[u8], &mut IndexEntries<'_>) + Clone {
    move |_, value, entries| {
        for (index_key, own) in parts(version, value) {
            entries.add(index_key, own);
        }
    }
}

fn parts(version: u32, value: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes: BTreeSet<u8> = value.iter().copied().filter(|byte| *byte < 32).collect();
    let part = |byte| match version % 2 {
        1 => (vec![byte, 0], vec![value.len() as u8]),
        _ => (vec![byte], Vec::new()),
    };
    bytes.into_iter().map(part).collect()
}

fn expected(version: u32, content: &Content) -> Entries {
    let mut entries = Entries::new();
    for (key, value) in content {
        for (index_key, own) in parts(version, value) {
            entries.insert((index_key, key.clone()), own);
        }
    }
    entries
}

fn entries_of(range: IndexRange) -> Entries {
    range
        .map(|record| {
            let record = record.unwrap();
            ((record.index_key, record.key), record.value)
        })
        .collect()
}

fn all(table: &Table) -> Entries {
    entries_of(IndexRange::over(table, ..).unwrap())
}

fn content_of(table: &Table) -> Content {
    let mut cursor = table.cursor().unwrap();
    let mut content = Content::new();
    while let Some(record) = cursor.next().transpose().unwrap() {
        content.insert(record.key, record.value.into_vec());
    }
    content
}

/// A store with one table and its index.
struct World {
    disk: Arc<SimDisk>,
    store: Store,
    table: NamedTable,
    name: &'static str,
    content: Content,
    version: u32,
    index: DerivedIndex,
    /// Content in retained versions.
    retained: BTreeMap<u64, Content>,
    /// Roll-backs after which the function was known, and was not.
    known: [u32; 2],
}

impl World {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let store = open(&disk, Durability::Group).unwrap();
        let table = store.create_table("coins", &table_config()).unwrap();
        table.insert(b"first", b"\x01\x02").unwrap().wait().unwrap();
        let index = table.derive_with("by-byte", 1, &config(), function(1)).unwrap();
        let content = Content::from([(b"first".to_vec(), b"\x01\x02".to_vec())]);
        let (name, version, retained, known) = ("coins", 1, BTreeMap::new(), [0; 2]);
        Self { disk, store, table, name, content, version, index, retained, known }
    }

    fn derive(&mut self) {
        self.index = self
            .table
            .derive_with("by-byte", self.version, &config(), function(self.version))
            .unwrap();
    }

    fn check(&self) {
        let views = self.store.views(&[&self.table, self.index.table()]).unwrap();
        assert_eq!(content_of(&views[0]), self.content);
        let wanted = expected(self.version, &self.content);
        assert_eq!(all(&views[1]), wanted);
        let check = self.index.verify().unwrap();
        assert!(check.is_equal(), "{check:?}");
        assert_eq!((check.entries, check.expected), (wanted.len() as u64, wanted.len() as u64));
        for index_key in [&[1_u8, 0][..], &[1], &[7, 0], &[7]] {
            let found = entries_of(self.index.get(index_key).unwrap());
            let wanted = wanted.iter().filter(|((of, _), _)| of == index_key);
            let wanted: Entries = wanted.map(|(key, value)| (key.clone(), value.clone())).collect();
            assert_eq!(found, wanted);
        }
    }

    fn reopen(&mut self, is_killed: bool) {
        self.store.sync().unwrap();
        if is_killed {
            self.disk = self.disk.process_kill();
        } else {
            self.store.close().unwrap();
        }
        self.store = open(&self.disk, Durability::Group).unwrap();
        self.table = self.store.table(self.name).unwrap();
        let refused = self.table.insert(b"k", b"v").unwrap_err();
        assert!(matches!(refused, Error::IndexNotRegistered { .. }), "{refused:?}");
    }

    fn commit(&mut self, rng: &mut ChaCha8Rng) {
        let len = 1 + rng.index(12);
        let changes = batch(rng, len);
        let updates: Vec<_> = changes.iter().map(|(key, change)| (key, change.update())).collect();
        match rng.index(4) {
            0 => {
                let transaction = self.store.transaction().unwrap();
                transaction.get(&self.table, b"first").unwrap();
                transaction.insert(&self.table, b"first", [rng.index(64) as u8]).unwrap();
                let value = transaction.get(&self.table, b"first").unwrap();
                self.content.insert(b"first".to_vec(), value.value().unwrap().to_vec());
                drop(transaction.commit().unwrap());
            }
            1 => {
                let mut batch = WriteBatch::new();
                batch.insert_with_blob(&self.table, b"blob", [3, 200], b"\x04");
                batch.insert(&self.table, b"twice", [5]);
                batch.insert(&self.table, b"twice", [6]);
                drop(self.store.write(&batch).unwrap());
                self.content.insert(b"blob".to_vec(), vec![3, 200]);
                self.content.insert(b"twice".to_vec(), vec![6]);
            }
            _ => {
                drop(self.table.write_batch(&updates).unwrap());
                for (key, change) in &changes {
                    change.apply(&mut self.content, key);
                }
            }
        }
    }

    fn install(&mut self, rng: &mut ChaCha8Rng) {
        let other = self.store.new_volatile_table(&config()).unwrap();
        let mut batch = WriteBatch::new();
        let value = vec![rng.index(40) as u8; 3];
        batch.upsert(&self.table, b"installed", &value);
        batch.delete_prefix(&self.table, b"k\x01");
        let _installed = self.store.install_with("other", &other, &batch).unwrap();
        self.content.entry(b"installed".to_vec()).or_default().extend_from_slice(&value);
        self.content.retain(|key, _| !key.starts_with(b"k\x01"));
        self.store.drop_table("other").unwrap();
    }

    fn roll_back(&mut self, rng: &mut ChaCha8Rng) {
        let versions = self.store.versions().unwrap();
        if versions.is_empty() {
            return;
        }
        let to = rng.pick(&versions).number;
        self.store.roll_back(to).unwrap();
        self.content = self.retained[&to].clone();
        self.name = if self.store.table("coins").is_ok() { "coins" } else { "coins-2" };
        self.table = self.store.table(self.name).unwrap();
        // The function of an index that came back, or of another version, is not known.
        match self.table.insert(b"k", b"\x03") {
            Err(Error::IndexNotRegistered { .. }) => self.known[1] += 1,
            written => {
                drop(written.unwrap());
                self.content.insert(b"k".to_vec(), b"\x03".to_vec());
                self.known[0] += 1;
            }
        }
        self.derive();
    }

    fn step(&mut self, rng: &mut ChaCha8Rng) {
        match rng.index(30) {
            0 => self.store.checkpoint().unwrap(),
            1 => {
                let is_killed = rng.chance(1, 2);
                self.reopen(is_killed);
                self.version += rng.index(2) as u32;
                self.derive();
            }
            2 => {
                let number = self.store.retain(None).unwrap();
                self.retained.insert(number, self.content.clone());
                let versions = self.store.versions().unwrap();
                if versions.len() > 3 {
                    self.store.release(versions[0].number).unwrap();
                }
            }
            3 | 4 => self.roll_back(rng),
            5 => self.install(rng),
            6 => {
                // Without its index the table is one as any other.
                self.store.drop_table("by-byte").unwrap();
                assert!(self.store.indexes().unwrap().is_empty());
                self.commit(rng);
                let number = self.store.retain(None).unwrap();
                self.retained.insert(number, self.content.clone());
                self.derive();
            }
            7 => {
                let to = if self.name == "coins" { "coins-2" } else { "coins" };
                self.store.rename_table(self.name, to).unwrap();
                self.name = to;
                self.table = self.store.table(to).unwrap();
                self.commit(rng);
            }
            8 => self.index.rebuild().unwrap(),
            9 => {
                self.version += 1;
                self.derive();
            }
            _ => self.commit(rng),
        }
    }
}

#[test]
fn an_index_is_what_follows_from_its_table() {
    let mut known = [0; 2];
    for_each_seed("derived", 6, |rng, seed| {
        let mut world = World::new(seed);
        for step in 0..120 {
            world.step(rng);
            if step % 3 == 0 {
                world.check();
            }
        }
        world.check();

        // Another process, a version and a backup see the same.
        world.store.sync().unwrap();
        let disk = Arc::clone(&world.disk) as Arc<dyn Disk>;
        let reader =
            StoreReader::open(Arc::clone(&disk), Path::new(DIR), &ReaderOptions::default())
                .unwrap();
        let wanted = expected(world.version, &world.content);
        assert_eq!(all(&reader.table("by-byte").unwrap()), wanted);
        let number = world.store.retain(None).unwrap();
        let version = world.store.version(number).unwrap();
        assert_eq!(all(&version.table("by-byte").unwrap()), wanted);
        let place = BackupPlace::new("/backup").on_disk(Arc::clone(&disk));
        world.store.back_up(&place, &mut |_, _| {}).unwrap();
        let copy = Store::open(disk, Path::new("/backup"), &options(Durability::Group)).unwrap();
        let table = copy.table(world.name).unwrap();
        let index = table.derive("by-byte", world.version, function(world.version)).unwrap();
        assert_eq!(all(&index.table().view().unwrap()), wanted);
        table.insert(b"of the copy", b"\x09").unwrap().wait().unwrap();
        assert!(index.verify().unwrap().is_equal());
        copy.close().unwrap();
        drop(reader);
        world.store.close().unwrap();
        known = [known[0] + world.known[0], known[1] + world.known[1]];
    });
    assert!(known.iter().all(|&count| count > 0), "{known:?}");
}

/// A store whose index was made by a script.
fn simple() -> (Arc<SimDisk>, Store, NamedTable, DerivedIndex) {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    let table = store.create_table("coins", &table_config()).unwrap();
    table.insert(b"a", b"\x01").unwrap().wait().unwrap();
    let index = table.derive("by-byte", 1, function(1)).unwrap();
    (disk, store, table, index)
}

#[test]
fn what_would_make_an_index_untrue_is_refused() {
    let (disk, store, table, index) = simple();
    let other = store.create_table("other", &config()).unwrap();
    let is_index = |result: terrane_lsm::Result<_>| {
        let error: Error = result.map(drop).unwrap_err();
        assert!(matches!(&error, Error::TableIsIndex { table } if table == "by-byte"), "{error:?}");
    };
    is_index(index.table().insert(b"x", b"y"));
    is_index(index.table().derive("second", 1, function(1)).map(|_| unreachable!()));
    let volatile = store.new_volatile_table(&config()).unwrap();
    is_index(store.replace("by-byte", &volatile).map(|_| unreachable!()));
    let refused = store.replace("coins", &volatile).unwrap_err();
    assert!(matches!(refused, Error::TableHasIndex { .. }), "{refused:?}");
    let refused = table.derive("other", 1, function(1)).unwrap_err();
    assert!(matches!(refused, Error::TableExists { .. }), "{refused:?}");
    let refused = other.derive("by-byte", 1, function(1)).unwrap_err();
    assert!(matches!(refused, Error::TableExists { .. }), "{refused:?}");
    let refused = table.derive("zero", 0, function(1)).unwrap_err();
    assert!(matches!(refused, Error::InvalidConfig { .. }), "{refused:?}");

    // An entry that is too long, and a function that panics, change nothing.
    let long = table.derive("long", 1, |_, value, entries| {
        assert_ne!(value, b"panic", "the function is broken");
        if value == b"long" {
            entries.add(vec![7; 4_000], b"");
        }
    });
    let long = long.unwrap();
    let before = store.last_commit();
    let refused = table.insert(b"key", b"long").unwrap_err();
    assert!(matches!(refused, Error::KeyTooLarge { .. }), "{refused:?}");
    let panicked = catch_unwind(AssertUnwindSafe(|| table.insert(b"key", b"panic").map(drop)));
    assert!(panicked.is_err());
    assert_eq!(store.last_commit(), before);
    assert!(!table.get(b"key").unwrap().is_found());
    drop(table.insert(b"key", b"\x02").unwrap());
    assert!(index.verify().unwrap().is_equal() && long.verify().unwrap().is_equal());

    // The list says which functions are known; a program without them changes other tables only.
    let listed = |store: &Store| -> Vec<_> {
        let infos = store.indexes().unwrap();
        infos.iter().map(|info| (info.name.to_string(), info.is_registered)).collect()
    };
    let names = ["by-byte", "long"].map(str::to_owned);
    assert_eq!(listed(&store), names.clone().map(|name| (name, true)));
    store.close().unwrap();
    let store = open(&disk, Durability::Group).unwrap();
    assert_eq!(listed(&store), names.map(|name| (name, false)));
    drop(store.table("other").unwrap().insert(b"k", b"v").unwrap());
    let table = store.table("coins").unwrap();
    let _index = table.derive("by-byte", 1, function(1)).unwrap();
    let refused = table.insert(b"k", b"v").unwrap_err();
    assert!(matches!(&refused, Error::IndexNotRegistered { index } if index == "long"));
    assert!(refused.to_string().contains("`long`"), "{refused}");

    // Indexes go with their table.
    store.drop_table("coins").unwrap();
    assert_eq!(store.tables().unwrap().len(), 1);
    assert!(listed(&store).is_empty());
    store.close().unwrap();
}

/// Derives, commits, derives anew; returns how far it came: commits that are durable, and whether
/// the first derivation was done.
fn script(disk: &Arc<SimDisk>, done: &mut (usize, bool)) -> terrane_lsm::Result<()> {
    let store = open(disk, Durability::Each)?;
    let table = store.create_table("coins", &table_config())?;
    for changes in &CHANGES[..3] {
        drop(table.write_batch(changes)?);
        done.0 += 1;
    }
    let mut index = table.derive_with("by-byte", 1, &config(), function(1))?;
    done.1 = true;
    for (number, changes) in CHANGES.iter().enumerate().skip(3) {
        if number == 6 {
            index = table.derive("by-byte", 2, function(2))?;
        }
        drop(table.write_batch(changes)?);
        done.0 += 1;
        if number == 5 {
            store.checkpoint()?;
        }
    }
    drop(index);
    store.close()
}

/// The commits of the script.
const CHANGES: [&[(&[u8], Update<'static>)]; 9] = [
    &[(b"a", Update::Insert(b"\x01\x02")), (b"b", Update::Insert(b"\x02"))],
    &[(b"c", Update::Insert(b"\x03")), (b"a", Update::Upsert(b"\x04"))],
    &[(b"d", Update::Insert(b"\x05")), (b"d", Update::Delete)],
    &[(b"b", Update::Insert(b"\x02\x06"))],
    &[(b"e", Update::InsertWithBlob(b"\x07", b"\x08")), (b"c", Update::Delete)],
    &[(b"a", Update::Upsert(b"\x09\x0A"))],
    &[(b"a", Update::DeleteRange(Some(b"c"))), (b"f", Update::Insert(b"\x0B"))],
    &[(b"f", Update::Insert(b"\x0B")), (b"g", Update::Insert(b"\x0C"))],
    &[(b"", Update::DeleteRange(None)), (b"h", Update::Insert(b"\x0D"))],
];

/// The content after the first commits of the script.
fn content_after(commits: usize) -> Content {
    let mut content = Content::new();
    for (key, update) in CHANGES[..commits].iter().copied().flatten() {
        match *update {
            Update::Insert(value) | Update::InsertWithBlob(value, _) => {
                content.insert(key.to_vec(), value.to_vec());
            }
            Update::Upsert(value) => {
                content.entry(key.to_vec()).or_default().extend_from_slice(value);
            }
            Update::Delete => drop(content.remove(*key)),
            Update::DeleteRange(end) => content.retain(|other, _| {
                other.as_slice() < *key || end.is_some_and(|end| end <= other.as_slice())
            }),
            other => panic!("{other:?}"),
        }
    }
    content
}

/// The store is as after one of the commits, and its index, if it is there, is what follows.
fn check_script(disk: &Arc<SimDisk>, (commits, is_derived): (usize, bool)) {
    let store = open(disk, Durability::Each).unwrap();
    let Ok(table) = store.table("coins") else {
        assert_eq!(commits, 0, "a table that was made is there");
        return;
    };
    let content = content_of(&table.view().unwrap());
    let is_legal = |number: &usize| content_after(*number) == content;
    let found = (commits..=(commits + 1).min(CHANGES.len())).find(is_legal);
    assert!(found.is_some(), "after {commits} commits: {content:?}");

    let infos = store.indexes().unwrap();
    assert!(!is_derived || infos.len() == 1, "an index that was made is there");
    if let Some(info) = infos.first() {
        let index = store.table("by-byte").unwrap();
        assert_eq!(all(&index.view().unwrap()), expected(info.version, &content));
    }
    let index = table.derive("by-byte", 3, function(3)).unwrap();
    table.insert(b"next", b"\x0E").unwrap().wait().unwrap();
    assert!(index.verify().unwrap().is_equal());
    assert_eq!(all(&index.table().view().unwrap()).len(), {
        let mut content = content;
        content.insert(b"next".to_vec(), b"\x0E".to_vec());
        expected(3, &content).len()
    });
    store.close().unwrap();
}

#[test]
fn a_crash_at_any_call_leaves_an_index_that_is_true() {
    let images = Sweep::sampled(1, 6).crash(
        |disk| {
            let mut done = (0, false);
            let _crashed = script(disk, &mut done);
            done
        },
        |crash| crash.images(Loss::each(crash.call), |image| check_script(&image.disk, *crash.run)),
    );
    assert!(images > 100, "{images} images");
}

#[test]
fn a_fault_at_any_call_leaves_an_index_that_is_true() {
    let mut struck = 0;
    for kind in [FaultKind::Eio, FaultKind::Enospc] {
        let sweep = Sweep::sampled(2, 6);
        struck += sweep.fault(kind, None, |disk: &Arc<SimDisk>, _fault: Option<Fault>| {
            let mut done = (0, false);
            let _failed = script(disk, &mut done);
            disk.set_plan(terrane_io::FaultPlan::default());
            // A failed sync leaves it open whether a commit survives.
            check_script(&disk.process_kill(), done);
        });
    }
    assert!(struck > 40, "{struck} faults");
}

/// Commits go on while an index is built and made anew; none is missed.
#[test]
fn commits_go_on_while_an_index_is_made() {
    let (_disk, store, table, _index) = simple();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2_u8)
            .map(|writer| {
                let table = &table;
                scope.spawn(move || {
                    for number in 0..200_u8 {
                        drop(table.insert(&[writer, number], &[number % 40]).unwrap());
                    }
                })
            })
            .collect();
        for version in 1..6 {
            let index = table.derive("second", version, function(version));
            assert!(index.unwrap().verify().unwrap().is_equal());
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
    for name in ["by-byte", "second"] {
        let infos = store.indexes().unwrap();
        let version = infos.iter().find(|info| info.name.as_str() == name).unwrap().version;
        let index = table.derive(name, version, function(version)).unwrap();
        let check = index.verify().unwrap();
        assert!(check.is_equal() && check.entries > 0, "{check:?}");
    }
}

/// A follower's copy has the entries of an index as any others, and no index.
#[test]
fn a_follower_takes_indexes_over_as_tables() {
    let (disk, store, table, index) = simple();
    let follow = || {
        let disk = Arc::clone(&disk) as Arc<dyn Disk>;
        let options = FollowOptions::default().store(options(Durability::Buffered));
        let sites = [(&disk, Path::new(DIR)), (&disk, Path::new("/copy"))];
        Follower::open(sites[0], sites[1], &options, &mut |_, _| {}).unwrap()
    };
    let mut follower = follow();
    table.insert(b"b", b"\x02\x03").unwrap().wait().unwrap();
    table.derive("late", 1, function(2)).unwrap();
    table.upsert(b"a", b"\x04").unwrap().wait().unwrap();
    index.rebuild().unwrap();
    store.sync().unwrap();
    let compared = follower.verify().unwrap();
    assert_eq!(compared.len(), 3);
    assert!(compared.iter().all(terrane_lsm::FollowedTable::is_equal));
    assert!(follower.store().indexes().unwrap().is_empty());
    store.drop_table("coins").unwrap();
    follower.catch_up().unwrap();
    assert_eq!(follower.store().tables().unwrap().len(), 1);
    follower.close().unwrap();
    store.close().unwrap();
}

/// `inspect` names the table of an index.
#[test]
fn inspect_names_the_table_of_an_index() {
    let (disk, store, _table, _index) = simple();
    store.close().unwrap();
    let disk = Arc::clone(&disk) as Arc<dyn Disk>;
    let inspect::Inspection::Session(info) = inspect::inspect(&disk, Path::new(DIR)).unwrap()
    else {
        panic!("a session");
    };
    let manifest = info.store.unwrap().manifest.unwrap();
    assert_eq!(manifest.version, 4);
    let sources: Vec<_> = manifest.tables.iter().map(|table| table.index_of.as_ref()).collect();
    assert_eq!(sources[0], None);
    let source = sources[1].unwrap();
    assert_eq!((source.table.as_str(), source.function_version), ("coins", 1));
}
