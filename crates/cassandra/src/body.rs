//! Bytes of rows: bodies of entries, and lists of changes in the journal.
//!
//! A body is a payload and the CRC-32C of commit, key, kind and payload, so a row that is returned
//! for another key or commit does not pass. Numbers are little-endian.
//!
//! | kind (`parts`) | payload |
//! |---|---|
//! | -1: removed | nothing |
//! | 0: in the row | the value |
//! | n > 0: in n rows of `big` | number of the value in its commit (4 bytes), CRC-32C of the value (4) |
//!
//! A journal row lists changes of one commit in one table: format 1 (1 byte), length of the
//! table's name (1), the name, changes, CRC-32C of all before. A change: flags (1 byte: 1 removed,
//! 2 the key had a value, 4 the new value is in `big`, 8 so was the old one), length of the key
//! (2), the key; with 4, number and parts (4 each); with 2, bytes of the old row (4); with 8,
//! commit (8), number and parts (4 each) of the old value.

use terrane_io::checksum::crc32c;
use terrane_kv::Result;

use crate::error::corrupt;

/// Longest value in a row of its own; longer ones are divided.
pub(crate) const INLINE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a part of a divided value; the last may have fewer.
pub(crate) const PART_BYTES: usize = 256 << 10;
/// Bytes after which a journal row ends.
const JOURNAL_BYTES: usize = 128 << 10;
/// Bytes that a row counts beside key and value.
const ROW_BYTES: usize = 32;
/// `parts` of a removed key.
pub(crate) const REMOVED: i32 = -1;
/// Version of journal rows.
const JOURNAL_FORMAT: u8 = 1;

/// Bytes that an entry counts in the size of a store.
pub(crate) fn row_bytes(key: &[u8], value_bytes: usize) -> u32 {
    (key.len() + value_bytes + ROW_BYTES) as u32
}

/// Place of a divided value: its commit, its number there, and its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Big {
    pub(crate) commit: i64,
    pub(crate) number: i32,
    pub(crate) parts: i32,
}

/// Parts of a value of this length, 0 if it stays in its row.
pub(crate) fn parts_of(value_bytes: usize) -> i32 {
    if value_bytes <= INLINE_BYTES_MAX { 0 } else { value_bytes.div_ceil(PART_BYTES) as i32 }
}

fn row_checksum(commit: i64, key: &[u8], parts: i32, payload: &[u8]) -> [u8; 4] {
    let mut bytes = Vec::with_capacity(key.len() + payload.len() + 16);
    bytes.extend(commit.to_le_bytes());
    bytes.extend((key.len() as u32).to_le_bytes());
    bytes.extend(key);
    bytes.extend(parts.to_le_bytes());
    bytes.extend(payload);
    crc32c(&bytes).to_le_bytes()
}

/// The body of an entry of a commit; `number` counts the divided values of the commit.
pub(crate) fn encode(commit: i64, key: &[u8], value: Option<&[u8]>, number: i32) -> (i32, Vec<u8>) {
    let (parts, mut body) = match value {
        None => (REMOVED, Vec::new()),
        Some(value) => match parts_of(value.len()) {
            0 => (0, value.to_vec()),
            parts => (parts, [number.to_le_bytes(), crc32c(value).to_le_bytes()].concat()),
        },
    };
    body.extend(row_checksum(commit, key, parts, &body));
    (parts, body)
}

/// Content of an entry as a row has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    Removed,
    Value(Vec<u8>),
    /// A divided value and its checksum.
    Divided(Big, u32),
}

/// Decodes a body.
///
/// # Errors
/// [`Error::Corruption`](terrane_kv::Error::Corruption).
pub(crate) fn decode(commit: i64, key: &[u8], parts: i32, mut body: Vec<u8>) -> Result<Content> {
    let wrong = || corrupt(format!("the row of a key of commit {commit} is not what was written"));
    let payload_bytes = body.len().checked_sub(4).ok_or_else(wrong)?;
    let (payload, checksum) = body.split_at(payload_bytes);
    if row_checksum(commit, key, parts, payload) != checksum {
        return Err(wrong());
    }

    if parts == REMOVED {
        return Ok(Content::Removed);
    }
    if parts == 0 {
        body.truncate(payload_bytes);
        return Ok(Content::Value(body));
    }

    let mut fields = Fields(payload);
    let number = fields.i32().ok_or_else(wrong)?;
    let checksum = fields.u32().ok_or_else(wrong)?;
    Ok(Content::Divided(Big { commit, number, parts }, checksum))
}

/// Joins the parts of a value, each with its number.
///
/// # Errors
/// [`Error::Corruption`](terrane_kv::Error::Corruption).
pub(crate) fn join(big: Big, size: usize, checksum: u32, parts: &[Vec<u8>]) -> Result<Vec<u8>> {
    let value = parts.concat();
    if value.len() != size || crc32c(&value) != checksum {
        let commit = big.commit;
        return Err(corrupt(format!("a divided value of commit {commit} is not what was written")));
    }
    Ok(value)
}

/// Old value of a changed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Previous {
    /// Bytes that the old entry counts.
    pub(crate) bytes: u32,
    pub(crate) big: Option<Big>,
}

/// Change of a key, as the collector needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) key: Vec<u8>,
    pub(crate) is_removed: bool,
    /// Number and parts of the new value, if it is divided.
    pub(crate) big: Option<(i32, i32)>,
    pub(crate) previous: Option<Previous>,
}

/// Lists changes of a table as journal rows.
pub(crate) fn encode_journal(table: &str, changes: &[Change]) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    let mut row = Vec::new();

    let start = |row: &mut Vec<u8>| {
        row.push(JOURNAL_FORMAT);
        row.push(table.len() as u8);
        row.extend(table.as_bytes());
    };
    let finish = |mut row: Vec<u8>| {
        let checksum = crc32c(&row).to_le_bytes();
        row.extend(checksum);
        row
    };

    for change in changes {
        if row.is_empty() {
            start(&mut row);
        }
        let old_big = change.previous.and_then(|previous| previous.big);
        let flags = u8::from(change.is_removed)
            | (u8::from(change.previous.is_some()) << 1)
            | (u8::from(change.big.is_some()) << 2)
            | (u8::from(old_big.is_some()) << 3);
        row.push(flags);
        row.extend((change.key.len() as u16).to_le_bytes());
        row.extend(&change.key);
        if let Some((number, parts)) = change.big {
            row.extend(number.to_le_bytes());
            row.extend(parts.to_le_bytes());
        }
        if let Some(previous) = change.previous {
            row.extend(previous.bytes.to_le_bytes());
        }
        if let Some(big) = old_big {
            row.extend(big.commit.to_le_bytes());
            row.extend(big.number.to_le_bytes());
            row.extend(big.parts.to_le_bytes());
        }
        if row.len() >= JOURNAL_BYTES {
            rows.push(finish(std::mem::take(&mut row)));
        }
    }

    if !row.is_empty() {
        rows.push(finish(row));
    }
    rows
}

/// Reads a journal row: the table's name and changes.
///
/// # Errors
/// [`Error::Corruption`](terrane_kv::Error::Corruption).
pub(crate) fn decode_journal(row: &[u8]) -> Result<(String, Vec<Change>)> {
    let wrong = || corrupt("a row of the journal is not what was written");
    let (bytes, checksum) = row.split_last_chunk::<4>().ok_or_else(wrong)?;
    if crc32c(bytes).to_le_bytes() != *checksum {
        return Err(wrong());
    }

    // The checksum holds, so a list that ends early was written by another format.
    decode_changes(bytes).ok_or_else(|| corrupt("a row of the journal has an unknown format"))
}

fn decode_changes(bytes: &[u8]) -> Option<(String, Vec<Change>)> {
    let mut fields = Fields(bytes);
    if fields.u8()? != JOURNAL_FORMAT {
        return None;
    }
    let name_bytes = usize::from(fields.u8()?);
    let table = String::from_utf8(fields.take(name_bytes)?.to_vec()).ok()?;

    let mut changes = Vec::new();
    while !fields.0.is_empty() {
        let flags = fields.u8()?;
        let key_bytes = usize::from(fields.u16()?);
        let key = fields.take(key_bytes)?.to_vec();
        let big = if flags & 4 > 0 { Some((fields.i32()?, fields.i32()?)) } else { None };
        let bytes = if flags & 2 > 0 { Some(fields.u32()?) } else { None };
        let old_big = if flags & 8 > 0 {
            Some(Big { commit: fields.i64()?, number: fields.i32()?, parts: fields.i32()? })
        } else {
            None
        };
        let previous = bytes.map(|bytes| Previous { bytes, big: old_big });
        changes.push(Change { key, is_removed: flags & 1 > 0, big, previous });
    }
    Some((table, changes))
}

/// Bytes that are read from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_comes_back_and_no_changed_bit_of_one_is_taken() {
        for value in [None, Some(&b""[..]), Some(&b"value"[..]), Some(vec![7; 300_000].as_slice())]
        {
            let (parts, body) = encode(5, b"key", value, 3);
            let content = decode(5, b"key", parts, body.clone()).unwrap();
            match value {
                None => assert_eq!(content, Content::Removed),
                Some(value) if value.len() > INLINE_BYTES_MAX => {
                    let big = Big { commit: 5, number: 3, parts: 2 };
                    assert_eq!(content, Content::Divided(big, crc32c(value)));
                }
                Some(value) => assert_eq!(content, Content::Value(value.to_vec())),
            }

            for at in 0..body.len() {
                for bit in 0..8 {
                    let mut wrong = body.clone();
                    wrong[at] ^= 1 << bit;
                    assert!(decode(5, b"key", parts, wrong).is_err(), "bit {bit} of byte {at}");
                }
                assert!(decode(5, b"key", parts, body[..at].to_vec()).is_err(), "cut at {at}");
            }
            for (commit, key, parts) in
                [(6, &b"key"[..], parts), (5, b"kez", parts), (5, b"key", parts + 1)]
            {
                assert!(decode(commit, key, parts, body.clone()).is_err(), "of another row");
            }
        }
    }

    #[test]
    fn a_divided_value_is_joined_only_if_it_is_whole() {
        let value: Vec<u8> = (0..600_000_u32).map(|at| (at % 251) as u8).collect();
        assert_eq!(parts_of(value.len()), 3);
        assert_eq!((parts_of(INLINE_BYTES_MAX), parts_of(INLINE_BYTES_MAX + 1)), (0, 1));
        let parts: Vec<Vec<u8>> = value.chunks(PART_BYTES).map(<[u8]>::to_vec).collect();
        let big = Big { commit: 1, number: 0, parts: 3 };
        let checksum = crc32c(&value);
        assert_eq!(join(big, value.len(), checksum, &parts).unwrap(), value);
        assert!(join(big, value.len(), checksum, &parts[..2]).is_err());
        assert!(join(big, value.len(), checksum ^ 1, &parts).is_err());
        assert!(
            join(
                big,
                value.len(),
                checksum,
                &[parts[1].clone(), parts[0].clone(), parts[2].clone()]
            )
            .is_err()
        );
    }

    #[test]
    fn a_journal_comes_back_in_rows_of_bounded_size() {
        let old = Big { commit: 9, number: 2, parts: 4 };
        let changes: Vec<Change> = (0..5000_u16)
            .map(|number| Change {
                key: [&number.to_le_bytes()[..], &[7; 60]].concat(),
                is_removed: number % 2 > 0,
                big: (number % 3 == 0).then_some((i32::from(number), 5)),
                previous: (number % 4 > 0).then_some(Previous {
                    bytes: u32::from(number),
                    big: (number % 5 == 0).then_some(old),
                }),
            })
            .collect();

        let rows = encode_journal("marks", &changes);
        assert!(rows.len() > 1 && rows.iter().all(|row| row.len() < JOURNAL_BYTES + 400));
        let mut found = Vec::new();
        for row in &rows {
            let (table, changes) = decode_journal(row).unwrap();
            assert_eq!(table, "marks");
            found.extend(changes);
            assert!(decode_journal(&row[..row.len() - 1]).is_err());
        }
        assert_eq!(found, changes);
        assert!(encode_journal("marks", &[]).is_empty());

        let mut wrong = rows[0].clone();
        wrong[20] ^= 1;
        assert!(decode_journal(&wrong).is_err());
    }
}
