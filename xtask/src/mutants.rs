//! `cargo xtask mutants`: the code of an area, changed in one place at a time, under the tests that
//! must notice.
//!
//! `cargo-mutants` makes the changes in a copy of the workspace and runs the tests of the area on
//! each. A change that no test notices *survives*: a test is missing, or it means nothing. A
//! whole area takes hours, so a run may take a shard of it; the counts of a run, and what has
//! survived, are added to a report.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;

use crate::program;
use crate::workspace::Workspace;

/// The recorded runs.
const REPORT: &str = "bench/results/mutants.txt";

/// Folder of the output of `cargo-mutants`, within the workspace.
const FOLDER: &str = "target/mutants";

/// Time of the tests of an area; a change that makes them take longer is noticed.
const TEST_SECONDS: &str = "300";

/// Code that is changed, and the tests that see it.
struct Area {
    name: &'static str,
    /// Package of the code.
    package: &'static str,
    files: &'static [&'static str],
    /// Package of the tests, and what `cargo test` is told about them.
    tests: &'static str,
    words: &'static [&'static str],
}

const AREAS: [Area; 6] = [
    Area {
        name: "pages",
        package: "terrane-lsm",
        files: &["crates/lsm/src/block/page.rs"],
        tests: "terrane-lsm-tests",
        words: &["--test=unit", "--", "block::"],
    },
    Area {
        name: "wal",
        package: "terrane-lsm",
        files: &["crates/lsm/src/manifest/wal.rs", "crates/lsm/src/manifest/wal_reader.rs"],
        tests: "terrane-lsm-tests",
        words: &[
            "--test=it",
            "--",
            "golden::",
            "recovery::",
            "store::",
            "store_damage::",
            "reader::",
            "feed::",
            "write_batches::",
        ],
    },
    Area {
        name: "recovery",
        package: "terrane-lsm",
        files: &["crates/lsm/src/store/recovery.rs", "crates/lsm/src/store/segments.rs"],
        tests: "terrane-lsm-tests",
        words: &[
            "--test=it",
            "--",
            "golden::",
            "recovery::",
            "store::",
            "store_damage::",
            "store_faults::",
            "store_versions::",
            "compaction::what_nobody_needs",
        ],
    },
    Area {
        name: "context-proofs",
        package: "terrane-context",
        files: &["crates/context/src/proof/*.rs"],
        tests: "terrane-context-tests",
        words: &["--test=it", "--", "proof::", "forger::", "vectors::"],
    },
    Area {
        name: "radix-proofs",
        package: "terrane-radix",
        files: &["crates/radix/src/proof/*.rs"],
        tests: "terrane-backends-tests",
        words: &["--test=it", "--", "radix::proofs::", "radix::vectors::", "radix::defects::"],
    },
    Area {
        name: "mpt-proofs",
        package: "terrane-mpt",
        files: &["crates/mpt/src/proof/*.rs"],
        tests: "terrane-mpt-tests",
        words: &["--test=it", "--", "proofs::", "ranges::", "vectors::"],
    },
];

/// An area, and the part of it that is taken, as `0/8`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    area: usize,
    shard: Option<String>,
}

impl Options {
    /// Reads the words of a command line; `None` if they mean nothing.
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let (name, rest) = words.split_first()?;
        let area = AREAS.iter().position(|area| area.name == *name)?;
        let shard = match rest {
            [] => None,
            ["--shard", shard] => {
                let (number, count) = shard.split_once('/')?;
                let numbers = (number.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
                Some((numbers.0 < numbers.1).then(|| (*shard).to_owned())?)
            }
            _ => return None,
        };
        Some(Self { area, shard })
    }
}

/// Changes of a run, by what came of them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    caught: usize,
    /// Those that a test did not survive in time.
    timeout: usize,
    /// Those that are no programs.
    unviable: usize,
    survived: Vec<String>,
}

impl Outcome {
    /// Reads one of the lists of `cargo-mutants` by its name; a line for each change.
    fn read(list: impl Fn(&str) -> String) -> Self {
        let count = |name| list(name).lines().count();
        let survived = list("missed").lines().map(str::to_owned).collect();
        let (caught, timeout, unviable) = (count("caught"), count("timeout"), count("unviable"));
        Self { caught, timeout, unviable, survived }
    }

    fn text(&self) -> String {
        let mut text = format!("  caught: {}\n", self.caught + self.timeout);
        if self.timeout > 0 {
            let _ = writeln!(text, "  of these by a test that went on for ever: {}", self.timeout);
        }
        let _ = writeln!(text, "  no programs: {}", self.unviable);
        let _ = writeln!(text, "  survived: {}", self.survived.len());
        for change in &self.survived {
            let _ = writeln!(text, "    {change}");
        }
        text
    }
}

/// Changes the code of an area, and adds what came of it to the report.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<(), String> {
    if !program::succeeds(&mut workspace.cargo(&["mutants", "--version"])) {
        return Err("mutants: there is no cargo-mutants (cargo install cargo-mutants)".to_owned());
    }
    let Area { name, package, files, tests, words } = &AREAS[options.area];
    let folder = workspace.root.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;

    let mut command = workspace.cargo(&["mutants", "--no-times", "--package", package]);
    command.args(["--test-package", tests, "--output", FOLDER]);
    // It would run the unchanged tests of the package that is changed, which has none.
    command.args(["--baseline=skip", "--timeout", TEST_SECONDS]);
    files.iter().for_each(|file| {
        command.args(["--file", file]);
    });
    if let Some(shard) = &options.shard {
        // Each shard has changes all over the area.
        command.args(["--shard", shard, "--sharding", "round-robin"]);
    }
    command.arg("--").args(*words);
    // Half of the time is the compiler's.
    let unoptimised = ("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    command.envs([unoptimised]);
    let mut unchanged = workspace.cargo(&["test", "--quiet", "--package", tests]);
    let unchanged = unchanged.args(*words).envs([unoptimised]);
    program::run("the tests of the unchanged code", unchanged)?;
    let status = command.status().map_err(|error| format!("cargo mutants: {error}"))?;
    // 2 and 3: some changes survived, or a test went on for ever.
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        return Err(format!("cargo mutants failed ({status})"));
    }

    let lists = folder.join("mutants.out");
    let list = |name: &str| fs::read_to_string(lists.join(name).with_extension("txt"));
    let outcome = Outcome::read(|name| list(name).unwrap_or_default());
    let shard =
        options.shard.as_ref().map_or_else(String::new, |shard| format!(" --shard {shard}"));
    let revision = workspace.revision();
    let version = workspace.compiler()?.version;
    let text = outcome.text();
    let report = format!("\n# cargo xtask mutants {name}{shard}; {revision}, {version}\n{text}");
    print!("{report}");

    let path = workspace.root.join(REPORT);
    let file = OpenOptions::new().append(true).create(true).open(&path);
    file.and_then(|mut file| file.write_all(report.as_bytes()))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if outcome.survived.is_empty() { Ok(()) } else { Err("some changes survived".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_of_a_known_area_and_of_a_shard_that_there_is() {
        let parse = |text: &str| Options::parse(&text.split(' ').collect::<Vec<_>>());
        assert_eq!(parse("wal"), Some(Options { area: 1, shard: None }));
        assert_eq!(parse("pages --shard 7/8").unwrap().shard.as_deref(), Some("7/8"));
        for text in ["", "pages,wal", "pages --shard", "pages --shard 8/8", "pages --shard x/8"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    /// The files and packages of the areas are there, so that a renamed one is noticed.
    #[test]
    fn each_area_names_files_and_packages_that_there_are() {
        let workspace = Workspace::find().unwrap();
        let files = workspace.files().unwrap();
        for area in &AREAS {
            for file in area.files {
                let folder = file.trim_end_matches("*.rs");
                let is_there = files.iter().any(|found| found.path.starts_with(folder));
                assert!(is_there, "{file}");
            }
            for package in [area.package, area.tests] {
                let name = format!("name = \"{package}\"");
                assert!(
                    files.iter().any(|file| file.path.ends_with("Cargo.toml")
                        && fs::read_to_string(workspace.root.join(&file.path))
                            .is_ok_and(|text| text.contains(&name))),
                    "{package}"
                );
            }
        }
    }

    #[test]
    fn what_survives_is_listed_and_a_test_without_end_has_noticed() {
        let lists = |name: &str| match name {
            "caught" => "a\nb\n".to_owned(),
            "timeout" => "c\n".to_owned(),
            "missed" => "src/one.rs:1:2: replace + with -\n".to_owned(),
            _ => String::new(),
        };
        let text = Outcome::read(lists).text();
        assert!(text.starts_with("  caught: 3\n"), "{text}");
        assert!(text.ends_with("  survived: 1\n    src/one.rs:1:2: replace + with -\n"), "{text}");
    }
}
