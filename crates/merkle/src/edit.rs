//! Changes of a directory: binding and unbinding steps, in place where a node is not shared, with the shape kept
//! canonical: a leaf is split when it outgrows the branching, inodes are gathered when they fall to it, and a directory
//! is flat up to the flat limit.
//!
//! A change that fails has changed nothing: what a gathering needs is loaded before.

use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::node::{Body, Child, EntriesNode, Env, InnerNode, Item, Node, Shape, Slot, Spot, Step};

/// What a change does with the binding of a step, `None` being "not bound"; says whether it changed anything. If it
/// fails, or says no, it has left the binding as it was.
pub(crate) type Act<'a> = dyn FnMut(&mut Option<Child>) -> Result<bool> + 'a;

/// Applies `act` to the binding of `step` in the directory; says whether anything changed. `may_remove` must be set if
/// `act` may unbind the step.
///
/// Cost: one read for each inode on the way that is not in memory; all inodes of the directory where it falls to the
/// flat limit, and those of one bucket where that falls to the branching.
pub(crate) fn edit(
    env: &Env,
    dir: &mut Arc<Node>,
    step: &[u8],
    may_remove: bool,
    act: &mut Act<'_>,
) -> Result<bool> {
    let count = dir.count();
    let flat = dir.is_flat();
    if may_remove && !flat && env.rules.is_flat(count.saturating_sub(1)) {
        dir.each(env, &mut |_, _| Ok(true))?;
    }
    let changed = edit_node(env, dir, 0, step, may_remove, act)?;
    if changed {
        reshape(env, dir, flat)?;
    }
    Ok(changed)
}

/// Makes a directory flat, or an inode, as its number of steps asks for.
fn reshape(env: &Env, dir: &mut Arc<Node>, flat: bool) -> Result<()> {
    let wants_flat = env.rules.is_flat(dir.count());
    if wants_flat == flat {
        return Ok(());
    }
    let items = gather(env, dir)?;
    *dir = Arc::new(if wants_flat {
        Node::of_items(false, items, dir.height)
    } else {
        inode(env, 0, items, dir.height)
    });
    Ok(())
}

/// All items below an inode, ascending, free of any record.
fn gather(env: &Env, node: &Node) -> Result<Vec<Item>> {
    let item = |(step, spot): (&[u8], Spot<'_>)| Item::Own {
        step: Step::Own(step.into()),
        child: spot.to_child(),
    };
    Ok(node.sorted(env)?.into_iter().map(item).collect())
}

/// The inode of `items`, which ascend and are free of any record.
pub(crate) fn inode(env: &Env, depth: u8, items: Vec<Item>, height: u16) -> Node {
    let count = items.len() as u64;
    if env.rules.is_leaf(depth, count) {
        return Node::of_items(true, items, height);
    }
    let mut buckets: Vec<Vec<Item>> = Vec::new();
    buckets.resize_with(32, Vec::new);
    for item in items {
        let Item::Own { step: Step::Own(step), .. } = &item else {
            unreachable!("gathered items own their steps")
        };
        buckets[env.rules.bucket(depth, step)].push(item);
    }
    let slots = buckets.into_iter().map(|items| match items.len() {
        0 => Slot::Empty,
        _ => Slot::Own(Arc::new(inode(env, depth + 1, items, height))),
    });
    let slots = slots.collect();
    Node::new(Body::Inner(InnerNode { depth, count, base: None, slots }), height)
}

fn edit_node(
    env: &Env,
    node: &mut Arc<Node>,
    depth: u8,
    step: &[u8],
    may_remove: bool,
    act: &mut Act<'_>,
) -> Result<bool> {
    let before = node.count();
    let is_inner = matches!(node.shape(), Shape::Inner(_));
    if may_remove && is_inner && env.rules.is_leaf(depth, before.saturating_sub(1)) {
        node.each(env, &mut |_, _| Ok(true))?;
    }
    let owned = Arc::make_mut(node);
    owned.open_up();
    let below = match &mut owned.body {
        Body::Stored(_) => unreachable!("it was opened up"),
        Body::Entries(entries) => edit_item(env, entries, step, act)?,
        Body::Inner(inner) => edit_bucket(env, inner, depth, step, may_remove, act)?,
    };
    let Some(height) = below else { return Ok(false) };
    owned.hash = OnceLock::new();
    owned.place = OnceLock::new();
    owned.height = owned.height.max(height);
    let listed = env.rules.is_leaf(depth, owned.count());
    if !owned.is_flat() && is_inner == listed {
        let items = gather(env, owned)?;
        *node = Arc::new(inode(env, depth, items, owned.height));
    }
    Ok(true)
}

/// The height that the change asks for; `None` if nothing changed.
fn edit_bucket(
    env: &Env,
    inner: &mut InnerNode,
    depth: u8,
    step: &[u8],
    may_remove: bool,
    act: &mut Act<'_>,
) -> Result<Option<u16>> {
    let bucket = env.rules.bucket(depth, step);
    // Taken out while it is changed, so that it is not shared with this slot.
    let mut below = match inner.bucket(env, bucket)? {
        Some(node) => Arc::clone(node),
        None => Arc::new(Node::empty(true)),
    };
    let slot = std::mem::take(&mut inner.slots[bucket]);
    let was_empty = matches!(slot, Slot::Empty);
    drop(slot);
    let before = below.count();
    let outcome = edit_node(env, &mut below, depth + 1, step, may_remove, act);
    let (after, height) = (below.count(), below.height);
    inner.slots[bucket] = match after {
        0 if was_empty || outcome.is_ok() => Slot::Empty,
        _ => Slot::Own(below),
    };
    inner.count = (inner.count + after).saturating_sub(before);
    Ok(outcome?.then_some(height))
}

fn edit_item(
    env: &Env,
    entries: &mut EntriesNode,
    step: &[u8],
    act: &mut Act<'_>,
) -> Result<Option<u16>> {
    let (position, mut child) = match entries.position(step) {
        Ok(item) => (item, Some(take_child(env, entries, item)?)),
        Err(position) => (position, None),
    };
    let bound = child.is_some();
    let outcome = act(&mut child);
    let height = match &child {
        Some(Child::Dir(node)) => node.height + 1,
        _ => 1,
    };
    match (bound, child) {
        (true, Some(child)) => put_child(entries, position, child),
        (true, None) => drop(entries.items.remove(position)),
        (false, Some(child)) => {
            let item = Item::Own { step: Step::Own(step.into()), child };
            entries.items.insert(position, item);
        }
        (false, None) => {}
    }
    Ok(outcome?.then_some(height))
}

/// What is bound to an item, taken out of it so that it is not shared with it; [`put_child`] or a removal follows.
fn take_child(env: &Env, entries: &mut EntriesNode, item: usize) -> Result<Child> {
    let is_dir = !entries.spot(item).is_value();
    if is_dir && !matches!(entries.spot(item), Spot::Own(Child::Blinded { .. })) {
        entries.spot(item).dir(env)?; // loaded, so that the change can go on in it
    }
    if let Item::Own { child, .. } = &mut entries.items[item] {
        let blank = Child::Blinded { is_value: true, hash: crate::hash::Hash([0; 32]) };
        let taken = std::mem::replace(child, blank);
        return Ok(match taken {
            Child::DirAt(mut far) => match far.1.take() {
                Some(node) => Child::Dir(node),
                None => Child::DirAt(far),
            },
            other => other,
        });
    }
    let child = entries.spot(item).to_child();
    if let Item::Kept { ordinal, near } = &mut entries.items[item] {
        near.take();
        let step = Step::Base(*ordinal);
        let blank = Child::Blinded { is_value: true, hash: crate::hash::Hash([0; 32]) };
        entries.items[item] = Item::Own { step, child: blank };
    }
    Ok(child)
}

fn put_child(entries: &mut EntriesNode, item: usize, child: Child) {
    if let Item::Own { child: slot, .. } = &mut entries.items[item] {
        *slot = child;
    }
}
