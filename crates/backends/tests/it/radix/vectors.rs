//! The vectors of `radix-visible.json`, whose roots and node sets were checked against Transact: as
//! they stand, with a reopening after each step, and with batches shuffled and split.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use terrane_kv::conformance::Subject;
use terrane_radix::{
    Committer, DryRunCommitter, Error, LeafReader, NodeHash, PruneOptions, Pruned, Reader, Root,
    StateChange, Store, TextTree,
};
use terrane_testkit::effort::by_effort;

use super::{TREE, fresh, reopened, tree};

type Change = StateChange<String, Vec<u8>>;

pub(super) fn vectors() -> Vec<Value> {
    let text = include_str!("../../radix-visible.json");
    let all: Vec<Value> = serde_json::from_str(text).unwrap();
    all.into_iter().filter(|vector| vector["name"] != "_about").collect()
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn change(change: &Value) -> Change {
    if let Some(key) = change.get("delete") {
        return StateChange::Delete { key: text(key).into() };
    }
    if let Some(set) = change.get("set") {
        return StateChange::Set { key: text(&set[0]).into(), value: bytes(text(&set[1])) };
    }
    let set = &change["set_pattern"];
    let count = set[1].as_u64().unwrap();
    let value = (0..count).map(|i| ((7 * i + 3) % 256) as u8).collect();
    StateChange::Set { key: text(&set[0]).into(), value }
}

pub(super) fn changes(step: &Value) -> Vec<Change> {
    step["changes"].as_array().unwrap().iter().map(change).collect()
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::InvalidAddress { .. } => "InvalidAddress",
        Error::DuplicateAddress { .. } => "DuplicateAddress",
        Error::AddressNotFound { .. } => "AddressNotFound",
        Error::PrefixNotFound { .. } => "PrefixNotFound",
        Error::UnknownRoot { .. } => "UnknownRoot",
        Error::InvalidRoot { .. } => "InvalidRoot",
        _ => "another",
    }
}

/// How batches are brought in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    AsTheyStand,
    Reversed,
    Split,
}

struct Run<'a> {
    subject: &'a mut dyn Subject,
    store: Store,
    reopens: bool,
    way: Way,
    labels: BTreeMap<String, String>,
    /// Nodes that retained versions reach, so that those of a commit can be told.
    name: String,
}

impl Run<'_> {
    fn tree(&self) -> TextTree {
        TextTree(tree(&self.store))
    }

    fn root(&self, of: &Value) -> String {
        match text(of) {
            "@init" => Root::EMPTY.to_string(),
            label => self.labels.get(label).cloned().unwrap_or_else(|| label.to_owned()),
        }
    }

    /// All nodes that retained versions reach, and the empty one.
    fn nodes(&self) -> BTreeSet<NodeHash> {
        let tree = tree(&self.store);
        let mut nodes = BTreeSet::from([NodeHash::EMPTY]);
        for version in tree.versions().unwrap() {
            nodes.extend(tree.nodes(&version.root).unwrap());
        }
        nodes
    }

    /// Commits a batch, perhaps in another order or in parts, of which only the last outcome is
    /// kept.
    fn commit(&self, from: &String, mut batch: Vec<Change>) -> Result<String, Error> {
        let tree = self.tree();
        match self.way {
            Way::AsTheyStand => tree.commit(from, &batch),
            Way::Reversed => {
                batch.reverse();
                tree.commit(from, &batch)
            }
            Way::Split => {
                tree.dry_run_commit(from, &batch)?;
                let parts: Vec<&[Change]> = batch.chunks(2).collect();
                let mut root = from.clone();
                for (at, part) in parts.iter().enumerate() {
                    let next = tree.commit(&root, part)?;
                    if at > 0 {
                        tree.0.prune(&root.parse().unwrap()).unwrap();
                    }
                    root = next;
                }
                Ok(root)
            }
        }
    }

    fn expect<T: std::fmt::Debug>(&self, step: &Value, found: Result<T, Error>) -> Option<T> {
        let context = format!("{}, {:?}: {step}", self.name, self.way);
        match (found, step.get("error")) {
            (Err(error), Some(expected)) => {
                assert_eq!(kind(&error), text(expected), "{context}: {error}");
                None
            }
            (Ok(found), None) => Some(found),
            (found, expected) => panic!("{context}: {found:?}, expected {expected:?}"),
        }
    }

    fn step(&mut self, step: &Value) {
        let context = format!("{}, {:?}: {step}", self.name, self.way);
        match text(&step["op"]) {
            "commit" => {
                let from = self.root(&step["from"]);
                let before = self.nodes();
                let found = self.commit(&from, changes(step));
                let Some(root) = self.expect(step, found) else {
                    assert_eq!(self.nodes(), before, "{context}: something was written");
                    return;
                };

                assert_eq!(root, text(&step["root"]), "{context}");
                let new: BTreeSet<NodeHash> = self.nodes().difference(&before).copied().collect();
                if let Some(count) = step.get("new_node_count") {
                    assert_eq!(new.len() as u64, count.as_u64().unwrap(), "{context}");
                }

                if let Some(expected) = step.get("new_nodes") {
                    let expected: BTreeSet<NodeHash> = hashes(expected);
                    assert_eq!(new, expected, "{context}");
                }

                if let Some(label) = step.get("label") {
                    self.labels.insert(text(label).into(), root);
                }
            }
            "compute_state_id" => {
                let from = self.root(&step["from"]);
                let found = self.tree().dry_run_commit(&from, &changes(step));
                if let Some(root) = self.expect(step, found) {
                    assert_eq!(root, text(&step["root"]), "{context}");
                }
            }
            "get" => {
                let root = self.root(&step["root"]);
                let found = self.tree().get(&root, &[text(&step["addr"]).to_owned()]);
                if let Some(found) = self.expect(step, found) {
                    let expected = step["expect"].as_str().map(bytes);
                    assert_eq!(found.into_values().next(), expected, "{context}");
                }
            }
            "leaves" => {
                let root = self.root(&step["root"]);
                let tree = self.tree();
                let found = LeafReader::leaves(&tree, &root, step["prefix"].as_str().unwrap_or(""));
                let found = found.map(|leaves| leaves.map(Result::unwrap).collect::<Vec<_>>());

                if let Some(found) = self.expect(step, found) {
                    let expected: Vec<(String, Vec<u8>)> = step["expect"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|leaf| (text(&leaf[0]).to_owned(), bytes(text(&leaf[1]))))
                        .collect();
                    assert_eq!(found, expected, "{context}");
                }
            }
            "prune" => {
                let root = self.root(&step["root"]);
                let keep_fork_points = step["keep_fork_points"].as_bool().unwrap_or(false);
                let options = PruneOptions::default().keep_fork_points(keep_fork_points).list(true);
                let before = self.nodes();
                let found = match root.parse() {
                    Ok(root) => tree(&self.store).prune_with(&root, &options),
                    Err(why) => Err(Error::InvalidRoot { text: root, why }),
                };

                let Some(found) = self.expect(step, found) else { return };
                let is_fork_point =
                    step.get("outcome").is_some_and(|outcome| outcome == "ForkPoint");
                assert_eq!(
                    matches!(found, Pruned::ForkPoint(_)),
                    is_fork_point,
                    "{context}: {found:?}"
                );
                let removed: BTreeSet<NodeHash> =
                    before.difference(&self.nodes()).copied().collect();
                if let Pruned::Removed { count, hashes } = &found {
                    assert_eq!((*count, hashes), (removed.len() as u64, &removed), "{context}");
                }
                if let Some(expected) = step.get("removed") {
                    assert_eq!(removed, hashes(expected), "{context}: {found:?}");
                }
            }
            "cleanup" => self.store.database().compact().unwrap(),
            "stored_nodes" => {
                let expected = step["expect"].as_u64().unwrap();
                assert_eq!(self.store.node_count().unwrap(), expected, "{context}");
                assert_eq!(self.nodes().len() as u64, expected, "{context}");
            }
            other => panic!("unknown step {other}"),
        }

        let report = self.store.verify().unwrap();
        assert!(report.is_clean(), "{context}: {:?}", report.problems);
    }
}

fn hashes(list: &Value) -> BTreeSet<NodeHash> {
    list.as_array().unwrap().iter().map(|hash| text(hash).parse().unwrap()).collect()
}

/// A vector of one batch as a sequence of one step.
pub(super) fn steps(vector: &Value) -> Vec<Value> {
    if let Some(steps) = vector.get("steps") {
        return steps.as_array().unwrap().clone();
    }
    let mut step = vector.clone();
    step["op"] = "commit".into();
    step["from"] = "@init".into();
    vec![step]
}

pub(super) fn check(subject: &mut dyn Subject) {
    let mut count = 0;
    // Memory takes every way through each vector, the others a part of them in turns.
    let step = if subject.is_persistent() { by_effort(3, 1) } else { 1 };
    for (number, vector) in vectors().into_iter().enumerate() {
        let ways = [
            (Way::AsTheyStand, false),
            (Way::AsTheyStand, true),
            (Way::Reversed, false),
            (Way::Split, false),
        ];
        for (way, reopens) in ways.into_iter().skip(number % step).step_by(step) {
            if reopens && !subject.is_persistent() {
                continue;
            }
            // Parts of a batch share nodes with what is retained besides them, and the parts of one
            // that is refused are not.
            if way == Way::Split && vector["kind"] != "single" {
                continue;
            }

            let store = fresh(subject);
            store.create_tree(TREE).unwrap();
            let name = text(&vector["name"]).to_owned();
            let labels = BTreeMap::new();

            let mut run = Run { subject, store, reopens, way, labels, name };
            for step in steps(&vector) {
                run.step(&step);
                if run.reopens {
                    run.store = reopened(run.subject, run.store);
                }
            }

            count += 1;
        }
    }

    assert!(count > 100 / step, "{count} runs");
}
