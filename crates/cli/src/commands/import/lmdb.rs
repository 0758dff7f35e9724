//! Entries of a database of an LMDB environment, as of one moment. Another process may write to it.

use std::ops::Bound;
use std::path::Path;
use std::vec;

use terrane_lmdb::{
    Environment, EnvironmentAccess, EnvironmentOptions, EnvironmentTable, Kind, PageLimit, Pair,
    ReadTables as _, Snapshot, SyncMode, data_path,
};

use super::input::{Entry, Input, refused_flag};
use crate::ui::exit::Failure;

/// Limit of the entries that are read at once.
const PAGE: PageLimit = PageLimit { entries: 1_024, bytes: 1 << 20 };

/// Bytes of the record of a database in the main database.
const RECORD_BYTES: usize = 48;

/// Most databases that are open at a time: the one that is read, and one that is looked for.
const TABLES_MAX: u32 = 4;

/// Slots for readers, if the environment is not in use.
const READERS_MAX: u32 = 126;

/// Database of an environment.
pub(super) struct Database {
    /// Path of the environment, for messages.
    name: String,
    snapshot: Snapshot,
    table: EnvironmentTable,
    /// Whether this is the main database, which may hold the names of others.
    is_main: bool,
    page: vec::IntoIter<Pair>,
    last: Option<Vec<u8>>,
}

impl Database {
    /// Opens the database of a name, or the main one, of the environment in a directory or a file.
    ///
    /// # Errors
    /// [`Failure`], also for a database with several values of a key.
    pub(super) fn open(path: &Path, database: Option<&str>) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let directory = path.is_dir();
        let data = data_path(path, directory);
        if !data.is_file() {
            return Err(Failure::usage(format!("{} does not exist", data.display())));
        }

        let options = EnvironmentOptions {
            access: EnvironmentAccess::Read,
            // The size that the environment has.
            map_bytes: 0,
            readers_max: READERS_MAX,
            tables_max: TABLES_MAX,
            directory,
            read_ahead: true,
            write_map: false,
            sync: SyncMode::Full,
        };

        let failed = |error: terrane_lmdb::Failure| unreadable(&name, &error);
        let environment = Environment::open(path, &options).map_err(failed)?;
        let snapshot = environment.snapshot().map_err(failed)?;
        let stored = snapshot.find_table(database).map_err(failed)?;
        let Some(stored) = stored else {
            let database = database.unwrap_or_default();
            return Err(Failure::usage(format!("{name} has no database `{database}`")));
        };

        if let Some(flag) = stored.flags.first() {
            return Err(refused_flag(&name, flag));
        }

        let is_main = database.is_none();
        let page = Vec::new().into_iter();
        Ok(Self { name, snapshot, table: stored.table, is_main, page, last: None })
    }

    /// Refuses an entry of the main database that stands for another database.
    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        if !self.is_main || value.len() != RECORD_BYTES {
            return Ok(());
        }
        let Ok(name) = str::from_utf8(key) else { return Ok(()) };
        if name.contains('\0') {
            return Ok(());
        }

        let found = self.snapshot.find_table(Some(name));
        match found.map_err(|error| unreadable(&self.name, &error))? {
            None => Ok(()),
            Some(_) => Err(Failure::usage(format!(
                "{} has a database `{name}`; next: name the database to import, --database {name}",
                self.name
            ))),
        }
    }
}

/// Returns the failure of an environment that cannot be read.
fn unreadable(name: &str, error: &terrane_lmdb::Failure) -> Failure {
    let message = format!("{name}: {error}");
    match error.kind {
        Kind::Corrupted => Failure::usage(message),
        _ => Failure::environment(message),
    }
}

impl Input for Database {
    fn next(&mut self) -> Result<Option<Entry>, Failure> {
        if self.page.as_slice().is_empty() {
            let behind = self.last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let page = self.snapshot.page_after(self.table, behind, PAGE);
            let page = page.map_err(|error| unreadable(&self.name, &error))?;
            self.last = page.last().map(|(key, _)| key.clone()).or(self.last.take());
            self.page = page.into_iter();
        }

        let Some((key, value)) = self.page.next() else { return Ok(None) };
        self.check(&key, &value)?;

        Ok(Some(Entry { key, value, blob: None }))
    }

    fn place(&self) -> String {
        self.name.clone()
    }
}
