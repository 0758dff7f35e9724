//! Histories drawn at random, replayed whole and in pieces, against a list of maps.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use terrane_bench::digest::StateDigest;
use terrane_bench::engine::Engine;
use terrane_bench::engines::lsm::Lsm;
use terrane_bench::engines::memory::Memory;
use terrane_bench::hex;
use terrane_bench::replay::changes::{Error, Options, Report, replay};
use terrane_bench::replay::monitor::Silent;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// SplitMix64: the next number of a seed's stream.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn digest(model: &Model) -> String {
    let mut digest = StateDigest::default();
    for (key, value) in model {
        digest.add(key, value);
    }
    hex::encode(&digest.finish())
}

fn spell(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".to_owned() } else { hex::encode(bytes) }
}

/// Draws a history of about `steps` blocks and rollbacks, with checks after each; returns its lines
/// and the state at its end.
fn draw(seed: u64, steps: u64) -> (Vec<String>, Model) {
    let mut random = seed;
    let mut states: Vec<(u64, Model)> = Vec::new();
    let mut lines = vec!["terrane-changes 1".to_owned()];
    for _ in 0..steps {
        let choice = next(&mut random);
        if choice.is_multiple_of(7) && !states.is_empty() {
            let kept = usize::try_from(choice >> 8).unwrap() % (states.len() + 1);
            states.truncate(kept);
            let target =
                states.last().map_or_else(|| "-".to_owned(), |(block, _)| block.to_string());
            let state = states.last().map(|(_, model)| model.clone()).unwrap_or_default();
            lines.push(format!("rollback {target}"));
            lines.push(format!("expect digest={} count={}", digest(&state), state.len()));
            continue;
        }
        let before = states.last().map(|(_, model)| model.clone()).unwrap_or_default();
        let block = states.last().map_or(choice % 4, |(block, _)| block + 1 + choice % 3);
        let mut state = before.clone();
        lines.push(format!("begin {block}"));
        for _ in 0..choice % 12 {
            let (what, key) = (next(&mut random), next(&mut random) % 32);
            let key = key.to_le_bytes()[..usize::try_from(key % 3).unwrap()].to_vec();
            match what % 4 {
                0 | 1 => {
                    let value = vec![0xab; usize::try_from(what % 9).unwrap()];
                    lines.push(format!("put {} {}", spell(&key), spell(&value)));
                    state.insert(key, value);
                }
                2 if state.remove(&key).is_some() => lines.push(format!("del {}", spell(&key))),
                _ => {
                    let value =
                        before.get(&key).map_or_else(|| "!".to_owned(), |value| spell(value));
                    lines.push(format!("get {} {value}", spell(&key)));
                }
            }
        }
        let mut end = "end".to_owned();
        if choice.is_multiple_of(2) {
            write!(end, " count={} digest={}", state.len(), digest(&state)).unwrap();
        }
        lines.push(end);
        states.push((block, state));
    }
    (lines, states.pop().map(|(_, model)| model).unwrap_or_default())
}

fn run(
    engine: Box<dyn Engine>,
    dir: &Path,
    lines: &[String],
    options: &Options,
) -> Result<Report, Error> {
    let path = dir.join("history");
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    replay(engine, &[path], options, &mut Silent)
}

#[test]
fn engines_agree_with_the_model_through_all_rollbacks() {
    for seed in 0..24 {
        let dir = tempfile::tempdir().unwrap();
        let (lines, state) = draw(seed, 60);
        let engines: [Box<dyn Engine>; 2] =
            [Box::new(Memory), Box::new(Lsm::open(&dir.path().join("store")).unwrap())];
        for engine in engines {
            let context = format!("seed {seed:#x} on {}", engine.name());
            let report = run(engine, dir.path(), &lines, &Options::default());
            let report = report.unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(report.digest, digest(&state), "{context}");
            assert_eq!(report.count, state.len() as u64, "{context}");
        }
    }
}

#[test]
fn a_history_replayed_in_pieces_ends_in_the_same_state() {
    for seed in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let (lines, state) = draw(seed, 40);
        let mut random = !seed;
        let mut length = 1;
        loop {
            length += usize::try_from(next(&mut random) % 60).unwrap();
            let part = &lines[..length.min(lines.len())];
            let options = Options {
                resume: true,
                checkpoint_every: 1 + next(&mut random) % 5,
                ..Options::default()
            };
            let outcome = run(Box::new(Lsm::open(&store).unwrap()), dir.path(), part, &options);
            let context = format!("seed {seed:#x}, {} of {} lines", part.len(), lines.len());
            match outcome {
                Ok(report) if part.len() == lines.len() => {
                    assert_eq!(report.digest, digest(&state), "{context}");
                    break;
                }
                // Cut between blocks, or inside one.
                Ok(_) | Err(Error::Truncated { .. }) => {}
                Err(error) => panic!("{context}: {error}"),
            }
        }
    }
}
