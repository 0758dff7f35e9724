//! Named cursors of change feeds: a [`Feed`] is a feed that the store remembers.
//!
//! The consumer takes items and says up to which commit it is done, durably on its own side first.
//! The store keeps the WAL from there on, also while nobody runs, up to the cursor's limit. After a
//! crash the consumer is told again what it had not acknowledged: each commit at least once, and
//! exactly once for a consumer that stores the number of the commit with what it makes of it.

use std::path::Path;
use std::time::Duration;

use terrane_io::Disk;

use crate::error::{Error, Result};
use crate::manifest::feed_cursor::{self as cursor, CursorFile, CursorPlace};
use crate::store::feed::{Changes, FeedItem, FeedOptions, FeedSource};
use crate::store::store::Store;
use crate::trace::event;

/// A change feed with a name and a durable place. One consumer has it open at a time.
///
/// ```
/// use terrane_lsm::{FeedOptions, Store, StoreOptions, TableConfig};
///
/// # let folder = tempfile::tempdir()?;
/// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
/// let table = store.create_table("accounts", &TableConfig::default())?;
/// let mut feed = store.create_feed("indexer", None, &FeedOptions::default())?;
/// table.insert(b"alice", b"100")?.wait()?;
/// while let Some(item) = feed.poll()? {
///     // index it, durably; then:
///     feed.acknowledge(feed.position())?;
/// #   drop(item);
/// }
/// drop(feed);
/// let feed = store.feed("indexer")?;
/// assert_eq!(feed.acknowledged(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Feed {
    changes: Changes,
    cursor: CursorFile,
    name: String,
}

/// A cursor in a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct FeedInfo {
    /// Its name.
    pub name: String,
    /// The last commit that its consumer is done with.
    pub acknowledged: u64,
    /// Bytes of the WAL that it may hold.
    pub held_bytes_max: u64,
}

impl Feed {
    pub(crate) fn create(
        source: FeedSource,
        name: &str,
        from_commit: Option<u64>,
        options: &FeedOptions,
    ) -> Result<Self> {
        let mut changes = match from_commit {
            Some(from) => Changes::new(source, from.saturating_sub(1), options)?,
            None => Changes::at_end(&source, options)?,
        };
        // What the feed keeps as such stays until the cursor does it.
        let commit = changes.position();
        let segment = changes.segment_for(commit);
        let bytes_max = options.held_bytes_max;
        let place = CursorPlace { sequence: 1, commit, segment, bytes_max };
        let inner = changes.source().inner();
        event!(DEBUG, "feed.create", inner.dir(), name, commit);
        let cursor = CursorFile::create(inner.disk(), inner.dir(), name, place)?;
        Ok(Self { changes, cursor, name: name.to_owned() })
    }

    pub(crate) fn open(source: FeedSource, name: &str, options: &FeedOptions) -> Result<Self> {
        let inner = source.inner();
        let cursor = CursorFile::open(inner.disk(), inner.dir(), name)?;
        let changes = Changes::new(source, cursor.place().commit, options)?;
        Ok(Self { changes, cursor, name: name.to_owned() })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last commit that was told in full.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.changes.position()
    }

    /// The last commit that was acknowledged.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.cursor.place().commit
    }

    /// The next thing that happened: as [`Changes::poll`].
    ///
    /// # Errors
    /// The errors of [`Changes::poll`].
    pub fn poll(&mut self) -> Result<Option<FeedItem>> {
        self.changes.poll()
    }

    /// The same, waiting: as [`Changes::wait`].
    ///
    /// # Errors
    /// The errors of [`Changes::poll`].
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<FeedItem>> {
        self.changes.wait(timeout)
    }

    pub(crate) fn given_sequence(&self) -> u64 {
        self.changes.given_sequence()
    }

    pub(crate) fn goes_back_to(&self, number: u64) -> bool {
        self.changes.goes_back_to(number)
    }

    pub(crate) fn go_to(&mut self, commit: u64) -> Result<()> {
        self.changes.go_to(commit)
    }

    /// Says that the consumer is done with everything up to a commit, durably: it is never told
    /// again, and the store may let go of it. An earlier commit than the last one changes nothing.
    ///
    /// Cost: one write and one fsync of a file of 1 KiB.
    ///
    /// # Errors
    /// [`Error::FeedAhead`] for a commit that was not told in full; [`Error::Disk`], and
    /// [`Error::Poisoned`] after an earlier failure: open the feed again then.
    pub fn acknowledge(&mut self, commit: u64) -> Result<()> {
        let position = self.position();
        if commit > position {
            return Err(Error::FeedAhead { commit, position });
        }
        if commit <= self.acknowledged() {
            return Ok(());
        }
        let segment = self.changes.segment_for(commit);
        self.cursor.advance(commit, segment)
    }
}

/// The cursors of the store in `dir`.
pub(crate) fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<FeedInfo>> {
    let mut infos = Vec::new();
    for name in cursor::names(disk, dir)? {
        match cursor::read(disk, dir, &name) {
            // Dropped in the meantime.
            Err(Error::FeedDoesNotExist { .. }) => {}
            place => {
                let CursorPlace { commit, bytes_max, .. } = place?;
                infos.push(FeedInfo { name, acknowledged: commit, held_bytes_max: bytes_max });
            }
        }
    }
    Ok(infos)
}

impl Store {
    /// Makes a feed with a name, durably, that begins with a commit, or with what is still to come.
    /// From then on the store keeps the WAL for it.
    ///
    /// Cost: that of [`changes`](Self::changes), and a small file that is synced; without a commit
    /// to begin with, reads the WAL behind the last checkpoint.
    ///
    /// # Errors
    /// [`Error::InvalidFeedName`], [`Error::FeedExists`], and those of [`changes`](Self::changes).
    pub fn create_feed(
        &self,
        name: &str,
        from_commit: Option<u64>,
        options: &FeedOptions,
    ) -> Result<Feed> {
        self.shared.inner.check_open()?;
        Feed::create(self.feed_source(), name, from_commit, options)
    }

    /// Opens a feed behind the commit that was acknowledged last.
    ///
    /// # Errors
    /// [`Error::FeedDoesNotExist`]; [`Error::FeedLocked`] if it is open somewhere;
    /// [`Error::FeedGap`] if it went beyond its limit; those of [`changes`](Self::changes).
    pub fn feed(&self, name: &str) -> Result<Feed> {
        self.feed_with(name, &FeedOptions::default())
    }

    /// The same, read in another way. The limit of the cursor stays what it is.
    ///
    /// # Errors
    /// The errors of [`feed`](Self::feed).
    pub fn feed_with(&self, name: &str, options: &FeedOptions) -> Result<Feed> {
        self.shared.inner.check_open()?;
        Feed::open(self.feed_source(), name, options)
    }

    /// The feeds with a name, sorted. Cost: a small read for each.
    ///
    /// # Errors
    /// [`Error::StoreCorrupted`] for a damaged cursor, [`Error::Disk`], [`Error::SessionClosed`].
    pub fn feeds(&self) -> Result<Vec<FeedInfo>> {
        self.shared.inner.check_open()?;
        list(self.shared.inner.disk(), self.shared.inner.dir())
    }

    /// Removes a feed, durably, that nobody has open. The next checkpoint lets go of what the store
    /// kept for it.
    ///
    /// # Errors
    /// [`Error::FeedDoesNotExist`], [`Error::FeedLocked`], [`Error::Disk`],
    /// [`Error::SessionClosed`].
    pub fn drop_feed(&self, name: &str) -> Result<()> {
        self.shared.inner.check_writable()?;
        event!(DEBUG, "feed.drop", self.shared.inner.dir(), name);
        cursor::remove(self.shared.inner.disk(), self.shared.inner.dir(), name)
    }
}
