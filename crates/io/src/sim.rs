//! Simulated disks for tests: in memory, with faults, lost power and bad sectors, all drawn from a
//! seed.
//!
//! May import: `disk`, and `memory_disk` beside it. Behind the feature `sim`; no product code uses
//! this folder.
//!
//! Begin with `fault` (what fails, and when), then `sim` (the disk: what survives a loss of power,
//! in which order queued requests complete) and `fixed_clock` (a disk whose clock stands still, for
//! golden files).
//!
//! Invariants: without a sync, any subset of the written 512-byte sectors and of the names may
//! survive; with one, all of them do. The same seed and the same calls give the same outcome. A
//! simulated disk refuses exactly what the real one refuses: the conformance tests run on both.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod fault;
pub(crate) mod sim;
pub(crate) mod fixed_clock;
