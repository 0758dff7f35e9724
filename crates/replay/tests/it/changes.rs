//! Histories drawn at random, replayed whole and in pieces, against a list of maps.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use terrane::kv::Durability;
use terrane::lsm::{StateDigest, StoreOptions, WriteBatch};
use terrane::mpt::CommittedTable;
use terrane::radix::{self, Address, Change, Root, Store};
use terrane::state_dir::{BackEnd, OpenOptions, OpenStore, open_database};
use terrane_replay::changes::{Error, Options, Report, replay, replay_on};
use terrane_replay::engines::btree::Btree;
use terrane_replay::engines::context_tables::ContextTables;
use terrane_replay::engines::engine::Engine;
use terrane_replay::engines::lsm::Lsm;
use terrane_replay::engines::memory::Memory;
use terrane_replay::error::Class;
use terrane_replay::hex;
use terrane_replay::ledger::mpt_ledger::MptLedger;
use terrane_replay::ledger::radix_ledger::RadixLedger;
use terrane_replay::monitor::Silent;
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw as _;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Back-ends of this build that keep their data in files.
fn with_files() -> Vec<BackEnd> {
    BackEnd::ALL.into_iter().filter(|one| one.has_files() && one.is_built()).collect()
}

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
/// and the state at its end. Keys have so many bytes at least.
fn draw(rng: &mut ChaCha8Rng, steps: u64, key_min: usize) -> (Vec<String>, Model) {
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
            let size = key_min + rng.index(3);
            let key = rng.below(32);
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

/// Replay of some inputs on one engine.
type Runner = Box<dyn FnOnce(&[PathBuf], &Options) -> Result<Report, Error>>;

fn on_tables(engine: Box<dyn Engine>) -> Runner {
    Box::new(|paths, options| replay(engine, paths, options, &mut Silent))
}

/// A radix store; afterwards it has as many versions as blocks hold, and nothing besides.
fn on_radix(back_end: BackEnd, dir: &Path) -> Runner {
    let store: OpenStore = if back_end == BackEnd::Memory {
        let database = open_database(back_end, dir, None, None, Durability::None).unwrap();
        Store::open(database, &radix::Options::default()).unwrap().into()
    } else {
        let durability = Durability::None;
        let opening = OpenOptions::default().back_end(back_end).durability(durability);
        opening.open_or_create(dir).unwrap()
    };

    Box::new(move |paths, options| {
        let ledger = RadixLedger::open(store.clone(), options.keep_versions)?;
        let outcome = replay_on(Box::new(ledger), paths, options, &mut Silent);
        let report = store.verify().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        let blocks = store.metadata_entries(b"block ").unwrap();
        let holders = blocks.iter().filter(|(_, value)| value[8] == 1).count();
        assert_eq!(report.versions, holders as u64);
        if let Some(keep) = options.keep_versions {
            assert!(blocks.len() as u64 <= keep);
        }
        store.close().unwrap();
        outcome
    })
}

fn on_mpt(dir: &Path) -> Runner {
    let dir = dir.to_owned();
    Box::new(move |paths, options| {
        let store = MptLedger::open_store(&dir)?;
        let ledger = MptLedger::open(store.clone(), options.keep_versions)?;
        let outcome = replay_on(Box::new(ledger), paths, options, &mut Silent);
        store.close().unwrap();
        outcome
    })
}

/// The root of a model, committed at once.
fn mpt_root(dir: &Path, model: &Model) -> String {
    let store = terrane::lsm::Store::open_dir(dir, &StoreOptions::default().create_dir()).unwrap();
    let table = CommittedTable::open(&store, "state").unwrap();
    let changes = model.iter().map(|(key, value)| (key.clone(), Some(value.clone())));
    let staged = table.stage(&changes.collect::<Vec<_>>(), &mut WriteBatch::new()).unwrap();
    hex::encode(staged.root.as_slice())
}

#[test]
fn a_committed_table_agrees_with_the_model_through_all_rollbacks() {
    let name = "a_committed_table_agrees_with_the_model_through_all_rollbacks";
    for_each_seed(name, by_effort(8, 24), |rng, _| {
        let dir = tempfile::tempdir().unwrap();
        let (lines, state) = draw(rng, 60, 0);
        let engine = on_mpt(&dir.path().join("store"));
        let report = run(engine, dir.path(), &lines, &Options::default()).unwrap();
        assert_eq!((report.digest, report.count), (digest(&state), state.len() as u64));
        assert_eq!(report.roots["mpt"], mpt_root(&dir.path().join("at once"), &state));
    });
}

#[test]
fn a_history_replayed_in_pieces_on_a_committed_table_ends_in_the_same_state() {
    in_pieces(
        "a_history_replayed_in_pieces_on_a_committed_table_ends_in_the_same_state",
        0,
        on_mpt,
    );
}

#[test]
fn a_committed_table_goes_back_as_far_as_blocks_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let lines = [
        "terrane-changes 1",
        "begin 1",
        "put 01 aa",
        "end",
        "begin 2",
        "put 01 bb",
        "put 02 -",
        "end",
        "begin 3",
        "del 01",
        "end",
        "rollback 2",
        "expect count=2",
        "begin 9",
        "del 02",
        "end",
        "rollback 2",
        "expect count=2",
    ];
    let mut lines: Vec<String> = lines.map(str::to_owned).to_vec();
    let options = Options { keep_versions: Some(2), ..Options::default() };
    let report = run(on_mpt(&dir.path().join("a")), dir.path(), &lines, &options).unwrap();
    assert_eq!((report.height, report.count), (Some(2), 2));
    let root = &report.roots["mpt"];
    lines.push(format!("expect root.mpt={root}"));
    lines.push("rollback 1".to_owned());
    let error = run(on_mpt(&dir.path().join("b")), dir.path(), &lines, &options).unwrap_err();
    assert!(error.to_string().contains("the oldest block kept is 2"), "{error}");
    lines.pop();
    lines.push("rollback -".to_owned());
    lines.push("expect count=0".to_owned());
    let report = run(on_mpt(&dir.path().join("c")), dir.path(), &lines, &options).unwrap();
    let empty = "56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421";
    assert_eq!((report.height, report.roots["mpt"].as_str()), (None, empty));
}

fn run(engine: Runner, dir: &Path, lines: &[String], options: &Options) -> Result<Report, Error> {
    let path = dir.join("history");
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    engine(&[path], options)
}

#[test]
fn engines_agree_with_the_model_through_all_rollbacks() {
    for_each_seed(
        "engines_agree_with_the_model_through_all_rollbacks",
        by_effort(8, 24),
        |rng, _| {
            let dir = tempfile::tempdir().unwrap();
            let (lines, state) = draw(rng, 60, 0);
            let engines: [Box<dyn Engine>; 4] = [
                Box::new(Memory),
                Box::new(Lsm::open(&dir.path().join("store")).unwrap()),
                Box::new(Btree::open(&dir.path().join("index")).unwrap()),
                Box::new(ContextTables::open(&dir.path().join("context")).unwrap()),
            ];
            for engine in engines {
                let name = engine.name();
                let report =
                    run(on_tables(engine), dir.path(), &lines, &Options::default()).unwrap();
                assert_eq!(report.digest, digest(&state), "{name}");
                assert_eq!(report.count, state.len() as u64, "{name}");
            }
        },
    );
}

#[test]
fn a_history_replayed_in_pieces_ends_in_the_same_state() {
    in_pieces("a_history_replayed_in_pieces_ends_in_the_same_state", 0, |store| {
        on_tables(Box::new(Lsm::open(store).unwrap()))
    });
}

#[test]
fn a_history_replayed_in_pieces_on_a_btree_ends_in_the_same_state() {
    in_pieces("a_history_replayed_in_pieces_on_a_btree_ends_in_the_same_state", 0, |store| {
        on_tables(Box::new(Btree::open(store).unwrap()))
    });
}

#[test]
fn a_history_replayed_in_pieces_on_a_context_store_ends_in_the_same_state() {
    in_pieces(
        "a_history_replayed_in_pieces_on_a_context_store_ends_in_the_same_state",
        0,
        |store| on_tables(Box::new(ContextTables::open(store).unwrap())),
    );
}

#[test]
fn a_history_replayed_in_pieces_on_radix_stores_ends_in_the_same_state() {
    for back_end in with_files() {
        let name = format!("a_history_replayed_in_pieces_on_radix_stores: {back_end}");
        in_pieces(&name, 1, |store| on_radix(back_end, store));
    }
}

#[test]
fn a_radix_state_agrees_with_the_model_through_all_rollbacks() {
    let name = "a_radix_state_agrees_with_the_model_through_all_rollbacks";
    for_each_seed(name, by_effort(8, 24), |rng, _| {
        let dir = tempfile::tempdir().unwrap();
        let (lines, state) = draw(rng, 60, 1);
        let engine = on_radix(BackEnd::Memory, dir.path());
        let report = run(engine, dir.path(), &lines, &Options::default()).unwrap();
        assert_eq!((report.digest, report.count), (digest(&state), state.len() as u64));
        let root = &report.roots["radix"];
        let mut changes = Vec::new();
        for (key, value) in state {
            changes.push(Change::Set(Address::new(&key).unwrap(), value));
        }
        let database =
            open_database(BackEnd::Memory, dir.path(), None, None, Durability::None).unwrap();
        let tree = Store::open(database, &radix::Options::default()).unwrap();
        let tree = tree.create_tree("at once").unwrap();
        let expected = tree.compute_root(&Root::EMPTY, &changes).unwrap();
        assert_eq!(*root, expected.to_string());
    });
}

#[test]
fn a_radix_state_goes_back_as_far_as_versions_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    // Blocks without a change hold no version of their own, and inherit one; the root of block 1
    // comes back in block 5.
    let mut lines: Vec<String> =
        ["terrane-changes 1", "begin 1", "put 01 aa", "end"].map(str::to_owned).to_vec();
    let mut block = |number: u64, changes: &[&str]| {
        lines.push(format!("begin {number}"));
        lines.extend(changes.iter().map(|&change| change.to_owned()));
        lines.push("end".to_owned());
    };

    block(2, &[]);
    block(3, &["put 01 aa"]);
    block(4, &["put 02 bb"]);
    block(5, &["del 02"]);
    block(6, &[]);
    let options = |keep| Options { keep_versions: Some(keep), ..Options::default() };

    for (keep, target, back) in [(3, "4", true), (3, "3", false), (4, "3", true), (6, "1", true)] {
        let mut lines = lines.clone();
        lines.push(format!("rollback {target}"));
        lines.push(format!("expect count={}", if target == "4" { 2 } else { 1 }));
        lines.push("rollback -".to_owned());
        lines.push("expect count=0".to_owned());
        let outcome =
            run(on_radix(BackEnd::Memory, dir.path()), dir.path(), &lines, &options(keep));
        match outcome {
            Ok(report) => assert!(back && report.height.is_none(), "{keep} {target}"),
            Err(Error::Rollback { source, .. }) => {
                assert!(!back, "{keep} {target}: {source}");
                assert!(source.to_string().contains("the oldest block kept is 4"), "{source}");
            }
            Err(error) => panic!("{keep} {target}: {error}"),
        }
    }
}

#[test]
fn keys_that_are_no_addresses_are_refused_with_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let long = "ab".repeat(36);
    for key in ["-", &long] {
        let lines = ["terrane-changes 1", "begin 1", &format!("put {key} 00"), "end"];
        let lines = lines.map(str::to_owned);
        let engine = on_radix(BackEnd::Memory, dir.path());
        let error = run(engine, dir.path(), &lines, &Options::default()).unwrap_err();
        assert_eq!(error.class(), Class::Input);
        assert!(error.to_string().contains("line 3"), "{error}");
    }
}

#[test]
fn ranges_with_bounds_that_are_no_addresses_hold() {
    let dir = tempfile::tempdir().unwrap();
    let full = "ab".repeat(35);
    let mut model = Model::new();
    model.insert(vec![0xAB; 35], vec![1]);
    let whole = digest(&model);
    let none = digest(&Model::new());
    let lines = [
        "terrane-changes 1".to_owned(),
        "begin 1".to_owned(),
        format!("put {full} 01"),
        "end".to_owned(),
        format!("range - {full}00 n=1 digest={whole}"),
        format!("range {full}00 ! n=0 digest={none}"),
        format!("range {full} ! n=1 digest={whole}"),
    ];

    let engine = on_radix(BackEnd::Memory, dir.path());
    let report = run(engine, dir.path(), &lines, &Options::default()).unwrap();
    assert_eq!(report.checks_passed, 6);
}

fn in_pieces(name: &str, key_min: usize, open: impl Fn(&Path) -> Runner) {
    for_each_seed(name, by_effort(4, 10), |rng, _| {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let (lines, state) = draw(rng, 40, key_min);
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
