//! Batched lookups: memtable, filters, index, one read for each key, all reads side by side.
//!
//! 1. Each key is hashed once; the memtable decides what it can, without any read.
//! 2. The filters of all runs are asked about all other keys, with their memory fetched ahead. The
//!    first keys of a batch are read while the next ones are asked about, so that the device does
//!    not wait for filters.
//! 3. Each key looks into the newest run that may hold it. When the read comes back without the key
//!    (a false positive of the filter), or with an upsert, it goes on with the next older one; so a
//!    key that is present costs one read and a little, however often it was overwritten. Where the
//!    table has a cache of pages ([`page_cache`](crate::run::page_cache)), a page that is in it
//!    is no read: the key goes on at once.
//! 4. Reads are handed to the queue as fast as its depth allows, over the whole batch, whatever its
//!    size; pages are searched in place as they come in.
//!
//! The runs of a union below the table ([`plan`](crate::lookup::plan)) follow its own; there a key
//! may have to look into several tables, and what was found is combined at the end.
//!
//! The result depends on nothing but the entries: not on the size of the batch, the runs, or the
//! order in which reads complete.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;

use terrane_io::sync::Arc;
use terrane_io::{Access, AlignedBuf, Completion, Direction, DiskFile, IoQueue, Request};

use crate::block::page::{PAGE_SIZE, PageKind, PageLayout, decode_payload, split_value};
use crate::compaction::levels::Levels;
use crate::corrupt::Corrupt;
use crate::entry::entry::{BlobSpan, Kind, key_hash};
use crate::entry::merge_operator::{MergeOperator, TooLarge};
use crate::error::{Error, Result};
use crate::filter::filter::{Asked, Filter, Hit, probe_batch};
use crate::lookup::plan::{KeyProgress, Plan, RunEntry};
use crate::lookup::result::{Answers, Lookup};
use crate::lookup::spare_pages::{SHARD_PAGES_MAX, SparePages};
use crate::memtable::memtable::Memtable;
use crate::run::blob::{Blob, BlobRef};
use crate::run::page_cache::PageCache;
use crate::run::run::{Location, Run, read_pages};
use crate::stats::{FilterStats, LookupTally};

/// Keys of a batch that filters are asked about before their reads begin, at most.
const KEYS_AT_ONCE: usize = 64;

/// Keys that filters are asked about first; fewer, because the device waits for their reads.
const KEYS_AT_FIRST: usize = 16;

/// Work that can be done while reads are in flight.
pub(crate) trait Idle: Debug {
    /// Does a little, much less than the reads in flight take; returns whether there was any to do.
    fn work(&self) -> bool;
}

/// Environment of a batch of lookups: salt, merge operator, cache and spare buffers.
#[derive(Debug)]
pub(crate) struct LookupEnv<'a> {
    pub(crate) salt: u64,
    pub(crate) queue_depth: usize,
    pub(crate) operator: &'a MergeOperator,
    /// Pages in memory.
    pub(crate) cache: Option<&'a Arc<PageCache>>,
    /// Page buffers that no lookup uses at the moment.
    pub(crate) spare: &'a SparePages,
    pub(crate) idle: Option<&'a dyn Idle>,
}

/// Answer of a page about a key.
enum PageAnswer {
    Entry(Kind, Vec<u8>, Option<BlobRef>),
    /// Not in this page; perhaps in the one before.
    Before,
    Absent,
}

/// Searches the pages of a location for `key`; they have just been read. `image` is working memory
/// for a compressed page.
fn search(
    run: &Arc<Run>,
    location: Location,
    bytes: &[u8],
    key: &[u8],
    image: &mut Vec<u8>,
) -> Result<PageAnswer> {
    let layout = PageLayout::open(&bytes[..PAGE_SIZE], run.place(location.page), image);
    let layout = layout.map_err(|what| Error::corrupt(run.path(), what))?;
    search_in(layout, run, location, (bytes, image), key)
}

/// Searches a cached page, whose checksum was checked when it was read.
fn search_cached(
    run: &Arc<Run>,
    location: Location,
    page: &[u8],
    key: &[u8],
    image: &mut Vec<u8>,
) -> Result<PageAnswer> {
    let layout = PageLayout::open_checked(page, run.place(location.page), image);
    let layout = layout.map_err(|what| Error::corrupt(run.path(), what))?;
    search_in(layout, run, location, (page, image), key)
}

fn search_in(
    layout: PageLayout,
    run: &Arc<Run>,
    location: Location,
    (bytes, image): (&[u8], &[u8]),
    key: &[u8],
) -> Result<PageAnswer> {
    let corrupt = |what| Error::corrupt(run.path(), what);
    let (page, overflow) = bytes.split_at(PAGE_SIZE);
    let page = layout.bytes(page, image);
    match layout.search(page, key) {
        Err(0) => Ok(PageAnswer::Before),
        Err(_) => Ok(PageAnswer::Absent),
        Ok(index) => {
            let kind = layout.kind(page, index);
            let blob = |span: BlobSpan| {
                let blob = || Blob::Run { run: Arc::clone(run), span }.downgrade();
                (kind == Kind::InsertBlob).then(blob)
            };
            let Some(len) = layout.large_value_len() else {
                let (value, span) = layout.value(page, index);
                return Ok(PageAnswer::Entry(kind, value.to_vec(), blob(span)));
            };

            let inline = layout.stored_value(page, index);
            let mut value = Vec::with_capacity(inline.len() + overflow.len());
            value.extend_from_slice(inline);

            for (position, bytes) in (1..).zip(overflow.chunks_exact(PAGE_SIZE)) {
                let place = run.place(location.page + position);
                let content = decode_payload(bytes, place, PageKind::Overflow, position);
                let content = content.map_err(corrupt)?;
                // The last page is padded, so no more is taken than the length of the value.
                let left = len - value.len().min(len);
                value.extend_from_slice(&content[..left.min(content.len())]);
            }

            if value.len() != len {
                return Err(corrupt(Corrupt {
                    page: location.page,
                    rule: "pages of a large value",
                    expected: len as u64,
                    found: value.len() as u64,
                }));
            }

            // A large value is longer than the place of a blob.
            let (value_len, span) =
                split_value(kind, &value).map_or((len, BlobSpan::default()), |(v, s)| (v.len(), s));
            value.truncate(value_len);
            Ok(PageAnswer::Entry(kind, value, blob(span)))
        }
    }
}

/// Search of one key through the runs that may hold it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    /// Index of the key in the batch.
    key: u32,
    /// The next candidate among the hits, and their end.
    next: u32,
    end: u32,
    /// Run and location that are searched now.
    run: u32,
    location: Location,
}

/// Counts of a batch in one run of the table.
#[derive(Debug, Default, Clone, Copy)]
struct RunTally {
    found: u64,
    /// Found keys for which older runs do not matter.
    decided: u64,
    false_positives: u64,
}

impl RunTally {
    fn plus(self, other: Self) -> Self {
        Self {
            found: self.found + other.found,
            decided: self.decided + other.decided,
            false_positives: self.false_positives + other.false_positives,
        }
    }
}

/// Whether the page cache may have a location of a run: single pages, of runs that bypass the
/// system's cache.
fn is_cached(run: &Run, location: Location) -> bool {
    location.pages == 1 && run.access() == Access::Direct
}

/// Answers of the filters, by level. `asked` keys were looked for in the first column; each column
/// was asked about those that no newer one had decided.
fn filter_stats(plan: &Plan, tallies: &[RunTally], mut asked: u64) -> Vec<FilterStats> {
    let mut levels: Vec<FilterStats> = Vec::new();
    // The table's own runs come first, and have tallies.
    let runs = plan.columns().iter().map(|column| &column.runs);
    for runs in runs.take_while(|runs| runs.end as usize <= tallies.len()) {
        let level = plan.level_of(runs.start as usize);
        if levels.len() <= level {
            levels.resize_with(level + 1, FilterStats::default);
        }
        let tallies = &tallies[runs.start as usize..runs.end as usize];
        let tally = tallies.iter().copied().fold(RunTally::default(), RunTally::plus);
        let RunTally { found, decided, false_positives } = tally;
        let denied = asked.saturating_sub(found + false_positives);
        debug_assert!(decided <= found && decided <= asked);
        levels[level] = levels[level].plus(FilterStats { denied, found, false_positives });
        asked -= decided;
    }

    levels
}

/// A batch under way; its keys are with the caller, who gives them to each call.
#[derive(Debug)]
pub(crate) struct Batch<A = Vec<Lookup>> {
    plan: Arc<Plan>,
    /// Those of all runs that were asked, as long as keys are to be asked about.
    filters: Vec<Option<Arc<Filter>>>,
    /// For each key that filters are asked about at once, the run of each column.
    asked: Vec<u32>,
    /// The first key that has not been begun.
    next_key: usize,
    /// Hits of the keys begun; a key is its index in the batch.
    hits: Vec<Hit>,
    answers: A,
    /// Entries found so far of keys that need more runs.
    partial: BTreeMap<u32, KeyProgress>,
    /// For each of the table's own runs.
    tallies: Vec<RunTally>,
    /// Keys that memory did not decide.
    open: u64,
    reads: u64,
    cache: Option<Arc<PageCache>>,
    cache_hits: u64,
    /// The image of the compressed page that is searched.
    image: Vec<u8>,
}

impl<A: Answers> Batch<A> {
    /// A batch of `keys` keys, whose answers go to `answers`, which has none yet.
    fn new(plan: &Arc<Plan>, context: &LookupEnv<'_>, keys: usize, answers: A) -> Self {
        debug_assert_eq!(answers.len(), 0, "answers of one batch");
        Self {
            plan: Arc::clone(plan),
            filters: vec![None; plan.runs.len()],
            asked: Vec::new(),
            next_key: 0,
            hits: Vec::with_capacity(if plan.runs.is_empty() { 0 } else { keys }),
            answers,
            partial: BTreeMap::new(),
            tallies: vec![RunTally::default(); plan.own_count()],
            open: 0,
            reads: 0,
            cache: context.cache.cloned(),
            cache_hits: 0,
            image: Vec::new(),
        }
    }

    /// Does everything that needs no read for the next keys, and adds their first reads to `ready`.
    /// Returns false if all keys have been begun.
    ///
    /// # Errors
    /// [`Error::UpsertTooLarge`] from combining upserts.
    fn begin_next<K: AsRef<[u8]>>(
        &mut self,
        buffers: &[&Memtable],
        context: &LookupEnv<'_>,
        keys: &[K],
        ready: &mut VecDeque<Search>,
    ) -> Result<bool> {
        if self.next_key == keys.len() {
            // All keys were asked about, and a filter that is held here could not be folded in
            // place.
            self.filters = Vec::new();
            return Ok(false);
        }

        // Keys that memory does not decide.
        let mut hashes = [0; KEYS_AT_ONCE];
        let mut open = [0; KEYS_AT_ONCE];
        let mut count = 0;
        let at_once = if self.next_key == 0 { KEYS_AT_FIRST } else { KEYS_AT_ONCE };

        for (at, key) in keys.iter().enumerate().skip(self.next_key).take(at_once) {
            let key = key.as_ref();
            let hash = key_hash(context.salt, key);
            match look_in_memory(buffers, hash, key, context.operator)? {
                MemtableAnswer::Entry(kind, value, blob) => {
                    self.answers.push_entry(key, (kind, value), blob.as_ref())?;
                    continue;
                }
                MemtableAnswer::Combined(value) => {
                    self.answers.push_absent();
                    self.answers.set(at, Lookup::Found(value.into()));
                    continue;
                }
                MemtableAnswer::Upsert(value) => {
                    self.partial.entry(at as u32).or_default().memory = Some(value);
                }
                MemtableAnswer::Nothing => {}
            }

            (hashes[count], open[count]) = (hash, at as u32);
            count += 1;
            self.answers.push_absent();
        }

        debug_assert!(self.next_key < self.answers.len(), "each call begins a key");
        self.next_key = self.answers.len();
        debug_assert!(self.next_key <= keys.len(), "each key is begun once");
        self.open += count as u64;
        let mut first = self.hits.len();
        let key_at = |at: usize| keys[open[at] as usize].as_ref();
        self.ask_filters(&hashes[..count], &key_at);

        // Hits are grouped by key, newest run first within a key.
        while first < self.hits.len() {
            let asked = self.hits[first].key;
            let mut end = first;
            while self.hits.get(end).is_some_and(|hit| hit.key == asked) {
                end += 1;
            }
            debug_assert!(first < end && (asked as usize) < count);
            let key = open[asked as usize];
            let next = self.next_candidate(keys, (key, first as u32, end as u32), 0);
            ready.extend(self.pass_cached(keys, next)?);
            first = end;
        }

        Ok(true)
    }

    /// Asks the filters about keys of these hashes; adds the runs that may have them to the hits.
    fn ask_filters<'k>(&mut self, hashes: &[u64], key_at: &dyn Fn(usize) -> &'k [u8]) {
        let Self { plan, filters, asked, hits, .. } = self;
        let columns = plan.columns();
        asked.clear();
        if plan.has_slices() {
            for key in (0..hashes.len()).map(key_at) {
                asked.extend(columns.iter().map(|column| plan.run_of(column, key)));
            }
        } else {
            // The same runs for every key.
            asked.extend(columns.iter().map(|column| column.runs.start));
        }

        for &run in &*asked {
            filters[run as usize].get_or_insert_with(|| plan.runs[run as usize].filter());
        }
        let filters: Vec<&Filter> =
            asked.iter().filter_map(|&run| filters[run as usize].as_deref()).collect();
        debug_assert_eq!(filters.len(), asked.len(), "the filters of all runs were taken");

        let first = hits.len();
        let per_key = columns.len();
        probe_batch(Asked { filters: &filters, per_key }, hashes, key_at, hits);
        for hit in &mut hits[first..] {
            let row = if asked.len() == per_key { 0 } else { hit.key as usize * per_key };
            hit.filter = asked[row + hit.filter as usize];
        }
    }

    /// The next place to look for a key: from candidate `next` on, and from run `run` on.
    fn next_candidate<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        (key, mut next, end): (u32, u32, u32),
        mut run: u32,
    ) -> Option<Search> {
        let bytes = keys[key as usize].as_ref();
        while next < end {
            let candidate = self.hits[next as usize].filter;
            debug_assert!((candidate as usize) < self.plan.runs.len());
            next += 1;
            run = run.max(self.plan.first_allowed(candidate, bytes));
            // A newer entry has decided for this run.
            if candidate < run {
                continue;
            }
            if let Some(location) = self.plan.runs[candidate as usize].locate(bytes) {
                return Some(Search { key, next, end, run: candidate, location });
            }
            self.note_false_positive(candidate);
        }

        None
    }

    fn note_false_positive(&mut self, run: u32) {
        if let Some(tally) = self.tallies.get_mut(run as usize) {
            tally.false_positives += 1;
        }
    }

    fn note_found(&mut self, run: u32, is_decisive: bool) {
        if let Some(tally) = self.tallies.get_mut(run as usize) {
            tally.found += 1;
            tally.decided += u64::from(is_decisive);
        }
    }

    /// Searches the bytes that were read; returns the next place to look, if any.
    pub(crate) fn step<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        search_now: Search,
        bytes: &[u8],
    ) -> Result<Option<Search>> {
        let run = &self.plan.runs[search_now.run as usize];
        let key = keys[search_now.key as usize].as_ref();
        let found = search(run, search_now.location, bytes, key, &mut self.image)?;
        // The search has checked the page, so the cache holds whole pages only.
        if let Some(cache) = &self.cache
            && is_cached(run, search_now.location)
        {
            cache.insert(run.number(), search_now.location.page, bytes);
        }
        let next = self.follow(keys, search_now, found);
        self.pass_cached(keys, next)
    }

    /// Searches cached pages, one after the other; returns the first place that has to be read.
    fn pass_cached<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        mut next: Option<Search>,
    ) -> Result<Option<Search>> {
        while let (Some(search), Some(cache)) = (next, &self.cache) {
            let run = &self.plan.runs[search.run as usize];
            let location = search.location;
            if !is_cached(run, location) {
                break;
            }
            let key = keys[search.key as usize].as_ref();
            let image = &mut self.image;
            let look = |page: &[u8]| search_cached(run, location, page, key, image);
            let Some(found) = cache.look(run.number(), location.page, look) else { break };
            self.cache_hits += 1;
            next = self.follow(keys, search, found?);
        }

        Ok(next)
    }

    /// Records the answer of one place; returns the next place to look, if any.
    fn follow<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        search_now: Search,
        found: PageAnswer,
    ) -> Option<Search> {
        let mut next_run = search_now.run + 1;
        match found {
            PageAnswer::Entry(kind, value, blob) => {
                self.note_found(search_now.run, kind.is_decisive());
                if kind.is_decisive() {
                    next_run = self.plan.after_decision(search_now.run);
                }

                let entry = RunEntry { run: search_now.run, kind, value, blob };
                let is_last = next_run as usize >= self.plan.runs.len();

                // An entry that is too large is an error for the caller that takes the results.
                let is_error = entry.kind == Kind::TooLarge;
                if is_last && !is_error && !self.partial.contains_key(&search_now.key) {
                    let key = keys[search_now.key as usize].as_ref();
                    let answer = entry.into_lookup(key).unwrap_or(Lookup::NotFound);
                    self.answers.set(search_now.key as usize, answer);
                    return None;
                }

                self.partial.entry(search_now.key).or_default().entries.push(entry);
            }
            PageAnswer::Before => {
                let key = keys[search_now.key as usize].as_ref();
                let run = &self.plan.runs[search_now.run as usize];
                if let Some(location) = run.locate_before(search_now.location, key) {
                    return Some(Search { location, ..search_now });
                }
                self.note_false_positive(search_now.run);
            }
            PageAnswer::Absent => self.note_false_positive(search_now.run),
        }

        debug_assert!(search_now.run < next_run, "the search goes on to older runs");
        let Search { key, next, end, .. } = search_now;
        self.next_candidate(keys, (key, next, end), next_run)
    }

    /// Looks up all keys of the batch.
    fn run<K: AsRef<[u8]>>(
        &mut self,
        buffers: &[&Memtable],
        context: &LookupEnv<'_>,
        keys: &[K],
    ) -> Result<()> {
        let mut ready = VecDeque::new();
        while self.begin_next(buffers, context, keys, &mut ready)? {
            // From the second read on, reads go side by side through a queue.
            if ready.len() > 1 {
                return read_side_by_side(self, buffers, keys, ready, context);
            }
        }
        read_alone(self, keys, ready.pop_front())
    }

    /// Returns the answers in the order of the keys, the plan that they come from, and the counts.
    ///
    /// # Errors
    /// [`Error::UpsertTooLarge`] for a key whose upserts make too long a value.
    pub(crate) fn conclude<K: AsRef<[u8]>>(
        self,
        keys: &[K],
        operator: &MergeOperator,
    ) -> Result<(A, Arc<Plan>, LookupTally)> {
        let Self { plan, mut answers, partial, tallies, open, reads, cache_hits, .. } = self;
        // Left are keys of several entries: upserts, and tables of a union.
        for (key, partial) in partial {
            let at = key as usize;
            answers.set(at, plan.conclude(keys[at].as_ref(), partial, operator)?);
        }

        debug_assert_eq!(answers.len(), keys.len(), "every key was begun");
        debug_assert!(open <= answers.len() as u64);
        debug_assert_eq!(tallies.len(), plan.own_count());
        let tally = LookupTally {
            keys: answers.len() as u64,
            found: answers.found() as u64,
            memory_hits: answers.len() as u64 - open,
            reads,
            cache_hits,
            filters: filter_stats(&plan, &tallies, open),
        };

        Ok((answers, plan, tally))
    }
}

/// Answer of the memtables about a key.
enum MemtableAnswer<'a> {
    /// An entry for which older ones do not matter.
    Entry(Kind, &'a [u8], Option<Blob>),
    /// The value of upserts over an insert.
    Combined(Vec<u8>),
    /// Upserts only, combined.
    Upsert(Vec<u8>),
    Nothing,
}

fn look_in_memory<'a>(
    buffers: &[&'a Memtable],
    hash: u64,
    key: &'a [u8],
    operator: &MergeOperator,
) -> Result<MemtableAnswer<'a>> {
    let mut upsert: Option<Vec<u8>> = None;
    for (chunk, entry) in buffers.iter().flat_map(|buffer| buffer.entries(hash, key)) {
        match (&mut upsert, entry.kind) {
            (None, Kind::Upsert) => upsert = Some(entry.value.to_vec()),
            (None, kind) => {
                return Ok(MemtableAnswer::Entry(kind, entry.value, chunk.blob_of(&entry)));
            }
            (Some(newer), kind) => {
                let older = (kind, entry.value);
                // A deletion leaves the newer value as it is.
                if kind != Kind::Delete && operator.combine_stored(newer, older, false) {
                    return Err(TooLarge::error(key, newer));
                }
                if kind.is_decisive() {
                    return Ok(MemtableAnswer::Combined(std::mem::take(newer)));
                }
            }
        }
    }

    Ok(upsert.map_or(MemtableAnswer::Nothing, MemtableAnswer::Upsert))
}

/// Looks up all keys. Returns `answers`, in their order, the plan that they come from, and the
/// counts.
///
/// # Errors
/// The first error of the disk, or damage found; [`Error::UpsertTooLarge`] from combining upserts.
pub(crate) fn lookup_batch<K: AsRef<[u8]>, A: Answers>(
    tree: &Levels,
    context: &LookupEnv<'_>,
    keys: &[K],
    answers: A,
) -> Result<(A, Arc<Plan>, LookupTally)> {
    let (plan, mut batch) = batch_of(tree, context, keys.len(), answers);
    batch.run(&buffers_of(tree, &plan), context, keys)?;
    batch.conclude(keys, context.operator)
}

/// Looks up keys in memtables, newest first, and in the runs of a plan. Returns the results and the
/// counts.
///
/// # Errors
/// Those of [`lookup_batch`].
pub(crate) fn lookup_in<K: AsRef<[u8]>>(
    buffers: &[&Memtable],
    plan: &Arc<Plan>,
    context: &LookupEnv<'_>,
    keys: &[K],
) -> Result<(Vec<Lookup>, LookupTally)> {
    let mut batch = Batch::new(plan, context, keys.len(), Vec::with_capacity(keys.len()));
    batch.run(buffers, context, keys)?;
    let (results, _, tally) = batch.conclude(keys, context.operator)?;
    Ok((results, tally))
}

/// Does all of a batch that needs no read. Returns the first reads.
///
/// # Errors
/// [`Error::UpsertTooLarge`] from combining upserts.
pub(crate) fn begin_batch<K: AsRef<[u8]>>(
    tree: &Levels,
    context: &LookupEnv<'_>,
    keys: &[K],
) -> Result<(Batch, VecDeque<Search>)> {
    let answers = Vec::with_capacity(keys.len());
    let (plan, mut batch) = batch_of(tree, context, keys.len(), answers);
    let buffers = buffers_of(tree, &plan);
    let mut ready = VecDeque::new();
    while batch.begin_next(&buffers, context, keys, &mut ready)? {}
    Ok((batch, ready))
}

fn batch_of<A: Answers>(
    tree: &Levels,
    context: &LookupEnv<'_>,
    keys: usize,
    answers: A,
) -> (Arc<Plan>, Batch<A>) {
    let plan = Arc::new(Plan::new(tree.sources()));
    let batch = Batch::new(&plan, context, keys, answers);
    (plan, batch)
}

/// Memtables, newest first.
fn buffers_of<'a>(tree: &'a Levels, plan: &'a Plan) -> Vec<&'a Memtable> {
    std::iter::once(&tree.buffer).chain(&plan.buffers).collect()
}

/// One key: its reads follow each other, so a queue would only add to their time.
fn read_alone<K: AsRef<[u8]>, A: Answers>(
    batch: &mut Batch<A>,
    keys: &[K],
    first: Option<Search>,
) -> Result<()> {
    let mut next = first;
    while let Some(search) = next {
        let file = batch.plan.runs[search.run as usize].file()?;
        let bytes = read_pages(file.as_ref(), search.location.page, search.location.pages)?;
        batch.reads += 1;
        next = batch.step(keys, search, &bytes)?;
    }
    Ok(())
}

fn read_side_by_side<K: AsRef<[u8]>, A: Answers>(
    batch: &mut Batch<A>,
    buffers: &[&Memtable],
    keys: &[K],
    mut ready: VecDeque<Search>,
    context: &LookupEnv<'_>,
) -> Result<()> {
    // A read is ready, so there is a run.
    let queue = batch.plan.runs[0].handle().set().disk().queue(context.queue_depth)?;
    let mut flight = Flight::new(queue, context.spare.take());
    loop {
        let mut has_room = true;
        while has_room {
            let Some(&search) = ready.front() else {
                flight.queue.submit();
                if batch.begin_next(buffers, context, keys, &mut ready)? {
                    continue;
                }
                break;
            };
            has_room = flight.take_off(batch, search, ())?;
            if has_room {
                ready.pop_front();
            }
        }

        // The queue is as full as it gets: wait, or do other work meanwhile.
        let Some(Landed { search, buffer }) = flight.land(context.idle)? else { break };
        if let Some(next) = batch.step(keys, search, &buffer)? {
            // A key that has waited already goes first.
            ready.push_front(next);
        }

        flight.give_back(buffer);
    }

    // Buffers go back for later batches, which spares allocating them zeroed.
    context.spare.put(flight.spare);
    Ok(())
}

/// Reads in flight, each with a note of whom it is for.
pub(crate) struct Flight<N> {
    queue: Box<dyn IoQueue>,
    /// By tag; free tags in `free`.
    flying: Vec<(Search, N)>,
    free: Vec<u32>,
    spare: Vec<AlignedBuf>,
    /// One that came back while there was nothing but to look for it.
    landed: Option<Completion>,
}

/// A read that has come back.
pub(crate) struct Landed {
    pub(crate) search: Search,
    pub(crate) buffer: AlignedBuf,
}

impl<N: Copy> Flight<N> {
    pub(crate) fn new(queue: Box<dyn IoQueue>, spare: Vec<AlignedBuf>) -> Self {
        let depth = queue.depth();
        let flying = Vec::with_capacity(depth);
        let free = Vec::with_capacity(depth);
        Self { queue, flying, free, spare, landed: None }
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.outstanding() == 0
    }

    /// Begins a read, unless there is no room for one at the moment; if nothing is in flight, there
    /// is.
    ///
    /// # Errors
    /// Those of opening the file.
    pub(crate) fn take_off<A>(
        &mut self,
        batch: &mut Batch<A>,
        search: Search,
        note: N,
    ) -> Result<bool> {
        let outstanding = self.queue.outstanding();
        if outstanding >= self.queue.depth() {
            return Ok(false);
        }
        let run = &batch.plan.runs[search.run as usize];
        // The first read may open a file beyond the limit, or the batch would not go on.
        let file = if outstanding == 0 { Some(run.file()?) } else { run.file_if_room()? };
        // Without one, all files that may be open are being read: one of these reads comes first.
        let Some(file) = file else { return Ok(false) };
        self.push(search, note, file);
        batch.reads += 1;
        Ok(true)
    }

    fn push(&mut self, search: Search, note: N, file: Arc<dyn DiskFile>) {
        let Location { page, pages, .. } = search.location;
        let buffer = match pages {
            1 => self.spare.pop().unwrap_or_else(|| AlignedBuf::zeroed(PAGE_SIZE)),
            _ => AlignedBuf::zeroed(pages as usize * PAGE_SIZE),
        };

        let tag = match self.free.pop() {
            Some(tag) => {
                self.flying[tag as usize] = (search, note);
                tag
            }
            None => {
                self.flying.push((search, note));
                self.flying.len() as u32 - 1
            }
        };

        debug_assert!((tag as usize) < self.flying.len());
        self.queue.push(Request {
            tag: u64::from(tag),
            file,
            offset: u64::from(page) * PAGE_SIZE as u64,
            buffer,
            direction: Direction::Read,
        });
    }

    /// The next read that comes back, waiting for it; `None` if none is in flight. If it failed,
    /// the error comes with the note.
    pub(crate) fn land_any(&mut self) -> Option<(N, Result<Landed>)> {
        let done = self.landed.take().or_else(|| self.queue.pop())?;
        let (search, note) = self.flying[done.tag as usize];
        self.free.push(done.tag as u32);
        debug_assert!(self.free.len() <= self.flying.len(), "a read lands once");
        let buffer = done.buffer;
        debug_assert_eq!(buffer.len(), search.location.pages as usize * PAGE_SIZE);
        let landed = done.result.map(|()| Landed { search, buffer });
        Some((note, landed.map_err(Error::from)))
    }

    /// The next read that comes back; other work is done while none has.
    fn land(&mut self, idle: Option<&dyn Idle>) -> Result<Option<Landed>> {
        if let Some(idle) = idle {
            while self.landed.is_none() && !self.is_idle() {
                self.landed = self.queue.poll();
                if self.landed.is_none() && !idle.work() {
                    break;
                }
            }
        }
        self.land_any().map(|(_, landed)| landed).transpose()
    }

    /// Keeps a buffer for another read.
    pub(crate) fn give_back(&mut self, buffer: AlignedBuf) {
        if buffer.len() == PAGE_SIZE && self.spare.len() < SHARD_PAGES_MAX {
            self.spare.push(buffer);
        }
    }
}
