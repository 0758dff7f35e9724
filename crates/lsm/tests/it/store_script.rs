//! Scripts of steps on a store, and the states that are legal after a script is cut short.
//!
//! A [`Script`] is a sequence of steps that follows from a seed; a [`Runner`] does them to a store
//! on a simulated disk, and a [`History`] keeps the state of the store after each step, and the
//! states that the store has promised to preserve. [`check_image`] opens the disk after a crash and
//! compares. The script chooses the names of tables, so that several workloads share this module.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_io::Disk;
use terrane_io::{SimDisk, Survival};
use terrane_lsm::{
    BackupPlace, CheckpointThread, Durability, MergeOperator, NamedTable, Result, SessionOptions,
    Store, StoreOptions, Table, TableConfig, TableName, Ticket, Update, WriteBatch, WriteBuffer,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;

use crate::{FEW_OPEN_FILES, SALT};

/// Directory of backups.
const BACKUP: &str = "/backup";

/// A table by key.
pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The tables of a store by name.
pub(crate) type State = BTreeMap<String, Content>;

/// Content of a store, and the number of its last commit.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct StoreState {
    pub(crate) commit: u64,
    pub(crate) tables: State,
    /// Retained versions, by number.
    pub(crate) versions: BTreeMap<u64, State>,
}

/// Change of a key.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Insert(Vec<u8>),
    /// Combined with what is there: see [`Script::config`].
    Upsert(Vec<u8>),
    Delete,
    /// This key and all others up to and without that one.
    DeleteRange(Option<Vec<u8>>),
}

impl Change {
    pub(crate) fn update(&self) -> Update<'_> {
        match self {
            Self::Insert(value) => Update::Insert(value),
            Self::Upsert(value) => Update::Upsert(value),
            Self::Delete => Update::Delete,
            Self::DeleteRange(end) => Update::DeleteRange(end.as_deref()),
        }
    }

    pub(crate) fn apply(&self, content: &mut Content, key: &[u8]) {
        match self {
            Self::Insert(value) => drop(content.insert(key.to_vec(), value.clone())),
            Self::Upsert(value) => {
                content.entry(key.to_vec()).or_default().extend_from_slice(value);
            }
            Self::Delete => drop(content.remove(key)),
            Self::DeleteRange(end) => content.retain(|other, _| {
                other.as_slice() < key || end.as_ref().is_some_and(|end| end <= other)
            }),
        }
    }
}

/// Keys with what is done to them.
pub(crate) type Batch = Vec<(Vec<u8>, Change)>;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Create(&'static str),
    Rename(&'static str, &'static str),
    Drop(&'static str),
    Commit(Vec<(&'static str, Batch)>, Durability),
    /// Waits for the last commit.
    Sync,
    /// Waits for one of the commits that nobody has waited for yet: the oldest is 0.
    Wait(usize),
    Checkpoint,
    Compact,
    Reopen,
    /// The last commit, which must not be retained yet.
    Retain,
    /// The oldest version.
    Release,
    /// To one of the versions, from the oldest on.
    RollBack(usize),
    BackUp,
    /// A table without a name that a batch has filled, under a new name.
    Install(&'static str, Batch),
    /// The same with a commit: both or neither.
    InstallWith(&'static str, Batch, Vec<(&'static str, Batch)>),
    /// Such a table in the place of another one.
    Replace(&'static str, Batch),
}

#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) durability: Durability,
    /// Entries of the write buffers.
    pub(crate) buffer: u64,
    pub(crate) steps: Vec<Step>,
}

impl Script {
    /// Returns the configuration of the tables, whose merge operator appends.
    fn config(&self) -> TableConfig {
        let write_buffer = WriteBuffer::Entries(self.buffer);
        TableConfig::default()
            .write_buffer(write_buffer)
            .merge_operator(MergeOperator::concatenate())
    }
}

pub(crate) fn name(text: &str) -> TableName {
    TableName::new(text).unwrap()
}

pub(crate) fn options(durability: Durability) -> StoreOptions {
    let session = SessionOptions::with_salt(SALT).create_dir().open_files_max(FEW_OPEN_FILES);
    let options = StoreOptions::default().session(session).durability(durability);
    // Segments of 16 KiB: a script fills several. Calls on the disk come in one order.
    options.log_bytes_max(64 << 10).checkpoint_thread(CheckpointThread::Caller)
}

pub(crate) fn config() -> TableConfig {
    TableConfig::default().write_buffer(WriteBuffer::Entries(8))
}

pub(crate) fn open(disk: &Arc<SimDisk>, durability: Durability) -> Result<Store> {
    open_with(disk, &options(durability))
}

fn open_with(disk: &Arc<SimDisk>, options: &StoreOptions) -> Result<Store> {
    Store::open(Arc::clone(disk) as Arc<dyn Disk>, Path::new("/store"), options)
}

/// States of a store so far, and the states that a crash must preserve.
#[derive(Debug)]
pub(crate) struct History {
    /// State after each step that changed something; the last one may belong to a step under way.
    pub(crate) states: Vec<StoreState>,
    /// The state that survives a loss of power at least.
    pub(crate) durable: usize,
    /// The state that survives the end of the process at least.
    pub(crate) logged: usize,
    /// Backups; the last one may be under way.
    pub(crate) backups: Vec<StoreState>,
    /// Number of finished backups.
    pub(crate) backed_up: usize,
}

impl History {
    pub(crate) fn new() -> Self {
        Self::from(vec![StoreState::default()], 0)
    }

    /// Creates a history that begins with `states`. The states from `logged` on survive the end of
    /// the process.
    pub(crate) fn from(states: Vec<StoreState>, logged: usize) -> Self {
        Self { states, durable: 0, logged, backups: Vec::new(), backed_up: 0 }
    }

    pub(crate) fn last(&self) -> &StoreState {
        self.states.last().unwrap()
    }

    /// The state after a step, or none if it changes nothing.
    pub(crate) fn after(&self, step: &Step) -> Option<StoreState> {
        let mut next = self.last().clone();
        let tables = &mut next.tables;
        match step {
            Step::Create(name) => {
                assert!(tables.insert((*name).to_owned(), Content::new()).is_none());
            }
            Step::Rename(from, to) => {
                let content = tables.remove(*from).unwrap();
                assert!(tables.insert((*to).to_owned(), content).is_none());
            }
            Step::Drop(name) => drop(tables.remove(*name).unwrap()),
            Step::Commit(batches, _) => {
                for (name, batch) in batches {
                    let content = tables.get_mut(*name).unwrap();
                    for (key, change) in batch {
                        change.apply(content, key);
                    }
                }
                next.commit += 1;
            }
            Step::Retain => {
                assert!(next.versions.insert(next.commit, tables.clone()).is_none());
            }
            Step::Release => drop(next.versions.pop_first().unwrap()),
            Step::RollBack(version) => {
                tables.clone_from(next.versions.values().nth(*version).unwrap());
                next.commit += 1;
            }
            Step::Install(name, batch) => {
                assert!(tables.insert((*name).to_owned(), content_of(batch)).is_none());
            }
            Step::InstallWith(name, batch, batches) => {
                for (name, batch) in batches {
                    let content = tables.get_mut(*name).unwrap();
                    for (key, change) in batch {
                        change.apply(content, key);
                    }
                }
                assert!(tables.insert((*name).to_owned(), content_of(batch)).is_none());
                next.commit += 1;
            }
            Step::Replace(name, batch) => {
                assert!(tables.insert((*name).to_owned(), content_of(batch)).is_some());
                next.commit += 1;
            }
            Step::Sync
            | Step::Wait(_)
            | Step::Checkpoint
            | Step::Compact
            | Step::Reopen
            | Step::BackUp => return None,
        }

        Some(next)
    }

    /// A step begins: what it may leave is legal from now on.
    pub(crate) fn begun(&mut self, step: &Step) {
        let next = self.after(step);
        if let Step::BackUp = step {
            self.backups.push(self.last().clone());
        }
        self.states.extend(next);
    }

    /// A step has returned; `default` is the durability of the store.
    pub(crate) fn done(&mut self, step: &Step, default: Durability) {
        let last = self.states.len() - 1;
        let is_logged = default > Durability::None;
        match step {
            // All of these make durable what was before them, too.
            Step::Create(_)
            | Step::Rename(..)
            | Step::Drop(_)
            | Step::Retain
            | Step::Release
            | Step::RollBack(_)
            | Step::Checkpoint
            | Step::Compact
            | Step::Sync
            | Step::Install(..)
            | Step::InstallWith(..)
            | Step::Replace(..)
            | Step::Commit(_, Durability::Each) => self.durable = last,
            Step::BackUp => (self.durable, self.backed_up) = (last, self.backups.len()),
            Step::Commit(..) | Step::Wait(_) => {}
            Step::Reopen => {
                if is_logged {
                    self.durable = last;
                } else {
                    self.states.truncate(self.durable + 1);
                }
            }
        }

        if is_logged {
            self.logged = self.states.len() - 1;
        }
        self.logged = self.logged.max(self.durable);
    }

    /// The store says that this commit, and so all before it, is durable.
    pub(crate) fn promised(&mut self, commit: u64) {
        // What was done to tables after it is judged by itself.
        let first = self.states.iter().position(|state| state.commit == commit);
        self.durable = self.durable.max(first.unwrap_or(0));
    }
}

pub(crate) struct Runner {
    disk: Arc<SimDisk>,
    script: Script,
    thread: CheckpointThread,
    pub(crate) store: Option<Store>,
    /// Tickets of commits that nobody has waited for.
    tickets: Vec<Ticket>,
}

impl Runner {
    pub(crate) fn new(disk: &Arc<SimDisk>, script: &Script) -> Self {
        let thread = CheckpointThread::Caller;
        let (disk, script) = (Arc::clone(disk), script.clone());
        Self { disk, script, thread, store: None, tickets: Vec::new() }
    }

    /// A table without a name that a batch has filled.
    fn volatile(&self, store: &Store, batch: &Batch) -> Result<Table> {
        let mut table = store.new_volatile_table(&self.script.config())?;
        let updates: Vec<_> = batch.iter().map(|(key, change)| (key, change.update())).collect();
        table.write_batch(&updates)?;
        Ok(table)
    }

    pub(crate) fn store(&mut self) -> Result<&Store> {
        if self.store.is_none() {
            let options = options(self.script.durability).checkpoint_thread(self.thread);
            self.store = Some(open_with(&self.disk, &options)?);
        }
        Ok(self.store.as_ref().unwrap())
    }

    pub(crate) fn step(&mut self, step: &Step) -> Result<()> {
        let store = self.store()?.clone();
        match step {
            Step::Create(table) => {
                drop(store.create_table(&name(table), &self.script.config())?);
            }
            Step::Rename(from, to) => store.rename_table(&name(from), &name(to))?,
            Step::Drop(table) => store.drop_table(&name(table))?,
            Step::Commit(batches, durability) => {
                let ticket = commit(&store, batches, *durability)?;
                assert_eq!(ticket.commit(), store.last_commit());
                if *durability == Durability::Each {
                    assert!(ticket.is_durable());
                }
                self.tickets.push(ticket);
            }
            Step::Sync => match self.tickets.pop() {
                Some(ticket) => ticket.wait()?,
                None => store.sync()?,
            },
            Step::Wait(at) => {
                let ticket = self.tickets.remove(*at);
                let waited = ticket.wait();
                assert_eq!(waited.is_ok(), ticket.is_durable());
                waited.inspect_err(|_| self.tickets.insert(*at, ticket))?;
            }
            Step::Checkpoint => store.checkpoint()?,
            Step::Compact => {
                store.compact(&mut |_, _| {})?;
                for info in store.tables()? {
                    let stats = store.table(&info.name)?.stats()?;
                    assert!(stats.runs() <= 1, "{stats:?}");
                }
            }
            Step::Retain => assert_eq!(store.retain(None)?, store.last_commit()),
            Step::Release => store.release(store.versions()?[0].number)?,
            Step::RollBack(version) => {
                let number = store.versions()?[*version].number;
                assert_eq!(store.roll_back(number)?, store.last_commit());
            }
            Step::BackUp => {
                let report = store.back_up(&BackupPlace::new(BACKUP), &mut |_, _| {})?;
                assert_eq!(report.commit, store.last_commit());
            }
            Step::Install(table, batch) => {
                drop(store.install(table, &self.volatile(&store, batch)?)?);
            }
            Step::InstallWith(table, batch, batches) => {
                let batches = write_batch(&store, batches)?;
                drop(store.install_with(table, &self.volatile(&store, batch)?, &batches)?);
            }
            Step::Replace(table, batch) => {
                drop(store.replace(table, &self.volatile(&store, batch)?)?);
            }
            Step::Reopen => {
                self.tickets.clear();
                let closed = store.close();
                self.store = None;
                closed?;
                self.store()?;
            }
        }

        Ok(())
    }
}

/// The content of a table that a batch has filled.
fn content_of(batch: &Batch) -> Content {
    let mut content = Content::new();
    for (key, change) in batch {
        change.apply(&mut content, key);
    }
    content
}

/// The same batches in one that owns them.
pub(crate) fn write_batch(store: &Store, batches: &[(&'static str, Batch)]) -> Result<WriteBatch> {
    let mut all = WriteBatch::new();
    for (table, batch) in batches {
        let table = store.table(table)?;
        for (key, change) in batch {
            match change {
                Change::Insert(value) => all.insert(&table, key, value),
                Change::Upsert(value) => all.upsert(&table, key, value),
                Change::Delete => all.delete(&table, key),
                Change::DeleteRange(Some(end)) => {
                    all.delete_range(&table, key.as_slice()..end.as_slice());
                }
                Change::DeleteRange(None) => all.delete_range(&table, key.as_slice()..),
            }
        }
    }
    Ok(all)
}

pub(crate) fn commit(
    store: &Store,
    batches: &[(&'static str, Batch)],
    durability: Durability,
) -> Result<Ticket> {
    let tables = batches.iter().map(|(table, _)| store.table(&name(table)));
    let tables: Vec<NamedTable> = tables.collect::<Result<_>>()?;
    let updates: Vec<Vec<(&[u8], Update<'_>)>> = batches
        .iter()
        .map(|(_, batch)| batch.iter().map(|(key, change)| (&key[..], change.update())).collect())
        .collect();
    let parts: Vec<_> =
        tables.iter().zip(&updates).map(|(table, updates)| (table, updates.as_slice())).collect();
    store.commit_with(&parts, durability)
}

pub(crate) fn content(table: &NamedTable) -> Result<Content> {
    let records = table.cursor()?.next_many(usize::MAX)?;
    Ok(records.into_iter().map(|r| (r.key, r.value.as_ref().to_vec())).collect())
}

/// All that a store holds.
pub(crate) fn state(store: &Store) -> Result<State> {
    let mut state = State::new();
    for info in store.tables()? {
        state.insert(info.name.to_string(), content(&store.table(&info.name)?)?);
    }
    Ok(state)
}

/// Reads the content of a store with the number of its last commit.
pub(crate) fn store_state(store: &Store) -> Result<StoreState> {
    let mut versions = BTreeMap::new();
    for info in store.versions()? {
        let version = store.version(info.number)?;
        let mut state = State::new();
        for name in version.tables() {
            let records = version.table(&name)?.cursor()?.next_many(usize::MAX)?;
            let records = records.into_iter().map(|r| (r.key, r.value.as_ref().to_vec()));
            state.insert(name.to_string(), records.collect());
        }
        versions.insert(info.number, state);
    }
    Ok(StoreState { commit: store.last_commit(), tables: state(store)?, versions })
}

pub(crate) fn batch(rng: &mut ChaCha8Rng, len: usize) -> Batch {
    (0..len)
        .map(|_| {
            let key = vec![b'k', rng.index(40) as u8];
            let len = if rng.chance(1, 8) { 3_000 } else { rng.index(60) };
            let change = match rng.index(8) {
                0 if rng.chance(1, 4) => {
                    Change::DeleteRange(Some(vec![b'k', key[1] + rng.index(6) as u8]))
                }
                0 | 1 => Change::Delete,
                // Done twice, it shows.
                2 => Change::Upsert(vec![rng.index(256) as u8; len.min(8)]),
                _ => Change::Insert(vec![rng.index(256) as u8; len]),
            };
            (key, change)
        })
        .collect()
}

/// Runs a script until the end or a crash; returns what is legal then.
pub(crate) fn run(disk: &Arc<SimDisk>, script: &Script) -> History {
    run_on(disk, script, CheckpointThread::Caller)
}

/// The same with checkpoints and segments made on that thread.
pub(crate) fn run_on(disk: &Arc<SimDisk>, script: &Script, thread: CheckpointThread) -> History {
    let mut history = History::new();
    let mut runner = Runner { thread, ..Runner::new(disk, script) };
    go_on(disk, &mut runner, &mut history, &script.steps);
    history
}

/// Does steps to a store until the end or a crash.
pub(crate) fn go_on(
    disk: &Arc<SimDisk>,
    runner: &mut Runner,
    history: &mut History,
    steps: &[Step],
) {
    let durability = runner.script.durability;
    for step in steps {
        if disk.has_crashed() {
            break;
        }
        history.begun(step);
        if let Err(error) = runner.step(step) {
            assert!(disk.has_crashed(), "{step:?} failed without a crash: {error}");
            break;
        }
        history.done(step, durability);
        if let Some(store) = &runner.store {
            history.promised(store.durable_commit());
        }
    }
}

/// Opens a store after a crash and compares it with what is legal; goes on with it, and comes
/// again.
pub(crate) fn check_image(
    disk: &Arc<SimDisk>,
    durability: Durability,
    history: &History,
    floor: usize,
) {
    let (disk, expected) = check_found(disk, durability, history, floor);
    let store = open(&disk, durability).unwrap();
    assert_eq!(store_state(&store).unwrap(), expected);
    store.checkpoint().unwrap();
    store.close().unwrap();
    // Without the log, as a plain session sees it: all files are where the manifest says.
    let store = open(&disk, Durability::None).unwrap();
    assert_eq!(store_state(&store).unwrap(), expected);
    store.close().unwrap();
}

/// Opens a store after a crash, compares it with what is legal, and commits something. Returns the
/// disk after a loss of power that comes then, and what must be there.
pub(crate) fn check_found(
    disk: &Arc<SimDisk>,
    durability: Durability,
    history: &History,
    floor: usize,
) -> (Arc<SimDisk>, StoreState) {
    if history.backed_up > 0 {
        // On another disk, so that this one is as it was found.
        let disk = disk.clone_disk() as Arc<dyn Disk>;
        let place = Path::new(BACKUP);
        let backup = Store::open(disk, place, &options(durability)).expect("a backup opens");
        let found = store_state(&backup).unwrap();
        let legal = &history.backups[history.backed_up - 1..];
        assert!(legal.contains(&found), "the backup {found:?} is none of {legal:?}");
    }

    let store = open(disk, durability).expect("a store opens after a crash");
    let mut found = store_state(&store).unwrap();
    let legal = &history.states[floor..];
    assert!(legal.contains(&found), "{found:?} is none of {legal:?}");

    if let Some(info) = store.tables().unwrap().first() {
        let table = store.table(&info.name).unwrap();
        let update = (b"after", Update::Insert(b"the crash"));
        let ticket = store.commit_with(&[(&table, &[update][..])], Durability::Each).unwrap();
        assert!(ticket.is_durable());
        found.commit += 1;
        let content = found.tables.get_mut(info.name.as_str()).unwrap();
        content.insert(b"after".to_vec(), b"the crash".to_vec());
    }

    (disk.after_crash(Survival::Nothing), found)
}
