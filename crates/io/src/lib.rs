//! The disk under Terrane: one trait for files, and its real, counted, in-memory and simulated
//! forms.
//!
//! Engines hold an [`Arc<dyn Disk>`](Disk) and never touch `std::fs`; so each of them runs
//! unchanged on a real file system and on a simulated one that loses what was not synced.
//!
//! This is the only library crate with `unsafe` code. It knows no engine.

#![cfg_attr(docsrs, feature(doc_cfg))]

// Bottom-up: a module imports only from modules above it.
mod entry_kind;
mod error_kind;
pub mod error;
pub mod bytes;
pub mod aligned;
pub mod clock;
pub mod key_order;
pub mod cache;
pub mod prefetch;
mod disk;
pub mod memory_disk;
mod durable;
mod wrap;
#[cfg(feature = "sim")]
mod sim;

pub use aligned::{ALIGN, AlignedBuf};
pub use clock::Clock;
pub use disk::disk::{
    Access, Anchor, Completion, Direction, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard,
    OpenMode, QueueKind, Request,
};
pub use disk::files;
pub use disk::posix::FileModes;
pub use disk::real::{QueueChoice, RealDisk, RealOptions};
pub use durable::checksum;
pub use durable::reserve::Reserve;
pub use error::{Error, Result};
pub use error_kind::ErrorKind;
pub use memory_disk::MemoryDisk;
pub use prefetch::prefetch;
#[cfg(feature = "sim")]
pub use sim::fault::{Fault, FaultKind, FaultPlan, Repeat};
#[cfg(feature = "sim")]
pub use sim::fixed_clock::FixedClockDisk;
#[cfg(feature = "sim")]
pub use sim::sim::{BadMedia, SimDisk, Survival};
pub use wrap::counted::{CountedDisk, Counts};
pub use wrap::no_sync::NoSyncDisk;
