//! Prefetch: reads the nodes on the way to many paths level by level, one batch for each level,
//! instead of node by node.
//!
//! The records go into the cache, where later calls find them; the tree stays as it is. So a
//! prefetch changes the cost of answers, never an answer, and leaves errors to the calls that need
//! the record.
//!
//! Rejected: loading nodes into the tree (a tree would hold guesses); an error of its own (a guess
//! would fail a block).

use std::hash::RandomState;
use std::sync::Arc;

use hashbrown::HashSet;

use crate::base::address::{Extent, Link};
use crate::tree::node::{Content, Env, InnerRef, Known, Node, Shape, Spot};
use crate::tree::tree::Tree;

/// Extent of a [prefetch](Tree::prefetch).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefetch {
    /// Nodes on the way to the paths: enough to test, bind and unbind them.
    Way,
    /// Also the targets: values of more than 48 bytes, and the first node of directories.
    Target,
}

/// Position of a path during a prefetch.
#[derive(Debug, Clone)]
enum PathPosition {
    Node(Arc<Node>),
    NodeAt(Link),
    ValueAt(Link),
    /// Nothing is bound, or a value in memory.
    End,
}

impl Tree {
    /// Reads the nodes on the way to `paths` into the cache: the nodes of all paths on one level
    /// together, in the order of storage, up to 64 reads at once.
    ///
    /// Nothing in the tree changes, and there are no errors: a later call that needs an
    /// unreadable node reports it. Does nothing for a tree without a store.
    ///
    /// A cache too small for the nodes of all paths makes a prefetch useless, since evicted nodes
    /// are read again.
    ///
    /// Cost: one batch of reads for each level of directories and inodes that is not in memory, or
    /// two where nodes are stored as deltas, whatever the number of paths. A batch has one read of
    /// 4 KiB for most of its nodes, or one for several that are neighbours.
    pub fn prefetch<P: AsRef<[S]>, S: AsRef<[u8]>>(&self, paths: &[P], what: Prefetch) {
        let Some(source) = &self.env.source else { return };
        let root = self.with_base(|base| of_spot(Spot::Own(base)));
        let mut paths: Vec<&[S]> = paths.iter().map(AsRef::as_ref).collect();

        // A block may name one path many times. Users choose paths, so the hash has a key.
        let mut seen: HashSet<Vec<&[u8]>, RandomState> = HashSet::default();
        paths.retain(|path| seen.insert(path.iter().map(AsRef::as_ref).collect()));
        drop(seen);

        // Each round descends all paths as far as memory leads, then reads one level in a batch.
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
                        values.push(link.extent);
                    }
                    _ => {}
                }
            }

            if waiting.is_empty() && values.is_empty() {
                return;
            }

            // Paths share their upper nodes: one read for each record, in the order of the pack.
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

            // A path whose node cannot be read ends here.
            debug_assert_eq!(nodes.len(), links.len(), "a result for each link");
            let loaded = |(link, rest): (Link, _)| {
                let found =
                    links.binary_search_by_key(&link.extent.at, |link| link.extent.at).ok()?;
                Some((PathPosition::Node(Arc::clone(nodes[found].as_ref()?)), rest))
            };

            ways = waiting.into_iter().filter_map(loaded).collect();
        }
    }
}

/// Follows a path as far as nodes are in memory; returns the position and the remaining steps.
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

fn of_spot(spot: Spot<'_>) -> PathPosition {
    match spot.content() {
        Content::DirAt(link) => match spot.looked_at() {
            Some(node) => PathPosition::Node(Arc::clone(node)),
            None => PathPosition::NodeAt(link),
        },
        Content::Dir(node) => PathPosition::Node(Arc::clone(node)),
        Content::ValueAt(link) => PathPosition::ValueAt(link),
        Content::Inline(_) | Content::Value(_) | Content::Blinded { .. } => PathPosition::End,
    }
}

fn of_bucket(inner: InnerRef<'_>, bucket: usize) -> PathPosition {
    match inner.known(bucket) {
        Known::Node(node) => PathPosition::Node(Arc::clone(node)),
        Known::At(link) => PathPosition::NodeAt(link),
        Known::Empty | Known::Blinded(_) => PathPosition::End,
    }
}
