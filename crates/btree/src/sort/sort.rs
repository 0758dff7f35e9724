//! External merge sort: records of any number and order, by key, in bounded memory.
//!
//! Records are collected in memory; when it is full they are sorted and written as a *run*. Runs
//! that follow each other in the input are merged, up to [`SortOptions::fan_in`] at a time, until
//! so few are left that one more merge gives all records in order; that one is not written, but
//! read by the caller ([`SortedRecords`]). An input that fits in memory never touches the disk.
//!
//! **Resuming.** After each run and each merge a manifest says what is finished. A sort that is
//! opened again in the same directory, for the same input and with the same options, goes on from
//! there: [`Sorter::resumes_at`] records of the input need not be read again. Whatever the manifest
//! does not name was half-written, and is removed.
//!
//! **Equal keys.** The sort is stable, so the last one of the input wins; or they are refused.
//!
//! **Files**, all in the directory chosen: `sort.manifest`, `sort.<number>.run`, and the empty
//! `sort.lock`, which keeps a second sort out.

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

/// Keeps a second sort out of the directory.
const LOCK: &str = "sort.lock";

/// Largest block, in bytes.
const BLOCK_BYTES_MAX: usize = 256 << 10;

/// Most runs merged at once. As many files are open then.
const FAN_IN_MAX: usize = 256;

/// Runs merged at once unless told otherwise.
const FAN_IN_DEFAULT: usize = 15;

/// Memory of a sort unless told otherwise, in bytes.
const MEMORY_BYTES_DEFAULT: usize = 256 << 20;

/// Records between two reports of progress.
const PROGRESS_RECORDS: u64 = 1 << 16;

/// What becomes of records of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplicates {
    /// The last one of the input counts.
    LastWins,
    /// They are an error.
    Reject,
}

/// How to sort, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SortOptions {
    /// The directory of the temporary files, which must exist. One sort at a time can use it.
    pub dir: PathBuf,
    /// Tells this input from others; a sort of another input that is found in the directory is
    /// thrown away. The hash of the input's name, size and time of change, say.
    pub input_identity: u64,
    /// Memory for records, sorting and merging together, in bytes; the list of runs takes 100 KB
    /// besides at most. Default: 256 MiB. At least `fan_in + 2` times 4 KiB.
    pub memory_bytes: usize,
    /// Runs merged at once, 2 to 256. Default: 15.
    pub fan_in: usize,
    /// What becomes of records of one key. Default: the last one wins.
    pub duplicates: Duplicates,
    /// Bytes of all keys and values, if they are known: then twice as many must be free on the
    /// disk.
    pub input_bytes: Option<u64>,
}

impl SortOptions {
    /// The defaults.
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

    /// The options as they are written down.
    ///
    /// Memory is for one block of each run that is merged, one of the output, and the rest of one
    /// for what is small.
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

/// What a sort has done since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SortStats {
    /// Runs written from memory.
    pub runs: u64,
    /// Merges written, without the last one, which is not.
    pub merges: u64,
    /// Bytes written to runs, from memory and by merges.
    pub written_bytes: u64,
    /// The most memory held at once, in bytes; without the list of runs.
    pub memory_bytes_max: usize,
}

impl SortStats {
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
    /// Removes the runs that `keep` does not name, and what an unfinished manifest left.
    fn remove_runs(&self, keep: &[Run]) -> Result<()> {
        for entry in self.disk.list(&self.dir)? {
            let is_kept = |number| keep.iter().any(|run| run.number == number);
            let is_stale = run_number(&entry.name).is_some_and(|number| !is_kept(number));
            if entry.kind == EntryKind::File && (is_stale || entry.name == MANIFEST_TMP) {
                self.disk.remove(&self.dir.join(&entry.name))?;
            }
        }
        Ok(())
    }

    /// Removes the manifest, durably, and then the runs, which it must not name any more by then.
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

    /// Removes everything, the lock at last.
    fn clean_up(&self) -> Result<()> {
        self.remove_sort()?;
        self.disk.remove(&self.dir.join(LOCK))?;
        Ok(self.disk.sync_dir(&self.dir)?)
    }

    /// Whether the finished runs are as long as they are said to be.
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

    /// Whether there is room for twice the input, of which the finished runs are a part.
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

/// Sorts records of any number and order by their keys, in bounded memory, with temporary files in
/// a directory.
///
/// Full memory becomes a sorted run on disk; runs are merged when the input has ended. A sort that
/// was dropped, or whose process died, can be opened again; it goes on from its last finished run
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
/// assert_eq!(records.next()?, Some((&b"a"[..], &b"one"[..])));
/// assert_eq!(records.next()?, Some((&b"b"[..], &b"new"[..])));
/// assert_eq!(records.next()?, None);
/// records.remove_files()
/// # }
/// ```
#[derive(Debug)]
pub struct Sorter {
    sort_dir: SortDir,
    options: SortOptions,
    manifest: Manifest,
    arena: Arena,
    /// Records of the input so far, in runs and in memory.
    position: u64,
    /// Records and bytes that were pushed since the sort was opened: what the memory is divided by.
    pushed: u64,
    pushed_bytes: u64,
    stats: SortStats,
}

impl Sorter {
    /// Begins a sort, or goes on with the one that is found in the directory.
    ///
    /// Cost: reads the manifest and the lengths of the runs; removes what is left of another sort.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`]; [`Error::NoSpace`] if the input's size is given and the disk has
    /// no room for it; [`Error::Corrupt`] and [`Error::UnsupportedVersion`] if the sort that is
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
        let (arena, stats) = (Arena::new(parameters.is_unique), SortStats::default());
        let (pushed, pushed_bytes) = (0, 0);
        Ok(Self { sort_dir, options, manifest, arena, position, pushed, pushed_bytes, stats })
    }

    /// Records of the input that need not be pushed, because they are in finished runs.
    #[must_use]
    pub fn resumes_at(&self) -> u64 {
        self.manifest.covered()
    }

    /// What has been done since the sort was opened.
    #[must_use]
    pub fn stats(&self) -> SortStats {
        self.stats
    }

    /// Takes the next record of the input.
    ///
    /// Cost: none but of memory; when that is full, sorts it and writes a run, and a manifest, with
    /// two syncs of files and two of the directory.
    ///
    /// # Errors
    /// [`Error::RecordTooLarge`], [`Error::DuplicateKey`] where duplicates are refused (with the
    /// position of a record whose key came before; of several which one is not said),
    /// [`Error::Disk`]. The record is not taken then.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if key.len() > KEY_BYTES_MAX || value.len() > VALUE_BYTES_MAX {
            let (key_bytes, value_bytes) = (key.len(), value.len());
            return Err(Error::RecordTooLarge { position: self.position, key_bytes, value_bytes });
        }
        let position_bytes = if self.manifest.parameters.is_unique { POSITION_SIZE } else { 0 };
        let bytes = RECORD_HEADER_SIZE + position_bytes + key.len() + value.len();
        self.pushed += 1;
        self.pushed_bytes += bytes as u64;
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

    /// Takes all of `input`, which is the input from its first record on: what is in finished runs
    /// is read and passed over. Reports now and then how many records have been read.
    ///
    /// # Errors
    /// Those of the input and of [`push`](Self::push); [`Error::TruncatedInput`] if it has fewer
    /// records than there are in finished runs.
    pub fn push_all(
        &mut self,
        input: &mut dyn Records,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let passed = self.position;
        let mut position = 0;
        while let Some((key, value)) = input.next()? {
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

    /// Ends the input and merges until one merge is left, whose records the result gives. Reports
    /// now and then how many records have been merged.
    ///
    /// Cost: each of these merges reads its runs and writes them as one. None for fewer than
    /// `fan_in` runs.
    ///
    /// # Errors
    /// As [`push`](Self::push); [`Error::Corrupt`] if a file is damaged.
    pub fn finish(mut self, progress: &mut dyn FnMut(u64)) -> Result<SortedRecords> {
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
        while self.manifest.runs.len() > self.options.fan_in {
            self.merge_some(&mut count)?;
        }
        let merge = self.open_merge(&self.manifest.runs)?;
        self.stats.note_memory(merge.memory_bytes());
        let Self { sort_dir, stats, .. } = self;
        Ok(SortedRecords { sort_dir, source: Source::Merge(merge), stats })
    }

    /// Memory for records and their order: without a block that is being written, and one for what
    /// is small.
    fn arena_bytes(&self) -> usize {
        self.options.memory_bytes - 2 * self.manifest.parameters.block_bytes as usize
    }

    /// A number that no file has, nor had before a failure.
    fn take_number(&mut self) -> u64 {
        self.manifest.next_number += 1;
        self.manifest.next_number - 1
    }

    fn create(&self, run: Run) -> Result<RunWriter> {
        let SortDir { disk, dir, .. } = &self.sort_dir;
        RunWriter::create(disk.as_ref(), dir, self.manifest.parameters, run)
    }

    /// Makes what is in memory a run, if there is anything, and gives the memory back.
    fn spill(&mut self) -> Result<()> {
        if self.arena.len() == 0 {
            return Ok(());
        }
        self.arena.sort();
        let (first, covered) = (self.manifest.covered(), self.arena.len() as u64);
        let number = self.take_number();
        let mut writer = self.create(Run { number, first, covered, records: 0, blocks: 0 })?;
        self.stats.note_memory(self.arena.memory_bytes() + writer.memory_bytes());
        let mut index = 0;
        while let Some((record, next)) = self.arena.last_of_key(index)? {
            writer.push(&record)?;
            index = next;
        }
        let end = self.manifest.runs.len();
        self.publish(writer.finish()?, end..end)?;
        self.stats.runs += 1;
        self.arena.release();
        if self.manifest.runs.len() == RUNS_MAX {
            self.merge_some(&mut || {})?;
        }
        Ok(())
    }

    /// Merges some runs that follow each other: as many as are merged at once, or fewer if that is
    /// enough, and of all such ones those with the fewest bytes. Calls `count` for each record.
    fn merge_some(&mut self, count: &mut dyn FnMut()) -> Result<()> {
        let (runs, fan_in) = (&self.manifest.runs, self.options.fan_in);
        let width = fan_in.min((runs.len() + 1).saturating_sub(fan_in)).max(2);
        let blocks =
            |at: &usize| -> u64 { runs[*at..at + width].iter().map(|run| run.blocks).sum() };
        let at = (0..=runs.len() - width).min_by_key(blocks).unwrap_or(0);
        let inputs = runs[at..at + width].to_vec();
        let (first, covered) = (inputs[0].first, inputs.iter().map(|run| run.covered).sum());
        let number = self.take_number();
        let mut merge = self.open_merge(&inputs)?;
        let mut writer = self.create(Run { number, first, covered, records: 0, blocks: 0 })?;
        self.stats.note_memory(merge.memory_bytes() + writer.memory_bytes());
        while let Some(record) = merge.next()? {
            writer.push(&record)?;
            count();
        }
        // Files that are open still take their space.
        drop(merge);
        self.publish(writer.finish()?, at..at + width)?;
        self.stats.merges += 1;
        for run in inputs {
            self.sort_dir.disk.remove(&self.sort_dir.dir.join(run_name(run.number)))?;
        }
        Ok(())
    }

    fn open_merge(&self, runs: &[Run]) -> Result<Merge> {
        let (SortDir { disk, dir, .. }, parameters) = (&self.sort_dir, self.manifest.parameters);
        let open = |run: &Run| RunReader::open(disk.as_ref(), dir, parameters, *run);
        let readers = runs.iter().map(open).collect::<Result<_>>()?;
        Ok(Merge::new(readers, parameters.is_unique))
    }

    /// Puts a finished run in the place of those in `range`, durably: its name first, then the
    /// manifest that names it.
    fn publish(&mut self, run: Run, range: Range<usize>) -> Result<()> {
        let SortDir { disk, dir, .. } = &self.sort_dir;
        disk.sync_dir(dir)?;
        let mut manifest = self.manifest.clone();
        manifest.runs.splice(range, [run]);
        manifest.store(disk.as_ref(), dir)?;
        self.manifest = manifest;
        self.stats.written_bytes += run.blocks * u64::from(self.manifest.parameters.block_bytes);
        Ok(())
    }
}

/// Where sorted records come from.
#[derive(Debug)]
enum Source {
    /// The input was small: records from this index on.
    Memory {
        arena: Arena,
        next: usize,
    },
    Merge(Merge),
}

/// All records of a sort in ascending order of their keys, each key once.
///
/// Dropping it leaves the sort as it is, so that it can be opened again and read from its
/// beginning; [`remove_files`](Self::remove_files) ends it for good.
#[derive(Debug)]
pub struct SortedRecords {
    sort_dir: SortDir,
    source: Source,
    stats: SortStats,
}

impl SortedRecords {
    /// What has been done since the sort was opened.
    #[must_use]
    pub fn stats(&self) -> SortStats {
        self.stats
    }

    /// Removes all files of the sort. To be called when what was made of the records is durable.
    ///
    /// # Errors
    /// [`Error::Disk`]; some of the files may be left.
    pub fn remove_files(self) -> Result<()> {
        let Self { sort_dir, source, .. } = self;
        drop(source);
        sort_dir.clean_up()
    }
}

impl Records for SortedRecords {
    /// Cost: a read for each block of each run, which has up to 256 KiB.
    ///
    /// # Errors
    /// [`Error::Disk`]; [`Error::Corrupt`] if a file is damaged; [`Error::DuplicateKey`] where
    /// duplicates are refused.
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
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
