//! Configuration of a table. No option changes a logical result.
//!
//! The bytes of a configuration in a snapshot are described in `docs/format/session.md`.

use std::fmt::Display;

use terrane_io::Access;
use terrane_io::bytes::{Overrun, Reader, Writer};

use crate::block::codec::Compression;
use crate::block::index::IndexKind;
use crate::entry::merge_operator::MergeOperator;
use crate::error::{Error, Result};
use crate::filter::bloom::BloomSize;
use crate::filter::filter::FilterAllocation;
use crate::filter::ribbon::COLUMNS_MAX;

/// Shape of the levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[doc(alias = "CompactionStyle")]
pub enum CompactionPolicy {
    /// Several runs on each level but the last one, which has one. Few writes, and nearly all data
    /// in one run.
    #[default]
    LazyLevelling,
    /// One run on each level. Fewer runs to look into, more writing.
    Levelling,
    /// Several runs on every level. Least writing, most runs.
    Tiering,
}

/// Schedule of the work of compactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum CompactionSchedule {
    /// In equal shares with the updates that make the work necessary, so that no update waits long.
    #[default]
    Incremental,
    /// All at once when a compaction becomes due: the same total work, in spikes.
    OneShot,
}

/// Thread that does the work of compactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[doc(alias = "max_background_jobs")]
pub enum CompactionThread {
    /// The calls that update the table. Deterministic, one core.
    #[default]
    Caller,
    /// A thread of the session; updates lend a hand only when it falls behind.
    Background,
}

/// Size at which the memtable is full and is flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[doc(alias("memtable", "write_buffer_size"))]
pub enum WriteBuffer {
    /// Bytes of keys and values, and 40 bytes for each entry.
    Bytes(u64),
    /// Number of entries.
    Entries(u64),
}

/// Memory of the filters of a table.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[doc(alias("filter_policy", "BloomFilterPolicy"))]
pub enum FilterPolicy {
    /// Sum of the false-positive rates of all runs of a table, 0.001 to 0.1. Small runs get more
    /// bits per entry, the largest run fewest.
    TotalFpr(f64),
    /// One false-positive rate for every run, 0.00001 to 0.1.
    Fpr(f64),
    /// One number of bits per entry for every run, 2 to 32.
    BitsPerEntry(f64),
    /// One choice for each level, level 1 (the newest) first; the last one is for all deeper levels
    /// too. 1 to 64 of them.
    PerLevel(Vec<LevelFilter>),
}

/// The filters of the runs on one level.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[doc(alias = "bits_per_key")]
pub enum LevelFilter {
    /// A false-positive rate, 0.00001 to 0.1.
    Fpr(f64),
    /// Bits per entry, 2 to 32.
    BitsPerEntry(f64),
    /// A ribbon filter of this many columns, 1 to 16, each of which takes 1.05 bits per entry and
    /// halves the false-positive rate: 10 columns have 0.001 in 10.5 bits, where the other filters
    /// take 15.5. To ask it takes three times the instructions, and to build it more than that. Any
    /// number of its columns can be in memory, so under a small memory budget it is as good as a
    /// filter that was built for that budget.
    Ribbon(u8),
}

/// Use of the system's page cache by lookups.
///
/// Lookups read a run in the access mode of its level. A run that moves down without being merged
/// is opened again in the mode of its new level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[doc(alias("use_direct_reads", "O_DIRECT"))]
pub enum DiskCache {
    /// Every level through the page cache: for tables that fit in memory beside everything else.
    #[default]
    All,
    /// No level: lookups read past the page cache, and compactions leave no pages in it.
    None,
    /// Levels 1 to this one, which are small and change often, through the page cache; deeper
    /// levels past it. 1 to 64.
    LevelsUpTo(u32),
}

impl DiskCache {
    /// Returns the access mode of lookups to the runs of a level (from 1).
    pub(crate) fn access(self, level: usize) -> Access {
        match self {
            Self::All => Access::Buffered,
            Self::LevelsUpTo(last) if level <= last as usize => Access::Buffered,
            Self::LevelsUpTo(_) | Self::None => Access::Direct,
        }
    }
}

/// Levels whose runs are compressed, if a table has a [`Compression`].
///
/// A run is compressed or not as it is written. A run that moves down without being merged stays as
/// it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[doc(alias = "compression_per_level")]
pub enum CompressedLevels {
    /// This level (1 is the newest) and all deeper ones, 1 to 64. The default is 2: level 1 holds
    /// little and is merged soon.
    From(u32),
    /// The last level, which has most of the entries and is merged least often, and unions.
    Last,
}

impl Default for CompressedLevels {
    fn default() -> Self {
        Self::From(2)
    }
}

impl CompressedLevels {
    /// The levels with this name, as [`Display`] writes it: the number of the first one, or `last`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "last" => Some(Self::Last),
            number => number.parse().ok().map(Self::From),
        }
    }

    /// Whether the runs of `level` (from 1) of a table of `last` levels are compressed.
    fn has(self, level: usize, last: usize) -> bool {
        match self {
            Self::From(first) => level >= first as usize,
            Self::Last => level >= last,
        }
    }
}

impl Display for CompressedLevels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::From(level) => level.fmt(f),
            Self::Last => f.write_str("last"),
        }
    }
}

/// Kind of lookup that a memory budget favours, once the indexes and the filters of newer runs have
/// their share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
#[doc(alias = "optimize_filters_for_hits")]
pub enum MemoryGoal {
    /// Those of keys that are present. The oldest run needs no filter for them, so it gets none.
    Hit,
    /// Those of absent keys: all filters come first.
    Miss,
    /// Both alike.
    #[default]
    Balanced,
}

/// Smallest memory budget of a table, in bytes.
pub const MEMORY_BUDGET_MIN: u64 = 256 << 10;

/// Largest memory budget of a table, in bytes.
pub const MEMORY_BUDGET_MAX: u64 = 1 << 50;

impl MemoryGoal {
    /// Divisor of a memory budget for memtables. If the last level, which has most of the entries,
    /// needs no filter, larger memtables save most, because they save a level of compaction.
    fn buffer_share(self) -> u64 {
        match self {
            Self::Hit => 3,
            Self::Miss | Self::Balanced => 8,
        }
    }
}

/// Memory of a memtable and of the one being flushed, in weights of a full one: each takes up to
/// 5/4 of its weight (held by a test of `memtable`), and a flush sorts its entries.
pub(crate) const BUFFER_WEIGHTS: u64 = 3;

/// Larger memtables save little compaction.
const BUFFER_WEIGHT_MAX: u64 = 64 << 20;

/// A last level from this one on has slices. A table of fewer levels takes little of the disk, and
/// its updates would each do more for it.
pub(crate) const SLICED_LEVEL_MIN: usize = 3;

/// Runs above a sliced level, in units of T: each is looked into by lookups and cursors.
pub(crate) const RUNS_ABOVE_LAST_MAX: usize = 3;

/// Maximum number of levels: with a size ratio of 2, more levels would exceed any disk.
pub(crate) const LEVELS_MAX: usize = 64;

/// Weight of a full memtable under a memory budget, in bytes.
pub(crate) fn write_buffer_weight(budget: u64, goal: MemoryGoal) -> u64 {
    (budget / goal.buffer_share() / BUFFER_WEIGHTS).min(BUFFER_WEIGHT_MAX)
}

/// Configuration of a table; stored in its snapshots.
///
/// ```
/// use terrane_lsm::{MergeOperator, TableConfig};
///
/// let config = TableConfig::default()
///     .merge_operator(MergeOperator::add_u64_wrapping())
///     .memory_budget(64 << 20);
/// assert_eq!(config.memory_budget, Some(64 << 20));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[doc(alias = "ColumnFamilyOptions")]
#[non_exhaustive]
pub struct TableConfig {
    /// Function that combines the value of an upsert with the older one.
    #[doc(alias = "resolve")]
    pub merge_operator: MergeOperator,
    /// Shape of the levels.
    #[doc(alias = "merge_policy")]
    pub compaction_policy: CompactionPolicy,
    /// Ratio of the size of a level to the level above; 2 to 16.
    pub size_ratio: u32,
    /// Schedule of the compactions.
    #[doc(alias = "merge_schedule")]
    pub compaction_schedule: CompactionSchedule,
    /// Thread that does the compactions.
    #[doc(alias = "merge_thread")]
    pub compaction_thread: CompactionThread,
    /// Size of the memtable: 1 to 2³⁰ bytes or entries. In a session with a
    /// [memory budget](crate::SessionOptions::memory_budget) that is the most that it gets.
    pub write_buffer: WriteBuffer,
    /// Memory of the filters of a table.
    pub filter: FilterPolicy,
    /// Length of a prefix of keys that the filters hold besides the keys, 1 to 255 bytes; `None` by
    /// default. A cursor over keys that all begin with the same prefix, which is as long or longer,
    /// then reads only from runs that may hold such a key: one read where one run does, about none
    /// where no run does, instead of one for each run. Shorter keys are in no such range.
    ///
    /// Filters take as many bits for each prefix of a run as for an entry. A flush does not know
    /// how many prefixes there are, nor does a merge of runs that were written with another length:
    /// then it is as many as there are entries. Each run answers by the length that it was written
    /// with. A filter of which a memory budget keeps nothing excludes no prefix, as that of the
    /// last level if `memory_goal` is [`Hit`](MemoryGoal::Hit). Ribbon filters hold no prefixes.
    #[doc(alias("prefix_extractor", "prefix bloom filter"))]
    pub prefix_bytes: Option<u8>,
    /// Memory budget in bytes for memtables, filters, indexes and cached pages together,
    /// [`MEMORY_BUDGET_MIN`] to [`MEMORY_BUDGET_MAX`]. The engine splits it, so `write_buffer` and
    /// `filter` must keep their defaults.
    ///
    /// The parts, in this order:
    ///
    /// - memtables: an eighth of the budget, at most 192 MiB, for the memtable and the one being
    ///   flushed. With `memory_goal` [`Hit`](MemoryGoal::Hit), for which the last level has no
    ///   filter, a third;
    /// - indexes: the bytes that they need;
    /// - filters: shared out so that as few lookups as possible read in vain. The larger the table,
    ///   the fewer bits for each entry; `memory_goal` says which lookups count;
    /// - cached pages: the rest, for pages of the levels that `disk_cache` reads past the system's
    ///   page cache.
    ///
    /// A table that was opened from a snapshot and not updated yet needs no memory for memtables
    /// and compactions. It keeps as much of the filters as fits, down to none.
    ///
    /// The sum is [`TableStats::memory_bytes`](crate::TableStats::memory_bytes). It includes the
    /// filters and indexes that compactions are writing, and stays within the budget except in
    /// these cases:
    ///
    /// - an entry is larger than the memtable;
    /// - one batch of updates fills several memtables (the table keeps its old content until the
    ///   batch is complete);
    /// - the indexes alone are larger (with evenly spread keys, in a table of 400 times the budget
    ///   on disk, or of 300 times if the goal is hits);
    /// - a compaction was begun under a larger budget.
    ///
    /// The sum excludes the chunks of pages that lookups, compactions and cursors work on, and the
    /// working memory of codecs, which do not grow with the table.
    #[doc(alias = "block_cache")]
    pub memory_budget: Option<u64>,
    /// Kind of lookup that the memory budget favours.
    pub memory_goal: MemoryGoal,
    /// Form of the page index.
    pub index: IndexKind,
    /// Levels that lookups read through the system's page cache.
    pub disk_cache: DiskCache,
    /// Compression of key pages. Values in overflow pages and blobs are stored as they are.
    pub compression: Compression,
    /// Levels whose runs are compressed.
    pub compressed_levels: CompressedLevels,
    /// Pages of compaction work that add up before an update does them, 1 to 4096. Small values
    /// spread the work most evenly; large values save a little time.
    #[doc(alias = "merge_batch_pages")]
    pub compaction_batch_pages: u32,
    /// Reads that a batch of lookups keeps in flight, 1 to 1024.
    pub queue_depth: u32,
}

impl Default for TableConfig {
    fn default() -> Self {
        Self {
            merge_operator: MergeOperator::default(),
            compaction_policy: CompactionPolicy::default(),
            size_ratio: 4,
            compaction_schedule: CompactionSchedule::default(),
            compaction_thread: CompactionThread::default(),
            write_buffer: WriteBuffer::Bytes(4 << 20),
            filter: FilterPolicy::TotalFpr(0.01),
            prefix_bytes: None,
            memory_budget: None,
            memory_goal: MemoryGoal::default(),
            index: IndexKind::Auto,
            disk_cache: DiskCache::default(),
            compression: Compression::default(),
            compressed_levels: CompressedLevels::default(),
            compaction_batch_pages: 16,
            queue_depth: 128,
        }
    }
}

/// Refuses a value that is below or above what is allowed, or no number.
fn check<T: PartialOrd + Display + Copy>(
    option: &'static str,
    what: &str,
    value: T,
    least: T,
    most: T,
) -> Result<()> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(Error::InvalidConfig {
        option,
        value: format!("{what}{value}"),
        allowed: format!("{least} to {most}"),
    })
}

impl LevelFilter {
    fn validate(self) -> Result<()> {
        match self {
            Self::Fpr(rate) => check("filter", "a false-positive rate of ", rate, 1e-5, 0.1),
            Self::BitsPerEntry(bits) => check("filter", "bits per entry: ", bits, 2.0, 32.0),
            Self::Ribbon(columns) => check("filter", "columns: ", columns, 1, COLUMNS_MAX),
        }
    }

    fn allocation(self) -> FilterAllocation {
        match self {
            Self::Fpr(rate) => FilterAllocation::Bloom(BloomSize::Fpr(rate)),
            Self::BitsPerEntry(bits) => FilterAllocation::Bloom(BloomSize::BitsPerEntry(bits)),
            Self::Ribbon(columns) => FilterAllocation::Ribbon(columns),
        }
    }
}

impl FilterPolicy {
    fn has_ribbon(&self) -> bool {
        let Self::PerLevel(levels) = self else { return false };
        levels.iter().any(|level| matches!(level, LevelFilter::Ribbon(_)))
    }

    fn validate(&self) -> Result<()> {
        match self {
            // Below, the share of a small run would take more bits than a filter can use.
            &Self::TotalFpr(rate) => {
                check("filter", "a false-positive rate of all runs of ", rate, 1e-3, 0.1)
            }
            &Self::Fpr(rate) => LevelFilter::Fpr(rate).validate(),
            &Self::BitsPerEntry(bits) => LevelFilter::BitsPerEntry(bits).validate(),
            Self::PerLevel(levels) => {
                check(
                    "filter",
                    "levels with a filter of their own: ",
                    levels.len(),
                    1,
                    LEVELS_MAX,
                )?;
                levels.iter().try_for_each(|level| level.validate())
            }
        }
    }
}

impl TableConfig {
    /// Sets [`merge_operator`](Self::merge_operator).
    #[must_use]
    pub fn merge_operator(self, merge_operator: MergeOperator) -> Self {
        Self { merge_operator, ..self }
    }

    /// Sets [`compaction_policy`](Self::compaction_policy).
    #[must_use]
    pub fn compaction_policy(self, compaction_policy: CompactionPolicy) -> Self {
        Self { compaction_policy, ..self }
    }

    /// Sets [`size_ratio`](Self::size_ratio).
    #[must_use]
    pub fn size_ratio(self, size_ratio: u32) -> Self {
        Self { size_ratio, ..self }
    }

    /// Sets [`compaction_schedule`](Self::compaction_schedule).
    #[must_use]
    pub fn compaction_schedule(self, compaction_schedule: CompactionSchedule) -> Self {
        Self { compaction_schedule, ..self }
    }

    /// Sets [`compaction_thread`](Self::compaction_thread).
    #[must_use]
    pub fn compaction_thread(self, compaction_thread: CompactionThread) -> Self {
        Self { compaction_thread, ..self }
    }

    /// Sets [`write_buffer`](Self::write_buffer).
    #[must_use]
    pub fn write_buffer(self, write_buffer: WriteBuffer) -> Self {
        Self { write_buffer, ..self }
    }

    /// Sets [`filter`](Self::filter).
    #[must_use]
    pub fn filter(self, filter: FilterPolicy) -> Self {
        Self { filter, ..self }
    }

    /// Sets [`prefix_bytes`](Self::prefix_bytes).
    #[must_use]
    pub fn prefix_bytes(self, prefix_bytes: impl Into<Option<u8>>) -> Self {
        Self { prefix_bytes: prefix_bytes.into(), ..self }
    }

    /// Sets [`memory_budget`](Self::memory_budget).
    #[must_use]
    pub fn memory_budget(self, memory_budget: impl Into<Option<u64>>) -> Self {
        Self { memory_budget: memory_budget.into(), ..self }
    }

    /// Sets [`memory_goal`](Self::memory_goal).
    #[must_use]
    pub fn memory_goal(self, memory_goal: MemoryGoal) -> Self {
        Self { memory_goal, ..self }
    }

    /// Sets [`index`](Self::index).
    #[must_use]
    pub fn index(self, index: IndexKind) -> Self {
        Self { index, ..self }
    }

    /// Sets [`disk_cache`](Self::disk_cache).
    #[must_use]
    pub fn disk_cache(self, disk_cache: DiskCache) -> Self {
        Self { disk_cache, ..self }
    }

    /// Sets [`compression`](Self::compression).
    #[must_use]
    pub fn compression(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// Sets [`compressed_levels`](Self::compressed_levels).
    #[must_use]
    pub fn compressed_levels(self, compressed_levels: CompressedLevels) -> Self {
        Self { compressed_levels, ..self }
    }

    /// Sets [`compaction_batch_pages`](Self::compaction_batch_pages).
    #[must_use]
    pub fn compaction_batch_pages(self, compaction_batch_pages: u32) -> Self {
        Self { compaction_batch_pages, ..self }
    }

    /// Sets [`queue_depth`](Self::queue_depth).
    #[must_use]
    pub fn queue_depth(self, queue_depth: u32) -> Self {
        Self { queue_depth, ..self }
    }

    /// Checks every option.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], naming the option, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        check("size_ratio", "", self.size_ratio, 2, 16)?;
        let (unit, size) = match self.write_buffer {
            WriteBuffer::Bytes(size) => ("bytes: ", size),
            WriteBuffer::Entries(size) => ("entries: ", size),
        };

        check("write_buffer", unit, size, 1, 1 << 30)?;
        self.filter.validate()?;
        if let Some(bytes) = self.prefix_bytes {
            check("prefix_bytes", "", bytes, 1, u8::MAX)?;
            if self.filter.has_ribbon() {
                let allowed = "none, as the filter of a level is a ribbon".to_owned();
                let value = bytes.to_string();
                return Err(Error::InvalidConfig { option: "prefix_bytes", value, allowed });
            }
        }
        if let Some(bytes) = self.memory_budget {
            self.validate_budget(bytes)?;
        }

        if let DiskCache::LevelsUpTo(level) = self.disk_cache {
            check("disk_cache", "levels up to ", level, 1, LEVELS_MAX as u32)?;
        }

        if let CompressedLevels::From(level) = self.compressed_levels {
            check("compressed_levels", "levels from ", level, 1, LEVELS_MAX as u32)?;
        }

        check("compaction_batch_pages", "", self.compaction_batch_pages, 1, 4096)?;
        check("queue_depth", "", self.queue_depth, 1, 1024)
    }

    /// The compression of a run on `level` (from 1) of a table whose last level is `last`.
    pub(crate) fn compression_of(&self, level: usize, last: usize) -> Compression {
        if self.compressed_levels.has(level, last) { self.compression } else { Compression::None }
    }

    fn validate_budget(&self, bytes: u64) -> Result<()> {
        check("memory_budget", "bytes: ", bytes, MEMORY_BUDGET_MIN, MEMORY_BUDGET_MAX)?;
        let default = Self::default();
        let beside = |option, value| {
            let allowed = "the default, as memory_budget is given and rules it".to_owned();
            Err(Error::InvalidConfig { option, value, allowed })
        };

        // A budget rules these two options, so a setting beside it would be ignored without a word.
        if self.write_buffer != default.write_buffer {
            return beside("write_buffer", format!("{:?}", self.write_buffer));
        }

        if self.filter != default.filter {
            return beside("filter", format!("{:?}", self.filter));
        }

        Ok(())
    }

    /// The write buffer in force: a memory budget rules it.
    #[must_use]
    pub fn effective_write_buffer(&self) -> WriteBuffer {
        match self.memory_budget {
            None => self.write_buffer,
            Some(budget) => WriteBuffer::Bytes(write_buffer_weight(budget, self.memory_goal)),
        }
    }

    /// Whether the last level, if it is this one, takes T times as much as a levelling one of its
    /// number, in slices.
    pub(crate) fn has_wide_last(&self, last: usize) -> bool {
        self.compaction_policy == CompactionPolicy::LazyLevelling && last >= SLICED_LEVEL_MIN
    }

    /// The filter of a run on `level` (from 1) of a table whose last level is `last`.
    ///
    /// With a rate for the whole table, a run gets a share in proportion to its size. In the steady
    /// shape of lazy levelling with size ratio T, level *l* shows up to T - 1 resident runs and,
    /// while a merge is under way, up to T + 1 runs of the size of the level above; so with 3/5 of
    /// the rate for the last run and, for a run k levels above it, 3/5 · T^-(k+1), the sum stays
    /// below the rate: 0.6 + 0.6/T · 2T/(T - 1) / T ≤ 1 for T ≥ 4. Above a sliced last level up to
    /// 4T runs can be seen, 3T that are merged and those that arrive meanwhile, each of a smaller
    /// part of it, and get a third of that: 0.6 + 0.8/T and little more. For other shapes the
    /// shares are divided by the number of runs that a level can show.
    pub(crate) fn filter_allocation(&self, level: u32, last: u32) -> FilterAllocation {
        match &self.filter {
            &FilterPolicy::BitsPerEntry(bits) => LevelFilter::BitsPerEntry(bits).allocation(),
            &FilterPolicy::Fpr(rate) => LevelFilter::Fpr(rate).allocation(),
            FilterPolicy::PerLevel(levels) => {
                let at = (level.max(1) as usize).min(levels.len());
                // Without a memory budget, so checked: there is at least one.
                levels[at - 1].allocation()
            }
            FilterPolicy::TotalFpr(total) => {
                let ratio = f64::from(self.size_ratio);
                let above = last.saturating_sub(level);
                let share = if above == 0 {
                    match self.compaction_policy {
                        CompactionPolicy::LazyLevelling | CompactionPolicy::Levelling => 0.6,
                        CompactionPolicy::Tiering => 0.5 / ratio,
                    }
                } else {
                    // Up to 2T runs of one size can be seen at once; above a wide last level 4T, of
                    // which each is smaller.
                    let runs = if ratio < 4.0 {
                        2.0 * ratio
                    } else if self.has_wide_last(last as usize) {
                        RUNS_ABOVE_LAST_MAX as f64
                    } else {
                        1.0
                    };
                    0.6 / ratio.powf(f64::from(above) + 1.0) / runs
                };

                // A smaller rate is beyond the table of filter sizes.
                LevelFilter::Fpr((total * share).max(1e-5)).allocation()
            }
        }
    }
}

// The encoding in snapshots: one pair of functions for each option whose encoding is more than a
// number.

impl CompactionPolicy {
    fn tag(self) -> u8 {
        match self {
            Self::LazyLevelling => 1,
            Self::Levelling => 2,
            Self::Tiering => 3,
        }
    }

    fn from_tag(tag: u8) -> Option<Self> {
        [Self::LazyLevelling, Self::Levelling, Self::Tiering].into_iter().find(|p| p.tag() == tag)
    }
}

impl CompactionSchedule {
    fn tag(self) -> u8 {
        match self {
            Self::Incremental => 1,
            Self::OneShot => 2,
        }
    }

    fn from_tag(tag: u8) -> Option<Self> {
        [Self::Incremental, Self::OneShot].into_iter().find(|schedule| schedule.tag() == tag)
    }
}

impl CompactionThread {
    fn tag(self) -> u8 {
        match self {
            Self::Caller => 1,
            Self::Background => 2,
        }
    }

    fn from_tag(tag: u8) -> Option<Self> {
        [Self::Caller, Self::Background].into_iter().find(|thread| thread.tag() == tag)
    }
}

impl MemoryGoal {
    fn tag(self) -> u8 {
        match self {
            Self::Hit => 1,
            Self::Miss => 2,
            Self::Balanced => 3,
        }
    }

    fn from_tag(tag: u8) -> Option<Self> {
        [Self::Hit, Self::Miss, Self::Balanced].into_iter().find(|goal| goal.tag() == tag)
    }
}

impl WriteBuffer {
    fn encode(self, out: &mut Writer) {
        match self {
            Self::Bytes(size) => out.u8(1).u64(size),
            Self::Entries(size) => out.u8(2).u64(size),
        };
    }

    fn decode(input: &mut Reader<'_>) -> std::result::Result<Option<Self>, Overrun> {
        Ok(match (input.u8()?, input.u64()?) {
            (1, size) => Some(Self::Bytes(size)),
            (2, size) => Some(Self::Entries(size)),
            _ => None,
        })
    }
}

impl LevelFilter {
    fn encode(self, out: &mut Writer) {
        match self {
            Self::Fpr(rate) => out.u8(2).u64(rate.to_bits()),
            Self::BitsPerEntry(bits) => out.u8(3).u64(bits.to_bits()),
            Self::Ribbon(columns) => out.u8(5).u64(columns.into()),
        };
    }

    fn decode(input: &mut Reader<'_>) -> std::result::Result<Option<Self>, Overrun> {
        let tag = input.u8()?;
        let number = input.u64()?;
        Ok(match tag {
            2 => Some(Self::Fpr(f64::from_bits(number))),
            3 => Some(Self::BitsPerEntry(f64::from_bits(number))),
            5 => u8::try_from(number).ok().map(Self::Ribbon),
            _ => None,
        })
    }
}

impl FilterPolicy {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::TotalFpr(rate) => {
                out.u8(1).u64(rate.to_bits());
            }
            &Self::Fpr(rate) => LevelFilter::Fpr(rate).encode(out),
            &Self::BitsPerEntry(bits) => LevelFilter::BitsPerEntry(bits).encode(out),
            Self::PerLevel(levels) => {
                out.u8(4).u32(levels.len() as u32);
                for level in levels {
                    level.encode(out);
                }
            }
        }
    }

    fn decode(input: &mut Reader<'_>) -> std::result::Result<Option<Self>, Overrun> {
        // The other policies share the tags of `LevelFilter`, whose decoder reads the tag again.
        let mut whole = input.clone();
        match input.u8()? {
            1 => Ok(Some(Self::TotalFpr(f64::from_bits(input.u64()?)))),
            4 => {
                let count = input.u32()?;
                // Not allocated ahead: the count has not been checked against the bytes that are
                // there.
                let levels = (0..count).map(|_| LevelFilter::decode(input));
                Ok(levels.collect::<std::result::Result<Option<_>, _>>()?.map(Self::PerLevel))
            }
            _ => {
                let policy = LevelFilter::decode(&mut whole)?;
                *input = whole;
                Ok(policy.and_then(|policy| match policy {
                    LevelFilter::Fpr(rate) => Some(Self::Fpr(rate)),
                    LevelFilter::BitsPerEntry(bits) => Some(Self::BitsPerEntry(bits)),
                    // A ribbon is a filter of single levels, never of a whole table.
                    LevelFilter::Ribbon(_) => None,
                }))
            }
        }
    }
}

impl IndexKind {
    fn tag(self) -> u8 {
        match self {
            Self::Auto => 1,
            Self::Compact => 2,
            Self::Ordinary => 3,
        }
    }

    fn from_tag(tag: u8) -> Option<Self> {
        [Self::Auto, Self::Compact, Self::Ordinary].into_iter().find(|kind| kind.tag() == tag)
    }
}

impl DiskCache {
    fn encode(self, out: &mut Writer) {
        match self {
            Self::All => out.u8(1).u32(0),
            Self::None => out.u8(2).u32(0),
            Self::LevelsUpTo(level) => out.u8(3).u32(level),
        };
    }

    fn decode(input: &mut Reader<'_>) -> std::result::Result<Option<Self>, Overrun> {
        Ok(match (input.u8()?, input.u32()?) {
            (1, 0) => Some(Self::All),
            (2, 0) => Some(Self::None),
            (3, level) => Some(Self::LevelsUpTo(level)),
            _ => None,
        })
    }
}

/// Added to the tag of the index if the compression stands behind the queue depth. A table without
/// compression is written as it was before there was any.
const WITH_COMPRESSION: u8 = 16;

/// Added to the tag of the index if a length of prefixes stands at the end.
const WITH_PREFIXES: u8 = 32;

impl Compression {
    fn tag(self) -> u8 {
        match self {
            Self::None => 1,
            Self::Lz4 => 2,
            Self::Zstd => 3,
        }
    }

    fn from_tag(tag: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|compression| compression.tag() == tag)
    }
}

impl CompressedLevels {
    fn encode(self, out: &mut Writer) {
        match self {
            Self::From(level) => out.u8(1).u32(level),
            Self::Last => out.u8(2).u32(0),
        };
    }

    fn decode(input: &mut Reader<'_>) -> std::result::Result<Option<Self>, Overrun> {
        Ok(match (input.u8()?, input.u32()?) {
            (1, level) => Some(Self::From(level)),
            (2, 0) => Some(Self::Last),
            _ => None,
        })
    }
}

impl TableConfig {
    /// Whether its compression is written.
    fn writes_compression(&self) -> bool {
        let default = (Compression::default(), CompressedLevels::default());
        (self.compression, self.compressed_levels) != default
    }

    /// Writes all but the merge operator.
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u8(self.compaction_policy.tag()).u32(self.size_ratio);
        out.u8(self.compaction_schedule.tag()).u8(self.compaction_thread.tag());
        self.write_buffer.encode(out);
        self.filter.encode(out);
        out.u64(self.memory_budget.unwrap_or(0)).u8(self.memory_goal.tag());
        let with_compression = if self.writes_compression() { WITH_COMPRESSION } else { 0 };
        let with_prefixes = if self.prefix_bytes.is_some() { WITH_PREFIXES } else { 0 };
        out.u8(self.index.tag() | with_compression | with_prefixes);
        self.disk_cache.encode(out);
        out.u32(self.compaction_batch_pages).u32(self.queue_depth);
        if self.writes_compression() {
            out.u8(self.compression.tag());
            self.compressed_levels.encode(out);
        }
        if let Some(bytes) = self.prefix_bytes {
            out.u8(bytes);
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` for an unknown tag or an option out of
    /// range.
    pub(crate) fn decode(input: &mut Reader<'_>) -> std::result::Result<Option<Self>, Overrun> {
        let compaction_policy = CompactionPolicy::from_tag(input.u8()?);
        let size_ratio = input.u32()?;
        let compaction_schedule = CompactionSchedule::from_tag(input.u8()?);
        let compaction_thread = CompactionThread::from_tag(input.u8()?);
        let write_buffer = WriteBuffer::decode(input)?;

        // Bytes behind a filter of an unknown kind cannot be located.
        let Some(filter) = FilterPolicy::decode(input)? else { return Ok(None) };
        let memory_budget = Some(input.u64()?).filter(|&bytes| bytes > 0);
        let memory_goal = MemoryGoal::from_tag(input.u8()?);
        let index = input.u8()?;
        let has_compression = index & WITH_COMPRESSION != 0;
        let has_prefixes = index & WITH_PREFIXES != 0;
        let index = IndexKind::from_tag(index & !(WITH_COMPRESSION | WITH_PREFIXES));
        let disk_cache = DiskCache::decode(input)?;

        let compaction_batch_pages = input.u32()?;
        let queue_depth = input.u32()?;
        let (compression, compressed_levels) = if has_compression {
            (Compression::from_tag(input.u8()?), CompressedLevels::decode(input)?)
        } else {
            (Some(Compression::default()), Some(CompressedLevels::default()))
        };
        let prefix_bytes = if has_prefixes { Some(input.u8()?) } else { None };
        // An unknown tag is refused only after all bytes are read, so that input cut short is told
        // apart.
        let config = || {
            Some(Self {
                merge_operator: MergeOperator::default(),
                compaction_policy: compaction_policy?,
                size_ratio,
                compaction_schedule: compaction_schedule?,
                compaction_thread: compaction_thread?,
                write_buffer: write_buffer?,
                filter,
                prefix_bytes,
                memory_budget,
                memory_goal: memory_goal?,
                index: index?,
                disk_cache: disk_cache?,
                compression: compression?,
                compressed_levels: compressed_levels?,
                compaction_batch_pages,
                queue_depth,
            })
        };

        // A stored configuration may be forged, so it is checked like a new one. Equal ones have
        // equal bytes, so the defaults of a compression are not written.
        let config = config().filter(|config| config.validate().is_ok());
        Ok(config.filter(|config| config.writes_compression() == has_compression))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configs() -> Vec<TableConfig> {
        let default = TableConfig::default();
        let levels = vec![LevelFilter::BitsPerEntry(14.0), LevelFilter::Fpr(0.03)];
        vec![
            default.clone(),
            TableConfig {
                compaction_policy: CompactionPolicy::Levelling,
                size_ratio: 7,
                compaction_schedule: CompactionSchedule::OneShot,
                compaction_thread: CompactionThread::Background,
                write_buffer: WriteBuffer::Entries(5),
                filter: FilterPolicy::PerLevel(levels),
                memory_goal: MemoryGoal::Miss,
                index: IndexKind::Compact,
                disk_cache: DiskCache::LevelsUpTo(2),
                compression: Compression::Lz4,
                compressed_levels: CompressedLevels::From(1),
                compaction_batch_pages: 3,
                queue_depth: 9,
                ..default.clone()
            },
            TableConfig {
                compaction_policy: CompactionPolicy::Tiering,
                filter: FilterPolicy::Fpr(0.002),
                index: IndexKind::Ordinary,
                disk_cache: DiskCache::None,
                compression: Compression::Lz4,
                compressed_levels: CompressedLevels::Last,
                ..default.clone()
            },
            TableConfig { filter: FilterPolicy::BitsPerEntry(11.5), ..default.clone() },
            TableConfig { compression: Compression::Lz4, ..default.clone() },
            TableConfig { prefix_bytes: Some(20), ..default.clone() },
            TableConfig { prefix_bytes: Some(1), compression: Compression::Lz4, ..default.clone() },
            TableConfig {
                filter: FilterPolicy::PerLevel(vec![
                    LevelFilter::Fpr(0.01),
                    LevelFilter::Ribbon(9),
                ]),
                ..default.clone()
            },
            TableConfig { memory_budget: Some(1 << 20), memory_goal: MemoryGoal::Hit, ..default },
        ]
    }

    #[test]
    fn what_is_encoded_is_decoded_and_what_is_cut_short_or_changed_never_panics() {
        for config in configs() {
            let mut out = Writer::new();
            config.encode(&mut out);
            let bytes = out.into_bytes();
            let mut input = Reader::new(&bytes);
            assert_eq!(TableConfig::decode(&mut input).unwrap(), Some(config.clone()));
            assert!(input.rest().is_empty());

            for end in 0..bytes.len() {
                assert!(TableConfig::decode(&mut Reader::new(&bytes[..end])).is_err(), "{end}");
            }

            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut changed = bytes.clone();
                    changed[at] ^= 1 << bit;
                    let decoded = TableConfig::decode(&mut Reader::new(&changed)).ok().flatten();
                    assert_ne!(decoded, Some(config.clone()), "bit {bit} of byte {at}");
                    assert!(decoded.is_none_or(|config| config.validate().is_ok()));
                }
            }
        }
    }

    #[test]
    fn the_last_filter_of_a_list_is_for_all_deeper_levels() {
        let levels = vec![LevelFilter::BitsPerEntry(14.0), LevelFilter::Ribbon(7)];
        let config =
            TableConfig { filter: FilterPolicy::PerLevel(levels), ..TableConfig::default() };
        let on = |level| config.filter_allocation(level, 9);
        assert_eq!(on(1), FilterAllocation::Bloom(BloomSize::BitsPerEntry(14.0)));
        assert_eq!(on(2), FilterAllocation::Ribbon(7));
        assert_eq!(on(9), FilterAllocation::Ribbon(7));
    }
}
