//! Every target on its corpus, and on inputs drawn from seeds.
//!
//! Goal: what fuzzing has once reached stays reached, and no input of either kind breaks a promise.
//! Method: the files of `fuzz/corpus/TARGET`, and random bytes, most of them small numbers, which
//! the targets read as choices.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use terrane_fuzz::{Kind, TARGETS, Target};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

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
    for target in TARGETS {
        let cases = match target.kind {
            Kind::Decoder | Kind::Forgery => 1_000,
            Kind::Files | Kind::History => 30,
        };
        for_each_seed("every_target_holds_on_drawn_inputs", cases, |rng, _| {
            println!("target {}", target.name);
            (target.run)(&draw_input(rng, target));
        });
    }
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
