//! Tables of a state, and the bytes of their keys and values.
//!
//! ```text
//! meta           name                     FORMAT: version; TIP: height, hash, root; floors
//! accounts       keccak(address)          slim account
//! slots          keccak(address) keccak(slot)   value without leading zeros
//! code           code hash                bytes
//! account_nodes  path                     record
//! storage_nodes  keccak(address) path     record
//! blocks         height u64 BE            hash, root
//! changes        height u64 BE, kind, key     1 | 2 and the value before
//!                height u64 BE, 6, number u32 BE            paths of nodes that changed
//!                height u64 BE, 7, account, number u32 BE   paths of nodes that changed
//!
//! value_history         kind, key, height u64 BE     1 | 2 and the value before
//! account_node_history  path, 255, height u64 BE     1 | 2 and the record before | 3 or 4 and a
//! storage_node_history  account, path, 255, height   difference
//! ```
//!
//! Heights in keys are big-endian, so that their order is that of blocks.

use std::ops::Deref;
use std::path::Path as FilePath;
use std::sync::Arc;

use alloy_primitives::B256;
use terrane_io::Disk;
use terrane_lsm::{NamedTable, Store, StoreOptions, StoreReader, Table, TableConfig, WriteBatch};

use crate::base::error::{Error, Result};
use crate::base::keys::NodeKey;
use crate::base::path::Path;
use crate::scheme::scheme::HASH_BYTES;
use crate::trie::difference::{Stated, difference};
use crate::trie::record::Record;

/// Version of the format of a state. Version 1 had neither differences of nodes nor lists of paths;
/// opening a state of it for writing makes it one of this version.
pub(crate) const STATE_VERSION: u32 = 2;

/// The oldest version that can be read.
pub(crate) const OLDEST_VERSION: u32 = 1;

/// Key of the version in `meta`.
pub(crate) const FORMAT_KEY: &[u8] = b"format";

/// Key of the tip in `meta`.
pub(crate) const TIP_KEY: &[u8] = b"tip";

/// Key of the lowest height that can be read, in `meta`.
pub(crate) const FLOOR_KEY: &[u8] = b"floor";

/// Key of the lowest height that a reorg can reach, in `meta`.
pub(crate) const REORG_FLOOR_KEY: &[u8] = b"reorg_floor";

/// Key of the mark of an unfinished import, in `meta`.
pub(crate) const IMPORT_KEY: &[u8] = b"import";

/// Byte between a path and a height; above every digit.
pub(crate) const PATH_END: u8 = 255;

/// Kind of a node of the account trie, in the keys of changes of version 1.
pub(crate) const ACCOUNT_NODE_KIND: u8 = 4;

/// Kind of a node of a storage trie, in the keys of changes of version 1.
pub(crate) const STORAGE_NODE_KIND: u8 = 5;

/// Kind of a list of nodes of the account trie, in the keys of changes.
pub(crate) const ACCOUNT_NODES_KIND: u8 = 6;

/// Kind of a list of nodes of a storage trie, in the keys of changes.
pub(crate) const STORAGE_NODES_KIND: u8 = 7;

/// Most paths of a list.
pub(crate) const PATHS_MAX: usize = 256;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 2 * HASH_BYTES;

/// First byte of a value before: there was none.
pub(crate) const ABSENT_TAG: u8 = 1;

/// First byte of a value before: the value follows.
pub(crate) const PRESENT_TAG: u8 = 2;

/// First byte of a record before: a difference of hashes follows.
pub(crate) const HASHES_TAG: u8 = 3;

/// First byte of a record before: a difference of masks and hashes follows.
pub(crate) const SHAPE_TAG: u8 = 4;

/// Names of the tables.
pub(crate) const NAMES: [&str; 11] = [
    "meta",
    "accounts",
    "slots",
    "code",
    "account_nodes",
    "storage_nodes",
    "blocks",
    "changes",
    "value_history",
    "account_node_history",
    "storage_node_history",
];

/// A block of the chain whose state is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Block {
    /// Its height.
    pub height: u64,
    /// Its hash.
    pub hash: B256,
    /// The root of the state after it.
    pub root: B256,
}

/// Kind of a flat entry, as it stands in the keys of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EntryKind {
    Account = 1,
    Slot = 2,
    Code = 3,
}

/// One thing for each table of a state: its handle, or a view.
#[derive(Debug, Clone)]
pub(crate) struct TableSet<T> {
    pub(crate) meta: T,
    pub(crate) accounts: T,
    pub(crate) slots: T,
    pub(crate) code: T,
    pub(crate) account_nodes: T,
    pub(crate) storage_nodes: T,
    pub(crate) blocks: T,
    pub(crate) changes: T,
    pub(crate) value_history: T,
    pub(crate) account_node_history: T,
    pub(crate) storage_node_history: T,
}

impl<T> TableSet<T> {
    /// Makes the thing of each table, by the names of [`NAMES`] in their order.
    fn make(each: impl FnMut(&'static str) -> Result<T>) -> Result<Self> {
        let mut made = NAMES.into_iter().map(each);
        let mut next = || made.next().expect("a name for each table");
        Ok(Self {
            meta: next()?,
            accounts: next()?,
            slots: next()?,
            code: next()?,
            account_nodes: next()?,
            storage_nodes: next()?,
            blocks: next()?,
            changes: next()?,
            value_history: next()?,
            account_node_history: next()?,
            storage_node_history: next()?,
        })
    }

    /// All, in the order of [`NAMES`].
    fn all(&self) -> [&T; NAMES.len()] {
        [
            &self.meta,
            &self.accounts,
            &self.slots,
            &self.code,
            &self.account_nodes,
            &self.storage_nodes,
            &self.blocks,
            &self.changes,
            &self.value_history,
            &self.account_node_history,
            &self.storage_node_history,
        ]
    }
}

/// The tables of a state.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) store: Store,
    pub(crate) handles: TableSet<NamedTable>,
}

/// All tables as one commit left them.
#[derive(Debug, Clone)]
pub(crate) struct Views {
    /// The last commit when the views were taken, or an earlier one.
    pub(crate) commit: u64,
    tables: TableSet<Arc<Table>>,
}

impl Deref for Tables {
    type Target = TableSet<NamedTable>;

    fn deref(&self) -> &Self::Target {
        &self.handles
    }
}

impl Deref for Views {
    type Target = TableSet<Arc<Table>>;

    fn deref(&self) -> &Self::Target {
        &self.tables
    }
}

impl Tables {
    /// Opens the tables, or makes them in an empty store.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: &FilePath,
        (options, config): (&StoreOptions, &TableConfig),
    ) -> Result<Self> {
        let store = Store::open(disk, dir, options)?;
        let found = store.tables()?;
        if found.iter().any(|table| !NAMES.contains(&table.name.as_str())) {
            return Err(Error::NotAState { why: "the store has other tables" });
        }

        let table = |name: &str| Ok(store.table_or_create(name, config)?);
        let handles = TableSet::make(table)?;
        let tables = Self { store, handles };
        tables.check_format()?;
        Ok(tables)
    }

    /// Checks the version, or writes it into a store without entries.
    fn check_format(&self) -> Result<()> {
        let write_version = || -> Result<()> {
            let mut batch = WriteBatch::new();
            batch.insert(&self.meta, FORMAT_KEY, STATE_VERSION.to_le_bytes());
            Ok(self.store.write(&batch)?.wait()?)
        };
        if let Some(bytes) = self.meta.get(FORMAT_KEY)?.value() {
            // From here on an older program might meet what it does not know.
            let is_current = check_version(bytes)? == STATE_VERSION;
            return if is_current { Ok(()) } else { write_version() };
        }
        let is_empty =
            |table: &NamedTable| -> Result<bool> { Ok(table.cursor()?.peek()?.is_none()) };
        if !is_empty(&self.meta)? || !is_empty(&self.blocks)? || !is_empty(&self.accounts)? {
            return Err(Error::NotAState { why: "it has entries and no version" });
        }
        write_version()
    }

    /// A view of all tables at one moment.
    pub(crate) fn views(&self) -> Result<Views> {
        // Taken first: a commit between makes the number too small, and a later commit that relies
        // on the views is refused.
        let commit = self.store.last_commit();
        let mut views = self.store.views(&self.all())?.into_iter();
        let tables = TableSet::make(|_| Ok(views.next().expect("a view of each table")))?;
        Ok(Views { commit, tables })
    }
}

/// Refuses a version that this program does not read.
fn check_version(bytes: &[u8]) -> Result<u32> {
    match <[u8; 4]>::try_from(bytes).map(u32::from_le_bytes) {
        Ok(version @ OLDEST_VERSION..=STATE_VERSION) => Ok(version),
        Ok(found) => Err(Error::UnknownVersion { found, newest: STATE_VERSION }),
        Err(_) => Err(Error::corrupt_entry("the version of the state")),
    }
}

impl Views {
    /// The tables that a reader sees.
    pub(crate) fn of_reader(reader: &StoreReader) -> Result<Self> {
        if reader.tables().iter().any(|table| !NAMES.contains(&table.name.as_str())) {
            return Err(Error::NotAState { why: "the store has other tables" });
        }
        let table = |name: &str| match reader.table(name) {
            Err(terrane_lsm::Error::TableDoesNotExist { .. }) => {
                Err(Error::NotAState { why: "the store lacks a table" })
            }
            table => Ok(table?),
        };
        let views = Self { commit: reader.last_commit(), tables: TableSet::make(table)? };
        match views.meta.get(FORMAT_KEY)?.value() {
            Some(bytes) => {
                check_version(bytes)?;
            }
            None => return Err(Error::NotAState { why: "it has no version" }),
        }
        Ok(views)
    }

    /// Whether an import has not been finished.
    pub(crate) fn is_importing(&self) -> Result<bool> {
        Ok(self.meta.get(IMPORT_KEY)?.value().is_some())
    }

    /// The last block, if there is one.
    pub(crate) fn tip(&self) -> Result<Option<Block>> {
        let found = self.meta.get(TIP_KEY)?;
        let Some(bytes) = found.value() else { return Ok(None) };
        let corrupt = || Error::corrupt_entry("the tip of the state");
        let (height, block) = bytes.split_first_chunk::<8>().ok_or_else(corrupt)?;
        let block = block_of(u64::from_le_bytes(*height), block).ok_or_else(corrupt)?;
        Ok(Some(block))
    }

    /// The lowest height that can be read, if there is a history.
    pub(crate) fn history_floor(&self) -> Result<Option<u64>> {
        self.floor(FLOOR_KEY)
    }

    /// The lowest height that a reorg can reach, if histories were pruned.
    pub(crate) fn reorg_floor(&self) -> Result<Option<u64>> {
        self.floor(REORG_FLOOR_KEY)
    }

    fn floor(&self, key: &[u8]) -> Result<Option<u64>> {
        let found = self.meta.get(key)?;
        let Some(bytes) = found.value() else { return Ok(None) };
        let bytes = bytes.try_into().map_err(|_| Error::corrupt_entry("a floor of the history"))?;
        Ok(Some(u64::from_le_bytes(bytes)))
    }

    /// The block at a height, if it is known.
    pub(crate) fn block(&self, height: u64) -> Result<Option<Block>> {
        let found = self.blocks.get(&height_key(height))?;
        let Some(bytes) = found.value() else { return Ok(None) };
        block_of(height, bytes).map(Some).ok_or_else(|| Error::corrupt_entry("a block"))
    }
}

impl Block {
    pub(crate) fn tip_bytes(&self) -> Vec<u8> {
        [&self.height.to_le_bytes()[..], &self.block_bytes()].concat()
    }

    pub(crate) fn block_bytes(&self) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        bytes[..HASH_BYTES].copy_from_slice(self.hash.as_slice());
        bytes[HASH_BYTES..].copy_from_slice(self.root.as_slice());
        bytes
    }
}

fn block_of(height: u64, bytes: &[u8]) -> Option<Block> {
    let bytes: &[u8; BLOCK_BYTES] = bytes.try_into().ok()?;
    let (hash, root) = bytes.split_at(HASH_BYTES);
    Some(Block { height, hash: B256::from_slice(hash), root: B256::from_slice(root) })
}

/// The key of a height.
#[expect(clippy::big_endian_bytes, reason = "the order of keys is the order of heights")]
pub(crate) fn height_key(height: u64) -> [u8; 8] {
    height.to_be_bytes()
}

/// The height that a key begins with.
#[expect(clippy::big_endian_bytes, reason = "the order of keys is the order of heights")]
pub(crate) fn height_of(key: &[u8]) -> Option<(u64, &[u8])> {
    let (height, rest) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*height), rest))
}

/// The key of a slot.
pub(crate) fn slot_key(account: &B256, slot: &B256) -> [u8; 2 * HASH_BYTES] {
    let mut key = [0; 2 * HASH_BYTES];
    key[..HASH_BYTES].copy_from_slice(account.as_slice());
    key[HASH_BYTES..].copy_from_slice(slot.as_slice());
    key
}

/// The key of a node of a storage trie.
pub(crate) fn storage_node_key(account: &B256, path: &Path) -> NodeKey {
    let mut key = NodeKey::with_capacity(HASH_BYTES + path.len());
    key.extend_from_slice(account.as_slice());
    key.extend_from_slice(path);
    key
}

/// The key of a node in the table of its trie.
pub(crate) fn node_key(owner: Option<&B256>, path: &Path) -> NodeKey {
    match owner {
        Some(owner) => storage_node_key(owner, path),
        None => NodeKey::from_slice(path),
    }
}

/// The key of an entry in the history of values, without the height.
pub(crate) fn value_history_key(kind: EntryKind, key: &[u8]) -> Vec<u8> {
    [&[kind as u8], key].concat()
}

/// The key of a node in the history of its table, without the height.
pub(crate) fn node_history_key(key: &[u8]) -> Vec<u8> {
    [key, &[PATH_END]].concat()
}

/// Calls `each` with the entries of histories that belong to a change: the keys of a change behind
/// its height, and its value. Returns their number; `None` if the change breaks the format.
pub(crate) fn histories_of<'t>(
    tables: &'t Tables,
    (change, value): (&[u8], &[u8]),
    height: u64,
    mut each: impl FnMut(&'t NamedTable, Vec<u8>),
) -> Option<usize> {
    let TableSet { value_history, account_node_history, storage_node_history, .. } =
        &tables.handles;
    let (kind, key) = change.split_first()?;
    let height = height_key(height);
    let entry_of = |node: &[u8]| [&node_history_key(node)[..], &height].concat();
    let (table, owner) = match *kind {
        1..=3 => {
            each(value_history, [change, &height].concat());
            return Some(1);
        }
        ACCOUNT_NODE_KIND => {
            each(account_node_history, entry_of(key));
            return Some(1);
        }
        STORAGE_NODE_KIND => {
            each(storage_node_history, entry_of(key));
            return Some(1);
        }
        ACCOUNT_NODES_KIND => (account_node_history, None),
        STORAGE_NODES_KIND => {
            let owner = key.split_first_chunk().map(|(owner, _)| B256::new(*owner));
            (storage_node_history, Some(owner?))
        }
        _ => return None,
    };
    let paths = read_paths(value)?;
    for path in &paths {
        each(table, entry_of(&node_key(owner.as_ref(), path)));
    }
    Some(paths.len())
}

/// Whether a change, by its key behind the height, is one of nodes.
pub(crate) fn is_of_nodes(change: &[u8]) -> bool {
    matches!(change.first(), Some(ACCOUNT_NODE_KIND..=STORAGE_NODES_KIND))
}

/// The key of a list of nodes of a trie that changed at a height.
#[expect(clippy::big_endian_bytes, reason = "the order of keys is the order of lists")]
pub(crate) fn list_key(height: u64, owner: Option<&B256>, number: u32) -> Vec<u8> {
    let number = number.to_be_bytes();
    match owner {
        None => change_key(height, ACCOUNT_NODES_KIND, &number),
        Some(owner) => {
            change_key(height, STORAGE_NODES_KIND, &[owner.as_slice(), &number].concat())
        }
    }
}

/// The path that stands in the key of a node behind the owner.
pub(crate) fn node_path(digits: &[u8]) -> Option<Path> {
    let is_path = digits.len() <= 2 * HASH_BYTES && digits.iter().all(|digit| *digit < 16);
    is_path.then(|| Path::new(digits))
}

/// Appends a path to a list: its length, and two digits a byte.
pub(crate) fn put_path(path: &[u8], list: &mut Vec<u8>) {
    debug_assert!(path.len() <= 2 * HASH_BYTES);
    list.push(path.len() as u8);
    let pack = |pair: &[u8]| pair[0] << 4 | pair.get(1).copied().unwrap_or_default();
    list.extend(path.chunks(2).map(pack));
}

/// Reads a list of paths.
fn read_paths(mut list: &[u8]) -> Option<Vec<Path>> {
    let mut paths = Vec::new();
    while let Some((length, rest)) = list.split_first() {
        let length = usize::from(*length);
        let (packed, rest) = rest.split_at_checked(length.div_ceil(2))?;
        let mut digits: Vec<u8> = packed.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect();
        let is_filled_up = digits.get(length).is_none_or(|digit| *digit == 0);
        if 2 * HASH_BYTES < length || !is_filled_up {
            return None;
        }
        digits.truncate(length);
        paths.push(Path::new(&digits));
        list = rest;
    }
    Some(paths)
}

/// The key of a change.
pub(crate) fn change_key(height: u64, kind: u8, key: &[u8]) -> Vec<u8> {
    [&height_key(height)[..], &[kind], key].concat()
}

/// The value of a change: the value of the entry before.
pub(crate) fn change_value(before: Option<&[u8]>) -> Vec<u8> {
    match before {
        None => vec![ABSENT_TAG],
        Some(value) => [&[PRESENT_TAG], value].concat(),
    }
}

/// Reads a value before.
#[expect(clippy::option_option, reason = "bytes that are none, and a value that was absent")]
pub(crate) fn read_before(value: &[u8]) -> Option<Option<&[u8]>> {
    match value.split_first()? {
        (&ABSENT_TAG, []) => Some(None),
        (&PRESENT_TAG, value) => Some(Some(value)),
        _ => None,
    }
}

/// The record of a node before a block, as a history keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeBefore<'a> {
    Absent,
    Whole(&'a [u8]),
    /// A difference, which leads back from the record after the block.
    Difference(Stated, &'a [u8]),
}

/// The value of a change of a node in its history. Without `is_copy`, a branch that stays one is
/// kept as a difference, unless the whole record is as short.
pub(crate) fn node_change_value(
    before: Option<&Record>,
    after: Option<&Record>,
    is_copy: bool,
) -> Vec<u8> {
    let whole = before.map(Record::to_bytes);
    if let (Some(whole), Some(Record::Branch(before)), Some(Record::Branch(after)), false) =
        (&whole, before, after, is_copy)
    {
        let (stated, difference) = difference(before, after);
        if difference.len() < whole.len() {
            let tag = match stated {
                Stated::Hashes => HASHES_TAG,
                Stated::ShapeAndHashes => SHAPE_TAG,
            };
            return [&[tag], &difference[..]].concat();
        }
    }
    change_value(whole.as_deref())
}

/// Reads the value of a change of a node.
pub(crate) fn read_node_before(value: &[u8]) -> Option<NodeBefore<'_>> {
    match value.split_first()? {
        (&HASHES_TAG, bytes) => Some(NodeBefore::Difference(Stated::Hashes, bytes)),
        (&SHAPE_TAG, bytes) => Some(NodeBefore::Difference(Stated::ShapeAndHashes, bytes)),
        _ => read_before(value).map(|before| before.map_or(NodeBefore::Absent, NodeBefore::Whole)),
    }
}

/// Reads what follows the height in the key of a change of an entry, and its value.
#[expect(clippy::type_complexity, reason = "an entry and its value before")]
pub(crate) fn read_change<'a>(
    key: &'a [u8],
    value: &'a [u8],
) -> Option<(EntryKind, &'a [u8], Option<&'a [u8]>)> {
    let (kind, key) = key.split_first()?;
    let (kind, bytes) = match *kind {
        1 => (EntryKind::Account, HASH_BYTES),
        2 => (EntryKind::Slot, 2 * HASH_BYTES),
        3 => (EntryKind::Code, HASH_BYTES),
        _ => return None,
    };
    let before = read_before(value)?;
    (key.len() == bytes).then_some((kind, key, before))
}
