//! Pages of a run file, and the index that says which page may hold a key.
//!
//! RocksDB calls a page a data block and the index an index block. This folder imports `entry`,
//! `corrupt` and `error`, and does no I/O.
//!
//! Begin with [`page`]: the 4 KiB frame of every page, and the layout of key pages. [`page_packer`]
//! fills compressed key pages, with a codec of [`codec`].
//! [`index`](mod@index) is the page index, in one of two forms: compact (`fences`, 1.3 to 1.6 bytes
//! for each page) or ordinary (`separators`, about 4 bytes).
//!
//! Invariants: a page is written once; its checksum covers its address (run identity and page
//! number), so misdirected and stale pages are caught; a page that was parsed can be read without
//! failing.
//!
//! Rejected:
//! - compression of every table: hashes do not compress;
//! - a hash index inside the page: a binary search in a cached page costs less than more pages
//!   would;
//! - a learned index: it reads two or three pages and needs a fallback for hostile keys.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod codec;
pub(crate) mod page;
pub(crate) mod page_packer;
pub(crate) mod index;
