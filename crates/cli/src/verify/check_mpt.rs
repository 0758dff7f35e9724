//! Check and repair of Ethereum states for `terrane verify`, once their files are whole.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use terrane::io::{Disk, RealDisk};
use terrane::mpt::{self, CheckReport, Options, State};

use crate::commands::mpt::open_to_read;
use crate::ui::exit::Failure;
use crate::ui::text::count_of;

/// Findings of a check of a state.
#[derive(Serialize)]
pub(super) struct StateCheck {
    problems: Vec<Problem>,
    repaired: u64,
    pub(super) left: u64,
    accounts: u64,
    slots: u64,
    nodes: u64,
}

#[derive(Serialize)]
struct Problem {
    rule: String,
    repaired: bool,
}

/// Checks the state in a directory, and derives its nodes anew if `repair` is given and they are
/// damaged. Returns `None` if the directory holds no state.
pub(super) fn check(dir: &Path, repair: bool) -> Result<Option<StateCheck>, Failure> {
    let disk: Arc<dyn Disk> = RealDisk::auto();
    if !mpt::is_state(disk.as_ref(), dir)? {
        return Ok(None);
    }
    let reader = open_to_read(dir)?;
    if reader.is_import_unfinished()? {
        let rule = "an import has not been finished: go on with it, or delete the directory";
        return Ok(Some(StateCheck::of(&CheckReport::default(), Some(rule.to_owned()))));
    }
    let found = reader.verify()?;
    drop(reader);
    if found.is_clean() || !repair {
        return Ok(Some(StateCheck::of(&found, None)));
    }

    let mut state = State::open_unchecked(disk, dir, &Options::default())?;
    let rebuilt = state.rebuild();
    let closed = state.close();
    let refusal = match rebuilt {
        Ok(_) => None,
        // Entries are damaged, and nodes of them would hide it.
        Err(error @ mpt::Error::RootMismatch { .. }) => Some(format!("not repaired: {error}")),
        Err(error) => return Err(error.into()),
    };
    closed?;
    let after = open_to_read(dir)?.verify()?;
    Ok(Some(StateCheck::of(&after, refusal).with_repaired(&found, &after)))
}

impl StateCheck {
    fn of(report: &CheckReport, note: Option<String>) -> Self {
        let problem = |rule: String| Problem { rule, repaired: false };
        let rules = report.problems.iter().map(ToString::to_string).chain(note);
        let problems: Vec<Problem> = rules.map(problem).collect();
        Self {
            left: problems.len() as u64,
            problems,
            repaired: 0,
            accounts: report.accounts,
            slots: report.slots,
            nodes: report.nodes,
        }
    }

    /// Adds the problems that a repair has ended.
    fn with_repaired(mut self, found: &CheckReport, after: &CheckReport) -> Self {
        let is_left = |problem: &&mpt::Problem| after.problems.contains(problem);
        let ended = found.problems.iter().filter(|problem| !is_left(problem));
        let ended = ended.map(|problem| Problem { rule: problem.to_string(), repaired: true });
        let ended: Vec<Problem> = ended.collect();
        self.repaired = ended.len() as u64;
        self.problems.splice(0..0, ended);
        self
    }

    pub(super) fn text(&self) -> String {
        let line = |problem: &Problem| {
            let fate = if problem.repaired { "; repaired" } else { "" };
            format!("state: {}{fate}", problem.rule)
        };
        let mut lines: Vec<String> = self.problems.iter().map(line).collect();
        let checked = [
            count_of(self.accounts, "account", "accounts"),
            count_of(self.slots, "slot", "slots"),
            count_of(self.nodes, "node", "nodes"),
        ];
        let outcome = crate::verify::outcome::outcome(self.repaired, self.left);
        lines.push(format!("checked {} of the state: {outcome}", checked.join(", ")));
        lines.join("\n")
    }
}
