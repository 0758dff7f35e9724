//! NOMT: a binary Merkle trie of 32-byte key paths over a B-tree of values, both read and written
//! past the page cache by `io_uring`. Linux only.
//!
//! Settings follow the documentation of its `Options`. The hash table is sized to the data: a
//! page for each 16 entries (it stores no page of fewer than 20), at least the default of 64,000.
//! Both caches have a quarter of the memory. There is a commit worker for each core. Warm-ups are
//! off, as by default, since a block here changes its keys as soon as they are read. There is no
//! rollback log and no witness. A session spans the reads of a block and its changes. NOMT has no
//! call for many reads, so they follow one another.

use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use nomt::hasher::Blake3Hasher;
use nomt::trie::KeyPath;
use nomt::{KeyReadWrite, Nomt, Options, Session, SessionParams};

use crate::engine::{About, Batch, Engine, Error, IoMode, Result, Root, Terms, of};

const NAME: &str = "NOMT";
const SCHEME: &str = "nomt-blake3";

/// Entries for each page of the hash table.
const ENTRIES_PER_PAGE: u64 = 16;

/// Pages of the hash table at least.
const PAGES_MIN: u64 = 64_000;

struct NomtState {
    db: Nomt<Blake3Hasher>,
    /// Session of the reads since the last commit.
    session: Mutex<Option<Session<Blake3Hasher>>>,
    pages: u64,
    cache_mib: u64,
    workers: usize,
}

/// Opens the database.
pub fn open(dir: &Path, terms: &Terms) -> Result<Box<dyn Engine>> {
    let pages = (terms.entries / ENTRIES_PER_PAGE).max(PAGES_MIN);
    let cache_mib = (terms.cache_direct() / 2) >> 20;
    let workers = std::thread::available_parallelism().map_or(1, usize::from);

    let mut options = Options::new();
    options.path(dir.join("nomt"));
    options.hashtable_buckets(u32::try_from(pages).expect("at most 2^31 entries are loaded"));
    options.page_cache_size(cache_mib as usize);
    options.leaf_cache_size(cache_mib as usize);
    options.commit_concurrency(workers);
    let db = Nomt::open(options).map_err(of(NAME))?;
    Ok(Box::new(NomtState { db, session: Mutex::new(None), pages, cache_mib, workers }))
}

fn path(key: &[u8]) -> Result<KeyPath> {
    key.try_into().map_err(|_| Error::Cannot("its keys have 32 bytes"))
}

impl NomtState {
    fn session(&self) -> MutexGuard<'_, Option<Session<Blake3Hasher>>> {
        self.session.lock().expect("no thread panics with this lock")
    }

    fn begin(&self) -> Session<Blake3Hasher> {
        self.db.begin_session(SessionParams::default())
    }
}

impl Engine for NomtState {
    fn about(&self) -> About {
        About::new(
            "1.0.5",
            IoMode::Direct,
            [
                ("hashtable_buckets", self.pages.to_string()),
                ("page_cache_mib", self.cache_mib.to_string()),
                ("leaf_cache_mib", self.cache_mib.to_string()),
                ("commit_concurrency", self.workers.to_string()),
                ("warm_up", "off".to_owned()),
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
        let mut session = self.session();
        let session = session.get_or_insert_with(|| self.begin());
        for (position, key) in keys.iter().enumerate() {
            let value = session.read(path(key)?).map_err(of(NAME))?;
            found(position, value.as_deref())?;
        }
        Ok(())
    }

    fn commit(&self, batch: &Batch) -> Result<Root> {
        let session = self.session().take().unwrap_or_else(|| self.begin());
        let write = |(key, value): (&[u8], Option<&[u8]>)| {
            Ok((path(key)?, KeyReadWrite::Write(value.map(<[u8]>::to_vec))))
        };
        let mut writes = batch.iter().map(write).collect::<Result<Vec<_>>>()?;
        writes.sort_unstable_by_key(|(path, _)| *path);

        let finished = session.finish(writes).map_err(of(NAME))?;
        let root = finished.root();
        finished.commit(&self.db).map_err(of(NAME))?;
        Ok(Root::new(SCHEME, root.as_ref()))
    }

    fn root(&self) -> Result<Root> {
        Ok(Root::new(SCHEME, self.db.root().as_ref()))
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
