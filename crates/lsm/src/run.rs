//! A run: an immutable sorted file with at most one entry for each key, and what is kept of it in
//! memory to find a key with one read.
//!
//! Invariant: a run is written once, by [`run_builder`](crate::run_builder), and never changed; its
//! identity distinguishes it from any other file that had its name.

#![doc = include_str!("../../../docs/format/run.md")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use terrane_io::bytes::{Overrun, Reader, Writer};
use terrane_io::{Access, AlignedBuf, DiskFile, OpenMode};

use crate::corrupt::Corrupt;
use crate::entry::{ENTRY_OVERHEAD_BYTES, KEY_BYTES_MAX};
use crate::error::{Error, Result};
use crate::files::{FileHandle, FileSet, Partial};
use crate::filter::{Filter, FilterDecoder};
use crate::index::{Candidate, Index};
use crate::page::{PAGE_SIZE, PAYLOAD_SIZE, PageKind, Place, decode_payload};

/// First bytes of a footer's content.
pub(crate) const RUN_MAGIC: [u8; 8] = *b"TerraRun";

/// Newest version of run files, which is the one that is written.
pub(crate) const RUN_VERSION: u32 = 1;

/// Filter words in a page.
pub(crate) const FILTER_WORDS_PER_PAGE: usize = PAYLOAD_SIZE / 8;

/// Most pages of a file: page numbers are 32 bits.
pub(crate) const RUN_PAGES_MAX: u64 = u32::MAX as u64;

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A run of a level.
    Level = 1,
    /// The image of a write buffer, kept by a snapshot.
    BufferImage = 2,
}

/// The footer of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the footer's table above")]
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

    /// What the entries count for in a write buffer bounded in bytes.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes + self.blob_bytes + ENTRY_OVERHEAD_BYTES * self.entries
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.put(&RUN_MAGIC).u32(RUN_VERSION).u32(self.purpose as u32);
        out.u64(self.identity).u64(self.salt).u64(self.entries).u64(self.deletes);
        out.u64(self.key_bytes).u64(self.value_bytes).u64(0).u64(0);
        out.u32(self.data_pages).u32(self.key_pages);
        out.u32(self.filter_pages).u32(self.index_pages);
        out.u64(self.filter_blocks).u32(self.filter_probes).u32(self.index_bytes);
        out.u64(self.blob_bytes);
        out.into_bytes()
    }

    fn decode(input: &mut Reader<'_>) -> std::result::Result<Option<Self>, Overrun> {
        let purpose = match input.u32()? {
            1 => Purpose::Level,
            2 => Purpose::BufferImage,
            _ => return Ok(None),
        };
        let identity = input.u64()?;
        let salt = input.u64()?;
        let (entries, deletes) = (input.u64()?, input.u64()?);
        let (key_bytes, value_bytes) = (input.u64()?, input.u64()?);
        input.take(16)?;
        Ok(Some(Self {
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
        }))
    }

    /// Bits of the filter for each entry.
    pub fn filter_bits_per_entry(&self) -> f64 {
        self.filter_blocks as f64 * 512.0 / self.entries as f64
    }

    /// Reads the footer of a file of `pages` pages from its last page.
    fn parse(path: &Path, pages: u64, page: &[u8]) -> Result<Self> {
        let number = (pages - 1) as u32;
        let broken = |rule, expected, found| {
            Error::corrupt(path, Corrupt { page: number, rule, expected, found })
        };
        // The identity that the checksum starts from stands in the page itself.
        let mut input = Reader::new(page.get(crate::page::HEADER_SIZE..).unwrap_or_default());
        let magic = input.take(8).unwrap_or_default();
        if magic != RUN_MAGIC {
            return Err(broken("footer magic", u64::from_le_bytes(RUN_MAGIC), 0));
        }
        let version = input.u32().unwrap_or_default();
        let mut peek = input.clone();
        let identity = peek.u32().and_then(|_| peek.u64()).unwrap_or_default();
        decode_payload(page, Place { identity, page: number }, PageKind::Footer, 0)
            .map_err(|what| Error::corrupt(path, what))?;
        if version != RUN_VERSION {
            let path = path.to_owned();
            return Err(Error::UnknownVersion { path, found: version, newest: RUN_VERSION });
        }
        let meta = Self::decode(&mut input).ok().flatten();
        let meta = meta.ok_or_else(|| broken("footer purpose", 1, 0))?;
        if meta.pages() != pages {
            return Err(broken("file pages", meta.pages(), pages));
        }
        let words = meta.filter_blocks.saturating_mul(8);
        if words.div_ceil(FILTER_WORDS_PER_PAGE as u64) != u64::from(meta.filter_pages) {
            return Err(broken("filter_pages", words, u64::from(meta.filter_pages)));
        }
        let index_pages = (meta.index_bytes as usize).div_ceil(PAYLOAD_SIZE) as u64;
        if index_pages != u64::from(meta.index_pages) {
            return Err(broken("index_pages", index_pages, u64::from(meta.index_pages)));
        }
        if meta.key_pages == 0
            || meta.key_pages > meta.data_pages
            || meta.entries < u64::from(meta.key_pages)
            || meta.deletes > meta.entries
            || meta.blob_pages() > RUN_PAGES_MAX
        {
            return Err(broken("footer counts", u64::from(meta.data_pages), meta.entries));
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
        let before = self.large.last().map_or(0, |entry| entry.overflow_before_next);
        self.large.push(LargeEntry { ordinal, overflow_before_next: before + overflow });
    }

    fn overflow_total(&self) -> u32 {
        self.large.last().map_or(0, |entry| entry.overflow_before_next)
    }

    /// Number of the key page in the file, and pages of its entry (more than 1 if it is large).
    pub(crate) fn pages(&self, ordinal: u32) -> (u32, u32) {
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
            let (ordinal, overflow) = (input.u32()?, input.u32()?);
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
    candidate: Candidate,
    /// First page.
    pub(crate) page: u32,
    /// Pages of the entry.
    pub(crate) pages: u32,
}

/// An open run.
#[derive(Debug)]
pub(crate) struct Run {
    // The file is closed before its name goes.
    file: Arc<dyn DiskFile>,
    /// The file of its blobs, opened when it is first needed.
    blobs: OnceLock<Arc<dyn DiskFile>>,
    handle: FileHandle,
    access: Access,
    path: PathBuf,
    meta: RunMeta,
    filter: Filter,
    section: IndexSection,
}

impl Run {
    /// The run that a builder has written.
    pub(crate) fn new(
        files: (Arc<dyn DiskFile>, Option<Arc<dyn DiskFile>>),
        handle: FileHandle,
        access: Access,
        meta: RunMeta,
        filter: Filter,
        section: IndexSection,
    ) -> Self {
        let path = handle.path();
        let (file, blobs) = (files.0, files.1.map(OnceLock::from).unwrap_or_default());
        Self { file, blobs, handle, access, path, meta, filter, section }
    }

    /// The beginning of a run that is still being written, to be read from its first entry to its last:
    /// it has neither filter nor index.
    pub(crate) fn beginning(handle: FileHandle, partial: &Partial, salt: u64) -> Result<Self> {
        let path = handle.path();
        let file = handle.set().disk().open(&path, OpenMode::Read, Access::Buffered)?;
        let Partial { identity, data_pages, blob_bytes, .. } = *partial;
        let meta =
            RunMeta { data_pages, blob_bytes, ..RunMeta::new(Purpose::Level, identity, salt) };
        let section = IndexSection {
            min_key: Box::default(),
            max_key: Box::default(),
            map: PageMap::default(),
            index: Index::empty(),
        };
        Ok(Self::new((file, None), handle, Access::Buffered, meta, Filter::empty(), section))
    }

    /// Opens a file of the session, and checks all of it but the data pages.
    ///
    /// Cost: reads footer, filter and index.
    pub(crate) fn open(set: &Arc<FileSet>, number: u64, access: Access) -> Result<Self> {
        let path = set.path(number);
        let file = set.disk().open(&path, OpenMode::Read, access)?;
        let (meta, filter, section) = read_sections(&path, file.as_ref())?;
        let blobs = OnceLock::new();
        Ok(Self { file, blobs, handle: set.attach(number), access, path, meta, filter, section })
    }

    pub(crate) fn number(&self) -> u64 {
        self.handle.number()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    /// The file of the blobs, which must be some.
    pub(crate) fn blobs(&self) -> Result<Arc<dyn DiskFile>> {
        if let Some(file) = self.blobs.get() {
            return Ok(Arc::clone(file));
        }
        let disk = self.handle.set().disk();
        let file = disk.open(&self.blobs_path(), OpenMode::Read, self.access)?;
        Ok(Arc::clone(self.blobs.get_or_init(|| file)))
    }

    /// The path of that file.
    pub(crate) fn blobs_path(&self) -> PathBuf {
        self.handle.set().blobs_path(self.number())
    }

    /// Makes the run durable, once.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.handle.is_synced() {
            return Ok(());
        }
        let blobs = if self.meta.blob_bytes > 0 { Some(self.blobs()?) } else { None };
        let files = [Some(&self.file), blobs.as_ref()];
        self.handle.sync(files.into_iter().flatten().map(Arc::as_ref))
    }

    /// Whether lookups bypass the page cache: what was asked for, not what the file system granted.
    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn handle(&self) -> &FileHandle {
        &self.handle
    }

    pub(crate) fn meta(&self) -> &RunMeta {
        &self.meta
    }

    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }

    pub(crate) fn min_key(&self) -> &[u8] {
        &self.section.min_key
    }

    pub(crate) fn max_key(&self) -> &[u8] {
        &self.section.max_key
    }

    pub(crate) fn place(&self, page: u32) -> Place {
        Place { identity: self.meta.identity, page }
    }

    /// Bytes of memory that the run holds while it is open: filter, index, and the rest.
    pub(crate) fn memory_bytes(&self) -> (usize, usize, usize) {
        let rest = self.section.map.memory_bytes()
            + self.section.min_key.len()
            + self.section.max_key.len()
            + size_of::<Self>();
        (self.filter.memory_bytes(), self.section.index.memory_bytes(), rest)
    }

    fn location(&self, candidate: Candidate) -> Location {
        let (page, pages) = self.section.map.pages(candidate.ordinal);
        Location { candidate, page, pages }
    }

    /// The page that holds `key` if any does; `None` if the key is outside the run's range.
    pub(crate) fn locate(&self, key: &[u8]) -> Option<Location> {
        if key < self.min_key() || key > self.max_key() {
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

    /// The first page from which on all keys at or above `key` stand, as ordinal-free page number. The
    /// page found may still hold smaller keys.
    pub(crate) fn first_page_for(&self, key: &[u8]) -> u32 {
        if key <= self.min_key() {
            return 0;
        }
        let mut candidate = self.section.index.search(key);
        while candidate.earlier {
            match self.section.index.previous(candidate.ordinal, key) {
                Some(previous) => candidate = previous,
                None => break,
            }
        }
        self.section.map.pages(candidate.ordinal).0
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
    const PAGES_PER_READ: u32 = 64;
    let meta = read_meta(path, file)?;
    let corrupt = |what| Error::corrupt(path, what);
    let bytes_max = u64::from(meta.filter_pages) * PAYLOAD_SIZE as u64;
    let mut filter = FilterDecoder::new(meta.filter_blocks, meta.filter_probes as u8, bytes_max)
        .map_err(corrupt)?;
    let mut words_left = meta.filter_blocks * 8;
    let mut index_bytes = Vec::new();
    let first = meta.data_pages;
    let end = first + meta.filter_pages + meta.index_pages;
    let mut page = first;
    while page < end {
        let count = PAGES_PER_READ.min(end - page);
        let buffer = read_pages(file, page, count)?;
        for bytes in buffer.chunks_exact(PAGE_SIZE) {
            let place = Place { identity: meta.identity, page };
            if page < first + meta.filter_pages {
                let position = page - first;
                let content =
                    decode_payload(bytes, place, PageKind::Filter, position).map_err(corrupt)?;
                let words = words_left.min(FILTER_WORDS_PER_PAGE as u64);
                filter.push_words(&content[..8 * words as usize]).map_err(corrupt)?;
                words_left -= words;
            } else {
                let position = page - first - meta.filter_pages;
                let content =
                    decode_payload(bytes, place, PageKind::Index, position).map_err(corrupt)?;
                index_bytes.extend_from_slice(content);
            }
            page += 1;
        }
    }
    index_bytes.truncate(meta.index_bytes as usize);
    let filter = filter.finish().map_err(corrupt)?;
    let in_index = |what: Corrupt| corrupt(Corrupt { page: first + meta.filter_pages, ..what });
    let section = IndexSection::decode(&index_bytes, &meta).map_err(in_index)?;
    Ok((meta, filter, section))
}
