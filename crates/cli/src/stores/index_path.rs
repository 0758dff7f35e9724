//! The place of a B+tree on the command line: a path to its directory, or to its tree file.

use std::path::Path;
use std::sync::Arc;

use terrane::btree::{self, Config, inspect};
use terrane::io::{Disk, EntryKind};

use crate::ui::exit::Failure;

/// Part of an index that a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexPath {
    /// Directory of the index.
    Dir,
    /// Tree file of the index.
    File,
}

impl IndexPath {
    /// Recognises the directory or the tree file of an index; returns `None` for anything else.
    pub(crate) fn of(disk: &Arc<dyn Disk>, path: &Path) -> Result<Option<Self>, Failure> {
        let disk = disk.as_ref();
        let is_file = || inspect::is_tree_file(disk, path);
        Ok(match disk.kind(path).map_err(btree::Error::from)? {
            Some(EntryKind::Directory) => inspect::is_index(disk, path)?.then_some(Self::Dir),
            Some(EntryKind::File) => is_file()?.then_some(Self::File),
            _ => None,
        })
    }

    /// Returns the directory of the index.
    pub(crate) fn dir(self, path: &Path) -> &Path {
        match self {
            Self::Dir => path,
            Self::File => path.parent().unwrap_or(path),
        }
    }
}

/// Returns the configuration of the index in a directory.
///
/// # Errors
/// [`Failure`].
pub(crate) fn config_of(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Config, Failure> {
    let info = inspect::inspect(disk, dir)?;
    let mut config = Config::variable();
    config.key_bytes = info.key_bytes.map(usize::from);
    config.value_bytes = info.value_bytes.map(usize::from);
    Ok(config)
}
