//! Maintenance of an index: clearing, filtering, bulk loads, compaction, scrubbing.
//!
//! Each of these changes the whole tree and publishes it at once, or reads all of it bit by bit.
//! Lookups go on meanwhile; updates wait.

use terrane_io::rare;

use crate::index::index::Index;
use crate::index::scrub::{self, ScrubReport};
use crate::index::writer::Writer;
use crate::page::block::{self, Block};
use crate::page::error::{Error, Result, unless_no_space};
use crate::page::leaf::Fences;
use crate::page::page::{PAGE_SIZE, PageNo};
use crate::pager::superblock::LevelPages;
use crate::sort::input::Records;
use crate::sort::sort::{SortOptions, Sorter};
use crate::tree::bulk::{self, FILL_PERCENT_MIN};
use crate::tree::edit::Change;
use crate::tree::state::Core;
use crate::tree::tree::Tree;

/// The change that keeps what `keep` wants, of leaves and of the pending updates above them.
struct Filter<'a, F> {
    core: &'a Core,
    keep: F,
    removed: u64,
    /// Upper end of the keys that `keep` has seen. Their leaf may come again, joined with the next
    /// one.
    done: Vec<u8>,
}

impl<F: FnMut(&[u8], &[u8]) -> bool> Change for Filter<'_, F> {
    fn touches(&mut self, _fences: Fences<'_>, _page: PageNo) -> bool {
        true
    }

    fn apply(&mut self, fences: Fences<'_>, entries: &Block) -> Option<Block> {
        let state = self.core.state().ok()?;
        let done = std::mem::take(&mut self.done);
        let low = fences.low.max(&done);
        let pending = state.pending.clone();
        // The lock is given back before `keep`, which may take long, is called.
        drop(state);

        let mut updates = pending.range(low, fences.high).peekable();
        let is_updated = updates.peek().is_some();
        let merged = block::apply(entries, updates);

        // Keys below `low` were asked about already; `keep` sees each key once.
        let mut kept = Block::with_capacity(merged.bytes(), merged.len());
        for (key, value) in merged.iter() {
            if key < low || (self.keep)(key, value.unwrap_or_default()) {
                kept.push(key, value);
            }
        }

        self.done = fences.high.unwrap_or_default().to_vec();
        self.removed += (merged.len() - kept.len()) as u64;
        (is_updated || kept.len() < merged.len()).then_some(kept)
    }
}

/// The change that moves pages at or behind a limit in the file.
struct Move {
    limit: PageNo,
}

impl Change for Move {
    fn touches(&mut self, _fences: Fences<'_>, page: PageNo) -> bool {
        page >= self.limit
    }

    fn moves(&self, page: PageNo) -> bool {
        page >= self.limit
    }
}

impl Index {
    /// Removes all entries: all or nothing, durably. Their space is free once no reader needs it.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush).
    pub fn clear(&self) -> Result<()> {
        self.with_writer(|writer, core| {
            writer.with_reserve(core, |writer| {
                let before = writer.free_map.clone();
                let gone = writer.tree_pages();
                let empty = Tree {
                    root: None,
                    height: 0,
                    level_pages: LevelPages::default(),
                    fresh_nodes: 0,
                    epoch: core.state()?.tree.epoch.clone(),
                };
                writer.replace(core, empty, gone, 0, before)
            })
        })
    }

    /// Keeps the entries for which `keep` is true and removes all others: all or nothing, durably.
    /// If `keep` panics, nothing has changed.
    ///
    /// Cost: reads each leaf, writes those that change. Lookups go on meanwhile; updates wait.
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush), and [`Error::Corrupt`].
    pub fn filter(&self, keep: impl FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        self.with_writer(|writer, core| {
            writer.flush(core, true)?;
            writer.begin_leaves(core)?;

            let mut change = Filter { core, keep, removed: 0, done: Vec::new() };
            let entries = core.state()?.entries;
            let before = writer.free_map.clone();
            let rewritten = writer.rewrite(core, &mut change, &mut |_| {})?;
            let left = entries.saturating_sub(change.removed);
            let (tree, gone) = rewritten;
            writer.replace(core, tree, gone, left, before)
        })
    }

    /// Fills an empty index from sorted input: all of it or nothing, durably. Pages are filled to
    /// `fill_percent` of 50 to 100; 90 is usual.
    ///
    /// Cost: writes each page once, in large pieces; two checkpoints.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::InvalidConfig`]; [`Error::NotSorted`], [`Error::DuplicateKey`]
    /// with the position; those of the input; as [`flush`](Self::flush).
    #[doc(alias = "bulk_load")]
    #[doc(alias = "ingest")]
    pub fn build_sorted(
        &self,
        input: &mut dyn Records,
        fill_percent: u32,
        mut progress: impl FnMut(u64),
    ) -> Result<u64> {
        if !(FILL_PERCENT_MIN..=100).contains(&fill_percent) {
            let value = fill_percent.to_string();
            let allowed = "50 to 100 per cent are allowed";
            return Err(Error::InvalidConfig { option: "fill_percent", value, allowed });
        }

        self.with_writer(|writer, core| {
            if core.state()?.entries > 0 {
                return Err(Error::NotEmpty { path: core.dir.clone() });
            }

            writer.flush(core, true)?;
            let generation = writer.begin_leaves(core)?;

            // The new tree takes free pages only, so a failure leaves the old one as it was.
            let before = writer.free_map.clone();
            let gone = writer.tree_pages();
            let built = writer.or_restore_free_map(|writer| {
                let free_map = &mut writer.free_map;
                bulk::build(&core.pager, free_map, generation, fill_percent, input, &mut progress)
            })?;

            let tree = Tree {
                root: built.root,
                height: built.height,
                level_pages: built.level_pages,
                fresh_nodes: 0,
                epoch: core.state()?.tree.epoch.clone(),
            };
            writer.replace(core, tree, gone, built.entries, before)?;
            Ok(built.entries)
        })
    }

    /// Like [`build_sorted`](Self::build_sorted) for input in any order, through an external sort
    /// in the directory and memory of `options`.
    ///
    /// After a crash the same call with the same input resumes the sort. The files of the sort are
    /// removed in the end.
    ///
    /// # Errors
    /// Those of [`build_sorted`](Self::build_sorted), and those of [`Sorter`].
    pub fn build_unsorted(
        &self,
        input: &mut dyn Records,
        options: SortOptions,
        fill_percent: u32,
        mut progress: impl FnMut(u64),
    ) -> Result<u64> {
        let disk = self.with_writer(|writer, _| Ok(writer.disk.clone()))?;
        let mut sorter = Sorter::open(disk, options)?;
        sorter.push_all(input, &mut progress)?;
        let mut sorted = sorter.finish(&mut progress)?;

        let entries = self.build_sorted(&mut sorted, fill_percent, progress)?;

        // Only now: the records are durable in the index.
        sorted.remove_files()?;
        Ok(entries)
    }

    /// Makes the index smaller while lookups go on. Returns by how many bytes the file became
    /// shorter.
    ///
    /// - Applies all updates that only the WAL has, so that the WAL shrinks to nothing.
    /// - Packs the entries of neighbouring leaves into fewer leaves where that saves an eighth of
    ///   them.
    /// - Moves pages from the end of the file into free ones before it, and cuts the file.
    ///
    /// Cost: reads each leaf; writes the changed and the packed leaves, and each page behind the
    /// future end of the file. The file grows by a sixteenth meanwhile. Packing stops if a snapshot
    /// needs the packed leaves.
    ///
    /// Rejected: a new tree beside the old one (twice the room, when there is least of it); a
    /// higher limit for joining leaves at every removal (each later insertion would divide them).
    ///
    /// # Errors
    /// Those of [`flush`](Self::flush), and [`Error::Corrupt`].
    #[doc(alias = "compact_range")]
    #[doc(alias = "vacuum")]
    pub fn compact(&self) -> Result<u64> {
        self.with_writer(|writer, core| {
            let before = writer.free_map.pages();
            match writer.apply_all(core).and_then(|()| writer.pack(core)) {
                Err(error) if error.is_no_space() => {
                    rare::taken("an index is compacted on a full disk");
                    // Compaction makes room, so it may use the reserve that a full disk needs.
                    writer.give_reserve_up(core)?;
                    unless_no_space(writer.flush(core, true))?;
                    unless_no_space(writer.collect_log(core))?;
                    // The collection may have made the room.
                    unless_no_space(writer.apply_all(core).and_then(|()| writer.pack(core)))?;
                }
                applied => applied?,
            }

            unless_no_space(move_to_front(writer, core))?;
            Ok(before.saturating_sub(writer.free_map.pages()) * PAGE_SIZE as u64)
        })
    }

    /// Reads up to `leaves` more leaves and the nodes above them, past the cache, and reports
    /// damaged pages. Goes on where the last call ended. A damaged page that is whole in memory is
    /// written again.
    ///
    /// Cost: a read of 4 KiB for each leaf and each node above. A few leaves now and then scrub in
    /// the background at whatever rate the device can spare; updates wait meanwhile.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Disk`], [`Error::Poisoned`].
    pub fn scrub(&self, leaves: u64) -> Result<ScrubReport> {
        self.with_writer(|writer, core| {
            writer.check_usable()?;
            let done = scrub::scrub(core, &writer.scrub_from, leaves);
            let (report, from) = writer.poison_if_failed(done)?;
            writer.scrub_from = from;
            Ok(report)
        })
    }
}

/// Moves pages from the end of the file into free ones before it, and cuts the file.
fn move_to_front(writer: &mut Writer, core: &Core) -> Result<()> {
    loop {
        let pages = writer.free_map.pages();
        // Without a free page before its end, the file would have this length.
        let mut change = Move { limit: writer.free_map.used_pages() as PageNo };
        let (tree, gone) = writer.rewrite(core, &mut change, &mut |_| {})?;

        // Pages of the map may lie at the end of the file, too.
        writer.free_map.change_all();
        writer.install(core, tree, gone);
        writer.free_gone(core)?;
        writer.cut_file(core, 0)?;

        if writer.free_map.pages() >= pages {
            return Ok(());
        }
    }
}
