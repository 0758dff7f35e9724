//! Traits of Transact, one for each capability, and a tree under its types: state ids and keys as
//! text.
//!
//! [`Tree`] implements the traits with [`Root`] and [`Address`], [`TextTree`] with lower-case hex
//! text. Each call checks its text in one order: the root's form, whether the root is known, the
//! addresses.

use std::collections::BTreeMap;

use crate::base::address::{Address, AddressError, Prefix};
use crate::base::change::Change;
use crate::base::error::{Error, Result};
use crate::base::node_hash::Root;
use crate::store::leaves::Leaves;
use crate::store::store::Tree;
use crate::store::transaction::{PruneOptions, Pruned};

/// A state that is addressed by keys.
pub trait State {
    /// Name of a version of the state.
    type StateId;
    /// Name of a value.
    type Key;
    /// A value.
    type Value;
}

/// A change of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StateChange<K, V> {
    /// Sets a value.
    Set {
        /// Its key.
        key: K,
        /// The value.
        value: V,
    },
    /// Removes the value of a key.
    Delete {
        /// The key.
        key: K,
    },
}

/// Applies changes and retains the outcome.
pub trait Committer: State {
    /// Applies changes to a state; returns the new one.
    ///
    /// # Errors
    /// Those of [`Tree::commit`].
    fn commit(
        &self,
        state_id: &Self::StateId,
        changes: &[StateChange<Self::Key, Self::Value>],
    ) -> Result<Self::StateId>;
}

/// Computes the outcome of changes without storing it.
pub trait DryRunCommitter: State {
    /// The state that changes would give.
    ///
    /// # Errors
    /// Those of [`Tree::compute_root`].
    fn dry_run_commit(
        &self,
        state_id: &Self::StateId,
        changes: &[StateChange<Self::Key, Self::Value>],
    ) -> Result<Self::StateId>;
}

/// Reads values.
pub trait Reader: State {
    /// The values of those keys that have one.
    ///
    /// # Errors
    /// Those of [`Tree::get`].
    fn get(
        &self,
        state_id: &Self::StateId,
        keys: &[Self::Key],
    ) -> Result<BTreeMap<Self::Key, Self::Value>>;
}

/// Reads values in the order of their keys.
pub trait LeafReader: State {
    /// A prefix of keys.
    type Prefix: ?Sized;

    /// The keys and values below a prefix, lazily.
    ///
    /// # Errors
    /// Those of [`Tree::leaves`].
    fn leaves(
        &self,
        state_id: &Self::StateId,
        prefix: &Self::Prefix,
    ) -> Result<impl Iterator<Item = Result<(Self::Key, Self::Value)>>>;
}

/// Removes states, as Transact does: fork points stay.
pub trait Pruner: State {
    /// Prunes states in their order; returns the hashes of the removed nodes.
    ///
    /// # Errors
    /// Those of [`Tree::prune`].
    fn prune(&self, state_ids: &[Self::StateId]) -> Result<Vec<Self::StateId>>;
}

impl State for Tree {
    type StateId = Root;
    type Key = Address;
    type Value = Vec<u8>;
}

fn change_of((key, value): (Address, Option<&Vec<u8>>)) -> Change {
    value.map_or(Change::Delete(key), |value| Change::Set(key, value.clone()))
}

impl<K, V> StateChange<K, V> {
    fn parts(&self) -> (&K, Option<&V>) {
        match self {
            Self::Set { key, value } => (key, Some(value)),
            Self::Delete { key } => (key, None),
        }
    }
}

fn changes_of(changes: &[StateChange<Address, Vec<u8>>]) -> Vec<Change> {
    changes.iter().map(StateChange::parts).map(|(key, value)| change_of((*key, value))).collect()
}

impl Committer for Tree {
    fn commit(&self, root: &Root, changes: &[StateChange<Address, Vec<u8>>]) -> Result<Root> {
        Ok(Self::commit(self, root, &changes_of(changes))?.root)
    }
}

impl DryRunCommitter for Tree {
    fn dry_run_commit(
        &self,
        root: &Root,
        changes: &[StateChange<Address, Vec<u8>>],
    ) -> Result<Root> {
        self.compute_root(root, &changes_of(changes))
    }
}

impl Reader for Tree {
    fn get(&self, root: &Root, keys: &[Address]) -> Result<BTreeMap<Address, Vec<u8>>> {
        let values = Self::get(self, root, keys)?;
        let pairs = keys.iter().zip(values);
        Ok(pairs.filter_map(|(key, value)| Some((*key, value?))).collect())
    }
}

impl LeafReader for Tree {
    type Prefix = Prefix;

    fn leaves(
        &self,
        root: &Root,
        prefix: &Prefix,
    ) -> Result<impl Iterator<Item = Result<(Address, Vec<u8>)>>> {
        Self::leaves(self, root, prefix)
    }
}

impl Pruner for Tree {
    fn prune(&self, roots: &[Root]) -> Result<Vec<Root>> {
        let options = PruneOptions { keep_fork_points: true, list: true };
        let mut removed = Vec::new();
        for root in roots {
            if let Pruned::Removed { hashes, .. } = self.prune_with(root, &options)? {
                removed.extend(hashes);
            }
        }
        Ok(removed)
    }
}

/// A tree whose roots, addresses and prefixes are lower-case hex text.
#[derive(Debug, Clone)]
pub struct TextTree(pub Tree);

fn root_of(text: &str) -> Result<Root> {
    text.parse().map_err(|why| Error::InvalidRoot { text: text.to_owned(), why })
}

fn invalid(text: &str, index: Option<usize>) -> impl FnOnce(AddressError) -> Error {
    let text = text.to_owned();
    move |why| Error::InvalidAddress { text, index, why }
}

impl TextTree {
    /// Parses a root, which must be known before anything else is looked at.
    fn known(&self, text: &str) -> Result<Root> {
        let root = root_of(text)?;
        self.0.open(&root)?;
        Ok(root)
    }

    fn changes(changes: &[StateChange<String, Vec<u8>>]) -> Result<Vec<Change>> {
        let change = |(index, change): (usize, &StateChange<String, Vec<u8>>)| {
            let (key, value) = change.parts();
            Ok(change_of((key.parse().map_err(invalid(key, Some(index)))?, value)))
        };
        changes.iter().enumerate().map(change).collect()
    }

    /// The leaves below a prefix.
    ///
    /// # Errors
    /// [`Error::InvalidRoot`], [`Error::InvalidAddress`], and as [`Tree::leaves`].
    pub fn leaves_below(&self, root: &str, prefix: &str) -> Result<Leaves<'static>> {
        let root = self.known(root)?;
        self.0.leaves(&root, &prefix.parse().map_err(invalid(prefix, None))?)
    }
}

impl State for TextTree {
    type StateId = String;
    type Key = String;
    type Value = Vec<u8>;
}

impl Committer for TextTree {
    fn commit(&self, root: &String, changes: &[StateChange<String, Vec<u8>>]) -> Result<String> {
        let root = self.known(root)?;
        Ok(self.0.commit(&root, &Self::changes(changes)?)?.root.to_string())
    }
}

impl DryRunCommitter for TextTree {
    fn dry_run_commit(
        &self,
        root: &String,
        changes: &[StateChange<String, Vec<u8>>],
    ) -> Result<String> {
        let root = self.known(root)?;
        Ok(self.0.compute_root(&root, &Self::changes(changes)?)?.to_string())
    }
}

impl Reader for TextTree {
    fn get(&self, root: &String, keys: &[String]) -> Result<BTreeMap<String, Vec<u8>>> {
        let root = self.known(root)?;
        let address = |key: &String| key.parse().map_err(invalid(key, None));
        let addresses = keys.iter().map(address).collect::<Result<Vec<Address>>>()?;
        let found = Reader::get(&self.0, &root, &addresses)?;
        Ok(found.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
    }
}

impl LeafReader for TextTree {
    type Prefix = str;

    fn leaves(
        &self,
        root: &String,
        prefix: &str,
    ) -> Result<impl Iterator<Item = Result<(String, Vec<u8>)>>> {
        let leaves = self.leaves_below(root, prefix)?;
        Ok(leaves.map(|leaf| leaf.map(|(address, value)| (address.to_string(), value))))
    }
}

impl Pruner for TextTree {
    fn prune(&self, roots: &[String]) -> Result<Vec<String>> {
        let roots = roots.iter().map(|root| root_of(root)).collect::<Result<Vec<_>>>()?;
        Ok(Pruner::prune(&self.0, &roots)?.iter().map(ToString::to_string).collect())
    }
}
