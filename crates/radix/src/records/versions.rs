//! Bookkeeping: records of trees, versions and roots, in the index [`VERSIONS`].
//!
//! | key | value |
//! |---|---|
//! | `f` | format: [`MAGIC`], then the scheme of the hashes, [`SCHEME`] |
//! | `n` | [`Head`]: number of the next tree, of the last version, of the last transaction |
//! | `t` name | number of the tree |
//! | `r` tree (4, big-endian) root (32) | its versions: [`Ids`] |
//! | `v` number (8, big-endian) | a version: see [`Version`] |
//! | `o` key number (8, big-endian) | one of the older ids of the record of this key, an `r` or a `v` |
//!
//! Each value ends with a CRC-32C of the key and of what is before it. Numbers in values are
//! LEB128. A version: tree, edge of the whole tree (see `node`), number of its neighbour or 0,
//! whether that is its parent (1), those that depend on it, length of the metadata, metadata.
//!
//! Invariants: a number of a tree or version is never given twice. Every transaction that changes a
//! record adds one to the count in the head, so that a store can tell that what it has in memory is
//! outdated.

use terrane_io::checksum::{crc32c, crc32c_append};

use crate::base::error::{Error, Result};
use crate::base::node_hash::{NODE_HASH_BYTES, NodeHash, Root};
use crate::node::node::{Broken, Edge, Input, put_edge, put_number};
use terrane_kv::{Reader, Table, Writer};

/// The index of the bookkeeping.
pub const VERSIONS: &str = "versions";
/// First bytes of the record of the format.
pub(crate) const MAGIC: [u8; 8] = *b"TRNRADX3";
/// Name of the hash scheme: that of Transact, with its length heads.
pub const SCHEME: &str = "transact";

pub(super) const TABLE: Table<'static> = Table::Index(VERSIONS);
const CRC_BYTES: usize = 4;
pub(super) const HEAD_KEY: &[u8] = b"n";

/// The number of a version, of all trees of a store: later commits have greater ones, and none is
/// given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VersionId(pub(crate) u64);

impl std::fmt::Display for VersionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

/// The number of a tree.
pub(crate) type TreeId = u32;

/// Counters that every transaction may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) next_tree: TreeId,
    /// The number of the version that was made last; 0 if there was none.
    pub(crate) last_version: u64,
    /// How many transactions changed trees or versions.
    pub(crate) transactions: u64,
}

impl Head {
    pub(crate) const NEW: Self = Self { next_tree: 1, last_version: 0, transactions: 0 };
}

/// Versions that a record names, mostly one. The newest stands in the record and each older one has
/// a record of its own, so that adding a version costs the same however many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ids {
    pub(crate) newest: Option<VersionId>,
    /// How many more there are.
    pub(crate) older: u64,
}

impl Ids {
    pub(crate) fn count(&self) -> u64 {
        self.older + u64::from(self.newest.is_some())
    }

    /// All, ascending.
    fn all(&self, reader: &(impl Reader + ?Sized), owner: &[u8]) -> Result<Vec<VersionId>> {
        let mut ids = Vec::new();
        // Most records name one version, and need no cursor.
        if self.older > 0 {
            let prefix = [b"o", owner].concat();
            each_with_prefix(reader, &prefix, |key, record| {
                ids.push(older_of(key, record)?.1);
                Ok(())
            })?;
        }
        ids.extend(self.newest);
        self.check(&ids).map_err(|Broken(rule)| corrupt(owner, rule))?;
        Ok(ids)
    }

    /// Whether `ids`, which ascend but for the last, are as many as there should be.
    pub(crate) fn check(&self, ids: &[VersionId]) -> std::result::Result<(), Broken> {
        if ids.len() as u64 == self.count() && ids.is_sorted_by(|one, other| one < other) {
            return Ok(());
        }
        Err(Broken("the versions that it names are not as many, or not older than the newest"))
    }

    fn insert(&mut self, writer: &mut dyn Writer, owner: &[u8], id: VersionId) -> Result<()> {
        let older = match self.newest {
            Some(newest) => newest.min(id),
            None => {
                self.newest = Some(id);
                return Ok(());
            }
        };
        self.newest = self.newest.max(Some(id));
        debug_assert!(Some(older) <= self.newest);
        self.older += 1;
        put(writer, &older_key(owner, older), Vec::new())
    }

    fn remove(&mut self, writer: &mut dyn Writer, owner: &[u8], id: VersionId) -> Result<()> {
        if self.older == 0 {
            self.newest = self.newest.filter(|newest| *newest != id);
            return Ok(());
        }

        let mut gone = id;
        if self.newest == Some(id) {
            // The newest of the older versions moves into the record.
            let mut cursor = writer.cursor(TABLE)?;
            cursor.seek(&older_key(owner, id))?;
            let prefix = [b"o", owner].concat();
            let before = cursor.prev()?.filter(|(key, _)| key.starts_with(&prefix));
            let (key, record) =
                before.ok_or_else(|| corrupt(owner, "its older versions are missing"))?;
            gone = older_of(&key, &record)?.1;
            self.newest = Some(gone);
        }

        debug_assert!(self.newest.is_some());
        self.older -= 1;
        Ok(writer.remove(TABLE, &older_key(owner, gone))?)
    }
}

/// The outcome of one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) tree: TreeId,
    /// The edge of the whole tree, whose hash is the root.
    pub(crate) edge: Edge,
    /// The version that it is joined to for counting (see `references`).
    pub(crate) neighbour: Option<VersionId>,
    /// Whether the neighbour is the nearest ancestor that is retained; else there is none but the
    /// empty state.
    pub(crate) is_child: bool,
    /// Versions whose neighbour this version is.
    pub(crate) dependents: Ids,
    pub(crate) metadata: Vec<u8>,
}

#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
pub(super) fn version_key(id: VersionId) -> [u8; 9] {
    let mut key = [b'v'; 9];
    key[1..].copy_from_slice(&id.0.to_be_bytes());
    key
}

/// The version that a record is of by its key.
#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
pub(super) fn version_of_key(key: &[u8]) -> Option<VersionId> {
    let id = key.strip_prefix(b"v")?.try_into().ok()?;
    Some(VersionId(u64::from_be_bytes(id)))
}

#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
pub(super) fn root_key(tree: TreeId, root: &Root) -> [u8; 5 + NODE_HASH_BYTES] {
    let mut key = [b'r'; 5 + NODE_HASH_BYTES];
    key[1..5].copy_from_slice(&tree.to_be_bytes());
    key[5..].copy_from_slice(&root.0);
    key
}

#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
pub(super) fn older_key(owner: &[u8], id: VersionId) -> Vec<u8> {
    [b"o", owner, &id.0.to_be_bytes()].concat()
}

/// The record that an older version is of, and its number.
#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
pub(super) fn older_of<'a>(key: &'a [u8], record: &[u8]) -> Result<(&'a [u8], VersionId)> {
    read(key, record, |_| Ok(()))?;
    let (owner, id) =
        key[1..].split_last_chunk().ok_or_else(|| corrupt(key, "length of the key"))?;
    Ok((owner, VersionId(u64::from_be_bytes(*id))))
}

pub(super) fn tree_key(name: &str) -> Vec<u8> {
    [b"t", name.as_bytes()].concat()
}

pub(super) fn corrupt(key: &[u8], what: &str) -> Error {
    Error::CorruptRecord {
        what: format!("record {:?} of {VERSIONS}: {what}", key.escape_ascii().to_string()),
    }
}

pub(super) fn sealed(key: &[u8], mut body: Vec<u8>) -> Vec<u8> {
    // The checksum covers the key, so that a record under the key of another is noticed.
    let crc = crc32c_append(crc32c(key), &body);
    body.extend_from_slice(&crc.to_le_bytes());
    body
}

pub(super) fn put(writer: &mut dyn Writer, key: &[u8], body: Vec<u8>) -> Result<()> {
    Ok(writer.overwrite(TABLE, key, &sealed(key, body))?)
}

/// Reads a record by a function of its body.
pub(super) fn read<T>(
    key: &[u8],
    record: &[u8],
    parse: impl FnOnce(&mut Input<'_>) -> std::result::Result<T, Broken>,
) -> Result<T> {
    let (body, crc) =
        record.split_last_chunk::<CRC_BYTES>().ok_or_else(|| corrupt(key, "it is cut short"))?;
    if u32::from_le_bytes(*crc) != crc32c_append(crc32c(key), body) {
        return Err(corrupt(key, "checksum"));
    }
    let mut input = Input(body);
    parse(&mut input)
        .and_then(|parsed| input.end().map(|()| parsed))
        .map_err(|Broken(rule)| corrupt(key, rule))
}

pub(super) fn get<T>(
    reader: &(impl Reader + ?Sized),
    key: &[u8],
    parse: impl FnOnce(&mut Input<'_>) -> std::result::Result<T, Broken>,
) -> Result<Option<T>> {
    reader.get(TABLE, key)?.map(|record| read(key, &record, parse)).transpose()
}

pub(super) fn number_in(input: &mut Input<'_>) -> std::result::Result<u32, Broken> {
    u32::try_from(input.number()?).map_err(|_| Broken("a number is too large"))
}

pub(super) fn ids_in(input: &mut Input<'_>) -> std::result::Result<Ids, Broken> {
    // The first version is number 1, so 0 stands for none.
    let newest = Some(input.number()?).filter(|id| *id != 0).map(VersionId);
    let older = input.number()?;
    if older > 0 && newest.is_none() {
        return Err(Broken("older versions without a newest"));
    }
    Ok(Ids { newest, older })
}

pub(super) fn put_ids(out: &mut Vec<u8>, ids: Ids) {
    debug_assert!(ids.older == 0 || ids.newest.is_some(), "older versions have a newest");
    put_number(out, ids.newest.map_or(0, |id| id.0));
    put_number(out, ids.older);
}

pub(super) fn own_format() -> Vec<u8> {
    [MAGIC.as_slice(), SCHEME.as_bytes()].concat()
}

/// Gives a new store its first records.
pub(crate) fn format(writer: &mut dyn Writer) -> Result<()> {
    put(writer, b"f", own_format())?;
    put_head(writer, &Head::NEW)
}

/// Refuses a store of another format, in a database of the back-end that is named.
///
/// # Errors
/// [`Error::Unsupported`]; [`Error::CorruptRecord`] if the record of the format is damaged or not
/// there.
pub(crate) fn check_format(reader: &dyn Reader, back_end: &'static str) -> Result<()> {
    // The whole body is taken: the name of another format may have any length.
    let found = get(reader, b"f", |input| Ok(std::mem::take(&mut input.0).to_vec()))?;
    let found = found.ok_or_else(|| corrupt(b"f", "it is missing"))?;
    let own = own_format();
    if found == own {
        return Ok(());
    }
    let found = found.escape_ascii();
    let own = own.escape_ascii();
    let why = format!("this program reads {own}; export it with the program that wrote it");
    let option = format!("a radix state of format {found}");
    Err(terrane_kv::Error::Unsupported { back_end, option, why }.into())
}

/// Whether a store has the record of its format.
pub(crate) fn is_formatted(reader: &(impl Reader + ?Sized)) -> Result<bool> {
    Ok(reader.get(TABLE, b"f")?.is_some())
}

pub(super) fn head_in(input: &mut Input<'_>) -> std::result::Result<Head, Broken> {
    let next_tree = number_in(input)?;
    Ok(Head { next_tree, last_version: input.number()?, transactions: input.number()? })
}

pub(super) fn head_body(head: &Head) -> Vec<u8> {
    let mut body = Vec::new();
    put_number(&mut body, u64::from(head.next_tree));
    put_number(&mut body, head.last_version);
    put_number(&mut body, head.transactions);
    debug_assert_eq!(head_in(&mut Input(&body)), Ok(*head), "a head is read as it was written");
    body
}

pub(crate) fn head(reader: &(impl Reader + ?Sized)) -> Result<Head> {
    get(reader, HEAD_KEY, head_in)?.ok_or_else(|| corrupt(HEAD_KEY, "it is missing"))
}

pub(crate) fn put_head(writer: &mut dyn Writer, head: &Head) -> Result<()> {
    put(writer, HEAD_KEY, head_body(head))
}

/// Checks that neither the next tree nor the next version gets a number that there was.
///
/// # Errors
/// [`Error::CorruptRecord`].
pub(crate) fn check_head(head: &Head, last_tree: Option<TreeId>, last_version: u64) -> Result<()> {
    if let Some(last) = last_tree.filter(|last| head.next_tree <= *last) {
        return Err(corrupt(HEAD_KEY, &format!("a new tree would not come after tree {last}")));
    }
    if head.last_version < last_version {
        let what = format!("a new version would not come after version {last_version}");
        return Err(corrupt(HEAD_KEY, &what));
    }
    Ok(())
}

pub(crate) fn tree(reader: &(impl Reader + ?Sized), name: &str) -> Result<Option<TreeId>> {
    get(reader, &tree_key(name), number_in)
}

pub(super) fn number_body(number: u32) -> Vec<u8> {
    let mut body = Vec::new();
    put_number(&mut body, u64::from(number));
    debug_assert_eq!(number_in(&mut Input(&body)), Ok(number), "it is read as it was written");
    body
}

/// Creates a tree that must not exist. The caller writes the head.
pub(crate) fn create_tree(writer: &mut dyn Writer, name: &str, head: &mut Head) -> Result<TreeId> {
    let id = head.next_tree;
    head.next_tree =
        id.checked_add(1).ok_or_else(|| corrupt(HEAD_KEY, "there were too many trees"))?;
    debug_assert!(head.next_tree > id, "no number is given twice");
    put(writer, &tree_key(name), number_body(id))?;
    Ok(id)
}

pub(crate) fn remove_tree(writer: &mut dyn Writer, name: &str) -> Result<()> {
    Ok(writer.remove(TABLE, &tree_key(name))?)
}

/// Gives a tree another name, which no tree must have.
pub(crate) fn rename_tree(writer: &mut dyn Writer, from: &str, to: &str, id: TreeId) -> Result<()> {
    debug_assert_ne!(from, to, "the caller found no tree of the new name");
    remove_tree(writer, from)?;
    put(writer, &tree_key(to), number_body(id))
}

/// Calls `visit` with the entries whose keys have a prefix.
pub(super) fn each_with_prefix(
    reader: &(impl Reader + ?Sized),
    prefix: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let mut cursor = reader.cursor(TABLE)?;
    cursor.seek(prefix)?;
    while let Some((key, record)) = cursor.next()? {
        if !key.starts_with(prefix) {
            break;
        }
        visit(&key, &record)?;
    }
    Ok(())
}

/// All trees, by name.
pub(crate) fn trees(reader: &(impl Reader + ?Sized)) -> Result<Vec<(String, TreeId)>> {
    let mut trees = Vec::new();
    each_with_prefix(reader, b"t", |key, record| {
        let id = read(key, record, number_in)?;
        let name = std::str::from_utf8(&key[1..]).map_err(|_| corrupt(key, "name is no UTF-8"))?;
        trees.push((name.to_owned(), id));
        Ok(())
    })?;
    Ok(trees)
}

pub(super) fn root_ids_in(input: &mut Input<'_>) -> std::result::Result<Ids, Broken> {
    let ids = ids_in(input)?;
    if ids.newest.is_none() { Err(Broken("a root has no version")) } else { Ok(ids) }
}

pub(super) fn ids_of_root(reader: &(impl Reader + ?Sized), key: &[u8]) -> Result<Ids> {
    Ok(get(reader, key, root_ids_in)?.unwrap_or_default())
}

/// The newest version of a root; `None` if it is not retained.
pub(crate) fn newest_of_root(
    reader: &(impl Reader + ?Sized),
    tree: TreeId,
    root: &Root,
) -> Result<Option<VersionId>> {
    Ok(ids_of_root(reader, &root_key(tree, root))?.newest)
}

/// The oldest version of a root, and how many there are; `None` if it is not retained.
pub(crate) fn oldest_of_root(
    reader: &(impl Reader + ?Sized),
    tree: TreeId,
    root: &Root,
) -> Result<Option<(VersionId, u64)>> {
    let key = root_key(tree, root);
    let ids = ids_of_root(reader, &key)?;
    if ids.older == 0 {
        return Ok(ids.newest.map(|only| (only, 1)));
    }
    let prefix = [b"o".as_slice(), &key].concat();
    let mut cursor = reader.cursor(TABLE)?;
    // Keys end with the number, so the first one is of the oldest version.
    cursor.seek(&prefix)?;
    let first = cursor.next()?.filter(|(key, _)| key.starts_with(&prefix));
    let (key, record) = first.ok_or_else(|| corrupt(&key, "its older versions are missing"))?;
    Ok(Some((older_of(&key, &record)?.1, ids.count())))
}

/// Adds a version to those of a root.
pub(crate) fn add_to_root(
    writer: &mut dyn Writer,
    tree: TreeId,
    root: &Root,
    id: VersionId,
) -> Result<()> {
    let key = root_key(tree, root);
    let mut ids = ids_of_root(writer, &key)?;
    ids.insert(writer, &key, id)?;
    let mut body = Vec::new();
    put_ids(&mut body, ids);
    put(writer, &key, body)
}

/// Removes a version from those of a root. Returns how many are left.
pub(crate) fn take_from_root(
    writer: &mut dyn Writer,
    tree: TreeId,
    root: &Root,
    id: VersionId,
) -> Result<u64> {
    let key = root_key(tree, root);
    let mut ids = ids_of_root(writer, &key)?;
    ids.remove(writer, &key, id)?;
    // A root without a version has no record.
    if ids.newest.is_none() {
        writer.remove(TABLE, &key)?;
    } else {
        let mut body = Vec::new();
        put_ids(&mut body, ids);
        put(writer, &key, body)?;
    }
    Ok(ids.count())
}

/// All roots of a tree with their versions, in the order of the hashes.
#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
pub(crate) fn roots(
    reader: &(impl Reader + ?Sized),
    tree: TreeId,
) -> Result<Vec<(Root, Vec<VersionId>)>> {
    let prefix = [b"r".as_slice(), &tree.to_be_bytes()].concat();
    let mut roots = Vec::new();
    each_with_prefix(reader, &prefix, |key, record| {
        let root = key[prefix.len()..].try_into().map_err(|_| corrupt(key, "length of the key"))?;
        let ids = read(key, record, root_ids_in)?.all(reader, key)?;
        roots.push((NodeHash(root), ids));
        Ok(())
    })?;
    Ok(roots)
}

pub(super) fn version_in(input: &mut Input<'_>) -> std::result::Result<Version, Broken> {
    let tree = number_in(input)?;
    let edge = input.edge()?.to_edge();
    // The first version is number 1, so 0 stands for none.
    let neighbour = Some(input.number()?).filter(|id| *id != 0).map(VersionId);
    let is_child = match input.byte()? {
        0 => false,
        1 if neighbour.is_some() => true,
        _ => return Err(Broken("whether it is a child")),
    };
    let dependents = ids_in(input)?;
    let metadata = input.sized()?.to_vec();
    Ok(Version { tree, edge, neighbour, is_child, dependents, metadata })
}

/// Refuses a parent that is not older than its child: a walk from parent to parent must end.
pub(crate) fn check_parent(id: VersionId, version: &Version) -> std::result::Result<(), Broken> {
    if version.is_child && version.neighbour >= Some(id) {
        return Err(Broken("its parent is not older"));
    }
    Ok(())
}

pub(crate) fn version(reader: &(impl Reader + ?Sized), id: VersionId) -> Result<Version> {
    let key = version_key(id);
    let version = get(reader, &key, version_in)?
        .ok_or_else(|| corrupt(&key, "it is missing, and another names it"))?;
    check_parent(id, &version).map_err(|Broken(rule)| corrupt(&key, rule))?;
    Ok(version)
}

pub(super) fn version_body(version: &Version) -> Vec<u8> {
    debug_assert!(!version.is_child || version.neighbour.is_some(), "a parent is a neighbour");
    let mut body = Vec::new();
    put_number(&mut body, u64::from(version.tree));
    put_edge(&mut body, &version.edge);
    put_number(&mut body, version.neighbour.map_or(0, |id| id.0));
    body.push(u8::from(version.is_child));
    put_ids(&mut body, version.dependents);
    put_number(&mut body, version.metadata.len() as u64);
    body.extend_from_slice(&version.metadata);
    body
}

/// Writes a version that was not there.
///
/// # Errors
/// [`Error::CorruptRecord`] if it is.
pub(crate) fn add_version(writer: &mut dyn Writer, id: VersionId, version: &Version) -> Result<()> {
    let key = version_key(id);
    match writer.put(TABLE, &key, &sealed(&key, version_body(version))) {
        // The head gives each number once, so a record in its place is damage.
        Err(terrane_kv::Error::DuplicateEntry { .. }) => {
            Err(corrupt(&key, "it is there, and was to be made"))
        }
        put => Ok(put?),
    }
}

pub(crate) fn put_version(writer: &mut dyn Writer, id: VersionId, version: &Version) -> Result<()> {
    put(writer, &version_key(id), version_body(version))
}

/// Versions whose neighbour a version is, ascending.
pub(crate) fn dependents(
    reader: &(impl Reader + ?Sized),
    id: VersionId,
    version: &Version,
) -> Result<Vec<VersionId>> {
    version.dependents.all(reader, &version_key(id))
}

/// Notes in a record, which the caller writes, that a version depends on it.
pub(crate) fn add_dependent(
    writer: &mut dyn Writer,
    id: VersionId,
    version: &mut Version,
    dependent: VersionId,
) -> Result<()> {
    version.dependents.insert(writer, &version_key(id), dependent)
}

/// Notes in a record, which the caller writes, that a version depends on it no more.
pub(crate) fn take_dependent(
    writer: &mut dyn Writer,
    id: VersionId,
    version: &mut Version,
    dependent: VersionId,
) -> Result<()> {
    version.dependents.remove(writer, &version_key(id), dependent)
}

/// Removes a version whose dependents are those given.
pub(crate) fn remove_version(
    writer: &mut dyn Writer,
    id: VersionId,
    dependents: &[VersionId],
) -> Result<()> {
    debug_assert!(dependents.is_sorted_by(|one, other| one < other), "the newest is the last");
    let key = version_key(id);
    writer.remove(TABLE, &key)?;
    // The newest dependent stands in the record of the version itself.
    for older in dependents.split_last().map_or(&[][..], |(_, older)| older) {
        writer.remove(TABLE, &older_key(&key, *older))?;
    }
    Ok(())
}

/// The number of the version that was made last of those that are there; 0 if there is none.
pub(crate) fn last_version(reader: &dyn Reader) -> Result<u64> {
    let mut cursor = reader.cursor(TABLE)?;
    // Seeks behind all keys of versions: the entry before is that of the newest one.
    cursor.seek(b"w")?;
    let Some((key, _)) = cursor.prev()? else { return Ok(0) };
    if key.first() != Some(&b'v') {
        return Ok(0);
    }
    let id = version_of_key(&key).ok_or_else(|| corrupt(&key, "length of the key"))?;
    Ok(id.0)
}

pub(crate) fn is_head(key: &[u8]) -> bool {
    key == HEAD_KEY
}
