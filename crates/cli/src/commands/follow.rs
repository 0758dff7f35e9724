//! `terrane follow`: a copy of a store that takes over its commits.
//!
//! # JSON
//!
//! `source_commit` (the last commit of the source that the copy has), `commits`, `updates`,
//! `roll_backs`, `loads` (tables that the source has loaded), `takeovers` (how often a whole view
//! of the source was taken over), `wall_s`, for a bucket `requests`, and with `--verify` `tables`:
//! list of `name`, `count`, `digest` (null for a table that the copy lacks), `equal`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use terrane::io::files::create_parents;
use terrane::lsm::{Error, FollowOptions, FollowReport, FollowedTable, Follower};
use terrane_replay::monitor::Monitor as _;

use crate::stores::bucket;
use crate::stores::open::{is_within, open_to_read};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::{ByteBar, Progress};
use crate::ui::text::{grouped, hex};

pub(crate) const EXAMPLES: &str = "\
Examples:
  Make a copy and keep it up to date:
    terrane follow /data/ledger /copy/ledger
  Catch up once, compare both, and end:
    terrane follow /data/ledger /copy/ledger --once --verify
  A second copy has a name of its own:
    terrane follow /data/ledger /copy/second --feed second
  On another machine, a copy of what `terrane backup --follow` ships:
    terrane follow s3://ledger-backups/main /copy/ledger

The copy begins as a backup and then commits what its source commits, in order and whole. It works \
beside the process that writes the source, and may be interrupted and begun again at any time. \
While it is away, the source keeps the commits behind it, up to a limit; beyond that the copy \
compares itself with its source. Only read the copy: once somebody commits to it, it follows no \
more. `terrane feed delete NAME` ends it for good.

The copy of a bucket begins as a restore and applies the commits that are shipped. It needs nothing \
of the machine that writes the store, and any number of copies may follow one bucket. Credentials \
come from the environment: see `terrane backup --help`.";

/// Longest wait before the command looks whether it is to stop.
const WAIT: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct Follow {
    /// Directory of the store to follow, or the address of a bucket that the store is shipped to
    #[arg(value_name = "SRC|ADDRESS")]
    source: PathBuf,
    /// Directory of the copy: missing, empty, or an earlier copy of this store
    #[arg(value_name = "DST")]
    copy: PathBuf,
    /// Name of the feed that holds the place of this copy in its source
    #[arg(long, value_name = "NAME", default_value = "follower")]
    feed: String,
    /// Seconds between two looks at a bucket
    #[arg(long, value_name = "SECONDS", value_parser = args::positive_count, default_value_t = 10)]
    every: u64,
    /// Ends when the copy has caught up
    #[arg(long)]
    once: bool,
    /// Compares all tables of both by their digests at the end
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Compared {
    name: String,
    count: Option<u64>,
    digest: Option<String>,
    equal: bool,
}

#[derive(Serialize)]
struct Followed {
    source_commit: u64,
    commits: u64,
    updates: u64,
    roll_backs: u64,
    loads: u64,
    takeovers: u64,
    wall_s: f64,
    #[cfg(feature = "object-store")]
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<terrane_object::Requests>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tables: Option<Vec<Compared>>,
}

impl Followed {
    fn new(report: FollowReport, started: Instant) -> Self {
        let FollowReport { source_commit, commits, updates, roll_backs, loads, takeovers, .. } =
            report;
        Self {
            source_commit,
            commits,
            updates,
            roll_backs,
            loads,
            takeovers,
            wall_s: started.elapsed().as_secs_f64(),
            #[cfg(feature = "object-store")]
            requests: None,
            tables: None,
        }
    }
}

impl Follow {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match bucket::address(&self.source) {
            Some(address) => self.of_bucket(address),
            None => self.of_directory(),
        }
    }

    fn of_directory(&self) -> Result<u8, Failure> {
        if is_within(&self.copy, &self.source) {
            return Err(Failure::usage(
                "DST is SRC or lies in it; a copy needs a place of its own",
            ));
        }
        // Refuses what is no store, before anything is made.
        drop(open_to_read(&self.source)?);
        let started = Instant::now();
        let disk = terrane::io::RealDisk::auto();
        create_parents(disk.as_ref(), &self.copy).map_err(Error::from)?;

        let options = FollowOptions::default().feed(self.feed.as_str());
        let mut bar = ByteBar::new("copying", self.output.quiet);
        let mut progress = |done, total| bar.set(done, total);
        let mut follower = Follower::open_dir(&self.source, &self.copy, &options, &mut progress)?;
        drop(bar);

        let signals = Progress::new(true);
        follower.catch_up()?;
        while !self.once && !signals.stop() {
            if follower.wait(WAIT)? {
                follower.catch_up()?;
            }
        }
        let compared = if self.verify { Some(follower.verify()?) } else { None };
        let report = follower.report();
        follower.close()?;
        self.report(Followed::new(report, started), compared.as_deref())
    }

    #[cfg(not(feature = "object-store"))]
    #[expect(clippy::unused_self, reason = "with the feature it has options")]
    fn of_bucket(&self, _address: &str) -> Result<u8, Failure> {
        Err(Failure::not_built("object-store"))
    }

    #[cfg(feature = "object-store")]
    fn of_bucket(&self, address: &str) -> Result<u8, Failure> {
        use std::sync::Arc;

        use terrane::io::{Disk, RealDisk};
        use terrane_object::BucketFollower;

        let started = Instant::now();
        let bucket = bucket::open(address)?;
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let copy = disk.absolute(&self.copy).map_err(Error::from)?;
        let mut bar = ByteBar::new("restoring", self.output.quiet);
        let mut progress = |done, total| bar.set(done, total);
        let options = FollowOptions::default();
        let mut follower = BucketFollower::open(&bucket, (&disk, &copy), &options, &mut progress)?;
        drop(bar);

        let mut signals = Progress::new(self.output.quiet);
        follower.catch_up()?;
        while !self.once && !signals.stop() {
            let until = Instant::now() + Duration::from_secs(self.every);
            while Instant::now() < until && !signals.stop() {
                std::thread::sleep(WAIT);
            }
            match follower.catch_up() {
                // The bucket is away, or a backup was dropped: the copy waits.
                Err(error) if bucket::is_passing(&error) => {
                    signals.warn(&format!("{error}; trying again in {} s", self.every));
                }
                caught_up => drop(caught_up?),
            }
        }
        let compared = if self.verify { Some(follower.verify()?) } else { None };
        let mut followed = Followed::new(follower.report(), started);
        followed.requests = Some(bucket.requests());
        follower.close()?;
        self.report(followed, compared.as_deref())
    }

    fn report(
        &self,
        mut followed: Followed,
        compared: Option<&[FollowedTable]>,
    ) -> Result<u8, Failure> {
        let table = |table: &FollowedTable| Compared {
            name: table.name.to_string(),
            count: table.digests[1].map(|(count, _)| count),
            digest: table.digests[1].map(|(_, digest)| hex(&digest)),
            equal: table.is_equal(),
        };
        let other = compared.into_iter().flatten().find(|table| !table.is_equal());
        let differs = other.map(|table| {
            Failure::check(format!("table `{}` of the copy differs from its source", table.name))
        });
        let is_verified = compared.is_some() && differs.is_none();
        // Without --once, only a signal ends the following.
        let failure = differs.or_else(|| {
            let message = "interrupted; the copy is whole, and can go on";
            (!self.once).then(|| Failure::interrupted(message))
        });
        followed.tables = compared.map(|tables| tables.iter().map(table).collect());
        let (commits, updates) = (grouped(followed.commits), grouped(followed.updates));
        let mut lines = vec![
            ("source commit", grouped(followed.source_commit)),
            ("applied", format!("{commits} commits, {updates} updates")),
        ];
        if is_verified {
            lines.push(("verified", "all tables are equal".to_owned()));
        }
        let text = output::aligned(&lines);
        output::checked("follow", self.output.json, &followed, &text, failure.as_ref())
    }
}
