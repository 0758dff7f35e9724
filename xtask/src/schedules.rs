//! `cargo xtask schedules`: the tests of threads under many schedules.
//!
//! The engines are compiled with `--cfg shuttle` into a folder of their own: their threads, locks
//! and atomics are then those of the crate `shuttle`, and no other test runs with them.

use std::process::Command;

use crate::program;
use crate::workspace::Workspace;

/// Packages with tests of schedules.
pub(crate) const PACKAGES: [&str; 3] =
    ["terrane-lsm-tests", "terrane-btree-tests", "terrane-context-tests"];

/// Folder of the build.
const FOLDER: &str = "target/schedules";

/// The tests of a package, each under `count` schedules of each kind.
pub(crate) fn tests(workspace: &Workspace, package: &str, count: u32) -> Command {
    let mut tests = workspace.cargo(&["test", "-p", package, "--test", "it", "schedules::"]);
    tests.env("RUSTFLAGS", "--cfg shuttle").env("CARGO_TARGET_DIR", FOLDER);
    tests.env("TERRANE_SCHEDULES", count.to_string());
    // All accesses of `shuttle` are in one order, whatever an atomic asks for; it warns of that.
    tests.env("SHUTTLE_SILENCE_ORDERING_WARNING", "1");
    tests
}

/// Runs each test under `count` schedules of each kind.
pub(crate) fn run(workspace: &Workspace, count: u32) -> Result<(), String> {
    PACKAGES.iter().try_for_each(|package| {
        program::run(&format!("schedules of {package}"), &mut tests(workspace, package, count))
    })
}
