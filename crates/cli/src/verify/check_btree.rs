//! Check and repair of B+trees for `terrane verify`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrane::btree::{self, CheckReport, Loss, PAGE_SIZE};
use terrane::io::Disk;

use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::ByteBar;
use crate::ui::text::{count_of, hex};
use crate::verify::outcome::{Reporting, failure, outcome};

#[derive(Serialize, PartialEq)]
struct Problem {
    file: String,
    offset_bytes: u64,
    rule: String,
    #[serde(flatten)]
    keys: Keys,
    repaired: bool,
}

/// Range of keys from the first to before the second, or to the end. Without the first, no keys are
/// known.
#[derive(Default, Serialize, PartialEq)]
struct Keys {
    from_hex: Option<String>,
    to_hex: Option<String>,
}

/// Report of a repair.
#[derive(Serialize)]
struct Repaired {
    pages_scanned: u64,
    leaves_kept: u64,
    pages_dropped: u64,
    pages_damaged: u64,
    maps_lost: u64,
    superblocks_rewritten: u64,
    stale: Vec<Keys>,
    lost: Vec<Keys>,
    tree_lost: bool,
    /// First and last position of each lost part of the log.
    log_lost: Vec<(u64, u64)>,
    was_refused: bool,
    entries: u64,
}

/// Report of a check, after a repair if there was one.
#[derive(Serialize, Default)]
struct Checked {
    problems: Vec<Problem>,
    repaired: u64,
    left: u64,
    repair: Option<Repaired>,
    leaves: u64,
    nodes: u64,
    height: u32,
    entries: u64,
    leaf_entries: u64,
    log_updates: u64,
    leaf_fill: f64,
    sparse_leaves: u64,
    wall_s: f64,
}

/// Checks the index in a directory, repairs it if `repair` is given, prints the report and returns
/// the exit code.
pub(crate) fn verify(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    repair: Option<Loss>,
    Reporting { command, json, quiet }: Reporting,
) -> Result<u8, Failure> {
    let started = Instant::now();
    let mut checked = if let Some(loss) = repair {
        mend(disk, dir, loss, quiet)?
    } else {
        Checked::new(with_bar("checking", quiet, |set| btree::check(disk, dir, set))?)
    };
    checked.wall_s = started.elapsed().as_secs_f64();
    let failure = failure(dir, checked.left);

    output::checked(command, json, &checked, &checked.text(), failure.as_ref())
}

/// Runs `work`, which counts pages, with a progress bar.
fn with_bar<T>(
    name: &'static str,
    quiet: bool,
    work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> btree::Result<T>,
) -> btree::Result<T> {
    let mut bar = ByteBar::new(name, quiet);
    let page = PAGE_SIZE as u64;
    work(&mut |done, total| bar.set(done * page, total * page))
}

/// Checks an index, repairs it if there is a problem, and checks it again.
fn mend(disk: &Arc<dyn Disk>, dir: &Path, loss: Loss, quiet: bool) -> Result<Checked, Failure> {
    let check = || with_bar("checking", quiet, |set| btree::check(disk, dir, set));

    // Only damage is repaired: an index that cannot be read for another reason, such as a lock, is
    // left alone.
    let found = match check() {
        Ok(report) if report.problems.is_empty() => return Ok(Checked::new(report)),
        Ok(report) => report.problems.into_iter().map(Problem::new).collect(),
        Err(btree::Error::Corrupt { path, what }) => {
            vec![Problem::new(btree::Problem { path, what, keys: None })]
        }
        Err(error @ (btree::Error::NotAnIndex { .. } | btree::Error::TreeMissing { .. })) => {
            let file = dir.join("tree").display().to_string();
            let rule = error.to_string();
            vec![Problem { file, offset_bytes: 0, rule, keys: Keys::default(), repaired: false }]
        }
        Err(error) => return Err(error.into()),
    };

    let repair = with_bar("repairing", quiet, |set| btree::repair(disk, dir, loss, set))?;
    if repair.was_refused {
        let mut checked = Checked { problems: found, ..Checked::default() };
        checked.left = checked.problems.len() as u64;
        checked.repair = Some(Repaired::new(repair));
        return Ok(checked);
    }

    Ok(Checked::new(check()?).after(repair, found))
}

impl Problem {
    fn new(problem: btree::Problem) -> Self {
        Self {
            file: problem.path.display().to_string(),
            offset_bytes: problem.what.page * PAGE_SIZE as u64,
            rule: problem.what.to_string(),
            keys: problem.keys.map_or_else(Keys::default, Keys::new),
            repaired: false,
        }
    }
}

impl Keys {
    fn new((from, to): (Vec<u8>, Option<Vec<u8>>)) -> Self {
        Self { from_hex: Some(hex(&from)), to_hex: to.as_deref().map(hex) }
    }

    /// Returns whether `range` contains all of these keys. Hexadecimal digits have the order of
    /// their bytes.
    fn lie_in(&self, range: &Self) -> bool {
        self.from_hex.is_some()
            && range.from_hex <= self.from_hex
            && (range.to_hex.is_none() || self.to_hex.is_some() && self.to_hex <= range.to_hex)
    }

    fn text(&self) -> Option<String> {
        let to = self.to_hex.as_deref().unwrap_or("the end");
        self.from_hex.as_ref().map(|from| format!("keys from {from:?} to {to:?}"))
    }
}

impl Repaired {
    fn new(report: btree::RepairReport) -> Self {
        let keys = |ranges: Vec<_>| ranges.into_iter().map(Keys::new).collect();
        Self {
            pages_scanned: report.pages_scanned,
            leaves_kept: report.leaves_kept,
            pages_dropped: report.pages_dropped,
            pages_damaged: report.pages_damaged,
            maps_lost: report.maps_lost,
            superblocks_rewritten: report.superblocks_rewritten,
            stale: keys(report.stale),
            lost: keys(report.lost),
            tree_lost: report.tree_lost,
            log_lost: report.log_lost,
            was_refused: report.was_refused,
            entries: report.entries,
        }
    }

    fn lines(&self) -> Vec<String> {
        let describe = |ranges: &[Keys], what: &str| -> Vec<String> {
            ranges.iter().filter_map(Keys::text).map(|keys| format!("{keys}: {what}")).collect()
        };
        let (stale, lost) = if self.was_refused {
            ("would come from an older leaf", "would be lost")
        } else {
            (
                "taken from an older leaf, so perhaps out of date",
                "lost: only what the log has is left",
            )
        };
        let mut lines = describe(&self.stale, stale);
        lines.extend(describe(&self.lost, lost));
        let fate = if self.was_refused { "would be lost" } else { "lost" };
        lines.extend(self.log_lost.iter().map(|(from, to)| {
            format!(
                "updates of positions {from} to {to} of the log: {fate}, whichever keys they had"
            )
        }));
        if self.was_refused {
            lines.push(
                "nothing was repaired, as entries would be lost: restore a copy, or add \
                --accept-loss"
                    .into(),
            );
            return lines;
        }

        if self.tree_lost {
            lines.push("the tree file was missing: made anew from what the log has".to_owned());
        }

        if self.superblocks_rewritten > 0 {
            lines.push("repair: a superblock was written anew; everything else was whole".into());
            return lines;
        }

        let did = [
            count_of(self.pages_scanned, "page scanned", "pages scanned"),
            count_of(self.leaves_kept, "leaf kept", "leaves kept"),
            count_of(self.pages_dropped, "page dropped", "pages dropped"),
            count_of(self.pages_damaged, "page damaged", "pages damaged"),
            count_of(self.maps_lost, "part of the map lost", "parts of the map lost"),
        ];
        let entries = count_of(self.entries, "entry", "entries");
        lines.push(format!("repair: {}: {entries} in the index", did.join(", ")));

        lines
    }
}

impl Checked {
    fn new(report: CheckReport) -> Self {
        let problems: Vec<Problem> = report.problems.into_iter().map(Problem::new).collect();
        Self {
            repaired: 0,
            left: problems.len() as u64,
            problems,
            repair: None,
            leaves: report.leaves,
            nodes: report.nodes,
            height: report.height,
            entries: report.entries,
            leaf_entries: report.leaf_entries,
            log_updates: report.log_updates,
            leaf_fill: report.leaf_fill,
            sparse_leaves: report.sparse_leaves,
            wall_s: 0.0,
        }
    }

    /// Adds a repair of the problems that were `found` before. Problems with lost or stale keys
    /// count as left.
    fn after(mut self, report: btree::RepairReport, found: Vec<Problem>) -> Self {
        let repair = Repaired::new(report);
        let mut mended: Vec<Problem> =
            found.into_iter().filter(|problem| !self.problems.contains(problem)).collect();

        // A problem inside a stale or lost range stays: the page is whole again, its entries are
        // not.
        let ranges = || repair.stale.iter().chain(&repair.lost);

        for problem in &mut mended {
            problem.repaired = !ranges().any(|range| problem.keys.lie_in(range));
        }

        // Each range counts as left once, whether or not a problem has named it.
        let is_unreported =
            |range: &&Keys| !mended.iter().any(|problem| problem.keys.lie_in(range));
        let unreported = ranges().filter(is_unreported).count() + repair.log_lost.len();
        mended.append(&mut self.problems);
        self.problems = mended;
        self.repaired = self.problems.iter().filter(|problem| problem.repaired).count() as u64;
        assert!(self.repaired <= self.problems.len() as u64, "repaired problems are among all");
        self.left = self.problems.len() as u64 - self.repaired + unreported as u64;
        self.repair = Some(repair);

        self
    }

    fn text(&self) -> String {
        let mut lines = Vec::new();
        for Problem { file, offset_bytes, rule, keys, repaired } in &self.problems {
            let keys = keys.text().map_or(String::new(), |keys| format!("; {keys}"));
            let fate = if *repaired { "; repaired" } else { "" };
            lines.push(format!("{file}: offset {offset_bytes}: {rule}{keys}{fate}"));
        }

        lines.extend(self.repair.iter().flat_map(Repaired::lines));
        let outcome = outcome(self.repaired, self.left);

        let checked = [
            count_of(self.leaves, "leaf", "leaves"),
            count_of(self.nodes, "inner page", "inner pages"),
            count_of(self.entries, "entry", "entries"),
            count_of(self.log_updates, "update in the log", "updates in the log"),
        ];

        let fill = self.leaf_fill * 100.0;
        let checked = checked.join(", ");
        lines.push(format!(
            "checked {checked} in {:.3} s, leaves {fill:.0} % full: {outcome}",
            self.wall_s
        ));

        lines.join("\n")
    }
}
