//! Histories drawn at random, replayed whole and in pieces, against a list of maps.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use terrane::StateDigest;
use terrane_bench::engine::Engine;
use terrane_bench::engines::btree::Btree;
use terrane_bench::engines::context_tables::ContextTables;
use terrane_bench::engines::lsm::Lsm;
use terrane_bench::engines::memory::Memory;
use terrane_bench::hex;
use terrane_bench::monitor::Silent;
use terrane_bench::replay::changes::{Error, Options, Report, replay};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw as _;
use terrane_testkit::seeds::for_each_seed;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn digest(model: &Model) -> String {
    let mut digest = StateDigest::default();
    for (key, value) in model {
        digest.add(key, value, None);
    }
    hex::encode(&digest.finish())
}

fn spell(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".to_owned() } else { hex::encode(bytes) }
}

/// Draws a history of about `steps` blocks and rollbacks, with checks after each; returns its lines
/// and the state at its end.
fn draw(rng: &mut ChaCha8Rng, steps: u64) -> (Vec<String>, Model) {
    let mut states: Vec<(u64, Model)> = Vec::new();
    let mut lines = vec!["terrane-changes 1".to_owned()];
    for _ in 0..steps {
        if rng.chance(1, 7) && !states.is_empty() {
            let kept = rng.index(states.len() + 1);
            states.truncate(kept);
            let target =
                states.last().map_or_else(|| "-".to_owned(), |(block, _)| block.to_string());
            let state = states.last().map(|(_, model)| model.clone()).unwrap_or_default();
            lines.push(format!("rollback {target}"));
            lines.push(format!("expect digest={} count={}", digest(&state), state.len()));
            continue;
        }
        let before = states.last().map(|(_, model)| model.clone()).unwrap_or_default();
        let block = states.last().map_or(rng.below(4), |(block, _)| block + 1 + rng.below(3));
        let mut state = before.clone();
        lines.push(format!("begin {block}"));
        for _ in 0..rng.below(12) {
            let (size, key) = (rng.index(3), rng.below(32));
            let key = key.to_le_bytes()[..size].to_vec();
            match rng.below(4) {
                0 | 1 => {
                    let size = rng.index(9);
                    let value = rng.bytes(size);
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
        if rng.chance(1, 2) {
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
    for_each_seed("engines_agree_with_the_model_through_all_rollbacks", 24, |rng, _| {
        let dir = tempfile::tempdir().unwrap();
        let (lines, state) = draw(rng, 60);
        let engines: [Box<dyn Engine>; 4] = [
            Box::new(Memory),
            Box::new(Lsm::open(&dir.path().join("store")).unwrap()),
            Box::new(Btree::open(&dir.path().join("index")).unwrap()),
            Box::new(ContextTables::open(&dir.path().join("context")).unwrap()),
        ];
        for engine in engines {
            let name = engine.name();
            let report = run(engine, dir.path(), &lines, &Options::default()).unwrap();
            assert_eq!(report.digest, digest(&state), "{name}");
            assert_eq!(report.count, state.len() as u64, "{name}");
        }
    });
}

#[test]
fn a_history_replayed_in_pieces_ends_in_the_same_state() {
    in_pieces("a_history_replayed_in_pieces_ends_in_the_same_state", |store| {
        Box::new(Lsm::open(store).unwrap())
    });
}

#[test]
fn a_history_replayed_in_pieces_on_a_btree_ends_in_the_same_state() {
    in_pieces("a_history_replayed_in_pieces_on_a_btree_ends_in_the_same_state", |store| {
        Box::new(Btree::open(store).unwrap())
    });
}

#[test]
fn a_history_replayed_in_pieces_on_a_context_store_ends_in_the_same_state() {
    in_pieces("a_history_replayed_in_pieces_on_a_context_store_ends_in_the_same_state", |store| {
        Box::new(ContextTables::open(store).unwrap())
    });
}

fn in_pieces(name: &str, open: impl Fn(&Path) -> Box<dyn Engine>) {
    for_each_seed(name, 10, |rng, _| {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let (lines, state) = draw(rng, 40);
        let mut length = 1;
        loop {
            length = (length + rng.index(60)).min(lines.len());
            let checkpoint_every = 1 + rng.below(5);
            let options = Options { resume: true, checkpoint_every, ..Options::default() };
            match run(open(&store), dir.path(), &lines[..length], &options) {
                Ok(report) if length == lines.len() => {
                    assert_eq!(report.digest, digest(&state));
                    break;
                }
                // Cut between blocks, or inside one.
                Ok(_) | Err(Error::Truncated { .. }) => {}
                Err(error) => panic!("the first {length} of {} lines: {error}", lines.len()),
            }
        }
    });
}
