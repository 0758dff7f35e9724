//! Several threads on several tables of one store, compared with a model.
//!
//! Goal: whatever threads do side by side, the store is what its commits make of it in the order
//! of their numbers: now, for readers of several tables at any moment, after closing, and after the
//! death of the process.
//!
//! Method: threads draw commits of one to three tables, with ranges deleted, beside checkpoints,
//! compactions, views and tables that come and go. Each thread keeps what it committed under which
//! number. At the end all of it is applied to a model in that order. Segments and memtables are
//! small, so that all kinds of slow work happen all the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use terrane_io::{Disk, SimDisk, Survival};
use terrane_lsm::{CheckpointThread, Durability, MergeOperator, NamedTable, Store, Update};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::store_script::{Batch, Content, batch, config, content, name, options};

const TABLES: [&str; 4] = ["a", "b", "c", "d"];

/// A commit: its number, and the batches by table.
type Committed = (u64, Vec<(usize, Batch)>);

type Updates<'a> = Vec<(&'a [u8], Update<'a>)>;

/// Tables that every commit writes the same to, so that readers can compare these.
const PAIR: [usize; 2] = [0, 1];

fn open(disk: &Arc<SimDisk>) -> Store {
    let options = options(Durability::Buffered).checkpoint_thread(CheckpointThread::Background);
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    Store::open(disk, std::path::Path::new("/store"), &options).unwrap()
}

/// Commits until the number of steps is reached.
fn commit_on(store: &Store, tables: &[NamedTable], seed: u64) -> Vec<Committed> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut committed = Vec::new();
    for step in 0..150_u64 {
        let mut parts: BTreeMap<usize, Batch> = BTreeMap::new();
        for _ in 0..=rng.index(3) {
            parts.insert(rng.index(TABLES.len()), batch(&mut rng, 1 + step as usize % 5));
        }
        // The tables of the pair always go together.
        if PAIR.iter().any(|at| parts.contains_key(at)) {
            let same = batch(&mut rng, 2);
            for at in PAIR {
                parts.insert(at, same.clone());
            }
        }

        let updates: Vec<(usize, Updates<'_>)> = parts
            .iter()
            .map(|(at, batch)| {
                (*at, batch.iter().map(|(key, change)| (&key[..], change.update())).collect())
            })
            .collect();
        let mut given: Vec<_> =
            updates.iter().map(|(at, updates)| (&tables[*at], updates.as_slice())).collect();
        // Whatever order the caller names the tables in.
        if rng.chance(1, 2) {
            given.reverse();
        }
        let durability = *rng.pick(&[Durability::Buffered, Durability::Buffered, Durability::Each]);
        let ticket = store.commit_with(&given, durability).unwrap();
        committed.push((ticket.commit(), parts.into_iter().collect()));

        if rng.chance(1, 40) {
            store.checkpoint().unwrap();
        }
    }
    committed
}

/// The state after all commits.
fn model(committed: &[Vec<Committed>]) -> Vec<Content> {
    let mut all: Vec<&Committed> = committed.iter().flatten().collect();
    all.sort_by_key(|(number, _)| *number);
    assert!(all.windows(2).all(|pair| pair[0].0 < pair[1].0), "a number is of one commit");

    let mut tables = vec![Content::new(); TABLES.len()];
    for (_, parts) in all {
        for (at, batch) in parts {
            for (key, change) in batch {
                change.apply(&mut tables[*at], key);
            }
        }
    }
    tables
}

fn found(store: &Store) -> Vec<Content> {
    let table = |table: &&str| content(&store.table(&name(table)).unwrap()).unwrap();
    TABLES.iter().map(table).collect()
}

#[test]
fn threads_that_commit_side_by_side_make_one_history() {
    for_each_seed("store_model", 3, |_, seed| {
        let disk = SimDisk::new(seed);
        let store = open(&disk);
        let appending = config().merge_operator(MergeOperator::concatenate());
        let tables: Vec<NamedTable> = TABLES
            .iter()
            .map(|table| store.create_table(&name(table), &appending).unwrap())
            .collect();

        let is_over = AtomicBool::new(false);
        let committed = thread::scope(|scope| {
            let (store, tables, is_over) = (&store, &tables, &is_over);
            let writers: Vec<_> = (0..3_u64)
                .map(|thread| scope.spawn(move || commit_on(store, tables, seed ^ thread)))
                .collect();

            // Tables of one commit are seen as one commit left them.
            scope.spawn(move || {
                let [left, right] = PAIR.map(|at| &tables[at]);
                while !is_over.load(Ordering::Acquire) {
                    let views = store.views(&[right, left]).unwrap();
                    let rows = |at: usize| {
                        let mut cursor = views[at].cursor().unwrap();
                        cursor
                            .next_many(usize::MAX)
                            .unwrap()
                            .into_iter()
                            .map(|row| row.key)
                            .collect()
                    };
                    let (right, left): (Vec<_>, Vec<_>) = (rows(0), rows(1));
                    assert_eq!(left, right);
                }
            });

            // Tables come and go, and what is there is compacted.
            scope.spawn(move || {
                let mut round = 0_u64;
                while !is_over.load(Ordering::Acquire) {
                    let table = store.create_table(&name("brief"), &config()).unwrap();
                    drop(table.insert(&round.to_le_bytes(), b"gone soon").unwrap());
                    store.compact(&mut |_, _| {}).unwrap();
                    store.drop_table(&name("brief")).unwrap();
                    round += 1;
                }
            });

            let joined: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            is_over.store(true, Ordering::Release);
            joined.into_iter().map(Result::unwrap).collect::<Vec<_>>()
        });

        let expected = model(&committed);
        assert_eq!(found(&store), expected);
        store.sync().unwrap();

        for image in [disk.after_crash(Survival::Nothing), disk.process_kill()] {
            let store = open(&image);
            assert_eq!(found(&store), expected);
            store.close().unwrap();
        }
        store.close().unwrap();
        drop((store, tables));
        let store = open(&disk);
        assert_eq!(found(&store), expected);
        store.close().unwrap();
    });
}
