//! Records as inputs of a build: streams of (key, value).
//!
//! A file of records of fixed sizes has neither header nor separators: key and value of record *n*
//! stand at `n · (key_bytes + value_bytes)`, the value right behind its key.

use std::io::{self, Read};
use std::sync::Arc;

use terrane_io::DiskFile;

use crate::page::block::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::page::error::{Error, Result};

/// Size of a read, in bytes.
const WINDOW_BYTES: usize = 256 << 10;

/// A stream of records; the stream lends each record until the next call.
pub trait Records {
    /// Returns the next record, key and value; `None` at the end.
    ///
    /// # Errors
    /// Those of the source of the records. A stream that has failed promises nothing.
    fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>>;
}

/// The records of an iterator.
#[derive(Debug)]
pub struct IterRecords<I> {
    iter: I,
    record: (Vec<u8>, Vec<u8>),
}

impl<I: Iterator<Item = (Vec<u8>, Vec<u8>)>> IterRecords<I> {
    /// The records of an iterator.
    pub fn new(iter: impl IntoIterator<IntoIter = I>) -> Self {
        Self { iter: iter.into_iter(), record: Default::default() }
    }
}

impl<I: Iterator<Item = (Vec<u8>, Vec<u8>)>> Records for IterRecords<I> {
    fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        let Some(record) = self.iter.next() else { return Ok(None) };
        self.record = record;
        Ok(Some((&self.record.0, &self.record.1)))
    }
}

/// The bytes of a file on a [`Disk`](terrane_io::Disk) as a stream. The file does not change.
#[derive(Debug)]
pub struct FileInput {
    file: Arc<dyn DiskFile>,
    offset: u64,
    end: u64,
}

impl FileInput {
    /// The whole file.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub fn new(file: Arc<dyn DiskFile>) -> Result<Self> {
        let end = file.len()?;
        Ok(Self::part(file, 0, end))
    }

    /// The bytes from `offset` to before `end`.
    pub(crate) fn part(file: Arc<dyn DiskFile>, offset: u64, end: u64) -> Self {
        Self { file, offset, end }
    }
}

impl Read for FileInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        let count = buffer.len().min(left);
        if let Some(part) = buffer.get_mut(..count) {
            self.file.read_at(part, self.offset).map_err(io::Error::other)?;
        }
        self.offset += count as u64;
        Ok(count)
    }
}

/// Records of fixed sizes, read from a stream.
///
/// Memory: 256 KiB, or one record if that is more.
#[derive(Debug)]
pub struct FixedRecords<R> {
    input: R,
    key_bytes: usize,
    record_bytes: usize,
    /// Invariant: `start <= end <= window.len()`; bytes that have been read and not given stand
    /// between the two.
    window: Vec<u8>,
    start: usize,
    end: usize,
    /// Number of records given.
    position: u64,
}

impl<R: Read> FixedRecords<R> {
    /// The records of `input`, of these sizes.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for sizes that no index has.
    pub fn new(input: R, key_bytes: usize, value_bytes: usize) -> Result<Self> {
        check_sizes(key_bytes, value_bytes)?;
        let record_bytes = key_bytes + value_bytes;
        let window = vec![0; WINDOW_BYTES - WINDOW_BYTES % record_bytes];
        Ok(Self { input, key_bytes, record_bytes, window, start: 0, end: 0, position: 0 })
    }

    /// Number of records given so far, which is the number of the next one.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Reads until a record is there or the input ends. Returns whether a record is there.
    pub(crate) fn fill(&mut self) -> Result<bool> {
        // An empty window begins at its front, so that there is room for whole records.
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }

        // The window is a whole number of records, so a record never goes past its end.
        while self.end - self.start < self.record_bytes {
            let room = self.window.get_mut(self.end..).unwrap_or_default();
            match self.input.read(room) {
                Ok(0) if self.start == self.end => return Ok(false),
                Ok(0) => {
                    let position = self.position;
                    let bytes = (self.end - self.start) as u64;
                    return Err(Error::TruncatedInput { position, bytes });
                }
                // A stream that claims more than there was room for must not move the end out.
                Ok(count) => self.end += count.min(room.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::input(error)),
            }
        }

        debug_assert!(self.start + self.record_bytes <= self.end, "a whole record is there");
        debug_assert!(self.end <= self.window.len(), "the window bounds what is read");
        Ok(true)
    }
}

impl<R: Read> Records for FixedRecords<R> {
    /// Cost: a read of the input for each 256 KiB.
    ///
    /// # Errors
    /// [`Error::TruncatedInput`] if the input ends inside a record, [`Error::Disk`] and
    /// [`Error::Input`] if it cannot be read.
    fn next_ref(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        if !self.fill()? {
            return Ok(None);
        }
        let from = self.start;
        self.start += self.record_bytes;
        self.position += 1;
        let record = self.window.get(from..self.start).unwrap_or_default();
        Ok(record.split_at_checked(self.key_bytes))
    }
}

/// Refuses keys that are not strictly ascending.
#[derive(Debug, Default)]
pub struct AscendingCheck {
    last: Vec<u8>,
    position: u64,
}

impl AscendingCheck {
    /// A check before the first key.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks the next key. Allocates for a key longer than all before.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`] if it is equal to the last key, [`Error::NotSorted`] if it is below;
    /// then it does not count.
    pub fn check(&mut self, key: &[u8]) -> Result<()> {
        let position = self.position;
        // A refused key does not count: the next key is compared with the last good one.
        if position > 0 && key <= self.last.as_slice() {
            return Err(Error::not_ascending(key == self.last.as_slice(), position));
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        self.position += 1;
        Ok(())
    }
}

/// Refuses sizes that no index has.
pub(crate) fn check_sizes(key_bytes: usize, value_bytes: usize) -> Result<()> {
    in_range("key_bytes", key_bytes, 1, KEY_BYTES_MAX, "keys have 1 to `KEY_BYTES_MAX` bytes")?;
    in_range(
        "value_bytes",
        value_bytes,
        0,
        VALUE_BYTES_MAX,
        "values have up to `VALUE_BYTES_MAX` bytes",
    )
}

/// Refuses an option that is out of its range.
pub(crate) fn in_range(
    option: &'static str,
    value: usize,
    min: usize,
    max: usize,
    allowed: &'static str,
) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::InvalidConfig { option, value: value.to_string(), allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time, so that records are cut in all ways, and is interrupted now and
    /// then.
    struct Trickle<'a> {
        bytes: &'a [u8],
        step: usize,
        is_interrupted: bool,
    }

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.is_interrupted = !self.is_interrupted;
            if self.is_interrupted {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = self.step.min(self.bytes.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.bytes[..count]);
            self.bytes = &self.bytes[count..];
            Ok(count)
        }
    }

    fn all(bytes: &[u8], step: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut records =
            FixedRecords::new(Trickle { bytes, step, is_interrupted: false }, 3, 2).unwrap();
        let mut all = Vec::new();
        while let Some((key, value)) = records.next_ref()? {
            all.push((key.to_vec(), value.to_vec()));
        }
        assert_eq!(records.position(), all.len() as u64);
        assert!(records.next_ref().unwrap().is_none());
        Ok(all)
    }

    #[test]
    fn records_are_whole_however_the_input_trickles() {
        let bytes: Vec<u8> = (0..5 * 200).map(|at| (at % 251) as u8).collect();
        let expected: Vec<_> =
            bytes.chunks(5).map(|record| (record[..3].to_vec(), record[3..].to_vec())).collect();
        for step in [1, 2, 4, 5, 7, 1000] {
            assert_eq!(all(&bytes, step).unwrap(), expected, "{step} bytes at a time");
        }
        assert_eq!(all(&[], 1).unwrap(), []);
    }

    #[test]
    fn an_input_longer_than_the_window_is_read_to_its_end() {
        let count = 3 * WINDOW_BYTES / 45;
        let bytes: Vec<u8> = (0..45 * count).map(|at| (at / 45 % 253) as u8).collect();
        let mut records = FixedRecords::new(bytes.as_slice(), 32, 13).unwrap();
        for number in 0..count {
            let byte = (number % 253) as u8;
            assert_eq!(records.next_ref().unwrap(), Some((&[byte; 32][..], &[byte; 13][..])));
        }
        assert!(records.next_ref().unwrap().is_none());
    }

    #[test]
    fn a_record_that_is_cut_is_refused_with_its_number() {
        for left in 1..5 {
            let error = all(&vec![7; 10 + left], 3).unwrap_err();
            let bytes = left as u64;
            assert!(
                matches!(error, Error::TruncatedInput { position: 2, bytes: found } if found == bytes),
                "{error:?}"
            );
        }
    }

    #[test]
    fn sizes_that_no_index_has_are_refused() {
        for (key_bytes, value_bytes) in [(0, 1), (KEY_BYTES_MAX + 1, 1), (1, VALUE_BYTES_MAX + 1)] {
            let error = FixedRecords::new(io::empty(), key_bytes, value_bytes).unwrap_err();
            assert!(matches!(error, Error::InvalidConfig { .. }), "{error:?}");
        }
    }

    #[test]
    fn an_input_that_fails_says_why() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the pipe is broken"))
            }
        }
        let error = FixedRecords::new(Broken, 1, 1).unwrap().next_ref().unwrap_err();
        assert_eq!(error.to_string(), "reading the input failed: the pipe is broken");
    }

    #[test]
    fn only_ascending_keys_pass() {
        let mut check = AscendingCheck::new();
        // The empty key is below all others.
        for key in [&b""[..], b"\0", b"a", b"aa", b"ab", b"b"] {
            check.check(key).unwrap();
        }
        assert!(matches!(check.check(b"b"), Err(Error::DuplicateKey { position: 6 })));
        assert!(matches!(check.check(b"ab"), Err(Error::NotSorted { position: 6 })));
        check.check(b"ba").unwrap();
        assert!(matches!(check.check(b""), Err(Error::NotSorted { position: 7 })));
    }
}
