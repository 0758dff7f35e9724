//! Updates of the index that make up a commit.

use std::sync::atomic::{AtomicU64, Ordering};

use terrane_btree::Update;
use terrane_kv::Result;

use super::row::{self, PIECE_BYTES, Row, Split, WHOLE_BYTES_MAX, read_row};

/// State of a key before a commit.
#[derive(Debug, Clone, Copy)]
pub(super) enum Before {
    Nothing,
    Whole,
    Split(Split),
}

impl Before {
    pub(super) fn of_row(key: &[u8], row: Option<&[u8]>) -> Result<Self> {
        let Some(row) = row else { return Ok(Self::Nothing) };
        Ok(match read_row(key, row)? {
            Row::Whole(_) => Self::Whole,
            Row::Split(split) => Self::Split(split),
        })
    }

    /// The state of a key whose value has this length; `None` for a value in pieces, whose number
    /// the row has.
    pub(super) fn of_value(bytes: Option<usize>) -> Option<Self> {
        match bytes {
            None => Some(Self::Nothing),
            // A long value is in pieces, whose identity its length does not tell.
            Some(bytes) => (bytes <= WHOLE_BYTES_MAX).then_some(Self::Whole),
        }
    }
}

/// Rows and pieces that a commit writes and removes.
#[derive(Default)]
pub(super) struct Rows<'a> {
    /// Key, row, and whether the key exists already.
    pub(super) put: Vec<(Vec<u8>, Vec<u8>, bool)>,
    pieces: Vec<(Split, &'a [u8])>,
    removed: Vec<Vec<u8>>,
    /// Values whose pieces go.
    gone: Vec<Split>,
}

impl<'a> Rows<'a> {
    /// Adds the change of a key; returns by how much the number of entries of its table grows.
    pub(super) fn change(
        &mut self,
        key: Vec<u8>,
        before: Before,
        after: Option<&'a [u8]>,
        next_value: &AtomicU64,
    ) -> i64 {
        // The pieces of the old value go, whatever comes in its place.
        if let Before::Split(split) = before {
            self.gone.push(split);
        }

        debug_assert!(after.is_none_or(|value| u32::try_from(value.len()).is_ok()));
        let was_there = !matches!(before, Before::Nothing);
        // A key that was absent and stays absent is no change.
        match after {
            None if !was_there => {}
            None => self.removed.push(key),
            Some(value) if value.len() <= WHOLE_BYTES_MAX => {
                self.put.push((key, row::whole(value), was_there));
            }
            Some(value) => {
                // Each long value has an identity of its own, so its pieces never meet older ones.
                let id = next_value.fetch_add(1, Ordering::Relaxed);
                let split = Split { id, bytes: value.len() as u32 };
                self.put.push((key, split.row(), was_there));
                self.pieces.push((split, value));
            }
        }

        i64::from(after.is_some()) - i64::from(was_there)
    }

    /// Keys of the new pieces and of the removed pieces.
    pub(super) fn piece_keys(&self) -> (Vec<[u8; 13]>, Vec<[u8; 13]>) {
        let keys = |split: &Split| {
            let split = *split;
            (0..split.pieces()).map(move |number| split.piece_key(number))
        };
        let put = self.pieces.iter().flat_map(|(split, _)| keys(split)).collect();
        (put, self.gone.iter().flat_map(keys).collect())
    }

    /// The updates, each with whether its key exists: a new piece does not, a removed piece does.
    pub(super) fn updates<'b>(
        &'b self,
        put: &'b [[u8; 13]],
        gone: &'b [[u8; 13]],
    ) -> (Vec<Update<'b>>, Vec<bool>) {
        debug_assert_eq!(
            put.len(),
            self.pieces.iter().map(|(split, _)| split.pieces() as usize).sum::<usize>(),
            "a key for each piece"
        );
        let rows =
            self.put.iter().map(|(key, row, is_there)| (Update::Replace(key, row), *is_there));
        let values = self.pieces.iter().flat_map(|(_, value)| value.chunks(PIECE_BYTES));
        let pieces =
            put.iter().zip(values).map(|(key, piece)| (Update::Replace(key, piece), false));
        let removed = self.removed.iter().map(Vec::as_slice);
        // The pieces of replaced values go in the same batch.
        let removed = removed.chain(gone.iter().map(<[u8; 13]>::as_slice));
        let removed = removed.map(|key| (Update::Remove(key), true));
        rows.chain(pieces).chain(removed).unzip()
    }
}
