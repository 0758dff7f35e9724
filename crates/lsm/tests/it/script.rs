//! A scripted session and its model, for tests that interrupt it.
//!
//! A script is a list of steps drawn from a seed: sessions opened and closed, tables made,
//! duplicated, updated through flushes and merges, saved, restored, deleted. The same script makes
//! the same calls on the disk each time, so a test can strike at any one of them. The model says
//! what the tables and the snapshots hold after each step.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_io::SimDisk;
use terrane_lsm::{
    CompactionPolicy, CompactionSchedule, CompressedLevels, Compression, DiskCache, Error, Lookup,
    Result, Session, SessionOptions, SnapshotName, Table, TableConfig, Update, WriteBuffer,
};
use terrane_testkit::RngCore;
use terrane_testkit::draw::Draw;
use terrane_testkit::keys::{Keys, Shape};
use terrane_testkit::model::Content;

use crate::FEW_OPEN_FILES;

/// Directory of the session of a script.
pub(crate) const DIR: &str = "/ledger";

/// The label of all snapshots.
pub(crate) const LABEL: &str = "ledger";

/// Content of the snapshots of a session, by name.
pub(crate) type Snapshots = BTreeMap<String, Content>;

/// Changes of one call; `None` deletes.
pub(crate) type Batch = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// A call on a session. Tables are numbered in the order in which they were made since it was
/// opened.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Open,
    NewTable,
    Duplicate(usize),
    Updates(usize, Batch),
    /// All keys from the first one on, up to but not including the second.
    DeleteRange(usize, Vec<u8>, Vec<u8>),
    /// Looks up all keys and scans.
    Read(usize),
    Save(usize, &'static str),
    OpenSnapshot(String),
    Delete(&'static str),
    Rename(&'static str, &'static str),
    /// Drops the table that was made last.
    Drop,
    Close,
}

/// A workload.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) config: TableConfig,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) steps: Vec<Step>,
}

/// Expected content of tables and snapshots.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) tables: Vec<Content>,
    pub(crate) snapshots: Snapshots,
}

impl Model {
    /// Does what a step does when it succeeds.
    pub(crate) fn apply(&mut self, step: &Step) {
        match step {
            Step::Open | Step::Read(_) => {}
            Step::NewTable => self.tables.push(Content::new()),
            Step::Duplicate(table) => self.tables.push(self.tables[*table].clone()),
            Step::Updates(table, batch) => {
                for (key, value) in batch {
                    match value {
                        Some(value) => self.tables[*table].insert(key.clone(), value.clone()),
                        None => self.tables[*table].remove(key),
                    };
                }
            }
            Step::DeleteRange(table, from, end) => {
                self.tables[*table].retain(|key, _| key < from || key >= end);
            }
            Step::Save(table, name) => {
                self.snapshots.insert((*name).to_owned(), self.tables[*table].clone());
            }
            Step::OpenSnapshot(name) => self.tables.push(self.snapshots[name].clone()),
            Step::Delete(name) => {
                self.snapshots.remove(*name);
            }
            Step::Rename(from, to) => {
                if let Some(content) = self.snapshots.remove(*from) {
                    self.snapshots.insert((*to).to_owned(), content);
                }
            }
            Step::Drop => {
                self.tables.pop();
            }
            Step::Close => self.tables.clear(),
        }
    }
}

/// The handles of a script under way.
#[derive(Debug)]
pub(crate) struct Runner<'a> {
    disk: Arc<SimDisk>,
    script: &'a Script,
    // Tables go before their session, as in a program.
    pub(crate) tables: Vec<Table>,
    pub(crate) session: Option<Session>,
}

pub(crate) fn snapshot_name(text: &str) -> SnapshotName {
    SnapshotName::new(text).unwrap()
}

/// Opens the session of a script, with so few open files that each call may have to open one; the
/// salt counts only for a new one.
pub(crate) fn open(disk: &Arc<SimDisk>) -> Result<Session> {
    let options = SessionOptions::with_salt(0x5A17 + disk.calls()).create_dir();
    let options = options.open_files_max(FEW_OPEN_FILES);
    Session::open(Arc::clone(disk) as Arc<_>, Path::new(DIR), &options)
}

/// A batch as tables take it.
pub(crate) fn updates(batch: &Batch) -> Vec<(&[u8], Update<'_>)> {
    batch
        .iter()
        .map(|(key, value)| {
            (key.as_slice(), value.as_deref().map_or(Update::Delete, Update::Insert))
        })
        .collect()
}

pub(crate) fn update(table: &mut Table, batch: &Batch) -> Result<()> {
    let updates = updates(batch);
    table.write_batch(&updates)
}

/// Everything in a table, in the order of a scan.
pub(crate) fn scan(table: &Table) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut cursor = table.cursor()?;
    let mut found = Vec::new();
    while let Some(record) = cursor.next().transpose()? {
        found.push((record.key, record.value.into_vec()));
    }
    Ok(found)
}

/// Reads all of a table in every way.
///
/// # Errors
/// Errors of the table.
///
/// # Panics
/// If it holds anything but `content`.
pub(crate) fn check_table(table: &Table, content: &Content, keys: &[Vec<u8>]) -> Result<()> {
    let check = |key: &[u8], lookup: &Lookup| {
        assert_eq!(lookup.value(), content.get(key).map(Vec::as_slice), "lookup of {key:02x?}");
    };

    // Of a duplicate, which does no merge work while it waits: a check changes nothing.
    let reader = table.fork()?;
    let lookups = reader.get_many(keys)?;
    assert_eq!(lookups.len(), keys.len());
    keys.iter().zip(&lookups).for_each(|(key, lookup)| check(key, lookup));

    if let Some(key) = keys.first() {
        check(key, &reader.get(key)?);
    }
    let expected: Vec<_> =
        content.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let found = scan(table)?;
    assert!(found == expected, "a scan gave {} entries, {} expected", found.len(), expected.len());
    Ok(())
}

impl<'a> Runner<'a> {
    pub(crate) fn new(disk: &Arc<SimDisk>, script: &'a Script) -> Self {
        Self { disk: Arc::clone(disk), script, tables: Vec::new(), session: None }
    }

    pub(crate) fn script(&self) -> &'a Script {
        self.script
    }

    pub(crate) fn session(&self) -> Result<&Session> {
        self.session.as_ref().ok_or(Error::SessionClosed)
    }

    /// Carries out a step; `model` says what tables hold now.
    pub(crate) fn step(&mut self, step: &Step, model: &Model) -> Result<()> {
        match step {
            Step::Open => self.session = Some(open(&self.disk)?),
            Step::NewTable => {
                let table = self.session()?.new_table(&self.script.config)?;
                self.tables.push(table);
            }
            Step::Duplicate(table) => self.tables.push(self.tables[*table].fork()?),
            Step::Updates(table, batch) => update(&mut self.tables[*table], batch)?,
            Step::DeleteRange(table, from, end) => {
                self.tables[*table].delete_range(&from[..]..&end[..])?;
            }
            Step::Read(table) => {
                check_table(&self.tables[*table], &model.tables[*table], &self.script.keys)?;
            }
            Step::Save(table, name) => {
                self.tables[*table].save_snapshot(&snapshot_name(name), LABEL)?;
            }
            Step::OpenSnapshot(name) => {
                let table = self.session()?.open_snapshot(&snapshot_name(name), LABEL)?;
                self.tables.push(table);
            }
            Step::Delete(name) => self.session()?.delete_snapshot(&snapshot_name(name))?,
            Step::Rename(from, to) => {
                self.session()?.rename_snapshot(&snapshot_name(from), &snapshot_name(to))?;
            }
            Step::Drop => drop(self.tables.pop()),
            Step::Close => {
                self.tables.clear();
                if let Some(session) = self.session.take() {
                    session.close()?;
                }
            }
        }

        Ok(())
    }

    /// Reads all tables.
    pub(crate) fn check_tables(&self, model: &Model) -> Result<()> {
        assert_eq!(self.tables.len(), model.tables.len());
        for (table, content) in self.tables.iter().zip(&model.tables) {
            check_table(table, content, &self.script.keys)?;
        }
        Ok(())
    }
}

/// Updates of a few keys, now and then with a value of several pages.
pub(crate) fn draw_batch(keys: &[Vec<u8>], count: usize, rng: &mut impl RngCore) -> Batch {
    let update = |rng: &mut _| {
        let key = Draw::pick::<Vec<u8>>(rng, keys).clone();
        let value_bytes = match Draw::below(rng, 24) {
            0 => 4_000 + Draw::index(rng, 5_000),
            1 => 0,
            _ => Draw::index(rng, 160),
        };
        // Every other value can be compressed.
        let value = if Draw::chance(rng, 1, 2) {
            vec![key.last().copied().unwrap_or(7); 2 * value_bytes]
        } else {
            Draw::bytes(rng, value_bytes)
        };
        (key, (!Draw::chance(rng, 1, 4)).then_some(value))
    };
    (0..count).map(|_| update(rng)).collect()
}

/// Choices of the levels that are compressed.
pub(crate) const COMPRESSED_LEVELS: [CompressedLevels; 3] =
    [CompressedLevels::From(1), CompressedLevels::From(2), CompressedLevels::Last];

/// A configuration so small that a few dozen updates flush and merge.
pub(crate) fn draw_config(rng: &mut impl RngCore) -> TableConfig {
    let policies =
        [CompactionPolicy::LazyLevelling, CompactionPolicy::Levelling, CompactionPolicy::Tiering];
    TableConfig::default()
        .compaction_policy(*rng.pick(&policies))
        .size_ratio(2 + rng.below(3) as u32)
        .compaction_schedule(*rng.pick(&[
            CompactionSchedule::Incremental,
            CompactionSchedule::Incremental,
            CompactionSchedule::OneShot,
        ]))
        .write_buffer(*rng.pick(&[
            WriteBuffer::Entries(1),
            WriteBuffer::Entries(7),
            WriteBuffer::Entries(10),
            WriteBuffer::Bytes(1_000),
        ]))
        .disk_cache(*rng.pick(&[DiskCache::All, DiskCache::None]))
        .compression(*rng.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]))
        .compressed_levels(*rng.pick(&COMPRESSED_LEVELS))
        .compaction_batch_pages(1 + rng.below(3) as u32)
        .prefix_bytes(*rng.pick(&[None, Some(2)]))
        .queue_depth(1 + rng.below(8) as u32)
}

impl Script {
    /// A script in which every kind of step occurs; `count` scales the updates.
    pub(crate) fn draw(count: usize, rng: &mut impl RngCore) -> Self {
        let config = draw_config(rng);

        // A flush for each update is enough of a load with a fraction of them.
        let count = if config.write_buffer == WriteBuffer::Entries(1) { count / 4 } else { count };
        let shape = *rng.pick(&[Shape::SharedPrefix, Shape::Clustered, Shape::Uniform]);

        let keys = Keys::new(shape, 40, rng).all().to_vec();
        let mut steps = Vec::new();
        let updates = |table: usize, share: usize, rng: &mut _, steps: &mut Vec<Step>| {
            let mut left = (count * share / 10).max(1);
            while left > 0 {
                let size = (1 + Draw::index(rng, 20)).min(left);
                left -= size;
                steps.push(Step::Updates(table, draw_batch(&keys, size, rng)));
                if Draw::chance(rng, 1, 4) {
                    let mut ends = [0, 0].map(|_| Draw::pick::<Vec<u8>>(rng, &keys).clone());
                    ends.sort();
                    let [from, end] = ends;
                    steps.push(Step::DeleteRange(table, from, end));
                }
            }
        };

        steps.extend([Step::Open, Step::NewTable]);
        updates(0, 10, rng, &mut steps);
        steps.push(Step::Save(0, "a"));
        updates(0, 5, rng, &mut steps);
        steps.push(Step::Duplicate(0));
        updates(0, 3, rng, &mut steps);
        updates(1, 6, rng, &mut steps);
        steps.extend([Step::Save(1, "b"), Step::Read(1), Step::Delete("a")]);
        updates(0, 4, rng, &mut steps);
        steps.extend([Step::Save(0, "c"), Step::OpenSnapshot("b".to_owned())]);
        updates(2, 5, rng, &mut steps);
        steps.extend([Step::Read(2), Step::Save(2, "a"), Step::Drop, Step::Read(0), Step::Close]);
        steps.extend([Step::Open, Step::OpenSnapshot("c".to_owned()), Step::Read(0)]);
        updates(0, 5, rng, &mut steps);
        steps.extend([Step::Save(0, "d"), Step::Delete("b"), Step::Rename("a", "b")]);
        steps.push(Step::OpenSnapshot("b".to_owned()));
        updates(1, 2, rng, &mut steps);
        steps.extend([Step::Read(1), Step::Delete("b"), Step::Read(1), Step::Close]);
        Self { config, keys, steps }
    }
}

/// The files of the session in one of its directories.
pub(crate) fn files_in(disk: &SimDisk, directory: &str) -> Vec<std::path::PathBuf> {
    let directory = Path::new(DIR).join(directory);
    disk.files().into_iter().filter(|path| path.starts_with(&directory)).collect()
}
