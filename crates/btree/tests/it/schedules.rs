//! Threads of an index under many schedules (`cargo xtask schedules`).
//!
//! Goal: whatever thread runs next, nobody waits for ever, a reader sees what some flush left,
//! whole and never an older one than before, and what a flush made durable is there after a loss of
//! power at any moment. Method: [`explore`](terrane_testkit::schedules::explore).

use std::path::Path;
use std::sync::Arc;

use terrane_btree::{Config, Index, IndexReader, Update};
use terrane_io::sync::atomic::{AtomicU64, Ordering};
use terrane_io::sync::thread;
use terrane_io::{Disk, SimDisk, Survival};
use terrane_testkit::schedules::explore;

const DIR: &str = "/index";

/// Keys of a batch; all of them get the number of the batch.
const KEYS: u8 = 6;

fn config() -> Config {
    Config::variable().memory_bytes(1 << 20).buffer_bytes(4_000).log_bytes_max(1 << 16)
}

fn apply(index: &Index, number: u64) {
    let value = number.to_le_bytes();
    let keys: Vec<[u8; 1]> = (0..KEYS).map(|key| [key]).collect();
    let updates: Vec<Update<'_>> = keys.iter().map(|key| Update::Replace(key, &value)).collect();
    index.apply(&updates).unwrap();
}

/// The number of the batch that all keys are of; 0 if there is none.
fn number_of(found: impl Fn(&[u8]) -> Option<Vec<u8>>) -> u64 {
    let numbers: Vec<u64> = (0..KEYS)
        .map(|key| found(&[key]).map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap())))
        .collect();
    assert!(numbers.iter().all(|number| *number == numbers[0]), "a part of a batch: {numbers:?}");
    numbers[0]
}

#[test]
fn readers_beside_flushes_and_checkpoints_see_whole_batches() {
    explore("schedules_index_readers", || {
        let disk: Arc<dyn Disk> = SimDisk::new(1);
        let index = Arc::new(Index::create(disk.clone(), Path::new(DIR), &config()).unwrap());
        apply(&index, 1);
        index.flush(true).unwrap();

        let writer = thread::spawn({
            let index = Arc::clone(&index);
            move || {
                for number in 2..8 {
                    apply(&index, number);
                    index.flush(number % 2 == 0).unwrap();
                    if number % 3 == 0 {
                        index.checkpoint().unwrap();
                    }
                }
            }
        });
        let reader = thread::spawn({
            let disk = disk.clone();
            move || {
                let reader = IndexReader::open(disk, Path::new(DIR), &config()).unwrap();
                let mut known = 1;
                for _ in 0..4 {
                    reader.sync().unwrap();
                    let number = number_of(|key| reader.find(key).unwrap());
                    assert!(number >= known, "batch {number} after batch {known}");
                    known = number;
                }
            }
        });
        for _ in 0..3 {
            assert!(index.find(&[0]).unwrap().is_some());
        }
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(number_of(|key| index.find(key).unwrap()), 7);
        Arc::into_inner(index).unwrap().close().unwrap();
    });
}

#[test]
fn flushes_of_two_threads_survive_a_loss_of_power_at_any_moment() {
    explore("schedules_index_flushes", || {
        let disk = SimDisk::new(1);
        let shared: Arc<dyn Disk> = disk.clone();
        let index = Arc::new(Index::create(shared, Path::new(DIR), &config()).unwrap());
        index.flush(true).unwrap();
        let durable = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let writers: Vec<_> = (0..2_u8)
            .map(|writer| {
                let (index, durable) = (Arc::clone(&index), Arc::clone(&durable));
                thread::spawn(move || {
                    for number in 1..4_u64 {
                        let value = number.to_le_bytes();
                        index.apply(&[Update::Replace(&[writer], &value)]).unwrap();
                        index.flush(true).unwrap();
                        durable[usize::from(writer)].store(number, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        let before = [0, 1].map(|writer: usize| durable[writer].load(Ordering::SeqCst));
        let crashed: Arc<dyn Disk> = disk.after_crash(Survival::Nothing);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        Arc::into_inner(index).unwrap().close().unwrap();

        let index = Index::open(crashed, Path::new(DIR), &config()).unwrap();
        for (writer, number) in before.into_iter().enumerate() {
            let found = index.find(&[writer as u8]).unwrap();
            let found = found.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()));
            assert!(found >= number, "writer {writer}: {number} was durable, {found} is there");
        }
        index.close().unwrap();
    });
}
