//! Benchmarks of the radix state on its back-ends: Transact's ten tests, and loads of random keys.
//!
//! The unit is a *cell*: one load on one back-end at one durability in one directory. Who compares
//! runs each in a process of its own, so that the time and memory of a process are those of the
//! cell; [`run`] is what that process does. Yardsticks that all cells stand beside are measured
//! outside: [`floor_of`] and [`append_synced`].

// Bottom-up: a module imports only from modules above it.
pub mod published;
pub mod keys;
pub mod floor;
mod databases;
pub mod transact;
mod loads;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use terrane::kv::Durability;

use super::{Error, Result};
use crate::instruments::meter;
#[cfg(not(feature = "redis"))]
use terrane::state_dir;
use terrane::state_dir::{BackEnd, Password};

use self::databases::Databases;
use self::floor::{Floor, Shape};
use self::keys::Keys;

/// Appends of the yardstick.
pub const APPENDS: u64 = 1_000;

/// Load on a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Load {
    /// The ten tests of Transact.
    Tests,
    /// Commits of one key each.
    Single,
    /// Commits, each of which prunes the root before it.
    Prune,
    /// One value at many addresses, all of which are overwritten and pruned at once.
    Equal,
    /// Commits of 1,000 keys each.
    Batch,
    /// Lookups of keys in memory.
    Get,
    /// Listing of prefixes.
    Leaves,
    /// Room on disk.
    Space,
}

impl Load {
    /// All, in the order of reports.
    pub const ALL: [Self; 8] = [
        Self::Tests,
        Self::Single,
        Self::Prune,
        Self::Equal,
        Self::Batch,
        Self::Get,
        Self::Leaves,
        Self::Space,
    ];

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tests => "tests",
            Self::Single => "single",
            Self::Prune => "prune",
            Self::Equal => "equal",
            Self::Batch => "batch",
            Self::Get => "get",
            Self::Leaves => "leaves",
            Self::Space => "space",
        }
    }

    /// The load of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|load| load.name() == name)
    }

    /// Whether it reads only once its state is made, so that how durable commits are does not
    /// matter.
    #[must_use]
    pub fn only_reads(self) -> bool {
        matches!(self, Self::Get | Self::Leaves)
    }
}

/// Sizes of the loads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Commits of one key, for each run of `single` and `prune`; addresses of one value, for each
    /// run of `equal`.
    pub commits: Vec<u64>,
    /// Commits of `batch_keys` keys, which make the state of the other loads too.
    pub batches: u64,
    /// Keys of each of them.
    pub batch_keys: u64,
    /// Lookups of `get`.
    pub gets: u64,
}

impl Default for Sizes {
    /// 1,000 and 10,000 single keys, 100 batches of 1,000, 100,000 lookups.
    fn default() -> Self {
        Self { commits: vec![1_000, 10_000], batches: 100, batch_keys: 1_000, gets: 100_000 }
    }
}

/// A load on a back-end. See the [module](self).
#[derive(Debug, Clone)]
pub struct Cell<'a> {
    /// Back-end of the state.
    pub back_end: BackEnd,
    /// Empty directory for the databases.
    pub dir: &'a Path,
    /// Durability of commits.
    pub durability: Durability,
    /// Load of the cell.
    pub load: Load,
    /// Sizes of the load.
    pub sizes: Sizes,
    /// Seed of keys, values and choices.
    pub seed: u64,
    /// URLs of Redis.
    pub redis_urls: Vec<String>,
    /// Source of the password of Redis.
    pub redis_password: Password,
    /// Whether to start a server of Redis where no URL is given.
    pub starts_redis: bool,
    /// URL of a cluster of Cassandra: contact points and keyspace.
    pub cassandra_url: Option<String>,
}

/// Time of a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// The part.
    pub name: String,
    /// Seconds.
    pub wall_s: f64,
}

/// A figure of a load, other than of the tests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the work, as `1,000 commits of 1 key`.
    pub name: String,
    /// Number of repetitions.
    pub count: u64,
    /// Seconds for all of it.
    pub wall_s: f64,
    /// Microseconds for each.
    pub us_each: f64,
    /// Bytes on disk after it, where that is what was asked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub disk_bytes: Option<u64>,
    /// The root in the end.
    pub root: String,
}

/// Report of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Transactions that were committed.
    pub transactions: u64,
    /// Calls that make data durable, as the back-end counts them.
    pub syncs: u64,
    /// Bytes written, as the back-end counts them; `None` where it does not.
    pub bytes_written: Option<u64>,
    /// Bytes read, likewise.
    pub bytes_read: Option<u64>,
    /// Bytes that the process has made devices write, as the system counts them.
    pub process_write_bytes: Option<u64>,
    /// Bytes that it has made devices read.
    pub process_read_bytes: Option<u64>,
    /// The most memory that the process has had.
    pub rss_peak_bytes: Option<u64>,
    /// Bytes that all databases took in the end: allocated blocks, or memory where there are no
    /// files.
    pub disk_bytes: u64,
    /// Guarantee of the commits.
    pub guarantee: String,
    /// The settings in effect.
    pub settings: BTreeMap<String, String>,
    /// Results of the ten tests, if the load is the ten tests.
    pub tests: Vec<Timed>,
    /// Figures of the other loads.
    pub figures: Vec<Figure>,
}

/// Outcome of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The cell was run.
    Done(Box<Report>),
    /// The back-end cannot do it: why.
    Refused(String),
}

/// Refuses a wrong answer.
fn ensure(is_right: bool, what: impl FnOnce() -> String) -> Result<()> {
    if is_right { Ok(()) } else { Err(Error::Wrong(what())) }
}

/// Runs a cell, in a process that does nothing else.
///
/// # Errors
/// [`Error::Wrong`], and what the back-end says; what it cannot do at all is no error, but
/// [`Outcome::Refused`].
pub fn run(cell: &Cell<'_>) -> Result<Outcome> {
    fs::create_dir_all(cell.dir).map_err(|error| Error::io(cell.dir, error))?;
    if cell.back_end == BackEnd::Redis && cell.redis_urls.is_empty() {
        return with_server(cell);
    }
    if cell.back_end == BackEnd::Cassandra && cell.cassandra_url.is_none() {
        let why = "no cluster of Cassandra is given; name nodes by --contact-points";
        return Ok(Outcome::Refused(why.to_owned()));
    }
    let mut databases = Databases::new(cell);

    match work(cell, &mut databases) {
        Ok((tests, figures)) => {
            let report = report(cell, &databases, tests, figures)?;
            Ok(Outcome::Done(Box::new(report)))
        }
        Err(Error::Radix(error)) => match error.refusal() {
            Some(why) => Ok(Outcome::Refused(why)),
            None => Err(error.into()),
        },
        Err(error) => Err(error),
    }
}

/// Runs a cell on a server of its own, whose data are in the directory of the cell.
#[cfg(feature = "redis")]
fn with_server(cell: &Cell<'_>) -> Result<Outcome> {
    use terrane::backends::redis::server::{Server, is_installed};
    if !cell.starts_redis {
        let why = "no Redis server is given; name a server by --redis-url, or give --start-redis";
        return Ok(Outcome::Refused(why.to_owned()));
    }

    if !is_installed() {
        return Ok(Outcome::Refused(
            "redis-server is not installed, and no --redis-url is given".to_owned(),
        ));
    }

    let settings: &[&str] = match cell.durability {
        Durability::None => &["--appendonly", "no"],
        Durability::Buffered => &["--appendonly", "yes", "--appendfsync", "everysec"],
        Durability::Each | Durability::Group => &["--appendonly", "yes", "--appendfsync", "always"],
    };

    let server = Server::start(cell.dir, settings).map_err(|error| Error::io(cell.dir, error))?;
    let mut outcome = run(&Cell { redis_urls: vec![server.url()], ..cell.clone() })?;

    // The use of a child process counts once the child has ended.
    drop(server);

    if let (Outcome::Done(report), Some(usage)) = (&mut outcome, meter::Usage::now()) {
        report.process_write_bytes = Some(usage.write_bytes);
        report.process_read_bytes = Some(usage.read_bytes);
    }

    Ok(outcome)
}

#[cfg(not(feature = "redis"))]
#[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
fn with_server(cell: &Cell<'_>) -> Result<Outcome> {
    let error = state_dir::Error::NotBuilt { back_end: cell.back_end };
    Ok(Outcome::Refused(error.to_string()))
}

fn work(cell: &Cell<'_>, databases: &mut Databases) -> Result<(Vec<Timed>, Vec<Figure>)> {
    match cell.load {
        Load::Tests => Ok((transact::run(databases, cell.seed)?, Vec::new())),
        load => Ok((Vec::new(), loads::run(load, databases, &cell.sizes, cell.seed)?)),
    }
}

fn report(
    cell: &Cell<'_>,
    databases: &Databases,
    tests: Vec<Timed>,
    figures: Vec<Figure>,
) -> Result<Report> {
    let totals = &databases.totals;

    // A server that was started for the cell keeps its log in that directory.
    let has_log = cell.back_end == BackEnd::Redis && cell.dir.join("appendonlydir").exists();
    let disk_bytes = if cell.back_end.has_files() || has_log {
        meter::allocated_bytes(cell.dir).map_err(|error| Error::io(cell.dir, error))?
    } else {
        totals.database_bytes
    };

    let usage = meter::Usage::now();

    // A database that commits and writes nothing does not count.
    let counted = |bytes: u64| (bytes > 0).then_some(bytes);
    Ok(Report {
        transactions: totals.transactions,
        syncs: totals.syncs,
        bytes_written: counted(totals.bytes_written),
        bytes_read: counted(totals.bytes_read),
        process_write_bytes: usage.map(|usage| usage.write_bytes),
        process_read_bytes: usage.map(|usage| usage.read_bytes),
        rss_peak_bytes: meter::rss_peak_bytes(),
        disk_bytes,
        guarantee: databases.guarantee.clone(),
        settings: databases.settings.clone(),
        tests,
        figures,
    })
}

/// A floor beside the figure of its name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FigureFloor {
    /// The figure that it is of; of the tests, that of their commits.
    pub name: String,
    /// The floor.
    #[serde(flatten)]
    pub floor: Floor,
}

/// The hashing floors of a load.
///
/// Cost: the time of hashing its nodes, three times over, and some memory for each key.
#[must_use]
pub fn floor_of(load: Load, sizes: &Sizes, seed: u64) -> Vec<FigureFloor> {
    let of = |name: String, shape: &Shape| FigureFloor { name, floor: shape.measure() };
    match load {
        Load::Tests => vec![of("tests".to_owned(), &transact::update_shape(seed))],
        Load::Single | Load::Prune => {
            let floors = sizes.commits.iter().map(|&commits| {
                let mut shape = Shape::default();
                for key in Keys::new(seed).take(commits as usize) {
                    shape.commit(&[(&key.address, Some(key.value.len()))]);
                }
                of(loads::commits_name(load, commits), &shape)
            });
            floors.collect()
        }
        Load::Batch => {
            let mut shape = Shape::default();
            let mut keys = Keys::new(seed);
            let mut floors = Vec::new();
            let mut all = Shape::default();
            for batch in 0..sizes.batches {
                if batch == loads::last_batches(sizes) {
                    all.add(&shape);
                    shape.reset();
                }
                let batch: Vec<_> = keys.by_ref().take(sizes.batch_keys as usize).collect();
                let steps: Vec<_> = batch
                    .iter()
                    .map(|key| (key.address.as_slice(), Some(key.value.len())))
                    .collect();
                shape.commit(&steps);
            }
            all.add(&shape);
            floors.push(of(loads::batches_name(sizes), &all));
            floors.push(of(loads::last_name(sizes), &shape));
            floors
        }
        Load::Equal | Load::Get | Load::Leaves | Load::Space => Vec::new(),
    }
}

/// Writes `count` times `bytes` bytes to the end of a file in a directory, each time with an
/// `fdatasync`; gives the seconds.
///
/// # Errors
/// Those of the system, for the file.
pub fn append_synced(dir: &Path, count: u64, bytes: u64) -> Result<f64> {
    let path = dir.join("appends");
    let failed = |error| Error::io(&path, error);
    let content = vec![0xA5; bytes as usize];
    let mut file = File::create(&path).map_err(failed)?;
    let start = Instant::now();

    for _ in 0..count {
        file.write_all(&content).and_then(|()| file.sync_data()).map_err(failed)?;
    }

    let took = start.elapsed().as_secs_f64();
    drop(file);
    fs::remove_file(&path).map_err(failed)?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_loads_come_back() {
        for load in Load::ALL {
            assert_eq!(Load::named(load.name()), Some(load));
        }
    }
}
