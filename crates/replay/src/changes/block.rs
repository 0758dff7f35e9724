//! A block under construction: its net change, and what it expects of the state before it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use sha2::{Digest as _, Sha256};

use crate::engines::engine::{Result, State};
use crate::hex;
use crate::ledger::history::NetChange;

/// Identifies a block together with everything before it.
pub(super) type ChainId = [u8; 32];

/// The chain of no blocks.
pub(super) const EMPTY_CHAIN: ChainId = [0; 32];

/// Expectation of a line about the state before the block.
#[derive(Debug)]
enum Expectation {
    /// A `get`.
    Value(Option<Vec<u8>>),
    /// A `del` of a key that the block has not touched.
    Present,
    /// A `del` of a key that the block itself has deleted.
    Never,
}

/// An expectation that does not hold.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Disagreement {
    pub(super) line: u64,
    pub(super) check: String,
    pub(super) expected: String,
    pub(super) found: String,
}

/// A block between `begin` and `end`.
#[derive(Debug)]
pub(super) struct OpenBlock {
    pub(super) number: u64,
    /// The last word on each key.
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    expectations: Vec<(u64, Vec<u8>, Expectation)>,
    pub(super) puts: u64,
    pub(super) deletes: u64,
    pub(super) gets: u64,
}

impl OpenBlock {
    pub(super) fn new(number: u64) -> Self {
        let changes = BTreeMap::new();
        let expectations = Vec::new();
        Self { number, changes, expectations, puts: 0, deletes: 0, gets: 0 }
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.puts += 1;
        self.changes.insert(key, Some(value));
    }

    pub(super) fn delete(&mut self, line: u64, key: Vec<u8>) {
        self.deletes += 1;
        match self.changes.entry(key) {
            Entry::Vacant(entry) => {
                // What the state has is known only when the block ends.
                self.expectations.push((line, entry.key().clone(), Expectation::Present));
                entry.insert(None);
            }
            Entry::Occupied(mut entry) => {
                if entry.insert(None).is_none() {
                    self.expectations.push((line, entry.key().clone(), Expectation::Never));
                }
            }
        }
    }

    pub(super) fn get(&mut self, line: u64, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.gets += 1;
        self.expectations.push((line, key, Expectation::Value(value)));
    }

    /// Identifies the chain that this block makes of `parent`.
    pub(super) fn chain_id(&self, parent: &ChainId) -> ChainId {
        let mut hash = Sha256::new();
        hash.update(parent);
        hash.update(self.number.to_le_bytes());

        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };

        for (key, value) in &self.changes {
            add(key);
            add(&[u8::from(value.is_some())]);
            add(value.as_deref().unwrap_or_default());
        }

        hash.finalize().into()
    }

    /// Returns the net change in key order; or else the first line that the state contradicts.
    pub(super) fn settle(
        self,
        state: &dyn State,
    ) -> Result<std::result::Result<Vec<NetChange>, Disagreement>> {
        let asked = self.expectations.iter().map(|(_, key, _)| key);
        // Each key is read once, however often the block names it.
        let mut keys: Vec<&[u8]> = self.changes.keys().chain(asked).map(Vec::as_slice).collect();
        keys.sort_unstable();
        keys.dedup();
        let values = state.get_many(&keys)?;
        let mut before: BTreeMap<Vec<u8>, Option<Vec<u8>>> =
            keys.into_iter().map(<[u8]>::to_vec).zip(values).collect();

        for (line, key, expectation) in &self.expectations {
            let found = before.get(key).cloned().flatten();
            let (record, expected, holds) = match expectation {
                Expectation::Value(value) => ("get", describe(value.as_deref()), found == *value),
                Expectation::Present => ("del", "a value".to_owned(), found.is_some()),
                Expectation::Never => ("del", "a value".to_owned(), false),
            };

            if !holds {
                let found = match expectation {
                    Expectation::Never => None,
                    _ => found,
                };
                return Ok(Err(Disagreement {
                    line: *line,
                    check: format!("{record} {}", spell(key)),
                    expected,
                    found: describe(found.as_deref()),
                }));
            }
        }

        let changes = self.changes.into_iter().map(|(key, new)| {
            let old = before.remove(&key).flatten();
            NetChange { key, old, new }
        });

        // A change to the same value is none: an undo record would only take room.
        Ok(Ok(changes.filter(|change| change.old != change.new).collect()))
    }
}

/// Bytes as the format spells them.
fn spell(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".to_owned() } else { hex::encode(bytes) }
}

fn describe(value: Option<&[u8]>) -> String {
    value.map_or_else(|| "nothing".to_owned(), spell)
}
