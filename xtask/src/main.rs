//! Checks and chores of the workspace, as `cargo xtask <command>`; the one entry point that both a
//! developer and `.ci/run` use.
//!
//! Depends on no crate of ours and on no other crate either: it must build in a second or two, and
//! must run when the rest does not compile.

#![forbid(unsafe_code)]

mod lexer;

mod workspace;

mod problem;

mod tidy;

mod golden;

mod sim;

mod counts;

mod results;

mod sweeps;

mod package;

mod fuzz;

mod program;

mod mutants;
mod sanitize;
mod schedules;

mod soak;

mod advisories;

mod capi;

mod cassandra;

mod python;

mod go;

mod bindings;

mod ci;

use std::path::Path;
use std::process::ExitCode;

use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask <command>

  ci [--fast] [--tested] [--sampled] [--bindings]
                           format, tidy, lints, tests, whole sweeps, documentation, examples; stops at the
                           first failure. --fast: format, tidy and lints only. --sampled: no whole
                           sweeps. --tested: `cargo test`
                           has just been run, leave it out. --bindings: the tests of Python and of
                           the Go adapters, too
  tidy                     the house rules (docs/style.md) and the ten longest files and functions
  golden [--write]         compare the golden files with the code, or write them anew
  counts [--write]         compare the instructions of the hot paths with bench/counts.txt, or write them anew;
                           needs valgrind
  results [--check]        write the tables of bench/results/README.md, the headlines of README.md and the
                           pages of docs/report anew from bench/results, or compare them, as `cargo test` does
  capi [--write]           compare the headers of bindings/c and c-verify with their sources, or write them anew; build
                           the libraries and run their C tests under AddressSanitizer and valgrind, and the C++ example over an
                           installation, where there are compilers
  capi --install PREFIX    release builds of both libraries, shared and static, headers and pkg-config files
  python                   build the wheel of bindings/python into target/python/venv and run its tests there, where
                           there is Python 3.11
  go                       build the library of bindings/c; gofmt, go vet and go test, also with -race, in the Go
                           modules of bindings, where there is Go
  bindings [--seed N]      one history of 100,000 operations through Rust, C, Python and Go, which must end in the
                           same digests and roots; languages whose tools are missing are left out
  bindings --cost          costs of a call and of a row in Rust, C, Go and Python, in RocksDict and py-lmdb;
                           release builds, needs Go and Python 3.11; about 5 minutes after the builds
  package [--verify]       make the archives of the published crates; --verify: compile each from its archive
  sim [--minutes N] [--seed N] [--jobs N] [--real]
                           random histories of the tables in lock-step with their model, with faults;
                           prints the shortest history that fails. Each seed gives other histories.
                           --jobs: as many at a time. --real: on the real disk, without faults
  sim --replay FILE        the history that a failure has printed
  sim --crash-images N     workloads on stores, with a crash at every call, until N images that all differ have
                           been opened. --seed: other scripts. --jobs: as many at a time (one for each core)
  sim --store-faults N     the same workloads with every kind of fault at every call, N scripts of each
  fuzz [TARGET...] [--seconds N]
                           libFuzzer on the targets of crates/fuzz, or on some, each for N seconds (60);
                           needs a C++ compiler. See fuzz/README.md
  fuzz TARGET --replay FILE
                           one input
  fuzz [TARGET...] --minimise
                           what was found joins the corpus, which keeps what covers as much
  object                   format, lints, documentation and tests of crates/object, a workspace of its own, and of the
                           program with the feature object-store; the first call compiles an HTTP client
  evm                      format, lints and tests of evm, a workspace of its own: a block of Ethereum's main network
                           on a virtual machine; the first call compiles it
  cassandra                format, lints, documentation and tests of crates/cassandra, a workspace of its own; then a
                           cluster of three nodes of Apache Cassandra on 127.0.0.1 to 127.0.0.3, from Maven's
                           artefacts, the tests on it, and its end; needs Java 17 and Maven
  cassandra start [--batch]
                           that cluster alone, which goes on; --batch: nodes sync before they answer
  cassandra stop           its end; its files are removed
  kill [--cycles N]        a process that commits to a store is killed N times (200), and nothing durable may
                           be lost; then the same with processes that write an index, and a context store
  readers [--seconds N]    eight processes read a store for N seconds (60) beside one that writes it; all are
                           killed at random, and each view must be what a commit left; then three processes an
                           index, and a context store, whose writers are killed 100 times
  schedules [--count N]    threads of a store under many schedules of the crate shuttle, N of each kind (200) for each
                           test; the first call compiles the engines anew
  sanitize                 the code with unsafe under AddressSanitizer, threads of the engines under ThreadSanitizer, a
                           part under Miri: each where the nightly toolchain has what it needs
  mutants AREA [--shard K/N]
                           code changed in one place at a time under its tests, or the K-th (from 0) of N parts of
                           the changes: pages, wal, recovery, context-proofs, radix-proofs, mpt-proofs; adds what
                           survives to bench/results/mutants.txt; needs cargo-mutants
  soak --hours H [--report FILE] [--seed N]
                           all random searches, each for a share of the time, with draws that no run before
                           had: fuzzing, sweeps, histories, crash images, kills; adds its counts to FILE
                           (bench/results/soak.txt) after each step, and ends at the first failure
  soak --minutes M ..      the same with what `cargo test` has built, and without a report unless asked
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage) => {
            eprint!("{USAGE}");
            ExitCode::from(2)
        }
        Err(Failure::Check(message)) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

enum Failure {
    /// The command line means nothing.
    Usage,
    /// A check failed or could not be made.
    Check(String),
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Check(message)
    }
}

fn run(words: &[&str]) -> Result<(), Failure> {
    let (command, options) = words.split_first().ok_or(Failure::Usage)?;
    let workspace = Workspace::find()?;
    match (*command, options) {
        ("tidy", []) => Ok(tidy::run(&workspace)?),
        ("golden", []) => Ok(golden::run(&workspace, golden::Mode::Compare)?),
        ("golden", ["--write"]) => Ok(golden::run(&workspace, golden::Mode::Write)?),
        ("counts", []) => Ok(counts::run(&workspace, counts::Mode::Compare)?),
        ("counts", ["--write"]) => Ok(counts::run(&workspace, counts::Mode::Write)?),
        ("results", []) => Ok(results::run(&workspace, results::Mode::Write)?),
        ("results", ["--check"]) => Ok(results::run(&workspace, results::Mode::Check)?),
        ("capi", []) => Ok(capi::run(&workspace, capi::Mode::Compare)?),
        ("capi", ["--write"]) => Ok(capi::run(&workspace, capi::Mode::Write)?),
        ("capi", ["--install", prefix]) => {
            Ok(capi::install(&workspace, Path::new(prefix), capi::Profile::Release)?)
        }
        ("python", []) => Ok(python::run(&workspace)?),
        ("go", []) => Ok(go::run(&workspace, go::Scope::All)?),
        ("bindings", []) => Ok(bindings::run(&workspace, 1)?),
        ("bindings", ["--seed", seed]) => {
            Ok(bindings::run(&workspace, seed.parse().map_err(|_| Failure::Usage)?)?)
        }
        ("bindings", ["--cost"]) => Ok(bindings::costs(&workspace)?),
        ("package", []) => Ok(package::run(&workspace, package::Mode::List)?),
        ("package", ["--verify"]) => Ok(package::run(&workspace, package::Mode::Verify)?),
        ("sim", options) => {
            let options = sim::Options::parse(options).ok_or(Failure::Usage)?;
            Ok(sim::run(&workspace, &options)?)
        }
        ("fuzz", options) => {
            let options = fuzz::Options::parse(options).ok_or(Failure::Usage)?;
            Ok(fuzz::run(&workspace, &options)?)
        }
        ("object", []) => Ok(ci::object(&workspace)?),
        ("evm", []) => Ok(ci::evm(&workspace)?),
        ("cassandra", options) => {
            let mode = match options {
                [] => cassandra::Mode::Test,
                ["start"] => cassandra::Mode::Start(cassandra::CommitLog::Periodic),
                ["start", "--batch"] => cassandra::Mode::Start(cassandra::CommitLog::Batch),
                ["stop"] => cassandra::Mode::Stop,
                _ => return Err(Failure::Usage),
            };
            Ok(cassandra::run(&workspace, mode)?)
        }
        ("schedules", []) => Ok(schedules::run(&workspace, 200)?),
        ("schedules", ["--count", count]) => {
            let count = count.parse().map_err(|_| Failure::Usage)?;
            Ok(schedules::run(&workspace, count)?)
        }
        ("sanitize", []) => Ok(sanitize::run(&workspace)?),
        ("mutants", options) => {
            let options = mutants::Options::parse(options).ok_or(Failure::Usage)?;
            Ok(mutants::run(&workspace, &options)?)
        }
        ("kill", []) => Ok(sim::kill(&workspace, 200)?),
        ("kill", ["--cycles", cycles]) => {
            let cycles = cycles.parse().map_err(|_| Failure::Usage)?;
            Ok(sim::kill(&workspace, cycles)?)
        }
        ("readers", []) => Ok(sim::readers(&workspace, 60)?),
        ("readers", ["--seconds", seconds]) => {
            let seconds = seconds.parse().map_err(|_| Failure::Usage)?;
            Ok(sim::readers(&workspace, seconds)?)
        }
        ("soak", options) => {
            let options = soak::Options::parse(options).ok_or(Failure::Usage)?;
            Ok(soak::run(&workspace, &options)?)
        }
        ("ci", options)
            if options.iter().all(|option| {
                ["--fast", "--tested", "--sampled", "--bindings"].contains(option)
            }) =>
        {
            let scope = ci::Scope {
                fast: options.contains(&"--fast"),
                tested: options.contains(&"--tested"),
                sampled: options.contains(&"--sampled"),
                bindings: if options.contains(&"--bindings") {
                    ci::Bindings::All
                } else {
                    ci::Bindings::C
                },
            };
            Ok(ci::run(&workspace, scope)?)
        }
        _ => Err(Failure::Usage),
    }
}
