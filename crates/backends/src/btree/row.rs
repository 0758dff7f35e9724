//! Rows of a B+tree that holds tables with values of any size.

#![doc = include_str!("../../../../docs/format/tables.md")]

use terrane_btree::VALUE_BYTES_MAX;
use terrane_kv::Result;

use super::options::broken;

/// First byte of the keys of rows that name the tables.
pub(super) const NAMES: u8 = 0;

/// First byte of the keys of the main table; keys of an index begin with its number.
pub(super) const MAIN: u8 = 1;

/// Greatest number of an index.
pub(super) const INDEX_MAX: u8 = 254;

/// First byte of the keys of pieces.
pub(super) const PIECES: u8 = 255;

/// Version of the rows.
pub(super) const ROWS_VERSION: u8 = 1;

/// First byte of a row with a whole value.
const WHOLE: u8 = 1;

/// First byte of a row whose value is in pieces.
const SPLIT: u8 = 2;

/// Bytes of a piece; the last piece of a value may be shorter.
pub(super) const PIECE_BYTES: usize = VALUE_BYTES_MAX;

/// Most bytes of a value in one row.
pub(super) const WHOLE_BYTES_MAX: usize = VALUE_BYTES_MAX - 1;

/// Location of the pieces of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) id: u64,
    pub(super) bytes: u32,
}

/// Content of a row.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Row<'a> {
    Whole(&'a [u8]),
    Split(Split),
}

/// The key of an entry of a table.
pub(super) fn key(table: u8, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + key.len());
    bytes.push(table);
    bytes.extend_from_slice(key);
    bytes
}

/// The key of the row of a table; the empty name gives the key of the version.
pub(super) fn name_key(name: &str) -> Vec<u8> {
    key(NAMES, name.as_bytes())
}

/// The row of a table: its number, and its number of entries.
pub(super) fn name_value(table: u8, entries: u64) -> Vec<u8> {
    key(table, &entries.to_le_bytes())
}

/// Reads the row of a table.
pub(super) fn read_name(value: &[u8]) -> Option<(u8, u64)> {
    let (&table, entries) = value.split_first()?;
    let entries = u64::from_le_bytes(entries.try_into().ok()?);
    // A number outside of the range is of no table of this program.
    (MAIN..=INDEX_MAX).contains(&table).then_some((table, entries))
}

/// A row with a whole value.
pub(super) fn whole(value: &[u8]) -> Vec<u8> {
    key(WHOLE, value)
}

impl Split {
    /// Number of pieces.
    pub(super) fn pieces(self) -> u32 {
        self.bytes.div_ceil(PIECE_BYTES as u32)
    }

    /// The row of a value in pieces.
    pub(super) fn row(self) -> Vec<u8> {
        let mut bytes = key(SPLIT, &self.id.to_le_bytes());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// The key of a piece.
    #[expect(clippy::big_endian_bytes, reason = "so that keys ascend as numbers do")]
    pub(super) fn piece_key(self, number: u32) -> [u8; 13] {
        debug_assert!(number < self.pieces(), "a piece of the value");
        // The pieces of a value lie one after the other, in their order.
        let mut bytes = [PIECES; 13];
        bytes[1..9].copy_from_slice(&self.id.to_be_bytes());
        bytes[9..].copy_from_slice(&number.to_be_bytes());
        bytes
    }
}

/// The number of the value that a piece belongs to.
#[expect(clippy::big_endian_bytes, reason = "so that keys ascend as numbers do")]
pub(super) fn piece_id(key: &[u8]) -> Option<u64> {
    let (&first, rest) = key.split_first()?;
    let (id, number) = rest.split_first_chunk::<8>()?;
    (first == PIECES && number.len() == 4).then(|| u64::from_be_bytes(*id))
}

/// Reads a row; `None` for bytes that no row has.
pub(super) fn read(row: &[u8]) -> Option<Row<'_>> {
    let (&tag, rest) = row.split_first()?;
    match tag {
        WHOLE => Some(Row::Whole(rest)),
        SPLIT => {
            let (id, rest) = rest.split_first_chunk::<8>()?;
            let bytes = u32::from_le_bytes(rest.try_into().ok()?);
            let split = Split { id: u64::from_le_bytes(*id), bytes };
            // A shorter value stands in its row, so this program wrote no such split.
            (bytes as usize > WHOLE_BYTES_MAX).then_some(Row::Split(split))
        }
        _ => None,
    }
}

/// Reads the row of a key.
///
/// # Errors
/// [`Error::Corruption`](terrane_kv::Error::Corruption).
pub(super) fn read_row<'a>(key: &[u8], value: &'a [u8]) -> Result<Row<'a>> {
    read(value).ok_or_else(|| broken(format!("row {key:02x?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_were_made() {
        for bytes in [0, 1, WHOLE_BYTES_MAX] {
            assert_eq!(read(&whole(&vec![7; bytes])), Some(Row::Whole(&vec![7; bytes])));
        }
        let split = Split { id: 0x0102_0304_0506_0708, bytes: 769 };
        assert_eq!(read(&split.row()), Some(Row::Split(split)));
        assert_eq!(split.pieces(), 2);
        assert_eq!(split.piece_key(1), [255, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1]);
        assert_eq!(piece_id(&split.piece_key(1)), Some(split.id));
        assert_eq!(read_name(&name_value(MAIN, 77)), Some((MAIN, 77)));
    }

    #[test]
    fn other_bytes_are_no_rows() {
        let row = Split { id: 1, bytes: 1_000 }.row();
        for bad in [&[][..], &[0], &[3, 1], &row[..12], &[row.as_slice(), &[0]].concat()] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
        // A value in pieces that would fit into a row was not written by this program.
        assert_eq!(read(&Split { id: 1, bytes: WHOLE_BYTES_MAX as u32 }.row()), None);
        for bad in [&name_value(NAMES, 1)[..], &name_value(PIECES, 1), &name_value(MAIN, 1)[..8]] {
            assert_eq!(read_name(bad), None, "{bad:?}");
        }
        assert_eq!(piece_id(&[255; 12]), None);
        assert_eq!(piece_id(&[1; 13]), None);
    }
}
