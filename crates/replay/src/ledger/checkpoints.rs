//! Durable points over two tables that must agree, by names alone.
//!
//! A snapshot of one table is atomic, and a replay needs two snapshots of one moment. A point is a
//! pair
//!
//! | snapshot                        | holds     |
//! |---------------------------------|-----------|
//! | `<log>-<sequence>-<block>`      | undo log  |
//! | `<state>-<sequence>-<block>`    | the state |
//!
//! with one sequence number (10 digits) and the number of the newest block, or `empty`. Invariants:
//!
//! - The log is saved before the state. An older pair is deleted only when the new pair is
//!   complete.
//! - A point exists if both halves do. The greatest sequence of a complete pair is the state of the
//!   store, so a crash at any call leaves the older point or the newer, never a mixture.
//! - Older points are retained versions for going back. Their blocks rise with their sequence up to
//!   the newest point. A crash may leave a point of an abandoned branch, because two points can
//!   have one block number; a rollback therefore checks the notes of a point.
//! - Opening deletes everything else: the remains of a crash.

use std::collections::BTreeMap;

use crate::engines::engine::{Engine, EngineError, Result, Table};

/// Names and label of the saved tables of one kind of replay.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Name of the undo log.
    pub(crate) log: &'static str,
    /// Name of the state.
    pub(crate) state: &'static str,
    /// Label of both tables, which names the kind of replay.
    pub(crate) label: String,
}

/// Name of a durable point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) sequence: u64,
    /// Newest block; `None` in the empty state.
    pub(crate) block: Option<u64>,
}

/// Open durable point.
#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) log: Box<dyn Table>,
    pub(crate) state: Box<dyn Table>,
}

/// Durable points and leftovers of a store.
#[derive(Debug)]
pub(crate) struct StoredPoints {
    pub(crate) sequence: u64,
    pub(crate) newest: Point,
    /// All points, ascending by sequence and by block; the last one is the newest.
    pub(crate) marks: Vec<Mark>,
}

/// Snapshots of one sequence number.
#[derive(Debug, Default)]
struct Halves {
    log: Option<String>,
    state: Option<String>,
}

impl Names {
    /// Opens the newest point, lists the older points and deletes unfinished ones; `None` in an
    /// empty store.
    ///
    /// # Errors
    /// [`EngineError::Refused`] if the store has snapshots that are not of this replay.
    pub(crate) fn find(&self, engine: &dyn Engine) -> Result<Option<StoredPoints>> {
        let pairs = self.pairs(engine)?;
        // The newest point with both halves counts.
        let complete = pairs.iter().rev().find_map(|(&sequence, halves)| {
            Some((sequence, halves.log.as_deref()?, halves.state.as_deref()?))
        });

        let Some((sequence, log, state)) = complete else {
            // Half a point leads nowhere, so it goes.
            delete(engine, pairs.values())?;
            return Ok(None);
        };

        let newest =
            Point { log: engine.open(log, &self.label)?, state: engine.open(state, &self.label)? };
        let marks = self.rising_marks(pairs.range(..=sequence).rev());
        let is_kept = |found| found == sequence || marks.iter().any(|mark| mark.sequence == found);
        let others = pairs.iter().filter(|&(&found, _)| !is_kept(found));
        // Points that are not kept lead nowhere: half of them is missing, or another branch took
        // over.
        delete(engine, others.map(|(_, halves)| halves))?;

        Ok(Some(StoredPoints { sequence, newest, marks }))
    }

    /// Opens the log of a point.
    ///
    /// # Errors
    /// Those of the engine.
    pub(crate) fn open_log(&self, engine: &dyn Engine, mark: Mark) -> Result<Box<dyn Table>> {
        engine.open(&name(self.log, mark), &self.label)
    }

    /// Opens the state of a point.
    ///
    /// # Errors
    /// Those of the engine.
    pub(crate) fn open_state(&self, engine: &dyn Engine, mark: Mark) -> Result<Box<dyn Table>> {
        engine.open(&name(self.state, mark), &self.label)
    }

    /// Makes both tables durable as a point, whose sequence must be greater than all others.
    ///
    /// # Errors
    /// Those of the engine. Half of the point may be left, which counts as no point.
    pub(crate) fn save(
        &self,
        engine: &dyn Engine,
        mark: Mark,
        (log, state): (&dyn Table, &dyn Table),
    ) -> Result<()> {
        // The state goes last: with both halves, the point exists.
        log.save(&name(self.log, mark), &self.label)?;
        state.save(&name(self.state, mark), &self.label)?;
        engine.commit()
    }

    /// Returns the name of the snapshot that holds the state of a point.
    pub(crate) fn state_name(&self, mark: Mark) -> String {
        name(self.state, mark)
    }

    /// Deletes all points but `kept`, which include the newest, and halves of points.
    ///
    /// # Errors
    /// Those of the engine; all points of `kept` are still there.
    pub(crate) fn delete_others(&self, engine: &dyn Engine, kept: &[Mark]) -> Result<()> {
        let is_kept = |sequence| kept.iter().any(|mark| mark.sequence == sequence);
        let pairs = self.pairs(engine)?;
        let others = pairs.iter().filter(|&(&sequence, _)| !is_kept(sequence));
        delete(engine, others.map(|(_, halves)| halves))
    }

    /// Returns the points of the descending `pairs` whose blocks are below those of all later
    /// points, ascending. A point at or above a later one belongs to blocks that were gone back
    /// from.
    fn rising_marks<'a>(&self, pairs: impl Iterator<Item = (&'a u64, &'a Halves)>) -> Vec<Mark> {
        let mut marks: Vec<Mark> = Vec::new();
        for (&sequence, halves) in pairs {
            let Some(mark) = self.mark(sequence, halves) else { continue };
            // From the newest point down blocks must fall: other points are of another branch.
            if marks.last().is_none_or(|later| mark.block.is_some() && mark.block < later.block) {
                marks.push(mark);
            }
        }
        marks.reverse();
        debug_assert!(
            marks.is_sorted_by(|left, right| left.block < right.block),
            "blocks ascend with the marks"
        );
        marks
    }

    /// Returns the name of a pair; `None` if a half is missing or the halves differ.
    fn mark(&self, sequence: u64, halves: &Halves) -> Option<Mark> {
        let log = halves.log.as_deref()?;
        let state = halves.state.as_deref()?;
        // The block stands behind the last dash of the name.
        let mark = Mark { sequence, block: log.rsplit('-').next()?.parse().ok() };
        // Only names that this program writes count as points.
        (log == name(self.log, mark) && state == name(self.state, mark)).then_some(mark)
    }

    fn pairs(&self, engine: &dyn Engine) -> Result<BTreeMap<u64, Halves>> {
        let mut pairs: BTreeMap<u64, Halves> = BTreeMap::new();
        for name in engine.snapshots()? {
            let mut parts = name.splitn(3, '-');

            let role = parts.next();
            let sequence = parts.next().and_then(|text| text.parse().ok());
            match (role, sequence) {
                (Some(role), Some(sequence)) if role == self.log => {
                    pairs.entry(sequence).or_default().log = Some(name);
                }
                (Some(role), Some(sequence)) if role == self.state => {
                    pairs.entry(sequence).or_default().state = Some(name);
                }
                _ => {
                    let label = &self.label;
                    let what =
                        format!("the store has a snapshot {name:?}, so it is not \"{label}\"");
                    return Err(EngineError::Refused(what.into()));
                }
            }
        }

        Ok(pairs)
    }
}

/// Thins out `marks`, which ascend from block `oldest` up to below `newest`, to at most
/// `count_max`. Each step removes the mark that leaves the smallest gap, so that rollbacks stay
/// short.
pub(crate) fn thin(marks: &mut Vec<Mark>, oldest: u64, newest: u64, count_max: usize) {
    debug_assert!(marks.iter().all(|mark| mark.block < Some(newest)));
    let block = |mark: Option<&Mark>| mark.and_then(|mark| mark.block);
    while marks.len() > count_max {
        let gap = |&index: &usize| {
            let below = index.checked_sub(1).and_then(|index| block(marks.get(index)));
            let above = block(marks.get(index + 1));
            above.unwrap_or(newest).saturating_sub(below.unwrap_or(oldest))
        };
        // The mark whose loss leaves the smallest gap.
        let Some(index) = (0..marks.len()).min_by_key(gap) else { break };
        marks.remove(index);
    }
}

fn name(role: &str, Mark { sequence, block }: Mark) -> String {
    let block = block.map_or_else(|| "empty".to_owned(), |block| block.to_string());
    format!("{role}-{sequence:010}-{block}")
}

/// Deletes pairs, oldest first. A pair without one half is void, so a crash in between does no
/// harm.
fn delete<'a>(engine: &dyn Engine, pairs: impl Iterator<Item = &'a Halves>) -> Result<()> {
    for halves in pairs {
        for name in [&halves.state, &halves.log].into_iter().flatten() {
            engine.delete(name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_out_leaves_ways_back_of_like_length() {
        for (window, every) in [(1000_u64, 1), (1000, 7), (2160, 50), (u64::MAX, 3)] {
            let mut marks: Vec<Mark> = Vec::new();
            for sequence in 1..=5000_u64 {
                let newest = sequence * every;
                let oldest = newest.saturating_sub(window - 1).max(1);
                marks.retain(|mark| mark.block >= Some(oldest));
                thin(&mut marks, oldest, newest, 15);
                marks.push(Mark { sequence, block: Some(newest) });
                let blocks: Vec<_> = marks.iter().filter_map(|mark| mark.block).collect();
                assert!(blocks.is_sorted_by(|left, right| left < right));
                let from = std::iter::once(&oldest).chain(&blocks);
                let longest = from.zip(&blocks).map(|(from, to)| to - from).max();
                let even = (newest - oldest) / 16;
                assert!(longest <= Some(4 * even + every), "{blocks:?} from {oldest}");
            }
        }
    }

    #[test]
    fn the_point_goes_that_leaves_the_smallest_gap() {
        let mark = |block| Mark { sequence: block, block: Some(block) };
        let mut marks = [10, 11, 20, 30].map(mark).to_vec();
        thin(&mut marks, 1, 40, 4);
        assert_eq!(marks, [10, 11, 20, 30].map(mark));
        thin(&mut marks, 1, 40, 3);
        assert_eq!(marks, [11, 20, 30].map(mark));
        thin(&mut marks, 11, 40, 2);
        assert_eq!(marks, [20, 30].map(mark));
    }
}
