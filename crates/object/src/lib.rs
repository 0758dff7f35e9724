//! Object storage for Terrane's LSM stores: incremental backups in a bucket, restores to any
//! shipped commit, verification, retention, stores that are read where they lie, and followers.
//!
//! A [`Bucket`] is a prefix in S3, Google Cloud Storage, Azure Blob Storage, or a directory. All
//! calls are synchronous; requests run on a thread that belongs to the bucket.
//!
//! ```no_run
//! use terrane_lsm::{ReaderOptions, StoreReader};
//! use terrane_object::Bucket;
//!
//! let bucket = Bucket::open("s3://ledger-backups/main")?;
//! let mut reader = StoreReader::open_dir("/data/ledger", &ReaderOptions::default())?;
//! let report = bucket.back_up(&mut reader, &mut |_done, _total| {})?;
//! println!("commits {} to {} can be restored", report.base_commit, report.commit);
//! # Ok::<(), terrane_object::Error>(())
//! ```
//!
//! Invariants:
//! - Every object is put once, under a name that was free, and never overwritten.
//! - The newest catalog is the state of the bucket. It changes by the creation of the next one,
//!   which succeeds for one writer only.
//! - What a catalog names was stored before the catalog was put, and is deleted only after a later
//!   catalog no longer names it.
//!
//! Where to begin reading: `catalog` for the protocol, `upload` for a backup, `restore` and `disk`
//! for the ways back, `follow` for a copy that takes over what is shipped.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod error;
mod runtime;
mod address;
mod bucket;
mod catalog;
mod manifest;
mod stream;
mod upload;
mod point;
mod restore;
mod verify;
mod prune;
mod disk;
mod follow;

pub use address::is_address;
pub use bucket::{Bucket, Requests};
pub use catalog::BackupInfo;
pub use disk::{BLOCK_BYTES, BucketDisk, CACHE_BYTES_DEFAULT};
pub use error::{Error, Result};
pub use follow::BucketFollower;
pub use prune::{ABANDONED_AFTER_S, DropReport, Retention};
pub use restore::{RestoreReport, Restoring};
pub use upload::UploadReport;
pub use verify::{Problem, VerifyReport};
