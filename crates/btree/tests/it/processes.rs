//! Real processes: one writes, three read, and all of them are killed now and then.
//!
//! Goal: each reader sees the state after some batch of the writer, whole, never an older one than
//! before, and not beyond what was flushed; a writer that was killed goes on from a state that has
//! everything it had flushed; nobody waits for the dead. Now and then the writer clears the index,
//! or filters it.
//!
//! Method: the test starts itself as writer and as readers. What batch n does follows from n alone,
//! and each batch says in the index which one it is, so a reader knows what must be there. `cargo
//! xtask readers` and `kill` do it for long.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use terrane_btree::{Config, Error, Index, IndexReader, Update};
use terrane_io::{Disk, RealDisk, RealOptions, SimDisk};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::process::{Child, WriterBesideReaders, say};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

/// Role of the process: `writer` or `reader`.
const ROLE: &str = "TERRANE_INDEX_ROLE";

/// Names the index in such a process.
const CHILD_DIR: &str = "TERRANE_INDEX_DIR";

/// The batch that a writer was at when it cleared the index.
const CLEARED_AT: &str = "TERRANE_INDEX_CLEARED_AT";

const TEST: &str = "processes::readers_see_what_a_writer_flushed_whoever_is_killed";

/// Holds the number of the last batch.
const NUMBER: &[u8] = b"number";

/// Batches between two clears, and between two filters.
const CLEAR_EVERY: u64 = 211;
const FILTER_EVERY: u64 = 67;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn config() -> Config {
    Config::variable().memory_bytes(2 << 20).buffer_bytes(40_000).log_bytes_max(1 << 18)
}

fn disk() -> Arc<dyn Disk> {
    RealDisk::new(RealOptions::default()).unwrap()
}

fn batch(number: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let rng = &mut ChaCha8Rng::seed_from_u64(number);
    let len = 1 + rng.index(120);
    (0..len)
        .map(|_| {
            let key = rng.below(20_000).to_le_bytes().to_vec();
            let value_len = rng.index(60);
            (key, (!rng.chance(1, 4)).then(|| rng.bytes(value_len)))
        })
        .collect()
}

/// A batch, and its number.
fn updates<'a>(batch: &'a [(Vec<u8>, Option<Vec<u8>>)], number: &'a [u8]) -> Vec<Update<'a>> {
    let update = |(key, value): &'a (Vec<u8>, Option<Vec<u8>>)| match value {
        Some(value) => Update::Replace(key, value),
        None => Update::Remove(key),
    };
    batch.iter().map(update).chain([Update::Replace(NUMBER, number)]).collect()
}

fn is_kept(number: u64, key: &[u8]) -> bool {
    key == NUMBER || !(u64::from(key[0]) + number).is_multiple_of(3)
}

/// Applies batch `number` to the state before it.
fn apply(model: &mut Model, number: u64) {
    if number.is_multiple_of(CLEAR_EVERY) {
        model.clear();
    }

    if number.is_multiple_of(FILTER_EVERY) {
        model.retain(|key, _| is_kept(number, key));
    }

    for (key, value) in batch(number) {
        match value {
            Some(value) => drop(model.insert(key, value)),
            None => drop(model.remove(&key)),
        }
    }

    model.insert(NUMBER.to_vec(), number.to_le_bytes().to_vec());
}

fn number_of(found: Option<Vec<u8>>) -> Option<u64> {
    found.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// Writes until it is killed.
fn write(dir: &Path) {
    let index = Index::open_or_create(disk(), dir, &config()).unwrap();
    let cleared: u64 = env::var(CLEARED_AT).map_or(0, |text| text.parse().unwrap());
    let first = match number_of(index.find(NUMBER).unwrap()) {
        Some(last) => last + 1,
        None => cleared.max(1),
    };

    say(&format!("opened {}", first - 1));
    for number in first.. {
        if number.is_multiple_of(CLEAR_EVERY) {
            say(&format!("clear {number}"));
            index.clear().unwrap();
        }
        if number.is_multiple_of(FILTER_EVERY) {
            index.filter(|key, _| is_kept(number, key)).unwrap();
        }
        let batch = batch(number);
        let number_bytes = number.to_le_bytes();
        index.apply(&updates(&batch, &number_bytes)).unwrap();
        if number.is_multiple_of(3) {
            index.flush(number.is_multiple_of(2)).unwrap();
            say(&format!("flushed {number}"));
        }
    }
}

/// Reads until it is killed, or sees what must not be.
fn read(dir: &Path) {
    let reader = loop {
        match IndexReader::open(disk(), dir, &config()) {
            Ok(reader) => break reader,
            Err(Error::NotFound { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };

    let rng = &mut ChaCha8Rng::seed_from_u64(u64::from(std::process::id()));
    let mut model = Model::new();
    let mut known = 0;
    let mut checks = 0_u64;
    loop {
        reader.sync().unwrap();
        // A filter is seen by itself: the number of the batch before it, and fewer entries.
        let found = number_of(reader.find(NUMBER).unwrap());
        let Some(number) = found else {
            assert_eq!(reader.len().unwrap(), 0, "only an index that was cleared has no number");
            continue;
        };
        assert!(number >= known, "batch {number} after batch {known}");
        for number in known + 1..=number {
            apply(&mut model, number);
        }
        known = number;
        let next = number + 1;
        let may_be_filtered = next.is_multiple_of(FILTER_EVERY);
        let mut expected = model.clone();
        let len = reader.len().unwrap();
        if len != expected.len() as u64 && may_be_filtered {
            expected.retain(|key, _| is_kept(next, key));
        }
        assert_eq!(len, expected.len() as u64, "after batch {number}");
        for _ in 0..200 {
            let key = rng.below(20_000).to_le_bytes();
            let found = reader.find(&key).unwrap();
            assert_eq!(found.as_ref(), expected.get(&key[..]), "after batch {number}");
            checks += 1;
        }
        if rng.chance(1, 20) {
            let all: Model = reader.iter().unwrap().map(|entry| entry.unwrap()).collect();
            checks += all.len() as u64;
            assert!(all == expected, "{} entries after batch {number}", all.len());
        }
        say(&format!("checks {checks} {number}"));
    }
}

/// A writer filtered its index, and cleared it before anything else was flushed: the log had not
/// grown between the two, by which readers told that everything was replaced. They saw the empty
/// tree, with the number of entries that the filter had left.
#[test]
fn a_reader_counts_no_entries_after_a_clear_right_behind_a_filter() {
    let disk: Arc<dyn Disk> = SimDisk::new(1);
    let dir = Path::new("/index");
    let index = Index::create(disk.clone(), dir, &config()).unwrap();
    for number in 0..100_u64 {
        index.replace(&number.to_le_bytes(), b"value").unwrap();
    }

    index.flush(true).unwrap();
    let reader = IndexReader::open(disk, dir, &config()).unwrap();
    index.filter(|key, _| key[0] % 2 == 0).unwrap();
    assert!(reader.sync().unwrap());
    assert_eq!(reader.len().unwrap(), 50);
    index.replace(b"not flushed", b"value").unwrap();
    index.clear().unwrap();
    assert!(reader.sync().unwrap());
    assert_eq!((reader.len().unwrap(), reader.iter().unwrap().count()), (0, 0));
    index.replace(b"key", b"value").unwrap();
    index.flush(false).unwrap();
    assert!(reader.sync().unwrap());
    assert_eq!(reader.len().unwrap(), 1);
}

#[test]
fn readers_see_what_a_writer_flushed_whoever_is_killed() {
    if let Ok(role) = env::var(ROLE) {
        let dir = env::var(CHILD_DIR).unwrap();
        if role == "writer" {
            write(Path::new(&dir));
        } else {
            read(Path::new(&dir));
        }
        return;
    }

    for_each_seed("readers_see_what_a_writer_flushed_whoever_is_killed", 1, |rng, _| {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("index");
        let flushed = Cell::new(0);
        let cleared = Cell::new(0);
        let start = |role: &str| {
            let at = if role == "writer" { cleared.get() } else { 0 };
            let at = OsString::from(at.to_string());
            Child::start(
                TEST,
                [(ROLE, role.as_ref()), (CHILD_DIR, dir.as_ref()), (CLEARED_AT, &at)],
            )
        };

        let words = &["opened", "clear", "flushed"];
        let processes = WriterBesideReaders { start: &start, words, lines_max: 60 };
        let checks = processes.run(rng, |word, numbers| {
            let Some(&number) = numbers.first() else { return };
            match word {
                // A clear that was under way may have taken everything with it.
                "opened" => assert!(
                    number >= flushed.get() || cleared.get() > flushed.get(),
                    "batch {} was flushed, and {number} is there",
                    flushed.get()
                ),
                "clear" => cleared.set(number),
                _ => flushed.set(number),
            }
        });

        let flushed = flushed.get();
        println!("readers compared {checks} keys while the writer got to batch {flushed}");
        assert!(checks > 1_000, "{checks}");
    });
}

/// This work in one process on a simulated disk, killed between any two calls.
#[test]
fn a_writer_killed_between_calls_goes_on_from_what_it_flushed() {
    let cycles = by_effort(20, 60);
    for_each_seed("a_writer_killed_between_calls_goes_on_from_what_it_flushed", 2, |rng, seed| {
        let mut disk = SimDisk::new(seed);
        let dir = Path::new("/index");
        let mut flushed = 0;
        let mut started = 0;
        let mut flushed_model = Model::new();
        for _cycle in 0..cycles {
            let shared: Arc<dyn Disk> = disk.clone();
            let index = Index::open_or_create(shared.clone(), dir, &config()).unwrap();
            let found: Model = index.iter().unwrap().map(|entry| entry.unwrap()).collect();
            let at = number_of(found.get(NUMBER).cloned());
            assert_eq!(index.find(NUMBER).unwrap(), found.get(NUMBER).cloned(), "cursor and find");
            // A clear or a filter, which are durable at once, may have been the last.
            let mut number = at.unwrap_or(started);
            assert!(number >= flushed, "batch {number} of {flushed} flushed");
            let mut model = flushed_model.clone();
            for number in flushed + 1..=number {
                apply(&mut model, number);
            }
            if at.is_none() {
                model.clear();
            } else if found != model && (number + 1).is_multiple_of(FILTER_EVERY) {
                model.retain(|key, _| is_kept(number + 1, key));
            }
            assert!(found == model, "after batch {at:?}: {} of {}", found.len(), model.len());
            assert_eq!(index.len().unwrap(), model.len() as u64);
            (flushed, flushed_model) = (number, model.clone());
            for _ in 0..rng.below(200) {
                number += 1;
                if number.is_multiple_of(CLEAR_EVERY) {
                    index.clear().unwrap();
                    started = number - 1;
                }
                if number.is_multiple_of(FILTER_EVERY) {
                    index.filter(|key, _| is_kept(number, key)).unwrap();
                }
                let batch = batch(number);
                let number_bytes = number.to_le_bytes();
                index.apply(&updates(&batch, &number_bytes)).unwrap();
                apply(&mut model, number);
                assert_eq!(number_of(index.find(NUMBER).unwrap()), Some(number), "at once");
                if number.is_multiple_of(3) {
                    index.flush(number.is_multiple_of(2)).unwrap();
                    flushed = number;
                    flushed_model.clone_from(&model);
                }
            }
            disk = disk.process_kill();
        }
    });
}
