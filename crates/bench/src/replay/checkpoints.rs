//! Durable points over two tables that must agree, made by naming alone.
//!
//! Snapshots are atomic one by one; a replay needs two of one moment. A point is a pair
//!
//! | snapshot                        | holds     |
//! |---------------------------------|-----------|
//! | `<log>-<sequence>-<height>`     | undo log  |
//! | `<state>-<sequence>-<height>`   | the state |
//!
//! with one sequence number (10 digits). The height (or `empty`) is there for human readers only:
//! after a rollback or a reorganisation two points can have one height. Invariants:
//!
//! - The log is saved before the state, and a pair is deleted only after a later one is complete.
//! - A point exists if both halves do. The greatest sequence of a complete pair is the state of the
//!   store, so a crash at any call leaves the older point or the newer, never a mixture.
//! - Whatever else is found at opening is the remains of a crash and is deleted.

use std::collections::BTreeMap;

use crate::engine::{Engine, EngineError, Result, Table};

/// The names and the label that a kind of replay saves its tables under.
#[derive(Debug, Clone)]
pub(super) struct Names {
    /// Name of the undo log.
    pub(super) log: &'static str,
    /// Name of the state.
    pub(super) state: &'static str,
    /// Label of both: what the store is for.
    pub(super) label: String,
}

/// A durable point, opened.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) sequence: u64,
    pub(super) log: Box<dyn Table>,
    pub(super) state: Box<dyn Table>,
}

#[derive(Debug, Default)]
struct Halves {
    log: Option<String>,
    state: Option<String>,
}

impl Names {
    /// Opens the newest point and deletes everything older or unfinished; `None` in an empty store.
    ///
    /// # Errors
    /// [`EngineError::Refused`] if the store has snapshots that are not of this replay.
    pub(super) fn latest(&self, engine: &dyn Engine) -> Result<Option<Point>> {
        let pairs = self.pairs(engine)?;
        let complete = pairs.iter().rev().find_map(|(&sequence, halves)| {
            Some((sequence, halves.log.as_deref()?, halves.state.as_deref()?))
        });
        let point = match complete {
            None => None,
            Some((sequence, log, state)) => Some(Point {
                sequence,
                log: engine.open(log, &self.label)?,
                state: engine.open(state, &self.label)?,
            }),
        };
        let kept = point.as_ref().map(|point| point.sequence);
        delete(engine, pairs.iter().filter(|&(&sequence, _)| Some(sequence) != kept))?;
        Ok(point)
    }

    /// Makes both tables durable as point `sequence`, then deletes the earlier points.
    ///
    /// # Errors
    /// As the engine says; the earlier point is then still there.
    pub(super) fn save(
        &self,
        engine: &dyn Engine,
        sequence: u64,
        height: Option<u64>,
        log: &dyn Table,
        state: &dyn Table,
    ) -> Result<()> {
        let height = height.map_or_else(|| "empty".to_owned(), |height| height.to_string());
        log.save(&format!("{}-{sequence:010}-{height}", self.log), &self.label)?;
        state.save(&format!("{}-{sequence:010}-{height}", self.state), &self.label)?;
        delete(engine, self.pairs(engine)?.range(..sequence))
    }

    fn pairs(&self, engine: &dyn Engine) -> Result<BTreeMap<u64, Halves>> {
        let mut pairs: BTreeMap<u64, Halves> = BTreeMap::new();
        for name in engine.snapshots()? {
            let mut parts = name.splitn(3, '-');
            let (role, sequence) = (parts.next(), parts.next().and_then(|text| text.parse().ok()));
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

/// Deletes pairs, oldest first; either half gone makes a pair void.
fn delete<'a>(
    engine: &dyn Engine,
    pairs: impl Iterator<Item = (&'a u64, &'a Halves)>,
) -> Result<()> {
    for (_, halves) in pairs {
        for name in [&halves.state, &halves.log].into_iter().flatten() {
            engine.delete(name)?;
        }
    }
    Ok(())
}
