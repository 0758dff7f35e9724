//! A follower and an indexer in processes of their own, killed at random beside their source.
//!
//! Goal: a copy and an index of another store, both begun late, agree with their source by digest
//! whoever was killed meanwhile, while the source commits, flushes, merges, makes checkpoints, goes
//! back to versions, and has bulk-loaded tables take the place of others.
//!
//! Method: the test starts itself as a writer, as a follower, and as an indexer: a consumer with a
//! named cursor that keeps an index by value, and the number of the last commit beside it. One of
//! the three is killed and begun again, time and again. At the end the writer is gone, the other
//! two catch up, and each is compared with the source. `cargo xtask kill` and `soak` do it for
//! long.

#![expect(clippy::big_endian_bytes, reason = "big-endian numbers sort as keys do")]

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use terrane_lsm::{
    CheckpointThread, CompactionThread, Error, Feed, FeedChange, FeedItem, FeedOptions, FeedUpdate,
    FollowOptions, Follower, NamedTable, ReaderOptions, StateDigest, Store, StoreOptions,
    StoreReader, TableConfig, Update, WriteBatch, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::process::{Child, kill_cycles, say};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

const TEST: &str =
    "kill_followers::a_follower_and_an_indexer_agree_with_their_source_whoever_is_killed";

/// Names the role of a process, and the directory of all stores.
const ROLE: &str = "TERRANE_KILL_FOLLOWERS_ROLE";
const DIR: &str = "TERRANE_KILL_FOLLOWERS_DIR";

/// Longest wait of a follower for news.
const WAIT: Duration = Duration::from_millis(20);

/// Versions that the writer retains.
const VERSIONS: usize = 3;

fn options() -> StoreOptions {
    let options = StoreOptions::default().create_dir().log_bytes_max(256 << 10);
    options.checkpoint_thread(CheckpointThread::Background)
}

fn config() -> TableConfig {
    TableConfig::default()
        .write_buffer(WriteBuffer::Entries(200))
        .compaction_thread(CompactionThread::Background)
}

fn key(rng: &mut ChaCha8Rng) -> Vec<u8> {
    rng.below(3_000).to_be_bytes().to_vec()
}

/// The first two bytes are those that the indexer indexes.
fn value(rng: &mut ChaCha8Rng) -> Vec<u8> {
    let len = 2 + rng.index(100);
    let mut value = rng.bytes(len);
    value[0] %= 8;
    value
}

/// Commits, and does what a store does now and then, until it is killed.
fn write(dir: &Path) {
    let store = Store::open_dir(dir, &options()).unwrap();
    let main = store.table_or_create("main", &config()).unwrap();
    let other = store.table_or_create("other", &config()).unwrap();
    loop {
        let number = store.last_commit() + 1;
        let rng = &mut ChaCha8Rng::seed_from_u64(number);
        match rng.index(60) {
            0 => store.checkpoint().unwrap(),
            1..=3 => {
                store.retain(None).unwrap();
                let versions = store.versions().unwrap();
                if versions.len() > VERSIONS {
                    store.release(versions[0].number).unwrap();
                }
            }
            4 => {
                let versions = store.versions().unwrap();
                if !versions.is_empty() {
                    store.roll_back(rng.pick(&versions).number).unwrap();
                }
            }
            // A bulk load in the place of a table, under a new name, and gone again.
            5 => {
                let mut loader = store.session().bulk_load(&config()).unwrap();
                for _ in 0..500 {
                    loader.write_batch(&[(key(rng), Update::Insert(&value(rng)))]).unwrap();
                }
                let table = if rng.chance(1, 2) { "main" } else { "other" };
                store.replace(table, &loader.finish().unwrap()).unwrap();
            }
            6 => match store.table("loaded") {
                Ok(_) => store.drop_table("loaded").unwrap(),
                Err(_) => {
                    let mut loader = store.bulk_load("loaded", &config()).unwrap();
                    loader.insert(key(rng), value(rng)).unwrap();
                    loader.finish().unwrap();
                }
            },
            _ => {}
        }

        let mut batch = WriteBatch::new();
        for _ in 0..=rng.index(20) {
            let table = if rng.chance(1, 4) { &other } else { &main };
            match rng.index(40) {
                0 => {
                    let from = key(rng);
                    let mut end = from.clone();
                    end[7] = end[7].saturating_add(9);
                    batch.delete_range(table, from..end);
                }
                1..=9 => batch.delete(table, key(rng)),
                _ => batch.insert(table, key(rng), value(rng)),
            }
        }
        let ticket = store.write(&batch).unwrap();
        if rng.chance(1, 8) {
            ticket.wait().unwrap();
        }
        say(&format!("commit {}", ticket.commit()));
        // Fills the pipe, so that the writer is not far ahead of what its parent has read.
        say(&"-".repeat(400));
    }
}

fn follower(source: &Path, copy: &Path) -> terrane_lsm::Result<Follower> {
    let options = FollowOptions::default().store(options());
    Follower::open_dir(source, copy, &options, &mut |_, _| {})
}

fn follow(source: &Path, copy: &Path) {
    let mut follower = follower(source, copy).unwrap();
    loop {
        let report = follower.catch_up().unwrap();
        say(&format!("commit {}", report.source_commit));
        follower.wait(WAIT).unwrap();
    }
}

/// An index of `main` by the first two bytes of its values, in a store of its own.
struct Indexer {
    reader: StoreReader,
    feed: Feed,
    store: Store,
    /// The index key of each key, and the keys by index key.
    forward: NamedTable,
    index: NamedTable,
    /// The last commit of the source that the index has, under the empty key.
    place: NamedTable,
    at: u64,
    /// Updates of a commit that is being told.
    parts: Vec<FeedUpdate>,
}

fn index_key(value: &[u8], key: &[u8]) -> Vec<u8> {
    [&value[..2], key].concat()
}

impl Indexer {
    fn open(source: &Path, dir: &Path) -> Self {
        // So little that a pause leaves a gap now and then.
        let options_of_feed = FeedOptions::default().held_bytes_max(512 << 10);
        let reader = StoreReader::open_dir(source, &ReaderOptions::default()).unwrap();
        let created = || reader.create_feed("indexer", None, &options_of_feed).unwrap();
        let feed = match reader.feed("indexer") {
            Err(Error::FeedDoesNotExist { .. }) => created(),
            Err(Error::FeedGap { .. }) => {
                reader.drop_feed("indexer").unwrap();
                created()
            }
            feed => feed.unwrap(),
        };
        let store = Store::open_dir(dir, &options()).unwrap();
        let [forward, index, place] = ["forward", "by-value", "place"]
            .map(|name| store.table_or_create(name, &config()).unwrap());
        let found = place.get(b"").unwrap();
        let at = found.value().map(|at| u64::from_be_bytes(at.try_into().unwrap()));

        let parts = Vec::new();
        let mut indexer =
            Self { reader, feed, store, forward, index, place, at: at.unwrap_or(0), parts };
        // What the feed does not tell any more is read from a view.
        if at.is_none_or(|at| at < indexer.feed.position()) {
            indexer.begin_anew();
        }
        indexer
    }

    /// Takes everything that is durable; returns the last commit.
    fn catch_up(&mut self) -> u64 {
        loop {
            match self.feed.poll() {
                Ok(Some(item)) => self.take(item),
                Ok(None) => break,
                Err(Error::FeedGap { .. }) => self.begin_anew(),
                Err(error) => panic!("{error:?}"),
            }
        }
        self.store.sync().unwrap();
        self.feed.acknowledge(self.at.min(self.feed.position())).unwrap();
        self.at
    }

    fn take(&mut self, item: FeedItem) {
        match item {
            FeedItem::Commit(commit) if commit.number > self.at => {
                if commit.is_first {
                    self.parts.clear();
                }
                let of_main = commit.tables.into_iter().filter(|p| p.table.name.as_str() == "main");
                self.parts.extend(of_main.flat_map(|part| part.updates));
                if commit.is_last {
                    self.apply(commit.number);
                }
            }
            FeedItem::RolledBack { commit, .. } if commit > self.at => self.begin_anew(),
            FeedItem::TableLoaded { commit: Some(commit), .. } if commit > self.at => {
                self.begin_anew();
            }
            // Other tables come and go.
            _ => {}
        }
    }

    fn apply(&mut self, number: u64) {
        let mut batch = WriteBatch::new();
        for update in std::mem::take(&mut self.parts) {
            let value = match &update.change {
                FeedChange::Insert(value) => Some(value),
                FeedChange::Delete => None,
                FeedChange::DeleteRange(end) => {
                    self.delete_range(&mut batch, &update.key, end.as_deref().unwrap());
                    continue;
                }
                other => panic!("{other:?}"),
            };
            let old = batch.get(&self.forward, &update.key).unwrap();
            if let Some(old) = old.value() {
                batch.delete(&self.index, index_key(old, &update.key));
            }
            match value {
                Some(value) => {
                    batch.insert(&self.forward, &update.key, &value[..2]);
                    batch.insert(&self.index, index_key(value, &update.key), []);
                }
                None => batch.delete(&self.forward, &update.key),
            }
        }
        self.commit(batch, number);
    }

    /// Numbers are keys, so those of a range are few.
    fn delete_range(&self, batch: &mut WriteBatch, from: &[u8], end: &[u8]) {
        // The ends of a range without keys are empty.
        if from >= end {
            return;
        }
        let number = |key: &[u8]| u64::from_be_bytes(key.try_into().unwrap());
        for key in (number(from)..number(end)).map(u64::to_be_bytes) {
            let old = batch.get(&self.forward, key).unwrap();
            if let Some(old) = old.value() {
                batch.delete(&self.index, index_key(old, &key));
                batch.delete(&self.forward, key);
            }
        }
    }

    /// The number of the commit stands in the commit that has its effect.
    fn commit(&mut self, mut batch: WriteBatch, number: u64) {
        batch.insert(&self.place, b"", number.to_be_bytes());
        drop(self.store.write(&batch).unwrap());
        self.at = number;
    }

    /// Makes the index of a view of the source, and goes on behind it.
    fn begin_anew(&mut self) {
        self.parts.clear();
        let number = loop {
            let number = self.reader.refresh().unwrap();
            // A view may hold what is not durable yet.
            while self.feed.position() < number {
                self.feed.wait(WAIT).unwrap();
            }
            if self.feed.position() == number {
                break number;
            }
        };
        let mut batch = WriteBatch::new();
        batch.delete_prefix(&self.forward, b"");
        batch.delete_prefix(&self.index, b"");
        if let Ok(main) = self.reader.table("main") {
            let mut cursor = main.cursor().unwrap();
            while let Some(record) = cursor.next_ref().unwrap() {
                batch.insert(&self.forward, record.key, &record.value[..2]);
                batch.insert(&self.index, index_key(record.value, record.key), []);
            }
        }
        self.commit(batch, number);
    }
}

fn index(source: &Path, dir: &Path) {
    let mut indexer = Indexer::open(source, dir);
    loop {
        say(&format!("commit {}", indexer.catch_up()));
        if let Some(item) = indexer.feed.wait(WAIT).unwrap() {
            indexer.take(item);
        }
    }
}

fn digest(entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> [u8; 32] {
    let mut digest = StateDigest::default();
    entries.for_each(|(key, value)| digest.add(&key, &value, None));
    digest.finish()
}

fn content(table: &NamedTable) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let records = table.cursor().unwrap().map(Result::unwrap);
    records.map(|record| (record.key, record.value.into_vec())).collect()
}

/// Lets both catch up with a source that nobody writes, and compares.
fn check(dir: &Path) -> (u64, u64) {
    let source = dir.join("source");
    let store = Store::open_dir(&source, &options()).unwrap();
    store.sync().unwrap();
    let last = store.last_commit();

    let mut follower = follower(&source, &dir.join("copy")).unwrap();
    let report = follower.catch_up().unwrap();
    assert_eq!(report.source_commit, last);
    let compared = follower.verify().unwrap();
    assert!(compared.iter().all(terrane_lsm::FollowedTable::is_equal), "{compared:?}");
    follower.close().unwrap();

    let mut indexer = Indexer::open(&source, &dir.join("index"));
    assert_eq!(indexer.catch_up(), last);
    let main = content(&store.table("main").unwrap());
    let of_source = main.iter().map(|(key, value)| (index_key(value, key), Vec::new()));
    let wanted: BTreeMap<_, _> = of_source.collect();
    let found = content(&indexer.index);
    assert_eq!(digest(found.into_iter()), digest(wanted.into_iter()), "after commit {last}");
    indexer.store.close().unwrap();
    store.close().unwrap();
    (last, report.takeovers)
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_follower_and_an_indexer_agree_with_their_source_whoever_is_killed() {
    if let Ok(role) = env::var(ROLE) {
        let dir = env::var(DIR).unwrap();
        let dir = Path::new(&dir);
        let source = dir.join("source");
        match role.as_str() {
            "writer" => write(&source),
            "follower" => follow(&source, &dir.join("copy")),
            _ => index(&source, &dir.join("index")),
        }
        return;
    }

    let cycles = kill_cycles(6);
    for_each_seed("kill-followers", 1, |rng, _| {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let start =
            |role: &str| Child::start(TEST, [(ROLE, role.as_ref()), (DIR, dir.as_os_str())]);
        let next = |child: &mut Child| {
            child.line(&["commit"]).expect("a process goes on until it is killed").1[0]
        };

        // Both begin late.
        let mut writer = start("writer");
        for _ in 0..100 {
            next(&mut writer);
        }
        let mut others = ["follower", "indexer"].map(start);
        for cycle in 0..cycles {
            let draw = rng.index(4);
            for _ in 0..=rng.index(150) {
                next(&mut writer);
            }
            if let Some(other) = others.get_mut(draw) {
                // The other may wait for more commits, and the writer for its lines to be read.
                let has_seen = AtomicBool::new(false);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        while !has_seen.load(Ordering::Relaxed) {
                            next(&mut writer);
                        }
                    });
                    // Also if the other has ended, which fails the test.
                    let _end = SetWhenDropped(&has_seen);
                    for _ in 0..rng.index(4) {
                        next(other);
                    }
                });
                other.kill();
                *other = start(["follower", "indexer"][draw]);
            } else {
                writer.kill();
                writer = start("writer");
            }
            if cycles > 10 && (cycle + 1) % 10 == 0 {
                eprintln!("{} of {cycles} kills", cycle + 1);
            }
        }
        writer.kill();
        for child in &mut others {
            child.kill();
        }

        let (commits, _) = check(dir);
        terrane_testkit::tally::add("commits that followers agreed on", commits);
    });
}
