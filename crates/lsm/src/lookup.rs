//! Batched lookups: write buffer, filters, index, one read for each key, all reads side by side.
//!
//! 1. Each key is hashed once; the write buffer decides what it can, without any read.
//! 2. The filters of all runs are asked about all other keys, with their memory fetched ahead.
//! 3. Each key looks into the newest run that may hold it. When the read comes back without the key (a
//!    false positive of the filter), it goes on with the next older one; so a key that is present costs
//!    one read and a little, however often it was overwritten.
//! 4. Reads are handed to the queue as fast as its depth allows, over the whole batch, whatever its size;
//!    pages are searched in place as they come in.
//!
//! The result depends on nothing but the entries: not on the size of the batch, the runs, or the order in
//! which reads complete.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use terrane_io::{AlignedBuf, Direction, IoQueue, Request};

use crate::corrupt::Corrupt;
use crate::entry::{Kind, Lookup, key_hash};
use crate::error::{Error, Result};
use crate::files::lock;
use crate::filter::{Filter, Hit, probe_batch};
use crate::levels::{Sources, Tree};
use crate::page::{PAGE_SIZE, PageKind, PageLayout, decode_payload};
use crate::run::{Location, Run, read_pages};
use crate::stats::Counters;

/// Page buffers that are kept for later lookups; 2 MiB.
const SPARE_PAGES_MAX: usize = 512;

/// What a batch of lookups needs beside the table.
#[derive(Debug)]
pub(crate) struct LookupContext<'a> {
    pub(crate) salt: u64,
    pub(crate) queue_depth: usize,
    pub(crate) counters: &'a Counters,
    /// Page buffers that no lookup uses at the moment.
    pub(crate) spare: &'a Mutex<Vec<AlignedBuf>>,
}

/// What the page that was read says about a key.
enum Found {
    Entry(Lookup),
    /// Not in this page; perhaps in the one before.
    Before,
    Absent,
}

/// Searches the pages of a location for `key`.
fn search(run: &Run, location: Location, bytes: &[u8], key: &[u8]) -> Result<Found> {
    let corrupt = |what| Error::corrupt(run.path(), what);
    let (page, overflow) = bytes.split_at(PAGE_SIZE);
    let layout = PageLayout::parse(page, run.place(location.page)).map_err(corrupt)?;
    match layout.search(page, key) {
        Err(0) => Ok(Found::Before),
        Err(_) => Ok(Found::Absent),
        Ok(index) => {
            let kind = layout.kind(page, index);
            let inline = layout.value(page, index);
            let Some(len) = layout.large_value_len() else {
                return Ok(Found::Entry(Lookup::from_entry(kind, inline)));
            };
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
            Ok(Found::Entry(match kind {
                Kind::Insert => Lookup::Found(value.into()),
                Kind::Delete => Lookup::NotFound,
            }))
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

/// A batch under way.
struct Batch<'a, K> {
    keys: &'a [K],
    runs: &'a [Arc<Run>],
    hits: Vec<Hit>,
    results: Vec<Lookup>,
}

impl<K: AsRef<[u8]>> Batch<'_, K> {
    fn key(&self, search: &Search) -> &[u8] {
        self.keys[search.key as usize].as_ref()
    }

    /// The next place to look for a key from candidate `next` on.
    fn next_candidate(&self, key: u32, mut next: u32, end: u32) -> Option<Search> {
        while next < end {
            let run = self.hits[next as usize].filter;
            next += 1;
            let bytes = self.keys[key as usize].as_ref();
            if let Some(location) = self.runs[run as usize].locate(bytes) {
                return Some(Search { key, next, end, run, location });
            }
        }
        None
    }

    /// Looks at the bytes that were read; returns where to look next, if anywhere.
    fn step(&mut self, search_now: Search, bytes: &[u8]) -> Result<Option<Search>> {
        let run = &self.runs[search_now.run as usize];
        let key = self.key(&search_now);
        match search(run, search_now.location, bytes, key)? {
            Found::Entry(lookup) => {
                self.results[search_now.key as usize] = lookup;
                return Ok(None);
            }
            Found::Before => {
                if let Some(location) = run.locate_before(search_now.location, key) {
                    return Ok(Some(Search { location, ..search_now }));
                }
            }
            Found::Absent => {}
        }
        Ok(self.next_candidate(search_now.key, search_now.next, search_now.end))
    }
}

/// Looks up all keys; results in their order.
///
/// # Errors
/// The first error of the disk, or damage found.
pub(crate) fn lookup_batch<K: AsRef<[u8]>>(
    tree: &Tree,
    context: &LookupContext<'_>,
    keys: &[K],
) -> Result<Vec<Lookup>> {
    let sources = tree.sources();
    let mut results = Vec::with_capacity(keys.len());
    let mut hashes = Vec::with_capacity(keys.len());
    // Keys that memory does not decide.
    let mut open: Vec<u32> = Vec::with_capacity(keys.len());
    for (at, key) in (0u32..).zip(keys) {
        let key = key.as_ref();
        let hash = key_hash(context.salt, key);
        let entry = tree.buffer.get(hash, key);
        let entry = entry.or_else(|| sources.buffers.iter().find_map(|b| b.get(hash, key)));
        match entry {
            Some(entry) => results.push(Lookup::from_entry(entry.kind, entry.value)),
            None => {
                results.push(Lookup::NotFound);
                hashes.push(hash);
                open.push(at);
            }
        }
    }
    let Sources { runs, .. } = sources;
    let filters: Vec<Arc<Filter>> = runs.iter().map(|run| run.filter()).collect();
    let mut hits = Vec::new();
    probe_batch(&filters.iter().map(AsRef::as_ref).collect::<Vec<_>>(), &hashes, &mut hits);
    drop(filters);
    context.counters.lookups.fetch_add(keys.len() as u64, Ordering::Relaxed);

    let mut batch = Batch { keys, runs: &runs, hits, results };
    // Hits are grouped by key, newest run first within a key.
    let mut first = 0;
    let mut ready = VecDeque::new();
    while first < batch.hits.len() {
        let key = batch.hits[first].key;
        let end = first + batch.hits[first..].iter().take_while(|hit| hit.key == key).count();
        let search = batch.next_candidate(open[key as usize], first as u32, end as u32);
        ready.extend(search);
        first = end;
    }
    let reads = match ready.len() {
        0 => 0,
        1 => read_alone(&mut batch, ready.pop_front())?,
        _ => read_side_by_side(&mut batch, ready, context)?,
    };
    context.counters.lookup_reads.fetch_add(reads, Ordering::Relaxed);
    Ok(batch.results)
}

/// One key: its reads follow each other, so a queue would only add to their time.
fn read_alone<K: AsRef<[u8]>>(batch: &mut Batch<'_, K>, first: Option<Search>) -> Result<u64> {
    let mut next = first;
    let mut reads = 0;
    while let Some(search) = next {
        let file = batch.runs[search.run as usize].file();
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
    let mut queue = batch.runs[0].handle().set().disk().queue(depth)?;
    let mut spare = std::mem::take(&mut *lock(context.spare));
    // Searches whose read is in flight, by tag; free places in `free`.
    let mut flying: Vec<Search> = Vec::with_capacity(depth);
    let mut free: Vec<u32> = Vec::with_capacity(depth);
    let mut reads = 0;
    loop {
        while queue.outstanding() < queue.depth() {
            let Some(search) = ready.pop_front() else { break };
            push(batch, search, &mut flying, &mut free, &mut spare, queue.as_mut());
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

fn push<K: AsRef<[u8]>>(
    batch: &Batch<'_, K>,
    search: Search,
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
        file: Arc::clone(batch.runs[search.run as usize].file()),
        offset: u64::from(page) * PAGE_SIZE as u64,
        buffer,
        direction: Direction::Read,
    });
}
