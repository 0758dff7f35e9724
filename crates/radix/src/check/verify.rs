//! Check of a store: hashes every node again, and compares all records with those that the retained
//! versions need.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::base::address::Prefix;
use crate::base::error::{Error, Result};
use crate::base::node_hash::{NodeHash, Root};
use crate::commit::hashing::{end_hash, extension_hashes, hash_branch, hash_leaf, top_of};
use crate::node::node::{Broken, Edge, Node};
use crate::records::book::Book;
use crate::records::node_store::{Loaded, NodeCache, NodePlace, Nodes};
use crate::records::record::{
    Content, Extensions, ROW_KEY_BYTES, Record, RecordKey, decode_number, extension_of_key, key_of,
    nodes_above, reversed, users_key,
};
use crate::records::ref_counts::each_edge_not_in;
use crate::records::versions::{self, TreeId};
use crate::store::store::{Store, Tree};
use terrane_kv::{Reader, Table};

/// Bytes of the cache of bases during a check.
const BASES_BYTES: usize = 16 << 20;

/// A broken rule, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Problem {
    /// Where: a tree and root with the path below it, or a record.
    pub place: String,
    /// Which rule is broken.
    pub rule: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.rule)
    }
}

/// Outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Report {
    /// Versions that were checked.
    pub versions: u64,
    /// Number of different plain nodes, those of extensions and the empty node included.
    pub nodes: u64,
    /// Problems, in no order.
    pub problems: Vec<Problem>,
}

impl Report {
    /// Whether there is no problem.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    fn note(&mut self, place: impl Into<String>, rule: impl Into<String>) {
        self.problems.push(Problem { place: place.into(), rule: rule.into() });
    }

    /// Compares the content of a record with its hash, if the hash is known.
    fn check_content(
        &mut self,
        place: &str,
        nodes: &Nodes<'_>,
        key: &RecordKey,
        record: &Record<'_>,
        node: Option<NodeHash>,
    ) -> Result<()> {
        // The key is the first part of the hash, which an error can name.
        let mut known = NodeHash::EMPTY;
        known.0[..ROW_KEY_BYTES].copy_from_slice(key);

        let at = NodePlace { node: node.unwrap_or(known), path: Prefix::EMPTY };
        let hash = match nodes.content(&at, record) {
            Err(error) => return self.note_error(place, error),
            Ok(Content::Inline) => return Ok(()),
            Ok(Content::Value(value)) => hash_leaf(&value),
            Ok(Content::Branch(branch)) => hash_branch(&branch),
        };

        if node.map_or(key_of(&hash) != *key, |node| node != hash) {
            self.note(place, format!("the node hashes to {hash}, not to {}", at.node));
        }

        Ok(())
    }

    /// Notes damage; returns other errors.
    fn note_error(&mut self, place: &str, error: Error) -> Result<()> {
        match error {
            Error::Corruption { .. } | Error::CorruptRecord { .. } => {
                self.note(place, error.to_string());
                Ok(())
            }
            other => Err(other),
        }
    }
}

impl Tree {
    /// Reads a state from the database, and compares each of its nodes with its hash.
    ///
    /// Cost: reads each node once, none from the cache.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`] and those of the back-end; damage is in the
    /// report.
    pub fn verify(&self, root: &Root) -> Result<Report> {
        let mut report = Report { versions: 1, ..Report::default() };
        let hashes = self.walk(root, Some(&mut report))?;
        report.nodes = hashes.len() as u64;
        Ok(report)
    }

    /// Hashes of all plain nodes of a state, those of extensions included.
    ///
    /// Cost: reads each node once, hashes each extension; all hashes are in memory.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::Corruption`] and those of the
    /// back-end.
    pub fn nodes(&self, root: &Root) -> Result<BTreeSet<NodeHash>> {
        self.walk(root, None)
    }

    fn walk(&self, root: &Root, mut report: Option<&mut Report>) -> Result<BTreeSet<NodeHash>> {
        let (reader, edge) = self.open(root)?;

        // No cache: each node must be read from the database.
        let cache = NodeCache::new(0);
        let nodes = Nodes { cache: &cache, reader: &*reader, root: Some(*root) };

        let mut hashes = BTreeSet::new();
        if edge.is_none() {
            hashes.insert(NodeHash::EMPTY);
        }

        let mut pending: Vec<(Prefix, Edge)> =
            edge.into_iter().map(|edge| (Prefix::EMPTY, edge)).collect();
        while let Some((mut path, edge)) = pending.pop() {
            let place =
                |path: &Prefix| format!("tree {:?}, root {root}, path {path:?}", self.name());
            let end = end_hash(&edge);
            hashes.insert(end);
            hashes.extend(extension_hashes(end, edge.extension.as_bytes()));

            // A stored node is compared further below, once it is read.
            let is_known = match &edge.end {
                Node::Leaf(value) => hash_leaf(value) == end,
                Node::Stored(_) => true,
            };

            if let Some(report) = &mut report
                && !(is_known && top_of(end, edge.extension.as_bytes()) == edge.top)
            {
                report.note(place(&path), format!("the extension does not hash to {}", edge.top));
            }

            path.extend(edge.extension.as_bytes());
            let loaded = match edge.end {
                Node::Leaf(_) => continue,
                Node::Stored(node) => nodes.load_whole(&NodePlace { node, path }),
            };

            let loaded = match (loaded, &mut report) {
                (Ok(loaded), _) => loaded,
                (Err(error), Some(report)) => {
                    report.note_error(&place(&path), error)?;
                    continue;
                }
                (Err(error), None) => return Err(error),
            };

            let hash = match &loaded {
                Loaded::Value(value) => hash_leaf(value),
                Loaded::Branch(branch) => hash_branch(branch),
            };

            if let Some(report) = &mut report
                && hash != end
            {
                report.note(place(&path), format!("the node hashes to {hash}, not to {end}"));
            }

            if let Loaded::Branch(branch) = loaded {
                for (token, edge) in branch.children() {
                    let mut path = path;
                    path.extend(&[token]);
                    pending.push((path, edge.to_edge()));
                }
            }
        }

        Ok(hashes)
    }
}

/// Counters of the differences from each base: stored, and found.
#[derive(Default)]
struct UserCounts {
    stored: BTreeMap<RecordKey, u64>,
    found: BTreeMap<RecordKey, u64>,
}

impl UserCounts {
    fn count(&mut self, key: RecordKey, end: &StoredNode<'_>) {
        // A node without extensions stays only for its users, so it must have a counter.
        self.stored
            .extend((end.users > 0 || end.extensions.is_empty()).then_some((key, end.users)));
        if let Ok(Some(base)) = end.record.base() {
            *self.found.entry(key_of(&base)).or_default() += 1;
        }
    }

    fn check(self, report: &mut Report) {
        for (key, users) in &self.stored {
            let found = self.found.get(key).copied().unwrap_or(0);
            if found != *users || found == 0 {
                let rule = format!("{found} records are differences from it, not {users}");
                report.note(format!("record {}", hex(key)), rule);
            }
        }
        for (key, _) in self.found.iter().filter(|(key, _)| !self.stored.contains_key(*key)) {
            report.note(format!("record {}", hex(key)), "differences from it are not counted");
        }
    }
}

/// A node with the extensions and references that the versions need.
pub(crate) struct Wanted {
    pub(crate) node: NodeHash,
    /// Whether its value stands in the edges.
    pub(crate) is_inline: bool,
    /// Extensions from below, each with its number of references.
    pub(crate) extensions: BTreeMap<Prefix, u64>,
}

/// Notes the nodes and extensions that a version needs besides those of its neighbour. Returns the
/// paths of edges whose extension does not hash to the edge's hash, as far as the tree can be read.
pub(crate) fn want(
    nodes: &Nodes<'_>,
    edge: &Edge,
    neighbour: Option<&Edge>,
    wanted: &mut BTreeMap<RecordKey, Wanted>,
) -> (Vec<Prefix>, Result<()>) {
    let mut broken = Vec::new();
    let walked = each_edge_not_in(nodes, Some(edge), neighbour, &[], &mut |path, edge, _| {
        let node = end_hash(edge);
        let leaf = match &edge.end {
            Node::Leaf(value) => Some(hash_leaf(value)),
            Node::Stored(_) => None,
        };

        let is_known = leaf.is_none_or(|hash| hash == node);
        if !(is_known && top_of(node, edge.extension.as_bytes()) == edge.top) {
            broken.push(*path);
        }

        let is_inline = leaf.is_some();
        let extensions = BTreeMap::new();
        let end = wanted.entry(key_of(&node)).or_insert(Wanted { node, is_inline, extensions });
        *end.extensions.entry(reversed(&edge.extension)).or_default() += 1;
    });

    (broken, walked)
}

impl Store {
    /// The nodes that all readable versions need. Notes edges that do not hash to their names, and
    /// nodes on the way that cannot be read.
    fn wanted(
        &self,
        reader: &dyn Reader,
        book: &Book,
        report: &mut Report,
    ) -> Result<BTreeMap<RecordKey, Wanted>> {
        let mut wanted: BTreeMap<RecordKey, Wanted> = BTreeMap::new();
        for (id, version) in &book.versions {
            report.versions += 1;
            let root = version.edge.top;
            let place = format!("version {id}, root {root}");
            let neighbour = version.neighbour.and_then(|id| book.versions.get(&id));
            let neighbour = neighbour.map(|neighbour| &neighbour.edge);
            let nodes = self.inner().nodes(reader, &root);
            let (broken, walked) = want(&nodes, &version.edge, neighbour, &mut wanted);

            for path in broken {
                report.note(
                    format!("{place}, path {path:?}"),
                    "the extension does not hash to the edge's hash",
                );
            }

            if let Err(error) = walked {
                report.note_error(&place, error)?;
            }
        }

        Ok(wanted)
    }
}

impl Store {
    /// Number of different plain nodes that the store stands for, with those of extensions and the
    /// empty node.
    ///
    /// Cost: reads all records.
    ///
    /// # Errors
    /// [`Error::CorruptRecord`] and those of the back-end.
    pub fn node_count(&self) -> Result<u64> {
        let reader = self.database().reader()?;
        let mut count = 1;
        each_stored_node(&*reader, |key, end| {
            count += end.map_err(|what| broken_record(&key, &what))?.nodes();
            Ok(())
        })?;
        Ok(count)
    }

    /// Checks that the records are exactly those that the retained versions reach, and that every
    /// node hashes to its name.
    ///
    /// Cost: reads all records, and hashes all nodes; some 150 bytes of memory for each node.
    ///
    /// # Errors
    /// Those of the back-end; damage is in the report.
    pub fn verify(&self) -> Result<Report> {
        let reader = self.database().reader()?;
        let reader = &*reader;
        let mut report = Report { nodes: 1, ..Report::default() };
        let book = check_book(reader, self.database().name(), &mut report)?;

        let mut wanted = self.wanted(reader, &book, &mut report)?;

        // A cache of its own, so that nothing is taken from memory that the database no longer has.
        let cache = NodeCache::new(BASES_BYTES);

        let nodes = Nodes { cache: &cache, reader, root: None };
        let mut users = UserCounts::default();
        let scanned = each_stored_node(reader, |key, end| {
            let place = format!("record {}", hex(&key));
            let wanted = wanted.remove(&key);
            let end = match end {
                Ok(end) => end,
                Err(rule) => {
                    report.note(place, rule);
                    return Ok(());
                }
            };

            users.count(key, &end);
            if end.extensions.is_empty() {
                // A node without extensions is only a base, or breaks the format.
                report.check_content(&place, &nodes, &key, &end.record, None)?;
            } else if let Some(wanted) = wanted {
                report.nodes += end.nodes();
                report.check_content(&place, &nodes, &key, &end.record, Some(wanted.node))?;
                if end.extensions != wanted.extensions {
                    report.note(
                        place,
                        "extensions and references are not those of the retained versions",
                    );
                }
            } else {
                report.note(place, "no retained version reaches it");
            }

            Ok(())
        });

        // Without a whole scan, what was not met may still be there.
        let is_whole = scanned.is_ok();
        if let Err(error) = scanned {
            report.note_error("the main table", error)?;
        } else {
            users.check(&mut report);
        }

        for (key, wanted) in wanted {
            let place = format!("record {}", hex(&key));
            if is_whole {
                report.note(place, format!("node {} is missing", wanted.node));
                continue;
            }

            // The back-end's cursor failed; lookups of single records may still work.
            match reader.get(Table::Main, &key).map_err(Error::from) {
                Err(error) => report.note_error(&place, error)?,
                Ok(None) => report.note(place, format!("node {} is missing", wanted.node)),
                Ok(Some(record)) => match Record::decode(&key, &record) {
                    Ok(record) => {
                        report.check_content(&place, &nodes, &key, &record, Some(wanted.node))?;
                    }
                    Err(Broken(rule)) => report.note(place, rule),
                },
            }
        }

        Ok(report)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn broken_record(key: &[u8], what: &str) -> Error {
    Error::CorruptRecord { what: format!("record {} of nodes: {what}", hex(key)) }
}

/// The records of one node.
struct StoredNode<'a> {
    record: Record<'a>,
    /// Extensions from below, each with its number of references.
    extensions: BTreeMap<Prefix, u64>,
    /// Stored number of differences from it.
    users: u64,
}

impl StoredNode<'_> {
    /// Number of plain nodes that the node stands for: itself and the nodes of its extensions.
    fn nodes(&self) -> u64 {
        if self.extensions.is_empty() { 0 } else { 1 + nodes_above(self.extensions.keys()) }
    }
}

/// Calls `visit` with each node that has a record, or with the rule that its records break.
fn each_stored_node(
    reader: &dyn Reader,
    mut visit: impl FnMut(RecordKey, std::result::Result<StoredNode<'_>, String>) -> Result<()>,
) -> Result<()> {
    let mut cursor = reader.cursor(Table::Main)?;
    let mut next = cursor.next()?;
    while let Some((key, record)) = next {
        let mut spilled = BTreeMap::new();
        let mut users = 0;
        let mut problem = None;

        let Ok(own) = RecordKey::try_from(key.as_slice()) else {
            // No node has so short a key; the report names what there is of it.
            let mut start = [0; ROW_KEY_BYTES];
            let len = key.len().min(ROW_KEY_BYTES);
            start[..len].copy_from_slice(&key[..len]);
            visit(start, Err(format!("key {} belongs to no node", hex(&key))))?;
            next = cursor.next()?;
            continue;
        };

        // The records of a node's extensions and users lie right behind its own.
        loop {
            next = cursor.next()?;
            let Some((key, record)) = &next else { break };
            let extension = extension_of_key(&own, key);
            if extension.is_none() && key[..] != users_key(&own) {
                break;
            }
            match (decode_number(key, record), extension) {
                (Ok(references), Some(extension)) => drop(spilled.insert(extension, references)),
                (Ok(number), None) => users = number,
                (Err(broken), _) => problem = Some(broken.0),
            }
        }

        let end = match (Record::decode(&own, &record), problem) {
            (Err(broken), _) => Err(broken.0.to_owned()),
            (Ok(_), Some(rule)) => Err(format!("a record beside it: {rule}")),
            (Ok(mut record), None) => match std::mem::take(&mut record.extensions) {
                Extensions::Here(extensions) if spilled.is_empty() => {
                    Ok(StoredNode { record, extensions: extensions.into_iter().collect(), users })
                }
                Extensions::Spilled(count) if count == spilled.len() as u64 => {
                    Ok(StoredNode { record, extensions: spilled, users })
                }
                _ => Err("the number of its extensions".into()),
            },
        };

        visit(own, end)?;
    }

    Ok(())
}

/// Reads the bookkeeping; notes records that are broken or contradict each other.
fn check_book(reader: &dyn Reader, back_end: &'static str, report: &mut Report) -> Result<Book> {
    let place = "the index of versions";
    let mut book = Book::read(reader, &mut |error| report.note_error(place, error))?;
    if let Some(error) = book.unread.take() {
        report.note_error(place, error)?;
    }

    if let Err(error) = versions::check_format(reader, back_end) {
        report.note_error("format", error)?;
    }

    let trees: BTreeSet<TreeId> = book.trees.values().copied().collect();
    if trees.len() < book.trees.len() {
        report.note("trees", "two have one number");
    }

    // The head must not give a number again, so the last one bounds it.
    let last_version = book.versions.keys().next_back().map_or(0, |id| id.0);
    match &book.head {
        Some(head) => {
            if let Err(error) = versions::check_head(head, trees.last().copied(), last_version) {
                report.note_error("head", error)?;
            }
        }
        None => report.note("head", "it is missing or broken"),
    }

    let mut of_roots = BTreeSet::new();
    for ((tree, root), ids) in &book.roots {
        let place = format!("tree {tree}, root {root}");
        if !trees.contains(tree) {
            report.note(&place, "there is no such tree");
        }

        let all = book.of_root(*tree, root, *ids);
        if let Err(Broken(rule)) = ids.check(&all) {
            report.note(&place, rule);
        }

        for id in all {
            match book.versions.get(&id) {
                Some(version) if version.tree == *tree && version.edge.top == *root => {
                    of_roots.insert(id);
                }
                _ => report.note(&place, format!("its version {id} is missing, or of another")),
            }
        }
    }

    let mut joints = BTreeSet::new();
    for (id, version) in &book.versions {
        let dependents = book.dependents(*id, version.dependents);
        if let Err(Broken(rule)) = version.dependents.check(&dependents) {
            report.note(format!("version {id}"), rule);
        }
        joints.extend(dependents.into_iter().map(|dependent| (*id, dependent)));
    }

    for (id, version) in &book.versions {
        let place = format!("version {id}");
        if !of_roots.contains(id) {
            report.note(&place, "its root does not name it");
        }
        if let Some(neighbour) = version.neighbour {
            let is_same_tree =
                book.versions.get(&neighbour).is_some_and(|other| other.tree == version.tree);
            if !(joints.remove(&(neighbour, *id)) && is_same_tree) {
                report.note(&place, "its neighbour does not name it");
            }
        }
    }

    for (id, dependent) in joints {
        let rule = format!("version {dependent} does not name it as its neighbour");
        report.note(format!("version {id}"), rule);
    }

    for owner in book.orphans() {
        let place = format!("older versions of record {:?}", owner.escape_ascii().to_string());
        report.note(place, "the record is missing or broken");
    }

    Ok(book)
}
