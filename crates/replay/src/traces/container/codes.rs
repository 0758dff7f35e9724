//! The codes that all families share. What is decoded borrows the row.
//!
//! | code | bytes |
//! |---|---|
//! | number | varint: seven bits in a byte, lowest first; the eighth says that another one follows |
//! | i32, i64, f64 | 4 or 8, big-endian |
//! | yes or no, and whether there is an optional value | 1: 0 is no |
//! | string | its length as a number, its bytes |
//! | list | its count as a number, its items |
//! | variant | 1, the tag; what belongs to it |

use std::marker::PhantomData;

use terrane::io::bytes::{Overrun, Reader};

use super::error::Malformed;
use crate::engines::context::CommitHash;
use crate::traces::varint;

type Result<T> = std::result::Result<T, Malformed>;

/// Something that rows are made of.
pub(super) trait Decode<'a>: Sized {
    fn decode(input: &mut Input<'a>) -> Result<Self>;
}

/// Rest of a row.
#[derive(Debug, Clone)]
pub(super) struct Input<'a> {
    reader: Reader<'a>,
    /// Number of open directories of a raw tree.
    pub(super) depth: u32,
}

impl From<Overrun> for Malformed {
    fn from(_: Overrun) -> Self {
        Self::Short
    }
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { reader: Reader::new(bytes), depth: 0 }
    }

    /// Bytes decoded so far.
    pub(super) fn offset(&self) -> u64 {
        self.reader.offset() as u64
    }

    pub(super) fn read<T: Decode<'a>>(&mut self) -> Result<T> {
        T::decode(self)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        Ok(self.reader.u8()?)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.reader.take(N)?.try_into().map_err(|_| Malformed::Short)
    }

    /// A number of 64 bits at most.
    pub(super) fn number(&mut self) -> Result<u64> {
        varint::read(&mut self.reader)?.ok_or(Malformed::Number)
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    /// Refuses what follows the last part.
    pub(super) fn finish(&self) -> Result<()> {
        match self.reader.rest().len() as u64 {
            0 => Ok(()),
            bytes => Err(Malformed::Excess(bytes)),
        }
    }
}

impl<'a> Decode<'a> for u64 {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        input.number()
    }
}

impl<'a> Decode<'a> for i64 {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        input.array().map(i64::from_be_bytes)
    }
}

impl<'a> Decode<'a> for f64 {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        input.array().map(f64::from_be_bytes)
    }
}

impl<'a> Decode<'a> for bool {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        Ok(input.u8()? != 0)
    }
}

impl<'a> Decode<'a> for &'a [u8] {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        let bytes = input.number()?;
        // `take` refuses a length that no memory can have.
        Ok(input.reader.take(usize::try_from(bytes).unwrap_or(usize::MAX))?)
    }
}

impl<'a> Decode<'a> for CommitHash {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        let text: &[u8] = input.read()?;
        // Text that is not UTF-8 is no hash either.
        Ok(str::from_utf8(text).unwrap_or_default().parse()?)
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        if input.read()? { Ok(Some(input.read()?)) } else { Ok(None) }
    }
}

impl<'a, T: Decode<'a>, U: Decode<'a>> Decode<'a> for (T, U) {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        Ok((input.read()?, input.read()?))
    }
}

/// A value, and whether it is used here for the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scoped<T> {
    /// Whether it can be forgotten.
    pub is_last: bool,
    /// The value.
    pub value: T,
}

impl<'a, T: Decode<'a>> Decode<'a> for Scoped<T> {
    /// 0 forgets the value, 1 keeps it.
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        let is_last = match input.u8()? {
            0 => true,
            1 => false,
            tag => return Err(Malformed::Tag { kind: "scope", tag }),
        };
        Ok(Self { is_last, value: input.read()? })
    }
}

/// A list that stays in the bytes of its row: it takes no memory, whatever its count.
///
/// Invariant: `bytes` are exactly `count` items that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List<'a, T> {
    count: u64,
    bytes: &'a [u8],
    /// Depth of the list in directories of a raw tree.
    depth: u32,
    items: PhantomData<T>,
}

/// A path as traces have it: a list of steps.
pub type Key<'a> = List<'a, &'a [u8]>;

impl<'a, T: Decode<'a>> Decode<'a> for List<'a, T> {
    fn decode(input: &mut Input<'a>) -> Result<Self> {
        let count = input.number()?;
        let bytes = input.reader.rest();
        let start = input.reader.offset();
        let depth = input.depth;
        // Every item has a byte at least, so a count that is too large ends at the end of the row.
        for _ in 0..count {
            input.read::<T>()?;
        }
        let bytes = &bytes[..input.reader.offset() - start];
        Ok(Self { count, bytes, depth, items: PhantomData })
    }
}

impl<'a, T> List<'a, T> {
    /// Number of items.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The items in their order.
    #[must_use]
    pub fn items(&self) -> Items<'a, T> {
        let mut input = Input::new(self.bytes);
        // Items are decoded again at the depth of their list.
        input.depth = self.depth;
        Items { input, left: self.count, of: PhantomData }
    }
}

/// The items of a [`List`].
#[derive(Debug, Clone)]
pub struct Items<'a, T> {
    input: Input<'a>,
    left: u64,
    of: PhantomData<T>,
}

impl<'a, T: Decode<'a>> Iterator for Items<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        Some(self.input.read().expect("all items were decoded when the list was"))
    }
}

/// Something that is written as it is read.
pub(super) trait Encode {
    fn encode(&self, out: &mut Output);
}

impl Encode for u64 {
    fn encode(&self, out: &mut Output) {
        out.number(*self);
    }
}

impl Encode for i64 {
    fn encode(&self, out: &mut Output) {
        out.i64(*self);
    }
}

impl Encode for bool {
    fn encode(&self, out: &mut Output) {
        out.u8(u8::from(*self));
    }
}

impl Encode for &[u8] {
    fn encode(&self, out: &mut Output) {
        out.string(self);
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Output) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<T: Encode, U: Encode> Encode for (T, U) {
    fn encode(&self, out: &mut Output) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl<T: Encode> Encode for Scoped<T> {
    fn encode(&self, out: &mut Output) {
        out.scope(self.is_last);
        self.value.encode(out);
    }
}

impl<T> Encode for List<'_, T> {
    fn encode(&self, out: &mut Output) {
        out.number(self.count);
        out.0.extend_from_slice(self.bytes);
    }
}

/// A path whose bytes are those of a row, so that what is made can be written as what is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyBuf(Vec<u8>);

impl KeyBuf {
    /// The key of these steps.
    #[must_use]
    pub fn new<'s>(steps: impl IntoIterator<Item = &'s [u8]>) -> Self {
        let mut count = 0;
        let mut items = Output::default();
        for step in steps {
            items.string(step);
            count += 1;
        }
        // The count stands before the items, but is known behind them.
        let mut key = Output::default();
        key.number(count);
        key.0.append(&mut items.0);
        Self(key.0)
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> Key<'_> {
        Input::new(&self.0).read().expect("it was coded so")
    }
}

/// Appends codes to a row.
#[derive(Debug, Default)]
pub(super) struct Output(pub(super) Vec<u8>);

impl Output {
    pub(super) fn u8(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn number(&mut self, number: u64) {
        varint::put(&mut self.0, number);
    }

    pub(super) fn i64(&mut self, number: i64) {
        #[expect(clippy::big_endian_bytes, reason = "the format of others")]
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub(super) fn string(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn hash(&mut self, hash: &CommitHash) {
        self.string(hash.to_string().as_bytes());
    }

    /// The scope of a value; the value follows.
    pub(super) fn scope(&mut self, is_last: bool) {
        self.u8(u8::from(!is_last));
    }
}
