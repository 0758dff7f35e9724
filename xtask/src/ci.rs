//! Everything that must hold before a commit, in one command; `.ci/run` calls nothing else.
//!
//! Each step is a named, timed command. The first failure ends the run, the times are printed in
//! either case.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::bindings;
use crate::capi;
use crate::counts;
use crate::go;
use crate::package;
use crate::program;
use crate::python;
use crate::sweeps::Sweeps;
use crate::tidy;
use crate::workspace::Workspace;

/// Scope of a run: the steps to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scope {
    /// Format, tidy and lints only.
    pub(crate) fast: bool,
    /// The default members have been tested just now.
    pub(crate) tested: bool,
    /// Sweeps are left at the samples that the tests take.
    pub(crate) sampled: bool,
    /// Other languages that are tested, too.
    pub(crate) bindings: Bindings,
}

/// Bindings that a run tests. Those of C and of Go over C are always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bindings {
    /// No other ones.
    C,
    /// All, which compiles the engines once more and fetches modules of others.
    All,
}

struct Times {
    start: Instant,
    steps: Vec<(String, Duration)>,
}

/// Takes every step of `scope`, until one fails.
pub(crate) fn run(workspace: &Workspace, scope: Scope) -> Result<(), String> {
    let mut times = Times { start: Instant::now(), steps: Vec::new() };
    let outcome = steps(workspace, scope, &mut times);
    let steps: Vec<String> = times
        .steps
        .iter()
        .map(|(name, time)| format!("{name} {:.1} s", time.as_secs_f64()))
        .collect();
    println!("ci: {}; total {:.1} s", steps.join(", "), times.start.elapsed().as_secs_f64());
    outcome
}

/// Checks and tests object storage: its own workspace, and the program with the feature.
///
/// Not part of [`run`]: its HTTP client alone takes minutes to compile.
pub(crate) fn object(workspace: &Workspace) -> Result<(), String> {
    let mut times = Times { start: Instant::now(), steps: Vec::new() };
    let own = |arguments: &[&str]| workspace.cargo_in("crates/object", arguments);
    times.take("fmt object", &mut own(&["fmt", "--check"]))?;
    times.take("clippy object", &mut own(&["clippy", "--all-targets", "--", "-D", "warnings"]))?;
    times.take("test object", &mut own(&["test"]))?;
    let mut docs = own(&["doc", "--no-deps", "--document-private-items"]);
    times.take("doc object", docs.env("RUSTDOCFLAGS", "-D warnings"))?;

    let program = ["-p", "terrane-cli", "--features", "object-store"];
    let lints = [&["clippy"], &program[..], &["--all-targets", "--", "-D", "warnings"]].concat();
    times.take("clippy program", &mut workspace.cargo(&lints))?;
    let tests = [&["test"], &program[..], &["--test", "it", "bucket"]].concat();
    times.take("test program", &mut workspace.cargo(&tests))
}

/// Checks `evm`, a workspace of its own, whose test executes a block of the main network.
///
/// Not part of [`run`]: the virtual machine alone takes minutes to compile.
pub(crate) fn evm(workspace: &Workspace) -> Result<(), String> {
    let mut times = Times { start: Instant::now(), steps: Vec::new() };
    let own = |arguments: &[&str]| workspace.cargo_in("evm", arguments);
    times.take("fmt evm", &mut own(&["fmt", "--check"]))?;
    times.take("clippy evm", &mut own(&["clippy", "--all-targets", "--", "-D", "warnings"]))?;
    times.take("test evm", &mut own(&["test", "--locked"]))
}

fn steps(workspace: &Workspace, scope: Scope, times: &mut Times) -> Result<(), String> {
    let cargo = |arguments: &[&str]| workspace.cargo(arguments);
    times.take("fmt", &mut cargo(&["fmt", "--all", "--check"]))?;
    times.take_with("tidy", || tidy::run(workspace))?;

    let lints = [
        "clippy",
        "--workspace",
        "--lib",
        "--bins",
        "--tests",
        "--examples",
        "--",
        "-D",
        "warnings",
    ];

    times.take("clippy", &mut cargo(&lints))?;
    if scope.fast {
        return Ok(());
    }

    if !scope.tested {
        times.take("test", &mut cargo(&["test"]))?;
    }
    times.take("test xtask", &mut cargo(&["test", "-p", "xtask"]))?;

    if !scope.sampled {
        let sweeps = Sweeps::of(&workspace.files()?)?;
        times.take("build sweeps", &mut sweeps.build(workspace))?;
        times.take("sweeps", &mut sweeps.run(workspace))?;
        times.take_with("soak", || crate::soak::run_share(workspace))?;
    }

    times.take_with("deny", || crate::advisories::run(workspace))?;
    let docs = ["doc", "--no-deps", "--document-private-items", "--workspace"];
    times.take("doc", cargo(&docs).env("RUSTDOCFLAGS", "-D warnings"))?;
    times.take_with("capi", || capi::run(workspace, capi::Mode::Compare))?;
    if scope.bindings == Bindings::All {
        times.take_with("python", || python::run(workspace))?;
        times.take_with("go", || go::run(workspace, go::Scope::All))?;
        times.take_with("bindings", || bindings::run(workspace, 1))?;
    } else {
        println!(
            "==> python: skipped: `cargo xtask ci --bindings` or `cargo xtask python` runs it"
        );
        times.take_with("go", || go::run(workspace, go::Scope::Library))?;
    }
    times.take_with("package", || package::run(workspace, package::Mode::List))?;
    times.take("build examples", &mut cargo(&["build", "--examples"]))?;

    // Of no package alone: its features would be fewer, and the engines would be compiled again.
    for example in examples(workspace)? {
        let mut command = cargo(&["run", "-q", "--example", &example]);
        times.take(&format!("example {example}"), &mut command)?;
    }

    if counts::is_installed() {
        println!("==> counts");
        return times.take_with("counts", || counts::run(workspace, counts::Mode::Compare));
    }

    println!("==> counts: left out, there is no valgrind on this machine");
    Ok(())
}

impl Times {
    fn take(&mut self, name: &str, command: &mut Command) -> Result<(), String> {
        println!("==> {name}");
        self.take_with(name, || program::run(name, command))
    }

    fn take_with(
        &mut self,
        name: &str,
        step: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let start = Instant::now();
        let outcome = step();
        self.steps.push((name.to_owned(), start.elapsed()));
        outcome
    }
}

/// The names of the examples of all packages under `crates/`.
fn examples(workspace: &Workspace) -> Result<Vec<String>, String> {
    let files = workspace.files()?;
    Ok(files.iter().filter_map(|file| example_of(&file.path)).map(str::to_owned).collect())
}

/// The example's name, if `path` is the source of an example.
fn example_of(path: &str) -> Option<&str> {
    let (folder, rest) = path.split_once("/examples/")?;
    let name = rest.strip_suffix("/main.rs").or_else(|| rest.strip_suffix(".rs"))?;
    (folder.starts_with("crates/") && !name.contains('/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_found_by_their_path() {
        assert_eq!(example_of("crates/a/examples/b.rs"), Some("b"));
        assert_eq!(example_of("crates/a/examples/b/main.rs"), Some("b"));
        assert_eq!(example_of("crates/a/examples/b/other.rs"), None);
        assert_eq!(example_of("crates/a/examples/data.txt"), None);
        assert_eq!(example_of("peers/examples/b.rs"), None);
    }

    #[test]
    fn a_failed_step_ends_with_its_name_and_time() {
        let mut times = Times { start: Instant::now(), steps: Vec::new() };
        assert_eq!(times.take_with("good", || Ok(())), Ok(()));
        assert_eq!(times.take_with("bad", || Err("bad".to_owned())), Err("bad".to_owned()));
        let failed = times.take("gone", &mut Command::new("terrane-no-such-program"));
        assert!(failed.is_err_and(|message| message.starts_with("gone: ")));
        assert_eq!(
            times.steps.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            ["good", "bad", "gone"]
        );
    }
}
