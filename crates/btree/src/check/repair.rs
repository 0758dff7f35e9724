//! Repair of an index: makes everything but the leaves anew from the leaves and the WAL.
//!
//! Leaves name their own ranges of keys, so superblocks, inner nodes, the free map and the applied
//! positions can be lost without losing an entry. A repair reads every page, finds the leaves of
//! the tree (module `salvage`), writes new nodes above them, and puts the WAL above the leaves as
//! an opening does.
//!
//! Exact and inexact results:
//!
//! - If all leaves of the tree are whole, everything that was flushed is there again.
//! - The keys of a damaged leaf come from an older leaf, if the file still has one. The report
//!   calls them *stale*: updates since are as the WAL has them, or else as they were then.
//! - Keys without any leaf are *lost*.
//! - Where parts of the free map are lost, age tells the leaves apart. If they are exactly as many
//!   as the tree had, they are the right ones; otherwise all of them are stale.
//! - With both superblocks lost, the number of leaves is unknown. Then leaves that follow each
//!   other without a gap count as the right ones.
//!
//! To keep ages right, a writer publishes once before its first leaf: leaves that a crash left
//! behind are older than all that follow.
//!
//! Invariants: nothing is overwritten until a superblock refers to the new tree. Only new pages
//! behind the end of the file are written, so an interrupted repair has done nothing. Writers are
//! locked out.

use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Access, Anchor, Disk, LockGuard, Loss, OpenMode, Reserve};

use crate::check::check::check;
use crate::check::salvage::{FoundLeaf, KnownMap, Piece, Scan, cover, doubt, most_frequent_tree};
use crate::index::directory::{
    TREE_FILE, TREE_TEMPORARY, enter, existing_tree, write_first_superblock,
};
use crate::index::index::Index;
use crate::index::published::{read_applied, replay, tree_of};
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

/// Fill of new nodes, in per cent.
const FILL_PERCENT: u32 = 90;

/// Size of the entries that are collected before leaves are made of them, in bytes.
const COLLECTED_BYTES: usize = 64 << 10;

/// The result of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct RepairReport {
    /// Whether the index was whole. Then nothing was done, and all figures but `entries` are 0.
    pub was_whole: bool,
    /// Whether the repair would have lost entries that the caller did not accept. Then nothing was
    /// done; `stale`, `lost` and `log_lost` name the losses.
    pub was_refused: bool,
    /// Number of pages that were read.
    pub pages_scanned: u64,
    /// Number of leaves that the new tree has unchanged.
    pub leaves_kept: u64,
    /// Number of other whole pages: nodes, which were made anew, and pages of older trees.
    pub pages_dropped: u64,
    /// Number of damaged pages that the tree had, or may have had.
    pub pages_damaged: u64,
    /// Number of lost parts of the free map, each for 32,512 pages.
    pub maps_lost: u64,
    /// Number of superblocks that were rewritten while the other one and everything else was whole.
    /// Then nothing else was done.
    pub superblocks_rewritten: u64,
    /// Ranges of keys that came from older leaves, ascending.
    pub stale: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Ranges of keys without any leaf, ascending.
    pub lost: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Whether the tree file was missing. Then `lost` names all keys, and only entries of the WAL
    /// are left.
    pub tree_lost: bool,
    /// Positions of the WAL whose updates are lost, from the first on and below the second,
    /// ascending. Their keys are unknown; updates behind them are there.
    pub log_lost: Vec<(u64, u64)>,
    /// Number of entries of the index, including those that only the WAL has.
    pub entries: u64,
}

/// The directory of an index, anchored and locked.
type LockedDir = (Box<dyn Anchor>, Box<dyn LockGuard>);

/// The known facts about the published tree.
#[derive(Debug)]
struct Basis {
    /// Its superblock; made up if no superblock is whole.
    superblock: Superblock,
    /// Generation of a superblock that must not be overwritten.
    kept: Option<u64>,
    applied: Applied,
    map: KnownMap,
    /// Upper bound of the tree's generations: newer leaves do not belong to it.
    generation_max: u64,
    /// Number of the tree's leaves, if it is known.
    leaves: Option<u64>,
    /// Whether the tree is known to have no leaf.
    is_empty: bool,
}

/// Rebuilds the damaged parts of an index from its leaves and its WAL. Does nothing if a check
/// finds no problem.
///
/// If all leaves are whole, everything that was flushed is there again. Otherwise nothing is done
/// unless [`Loss::Accepted`]: then keys of a damaged leaf come from an older one, if the file still
/// has it, and the report names them.
///
/// Cost: a check; reads every page of the file and each leaf once more, writes the nodes and joined
/// leaves. Memory: for each leaf its fences and some hundred bytes, for each damaged or dropped
/// page four bytes; for the WAL as when opening.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Locked`], [`Error::UnsupportedVersion`], [`Error::Disk`];
/// [`Error::NotAnIndex`] or [`Error::Corrupt`] if neither a superblock nor a leaf is whole. Nothing
/// was changed.
#[doc(alias = "recover")]
#[doc(alias = "RepairDB")]
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
    if let Some(done) = repair_without_rebuild(disk, dir)? {
        if done.superblocks_rewritten > 0 {
            rewrite_superblock(disk, dir, (anchor, lock))?;
        }
        return Ok(done);
    }

    let (pager, scan, basis) = find_basis(disk, dir, &mut progress)?;
    let mut pieces = Vec::new();
    if !basis.is_empty {
        pieces = cover(&scan.leaves, &basis.map, basis.generation_max);
        doubt(&mut pieces, basis.leaves);
    }

    // Until the caller's consent to losses is checked, nothing is written.
    let mut report = report_on(&scan, &basis, &pieces);
    let generation = basis.next_generation(&scan);

    let mut applied = basis.applied;
    for (low, high) in report.stale.iter().chain(&report.lost) {
        // The WAL may have more updates of these keys than the older leaf.
        applied.set(low, high.as_deref(), basis.superblock.log_start);
    }

    let found = read_log(disk, dir, &basis.superblock, &applied)?;
    report.log_lost.clone_from(&found.salvaged.gaps);
    if loss == Loss::Refused && report.loses_something() {
        return Ok(RepairReport { was_refused: true, ..report });
    }

    let (free_map, tree) = rebuild(&pager, generation, &scan, &pieces, &mut report)?;
    // Publishing takes the next generation, which the pages of the new tree have.
    let superblock = Superblock {
        generation: generation - 1,
        applied: None,
        lists: Vec::new(),
        ..basis.superblock
    };

    let state = opened_state(tree, found.pending.clone(), 0);
    let core = Core::new(anchor, dir.to_owned(), pager, state);
    report.entries = publish(disk, core, (superblock, applied, free_map), found, lock)?;
    Ok(report)
}

/// The report of an index that needs no rebuilding: it is whole, or only a superblock is damaged.
fn repair_without_rebuild(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Option<RepairReport>> {
    let report = match check(disk, dir, &mut |_, _| {}) {
        Ok(report) => report,
        Err(Error::Corrupt { .. } | Error::NotAnIndex { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let superblocks_rewritten = report.damaged_superblocks;
    // A damaged superblock alone is written again from the tree of the other one.
    if report.problems.len() as u64 != superblocks_rewritten {
        return Ok(None);
    }
    let entries = report.entries;
    let was_whole = superblocks_rewritten == 0;
    Ok(Some(RepairReport { was_whole, superblocks_rewritten, entries, ..RepairReport::default() }))
}

/// Publishes the tree once more, into the place of the damaged superblock.
fn rewrite_superblock(disk: &Arc<dyn Disk>, dir: &Path, held: LockedDir) -> Result<()> {
    let superblock = superblock::read(disk.as_ref(), &dir.join(TREE_FILE))?;
    let mut limits = Config::variable().memory_bytes(MEMORY_BYTES_MIN).check()?;
    limits.sizes = superblock.sizes;
    let index = Index::open_locked(disk.clone(), dir, limits, held)?;
    index.checkpoint()?;
    index.close()
}

/// Makes a tree file for a WAL whose own is lost, and puts the WAL above it.
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

    // Nothing tells which entries only the leaves had.
    let mut report = RepairReport {
        tree_lost: true,
        lost: vec![(Vec::new(), None)],
        log_lost: found.salvaged.gaps.clone(),
        ..RepairReport::default()
    };

    if loss == Loss::Refused {
        return Ok(RepairReport { was_refused: true, ..report });
    }

    // The file gets its name last, so that an interrupted repair leaves the directory as it was.
    let temporary = dir.join(TREE_TEMPORARY);
    drop(write_first_superblock(disk.as_ref(), &temporary, owner)?);
    let file = disk.open(&temporary, OpenMode::ReadWrite, Access::Direct)?;
    let cache_bytes = MEMORY_BYTES_MIN / 2;
    let pager = Pager::new(disk.clone(), file, owner.tree, owner.sizes, cache_bytes);
    let state = opened_state(tree_of(&superblock), found.pending.clone(), 0);
    let core = Core::new(anchor, dir.to_owned(), pager, state);

    report.entries = publish(disk, core, (superblock, applied, FreeMap::new()), found, lock)?;
    disk.rename(&temporary, &dir.join(TREE_FILE))?;
    disk.sync_dir(dir)?;
    Ok(report)
}

/// Publishes the tree of `core` with the salvaged WAL above it. Returns the number of entries of
/// both.
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
    let mut limits = Config::variable().memory_bytes(MEMORY_BYTES_MIN).check()?;
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

    // The repair is done; until this checkpoint, the other superblock refers to the tree before it.
    if let Err(error) = writer.checkpoint(&core) {
        tracing::warn!(path = %core.dir.display(), %error, "cleanup.failed");
    }

    // The new tree and the new WAL have all updates of these segments.
    if is_broken {
        let old: Vec<u64> = old.into_iter().filter(|&old| old < start).collect();
        wal::remove_segments(disk.as_ref(), &core.dir, &old);
    }

    Ok(entries)
}

impl Basis {
    /// A generation above all others, whose superblock does not overwrite one that is needed.
    fn next_generation(&self, scan: &Scan) -> u64 {
        let next = scan.generation_max.max(self.superblock.generation) + 1;
        let is_taken = self.kept.is_some_and(|kept| kept % 2 == next % 2);
        let next = if is_taken { next + 1 } else { next };
        assert!(self.superblock.generation < next, "the new tree is the newest one");
        next
    }
}

impl RepairReport {
    /// Whether the repair costs entries.
    fn loses_something(&self) -> bool {
        !(self.stale.is_empty() && self.lost.is_empty() && self.log_lost.is_empty())
    }
}

/// Reads all pages, and finds out which tree was published.
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

    // If one superblock is lost, it may have published a newer checkpoint than the other one.
    let is_last = |superblock: &Superblock| {
        both.iter().all(std::result::Result::is_ok)
            || superblock.generation >= scan.checkpoint_max()
    };

    let kept = newest.as_ref().map(|superblock| superblock.generation);

    let basis = match newest {
        Some(superblock) if is_last(&superblock) => Basis {
            kept,
            // Applying the whole WAL once more is right, too.
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

/// The facts about the tree that its pages tell without its superblock.
fn guess(pager: &Pager, scan: &Scan, log_start: u64, replaced: u64) -> Basis {
    let generation = scan.checkpoint_max();
    let applied = scan.applied.as_ref().filter(|(of, _)| *of == generation);
    let applied = applied.map_or(Applied::up_to(log_start), |(_, applied)| applied.clone());

    let lists: &[PageRef] = if scan.lists.0 == generation { &scan.lists.1 } else { &[] };
    let map = KnownMap::read(pager, lists, scan.pages);
    let may_be_used = |page: &PageNo| map.says(*page) != Some(false);

    // Without a superblock, only a free map by which no leaf is in use tells that the tree was
    // empty.
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

    // Without a page of a checkpoint, any leaf may belong to the tree.
    let generation_max = if generation > 0 { generation } else { u64::MAX };
    let is_empty = generation > 0 && !has_leaf;
    Basis { superblock, kept: None, applied, map, generation_max, leaves: None, is_empty }
}

/// Reports the ranges of keys that are stale or lost; neighbouring ranges become one.
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
        // Pieces ascend, so a range that meets the last one makes that one longer.
        match ranges.last_mut() {
            Some((_, high)) if high.as_ref() == Some(&piece.keys.0) => {
                high.clone_from(&piece.keys.1);
            }
            _ => ranges.push(piece.keys.clone()),
        }
    }

    report
}

/// The updates of the WAL above the leaves.
#[derive(Debug)]
struct FoundLog {
    pending: UpdateBuffer,
    /// Position at which all entries were last replaced at once.
    replaced: u64,
    salvaged: Salvaged,
}

/// Reads the updates that the leaves do not have. Writes nothing.
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
            // No superblock told of this replacement: updates before it are void.
            replaced = frame.replaced;
            pending = UpdateBuffer::default();
        }
        replay(&mut pending, frame, applied, superblock.sizes, dir)
    })?;

    Ok(FoundLog { pending, replaced, salvaged })
}

impl FoundLog {
    /// Returns the WAL to go on with, and the applied positions. A WAL that an opening would refuse
    /// is written anew behind its end.
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

        // Right behind the old one, so that an interrupted repair leaves no gap.
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

/// Writes a tree of the pieces into new pages. Returns the tree and its free map.
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

    // All pages of the file count as used, so that the tree takes none of them.
    let builder = Builder::new(pager, &mut free_map, generation, FILL_PERCENT)?;
    let mut rebuild = LeafRebuild { pager, builder, held: None, kept: HashSet::new() };
    for piece in pieces {
        rebuild.add(piece, &scan.leaves)?;
    }

    rebuild.flush(None)?;
    let LeafRebuild { builder, kept, .. } = rebuild;
    let built = builder.finish()?;

    assert!(kept.len() as u64 <= scan.whole, "only whole leaves stay");
    report.leaves_kept = kept.len() as u64;
    report.pages_dropped = scan.whole - report.leaves_kept;

    // Old pages stay held until the new superblock counts.
    let dropped = (SUPERBLOCKS..scan.pages as PageNo).filter(|page| !kept.contains(page));
    free_map.hold(generation - 1, dropped.collect());

    let epoch = Arc::new(Epoch(generation - 1));
    let Built { root, height, level_pages, .. } = built;
    Ok((free_map, Tree { root, height, level_pages, fresh_nodes: 0, epoch }))
}

/// Number of entries of the tree and of the WAL above it.
fn count_entries(core: &Arc<Core>) -> Result<u64> {
    let mut cursor = Cursor::ascending(core, (Vec::new(), None))?;
    let mut entries = 0;
    while cursor.next_ref()?.is_some() {
        entries += 1;
    }
    Ok(entries)
}

/// A range of keys that becomes one leaf, or some, of the new tree.
#[derive(Debug)]
enum Waiting {
    Stored(PageRef),
    Made(Block),
}

/// The leaves of a new tree, one after the other.
///
/// The last leaf is held with its low fence, as the next range may have to be joined with it: there
/// is no leaf without entries, so a lost range goes to its neighbour.
struct LeafRebuild<'a> {
    pager: &'a Pager,
    builder: Builder<'a>,
    held: Option<(Vec<u8>, Waiting)>,
    /// Pages of the leaves that stay as they were.
    kept: HashSet<PageNo>,
}

impl LeafRebuild<'_> {
    /// Appends a range of keys.
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

    /// The entries of a range that a leaf has.
    fn entries(&self, page: PageRef, (low, high): &KeyRange) -> Result<Block> {
        let block = Leaf::of(&self.pager.load(page, 0)?).to_block();
        let place = |key: &[u8]| block.search(key).unwrap_or_else(|at| at);
        let to = high.as_ref().map_or(block.len(), |high| place(high));
        Ok(block.slice(place(low), to))
    }

    /// Appends a leaf that stays as it is, unless a lost range before it must be joined with it.
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

    /// Appends entries of which leaves are to be made; none for a lost range.
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

    /// Gives the held range to the builder; it ends at `high`.
    fn flush(&mut self, high: Option<&[u8]>) -> Result<()> {
        match self.held.take() {
            Some((low, Waiting::Stored(page))) => {
                self.kept.insert(page.number);
                self.builder.add_leaf(low, page)
            }
            Some((low, Waiting::Made(block))) if !block.is_empty() => {
                self.builder.add_block(&block, Fences { low: &low, high })
            }
            // Nothing is held, or a tree without entries.
            _ => Ok(()),
        }
    }
}
