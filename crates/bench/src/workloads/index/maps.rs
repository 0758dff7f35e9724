//! The maps that engines hold, one module each.

pub(super) mod btree;

#[cfg(feature = "lmdb")]
// Bottom-up: a module imports only from modules above it.
pub(super) mod lmdb;
pub(super) mod lsm;
pub(super) mod memory;

use std::path::Path;
use std::sync::Arc;

use terrane::io::files::create_parents;
use terrane::io::{CountedDisk, RealDisk};

use super::Result;

/// The real disk, counted, with the directory that a map's own is to be made in.
fn counted_disk(dir: &Path) -> Result<Arc<CountedDisk>> {
    let disk = CountedDisk::new(RealDisk::auto());
    create_parents(disk.as_ref(), dir).map_err(terrane::lsm::Error::from)?;
    Ok(disk)
}
