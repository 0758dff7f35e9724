//! State that the writer and the readers of a store share: the pack, the index, and the view of
//! commits and branches.

use std::path::PathBuf;

use terrane_io::Disk;
use terrane_io::process::Process;
use terrane_io::sync::atomic::{AtomicBool, Ordering};
use terrane_io::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::base::address::{Address, Extent, Link};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::fast_map::FastMap;
use crate::base::hash::Hash;
use crate::base::hashing::{BRANCHING_MAX, Rules};
use crate::base::latency::{FindSampler, LatencyCounters};
use crate::object::pins::{Pinned, Pins};
use crate::pack::archive::volume_dir;
use crate::pack::chunk::FIRST_UNIT;
use crate::pack::commit::{
    Branches, COMMIT, Commit, CommitRecord, CommitTable, STATE, apply_branches,
};
use crate::pack::control::{CONTROL, Control};
use crate::pack::frame::{FrameKind, records};
use crate::pack::index::{Object, ObjectIndex, extent, key};
use crate::pack::marks::Marks;
use crate::pack::pack::{FollowLimit, Pack, Tail};
use crate::store::context::Context;
use crate::store::verified_source::VerifiedSource;
use crate::store::watch::{HeadChange, Watches};
use crate::tree::head::Head;
use crate::tree::node::{Child, Content, Env, Node, Shape, Source};
use crate::tree::tree::{Tree, empty_dir};

/// View: the state of a store beside its pack.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) control: Control,
    /// Commits that the index may lack: those made since the control record was written.
    pub(crate) recent: FastMap<Hash, Extent>,
    /// The index is complete below this address.
    pub(crate) indexed: Address,
    pub(crate) branches: Branches,
    /// Commits kept although later ones were collected.
    pub(crate) kept: FastMap<Hash, Extent>,
    /// The newest commit.
    pub(crate) last: Option<Extent>,
    pub(crate) commits: u64,
    /// Chunks below this one may be gone: a later control record, now lost, may have removed them.
    pub(crate) first_known: u32,
}

impl View {
    /// View of a control record alone, without the frames behind it.
    pub(crate) fn new(control: Control) -> Self {
        Self {
            recent: FastMap::default(),
            indexed: control.tail,
            branches: Branches::new(),
            kept: FastMap::default(),
            last: control.last,
            commits: control.commits,
            first_known: control.first,
            control,
        }
    }

    /// Returns whether a commit was not collected.
    pub(crate) fn is_kept(&self, hash: &Hash, extent: Extent) -> bool {
        // Exceptions are compared with their extent: a collected commit may be made again.
        extent.at >= self.control.retained || self.kept.get(hash) == Some(&extent)
    }

    pub(crate) fn add_commit(&mut self, hash: Hash, extent: Extent) {
        debug_assert!(
            self.last.is_none_or(|last| last.at < extent.at),
            "commits are in order of the pack"
        );
        self.recent.insert(hash, extent);
        self.last = Some(extent);
        self.commits += 1;
    }
}

/// Cache of the tables of commits that a reader has read, newest first.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    commits: FastMap<Hash, Extent>,
    /// The newest table that was read, and the next table to read.
    newest: Option<Extent>,
    next: Option<Extent>,
}

/// State that writer and readers share. See the [module](self).
#[derive(Debug)]
pub(crate) struct StoreInner {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) pack: Arc<Pack>,
    pub(crate) env: Arc<Env>,
    /// Nodes of the newest commit of this process.
    pub(crate) head: Arc<Head>,
    /// Index of the writer. A reader has none; it searches the tables of commits.
    pub(crate) index: Option<Box<dyn ObjectIndex>>,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) view: RwLock<View>,
    pub(crate) pinned: Pinned,
    pub(crate) closed: AtomicBool,
    /// The process that opened the store, and may use it.
    pub(crate) process: Process,
    pub(crate) watches: Watches,
    pub(crate) latencies: Arc<LatencyCounters>,
}

/// Recovers the view of a control record: reads its branches, and follows the frames behind its
/// tail.
///
/// # Errors
/// [`Corrupt`](Error::Corrupt) if they do not, or if the pack is not where the record says; those
/// of [`Pack::follow`].
pub(crate) fn recover(pack: &Pack, view: &mut View, limit: FollowLimit) -> Result<Tail> {
    let control = view.control;
    pack.set_store(control.store)?;
    pack.set_first(control.first);
    pack.set_volumes(control.volumes);

    // The tables as of the control record; the frames behind it change them.
    if let Some(table) = control.branches {
        pack.with_body(table, |body| apply_branches(body, &mut view.branches))?
            .map_err(|what| pack.corrupt(table.at, what))?;
    }

    if let Some(kept) = control.kept {
        view.kept.extend(table_at(pack, kept)?.commits);
    }

    let tail = follow(pack, view, control.tail, control.chain, limit)?;
    pack.set_first(control.first.max(view.first_known));

    // Without a frame behind the tail nothing vouches for its position but the bytes before it. A
    // repair, which may cut the pack there, wants these bytes in any case.
    let has_more = limit.stops_at_damage || tail.chunk.file.len()? > tail.end.offset();

    if tail.end == control.tail && has_more && !starts_at(&tail) {
        let what = Corrupt::rule("the pack is where the control record says", 1, 0);
        return Err(pack.corrupt(tail.end, what));
    }

    Ok(tail)
}

/// Returns whether the bytes before a tail without later frames are where they were written.
fn starts_at(tail: &Tail) -> bool {
    // At the beginning of a chunk only its head can vouch for the position.
    let is_begun = tail.end.unit == FIRST_UNIT;
    if is_begun { tail.chunk.head.chain == tail.chain } else { Pack::has_state_before(tail) }
}

/// Reads the table of commits at an extent.
pub(crate) fn table_at(pack: &Pack, at: Extent) -> Result<CommitTable> {
    pack.with_body(at, |body| CommitTable::decode(at.at, body))?
        .map_err(|what| pack.corrupt(at.at, what))
}

/// Returns a table of commits and those before it, newest first, up to the first unreadable table.
pub(crate) fn tables_from(
    pack: &Pack,
    newest: Option<Extent>,
) -> impl Iterator<Item = Result<CommitTable>> + '_ {
    let mut next = newest;
    std::iter::from_fn(move || {
        let table = table_at(pack, next.take()?);
        next = table.as_ref().ok().and_then(|table| table.before);
        Some(table)
    })
}

/// Advances a view from one tail to the next.
pub(crate) fn follow(
    pack: &Pack,
    view: &mut View,
    from: Address,
    chain: u32,
    limit: FollowLimit,
) -> Result<Tail> {
    let control = view.control;
    let empty = control.rules.empty_hash();
    pack.follow(from, chain, limit, &mut |kind, at, payload| {
        match kind {
            FrameKind::Objects => {}
            FrameKind::Commit | FrameKind::CommitTo => {
                // The last record is the commit, or the branch behind the commit.
                let mut commit = None;
                let mut last = None;
                for record in records(at, payload) {
                    commit = last.replace(record);
                }
                let branch = if kind == FrameKind::CommitTo { last } else { None };
                let Some((extent, body)) = branch.and(commit).or(last) else { return Ok(()) };
                let record = body
                    .and_then(|body| CommitRecord::decode(extent.at, empty, body))
                    .map_err(|what| pack.corrupt(extent.at, what))?;
                if let Some((extent, body)) = branch {
                    body.and_then(|body| apply_branches(body, &mut view.branches))
                        .map_err(|what| pack.corrupt(extent.at, what))?;
                }
                // Last, so that a damaged frame leaves the view as it was.
                view.add_commit(record.commit.hash, extent);
            }
            FrameKind::Commits => {
                let mut commits = Vec::new();
                for (extent, body) in records(at, payload) {
                    let fail = |what| pack.corrupt(extent.at, what);
                    let body = body.map_err(fail)?;
                    if body.first() == Some(&COMMIT) {
                        let record = CommitRecord::decode(extent.at, empty, body).map_err(fail)?;
                        commits.push((record.commit.hash, extent));
                    } else {
                        // The last record of the frame.
                        apply_branches(body, &mut view.branches).map_err(fail)?;
                    }
                }
                // Last, so that a damaged frame leaves the view as it was.
                for (hash, extent) in commits {
                    view.add_commit(hash, extent);
                }
            }
            FrameKind::Branches => {
                for (extent, body) in records(at, payload) {
                    if let Ok([STATE, copy @ ..]) = body {
                        let state = Control::of_copy(&pack.dir().join(CONTROL), copy)?;
                        view.first_known = view.first_known.max(state.first);
                    }
                    body.and_then(|body| apply_branches(body, &mut view.branches))
                        .map_err(|what| pack.corrupt(extent.at, what))?;
                }
            }
        }
        Ok(())
    })
}

impl StoreInner {
    /// State of a store that was just recovered, without an index.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        pack: Arc<Pack>,
        rules: Rules,
        view: View,
        head: Head,
    ) -> Self {
        let source: Arc<dyn Source> = Arc::clone(&pack) as _;
        let latencies = Arc::<LatencyCounters>::default();
        let finds = FindSampler::new(Arc::clone(&disk), Arc::clone(&latencies));
        Self {
            disk,
            dir: pack.dir().to_owned(),
            pack,
            env: Arc::new(Env::new(rules, Some(source), false).with_finds(finds)),
            head: Arc::new(head),
            index: None,
            tables: Mutex::default(),
            view: RwLock::new(view),
            pinned: Pinned::default(),
            closed: AtomicBool::new(false),
            process: Process::current(),
            watches: Watches::default(),
            latencies,
        }
    }

    /// Makes trees hash each node and value again that they load. Called before there are trees.
    pub(crate) fn verify_reads(&mut self) {
        let rules = self.env.rules;
        let source: Arc<dyn Source> = Arc::new(VerifiedSource::new(Arc::clone(&self.pack), rules));
        let finds = FindSampler::new(Arc::clone(&self.disk), Arc::clone(&self.latencies));
        self.env = Arc::new(Env::new(rules, Some(source), false).with_finds(finds));
    }

    pub(crate) fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn view_mut(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the commit record at an extent.
    pub(crate) fn commit_at(&self, at: Extent) -> Result<CommitRecord> {
        let empty = self.env.rules.empty_hash();
        self.pack
            .with_body(at, |body| CommitRecord::decode(at.at, empty, body))?
            .map_err(|what| self.pack.corrupt(at.at, what))
    }

    /// Returns the extent of an object, if the index has it and it was not collected.
    ///
    /// Cost: a lookup in the index; for a reader one read for each table of commits down to that
    /// which has it, the first time.
    pub(crate) fn indexed(&self, object: Object, hash: &Hash) -> Result<Option<Extent>> {
        // Index and tables may lag, or name objects that a collection removed since.
        let found = match &self.index {
            Some(index) => index.find(&key(object, hash)).map_err(Error::index)?.map(extent),
            None => self.find_in_tables(hash)?,
        };
        let view = self.view();
        // Without volumes, objects of earlier chunks are gone.
        let first = if view.control.volumes > 0 { 0 } else { view.control.first };
        Ok(found.filter(|extent| extent.at < view.indexed && extent.at.chunk >= first))
    }

    fn find_in_tables(&self, hash: &Hash) -> Result<Option<Extent>> {
        let Control { table: newest, retained, .. } = self.view().control;
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);

        // A new control record, or a collection, begins a new chain of tables.
        if tables.newest != newest {
            *tables = Tables { newest, next: newest, ..Tables::default() };
        }

        loop {
            if let Some(extent) = tables.commits.get(hash) {
                return Ok(Some(*extent));
            }
            let Some(at) = tables.next else { return Ok(None) };
            let table = table_at(&self.pack, at)?;
            // The view has the kept commits below `retained`.
            let is_last = table.commits.iter().any(|(_, extent)| extent.at < retained);
            tables.commits.extend(table.commits);
            tables.next = table.before.filter(|_| !is_last);
        }
    }

    /// Refuses a call in a child of the process that opened the store.
    pub(crate) fn check_process(&self) -> Result<()> {
        Ok(self.process.check(&self.dir)?)
    }

    /// Returns the commit of a hash, if it exists and was not collected.
    pub(crate) fn find_commit(&self, hash: &Hash) -> Result<Option<(Extent, CommitRecord)>> {
        self.check_process()?;
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }

        let recent = {
            let view = self.view();
            view.recent.get(hash).or_else(|| view.kept.get(hash)).copied()
        };

        // Recent commits are not indexed yet.
        let extent = match recent {
            Some(extent) => Some(extent),
            None => self.indexed(Object::Commit, hash)?,
        };

        let Some(extent) = extent.filter(|extent| self.view().is_kept(hash, *extent)) else {
            return Ok(None);
        };

        let record = match self.commit_at(extent) {
            Ok(record) => record,
            // A collection removed the commit meanwhile.
            Err(_) if !self.view().is_kept(hash, extent) => return Ok(None),
            Err(error) => return Err(error),
        };

        Ok((record.commit.hash == *hash).then_some((extent, record)))
    }

    /// Checks out a commit.
    pub(crate) fn checkout(&self, hash: &Hash) -> Result<Option<Context>> {
        let Some((extent, record)) = self.find_commit(hash)? else { return Ok(None) };

        // The pin comes before the load, so that no collection removes a node in between.
        let pins = Pins::default();
        if let Some(root) = &record.root {
            // A collection reads the pins and hides commits under this lock.
            let view = self.view();
            if !view.is_kept(hash, extent) {
                return Ok(None);
            }
            pins.add(self.pinned.pin(root.extent));
        }

        Ok(Some(Context::new(self.tree_of(&record, pins)?, vec![record.commit.hash])))
    }

    /// Returns the tree of a commit.
    pub(crate) fn tree_of(&self, record: &CommitRecord, pins: Pins) -> Result<Tree> {
        // The empty directory is never stored.
        let root = match &record.root {
            None => empty_dir(),
            Some(link) => Child::Dir(match self.head.root(link) {
                Some(root) => root,
                None => self.env.load_at(link, 0)?,
            }),
        };
        Ok(Tree::at(Arc::clone(&self.env), root, pins).with_head(&self.head))
    }

    /// Calls the watches for the changes before `end`.
    pub(crate) fn call_watches(&self, end: Address) {
        self.watches.call(end, &|change, path| self.differ(change, path).unwrap_or(true));
    }

    /// Returns whether the heads of a change differ at a path.
    fn differ(&self, change: &HeadChange, path: &[Box<[u8]>]) -> Result<bool> {
        // A head that was collected meanwhile is an error, which the caller takes for a difference.
        let at_path = |head: Option<Hash>| -> Result<Option<Tree>> {
            let Some(hash) = head else { return Ok(None) };
            self.checkout(&hash)?.ok_or(Error::UnknownCommit { hash })?.find_tree(path)
        };
        Ok(at_path(change.before)? != at_path(change.after)?)
    }

    /// Returns an empty tree of this store.
    pub(crate) fn empty(&self) -> Tree {
        Tree::at(Arc::clone(&self.env), empty_dir(), Pins::default())
    }

    /// Returns the commits, newest first. An unreadable commit is an error, behind which older
    /// commits follow.
    pub(crate) fn newest(&self) -> impl Iterator<Item = Result<(Extent, CommitRecord)>> + '_ {
        self.chain().map(|(extent, record)| Ok((extent, record?)))
    }

    /// Returns the extents of the commits, newest first, each with its record if that is readable.
    pub(crate) fn chain(&self) -> impl Iterator<Item = (Extent, Result<CommitRecord>)> + '_ {
        let (retained, mut next, mut kept) = {
            let view = self.view();
            let mut kept: Vec<Extent> = view.kept.values().copied().collect();
            kept.sort_unstable_by_key(|extent| extent.at);
            (view.control.retained, view.last, kept)
        };

        // Each commit names the one before, down to the first kept; exceptions follow.
        std::iter::from_fn(move || {
            if let Some(extent) = next.take().filter(|extent| extent.at >= retained) {
                let record = self.commit_at(extent);

                // The tables of commits lead past an unreadable record.
                next = match &record {
                    Ok(record) => record.before,
                    Err(_) => self.commit_before(extent.at).ok().flatten(),
                };
                return Some((extent, record));
            }
            let extent = kept.pop()?;
            Some((extent, self.commit_at(extent)))
        })
    }

    /// Returns the tables of commits, newest first, up to the first unreadable table.
    pub(crate) fn tables(&self) -> impl Iterator<Item = Result<CommitTable>> + '_ {
        let newest = self.view().control.table;
        tables_from(&self.pack, newest)
    }

    /// Returns the newest commit before an address, without reading commits.
    ///
    /// Cost: one read for each table of commits down to the address.
    ///
    /// # Errors
    /// The error of an unreadable table: whether there is such a commit is unknown then.
    pub(crate) fn commit_before(&self, at: Address) -> Result<Option<Extent>> {
        let newest_of = |extents: &mut dyn Iterator<Item = Extent>| {
            extents.filter(|extent| extent.at < at).max_by_key(|extent| extent.at)
        };
        let recent = newest_of(&mut self.view().recent.values().copied());
        if recent.is_some() {
            return Ok(recent);
        }

        for table in self.tables() {
            let found = newest_of(&mut table?.commits.into_iter().map(|(_, extent)| extent));
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Returns the oldest commit from which on the latest collection kept all; `None` if no
    /// collection removed commits, or if no such commit is left.
    ///
    /// Cost: one read for each table of commits.
    pub(crate) fn oldest_retained(&self) -> Result<Option<Hash>> {
        let (retained, mut commits) = {
            let view = self.view();
            let recent = view.recent.iter().map(|(hash, extent)| (*hash, *extent));
            (view.control.retained, recent.collect::<Vec<_>>())
        };
        if retained == (Address { chunk: 0, unit: 0 }) {
            return Ok(None);
        }

        // Tables behind the one that has an older commit may be gone.
        for table in self.tables() {
            let table = table?;
            let is_last = table.commits.iter().any(|(_, extent)| extent.at < retained);
            commits.extend(table.commits);
            if is_last {
                break;
            }
        }
        let kept = commits.into_iter().filter(|(_, extent)| extent.at >= retained);
        Ok(kept.min_by_key(|(_, extent)| extent.at).map(|(hash, _)| hash))
    }

    /// Returns the hash of a commit whose record is unreadable, if a table of commits has it.
    pub(crate) fn hash_in_tables(&self, at: Extent) -> Option<Hash> {
        let name = |(hash, extent): (Hash, Extent)| (extent == at).then_some(hash);
        let kept = self.view().kept.iter().find_map(|(hash, extent)| name((*hash, *extent)));
        kept.or_else(|| {
            self.tables().flatten().find_map(|table| table.commits.into_iter().find_map(name))
        })
    }

    /// Head of a branch.
    pub(crate) fn branch(&self, name: &[u8]) -> Option<Hash> {
        self.view().branches.get(name).copied()
    }

    /// All branches with their heads, by name.
    pub(crate) fn branches(&self) -> Vec<(Vec<u8>, Hash)> {
        self.view().branches.iter().map(|(name, head)| (name.clone(), *head)).collect()
    }

    /// Directories of the volumes.
    pub(crate) fn volumes(&self) -> Vec<PathBuf> {
        let volumes = self.view().control.volumes;
        let archive = self.pack.locations().archive();
        (0..volumes).map(|volume| volume_dir(&archive, volume)).collect()
    }

    pub(crate) fn commit_of(&self, hash: &Hash) -> Result<Commit> {
        match self.find_commit(hash)? {
            Some((_, record)) => Ok(record.commit),
            None => Err(Error::UnknownCommit { hash: *hash }),
        }
    }

    /// Calls `visit` with a directory and all objects below it that are not in `seen`.
    ///
    /// Calls `skip` with the error of an unreadable directory or inode. If `skip` returns `Ok`,
    /// the walk leaves out the directory and all below it.
    pub(crate) fn each_object(
        &self,
        root: Link,
        seen: &mut Marks,
        skip: &mut dyn FnMut(Error) -> Result<()>,
        visit: &mut dyn FnMut(Object, &Link) -> Result<()>,
    ) -> Result<()> {
        let mut stack = vec![root];
        while let Some(link) = stack.pop() {
            if !seen.mark(link.extent.at) {
                continue;
            }

            let record = match self.pack.record_at(link.extent) {
                Ok(record) => record,
                Err(error) => {
                    skip(error)?;
                    continue;
                }
            };

            visit(Object::Dir, &link)?;

            let node = Node::of_record(record, &link);

            match node.shape() {
                Shape::Inner(inner) => {
                    let buckets = 0..BRANCHING_MAX as usize;
                    stack.extend(buckets.filter_map(|bucket| inner.stored_link(bucket)));
                }
                Shape::Entries(entries) => {
                    for item in 0..entries.len() {
                        match entries.spot(item).content() {
                            Content::DirAt(link) => stack.push(link),
                            Content::ValueAt(link) if seen.mark(link.extent.at) => {
                                visit(Object::Value, &link)?;
                            }
                            _ => {}
                        }
                    }
                }
            }
        }

        Ok(())
    }

    /// Calls `visit` with the objects behind the tail of the control record that recent commits
    /// reach. Damaged directories, and all that only they reach, are left out.
    ///
    /// Cost: one read for each directory and inode of these.
    pub(crate) fn each_recent(&self, visit: &mut dyn FnMut(Object, &Link)) -> Result<()> {
        let (tail, last, commits) = {
            let view = self.view();
            (view.control.tail, view.last, view.recent.values().copied().collect::<Vec<Extent>>())
        };

        // Marks cover the chunks of the recent frames only: older objects are indexed.
        let end = last.map_or(tail.chunk, |last| last.at.chunk);
        let mut seen = Marks::new(tail.chunk, end + 1);

        // The reader of the object reports the damage.
        let mut skip = |error| match error {
            Error::Corrupt { .. } | Error::Collected { .. } | Error::VolumeMissing { .. } => Ok(()),
            error => Err(error),
        };

        for commit in commits {
            let root = self.commit_at(commit)?.root;
            let Some(root) = root.filter(|root| root.extent.at >= tail) else { continue };
            self.each_object(root, &mut seen, &mut skip, &mut |object, link| {
                if link.extent.at >= tail {
                    visit(object, link);
                }
                Ok(())
            })?;
        }

        Ok(())
    }
}
