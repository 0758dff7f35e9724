//! Pack: all chunks of a store, read by addresses through a cache of decoded objects, and appended
//! to frame by frame.

use std::path::{Path, PathBuf};

use terrane_io::rare;
use terrane_io::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use terrane_io::sync::{Arc, OnceLock, PoisonError, RwLock};
use terrane_io::{Access, Disk, DiskFile, OpenMode};

use crate::base::address::{Address, Extent, Link, UNIT_BYTES};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::object::cached::Cached;
use crate::object::record::{Decoded, Delta, Record, VALUE};
use crate::pack::archive::{
    Catalog, NEW_SUFFIX, PartId, check_marker, missing, new_path, part_path, remove_unfinished,
    volume_dir, volumes,
};
use crate::pack::chunk::{
    CHUNK_HEAD_BYTES, CHUNK_VERSION, Chunk, ChunkHead, FIRST_UNIT, chunk_number, chunk_path,
    write_compacted,
};
use crate::pack::commit::STATE;
use crate::pack::control::{CONTROL, ControlFile, STATE_BYTES};
use crate::pack::frame::{
    FRAME_HEAD_BYTES, FrameHead, FrameKind, FrameWriter, newest_synced, parse, parse_damaged,
};
use crate::pack::handles::ChunkHandles;
use crate::pack::locations::{LOCATIONS, Locations};
use crate::pack::read_many::read_bodies;
use crate::pack::run_map::Run;
use crate::tree::node::Source;
use terrane_io::cache::Cache;

/// Largest value that the cache takes, in bytes.
const CACHED_VALUE_BYTES: usize = 64 << 10;
/// Largest node that a batch reads, in bytes, which bounds the memory of reads in flight.
const FETCHED_NODE_BYTES: u32 = 1 << 20;

/// Most deltas of one node, each based on the next one.
const DELTAS_MAX: usize = 2;
/// Upper bound of open chunks, beside those that running calls hold.
const OPEN_FILES_MAX: usize = 256;

/// Counters of the pack since it was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) cache_hits: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) frames: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) syncs: AtomicU64,
}

/// All chunks of a store. See the [module](self).
#[derive(Debug)]
pub(crate) struct Pack {
    disk: Arc<dyn Disk>,
    locations: Arc<Locations>,
    /// Identity of the store in its control record; unset before the record is read.
    store: OnceLock<u64>,
    /// Whether chunks are opened for appending.
    writable: bool,
    /// Access to chunks other than the last.
    access: Access,
    /// Whether the cache takes nodes that are read one by one. Otherwise it takes their bases only,
    /// since the head keeps the nodes.
    caches_nodes: bool,
    files: ChunkHandles,
    /// First chunk that is read through the page cache: the chunk that is appended to. `u32::MAX`
    /// if no chunk is.
    appended: AtomicU32,
    /// Parts in the volumes; `None` before the first lookup.
    catalog: RwLock<Option<Catalog>>,
    /// Number of the first chunk that is still there.
    first: AtomicU32,
    /// Number of volumes that the archive must have.
    volumes: AtomicU16,
    cache: Cache<Address, Cached>,
    pub(crate) counters: Counters,
}

/// Node read in a batch.
#[derive(Debug)]
enum Fetched {
    Record(Arc<Record>),
    Delta(Delta),
}

/// Callback for the kind of a frame, and the address and bytes of its payload.
type VisitFrame<'a> = dyn FnMut(FrameKind, Address, &[u8]) -> Result<()> + 'a;

/// Limit of following frames during recovery.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FollowLimit {
    /// Lower bound of the durable end. An incomplete frame before it is corruption.
    pub(crate) durable: Address,
    /// Whether to stop at the first corruption instead of failing.
    pub(crate) stops_at_damage: bool,
}

impl FollowLimit {
    /// Follows frames that must reach `durable`.
    pub(crate) fn to(durable: Address) -> Self {
        Self { durable, stops_at_damage: false }
    }
}

/// End of the pack, where the next frame goes.
#[derive(Debug, Clone)]
pub(crate) struct Tail {
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) end: Address,
    pub(crate) chain: u32,
}

impl Pack {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        locations: Arc<Locations>,
        writable: bool,
        cache_bytes: usize,
    ) -> Self {
        Self {
            disk,
            locations,
            store: OnceLock::new(),
            writable,
            access: Access::Buffered,
            caches_nodes: true,
            files: ChunkHandles::new(OPEN_FILES_MAX),
            appended: AtomicU32::new(u32::MAX),
            catalog: RwLock::default(),
            first: AtomicU32::new(0),
            volumes: AtomicU16::new(0),
            cache: Cache::new(cache_bytes),
            counters: Counters::default(),
        }
    }

    /// Sets the access to chunks other than the last.
    pub(crate) fn with_access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    /// Leaves nodes that are read one by one to a head.
    pub(crate) fn without_nodes(self) -> Self {
        Self { caches_nodes: false, ..self }
    }

    /// Requires every chunk and part from here on to belong to `store`.
    ///
    /// # Errors
    /// [`Corrupt`](Error::Corrupt) if the store was known to be another one.
    pub(crate) fn set_store(&self, store: u64) -> Result<()> {
        let known = *self.store.get_or_init(|| store);
        if known != store {
            let what = Corrupt::rule("identity of the store", known, store);
            return Err(Error::Corrupt { path: self.dir().join(CONTROL), address: None, what });
        }

        // A file `locations` of another store would lead to foreign volumes.
        if let Some(named) = self.locations.store().filter(|named| *named != store) {
            let what = Corrupt::rule("store of the file `locations`", store, named);
            return Err(Error::Corrupt { path: self.dir().join(LOCATIONS), address: None, what });
        }
        Ok(())
    }

    pub(crate) fn set_first(&self, first: u32) {
        self.first.store(first, Ordering::Release);
    }

    pub(crate) fn set_volumes(&self, volumes: u16) {
        self.volumes.store(volumes, Ordering::Release);
    }

    /// Directory of the store.
    pub(crate) fn dir(&self) -> &Path {
        self.locations.dir()
    }

    /// Locations of the parts of the store.
    pub(crate) fn locations(&self) -> &Arc<Locations> {
        &self.locations
    }

    /// Directory of the volumes.
    fn archive_dir(&self) -> PathBuf {
        self.locations.archive()
    }

    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Returns a chunk, and opens its file if it is closed.
    pub(crate) fn chunk(&self, number: u32) -> Result<Arc<Chunk>> {
        self.files.get((number, None), || self.open_chunk(number, self.access_of(number)))
    }

    /// Returns a chunk for a caller that reads all chunks. If the file is closed, it is opened for
    /// this caller alone, so that a sweep neither evicts open files nor keeps maps of runs in
    /// memory.
    pub(crate) fn chunk_aside(&self, number: u32) -> Result<Arc<Chunk>> {
        // An open chunk is shared; a closed one is dropped after use.
        match self.files.find((number, None)) {
            Some(chunk) => Ok(chunk),
            None => Ok(Arc::new(self.open_chunk(number, self.access_of(number))?)),
        }
    }

    /// Returns a part of a chunk in a volume, and opens its file if it is closed.
    pub(crate) fn part(&self, number: u32, part: PartId) -> Result<Arc<Chunk>> {
        self.files.get((number, Some(part)), || {
            let path = part_path(&self.archive_dir(), number, part);
            let id = (number, self.store.get().copied());
            Chunk::open(&*self.disk, &path, id, OpenMode::Read, self.access)
        })
    }

    /// Runs `get` on the catalog of the volumes. Lists the volumes first if `anew` is set, or on
    /// first use.
    fn with_catalog<R>(&self, anew: bool, get: impl FnOnce(&Catalog) -> R) -> Result<R> {
        if !anew
            && let Some(catalog) = &*self.catalog.read().unwrap_or_else(PoisonError::into_inner)
        {
            return Ok(get(catalog));
        }

        // Listed under the lock: a part that `archive` adds meanwhile must not get lost.
        let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        let listed = Catalog::list(&*self.disk, &self.archive_dir())?;
        Ok(get(catalog.insert(listed)))
    }

    /// Returns all parts in volumes, ascending.
    pub(crate) fn parts(&self) -> Result<Vec<(u32, PartId)>> {
        let mut parts: Vec<(u32, PartId)> =
            self.with_catalog(true, |catalog| catalog.all().collect())?;
        parts.sort_unstable();
        Ok(parts)
    }

    /// Returns the parts of a chunk that the writer knows.
    pub(crate) fn parts_of(&self, number: u32) -> Result<Vec<Arc<Chunk>>> {
        let parts = self.with_catalog(false, |catalog| catalog.parts(number).to_vec())?;
        parts.into_iter().map(|part| self.part(number, part)).collect()
    }

    /// Returns the part in a volume that has a record, if there is one.
    ///
    /// Cost: none without volumes; the first time that of opening the parts of the chunk.
    pub(crate) fn archived(&self, at: Address) -> Result<Option<Arc<Chunk>>> {
        // A writer knows the parts that it has archived; a reader lists the volumes again.
        for anew in [false, true] {
            if anew && self.writable {
                break;
            }
            let parts = self.with_catalog(anew, |catalog| catalog.parts(at.chunk).to_vec())?;
            for part in parts {
                let part = self.part(at.chunk, part)?;
                if part.locate(at).is_some() {
                    return Ok(Some(part));
                }
            }
        }

        Ok(None)
    }

    /// Access to a chunk. The chunk that is appended to goes through the page cache, also when its
    /// file is reopened.
    fn access_of(&self, number: u32) -> Access {
        let is_appended = number >= self.appended.load(Ordering::Acquire);
        if is_appended { Access::Buffered } else { self.access }
    }

    fn open_chunk(&self, number: u32, access: Access) -> Result<Chunk> {
        let mode = if self.writable { OpenMode::ReadWrite } else { OpenMode::Read };
        let path = chunk_path(self.dir(), number);
        let id = (number, self.store.get().copied());
        Chunk::open(&*self.disk, &path, id, mode, access)
    }

    /// Reopens the tail for appending through the page cache.
    pub(crate) fn to_append(&self, tail: Tail) -> Result<Tail> {
        self.appended.store(tail.end.chunk, Ordering::Release);
        if self.access == Access::Buffered {
            return Ok(tail);
        }

        // Appends have any length, which direct access does not take.
        let chunk = Arc::new(self.open_chunk(tail.end.chunk, Access::Buffered)?);
        self.files.put((tail.end.chunk, None), Arc::clone(&chunk));
        Ok(Tail { chunk, ..tail })
    }

    /// Returns a full chunk, whose pages are clean, to the access of the other chunks.
    fn end_appending(&self, number: u32, chunk: &Chunk) {
        if self.access == Access::Direct {
            chunk.forget();
            self.files.remove((number, None));
        }
    }

    /// Creates a chunk, and replaces a file of that name that a crash left.
    pub(crate) fn create_chunk(&self, head: ChunkHead) -> Result<Arc<Chunk>> {
        let chunk = Arc::new(Chunk::create(&*self.disk, self.dir(), head)?);
        self.appended.fetch_min(head.number, Ordering::AcqRel);
        self.files.put((head.number, None), Arc::clone(&chunk));
        Ok(chunk)
    }

    /// Reads a record from its chunk or from a volume, and calls `read` once, with its body.
    pub(crate) fn with_body<R>(
        &self,
        extent: Extent,
        mut read: impl FnMut(&[u8]) -> R,
    ) -> Result<R> {
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(u64::from(extent.bytes), Ordering::Relaxed);

        // Chunks below the first are gone, or about to be: their records are in volumes only.
        let mut is_lost = false;
        if extent.at.chunk >= self.first.load(Ordering::Acquire) {
            match self.chunk(extent.at.chunk) {
                Ok(chunk) => {
                    if let Some(read) = chunk.read(extent, &mut read)? {
                        return Ok(read);
                    }
                }
                Err(error) if !is_absent(&error) => return Err(error),
                Err(_) => is_lost = !self.was_removed(extent.at.chunk),
            }
        }

        // A reader may see a rewritten chunk whose records moved to a volume.
        let archived = self.archived(extent.at)?.map(|part| part.read(extent, &mut read));
        if let Some(read) = archived.transpose()?.flatten() {
            return Ok(read);
        }

        Err(match self.missing_volume()? {
            _ if is_lost => self.lost(extent.at.chunk),
            Some(path) => Error::VolumeMissing { path, address: extent.at },
            None => Error::Collected { address: extent.at },
        })
    }

    /// Returns whether a collection removed a missing chunk since a reader last looked.
    fn was_removed(&self, number: u32) -> bool {
        // A writer knows its own collections; a reader reads the newest record.
        let control = ControlFile::read(&*self.disk, &self.dir().join(CONTROL));
        !self.writable && control.is_ok_and(|control| control.newest().first > number)
    }

    /// Error of a chunk that must be there and is missing.
    pub(crate) fn lost(&self, number: u32) -> Error {
        let what = Corrupt::rule("a chunk that is in use is there", 1, 0);
        Error::Corrupt { path: chunk_path(self.dir(), number), address: None, what }
    }

    /// Returns the first missing volume.
    fn missing_volume(&self) -> Result<Option<PathBuf>> {
        let volumes = self.volumes.load(Ordering::Acquire);
        let volume = missing(&*self.disk, &self.archive_dir(), volumes)?;
        Ok(volume.map(|volume| volume_dir(&self.archive_dir(), volume)))
    }

    /// Error of a record whose content breaks a rule.
    pub(crate) fn corrupt(&self, at: Address, what: Corrupt) -> Error {
        Error::Corrupt { path: chunk_path(self.dir(), at.chunk), address: Some(at), what }
    }

    fn cached(&self, at: Address) -> Option<Cached> {
        let found = self.cache.get(at);
        if found.is_some() {
            self.counters.cache_hits.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    pub(crate) fn cache_record(&self, at: Address, record: Arc<Record>) {
        self.cache.insert(at, Cached::Record(record));
    }

    fn cache_value(&self, at: Address, value: &Arc<[u8]>) {
        if value.len() <= CACHED_VALUE_BYTES {
            self.cache.insert(at, Cached::Value(Arc::clone(value)));
        }
    }

    /// Puts a record that was read into the cache.
    fn keep(&self, extent: Extent, record: Record) -> Arc<Record> {
        let record = Arc::new(record);
        self.cache_record(extent.at, Arc::clone(&record));
        record
    }

    /// Reads the uncached ones of these nodes and values in one batch.
    ///
    /// Returns the nodes; `None` for missing or damaged nodes. Values too large for the cache
    /// are left out.
    fn fetch_once(&self, nodes: &[Extent], values: &[Extent]) -> Vec<Option<Fetched>> {
        let mut fetched: Vec<Option<Fetched>> = nodes.iter().map(|_| None).collect();
        let mut missing: Vec<(Option<usize>, Extent)> = Vec::new();
        for (number, extent) in nodes.iter().enumerate() {
            match self.cache.get(extent.at) {
                Some(Cached::Record(record)) => fetched[number] = Some(Fetched::Record(record)),
                Some(Cached::Value(_)) => {}
                None => missing.push((Some(number), *extent)),
            }
        }

        // Large nodes are left to the call that needs them: a batch would hold all their buffers.
        missing.retain(|(_, extent)| extent.bytes <= FETCHED_NODE_BYTES);
        let is_missing = |extent: &&Extent| {
            extent.bytes as usize <= CACHED_VALUE_BYTES && self.cache.get(extent.at).is_none()
        };
        missing.extend(values.iter().filter(is_missing).map(|extent| (None, *extent)));
        let first = self.first.load(Ordering::Acquire);
        missing.retain(|(_, extent)| extent.at.chunk >= first);

        let mut records: Vec<(Arc<Chunk>, Extent)> = Vec::with_capacity(missing.len());
        missing.retain(|(_, extent)| match self.chunk(extent.at.chunk) {
            Ok(chunk) => {
                records.push((chunk, *extent));
                true
            }
            Err(_) => false,
        });

        if records.is_empty() {
            return fetched;
        }

        debug_assert_eq!(records.len(), missing.len(), "a read for each record that is missing");
        let bytes = records.iter().map(|(_, extent)| u64::from(extent.bytes)).sum();
        self.counters.reads.fetch_add(records.len() as u64, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.counters.batches.fetch_add(1, Ordering::Relaxed);

        read_bodies(&*self.disk, &records, &mut |number, body| {
            let (node, extent) = missing[number];
            let Some(node) = node else {
                if let Some((&VALUE, bytes)) = body.split_first() {
                    self.cache_value(extent.at, &bytes.into());
                }
                return;
            };
            fetched[node] = match Record::decode(extent, body) {
                Ok(Decoded::Record(record)) => Some(Fetched::Record(self.keep(extent, record))),
                Ok(Decoded::Delta(delta)) => Some(Fetched::Delta(delta)),
                Err(_) => None,
            };
        });

        fetched
    }

    /// Reads the uncached ones of these nodes and values, and the bases of deltas: a batch for each
    /// link of the longest chain of at most `deltas` deltas.
    ///
    /// Returns the nodes; `None` for missing or damaged nodes.
    fn fetch_chains(
        &self,
        nodes: &[Extent],
        values: &[Extent],
        deltas: usize,
    ) -> Vec<Option<Arc<Record>>> {
        let fetched = self.fetch_once(nodes, values);
        debug_assert_eq!(fetched.len(), nodes.len(), "a result for each node");
        let base = |fetched: &Option<Fetched>| match fetched {
            Some(Fetched::Delta(delta)) => Some(delta.base()),
            _ => None,
        };

        // Deltas of one batch often share a base: one read for each.
        let mut bases: Vec<Extent> = fetched.iter().filter_map(base).collect();
        bases.sort_unstable_by_key(|extent| extent.at);
        bases.dedup_by_key(|extent| extent.at);
        let records = match deltas.checked_sub(1) {
            Some(deltas) if !bases.is_empty() => self.fetch_chains(&bases, &[], deltas),
            _ => vec![None; bases.len()],
        };
        debug_assert_eq!(records.len(), bases.len(), "a result for each base");

        // A node whose base failed is left to the call that needs it.
        let whole = |(fetched, extent): (Option<Fetched>, &Extent)| match fetched? {
            Fetched::Record(record) => Some(record),
            Fetched::Delta(delta) => {
                let base = bases.binary_search_by_key(&delta.base().at, |base| base.at).ok()?;
                let base = records[base].as_ref()?;
                Some(self.keep(*extent, delta.apply(base).ok()?))
            }
        };

        fetched.into_iter().zip(nodes).map(whole).collect()
    }

    /// Reads the directory node at an extent, and the base of a delta.
    pub(crate) fn record_at(&self, extent: Extent) -> Result<Arc<Record>> {
        if let Some(Cached::Record(record)) = self.cached(extent.at) {
            return Ok(record);
        }
        // A delta needs its base: two reads, or three if the base is a delta in turn.
        let record = match self.decode(extent)? {
            Decoded::Record(record) => record,
            Decoded::Delta(delta) => {
                let base = self.base_record(delta.base())?;
                delta.apply(&base).map_err(|what| self.corrupt(extent.at, what))?
            }
        };

        Ok(if self.caches_nodes { self.keep(extent, record) } else { Arc::new(record) })
    }

    /// Reads the base of a delta for a sweep: `aside` takes the record instead of the cache of the
    /// store.
    pub(crate) fn record_aside(
        &self,
        extent: Extent,
        aside: &Cache<Address, Cached>,
    ) -> Result<Arc<Record>> {
        for cache in [aside, &self.cache] {
            if let Some(Cached::Record(record)) = cache.get(extent.at) {
                return Ok(record);
            }
        }

        // The cache of the store stays as it is: the sweep reads each base once or twice.
        let record = match self.decode(extent)? {
            Decoded::Record(record) => record,
            Decoded::Delta(delta) => {
                let full = self.decode_full(delta.base())?;
                delta.apply(&full).map_err(|what| self.corrupt(extent.at, what))?
            }
        };
        let record = Arc::new(record);
        aside.insert(extent.at, Cached::Record(Arc::clone(&record)));
        Ok(record)
    }

    /// Reads the base of a delta: a full record, or a delta on one.
    fn base_record(&self, extent: Extent) -> Result<Arc<Record>> {
        if let Some(Cached::Record(record)) = self.cached(extent.at) {
            return Ok(record);
        }
        let record = match self.decode(extent)? {
            Decoded::Record(record) => record,
            Decoded::Delta(delta) => {
                let full = match self.cached(delta.base().at) {
                    Some(Cached::Record(record)) => record,
                    _ => self.keep(delta.base(), self.decode_full(delta.base())?),
                };
                delta.apply(&full).map_err(|what| self.corrupt(extent.at, what))?
            }
        };
        Ok(self.keep(extent, record))
    }

    fn decode(&self, extent: Extent) -> Result<Decoded> {
        let decoded = self.with_body(extent, |body| Record::decode(extent, body))?;
        decoded.map_err(|what| self.corrupt(extent.at, what))
    }

    fn decode_full(&self, extent: Extent) -> Result<Record> {
        match self.decode(extent)? {
            Decoded::Record(record) => Ok(record),
            Decoded::Delta(_) => {
                let what = Corrupt::rule("a chain of deltas ends with a full record", 4, 5);
                Err(self.corrupt(extent.at, what))
            }
        }
    }

    /// Begins the next chunk after `tail`, which was synced.
    ///
    /// The caller must [sync](Self::sync_new) the chunk before it appends.
    pub(crate) fn roll(&self, tail: &Tail, chunk_bytes: u64) -> Result<Tail> {
        debug_assert_eq!(tail.chunk.head.number, tail.end.chunk, "the tail lies in its chunk");
        let head = ChunkHead {
            version: CHUNK_VERSION,
            number: tail.end.chunk + 1,
            store: tail.chunk.head.store,
            before: tail.end.unit,
            chain: tail.chain,
            map: None,
        };

        // The head names the end of this chunk and chains to its last frame.
        let chunk = self.create_chunk(head)?;
        match chunk.file.allocate(chunk_bytes) {
            // On a full disk the chunk grows as it is written. Part of the allocation may have
            // succeeded: others need that room.
            Err(error) if error.is_no_space() => {
                rare::taken("a chunk grows as it is written");
                chunk.file.set_len(chunk.file.len()?)?;
            }
            allocated => allocated?,
        }

        // Readers use the page cache for the new chunk before the old one leaves it.
        self.appended.store(head.number, Ordering::Release);
        self.end_appending(tail.end.chunk, &tail.chunk);
        Ok(Tail { chunk, end: Address { chunk: head.number, unit: FIRST_UNIT }, chain: tail.chain })
    }

    /// Makes a chunk and its name durable.
    pub(crate) fn sync_new(&self, chunk: &Chunk) -> terrane_io::Result<()> {
        // First the content, then the name: a name without content would be damage.
        chunk.file.sync()?;
        self.disk.sync_dir(self.dir())
    }

    /// Appends a frame. Returns the tail behind it, and the buffer of the frame.
    ///
    /// The frame is durable after a sync of the chunk. The pack is durable up to `synced`.
    ///
    /// Cost: one write.
    pub(crate) fn append(
        &self,
        tail: &Tail,
        frame: FrameWriter,
        kind: FrameKind,
        synced: Address,
    ) -> Result<(Tail, Vec<u8>)> {
        assert_eq!(frame.start(), tail.end, "a frame is appended where it was begun");
        assert!(synced <= tail.end, "the durable part ends before the frame");
        debug_assert_eq!(tail.chunk.head.number, tail.end.chunk, "the tail lies in its chunk");
        let (bytes, chain) = frame.finish(kind, tail.chain, synced);
        debug_assert!(bytes.len() >= FRAME_HEAD_BYTES, "a frame has a head");
        tail.chunk.file.write_at(&bytes, tail.end.offset())?;

        self.counters.frames.fetch_add(1, Ordering::Relaxed);
        self.counters.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let end = tail.end.plus(bytes.len());
        debug_assert!(tail.end < end, "a frame moves the tail on");
        Ok((Tail { chunk: Arc::clone(&tail.chunk), end, chain }, bytes))
    }

    /// Calls `visit` with each complete frame from `start` on: its kind, and the address and bytes
    /// of its payload. Returns the tail behind the last one.
    ///
    /// An incomplete frame before `limit.durable`, or before the durable end that a later frame
    /// records, is corruption. Behind both, it is a torn write.
    ///
    /// Cost: one read of what is left of each chunk.
    ///
    /// # Errors
    /// [`Corrupt`](Error::Corrupt) if the frames do not reach that end,
    /// [`ForeignChunk`](Error::ForeignChunk), [`Disk`](Error::Disk).
    pub(crate) fn follow(
        &self,
        start: Address,
        chain: u32,
        limit: FollowLimit,
        visit: &mut VisitFrame<'_>,
    ) -> Result<Tail> {
        let chunk = self.chunk(start.chunk).map_err(|error| match error {
            error if is_absent(&error) => self.lost(start.chunk),
            error => error,
        })?;

        if chunk.runs.is_some() {
            let what = Corrupt::rule("a chunk with the end of the pack is as it was written", 1, 2);
            return Err(self.corrupt(start, what));
        }

        // Also where damage only ends the pack: the pack cannot end behind its bytes.
        let len = chunk.file.len()?;
        if len < start.offset() {
            let what = Corrupt::rule("length of a chunk", start.offset(), len);
            return Err(self.corrupt(start, what));
        }

        let mut tail = Tail { chunk, end: start, chain };
        loop {
            match self.follow_chunk(&mut tail, limit, visit) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) if limit.stops_at_damage => return Ok(tail),
                Err(error) => return Err(error),
            }
        }

        // The frames end before the durable end: name the missing chunk, or the damaged frame.
        debug_assert!(start <= tail.end, "the walk over frames never goes back");

        let durable = limit.durable;
        if tail.end < durable && !limit.stops_at_damage {
            let lost = durable.chunk > tail.end.chunk
                && self.disk.kind(&chunk_path(self.dir(), tail.end.chunk + 1))?.is_none();
            if lost {
                return Err(self.lost(tail.end.chunk + 1));
            }
            return Err(self.corrupt(tail.end, frame_damaged(tail.end, durable.offset())));
        }

        Ok(tail)
    }

    /// Follows frames to the end of one chunk, and enters the next chunk if it continues this one;
    /// returns whether it does.
    fn follow_chunk(
        &self,
        tail: &mut Tail,
        limit: FollowLimit,
        visit: &mut VisitFrame<'_>,
    ) -> Result<bool> {
        self.follow_frames(tail, limit.durable, visit)?;
        let next = tail.end.chunk + 1;
        if self.disk.kind(&chunk_path(self.dir(), next))?.is_none() {
            return Ok(false);
        }
        let Some(chunk) = self.next_chunk(next)? else { return Ok(false) };
        let head = chunk.head;

        if head.before > tail.end.unit {
            // The writer may have appended since the chunk was read; it stops before it begins the
            // next one.
            let before = Address { chunk: tail.end.chunk, unit: head.before };
            self.follow_frames(tail, before, visit)?;
        }

        // The next chunk continues this one: both its address and its chain agree.
        if (head.before, head.chain) == (tail.end.unit, tail.chain) {
            tail.chunk = chunk;
            tail.end = Address { chunk: next, unit: FIRST_UNIT };
            return Ok(true);
        }

        // The next chunk records a longer chunk, or has frames: bytes here were durable and are
        // lost.
        if head.before >= tail.end.unit || chunk.runs.is_some() || Self::has_frames(&chunk)? {
            let what = frame_damaged(tail.end, u64::from(head.before) * UNIT_BYTES);
            return Err(self.corrupt(tail.end, what));
        }

        // The writer began the chunk when a write had failed, and appended nothing to it.
        self.files.remove((next, None));
        Ok(false)
    }

    /// Returns whether a chunk has any frame with an intact head.
    fn has_frames(chunk: &Chunk) -> Result<bool> {
        let start = Address { chunk: chunk.head.number, unit: FIRST_UNIT };
        let (bytes, unreadable) = read_rest(&*chunk.file, start.offset())?;
        Ok(unreadable.is_some() || newest_synced(start, &bytes).is_some())
    }

    /// Returns the next chunk; `None` if its creation was interrupted: it then has no intact head,
    /// and nothing behind the head.
    fn next_chunk(&self, number: u32) -> Result<Option<Arc<Chunk>>> {
        let error = match self.chunk(number) {
            Ok(chunk) => return Ok(Some(chunk)),
            Err(error @ (Error::Corrupt { .. } | Error::NotAContextStore { .. })) => error,
            Err(error) => return Err(error),
        };
        let path = chunk_path(self.dir(), number);
        let file = self.disk.open(&path, OpenMode::Read, Access::Buffered)?;
        // The writer appends frames only after the head is durable.
        let start = Address { chunk: number, unit: FIRST_UNIT };
        let (bytes, unreadable) = read_rest(&*file, start.offset())?;
        let is_begun = unreadable.is_some() || newest_synced(start, &bytes).is_some();
        if is_begun { Err(error) } else { Ok(None) }
    }

    /// Follows frames in one chunk, which was durable up to `durable`. Damaged objects of durable
    /// frames are left to the readers of the objects.
    fn follow_frames(
        &self,
        tail: &mut Tail,
        durable: Address,
        visit: &mut VisitFrame<'_>,
    ) -> Result<()> {
        // The next chunk records the end of this one, so the search for later frames is needed in
        // the last chunk only.
        let durable = Some(durable).filter(|durable| durable.chunk == tail.end.chunk);
        let mut stopped_at = None;
        loop {
            let offset = tail.end.offset();
            let len = tail.chunk.file.len()?;
            if len < offset {
                let what = Corrupt::rule("length of a chunk", offset, len);
                return Err(self.corrupt(tail.end, what));
            }

            let (bytes, unreadable) = read_rest(&*tail.chunk.file, offset)?;

            let mut rest = bytes.as_slice();
            while let Some(head) = parse(tail.end, rest, tail.chain) {
                rest = pass(tail, &head, rest, visit)?;
            }

            if rest.is_empty() {
                return Ok(());
            }

            // Second look at the same frame: decide between corruption and a torn write.
            if stopped_at == Some(tail.end) {
                let synced = newest_synced(tail.end, rest).max(durable);
                let Some(synced) = synced.filter(|synced| *synced > tail.end) else {
                    // Unreadable bytes may have been durable, and must not be truncated.
                    return unreadable.map_or(Ok(()), Err);
                };
                let damaged = parse_damaged(tail.end, rest, tail.chain)
                    .filter(|head| tail.end.plus(FRAME_HEAD_BYTES + head.bytes) <= synced)
                    .ok_or_else(|| self.corrupt(tail.end, frame_damaged(tail.end, len)))?;
                pass(tail, &damaged, rest, visit)?;
            }

            // The frame may have been written during the read, or the read may have failed:
            // truncate only after a second look.
            stopped_at = Some(tail.end);
        }
    }

    /// Truncates the pack behind the tail: an incomplete frame, and a chunk that does not follow.
    /// Returns the number of removed bytes.
    pub(crate) fn cut(&self, tail: &Tail) -> Result<u64> {
        let mut cut = 0;
        let len = tail.chunk.file.len()?;
        if len > tail.end.offset() {
            tail.chunk.file.set_len(tail.end.offset())?;
            cut += len - tail.end.offset();
        }
        let path = chunk_path(self.dir(), tail.end.chunk + 1);
        if self.disk.kind(&path)?.is_some() {
            self.disk.remove(&path)?;
            cut += CHUNK_HEAD_BYTES as u64;
        }
        Ok(cut)
    }

    /// Rewrites the bytes of the last chunk behind `durable` unchanged.
    ///
    /// If a sync failed in an earlier process, the page cache may show bytes that the disk lost.
    /// The next fsync would find no dirty page, and would vouch for them.
    ///
    /// Cost: reads and writes the frames behind the last mark, as a rule none.
    pub(crate) fn write_again(tail: &Tail, durable: Address) -> Result<()> {
        const STEP_BYTES: u64 = 1 << 20;

        let end = tail.end.offset();
        let mut from = if durable.chunk == tail.end.chunk { durable.offset() } else { 0 };
        let mut buffer = Vec::new();
        while from < end {
            buffer.resize((end - from).min(STEP_BYTES) as usize, 0);
            debug_assert!(!buffer.is_empty(), "each step goes on");
            tail.chunk.file.read_at(&mut buffer, from)?;
            tail.chunk.file.write_at(&buffer, from)?;
            from += buffer.len() as u64;
        }
        Ok(())
    }

    /// Returns the first present chunk from `first` on, or `known`: a later control record, now
    /// lost, may have let a collection remove the chunks below.
    ///
    /// A chunk missing from there on is corruption.
    pub(crate) fn first_present(&self, first: u32, known: u32) -> Result<u32> {
        for number in first..known {
            if self.disk.kind(&chunk_path(self.dir(), number))?.is_some() {
                return Ok(number);
            }
        }
        Ok(first.max(known))
    }

    /// Returns whether the copy of the control record that ends at `tail` is intact. If not, the
    /// chunk may have been shifted.
    pub(crate) fn has_state_before(tail: &Tail) -> bool {
        let Some(unit) = tail.end.unit.checked_sub(STATE_BYTES.div_ceil(UNIT_BYTES as u32)) else {
            return false;
        };
        let extent = Extent { at: Address { unit, ..tail.end }, bytes: STATE_BYTES };
        let is_state = |body: &[u8]| body.first() == Some(&STATE);
        matches!(tail.chunk.read(extent, is_state), Ok(Some(true)))
    }

    /// Removes the leftovers of an interrupted collection: chunks before `first`, and incomplete
    /// copies, also in volumes.
    pub(crate) fn remove_strays(&self, first: u32) -> Result<()> {
        for entry in self.disk.list(self.dir())? {
            // Only names that the store writes are removed: a user may keep files beside them.
            let unfinished = entry.name.strip_suffix(NEW_SUFFIX);
            let is_copy = unfinished.is_some_and(|name| {
                name == CONTROL || name == LOCATIONS || chunk_number(name).is_some()
            });
            if is_copy || chunk_number(&entry.name).is_some_and(|number| number < first) {
                self.disk.remove(&self.dir().join(&entry.name))?;
            }
        }
        remove_unfinished(&*self.disk, &self.archive_dir())
    }

    /// Replaces a chunk by a copy with only `runs`, ascending runs of `source`. Readers of the old
    /// file keep it open.
    ///
    /// Cost: reads and writes these runs; `pace` is called with the bytes of each piece.
    pub(crate) fn compact(
        &self,
        source: &Chunk,
        runs: &[Run],
        pace: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let number = source.head.number;
        let path = chunk_path(self.dir(), number);
        self.write_whole(&path, self.dir(), source, runs, pace)?;

        // Readers of the old file keep it; new lookups get the copy.
        let chunk = self.open_chunk(number, self.access)?;
        if self.access == Access::Direct {
            chunk.forget();
        }
        self.files.replace((number, None), Arc::new(chunk));
        Ok(())
    }

    /// Lists the volumes again, and refuses a missing volume.
    ///
    /// Cost: one read, and one listing for each volume.
    pub(crate) fn look_into(&self, volume: u16, store: u64) -> Result<()> {
        // A volume that is away must not be taken for an empty one.
        check_marker(&*self.disk, &self.archive_dir(), volume, store)?;
        self.with_catalog(true, |_| ())
    }

    /// Makes the names of all parts durable: a killed process may have left unsynced names.
    pub(crate) fn sync_volumes(&self) -> Result<()> {
        for volume in volumes(&*self.disk, &self.archive_dir())? {
            self.disk.sync_dir(&volume_dir(&self.archive_dir(), volume))?;
        }
        Ok(())
    }

    /// Copies runs of a chunk, ascending runs of `source`, to a volume as a new durable part.
    /// Returns the bytes of its file. No file is replaced.
    ///
    /// Cost: reads and writes these runs; `pace` is called with the bytes of each piece.
    pub(crate) fn archive(
        &self,
        source: &Chunk,
        runs: &[Run],
        volume: u16,
        pace: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<u64> {
        let number = source.head.number;
        let dir = volume_dir(&self.archive_dir(), volume);
        if runs.is_empty() {
            return Ok(0);
        }

        // The disk may have been unmounted since the last part.
        check_marker(&*self.disk, &self.archive_dir(), volume, source.head.store)?;
        let part = self.with_catalog(false, |catalog| catalog.next_part(number, volume))?;

        let path = part_path(&self.archive_dir(), number, part);
        if self.disk.kind(&path)?.is_some() {
            return Err(Error::PartExists { path });
        }

        if let Err(error) = self.write_whole(&path, &dir, source, runs, pace) {
            // No later call may take for archived what may not be durable.
            self.disk.remove(&path).ok();
            return Err(error);
        }

        // The part is durable: from here on the chunk may lose the records.
        let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        catalog.get_or_insert_default().add(number, part);
        drop(catalog);
        Ok(self.part(number, part)?.file.len()?)
    }

    /// Writes runs of a chunk to a file in `dir`. The file is complete and durable once it has its
    /// name.
    fn write_whole(
        &self,
        path: &Path,
        dir: &Path,
        source: &Chunk,
        runs: &[Run],
        pace: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let copy = new_path(path);

        // A failed copy is removed, since the disk may be full.
        let written = write_compacted(&*self.disk, &copy, source, runs, pace);
        if let Err(error) = written {
            self.disk.remove(&copy).ok();
            return Err(error);
        }
        self.disk.rename(&copy, path)?;
        Ok(self.disk.sync_dir(dir)?)
    }

    /// Removes the chunks `from..first`, which the control record declares gone.
    pub(crate) fn remove_before(&self, from: u32, first: u32) -> Result<()> {
        assert!(from <= first, "the first chunk never moves back");
        self.set_first(first);
        for number in from..first {
            self.files.remove((number, None));
            let path = chunk_path(self.dir(), number);
            if self.disk.kind(&path)?.is_some() {
                self.disk.remove(&path)?;
            }
        }
        Ok(self.disk.sync_dir(self.dir())?)
    }

    /// Drops the cache and all open files, after other files replaced chunks.
    pub(crate) fn reopen(&self) {
        self.cache.clear();
        self.files.clear();
        *self.catalog.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Returns whether an error says that a file is missing.
fn is_absent(error: &Error) -> bool {
    matches!(error, Error::Disk(terrane_io::Error::Io { source, .. })
        if source.kind() == std::io::ErrorKind::NotFound)
}

/// Bytes of one read after a larger read has failed.
const PIECE_BYTES: usize = 4 << 10;

/// Reads a file from an offset to its end. Unreadable pieces are zeros; the error of the first one
/// is returned too.
fn read_rest(file: &dyn DiskFile, offset: u64) -> Result<(Vec<u8>, Option<Error>)> {
    let len = file.len()?;
    let mut bytes = vec![0; len.saturating_sub(offset) as usize];
    if file.read_at(&mut bytes, offset).is_ok() {
        return Ok((bytes, None));
    }
    let mut unreadable = None;

    for (number, piece) in bytes.chunks_mut(PIECE_BYTES).enumerate() {
        if let Err(error) = file.read_at(piece, offset + (number * PIECE_BYTES) as u64) {
            piece.fill(0);
            unreadable = unreadable.or(Some(error.into()));
        }
    }

    Ok((bytes, unreadable))
}

/// Visits the frame at the beginning of `bytes`, and moves the tail behind it. Returns the rest of
/// the bytes.
fn pass<'a>(
    tail: &mut Tail,
    head: &FrameHead,
    bytes: &'a [u8],
    visit: &mut VisitFrame<'_>,
) -> Result<&'a [u8]> {
    let (frame, rest) = bytes.split_at(FRAME_HEAD_BYTES + head.bytes);
    visit(head.kind, tail.end.plus(FRAME_HEAD_BYTES), &frame[FRAME_HEAD_BYTES..])?;
    tail.end = tail.end.plus(frame.len());
    tail.chain = head.crc;
    Ok(rest)
}

/// Violation of a frame at `at` that was once durable; it or a later frame reached to `end`.
fn frame_damaged(at: Address, end: u64) -> Corrupt {
    Corrupt::rule("a frame that was synced is whole", end, at.offset())
}

impl Source for Pack {
    fn record(&self, link: &Link) -> Result<Arc<Record>> {
        self.record_at(link.extent)
    }

    fn value(&self, link: &Link) -> Result<Arc<[u8]>> {
        let extent = link.extent;
        if let Some(Cached::Value(value)) = self.cached(extent.at) {
            return Ok(value);
        }

        // Values share the cache with nodes, but large ones are left out.
        let value: Arc<[u8]> = self
            .with_body(extent, |body| match body.split_first() {
                Some((&VALUE, bytes)) => Ok(bytes.into()),
                other => {
                    let found = other.map_or(0, |(&kind, _)| u64::from(kind));
                    Err(Corrupt::rule("kind of a value record", u64::from(VALUE), found))
                }
            })?
            .map_err(|what| self.corrupt(extent.at, what))?;
        self.cache_value(extent.at, &value);

        Ok(value)
    }

    fn damaged(&self, at: Address, what: Corrupt) -> Error {
        self.corrupt(at, what)
    }

    fn fetch(&self, nodes: &[Extent], values: &[Extent]) -> Vec<Option<Arc<Record>>> {
        self.fetch_chains(nodes, values, DELTAS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrane_io::MemoryDisk;

    /// The chunk that is written to, whose file was closed because many others were opened since,
    /// is opened again as it was: past the page cache, what was just appended would not be there.
    #[test]
    fn the_chunk_that_is_written_to_is_read_through_the_page_cache_whenever_it_is_opened() {
        let pack = Pack::new(MemoryDisk::new(), Locations::inside(Path::new("")), true, 0)
            .with_access(Access::Direct);
        let version = CHUNK_VERSION;
        let head = ChunkHead { version, number: 0, store: 1, before: 0, chain: 0, map: None };
        let chunk = pack.create_chunk(head).unwrap();

        let mut tail = Tail { chunk, end: Address { chunk: 0, unit: FIRST_UNIT }, chain: 0 };
        let last = OPEN_FILES_MAX as u32 + 10;
        for _ in 0..last {
            tail = pack.roll(&tail, 1 << 10).unwrap();
        }
        let access = |number| pack.chunk(number).unwrap().file.access();

        for _ in 0..2 {
            for number in 0..last {
                assert_eq!(access(number), Access::Direct, "chunk {number}");
            }
        }

        assert_eq!(access(last), Access::Buffered);
        drop(tail);

        // A reopened store behaves the same.
        let pack = Pack::new(Arc::clone(&pack.disk), Locations::inside(Path::new("")), true, 0);
        let pack = pack.with_access(Access::Direct);
        pack.set_store(1).unwrap();
        let end = Address { chunk: last, unit: FIRST_UNIT };
        let tail = Tail { chunk: pack.chunk(last).unwrap(), end, chain: 0 };
        let tail = pack.to_append(tail).unwrap();

        for number in (0..last).chain(0..last) {
            pack.chunk(number).unwrap();
        }
        assert_eq!(pack.chunk(last).unwrap().file.access(), Access::Buffered);

        assert_eq!(tail.chunk.file.access(), Access::Buffered);
    }
}
