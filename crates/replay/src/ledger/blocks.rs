//! A state of blocks that can go back, whatever keeps it: tables with an undo log, or a store that
//! has versions of its own.

use super::history::{History, NetChange, Result, Tip};
use crate::engines::engine::State;

/// A state of blocks that can go back. As [`History`], which is one.
pub trait Ledger: std::fmt::Debug {
    /// The newest block; `None` in the empty state.
    fn tip(&self) -> Option<&Tip>;

    /// The oldest block that can be gone back to.
    fn oldest(&self) -> Option<u64>;

    /// The newest block below `block` that can be gone back to.
    fn kept_below(&self, block: u64) -> Option<u64>;

    /// Returns the note of a kept block.
    ///
    /// # Errors
    /// [`Unknown`](super::history::Error::Unknown) if it is not kept, or what the engine says.
    fn note(&self, block: u64) -> Result<Vec<u8>>;

    /// The present state.
    fn state(&self) -> &dyn State;

    /// The shortest key that the state takes, in bytes.
    fn key_bytes_min(&self) -> usize {
        0
    }

    /// The longest key that the state takes, in bytes.
    fn key_bytes_max(&self) -> usize;

    /// The longest value that the state takes, in bytes.
    fn value_bytes_max(&self) -> usize;

    /// Contract of [`History::append`].
    ///
    /// # Errors
    /// Contract of [`History::append`].
    fn append(&mut self, block: u64, note: Vec<u8>, changes: &[NetChange]) -> Result<()>;

    /// Contract of [`History::rollback`].
    ///
    /// # Errors
    /// Contract of [`History::append`].
    fn rollback(
        &mut self,
        block: Option<u64>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<()>;

    /// Makes the present state durable, unless it is already.
    ///
    /// # Errors
    /// Those of the engine; an earlier durable state is then still there.
    fn checkpoint(&mut self) -> Result<()>;
}

impl Ledger for History {
    fn tip(&self) -> Option<&Tip> {
        self.tip()
    }

    fn oldest(&self) -> Option<u64> {
        self.oldest()
    }

    fn kept_below(&self, block: u64) -> Option<u64> {
        self.kept().rev().find(|&kept| kept < block)
    }

    fn note(&self, block: u64) -> Result<Vec<u8>> {
        self.note(block)
    }

    fn state(&self) -> &dyn State {
        self.state()
    }

    fn key_bytes_max(&self) -> usize {
        self.key_bytes_max()
    }

    fn value_bytes_max(&self) -> usize {
        self.value_bytes_max()
    }

    fn append(&mut self, block: u64, note: Vec<u8>, changes: &[NetChange]) -> Result<()> {
        self.append(block, note, changes)
    }

    fn rollback(
        &mut self,
        block: Option<u64>,
        progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<()> {
        self.rollback(block, progress)
    }

    fn checkpoint(&mut self) -> Result<()> {
        self.checkpoint()
    }
}
