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
//! Block numbers rise but need not be dense.
//! Within a process some of the newest versions are also held as duplicates, where the engine makes
//! them cheaply: going far back starts from the nearest one and undoes only what is left. They are
//! some blocks apart because a duplicate makes the next update of a write buffer a new part of it.

use std::collections::VecDeque;

use super::checkpoints::Names;
use crate::engine::{Change, Engine, EngineError, Entry, Table};
use crate::error::Class;

const VERSION: u8 = 2;
const VERSION_KEY: &[u8] = &[0];
const NOTE: u8 = 1;
const UNDO: u8 = 2;
/// Blocks from one version held as a duplicate to the next.
const VERSION_SPACING: u32 = 256;

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

type Result<T> = std::result::Result<T, Error>;

/// What a block does to one key.
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
    /// What the replay noted with it.
    pub note: Vec<u8>,
}

/// The state after a block, held as duplicates.
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
    pub(super) fn open(
        engine: Box<dyn Engine>,
        names: Names,
        keep_max: Option<u64>,
        versions_max: usize,
    ) -> Result<Self> {
        let point = names.latest(engine.as_ref())?;
        let (sequence, state, log) = match point {
            Some(point) => (point.sequence, point.state, point.log),
            None => (0, engine.new_table()?, empty_log(engine.as_ref())?),
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
        let value = self.log.lookup(&[&record(NOTE, block)])?.pop().flatten();
        Ok(decode_note(&value.ok_or(Error::Unknown { block })?)?.1.to_vec())
    }

    /// Returns the blocks that can be gone back to with their notes, ascending.
    ///
    /// # Errors
    /// What the engine says.
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
    pub fn state(&self) -> &dyn Table {
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
    /// order, one per key, and `old` is what [`lookup`](Table::lookup) gives now.
    ///
    /// # Errors
    /// What the engine says; the history cannot be saved any more then.
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

        // The oldest duplicate that is new enough saves all the undoing above it.
        self.versions.truncate(self.versions.partition_point(|version| version.block < block) + 1);
        if let Some(version) = self.versions.back().filter(|version| version.block >= block) {
            let duplicates = (version.state.duplicate()?, version.log.duplicate()?);
            (self.state, self.log) = duplicates;
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
        self.tip = Some(Tip { block, note: self.note(block)? });
        Ok(())
    }

    /// Makes the present state durable, unless it is already.
    ///
    /// # Errors
    /// What the engine says; the earlier durable point is then still there.
    pub fn checkpoint(&mut self) -> Result<()> {
        if !self.unsaved || self.broken || !self.engine.is_durable() {
            return Ok(());
        }
        let height = self.tip.as_ref().map(|tip| tip.block);
        let sequence = self.sequence + 1;
        // Half a point may be left if this fails, so its number is spent either way.
        self.sequence = sequence;
        let (log, state) = (self.log.as_ref(), self.state.as_ref());
        self.names.save(self.engine.as_ref(), sequence, height, log, state)?;
        self.unsaved = false;
        Ok(())
    }

    /// Reverts the newest block and removes its records.
    fn undo(&mut self, block: u64) -> Result<()> {
        let (note_key, undo_key) = (record(NOTE, block), record(UNDO, block));
        let undo = self.log.lookup(&[&undo_key])?.pop().flatten();
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
        let (state, log) = (self.state.duplicate()?, self.log.duplicate()?);
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
    match log.lookup(&[VERSION_KEY])?.pop().flatten().as_deref() {
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
mod tests {
    use std::collections::BTreeMap;

    use terrane_testkit::draw::Draw as _;
    use terrane_testkit::seeds::for_each_seed;
    use terrane_testkit::{ChaCha8Rng, RngCore as _};

    use super::*;
    use crate::engines::memory::Memory;

    type Model = BTreeMap<Vec<u8>, Vec<u8>>;

    fn names() -> Names {
        Names { log: "log", state: "state", label: "test".to_owned() }
    }

    fn content(table: &dyn Table) -> Model {
        let mut cursor = table.scan(&[]).unwrap();
        let mut content = Model::new();
        while let Some(entry) = cursor.next().unwrap() {
            content.insert(entry.key, entry.value);
        }
        content
    }

    /// Appends and rolls back at random, with `versions_max` duplicates, against a list of maps.
    fn walk(rng: &mut ChaCha8Rng, keep_max: Option<u64>, versions_max: usize, spacing: u32) {
        let mut history = History::open(Box::new(Memory), names(), keep_max, versions_max).unwrap();
        history.version_spacing = spacing;
        let mut models: Vec<(u64, Model)> = Vec::new();
        for step in 0..300 {
            let context = format!("step {step}");
            if rng.chance(1, 8) && !models.is_empty() {
                let index = rng.index(models.len());
                let block = models[index].0;
                match history.rollback(Some(block), |_, _| true) {
                    Ok(()) => models.truncate(index + 1),
                    Err(Error::NotKept { oldest, .. }) => assert!(block < oldest, "{context}"),
                    Err(error) => panic!("{context}: {error}"),
                }
            } else {
                let mut model = models.last().map(|(_, model)| model.clone()).unwrap_or_default();
                let block = models.last().map_or(0, |(block, _)| block + 1 + rng.below(3));
                let mut changes = BTreeMap::new();
                for _ in 0..rng.below(6) {
                    let key = rng.below(16).to_le_bytes()[..1].to_vec();
                    let value = rng.next_u64().to_le_bytes().to_vec();
                    let new = rng.chance(2, 3).then_some(value);
                    let old = model.get(&key).cloned();
                    changes.insert(key.clone(), NetChange { key, old, new });
                }
                for change in changes.values() {
                    match &change.new {
                        Some(value) => model.insert(change.key.clone(), value.clone()),
                        None => model.remove(&change.key),
                    };
                }
                let changes: Vec<_> = changes.into_values().collect();
                history.append(block, block.to_le_bytes().to_vec(), &changes).unwrap();
                models.push((block, model));
            }
            let Some((block, model)) = models.last() else { continue };
            assert_eq!(&content(history.state()), model, "{context}");
            let note = block.to_le_bytes().to_vec();
            assert_eq!(history.tip(), Some(&Tip { block: *block, note }), "{context}");
            if let Some(max) = keep_max {
                assert!(history.kept().count() as u64 <= max, "{context}");
            }
            // What a process that opens the store next would read.
            let (kept, _) = read_log(history.log.as_ref()).unwrap();
            assert_eq!(kept, history.kept, "{context}");
        }
    }

    #[test]
    fn going_back_gives_the_old_state_whether_by_duplicate_or_by_undo() {
        let name = "going_back_gives_the_old_state_whether_by_duplicate_or_by_undo";
        for_each_seed(name, 16, |rng, _| {
            for (versions_max, spacing) in [(0, 1), (1, 1), (5, 1), (5, 4), (usize::MAX, 3)] {
                walk(rng, None, versions_max, spacing);
                walk(rng, Some(10), versions_max, spacing);
            }
        });
    }

    /// A duplicate of the log holds notes that were dropped from the log itself later on. Going back
    /// by it brought them back, nothing ever dropped them again, and the next process took them and
    /// the blocks kept since for one history: it went back to a block of the leaked part through
    /// undo records that had a gap, and reported a state that never was.
    #[test]
    fn going_back_by_a_duplicate_brings_back_no_block_that_was_dropped() {
        let mut history = History::open(Box::new(Memory), names(), Some(4), 8).unwrap();
        history.version_spacing = 1;
        for block in 0..10 {
            history.append(block, Vec::new(), &[]).unwrap();
        }
        history.rollback(Some(7), |_, _| true).unwrap();
        for block in 8..20 {
            let notes: Vec<_> = history.notes().unwrap().iter().map(|note| note.block).collect();
            assert_eq!(notes, history.kept().collect::<Vec<_>>(), "before block {block}");
            history.append(block, Vec::new(), &[]).unwrap();
        }
        let (kept, tip) = read_log(history.log.as_ref()).unwrap();
        assert_eq!((kept, tip), (history.kept, history.tip));
    }

    /// An interruption was looked for only when the last block had been undone.
    #[test]
    fn going_back_stops_between_two_blocks_when_told_to() {
        let mut history = History::open(Box::new(Memory), names(), None, 0).unwrap();
        for block in 1..=10 {
            let (key, new) = (vec![0], Some(vec![block]));
            let old = (block > 1).then(|| vec![block - 1]);
            let changes = [NetChange { key, old, new }];
            history.append(block.into(), vec![block], &changes).unwrap();
        }
        history.rollback(Some(2), |done, _| done < 3).unwrap();
        assert_eq!(history.tip(), Some(&Tip { block: 7, note: vec![7] }));
        assert_eq!(content(history.state()), Model::from([(vec![0], vec![7])]));
        assert!(history.kept().eq(1..=7));
    }

    #[test]
    fn a_log_with_a_gap_is_refused() {
        let mut history = History::open(Box::new(Memory), names(), None, 0).unwrap();
        for block in [1, 2, 4, 9] {
            history.append(block, Vec::new(), &[]).unwrap();
        }
        let mut log = history.log;
        log.update(&[Change { key: &record(NOTE, 1), value: None }]).unwrap();
        assert_eq!(read_log(log.as_ref()).unwrap().0, [2, 4, 9]);
        log.update(&[Change { key: &record(NOTE, 4), value: None }]).unwrap();
        assert!(matches!(read_log(log.as_ref()), Err(Error::Corrupt(_))));
    }

    #[test]
    fn every_cut_of_an_undo_record_is_refused_or_shorter() {
        let change = |old: Option<&[u8]>| NetChange {
            key: b"key".to_vec(),
            old: old.map(<[u8]>::to_vec),
            new: None,
        };
        let bytes = encode_undo(&[change(None), change(Some(b"value")), change(Some(b""))]);
        let whole = decode_undo(&bytes).unwrap();
        assert_eq!(whole.len(), 3);
        assert_eq!(whole[1].value, Some(&b"value"[..]));
        for length in 0..bytes.len() {
            let decoded = decode_undo(&bytes[..length]);
            assert!(decoded.is_none_or(|batch| batch.len() < 3), "cut to {length}");
        }
    }

    #[test]
    fn a_target_outside_the_history_changes_nothing() {
        let mut history = History::open(Box::new(Memory), names(), Some(2), 0).unwrap();
        let ahead = history.rollback(Some(1), |_, _| true);
        assert!(matches!(ahead, Err(Error::Ahead { tip: None, .. })));
        for block in [10, 20, 30] {
            history.append(block, Vec::new(), &[]).unwrap();
        }
        let mut refused = |block| history.rollback(Some(block), |_, _| true).unwrap_err();
        assert!(matches!(refused(10), Error::NotKept { oldest: 20, .. }));
        assert!(matches!(refused(25), Error::Unknown { block: 25 }));
        assert!(matches!(refused(31), Error::Ahead { tip: Some(30), .. }));
        assert_eq!(history.tip().unwrap().block, 30);
    }
}
