//! Checkpoints: how a tree becomes the published one, and how pages become free.
//!
//! A checkpoint writes the new nodes, the applied positions and the changed parts of the free map,
//! syncs, writes the superblock, and syncs again. Pages of older trees stay held until no reader
//! and no cursor can need them.
//!
//! Invariants: the WAL is durable up to the tree before the superblock is written. Everything that
//! the superblock refers to is durable before it is written. If that write fails, either superblock
//! may be the newest, so the writer is poisoned.

use std::sync::Arc;

use crate::index::lease;
use crate::index::writer::{APPLY_LEAVES_MAX, Writer};
use crate::log::applied::Applied;
use crate::page::error::Result;
use crate::page::page::{BODY_OFFSET, Header, Kind, PAGE_SIZE, Page, PageNo, PageRef, seal};
use crate::pager::free_map::LIST_MAPS;
use crate::pager::pager::{NewPage, Pager};
use crate::pager::superblock::Superblock;
use crate::tree::edit::take_page;
use crate::tree::state::{Core, State};
use crate::tree::tree::{Child, Epoch, Tree};

/// Part of the used pages that may be held before a checkpoint is due.
pub(super) const HELD_PART: u64 = 16;

/// Held pages below which no checkpoint is due, however small the tree.
pub(super) const HELD_PAGES_MIN: u64 = 256;

/// Part of the used pages that may be held for readers; readers that fall further behind lose their
/// tree.
const STALE_PART: u64 = 4;

/// Held pages below which no reader loses its tree.
const STALE_PAGES_MIN: u64 = 16_384;

impl Writer {
    /// Publishes the tree and frees the pages that the tree let go, unless somebody reads them.
    pub(crate) fn free_gone(&mut self, core: &Core) -> Result<()> {
        // The first checkpoint lets pages go, the second one frees them.
        self.checkpoint(core)?;
        self.checkpoint(core)
    }

    /// The generation that new pages get: one above the published one.
    pub(super) fn generation(&self) -> u64 {
        self.superblock.generation + 1
    }

    /// Makes a checkpoint if too many pages are held, too many nodes are new, or the WAL is too
    /// long.
    pub(super) fn publish_if_due(&mut self, core: &Core) -> Result<()> {
        let held_max = (self.free_map.used_pages() / HELD_PART).max(HELD_PAGES_MIN);
        let is_due = self.free_map.held_pages_of(self.superblock.generation) > held_max
            || core.state()?.tree.fresh_nodes > self.limits.fresh_nodes
            || self.applied.oldest().0.saturating_sub(self.superblock.log_start)
                > self.limits.log_bytes / 8;
        if is_due { self.checkpoint(core) } else { Ok(()) }
    }

    /// Publishes the tree as it is.
    ///
    /// Cost: writes each new node, the changed pages of the free map and two or three more pages;
    /// three syncs.
    pub(crate) fn checkpoint(&mut self, core: &Core) -> Result<()> {
        let tree = core.state()?.tree.clone();
        self.publish(core, &tree, self.applied.clone(), self.flushed_entries, |_| {})?;
        // While this clone lives, its pages cannot be freed.
        drop(tree);
        self.clean_up(core);
        Ok(())
    }

    /// Publishes a tree with all updates of the WAL up to the applied positions. `install` changes
    /// the visible state at the moment that the tree becomes visible.
    pub(crate) fn publish(
        &mut self,
        core: &Core,
        tree: &Tree,
        applied: Applied,
        entries: u64,
        install: impl FnOnce(&mut State),
    ) -> Result<()> {
        debug_assert!(
            applied.newest() <= self.wal.end(),
            "no update is applied before it is logged"
        );

        self.check_usable()?;

        // A published tree must never be ahead of the durable WAL.
        let synced = self.wal.sync();
        self.poison_if_failed(synced)?;

        // If a page cannot be written, every page taken for this checkpoint goes back.
        let before = self.free_map.clone();
        let prepared = self.prepare(core, tree, &applied, entries);
        let (superblock, maps, tree) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.free_map = before;
                return self.poison_if_failed(Err(error));
            }
        };

        let written = write_superblock(&core.pager, &superblock);
        if written.is_err() {
            // Either superblock may be the newest one now.
            self.poisoned = Some(core.pager.path().to_owned());
        }

        written?;

        core.pager.counters.checkpoints.add(1);
        assert!(self.superblock.generation < superblock.generation, "epochs ascend");

        let epoch = Arc::new(Epoch(superblock.generation));
        self.epochs.push_back(epoch.clone());
        {
            let mut state = core.state_mut();
            state.tree = Arc::new(Tree { epoch, ..tree });
            install(&mut state);
        }

        core.pager.begin_generation();
        self.superblock = superblock;
        self.maps = maps;
        self.applied = applied;
        self.free_map.set_stored();
        Ok(())
    }

    /// Writes and syncs everything that the next superblock refers to.
    fn prepare(
        &mut self,
        core: &Core,
        tree: &Tree,
        applied: &Applied,
        entries: u64,
    ) -> Result<(Superblock, Vec<PageRef>, Tree)> {
        let pager = &core.pager;
        let generation = self.generation();
        let epoch = self.superblock.generation;
        let mut written: Vec<NewPage> = Vec::new();

        let free_map = &mut self.free_map;
        let mut take = || take_page(pager, free_map);
        let tree = tree.store(pager.tree, generation, &mut take, &mut written)?;
        let nodes = written.len();

        let (count, body) = applied.encode();
        let number = take_page(pager, &mut self.free_map)?;
        let (applied_page, page) =
            make_page(pager, generation, Kind::Applied, count, (number, &body));
        written.push(page);

        // The pages of the previous checkpoint become free once this one is published.
        let old = self.superblock.lists.iter().chain(&self.superblock.applied);
        self.free_map.hold(epoch, old.map(|page| page.number).collect());
        let (maps, lists) = self.store_free_map(pager, generation, &mut written)?;

        // One write in file order, and one sync before any superblock refers to these pages.
        let cached: Vec<NewPage> = written[..nodes].to_vec();
        written.sort_unstable_by_key(|(number, _)| *number);
        pager.write(&written)?;
        pager.sync()?;

        // Lookups need the nodes; the free map is in memory already.
        for (number, page) in cached {
            pager.cache.put(number, page);
        }

        // Storing the tree has left no fresh root.
        let root = match &tree.root {
            Some(Child::Stored(page)) => Some(*page),
            _ => None,
        };

        assert!(generation > self.superblock.generation, "generations only grow");
        let log_start = applied.oldest().0;
        debug_assert!(self.superblock.log_start <= log_start, "applied positions only move on");

        debug_assert!(
            self.wal.end() <= self.wal.synced(),
            "the tree is not ahead of the durable log"
        );

        let superblock = Superblock {
            generation,
            oldest: self.oldest_readable(generation),
            height: tree.height,
            root,
            applied: Some(applied_page),
            pages: self.free_map.pages(),
            entries,
            log_start,
            log_end: self.wal.end(),
            replaced: self.wal.replaced,
            level_pages: tree.level_pages,
            lists,
            ..self.superblock.clone()
        };

        Ok((superblock, maps, tree))
    }

    /// Makes pages of the changed parts of the free map. Returns the references of all its parts,
    /// and those of its list pages.
    fn store_free_map(
        &mut self,
        pager: &Pager,
        generation: u64,
        written: &mut Vec<NewPage>,
    ) -> Result<(Vec<PageRef>, Vec<PageRef>)> {
        let epoch = self.superblock.generation;

        // A file that was cut needs fewer parts of the free map.
        let unneeded = self.maps.iter().skip(self.free_map.map_count()).map(|page| page.number);
        self.free_map.hold(epoch, unneeded.collect());

        // The bodies are made only now: taking pages for them has changed the map.
        let (map_numbers, list_numbers) = self.place_maps(pager, epoch)?;
        let mut maps = self.maps.clone();
        let contents = self.free_map.write_maps(map_numbers.iter().map(|(map, _)| *map));
        maps.resize(self.free_map.map_count(), PageRef { number: 0, crc: 0 });

        for ((map, number), body) in map_numbers.into_iter().zip(&contents) {
            let (page_ref, page) = make_page(pager, generation, Kind::Map, 0, (number, body));
            maps[map] = page_ref;
            written.push(page);
        }

        assert!(maps.iter().all(|map| map.number != 0), "every part of the map has a page");

        let mut lists = Vec::new();
        for (number, maps) in list_numbers.into_iter().zip(maps.chunks(LIST_MAPS)) {
            let entry = |map: &PageRef| [map.number.to_le_bytes(), map.crc.to_le_bytes()].concat();
            let body: Vec<u8> = maps.iter().flat_map(entry).collect();
            let count = maps.len() as u16;
            let (page_ref, page) =
                make_page(pager, generation, Kind::MapList, count, (number, &body));
            lists.push(page_ref);
            written.push(page);
        }

        Ok((maps, lists))
    }

    /// Takes pages for the changed parts of the free map and for its lists. Taking a page changes
    /// the map once more, so this goes on until nothing changes.
    #[expect(clippy::type_complexity, reason = "two lists, taken apart at once")]
    fn place_maps(
        &mut self,
        pager: &Pager,
        epoch: u64,
    ) -> Result<(Vec<(usize, PageNo)>, Vec<PageNo>)> {
        let mut maps: Vec<(usize, PageNo)> = Vec::new();
        let mut lists = Vec::new();
        loop {
            let is_new = |map: &usize| maps.iter().all(|(placed, _)| placed != map);
            let next = self.free_map.changed_maps().find(is_new);
            if let Some(map) = next {
                if let Some(old) = self.maps.get(map) {
                    self.free_map.hold(epoch, vec![old.number]);
                }
                maps.push((map, take_page(pager, &mut self.free_map)?));
            } else if lists.len() < self.free_map.map_count().div_ceil(LIST_MAPS) {
                lists.push(take_page(pager, &mut self.free_map)?);
            } else {
                return Ok((maps, lists));
            }
        }
    }

    /// Oldest generation that stays readable; readers far behind lose their pages.
    fn oldest_readable(&self, generation: u64) -> u64 {
        let most = (self.free_map.used_pages() / STALE_PART).max(STALE_PAGES_MIN);
        let behind = self.readers.0.is_some_and(|oldest| oldest + 1 < generation);
        if behind && self.free_map.held_pages() > most {
            generation
        } else {
            self.superblock.oldest
        }
    }

    /// Frees the pages and segments that nobody needs. A failure is logged and made up for by the
    /// next checkpoint.
    pub(super) fn clean_up(&mut self, core: &Core) {
        if let Err(error) = self.try_clean_up(core) {
            tracing::warn!(path = %core.dir.display(), %error, "cleanup.failed");
        }
    }

    fn try_clean_up(&mut self, core: &Core) -> Result<()> {
        // Leases are read after the superblock was written: a reader that this misses sees the new
        // superblock and begins anew.
        self.readers = lease::oldest(self.disk.as_ref(), &core.dir)?;
        // A tree that only this list refers to is not read any more.
        while self.epochs.len() > 1
            && self.epochs.front().is_some_and(|e| Arc::strong_count(e) == 1)
        {
            self.epochs.pop_front();
        }

        let published = self.superblock.generation;
        let in_use = self.epochs.front().map_or(published, |epoch| epoch.0);
        let read = self.readers.0.map_or(published, |read| read.max(self.superblock.oldest));

        for page in self.free_map.release(published.min(in_use).min(read)) {
            // The page may get other content, so the cached one is void.
            core.pager.cache.remove(page);
        }

        debug_assert!(self.superblock.log_start <= self.wal.synced(), "the tree has what goes");
        self.wal.trim(self.superblock.log_start);

        // Some free pages stay at the end, so that the file is not cut and grown in turns.
        let slack = (self.free_map.pages() / 8).max(2 * APPLY_LEAVES_MAX);
        self.cut_file(core, slack)
    }

    /// Cuts the free pages off the end of the file, if there are more than `slack` of them.
    pub(crate) fn cut_file(&mut self, core: &Core, slack: u64) -> Result<()> {
        let needed = self.free_map.needed_pages();
        if needed + slack < self.free_map.pages() {
            // The file first: if that fails, the map still has these pages.
            core.pager.file().set_len(needed * PAGE_SIZE as u64)?;
            self.free_map.cut(needed);
        }

        Ok(())
    }
}

/// Makes a page that belongs to no level of the tree. Returns its reference, too.
fn make_page(
    pager: &Pager,
    generation: u64,
    kind: Kind,
    count: u16,
    (number, body): (PageNo, &[u8]),
) -> (PageRef, NewPage) {
    let mut bytes = [0; PAGE_SIZE];
    debug_assert!(BODY_OFFSET + body.len() <= PAGE_SIZE, "a body fits into its page");
    bytes[BODY_OFFSET..BODY_OFFSET + body.len()].copy_from_slice(body);
    let header = Header { kind, level: 0, count, tree: pager.tree, generation, number, step: 0 };
    let crc = seal(&mut bytes, &header);
    (PageRef { number, crc }, (number, Page::new(&bytes)))
}

/// Writes and syncs a superblock.
pub(crate) fn write_superblock(pager: &Pager, superblock: &Superblock) -> Result<()> {
    let mut bytes = terrane_io::AlignedBuf::zeroed(PAGE_SIZE);
    bytes.copy_from_slice(&superblock.encode());
    pager.file().write_at(&bytes, superblock.page() * PAGE_SIZE as u64)?;
    pager.sync()
}
