//! Changes of a tree: binding and unbinding a path. Nodes that no other tree holds are changed in
//! place.
//!
//! Invariant: the shape stays canonical. A leaf is split when it outgrows the branching, inodes
//! are merged into a leaf when they fall to it, and a directory is flat up to the flat limit.
//!
//! Invariant: a change that fails has changed nothing, because it loads all nodes first.
//!
//! A change goes down a path and up again with a list of the open nodes: chosen names make a path
//! of a hundred directories lead through thousands of inodes, more than a thread has stack for. A
//! node on the list lacks the child that the change went to, so a node that one tree alone holds is
//! changed in place.

use std::sync::{Arc, LazyLock};

use crate::base::error::{Error, Result};
use crate::tree::node::{Binding, Child, Env, Node, Shape, Slot, Spot};
use crate::tree::walk::dir;

/// Binds `child` at `path` below `root`; values on the way become directories. No I/O if all nodes
/// on the way are loaded.
///
/// Cost: one read for each directory and inode on the way that is not in memory.
pub(crate) fn bind(env: &Env, root: &mut Child, path: &[&[u8]], child: Child) -> Result<()> {
    if path.is_empty() {
        *root = child;
        return Ok(());
    }
    edit(env, root, path, Some(child))
}

/// Unbinds `path`, which is bound and has a step, below `root`. The directory must have other
/// steps, or be the root.
///
/// Cost: as [`bind`]; all inodes of the directory that has it where that falls to the flat
/// limit, and those of one bucket where that falls to the branching.
pub(crate) fn unbind(env: &Env, root: &mut Child, path: &[&[u8]]) -> Result<()> {
    edit(env, root, path, None)
}

/// Placeholder of a child that was taken out.
static TAKEN: LazyLock<Arc<Node>> = LazyLock::new(|| Arc::new(Node::empty(false)));

/// Open node of a change. No other tree holds the node, and the node lacks the child that the
/// change went to.
struct Open<'p> {
    node: Arc<Node>,
    /// Whether the directory was flat; set in the first node of a directory.
    was_flat: Option<bool>,
    depth: u8,
    way: Way<'p>,
}

/// Child that a change went to.
enum Way<'p> {
    /// None: the path ends here.
    End,
    Bucket {
        bucket: usize,
        /// Rank of the bucket, if it is not empty.
        rank: Option<usize>,
        /// Entries of the bucket before the change.
        before: u64,
    },
    Item {
        step: &'p [u8],
        /// Position of the step, or its insertion point.
        item: std::result::Result<usize, usize>,
        /// Whether a directory is bound there.
        is_dir: bool,
    },
}

/// Continuation of a change.
enum Next {
    Below(Arc<Node>),
    /// The change is made; the height that it requires of the node.
    Made(u16),
}

/// Puts `new` at `path`, which has a step, or removes the child there if `new` is `None`. Only
/// bound paths are removed.
fn edit(env: &Env, root: &mut Child, path: &[&[u8]], new: Option<Child>) -> Result<()> {
    debug_assert!(!path.is_empty(), "a change has a step");
    let (dir, is_taken) = take_dir(env, root)?;
    // Most directories on the way take one or two nodes.
    let mut opened = Vec::with_capacity(2 * path.len());
    match descend(env, dir, path, new, &mut opened) {
        Ok(height) => {
            let (dir, outcome) = ascend(env, opened, height);
            *root = Child::Dir(dir);
            outcome
        }
        Err((node, error)) => {
            let dir = restore(opened, node);
            // A directory that was not taken out is still in its place.
            if is_taken {
                *root = Child::Dir(dir);
            }
            Err(error)
        }
    }
}

/// Returns the directory of a child, loaded if needed; an empty one for a value. Also returns
/// whether the directory was taken out of the child.
fn take_dir(env: &Env, child: &mut Child) -> Result<(Arc<Node>, bool)> {
    if let Child::Dir(dir) = child {
        debug_assert!(!Arc::ptr_eq(dir, &TAKEN), "a child is taken out once");
        // The directory leaves its place, so that the change is its only holder.
        return Ok((std::mem::replace(dir, Arc::clone(&TAKEN)), true));
    }
    let dir = child.dir(env)?;
    Ok((dir.map_or_else(|| Arc::new(Node::empty(false)), Arc::clone), false))
}

/// Opens the nodes from `dir` to the end of `path`, and makes the change in the last one. Returns
/// the height that the change requires of the last node.
///
/// # Errors
/// With the node that could not be passed, as the node was.
fn descend<'p>(
    env: &Env,
    dir: Arc<Node>,
    path: &[&'p [u8]],
    mut new: Option<Child>,
    opened: &mut Vec<Open<'p>>,
) -> std::result::Result<u16, (Arc<Node>, Error)> {
    let removes = new.is_none();
    let mut node = dir;

    let mut at = 0;
    let mut depth = 0;
    loop {
        debug_assert!(at < path.len(), "the last step ends the way down");
        let is_last = at + 1 == path.len();
        // A removal that may gather a directory loads all of it first, so that a failure changes
        // nothing.
        if removes
            && is_last
            && may_be_gathered(env, &node, depth)
            && let Err(error) = node.each(env, &mut |_, _| Ok(true))
        {
            return Err((node, error));
        }

        let mut open = Open::new(node, depth);
        match open.go_down(env, path[at], is_last, &mut new) {
            Err(error) => return Err((open.node, error)),
            Ok(Next::Made(height)) => {
                opened.push(open);
                return Ok(height);
            }
            Ok(Next::Below(below)) => {
                // A step leads into the next directory, whose inodes begin at depth 0.
                if matches!(open.way, Way::Item { .. }) {
                    (at, depth) = (at + 1, 0);
                } else {
                    depth += 1;
                }
                opened.push(open);
                node = below;
            }
        }
    }
}

/// Returns whether the loss of one step changes the shape of the node, or of its directory.
fn may_be_gathered(env: &Env, node: &Node, depth: u8) -> bool {
    let fewer = node.count().saturating_sub(1);
    let falls_flat = depth == 0 && !node.is_flat() && env.rules.is_flat(fewer);
    let is_inner = matches!(node.shape(), Shape::Inner(_));
    falls_flat || is_inner && env.rules.is_leaf(depth, fewer)
}

/// Puts the children back into the open nodes, from the last one up; returns the first node.
///
/// # Errors
/// If what is gathered was not loaded before, which `descend` sees to. The tree is whole then,
/// though not in its shape.
fn ascend(env: &Env, mut opened: Vec<Open<'_>>, height: u16) -> (Arc<Node>, Result<()>) {
    debug_assert!(!opened.is_empty(), "at least the root is open");
    let mut outcome = Ok(());
    let mut below = Arc::clone(&TAKEN);
    let mut height_asked = height;
    while let Some(mut open) = opened.pop() {
        open.put_changed(below, height_asked);
        let shaped = open.shape(env);
        // The first error counts, and the nodes above are put back all the same.
        outcome = outcome.and(shaped);
        below = open.node;
        // Only the node of the change is asked for a height: those above follow from their
        // children.
        height_asked = 0;
    }
    debug_assert!(!Arc::ptr_eq(&below, &TAKEN), "what was taken out is back");
    (below, outcome)
}

/// Restores the open nodes after a failure below the last one; returns the first node.
fn restore(mut opened: Vec<Open<'_>>, node: Arc<Node>) -> Arc<Node> {
    let mut below = node;
    while let Some(mut open) = opened.pop() {
        open.put_back(below);
        below = open.node;
    }
    below
}

impl<'p> Open<'p> {
    fn new(node: Arc<Node>, depth: u8) -> Self {
        let was_flat = (depth == 0).then(|| node.is_flat());
        Self { node, was_flat, depth, way: Way::End }
    }

    /// Goes to the child of `step`, or makes the change if the step is the last one.
    fn go_down(
        &mut self,
        env: &Env,
        step: &'p [u8],
        is_last: bool,
        new: &mut Option<Child>,
    ) -> Result<Next> {
        let entries = match self.node.shape() {
            Shape::Entries(entries) => entries.entries(),
            Shape::Inner(inner) => {
                let bucket = env.rules.bucket(self.depth, step);
                let rank = inner.inner().rank(bucket);
                let below = self.take(rank, |node| match node.shape() {
                    Shape::Inner(inner) => inner.fetch(env, bucket),
                    Shape::Entries(_) => Ok(None),
                })?;
                let below = below.unwrap_or_else(|| Arc::new(Node::empty(true)));
                self.way = Way::Bucket { bucket, rank, before: below.count() };
                return Ok(Next::Below(below));
            }
        };

        let item = entries.find(step).map_or_else(|| entries.position(step), Ok);
        let removes = new.is_none();
        match (item, new.take_if(|_| is_last)) {
            (Ok(item), Some(child)) => {
                Arc::make_mut(&mut self.node).set_item(item, &child);
                return Ok(Next::Made(child.height() + 1));
            }
            (Err(position), Some(child)) => {
                Arc::make_mut(&mut self.node).insert_item(position, step, &child);
                return Ok(Next::Made(child.height() + 1));
            }
            (Ok(item), None) if is_last => {
                Arc::make_mut(&mut self.node).remove_item(item);
                return Ok(Next::Made(1));
            }
            (Err(_), None) if removes => return Ok(Next::Made(1)),
            (_, None) => {}
        }

        let is_dir = item.is_ok_and(|item| !entries.is_value(item));
        let below = self.take(item.ok().filter(|_| is_dir), |node| match (node.shape(), item) {
            (Shape::Entries(entries), Ok(item)) => dir(env, entries.spot(item)),
            _ => Ok(None),
        })?;
        self.way = Way::Item { step, item, is_dir };
        Ok(Next::Below(below.unwrap_or_else(|| Arc::new(Node::empty(false)))))
    }

    /// Takes the child of a number out of the node, or loads it. A child that is taken out has no
    /// other holder, unless another tree has it.
    fn take(
        &mut self,
        number: Option<usize>,
        load: impl FnOnce(&Node) -> Result<Option<Arc<Node>>>,
    ) -> Result<Option<Arc<Node>>> {
        let Some(number) = number else { return Ok(None) };
        if self.node.member(number).is_some() {
            return Ok(Arc::make_mut(&mut self.node).take_node(number));
        }
        load(&self.node)
    }

    /// Puts the changed child back. `height` is the height that a change in this node requires.
    fn put_changed(&mut self, below: Arc<Node>, height: u16) {
        let owned = Arc::make_mut(&mut self.node);
        let height = match &self.way {
            Way::Bucket { bucket, before, .. } => {
                let height = below.height();
                owned.set_bucket(*bucket, below, *before);
                height
            }
            Way::Item { step, item, .. } => {
                let height = below.height() + 1;
                match *item {
                    Ok(item) => owned.set_item(item, &Child::Dir(below)),
                    Err(position) => owned.insert_item(position, step, &Child::Dir(below)),
                }
                height
            }
            Way::End => height,
        };

        // The height is a lower bound, so it only rises.
        owned.raise(height);
    }

    /// Gives the changed node the shape of its number of steps.
    fn shape(&mut self, env: &Env) -> Result<()> {
        let node = &mut self.node;
        let is_inner = matches!(node.shape(), Shape::Inner(_));
        // A leaf that outgrew the branching is split; an inode that fell to it becomes a leaf.
        if !node.is_flat() && is_inner == env.rules.is_leaf(self.depth, node.count()) {
            let bindings = gather(env, node)?;
            *node = Arc::new(inode(env, self.depth, bindings, node.height()));
        }
        match self.was_flat {
            Some(was_flat) => reshape(env, node, was_flat),
            None => Ok(()),
        }
    }

    /// Puts an unchanged child back.
    fn put_back(&mut self, below: Arc<Node>) {
        match self.way {
            Way::Bucket { rank: Some(number), .. }
            | Way::Item { item: Ok(number), is_dir: true, .. } => {
                Arc::make_mut(&mut self.node).put_node(number, below);
            }
            Way::Bucket { rank: None, .. } | Way::Item { .. } | Way::End => {}
        }
    }
}

/// Makes a directory flat or an inode, by its number of steps.
fn reshape(env: &Env, dir: &mut Arc<Node>, flat: bool) -> Result<()> {
    let wants_flat = env.rules.is_flat(dir.count());
    if wants_flat == flat {
        return Ok(());
    }
    let bindings = gather(env, dir)?;
    *dir = Arc::new(if wants_flat {
        Node::of_bindings(false, &bindings, dir.height())
    } else {
        inode(env, 0, bindings, dir.height())
    });
    Ok(())
}

/// Returns all bindings below an inode, ascending, independent of any record.
fn gather(env: &Env, node: &Node) -> Result<Vec<Binding>> {
    let binding = |(step, spot): (&[u8], Spot<'_>)| (step.into(), spot.to_child());
    Ok(node.sorted(env)?.into_iter().map(binding).collect())
}

/// Builds the inode of ascending bindings. Recursion: at most 64 inodes of one directory.
pub(crate) fn inode(env: &Env, depth: u8, bindings: Vec<Binding>, height: u16) -> Node {
    let count = bindings.len() as u64;
    if env.rules.is_leaf(depth, count) {
        return Node::of_bindings(true, &bindings, height);
    }
    debug_assert!(
        depth < crate::base::hashing::INODE_DEPTH_MAX,
        "an inode at the largest depth lists its steps"
    );
    let mut buckets: Vec<Vec<Binding>> = Vec::new();
    buckets.resize_with(32, Vec::new);

    for binding in bindings {
        buckets[env.rules.bucket(depth, &binding.0)].push(binding);
    }

    // Empty buckets are no part of an inode.
    let filled = buckets.into_iter().enumerate().filter(|(_, bindings)| !bindings.is_empty());
    let slots = filled.map(|(bucket, bindings)| {
        (bucket, Slot::Node(Arc::new(inode(env, depth + 1, bindings, height))))
    });
    Node::of_slots((depth, count), slots, height)
}
