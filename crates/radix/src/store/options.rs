//! Options of a store.

/// Options of [`Store::open`](crate::Store::open).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct Options {
    /// Bytes of the cache of nodes.
    pub cache_bytes: usize,
    /// Threads that hash large batches; at least one. Roots do not depend on it.
    pub threads: usize,
}

impl Default for Options {
    /// 64 MiB, and as many threads as the machine has.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { cache_bytes: 64 << 20, threads }
    }
}

impl Options {
    terrane_io::setters! {
        cache_bytes: usize,
        threads: usize,
    }
}
