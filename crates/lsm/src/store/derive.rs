//! Secondary indexes: [`NamedTable::derive`] makes an index, or registers its function, and
//! [`DerivedIndex`] reads it.
//!
//! An index is built from a view of its table while commits go on: a bulk load, and then the
//! differences to a later view. At last, with all writers held, what was committed since is added,
//! and one manifest names the index. That is a commit without a record, as the installation of any
//! table is.
//!
//! Invariant: an index of version *v* in a manifest has exactly the entries that the functions of
//! that version made of its table as of the same commit.
//!
//! *Rejected:* building in the commits that follow (an index that is not whole yet must be told
//! from one that is, by everybody); changing the index behind the commit (a reader would see an
//! entry without its index entry, and a crash would leave it so); functions in the file format (a
//! language of its own); an index that takes part in the table's runs (each layout of keys would
//! need its own compaction).

use std::collections::BTreeMap;
use std::iter::FusedIterator;
use std::ops::RangeBounds;
use std::sync::Arc;

use crate::config::TableConfig;
use crate::entry::entry::Update;
use crate::entry::key_range::KeyRange;
use crate::error::{Error, Result};
use crate::files::file_set::lock;
use crate::manifest::manifest::{NamedMeta, StoreManifest};
use crate::store::index_batches::tell_differences;
use crate::store::index_entries::{
    Derivation, IndexChange, IndexEntries, keys_of, split, update_of,
};
use crate::store::inner::TableKey;
use crate::store::install::{NewIndex, Target};
use crate::store::options::TableName;
use crate::store::store::{NamedTable, Store};
use crate::table::cursor::Cursor;
use crate::table::table::Table;
use crate::trace::event;

/// Entries of a table between two batches of its index, while that is built or verified.
const ENTRIES: usize = 1_000;

/// Changes that are added to an index at a time.
const CHANGES: usize = 10_000;

/// A secondary index of a named table; clones are the same index. Made by [`NamedTable::derive`].
#[derive(Debug, Clone)]
pub struct DerivedIndex {
    source: NamedTable,
    table: NamedTable,
    derivation: Derivation,
}

/// A secondary index in a list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DerivedIndexInfo {
    /// Its name, which is that of a table.
    pub name: TableName,
    /// The table that the index is derived from.
    pub table: TableName,
    /// Version of the function that made the index; 0 if the index must be made anew.
    pub version: u32,
    /// Whether this process has registered the function, so that it can change the table.
    pub is_registered: bool,
}

/// An entry of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct IndexRecord {
    /// The index key.
    pub index_key: Vec<u8>,
    /// The key of the entry of the table.
    pub key: Vec<u8>,
    /// The value that the function has given to the entry of the index.
    pub value: Vec<u8>,
}

/// Result of a comparison of an index with its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct IndexCheck {
    /// Entries of the index.
    pub entries: u64,
    /// Entries that follow from the table.
    pub expected: u64,
    /// Entries that follow from the table, and that the index lacks.
    pub missing: u64,
    /// Entries with another value than follows from the table.
    pub different: u64,
    /// Entries that do not follow from the table.
    pub surplus: u64,
}

impl IndexCheck {
    /// Whether the index has what follows from its table and nothing else.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        (self.missing, self.different, self.surplus) == (0, 0, 0)
    }
}

/// Entries of an index in the order of their index keys, and of one index key in the order of the
/// table's keys.
///
/// After an error the iterator ends.
#[derive(Debug)]
pub struct IndexRange {
    cursor: Cursor,
    is_over: bool,
}

impl IndexRange {
    /// The entries under one index key in a table that is an index: in a view, in a version, or in
    /// what a [`StoreReader`](crate::StoreReader) gives.
    ///
    /// Cost: that of [`Table::range`].
    ///
    /// # Errors
    /// The errors of [`Table::range`].
    pub fn at(index: &Table, index_key: impl AsRef<[u8]>) -> Result<Self> {
        let index_key = index_key.as_ref();
        Self::over(index, index_key..=index_key)
    }

    /// The entries under the index keys in a range.
    ///
    /// Cost: that of [`Table::range`].
    ///
    /// # Errors
    /// The errors of [`Table::range`].
    pub fn over<'k>(index: &Table, index_keys: impl RangeBounds<&'k [u8]>) -> Result<Self> {
        let range = keys_of(&KeyRange::new(&index_keys));
        Ok(Self { cursor: index.cursor_over(range)?, is_over: false })
    }

    fn next_record(&mut self) -> Result<Option<IndexRecord>> {
        let Some(record) = self.cursor.next_ref()? else { return Ok(None) };
        let (index_key, key) = split(record.key).ok_or(Error::NotAnIndex)?;
        let (key, value) = (key.to_vec(), record.value.to_vec());
        Ok(Some(IndexRecord { index_key, key, value }))
    }
}

impl Iterator for IndexRange {
    type Item = Result<IndexRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let next = self.next_record().transpose();
        self.is_over = !matches!(next, Some(Ok(_)));
        next
    }
}

impl FusedIterator for IndexRange {}

/// An index that is being built: a table, and the view of the source that it follows from.
struct Building {
    table: Table,
    view: Arc<Table>,
}

impl Building {
    /// Builds the index of a view.
    fn of(
        store: &Store,
        view: Arc<Table>,
        config: &TableConfig,
        derivation: &Derivation,
    ) -> Result<Self> {
        let mut loader = store.session().bulk_load(config)?;
        let mut cursor = view.cursor()?;
        let mut changes: Vec<IndexChange> = Vec::new();
        while let Some(record) = cursor.next_ref()? {
            derivation.changes(record.key, (None, Some(record.value)), &mut changes);
            if changes.len() >= CHANGES {
                loader.write_batch(&updates_of(&changes))?;
                changes.clear();
            }
        }
        loader.write_batch(&updates_of(&changes))?;
        drop(cursor);
        Ok(Self { table: loader.finish()?, view })
    }

    /// Makes the index that of a later view.
    fn catch_up(&mut self, later: Arc<Table>, derivation: &Derivation) -> Result<()> {
        let mut changes = Vec::new();
        let table = &mut self.table;
        tell_differences(&self.view, &later, &mut |key, old, new| {
            derivation.changes(key, (old, new), &mut changes);
            if changes.len() >= CHANGES {
                table.write_batch(&updates_of(&changes))?;
                changes.clear();
            }
            Ok(())
        })?;
        table.write_batch(&updates_of(&changes))?;
        self.view = later;
        Ok(())
    }
}

fn updates_of(changes: &[IndexChange]) -> Vec<(&[u8], Update<'_>)> {
    changes.iter().map(update_of).collect()
}

/// The table of an index's name, if it is an index of `source`.
fn index_in<'a>(
    manifest: &'a StoreManifest,
    source: u64,
    name: &TableName,
) -> Result<Option<&'a NamedMeta>> {
    if let Some(table) = manifest.tables.iter().find(|table| table.id == source)
        && table.derived.is_some()
    {
        return Err(Error::TableIsIndex { table: table.name.clone() });
    }
    let found = manifest.tables.iter().find(|table| table.name == name.as_str());
    match found {
        Some(table) if table.derived.is_none_or(|derived| derived.source != source) => {
            Err(Error::TableExists { name: name.to_string() })
        }
        found => Ok(found),
    }
}

impl NamedTable {
    /// A secondary index of the table: what `function` makes of each entry. From now on each commit
    /// to the table changes the index, too; both are in one record of the WAL. The index is a named
    /// table that nothing else changes.
    ///
    /// `function` gets the key and the value of an entry, without its blob, and adds entries of the
    /// index. It must always make the same of the same entry, and must not use the store. Raise
    /// `version` (1 at first) when the function is another one: the index is then made anew.
    ///
    /// A program calls this each time after it has opened the store: a commit to a table with an
    /// index whose function is not registered is refused. Programs that do not know of indexes
    /// refuse the store.
    ///
    /// ```
    /// use terrane_lsm::{Store, StoreOptions, TableConfig};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let store = Store::open_dir(folder.path(), &StoreOptions::default())?;
    /// let coins = store.create_table("coins", &TableConfig::default())?;
    /// coins.insert(b"coin-1", b"alice 50")?.wait()?;
    ///
    /// let by_owner = coins.derive("by-owner", 1, |_, coin, entries| {
    ///     let owner = coin.split(|&byte| byte == b' ').next().unwrap_or_default();
    ///     entries.add(owner, b"");
    /// })?;
    /// coins.insert(b"coin-2", b"alice 7")?.wait()?; // the index has it with the same commit
    ///
    /// let coins: Vec<_> = by_owner.get("alice")?.collect::<Result<_, _>>()?;
    /// assert_eq!(coins.len(), 2);
    /// assert_eq!(coins[1].key, b"coin-2");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Cost: no I/O if the index is there in this version. Else reads the table once, and writes
    /// the index as [`Store::bulk_load`] does; commits go on meanwhile, but for a moment at the end
    /// as in [`Store::install_with`]. Each commit to the table then looks up the old entries of its
    /// keys; a deletion of a range reads the range.
    ///
    /// # Errors
    /// [`Error::TableExists`] if another table has the name; [`Error::TableIsIndex`] for an index
    /// of an index; [`Error::KeyTooLarge`] for an entry that is too long; [`Error::InvalidConfig`]
    /// for version 0; those of [`Store::install_with`]. After an error, or a crash, there is no
    /// such index, or the one before, or all of this one.
    #[doc(alias("secondary_index", "create_index"))]
    pub fn derive(
        &self,
        index: &(impl AsRef<str> + ?Sized),
        version: u32,
        function: impl Fn(&[u8], &[u8], &mut IndexEntries<'_>) + Send + Sync + 'static,
    ) -> Result<DerivedIndex> {
        self.derive_with(index, version, &TableConfig::default(), function)
    }

    /// The same with a configuration for an index that is made now. One that is there keeps its
    /// own, also if it is made anew.
    ///
    /// # Errors
    /// The errors of [`derive`](Self::derive).
    pub fn derive_with(
        &self,
        index: &(impl AsRef<str> + ?Sized),
        version: u32,
        config: &TableConfig,
        function: impl Fn(&[u8], &[u8], &mut IndexEntries<'_>) + Send + Sync + 'static,
    ) -> Result<DerivedIndex> {
        let name = TableName::new(index.as_ref())?;
        if version == 0 {
            return Err(Error::InvalidConfig {
                option: "version",
                value: version.to_string(),
                allowed: "1 or more".to_owned(),
            });
        }
        let derivation = Derivation::new(version, function);
        loop {
            if let Some(table) = self.register(&name, &derivation)? {
                return Ok(DerivedIndex { source: self.clone(), table, derivation });
            }
            match self.make_index(&name, config, &derivation) {
                // Another thread was faster, or another table has the name.
                Err(Error::TableExists { .. }) => {}
                made => {
                    return Ok(DerivedIndex { source: self.clone(), table: made?, derivation });
                }
            }
        }
    }

    fn store(&self) -> Store {
        Store { shared: Arc::clone(&self.shared) }
    }

    /// Registers the function of an index that is there in this version.
    fn register(&self, name: &TableName, derivation: &Derivation) -> Result<Option<NamedTable>> {
        let shared = &self.shared;
        let published = lock(&shared.published);
        shared.inner.check_writable()?;
        let Some(found) = index_in(&published.manifest, self.key.id, name)? else {
            return Ok(None);
        };
        if found.derived.is_none_or(|derived| derived.version != derivation.version) {
            return Ok(None);
        }

        // No commit is between its look at the indexes and its record.
        let _writer = lock(&self.slot.writer);
        let state = lock(&shared.state);
        let slot = Arc::clone(state.slot(found.id, name)?);
        shared.renew_indexes(&state, &published.manifest, Some((found.id, derivation)));
        let key = TableKey { id: found.id, name: name.clone() };
        Ok(Some(NamedTable { shared: Arc::clone(shared), key, slot }))
    }

    /// Makes an index, or makes it anew.
    fn make_index(
        &self,
        name: &TableName,
        config: &TableConfig,
        derivation: &Derivation,
    ) -> Result<NamedTable> {
        let shared = &self.shared;
        let store = self.store();
        event!(DEBUG, "store.derive", shared.inner.dir(), %name, version = derivation.version);
        let there =
            index_in(&lock(&shared.published).manifest, self.key.id, name)?.map(|table| table.id);
        let (target, config) = match there {
            Some(_) => (Target::Existing, store.table(name)?.view()?.config().clone()),
            None => (Target::New, config.clone()),
        };

        let mut building = Building::of(&store, self.view()?, &config, derivation)?;
        // What was committed meanwhile is little to what is built, so that little is left for the
        // moment in which commits wait.
        building.catch_up(self.view()?, derivation)?;
        let index = NewIndex { source: self.key.id, derivation: derivation.clone() };
        let written = Store::write_index(name, &building.table, index.clone())?;
        let made = store.commit_by_manifest(name, target, Vec::new(), || {
            let manifest_source = self.view()?;
            building.catch_up(manifest_source, derivation)?;
            Store::write_index(name, &building.table, index)
        });
        drop(written);
        made
    }
}

impl DerivedIndex {
    /// The index as a table, for views, statistics and configuration; commits to it are refused.
    #[must_use]
    pub fn table(&self) -> &NamedTable {
        &self.table
    }

    /// The table that the index is derived from.
    #[must_use]
    pub fn source(&self) -> &NamedTable {
        &self.source
    }

    /// The entries under an index key as the last commit left them: [`IndexRange::at`]. To read the
    /// index and its table at one commit, use [`Store::views`].
    ///
    /// # Errors
    /// The errors of [`NamedTable::view`] and [`Table::range`].
    pub fn get(&self, index_key: impl AsRef<[u8]>) -> Result<IndexRange> {
        IndexRange::at(&*self.table.view()?, index_key)
    }

    /// The entries under the index keys in a range: [`IndexRange::over`].
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn range<'k>(&self, index_keys: impl RangeBounds<&'k [u8]>) -> Result<IndexRange> {
        IndexRange::over(&*self.table.view()?, index_keys)
    }

    /// Compares the index with what follows from its table, both as of one commit.
    ///
    /// Cost: a scan of both, and a lookup in the index for each of its entries.
    ///
    /// # Errors
    /// The errors of [`Store::views`], scans and lookups. An index that differs is no error.
    pub fn verify(&self) -> Result<IndexCheck> {
        let views = self.source.store().views(&[&self.source, &self.table])?;
        let (source, index) = (&views[0], &views[1]);
        let mut check = IndexCheck { entries: index.count_exact()?, ..IndexCheck::default() };
        let mut found = 0;
        let mut look_up = |expected: &mut BTreeMap<Vec<u8>, Vec<u8>>| -> Result<()> {
            let keys: Vec<_> = expected.keys().collect();
            for (value, there) in expected.values().zip(index.get_many(&keys)?) {
                check.expected += 1;
                match there.value() {
                    Some(there) => {
                        found += 1;
                        check.different += u64::from(there != value.as_slice());
                    }
                    None => check.missing += 1,
                }
            }
            expected.clear();
            Ok(())
        };

        let mut cursor = source.cursor()?;
        let mut expected = BTreeMap::new();
        while let Some(record) = cursor.next_ref()? {
            expected.extend(self.derivation.entries(record.key, Some(record.value)));
            if expected.len() >= ENTRIES {
                look_up(&mut expected)?;
            }
        }
        look_up(&mut expected)?;
        debug_assert!(found <= check.entries, "each was found in the index");
        check.surplus = check.entries - found;
        Ok(check)
    }

    /// Makes the index anew, as for another version of the function.
    ///
    /// # Errors
    /// The errors of [`NamedTable::derive`].
    pub fn rebuild(&self) -> Result<()> {
        let config = self.table.view()?.config().clone();
        // It may have another name by now.
        let id = self.table.key.id;
        let name = {
            let published = lock(&self.source.shared.published);
            let found = published.manifest.tables.iter().find(|table| table.id == id);
            let missing = || Error::TableDoesNotExist { name: self.table.name().to_string() };
            TableName(found.ok_or_else(missing)?.name.clone())
        };
        self.source.make_index(&name, &config, &self.derivation).map(drop)
    }
}

impl Store {
    /// The secondary indexes, sorted by name. Cost: no I/O.
    ///
    /// # Errors
    /// [`Error::SessionClosed`].
    pub fn indexes(&self) -> Result<Vec<DerivedIndexInfo>> {
        self.shared.inner.check_open()?;
        let published = lock(&self.shared.published);
        let known = self.shared.indexes();
        let tables = &published.manifest.tables;
        let mut infos = Vec::new();
        for table in tables {
            let Some(derived) = table.derived else { continue };
            let Some(source) = tables.iter().find(|source| source.id == derived.source) else {
                continue;
            };
            infos.push(DerivedIndexInfo {
                name: TableName(table.name.clone()),
                table: TableName(source.name.clone()),
                version: derived.version,
                is_registered: known.is_registered(table.id),
            });
        }
        infos.sort_by(|one, next| one.name.cmp(&next.name));
        Ok(infos)
    }
}
