//! Segments of the WAL of an open store: found ones are taken up, the next one is made ahead, the
//! log goes on in it, old ones are recycled.
//!
//! Making a segment allocates, syncs and names a file. Whoever does so holds the lock `making` and
//! not the state, so commits go on in the segment that they have. The switch to a segment that was
//! made is one write. The old one is synced and sealed after that, by the next
//! [turn](crate::session::group_commit) of the group commit.
//!
//! Invariant: a segment is begun only when the one before the last is sealed, so that at most one
//! segment waits for its seal.
//!
//! *Rejected:* the seal before the first record of the next segment (all commits wait for four
//! fsyncs); two segments made ahead (room on the disk, for commits that come later).

use terrane_io::rare;
use terrane_io::sync::atomic::Ordering;
use terrane_io::sync::{Arc, MutexGuard, TryLockError};
use terrane_io::{Access, OpenMode};

use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::manifest::wal::{LOG, Made, Need, SegmentScan, WalEnd, segment_name, segments};
use crate::session::current_manifest::CurrentManifest;
use crate::session::inner::SessionInner;
use crate::store::inner::{FoundLog, LogRoom, SEGMENTS, Shared, State};
use crate::store::options::CheckpointThread;
use crate::trace::event;

/// Bytes of a found log that are written again at once.
const SECURED_BYTES: usize = 1 << 20;

/// Segments of a found log that make no checkpoint due: those of a log of full length. Each process
/// that ends without a checkpoint leaves one more, and each opening reads all of them.
const FOUND_SEGMENTS_MAX: u64 = SEGMENTS + 1;

/// Old segments that are kept to be written again.
const SPARES_MAX: usize = SEGMENTS as usize;

impl FoundLog {
    fn segments(&self) -> u64 {
        debug_assert!(self.from <= self.last, "the found WAL has a segment");
        self.last - self.from + 1
    }

    /// Makes all of it durable. Returns its end, for the next segment to follow on.
    ///
    /// Bytes of a process that died, or whose sync failed, can be seen and not be durable, and the
    /// system may take them for written. So every byte is written again where it stands, which
    /// takes no room, and synced then. What stands behind the last record counts for nothing once
    /// the segment is sealed.
    ///
    /// # Errors
    /// Those of the disk. Nothing has changed then.
    fn secure(&self, inner: &SessionInner) -> Result<WalEnd> {
        let files = inner.files().handles();
        let _right = files.may_write()?;

        let mut bytes = Vec::new();
        let mut before: Option<WalEnd> = None;
        for number in self.from..=self.last {
            let path = inner.dir().join(LOG).join(segment_name(number));
            let open = || inner.disk().open(&path, OpenMode::ReadWrite, Access::Buffered);
            let file = files.with_room(open)?;
            let end = if number == self.last { self.end } else { file.len()? };
            for at in (0..end).step_by(SECURED_BYTES) {
                bytes.resize((end - at).min(SECURED_BYTES as u64) as usize, 0);
                file.read_at(&mut bytes, at)?;
                file.write_at(&bytes, at)?;
            }
            inner.files().synced(&path, file.sync())?;
            let found = WalEnd::found(files, file, number, end);
            if number == self.last {
                if let Some(before) = before {
                    seal_found(inner, &before)?;
                }
                return Ok(found);
            }
            before = Some(found);
        }

        // `from` is no greater than `last`.
        Err(Error::SessionClosed)
    }
}

/// Seals a found segment that is not the last, unless it is sealed: the process before may have
/// died between its switch to the next one and the seal.
fn seal_found(inner: &SessionInner, found: &WalEnd) -> Result<()> {
    let number = found.number();
    let scan = |number| SegmentScan::open(inner.disk(), inner.dir(), inner.salt(), number);
    let is_sealed = scan(number)?.is_some_and(|scan| scan.sealed().is_some());
    let next = scan(number + 1)?;
    let Some(first) = next.map(|next| next.header.first).filter(|_| !is_sealed) else {
        return Ok(());
    };

    rare::taken("a segment of the process before gets its seal");
    let file = &found.log.file;
    found.seal(first - 1).or_else(|error| inner.poison(file.path(), error))?;
    inner.files().synced(file.path(), file.sync())
}

impl State {
    /// Whether the segment behind the last one is there and fits.
    fn has_next(&self, record: usize, room: LogRoom) -> bool {
        self.next.as_ref().is_some_and(|next| {
            next.has_room(record) && (room == LogRoom::Ordinary || next.is_least())
        })
    }

    /// Whether the next segment is to be made ahead of the commit that needs it.
    pub(crate) fn wants_next(&self) -> bool {
        self.is_linked
            && self.next.is_none()
            && !self.is_next_refused
            && self.log.as_ref().is_some_and(WalEnd::is_half_full)
    }

    /// Whether a record of so many bytes fits into the last segment.
    pub(crate) fn has_room(&self, record: usize) -> bool {
        self.log.as_ref().is_some_and(|log| log.has_room(record))
    }

    /// Whether the log takes no more room than a checkpoint is to leave.
    pub(crate) fn has_no_more_than(&self, room: LogRoom) -> bool {
        room == LogRoom::Ordinary
            || self.spares.is_empty()
                && self.next.is_none()
                && self.log.as_ref().is_some_and(WalEnd::is_least)
    }
}

impl Shared {
    /// Makes the log that was found durable, for commits to go on behind it; says whether there is
    /// one. Nobody else does so meanwhile: the caller holds the manifest.
    pub(crate) fn take_up_log(&self, _published: &CurrentManifest) -> Result<bool> {
        self.inner.check_writable()?;
        let found = {
            let state = lock(&self.state);
            if state.is_linked {
                return Ok(true);
            }
            state.found.filter(|_| state.log.is_none())
        };

        let Some(found) = found else { return Ok(false) };
        let end = found.secure(&self.inner)?;
        if found.segments() > FOUND_SEGMENTS_MAX {
            self.due_at.store(0, Ordering::Relaxed);
        }

        let mut state = lock(&self.state);
        debug_assert!(state.log.is_none(), "only the holder of the manifest begins the log");
        debug_assert!(!state.is_linked, "only the holder of the manifest links the log");
        self.durable.reach(state.commit, Some((&end.log, state.commit)));
        state.log = Some(end);
        state.is_linked = true;
        state.found = None;
        Ok(true)
    }

    /// Makes the directory of the log, unless it is there.
    fn make_log_dir(&self) -> Result<()> {
        let disk = self.inner.disk();
        let dir = self.inner.dir().join(LOG);
        if disk.kind(&dir)?.is_some() {
            return Ok(());
        }
        self.inner.files().handles().with_space(|| disk.create_dir(&dir))?;

        let synced = self.inner.sync_root();
        if synced.is_err()
            // No later sync can be trusted with this name; the next attempt makes a new one.
            && let Err(error) = disk.remove_dir(&dir)
        {
            event!(WARN, "cleanup.failed", self.inner.dir(), %error);
        }

        synced
    }

    /// Makes the next segment of the log, for a record of so many bytes, unless it is there; seals
    /// the one before the last.
    ///
    /// Cost: allocates and syncs a file and the directory; four fsyncs for the seal.
    ///
    /// # Errors
    /// Those of the disk; the log goes on in its last segment then, as far as that has room.
    pub(crate) fn make_next(&self, record: usize, room: LogRoom) -> Result<()> {
        let making = lock(&self.making);
        self.durable.seal_in_turn()?;
        self.make_next_in_turn(&making, record, (room, Need::Now))
    }

    fn make_next_in_turn(
        &self,
        _making: &MutexGuard<'_, ()>,
        record: usize,
        (room, need): (LogRoom, Need),
    ) -> Result<()> {
        let (number, is_first, made) = {
            let mut state = lock(&self.state);
            if state.has_next(record, room) {
                return Ok(());
            }
            // One that does not fit is made anew.
            state.next = None;
            let made = match room {
                LogRoom::Ordinary => state.spares.pop().map_or(Made::New, Made::Again),
                LogRoom::Least => Made::Least,
            };
            (state.segment + 1, state.log.is_none(), made)
        };

        let files = self.inner.files();
        files.check_poisoned()?;
        let _right = files.handles().may_write()?;
        if is_first {
            self.make_log_dir()?;
        }
        let next = self.log_dir.make(number, record, (made, need))?;
        self.inner.sync_dir(LOG)?;

        let mut state = lock(&self.state);
        debug_assert!(state.next.is_none() && number == state.segment + 1);
        state.next = Some(next);
        Ok(())
    }

    /// Lets the log go on in the next segment, if that is there and fits; says whether it did. If
    /// the manifest leads to the old one, that is sealed later.
    ///
    /// Cost: one write.
    pub(crate) fn switch(&self, state: &mut State, record: usize, room: LogRoom) -> Result<bool> {
        if !state.has_next(record, room) || self.durable.is_unsealed() {
            return Ok(false);
        }
        let Some(next) = &state.next else { return Ok(false) };
        debug_assert_eq!(next.number(), state.segment + 1, "segments are numbered without a gap");
        let _right = self.inner.files().handles().may_write()?;
        let end = self.log_dir.begin(next, state.commit + 1)?;
        debug_assert!(end.is_empty(), "a segment begins without a record");
        debug_assert!(end.number() > state.segment, "segments are numbered upwards");

        if let Some(old) = state.log.take().filter(|_| state.is_linked) {
            state.ends.insert(old.number(), old.end());
            self.durable.switch(old, &end.log, state.commit);
        }
        debug_assert!(state.ends.keys().all(|&sealed| sealed < end.number()));
        state.segment = end.number();
        state.log = Some(end);
        state.next = None;
        state.is_next_refused = false;
        Ok(true)
    }

    /// Lets the log go on in a new segment for a manifest, unless the present one has no record.
    /// `None` if the next segment must be made first; 0 without a log.
    pub(crate) fn cut_log(&self, state: &mut State, room: LogRoom) -> Result<Option<u64>> {
        if !self.is_logged() {
            return Ok(Some(0));
        }
        // Nothing is committed to a segment that is not linked: if there is an empty one, it
        // follows on the last commit.
        let is_enough =
            |log: &WalEnd| log.is_empty() && (room == LogRoom::Ordinary || log.is_least());
        if state.log.as_ref().is_some_and(is_enough) || self.switch(state, 0, room)? {
            return Ok(Some(state.segment));
        }
        Ok(None)
    }

    /// Makes the last segment durable as it was begun, for a manifest to lead there.
    pub(crate) fn settle_log(&self) -> Result<()> {
        let log = {
            let state = lock(&self.state);
            state.log.as_ref().filter(|_| !state.is_linked).map(|log| log.log.clone())
        };
        match log {
            Some(log) => self.inner.files().synced(log.file.path(), log.file.sync()),
            None => self.durable.seal_in_turn(),
        }
    }

    /// Makes the next segment ahead and seals the old one, where the log wants that: here, or on a
    /// thread. A failure is told as an event: the commit that needs the segment tries once more.
    pub(crate) fn tend_log(self: &Arc<Self>) {
        match self.options.checkpoint_thread {
            CheckpointThread::Caller => self.tend_log_here(),
            CheckpointThread::Background => {
                let shared = Arc::clone(self);
                if self.wal_helper.run(move || shared.tend_log_here()).is_err() {
                    self.tend_log_here();
                }
            }
        }
    }

    fn tend_log_here(&self) {
        // Whoever is at it does it for all: nobody waits who needs no other segment yet.
        let making = match self.making.try_lock() {
            Ok(making) => making,
            Err(TryLockError::Poisoned(making)) => making.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let tended = match self.durable.seal_unless_busy() {
            Ok(true) if lock(&self.state).wants_next() => {
                self.make_next_in_turn(&making, 0, (LogRoom::Ordinary, Need::Ahead))
            }
            sealed => sealed.map(drop),
        };
        if let Err(error) = tended {
            lock(&self.state).is_next_refused = true;
            event!(WARN, "log.not_tended", self.inner.dir(), %error);
        }
    }

    /// Keeps some of the segments that a manifest, which both copies hold, does not need, and
    /// removes the others.
    pub(crate) fn recycle(&self, published: &CurrentManifest, room: LogRoom) {
        let _making = lock(&self.making);
        if let Err(error) = self.recycle_from(published, room) {
            event!(WARN, "cleanup.failed", self.inner.dir(), %error);
        }
    }

    fn recycle_from(&self, published: &CurrentManifest, room: LogRoom) -> Result<()> {
        let (segment, mut spares, ends, unfit) = {
            let mut state = lock(&self.state);
            if state.segment == 0 {
                return Ok(());
            }
            if room == LogRoom::Least {
                state.spares.clear();
            }
            let unfit = state.next.take_if(|next| room == LogRoom::Least && !next.is_least());
            (state.segment, state.spares.clone(), state.ends.clone(), unfit)
        };

        let _right = self.inner.files().handles().may_write()?;
        if let Some(next) = unfit {
            self.inner.disk().remove(&self.log_dir.path(next.number()))?;
        }
        let needed_from = match published.manifest.segment {
            0 => segment + 1,
            segment => segment,
        };

        let leased_from = self.inner.leased_segment()?;
        // Read behind the manifest: a cursor that is not seen here sees that manifest.
        let cursors = self.inner.cursor_needs()?;
        let kept_from = needed_from.min(leased_from).min(cursors.held);
        let spares_max = match room {
            LogRoom::Ordinary if self.is_logged() => SPARES_MAX,
            LogRoom::Ordinary | LogRoom::Least => 0,
        };

        for number in segments(self.inner.disk(), self.inner.dir())? {
            if number >= kept_from || spares.contains(&number) {
                continue;
            }
            if published.needs_segment(number) {
                if let Some(end) = ends.get(&number) {
                    self.trim(number, *end)?;
                }
            } else if spares.len() < spares_max && number < cursors.named {
                spares.push(number);
                lock(&self.state).spares.push(number);
                debug_assert!(spares.len() <= spares_max);
            } else {
                // What a cursor names is not written again: its consumer finds it or finds a gap.
                self.inner.disk().remove(&self.log_dir.path(number))?;
            }
            lock(&self.state).ends.remove(&number);
        }

        Ok(())
    }

    /// Gives the room behind the records of a sealed segment back. Only of one that this process
    /// has sealed: of others it does not know where they end.
    fn trim(&self, number: u64, end: u64) -> Result<()> {
        let files = self.inner.files().handles();
        let path = self.log_dir.path(number);
        let open = || self.inner.disk().open(&path, OpenMode::ReadWrite, Access::Buffered);
        Ok(files.with_room(open)?.set_len(end)?)
    }
}
