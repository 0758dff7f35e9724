//! SIGKILL of a real process that commits to a real store, repeated.
//!
//! Goal: no acknowledged commit is lost, the store holds a prefix of the commits, and the next
//! process continues from there.
//!
//! Method: the test starts itself as the committing process, which prints each durable commit, and
//! kills it after a number of lines drawn from the seed. Commit n follows from n alone, so the
//! number of the last commit determines the content of a store. `cargo xtask kill` runs this for
//! long.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;

use terrane_lsm::{
    CheckpointThread, CompactionThread, Durability, NamedTable, StateDigest, Store, StoreOptions,
    TableConfig, TableName, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::process::{Child, kill_cycles, say};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::script::updates;

/// Names the store in the process that is killed.
const CHILD_DIR: &str = "TERRANE_KILL_DIR";

const TEST: &str = "kill::nothing_durable_is_lost_when_the_process_is_killed";

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(dir: &Path) -> Store {
    let options = StoreOptions::default().create_dir().log_bytes_max(1 << 20);
    Store::open_dir(dir, &options.checkpoint_thread(CheckpointThread::Background)).unwrap()
}

/// The tables `main` and `undo`.
fn tables(store: &Store) -> [NamedTable; 2] {
    let config = TableConfig::default()
        .write_buffer(WriteBuffer::Entries(500))
        .compaction_thread(CompactionThread::Background);
    ["main", "undo"].map(|name| {
        let name = TableName::new(name).unwrap();
        store.table(&name).or_else(|_| store.create_table(&name, &config)).unwrap()
    })
}

/// Updates of `main` in commit `number`. The commit also adds its number to `undo`.
fn batch(number: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let rng = &mut ChaCha8Rng::seed_from_u64(number);
    let len = 1 + rng.index(40);
    (0..len)
        .map(|_| {
            let key = rng.below(20_000).to_le_bytes().to_vec();
            let value_len = rng.index(200);
            (key, (!rng.chance(1, 4)).then(|| rng.bytes(value_len)))
        })
        .collect()
}

fn commit(store: &Store, [main, undo]: &[NamedTable; 2], number: u64, durability: Durability) {
    let batch = batch(number);
    let updates = updates(&batch);
    let key = number.to_le_bytes();
    let note = [(&key[..], Update::Insert(b"undo"))];
    let ticket = store.commit_with(&[(main, &updates[..]), (undo, &note[..])], durability).unwrap();
    assert_eq!(ticket.commit(), number);
}

/// Commits until it is killed.
fn child(dir: &Path) {
    let store = open(dir);
    let tables = tables(&store);
    for number in store.last_commit() + 1.. {
        let durability = if number % 5 == 0 { Durability::Each } else { Durability::Group };
        commit(&store, &tables, number, durability);
        if durability == Durability::Each {
            say(&format!("durable: {number}"));
        }
    }
}

fn digest<'a>(entries: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> [u8; 32] {
    let mut digest = StateDigest::default();
    entries.for_each(|(key, value)| digest.add(key, value, None));
    digest.finish()
}

/// Compares a store with what its commits should have left.
fn check(dir: &Path, durable: u64, content: &mut Content, known: &mut u64) {
    let store = open(dir);
    let [main, undo] = tables(&store);
    let last = store.last_commit();
    assert!(last >= durable, "commit {durable} was durable, and the last one is {last}");
    assert!(last >= *known, "commit {known} was there before, and the last one is {last}");

    for number in *known + 1..=last {
        for (key, value) in batch(number) {
            match value {
                Some(value) => drop(content.insert(key, value)),
                None => drop(content.remove(&key)),
            }
        }
    }

    *known = last;

    let mut digest_of_store = StateDigest::default();
    let mut cursor = main.cursor().unwrap();
    while let Some(record) = cursor.next_ref().unwrap() {
        digest_of_store.add(record.key, record.value, None);
    }
    let expected = digest(content.iter().map(|(key, value)| (key.as_slice(), value.as_slice())));
    assert_eq!(digest_of_store.finish(), expected, "after commit {last}");
    assert_eq!(undo.view().unwrap().count_exact().unwrap(), last);
    store.close().unwrap();
}

#[test]
fn nothing_durable_is_lost_when_the_process_is_killed() {
    if let Ok(dir) = env::var(CHILD_DIR) {
        child(Path::new(&dir));
        return;
    }

    let cycles = kill_cycles(3);
    for_each_seed("kill", 1, |rng, _| {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("store");
        let mut content = Content::new();
        let mut known = 0;
        for cycle in 0..cycles {
            let mut child = Child::start(TEST, [(CHILD_DIR, dir.as_ref())]);
            let mut durable = known;
            for _ in 0..=rng.index(60) {
                let line = child.line(&["durable:"]);
                durable = line.expect("the process commits until it is killed").1[0];
            }
            child.kill();
            // What it had said before it died counts, too.
            while let Some((_, numbers)) = child.line(&["durable:"]) {
                durable = numbers[0];
            }
            check(&dir, durable, &mut content, &mut known);
            if cycles > 10 && (cycle + 1) % 10 == 0 {
                eprintln!("{} of {cycles} kills, {known} commits", cycle + 1);
            }
        }
    });
}
