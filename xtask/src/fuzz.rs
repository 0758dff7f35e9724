//! `cargo xtask fuzz`: libFuzzer on the targets of `crates/fuzz`, one after the other.
//!
//! The fuzzer is built on the stable toolchain with the coverage pass of its compiler, so neither
//! nightly nor `cargo-fuzz` is needed; libFuzzer itself is C++. The targets are the folders of
//! `fuzz/corpus`, which a test compares with the targets that there are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::workspace::Workspace;

/// Flags of the build: `cfg(fuzzing)`, and counters of edges and comparisons for libFuzzer.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Longest input; more changes of one proof or file find no more.
const INPUT_BYTES_MAX: &str = "-max_len=512";

/// Work on the targets.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Fuzz(Duration),
    /// Runs this input alone.
    Replay(PathBuf),
    /// Keeps of each corpus, and of what was found, what covers as much.
    Minimise,
}

/// Targets, all if none is named, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    targets: Vec<String>,
    action: Action,
}

impl Options {
    /// Reads the words of a command line; `None` if they mean nothing.
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let mut options =
            Self { targets: Vec::new(), action: Action::Fuzz(Duration::from_secs(60)) };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "--seconds" => {
                    let seconds = words.next()?.parse().ok().filter(|&seconds| seconds > 0)?;
                    options.action = Action::Fuzz(Duration::from_secs(seconds));
                }
                "--replay" => options.action = Action::Replay(words.next()?.into()),
                "--minimise" => options.action = Action::Minimise,
                name if !name.starts_with('-') => options.targets.push(name.to_owned()),
                _ => return None,
            }
        }

        let is_replay = matches!(options.action, Action::Replay(_));
        (!is_replay || options.targets.len() == 1).then_some(options)
    }
}

/// Figures that libFuzzer prints.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    executions: u64,
    edges: u64,
}

impl Totals {
    fn read(output: &str) -> Self {
        let number = |line: &str, mark: &str| -> Option<u64> {
            line.split(mark).nth(1)?.split_whitespace().next()?.parse().ok()
        };
        let mut totals = Self::default();
        for line in output.lines() {
            if let Some(executions) = number(line, "stat::number_of_executed_units:") {
                totals.executions = executions;
            }
            totals.edges = number(line, " cov:").unwrap_or(totals.edges);
        }
        totals
    }
}

/// The names of all targets.
pub(crate) fn targets(workspace: &Workspace) -> Result<Vec<String>, String> {
    let mut known: Vec<String> = fs::read_dir(workspace.root.join("fuzz/corpus"))
        .map_err(|error| format!("cannot read fuzz/corpus: {error}"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    known.sort();
    Ok(known)
}

/// The command that fuzzes a target for some seconds; `None` where no fuzzer was built.
pub(crate) fn long_run(
    workspace: &Workspace,
    target: &str,
    seconds: u64,
    seed: u64,
) -> Option<Command> {
    let program = program(workspace).ok().filter(|program| program.is_file())?;
    let mut command = command(workspace, &program, target).ok()?;
    // Zero lets libFuzzer draw a seed.
    command.arg(format!("-seed={}", seed % 0xffff_ffff + 1));
    fuzz_for(workspace, &mut command, target, Duration::from_secs(seconds));
    Some(command)
}

/// The number of executions in an output of libFuzzer.
pub(crate) fn executions(output: &str) -> u64 {
    Totals::read(output).executions
}

/// Builds the fuzzer, and runs the targets.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    let fuzz = workspace.root.join("fuzz");
    let known = targets(workspace)?;
    if let Some(name) = options.targets.iter().find(|name| !known.contains(name)) {
        return Err(format!("no target {name}; there are {}", known.join(", ")));
    }
    let targets = if options.targets.is_empty() { &known } else { &options.targets };

    let program = build(workspace)?;
    let (mut sum, mut failed) = (0, Vec::new());
    for target in targets {
        let mut command = command(workspace, &program, target)?;
        match &options.action {
            Action::Fuzz(time) => fuzz_for(workspace, &mut command, target, *time),
            Action::Replay(file) => drop(command.arg(file)),
            Action::Minimise => {
                command.arg("-set_cover_merge=1");
                command.args(["corpus", "corpus.found"].map(|name| fuzz.join(name).join(target)));
            }
        }

        let output = command.output().map_err(|error| format!("{}: {error}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stderr);
        let totals = Totals::read(&text);
        sum += totals.executions;
        println!("fuzz: {target}: {} executions, {} edges", totals.executions, totals.edges);
        if !output.status.success() {
            // The panic, and where its input is.
            let lines: Vec<_> = text.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(40)..].join("\n"));
            failed.push(target.as_str());
        }
    }

    println!("fuzz: {sum} executions of {} targets", targets.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// The program on a target, whose folders are made.
fn command(workspace: &Workspace, program: &Path, target: &str) -> Result<Command, String> {
    for name in ["corpus.found", "artifacts"] {
        let folder = workspace.root.join("fuzz").join(name).join(target);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }

    let mut command = Command::new(program);
    command.env("TERRANE_FUZZ_TARGET", target).current_dir(&workspace.root);
    Ok(command)
}

/// Lets the fuzzer look for more inputs for some time.
fn fuzz_for(workspace: &Workspace, command: &mut Command, target: &str, time: Duration) {
    let folder = |name: &str| workspace.root.join("fuzz").join(name).join(target);
    command.arg(format!("-max_total_time={}", time.as_secs()));
    command.args([INPUT_BYTES_MAX, "-print_final_stats=1", "-timeout=20"]);
    command.arg(format!("-artifact_prefix={}/", folder("artifacts").display()));
    command.args([folder("corpus.found"), folder("corpus")]);
}

/// Path of the fuzzer, which need not have been built.
fn program(workspace: &Workspace) -> Result<PathBuf, String> {
    let host = workspace.compiler()?.host;
    Ok(workspace.root.join("fuzz/target").join(host).join("release/fuzzer"))
}

/// Builds the fuzzer; returns its path.
fn build(workspace: &Workspace) -> Result<PathBuf, String> {
    let host = workspace.compiler()?.host;
    let mut cargo = workspace.cargo(&["build", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    // With a target named, the flags are not those of build scripts.
    cargo.args(["--target", &host]).env("RUSTFLAGS", RUSTFLAGS);
    cargo.env_remove("CARGO_TARGET_DIR");
    let status = cargo.status().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !status.success() {
        return Err("the fuzzer cannot be built; it needs a C++ compiler (g++)".to_owned());
    }
    program(workspace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_targets_and_an_action() {
        let parse = |words: &[&str]| Options::parse(words);
        let all = parse(&[]).unwrap();
        assert_eq!((all.targets.len(), all.action), (0, Action::Fuzz(Duration::from_secs(60))));
        let one = parse(&["a", "--seconds", "5"]).unwrap();
        assert_eq!((&*one.targets[0], one.action), ("a", Action::Fuzz(Duration::from_secs(5))));
        assert!(parse(&["a", "--replay", "file"]).is_some());
        for wrong in [&["--replay", "file"][..], &["--seconds", "0"], &["--seconds"], &["-x"]] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn totals_are_those_of_the_last_lines() {
        let output = "#2\tINITED cov: 12 ft: 13\n#9\tDONE   cov: 34 ft: 40 corp: 3/9b\n\
            stat::number_of_executed_units: 4711\n";
        assert_eq!(Totals::read(output), Totals { executions: 4711, edges: 34 });
        assert_eq!(Totals::read(""), Totals::default());
    }
}
