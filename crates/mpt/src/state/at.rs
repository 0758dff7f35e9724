//! Reads of a state at a height.

use alloy_primitives::{Address, B256, Bytes, U256};

use crate::base::account::{Account, EMPTY_CODE_HASH};
use crate::base::error::{Error, Result};
use crate::base::keys::{hash_addresses, hash_slots};
use crate::state::source::{Source, read_slots, value};
use crate::state::state::State;
use crate::state::tables::{Block, EntryKind, Views, slot_key};

/// The state after one block, at the tip or below, as one commit left the store: later commits
/// change nothing in it.
#[derive(Debug)]
pub struct StateAt {
    pub(crate) views: Views,
    pub(crate) block: Block,
    /// The height; `None` at the tip.
    height: Option<u64>,
}

impl State {
    /// The state after the block at `height`.
    ///
    /// Cost: a lookup.
    ///
    /// # Errors
    /// [`Error::UnknownHeight`] unless the height is that of the tip, or the state keeps a
    /// [history](crate::Options::history) down to it; [`Error::Store`].
    pub fn at(&self, height: u64) -> Result<StateAt> {
        StateAt::of(self.tables.views()?, Some(height))
    }

    /// The state after the last block, unchanged by later ones.
    ///
    /// Cost: a lookup.
    ///
    /// # Errors
    /// [`Error::UnknownHeight`] before the first block; [`Error::Store`].
    pub fn latest(&self) -> Result<StateAt> {
        StateAt::of(self.tables.views()?, None)
    }
}

impl StateAt {
    /// The state of views after the block at `height`, or after the last one.
    pub(crate) fn of(views: Views, height: Option<u64>) -> Result<Self> {
        let unknown = || Error::UnknownHeight { height: height.unwrap_or_default() };
        let tip = views.tip()?.ok_or_else(unknown)?;
        let Some(height) = height.filter(|height| *height != tip.height) else {
            return Ok(Self { views, block: tip, height: None });
        };
        let floor = views.history_floor()?.ok_or_else(unknown)?;
        if tip.height < height || height < floor {
            return Err(unknown());
        }
        let block = views.block(height)?.ok_or_else(unknown)?;
        Ok(Self { views, block, height: Some(height) })
    }

    /// The block after which the state is so.
    #[must_use]
    pub fn block(&self) -> Block {
        self.block
    }

    pub(crate) fn source(&self) -> Source<'_> {
        Source { views: &self.views, height: self.height, workers: None }
    }

    /// An account.
    ///
    /// # Errors
    /// The errors of [`accounts`](Self::accounts).
    pub fn account(&self, address: &Address) -> Result<Option<Account>> {
        Ok(self.accounts(std::slice::from_ref(address))?.pop().flatten())
    }

    /// Accounts, in the order of the addresses.
    ///
    /// Cost: one batch of lookups; below the tip a seek for each account besides.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptAccount`], [`Error::CorruptEntry`].
    pub fn accounts(&self, addresses: &[Address]) -> Result<Vec<Option<Account>>> {
        self.source().accounts(&hash_addresses(addresses))
    }

    /// A slot; zero if it has no entry.
    ///
    /// # Errors
    /// The errors of [`slots`](Self::slots).
    pub fn slot(&self, address: &Address, slot: &B256) -> Result<U256> {
        Ok(self.slots(&[(*address, *slot)])?.pop().unwrap_or_default())
    }

    /// Slots, in the given order.
    ///
    /// Cost: one batch of lookups; below the tip a seek for each slot besides.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::CorruptEntry`].
    pub fn slots(&self, slots: &[(Address, B256)]) -> Result<Vec<U256>> {
        let keys: Vec<_> = hash_slots(slots).map(|(owner, slot)| slot_key(&owner, &slot)).collect();
        read_slots(self.source().entries(EntryKind::Slot, &keys)?)
    }

    /// Code by its hash, if the state has it. The hash of no code has the empty code.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn code(&self, hash: &B256) -> Result<Option<Bytes>> {
        if *hash == EMPTY_CODE_HASH {
            return Ok(Some(Bytes::new()));
        }
        Ok(value(self.views.code.get(hash.as_slice())?).map(Bytes::from))
    }
}
