//! Instructions of the hot paths, compared with a baseline in the repository.
//!
//! `terrane-counts` does fixed work on a table in memory; callgrind, which simulates the processor,
//! counts what it executes in each of its regions, as a whole and below some functions of the
//! engine. No clock is involved, so a busy machine gives the same figures, and a change of a few
//! per cent shows. The figures depend on the compiler, and a little on the system's library.
//!
//! The baseline, `bench/counts.txt`, has one figure to a line, `name instructions`, after the
//! compiler that they were found with; lines that begin with `#` say nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace::{Compiler, Workspace};

const BASELINE: &str = "bench/counts.txt";

/// How the GNU library copies and compares: not by what the processor has, or figures differ by 17
/// % between two.
const LIBRARY: &str = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM";

/// A figure that is this much above the baseline fails.
const WORSE: f64 = 1.03;

/// A figure that is this much below it should become the baseline.
const BETTER: f64 = 0.97;

/// The parts of the program that are counted: calls of functions, in their order.
const REGIONS: [&str; 5] =
    ["region_lookups", "region_updates", "region_updates", "region_updates", "region_lookups"];

/// A figure that is found.
#[derive(Debug, Clone, Copy)]
struct Figure {
    name: &'static str,
    /// Place in [`REGIONS`].
    region: usize,
    /// Function that is counted with its callees; `None` counts the whole region.
    function: Option<&'static str>,
    /// Name of the printed number that divides the figure.
    per: &'static str,
}

const fn whole(name: &'static str, region: usize, per: &'static str) -> Figure {
    Figure { name, region, function: None, per }
}

const fn part(
    name: &'static str,
    region: usize,
    per: &'static str,
    function: &'static str,
) -> Figure {
    Figure { name, region, function: Some(function), per }
}

/// All figures; the functions are those that the engine keeps the compiler from dissolving into
/// their callers.
const FIGURES: [Figure; 10] = [
    whole("lookup", 0, "keys"),
    part("filter-probe", 0, "probes", "terrane_lsm::filter::filter::probe_batch"),
    part("index-search", 0, "reads", "terrane_lsm::block::index::Index::search"),
    part("page-check", 0, "reads", "terrane_lsm::block::page::PageLayout::parse"),
    part("page-search", 0, "reads", "terrane_lsm::block::page::PageLayout::search"),
    whole("insert-and-delete", 1, "operations"),
    part("write-buffer-insert", 1, "updates", "terrane_lsm::memtable::memtable::Memtable::put"),
    part(
        "merge-step",
        2,
        "written",
        "terrane_lsm::compaction::compaction::Compaction::merge_entries",
    ),
    part(
        "varied-merge-step",
        3,
        "varied-written",
        "terrane_lsm::compaction::compaction::Compaction::merge_entries",
    ),
    part("ribbon-probe", 4, "ribbon-probes", "terrane_lsm::filter::filter::probe_batch"),
];

/// Instructions by name, in the order of [`FIGURES`] or of the file.
type Counts = Vec<(String, f64)>;

/// Whether to compare or to write the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Compare,
    Write,
}

/// Counts, and compares with the baseline or writes it.
pub(crate) fn run(workspace: &Workspace, mode: Mode) -> Result<(), String> {
    if !is_installed() {
        return Err("counts: there is no valgrind on this machine, install it first".to_owned());
    }
    let compiler = compiler(workspace)?;

    let counts = count(workspace)?;
    let path = workspace.root.join(BASELINE);
    if mode == Mode::Write {
        let text = encode(&compiler, &counts);
        return std::fs::write(&path, text).map_err(|error| format!("{BASELINE}: {error}"));
    }

    let text = std::fs::read_to_string(&path).map_err(|error| format!("{BASELINE}: {error}"))?;
    let (then, baseline) = decode(&text)?;
    if then != compiler {
        println!("counts: the baseline was found with {then}, this is {compiler}");
    }
    let (table, is_good) = compare(&baseline, &counts);
    print!("{table}");

    if is_good {
        return Ok(());
    }
    Err("counts: more instructions than the baseline; if that is worth it, `cargo xtask counts --write`"
        .to_owned())
}

/// Whether figures can be found on this machine.
pub(crate) fn is_installed() -> bool {
    let mut command = Command::new("valgrind");
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The compiler and what it compiles for, as `rustc 1.95.0 (..) for x86_64-unknown-linux-gnu`.
fn compiler(workspace: &Workspace) -> Result<String, String> {
    let Compiler { version, host } = workspace.compiler()?;
    Ok(format!("{version} for {host}"))
}

/// A directory that goes when this is dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left behind is in the way of nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Builds the program as published figures are built, runs it under callgrind, and reads what that
/// wrote.
fn count(workspace: &Workspace) -> Result<Counts, String> {
    let dir = std::env::temp_dir().join(format!("terrane-counts-{}", std::process::id()));
    std::fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    let scratch = Scratch(dir);
    let mut runner =
        ["env", LIBRARY, "valgrind", "-q", "--tool=callgrind"].map(str::to_owned).to_vec();
    runner.push(format!("--callgrind-out-file={}", scratch.0.join("out").display()));
    let plain = ["--compress-strings=no", "--compress-pos=no", "--collect-atstart=no"];
    runner.extend(plain.map(str::to_owned));

    // One pattern: of several names given here one by one, callgrind 3.19 collects in the first
    // only.
    runner.push("--toggle-collect=terrane_counts::region_*".to_owned());
    let functions: BTreeSet<&str> = REGIONS.into_iter().collect();
    runner.extend(functions.iter().map(|name| format!("--dump-after=terrane_counts::{name}")));
    let mut command = workspace.cargo(&["--config"]);
    command.arg(format!("target.\"cfg(all())\".runner={runner:?}"));
    command.args(["run", "-q", "--profile", "bench", "-p", "terrane-counts"]);

    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo run: {error}"))?;
    if !output.status.success() {
        return Err(format!("counts: terrane-counts failed ({})", output.status));
    }

    let part = |at: usize| read(&scratch.0.join(format!("out.{}", at + 1)));
    let regions = REGIONS.iter().enumerate().map(|(at, name)| {
        region(&part(at)?, name).ok_or_else(|| format!("counts: callgrind did not see {name}"))
    });
    let regions = regions.collect::<Result<Vec<_>, String>>()?;
    figures(&regions, &printed(&String::from_utf8_lossy(&output.stdout)))
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Parses the output of the program: lines of `name number`.
fn printed(text: &str) -> BTreeMap<&str, u64> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter_map(|(name, number)| Some((name, number.parse().ok()?))).collect()
}

/// Counts of one region.
#[derive(Debug, Default, PartialEq, Eq)]
struct Region {
    instructions: u64,
    /// By function: instructions in it and in all that it called.
    functions: BTreeMap<String, u64>,
}

/// Reads the part of callgrind's output that was written when `name` returned (its documentation:
/// "Callgrind Format Specification").
///
/// A call is `cfn=function`, `calls=count place`, and a line `place instructions` with what the
/// calls cost, the callee's own calls included; so the sum over all callers is what a function
/// cost, as long as it does not call itself. The counts of calls are of no use: they go on where
/// instructions are not collected.
fn region(profile: &str, name: &str) -> Option<Region> {
    let trigger = format!("desc: Trigger: --dump-after=terrane_counts::{name}");
    let mut lines = profile.lines();
    lines.find(|line| *line == trigger)?;

    let mut region = Region::default();
    let mut callee = "";
    while let Some(line) = lines.next() {
        if let Some(total) = line.strip_prefix("totals: ") {
            region.instructions = total.parse().ok()?;
        } else if let Some(function) = line.strip_prefix("cfn=") {
            callee = function;
        } else if line.starts_with("calls=") {
            let cost: u64 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
            *region.functions.entry(callee.to_owned()).or_default() += cost;
        }
    }

    Some(region)
}

/// The figures. What cost nothing has none: then a function has another name now, or was dissolved.
fn figures(regions: &[Region], printed: &BTreeMap<&str, u64>) -> Result<Counts, String> {
    let find = |figure: &Figure| {
        let region = regions.get(figure.region)?;
        let instructions = match figure.function {
            None => region.instructions,
            Some(function) => *region.functions.get(function)?,
        };
        let per = *printed.get(figure.per)?;
        (per > 0 && instructions > 0).then(|| instructions as f64 / per as f64)
    };

    let figure = |figure: &Figure| match find(figure) {
        Some(count) => Ok((figure.name.to_owned(), count)),
        None => {
            let what = figure.function.unwrap_or(REGIONS[figure.region]);
            Err(format!(
                "counts: nothing was counted for {}; is {what} called otherwise now, or dissolved into its callers?",
                figure.name
            ))
        }
    };

    FIGURES.iter().map(figure).collect()
}

fn encode(compiler: &str, counts: &Counts) -> String {
    let head = "# Instructions per operation; written by `cargo xtask counts --write`.".to_owned();
    let lines = counts.iter().map(|(name, count)| format!("{name} {count:.1}"));
    let lines = [head, compiler.to_owned()].into_iter().chain(lines);
    lines.map(|line| line + "\n").collect()
}

/// The compiler and the figures of a baseline.
fn decode(text: &str) -> Result<(String, Counts), String> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let compiler = lines.next().unwrap_or_default().to_owned();
    let count = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok().filter(|count: &f64| *count > 0.0)?))
    };
    let counts = lines.map(|line| count(line).ok_or(format!("{BASELINE}: no figure: {line}")));
    Ok((compiler, counts.collect::<Result<_, _>>()?))
}

/// A table of both, and whether nothing is worse. A figure without a baseline, or the other way
/// round, is worse.
fn compare(baseline: &Counts, counts: &Counts) -> (String, bool) {
    let mut names: Vec<&String> = baseline.iter().chain(counts).map(|(name, _)| name).collect();
    names.dedup();
    names.sort_by_key(|name| FIGURES.iter().position(|figure| figure.name == **name));
    names.dedup();

    let find = |counts: &Counts, name: &str| {
        counts.iter().find(|(found, _)| found == name).map(|(_, count)| *count)
    };

    let mut table = format!("{:<20} {:>9} {:>9}\n", "instructions of", "baseline", "now");
    let mut is_good = true;
    for name in names {
        let then = find(baseline, name);
        let now = find(counts, name);
        let verdict = match then.zip(now).map(|(then, now)| now / then) {
            None => "only in one of them: WORSE".to_owned(),
            Some(ratio) => {
                let change = format!("{:+.1} %", (ratio - 1.0) * 100.0);
                match ratio {
                    _ if ratio > WORSE => change + " WORSE",
                    _ if ratio < BETTER => change + " better; lower the baseline with --write",
                    _ => change,
                }
            }
        };

        is_good &= !verdict.ends_with("WORSE");
        let shown =
            |count: Option<f64>| count.map_or("-".to_owned(), |count| format!("{count:.1}"));
        let _ = writeln!(table, "{name:<20} {:>9} {:>9} {verdict}", shown(then), shown(now));
    }

    (table, is_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
desc: Trigger: --dump-after=terrane_counts::region_lookups

fl=a.rs
fn=terrane_counts::region_lookups
7 100
cfi=b.rs
cfn=terrane_lsm::index::Index::search
calls=4 207
8 600
9 1
cfn=other
calls=1 1
9 5

fn=other
1 5
cfn=terrane_lsm::index::Index::search
calls=1 207
2 150

totals: 1200
";

    #[test]
    fn what_a_function_costs_is_summed_over_its_callers() {
        let region = region(PROFILE, REGIONS[0]).unwrap();
        assert_eq!(region.instructions, 1200);
        assert_eq!(region.functions["terrane_lsm::index::Index::search"], 750);
        assert_eq!(region.functions["other"], 5);
        assert_eq!(super::region(PROFILE, REGIONS[1]), None);
    }

    #[test]
    fn a_function_that_is_gone_is_an_error_that_names_it() {
        let regions = [region(PROFILE, REGIONS[0]).unwrap()];
        let error = figures(&regions, &printed("keys 10\nprobes 3\n\n")).unwrap_err();
        assert!(error.contains("filter-probe") && error.contains("probe_batch"), "{error}");
    }

    #[test]
    fn a_baseline_is_read_as_it_was_written() {
        let counts = vec![("lookup".to_owned(), 1.5), ("merge-step".to_owned(), 1000.0)];
        let text = encode("rustc 1 for x", &counts);
        assert_eq!(decode(&text), Ok(("rustc 1 for x".to_owned(), counts)));
        for broken in ["c\nlookup\n", "c\nlookup x\n", "c\nlookup 0\n", "c\nlookup NaN\n"] {
            assert!(decode(broken).unwrap_err().contains("lookup"), "{broken}");
        }
    }

    #[test]
    fn what_is_worse_or_has_no_counterpart_fails_and_is_named() {
        let counts = |lookup: f64, merge: f64| {
            vec![("lookup".to_owned(), lookup), ("merge-step".to_owned(), merge)]
        };
        let baseline = counts(1000.0, 100.0);
        let (table, is_good) = compare(&baseline, &counts(1029.0, 96.0));
        assert!(is_good && table.contains("+2.9 %") && table.contains("--write"), "{table}");
        let (table, is_good) = compare(&baseline, &counts(1031.0, 100.0));

        assert!(
            !is_good && table.contains("+3.1 % WORSE") && !table.contains("--write"),
            "{table}"
        );

        for (then, now) in [(&baseline[..1], &baseline[..]), (&baseline[..], &baseline[..1])] {
            let (table, is_good) = compare(&then.to_vec(), &now.to_vec());
            assert!(!is_good && table.contains("merge-step"), "{table}");
        }
    }
}
