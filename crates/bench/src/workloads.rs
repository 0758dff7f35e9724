//! Workloads: fixed work on the engines, every result of which is checked.
//!
//! | module      | command         | work                                                     |
//! |-------------|-----------------|----------------------------------------------------------|
//! | [`draws`]   |                 | random numbers by place, distributions of keys           |
//! | [`values`]  |                 | sizes and bytes of values                                |
//! | [`kvget`]   | `bench kvget`   | reads of random keys with little memory                  |
//! | [`mixed`]   | `bench mixed`   | reads beside writes                                      |
//! | [`union`]   | `bench union`   | lookups while a union of tables is completed             |
//! | [`commits`] | `bench commits` | small commits beside slow work of the store              |
//! | [`upsert`]  | `bench upsert`  | upserts beside reading and inserting                     |
//! | [`utxo`]    | `bench utxo`    | a set of unspent outputs under load                      |
//! | [`index`]   | `bench index`   | an index of objects by hash, on several engines          |
//! | [`context`] | `bench context` | blocks of Tezos on the context store                     |
//! | [`radix`]   | `bench radix`   | Merkle-radix states on every back-end                    |
//! | [`state`]   | `bench state`   | blocks on an Ethereum state                              |
//! | [`tables`]  | `bench ingest`, `scan`, `diff`, `forks`, `retained`, `recover` | one property of
//! tables each |
//! | [`disk`]    | `bench disk`    | the device alone                                         |
//! | [`queue`]   | `bench queue`   | random reads through a queue of the disk                 |
//!
//! Imports: [`instruments`](crate::instruments), [`model`](crate::model) and the crate of replays.
//! No workload imports another, but for the shape of tables of [`utxo`] in [`kvget`],
//! [`mixed`] and [`tables`], and the keys of [`kvget`] in [`mixed`]. Begin with [`utxo`].
//!
//! * Keys and values follow from a seed and a number by [`splitmix`], so a run can be repeated to
//!   the byte and every value found is compared with its expected value.
//! * Draws and comparisons are outside of every measured interval, or their time is reported.
//! * A run saves nothing: its changes are gone when the store is closed, unless `--keep` asks
//!   otherwise.
//! * Rejected: a table of all live numbers in memory, which would be most of the memory of a run.
//! * Rejected: draws from a formula, which never draw recent entries or draw them too often.
//! * Rejected: a counting disk for the engine's share of lookups. Users see the engine's own
//!   statistics, and a wrapper would be part of the measured rate. Scans and diffs, which have no
//!   statistics of their own, are counted at the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use terrane::io::{Disk, ErrorKind, MemoryDisk, RealDisk};
use terrane::lsm::{Session, SessionOptions, SnapshotName};
use terrane::state_dir;
use terrane_replay::engines::engine::EngineError;
use terrane_replay::error::Class;
use terrane_replay::store;
use terrane_replay::traces::{container, index as index_trace};

use crate::instruments::device;

// Bottom-up: a module imports only from modules above it.
pub mod draws;
pub mod values;
pub mod commits;
pub mod union;
pub mod upsert;
pub mod utxo;
pub mod kvget;
pub mod mixed;
pub mod index;
pub mod context;
pub mod radix;
pub mod state;
pub mod tables;
pub mod queue;
pub mod disk;

/// Reason why a benchmark ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] terrane::lsm::Error),
    /// The B+tree failed.
    #[error(transparent)]
    Index(#[from] terrane::btree::Error),
    /// LMDB failed.
    #[cfg(feature = "lmdb")]
    #[error(transparent)]
    Lmdb(#[from] terrane_lmdb::Error),
    /// An engine of versioned trees failed.
    #[error(transparent)]
    Context(#[from] EngineError),
    /// A radix store cannot be opened, or a call of it failed.
    #[error(transparent)]
    Radix(#[from] state_dir::Error),
    /// An Ethereum state failed.
    #[error(transparent)]
    State(#[from] terrane::mpt::Error),
    /// The device cannot be measured.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// A trace of versioned trees cannot be written.
    #[error(transparent)]
    Record(#[from] container::Error),
    /// The engine gave a wrong answer.
    #[error("wrong answer: {0}")]
    Wrong(String),
    /// An option makes no sense.
    #[error("{0}")]
    Options(String),
    /// A file beside the store failed.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Answer of the system.
        error: std::io::Error,
    },
    /// A trace cannot be read.
    #[error("{path}: {error}")]
    Trace {
        /// The file.
        path: PathBuf,
        /// The rule that it breaks.
        error: index_trace::Error,
    },
    /// The disk is too small for what is asked.
    #[error("needs {needed} bytes on disk, and {free} are free; make room, or ask for less data")]
    Space {
        /// Bytes that it may take.
        needed: u64,
        /// Bytes that are there.
        free: u64,
    },
    /// The monitor asked to stop.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }

    fn database(error: terrane::kv::Error) -> Self {
        Self::Radix(error.into())
    }

    fn trace(path: &Path, error: index_trace::Error) -> Self {
        Self::Trace { path: path.to_owned(), error }
    }

    /// Returns the class of the error, from which the exit code follows.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Engine(error) => Class::from(error),
            Self::Index(error) => Class::from(error),
            #[cfg(feature = "lmdb")]
            Self::Lmdb(_) => Class::Environment,
            Self::Context(error) => error.class(),
            Self::Radix(error) => Class::from(error),
            Self::State(error) => Class::from(error),
            Self::Device(error) => error.class(),
            Self::Record(error) => error.class(),
            Self::Wrong(_) => Class::Check,
            Self::Options(_) => Class::Input,
            Self::Trace { error, .. } => error.class(),
            Self::Io { .. } | Self::Space { .. } => Class::Environment,
            Self::Interrupted => Class::Interrupted,
        }
    }
}

impl Error {
    /// Returns the kind of the error, if it says more than the class.
    #[must_use]
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Engine(error) => Some(error.kind()),
            Self::Index(error) => Some(error.kind()),
            Self::Context(error) => error.kind(),
            Self::Radix(error) => Some(error.kind()),
            Self::State(error) => Some(error.kind()),
            Self::Device(device::Error::Disk(error)) => Some(error.kind()),
            Self::Space { .. } => Some(ErrorKind::NoSpace),
            _ => None,
        }
    }
}

impl From<terrane::radix::Error> for Error {
    fn from(error: terrane::radix::Error) -> Self {
        Self::Radix(error.into())
    }
}

/// Result of a benchmark.
pub type Result<T> = std::result::Result<T, Error>;

/// Increment of the state of `SplitMix64` at each step.
pub const SPLITMIX_STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// One step of `SplitMix64` on the state `number`. The function is a bijection, and its results are
/// evenly spread.
#[must_use]
pub fn splitmix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(SPLITMIX_STEP);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Fills `bytes` with evenly spread words that follow from `state`. The first word is `state`.
fn fill_bytes(bytes: &mut [u8], mut state: u64) {
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        state = splitmix(state);
    }
}

/// Upper bound of every option. Sums and products of several options stay within 64 bits.
const OPTION_MAX: u64 = 100_000_000;

/// Refuses an option below `least`, or so large that no machine could do what is asked.
fn bounded(name: &str, value: u64, least: u64) -> Result<()> {
    if (least..=OPTION_MAX).contains(&value) {
        return Ok(());
    }
    Err(Error::Options(format!("{name} must be at least {least} and at most {OPTION_MAX}")))
}

fn open(store: &Path) -> Result<Session> {
    let disk: Arc<dyn Disk> = RealDisk::auto();
    Ok(store::open(&disk, store)?)
}

/// A session on a disk in memory, for what the engine costs without a device.
fn open_in_memory() -> Result<Session> {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    Ok(Session::open(disk, Path::new("store"), &SessionOptions::default().create_dir())?)
}

/// Returns the label of the table that a set-up has saved; `None` if there is none.
fn label_of(session: &Session, snapshot: &SnapshotName) -> Result<Option<String>> {
    match session.snapshot_info(snapshot) {
        Err(terrane::lsm::Error::SnapshotDoesNotExist { .. }) => Ok(None),
        info => Ok(Some(info?.label)),
    }
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

/// Returns the median of some measurements.
fn median(mut measured: Vec<f64>) -> f64 {
    measured.sort_by(f64::total_cmp);
    measured.get(measured.len() / 2).copied().unwrap_or(f64::NAN)
}
