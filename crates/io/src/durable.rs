//! Building blocks of durability that engines share: checksums, and a reserve of disk space.
//!
//! May import: `disk`.
//!
//! `checksum` is CRC-32C; every page, frame, lease and mark of the engines carries one. `reserve`
//! is room that an engine allocates ahead, so that removals still work on a full disk.
//!
//! Rejected: one durable mark, and one lease, for all engines. The marks of the three logs share an
//! idea and little else. Their bytes differ (a segment number and a commit in a sector of the
//! segment; a tree and a position in a file of their own; a store and an address in the control
//! file), and so do their answers to damage. The leases name runs and segments in one engine and a
//! generation in the other. A common form would need more parameters than it would save lines.

// Bottom-up: a module imports only from modules above it.
pub mod checksum;
pub(crate) mod reserve;
