//! The manifest of a store that is open: what stands on disk, and how another one takes its place.

use crate::error::{Error, Result};
use crate::manifest::MANIFEST_BYTES_MAX;
use crate::session_core::{ACTIVE, SessionCore};
use crate::store_manifest::{COPIES, StoreManifest};
use crate::trace::event;

/// The manifest on disk.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) manifest: StoreManifest,
    /// Files that an older copy names, which may be the one that survives; pinned until both are new.
    pub(crate) older: Vec<u64>,
}

/// Whether a rename has failed, and may have been done.
fn is_of_rename(error: &Error) -> bool {
    matches!(error, Error::Disk(terrane_io::Error::Io { call: "rename", .. }))
}

impl Published {
    /// Writes a manifest whose files are durable. Says whether both copies are new.
    pub(crate) fn publish(&mut self, core: &SessionCore, next: StoreManifest) -> Result<bool> {
        let next = StoreManifest { sequence: self.manifest.sequence + 1, ..next };
        let files = core.files();
        let bytes = next.encode();
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(Error::SnapshotTooLarge { bytes: bytes.len(), limit: MANIFEST_BYTES_MAX });
        }
        core.sync_dir(ACTIVE)?;
        files.pin(next.numbers());
        let _right = files.open_files().may_write()?;
        let [first, second] = COPIES.map(|name| core.dir().join(name));
        if let Err(error) = core.write_whole(&first, &bytes) {
            if is_of_rename(&error) {
                // Nobody knows whether it has its name.
                core.poison(&first, error)?;
            } else {
                unpin(core, next.numbers().collect());
                return Err(error);
            }
        }
        let both = core.write_whole(&second, &bytes);
        // After a failed sync the copies may be there or not: what they name stays.
        core.sync_root()?;
        let old = std::mem::replace(&mut self.manifest, next);
        self.older.extend(old.numbers());
        if let Err(error) = both {
            event!(WARN, "cleanup.failed", core.dir(), %error);
            return Ok(false);
        }
        unpin(core, std::mem::take(&mut self.older));
        Ok(true)
    }
}

/// Lets go of files that no manifest names any more.
fn unpin(core: &SessionCore, numbers: Vec<u64>) {
    if let Err(error) = core.let_go(numbers) {
        event!(WARN, "cleanup.failed", core.dir(), %error);
    }
}
