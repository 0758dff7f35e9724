//! Verification and rebuilding: all nodes are derived from the entries again.
//!
//! Entries come in the order of their keys, so each trie is built bottom-up while its entries pass,
//! in constant memory. Derived records are compared with the stored ones in batches, or written to
//! a new table that takes the place of the old one.

use std::fmt;

use alloy_primitives::B256;
use terrane_lsm::{Cursor, Table, Update as TableUpdate};

use crate::base::account::Account;
use crate::base::error::{Error, Result};
use crate::base::keys::NodeKey;
use crate::base::path::Path;
use crate::scheme::keccak_mpt::{EMPTY_ROOT, KeccakMpt};
use crate::state::changes::{slot_leaf, slot_value};
use crate::state::reader::StateReader;
use crate::state::state::State;
use crate::state::tables::{Views, node_key};
use crate::trie::builder::TrieBuilder;
use crate::trie::record::Record;

/// Records that are compared or written together.
const BATCH: usize = 4096;

/// A node table of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeTable {
    /// Nodes of the account trie.
    Accounts,
    /// Nodes of storage tries.
    Storage,
}

/// A disagreement within a state.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// An entry that is none. It is left out of the trie.
    Entry {
        /// Its table.
        table: &'static str,
        /// Its key.
        key: Vec<u8>,
    },
    /// The storage root of an account is not that of its slots.
    StorageRoot {
        /// Hash of the address.
        account: B256,
        /// The root of its slots.
        computed: B256,
    },
    /// Slots whose account does not exist.
    SlotsWithoutAccount {
        /// Hash of the address.
        account: B256,
    },
    /// A node that is missing, or is not that of the entries.
    Node {
        /// Its table.
        table: NodeTable,
        /// Its key in the table.
        key: Vec<u8>,
    },
    /// Nodes that no entry accounts for.
    SurplusNodes {
        /// Their table.
        table: NodeTable,
        /// Number of stored nodes.
        stored: u64,
        /// Number of nodes that the entries have.
        derived: u64,
    },
    /// The root of the accounts is not that of the tip.
    Root {
        /// The root of the accounts.
        computed: B256,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = alloy_primitives::hex::encode::<&[u8]>;
        match self {
            Self::Entry { table, key } => write!(out, "table {table}: {} is no entry", hex(key)),
            Self::StorageRoot { account, computed } => {
                write!(out, "account {account}: its slots have the root {computed}")
            }
            Self::SlotsWithoutAccount { account } => {
                write!(out, "account {account} has slots and does not exist")
            }
            Self::Node { table, key } => {
                write!(out, "node {} of {table:?} is not that of the entries", hex(key))
            }
            Self::SurplusNodes { table, stored, derived } => {
                write!(out, "{table:?} has {stored} nodes; the entries have {derived}")
            }
            Self::Root { computed } => write!(out, "the accounts have the root {computed}"),
        }
    }
}

/// Report of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Number of accounts.
    pub accounts: u64,
    /// Number of slots.
    pub slots: u64,
    /// Number of nodes that the entries have.
    pub nodes: u64,
    /// The disagreements; the first [`PROBLEMS_MAX`] of them.
    pub problems: Vec<Problem>,
}

/// Most problems that a report lists.
pub const PROBLEMS_MAX: usize = 1000;

impl CheckReport {
    /// Whether entries, nodes and tip agree.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, problem: Problem) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// Takes the derived records of a trie.
type Sink<'a> =
    &'a mut dyn FnMut(&mut CheckReport, NodeTable, Vec<(NodeKey, Record)>) -> Result<()>;

impl State {
    /// Derives every node from the entries and compares; changes nothing.
    ///
    /// Cost: reads all accounts, slots and nodes once, nodes in batches of lookups; hashes every
    /// node; constant memory.
    ///
    /// # Errors
    /// [`Error::Store`]. Damage is in the report.
    pub fn verify(&self) -> Result<CheckReport> {
        verify(&self.tables.views()?)
    }

    /// Derives every node from the entries and puts the derived nodes in the place of the stored
    /// ones, if the entries have the root of the tip. Repairs nodes; entries are not changed.
    ///
    /// Cost: reads all accounts and slots, writes all nodes; constant memory.
    ///
    /// # Errors
    /// [`Error::RootMismatch`] if entries are damaged: then nothing was changed. [`Error::Store`];
    /// after it, or a crash, each node table is the old or the new one.
    pub fn rebuild(&mut self) -> Result<CheckReport> {
        let views = self.tables.views()?;
        let store = self.tables.store.clone();
        let mut fresh = [
            store.new_volatile_table(views.account_nodes.config())?,
            store.new_volatile_table(views.storage_nodes.config())?,
        ];
        let report = derive(&views, self.root(), &mut |_, kind, records| {
            let bytes: Vec<_> =
                records.iter().map(|(key, record)| (key, record.to_bytes())).collect();
            let updates: Vec<_> =
                bytes.iter().map(|(key, bytes)| (key, TableUpdate::Insert(bytes))).collect();
            Ok(fresh[kind as usize].write_batch(&updates)?)
        })?;

        if let Some(Problem::Root { computed }) = report.problems.last() {
            return Err(Error::RootMismatch { expected: self.root(), computed: *computed });
        }
        // The nodes that blocks have read may be the damaged ones.
        self.nodes.clear();
        let [accounts, storage] = fresh;
        self.tables.handles.account_nodes = store.replace("account_nodes", &accounts)?;
        self.tables.handles.storage_nodes = store.replace("storage_nodes", &storage)?;
        Ok(report)
    }
}

impl StateReader {
    /// Derives every node from the entries and compares, as [`State::verify`].
    ///
    /// # Errors
    /// [`Error::Store`]. Damage is in the report.
    pub fn verify(&self) -> Result<CheckReport> {
        verify(&self.views)
    }
}

fn verify(views: &Views) -> Result<CheckReport> {
    let root = views.tip()?.map_or(EMPTY_ROOT, |tip| tip.root);
    let mut derived = [0, 0];
    let mut report = derive(views, root, &mut |report, kind, records| {
        derived[kind as usize] += records.len() as u64;
        compare(table_of(views, kind), kind, &records, report)
    })?;

    for kind in [NodeTable::Accounts, NodeTable::Storage] {
        let stored = table_of(views, kind).count_exact()?;
        let derived = derived[kind as usize];
        if derived < stored {
            report.add(Problem::SurplusNodes { table: kind, stored, derived });
        }
    }
    Ok(report)
}

fn table_of(views: &Views, kind: NodeTable) -> &Table {
    match kind {
        NodeTable::Accounts => &views.account_nodes,
        NodeTable::Storage => &views.storage_nodes,
    }
}

fn compare(
    stored: &Table,
    table: NodeTable,
    records: &[(NodeKey, Record)],
    report: &mut CheckReport,
) -> Result<()> {
    let keys: Vec<&[u8]> = records.iter().map(|(key, _)| key.as_slice()).collect();
    for ((key, record), found) in records.iter().zip(stored.get_many(&keys)?) {
        if found.value() != Some(&record.to_bytes()[..]) {
            report.add(Problem::Node { table, key: key.to_vec() });
        }
    }
    Ok(())
}

/// Derives all tries from the entries. A wrong root of the accounts is the last problem.
fn derive(views: &Views, root: B256, sink: Sink<'_>) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let mut accounts = views.accounts.cursor()?;
    let mut slots = views.slots.cursor()?;
    let mut trie = TrieBuilder::<KeccakMpt>::default();
    let mut storage = StorageTries::default();

    while let Some(record) = accounts.next_ref()? {
        let entry = B256::try_from(record.key).ok().zip(Account::from_slim(record.value).ok());
        let Some((hash, account)) = entry else {
            report.add(Problem::Entry { table: "accounts", key: record.key.to_vec() });
            continue;
        };
        storage.add(&mut slots, Some(hash), &mut report, sink)?;
        storage.end(hash, account.storage_root, &mut report, sink)?;
        trie.push(hash.as_slice(), &account.leaf_value())?;
        if BATCH <= trie.waiting() {
            let records = keyed(None, trie.take_nodes()).collect();
            pass(NodeTable::Accounts, records, &mut report, sink)?;
        }
        report.accounts += 1;
    }
    storage.add(&mut slots, None, &mut report, sink)?;
    storage.settle(&mut report, sink)?;

    let (computed, nodes) = trie.finish();
    pass(NodeTable::Accounts, keyed(None, nodes).collect(), &mut report, sink)?;
    if computed != root {
        report.problems.truncate(PROBLEMS_MAX - 1);
        report.problems.push(Problem::Root { computed });
    }
    Ok(report)
}

/// The storage tries that are being derived, whose nodes are hashed together.
#[derive(Default)]
struct StorageTries {
    builder: TrieBuilder<KeccakMpt>,
    /// The accounts whose tries ended, with the roots that they state.
    ended: Vec<(B256, B256)>,
}

impl StorageTries {
    /// Adds the slots of an account, to which the cursor is brought; slots of accounts before it
    /// have no account. Without an account, all slots that are left have none.
    fn add(
        &mut self,
        slots: &mut Cursor,
        account: Option<B256>,
        report: &mut CheckReport,
        sink: Sink<'_>,
    ) -> Result<()> {
        let mut orphan = None;
        while let Some(record) = slots.peek()? {
            let owner = record.key.get(..32).map(B256::from_slice);
            let slot = record.key.get(32..).filter(|slot| slot.len() == 32);
            let (Some(owner), Some(slot), Some(_)) = (owner, slot, slot_value(record.value)) else {
                report.add(Problem::Entry { table: "slots", key: record.key.to_vec() });
                slots.next_ref()?;
                continue;
            };
            if account.is_some_and(|account| account < owner) {
                break;
            }
            if account == Some(owner) {
                self.builder.push(slot, &slot_leaf(record.value))?;
                if BATCH <= self.builder.waiting() {
                    self.settle(report, sink)?;
                    let records = keyed(Some(&owner), self.builder.take_nodes()).collect();
                    pass(NodeTable::Storage, records, report, sink)?;
                }
                report.slots += 1;
            } else if orphan != Some(owner) {
                report.add(Problem::SlotsWithoutAccount { account: owner });
                orphan = Some(owner);
            }
            slots.next_ref()?;
        }
        Ok(())
    }

    /// Ends the trie of an account, which states this root for it.
    fn end(
        &mut self,
        account: B256,
        stated: B256,
        report: &mut CheckReport,
        sink: Sink<'_>,
    ) -> Result<()> {
        self.builder.end_trie();
        self.ended.push((account, stated));
        let waiting = self.builder.waiting() + self.ended.len();
        if BATCH <= waiting { self.settle(report, sink) } else { Ok(()) }
    }

    /// Hashes the tries that ended, and compares their roots.
    fn settle(&mut self, report: &mut CheckReport, sink: Sink<'_>) -> Result<()> {
        let built = self.builder.take_tries();
        debug_assert_eq!(built.len(), self.ended.len(), "a trie of each account");
        let mut records = Vec::new();
        for ((computed, nodes), (account, stated)) in built.into_iter().zip(self.ended.drain(..)) {
            records.extend(keyed(Some(&account), nodes));
            if computed != stated {
                report.add(Problem::StorageRoot { account, computed });
            }
        }
        pass(NodeTable::Storage, records, report, sink)
    }
}

/// The records of a trie with their keys.
fn keyed(
    owner: Option<&B256>,
    nodes: Vec<(Path, Record)>,
) -> impl Iterator<Item = (NodeKey, Record)> {
    nodes.into_iter().map(move |(path, record)| (node_key(owner, &path), record))
}

/// Passes derived records to the sink.
fn pass(
    table: NodeTable,
    records: Vec<(NodeKey, Record)>,
    report: &mut CheckReport,
    sink: Sink<'_>,
) -> Result<()> {
    report.nodes += records.len() as u64;
    if records.is_empty() { Ok(()) } else { sink(report, table, records) }
}
