//! Followers: a copy of a store that takes over its commits, one for one, from the change feed.
//!
//! A follower begins as a backup and then commits what the feed of its source tells, through
//! [`followed_copy`](crate::store::followed_copy). A named feed of the source keeps the WAL while
//! the follower is away.
//!
//! **Roll-backs.** The copy retains the versions that its source does, under names of their own. A
//! roll-back becomes one commit: the difference to that version. Where the copy lacks the version,
//! or the feed names a table whose entries it does not tell (an installation with a batch), or the
//! source has let go of commits, the follower takes over a whole view of its source: it compares
//! all tables with those of the view, and commits the differences.
//!
//! Invariant: a commit of the source is acknowledged to its feed only when the copy has it durably.
//!
//! *Rejected:* copying files of runs (each compaction of the source would be copied); applying the
//! WAL's segments as files (tables of both would have to flush alike); rolling the copy back (the
//! number of the source's commit would go back with it).

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrane_io::Disk;

use crate::error::{Error, Result};
use crate::run::check::Progress;
use crate::session::snapshot::SnapshotName;
use crate::store::backup::BackupPlace;
use crate::store::feed::{FeedItem, FeedTable};
use crate::store::feed_cursor::Feed;
use crate::store::followed_copy::{
    FOLLOW_TABLE, FollowOptions, FollowReport, FollowedCopy, FollowedTable, Site, Taken, refused,
    store_options,
};
use crate::store::reader::{ReaderOptions, StoreReader};
use crate::store::store::Store;
use crate::trace::event;

/// A copy of a store that follows it.
///
/// ```no_run
/// use std::time::Duration;
/// use terrane_lsm::{FollowOptions, Follower};
///
/// let options = FollowOptions::default();
/// let mut follower =
///     Follower::open_dir("/data/ledger", "/copy/ledger", &options, &mut |_, _| {})?;
/// loop {
///     follower.catch_up()?;
///     follower.wait(Duration::from_secs(1))?;
/// #   break;
/// }
/// # Ok::<(), terrane_lsm::Error>(())
/// ```
pub struct Follower {
    reader: StoreReader,
    feed: Feed,
    copy: FollowedCopy,
    /// An item that was waited for.
    waiting: Option<FeedItem>,
    /// Versions that the source had when the copy last caught up.
    versions: BTreeSet<u64>,
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("report", &self.report()).finish_non_exhaustive()
    }
}

impl Follower {
    /// Follows a store on the real disk: [`open`](Self::open).
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_dir(
        source: impl AsRef<Path>,
        copy: impl AsRef<Path>,
        options: &FollowOptions,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let disk: Arc<dyn Disk> = terrane_io::RealDisk::auto();
        Self::open((&disk, source.as_ref()), (&disk, copy.as_ref()), options, progress)
    }

    /// Opens the copy of a store that another process may write, or makes it: a backup in a
    /// directory that is missing (its parent must exist) or empty. `progress` is told of the bytes
    /// of the backup.
    ///
    /// Cost: that of opening both; the first time, of a backup and of a feed with a name in the
    /// source.
    ///
    /// # Errors
    /// [`Error::NotAFollower`] if something else is in the directory, or a copy that was changed;
    /// those of [`StoreReader::back_up`], [`StoreReader::feed`] and [`Store::open`].
    pub fn open(
        source: Site<'_>,
        copy: Site<'_>,
        options: &FollowOptions,
        progress: Progress<'_>,
    ) -> Result<Self> {
        let mut reader_options = ReaderOptions::default();
        reader_options.merge_operators.clone_from(&options.merge_operators);
        let mut reader = StoreReader::open(Arc::clone(source.0), source.1, &reader_options)?;
        if reader.table(FOLLOW_TABLE).is_ok() {
            return Err(refused(source.1, format!("it has a table `{FOLLOW_TABLE}` itself")));
        }
        let (disk, dir) = copy;
        let feed_options = options.feed_options.clone().loaded_entries(true);
        let mut feed = match reader.feed_with(&options.feed, &feed_options) {
            Err(Error::FeedDoesNotExist { .. }) => {
                reader.create_feed(&options.feed, None, &feed_options)?
            }
            // What the feed lacks is taken over from a view.
            Err(Error::FeedGap { .. }) => {
                reader.drop_feed(&options.feed)?;
                reader.create_feed(&options.feed, None, &feed_options)?
            }
            feed => feed?,
        };

        if !FollowedCopy::is_begun(copy, options)? {
            let place = BackupPlace::new(dir).on_disk(Arc::clone(disk));
            let commit = reader.back_up(&place, progress)?.commit;
            // A backup may hold what is not durable yet in its source. Only when it is, the copy
            // is a follower.
            wait_until_told(&mut feed, commit)?;
            let store = Store::open(Arc::clone(disk), dir, &store_options(options))?;
            FollowedCopy::begin_store(&store, (commit, reader.manifest_sequence()), "")?;
        }

        let copy = FollowedCopy::open(copy, options)?;
        if copy.store.session().salt() != reader.session().salt() {
            return Err(refused(dir, "it follows another store"));
        }
        if !copy.origin().is_empty() {
            return Err(refused(dir, format!("it follows {}", copy.origin())));
        }
        let source = copy.source_commit();
        if feed.position() != source {
            // The copy is behind what was acknowledged, as one that was restored: what the source
            // has let go of is taken over from a view.
            feed.go_to(source)?;
        }
        event!(DEBUG, "follower.open", dir, source);
        Ok(Self { reader, feed, copy, waiting: None, versions: BTreeSet::new() })
    }

    /// The copy, for reading. Whoever commits to it ends its following.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.copy.store()
    }

    /// Where the copy is, and what was done.
    #[must_use]
    pub fn report(&self) -> FollowReport {
        self.copy.report()
    }

    /// Applies everything durable that the source has, and makes it durable here. Returns where the
    /// copy is then.
    ///
    /// Cost: reads the WAL of the source once, and commits as much here.
    ///
    /// # Errors
    /// Those of [`Feed::poll`] and [`Store::commit`]. The copy is at some commit of its source; the
    /// call may be repeated.
    pub fn catch_up(&mut self) -> Result<FollowReport> {
        self.catch_up_to(u64::MAX)
    }

    /// The same up to a commit of the source.
    fn catch_up_to(&mut self, last: u64) -> Result<FollowReport> {
        self.versions = self.reader.versions()?.iter().map(|version| version.number).collect();
        while self.copy.source_commit() < last {
            let told = match self.waiting.take() {
                Some(item) => Ok(Some(item)),
                None => self.feed.poll(),
            };
            match told {
                Ok(Some(item)) => self.take(item)?,
                Ok(None) if self.copy.source_commit() > self.feed.position() => {
                    return Err(Error::FeedAhead {
                        commit: self.copy.source_commit(),
                        position: self.feed.position(),
                    });
                }
                Ok(None) => break,
                Err(Error::FeedGap { .. }) => self.take_over()?,
                Err(error) => return Err(error),
            }
        }
        self.retain()?;
        self.settle()?;
        Ok(self.report())
    }

    /// Waits until there is something to apply, for so long at most.
    ///
    /// # Errors
    /// The errors of [`Feed::wait`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool> {
        if self.waiting.is_none() {
            match self.feed.wait(timeout) {
                Ok(item) => self.waiting = item,
                // The next call of `catch_up` takes a view over.
                Err(Error::FeedGap { .. }) => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(self.waiting.is_some())
    }

    /// Takes the newest view of the source, catches up to it, and compares all tables by their
    /// digests.
    ///
    /// Cost: a scan of all tables on both sides.
    ///
    /// # Errors
    /// The errors of [`catch_up`](Self::catch_up) and of scans. Tables that differ are no error.
    pub fn verify(&mut self) -> Result<Vec<FollowedTable>> {
        loop {
            let commit = self.reader.refresh()?;
            // What is not durable yet is waited for.
            while self.copy.source_commit() < commit {
                self.catch_up_to(commit)?;
                if self.copy.source_commit() < commit {
                    self.wait(Duration::from_secs(1))?;
                }
            }
            if self.copy.source_commit() == commit {
                return self.copy.compare(&self.reader);
            }
        }
    }

    /// Ends the following for now: makes everything durable and closes the copy.
    ///
    /// # Errors
    /// Those of [`Store::close`].
    pub fn close(mut self) -> Result<()> {
        self.settle()?;
        self.copy.close()
    }

    /// Applies an item of the feed.
    fn take(&mut self, item: FeedItem) -> Result<()> {
        match self.copy.take(item, (self.feed.position(), self.feed.given_sequence()))? {
            Taken::Done => Ok(()),
            Taken::Commit(number) => {
                self.retain_if_wanted(number)?;
                if self.copy.is_sync_due() { self.settle() } else { Ok(()) }
            }
            Taken::RolledBack { commit, to, gone, back } => {
                self.roll_back((commit, to), (&gone, &back))
            }
            Taken::NeedsView => self.take_over(),
        }
    }

    /// Makes everything durable, and acknowledges it to the source.
    fn settle(&mut self) -> Result<()> {
        self.copy.sync()?;
        self.feed.acknowledge(self.copy.source_commit().min(self.feed.position()))
    }

    /// The name of the copy's version of a version of the source.
    fn version_name(number: u64) -> Result<SnapshotName> {
        SnapshotName::new(&format!("source-{number}"))
    }

    /// Retains what the source has retained at this commit, or will go back to.
    fn retain_if_wanted(&mut self, number: u64) -> Result<()> {
        if !self.versions.contains(&number) && !self.feed.goes_back_to(number) {
            return Ok(());
        }
        match self.copy.store.retain(Some(&Self::version_name(number)?)) {
            // It is there since an earlier run.
            Err(Error::VersionExists { .. }) => Ok(()),
            retained => retained.map(drop),
        }
    }

    /// Retains the present commit, if the source has done so meanwhile, and lets go of versions
    /// that the source has no more.
    fn retain(&mut self) -> Result<()> {
        let there: BTreeSet<u64> =
            self.reader.versions()?.iter().map(|version| version.number).collect();
        if there.contains(&self.copy.mark.source)
            && self.copy.mark.own == self.copy.store.last_commit()
            && self.copy.store.version_number(&Self::version_name(self.copy.mark.source)?).is_none()
        {
            match self.copy.store.retain(Some(&Self::version_name(self.copy.mark.source)?)) {
                Err(Error::VersionExists { .. }) => {}
                retained => drop(retained?),
            }
        }
        for version in self.copy.store.versions()? {
            let name = version.name.as_ref().map(SnapshotName::as_str);
            let number = name.and_then(|name| name.strip_prefix("source-")?.parse().ok());
            let is_gone = number.is_some_and(|number: u64| {
                !there.contains(&number) && !self.feed.goes_back_to(number)
            });
            if is_gone {
                self.copy.store.release(version.number)?;
            }
        }
        Ok(())
    }

    /// Applies a roll-back of the source.
    fn roll_back(
        &mut self,
        (commit, to): (u64, u64),
        (gone, back): (&[FeedTable], &[FeedTable]),
    ) -> Result<()> {
        let version = match self.copy.store.version_number(&Self::version_name(to)?) {
            Some(number) => Some(self.copy.store.version(number)?),
            None => None,
        };
        let Some(version) = version.filter(|_| back.is_empty()) else { return self.take_over() };
        self.copy.roll_back(commit, &version, gone)?;
        self.retain_if_wanted(commit)
    }

    /// Takes over a whole view of the source.
    ///
    /// Cost: a scan of all tables on both sides.
    fn take_over(&mut self) -> Result<()> {
        self.copy.forget_parts();
        // A view may hold what is not durable yet, and the feed must go on behind it.
        let commit = loop {
            let commit = self.reader.refresh()?;
            match wait_until_told(&mut self.feed, commit) {
                Err(Error::FeedGap { first, .. }) => self.feed.go_to(first - 1)?,
                waited => waited?,
            }
            if self.feed.position() == commit {
                break commit;
            }
        };
        self.copy.take_over_view(&self.reader, commit)?;
        self.settle()
    }
}

/// Passes over what a feed tells, until a commit was told.
fn wait_until_told(feed: &mut Feed, commit: u64) -> Result<()> {
    while feed.position() < commit {
        feed.wait(Duration::from_secs(1))?;
    }
    Ok(())
}
