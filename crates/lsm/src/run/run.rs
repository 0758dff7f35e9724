//! A run: an immutable sorted file with at most one entry for each key, and what is kept of it in
//! memory to find a key with one read.
//!
//! Invariant: a run is written once, by [`writer`](crate::run::writer), and never changed; its
//! identity distinguishes it from any other file that had its name.

#![doc = include_str!("../../../../docs/format/run.md")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use terrane_io::bytes::{Overrun, Reader, Writer};
use terrane_io::key_order::compare_keys;
use terrane_io::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_io::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard, Weak};
use terrane_io::{Access, AlignedBuf, DiskFile};

use crate::block::index::{Index, PageCandidate};
use crate::block::page::{
    IMAGE_SIZE_MAX, PAGE_SIZE, PAYLOAD_SIZE, PageAddress, PageKind, decode_payload,
};
use crate::corrupt::Corrupt;
use crate::entry::entry::{ENTRY_OVERHEAD_BYTES, KEY_BYTES_MAX, prefix_hash};
use crate::entry::key_range::KeyRange;
use crate::entry::mask::Mask;
use crate::error::{Error, Result};
use crate::files::file_set::{FileHandle, FileSet};
use crate::files::handles::PooledFile;
use crate::filter::filter::{Filter, FilterDecoder, FilterPortion, FilterShape};
use crate::filter::ribbon::{RibbonShape, check_columns};

/// First bytes of a footer's content.
pub(crate) const RUN_MAGIC: [u8; 8] = *b"TerraRun";

/// Newest version of run files, of runs whose filters hold prefixes. All others are written in the
/// oldest version that can say what they are: 3 with compressed pages, otherwise 2 if the filter is
/// a ribbon, otherwise 1.
pub(crate) const RUN_VERSION: u32 = 4;

/// Kind of a filter in a footer from version 3 on: a blocked Bloom filter, or none.
pub(crate) const FILTER_KIND_BLOOM: u32 = 1;

/// Kind of a filter in a footer from version 2 on: a ribbon.
pub(crate) const FILTER_KIND_RIBBON: u32 = 2;

/// Filter words in a page.
pub(crate) const FILTER_WORDS_PER_PAGE: usize = PAYLOAD_SIZE / 8;

/// Most pages of a file: page numbers are 32 bits.
pub(crate) const RUN_PAGES_MAX: u64 = u32::MAX as u64;

/// Bytes that an entry takes on a key page are more than these: it takes four and a half.
const ENTRY_BYTES_MIN: u64 = 4;

/// Purpose of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Purpose {
    /// A run of a level.
    Level = 1,
    /// The image of a memtable, kept by a snapshot.
    BufferImage = 2,
}

/// The footer of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[expect(missing_docs, reason = "the fields are those of the footer's table above")]
#[doc(alias("SSTable", "TableProperties"))]
pub struct RunMeta {
    pub purpose: Purpose,
    pub identity: u64,
    pub salt: u64,
    pub entries: u64,
    pub deletes: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    pub data_pages: u32,
    pub key_pages: u32,
    pub filter_pages: u32,
    pub index_pages: u32,
    pub filter_blocks: u64,
    pub filter_probes: u32,
    pub index_bytes: u32,
    pub blob_bytes: u64,
    pub filter_segments: u32,
    pub filter_directory_words: u32,
    #[cfg_attr(feature = "serde", serde(default))]
    pub compressed_pages: u32,
    #[cfg_attr(feature = "serde", serde(default))]
    pub prefix_bytes: u8,
    #[cfg_attr(feature = "serde", serde(default))]
    pub prefixes: u64,
}

impl RunMeta {
    /// The footer of a run without entries.
    pub(crate) fn new(purpose: Purpose, identity: u64, salt: u64) -> Self {
        Self {
            purpose,
            identity,
            salt,
            entries: 0,
            deletes: 0,
            key_bytes: 0,
            value_bytes: 0,
            data_pages: 0,
            key_pages: 0,
            filter_pages: 0,
            index_pages: 0,
            filter_blocks: 0,
            filter_probes: 0,
            index_bytes: 0,
            blob_bytes: 0,
            filter_segments: 0,
            filter_directory_words: 0,
            compressed_pages: 0,
            prefix_bytes: 0,
            prefixes: 0,
        }
    }

    /// Members of a filter: the entries, and prefixes of so many bytes.
    pub(crate) fn filter_members(&self, prefix_bytes: u8) -> u64 {
        // Of prefixes of another length there are as many as entries, at the most.
        let prefixes = match prefix_bytes {
            0 => 0,
            bytes if bytes == self.prefix_bytes => self.prefixes,
            _ => self.entries,
        };
        self.entries + prefixes
    }

    /// The format version of a file with this footer.
    #[must_use]
    pub fn format_version(&self) -> u32 {
        match (self.prefix_bytes > 0, self.compressed_pages > 0, self.has_ribbon()) {
            (true, _, _) => RUN_VERSION,
            (false, true, _) => 3,
            (false, false, true) => 2,
            (false, false, false) => 1,
        }
    }

    /// The bytes of an image at the most: of a page if none is compressed.
    fn image_size_max(&self) -> u64 {
        if self.compressed_pages > 0 { IMAGE_SIZE_MAX as u64 } else { PAGE_SIZE as u64 }
    }

    /// About as many key pages as the entries would take without compression, and at least as many
    /// as there are.
    pub(crate) fn key_pages_uncompressed(&self) -> u64 {
        let key_pages = u64::from(self.key_pages);
        if self.compressed_pages == 0 {
            return key_pages;
        }
        let bytes = self.key_bytes + self.value_bytes + 5 * self.entries;
        key_pages.max(bytes.div_ceil(PAGE_SIZE as u64 - 64))
    }

    /// Whether the filter is a ribbon, so that `filter_probes` are columns and `filter_blocks` have
    /// that many words each.
    #[must_use]
    pub fn has_ribbon(&self) -> bool {
        self.filter_segments > 0
    }

    /// How the filter is stored.
    pub(crate) fn filter_shape(&self) -> FilterShape {
        if self.has_ribbon() {
            FilterShape::Ribbon(RibbonShape {
                segments: self.filter_segments,
                // Held to the range when it was decoded.
                columns: u8::try_from(self.filter_probes).unwrap_or(u8::MAX),
                directory_words: self.filter_directory_words,
                blocks: self.filter_blocks,
            })
        } else {
            FilterShape::Bloom { blocks: self.filter_blocks, probes: self.filter_probes }
        }
    }

    /// Returns the metadata with a filter of another shape.
    pub(crate) fn with_filter(self, shape: FilterShape) -> Self {
        let filter_pages = shape.words().div_ceil(FILTER_WORDS_PER_PAGE as u64) as u32;
        match shape {
            FilterShape::Bloom { blocks, probes } => {
                Self { filter_pages, filter_blocks: blocks, filter_probes: probes, ..self }
            }
            FilterShape::Ribbon(shape) => Self {
                filter_pages,
                filter_blocks: shape.blocks,
                filter_probes: shape.columns.into(),
                filter_segments: shape.segments,
                filter_directory_words: shape.directory_words,
                ..self
            },
        }
    }

    /// Length of the file.
    pub fn pages(&self) -> u64 {
        u64::from(self.data_pages) + u64::from(self.filter_pages) + u64::from(self.index_pages) + 1
    }

    /// Length of the file of blobs.
    pub fn blob_pages(&self) -> u64 {
        self.blob_bytes.div_ceil(PAYLOAD_SIZE as u64)
    }

    /// Bytes of the run's files.
    pub fn file_bytes(&self) -> u64 {
        (self.pages() + self.blob_pages()) * PAGE_SIZE as u64
    }

    /// Weight of the entries in a memtable bounded in bytes.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes + self.blob_bytes + ENTRY_OVERHEAD_BYTES * self.entries
    }

    /// Whether both count the same entries on the same pages; what follows these may differ.
    pub(crate) fn has_entries_of(&self, other: &Self) -> bool {
        let counts = |meta: &Self| {
            let entries = (meta.entries, meta.deletes, meta.key_bytes, meta.value_bytes);
            (entries, meta.key_pages, meta.compressed_pages, meta.data_pages, meta.blob_bytes)
        };
        counts(self) == counts(other)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.put(&RUN_MAGIC).u32(self.format_version()).u32(self.purpose as u32);
        out.u64(self.identity).u64(self.salt).u64(self.entries).u64(self.deletes);
        out.u64(self.key_bytes).u64(self.value_bytes).u64(0).u64(0);
        out.u32(self.data_pages).u32(self.key_pages);
        out.u32(self.filter_pages).u32(self.index_pages);
        out.u64(self.filter_blocks).u32(self.filter_probes).u32(self.index_bytes);
        out.u64(self.blob_bytes);

        let version = self.format_version();
        if version >= 2 {
            out.u32(if self.has_ribbon() { FILTER_KIND_RIBBON } else { FILTER_KIND_BLOOM });
            out.u32(self.filter_segments).u32(self.filter_directory_words);
        }
        if version >= 3 {
            out.u32(self.compressed_pages);
        }
        if version >= 4 {
            out.u32(self.prefix_bytes.into()).u64(self.prefixes);
        }

        out.into_bytes()
    }

    fn decode(input: &mut Reader<'_>, version: u32) -> std::result::Result<Option<Self>, Overrun> {
        let purpose = match input.u32()? {
            1 => Purpose::Level,
            2 => Purpose::BufferImage,
            _ => return Ok(None),
        };

        let identity = input.u64()?;
        let salt = input.u64()?;
        let entries = input.u64()?;
        let deletes = input.u64()?;
        let key_bytes = input.u64()?;
        let value_bytes = input.u64()?;
        // Reserved bytes, which no version looks at.
        input.take(16)?;

        let meta = Self {
            purpose,
            identity,
            salt,
            entries,
            deletes,
            key_bytes,
            value_bytes,
            data_pages: input.u32()?,
            key_pages: input.u32()?,
            filter_pages: input.u32()?,
            index_pages: input.u32()?,
            filter_blocks: input.u64()?,
            filter_probes: input.u32()?,
            index_bytes: input.u32()?,
            blob_bytes: input.u64()?,
            filter_segments: 0,
            filter_directory_words: 0,
            compressed_pages: 0,
            prefix_bytes: 0,
            prefixes: 0,
        };

        // A footer of version 1 is that of a Bloom filter and ends here.
        if version == 1 {
            return Ok(Some(meta));
        }

        let kind = input.u32()?;
        let filter_segments = input.u32()?;
        let filter_directory_words = input.u32()?;
        let compressed_pages = if version >= 3 { input.u32()? } else { 0 };
        let (prefix_bytes, prefixes) =
            if version >= 4 { (input.u32()?, input.u64()?) } else { (0, 0) };
        let Ok(prefix_bytes) = u8::try_from(prefix_bytes) else { return Ok(None) };
        let meta = Self {
            filter_segments,
            filter_directory_words,
            compressed_pages,
            prefix_bytes,
            prefixes,
            ..meta
        };

        let is_filter_sound = match kind {
            FILTER_KIND_RIBBON => meta.has_ribbon() && prefix_bytes == 0,
            // An image of a memtable has no filter that could hold a prefix.
            FILTER_KIND_BLOOM => {
                let may_hold = prefix_bytes == 0 || purpose == Purpose::Level;
                may_hold && !meta.has_ribbon() && filter_directory_words == 0
            }
            _ => false,
        };
        // A footer is of the oldest version that can say what it says.
        Ok((is_filter_sound && meta.format_version() == version).then_some(meta))
    }

    /// Bits of the filter for each entry.
    pub fn filter_bits_per_entry(&self) -> f64 {
        self.filter_shape().words() as f64 * 64.0 / self.entries as f64
    }

    /// Reads the footer of a file of `pages` pages from its last page.
    fn parse(path: &Path, pages: u64, page: &[u8]) -> Result<Self> {
        let number = (pages - 1) as u32;
        let broken = |rule, expected, found| {
            Error::corrupt(path, Corrupt { page: number, rule, expected, found })
        };

        // The identity that the checksum starts from stands in the page itself.
        let mut input =
            Reader::new(page.get(crate::block::page::HEADER_SIZE..).unwrap_or_default());

        let magic = input.take(8).unwrap_or_default();
        if magic != RUN_MAGIC {
            return Err(broken("footer magic", u64::from_le_bytes(RUN_MAGIC), 0));
        }

        let version = input.u32().unwrap_or_default();
        // The identity is read before it can be trusted: the checksum needs it.
        let mut peek = input.clone();
        let identity = peek.u32().and_then(|_| peek.u64()).unwrap_or_default();
        decode_payload(page, PageAddress { identity, page: number }, PageKind::Footer, 0)
            .map_err(|what| Error::corrupt(path, what))?;

        // The version can be trusted now that the checksum is right.
        if !(1..=RUN_VERSION).contains(&version) {
            let path = path.to_owned();
            return Err(Error::UnknownVersion { path, found: version, newest: RUN_VERSION });
        }

        let meta = Self::decode(&mut input, version).ok().flatten();
        let meta =
            meta.ok_or_else(|| broken("footer purpose, kind of the filter or version", 1, 0))?;
        if meta.pages() != pages {
            return Err(broken("file pages", meta.pages(), pages));
        }

        if meta.has_ribbon() {
            check_columns(meta.filter_probes)
                .map_err(|what| Error::corrupt(path, Corrupt { page: number, ..what }))?;
        }

        // The filter takes as many pages as its words need.
        let words = meta.filter_shape().words();
        if words.div_ceil(FILTER_WORDS_PER_PAGE as u64) != u64::from(meta.filter_pages) {
            return Err(broken("filter_pages", words, u64::from(meta.filter_pages)));
        }

        let index_pages = (meta.index_bytes as usize).div_ceil(PAYLOAD_SIZE) as u64;
        if index_pages != u64::from(meta.index_pages) {
            return Err(broken("index_pages", index_pages, u64::from(meta.index_pages)));
        }

        // Readers allocate and divide by these counts, so the counts are held to each other here.
        if meta.key_pages == 0
            || meta.key_pages > meta.data_pages
            || meta.entries < u64::from(meta.key_pages)
            || meta.compressed_pages > meta.key_pages
            || meta.entries > u64::from(meta.key_pages) * (meta.image_size_max() / ENTRY_BYTES_MIN)
            || meta.deletes > meta.entries
            || meta.prefixes > meta.entries
            || meta.key_bytes > meta.entries * KEY_BYTES_MAX as u64
            || meta.value_bytes > u64::from(meta.data_pages) * meta.image_size_max()
            || meta.blob_pages() > RUN_PAGES_MAX
        {
            return Err(broken("footer counts", u64::from(meta.data_pages), meta.entries));
        }

        // Without a filter lookups would pass the run by.
        if meta.purpose == Purpose::Level && meta.filter_blocks == 0 && !meta.has_ribbon() {
            return Err(broken("filter blocks of a level's run", 1, 0));
        }

        Ok(meta)
    }
}

/// A key page whose only entry goes on in overflow pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LargeEntry {
    /// The page's ordinal among the key pages.
    pub(crate) ordinal: u32,
    /// Overflow pages of this and of all earlier large entries.
    pub(crate) overflow_before_next: u32,
}

/// Where the key pages stand in the file.
///
/// Invariant: ordinals and sums strictly increase.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct PageMap {
    large: Vec<LargeEntry>,
}

impl PageMap {
    /// Adds a large entry after all earlier ones.
    pub(crate) fn push(&mut self, ordinal: u32, overflow: u32) {
        debug_assert!(self.large.last().is_none_or(|last| last.ordinal < ordinal), "ordinals rise");
        debug_assert!(overflow > 0, "a large entry goes on in overflow pages");
        let before = self.large.last().map_or(0, |entry| entry.overflow_before_next);
        self.large.push(LargeEntry { ordinal, overflow_before_next: before + overflow });
    }

    /// Pages of the largest entry, beside the first.
    fn overflow_max(&self) -> u32 {
        let ends = self.large.iter().map(|entry| entry.overflow_before_next);
        let starts = std::iter::once(0).chain(ends.clone());
        ends.zip(starts).map(|(end, start)| end - start).max().unwrap_or(0)
    }

    fn overflow_total(&self) -> u32 {
        self.large.last().map_or(0, |entry| entry.overflow_before_next)
    }

    /// Number of the key page in the file, and pages of its entry (more than 1 if it is large).
    pub(crate) fn pages(&self, ordinal: u32) -> (u32, u32) {
        // Most runs have no large entry.
        if self.large.is_empty() {
            return (ordinal, 1);
        }
        let at = self.large.partition_point(|entry| entry.ordinal < ordinal);
        let before = at.checked_sub(1).map_or(0, |at| self.large[at].overflow_before_next);
        let own = match self.large.get(at) {
            Some(entry) if entry.ordinal == ordinal => entry.overflow_before_next - before,
            _ => 0,
        };
        (ordinal + before, 1 + own)
    }

    fn encode(&self, out: &mut Writer) {
        out.u32(self.large.len() as u32);
        // Each large entry is stored with its own number of overflow pages, not with the sum.
        let mut before = 0;
        for entry in &self.large {
            out.u32(entry.ordinal).u32(entry.overflow_before_next - before);
            before = entry.overflow_before_next;
        }
    }

    fn decode(
        input: &mut Reader<'_>,
        meta: &RunMeta,
    ) -> std::result::Result<Option<Self>, Overrun> {
        let count = input.u32()?;
        let mut map = Self::default();
        for _ in 0..count {
            // Counts come from the file: a map that does not fit the footer would send readers
            // astray.
            let ordinal = input.u32()?;
            let overflow = input.u32()?;
            let rising = map.large.last().is_none_or(|last| last.ordinal < ordinal);
            let total = map.overflow_total().checked_add(overflow);
            if !rising
                || ordinal >= meta.key_pages
                || overflow == 0
                || total.is_none_or(|total| total > meta.data_pages - meta.key_pages)
            {
                return Ok(None);
            }

            map.push(ordinal, overflow);
        }

        // All data pages that are not key pages are overflow pages.
        Ok((map.overflow_total() == meta.data_pages - meta.key_pages).then_some(map))
    }

    fn memory_bytes(&self) -> usize {
        self.large.capacity() * size_of::<LargeEntry>()
    }
}

/// The index section of a run file.
#[derive(Debug)]
pub(crate) struct IndexSection {
    pub(crate) min_key: Box<[u8]>,
    pub(crate) max_key: Box<[u8]>,
    pub(crate) map: PageMap,
    pub(crate) index: Index,
}

impl IndexSection {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.string(&self.min_key).string(&self.max_key);
        self.map.encode(&mut out);
        out.put(&self.index.encode());
        out.into_bytes()
    }

    fn decode(bytes: &[u8], meta: &RunMeta) -> std::result::Result<Self, Corrupt> {
        let broken = |rule| Corrupt::rule(rule, 0, 0);
        let mut input = Reader::new(bytes);
        let min_key = input.string().map_err(|_| broken("smallest key"))?;
        let max_key = input.string().map_err(|_| broken("largest key"))?;
        if min_key > max_key || min_key.len().max(max_key.len()) > KEY_BYTES_MAX {
            return Err(broken("key range"));
        }
        let map = PageMap::decode(&mut input, meta).ok().flatten();
        let map = map.ok_or_else(|| broken("large entries"))?;
        let index = Index::decode(input.rest(), meta.key_pages)?;
        Ok(Self { min_key: min_key.into(), max_key: max_key.into(), map, index })
    }
}

/// The pages to read for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    /// The index's answer, for a step to the page before.
    candidate: PageCandidate,
    /// First page.
    pub(crate) page: u32,
    /// Pages of the entry.
    pub(crate) pages: u32,
}

/// Inputs of the compaction that made a run, or slices.
#[derive(Debug)]
pub(crate) struct Origin {
    /// Numbers of the runs, newest first, and their masks, with the runs for as long as a holder
    /// has them.
    pub(crate) inputs: Vec<(u64, Mask, Weak<Run>)>,
    /// Whether the run stands for them only where nothing older is, as deletions were dropped.
    pub(crate) is_oldest: bool,
    /// How many slices the compaction has made, once it is complete.
    pub(crate) slice_count: OnceLock<usize>,
}

/// Origin of a run, and how many slices of the same compaction are in front of it.
#[derive(Debug, Clone)]
pub(crate) struct SliceOrigin {
    pub(crate) origin: Arc<Origin>,
    pub(crate) slice: usize,
}

/// An open run.
#[derive(Debug)]
pub(crate) struct Run {
    // The file is closed before its name goes.
    /// The file as lookups read it.
    file: Arc<PooledFile>,
    /// The file in the other access mode, if it was opened that way before: it may hold bytes that
    /// are not durable yet.
    other: Option<Arc<PooledFile>>,
    /// The file of its blobs.
    blobs: Option<Arc<PooledFile>>,
    handle: Arc<FileHandle>,
    access: Access,
    meta: RunMeta,
    filter: Arc<FilterCell>,
    section: Arc<IndexSection>,
    gauge: Arc<Gauge>,
    /// Known of a run that was merged from others since the session was opened.
    origin: Option<SliceOrigin>,
    /// Keys that this view of the run hides.
    mask: Mask,
}

/// A filter, which is replaced by one that is folded more or less when a memory budget asks for it.
#[derive(Debug)]
struct FilterCell {
    set: Arc<FileSet>,
    filter: RwLock<Arc<Filter>>,
}

impl FilterCell {
    fn new(set: &Arc<FileSet>, filter: Filter) -> Arc<Self> {
        Arc::new(Self { set: Arc::clone(set), filter: RwLock::new(Arc::new(filter)) })
    }

    fn read(&self) -> Arc<Filter> {
        Arc::clone(&self.filter.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> RwLockWriteGuard<'_, Arc<Filter>> {
        self.filter.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FilterCell {
    fn drop(&mut self) {
        let filter = std::mem::replace(&mut *self.write(), Arc::new(Filter::nothing()));
        // A large filter is freed by the reclaimer, so that no caller waits for it.
        let bytes = filter.memory_bytes();
        self.set.reclaimer().reclaim(filter, bytes);
    }
}

/// Keeps the sums over all open runs of a session.
#[derive(Debug)]
struct Gauge {
    set: Arc<FileSet>,
    meta: RunMeta,
    filter_bytes: AtomicU64,
    /// Whether the filter is still to be read, by the first who knows how much of it is wanted.
    is_unread: AtomicBool,
    index_bytes: u64,
}

impl Gauge {
    fn new(set: &Arc<FileSet>, meta: RunMeta, filter: &Filter, index_bytes: usize) -> Self {
        let gauge = Self {
            set: Arc::clone(set),
            meta,
            filter_bytes: AtomicU64::new(filter.memory_bytes() as u64),
            is_unread: AtomicBool::new(false),
            index_bytes: index_bytes as u64,
        };
        // The sums count a run once, however many views of it there are.
        gauge.for_each(|sum, value| sum.fetch_add(value, Ordering::Relaxed));
        gauge
    }

    /// Calls `visit` with each sum and this run's share.
    fn for_each(&self, visit: impl Fn(&AtomicU64, u64) -> u64) {
        let sums = self.set.sums();
        visit(&sums.runs, 1);
        visit(&sums.entries, self.meta.entries);
        visit(&sums.deletes, self.meta.deletes);
        visit(&sums.bytes, self.meta.file_bytes());
        visit(&sums.filter_bytes, self.filter_bytes.load(Ordering::Relaxed));
        visit(&sums.index_bytes, self.index_bytes);
    }

    /// Notes another size of the filter; while it is locked.
    fn note_filter(&self, bytes: usize) {
        let before = self.filter_bytes.swap(bytes as u64, Ordering::Relaxed);
        let sum = &self.set.sums().filter_bytes;
        // Added before the old size is subtracted, so the sum never falls below zero.
        sum.fetch_add(bytes as u64, Ordering::Relaxed);
        sum.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        self.for_each(|sum, value| sum.fetch_sub(value, Ordering::Relaxed));
    }
}

impl Run {
    /// The run that a builder has written.
    pub(crate) fn new(
        file: Arc<PooledFile>,
        blobs: Option<Arc<PooledFile>>,
        handle: FileHandle,
        access: Access,
        meta: RunMeta,
        filter: Filter,
        section: IndexSection,
    ) -> Self {
        // The size decides whether the file is removed at once or by the reclaimer.
        handle.note_bytes(meta.file_bytes());
        debug_assert!(section.min_key <= section.max_key, "keys rise");
        let index_bytes = section.index.memory_bytes();

        let gauge = Arc::new(Gauge::new(handle.set(), meta, &filter, index_bytes));
        Self {
            file,
            other: None,
            blobs,
            filter: FilterCell::new(handle.set(), filter),
            handle: Arc::new(handle),
            access,
            meta,
            section: Arc::new(section),
            gauge,
            origin: None,
            mask: Mask::default(),
        }
    }

    /// Returns the run with the inputs that it was merged from.
    pub(crate) fn with_origin(self, origin: SliceOrigin) -> Self {
        Self { origin: Some(origin), ..self }
    }

    /// Returns the run with another access mode for lookups: through the page cache or past it.
    /// Blobs are read as before.
    pub(crate) fn with_access(self: &Arc<Self>, access: Access) -> Arc<Self> {
        if access == self.access() {
            return Arc::clone(self);
        }

        let set = self.handle.set();
        // A file that was open in this mode may hold bytes that are not durable yet.
        let file = match &self.other {
            Some(other) => Arc::clone(other),
            None => Arc::new(set.file(self.number(), access)),
        };

        Arc::new(Self {
            file,
            other: Some(Arc::clone(&self.file)),
            blobs: self.blobs.clone(),
            handle: Arc::clone(&self.handle),
            access,
            meta: self.meta,
            filter: Arc::clone(&self.filter),
            section: Arc::clone(&self.section),
            gauge: Arc::clone(&self.gauge),
            origin: self.origin.clone(),
            mask: self.mask.clone(),
        })
    }

    /// Returns the run without the keys that a mask covers, and with all others.
    pub(crate) fn with_mask(self: &Arc<Self>, mask: &Mask) -> Arc<Self> {
        if self.mask == *mask {
            return Arc::clone(self);
        }

        Arc::new(Self {
            file: Arc::clone(&self.file),
            other: self.other.clone(),
            blobs: self.blobs.clone(),
            handle: Arc::clone(&self.handle),
            access: self.access,
            meta: self.meta,
            filter: Arc::clone(&self.filter),
            section: Arc::clone(&self.section),
            gauge: Arc::clone(&self.gauge),
            origin: self.origin.clone(),
            mask: mask.clone(),
        })
    }

    /// Returns the run without the keys that a mask covers, in addition to its own mask.
    pub(crate) fn under_mask(self: &Arc<Self>, mask: &Mask) -> Arc<Self> {
        if mask.is_empty() { Arc::clone(self) } else { self.with_mask(&self.mask.union(mask)) }
    }

    /// The keys that this view of the run does not have.
    pub(crate) fn mask(&self) -> &Mask {
        &self.mask
    }

    /// Opens a file of the session, and checks all of it but the data pages.
    ///
    /// Cost: reads footer, filter and index.
    pub(crate) fn open(set: &Arc<FileSet>, number: u64, access: Access) -> Result<Self> {
        Self::open_with(set, number, access, WithFilter::Whole)
    }

    /// Opens a run without its filter, which the caller [reads](Self::read_filter) once the wanted
    /// part is known.
    ///
    /// Cost: reads footer and index.
    pub(crate) fn open_without_filter(
        set: &Arc<FileSet>,
        number: u64,
        access: Access,
    ) -> Result<Self> {
        let run = Self::open_with(set, number, access, WithFilter::No)?;
        // The next caller that knows its budget reads the filter.
        run.gauge.is_unread.store(true, Ordering::Release);
        Ok(run)
    }

    fn open_with(
        set: &Arc<FileSet>,
        number: u64,
        access: Access,
        with_filter: WithFilter,
    ) -> Result<Self> {
        let file = Arc::new(set.file(number, access));
        let (meta, filter, section) = read_with(file.path(), file.get()?.as_ref(), with_filter)?;
        let blobs = (meta.blob_bytes > 0).then(|| Arc::new(set.blobs(number, access)));
        Ok(Self::new(file, blobs, set.attach(number), access, meta, filter, section))
    }

    pub(crate) fn number(&self) -> u64 {
        self.handle.number()
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file, opened if need be; to be held for no longer than a read.
    pub(crate) fn file(&self) -> Result<Arc<dyn DiskFile>> {
        self.file.get()
    }

    /// Opens the file; `None` if all files that may be open are in use.
    pub(crate) fn file_if_room(&self) -> Result<Option<Arc<dyn DiskFile>>> {
        self.file.get_if_room()
    }

    /// Makes the bytes of its files durable, once.
    pub(crate) fn sync(&self) -> Result<()> {
        // Either mode may have written bytes, so both files are synced.
        let files = [Some(&self.file), self.other.as_ref(), self.blobs.as_ref()];
        files.into_iter().flatten().try_for_each(|file| file.sync())?;
        self.handle.note_synced();
        Ok(())
    }

    /// The file of the blobs, which must be some; to be held for no longer than a read.
    pub(crate) fn blobs(&self) -> Result<Arc<dyn DiskFile>> {
        match &self.blobs {
            Some(blobs) => Ok(blobs.get()?),
            None => {
                let what = Corrupt::rule("bytes of blobs", 1, self.meta.blob_bytes);
                Err(Error::corrupt(self.path(), what))
            }
        }
    }

    /// Opens the file; `None` if all files that may be open are in use.
    pub(crate) fn blobs_if_room(&self) -> Result<Option<Arc<dyn DiskFile>>> {
        match &self.blobs {
            Some(blobs) => Ok(blobs.get_if_room()?),
            None => self.blobs().map(Some),
        }
    }

    /// The path of that file.
    pub(crate) fn blobs_path(&self) -> PathBuf {
        self.handle.set().blobs_path(self.number())
    }

    /// Whether lookups bypass the page cache: what was asked for, not what the file system granted.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn handle(&self) -> &FileHandle {
        &self.handle
    }

    /// Upper bound of the length of its longest value, a page too long at most. Cost: that of a
    /// look at each large entry.
    pub(crate) fn longest_value_bytes(&self) -> u64 {
        let pages = u64::from(self.section.map.overflow_max()) + 1;
        (pages * PAGE_SIZE as u64).min(self.meta.value_bytes)
    }

    pub(crate) fn meta(&self) -> &RunMeta {
        &self.meta
    }

    /// Returns the inputs that it was merged from, if they are known.
    pub(crate) fn origin(&self) -> Option<&SliceOrigin> {
        self.origin.as_ref()
    }

    /// Whether all its entries are seen and none is a deletion: to merge it alone drops nothing.
    pub(crate) fn is_clean(&self) -> bool {
        self.meta.deletes == 0 && self.mask.is_empty()
    }

    /// Counts the run among what the session has written.
    pub(crate) fn count_written(&self) {
        let sums = self.handle.set().sums();
        let written = match self.meta.purpose {
            Purpose::Level => &sums.written_bytes,
            Purpose::BufferImage => &sums.image_bytes,
        };
        written.fetch_add(self.meta.file_bytes(), Ordering::Relaxed);
    }

    /// The filter, which stays as it is for as long as it is looked into.
    pub(crate) fn filter(&self) -> Arc<Filter> {
        self.filter.read()
    }

    /// Reduces the filter to a part of it for everybody who has the run; returns the bytes freed.
    /// Nothing happens if it does not lead there: another thread has reduced it in another way
    /// meanwhile.
    pub(crate) fn reduce_filter(&self, part: FilterPortion) -> usize {
        // The lock keeps the filter from changing between the look and the reduction.
        let mut filter = self.filter.write();
        if !filter.kept().leads_to(part) {
            return 0;
        }

        let before = filter.memory_bytes();
        if part == FilterPortion::Nothing && before <= Filter::nothing().memory_bytes() {
            // The placeholder for no filter takes more than a small filter.
            return 0;
        }

        // In place, unless a lookup is looking into it just now.
        Arc::make_mut(&mut filter).keep(part);
        self.gauge.note_filter(filter.memory_bytes());
        assert!(filter.memory_bytes() <= before, "a part is no larger than the whole");
        before - filter.memory_bytes()
    }

    /// Brings so much of an [unread](Self::is_unread) filter into memory, for everybody who has the
    /// run.
    ///
    /// Cost: reads all of the filter, in chunks, unless nothing of it is wanted; what is not kept
    /// is not held either.
    pub(crate) fn read_filter(&self, part: FilterPortion) -> Result<()> {
        if part != FilterPortion::Nothing {
            let read = read_filter(self.path(), self.file()?.as_ref(), &self.meta, part)?;
            let mut filter = self.filter.write();
            self.gauge.note_filter(read.memory_bytes());
            *filter = Arc::new(read);
        }
        self.gauge.is_unread.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether the part of the filter to keep in memory is still undecided.
    pub(crate) fn is_unread(&self) -> bool {
        self.gauge.is_unread.load(Ordering::Acquire)
    }

    pub(crate) fn min_key(&self) -> &[u8] {
        &self.section.min_key
    }

    pub(crate) fn max_key(&self) -> &[u8] {
        &self.section.max_key
    }

    /// Whether a key of the range may be in the run, as its smallest and its largest key tell, and
    /// its filter of a range whose keys share a prefix.
    pub(crate) fn may_meet(&self, range: &KeyRange) -> bool {
        if range.misses(self.min_key(), self.max_key()) {
            return false;
        }
        let RunMeta { prefix_bytes, filter_pages, salt, .. } = self.meta;
        // A run of a bulk load counts prefixes, but has no filter.
        if prefix_bytes == 0 || filter_pages == 0 {
            return true;
        }
        let holds = |prefix: &[u8]| self.filter().contains(prefix_hash(salt, prefix), prefix);
        range.shared_prefix(prefix_bytes.into()).is_none_or(holds)
    }

    pub(crate) fn place(&self, page: u32) -> PageAddress {
        PageAddress { identity: self.meta.identity, page }
    }

    /// Bytes of memory that the run holds while it is open: filter, index, and the rest.
    pub(crate) fn memory_bytes(&self) -> (usize, usize, usize) {
        let rest = self.section.map.memory_bytes()
            + self.section.min_key.len()
            + self.section.max_key.len()
            + size_of::<Self>();
        (self.filter().memory_bytes(), self.section.index.memory_bytes(), rest)
    }

    fn location(&self, candidate: PageCandidate) -> Location {
        let (page, pages) = self.section.map.pages(candidate.ordinal);
        Location { candidate, page, pages }
    }

    /// The page that holds `key` if any does; `None` if the key is outside the run's range, or
    /// masked.
    pub(crate) fn locate(&self, key: &[u8]) -> Option<Location> {
        let min = self.min_key();
        let max = self.max_key();
        let is_outside = compare_keys(key, min).is_lt() || compare_keys(key, max).is_gt();
        if is_outside || self.mask.covers(key) {
            return None;
        }
        Some(self.location(self.section.index.search(key)))
    }

    /// Where to look next when `key` was found to be below the first key of the page located.
    pub(crate) fn locate_before(&self, location: Location, key: &[u8]) -> Option<Location> {
        if !location.candidate.earlier {
            return None;
        }
        let candidate = self.section.index.previous(location.candidate.ordinal, key)?;
        Some(self.location(candidate))
    }

    /// Pages of the entry on key page `ordinal`: the first one's number, and how many.
    pub(crate) fn entry_pages(&self, ordinal: u32) -> (u32, u32) {
        self.section.map.pages(ordinal)
    }

    /// Pages of the file in front of the first one that may hold a key above `key`.
    pub(crate) fn pages_before(&self, key: &[u8]) -> u32 {
        if key < self.min_key() {
            0
        } else if key >= self.max_key() {
            self.meta.data_pages
        } else {
            self.entry_pages(self.candidates(key).start).0
        }
    }

    /// The key pages, by ordinal, that may hold both keys below `key` and keys at or above it; all
    /// earlier pages hold keys below it only, all later ones keys above it only. Of a key in the
    /// run's range.
    pub(crate) fn candidates(&self, key: &[u8]) -> std::ops::Range<u32> {
        let mut candidate = self.section.index.search(key);
        let end = candidate.ordinal + 1;
        // Each step goes one page back.
        while candidate.earlier {
            match self.section.index.previous(candidate.ordinal, key) {
                Some(previous) => candidate = previous,
                None => break,
            }
        }
        debug_assert!(candidate.ordinal < end && end <= self.meta.key_pages);
        candidate.ordinal..end
    }
}

/// Reads `pages` pages from `first` on into a buffer of their size.
pub(crate) fn read_pages(file: &dyn DiskFile, first: u32, pages: u32) -> Result<AlignedBuf> {
    let mut buffer = AlignedBuf::zeroed(pages as usize * PAGE_SIZE);
    file.read_at(&mut buffer, u64::from(first) * PAGE_SIZE as u64)?;
    Ok(buffer)
}

/// Reads the footer of a run file.
pub(crate) fn read_meta(path: &Path, file: &dyn DiskFile) -> Result<RunMeta> {
    let len = file.len()?;
    let pages = len / PAGE_SIZE as u64;
    // The smallest run is a key page, a page of the index and the footer.
    if len % PAGE_SIZE as u64 != 0 || !(3..=RUN_PAGES_MAX).contains(&pages) {
        let what = Corrupt::rule("file length (a whole number of pages)", pages * 4096, len);
        return Err(Error::corrupt(path, what));
    }
    let last = read_pages(file, (pages - 1) as u32, 1)?;
    RunMeta::parse(path, pages, &last)
}

/// Reads and checks everything of a run file but its data pages.
pub(crate) fn read_sections(
    path: &Path,
    file: &dyn DiskFile,
) -> Result<(RunMeta, Filter, IndexSection)> {
    read_with(path, file, WithFilter::Whole)
}

/// Whether a filter is read with the other sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WithFilter {
    Whole,
    No,
}

/// Opens a run, with or without its filter.
fn read_with(
    path: &Path,
    file: &dyn DiskFile,
    with_filter: WithFilter,
) -> Result<(RunMeta, Filter, IndexSection)> {
    let meta = read_meta(path, file)?;
    let index_first = meta.data_pages + meta.filter_pages;

    let index_end = index_first + meta.index_pages;
    let mut index_bytes = Vec::new();
    let filter = if with_filter == WithFilter::No {
        for_each_page(file, index_first..index_end, |page, bytes| {
            take_index(path, &meta, page, bytes, &mut index_bytes)
        })?;
        Filter::nothing()
    } else {
        let mut filter = FilterSection::new(path, &meta, meta.filter_shape().whole())?;
        for_each_page(file, meta.data_pages..index_end, |page, bytes| {
            if page < index_first {
                filter.take(page, bytes)
            } else {
                take_index(path, &meta, page, bytes, &mut index_bytes)
            }
        })?;
        filter.finish()?
    };

    // The last page of the index is padded.
    index_bytes.truncate(meta.index_bytes as usize);
    let in_index = |what: Corrupt| Error::corrupt(path, Corrupt { page: index_first, ..what });
    let section = IndexSection::decode(&index_bytes, &meta).map_err(in_index)?;
    Ok((meta, filter, section))
}

/// Reads and checks the filter of a run file, and keeps a part of it.
fn read_filter(
    path: &Path,
    file: &dyn DiskFile,
    meta: &RunMeta,
    part: FilterPortion,
) -> Result<Filter> {
    let mut filter = FilterSection::new(path, meta, part)?;
    let pages = meta.data_pages..meta.data_pages + meta.filter_pages;
    for_each_page(file, pages, |page, bytes| filter.take(page, bytes))?;
    filter.finish()
}

/// Reads pages, several with each call.
fn for_each_page(
    file: &dyn DiskFile,
    pages: std::ops::Range<u32>,
    mut take: impl FnMut(u32, &[u8]) -> Result<()>,
) -> Result<()> {
    const PAGES_PER_READ: u32 = 64;
    let mut page = pages.start;
    while page < pages.end {
        let count = PAGES_PER_READ.min(pages.end - page);
        let buffer = read_pages(file, page, count)?;
        for bytes in buffer.chunks_exact(PAGE_SIZE) {
            take(page, bytes)?;
            page += 1;
        }
    }
    debug_assert!(pages.end <= page);
    Ok(())
}

/// Adds the content of a page of the index.
fn take_index(
    path: &Path,
    meta: &RunMeta,
    page: u32,
    bytes: &[u8],
    index: &mut Vec<u8>,
) -> Result<()> {
    let position = page - meta.data_pages - meta.filter_pages;
    let place = PageAddress { identity: meta.identity, page };
    let content = decode_payload(bytes, place, PageKind::Index, position);
    index.extend_from_slice(content.map_err(|what| Error::corrupt(path, what))?);
    Ok(())
}

/// The filter section of a run file, being read.
struct FilterSection<'a> {
    path: &'a Path,
    meta: &'a RunMeta,
    decoder: FilterDecoder,
    words_left: u64,
}

impl<'a> FilterSection<'a> {
    fn new(path: &'a Path, meta: &'a RunMeta, part: FilterPortion) -> Result<Self> {
        let bytes_max = u64::from(meta.filter_pages) * PAYLOAD_SIZE as u64;
        let shape = meta.filter_shape();
        let decoder = FilterDecoder::new(shape, bytes_max, part)
            .map_err(|what| Error::corrupt(path, what))?;
        Ok(Self { path, meta, decoder, words_left: shape.words() })
    }

    fn take(&mut self, page: u32, bytes: &[u8]) -> Result<()> {
        let corrupt = |what| Error::corrupt(self.path, what);
        let place = PageAddress { identity: self.meta.identity, page };
        let position = page - self.meta.data_pages;
        let content = decode_payload(bytes, place, PageKind::Filter, position).map_err(corrupt)?;
        // The last page of the filter is padded.
        let words = self.words_left.min(FILTER_WORDS_PER_PAGE as u64);
        self.decoder.push_words(&content[..8 * words as usize]).map_err(corrupt)?;
        self.words_left -= words;
        Ok(())
    }

    fn finish(self) -> Result<Filter> {
        debug_assert_eq!(self.words_left, 0, "the footer counts pages by words");
        self.decoder.finish().map_err(|what| Error::corrupt(self.path, what))
    }
}
