//! State of blocks in a radix store. Rollbacks use the versions of the store.
//!
//! The state is the tree `state`. The metadata map of the store has
//!
//! | key                           | value                                                             |
//! |-------------------------------|-------------------------------------------------------------------|
//! | `replay changes`              | version of this format, one byte, now 1                           |
//! | `block ` ‖ block, u64-BE      | the block before, u64-LE (the first block ever: its own number) ‖ |
//! |                               | whether the block holds a version of its root, one byte, 0 or 1 ‖ |
//! |                               | the root, 32 bytes ‖ the note: bytes of the replay's own          |
//!
//! One transaction commits a block, its entry of the map, and the removal of forgotten blocks, so a
//! store never has a part of a block.
//!
//! Invariants:
//!
//! * For each root, the number of kept blocks that hold a version equals the number of versions of
//!   the tree. The oldest kept block of a root holds a version, unless the root is empty.
//! * A block without a change creates no version. If the block that holds its root is forgotten,
//!   the next block with that root inherits the version.

use std::collections::{BTreeMap, VecDeque};

use terrane::kv::{self, Durability, VALUE_BYTES_MAX};
use terrane::radix::{
    self, ADDRESS_BYTES_MAX, Address, Change, Leaves, Order, PruneOptions, Pruned, Root, Store,
    Transaction, Tree,
};

use super::blocks::Ledger;
use super::history::{Error, NetChange, Result, Tip};
use crate::engines::engine::{Cause, Cursor, EngineError, Entry, State};
use crate::error::Class;
use crate::hex;

/// Tree of the state.
const TREE: &str = "state";
/// Key of the version of the format in the metadata map.
const FORMAT_KEY: &[u8] = b"replay changes";
/// Version of the format.
const FORMAT_VERSION: u8 = 1;
/// Prefix of the keys of blocks in the metadata map.
const BLOCK: &[u8] = b"block ";
/// Blocks that are undone in one transaction.
const UNDONE_AT_ONCE: usize = 256;
/// Bytes of a leaf beside its value at most.
const LEAF_HEAD_BYTES: usize = 4096;

/// Entry of a block in the metadata map, without its note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    number: u64,
    before: u64,
    holds_version: bool,
    root: Root,
}

/// State of blocks in a radix store.
#[derive(Debug)]
pub struct RadixLedger {
    store: Store,
    state: RadixState,
    tip: Option<Tip>,
    /// Ascending; the last one is the tip.
    kept: VecDeque<Block>,
    keep_max: Option<u64>,
    /// Whether the database may hold commits that are not durable.
    unsaved: bool,
}

/// The entries of one root.
#[derive(Debug)]
struct RadixState {
    tree: Tree,
    root: Root,
}

struct RadixCursor {
    leaves: Leaves<'static>,
    /// Entries before it are left out.
    from: Vec<u8>,
}

impl From<radix::Error> for EngineError {
    fn from(error: radix::Error) -> Self {
        classed(Class::from(&error), error)
    }
}

impl From<kv::Error> for EngineError {
    fn from(error: kv::Error) -> Self {
        classed(Class::from(&error), error)
    }
}

fn classed(class: Class, error: impl Into<Cause>) -> EngineError {
    let class: fn(Cause) -> EngineError = match class {
        Class::Check => EngineError::Corrupt,
        Class::Input => EngineError::Refused,
        Class::Environment | Class::Interrupted => EngineError::Environment,
    };
    class(error.into())
}

impl From<radix::Error> for Error {
    fn from(error: radix::Error) -> Self {
        Self::Engine(error.into())
    }
}

#[expect(clippy::big_endian_bytes, reason = "so that key order is block order")]
fn block_key(block: u64) -> Vec<u8> {
    [BLOCK, &block.to_be_bytes()].concat()
}

fn block_number(key: &[u8]) -> Option<u64> {
    key.strip_prefix(BLOCK)?.try_into().map(u64::from_be_bytes).ok()
}

impl Block {
    fn encode(&self, note: &[u8]) -> Vec<u8> {
        let holds = [u8::from(self.holds_version)];
        [&self.before.to_le_bytes(), holds.as_slice(), &self.root.0, note].concat()
    }

    fn parse(number: u64, value: &[u8]) -> Option<(Self, &[u8])> {
        let (&before, rest) = value.split_first_chunk()?;
        let (&holds, rest) = rest.split_first()?;
        let (&root, note) = rest.split_first_chunk()?;
        let before = u64::from_le_bytes(before);
        (holds <= 1).then_some((
            Self { number, before, holds_version: holds == 1, root: radix::NodeHash(root) },
            note,
        ))
    }
}

impl RadixLedger {
    /// Continues from the newest block of a store, or begins with the empty state. The ledger keeps
    /// the newest `keep_max` blocks, or all with `None`.
    ///
    /// # Errors
    /// [`EngineError::Refused`] if the store was not made by a replay; [`Error::Version`],
    /// [`Error::Corrupt`], and those of the store.
    pub fn open(store: Store, keep_max: Option<u64>) -> Result<Self> {
        match store.metadata(FORMAT_KEY)?.as_deref() {
            Some([FORMAT_VERSION]) => {}
            Some([found]) => return Err(Error::Version { found: *found }),
            Some(_) => return Err(Error::Corrupt("its version is missing")),
            None => {
                if !store.trees()?.is_empty() || !store.metadata_entries(&[])?.is_empty() {
                    let message = "the radix store was not made by `terrane replay changes`";
                    return Err(EngineError::Refused(message.into()).into());
                }
                let mut transaction = store.transaction()?;
                transaction.create_tree(TREE)?;
                transaction.set_metadata(FORMAT_KEY, Some(&[FORMAT_VERSION]))?;
                transaction.finish()?;
            }
        }

        // Keys sort by block, so each entry must name the entry before.
        let tree = store.tree(TREE)?;

        let mut kept = VecDeque::<Block>::new();
        let mut tip = None;
        for (key, value) in store.metadata_entries(BLOCK)? {
            let number = block_number(&key).ok_or(Error::Corrupt("a key has a wrong length"))?;
            let (block, note) =
                Block::parse(number, &value).ok_or(Error::Corrupt("a note cannot be read"))?;
            if kept.back().is_some_and(|last| last.number != block.before) {
                return Err(Error::Corrupt("a block is missing between two that are kept"));
            }
            tip = Some(Tip { block: number, note: note.to_vec() });
            kept.push_back(block);
        }

        let root = kept.back().map_or(Root::EMPTY, |block| block.root);
        if !tree.has_root(&root)? {
            return Err(Error::Corrupt("the root of the newest block is not in the tree"));
        }
        let state = RadixState { tree, root };

        Ok(Self { store, state, tip, kept, keep_max, unsaved: false })
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Forgets a block in a transaction. If the block holds a version and `next`, the block after
    /// it, has the same root and no version, `next` inherits the version. Returns whether it did.
    fn forget(
        transaction: &mut Transaction<'_>,
        block: &Block,
        next: Option<&Block>,
    ) -> Result<bool> {
        // The record goes in the transaction that prunes the version, so both are there or neither.
        transaction.set_metadata(&block_key(block.number), None)?;
        if !block.holds_version {
            return Ok(false);
        }

        // The next block has the same root and no version of its own: it takes this one over.
        if let Some(next) = next.filter(|next| next.root == block.root && !next.holds_version) {
            let key = block_key(next.number);
            let value = transaction.metadata(&key)?;
            let parsed = value.as_deref().and_then(|value| Block::parse(next.number, value));
            let (found, note) = parsed.ok_or(Error::Corrupt("a note cannot be read"))?;
            let inherits = Block { holds_version: true, ..found };
            transaction.set_metadata(&key, Some(&inherits.encode(note)))?;
            return Ok(true);
        }

        match transaction.prune(TREE, &block.root, &PruneOptions::default())? {
            Pruned::Removed { .. } | Pruned::Counted(_) => Ok(false),
            _ => Err(Error::Corrupt("the root of a block is not in the tree")),
        }
    }
}

fn address(key: &[u8]) -> std::result::Result<Address, EngineError> {
    Address::new(key).map_err(|why| {
        let text = hex::encode(key);
        radix::Error::InvalidAddress { text, index: None, why }.into()
    })
}

impl Ledger for RadixLedger {
    fn tip(&self) -> Option<&Tip> {
        self.tip.as_ref()
    }

    fn oldest(&self) -> Option<u64> {
        self.kept.front().map(|block| block.number)
    }

    fn kept_below(&self, block: u64) -> Option<u64> {
        self.kept.iter().rev().map(|kept| kept.number).find(|&kept| kept < block)
    }

    fn note(&self, block: u64) -> Result<Vec<u8>> {
        let value = self.store.metadata(&block_key(block))?.ok_or(Error::Unknown { block })?;
        let (_, note) =
            Block::parse(block, &value).ok_or(Error::Corrupt("a note cannot be read"))?;
        Ok(note.to_vec())
    }

    fn state(&self) -> &dyn State {
        &self.state
    }

    fn key_bytes_min(&self) -> usize {
        1
    }

    fn key_bytes_max(&self) -> usize {
        ADDRESS_BYTES_MAX
    }

    fn value_bytes_max(&self) -> usize {
        VALUE_BYTES_MAX - LEAF_HEAD_BYTES
    }

    fn append(&mut self, number: u64, note: Vec<u8>, changes: &[NetChange]) -> Result<()> {
        debug_assert!(self.tip.as_ref().is_none_or(|tip| tip.block < number), "block numbers rise");
        let mut batch = Vec::with_capacity(changes.len());
        for NetChange { key, new, .. } in changes {
            let address = address(key)?;
            batch.push(match new {
                Some(value) => Change::Set(address, value.clone()),
                None => Change::Delete(address),
            });
        }

        let mut transaction = self.store.transaction()?;
        let committed = transaction.commit(TREE, &self.state.root, &batch)?;
        let before = self.tip.as_ref().map_or(number, |tip| tip.block);
        let holds_version = committed.version.is_some();
        let mut block = Block { number, before, holds_version, root: committed.root };
        transaction.set_metadata(&block_key(number), Some(&block.encode(&note)))?;

        // The oldest blocks beyond the limit are forgotten in the same transaction. A version moves
        // from each of them to its heir, so the index of the heir is carried from block to block.
        let keep_max = self.keep_max.map_or(usize::MAX, |max| max.max(1) as usize);

        let forgotten = (self.kept.len() + 1).saturating_sub(keep_max);
        let mut heir = None;
        for at in 0..forgotten {
            let mut oldest = self.kept[at];
            oldest.holds_version |= heir == Some(at);
            let next = if at + 1 < self.kept.len() { &self.kept[at + 1] } else { &block };
            heir = Self::forget(&mut transaction, &oldest, Some(next))?.then_some(at + 1);
        }

        transaction.finish()?;

        // Memory follows only after the commit, so a failed transaction changes nothing.
        if heir == Some(self.kept.len()) {
            block.holds_version = true;
        } else if let Some(heir) = heir {
            self.kept[heir].holds_version = true;
        }

        self.kept.push_back(block);
        self.kept.drain(..forgotten);
        self.state.root = block.root;
        self.tip = Some(Tip { block: number, note });
        self.unsaved = true;
        debug_assert!(self.kept.len() <= keep_max);
        Ok(())
    }

    fn rollback(
        &mut self,
        block: Option<u64>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<()> {
        let mut left = 0;
        if let Some(block) = block {
            let tip = self.tip.as_ref().map(|tip| tip.block);
            let oldest = self.oldest().filter(|_| tip >= Some(block));
            let oldest = oldest.ok_or(Error::Ahead { block, tip })?;
            if block < oldest {
                return Err(Error::NotKept { block, oldest });
            }
            let place = self.kept.binary_search_by_key(&block, |kept| kept.number);
            left = place.map_err(|_| Error::Unknown { block })? + 1;
        }

        // Each transaction undoes a bounded number of blocks, so an interrupted rollback keeps its
        // progress.
        debug_assert!(left <= self.kept.len());
        let total = (self.kept.len() - left) as u64;
        while self.kept.len() > left {
            let target = left.max(self.kept.len().saturating_sub(UNDONE_AT_ONCE));
            let tip = match target.checked_sub(1).map(|newest| self.kept[newest].number) {
                Some(block) => Some(Tip { block, note: self.note(block)? }),
                None => None,
            };

            let mut transaction = self.store.transaction()?;
            for block in self.kept.range(target..).rev() {
                Self::forget(&mut transaction, block, None)?;
            }
            transaction.finish()?;
            self.kept.truncate(target);
            self.state.root = self.kept.back().map_or(Root::EMPTY, |block| block.root);
            self.tip = tip;
            self.unsaved = true;

            if !progress(total - (self.kept.len() - left) as u64, total) {
                break;
            }
        }

        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        if !self.unsaved {
            return Ok(());
        }

        // At these levels every commit is durable when it returns.
        let database = self.store.database();

        let is_each =
            matches!(database.guarantee().durability, Durability::Each | Durability::Group);
        if !is_each {
            match database.sync() {
                // A database in memory, or a server that decides itself when to sync.
                Err(kv::Error::Unsupported { .. }) => {}
                synced => synced.map_err(EngineError::from)?,
            }
        }

        self.unsaved = false;
        Ok(())
    }
}

impl State for RadixState {
    fn get_many(&self, keys: &[&[u8]]) -> crate::engines::engine::Result<Vec<Option<Vec<u8>>>> {
        let addresses: crate::engines::engine::Result<Vec<Address>> =
            keys.iter().map(|key| address(key)).collect();
        Ok(self.tree.get(&self.root, &addresses?)?)
    }

    fn scan(&self, from: &[u8]) -> crate::engines::engine::Result<Box<dyn Cursor + '_>> {
        // A key longer than an address sorts above the address that is its prefix, and below the
        // next one; the cursor filters that address.
        let start = Address::new(&from[..from.len().min(ADDRESS_BYTES_MAX)]).ok();
        let leaves = self.tree.leaves_from(&self.root, start.as_ref(), Order::Ascending)?;
        Ok(Box::new(RadixCursor { leaves, from: from.to_vec() }))
    }

    fn roots(&self) -> crate::engines::engine::Result<BTreeMap<String, String>> {
        Ok(BTreeMap::from([("radix".to_owned(), self.root.to_string())]))
    }
}

impl Cursor for RadixCursor {
    fn next(&mut self) -> crate::engines::engine::Result<Option<Entry>> {
        for leaf in self.leaves.by_ref() {
            let (address, value) = leaf?;
            if address.as_bytes() >= self.from.as_slice() {
                let key = address.as_bytes().to_vec();
                return Ok(Some(Entry { key, value }));
            }
        }
        Ok(None)
    }
}
