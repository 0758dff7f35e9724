//! Inspection of an index from outside: locks and writes nothing, even while a writer has it open.
//!
//! An inspection repeats what the newest superblock and the WAL say;
//! [`check`](fn@crate::check) finds out whether it is true.

use std::path::Path;
use std::sync::Arc;

use terrane_io::EntryKind;
use terrane_io::{Access, AlignedBuf, Disk, OpenMode};

use crate::index::directory::{TREE_FILE, enter, existing_tree};
use crate::index::lease::{self, LEASE_BYTES, LEASE_MAGIC, LEASE_OFFSET, READERS_MAX};
use crate::log::applied::RANGES_MAX;
use crate::log::wal::{
    FRAME_HEAD_BYTES, FRAME_MAGIC, MARK_BYTES, MARK_MAGIC, SEGMENT_HEAD_BYTES, SEGMENT_MAGIC,
    WalReader,
};
use crate::page::block::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};
use crate::page::inner::Inner;
use crate::page::leaf::{Leaf, Sizes};
use crate::page::page::{self, BODY_OFFSET, Kind, PAGE_SIZE, Page, SUPERBLOCKS, u32_at};
use crate::pager::cache::LEVELS_MAX;
use crate::pager::config::{LOG_BYTES_MIN, MEMORY_BYTES_MIN};
use crate::pager::free_map::{LIST_MAPS, MAP_PAGES};
use crate::pager::superblock::{self, LISTS_MAX, SUPERBLOCK_MAGIC, TREE_VERSION};

/// Description of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct IndexInfo {
    /// Version of the format.
    pub version: u32,
    /// The number drawn when the index was created.
    pub tree: u64,
    /// Bytes of every key; `None` if they vary.
    pub key_bytes: Option<u16>,
    /// Bytes of every value; `None` if they vary.
    pub value_bytes: Option<u16>,
    /// Generation of the last checkpoint.
    pub generation: u64,
    /// The oldest generation that readers can still read.
    pub oldest_generation: u64,
    /// Number of levels of inner nodes.
    pub height: u32,
    /// Pages of each level, from the leaves up.
    pub level_pages: Vec<u64>,
    /// Number of entries as of the last flush.
    pub entries: u64,
    /// Number of entries as of the last checkpoint.
    pub checkpointed_entries: u64,
    /// Number of pages of the tree file.
    pub file_pages: u64,
    /// Position in the WAL that an opening reads from.
    pub log_start: u64,
    /// End of the WAL, as far as it is whole.
    pub log_end: u64,
    /// Number of updates in the WAL, including those that leaves have.
    pub log_updates: u64,
    /// Number of readers in other processes.
    pub readers: u32,
    /// The oldest generation that one of the readers reads.
    pub readers_oldest: Option<u64>,
}

/// A page of a tree file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TreePage {
    /// Number of the page.
    pub number: u32,
    /// Kind of the page.
    pub kind: &'static str,
    /// Level of the page: 0 for leaves, 1 for the nodes above them, and so on.
    pub level: u8,
    /// Generation that the page was written for; for a superblock, its own.
    pub generation: u64,
    /// Checksum of the page, which is right.
    pub crc: u32,
    /// Content of the page.
    pub content: TreePageContent,
}

/// Content of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum TreePageContent {
    /// A leaf.
    Leaf {
        /// Low fence: not above any key.
        low: Vec<u8>,
        /// High fence: above all keys; `None` in the last leaf.
        high: Option<Vec<u8>>,
        /// Keys with their values, ascending.
        entries: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// An inner node: its separators, ascending, each with the page for the keys from there on.
    Inner(Vec<(Vec<u8>, u32)>),
    /// Another page: its bytes behind the header.
    Bytes(Vec<u8>),
}

/// Whether a directory has the tree file of an index, even a damaged one, or the WAL of an index
/// that has lost it.
///
/// Cost: one question to the file system; three and a read for each segment if there is no tree
/// file.
///
/// # Errors
/// [`Error::Disk`].
pub fn is_index(disk: &dyn Disk, dir: &Path) -> Result<bool> {
    match disk.kind(&dir.join(TREE_FILE))? {
        Some(kind) => Ok(kind == EntryKind::File),
        None => Ok(matches!(existing_tree(disk, dir), Err(Error::TreeMissing { .. }))),
    }
}

/// Whether one of the first two pages of a file begins as a superblock does.
///
/// Cost: a read of 8 KiB.
///
/// # Errors
/// [`Error::Disk`].
pub fn is_tree_file(disk: &dyn Disk, path: &Path) -> Result<bool> {
    let file = disk.open(path, OpenMode::Read, Access::Buffered)?;
    let len = file.len()?.min(2 * PAGE_SIZE as u64) as usize;
    let mut bytes = vec![0; 2 * PAGE_SIZE];
    file.read_at(&mut bytes[..len], 0)?;
    Ok(bytes.chunks(PAGE_SIZE).any(|page| page.starts_with(&SUPERBLOCK_MAGIC)))
}

/// Describes the index in a directory.
///
/// Cost: reads the WAL.
///
/// # Errors
/// [`Error::NotFound`], [`Error::TreeMissing`], [`Error::NotAnIndex`],
/// [`Error::UnsupportedVersion`], [`Error::Corrupt`], [`Error::Disk`].
pub fn inspect(disk: &Arc<dyn Disk>, dir: &Path) -> Result<IndexInfo> {
    let (dir, _anchor) = &enter(disk.as_ref(), dir)?;
    let path = existing_tree(disk.as_ref(), dir)?;
    let superblock = superblock::read(disk.as_ref(), &path)?;
    let (readers_oldest, readers) = lease::oldest(disk.as_ref(), dir)?;
    let start = superblock.log_start;
    let mut wal = WalReader::new(disk.clone(), dir, superblock.tree, start);

    let mut entries = superblock.entries;
    let mut log_updates = 0;
    while let Some(frame) = wal.next()? {
        if frame.next >= superblock.log_end {
            entries = frame.entries;
        }
        log_updates += frame.updates().count() as u64;
    }

    let levels = usize::from(superblock.height) + usize::from(superblock.root.is_some());
    Ok(IndexInfo {
        version: TREE_VERSION,
        tree: superblock.tree,
        key_bytes: superblock.sizes.key,
        value_bytes: superblock.sizes.value,
        generation: superblock.generation,
        oldest_generation: superblock.oldest,
        height: u32::from(superblock.height),
        level_pages: superblock.level_pages[..levels].to_vec(),
        entries,
        checkpointed_entries: superblock.entries,
        file_pages: disk.open(&path, OpenMode::Read, Access::Buffered)?.len()? / PAGE_SIZE as u64,
        log_start: start,
        log_end: wal.position(),
        log_updates,
        readers,
        readers_oldest,
    })
}

/// Describes a page of a tree file. A free page still has what it had when it was in use, or
/// nothing.
///
/// Cost: three reads.
///
/// # Errors
/// [`Error::NotAnIndex`], [`Error::UnsupportedVersion`], [`Error::Disk`]; [`Error::Corrupt`], also
/// for a page behind the end of the file or never written.
pub fn inspect_page(disk: &dyn Disk, path: &Path, number: u32) -> Result<TreePage> {
    let superblock = superblock::read(disk, path)?;
    let corrupt = |what: Corrupt| {
        let what = Corrupt { page: u64::from(number), ..what };
        Error::Corrupt { path: path.to_owned(), what }
    };

    let file = disk.open(path, OpenMode::Read, Access::Direct)?;
    let pages = file.len()? / PAGE_SIZE as u64;
    if u64::from(number) >= pages {
        return Err(corrupt(Corrupt::rule("pages of the file", pages, u64::from(number))));
    }

    let mut buffer = AlignedBuf::zeroed(PAGE_SIZE);
    file.read_at(&mut buffer, u64::from(number) * PAGE_SIZE as u64)?;

    let bytes: &[u8; PAGE_SIZE] = buffer[..].try_into().expect("a page was read");
    if number < SUPERBLOCKS {
        return superblock_page(bytes, number).map_err(corrupt);
    }

    let header = page::open(bytes, superblock.tree, number).map_err(corrupt)?;
    let content = content(bytes, header.kind, superblock.sizes).map_err(corrupt)?;
    Ok(TreePage {
        number,
        kind: match header.kind {
            Kind::Leaf => "leaf",
            Kind::Inner => "inner",
            Kind::Map => "map",
            Kind::MapList => "map_list",
            Kind::Applied => "drained",
        },
        level: header.level,
        generation: header.generation,
        crc: u32_at(bytes, 0),
        content,
    })
}

/// Describes a superblock.
fn superblock_page(bytes: &[u8; PAGE_SIZE], number: u32) -> std::result::Result<TreePage, Corrupt> {
    let superblock = superblock::Superblock::decode(bytes, u64::from(number));
    let superblock = superblock.map_err(|refusal| match refusal {
        superblock::Refusal::Corrupt(what) => what,
        superblock::Refusal::NotOurs => Corrupt::rule("magic", 1, 0),
        superblock::Refusal::Version(found) => {
            Corrupt::rule("version", u64::from(TREE_VERSION), u64::from(found))
        }
    })?;

    Ok(TreePage {
        number,
        kind: "superblock",
        level: 0,
        generation: superblock.generation,
        crc: u32_at(bytes, 12),
        content: TreePageContent::Bytes(bytes.to_vec()),
    })
}

/// Decodes the content of a page that is not a superblock.
fn content(
    bytes: &[u8; PAGE_SIZE],
    kind: Kind,
    sizes: Sizes,
) -> std::result::Result<TreePageContent, Corrupt> {
    match kind {
        Kind::Leaf => {
            // `Leaf::of` takes only a page that was checked.
            Leaf::check(bytes, sizes)?;
            let page = Page::new(bytes);
            let leaf = Leaf::of(&page);
            let fences = leaf.fences();
            let mut key = Vec::new();
            let entries = (0..leaf.count())
                .map(|at| {
                    let value = leaf.read(at, &mut key).to_vec();
                    (key.clone(), value)
                })
                .collect();
            Ok(TreePageContent::Leaf {
                low: fences.low.to_vec(),
                high: fences.high.map(<[u8]>::to_vec),
                entries,
            })
        }
        Kind::Inner => {
            Inner::check(bytes)?;
            let page = Page::new(bytes);
            let node = Inner::of(&page);
            let children =
                (0..node.count()).map(|at| (node.separator(at), node.child(at).number)).collect();
            Ok(TreePageContent::Inner(children))
        }
        Kind::Map | Kind::MapList | Kind::Applied => {
            Ok(TreePageContent::Bytes(bytes[BODY_OFFSET..].to_vec()))
        }
    }
}

/// All constants of the formats of an index, by name.
#[must_use]
pub fn constants() -> Vec<(&'static str, String)> {
    let text = |magic: &[u8]| String::from_utf8_lossy(magic).escape_default().to_string();
    vec![
        ("BTREE_PAGE_SIZE", PAGE_SIZE.to_string()),
        ("BTREE_BODY_OFFSET", BODY_OFFSET.to_string()),
        ("BTREE_SUPERBLOCK_MAGIC", text(&SUPERBLOCK_MAGIC)),
        ("BTREE_TREE_VERSION", TREE_VERSION.to_string()),
        ("BTREE_SUPERBLOCKS", SUPERBLOCKS.to_string()),
        ("BTREE_LEVELS_MAX", LEVELS_MAX.to_string()),
        ("BTREE_MAP_PAGES", MAP_PAGES.to_string()),
        ("BTREE_LIST_MAPS", LIST_MAPS.to_string()),
        ("BTREE_LISTS_MAX", LISTS_MAX.to_string()),
        ("BTREE_RANGES_MAX", RANGES_MAX.to_string()),
        ("BTREE_SEGMENT_MAGIC", text(&SEGMENT_MAGIC)),
        ("BTREE_SEGMENT_HEAD_BYTES", SEGMENT_HEAD_BYTES.to_string()),
        ("BTREE_MARK_MAGIC", text(&MARK_MAGIC)),
        ("BTREE_MARK_BYTES", MARK_BYTES.to_string()),
        ("BTREE_FRAME_MAGIC", text(&FRAME_MAGIC)),
        ("BTREE_FRAME_HEAD_BYTES", FRAME_HEAD_BYTES.to_string()),
        ("BTREE_LEASE_MAGIC", text(&LEASE_MAGIC)),
        ("BTREE_LEASE_OFFSET", LEASE_OFFSET.to_string()),
        ("BTREE_LEASE_BYTES", LEASE_BYTES.to_string()),
        ("BTREE_READERS_MAX", READERS_MAX.to_string()),
        ("BTREE_KEY_BYTES_MAX", KEY_BYTES_MAX.to_string()),
        ("BTREE_VALUE_BYTES_MAX", VALUE_BYTES_MAX.to_string()),
        ("BTREE_MEMORY_BYTES_MIN", MEMORY_BYTES_MIN.to_string()),
        ("BTREE_LOG_BYTES_MIN", LOG_BYTES_MIN.to_string()),
        ("BTREE_PAGE_KIND_LEAF", (Kind::Leaf as u8).to_string()),
        ("BTREE_PAGE_KIND_INNER", (Kind::Inner as u8).to_string()),
        ("BTREE_PAGE_KIND_MAP", (Kind::Map as u8).to_string()),
        ("BTREE_PAGE_KIND_MAP_LIST", (Kind::MapList as u8).to_string()),
        ("BTREE_PAGE_KIND_DRAINED", (Kind::Applied as u8).to_string()),
    ]
}
