//! Compaction: a packed copy takes the place of the file.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;
use terrane_kv::Result;
use terrane_lmdb::{Environment, Failure, Kind};

use super::environment::{INDEX, MAIN};
use super::failure::{back_end_error, busy, error_of, full};

/// Bytes of LMDB's heads at the beginning of a file. Each transaction changes them.
const HEADS_BYTES: usize = 128 << 10;

/// Makes the name of a file durable.
pub(super) fn sync_folder(file: &Path) -> std::io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

fn read_heads(data: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut heads = Vec::new();
    File::open(data)?.take(HEADS_BYTES as u64).read_to_end(&mut heads)?;
    Ok(heads)
}

/// Writes a copy without free pages beside the file `data`; packs it, unless the file has tables of
/// other programs. Returns the heads that the file had before.
pub(super) fn copy_compact(environment: &Environment, data: &Path, copy: &Path) -> Result<Vec<u8>> {
    let system = |error: std::io::Error| back_end_error("compact", error);
    // An interrupted compaction may have left a copy.
    match std::fs::remove_file(copy) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(system(error));
        }
        _ => {}
    }

    let lmdb = |failure| error_of("compact", failure);
    // No commit changes the heads while this transaction lives.
    let heads = {
        let _writing = environment.transaction().map_err(lmdb)?;
        read_heads(data).map_err(system)?
    };

    let is_own = |name: &[u8]| name == MAIN.as_bytes() || name.starts_with(INDEX.as_bytes());
    let bytes = environment.used_bytes();
    let full_or = |failure: Failure| match failure.kind {
        // LMDB reports a short write as an I/O error of no special kind.
        Kind::Other if matches!(environment.has_room(bytes), Ok(false)) => {
            full("disk, quota or size of a file", Some(failure.into()))
        }
        _ => lmdb(failure),
    };

    let packed = environment.copy_packed(copy, is_own);
    let copied = packed.and_then(|done| if done { Ok(()) } else { environment.copy(copy) });
    copied.map_err(full_or)?;
    Ok(heads)
}

/// Replaces the closed file `data` by the copy, if the file still has these heads. `locks`: the
/// file of locks.
pub(super) fn replace(data: &Path, locks: &Path, copy: &Path, heads: &[u8]) -> Result<()> {
    let system = |error: std::io::Error| back_end_error("compact", error);

    // A process that has the environment open holds a lock on this file, and a process that opens
    // the environment waits for the lock.
    let locks = File::options().read(true).write(true).open(locks).map_err(system)?;
    rustix::fs::fcntl_lock(&locks, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| busy("another process has it open"))?;

    // Each commit changes a head, so equal heads prove that none came after the copy.
    if read_heads(data).map_err(system)? != heads {
        return Err(busy("another process has written meanwhile"));
    }

    std::fs::rename(copy, data).map_err(system)?;
    sync_folder(data).map_err(system)
}
