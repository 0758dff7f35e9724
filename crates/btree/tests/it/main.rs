//! Tests of the index through its public interface.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod acceptance;
mod bulk;
mod crash;
mod damage;
mod forged;
mod golden;
mod hostile;
mod lost_files;
mod migrate;
mod model;
mod processes;
#[cfg(shuttle)]
mod schedules;
mod scrub;
mod sort;
mod space;

use terrane_btree::{Records, Result};

/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// All records of a stream.
pub(crate) fn collect(records: &mut dyn Records) -> Result<Vec<Pair>> {
    let mut all = Vec::new();
    while let Some((key, value)) = records.next_ref()? {
        all.push((key.to_vec(), value.to_vec()));
    }
    Ok(all)
}
