//! commonware's QMDB: a log of operations, a Merkle mountain belt over the log with a bitmap of the
//! operations that are current, and an index of all keys in memory, which an open rebuilds from the
//! log.
//!
//! The variant is `current::unordered::variable`: its root proves the present value of a key, but
//! not that a key is absent. Settings are those of the project's own harness of a validator's
//! block (`qmdb/benches/constantinople.rs`), but for two. The page cache has a quarter of the
//! memory, since the index needs the rest. Blobs are small enough for pruning, which the crate
//! leaves to its user. A block takes the harness's way: it stages its reads, merkleizes the changes
//! on them, applies them, and commits. The crate is asynchronous, so a thread of its own serves the
//! workload's calls.

use std::collections::HashMap;
use std::num::{NonZeroU16, NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use commonware_cryptography::sha256::{Digest, Sha256};
use commonware_parallel::Rayon;
use commonware_runtime::buffer::paged::{CacheRef, page_size};
use commonware_runtime::tokio::{Config as RuntimeConfig, Context, Runner};
use commonware_runtime::{BLOB_PAGE_SIZE, Runner as _, Strategizer as _, Supervisor as _};
use commonware_storage::journal::contiguous::variable::Config as LogConfig;
use commonware_storage::merkle::{full, mmb};
use commonware_storage::qmdb::any::batch::Slot;
use commonware_storage::qmdb::any::unordered::variable::Update;
use commonware_storage::qmdb::current::VariableConfig;
use commonware_storage::qmdb::current::batch;
use commonware_storage::qmdb::current::unordered::variable;
use commonware_storage::qmdb::floor::Proportional;
use commonware_storage::translator::EightCap;

use crate::engine::{About, Batch, Engine, Error, IoMode, Result, Root, Terms, of};

const NAME: &str = "QMDB";
const SCHEME: &str = "qmdb-current-mmb-sha256";

/// Bytes of a chunk of the bitmap.
const CHUNK_BYTES: usize = 32;

/// Bytes of a value at most.
const VALUE_BYTES_MAX: usize = 256;

/// Commits between two prunes of the log.
const PRUNE_EVERY: u64 = 64;

const PAGE_BYTES: NonZeroU16 = page_size(BLOB_PAGE_SIZE);
const OPERATIONS_PER_BLOB: NonZeroU64 = NonZeroU64::new(1 << 18).expect("not zero");
const BUFFER_BYTES: NonZeroUsize = NonZeroUsize::new(2 << 20).expect("not zero");
const INIT_CACHE: NonZeroUsize = NonZeroUsize::new(1 << 18).expect("not zero");

type Family = mmb::Family;
type Db = variable::Db<Family, Context, Digest, Vec<u8>, Sha256, EightCap, CHUNK_BYTES, Rayon>;
type Staged = batch::Staged<Family, Sha256, Update<Digest, Vec<u8>>, CHUNK_BYTES, Rayon>;
type Changes = Vec<(Digest, Option<Vec<u8>>)>;
type Reply<T> = Sender<std::result::Result<T, String>>;

/// A call of the workload.
enum Request {
    Get(Vec<Digest>, Reply<Vec<Option<Vec<u8>>>>),
    Commit(Changes, Reply<Root>),
    Root(Reply<Root>),
}

struct Qmdb {
    /// None once it is closed.
    requests: Mutex<Option<Sender<Request>>>,
    thread: Mutex<Option<JoinHandle<std::result::Result<(), String>>>>,
    pages: NonZeroUsize,
    threads: NonZeroUsize,
}

/// Opens the database.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let pages = terms.memory / 4 / u64::from(BLOB_PAGE_SIZE);
    let pages = NonZeroUsize::new(pages as usize).unwrap_or(NonZeroUsize::MIN);
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let runtime = RuntimeConfig::new()
        .with_storage_directory(dir.join("qmdb"))
        .with_worker_threads(threads.get());

    let (requests, received) = channel();
    let thread = std::thread::spawn(move || {
        Runner::new(runtime).start(|context| async move {
            let config = config(&context, pages, threads);
            let db = Db::init(context.child("qmdb"), config, None).await.map_err(text)?;
            serve(db, &received).await
        })
    });
    let engine = Qmdb {
        requests: Mutex::new(Some(requests)),
        thread: Mutex::new(Some(thread)),
        pages,
        threads,
    };
    // The first answer comes when the database is open.
    engine.root()?;
    Ok(Box::new(engine))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Codec of operations: nothing for the key, the length of a value.
type Codec = ((), (commonware_codec::RangeCfg<usize>, ()));

fn config(
    context: &Context,
    pages: NonZeroUsize,
    threads: NonZeroUsize,
) -> VariableConfig<EightCap, Codec, Rayon> {
    let page_cache = CacheRef::new(PAGE_BYTES, pages);
    VariableConfig {
        merkle_config: full::Config {
            journal_partition: "merkle-journal".to_owned(),
            metadata_partition: "merkle-metadata".to_owned(),
            items_per_blob: OPERATIONS_PER_BLOB,
            write_buffer: BUFFER_BYTES,
            replay_buffer: BUFFER_BYTES,
            strategy: context.strategy(threads),
            page_cache: page_cache.clone(),
        },
        journal_config: LogConfig {
            partition: "log".to_owned(),
            items_per_section: OPERATIONS_PER_BLOB,
            compression: None,
            codec_config: ((), ((0..=VALUE_BYTES_MAX).into(), ())),
            page_cache,
            write_buffer: BUFFER_BYTES,
            replay_buffer: BUFFER_BYTES,
        },
        grafted_metadata_partition: "grafted-metadata".to_owned(),
        translator: EightCap,
        init_cache: Some(INIT_CACHE),
        init_buffer: BUFFER_BYTES,
        init_concurrency: (),
    }
}

/// Answers requests until their sender is gone, then syncs. An error ends it, since the database
/// goes with it.
async fn serve(mut db: Db, requests: &Receiver<Request>) -> std::result::Result<(), String> {
    let mut read = None;
    let mut commits = 0;
    // Nothing else runs on this thread, so it may block.
    while let Ok(request) = requests.recv() {
        match request {
            Request::Get(keys, reply) => {
                let borrowed: Vec<&Digest> = keys.iter().collect();
                let staged = db.new_batch().stage(&borrowed, &db).await;
                let (values, staged) = staged.map_err(|error| fail(&reply, &error))?;
                read = Some((keys, staged));
                let _ = reply.send(Ok(values));
            }
            Request::Commit(changes, reply) => {
                let committed = commit(db, read.take(), changes).await;
                db = committed.map_err(|error| fail(&reply, &error))?;
                commits += 1;
                if commits % PRUNE_EVERY == 0 {
                    let boundary = db.sync_boundary();
                    db = db.prune(boundary).await.map_err(|error| fail(&reply, &error))?;
                }
                let _ = reply.send(Ok(root_of(&db)));
            }
            Request::Root(reply) => {
                let _ = reply.send(Ok(root_of(&db)));
            }
        }
    }
    db.sync().await.map(drop).map_err(text)
}

/// Tells an error to the caller, and returns it.
fn fail<T>(reply: &Reply<T>, error: &impl std::fmt::Display) -> String {
    let _ = reply.send(Err(error.to_string()));
    error.to_string()
}

fn root_of(db: &Db) -> Root {
    Root::new(SCHEME, db.root().as_ref())
}

/// Applies changes, those of keys that were read in place, and makes them durable.
async fn commit(
    db: Db,
    read: Option<(Vec<Digest>, Staged)>,
    changes: Changes,
) -> std::result::Result<Db, commonware_storage::qmdb::Error<Family>> {
    let mut policy = Proportional;
    let merkleized = if let Some((keys, staged)) = read {
        let places: HashMap<&Digest, usize> =
            keys.iter().enumerate().map(|(place, key)| (key, place)).collect();
        let mut slots = vec![Slot::Keep; keys.len()];
        let mut unread = Vec::new();
        for (key, value) in changes {
            match places.get(&key) {
                Some(&place) => slots[place] = value.map_or(Slot::Delete, Slot::Put),
                None => unread.push((key, value)),
            }
        }
        staged.merkleize(slots, unread, None, &db, &mut policy).await?
    } else {
        let mut batch = db.new_batch();
        for (key, value) in changes {
            batch = batch.write(key, value);
        }
        batch.merkleize(&db, None, &mut policy).await?
    };
    db.apply_batch(merkleized).await?.commit().await
}

fn digest(key: &[u8]) -> Result<Digest> {
    key.try_into().map(Digest).map_err(|_| Error::Cannot("its keys have 32 bytes"))
}

impl Qmdb {
    /// Sends a request and waits for its answer.
    fn call<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T> {
        let (reply, answer) = channel();
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(requests) = requests.as_ref() {
            // A thread that has ended drops the reply, which the next line sees.
            let _ = requests.send(request(reply));
        }
        match answer.recv() {
            Ok(answer) => answer.map_err(of(NAME)),
            Err(_) => Err(of(NAME)(self.ended())),
        }
    }

    /// Why the thread has ended.
    fn ended(&self) -> String {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Ok(Err(error))) => error,
            Some(Err(_)) => "its thread panicked".to_owned(),
            Some(Ok(Ok(()))) | None => "it is closed".to_owned(),
        }
    }
}

impl Engine for Qmdb {
    fn about(&self) -> About {
        About::new(
            "2026.10.0",
            IoMode::Direct,
            [
                ("variant", "current::unordered::variable".to_owned()),
                ("translator", "EightCap".to_owned()),
                ("page_cache_pages", self.pages.to_string()),
                ("items_per_blob", OPERATIONS_PER_BLOB.to_string()),
                ("prune_every_commits", PRUNE_EVERY.to_string()),
                ("threads", self.threads.to_string()),
                ("floor_policy", "Proportional".to_owned()),
                ("scheme", SCHEME.to_owned()),
            ],
        )
    }

    fn load(&self, batch: &Batch) -> Result<()> {
        self.commit(batch).map(drop)
    }

    fn settle(&self) -> Result<()> {
        // Each commit is durable, and nothing is merged later.
        Ok(())
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        found: &mut dyn FnMut(usize, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let keys = keys.iter().map(|key| digest(key)).collect::<Result<Vec<_>>>()?;
        let values = self.call(|reply| Request::Get(keys, reply))?;
        for (position, value) in values.iter().enumerate() {
            found(position, value.as_deref())?;
        }
        Ok(())
    }

    fn commit(&self, batch: &Batch) -> Result<Root> {
        let change =
            |(key, value): (&[u8], Option<&[u8]>)| Ok((digest(key)?, value.map(<[u8]>::to_vec)));
        let changes = batch.iter().map(change).collect::<Result<Changes>>()?;
        self.call(|reply| Request::Commit(changes, reply))
    }

    fn root(&self) -> Result<Root> {
        self.call(Request::Root)
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        match thread.map(JoinHandle::join) {
            Some(Ok(Err(error))) => Err(of(NAME)(error)),
            Some(Err(_)) => Err(of(NAME)("its thread panicked")),
            Some(Ok(Ok(()))) | None => Ok(()),
        }
    }
}
