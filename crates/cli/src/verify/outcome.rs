//! The end of every check: the last line of the report, and the failure if problems are left.

use std::path::Path;

use crate::ui::exit::Failure;
use crate::ui::text::count_of;

/// Name of the command in the report, and the form of its output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reporting {
    pub(crate) command: &'static str,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
}

/// Returns the result of a check as the end of its last line.
pub(super) fn outcome(repaired: u64, left: u64) -> String {
    match (repaired, left) {
        (0, 0) => "no problem".to_owned(),
        (0, left) => count_of(left, "problem", "problems"),
        (repaired, left) => format!("repaired {repaired}, left {left}"),
    }
}

/// Returns the failure of a check of `dir` that leaves problems.
pub(super) fn failure(dir: &Path, left: u64) -> Option<Failure> {
    (left > 0).then(|| {
        let left = count_of(left, "problem is", "problems are");
        Failure::check(format!("{}: {left} left", dir.display()))
    })
}
