//! `cargo xtask sanitize`: the code with `unsafe`, and threads of the engines, under the checkers
//! of the nightly compiler.
//!
//! Each checker needs a component that few machines have. A checker whose component is missing is
//! skipped, and the chore says so.

use std::path::Path;
use std::process::Command;

use crate::program;
use crate::workspace::Workspace;

/// Checker: its name, what it needs, and its runs.
struct Checker {
    name: &'static str,
    needs: &'static str,
    is_there: fn() -> bool,
    cargo: &'static [&'static str],
    /// Whether the target is named, so that the flags do not reach build scripts.
    names_target: bool,
    variables: &'static [(&'static str, &'static str)],
    /// Packages, each with the beginnings of the names of its tests.
    runs: &'static [(&'static str, &'static [&'static str])],
}

const CHECKERS: [Checker; 3] = [
    Checker {
        name: "AddressSanitizer",
        needs: "a nightly toolchain",
        is_there: || program::succeeds(&mut nightly(&["--version"])),
        cargo: &["test"],
        names_target: true,
        // Tests ask for more memory than there is, and an error.
        variables: &[
            ("RUSTFLAGS", "-Zsanitizer=address"),
            ("ASAN_OPTIONS", "allocator_may_return_null=1"),
        ],
        runs: &[
            ("terrane-io", &[]),
            ("terrane-lmdb", &[]),
            ("terrane-backends-tests", &["lmdb::"]),
        ],
    },
    Checker {
        name: "ThreadSanitizer",
        needs: "the component rust-src of a nightly toolchain",
        is_there: has_sources,
        cargo: &["test", "-Zbuild-std"],
        names_target: true,
        variables: &[("RUSTFLAGS", "-Zsanitizer=thread")],
        runs: &[
            ("terrane-io", &[]),
            ("terrane-lsm-tests", &["store_threads::"]),
            ("terrane-context-tests", &["heads::", "waits::"]),
        ],
    },
    Checker {
        name: "Miri",
        needs: "the component miri of a nightly toolchain",
        is_there: || program::succeeds(&mut nightly(&["miri", "--version"])),
        cargo: &["miri", "test"],
        names_target: false,
        variables: &[("MIRIFLAGS", "-Zmiri-disable-isolation")],
        runs: &[("terrane-io", &["aligned::"])],
    },
];

/// Cargo of the nightly toolchain.
fn nightly(words: &[&str]) -> Command {
    let mut cargo = Command::new("rustup");
    cargo.args(["run", "nightly", "cargo"]).args(words);
    cargo
}

/// Whether the nightly toolchain has the sources of the standard library, which every thread uses.
fn has_sources() -> bool {
    let sysroot =
        Command::new("rustup").args(["run", "nightly", "rustc", "--print=sysroot"]).output();
    let sysroot = sysroot.map(|output| output.stdout).unwrap_or_default();
    let sysroot = String::from_utf8_lossy(&sysroot);
    !sysroot.is_empty() && Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library").is_dir()
}

/// Runs each checker whose component is there.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    let target = format!("--target={}", workspace.compiler()?.host);
    for Checker { name, needs, is_there, cargo, names_target, variables, runs } in CHECKERS {
        if !is_there() {
            println!("sanitize: {name}: SKIPPED, it needs {needs}");
            continue;
        }
        for (package, tests) in runs {
            let mut command = nightly(cargo);
            command.args(names_target.then_some(&target));
            command.args(["-p", package, "--tests", "--"]).args(*tests);
            command.current_dir(&workspace.root).envs(variables.iter().copied());
            command.env("CARGO_TARGET_DIR", format!("target/sanitize/{name}"));
            program::run(&format!("{package} under {name}"), &mut command)?;
        }
    }
    Ok(())
}
