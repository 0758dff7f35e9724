//! Golden files: compared with the code, or written anew where a format is meant to change.
//!
//! The tests do the work (`terrane_testkit::golden`); every one of them has `golden` in its path.

use crate::workspace::Workspace;

/// Use of the golden files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Run the tests as `cargo test` does.
    Compare,
    /// Let the tests write what they would have compared.
    Write,
}

/// Runs the golden tests of the whole workspace.
pub(crate) fn run(workspace: &Workspace, mode: Mode) -> Result<(), String> {
    let mut command = workspace.cargo(&["test", "--workspace", "--tests", "golden"]);
    if mode == Mode::Write {
        command.env("TERRANE_GOLDEN", "write");
    }
    let status = command.status().map_err(|error| format!("cargo test: {error}"))?;
    if !status.success() {
        return Err("golden: the tests failed".to_owned());
    }
    if mode == Mode::Write {
        println!("golden: written; change the format document and CHANGELOG.md in the same commit");
    }
    Ok(())
}
