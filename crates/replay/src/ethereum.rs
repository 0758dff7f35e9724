//! Replay of Ethereum's blocks without a virtual machine: every state root is checked.
//!
//! The first blocks of the main network have no transactions, so the state after each follows from
//! the genesis allocation and the rewards: 5 ether to the coinbase and 1/32 of it for each uncle;
//! `(8 − age) / 8` of it to the coinbase of an uncle. A block with transactions ends the replay.
//!
//! Each block is one commit that expects the root of its header. Headers are checked by their
//! hashes: a block follows its parent, and its body has the hash of uncles of its header.

// Bottom-up: a module imports only from modules above it.
mod error;
mod block;
mod era1;

use std::path::{Path, PathBuf};
use std::time::Instant;

use flate2::read::GzDecoder;
use serde::Serialize;
use std::io::Read as _;
use terrane::lsm::{SessionOptions, StoreOptions};
use terrane::mpt::{self, Address, State, U256};

pub use self::error::Error;

use self::block::{Block, Reward};
use self::era1::Era1;
use crate::monitor::{Monitor, Phase};

/// Accounts of block 0 of the main network: address (20 bytes), balance (16 bytes, big-endian).
const GENESIS: &[u8] = include_bytes!("ethereum/genesis-alloc.bin.gz");

/// Bytes of an account of block 0.
const GENESIS_ENTRY_BYTES: usize = 36;

/// Blocks between two syncs, beside the one at the end.
const SYNC_EVERY: u64 = 1000;

/// Options of a replay.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The height to stop at.
    pub until: Option<u64>,
    /// Height to go back to before the replay.
    pub rollback_to: Option<u64>,
    /// Whether the state keeps what reads and proofs at older heights need.
    pub history: bool,
}

/// Report of a replay.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Height of the state; `None` if it is empty.
    pub height: Option<u64>,
    /// Hash of the last block.
    pub tip: Option<String>,
    /// Root of the state.
    pub state_root: String,
    /// Number of accounts.
    pub accounts: u64,
    /// Blocks of this call, each with its root checked.
    pub blocks: u64,
    /// Uncles of these blocks.
    pub uncles: u64,
    /// Height of the state before the blocks, after a rollback.
    pub resumed_from: Option<u64>,
    /// Time of the call, in seconds.
    pub wall_s: f64,
    /// Blocks of this call in a second.
    pub blocks_per_s: f64,
}

/// Opens the state in a directory, or makes one.
///
/// # Errors
/// Those of [`State::open_dir`].
pub fn open(dir: &Path, options: &Options) -> mpt::Result<State> {
    let store = StoreOptions::default().session(SessionOptions::default().create_dir());
    State::open_dir(dir, &mpt::Options::default().store(store).history(options.history))
}

/// Replays `era1` files, in any order, from the block after the tip of the state on.
///
/// # Errors
/// [`Error`]; the state is that of the last good block.
pub fn replay(
    state: &mut State,
    files: &[PathBuf],
    options: &Options,
    monitor: &mut dyn Monitor,
) -> Result<Report, Error> {
    let start = Instant::now();
    if let Some(height) = options.rollback_to
        && state.tip().is_none_or(|tip| tip.height != height)
    {
        monitor.progress(Phase::Rollback, 0, None);
        state.reorg_to(height)?.ticket.wait().map_err(mpt::Error::from)?;
    }

    let resumed_from = state.tip().map(|tip| tip.height);
    let mut files = files.iter().map(|path| Era1::open(path)).collect::<Result<Vec<_>, _>>()?;
    files.sort_by_key(Era1::first_height);

    let mut report = Counts::default();
    for file in &mut files {
        replay_file(state, file, options, &mut report, monitor)?;
    }
    state.store().sync().map_err(mpt::Error::from)?;

    let wall_s = start.elapsed().as_secs_f64();
    Ok(Report {
        height: state.tip().map(|tip| tip.height),
        tip: state.tip().map(|tip| tip.hash.to_string()),
        state_root: state.root().to_string(),
        accounts: state.count_accounts()?,
        blocks: report.blocks,
        uncles: report.uncles,
        resumed_from,
        wall_s,
        blocks_per_s: report.blocks as f64 / wall_s,
    })
}

#[derive(Default)]
struct Counts {
    blocks: u64,
    uncles: u64,
}

fn replay_file(
    state: &mut State,
    file: &mut Era1,
    options: &Options,
    counts: &mut Counts,
    monitor: &mut dyn Monitor,
) -> Result<(), Error> {
    let total = file.first_height() + file.block_count();
    while let Some(block) = file.next_block()? {
        let next = state.tip().map_or(0, |tip| tip.height + 1);
        if block.height < next {
            continue;
        }
        if options.until.is_some_and(|until| until < block.height) {
            break;
        }
        if monitor.stop() {
            return Err(Error::Interrupted { height: state.tip().map(|tip| tip.height) });
        }

        commit(state, &block)?;
        counts.blocks += 1;
        counts.uncles += block.uncles.len() as u64;
        if block.height.is_multiple_of(SYNC_EVERY) {
            state.store().sync().map_err(mpt::Error::from)?;
            monitor.progress(Phase::Replay, block.height, Some(total));
        }
    }
    Ok(())
}

/// Commits a block, which must have the root of its header.
fn commit(state: &mut State, block: &Block) -> Result<(), Error> {
    let rewards = if block.height == 0 { genesis()? } else { block.rewards()? };
    let addresses: Vec<Address> = rewards.iter().map(|reward| reward.address).collect();
    let accounts = state.accounts(&addresses)?;

    let mut batch = state.block(block.height, block.parent)?;
    for (reward, account) in rewards.iter().zip(accounts) {
        let account = account.unwrap_or_default();
        let balance = account.balance + reward.amount;
        batch.set_account(reward.address, &account.balance(balance));
    }
    match batch.commit_expecting(block.hash, block.root) {
        // The next sync makes it durable.
        Ok(committed) => drop(committed),
        Err(mpt::Error::RootMismatch { computed, .. }) => {
            return Err(Error::Root { height: block.height, expected: block.root, computed });
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// The accounts of block 0.
#[expect(clippy::big_endian_bytes, reason = "the order of the file")]
fn genesis() -> Result<Vec<Reward>, Error> {
    let mut bytes = Vec::new();
    GzDecoder::new(GENESIS).read_to_end(&mut bytes).map_err(|_| Error::Genesis)?;
    let (entries, rest) = bytes.as_chunks::<GENESIS_ENTRY_BYTES>();
    if !rest.is_empty() {
        return Err(Error::Genesis);
    }
    let entry = |entry: &[u8; GENESIS_ENTRY_BYTES]| {
        let (address, balance) = entry.split_at(20);
        let balance: [u8; 16] = balance.try_into().map_err(|_| Error::Genesis)?;
        let amount = U256::from(u128::from_be_bytes(balance));
        Ok(Reward { address: Address::from_slice(address), amount })
    };
    entries.iter().map(entry).collect()
}
