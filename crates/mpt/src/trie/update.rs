//! The update: a batch of changes to a stored trie, as a state machine without I/O.
//!
//! **Down.** A *visit* stands at the path of a node that the changes touch. It wants the record of
//! the node or the entries below it; the answer divides its changes among further visits, one level
//! down. All visits of a level are wanted together, so that the caller reads them in one batch.
//! A branch that may be left with one child, which no change touches, visits this child, too: the
//! child then takes the place of the branch.
//!
//! **Up.** [`Update::finish`] turns visits into subtrees from the last to the first, so children
//! come before parents. A subtree does not depend on its place; its parent plans it for the place
//! (leaf suffix, extension or none). The plans, of several updates together, are hashed level by
//! level, and records follow from them.
//!
//! A change that leaves its entry as it is *touches* the entry: nothing is written, and the
//! encodings of the nodes on its path are a proof.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use alloy_primitives::B256;

use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::base::workers::Workers;
use crate::scheme::scheme::{CHILDREN_MAX, Scheme};
use crate::trie::builder::{Stack, check_entry, path_of};
use crate::trie::nodes::{Child, Children, Nodes, Subtree};
use crate::trie::record::{BranchRecord, LinkRecord, Record, RecordedChild};

/// Most entries below a path at which no record stands: those of an embedded branch, which has
/// fewer than 32 bytes.
pub const LEAVES_MAX: usize = 16;

/// A change of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its key.
    pub key: Vec<u8>,
    /// Whether the trie has the entry before the update.
    pub existed: bool,
    /// The value after the update, which may be the value before; `None` if there is none.
    pub after: Option<Vec<u8>>,
}

/// A thing that an update needs to know of the trie as it is before the update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Want {
    /// The bytes of the record at a path, if there is one.
    Node(Path),
    /// The entries whose paths begin with a path, in order; no more than `LEAVES_MAX + 1`.
    Leaves(Path),
    /// The value of the key that ends at a path.
    Value(Path),
}

/// The answer to a [`Want`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To [`Want::Node`].
    Node(Option<Arc<[u8]>>),
    /// To [`Want::Leaves`]: keys and values.
    Leaves(Vec<(Vec<u8>, Vec<u8>)>),
    /// To [`Want::Value`].
    Value(Option<Vec<u8>>),
}

/// The outcome of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The root after the update.
    pub root: B256,
    /// The records that change, by path.
    pub nodes: Vec<NodeChange>,
    /// The encodings of nodes on the paths of the changed keys, by the path where each begins, as
    /// the trie is after the update. Empty unless [`Update::with_encodings`] asked for them.
    pub encodings: Vec<(Path, Vec<u8>)>,
}

/// A change of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeChange {
    /// Its path.
    pub path: Path,
    /// The record before the update; `None` if it is new.
    pub before: Option<Record>,
    /// The record after the update; `None` if it goes.
    pub after: Option<Record>,
}

/// A batch of changes on its way through the levels of a trie.
#[derive(Debug)]
pub struct Update<S> {
    /// Sorted by path.
    changes: Vec<Keyed>,
    /// A child stands behind its parent.
    visits: Vec<Visit>,
    /// Wants of the last level, and the visits that they are for.
    wanted: Vec<Want>,
    waiting: Vec<usize>,
    has_encodings: bool,
    /// Whether entries may have empty values.
    is_of_any_values: bool,
    scheme: std::marker::PhantomData<S>,
}

/// A change with the path of its key.
#[derive(Debug)]
struct Keyed {
    path: Path,
    existed: bool,
    after: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Visit {
    path: Path,
    changes: Range<usize>,
    /// The hash that the parent states for the node here, where it states one.
    hash: Option<B256>,
    node: Node,
}

/// A thing that stands at the path of a visit.
#[derive(Debug)]
enum Node {
    /// The answer is still to come.
    Wanted,
    Branch {
        record: BranchRecord,
        /// Digits and visits.
        children: Vec<(u8, usize)>,
        /// The visit that knows the value of the key that ends here.
        value: Option<usize>,
    },
    Link {
        record: LinkRecord,
        /// The visit of the branch, if changes touch it.
        below: Option<usize>,
    },
    /// The entries here, before the changes: all, or none of those that the changes name.
    Entries(Vec<(Path, Vec<u8>)>),
    /// A branch that no change touches.
    Untouched(B256),
}

impl<S: Scheme> Update<S> {
    /// Begins an update of a trie, with changes in any order.
    ///
    /// # Errors
    /// [`Error::KeyOrder`] for a key that is named twice; [`Error::KeyTooLong`];
    /// [`Error::EmptyValue`].
    pub fn new(changes: Vec<Change>) -> Result<Self> {
        Ok(Self::of_changes(changes, false)?.of_root())
    }

    /// Begins an update of a trie whose keys have one length and whose values may be empty.
    pub(crate) fn new_of_any_values(changes: Vec<Change>) -> Result<Self> {
        Ok(Self::of_changes(changes, true)?.of_root())
    }

    /// Wants the root.
    fn of_root(mut self) -> Self {
        let all = 0..self.changes.len();
        self.visit(Want::Node(Path::default()), all, None);
        self
    }

    /// Begins an update of a trie that is known to have no entries: it wants nothing.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn on_empty(changes: Vec<Change>) -> Result<Self> {
        let mut update = Self::of_changes(changes, false)?;
        let all = 0..update.changes.len();
        update.visit_entries(Path::default(), all, Vec::new());
        Ok(update)
    }

    /// Keeps the encodings of the nodes on the paths of the changed keys.
    #[must_use]
    pub fn with_encodings(self) -> Self {
        Self { has_encodings: true, ..self }
    }

    fn of_changes(changes: Vec<Change>, is_of_any_values: bool) -> Result<Self> {
        for (index, change) in changes.iter().enumerate() {
            let checked = change.after.as_deref().filter(|_| !is_of_any_values);
            check_entry(index, &change.key, checked)?;
        }
        let key = |Change { key, existed, after }: Change| {
            let path = Path::of_key(&key, S::DIGIT_BITS);
            Keyed { path, existed, after }
        };
        let mut changes: Vec<_> = changes.into_iter().map(key).collect();
        changes.sort_unstable_by(|left, right| left.path.cmp(&right.path));
        let twice = changes.windows(2).position(|pair| pair[0].path == pair[1].path);
        if let Some(index) = twice {
            return Err(Error::KeyOrder { index: index + 1 });
        }
        Ok(Self {
            changes,
            visits: Vec::new(),
            wanted: Vec::new(),
            waiting: Vec::new(),
            has_encodings: false,
            is_of_any_values,
            scheme: std::marker::PhantomData,
        })
    }

    /// The things that the update needs to know next; none if it can be finished.
    #[must_use]
    pub fn wanted(&self) -> &[Want] {
        &self.wanted
    }

    /// Takes the answers to all that is [`wanted`](Self::wanted), in its order.
    ///
    /// # Errors
    /// [`Error::Corruption`] if an answer breaks the format or contradicts another one;
    /// [`Error::AnswerMismatch`]. The update is of no use then.
    pub fn supply(&mut self, answers: Vec<Answer>) -> Result<()> {
        let wanted = std::mem::take(&mut self.wanted);
        let waiting = std::mem::take(&mut self.waiting);
        if answers.len() != wanted.len() {
            return Err(Error::AnswerMismatch);
        }

        for ((want, visit), answer) in wanted.into_iter().zip(waiting).zip(answers) {
            match (want, answer) {
                (Want::Node(path), Answer::Node(None)) if path.is_empty() => {
                    // Without a record, the whole trie is a leaf or so short that it is embedded.
                    self.wanted.push(Want::Leaves(path));
                    self.waiting.push(visit);
                }
                (Want::Node(path), Answer::Node(None)) => {
                    return Err(Error::corruption(&path, "a missing record"));
                }
                (Want::Node(path), Answer::Node(Some(bytes))) => {
                    match Record::from_bytes::<S>(&path, bytes)? {
                        Record::Branch(record) => self.enter_branch(visit, record)?,
                        Record::Link(record) => self.enter_link(visit, record)?,
                    }
                }
                (Want::Leaves(path), Answer::Leaves(leaves)) => {
                    self.enter_leaves(visit, &path, leaves)?;
                }
                (Want::Value(path), Answer::Value(Some(value))) => {
                    self.visits[visit].node = Node::Entries(vec![(path, value)]);
                }
                (Want::Value(path), Answer::Value(None)) => {
                    return Err(Error::corruption(&path, "a missing entry"));
                }
                _ => return Err(Error::AnswerMismatch),
            }
        }
        Ok(())
    }

    /// Adds a visit that waits for an answer.
    fn visit(&mut self, want: Want, changes: Range<usize>, hash: Option<B256>) -> usize {
        let (Want::Node(path) | Want::Leaves(path) | Want::Value(path)) = &want;
        let visit = Visit { path: path.clone(), changes, hash, node: Node::Wanted };
        self.visits.push(visit);
        self.wanted.push(want);
        self.waiting.push(self.visits.len() - 1);
        self.visits.len() - 1
    }

    /// Adds a visit to entries that are known.
    fn visit_entries(
        &mut self,
        path: Path,
        changes: Range<usize>,
        entries: Vec<(Path, Vec<u8>)>,
    ) -> usize {
        self.visits.push(Visit { path, changes, hash: None, node: Node::Entries(entries) });
        self.visits.len() - 1
    }

    /// Divides the changes of a visit among the children of the branch at its path.
    fn enter_branch(&mut self, visit: usize, record: BranchRecord) -> Result<()> {
        let Visit { path, changes, hash, .. } = &self.visits[visit];
        let (path, mut changes, hash) = (path.clone(), changes.clone(), *hash);
        if let (true, Some(hash)) = (changes.is_empty(), hash) {
            self.visits[visit].node = Node::Untouched(hash);
            return Ok(());
        }

        // The key that ends here comes before all that go on.
        let ends_here = |change: &Keyed| change.path.len() == path.len();
        let value = if self.changes[changes.clone()].first().is_some_and(ends_here) {
            changes.start += 1;
            let own = changes.start - 1..changes.start;
            if self.changes[own.start].existed != record.has_value() {
                return Err(Error::corruption(&path, "a branch and an entry that disagree"));
            }
            Some(self.visit_entries(path.clone(), own, Vec::new()))
        } else if record.has_value() {
            let nothing = changes.start..changes.start;
            Some(self.visit(Want::Value(path.clone()), nothing, None))
        } else {
            None
        };

        let mut children = Vec::new();
        let mut fate = Fate::default();
        fate.note_value(
            record.has_value(),
            value.map(|value| &self.changes[self.visits[value].changes.clone()]),
        );
        for digit in 0..CHILDREN_MAX as u8 {
            let slice = self.slice(&changes, path.len(), digit);
            changes.start = slice.end;
            let child = record.child(digit);
            fate.note(child, digit, &self.changes[slice.clone()]);

            let is_needed = !slice.is_empty() || child == RecordedChild::Flat;
            if is_needed {
                let visit = self.enter_child(path.child(digit), slice, child)?;
                children.push((digit, visit));
            }
        }

        // The only child that will surely be left takes the place of the branch.
        if let Some(digit) = fate.heir() {
            let nothing = changes.end..changes.end;
            let visit = self.enter_child(path.child(digit), nothing, record.child(digit))?;
            children.push((digit, visit));
        }
        self.visits[visit].node = Node::Branch { record, children, value };
        Ok(())
    }

    /// The changes at the head of `changes` that have `digit` at `depth`.
    fn slice(&self, changes: &Range<usize>, depth: usize, digit: u8) -> Range<usize> {
        let has_digit = |change: &&Keyed| change.path[depth] == digit;
        let count = self.changes[changes.clone()].iter().take_while(has_digit).count();
        changes.start..changes.start + count
    }

    /// Visits a child that its branch records.
    fn enter_child(
        &mut self,
        path: Path,
        changes: Range<usize>,
        child: RecordedChild,
    ) -> Result<usize> {
        let existed = self.changes[changes.clone()].iter().filter(|change| change.existed).count();
        match child {
            RecordedChild::None if 0 < existed => {
                Err(Error::corruption(&path, "an entry that its branch does not have"))
            }
            RecordedChild::None => Ok(self.visit_entries(path, changes, Vec::new())),
            RecordedChild::Leaf(_) if 1 < existed => {
                Err(Error::corruption(&path, "several entries where there is one leaf"))
            }
            // The leaf is the entry that changes, so nothing else is here.
            RecordedChild::Leaf(_) if existed == 1 => {
                Ok(self.visit_entries(path, changes, Vec::new()))
            }
            RecordedChild::Leaf(hash) => Ok(self.visit(Want::Leaves(path), changes, Some(hash))),
            RecordedChild::Flat => Ok(self.visit(Want::Leaves(path), changes, None)),
            RecordedChild::Stored(hash) => Ok(self.visit(Want::Node(path), changes, Some(hash))),
        }
    }

    /// Follows an extension, if changes do.
    fn enter_link(&mut self, visit: usize, record: LinkRecord) -> Result<()> {
        let Visit { path, changes, .. } = &self.visits[visit];
        let target = path.join(&record.digits);

        let start = changes.start;
        let changes = &self.changes[changes.clone()];
        let first = changes.partition_point(|change| change.path < target);
        let inside = changes[first..].iter().take_while(|change| change.path.starts_with(&target));
        let inside = start + first..start + first + inside.count();

        let outside = changes.iter().filter(|change| !change.path.starts_with(&target));
        if outside.clone().any(|change| change.existed) {
            return Err(Error::corruption(path, "an entry beside an extension"));
        }
        let below =
            (!inside.is_empty()).then(|| self.visit(Want::Node(target), inside, Some(record.hash)));
        self.visits[visit].node = Node::Link { record, below };
        Ok(())
    }

    fn enter_leaves(
        &mut self,
        visit: usize,
        path: &Path,
        leaves: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<()> {
        let corrupt = |what| Err(Error::corruption(path, what));
        let Visit { changes, hash, .. } = &self.visits[visit];
        // The root may be the trie of no entries; a leaf is one.
        let least = usize::from(!path.is_empty());
        let most = if hash.is_some() { 1 } else { LEAVES_MAX };
        if leaves.len() < least || most < leaves.len() {
            return corrupt("entries that do not fit the recorded nodes");
        }

        let mut entries: Vec<(Path, Vec<u8>)> = Vec::with_capacity(leaves.len());
        for (key, value) in leaves {
            let leaf = Path::of_key(&key, S::DIGIT_BITS);
            let is_value = self.is_of_any_values || !value.is_empty();
            if !leaf.starts_with(path) || !is_value {
                return corrupt("an entry that does not belong there");
            }
            if entries.last().is_some_and(|(last, _)| leaf <= *last) {
                return corrupt("entries that are not in order");
            }
            entries.push((leaf, value));
        }

        let is_there = |change: &Keyed| entries.iter().any(|(path, _)| *path == change.path);
        if self.changes[changes.clone()].iter().any(|change| change.existed != is_there(change)) {
            return corrupt("an entry that was read twice and differs");
        }
        self.visits[visit].node = Node::Entries(entries);
        Ok(())
    }

    /// Computes the root and the records that change.
    ///
    /// # Errors
    /// [`Error::AnswerMismatch`] if something is still wanted; [`Error::Corruption`] if the records
    /// that were read contradict the changes.
    pub fn finish(self) -> Result<Outcome> {
        let mut outcomes = Self::finish_all(vec![self], &Workers::caller())?;
        Ok(outcomes.pop().expect("an outcome of each update"))
    }

    /// Finishes updates of several tries, whose nodes are hashed together; outcomes in their order.
    ///
    /// # Errors
    /// The errors of [`finish`](Self::finish).
    pub(crate) fn finish_all(updates: Vec<Self>, workers: &Workers) -> Result<Vec<Outcome>> {
        let has_encodings = updates.iter().any(|update| update.has_encodings);
        let mut nodes = if has_encodings { Nodes::with_encodings() } else { Nodes::default() };
        let planned = updates.into_iter().map(|update| update.plan(&mut nodes));
        let planned = planned.collect::<Result<Vec<_>>>()?;

        nodes.hash::<S>(workers);
        Ok(planned.into_iter().map(|planned| planned.outcome::<S>(&mut nodes)).collect())
    }

    /// The number of nodes and entries that the update has visited.
    pub(crate) fn visits(&self) -> usize {
        self.visits.len()
    }

    /// Replaces the values of the changes, in the order of their keys.
    ///
    /// Whether an entry is there after the update stays as it was: what was wanted depends on it.
    pub(crate) fn replace_values(&mut self, values: impl Iterator<Item = Option<Vec<u8>>>) {
        let mut values = values.fuse();
        for change in &mut self.changes {
            let value = values.next().flatten();
            assert_eq!(value.is_some(), change.after.is_some(), "the entry stays or goes");
            change.after = value;
        }
        assert!(values.next().is_none(), "a value for each change");
    }

    /// Plans the nodes of the trie after the update.
    fn plan(self, nodes: &mut Nodes) -> Result<Planned> {
        if !self.wanted.is_empty() {
            return Err(Error::AnswerMismatch);
        }
        let Self { mut changes, visits, has_encodings, .. } = self;
        let first = nodes.count();
        let mut subtrees: Vec<Subtree> = vec![Subtree::Empty; visits.len()];
        let mut before = Vec::with_capacity(visits.len());

        for (index, visit) in visits.into_iter().enumerate().rev() {
            let Visit { path, changes: own, node, .. } = visit;
            let own = &mut changes[own];
            subtrees[index] = match node {
                Node::Wanted => unreachable!("nothing is wanted any more"),
                Node::Untouched(hash) => Subtree::Branch { path, node: Child::Stored(hash) },
                Node::Entries(entries) => of_entries(entries, own, nodes),
                Node::Link { record, below } => {
                    let below = below.map(|below| take(&mut subtrees, below));
                    let subtree = of_link(&path, &record, below, own, nodes);
                    before.push((path, Record::Link(record)));
                    subtree
                }
                Node::Branch { record, children, value } => {
                    let children = children
                        .into_iter()
                        .map(|(digit, child)| (digit, take(&mut subtrees, child)));
                    let children = children.collect();
                    let value = value.map(|value| take(&mut subtrees, value));
                    let subtree = of_branch(&path, &record, children, value, nodes);
                    before.push((path, Record::Branch(record)));
                    subtree
                }
            };
        }

        let top = subtrees.into_iter().next().unwrap_or(Subtree::Empty);
        let top = nodes.attach(top, 0);
        let paths = if has_encodings { changes } else { Vec::new() };
        let touched = paths.into_iter().map(|change| change.path).collect();
        Ok(Planned { top, plans: first..nodes.count(), before, has_encodings, touched })
    }
}

/// An update whose nodes are planned.
struct Planned {
    /// The topmost node.
    top: Option<Child>,
    /// The numbers of its plans.
    plans: Range<usize>,
    /// The records that were read.
    before: Vec<(Path, Record)>,
    has_encodings: bool,
    /// The paths of the changes, if encodings are wanted.
    touched: Vec<Path>,
}

impl Planned {
    /// The outcome, once the plans are hashed.
    fn outcome<S: Scheme>(self, nodes: &mut Nodes) -> Outcome {
        let Self { top, plans, before, has_encodings, touched } = self;
        let (root, embedded_root) = nodes.root::<S>(top);
        let mut encodings = Vec::new();
        if has_encodings {
            encodings = nodes.encodings_of(&plans);
            encodings.extend(embedded_root.map(|encoding| (Path::default(), encoding)));
            let is_on_a_path = |path: &Path| touched.iter().any(|key| key.starts_with(path));
            encodings.retain(|(path, _)| is_on_a_path(path));
            encodings.sort();
        }
        let nodes = differences(before, nodes.take_records(plans));
        Outcome { root, nodes, encodings }
    }
}

/// The records that differ, by path, of those before and those after.
fn differences(mut before: Vec<(Path, Record)>, mut after: Vec<(Path, Record)>) -> Vec<NodeChange> {
    let by_path = |left: &(Path, Record), right: &(Path, Record)| left.0.cmp(&right.0);
    before.sort_unstable_by(by_path);
    after.sort_unstable_by(by_path);
    debug_assert!(after.windows(2).all(|pair| pair[0].0 < pair[1].0), "a path has one node");

    let mut changes = Vec::with_capacity(after.len());
    let mut before = before.into_iter().peekable();
    let mut after = after.into_iter().peekable();
    loop {
        let order = match (before.peek(), after.peek()) {
            (None, None) => return changes,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((old, _)), Some((new, _))) => old.cmp(new),
        };
        let old = if order.is_le() { before.next() } else { None };
        let new = if order.is_ge() { after.next() } else { None };
        let (path, before, after) = match (old, new) {
            (Some((path, before)), Some((_, after))) => (path, Some(before), Some(after)),
            (Some((path, before)), None) => (path, Some(before), None),
            (None, Some((path, after))) => (path, None, Some(after)),
            (None, None) => unreachable!("one of both is left"),
        };
        if before != after {
            changes.push(NodeChange { path, before, after });
        }
    }
}

/// The expectation of which children a branch keeps.
#[derive(Debug, Default)]
struct Fate {
    /// Children and values that stay whatever the others do, but for `untouched`.
    staying: usize,
    untouched: Option<u8>,
}

impl Fate {
    fn note_value(&mut self, is_there: bool, changes: Option<&[Keyed]>) {
        let after = match changes {
            Some([change, ..]) => change.after.is_some(),
            _ => is_there,
        };
        self.staying += usize::from(after);
    }

    fn note(&mut self, child: RecordedChild, digit: u8, changes: &[Keyed]) {
        if changes.is_empty() {
            match child {
                RecordedChild::None => {}
                // It is read in any case.
                RecordedChild::Flat => self.staying += 1,
                _ if self.untouched.is_some() => self.staying += 1,
                _ => self.untouched = Some(digit),
            }
            return;
        }
        let is_filled = changes.iter().any(|change| change.after.is_some());
        let is_deleted = changes.iter().any(|change| change.existed && change.after.is_none());
        let is_kept = child != RecordedChild::None && !is_deleted;
        self.staying += usize::from(is_filled || is_kept);
    }

    /// The untouched child that may be left alone.
    fn heir(&self) -> Option<u8> {
        if self.staying == 0 { self.untouched } else { None }
    }
}

fn take(subtrees: &mut [Subtree], index: usize) -> Subtree {
    std::mem::replace(&mut subtrees[index], Subtree::Empty)
}

/// The subtree of entries after changes.
fn of_entries(entries: Vec<(Path, Vec<u8>)>, changes: &mut [Keyed], nodes: &mut Nodes) -> Subtree {
    let mut stack = Stack::default();
    let mut changes = changes.iter_mut().peekable();
    let mut entries = entries.into_iter().peekable();
    loop {
        let is_change_next = match (entries.peek(), changes.peek()) {
            (None, None) => return stack.finish(nodes),
            (Some((path, _)), Some(change)) => change.path <= *path,
            (None, Some(_)) => true,
            (Some(_), None) => false,
        };
        if !is_change_next {
            if let Some((path, value)) = entries.next() {
                stack.push(Subtree::Leaf { path, value }, nodes);
            }
            continue;
        }
        let Some(change) = changes.next() else { continue };
        // The change replaces the entry.
        entries.next_if(|(path, _)| *path == change.path);
        stack.push(leaf(change), nodes);
    }
}

/// The leaf of a change, whose value is taken.
fn leaf(change: &mut Keyed) -> Subtree {
    match change.after.take() {
        Some(value) => Subtree::Leaf { path: change.path.clone(), value },
        None => Subtree::Empty,
    }
}

/// The subtree of a branch below an extension, with new entries beside it.
fn of_link(
    path: &Path,
    record: &LinkRecord,
    below: Option<Subtree>,
    changes: &mut [Keyed],
    nodes: &mut Nodes,
) -> Subtree {
    let target = path.join(&record.digits);

    let first = changes.partition_point(|change| change.path < target);
    let is_inside = |change: &&mut Keyed| change.path.starts_with(&target);
    let mut stack = Stack::default();
    changes[..first].iter_mut().for_each(|change| stack.push(leaf(change), nodes));
    let branch = below.unwrap_or_else(|| Subtree::Branch {
        path: target.clone(),
        node: Child::Stored(record.hash),
    });
    stack.push(branch, nodes);
    let rest = changes[first..].iter_mut().skip_while(is_inside);
    rest.for_each(|change| stack.push(leaf(change), nodes));
    stack.finish(nodes)
}

/// The subtree of a branch after its children and its value.
fn of_branch(
    path: &Path,
    record: &BranchRecord,
    visited: Vec<(u8, Subtree)>,
    value: Option<Subtree>,
    nodes: &mut Nodes,
) -> Subtree {
    let value = value.filter(|value| path_of(value).is_some());
    let is_visited = |digit: u8| visited.iter().any(|(visited, _)| *visited == digit);
    let untouched = record.digits().filter(|digit| !is_visited(*digit)).count();
    let filled = visited.iter().filter(|(_, subtree)| path_of(subtree).is_some()).count();

    match untouched + filled + usize::from(value.is_some()) {
        0 => return Subtree::Empty,
        1 => {
            assert!(untouched == 0, "the last child of a branch is visited");
            let children = visited.into_iter().map(|(_, subtree)| subtree);
            let mut all = children.chain(value).filter(|subtree| path_of(subtree).is_some());
            return all.next().unwrap_or(Subtree::Empty);
        }
        _ => {}
    }

    let attach = |(digit, subtree)| (digit, nodes.attach(subtree, path.len() + 1));
    let changed = visited.into_iter().map(attach).collect();
    let children = Children::Over(record.clone(), changed);
    let value = match value {
        Some(Subtree::Leaf { value, .. }) => Some(value),
        _ => None,
    };
    nodes.close(path.clone(), children, value)
}
