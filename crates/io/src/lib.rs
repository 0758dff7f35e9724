//! The disk under Terrane: one trait for files, and its real, counted, in-memory and simulated forms.
//!
//! Engines hold an [`Arc<dyn Disk>`](disk::Disk) and never touch `std::fs`; so each of them runs
//! unchanged on a real file system and on a simulated one that loses what was not synced.
//!
//! This is the only library crate with `unsafe` code. It knows no engine.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod entry_kind;

mod error_kind;

pub mod error;

pub mod checksum;

pub mod bytes;

pub mod cache;

pub mod aligned;

pub mod clock;

pub mod order;

pub mod disk;

pub mod hint;

mod reserve;

mod queue_above;

pub mod counted;

pub mod unsynced;

mod anchor;

mod posix;

mod threads;

#[cfg_attr(not(target_os = "linux"), path = "uring_absent.rs")]
mod uring;

pub mod real;

pub mod memory;

#[cfg(feature = "sim")]
pub mod fault;

#[cfg(feature = "sim")]
pub mod sim;

#[cfg(feature = "sim")]
pub mod still;

pub use aligned::{ALIGN, AlignedBuf};
pub use clock::Clock;
pub use counted::{CountedDisk, Counts};
pub use disk::{
    Access, Anchor, Completion, Direction, Disk, DiskFile, Entry, EntryKind, IoQueue, LockGuard,
    OpenMode, QueueKind, Request,
};
pub use error::{Error, Result};
pub use error_kind::ErrorKind;
#[cfg(feature = "sim")]
pub use fault::{Fault, FaultKind, FaultPlan, Repeat};
pub use hint::prefetch;
pub use memory::MemoryDisk;
pub use posix::FileModes;
pub use real::{QueueChoice, RealDisk, RealOptions};
pub use reserve::Reserve;
#[cfg(feature = "sim")]
pub use sim::{BadMedia, SimDisk, Survival};
#[cfg(feature = "sim")]
pub use still::StillDisk;
pub use unsynced::UnsyncedDisk;
