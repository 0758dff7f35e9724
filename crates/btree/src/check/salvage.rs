//! Salvage of a damaged tree file: which of its leaves make up the tree.
//!
//! The scan reads all pages once. A whole leaf names its range of keys and its age. The free map,
//! if it is whole, says which leaves are those of the published tree. Where the map is lost, or a
//! leaf of the tree is damaged, age decides: each range of keys comes from its newest leaf, by
//! generation and step.
//!
//! Invariant: the pieces of [`cover`] follow each other without gaps and span all keys.
//!
//! Memory: for each leaf its fences and some sixty bytes, four bytes for each damaged page, and the
//! free map.
//!
//! Rejected: comparing the first and last keys of leaves (cannot tell an old leaf from a new one of
//! the same range); ordering leaves by the clock; mending single nodes (a second way to make nodes,
//! for a case that looks at every leaf anyway).

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use terrane_io::{AlignedBuf, DiskFile};

use crate::log::applied::Applied;
use crate::page::leaf::{Leaf, Sizes};
use crate::page::page::{
    self, BODY_OFFSET, KeyRange, Kind, PAGE_SIZE, PageNo, PageRef, SUPERBLOCKS, u32_at, u64_at,
};
use crate::pager::free_map::{LIST_MAPS, MAP_PAGES};
use crate::pager::pager::{Pager, offset};

/// Pages that one call reads.
const CHUNK_PAGES: usize = 256;

/// Upper bound of generations; no index reaches it.
const GENERATION_MAX: u64 = 1 << 62;

/// A whole leaf.
#[derive(Debug)]
pub(crate) struct FoundLeaf {
    pub(crate) keys: KeyRange,
    pub(crate) page: PageRef,
    generation: u64,
    step: u32,
}

/// The findings of a scan.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Number of pages of the file.
    pub(crate) pages: u64,
    pub(crate) leaves: Vec<FoundLeaf>,
    /// Pages that are neither whole nor zero, ascending.
    pub(crate) damaged: Vec<PageNo>,
    /// Number of whole pages.
    pub(crate) whole: u64,
    /// Sizes of keys and values, as the leaves record them.
    pub(crate) sizes: Option<Sizes>,
    pub(crate) generation_max: u64,
    /// The newest applied positions, with their generation.
    pub(crate) applied: Option<(u64, Applied)>,
    /// List pages of the newest generation that has any, ascending.
    pub(crate) lists: (u64, Vec<PageRef>),
}

/// Calls `each` for every page behind the superblocks; a page that cannot be read is `None`.
fn for_each_page(
    file: &dyn DiskFile,
    progress: &mut dyn FnMut(u64, u64),
    mut each: impl FnMut(PageNo, Option<&[u8]>),
) -> Result<u64, terrane_io::Error> {
    // Numbers of pages have 32 bits.
    let pages = (file.len()? / PAGE_SIZE as u64).min(1 << 32);
    let mut buffer = AlignedBuf::zeroed(CHUNK_PAGES * PAGE_SIZE);
    let mut next = u64::from(SUPERBLOCKS);

    while next < pages {
        let count = (pages - next).min(CHUNK_PAGES as u64) as usize;
        let chunk = &mut buffer[..count * PAGE_SIZE];
        let is_read = file.read_at(chunk, next * PAGE_SIZE as u64).is_ok();
        for (number, bytes) in (next as PageNo..).zip(chunk.chunks_exact_mut(PAGE_SIZE)) {
            // One bad sector does not hide its neighbours.
            let is_whole = is_read || file.read_at(bytes, offset(number)).is_ok();
            each(number, is_whole.then_some(&*bytes));
        }
        next += count as u64;
        progress(next, pages);
    }

    Ok(pages)
}

/// The tree that most leaves of a file belong to; `None` if there is no leaf.
///
/// Cost: reads the file once.
pub(crate) fn most_frequent_tree(file: &dyn DiskFile) -> Result<Option<u64>, terrane_io::Error> {
    let mut leaves: HashMap<u64, u64> = HashMap::new();
    for_each_page(file, &mut |_, _| {}, |number, bytes| {
        let Some(bytes) = bytes else { return };
        let tree = u64_at(bytes, 8);
        if page::open(bytes, tree, number).is_ok_and(|header| header.kind == Kind::Leaf) {
            *leaves.entry(tree).or_default() += 1;
        }
    })?;
    Ok(leaves.into_iter().max_by_key(|&(_, count)| count).map(|(tree, _)| tree))
}

impl Scan {
    /// Reads all pages of a tree file.
    ///
    /// Cost: reads the file once, in pieces of a megabyte.
    pub(crate) fn read(
        file: &dyn DiskFile,
        tree: u64,
        sizes: Option<Sizes>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, terrane_io::Error> {
        let mut scan = Self { sizes, ..Self::default() };
        scan.pages = for_each_page(file, progress, |number, bytes| {
            // A page that was never written is zero, and no damage.
            let is_zero = bytes.is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0));
            if !is_zero && bytes.and_then(|bytes| scan.take(tree, number, bytes)).is_none() {
                scan.damaged.push(number);
            }
        })?;

        Ok(scan)
    }

    /// Notes the content of a page; `None` if the page is not whole.
    fn take(&mut self, tree: u64, number: PageNo, bytes: &[u8]) -> Option<()> {
        let header = page::open(bytes, tree, number).ok()?;
        let generation = Some(header.generation).filter(|&is| is <= GENERATION_MAX)?;
        let bytes: &[u8; PAGE_SIZE] = bytes.try_into().ok()?;
        let page = PageRef { number, crc: u32_at(bytes, 0) };

        match header.kind {
            Kind::Leaf => self.take_leaf(page, generation, header.step, bytes)?,
            Kind::Applied
                if self.applied.as_ref().is_none_or(|(newest, _)| *newest < generation) =>
            {
                let applied = Applied::decode(usize::from(header.count), &bytes[BODY_OFFSET..])?;
                self.applied = Some((generation, applied));
            }
            Kind::MapList if self.lists.0 < generation => self.lists = (generation, vec![page]),
            Kind::MapList if self.lists.0 == generation => self.lists.1.push(page),
            Kind::Inner | Kind::Map | Kind::MapList | Kind::Applied => {}
        }

        self.whole += 1;
        self.generation_max = self.generation_max.max(generation);
        Some(())
    }

    /// Notes a leaf; `None` if it is not whole.
    fn take_leaf(
        &mut self,
        page: PageRef,
        generation: u64,
        step: u32,
        bytes: &[u8; PAGE_SIZE],
    ) -> Option<()> {
        // Without a superblock the first leaf tells the sizes.
        let sizes = *self.sizes.get_or_insert_with(|| Leaf::stored_sizes(bytes));
        Leaf::check(bytes, sizes).ok()?;
        let leaf = Leaf::of_bytes(bytes);
        let fences = leaf.fences();
        let keys = (fences.low.to_vec(), fences.high.map(<[u8]>::to_vec));
        self.leaves.push(FoundLeaf { keys, page, generation, step });
        Some(())
    }

    /// The newest generation that a page of a checkpoint itself tells; leaves do not count.
    pub(crate) fn checkpoint_max(&self) -> u64 {
        self.applied.as_ref().map_or(0, |(generation, _)| *generation).max(self.lists.0)
    }
}

/// The parts of the free map that are whole.
#[derive(Debug, Default)]
pub(crate) struct KnownMap {
    maps: Vec<Option<AlignedBuf>>,
}

impl KnownMap {
    /// Reads the free map from its list pages, as far as it is readable.
    ///
    /// Cost: a read for each page of the map.
    pub(crate) fn read(pager: &Pager, lists: &[PageRef], pages: u64) -> Self {
        let mut maps: Vec<Option<AlignedBuf>> = Vec::new();
        maps.resize_with(pages.div_ceil(MAP_PAGES as u64) as usize, || None);
        for (&list, maps) in lists.iter().zip(maps.chunks_mut(LIST_MAPS)) {
            // A list that is lost leaves its part of the map unknown, and no more.
            let Ok((count, bytes)) = pager.load_other(list, Kind::MapList) else { continue };
            let entries = bytes[BODY_OFFSET..].chunks_exact(8).take(count);
            for (map, entry) in maps.iter_mut().zip(entries) {
                let page = PageRef { number: u32_at(entry, 0), crc: u32_at(entry, 4) };
                *map = pager.load_other(page, Kind::Map).ok().map(|(_, bytes)| bytes);
            }
        }
        Self { maps }
    }

    /// Whether a page is in use; `None` if that part of the map is lost.
    pub(crate) fn says(&self, page: PageNo) -> Option<bool> {
        let map = self.maps.get(page as usize / MAP_PAGES)?.as_ref()?;
        let bit = page as usize % MAP_PAGES;
        Some(map[BODY_OFFSET + bit / 8] >> (bit % 8) & 1 == 1)
    }

    /// Number of lost parts.
    pub(crate) fn lost(&self) -> u64 {
        self.maps.iter().filter(|map| map.is_none()).count() as u64
    }
}

/// A range of keys, and the leaf that it is taken from.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) keys: KeyRange,
    /// Place of the leaf among those found; `None` if no leaf is for these keys.
    pub(crate) leaf: Option<usize>,
    /// Whether the piece is the whole range of the leaf.
    pub(crate) is_whole: bool,
    /// Whether the free map says that the tree has this leaf.
    pub(crate) is_certain: bool,
    /// Whether the tree had another leaf for these keys, which is damaged.
    pub(crate) is_stale: bool,
}

/// Finds a leaf for every key. Leaves that the tree is known to have come first, then newer ones
/// before older ones. Leaves written after `generation_max` do not count.
pub(crate) fn cover(leaves: &[FoundLeaf], map: &KnownMap, generation_max: u64) -> Vec<Piece> {
    // 0: the tree has the leaf; 1: it may have; 2: an older tree has.
    let class = |leaf: &FoundLeaf| match map.says(leaf.page.number) {
        Some(true) => 0,
        None => 1,
        Some(false) => 2,
    };

    // Leaves of a checkpoint that was not published are newer.
    let is_allowed = |&at: &usize| leaves[at].generation <= generation_max;
    let mut order: Vec<usize> = (0..leaves.len()).filter(is_allowed).collect();
    order.sort_unstable_by_key(|&at| {
        let leaf = &leaves[at];
        (class(leaf), u64::MAX - leaf.generation, u32::MAX - leaf.step, leaf.page.number)
    });

    // Each leaf in turn takes what is left of its range; so the first leaf in the order wins.
    let mut gaps: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::from([(Vec::new(), None)]);
    let mut pieces = Vec::with_capacity(leaves.len());

    for at in order {
        for keys in fill(&mut gaps, &leaves[at].keys) {
            let is_whole = keys == leaves[at].keys;
            let class = class(&leaves[at]);
            let is_certain = class == 0;
            let is_stale = !is_whole || class == 2;
            pieces.push(Piece { keys, leaf: Some(at), is_whole, is_certain, is_stale });
        }
    }

    pieces.extend(gaps.into_iter().map(|keys| Piece {
        keys,
        leaf: None,
        is_whole: false,
        is_certain: false,
        is_stale: false,
    }));

    pieces.sort_unstable_by(|a, b| a.keys.0.cmp(&b.keys.0));
    debug_assert!(
        pieces.windows(2).all(|pair| pair[0].keys.1.as_ref() == Some(&pair[1].keys.0)),
        "pieces meet"
    );

    pieces
}

/// Marks uncertain pieces as stale. Without the free map, and with other leaves than the tree had,
/// any leaf may stand for a damaged one. `expected` is the number of leaves of the tree, if it is
/// known.
pub(crate) fn doubt(pieces: &mut [Piece], expected: Option<u64>) {
    let is_right = |piece: &Piece| piece.leaf.is_some() && !piece.is_stale;
    let is_complete = expected.is_none_or(|expected| expected == pieces.len() as u64);
    if is_complete && pieces.iter().all(is_right) {
        return;
    }
    for piece in pieces.iter_mut().filter(|piece| piece.leaf.is_some() && !piece.is_certain) {
        piece.is_stale = true;
    }
}

/// Whether a key lies below the end of a range.
fn is_below(key: &[u8], high: Option<&Vec<u8>>) -> bool {
    high.is_none_or(|high| key < high.as_slice())
}

/// Takes a range out of the gaps. Returns the parts of the range that were gaps.
fn fill(gaps: &mut BTreeMap<Vec<u8>, Option<Vec<u8>>>, (low, high): &KeyRange) -> Vec<KeyRange> {
    let up_to = (Bound::Unbounded, Bound::Included(low.as_slice()));
    let mut starts: Vec<Vec<u8>> = Vec::new();

    // A gap that begins before the range may reach into it.
    if let Some((start, end)) = gaps.range::<[u8], _>(up_to).next_back()
        && is_below(low, end.as_ref())
    {
        starts.push(start.clone());
    }

    let behind = (Bound::Excluded(low.as_slice()), Bound::Unbounded);
    let above = gaps.range::<[u8], _>(behind).map(|(start, _)| start);
    starts.extend(above.take_while(|start| is_below(start, high.as_ref())).cloned());

    let mut filled = Vec::with_capacity(starts.len());
    for start in starts {
        let Some(end) = gaps.remove(&start) else { continue };
        let from = if start < *low {
            gaps.insert(start, Some(low.clone()));
            low.clone()
        } else {
            start
        };

        let to = match (&end, high) {
            (_, Some(high)) if is_below(high, end.as_ref()) => {
                gaps.insert(high.clone(), end.clone());
                Some(high.clone())
            }
            _ => end,
        };

        filled.push((from, to));
    }

    filled
}

#[cfg(test)]
mod tests {
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;

    fn key(number: usize) -> Vec<u8> {
        if number == 0 { Vec::new() } else { format!("{number:02}").into_bytes() }
    }

    /// Every key is taken from the newest leaf that is for it, and pieces meet.
    #[test]
    fn newest_leaves_win_key_by_key() {
        for_each_seed("newest_leaves_win_key_by_key", 200, |rng, _| {
            let leaves: Vec<FoundLeaf> = (0..rng.below(12))
                .map(|number| {
                    let low = rng.index(20);
                    let high = rng.chance(4, 5).then(|| key(low + 1 + rng.index(10)));
                    FoundLeaf {
                        keys: (key(low), high),
                        page: PageRef { number: 2 + number as PageNo, crc: 0 },
                        generation: rng.below(4),
                        step: number as u32,
                    }
                })
                .collect();
            let pieces = cover(&leaves, &KnownMap::default(), 2);
            assert_eq!(pieces[0].keys.0, key(0));
            assert_eq!(pieces[pieces.len() - 1].keys.1, None);
            for pair in pieces.windows(2) {
                assert_eq!(pair[0].keys.1.as_ref(), Some(&pair[1].keys.0));
            }
            for number in 0..40 {
                let key = key(number);
                let is_for = |keys: &KeyRange| keys.0 <= key && is_below(&key, keys.1.as_ref());
                let newest = (0..leaves.len())
                    .filter(|&at| is_for(&leaves[at].keys) && leaves[at].generation <= 2)
                    .max_by_key(|&at| (leaves[at].generation, leaves[at].step));
                let piece = pieces.iter().find(|piece| is_for(&piece.keys)).unwrap();
                assert_eq!(piece.leaf, newest);
                let whole = piece.leaf.is_some_and(|at| leaves[at].keys == piece.keys);
                assert_eq!(piece.is_whole, whole);
            }
        });
    }
}
