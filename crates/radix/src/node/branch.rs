//! Branches: nodes with at least two children, or with a value and at least one, kept as the bytes
//! that are stored.
//!
//! A wide branch of which few children change is stored as its difference from an older one, so
//! that what a commit writes depends on what it changes: 256 children take 20 KB. The older one,
//! its *base*, is always stored whole.
//!
//! Invariant: the bytes follow the formats; a difference names only children that can be in a
//! branch with its base.
//!
//! A whole branch, lengths as LEB128 numbers:
//!
//! | bytes | field |
//! |---|---|
//! | 1.. | length of the value + 1, or 0 for none |
//! | .. | the value |
//! | 1.. | number of children |
//! | .. | the children, ascending by token: token (1), edge |
//!
//! A difference:
//!
//! | bytes | field |
//! |---|---|
//! | 32 | hash of the base |
//! | 1.. | length of the value + 1, or 0 for none |
//! | .. | the value |
//! | 1.. | number of children that differ |
//! | .. | those, ascending by token: token (1), and the edge, or [`GONE`] for a child that only the base has |

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::base::node_hash::{NODE_HASH_BYTES, NodeHash};
use crate::node::node::{
    Broken, Edge, EdgeRef, Input, LEAF_FLAG, NodeRef, Read, put_edge, put_number,
};

/// Stands in place of the edge of a removed child.
pub(crate) const GONE: u8 = 0xFF;
/// Bytes of the smallest base: a difference from a smaller branch would save little.
pub(crate) const BASE_BYTES_MIN: usize = 2048;
/// A difference has at most this part of the bytes of its base, about 32 of 256 children. With one
/// change in each commit, differences then take as many bytes as the whole branches between them.
pub(crate) const DIFFERENCE_PART: usize = 8;
/// Set in the offset of a child that lies in the difference and not in the base.
const IN_DIFFERENCE: u32 = 1 << 31;

/// A branch that is stored whole.
#[derive(Debug, PartialEq, Eq)]
struct Whole {
    bytes: Box<[u8]>,
    value: Option<Range<usize>>,
    /// Offset of each child, ascending as the tokens are.
    places: Box<[u32]>,
    /// Tokens of the longest extension of a child.
    extension_max: usize,
}

/// A branch as its difference from a base, a branch that is stored whole.
#[derive(Debug, PartialEq, Eq)]
struct Delta {
    base: NodeHash,
    bytes: Box<[u8]>,
    value: Option<Range<usize>>,
    /// Offsets of the children that differ.
    entries: Box<[u32]>,
    /// Offset of each child: in the difference if [`IN_DIFFERENCE`] is set, else in the base.
    places: Box<[u32]>,
    extension_max: usize,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    whole: Arc<Whole>,
    difference: Option<Arc<Delta>>,
}

fn here(input: &Input<'_>, bytes: &[u8]) -> usize {
    bytes.len() - input.0.len()
}

fn read_value(input: &mut Input<'_>, bytes: &[u8]) -> Read<Option<Range<usize>>> {
    let length = input.number()?;
    let Some(length) = length.checked_sub(1) else { return Ok(None) };
    let start = here(input, bytes);
    input.bytes(usize::try_from(length).map_err(|_| Broken("it is cut short"))?)?;
    Ok(Some(start..here(input, bytes)))
}

fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) -> Option<Range<usize>> {
    put_number(out, value.map_or(0, |value| value.len() as u64 + 1));
    value.map(|value| {
        out.extend_from_slice(value);
        out.len() - value.len()..out.len()
    })
}

/// Reads the number of children and each child by `entry`; returns the offset of each.
fn read_children<'a>(
    input: &mut Input<'a>,
    bytes: &'a [u8],
    mut entry: impl FnMut(&mut Input<'a>) -> Read<()>,
) -> Read<Box<[u32]>> {
    let count = input.number()?;
    // A token is a byte, so there are at most 256 children.
    if count == 0 || count > 256 {
        return Err(Broken("number of children"));
    }

    let mut places = Vec::with_capacity(count as usize);
    let mut last = None;
    for _ in 0..count {
        // The top bit of an offset tells children of a difference from those of the base.
        let place = u32::try_from(here(input, bytes)).ok().filter(|at| *at < IN_DIFFERENCE);
        places.push(place.ok_or(Broken("it is too long"))?);
        let token = input.byte()?;
        if last.is_some_and(|last| last >= token) {
            return Err(Broken("children do not ascend"));
        }
        last = Some(token);
        entry(input)?;
    }

    input.end()?;
    Ok(places.into())
}

/// Refuses a number of children that makes no branch.
fn check_count(count: usize, has_value: bool) -> Read<()> {
    // A single entry would be a leaf, or make an extension longer.
    if count == 0 || count + usize::from(has_value) < 2 {
        return Err(Broken("number of children"));
    }
    Ok(())
}

impl Whole {
    fn token(&self, place: u32) -> u8 {
        self.bytes[place as usize]
    }
}

impl Delta {
    /// Reads a difference from `whole`.
    fn read(whole: &Whole, bytes: Box<[u8]>) -> Read<Self> {
        let mut input = Input(&bytes);
        let base = NodeHash(*input.hash()?);
        let value = read_value(&mut input, &bytes)?;

        // A bound and not the maximum: it counts the children of the base that are gone too.
        let mut extension_max = whole.extension_max;
        let entries = read_children(&mut input, &bytes, |input| {
            if input.0.first() == Some(&GONE) {
                return input.byte().map(drop);
            }
            extension_max = extension_max.max(input.edge()?.extension.len());
            Ok(())
        })?;

        // Merges the children of the base with the entries: an entry replaces the base's child.
        let mut places = Vec::with_capacity(whole.places.len() + entries.len());
        let mut rest = &whole.places[..];
        for &entry in &entries {
            let token = bytes[entry as usize];
            let before = rest.partition_point(|place| whole.token(*place) < token);
            places.extend_from_slice(&rest[..before]);
            rest = &rest[before..];
            let is_gone = bytes[entry as usize + 1] == GONE;

            match rest.split_first() {
                Some((place, others)) if whole.token(*place) == token => rest = others,
                _ if is_gone => return Err(Broken("a child is gone that was not there")),
                _ => {}
            }

            if !is_gone {
                places.push(entry | IN_DIFFERENCE);
            }
        }

        places.extend_from_slice(rest);
        debug_assert!(entries.len() <= 256 && places.len() <= 256);
        check_count(places.len(), value.is_some())?;
        Ok(Self { base, value, entries, places: places.into(), extension_max, bytes })
    }
}

/// The hash of the base that a difference names.
pub(crate) fn base_of(difference: &[u8]) -> Read<NodeHash> {
    Ok(NodeHash(*Input(difference).hash()?))
}

impl Branch {
    /// Reads a branch that is stored whole.
    pub(crate) fn read(bytes: &[u8]) -> Read<Self> {
        let mut input = Input(bytes);
        let value = read_value(&mut input, bytes)?;
        let mut extension_max = 0;
        let places = read_children(&mut input, bytes, |input| {
            extension_max = input.edge()?.extension.len().max(extension_max);
            Ok(())
        })?;
        check_count(places.len(), value.is_some())?;
        let whole = Whole { bytes: bytes.into(), value, places, extension_max };
        Ok(Self { whole: Arc::new(whole), difference: None })
    }

    /// Reads a branch that is stored as its difference from this one, which is stored whole.
    pub(crate) fn read_difference(&self, bytes: &[u8]) -> Read<Self> {
        let difference = Delta::read(&self.whole, bytes.into())?;
        Ok(Self { whole: Arc::clone(&self.whole), difference: Some(Arc::new(difference)) })
    }

    /// Whether a branch with this many changed children may be stored as a difference from this
    /// one.
    pub(crate) fn may_be_edited(&self, changes: usize) -> bool {
        let bytes = self.whole.bytes.len();
        // Each changed child takes at least its hash in the difference.
        bytes >= BASE_BYTES_MIN && changes * NODE_HASH_BYTES <= bytes / DIFFERENCE_PART
    }

    /// Applies changes to this branch, whose hash is `node`; returns the outcome as a difference,
    /// or `None` if the outcome is to be stored whole. The changes ascend by token; an edge of
    /// `None` removes the child.
    pub(crate) fn edited(
        &self,
        node: NodeHash,
        value: Option<&[u8]>,
        changes: &[(u8, Option<Edge>)],
    ) -> Option<Self> {
        let bytes_max = self.whole.bytes.len() / DIFFERENCE_PART;
        // The value stands in each difference, so a long one leaves no room for children.
        if value.is_some_and(|value| value.len() > bytes_max) {
            return None;
        }

        // A difference of a difference names the first base, so that a read takes one base at most.
        let (base, entries) = match &self.difference {
            Some(older) => (older.base, &older.entries[..]),
            None => (node, &[][..]),
        };

        let older = self.difference.as_deref().map_or(&[][..], |older| &older.bytes);
        let mut out = Vec::with_capacity(bytes_max);
        out.extend_from_slice(&base.0);
        put_value(&mut out, value);
        let token = |entry: u32| older[entry as usize];
        let is_changed =
            |token: u8| changes.binary_search_by_key(&token, |change| change.0).is_ok();

        // A removed child that the base does not have needs no entry in the difference.
        let in_base = |token: u8| {
            self.whole.places.binary_search_by_key(&token, |at| self.whole.token(*at)).is_ok()
        };
        let kept = |entry: &u32| !is_changed(token(*entry));
        let is_listed = |change: &&(u8, Option<Edge>)| change.1.is_some() || in_base(change.0);

        // The number stands before the entries, so they are counted first.
        let count = entries.iter().filter(|entry| kept(entry)).count()
            + changes.iter().filter(is_listed).count();
        if count == 0 {
            // The outcome equals the base, which has a record already.
            return None;
        }

        put_number(&mut out, count as u64);
        let mut entries = entries.iter().copied().filter(|entry| kept(entry)).peekable();
        for (changed, edge) in changes.iter().filter(is_listed) {
            while let Some(entry) = entries.next_if(|entry| token(*entry) < *changed) {
                out.extend_from_slice(entry_at(older, entry));
            }
            out.push(*changed);
            match edge {
                Some(edge) => put_edge(&mut out, edge),
                None => out.push(GONE),
            }
        }

        entries.for_each(|entry| out.extend_from_slice(entry_at(older, entry)));
        // Unchanged entries of the older difference add to it, which `may_be_edited` does not see.
        if out.len() > bytes_max {
            return None;
        }

        // Read back, so that memory holds the branch as a later read gives it.
        let difference = Delta::read(&self.whole, out.into()).ok()?;
        Some(Self { whole: Arc::clone(&self.whole), difference: Some(Arc::new(difference)) })
    }

    /// The base and the bytes, if the branch is stored as a difference.
    pub(crate) fn difference(&self) -> Option<(NodeHash, &[u8])> {
        self.difference.as_deref().map(|difference| (difference.base, &*difference.bytes))
    }

    /// The bytes of the branch in whole form.
    pub(crate) fn to_whole(&self) -> Cow<'_, [u8]> {
        if self.difference.is_none() {
            return Cow::Borrowed(&self.whole.bytes);
        }
        let mut writer = BranchWriter::new(self.value(), self.len(), self.whole.bytes.len());
        for at in 0..self.len() {
            writer.copy(self, at);
        }
        writer.bytes.into()
    }

    pub(crate) fn value(&self) -> Option<&[u8]> {
        let (bytes, value) = match &self.difference {
            Some(difference) => (&difference.bytes, &difference.value),
            None => (&self.whole.bytes, &self.whole.value),
        };
        value.clone().map(|range| &bytes[range])
    }

    fn places(&self) -> &[u32] {
        self.difference.as_deref().map_or(&self.whole.places, |difference| &difference.places)
    }

    /// The bytes from a place on.
    fn at(&self, place: u32) -> &[u8] {
        match &self.difference {
            Some(difference) if place & IN_DIFFERENCE != 0 => {
                &difference.bytes[(place & !IN_DIFFERENCE) as usize..]
            }
            _ => &self.whole.bytes[place as usize..],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.places().len()
    }

    /// Tokens from this node to the deepest node that one of its edges ends at.
    pub(crate) fn depth(&self) -> usize {
        let own = self.difference.as_deref().map(|difference| difference.extension_max);
        1 + own.unwrap_or(self.whole.extension_max)
    }

    /// The token of the child at a place among them.
    pub(crate) fn token_at(&self, at: usize) -> u8 {
        self.at(self.places()[at])[0]
    }

    /// The bytes of a child: token and edge.
    fn bytes_at(&self, at: usize) -> &[u8] {
        entry_at(self.at(self.places()[at]), 0)
    }

    pub(crate) fn edge_at(&self, at: usize) -> EdgeRef<'_> {
        let mut input = Input(&self.at(self.places()[at])[1..]);
        input.edge().unwrap_or(EdgeRef {
            // Unreachable: `read_children` parsed the same bytes.
            extension: &[],
            top: &NodeHash::EMPTY.0,
            end: NodeRef::Stored(&NodeHash::EMPTY.0),
        })
    }

    /// The place of a token's child.
    pub(crate) fn find(&self, token: u8) -> Option<usize> {
        if self.len() == 256 {
            debug_assert_eq!(self.token_at(usize::from(token)), token, "tokens ascend by one");
            // With all 256 children the token is the position.
            return Some(usize::from(token));
        }
        self.places().binary_search_by_key(&token, |place| self.at(*place)[0]).ok()
    }

    pub(crate) fn child(&self, token: u8) -> Option<EdgeRef<'_>> {
        self.find(token).map(|at| self.edge_at(at))
    }

    pub(crate) fn children(&self) -> impl ExactSizeIterator<Item = (u8, EdgeRef<'_>)> {
        (0..self.len()).map(|at| (self.token_at(at), self.edge_at(at)))
    }

    /// Positions of the children that may differ from those of the other branch; `None` unless both
    /// share one base in memory. Cost: the entries of the differences, not all children.
    pub(crate) fn places_apart(&self, other: &Self) -> Option<Vec<usize>> {
        if !Arc::ptr_eq(&self.whole, &other.whole) {
            return None;
        }
        // Branches of one base differ from each other in the entries of their differences alone.
        let mut tokens = Vec::new();
        for difference in [self, other].into_iter().filter_map(|branch| branch.difference.as_ref())
        {
            tokens.extend(difference.entries.iter().map(|at| difference.bytes[*at as usize]));
        }
        tokens.sort_unstable();
        tokens.dedup();
        Some(tokens.into_iter().filter_map(|token| self.find(token)).collect())
    }

    /// Tokens and hashes of the children.
    pub(crate) fn hashes(&self) -> impl ExactSizeIterator<Item = (u8, &[u8; NODE_HASH_BYTES])> {
        self.children().map(|(token, edge)| (token, edge.top))
    }

    /// Bytes of memory, including a base that other branches may share.
    pub(crate) fn weight(&self) -> usize {
        let of = |bytes: &[u8], places: &[u32]| bytes.len() + size_of_val(places);
        let difference = self.difference.as_deref().map_or(0, |own| {
            size_of_val(own) + of(&own.bytes, &own.places) + size_of_val(&*own.entries)
        });
        let whole = size_of_val(&*self.whole) + of(&self.whole.bytes, &self.whole.places);
        size_of::<Self>() + whole + difference
    }
}

/// The bytes of the child at an offset.
fn entry_at(bytes: &[u8], from: u32) -> &[u8] {
    let entry = &bytes[from as usize..];
    let mut input = Input(&entry[1..]);
    let is_read = input.0.first() == Some(&GONE) && input.byte().is_ok() || input.edge().is_ok();
    debug_assert!(is_read, "the bytes were checked when they were read");
    &entry[..here(&input, entry)]
}

/// Writer of a branch in whole form, child by child, ascending by token.
#[derive(Debug)]
pub(crate) struct BranchWriter {
    bytes: Vec<u8>,
    value: Option<Range<usize>>,
    places: Vec<u32>,
    extension_max: usize,
}

impl BranchWriter {
    pub(crate) fn new(value: Option<&[u8]>, children: usize, bytes: usize) -> Self {
        debug_assert!(children <= 256, "a token is a byte");
        let mut out = Vec::with_capacity(bytes + value.map_or(0, <[u8]>::len) + 12);
        let value = put_value(&mut out, value);
        put_number(&mut out, children as u64);
        Self { bytes: out, value, places: Vec::with_capacity(children), extension_max: 0 }
    }

    /// Copies a child of another branch.
    pub(crate) fn copy(&mut self, from: &Branch, at: usize) {
        debug_assert!(
            self.places.last().is_none_or(|last| self.bytes[*last as usize] < from.token_at(at)),
            "children ascend by token"
        );
        self.places.push(self.bytes.len() as u32);
        let child = from.bytes_at(at);
        self.extension_max = self.extension_max.max(usize::from(child[1] & !LEAF_FLAG));
        self.bytes.extend_from_slice(child);
    }

    pub(crate) fn push(&mut self, token: u8, edge: &Edge) {
        debug_assert!(self.places.last().is_none_or(|last| self.bytes[*last as usize] < token));
        self.places.push(self.bytes.len() as u32);
        self.bytes.push(token);
        self.extension_max = self.extension_max.max(edge.extension.as_bytes().len());
        put_edge(&mut self.bytes, edge);
    }

    pub(crate) fn finish(self) -> Branch {
        let Self { bytes, value, places, extension_max } = self;
        debug_assert!(check_count(places.len(), value.is_some()).is_ok());
        let whole = Whole { bytes: bytes.into(), value, places: places.into(), extension_max };
        Branch { whole: Arc::new(whole), difference: None }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use terrane_testkit::draw::Draw as _;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;
    use crate::base::address::Prefix;
    use crate::node::node::Node;

    fn edge(content: u8) -> Edge {
        let extension = Prefix::new(&[content; 3]).unwrap();
        Edge { extension, top: NodeHash([content; 32]), end: Node::Leaf([content; 16].into()) }
    }

    fn whole(value: Option<&[u8]>, children: &BTreeMap<u8, Edge>) -> Branch {
        let mut writer = BranchWriter::new(value, children.len(), 0);
        for (token, edge) in children {
            writer.push(*token, edge);
        }
        writer.finish()
    }

    fn assert_is(branch: &Branch, value: Option<&[u8]>, children: &BTreeMap<u8, Edge>) {
        assert_eq!(branch.value(), value);
        let all: Vec<_> = branch.children().map(|(token, edge)| (token, edge.to_edge())).collect();
        assert!(all.iter().map(|(token, edge)| (token, edge)).eq(children));
        for token in 0..=255 {
            assert_eq!(branch.child(token).map(EdgeRef::to_edge).as_ref(), children.get(&token));
        }
        assert_eq!(&*branch.to_whole(), &*whole(value, children).to_whole());
    }

    #[test]
    fn a_branch_that_is_edited_is_what_it_would_be_if_it_were_made_anew() {
        let name = "a_branch_that_is_edited_is_what_it_would_be_if_it_were_made_anew";
        for_each_seed(name, 40, |rng, _| {
            let count = 60 + rng.index(197);
            let mut children: BTreeMap<u8, Edge> =
                (0..count).map(|_| (rng.index(256) as u8, edge(rng.index(64) as u8))).collect();
            let base = Branch::read(&whole(None, &children).to_whole()).unwrap();

            let mut branch = base.clone();
            for node in 1.. {
                let mut changes = BTreeMap::new();
                for _ in 0..=rng.index(2) {
                    let token = rng.index(256) as u8;
                    let change = rng.chance(2, 3).then(|| edge(rng.index(64) as u8));
                    // Only what is there can go.
                    if change.is_some() || children.contains_key(&token) {
                        changes.insert(token, change);
                    }
                }

                for (token, change) in &changes {
                    match change {
                        Some(edge) => drop(children.insert(*token, edge.clone())),
                        None => drop(children.remove(token)),
                    }
                }

                let value = rng.chance(1, 2).then_some(&b"value"[..]);
                let changes: Vec<_> = changes.into_iter().collect();
                let Some(edited) = branch.edited(NodeHash([node; 32]), value, &changes) else {
                    // A first difference of two children has room in an eighth of the smallest
                    // base.
                    assert!(node > 1 || changes.is_empty());
                    return;
                };

                assert_is(&edited, value, &children);
                let (of, bytes) = edited.difference().unwrap();
                assert_eq!(of, NodeHash([1; 32]), "differences are from what is stored whole");
                assert!(bytes.len() <= base.to_whole().len() / DIFFERENCE_PART);
                assert_is(&base.read_difference(bytes).unwrap(), value, &children);
                branch = edited;
            }
        });
    }

    #[test]
    fn what_is_no_difference_from_a_base_is_refused() {
        let children: BTreeMap<u8, Edge> = (0..100).map(|token| (token, edge(token))).collect();
        let base = whole(None, &children);
        let changes = [(3, None), (70, Some(edge(9))), (200, Some(edge(8)))];
        let edited = base.edited(NodeHash([1; 32]), None, &changes).unwrap();
        let (_, bytes) = edited.difference().unwrap();

        for length in 0..bytes.len() {
            assert!(base.read_difference(&bytes[..length]).is_err(), "cut to {length}");
        }

        let few: BTreeMap<u8, Edge> = [(3, edge(3)), (70, edge(70))].into();
        let gone = [&[1; NODE_HASH_BYTES][..], &[0, 1, 3, GONE]].concat();
        assert!(base.read_difference(&gone).is_ok());
        assert!(whole(None, &few).read_difference(&gone).is_err(), "one child and no value");
        let gone = [&[1; NODE_HASH_BYTES][..], &[0, 1, 4, GONE]].concat();

        assert!(whole(None, &few).read_difference(&gone).is_err(), "it was not there");
    }
}
