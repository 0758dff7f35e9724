//! Repairing an index: everything but leaves is made anew from leaves and the log.
//!
//! Leaves say by themselves which keys they are for, so superblocks, inner nodes, the map of used
//! pages and the state of the draining can be lost without losing an entry. A repair reads every
//! page, finds the leaves of the tree (module `salvage`), writes new nodes above them, and puts the
//! log above the leaves as an opening does.
//!
//! What is exact and what is not: if all leaves of the tree are whole, everything that was flushed
//! is there again. The keys of a damaged leaf are taken from an older leaf where the file still has
//! one, and reported as *stale*: what was updated, removed or added since is as the log has it, or
//! else as it was then. What no leaf is for is reported as *lost*. Where parts of the map of used
//! pages are lost, leaves there are told apart by age: if they are exactly as many as there were,
//! these are the right ones; if not, all of them are reported as stale. With both superblocks lost
//! their number is not known; then leaves that follow each other without a gap are taken for the
//! right ones.
//!
//! Invariants: nothing that was there is written over until a superblock leads to the new tree:
//! only new pages behind the end of the file are written, so an interrupted repair has done
//! nothing. Who writes is locked out.

use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Access, Anchor, Disk, LockGuard, OpenMode, Reserve};

use crate::check::check::check;
use crate::check::salvage::{FoundLeaf, KnownMap, Piece, Scan, cover, doubt, most_frequent_tree};
use crate::index::index::{
    Index, TREE_FILE, TREE_TEMPORARY, enter, existing_tree, read_applied, replay, tree_of,
    write_first_superblock,
};
use crate::index::writer::{Writer, opened_state};
use crate::log::applied::Applied;
use crate::log::pending::UpdateBuffer;
use crate::log::quarantine::Quarantine;
use crate::log::wal::{self, Frame, FrameBody, LostTree, Salvaged, Wal, salvage};
use crate::page::block::Block;
use crate::page::error::{Error, Result};
use crate::page::leaf::{Fences, Leaf};
use crate::page::page::{KeyRange, PageNo, PageRef, SUPERBLOCKS};
use crate::pager::config::{Config, LOG_BYTES_MIN, MEMORY_BYTES_MIN};
use crate::pager::free_map::FreeMap;
use crate::pager::pager::Pager;
use crate::pager::superblock::{self, LevelPages, Owner, Superblock};
use crate::tree::bulk::{Builder, Built};
use crate::tree::cursor::Cursor;
use crate::tree::state::Core;
use crate::tree::tree::{Epoch, Tree};

/// How full nodes are made, in per cent.
const FILL_PERCENT: u32 = 90;

/// Entries that are collected before leaves are made of them, in bytes.
const COLLECTED_BYTES: usize = 64 << 10;

/// Whether a repair may lose something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// If a leaf or the log is damaged, or the tree file is missing, nothing is done, and the
    /// report says what would be lost.
    Refused,
    /// Keys of a damaged leaf come from an older one, or are gone; updates of a damaged part of the
    /// log are gone.
    Accepted,
}

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Nothing was wrong, and nothing was done; all else is 0 but the entries.
    pub was_whole: bool,
    /// Something would have been lost, which was not accepted, so nothing was done: `stale` and
    /// `lost` say what.
    pub was_refused: bool,
    /// Pages of the file that were read.
    pub pages_scanned: u64,
    /// Leaves that the new tree has as they were.
    pub leaves_kept: u64,
    /// Other whole pages: nodes, which were made anew, and what older trees had.
    pub pages_dropped: u64,
    /// Damaged pages that the tree had, or may have had.
    pub pages_damaged: u64,
    /// Parts of the map of used pages that were lost: each says which 32,512 pages are in use.
    pub maps_lost: u64,
    /// Superblocks that were written anew as the other one and all else was whole; nothing else was
    /// done then.
    pub superblocks_rewritten: u64,
    /// Ranges of keys that were taken from older leaves, ascending.
    pub stale: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Ranges of keys that no leaf was for, ascending.
    pub lost: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Whether the tree file was missing: of all keys, which `lost` names, only those are left that
    /// the log has.
    pub tree_lost: bool,
    /// Positions of the log whose updates are lost, from the first on and below the second,
    /// ascending. Of which keys they were nothing tells; updates behind them are there.
    pub log_lost: Vec<(u64, u64)>,
    /// Entries of the index, those that only the log has included.
    pub entries: u64,
}

/// The directory of an index, anchored and locked.
type LockedDir = (Box<dyn Anchor>, Box<dyn LockGuard>);

/// What is known of the tree that was published.
#[derive(Debug)]
struct Basis {
    /// What there is of it; made up where no superblock is whole.
    superblock: Superblock,
    /// The generation of a superblock that must not be written over.
    kept: Option<u64>,
    applied: Applied,
    map: KnownMap,
    /// Leaves of later generations are not of the tree.
    generation_max: u64,
    /// How many leaves it had, if that is known.
    leaves: Option<u64>,
    /// Whether the tree is known to have no leaf.
    is_empty: bool,
}

/// Rebuilds what is damaged of an index from its leaves and its log; does nothing if a check finds
/// no problem.
///
/// If all leaves are whole, everything that was flushed is there again. If not, nothing is done
/// unless [`Loss::Accepted`]: then keys of a damaged leaf are taken from an older one where the
/// file still has it, and named.
///
/// Cost: a check; reads every page of the file and each leaf once more, writes the nodes and what
/// has to be joined. Memory: for each leaf its fences and some hundred bytes, for each damaged or
/// dropped page four bytes; the log as when opening.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Locked`], [`Error::UnsupportedVersion`], [`Error::Disk`];
/// [`Error::NotAnIndex`] or [`Error::Corrupt`] if neither a superblock nor a leaf is whole. Nothing
/// was changed then.
pub fn repair(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    loss: Loss,
    mut progress: impl FnMut(u64, u64),
) -> Result<RepairReport> {
    let (dir, anchor) = enter(disk.as_ref(), dir)?;
    let dir = dir.as_path();
    match existing_tree(disk.as_ref(), dir) {
        Err(Error::TreeMissing { .. }) => {
            let lock = Index::lock(disk.as_ref(), dir)?;
            return repair_without_tree(disk, dir, loss, (anchor, lock));
        }
        found => found?,
    };
    let lock = Index::lock(disk.as_ref(), dir)?;
    match check(disk, dir, &mut |_, _| {}) {
        Ok(report) if report.problems.is_empty() => {
            let entries = report.entries;
            return Ok(RepairReport { was_whole: true, entries, ..RepairReport::default() });
        }
        Ok(report) if report.problems.len() as u64 == report.damaged_superblocks => {
            rewrite_superblock(disk, dir, (anchor, lock))?;
            let (superblocks_rewritten, entries) = (report.damaged_superblocks, report.entries);
            return Ok(RepairReport { superblocks_rewritten, entries, ..RepairReport::default() });
        }
        Ok(_) | Err(Error::Corrupt { .. } | Error::NotAnIndex { .. }) => {}
        Err(error) => return Err(error),
    }
    let (pager, scan, basis) = find_basis(disk, dir, &mut progress)?;
    let mut pieces = Vec::new();
    if !basis.is_empty {
        pieces = cover(&scan.leaves, &basis.map, basis.generation_max);
        doubt(&mut pieces, basis.leaves);
    }
    let mut report = report_on(&scan, &basis, &pieces);
    let generation = basis.next_generation(&scan);
    let mut applied = basis.applied;
    for (low, high) in report.stale.iter().chain(&report.lost) {
        // The log may have more of it than the leaf.
        applied.set(low, high.as_deref(), basis.superblock.log_start);
    }
    let found = read_log(disk, dir, &basis.superblock, &applied)?;
    report.log_lost.clone_from(&found.salvaged.gaps);
    if loss == Loss::Refused && report.loses_something() {
        return Ok(RepairReport { was_refused: true, ..report });
    }
    let (free_map, tree) = rebuild(&pager, generation, &scan, &pieces, &mut report)?;
    let superblock = Superblock {
        generation: generation - 1,
        applied: None,
        lists: Vec::new(),
        ..basis.superblock
    };
    let core =
        Core::new(anchor, dir.to_owned(), pager, opened_state(tree, found.pending.clone(), 0));
    report.entries = publish(disk, core, (superblock, applied, free_map), found, lock)?;
    Ok(report)
}

/// Publishes the tree once more, where the damaged superblock is.
fn rewrite_superblock(disk: &Arc<dyn Disk>, dir: &Path, held: LockedDir) -> Result<()> {
    let superblock = superblock::read(disk.as_ref(), &dir.join(TREE_FILE))?;
    let mut limits = Config::variable().with_memory(MEMORY_BYTES_MIN).check()?;
    limits.sizes = superblock.sizes;
    let index = Index::open_locked(disk.clone(), dir, limits, held)?;
    index.checkpoint()?;
    index.close()
}

/// Makes a tree file for a log whose own is lost, and puts the log above it.
fn repair_without_tree(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    loss: Loss,
    (anchor, lock): LockedDir,
) -> Result<RepairReport> {
    let Some(LostTree { owner, start }) = wal::find_lost_tree(disk.as_ref(), dir)? else {
        return Err(Error::NotFound { path: dir.to_owned() });
    };
    let applied = Applied::up_to(start);
    let superblock = Superblock { log_start: start, log_end: start, ..Superblock::first(owner) };
    let found = read_log(disk, dir, &superblock, &applied)?;
    // Which entries only the leaves had, nothing tells.
    let mut report = RepairReport {
        tree_lost: true,
        lost: vec![(Vec::new(), None)],
        log_lost: found.salvaged.gaps.clone(),
        ..RepairReport::default()
    };
    if loss == Loss::Refused {
        return Ok(RepairReport { was_refused: true, ..report });
    }
    let temporary = dir.join(TREE_TEMPORARY);
    drop(write_first_superblock(disk.as_ref(), &temporary, owner)?);
    let file = disk.open(&temporary, OpenMode::ReadWrite, Access::Direct)?;
    let cache_bytes = MEMORY_BYTES_MIN / 2;
    let pager = Pager::new(disk.clone(), file, owner.tree, owner.sizes, cache_bytes);
    let core = Core::new(
        anchor,
        dir.to_owned(),
        pager,
        opened_state(tree_of(&superblock), found.pending.clone(), 0),
    );
    report.entries = publish(disk, core, (superblock, applied, FreeMap::new()), found, lock)?;
    disk.rename(&temporary, &dir.join(TREE_FILE))?;
    disk.sync_dir(dir)?;
    Ok(report)
}

/// Makes the tree of `core`, with what was found of the log above it, the published one; returns
/// the entries of both.
fn publish(
    disk: &Arc<dyn Disk>,
    core: Core,
    (superblock, applied, free_map): (Superblock, Applied, FreeMap),
    found: FoundLog,
    lock: Box<dyn LockGuard>,
) -> Result<u64> {
    let core = Arc::new(core);
    let tree = core.state()?.tree.clone();
    let entries = count_entries(&core)?;
    let mut limits = Config::variable().with_memory(MEMORY_BYTES_MIN).check()?;
    limits.sizes = superblock.sizes;
    let is_broken = found.salvaged.is_broken;
    let old = found.salvaged.segments.clone();
    let (wal, applied) = found.into_log(disk, &core.dir, &superblock, applied, entries)?;
    let mut writer = Writer {
        disk: disk.clone(),
        limits,
        free_map,
        wal,
        reserve: Reserve::none(),
        body: FrameBody::default(),
        applied: applied.clone(),
        opened_generation: superblock.generation,
        superblock,
        maps: Vec::new(),
        flushed_entries: entries,
        epochs: VecDeque::from([tree.epoch.clone()]),
        readers: (None, 0),
        quarantine: Quarantine::default(),
        scrub_from: Vec::new(),
        before_flush: None,
        poisoned: None,
        _lock: lock,
    };
    let start = writer.wal.start();
    writer.publish(&core, &tree, applied, entries, |_| {})?;
    // It has happened already, and the other superblock leads to what was there before.
    if let Err(error) = writer.checkpoint(&core) {
        tracing::warn!(path = %core.dir.display(), %error, "cleanup.failed");
    }
    if is_broken {
        let old: Vec<u64> = old.into_iter().filter(|&old| old < start).collect();
        wal::remove_segments(disk.as_ref(), &core.dir, &old);
    }
    Ok(entries)
}

impl Basis {
    /// A generation above all there are, whose superblock goes where none is that is needed.
    fn next_generation(&self, scan: &Scan) -> u64 {
        let next = scan.generation_max.max(self.superblock.generation) + 1;
        if self.kept.is_some_and(|kept| kept % 2 == next % 2) { next + 1 } else { next }
    }
}

impl RepairReport {
    fn loses_something(&self) -> bool {
        !(self.stale.is_empty() && self.lost.is_empty() && self.log_lost.is_empty())
    }
}

/// Reads all pages, and tells which tree was published.
fn find_basis(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Pager, Scan, Basis)> {
    let path = dir.join(TREE_FILE);
    let file = disk.open(&path, OpenMode::ReadWrite, Access::Direct)?;
    let both = superblock::read_both(disk.as_ref(), &path)?;
    let newest = both.iter().flatten().max_by_key(|superblock| superblock.generation).cloned();
    let tree = match &newest {
        Some(superblock) => Some(superblock.tree),
        None => most_frequent_tree(file.as_ref())?,
    };
    let refused = || superblock::refused(&path, &both);
    let tree = tree.ok_or_else(refused)?;
    let sizes = newest.as_ref().map(|superblock| superblock.sizes);
    let scan = Scan::read(file.as_ref(), tree, sizes, progress)?;
    let sizes = scan.sizes.ok_or_else(refused)?;
    let pager = Pager::new(disk.clone(), file, tree, sizes, MEMORY_BYTES_MIN / 2);
    // With one superblock lost, a checkpoint that is newer than the other may have been published
    // by it.
    let is_last = |superblock: &Superblock| {
        both.iter().all(std::result::Result::is_ok)
            || superblock.generation >= scan.checkpoint_max()
    };
    let kept = newest.as_ref().map(|superblock| superblock.generation);
    let basis = match newest {
        Some(superblock) if is_last(&superblock) => Basis {
            kept,
            // Whoever applies all of the log needs not know what the tree has of it.
            applied: read_applied(&pager, &superblock)
                .unwrap_or_else(|_| Applied::up_to(superblock.log_start)),
            map: KnownMap::read(&pager, &superblock.lists, superblock.pages),
            generation_max: superblock.generation,
            leaves: Some(superblock.level_pages[0]),
            is_empty: superblock.root.is_none(),
            superblock,
        },
        older => {
            let log_start = wal::first_position(disk.as_ref(), dir, pager.tree)?.unwrap_or(0);
            let replaced = older.map_or(0, |older| older.replaced);
            Basis { kept, ..guess(&pager, &scan, log_start, replaced) }
        }
    };
    Ok((pager, scan, basis))
}

/// What is known of the tree without its superblock.
fn guess(pager: &Pager, scan: &Scan, log_start: u64, replaced: u64) -> Basis {
    let generation = scan.checkpoint_max();
    let applied = scan.applied.as_ref().filter(|(of, _)| *of == generation);
    let applied = applied.map_or(Applied::up_to(log_start), |(_, applied)| applied.clone());
    let lists: &[PageRef] = if scan.lists.0 == generation { &scan.lists.1 } else { &[] };
    let map = KnownMap::read(pager, lists, scan.pages);
    let may_be_used = |page: &PageNo| map.says(*page) != Some(false);
    let has_leaf = scan.leaves.iter().any(|leaf| may_be_used(&leaf.page.number))
        || scan.damaged.iter().any(may_be_used);
    let log_start = applied.oldest().0;
    let superblock = Superblock {
        tree: pager.tree,
        generation: generation.max(1),
        oldest: scan.generation_max,
        sizes: pager.sizes,
        height: 0,
        root: None,
        applied: None,
        pages: scan.pages,
        entries: 0,
        log_start,
        log_end: log_start,
        replaced,
        level_pages: LevelPages::default(),
        lists: Vec::new(),
    };
    let generation_max = if generation > 0 { generation } else { u64::MAX };
    let is_empty = generation > 0 && !has_leaf;
    Basis { superblock, kept: None, applied, map, generation_max, leaves: None, is_empty }
}

fn report_on(scan: &Scan, basis: &Basis, pieces: &[Piece]) -> RepairReport {
    let may_be_used = |page: &&PageNo| basis.map.says(**page) != Some(false);
    let mut report = RepairReport {
        pages_scanned: scan.pages,
        pages_damaged: scan.damaged.iter().filter(may_be_used).count() as u64,
        maps_lost: basis.map.lost(),
        ..RepairReport::default()
    };
    for piece in pieces {
        let ranges = match piece.leaf {
            None => &mut report.lost,
            Some(_) if piece.is_stale => &mut report.stale,
            Some(_) => continue,
        };
        match ranges.last_mut() {
            Some((_, high)) if high.as_ref() == Some(&piece.keys.0) => {
                high.clone_from(&piece.keys.1);
            }
            _ => ranges.push(piece.keys.clone()),
        }
    }
    report
}

/// What a log has above the leaves.
#[derive(Debug)]
struct FoundLog {
    pending: UpdateBuffer,
    /// Where all entries were last replaced at once.
    replaced: u64,
    salvaged: Salvaged,
}

/// Reads the updates that leaves do not have. Nothing is written.
fn read_log(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    superblock: &Superblock,
    applied: &Applied,
) -> Result<FoundLog> {
    let mut pending = UpdateBuffer::default();
    let mut replaced = superblock.replaced;
    let owner = Owner { tree: superblock.tree, sizes: superblock.sizes };
    let reach = (superblock.log_start, superblock.log_end);
    let salvaged = salvage(disk.as_ref(), dir, owner, reach, |frame| {
        if frame.replaced > replaced {
            // No superblock told of that: updates before are of no use.
            replaced = frame.replaced;
            pending = UpdateBuffer::default();
        }
        replay(&mut pending, frame, applied, superblock.sizes, dir)
    })?;
    Ok(FoundLog { pending, replaced, salvaged })
}

impl FoundLog {
    /// The log to go on with, and what of it the tree has. One that an opening would refuse is
    /// written anew behind its end.
    fn into_log(
        self,
        disk: &Arc<dyn Disk>,
        dir: &Path,
        superblock: &Superblock,
        applied: Applied,
        entries: u64,
    ) -> Result<(Wal, Applied)> {
        let owner = Owner { tree: superblock.tree, sizes: superblock.sizes };
        if !self.salvaged.is_broken {
            let reach = (superblock.log_start, superblock.log_end);
            let each = |_: &Frame| Ok(());
            let mut wal = Wal::recover(disk, dir, owner.tree, reach, LOG_BYTES_MIN, each)?;
            wal.replaced = self.replaced;
            return Ok((wal, applied));
        }
        // Right behind what there is, so that an interrupted repair leaves no gap.
        let start = self.salvaged.end;
        let mut wal = Wal::create(disk, dir, owner, start, LOG_BYTES_MIN)?;
        wal.replaced = self.replaced;
        let mut body = FrameBody::default();
        for (key, value) in self.pending.iter() {
            body.push(key, value);
            if body.bytes() >= COLLECTED_BYTES {
                wal.append(&mut body, entries)?;
                body.clear();
            }
        }
        if !body.is_empty() {
            wal.append(&mut body, entries)?;
        }
        Ok((wal, Applied::up_to(start)))
    }
}

/// Writes a tree of the pieces into new pages; returns it with the pages that are in use.
fn rebuild(
    pager: &Pager,
    generation: u64,
    scan: &Scan,
    pieces: &[Piece],
    report: &mut RepairReport,
) -> Result<(FreeMap, Tree)> {
    let mut free_map = FreeMap::new();
    free_map.grow(scan.pages);
    free_map.take_all();
    let builder = Builder::new(pager, &mut free_map, generation, FILL_PERCENT)?;
    let mut rebuild = LeafRebuild { pager, builder, held: None, kept: HashSet::new() };
    for piece in pieces {
        rebuild.add(piece, &scan.leaves)?;
    }
    rebuild.flush(None)?;
    let LeafRebuild { builder, kept, .. } = rebuild;
    let built = builder.finish()?;
    report.leaves_kept = kept.len() as u64;
    report.pages_dropped = scan.whole - report.leaves_kept;
    let dropped = (SUPERBLOCKS..scan.pages as PageNo).filter(|page| !kept.contains(page));
    free_map.hold(generation - 1, dropped.collect());
    let epoch = Arc::new(Epoch(generation - 1));
    let Built { root, height, level_pages, .. } = built;
    Ok((free_map, Tree { root, height, level_pages, fresh_nodes: 0, epoch }))
}

/// Entries of the tree and of the log above it.
fn count_entries(core: &Arc<Core>) -> Result<u64> {
    let mut cursor = Cursor::ascending(core, (Vec::new(), None))?;
    let mut entries = 0;
    while cursor.next()?.is_some() {
        entries += 1;
    }
    Ok(entries)
}

/// What becomes one leaf, or some, of the new tree.
#[derive(Debug)]
enum Waiting {
    Stored(PageRef),
    Made(Block),
}

/// The leaves of a new tree, one after the other.
///
/// The last one is held with its low fence, as what follows may have to be joined with it: there is
/// no leaf without entries, so a range that was lost goes to its neighbour.
struct LeafRebuild<'a> {
    pager: &'a Pager,
    builder: Builder<'a>,
    held: Option<(Vec<u8>, Waiting)>,
    /// Pages of the leaves that stay as they were.
    kept: HashSet<PageNo>,
}

impl LeafRebuild<'_> {
    fn add(&mut self, piece: &Piece, leaves: &[FoundLeaf]) -> Result<()> {
        match piece.leaf.map(|at| leaves[at].page) {
            Some(page) if piece.is_whole => self.add_leaf(&piece.keys.0, page),
            Some(page) => {
                let entries = self.entries(page, &piece.keys)?;
                self.add_entries(&piece.keys.0, entries)
            }
            None => self.add_entries(&piece.keys.0, Block::default()),
        }
    }

    /// The entries that a leaf has of a range.
    fn entries(&self, page: PageRef, (low, high): &KeyRange) -> Result<Block> {
        let block = Leaf::of(&self.pager.load(page, 0)?).to_block();
        let place = |key: &[u8]| block.search(key).unwrap_or_else(|at| at);
        let to = high.as_ref().map_or(block.len(), |high| place(high));
        Ok(block.slice(place(low), to))
    }

    fn add_leaf(&mut self, low: &[u8], page: PageRef) -> Result<()> {
        match self.held.take() {
            Some((first, Waiting::Made(block))) if block.is_empty() => {
                let block = self.entries(page, &(Vec::new(), None))?;
                self.held = Some((first, Waiting::Made(block)));
            }
            held => {
                self.held = held;
                self.flush(Some(low))?;
                self.held = Some((low.to_vec(), Waiting::Stored(page)));
            }
        }
        Ok(())
    }

    fn add_entries(&mut self, low: &[u8], entries: Block) -> Result<()> {
        match self.held.take() {
            Some((first, Waiting::Stored(page))) if entries.is_empty() => {
                let block = self.entries(page, &(Vec::new(), None))?;
                self.held = Some((first, Waiting::Made(block)));
            }
            Some((first, Waiting::Made(mut block)))
                if entries.is_empty() || block.bytes() < COLLECTED_BYTES =>
            {
                block.append(&entries);
                self.held = Some((first, Waiting::Made(block)));
            }
            held => {
                self.held = held;
                self.flush(Some(low))?;
                self.held = Some((low.to_vec(), Waiting::Made(entries)));
            }
        }
        Ok(())
    }

    /// Gives what is held to the builder; it ends at `high`.
    fn flush(&mut self, high: Option<&[u8]>) -> Result<()> {
        match self.held.take() {
            Some((low, Waiting::Stored(page))) => {
                self.kept.insert(page.number);
                self.builder.add_leaf(low, page)
            }
            Some((low, Waiting::Made(block))) if !block.is_empty() => {
                self.builder.add_block(&block, Fences { low: &low, high })
            }
            // Nothing, or a tree without entries.
            _ => Ok(()),
        }
    }
}
