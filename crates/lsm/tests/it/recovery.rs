//! Recovery of a store whose WAL is long compared with its memtables.
//!
//! Goal: opening applies the WAL in memory, without the compactions that fall due, and so takes
//! time in proportion to the WAL; readers see no difference; and later updates bring the table back
//! to its shape in shares, none of them doing the whole backlog at once.
//!
//! Method: a table with a small write buffer in lock-step with a map, killed with many fillings of
//! that buffer in the log, opened on a disk that counts, on the real and the simulated disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrane_io::{CountedDisk, Disk};
use terrane_lsm::{
    Durability, MergeOperator, NamedTable, SessionOptions, Store, StoreOptions, TableConfig,
    TableName, Update,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::{SALT, SessionDir, buffer_of, content, key, value};

/// Entries of the write buffer.
const BUFFER: u64 = 100;

/// Keys of the table.
const KEYS: u64 = 4_000;

/// Updates in the log: thirty fillings.
const LOGGED: usize = 3_000;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(place: &SessionDir, disk: Arc<dyn Disk>) -> Store {
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Buffered);
    Store::open(disk, &place.dir(), &options).unwrap()
}

fn config() -> TableConfig {
    buffer_of(BUFFER).merge_operator(MergeOperator::concatenate())
}

fn main_of(store: &Store) -> NamedTable {
    store.table(&TableName::default()).unwrap()
}

/// A batch of `len` updates of all kinds, also applied to the model.
fn commit(table: &NamedTable, model: &mut Model, rng: &mut ChaCha8Rng, len: usize) {
    let drawn: Vec<_> = (0..len)
        .map(|_| (key(rng.below(KEYS)), rng.below(10), value(rng.below(1 << 40), 40)))
        .collect();

    let mut batch = Vec::new();
    for (key, kind, value) in &drawn {
        batch.push(match kind {
            0 | 1 => {
                model.remove(&key[..]);
                (key, Update::Delete)
            }
            2 => {
                model.entry(key.to_vec()).or_default().extend_from_slice(value);
                (key, Update::Upsert(value))
            }
            3 => {
                model.insert(key.to_vec(), value.clone());
                (key, Update::InsertWithBlob(value, b"blob"))
            }
            _ => {
                model.insert(key.to_vec(), value.clone());
                (key, Update::Insert(value))
            }
        });
    }

    drop(table.write_batch(&batch).unwrap());
}

/// A store of several levels with merges under way, whose process has died with a long log.
fn killed(mut place: SessionDir, rng: &mut ChaCha8Rng) -> (SessionDir, Model) {
    let mut model = Model::new();
    let store = open(&place, place.disk());

    let table = store.create_table(&TableName::default(), &config()).unwrap();
    // Every merge has more than a quarter of its time left: none is finished by opening.
    for _ in 0..236 {
        commit(&table, &mut model, rng, 51);
    }
    store.checkpoint().unwrap();
    assert!(table.stats().unwrap().levels.len() >= 3);

    for _ in 0..LOGGED / 10 {
        commit(&table, &mut model, rng, 10);
    }
    drop((table, store));
    place.kill();
    (place, model)
}

fn sorted(model: &Model) -> Vec<(Vec<u8>, Vec<u8>)> {
    model.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[test]
fn a_long_log_is_applied_without_a_merge_and_later_updates_bring_the_table_into_shape() {
    for_each_seed("recovery_in_memory", 1, |rng, seed| {
        for place in [SessionDir::simulated(seed), SessionDir::real()] {
            let (place, mut model) = killed(place, rng);
            let counted = CountedDisk::new(place.disk());
            let store = open(&place, Arc::clone(&counted) as Arc<dyn Disk>);
            let written = counted.counts().write_bytes;
            assert!(written < 1_000, "{written} bytes written by opening");
            let table = main_of(&store);
            let stats = table.stats().unwrap();
            assert!(stats.buffer_entries > 10 * BUFFER, "{} in memory", stats.buffer_entries);
            assert_eq!(content(&table.view().unwrap()), sorted(&model));

            // The first commit writes out what is in memory.
            commit(&table, &mut model, rng, 1);
            let mut most = 0;
            for at in 1..20 * BUFFER {
                let debt = table.stats().unwrap().merge_debt_pages;
                commit(&table, &mut model, rng, 1);
                let stats = table.stats().unwrap();
                most = most.max(debt.saturating_sub(stats.merge_debt_pages));
                if at == 2 * BUFFER {
                    assert!(stats.buffer_entries <= 2 * BUFFER, "{}", stats.buffer_entries);
                }
            }
            // Less than the flush alone.
            assert!(most <= 50, "{most} pages of work in one update");
            for level in &table.stats().unwrap().levels {
                assert!(level.runs <= 8, "{level:?}");
            }
            assert_eq!(content(&table.view().unwrap()), sorted(&model));
            store.close().unwrap();
            let store = open(&place, place.disk());
            assert_eq!(content(&main_of(&store).view().unwrap()), sorted(&model));
            store.close().unwrap();
        }
    });
}
