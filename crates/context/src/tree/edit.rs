//! Changes of a tree: binding and unbinding paths. Nodes that no other tree holds are changed in
//! place.
//!
//! Invariant: the shape stays canonical. A leaf is split when it outgrows the branching, inodes
//! are merged into a leaf when they fall to it, and a directory is flat up to the flat limit.
//!
//! Invariant: a change that fails has changed nothing, because it loads all nodes first. Of several
//! values that are bound in one pass, some may be bound then.
//!
//! A pass goes down the paths of its changes and up again with a list of the open nodes: chosen
//! names make a path of a hundred directories lead through thousands of inodes, more than a thread
//! has stack for. A node on the list lacks the child that the pass went to, so a node that one tree
//! alone holds is changed in place. A node that leads to several changes is opened and closed once:
//! at each node the changes below are sorted by their child. In a commit, threads share the buckets
//! of an inode with many changes, and hash and encode what is below each bucket.

use std::sync::{Arc, LazyLock};

use terrane_io::sync::atomic::{AtomicU64, Ordering};

use crate::base::error::{Error, Result};
use crate::object::entries::INLINE_BYTES_MAX;
use crate::tree::digest::{Hashed, Hasher};
use crate::tree::encode::{EncodedPart, Records};
use crate::tree::node::{Binding, Bound, Child, Env, Node, Shape, Slot, Spot, Value};
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
    edit(env, root, &mut [Change { path, new: Some(Bound::Child(child)), bucket: 0 }], None).0
}

/// Binds values at paths with steps below `root`, in one pass. No path leads through the value of
/// another. Threads may [share](Sharing) the pass; also returns the work of these.
///
/// Cost: as [`bind`]; each node on the way is changed once.
///
/// # Errors
/// Errors of a read. Some of the values are bound then; the pass may be made again.
pub(crate) fn bind_all<'p, P: Iterator<Item = &'p [u8]>>(
    env: &Env,
    root: &mut Child,
    values: impl Iterator<Item = (P, Bound<'p>)>,
    sharing: Option<Sharing<'_>>,
) -> (Result<()>, PassWork) {
    // All paths in one list: a list for each would be an allocation for each value.
    let mut steps = Vec::new();
    let mut ends = Vec::new();
    for (path, value) in values {
        steps.extend(path);
        ends.push((steps.len(), value));
    }

    let mut start = 0;
    let change = |(end, value)| {
        let path = &steps[start..end];
        debug_assert!(!path.is_empty(), "a value in a pass has a step");
        start = end;
        Change { path, new: Some(value), bucket: 0 }
    };
    let mut changes: Vec<_> = ends.into_iter().map(change).collect();
    let sharing =
        sharing.filter(|sharing| changes.len() >= SPLIT_MIN && sharing.hasher.has_helpers());
    edit(env, root, &mut changes, sharing)
}

/// Unbinds `path`, which is bound and has a step, below `root`. The directory must have other
/// steps, or be the root.
///
/// Cost: as [`bind`]; all inodes of the directory that has it where that falls to the flat
/// limit, and those of one bucket where that falls to the branching.
pub(crate) fn unbind(env: &Env, root: &mut Child, path: &[&[u8]]) -> Result<()> {
    edit(env, root, &mut [Change { path, new: None, bucket: 0 }], None).0
}

/// Threads that share a pass, and hash most of the nodes that they change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharing<'h> {
    pub(crate) hasher: &'h Hasher,
    /// Bytes of what they encode of these nodes, for a commit that writes them; 0 for nothing.
    pub(crate) encoded_max: usize,
}

/// Work of threads that shared a pass, beside the changes.
#[derive(Debug, Default)]
pub(crate) struct PassWork {
    pub(crate) hashed: Hashed,
    pub(crate) encoded: Vec<EncodedPart>,
}

/// Placeholder of a child that was taken out.
static TAKEN: LazyLock<Arc<Node>> = LazyLock::new(|| Arc::new(Node::empty(false)));

/// Child to be bound or unbound at a path.
struct Change<'p> {
    path: &'p [&'p [u8]],
    /// `None` unbinds what is there. A pass that unbinds has this change alone.
    new: Option<Bound<'p>>,
    /// Bucket in the inode that was opened last on the way.
    bucket: u8,
}

impl Change<'_> {
    /// The value to be bound, if it has a record of its own.
    fn large_value(&self) -> Option<*const Value> {
        match &self.new {
            Some(Bound::Child(Child::Value(value))) if value.bytes.len() > INLINE_BYTES_MAX => {
                Some(Arc::as_ptr(value))
            }
            _ => None,
        }
    }
}

/// Takes bytes from the room that is left, if there are as many.
fn take_room(room: &AtomicU64, bytes: u64) -> bool {
    let taken = |left: u64| left.checked_sub(bytes);
    room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
}

/// Makes changes, in whatever order they stand.
fn edit(
    env: &Env,
    root: &mut Child,
    changes: &mut [Change<'_>],
    sharing: Option<Sharing<'_>>,
) -> (Result<()>, PassWork) {
    debug_assert!(
        changes.len() == 1 || changes.iter().all(|change| change.new.is_some()),
        "a removal loads what it needs first, and is alone"
    );
    if changes.is_empty() {
        return (Ok(()), PassWork::default());
    }

    let (dir, is_taken) = match take_dir(env, root) {
        Ok(taken) => taken,
        Err(error) => return (Err(error), PassWork::default()),
    };
    let mut pass = Pass { env, changes, next: 0, sharing, work: PassWork::default() };
    let (open, outcome) = pass.run(dir, 0, 0);
    debug_assert!(!Arc::ptr_eq(&open.node, &TAKEN), "what was taken out is back");
    // A directory that was not taken out is still in its place.
    if is_taken || open.is_changed {
        *root = Child::Dir(open.node);
    }
    (outcome, pass.work)
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

/// Way over all nodes that lead to changes, each once.
struct Pass<'c, 'p> {
    env: &'c Env,
    /// The changes; those that are made come first.
    changes: &'c mut [Change<'p>],
    /// Number of the next change.
    next: usize,
    sharing: Option<Sharing<'c>>,
    work: PassWork,
}

/// Changes below an inode from which on threads share them: with fewer, waking a thread costs more
/// than it saves.
const SPLIT_MIN: usize = 64;

/// Parts that a thread takes at once: their nodes fill the lanes of the processor together.
const GROUP_PARTS: usize = 4;

/// Bucket of an inode in a shared pass, with the changes below it.
struct Part<'c, 'p> {
    changes: &'c mut [Change<'p>],
    way: Way<'p>,
    /// The inode of the bucket, before and after the pass.
    node: Arc<Node>,
    is_changed: bool,
    outcome: Result<()>,
    encoded: Option<EncodedPart>,
}

impl Part<'_, '_> {
    /// Makes the changes.
    fn change(&mut self, env: &Env, depth: u8, step: usize) {
        let node = std::mem::replace(&mut self.node, Arc::clone(&TAKEN));
        let work = PassWork::default();
        let mut pass = Pass { env, changes: self.changes, next: 0, sharing: None, work };
        let (below, outcome) = pass.run(node, depth, step);
        (self.node, self.is_changed, self.outcome) = (below.node, below.is_changed, outcome);
    }

    /// Encodes the inode and all below it, if it was changed and hashed and there is room.
    fn encode(&mut self, env: &Env, room: &AtomicU64) {
        let max = room.load(Ordering::Relaxed) as usize;
        if self.outcome.is_ok() && max > 0 {
            let buffered = self.changes.iter().filter_map(Change::large_value).collect();
            // A change changes its node, and ways to several have nodes in common.
            let records = Records::new(max, 2 * self.changes.len());
            self.encoded = EncodedPart::encode(env, &self.node, buffered, records)
                .filter(|encoded| take_room(room, encoded.frame_bytes()));
        }
    }
}

/// Open node of a pass. No other tree holds the node, unless it is as it was, and the node lacks
/// the child that the pass went to.
struct Open<'p> {
    node: Arc<Node>,
    /// Whether the directory was flat; set in the first node of a directory.
    was_flat: Option<bool>,
    depth: u8,
    /// Number of the step that the directory binds, on each of the paths.
    step: usize,
    /// End of the changes at and below the node.
    end: usize,
    way: Way<'p>,
    is_changed: bool,
}

/// Child that a pass went to.
enum Way<'p> {
    /// None so far.
    Here,
    Bucket {
        bucket: usize,
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

impl<'p> Pass<'_, 'p> {
    /// Makes all changes at and below a node: an inode of a depth, or a directory at depth 0, that
    /// binds a step of this number. Returns the node with what else came of it.
    ///
    /// After an error the nodes that are open are closed all the same.
    fn run(&mut self, node: Arc<Node>, depth: u8, step: usize) -> (Open<'p>, Result<()>) {
        let mut outcome = Ok(());
        let mut opened: Vec<Open<'p>> = Vec::new();
        let mut open = self.open(node, depth, step, self.changes.len());

        loop {
            if let Some(sharing) = self.sharing
                && matches!(open.node.shape(), Shape::Inner(_))
                && open.end.saturating_sub(self.next) >= SPLIT_MIN
                && let Err(error) = self.split(&mut open, sharing)
            {
                outcome = self.stop(outcome, error);
            }
            match self.go_on(&mut open) {
                Ok(Some(below)) => {
                    opened.push(std::mem::replace(&mut open, below));
                    continue;
                }
                Ok(None) => {}
                Err(error) => outcome = self.stop(outcome, error),
            }

            // All changes at and below the node are made.
            if let Err(error) = open.shape(self.env) {
                outcome = self.stop(outcome, error);
            }
            let Some(above) = opened.pop() else { return (open, outcome) };
            let below = std::mem::replace(&mut open, above);
            open.put(below.node, below.is_changed);
        }
    }

    /// Makes the changes below an open inode on several threads, which also hash what is below the
    /// inodes of its buckets, and encode it. The parts have no node in common, unless another tree
    /// has it, and then each copies it.
    fn split(&mut self, open: &mut Open<'p>, sharing: Sharing<'_>) -> Result<()> {
        let (env, depth, step) = (self.env, open.depth + 1, open.step);
        let mut parts = Vec::new();
        let mut outcome = Ok(());
        let mut rest = &mut self.changes[self.next..open.end];
        while let Some(bucket) = rest.first().map(|change| change.bucket) {
            let count = rest.iter().take_while(|other| other.bucket == bucket).count();
            let (changes, others) = rest.split_at_mut(count);
            rest = others;
            match open.take_bucket(env, bucket.into()) {
                Ok(node) => {
                    let way = std::mem::replace(&mut open.way, Way::Here);
                    parts.push(Part {
                        changes,
                        way,
                        node,
                        is_changed: false,
                        outcome: Ok(()),
                        encoded: None,
                    });
                }
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }

        // What does not fit in one frame would only take memory.
        let encoded = self.work.encoded.iter().map(EncodedPart::frame_bytes).sum();
        let room = AtomicU64::new((sharing.encoded_max as u64).saturating_sub(encoded));
        let groups = parts.chunks_mut(GROUP_PARTS);
        let mut groups: Vec<_> = groups.map(|parts| (parts, Hashed::default())).collect();
        sharing.hasher.for_each(&mut groups, |(parts, hashed)| {
            parts.iter_mut().for_each(|part| part.change(env, depth, step));
            let changed = parts.iter().filter(|part| part.outcome.is_ok());
            *hashed = sharing.hasher.hash_below(env, changed.map(|part| &*part.node));
            // The nodes are still in the cache of this core.
            parts.iter_mut().for_each(|part| part.encode(env, &room));
        });
        for (_, hashed) in &groups {
            self.work.hashed.merge(hashed);
        }

        self.next = open.end;
        for Part { way, node, is_changed, outcome: own, encoded, .. } in parts {
            debug_assert!(!Arc::ptr_eq(&node, &TAKEN), "each part was made");
            open.way = way;
            open.put(node, is_changed);
            outcome = outcome.and(own);
            self.work.encoded.extend(encoded);
        }
        outcome
    }

    /// Ends the pass, whose first error counts.
    fn stop(&mut self, outcome: Result<()>, error: Error) -> Result<()> {
        self.next = self.changes.len();
        outcome.and(Err(error))
    }

    /// Opens a node that has the changes from the next one up to `end` at and below it, and sorts
    /// them by the child that they lead to.
    fn open(&mut self, node: Arc<Node>, depth: u8, step: usize, end: usize) -> Open<'p> {
        debug_assert!(self.next < end, "an open node has changes");
        let below = &mut self.changes[self.next..end];
        match node.shape() {
            Shape::Inner(_) => {
                for change in &mut *below {
                    change.bucket = self.env.rules.bucket(depth, change.path[step]) as u8;
                }
                below.sort_unstable_by_key(|change| change.bucket);
            }
            Shape::Entries(_) => {
                below.sort_unstable_by(|a, b| a.path[step].cmp(b.path[step]));
            }
        }

        let was_flat = (depth == 0).then(|| node.is_flat());
        Open { node, was_flat, depth, step, end, way: Way::Here, is_changed: false }
    }

    /// Makes the next changes that end in an open node, until one leads below. Returns the node
    /// below; `None` if no change is left.
    fn go_on(&mut self, open: &mut Open<'p>) -> Result<Option<Open<'p>>> {
        while self.next < open.end {
            let change = &mut self.changes[self.next];
            let step = change.path[open.step];
            let is_last = open.step + 1 == change.path.len();

            // A removal that may gather a directory loads all of it first, so that a failure
            // changes nothing.
            if change.new.is_none() && is_last && open.may_be_gathered(self.env) {
                open.node.each(self.env, &mut |_, _| Ok(true))?;
            }

            if matches!(open.node.shape(), Shape::Inner(_)) {
                let bucket = change.bucket;
                let below = open.take_bucket(self.env, bucket.into())?;
                let end = self.end_of(open, |other| other.bucket == bucket);
                return Ok(Some(self.open(below, open.depth + 1, open.step, end)));
            }
            if !is_last {
                let below = open.take_dir(self.env, step)?;
                let end = self.end_of(open, |other| other.path[open.step] == step);
                // The inodes of the next directory begin at depth 0.
                return Ok(Some(self.open(below, 0, open.step + 1, end)));
            }
            open.change(step, change.new.as_ref());
            self.next += 1;
        }

        Ok(None)
    }

    /// End of the changes that lead to the child to which the next one leads.
    fn end_of(&self, open: &Open<'_>, is_same: impl Fn(&Change<'_>) -> bool) -> usize {
        let others = &self.changes[self.next + 1..open.end];
        self.next + 1 + others.iter().take_while(|other| is_same(other)).count()
    }
}

impl<'p> Open<'p> {
    /// Returns whether the loss of one step changes the shape of the node, or of its directory.
    fn may_be_gathered(&self, env: &Env) -> bool {
        let fewer = self.node.count().saturating_sub(1);
        let falls_flat = self.depth == 0 && !self.node.is_flat() && env.rules.is_flat(fewer);
        let is_inner = matches!(self.node.shape(), Shape::Inner(_));
        falls_flat || is_inner && env.rules.is_leaf(self.depth, fewer)
    }

    /// Goes to a bucket; returns its inode.
    fn take_bucket(&mut self, env: &Env, bucket: usize) -> Result<Arc<Node>> {
        let Shape::Inner(inner) = self.node.shape() else { unreachable!("inodes have buckets") };
        let rank = inner.inner().rank(bucket);
        let below = self.take(rank, |node| match node.shape() {
            Shape::Inner(inner) => inner.fetch(env, bucket),
            Shape::Entries(_) => Ok(None),
        })?;
        let below = below.unwrap_or_else(|| Arc::new(Node::empty(true)));
        self.way = Way::Bucket { bucket, before: below.count() };
        Ok(below)
    }

    /// Goes to the child of a step; returns its directory, a new one in the place of a value.
    fn take_dir(&mut self, env: &Env, step: &'p [u8]) -> Result<Arc<Node>> {
        let Shape::Entries(entries) = self.node.shape() else { unreachable!("the steps are here") };
        let entries = entries.entries();
        let item = entries.find(step).map_or_else(|| entries.position(step), Ok);
        let is_dir = item.is_ok_and(|item| !entries.is_value(item));
        let below = self.take(item.ok().filter(|_| is_dir), |node| match (node.shape(), item) {
            (Shape::Entries(entries), Ok(item)) => dir(env, entries.spot(item)),
            _ => Ok(None),
        })?;
        self.way = Way::Item { step, item, is_dir };
        Ok(below.unwrap_or_else(|| Arc::new(Node::empty(false))))
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

    /// Binds or unbinds the child of a step, which is here.
    fn change(&mut self, step: &[u8], new: Option<&Bound<'_>>) {
        let Shape::Entries(entries) = self.node.shape() else { unreachable!("the steps are here") };
        let entries = entries.entries();
        let item = entries.find(step).map_or_else(|| entries.position(step), Ok);
        if item.is_err() && new.is_none() {
            return;
        }

        let owned = Arc::make_mut(&mut self.node);
        match (item, new) {
            (Ok(item), Some(bound)) => owned.set_item(item, bound),
            (Err(position), Some(bound)) => owned.insert_item(position, step, bound),
            (Ok(item), None) => owned.remove_item(item),
            (Err(_), None) => {}
        }
        if let Some(bound) = new {
            // The height is a lower bound, so it only rises.
            owned.raise(bound.height() + 1);
        }
        self.is_changed = true;
    }

    /// Puts the child back that the pass went to.
    fn put(&mut self, below: Arc<Node>, is_changed: bool) {
        if !is_changed {
            self.put_back(below);
            return;
        }

        let owned = Arc::make_mut(&mut self.node);
        let height = match &self.way {
            Way::Here => unreachable!("the pass went to a child"),
            Way::Bucket { bucket, before, .. } => {
                let height = below.height();
                owned.set_bucket(*bucket, below, *before);
                height
            }
            Way::Item { step, item, .. } => {
                let height = below.height() + 1;
                let below = Bound::Child(Child::Dir(below));
                match *item {
                    Ok(item) => owned.set_item(item, &below),
                    Err(position) => owned.insert_item(position, step, &below),
                }
                height
            }
        };
        owned.raise(height);
        self.is_changed = true;
    }

    /// Puts an unchanged child back.
    fn put_back(&mut self, below: Arc<Node>) {
        let number = match (&self.way, self.node.shape()) {
            (Way::Bucket { bucket, .. }, Shape::Inner(inner)) => inner.inner().rank(*bucket),
            (Way::Item { item: Ok(number), is_dir: true, .. }, _) => Some(*number),
            (Way::Bucket { .. } | Way::Item { .. } | Way::Here, _) => None,
        };
        if let Some(number) = number {
            Arc::make_mut(&mut self.node).put_node(number, below);
        }
    }

    /// Gives the node the shape of its number of steps, if it changed.
    ///
    /// # Errors
    /// If what is gathered was not loaded before. The tree is whole then, though not in its shape.
    fn shape(&mut self, env: &Env) -> Result<()> {
        if !self.is_changed {
            return Ok(());
        }
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
    Node::of_slots((depth, count), slots.collect::<Vec<_>>().into_iter(), height)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use std::sync::atomic::{AtomicUsize, Ordering};
    use terrane_testkit::ChaCha8Rng;
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;
    use crate::base::address::{Address, Extent, Link};
    use crate::base::corrupt::Corrupt;
    use crate::base::hash::Hash;
    use crate::base::hashing::{Rules, Scheme};
    use crate::object::record::{Form, Record};
    use crate::tree::digest::Hasher;
    use crate::tree::node::{Member, Place, Source};

    /// Records in memory, by their addresses, of which so many can be read.
    #[derive(Debug, Default)]
    struct Records {
        records: Vec<Arc<Record>>,
        left: AtomicUsize,
    }

    impl Source for Records {
        fn record(&self, link: &Link) -> Result<Arc<Record>> {
            let one_less = |left: usize| left.checked_sub(1);
            match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
                Ok(_) => Ok(Arc::clone(&self.records[link.extent.at.unit as usize])),
                Err(_) => Err(self.damaged(link.extent.at, Corrupt::rule("a read fails", 1, 0))),
            }
        }

        fn value(&self, _: &Link) -> Result<Arc<[u8]>> {
            Ok([].into())
        }
    }

    /// Adds the records of a node and of all below, as a commit would.
    fn store(node: &mut Node, records: &mut Vec<Arc<Record>>) {
        for number in 0..node.len() {
            if let Some(mut below) = node.take_node(number) {
                store(Arc::get_mut(&mut below).unwrap(), records);
                node.put_node(number, below);
            }
        }
        let at = Address { chunk: 1, unit: records.len() as u32 };
        node.store_at(Place { extent: Extent { at, bytes: 1 }, form: Form::Full });
        node.settle();
        records.push(Arc::new(node.record().clone()));
    }

    type Values = BTreeMap<Vec<Vec<u8>>, Arc<Value>>;

    /// Values whose paths share directories, wide and narrow; none is on the way of another.
    fn values(rng: &mut ChaCha8Rng, count: usize, wide: u64) -> Values {
        let value = |rng: &mut ChaCha8Rng| Arc::new(Value::new(vec![rng.below(9) as u8; 9].into()));
        let path = |rng: &mut ChaCha8Rng| {
            let depth = 1 + rng.index(3);
            let mut path: Vec<Vec<u8>> =
                (0..depth).map(|_| format!("d{}", rng.below(wide)).into_bytes()).collect();
            path.push(format!("value{}", rng.below(wide)).into_bytes());
            path
        };
        (0..count).map(|_| (path(rng), value(rng))).collect()
    }

    fn bind_each(env: &Env, root: &mut Child, values: &Values) {
        for (path, value) in values {
            let path: Vec<&[u8]> = path.iter().map(Vec::as_slice).collect();
            bind(env, root, &path, Child::Value(Arc::clone(value))).unwrap();
        }
    }

    /// Binds values in one pass, on as many threads; returns how many nodes these hashed, and what
    /// they encoded.
    fn bind_at_once(
        env: &Env,
        root: &mut Child,
        values: &Values,
        (order, threads): (u64, usize),
    ) -> Result<(u64, Vec<EncodedPart>)> {
        let mut values: Vec<_> = values.iter().collect();
        // In whatever order the buffer has them.
        values.sort_by_key(|(path, _)| {
            path.iter().flatten().fold(order, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
            })
        });
        let values = values.iter().map(|(path, value)| {
            // Both ways to give a short value.
            let bound = if path.len() % 2 == 0 {
                Bound::Short(&value.bytes)
            } else {
                Bound::Child(Child::Value(Arc::clone(value)))
            };
            (path.iter().map(Vec::as_slice), bound)
        });
        let sharing = Sharing { hasher: &Hasher::new(threads), encoded_max: 1 << 20 };
        let (outcome, work) = bind_all(env, root, values, Some(sharing));
        outcome.map(|()| (work.hashed.count, work.encoded))
    }

    fn hash(env: &Env, root: &Child) -> Hash {
        let Child::Dir(node) = root else { unreachable!("it is a directory") };
        Hasher::new(1).hash(env, node).0
    }

    fn rules(rng: &mut ChaCha8Rng) -> Rules {
        let small = Rules { scheme: Scheme::Tezos, branching: 2, flat_limit: 3 };
        [Rules::TEZOS, Rules { scheme: Scheme::Blake3, ..small }, small][rng.index(3)]
    }

    /// A stored tree of values in a source that gives `left` records, and what it is in memory.
    fn stored(rules: Rules, first: &Values, left: usize) -> (Env, Child, Child) {
        let env = Env::new(rules, None, false);
        let mut whole = Child::Dir(Arc::new(Node::empty(false)));
        bind_each(&env, &mut whole, first);
        hash(&env, &whole);
        let Child::Dir(node) = &mut whole else { unreachable!("it is a directory") };
        let mut records = Records { left: left.into(), ..Records::default() };
        store(Arc::get_mut(node).unwrap(), &mut records.records);
        let link = node.link().unwrap();
        let env = Env::new(rules, Some(Arc::new(records)), false);
        let root = Child::Dir(env.load_at(&link, 0).unwrap());
        (env, root, whole)
    }

    #[test]
    fn values_bound_in_one_pass_make_the_tree_that_values_bound_one_by_one_make() {
        let (mut shared, mut encoded) = (0, 0);
        for_each_seed("values_bound_in_one_pass", 60, |rng, seed| {
            let rules = rules(rng);
            let wide = [3, 40, 2_000][rng.index(3)];
            let first_count = rng.index(400);
            let first = values(rng, first_count, wide);
            let count = 1 + rng.index(400);
            let second = values(rng, count, wide);
            let threads = 1 + rng.index(3);

            let (env, mut at_once, mut each) = stored(rules, &first, usize::MAX);
            bind_each(&env, &mut each, &second);
            // A tree that shares the nodes stays as it is.
            let fork = at_once.clone();
            let before = hash(&env, &fork);
            let (hashed, parts) =
                bind_at_once(&env, &mut at_once, &second, (seed, threads)).unwrap();
            assert!(threads > 1 || hashed == 0 && parts.is_empty(), "{hashed}");
            shared += u64::from(hashed > 0);
            encoded += parts.len();
            assert_eq!(hash(&env, &at_once), hash(&env, &each));
            let (Child::Dir(node), Child::Dir(other)) = (&at_once, &each) else { unreachable!() };
            assert_eq!(node.height(), other.height());

            let (env, again, _) = stored(rules, &first, usize::MAX);
            assert_eq!((hash(&env, &again), hash(&env, &fork)), (before, before));
        });
        assert!(shared > 8, "{shared} passes were shared by threads");
        assert!(encoded > 40, "{encoded} parts were encoded");
    }

    /// A pass takes nodes out of the tree. After a read that fails they are all back, each in its
    /// shape, and the same values can be bound again.
    #[test]
    fn a_read_that_fails_leaves_a_whole_tree_that_takes_the_values_later() {
        let mut failed = 0;
        for_each_seed("a_read_that_fails_leaves_a_whole_tree", 40, |rng, seed| {
            let rules = rules(rng);
            let wide = [3, 40, 300][rng.index(3)];
            let first = values(rng, 300, wide);
            let second = values(rng, 120, wide);
            let left = 1 + rng.index(80);
            let order = (seed, 1 + rng.index(3));

            let (env, mut root, mut whole) = stored(rules, &first, left);
            // What a read before loaded is taken out and put back.
            if rng.chance(1, 2) {
                let Child::Dir(node) = &root else { unreachable!("it is a directory") };
                let _ = node.each(&env, &mut |_, spot| spot.dir(&env).map(|_| true));
            }
            let outcome = bind_at_once(&env, &mut root, &second, order);
            if let Err(error) = outcome {
                failed += 1;
                assert!(matches!(error, Error::Corrupt { address: Some(_), .. }), "{error}");
            }

            // Each value is the old or the new one.
            let env = stored(rules, &first, usize::MAX).0;
            for (path, value) in first.iter().chain(&second) {
                let mut spot = Some(Spot::Own(&root));
                for step in path {
                    let dir = spot.and_then(|spot| spot.dir(&env).unwrap());
                    spot = dir.and_then(|dir| dir.locate(&env, step).unwrap());
                }
                let found = spot.and_then(|spot| spot.value(&env).unwrap());
                let expected = [Some(value), first.get(path), second.get(path)];
                let is_one = |value: &&Arc<Value>| found.as_deref() == Some(&*value.bytes);
                let is_new = !first.contains_key(path);
                assert!(
                    expected.iter().flatten().any(is_one) || is_new && found.is_none(),
                    "{path:?}"
                );
            }
            let Child::Dir(node) = &root else { unreachable!("it is a directory") };
            check_shapes(&env, node, 0);

            bind_at_once(&env, &mut root, &second, order).unwrap();
            bind_each(&env, &mut whole, &second);
            assert_eq!(hash(&env, &root), hash(&env, &whole));
        });
        assert!(failed > 8, "{failed}");
    }

    /// Checks that each node has the shape of its number of steps, and no directory is empty.
    fn check_shapes(env: &Env, node: &Node, level: u8) {
        assert!(!std::ptr::eq(node, Arc::as_ptr(&TAKEN)), "what was taken out is back");
        if node.count() > 0 {
            node.check_shape(&env.rules, level).unwrap();
        }
        for member in (0..node.len()).filter_map(|number| node.member(number)) {
            if let Member::Node(below) = member {
                assert!(below.count() > 0, "no part is empty");
                let is_inner = matches!(node.shape(), Shape::Inner(_));
                check_shapes(env, below, if is_inner { level + 1 } else { 0 });
            }
        }
    }

    /// Each node on the way is read once, however many values are below.
    #[test]
    fn a_pass_reads_each_node_once() {
        for_each_seed("a_pass_reads_each_node_once", 8, |rng, seed| {
            let first = values(rng, 600, 500);
            let (env, mut root, whole) = stored(Rules::TEZOS, &first, usize::MAX);
            bind_at_once(&env, &mut root, &first, (seed, 2)).unwrap();
            let Child::Dir(node) = &whole else { unreachable!("it is a directory") };
            let (mut nodes, mut open) = (0, vec![Arc::clone(node)]);
            while let Some(node) = open.pop() {
                nodes += 1;
                let members = (0..node.len()).filter_map(|number| node.member(number));
                open.extend(members.filter_map(|member| match member {
                    Member::Node(below) => Some(Arc::clone(below)),
                    Member::Value(_) => None,
                }));
            }

            // As many reads are enough: the root is read already.
            let (env, mut root, _) = stored(Rules::TEZOS, &first, nodes);
            bind_at_once(&env, &mut root, &first, (seed, 2)).unwrap();
            let (env, mut root, _) = stored(Rules::TEZOS, &first, nodes - 1);
            bind_at_once(&env, &mut root, &first, (seed, 2)).unwrap_err();
        });
    }
}
