//! A state that has only what a witness has.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};

use crate::base::account::{Account, EMPTY_CODE_HASH, EMPTY_STORAGE_ROOT};
use crate::base::path::Path;
use crate::base::proof_error::ProofError;
use crate::proof::account_proof::slot_of_leaf;
use crate::proof::range::NodeSet;
use crate::proof::walk::{EmptyValues, walk};
use crate::state::changes::{AccountChange, ChangeSet, slot_bytes, slot_leaf};
use crate::witness::partial::{PartialTrie, PartialTrieError};
use crate::witness::witness::{Witness, WitnessError};

/// The state of a root, as far as a witness has it: a block is checked without a store.
///
/// Values and roots are those of the state, whatever the witness contains: a part that is missing
/// or wrong is an error.
///
/// ```
/// use terrane_mpt::{Account, Address, B256, ChangeSet, Options, State, StatelessState, U256};
///
/// # let folder = tempfile::tempdir()?;
/// let mut state = State::open_dir(folder.path(), &Options::default())?;
/// let alice = Address::repeat_byte(1);
/// let mut block = state.block(0, B256::ZERO)?;
/// block.set_account(alice, &Account::new(0, U256::from(7)));
/// let before = block.commit(B256::repeat_byte(1))?.block;
///
/// // The block reads, changes, and takes its witness along.
/// let mut block = state.block(1, before.hash)?;
/// let account = block.account(&alice)?.unwrap_or_default();
/// block.set_account(alice, &account.nonce(1));
/// let witness = block.witness(&[])?;
/// let root = block.commit(B256::repeat_byte(2))?.block.root;
///
/// // Somebody without a state follows.
/// let stateless = StatelessState::new(before.root, &witness);
/// let account = stateless.account(&alice)?.unwrap_or_default();
/// let mut changes = ChangeSet::default();
/// changes.set_account(alice, &account.nonce(1));
/// assert_eq!(stateless.apply(&changes)?, root);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct StatelessState {
    root: B256,
    nodes: NodeSet,
    codes: BTreeMap<B256, Bytes>,
}

/// A node that is needed and not there: the owner of its trie, where it begins, and its hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MissingNode {
    pub(crate) owner: Option<B256>,
    pub(crate) path: Path,
    pub(crate) hash: B256,
}

/// Faults of the changes of a trie: those that more nodes would end, and others.
struct Faults {
    owner: Option<B256>,
    missing: Vec<MissingNode>,
    malformed: Option<B256>,
}

impl Faults {
    fn note(&mut self, done: Result<(), PartialTrieError>) {
        match done {
            Ok(()) => {}
            Err(PartialTrieError::Missing { path, hash }) => {
                self.missing.push(MissingNode { owner: self.owner, path, hash });
            }
            Err(PartialTrieError::Malformed { hash }) => self.malformed = Some(hash),
        }
    }
}

impl StatelessState {
    /// The state of `root`, which the caller knows, from a witness, which nobody has to trust.
    #[must_use]
    pub fn new(root: B256, witness: &Witness) -> Self {
        let codes = witness.codes.iter().map(|code| (keccak256(code), code.clone()));
        Self { root, nodes: NodeSet::of(&witness.state), codes: codes.collect() }
    }

    /// A state of nodes alone.
    pub(crate) fn of_nodes(root: B256, nodes: NodeSet) -> Self {
        Self { root, nodes, codes: BTreeMap::new() }
    }

    pub(crate) fn nodes(&mut self) -> &mut NodeSet {
        &mut self.nodes
    }

    pub(crate) fn into_nodes(self) -> NodeSet {
        self.nodes
    }

    /// The root. Cost: nothing is computed.
    #[must_use]
    pub fn root(&self) -> B256 {
        self.root
    }

    /// An account; `None` if the state does not have it.
    ///
    /// # Errors
    /// [`WitnessError::MissingNode`], [`WitnessError::MalformedNode`].
    pub fn account(&self, address: &Address) -> Result<Option<Account>, WitnessError> {
        self.account_by_hash(&keccak256(address))
    }

    /// An account by the hash of its address.
    ///
    /// # Errors
    /// [`WitnessError::MissingNode`], [`WitnessError::MalformedNode`].
    pub fn account_by_hash(&self, hash: &B256) -> Result<Option<Account>, WitnessError> {
        let leaf = self.value(None, self.root, hash)?;
        let malformed = WitnessError::MalformedNode { hash: self.root };
        leaf.map(|leaf| Account::from_leaf_value(&leaf)).transpose().map_err(|_| malformed)
    }

    /// A slot; zero if it has no entry.
    ///
    /// # Errors
    /// [`WitnessError::MissingNode`], [`WitnessError::MalformedNode`].
    pub fn slot(&self, address: &Address, slot: &B256) -> Result<U256, WitnessError> {
        let owner = keccak256(address);
        let account = self.account_by_hash(&owner)?;
        let root = account.map_or(EMPTY_STORAGE_ROOT, |account| account.storage_root);
        let leaf = self.value(Some(owner), root, &keccak256(slot))?;
        // The leaf stands below this root, so a value that is none is damage of the state.
        slot_of_leaf(leaf.as_deref()).ok_or(WitnessError::MalformedNode { hash: root })
    }

    /// Code by its hash. The hash of no code has the empty code.
    ///
    /// # Errors
    /// [`WitnessError::MissingCode`].
    pub fn code(&self, hash: &B256) -> Result<Bytes, WitnessError> {
        if *hash == EMPTY_CODE_HASH {
            return Ok(Bytes::new());
        }
        self.codes.get(hash).cloned().ok_or(WitnessError::MissingCode { hash: *hash })
    }

    /// Returns the root after changes. The state stays as it is.
    ///
    /// Cost: no I/O; encodes and hashes the nodes that the changes reach.
    ///
    /// # Errors
    /// [`WitnessError::MissingNode`], [`WitnessError::MalformedNode`],
    /// [`WitnessError::SlotWithoutAccount`].
    pub fn apply(&self, changes: &ChangeSet) -> Result<B256, WitnessError> {
        let mut missing = Vec::new();
        let root = self.try_apply(changes, &mut missing)?;
        match missing.into_iter().next() {
            Some(MissingNode { owner, path, hash }) => {
                Err(WitnessError::MissingNode { account: owner, path, hash })
            }
            None => Ok(root),
        }
    }

    /// Returns the root after changes, which is that only if no node was missing.
    pub(crate) fn try_apply(
        &self,
        changes: &ChangeSet,
        missing: &mut Vec<MissingNode>,
    ) -> Result<B256, WitnessError> {
        let mut leaves = Vec::new();
        for (hash, change) in &changes.accounts {
            let before = match self.account_by_hash(hash) {
                Err(WitnessError::MissingNode { account: owner, path, hash }) => {
                    missing.push(MissingNode { owner, path, hash });
                    continue;
                }
                before => before?,
            };
            let storage_root = self.storage_root_after(hash, before, change, missing)?;
            let after = change.account.after(before);
            let has_slots = change.slots.values().any(|value| !value.is_zero());
            if after.is_none() && has_slots {
                return Err(WitnessError::SlotWithoutAccount { account: *hash });
            }
            let after = after.map(|account| account.storage_root(storage_root));
            leaves.push((*hash, after.map(|account| account.leaf_value())));
        }
        self.root_after(None, self.root, leaves, missing)
    }

    fn storage_root_after(
        &self,
        owner: &B256,
        before: Option<Account>,
        change: &AccountChange,
        missing: &mut Vec<MissingNode>,
    ) -> Result<B256, WitnessError> {
        let root = match before {
            Some(account) if !change.is_wiped => account.storage_root,
            _ => EMPTY_STORAGE_ROOT,
        };
        let leaf = |(slot, value): (&B256, &U256)| {
            (*slot, (!value.is_zero()).then(|| slot_leaf(&slot_bytes(value))))
        };
        let leaves = change.slots.iter().map(leaf).collect();
        self.root_after(Some(*owner), root, leaves, missing)
    }

    /// The root of a trie after new leaves, and after those that go.
    fn root_after(
        &self,
        owner: Option<B256>,
        root: B256,
        leaves: Vec<(B256, Option<Vec<u8>>)>,
        missing: &mut Vec<MissingNode>,
    ) -> Result<B256, WitnessError> {
        let mut trie = PartialTrie::new(&self.nodes, root);
        let mut faults = Faults { owner, missing: Vec::new(), malformed: None };
        let mut removed = Vec::new();
        for (key, leaf) in leaves {
            match leaf {
                Some(leaf) => faults.note(trie.insert(&key, leaf)),
                None => removed.push(key),
            }
        }
        for key in removed {
            faults.note(trie.remove(&key));
        }

        if let Some(hash) = faults.malformed {
            return Err(WitnessError::MalformedNode { hash });
        }
        if faults.missing.is_empty() {
            return Ok(trie.root());
        }
        missing.append(&mut faults.missing);
        Ok(root)
    }

    /// The value of a key of a trie.
    fn value(
        &self,
        owner: Option<B256>,
        root: B256,
        key: &B256,
    ) -> Result<Option<Vec<u8>>, WitnessError> {
        if root == EMPTY_STORAGE_ROOT {
            return Ok(None);
        }
        let mut node = |hash| self.nodes.get(hash);
        match walk(root, key.as_slice(), EmptyValues::Refused, &mut node) {
            Ok(value) => Ok(value),
            Err(ProofError::MissingNode { hash }) => {
                // The caller knows the path of a node that it looks for only by its key.
                let path = Path::of_key(key.as_slice(), 4);
                Err(WitnessError::MissingNode { account: owner, path, hash })
            }
            Err(ProofError::MalformedNode { hash }) => Err(WitnessError::MalformedNode { hash }),
            Err(_) => Err(WitnessError::MalformedNode { hash: root }),
        }
    }
}
