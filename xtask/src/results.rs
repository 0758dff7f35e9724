//! Recorded benchmark runs as they are shown, written anew or compared: the tables of
//! `bench/results/README.md`, the headline table and plot of the README, the pages of
//! `docs/report`.
//!
//! Tests of `terrane-bench` do the work, since they can read JSON. Therefore `cargo test` compares
//! as well.

use crate::workspace::Workspace;

/// The work on the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Compare, as `cargo test` does.
    Check,
    /// Write.
    Write,
}

/// Tests that compare or write.
const TESTS: [&str; 2] = [
    "results::the_page_has_the_tables_of_the_recorded_runs",
    "published::the_readme_and_the_report_show_the_recorded_runs",
];

/// Runs the tests.
pub(crate) fn run(workspace: &Workspace, mode: Mode) -> Result<(), String> {
    let mut command = workspace.cargo(&["test", "-q", "-p", "terrane-bench", "--test", "it"]);
    command.args(["--", "--exact"]).args(TESTS);
    if mode == Mode::Write {
        command.env("TERRANE_RESULTS", "write");
    }
    let status = command.status().map_err(|error| format!("cargo test: {error}"))?;
    if status.success() { Ok(()) } else { Err("results: a test failed, see above".to_owned()) }
}
