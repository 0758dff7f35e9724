//! Collection: removes unwanted commits and all that only they reach, while the store is read and
//! written.
//!
//! 1. **Mark.** The chunk that is written to is ended. One sweep over the older chunks, newest
//!    first, marks all that kept commits, branches and pins reach. Nothing is changed; a cancelled
//!    or interrupted collection leaves no trace.
//! 2. **Switch.** Frames written meanwhile are marked; then the control record states which commits
//!    are kept. From here on the other commits are gone.
//! 3. **Reclaim.** Chunk by chunk, a copy without unmarked records replaces the chunk, so the disk
//!    holds at most one chunk twice. Addresses stay. An interrupted collection leaves garbage for
//!    the next one.
//!
//! **Full disk.** Chunks are rewritten in the order of their live bytes, so that room freed by one
//! is room for the next; the reserve of the store is room for the first. A chunk without room stays
//! garbage, and the report counts it.
//!
//! **Archive.** Nothing is lost: unmarked records go to the newest volume, and every commit stays
//! readable. So step 2 is left out, and step 3 rewrites a chunk once the copy of the removed
//! records is durable. An interrupted collection has moved some of them; the next one moves the
//! rest.
//!
//! **Pace.** `pace` is called after each piece of work of about 1 MiB of input or output: it may
//! wait, so that the store's own work goes first, and it may cancel.
//!
//! Rejected: copying all live records at once (needs the disk twice); punching holes into chunks
//! (most pages of old chunks have a live record); a reserve of a whole chunk (doubles an empty
//! store).

use std::collections::BTreeSet;
use std::path::PathBuf;

use terrane_io::ErrorKind;
use terrane_io::sync::atomic::{AtomicBool, Ordering};
use terrane_io::sync::{Arc, MutexGuard, PoisonError, TryLockError};

use crate::base::address::{Address, Extent, UNIT_BYTES};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::fast_map::FastMap;
use crate::base::hash::Hash;
use crate::base::lock::lock;
use crate::pack::archive::{check_marker, is_empty, marker_path, stage_marker, volume_dir};
use crate::pack::chunk::Chunk;
use crate::pack::commit::{COMMIT, Commit, CommitRecord};
use crate::pack::control::Control;
use crate::pack::index::{IndexKey, IndexValue, STATE_KEY, extent};
use crate::pack::marks::{Marks, unit_bytes};
use crate::pack::run_map::Run;
use crate::store::inner::table_at;
use crate::store::store::{ControlChange, Store, Writer};

/// A chunk is rewritten if at least this fraction of it is garbage: one part in 16.
const GARBAGE_PARTS: u64 = 16;
/// Keys that one batch removes from the index.
const REMOVALS: usize = 128;
/// Bytes written during a collection that may be marked while commits wait.
const LOCKED_BYTES: u64 = 2 << 20;
/// Upper bound of rounds of marking frames written during the previous round.
const ROUNDS_MAX: usize = 32;

/// Set of commits that a collection keeps, beside heads of branches and commits made during the
/// collection.
#[derive(Debug, Clone, Default)]
pub struct Retain {
    newest: Option<u64>,
    since: Option<Hash>,
    commits: Vec<Hash>,
    everything: bool,
}

impl Retain {
    /// Keeps the newest `count` commits.
    pub fn newest(count: u64) -> Self {
        Self { newest: Some(count), ..Self::default() }
    }

    /// Keeps `commit` and all commits made after it.
    pub fn since(commit: Hash) -> Self {
        Self { since: Some(commit), ..Self::default() }
    }

    /// Keeps all commits: removes the garbage of flushes and interrupted collections.
    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Also keeps this commit, however old.
    #[must_use]
    pub fn and(mut self, commit: Hash) -> Self {
        self.commits.push(commit);
        self
    }
}

/// Phase of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcPhase {
    /// Marking live records. Cancelling leaves everything as it was.
    Mark,
    /// Removing garbage. Cancelling leaves the rest as garbage.
    Reclaim,
}

/// Progress of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcProgress {
    /// Current phase.
    pub phase: GcPhase,
    /// Bytes read in this phase, in the second phase also bytes written.
    pub bytes: u64,
    /// Bytes of the chunks of the collection.
    pub total_bytes: u64,
}

/// Decision of the caller of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcPace {
    /// Go on.
    Go,
    /// Stop.
    Cancel,
}

/// Result of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct GcReport {
    /// Kept commits, without those made meanwhile.
    pub kept: u64,
    /// Removed commits; none in a store with an archive.
    pub collected: u64,
    /// Chunks that the collection read.
    pub chunks: u64,
    /// Chunks rewritten without their garbage.
    pub compacted: u64,
    /// Removed chunks.
    pub removed: u64,
    /// Live bytes of the chunks that the collection read.
    pub live_bytes: u64,
    /// Bytes returned to the file system.
    pub freed_bytes: u64,
    /// Bytes written to a volume.
    pub archived_bytes: u64,
    /// Chunks whose garbage stays for want of disk space for a copy; the index counts as one if it
    /// has no room to lose its entries.
    ///
    /// Make room, and collect [everything](Retain::everything). Unless the index was put off,
    /// commits still refer to older objects by their hashes.
    pub put_off: u64,
}

/// Kept commit.
struct Kept {
    hash: Hash,
    extent: Extent,
    root: Option<Address>,
}

/// Commits to be kept.
struct Plan {
    /// The first commit from which on all are kept.
    retained: Address,
    kept: Vec<Kept>,
    /// The oldest commit that `retain` counted.
    target: Option<Hash>,
    /// Heads of branches among `kept`.
    heads: BTreeSet<Hash>,
    /// Number of commits to be removed.
    collected: u64,
}

impl Plan {
    /// Kept commits before `retained`.
    fn exceptions(&self) -> Vec<(Hash, Extent)> {
        let below = self.kept.iter().filter(|commit| commit.extent.at < self.retained);
        below.map(|commit| (commit.hash, commit.extent)).collect()
    }

    fn keeps(&self, extent: Extent) -> bool {
        extent.at >= self.retained || self.kept.iter().any(|commit| commit.extent == extent)
    }
}

/// Use of a chunk.
#[derive(Debug, Default)]
struct Use {
    /// Live runs, ascending.
    kept: Vec<Run>,
    /// Runs that are neither live nor in a volume, ascending.
    archived: Vec<Run>,
    /// Live bytes, and bytes of garbage.
    live: u64,
    garbage: u64,
}

/// Chunk that the disk had no room to rewrite.
struct PutOff {
    number: u32,
    /// Live bytes, which the copy needs.
    live: u64,
    error: Error,
}

/// Calls `pace` after each piece of work.
struct Pacer<'a> {
    progress: GcProgress,
    pace: &'a mut dyn FnMut(&GcProgress) -> GcPace,
    /// Set when the store is being closed.
    closing: &'a AtomicBool,
}

impl Pacer<'_> {
    fn add(&mut self, bytes: u64) -> Result<()> {
        self.progress.bytes += bytes;
        match (self.pace)(&self.progress) {
            GcPace::Go if !self.closing.load(Ordering::Acquire) => Ok(()),
            GcPace::Go | GcPace::Cancel => Err(Error::GcCancelled),
        }
    }
}

impl Store {
    /// Removes all commits but `retain`, and all that only they reach. In a store with
    /// [volumes](Self::add_volume), moves them to the newest volume, where they stay readable.
    ///
    /// Runs in the thread of the caller; other threads go on reading and committing.
    ///
    /// Cost: reads the older chunks twice at most, and writes those with garbage once, without it,
    /// and the garbage to a volume if there is one. Takes 2 to 4 bytes of memory for each record in
    /// use, never more than a 32nd of what was written, and some MiB.
    ///
    /// # Errors
    /// [`GcRunning`](Error::GcRunning), [`GcCancelled`](Error::GcCancelled),
    /// [`UnknownCommit`](Error::UnknownCommit) for one that is to be kept,
    /// [`AbsentVolume`](Error::AbsentVolume) and [`ForeignVolume`](Error::ForeignVolume) if the
    /// last volume is not there, [`PartExists`](Error::PartExists), [`Corrupt`](Error::Corrupt) if
    /// something that is in use is damaged: nothing is taken away then; and those of
    /// [`commit`](Self::commit).
    #[doc(alias = "vacuum")]
    pub fn collect(
        &self,
        retain: &Retain,
        pace: &mut dyn FnMut(&GcProgress) -> GcPace,
    ) -> Result<GcReport> {
        let _running = self.no_collection()?;
        self.collect_alone(retain, pace)
    }

    /// Collects for a caller that [excludes](Self::no_collection) other collections.
    pub(crate) fn collect_alone(
        &self,
        retain: &Retain,
        pace: &mut dyn FnMut(&GcProgress) -> GcPace,
    ) -> Result<GcReport> {
        let Control { volumes, store, .. } = self.inner.view().control;
        if let Some(last) = volumes.checked_sub(1) {
            // The catalog may date from a time at which a volume was away.
            self.inner.pack.look_into(last, store)?;
        }

        // Writes of a collection that free no space yet must not fail on a full disk.
        self.give_reserve_up()?;
        // Frames written from here on are in newer chunks than those of the collection.

        let report =
            self.end_chunk().and_then(|(first, end)| self.collect_before(retain, first, end, pace));
        self.try_to_hold_reserve();
        lock(&self.held).again = None;
        *self.marks.write().unwrap_or_else(PoisonError::into_inner) = None;

        report
    }

    /// Collects the chunks `first..end`.
    fn collect_before(
        &self,
        retain: &Retain,
        first: u32,
        end: u32,
        pace: &mut dyn FnMut(&GcProgress) -> GcPace,
    ) -> Result<GcReport> {
        assert!(first <= end, "a range of chunks");
        let mut plan = self.plan(retain, end)?;
        let total_bytes = self.chunk_bytes(first, end)?;
        let progress = GcProgress { phase: GcPhase::Mark, bytes: 0, total_bytes };
        let mut pacer = Pacer { progress, pace, closing: &self.closing };
        let marks = self.mark(&mut plan, Marks::new(first, end), end, &mut pacer)?;

        pacer.progress = GcProgress { phase: GcPhase::Reclaim, bytes: 0, total_bytes };
        let report = self.reclaim(&plan, &marks, first, end, &mut pacer)?;
        *lock(&self.collected_to) = plan.target;
        Ok(report)
    }

    /// Excludes other collections and imports.
    pub(crate) fn no_collection(&self) -> Result<MutexGuard<'_, ()>> {
        // A panic in another thread leaves no state behind the lock.
        match self.collection.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Error::GcRunning),
        }
    }

    /// Adds a volume, to which collections move the records that they would otherwise remove.
    /// Returns its directory: `archive/volume-` and a number in the directory of the store, or
    /// `volume-` and a number in [`Options::archive_dir`](crate::Options::archive_dir).
    ///
    /// The directory may be a mount, created before; a link is refused. From the first volume
    /// on, the store has an archive: every commit, present and future, stays readable.
    ///
    /// Cost: two listings, and the writes and syncs of a new directory, its marker and a control
    /// record.
    ///
    /// # Errors
    /// [`EmptyVolume`](Error::EmptyVolume) if nothing was moved to the last one yet;
    /// [`AbsentVolume`](Error::AbsentVolume) if that is not there;
    /// [`ForeignVolume`](Error::ForeignVolume) if the directory is a volume already;
    /// [`GcRunning`](Error::GcRunning); [`GcUnfinished`](Error::GcUnfinished);
    /// [`InvalidConfig`](Error::InvalidConfig) for more than 65,535; and those of
    /// [`commit`](Self::commit). A reader has no such call.
    pub fn add_volume(&self) -> Result<PathBuf> {
        let _none_runs = self.no_collection()?;
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        let disk = &*self.inner.disk;
        let locations = self.inner.pack.locations();
        let archive = locations.archive();
        let control = self.inner.view().control;

        // An unfinished collection may have removed what an archive must keep.
        if control.collecting != 0 {
            return Err(Error::GcUnfinished);
        }

        // A second empty volume is a mistake: collections fill the newest one only.
        if let Some(last) = control.volumes.checked_sub(1) {
            check_marker(disk, &archive, last, control.store)?;
            if is_empty(disk, &archive, last)? {
                return Err(Error::EmptyVolume { path: volume_dir(&archive, last) });
            }
        }

        let Some(volumes) = control.volumes.checked_add(1) else {
            let value = (u64::from(control.volumes) + 1).to_string();
            return Err(Error::InvalidConfig { option: "volumes", value, allowed: "up to 65,535" });
        };

        let path = volume_dir(&archive, control.volumes);

        // A directory elsewhere exists already, with its marker.
        let inside = locations.has_archive_inside().then_some((locations.dir(), &archive));
        for (parent, made) in inside.into_iter().chain([(archive.as_path(), &path)]) {
            // A killed process may have created the directory.
            if disk.kind(made)?.is_none() {
                disk.create_dir(made)?;
            }
            self.or_poison(disk.sync_dir(parent))?;
        }

        // The marker is durable before the control record counts the volume.
        let (marker, staged) = stage_marker(disk, &archive, control.volumes, control.store)?;
        self.or_poison(marker.sync())?;
        disk.rename(&staged, &marker_path(&archive, control.volumes))?;
        self.or_poison(disk.sync_dir(&path))?;
        let change = ControlChange { volumes: Some(volumes), ..Default::default() };
        self.checkpoint(&mut writer, &change)?;
        self.inner.pack.set_volumes(volumes);

        Ok(path)
    }

    /// Directories of the volumes, newest last. With a volume, collections lose nothing.
    pub fn volumes(&self) -> Vec<PathBuf> {
        self.inner.volumes()
    }

    /// Returns whether a collection was interrupted while it removed garbage; a collection of
    /// [everything](Retain::everything) removes the rest.
    pub fn has_unfinished_collection(&self) -> bool {
        self.inner.view().control.collecting != 0
    }

    /// Chooses the commits to keep. Commits in the chunks from `end` on were made since the
    /// collection began: they are kept, and `retain` does not count them.
    ///
    /// Cost: reads each commit once; with volumes only those that count, and finds the others that
    /// are kept by the index. Takes 64 bytes of memory for each that is kept.
    fn plan(&self, retain: &Retain, end: u32) -> Result<Plan> {
        let old = self.inner.view().control.retained;
        let archives = self.inner.view().control.volumes > 0;

        // Named commits must exist: they leave `missing` as the walk meets them.
        let mut heads: BTreeSet<Hash> = self.branches().into_iter().map(|(_, head)| head).collect();
        let mut missing: BTreeSet<Hash> = retain.commits.iter().copied().collect();
        let wanted = missing.clone();
        let mut since = retain.since;

        let mut plan = Plan {
            retained: Address { chunk: end, unit: 0 },
            kept: Vec::new(),
            target: None,
            heads: BTreeSet::new(),
            collected: 0,
        };

        let mut left = retain.newest.unwrap_or(0);
        let mut commits = self.inner.newest();

        loop {
            let is_counting = left > 0 || since.is_some() || retain.everything;

            // With an archive, the older commits are all that were ever made, and stay as they are.
            if archives && !is_counting {
                break;
            }

            let Some(commit) = commits.next() else { break };
            let (extent, CommitRecord { commit: Commit { hash, .. }, root, .. }) = commit?;

            // Commits made since the collection began are kept, and no number counts them.
            let is_recent = extent.at.chunk >= end;
            let is_counted = !is_recent && is_counting;

            if is_counted {
                left = left.saturating_sub(1);
                plan.target = Some(hash);
                // The oldest counted commit may be an exception of an earlier collection, which
                // removed commits behind it.
                plan.retained = extent.at.max(old);
            }

            missing.remove(&hash);
            if since == Some(hash) {
                since = None;
            }

            let is_head = heads.remove(&hash);
            if is_head {
                plan.heads.insert(hash);
            }

            if is_recent || is_counted || is_head || wanted.contains(&hash) {
                plan.kept.push(Kept { hash, extent, root: root.map(|root| root.extent.at) });
            } else {
                plan.collected += 1;
            }
        }

        // The walk over an archive ended early: the index finds the rest.
        if archives {
            self.plan_archived(&heads, &mut missing, &mut plan)?;
        } else if plan.collected == 0 {
            plan.retained = old;
        }

        debug_assert!(old <= plan.retained, "commits that were removed stay removed");

        match since.or(missing.pop_first()) {
            Some(hash) => Err(Error::UnknownCommit { hash }),
            None => Ok(plan),
        }
    }

    /// Keeps heads and named commits that the walk did not reach, and removes those that exist from
    /// `missing`.
    fn plan_archived(
        &self,
        heads: &BTreeSet<Hash>,
        missing: &mut BTreeSet<Hash>,
        plan: &mut Plan,
    ) -> Result<()> {
        // Through the index, since a walk over an archive would read every commit ever made.
        for hash in heads | &*missing {
            if let Some((extent, CommitRecord { root, .. })) = self.inner.find_commit(&hash)? {
                plan.kept.push(Kept { hash, extent, root: root.map(|root| root.extent.at) });
                missing.remove(&hash);
            }
        }
        Ok(())
    }

    /// Ends the chunk that is written to. Returns the range of the chunks before the new one.
    fn end_chunk(&self) -> Result<(u32, u32)> {
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        self.roll(&mut writer)?;
        lock(&self.held).again = Some(Vec::new());
        Ok((self.inner.view().control.first, writer.tail.end.chunk))
    }

    fn chunk_bytes(&self, first: u32, end: u32) -> Result<u64> {
        // Files that are open stay open, and others are not kept: a collection passes over all of
        // them.
        debug_assert!(first <= end, "a range of chunks");
        let mut total = 0;
        for number in first..end {
            total += self.inner.pack.chunk_aside(number)?.file.len()?;
        }
        Ok(total)
    }

    /// Marks all live records, and switches to the marks.
    fn mark(
        &self,
        plan: &mut Plan,
        mut marks: Marks,
        end: u32,
        pacer: &mut Pacer<'_>,
    ) -> Result<Arc<Marks>> {
        self.mark_roots(&mut marks, plan)?;

        // One pass over the old chunks marks all that the roots reach.
        marks.sweep(&self.inner.pack, &mut |bytes| pacer.add(bytes))?;
        let tail = self.catch_up(plan, &mut marks, end, pacer)?;

        // Little is left to mark, so commits wait shortly, and `pace` is not called.
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        let end_now = writer.tail.end;
        self.mark_written(&mut marks, tail, end_now, &mut |_| Ok(()))?;

        // With an archive no commit is hidden, so there is nothing to switch.
        if self.inner.view().control.volumes > 0 {
            return Ok(Arc::new(marks));
        }
        self.keep_more(plan, &mut marks, end)?;
        let before = self.hide(plan, &mut marks)?;

        debug_assert!(
            plan.kept.iter().all(|kept| !marks.lacks(kept.extent.at)),
            "kept commits are marked"
        );

        debug_assert!(plan.kept.iter().filter_map(|kept| kept.root).all(|root| !marks.lacks(root)));
        let marks = Arc::new(marks);
        let switched = self.switch(plan, &mut writer, end, &marks);

        // The record was not written: the commits stay visible.
        if switched.is_err() {
            let mut view = self.inner.view_mut();
            (view.control.retained, view.kept) = before;
        }

        switched.map(|()| marks)
    }

    /// Marks the roots: kept commits, live trees, and the tables in which readers find commits.
    fn mark_roots(&self, marks: &mut Marks, plan: &Plan) -> Result<()> {
        for commit in &plan.kept {
            marks.mark(commit.extent.at);
            if let Some(root) = commit.root {
                marks.mark(root);
            }
        }
        for root in self.inner.pinned.roots() {
            marks.mark(root.at);
        }
        self.mark_tables(marks, plan.retained)
    }

    /// Marks the frames written since the chunk `end` was begun, which may refer to old objects, up
    /// to less than [`LOCKED_BYTES`]. Returns the address of the first unmarked frame.
    fn catch_up(
        &self,
        plan: &mut Plan,
        marks: &mut Marks,
        end: u32,
        pacer: &mut Pacer<'_>,
    ) -> Result<Address> {
        let start = Address { chunk: end, unit: 0 };
        let mut tail = lock(&self.writer).tail.end;
        self.mark_written(marks, start, tail, &mut |bytes| pacer.add(bytes))?;

        // A paced collection may fall behind the committing threads: these rounds run unpaced.
        for _ in 0..ROUNDS_MAX {
            let from = tail;
            let now = lock(&self.writer).tail.end;
            debug_assert!(from <= now, "the pack grows");
            self.mark_written(marks, from, now, &mut |_| pacer.add(0))?;
            self.keep_more(plan, marks, end)?;
            tail = now;
            let is_little =
                unit_bytes(u64::from(now.unit.saturating_sub(from.unit))) < LOCKED_BYTES;
            if from.chunk == now.chunk && is_little {
                break;
            }
        }

        Ok(tail)
    }

    /// Adds to the plan the commits that became needed since: heads of branches, commits made
    /// again, and commits that running calls hold. Under the writer's lock the plan is final.
    ///
    /// Cost: reads what only these commits reach.
    fn keep_more(&self, plan: &mut Plan, marks: &mut Marks, end: u32) -> Result<()> {
        if self.inner.view().control.volumes > 0 {
            return Ok(());
        }

        // Heads, commits that calls hold, and commits made again since the marking began.
        let mut wanted: BTreeSet<Hash> =
            self.branches().into_iter().map(|(_, head)| head).collect();
        {
            let mut held = lock(&self.held);
            wanted.extend(held.counts.keys());
            wanted.extend(held.again.iter_mut().flat_map(std::mem::take));
        }

        for hash in wanted.difference(&plan.heads.clone()) {
            let Some((extent, CommitRecord { root, .. })) = self.inner.find_commit(hash)? else {
                continue;
            };

            // Recent commits are never collected, and planned ones are marked.
            if extent.at.chunk >= end || plan.keeps(extent) {
                continue;
            }
            marks.mark(extent.at);
            let root = root.map(|root| root.extent);
            marks.mark_all(&self.inner.pack, root.into_iter().collect())?;
            plan.kept.push(Kept { hash: *hash, extent, root: root.map(|root| root.at) });
            plan.collected = plan.collected.saturating_sub(1);
        }

        Ok(())
    }

    /// Hides the commits to be removed from checkouts, once all pinned roots are marked. Returns
    /// the former view.
    fn hide(&self, plan: &Plan, marks: &mut Marks) -> Result<(Address, FastMap<Hash, Extent>)> {
        loop {
            // Outside the lock of the view, since marking reads the pack.
            marks.mark_all(&self.inner.pack, self.inner.pinned.roots())?;
            // Under this lock a checkout pins its commit and tests whether it is kept, so none
            // slips between.
            let mut view = self.inner.view_mut();
            if self.inner.pinned.roots().iter().any(|root| marks.lacks(root.at)) {
                continue;
            }
            let kept = plan.exceptions().into_iter().collect();
            return Ok((
                std::mem::replace(&mut view.control.retained, plan.retained),
                std::mem::replace(&mut view.kept, kept),
            ));
        }
    }

    /// Marks the tables in which readers find the kept commits. With volumes, older tables are read
    /// from there.
    fn mark_tables(&self, marks: &mut Marks, retained: Address) -> Result<()> {
        let Control { table: mut next, volumes, kept, .. } = self.inner.view().control;

        // Opening the store reads this table, and with volumes no later table replaces it.
        if let Some(kept) = kept.filter(|_| volumes > 0) {
            marks.mark(kept.at);
        }

        // From the newest table down to the one with the oldest kept commit.
        while let Some(at) = next {
            marks.mark(at.at);
            let table = table_at(&self.inner.pack, at)?;
            let is_last = table.commits.iter().any(|(_, extent)| extent.at < retained);
            let is_archived = |at: &Extent| volumes > 0 && at.at < retained;
            next = table.before.filter(|before| !is_last && !is_archived(before));
        }

        Ok(())
    }

    /// Marks the targets of the records written in `from..to`.
    fn mark_written(
        &self,
        marks: &mut Marks,
        from: Address,
        to: Address,
        pace: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let pack = &self.inner.pack;
        let empty = self.rules().empty_hash();
        debug_assert!(from <= to, "the pack grows");
        for number in from.chunk..=to.chunk {
            let chunk = pack.chunk(number)?;

            // A chunk with a successor ends where the successor says.
            let end = if number == to.chunk { to.unit } else { self.end_of(number)? };
            let (runs, damaged) = chunk.all_runs(end)?;

            if let Some(unit) = damaged {
                let what = Corrupt::rule("a frame is whole", u64::from(end), u64::from(unit));
                return Err(pack.corrupt(Address { chunk: number, unit }, what));
            }

            for run in runs {
                let at = Address { chunk: number, unit: run.unit };

                // Frames before `from` were marked in an earlier round.
                if at < from || at >= to {
                    continue;
                }

                chunk.each_record(run, &mut |extent, body| {
                    let fail = |what| pack.corrupt(extent.at, what);
                    let body = body.map_err(fail)?;
                    if body.first() == Some(&COMMIT) {
                        // The root may be an old one: a context may be committed unchanged.
                        let commit = CommitRecord::decode(extent.at, empty, body).map_err(fail)?;
                        return marks.mark_all(
                            pack,
                            commit.root.map(|root| root.extent).into_iter().collect(),
                        );
                    }
                    marks.mark_below(pack, extent, body)
                })?;

                pace(unit_bytes(u64::from(run.units)))?;
            }
        }

        Ok(())
    }

    /// Returns the end of a chunk that has a successor.
    fn end_of(&self, number: u32) -> Result<u32> {
        Ok(self.inner.pack.chunk_aside(number + 1)?.head.before)
    }

    fn switch(&self, plan: &Plan, writer: &mut Writer, end: u32, marks: &Arc<Marks>) -> Result<()> {
        // First, so that no commit refers to garbage once the record is written.
        *self.marks.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(marks));
        let change = ControlChange {
            retained: Some((plan.retained, plan.exceptions())),
            collecting: Some(end),
            ..Default::default()
        };
        self.checkpoint(writer, &change)
    }

    fn reclaim(
        &self,
        plan: &Plan,
        marks: &Marks,
        first: u32,
        end: u32,
        pacer: &mut Pacer<'_>,
    ) -> Result<GcReport> {
        // The last one: none is added while a collection runs.
        let volume = self.inner.view().control.volumes.checked_sub(1);
        let mut report = GcReport {
            kept: plan.kept.len() as u64,
            collected: if volume.is_some() { 0 } else { plan.collected },
            chunks: u64::from(end - first),
            ..GcReport::default()
        };
        {
            // Both pages of the control record must hide the removed commits and count the volumes,
            // whichever page is read later.
            let mut writer = lock(&self.writer);
            self.check_writable(&writer)?;
            self.checkpoint(&mut writer, &ControlChange::default())?;
        }

        // Names of parts are durable before a chunk loses its records.
        let pack = &self.inner.pack;
        if volume.is_some() {
            self.or_poison(pack.sync_volumes())?;
        }

        // Chunks go from the oldest up, so that whole ones can be cut off at the front.
        let mut new_first = first;
        let mut put_off = Vec::new();
        for number in first..end {
            self.reclaim_chunk(number, &mut new_first, marks, &mut report, pacer, &mut put_off)?;
        }
        assert!(first <= new_first && new_first <= end, "the first chunk moves within the range");
        report.freed_bytes += self.chunk_bytes(first, new_first)?;
        report.removed = u64::from(new_first - first);

        if !put_off.is_empty() {
            // Removing whole chunks may make room for the others.
            self.move_first(first, new_first, None)?;
            self.reclaim_on_full_disk(&mut put_off, &mut new_first, marks, &mut report, pacer)?;
        }

        // The index loses its entries before the collection counts as finished.
        let is_cleaned = match volume {
            Some(_) => Ok(()),
            None => self.clean_index(marks, end, pacer),
        };

        let is_through = match is_cleaned {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                report.put_off += 1;
                false
            }
            cleaned => cleaned.map(|()| true)?,
        };

        // Garbage that was put off is harmless: the index no longer has it, and nothing else finds
        // it.
        self.move_first(first, new_first, is_through.then_some(0))?;
        Ok(report)
    }

    /// Rewrites the chunks that had no room, fewest live bytes first: room freed by one is room for
    /// the next, and the reserve is room for the first.
    ///
    /// Ends when no chunk can be rewritten; fails if none was.
    fn reclaim_on_full_disk(
        &self,
        put_off: &mut Vec<PutOff>,
        new_first: &mut u32,
        marks: &Marks,
        report: &mut GcReport,
        pacer: &mut Pacer<'_>,
    ) -> Result<()> {
        self.give_reserve_up()?;
        let before = *new_first;
        loop {
            // Fewest live bytes first: the copy is short, and frees most.
            put_off.sort_unstable_by_key(|chunk| (chunk.live, chunk.number));
            let mut left = Vec::new();
            for chunk in &*put_off {
                self.reclaim_chunk(chunk.number, new_first, marks, report, pacer, &mut left)?;
            }
            let is_progress = left.len() < put_off.len();
            *put_off = left;
            if put_off.is_empty() || !is_progress {
                break;
            }
        }

        report.freed_bytes += self.chunk_bytes(before, *new_first)?;
        report.removed += u64::from(*new_first - before);
        report.put_off = put_off.len() as u64;
        report.live_bytes += put_off.iter().map(|chunk| chunk.live).sum::<u64>();

        match put_off.pop() {
            Some(chunk) if report.freed_bytes == 0 && report.removed == 0 => Err(chunk.error),
            _ => Ok(()),
        }
    }

    /// Rewrites a chunk without its garbage if that is worth it, or moves the first chunk of the
    /// store behind it. A chunk without room is put off.
    fn reclaim_chunk(
        &self,
        number: u32,
        new_first: &mut u32,
        marks: &Marks,
        report: &mut GcReport,
        pacer: &mut Pacer<'_>,
        put_off: &mut Vec<PutOff>,
    ) -> Result<()> {
        // The last one: none is added while a collection runs.
        let volume = self.inner.view().control.volumes.checked_sub(1);
        let chunk = self.inner.pack.chunk_aside(number)?;
        let found = self.look_through(&chunk, marks, volume.is_some(), pacer)?;
        let Use { live, garbage, .. } = found;

        // A chunk without live records at the front goes as a whole; others must be worth a copy.
        let is_first = live == 0 && *new_first == number;
        if is_first || garbage > 0 && garbage * GARBAGE_PARTS >= live + garbage {
            match self.rewrite_chunk(&chunk, &found, volume, is_first, report, pacer) {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    put_off.push(PutOff { number, live, error });
                    return Ok(());
                }
                rewritten => rewritten?,
            }
            if is_first {
                *new_first = number + 1;
            }
        }

        report.live_bytes += live;
        Ok(())
    }

    /// Moves the garbage of a chunk to the volume, if there is one. Then rewrites the chunk, unless
    /// it goes as a whole.
    fn rewrite_chunk(
        &self,
        chunk: &Chunk,
        found: &Use,
        volume: Option<u16>,
        is_first: bool,
        report: &mut GcReport,
        pacer: &mut Pacer<'_>,
    ) -> Result<()> {
        let pack = &self.inner.pack;

        // The part is durable when `archive` returns.
        if let Some(volume) = volume {
            report.archived_bytes +=
                pack.archive(chunk, &found.archived, volume, &mut |bytes| pacer.add(bytes))?;
        }

        if !is_first {
            let before = chunk.file.len()?;
            pack.compact(chunk, &found.kept, &mut |bytes| pacer.add(bytes))?;
            let after = pack.chunk_aside(chunk.head.number)?.file.len()?;
            report.compacted += 1;
            report.freed_bytes += before.saturating_sub(after);
        }

        Ok(())
    }

    /// Writes the first chunk and the state of the collection to the control record, and removes
    /// the chunks before.
    fn move_first(&self, first: u32, new_first: u32, collecting: Option<u32>) -> Result<()> {
        assert!(first <= new_first, "the first chunk never moves back");
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        let change = ControlChange { collecting, first: Some(new_first), ..Default::default() };
        self.checkpoint(&mut writer, &change)?;

        // The record hides the chunks before they are removed.
        drop(writer);
        self.inner.pack.remove_before(first, new_first)
    }

    /// Sorts the records of a chunk into live, garbage, and, with `archives`, garbage that no
    /// volume has.
    fn look_through(
        &self,
        chunk: &Chunk,
        marks: &Marks,
        archives: bool,
        pacer: &mut Pacer<'_>,
    ) -> Result<Use> {
        let mut found = Use::default();
        let parts =
            if archives { self.inner.pack.parts_of(chunk.head.number)? } else { Vec::new() };
        let end = self.end_of(chunk.head.number)?;
        let (mut runs, damaged) = chunk.all_runs(end)?;

        // Records behind damage cannot be told apart, so they stay.
        runs.extend(damaged.map(|unit| Run { unit, stored: unit, units: end - unit }));
        for run in runs {
            let mut is_damaged = false;
            chunk.each_record(run, &mut |extent, body| {
                if is_damaged {
                    return Ok(());
                }
                // Behind a damaged record, the ends of records are unknown: the rest of the run
                // stays.
                is_damaged = body.is_err();

                let skipped = extent.at.unit - run.unit;
                let units = if is_damaged {
                    run.units - skipped
                } else {
                    extent.bytes.div_ceil(UNIT_BYTES as u32)
                };
                let record = Run { unit: extent.at.unit, stored: run.stored + skipped, units };
                if is_damaged || marks.is_kept(extent.at) {
                    found.live += unit_bytes(u64::from(units));
                    extend(&mut found.kept, record);
                    return Ok(());
                }
                found.garbage += unit_bytes(u64::from(units));
                if archives && parts.iter().all(|part| part.locate(extent.at).is_none()) {
                    extend(&mut found.archived, record);
                }
                Ok(())
            })?;

            pacer.add(unit_bytes(u64::from(run.units)))?;
        }

        debug_assert_eq!(
            found.live,
            unit_bytes(found.kept.iter().map(|run| u64::from(run.units)).sum()),
            "live bytes are those of the kept runs"
        );

        Ok(found)
    }

    /// Removes the collected objects from the index.
    fn clean_index(&self, marks: &Marks, end: u32, pacer: &mut Pacer<'_>) -> Result<()> {
        let Some(index) = &self.inner.index else { return Ok(()) };
        let is_gone = |key: &IndexKey, value: &IndexValue| {
            let at = extent(*value).at;
            *key != STATE_KEY && at.chunk < end && !marks.is_live(at)
        };

        // Batches, so that commits wait for few lookups at a time.
        let mut from = STATE_KEY;
        loop {
            let mut gone: Vec<IndexKey> = Vec::with_capacity(REMOVALS);
            let mut visit = |key: &IndexKey, value: &IndexValue| {
                if is_gone(key, value) {
                    gone.push(*key);
                }
                gone.len() < REMOVALS
            };

            index.each_from(&from, &mut visit).map_err(Error::index)?;
            let Some(last) = gone.last() else { return Ok(()) };
            from = *last;

            // Under this lock, objects written again since are indexed at their new address, and
            // stay.
            let writer = lock(&self.writer);
            let mut removed = Vec::with_capacity(gone.len());
            for key in &gone {
                if index.find(key).map_err(Error::index)?.is_some_and(|value| is_gone(key, &value))
                {
                    removed.push(*key);
                }
            }

            index.remove(&removed).map_err(Error::index)?;
            drop(writer);
            pacer.add(0)?;
        }
    }
}

/// Appends a run to ascending runs, and merges it with an adjacent last run.
fn extend(runs: &mut Vec<Run>, run: Run) {
    debug_assert!(run.units > 0, "a record takes a unit");
    debug_assert!(runs.last().is_none_or(|last| last.unit + last.units <= run.unit), "runs ascend");
    match runs.last_mut() {
        Some(last)
            if (last.unit + last.units, last.stored + last.units) == (run.unit, run.stored) =>
        {
            last.units += run.units;
        }
        _ => runs.push(run),
    }
}
