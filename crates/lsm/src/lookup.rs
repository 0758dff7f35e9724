//! Batched lookups: write buffer, filters, index, one read for each key, all reads side by side.
//!
//! 1. Each key is hashed once; the write buffer decides what it can, without any read.
//! 2. The filters of all runs are asked about all other keys, with their memory fetched ahead.
//! 3. Each key looks into the newest run that may hold it. When the read comes back without the key (a
//!    false positive of the filter), or with an upsert, it goes on with the next older one; so a key that
//!    is present costs one read and a little, however often it was overwritten.
//! 4. Reads are handed to the queue as fast as its depth allows, over the whole batch, whatever its size;
//!    pages are searched in place as they come in.
//!
//! The runs of a union below the table ([`plan`](crate::plan)) follow its own; there a key may have to look
//! into several tables, and what was found is combined at the end.
//!
//! The result depends on nothing but the entries: not on the size of the batch, the runs, or the order in
//! which reads complete.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use terrane_io::{AlignedBuf, Direction, DiskFile, IoQueue, Request};

use crate::answer::Lookup;
use crate::blob::{Blob, BlobRef};
use crate::corrupt::Corrupt;
use crate::entry::{BlobSpan, Kind, key_hash};
use crate::error::{Error, Result};
use crate::files::lock;
use crate::filter::{Filter, Hit, probe_batch};
use crate::levels::Tree;
use crate::page::{PAGE_SIZE, PageKind, PageLayout, decode_payload, split_value};
use crate::plan::{Met, Partial, Plan};
use crate::resolve::Resolve;
use crate::run::{Location, Run, read_pages};
use crate::stats::{FilterStats, LookupTally};
use crate::write_buffer::WriteBuffer;

/// Page buffers that are kept for later lookups; 2 MiB.
const SPARE_PAGES_MAX: usize = 512;

/// What a batch of lookups needs beside the table.
#[derive(Debug)]
pub(crate) struct LookupContext<'a> {
    pub(crate) salt: u64,
    pub(crate) queue_depth: usize,
    pub(crate) resolve: &'a Resolve,
    /// Page buffers that no lookup uses at the moment.
    pub(crate) spare: &'a Mutex<Vec<AlignedBuf>>,
}

/// What the page that was read says about a key.
enum Found {
    Entry(Kind, Vec<u8>, Option<BlobRef>),
    /// Not in this page; perhaps in the one before.
    Before,
    Absent,
}

/// Searches the pages of a location for `key`.
fn search(run: &Arc<Run>, location: Location, bytes: &[u8], key: &[u8]) -> Result<Found> {
    let corrupt = |what| Error::corrupt(run.path(), what);
    let (page, overflow) = bytes.split_at(PAGE_SIZE);
    let layout = PageLayout::parse(page, run.place(location.page)).map_err(corrupt)?;
    match layout.search(page, key) {
        Err(0) => Ok(Found::Before),
        Err(_) => Ok(Found::Absent),
        Ok(index) => {
            let kind = layout.kind(page, index);
            let blob = |span: BlobSpan| {
                let blob = || Blob::Run { run: Arc::clone(run), span }.downgrade();
                (kind == Kind::InsertBlob).then(blob)
            };
            let Some(len) = layout.large_value_len() else {
                let (value, span) = layout.value(page, index);
                return Ok(Found::Entry(kind, value.to_vec(), blob(span)));
            };
            let inline = layout.stored_value(page, index);
            let mut value = Vec::with_capacity(inline.len() + overflow.len());
            value.extend_from_slice(inline);
            for (position, bytes) in (1..).zip(overflow.chunks_exact(PAGE_SIZE)) {
                let place = run.place(location.page + position);
                let content = decode_payload(bytes, place, PageKind::Overflow, position);
                let content = content.map_err(corrupt)?;
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
            Ok(Found::Entry(kind, value, blob(span)))
        }
    }
}

/// The way of one key through the runs that may hold it.
#[derive(Debug, Clone, Copy)]
struct Search {
    /// Index of the key in the batch.
    key: u32,
    /// The next candidate among the hits, and their end.
    next: u32,
    end: u32,
    /// Where it looks now.
    run: u32,
    location: Location,
}

/// What a batch met in one run of the table.
#[derive(Debug, Default, Clone, Copy)]
struct RunTally {
    found: u64,
    /// Of these, keys for which older runs do not matter.
    decided: u64,
    false_positives: u64,
}

/// What became of the questions to filters, by level. `asked` keys were looked for in the first run; each run
/// was asked about those that no newer one had decided.
fn filter_stats(plan: &Plan, met: &[RunTally], mut asked: u64) -> Vec<FilterStats> {
    let mut levels: Vec<FilterStats> = Vec::new();
    for (run, met) in met.iter().enumerate() {
        let level = plan.level_of(run);
        if levels.len() <= level {
            levels.resize_with(level + 1, FilterStats::default);
        }
        let &RunTally { found, decided, false_positives } = met;
        let denied = asked.saturating_sub(found + false_positives);
        levels[level] = levels[level].plus(FilterStats { denied, found, false_positives });
        asked -= decided;
    }
    levels
}

/// A batch under way.
struct Batch<'a, K> {
    keys: &'a [K],
    plan: &'a Plan,
    hits: Vec<Hit>,
    results: Vec<Lookup>,
    /// What was found of keys for which more may be found.
    partial: BTreeMap<u32, Partial>,
    /// For each of the table's own runs.
    met: Vec<RunTally>,
}

impl<K: AsRef<[u8]>> Batch<'_, K> {
    fn key(&self, search: &Search) -> &[u8] {
        self.keys[search.key as usize].as_ref()
    }

    /// The next place to look for a key: from candidate `next` on, and from run `run` on.
    fn next_candidate(
        &mut self,
        key: u32,
        mut next: u32,
        end: u32,
        mut run: u32,
    ) -> Option<Search> {
        let bytes = self.keys[key as usize].as_ref();
        while next < end {
            let candidate = self.hits[next as usize].filter;
            next += 1;
            run = run.max(self.plan.first_allowed(candidate, bytes));
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
        if let Some(met) = self.met.get_mut(run as usize) {
            met.false_positives += 1;
        }
    }

    fn note_found(&mut self, run: u32, is_decisive: bool) {
        if let Some(met) = self.met.get_mut(run as usize) {
            met.found += 1;
            met.decided += u64::from(is_decisive);
        }
    }

    /// Looks at the bytes that were read; returns where to look next, if anywhere.
    fn step(&mut self, search_now: Search, bytes: &[u8]) -> Result<Option<Search>> {
        let run = &self.plan.runs[search_now.run as usize];
        let key = self.key(&search_now);
        let mut next_run = search_now.run + 1;
        match search(run, search_now.location, bytes, key)? {
            Found::Entry(kind, value, blob) => {
                self.note_found(search_now.run, kind.is_decisive());
                if kind.is_decisive() {
                    next_run = self.plan.after_decision(search_now.run);
                }
                let met = Met { run: search_now.run, kind, value, blob };
                let is_last = next_run as usize >= self.plan.runs.len();
                if is_last && !self.partial.contains_key(&search_now.key) {
                    self.results[search_now.key as usize] = met.into_lookup();
                    return Ok(None);
                }
                self.partial.entry(search_now.key).or_default().met.push(met);
            }
            Found::Before => {
                if let Some(location) = run.locate_before(search_now.location, key) {
                    return Ok(Some(Search { location, ..search_now }));
                }
                self.note_false_positive(search_now.run);
            }
            Found::Absent => self.note_false_positive(search_now.run),
        }
        Ok(self.next_candidate(search_now.key, search_now.next, search_now.end, next_run))
    }
}

/// What write buffers say of a key.
enum InMemory {
    Decided(Lookup),
    /// Upserts only, combined.
    Upsert(Vec<u8>),
    Nothing,
}

fn look_in_memory<'a>(
    buffers: impl Iterator<Item = &'a WriteBuffer>,
    hash: u64,
    key: &'a [u8],
    resolve: &Resolve,
) -> Result<InMemory> {
    let mut upsert: Option<Vec<u8>> = None;
    for (chunk, entry) in buffers.flat_map(|buffer| buffer.entries(hash, key)) {
        match (&mut upsert, entry.kind) {
            (None, Kind::Upsert) => upsert = Some(entry.value.to_vec()),
            (None, kind) => {
                let blob = chunk.blob_of(&entry);
                let found = Lookup::from_entry(kind, entry.value, blob.as_ref());
                return Ok(InMemory::Decided(found));
            }
            (Some(newer), kind) => {
                if kind != Kind::Delete {
                    resolve.combine(newer, entry.value)?;
                }
                if kind.is_decisive() {
                    let value = std::mem::take(newer);
                    return Ok(InMemory::Decided(Lookup::Found(value.into())));
                }
            }
        }
    }
    Ok(upsert.map_or(InMemory::Nothing, InMemory::Upsert))
}

/// Looks up all keys; results in their order, where they come from, and what it took.
///
/// # Errors
/// The first error of the disk, or damage found; [`Error::ValueTooLarge`] from combining upserts.
pub(crate) fn lookup_batch<K: AsRef<[u8]>>(
    tree: &Tree,
    context: &LookupContext<'_>,
    keys: &[K],
) -> Result<(Vec<Lookup>, Plan, LookupTally)> {
    let plan = Plan::new(tree.sources());
    let buffers: Vec<_> = std::iter::once(&tree.buffer).chain(&plan.buffers).collect();
    let (results, tally) = lookup_in(&buffers, &plan, context, keys)?;
    Ok((results, plan, tally))
}

/// The same in write buffers, newest first, and the runs of a plan; results, and what it took.
///
/// # Errors
/// As [`lookup_batch`].
pub(crate) fn lookup_in<K: AsRef<[u8]>>(
    buffers: &[&WriteBuffer],
    plan: &Plan,
    context: &LookupContext<'_>,
    keys: &[K],
) -> Result<(Vec<Lookup>, LookupTally)> {
    let mut results = Vec::with_capacity(keys.len());
    let mut hashes = Vec::with_capacity(keys.len());
    let mut partial: BTreeMap<u32, Partial> = BTreeMap::new();
    // Keys that memory does not decide.
    let mut open: Vec<u32> = Vec::with_capacity(keys.len());
    for (at, key) in (0u32..).zip(keys) {
        let key = key.as_ref();
        let hash = key_hash(context.salt, key);
        let found = match look_in_memory(buffers.iter().copied(), hash, key, context.resolve)? {
            InMemory::Decided(lookup) => Some(lookup),
            InMemory::Upsert(value) => {
                partial.entry(at).or_default().memory = Some(value);
                None
            }
            InMemory::Nothing => None,
        };
        if found.is_none() {
            hashes.push(hash);
            open.push(at);
        }
        results.push(found.unwrap_or(Lookup::NotFound));
    }
    let filters: Vec<Arc<Filter>> = plan.runs.iter().map(|run| run.filter()).collect();
    let mut hits = Vec::new();
    probe_batch(&filters.iter().map(AsRef::as_ref).collect::<Vec<_>>(), &hashes, &mut hits);
    drop(filters);
    let met = vec![RunTally::default(); plan.own_count()];
    let mut batch = Batch { keys, plan, hits, results, partial, met };
    // Hits are grouped by key, newest run first within a key.
    let mut first = 0;
    let mut ready = VecDeque::new();
    while first < batch.hits.len() {
        let key = batch.hits[first].key;
        let end = first + batch.hits[first..].iter().take_while(|hit| hit.key == key).count();
        let search = batch.next_candidate(open[key as usize], first as u32, end as u32, 0);
        ready.extend(search);
        first = end;
    }
    let reads = match ready.len() {
        0 => 0,
        1 => read_alone(&mut batch, ready.pop_front())?,
        _ => read_side_by_side(&mut batch, ready, context)?,
    };
    let Batch { mut results, partial, met, .. } = batch;
    for (key, partial) in partial {
        results[key as usize] = plan.conclude(partial, context.resolve)?;
    }
    let tally = LookupTally {
        keys: keys.len() as u64,
        found: results.iter().filter(|result| result.is_found()).count() as u64,
        memory_hits: (keys.len() - open.len()) as u64,
        reads,
        filters: filter_stats(plan, &met, open.len() as u64),
    };
    Ok((results, tally))
}

/// One key: its reads follow each other, so a queue would only add to their time.
fn read_alone<K: AsRef<[u8]>>(batch: &mut Batch<'_, K>, first: Option<Search>) -> Result<u64> {
    let mut next = first;
    let mut reads = 0;
    while let Some(search) = next {
        let file = batch.plan.runs[search.run as usize].file()?;
        let bytes = read_pages(file.as_ref(), search.location.page, search.location.pages)?;
        reads += 1;
        next = batch.step(search, &bytes)?;
    }
    Ok(reads)
}

fn read_side_by_side<K: AsRef<[u8]>>(
    batch: &mut Batch<'_, K>,
    mut ready: VecDeque<Search>,
    context: &LookupContext<'_>,
) -> Result<u64> {
    let depth = context.queue_depth;
    let mut queue = batch.plan.runs[0].handle().set().disk().queue(depth)?;
    let mut spare = std::mem::take(&mut *lock(context.spare));
    // Searches whose read is in flight, by tag; free places in `free`.
    let mut flying: Vec<Search> = Vec::with_capacity(depth);
    let mut free: Vec<u32> = Vec::with_capacity(depth);
    let mut reads = 0;
    loop {
        while queue.outstanding() < queue.depth() {
            let Some(&search) = ready.front() else { break };
            let run = &batch.plan.runs[search.run as usize];
            let file = match queue.outstanding() {
                0 => Some(run.file()?),
                _ => run.file_if_room()?,
            };
            // Without one, all files that may be open are being read: one of these reads comes first.
            let Some(file) = file else { break };
            ready.pop_front();
            push(search, file, &mut flying, &mut free, &mut spare, queue.as_mut());
            reads += 1;
        }
        let Some(done) = queue.pop() else { break };
        done.result?;
        let search = flying[done.tag as usize];
        free.push(done.tag as u32);
        if let Some(next) = batch.step(search, &done.buffer)? {
            // A key that has waited already goes first.
            ready.push_front(next);
        }
        if done.buffer.len() == PAGE_SIZE {
            spare.push(done.buffer);
        }
    }
    let mut pool = lock(context.spare);
    pool.append(&mut spare);
    pool.truncate(SPARE_PAGES_MAX);
    Ok(reads)
}

fn push(
    search: Search,
    file: Arc<dyn DiskFile>,
    flying: &mut Vec<Search>,
    free: &mut Vec<u32>,
    spare: &mut Vec<AlignedBuf>,
    queue: &mut dyn IoQueue,
) {
    let Location { page, pages, .. } = search.location;
    let buffer = match pages {
        1 => spare.pop().unwrap_or_else(|| AlignedBuf::zeroed(PAGE_SIZE)),
        _ => AlignedBuf::zeroed(pages as usize * PAGE_SIZE),
    };
    let tag = match free.pop() {
        Some(tag) => {
            flying[tag as usize] = search;
            tag
        }
        None => {
            flying.push(search);
            flying.len() as u32 - 1
        }
    };
    queue.push(Request {
        tag: u64::from(tag),
        file,
        offset: u64::from(page) * PAGE_SIZE as u64,
        buffer,
        direction: Direction::Read,
    });
}
