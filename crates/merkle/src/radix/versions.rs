//! The bookkeeping: trees, their versions, and the roots that these have; rows of the index [`VERSIONS`].
//!
//! | key | value |
//! |---|---|
//! | `f` | format: [`MAGIC`], then the scheme of the hashes, [`SCHEME`] |
//! | `n` | number of the next tree |
//! | `t` name | number of the tree |
//! | `r` tree (4, big-endian) root (32) | its versions: how many, and their numbers ascending |
//! | `v` number (8, big-endian) | a version: see [`Version`] |
//!
//! Each value ends with a CRC-32C of the key and of what is before it. Numbers in values are LEB128. A version: tree, edge of
//! the whole tree (see `node`), number of its neighbour or 0, whether that is its parent (1), how many depend on it,
//! their numbers, length of the metadata, metadata.

use terrane_io::checksum::{crc32c, crc32c_append};

use crate::backend::{Reader, Table, Writer};
use crate::radix::error::{Error, Result};
use crate::radix::node::{Broken, Edge, Input, put_edge, put_number};
use crate::radix::node_hash::{NODE_HASH_BYTES, Root};

/// The index of the bookkeeping.
pub const VERSIONS: &str = "versions";
/// What the row of the format begins with.
pub(crate) const MAGIC: [u8; 8] = *b"TRNRADX1";
/// How nodes are hashed: as Transact does, length heads included.
pub const SCHEME: &str = "transact";

const TABLE: Table<'static> = Table::Index(VERSIONS);
const CRC_BYTES: usize = 4;

/// The number of a version: later commits have greater ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionId(pub(crate) u64);

impl std::fmt::Display for VersionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.0, f)
    }
}

/// The number of a tree.
pub(crate) type TreeId = u32;

/// The outcome of one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) tree: TreeId,
    /// Of the whole tree; its hash is the root.
    pub(crate) edge: Edge,
    /// The version that it is joined to for counting (see `spans`).
    pub(crate) neighbour: Option<VersionId>,
    /// Whether the neighbour is the nearest ancestor that is retained; else there is none but the empty state.
    pub(crate) is_child: bool,
    /// Those whose neighbour it is, ascending.
    pub(crate) dependents: Vec<VersionId>,
    pub(crate) metadata: Vec<u8>,
}

#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
fn version_key(id: VersionId) -> [u8; 9] {
    let mut key = [b'v'; 9];
    key[1..].copy_from_slice(&id.0.to_be_bytes());
    key
}

#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
fn root_key(tree: TreeId, root: &Root) -> [u8; 5 + NODE_HASH_BYTES] {
    let mut key = [b'r'; 5 + NODE_HASH_BYTES];
    key[1..5].copy_from_slice(&tree.to_be_bytes());
    key[5..].copy_from_slice(&root.0);
    key
}

fn tree_key(name: &str) -> Vec<u8> {
    [b"t", name.as_bytes()].concat()
}

fn corrupt(key: &[u8], what: &str) -> Error {
    Error::CorruptRow {
        what: format!("row {:?} of {VERSIONS}: {what}", key.escape_ascii().to_string()),
    }
}

fn put(writer: &mut dyn Writer, key: &[u8], mut body: Vec<u8>) -> Result<()> {
    let crc = crc32c_append(crc32c(key), &body);
    body.extend_from_slice(&crc.to_le_bytes());
    Ok(writer.overwrite(TABLE, key, &body)?)
}

/// Reads a row by a function of its body.
fn read<T>(
    key: &[u8],
    row: &[u8],
    parse: impl FnOnce(&mut Input<'_>) -> std::result::Result<T, Broken>,
) -> Result<T> {
    let (body, crc) =
        row.split_last_chunk::<CRC_BYTES>().ok_or_else(|| corrupt(key, "it is cut short"))?;
    if u32::from_le_bytes(*crc) != crc32c_append(crc32c(key), body) {
        return Err(corrupt(key, "checksum"));
    }
    let mut input = Input(body);
    parse(&mut input)
        .and_then(|parsed| input.end().map(|()| parsed))
        .map_err(|Broken(rule)| corrupt(key, rule))
}

fn get<T>(
    reader: &(impl Reader + ?Sized),
    key: &[u8],
    parse: impl FnOnce(&mut Input<'_>) -> std::result::Result<T, Broken>,
) -> Result<Option<T>> {
    reader.get(TABLE, key)?.map(|row| read(key, &row, parse)).transpose()
}

fn number_in(input: &mut Input<'_>) -> std::result::Result<u32, Broken> {
    u32::try_from(input.number()?).map_err(|_| Broken("a number is too large"))
}

fn ids_in(input: &mut Input<'_>) -> std::result::Result<Vec<VersionId>, Broken> {
    let count = input.number()?;
    let mut ids = Vec::new();
    for _ in 0..count {
        let id = VersionId(input.number()?);
        if ids.last().is_some_and(|last| *last >= id) {
            return Err(Broken("versions do not ascend"));
        }
        ids.push(id);
    }
    Ok(ids)
}

fn put_ids(out: &mut Vec<u8>, ids: &[VersionId]) {
    put_number(out, ids.len() as u64);
    ids.iter().for_each(|id| put_number(out, id.0));
}

fn own_format() -> Vec<u8> {
    [MAGIC.as_slice(), SCHEME.as_bytes()].concat()
}

/// Gives a new store the row of its format.
pub(crate) fn format(writer: &mut dyn Writer) -> Result<()> {
    put(writer, b"f", own_format())
}

/// Refuses a store of another format.
pub(crate) fn check_format(reader: &dyn Reader) -> Result<()> {
    let found = get(reader, b"f", |input| Ok(std::mem::take(&mut input.0).to_vec()))?;
    let (found, own) = (found.unwrap_or_default(), own_format());
    if found == own {
        return Ok(());
    }
    let (found, own) = (found.escape_ascii(), own.escape_ascii());
    Err(Error::CorruptRow {
        what: format!("the store has format {found}; this program reads {own}"),
    })
}

/// Whether a store has the row of its format.
pub(crate) fn is_formatted(reader: &dyn Reader) -> Result<bool> {
    Ok(reader.get(TABLE, b"f")?.is_some())
}

pub(crate) fn tree(reader: &(impl Reader + ?Sized), name: &str) -> Result<Option<TreeId>> {
    get(reader, &tree_key(name), number_in)
}

/// Checks that the next tree gets a number that none of `trees` has. Answers whether there ever was a tree.
///
/// # Errors
/// [`Error::CorruptRow`]: two trees would have one number.
pub(crate) fn check_trees(reader: &dyn Reader, trees: &[(String, TreeId)]) -> Result<bool> {
    let next = get(reader, b"n", number_in)?;
    match trees.iter().map(|(_, id)| *id).max() {
        Some(last) if next.is_none_or(|next| next <= last) => {
            Err(corrupt(b"n", &format!("a new tree would not come after tree {last}")))
        }
        _ => Ok(next.is_some()),
    }
}

/// Makes a tree, which must not be there.
pub(crate) fn create_tree(writer: &mut dyn Writer, name: &str) -> Result<TreeId> {
    let id = get(writer, b"n", number_in)?.unwrap_or(1);
    let next = id.checked_add(1).ok_or_else(|| corrupt(b"n", "there were too many trees"))?;
    for (key, number) in [(b"n".to_vec(), next), (tree_key(name), id)] {
        let mut body = Vec::new();
        put_number(&mut body, u64::from(number));
        put(writer, &key, body)?;
    }
    Ok(id)
}

pub(crate) fn remove_tree(writer: &mut dyn Writer, name: &str) -> Result<()> {
    Ok(writer.remove(TABLE, &tree_key(name))?)
}

/// Gives a tree another name, which no tree must have.
pub(crate) fn rename_tree(writer: &mut dyn Writer, from: &str, to: &str, id: TreeId) -> Result<()> {
    remove_tree(writer, from)?;
    let mut body = Vec::new();
    put_number(&mut body, u64::from(id));
    put(writer, &tree_key(to), body)
}

/// Calls `visit` with the entries whose keys have a prefix.
fn each_with_prefix(
    reader: &(impl Reader + ?Sized),
    prefix: &[u8],
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>,
) -> Result<()> {
    let mut cursor = reader.cursor(TABLE)?;
    cursor.seek(prefix)?;
    while let Some((key, row)) = cursor.next()? {
        if !key.starts_with(prefix) {
            break;
        }
        visit(&key, &row)?;
    }
    Ok(())
}

/// All trees, by name.
pub(crate) fn trees(reader: &(impl Reader + ?Sized)) -> Result<Vec<(String, TreeId)>> {
    let mut trees = Vec::new();
    each_with_prefix(reader, b"t", |key, row| {
        let id = read(key, row, number_in)?;
        let name = std::str::from_utf8(&key[1..]).map_err(|_| corrupt(key, "name is no UTF-8"))?;
        trees.push((name.to_owned(), id));
        Ok(())
    })?;
    Ok(trees)
}

/// The versions of a root, ascending; none if it is not retained.
pub(crate) fn of_root(
    reader: &(impl Reader + ?Sized),
    tree: TreeId,
    root: &Root,
) -> Result<Vec<VersionId>> {
    let key = root_key(tree, root);
    let ids = get(reader, &key, ids_in)?;
    match ids {
        Some(ids) if ids.is_empty() => Err(corrupt(&key, "a root has no version")),
        ids => Ok(ids.unwrap_or_default()),
    }
}

pub(crate) fn put_root(
    writer: &mut dyn Writer,
    tree: TreeId,
    root: &Root,
    ids: &[VersionId],
) -> Result<()> {
    let key = root_key(tree, root);
    if ids.is_empty() {
        return Ok(writer.remove(TABLE, &key)?);
    }
    let mut body = Vec::new();
    put_ids(&mut body, ids);
    put(writer, &key, body)
}

/// All roots of a tree with their versions, in no order that means anything.
#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
pub(crate) fn roots(
    reader: &(impl Reader + ?Sized),
    tree: TreeId,
) -> Result<Vec<(Root, Vec<VersionId>)>> {
    let prefix = [b"r".as_slice(), &tree.to_be_bytes()].concat();
    let mut roots = Vec::new();
    each_with_prefix(reader, &prefix, |key, row| {
        let root = key[prefix.len()..].try_into().map_err(|_| corrupt(key, "length of the key"))?;
        roots.push((crate::radix::node_hash::NodeHash(root), read(key, row, ids_in)?));
        Ok(())
    })?;
    Ok(roots)
}

fn version_in(input: &mut Input<'_>) -> std::result::Result<Version, Broken> {
    let tree = number_in(input)?;
    let edge = input.edge()?.to_edge();
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

pub(crate) fn version(reader: &(impl Reader + ?Sized), id: VersionId) -> Result<Version> {
    let key = version_key(id);
    let version = get(reader, &key, version_in)?
        .ok_or_else(|| corrupt(&key, "it is missing, and another names it"))?;
    // So that whoever goes from parent to parent comes to an end.
    if version.is_child && version.neighbour >= Some(id) {
        return Err(corrupt(&key, "its parent is not older"));
    }
    Ok(version)
}

pub(crate) fn put_version(writer: &mut dyn Writer, id: VersionId, version: &Version) -> Result<()> {
    let mut body = Vec::new();
    put_number(&mut body, u64::from(version.tree));
    put_edge(&mut body, &version.edge);
    put_number(&mut body, version.neighbour.map_or(0, |id| id.0));
    body.push(u8::from(version.is_child));
    put_ids(&mut body, &version.dependents);
    put_number(&mut body, version.metadata.len() as u64);
    body.extend_from_slice(&version.metadata);
    put(writer, &version_key(id), body)
}

pub(crate) fn remove_version(writer: &mut dyn Writer, id: VersionId) -> Result<()> {
    Ok(writer.remove(TABLE, &version_key(id))?)
}

/// All versions of all trees.
#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
pub(crate) fn each_version(
    reader: &(impl Reader + ?Sized),
    mut visit: impl FnMut(VersionId, Version) -> Result<()>,
) -> Result<()> {
    each_with_prefix(reader, b"v", |key, row| {
        let id = key[1..].try_into().map_err(|_| corrupt(key, "length of the key"))?;
        visit(VersionId(u64::from_be_bytes(id)), read(key, row, version_in)?)
    })
}

/// The number of the version that was made last of those that are there; 0 if there is none.
#[expect(clippy::big_endian_bytes, reason = "keys are in the order of their numbers")]
pub(crate) fn last_version(reader: &dyn Reader) -> Result<u64> {
    let mut cursor = reader.cursor(TABLE)?;
    cursor.seek(b"w")?;
    let Some((key, _)) = cursor.prev()? else { return Ok(0) };
    let Some(id) = key.strip_prefix(b"v") else { return Ok(0) };
    let id = id.try_into().map_err(|_| corrupt(&key, "length of the key"))?;
    Ok(u64::from_be_bytes(id))
}
