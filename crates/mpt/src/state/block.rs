//! The batch of a block.

use alloy_primitives::{Address, B256, U256, keccak256};

use crate::base::account::Account;
use crate::base::error::{Error, Result};
use crate::state::changes::{ChangeSet, Fate};
use crate::state::commit::{Keep, Prepared, prepare};
use crate::state::state::{Committed, State};
use crate::state::tables::{Block, FLOOR_KEY, Views, height_key};

/// The changes of a block, until it is committed. Dropped, it changes nothing.
///
/// The last change of an account or slot counts. Values are those after the block; the batch is not
/// read through.
#[derive(Debug)]
#[must_use = "a block changes nothing until it is committed"]
pub struct BlockBatch<'s> {
    state: &'s mut State,
    height: u64,
    changes: ChangeSet,
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
        Self { state, height, changes: ChangeSet::default() }
    }

    /// Sets nonce, balance and code hash of an account. Its storage root is not taken: it follows
    /// from its slots.
    pub fn set_account(&mut self, address: Address, account: &Account) {
        let change = self.changes.accounts.entry(keccak256(address)).or_default();
        change.account = Fate::Set(*account);
    }

    /// Sets a slot; zero deletes it. The account must exist after the block.
    pub fn set_slot(&mut self, address: Address, slot: B256, value: U256) {
        let change = self.changes.accounts.entry(keccak256(address)).or_default();
        change.slots.insert(keccak256(slot), value);
    }

    /// Stores code and returns its hash, which an account may name.
    pub fn set_code(&mut self, code: &[u8]) -> B256 {
        let hash = keccak256(code);
        if !code.is_empty() {
            self.changes.codes.insert(hash, Some(code.to_vec()));
        }
        hash
    }

    /// Deletes an account with all its storage. Account and slots that the batch sets afterwards
    /// are those of a new account.
    pub fn delete_account(&mut self, address: Address) {
        let change = self.changes.accounts.entry(keccak256(address)).or_default();
        change.is_wiped = true;
        change.account = Fate::Gone;
        change.slots.clear();
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
