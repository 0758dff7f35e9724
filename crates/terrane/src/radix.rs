//! The radix state: versions of a map from addresses to values, with a root hash and proofs.
//!
//! [`open_dir`] opens a state in a directory, over LSM tables unless the directory says otherwise.
//! [`state_dir`] has other back-ends and options, and [`Store::open`] takes any
//! database of [`kv`](crate::kv).

use std::path::Path;

use crate::state_dir::{self, OpenOptions, OpenStore};

#[doc(inline)]
pub use terrane_radix::*;

/// Opens the radix state of a directory for writing, whatever its back-end, or creates one over LSM
/// tables in a missing or empty directory.
///
/// Each commit is durable when it returns.
///
/// ```
/// use terrane::radix::{Address, Change, Root, open_dir};
///
/// # let folder = tempfile::tempdir()?;
/// # let dir = folder.path().join("state");
/// let state = open_dir(&dir)?;
/// let tree = state.tree_or_create("ledger")?;
/// let alice: Address = "00a1".parse()?;
/// let committed = tree.commit(&Root::EMPTY, &[Change::Set(alice, b"100".to_vec())])?;
/// assert_eq!(tree.get_one(&committed.root, &alice)?.as_deref(), Some(&b"100"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Those of [`OpenOptions::open_or_create`].
pub fn open_dir(dir: impl AsRef<Path>) -> state_dir::Result<OpenStore> {
    OpenOptions::default().open_or_create(dir.as_ref())
}
