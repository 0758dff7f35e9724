//! Terrane's context store: versioned trees on disk, with the hashes of Tezos.

use std::path::Path;
use std::sync::Arc;

use terrane::backends::BtreeIndexes;
use terrane::context::{
    self as store, Durability, Error, GcPace, Hash, Meta, Options, Prefetch, Retain, Store,
};
use terrane::io::files::create_parents;
use terrane::io::{Access, Disk, RealDisk};

use crate::engines::context::{CommitHash, CommitInfo, Context, ContextEngine, Steps};
use crate::engines::engine::{Cause, EngineError, Result};
use crate::error::Class;

/// Options of opening a store.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Memory for decoded objects, in bytes.
    pub cache_bytes: usize,
    /// Whether a commit is durable when the call returns.
    pub is_durable: bool,
    /// Threads that hash a commit.
    pub hash_threads: usize,
    /// Whether chunks are read through the page cache or past it.
    pub access: Access,
}

impl Default for Settings {
    fn default() -> Self {
        let options = Options::new(Arc::new(BtreeIndexes::default()));
        Self {
            cache_bytes: options.cache_bytes,
            is_durable: true,
            hash_threads: options.hash_threads,
            access: options.access,
        }
    }
}

impl Settings {
    fn options(self) -> Options {
        let durability = if self.is_durable { Durability::Each } else { Durability::Buffered };
        Options::new(Arc::new(BtreeIndexes::default()))
            .cache_bytes(self.cache_bytes)
            .hash_threads(self.hash_threads)
            .access(self.access)
            .durability(durability)
    }
}

/// Opens the store in `dir` of a disk, or makes one where nothing is; what is missing of the way to
/// it is made, durably.
///
/// # Errors
/// [`EngineError::Environment`] if another process holds it or the system does not let us,
/// [`EngineError::Refused`] if the directory is something else, which is left as it is.
pub fn open_or_create(disk: &Arc<dyn Disk>, dir: &Path, settings: Settings) -> Result<Store> {
    let options = settings.options();
    if store::is_store(disk.as_ref(), dir)? {
        return Ok(Store::open(Arc::clone(disk), dir, &options)?);
    }

    if disk.kind(dir).map_err(Error::from)?.is_some() {
        // An interrupted creation leaves these.
        let is_ours =
            |name: &str| name == "lock" || name == "control.new" || name == "chunk-00000000";
        let entries = disk.list(dir).map_err(Error::from)?;
        if let Some(entry) = entries.iter().find(|entry| !is_ours(&entry.name)) {
            let dir = dir.display();
            let name = &entry.name;
            let message =
                format!("{dir} is not a context store of Terrane: the directory has {name:?}");
            return Err(EngineError::Refused(message.into()));
        }
    }

    // Only the parent is made here: creating the store makes its directory.
    create_parents(disk.as_ref(), dir).map_err(Error::from)?;
    Ok(Store::create(Arc::clone(disk), dir, &options)?)
}

/// A store in a directory.
#[derive(Debug)]
pub struct ContextStore {
    store: Arc<Store>,
}

/// A tree of a [`ContextStore`].
#[derive(Debug)]
pub struct StoredContext {
    store: Arc<Store>,
    context: store::Context,
}

impl ContextStore {
    /// Opens the store in `dir`, which is made if it is missing. Only one process can hold it.
    ///
    /// # Errors
    /// Those of [`open_or_create`].
    pub fn open(dir: &Path, settings: Settings) -> Result<Self> {
        let disk: Arc<dyn Disk> = RealDisk::auto();
        Ok(Self::new(open_or_create(&disk, dir, settings)?))
    }

    /// An engine over a store.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self { store: Arc::new(store) }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The empty context.
    #[must_use]
    pub fn empty_context(&self) -> StoredContext {
        StoredContext { store: Arc::clone(&self.store), context: self.store.empty() }
    }
}

impl StoredContext {
    /// Commits like [`Context::commit`] without parents, and sets the head of a branch to the
    /// commit: both or neither, with one sync.
    ///
    /// # Errors
    /// Those of [`Context::commit`].
    pub fn commit_to(&mut self, branch: &[u8], info: &CommitInfo<'_>) -> Result<CommitHash> {
        // The branch gives the parent.
        self.context.set_parents(Vec::new());
        let CommitInfo { date, author, message } = *info;
        let hash = self.store.commit_to(branch, &self.context, &Meta { date, author, message })?;
        Ok(CommitHash(hash.0))
    }

    /// Writes what was changed, without a commit, and forgets what was loaded, so that a tree of
    /// any size can be built in little memory.
    ///
    /// # Errors
    /// Those of the store.
    pub fn flush(&mut self) -> Result<()> {
        self.store.flush(self.context.tree())?;
        // Parts that were flushed are read again when they are needed.
        self.context.clear();
        Ok(())
    }
}

impl ContextEngine for ContextStore {
    fn name(&self) -> &'static str {
        "context"
    }

    fn has_tezos_hashes(&self) -> bool {
        true
    }

    fn empty(&self) -> Box<dyn Context> {
        Box::new(self.empty_context())
    }

    fn checkout(&self, commit: &CommitHash) -> Result<Option<Box<dyn Context>>> {
        let found = self.store.checkout(&Hash(commit.0))?;
        Ok(found.map(|context| {
            let store = Arc::clone(&self.store);
            Box::new(StoredContext { store, context }) as Box<dyn Context>
        }))
    }

    fn collect(&mut self, newest: u64) -> Result<()> {
        self.store.collect(&Retain::newest(newest), &mut |_| GcPace::Go)?;
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        Ok(self.store.close()?)
    }
}

impl Context for StoredContext {
    fn fork(&self) -> Box<dyn Context> {
        Box::new(Self { store: Arc::clone(&self.store), context: self.context.clone() })
    }

    fn prefetch(&mut self, paths: &[Steps<'_>]) {
        let paths: Vec<Vec<&[u8]>> = paths.iter().map(|path| path.iter().collect()).collect();
        self.context.prefetch(&paths, Prefetch::Target);
    }

    fn mem(&mut self, path: Steps<'_>) -> Result<bool> {
        Ok(path.with_list(|steps| self.context.mem(steps))?)
    }

    fn mem_tree(&mut self, path: Steps<'_>) -> Result<bool> {
        Ok(path.with_list(|steps| self.context.mem_tree(steps))?)
    }

    fn find(&mut self, path: Steps<'_>, value: &mut Vec<u8>) -> Result<bool> {
        let Some(found) = path.with_list(|steps| self.context.find(steps))? else {
            return Ok(false);
        };
        *value = found;
        Ok(true)
    }

    fn add(&mut self, path: Steps<'_>, value: &[u8]) -> Result<()> {
        path.with_list(|steps| self.context.add(steps, value))?;
        Ok(())
    }

    fn remove(&mut self, path: Steps<'_>) -> Result<()> {
        path.with_list(|steps| self.context.remove(steps))?;
        Ok(())
    }

    fn copy(&mut self, from: Steps<'_>, to: Steps<'_>) -> Result<bool> {
        let Some(tree) = from.with_list(|steps| self.context.find_tree(steps))? else {
            return Ok(false);
        };
        to.with_list(|steps| self.context.add_tree(steps, &tree))?;
        Ok(true)
    }

    fn commit(&mut self, info: &CommitInfo<'_>, parents: &[CommitHash]) -> Result<CommitHash> {
        self.context.set_parents(parents.iter().map(|parent| Hash(parent.0)).collect());
        let CommitInfo { date, author, message } = *info;
        let hash = self.store.commit(&self.context, &Meta { date, author, message })?;
        Ok(CommitHash(hash.0))
    }
}

impl From<Error> for EngineError {
    fn from(error: Error) -> Self {
        let class: fn(Cause) -> Self = match Class::from(&error) {
            Class::Check => Self::Corrupt,
            Class::Input => Self::Refused,
            Class::Environment | Class::Interrupted => Self::Environment,
        };
        class(Box::new(error))
    }
}
