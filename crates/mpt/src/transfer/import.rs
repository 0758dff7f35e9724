//! The bulk import: sorted accounts, each with its sorted slots, in one pass.
//!
//! Storage tries wait until there are many nodes to hash, and the accounts of these tries wait with
//! them. Entries and the nodes that they finish go to the store in batches, after which no account
//! waits. After a crash, the accounts that are stored are whole, and slots above the last of them
//! are those of the account that was under way.

use std::path::Path as FilePath;
use std::sync::Arc;

use alloy_primitives::{B256, U256, keccak256};
use terrane_io::Disk;
use terrane_lsm::WriteBatch;

use crate::base::account::{Account, EMPTY_STORAGE_ROOT};
use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::proof::range_proof::{AccountRange, StorageRange};
use crate::scheme::keccak_mpt::KeccakMpt;
use crate::state::changes::{slot_bytes, slot_leaf, slot_value};
use crate::state::state::{Committed, Options, State};
use crate::state::tables::{
    Block, FORMAT_KEY, IMPORT_KEY, STATE_VERSION, TIP_KEY, Tables, height_key, slot_key,
    storage_node_key,
};
use crate::trie::builder::TrieBuilder;
use crate::trie::record::Record;

/// Bytes of a batch after which it goes to the store.
const BATCH_BYTES: usize = 4 << 20;

/// Nodes of tries, and accounts, that wait before they are hashed.
const NODES_TOGETHER: usize = 1024;

/// An import of a whole state into an empty directory.
///
/// Accounts come in the order of the hashes of their addresses, each with the root of its storage,
/// and behind it its slots in the order of their hashes. [`finish`](Self::finish) makes the state.
/// An import that ended early goes on where [`position`](Self::position) says.
///
/// ```
/// use terrane_io::RealDisk;
/// use terrane_mpt::{Account, B256, Import, Options, U256};
///
/// # let folder = tempfile::tempdir()?;
/// let mut import = Import::open(RealDisk::auto(), folder.path(), &Options::default())?;
/// for byte in 1..=9 {
///     import.push_account(B256::repeat_byte(byte), &Account::new(0, U256::from(byte)))?;
/// }
/// let (state, committed) = import.finish(0, B256::ZERO, None)?;
/// committed.ticket.wait()?;
/// assert_eq!(state.root(), committed.block.root);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Import {
    tables: Tables,
    /// Those of the state that the import becomes.
    options: Options,
    accounts: TrieBuilder<KeccakMpt>,
    /// The storage tries of the accounts that wait, and of the one whose slots come.
    storage: TrieBuilder<KeccakMpt>,
    /// Accounts of which all slots have come, and whose storage roots are not compared yet.
    waiting: Vec<(B256, Account)>,
    last_account: Option<B256>,
    pending: Option<Pending>,
    batch: WriteBatch,
    pushed: u64,
    /// The account whose slots were not those of its storage root: the import is of no use.
    mismatch: Option<Mismatch>,
}

/// Slots that are not those of their account.
#[derive(Debug, Clone, Copy)]
struct Mismatch {
    account: B256,
    expected: B256,
    computed: B256,
}

/// The account whose slots come.
#[derive(Debug, Clone, Copy)]
struct Pending {
    hash: B256,
    /// `None` after resuming, until the account comes again.
    account: Option<Account>,
    last_slot: Option<B256>,
}

/// Where an import goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportPosition {
    /// The last account that is whole; the next one to push is above it.
    pub last_account: Option<B256>,
    /// The account to push next, and the last of its slots that is there: the slots above it
    /// follow. `None` if no account was under way.
    pub pending: Option<(B256, B256)>,
}

impl ImportPosition {
    /// The first hash of an address that is wanted, as the start of a range; `None` if there is
    /// none above what is there.
    #[must_use]
    pub fn next_account(&self) -> Option<B256> {
        match (self.pending, self.last_account) {
            (Some((pending, _)), _) => Some(pending),
            (None, Some(last)) => after(last),
            (None, None) => Some(B256::ZERO),
        }
    }
}

impl Import {
    /// Begins an import in an empty directory, or goes on with one.
    ///
    /// Cost: reads the accounts that are there, and the slots of the account under way.
    ///
    /// # Errors
    /// [`Error::NotEmpty`] for a state with blocks; [`Error::Store`]; [`Error::NotAState`];
    /// [`Error::UnknownVersion`]; [`Error::CorruptEntry`], [`Error::CorruptAccount`].
    pub fn open(disk: Arc<dyn Disk>, dir: &FilePath, options: &Options) -> Result<Self> {
        let tables = Tables::open(disk, dir, (&options.store, &options.tables))?;
        let views = tables.views()?;
        if views.tip()?.is_some() {
            return Err(Error::NotEmpty);
        }
        if !views.is_importing()? {
            let mut batch = WriteBatch::new();
            batch.insert(&tables.meta, FORMAT_KEY, STATE_VERSION.to_le_bytes());
            batch.insert(&tables.meta, IMPORT_KEY, []);
            tables.store.write_if(&batch, views.commit)?.wait()?;
        }

        let mut import = Self {
            tables,
            options: options.clone(),
            accounts: TrieBuilder::default(),
            storage: TrieBuilder::default(),
            waiting: Vec::new(),
            last_account: None,
            pending: None,
            batch: WriteBatch::new(),
            pushed: 0,
            mismatch: None,
        };
        import.resume()?;
        Ok(import)
    }

    /// Builds the open branches of the tries again, from what is stored.
    fn resume(&mut self) -> Result<()> {
        let views = self.tables.views()?;
        let mut accounts = views.accounts.cursor()?;
        while let Some(record) = accounts.next_ref()? {
            let hash = B256::try_from(record.key);
            let hash = hash.map_err(|_| Error::corrupt_entry("the key of an account"))?;
            let account = Account::from_slim(record.value)?;
            self.accounts.push(hash.as_slice(), &account.leaf_value())?;
            // These nodes were written with the accounts.
            if NODES_TOGETHER <= self.accounts.waiting() {
                drop(self.accounts.take_nodes());
            }
            self.last_account = Some(hash);
        }
        drop(self.accounts.take_nodes());

        let corrupt = || Error::corrupt_entry("a slot");
        // The slots of whole accounts are below those of the account under way.
        let last = self.last_account.unwrap_or_default();
        let mut slots = views.slots.cursor_at(&slot_key(&last, &B256::repeat_byte(0xff)))?;
        while let Some(record) = slots.next_ref()? {
            let (owner, slot) = record.key.split_at_checked(32).ok_or_else(corrupt)?;
            let owner = B256::from_slice(owner);
            let slot = B256::try_from(slot).map_err(|_| corrupt())?;
            if self.last_account == Some(owner) {
                continue;
            }
            slot_value(record.value).ok_or_else(corrupt)?;
            let pending = self.pending.get_or_insert_with(|| Pending::new(owner, None));
            if pending.hash != owner {
                return Err(Error::corrupt_entry("slots of several accounts under way"));
            }
            self.storage.push(slot.as_slice(), &slot_leaf(record.value))?;
            if NODES_TOGETHER <= self.storage.waiting() {
                drop(self.storage.take_nodes());
            }
            pending.last_slot = Some(slot);
        }
        drop(self.storage.take_nodes());
        Ok(())
    }

    /// Where the import goes on. Of what was pushed since it was opened, everything counts.
    #[must_use]
    pub fn position(&self) -> ImportPosition {
        let pending = self.pending.as_ref();
        let pending = pending.and_then(|pending| Some((pending.hash, pending.last_slot?)));
        ImportPosition { last_account: self.last_account, pending }
    }

    /// Adds the next account, whose slots follow. An account that was under way when the import
    /// ended is pushed again.
    ///
    /// # Errors
    /// [`Error::KeyOrder`] unless the hash is above that of the account before;
    /// [`Error::ImportPosition`] if another account was under way;
    /// [`Error::StorageRootMismatch`] if the slots of an account before are not those of its
    /// storage root: the directory is of no use then. Roots are compared many together, at the
    /// latest by [`sync`](Self::sync). [`Error::Store`].
    pub fn push_account(&mut self, hash: B256, account: &Account) -> Result<()> {
        self.check_usable()?;
        if let Some(pending) = &mut self.pending
            && pending.account.is_none()
        {
            if pending.hash != hash {
                return Err(Error::ImportPosition { account: pending.hash });
            }
            pending.account = Some(*account);
            return Ok(());
        }
        let last = self.pending.as_ref().map(|pending| pending.hash).or(self.last_account);
        if last.is_some_and(|last| hash <= last) {
            return Err(Error::KeyOrder { index: self.pushed as usize });
        }

        self.finish_account()?;
        self.pending = Some(Pending::new(hash, Some(*account)));
        self.pushed += 1;
        self.flush(BATCH_BYTES)
    }

    /// Adds the next slot of the account that was pushed last.
    ///
    /// # Errors
    /// [`Error::KeyOrder`] unless the hash is above that of the slot before;
    /// [`Error::EmptyValue`] for zero; [`Error::SlotWithoutAccount`] before the first account;
    /// [`Error::ImportPosition`] before the account under way was pushed again; [`Error::Store`].
    pub fn push_slot(&mut self, slot: B256, value: U256) -> Result<()> {
        self.check_usable()?;
        let index = self.pushed as usize;
        let none = Error::SlotWithoutAccount { account: self.last_account.unwrap_or_default() };
        let pending = self.pending.as_mut().ok_or(none)?;
        if pending.account.is_none() {
            return Err(Error::ImportPosition { account: pending.hash });
        }
        if value.is_zero() {
            return Err(Error::EmptyValue { index });
        }
        if pending.last_slot.is_some_and(|last| slot <= last) {
            return Err(Error::KeyOrder { index });
        }

        let bytes = slot_bytes(&value);
        self.storage.push(slot.as_slice(), &slot_leaf(&bytes))?;
        pending.last_slot = Some(slot);
        self.batch.insert(&self.tables.slots, slot_key(&pending.hash, &slot), bytes);
        self.pushed += 1;
        self.settle(NODES_TOGETHER)?;
        self.flush(BATCH_BYTES)
    }

    /// Adds code, at any time. Returns its hash.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn push_code(&mut self, code: &[u8]) -> Result<B256> {
        let hash = keccak256(code);
        if !code.is_empty() {
            self.batch.insert(&self.tables.code, hash, code);
        }
        self.flush(BATCH_BYTES)?;
        Ok(hash)
    }

    /// Adds a range of accounts of a state of `root`, once it is proved, with the slots of each
    /// account, which `storage` brings: it is called with the account and the first slot that is
    /// wanted. Returns whether the state has accounts above.
    ///
    /// Accounts and slots that the import has are passed over, so a range may be pushed again.
    /// After a crash, the range begins at [`ImportPosition::next_account`] or below it.
    ///
    /// # Errors
    /// [`Error::Range`] if a range proves nothing, or `storage` brings another one than asked for;
    /// the errors of `storage`, [`push_account`](Self::push_account) and
    /// [`push_slot`](Self::push_slot).
    pub fn push_account_range(
        &mut self,
        root: B256,
        range: &AccountRange,
        storage: &mut dyn FnMut(B256, B256) -> Result<StorageRange>,
    ) -> Result<bool> {
        let has_more = range.verify(root).map_err(|error| Error::Range(error.into()))?;
        for (hash, account) in &range.accounts {
            if self.last_account.is_some_and(|last| *hash <= last) {
                continue;
            }
            // After an error of `storage`, the account is under way already.
            let is_under_way = self
                .pending
                .as_ref()
                .is_some_and(|pending| pending.hash == *hash && pending.account.is_some());
            if !is_under_way {
                self.push_account(*hash, account)?;
            }
            self.push_storage(*hash, account.storage_root, storage)?;
        }
        Ok(has_more)
    }

    /// Adds the slots of an account that were not added before.
    fn push_storage(
        &mut self,
        account: B256,
        root: B256,
        storage: &mut dyn FnMut(B256, B256) -> Result<StorageRange>,
    ) -> Result<()> {
        let last = |import: &Self| import.pending.as_ref().and_then(|pending| pending.last_slot);
        let mut start = match last(self) {
            None => Some(B256::ZERO),
            Some(last) => after(last),
        };
        while let Some(first) = start.filter(|_| root != EMPTY_STORAGE_ROOT) {
            let range = storage(account, first)?;
            if (range.account, range.start) != (account, first) {
                return Err(Error::Range("another range than was asked for".into()));
            }
            let has_more = range.verify(root).map_err(|error| Error::Range(error.into()))?;
            for (slot, value) in &range.slots {
                self.push_slot(*slot, *value)?;
            }
            // A proved range that has more has slots, so the loop ends.
            start = range.slots.last().filter(|_| has_more).and_then(|(slot, _)| after(*slot));
        }
        Ok(())
    }

    /// Writes what was pushed, and waits until it is durable.
    ///
    /// # Errors
    /// [`Error::StorageRootMismatch`]; [`Error::Store`].
    pub fn sync(&mut self) -> Result<()> {
        self.check_usable()?;
        self.flush(0)?;
        Ok(self.tables.store.sync()?)
    }

    /// Writes what was pushed and closes the store, to go on with the import another time.
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync).
    pub fn close(mut self) -> Result<()> {
        self.sync()?;
        Ok(self.tables.store.close()?)
    }

    /// Ends the import: the state is that after the block of this height and hash. With an
    /// expected root, it must be the root of all accounts.
    ///
    /// # Errors
    /// [`Error::RootMismatch`]; the errors of [`push_account`](Self::push_account). The state is
    /// still an unfinished import then.
    pub fn finish(
        mut self,
        height: u64,
        hash: B256,
        expected: Option<B256>,
    ) -> Result<(State, Committed)> {
        self.check_usable()?;
        if let Some(Pending { hash, account: None, .. }) = self.pending {
            return Err(Error::ImportPosition { account: hash });
        }
        self.finish_account()?;
        self.settle(0)?;
        let (root, nodes) = std::mem::take(&mut self.accounts).finish();
        if let Some(expected) = expected.filter(|expected| *expected != root) {
            return Err(Error::RootMismatch { expected, computed: root });
        }

        self.write_account_nodes(nodes);
        let Self { tables, options, mut batch, .. } = self;
        let block = Block { height, hash, root };
        batch.insert(&tables.blocks, height_key(height), block.block_bytes());
        batch.insert(&tables.meta, TIP_KEY, block.tip_bytes());
        batch.delete(&tables.meta, IMPORT_KEY);
        let ticket = tables.store.write(&batch)?;
        Ok((State::new(tables, Some(block), &options), Committed { block, ticket }))
    }

    /// Refuses to go on behind slots that are not those of their account.
    fn check_usable(&self) -> Result<()> {
        match self.mismatch {
            None => Ok(()),
            Some(Mismatch { account, expected, computed }) => {
                Err(Error::StorageRootMismatch { account, expected, computed })
            }
        }
    }

    /// Ends the slots of the account under way, which waits until its storage root is compared.
    fn finish_account(&mut self) -> Result<()> {
        let Some(Pending { hash, account, .. }) = self.pending.take() else { return Ok(()) };
        let account = account.ok_or(Error::ImportPosition { account: hash })?;
        self.storage.end_trie();
        self.waiting.push((hash, account));
        self.last_account = Some(hash);
        self.settle(NODES_TOGETHER)
    }

    /// If so many nodes and accounts wait: hashes the nodes, compares the roots of the accounts
    /// that wait with theirs, and adds these accounts and all finished nodes to the batch.
    fn settle(&mut self, least: usize) -> Result<()> {
        if least <= self.storage.waiting() + self.waiting.len() {
            let built = self.storage.take_tries();
            debug_assert_eq!(built.len(), self.waiting.len(), "a trie of each account");
            let waiting = std::mem::take(&mut self.waiting);
            for ((computed, nodes), (hash, account)) in built.into_iter().zip(waiting) {
                if computed != account.storage_root {
                    // Slots of the account may be in the store, so nothing may be built on them.
                    let expected = account.storage_root;
                    self.mismatch = Some(Mismatch { account: hash, expected, computed });
                    self.batch.clear();
                    return self.check_usable();
                }
                self.write_storage_nodes(&hash, nodes);
                self.batch.insert(&self.tables.accounts, hash, account.to_slim());
                self.accounts.push(hash.as_slice(), &account.leaf_value())?;
            }
            if let Some(Pending { hash, .. }) = self.pending {
                let nodes = self.storage.take_nodes();
                self.write_storage_nodes(&hash, nodes);
            }
        }
        if least <= self.accounts.waiting() {
            let nodes = self.accounts.take_nodes();
            self.write_account_nodes(nodes);
        }
        Ok(())
    }

    fn write_account_nodes(&mut self, nodes: Vec<(Path, Record)>) {
        for (path, record) in nodes {
            self.batch.insert(&self.tables.account_nodes, &path, record.to_bytes());
        }
    }

    fn write_storage_nodes(&mut self, owner: &B256, nodes: Vec<(Path, Record)>) {
        for (path, record) in nodes {
            let key = storage_node_key(owner, &path);
            self.batch.insert(&self.tables.storage_nodes, key, record.to_bytes());
        }
    }

    /// Writes the batch if it has so many bytes.
    fn flush(&mut self, bytes: usize) -> Result<()> {
        let has_more = !self.batch.is_empty() || !self.waiting.is_empty();
        if !has_more || self.batch.bytes() < bytes {
            return Ok(());
        }
        // Accounts go with their slots, and nodes with their entries: resuming does not write them
        // again.
        self.settle(0)?;
        // A later commit, or the sync at the end, makes it durable.
        drop(self.tables.store.write(&self.batch)?);
        self.batch.clear();
        Ok(())
    }
}

impl Pending {
    fn new(hash: B256, account: Option<Account>) -> Self {
        Self { hash, account, last_slot: None }
    }
}

/// The next hash, if there is one.
pub(crate) fn after(hash: B256) -> Option<B256> {
    let next = U256::from_be_bytes(hash.0).checked_add(U256::from(1))?;
    Some(B256::from(next))
}
