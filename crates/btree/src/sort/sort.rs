//! External merge sort: any number of records in any order, by key, in bounded memory.
//!
//! The sorter collects records in memory; full memory is sorted and written as a *run*. Runs that
//! follow each other in the input are merged, up to [`SortOptions::fan_in`] at a time, until one
//! more merge gives all records in order. The caller reads that last merge ([`SortedRecords`]), so
//! it is never written. An input that fits into memory never touches the disk.
//!
//! **Resuming.** After each run and each merge, a manifest names the finished runs. A sort that is
//! opened again in the same directory, for the same input and with the same options, goes on from
//! there: [`Sorter::resumes_at`] records of the input need not be read again. Files that the
//! manifest does not name are half-written, and are removed.
//!
//! **Equal keys.** The sort is stable, so the last record of the input wins; or equal keys are
//! refused.
//!
//! **Files**, all in the chosen directory: `sort.manifest`, `sort.<number>.run`, and the empty
//! `sort.lock`, which keeps a second sort out.
//!
//! **Rejected.** Finding finished runs by their names (a half-written run looks finished); the bulk
//! load of tables (its entries must go through a session, with its directory, salt and levels).

#![doc = include_str!("../../../../docs/format/sort.md")]

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{Access, Anchor, Disk, EntryKind, LockGuard, OpenMode};

use super::arena::Arena;
use super::manifest::{MANIFEST, MANIFEST_TMP, Manifest, Parameters, RUNS_MAX, Run};
use super::merge::Merge;
use super::run::{
    BLOCK_ALIGN, POSITION_SIZE, RECORD_HEADER_SIZE, RunReader, RunWriter, run_name, run_number,
};
use crate::page::block::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::sort::input::{Records, in_range};

/// The file that keeps a second sort out of the directory.
const LOCK: &str = "sort.lock";

/// Largest block, in bytes.
const BLOCK_BYTES_MAX: usize = 256 << 10;

/// Most runs that one merge takes, each with an open file.
const FAN_IN_MAX: usize = 256;

/// Default number of runs that one merge takes.
const FAN_IN_DEFAULT: usize = 15;

/// Default memory of a sort, in bytes.
const MEMORY_BYTES_DEFAULT: usize = 256 << 20;

/// Records between two reports of progress.
const PROGRESS_RECORDS: u64 = 1 << 16;

/// Treatment of records with equal keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Duplicates {
    /// The last record of the input counts.
    LastWins,
    /// Equal keys are an error.
    Reject,
}

/// Options of a sort.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SortOptions {
    /// The directory of the temporary files, which must exist. One sort at a time can use it.
    pub dir: PathBuf,
    /// Identity of the input, for example a hash of its name, size and time of change. A sort of
    /// another input that is found in the directory is thrown away.
    pub input_identity: u64,
    /// Memory budget for records, sorting and merging together, in bytes. The list of runs takes up
    /// to 100 KB more. Default: 256 MiB. At least `fan_in + 2` times 4 KiB.
    pub memory_bytes: usize,
    /// Number of runs that one merge takes, 2 to 256. Default: 15.
    pub fan_in: usize,
    /// Treatment of records with equal keys. Default: the last one wins.
    pub duplicates: Duplicates,
    /// Bytes of all keys and values, if known: then twice as many must be free on the disk.
    pub input_bytes: Option<u64>,
}

impl SortOptions {
    /// The default options.
    #[must_use]
    pub fn new(dir: &Path, input_identity: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            input_identity,
            memory_bytes: MEMORY_BYTES_DEFAULT,
            fan_in: FAN_IN_DEFAULT,
            duplicates: Duplicates::LastWins,
            input_bytes: None,
        }
    }

    terrane_io::setters! {
        dir: impl Into<PathBuf>,
        input_identity: u64,
        memory_bytes: usize,
        fan_in: usize,
        duplicates: Duplicates,
        input_bytes: impl Into<Option<u64>>,
    }

    /// The parameters that the manifest records.
    ///
    /// The memory is for one block of each merged run, one block of the output, and the equivalent
    /// of one block for small parts.
    fn parameters(&self) -> Result<Parameters> {
        in_range("fan_in", self.fan_in, 2, FAN_IN_MAX, "2 to 256 runs are merged at once")?;
        let block_bytes = (self.memory_bytes / (self.fan_in + 2)).min(BLOCK_BYTES_MAX);
        let block_bytes = block_bytes / BLOCK_ALIGN * BLOCK_ALIGN;

        if block_bytes == 0 {
            let allowed = "a sort takes 4 KiB for each of the runs it merges, and 8 KiB";
            let value = self.memory_bytes.to_string();
            return Err(Error::InvalidConfig { option: "memory_bytes", value, allowed });
        }

        Ok(Parameters {
            identity: self.input_identity,
            block_bytes: block_bytes as u32,
            fan_in: self.fan_in as u32,
            is_unique: self.duplicates == Duplicates::Reject,
        })
    }
}

/// Statistics of a sort since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct SortStats {
    /// Runs written from memory.
    pub runs: u64,
    /// Merges written; the last merge never is.
    pub merges: u64,
    /// Bytes written to runs, from memory and by merges.
    pub written_bytes: u64,
    /// Most memory held at once, in bytes, without the list of runs.
    pub memory_bytes_max: usize,
}

impl SortStats {
    /// Raises the most memory held to `bytes`.
    fn note_memory(&mut self, bytes: usize) {
        self.memory_bytes_max = self.memory_bytes_max.max(bytes);
    }
}

/// The directory of a sort, locked.
#[derive(Debug)]
struct SortDir {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    _anchor: Box<dyn Anchor>,
    _lock: Box<dyn LockGuard>,
}

impl SortDir {
    /// Removes the runs that `keep` does not name, and the rest of an unfinished manifest.
    fn remove_runs(&self, keep: &[Run]) -> Result<()> {
        for entry in self.disk.list(&self.dir)? {
            let is_kept = |number| keep.iter().any(|run| run.number == number);
            let is_stale = run_number(&entry.name).is_some_and(|number| !is_kept(number));
            // Other files of the directory are left alone.
            if entry.kind == EntryKind::File && (is_stale || entry.name == MANIFEST_TMP) {
                self.disk.remove(&self.dir.join(&entry.name))?;
            }
        }
        Ok(())
    }

    /// Removes the manifest, durably, and then the runs: a manifest must never name a removed run.
    fn remove_sort(&self) -> Result<()> {
        match self.disk.remove(&self.dir.join(MANIFEST)) {
            Err(error) if error.is_not_found() => {}
            removed => {
                removed?;
                self.disk.sync_dir(&self.dir)?;
            }
        }
        self.remove_runs(&[])
    }

    /// Removes everything, the lock last.
    fn clean_up(&self) -> Result<()> {
        self.remove_sort()?;
        self.disk.remove(&self.dir.join(LOCK))?;
        Ok(self.disk.sync_dir(&self.dir)?)
    }

    /// Checks that the finished runs have the lengths that the manifest says.
    fn check_lengths(&self, manifest: &Manifest) -> Result<()> {
        for run in &manifest.runs {
            let path = self.dir.join(run_name(run.number));
            let file = self.disk.open(&path, OpenMode::Read, Access::Buffered)?;
            let expected = run.blocks.saturating_mul(manifest.parameters.block_bytes.into());
            let found = file.len()?;
            if found != expected {
                let what = Corrupt::rule("length of a run", expected, found);
                return Err(Error::Corrupt { path, what });
            }
        }
        Ok(())
    }

    /// Checks that there is room for twice the input, including the finished runs.
    fn check_room(&self, manifest: &Manifest, input_bytes: u64) -> Result<()> {
        let blocks: u64 = manifest.runs.iter().map(|run| run.blocks).sum();
        let written = blocks.saturating_mul(manifest.parameters.block_bytes.into());
        let needed_bytes = input_bytes.saturating_mul(2).saturating_sub(written);
        let free_bytes = self.disk.free_bytes(&self.dir)?;
        if free_bytes < needed_bytes {
            return Err(Error::NoSpace { path: self.dir.clone(), free_bytes, needed_bytes });
        }
        Ok(())
    }
}

/// Sorts any number of records by key, in bounded memory, with temporary files in a directory.
///
/// Full memory becomes a sorted run on disk; runs are merged when the input has ended. A sort that
/// was dropped, or whose process died, can be opened again and goes on from its last finished run
/// or merge.
///
/// ```
/// use std::path::Path;
/// use terrane_btree::{Records, SortOptions, Sorter};
/// # fn main() -> terrane_btree::Result<()> {
/// let disk = terrane_io::MemoryDisk::new();
/// let mut sorter = Sorter::open(disk, SortOptions::new(Path::new("/"), 1))?;
/// for (key, value) in [("b", "old"), ("a", "one"), ("b", "new")] {
///     sorter.push(key.as_bytes(), value.as_bytes())?;
/// }
/// let mut records = sorter.finish(&mut |_| {})?;
/// assert_eq!(records.next_ref()?, Some((&b"a"[..], &b"one"[..])));
/// assert_eq!(records.next_ref()?, Some((&b"b"[..], &b"new"[..])));
/// assert_eq!(records.next_ref()?, None);
/// records.remove_files()
/// # }
/// ```
#[doc(alias = "external_sort")]
#[derive(Debug)]
pub struct Sorter {
    sort_dir: SortDir,
    options: SortOptions,
    manifest: Manifest,
    arena: Arena,
    /// Number of records of the input so far, in runs and in memory.
    position: u64,
    /// Number of records pushed since the sort was opened; with `pushed_bytes`, the average that
    /// divides the memory.
    pushed: u64,
    pushed_bytes: u64,
    stats: SortStats,
}

impl Sorter {
    /// Begins a sort, or resumes the one that is found in the directory.
    ///
    /// Cost: reads the manifest and the lengths of the runs; removes the rest of another sort.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`]; [`Error::NoSpace`] if the size of the input is given and the disk
    /// has no room for it; [`Error::Corrupt`] and [`Error::UnsupportedVersion`] if the sort that is
    /// found is damaged, or of another version (remove its files to begin anew); [`Error::Disk`],
    /// among others if another sort uses the directory.
    pub fn open(disk: Arc<dyn Disk>, options: SortOptions) -> Result<Self> {
        let parameters = options.parameters()?;

        let dir = disk.absolute(&options.dir)?;
        let anchor = disk.anchor(&dir)?;
        let lock = disk.lock(&dir.join(LOCK))?;
        let sort_dir = SortDir { disk, dir, _anchor: anchor, _lock: lock };

        let found = Manifest::load(sort_dir.disk.as_ref(), &sort_dir.dir)?;
        let manifest = match found.filter(|found| found.parameters == parameters) {
            Some(manifest) => {
                sort_dir.remove_runs(&manifest.runs)?;
                sort_dir.check_lengths(&manifest)?;
                manifest
            }
            None => {
                sort_dir.remove_sort()?;
                Manifest::new(parameters)
            }
        };

        if let Some(input_bytes) = options.input_bytes {
            sort_dir.check_room(&manifest, input_bytes)?;
        }

        let position = manifest.covered();
        let arena = Arena::new(parameters.is_unique);
        let stats = SortStats::default();
        Ok(Self { sort_dir, options, manifest, arena, position, pushed: 0, pushed_bytes: 0, stats })
    }

    /// Number of records of the input that finished runs cover, so that they need not be pushed.
    #[must_use]
    pub fn resumes_at(&self) -> u64 {
        self.manifest.covered()
    }

    /// Statistics since the sort was opened.
    #[must_use]
    pub fn stats(&self) -> SortStats {
        self.stats
    }

    /// Takes the next record of the input.
    ///
    /// Cost: memory only. Full memory is sorted and written as a run, with a manifest, two syncs of
    /// files and two of the directory.
    ///
    /// # Errors
    /// [`Error::RecordTooLarge`], [`Error::Disk`]; [`Error::DuplicateKey`] where duplicates are
    /// refused, with the position of a record whose key came before (any of several). The record
    /// was not taken.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
            let key_bytes = key.len();
            let value_bytes = value.len();
            return Err(Error::RecordTooLarge { position: self.position, key_bytes, value_bytes });
        }

        let position_bytes = if self.manifest.parameters.is_unique { POSITION_SIZE } else { 0 };
        let bytes = RECORD_HEADER_SIZE + position_bytes + key.len() + value.len();
        self.pushed += 1;
        self.pushed_bytes += bytes as u64;

        // An arena begins without memory, so the first record comes here, too. The average so far
        // divides the memory.
        if !self.arena.has_room(bytes) {
            self.spill()?;
            let average = self.pushed_bytes / self.pushed;
            self.arena.allocate(self.arena_bytes(), average as usize)?;
            self.stats.note_memory(self.arena.memory_bytes());
        }

        self.arena.push(key, value, self.position);
        self.position += 1;
        Ok(())
    }

    /// Takes all of `input`, from the first record of the input on, and passes over the records
    /// that finished runs cover. Reports now and then how many records have been read.
    ///
    /// # Errors
    /// Those of the input and of [`push`](Self::push); [`Error::TruncatedInput`] if the input has
    /// fewer records than the finished runs cover.
    pub fn push_all(
        &mut self,
        input: &mut dyn Records,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let passed = self.position;
        let mut position = 0;
        while let Some((key, value)) = input.next_ref()? {
            if position >= passed {
                self.push(key, value)?;
            }
            position += 1;
            if position % PROGRESS_RECORDS == 0 {
                progress(position);
            }
        }

        if position < passed {
            return Err(Error::TruncatedInput { position, bytes: 0 });
        }

        progress(position);
        Ok(())
    }

    /// Ends the input, and merges until one merge is left, whose records the result gives. Reports
    /// now and then how many records have been merged.
    ///
    /// Cost: each merge reads its runs and writes them as one. No merge for fewer than `fan_in`
    /// runs.
    ///
    /// # Errors
    /// Those of [`push`](Self::push); [`Error::Corrupt`] if a file is damaged.
    pub fn finish(mut self, progress: &mut dyn FnMut(u64)) -> Result<SortedRecords> {
        // All records are in memory, so nothing is written.
        if self.manifest.runs.is_empty() {
            self.arena.sort();
            let Self { sort_dir, arena, stats, .. } = self;
            return Ok(SortedRecords {
                sort_dir,
                source: Source::Memory { arena, next: 0 },
                stats,
            });
        }

        self.spill()?;

        let mut merged = 0;
        let mut count = || {
            merged += 1;
            if merged % PROGRESS_RECORDS == 0 {
                progress(merged);
            }
        };

        // The last merge is not written: the caller reads it.
        while self.manifest.runs.len() > self.options.fan_in {
            self.merge_some(&mut count)?;
        }

        let merge = self.open_merge(&self.manifest.runs)?;
        self.stats.note_memory(merge.memory_bytes());
        let Self { sort_dir, stats, .. } = self;
        Ok(SortedRecords { sort_dir, source: Source::Merge(merge), stats })
    }

    /// Memory for records and their order: without one block that is being written, and one for
    /// small parts.
    fn arena_bytes(&self) -> usize {
        debug_assert!(
            2 * self.manifest.parameters.block_bytes as usize <= self.options.memory_bytes,
            "`parameters` divides the memory by four or more"
        );
        self.options.memory_bytes - 2 * self.manifest.parameters.block_bytes as usize
    }

    /// A number that no file has, nor had before a failure.
    fn take_number(&mut self) -> u64 {
        self.manifest.next_number += 1;
        self.manifest.next_number - 1
    }

    /// Creates the file of a run.
    fn create(&self, run: Run) -> Result<RunWriter> {
        let SortDir { disk, dir, .. } = &self.sort_dir;
        RunWriter::create(disk.as_ref(), dir, self.manifest.parameters, run)
    }

    /// Writes the records in memory as a run, if there are any, and gives the memory back.
    fn spill(&mut self) -> Result<()> {
        if self.arena.len() == 0 {
            return Ok(());
        }

        self.arena.sort();

        let first = self.manifest.covered();
        let covered = self.arena.len() as u64;
        let number = self.take_number();
        let mut writer = self.create(Run { number, first, covered, records: 0, blocks: 0 })?;
        self.stats.note_memory(self.arena.memory_bytes() + writer.memory_bytes());

        // Only the last of several records with equal keys goes into the run.
        let mut index = 0;
        while let Some((record, next)) = self.arena.last_of_key(index)? {
            writer.push(&record)?;
            index = next;
        }

        let end = self.manifest.runs.len();
        self.publish(writer.finish()?, end..end)?;
        self.stats.runs += 1;
        self.arena.release();

        // The manifest has room for a bounded number of runs.
        if self.manifest.runs.len() == RUNS_MAX {
            self.merge_some(&mut || {})?;
        }

        Ok(())
    }

    /// Merges some runs that follow each other: as many as one merge takes, or fewer if that is
    /// enough. Of all such runs it takes those with the fewest bytes. Calls `count` for each
    /// record.
    fn merge_some(&mut self, count: &mut dyn FnMut()) -> Result<()> {
        let runs = &self.manifest.runs;
        let fan_in = self.options.fan_in;
        // As few runs as leave `fan_in` of them, which the last merge takes.
        let width = fan_in.min((runs.len() + 1).saturating_sub(fan_in)).max(2);
        debug_assert!(width <= runs.len(), "there are enough runs to merge");
        let blocks =
            |at: &usize| -> u64 { runs[*at..at + width].iter().map(|run| run.blocks).sum() };

        // Only neighbours are merged, so that the order of the runs stays the order of the input.
        let at = (0..=runs.len() - width).min_by_key(blocks).unwrap_or(0);
        let inputs = runs[at..at + width].to_vec();

        let first = inputs[0].first;
        let covered = inputs.iter().map(|run| run.covered).sum();

        let number = self.take_number();
        let mut merge = self.open_merge(&inputs)?;
        let mut writer = self.create(Run { number, first, covered, records: 0, blocks: 0 })?;
        self.stats.note_memory(merge.memory_bytes() + writer.memory_bytes());

        while let Some(record) = merge.next()? {
            writer.push(&record)?;
            count();
        }

        // Open files still take their space.
        drop(merge);
        self.publish(writer.finish()?, at..at + width)?;
        self.stats.merges += 1;

        // Only now: the manifest does not name these runs any more.
        for run in inputs {
            self.sort_dir.disk.remove(&self.sort_dir.dir.join(run_name(run.number)))?;
        }

        Ok(())
    }

    /// Opens a merge of some runs.
    fn open_merge(&self, runs: &[Run]) -> Result<Merge> {
        let SortDir { disk, dir, .. } = &self.sort_dir;
        let parameters = self.manifest.parameters;
        let open = |run: &Run| RunReader::open(disk.as_ref(), dir, parameters, *run);
        let readers = runs.iter().map(open).collect::<Result<_>>()?;
        Ok(Merge::new(readers, parameters.is_unique))
    }

    /// Puts a finished run into the place of those in `range`, durably: first its name, then the
    /// manifest that names it.
    fn publish(&mut self, run: Run, range: Range<usize>) -> Result<()> {
        let SortDir { disk, dir, .. } = &self.sort_dir;
        disk.sync_dir(dir)?;

        let mut manifest = self.manifest.clone();
        manifest.runs.splice(range, [run]);
        debug_assert!(
            manifest.runs.windows(2).all(|pair| pair[0].first + pair[0].covered == pair[1].first),
            "runs follow each other in the input"
        );
        manifest.store(disk.as_ref(), dir)?;

        // Only a manifest that is stored counts: after a failure the older one is true.
        self.manifest = manifest;
        self.stats.written_bytes += run.blocks * u64::from(self.manifest.parameters.block_bytes);
        Ok(())
    }
}

/// Source of sorted records.
#[derive(Debug)]
enum Source {
    /// The input was small: records from this index on.
    Memory { arena: Arena, next: usize },
    /// The last merge of the runs.
    Merge(Merge),
}

/// All records of a sort in ascending order of their keys, each key once.
///
/// Dropping the value leaves the sort as it is, to be opened again and read from its beginning.
/// [`remove_files`](Self::remove_files) ends the sort for good.
#[derive(Debug)]
pub struct SortedRecords {
    sort_dir: SortDir,
    source: Source,
    stats: SortStats,
}

impl SortedRecords {
    /// Statistics since the sort was opened.
    #[must_use]
    pub fn stats(&self) -> SortStats {
        self.stats
    }

    /// Removes all files of the sort. Call it once the records are durable elsewhere.
    ///
    /// # Errors
    /// [`Error::Disk`]; some of the files may be left.
    pub fn remove_files(self) -> Result<()> {
        let Self { sort_dir, source, .. } = self;
        // Open files still take their space.
        drop(source);
        sort_dir.clean_up()
    }
}

impl Records for SortedRecords {
    /// Cost: a read for each block of each run, of up to 256 KiB.
    ///
    /// # Errors
    /// [`Error::Disk`]; [`Error::Corrupt`] if a file is damaged; [`Error::DuplicateKey`] where
    /// duplicates are refused.
    fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let record = match &mut self.source {
            Source::Memory { arena, next } => arena.last_of_key(*next)?.map(|(record, after)| {
                *next = after;
                record
            }),
            Source::Merge(merge) => merge.next()?,
        };
        Ok(record.map(|record| (record.key, record.value)))
    }
}
