//! One trace of operations on several engines. Every answer is compared with that of a sorted map,
//! entry by entry.
//!
//! * A trace follows from a seed. It begins with a bulk load. A step is a commit, a lookup of many
//!   keys, a scan, the end of all merges, or closing and opening again.
//! * Few keys are drawn often, so that commits overwrite and remove what is there; a commit may
//!   name a key twice. Keys have the shapes that break indexes: hashes, a long common prefix, one
//!   to three bytes, a key that is the beginning of another. Values have 0 to 70,000 bytes.
//! * After the last step all entries are compared, before and after closing and opening again.
//! * The first difference ends the run. It names seed, step, engine and key.
//!
//! An engine whose keys have no order is asked for lookups alone, and every key is looked up at the
//! end. An engine that cannot take part says why.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::Bound;
use std::path::PathBuf;

use clap::ValueEnum as _;
use serde::Serialize;
use terrane_bench::workloads::draws::{Stream, below, mix};
use terrane_bench::workloads::utxo;

use crate::arguments::count;
use crate::engine::{Batch, Durability, Engine, Error, Result, Terms};
use crate::engines::open;
use crate::kind::Kind;

/// Memory of each engine: little, so that data leave it.
const MEMORY: u64 = 64 << 20;

/// Changes of a commit, keys of a lookup and entries of a scan at most.
const CHANGES_MAX: u64 = 300;
const KEYS_MAX: u64 = 200;
const SCANNED_MAX: u64 = 500;

/// Entries that are compared by one call at the end.
const PIECE: usize = 1_000;

/// Bytes of the longest key: what LMDB takes, rounded down.
const KEY_MAX: usize = 500;

/// Options of a differential run.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Engines.
    #[arg(long, value_delimiter = ',', default_values_t = engines())]
    engines: Vec<Kind>,
    /// Steps after the load, as 20k.
    #[arg(long, value_parser = count, default_value = "20k")]
    steps: u64,
    /// Keys that operations draw from; every second one is loaded first.
    #[arg(long, value_parser = count, default_value = "100k")]
    keys: u64,
    /// Seed of the trace.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The event that commits survive.
    #[arg(long, value_enum, default_value = "none")]
    durability: Durability,
    /// An empty folder for the files.
    #[arg(long)]
    dir: PathBuf,
}

fn engines() -> Vec<Kind> {
    let is_named =
        |kind: &Kind| ["terrane", "rocksdb", "redb", "sqlite"].contains(&kind.to_string().as_str());
    Kind::value_variants().iter().copied().filter(is_named).collect()
}

/// The report of a run without a difference.
#[derive(Debug, Serialize)]
struct Report {
    seed: u64,
    steps: u64,
    commits: u64,
    changes: u64,
    reopened: u64,
    /// Entries at the end.
    entries: usize,
    engines: Vec<EngineReport>,
}

#[derive(Debug, Serialize)]
struct EngineReport {
    engine: String,
    version: Option<String>,
    /// Answers for a key, and entries of scans, that were compared.
    compared: u64,
    /// Why it took no part, or was asked for less.
    cannot: Option<&'static str>,
}

/// The draws of a trace.
struct Trace {
    seed: u64,
    stream: Stream,
    at: u64,
    keys: u64,
}

impl Trace {
    fn new(seed: u64, keys: u64) -> Self {
        Self { seed, stream: Stream { start: mix(seed, 0) }, at: 0, keys }
    }

    /// A number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.at += 1;
        below(self.stream.output(self.at - 1), bound)
    }

    /// The key of a number. Numbers may share one.
    fn key(&self, number: u64) -> Vec<u8> {
        let hash = |number| utxo::entry(self.seed, number).0;
        match number % 5 {
            0 => hash(number).to_vec(),
            1 => [b"a prefix that all share ".as_slice(), &number.to_be_bytes()].concat(),
            2 => hash(number)[..1 + number as usize / 5 % 3].to_vec(),
            3 => [hash(number - 3).as_slice(), &[0]].concat(),
            _ => {
                let mut key = vec![b'k'; 60 + number as usize % (KEY_MAX - 68)];
                key.extend_from_slice(&number.to_le_bytes());
                key
            }
        }
    }

    fn drawn_key(&mut self) -> Vec<u8> {
        let number = self.draw(self.keys);
        self.key(number)
    }

    fn drawn_value(&mut self) -> Vec<u8> {
        let length = match self.draw(1_000) {
            0 => 6_000 + self.draw(64_000),
            1..50 => 1_000 + self.draw(5_000),
            50..250 => 100 + self.draw(900),
            250..300 => 0,
            _ => 1 + self.draw(100),
        };
        let words = length.div_ceil(8);
        let mut value: Vec<u8> =
            (0..words).flat_map(|_| self.draw(u64::MAX).to_le_bytes()).collect();
        value.truncate(length as usize);
        value
    }
}

/// One engine of a run.
struct Side<'a> {
    name: String,
    open: Box<dyn Fn() -> Result<Box<dyn Engine>> + 'a>,
    engine: Option<Box<dyn Engine>>,
    version: Option<String>,
    compared: u64,
    has_order: bool,
    cannot: Option<&'static str>,
}

impl<'a> Side<'a> {
    fn new(name: String, open: impl Fn() -> Result<Box<dyn Engine>> + 'a) -> Self {
        let open = Box::new(open);
        Self { name, open, engine: None, version: None, compared: 0, has_order: true, cannot: None }
    }

    /// Calls the engine, unless it takes no part. It takes none from now on if it says that it
    /// cannot.
    fn call<T: Default>(
        &mut self,
        call: impl FnOnce(&dyn Engine, &mut u64) -> Result<T>,
    ) -> Result<T> {
        let Some(engine) = &self.engine else { return Ok(T::default()) };
        match call(engine.as_ref(), &mut self.compared) {
            Err(Error::Cannot(why)) => {
                (self.engine, self.cannot) = (None, Some(why));
                Ok(T::default())
            }
            result => result,
        }
    }

    fn open(&mut self) -> Result<()> {
        match (self.open)() {
            Ok(engine) => {
                self.version = Some(engine.about().version);
                self.engine = Some(engine);
                Ok(())
            }
            Err(Error::Cannot(why)) => {
                self.cannot = Some(why);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn reopen(&mut self) -> Result<()> {
        let Some(engine) = self.engine.take() else { return Ok(()) };
        engine.close()?;
        self.open()
    }

    fn load(&mut self, batch: &Batch) -> Result<()> {
        self.call(|engine, _| {
            engine.load(batch)?;
            engine.settle()
        })
    }

    /// Compares the answers for some keys.
    fn look_up(&mut self, keys: &[&[u8]], model: &Model) -> Result<()> {
        self.call(|engine, compared| {
            let mut is_open = vec![true; keys.len()];
            engine.get_many(keys, &mut |position, value| {
                let key = keys[position];
                let expected = model.get(key).map(Vec::as_slice);
                if value != expected {
                    let [said, right] = [value, expected].map(told);
                    return Err(Error::Wrong(format!(
                        "{said} for key {}, and {right} is right",
                        hex(key)
                    )));
                }
                is_open[position] = false;
                Ok(())
            })?;
            if let Some(position) = is_open.iter().position(|is_open| *is_open) {
                return Err(Error::Wrong(format!("no answer for key {}", hex(keys[position]))));
            }
            *compared += keys.len() as u64;
            Ok(())
        })
    }

    /// Compares up to `limit` entries from a key on.
    fn scan(&mut self, from: &[u8], limit: usize, model: &Model) -> Result<()> {
        if !self.has_order {
            return Ok(());
        }
        let Some(engine) = &self.engine else { return Ok(()) };
        let mut expected = entries_from(model, from).take(limit);
        let scanned = engine.scan(from, limit, &mut |key, value| {
            let right = expected.next().map(|(key, value)| (key.as_slice(), value.as_slice()));
            if right == Some((key, value)) {
                return Ok(());
            }
            let right = match right {
                Some((key, value)) => format!("key {} with {}", hex(key), told(Some(value))),
                None => "no entry".to_owned(),
            };
            let said = format!("key {} with {}", hex(key), told(Some(value)));
            Err(Error::Wrong(format!(
                "a scan from {} says {said}, and {right} is right",
                hex(from)
            )))
        });
        match scanned {
            Ok(count) => self.compared += count as u64,
            Err(Error::Cannot(why)) => {
                (self.has_order, self.cannot) = (false, Some(why));
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        match expected.next() {
            None => Ok(()),
            Some((key, _)) => {
                Err(Error::Wrong(format!("a scan from {} ends before key {}", hex(from), hex(key))))
            }
        }
    }

    /// Compares all entries, and looks up all keys if they have no order.
    fn all(&mut self, trace: &Trace, model: &Model) -> Result<()> {
        let mut from = vec![0];
        while self.has_order {
            self.scan(&from, PIECE, model)?;
            let Some((last, _)) = entries_from(model, &from).take(PIECE).last() else {
                return Ok(());
            };
            from = [last.as_slice(), &[0]].concat();
        }
        let keys: Vec<Vec<u8>> = (0..trace.keys).map(|number| trace.key(number)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        keys.chunks(PIECE).try_for_each(|keys| self.look_up(keys, model))
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn entries_from<'a>(
    model: &'a Model,
    from: &[u8],
) -> impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)> + use<'a> {
    model.range::<[u8], _>((Bound::Included(from), Bound::Unbounded))
}

fn hex(bytes: &[u8]) -> String {
    terrane_replay::hex::encode(bytes)
}

/// A value in a message: its length and its beginning.
fn told(value: Option<&[u8]>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(value) => format!("{} bytes {}", value.len(), hex(&value[..value.len().min(8)])),
    }
}

/// Runs a trace on all sides.
fn compare(sides: &mut [Side<'_>], seed: u64, keys: u64, steps: u64) -> Result<Report> {
    let mut trace = Trace::new(seed, keys);
    let mut model = Model::new();
    let mut report = Report {
        seed,
        steps,
        commits: 0,
        changes: 0,
        reopened: 0,
        entries: 0,
        engines: Vec::new(),
    };

    for number in (0..keys).step_by(2) {
        let value = trace.drawn_value();
        model.insert(trace.key(number), value);
    }
    let mut batch = Batch::default();
    for (key, value) in &model {
        batch.put(key, value);
    }
    each(sides, seed, "the load", |side| {
        side.open()?;
        side.load(&batch)
    })?;

    for step in 0..steps {
        let at = format!("step {step}");
        match trace.draw(1_000) {
            0..2 => {
                report.reopened += 1;
                each(sides, seed, &at, |side| side.reopen())?;
            }
            2..5 => each(sides, seed, &at, |side| side.call(|engine, _| engine.settle()))?,
            5..250 => {
                let keys: Vec<Vec<u8>> =
                    (0..=trace.draw(KEYS_MAX)).map(|_| trace.drawn_key()).collect();
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                each(sides, seed, &at, |side| side.look_up(&keys, &model))?;
            }
            250..400 => {
                let (from, limit) = (trace.drawn_key(), 1 + trace.draw(SCANNED_MAX) as usize);
                each(sides, seed, &at, |side| side.scan(&from, limit, &model))?;
            }
            _ => {
                batch.clear();
                for _ in 0..=trace.draw(CHANGES_MAX) {
                    let key = trace.drawn_key();
                    if trace.draw(10) < 4 {
                        batch.delete(&key);
                        model.remove(&key);
                    } else {
                        let value = trace.drawn_value();
                        batch.put(&key, &value);
                        model.insert(key, value);
                    }
                }
                report.commits += 1;
                report.changes += batch.len() as u64;
                each(sides, seed, &at, |side| side.call(|engine, _| engine.write(&batch)))?;
            }
        }
    }

    each(sides, seed, "the end", |side| side.all(&trace, &model))?;
    each(sides, seed, "the last open", |side| {
        side.reopen()?;
        side.all(&trace, &model)?;
        side.engine.take().map_or(Ok(()), Engine::close)
    })?;
    report.entries = model.len();
    report.engines = sides
        .iter()
        .map(|side| EngineReport {
            engine: side.name.clone(),
            version: side.version.clone(),
            compared: side.compared,
            cannot: side.cannot,
        })
        .collect();
    Ok(report)
}

/// Does a step on each side. A wrong answer says where it was.
fn each(
    sides: &mut [Side<'_>],
    seed: u64,
    at: &str,
    mut step: impl FnMut(&mut Side<'_>) -> Result<()>,
) -> Result<()> {
    for side in sides {
        step(side).map_err(|error| match error {
            Error::Wrong(what) => {
                Error::Wrong(format!("{}, {at} of seed {seed}: {what}", side.name))
            }
            error => error,
        })?;
    }
    Ok(())
}

/// Runs a trace and prints one JSON object.
///
/// # Errors
/// The first difference; those of the engines and of the system.
pub fn run(options: &Options) -> Result<()> {
    let terms = Terms {
        memory: MEMORY,
        entries: options.keys,
        entry_bytes: utxo::ENTRY_SIZE,
        durability: options.durability,
        threads: 1,
        has_root: false,
    };
    let mut sides = Vec::new();
    for &kind in &options.engines {
        let dir = options.dir.join(kind.to_string());
        std::fs::create_dir_all(&dir)
            .map_err(|source| Error::System { what: format!("make {}", dir.display()), source })?;
        sides.push(Side::new(kind.to_string(), move || open(kind, &dir, &terms)));
    }
    let report = compare(&mut sides, options.seed, options.keys, options.steps)?;
    let text = serde_json::to_string(&report).map_err(|error| Error::Options(error.to_string()))?;
    writeln!(std::io::stdout(), "{text}")
        .map_err(|source| Error::System { what: "write to standard output".to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{About, IoMode};
    use std::sync::{Arc, Mutex};

    /// A map that forgets every `forgets`th commit; 0 for none.
    #[derive(Clone, Default)]
    struct Map {
        entries: Arc<Mutex<Model>>,
        commits: Arc<Mutex<u64>>,
        forgets: u64,
    }

    impl Engine for Map {
        fn about(&self) -> About {
            About::new("1", IoMode::Buffered, [])
        }

        fn load(&self, batch: &Batch) -> Result<()> {
            let mut entries = self.entries.lock().unwrap();
            for (key, value) in batch.iter() {
                match value {
                    Some(value) => entries.insert(key.to_vec(), value.to_vec()),
                    None => entries.remove(key),
                };
            }
            Ok(())
        }

        fn settle(&self) -> Result<()> {
            Ok(())
        }

        fn get_many(
            &self,
            keys: &[&[u8]],
            found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
        ) -> Result<()> {
            let entries = self.entries.lock().unwrap();
            keys.iter().enumerate().try_for_each(|(position, key)| {
                found(position, entries.get(*key).map(Vec::as_slice))
            })
        }

        fn write(&self, batch: &Batch) -> Result<()> {
            let mut commits = self.commits.lock().unwrap();
            *commits += 1;
            if self.forgets > 0 && commits.is_multiple_of(self.forgets) {
                return Ok(());
            }
            self.load(batch)
        }

        fn close(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn terrane_answers_as_a_map_does_and_an_engine_without_order_is_asked_for_lookups() {
        let dir = tempfile::tempdir().unwrap();
        let terms = Terms {
            memory: MEMORY,
            entries: 2_000,
            entry_bytes: utxo::ENTRY_SIZE,
            durability: Durability::FsyncEach,
            threads: 1,
            has_root: false,
        };
        let map = Map::default();
        let mut sides = [
            Side::new("terrane".to_owned(), || open(Kind::Terrane, dir.path(), &terms)),
            Side::new("map".to_owned(), || Ok(Box::new(map.clone()))),
            Side::new("pebble".to_owned(), || open(Kind::Pebble, dir.path(), &terms)),
        ];
        let report = compare(&mut sides, 3, 2_000, 600).unwrap();
        assert!(report.commits > 100 && report.reopened > 0 && report.entries > 500, "{report:?}");
        let [terrane, map, pebble] = report.engines.try_into().unwrap();
        assert!(terrane.compared > 10_000 && terrane.cannot.is_none(), "{terrane:?}");
        assert!(map.compared > 4_000 && map.cannot == Some("it has no order of keys"), "{map:?}");
        assert!(pebble.compared == 0 && pebble.cannot.is_some(), "{pebble:?}");
    }

    #[test]
    fn a_lost_commit_is_found_and_names_engine_seed_and_key() {
        let map = Map { forgets: 50, ..Map::default() };
        let mut sides = [Side::new("map".to_owned(), || Ok(Box::new(map.clone())))];
        let error = compare(&mut sides, 5, 1_000, 200).unwrap_err().to_string();
        assert!(
            error.starts_with("wrong answer: map, ") && error.contains("of seed 5: "),
            "{error}"
        );
        assert!(error.ends_with("is right"), "{error}");
    }
}
