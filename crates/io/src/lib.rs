//! The disk under Terrane: one trait for files, and its real, counted, in-memory and simulated
//! forms.
//!
//! Engines hold an [`Arc<dyn Disk>`](Disk) and never touch `std::fs`. So each engine runs unchanged
//! on a real file system, and on a simulated one that loses unsynced writes.
//!
//! Begin with the traits in `disk/disk.rs`. Folders: `disk` (the traits and the real disk),
//! `durable` (checksums, the reserve), `wrap` (disks around disks), `sim` (simulated disks, behind
//! a feature). The modules beside the folders are primitives that engines share: bytes, the order
//! of keys, a cache, prefetching.
//!
//! Unsafe code stands only here, in `lmdb` and in the bindings. This crate knows no engine.

#![cfg_attr(docsrs, feature(doc_cfg))]

// Bottom-up: a module imports only from modules above it.
mod entry_kind;
mod error_kind;
mod setters;
#[cfg(feature = "serde")]
mod text_form;
mod durability;
mod loss;
#[doc(hidden)]
pub mod rare;
#[doc(hidden)]
pub mod sync;
pub mod error;
pub mod process;
pub mod bytes;
pub mod aligned;
pub mod clock;
pub mod key_order;
pub mod cache;
pub mod prefetch;
pub mod words;
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
pub use durability::Durability;
pub use durable::checksum;
pub use durable::reserve::Reserve;
pub use error::{Error, Result};
pub use error_kind::ErrorKind;
pub use loss::Loss;
pub use memory_disk::MemoryDisk;
pub use prefetch::prefetch;
#[cfg(feature = "sim")]
pub use sim::fault::{Fault, FaultKind, FaultPlan, Repeat};
#[cfg(feature = "sim")]
pub use sim::fixed_clock::FixedClockDisk;
#[cfg(feature = "sim")]
pub use sim::sim::{BadMedia, SimDisk, Survival};
pub use words::Words;
pub use wrap::counted::{CountedDisk, Counts};
pub use wrap::no_sync::NoSyncDisk;
