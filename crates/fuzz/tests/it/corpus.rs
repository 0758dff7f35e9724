//! Every target on its corpus, and on inputs drawn from seeds.
//!
//! Goal: what fuzzing has once reached stays reached, and no input of either kind breaks a promise.
//! Method: the files of `fuzz/corpus/TARGET`, and random bytes, most of them small numbers, which
//! the targets read as choices.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use terrane_fuzz::{Kind, TARGETS, Target};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Note;
use terrane_testkit::tally;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

#[test]
fn every_target_has_a_corpus_and_holds_on_it() {
    let folders: BTreeSet<_> = fs::read_dir(corpus())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let names: BTreeSet<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(folders, names);

    for target in TARGETS {
        let mut files: Vec<_> = fs::read_dir(corpus().join(target.name))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "the corpus of {} is empty", target.name);
        for file in files {
            println!("{}", file.display());
            (target.run)(&fs::read(&file).unwrap());
        }
    }
}

#[test]
fn every_target_holds_on_drawn_inputs() {
    // Names the time of a long run, in milliseconds for all targets; set by `cargo xtask soak`.
    let millis = env::var("TERRANE_FUZZ_MILLIS").ok();
    let time = millis.map(|text| Duration::from_millis(text.parse().expect("milliseconds")));
    // Names the one target that runs; without it all do.
    let only = env::var("TERRANE_FUZZ_TARGET").ok();
    let named = |target: &&Target| only.as_ref().is_none_or(|name| name == target.name);
    let targets: Vec<_> = TARGETS.iter().filter(named).collect();
    assert!(!targets.is_empty(), "no target of fuzzing has the name {only:?}");
    let shares: u32 = targets.iter().map(|target| share(target.kind)).sum();

    for target in targets {
        let cases = match target.kind {
            Kind::Decoder | Kind::Forgery => 1_000,
            Kind::Files | Kind::History => 30,
        };
        for_each_seed("every_target_holds_on_drawn_inputs", cases, |rng, _| {
            println!("target {}", target.name);
            (target.run)(&draw_input(rng, target));
        });
        if let Some(time) = time {
            run_for(time * share(target.kind) / shares, target);
        }
    }
}

/// Share of the time of a long run. An execution on a store takes a thousand times as long as one
/// of a decoder.
fn share(kind: Kind) -> u32 {
    match kind {
        Kind::Decoder | Kind::Forgery => 1,
        Kind::Files | Kind::History => 10,
    }
}

/// Set in the process that has little memory.
const LIMITED: &str = "TERRANE_FUZZ_LIMITED";

/// Address space of that process, in KiB.
const MEMORY_KIB: u64 = 640 << 10;

/// A length in the bytes is no reason to ask for memory: where that runs out, the process ends.
#[test]
fn no_target_asks_for_memory_that_its_bytes_do_not_need() {
    let test = "corpus::no_target_asks_for_memory_that_its_bytes_do_not_need";
    if env::var_os(LIMITED).is_none() {
        let limited = format!("ulimit -v {MEMORY_KIB} && exec \"$0\" --exact {test} --nocapture");
        let program = env::current_exe().unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", &limited]).arg(program).env(LIMITED, "1");
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }

    for target in TARGETS {
        let cases = if target.kind == Kind::Decoder { 2_000 } else { 20 };
        for_each_seed(target.name, cases, |rng, _| {
            let mut input = draw_input(rng, target);
            // Numbers at the upper edge of their range.
            for _ in 0..rng.index(3) {
                let at = rng.index(input.len() + 1);
                input.splice(at..at, [0xff; 8]);
            }
            eprintln!("target {} on {input:?}", target.name);
            (target.run)(&input);
        });
    }
}

/// Runs a target until `time` has passed. Each input has a seed of its own, which is printed if the
/// target panics.
fn run_for(time: Duration, target: &Target) {
    let begun = Instant::now();
    let mut executions = 0;
    for_each_seed(target.name, 1, |_, first| {
        while begun.elapsed() < time {
            let seed = first.wrapping_add(executions);
            let input = draw_input(&mut ChaCha8Rng::seed_from_u64(seed), target);
            let _note = Note(&(target.name, "on the input", &input));
            (target.run)(&input);
            executions += 1;
        }
    });
    tally::add(&format!("executions of {}", target.name), executions);
}

/// Random bytes; those of histories are long.
fn draw_input(rng: &mut impl Draw, target: &Target) -> Vec<u8> {
    let len = if target.kind == Kind::History { 300 } else { rng.index(60) };
    let mut bytes = rng.bytes(len);
    if rng.chance(1, 2) {
        for byte in &mut bytes {
            *byte &= 15;
        }
    }
    bytes
}
