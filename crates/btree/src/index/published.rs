//! The published tree of a superblock, and the WAL above it: the common part of every opening.
//!
//! The writer, readers in other processes, checks and repairs decode the same pages and replay the
//! same frames here.
//!
//! Invariant: nothing of a page is used before its checksum, its kind and its lengths are checked.

use std::path::Path;
use std::sync::Arc;

use crate::log::applied::Applied;
use crate::log::pending::UpdateBuffer;
use crate::log::wal::{Frame, LOG_DIR};
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::page::page::{BODY_OFFSET, Kind, PageRef, u32_at};
use crate::pager::config::Limits;
use crate::pager::free_map::{FreeMap, LIST_MAPS, MAP_PAGES};
use crate::pager::pager::Pager;
use crate::pager::superblock::{NUMBER_MAX, Superblock};
use crate::tree::tree::{Child, Epoch, Tree};

/// Refuses an index whose keys or values have other sizes.
pub(crate) fn check_sizes(dir: &Path, limits: &Limits, superblock: &Superblock) -> Result<()> {
    let says = |size: Option<u16>| size.map_or("of any size".to_owned(), |bytes| bytes.to_string());
    let pairs = [
        ("key_bytes", superblock.sizes.key, limits.sizes.key),
        ("value_bytes", superblock.sizes.value, limits.sizes.value),
    ];

    match pairs.into_iter().find(|(_, stored, given)| stored != given) {
        Some((option, stored, given)) => {
            let stored = says(stored);
            let given = says(given);
            Err(Error::ConfigMismatch { path: dir.to_owned(), option, stored, given })
        }
        None => Ok(()),
    }
}

/// Reads how far a published tree has the updates of the WAL.
pub(crate) fn read_applied(pager: &Pager, superblock: &Superblock) -> Result<Applied> {
    let Some(page) = superblock.applied else { return Ok(Applied::up_to(superblock.log_start)) };
    let (count, bytes) = pager.load_other(page, Kind::Applied)?;

    let applied = Applied::decode(count, &bytes[BODY_OFFSET..]).filter(|applied| {
        applied.oldest().0 == superblock.log_start && applied.newest() <= superblock.log_end
    });

    applied.ok_or_else(|| {
        let page = u64::from(page.number);
        let count = count as u64;
        pager.corrupt(Corrupt { page, rule: "ranges of the drained", expected: count, found: 0 })
    })
}

/// The tree that a superblock publishes.
pub(crate) fn tree_of(superblock: &Superblock) -> Tree {
    Tree {
        root: superblock.root.map(Child::Stored),
        height: superblock.height,
        level_pages: superblock.level_pages,
        fresh_nodes: 0,
        epoch: Arc::new(Epoch(superblock.generation)),
    }
}

/// Reads the free map of a superblock, and the references of its pages.
pub(crate) fn read_free_map(
    pager: &Pager,
    superblock: &Superblock,
) -> Result<(FreeMap, Vec<PageRef>)> {
    let broken = |page: PageRef| {
        let page = u64::from(page.number);
        pager.corrupt(Corrupt { page, rule: "map of used pages", expected: 0, found: page })
    };

    let mut maps = Vec::new();
    for &list in &superblock.lists {
        let (count, bytes) = pager.load_other(list, Kind::MapList)?;
        if count > LIST_MAPS {
            return Err(broken(list));
        }
        for at in (BODY_OFFSET..BODY_OFFSET + 8 * count).step_by(8) {
            let map = PageRef { number: u32_at(&bytes, at), crc: u32_at(&bytes, at + 4) };
            if u64::from(map.number) >= superblock.pages {
                return Err(broken(list));
            }
            maps.push(map);
        }
    }

    // Every page has its bit, and none more: a list of another length belongs to another file.
    let root = superblock.root.unwrap_or(PageRef { number: 0, crc: 0 });
    if superblock.pages > 1 << 32
        || maps.len() as u64 != superblock.pages.div_ceil(MAP_PAGES as u64)
    {
        return Err(broken(root));
    }

    let mut bodies = Vec::with_capacity(maps.len());
    for &map in &maps {
        bodies.push(pager.load_other(map, Kind::Map)?.1);
    }

    let bodies = bodies.iter().map(|bytes| &bytes[BODY_OFFSET..]);
    let free_map = FreeMap::from_maps(superblock.pages, bodies).ok_or_else(|| broken(root))?;
    Ok((free_map, maps))
}

/// Makes the updates of a frame pending, except those that the tree has.
pub(crate) fn replay(
    pending: &mut UpdateBuffer,
    frame: &Frame,
    applied: &Applied,
    sizes: crate::page::leaf::Sizes,
    dir: &Path,
) -> Result<()> {
    if frame.entries > NUMBER_MAX {
        let what = Corrupt::rule("entries of a frame of the log", NUMBER_MAX, frame.entries);
        return Err(Error::Corrupt { path: dir.join(LOG_DIR), what });
    }

    for (number, update) in frame.updates().enumerate() {
        let Some((key, value)) = update.filter(|(key, value)| sizes.check(key, *value).is_ok())
        else {
            let what = Corrupt::rule("update of a frame of the log", 0, number as u64);
            return Err(Error::Corrupt { path: dir.join(LOG_DIR), what });
        };
        // The leaf of the key has the updates before this position.
        if frame.position >= applied.position(key) {
            pending.insert(key, value);
        }
    }

    Ok(())
}
