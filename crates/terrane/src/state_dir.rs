//! Radix states in directories, whatever their back-end.
//!
//! A directory holds one radix store and names its back-end, so a program, a tool and the command
//! line `terrane` all open it by its path alone:
//!
//! ```no_run
//! use std::path::Path;
//! use terrane::radix::{Address, Change, Root};
//! use terrane::state_dir::{self, BackEnd};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = Path::new("/var/lib/node/state");
//!
//! // Creates the store with this back-end, or opens the store that is there.
//! let store = state_dir::open_or_create(dir, BackEnd::Btree)?;
//! let tree = store.tree_or_create("ledger")?;
//! let address: Address = "00ff".parse()?;
//! let committed = tree.commit(&Root::EMPTY, &[Change::Set(address, b"value".to_vec())])?;
//!
//! store.close()?;
//! drop(store); // releases the lock of the directory
//!
//! // Opens it again: the directory knows its back-end.
//! let store = state_dir::open(dir)?;
//!
//! // Reads it beside the process that writes it.
//! let reader = state_dir::open_read_only(dir)?;
//! let value = reader.tree("ledger")?.get_one(&committed.root, &address)?;
//! assert_eq!(value.as_deref(), Some(&b"value"[..]));
//! drop((store, reader));
//! # Ok(())
//! # }
//! ```
//!
//! [`radix::open_dir`](crate::radix::open_dir) is the short form for a state over LSM tables.
//! [`OpenOptions`] has the rest: durability, servers of Redis and Cassandra, cache sizes, repair.
//!
//! | name               | content                                                          |
//! |--------------------|------------------------------------------------------------------|
//! | `radix-store`      | the marker: back-end, and the address of servers                 |
//! | `radix-store.new`  | the marker while the store is being created                      |
//! | `radix-store.lock` | lock of the writing process, whose number it holds               |
//! | `database`         | files of the back-end: a directory, or a file with others beside |
//!
//! The marker is text; `docs/format/radix-marker.md` has it in full. It never holds a password.
//!
//! * Where `radix-store` stands, the database is complete. A directory with `radix-store.new` alone
//!   is an interrupted creation: it holds no data, and the next creation there finishes it.
//! * A writer holds the lock, because a store keeps the number of the next version in memory.
//!   Readers run beside the writer without the lock. On media that a reader cannot write, it shares
//!   the lock for LMDB and SQLite, whose own locks it could not take.
//! * Names in the directory are never followed if they are symbolic links.
//!
//! Modules: `error`, then the anchored directory `dir`, the `marker`, and `open`, where to begin
//! reading.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::RealDisk;
use terrane_kv::{Database, Durability};
use terrane_radix::INDEXES;

use crate::back_end::Location;

// Bottom-up: a module imports only from modules above it.
mod error;
mod dir;
mod marker;
mod open;

pub use self::dir::MARKER_BYTES_MAX;
pub use self::error::{Error, Result};
pub use self::marker::{MARKER_MAGIC, MARKER_VERSION, Marker};
pub use self::open::{OpenOptions, OpenStore};
pub use crate::back_end::{BackEnd, CassandraAddress, Password, RedisAddress, without_user};

use self::dir::{DATABASE, MARKER, MARKER_NEW, StateDir};

/// Opens the radix store of a directory for writing, whatever its back-end.
///
/// # Errors
/// Those of [`OpenOptions::open`].
pub fn open(dir: &Path) -> Result<OpenStore> {
    OpenOptions::default().open(dir)
}

/// Opens the radix store of a directory for reading, beside the process that writes it.
///
/// # Errors
/// Those of [`OpenOptions::open`].
pub fn open_read_only(dir: &Path) -> Result<OpenStore> {
    OpenOptions::default().read_only().open(dir)
}

/// Opens the radix store of a directory for writing, or creates one of this back-end in a missing
/// or empty directory.
///
/// # Errors
/// Those of [`OpenOptions::open_or_create`].
pub fn open_or_create(dir: &Path, back_end: BackEnd) -> Result<OpenStore> {
    OpenOptions::new(back_end).open_or_create(dir)
}

/// Opens a bare database with the indexes of a radix store, or creates it: no marker, no lock of a
/// directory.
///
/// The parent of `path` must exist; memory and servers ignore `path`. `redis` and `cassandra` are
/// for the back-ends of these names.
///
/// # Errors
/// [`Error::NotBuilt`], and [`Error::Database`] with the error of the back-end:
/// [`kv::Error::Unsupported`] says why the back-end lacks a durability.
///
/// [`kv::Error::Unsupported`]: crate::kv::Error::Unsupported
pub fn open_database(
    back_end: BackEnd,
    path: &Path,
    redis: Option<&RedisAddress>,
    cassandra: Option<&CassandraAddress>,
    durability: Durability,
) -> Result<Arc<dyn Database>> {
    let disk = RealDisk::auto();
    let location = Location { back_end, disk, path, redis, cassandra, indexes: &INDEXES };
    Ok(location.open(durability)?)
}

/// Whether a directory holds a radix store, be it an unfinished or a damaged one.
///
/// # Errors
/// Those of the system. A marker that the system cannot look at does not count as missing.
pub fn is_store(dir: &Path) -> Result<bool> {
    let Some(dir) = StateDir::of(dir)? else { return Ok(false) };
    Ok(dir.has(MARKER)? || dir.has(MARKER_NEW)?)
}

/// Path of the database in the directory of a radix store.
#[must_use]
pub fn database_path(dir: &Path) -> PathBuf {
    dir.join(DATABASE)
}

/// Lists damage of the files of a back-end that opening them might not survive, one finding a line.
///
/// LMDB follows page numbers and offsets of its file unchecked; other back-ends check what they
/// read, so there are no findings for them. Cost: reads the file.
///
/// # Errors
/// Those of the system.
pub fn damage_of_files(back_end: BackEnd, database: &Path) -> Result<Vec<String>> {
    #[cfg(feature = "lmdb")]
    if back_end == BackEnd::Lmdb {
        use std::io;
        use terrane_backends::lmdb::{Finding, check_file};

        match database.symlink_metadata() {
            Ok(metadata) if metadata.is_file() => {}
            // Opening says what is wrong with anything but a file.
            Ok(_) => return Ok(Vec::new()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io(database, error)),
        }

        let findings = check_file(database).map_err(|error| Error::io(database, error))?;
        let line = |finding: &Finding| match finding.page {
            Some(page) => format!("page {page}: {}", finding.rule),
            None => finding.rule.clone(),
        };

        return Ok(findings.iter().map(line).collect());
    }

    let _ = (back_end, database);
    Ok(Vec::new())
}
