//! Checking, repairing and inspecting an index that no writer of this process has open.
//!
//! May import: every folder above.
//!
//! Begin with `check` (reads everything and reports problems), then `salvage` (which leaves make up
//! a damaged tree), `repair` (makes everything else anew) and `inspect` (describes an index or a
//! page).
//!
//! Invariants: a check and an inspection write nothing. A repair writes only new pages behind the
//! end of the file until one superblock switches to them, so an interrupted repair has done
//! nothing. Without the caller's consent a repair loses no entry; with it, the report names every
//! range of keys that was lost or taken from an older leaf.
//!
//! Rejected: comparing the first and last keys of leaves (cannot tell an old leaf from a new one of
//! the same range); ordering leaves by the clock; mending single nodes (a second way to make nodes,
//! for a case that looks at every leaf anyway).

// Bottom-up: a module imports only from modules above it.
pub(crate) mod check;
pub(crate) mod salvage;
pub(crate) mod repair;
pub mod inspect;
