//! Bytes that a caller gives, arenas and answers that a caller has us fill.

use std::mem::MaybeUninit;
use std::ops::Bound;

use crate::error::{Failure, Outcome, give};

/// Borrows bytes of the caller. Null stands for no bytes.
///
/// # Safety
/// The pointer is null, or valid for reads of `len` items while the result lives.
pub unsafe fn slice<'a, T>(pointer: *const T, len: usize) -> Outcome<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    let is_too_long =
        len.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize);
    if pointer.is_null() || is_too_long {
        return Err(Failure::bad_input("bytes are null, or longer than memory"));
    }
    // SAFETY: not null, no longer than memory, and valid for reads by the caller's contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, len) })
}

/// The end of a range of keys: below the given key, or the last key for null.
///
/// # Safety
/// The contract of [`slice`].
pub unsafe fn end<'a>(pointer: *const u8, len: usize) -> Outcome<Bound<&'a [u8]>> {
    if pointer.is_null() {
        return Ok(Bound::Unbounded);
    }
    // SAFETY: the caller keeps the contract.
    Ok(Bound::Excluded(unsafe { slice(pointer, len) }?))
}

/// Borrows memory of the caller that we write to and never read. Null stands for no memory.
///
/// # Safety
/// The pointer is null, or valid for writes of `len` items, which nobody else uses while the result
/// lives.
pub unsafe fn slice_mut<'a, T: Copy>(
    pointer: *mut T,
    len: usize,
) -> Outcome<&'a mut [MaybeUninit<T>]> {
    if len == 0 {
        return Ok(&mut []);
    }
    let is_too_long =
        len.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize);
    if pointer.is_null() || is_too_long {
        return Err(Failure::bad_input("memory is null, or longer than there is"));
    }
    // SAFETY: not null, no longer than memory, and valid for writes by the caller's contract.
    // Whether the caller has initialized the memory does not matter to `MaybeUninit`.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), len) })
}

/// Borrows text of the caller.
///
/// # Safety
/// The contract of [`slice`].
pub unsafe fn text<'a>(pointer: *const u8, len: usize) -> Outcome<&'a str> {
    // SAFETY: the caller keeps the contract.
    let bytes = unsafe { slice(pointer, len) }?;
    std::str::from_utf8(bytes).map_err(|_| Failure::bad_input("a name is not UTF-8"))
}

/// Bytes of a hash.
pub const HASH_BYTES: usize = 32;

/// Copies a hash of the caller.
///
/// # Safety
/// The pointer is null, or valid for reads of 32 bytes.
pub unsafe fn hash(pointer: *const u8) -> Outcome<[u8; HASH_BYTES]> {
    // SAFETY: the caller keeps the contract.
    let bytes = unsafe { slice(pointer, HASH_BYTES) }?;
    Ok(bytes.try_into().expect("the length was asked for"))
}

/// Writes bytes to memory of the caller that has this length.
///
/// # Safety
/// The pointer is null, or valid for writes of as many bytes, which nobody else uses.
pub unsafe fn give_bytes(out: *mut u8, bytes: &[u8]) -> Outcome<()> {
    // SAFETY: the caller keeps the contract.
    let place = unsafe { slice_mut(out, bytes.len()) }?;
    for (to, from) in place.iter_mut().zip(bytes) {
        to.write(*from);
    }
    Ok(())
}

/// Writes bytes of any length to memory of the caller, and their length to `len`. If they do not
/// fit, only the length is written.
///
/// # Safety
/// `out` is null, or valid for writes of `capacity` bytes; `len` is null, or valid for a write.
pub unsafe fn give_buffer(
    out: *mut u8,
    capacity: usize,
    len: *mut usize,
    bytes: &[u8],
) -> Outcome<()> {
    // SAFETY: the caller keeps the contract.
    unsafe { give(len, bytes.len()) }?;
    if bytes.len() > capacity {
        return Err(Failure::too_small("the answer"));
    }
    // SAFETY: the caller keeps the contract, and the bytes fit.
    unsafe { give_bytes(out, bytes) }
}

/// Rows of the caller: bytes one behind the other, and where each begins.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    bytes: &'a [u8],
    offsets: &'a [usize],
}

impl<'a> Rows<'a> {
    /// Borrows `count` rows. The offsets begin with 0 and never fall.
    ///
    /// # Safety
    /// `offsets` is valid for reads of `count` + 1 items, and `bytes` for as many bytes as the last
    /// of them says, while the result lives.
    pub unsafe fn new(count: usize, bytes: *const u8, offsets: *const usize) -> Outcome<Self> {
        if count == 0 {
            return Ok(Self { bytes: &[], offsets: &[0] });
        }
        let ends = count.checked_add(1).ok_or_else(|| Failure::bad_input("too many rows"))?;
        // SAFETY: the caller keeps the contract.
        let offsets = unsafe { slice(offsets, ends) }?;
        if offsets[0] != 0 || !offsets.is_sorted() {
            return Err(Failure::bad_input("offsets must begin with 0 and ascend"));
        }
        // SAFETY: the caller keeps the contract; the last offset is the number of bytes.
        let bytes = unsafe { slice(bytes, offsets[count]) }?;
        Ok(Self { bytes, offsets })
    }

    /// The rows.
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.offsets.windows(2).map(move |ends| &self.bytes[ends[0]..ends[1]])
    }
}

/// Memory of the caller for rows: bytes, and the offset of each row with the end of the last.
///
/// Invariant: `rows` is less than the number of offsets, and offset `rows` is `end`.
#[derive(Debug)]
pub struct Arena<'a> {
    bytes: &'a mut [MaybeUninit<u8>],
    offsets: &'a mut [MaybeUninit<usize>],
    rows: usize,
    end: usize,
}

impl Arena<'_> {
    /// Borrows memory for up to `rows` rows.
    ///
    /// # Safety
    /// `bytes` is valid for writes of `capacity` bytes, `offsets` for `rows` + 1 items, and nobody
    /// else uses either while the result lives.
    pub unsafe fn new(
        rows: usize,
        bytes: *mut u8,
        capacity: usize,
        offsets: *mut usize,
    ) -> Outcome<Self> {
        let ends = rows.checked_add(1).ok_or_else(|| Failure::bad_input("too many rows"))?;
        // SAFETY: the caller keeps the contract.
        let offsets = unsafe { slice_mut(offsets, ends) }?;
        // SAFETY: the caller keeps the contract.
        let bytes = unsafe { slice_mut(bytes, capacity) }?;
        offsets[0].write(0);
        Ok(Self { bytes, offsets, rows: 0, end: 0 })
    }

    /// Whether the next row of this many bytes fits.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.rows + 1 < self.offsets.len()
            && self.end.checked_add(bytes).is_some_and(|end| end <= self.bytes.len())
    }

    /// Adds a row. If its bytes do not fit, its offsets are counted on and no bytes are written, so
    /// the last offset says how many bytes all rows need.
    pub fn push(&mut self, row: &[u8]) {
        assert!(self.rows + 1 < self.offsets.len(), "an arena has an offset for each row");
        let end = self.end.saturating_add(row.len());
        if let Some(place) = self.bytes.get_mut(self.end..end) {
            // SAFETY: a `MaybeUninit<u8>` has the size and the alignment of a `u8`.
            let row = unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), row.len()) };
            place.copy_from_slice(row);
        }
        self.rows += 1;
        self.end = end;
        self.offsets[self.rows].write(end);
    }

    /// Whether every row that was added has its bytes here.
    pub fn is_whole(&self) -> bool {
        self.end <= self.bytes.len()
    }
}

/// Memory of the caller for the answers of a batch of lookups.
struct Answers<'a> {
    values: Arena<'a>,
    found: &'a mut [MaybeUninit<u8>],
}

impl Answers<'_> {
    /// Borrows the memory for `count` answers.
    ///
    /// # Safety
    /// `values` is valid for writes of `capacity` bytes, `offsets` for `count` + 1 items, `found`
    /// for `count` bytes, and nobody else uses them while the result lives.
    unsafe fn new(
        count: usize,
        (values, capacity): (*mut u8, usize),
        offsets: *mut usize,
        found: *mut u8,
    ) -> Outcome<Self> {
        // SAFETY: the caller keeps the contract.
        let values = unsafe { Arena::new(count, values, capacity, offsets) }?;
        // SAFETY: the caller keeps the contract.
        let found = unsafe { slice_mut(found, count) }?;
        Ok(Self { values, found })
    }

    fn fill<T: AsRef<[u8]>>(mut self, answers: impl Iterator<Item = Option<T>>) -> Outcome<()> {
        for (place, answer) in self.found.iter_mut().zip(answers) {
            place.write(u8::from(answer.is_some()));
            self.values.push(answer.as_ref().map_or(&[], AsRef::as_ref));
        }
        if self.values.is_whole() { Ok(()) } else { Err(Failure::too_small("values")) }
    }
}

/// Gives answers to a batch of lookups: values one behind the other, their offsets, and for each a
/// 1 or 0 in `found`.
///
/// # Safety
/// `values` is valid for writes of as many bytes as it says, `offsets` for one item more than there
/// are answers, `found` for a byte each, and nobody else uses them meanwhile.
pub unsafe fn answer_rows<T: AsRef<[u8]>>(
    answers: impl IntoIterator<Item = Option<T>, IntoIter: ExactSizeIterator>,
    values: (*mut u8, usize),
    offsets: *mut usize,
    found: *mut u8,
) -> Outcome<()> {
    let answers = answers.into_iter();
    // SAFETY: the caller keeps the contract.
    let memory = unsafe { Answers::new(answers.len(), values, offsets, found) }?;
    memory.fill(answers)
}
