//! Pages: the 4 KiB units of a tree file, the entries in them, and the errors of the crate.
//!
//! May import: nothing of this crate. Everything above reads pages through the views of this
//! folder.
//!
//! Begin with `page` (header, checksum, reference), then `block` (sorted entries in memory), `leaf`
//! and `inner`.
//!
//! Invariants:
//!
//! - A page is written once and never changed in place.
//! - A reference has the number *and* the checksum of its page. So the superblock's one checksum
//!   vouches for the whole tree: lost, stale and misdirected writes are found when the page is
//!   read, and a reader that was overtaken notices it. That costs four bytes a child, 8 of the 13
//!   that a child takes with random keys.
//! - A checksum says that a page is what was written, not that it makes sense: a page can be
//!   hostile. So the order of keys and separators is checked once, when a page comes from the disk,
//!   and not at each lookup.
//! - Separators are cut short where two leaves meet, from their keys, and nowhere else. Each leaf
//!   has both fences, so leaves alone tell the whole tree.
//!
//! Rejected: a check of all pages at opening (reads the whole tree); separators cut again between
//! nodes (`IN` between `I` and `INT` loses `INDEX`).

// Bottom-up: a module imports only from modules above it.
pub(crate) mod corrupt;
pub(crate) mod error;
pub(crate) mod page;
pub(crate) mod block;
pub(crate) mod leaf;
pub(crate) mod inner;
