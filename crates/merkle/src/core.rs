//! What a writer and a reader of a store share: the pack, the index, and what is known about commits and branches.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use terrane_io::Disk;

use crate::address::{Address, Place};
use crate::commit::{Branches, Commit, CommitRecord, CommitTable, apply_branches};
use crate::context::Context;
use crate::control::{Control, Indexing};
use crate::error::{Error, Result};
use crate::frame::{FrameKind, records};
use crate::hash::Hash;
use crate::index::{Object, ObjectIndex, key, place};
use crate::node::{Child, Env, Node};
use crate::pack::{Pack, Tail};
use crate::pins::{Pinned, Pins};
use crate::quick::QuickMap;
use crate::tree::{Tree, empty_dir};

/// What is known about a store beside its pack.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) control: Control,
    /// Commits that the index may not have: those made since the control record was written.
    pub(crate) recent: QuickMap<Hash, Place>,
    /// The index is right about what lies below.
    pub(crate) indexed: Address,
    pub(crate) branches: Branches,
    /// The commit made last.
    pub(crate) last: Option<Place>,
    pub(crate) commits: u64,
}

impl View {
    /// What a control record knows by itself.
    pub(crate) fn new(control: Control) -> Self {
        Self {
            recent: QuickMap::default(),
            indexed: control.tail,
            branches: Branches::new(),
            last: control.last,
            commits: control.commits,
            control,
        }
    }

    pub(crate) fn add_commit(&mut self, hash: Hash, place: Place) {
        self.recent.insert(hash, place);
        self.last = Some(place);
        self.commits += 1;
    }
}

/// Tables of commits that a reader has looked at, from the newest on.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    commits: QuickMap<Hash, Place>,
    /// The newest table that was read, and the next one to be read.
    newest: Option<Place>,
    next: Option<Place>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) pack: Arc<Pack>,
    pub(crate) env: Arc<Env>,
    /// What a writer finds commits by; a reader has the tables of commits.
    pub(crate) index: Option<Box<dyn ObjectIndex>>,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) view: RwLock<View>,
    pub(crate) pinned: Pinned,
}

/// Reads what follows a control record: its branches, and the frames behind its tail.
pub(crate) fn recover(pack: &Pack, view: &mut View) -> Result<Tail> {
    let control = view.control;
    pack.set_first(control.first);
    if let Some(table) = control.branches {
        let body = pack.body(table)?;
        apply_branches(&body, &mut view.branches).map_err(|what| pack.corrupt(table.at, what))?;
    }
    follow(pack, view, control.tail, control.chain)
}

/// Brings a view from one tail to the next.
pub(crate) fn follow(pack: &Pack, view: &mut View, from: Address, chain: u32) -> Result<Tail> {
    let control = view.control;
    let empty = control.rules.empty_hash();
    pack.follow(from, chain, control.store, &mut |kind, at, payload| {
        match kind {
            FrameKind::Objects => {}
            FrameKind::Commit => {
                let last = records(at, payload).last();
                let (place, body) = match last {
                    Some(Ok(record)) => record,
                    Some(Err(what)) => return Err(pack.corrupt(at, what)),
                    None => return Ok(()),
                };
                let record = CommitRecord::decode(place.at, empty, body)
                    .map_err(|what| pack.corrupt(place.at, what))?;
                view.add_commit(record.commit.hash, place);
            }
            FrameKind::Branches => {
                for record in records(at, payload) {
                    let (place, body) = record.map_err(|what| pack.corrupt(at, what))?;
                    apply_branches(body, &mut view.branches)
                        .map_err(|what| pack.corrupt(place.at, what))?;
                }
            }
        }
        Ok(())
    })
}

impl Core {
    pub(crate) fn view(&self) -> RwLockReadGuard<'_, View> {
        self.view.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn view_mut(&self) -> RwLockWriteGuard<'_, View> {
        self.view.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The commit record at a place.
    pub(crate) fn commit_at(&self, at: Place) -> Result<CommitRecord> {
        let body = self.pack.body(at)?;
        CommitRecord::decode(at.at, self.env.rules.empty_hash(), &body)
            .map_err(|what| self.pack.corrupt(at.at, what))
    }

    /// Where an object is that the index has.
    ///
    /// Cost: that of the index; for a reader one read for each table of commits down to that which has it, the first time.
    pub(crate) fn indexed(&self, object: Object, hash: &Hash) -> Result<Option<Place>> {
        let found = match &self.index {
            Some(index) => index.find(&key(object, hash)).map_err(Error::index)?.map(place),
            None => self.find_in_tables(hash)?,
        };
        let view = self.view();
        Ok(found.filter(|place| place.at < view.indexed && place.at.chunk >= view.control.first))
    }

    fn find_in_tables(&self, hash: &Hash) -> Result<Option<Place>> {
        let newest = self.view().control.table;
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if tables.newest != newest {
            *tables = Tables { newest, next: newest, ..Tables::default() };
        }
        loop {
            if let Some(place) = tables.commits.get(hash) {
                return Ok(Some(*place));
            }
            let Some(at) = tables.next else { return Ok(None) };
            let table = self.table_at(at)?;
            tables.commits.extend(table.commits);
            tables.next = table.before;
        }
    }

    fn table_at(&self, at: Place) -> Result<CommitTable> {
        CommitTable::decode(at.at, &self.pack.body(at)?)
            .map_err(|what| self.pack.corrupt(at.at, what))
    }

    /// The commit of a hash.
    pub(crate) fn find_commit(&self, hash: &Hash) -> Result<Option<(Place, CommitRecord)>> {
        let recent = self.view().recent.get(hash).copied();
        let place = match recent {
            Some(place) => Some(place),
            None => self.indexed(Object::Commit, hash)?,
        };
        let Some(place) = place else { return Ok(None) };
        let record = self.commit_at(place)?;
        Ok((record.commit.hash == *hash).then_some((place, record)))
    }

    /// The context of a commit.
    pub(crate) fn checkout(&self, hash: &Hash) -> Result<Option<Context>> {
        let Some((_, record)) = self.find_commit(hash)? else { return Ok(None) };
        Ok(Some(Context::new(self.tree_of(&record)?, vec![record.commit.hash])))
    }

    /// The tree of a commit.
    pub(crate) fn tree_of(&self, record: &CommitRecord) -> Result<Tree> {
        let pins = Pins::default();
        let root = match &record.root {
            None => empty_dir(),
            Some(link) => {
                pins.add(self.pinned.pin(link.place));
                let node = Node::of_record(self.pack.record_at(link.place)?, Some(*link));
                Child::Dir(Arc::new(node))
            }
        };
        Ok(Tree { env: Arc::clone(&self.env), root, pins })
    }

    /// An empty tree of this store.
    pub(crate) fn empty(&self) -> Tree {
        Tree { env: Arc::clone(&self.env), root: empty_dir(), pins: Pins::default() }
    }

    /// The commits in the order in which they were made, the newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = Result<(Place, CommitRecord)>> + '_ {
        let mut next = self.view().last;
        let first = self.view().control.first;
        std::iter::from_fn(move || {
            let place = next.take().filter(|place| place.at.chunk >= first)?;
            Some(self.commit_at(place).map(|record| {
                next = record.before;
                (place, record)
            }))
        })
    }

    pub(crate) fn commit_of(&self, hash: &Hash) -> Result<Commit> {
        match self.find_commit(hash)? {
            Some((_, record)) => Ok(record.commit),
            None => Err(Error::UnknownCommit { hash: *hash }),
        }
    }

    pub(crate) fn indexing(&self) -> Indexing {
        self.view().control.indexing
    }
}
