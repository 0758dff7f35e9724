//! Change feeds: what is told, against a log of commits kept in memory.
//!
//! Goal: a feed tells every durable commit once, in order and whole, and every change of the list
//! of tables and every roll-back at its place, whatever flushes, merges, checkpoints, roll-backs
//! and ends of processes come in between; a cursor is where its consumer left it; what is not there
//! any more is a gap with a right first commit; and damage is reported.
//!
//! Method: random steps on a store, beside a feed in the same process and one of a reader, both
//! with cursors that fall behind and come back. A consumer applies what it is told to tables of its
//! own; after each commit these are compared with what the writer noted under that number.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrane_io::{Disk, FaultKind, FaultPlan, Repeat, SimDisk};
use terrane_lsm::{
    CheckpointThread, Durability, Error, Feed, FeedChange, FeedItem, FeedOptions, MergeOperator,
    NamedTable, ReaderOptions, Store, StoreOptions, StoreReader, Table, TableConfig, Update,
    inspect, verify,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Sweep};

use crate::store_script::{Batch, Content, State, batch, config, name, open, options};

const DIR: &str = "/store";

/// Knowledge of a consumer: its tables by number, and what these were after earlier commits.
#[derive(Debug, Clone, Default)]
struct Consumer {
    tables: BTreeMap<u64, (String, Content)>,
    commit: u64,
    /// States to go back to.
    versions: BTreeMap<u64, BTreeMap<u64, (String, Content)>>,
    /// Roll-backs that were told.
    roll_backs: u64,
    /// Loaded tables whose entries were told, and which were only named.
    loads: [u64; 2],
}

fn apply(content: &mut Content, key: &[u8], change: &FeedChange) {
    match change {
        FeedChange::Insert(value) => drop(content.insert(key.to_vec(), value.clone())),
        FeedChange::InsertWithBlob(value, blob) => {
            drop(content.insert(key.to_vec(), [&value[..], b"+", &blob[..]].concat()));
        }
        FeedChange::Upsert(value) => {
            content.entry(key.to_vec()).or_default().extend_from_slice(value);
        }
        FeedChange::Delete => drop(content.remove(key)),
        FeedChange::DeleteRange(end) => content.retain(|other, _| {
            other.as_slice() < key || end.as_ref().is_some_and(|end| end <= other)
        }),
        other => panic!("{other:?}"),
    }
}

impl Consumer {
    fn state(&self) -> State {
        self.tables.values().cloned().collect()
    }

    /// Applies an item; whether a commit is whole now.
    fn take(&mut self, item: FeedItem, world: &World) -> bool {
        match item {
            FeedItem::Commit(commit) => {
                assert_eq!(commit.from, self.commit + 1, "no commit is missing or told twice");
                for part in commit.tables {
                    let (name, content) = self.tables.get_mut(&part.table.id).unwrap();
                    assert_eq!(*name, part.table.name.as_str());
                    for update in part.updates {
                        apply(content, &update.key, &update.change);
                    }
                }
                if commit.is_last {
                    self.finish(commit.number);
                }
                return commit.is_last;
            }
            FeedItem::TableCreated { table, .. } => {
                // A feed that begins at its commit tells it again.
                self.tables.entry(table.id).or_insert((table.name.to_string(), Content::new()));
                self.note_table(table.id);
            }
            FeedItem::TableDropped { table } => drop(self.tables.remove(&table.id)),
            FeedItem::TableRenamed { table, .. } => {
                self.tables.get_mut(&table.id).unwrap().0 = table.name.to_string();
            }
            FeedItem::TableLoaded { table, commit, has_entries, .. } => {
                self.loads[usize::from(!has_entries)] += 1;
                // With a batch the feed cannot tell them.
                let loaded = &world.loaded[&Load::of(table.id, commit)];
                let content = if has_entries { Content::new() } else { loaded.clone() };
                self.tables.insert(table.id, (table.name.to_string(), content));
                if !has_entries {
                    return self.finish_load(table.id, commit);
                }
            }
            FeedItem::TableEntries { table, commit, is_last, updates } => {
                let (_, content) = self.tables.get_mut(&table.id).unwrap();
                assert!(updates.is_sorted_by(|one, next| one.key < next.key));
                for update in updates {
                    let last = content.last_key_value();
                    assert!(last.is_none_or(|(last, _)| *last < update.key), "once, in order");
                    apply(content, &update.key, &update.change);
                }
                if is_last {
                    assert_eq!(*content, world.loaded[&Load::of(table.id, commit)]);
                    return self.finish_load(table.id, commit);
                }
            }
            FeedItem::RolledBack { commit, to, gone, back } => {
                assert_eq!(commit, self.commit + 1);
                for table in gone {
                    assert!(self.tables.remove(&table.id).is_some());
                }
                for table in back {
                    self.tables.insert(table.id, (table.name.to_string(), Content::new()));
                }
                for (id, (_, content)) in &mut self.tables {
                    let version = &self.versions[&to];
                    *content =
                        version.get(id).map(|(_, content)| content.clone()).unwrap_or_default();
                }
                self.roll_backs += 1;
                self.finish(commit);
                return true;
            }
            other => panic!("{other:?}"),
        }
        false
    }

    /// A loaded table is whole; whether that is a commit.
    fn finish_load(&mut self, id: u64, commit: Option<u64>) -> bool {
        match commit {
            Some(commit) => {
                assert_eq!(commit, self.commit + 1);
                self.finish(commit);
            }
            None => self.note_table(id),
        }
        commit.is_some()
    }

    /// Versions of the last commit may have the table, too.
    fn note_table(&mut self, id: u64) {
        let table = self.tables[&id].clone();
        self.versions.entry(self.commit).or_default().insert(id, table);
    }

    fn finish(&mut self, commit: u64) {
        self.commit = commit;
        self.versions.insert(commit, self.tables.clone());
    }
}

/// An installation: by its number, or else by the number of the new table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Load {
    Commit(u64),
    Table(u64),
}

impl Load {
    fn of(table: u64, commit: Option<u64>) -> Self {
        commit.map_or(Self::Table(table), Self::Commit)
    }
}

/// A store, and what its writer knows.
struct World {
    disk: Arc<SimDisk>,
    store: Store,
    state: State,
    commit: u64,
    /// States after each commit.
    states: BTreeMap<u64, State>,
    /// States of versions.
    retained: BTreeMap<u64, State>,
    /// Contents of tables that were installed.
    loaded: BTreeMap<Load, Content>,
    tables_made: u64,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn table_config() -> TableConfig {
    config().merge_operator(MergeOperator::concatenate())
}

impl World {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let store = open(&disk, Durability::Group).unwrap();
        Self {
            disk,
            store,
            state: State::new(),
            commit: 0,
            states: BTreeMap::from([(0, State::new())]),
            retained: BTreeMap::new(),
            loaded: BTreeMap::new(),
            tables_made: 0,
        }
    }

    fn table(&self, table: &str) -> NamedTable {
        self.store.table(&name(table)).unwrap()
    }

    fn note(&mut self, commit: u64) {
        assert_eq!(commit, self.commit + 1);
        self.commit = commit;
        self.states.insert(commit, self.state.clone());
    }

    fn commit(&mut self, parts: &[(String, Batch)], durability: Durability) {
        let tables: Vec<_> = parts.iter().map(|(table, _)| self.table(table)).collect();
        let updates: Vec<Vec<(&[u8], Update<'_>)>> = parts
            .iter()
            .map(|(_, batch)| {
                batch.iter().map(|(key, change)| (&key[..], change.update())).collect()
            })
            .collect();
        let given: Vec<_> =
            tables.iter().zip(&updates).map(|(table, updates)| (table, &updates[..])).collect();
        let ticket = self.store.commit_with(&given, durability).unwrap();
        for (table, batch) in parts {
            let content = self.state.get_mut(table).unwrap();
            for (key, change) in batch {
                change.apply(content, key);
            }
        }
        self.note(ticket.commit());
    }

    fn random_commit(&mut self, rng: &mut ChaCha8Rng) {
        let mut parts = Vec::new();
        for table in self.state.keys() {
            if rng.chance(1, 2) {
                let len = 1 + rng.index(12);
                parts.push((table.clone(), batch(rng, len)));
            }
        }
        let durability = *rng.pick(&[Durability::Buffered, Durability::Group, Durability::Each]);
        self.commit(&parts, durability);
    }

    fn reopen(&mut self, is_killed: bool) {
        self.store.sync().unwrap();
        if is_killed {
            self.disk = self.disk.process_kill();
        } else {
            self.store.close().unwrap();
        }
        self.store = open_again(&self.disk);
        assert_eq!(self.store.last_commit(), self.commit);
    }

    fn step(&mut self, rng: &mut ChaCha8Rng) {
        let free: Vec<_> =
            NAMES.iter().copied().filter(|name| !self.state.contains_key(*name)).collect();
        let there: Vec<String> = self.state.keys().cloned().collect();
        match rng.index(40) {
            0..=1 if !free.is_empty() => {
                let table = *rng.pick(&free);
                self.store.create_table(&name(table), &table_config()).unwrap();
                self.state.insert(table.to_owned(), Content::new());
                self.tables_made += 1;
            }
            2 if there.len() > 1 => {
                let table = rng.pick(&there);
                self.store.drop_table(&name(table)).unwrap();
                self.state.remove(table);
            }
            3 if !there.is_empty() && !free.is_empty() => {
                let (from, to) = (rng.pick(&there), *rng.pick(&free));
                self.store.rename_table(&name(from), &name(to)).unwrap();
                let content = self.state.remove(from).unwrap();
                self.state.insert(to.to_owned(), content);
            }
            4..=6 => self.store.checkpoint().unwrap(),
            7 => self.store.sync().unwrap(),
            8..=9 => {
                let number = self.store.retain(None).unwrap();
                if number > self.commit {
                    self.note(number);
                }
                self.retained.entry(number).or_insert_with(|| self.state.clone());
                let versions = self.store.versions().unwrap();
                if versions.len() > 3 {
                    self.store.release(versions[0].number).unwrap();
                }
            }
            10..=11 => {
                let versions = self.store.versions().unwrap();
                if !versions.is_empty() {
                    let to = versions[rng.index(versions.len())].number;
                    self.state = self.retained[&to].clone();
                    let commit = self.store.roll_back(to).unwrap();
                    self.note(commit);
                }
            }
            12 if !free.is_empty() => {
                let table = *rng.pick(&free);
                self.install(rng, table);
            }
            13 if !there.is_empty() => {
                let table = rng.pick(&there).clone();
                self.replace(rng, &table);
            }
            _ => self.random_commit(rng),
        }
    }

    /// A table with random entries, or none, and its content.
    fn load(&self, rng: &mut ChaCha8Rng) -> (Table, Content) {
        let mut loader = self.store.session().bulk_load(&table_config()).unwrap();
        let mut content = Content::new();
        for _ in 0..rng.index(60) {
            content.insert(vec![rng.below(200) as u8], rng.bytes(5));
        }
        let entries: Vec<_> =
            content.iter().map(|(key, value)| (key, Update::Insert(value))).collect();
        loader.write_batch(&entries).unwrap();
        (loader.finish().unwrap(), content)
    }

    /// Puts a loaded table in the place of one.
    fn replace(&mut self, rng: &mut ChaCha8Rng, table: &str) {
        let (loaded, content) = self.load(rng);
        self.store.replace(&name(table), &loaded).unwrap();
        let number = self.commit + 1;
        self.loaded.insert(Load::Commit(number), content.clone());
        self.state.insert(table.to_owned(), content);
        self.note(number);
    }

    fn install(&mut self, rng: &mut ChaCha8Rng, table: &str) {
        let (loaded, content) = self.load(rng);
        // Numbers of tables count up.
        let at = Load::Table(self.tables_made);
        self.store.install(&name(table), &loaded).unwrap();
        self.loaded.insert(at, content.clone());
        self.state.insert(table.to_owned(), content);
        self.tables_made += 1;
    }
}

fn open_again(disk: &Arc<SimDisk>) -> Store {
    open(disk, Durability::Group).unwrap()
}

/// A consumer with a cursor, of the writer's process or of another one.
struct Follower {
    name: &'static str,
    is_reader: bool,
    tells_loads: bool,
    /// Its durable knowledge, when it acknowledged last.
    durable: Consumer,
    now: Consumer,
    feed: Option<Feed>,
}

impl Follower {
    fn new(name: &'static str, is_reader: bool, tells_loads: bool) -> Self {
        let (durable, now) = (Consumer::default(), Consumer::default());
        Self { name, is_reader, tells_loads, durable, now, feed: None }
    }

    fn feed(&mut self, world: &World) -> &mut Feed {
        self.feed.get_or_insert_with(|| {
            // One of them tells entries, the other one names tables only.
            let options = FeedOptions::default().part_bytes_max(200);
            let options = options.loaded_entries(self.tells_loads);
            let feed = if self.is_reader {
                let reader = reader(&world.disk);
                match reader.feed_with(self.name, &options) {
                    Err(Error::FeedDoesNotExist { .. }) => {
                        reader.create_feed(self.name, Some(1), &options)
                    }
                    feed => feed,
                }
            } else {
                match world.store.feed_with(self.name, &options) {
                    Err(Error::FeedDoesNotExist { .. }) => {
                        world.store.create_feed(self.name, Some(1), &options)
                    }
                    feed => feed,
                }
            };
            feed.unwrap()
        })
    }

    /// Takes up to so many items.
    fn poll(&mut self, world: &World, items: usize) {
        let mut now = std::mem::take(&mut self.now);
        let feed = self.feed(world);
        for _ in 0..items {
            let Some(item) = feed.poll().unwrap() else { break };
            if now.take(item, world) {
                assert_eq!(now.commit, feed.position());
                assert_eq!(now.state(), world.states[&now.commit], "after commit {}", now.commit);
            }
        }
        self.now = now;
    }

    /// Makes what it has durable, and acknowledges it. Not in the middle of a commit.
    fn acknowledge(&mut self, world: &World) {
        let now = self.now.commit;
        let durable = self.now.versions.get(&now).cloned().unwrap_or_default();
        self.durable = Consumer { tables: durable, ..self.now.clone() };
        let feed = self.feed(world);
        feed.acknowledge(now).unwrap();
        assert_eq!(feed.acknowledged(), now);
    }

    /// Ends, and comes back later.
    fn end(&mut self) {
        self.feed = None;
        self.now = self.durable.clone();
    }
}

fn reader(disk: &Arc<SimDisk>) -> StoreReader {
    let mut options = ReaderOptions::default();
    options.open_files_max = 4;
    StoreReader::open(Arc::clone(disk) as Arc<dyn Disk>, Path::new(DIR), &options).unwrap()
}

#[test]
fn feeds_tell_the_log_of_commits() {
    let (mut roll_backs, mut loads) = (0, 0);
    for_each_seed("feed", 12, |rng, seed| {
        let mut world = World::new(seed);
        let mut followers = [
            Follower::new("here", false, true),
            Follower::new("names", false, false),
            Follower::new("there", true, true),
        ];
        for follower in &mut followers {
            follower.poll(&world, 1);
        }
        for _ in 0..150 {
            if rng.chance(1, 40) {
                followers.iter_mut().for_each(Follower::end);
                let is_killed = rng.chance(1, 2);
                world.reopen(is_killed);
            }
            world.step(rng);
            for follower in &mut followers {
                match rng.index(12) {
                    0..=3 => {
                        let items = rng.index(8);
                        follower.poll(&world, items);
                    }
                    4 => follower.poll(&world, usize::MAX),
                    5 => follower.acknowledge(&world),
                    6 => follower.end(),
                    _ => {}
                }
            }
        }
        world.store.sync().unwrap();
        for follower in &mut followers {
            follower.poll(&world, usize::MAX);
            assert_eq!(follower.now.commit, world.commit);
            assert_eq!(follower.now.state(), world.state);
            roll_backs += follower.now.roll_backs;
            let [told, named] = follower.now.loads;
            assert_eq!(if follower.tells_loads { named } else { told }, 0, "a cursor keeps files");
            loads += told;
            follower.acknowledge(&world);
            follower.end();
        }
        let names: Vec<_> =
            world.store.feeds().unwrap().into_iter().map(|feed| feed.name).collect();
        assert_eq!(names, ["here", "names", "there"]);
        world.store.drop_feed("here").unwrap();
        world.store.drop_feed("names").unwrap();
        reader(&world.disk).drop_feed("there").unwrap();
        assert!(world.store.feeds().unwrap().is_empty());
        world.store.close().unwrap();
    });
    assert!(roll_backs > 4 && loads > 20, "{roll_backs} roll-backs, {loads} loads were told");
}

/// Run files of a store, and the version of its manifest.
fn runs_and_version(disk: &Arc<SimDisk>) -> (u64, u32) {
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    match inspect::inspect(&disk, Path::new(DIR)).unwrap() {
        inspect::Inspection::Session(info) => {
            assert_eq!(info.run_files_unreferenced, 0);
            (info.run_files, info.store.unwrap().manifest.unwrap().version)
        }
        other => panic!("{other:?}"),
    }
}

/// Whatever becomes of a loaded table, a cursor before it keeps its entries, and no longer.
#[test]
fn entries_of_a_loaded_table_stay_until_all_cursors_are_behind_it() {
    let (disk, store, main) = simple();
    let options = FeedOptions::default().loaded_entries(true).part_bytes_max(4_000);
    drop(store.create_feed("late", Some(1), &options).unwrap());
    let mut loader = store.bulk_load("loaded", &table_config()).unwrap();
    let entry = |key: u16| (format!("{key:05}").into_bytes(), [key as u8; 90]);
    for (key, value) in (0..2_000).rev().map(entry) {
        loader.insert(key, value).unwrap();
    }
    let loaded = loader.finish().unwrap();

    // Each run of the load is replaced, and the table is dropped, before the consumer comes.
    for round in 0..4_u8 {
        for (key, _) in (0..2_000).map(entry) {
            drop(loaded.insert(&key, &[round; 90]).unwrap());
        }
        main.insert(b"key", &[round]).unwrap().wait().unwrap();
        store.checkpoint().unwrap();
        store.compact(&mut |_, _| {}).unwrap();
        store.checkpoint().unwrap();
    }
    store.drop_table("loaded").unwrap();
    store.compact(&mut |_, _| {}).unwrap();
    drop(loaded);
    let (runs_before, version) = runs_and_version(&disk);
    assert!(version == 5 && runs_before > 0);
    let report = verify::verify(&(Arc::clone(&disk) as _), Path::new(DIR), &mut |_, _| {});
    drop((main, store));
    assert!(report.is_err(), "a store that is open is not verified");
    let report = verify::verify(&(Arc::clone(&disk) as _), Path::new(DIR), &mut |_, _| {});
    assert!(report.unwrap().is_clean());

    let store = open_again(&disk);
    for mut feed in [store.feed_with("late", &options), reader(&disk).feed_with("late", &options)]
        .into_iter()
        .flatten()
    {
        let mut expected = (0..2_000).map(entry);
        let mut parts = 0;
        loop {
            match feed.poll().unwrap().unwrap() {
                FeedItem::TableLoaded { has_entries, .. } => assert!(has_entries),
                FeedItem::TableEntries { updates, is_last, commit, .. } => {
                    assert_eq!(commit, None);
                    parts += 1;
                    for update in updates {
                        let (key, value) = expected.next().unwrap();
                        assert_eq!(update.key, key);
                        assert_eq!(update.change, FeedChange::Insert(value.to_vec()));
                    }
                    if is_last {
                        break;
                    }
                }
                _ => {}
            }
        }
        assert!(parts > 40 && expected.next().is_none(), "{parts} parts");
    }

    // Behind it, the next checkpoint lets go of the files.
    let mut feed = store.feed_with("late", &options).unwrap();
    while feed.poll().unwrap().is_some() {}
    feed.acknowledge(feed.position()).unwrap();
    drop(feed);
    store.table("main").unwrap().insert(b"key", b"last").unwrap().wait().unwrap();
    store.compact(&mut |_, _| {}).unwrap();
    let (runs, version) = runs_and_version(&disk);
    assert!(version == 3 && runs < runs_before, "{runs} of {runs_before}");
    // Who comes too late is told so.
    let mut changes = store.changes_with(1, &options);
    if let Ok(changes) = &mut changes {
        while let Some(item) = changes.poll().unwrap() {
            if let FeedItem::TableLoaded { has_entries, .. } = item {
                assert!(!has_entries);
            }
        }
    }
    store.close().unwrap();
}

/// A read that fails in the middle of a table costs nothing: it is told again from its beginning.
#[test]
fn a_loaded_table_is_told_again_after_a_failed_read() {
    let (disk, store, main) = simple();
    let options = FeedOptions::default().loaded_entries(true).part_bytes_max(500);
    drop(store.create_feed("late", Some(1), &options).unwrap());
    main.insert(b"key", b"1").unwrap().wait().unwrap();
    let mut loaded = store.session().new_table(&table_config()).unwrap();
    for key in 0..60_u8 {
        loaded.insert(&[key], &[key; 90]).unwrap();
    }
    store.install("loaded", &loaded).unwrap();
    store.create_table("after", &table_config()).unwrap();
    store.replace("after", &loaded).unwrap();
    main.insert(b"key", b"2").unwrap().wait().unwrap();
    store.close().unwrap();
    drop((main, loaded, store));

    let mut failures = 0;
    for call in 0.. {
        let disk = disk.process_kill();
        let reader = reader(&disk);
        let mut feed = reader.feed_with("late", &options).unwrap();
        let before = disk.calls();
        disk.set_plan(FaultPlan::fail(before + call, FaultKind::Eio, Repeat::Once));
        let (mut told, mut contents) = (Vec::new(), BTreeMap::<u64, Content>::new());
        let mut looks = 0;
        loop {
            let item = match feed.poll() {
                Ok(Some(item)) => item,
                // A read that fails may also look like the end so far.
                Ok(None) if feed.position() < 3 && looks < 2 => {
                    looks += 1;
                    continue;
                }
                Ok(None) => break,
                Err(_) => {
                    failures += 1;
                    continue;
                }
            };
            match item {
                FeedItem::Commit(commit) => told.push(commit.number.to_string()),
                FeedItem::TableLoaded { table, has_entries, .. } => {
                    assert!(has_entries);
                    contents.insert(table.id, Content::new());
                }
                FeedItem::TableEntries { table, commit, is_last, updates } => {
                    let content = contents.get_mut(&table.id).unwrap();
                    for update in updates {
                        apply(content, &update.key, &update.change);
                    }
                    if is_last {
                        assert_eq!(content.len(), 60);
                        told.push(format!("{} {commit:?}", table.name));
                    } else {
                        assert!(feed.position() < 3);
                    }
                }
                _ => {}
            }
        }
        assert_eq!(feed.position(), 3, "call {call}: {told:?}");
        // A table that is no commit may be told once more.
        told.dedup();
        assert_eq!(told, ["1", "loaded None", "after Some(2)", "3"], "call {call}");
        if before + call >= disk.calls() {
            break;
        }
    }
    assert!(failures > 10, "{failures} failures");
}

/// A store with one table.
fn simple() -> (Arc<SimDisk>, Store, NamedTable) {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Each).unwrap();
    let table = store.create_table("main", &table_config()).unwrap();
    (disk, store, table)
}

/// Numbers of the commits that are told, with how many parts each has.
fn told(mut poll: impl FnMut() -> terrane_lsm::Result<Option<FeedItem>>) -> Vec<(u64, u64, usize)> {
    let mut told = Vec::new();
    let mut parts = 0;
    while let Some(item) = poll().unwrap() {
        if let FeedItem::Commit(commit) = item {
            assert_eq!(commit.is_first, parts == 0);
            parts += 1;
            if commit.is_last {
                told.push((commit.from, commit.number, parts));
                parts = 0;
            }
        }
    }
    assert_eq!(parts, 0, "a commit is told in full");
    told
}

#[test]
fn a_large_commit_comes_in_parts() {
    let (_disk, store, table) = simple();
    let value = [7; 100];
    let entries: Vec<_> = (0..50_u8).map(|key| ([key], Update::Insert(&value))).collect();
    let _ticket = table.write_batch(&entries).unwrap();
    let _ticket = table.write_batch::<[u8; 1]>(&[]).unwrap();
    let options = FeedOptions::default().part_bytes_max(1_000);
    let mut changes = store.changes_with(1, &options).unwrap();
    // 101 bytes an update: ten of them are more than the limit. The last part says that it is the
    // end, and may be empty.
    assert_eq!(told(|| changes.poll()), [(1, 1, 6), (2, 2, 1)]);
    assert_eq!(changes.position(), 2);
}

#[test]
fn commits_that_are_gone_are_a_gap_and_versions_bridge_it() {
    let (disk, store, table) = simple();
    let value = vec![1; 4_000];
    let fill = || {
        for key in 0..30_u8 {
            table.insert(&[key], &value).unwrap().wait().unwrap();
        }
        store.checkpoint().unwrap();
    };
    fill();
    let gap = |from| match store.changes(from).map(|changes| changes.position()) {
        Err(Error::FeedGap { wanted, first }) => Some((wanted, first)),
        Ok(_) => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(gap(1), Some((1, 31)));
    assert_eq!(gap(30), Some((30, 31)));
    assert_eq!(gap(31), None);
    let ahead = store.changes(40).unwrap_err();
    assert!(matches!(ahead, Error::FeedAhead { commit: 39, position: 30 }), "{ahead:?}");

    // From here on a version, and its WAL, is kept; the WAL before it is not.
    let first = store.retain(None).unwrap();
    fill();
    fill();
    fill();
    let second = store.retain(None).unwrap();
    table.insert(b"key", b"value").unwrap().wait().unwrap();
    assert_eq!(gap(2).unwrap().0, 2);
    for mut changes in [store.changes(1).unwrap(), reader(&disk).changes(1).unwrap()] {
        let told = told(|| changes.poll());
        assert_eq!(told[0], (1, first, 1), "all of the first version");
        assert_eq!(told.last().unwrap().1, store.last_commit());
        for pair in told.windows(2) {
            assert_eq!(pair[1].0, pair[0].1 + 1, "no commit is missing");
        }
    }
    // Behind a version whose WAL is gone, the difference to the next one.
    let mut changes = store.changes(first + 1).unwrap();
    let told = told(|| changes.poll());
    assert!(told.iter().any(|(_, number, _)| *number == second), "{told:?}");
    store.close().unwrap();
}

#[test]
fn a_cursor_holds_the_wal_up_to_its_limit() {
    let (disk, store, table) = simple();
    let limited = FeedOptions::default().held_bytes_max(200 << 10);
    drop(store.create_feed("limited", Some(1), &limited).unwrap());
    drop(store.create_feed("all", Some(1), &FeedOptions::default()).unwrap());
    let again = store.create_feed("all", Some(1), &limited).unwrap_err();
    assert!(matches!(again, Error::FeedExists { .. }), "{again:?}");
    let bad = store.create_feed("No Name", None, &limited).unwrap_err();
    assert!(matches!(bad, Error::InvalidFeedName { .. }), "{bad:?}");

    let value = vec![1; 8_000];
    for _ in 0..60 {
        table.insert(b"key", &value).unwrap().wait().unwrap();
    }
    store.checkpoint().unwrap();
    for _ in 0..60 {
        table.insert(b"key", &value).unwrap().wait().unwrap();
    }
    store.checkpoint().unwrap();

    // The one that holds everything keeps it for the other, too.
    let mut all = store.feed("all").unwrap();
    let locked = reader(&disk).feed("all").unwrap_err();
    assert!(matches!(locked, Error::FeedLocked { .. }), "{locked:?}");
    let everything: Vec<_> = (1..=120).map(|number| (number, number, 1)).collect();
    assert_eq!(told(|| all.poll()), everything);
    let ahead = all.acknowledge(121).unwrap_err();
    assert!(matches!(ahead, Error::FeedAhead { commit: 121, position: 120 }), "{ahead:?}");
    all.acknowledge(120).unwrap();
    all.acknowledge(7).unwrap();
    assert_eq!(all.acknowledged(), 120);
    table.insert(b"key", b"small").unwrap().wait().unwrap();
    store.checkpoint().unwrap();
    let gap = store.feed("limited").unwrap_err();
    assert!(matches!(gap, Error::FeedGap { wanted: 1, first } if first > 100), "{gap:?}");

    // A new cursor that begins later is as good as any.
    store.drop_feed("limited").unwrap();
    let mut late = reader(&disk).create_feed("late", None, &limited).unwrap();
    assert_eq!(late.acknowledged(), 121);
    assert!(late.poll().unwrap().is_none());
    table.insert(b"key", b"new").unwrap().wait().unwrap();
    assert_eq!(told(|| late.poll()), [(122, 122, 1)]);
    let infos = store.feeds().unwrap();
    let infos: Vec<_> = infos.iter().map(|info| (info.name.as_str(), info.acknowledged)).collect();
    assert_eq!(infos, [("all", 120), ("late", 121)]);
}

#[test]
fn only_what_is_durable_is_told() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Buffered).unwrap();
    let table = store.create_table("main", &table_config()).unwrap();
    let mut here = store.changes(1).unwrap();
    let mut there = reader(&disk).changes(1).unwrap();
    for _ in 0..3 {
        let _ticket = table.insert(b"key", b"value").unwrap();
    }
    assert_eq!(told(|| here.poll()), []);
    assert_eq!(told(|| there.poll()), []);
    store.sync_to(2).unwrap();
    let expected = [(1, 1, 1), (2, 2, 1), (3, 3, 1)];
    assert_eq!(told(|| here.poll()), expected);
    assert_eq!(told(|| there.poll()), expected);
}

#[test]
fn a_feed_that_waits_is_told_and_ends_with_the_store() {
    let (disk, store, table) = simple();
    let mut here = store.changes(1).unwrap();
    let mut there = reader(&disk).changes(1).unwrap();
    while here.poll().unwrap().is_some() {}
    while there.poll().unwrap().is_some() {}
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| here.wait(Duration::from_secs(60)));
        let reading = scope.spawn(|| there.wait(Duration::from_secs(60)));
        table.insert(b"key", b"value").unwrap().wait().unwrap();
        for told in [waiting.join().unwrap(), reading.join().unwrap()] {
            assert!(matches!(told, Ok(Some(FeedItem::Commit(commit))) if commit.number == 1));
        }
    });
    assert!(here.wait(Duration::from_millis(1)).unwrap().is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| here.wait(Duration::from_secs(60)));
        store.close().unwrap();
        let closed = waiting.join().unwrap();
        assert!(matches!(closed, Err(Error::SessionClosed)), "{closed:?}");
    });
}

#[test]
fn damage_of_the_wal_is_reported_and_never_passed_over() {
    let (disk, store, table) = simple();
    drop(store.create_feed("late", Some(1), &FeedOptions::default()).unwrap());
    for key in 0..40_u8 {
        table.insert(&[key], &[key; 900]).unwrap().wait().unwrap();
    }
    store.sync().unwrap();
    let disk = disk.process_kill();
    drop((table, store));
    let mut logs = disk.files();
    logs.retain(|path| path.extension() == Some("log".as_ref()));
    assert!(logs.len() > 1);
    let mut damaged = 0;
    for path in logs {
        let whole = disk.read_raw(&path).unwrap();
        for at in (0..whole.len()).step_by(797) {
            for cut in [false, true] {
                let image = disk.clone_disk();
                let mut bytes = whole.clone();
                if cut {
                    bytes.truncate(at);
                } else {
                    bytes[at] ^= 16;
                }
                image.write_raw(&path, &bytes);
                let options = ReaderOptions::default();
                let dir = Path::new(DIR);
                let Ok(reader) = StoreReader::open(image, dir, &options) else {
                    damaged += 1;
                    continue;
                };
                let Ok(mut feed) = reader.feed("late") else {
                    damaged += 1;
                    continue;
                };
                let mut next = 1;
                loop {
                    match feed.poll() {
                        Ok(Some(FeedItem::Commit(commit))) => {
                            assert_eq!(commit.number, next);
                            let update = &commit.tables[0].updates[0];
                            let number = next as u8 - 1;
                            assert_eq!(update.key, [number]);
                            assert_eq!(update.change, FeedChange::Insert(vec![number; 900]));
                            next += 1;
                        }
                        Ok(Some(_)) => {}
                        Ok(None) => {
                            assert_eq!(next, 41, "{} at {at}, cut: {cut}", path.display());
                            break;
                        }
                        Err(error) => {
                            assert!(error.is_corruption() || error.is_not_found(), "{error:?}");
                            damaged += 1;
                            break;
                        }
                    }
                }
            }
        }
    }
    assert!(damaged > 20, "{damaged}");
}

/// A damaged cursor is a problem; letting go removes it. One whose WAL is gone is a note.
#[test]
fn damaged_cursors_are_found_and_let_go_of() {
    let (disk, store, table) = simple();
    let little = FeedOptions::default().held_bytes_max(1);
    for name in ["damaged", "gap"] {
        drop(store.create_feed(name, Some(1), &little).unwrap());
    }
    for key in 0..60_u8 {
        table.insert(&[key], &[key; 3_000]).unwrap().wait().unwrap();
    }
    store.close().unwrap();
    drop((table, store));
    let dir = Path::new(DIR);
    let whole: Arc<dyn Disk> = Arc::clone(&disk) as _;
    let report = verify::verify(&whole, dir, &mut |_, _| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert!(report.notes.iter().any(|note| note.contains("gap.cursor")), "{report:?}");

    let path = dir.join("feeds/damaged.cursor");
    let found = inspect::inspect(&whole, &path).unwrap();
    let inspect::Inspection::Cursor(info) = found else { panic!("{found:?}") };
    assert_eq!((info.acknowledged, info.held_bytes_max), (0, 1));
    let mut bytes = disk.read_raw(&path).unwrap();
    for byte in &mut bytes {
        *byte ^= 1;
    }
    disk.write_raw(&path, &bytes);
    assert!(inspect::inspect(&whole, &path).is_err());
    let report = verify::verify(&whole, dir, &mut |_, _| {}).unwrap();
    assert_eq!(report.problems.len(), 1);
    assert!(report.problems[0].droppable && report.problems[0].path == path, "{report:?}");
    let report = verify::repair(&whole, dir, verify::Loss::Refused, &mut |_, _| {}).unwrap();
    assert!(!report.is_clean());
    let report = verify::repair(&whole, dir, verify::Loss::Accepted, &mut |_, _| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.lost[0].what, verify::LostWhat::FeedCursor);
    let store = open_again(&disk);
    assert!(matches!(store.feed("damaged"), Err(Error::FeedDoesNotExist { .. })));
    assert_eq!(store.feeds().unwrap().len(), 1);
}

/// Commits, moves a cursor, rolls back; returns what was acknowledged.
fn cursor_script(
    disk: &Arc<SimDisk>,
    acknowledged: &mut u64,
    created: &mut bool,
) -> terrane_lsm::Result<()> {
    let store = open(disk, Durability::Each)?;
    let table = store.create_table("main", &table_config())?;
    let mut feed = store.create_feed("indexer", Some(1), &FeedOptions::default())?;
    *created = true;
    for round in 0..3_u8 {
        for key in 0..3_u8 {
            table.insert(&[key], &[round; 2_000])?.wait()?;
        }
        let version = store.retain(None)?;
        table.insert(b"lost", b"soon")?.wait()?;
        store.roll_back(version)?;
        while feed.poll()?.is_some() {}
        // From the call on, it may be that far.
        feed.acknowledge(feed.position())?;
        *acknowledged = feed.acknowledged();
        store.checkpoint()?;
    }
    store.close()
}

#[test]
fn a_cursor_survives_a_crash_at_every_call() {
    let mut results = Vec::new();
    let images = Sweep::sampled(1, 7).crash(
        |disk| {
            let (mut acknowledged, mut created) = (0, false);
            let _crashed = cursor_script(disk, &mut acknowledged, &mut created);
            (acknowledged, created)
        },
        |crash| {
            let (acknowledged, created) = *crash.run;
            crash.images(Loss::each(crash.call), |image| {
                let Ok(store) = open(&image.disk, Durability::Each) else {
                    panic!("a store opens after a crash");
                };
                let mut feed = match store.feed("indexer") {
                    Ok(feed) => feed,
                    Err(Error::FeedDoesNotExist { .. }) if !created => return,
                    Err(error) => panic!("{error:?}"),
                };
                // What was acknowledged stays so, and all behind it is told once.
                let from = feed.acknowledged();
                assert!(from >= acknowledged, "{from} < {acknowledged}");
                let mut next = from + 1;
                store.sync().unwrap();
                while let Some(item) = feed.poll().unwrap() {
                    let number = match item {
                        FeedItem::Commit(commit) => commit.number,
                        FeedItem::RolledBack { commit, .. } => commit,
                        _ => continue,
                    };
                    assert_eq!(number, next);
                    next += 1;
                }
                assert_eq!(next, store.last_commit() + 1);
                feed.acknowledge(next - 1).unwrap();
                results.push(next);
            })
        },
    );
    assert!(images > 100 && results.len() as u64 > images / 2, "{images} images");
}

#[test]
fn a_feed_beside_a_busy_store_misses_nothing() {
    let disk = SimDisk::new(3);
    let options = options(Durability::Group).checkpoint_thread(CheckpointThread::Background);
    let options: StoreOptions = options.log_bytes_max(128 << 10);
    let store = Store::open(Arc::clone(&disk) as Arc<dyn Disk>, Path::new(DIR), &options).unwrap();
    let table = store.create_table("main", &table_config()).unwrap();
    let mut feeds = [
        store.create_feed("here", Some(1), &FeedOptions::default()).unwrap(),
        reader(&disk).create_feed("there", Some(1), &FeedOptions::default()).unwrap(),
    ];
    let commits = 600_u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=commits {
                let value = vec![number as u8; 300];
                let ticket = table.insert(&number.to_le_bytes(), &value).unwrap();
                if number % 7 == 0 || number == commits {
                    ticket.wait().unwrap();
                }
            }
        });
        for feed in &mut feeds {
            scope.spawn(move || {
                let mut next = 1;
                while next <= commits {
                    match feed.wait(Duration::from_secs(60)).unwrap() {
                        Some(FeedItem::Commit(commit)) => {
                            assert_eq!(commit.number, next);
                            let update = &commit.tables[0].updates[0];
                            assert_eq!(update.key, next.to_le_bytes());
                            next += 1;
                            if next % 50 == 0 {
                                feed.acknowledge(commit.number).unwrap();
                            }
                        }
                        Some(_) => {}
                        None => panic!("nothing for a minute"),
                    }
                }
            });
        }
    });
    drop(feeds);
    store.close().unwrap();
}
