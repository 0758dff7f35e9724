//! Writes a run: entries in, in key order, a file of pages out.
//!
//! The builder holds some chunks of pages, the growing filter and the growing index, never the run.
//! Pages go to the file in chunks of [`CHUNK_PAGES`]; while up to [`CHUNKS_BEHIND_MAX`] are on
//! their way the next one is filled ([`write_behind`](crate::files::write_queue)). A chunk that
//! could not be written is kept, and the step that comes upon it can be made again. Finishing
//! (filter, index, footer) is done in steps too, so that the end of a large merge is no spike.
//!
//! At any time the finished pages can be [flushed](RunBuilder::flush), for a snapshot to rely on.
//! Another builder can go on after them, once it has been [told](RunBuilder::adopt) what they hold.
//!
//! If the run is compressed, the [packer](crate::block::page_packer) decides how many entries go on
//! each page only when it is full. So the index hears of an entry when its page is closed; without
//! compression it hears of the entry at once.
//!
//! Invariant: a page that was written once is never written again.

#![expect(clippy::inline_always, reason = "the call would cost a merge as much as the work")]

use std::collections::VecDeque;
use std::sync::Arc;

use terrane_io::rare;
use terrane_io::{Access, AlignedBuf, DiskFile};

use crate::block::codec::Compression;
use crate::block::index::{IndexBuilder, IndexKind, IndexPlan};
use crate::block::page::{
    PAGE_SIZE, PAYLOAD_SIZE, PageAddress, PageBuilder, PageKind, check_crc, encode_payload,
    overflow_pages, stored_len,
};
use crate::block::page_packer::PagePacker;
use crate::entry::entry::{BLOB_SPAN_SIZE, BlobSpan, EntryRef, Kind, VALUE_BYTES_MAX, prefix_hash};
use crate::error::{Error, Result};
use crate::files::file_set::{FileHandle, FileSet, Partial};
use crate::files::handles::PooledFile;
use crate::files::write_queue::{InFlight, Unwritten, WriteQueue};
use crate::filter::filter::{Filter, FilterAllocation, FilterBuilder};
use crate::run::blob::{Blob, BlobReader};
use crate::run::run::{
    FILTER_WORDS_PER_PAGE, IndexSection, PageMap, Purpose, RUN_PAGES_MAX, Run, RunMeta,
};

/// Pages that are written with one call.
pub(crate) const CHUNK_PAGES: usize = 64;

/// Chunks on their way to the file. Beside many reads one takes several times as long as alone.
const CHUNKS_BEHIND_MAX: usize = 4;

/// Facts about a run that its writer has before the first entry.
#[derive(Debug, Clone)]
pub(crate) struct RunPlan {
    pub(crate) purpose: Purpose,
    pub(crate) salt: u64,
    pub(crate) access: Access,
    /// No key is below this one.
    pub(crate) lower: Vec<u8>,
    /// No key is above this one.
    pub(crate) upper: Vec<u8>,
    /// About as many entries at the most.
    pub(crate) entries_max: u64,
    /// Bytes of the prefixes that the filter holds, or that are counted for the next one; or 0.
    pub(crate) prefix_bytes: u8,
    /// About as many entries and prefixes at the most; the filter is laid out for them.
    pub(crate) members_max: u64,
    /// About as many entries lie between the bounds, with those of the slices that follow. The
    /// index is laid out for them.
    pub(crate) entries_between: u64,
    /// About as many key pages, likewise.
    pub(crate) pages_between: u64,
    /// `None` for a run that is never looked up.
    pub(crate) filter: Option<FilterAllocation>,
    pub(crate) index: IndexKind,
    pub(crate) compression: Compression,
}

/// Purpose of a run, and how it is made: what a level says of its runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunBuild {
    pub(crate) purpose: Purpose,
    /// `None` for a run that is never looked up.
    pub(crate) filter: Option<FilterAllocation>,
    /// Bytes of the prefixes of a run whose footer cannot be read.
    pub(crate) prefix_bytes: u8,
    pub(crate) index: IndexKind,
    pub(crate) compression: Compression,
}

impl RunPlan {
    /// The plan of a run of so many of the entries, with their share of the prefixes.
    pub(crate) fn part(self, entries_max: u64) -> Self {
        debug_assert!(self.entries_max <= self.members_max, "each entry is a member");
        let members = u128::from(self.members_max) * u128::from(entries_max);
        let members = members.div_ceil(u128::from(self.entries_max.max(1)));
        let members_max = u64::try_from(members).unwrap_or(u64::MAX).max(entries_max);
        Self { entries_max, members_max, ..self }
    }

    /// Pages of the filter, about.
    pub(crate) fn filter_pages(&self) -> u64 {
        let bytes = |filter: FilterAllocation| filter.memory_bytes(self.members_max);
        self.filter.map_or(0, bytes).div_ceil(8 * FILTER_WORDS_PER_PAGE as u64)
    }
}

/// The file of a run being written, page by page.
#[derive(Debug)]
struct PageWriter {
    // Waited for before the file is closed.
    /// The chunks before `chunk` that are on their way, in the order of the file.
    in_flight: VecDeque<InFlight>,
    /// Those that failed to be written.
    unwritten: Vec<Unwritten>,
    file: Arc<PooledFile>,
    behind: Arc<WriteQueue>,
    identity: u64,
    chunk: AlignedBuf,
    /// Pages in `chunk`.
    chunk_pages: usize,
    /// Number of the page after those in `chunk`.
    next_page: u32,
    /// Whether the file may be longer than what is written. What is behind is written over as a
    /// rule, as the same entries come again; to cut it off first would free, at once, what is
    /// wanted again.
    has_old_pages: bool,
}

impl PageWriter {
    /// Writes from page `next_page` on.
    fn new(set: &FileSet, file: PooledFile, identity: u64, next_page: u32) -> Self {
        Self {
            file: Arc::new(file),
            behind: Arc::clone(set.write_queue()),
            identity,
            in_flight: VecDeque::new(),
            unwritten: Vec::new(),
            chunk: AlignedBuf::zeroed(CHUNK_PAGES * PAGE_SIZE),
            chunk_pages: 0,
            next_page,
            has_old_pages: false,
        }
    }

    /// The next page of the chunk and its place.
    fn next(&mut self) -> Result<(&mut [u8], PageAddress)> {
        if self.chunk_pages == CHUNK_PAGES {
            self.begin_chunk()?;
        }
        debug_assert!(self.chunk_pages < CHUNK_PAGES);
        let place = PageAddress { identity: self.identity, page: self.next_page };
        let at = self.chunk_pages * PAGE_SIZE;
        self.chunk_pages += 1;
        self.next_page += 1;
        Ok((&mut self.chunk[at..at + PAGE_SIZE], place))
    }

    fn payload(&mut self, kind: PageKind, position: u32, bytes: &[u8]) -> Result<()> {
        let (page, place) = self.next()?;
        encode_payload(page, place, kind, position, bytes);
        Ok(())
    }

    /// Where the chunk goes.
    fn chunk_offset(&self) -> u64 {
        debug_assert!(self.chunk_pages as u64 <= u64::from(self.next_page));
        (u64::from(self.next_page) - self.chunk_pages as u64) * PAGE_SIZE as u64
    }

    /// Begins to write a full chunk, once few enough are on their way.
    fn begin_chunk(&mut self) -> Result<()> {
        self.wait_for_writes(CHUNKS_BEHIND_MAX - 1)?;
        let offset = self.chunk_offset();
        // Without a place in the queue the chunk is written at once.
        let Some(in_flight) = self.behind.begin(&self.file, &mut self.chunk, offset)? else {
            return self.write_chunk();
        };
        debug_assert_eq!(self.chunk.len(), CHUNK_PAGES * PAGE_SIZE, "the next chunk is as large");
        self.in_flight.push_back(in_flight);
        debug_assert!(self.in_flight.len() <= CHUNKS_BEHIND_MAX);
        self.chunk_pages = 0;
        Ok(())
    }

    /// Waits until no more than `left` chunks are on their way. One that has found no room is
    /// written again, with the reserve let go.
    fn wait_for_writes(&mut self, left: usize) -> Result<()> {
        while self.in_flight.len() > left
            && let Some(in_flight) = self.in_flight.pop_front()
        {
            if let Err((error, unwritten)) = in_flight.land() {
                self.unwritten.push(unwritten);
                if !error.is_no_space() {
                    return Err(error.into());
                }
                rare::taken("pages on their way find no room and are written again");
            }
        }

        // A failed write here keeps the chunk, so that the next step can repeat it.
        while let Some(Unwritten { chunk, offset }) = self.unwritten.last() {
            self.file.write_at(chunk, *offset)?;
            self.unwritten.pop();
        }

        debug_assert!(self.in_flight.len() <= left && self.unwritten.is_empty());
        Ok(())
    }

    /// Brings everything to the file.
    fn write_chunk(&mut self) -> Result<()> {
        self.wait_for_writes(0)?;
        if self.chunk_pages > 0 {
            let bytes = &self.chunk[..self.chunk_pages * PAGE_SIZE];
            self.file.write_at(bytes, self.chunk_offset())?;
            // Emptied after the write: a chunk that could not be written is written again.
            self.chunk_pages = 0;
        }
        Ok(())
    }

    /// Whether the next page or two may have to wait for a chunk on its way.
    fn may_wait(&self) -> bool {
        let is_near = self.chunk_pages + 1 >= CHUNK_PAGES;
        let is_last = self.in_flight.len() == CHUNKS_BEHIND_MAX;
        is_near && is_last && self.in_flight.front().is_some_and(|oldest| !oldest.has_ended())
    }

    /// Brings the last pages to the file, which ends with them then.
    fn end(&mut self) -> Result<()> {
        self.write_chunk()?;
        if self.has_old_pages {
            self.file.set_len(u64::from(self.next_page) * PAGE_SIZE as u64)?;
        }
        Ok(())
    }
}

/// The blobs of a run being written.
#[derive(Debug)]
struct BlobWriter {
    writer: PageWriter,
    /// The payload that is being filled.
    payload: Vec<u8>,
    /// Length of the stream so far; after a flush the next blob begins on a page of its own.
    bytes: u64,
    /// The runs that blobs were copied from.
    readers: Vec<BlobReader>,
    /// The blob of the entry that is being added, and how much of it is written. It outlives a step
    /// that failed, so that the next one goes on there.
    current: Option<(BlobSpan, u32)>,
}

impl BlobWriter {
    /// Goes on after a stream of `bytes` bytes.
    fn new(set: &FileSet, file: PooledFile, identity: u64, bytes: u64) -> Self {
        let pages = bytes.div_ceil(PAYLOAD_SIZE as u64) as u32;
        Self {
            writer: PageWriter::new(set, file, identity, pages),
            payload: Vec::with_capacity(PAYLOAD_SIZE),
            bytes,
            readers: Vec::new(),
            current: None,
        }
    }

    /// Where the next byte goes.
    fn position(&self) -> u64 {
        u64::from(self.writer.next_page) * PAYLOAD_SIZE as u64 + self.payload.len() as u64
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.payload.len() == PAYLOAD_SIZE {
                self.write_payload()?;
            }
            let room = PAYLOAD_SIZE - self.payload.len();
            debug_assert!(0 < room, "a full payload was written");
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.payload.extend_from_slice(now);
            debug_assert!(self.payload.len() <= PAYLOAD_SIZE);
            self.bytes = self.position();
            if let Some((_, done)) = &mut self.current {
                *done += now.len() as u32;
            }
            bytes = later;
        }

        Ok(())
    }

    fn write_payload(&mut self) -> Result<()> {
        let limit = RUN_PAGES_MAX;
        if u64::from(self.writer.next_page) >= limit {
            return Err(Error::TableTooLarge { limit });
        }
        debug_assert!(self.payload.len() <= PAYLOAD_SIZE);
        self.writer.payload(PageKind::Blob, self.writer.next_page, &self.payload)?;
        self.payload.clear();
        Ok(())
    }

    /// Copies the rest of a blob and returns where it stands.
    fn copy(&mut self, blob: &Blob) -> Result<BlobSpan> {
        let new = (BlobSpan { offset: self.position(), len: blob.len() as u32 }, 0);
        let (place, mut done) = *self.current.get_or_insert(new);
        debug_assert_eq!(place.len, blob.len() as u32, "a step is made again with the same blob");
        self.bytes = self.bytes.max(place.offset);
        debug_assert!(done <= place.len);

        match blob {
            Blob::Memory(bytes) => self.append(&bytes[done as usize..])?,
            Blob::Run { run, span } => {
                // Blobs of one run come in the order of their keys, so its reader keeps its chunk.
                let known = self.readers.iter().position(|r| Arc::ptr_eq(r.run(), run));
                let mut reader = match known {
                    Some(at) => self.readers.swap_remove(at),
                    None => BlobReader::new(Arc::clone(run)),
                };
                while done < span.len {
                    self.append(reader.part(*span, done)?)?;
                    done = self.current.map_or(span.len, |(_, done)| done);
                }
                self.readers.push(reader);
            }
        }

        debug_assert_eq!(self.bytes, place.offset + u64::from(place.len));
        Ok(place)
    }

    /// Brings the first `bytes` bytes of the stream to the file.
    fn flush(&mut self, bytes: u64) -> Result<()> {
        if bytes > u64::from(self.writer.next_page) * PAYLOAD_SIZE as u64 {
            // No blob goes on after the gap that this leaves: one that is half copied is copied
            // again.
            self.current = None;
            self.write_payload()?;
        }
        self.writer.write_chunk()
    }

    /// Writes what is left.
    fn finish(&mut self) -> Result<()> {
        if !self.payload.is_empty() {
            self.write_payload()?;
        }
        self.writer.end()
    }
}

/// Where the blob of an entry ends; 0 if it has none.
pub(crate) fn blob_end(entry: EntryRef<'_>) -> u64 {
    match entry.kind {
        Kind::InsertBlob => entry.blob.offset.saturating_add(u64::from(entry.blob.len)),
        Kind::Insert | Kind::Delete | Kind::Upsert | Kind::TooLarge => 0,
    }
}

/// A run whose entries are being written.
#[derive(Debug)]
pub(crate) struct RunBuilder {
    writer: PageWriter,
    blobs: Option<BlobWriter>,
    handle: FileHandle,
    page: PageBuilder,
    /// Fills the pages of a run that is compressed.
    packer: Option<Box<PagePacker>>,
    map: PageMap,
    min_key: Vec<u8>,
    /// The last key of the pages that are finished.
    max_key: Vec<u8>,
    meta: RunMeta,
    filter: Option<FilterBuilder>,
    /// The prefix that was added to the filter last.
    prefix: Vec<u8>,
    index: IndexBuilder,
    access: Access,
    /// Whether a large entry is half written.
    in_large: bool,
    /// Where the blobs of all entries end, and where those of the entries on finished pages do.
    blob_end: u64,
    blob_end_finished: u64,
}

/// A key page that was in the file before its builder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdoptedPage {
    /// On how many more pages its entry goes on.
    pub(crate) overflow: u32,
    pub(crate) is_compressed: bool,
}

/// The beginning of an unfinished run, in its files but perhaps not durable yet. It stays there as
/// long as this is kept.
#[derive(Debug)]
pub(crate) struct Flushed {
    pub(crate) partial: Partial,
    files: Vec<Arc<PooledFile>>,
    handle: FileHandle,
}

impl Flushed {
    /// One that is durable already.
    pub(crate) fn durable(partial: Partial, writer: &FileHandle) -> Self {
        Self { partial, files: Vec::new(), handle: writer.attach() }
    }

    /// Makes it durable, once.
    pub(crate) fn sync(&self) -> Result<()> {
        let set = self.handle.set();
        if !set.is_durable(&self.partial) {
            self.files.iter().try_for_each(|file| file.sync_so_far())?;
            set.note_durable(self.partial);
        }
        Ok(())
    }
}

impl RunBuilder {
    /// Creates the file.
    pub(crate) fn new(set: &Arc<FileSet>, plan: &RunPlan) -> Result<Self> {
        let (handle, file) = set.create(plan.access)?;
        // Unique enough to tell this file from any earlier one of the same number: the time and the
        // number, mixed with the session's salt.
        let now = set.disk().clock().wall().as_nanos() as u64;
        let seed = [now.to_le_bytes(), handle.number().to_le_bytes()].concat();
        let identity = xxhash_rust::xxh3::xxh3_64_with_seed(&seed, plan.salt);
        Ok(Self::with_identity(handle, file, plan, identity))
    }

    /// Goes on with the files that another builder has begun, after the pages that are in them for
    /// good. All of their entries must be [adopted](Self::adopt) first.
    pub(crate) fn resuming(handle: FileHandle, plan: &RunPlan, partial: &Partial) -> Self {
        let Partial { identity, data_pages, blob_bytes, .. } = *partial;
        let set = Arc::clone(handle.set());
        let (file, blobs) = set.files_to_write(&handle, plan.access);
        let mut builder = Self::with_identity(handle, file, plan, identity);
        builder.writer.next_page = data_pages;
        builder.writer.has_old_pages = true;

        builder.blobs = blobs.map(|file| {
            let mut blobs = BlobWriter::new(&set, file, identity, blob_bytes);
            blobs.writer.has_old_pages = true;
            blobs
        });

        builder
    }

    /// Creates the file of a run that takes the place of another one of the same pages of entries,
    /// whose blobs stay where they are. All entries must be [adopted](Self::adopt), and then their
    /// pages [copied](Self::copy_pages).
    pub(crate) fn replacing(
        set: &Arc<FileSet>,
        plan: &RunPlan,
        identity: u64,
        blob_bytes: u64,
    ) -> Result<Self> {
        let (handle, file) = set.create(plan.access)?;
        let mut builder = Self::with_identity(handle, file, plan, identity);
        builder.meta.blob_bytes = blob_bytes;
        Ok(builder)
    }

    fn with_identity(handle: FileHandle, file: PooledFile, plan: &RunPlan, identity: u64) -> Self {
        let mut page = PageBuilder::default();
        let packer = PagePacker::new(plan.compression, &mut page).map(Box::new);
        Self {
            writer: PageWriter::new(handle.set(), file, identity, 0),
            blobs: None,
            handle,
            access: plan.access,
            in_large: false,
            blob_end: 0,
            blob_end_finished: 0,
            page,
            packer,
            map: PageMap::default(),
            min_key: Vec::new(),
            max_key: Vec::new(),
            meta: RunMeta {
                prefix_bytes: plan.prefix_bytes,
                ..RunMeta::new(plan.purpose, identity, plan.salt)
            },
            filter: plan.filter.map(|allocation| Filter::builder(plan.members_max, allocation)),
            prefix: Vec::new(),
            index: IndexBuilder::new(IndexPlan {
                kind: plan.index,
                lower: &plan.lower,
                upper: &plan.upper,
                entries_max: plan.entries_between,
                pages_max: plan.pages_between,
            }),
        }
    }

    /// Memory of the filter and the index so far, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.filter.as_ref().map_or(0, FilterBuilder::memory_bytes) + self.index.memory_bytes()
    }

    /// Whether adding a few entries may have to wait for a write.
    pub(crate) fn may_wait(&self) -> bool {
        self.writer.may_wait() || self.blobs.as_ref().is_some_and(|blobs| blobs.writer.may_wait())
    }

    /// Entries added so far.
    #[inline]
    pub(crate) fn entries(&self) -> u64 {
        self.meta.entries
    }

    /// Pages written or in the chunk.
    pub(crate) fn pages(&self) -> u32 {
        self.writer.next_page
    }

    /// Pages of blobs written or in the chunk.
    pub(crate) fn blob_pages(&self) -> u32 {
        self.blobs.as_ref().map_or(0, |blobs| blobs.writer.next_page)
    }

    /// Copies a blob, or the rest of it, and returns where it stands.
    fn copy_blob(&mut self, blob: &Blob) -> Result<BlobSpan> {
        if self.blobs.is_none() {
            let set = self.handle.set();
            let file = set.create_blobs(&self.handle, self.access)?;
            self.blobs = Some(BlobWriter::new(set, file, self.meta.identity, 0));
        }
        self.blobs.as_mut().map_or(Ok(BlobSpan::default()), |blobs| blobs.copy(blob))
    }

    /// Adds an entry whose key is above all earlier ones; `blob` is that of an insert with blob.
    /// `hash` gives the salted hash of the key; it is asked for only if the run has a filter.
    #[inline]
    pub(crate) fn push(
        &mut self,
        entry: EntryRef<'_>,
        blob: Option<&Blob>,
        hash: impl FnOnce() -> u64,
    ) -> Result<()> {
        debug_assert!(self.meta.entries == 0 || self.last_key() < entry.key);
        // Nearly every entry goes behind another one on its page, and has no blob.
        let is_plain = entry.kind != Kind::InsertBlob && !self.page.is_empty();
        if is_plain && self.packer.is_none() && self.page.push(entry) {
            self.index.same_page(entry.key);
            self.count(entry, hash);
            return Ok(());
        }
        self.push_anywhere(entry, blob, hash)
    }

    /// Adds an entry as [`push`](Self::push) does, on this page or the next one, with its blob.
    #[inline(never)]
    fn push_anywhere(
        &mut self,
        entry: EntryRef<'_>,
        blob: Option<&Blob>,
        hash: impl FnOnce() -> u64,
    ) -> Result<()> {
        let entry = match blob {
            Some(blob) => EntryRef { blob: self.copy_blob(blob)?, ..entry },
            None => entry,
        };

        if self.packer.is_some() {
            self.push_to_pack(entry, hash)?;
        } else {
            self.push_on_page(entry, hash)?;
        }

        // The entry is in, so the next one has a blob of its own.
        if let Some(blobs) = &mut self.blobs {
            blobs.current = None;
        }

        Ok(())
    }

    /// Adds an entry whose blob is written to this page or the next one.
    fn push_on_page(&mut self, entry: EntryRef<'_>, hash: impl FnOnce() -> u64) -> Result<()> {
        let mut starts_page = self.page.is_empty();
        let mut fits = self.page.push(entry);
        if !fits && !starts_page {
            self.finish_page(0)?;
            starts_page = true;
            fits = self.page.push(entry);
        }

        // The index wants the last key of the page before, so it stays until the entry is noted.
        let before = std::mem::take(&mut self.max_key);
        if fits {
            self.blob_end = self.blob_end.max(blob_end(entry));
            self.note(entry, starts_page.then_some(before.as_slice()), hash);
            self.max_key = before;
            return Ok(());
        }

        self.max_key = before;
        self.push_overflowing(entry, hash)
    }

    /// Adds an entry that is too large for a page; all pages before it are closed.
    fn push_overflowing(&mut self, entry: EntryRef<'_>, hash: impl FnOnce() -> u64) -> Result<()> {
        let before = std::mem::take(&mut self.max_key);
        let pushed = self.push_large(entry);
        if let Err(error) = pushed {
            self.max_key = before;
            return Err(error);
        }
        self.note(entry, Some(&before), hash);
        Ok(())
    }

    /// Adds an entry whose blob is written to a run that is compressed. Filter and sums hear of it
    /// now, the index when its page is closed.
    fn push_to_pack(&mut self, entry: EntryRef<'_>, hash: impl FnOnce() -> u64) -> Result<()> {
        let is_large = !PageBuilder::fits_alone(entry);
        // An entry that is too large for a page stands behind all pages before it.
        let mut is_added = false;
        while !self.page.is_empty() && !is_added {
            is_added = !is_large && self.page.push(entry);
            if !is_added {
                self.pack_page(is_large)?;
            }
        }
        if is_large {
            return self.push_overflowing(entry, hash);
        }
        if !is_added {
            let fits = self.page.push(entry);
            debug_assert!(fits, "an entry that fits alone fits on an empty page");
        }

        self.blob_end = self.blob_end.max(blob_end(entry));
        self.note_first(entry.key);
        self.count(entry, hash);
        Ok(())
    }

    /// Closes the page that the first entries make, unless the packer wants more of them and there
    /// may be more.
    fn pack_page(&mut self, is_last: bool) -> Result<()> {
        self.check_room(0)?;
        let Some(packer) = &mut self.packer else { return self.finish_page(0) };
        let Some(packed) = packer.pack(&mut self.page, is_last) else { return Ok(()) };
        // Only the request for a page can fail, so the builder is unchanged if it does.
        let (page, place) = self.writer.next()?;

        for index in 0..packed.count {
            let key = self.page.key(index);
            match index {
                0 => self.index.start_page(key, &self.max_key),
                _ => self.index.same_page(key),
            }
            let end = self.page.blob(index).map_or(0, |blob| blob.offset + u64::from(blob.len));
            self.blob_end_finished = self.blob_end_finished.max(end);
        }

        self.max_key.clear();
        self.max_key.extend_from_slice(self.page.key(packed.count - 1));
        packer.write(packed, &mut self.page, page, place);
        self.meta.key_pages += 1;
        self.meta.compressed_pages += u32::from(packed.codec.is_some());
        debug_assert!(self.meta.key_pages <= self.writer.next_page, "an entry has its key page");
        debug_assert!(self.blob_end_finished <= self.blob_end, "a blob ends before its page");
        Ok(())
    }

    /// Takes note of an entry that stands on the pages; with the last key of the page before if it
    /// is the first one of its page.
    fn note(&mut self, entry: EntryRef<'_>, before: Option<&[u8]>, hash: impl FnOnce() -> u64) {
        match before {
            Some(before) => self.index.start_page(entry.key, before),
            None => self.index.same_page(entry.key),
        }
        self.note_first(entry.key);
        self.count(entry, hash);
    }

    /// Takes note of the smallest key, which is that of the first entry.
    fn note_first(&mut self, key: &[u8]) {
        if self.meta.entries == 0 {
            self.min_key.extend_from_slice(key);
        }
    }

    /// Adds an entry to the filter and to the numbers of the footer.
    #[inline(always)]
    fn count(&mut self, entry: EntryRef<'_>, hash: impl FnOnce() -> u64) {
        if let Some(filter) = &mut self.filter {
            filter.insert(hash(), entry.key);
        }
        if self.meta.prefix_bytes > 0 {
            self.add_prefix(entry.key);
        }
        self.meta.entries += 1;
        self.meta.deletes += u64::from(entry.kind == Kind::Delete);
        self.meta.key_bytes += entry.key.len() as u64;
        self.meta.value_bytes += entry.value.len() as u64;
        debug_assert!(self.meta.deletes <= self.meta.entries);
    }

    /// Counts the prefix of a key and adds it to the filter, unless it is that of the key before.
    #[inline(never)]
    fn add_prefix(&mut self, key: &[u8]) {
        let prefix = key.get(..self.meta.prefix_bytes.into());
        let Some(prefix) = prefix.filter(|prefix| *prefix != self.prefix) else { return };
        debug_assert!(self.prefix.as_slice() < prefix, "keys rise, so prefixes do");
        if let Some(filter) = &mut self.filter {
            filter.insert(prefix_hash(self.meta.salt, prefix), prefix);
        }
        self.meta.prefixes += 1;
        self.prefix.clear();
        self.prefix.extend_from_slice(prefix);
    }

    /// Takes note of an entry that was in the file before this builder, whose key is above all
    /// earlier ones and within the bounds of the plan; with its page if it is the first one there.
    pub(crate) fn adopt(
        &mut self,
        entry: EntryRef<'_>,
        starts_page: Option<AdoptedPage>,
        hash: impl FnOnce() -> u64,
    ) {
        debug_assert!(self.page.is_empty(), "adopted pages come before new ones");
        if let Some(AdoptedPage { overflow, is_compressed }) = starts_page {
            if overflow > 0 {
                self.map.push(self.meta.key_pages, overflow);
            }
            self.meta.key_pages += 1;
            self.meta.compressed_pages += u32::from(is_compressed);
        }
        let mut before = std::mem::take(&mut self.max_key);
        self.note(entry, starts_page.map(|_| before.as_slice()), hash);
        before.clear();
        before.extend_from_slice(entry.key);
        self.max_key = before;
        self.blob_end = self.blob_end.max(blob_end(entry));
        // Adopted pages are finished, and so are the blobs of their entries.
        self.blob_end_finished = self.blob_end;
    }

    /// Copies the `pages` pages of all entries that were adopted from the file of a run of the same
    /// identity, as they are.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a page that is damaged, and those of the disk.
    pub(crate) fn copy_pages(&mut self, from: &dyn DiskFile, pages: u32) -> Result<()> {
        debug_assert_eq!(self.writer.next_page, 0, "nothing is written before");
        let mut chunk = AlignedBuf::zeroed(CHUNK_PAGES * PAGE_SIZE);
        while self.writer.next_page < pages {
            let first = self.writer.next_page;
            let count = (CHUNK_PAGES as u32).min(pages - first) as usize;
            let bytes = &mut chunk[..count * PAGE_SIZE];
            from.read_at(bytes, u64::from(first) * PAGE_SIZE as u64)?;
            for bytes in bytes.chunks_exact(PAGE_SIZE) {
                let (page, place) = self.writer.next()?;
                check_crc(bytes, place).map_err(|what| Error::corrupt(from.path(), what))?;
                page.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Returns the part of the files that was there before this builder.
    pub(crate) fn durable(&self, partial: Partial) -> Flushed {
        Flushed::durable(partial, &self.handle)
    }

    /// The last key so far.
    pub(crate) fn last_key(&self) -> &[u8] {
        self.page.last_key().unwrap_or(&self.max_key)
    }

    /// Writes all finished pages to the files, with the blobs of their entries; `None` if there are
    /// none. Entries on the unfinished page are not part of it. `work` is the work that the
    /// compaction has done, for the one that resumes it.
    pub(crate) fn flush(&mut self, work: u64) -> Result<Option<Flushed>> {
        assert!(!self.in_large);
        debug_assert!(self.blob_end_finished <= self.blob_end, "finished pages come first");
        if let Some(blobs) = &mut self.blobs {
            blobs.flush(self.blob_end_finished)?;
        }

        self.writer.write_chunk()?;
        if self.writer.next_page == 0 {
            return Ok(None);
        }

        let partial = Partial {
            number: self.handle.number(),
            identity: self.meta.identity,
            data_pages: self.writer.next_page,
            blob_bytes: self.blob_end_finished,
            work,
        };

        let blobs = self.blobs.as_ref().filter(|_| partial.blob_bytes > 0);
        let files = [Some(&self.writer), blobs.map(|blobs| &blobs.writer)];
        let files = files.into_iter().flatten().map(|writer| Arc::clone(&writer.file)).collect();
        Ok(Some(Flushed { partial, files, handle: self.handle.attach() }))
    }

    fn push_large(&mut self, entry: EntryRef<'_>) -> Result<()> {
        let stored = stored_len(entry.kind, entry.value.len());

        // A union combines values, and keeps a blob, without asking for its place.
        let Ok(stored_bytes) = u32::try_from(stored) else {
            let limit = VALUE_BYTES_MAX - BLOB_SPAN_SIZE;
            return Err(Error::ValueTooLarge { bytes: entry.value.len(), limit });
        };

        let overflow = overflow_pages(entry.key.len(), stored);
        self.check_room(u64::from(overflow))?;
        // From here on a failure leaves half an entry, so the room was checked first.
        self.in_large = true;
        let (rest, span) = self.page.push_large(entry);
        debug_assert!(rest.len() + span.len() <= stored);
        self.blob_end = self.blob_end.max(blob_end(entry));
        self.map.push(self.meta.key_pages, overflow);
        self.finish_page(stored_bytes)?;

        // The place of a blob follows the value, and may begin a page of its own.
        let (pages, last) = rest.as_chunks::<PAYLOAD_SIZE>();
        let last = [last, &span].concat();
        let pages = pages.iter().map(<[u8; PAYLOAD_SIZE]>::as_slice);

        for (position, bytes) in (1..).zip(pages.chain(last.chunks(PAYLOAD_SIZE))) {
            self.writer.payload(PageKind::Overflow, position, bytes)?;
        }

        self.in_large = false;
        Ok(())
    }

    /// Whether, after an error, the call that gave it can be made again.
    pub(crate) fn is_whole(&self) -> bool {
        !self.in_large
    }

    /// Half of the page numbers stay free for filter and index.
    fn check_room(&self, pages: u64) -> Result<()> {
        let limit = RUN_PAGES_MAX / 2;
        if u64::from(self.writer.next_page) + pages >= limit {
            return Err(Error::TableTooLarge { limit });
        }
        Ok(())
    }

    fn finish_page(&mut self, value_bytes: u32) -> Result<()> {
        self.check_room(0)?;
        // Only the request for a page can fail, so the builder is unchanged if it does.
        let (page, place) = self.writer.next()?;
        self.max_key.clear();
        self.max_key.extend_from_slice(self.page.last_key().unwrap_or_default());
        self.page.finish(page, place, value_bytes);
        self.meta.key_pages += 1;
        debug_assert!(self.meta.key_pages <= self.writer.next_page, "an entry has its key page");
        debug_assert!(self.page.is_empty(), "a page is written once");
        self.blob_end_finished = self.blob_end;
        Ok(())
    }

    /// Writes the last page of entries and the last one of blobs.
    pub(crate) fn finish_last_page(&mut self) -> Result<()> {
        if let Some(blobs) = &mut self.blobs {
            blobs.finish()?;
        }
        // A page that is packed may leave entries for another one.
        while !self.page.is_empty() {
            self.pack_page(true)?;
        }
        Ok(())
    }

    /// Ends the entries, whose last page must have been written; `None` if there were none, and the
    /// file is gone again.
    pub(crate) fn finish_entries(self) -> Result<Option<RunFinisher>> {
        assert!(self.page.is_empty());
        if self.meta.entries == 0 {
            return Ok(None);
        }

        debug_assert!(self.min_key <= self.max_key, "keys rise");
        debug_assert!(self.meta.key_pages <= self.writer.next_page, "an entry has its key page");

        let filter = self.filter.map_or_else(Filter::empty, FilterBuilder::finish);
        let section = IndexSection {
            min_key: self.min_key.into(),
            max_key: self.max_key.into(),
            map: self.map,
            index: self.index.finish(),
        };

        let index_bytes = section.encode();
        let limit = u64::from(u32::MAX);
        let meta = RunMeta {
            data_pages: self.writer.next_page,
            index_pages: index_bytes.len().div_ceil(PAYLOAD_SIZE) as u32,
            index_bytes: u32::try_from(index_bytes.len())
                .map_err(|_| Error::TableTooLarge { limit })?,
            blob_bytes: self.blobs.as_ref().map_or(self.meta.blob_bytes, |blobs| blobs.bytes),
            ..self.meta
        };

        let meta = meta.with_filter(filter.shape());
        let writer = self.writer;
        let handle = self.handle;
        let access = self.access;

        Ok(Some(RunFinisher {
            writer,
            blobs: self.blobs.filter(|blobs| blobs.bytes > 0).map(|blobs| blobs.writer.file),
            handle,
            access,
            meta,
            filter,
            section,
            index_bytes,
            done: 0,
            has_footer: false,
        }))
    }

    /// Ends the entries and writes the rest at once; `None` if there were no entries.
    pub(crate) fn finish(mut self) -> Result<Option<Run>> {
        self.finish_last_page()?;
        let Some(mut finisher) = self.finish_entries()? else { return Ok(None) };
        finisher.step(u32::MAX)?;
        Ok(Some(finisher.into_run()))
    }
}

/// A run whose entries are written; filter, index and footer follow.
#[derive(Debug)]
pub(crate) struct RunFinisher {
    writer: PageWriter,
    blobs: Option<Arc<PooledFile>>,
    handle: FileHandle,
    meta: RunMeta,
    filter: Filter,
    section: IndexSection,
    index_bytes: Vec<u8>,
    access: Access,
    /// Pages written of these.
    done: u32,
    /// Whether the footer is in the chunk, which is yet to be written.
    has_footer: bool,
}

impl RunFinisher {
    /// Memory of the filter, the index and its encoding, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let index = self.section.index.memory_bytes() + self.index_bytes.capacity();
        self.filter.memory_bytes() + index
    }

    /// Pages of filter, index and footer.
    pub(crate) fn pages(&self) -> u32 {
        self.meta.filter_pages + self.meta.index_pages + 1
    }

    /// Whether more than the last page is left, which ends the run, and can be written without
    /// waiting.
    pub(crate) fn can_step(&self) -> bool {
        self.done < self.meta.filter_pages + self.meta.index_pages && !self.writer.may_wait()
    }

    /// Writes up to `pages` more pages; returns how many are left.
    pub(crate) fn step(&mut self, pages: u32) -> Result<u32> {
        let RunMeta { filter_pages, index_pages, .. } = self.meta;
        let total = filter_pages + index_pages + 1;
        let end = total.min(self.done.saturating_add(pages));
        debug_assert!(self.done <= total, "no page follows the footer");

        // One buffer serves all pages of this step.
        let mut content = Vec::with_capacity(PAYLOAD_SIZE);
        while self.done < end {
            content.clear();
            if self.done < filter_pages {
                let start = u64::from(self.done) * FILTER_WORDS_PER_PAGE as u64;
                self.filter.put_words(start..start + FILTER_WORDS_PER_PAGE as u64, &mut content);
                self.writer.payload(PageKind::Filter, self.done, &content)?;
            } else if self.done < filter_pages + index_pages {
                let position = self.done - filter_pages;
                let start = position as usize * PAYLOAD_SIZE;
                debug_assert!(start < self.index_bytes.len(), "no page of the index is empty");
                let end = self.index_bytes.len().min(start + PAYLOAD_SIZE);
                let bytes = &self.index_bytes[start..end];
                self.writer.payload(PageKind::Index, position, bytes)?;
            } else {
                // The footer goes last: a file without one is no run.
                if !self.has_footer {
                    self.writer.payload(PageKind::Footer, 0, &self.meta.encode())?;
                    self.has_footer = true;
                }

                self.writer.end()?;
            }

            debug_assert!(!self.has_footer || self.done + 1 == total, "the footer goes last");
            self.done += 1;
        }

        debug_assert!(self.done <= total);
        Ok(total - self.done)
    }

    /// Flushes all entries, see [`RunBuilder::flush`].
    pub(crate) fn flush(&mut self, work: u64) -> Result<Flushed> {
        self.writer.write_chunk()?;
        let number = self.handle.number();
        let RunMeta { identity, data_pages, blob_bytes, .. } = self.meta;
        let files = [Some(&self.writer.file), self.blobs.as_ref()];
        Ok(Flushed {
            partial: Partial { number, identity, data_pages, blob_bytes, work },
            files: files.into_iter().flatten().cloned().collect(),
            handle: self.handle.attach(),
        })
    }

    /// The run; not synced. All pages must have been written.
    pub(crate) fn into_run(self) -> Run {
        assert!(self.done == self.meta.filter_pages + self.meta.index_pages + 1);
        let Self { writer, blobs, mut handle, access, meta, filter, section, .. } = self;
        handle.finish_writing();
        Run::new(writer.file, blobs, handle, access, meta, filter, section)
    }
}
