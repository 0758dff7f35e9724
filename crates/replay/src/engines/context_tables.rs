//! Terrane's context store as an engine of tables: a table is a tree, and its commitment the hash
//! of the root.
//!
//! | in the store              | is                                                                 |
//! |---------------------------|--------------------------------------------------------------------|
//! | value at `data`/hex(key)  | an entry; digits are lower-case, so their order is that of the keys |
//! | value at `empty`          | that of the empty key, which is no step                            |
//! | commit, message its label | what was saved of a table; its parent is what the table was opened from |
//! | branch                    | the name of a snapshot                                             |
//!
//! A step has up to 255 bytes, so a key has up to 127.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrane::context::{Context, Meta, Recovery, Store};
use terrane::io::{Disk, RealDisk};

use super::context_store::{Settings, open_or_create};
use crate::engines::engine::{Change, Cursor, Engine, EngineError, Entry, Result, State, Table};
use crate::hex;

/// The directory of all entries.
const DATA: &[u8] = b"data";

/// Path of the value of the empty key.
const EMPTY: &[u8] = b"empty";

/// Digits of the longest key fill a step.
const KEY_BYTES_MAX: usize = 255 / 2;

/// The store takes values of less than 512 MiB.
const VALUE_BYTES_MAX: usize = (1 << 29) - 1;

/// Duplicates alive at once. Each one keeps in memory what was changed since it was made.
const DUPLICATES_MAX: usize = 16;

/// Changes are saved when they take so much memory, about.
const CHANGES_BYTES_MAX: usize = 64 << 20;

/// Bytes of a change beside its key and value: the nodes on its path.
const CHANGE_OVERHEAD_BYTES: usize = 500;

/// Keys that are read from a directory at once.
const PAGE_KEYS: usize = 4096;

/// A store in a directory.
#[derive(Debug)]
pub struct ContextTables {
    store: Arc<Store>,
    /// Bytes of changes in memory that were not saved, in all tables.
    unsaved: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct ContextTable {
    store: Arc<Store>,
    context: Mutex<Context>,
    unsaved: Arc<AtomicUsize>,
}

impl ContextTables {
    /// Opens the store in `dir`, which is made if it is missing. Only one process can hold it.
    ///
    /// # Errors
    /// [`EngineError::Environment`] if another process holds it or the system does not let us,
    /// [`EngineError::Refused`] if the directory is something else, which is left as it is.
    pub fn open(dir: &Path) -> Result<Self> {
        let disk: Arc<dyn Disk> = RealDisk::auto();
        Self::open_on(&disk, dir)
    }

    /// Opens the store in `dir` of a disk; what is missing of the way to it is made, durably.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn open_on(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Self> {
        // All commits of a point are made durable at once.
        let settings = Settings { is_durable: false, ..Settings::default() };
        let store = Arc::new(open_or_create(disk, dir, settings)?);
        Ok(Self { store, unsaved: Arc::default() })
    }

    /// Findings of the opening of the store.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        self.store.recovery()
    }

    fn table(&self, context: Context) -> Box<dyn Table> {
        let store = Arc::clone(&self.store);
        let unsaved = Arc::clone(&self.unsaved);
        Box::new(ContextTable { store, context: Mutex::new(context), unsaved })
    }
}

impl Engine for ContextTables {
    fn name(&self) -> &'static str {
        "context"
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn forks_max(&self) -> usize {
        DUPLICATES_MAX
    }

    fn commit(&self) -> Result<()> {
        // Changes that come during the sync count for the next commit.
        self.unsaved.store(0, Ordering::Relaxed);
        Ok(self.store.sync()?)
    }

    fn wants_commit(&self) -> bool {
        self.unsaved.load(Ordering::Relaxed) > CHANGES_BYTES_MAX
    }

    fn key_bytes_max(&self) -> usize {
        KEY_BYTES_MAX
    }

    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX
    }

    fn new_table(&self) -> Result<Box<dyn Table>> {
        Ok(self.table(self.store.empty()))
    }

    fn snapshots(&self) -> Result<Vec<String>> {
        let name = |(name, _): (Vec<u8>, _)| {
            String::from_utf8(name)
                .map_err(|_| EngineError::Refused("the name of a branch is not UTF-8".into()))
        };
        self.store.branches().into_iter().map(name).collect()
    }

    fn open(&self, snapshot: &str, label: &str) -> Result<Box<dyn Table>> {
        let refused = |message: String| Err(EngineError::Refused(message.into()));
        let Some(head) = self.store.branch(snapshot.as_bytes()) else {
            return refused(format!("there is no branch {snapshot:?}"));
        };
        // The message of the commit is the label of the snapshot.
        let found = self.store.commit_info(&head)?.message;

        if found != label.as_bytes() {
            let found = String::from_utf8_lossy(&found);
            return refused(format!("branch {snapshot:?} has the label {found:?}, not {label:?}"));
        }

        match self.store.checkout(&head)? {
            Some(context) => Ok(self.table(context)),
            None => refused(format!("the commit {head} of branch {snapshot:?} was collected")),
        }
    }

    fn delete(&self, snapshot: &str) -> Result<()> {
        self.store.remove_branch(snapshot.as_bytes())?;
        Ok(())
    }
}

/// Makes what is durable in the frames quick to find for who opens the store next.
impl Drop for ContextTables {
    fn drop(&mut self) {
        // Saved data are durable without the close; opening reads beyond the last control record.
        let _ = self.store.close();
    }
}

impl ContextTable {
    fn context(&self) -> MutexGuard<'_, Context> {
        self.context.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `work` with the path of a key.
fn at<T>(key: &[u8], work: impl FnOnce(&[&[u8]]) -> T) -> T {
    if key.is_empty() { work(&[EMPTY]) } else { work(&[DATA, hex::encode(key).as_bytes()]) }
}

fn corrupt(message: &'static str) -> EngineError {
    EngineError::Corrupt(message.into())
}

impl State for ContextTable {
    fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        let context = self.context();
        let find = |key: &&[u8]| Ok(at(key, |path| context.find(path))?);
        keys.iter().map(find).collect()
    }

    fn scan(&self, from: &[u8]) -> Result<Box<dyn Cursor + '_>> {
        let context = self.context().clone();
        let mut empty = None;
        if from.is_empty() {
            empty = context.find(&[EMPTY])?;
        }
        // Steps are hexadecimal, whose order is that of the keys.
        let from = hex::encode(from).into_bytes();

        let mut steps = Vec::new();
        let mut offset = 0;
        loop {
            let page = context.list(&[DATA], offset, PAGE_KEYS)?;
            let count = page.len();
            steps.extend(page.into_iter().map(|(step, _)| step).filter(|step| **step >= *from));
            if count < PAGE_KEYS {
                break;
            }
            offset += count;
        }

        // Reverse order, so that the next entry is popped off the end.
        steps.sort_unstable_by(|one, other| other.cmp(one));
        Ok(Box::new(ContextCursor { context, empty, steps }))
    }

    fn roots(&self) -> Result<BTreeMap<String, String>> {
        let root = self.context().hash();
        Ok(BTreeMap::from([("context".to_owned(), hex::encode(&root.0))]))
    }
}

impl Table for ContextTable {
    fn update(&mut self, changes: &[Change<'_>]) -> Result<()> {
        // A clone costs nothing, and a failure half way leaves the original.
        let mut context = self.context().clone();
        let mut bytes = 0;
        for change in changes {
            at(change.key, |path| match change.value {
                Some(value) => context.add(path, value),
                None => context.remove(path),
            })?;
            bytes += change.key.len() + change.value.map_or(0, <[u8]>::len) + CHANGE_OVERHEAD_BYTES;
        }

        *self.context() = context;
        self.unsaved.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn fork(&self) -> Result<Box<dyn Table>> {
        let store = Arc::clone(&self.store);
        let unsaved = Arc::clone(&self.unsaved);
        let context = Mutex::new(self.context().clone());
        Ok(Box::new(Self { store, context, unsaved }))
    }

    fn save(&self, snapshot: &str, label: &str) -> Result<()> {
        let mut context = self.context();
        let meta = Meta::tezos(0, label);
        let hash = self.store.commit_to(snapshot.as_bytes(), &context, &meta)?;
        // The tree in memory can be read again from its commit.
        if let Some(committed) = self.store.checkout(&hash)? {
            *context = committed;
        }
        Ok(())
    }
}

/// Entries by the order of their keys, which are all in memory; values are read one by one.
struct ContextCursor {
    context: Context,
    /// The value of the empty key, before all others.
    empty: Option<Vec<u8>>,
    /// Those that are left, descending.
    steps: Vec<Box<[u8]>>,
}

impl Cursor for ContextCursor {
    fn next(&mut self) -> Result<Option<Entry>> {
        if let Some(value) = self.empty.take() {
            return Ok(Some(Entry { key: Vec::new(), value }));
        }
        let Some(step) = self.steps.pop() else { return Ok(None) };
        let key = std::str::from_utf8(&step).ok().and_then(hex::decode);
        let key = key.ok_or_else(|| corrupt("a step below data is not a key"))?;
        let value = self.context.find(&[DATA, &*step])?;
        let value = value.ok_or_else(|| corrupt("a key has no value"))?;
        Ok(Some(Entry { key, value }))
    }
}
