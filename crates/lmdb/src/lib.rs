//! LMDB behind a safe interface: an ordered map of bytes in one file, read through a memory map.
//!
//! [`Environment`] serves the back-end of the versioned states: tables, snapshots, a map that
//! grows. [`Lmdb`] is one map of bytes, the rival of Terrane's engines in benchmarks. A batch of
//! [`Lmdb`] is a transaction that is visible at once and durable after a [`flush`](Lmdb::flush).
//! Between two flushes a loss of power may leave the file damaged, which Terrane's engines exclude:
//! benchmarks favour LMDB in that. The memory is that of the system's page cache; only a limit on
//! the process bounds it.
//!
//! Unsafe code: opening, since LMDB trusts that nobody else cuts or changes the file that it has
//! mapped; moving the map; a transaction that owns what it borrows.
//!
//! LMDB has no checksums, and follows page numbers and offsets of its file unchecked. Opening
//! checks the heads and the length of the file. [`check_file`] checks every page without mapping
//! the file, and belongs before the opening of a file that a medium may have damaged. Damage
//! between these checks can end the process or show as wrong answers.

#![deny(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod check;
mod environment;

pub use check::{Finding, check_file};
pub use environment::{
    Environment, EnvironmentAccess, EnvironmentOptions, EnvironmentTable, Failure, Kind, Outcome,
    PageLimit, Pair, ReadTables, Snapshot, StoredTable, SyncMode, Transaction, data_path,
    lock_path,
};
pub use heed::EnvFlags;

use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvOpenOptions, PutFlags, WithTls};

/// Address space that the file may grow into, in bytes; the file takes only the room that it needs.
const MAP_BYTES: usize = 1 << 40;

/// A failure of LMDB.
#[derive(Debug, thiserror::Error)]
#[error("LMDB: {0}")]
pub struct Error(#[from] heed::Error);

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// A map of bytes, open for writing.
#[derive(Debug, Clone)]
pub struct Lmdb {
    env: Env<WithTls>,
    entries: Database<Bytes, Bytes>,
}

impl Lmdb {
    /// Opens the map in an existing directory, or creates an empty one if there is none.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn open(dir: &Path) -> Result<Self> {
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        #[expect(unsafe_code, reason = "no safe way to open")]
        // SAFETY: a commit that is not synced is one that a loss of power may take. The files are
        // LMDB's own, which locks them against other processes and refuses a second opening in this
        // one. Bytes that a program or a medium has changed behind LMDB's back are not checked:
        // what is measured here is a file that the caller has made.
        let env = unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD).open(dir)? };
        let mut transaction = env.write_txn()?;
        let entries = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { env, entries })
    }

    /// Calls `found` with the value of each of `keys`, in their order, as of one moment.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn find_each<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut found: impl FnMut(Option<&[u8]>),
    ) -> Result<()> {
        let transaction = self.env.read_txn()?;
        for key in keys {
            found(self.entries.get(&transaction, key.as_ref())?);
        }
        Ok(())
    }

    /// Sets the values of some keys, all or none; no value removes the key.
    ///
    /// # Errors
    /// Those of LMDB; nothing has changed.
    pub fn apply<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in changes {
            match value {
                Some(value) => self.entries.put(&mut transaction, key, value)?,
                None => {
                    self.entries.delete(&mut transaction, key)?;
                }
            }
        }

        Ok(transaction.commit()?)
    }

    /// Appends entries, ascending and above all entries of the map, which fills pages to the end.
    ///
    /// # Errors
    /// Those of LMDB, also for a key that is not above the one before; nothing has changed.
    pub fn append<'a>(
        &self,
        entries: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in entries {
            self.entries.put_with_flags(&mut transaction, PutFlags::APPEND, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    /// Removes all entries.
    ///
    /// # Errors
    /// Those of LMDB; nothing has changed.
    pub fn clear(&self) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        self.entries.clear(&mut transaction)?;
        Ok(transaction.commit()?)
    }

    /// Makes all applied batches durable. Cost: writes the file's pages that the system has not
    /// written yet.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn flush(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    /// Number of entries. Costs nothing.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn len(&self) -> Result<u64> {
        let transaction = self.env.read_txn()?;
        Ok(self.entries.len(&transaction)?)
    }

    /// Whether there is no entry.
    ///
    /// # Errors
    /// Those of LMDB.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(map: &Lmdb, keys: &[&str]) -> Vec<Option<Vec<u8>>> {
        let mut values = Vec::new();
        map.find_each(keys, |value| values.push(value.map(<[u8]>::to_vec))).unwrap();
        values
    }

    #[test]
    fn what_was_applied_is_found_also_after_opening_again() {
        let dir = tempfile::tempdir().unwrap();
        let map = Lmdb::open(dir.path()).unwrap();
        let set = |key: &'static str, value: Option<&'static str>| {
            (key.as_bytes(), value.map(str::as_bytes))
        };

        map.apply([set("a", Some("1")), set("b", Some("2")), set("c", Some("3"))]).unwrap();
        map.apply([set("b", None), set("c", Some("4")), set("x", None)]).unwrap();
        map.flush().unwrap();
        let expected = vec![Some(b"1".to_vec()), None, Some(b"4".to_vec())];
        assert_eq!(find(&map, &["a", "b", "c"]), expected);
        drop(map);
        let map = Lmdb::open(dir.path()).unwrap();
        assert_eq!((map.len().unwrap(), find(&map, &["a", "b", "c"])), (2, expected));
        map.clear().unwrap();
        assert!(map.is_empty().unwrap());
        map.append([(&b"a"[..], &b"1"[..]), (b"b", b"2")]).unwrap();
        assert!(map.append([(&b"a"[..], &b"1"[..])]).is_err(), "not above");
        assert_eq!(map.len().unwrap(), 2);
    }

    #[test]
    fn tables_are_found_by_name_with_their_flags() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = EnvOpenOptions::new();
        options.map_size(1 << 20).max_dbs(4);
        #[expect(unsafe_code, reason = "no safe way to open")]
        // SAFETY: nobody else knows the directory.
        let env = unsafe { options.open(dir.path()) }.unwrap();
        let mut transaction = env.write_txn().unwrap();
        let plain = env.create_database::<Bytes, Bytes>(&mut transaction, Some("plain")).unwrap();
        plain.put(&mut transaction, b"key", b"value").unwrap();
        let mut several = env.database_options().types::<Bytes, Bytes>();
        several.flags(heed::DatabaseFlags::DUP_SORT | heed::DatabaseFlags::REVERSE_KEY);
        several.name("several").create(&mut transaction).unwrap();
        let main = env.create_database::<Bytes, Bytes>(&mut transaction, None).unwrap();
        main.put(&mut transaction, b"no table", &[0; 48]).unwrap();
        transaction.commit().unwrap();
        env.prepare_for_closing().wait();

        let options = EnvironmentOptions {
            access: EnvironmentAccess::Read,
            map_bytes: 0,
            readers_max: 4,
            tables_max: 4,
            directory: true,
            read_ahead: true,
            write_map: false,
            sync: SyncMode::Full,
        };
        let environment = Environment::open(dir.path(), &options).unwrap();
        let snapshot = environment.snapshot().unwrap();
        let flags = |name| snapshot.find_table(name).unwrap().map(|found| found.flags);
        assert_eq!(flags(None), Some(Vec::new()));
        assert_eq!(flags(Some("plain")), Some(Vec::new()));
        assert_eq!(flags(Some("several")), Some(vec!["reversekey", "dupsort"]));
        assert_eq!((flags(Some("no table")), flags(Some("absent"))), (None, None));
        let plain = snapshot.find_table(Some("plain")).unwrap().unwrap().table;
        assert_eq!(snapshot.get(plain, b"key").unwrap().as_deref(), Some(&b"value"[..]));
    }
}
