//! Inner nodes: the pages that lead from keys to leaves.
//!
//! Separators are stored without the prefix that all but the first share; see
//! `docs/format/btree.md`. Child `i` holds the keys from separator `i` on and below separator `i +
//! 1`.
//!
//! Invariants: separators ascend strictly. Each separator is the low fence of the leaf that it
//! leads to. It was made of the keys on both sides when these leaves were cut, and goes up
//! unchanged when a node is divided.
//!
//! Rejected: separators cut again between nodes (`IN` between `I` and `INT` loses `INDEX`).

use terrane_io::key_order::compare_keys;

use crate::page::block::KEY_BYTES_MAX;
use crate::page::corrupt::Corrupt;
use crate::page::page::{
    BODY_OFFSET, PAGE_SIZE, Page, PageRef, SUPERBLOCKS, common_prefix, u16_at, u32_at,
};

/// Offset of the children.
pub(crate) const CHILDREN_OFFSET: usize = 40;

/// Bytes of the reference of a child.
pub(crate) const CHILD_BYTES: usize = 8;

/// An inner node whose offsets have been checked; reading from it cannot fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inner<'a> {
    bytes: &'a [u8; PAGE_SIZE],
    count: usize,
    ends_at: usize,
    low: &'a [u8],
    prefix: &'a [u8],
    /// Offset of the first separator that is stored without its prefix.
    separators_at: usize,
}

impl<'a> Inner<'a> {
    /// Reads a node that was checked, or that this program made.
    pub(crate) fn of(page: &'a Page) -> Self {
        Self::parse(page.bytes()).expect("a page in memory has been checked")
    }

    /// Finds the parts of a node; `None` if one lies outside of its page.
    fn parse(bytes: &'a [u8; PAGE_SIZE]) -> Option<Self> {
        let count = usize::from(u16_at(bytes, 6));
        let [low_len, prefix_len] = [32, 34].map(|at| usize::from(u16_at(bytes, at)));
        let ends_at = CHILDREN_OFFSET + CHILD_BYTES * count;
        let low_at = ends_at + 2 * count.checked_sub(1)?;

        let prefix_at = low_at + low_len;
        let separators_at = prefix_at + prefix_len;
        Some(Self {
            bytes,
            count,
            ends_at,
            low: bytes.get(low_at..prefix_at)?,
            prefix: bytes.get(prefix_at..separators_at)?,
            separators_at,
        })
    }

    /// Checks that a node lies within its page, and that its separators and children make sense.
    ///
    /// # Errors
    /// [`Corrupt`] with the broken rule.
    pub(crate) fn check(bytes: &[u8; PAGE_SIZE]) -> Result<(), Corrupt> {
        let node = Inner::parse(bytes).ok_or(Corrupt::rule("low_len", 0, 0))?;
        let mut start = node.separators_at;

        for at in 1..node.count {
            let end = node.end_of(at);
            if end < start || end > PAGE_SIZE {
                return Err(Corrupt::rule("ends", start as u64, end as u64));
            }
            let bytes = node.prefix.len() + end - start;
            if bytes.max(node.low.len()) > KEY_BYTES_MAX {
                return Err(Corrupt::rule(
                    "length of a separator",
                    KEY_BYTES_MAX as u64,
                    bytes as u64,
                ));
            }
            start = end;
        }

        node.check_order()
    }

    /// Checks that separators ascend, and that children are not superblocks.
    ///
    /// Cost: a comparison for each child.
    fn check_order(&self) -> Result<(), Corrupt> {
        // The first separator is stored whole, the others without their common prefix.
        let ascends = |at: usize| match at {
            1 => *self.low < *self.separator(1),
            at => compare_keys(self.suffix(at - 1), self.suffix(at)).is_lt(),
        };
        if let Some(at) = (1..self.count).find(|&at| !ascends(at)) {
            return Err(Corrupt::rule("separators ascend", at as u64, at as u64));
        }
        // A superblock in the tree would be freed and written over.
        match (0..self.count).find(|&at| self.child(at).number < SUPERBLOCKS) {
            Some(at) => Err(Corrupt::rule("number of a child", u64::from(SUPERBLOCKS), at as u64)),
            None => Ok(()),
        }
    }

    /// Offset of the end of separator `at`.
    fn end_of(&self, at: usize) -> usize {
        usize::from(u16_at(self.bytes, self.ends_at + 2 * (at - 1)))
    }

    /// Number of children.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Separator `at`, without the prefix if it is not the first one.
    fn suffix(&self, at: usize) -> &'a [u8] {
        let start = if at == 1 { self.separators_at } else { self.end_of(at - 1) };
        &self.bytes[start..self.end_of(at)]
    }

    /// Separator `at`: the low fence of child `at`.
    pub(crate) fn separator(&self, at: usize) -> Vec<u8> {
        if at == 0 { self.low.to_vec() } else { [self.prefix, self.suffix(at)].concat() }
    }

    /// The stored reference of child `at`, which has no meaning if the child is fresh.
    pub(crate) fn child(&self, at: usize) -> PageRef {
        let at = CHILDREN_OFFSET + CHILD_BYTES * at;
        PageRef { number: u32_at(self.bytes, at), crc: u32_at(self.bytes, at + 4) }
    }

    /// The child for `key`: the last one whose separator is not above `key`, or the first one.
    pub(crate) fn child_for(&self, key: &[u8]) -> usize {
        // A key without the common prefix lies before or behind all separators that have it.
        let Some(suffix) = key.strip_prefix(self.prefix) else {
            return if key < self.prefix { 0 } else { self.count - 1 };
        };

        let mut low = 1;
        let mut high = self.count;
        while low < high {
            let middle = (low + high) / 2;
            if compare_keys(self.suffix(middle), suffix).is_le() {
                low = middle + 1;
            } else {
                high = middle;
            }
        }

        low - 1
    }

    /// Bytes in use, of [`PAGE_SIZE`].
    pub(crate) fn used_bytes(&self) -> usize {
        if self.count == 1 { self.separators_at } else { self.end_of(self.count - 1) }
    }
}

/// Length of the common prefix of all separators but the first, which ascend.
fn prefix_len(lows: &[&[u8]]) -> usize {
    match lows {
        [_, first, .., last] => common_prefix(first, last),
        [_, only] => only.len(),
        _ => 0,
    }
}

/// Bytes of a node with these separators, whose lengths add up to `sum`.
pub(crate) fn node_bytes(lows: &[&[u8]], sum: usize) -> usize {
    let count = lows.len();
    let prefix = prefix_len(lows);
    let low = lows[0].len();
    CHILDREN_OFFSET + CHILD_BYTES * count + 2 * (count - 1) + low + prefix + (sum - low)
        - (count - 1) * prefix
}

/// Number of children, given by their separators, of a node that is filled up to `fill` bytes; at
/// least two.
pub(crate) fn most_children(lows: &[&[u8]], fill: usize) -> usize {
    let mut sum = 0;
    let fits = |at: &usize| {
        sum += lows[*at].len();
        // A node has two children at least, so the first two always count.
        *at < 2 || node_bytes(&lows[..=*at], sum) <= fill
    };
    (0..lows.len()).take_while(fits).count()
}

/// Divides children, given by their separators, among as few nodes as hold them, as evenly as their
/// sizes allow. Returns the end of each node.
pub(crate) fn divide(lows: &[&[u8]]) -> Vec<usize> {
    let mut sums = Vec::with_capacity(lows.len() + 1);
    sums.push(0_usize);
    for low in lows {
        sums.push(sums[sums.len() - 1] + low.len());
    }

    // The least number of nodes may not do: each node has a prefix of its own.
    let whole = node_bytes(lows, sums[lows.len()]);
    for parts in whole.div_ceil(PAGE_SIZE).max(1)..=lows.len() {
        // The weight of a child leaves out the prefix of its node, which is not known yet.
        let weigh = |at: usize| sums[at] + at * (CHILD_BYTES + 2);

        let mut ends = Vec::with_capacity(parts);
        let mut from = 0;
        for part in 1..=parts {
            let left = parts - part;
            let goal = weigh(lows.len()) * part / parts;
            let fits = |to: &usize| weigh(*to) >= goal;
            let most = lows.len() - left;
            let to = (from + 1..most).find(fits).unwrap_or(most);
            if node_bytes(&lows[from..to], sums[to] - sums[from]) > PAGE_SIZE {
                break;
            }
            ends.push(to);
            from = to;
        }

        if ends.last() == Some(&lows.len()) {
            return ends;
        }
    }

    unreachable!("a child fits into a node of its own")
}

/// Writes the body of a node into a page of zeros, into which its children and separators must fit.
pub(crate) fn write(bytes: &mut [u8], lows: &[&[u8]], children: impl Iterator<Item = PageRef>) {
    assert!(!lows.is_empty(), "a node has a child");
    let prefix_len = prefix_len(lows);
    bytes[BODY_OFFSET..][..2].copy_from_slice(&(lows[0].len() as u16).to_le_bytes());
    bytes[BODY_OFFSET + 2..][..2].copy_from_slice(&(prefix_len as u16).to_le_bytes());

    for (at, child) in children.enumerate() {
        set_child(bytes, at, child);
    }

    debug_assert!(lows.is_sorted(), "separators ascend");
    let ends_at = CHILDREN_OFFSET + CHILD_BYTES * lows.len();

    let mut end = ends_at + 2 * (lows.len() - 1);
    let mut put = |bytes: &mut [u8], what: &[u8]| {
        bytes[end..end + what.len()].copy_from_slice(what);
        end += what.len();
        end
    };

    put(bytes, lows[0]);
    put(bytes, lows.get(1).map_or(&[], |low| &low[..prefix_len]));
    for (at, low) in lows.iter().enumerate().skip(1) {
        let end = put(bytes, &low[prefix_len..]);
        bytes[ends_at + 2 * (at - 1)..][..2].copy_from_slice(&(end as u16).to_le_bytes());
    }
}

/// Writes the reference of a child.
pub(crate) fn set_child(bytes: &mut [u8], at: usize, child: PageRef) {
    let place = &mut bytes[CHILDREN_OFFSET + CHILD_BYTES * at..][..CHILD_BYTES];
    place[..4].copy_from_slice(&child.number.to_le_bytes());
    place[4..].copy_from_slice(&child.crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;
    use crate::page::page::{Header, Kind, seal};

    #[test]
    fn nodes_lead_each_key_to_the_child_below_it() {
        for_each_seed("nodes_lead_each_key_to_the_child_below_it", 60, |rng, seed| {
            let shared = rng.bytes((seed % 9) as usize);
            let count = 1 + rng.below(700);
            let mut lows: BTreeSet<Vec<u8>> = (0..count)
                .map(|_| [&shared[..], &rng.bytes(1 + (seed % 5) as usize)].concat())
                .collect();
            lows.insert(Vec::new());
            let lows: Vec<&[u8]> = lows.iter().map(Vec::as_slice).collect();
            let mut from = 0;
            for to in divide(&lows) {
                let own = &lows[from..to];
                let mut bytes = [0; PAGE_SIZE];
                let child = |at: usize| PageRef { number: at as u32 + 2, crc: at as u32 * 3 };
                write(&mut bytes, own, (from..to).map(child));
                let count = own.len() as u16;
                let tree = 1;
                let number = 1;
                let header = Header {
                    kind: Kind::Inner,
                    level: 1,
                    count,
                    tree,
                    generation: 1,
                    number,
                    step: 0,
                };
                seal(&mut bytes, &header);
                Inner::check(&bytes).unwrap();
                let page = Page::new(&bytes);
                let node = Inner::of(&page);
                for (at, low) in own.iter().enumerate() {
                    assert_eq!(node.separator(at), *low);
                    assert_eq!(node.child(at), child(from + at));
                }
                for _ in 0..200 {
                    let mut key = [&shared[..], &rng.bytes(4)].concat();
                    if rng.chance(1, 5) {
                        key = own[rng.index(own.len())].to_vec();
                    }
                    let expected = own.partition_point(|&low| low <= key.as_slice());
                    assert_eq!(node.child_for(&key), expected.saturating_sub(1));
                }
                from = to;
            }
            assert_eq!(from, lows.len());
        });
    }

    #[test]
    fn no_bytes_of_a_node_can_hurt() {
        for_each_seed("no_bytes_of_a_node_can_hurt", 300, |rng, _| {
            let lows: BTreeSet<Vec<u8>> = (0..50).map(|_| rng.bytes(3)).collect();
            let lows: Vec<&[u8]> = lows.iter().map(Vec::as_slice).collect();
            let mut bytes = [0; PAGE_SIZE];
            write(&mut bytes, &lows, lows.iter().map(|_| PageRef { number: 3, crc: 2 }));
            bytes[6..8].copy_from_slice(&(lows.len() as u16).to_le_bytes());
            Inner::check(&bytes).unwrap();
            for _ in 0..=rng.below(3) {
                let at = 6 + rng.below(700) as usize;
                bytes[at] = rng.below(256) as u8;
            }
            if Inner::check(&bytes).is_ok() {
                let page = Page::new(&bytes);
                let node = Inner::of(&page);
                assert!(node.child_for(&rng.bytes(3)) < node.count());
                let _ = node.child(node.count() - 1);
                assert!(node.used_bytes() <= PAGE_SIZE);
            }
        });
    }
}
