//! State that goes forward and back by blocks: the table itself, its undo log, and durable points.
//!
//! Every block is one batch on the state and one on the log. The log has two records per kept
//! block:
//!
//! | key                       | value                                                           |
//! |---------------------------|-----------------------------------------------------------------|
//! | `00`                      | version of this format, one byte, now 2                         |
//! | `01` ‖ block, u64-BE      | the note: u64-LE, the block before (the first block ever: its   |
//! |                           | own number) ‖ bytes of the replay's own (hash, counters)        |
//! | `02` ‖ block, u64-BE      | per changed key: u32-LE length ‖ key ‖ the value before, as     |
//! |                           | `00` for absent or `01` ‖ u32-LE length ‖ value                 |
//!
//! Invariants:
//!
//! * The newest note is that of the state, and the log goes back together with the state.
//! * The kept blocks are the newest blocks of the history, without a gap. Each note names the block
//!   before, which shows a gap. Block numbers rise and need not be dense.
//! * Notes tell histories apart: equal notes mean equal states.
//!
//! Going far back starts from the nearest version and undoes the rest by records. Versions are
//!
//! * within a process, forks, where the engine makes forks cheaply. They lie some blocks apart,
//!   because a fork makes the next update of a memtable begin a new part;
//! * across processes, older durable points, a bounded number as far as blocks are kept. A point
//!   belongs to the present history if the note of its newest block equals the note that the
//!   present log has for that block. The next durable point deletes all other points, and those of
//!   blocks that were gone back from.

use std::collections::VecDeque;

use terrane::io::ErrorKind;

use super::checkpoints::{Mark, Names, StoredPoints, thin};
use crate::engines::engine::{Change, Engine, EngineError, Entry, State, Table};
use crate::error::Class;

/// Version of the format of the log.
const VERSION: u8 = 2;
/// Key of the version.
const VERSION_KEY: &[u8] = &[0];
/// First byte of the key of a note.
const NOTE: u8 = 1;
/// First byte of the key of an undo record.
const UNDO: u8 = 2;
/// Blocks from one fork that is held as a version to the next.
const VERSION_SPACING: u32 = 256;
/// Durable points kept, the newest included. Each pins the runs of its time.
const POINTS_MAX: usize = 16;
/// Undone blocks that opening a durable point must save, because opening reads the filters and
/// indexes of the whole state.
const POINT_SAVES_MIN: usize = 64;

/// Reason why a call on a history failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The undo log breaks a rule of its format.
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
    /// Returns the class of the error, from which the exit code follows.
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

impl Error {
    /// Returns the kind of the error, if it says more than the class.
    #[must_use]
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Engine(error) => error.kind(),
            Self::Corrupt(_) => Some(ErrorKind::Corrupt),
            Self::Version { .. } => Some(ErrorKind::Unsupported),
            Self::NotKept { .. } | Self::Ahead { .. } | Self::Unknown { .. } => None,
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
    /// Value before the block.
    pub old: Option<Vec<u8>>,
    /// Value after the block.
    pub new: Option<Vec<u8>>,
}

/// Newest block of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tip {
    /// Number of the block.
    pub block: u64,
    /// Note of the replay.
    pub note: Vec<u8>,
}

/// State after a block, in forked tables.
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
    /// Whether the newest durable point is older than the present state.
    unsaved: bool,
    /// Whether a call failed half way. State and log may then disagree, and must not become
    /// durable.
    broken: bool,
}

impl History {
    /// Opens the newest durable point, or the empty state in an empty store.
    ///
    /// The history keeps the newest `keep_max` blocks, or all with `None`, and holds up to
    /// `versions_max` forks to go back faster.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Version`], and those of the engine.
    pub(crate) fn open(
        engine: Box<dyn Engine>,
        names: Names,
        keep_max: Option<u64>,
        versions_max: usize,
    ) -> Result<Self> {
        // Without a saved point the history begins with empty tables.
        let (sequence, points, state, log) = match names.find(engine.as_ref())? {
            Some(StoredPoints { sequence, newest, marks }) => {
                (sequence, marks, newest.state, newest.log)
            }
            None => (0, Vec::new(), engine.new_table()?, empty_log(engine.as_ref())?),
        };

        // The kept blocks and the tip come from the log alone.
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
    /// [`Error::Unknown`] if the block is not kept; those of the engine.
    pub fn note(&self, block: u64) -> Result<Vec<u8>> {
        let value = self.log.get_many(&[&record(NOTE, block)])?.pop().flatten();
        Ok(decode_note(&value.ok_or(Error::Unknown { block })?)?.1.to_vec())
    }

    /// Returns the blocks that can be gone back to with their notes, ascending.
    ///
    /// # Errors
    /// Those of the engine.
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

    /// Returns the name of the snapshot that holds the present state; `None` if it is not durable.
    #[must_use]
    pub fn snapshot(&self) -> Option<String> {
        // Unsaved changes are in no snapshot.
        let newest = self.points.last().filter(|_| !self.unsaved)?;
        Some(self.names.state_name(*newest))
    }

    /// Returns whether the state survives the end of the process once it is saved.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.engine.is_durable()
    }

    /// Makes `block`, whose number must be above the tip's, the newest one. `changes` are in key
    /// order, one per key; their `old` values are those of the present state.
    ///
    /// # Errors
    /// Those of the engine; the history cannot be saved afterwards.
    pub fn append(&mut self, block: u64, note: Vec<u8>, changes: &[NetChange]) -> Result<()> {
        assert!(self.tip.as_ref().is_none_or(|tip| tip.block < block), "block numbers rise");
        debug_assert!(changes.is_sorted_by(|left, right| left.key < right.key), "one change a key");
        debug_assert_eq!(self.kept.back(), self.tip.as_ref().map(|tip| &tip.block));

        // The new block counts among the kept ones, so at least one block is kept.
        let kept_after = self
            .keep_max
            .map_or(usize::MAX, |max| usize::try_from(max.max(1)).unwrap_or(usize::MAX));
        let dropped = (self.kept.len() + 1).saturating_sub(kept_after);

        // One batch adds the records of the block and removes those of blocks that are no longer
        // kept.
        let undo = encode_undo(changes);
        let note_value = encode_note(self.tip.as_ref().map_or(block, |tip| tip.block), &note);

        let note_key = record(NOTE, block);
        let undo_key = record(UNDO, block);
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
        // The kept blocks change only once the log has changed.
        self.kept.drain(..dropped.min(self.kept.len()));
        self.kept.push_back(block);
        self.tip = Some(Tip { block, note });

        if self.engine.wants_commit() {
            return self.checkpoint();
        }

        self.hold_version(block)
    }

    /// Goes back to the state after `block`, or to the empty state. `progress` gets the number of
    /// undone blocks and the total. If it answers `false`, the history stays at the block reached.
    ///
    /// # Errors
    /// [`Error::NotKept`], [`Error::Ahead`] or [`Error::Unknown`] before any change. After an error
    /// of the engine the history cannot be saved any more.
    pub fn rollback(
        &mut self,
        block: Option<u64>,
        mut progress: impl FnMut(u64, u64) -> bool,
    ) -> Result<()> {
        let Some(block) = block else {
            // The empty state has no undo records: both tables begin anew.
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

        // A rollback that fails half way leaves state and log apart, and must not be saved.
        let was_broken = std::mem::replace(&mut self.broken, true);
        if let Some(version) = nearest {
            (self.state, self.log) = (version.state, version.log);
            self.kept.truncate(self.kept.partition_point(|&kept| kept <= version.block));
            self.drop_records_below(oldest)?;
        }

        // The version above the target was only a start; its block is gone back from.
        if self.versions.back().is_some_and(|version| version.block > block) {
            self.versions.pop_back();
        }
        debug_assert!(self.versions.iter().all(|version| version.block <= block));

        while let Some(newest) = self.kept.back().copied().filter(|&newest| newest > block) {
            self.undo(newest)?;
            self.kept.pop_back();
            if !progress(total - (self.kept.len() - place - 1) as u64, total) {
                break;
            }
        }

        let block = self.kept.back().copied().unwrap_or(block);
        // Points above the new tip are of a branch that was left.
        self.points.retain(|point| point.block <= Some(block));
        self.tip = Some(Tip { block, note: self.note(block)? });
        self.broken = was_broken;

        Ok(())
    }

    /// Makes the present state durable, unless it is durable already, and deletes useless points.
    ///
    /// # Errors
    /// Those of the engine; the earlier durable point is then still there.
    pub fn checkpoint(&mut self) -> Result<()> {
        if !self.unsaved || self.broken || !self.engine.is_durable() {
            return Ok(());
        }

        // If saving fails, half a point may be left, so its sequence number is never used again.
        self.sequence += 1;
        let block = self.tip.as_ref().map(|tip| tip.block);
        let newest = Mark { sequence: self.sequence, block };
        let tables = (self.log.as_ref(), self.state.as_ref());
        self.names.save(self.engine.as_ref(), newest, tables)?;

        if !self.engine.keeps_snapshots() {
            // Without older snapshots there are no older points.
            self.points.clear();
        }

        // Points below the oldest kept block, and points of abandoned branches, lead nowhere.
        let oldest = self.oldest();
        self.points.retain(|point| oldest <= point.block && point.block < block);
        if let (Some(oldest), Some(block)) = (oldest, block) {
            thin(&mut self.points, oldest, block, POINTS_MAX - 1);
        }
        self.points.push(newest);
        debug_assert!(self.points.len() <= POINTS_MAX);
        debug_assert!(self.points.is_sorted_by(|left, right| left.sequence < right.sequence));
        self.names.delete_others(self.engine.as_ref(), &self.points)?;
        self.unsaved = false;

        Ok(())
    }

    /// Returns a copy of the oldest version from `block` on; `None` if undoing from the present
    /// state is as good. Of the held versions, only the newest may be from `block` on.
    fn nearest_version(&mut self, block: u64) -> Result<Option<Version>> {
        // A durable point is worth opening only where it saves enough blocks over the nearest fork.
        let held = self.versions.back().map(|version| version.block).filter(|&held| held >= block);
        let near = held.map_or(self.kept.len(), |held| self.count_kept_to(held));
        let saves = |to| self.count_kept_to(to) + self.point_saves_min.max(1) <= near;
        let is_nearer = |point: &&Mark| point.block.is_some_and(|to| to >= block && saves(to));
        let points: Vec<_> = self.points.iter().filter(is_nearer).copied().collect();

        // A point that cannot be used is forgotten, and the next one is tried.
        for point in points {
            if let Some(version) = self.open_point(point)? {
                return Ok(Some(version));
            }
            self.points.retain(|other| *other != point);
        }

        let Some(version) = self.versions.back().filter(|_| held.is_some()) else {
            return Ok(None);
        };
        // The held version stays as it is: only a copy of it changes.
        let state = version.state.fork()?;
        let log = version.log.fork()?;

        Ok(Some(Version { block: version.block, state, log }))
    }

    /// Opens a durable point; `None` if the point is of another branch, or lacks blocks that are
    /// still kept.
    fn open_point(&self, point: Mark) -> Result<Option<Version>> {
        let log = self.names.open_log(self.engine.as_ref(), point)?;
        let (kept, tip) = read_log(log.as_ref())?;

        // A point may be of a branch that was left.
        let is_kept = |tip: &Tip| self.kept.binary_search(&tip.block).is_ok();
        let Some(tip) = tip.filter(|tip| Some(tip.block) == point.block && is_kept(tip)) else {
            return Ok(None);
        };

        debug_assert_eq!(
            self.kept.get(self.count_kept_to(tip.block) - 1),
            Some(&tip.block),
            "a kept block"
        );

        // The log of the point must hold exactly the blocks that the present log keeps up to there.
        let expected = self.kept.iter().take(self.count_kept_to(tip.block));
        let found = kept.iter().filter(|&&block| Some(block) >= self.oldest());

        if self.note(tip.block)? != tip.note || !found.eq(expected) {
            return Ok(None);
        }
        // The state is opened only once the log fits.
        let state = self.names.open_state(self.engine.as_ref(), point)?;

        Ok(Some(Version { block: tip.block, state, log }))
    }

    /// Number of kept blocks that are not above `block`.
    fn count_kept_to(&self, block: u64) -> usize {
        self.kept.partition_point(|&kept| kept <= block)
    }

    /// Reverts the newest block and removes its records.
    fn undo(&mut self, block: u64) -> Result<()> {
        let note_key = record(NOTE, block);
        let undo_key = record(UNDO, block);
        let undo = self.log.get_many(&[&undo_key])?.pop().flatten();
        let undo = undo.ok_or(Error::Corrupt("a block has a note but no undo record"))?;
        let batch = decode_undo(&undo).ok_or(Error::Corrupt("an undo record cannot be read"))?;
        let records =
            [Change { key: &note_key, value: None }, Change { key: &undo_key, value: None }];
        self.apply(&records, &batch)
    }

    /// Removes the records of blocks below `oldest`. An older fork of the log still has records
    /// that were dropped after the fork.
    fn drop_records_below(&mut self, oldest: u64) -> Result<()> {
        let mut keys = Vec::new();
        // Notes stand in the order of their blocks, so the first kept one ends the scan.
        let mut cursor = self.log.scan(&[NOTE])?;
        while let Some(entry) = cursor.next()? {
            let Some(block) = note_block(&entry)?.filter(|&block| block < oldest) else { break };
            keys.extend([record(NOTE, block), record(UNDO, block)]);
        }
        // The cursor goes before its table changes.
        drop(cursor);
        let records: Vec<_> = keys.iter().map(|key| Change { key, value: None }).collect();
        self.apply(&records, &[])
    }

    /// Applies one batch to each table. If either batch fails, the tables may disagree.
    fn apply(&mut self, records: &[Change<'_>], batch: &[Change<'_>]) -> Result<()> {
        self.unsaved = true;
        // The log goes first: without its undo record a block could not be undone.
        let applied = self.log.update(records).and_then(|()| self.state.update(batch));
        self.broken |= applied.is_err();
        Ok(applied?)
    }

    /// Forks both tables as a version, if the newest version is far enough behind.
    fn hold_version(&mut self, block: u64) -> Result<()> {
        self.since_version += 1;
        // Versions are held some blocks apart, so that few of them cover many blocks.
        if self.versions_max == 0 || self.since_version < self.version_spacing {
            return Ok(());
        }
        self.since_version = 0;
        let state = self.state.fork()?;
        let log = self.log.fork()?;
        self.versions.push_back(Version { block, state, log });

        // Versions below the oldest kept block lead nowhere.
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

/// Reads the numbers of the kept blocks, and the note of the newest block.
fn read_log(log: &dyn Table) -> Result<(VecDeque<u64>, Option<Tip>)> {
    // Another version has records that this program cannot read.
    match log.get_many(&[VERSION_KEY])?.pop().flatten().as_deref() {
        Some([VERSION]) => {}
        Some([found]) => return Err(Error::Version { found: *found }),
        _ => return Err(Error::Corrupt("its version is missing")),
    }

    let mut kept = VecDeque::new();
    let mut tip = None;
    read_notes(log, |note, before| {
        // Each note names the block before, so that a lost record is noticed.
        if kept.back().is_some_and(|&last| last != before) {
            return Err(Error::Corrupt("a block is missing between two that are kept"));
        }
        kept.push_back(note.block);
        tip = Some(note);
        Ok(())
    })?;

    Ok((kept, tip))
}

/// Calls `visit` with all notes, ascending by block, each with the number of the block before.
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
    // Undo records stand behind the notes and end the scan.
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
    // Engines refuse keys and values of 4 GiB before they get here.
    debug_assert!(u32::try_from(part.len()).is_ok());
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
