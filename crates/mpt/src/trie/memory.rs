//! A trie in memory: the entries and the records of nodes in two maps.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use alloy_primitives::B256;

use crate::base::error::{Error, Result};
use crate::base::path::Path;
use crate::scheme::scheme::Scheme;
use crate::trie::builder::TrieBuilder;
use crate::trie::record::Record;
use crate::trie::update::{Answer, Change, LEAVES_MAX, NodeChange, Outcome, Update, Want};

/// A trie in memory, for small uses and for tests.
///
/// ```
/// use terrane_mpt::{KeccakMpt, MemoryTrie};
///
/// let mut trie = MemoryTrie::<KeccakMpt>::default();
/// let root = trie.apply(&[(b"dog".to_vec(), Some(b"puppy".to_vec()))])?;
/// assert_eq!(trie.get(b"dog"), Some(&b"puppy"[..]));
/// assert_eq!(root, trie.root());
/// # Ok::<(), terrane_mpt::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct MemoryTrie<S> {
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    nodes: BTreeMap<Path, Arc<[u8]>>,
    root: B256,
    scheme: std::marker::PhantomData<S>,
}

impl<S: Scheme> Default for MemoryTrie<S> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            nodes: BTreeMap::new(),
            root: S::EMPTY_ROOT,
            scheme: std::marker::PhantomData,
        }
    }
}

impl<S: Scheme> MemoryTrie<S> {
    /// The root of the entries.
    #[must_use]
    pub fn root(&self) -> B256 {
        self.root
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.entries.get(key).map(Vec::as_slice)
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.entries.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))
    }

    /// The first key above `key`.
    #[must_use]
    pub fn next_key(&self, key: &[u8]) -> Option<&[u8]> {
        let above = (Bound::Excluded(key), Bound::Unbounded);
        self.entries.range::<[u8], _>(above).next().map(|(key, _)| key.as_slice())
    }

    /// The last key below `key`.
    #[must_use]
    pub fn previous_key(&self, key: &[u8]) -> Option<&[u8]> {
        let below = (Bound::Unbounded, Bound::Excluded(key));
        self.entries.range::<[u8], _>(below).next_back().map(|(key, _)| key.as_slice())
    }

    /// Sets values and deletes keys (`None`), and returns the new root. Deleting an absent key
    /// changes nothing.
    ///
    /// # Errors
    /// [`Error::KeyOrder`] for a key that is named twice; [`Error::KeyTooLong`];
    /// [`Error::EmptyValue`].
    pub fn apply(&mut self, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Result<B256> {
        let outcome = self.outcome(Update::new(self.changes(changes))?)?;
        for (key, value) in changes {
            match value {
                Some(value) => drop(self.entries.insert(key.clone(), value.clone())),
                None => drop(self.entries.remove(key)),
            }
        }
        for NodeChange { path, after, .. } in outcome.nodes {
            match after {
                Some(record) => drop(self.nodes.insert(path, record.to_bytes())),
                None => drop(self.nodes.remove(&path)),
            }
        }
        self.root = outcome.root;
        Ok(self.root)
    }

    /// The nodes on the path of a key, from the root down: the proof of its value or absence.
    ///
    /// # Errors
    /// [`Error::KeyTooLong`].
    pub fn prove(&self, key: &[u8]) -> Result<Vec<Vec<u8>>> {
        let touch = (key.to_vec(), self.get(key).map(<[u8]>::to_vec));
        let update = Update::new(self.changes(&[touch]))?.with_encodings();
        let outcome = self.outcome(update)?;
        debug_assert!(outcome.root == self.root && outcome.nodes.is_empty());
        Ok(outcome.encodings.into_iter().map(|(_, encoding)| encoding).collect())
    }

    /// Derives all nodes from the entries again and compares them with the stored ones.
    ///
    /// # Errors
    /// [`Error::Corruption`] with the path of the first node that differs.
    pub fn verify(&self) -> Result<()> {
        let mut builder = TrieBuilder::<S>::default();
        self.iter().try_for_each(|(key, value)| builder.push(key, value))?;
        let (root, nodes) = builder.finish();

        let nodes: BTreeMap<Path, Record> = nodes.into_iter().collect();
        for (path, record) in &nodes {
            if self.nodes.get(path) != Some(&record.to_bytes()) {
                return Err(Error::corruption(path, "a node that is not that of the entries"));
            }
        }
        if let Some(path) = self.nodes.keys().find(|path| !nodes.contains_key(path)) {
            return Err(Error::corruption(path, "a node without entries"));
        }
        if root != self.root {
            return Err(Error::corruption(&Path::default(), "a root that is not of the entries"));
        }
        Ok(())
    }

    fn changes(&self, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<Change> {
        let change = |(key, after): &(Vec<u8>, Option<Vec<u8>>)| Change {
            key: key.clone(),
            existed: self.entries.contains_key(key),
            after: after.clone(),
        };
        changes.iter().map(change).collect()
    }

    /// Answers all that an update wants.
    fn outcome(&self, mut update: Update<S>) -> Result<Outcome> {
        while !update.wanted().is_empty() {
            let answers = update.wanted().iter().map(|want| self.answer(want)).collect();
            update.supply(answers)?;
        }
        update.finish()
    }

    fn answer(&self, want: &Want) -> Answer {
        match want {
            Want::Node(path) => Answer::Node(self.nodes.get(path).cloned()),
            Want::Leaves(path) => {
                let (start, end) = path.key_range(S::DIGIT_BITS);
                let end = end.map_or(Bound::Unbounded, Bound::Excluded);
                let range = self.entries.range((Bound::Included(start), end));
                let leaves = range.take(LEAVES_MAX + 1);
                Answer::Leaves(leaves.map(|(key, value)| (key.clone(), value.clone())).collect())
            }
            Want::Value(path) => {
                let key = path.key(S::DIGIT_BITS);
                Answer::Value(key.and_then(|key| self.entries.get(&key).cloned()))
            }
        }
    }
}
