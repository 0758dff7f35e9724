//! `terrane verify`: reads and checks everything in a store, and repairs what can be repaired
//! without loss.
//!
//! # JSON
//!
//! | field       | meaning                                                                      |
//! |-------------|------------------------------------------------------------------------------|
//! | `problems`  | list: `file`, `offset_bytes`, `rule`, `snapshots` and `tables` (names of those that need the file; both empty if all do), `after_hex` and `before_hex` (of damaged entries: their keys are between these two; null for no bound and for other damage), `repairable`, `repaired`, `droppable` (`--accept-loss` ends it), `dropped` (it has) |
//! | `repaired`  | how many of them have been repaired                                          |
//! | `left`      | how many have not, and have not been dropped, and each that is in `lost` besides; `ok` is false, and the exit code 1, unless this is 0 |
//! | `repair`    | null if there was none, else `was_refused` (something would have been lost, and is as it was) and `lost`, below |
//! | `notes`     | list of texts: worth knowing, but wrong in no way                            |
//! | `snapshots` | snapshots checked                                                            |
//! | `tables`    | named tables checked                                                         |
//! | `commits`   | commits checked that are in the log only                                     |
//! | `runs`      | run files checked                                                            |
//! | `pages`     | pages of 4 KiB checked                                                       |
//! | `entries`   | entries checked, all versions of a key counted                               |
//! | `state`     | of an Ethereum state whose files are whole, else absent: `problems` (list of `rule`, `repaired`), `repaired`, `left` (counts as above), `accounts`, `slots`, `nodes` |
//! | `wall_s`    | seconds                                                                      |
//!
//! `lost` is a list of `file`, `what`, `snapshots`, `tables` (that had it), `keys` (list of
//! `after_hex` and `before_hex`, null for no bound), `entries`, `pages`, `older`, `after_commit`,
//! `until_commit`, `version`, `name`; what does not apply or is not known is null:
//!
//! | `what`      | lost are                                                                     |
//! |-------------|------------------------------------------------------------------------------|
//! | `entries`   | of the keys between `keys` so many `entries`, which were on so many `pages`; `older`: values and keys that had been replaced or deleted may show again |
//! | `blobs`     | the blobs, not the values, of all keys that the file has between `keys`: so many `entries` |
//! | `commits`   | the commits after `after_commit`, to `until_commit`, which were in the log only |
//! | `version`   | the retained `version`, with its `name`                                      |
//! | `snapshot`  | the snapshot                                                                 |
//! | `tables`    | all named tables                                                             |
//! | `directory` | all that it held                                                             |
//! | `feed_cursor` | the place of a consumer of the change feed, which begins anew              |
//!
//! A bucket has `bucket`, `problems` (with `object`, `rule`, `backups`: names of those that need
//! the object), `left`, `backups`, `objects`, `bytes` (read), `unreferenced_objects`,
//! `unreferenced_bytes`, `requests`, `wall_s`: see `docs/schema/verify-bucket.json`.
//!
//! A directory of a B+tree has of these `problems` (with `file`, `offset_bytes`, `rule`,
//! `repaired`, and `from_hex` and `to_hex`: the keys that cannot be relied on, null where there is
//! no bound or none are known), `repaired`, `left`, `wall_s`, and `leaves`, `nodes`, `height`,
//! `entries`, `leaf_entries`, `log_updates`, `leaf_fill` (of 1), `sparse_leaves`. These are of the
//! tree after a repair. `repair` is null if there was none, else it has `pages_scanned`,
//! `leaves_kept`, `pages_dropped`, `pages_damaged`, `maps_lost`, `entries` (of the index after it),
//! and two lists of `from_hex` and `to_hex`: `stale` (keys taken from an older leaf, perhaps out of
//! date) and `lost` (keys that no leaf was for). A problem whose keys lie in such a range is not
//! `repaired`, and a range without such a problem counts as one that is `left`.
//!
//! A directory of a context store has of these `problems` (with `file`, `address` of the record and
//! `path` in the tree, null where there is none, `rule`, `repaired`; the first 1,000), `repaired`,
//! `left`, `wall_s`, and `chunks`, `bytes`, `kinds` (list of `kind`, `records`, `bytes`), `commits`
//! that are kept, `objects` that they reach. `repair` is null if there was none, else it has
//! `control_made`, `index_entries`, `commits`, `branches`.
//!
//! A directory of a radix store has of these `problems` (with `file`, `place` in it or in the
//! state, null where there is none, `rule`, `repaired`), `repaired`, `left`, `wall_s`, and
//! `backend` (null for a store whose making was interrupted), `trees`, `versions`, `nodes`.
//! `repair` is null if there was none, else it has `was_refused`, `versions` (that are whole),
//! `dropped` (list of `version`, `tree`, null where that is not known, `root`), `unreadable`
//! (versions and trees besides that are lost), `unreferenced` (rows of nodes that no version needs,
//! perhaps the rest of one), `named` (names that trees were given whose own are lost),
//! `rows_removed`, `rows_written`. Each that is dropped, unreadable or named counts as one that is
//! `left`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::context;
use terrane::io::{Disk, EntryKind, Loss, RealDisk};
use terrane::lsm::verify::{self, KeyGap, LostWhat, Report};
use terrane::state_dir;

use crate::stores::back_ends::ServerArgs;
use crate::stores::bucket;
use crate::stores::index_path::IndexPath;
use crate::ui::args::OutputArgs;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::ByteBar;
use crate::ui::text::{self, count_of};
use crate::verify::check_btree;
use crate::verify::check_context;
use crate::verify::check_mpt::{self, StateCheck};
use crate::verify::check_radix;
use crate::verify::outcome::Reporting;

/// Examples at the end of the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  Check a store that no process has open:
    terrane verify /data/utxo
  Check a radix store, its files and every node of the state:
    terrane verify /data/radix
  Drop the versions of a radix store that are damaged:
    terrane verify /data/radix --repair --accept-loss
  Check a B+tree, or rebuild it from its leaves:
    terrane verify /data/index
    terrane verify /data/index --repair
  Repair without loss, then look at the problems that are left:
    terrane verify /data/utxo --repair --json
  Check the backups in a bucket:
    terrane verify s3://ledger-backups/main
  Drop damaged parts, in a copy, and see the losses:
    cp -a /data/utxo /data/utxo-copy && terrane verify /data/utxo-copy \\
      --repair --accept-loss

`verify` checks all checksums, the order of keys, that filters and indexes lead to every key, \
that the files of snapshots and named tables exist, both copies of the manifest, and the log. It \
prints one line for each problem: file, offset in bytes, rule, users of the file. The exit code \
is 1 if any problem is left.

--repair rebuilds filters, indexes, footers and the store's metadata from intact data pages, and \
a copy of the manifest from the other copy. It writes new files, which replace the damaged ones \
once they have passed every check. Damaged data pages, snapshots and commits cannot be repaired: \
restore a copy. Or copy the directory, and give --accept-loss: it drops the entries of damaged \
pages, damaged blobs and snapshots, and the commits of the log from the damaged one on, with the \
versions that need them. Each loss is named with its file and range of keys, and the exit code is \
1. In a range with dropped entries, replaced values and deleted keys may reappear. Everything \
else is intact, and a later check finds no problem. Opening the store moves the damaged files to \
lost+found.

For a B+tree, --repair rebuilds everything but the leaves, from the leaves and the log, in new \
pages; a superblock leads to them at the end. If a leaf is damaged, --repair does nothing, unless \
--accept-loss is given: then it takes the keys of the leaf from an older leaf; without an older \
leaf, only the keys in the log are left. Each such range of keys is named, and the exit code is \
1. Copy the directory first.

For a radix store, --repair rebuilds the bookkeeping: reference counts of nodes, and versions of \
roots. If a node or a version is damaged, --repair does nothing, unless --accept-loss is given: \
then it drops and names the incomplete versions, and the exit code is 1. Copy the directory \
first. Damage of the files below concerns the back-end: repair the directory `database` of an LSM \
or a B+tree in the same way, and restore a copy of others.

For an Ethereum state, `verify` also computes every node from accounts and slots and compares it. \
--repair writes nodes anew if accounts and slots have the root of the last block.

For a context store, `verify` reads all records and hashes all objects that commits reach. \
--repair rebuilds the index, and the control record and the markers of volumes if they are lost. \
Damaged records cannot be repaired. If durable commits are lost, --repair does nothing, unless \
--accept-loss is given: then it names the lost commits, moves the rest of them to the directory \
lost+found of the store, and the exit code is 1. Copy the directory first.";

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Directory of the store, the B+tree or the context store; no other process may have it open
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Directory of the store, if no path is given
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Repairs what can be repaired without loss
    #[arg(long)]
    repair: bool,
    /// Repairs even at a loss: a store loses the entries of damaged pages, a B+tree the newest
    /// values or all of the keys of damaged leaves, a radix store damaged versions, a context store
    /// its last commits
    #[arg(long, requires = "repair")]
    accept_loss: bool,
    /// Asks a bucket only whether objects are there and how long they are
    #[arg(long, conflicts_with = "repair")]
    quick: bool,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "two questions, each before and after a repair")]
pub(super) struct Problem {
    file: String,
    offset_bytes: u64,
    rule: String,
    snapshots: Vec<String>,
    tables: Vec<String>,
    #[serde(flatten)]
    keys: Gap,
    #[serde(skip)]
    is_gap: bool,
    repairable: bool,
    repaired: bool,
    droppable: bool,
    dropped: bool,
}

/// Range of keys between two others.
#[derive(Serialize, Default)]
struct Gap {
    after_hex: Option<String>,
    before_hex: Option<String>,
}

/// Loss of a repair.
#[derive(Serialize)]
pub(super) struct Lost {
    file: String,
    what: &'static str,
    keys: Option<Vec<Gap>>,
    entries: Option<u64>,
    pages: Option<u64>,
    older: Option<bool>,
    after_commit: Option<u64>,
    until_commit: Option<u64>,
    version: Option<u64>,
    name: Option<String>,
    snapshots: Vec<String>,
    tables: Vec<String>,
}

/// Losses of a repair, and whether it was refused.
#[derive(Serialize, Default)]
struct Repair {
    was_refused: bool,
    lost: Vec<Lost>,
}

#[derive(Serialize)]
struct Checked {
    problems: Vec<Problem>,
    repaired: u64,
    left: u64,
    repair: Option<Repair>,
    notes: Vec<String>,
    snapshots: u64,
    tables: u64,
    commits: u64,
    runs: u64,
    pages: u64,
    entries: u64,
    /// Check of an Ethereum state whose files are whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<StateCheck>,
    wall_s: f64,
}

impl Verify {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let given = self.dir.as_ref().or(self.store.as_ref());
        let dir = given.ok_or_else(|| Failure::no_store("DIR or --store DIR"))?;
        if let Some(address) = bucket::address(dir) {
            return self.check_bucket(address);
        }
        if self.quick {
            return Err(Failure::usage("--quick is for buckets: s3://, gs://, az://, file://"));
        }
        if !dir.try_exists().unwrap_or(true) {
            return Err(Failure::usage(format!("{} does not exist", dir.display())));
        }

        let reporting =
            Reporting { command: "verify", json: self.output.json, quiet: self.output.quiet };

        let loss = if self.accept_loss { Loss::Accepted } else { Loss::Refused };
        let repair = self.repair.then_some(loss);

        // Each kind of store is recognised by its own marker; LSM stores come last, since their
        // check also reports a directory that is no store.
        let disk: Arc<dyn Disk> = RealDisk::auto();
        if IndexPath::of(&disk, dir)? == Some(IndexPath::Dir) {
            return check_btree::verify(&disk, dir, repair, reporting);
        }

        if state_dir::is_store(dir)? {
            return check_radix::verify(dir, &self.servers, repair, reporting);
        }

        if is_context_store(disk.as_ref(), dir)? {
            return check_context::verify(&disk, dir, repair, reporting);
        }

        let started = Instant::now();
        let mut bar = ByteBar::new("checking", self.output.quiet);

        let mut progress = |done, total| bar.set(done, total);
        let report = if self.repair {
            verify::repair(&disk, dir, loss, &mut progress)
        } else {
            verify::verify(&disk, dir, &mut progress)
        };

        drop(bar);
        let mut checked = Checked::new(report?, started.elapsed().as_secs_f64());

        // Without loss accepted, a repair stops at problems that only a loss can end.
        let was_refused = !self.accept_loss && checked.droppable() > 0;
        checked.repair = checked.repair.filter(|_| self.repair && !checked.problems.is_empty());

        if let Some(repair) = &mut checked.repair {
            repair.was_refused = was_refused;
        }

        if checked.left == 0 {
            checked.state = check_mpt::check(dir, self.repair)?;
        }
        let failure = checked.failure(dir);

        output::checked("verify", self.output.json, &checked, &checked.text(), failure.as_ref())
    }
}

impl Verify {
    #[cfg(not(feature = "object-store"))]
    #[expect(clippy::unused_self, reason = "with the feature it has options")]
    fn check_bucket(&self, _address: &str) -> Result<u8, Failure> {
        Err(Failure::not_built("object-store"))
    }

    #[cfg(feature = "object-store")]
    fn check_bucket(&self, address: &str) -> Result<u8, Failure> {
        if self.repair {
            let message = format!(
                "{address}: objects cannot be repaired; restore from a backup that is whole"
            );
            return Err(Failure::usage(message));
        }
        let reporting =
            Reporting { command: "verify", json: self.output.json, quiet: self.output.quiet };
        crate::verify::check_bucket::verify(address, self.quick, reporting)
    }
}

/// Returns whether `path` is a context store, also if its control record is lost: it has chunks
/// then.
pub(super) fn is_context_store(disk: &dyn Disk, path: &Path) -> Result<bool, Failure> {
    if disk.kind(path).map_err(context::Error::from)? != Some(EntryKind::Directory) {
        return Ok(false);
    }
    let entries = disk.list(path).map_err(context::Error::from)?;
    let has_chunk = entries.iter().any(|entry| entry.name.starts_with("chunk-"));
    Ok(has_chunk || context::is_store(disk, path)?)
}

impl Gap {
    fn new(keys: &KeyGap) -> Self {
        Self { after_hex: hex(keys.after.as_ref()), before_hex: hex(keys.before.as_ref()) }
    }

    fn text(&self) -> String {
        match (&self.after_hex, &self.before_hex) {
            (Some(after), Some(before)) => format!("keys between hex:{after} and hex:{before}"),
            (Some(after), None) => format!("keys above hex:{after}"),
            (None, Some(before)) => format!("keys below hex:{before}"),
            (None, None) => "all keys".to_owned(),
        }
    }
}

impl Problem {
    pub(super) fn new(problem: verify::Problem) -> Self {
        Self {
            is_gap: problem.keys.is_some(),
            keys: problem.keys.as_ref().map_or_else(Gap::default, Gap::new),
            file: problem.path.display().to_string(),
            offset_bytes: problem.offset,
            rule: problem.rule,
            snapshots: problem.snapshots,
            tables: problem.tables,
            repairable: problem.repairable,
            repaired: problem.repaired,
            droppable: problem.droppable,
            dropped: problem.dropped,
        }
    }

    /// Returns the line of the problem, for people.
    pub(super) fn text(&self) -> String {
        let fate = match self {
            Self { repaired: true, .. } => "repaired",
            Self { dropped: true, .. } => "dropped",
            Self { repairable: true, .. } => "repairable",
            Self { droppable: true, .. } => "not repairable without loss",
            _ => "not repairable",
        };
        let needs = needed_by(&self.snapshots, &self.tables);
        let Self { file, offset_bytes, rule, .. } = self;
        let gap = self.is_gap.then(|| format!("; {}", self.keys.text()));
        let keys = gap.unwrap_or_default();
        format!("{file}: offset {offset_bytes}: {rule}{keys}{needs}; {fate}")
    }
}

impl Lost {
    pub(super) fn new(lost: &verify::Lost) -> Self {
        let mut report = Self {
            file: lost.path.display().to_string(),
            what: "",
            keys: None,
            entries: None,
            pages: None,
            older: None,
            after_commit: None,
            until_commit: None,
            version: None,
            name: None,
            snapshots: lost.snapshots.clone(),
            tables: lost.tables.clone(),
        };

        let gaps = |keys: &[KeyGap]| Some(keys.iter().map(Gap::new).collect());
        report.what = match &lost.what {
            LostWhat::Entries { keys, entries, pages, shows_older } => {
                report.pages = Some(*pages);
                (report.keys, report.entries) = (gaps(keys), *entries);
                report.older = Some(*shows_older);
                "entries"
            }
            LostWhat::Blobs { keys, blobs } => {
                (report.keys, report.entries) = (gaps(keys), Some(*blobs));
                "blobs"
            }
            LostWhat::Commits { after, until } => {
                (report.after_commit, report.until_commit) = (Some(*after), *until);
                "commits"
            }
            LostWhat::Version { number, name } => {
                report.version = Some(*number);
                report.name = Some(name.clone()).filter(|name| !name.is_empty());
                "version"
            }
            LostWhat::Snapshot => "snapshot",
            LostWhat::Tables => "tables",
            LostWhat::Directory => "directory",
            LostWhat::FeedCursor => "feed_cursor",
            _ => "other",
        };

        report
    }

    fn keys_text(&self) -> String {
        let gaps: Vec<String> = self.keys.iter().flatten().map(Gap::text).collect();
        gaps.join(", ")
    }

    pub(super) fn text(&self) -> String {
        let counted = |one: &str, many: &str| match self.entries {
            Some(count) => count_of(count, one, many),
            None => many.to_owned(),
        };

        let what = match self.what {
            "entries" => {
                let older = "; values and keys that these had replaced or deleted may show again";
                let older = if self.older == Some(true) { older } else { "" };
                let pages = count_of(self.pages.unwrap_or_default(), "page", "pages");
                let entries = counted("entry", "entries");
                format!("{entries} on {pages}: {}{older}", self.keys_text())
            }
            "blobs" => {
                let blobs = counted("blob", "blobs");
                format!("{blobs}, the values are there: {}", self.keys_text())
            }
            "commits" => {
                let after = self.after_commit.unwrap_or_default();
                let until = self.until_commit.map(|until| format!(", up to commit {until}"));
                let until = until.unwrap_or_default();
                format!("all commits after commit {after}{until}")
            }
            "version" => {
                let number = self.version.unwrap_or_default();
                let name = self.name.as_ref().map(|name| format!(" ({name})"));
                format!("version {number}{}", name.unwrap_or_default())
            }
            "tables" => "all named tables".to_owned(),
            "directory" => "all that the directory held".to_owned(),
            what => what.to_owned(),
        };

        format!("lost: {}: {what}{}", self.file, needed_by(&self.snapshots, &self.tables))
    }
}

/// Returns the users of a file, as the end of a line.
fn needed_by(snapshots: &[String], tables: &[String]) -> String {
    let tables = tables.iter().map(|name| format!("table {name}"));
    let users: Vec<String> = snapshots.iter().cloned().chain(tables).collect();
    match users.as_slice() {
        [] => String::new(),
        names => format!("; needed by {}", names.join(", ")),
    }
}

fn hex(key: Option<&Vec<u8>>) -> Option<String> {
    key.map(|key| text::hex(key))
}

impl Checked {
    fn new(report: Report, wall_s: f64) -> Self {
        let is_left = |problem: &&verify::Problem| !problem.repaired && !problem.dropped;
        let left = report.problems.iter().filter(is_left).count() + report.lost.len();
        let repaired = report.problems.iter().filter(|problem| problem.repaired).count();
        let lost = report.lost.iter().map(Lost::new).collect();

        Self {
            repaired: repaired as u64,
            left: left as u64,
            repair: Some(Repair { was_refused: false, lost }),
            problems: report.problems.into_iter().map(Problem::new).collect(),
            notes: report.notes,
            snapshots: report.snapshots,
            tables: report.tables,
            commits: report.commits,
            runs: report.runs,
            pages: report.pages,
            entries: report.entries,
            state: None,
            wall_s,
        }
    }

    fn text(&self) -> String {
        let mut lines: Vec<String> = self.problems.iter().map(Problem::text).collect();
        lines.extend(self.repair.iter().flat_map(|repair| &repair.lost).map(Lost::text));
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        let dropped = self.problems.iter().filter(|problem| problem.dropped).count() as u64;
        let outcome = match (self.problems.len() as u64, self.repaired, dropped) {
            (0, ..) => "no problem".to_owned(),
            (problems, 0, 0) => count_of(problems, "problem", "problems"),
            (problems, repaired, dropped) => {
                assert!(repaired + dropped <= problems, "each problem ends in one way");
                let left = problems - repaired - dropped;
                let problems = count_of(problems, "problem", "problems");
                let dropped = match dropped {
                    0 => String::new(),
                    dropped => format!(", dropped {dropped}"),
                };
                format!("{problems}, repaired {repaired}{dropped}, left {left}")
            }
        };

        let mut checked = vec![count_of(self.snapshots, "snapshot", "snapshots")];
        if self.tables > 0 {
            checked.push(count_of(self.tables, "table", "tables"));
            checked.push(count_of(self.commits, "commit in the log", "commits in the log"));
        }

        checked.extend([
            count_of(self.runs, "run", "runs"),
            count_of(self.pages, "page", "pages"),
            count_of(self.entries, "entry", "entries"),
        ]);
        lines.push(format!("checked {} in {:.3} s: {outcome}", checked.join(", "), self.wall_s));
        lines.extend(self.state.iter().map(StateCheck::text));
        let mendable = self.problems.iter().filter(|p| p.repairable && !p.repaired).count();

        if mendable > 0 {
            lines.push(format!("with --repair {mendable} can be mended without loss"));
        }

        let droppable = self.droppable();
        if droppable > 0 {
            let problems = count_of(droppable, "problem ends", "problems end");
            lines.push(format!(
                "{problems} only with a loss: restore a copy; or copy the directory, and drop what \
                 is damaged with --repair --accept-loss"
            ));
        }

        lines.join("\n")
    }

    /// Returns the number of problems that `--accept-loss` would drop.
    fn droppable(&self) -> u64 {
        let is_droppable = |p: &&Problem| p.droppable && !p.repairable && !p.repaired && !p.dropped;
        self.problems.iter().filter(is_droppable).count() as u64
    }

    fn failure(&self, dir: &Path) -> Option<Failure> {
        let dir = dir.display();
        let lost = self.repair.as_ref().map_or(0, |repair| repair.lost.len() as u64);

        let of_state = self.state.as_ref().map_or(0, |state| state.left);
        match (self.left, lost) {
            (0, _) if 0 < of_state => {
                let left =
                    count_of(of_state, "problem of the state is", "problems of the state are");
                Some(Failure::check(format!("{dir}: {left} left")))
            }
            (0, _) => None,
            (left, lost) if left == lost => {
                let lost = count_of(lost, "thing was", "things were");
                Some(Failure::check(format!("{dir}: {lost} lost; the rest is whole")))
            }
            (left, lost) => {
                assert!(lost <= left, "each loss counts as left");
                let left = count_of(left - lost, "problem is", "problems are");
                Some(Failure::check(format!("{dir}: {left} left")))
            }
        }
    }
}
