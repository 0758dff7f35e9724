//! Replay of a neutral history of changes, with the checks that it carries.
//!
//! A history is text, one record a line, and knows nothing of engines; the format is described in
//! the contract of the command and read by the module `record`. Records of a block are gathered,
//! then the block is one bulk lookup and one atomic batch of its net change.
//!
//! The note of a block in the undo log:
//!
//! | bytes | meaning                                                                     |
//! |-------|-----------------------------------------------------------------------------|
//! | 32    | identity of the history up to the block: SHA-256 over the identity before,  |
//! |       | the number and the changes; zeros before the first block                    |
//! | 32    | origin: identity of the first block ever applied, undone since or not       |
//! | 8     | start: number of the block after which the input began that the block is    |
//! |       | of, u64-LE; 0 if it began with the empty state                              |
//! | 32    | identity of that block; zeros if it began with the empty state              |
//! | 8     | live entries, u64-LE                                                        |
//!
//! **Resuming.** The blocks that the store has are read over, not applied. Since histories go back
//! and forth, a block number alone does not tell whether the input has arrived at the store's
//! state; the identity does. The origin tells an input that begins where the history began from
//! one that goes on where the store is; the start tells where an input began that was replayed in
//! part, even if the block before it is no longer kept.

// Bottom-up: a module imports only from modules above it.
mod input;
mod record;
mod error;
mod block;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use terrane::lsm::StateDigest;

pub use self::error::Error;
pub use self::input::{LINE_BYTES_MAX, LinePlace};
pub use self::record::Malformed;

use self::block::{ChainId, Disagreement, EMPTY_CHAIN, OpenBlock};
use self::input::Lines;
use self::record::{Expected, FIRST_LINE, Record};
use crate::engines::engine::Engine;
use crate::hex;
use crate::ledger::Ledger;
use crate::ledger::checkpoints::Names;
use crate::ledger::history::History;
use crate::monitor::{Monitor, Phase};

/// Options of a replay.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether to go on from a store that has blocks already.
    pub resume: bool,
    /// Number of the newest blocks that can be gone back to; all if `None`.
    pub keep_versions: Option<u64>,
    /// Blocks between two durable points, beside the one at the end; at least 1.
    pub checkpoint_every: u64,
    /// Bytes of a line of the input at most.
    pub line_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            resume: false,
            keep_versions: None,
            checkpoint_every: 1000,
            line_bytes_max: LINE_BYTES_MAX,
        }
    }
}

/// Report of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Blocks applied in this call.
    pub blocks: u64,
    /// Number of the newest block; `None` in the empty state.
    pub height: Option<u64>,
    /// `put` records applied.
    pub puts: u64,
    /// `del` records applied.
    pub deletes: u64,
    /// `get` records checked.
    pub gets: u64,
    /// `rollback` records followed.
    pub rollbacks: u64,
    /// Checks that passed: each `get`, and each field of `end`, `expect` and `range`.
    pub checks_passed: u64,
    /// Live entries.
    pub count: u64,
    /// Digest of the state.
    pub digest: String,
    /// The engine's commitments to the state, by scheme.
    pub roots: BTreeMap<String, String>,
    /// Time this call took, in seconds.
    pub wall_s: f64,
    /// `put` and `del` records per second.
    pub changes_per_s: f64,
}

/// Replays the histories of `paths`, one after the other, on `engine`.
///
/// Cost: one bulk lookup and two batches per block; one pass over the state per check of a digest
/// and at the end. A block lies in memory, never the input; 8 bytes per block kept, and 40 per
/// block read over while resuming.
///
/// # Errors
/// See [`Error`]. Unless the engine failed, the state of the last whole block is durable then.
pub fn replay(
    engine: Box<dyn Engine>,
    paths: &[PathBuf],
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report, Error> {
    let versions_max = engine.forks_max();
    let label = "terrane replay changes".to_owned();
    let names = Names { log: "blocks", state: "state", label };
    let history = History::open(engine, names, options.keep_versions, versions_max)?;
    replay_on(Box::new(history), paths, options, monitor)
}

/// Replays on an open state, which decides itself how many versions it keeps.
///
/// # Errors
/// Those of [`replay`].
pub fn replay_on(
    history: Box<dyn Ledger>,
    paths: &[PathBuf],
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report, Error> {
    let started = Instant::now();
    // A store with blocks is continued only if the caller asks for it.
    let skip = match history.tip().map(|tip| tip.block) {
        Some(tip) if !options.resume => return Err(Error::NotEmpty { tip }),
        tip => tip.map(|_| Skip::default()),
    };

    let mut replay = Replay {
        history,
        options,
        monitor,
        skip,
        block: None,
        origin: None,
        start: None,
        unsaved: 0,
        totals: Totals::default(),
    };

    replay.origin = replay.tip_note()?.map(|note| note.origin);
    let outcome = replay.run(paths);
    // A history that failed must not be saved.
    if let Err(Error::History(error)) = outcome {
        return Err(error.into());
    }

    // A failed check or an interruption must not cost the good blocks before it.
    replay.history.checkpoint()?;
    outcome?;
    replay.report(started)
}

/// Sums over the blocks applied in this call.
#[derive(Debug, Default)]
struct Totals {
    blocks: u64,
    puts: u64,
    deletes: u64,
    gets: u64,
    rollbacks: u64,
    checks_passed: u64,
}

/// Blocks of the input that the store has already. The last block is the position of the input.
#[derive(Debug, Default)]
struct Skip {
    /// Whether the first block of the input has been read, which shows where the input begins.
    begun: bool,
    chain: Vec<(u64, ChainId)>,
}

impl Skip {
    fn id(&self) -> ChainId {
        self.chain.last().map_or(EMPTY_CHAIN, |&(_, id)| id)
    }
}

struct Replay<'a> {
    history: Box<dyn Ledger>,
    options: &'a Options,
    monitor: &'a mut dyn Monitor,
    /// Present while the input is behind the store: blocks are read and not applied.
    skip: Option<Skip>,
    block: Option<OpenBlock>,
    /// The first block ever applied.
    origin: Option<ChainId>,
    /// Beginning of the input; `None` until the first block has been read.
    start: Option<Start>,
    /// Blocks applied since the state was last made durable.
    unsaved: u64,
    totals: Totals,
}

/// Note of a block in the undo log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Note {
    id: ChainId,
    origin: ChainId,
    start: Start,
    count: u64,
}

/// The block after which an input begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Start {
    /// 0 in the empty state.
    block: u64,
    /// [`EMPTY_CHAIN`] in the empty state.
    id: ChainId,
}

impl Replay<'_> {
    fn run(&mut self, paths: &[PathBuf]) -> Result<(), Error> {
        for path in paths {
            self.file(path)?;
        }
        self.check_arrival()
    }

    /// Follows the records of one file.
    fn file(&mut self, path: &Path) -> Result<(), Error> {
        let place = |line| LinePlace { path: path.to_path_buf(), line };
        let unreadable = |line, source| Error::Read { place: place(line), source };
        let mut lines = Lines::open(path, self.options.line_bytes_max)
            .map_err(|source| unreadable(1, source))?;

        // Every turn asks the monitor, also while standard input has nothing to read.
        loop {
            self.check_stop()?;
            let (number, line) = match lines.next() {
                Ok(line) => line,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(source) => return Err(unreadable(lines.number, source)),
            };

            // Each file names its format in its first line.
            if number == 1 {
                if line == Some(FIRST_LINE) {
                    continue;
                }
                return Err(Error::Malformed { place: place(1), what: Malformed::FirstLine });
            }

            let record = match line {
                Some([b'#', comment @ ..]) => match check_comment(comment) {
                    Ok(()) => continue,
                    Err(what) => Err(what),
                },
                Some(line) => Record::parse(line),
                None => break,
            };

            let place = place(number);
            match record.and_then(|record| self.check_sizes(record)) {
                Ok(record) => self.follow(record, place)?,
                Err(what) => return Err(Error::Malformed { place, what }),
            }
        }

        // A block never continues in the next file.
        match self.block.take() {
            Some(block) => {
                Err(Error::Truncated { place: place(lines.number), block: block.number })
            }
            None => Ok(()),
        }
    }

    /// Refuses keys and values that the engine would refuse, while the line is known and before any
    /// change.
    fn check_sizes(&self, record: Record) -> Result<Record, Malformed> {
        let (key, value) = match &record {
            Record::Put { key, value } => (key, Some(value)),
            Record::Delete { key } | Record::Get { key, .. } => (key, None),
            _ => return Ok(record),
        };

        // Some engines refuse short keys.
        let key_min = self.history.key_bytes_min();
        if key.len() < key_min {
            return Err(Malformed::ShortKey { size: key.len(), min: key_min });
        }
        let key_max = self.history.key_bytes_max();
        let value_max = self.history.value_bytes_max();

        if key.len() > key_max {
            return Err(Malformed::KeySize { size: key.len(), max: key_max });
        }

        match value.map(Vec::len).filter(|&size| size > value_max) {
            Some(size) => Err(Malformed::ValueSize { size, max: value_max }),
            None => Ok(record),
        }
    }

    /// Follows one record, which must stand in its place: inside a block, or between blocks.
    fn follow(&mut self, record: Record, place: LinePlace) -> Result<(), Error> {
        let misplaced = |record, inside| {
            let rule = if inside { "stands only inside a block" } else { "stands between blocks" };
            let what = Malformed::Misplaced { record, rule };
            Error::Malformed { place: place.clone(), what }
        };

        let line = place.line;
        match (record, &mut self.block) {
            (Record::Put { key, value }, Some(block)) => block.put(key, value),
            (Record::Delete { key }, Some(block)) => block.delete(line, key),
            (Record::Get { key, value }, Some(block)) => block.get(line, key, value),
            (Record::End(expected), Some(_)) => self.end(&expected, &place)?,
            (Record::Begin(number), None) => self.begin(number, &place)?,
            (Record::Rollback(block), None) => self.rollback(block, place)?,
            (Record::Expect(expected), None) => self.check(&expected, &place)?,
            (Record::Range { from, to, count, digest }, None) => {
                self.check_range(from.as_deref(), to.as_deref(), count, &digest, &place)?;
            }
            (Record::Put { .. }, None) => return Err(misplaced("put", true)),
            (Record::Delete { .. }, None) => return Err(misplaced("del", true)),
            (Record::Get { .. }, None) => return Err(misplaced("get", true)),
            (Record::End(_), None) => return Err(misplaced("end", true)),
            (Record::Begin(_), Some(_)) => return Err(misplaced("begin", false)),
            (Record::Rollback(_), Some(_)) => return Err(misplaced("rollback", false)),
            (Record::Expect(_), Some(_)) => return Err(misplaced("expect", false)),
            (Record::Range { .. }, Some(_)) => return Err(misplaced("range", false)),
        }

        Ok(())
    }

    /// Begins a block, whose number must be above the last block of the input.
    fn begin(&mut self, number: u64, place: &LinePlace) -> Result<(), Error> {
        // While the input is behind the store, its own blocks give the order.
        let last = match &self.skip {
            Some(skip) => skip.chain.last().map(|&(block, _)| block),
            None => self.history.tip().map(|tip| tip.block),
        };
        if let Some(last) = last.filter(|&last| number <= last) {
            let what = Malformed::Order { block: number, last };
            return Err(Error::Malformed { place: place.clone(), what });
        }
        self.block = Some(OpenBlock::new(number));
        Ok(())
    }

    /// Ends the open block: reads over it, or applies it and checks its expectations.
    fn end(&mut self, expected: &Expected, place: &LinePlace) -> Result<(), Error> {
        let Some(block) = self.block.take() else { return Ok(()) };

        // While the input is behind the store, its blocks are hashed until the identity of the
        // store appears.
        if self.skip.as_ref().is_some_and(|skip| !skip.begun) {
            self.find_beginning(&block)?;
        }

        // The store has these blocks already: they are hashed, not applied.
        if let Some(skip) = &mut self.skip {
            let id = block.chain_id(&skip.id());
            skip.chain.push((block.number, id));
            if self.tip_note()?.is_some_and(|note| note.id == id) {
                self.skip = None;
            }
            return self.check_stop();
        }

        // The note of the block extends the chain of identities of its parent.
        let before = self.tip_note()?;
        let (parent, count) = before.map_or((EMPTY_CHAIN, 0), |note| (note.id, note.count));
        let number = block.number;
        let id = block.chain_id(&parent);
        let origin = *self.origin.get_or_insert(id);
        let parent_block = self.history.tip().map_or(0, |tip| tip.block);
        let start = *self.start.get_or_insert(Start { block: parent_block, id: parent });
        let puts = block.puts;
        let deletes = block.deletes;
        let gets = block.gets;

        let changes = match block.settle(self.history.state())? {
            Ok(changes) => changes,
            Err(Disagreement { line, check, expected, found }) => {
                let place = LinePlace { line, ..place.clone() };
                return Err(Error::Check { place, block: Some(number), check, expected, found });
            }
        };

        // The count follows from the changes, so no scan is needed.
        let added = changes.iter().filter(|change| change.old.is_none()).count() as u64;
        let removed = changes.iter().filter(|change| change.new.is_none()).count() as u64;
        let count = (count + added).checked_sub(removed);
        let count = count.ok_or(Error::Corrupt("more entries were deleted than there were"))?;
        self.history.append(number, Note { id, origin, start, count }.encode(), &changes)?;

        // Totals count only blocks that are in the store.
        self.totals.blocks += 1;
        self.totals.puts += puts;
        self.totals.deletes += deletes;
        self.totals.gets += gets;
        self.totals.checks_passed += gets;
        self.unsaved += 1;

        // Blocks that are not saved would have to be replayed after a crash.
        if self.unsaved >= self.options.checkpoint_every {
            self.history.checkpoint()?;
            self.unsaved = 0;
        }

        self.monitor.progress(Phase::Replay, self.totals.blocks, None);
        // The checks of a block hold for the state after it.
        self.check(expected, place)?;
        self.check_stop()
    }

    /// Finds the beginning of the input from its first block.
    fn find_beginning(&mut self, block: &OpenBlock) -> Result<(), Error> {
        let Some(skip) = &mut self.skip else { return Ok(()) };
        skip.begun = true;
        // The input begins with the origin of the chain, so it tells the whole history.
        if Some(block.chain_id(&EMPTY_CHAIN)) == self.origin {
            self.start = Some(Start::default());
            return Ok(());
        }

        let Some(tip) = self.history.tip().filter(|tip| block.number <= tip.block) else {
            // The input continues from the store.
            self.skip = None;
            return Ok(());
        };

        let start = match self.history.kept_below(block.number) {
            // The note of the parent continues the chain of identities where the input begins.
            Some(parent) => {
                Start { block: parent, id: Note::parse(&self.history.note(parent)?)?.id }
            }
            // If the store was filled from another input, the identities of the blocks will differ.
            None => Note::parse(&tip.note)?.start,
        };

        if start.id != EMPTY_CHAIN && start.block < block.number {
            skip.chain.push((start.block, start.id));
            self.start = Some(start);
        }

        Ok(())
    }

    /// Goes back to a block: in the blocks read over, or in the store.
    fn rollback(&mut self, block: Option<u64>, place: LinePlace) -> Result<(), Error> {
        // A whole history never starts with a rollback, so this input continues from the store.
        self.skip.take_if(|skip| !skip.begun);
        if let Some(skip) = &mut self.skip {
            // Blocks of the input that it goes back from no longer lead to the store's tip.
            let kept = skip.chain.partition_point(|&(number, _)| Some(number) <= block);
            skip.chain.truncate(kept);
            if let Some(block) =
                block.filter(|&block| skip.chain.last().is_none_or(|&(number, _)| number != block))
            {
                let source = crate::ledger::history::Error::Unknown { block };
                return Err(Error::Rollback { place, source });
            }
            return Ok(());
        }

        let monitor = &mut *self.monitor;
        let gone_back = self.history.rollback(block, &mut |done, total| {
            monitor.progress(Phase::Rollback, done, Some(total));
            !monitor.stop()
        });

        // An engine error may have left a rollback half done, which must not be saved.
        gone_back.map_err(|source| match source {
            crate::ledger::history::Error::Engine(_) => Error::History(source),
            source => Error::Rollback { place, source },
        })?;

        // A rollback that was stopped ends at a block on the way.
        self.check_stop()?;
        self.totals.rollbacks += 1;
        Ok(())
    }

    /// Checks the present state. While the input is behind the store, there is nothing to check.
    fn check(&mut self, expected: &Expected, place: &LinePlace) -> Result<(), Error> {
        // The state is at the tip already, so checks of earlier blocks cannot be made.
        if self.skip.is_some() {
            return Ok(());
        }

        let mut found = Expected { count: Some(self.count()?), ..Expected::default() };
        // A digest reads the whole state, so it is made only if it is compared.
        if expected.digest.is_some() {
            found.digest = Some(self.state_digest()?);
        }

        if let Some(expected) = expected.count {
            let found = found.count.unwrap_or_default();
            self.compare(place, "count", &expected.to_string(), &found.to_string())?;
        }

        if let (Some(expected), Some(found)) = (&expected.digest, &found.digest) {
            self.compare(place, "digest", expected, found)?;
        }

        // Roots are asked for only if there are some to compare.
        if expected.roots.is_empty() {
            return Ok(());
        }
        let roots = self.history.state().roots()?;

        for (scheme, expected) in &expected.roots {
            // A scheme that the engine does not know is not compared.
            if let Some(found) = roots.get(scheme) {
                self.compare(place, &format!("root.{scheme}"), expected, found)?;
            }
        }

        Ok(())
    }

    /// Checks the count and the digest of a range of keys.
    fn check_range(
        &mut self,
        from: Option<&[u8]>,
        to: Option<&[u8]>,
        count: u64,
        digest: &str,
        place: &LinePlace,
    ) -> Result<(), Error> {
        if self.skip.is_some() {
            return Ok(());
        }
        let range = self.digest_of(from.unwrap_or_default(), to)?;
        self.compare(place, "range n", &count.to_string(), &range.count().to_string())?;

        self.compare(place, "range digest", digest, &hex::encode(&range.finish()))
    }

    /// Counts a check that passed, or returns the error of one that failed.
    fn compare(
        &mut self,
        place: &LinePlace,
        check: &str,
        expected: &str,
        found: &str,
    ) -> Result<(), Error> {
        if expected == found {
            self.totals.checks_passed += 1;
            return Ok(());
        }

        Err(Error::Check {
            place: place.clone(),
            block: self.history.tip().map(|tip| tip.block),
            check: check.to_owned(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        })
    }

    /// Reads the whole state, and checks on the way that its count is that of the updates.
    fn state_digest(&mut self) -> Result<String, Error> {
        let digest = self.digest_of(&[], None)?;
        // The count in the notes comes from the changes, so the scan checks it.
        if digest.count() != self.count()? {
            return Err(Error::Corrupt("the number of entries differs from that of the updates"));
        }
        Ok(hex::encode(&digest.finish()))
    }

    /// Returns the digest of the keys from `from` on and below `to`.
    fn digest_of(&mut self, from: &[u8], to: Option<&[u8]>) -> Result<StateDigest, Error> {
        let mut digest = StateDigest::default();
        let mut cursor = self.history.state().scan(from)?;
        while let Some(entry) = cursor.next()? {
            // The end of a range is not in it.
            if to.is_some_and(|to| entry.key.as_slice() >= to) {
                break;
            }
            digest.add(&entry.key, &entry.value, None);
            // A long scan can be stopped.
            if digest.count().is_multiple_of(1024) {
                self.monitor.progress(Phase::Digest, digest.count(), None);
                self.check_stop()?;
            }
        }

        Ok(digest)
    }

    fn count(&self) -> Result<u64, Error> {
        Ok(self.tip_note()?.map_or(0, |note| note.count))
    }

    fn tip_note(&self) -> Result<Option<Note>, Error> {
        self.history.tip().map(|tip| Note::parse(&tip.note)).transpose()
    }

    fn check_stop(&self) -> Result<(), Error> {
        if self.monitor.stop() {
            return Err(Error::Interrupted { height: self.history.tip().map(|tip| tip.block) });
        }
        Ok(())
    }

    /// If the input ended behind the store, checks that its last block is in the history of the
    /// store.
    fn check_arrival(&self) -> Result<(), Error> {
        // An input may end before the tip of the store, but must lie on its chain.
        let (Some(skip), Some(tip)) = (&self.skip, self.history.tip()) else { return Ok(()) };
        let Some(&(block, id)) = skip.chain.last() else { return Ok(()) };
        let on_the_way = match self.history.oldest() {
            Some(oldest) if oldest <= block && block < tip.block => {
                match self.history.note(block) {
                    Ok(note) => Note::parse(&note)?.id == id,
                    Err(crate::ledger::history::Error::Unknown { .. }) => false,
                    Err(error) => return Err(error.into()),
                }
            }
            // The block is no longer kept, so nothing can be compared.
            _ => block < tip.block,
        };

        if on_the_way { Ok(()) } else { Err(Error::OtherHistory { tip: tip.block }) }
    }

    fn report(mut self, started: Instant) -> Result<Report, Error> {
        let digest = self.state_digest()?;
        let roots = self.history.state().roots()?;
        let wall_s = started.elapsed().as_secs_f64();
        let Totals { blocks, puts, deletes, gets, rollbacks, checks_passed } = self.totals;
        #[expect(clippy::cast_precision_loss, reason = "a rate is approximate")]
        let changes_per_s = (puts + deletes) as f64 / wall_s.max(f64::EPSILON);

        Ok(Report {
            blocks,
            height: self.history.tip().map(|tip| tip.block),
            puts,
            deletes,
            gets,
            rollbacks,
            checks_passed,
            count: self.count()?,
            digest,
            roots,
            wall_s,
            changes_per_s,
        })
    }
}

fn check_comment(comment: &[u8]) -> Result<(), Malformed> {
    if comment.contains(&b'\r') {
        return Err(Malformed::CarriageReturn);
    }
    std::str::from_utf8(comment).map(|_| ()).map_err(|_| Malformed::NotText)
}

impl Note {
    fn encode(&self) -> Vec<u8> {
        let Self { id, origin, start, count } = self;
        let start_block = start.block.to_le_bytes();
        [id.as_slice(), origin, &start_block, &start.id, &count.to_le_bytes()].concat()
    }

    fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let note = || {
            let (&id, rest) = bytes.split_first_chunk::<32>()?;
            let (&origin, rest) = rest.split_first_chunk::<32>()?;
            let (&block, rest) = rest.split_first_chunk::<8>()?;
            let (&start_id, count) = rest.split_first_chunk::<32>()?;
            let start = Start { block: u64::from_le_bytes(block), id: start_id };
            Some(Self { id, origin, start, count: u64::from_le_bytes(count.try_into().ok()?) })
        };
        note().ok_or(Error::Corrupt("a block's note in the undo log cannot be read"))
    }
}
