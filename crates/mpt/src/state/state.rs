//! The public handle: opening, reads at the tip, reorgs.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::thread;

use alloy_primitives::{Address, B256, Bytes, U256};
use terrane_io::{Disk, RealDisk};
use terrane_lsm::{Store, StoreOptions, TableConfig, Ticket, WriteBatch};

use crate::base::account::Account;
use crate::base::error::{Error, Result};
use crate::base::keys::{hash_addresses, hash_slots};
use crate::base::workers::Workers;
use crate::scheme::keccak_mpt::EMPTY_ROOT;
use crate::state::changes::{ChangeSet, Fate, slot_value};
use crate::state::commit::{Keep, prepare, stored_root};
use crate::state::known::Known;
use crate::state::node_cache::{NODE_CACHE_BYTES, NodeCache, NodeChanges};
use crate::state::source::{Source, read_accounts, read_slots, value, values};
use crate::state::tables::{
    Block, EntryKind, FLOOR_KEY, TIP_KEY, Tables, Views, height_key, height_of, histories_of,
    is_of_nodes, read_change, slot_key,
};

/// Most threads unless more are asked for: a block has work for few.
const THREADS_MAX: usize = 4;

/// Options of a [`State`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Options of its store: memory, durability, log.
    pub store: StoreOptions,
    /// Configuration of the tables that are made. A state keeps that which its tables were made
    /// with, or were given since.
    pub tables: TableConfig,
    /// Whether blocks keep what reads and proofs at older heights need ([`State::at`]). A history
    /// begins with the first block that keeps it, and ends with the first that does not. Off unless
    /// set.
    pub history: bool,
    /// Threads that encode and hash the nodes of a block, the caller included. As many as the
    /// machine has, four at most, unless set.
    pub threads: usize,
    /// Bytes of memory for nodes that blocks have visited, beside the memory of the store. Blocks
    /// look these nodes up in no table. 64 MiB unless set; 0 keeps none.
    pub node_cache: u64,
}

/// Threads of a state unless set otherwise, the caller included.
pub(crate) fn threads_default() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX)
}

impl Default for Options {
    fn default() -> Self {
        let threads = threads_default();
        Self {
            store: StoreOptions::default(),
            tables: TableConfig::default(),
            history: false,
            threads,
            node_cache: NODE_CACHE_BYTES,
        }
    }
}

impl Options {
    terrane_io::setters! {
        store: StoreOptions,
        tables: TableConfig,
        history: bool,
        threads: usize,
        node_cache: u64,
    }
}

/// The state of a chain at its last block, in one store of LSM tables.
///
/// ```
/// use terrane_mpt::{Account, Address, B256, Options, State, U256};
///
/// # let folder = tempfile::tempdir()?;
/// let mut state = State::open_dir(folder.path(), &Options::default())?;
/// let alice = Address::repeat_byte(1);
///
/// let mut block = state.block(0, B256::ZERO)?;
/// block.set_account(alice, &Account::new(0, U256::from(7)));
/// let committed = block.commit(B256::repeat_byte(9))?;
/// committed.ticket.wait()?; // durable from here on
///
/// assert_eq!(state.account(&alice)?, Some(Account::new(0, U256::from(7))));
/// assert_eq!(state.root(), committed.block.root);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct State {
    pub(crate) tables: Tables,
    /// The tip of the last commit.
    pub(crate) tip: Option<Block>,
    pub(crate) has_history: bool,
    pub(crate) workers: Workers,
    /// Nodes of the tip.
    pub(crate) nodes: NodeCache,
}

/// A block that was committed.
#[derive(Debug, Clone)]
#[must_use = "the commit survives a loss of power only once its ticket was waited for"]
#[non_exhaustive]
pub struct Committed {
    /// The tip from now on.
    pub block: Block,
    /// Waits until the commit is durable.
    pub ticket: Ticket,
}

impl State {
    /// Opens a state on the real disk, or makes one if the directory is empty.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_dir(dir: impl AsRef<FilePath>, options: &Options) -> Result<Self> {
        Self::open(RealDisk::auto(), dir.as_ref(), options)
    }

    /// Opens the state in `dir`, or makes one if the directory is empty.
    ///
    /// Cost: that of opening a store, and a few lookups.
    ///
    /// # Errors
    /// [`Error::Store`]; [`Error::NotAState`] for a store of other tables;
    /// [`Error::UnknownVersion`]; [`Error::ImportUnfinished`]; [`Error::Corruption`] if nodes and
    /// tip disagree, which
    /// [`rebuild`](Self::rebuild) of a state opened with [`open_unchecked`](Self::open_unchecked)
    /// may mend.
    pub fn open(disk: Arc<dyn Disk>, dir: &FilePath, options: &Options) -> Result<Self> {
        let state = Self::open_unchecked(disk, dir, options)?;
        if state.tables.views()?.is_importing()? {
            return Err(Error::ImportUnfinished);
        }
        let root = stored_root(&state.tables.views()?)?;
        if root != state.root() {
            let path = crate::base::path::Path::default();
            return Err(Error::corruption(&path, "a root that is not that of the tip"));
        }
        Ok(state)
    }

    /// Opens a state without comparing its root with its nodes, to verify or rebuild it.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open) but [`Error::Corruption`] and
    /// [`Error::ImportUnfinished`].
    pub fn open_unchecked(disk: Arc<dyn Disk>, dir: &FilePath, options: &Options) -> Result<Self> {
        let tables = Tables::open(disk, dir, (&options.store, &options.tables))?;
        let tip = tables.views()?.tip()?;
        Ok(Self::new(tables, tip, options))
    }

    /// The state of tables with a tip.
    pub(crate) fn new(tables: Tables, tip: Option<Block>, options: &Options) -> Self {
        let workers = Workers::new(options.threads);
        let nodes = NodeCache::new(options.node_cache);
        Self { tables, tip, has_history: options.history, workers, nodes }
    }

    /// The store, for backups, statistics and memory. Tables of a state are written by the state
    /// alone.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.tables.store
    }

    /// The last block; `None` before the first. Cost: no I/O.
    #[must_use]
    pub fn tip(&self) -> Option<Block> {
        self.tip
    }

    /// The root after the last block. Cost: no I/O.
    #[must_use]
    pub fn root(&self) -> B256 {
        self.tip.map_or(EMPTY_ROOT, |tip| tip.root)
    }

    /// The block at a height, if the state knows it.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptEntry`].
    pub fn block_at(&self, height: u64) -> Result<Option<Block>> {
        self.tables.views()?.block(height)
    }

    /// An account at the tip. Cost: one lookup.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptAccount`].
    pub fn account(&self, address: &Address) -> Result<Option<Account>> {
        Ok(self.accounts(std::slice::from_ref(address))?.pop().flatten())
    }

    /// Accounts at the tip, in the order of the addresses. Cost: one batch of lookups.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptAccount`].
    pub fn accounts(&self, addresses: &[Address]) -> Result<Vec<Option<Account>>> {
        let view = self.tables.accounts.view()?;
        read_accounts(values(&view, &hash_addresses(addresses), &self.workers)?)
    }

    /// A slot at the tip; zero if it has no entry. Cost: one lookup.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptEntry`].
    pub fn slot(&self, address: &Address, slot: &B256) -> Result<U256> {
        Ok(self.slots(&[(*address, *slot)])?.pop().unwrap_or_default())
    }

    /// Slots at the tip, in the given order. Cost: one batch of lookups.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptEntry`].
    pub fn slots(&self, slots: &[(Address, B256)]) -> Result<Vec<U256>> {
        let keys: Vec<_> = hash_slots(slots).map(|(owner, slot)| slot_key(&owner, &slot)).collect();
        let view = self.tables.slots.view()?;
        read_slots(values(&view, &keys, &self.workers)?)
    }

    /// Code by its hash, if the state has it. The hash of no code has the empty code.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn code(&self, hash: &B256) -> Result<Option<Bytes>> {
        if *hash == crate::base::account::EMPTY_CODE_HASH {
            return Ok(Some(Bytes::new()));
        }
        Ok(value(self.tables.code.get(hash.as_slice())?).map(Bytes::from))
    }

    /// Number of accounts at the tip. Cost: reads their keys.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn count_accounts(&self) -> Result<u64> {
        Ok(self.tables.accounts.view()?.count_exact()?)
    }

    /// Goes back to the block at `height`, in one commit.
    ///
    /// Cost: reads the changes of the blocks above, and commits as many. Memory in proportion.
    ///
    /// # Errors
    /// [`Error::UnknownHeight`] if there is no such block, or if a block above it has no changes
    /// any more; [`Error::RootMismatch`] if the way back leads to another root, after which nothing
    /// was changed; the errors of [`BlockBatch::commit`](crate::BlockBatch::commit).
    pub fn reorg_to(&mut self, height: u64) -> Result<Committed> {
        let views = self.tables.views()?;
        let tip = self.tip.ok_or(Error::UnknownHeight { height })?;
        let target = views.block(height)?.filter(|target| target.height <= tip.height);
        let target = target.ok_or(Error::UnknownHeight { height })?;
        if views.reorg_floor()?.is_some_and(|floor| height < floor) {
            return Err(Error::UnknownHeight { height });
        }

        let changes = changes_above(&views, height)?;
        let source = Source::tip(&views).on(&self.workers);
        let values = (&mut Known::default(), self.nodes.at(tip.root));
        let mut prepared = prepare(&self.tables, source, values, changes, Keep::Nothing)?;
        if prepared.root != target.root {
            return Err(Error::RootMismatch { expected: target.root, computed: prepared.root });
        }
        if height < tip.height {
            self.cut_history(&views, height, &mut prepared.batch)?;
            let above = height_key(height + 1);
            prepared.batch.delete_range(&self.tables.changes, &above[..]..);
            prepared.batch.delete_range(&self.tables.blocks, &above[..]..);
        }
        self.write(&views, prepared.batch, prepared.nodes, target)
    }

    /// Takes what the blocks above a height have left out of the histories.
    fn cut_history(&self, views: &Views, height: u64, batch: &mut WriteBatch) -> Result<()> {
        if views.value_history.cursor()?.peek()?.is_none() {
            return Ok(());
        }
        let corrupt = || Error::corrupt_entry("a change of a block");
        let mut cursor = views.changes.cursor_at(&height_key(height + 1))?;
        while let Some(record) = cursor.next_ref()? {
            let (height, change) = height_of(record.key).ok_or_else(corrupt)?;
            let change = (change, record.value);
            histories_of(&self.tables, change, height, |table, key| batch.delete(table, key))
                .ok_or_else(corrupt)?;
        }
        if views.history_floor()?.is_some_and(|floor| height < floor) {
            batch.insert(&self.tables.meta, FLOOR_KEY, height.to_le_bytes());
        }
        Ok(())
    }

    /// Writes a batch with a tip, unless somebody has written to the store since the views.
    pub(crate) fn write(
        &mut self,
        views: &Views,
        mut batch: WriteBatch,
        nodes: NodeChanges,
        block: Block,
    ) -> Result<Committed> {
        batch.insert(&self.tables.meta, TIP_KEY, block.tip_bytes());
        let ticket = self.tables.store.write_if(&batch, views.commit)?;
        self.nodes.advance(self.root(), nodes, block.root);
        self.tip = Some(block);
        Ok(Committed { block, ticket })
    }

    /// Ends the state and its store.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn close(self) -> Result<()> {
        Ok(self.tables.store.close()?)
    }
}

/// The changes that lead back to a height: of each entry the value before the first change above.
fn changes_above(views: &Views, height: u64) -> Result<ChangeSet> {
    let corrupt = || Error::corrupt_entry("a change of a block");
    let mut changes = ChangeSet::default();
    let Some(first) = height.checked_add(1) else { return Ok(changes) };
    let mut cursor = views.changes.cursor_at(&height_key(first))?;

    while let Some(record) = cursor.next_ref()? {
        let (_, key) = height_of(record.key).ok_or_else(corrupt)?;
        if is_of_nodes(key) {
            continue;
        }
        let (kind, key, before) = read_change(key, record.value).ok_or_else(corrupt)?;
        let (first, rest) = key.split_at(B256::len_bytes());
        let hash = B256::from_slice(first);
        match kind {
            EntryKind::Account => {
                let change = changes.accounts.entry(hash).or_default();
                if matches!(change.account, Fate::Kept) {
                    let before = before.map(Account::from_slim).transpose()?;
                    change.account = before.map_or(Fate::Gone, Fate::Set);
                }
            }
            EntryKind::Slot => {
                let before = match before {
                    Some(bytes) => slot_value(bytes).ok_or_else(corrupt)?,
                    None => U256::ZERO,
                };
                let slots = &mut changes.accounts.entry(hash).or_default().slots;
                slots.entry(B256::from_slice(rest)).or_insert(before);
            }
            EntryKind::Code => {
                let before = before.map(<[u8]>::to_vec);
                changes.codes.entry(hash).or_insert(before);
            }
        }
    }
    Ok(changes)
}
