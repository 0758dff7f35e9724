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
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrane_btree::{Config, Error, Index, IndexReader, Update};
use terrane_io::{Disk, RealDisk, RealOptions, SimDisk};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

/// Role of the process: `writer` or `reader`.
const ROLE: &str = "TERRANE_INDEX_ROLE";

/// Names the index in such a process.
const CHILD_DIR: &str = "TERRANE_INDEX_DIR";

/// The batch that a writer was at when it cleared the index.
const CLEARED_AT: &str = "TERRANE_INDEX_CLEARED_AT";

/// How often a process is killed; set by `cargo xtask kill`.
const CYCLES: &str = "TERRANE_KILL_CYCLES";

/// For how long readers are let alone besides; set by `cargo xtask readers`.
const SECONDS: &str = "TERRANE_READERS_SECONDS";

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

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}").unwrap();
    out.flush().unwrap();
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

/// A process of this test.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Keys that a reader says it has compared.
    checks: u64,
}

impl Process {
    fn start(dir: &Path, role: &str, cleared: u64) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", TEST, "--nocapture"]);
        command.env(ROLE, role).env(CHILD_DIR, dir).env(CLEARED_AT, cleared.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, checks: 0 }
    }

    /// The next line that begins with one of the words: the word, and the numbers after it. `None`
    /// at the end.
    fn line(&mut self, words: &[&str]) -> Option<(String, Vec<u64>)> {
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            let mut parts = line.split(' ');
            if let Some(word) = parts.next().filter(|word| words.contains(word)) {
                // The last line may be torn.
                let numbers = parts.map(|number| number.parse().ok()).collect::<Option<Vec<_>>>();
                return Some((word.to_owned(), numbers?));
            }
        }
        None
    }

    /// Waits until a reader has compared more keys.
    fn see(&mut self) {
        let (_, numbers) = self.line(&["checks"]).expect("a reader goes on until it is killed");
        self.checks = numbers[0];
    }

    /// Kills it; returns the keys that it had compared.
    fn kill(&mut self) -> u64 {
        assert_eq!(self.child.try_wait().unwrap(), None, "a process ended by itself");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.checks
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

    let cycles = env::var(CYCLES).map_or(6, |text| text.parse().unwrap());
    let seconds: u64 = env::var(SECONDS).map_or(1, |text| text.parse().unwrap());
    for_each_seed("readers_see_what_a_writer_flushed_whoever_is_killed", 1, |rng, _| {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("index");
        let mut flushed = 0;
        let mut cleared = 0;
        let mut checks = 0;
        let reached = Cell::new((flushed, cleared));
        let mut writer = Process::start(&dir, "writer", cleared);
        let mut readers: Vec<Process> = (0..3).map(|_| Process::start(&dir, "reader", 0)).collect();
        let mut heed = |(word, numbers): (String, Vec<u64>)| {
            let Some(&number) = numbers.first() else { return };
            match word.as_str() {
                // A clear that was under way may have taken everything with it.
                "opened" => assert!(
                    number >= flushed || cleared > flushed,
                    "batch {flushed} was flushed, and {number} is there"
                ),
                "clear" => cleared = number,
                _ => flushed = number,
            }
            reached.set((flushed, cleared));
        };
        let words = ["opened", "clear", "flushed"];
        for cycle in 0..cycles {
            for _ in 0..=rng.below(60) {
                heed(writer.line(&words).expect("a writer goes on until it is killed"));
            }
            readers.iter_mut().for_each(Process::see);
            if cycle % 3 == 2 {
                let at = rng.index(readers.len());
                checks += readers.remove(at).kill();
                readers.push(Process::start(&dir, "reader", 0));
            }
            writer.kill();
            // Its earlier answers count.
            while let Some(line) = writer.line(&words) {
                heed(line);
            }
            writer = Process::start(&dir, "writer", reached.get().1);
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(seconds) {
            heed(writer.line(&words).expect("a writer goes on until it is killed"));
            readers.iter_mut().for_each(Process::see);
        }
        writer.kill();
        checks += readers.iter_mut().map(Process::kill).sum::<u64>();
        println!(
            "readers compared {checks} keys while the writer got to batch {}",
            reached.get().0
        );
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
