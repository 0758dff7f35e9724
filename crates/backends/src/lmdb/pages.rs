//! Tables of a snapshot or of a transaction, read by pages.

use std::ops::Bound;

use terrane_kv::overlay::paging::{PAGE_BYTES, Pages};
use terrane_kv::{Entry, KEY_BYTES_MAX, Result};
use terrane_lmdb::{EnvironmentTable, PageLimit, ReadTables};

use super::failure::error_of;

/// Whether a database can have a key.
pub(super) fn is_key(key: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len())
}

fn limit(entries: usize) -> PageLimit {
    PageLimit { entries, bytes: PAGE_BYTES }
}

pub(super) struct TablePages<'r, R>(pub(super) &'r R, pub(super) EnvironmentTable);

impl<R: ReadTables> Pages for TablePages<'_, R> {
    fn after(&self, from: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        self.0
            .page_after(self.1, from, limit(entries))
            .map_err(|failure| error_of("cursor", failure))
    }

    fn before(&self, to: Bound<&[u8]>, entries: usize) -> Result<Vec<Entry>> {
        self.0
            .page_before(self.1, to, limit(entries))
            .map_err(|failure| error_of("cursor", failure))
    }
}
