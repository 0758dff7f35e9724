//! Options of an [`LmdbDatabase`](super::LmdbDatabase), and sizes of its map.

use terrane_kv::{Error, Result};
use terrane_lmdb::SyncMode;

use super::failure::NAME;

/// Bytes of a map at least: room for the heads, the tables' roots and a few transactions.
pub(super) const MAP_BYTES_MIN: u64 = 64 << 10;
/// Bytes of the part of the limit that is kept for removals, at most.
pub(super) const RESERVE_BYTES_MAX: u64 = 4 << 20;
/// What sizes of maps are multiples of: the largest page of a system that LMDB runs on.
pub(super) const MAP_STEP_BYTES: u64 = 64 << 10;

/// How a full map grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LmdbGrowth {
    /// Not at all.
    None,
    /// To twice its size.
    Double,
    /// By so many bytes.
    Step(u64),
}

/// How an LMDB database is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LmdbOptions {
    /// Bytes of the map to start with; rounded up to 64 KiB. `None`: 1 GiB of addresses, which cost
    /// nothing; 1 MiB with a map that is written, whose file has the size of the map.
    pub map_bytes: Option<u64>,
    /// How a full map grows.
    pub growth: LmdbGrowth,
    /// Bytes of the map at most, also for one that does not grow.
    pub map_bytes_max: u64,
    /// Snapshots at a time, over all processes, at most.
    pub readers_max: u32,
    /// Whether the path names a directory, made if it is not there, or a file.
    pub directory: bool,
    /// Whether the system reads ahead. Lookups of random keys are better without.
    pub read_ahead: bool,
    /// Whether pages are changed in the map in place of being written.
    pub write_map: bool,
    /// When commits reach the disk.
    pub sync: SyncMode,
}

impl Default for LmdbOptions {
    fn default() -> Self {
        Self {
            map_bytes: None,
            growth: LmdbGrowth::Double,
            map_bytes_max: 1 << 40,
            readers_max: 126,
            directory: false,
            read_ahead: false,
            write_map: false,
            sync: SyncMode::Full,
        }
    }
}

impl LmdbOptions {
    /// The settings of Transact's back-end (`WRITEMAP`, `MAPASYNC`, `NORDAHEAD`, `NOSUBDIR`), but
    /// for its file, which grows instead of having a length of 1 TiB from the start.
    #[must_use]
    pub fn transact() -> Self {
        Self { write_map: true, sync: SyncMode::MapAsync, ..Self::default() }
    }

    pub(super) fn start_bytes(&self) -> u64 {
        let bytes = self.map_bytes.unwrap_or(if self.write_map { 1 << 20 } else { 1 << 30 });
        round_up(bytes.max(MAP_BYTES_MIN)).min(self.soft_bytes())
    }

    /// The limit for transactions that add.
    pub(super) fn soft_bytes(&self) -> u64 {
        round_down(self.map_bytes_max - (self.map_bytes_max / 16).min(RESERVE_BYTES_MAX))
    }

    pub(super) fn check(&self) -> Result<()> {
        let refuse = |option: &str, why: String| {
            Err(Error::Unsupported { back_end: NAME, option: option.into(), why })
        };
        if self.map_bytes_max < 2 * MAP_BYTES_MIN || usize::try_from(self.map_bytes_max).is_err() {
            return refuse(
                "map_bytes_max",
                format!("at least {} and what the process can address", 2 * MAP_BYTES_MIN),
            );
        }

        if self.map_bytes.is_some_and(|bytes| bytes > self.map_bytes_max) {
            return refuse("map_bytes", format!("more than map_bytes_max, {}", self.map_bytes_max));
        }
        if self.growth == LmdbGrowth::Step(0) {
            return refuse("growth", "a step of 0 bytes; take LmdbGrowth::None".into());
        }
        if self.readers_max == 0 {
            return refuse("readers_max", "0; the database itself needs one".into());
        }
        if self.sync == SyncMode::MapAsync && !self.write_map {
            return refuse("sync", "MapAsync has no effect without write_map; set it".into());
        }

        Ok(())
    }
}

pub(super) fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(MAP_STEP_BYTES) * MAP_STEP_BYTES
}

pub(super) fn round_down(bytes: u64) -> u64 {
    bytes / MAP_STEP_BYTES * MAP_STEP_BYTES
}
