//! Merge operators: the functions that combine the value of an upsert with the older value.
//!
//! A table has one, chosen when it is made; its name is stored in snapshots and checked when they
//! are opened. The function gets the newer value first.
//!
//! Invariant, which the author of a function must keep: it is associative, `f(a, f(b, c)) == f(f(a,
//! b), c)`, and always gives the same for the same. Merges combine values in any grouping and at
//! any time, so otherwise the content of a table would depend on when it was merged.
//! [`MergeOperator::check_laws`] tries that on samples.

use std::fmt;
use std::sync::Arc;

use crate::entry::entry::{BLOB_SPAN_SIZE, Kind, VALUE_BYTES_MAX};
use crate::error::{Error, Result};

/// Longest name of a merge operator, in bytes.
pub const OPERATOR_NAME_BYTES_MAX: usize = 64;

/// Prefix of the names of built-in functions.
const READY_MADE: &str = "terrane.";

/// Writes `f(newer, older)` into an empty vector.
type Combine = dyn Fn(&[u8], &[u8], &mut Vec<u8>) + Send + Sync;

/// A merge operator with its name. Clones are the same function; two are equal if their names
/// are.
#[derive(Clone)]
#[doc(alias("resolve", "upsert"))]
pub struct MergeOperator {
    name: Arc<str>,
    combine: Arc<Combine>,
    /// Longest value that it may make: [`VALUE_BYTES_MAX`] but in tests.
    value_bytes_max: usize,
}

/// By its name. Only ready-made operators are read back, because a name alone is no function.
#[cfg(feature = "serde")]
impl serde::Serialize for MergeOperator {
    fn serialize<S: serde::Serializer>(&self, out: S) -> std::result::Result<S::Ok, S::Error> {
        out.serialize_str(self.name())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for MergeOperator {
    fn deserialize<D: serde::Deserializer<'de>>(input: D) -> std::result::Result<Self, D::Error> {
        let name = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(input)?;
        Self::by_name(&name).ok_or_else(|| {
            let text = format!("`{name}` is not a ready-made merge operator");
            serde::de::Error::custom(text)
        })
    }
}

/// The value of an entry of [`Kind::TooLarge`]: lengths of what was combined, and of what came of
/// that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLarge {
    stored: u64,
    operand: u64,
    made: u64,
    limit: u64,
}

impl TooLarge {
    fn encode(self) -> Vec<u8> {
        [self.stored, self.operand, self.made, self.limit].map(u64::to_le_bytes).concat()
    }

    /// Returns the error of reading such an entry of `key`. Missing lengths count as 0.
    pub(crate) fn error(key: &[u8], value: &[u8]) -> Error {
        let mut lengths =
            value.chunks(8).map(|part| usize::try_from(u64_of(part)).unwrap_or(usize::MAX));
        let [stored_bytes, operand_bytes, bytes, limit] =
            [(); 4].map(|()| lengths.next().unwrap_or_default());
        Error::UpsertTooLarge { key: key.to_vec(), stored_bytes, operand_bytes, bytes, limit }
    }
}

/// The little-endian number in the first 8 bytes, zero-extended.
fn u64_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(word)
}

/// The little-endian number in the first 16 bytes, sign-extended.
fn i128_of(bytes: &[u8]) -> i128 {
    let len = bytes.len().min(16);
    // The highest byte that is there carries the sign.
    let is_negative = len > 0 && bytes[len - 1] >= 0x80;
    let mut word = [if is_negative { 0xFF } else { 0 }; 16];
    word[..len].copy_from_slice(&bytes[..len]);
    i128::from_le_bytes(word)
}

impl MergeOperator {
    /// A function of one's own.
    ///
    /// `combine(newer, older)` must be associative and must depend on its arguments alone. It is
    /// called in updates, lookups, cursors and merges, possibly on several threads at once. What it
    /// makes should be no longer than both arguments together and a few bytes: an upsert that makes
    /// a value longer than [`VALUE_BYTES_MAX`] is refused by that measure. What grows faster can
    /// get beyond it where nobody looked; reading such a key is [`Error::UpsertTooLarge`] then,
    /// until the key is inserted or deleted.
    ///
    /// # Errors
    /// [`Error::InvalidMergeOperatorName`] for an empty name, one of more than
    /// [`OPERATOR_NAME_BYTES_MAX`] bytes, and one that begins with `terrane.`, as those of the
    /// ready-made functions do.
    pub fn new(
        name: &str,
        combine: impl Fn(&[u8], &[u8]) -> Vec<u8> + Send + Sync + 'static,
    ) -> Result<Self> {
        let length = (1..=OPERATOR_NAME_BYTES_MAX).contains(&name.len());
        // Snapshots are opened by the name of the operator, so names of ready-made operators are
        // reserved.
        if !length || name.starts_with(READY_MADE) {
            return Err(Error::InvalidMergeOperatorName { text: name.to_owned() });
        }
        let into =
            move |newer: &[u8], older: &[u8], out: &mut Vec<u8>| *out = combine(newer, older);
        Ok(Self::limited(name, Arc::new(into)))
    }

    fn ready_made(
        name: &str,
        combine: impl Fn(&[u8], &[u8], &mut Vec<u8>) + Send + Sync + 'static,
    ) -> Self {
        Self::limited(&format!("{READY_MADE}{name}"), Arc::new(combine))
    }

    fn limited(name: &str, combine: Arc<Combine>) -> Self {
        Self { name: name.into(), combine, value_bytes_max: VALUE_BYTES_MAX }
    }

    /// Returns the function with another limit, within reach of a test.
    #[cfg(test)]
    pub(crate) fn with_value_bytes_max(self, value_bytes_max: usize) -> Self {
        Self { value_bytes_max, ..self }
    }

    /// Longest value that it may make.
    pub(crate) fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    /// Keeps the newer value: an upsert is an insert, then. The default.
    #[must_use]
    pub fn newest() -> Self {
        Self::ready_made("newest", |newer, _, out| out.extend_from_slice(newer))
    }

    /// Keeps the older value: an upsert only has an effect on a key that is absent.
    #[must_use]
    pub fn oldest() -> Self {
        Self::ready_made("oldest", |_, older, out| out.extend_from_slice(older))
    }

    /// Adds little-endian numbers of 8 bytes, modulo 2⁶⁴. Shorter values count as if filled up with
    /// zeros, of longer ones the first 8 bytes count; the sum has 8 bytes.
    #[must_use]
    pub fn add_u64_wrapping() -> Self {
        Self::ready_made("add-u64-wrapping", |newer, older, out| {
            out.extend(u64_of(newer).wrapping_add(u64_of(older)).to_le_bytes());
        })
    }

    /// Adds as [`add_u64_wrapping`](Self::add_u64_wrapping), but stays at 2⁶⁴ - 1 once it is
    /// reached.
    #[must_use]
    pub fn add_u64_saturating() -> Self {
        Self::ready_made("add-u64-saturating", |newer, older, out| {
            out.extend(u64_of(newer).saturating_add(u64_of(older)).to_le_bytes());
        })
    }

    /// Adds little-endian two's complement numbers of 16 bytes, modulo 2¹²⁸. Shorter values are
    /// sign-extended (an `i64` is fine), of longer ones the first 16 bytes count; the sum has 16
    /// bytes. There is no saturating form: on signed numbers it is not associative.
    #[must_use]
    pub fn add_i128_wrapping() -> Self {
        Self::ready_made("add-i128-wrapping", |newer, older, out| {
            out.extend(i128_of(newer).wrapping_add(i128_of(older)).to_le_bytes());
        })
    }

    /// Keeps the value that is greater in the order of bytes; of big-endian numbers the greater
    /// one.
    #[must_use]
    pub fn max() -> Self {
        Self::ready_made("max", |newer, older, out| out.extend_from_slice(newer.max(older)))
    }

    /// Keeps the value that is smaller in the order of bytes; of big-endian numbers the smaller
    /// one.
    #[must_use]
    pub fn min() -> Self {
        Self::ready_made("min", |newer, older, out| out.extend_from_slice(newer.min(older)))
    }

    /// Appends the newer value to the older one.
    #[must_use]
    pub fn concatenate() -> Self {
        Self::ready_made("concatenate", |newer, older, out| {
            out.extend_from_slice(older);
            out.extend_from_slice(newer);
        })
    }

    /// All ready-made functions.
    #[must_use]
    pub fn all_ready_made() -> [Self; 8] {
        [
            Self::newest(),
            Self::oldest(),
            Self::add_u64_wrapping(),
            Self::add_u64_saturating(),
            Self::add_i128_wrapping(),
            Self::max(),
            Self::min(),
            Self::concatenate(),
        ]
    }

    /// The ready-made function of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all_ready_made().into_iter().find(|operator| operator.name() == name)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Combines two values.
    #[must_use]
    pub fn apply(&self, newer: &[u8], older: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        (self.combine)(newer, older, &mut out);
        out
    }

    /// Replaces `newer` by what the function makes of it and `older`.
    ///
    /// # Errors
    /// [`Error::ValueTooLarge`]; `newer` is as it was then.
    pub(crate) fn combine(&self, newer: &mut Vec<u8>, older: &[u8]) -> Result<()> {
        let limit = self.value_bytes_max;
        self.try_combine(newer, older, limit).map_err(|bytes| Error::ValueTooLarge { bytes, limit })
    }

    /// Combines two values; fails with the length of a result that is longer than `limit`.
    fn try_combine(
        &self,
        newer: &mut Vec<u8>,
        older: &[u8],
        limit: usize,
    ) -> std::result::Result<(), usize> {
        // Most functions make a value no longer than the longer argument.
        let mut out = Vec::with_capacity(newer.len().max(older.len()));
        (self.combine)(newer, older, &mut out);
        if out.len() > limit {
            return Err(out.len());
        }
        *newer = out;
        Ok(())
    }

    /// Replaces the value of an entry by what comes of it and an older entry, which is no deletion,
    /// where no call can refuse the entry any more. `has_blob` says that the entry keeps a blob,
    /// whose place takes room of the value. True if what comes of it is a [`TooLarge`]: the value
    /// is one then.
    #[must_use]
    pub(crate) fn combine_stored(
        &self,
        newer: &mut Vec<u8>,
        (kind, older): (Kind, &[u8]),
        has_blob: bool,
    ) -> bool {
        // A value that is too large stays so until its key is set or deleted.
        if kind == Kind::TooLarge {
            newer.clear();
            newer.extend_from_slice(older);
            return true;
        }
        // The place of the blob is stored behind the value.
        let limit = self.value_bytes_max - if has_blob { BLOB_SPAN_SIZE } else { 0 };
        let Err(made) = self.try_combine(newer, older, limit) else { return false };
        let [stored, operand, made, limit] =
            [older.len(), newer.len(), made, limit].map(|bytes| bytes as u64);
        *newer = TooLarge { stored, operand, made, limit }.encode();
        true
    }

    /// Tries associativity, and that the same arguments give the same, on all triples of `samples`;
    /// returns the first triple that breaks the law. Cost: the cube of the number of samples.
    #[must_use]
    pub fn check_laws<'a>(&self, samples: &[&'a [u8]]) -> Option<[&'a [u8]; 3]> {
        let breaks = |[a, b, c]: &[&[u8]; 3]| {
            let left = self.apply(&self.apply(a, b), c);
            // The same call twice exposes a function that depends on more than its arguments.
            left != self.apply(a, &self.apply(b, c)) || left != self.apply(&self.apply(a, b), c)
        };
        let pairs = samples.iter().flat_map(|a| samples.iter().map(move |b| (*a, *b)));
        let mut triples = pairs.flat_map(|(a, b)| samples.iter().map(move |c| [a, b, *c]));
        triples.find(breaks)
    }
}

impl Default for MergeOperator {
    fn default() -> Self {
        Self::newest()
    }
}

impl PartialEq for MergeOperator {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for MergeOperator {}

impl fmt::Debug for MergeOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MergeOperator({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_made_functions_are_associative() {
        let numbers = [[0; 8], [0xFF; 8], 1u64.to_le_bytes(), (u64::MAX / 2).to_le_bytes()];
        let mut samples: Vec<&[u8]> = numbers.iter().map(<[u8; 8]>::as_slice).collect();
        samples.extend([b"".as_slice(), b"\x80", b"a", b"ab", &[0x80; 16], &[7; 40]]);
        for operator in MergeOperator::all_ready_made() {
            assert_eq!(operator.check_laws(&samples), None, "{operator:?}");
            assert_eq!(MergeOperator::by_name(operator.name()), Some(operator));
        }
        let minus = |newer: &[u8], older: &[u8]| vec![newer.len().abs_diff(older.len()) as u8; 2];
        let broken = MergeOperator::new("minus", minus).expect("a valid name");
        assert!(broken.check_laws(&samples).is_some());
    }

    #[test]
    fn ready_made_functions_give_what_their_names_say() {
        let one = 1u64.to_le_bytes();
        let max = u64::MAX.to_le_bytes();
        assert_eq!(MergeOperator::add_u64_wrapping().apply(&one, &max), [0; 8]);
        assert_eq!(MergeOperator::add_u64_saturating().apply(&one, &max), [0xFF; 8]);
        let minus_one = (-1i64).to_le_bytes();
        assert_eq!(MergeOperator::add_i128_wrapping().apply(&one, &minus_one), [0; 16]);
        assert_eq!(MergeOperator::newest().apply(b"n", b"o"), b"n");
        assert_eq!(MergeOperator::oldest().apply(b"n", b"o"), b"o");
        assert_eq!(MergeOperator::max().apply(b"a", b"aa"), b"aa");
        assert_eq!(MergeOperator::min().apply(b"a", b"aa"), b"a");
        assert_eq!(MergeOperator::concatenate().apply(b"new", b"old "), b"old new");
    }

    #[test]
    fn names_are_bounded_and_those_of_ready_made_functions_are_taken() {
        for name in ["", "terrane.max", &"n".repeat(65)] {
            let made = MergeOperator::new(name, |newer, _| newer.to_vec());
            assert!(matches!(made, Err(Error::InvalidMergeOperatorName { text }) if text == name));
        }
        assert!(MergeOperator::new(&"n".repeat(64), |newer, _| newer.to_vec()).is_ok());
    }
}
