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
//! other trees; what is forgotten counts off. Each round of steps counts the nodes anew. When the
//! estimate is above the budget, the tree that takes the nodes trims them first: two steps at most,
//! of a sixteenth of the nodes each, so that no block waits long. A step works like the hand of a
//! clock: it forgets the nodes that no call passed since the hand was there last. A quarter above
//! the budget, half of the nodes go by chance.
//!
//! Rejected: a cache of nodes by address (a lookup and a lock for each node on a path).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Number of the next step of a trim.
    hand: AtomicUsize,
    /// Weight of the nodes that the steps of this round left, in bytes.
    counted: AtomicUsize,
}

/// Steps of a round over all nodes.
const STEPS: usize = 16;

/// Steps of one trim.
const STEPS_AT_ONCE: usize = 2;

/// Rounds by chance of a trim: behind them all nodes go.
const CHANCES: u32 = 8;

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
        if self.budget == 0 {
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

    /// Forgets nodes below a root, if they are above the budget; returns the weight of the others.
    fn trim(&self, root: &mut Node, mut weight: usize) -> usize {
        for _ in 0..STEPS_AT_ONCE {
            let step = self.hand.fetch_add(1, Ordering::Relaxed) % STEPS;
            let mut weights = Weights::default();
            trim_below(root, 0, Some(step), &mut Node::take_used, &mut weights);
            weight = weight.saturating_sub(weights.freed);

            // Nodes of trees that were dropped, or that are of other commits, counted until here.
            let counted = self.counted.fetch_add(weights.kept, Ordering::Relaxed) + weights.kept;
            if step + 1 == STEPS {
                weight = counted;
                self.counted.store(0, Ordering::Relaxed);
            }
            if weight <= self.budget {
                return weight;
            }
        }
        // The next blocks go on.
        if weight <= self.budget + self.budget / 4 {
            return weight;
        }
        for round in 0..CHANCES {
            // By other bits in each round.
            let mut stays = |node: &mut Node| node.chance() >> round & 1 == 0;
            let mut weights = Weights::default();
            trim_below(root, 0, None, &mut stays, &mut weights);
            weight = weight.saturating_sub(weights.freed);
            if weight <= self.budget {
                return weight;
            }
        }
        root.retain(&mut |_, _| false);
        root.weight()
    }
}

/// Weights of the nodes that a trim forgot and left, in bytes.
#[derive(Debug, Default)]
struct Weights {
    freed: usize,
    kept: usize,
}

/// Goes over the nodes below `node`, or over those of one step, and forgets those for which `stays`
/// returns false and that have no others below. Returns whether a node below stays.
///
/// A step divides the children of the first node on each path that has enough of them.
fn trim_below(
    node: &mut Node,
    depth: usize,
    step: Option<usize>,
    stays: &mut dyn FnMut(&mut Node) -> bool,
    weights: &mut Weights,
) -> bool {
    let divides = step.filter(|_| node.len() >= STEPS);
    let below = if divides.is_some() { None } else { step };
    let mut any_stays = false;
    node.retain(&mut |number, child| {
        if divides.is_some_and(|step| number % STEPS != step) {
            any_stays = true;
            return true;
        }
        let is_kept = depth < TRIM_DEPTH_MAX
            && (trim_below(child, depth + 1, below, stays, weights) | stays(child));
        any_stays |= is_kept;
        if is_kept {
            weights.kept += child.weight();
        } else {
            weights.freed += child.weight();
        }
        is_kept
    });
    any_stays
}
