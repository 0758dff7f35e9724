//! Opens the store that a command is given with `--store`.

use std::fs;
use std::io;
use std::path::Path;

use terrane::io::RealDisk;
use terrane::io::disk::create_dirs;
use terrane::{Durability, Session, SessionOptions, Store, StoreOptions};

use crate::exit::Failure;

/// Parts of a store, of which one suffices for it to be taken for one.
const PARTS: [&str; 3] = ["metadata", "active", "snapshots"];

/// A command makes one commit and closes the store, so a short log takes no time and little space.
const LOG_BYTES: u64 = 4 << 20;

/// Checks that a store is there, or can be `made` where nothing or an empty directory is.
fn check(store: &Path, made: bool) -> Result<(), Failure> {
    let shown = store.display();
    match fs::read_dir(store) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && made => {
            if let Some(parent) = store.parent() {
                create_dirs(RealDisk::auto().as_ref(), parent)
                    .map_err(|error| Failure::environment(error.to_string()))?;
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Failure::usage(format!("{shown} does not exist")))
        }
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(Failure::usage(format!("{shown} is no directory")))
        }
        Err(error) => Err(Failure::environment(format!("{shown}: {error}"))),
        Ok(mut entries) => {
            let is_store = PARTS.iter().any(|part| store.join(part).exists());
            let can_be_made = made && entries.next().is_none();
            if is_store || can_be_made {
                Ok(())
            } else {
                Err(Failure::usage(format!("{shown} is no store of Terrane")))
            }
        }
    }
}

/// Opens a store for its snapshots; it must be there, or may be `made` if it is missing or empty.
///
/// # Errors
/// [`Failure`], as the library refuses it.
pub(crate) fn open_session(store: &Path, made: bool) -> Result<Session, Failure> {
    check(store, made)?;
    Ok(Session::open_dir(store, &SessionOptions::default().create_dir())?)
}

/// Opens a store for its named tables; each commit is durable when the call returns.
///
/// # Errors
/// As [`open_session`].
pub(crate) fn open_store(store: &Path, made: bool) -> Result<Store, Failure> {
    check(store, made)?;
    let options = StoreOptions::default().create_dir().durability(Durability::Each);
    let options = options.log_bytes_max(LOG_BYTES);
    Ok(Store::open_dir(store, &options)?)
}
