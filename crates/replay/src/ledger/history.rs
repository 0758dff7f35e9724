//! A state that can go back: the table itself, its undo log, and their durable points.
//!
//! Every block is one batch on the state and one on the log, which has two records per block kept:
//!
//! | key                       | value                                                           |
//! |---------------------------|-----------------------------------------------------------------|
//! | `00`                      | version of this format, one byte, now 2                         |
//! | `01` ‖ block, u64-BE      | the note: u64-LE, the block before (the first block ever: its   |
//! |                           | own number) ‖ bytes of the replay's own (hash, counters)        |
//! | `02` ‖ block, u64-BE      | per changed key: u32-LE length ‖ key ‖ the value before, as     |
//! |                           | `00` for absent or `01` ‖ u32-LE length ‖ value                 |
//!
//! Invariants: the newest note is the state's; the blocks kept are the newest ones, without a gap
//! in the history, which the numbers of the blocks before show; the log goes back with the state.
//! Block numbers rise but need not be dense. Going far back starts from the nearest version that is
//! held and undoes only what is left. These are
//!
//! - within a process duplicates, where the engine makes them cheaply, some blocks apart because a
//!   duplicate makes the next update of a write buffer a new part of it;
//! - across processes the older durable points, a bounded number of them as far as blocks are kept.
//!   Such a point is of the present history if the note of its newest block is the one that the
//!   present log has for that block. So notes must tell histories apart: one note, one state.
//!   Points that are not are deleted with the next durable point; so are those of blocks gone back
//!   from.

use std::collections::VecDeque;

use super::checkpoints::{Found, Mark, Names, thin};
use crate::engines::engine::{Change, Engine, EngineError, Entry, State, Table};
use crate::error::Class;

const VERSION: u8 = 2;
const VERSION_KEY: &[u8] = &[0];
const NOTE: u8 = 1;
const UNDO: u8 = 2;
/// Blocks from one version held as a duplicate to the next.
const VERSION_SPACING: u32 = 256;
/// Durable points kept, the newest included. Each pins the runs of its time.
const POINTS_MAX: usize = 16;
/// A durable point is opened if that saves the undoing of so many blocks; opening reads the filters
/// and indexes of the whole state.
const POINT_SAVES_MIN: usize = 64;

/// A call on a history failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The undo log is not one that this program wrote.
    #[error("the undo log is damaged: {0}")]
    Corrupt(&'static str),
    /// The undo log has a format that this program does not know.
    #[error("the undo log has format version {found}; this program knows {VERSION}")]
    Version {
        /// The version found.
        found: u8,
    },
    /// The block asked for is no longer kept.
    #[error("cannot go back to block {block}: the oldest block kept is {oldest}")]
    NotKept {
        /// The block asked for.
        block: u64,
        /// The oldest block that can be gone back to.
        oldest: u64,
    },
    /// The block asked for is newer than the state.
    #[error("cannot go back to block {block}: the store is at {}", describe(*.tip))]
    Ahead {
        /// The block asked for.
        block: u64,
        /// The newest block; `None` in the empty state.
        tip: Option<u64>,
    },
    /// There is no block of that number.
    #[error("cannot go back to block {block}: the history has no block of that number")]
    Unknown {
        /// The block asked for.
        block: u64,
    },
}

impl Error {
    /// How to react to it.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Engine(error) => error.class(),
            Self::Corrupt(_) => Class::Check,
            Self::Version { .. }
            | Self::NotKept { .. }
            | Self::Ahead { .. }
            | Self::Unknown { .. } => Class::Input,
        }
    }
}

fn describe(tip: Option<u64>) -> String {
    tip.map_or_else(|| "the empty state".to_owned(), |tip| format!("block {tip}"))
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Change of one key by a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetChange {
    /// The key.
    pub key: Vec<u8>,
    /// Its value before the block.
    pub old: Option<Vec<u8>>,
    /// Its value after the block.
    pub new: Option<Vec<u8>>,
}

/// The newest block of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tip {
    /// Its number.
    pub block: u64,
    /// Note of the replay.
    pub note: Vec<u8>,
}

/// The state after a block, in tables of its own.
#[derive(Debug)]
struct Version {
    block: u64,
    state: Box<dyn Table>,
    log: Box<dyn Table>,
}

/// A state that can go back to earlier blocks.
#[derive(Debug)]
pub struct History {
    engine: Box<dyn Engine>,
    names: Names,
    sequence: u64,
    state: Box<dyn Table>,
    log: Box<dyn Table>,
    tip: Option<Tip>,
    /// The blocks that have records in the log, ascending; the last one is the tip.
    kept: VecDeque<u64>,
    keep_max: Option<u64>,
    /// Ascending by block; each block is in `kept`.
    versions: VecDeque<Version>,
    versions_max: usize,
    version_spacing: u32,
    /// The durable points, ascending by sequence and by block; the newest is the last one unless
    /// its block was gone back from.
    points: Vec<Mark>,
    point_saves_min: usize,
    /// Blocks appended since a version was held.
    since_version: u32,
    /// The newest durable point is not the present state.
    unsaved: bool,
    /// A call failed half way, so state and log may disagree and must not become durable.
    broken: bool,
}

impl History {
    /// Opens the newest durable point, or the empty state in an empty store. Of the blocks to come
    /// the newest `keep_max` can be gone back to (all of them if `None`); up to `versions_max`
    /// duplicates are held to make that short.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Version`] or what the engine says.
    pub(crate) fn open(
        engine: Box<dyn Engine>,
        names: Names,
        keep_max: Option<u64>,
        versions_max: usize,
    ) -> Result<Self> {
        let (sequence, points, state, log) = match names.find(engine.as_ref())? {
            Some(Found { sequence, newest, marks }) => (sequence, marks, newest.state, newest.log),
            None => (0, Vec::new(), engine.new_table()?, empty_log(engine.as_ref())?),
        };
        let (kept, tip) = read_log(log.as_ref())?;
        Ok(Self {
            engine,
            names,
            sequence,
            state,
            log,
            tip,
            kept,
            keep_max,
            versions: VecDeque::new(),
            versions_max,
            version_spacing: VERSION_SPACING,
            points,
            point_saves_min: POINT_SAVES_MIN,
            since_version: 0,
            unsaved: false,
            broken: false,
        })
    }

    /// Returns the newest block; `None` in the empty state.
    #[must_use]
    pub fn tip(&self) -> Option<&Tip> {
        self.tip.as_ref()
    }

    /// Returns the oldest block that can be gone back to.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.kept.front().copied()
    }

    /// Returns the blocks that can be gone back to, ascending; the last is the tip.
    pub fn kept(&self) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.kept.iter().copied()
    }

    /// Returns the note of a block that is kept.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it is not kept, or what the engine says.
    pub fn note(&self, block: u64) -> Result<Vec<u8>> {
        let value = self.log.get_many(&[&record(NOTE, block)])?.pop().flatten();
        Ok(decode_note(&value.ok_or(Error::Unknown { block })?)?.1.to_vec())
    }

    /// Returns the blocks that can be gone back to with their notes, ascending.
    ///
    /// # Errors
    /// Answer of the engine.
    pub fn notes(&self) -> Result<Vec<Tip>> {
        let mut notes = Vec::with_capacity(self.kept.len());
        read_notes(self.log.as_ref(), |note, _| {
            notes.push(note);
            Ok(())
        })?;
        Ok(notes)
    }

    /// Returns the present state.
    #[must_use]
    pub fn state(&self) -> &dyn State {
        self.state.as_ref()
    }

    /// Returns the longest key that the state takes, in bytes.
    #[must_use]
    pub fn key_bytes_max(&self) -> usize {
        self.engine.key_bytes_max()
    }

    /// Returns the longest value that the state takes, in bytes.
    #[must_use]
    pub fn value_bytes_max(&self) -> usize {
        self.engine.value_bytes_max()
    }

    /// Returns whether the state survives the end of the process once it is saved.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.engine.is_durable()
    }

    /// Makes `block`, whose number must be above the tip's, the newest one. `changes` are in key
    /// order, one per key, and `old` is what [`lookup`](State::lookup) gives now.
    ///
    /// # Errors
    /// Those of the engine; the history cannot be saved afterwards.
    pub fn append(&mut self, block: u64, note: Vec<u8>, changes: &[NetChange]) -> Result<()> {
        assert!(self.tip.as_ref().is_none_or(|tip| tip.block < block));
        let kept_after = self
            .keep_max
            .map_or(usize::MAX, |max| usize::try_from(max.max(1)).unwrap_or(usize::MAX));
        let dropped = (self.kept.len() + 1).saturating_sub(kept_after);

        let undo = encode_undo(changes);
        let note_value = encode_note(self.tip.as_ref().map_or(block, |tip| tip.block), &note);
        let (note_key, undo_key) = (record(NOTE, block), record(UNDO, block));
        let mut records = vec![
            Change { key: &note_key, value: Some(&note_value) },
            Change { key: &undo_key, value: Some(&undo) },
        ];
        let dropped_keys: Vec<_> = self
            .kept
            .iter()
            .take(dropped)
            .flat_map(|&block| [record(NOTE, block), record(UNDO, block)])
            .collect();
        records.extend(dropped_keys.iter().map(|key| Change { key, value: None }));
        let batch: Vec<_> = changes
            .iter()
            .map(|change| Change { key: &change.key, value: change.new.as_deref() })
            .collect();

        self.apply(&records, &batch)?;
        self.kept.drain(..dropped.min(self.kept.len()));
        self.kept.push_back(block);
        self.tip = Some(Tip { block, note });
        if self.engine.wants_commit() {
            return self.checkpoint();
        }
        self.hold_version(block)
    }

    /// Goes back to the state after `block`, or to the empty state. `progress` is told how many
    /// blocks were undone, and of how many; if it answers `false`, the history stays at the block
    /// reached.
    ///
    /// # Errors
    /// [`Error::NotKept`], [`Error::Ahead`] or [`Error::Unknown`] before anything is changed; what
    /// the engine says, and the history cannot be saved any more then.
    pub fn rollback(
        &mut self,
        block: Option<u64>,
        mut progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<()> {
        let Some(block) = block else {
            (self.state, self.log) = (self.engine.new_table()?, empty_log(self.engine.as_ref())?);
            (self.kept, self.versions, self.tip) = (VecDeque::new(), VecDeque::new(), None);
            self.points.clear();
            self.unsaved = true;
            return Ok(());
        };
        let tip = self.tip.as_ref().map(|tip| tip.block);
        let oldest =
            self.oldest().filter(|_| tip >= Some(block)).ok_or(Error::Ahead { block, tip })?;
        if block < oldest {
            return Err(Error::NotKept { block, oldest });
        }
        let place = self.kept.binary_search(&block).map_err(|_| Error::Unknown { block })?;
        if tip == Some(block) {
            return Ok(());
        }
        let total = (self.kept.len() - place - 1) as u64;

        // The oldest version that is new enough saves all the undoing above it.
        self.versions.truncate(self.versions.partition_point(|version| version.block < block) + 1);
        let nearest = self.nearest_version(block)?;
        // Until all of it has been done: what is half done must not be saved.
        let was_broken = std::mem::replace(&mut self.broken, true);
        if let Some(version) = nearest {
            (self.state, self.log) = (version.state, version.log);
            self.kept.truncate(self.kept.partition_point(|&kept| kept <= version.block));
            self.drop_records_below(oldest)?;
        }
        if self.versions.back().is_some_and(|version| version.block > block) {
            self.versions.pop_back();
        }
        while let Some(newest) = self.kept.back().copied().filter(|&newest| newest > block) {
            self.undo(newest)?;
            self.kept.pop_back();
            if !progress(total - (self.kept.len() - place - 1) as u64, total) {
                break;
            }
        }
        let block = self.kept.back().copied().unwrap_or(block);
        self.points.retain(|point| point.block <= Some(block));
        self.tip = Some(Tip { block, note: self.note(block)? });
        self.broken = was_broken;
        Ok(())
    }

    /// Makes the present state durable, unless it is already, and deletes the points that are of no
    /// use.
    ///
    /// # Errors
    /// Those of the engine; the earlier durable point is then still there.
    pub fn checkpoint(&mut self) -> Result<()> {
        if !self.unsaved || self.broken || !self.engine.is_durable() {
            return Ok(());
        }
        // Half a point may be left if this fails, so its number is spent either way.
        self.sequence += 1;
        let block = self.tip.as_ref().map(|tip| tip.block);
        let newest = Mark { sequence: self.sequence, block };
        let tables = (self.log.as_ref(), self.state.as_ref());
        self.names.save(self.engine.as_ref(), newest, tables)?;
        if !self.engine.keeps_snapshots() {
            self.points.clear();
        }
        let oldest = self.oldest();
        self.points.retain(|point| oldest <= point.block && point.block < block);
        if let (Some(oldest), Some(block)) = (oldest, block) {
            thin(&mut self.points, oldest, block, POINTS_MAX - 1);
        }
        self.points.push(newest);
        self.names.delete_others(self.engine.as_ref(), &self.points)?;
        self.unsaved = false;
        Ok(())
    }

    /// Returns the oldest version from `block` on, as one of its own; `None` if undoing from the
    /// present state is as good. No duplicate but the newest may be from `block` on.
    fn nearest_version(&mut self, block: u64) -> Result<Option<Version>> {
        let held = self.versions.back().map(|version| version.block).filter(|&held| held >= block);
        let near = held.map_or(self.kept.len(), |held| self.count_kept_to(held));
        let saves = |to| self.count_kept_to(to) + self.point_saves_min.max(1) <= near;
        let is_nearer = |point: &&Mark| point.block.is_some_and(|to| to >= block && saves(to));
        let points: Vec<_> = self.points.iter().filter(is_nearer).copied().collect();
        for point in points {
            if let Some(version) = self.open_point(point)? {
                return Ok(Some(version));
            }
            self.points.retain(|other| *other != point);
        }
        let Some(version) = self.versions.back().filter(|_| held.is_some()) else {
            return Ok(None);
        };
        let (state, log) = (version.state.fork()?, version.log.fork()?);
        Ok(Some(Version { block: version.block, state, log }))
    }

    /// Opens a durable point; `None` if it is not of this history, or has not all that is kept of
    /// it.
    fn open_point(&self, point: Mark) -> Result<Option<Version>> {
        let log = self.names.open_log(self.engine.as_ref(), point)?;
        let (kept, tip) = read_log(log.as_ref())?;
        let is_kept = |tip: &Tip| self.kept.binary_search(&tip.block).is_ok();
        let Some(tip) = tip.filter(|tip| Some(tip.block) == point.block && is_kept(tip)) else {
            return Ok(None);
        };
        let expected = self.kept.iter().take(self.count_kept_to(tip.block));
        let found = kept.iter().filter(|&&block| Some(block) >= self.oldest());
        if self.note(tip.block)? != tip.note || !found.eq(expected) {
            return Ok(None);
        }
        let state = self.names.open_state(self.engine.as_ref(), point)?;
        Ok(Some(Version { block: tip.block, state, log }))
    }

    /// How many of the blocks kept are not above `block`.
    fn count_kept_to(&self, block: u64) -> usize {
        self.kept.partition_point(|&kept| kept <= block)
    }

    /// Reverts the newest block and removes its records.
    fn undo(&mut self, block: u64) -> Result<()> {
        let (note_key, undo_key) = (record(NOTE, block), record(UNDO, block));
        let undo = self.log.get_many(&[&undo_key])?.pop().flatten();
        let undo = undo.ok_or(Error::Corrupt("a block has a note but no undo record"))?;
        let batch = decode_undo(&undo).ok_or(Error::Corrupt("an undo record cannot be read"))?;
        let records =
            [Change { key: &note_key, value: None }, Change { key: &undo_key, value: None }];
        self.apply(&records, &batch)
    }

    /// Removes the records of blocks below `oldest`: a duplicate still has those that were dropped
    /// after it was made.
    fn drop_records_below(&mut self, oldest: u64) -> Result<()> {
        let mut keys = Vec::new();
        let mut cursor = self.log.scan(&[NOTE])?;
        while let Some(entry) = cursor.next()? {
            let Some(block) = note_block(&entry)?.filter(|&block| block < oldest) else { break };
            keys.extend([record(NOTE, block), record(UNDO, block)]);
        }
        drop(cursor);
        let records: Vec<_> = keys.iter().map(|key| Change { key, value: None }).collect();
        self.apply(&records, &[])
    }

    /// Applies one batch to each table; once one of them failed the two may disagree.
    fn apply(&mut self, records: &[Change<'_>], batch: &[Change<'_>]) -> Result<()> {
        self.unsaved = true;
        let applied = self.log.update(records).and_then(|()| self.state.update(batch));
        self.broken |= applied.is_err();
        Ok(applied?)
    }

    fn hold_version(&mut self, block: u64) -> Result<()> {
        self.since_version += 1;
        if self.versions_max == 0 || self.since_version < self.version_spacing {
            return Ok(());
        }
        self.since_version = 0;
        let (state, log) = (self.state.fork()?, self.log.fork()?);
        self.versions.push_back(Version { block, state, log });
        let oldest = self.oldest();
        while self.versions.len() > self.versions_max
            || self.versions.front().is_some_and(|version| Some(version.block) < oldest)
        {
            self.versions.pop_front();
        }
        Ok(())
    }
}

fn empty_log(engine: &dyn Engine) -> Result<Box<dyn Table>> {
    let mut log = engine.new_table()?;
    log.update(&[Change { key: VERSION_KEY, value: Some(&[VERSION]) }])?;
    Ok(log)
}

/// Reads the numbers of the blocks kept, and the newest one's note.
fn read_log(log: &dyn Table) -> Result<(VecDeque<u64>, Option<Tip>)> {
    match log.get_many(&[VERSION_KEY])?.pop().flatten().as_deref() {
        Some([VERSION]) => {}
        Some([found]) => return Err(Error::Version { found: *found }),
        _ => return Err(Error::Corrupt("its version is missing")),
    }
    let (mut kept, mut tip) = (VecDeque::new(), None);
    read_notes(log, |note, before| {
        if kept.back().is_some_and(|&last| last != before) {
            return Err(Error::Corrupt("a block is missing between two that are kept"));
        }
        kept.push_back(note.block);
        tip = Some(note);
        Ok(())
    })?;
    Ok((kept, tip))
}

/// Gives all notes to `visit`, ascending by block, each with the number of the block before.
fn read_notes(log: &dyn Table, mut visit: impl FnMut(Tip, u64) -> Result<()>) -> Result<()> {
    let mut cursor = log.scan(&[NOTE])?;
    while let Some(entry) = cursor.next()? {
        let Some(block) = note_block(&entry)? else { break };
        let (before, note) = decode_note(&entry.value)?;
        visit(Tip { block, note: note.to_vec() }, before)?;
    }
    Ok(())
}

/// Returns the block that an entry of the log is the note of; `None` if it is another record.
fn note_block(entry: &Entry) -> Result<Option<u64>> {
    let Some((&NOTE, number)) = entry.key.split_first() else { return Ok(None) };
    let number = number.try_into().map_err(|_| Error::Corrupt("a key has a wrong length"))?;
    Ok(Some(block_number(number)))
}

fn encode_note(before: u64, note: &[u8]) -> Vec<u8> {
    [before.to_le_bytes().as_slice(), note].concat()
}

/// Returns the number of the block before and the replay's own bytes.
fn decode_note(value: &[u8]) -> Result<(u64, &[u8])> {
    let (before, note) =
        value.split_first_chunk::<8>().ok_or(Error::Corrupt("a note is too short"))?;
    Ok((u64::from_le_bytes(*before), note))
}

#[expect(clippy::big_endian_bytes, reason = "so that key order is block order")]
fn record(kind: u8, block: u64) -> [u8; 9] {
    let mut key = [kind; 9];
    key[1..].copy_from_slice(&block.to_be_bytes());
    key
}

#[expect(clippy::big_endian_bytes, reason = "so that key order is block order")]
fn block_number(bytes: [u8; 8]) -> u64 {
    u64::from_be_bytes(bytes)
}

fn encode_undo(changes: &[NetChange]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for NetChange { key, old, .. } in changes {
        put_sized(&mut bytes, key);
        match old {
            None => bytes.push(0),
            Some(value) => {
                bytes.push(1);
                put_sized(&mut bytes, value);
            }
        }
    }
    bytes
}

fn put_sized(bytes: &mut Vec<u8>, part: &[u8]) {
    // Engines refuse keys and values of 4 GiB, and did so before they got here.
    bytes.extend(u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(part);
}

/// Returns the changes that revert a block; `None` if the bytes break the format.
fn decode_undo(mut bytes: &[u8]) -> Option<Vec<Change<'_>>> {
    let mut batch = Vec::new();
    while !bytes.is_empty() {
        let key = take_sized(&mut bytes)?;
        let (&tag, rest) = bytes.split_first()?;
        bytes = rest;
        let value = match tag {
            0 => None,
            1 => Some(take_sized(&mut bytes)?),
            _ => return None,
        };
        batch.push(Change { key, value });
    }
    Some(batch)
}

fn take_sized<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (size, rest) = bytes.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
    *bytes = rest;
    Some(part)
}

#[cfg(test)]
mod tests;
