//! Page index of a sorted run: which key page may hold a key. It stays in memory.
//!
//! Key pages are numbered by *ordinal*, `0..pages`, in key order; pages that only continue a big
//! entry are not counted. Two forms:
//!
//! - **compact** (`fences`): 1.3 to 1.6 bytes per page for evenly spread keys; a few lookups in a
//!   thousand read a second page;
//! - **ordinary** (`separators`): about 4 bytes per page for such keys, never a second page for
//!   any.
//!
//! [`IndexKind::Auto`] builds both and keeps the compact form if it costs at most 1 % more reads,
//! which is counted, not guessed.
//!
//! # Protocol of a lookup
//!
//! [`Index::search`] names a page. If the key turns out to be below that page's first key and
//! [`PageCandidate::earlier`] was set, [`Index::previous`] names the next page to read; and so on
//! until the key is found, or is not below the first key of the page read, or `earlier` is not set.

#![doc = include_str!("../../../../docs/format/index.md")]

mod elias_fano;
mod fences;
mod separators;

use crate::corrupt::Corrupt;
use fences::{Fences, FencesBuilder};
use separators::{Separators, SeparatorsBuilder};
use terrane_io::bytes::Reader;

const KIND_COMPACT: u8 = 1;
const KIND_ORDINARY: u8 = 2;

/// With [`IndexKind::Auto`], the compact form may step back by one page per this many lookups.
const AUTO_ENTRIES_PER_EXTRA_READ: u64 = 100;

/// Which form of page index the runs of a table get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[doc(alias = "index_block")]
pub enum IndexKind {
    /// The compact form for a run where it costs at most 1 % more reads, else the ordinary one.
    #[default]
    Auto,
    /// 1.3 to 1.6 bytes per page, for keys that are evenly spread after what all have in common.
    /// Right for any keys, but where many agree in their next eight bytes a lookup may read several
    /// pages.
    Compact,
    /// About 4 bytes per page for evenly spread keys, and one page per lookup for any keys.
    Ordinary,
}

/// Facts about a run that its writer has before the first entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexPlan<'a> {
    /// The form wanted.
    pub(crate) kind: IndexKind,
    /// No key will be below this.
    pub(crate) lower: &'a [u8],
    /// No key will be above this.
    pub(crate) upper: &'a [u8],
    /// About as many entries will come, or fewer.
    pub(crate) entries_max: u64,
    /// About as many key pages will be started, or fewer.
    pub(crate) pages_max: u64,
}

/// The keys between which all keys of a run lie, inclusive.
#[derive(Debug, Clone, Copy)]
struct Bounds<'a> {
    lower: &'a [u8],
    upper: &'a [u8],
}

impl<'a> Bounds<'a> {
    fn common_prefix(&self) -> &'a [u8] {
        &self.lower[..common_size(self.lower, self.upper)]
    }
}

/// Makes room for `count` more elements. Vectors of an index under construction grow by a quarter,
/// not by doubling: what they hold counts towards a table's memory budget.
#[inline]
fn grow<T>(vector: &mut Vec<T>, count: usize) {
    if vector.capacity() - vector.len() < count {
        vector.reserve_exact(count.max(vector.len() / 4).max(16));
    }
    debug_assert!(count <= vector.capacity() - vector.len());
}

/// How many bytes two strings have in common at the front.
#[inline]
fn common_size(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

/// The first eight bytes as a number that orders as they do; a shorter string goes on with zeros.
#[inline]
#[expect(clippy::big_endian_bytes, reason = "numbers must order as strings do")]
fn eight_bytes(bytes: &[u8]) -> u64 {
    if let Some(&first) = bytes.first_chunk() {
        return u64::from_be_bytes(first);
    }
    // A shorter string is filled up with zeros, which keeps the order.
    let mut first = [0; 8];
    first.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(first)
}

/// The index of a run that is still being written.
#[derive(Debug)]
pub(crate) struct IndexBuilder {
    /// Invariant: this or `separators` is there.
    fences: Option<FencesBuilder>,
    separators: Option<SeparatorsBuilder>,
    entries: u64,
    entries_max: u64,
}

impl IndexBuilder {
    /// An index without pages.
    pub(crate) fn new(plan: IndexPlan<'_>) -> Self {
        let IndexPlan { kind, lower, upper, entries_max, pages_max } = plan;
        let bounds = Bounds { lower, upper };
        let compact = || FencesBuilder::new(&bounds, entries_max, pages_max);
        let ordinary = || SeparatorsBuilder::new(&bounds);
        Self {
            fences: (kind != IndexKind::Ordinary).then(compact),
            separators: (kind != IndexKind::Compact).then(ordinary),
            entries: 0,
            entries_max,
        }
    }

    /// Takes note of the next entry, in key order, which is the first of its page; `before` is the
    /// last key of the page before, empty for the first of all.
    ///
    /// # Panics
    /// If the key is out of order or out of bounds.
    pub(crate) fn start_page(&mut self, key: &[u8], before: &[u8]) {
        self.entries += 1;
        if let Some(fences) = &mut self.fences {
            fences.entry(key, true);
        }
        if let Some(separators) = &mut self.separators {
            separators.start_page(key, before);
            self.drop_hopeless();
        }
    }

    /// Takes note of the next entry, in key order, which follows another one on its page.
    #[inline]
    pub(crate) fn same_page(&mut self, key: &[u8]) {
        debug_assert!(self.entries > 0, "the first entry starts a page");
        self.entries += 1;
        if let Some(fences) = &mut self.fences {
            fences.entry(key, false);
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let fences = self.fences.as_ref().map_or(0, FencesBuilder::memory_bytes);
        let separators = self.separators.as_ref().map_or(0, SeparatorsBuilder::memory_bytes);
        fences + separators
    }

    /// Frees the compact form as soon as it is known not to be chosen.
    fn drop_hopeless(&mut self) {
        // Entries to come may still outweigh the extra reads, so the expected number of entries
        // counts.
        let allowed = self.entries_max.max(self.entries) / AUTO_ENTRIES_PER_EXTRA_READ;
        if self.fences.as_ref().is_some_and(|fences| fences.extra_reads() > allowed) {
            self.fences = None;
        }
        debug_assert!(self.fences.is_some() || self.separators.is_some(), "one form is left");
    }

    /// Ends the run.
    pub(crate) fn finish(self) -> Index {
        // The entries that came decide, not the number that was expected.
        let allowed = self.entries / AUTO_ENTRIES_PER_EXTRA_READ;
        let form = match (self.fences, self.separators) {
            (Some(fences), None) => Form::Compact(fences.finish()),
            (Some(fences), Some(_)) if fences.extra_reads() <= allowed => {
                Form::Compact(fences.finish())
            }
            (_, Some(separators)) => Form::Ordinary(separators.finish()),
            (None, None) => unreachable!("the invariant of `fences`"),
        };
        Index { form }
    }
}

/// A page that may hold a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageCandidate {
    /// The page, counted over key pages only.
    pub(crate) ordinal: u32,
    /// If the key is below the first key of this page, it may still be in the page before; ask
    /// [`Index::previous`].
    pub(crate) earlier: bool,
}

/// Where the keys of a complete run are.
#[derive(Debug)]
pub(crate) struct Index {
    form: Form,
}

#[derive(Debug)]
enum Form {
    Compact(Fences),
    Ordinary(Separators),
}

impl Index {
    /// The last page that may hold `key`, with the pages before it as the protocol says. For a key
    /// outside the bounds it is some page; without pages it is page 0, which does not exist.
    ///
    /// Cost: no I/O, no allocation.
    #[inline(never)] // so that `cargo xtask counts` sees it apart
    pub(crate) fn search(&self, key: &[u8]) -> PageCandidate {
        match &self.form {
            Form::Compact(fences) => fences.search(key),
            Form::Ordinary(separators) => separators.search(key),
        }
    }

    /// The page before `ordinal`, if `key`, which is below the first key of page `ordinal`, may be
    /// there. Always none where [`PageCandidate::earlier`] was not set.
    pub(crate) fn previous(&self, ordinal: u32, key: &[u8]) -> Option<PageCandidate> {
        match &self.form {
            Form::Compact(fences) => fences.previous(ordinal, key),
            Form::Ordinary(_) => None,
        }
    }

    /// Number of key pages.
    #[cfg(test)]
    pub(crate) fn pages(&self) -> u32 {
        match &self.form {
            Form::Compact(fences) => fences.pages(),
            Form::Ordinary(separators) => separators.pages(),
        }
    }

    /// Pages stepped back in total if each key of the run is looked up once.
    pub(crate) fn extra_reads(&self) -> u64 {
        match &self.form {
            Form::Compact(fences) => fences.extra_reads(),
            Form::Ordinary(_) => 0,
        }
    }

    /// Memory held, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + match &self.form {
                Form::Compact(fences) => fences.memory_bytes(),
                Form::Ordinary(separators) => separators.memory_bytes(),
            }
    }

    /// The name of the form, for people to read.
    pub(crate) fn kind_name(&self) -> &'static str {
        match &self.form {
            Form::Compact(_) => "compact",
            Form::Ordinary(_) => "ordinary",
        }
    }

    /// The stored form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        match &self.form {
            Form::Compact(fences) => fences.encode(),
            Form::Ordinary(separators) => separators.encode(),
        }
    }

    /// Reads what [`Index::encode`] wrote, of a run known to have `pages` key pages. Allocates
    /// little more than `bytes` has bytes, whatever they say.
    ///
    /// # Errors
    /// [`Corrupt`] if `bytes` is not what an index of this many pages encodes to.
    pub(crate) fn decode(bytes: &[u8], pages: u32) -> Result<Self, Corrupt> {
        let mut reader = Reader::new(bytes);
        let broken = |rule, expected, found| Corrupt { page: 0, rule, expected, found };
        let form = match reader.u8() {
            Ok(KIND_COMPACT) => Form::Compact(Fences::decode(&mut reader, pages)?),
            Ok(KIND_ORDINARY) => Form::Ordinary(Separators::decode(&mut reader, pages)?),
            Ok(kind) => return Err(broken("index: kind", KIND_ORDINARY.into(), kind.into())),
            Err(_) => return Err(broken("index: size", 1, 0)),
        };

        // Each form must use all bytes, so that nothing is stored unchecked.
        if !reader.rest().is_empty() {
            return Err(broken("index: bytes after the last", 0, reader.rest().len() as u64));
        }

        Ok(Self { form })
    }
}

#[cfg(test)]
mod tests;
