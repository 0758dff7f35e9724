//! What a table's user may choose. No option ever changes a logical result.

use terrane_io::bytes::{Overrun, Reader, Writer};

use crate::error::{Error, Result};
use crate::filter::FilterAllocation;
use crate::index::IndexKind;
use crate::resolve::Resolve;

/// Shape of the levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MergePolicy {
    /// Several runs on each level but the last one, which has one. Few writes, and nearly all data in
    /// one run.
    #[default]
    LazyLevelling,
    /// One run on each level. Fewer runs to look into, more writing.
    Levelling,
    /// Several runs on every level. Least writing, most runs.
    Tiering,
}

/// When the work of a merge is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MergeSchedule {
    /// In equal shares with the updates that make it necessary, so that no update waits long.
    #[default]
    Incremental,
    /// All at once when it becomes due: the same total, in spikes.
    OneShot,
}

/// Who does the work of merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MergeThread {
    /// The calls that update the table. Deterministic, one core.
    #[default]
    Caller,
    /// A thread of the session; updates lend a hand only when it falls behind.
    Background,
}

/// When the write buffer is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteBuffer {
    /// When its keys and values, and 40 bytes for each entry, reach this size.
    Bytes(u64),
    /// When it holds this many entries.
    Entries(u64),
}

/// How much memory filters get.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum FilterPolicy {
    /// So much that the false-positive rates of all runs of a table together stay at or below this:
    /// small runs get more bits per entry, the largest one fewest.
    TotalFpr(f64),
    /// The same false-positive rate for every run.
    Fpr(f64),
    /// The same number of bits per entry for every run.
    BitsPerEntry(f64),
}

/// Whether the pages that lookups read pass through the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum DiskCache {
    /// They do: for tables that fit in memory beside everything else.
    #[default]
    All,
    /// Lookups read past the page cache, and merges leave nothing behind in it.
    None,
}

/// Configuration of a table; stored in its snapshots.
#[derive(Debug, Clone, PartialEq)]
pub struct TableConfig {
    /// What an upsert makes of the new value and the old one.
    pub resolve: Resolve,
    /// Shape of the levels.
    pub merge_policy: MergePolicy,
    /// How much larger each level is than the one above; 2 to 16.
    pub size_ratio: u32,
    /// When merges are done.
    pub merge_schedule: MergeSchedule,
    /// Who does them.
    pub merge_thread: MergeThread,
    /// When the write buffer is full; at least one entry, or 1 byte, at most 1 GiB or 2³⁰ entries.
    pub write_buffer: WriteBuffer,
    /// How much memory filters get: rates from 1e-5 (for all runs together from 1e-3) to 0.1, bits from 2 to 32.
    pub filter: FilterPolicy,
    /// How the page of a key is found.
    pub index: IndexKind,
    /// Whether lookups use the page cache.
    pub disk_cache: DiskCache,
    /// Pages of merge work that are saved up before any is done, 1 to 4096. Small values spread the
    /// work most evenly, large ones save a little time.
    pub merge_batch_pages: u32,
    /// Reads that a batch of lookups keeps in flight, 1 to 1024.
    pub queue_depth: u32,
}

impl Default for TableConfig {
    fn default() -> Self {
        Self {
            resolve: Resolve::default(),
            merge_policy: MergePolicy::default(),
            size_ratio: 4,
            merge_schedule: MergeSchedule::default(),
            merge_thread: MergeThread::default(),
            write_buffer: WriteBuffer::Bytes(4 << 20),
            filter: FilterPolicy::TotalFpr(0.01),
            index: IndexKind::Auto,
            disk_cache: DiskCache::default(),
            merge_batch_pages: 16,
            queue_depth: 128,
        }
    }
}

fn invalid<T>(option: &'static str, reason: impl Into<String>) -> Result<T> {
    Err(Error::InvalidConfig { option, reason: reason.into() })
}

impl TableConfig {
    /// Checks every option.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`], naming the option and what is allowed.
    pub fn validate(&self) -> Result<()> {
        if !(2..=16).contains(&self.size_ratio) {
            return invalid("size_ratio", format!("{} is not in 2..=16", self.size_ratio));
        }
        let (WriteBuffer::Bytes(size) | WriteBuffer::Entries(size)) = self.write_buffer;
        if !(1..=1 << 30).contains(&size) {
            return invalid("write_buffer", format!("{size} is not in 1..=2^30"));
        }
        match self.filter {
            // Below, the share of a small run would take more bits than a filter can use.
            FilterPolicy::TotalFpr(rate) if !(1e-3..=0.1).contains(&rate) => {
                let reason = format!("a rate of {rate} for all runs is not in 0.001..=0.1");
                return invalid("filter", reason);
            }
            FilterPolicy::Fpr(rate) if !(1e-5..=0.1).contains(&rate) => {
                return invalid("filter", format!("a rate of {rate} is not in 0.00001..=0.1"));
            }
            FilterPolicy::BitsPerEntry(bits) if !(2.0..=32.0).contains(&bits) => {
                return invalid("filter", format!("{bits} bits per entry are not in 2..=32"));
            }
            _ => {}
        }
        if !(1..=4096).contains(&self.merge_batch_pages) {
            let reason = format!("{} is not in 1..=4096", self.merge_batch_pages);
            return invalid("merge_batch_pages", reason);
        }
        if !(1..=1024).contains(&self.queue_depth) {
            return invalid("queue_depth", format!("{} is not in 1..=1024", self.queue_depth));
        }
        Ok(())
    }

    /// The filter of a run on `level` (from 1) of a table whose last level is `last`.
    ///
    /// With a rate for the whole table, a run gets a share in proportion to its size. In the steady
    /// shape of lazy levelling with size ratio T, level *l* shows up to T - 1 resident runs and, while
    /// a merge is under way, up to T + 1 runs of the size of the level above; so with 3/5 of the rate for
    /// the last run and, for a run k levels above it, 3/5 · T^-(k+1), the sum stays below the rate:
    /// 0.6 + 0.6/T · 2T/(T - 1) / T ≤ 1 for T ≥ 4. For other shapes the shares are divided by the number of
    /// runs that a level can show.
    pub(crate) fn filter_allocation(&self, level: u32, last: u32) -> FilterAllocation {
        match self.filter {
            FilterPolicy::BitsPerEntry(bits) => FilterAllocation::BitsPerEntry(bits),
            FilterPolicy::Fpr(rate) => FilterAllocation::Fpr(rate),
            FilterPolicy::TotalFpr(total) => {
                let ratio = f64::from(self.size_ratio);
                let above = last.saturating_sub(level);
                let share = if above == 0 {
                    match self.merge_policy {
                        MergePolicy::LazyLevelling | MergePolicy::Levelling => 0.6,
                        MergePolicy::Tiering => 0.5 / ratio,
                    }
                } else {
                    // Up to 2T runs of one size can be seen at once.
                    let runs = if ratio < 4.0 { 2.0 * ratio } else { 1.0 };
                    0.6 / ratio.powf(f64::from(above) + 1.0) / runs
                };
                FilterAllocation::Fpr((total * share).max(1e-5))
            }
        }
    }

    /// Writes all but the resolve function.
    pub(crate) fn encode(&self, out: &mut Writer) {
        out.u8(match self.merge_policy {
            MergePolicy::LazyLevelling => 1,
            MergePolicy::Levelling => 2,
            MergePolicy::Tiering => 3,
        });
        out.u32(self.size_ratio);
        out.u8(match self.merge_schedule {
            MergeSchedule::Incremental => 1,
            MergeSchedule::OneShot => 2,
        });
        out.u8(match self.merge_thread {
            MergeThread::Caller => 1,
            MergeThread::Background => 2,
        });
        match self.write_buffer {
            WriteBuffer::Bytes(size) => out.u8(1).u64(size),
            WriteBuffer::Entries(size) => out.u8(2).u64(size),
        };
        match self.filter {
            FilterPolicy::TotalFpr(rate) => out.u8(1).u64(rate.to_bits()),
            FilterPolicy::Fpr(rate) => out.u8(2).u64(rate.to_bits()),
            FilterPolicy::BitsPerEntry(bits) => out.u8(3).u64(bits.to_bits()),
        };
        out.u8(match self.index {
            IndexKind::Auto => 1,
            IndexKind::Compact => 2,
            IndexKind::Ordinary => 3,
        });
        out.u8(match self.disk_cache {
            DiskCache::All => 1,
            DiskCache::None => 2,
        });
        out.u32(self.merge_batch_pages).u32(self.queue_depth);
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` for an unknown tag or an option out of range.
    pub(crate) fn decode(input: &mut Reader<'_>) -> std::result::Result<Option<Self>, Overrun> {
        let merge_policy = input.u8()?;
        let size_ratio = input.u32()?;
        let merge_schedule = input.u8()?;
        let merge_thread = input.u8()?;
        let write_buffer = (input.u8()?, input.u64()?);
        let filter = (input.u8()?, f64::from_bits(input.u64()?));
        let index = input.u8()?;
        let disk_cache = input.u8()?;
        let merge_batch_pages = input.u32()?;
        let queue_depth = input.u32()?;
        let decoded = || {
            let config = Self {
                resolve: Resolve::default(),
                merge_policy: match merge_policy {
                    1 => MergePolicy::LazyLevelling,
                    2 => MergePolicy::Levelling,
                    3 => MergePolicy::Tiering,
                    _ => return None,
                },
                size_ratio,
                merge_schedule: match merge_schedule {
                    1 => MergeSchedule::Incremental,
                    2 => MergeSchedule::OneShot,
                    _ => return None,
                },
                merge_thread: match merge_thread {
                    1 => MergeThread::Caller,
                    2 => MergeThread::Background,
                    _ => return None,
                },
                write_buffer: match write_buffer {
                    (1, size) => WriteBuffer::Bytes(size),
                    (2, size) => WriteBuffer::Entries(size),
                    _ => return None,
                },
                filter: match filter {
                    (1, rate) => FilterPolicy::TotalFpr(rate),
                    (2, rate) => FilterPolicy::Fpr(rate),
                    (3, bits) => FilterPolicy::BitsPerEntry(bits),
                    _ => return None,
                },
                index: match index {
                    1 => IndexKind::Auto,
                    2 => IndexKind::Compact,
                    3 => IndexKind::Ordinary,
                    _ => return None,
                },
                disk_cache: match disk_cache {
                    1 => DiskCache::All,
                    2 => DiskCache::None,
                    _ => return None,
                },
                merge_batch_pages,
                queue_depth,
            };
            config.validate().ok().map(|()| config)
        };
        Ok(decoded())
    }
}
