//! Bounds-checked little-endian reader and writer for formats of variable length.
//!
//! A [`Reader`] never panics: each read beyond the end is an [`Overrun`], which says how many bytes
//! were wanted and where. Integers are little-endian.

/// A read beyond the end of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes wanted at offset {offset}, {left} left")]
pub struct Overrun {
    /// Offset of the read in the input.
    pub offset: usize,
    /// Bytes asked for.
    pub wanted: usize,
    /// Bytes that were left.
    pub left: usize,
}

/// Reads integers and byte strings from the front of a slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, offset: 0 }
    }

    /// Bytes read so far.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes that have not been read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// [`Overrun`] if fewer are left; nothing is consumed then.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Overrun> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            return Err(Overrun { offset: self.offset, wanted: len, left: self.rest.len() });
        };
        self.rest = rest;
        self.offset += len;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Overrun> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    /// The next byte.
    ///
    /// # Errors
    /// [`Overrun`] at the end.
    pub fn u8(&mut self) -> Result<u8, Overrun> {
        Ok(self.array::<1>()?[0])
    }

    /// The next two bytes as an integer.
    ///
    /// # Errors
    /// [`Overrun`] if fewer are left.
    pub fn u16(&mut self) -> Result<u16, Overrun> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// The next four bytes as an integer.
    ///
    /// # Errors
    /// [`Overrun`] if fewer are left.
    pub fn u32(&mut self) -> Result<u32, Overrun> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// The next eight bytes as an integer.
    ///
    /// # Errors
    /// [`Overrun`] if fewer are left.
    pub fn u64(&mut self) -> Result<u64, Overrun> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A byte string preceded by its length as four bytes.
    ///
    /// # Errors
    /// [`Overrun`] if the length or the string goes past the end.
    pub fn string(&mut self) -> Result<&'a [u8], Overrun> {
        let len = self.u32()?;
        // `take` refuses a length that no memory can have.
        self.take(usize::try_from(len).unwrap_or(usize::MAX))
    }
}

/// Appends integers and byte strings to a vector.
#[derive(Debug, Default, Clone)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty writer with room for `bytes` bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Ends writing.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends bytes as they are.
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Appends a byte.
    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    /// Appends two bytes.
    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends four bytes.
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends eight bytes.
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    /// Appends a byte string preceded by its length as four bytes.
    ///
    /// # Panics
    /// If the string is longer than 4 GiB - 1.
    pub fn string(&mut self, bytes: &[u8]) -> &mut Self {
        let len = u32::try_from(bytes.len()).expect("strings in metadata are short");
        self.u32(len).put(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_beyond() {
        let mut writer = Writer::new();
        writer.u8(1).u16(2).u32(3).u64(4).string(b"five");
        let bytes = writer.into_bytes();
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.u8(), Ok(1));
        assert_eq!(reader.u16(), Ok(2));
        assert_eq!(reader.u32(), Ok(3));
        assert_eq!(reader.u64(), Ok(4));
        assert_eq!(reader.string(), Ok(b"five".as_slice()));
        assert_eq!(reader.u8(), Err(Overrun { offset: 23, wanted: 1, left: 0 }));
    }

    #[test]
    fn a_length_beyond_the_end_is_refused_and_consumes_no_more_than_itself() {
        let mut reader = Reader::new(&[0xFF, 0xFF, 0xFF, 0xFF, 1]);
        assert!(reader.string().is_err());
        assert_eq!(reader.rest(), [1]);
    }
}
