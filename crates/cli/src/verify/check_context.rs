//! Check and repair of context stores for `terrane verify`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrane::backends::BtreeIndexes;
use terrane::context::{self, CheckOptions, CheckReport, IndexEngine, KindCount, Loss};
use terrane::io::Disk;
use terrane_bench::instruments::meter;

use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::ByteBar;
use crate::ui::text::count_of;
use crate::verify::outcome::{failure, outcome};

#[derive(Serialize)]
struct Problem {
    file: String,
    /// Address of the record, if the problem is in one: number of the chunk, and of the unit in the
    /// chunk.
    address: Option<String>,
    /// Path in the tree that leads to the record, if one does.
    path: Option<String>,
    rule: String,
    repaired: bool,
}

#[derive(Serialize)]
struct Counted {
    kind: &'static str,
    records: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Repair {
    control_made: bool,
    index_entries: u64,
    commits: u64,
    branches: u64,
    markers_made: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<Lost>,
}

/// Losses of a repair.
#[derive(Serialize)]
struct Lost {
    /// Number of lost commits, or a lower bound of the number.
    commits: u64,
    /// Whether more than `commits` may be lost.
    commits_is_lower_bound: bool,
    /// Hashes of the known lost commits, the first 1,000.
    named: Vec<String>,
    /// Branches whose heads have changed.
    branches: Vec<String>,
    moved_bytes: u64,
}

#[derive(Serialize)]
struct Checked {
    problems: Vec<Problem>,
    repaired: u64,
    left: u64,
    repair: Option<Repair>,
    chunks: u64,
    bytes: u64,
    kinds: Vec<Counted>,
    commits: u64,
    objects: u64,
    wall_s: f64,
}

/// Checks the store in a directory, rebuilds its index and control record if `repair` is given,
/// prints the report and returns the exit code. The code is 1 also if a repair lost commits.
pub(crate) fn verify(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    repair: Option<Loss>,
    (json, quiet): (bool, bool),
) -> Result<u8, Failure> {
    let started = Instant::now();
    let index: Arc<dyn IndexEngine> = Arc::new(BtreeIndexes::default());

    let total = meter::store_bytes(dir)
        .map_err(|error| Failure::environment(format!("{}: {error}", dir.display())))?;
    let check = || {
        let mut bar = ByteBar::new("checking", quiet);
        let mut done = 0;
        let options = CheckOptions::default().index(&index).hashes(true);
        context::check(disk, dir, &options, &mut |more| {
            done += more;
            bar.set(done.min(total), total);
        })
    };

    let found = check();
    let is_whole = found.as_ref().is_ok_and(|report| report.problem_count == 0);

    let mut checked = if let Some(loss) = repair.filter(|_| !is_whole) {
        // A store that cannot be opened at all is repaired too.
        let before = found.unwrap_or_default();
        let done = context::repair(disk, dir, &index, loss, &mut |_| {})?;
        // The second check decides: the report of the repair alone proves nothing.
        let mut checked = Checked::new(&check()?);
        checked.add_mended(&before);
        checked.repair = Some(Repair {
            control_made: done.control,
            index_entries: done.indexed,
            commits: done.commits,
            branches: done.branches,
            markers_made: done.markers,
            lost: done.lost.as_ref().map(Lost::new),
        });
        checked
    } else {
        Checked::new(&found?)
    };

    checked.wall_s = started.elapsed().as_secs_f64();

    let lost = checked.repair.as_ref().and_then(|repair| repair.lost.as_ref());
    // A repair without problems left is a failure too if it lost commits.
    let failure = failure(dir, checked.left)
        .or_else(|| lost.map(|lost| Failure::check(format!("{}: {}", dir.display(), lost.text()))));

    output::checked("verify", json, &checked, &checked.text(), failure.as_ref())
}

impl Lost {
    fn new(lost: &context::Lost) -> Self {
        let name = |(name, _): &(Vec<u8>, _)| String::from_utf8_lossy(name).into_owned();
        Self {
            commits: lost.commit_count,
            commits_is_lower_bound: lost.is_lower_bound,
            named: lost.commits.iter().map(context::Hash::to_base58).collect(),
            branches: lost.branches.iter().map(name).collect(),
            moved_bytes: lost.moved_bytes,
        }
    }

    fn text(&self) -> String {
        let count = count_of(self.commits, "commit was", "commits were");
        match (self.commits, self.commits_is_lower_bound) {
            (0, true) => "an unknown number of commits was lost".to_owned(),
            (_, true) => format!("at least {count} lost"),
            (_, false) => format!("{count} lost"),
        }
    }

    fn lines(&self) -> Vec<String> {
        let mut lines =
            vec![format!("{}; {} went to lost+found", self.text(), bytes(self.moved_bytes))];
        lines.extend(self.named.iter().map(|hash| format!("lost: commit {hash}")));
        lines.extend(self.branches.iter().map(|name| format!("lost: the head of branch {name}")));
        lines
    }
}

impl Problem {
    fn new(problem: &context::Problem) -> Self {
        Self {
            file: problem.path.display().to_string(),
            address: problem.address.map(|address| address.to_string()),
            path: problem.tree_path.clone(),
            rule: problem.what.clone(),
            repaired: false,
        }
    }

    fn line(&self) -> String {
        let at = self.address.as_ref().map_or(String::new(), |at| format!(": {at}"));
        let path = self.path.as_ref().map_or(String::new(), |path| format!(" ({path})"));
        let fate = if self.repaired { "; repaired" } else { "" };
        format!("{}{at}{path}: {}{fate}", self.file, self.rule)
    }
}

impl Checked {
    fn new(report: &CheckReport) -> Self {
        let kinds = &report.kinds;
        let kind = |kind, KindCount { count, bytes }| Counted { kind, records: count, bytes };

        Self {
            repaired: 0,
            left: report.problem_count,
            problems: report.problems.iter().map(Problem::new).collect(),
            repair: None,
            chunks: report.chunks,
            bytes: report.bytes,
            kinds: vec![
                kind("values", kinds.values),
                kind("flat_directories", kinds.flat),
                kind("inode_leaves", kinds.leaves),
                kind("inodes", kinds.inner),
                kind("deltas", kinds.deltas),
                kind("commits", kinds.commits),
                kind("others", kinds.others),
            ],
            commits: report.commits,
            objects: report.objects,
            wall_s: 0.0,
        }
    }

    /// Adds the problems that a repair has solved.
    fn add_mended(&mut self, before: &CheckReport) {
        // Paths in the tree may differ between two checks, so they do not count.
        let is_left = |problem: &Problem| {
            self.problems.iter().any(|left| {
                (&left.file, &left.address, &left.rule)
                    == (&problem.file, &problem.address, &problem.rule)
            })
        };

        let mut mended: Vec<Problem> = before.problems.iter().map(Problem::new).collect();
        mended.retain(|problem| !is_left(problem));

        for problem in &mut mended {
            problem.repaired = true;
        }

        self.repaired = mended.len() as u64;
        mended.append(&mut self.problems);
        self.problems = mended;
    }

    fn text(&self) -> String {
        let mut lines: Vec<String> = self.problems.iter().map(Problem::line).collect();
        if let Some(repair) = &self.repair {
            let control = if repair.control_made { "the control record and " } else { "" };
            let entries = count_of(repair.index_entries, "entry", "entries");
            lines.push(match (repair.index_entries, repair.control_made) {
                (0, false) if repair.commits > 0 => "repair: kept the index".to_owned(),
                _ => format!("repair: made {control}the index anew, {entries}"),
            });
            lines.extend(repair.lost.iter().flat_map(Lost::lines));
        }

        let outcome = outcome(self.repaired, self.left);

        let checked = [
            format!("{} in {}", bytes(self.bytes), count_of(self.chunks, "chunk", "chunks")),
            count_of(self.commits, "commit", "commits"),
            count_of(self.objects, "object", "objects"),
        ];

        lines.push(format!("checked {} in {:.3} s: {outcome}", checked.join(", "), self.wall_s));

        lines.join("\n")
    }
}
