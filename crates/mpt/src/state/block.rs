//! The batch of a block.

use alloy_primitives::{Address, B256, Bytes, U256};

use crate::base::account::Account;
use crate::base::error::{Error, Result};
use crate::state::accesses::Accesses;
use crate::state::changes::ChangeSet;
use crate::state::commit::{Keep, Prepared, prepare};
use crate::state::state::{Committed, State};
use crate::state::tables::{Block, FLOOR_KEY, Views, height_key};

/// The changes of a block, until it is committed. Dropped, it changes nothing.
///
/// The last change of an account or slot counts. Values that are set are those after the block;
/// values that are read are those before it, whatever was set.
#[derive(Debug)]
#[must_use = "a block changes nothing until it is committed"]
pub struct BlockBatch<'s> {
    pub(crate) state: &'s mut State,
    height: u64,
    pub(crate) changes: ChangeSet,
    pub(crate) reads: Accesses,
}

impl State {
    /// Begins the block at `height` on the block of hash `parent`. The first block of a state may
    /// have any height and parent.
    ///
    /// # Errors
    /// [`Error::NotOnTip`] unless the block follows the tip.
    pub fn block(&mut self, height: u64, parent: B256) -> Result<BlockBatch<'_>> {
        if let Some(tip) = self.tip
            && (tip.height.checked_add(1) != Some(height) || tip.hash != parent)
        {
            return Err(Error::NotOnTip { height, parent, tip: tip.height });
        }
        Ok(BlockBatch::new(self, height))
    }
}

impl<'s> BlockBatch<'s> {
    pub(crate) fn new(state: &'s mut State, height: u64) -> Self {
        Self { state, height, changes: ChangeSet::default(), reads: Accesses::default() }
    }

    /// Sets nonce, balance and code hash of an account. Its storage root is not taken: it follows
    /// from its slots.
    pub fn set_account(&mut self, address: Address, account: &Account) {
        self.changes.set_account(address, account);
    }

    /// Sets a slot; zero deletes it. The account must exist after the block.
    pub fn set_slot(&mut self, address: Address, slot: B256, value: U256) {
        self.changes.set_slot(address, slot, value);
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

    /// An account before the block. The read will be in the [witness](Self::witness).
    ///
    /// Cost: one lookup.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptAccount`].
    pub fn account(&mut self, address: &Address) -> Result<Option<Account>> {
        self.reads.add_account(address);
        self.state.account(address)
    }

    /// A slot before the block; zero if it has no entry. The read will be in the
    /// [witness](Self::witness).
    ///
    /// Cost: one lookup.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptEntry`].
    pub fn slot(&mut self, address: &Address, slot: &B256) -> Result<U256> {
        self.reads.add_slot(address, slot);
        self.state.slot(address, slot)
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
    pub fn root(&self) -> Result<B256> {
        let views = self.state.tables.views()?;
        Ok(prepare(&self.state.tables, &views, self.changes.clone(), Keep::Nothing)?.root)
    }

    /// Commits the block: entries, nodes, old values and the new tip, all or nothing.
    ///
    /// Cost: batches of lookups for accounts and slots, and one for each level of the tries; one
    /// record of the log. A deleted account costs a cursor over its slots, whose values are kept
    /// for a reorg.
    ///
    /// # Errors
    /// [`Error::SlotWithoutAccount`]; [`Error::Store`]; [`Error::Corruption`],
    /// [`Error::CorruptEntry`] or [`Error::CorruptAccount`] if a stored node or entry is damaged.
    /// Nothing was changed then.
    pub fn commit(mut self, hash: B256) -> Result<Committed> {
        let (views, prepared) = self.prepare()?;
        self.write(hash, &views, prepared)
    }

    /// Commits the block if it has the root of its header.
    ///
    /// # Errors
    /// [`Error::RootMismatch`] before anything is written; the errors of [`commit`](Self::commit).
    pub fn commit_expecting(mut self, hash: B256, root: B256) -> Result<Committed> {
        let (views, prepared) = self.prepare()?;
        if prepared.root != root {
            return Err(Error::RootMismatch { expected: root, computed: prepared.root });
        }
        self.write(hash, &views, prepared)
    }

    fn prepare(&mut self) -> Result<(Views, Prepared)> {
        let views = self.state.tables.views()?;
        let changes = std::mem::take(&mut self.changes);
        let keep = if self.state.has_history { Keep::History } else { Keep::Changes };
        let mut prepared = prepare(&self.state.tables, &views, changes, keep(self.height))?;
        self.move_floor(&views, &mut prepared)?;
        Ok((views, prepared))
    }

    /// Begins a history with the state before this block, or ends one that is not kept on.
    fn move_floor(&self, views: &Views, prepared: &mut Prepared) -> Result<()> {
        let meta = &self.state.tables.meta;
        match (self.state.has_history, views.history_floor()?) {
            (true, None) => {
                let floor = self.state.tip.map_or(self.height, |tip| tip.height);
                prepared.batch.insert(meta, FLOOR_KEY, floor.to_le_bytes());
            }
            (false, Some(_)) => prepared.batch.delete(meta, FLOOR_KEY),
            _ => {}
        }
        Ok(())
    }

    fn write(self, hash: B256, views: &Views, prepared: Prepared) -> Result<Committed> {
        let Prepared { root, mut batch } = prepared;
        let block = Block { height: self.height, hash, root };
        batch.insert(&self.state.tables.blocks, height_key(block.height), block.block_bytes());
        self.state.write(views, batch, block)
    }
}
