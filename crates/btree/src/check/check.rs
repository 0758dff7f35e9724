//! Checking an index on disk: every page that its tree reaches, the free map, the WAL.
//!
//! The check reads everything as stored, nothing from memory, and collects all problems. A page
//! that cannot be read hides only the pages below it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{Access, Disk, EntryKind, OpenMode};

use crate::index::directory::{enter, existing_tree};
use crate::index::lease::READERS_DIR;
use crate::index::published::{read_applied, read_free_map, replay};
use crate::log::pending::UpdateBuffer;
use crate::log::wal::{WalReader, check_mark, durable_mark, lost};
use crate::page::corrupt::{Corrupt, Problem};
use crate::page::error::{Error, Result};
use crate::page::inner::Inner;
use crate::page::leaf::{Fences, Leaf};
use crate::page::page::{PAGE_SIZE, Page, PageNo, PageRef};
use crate::pager::pager::Pager;
use crate::pager::superblock::{self, Superblock};

/// Leaves that are read side by side.
const BATCH: usize = 64;

/// The findings of a check.
#[derive(Debug, Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct CheckReport {
    /// All problems; empty if the index is whole.
    pub problems: Vec<Problem>,
    /// Problems of the two superblocks while one of them is whole. Both say the same of the last
    /// checkpoint but one.
    pub damaged_superblocks: u64,
    /// Number of leaves that were read.
    pub leaves: u64,
    /// Number of inner nodes that were read.
    pub nodes: u64,
    /// Number of entries in leaves.
    pub leaf_entries: u64,
    /// Number of entries, with the updates of the WAL above the leaves.
    pub entries: u64,
    /// Number of updates of the WAL that no leaf has.
    pub log_updates: u64,
    /// Number of levels of inner nodes.
    pub height: u32,
    /// Bytes in use in leaves, as a part of all bytes of leaves.
    pub leaf_fill: f64,
    /// Leaves that are less than two fifths full, without the last one and those of other sizes of
    /// keys or values.
    pub sparse_leaves: u64,
}

struct Check<'a> {
    pager: &'a Pager,
    report: CheckReport,
    reached: BTreeSet<PageNo>,
    used_bytes: u64,
    progress: &'a mut dyn FnMut(u64, u64),
    /// The first error of the disk that is no damage.
    failed: Option<Error>,
    total: u64,
}

/// Checks the index in a directory as it was last published and flushed. Nobody should write to it
/// meanwhile.
///
/// Cost: reads each page of the tree once, and the WAL. Memory: the numbers of all pages.
///
/// # Errors
/// [`Error::NotFound`], [`Error::TreeMissing`], [`Error::NotAnIndex`],
/// [`Error::UnsupportedVersion`], [`Error::Disk`]. Damage is part of the report and no error,
/// unless no superblock is whole.
#[doc(alias = "verify")]
pub fn check(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport> {
    let (dir, _anchor) = &enter(disk.as_ref(), dir)?;
    let path = existing_tree(disk.as_ref(), dir)?;
    let both = superblock::read_both(disk.as_ref(), &path)?;
    let superblock = superblock::read(disk.as_ref(), &path)?;

    let file = disk.open(&path, OpenMode::Read, Access::Direct)?;
    let pager = Pager::new(disk.clone(), file, superblock.tree, superblock.sizes, 0);
    let mut check = Check {
        pager: &pager,
        report: CheckReport { height: u32::from(superblock.height), ..CheckReport::default() },
        reached: BTreeSet::new(),
        used_bytes: 0,
        progress,
        failed: None,
        total: superblock.level_pages.iter().sum(),
    };

    // The walk comes first: the free map is checked against the pages that it reaches.
    if let Some(root) = superblock.root {
        check.reach(root, None);
        check.walk(root, superblock.height, Fences::ALL);
    }

    for what in superblock::damaged_copies(&both) {
        check.report.damaged_superblocks += 1;
        check.note(pager.corrupt(what), None);
    }

    check.check_levels(&superblock);
    check.check_map(&superblock);
    check.check_log(disk, dir, &superblock);

    let path = dir.join(READERS_DIR);
    if let Some(found @ (EntryKind::Link | EntryKind::Other)) = disk.kind(&path)? {
        check.note(terrane_io::Error::WrongKind { path, found }.into(), None);
    }

    if let Some(error) = check.failed {
        return Err(error);
    }

    let mut report = check.report;
    report.leaf_fill = check.used_bytes as f64 / (report.leaves.max(1) * PAGE_SIZE as u64) as f64;
    Ok(report)
}

/// The file of a failed call of the disk.
fn path_of(error: &terrane_io::Error) -> PathBuf {
    match error {
        terrane_io::Error::Io { path, .. }
        | terrane_io::Error::ShortRead { path, .. }
        | terrane_io::Error::WrongKind { path, .. } => path.clone(),
        _ => PathBuf::new(),
    }
}

impl Check<'_> {
    /// Whether everything but a superblock has been whole so far.
    fn is_whole(&self) -> bool {
        self.report.problems.len() as u64 == self.report.damaged_superblocks
    }

    /// Adds a problem, with the keys that it affects; errors of the disk that are no damage end the
    /// check.
    fn note(&mut self, error: Error, fences: Option<Fences<'_>>) {
        let keys = fences.map(|own| (own.low.to_vec(), own.high.map(<[u8]>::to_vec)));
        let (path, what) = match error {
            Error::Corrupt { path, what } => (path, what),
            Error::Disk(io) if io.is_unreadable() => {
                tracing::warn!(error = %io, "check.unreadable");
                (path_of(&io), Corrupt::rule("the file can be read", 1, 0))
            }
            Error::Disk(io @ terrane_io::Error::Io { .. }) if !io.is_not_found() => {
                self.failed.get_or_insert(Error::Disk(io));
                return;
            }
            other => {
                tracing::warn!(error = %other, "check.failed");
                (self.pager.path().to_owned(), Corrupt::rule("readable", 1, 0))
            }
        };

        self.report.problems.push(Problem { path, what, keys });
    }

    /// Adds a problem of the tree file.
    fn note_rule(&mut self, page: PageNo, rule: &'static str, expected: u64, found: u64) {
        let what = Corrupt { page: u64::from(page), rule, expected, found };
        self.note(self.pager.corrupt(what), None);
    }

    /// Notes a reference to a page; a second one is a problem.
    fn reach(&mut self, page: PageRef, fences: Option<Fences<'_>>) {
        if !self.reached.insert(page.number) {
            let what = Corrupt {
                page: u64::from(page.number),
                rule: "referred to once",
                expected: 1,
                found: 2,
            };
            self.note(self.pager.corrupt(what), fences);
        }
    }

    /// Checks a page and everything below it. The depth is bounded by the height of the tree.
    fn walk(&mut self, page: PageRef, level: u8, fences: Fences<'_>) {
        match self.pager.load(page, level) {
            Ok(loaded) if level == 0 => self.check_leaf(page, &loaded, fences),
            Ok(loaded) => self.check_node(page, &loaded, level, fences),
            Err(error) => self.note(error, Some(fences)),
        }
    }

    /// Checks a node and its children.
    fn check_node(&mut self, page: PageRef, loaded: &Page, level: u8, fences: Fences<'_>) {
        self.report.nodes += 1;
        let node = Inner::of(loaded);
        if node.separator(0) != fences.low {
            self.note_rule(page.number, "low bound of a node", 0, 1);
        }

        let lows: Vec<Vec<u8>> = (0..node.count()).map(|at| node.separator(at)).collect();
        let own = |at: usize| {
            let high = lows.get(at + 1).map(Vec::as_slice).or(fences.high);
            Fences { low: &lows[at], high }
        };

        // Every reference counts before any child is read, so a page used twice is reported even if
        // it is damaged.
        let children: Vec<PageRef> = (0..node.count()).map(|at| node.child(at)).collect();

        for (at, child) in children.iter().enumerate() {
            self.reach(*child, Some(own(at)));
        }

        // Leaves are read side by side, since there are far more of them than of nodes.
        if level > 1 {
            for (at, child) in children.into_iter().enumerate() {
                self.walk(child, level - 1, own(at));
            }
            return;
        }

        for (batch, children) in children.chunks(BATCH).enumerate() {
            let first = batch * BATCH;
            // Each leaf is read once, so none is kept in memory.
            match self.pager.load_many(children, 0, false) {
                Ok(leaves) => {
                    for (at, leaf) in leaves.iter().enumerate() {
                        self.check_leaf(children[at], leaf, own(first + at));
                    }
                }
                // Leaf by leaf, to tell which leaf is damaged.
                Err(_) => {
                    for (at, child) in children.iter().enumerate() {
                        self.walk(*child, 0, own(first + at));
                    }
                }
            }
        }
    }

    /// Checks a leaf against the fences that its node gives it.
    fn check_leaf(&mut self, page: PageRef, loaded: &Page, fences: Fences<'_>) {
        let leaf = Leaf::of(loaded);
        self.report.leaves += 1;
        self.report.leaf_entries += leaf.count() as u64;
        self.used_bytes += leaf.used_bytes() as u64;
        let is_sparse = leaf.used_bytes() < crate::tree::edit::FILL_BYTES_MIN;
        self.report.sparse_leaves += u64::from(is_sparse && fences.high.is_some());
        if leaf.fences() != fences {
            self.note_rule(page.number, "fences of a leaf as in its node", 0, 1);
        }
        if self.report.leaves.is_multiple_of(256) {
            (self.progress)(self.report.leaves, self.total);
        }
    }

    /// Checks the number of pages of each level against the superblock.
    fn check_levels(&mut self, superblock: &Superblock) {
        let nodes: u64 = superblock.level_pages[1..].iter().sum();
        // Damage hides pages from the walk, so only the pages of a whole tree are compared.
        let is_whole = self.is_whole();
        if is_whole && superblock.level_pages[0] != self.report.leaves {
            self.note_rule(0, "leaves", superblock.level_pages[0], self.report.leaves);
        }
        if is_whole && nodes != self.report.nodes {
            self.note_rule(0, "nodes", nodes, self.report.nodes);
        }
    }

    /// Checks that the free map has exactly the pages that were reached.
    fn check_map(&mut self, superblock: &Superblock) {
        let is_whole = self.is_whole();
        // The first superblock of an index has no free map.
        if superblock.lists.is_empty() {
            return;
        }

        let (free_map, maps) = match read_free_map(self.pager, superblock) {
            Ok(found) => found,
            Err(error) => return self.note(error, None),
        };

        for page in maps.iter().chain(&superblock.lists).chain(&superblock.applied) {
            self.reach(*page, None);
        }

        let missing: Vec<PageNo> =
            self.reached.iter().copied().filter(|&page| !free_map.is_used(page)).collect();
        for page in missing {
            self.note_rule(page, "used in the map", 1, 0);
        }

        // The two superblocks are in the map, and nothing refers to them.
        let used = self.reached.len() as u64 + 2;
        if is_whole && free_map.used_pages() != used {
            self.note_rule(0, "used pages", used, free_map.used_pages());
        }
    }

    /// Checks that the WAL is whole as far as it was durable, and counts its updates.
    fn check_log(&mut self, disk: &Arc<dyn Disk>, dir: &Path, superblock: &Superblock) {
        let applied = match read_applied(self.pager, superblock) {
            Ok(applied) => applied,
            Err(error) => return self.note(error, None),
        };

        let mut wal = WalReader::new(disk.clone(), dir, superblock.tree, superblock.log_start);
        let mut pending = UpdateBuffer::default();
        let mut entries = superblock.entries;

        let read = loop {
            match wal.next() {
                Ok(Some(frame)) => {
                    // At the end itself the superblock counts: a repair may have lost entries.
                    entries = if frame.next > superblock.log_end { frame.entries } else { entries };
                    if let Err(error) =
                        replay(&mut pending, &frame, &applied, superblock.sizes, dir)
                    {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };

        if let Err(error) = read {
            self.note(error, None);
        }

        if let Err(error) = check_mark(disk.as_ref(), dir) {
            self.note(error, None);
        }

        // The mark may be lost, and the superblock tells of the last checkpoint only.
        let must_reach = durable_mark(disk.as_ref(), dir, superblock.tree).max(superblock.log_end);
        if wal.position() < must_reach {
            self.note(lost(dir, wal.position(), must_reach), None);
        }

        self.report.log_updates = pending.len() as u64;
        self.report.entries = entries;

        let leaf_entries = self.report.leaf_entries;
        // A pending update may add, replace or remove an entry, so only without any the counts
        // agree.
        if self.is_whole() && pending.len() == 0 && entries != leaf_entries {
            self.note_rule(0, "entries", entries, leaf_entries);
        }
    }
}
