//! Readers: handles that read a store, also from other processes and beside its writer, and write
//! nothing.
//!
//! A reader sees the frames that were complete when it was opened or last
//! [synced](StoreReader::sync): whole commits, in order. It finds commits in the tables of the
//! pack, not in the index, so it needs neither a lease nor the right to write.

use std::path::{Path, PathBuf};

use terrane_io::Disk;
use terrane_io::sync::{Arc, Mutex, PoisonError};

use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::base::hashing::Rules;
use crate::pack::commit::Commit;
use crate::pack::control::Indexing;
use crate::pack::locations::Locations;
use crate::pack::pack::{FollowLimit, Pack, Tail};
use crate::store::context::Context;
use crate::store::inner::{StoreInner, View, follow, recover};
use crate::store::store::{Recovery, Store, check_whole, enter, read_control};
use crate::store::watch::changes;
use crate::tree::head::Head;

/// Retries of reading a store that changes meanwhile.
const RETRIES: usize = 10;

/// Store open for reading, in the process of its writer or another.
#[doc(alias = "OpenForReadOnly")]
#[derive(Debug)]
pub struct StoreReader {
    pub(crate) inner: StoreInner,
    tail: Mutex<Tail>,
    recovery: Recovery,
}

/// Reads the newest state of a store.
fn read(disk: &dyn Disk, dir: &Path, pack: &Pack) -> Result<(View, Tail, Recovery)> {
    let mut failed = None;
    let mut known = None;
    for _ in 0..RETRIES {
        let file = read_control(disk, dir)?;

        // The newest record that leads to intact frames counts.
        for (number, control) in file.whole.iter().enumerate() {
            let mut view = View::new(*control);
            view.first_known = file.newest().first;
            match recover(pack, &mut view, FollowLimit::to(file.durable())) {
                Ok(tail) => {
                    let recovery = Recovery {
                        commits: view.commits - control.commits,
                        fell_back: number > 0,
                        damaged_copies: file.damaged.len() as u64,
                        cut_bytes: tail.chunk.file.len()?.saturating_sub(tail.end.offset()),
                        ..Recovery::default()
                    };
                    return Ok((view, tail, recovery));
                }
                // The error of the newer record is the more useful one.
                Err(error) if number == 0 => failed = Some(error),
                Err(_) => {}
            }
        }

        // A collection removed files between two reads, or the files are damaged.
        if known.replace(file.newest().sequence) == Some(file.newest().sequence) {
            break;
        }

        pack.reopen();
    }

    Err(failed.unwrap_or(Error::NotFound { path: dir.to_owned() }))
}

impl Store {
    /// Opens the store in `dir` for reading, like [`StoreReader::open`]. Writes nothing, so a
    /// read-only disk suffices.
    ///
    /// # Errors
    /// Errors of [`StoreReader::open`].
    pub fn open_read_only(
        disk: Arc<dyn Disk>,
        dir: &Path,
        cache_bytes: usize,
    ) -> Result<StoreReader> {
        StoreReader::open(disk, dir, cache_bytes)
    }
}

impl StoreReader {
    /// Opens the store in `dir` for reading, with a cache of `cache_bytes`. Writes nothing and
    /// takes no lock.
    ///
    /// Cost: reads the control record and the frames behind it: less than two chunks.
    ///
    /// # Errors
    /// [`NotFound`](Error::NotFound), [`IncompleteImport`](Error::IncompleteImport),
    /// [`Corrupt`](Error::Corrupt), [`AbsentLocation`](Error::AbsentLocation) and
    /// [`ForeignLocation`](Error::ForeignLocation) of the archive, [`Disk`](Error::Disk).
    pub fn open(disk: Arc<dyn Disk>, dir: &Path, cache_bytes: usize) -> Result<Self> {
        let (dir, anchor) = enter(&*disk, dir)?;
        let dir = dir.as_path();
        check_whole(&*disk, dir)?;
        let locations = Locations::enter_to_read(&*disk, (dir, &anchor))?;
        let pack = Arc::new(Pack::new(Arc::clone(&disk), locations, false, cache_bytes));
        let (view, tail, recovery) = read(&*disk, dir, &pack)?;

        let inner = StoreInner::new(disk, pack, view.control.rules, view, Head::new(0));
        Ok(Self { inner, tail: Mutex::new(tail), recovery })
    }

    /// Makes trees hash each node and value again that they load, as
    /// [`Options::verify_reads`](crate::Options::verify_reads) does.
    #[must_use]
    pub fn verify_reads(mut self) -> Self {
        self.inner.verify_reads();
        self
    }

    /// Returns the findings of opening. Bytes behind the last frame may be a commit that a writer
    /// is appending.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Reads the commits made since; returns whether there were any.
    ///
    /// Cost: one read of the control record, and one of what was appended.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn sync(&self) -> Result<bool> {
        let StoreInner { disk, dir, pack, .. } = &self.inner;
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.inner.view().control;

        // Read before the frames: the record bounds what was durable then.
        let file = read_control(&**disk, dir)?;
        let newest = file.newest();
        let end = tail.end;
        let before = self.inner.view().branches.clone();

        let mut is_followed = false;

        // If the record is the same, follow the frames; if not, recover again, and reopen replaced
        // chunks.
        if newest.sequence == known.sequence {
            let mut view = self.inner.view().clone();
            let limit = FollowLimit::to(file.durable());
            if let Ok(followed) = follow(pack, &mut view, end, tail.chain, limit) {
                *self.inner.view_mut() = view;
                *tail = followed;
                is_followed = true;
            }
            // A restarted writer may have truncated the bytes that were just read, so a failure
            // here is not final.
        } else if newest.collection() != known.collection() {
            pack.reopen();
        }

        if !is_followed {
            let (view, new_tail, _) = read(&**disk, dir, pack)?;
            *self.inner.view_mut() = view;
            *tail = new_tail;
        }

        let is_new = tail.end != end;
        let end = tail.end;
        for change in changes(&before, &self.inner.view().branches) {
            self.inner.watches.push(end, change);
        }

        // Watches are called without a lock, so that they may read the store.
        drop(tail);
        self.inner.call_watches(end);

        Ok(is_new)
    }

    /// Hashing rules of the store.
    pub fn rules(&self) -> &Rules {
        &self.inner.env.rules
    }

    /// Set of objects that the writer's index finds.
    pub fn indexing(&self) -> Indexing {
        self.inner.view().control.indexing
    }

    /// Checks out a commit that exists at the last sync or now; `None` if it never existed, or was
    /// collected.
    ///
    /// Cost: two reads at most, beside those that find the commit: one for each chunk that was
    /// begun since it was made, once.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn checkout(&self, hash: &Hash) -> Result<Option<Context>> {
        self.sync()?;
        self.inner.checkout(hash)
    }

    /// Returns whether a commit exists, at the last sync or now.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open).
    pub fn exists(&self, hash: &Hash) -> Result<bool> {
        self.sync()?;
        Ok(self.inner.find_commit(hash)?.is_some())
    }

    /// Returns a commit that existed at the last sync.
    ///
    /// # Errors
    /// Errors of [`open`](Self::open), and [`UnknownCommit`](Error::UnknownCommit).
    pub fn commit_info(&self, hash: &Hash) -> Result<Commit> {
        self.inner.commit_of(hash)
    }

    /// Returns the commits at the last sync, newest first.
    pub fn newest(&self) -> impl Iterator<Item = Result<Commit>> + '_ {
        self.inner.newest().map(|commit| Ok(commit?.1.commit))
    }

    /// Head of a branch at the last sync.
    pub fn branch(&self, name: &[u8]) -> Option<Hash> {
        self.inner.branch(name)
    }

    /// All branches at the last sync with their heads, by name.
    pub fn branches(&self) -> Vec<(Vec<u8>, Hash)> {
        self.inner.branches()
    }

    /// Directories of the volumes of the archive at the last sync, newest last.
    pub fn volumes(&self) -> Vec<PathBuf> {
        self.inner.volumes()
    }

    /// Directory of the volumes of the archive, which may be elsewhere and may not exist yet.
    pub fn archive_dir(&self) -> PathBuf {
        self.inner.pack.locations().archive()
    }

    /// Directory of the index, which may be elsewhere.
    pub fn index_dir(&self) -> PathBuf {
        self.inner.pack.locations().index()
    }
}
