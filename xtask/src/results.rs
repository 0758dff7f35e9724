//! The tables of recorded benchmark runs in `bench/results/README.md`: written anew, or compared.
//!
//! A test of `terrane-bench` does the work, since it can read JSON. Therefore `cargo test` compares
//! the tables as well.

use crate::workspace::Workspace;

/// The work on the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Compare, as `cargo test` does.
    Check,
    /// Write.
    Write,
}

/// Runs the test.
pub(crate) fn run(workspace: &Workspace, mode: Mode) -> Result<(), String> {
    let test = "results::the_page_has_the_tables_of_the_recorded_runs";
    let mut command = workspace.cargo(&["test", "-q", "-p", "terrane-bench", "--test", "it"]);
    command.args([test, "--", "--exact"]);
    if mode == Mode::Write {
        command.env("TERRANE_RESULTS", "write");
    }
    let status = command.status().map_err(|error| format!("cargo test: {error}"))?;
    if status.success() { Ok(()) } else { Err("results: the test failed, see above".to_owned()) }
}
