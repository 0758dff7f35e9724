//! Reading ahead: what leads to many paths is read level by level, each level in one batch, instead of node by node.
//!
//! What is read goes into the cache, where the calls that come later find it; the tree itself stays as it is. So
//! a prefetch changes no answer, only what an answer costs: what it cannot read it leaves to the call that needs it, which
//! then says what is wrong.

use std::hash::RandomState;
use std::sync::Arc;

use hashbrown::HashSet;

use crate::base::address::{Extent, Link};
use crate::object::record::Stored;
use crate::tree::node::{Child, Env, InnerRef, Known, Node, Shape, Spot};
use crate::tree::tree::Tree;

/// What a [prefetch](Tree::prefetch) reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefetch {
    /// What leads to the paths: enough to ask whether something is bound there, to bind and to unbind it.
    Way,
    /// That, and what is bound there: values of more than 48 bytes, and the first node of directories.
    Target,
}

/// Where a path leads to next.
#[derive(Debug, Clone)]
enum PathPosition {
    Node(Arc<Node>),
    NodeAt(Link),
    ValueAt(Link),
    /// Nowhere, or to a value that is in memory.
    End,
}

impl Tree {
    /// Reads what leads to `paths`, so that calls on them find it in memory: the nodes of all paths on one level together, in
    /// the order in which they are stored, up to 64 reads at once. Nothing in the tree changes, and there are no errors: what
    /// cannot be read is left to the call that needs it. Does nothing for a tree that belongs to no store.
    ///
    /// What is read is kept in the cache of the store. What that has no room for is read again when it is needed: a cache
    /// that does not hold the nodes of all the paths makes a prefetch useless.
    ///
    /// Cost: one batch of reads for each level of directories and inodes that is not in memory, or two where nodes are stored
    /// as deltas, whatever the number of paths. A batch has one read of 4 KiB for most of its nodes, or one for several that
    /// are neighbours.
    pub fn prefetch<P: AsRef<[S]>, S: AsRef<[u8]>>(&self, paths: &[P], what: Prefetch) {
        let Some(source) = &self.env.source else { return };
        let root = of_spot(Spot::Own(self.base()));
        let mut paths: Vec<&[S]> = paths.iter().map(AsRef::as_ref).collect();
        // A block asks for the same path again and again. Paths are chosen by users, so the hash has a key.
        let mut seen: HashSet<Vec<&[u8]>, RandomState> = HashSet::default();
        paths.retain(|path| seen.insert(path.iter().map(AsRef::as_ref).collect()));
        drop(seen);
        let mut ways: Vec<(PathPosition, &[S])> =
            paths.iter().map(|path| (root.clone(), *path)).collect();
        loop {
            let mut waiting: Vec<(Link, &[S])> = Vec::new();
            let mut values: Vec<Extent> = Vec::new();
            for (next, rest) in ways {
                let (next, rest) = follow(&self.env, next, rest);
                let is_wanted = !rest.is_empty() || what == Prefetch::Target;
                match next {
                    PathPosition::NodeAt(link) if is_wanted => waiting.push((link, rest)),
                    PathPosition::ValueAt(link) if is_wanted && rest.is_empty() => {
                        values.push(link.extent)
                    }
                    _ => {}
                }
            }
            if waiting.is_empty() && values.is_empty() {
                return;
            }
            let mut links: Vec<Link> = waiting.iter().map(|(link, _)| *link).collect();
            links.sort_unstable_by_key(|link| link.extent.at);
            links.dedup_by_key(|link| link.extent.at);
            values.sort_unstable_by_key(|extent| extent.at);
            values.dedup_by_key(|extent| extent.at);
            let extents: Vec<Extent> = links.iter().map(|link| link.extent).collect();
            let records = source.fetch(&extents, &values).into_iter().zip(&links);
            let nodes: Vec<Option<Arc<Node>>> = records
                .map(|(record, link)| Some(Arc::new(Node::of_record(record?, link))))
                .collect();
            let loaded = |(link, rest): (Link, _)| {
                let found =
                    links.binary_search_by_key(&link.extent.at, |link| link.extent.at).ok()?;
                Some((PathPosition::Node(Arc::clone(nodes[found].as_ref()?)), rest))
            };
            ways = waiting.into_iter().filter_map(loaded).collect();
        }
    }
}

/// Goes on as far as what is in memory leads; and the steps that are left.
fn follow<'a, S: AsRef<[u8]>>(
    env: &Env,
    mut next: PathPosition,
    mut rest: &'a [S],
) -> (PathPosition, &'a [S]) {
    while let (PathPosition::Node(node), Some((step, below))) = (&next, rest.split_first()) {
        next = match node.shape() {
            Shape::Entries(entries) => {
                rest = below;
                entries.find(step.as_ref()).map_or(PathPosition::End, of_spot)
            }
            Shape::Inner(inner) => of_bucket(inner, env.rules.bucket(inner.depth(), step.as_ref())),
        };
    }
    (next, rest)
}

fn of_node(near: Option<&Arc<Node>>, link: &Link) -> PathPosition {
    near.map_or(PathPosition::NodeAt(*link), |node| PathPosition::Node(Arc::clone(node)))
}

fn of_spot(spot: Spot<'_>) -> PathPosition {
    match spot.stored() {
        Ok(Stored::Dir(link)) => of_node(spot.looked_at(), &link),
        Ok(Stored::Value(link)) => PathPosition::ValueAt(link),
        Err(Child::Dir(node)) => PathPosition::Node(Arc::clone(node)),
        Err(Child::DirAt(far)) => of_node(far.1.get(), &far.0),
        Err(Child::ValueAt(link)) => PathPosition::ValueAt(**link),
        Ok(Stored::Inline(_)) | Err(Child::Value(_) | Child::Blinded { .. }) => PathPosition::End,
    }
}

fn of_bucket(inner: InnerRef<'_>, bucket: usize) -> PathPosition {
    match inner.known(bucket) {
        Known::Node(node) => PathPosition::Node(Arc::clone(node)),
        Known::At(link) => PathPosition::NodeAt(*link),
        Known::Empty | Known::Blinded(_) => PathPosition::End,
    }
}
