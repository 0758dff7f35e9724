//! Changes of a tree: binding and unbinding of a path, in place where a node is not shared, with the shape kept canonical:
//! a leaf is split when it outgrows the branching, inodes are gathered when they fall to it, and a directory is flat up
//! to the flat limit.
//!
//! A change that fails has changed nothing: what it needs is loaded before.

use std::sync::Arc;

use crate::error::Result;
use crate::node::{Binding, Body, Child, EntriesNode, Env, InnerNode, Node, Shape, Slot, Spot};

/// Binds `child` at `path` below `root`; values on the way become directories. No I/O if all that is on the way was looked
/// at.
///
/// Cost: one read for each directory and inode on the way that is not in memory.
pub(crate) fn bind(env: &Env, root: &mut Child, path: &[&[u8]], child: Child) -> Result<()> {
    edit_child(env, root, path, &mut Some(child))
}

/// Unbinds `path`, which is bound and has a step, below `root`. The directory that has it must have others, or be the root.
///
/// Cost: that of [`bind`]; all inodes of the directory that has it where that falls to the flat limit, and those of one
/// bucket where that falls to the branching.
pub(crate) fn unbind(env: &Env, root: &mut Child, path: &[&[u8]]) -> Result<()> {
    edit_child(env, root, path, &mut None)
}

/// Puts `new` at `path` below `child`, or takes away what is there if it is none. Only what is bound is taken away.
fn edit_child(env: &Env, child: &mut Child, path: &[&[u8]], new: &mut Option<Child>) -> Result<()> {
    if path.is_empty() {
        if let Some(new) = new.take() {
            *child = new;
        }
        return Ok(());
    }
    if let Child::Dir(dir) = child {
        return edit(env, dir, path, new);
    }
    let mut dir = match child.dir(env)? {
        Some(dir) => Arc::clone(dir),
        None => Arc::new(Node::empty(false)),
    };
    edit(env, &mut dir, path, new)?;
    *child = Child::Dir(dir);
    Ok(())
}

/// The same of a directory.
fn edit(env: &Env, dir: &mut Arc<Node>, path: &[&[u8]], new: &mut Option<Child>) -> Result<()> {
    let count = dir.count();
    let flat = dir.is_flat();
    let loses = new.is_none() && path.len() == 1;
    if loses && !flat && env.rules.is_flat(count.saturating_sub(1)) {
        dir.each(env, &mut |_, _| Ok(true))?;
    }
    edit_node(env, dir, 0, path, new)?;
    reshape(env, dir, flat)
}

/// Makes a directory flat, or an inode, as its number of steps asks for.
fn reshape(env: &Env, dir: &mut Arc<Node>, flat: bool) -> Result<()> {
    let wants_flat = env.rules.is_flat(dir.count());
    if wants_flat == flat {
        return Ok(());
    }
    let bindings = gather(env, dir)?;
    *dir = Arc::new(if wants_flat {
        Node::of_bindings(false, bindings, dir.height)
    } else {
        inode(env, 0, bindings, dir.height)
    });
    Ok(())
}

/// All that is bound below an inode, ascending, free of any record.
fn gather(env: &Env, node: &Node) -> Result<Vec<Binding>> {
    let binding = |(step, spot): (&[u8], Spot<'_>)| (step.into(), spot.to_child());
    Ok(node.sorted(env)?.into_iter().map(binding).collect())
}

/// The inode of bindings, which ascend.
pub(crate) fn inode(env: &Env, depth: u8, bindings: Vec<Binding>, height: u16) -> Node {
    let count = bindings.len() as u64;
    if env.rules.is_leaf(depth, count) {
        return Node::of_bindings(true, bindings, height);
    }
    let mut buckets: Vec<Vec<Binding>> = Vec::new();
    buckets.resize_with(32, Vec::new);
    for binding in bindings {
        buckets[env.rules.bucket(depth, &binding.0)].push(binding);
    }
    let filled = buckets.into_iter().enumerate().filter(|(_, bindings)| !bindings.is_empty());
    let slots = filled.map(|(bucket, bindings)| {
        (bucket, Slot::Node(Arc::new(inode(env, depth + 1, bindings, height))))
    });
    Node::new(Body::Inner(InnerNode::new(depth, count, slots)), height)
}

fn edit_node(
    env: &Env,
    node: &mut Arc<Node>,
    depth: u8,
    path: &[&[u8]],
    new: &mut Option<Child>,
) -> Result<()> {
    let is_inner = matches!(node.shape(), Shape::Inner(_));
    let loses = new.is_none() && path.len() == 1;
    if loses && is_inner && env.rules.is_leaf(depth, node.count().saturating_sub(1)) {
        node.each(env, &mut |_, _| Ok(true))?;
    }
    let opened = node.opened();
    let was_stored = opened.is_some();
    if let Some(opened) = opened {
        *node = Arc::new(opened);
    }
    let owned = Arc::make_mut(node);
    let outcome = match &mut owned.body {
        Body::Stored(_) => unreachable!("it was opened"),
        Body::Entries(entries) => edit_item(env, entries, path, new),
        Body::Inner(inner) => edit_bucket(env, inner, depth, path, new),
    };
    let height = match outcome {
        Ok(height) => height,
        Err(error) => {
            if was_stored && let Some(base) = owned.base().map(Arc::clone) {
                *node = base;
            }
            return Err(error);
        }
    };
    owned.hash.take();
    owned.place.take();
    owned.height = owned.height.max(height);
    let listed = env.rules.is_leaf(depth, owned.count());
    if !owned.is_flat() && is_inner == listed {
        let bindings = gather(env, owned)?;
        *node = Arc::new(inode(env, depth, bindings, owned.height));
    }
    Ok(())
}

/// The height that the change asks for.
fn edit_bucket(
    env: &Env,
    inner: &mut InnerNode,
    depth: u8,
    path: &[&[u8]],
    new: &mut Option<Child>,
) -> Result<u16> {
    let bucket = env.rules.bucket(depth, path[0]);
    if let Some(Slot::Node(node)) = inner.slot_mut(bucket) {
        let before = node.count();
        edit_node(env, node, depth + 1, path, new)?;
        let (after, height) = (node.count(), node.height);
        inner.counted(bucket, before, after);
        return Ok(height);
    }
    let mut node = match inner.bucket(env, bucket)? {
        Some(node) => Arc::clone(node),
        None => Arc::new(Node::empty(true)),
    };
    let before = node.count();
    edit_node(env, &mut node, depth + 1, path, new)?;
    let (after, height) = (node.count(), node.height);
    inner.set(bucket, Slot::Node(node));
    inner.counted(bucket, before, after);
    Ok(height)
}

/// The height that the change asks for.
fn edit_item(
    env: &Env,
    entries: &mut EntriesNode,
    path: &[&[u8]],
    new: &mut Option<Child>,
) -> Result<u16> {
    let (step, rest) = (path[0], &path[1..]);
    let removes = new.is_none();
    let item = match entries.position(step) {
        Ok(item) => item,
        Err(_) if removes => return Ok(1),
        Err(position) => {
            let mut child = match new.take_if(|_| rest.is_empty()) {
                Some(child) => child,
                None => Child::Dir(Arc::new(Node::empty(false))),
            };
            edit_child(env, &mut child, rest, new)?;
            let height = child.height() + 1;
            entries.insert(position, step, child);
            return Ok(height);
        }
    };
    if removes && rest.is_empty() {
        entries.remove(item);
        return Ok(1);
    }
    if let Some(child) = entries.child_mut(item) {
        edit_child(env, child, rest, new)?;
        return Ok(child.height() + 1);
    }
    let mut child = match new.take_if(|_| rest.is_empty()) {
        Some(child) => child,
        None => entries.spot(item).to_child(),
    };
    edit_child(env, &mut child, rest, new)?;
    let height = child.height() + 1;
    entries.set(item, child);
    Ok(height)
}
