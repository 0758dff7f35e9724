//! Targets of the tables: canonical streams, files, histories.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use terrane_io::{Disk, MemoryDisk, SimDisk, Survival};
use terrane_lsm::inspect::inspect;
use terrane_lsm::verify::{Loss, repair, verify};
use terrane_lsm::{
    CheckpointThread, CompressedLevels, Compression, Cursor, Durability, NamedTable, Result,
    Session, SessionOptions, Store, StoreOptions, TableConfig, TableName, Update, WriteBuffer,
};

use crate::input::Input;

// Of the change feed.
use terrane_lsm::{Changes, Feed, FeedChange, FeedItem, FeedOptions, ReaderOptions, StoreReader};

const DIR: &str = "/store";
const SALT: u64 = 7;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;
type State = [Content; 2];

fn config() -> TableConfig {
    TableConfig::default().write_buffer(WriteBuffer::Entries(8))
}

fn open(disk: &Arc<SimDisk>) -> Result<Store> {
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Each);
    let options = options.log_bytes_max(64 << 10).checkpoint_thread(CheckpointThread::Caller);
    Store::open(Arc::clone(disk) as Arc<dyn Disk>, Path::new(DIR), &options)
}

fn names() -> [TableName; 2] {
    ["main", "other"].map(|name| TableName::new(name).expect("a name"))
}

fn tables(store: &Store) -> Result<[NamedTable; 2]> {
    let [main, other] = names();
    Ok([store.table(&main)?, store.table(&other)?])
}

/// All entries that are left of a cursor.
fn content_of(mut cursor: Cursor) -> Result<Content> {
    let mut content = Content::new();
    while let Some(record) = cursor.next().transpose()? {
        content.insert(record.key, record.value.into_vec());
    }
    Ok(content)
}

fn state_of(store: &Store) -> Result<State> {
    let [main, other] = tables(store)?;
    Ok([content_of(main.cursor()?)?, content_of(other.cursor()?)?])
}

/// A new store with its two tables.
fn create(disk: &Arc<SimDisk>) -> Store {
    let store = open(disk).expect("a new store");
    let compressed = config().compression(Compression::Zstd);
    let compressed = compressed.compressed_levels(CompressedLevels::From(1));
    for (name, config) in names().iter().zip([config(), compressed]) {
        store.create_table(name, &config).expect("a new table");
    }
    store
}

/// A canonical export that is changed is refused, or is of the content that its digest says.
pub(crate) fn lsm_canonical(data: &[u8]) {
    fn session() -> Session {
        let options = SessionOptions::with_salt(SALT).create_dir();
        Session::open(MemoryDisk::new(), Path::new(DIR), &options).expect("a new session")
    }
    static STREAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut table = session().new_table(&config()).expect("a new table");
        for number in 0..100_u8 {
            table.insert(&[number, number / 3], &[number; 9]).expect("sound");
        }
        let mut stream = Vec::new();
        table.export_canonical(&mut stream).expect("sound");
        stream
    });

    let mut stream = STREAM.clone();
    Input(data).damage(&mut stream);
    let Ok((table, _)) = session().import_canonical(&*stream, &config()) else { return };
    let mut again = Vec::new();
    table.export_canonical(&mut again).expect("imported");
    assert!(stream.starts_with(&again), "a content has one canonical stream");
}

/// A killed store, with its states by their commits.
static FILES: LazyLock<(Arc<SimDisk>, BTreeMap<u64, State>)> = LazyLock::new(|| {
    let disk = SimDisk::new(1);
    let store = create(&disk);
    let mut state = State::default();
    let mut states = BTreeMap::from([(store.last_commit(), state.clone())]);
    for number in 0..60_u8 {
        let table = usize::from(number % 2);
        // Those of the second table fill pages, which are compressed.
        let long = if table == 0 { 900 } else { 2_000 };
        let value = vec![number; if number % 7 < 1 + 2 * table as u8 { long } else { 20 }];
        let key = vec![number % 16, number % 5];
        let [main, other] = tables(&store).expect("sound");
        let ticket = [main, other][table].insert(&key, &value).expect("sound");
        ticket.wait().expect("sound");
        state[table].insert(key, value);
        states.insert(store.last_commit(), state.clone());
        if number == 40 {
            store.checkpoint().expect("sound");
            states.clear();
            states.insert(store.last_commit(), state.clone());
        }
    }
    let disk = disk.process_kill();
    drop(store);
    (disk, states)
});

/// A store with changed files is refused, or is in a state that it was in; it is inspected, checked
/// and repaired without a panic.
pub(crate) fn lsm_files(data: &[u8]) {
    let (disk, states) = &*FILES;
    let sim = disk.clone_disk();
    Input(data).damage_files(&sim, Path::new(DIR));
    let disk: Arc<dyn Disk> = sim.clone();

    drop(inspect(&disk, Path::new(DIR)));
    drop(verify(&disk, Path::new(DIR), &mut |_, _| {}));
    if let Ok(store) = open(&sim.clone_disk())
        && let Ok(state) = state_of(&store)
    {
        let last = store.last_commit();
        assert!(cfg!(fuzzing) || states.get(&last) == Some(&state), "no state after commit {last}");
    }
    drop(repair(&disk, Path::new(DIR), Loss::Accepted, &mut |_, _| {}));
}

/// Key and value by commit.
type Entries = BTreeMap<u64, [u8; 2]>;

/// A killed store with a feed that has fallen behind, with the key and value of each commit; commit
/// 13 is a roll-back.
static FEED: LazyLock<(Arc<SimDisk>, Entries)> = LazyLock::new(|| {
    let disk = SimDisk::new(1);
    let store = create(&disk);
    let feed = store.create_feed("late", Some(1), &FeedOptions::default()).expect("sound");
    let [main, _] = tables(&store).expect("sound");
    let mut commits = Entries::new();
    let mut commit = |number: u8| {
        let ticket = main.insert(&[number], &[number; 700]).expect("sound");
        ticket.wait().expect("sound");
        commits.insert(ticket.commit(), [number, number]);
    };
    (0..8).for_each(&mut commit);
    let version = store.retain(None).expect("sound");
    (8..12).for_each(&mut commit);
    store.roll_back(version).expect("a retained version");
    (12..20).for_each(&mut commit);
    store.checkpoint().expect("sound");
    let killed = disk.process_kill();
    drop((feed, main, store));
    (killed, commits)
});

/// A feed of a store with changed files tells the commits that were made, or an error.
pub(crate) fn lsm_feed(data: &[u8]) {
    let (disk, commits) = &*FEED;
    let sim = disk.clone_disk();
    let is_changed = Input(data).damage_files(&sim, Path::new(DIR));
    let disk: Arc<dyn Disk> = sim;
    let Ok(reader) = StoreReader::open(disk, Path::new(DIR), &ReaderOptions::default()) else {
        return;
    };
    drop(reader.feeds());
    for feed in [reader.feed("late").map(Source::Named), reader.changes(1).map(Source::Unnamed)] {
        let Ok(mut feed) = feed else { continue };
        let mut told = 0;
        while let Ok(Some(item)) = feed.poll() {
            let FeedItem::Commit(commit) = item else { continue };
            let expected = commits.get(&commit.number);
            for update in commit.tables.iter().flat_map(|part| &part.updates) {
                let value = match &update.change {
                    FeedChange::Insert(value) => value.first().copied(),
                    _ => None,
                };
                let found = update.key.first().copied().zip(value).map(|(key, value)| [key, value]);
                assert!(
                    cfg!(fuzzing) || commit.from < commit.number || found.as_ref() == expected,
                    "commit {} is another one",
                    commit.number
                );
            }
            told += 1;
        }
        assert!(is_changed || told == commits.len(), "an intact store tells all of it");
    }
}

/// A feed by its cursor, or from the first commit on.
enum Source {
    Named(Feed),
    Unnamed(Changes),
}

impl Source {
    fn poll(&mut self) -> Result<Option<FeedItem>> {
        match self {
            Self::Named(feed) => feed.poll(),
            Self::Unnamed(changes) => changes.poll(),
        }
    }
}

/// Commits, checkpoints, retained versions, ways back and crashes; nothing durable is lost.
pub(crate) fn lsm_history(data: &[u8]) {
    let mut input = Input(data);
    let mut disk = SimDisk::new(1);
    let mut store = create(&disk);
    let mut state = State::default();
    let mut versions: BTreeMap<u64, State> = BTreeMap::new();

    for _ in 0..96 {
        if input.is_empty() {
            break;
        }
        match input.byte() % 16 {
            0..9 => commit(&mut input, &store, &mut state),
            9 => store.checkpoint().expect("sound"),
            10 => {
                let number = store.retain(None).expect("sound");
                versions.insert(number, state.clone());
            }
            11 if !versions.is_empty() => {
                let number = *versions.keys().nth(input.index(versions.len())).expect("in range");
                store.roll_back(number).expect("a retained version");
                state.clone_from(&versions[&number]);
            }
            12 if !versions.is_empty() => {
                let number = *versions.keys().nth(input.index(versions.len())).expect("in range");
                store.release(number).expect("a retained version");
                versions.remove(&number);
            }
            13 => {
                store.close().expect("sound");
                store = open(&disk).expect("sound");
            }
            _ => {
                let crashed = disk.after_crash(Survival::Random(input.byte().into()));
                drop(store);
                disk = crashed;
                store = open(&disk).expect("a crash leaves a sound store");
            }
        }
        assert!(state_of(&store).expect("sound") == state, "the tables are the maps");
    }

    for (number, state) in &versions {
        let version = store.version(*number).expect("a retained version");
        for (name, content) in names().iter().zip(state) {
            let table = version.table(name).expect("a table of the version");
            let found = table.cursor().and_then(content_of).expect("sound");
            assert!(found == *content, "version {number} is what it was");
        }
    }
}

/// Changes both tables in one commit.
fn commit(input: &mut Input<'_>, store: &Store, state: &mut State) {
    let [main, other] = tables(store).expect("sound");
    let mut drawn: [BTreeMap<Vec<u8>, Option<Vec<u8>>>; 2] = Default::default();
    for _ in 0..=input.index(10) {
        let byte = input.byte();
        let key = vec![byte % 32, byte / 32 % 2];
        let is_insert = !input.byte().is_multiple_of(3);
        let value = is_insert.then(|| vec![input.byte(); input.index(256) * 4]);
        drawn[usize::from(byte >> 7)].insert(key, value);
    }

    let updates = drawn.each_ref().map(|drawn| {
        drawn
            .iter()
            .map(|(key, value)| match value {
                Some(value) => (key.clone(), Update::Insert(value)),
                None => (key.clone(), Update::Delete),
            })
            .collect::<Vec<_>>()
    });
    let [first, second] = &updates;
    let commit = store.commit(&[(&main, &first[..]), (&other, &second[..])]);
    commit.and_then(|ticket| ticket.wait()).expect("sound");

    for (content, drawn) in state.iter_mut().zip(drawn) {
        for (key, value) in drawn {
            match value {
                Some(value) => content.insert(key, value),
                None => content.remove(&key),
            };
        }
    }
}
