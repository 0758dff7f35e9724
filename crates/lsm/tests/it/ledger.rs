//! Ledger workload: each batch spends old outputs and creates new ones.
//!
//! Goal: the answers of the reference's primary benchmark, at a size for tests: every lookup finds
//! its entry, the serial and the pipelined run give the same bytes, upserts equal lookups and
//! inserts, and batches may have any size. Method: keys follow from a number;
//! numbers are drawn by a multiplicative generator of full period modulo a prime, so that no key is
//! spent twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use terrane_lsm::{IndexKind, Session, Table, TableConfig, Update, WriteBuffer};
use terrane_testkit::effort::by_effort;

use crate::{SessionDir, key, value};

/// Lookups, deletions and insertions in a batch.
const BATCH: u64 = 16;

/// A prime, and a primitive root of it.
const MODULUS: u64 = 320_009;
const ROOT: u64 = 1_001;

#[derive(Debug, Clone)]
struct Batch {
    spent: Vec<u64>,
    made: Vec<u64>,
}

/// The batches on a table of `size` entries.
fn batches(size: u64, count: u64) -> Vec<Batch> {
    let mut state = 1337;
    let mut draw = move |limit: u64| {
        loop {
            state = state * ROOT % MODULUS;
            if state < limit {
                return state;
            }
        }
    };

    (0..count)
        .map(|batch| {
            let limit = size + BATCH * batch;
            let spent = (0..BATCH).map(|_| draw(limit)).collect();
            Batch { spent, made: (limit..limit + BATCH).collect() }
        })
        .collect()
}

fn new_table(session: &Session, size: u64) -> Table {
    let config =
        TableConfig::default().write_buffer(WriteBuffer::Entries(2_000)).compaction_batch_pages(1);
    let mut table = session.new_table(&config).unwrap();
    crate::fill(&mut table, 0..size);
    table
}

fn apply(table: &mut Table, batch: &Batch) {
    let values: Vec<_> = batch.made.iter().map(|&number| value(number, 60)).collect();
    let spent = batch.spent.iter().map(|&number| (key(number), Update::Delete));
    let made = batch.made.iter().zip(&values).map(|(&n, v)| (key(n), Update::Insert(v)));
    table.write_batch(&spent.chain(made).collect::<Vec<_>>()).unwrap();
}

type Answers = Vec<Option<Vec<u8>>>;

fn look_up(table: &Table, numbers: &[u64]) -> Answers {
    let keys: Vec<_> = numbers.iter().map(|&number| key(number)).collect();
    let found = table.get_many(&keys).unwrap();
    found.into_iter().map(|found| found.value().map(<[u8]>::to_vec)).collect()
}

fn serial(session: &Session, size: u64, batches: &[Batch]) -> Vec<Answers> {
    let mut table = new_table(session, size);
    batches
        .iter()
        .map(|batch| {
            let answers = look_up(&table, &batch.spent);
            apply(&mut table, batch);
            answers
        })
        .collect()
}

/// Message between the two threads: the table before a batch, and the batch that led to it.
type Handover = (Table, Option<Batch>);

/// Runs every other batch from `first` on. Each batch looks its keys up in the table before the
/// previous batch and corrects the answers by the changes of that batch.
fn every_other(
    batches: &[Batch],
    first: usize,
    from_peer: &Receiver<Handover>,
    to_peer: &Sender<Handover>,
    mut stale: Option<Table>,
) -> Vec<(usize, Answers)> {
    let mut answered = Vec::new();
    for (at, batch) in batches.iter().enumerate().skip(first).step_by(2) {
        let behind = stale.take().map(|stale| look_up(&stale, &batch.spent));
        let (table, before) = from_peer.recv().unwrap();

        let mut answers = behind.unwrap_or_else(|| look_up(&table, &batch.spent));
        if let Some(before) = before {
            for (number, answer) in batch.spent.iter().zip(&mut answers) {
                if before.spent.contains(number) {
                    *answer = None;
                }
                if before.made.contains(number) {
                    *answer = Some(value(*number, 60));
                }
            }
        }

        answered.push((at, answers));
        let mut next = table.fork().unwrap();
        drop(table);
        apply(&mut next, batch);
        stale = Some(next.fork().unwrap());

        // Nobody waits for what comes after the last batch.
        let _ = to_peer.send((next, Some(batch.clone())));
    }

    answered
}

fn pipelined(session: &Session, size: u64, batches: &[Batch]) -> Vec<Answers> {
    let table = new_table(session, size);
    let (to_odd, of_odd) = channel();
    let (to_even, of_even) = channel();
    let behind = table.fork().unwrap();
    to_even.send((table, None)).unwrap();

    thread::scope(|scope| {
        let even = scope.spawn(move || every_other(batches, 0, &of_even, &to_odd, None));
        let odd = scope.spawn(move || every_other(batches, 1, &of_odd, &to_even, Some(behind)));
        let mut answered = even.join().unwrap();
        answered.extend(odd.join().unwrap());
        answered.sort_by_key(|(at, _)| *at);
        answered.into_iter().map(|(_, answers)| answers).collect()
    })
}

#[test]
fn pipelined_and_serial_runs_give_the_same_bytes() {
    let size = by_effort(40_000, 160_000);
    let batches = batches(size, size / 16);
    let mut seen = BTreeSet::new();
    let distinct = batches.iter().flat_map(|batch| &batch.spent).all(|&number| seen.insert(number));
    assert!(distinct, "no key is spent twice");
    let follows = |pair: &[Batch]| pair[1].spent.iter().any(|number| pair[0].made.contains(number));
    let overlaps = batches.windows(2).filter(|pair| follows(pair)).count();
    assert!(overlaps > 5, "{overlaps} batches look up what the one before made");
    let session = SessionDir::simulated(1).open();

    let one_by_one = serial(&session, size, &batches);
    for (batch, answers) in batches.iter().zip(&one_by_one) {
        for (number, answer) in batch.spent.iter().zip(answers) {
            assert_eq!(*answer, Some(value(*number, 60)), "every lookup finds its entry");
        }
    }

    let session = SessionDir::simulated(2).open();
    assert!(pipelined(&session, size, &batches) == one_by_one, "the answers differ");
}

#[test]
fn the_ledger_workload_finds_every_entry_on_the_real_disk() {
    let size = 10_000;
    let batches = batches(size, 1_000);
    let place = SessionDir::real();
    let session = place.open();
    let answers = serial(&session, size, &batches);
    let all = batches.iter().zip(&answers).all(|(batch, answers)| {
        batch.spent.iter().zip(answers).all(|(&n, found)| *found == Some(value(n, 60)))
    });
    assert!(all);
    let again = pipelined(&session, size, &batches);
    assert!(again == answers);
}

/// 4,097, 65,537 and many more keys in one call, half of them twice; both indexes.
#[test]
fn a_large_batch_of_updates_and_one_of_lookups_are_right() {
    let most = by_effort(150_000, 1_000_000);
    for (index, size) in
        [(IndexKind::Compact, most), (IndexKind::Ordinary, 65_537), (IndexKind::Auto, 4_097)]
    {
        let config = TableConfig::default().index(index);
        let session = SessionDir::simulated(1).open();
        let mut table = session.new_table(&config).unwrap();
        let number = |at: u64| if at.is_multiple_of(4) { at / 2 } else { at };
        let numbers: Vec<u64> = (0..size).map(number).collect();
        let pairs: Vec<_> = numbers.iter().map(|&n| n.to_le_bytes()).collect();
        let values: Vec<_> = (0..size).map(u64::to_le_bytes).collect();
        let update = |at: usize| match at % 7 {
            3 => Update::Delete,
            _ => Update::Insert(&values[at]),
        };
        let batch: Vec<_> = pairs.iter().enumerate().map(|(at, key)| (key, update(at))).collect();
        table.write_batch(&batch).unwrap();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for (at, &number) in numbers.iter().enumerate() {
            match at % 7 {
                3 => model.remove(&number),
                _ => model.insert(number, at as u64),
            };
        }
        let found = table.get_many(&pairs).unwrap();
        assert_eq!(found.len(), numbers.len());
        for (number, found) in numbers.iter().zip(&found) {
            let expected = model.get(number).map(|at| at.to_le_bytes());
            assert_eq!(found.value(), expected.as_ref().map(<[u8; 8]>::as_slice));
        }
        drop(session);
    }
}
