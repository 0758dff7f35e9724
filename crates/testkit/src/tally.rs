//! Counts of a long run: images, faults, kills, executions.
//!
//! `cargo xtask soak` names a file in `TERRANE_TALLY` and runs tests. The tests append lines of a
//! name and a count, as `crash images 120`. Without the variable nothing is written.
//!
//! Invariant: a line is one write to a file opened for appending, so that processes and threads
//! never mix their lines, and the lines of a killed process count.

use std::fs::OpenOptions;
use std::io::Write;

use crate::effort::env_value;

/// Names the file; set by `cargo xtask soak`.
const VARIABLE: &str = "TERRANE_TALLY";

/// Adds to the count of this name.
///
/// # Panics
/// When the file of the environment cannot be written: a run that is not counted is none.
pub fn add(name: &str, count: u64) {
    let Some(path) = env_value(VARIABLE).filter(|_| count > 0) else { return };
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let line = format!("{name} {count}\n");
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("{path}: {error}"));
}
