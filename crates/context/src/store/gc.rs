//! Collection: taking away the commits that are no longer wanted, and what only they reach, while the store is read and
//! written.
//!
//! 1. **Mark.** The chunk that is written to is ended. What is reachable from the commits that are kept, from branches, and
//!    from trees that are in use is marked, in one sweep over the older chunks from the newest to the oldest. Nothing is
//!    changed; a collection that is cancelled here, or whose process ends, has not been.
//! 2. **Switch.** What was written meanwhile is looked through; then the control record says which commits are kept. From
//!    here on the others are gone.
//! 3. **Reclaim.** Chunk by chunk, what is not marked is left out of a copy that takes the chunk's place; so the disk holds one
//!    chunk twice, never more. Addresses stay. A collection that ends here leaves garbage, which the next one takes.
//!
//! On a full disk the chunks come in the order of what is in use of them, so that what one frees is room for the next; the store has a
//! reserve for the first one. What there is no room for stays garbage, and the report says how many chunks have it.
//!
//! In a store with an archive nothing is lost: what is not marked goes to the volume that was added last, and every commit can
//! be read as before. So there is no second step, and in the third a chunk is rewritten once the copy of what it loses is
//! durable. A collection that ends anywhere has moved some of it; the next one moves the rest.
//!
//! `pace` is called after each piece of work, of about 1 MiB of input or output: it may wait, so that the store's own work goes
//! first, and it may cancel.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};

use terrane_io::ErrorKind;

use crate::base::address::{Address, Extent, UNIT_BYTES};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::fast_map::FastMap;
use crate::base::hash::Hash;
use crate::pack::archive::{check_marker, is_empty, marker_path, stage_marker, volume_dir};
use crate::pack::chunk::{Chunk, Run};
use crate::pack::commit::{COMMIT, Commit, CommitRecord};
use crate::pack::control::Control;
use crate::pack::index::{IndexKey, IndexValue, STATE_KEY, extent};
use crate::pack::marks::{Marks, unit_bytes};
use crate::store::inner::table_at;
use crate::store::store::{ControlChange, Store, Writer, lock};

/// Chunks are compacted when at least one part in so many of them is garbage.
const GARBAGE_PARTS: u64 = 16;
/// Keys that are looked for and removed from the index at once.
const REMOVALS: usize = 128;
/// So much of what was written during a collection is read while commits wait.
const LOCKED_BYTES: u64 = 2 << 20;
/// Rounds of reading what was written during the round before.
const ROUNDS_MAX: usize = 32;

/// Which commits are kept. Heads of branches always are, and so is what is made during the collection.
#[derive(Debug, Clone, Default)]
pub struct Retain {
    newest: Option<u64>,
    since: Option<Hash>,
    commits: Vec<Hash>,
    everything: bool,
}

impl Retain {
    /// The `count` commits that were made last.
    pub fn newest(count: u64) -> Self {
        Self { newest: Some(count), ..Self::default() }
    }

    /// `commit`, and all that were made after it.
    pub fn since(commit: Hash) -> Self {
        Self { since: Some(commit), ..Self::default() }
    }

    /// All commits that there are: for garbage that flushes and interrupted collections have left.
    pub fn everything() -> Self {
        Self { everything: true, ..Self::default() }
    }

    /// Also this commit, however old.
    #[must_use]
    pub fn and(mut self, commit: Hash) -> Self {
        self.commits.push(commit);
        self
    }
}

/// What a collection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcPhase {
    /// Looking for what is in use. Cancelling leaves everything as it was.
    Mark,
    /// Taking away what is not. Cancelling leaves the rest as garbage.
    Reclaim,
}

/// How far a collection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcProgress {
    /// What it is doing.
    pub phase: GcPhase,
    /// Bytes that were read in this phase, and in the second one written.
    pub bytes: u64,
    /// Bytes of the chunks that it looks at.
    pub total_bytes: u64,
}

/// What the caller of a collection wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcPace {
    /// Go on.
    Go,
    /// Stop.
    Cancel,
}

/// What a collection has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GcReport {
    /// Commits that are kept, without those made meanwhile.
    pub kept: u64,
    /// Commits that were collected: none in a store with an archive.
    pub collected: u64,
    /// Chunks that were looked at.
    pub chunks: u64,
    /// Chunks that were rewritten without their garbage.
    pub compacted: u64,
    /// Chunks that were removed.
    pub removed: u64,
    /// Bytes in use in the chunks that were looked at.
    pub live_bytes: u64,
    /// Bytes that were given back to the file system.
    pub freed_bytes: u64,
    /// Bytes that were written to a volume.
    pub archived_bytes: u64,
    /// Chunks whose garbage stays, as the disk has no room for what is in use of them; the index counts as one if it has no room to
    /// lose its entries. Make room, and collect [everything](Retain::everything). Commits refer to older objects by their hashes
    /// all the same, unless it is the index that was put off.
    pub put_off: u64,
}

/// A commit that is kept.
struct Kept {
    hash: Hash,
    extent: Extent,
    root: Option<Address>,
}

/// What is to be kept.
struct Plan {
    /// The first commit that is kept with all that follow.
    retained: Address,
    kept: Vec<Kept>,
    /// The heads of branches that are among them.
    heads: BTreeSet<Hash>,
    /// How many are not kept.
    collected: u64,
}

impl Plan {
    /// Commits that are kept below the first one that all after are.
    fn exceptions(&self) -> Vec<(Hash, Extent)> {
        let below = self.kept.iter().filter(|commit| commit.extent.at < self.retained);
        below.map(|commit| (commit.hash, commit.extent)).collect()
    }

    fn keeps(&self, extent: Extent) -> bool {
        extent.at >= self.retained || self.kept.iter().any(|commit| commit.extent == extent)
    }
}

/// What is in use of a chunk.
#[derive(Debug, Default)]
struct Use {
    /// Ascending.
    kept: Vec<Run>,
    /// What is not in use and in no volume; ascending.
    archived: Vec<Run>,
    /// Bytes in use, and of the rest.
    live: u64,
    garbage: u64,
}

/// A chunk that the disk had no room for.
struct PutOff {
    number: u32,
    /// Bytes in use, of which a copy is to be made.
    live: u64,
    error: Error,
}

/// Calls back after each piece of work.
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
    /// Takes away all commits but those that are to be kept, and what only they reach; in a store with
    /// [volumes](Self::add_volume), moves it to the last one, where it can be read as before. Runs in the thread of the caller;
    /// others go on reading and committing.
    ///
    /// Cost: reads the older chunks twice at most, and writes those with garbage once, without it, and the garbage to a volume
    /// if there is one. Takes 2 to 4 bytes of memory for each record in use, never more than a 32nd of what was written, and some
    /// MiB.
    ///
    /// # Errors
    /// [`GcRunning`](Error::GcRunning), [`GcCancelled`](Error::GcCancelled), [`UnknownCommit`](Error::UnknownCommit) for one that
    /// is to be kept, [`AbsentVolume`](Error::AbsentVolume) and [`ForeignVolume`](Error::ForeignVolume) if the last volume is not
    /// there, [`PartExists`](Error::PartExists), [`Corrupt`](Error::Corrupt) if something that is in use is damaged: nothing is
    /// taken away then; and those of [`commit`](Self::commit).
    pub fn collect(
        &self,
        retain: &Retain,
        pace: &mut dyn FnMut(&GcProgress) -> GcPace,
    ) -> Result<GcReport> {
        let _running = self.no_collection()?;
        let Control { volumes, store, .. } = self.inner.view().control;
        if let Some(last) = volumes.checked_sub(1) {
            // The catalog may be of a time at which a volume was away.
            self.inner.pack.look_into(last, store)?;
        }
        // What a collection writes before it frees anything must not fail for want of room.
        self.give_reserve_up()?;
        // What is committed from here on is in newer chunks than those that are looked at.
        let report =
            self.end_chunk().and_then(|(first, end)| self.collect_before(retain, first, end, pace));
        self.try_to_hold_reserve();
        lock(&self.held).again = None;
        *self.marks.write().unwrap_or_else(PoisonError::into_inner) = None;
        report
    }

    /// Collects what lies in the chunks from `first` on up to `end`.
    fn collect_before(
        &self,
        retain: &Retain,
        first: u32,
        end: u32,
        pace: &mut dyn FnMut(&GcProgress) -> GcPace,
    ) -> Result<GcReport> {
        let mut plan = self.plan(retain, end)?;
        let total_bytes = self.chunk_bytes(first, end)?;
        let progress = GcProgress { phase: GcPhase::Mark, bytes: 0, total_bytes };
        let mut pacer = Pacer { progress, pace, closing: &self.closing };
        let marks = self.mark(&mut plan, Marks::new(first, end), end, &mut pacer)?;

        pacer.progress = GcProgress { phase: GcPhase::Reclaim, bytes: 0, total_bytes };
        self.reclaim(&plan, &marks, first, end, &mut pacer)
    }

    /// Keeps collections out.
    fn no_collection(&self) -> Result<MutexGuard<'_, ()>> {
        match self.collection.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(error)) => Ok(error.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Error::GcRunning),
        }
    }

    /// Adds a volume, to which collections move what they would take away otherwise, and gives its directory: `archive/volume-`
    /// and a number in the directory of the store, or `volume-` and a number in [`Options::archive_dir`](crate::Options::archive_dir).
    /// It may be a mount, made before; a link is refused. From the first one on the store has an archive: every commit that is there now, or will be, stays readable.
    ///
    /// Cost: two listings, and the writes and syncs of a new directory, its marker and a control record.
    ///
    /// # Errors
    /// [`EmptyVolume`](Error::EmptyVolume) if nothing was moved to the last one yet; [`AbsentVolume`](Error::AbsentVolume) if that is
    /// not there; [`ForeignVolume`](Error::ForeignVolume) if the directory is a volume already; [`GcRunning`](Error::GcRunning);
    /// [`GcUnfinished`](Error::GcUnfinished); [`InvalidConfig`](Error::InvalidConfig) for more than 65,535; and those of
    /// [`commit`](Self::commit). A reader has no such call.
    pub fn add_volume(&self) -> Result<PathBuf> {
        let _none_runs = self.no_collection()?;
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        let (disk, locations) = (&*self.inner.disk, self.inner.pack.locations());
        let archive = locations.archive();
        let control = self.inner.view().control;
        if control.collecting != 0 {
            return Err(Error::GcUnfinished);
        }
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
        // A directory elsewhere is there, with its marker.
        let inside = locations.has_archive_inside().then_some((locations.dir(), &archive));
        for (parent, made) in inside.into_iter().chain([(archive.as_path(), &path)]) {
            // A process that was killed may have made it.
            if disk.kind(made)?.is_none() {
                disk.create_dir(made)?;
            }
            self.or_poison(disk.sync_dir(parent))?;
        }
        let (marker, staged) = stage_marker(disk, &archive, control.volumes, control.store)?;
        self.or_poison(marker.sync())?;
        disk.rename(&staged, &marker_path(&archive, control.volumes))?;
        self.or_poison(disk.sync_dir(&path))?;
        let change = ControlChange { volumes: Some(volumes), ..Default::default() };
        self.checkpoint(&mut writer, &change)?;
        self.inner.pack.set_volumes(volumes);
        Ok(path)
    }

    /// The directories of the volumes, the one that was added last at the end; with any, collections lose nothing.
    pub fn volumes(&self) -> Vec<PathBuf> {
        self.inner.volumes()
    }

    /// Whether a collection was interrupted while it took garbage away; one of [everything](Retain::everything) takes the rest.
    pub fn has_unfinished_collection(&self) -> bool {
        self.inner.view().control.collecting != 0
    }

    /// Commits in the chunks from `end` on were made since the collection began: they stay, and count for nothing.
    ///
    /// Cost: reads each commit once; with volumes only those that count, and finds the others that are kept by the index. Takes
    /// 64 bytes of memory for each that is kept.
    fn plan(&self, retain: &Retain, end: u32) -> Result<Plan> {
        let old = self.inner.view().control.retained;
        let archives = self.inner.view().control.volumes > 0;
        let mut heads: BTreeSet<Hash> = self.branches().into_iter().map(|(_, head)| head).collect();
        let mut missing: BTreeSet<Hash> = retain.commits.iter().copied().collect();
        let wanted = missing.clone();
        let mut since = retain.since;
        let mut plan = Plan {
            retained: Address { chunk: end, unit: 0 },
            kept: Vec::new(),
            heads: BTreeSet::new(),
            collected: 0,
        };
        let mut left = retain.newest.unwrap_or(0);
        let mut commits = self.inner.newest();
        loop {
            let is_counting = left > 0 || since.is_some() || retain.everything;
            // With an archive the older ones are as many as were ever made, and nothing becomes of them.
            if archives && !is_counting {
                break;
            }
            let Some(commit) = commits.next() else { break };
            let (extent, CommitRecord { commit: Commit { hash, .. }, root, .. }) = commit?;
            let is_recent = extent.at.chunk >= end;
            let is_counted = !is_recent && is_counting;
            if is_counted {
                left = left.saturating_sub(1);
                // The oldest may be an exception, between which and the others commits are gone.
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
        if archives {
            self.plan_archived(&heads, &mut missing, &mut plan)?;
        } else if plan.collected == 0 {
            plan.retained = old;
        }
        match since.or(missing.pop_first()) {
            Some(hash) => Err(Error::UnknownCommit { hash }),
            None => Ok(plan),
        }
    }

    /// Keeps heads and others that the walk over the newest commits has not come to; what there is of `missing` is taken out.
    fn plan_archived(
        &self,
        heads: &BTreeSet<Hash>,
        missing: &mut BTreeSet<Hash>,
        plan: &mut Plan,
    ) -> Result<()> {
        for hash in heads | &*missing {
            if let Some((extent, CommitRecord { root, .. })) = self.inner.find_commit(&hash)? {
                plan.kept.push(Kept { hash, extent, root: root.map(|root| root.extent.at) });
                missing.remove(&hash);
            }
        }
        Ok(())
    }

    /// Ends the chunk that is written to; the chunks before the new one.
    fn end_chunk(&self) -> Result<(u32, u32)> {
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        self.roll(&mut writer)?;
        lock(&self.held).again = Some(Vec::new());
        Ok((self.inner.view().control.first, writer.tail.end.chunk))
    }

    fn chunk_bytes(&self, first: u32, end: u32) -> Result<u64> {
        let mut total = 0;
        for number in first..end {
            total += self.inner.pack.chunk_aside(number)?.file.len()?;
        }
        Ok(total)
    }

    /// Marks what is in use, and switches to it.
    fn mark(
        &self,
        plan: &mut Plan,
        mut marks: Marks,
        end: u32,
        pacer: &mut Pacer<'_>,
    ) -> Result<Arc<Marks>> {
        let pack = &self.inner.pack;
        for commit in &plan.kept {
            marks.mark(commit.extent.at);
            if let Some(root) = commit.root {
                marks.mark(root);
            }
        }
        for root in self.inner.pinned.roots() {
            marks.mark(root.at);
        }
        self.mark_tables(&mut marks, plan.retained)?;
        marks.sweep(pack, &mut |bytes| pacer.add(bytes))?;

        let start = Address { chunk: end, unit: 0 };
        let mut tail = lock(&self.writer).tail.end;
        self.mark_written(&mut marks, start, tail, &mut |bytes| pacer.add(bytes))?;
        // Those that commit may have written more meanwhile than a paced collection reads: without a pace it catches up.
        for _ in 0..ROUNDS_MAX {
            let (from, now) = (tail, lock(&self.writer).tail.end);
            self.mark_written(&mut marks, from, now, &mut |_| pacer.add(0))?;
            self.keep_more(plan, &mut marks, end)?;
            tail = now;
            if from.chunk == now.chunk && unit_bytes(u64::from(now.unit - from.unit)) < LOCKED_BYTES
            {
                break;
            }
        }
        // What was written since then is little: nobody waits long, and nobody is asked.
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        let end_now = writer.tail.end;
        self.mark_written(&mut marks, tail, end_now, &mut |_| Ok(()))?;
        if self.inner.view().control.volumes > 0 {
            return Ok(Arc::new(marks));
        }
        self.keep_more(plan, &mut marks, end)?;
        let before = self.hide(plan, &mut marks)?;
        let marks = Arc::new(marks);
        let switched = self.switch(plan, &mut writer, end, &marks);
        if switched.is_err() {
            let mut view = self.inner.view_mut();
            (view.control.retained, view.kept) = before;
        }
        switched.map(|()| marks)
    }

    /// Adds to the plan what must not be lost since it was made: heads of branches, commits that were made again, and those that
    /// calls under way hold. Under the lock of the writer nothing is added behind it.
    ///
    /// Cost: reads what only these commits reach.
    fn keep_more(&self, plan: &mut Plan, marks: &mut Marks, end: u32) -> Result<()> {
        if self.inner.view().control.volumes > 0 {
            return Ok(());
        }
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

    /// Lets no commit be checked out any more that is to be collected, once all that were are marked. What was to be seen
    /// before.
    fn hide(&self, plan: &Plan, marks: &mut Marks) -> Result<(Address, FastMap<Hash, Extent>)> {
        loop {
            marks.mark_all(&self.inner.pack, self.inner.pinned.roots())?;
            // A checkout pins its commit and looks whether it is kept under this lock.
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

    /// The tables by which readers find the commits that are kept. With volumes, older ones are found there.
    fn mark_tables(&self, marks: &mut Marks, retained: Address) -> Result<()> {
        let Control { table: mut next, volumes, kept, .. } = self.inner.view().control;
        // It is read whenever the store is opened, and with volumes none takes its place.
        if let Some(kept) = kept.filter(|_| volumes > 0) {
            marks.mark(kept.at);
        }
        while let Some(at) = next {
            marks.mark(at.at);
            let table = table_at(&self.inner.pack, at)?;
            let is_last = table.commits.iter().any(|(_, extent)| extent.at < retained);
            let is_archived = |at: &Extent| volumes > 0 && at.at < retained;
            next = table.before.filter(|before| !is_last && !is_archived(before));
        }
        Ok(())
    }

    /// Marks what the records written from `from` on up to `to` point at.
    fn mark_written(
        &self,
        marks: &mut Marks,
        from: Address,
        to: Address,
        pace: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let pack = &self.inner.pack;
        let empty = self.rules().empty_hash();
        for number in from.chunk..=to.chunk {
            let chunk = pack.chunk(number)?;
            let end = if number == to.chunk { to.unit } else { self.end_of(number)? };
            let (runs, damaged) = chunk.all_runs(end)?;
            if let Some(unit) = damaged {
                let what = Corrupt::rule("a frame is whole", u64::from(end), u64::from(unit));
                return Err(pack.corrupt(Address { chunk: number, unit }, what));
            }
            for run in runs {
                let at = Address { chunk: number, unit: run.unit };
                if at < from || at >= to {
                    continue;
                }
                chunk.each_record(run, &mut |extent, body| {
                    let fail = |what| pack.corrupt(extent.at, what);
                    let body = body.map_err(fail)?;
                    if body.first() == Some(&COMMIT) {
                        // Its root may be an old one: that of a context that was committed as it was checked out.
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

    /// Where a chunk ends that others follow.
    fn end_of(&self, number: u32) -> Result<u32> {
        Ok(self.inner.pack.chunk_aside(number + 1)?.head.before)
    }

    fn switch(&self, plan: &Plan, writer: &mut Writer, end: u32, marks: &Arc<Marks>) -> Result<()> {
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
            // In both pages of the control record: whichever is read later, it does not offer what is being taken away, and has
            // the volumes.
            let mut writer = lock(&self.writer);
            self.check_writable(&writer)?;
            self.checkpoint(&mut writer, &ControlChange::default())?;
        }
        let pack = &self.inner.pack;
        if volume.is_some() {
            self.or_poison(pack.sync_volumes())?;
        }
        let mut new_first = first;
        let mut put_off = Vec::new();
        for number in first..end {
            self.reclaim_chunk(number, &mut new_first, marks, &mut report, pacer, &mut put_off)?;
        }
        report.freed_bytes += self.chunk_bytes(first, new_first)?;
        report.removed = u64::from(new_first - first);
        if !put_off.is_empty() {
            // The chunks that go as a whole may make room for the others.
            self.move_first(first, new_first, None)?;
            self.reclaim_on_full_disk(&mut put_off, &mut new_first, marks, &mut report, pacer)?;
        }

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
        // Garbage that was put off is no hindrance: the index has none of it any more, and nothing else finds it.
        self.move_first(first, new_first, is_through.then_some(0))?;
        Ok(report)
    }

    /// Rewrites the chunks that there was no room for, those with least in use first: what one frees is room for the next.
    /// The reserve is room for the first. Ends where no chunk can be rewritten any more; without any that was, it fails.
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

    /// Rewrites a chunk without what is not marked, if that is worth it; or moves the first chunk that is kept behind it. A
    /// chunk that the disk has no room for is put off.
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

    /// Moves what is not in use of a chunk to the volume, if there is one; then leaves it out, unless the chunk goes as a whole.
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

    /// Says in the control record which chunk is the first that is kept, and whether the collection goes on, and removes the chunks
    /// before.
    fn move_first(&self, first: u32, new_first: u32, collecting: Option<u32>) -> Result<()> {
        let mut writer = lock(&self.writer);
        self.check_writable(&writer)?;
        let change = ControlChange { collecting, first: Some(new_first), ..Default::default() };
        self.checkpoint(&mut writer, &change)?;
        drop(writer);
        self.inner.pack.remove_before(first, new_first)
    }

    /// What of a chunk is in use. What is not is to be archived if `archives` says so, but for what a volume has already.
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
        // What cannot be told apart stays as it is.
        runs.extend(damaged.map(|unit| Run { unit, stored: unit, units: end - unit }));
        for run in runs {
            let mut is_damaged = false;
            chunk.each_record(run, &mut |extent, body| {
                if is_damaged {
                    return Ok(());
                }
                // Where records end cannot be told behind a damaged one: the rest of the run stays.
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
        Ok(found)
    }

    /// Takes out of the index what was collected.
    fn clean_index(&self, marks: &Marks, end: u32, pacer: &mut Pacer<'_>) -> Result<()> {
        let Some(index) = &self.inner.index else { return Ok(()) };
        let is_gone = |key: &IndexKey, value: &IndexValue| {
            let at = extent(*value).at;
            *key != STATE_KEY && at.chunk < end && !marks.is_live(at)
        };
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
            // What was made anew meanwhile is indexed under this lock, and stays.
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

/// Adds a run to ascending ones, to the last one if it follows that.
fn extend(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last)
            if (last.unit + last.units, last.stored + last.units) == (run.unit, run.stored) =>
        {
            last.units += run.units;
        }
        _ => runs.push(run),
    }
}
