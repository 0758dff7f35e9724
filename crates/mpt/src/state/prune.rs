//! Pruning of histories.
//!
//! The changes of a height list the entries and nodes that changed there, so a prune deletes
//! exactly what it takes from the histories, which are sorted by key.

use terrane_lsm::WriteBatch;

use crate::base::error::{Error, Result};
use crate::state::state::State;
use crate::state::tables::{
    FLOOR_KEY, REORG_FLOOR_KEY, Tables, height_key, height_of, histories_of,
};

/// Changes that are pruned in one commit.
const PRUNED_TOGETHER: usize = 8192;

/// Report of a prune.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Number of changes of entries and nodes that went.
    pub changes: u64,
}

impl State {
    /// Forgets the changes of the block at `below` and of older ones: afterwards, reads, proofs and
    /// reorgs reach back to `below` and no further.
    ///
    /// Cost: reads the changes that go, and deletes as many entries of the histories, in commits of
    /// 8,192; one deleted range of changes.
    ///
    /// # Errors
    /// [`Error::UnknownHeight`] above the tip; [`Error::Store`]. After an error, or a crash, the
    /// prune has happened up to some height.
    pub fn prune_history(&mut self, below: u64) -> Result<Pruned> {
        if self.tip.is_none_or(|tip| tip.height < below) {
            return Err(Error::UnknownHeight { height: below });
        }
        let mut pruned = Pruned { changes: 0 };
        loop {
            let views = self.tables.views()?;
            let tables = &self.tables;
            let mut batch = WriteBatch::new();
            let count = collect(tables, &mut batch, below)?;
            pruned.changes += count as u64;

            let floor = below.to_le_bytes();
            if views.history_floor()?.is_some_and(|floor| floor < below) {
                batch.insert(&tables.meta, FLOOR_KEY, floor);
            }
            if views.reorg_floor()?.is_none_or(|floor| floor < below) {
                batch.insert(&tables.meta, REORG_FLOOR_KEY, floor);
            }
            if count < PRUNED_TOGETHER {
                let end = height_key(below.saturating_add(1));
                batch.delete_range(&tables.changes, &[][..]..&end[..]);
            }
            tables.store.write_if(&batch, views.commit)?.wait()?;
            if count < PRUNED_TOGETHER {
                return Ok(pruned);
            }
        }
    }
}

/// Adds the deletion of the oldest changes up to a height to a batch; returns their number, each
/// node of a list counted.
fn collect(tables: &Tables, batch: &mut WriteBatch, below: u64) -> Result<usize> {
    let corrupt = || Error::corrupt_entry("a change of a block");
    let mut cursor = tables.changes.cursor()?;
    let mut count = 0;
    while count < PRUNED_TOGETHER {
        let Some(record) = cursor.next_ref()? else { break };
        let (height, rest) = height_of(record.key).ok_or_else(corrupt)?;
        if below < height {
            break;
        }
        let change = (rest, record.value);
        let own = histories_of(tables, change, height, |table, key| batch.delete(table, key));
        batch.delete(&tables.changes, record.key);
        count += own.ok_or_else(corrupt)?;
    }
    Ok(count)
}
