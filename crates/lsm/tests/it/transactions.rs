//! Optimistic transactions of a store.
//!
//! Goal: committed transactions are serialisable in the order of their commits, over all histories,
//! with plain commits in between, on eight threads, and with crashes; a transaction is refused for
//! what it has read and for nothing else; retries come to an end.
//!
//! Method: random transactions record what they read and write, and the checker of
//! [`serial_history`](crate::serial_history) replays them in the order of their commits. One test
//! interleaves live transactions on one thread, so that the seed determines everything, and does
//! the same without validation, whose histories must not pass. The others run on threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use terrane_io::{Disk, FaultPlan, SimDisk, Survival};
use terrane_lsm::{
    Conflict, ConflictCause, Durability, Error, MergeOperator, NamedTable, Result, Store,
    StoreOptions, TRANSACT_ATTEMPTS, TableConfig, Transaction, Update, WriteBatch, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::serial_history::{Committed, Content, Model, Op, check};
use crate::store_script::options;

const TABLES: [&str; 2] = ["left", "right"];

/// Keys of each table.
const KEYS: u64 = 12;

fn config() -> TableConfig {
    TableConfig {
        write_buffer: WriteBuffer::Entries(40),
        resolve: MergeOperator::concatenate(),
        ..TableConfig::default()
    }
}

fn open_on(disk: &Arc<SimDisk>, options: &StoreOptions) -> Result<Store> {
    Store::open(Arc::clone(disk) as Arc<dyn Disk>, Path::new("/store"), options)
}

/// A store with two tables.
fn store_on(disk: &Arc<SimDisk>, durability: Durability) -> (Store, Vec<NamedTable>) {
    let store = open_on(disk, &options(durability)).unwrap();
    let tables = TABLES.map(|name| store.table_or_create(name, &config()).unwrap());
    (store, tables.to_vec())
}

fn new_store() -> (Store, Vec<NamedTable>) {
    store_on(&SimDisk::new(1), Durability::Buffered)
}

fn conflict<T: std::fmt::Debug>(result: Result<T>) -> Conflict {
    match result {
        Err(Error::Conflict(conflict)) => *conflict,
        other => panic!("{other:?} is no conflict"),
    }
}

fn content(table: &NamedTable) -> Content {
    let records = table.cursor().unwrap().take(usize::MAX).unwrap();
    records.into_iter().map(|record| (record.key, record.value.into_vec())).collect()
}

fn model_of(tables: &[NamedTable]) -> Model {
    tables.iter().map(content).collect()
}

/// A fresh value, which no other write has.
fn new_value(counter: &AtomicU64) -> Vec<u8> {
    counter.fetch_add(1, Ordering::Relaxed).to_le_bytes()[..4].to_vec()
}

fn draw_key(rng: &mut ChaCha8Rng) -> Vec<u8> {
    vec![b'k', rng.below(KEYS) as u8]
}

/// A draw of what to do next. Reads have no result yet.
fn draw_op(rng: &mut ChaCha8Rng, counter: &AtomicU64) -> Op {
    let table = rng.index(TABLES.len());
    let key = draw_key(rng);
    let other = draw_key(rng);
    let asked = 1 + rng.index(4);
    let backwards = rng.chance(1, 2);
    match rng.index(10) {
        0..=2 => Op::Get { table, key, found: None },
        3 | 4 => {
            let (from, end) = if key < other { (key, other) } else { (other, key) };
            Op::Scan { table, from, end, backwards, asked, found: Vec::new() }
        }
        5 | 6 => Op::Insert { table, key, value: new_value(counter) },
        7 => Op::Upsert { table, key, value: new_value(counter) },
        8 => Op::Delete { table, key },
        _ => {
            let end = [key.as_slice(), &[1]].concat();
            Op::DeleteRange { table, from: key, end: if asked == 1 { other } else { end } }
        }
    }
}

/// Does a step in a transaction; a read gets its result.
fn act(tx: &Transaction, tables: &[NamedTable], mut op: Op) -> Result<Op> {
    match &mut op {
        Op::Get { table, key, found } => {
            *found = tx.get(&tables[*table], key)?.value().map(<[u8]>::to_vec);
        }
        Op::Scan { table, from, end, backwards, asked, found } => {
            let mut range = tx.range(&tables[*table], from.as_slice()..end.as_slice())?;
            while found.len() < *asked {
                let next = if *backwards { range.next_back() } else { range.next() };
                let Some(record) = next.transpose()? else { break };
                found.push((record.key, record.value.into_vec()));
            }
        }
        Op::Insert { table, key, value } => tx.insert(&tables[*table], key, value)?,
        Op::Upsert { table, key, value } => tx.upsert(&tables[*table], key, value)?,
        Op::Delete { table, key } => tx.delete(&tables[*table], key)?,
        Op::DeleteRange { table, from, end } => {
            tx.delete_range(&tables[*table], from.as_slice()..end.as_slice())?;
        }
    }
    Ok(op)
}

/// The writes of a transaction, for a commit that nothing validates.
fn batch_of(tables: &[NamedTable], ops: &[Op]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for op in ops {
        match op {
            Op::Insert { table, key, value } => batch.insert(&tables[*table], key, value),
            Op::Upsert { table, key, value } => batch.upsert(&tables[*table], key, value),
            Op::Delete { table, key } => batch.delete(&tables[*table], key),
            Op::DeleteRange { table, from, end } => {
                batch.delete_range(&tables[*table], from.as_slice()..end.as_slice());
            }
            Op::Get { .. } | Op::Scan { .. } => {}
        }
    }
    batch
}

/// Histories of an interleaving.
struct Interleaved {
    history: Vec<Committed>,
    conflicts: usize,
    initial: (Model, u64),
    last: Model,
}

/// Interleaves up to five live transactions on one thread.
fn interleave(rng: &mut ChaCha8Rng, is_validated: bool) -> Interleaved {
    let (store, tables) = new_store();
    let counter = AtomicU64::new(0);
    for number in 0..KEYS {
        let value = new_value(&counter);
        tables[number as usize % 2].insert(&[b'k', number as u8], &value).unwrap().wait().unwrap();
    }

    let initial = (model_of(&tables), store.last_commit());
    let mut live: Vec<(Transaction, Vec<Op>)> = Vec::new();
    let mut history = Vec::new();
    let mut conflicts = 0;
    for _ in 0..160 {
        if live.len() < 5 && (live.is_empty() || rng.chance(1, 4)) {
            live.push((store.transaction().unwrap(), Vec::new()));
        }

        let at = rng.index(live.len());
        if !rng.chance(1, 5) {
            let (tx, ops) = &mut live[at];
            ops.push(act(tx, &tables, draw_op(rng, &counter)).unwrap());
            continue;
        }

        let (tx, ops) = live.swap_remove(at);
        let view = tx.view_commit();
        let committed = if is_validated {
            tx.commit()
        } else if ops.iter().any(Op::is_write) {
            tx.rollback();
            store.write(&batch_of(&tables, &ops))
        } else {
            tx.commit()
        };

        match committed {
            Ok(ticket) => history.push(Committed { commit: ticket.commit(), ops }),
            Err(Error::Conflict(conflict)) => {
                assert!(conflict.commit > view && conflict.commit <= store.last_commit());
                conflicts += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    drop(live);
    Interleaved { history, conflicts, initial, last: model_of(&tables) }
}

#[test]
fn interleaved_transactions_are_serialisable_and_unvalidated_ones_are_not() {
    let mut conflicts = 0;
    let mut broken = 0;
    for_each_seed("interleaved_transactions", by_effort(20, 400), |rng, _| {
        let mut same = rng.clone();
        let validated = interleave(rng, true);
        let (model, first) = validated.initial;
        let replayed = check(validated.history, model, first).unwrap();
        assert_eq!(replayed, validated.last);
        conflicts += validated.conflicts;

        let unvalidated = interleave(&mut same, false);
        let (model, first) = unvalidated.initial;
        broken += usize::from(check(unvalidated.history, model, first).is_err());
    });
    assert!(conflicts > 10, "{conflicts} conflicts");
    assert!(broken > 5, "{broken} histories without validation were found to be broken");
}

/// Runs random transactions on eight threads. Returns what was committed, and the writes of commits
/// that failed.
fn run_threads(
    store: &Store,
    tables: &[NamedTable],
    (seed, count): (u64, usize),
    durable: &AtomicU64,
) -> (Vec<Committed>, Vec<Vec<Op>>) {
    let history = Mutex::new(Vec::new());
    let failed = Mutex::new(Vec::new());
    let counter = AtomicU64::new(seed << 32 | 1 << 31);

    let work = |number: u64| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ number << 48);
        for _ in 0..count {
            let is_plain = rng.chance(1, 5);
            let mut ops = Vec::new();
            let committed = if is_plain {
                while ops.is_empty() || rng.chance(1, 2) {
                    ops.push(draw_op(&mut rng, &counter));
                    ops.retain(Op::is_write);
                }
                store.write(&batch_of(tables, &ops))
            } else {
                let Ok(tx) = store.transaction() else { return };
                for _ in 0..=rng.index(5) {
                    let Ok(op) = act(&tx, tables, draw_op(&mut rng, &counter)) else { return };
                    ops.push(op);
                    if rng.chance(1, 3) {
                        thread::yield_now();
                    }
                }
                tx.commit()
            };

            match committed {
                Ok(ticket) => {
                    let commit = ticket.commit();
                    history.lock().unwrap().push(Committed { commit, ops });
                    if rng.chance(1, 4) && ticket.wait().is_ok() {
                        durable.fetch_max(commit, Ordering::AcqRel);
                    }
                }
                Err(Error::Conflict(_)) => {}
                Err(_) => {
                    failed.lock().unwrap().push(ops);
                    return;
                }
            }
        }
    };

    let work = &work;
    thread::scope(|scope| (0..8).for_each(|number| drop(scope.spawn(move || work(number)))));
    (history.into_inner().unwrap(), failed.into_inner().unwrap())
}

#[test]
fn transactions_of_eight_threads_are_serialisable() {
    for_each_seed("transactions_of_eight_threads", by_effort(3, 60), |rng, _| {
        let (store, tables) = store_on(&SimDisk::new(1), Durability::Group);
        let initial = model_of(&tables);
        let first = store.last_commit();
        let seed = rng.below(1 << 20);
        let (history, failed) = run_threads(&store, &tables, (seed, 60), &AtomicU64::new(0));
        assert_eq!(failed, Vec::<Vec<Op>>::new());
        assert!(history.len() > 50, "{} commits", history.len());
        assert_eq!(check(history, initial, first).unwrap(), model_of(&tables));
    });
}

/// After a loss of power at any call, the store has the first commits of the history, each whole,
/// all that were waited for among them, and goes on from there.
#[test]
fn transactions_are_serialisable_over_crashes() {
    for_each_seed("transactions_over_crashes", by_effort(3, 60), |rng, _| {
        let mut disk = SimDisk::new(rng.below(1 << 32));
        let (store, tables) = store_on(&disk, Durability::Group);
        let mut model = model_of(&tables);
        let mut first = store.last_commit();
        store.close().unwrap();
        drop((store, tables));

        for round in 0..4 {
            let (store, tables) = store_on(&disk, Durability::Group);
            assert_eq!(model_of(&tables), model, "what the round before has left");
            let seed = rng.below(1 << 20) ^ round << 20;
            disk.set_plan(FaultPlan::crash_at(disk.calls() + 5 + rng.below(200)));
            let durable = AtomicU64::new(first);
            let (mut history, failed) = run_threads(&store, &tables, (seed, 80), &durable);
            drop((store, tables));

            let survivals = [
                Survival::Nothing,
                Survival::Everything,
                Survival::Random(seed),
                Survival::Torn(seed),
            ];
            let found = disk.after_crash(*rng.pick(&survivals));
            let (store, tables) = store_on(&found, Durability::Group);
            let last = store.last_commit();
            let durable = durable.into_inner();
            assert!(last >= durable, "commit {durable} was durable, and {last} is the last one");

            // A reader of a commit that is gone has seen what nobody was promised.
            history.retain(|transaction| transaction.commit <= last);
            let newest = history.iter().map(|transaction| transaction.commit).max();
            let replayed = if newest.unwrap_or(first).max(first) < last {
                // The commit under way at the crash: its record is whole, and nobody was told.
                let with = |ops: &Vec<Op>| {
                    let unknown = Committed { commit: last, ops: ops.clone() };
                    let history = history.iter().cloned().chain([unknown]).collect();
                    check(history, model.clone(), first).ok()
                };
                let mut possible = failed.iter().filter_map(with);
                let found = model_of(&tables);
                possible.find(|model| *model == found).expect("one of the failed commits")
            } else {
                check(history, model, first).unwrap()
            };

            assert_eq!(model_of(&tables), replayed);
            (model, first) = (replayed, last);
            store.close().unwrap();
            drop((store, tables));
            disk = found;
        }
    });
}

/// Each anomaly by itself, with the commit, the table and the key that the error names.
#[test]
fn a_conflict_names_commit_table_and_key() {
    let (store, tables) = new_store();
    let [left, right] = &tables[..] else { panic!("two tables") };
    left.insert(b"x", b"1").unwrap().wait().unwrap();
    right.insert(b"y", b"1").unwrap().wait().unwrap();
    let key =
        |table: &str, key: &[u8]| ConflictCause::Key { table: table.to_owned(), key: key.to_vec() };

    // A lost update.
    let both = [store.transaction().unwrap(), store.transaction().unwrap()];
    for tx in &both {
        assert!(tx.contains(left, "x").unwrap());
        tx.insert(left, "x", "2").unwrap();
    }
    let [first, second] = both;
    let winner = first.commit().unwrap().commit();
    let refused = second.commit();
    let message = refused.as_ref().unwrap_err().to_string();
    assert_eq!(
        message,
        format!(
            "conflict: commit {winner} wrote key hex:78 of table `left`; read again and repeat"
        )
    );
    let Conflict { commit, cause } = conflict(refused);
    assert_eq!((commit, cause), (winner, key("left", b"x")));

    // Write skew, over two tables.
    let both = [store.transaction().unwrap(), store.transaction().unwrap()];
    for tx in &both {
        assert!(tx.get(left, "x").unwrap().is_found() && tx.get(right, "y").unwrap().is_found());
    }
    let [first, second] = both;
    first.delete(left, "x").unwrap();
    second.delete(right, "y").unwrap();
    first.commit().unwrap().wait().unwrap();
    assert_eq!(conflict(second.commit()).cause, key("left", b"x"));

    // A phantom within a range that was read to its end.
    let both = [store.transaction().unwrap(), store.transaction().unwrap()];
    for (number, tx) in both.iter().enumerate() {
        assert_eq!(tx.prefix(right, "p").unwrap().count(), 0);
        tx.insert(right, [b'p', number as u8], "").unwrap();
    }
    let [first, second] = both;
    first.commit().unwrap().wait().unwrap();
    assert_eq!(conflict(second.commit()).cause, key("right", &[b'p', 0]));

    // A deleted range, by a plain commit.
    let tx = store.transaction().unwrap();
    assert!(!tx.contains(left, "m").unwrap());
    tx.insert(left, "n", "").unwrap();
    left.delete_range(&b"a"[..]..&b"z"[..]).unwrap().wait().unwrap();
    let cause = conflict(tx.commit()).cause;
    let range = ConflictCause::Range {
        table: "left".to_owned(),
        from: b"a".to_vec(),
        end: Some(b"z".to_vec()),
    };
    assert_eq!(cause, range);
}

#[test]
fn what_was_not_read_is_no_conflict() {
    let (store, tables) = new_store();
    let table = &tables[0];
    for key in 10..20_u8 {
        table.insert(&[key], b"old").unwrap().wait().unwrap();
    }

    // Blind writes: the later commit counts.
    let both = [store.transaction().unwrap(), store.transaction().unwrap()];
    for (number, tx) in both.iter().enumerate() {
        tx.insert(table, [1], [number as u8]).unwrap();
        tx.upsert(table, [2], [number as u8]).unwrap();
        tx.delete_range(table, &[200][..]..).unwrap();
    }
    for tx in both {
        tx.commit().unwrap().wait().unwrap();
    }
    assert_eq!(table.get(&[1]).unwrap().value(), Some(&[1][..]));
    assert_eq!(table.get(&[2]).unwrap().value(), Some(&[0, 1][..]));

    // A transaction that only reads is of its view.
    let tx = store.transaction().unwrap();
    table.insert(&[10], b"new").unwrap().wait().unwrap();
    assert_eq!(tx.get(table, [10]).unwrap().value(), Some(&b"old"[..]));
    let ticket = tx.commit().unwrap();
    assert_eq!(ticket.commit() + 1, store.last_commit());

    // An iterator that stands at 12 has read the gap below 12, and nothing behind it; one from the
    // back has read down to 18.
    for (written, is_read) in
        [(9, true), (11, true), (12, true), (13, false), (17, false), (18, true), (21, true)]
    {
        let tx = store.transaction().unwrap();
        let mut range = tx.range(table, &[9][..]..&[22][..]).unwrap();
        let next: Vec<u8> = range.by_ref().take(3).map(|record| record.unwrap().key[0]).collect();
        assert_eq!(next, [10, 11, 12]);
        assert_eq!(range.next_back().unwrap().unwrap().key, [19]);
        assert_eq!(range.next_back().unwrap().unwrap().key, [18]);
        drop(range);
        tx.insert(table, [100], "").unwrap();
        table.insert(&[written], b"new").unwrap().wait().unwrap();
        assert_eq!(tx.commit().is_err_and(|error| error.is_conflict()), is_read, "{written}");
        table.delete_range(&[20][..]..).unwrap().wait().unwrap();
        table.delete(&[9]).unwrap().wait().unwrap();
    }
}

/// Checkpoints, compactions and new tables are nobody's conflict; a rollback, a replacement and a
/// dropped table are a conflict for all who have read from what they change.
#[test]
fn changes_of_whole_tables_conflict_where_they_change_what_was_read() {
    let (store, tables) = new_store();
    let [left, right] = &tables[..] else { panic!("two tables") };
    left.insert(b"x", b"1").unwrap().wait().unwrap();
    let version = store.retain(None).unwrap();
    let reader_of = |table: &NamedTable| {
        let tx = store.transaction().unwrap();
        assert!(!tx.contains(table, "absent").unwrap());
        tx.insert(table, "y", "1").unwrap();
        tx
    };

    let tx = reader_of(left);
    store.checkpoint().unwrap();
    store.compact(&mut |_, _| {}).unwrap();
    let later = store.create_table("later", &config()).unwrap();
    assert!(matches!(tx.get(&later, "x"), Err(Error::TableDoesNotExist { .. })));
    assert!(matches!(tx.insert(&later, "x", ""), Err(Error::TableDoesNotExist { .. })));
    tx.commit().unwrap().wait().unwrap();

    let readers = [reader_of(left), reader_of(right)];
    let new = store.new_volatile_table(&config()).unwrap();
    store.replace("left", &new).unwrap();
    let [of_left, of_right] = readers;
    let replaced = ConflictCause::Table { table: "left".to_owned() };
    assert_eq!(conflict(of_left.commit()).cause, replaced);
    of_right.commit().unwrap().wait().unwrap();

    let blind = store.transaction().unwrap();
    blind.insert(right, "blind", "").unwrap();
    let readers = [reader_of(left), reader_of(right)];
    store.roll_back(version).unwrap();
    for tx in readers {
        assert!(matches!(conflict(tx.commit()).cause, ConflictCause::Table { .. }));
    }
    blind.commit().unwrap().wait().unwrap();

    let readers = [store.transaction().unwrap(), reader_of(right)];
    assert!(readers[0].contains(right, "blind").unwrap());
    readers[0].insert(left, "z", "").unwrap();
    store.drop_table("right").unwrap();
    let [of_left, of_right] = readers;
    assert_eq!(conflict(of_left.commit()).cause, ConflictCause::Table { table: "right".into() });
    assert!(of_right.commit().unwrap_err().is_conflict());
    let tx = store.transaction().unwrap();
    assert!(matches!(tx.get(right, "x"), Err(Error::TableDoesNotExist { .. })));
}

/// A transaction that commits larger than the bound have overtaken is refused, and says why.
#[test]
fn a_transaction_older_than_the_write_sets_is_refused() {
    let disk = SimDisk::new(1);
    let options = options(Durability::Buffered).write_set_bytes_max(200);
    let store = open_on(&disk, &options).unwrap();
    let table = store.create_table("left", &config()).unwrap();
    let write = |tx: &Transaction| {
        assert!(!tx.contains(&table, "absent").unwrap());
        tx.insert(&table, "present", "").unwrap();
    };

    let old = store.transaction().unwrap();
    write(&old);
    for number in 0..20_u64 {
        table.insert(&number.to_le_bytes(), b"").unwrap().wait().unwrap();
    }
    let young = store.transaction().unwrap();
    write(&young);
    young.commit().unwrap().wait().unwrap();
    let view = old.view_commit();
    assert_eq!(conflict(old.commit()), Conflict { commit: view, cause: ConflictCause::TooOld });
}

#[test]
fn transact_repeats_until_it_has_counted_all() {
    let (store, tables) = store_on(&SimDisk::new(1), Durability::Group);
    let attempts = AtomicU64::new(0);
    let count = || {
        for _ in 0..20 {
            let counted = store.transact(|tx| {
                attempts.fetch_add(1, Ordering::Relaxed);
                let old = tx.get(&tables[0], "count")?;
                let old = old.value().map_or(0, |value| u64::from(value[0]));
                thread::yield_now();
                tx.insert(&tables[0], "count", [old as u8 + 1])
            });
            counted.unwrap();
        }
    };
    thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(count))));
    assert_eq!(tables[0].get(b"count").unwrap().value(), Some(&[160][..]));
    assert_eq!(store.durable_commit(), store.last_commit(), "durable when it returns");
    assert!(attempts.into_inner() >= 160);
}

#[test]
fn transact_gives_up_after_its_attempts_and_rolls_back_what_fails() {
    let (store, tables) = new_store();
    let table = &tables[0];
    let mut attempts = 0;
    let refused = store.transact(|tx| {
        attempts += 1;
        drop(tx.get(table, "x")?);
        tx.insert(table, "mine", "")?;
        table.insert(b"x", &[attempts as u8])?.wait()
    });
    assert!(refused.unwrap_err().is_conflict());
    assert_eq!(attempts, TRANSACT_ATTEMPTS);
    assert!(!table.get(b"mine").unwrap().is_found());

    let failed: Result<()> = store.transact(|tx| {
        tx.insert(table, "mine", "")?;
        Err(Error::UnionOfNothing)
    });
    assert!(matches!(failed, Err(Error::UnionOfNothing)));
    assert!(!table.get(b"mine").unwrap().is_found());
}

/// Reads of a transaction are those of a table that has the view and the own writes, also while
/// others commit.
#[test]
fn a_transaction_reads_its_view_and_its_own_writes() {
    for_each_seed("a_transaction_reads_its_own_writes", by_effort(20, 400), |rng, _| {
        let (store, tables) = new_store();
        let counter = AtomicU64::new(0);
        for _ in 0..30 {
            let op = draw_op(rng, &counter);
            store.write(&batch_of(&tables, &[op])).unwrap().wait().unwrap();
        }

        let mut model = model_of(&tables);
        let tx = store.transaction().unwrap();
        for _ in 0..60 {
            let op = draw_op(rng, &counter);
            act(&tx, &tables, op).unwrap().replay(&mut model).unwrap();
            if rng.chance(1, 4) {
                let other = draw_op(rng, &counter);
                store.write(&batch_of(&tables, &[other])).unwrap().wait().unwrap();
            }
        }

        // Both ends of one iterator take turns; they give each entry once.
        for (table, content) in tables.iter().zip(&model) {
            let mut left: BTreeMap<_, _> = content.clone();
            let mut range = tx.range::<[u8], _>(table, ..).unwrap();
            loop {
                let is_back = rng.chance(1, 2);
                let next = if is_back { range.next_back() } else { range.next() };
                let expected = if is_back { left.pop_last() } else { left.pop_first() };
                let next = next.transpose().unwrap();
                assert_eq!(next.map(|r| (r.key, r.value.into_vec())), expected);
                if expected.is_none() {
                    break;
                }
            }
            assert!(range.next().is_none() && range.next_back().is_none());
        }
    });
}

/// Blobs of own writes and of the view.
#[test]
fn a_transaction_reads_blobs() {
    let (store, tables) = new_store();
    let table = &tables[0];
    let blobs = [(b"a", Update::InsertWithBlob(b"1", b"of the view"))];
    table.write_batch(&blobs).unwrap().wait().unwrap();
    let tx = store.transaction().unwrap();
    tx.insert_with_blob(table, "b", "2", "of the transaction").unwrap();
    for (key, blob) in [("a", &b"of the view"[..]), ("b", b"of the transaction")] {
        let found = tx.get(table, key).unwrap();
        let blobs = store.session().retrieve_blobs(&[found.blob().unwrap().clone()]).unwrap();
        assert_eq!(blobs, [blob]);
    }
    tx.commit().unwrap().wait().unwrap();
    let found = table.get(b"b").unwrap();
    let blobs = store.session().retrieve_blobs(&[found.blob().unwrap().clone()]).unwrap();
    assert_eq!(blobs, [b"of the transaction"]);
}
