//! Checks of a run's content, page by page and entry by entry.
//!
//! Check of a run: every page's checksum and address, that the keys rise, that the filter contains
//! every key and the index leads to every key, that footer and index section say of the entries
//! what they are, and that the blobs they refer to are there. The filter that is checked is the one
//! that is stored: in memory, under a budget, it may say of any key that it may be there. A caller
//! that collects all damage walks through [`Pages`] and goes on after it. A caller that only wants
//! to know whether runs are whole asks [`Checking`], which divides the work among threads.

use std::ops::Range;
use std::path::Path;

use terrane_io::sync::{Arc, Mutex};
use terrane_io::{Access, AlignedBuf, DiskFile};

use crate::block::page::{
    PAGE_SIZE, PAYLOAD_SIZE, PageAddress, PageKind, PageLayout, check, decode_payload,
    overflow_pages, split_value,
};
use crate::corrupt::Corrupt;
use crate::entry::entry::{BlobSpan, EntryRef, Kind, key_hash, prefix_hash};
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::files::parallel;
use crate::filter::filter::{Filter, FilterAllocation};
use crate::run::run::{Purpose, Run, RunMeta, read_sections};
use crate::run::writer::{RunBuild, RunPlan};

/// Pages that are read with one call.
pub(crate) const CHUNK_PAGES: u32 = 64;

/// Told about progress: bytes done, and bytes to do in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Key pages that one thread checks at a time.
const PART_KEY_PAGES: u32 = 2048;

/// Blob pages that one thread checks at a time.
const PART_BLOB_PAGES: u32 = 8192;

/// Offset of a page in its file.
pub(crate) fn page_offset(page: u32) -> u64 {
    u64::from(page) * PAGE_SIZE as u64
}

/// Something that is wrong with a run whose pages are whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("page {page}: {rule}")]
pub(crate) struct Flaw {
    pub(crate) page: u32,
    pub(crate) rule: &'static str,
}

/// How runs of a snapshot are checked.
pub(crate) struct Checking<'a> {
    /// The snapshot, for the error.
    pub(crate) snapshot: &'a str,
    pub(crate) threads: usize,
    /// Asked now and then.
    pub(crate) go_on: &'a (dyn Fn() -> Result<()> + Sync),
}

impl Checking<'_> {
    /// Checks every page of these runs. What is found first does not depend on the number of
    /// threads.
    ///
    /// # Errors
    /// [`Error::Corrupt`], or [`Error::SnapshotCorrupted`] if pages are whole that do not belong
    /// together; those of the disk, and those of `go_on`.
    pub(crate) fn check(&self, runs: &[Arc<Run>]) -> Result<()> {
        let stored: Vec<StoredFilter<'_>> = runs.iter().map(StoredFilter::new).collect();
        // Runs are cut into parts, so that one large run keeps all threads busy.
        let mut parts = Vec::new();
        for filter in &stored {
            let run = filter.run;
            let starts = (0..run.meta().key_pages).step_by(PART_KEY_PAGES as usize);
            parts.extend(starts.map(|start| (run, CheckPart::Keys(start, filter))));
            let blob_pages = run.meta().blob_pages() as u32;
            let starts = (0..blob_pages).step_by(PART_BLOB_PAGES as usize);
            parts.extend(starts.map(|start| (run, CheckPart::Blobs(start))));
        }

        let sums = parallel::map(parts.len(), self.threads, |at| {
            (self.go_on)()?;
            match parts[at] {
                (_, CheckPart::Keys(start, filter)) => self.check_keys(filter, start).map(Some),
                (run, CheckPart::Blobs(start)) => check_blobs(run, start).map(|()| None),
            }
        })?;

        debug_assert_eq!(sums.len(), parts.len(), "each part was checked");
        // Parts of one run follow each other in the order of their keys.
        let mut sums = sums.into_iter().zip(parts).filter_map(|(sums, part)| Some((sums?, part)));
        let mut sums = sums.by_ref().peekable();
        while let Some((mut whole, (run, _))) = sums.next() {
            while let Some((part, _)) = sums.next_if(|(_, (of, _))| Arc::ptr_eq(of, run)) {
                whole.join(&part).map_err(|flaw| flawed(self.snapshot, run, flaw))?;
            }
            if let Some(&flaw) = whole.flaws(run).first() {
                return Err(flawed(self.snapshot, run, flaw));
            }
        }

        Ok(())
    }

    /// Checks key pages from `start` on, with their overflow pages; returns their sums.
    fn check_keys(&self, stored: &StoredFilter<'_>, start: u32) -> Result<Sums> {
        let run = stored.run;
        let file = run.file()?;
        let meta = run.meta();
        let filter = stored.get(file.as_ref())?;

        let end = meta.key_pages.min(start + PART_KEY_PAGES);
        debug_assert!(start < end, "a part has a page");
        let mut sums = Sums::new(meta.purpose, meta.identity, meta.salt, meta.prefix_bytes);
        Pages::part(run, file.as_ref(), start..end).walk(&mut |step| match step {
            Step::Damage(what) => Err(Error::corrupt(run.path(), what)),
            Step::Entry(entry_at) => {
                if let Some(rule) = misled(run, &filter, &entry_at) {
                    return Err(flawed(self.snapshot, run, Flaw { page: entry_at.page, rule }));
                }
                sums.add(&entry_at);
                Ok(())
            }
        })?;

        // The filter goes with the last part, so that few filters are in memory at once.
        stored.end_part();
        Ok(sums)
    }
}

/// Unit of work of one thread: key pages or blob pages, from a given page on.
#[derive(Debug, Clone, Copy)]
enum CheckPart<'a> {
    Keys(u32, &'a StoredFilter<'a>),
    Blobs(u32),
}

/// The filter of a run as its file has it, for as long as parts of the run are to be checked.
#[derive(Debug)]
struct StoredFilter<'a> {
    run: &'a Arc<Run>,
    /// The filter, once it has been read, and the parts of key pages that are left.
    state: Mutex<(Option<Arc<Filter>>, u32)>,
}

impl<'a> StoredFilter<'a> {
    fn new(run: &'a Arc<Run>) -> Self {
        let parts = run.meta().key_pages.div_ceil(PART_KEY_PAGES);
        Self { run, state: Mutex::new((None, parts)) }
    }

    /// The filter. The first who asks reads it with all else of the run but its data pages, also of
    /// a run that was open already: that has been read some time ago.
    fn get(&self, file: &dyn DiskFile) -> Result<Arc<Filter>> {
        let mut state = lock(&self.state);
        if let Some(filter) = &state.0 {
            return Ok(Arc::clone(filter));
        }
        let (_, filter, _) = read_sections(self.run.path(), file)?;
        Ok(Arc::clone(state.0.insert(Arc::new(filter))))
    }

    /// Drops the filter with the last part of the run.
    fn end_part(&self) {
        let mut state = lock(&self.state);
        debug_assert!(state.1 > 0, "each part ends once");
        state.1 -= 1;
        debug_assert!(state.1 <= self.run.meta().key_pages.div_ceil(PART_KEY_PAGES));
        if state.1 == 0 {
            state.0 = None;
        }
    }
}

/// Checks blob pages from `start` on.
fn check_blobs(run: &Run, start: u32) -> Result<()> {
    let file = run.blobs()?;
    if start == 0 {
        check_blobs_len(&run.blobs_path(), file.as_ref(), run.meta())?;
    }
    let end = (run.meta().blob_pages() as u32).min(start.saturating_add(PART_BLOB_PAGES));
    debug_assert!(start < end, "a part has a page");
    let mut pages = Pages::new(file.as_ref(), run.meta().identity, end);
    for page in start..end {
        let checked = pages.blobs(page)?.map(drop);
        checked.map_err(|what| Error::corrupt(&run.blobs_path(), what))?;
    }
    Ok(())
}

/// Checks the length of the file of a run's blobs.
pub(crate) fn check_blobs_len(path: &Path, file: &dyn DiskFile, meta: &RunMeta) -> Result<()> {
    let expected = meta.blob_pages() * PAGE_SIZE as u64;
    let found = file.len()?;
    if found != expected {
        let what = Corrupt::rule("length of the blobs", expected, found);
        return Err(Error::corrupt(path, what));
    }
    Ok(())
}

/// A flaw of a run, as damage of the snapshot that needs it.
pub(crate) fn flawed(snapshot: &str, run: &Run, flaw: Flaw) -> Error {
    let name = snapshot.to_owned();
    let path = run.path().to_owned();
    Error::SnapshotCorrupted { name, path, reason: flaw.to_string() }
}

/// Sums over the entries of a run.
pub(crate) struct Sums {
    pub(crate) meta: RunMeta,
    pub(crate) lower: Vec<u8>,
    pub(crate) upper: Vec<u8>,
    /// Where the first blob begins, if there is one.
    blobs_start: Option<u64>,
    /// Whether each blob begins where the one before it ends, or behind it on a page of its own.
    blobs_follow: bool,
}

/// Whether a blob may begin at `start` if the one before it ends at `end`.
fn follows(end: u64, start: u64) -> bool {
    start == end || start > end && start.is_multiple_of(PAYLOAD_SIZE as u64)
}

impl Sums {
    /// Sums over no entry yet, of a run whose filter holds prefixes of so many bytes.
    pub(crate) fn new(purpose: Purpose, identity: u64, salt: u64, prefix_bytes: u8) -> Self {
        let meta = RunMeta { prefix_bytes, ..RunMeta::new(purpose, identity, salt) };
        let lower = Vec::new();
        let upper = Vec::new();
        Self { meta, lower, upper, blobs_start: None, blobs_follow: true }
    }

    pub(crate) fn add(&mut self, entry_at: &WalkedEntry<'_>) {
        let WalkedEntry { entry, page, pages, is_compressed, .. } = entry_at;
        // The first key is the smallest, the last one the largest.
        if self.meta.entries == 0 {
            self.lower.extend_from_slice(entry.key);
        }

        if let Some(prefix) = self.prefix_of(entry.key)
            && self.prefix_of(&self.upper) != Some(prefix)
        {
            self.meta.prefixes += 1;
        }
        self.upper.clear();
        self.upper.extend_from_slice(entry.key);
        self.meta.entries += 1;
        self.meta.deletes += u64::from(entry.kind == Kind::Delete);
        self.meta.key_bytes += entry.key.len() as u64;
        self.meta.value_bytes += entry.value.len() as u64;

        if entry.kind == Kind::InsertBlob {
            let BlobSpan { offset, len } = entry.blob;
            // The first blob may begin anywhere: a part of a run begins in the middle of the blobs.
            self.blobs_follow &=
                self.blobs_start.is_none() || follows(self.meta.blob_bytes, offset);
            self.blobs_start.get_or_insert(offset);
            self.meta.blob_bytes = offset.saturating_add(u64::from(len));
        }

        // An entry behind all earlier pages begins a key page.
        if self.meta.data_pages < page + pages {
            self.meta.data_pages = page + pages;
            self.meta.key_pages += 1;
            self.meta.compressed_pages += u32::from(*is_compressed);
        }
    }

    /// The prefix that the filter holds for a key.
    fn prefix_of<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        let bytes = usize::from(self.meta.prefix_bytes);
        key.get(..bytes).filter(|prefix| !prefix.is_empty())
    }

    /// The plan of a run of the same entries. Filter and index are laid out by what the entries
    /// are, not by what a footer says of them; prefixes are as long as they were.
    pub(crate) fn plan(&self, salt: u64, build: &RunBuild) -> RunPlan {
        let RunBuild { filter, index, compression, .. } = *build;
        let has_ribbon = matches!(filter, Some(FilterAllocation::Ribbon(_)));
        let prefix_bytes = if has_ribbon { 0 } else { self.meta.prefix_bytes };
        RunPlan {
            purpose: self.meta.purpose,
            salt,
            access: Access::Buffered,
            lower: self.lower.clone(),
            upper: self.upper.clone(),
            entries_max: self.meta.entries,
            prefix_bytes,
            members_max: self.meta.filter_members(prefix_bytes),
            entries_between: self.meta.entries,
            pages_between: self.meta.key_pages_uncompressed(),
            filter,
            index,
            compression,
        }
    }

    /// Whether a footer says the same.
    pub(crate) fn are_those_of(&self, footer: &RunMeta) -> bool {
        self.meta.has_entries_of(footer)
    }

    /// Adds what the entries that follow say.
    fn join(&mut self, next: &Self) -> std::result::Result<(), Flaw> {
        // Each part has checked its own order, so only the seam is left.
        if next.lower <= self.upper {
            return Err(Flaw { page: self.meta.data_pages, rule: "keys rise" });
        }

        let has_one_at_seam = self
            .prefix_of(&self.upper)
            .is_some_and(|prefix| self.prefix_of(&next.lower) == Some(prefix));
        self.meta.prefixes += next.meta.prefixes - u64::from(has_one_at_seam);

        self.upper.clone_from(&next.upper);
        self.meta.entries += next.meta.entries;
        self.meta.deletes += next.meta.deletes;
        self.meta.key_bytes += next.meta.key_bytes;
        self.meta.value_bytes += next.meta.value_bytes;

        if let Some(start) = next.blobs_start {
            let is_first = self.blobs_start.is_none();
            let follows = is_first || follows(self.meta.blob_bytes, start);
            self.blobs_follow &= next.blobs_follow && follows;
            self.blobs_start.get_or_insert(start);
            // The sum of blobs is a place in their file, so the later part knows it.
            self.meta.blob_bytes = next.meta.blob_bytes;
        }

        self.meta.key_pages += next.meta.key_pages;
        self.meta.compressed_pages += next.meta.compressed_pages;
        self.meta.data_pages = next.meta.data_pages;
        Ok(())
    }

    /// Returns the values of footer and index section that differ from the entries.
    pub(crate) fn flaws(&self, run: &Run) -> Vec<Flaw> {
        let meta = run.meta();
        let mut flaws = Vec::new();
        if !self.are_those_of(meta) {
            let rule = "the footer's sums are not those of the entries";
            flaws.push(Flaw { page: (meta.pages() - 1) as u32, rule });
        } else if self.meta.prefixes != meta.prefixes {
            let rule = "the footer's prefixes are not those of the entries";
            flaws.push(Flaw { page: (meta.pages() - 1) as u32, rule });
        }

        // Blobs stand in the order of their keys, from the start of their file.
        if !self.blobs_follow || self.blobs_start.is_some_and(|start| start > 0) {
            let rule = "the blobs do not follow each other in the order of their keys";
            flaws.push(Flaw { page: 0, rule });
        }

        if (run.min_key(), run.max_key()) != (self.lower.as_slice(), self.upper.as_slice()) {
            let rule = "the index section's key range is not that of the entries";
            flaws.push(Flaw { page: meta.data_pages + meta.filter_pages, rule });
        }

        flaws
    }
}

/// In what way a filter of the run, or its index, would lead a lookup of an entry astray.
pub(crate) fn misled(
    run: &Run,
    filter: &Filter,
    entry_at: &WalkedEntry<'_>,
) -> Option<&'static str> {
    let meta = run.meta();
    if run.entry_pages(entry_at.ordinal) != (entry_at.page, entry_at.pages) {
        return Some("the index section misplaces a page");
    }
    // The hash is computed only if the run has a filter.
    let hash = || key_hash(meta.salt, entry_at.entry.key);
    if meta.purpose == Purpose::Level && !filter.contains(hash(), entry_at.entry.key) {
        return Some("the filter lacks a key");
    }
    let prefix = entry_at.entry.key.get(..meta.prefix_bytes.into());
    let lacks = |prefix: &[u8]| !filter.contains(prefix_hash(meta.salt, prefix), prefix);
    if meta.prefix_bytes > 0 && prefix.is_some_and(lacks) {
        return Some("the filter lacks a prefix");
    }
    (!leads_to(run, entry_at.entry.key, entry_at.page))
        .then_some("the index does not lead to a key")
}

/// Whether a lookup of `key` comes to `page`.
fn leads_to(run: &Run, key: &[u8], page: u32) -> bool {
    let mut location = run.locate(key);
    while let Some(found) = location {
        // Candidates only go down, so a page below the wanted one ends the search.
        if found.page <= page {
            return found.page == page;
        }
        location = run.locate_before(found, key);
    }
    false
}

/// An entry on the walk through a run, and its place.
pub(crate) struct WalkedEntry<'a> {
    pub(crate) entry: EntryRef<'a>,
    /// The key page's ordinal; not to be relied on after damage.
    pub(crate) ordinal: u32,
    /// First page, and how many pages the entry takes.
    pub(crate) page: u32,
    pub(crate) pages: u32,
    /// Whether its page is compressed.
    pub(crate) is_compressed: bool,
}

/// A step of the walk through a run.
pub(crate) enum Step<'a> {
    Entry(WalkedEntry<'a>),
    /// A page that cannot be read, or an entry out of order. The way goes on after it.
    Damage(Corrupt),
}

/// The data pages of a file.
pub(crate) struct Pages<'a> {
    file: &'a dyn DiskFile,
    identity: u64,
    /// Where they begin: a key page, and its ordinal among the key pages.
    start: (u32, u32),
    /// Where they end.
    end: u32,
    chunk: AlignedBuf,
    /// The pages in `chunk`.
    loaded: Range<u32>,
    tap: Option<Tap<'a>>,
    /// Whether a page that cannot be read is damage, and not the end.
    goes_on: bool,
    /// Pages that could not be read, in the order of the reads.
    unreadable: Vec<u32>,
}

/// Given each chunk of pages as it is read, with the number of its first page.
type Tap<'a> = &'a mut dyn FnMut(u32, &[u8]) -> Result<()>;

impl<'a> Pages<'a> {
    /// All data pages of a file, which end before page `end`.
    pub(crate) fn new(file: &'a dyn DiskFile, identity: u64, end: u32) -> Self {
        let chunk = AlignedBuf::zeroed(CHUNK_PAGES as usize * PAGE_SIZE);
        Self {
            file,
            identity,
            start: (0, 0),
            end,
            chunk,
            loaded: 0..0,
            tap: None,
            goes_on: false,
            unreadable: Vec::new(),
        }
    }

    /// Makes the walk go on after pages that cannot be read, which count as damaged.
    pub(crate) fn going_on(self) -> Self {
        Self { goes_on: true, ..self }
    }

    /// Passes the bytes of each page to `tap`, once and in order, up to the first damage, and
    /// before the page is checked.
    pub(crate) fn tapped(self, tap: Tap<'a>) -> Self {
        Self { tap: Some(tap), ..self }
    }

    /// The data pages of the key pages with these ordinals; `file` is that of the run.
    fn part(run: &Run, file: &'a dyn DiskFile, ordinals: Range<u32>) -> Self {
        // A part begins with a key page, whatever overflow pages stand before it.
        let start = (run.entry_pages(ordinals.start).0, ordinals.start);
        let end = if ordinals.end < run.meta().key_pages {
            run.entry_pages(ordinals.end).0
        } else {
            run.meta().data_pages
        };
        Self { start, ..Self::new(file, run.meta().identity, end) }
    }

    /// The bytes of a page before the end.
    pub(crate) fn load(&mut self, page: u32) -> Result<&[u8]> {
        debug_assert!(page < self.end, "only data pages are loaded");
        if !self.loaded.contains(&page) {
            let count = CHUNK_PAGES.min(self.end - page);

            // A failed read leaves the chunk in an unknown state.
            self.loaded = 0..0;
            let chunk = &mut self.chunk[..count as usize * PAGE_SIZE];

            match self.file.read_at(chunk, page_offset(page)) {
                Err(error) if self.goes_on && error.is_unreadable() => {
                    self.load_one_by_one(page, count)?;
                }
                read => read?,
            }

            let chunk = &self.chunk[..count as usize * PAGE_SIZE];
            self.loaded = page..page + count;
            if let Some(tap) = &mut self.tap {
                tap(page, chunk)?;
            }
        }

        let at = (page - self.loaded.start) as usize * PAGE_SIZE;
        Ok(&self.chunk[at..at + PAGE_SIZE])
    }

    /// Fills the chunk with this many pages, and with zeros for those that cannot be read.
    fn load_one_by_one(&mut self, first: u32, count: u32) -> Result<()> {
        // One unreadable sector must not hide the other pages of the chunk.
        for (page, bytes) in (first..first + count).zip(self.chunk.chunks_exact_mut(PAGE_SIZE)) {
            match self.file.read_at(bytes, page_offset(page)) {
                Err(error) if error.is_unreadable() => {
                    bytes.fill(0);
                    self.unreadable.push(page);
                }
                read => read?,
            }
        }
        Ok(())
    }

    /// Damage, as the reason that is behind it.
    fn reason(&self, what: Corrupt) -> Corrupt {
        if self.unreadable.contains(&what.page) {
            return Corrupt { rule: "the page can be read", expected: 1, found: 0, ..what };
        }
        what
    }

    /// The content of a page of a file of blobs.
    pub(crate) fn blobs(&mut self, page: u32) -> Result<std::result::Result<&[u8], Corrupt>> {
        let place = self.place(page);
        self.load(page)?;
        let at = (page - self.loaded.start) as usize * PAGE_SIZE;
        let content = decode_payload(&self.chunk[at..at + PAGE_SIZE], place, PageKind::Blob, page);
        Ok(content.map_err(|what| self.reason(what)))
    }

    fn place(&self, page: u32) -> PageAddress {
        PageAddress { identity: self.identity, page }
    }

    /// Calls `visit` with each entry and each damage, in order. Ends with the first error of the
    /// disk or of `visit`.
    pub(crate) fn walk(&mut self, visit: &mut dyn FnMut(Step<'_>) -> Result<()>) -> Result<()> {
        let mut copy = vec![0; PAGE_SIZE];
        let mut image = Vec::new();
        let mut key = Vec::new();
        let mut previous = None::<Vec<u8>>;
        let (mut page, mut ordinal) = self.start;

        // Overflow pages whose entry is damaged are no damage of their own.
        let mut orphans = false;
        while page < self.end {
            copy.copy_from_slice(self.load(page)?);
            let place = self.place(page);
            // A page is checked with its own number, so a page in another place counts as damage.
            let layout = match PageLayout::open(&copy, place, &mut image) {
                Ok(layout) => layout,
                Err(what) => {
                    if !(orphans && check(&copy, place, PageKind::Overflow).is_ok()) {
                        visit(Step::Damage(self.reason(what)))?;
                        orphans = true;
                    }
                    page += 1;
                    continue;
                }
            };

            orphans = false;
            let bytes = layout.bytes(&copy, &image);
            let large = match layout.large_value_len() {
                None => None,
                Some(len) => {
                    let key_len = layout.prefix(bytes).len() + layout.suffix(bytes, 0).len();
                    // The length of the value tells how many overflow pages follow.
                    let overflow = overflow_pages(key_len, len);
                    match self.large_value(page, overflow, &layout, bytes)? {
                        Ok(value) => Some((value, overflow)),
                        Err(what) => {
                            visit(Step::Damage(self.reason(what)))?;
                            orphans = true;
                            // The entry goes on at the damaged page, so the walk goes on behind
                            // that page.
                            page = what.page.max(page) + 1;
                            continue;
                        }
                    }
                }
            };

            let pages = 1 + large.as_ref().map_or(0, |(_, overflow)| *overflow);
            for index in 0..layout.count() {
                key.clear();
                key.extend_from_slice(layout.prefix(bytes));
                key.extend_from_slice(layout.suffix(bytes, index));

                // Keys must rise across pages too.
                if previous.as_ref().is_some_and(|previous| *previous >= key) {
                    let expected = index as u64 + 1;
                    let found = index as u64;
                    visit(Step::Damage(Corrupt { page, rule: "keys rise", expected, found }))?;
                    break;
                }

                let kind = layout.kind(bytes, index);
                let (value, blob) = match &large {
                    // A large value is longer than the place of a blob.
                    Some((value, _)) => split_value(kind, value).unwrap_or_default(),
                    None => layout.value(bytes, index),
                };

                let entry = EntryRef { key: &key, kind, value, blob };
                let is_compressed = layout.is_compressed();
                visit(Step::Entry(WalkedEntry { entry, ordinal, page, pages, is_compressed }))?;
                previous.get_or_insert_default().clone_from(&key);
            }

            page += pages;
            ordinal += 1;
        }

        Ok(())
    }

    /// The value that begins in key page `page` and goes on in the `overflow` pages after it.
    fn large_value(
        &mut self,
        page: u32,
        overflow: u32,
        layout: &PageLayout,
        bytes: &[u8],
    ) -> Result<std::result::Result<Vec<u8>, Corrupt>> {
        // The length comes from the page, so the pages that it asks for may not be there.
        if self.end - page - 1 < overflow {
            return Ok(Err(Corrupt {
                page,
                rule: "overflow pages within the data pages",
                expected: u64::from(self.end - page - 1),
                found: u64::from(overflow),
            }));
        }

        let len = layout.large_value_len().unwrap_or_default();
        let mut value = layout.stored_value(bytes, 0).to_vec();
        for position in 1..=overflow {
            let place = self.place(page + position);
            let bytes = self.load(page + position)?;
            match decode_payload(bytes, place, PageKind::Overflow, position) {
                Ok(content) => {
                    value.extend_from_slice(&content[..content.len().min(len - value.len())]);
                }
                Err(what) => return Ok(Err(what)),
            }
        }

        Ok(Ok(value))
    }
}

#[cfg(test)]
mod tests {
    use terrane_io::SimDisk;

    use super::*;
    use crate::block::codec::Compression;
    use crate::block::index::IndexKind;
    use crate::filter::bloom::BloomSize;
    use crate::run::writer::RunBuilder;
    use crate::table::session::{Session, SessionOptions};

    fn sums(lower: &[u8], upper: &[u8], first_page: u32) -> Sums {
        let mut sums = Sums::new(Purpose::Level, 1, 1, 0);
        for (page, key) in (first_page..).zip([lower, upper]) {
            let entry = EntryRef::plain(key, Kind::Insert, b"value");
            let is_compressed = false;
            sums.add(&WalkedEntry { entry, ordinal: page, page, pages: 1, is_compressed });
        }
        sums
    }

    /// A run of keys whose filter holds prefixes of so many bytes.
    fn run_of(session: &Session, keys: &[&[u8]], prefix_bytes: u8) -> Run {
        let plan = RunPlan {
            purpose: Purpose::Level,
            salt: 1,
            access: Access::Buffered,
            lower: Vec::new(),
            upper: vec![u8::MAX],
            entries_max: keys.len() as u64,
            prefix_bytes,
            members_max: 2 * keys.len() as u64,
            entries_between: keys.len() as u64,
            pages_between: 1,
            filter: Some(FilterAllocation::Bloom(BloomSize::BitsPerEntry(32.0))),
            index: IndexKind::Ordinary,
            compression: Compression::None,
        };
        let mut builder = RunBuilder::new(session.inner().files(), &plan).unwrap();
        for key in keys {
            let entry = EntryRef::plain(key, Kind::Insert, b"");
            builder.push(entry, None, || key_hash(1, key)).unwrap();
        }
        builder.finish().unwrap().unwrap()
    }

    /// A filter without a prefix would hide keys from cursors, and a footer with too few prefixes
    /// would make the next filter too small.
    #[test]
    fn prefixes_that_a_filter_lacks_and_wrong_numbers_of_them_are_flaws() {
        let options = SessionOptions::with_salt(1).create_dir();
        let session = Session::open(SimDisk::new(1), "/session".as_ref(), &options).unwrap();
        let keys: [&[u8]; 6] = [b"", b"aa", b"ab", b"aba", b"b", b"bbb"];
        let run = run_of(&session, &keys, 2);
        assert_eq!((run.meta().prefix_bytes, run.meta().prefixes), (2, 3));
        let without = run_of(&session, &keys, 0).filter();
        let entries = |take: &mut dyn FnMut(&WalkedEntry<'_>)| {
            for key in keys {
                let entry = EntryRef::plain(key, Kind::Insert, b"");
                let is_compressed = false;
                take(&WalkedEntry { entry, ordinal: 0, page: 0, pages: 1, is_compressed });
            }
        };

        entries(&mut |met| {
            assert_eq!(misled(&run, &run.filter(), met), None);
            let lacks = (met.entry.key.len() >= 2).then_some("the filter lacks a prefix");
            assert_eq!(misled(&run, &without, met), lacks, "{:?}", met.entry.key);
        });

        let mut sums = Sums::new(Purpose::Level, run.meta().identity, 1, 2);
        entries(&mut |met| sums.add(met));
        assert!(sums.flaws(&run).is_empty(), "{:?}", sums.flaws(&run));
        sums.meta.prefixes += 1;
        let rules: Vec<_> = sums.flaws(&run).iter().map(|flaw| flaw.rule).collect();
        assert_eq!(rules, ["the footer's prefixes are not those of the entries"]);
    }

    /// Two parts that divide the keys of a prefix count it once.
    #[test]
    fn parts_of_a_run_have_as_many_prefixes_together_as_the_whole() {
        let keys: [&[u8]; 7] = [b"", b"a", b"aa", b"ab", b"aba", b"b", b"bbb"];
        let of = |keys: &[&[u8]], first_page: u32| {
            let mut sums = Sums::new(Purpose::Level, 1, 1, 2);
            for (page, key) in (first_page..).zip(keys) {
                let entry = EntryRef::plain(key, Kind::Insert, b"");
                let is_compressed = false;
                sums.add(&WalkedEntry { entry, ordinal: page, page, pages: 1, is_compressed });
            }
            sums
        };
        for cut in 1..keys.len() {
            let mut sums = of(&keys[..cut], 0);
            assert!(sums.join(&of(&keys[cut..], cut as u32)).is_ok());
            assert_eq!(sums.meta.prefixes, 3, "cut before {:?}", keys[cut]);
        }
    }

    #[test]
    fn blobs_that_overlap_or_leave_gaps_are_a_flaw() {
        let of = |spans: &[(u64, u32)]| {
            let mut sums = Sums::new(Purpose::Level, 1, 1, 0);
            for (page, &(offset, len)) in (0..).zip(spans) {
                let key = [page as u8];
                let blob = BlobSpan { offset, len };
                let entry = EntryRef { key: &key, kind: Kind::InsertBlob, value: b"", blob };
                let is_compressed = false;
                sums.add(&WalkedEntry { entry, ordinal: page, page, pages: 1, is_compressed });
            }
            sums
        };

        let adjoin = |sums: &Sums| sums.blobs_follow && sums.blobs_start.unwrap_or(0) == 0;
        for whole in [&[][..], &[(0, 5)], &[(0, 5), (5, 0), (5, 9)]] {
            assert!(adjoin(&of(whole)), "{whole:?}");
        }

        for broken in [&[(1, 5)][..], &[(0, 5), (4, 9)], &[(0, 5), (6, 9)], &[(0, 5), (0, 5)]] {
            assert!(!adjoin(&of(broken)), "{broken:?}");
        }

        // Parts know where they begin only when they are joined.
        let mut whole = of(&[(0, 5)]);
        let mut next = of(&[(5, 6), (11, 1)]);
        (next.lower, next.upper) = (vec![3], vec![4]);
        whole.join(&next).unwrap();
        assert!(adjoin(&whole) && whole.meta.blob_bytes == 12);
        let mut gap = of(&[(13, 6)]);
        (gap.lower, gap.upper) = (vec![5], vec![5]);
        whole.join(&gap).unwrap();

        assert!(!adjoin(&whole));
    }

    #[test]
    fn parts_join_if_their_keys_rise() {
        let mut whole = sums(b"a", b"c", 0);
        whole.join(&sums(b"d", b"e", 2)).unwrap();
        let RunMeta { entries, key_pages, data_pages, value_bytes, .. } = whole.meta;
        assert_eq!((entries, key_pages, data_pages, value_bytes), (4, 4, 4, 20));
        assert_eq!((whole.lower.as_slice(), whole.upper.as_slice()), (&b"a"[..], &b"e"[..]));
        for lower in [b"d", b"e"] {
            let flaw = whole.join(&sums(lower, b"f", 4)).unwrap_err();
            assert_eq!(flaw, Flaw { page: 4, rule: "keys rise" });
        }
    }
}
