//! Check and repair of radix stores for `terrane verify`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrane::btree;
use terrane::io::{Disk, RealDisk};
use terrane::lsm::verify;
use terrane::radix::{self, Loss, Repaired};
use terrane::state_dir::{self, BackEnd, Marker, damage_of_files, database_path};
use terrane_replay::error::Class;

use crate::commands::radix::number;
use crate::stores::back_ends::{DurabilityArg, ServerArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::ByteBar;
use crate::ui::text::{count_of, grouped};
use crate::verify::outcome::{Reporting, failure, outcome};

#[derive(Serialize, PartialEq)]
struct Problem {
    /// Path of the file, or of the directory if the file is unknown.
    file: String,
    /// Place in the file, or in the state.
    place: Option<String>,
    rule: String,
    repaired: bool,
}

#[derive(Serialize)]
struct Dropped {
    version: u64,
    tree: Option<String>,
    root: String,
}

/// Report of a repair.
#[derive(Serialize)]
struct Repair {
    was_refused: bool,
    versions: u64,
    dropped: Vec<Dropped>,
    unreadable: u64,
    unreferenced: u64,
    named: Vec<String>,
    rows_removed: u64,
    rows_written: u64,
    /// Number of lost things, or of those that would be lost.
    #[serde(skip)]
    lost: u64,
}

#[derive(Serialize, Default)]
struct Checked {
    backend: Option<&'static str>,
    problems: Vec<Problem>,
    repaired: u64,
    left: u64,
    trees: u64,
    versions: u64,
    nodes: u64,
    repair: Option<Repair>,
    wall_s: f64,
}

/// Checks the store in a directory, repairs it if `repair` is given, prints the report and returns
/// the exit code.
pub(crate) fn verify(
    dir: &Path,
    servers: &ServerArgs,
    repair: Option<Loss>,
    Reporting { command, json, quiet }: Reporting,
) -> Result<u8, Failure> {
    let started = Instant::now();
    let mut checked = Checked::of(dir, servers, quiet)?;
    if let Some(loss) = repair.filter(|_| !checked.problems.is_empty()) {
        match mend(dir, servers, loss) {
            Ok(repaired) => {
                let found = std::mem::take(&mut checked.problems);
                checked = Checked::of(dir, servers, quiet)?.after(repaired, found);
            }
            // The check has noted the fault of the directory.
            Err(state_dir::Error::Corrupt { .. }) => {}
            Err(error) if Class::from(&error) == Class::Check => {
                let failure = Failure::from(error);
                let message = failure.message();
                // The check has noted the same error without advice.
                checked.problems.retain(|problem| problem.rule != message);
                let database = database_path(dir);
                let database = database.display();
                let advice =
                    format!("repair {database} if it is of lsm or btree, else restore a copy");
                checked.note(dir, None, format!("{message}; this is for the back-end: {advice}"));
            }
            Err(error) => return Err(error.into()),
        }
    }

    // Things that a repair has lost are left for ever, so they count beside the problems.
    checked.repaired = checked.problems.iter().filter(|problem| problem.repaired).count() as u64;
    let lost = checked.repair.as_ref().filter(|repair| !repair.was_refused);
    let lost = lost.map_or(0, |repair| repair.lost);
    assert!(checked.repaired <= checked.problems.len() as u64, "repaired problems are among all");
    checked.left = checked.problems.len() as u64 - checked.repaired + lost;
    checked.wall_s = started.elapsed().as_secs_f64();
    let failure = failure(dir, checked.left);

    output::checked(command, json, &checked, &checked.text(), failure.as_ref())
}

/// Repairs the store in a directory, durably.
fn mend(dir: &Path, servers: &ServerArgs, loss: Loss) -> state_dir::Result<Repaired> {
    let opening = |durability| servers.opening(None, durability);
    match opening(DurabilityArg::Each).repair(dir, loss) {
        // A Redis server that does not sync each write refuses durability `each`; it syncs at the
        // end instead.
        Err(error) if error.refusal().is_some() => opening(DurabilityArg::None).repair(dir, loss),
        outcome => outcome,
    }
}

impl Repair {
    fn new(repaired: Repaired) -> Self {
        let lost = repaired.lost();
        let dropped = repaired.dropped.into_iter().map(|dropped| Dropped {
            version: number(dropped.id),
            tree: dropped.tree,
            root: dropped.root.to_string(),
        });

        Self {
            was_refused: repaired.was_refused,
            versions: repaired.kept,
            dropped: dropped.collect(),
            unreadable: repaired.unreadable,
            unreferenced: repaired.unreferenced,
            named: repaired.named,
            rows_removed: repaired.records_removed,
            rows_written: repaired.records_written,
            lost,
        }
    }

    fn lines(&self) -> Vec<String> {
        let of_tree = |dropped: &Dropped| {
            let tree = dropped.tree.as_ref().map_or(String::new(), |tree| format!(" of {tree}"));
            format!("version {}{tree}, root {}", dropped.version, dropped.root)
        };

        let fate = if self.was_refused { "would be dropped" } else { "is dropped" };

        let mut lines: Vec<String> =
            self.dropped.iter().map(|dropped| format!("{} {fate}", of_tree(dropped))).collect();
        if self.unreadable > 0 {
            let lost =
                count_of(self.unreadable, "row of a version or tree", "rows of versions and trees");
            lines.push(format!("{lost} cannot be read"));
        }

        if self.unreferenced > 0 {
            let stops = count_of(self.unreferenced, "row of a node", "rows of nodes");
            lines.push(format!("no version that is left needs {stops}"));
        }

        let named = if self.was_refused { "would be named" } else { "is named" };
        lines.extend(self.named.iter().map(|name| format!("a tree without a name {named} {name}")));
        lines.push(if self.was_refused {
            "nothing was repaired, as something would be lost: restore a copy, or add --accept-loss"
                .to_owned()
        } else {
            let kept = count_of(self.versions, "version is", "versions are");
            let removed = count_of(self.rows_removed, "row", "rows");
            format!("repair: removed {removed}, wrote {}; {kept} whole", grouped(self.rows_written))
        });

        lines
    }
}

impl Checked {
    fn of(dir: &Path, servers: &ServerArgs, quiet: bool) -> Result<Self, Failure> {
        let mut checked = Self::default();
        match checked.check(dir, servers, quiet) {
            Err(error) if Class::from(&error) == Class::Check => {
                let failure = Failure::from(error);
                checked.note(dir, None, failure.message());
            }
            outcome => outcome?,
        }
        Ok(checked)
    }

    /// Adds the report of a repair, and the problems that it has solved.
    fn after(mut self, repaired: Repaired, found: Vec<Problem>) -> Self {
        let mended = found.into_iter().filter(|problem| !self.problems.contains(problem));
        let mended = mended.map(|problem| Problem { repaired: true, ..problem });
        let mended: Vec<Problem> = mended.collect();
        self.problems.splice(0..0, mended);
        self.repair = Some(Repair::new(repaired));
        self
    }

    fn note(&mut self, file: &Path, place: Option<String>, rule: impl Into<String>) {
        let file = file.display().to_string();
        self.problems.push(Problem { file, place, rule: rule.into(), repaired: false });
    }

    /// Checks the files of the back-end, then the records of the state. The caller notes damage
    /// that makes a call fail.
    fn check(&mut self, dir: &Path, servers: &ServerArgs, quiet: bool) -> state_dir::Result<()> {
        let marker = match Marker::read(dir) {
            // An interrupted creation has nothing to check.
            Err(state_dir::Error::Unfinished { .. }) => return Ok(()),
            marker => marker?,
        };

        self.backend = Some(marker.back_end.name());
        let database = database_path(dir);
        if self.check_files(&database, marker.back_end, quiet)? {
            return Ok(());
        }

        // Both checks run before either error is returned, so that the store is closed in any case.
        let store = servers.reading().open(dir)?;
        let checked = store.database().check();
        let report = store.verify();
        let trees = store.trees();
        store.close()?;

        for rule in checked? {
            self.note(&database, None, rule);
        }

        let report = report?;
        let trees = trees?;
        for radix::Problem { place, rule } in report.problems {
            self.note(&database, Some(place), rule);
        }

        (self.trees, self.versions, self.nodes) =
            (trees.len() as u64, report.versions, report.nodes);

        Ok(())
    }

    /// Checks the files by themselves. An error of this check in our own engines is not reported,
    /// since opening the store fails on it too. Returns whether the files are too damaged to be
    /// opened.
    fn check_files(
        &mut self,
        database: &Path,
        back_end: BackEnd,
        quiet: bool,
    ) -> state_dir::Result<bool> {
        let disk: Arc<dyn Disk> = RealDisk::auto();
        let mut bar = ByteBar::new("checking", quiet);

        let mut progress = |done, total| bar.set(done, total);
        match back_end {
            BackEnd::Lsm => {
                let report = verify::verify(&disk, database, &mut progress);
                for problem in report.map(|report| report.problems).unwrap_or_default() {
                    let place = format!("offset {}", problem.offset);
                    self.note(&problem.path, Some(place), problem.rule);
                }
            }
            BackEnd::Btree => {
                let report = btree::check(&disk, database, &mut progress);
                for problem in report.map(|report| report.problems).unwrap_or_default() {
                    self.note(&problem.path, None, problem.what.to_string());
                }
            }
            BackEnd::Lmdb => {
                let damage = damage_of_files(back_end, database)?;
                let is_damaged = !damage.is_empty();
                for rule in damage {
                    self.note(database, None, rule);
                }
                return Ok(is_damaged);
            }
            _ => {}
        }

        Ok(false)
    }

    fn text(&self) -> String {
        let line = |problem: &Problem| {
            let place = problem.place.as_ref().map_or(String::new(), |place| format!(": {place}"));
            let fate = if problem.repaired { "; repaired" } else { "" };
            format!("{}{place}: {}{fate}", problem.file, problem.rule)
        };

        let mut lines: Vec<String> = self.problems.iter().map(line).collect();
        let checked = [
            count_of(self.trees, "tree", "trees"),
            count_of(self.versions, "version", "versions"),
            count_of(self.nodes, "node", "nodes"),
        ];

        lines.extend(self.repair.iter().flat_map(Repair::lines));
        let outcome = outcome(self.repaired, self.left);
        lines.push(format!("checked {} in {:.3} s: {outcome}", checked.join(", "), self.wall_s));

        lines.join("\n")
    }
}
