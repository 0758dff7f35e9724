//! Checks a store: every node hashed again and compared with its name, every row that should be there, and none besides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::backend::{Reader, Table};
use crate::radix::address::Prefix;
use crate::radix::error::{Error, Result};
use crate::radix::hashing::{chain_hashes, hash_branch, hash_leaf, stop_hash, top_of};
use crate::radix::node::{Edge, Stop};
use crate::radix::node_hash::{NodeHash, Root};
use crate::radix::nodes::{Loaded, NodeCache, Nodes, Place};
use crate::radix::row::{
    Chains, Content, ROW_KEY_BYTES, Row, RowKey, chain_of_key, decode_number, key_of, nodes_above,
    reversed, users_key,
};
use crate::radix::spans::each_edge_not_in;
use crate::radix::store::{Store, Tree};
use crate::radix::versions::{self, Version, VersionId};

/// Bytes of branches that others are differences from, kept in memory by a check.
const BASES_BYTES: usize = 16 << 20;

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where: a tree and root with the path below it, or a row.
    pub place: String,
    /// Which rule is broken.
    pub rule: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.rule)
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Versions that were checked.
    pub versions: u64,
    /// Different nodes, each node of a chain among them, and the empty node.
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

    /// Compares the content of a row with its hash, as far as that is known.
    fn check_content(
        &mut self,
        place: &str,
        nodes: &Nodes<'_>,
        key: &RowKey,
        row: &Row<'_>,
        node: Option<NodeHash>,
    ) -> Result<()> {
        let mut known = NodeHash::EMPTY;
        known.0[..ROW_KEY_BYTES].copy_from_slice(key);
        let at = Place { node: node.unwrap_or(known), path: Prefix::EMPTY };
        let hash = match nodes.content(&at, row) {
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

    /// Notes damage and goes on; passes on errors of the back-end.
    fn note_error(&mut self, place: &str, error: Error) -> Result<()> {
        match error {
            Error::Corruption { .. } | Error::CorruptRow { .. } => {
                self.note(place, error.to_string());
                Ok(())
            }
            other => Err(other),
        }
    }
}

impl Tree {
    /// Reads a state as it is stored, and compares each of its nodes with its hash.
    ///
    /// Cost: reads each stop once; nothing is taken from memory.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`] and those of the back-end; damage is in the report.
    pub fn verify(&self, root: &Root) -> Result<Report> {
        let mut report = Report { versions: 1, ..Report::default() };
        let hashes = self.walk(root, Some(&mut report))?;
        report.nodes = hashes.len() as u64;
        Ok(report)
    }

    /// The hashes of all nodes of a state, each node of a chain among them.
    ///
    /// Cost: reads each stop once, hashes each chain; all hashes are in memory.
    ///
    /// # Errors
    /// [`Error::UnknownTree`], [`Error::UnknownRoot`], [`Error::Corruption`] and those of the back-end.
    pub fn nodes(&self, root: &Root) -> Result<BTreeSet<NodeHash>> {
        self.walk(root, None)
    }

    fn walk(&self, root: &Root, mut report: Option<&mut Report>) -> Result<BTreeSet<NodeHash>> {
        let (reader, edge) = self.open(root)?;
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
            let stop = stop_hash(&edge);
            hashes.insert(stop);
            hashes.extend(chain_hashes(stop, edge.chain.as_bytes()));
            let is_known = match &edge.stop {
                Stop::Leaf(value) => hash_leaf(value) == stop,
                Stop::Row(_) => true,
            };
            if let Some(report) = &mut report
                && !(is_known && top_of(stop, edge.chain.as_bytes()) == edge.top)
            {
                report.note(
                    place(&path),
                    format!("the nodes down to the stop do not hash to {}", edge.top),
                );
            }
            path.extend(edge.chain.as_bytes());
            let loaded = match edge.stop {
                Stop::Leaf(_) => continue,
                Stop::Row(node) => nodes.load_whole(&Place { node, path }),
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
                && hash != stop
            {
                report.note(place(&path), format!("the node hashes to {hash}, not to {stop}"));
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

/// Rows by how many others are differences from them.
#[derive(Default)]
struct Users {
    stored: BTreeMap<RowKey, u64>,
    found: BTreeMap<RowKey, u64>,
}

impl Users {
    fn count(&mut self, key: RowKey, stop: &StoredStop<'_>) {
        self.stored.extend((stop.users > 0 || stop.chains.is_empty()).then_some((key, stop.users)));
        if let Ok(Some(base)) = stop.row.base() {
            *self.found.entry(key_of(&base)).or_default() += 1;
        }
    }

    fn check(self, report: &mut Report) {
        for (key, users) in &self.stored {
            let found = self.found.get(key).copied().unwrap_or(0);
            if found != *users || found == 0 {
                let rule = format!("{found} rows are differences from it, not {users}");
                report.note(format!("row {}", hex(key)), rule);
            }
        }
        for (key, _) in self.found.iter().filter(|(key, _)| !self.stored.contains_key(*key)) {
            report.note(format!("row {}", hex(key)), "differences from it are not counted");
        }
    }
}

/// A stop as the versions need it.
struct Wanted {
    node: NodeHash,
    chains: BTreeMap<Prefix, u64>,
}

impl Store {
    /// How many different nodes are stored, each node of a chain counted as if it were, and the empty node.
    ///
    /// Cost: reads all rows.
    ///
    /// # Errors
    /// [`Error::CorruptRow`] and those of the back-end.
    pub fn node_count(&self) -> Result<u64> {
        let reader = self.database().reader()?;
        let mut count = 1;
        each_stop(&*reader, |key, stop| {
            count += stop.map_err(|what| broken_row(&key, &what))?.nodes();
            Ok(())
        })?;
        Ok(count)
    }

    /// Checks everything: that what is stored is exactly what the retained versions reach, and that every node hashes to its
    /// name.
    ///
    /// Cost: reads all rows, and hashes all nodes; some 150 bytes of memory for each stop.
    ///
    /// # Errors
    /// Those of the back-end; damage is in the report.
    pub fn verify(&self) -> Result<Report> {
        let reader = self.database().reader()?;
        let reader = &*reader;
        let mut report = Report { nodes: 1, ..Report::default() };
        let versions = check_versions(reader, &mut report)?;
        let mut wanted: BTreeMap<RowKey, Wanted> = BTreeMap::new();
        for (id, version) in &versions {
            report.versions += 1;
            let root = version.edge.top;
            let place = format!("version {id}, root {root}");
            let neighbour = version.neighbour.and_then(|id| versions.get(&id));
            let nodes = self.core().nodes(reader, &root);
            let mut broken = Vec::new();
            let walked = each_edge_not_in(
                &nodes,
                Some(&version.edge),
                neighbour.map(|neighbour| &neighbour.edge),
                &[],
                &mut |path, edge, _| {
                    let node = stop_hash(edge);
                    let is_known = match &edge.stop {
                        Stop::Leaf(value) => hash_leaf(value) == node,
                        Stop::Row(_) => true,
                    };
                    if !(is_known && top_of(node, edge.chain.as_bytes()) == edge.top) {
                        broken.push(*path);
                    }
                    let chains = BTreeMap::new();
                    let stop = wanted.entry(key_of(&node)).or_insert(Wanted { node, chains });
                    *stop.chains.entry(reversed(&edge.chain)).or_default() += 1;
                },
            );
            for path in broken {
                report.note(
                    format!("{place}, path {path:?}"),
                    "the nodes down to the stop do not hash to the edge's hash",
                );
            }
            if let Err(error) = walked {
                report.note_error(&place, error)?;
            }
        }
        let cache = NodeCache::new(BASES_BYTES);
        let nodes = Nodes { cache: &cache, reader, root: None };
        let mut users = Users::default();
        each_stop(reader, |key, stop| {
            let place = format!("row {}", hex(&key));
            let wanted = wanted.remove(&key);
            let stop = match stop {
                Ok(stop) => stop,
                Err(rule) => {
                    report.note(place, rule);
                    return Ok(());
                }
            };
            users.count(key, &stop);
            if stop.chains.is_empty() {
                // It is the base of others, or breaks the format.
                report.check_content(&place, &nodes, &key, &stop.row, None)?;
            } else if let Some(wanted) = wanted {
                report.nodes += stop.nodes();
                report.check_content(&place, &nodes, &key, &stop.row, Some(wanted.node))?;
                if stop.chains != wanted.chains {
                    report.note(place, "chains and spans are not those of the retained versions");
                }
            } else {
                report.note(place, "no retained version reaches it");
            }
            Ok(())
        })?;
        users.check(&mut report);
        for (key, wanted) in wanted {
            report.note(format!("row {}", hex(&key)), format!("node {} is missing", wanted.node));
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

fn broken_row(key: &[u8], what: &str) -> Error {
    Error::CorruptRow { what: format!("row {} of nodes: {what}", hex(key)) }
}

/// A stop as it is stored.
struct StoredStop<'a> {
    row: Row<'a>,
    /// From below, and how many spans each has.
    chains: BTreeMap<Prefix, u64>,
    /// How many rows are said to be differences from it.
    users: u64,
}

impl StoredStop<'_> {
    /// How many nodes it stands for; those above it that other stops have too are counted there as well.
    fn nodes(&self) -> u64 {
        if self.chains.is_empty() { 0 } else { 1 + nodes_above(self.chains.keys()) }
    }
}

/// Calls `visit` with each stop that has a row, or with the rule that it breaks.
fn each_stop(
    reader: &dyn Reader,
    mut visit: impl FnMut(RowKey, std::result::Result<StoredStop<'_>, String>) -> Result<()>,
) -> Result<()> {
    let mut cursor = reader.cursor(Table::Main)?;
    let mut next = cursor.next()?;
    while let Some((key, row)) = next {
        let mut spilled = BTreeMap::new();
        let mut users = 0;
        let mut problem = None;
        let Ok(own) = RowKey::try_from(key.as_slice()) else {
            let mut start = [0; ROW_KEY_BYTES];
            let len = key.len().min(ROW_KEY_BYTES);
            start[..len].copy_from_slice(&key[..len]);
            visit(start, Err(format!("key {} belongs to no stop", hex(&key))))?;
            next = cursor.next()?;
            continue;
        };
        loop {
            next = cursor.next()?;
            let Some((key, row)) = &next else { break };
            let chain = chain_of_key(&own, key);
            if chain.is_none() && key[..] != users_key(&own) {
                break;
            }
            match (decode_number(key, row), chain) {
                (Ok(spans), Some(chain)) => drop(spilled.insert(chain, spans)),
                (Ok(number), None) => users = number,
                (Err(broken), _) => problem = Some(broken.0),
            }
        }
        let stop = match (Row::decode(&own, &row), problem) {
            (Err(broken), _) => Err(broken.0.to_owned()),
            (Ok(_), Some(rule)) => Err(format!("a row beside it: {rule}")),
            (Ok(mut row), None) => match std::mem::take(&mut row.chains) {
                Chains::Here(chains) if spilled.is_empty() => {
                    Ok(StoredStop { row, chains: chains.into_iter().collect(), users })
                }
                Chains::Spilled(count) if count == spilled.len() as u64 => {
                    Ok(StoredStop { row, chains: spilled, users })
                }
                _ => Err("the number of its chains".into()),
            },
        };
        visit(own, stop)?;
    }
    Ok(())
}

/// All versions; notes where they, the roots and the trees contradict each other.
fn check_versions(
    reader: &dyn Reader,
    report: &mut Report,
) -> Result<BTreeMap<VersionId, Version>> {
    let mut all = BTreeMap::new();
    let mut rows = 1;
    if let Err(error) = versions::each_version(reader, |id, version| {
        all.insert(id, version);
        rows += 1;
        Ok(())
    }) {
        report.note_error("versions", error)?;
    }
    if let Err(error) = versions::check_format(reader) {
        report.note_error("format", error)?;
    }
    let mut of_roots = BTreeMap::new();
    let trees = versions::trees(reader).or_else(|error| {
        report.note_error("trees", error)?;
        Ok::<_, Error>(Vec::new())
    })?;
    match versions::check_trees(reader, &trees) {
        Ok(is_there) => rows += u64::from(is_there),
        Err(error) => report.note_error("trees", error)?,
    }
    for (name, tree) in trees {
        rows += 1;
        let roots = versions::roots(reader, tree).or_else(|error| {
            report.note_error(&format!("tree {name:?}"), error)?;
            Ok::<_, Error>(Vec::new())
        })?;
        for (root, ids) in roots {
            rows += 1;
            for id in ids {
                of_roots.insert(id, (name.clone(), tree, root));
            }
        }
    }
    let count = reader.count(Table::Index(versions::VERSIONS))?;
    if rows != count {
        report.note("versions", format!("{count} rows, of which {rows} belong to something"));
    }
    for (id, version) in &all {
        let place = format!("version {id}");
        match of_roots.remove(id) {
            Some((_, tree, root)) if tree == version.tree && root == version.edge.top => {}
            _ => report.note(&place, "its root does not name it"),
        }
        let joins = |other: &VersionId| {
            all.get(other)
                .is_some_and(|other| other.tree == version.tree && other.dependents.contains(id))
        };
        if version.neighbour.as_ref().is_some_and(|neighbour| !joins(neighbour)) {
            report.note(&place, "its neighbour does not name it");
        }
        if version.is_child && version.neighbour >= Some(*id) {
            report.note(&place, "its parent is not older");
        }
        for dependent in &version.dependents {
            if all.get(dependent).is_none_or(|dependent| dependent.neighbour != Some(*id)) {
                report
                    .note(&place, format!("version {dependent} does not name it as its neighbour"));
            }
        }
    }
    for (id, (name, _, root)) in of_roots {
        report.note(format!("tree {name:?}, root {root}"), format!("its version {id} is missing"));
    }
    Ok(all)
}
