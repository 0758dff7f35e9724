//! Repair: drops the damaged versions of a store, so that the rest is whole again.
//!
//! A version stays if all its nodes can be read and hash to their names. The records of both tables
//! are then made exactly those that the remaining versions need.
//!
//! Invariant: every content that is written comes from a stored record and hashes to its name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::base::address::{ADDRESS_BYTES_MAX, Prefix};
use crate::base::error::{Error, Result};
use crate::base::node_hash::{NodeHash, Root};
use crate::check::verify::{Wanted, want};
use crate::commit::hashing::{hash_branch, hash_leaf, top_of};
use crate::node::node::{Broken, Edge, Node};
use crate::records::book::{self, Book};
use crate::records::node_store::{Loaded, NodeCache, NodePlace, Nodes};
use crate::records::record::{
    CHAINS_IN_ROW_MAX, Extensions, Kind, ROW_KEY_BYTES, Record, RecordKey, encode_number,
    extension_key, extension_of_key, key_of, users_key,
};
use crate::records::versions::{self, Head, TreeId, VERSIONS, Version, VersionId};
use crate::store::store::Store;
use terrane_io::Loss;
use terrane_kv::{Database, Reader, Table};

/// Bytes of the cache of nodes during a repair.
const CACHE_BYTES: usize = 64 << 20;
/// Count of transactions if the record of the head is lost: more than any store has made, so that
/// no other store takes its outdated roots for current.
const TRANSACTIONS_UNKNOWN: u64 = 1 << 48;

/// A version that was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Dropped {
    /// Its number.
    pub id: VersionId,
    /// The name of its tree, where that is known.
    pub tree: Option<String>,
    /// Its root.
    pub root: Root,
}

/// Outcome of a repair.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Repaired {
    /// Number of whole versions, which stay.
    pub kept: u64,
    /// Whether nothing was changed because of a loss; the other fields say what would have been
    /// done.
    pub was_refused: bool,
    /// Versions with damaged nodes, which were dropped.
    pub dropped: Vec<Dropped>,
    /// Number of further versions and trees whose own record is damaged, or missing although
    /// another record names it; and of second names of one tree.
    pub unreadable: u64,
    /// Number of readable nodes that no version needs. They belong to the dropped versions, or are
    /// all that is left of a version.
    pub unreferenced: u64,
    /// New names of trees whose names were lost.
    pub named: Vec<String>,
    /// Number of records of nodes and bookkeeping that were removed.
    pub records_removed: u64,
    /// Number of records of nodes and bookkeeping that were written.
    pub records_written: u64,
}

impl Repaired {
    /// Whether there was nothing to do.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.records_removed == 0 && self.records_written == 0
    }

    /// Number of versions, trees and names of trees that are lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.dropped.len() as u64 + self.unreadable + self.named.len() as u64
    }
}

impl Store {
    /// Repairs the store in a database, in one transaction. Copy the database before.
    ///
    /// * Drops each version that cannot be read as a whole, or whose own record is damaged.
    /// * Joins each remaining version to its nearest ancestor that is left.
    /// * Makes the records of nodes and bookkeeping those that the remaining versions need.
    /// * Keeps trees, even without versions. A tree with versions whose name is lost is named
    ///   `recovered-` and its number.
    /// * Leaves the metadata map alone.
    ///
    /// With [`Loss::Refused`] it corrects only what can be derived: counters, the versions of a
    /// root, the records of extensions. It changes nothing if a node exists that no version needs,
    /// since the node may be all that is left of a version.
    ///
    /// Cost: reads all records, some of them two or three times; hashes all nodes; some 250 bytes
    /// of memory for each node; holds the writer.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store has another format; [`Error::CorruptRecord`] if the
    /// database holds no radix state, or if the back-end finds damage in its own tables, which must
    /// be restored from a copy; those of the back-end. Nothing was changed.
    pub fn repair(database: &Arc<dyn Database>, loss: Loss) -> Result<Repaired> {
        let mut writer = database.writer()?;
        let book = Book::read(&*writer, &mut |error| match error {
            Error::CorruptRecord { .. } => Ok(()),
            other => Err(other),
        })?;

        if let Some(error) = book.unread {
            return Err(error);
        }

        // A damaged record of the format is repaired, unless nothing else of a store is there
        // either.
        match versions::check_format(&*writer, database.name()) {
            Err(Error::CorruptRecord { what })
                if book.trees.is_empty() && book.versions.is_empty() =>
            {
                let what = format!("the database has no radix state: {what}");
                return Err(Error::CorruptRecord { what });
            }
            Ok(()) | Err(Error::CorruptRecord { .. }) => {}
            Err(other) => return Err(other),
        }

        let mut repaired = Repaired { unreadable: book.lost_versions(), ..Repaired::default() };

        // The writer is borrowed for reading until all changes are known.
        let mut changes = Vec::new();
        let head = {
            let cache = NodeCache::new(CACHE_BYTES);
            let nodes = Nodes { cache: &cache, reader: &*writer, root: None };
            let kept = whole_versions(&nodes, &book, &mut repaired)?;
            let trees = trees_of(&book, &kept, &mut repaired);
            let records = book::encode(&trees, &kept);
            compare_bookkeeping(&*writer, records, &mut changes)?;
            repaired.unreferenced = compare_nodes(&nodes, &kept, &mut changes)?;
            head_of(&book, &trees)
        };

        repaired.records_removed =
            changes.iter().filter(|(.., value)| value.is_none()).count() as u64;
        repaired.records_written = changes.len() as u64 - repaired.records_removed;
        repaired.records_written += u64::from(book.head != Some(head));
        debug_assert!(repaired.kept <= book.versions.len() as u64);
        let may_lose = repaired.lost() > 0 || repaired.unreferenced > 0;
        repaired.was_refused = loss == Loss::Refused && may_lose;

        if repaired.is_clean() || repaired.was_refused {
            return Ok(repaired);
        }

        for (table, key, value) in &changes {
            match value {
                Some(value) => writer.overwrite(*table, key, value)?,
                None => drop(writer.remove(*table, key)?),
            }
        }

        // The new count makes every other store forget the roots that it has in memory.
        let transactions = head.transactions + 1;
        versions::put_head(&mut *writer, &Head { transactions, ..head })?;
        let receipt = writer.commit()?;
        database.settle(receipt)?;

        Ok(repaired)
    }
}

/// Change of a record: its table, its key, its new value.
type RecordChange = (Table<'static>, Vec<u8>, Option<Vec<u8>>);

/// Finds the nodes that are whole with all nodes below them. Visits each node once, wherever it
/// recurs.
struct Checker<'a> {
    nodes: &'a Nodes<'a>,
    /// Tokens from a node to the lowest node below it; `None` if a node is damaged.
    heights: HashMap<NodeHash, Option<usize>>,
}

impl Checker<'_> {
    /// Tokens from the top of an edge to the lowest node below it. At most 36 deep: no address has
    /// more tokens, and each edge but the first has one.
    fn height(&mut self, edge: &Edge, depth: usize) -> Result<Option<usize>> {
        let extension = edge.extension.as_bytes();
        let depth = depth + extension.len();
        let hash = match &edge.end {
            Node::Leaf(value) => hash_leaf(value),
            Node::Stored(hash) => *hash,
        };

        if depth > ADDRESS_BYTES_MAX || top_of(hash, extension) != edge.top {
            return Ok(None);
        }

        let below = match (&edge.end, self.heights.get(&hash)) {
            // The empty address has no value.
            (Node::Leaf(_), _) => (depth > 0).then_some(0),
            (Node::Stored(_), Some(known)) => *known,
            (Node::Stored(_), None) => {
                let height = self.node_height(hash, depth)?;
                self.heights.insert(hash, height);
                height
            }
        };

        // A node has one height at all its places, but not one depth.
        let below = below.filter(|below| depth + below <= ADDRESS_BYTES_MAX);
        Ok(below.map(|below| extension.len() + below))
    }

    fn node_height(&mut self, node: NodeHash, depth: usize) -> Result<Option<usize>> {
        let place = NodePlace { node, path: Prefix::EMPTY };
        let loaded = match self.nodes.load(&place) {
            Ok(loaded) => loaded,
            Err(Error::Corruption { .. }) => return Ok(None),
            Err(other) => return Err(other),
        };

        let branch = match loaded {
            Loaded::Value(value) => {
                return Ok((hash_leaf(&value) == node && depth > 0).then_some(0));
            }
            Loaded::Branch(branch) => branch,
        };

        // The empty address has no value.
        if hash_branch(&branch) != node || (depth == 0 && branch.value().is_some()) {
            return Ok(None);
        }

        let mut height = 0;
        for at in 0..branch.len() {
            match self.height(&branch.edge_at(at).to_edge(), depth + 1)? {
                Some(below) => height = height.max(below + 1),
                None => return Ok(None),
            }
        }

        Ok(Some(height))
    }
}

/// The versions that can be read as a whole, each joined to the nearest ancestor that can.
fn whole_versions(
    nodes: &Nodes<'_>,
    book: &Book,
    repaired: &mut Repaired,
) -> Result<BTreeMap<VersionId, Version>> {
    let mut checker = Checker { nodes, heights: HashMap::new() };
    let mut kept: BTreeMap<VersionId, Version> = BTreeMap::new();
    for (id, version) in &book.versions {
        if checker.height(&version.edge, 0)?.is_none() {
            let name = book.trees.iter().find(|(_, tree)| **tree == version.tree);
            let tree = name.map(|(name, _)| name.clone());
            let root = version.edge.top;
            repaired.dropped.push(Dropped { id: *id, tree, root });
            continue;
        }

        // A parent is older than its child, so the walk ends, and it is known whether the parent is
        // kept.
        let mut ancestor = version;
        let mut neighbour = None;
        while let Some(parent) = ancestor.neighbour.filter(|_| ancestor.is_child) {
            let Some(record) = book.versions.get(&parent) else { break };
            if kept.contains_key(&parent) && record.tree == version.tree {
                neighbour = Some(parent);
                break;
            }
            ancestor = record;
        }

        let is_child = neighbour.is_some();
        kept.insert(*id, Version { neighbour, is_child, ..version.clone() });
    }

    repaired.kept = kept.len() as u64;
    Ok(kept)
}

/// Trees by name, each number once. Names the trees that have versions and no name.
fn trees_of(
    book: &Book,
    kept: &BTreeMap<VersionId, Version>,
    repaired: &mut Repaired,
) -> BTreeMap<String, TreeId> {
    let mut known = BTreeSet::new();
    let mut trees = book.trees.clone();
    // A second name of a tree goes: each number has one name.
    trees.retain(|_, tree| known.insert(*tree));
    let doubled = (book.trees.len() - trees.len()) as u64;

    for version in kept.values() {
        if known.insert(version.tree) {
            let mut name = format!("recovered-{}", version.tree);
            while trees.contains_key(&name) {
                name.push('+');
            }
            repaired.named.push(name.clone());
            trees.insert(name, version.tree);
        }
    }

    // A broken record may have held the name of a tree that has just been named.
    let unreadable = book.lost_trees().saturating_sub(repaired.named.len() as u64);
    repaired.unreadable += unreadable + doubled;
    trees
}

/// The head with the old count of transactions, and with numbers that were never given.
fn head_of(book: &Book, trees: &BTreeMap<String, TreeId>) -> Head {
    let unknown = Head { transactions: TRANSACTIONS_UNKNOWN, ..Head::NEW };
    let head = book.head.unwrap_or(unknown);
    let next_tree = trees.values().max().map_or(1, |tree| tree.saturating_add(1));
    Head {
        next_tree: head.next_tree.max(next_tree),
        last_version: head.last_version.max(book.last_version()),
        transactions: head.transactions,
    }
}

/// Notes where the index of versions differs from `records`, which are all records but the head.
fn compare_bookkeeping(
    reader: &(impl Reader + ?Sized),
    mut records: BTreeMap<Vec<u8>, Vec<u8>>,
    changes: &mut Vec<RecordChange>,
) -> Result<()> {
    let table = Table::Index(VERSIONS);
    let mut cursor = reader.cursor(table)?;
    while let Some((key, value)) = cursor.next()? {
        match records.remove(&key) {
            // A record that is right is left alone.
            Some(record) if record == value => {}
            None if versions::is_head(&key) => {}
            record => changes.push((table, key, record)),
        }
    }
    changes.extend(records.into_iter().map(|(key, record)| (table, key, Some(record))));
    Ok(())
}

/// Number of stored differences from each base, with the hash of the base.
type Users = BTreeMap<RecordKey, (NodeHash, u64)>;

/// Notes where the main table differs from what the versions need. Returns the number of readable
/// nodes that no version needs.
fn compare_nodes(
    nodes: &Nodes<'_>,
    kept: &BTreeMap<VersionId, Version>,
    changes: &mut Vec<RecordChange>,
) -> Result<u64> {
    let mut wanted: BTreeMap<RecordKey, Wanted> = BTreeMap::new();
    for version in kept.values() {
        let neighbour = version.neighbour.and_then(|id| kept.get(&id));
        want(nodes, &version.edge, neighbour.map(|neighbour| &neighbour.edge), &mut wanted).1?;
    }

    let users = users_of(nodes, &wanted)?;

    // Bases that no version needs for themselves stay for their differences.
    for (key, (node, _)) in &users {
        let base = Wanted { node: *node, is_inline: false, extensions: BTreeMap::new() };
        wanted.entry(*key).or_insert(base);
    }

    // Nodes with spilled extensions. A node that once had more of them may still keep them spilled.
    let has_many = |end: &Wanted| end.extensions.len() > CHAINS_IN_ROW_MAX;
    let mut spilled: BTreeSet<RecordKey> =
        wanted.iter().filter(|(_, end)| has_many(end)).map(|(key, _)| *key).collect();

    // A node's record comes before the records of its extensions, so `spilled` is complete for
    // them.
    let mut unreferenced = 0;
    let mut cursor = nodes.reader.cursor(Table::Main)?;
    while let Some((key, record)) = cursor.next()? {
        if !is_wanted(&key, &record, &wanted, &users, &mut spilled) {
            // A record that can be read may be all that is left of a version.
            let end: Option<&RecordKey> = key.as_slice().try_into().ok();
            unreferenced += u64::from(end.is_some_and(|end| Record::decode(end, &record).is_ok()));
            changes.push((Table::Main, key, None));
        }
    }

    for (key, end) in &wanted {
        for (key, record) in records_of(nodes, key, end, spilled.contains(key), &users)? {
            // Written only where it differs, so that a repair of a whole store changes nothing.
            if nodes.reader.get(Table::Main, &key)?.as_ref() != Some(&record) {
                changes.push((Table::Main, key, Some(record)));
            }
        }
    }

    Ok(unreferenced)
}

/// Counts the differences among the stored contents of the wanted nodes, by base.
fn users_of(nodes: &Nodes<'_>, wanted: &BTreeMap<RecordKey, Wanted>) -> Result<Users> {
    let mut users = Users::new();
    for (key, end) in wanted.iter().filter(|(_, end)| !end.is_inline) {
        if let Some(base) = stored(nodes, key, &end.node, |record| record.base())? {
            users.entry(key_of(&base)).or_insert((base, 0)).1 += 1;
        }
    }
    Ok(users)
}

/// Whether the versions need a record under this key. Adds a node to `spilled` whose stored record
/// keeps its extensions in records of their own.
fn is_wanted(
    key: &[u8],
    record: &[u8],
    wanted: &BTreeMap<RecordKey, Wanted>,
    users: &Users,
    spilled: &mut BTreeSet<RecordKey>,
) -> bool {
    let own = key.first_chunk::<ROW_KEY_BYTES>();
    let Some((own, end)) = own.and_then(|own| Some((own, wanted.get(own)?))) else { return false };

    if *key == users_key(own) {
        return users.contains_key(own);
    }

    if key.len() > ROW_KEY_BYTES {
        let extension = extension_of_key(own, key).filter(|_| spilled.contains(own));
        return extension.is_some_and(|extension| end.extensions.contains_key(&extension));
    }

    if let Ok(Record { extensions: Extensions::Spilled(_), .. }) = Record::decode(own, record)
        && !end.extensions.is_empty()
    {
        spilled.insert(*own);
    }

    true
}

/// All records that a wanted node needs, with their keys.
fn records_of(
    nodes: &Nodes<'_>,
    key: &RecordKey,
    end: &Wanted,
    is_spilled: bool,
    users: &Users,
) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    debug_assert!(is_spilled || end.extensions.len() <= CHAINS_IN_ROW_MAX);
    let extensions = if is_spilled {
        Extensions::Spilled(end.extensions.len() as u64)
    } else {
        let all = end.extensions.iter();
        Extensions::Here(all.map(|(extension, references)| (*extension, *references)).collect())
    };

    let record = if end.is_inline {
        Record { extensions, kind: Kind::Inline, content: &[] }.encode(key)
    } else {
        stored(nodes, key, &end.node, |record| Ok(Record { extensions, ..record }.encode(key)))?
    };

    let mut records = vec![(key.to_vec(), record)];
    if is_spilled {
        records.extend(end.extensions.iter().map(|(extension, references)| {
            let key = extension_key(key, extension);
            let record = encode_number(&key, *references);
            (key, record)
        }));
    }

    if let Some((_, users)) = users.get(key) {
        let key = users_key(key);
        records.push((key.to_vec(), encode_number(&key, *users)));
    }

    Ok(records)
}

/// Reads a stored record of a node, which has been checked before, by a function.
fn stored<T>(
    nodes: &Nodes<'_>,
    key: &RecordKey,
    node: &NodeHash,
    take: impl FnOnce(Record<'_>) -> std::result::Result<T, Broken>,
) -> Result<T> {
    let broken = |what: &str| Error::Corruption {
        root: None,
        path: Prefix::EMPTY,
        node: *node,
        what: what.into(),
    };
    let record =
        nodes.reader.get(Table::Main, key)?.ok_or_else(|| broken("the record is missing"))?;
    Record::decode(key, &record).and_then(take).map_err(|Broken(rule)| broken(rule))
}
