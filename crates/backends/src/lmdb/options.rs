//! Options of an [`LmdbDatabase`](super::LmdbDatabase), and sizes of its map.

use terrane_kv::{Error, Result};
use terrane_lmdb::SyncMode;

use super::failure::NAME;

/// Fewest bytes of a map: room for the heads, the tables' roots and a few transactions.
pub(super) const MAP_BYTES_MIN: u64 = 64 << 10;
/// Most bytes of the limit that are kept for transactions that remove.
pub(super) const RESERVE_BYTES_MAX: u64 = 4 << 20;
/// Unit of the sizes of maps: the largest page size of a system that LMDB runs on.
pub(super) const MAP_STEP_BYTES: u64 = 64 << 10;

/// Growth of a full map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LmdbGrowth {
    /// Not at all.
    None,
    /// To twice its size.
    Double,
    /// By this many bytes.
    Step(u64),
}

/// Options of an [`LmdbDatabase`](super::LmdbDatabase).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LmdbOptions {
    /// First size of the map in bytes, rounded up to 64 KiB. `None`: 1 GiB of address space, which
    /// costs nothing; 1 MiB with `write_map`, where the file is as large as the map.
    pub map_bytes: Option<u64>,
    /// Growth of a full map.
    pub growth: LmdbGrowth,
    /// Most bytes of the map, also if it does not grow.
    pub map_bytes_max: u64,
    /// Most live snapshots of all processes.
    pub readers_max: u32,
    /// Whether the path names a directory, which is created if missing, or a file.
    pub directory: bool,
    /// Whether the system reads ahead. Lookups of random keys are better without.
    pub read_ahead: bool,
    /// Whether pages are changed in the map in place of being written.
    pub write_map: bool,
    /// Syncs of a commit.
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
    /// Settings of Transact's back-end (`WRITEMAP`, `MAPASYNC`, `NORDAHEAD`, `NOSUBDIR`), with a
    /// file that grows instead of having 1 TiB from the start.
    #[must_use]
    pub fn transact() -> Self {
        Self { write_map: true, sync: SyncMode::MapAsync, ..Self::default() }
    }

    terrane_io::setters! {
        map_bytes: impl Into<Option<u64>>,
        growth: LmdbGrowth,
        map_bytes_max: u64,
        readers_max: u32,
        directory: bool,
        read_ahead: bool,
        write_map: bool,
        sync: SyncMode,
    }

    pub(super) fn start_bytes(&self) -> u64 {
        // A writable map takes its whole size on the disk at once, so it starts small.
        let bytes = self.map_bytes.unwrap_or(if self.write_map { 1 << 20 } else { 1 << 30 });
        round_up(bytes.max(MAP_BYTES_MIN)).min(self.soft_bytes())
    }

    /// Limit of the map for transactions that add entries.
    pub(super) fn soft_bytes(&self) -> u64 {
        // The reserve lets removals go on when the map is full.
        round_down(self.map_bytes_max - (self.map_bytes_max / 16).min(RESERVE_BYTES_MAX))
    }

    pub(super) fn check(&self) -> Result<()> {
        let refuse = |option: &str, why: String| {
            Err(Error::Unsupported { back_end: NAME, option: option.into(), why })
        };

        // The map needs room for the reserve, and must fit the address space.
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
