//! `terrane bench radix`: Transact's ten tests, and loads of random keys, on the back-ends of the
//! radix state.
//!
//! A cell is a load on a back-end, in a directory, at a durability. Each cell runs in a process of
//! its own: this program with `--cell`, which prints its measurement as a line of JSON. Real time
//! is that from its start to its end. User and system time are those of the process and its
//! children, as the system counts them.
//!
//! # JSON
//!
//! The schema of the report is `docs/schema/bench-radix.json`.
//!
//! | field            | meaning                                                                      |
//! |------------------|------------------------------------------------------------------------------|
//! | `seed`, `repeats` | as given                                                                    |
//! | `load_average`   | `before` and `after`: the system's averages of 1, 5 and 15 minutes           |
//! | `published`      | list of `backend`, `machine`, `filesystem`, `real_s`, `user_s`, `system_s`: what Transact 0.3.7 has published of the ten tests |
//! | `dirs`           | list of `dir`, `filesystem`, `device`, `mount_options`, and `appends`: `count`, `bytes` (of each), `best_s`, `median_s` of so many appends with an `fdatasync` each |
//! | `floors`         | list of `load`, `name`, `nodes`, `bytes`, `wall_s`: the time to SHA-512 the nodes that a load hashes, on one thread |
//! | `cells`          | list of **cells**                                                            |
//! | `host`           | the machine                                                                  |
//!
//! A **cell** has `backend`, `dir`, `durability`, `load`, `refused` (null, or why the back-end
//! cannot do it; the rest is null or empty then), `runs` (how many), `real_s`, `user_s`, `system_s`
//! (each with `best`, that of the run with the least real time, and `median`), `ratio_to_memory`
//! (of best real times, to the same load in memory), `ratio_to_first_dir`, `over_floor` (real time
//! to the floor of the load; of the ten tests), `transactions`, `syncs`, `bytes_written`,
//! `bytes_read` (as the back-end counts, null where it does not), `process_write_bytes`,
//! `process_read_bytes` (as the system counts), `rss_peak_bytes`, `disk_bytes` (allocated, in the
//! end), all of the best run, `guarantee`, `settings`, `tests`: list of `name`, `best_s`,
//! `median_s`, and `figures`: list of `name`, `count`, `best_us`, `median_us` (for each),
//! `over_floor` (null where there is none), `over_appends` (of 1,000 commits of one key with syncs:
//! to the appends and the same commits without syncs; null for others), `disk_bytes`, `root`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use terrane::state_dir::BackEnd;
use terrane_bench::instruments::host::{Host, Mounted, load_average};
use terrane_bench::workloads::radix::published::{PUBLISHED, Published};
use terrane_bench::workloads::radix::{
    APPENDS, Cell, FigureFloor, Load, Outcome, Report, Sizes, append_synced, floor_of, run,
};
use terrane_replay::monitor::{Monitor as _, Phase};
use wait4::Wait4 as _;

use super::head::{Head, Started};
use crate::stores::back_ends::{BackEndArg, DurabilityArg, ServerArgs};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::Progress;
use crate::ui::text::{grouped, table};

pub(super) const EXAMPLES: &str = "\
Examples:
  The ten tests of Transact on every back-end, without syncs and with them:
    terrane bench radix --dir /data/bench --load tests
  On two file systems, with the time of each test:
    terrane bench radix --dir /data/bench --dir /mnt/nfs/bench \\
      --backend lmdb,sqlite,lsm --load tests --per-test
  Commits of one key, with and without pruning, and batches, as JSON:
    terrane bench radix --dir /data/bench --backend memory,lsm,lmdb \\
      --load single,prune,batch --json

Each back-end, directory, durability and load has its own process, and its own directory below \
DIR, which is removed at the end. Times are those of the whole process. Every answer is checked; \
a wrong answer, or roots that differ between back-ends, end the benchmark with exit code 1. A \
back-end without a durability has `-` and the reason. For comparison, the report has 1,000 \
appends of the size of a commit, each with an fdatasync, and the time to hash the nodes. Redis \
needs --redis-url, or --start-redis, which starts a server whose time counts; Cassandra needs \
--contact-points. Measure on a quiet \
machine.";

args::choices! {
    /// Name of a load.
    enum LoadArg => Load {
        /// The ten tests of Transact
        Tests => Load::Tests,
        /// Commits of one key each
        Single => Load::Single,
        /// Commits of one key each, each of which prunes the root before it
        Prune => Load::Prune,
        /// One value at many addresses: all set, overwritten and pruned at once
        Equal => Load::Equal,
        /// 100 commits of 1,000 keys each
        Batch => Load::Batch,
        /// Lookups of keys in memory, of 100,000
        Get => Load::Get,
        /// Listing of prefixes, of 100,000 keys
        Leaves => Load::Leaves,
        /// Room on disk, of 100,000 keys in 100 versions, and of the last one alone
        Space => Load::Space,
    }
}

#[derive(Debug, Args)]
pub(crate) struct RadixArgs {
    /// Directory to work in; created if it is missing. May be given several times, one for each
    /// file system
    #[arg(long, value_name = "DIR", required = true)]
    dir: Vec<PathBuf>,
    /// Back-ends, by default all but Cassandra; memory always runs too, for comparison
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    backend: Vec<BackEndArg>,
    /// Durabilities: the columns
    #[arg(long, value_enum, value_name = "LEVEL", value_delimiter = ',',
        default_values = ["none", "each"])]
    durability: Vec<DurabilityArg>,
    /// Loads, by default all
    #[arg(long, value_enum, value_name = "NAME", value_delimiter = ',')]
    load: Vec<LoadArg>,
    /// Runs of each cell; the report has the best and the median
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "3")]
    repeats: u64,
    /// Commits of one key of the loads single and prune, and addresses of the load equal; by
    /// default 1k and, without syncs, 10k
    #[arg(long, value_name = "N", value_parser = args::positive_count, value_delimiter = ',')]
    commits: Vec<u64>,
    /// Commits of 1,000 keys that the other loads begin with
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "100")]
    batches: u64,
    /// Adds 1M commits of one key, without syncs
    #[arg(long)]
    large: bool,
    /// Shows the time of each of the ten tests
    #[arg(long)]
    per_test: bool,
    #[command(flatten)]
    servers: ServerArgs,
    /// Starts a Redis server for each cell, in a directory of its own, unless --redis-url is given
    #[arg(long)]
    start_redis: bool,
    /// Seed of keys, values and choices
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
    /// Runs one cell in the directory, and writes its measurement
    #[arg(long, hide = true)]
    cell: Option<String>,
}

/// Description of a cell for the process that runs it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    backend: String,
    durability: String,
    load: String,
    commits: Vec<u64>,
    batches: u64,
    redis_urls: Vec<String>,
    starts_redis: bool,
    cassandra_url: Option<String>,
}

/// Times of a process, in seconds.
#[derive(Debug, Clone, Copy)]
struct Used {
    real: f64,
    user: f64,
    system: f64,
}

#[derive(Serialize)]
struct Times {
    best: f64,
    median: f64,
}

#[derive(Serialize)]
struct TestTimes {
    name: String,
    best_s: f64,
    median_s: f64,
}

#[derive(Serialize)]
struct FigureTimes {
    name: String,
    count: u64,
    best_us: f64,
    median_us: f64,
    over_floor: Option<f64>,
    over_appends: Option<f64>,
    disk_bytes: Option<u64>,
    root: String,
}

#[derive(Serialize)]
struct Measurement {
    backend: &'static str,
    dir: String,
    durability: &'static str,
    load: &'static str,
    refused: Option<String>,
    runs: u64,
    real_s: Option<Times>,
    user_s: Option<Times>,
    system_s: Option<Times>,
    ratio_to_memory: Option<f64>,
    ratio_to_first_dir: Option<f64>,
    over_floor: Option<f64>,
    transactions: Option<u64>,
    syncs: Option<u64>,
    bytes_written: Option<u64>,
    bytes_read: Option<u64>,
    process_write_bytes: Option<u64>,
    process_read_bytes: Option<u64>,
    rss_peak_bytes: Option<u64>,
    disk_bytes: Option<u64>,
    guarantee: Option<String>,
    settings: BTreeMap<String, String>,
    tests: Vec<TestTimes>,
    figures: Vec<FigureTimes>,
}

#[derive(Serialize)]
struct Appends {
    count: u64,
    bytes: u64,
    best_s: f64,
    median_s: f64,
}

#[derive(Serialize)]
struct DirMeasurement {
    dir: String,
    #[serde(flatten)]
    mounted: Option<Mounted>,
    appends: Appends,
}

#[derive(Serialize)]
struct LoadFloor {
    load: &'static str,
    #[serde(flatten)]
    floor: FigureFloor,
}

#[derive(Serialize)]
struct Averages {
    before: Option<[f64; 3]>,
    after: Option<[f64; 3]>,
}

#[derive(Serialize)]
struct Comparison {
    #[serde(flatten)]
    head: Head,
    seed: u64,
    repeats: u64,
    load_average: Averages,
    published: &'static [Published],
    dirs: Vec<DirMeasurement>,
    floors: Vec<LoadFloor>,
    cells: Vec<Measurement>,
    host: Host,
}

/// Directory below one of the user's for all cells there; removed when the benchmark ends.
struct WorkDir(PathBuf);

impl WorkDir {
    fn make(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join(format!("terrane-bench-radix-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| failed(&path, &error))?;
        Ok(Self(path))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // Leftovers are recognised by their name, and nobody needs them.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn failed(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::environment(format!("{}: {error}", path.display()))
}

fn named_durability(name: &str) -> Option<DurabilityArg> {
    DurabilityArg::from_str(name, false).ok()
}

fn name_of(durability: DurabilityArg) -> &'static str {
    terrane::kv::Durability::from(durability).name()
}

impl RadixArgs {
    pub(super) fn run(&self, command: &str) -> Result<u8, Failure> {
        if let Some(order) = &self.cell {
            return self.run_cell(order).map(|()| 0);
        }

        let started = Started::now();
        let mut progress = Progress::new(self.output.quiet);
        let before = load_average();
        let work: Result<Vec<WorkDir>, Failure> =
            self.dir.iter().map(|dir| WorkDir::make(dir)).collect();
        let work = work?;
        let orders = self.orders();
        let loads: Vec<Load> = self.loads();

        let mut floors = Vec::new();
        for load in &loads {
            let sizes = self.sizes(DurabilityArg::None);
            let of_load = floor_of(*load, &sizes, self.seed).into_iter();
            floors.extend(of_load.map(|floor| LoadFloor { load: load.name(), floor }));
        }

        let total = (orders.len() as u64) * self.repeats;
        let mut done: u64 = 0;
        let mut cells: Vec<Measurement> = Vec::new();

        for (dir, order) in &orders {
            let mut runs = Vec::new();
            let mut refused = None;
            for number in 0..self.repeats {
                let place = work[*dir].0.join(format!("cell-{}-{number}", cells.len()));
                let outcome = self.child(order, &place);
                fs::remove_dir_all(&place).or_else(|error| match error.kind() {
                    std::io::ErrorKind::NotFound => Ok(()),
                    _ => Err(failed(&place, &error)),
                })?;

                if progress.stop() {
                    return Err(Failure::interrupted("interrupted"));
                }
                done += 1;
                progress.progress(Phase::Measure, done, Some(total));

                match outcome? {
                    (used, Outcome::Done(report)) => runs.push((used, *report)),
                    (_, Outcome::Refused(why)) => {
                        done += self.repeats - number - 1;
                        refused = Some(why);
                        break;
                    }
                }
            }

            let dir = self.dir[*dir].display().to_string();
            cells.push(measured(order, dir, refused, runs, &floors));
        }

        compare(&mut cells)?;
        let appended = Self::append_bytes(&cells);

        let mut dirs = Vec::new();
        for (dir, work) in self.dir.iter().zip(&work) {
            dirs.push(self.measure_dir(dir, &work.0, appended)?);
        }

        compare_with_appends(&mut cells, &dirs);
        drop(progress);
        let comparison = Comparison {
            head: started.head(),
            seed: self.seed,
            repeats: self.repeats,
            load_average: Averages { before, after: load_average() },
            published: if loads.contains(&Load::Tests) { &PUBLISHED } else { &[] },
            dirs,
            floors,
            cells,
            host: Host::of(&self.dir[0]),
        };

        output::checked(
            command,
            self.output.json,
            &comparison,
            &comparison.text(self.per_test),
            None,
        )
    }

    fn back_ends(&self) -> Vec<BackEnd> {
        let chosen: Vec<BackEnd> = self.backend.iter().copied().map(BackEnd::from).collect();
        let is_wanted = |back_end: &BackEnd| {
            let is_default = chosen.is_empty() && *back_end != BackEnd::Cassandra;
            is_default || *back_end == BackEnd::Memory || chosen.contains(back_end)
        };
        BackEnd::ALL.into_iter().filter(is_wanted).collect()
    }

    fn loads(&self) -> Vec<Load> {
        let chosen: Vec<Load> = self.load.iter().copied().map(Load::from).collect();
        Load::ALL.into_iter().filter(|load| chosen.is_empty() || chosen.contains(load)).collect()
    }

    fn sizes(&self, durability: DurabilityArg) -> Sizes {
        let mut commits = match (self.commits.is_empty(), durability) {
            (false, _) => self.commits.clone(),
            (true, DurabilityArg::None) => vec![1_000, 10_000],
            (true, _) => vec![1_000],
        };
        if self.large && durability == DurabilityArg::None {
            commits.push(1_000_000);
        }
        commits.dedup();
        Sizes { commits, batches: self.batches, ..Sizes::default() }
    }

    /// Returns all cells, with the indexes of their directories. Back-end memory has cells in the
    /// first directory only.
    fn orders(&self) -> Vec<(usize, Order)> {
        let mut orders = Vec::new();
        for load in self.loads() {
            for (number, _) in self.dir.iter().enumerate() {
                for back_end in self.back_ends() {
                    if back_end == BackEnd::Memory && number > 0 {
                        continue;
                    }

                    let mut levels = self.durability.clone();
                    let none = DurabilityArg::None;
                    if back_end == BackEnd::Memory && !levels.contains(&none) {
                        // The back-end that the other ones are compared with.
                        levels.insert(0, none);
                    }

                    for durability in &levels {
                        // A load that only reads is the same in every column.
                        if load.only_reads() && durability != &levels[0] {
                            continue;
                        }

                        let sizes = self.sizes(*durability);
                        let order = Order {
                            backend: back_end.name().to_owned(),
                            durability: name_of(*durability).to_owned(),
                            load: load.name().to_owned(),
                            commits: sizes.commits,
                            batches: sizes.batches,
                            redis_urls: self.servers.redis_url.clone(),
                            starts_redis: self.start_redis,
                            cassandra_url: self.servers.cassandra_url(),
                        };

                        orders.push((number, order));
                    }
                }
            }
        }

        orders
    }

    /// Runs one cell, in the process of that cell.
    fn run_cell(&self, order: &str) -> Result<(), Failure> {
        let malformed = || Failure::usage("--cell is for `terrane bench radix` itself");

        let order: Order = serde_json::from_str(order).map_err(|_| malformed())?;
        let durability = named_durability(&order.durability).ok_or_else(malformed)?;
        let outcome = run(&Cell {
            back_end: BackEnd::named(&order.backend).ok_or_else(malformed)?,
            dir: self.dir.first().ok_or_else(malformed)?,
            durability: durability.into(),
            load: Load::named(&order.load).ok_or_else(malformed)?,
            sizes: Sizes { commits: order.commits, batches: order.batches, ..Sizes::default() },
            seed: self.seed,
            redis_urls: order.redis_urls,
            redis_password: self.servers.password(),
            starts_redis: order.starts_redis,
            cassandra_url: order.cassandra_url,
        })?;

        let text = serde_json::to_string(&outcome);

        output::print(&text.map_err(|error| Failure::environment(error.to_string()))?)
    }

    /// Runs a cell in a child process.
    fn child(&self, order: &Order, dir: &Path) -> Result<(Used, Outcome), Failure> {
        let environment = |error: &dyn std::error::Error| {
            Failure::environment(format!("running {} on {}: {error}", order.load, order.backend))
        };
        let program = std::env::current_exe().map_err(|error| environment(&error))?;

        let text = serde_json::to_string(order).map_err(|error| environment(&error))?;
        let mut command = Command::new(program);
        command.args([
            "bench",
            "radix",
            "--cell",
            &text,
            "--seed",
            &self.seed.to_string(),
            "--dir",
        ]);

        command.arg(dir);

        if let Some(file) = &self.servers.redis_password_file {
            command.arg("--redis-password-file").arg(file);
        }

        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let start = Instant::now();
        let mut child = command.spawn().map_err(|error| environment(&error))?;

        let read = |stream: Option<&mut dyn std::io::Read>| {
            let mut text = String::new();
            stream.map_or(Ok(0), |stream| stream.read_to_string(&mut text)).map(|_| text)
        };

        // The child prints its line and its error at the very end. The error fits into a pipe, so
        // reading one stream after the other cannot block.
        let found = read(child.stdout.as_mut().map(|stream| stream as &mut dyn std::io::Read));
        let reported = read(child.stderr.as_mut().map(|stream| stream as &mut dyn std::io::Read));

        let ended = child.wait4().map_err(|error| environment(&error))?;
        let used = Used {
            real: start.elapsed().as_secs_f64(),
            user: ended.rusage.utime.as_secs_f64(),
            system: ended.rusage.stime.as_secs_f64(),
        };

        let found = found.map_err(|error| environment(&error))?;
        let reported = reported.map_err(|error| environment(&error))?;

        if !ended.status.success() {
            let reported = reported.trim().trim_start_matches("terrane: ");
            let Order { backend, durability, load, .. } = order;
            let message = format!("{load} on {backend} at {durability}: {reported}");
            return Err(match ended.status.code() {
                Some(1) => Failure::check(message),
                Some(2) => Failure::usage(message),
                _ => Failure::environment(message),
            });
        }

        let outcome = serde_json::from_str(&found).map_err(|error| environment(&error))?;

        Ok((used, outcome))
    }

    /// Bytes of a commit of the tests, or else of one key, as the back-end memory counts them; 4
    /// KiB if neither was run.
    fn append_bytes(cells: &[Measurement]) -> u64 {
        let mut of_memory = cells.iter().filter(|cell| {
            let is_small = [Load::Tests, Load::Single].map(Load::name).contains(&cell.load);
            cell.backend == BackEnd::Memory.name() && is_small && cell.refused.is_none()
        });
        let of_memory = of_memory.next();
        let of_memory = of_memory.and_then(|cell| {
            Some(cell.bytes_written? / cell.transactions.filter(|count| *count > 0)?)
        });
        of_memory.unwrap_or(4096)
    }

    fn measure_dir(&self, dir: &Path, work: &Path, bytes: u64) -> Result<DirMeasurement, Failure> {
        let times: Result<Vec<f64>, Failure> =
            (0..self.repeats).map(|_| Ok(append_synced(work, APPENDS, bytes)?)).collect();
        let Times { best, median } = times_of(times?);
        let appends = Appends { count: APPENDS, bytes, best_s: best, median_s: median };
        Ok(DirMeasurement { dir: dir.display().to_string(), mounted: Mounted::of(dir), appends })
    }
}

/// Returns the least and the middle time.
fn times_of(mut times: Vec<f64>) -> Times {
    times.sort_by(f64::total_cmp);
    let at = |place: usize| times.get(place).copied().unwrap_or(f64::NAN);
    Times { best: at(0), median: at(times.len() / 2) }
}

fn measured(
    order: &Order,
    dir: String,
    refused: Option<String>,
    mut runs: Vec<(Used, Report)>,
    floors: &[LoadFloor],
) -> Measurement {
    let static_name = |name: &str, all: &[&'static str]| {
        all.iter().find(|one| **one == name).copied().unwrap_or_default()
    };
    runs.sort_by(|one, other| one.0.real.total_cmp(&other.0.real));
    let best = runs.first();
    let report = best.map(|(_, report)| report);

    // `best` belongs to the run with the least real time, for all three times.
    let times = |part: fn(&Used) -> f64| {
        let median = times_of(runs.iter().map(|(used, _)| part(used)).collect()).median;
        best.map(|(used, _)| Times { best: part(used), median })
    };

    let floor = |name: &str| {
        let of_load = floors.iter().filter(|floor| floor.load == order.load);
        let mut found = of_load.filter(|floor| floor.floor.name == name);
        found.next().map(|floor| floor.floor.floor.wall_s)
    };

    let tests = report.map_or(&[][..], |report| &report.tests).iter().enumerate();
    let tests = tests.map(|(at, test)| {
        let times = times_of(runs.iter().map(|(_, report)| report.tests[at].wall_s).collect());
        TestTimes { name: test.name.clone(), best_s: times.best, median_s: times.median }
    });

    let figures = report.map_or(&[][..], |report| &report.figures).iter().enumerate();
    let figures = figures.map(|(at, figure)| {
        let times = times_of(runs.iter().map(|(_, report)| report.figures[at].us_each).collect());
        let floor_us =
            floor(&figure.name).map(|floor_s| floor_s * 1e6 / figure.count.max(1) as f64);
        FigureTimes {
            name: figure.name.clone(),
            count: figure.count,
            best_us: times.best,
            median_us: times.median,
            over_floor: floor_us.map(|floor_us| times.best / floor_us),
            over_appends: None,
            disk_bytes: figure.disk_bytes,
            root: figure.root.clone(),
        }
    });

    let real_s = times(|used| used.real);

    Measurement {
        backend: static_name(&order.backend, &BackEnd::ALL.map(BackEnd::name)),
        dir,
        durability: static_name(&order.durability, &["none", "async", "each", "group"]),
        load: static_name(&order.load, &Load::ALL.map(Load::name)),
        refused,
        runs: runs.len() as u64,
        over_floor: real_s.as_ref().zip(floor("tests")).map(|(real_s, floor)| real_s.best / floor),
        real_s,
        user_s: times(|used| used.user),
        system_s: times(|used| used.system),
        ratio_to_memory: None,
        ratio_to_first_dir: None,
        transactions: report.map(|report| report.transactions),
        syncs: report.map(|report| report.syncs),
        bytes_written: report.and_then(|report| report.bytes_written),
        bytes_read: report.and_then(|report| report.bytes_read),
        process_write_bytes: report.and_then(|report| report.process_write_bytes),
        process_read_bytes: report.and_then(|report| report.process_read_bytes),
        rss_peak_bytes: report.and_then(|report| report.rss_peak_bytes),
        disk_bytes: report.map(|report| report.disk_bytes),
        guarantee: report.map(|report| report.guarantee.clone()),
        settings: report.map(|report| report.settings.clone()).unwrap_or_default(),
        tests: tests.collect(),
        figures: figures.collect(),
    }
}

/// Sets the ratios between cells, and refuses equal figures with different roots.
fn compare(cells: &mut [Measurement]) -> Result<(), Failure> {
    let mut roots: BTreeMap<(&str, String), (String, String)> = BTreeMap::new();
    for cell in cells.iter() {
        for figure in &cell.figures {
            let key = (cell.load, figure.name.clone());
            let here = format!("{} at {}", cell.backend, cell.durability);
            let (root, first) = roots.entry(key).or_insert((figure.root.clone(), here.clone()));
            if *root != figure.root {
                let FigureTimes { name, root: found, .. } = figure;
                let message = format!("{name}: {first} gives root {root}, {here} gives {found}");
                return Err(Failure::check(message));
            }
        }
    }

    let best = |cell: &Measurement| cell.real_s.as_ref().map(|times| times.best);
    for at in 0..cells.len() {
        let cell = &cells[at];
        let Some(own) = best(cell) else { continue };
        let memory = cells.iter().find(|other| {
            other.backend == BackEnd::Memory.name()
                && other.load == cell.load
                && other.real_s.is_some()
        });

        let same = |other: &&Measurement| {
            (other.backend, other.durability, other.load)
                == (cell.backend, cell.durability, cell.load)
        };

        // Cells of the first directory come first.
        let first = cells.iter().find(same).filter(|first| first.dir != cell.dir);

        // Back-end memory commits without syncs only, and runs more commits in the loads of single
        // keys.
        let to_memory =
            memory.filter(|_| cell.load == Load::Tests.name() || cell.durability == "none");
        let to_memory = to_memory.and_then(best).map(|memory| own / memory);
        let to_first = first.and_then(best).map(|first| own / first);
        (cells[at].ratio_to_memory, cells[at].ratio_to_first_dir) = (to_memory, to_first);
    }

    Ok(())
}

/// Sets the ratio of the commits with syncs to the sum of the same number of appends and of commits
/// without syncs.
fn compare_with_appends(cells: &mut [Measurement], dirs: &[DirMeasurement]) {
    let single = |cell: &Measurement, durability: &str| {
        cell.load == Load::Single.name() && cell.durability == durability
    };

    let seconds = |figure: &FigureTimes| figure.best_us * figure.count as f64 / 1e6;
    let unsynced: Vec<(&str, String, f64)> = cells
        .iter()
        .filter(|cell| single(cell, "none"))
        .flat_map(|cell| {
            let figures = cell.figures.iter().filter(|figure| figure.count == APPENDS);
            figures.map(|figure| (cell.backend, cell.dir.clone(), seconds(figure)))
        })
        .collect();

    for cell in cells.iter_mut().filter(|cell| single(cell, "each") || single(cell, "group")) {
        let dir = dirs.iter().find(|dir| dir.dir == cell.dir);
        let beside =
            unsynced.iter().find(|(backend, dir, _)| (*backend, dir) == (cell.backend, &cell.dir));
        let (Some(dir), Some((_, _, unsynced_s))) = (dir, beside) else { continue };
        for figure in cell.figures.iter_mut().filter(|figure| figure.count == APPENDS) {
            figure.over_appends = Some(seconds(figure) / (dir.appends.best_s + unsynced_s));
        }
    }
}

impl Comparison {
    fn text(&self, per_test: bool) -> String {
        let mut parts = Vec::new();
        let average = |load: Option<[f64; 3]>| {
            load.map_or("unknown".to_owned(), |[one, ..]| format!("{one:.2}"))
        };
        let Averages { before, after } = self.load_average;

        parts.push(format!(
            "seed {}, best and median of {}, load of the host {} before and {} after",
            self.seed,
            self.repeats,
            average(before),
            average(after)
        ));

        parts.push(self.dirs.iter().map(DirMeasurement::line).collect::<Vec<_>>().join("\n"));

        if self.cells.iter().any(|cell| cell.load == Load::Tests.name()) {
            parts.push(self.tests_table());
            parts.push(published_table());
            if per_test {
                parts.push(self.per_test_table());
            }
        }

        if self.cells.iter().any(|cell| !cell.figures.is_empty()) {
            parts.push(self.figures_table());
        }

        let floors = self.floors.iter().map(|LoadFloor { load, floor }| {
            let nodes = grouped(floor.floor.nodes);
            let size = bytes(floor.floor.bytes);
            format!(
                "hash floor of {load}, {}: {:.3} s for {nodes} nodes, {size}",
                floor.name, floor.floor.wall_s
            )
        });

        parts.push(floors.collect::<Vec<_>>().join("\n"));
        parts.push(self.notes());
        parts.retain(|part| !part.is_empty());

        parts.join("\n\n")
    }

    fn tests_table(&self) -> String {
        let names = [
            "TEN TESTS",
            "DIRECTORY",
            "LEVEL",
            "REAL s",
            "MEDIAN",
            "USER s",
            "SYS s",
            "TO MEMORY",
            "TO FIRST",
            "SYNCS",
            "WRITTEN",
            "BY SYSTEM",
            "PEAK",
            "ON DISK",
        ];

        let mut rows = vec![names.map(str::to_owned).to_vec()];
        for cell in self.cells.iter().filter(|cell| cell.load == Load::Tests.name()) {
            let mut row =
                vec![cell.backend.to_owned(), cell.dir.clone(), cell.durability.to_owned()];
            if let Some(why) = &cell.refused {
                row.push("-".to_owned());
                let _ = why;
                rows.push(row);
                continue;
            }

            let best = |times: &Option<Times>| {
                times.as_ref().map_or(dash(), |times| format!("{:.3}", times.best))
            };
            let ratio = |ratio: Option<f64>| ratio.map_or(dash(), |ratio| format!("{ratio:.2}"));
            let size = |size: Option<u64>| size.map_or(dash(), bytes);

            let median =
                cell.real_s.as_ref().map_or(dash(), |times| format!("{:.3}", times.median));
            row.extend([
                best(&cell.real_s),
                median,
                best(&cell.user_s),
                best(&cell.system_s),
                ratio(cell.ratio_to_memory),
                ratio(cell.ratio_to_first_dir),
                cell.syncs.map_or(dash(), grouped),
                size(cell.bytes_written),
                size(cell.process_write_bytes),
                size(cell.rss_peak_bytes),
                size(cell.disk_bytes),
            ]);

            rows.push(row);
        }

        table(3, &rows)
    }

    fn per_test_table(&self) -> String {
        let mut rows = vec![
            ["TEST", "BACK-END", "DIRECTORY", "LEVEL", "BEST s", "MEDIAN s"]
                .map(str::to_owned)
                .to_vec(),
        ];

        for cell in &self.cells {
            rows.extend(cell.tests.iter().map(|test| {
                vec![
                    test.name.clone(),
                    cell.backend.to_owned(),
                    cell.dir.clone(),
                    cell.durability.to_owned(),
                    format!("{:.6}", test.best_s),
                    format!("{:.6}", test.median_s),
                ]
            }));
        }

        table(4, &rows)
    }

    fn figures_table(&self) -> String {
        let names = [
            "LOAD",
            "BACK-END",
            "DIRECTORY",
            "LEVEL",
            "COUNT",
            "BEST us",
            "MEDIAN us",
            "TO FLOOR",
            "TO APPENDS",
            "ON DISK",
        ];

        let mut rows = vec![names.map(str::to_owned).to_vec()];
        for cell in self.cells.iter().filter(|cell| cell.load != Load::Tests.name()) {
            if cell.refused.is_some() {
                rows.push(
                    [cell.load, cell.backend, &cell.dir, cell.durability, "-"]
                        .map(str::to_owned)
                        .to_vec(),
                );
            }

            rows.extend(cell.figures.iter().map(|figure| {
                vec![
                    format!("{}: {}", cell.load, figure.name),
                    cell.backend.to_owned(),
                    cell.dir.clone(),
                    cell.durability.to_owned(),
                    grouped(figure.count),
                    format!("{:.2}", figure.best_us),
                    format!("{:.2}", figure.median_us),
                    figure.over_floor.map_or(dash(), |ratio| format!("{ratio:.2}")),
                    figure.over_appends.map_or(dash(), |ratio| format!("{ratio:.2}")),
                    figure.disk_bytes.map_or(dash(), bytes),
                ]
            }));
        }

        table(4, &rows)
    }

    /// Lines about the guarantee of each back-end, and the reasons for missing cells.
    fn notes(&self) -> String {
        let mut lines = Vec::new();
        for cell in &self.cells {
            let head = format!("{} at {}", cell.backend, cell.durability);
            let line = match (&cell.refused, &cell.guarantee) {
                (Some(why), _) => format!("{head}: - {why}"),
                (None, Some(guarantee)) => format!("{head}: {guarantee}"),
                (None, None) => continue,
            };
            if !lines.contains(&line) {
                lines.push(line);
            }
        }

        lines.join("\n")
    }
}

fn dash() -> String {
    "-".to_owned()
}

impl DirMeasurement {
    fn line(&self) -> String {
        let Appends { count, bytes: size, best_s, median_s } = &self.appends;
        let mounted = self.mounted.as_ref().map_or("unknown".to_owned(), |mounted| {
            format!("{} on {} ({})", mounted.filesystem, mounted.device, mounted.mount_options)
        });
        let count = grouped(*count);
        format!(
            "{}: {mounted}; {count} appends of {size} bytes with fdatasync: best {best_s:.3} s, median {median_s:.3} s",
            self.dir
        )
    }
}

fn published_table() -> String {
    let mut rows = vec![
        ["PUBLISHED (Transact 0.3.7)", "MACHINE", "FILE SYSTEM", "REAL s", "USER s", "SYS s"]
            .map(str::to_owned)
            .to_vec(),
    ];

    rows.extend(PUBLISHED.iter().map(|run| {
        let seconds = [run.real_s, run.user_s, run.system_s].map(|seconds| format!("{seconds:.3}"));
        [run.backend, run.machine, run.filesystem]
            .into_iter()
            .map(str::to_owned)
            .chain(seconds)
            .collect()
    }));

    table(3, &rows)
}
