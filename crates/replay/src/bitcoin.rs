//! Replay of real Bitcoin blocks into a table of unspent outputs.
//!
//! The headers of all files are read first and the chain with the most work is chosen; then its
//! blocks are read and applied one at a time, each as one bulk lookup and one atomic batch. The
//! checks are those that tell damage from data: proof of work, Merkle root, witness commitment, and
//! that every output spent is there. Scripts and signatures are not run.
//!
//! The note of a block in the undo log:
//!
//! | bytes | meaning                                             |
//! |-------|-----------------------------------------------------|
//! | 32    | hash of the block, internal order                   |
//! | 32    | work of the chain up to it, little-endian           |
//! | 8     | transactions from genesis to it, u64-LE             |
//! | 8     | inputs, coinbases not included, u64-LE              |
//! | 8     | outputs made, u64-LE                                |
//!
//! A call never goes back to a block that it applied itself, hence no versions are held as
//! duplicates here; durable points and the undo log serve every way back.

// Bottom-up: a module imports only from modules above it.
mod coins;
mod block;
mod error;
mod files;
mod headers;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bitcoin::constants::genesis_block;
use bitcoin::hashes::Hash as _;
use bitcoin::{Block, BlockHash, Work};
use serde::Serialize;
use terrane::lsm::StateDigest;

pub use bitcoin::Network;

pub use self::block::Fault;
pub use self::error::Error;

use self::block::{Counters, Plan};
use self::coins::{Coin, SetHash};
use self::files::{BlockFiles, FoundHeader, Location};
use self::headers::{Headers, Index, Placed};
use crate::engines::engine::Engine;
use crate::hex;
use crate::ledger::checkpoints::Names;
use crate::ledger::history::History;
use crate::monitor::{Monitor, Phase};

/// Options of a replay.
#[derive(Debug, Clone)]
pub struct Options {
    /// The network whose blocks these are.
    pub network: Network,
    /// The height to stop at.
    pub until: Option<u32>,
    /// Height to go back to before the replay.
    pub rollback_to: Option<u32>,
    /// Number of the newest blocks that can be gone back to; at least 1.
    pub keep_versions: u64,
    /// Blocks between two durable points, beside the one at the end; at least 1.
    pub checkpoint_every: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            network: Network::Bitcoin,
            until: None,
            rollback_to: None,
            keep_versions: 2160,
            checkpoint_every: 1000,
        }
    }
}

/// Report of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Height of the newest block.
    pub height: Option<u64>,
    /// Hash of the newest block, as it is displayed.
    pub tip: Option<String>,
    /// Transactions from genesis to the tip.
    pub transactions: u64,
    /// Inputs from genesis to the tip, coinbases not included.
    pub inputs: u64,
    /// Outputs made from genesis to the tip.
    pub outputs: u64,
    /// Unspent outputs.
    pub utxo_count: u64,
    /// Sum of the unspent outputs, in satoshi.
    pub total_sat: u64,
    /// Digest of the table.
    pub digest: String,
    /// Hash of the set of unspent outputs, as `gettxoutsetinfo` of Bitcoin Core computes it.
    pub hash_serialized_3: String,
    /// Blocks applied in this call.
    pub blocks: u64,
    /// Time this call took, in seconds.
    pub wall_s: f64,
    /// Blocks applied per second of applying.
    pub blocks_per_s: f64,
    /// Keys looked up per second of applying.
    pub lookups_per_s: f64,
    /// Name of the snapshot with the unspent outputs; `None` for an engine that keeps nothing.
    #[serde(skip)]
    pub snapshot: Option<String>,
    /// Height of the store when the call began; absent when it was empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<u64>,
}

/// Replays the blocks of `paths` on `engine`. Without paths, the replay only goes back or reports.
///
/// Cost: one bulk lookup and two batches per block; 88 bytes read per block of the input and each
/// block of the best chain read once, twice on a branch that replaces blocks of the store; about
/// 120 bytes of memory per block of the input. The report reads the whole table once.
///
/// # Errors
/// See [`Error`]. Unless the engine failed, the state of the last good block is durable then.
pub fn replay(
    engine: Box<dyn Engine>,
    paths: &[PathBuf],
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report, Error> {
    let started = Instant::now();
    let label = format!("terrane replay bitcoin, network {}", options.network);
    let names = Names { log: "chain", state: "utxo", label };
    let history = History::open(engine, names, Some(options.keep_versions), 0)?;
    let resumed_from = history.tip().map(|tip| tip.block);
    let mut replay =
        Replay { history, options, monitor, blocks: 0, lookups: 0, applying: Duration::ZERO };

    let outcome = replay.run(paths);
    // After an error of the store nothing more is written to it.
    if let Err(Error::History(error)) = outcome {
        return Err(error.into());
    }

    // A bad block or an interruption must not cost the good blocks before it.
    replay.history.checkpoint()?;
    outcome?;
    replay.report(resumed_from, started)
}

struct Replay<'a> {
    history: History,
    options: &'a Options,
    monitor: &'a mut dyn Monitor,
    blocks: u64,
    lookups: u64,
    applying: Duration,
}

/// Note of a block in the undo log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Note {
    hash: BlockHash,
    work: Work,
    counters: Counters,
}

impl Replay<'_> {
    /// Scans the headers, chooses the chain with the most work, and applies its blocks.
    fn run(&mut self, paths: &[PathBuf]) -> Result<(), Error> {
        // The rollback comes first: blocks are then applied to what is left.
        if let Some(height) = self.options.rollback_to {
            self.rollback(height.into())?;
        }

        if paths.is_empty() {
            return Ok(());
        }
        let mut files = BlockFiles::new(self.options.network, paths)?;
        // Blocks of the store take part in the choice of the best chain.
        let (mut headers, own) = self.own_blocks()?;

        // Headers without proof of work are set aside: they may be damage of a block of the best
        // chain.
        let mut workless = Vec::new();
        let damage = files.scan(self.monitor, |found| {
            let FoundHeader { hash, header, location, has_work } = found;
            if has_work {
                headers.add_block(hash, header.prev_blockhash, header.work(), location);
            } else {
                workless.push(found);
            }
        })?;

        self.check_stop()?;
        headers.connect(&genesis_block(self.options.network).block_hash());

        let best = headers.best();
        let faulty = judge_headers(&workless, &headers, best, self.options.until, &files);
        let Some(best) = best else {
            let no_genesis = Error::NoGenesis { network: self.options.network };
            return Err(damage.into_iter().chain(faulty.error).next().unwrap_or(no_genesis));
        };

        self.warn_about_others(&headers, best, &mut files)?;

        // Reading the headers does not count as applying.
        let applying = Instant::now();
        let outcome = self.follow(&headers, &own, best, &mut files);
        self.applying = applying.elapsed();
        outcome?;

        for warning in faulty.warnings {
            self.monitor.warn(&warning);
        }

        // The error comes last, so that the good blocks before the damage have been applied.
        match damage.into_iter().chain(faulty.error).next() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn rollback(&mut self, height: u64) -> Result<(), Error> {
        let monitor = &mut *self.monitor;
        self.history.rollback(Some(height), |done, total| {
            monitor.progress(Phase::Rollback, done, Some(total));
            !monitor.stop()
        })?;
        self.check_stop()
    }

    fn check_stop(&self) -> Result<(), Error> {
        if self.monitor.stop() {
            return Err(Error::Interrupted { height: self.history.tip().map(|tip| tip.block) });
        }
        Ok(())
    }

    /// Returns a tree of the store's own blocks, and their heights by hash.
    fn own_blocks(&self) -> Result<(Headers, HashMap<BlockHash, u64>), Error> {
        let mut headers = Headers::default();
        let mut own = HashMap::new();
        // The tip goes first, so that among chains of equal work the chain of the store wins.
        for tip in self.history.notes()?.into_iter().rev() {
            let note = Note::parse(&tip.note)?;
            headers.add_root(note.hash, height(tip.block)?, note.work);
            own.insert(note.hash, tip.block);
        }
        Ok((headers, own))
    }

    /// Warns of blocks that connect to no known block, and of damage in stale blocks.
    fn warn_about_others(
        &mut self,
        headers: &Headers,
        best: Index,
        files: &mut BlockFiles,
    ) -> Result<(), Error> {
        let mut followed: HashSet<Index> = headers.chain(Some(best)).collect();
        if let Some(tip) = self.history.tip() {
            // Blocks in the store are not judged again, even where the best chain leaves them.
            let tip = headers.find(&Note::parse(&tip.note)?.hash);
            followed.extend(headers.chain(tip));
        }

        // Blocks that connect to nothing can be many, so they share one warning.
        let mut unconnected = 0_u64;
        for index in headers.indexes().filter(|index| !followed.contains(index)) {
            self.check_stop()?;
            let Some(Placed { hash, height, location, .. }) = headers.placed(index) else {
                unconnected += 1;
                continue;
            };

            // Below the oldest kept block, a block of the store looks like a stale block.
            let below_kept = self.history.oldest().is_some_and(|oldest| u64::from(height) < oldest);
            let Some(location) = location.filter(|_| !below_kept) else { continue };
            let block = match files.read(location) {
                Ok(block) => block.map_err(Fault::Unreadable),
                Err(error @ Error::Framing { .. }) => {
                    self.monitor.warn(&format_args!("on a stale branch: {error}"));
                    continue;
                }
                Err(error) => return Err(error),
            };

            if let Err(fault) = block.and_then(|block| block::check_commitments(&block)) {
                let path = files.path(location.file);
                let offset = location.offset;
                let fault = Box::new(fault);
                let error = Error::Block { height, hash, path, offset, fault };
                self.monitor.warn(&format_args!("on a stale branch: {error}"));
            }
        }

        if unconnected > 0 {
            self.monitor.warn(&format_args!("{unconnected} blocks connect to no known block"));
        }
        Ok(())
    }

    /// Moves the state to `best`, or to its ancestor at the height to stop at.
    fn follow(
        &mut self,
        headers: &Headers,
        own: &HashMap<BlockHash, u64>,
        best: Index,
        files: &mut BlockFiles,
    ) -> Result<(), Error> {
        // The limit on the height cuts the branch before its work is compared.
        let target = headers.ancestor(best, self.options.until.unwrap_or(u32::MAX));
        let tip = self.history.tip().map(|tip| Note::parse(&tip.note)).transpose()?;
        let Some(end) = headers.placed(target) else { return Ok(()) };

        // Only a chain with more work than the store's own is worth following.
        if tip.as_ref().is_some_and(|tip| end.work <= tip.work) {
            return Ok(());
        }

        // The path goes from the target down to the first block that the store has.
        let mut path = Vec::new();
        let mut fork = None;
        for index in headers.chain(Some(target)) {
            let Some(placed) = headers.placed(index) else { break };
            fork = own.get(&placed.hash).copied();
            if fork.is_some() {
                break;
            }
            path.push(placed);
        }

        // Without a common block the branch leaves the store below its oldest kept block.
        if let (None, Some(oldest)) = (fork, self.history.oldest()) {
            return Err(Error::ForkTooDeep { hash: end.hash, oldest });
        }

        // The store leaves its own blocks only for a branch with more work whose blocks are whole.
        let mut damage = None;
        if let (Some(fork), Some(tip)) = (fork, tip) {
            if self.history.tip().is_some_and(|tip| fork < tip.block) {
                damage = self.cut_at_damage(&mut path, headers, files)?;
                if path.first().is_none_or(|end| end.work <= tip.work) {
                    return damage.map_or(Ok(()), Err);
                }
            }
            self.rollback(fork)?;
        }

        let total = path.len() as u64;
        let mut unsaved = 0;
        // The lowest block is at the end of the path and goes first.
        while let Some(placed) = path.pop() {
            self.check_stop()?;
            self.apply(&placed, headers, files)?;
            self.blocks += 1;
            unsaved += 1;
            // Blocks that are not saved would have to be replayed after a crash.
            if unsaved >= self.options.checkpoint_every {
                self.history.checkpoint()?;
                unsaved = 0;
            }
            self.monitor.progress(Phase::Replay, self.blocks, Some(total));
        }

        // Damage is reported once the blocks below it are in the store.
        damage.map_or(Ok(()), Err)
    }

    /// Cuts a path, whose last element is its first block, at its first damaged block, and returns
    /// the damage. The store thus leaves its own blocks only for a branch that is better as far as
    /// it is whole.
    fn cut_at_damage(
        &mut self,
        path: &mut Vec<Placed>,
        headers: &Headers,
        files: &mut BlockFiles,
    ) -> Result<Option<Error>, Error> {
        // The path is read from the fork up, so that the blocks below the damage remain.
        for index in (0..path.len()).rev() {
            self.check_stop()?;
            match self.read_intact(&path[index], headers, files) {
                Ok(_) => {}
                Err(error @ (Error::Block { .. } | Error::Framing { .. })) => {
                    // Blocks above a damaged one cannot be applied either.
                    path.drain(..=index);
                    return Ok(Some(error));
                }
                Err(error) => return Err(error),
            }
        }

        Ok(None)
    }

    /// Applies one block: one bulk lookup, and one batch on the state and one on the log.
    fn apply(
        &mut self,
        placed: &Placed,
        headers: &Headers,
        files: &mut BlockFiles,
    ) -> Result<(), Error> {
        let Placed { hash, height, work, .. } = *placed;
        let (block, location) = self.read_intact(placed, headers, files)?;
        let faulty = |fault| {
            let path = files.path(location.file);
            let offset = location.offset;
            let fault = Box::new(fault);
            Error::Block { height, hash, path, offset, fault }
        };

        // The plan tells all keys that the block needs, so one batch looks them up.
        let plan = Plan::new(&block, height).map_err(faulty)?;
        let keys = plan.keys();
        let values = self.history.state().get_many(&keys)?;
        self.lookups += keys.len() as u64;

        let before = match self.history.tip() {
            Some(tip) => Note::parse(&tip.note)?.counters,
            None => Counters::default(),
        };

        // Counters add up over all blocks, so the tip knows the totals.
        let note = Note { hash, work, counters: before.plus(plan.counters()) };
        let changes = plan.changes(values).map_err(faulty)?;
        self.history.append(height.into(), note.encode(), &changes)?;
        Ok(())
    }

    /// Reads the first copy of a block that passes all checks, and returns it with its location. If
    /// no copy passes, the error is that of the first copy.
    fn read_intact(
        &mut self,
        placed: &Placed,
        headers: &Headers,
        files: &mut BlockFiles,
    ) -> Result<(Block, Location), Error> {
        let Placed { hash, height, .. } = *placed;
        let mut damage = Vec::new();
        // A block may lie in the files several times: one whole copy is enough.
        for location in headers.locations(&hash) {
            let fault = match files.read(location) {
                Ok(Ok(block)) => match check(&block, hash) {
                    Ok(()) => {
                        for error in damage {
                            let what = format_args!("{error}; another copy is whole");
                            self.monitor.warn(&what);
                        }
                        return Ok((block, location));
                    }
                    Err(fault) => fault,
                },
                Ok(Err(error)) => Fault::Unreadable(error),
                Err(error @ Error::Framing { .. }) => {
                    damage.push(error);
                    continue;
                }
                Err(error) => return Err(error),
            };

            let path = files.path(location.file);
            let offset = location.offset;
            let fault = Box::new(fault);
            damage.push(Error::Block { height, hash, path, offset, fault });
        }

        let in_no_file = Error::Corrupt("a block to be applied lies in no file");
        Err(damage.into_iter().next().unwrap_or(in_no_file))
    }

    /// Reads the whole table for the digest, the hash and the sums of the report.
    fn report(self, resumed_from: Option<u64>, started: Instant) -> Result<Report, Error> {
        let mut digest = StateDigest::default();

        let mut hash = SetHash::default();
        let mut cursor = self.history.state().scan(&[])?;
        while let Some(entry) = cursor.next()? {
            let coin = Coin::parse(&entry.key, &entry.value);
            hash.add(&coin.ok_or(Error::Corrupt("an entry is not an unspent output"))?);
            digest.add(&entry.key, &entry.value, None);
            if digest.count().is_multiple_of(1024) {
                self.monitor.progress(Phase::Digest, digest.count(), None);
                self.check_stop()?;
            }
        }

        drop(cursor);

        let tip = self.history.tip();
        let note = tip.map(|tip| Note::parse(&tip.note)).transpose()?;
        let counters = note.map(|note| note.counters).unwrap_or_default();
        // A rate over no time would be infinite.
        let applying_s = self.applying.as_secs_f64().max(f64::EPSILON);
        #[expect(clippy::cast_precision_loss, reason = "rates are approximate")]
        let per_second = |count: u64| count as f64 / applying_s;

        Ok(Report {
            height: tip.map(|tip| tip.block),
            tip: note.map(|note| note.hash.to_string()),
            transactions: counters.transactions,
            inputs: counters.inputs,
            outputs: counters.outputs,
            utxo_count: digest.count(),
            total_sat: hash.total_sat(),
            digest: hex::encode(&digest.finish()),
            hash_serialized_3: hash.finish(),
            blocks: self.blocks,
            wall_s: started.elapsed().as_secs_f64(),
            blocks_per_s: per_second(self.blocks),
            lookups_per_s: per_second(self.lookups),
            snapshot: self.history.snapshot(),
            resumed_from,
        })
    }
}

/// Checks what a block says about itself.
fn check(block: &Block, hash: BlockHash) -> Result<(), Fault> {
    // The file may have changed since its headers were read.
    if block.block_hash() != hash {
        return Err(Fault::Replaced);
    }
    block::check_commitments(block)
}

struct FaultyHeaders {
    warnings: Vec<String>,
    error: Option<Error>,
}

/// Tells headers without work that stand in the way from those of stale branches. A header's own
/// account of its parent is all there is to go by. If the best chain does not pass that parent, the
/// header is not missed; nor if it goes on above it, unless there are blocks that connect to
/// nothing, which may be what follows the header.
fn judge_headers(
    workless: &[FoundHeader],
    headers: &Headers,
    best: Option<Index>,
    until: Option<u32>,
    files: &BlockFiles,
) -> FaultyHeaders {
    let mut judged = FaultyHeaders { warnings: Vec::new(), error: None };
    // A block that connects to nothing shows that a block before it is missing.
    let is_torn = headers.indexes().any(|index| headers.placed(index).is_none());
    let followed: HashSet<Index> = headers.chain(best).collect();

    for found in workless {
        let path = files.path(found.location.file);
        let offset = found.location.offset;
        let error = Error::ProofOfWork { path, offset, hash: found.hash };

        let parent = headers.find(&found.header.prev_blockhash);
        let missed = match parent.and_then(|parent| Some((parent, headers.placed(parent)?))) {
            None => true,
            Some((parent, placed)) => {
                let is_end = Some(parent) == best;
                (is_end || (is_torn && followed.contains(&parent)))
                    && until.is_none_or(|until| placed.height < until)
            }
        };

        if missed && judged.error.is_none() {
            judged.error = Some(error);
        } else {
            judged.warnings.push(format!("on a stale branch: {error}"));
        }
    }

    judged
}

fn height(block: u64) -> Result<u32, Error> {
    block.try_into().map_err(|_| Error::Corrupt("a height is out of range"))
}

impl Note {
    fn encode(&self) -> Vec<u8> {
        let Counters { transactions, inputs, outputs } = self.counters;
        let counters = [transactions, inputs, outputs].map(u64::to_le_bytes);
        let hash = self.hash.as_byte_array().as_slice();
        [hash, &self.work.to_le_bytes(), counters.as_flattened()].concat()
    }

    fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let damaged = Error::Corrupt("a block's note in the undo log cannot be read");
        let Some((hash, rest)) = bytes.split_first_chunk::<32>() else { return Err(damaged) };
        let Some((work, rest)) = rest.split_first_chunk::<32>() else { return Err(damaged) };
        let (counters, []) = rest.as_chunks::<8>() else { return Err(damaged) };
        let [transactions, inputs, outputs] = *counters else { return Err(damaged) };

        Ok(Self {
            hash: BlockHash::from_byte_array(*hash),
            work: Work::from_le_bytes(*work),
            counters: Counters {
                transactions: u64::from_le_bytes(transactions),
                inputs: u64::from_le_bytes(inputs),
                outputs: u64::from_le_bytes(outputs),
            },
        })
    }
}
