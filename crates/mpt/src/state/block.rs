//! The batch of a block.

use alloy_primitives::{Address, B256, Bytes, U256};

use crate::base::account::Account;
use crate::base::error::{Error, Result};
use crate::base::keys::{hash_addresses, hash_slots};
use crate::state::accesses::Accesses;
use crate::state::changes::ChangeSet;
use crate::state::commit::{Keep, Prepared, prepare};
use crate::state::known::Known;
use crate::state::source::{Source, read_accounts, read_slots};
use crate::state::state::{Committed, State};
use crate::state::tables::{Block, FLOOR_KEY, Views, height_key, slot_key};

/// The changes of a block, until it is committed. Dropped, it changes nothing.
///
/// The last change of an account or slot counts. Values that are set are those after the block;
/// values that are read are those before it, whatever was set.
#[derive(Debug)]
#[must_use = "a block changes nothing until it is committed"]
pub struct BlockBatch<'s> {
    pub(crate) state: &'s mut State,
    height: u64,
    /// The state before the block.
    pub(crate) views: Views,
    pub(crate) changes: ChangeSet,
    pub(crate) reads: Accesses,
    known: Known,
}

impl State {
    /// Begins the block at `height` on the block of hash `parent`. The first block of a state may
    /// have any height and parent.
    ///
    /// # Errors
    /// [`Error::NotOnTip`] unless the block follows the tip; [`Error::Store`].
    pub fn block(&mut self, height: u64, parent: B256) -> Result<BlockBatch<'_>> {
        if let Some(tip) = self.tip
            && (tip.height.checked_add(1) != Some(height) || tip.hash != parent)
        {
            return Err(Error::NotOnTip { height, parent, tip: tip.height });
        }
        let views = self.tables.views()?;
        Ok(BlockBatch {
            state: self,
            height,
            views,
            changes: ChangeSet::default(),
            reads: Accesses::default(),
            known: Known::default(),
        })
    }
}

impl BlockBatch<'_> {
    /// Sets nonce, balance and code hash of an account. Its storage root is not taken: it follows
    /// from its slots.
    pub fn set_account(&mut self, address: Address, account: &Account) {
        self.changes.set_account(address, account);
    }

    /// Sets a slot; zero deletes it. The account must exist after the block.
    pub fn set_slot(&mut self, address: Address, slot: B256, value: U256) {
        self.changes.set_slot(address, slot, value);
    }

    /// Sets slots of one account, as [`set_slot`](Self::set_slot) each. Many slots are hashed
    /// faster together.
    pub fn set_slots(&mut self, address: Address, slots: &[(B256, U256)]) {
        self.changes.set_slots(address, slots);
    }

    /// Stores code and returns its hash, which an account may name.
    pub fn set_code(&mut self, code: &[u8]) -> B256 {
        self.changes.set_code(code)
    }

    /// Deletes an account with all its storage. Account and slots that the batch sets afterwards
    /// are those of a new account.
    pub fn delete_account(&mut self, address: Address) {
        self.changes.delete_account(address);
    }

    /// Takes changes in the place of those that the batch has.
    pub fn set_changes(&mut self, changes: ChangeSet) {
        self.changes = changes;
    }

    /// An account before the block.
    ///
    /// # Errors
    /// The errors of [`accounts`](Self::accounts).
    pub fn account(&mut self, address: &Address) -> Result<Option<Account>> {
        Ok(self.accounts(std::slice::from_ref(address))?.pop().flatten())
    }

    /// Accounts before the block, in the order of the addresses. The reads will be in the
    /// [witness](Self::witness), and the commit does not look these accounts up again.
    ///
    /// Cost: one batch of lookups.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptAccount`].
    pub fn accounts(&mut self, addresses: &[Address]) -> Result<Vec<Option<Account>>> {
        let hashes = hash_addresses(addresses);
        self.reads.accounts.extend(&hashes);
        let source = Source::tip(&self.views).on(&self.state.workers);
        read_accounts(self.known.accounts(source, &hashes)?)
    }

    /// A slot before the block; zero if it has no entry.
    ///
    /// # Errors
    /// The errors of [`slots`](Self::slots).
    pub fn slot(&mut self, address: &Address, slot: &B256) -> Result<U256> {
        Ok(self.slots(&[(*address, *slot)])?.pop().unwrap_or_default())
    }

    /// Slots before the block, in the given order; zero if they have no entry. The reads will be in
    /// the [witness](Self::witness), and the commit does not look these slots up again.
    ///
    /// Cost: one batch of lookups.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptEntry`].
    pub fn slots(&mut self, slots: &[(Address, B256)]) -> Result<Vec<U256>> {
        let mut keys = Vec::with_capacity(slots.len());
        for (owner, slot) in hash_slots(slots) {
            self.reads.accounts.insert(owner);
            self.reads.slots.entry(owner).or_default().insert(slot);
            keys.push(slot_key(&owner, &slot));
        }
        let source = Source::tip(&self.views).on(&self.state.workers);
        read_slots(self.known.slots(source, &keys)?)
    }

    /// Code by its hash, before the block. The read will be in the [witness](Self::witness).
    ///
    /// Cost: one lookup.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn code(&mut self, hash: &B256) -> Result<Option<Bytes>> {
        self.reads.add_code(hash);
        self.state.code(hash)
    }

    /// Computes the root that the block would have, and writes nothing.
    ///
    /// # Errors
    /// The errors of [`commit`](Self::commit).
    pub fn root(&mut self) -> Result<B256> {
        let changes = self.changes.clone();
        Ok(self.compute(changes, Keep::Nothing)?.root)
    }

    /// Commits the block: entries, nodes, old values and the new tip, all or nothing.
    ///
    /// Cost: batches of lookups for accounts and slots that were not read through the batch, and
    /// two for each level of the tries, of nodes that [`Options::node_cache`](crate::Options) does
    /// not hold; one record of the log. A deleted account costs a cursor
    /// over its slots, whose values are kept for a reorg.
    ///
    /// # Errors
    /// [`Error::SlotWithoutAccount`]; [`Error::Store`]; [`Error::Corruption`],
    /// [`Error::CorruptEntry`] or [`Error::CorruptAccount`] if a stored node or entry is damaged.
    /// Nothing was changed then.
    pub fn commit(mut self, hash: B256) -> Result<Committed> {
        let prepared = self.prepare()?;
        self.write(hash, prepared)
    }

    /// Commits the block if it has the root of its header.
    ///
    /// # Errors
    /// [`Error::RootMismatch`] before anything is written; the errors of [`commit`](Self::commit).
    pub fn commit_expecting(mut self, hash: B256, root: B256) -> Result<Committed> {
        let prepared = self.prepare()?;
        if prepared.root != root {
            return Err(Error::RootMismatch { expected: root, computed: prepared.root });
        }
        self.write(hash, prepared)
    }

    fn prepare(&mut self) -> Result<Prepared> {
        let changes = std::mem::take(&mut self.changes);
        let keep = if self.state.has_history { Keep::History } else { Keep::Changes };
        let mut prepared = self.compute(changes, keep(self.height))?;
        self.move_floor(&mut prepared)?;
        Ok(prepared)
    }

    fn compute(&mut self, changes: ChangeSet, keep: Keep) -> Result<Prepared> {
        let source = Source::tip(&self.views).on(&self.state.workers);
        let root = self.state.root();
        let cache = self.state.nodes.at(root);
        prepare(&self.state.tables, source, (&mut self.known, cache), changes, keep)
    }

    /// Begins a history with the state before this block, or ends one that is not kept on.
    fn move_floor(&self, prepared: &mut Prepared) -> Result<()> {
        let meta = &self.state.tables.meta;
        match (self.state.has_history, self.views.history_floor()?) {
            (true, None) => {
                let floor = self.state.tip.map_or(self.height, |tip| tip.height);
                prepared.batch.insert(meta, FLOOR_KEY, floor.to_le_bytes());
            }
            (false, Some(_)) => prepared.batch.delete(meta, FLOOR_KEY),
            _ => {}
        }
        Ok(())
    }

    fn write(self, hash: B256, prepared: Prepared) -> Result<Committed> {
        let Prepared { root, mut batch, nodes } = prepared;
        let block = Block { height: self.height, hash, root };
        batch.insert(&self.state.tables.blocks, height_key(block.height), block.block_bytes());
        self.state.write(&self.views, batch, nodes, block)
    }
}
