//! Head: the tree of the newest commit, whose nodes stay in memory. The next block begins with
//! them, and neither reads nor decodes what the blocks before it read or wrote.
//!
//! A checkout of the newest commit shares the nodes with the head. The first change of that tree
//! takes them from the head, so that the tree is their only holder and changes them in place; its
//! commit gives them back. A tree that is changed and dropped without a commit drops them too: the
//! next checkout reads what it needs.
//!
//! Invariant: the head has the nodes of one commit, as they are stored. So it changes the cost of a
//! checkout, never a tree.
//!
//! **Memory.** The weight of the nodes is estimated: what is loaded and added counts, also for
//! other trees; what is forgotten counts off; each round counts the nodes anew. When the estimate
//! is above the budget, the tree that takes the nodes trims them first, by a [`Clock`]: its hand
//! goes round over the nodes, and forgets those that no call passed since the hand was there last.
//! The hand looks at a bounded number of nodes in a block, whatever the shape of the tree, and goes
//! on from there in the next block. So no block waits long. Nodes that another tree shares stay,
//! and do not count before a round meets them unshared.
//!
//! Rejected:
//! - A cache of nodes by address: a lookup and a lock for each node on a path.
//! - Steps that each have a share of the children of the first wide node: one child can have most
//!   of the nodes below, and such a step took 95 ms.

use terrane_io::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use terrane_io::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::address::Link;
use crate::tree::node::{Child, Env, Node};

/// Nodes of the newest commit. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Head {
    root: Mutex<Option<Arc<Node>>>,
    /// Whether `root` is set, for calls that ask often.
    is_held: AtomicBool,
    /// Weight up to which nodes stay, in bytes; 0 keeps none.
    budget: usize,
    /// Estimated weight, in bytes.
    weight: AtomicUsize,
    clock: Mutex<Clock>,
}

/// Nodes that the hand looks at in a block while the nodes are little above the budget.
const VISITS: usize = 4_096;

/// Largest factor of the visits when the nodes are further above the budget.
const NEED: usize = 8;

/// Rounds of one trim. The rest of a round and two whole ones forget all that can be forgotten.
const ROUNDS_MAX: usize = 3;

/// Nodes on a path that a trim goes down; what is further down goes with the last of them. Bounds
/// the stack.
const TRIM_DEPTH_MAX: usize = 128;

impl Head {
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Node>>> {
        self.root.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the root at a link, if the head has it.
    pub(crate) fn root(&self, link: &Link) -> Option<Arc<Node>> {
        self.lock().as_ref().filter(|root| root.link().as_ref() == Some(link)).map(Arc::clone)
    }

    /// Estimated weight, in bytes.
    pub(crate) fn weight(&self) -> usize {
        if self.is_held.load(Ordering::Acquire) { self.weight.load(Ordering::Relaxed) } else { 0 }
    }

    /// Replaces the head by the tree of a new commit, with `added` more bytes of nodes.
    pub(crate) fn set(&self, root: &Child, added: usize) {
        let Child::Dir(root) = root else { return };
        // A commit that is made again writes nothing, so its nodes have no places: no checkout
        // could begin with them.
        if self.budget == 0 || root.link().is_none() {
            return;
        }
        self.weight.fetch_add(added, Ordering::Relaxed);
        let before = self.lock().replace(Arc::clone(root));
        self.is_held.store(true, Ordering::Release);
        // The former head is freed without the lock.
        drop(before);
    }

    /// Lets go of the nodes of a tree that is about to be changed; returns whether it had them.
    pub(crate) fn let_go(&self, root: &Child) -> bool {
        if !self.is_held.load(Ordering::Acquire) {
            return false;
        }
        let Child::Dir(root) = root else { return false };
        let mut held = self.lock();
        if !held.as_ref().is_some_and(|held| Arc::ptr_eq(held, root)) {
            return false;
        }
        *held = None;
        self.is_held.store(false, Ordering::Release);
        true
    }

    /// Lets go of the nodes of a tree before its first change, and trims them if they are above the
    /// budget.
    ///
    /// A tree whose values wait in its buffer must not lose nodes: applying the buffer needs no
    /// I/O.
    pub(crate) fn take(&self, root: &mut Child, env: &Env) {
        if !self.let_go(root) {
            return;
        }
        let Child::Dir(root) = root else { return };
        let loaded = env.take_loaded();
        let weight = self.weight.fetch_add(loaded, Ordering::Relaxed) + loaded;
        if weight > self.budget
            && let Some(root) = Arc::get_mut(root)
        {
            self.weight.store(self.trim(root, weight), Ordering::Relaxed);
        }
    }

    /// Nodes that the hand may look at in a block: more, the more the nodes are above the budget.
    fn visits(&self, weight: usize) -> usize {
        let excess = weight.saturating_sub(self.budget);
        if excess > self.budget {
            return usize::MAX;
        }
        // Parts of 64 of the budget that the nodes are above it.
        let parts = excess / (self.budget / 64).max(1);
        VISITS * (1 + parts / 2).min(NEED)
    }

    /// Forgets nodes below a root that are above the budget; returns the weight of the others.
    fn trim(&self, root: &mut Node, mut weight: usize) -> usize {
        debug_assert!(self.budget < weight, "there is something to forget");
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut visits = self.visits(weight);

        for _ in 0..ROUNDS_MAX {
            if weight <= self.budget || visits == 0 {
                break;
            }
            let turn = Turn { visits, excess: weight - self.budget };
            (weight, visits) = clock.go_on(root, weight, turn);
        }
        weight
    }
}

/// Hand that goes round over the nodes below a root, block after block.
#[derive(Debug, Default)]
struct Clock {
    /// Numbers of the children that lead from the root to the next node; none at the beginning of a
    /// round. Changes of the tree move the hand by a few nodes, which is harmless.
    way: Vec<usize>,
    /// Weight before this round, in bytes.
    began: usize,
    /// Weight of the nodes that the hand forgot in this round, in bytes.
    freed: usize,
    /// Weight of the nodes that the hand left in this round, in bytes.
    kept: usize,
}

/// Rest of what the hand has to do in a block.
#[derive(Debug)]
struct Turn {
    /// Nodes that it may look at.
    visits: usize,
    /// Weight that it is to free, in bytes.
    excess: usize,
}

impl Clock {
    /// Moves the hand, up to the end of the round at most. Returns the new weight of the nodes,
    /// and the visits that are left.
    fn go_on(&mut self, root: &mut Node, weight: usize, mut turn: Turn) -> (usize, usize) {
        let from = std::mem::take(&mut self.way);
        if from.is_empty() {
            *self = Self { began: weight, ..Self::default() };
        }

        let freed_before = self.freed;
        let is_round = self.pass(root, &from, &mut turn);
        debug_assert_eq!(is_round, self.way.is_empty(), "the hand stops at a node");
        if !is_round {
            return (weight.saturating_sub(self.freed - freed_before), turn.visits);
        }

        // The count lacks what came behind the hand, about half of what came in this round.
        let came = (weight + freed_before).saturating_sub(self.began);
        (self.kept + came / 2, turn.visits)
    }

    /// Passes the nodes below `node`, from the way `from` on. Returns false if the turn ends before
    /// the last one: the way leads to the next node then. Recursion: up to [`TRIM_DEPTH_MAX`].
    fn pass(&mut self, node: &mut Node, from: &[usize], turn: &mut Turn) -> bool {
        let is_deep = self.way.len() >= TRIM_DEPTH_MAX;
        let mut next = from.first().copied().unwrap_or(0);
        if node.next_node(next).is_none() {
            // A glance at the first lines suffices.
            return true;
        }

        // The places of the children must be in the record, from which they are loaded again.
        node.settle();
        debug_assert!(node.link().is_some(), "a stored node has stored children");
        node.prefetch_nodes(next);

        while let Some(number) = node.next_node(next) {
            self.way.push(number);
            if turn.visits == 0 || turn.excess == 0 {
                return false;
            }
            if let Some(child) = node.spare_child(number) {
                let rest = from.split_first().filter(|(first, _)| **first == number);
                let rest = rest.map_or([].as_slice(), |(_, rest)| rest);
                if !is_deep && !self.pass(child, rest, turn) {
                    return false;
                }

                // The nodes on the way back up come on top.
                turn.visits = turn.visits.saturating_sub(1);
                let weight = child.weight();
                // The mark is taken in any case.
                let was_used = child.take_used();
                if !is_deep && (was_used || child.next_node(0).is_some()) {
                    if child.has_children() {
                        // Stored values stay in memory until then, and no weight counts them.
                        child.settle();
                    }
                    self.kept += weight;
                } else {
                    self.freed += weight;
                    turn.excess = turn.excess.saturating_sub(weight);
                    node.forget(number);
                }
            }
            self.way.pop();
            next = number + 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::address::{Address, Extent};
    use crate::base::hashing::Rules;
    use crate::object::record::Form;
    use crate::tree::digest::Hasher;
    use crate::tree::edit::bind;
    use crate::tree::node::{Known, Member, Place, Shape, Spot, Value};

    /// Notes a place for each node below, as if a commit had written them.
    fn store(node: &Node) {
        for number in 0..node.len() {
            if let Some(Member::Node(child)) = node.member(number) {
                store(child);
            }
        }
        let extent = Extent { at: Address { chunk: 1, unit: 1 }, bytes: 1 };
        node.store_at(Place { extent, form: Form::Full });
    }

    /// Number of nodes below, and their weight.
    fn measure(node: &Node) -> (usize, usize) {
        let members = (0..node.len()).filter_map(|number| node.member(number));
        members.fold((0, 0), |(count, weight), member| match member {
            Member::Node(child) => {
                let below = measure(child);
                (count + 1 + below.0, weight + child.weight() + below.1)
            }
            Member::Value(_) => (count, weight),
        })
    }

    /// A stored tree of `count` directories, all of them below one of 20 children of the root: a
    /// share of the root's children is all of the tree, or nothing.
    fn tree(count: u32) -> (Env, Child) {
        let env = Env::new(Rules::TEZOS, None, false);
        let mut root = Child::Dir(Arc::new(Node::empty(false)));
        let value = || Child::Value(Arc::new(Value::new([7].into())));
        for step in 0..20_u8 {
            bind(&env, &mut root, &[b"dir", &[step]], value()).unwrap();
        }
        for number in 0..count {
            let path: [&[u8]; 4] = [b"dir", &[3], &number.to_le_bytes(), b"value"];
            bind(&env, &mut root, &path, value()).unwrap();
        }
        Hasher::new(1).hash(&env, node(&root));
        store(node(&root));
        (env, root)
    }

    fn node(root: &Child) -> &Node {
        let Child::Dir(node) = root else { unreachable!("it is a directory") };
        node
    }

    /// Passes all nodes, as calls do.
    fn pass_all(env: &Env, node: &Node) {
        let visit = &mut |_: &[u8], spot: Spot<'_>| {
            if let Some(below) = spot.dir(env)? {
                pass_all(env, below);
            }
            Ok(true)
        };
        node.each(env, visit).unwrap();
    }

    /// Lets as many blocks as `times` take the tree from the head; returns the number of nodes that
    /// each one forgot.
    fn trims(head: &Head, env: &Env, root: &mut Child, times: usize) -> Vec<usize> {
        let trim = |_| {
            let (before, weight) = measure(node(root));
            head.set(root, 0);
            assert_eq!(head.weight(), weight, "the estimate is exact if nothing comes");
            head.take(root, env);
            before - measure(node(root)).0
        };
        (0..times).map(trim).collect()
    }

    /// Head that has a tree whose weight is this percentage of the budget.
    fn head_of(root: &Child, percent: usize) -> (Head, usize) {
        let (_, weight) = measure(node(root));
        let head = Head::new(weight * 100 / percent);
        head.weight.store(weight, Ordering::Relaxed);
        (head, weight * 100 / percent)
    }

    /// A trim had steps, each with a share of the children of the first wide node. One child had
    /// nearly all of the nodes, and the step of that child stopped a block for 95 ms.
    #[test]
    fn the_hand_looks_at_so_many_nodes_in_a_block_and_goes_on_in_the_next() {
        let (env, mut root) = tree(22_900);
        let (count, _) = measure(node(&root));
        let left = (6 * VISITS).checked_sub(count).expect("a round takes six blocks");
        assert!((1..400).contains(&left), "the sixth block has {left} visits for the next round");

        // The first round only takes the marks of the nodes. The next one goes on over two blocks.
        pass_all(&env, node(&root));
        let (head, budget) = head_of(&root, 103);
        let gone = trims(&head, &env, &mut root, 8);
        assert_eq!(gone[..5], [0; 5], "{gone:?}");
        assert!(gone[5] > 0 && gone[6] > 0 && gone[7] == 0, "{gone:?}");
        assert!(gone[5] <= left, "{gone:?}, {left}");
        let (_, weight) = measure(node(&root));
        assert!(budget - 4_096 < weight && weight <= budget, "{weight}, {budget}");
    }

    #[test]
    fn the_hand_looks_at_more_nodes_the_more_they_are_above_the_budget() {
        let head = Head::new(64_000);
        let visits = [64_001, 66_000, 70_000, 80_000, 128_000].map(|weight| head.visits(weight));
        assert_eq!(visits, [1, 2, 4, NEED, NEED].map(|times| times * VISITS));
        assert_eq!(head.visits(128_001), usize::MAX);
        assert_eq!(Head::new(1).visits(2), VISITS, "a budget of less than 64 bytes");
    }

    #[test]
    fn in_need_the_hand_looks_at_more_nodes_and_far_above_the_budget_at_all() {
        for percent in [130, 210, 400, 10_000] {
            let (env, mut root) = tree(20_000);
            pass_all(&env, node(&root));
            let (head, budget) = head_of(&root, percent);
            let gone = trims(&head, &env, &mut root, 2);
            assert!(gone[0] > VISITS && gone[1] == 0, "{percent}: {gone:?}");
            assert!(measure(node(&root)).1 <= budget, "{percent}");
        }
    }

    /// The hand forgets what no call passed since it was there last.
    #[test]
    fn nodes_that_calls_pass_stay() {
        let (env, mut root) = tree(6_000);
        let path = |number: u32| [b"dir".to_vec(), vec![3], number.to_le_bytes().to_vec()];
        let is_there = |root: &Child, number: u32| {
            let mut spot = Spot::Own(root);
            for step in path(number) {
                let dir = spot.looked_at().expect("what leads to it is there");
                let Shape::Entries(_) = dir.shape() else {
                    return is_inode_there(&env, dir, &step);
                };
                spot = dir.locate(&env, &step).unwrap().unwrap();
            }
            spot.looked_at().is_some()
        };

        let (head, _) = head_of(&root, 200);
        for _ in 0..4 {
            for number in (0..6_000).step_by(100) {
                assert!(is_there(&root, number), "{number}");
            }
            trims(&head, &env, &mut root, 1);
        }
        let kept = (0..6_000).filter(|number| is_there(&root, *number)).count();
        assert!((60..3_500).contains(&kept), "{kept}");
    }

    /// No weight counts stored values, so the hand lets go of them wherever it passes.
    #[test]
    fn stored_values_go_and_their_directories_stay() {
        let (env, mut root) = tree(2_000);
        let values: Vec<_> = (0..200).map(|_| Arc::new(Value::new([7; 100].into()))).collect();
        for (number, value) in (0_u32..).zip(&values) {
            let path: [&[u8]; 4] = [b"dir", &[3], &number.to_le_bytes(), b"long"];
            bind(&env, &mut root, &path, Child::Value(Arc::clone(value))).unwrap();
        }
        Hasher::new(1).hash(&env, node(&root));
        for value in &values {
            value.extent.set(Extent { at: Address { chunk: 1, unit: 9 }, bytes: 101 }).unwrap();
        }
        store(node(&root));

        pass_all(&env, node(&root));
        let (head, _) = head_of(&root, 103);
        let gone = trims(&head, &env, &mut root, 1)[0];
        assert!(gone < values.len(), "directories of values stay: {gone} nodes are gone");
        let held = values.iter().filter(|value| Arc::strong_count(value) > 1).count();
        assert_eq!(held, 0, "values are held");
    }

    /// Returns whether a step of an inode leads to a directory in memory.
    fn is_inode_there(env: &Env, dir: &Node, step: &[u8]) -> bool {
        let mut dir = dir;
        loop {
            match dir.shape() {
                Shape::Entries(entries) => {
                    return entries.find(step).is_some_and(|spot| spot.looked_at().is_some());
                }
                Shape::Inner(inner) => match inner.known(env.rules.bucket(inner.depth(), step)) {
                    Known::Node(below) => dir = below,
                    _ => return false,
                },
            }
        }
    }

    /// A tree keeps the nodes that another one shares, which count as those of the other tree.
    #[test]
    fn nodes_that_another_tree_shares_stay() {
        let (env, mut root) = tree(2_000);
        let (count, _) = measure(node(&root));
        let trim = |root: &mut Child| {
            let (head, _) = head_of(root, 1_000);
            trims(&head, &env, root, 1)[0]
        };

        let fork = root.clone();
        assert_eq!(trim(&mut root), 0);
        drop(fork);

        let dir = node(&root).locate(&env, b"dir").unwrap().unwrap().dir(&env).unwrap().unwrap();
        let part = Arc::clone(dir);
        assert_eq!(trim(&mut root), 0);
        assert_eq!(measure(&part).0 + 1, count);

        drop(part);
        assert!(trim(&mut root) > count / 2);
    }
}
