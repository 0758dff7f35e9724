//! The report of all recorded runs: a text of totals, then of the runs.
//!
//! ```text
//! # Totals of the runs below
//!   seconds: 7200
//!   crash images: 120000
//!
//! # cargo xtask soak --hours 2 --seed 1; 0a1b2c3d, rustc 1.95.0, Linux 6.18, ..
//!   seconds: 7200
//!   crash images: 120000
//!   failed: ..
//! ```
//!
//! A line of a count is two blanks, a name, a colon, a number, and anything behind a comma. Other
//! lines are notes, which stay as they are. The totals are the sums of the runs, so editing a run
//! by hand is enough. A count `rare ..` is of the processes that took a rare branch; the last run
//! says which branches no run has taken.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Counts by name.
pub(super) type Counts = BTreeMap<String, u64>;

/// First line of the totals.
const TOTALS: &str = "# Totals of the runs below";

/// Count that is the sum of all counts `executions of ..`.
const EXECUTIONS: &str = "executions";

/// Beginning of the counts of rare branches.
const RARE: &str = "rare ";

/// Recorded runs, and the one in progress.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Not there if nothing is recorded.
    path: Option<PathBuf>,
    /// Sections of the runs, oldest first, as they stand in the file.
    runs: Vec<String>,
    title: String,
    counts: Counts,
    /// Names of all rare branches.
    rare: BTreeSet<String>,
}

impl Report {
    /// The report of this file; an empty one if there is none.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        Ok(Self { path: Some(path.to_owned()), runs: runs_of(&text), ..Self::default() })
    }

    /// A report that is printed only.
    pub(super) fn unwritten() -> Self {
        Self::default()
    }

    /// Number of recorded runs.
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Adds what an interrupted run had counted, and not recorded.
    pub(super) fn add_to_last(&mut self, counts: &Counts) {
        if counts.is_empty() {
            return;
        }
        let Some(last) = self.runs.pop() else { return };
        let title = last.lines().next().unwrap_or_default().to_owned();
        let notes: Vec<_> = last.lines().skip(1).filter(|line| count_of(line).is_none()).collect();
        let mut sum = counts_of(&last);
        add(&mut sum, counts);
        self.runs.push(section(&title, &sum, &notes));
    }

    /// Begins a run.
    pub(super) fn begin(&mut self, title: &str) {
        self.title = format!("# {title}");
    }

    /// Has the report say which of these branches no run has taken.
    pub(super) fn expect_branches(&mut self, rare: BTreeSet<String>) {
        self.rare = rare;
    }

    /// Adds the counts of a step, after which so much time has passed.
    pub(super) fn add(&mut self, counts: &Counts, passed: Duration) {
        add(&mut self.counts, counts);
        self.counts.insert("seconds".to_owned(), passed.as_secs());
    }

    /// Writes the report anew, whole or not at all.
    pub(super) fn write(&self, failure: Option<&str>) -> Result<(), String> {
        let Some(path) = &self.path else { return Ok(()) };
        let mut totals = self.counts.clone();
        self.runs.iter().for_each(|run| add(&mut totals, &counts_of(run)));
        let failed = failure.map(|failure| format!("  failed: {failure}"));
        let never = never_taken(&self.rare, &totals);
        let notes: Vec<_> = failed.iter().chain(&never).map(String::as_str).collect();
        let run = section(&self.title, &self.counts, &notes);
        let mut text = section(TOTALS, &totals, &[]);
        for run in self.runs.iter().chain([&run]) {
            text.push('\n');
            text.push_str(run);
        }

        let new = path.with_extension("new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(&new, path))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The counts of this run in a line.
    pub(super) fn summary(&self) -> String {
        let counts = with_executions(&self.counts);
        let is_sum = |name: &str| !name.starts_with("executions of ") && !name.starts_with(RARE);
        let counts = counts.iter().filter(|(name, _)| is_sum(name));
        counts.map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }
}

fn add(sum: &mut Counts, counts: &Counts) {
    for (name, count) in counts {
        *sum.entry(name.clone()).or_default() += count;
    }
}

/// A note of the branches that no run has taken; none if there are none to expect.
fn never_taken(rare: &BTreeSet<String>, totals: &Counts) -> Option<String> {
    let never: Vec<&str> = rare
        .iter()
        .filter(|name| !totals.contains_key(&format!("{RARE}{name}")))
        .map(String::as_str)
        .collect();
    let names = if never.is_empty() { String::new() } else { format!(": {}", never.join("; ")) };
    let note = format!("  never taken of {} rare branches are {}{names}", rare.len(), never.len());
    (!rare.is_empty()).then_some(note)
}

fn with_executions(counts: &Counts) -> Counts {
    let executions = counts.iter().filter(|(name, _)| name.starts_with("executions of "));
    let sum = executions.map(|(_, count)| count).sum();
    let mut counts = counts.clone();
    counts.remove(EXECUTIONS);
    if sum > 0 {
        counts.insert(EXECUTIONS.to_owned(), sum);
    }
    counts
}

/// Text of a title, its counts and its notes.
fn section(title: &str, counts: &Counts, notes: &[&str]) -> String {
    let mut text = format!("{title}\n");
    for (name, count) in with_executions(counts) {
        writeln!(text, "  {name}: {count}").expect("a string has room");
    }
    for note in notes {
        text.push_str(note);
        text.push('\n');
    }
    text
}

/// The name and number of a line of a count.
fn count_of(line: &str) -> Option<(&str, u64)> {
    let (name, rest) = line.strip_prefix("  ")?.split_once(": ")?;
    let number = rest.split(',').next()?;
    Some((name, number.parse().ok()?))
}

fn counts_of(run: &str) -> Counts {
    let counts = run.lines().filter_map(count_of);
    let counts = counts.filter(|(name, _)| *name != EXECUTIONS);
    counts.map(|(name, count)| (name.to_owned(), count)).collect()
}

/// Sections of the runs of a report's text.
fn runs_of(text: &str) -> Vec<String> {
    let mut runs: Vec<String> = Vec::new();
    let mut is_run = false;
    for line in text.lines() {
        if line.starts_with("# ") {
            is_run = !line.starts_with(TOTALS);
            if is_run {
                runs.push(String::new());
            }
        }
        if let Some(run) = runs.last_mut().filter(|_| is_run && !line.is_empty()) {
            run.push_str(line);
            run.push('\n');
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, u64)]) -> Counts {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn runs_are_added_up_and_kept() {
        let path = std::env::temp_dir().join(format!("terrane-report-{}", std::process::id()));
        fs::write(&path, "# an old run\n  kills: 3\n  executions of a: 5, 9 edges\n  a note\n")
            .unwrap();
        let mut report = Report::open(&path).unwrap();
        assert_eq!(report.runs(), 1);
        report.begin("a new run");
        report.add(&counts(&[("kills", 4)]), Duration::from_secs(9));
        report.write(None).unwrap();
        report.add(&counts(&[("executions of a", 2)]), Duration::from_secs(10));
        report.write(Some("reason")).unwrap();

        let text = fs::read_to_string(&path).unwrap();
        let expected = "# Totals of the runs below\n  executions: 7\n  executions of a: 7\n  kills: 7\n  \
            seconds: 10\n\n# an old run\n  kills: 3\n  executions of a: 5, 9 edges\n  a note\n\n\
            # a new run\n  executions: 2\n  executions of a: 2\n  kills: 4\n  seconds: 10\n  \
            failed: reason\n";
        assert_eq!(text, expected);

        // The next run adds what the last had not recorded.
        let mut report = Report::open(&path).unwrap();
        report.add_to_last(&counts(&[("kills", 1)]));
        report.begin("the third run");
        report.write(None).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("  kills: 8\n") && text.contains("  kills: 5\n"), "{text}");
        assert!(text.contains("failed: reason"), "{text}");

        // Branches that no run has taken are named.
        let mut report = Report::open(&path).unwrap();
        report.expect_branches(["one", "two"].map(str::to_owned).into());
        report.begin("a run with rare branches");
        report.add(&counts(&[("rare two", 3)]), Duration::from_secs(1));
        assert_eq!(report.summary(), "1 seconds");
        report.write(None).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("  never taken of 2 rare branches are 1: one\n"), "{text}");
        fs::remove_file(&path).unwrap();
    }
}
