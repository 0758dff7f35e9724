//! Files of a point: their bytes, their pages in the page cache, and a bare append beside them.

use std::path::Path;

use terrane_bench::instruments::{bare, meter};

use crate::engine::{Durability, Error, Result};
use crate::work::Workload;

/// Bare appends that are measured beside durable commits.
const BARE: u64 = 500;

/// Median and 99th percentile of an append and fdatasync of a commit's bytes, beside commits that
/// are durable.
pub fn bare_sync_us(workload: Workload, dir: &Path) -> Result<Option<(f64, f64)>> {
    if workload.durability() != Durability::FsyncEach {
        return Ok(None);
    }
    let bare =
        bare::measure(dir, (workload.committed() * workload.entry_bytes()) as usize, BARE)
            .map_err(|source| Error::System { what: "append and fdatasync".to_owned(), source })?;
    Ok(Some((bare.append_sync_ms.p50 * 1e3, bare.append_sync_ms.p99 * 1e3)))
}

/// Bytes that the files below `dir` occupy.
pub fn disk_bytes(dir: &Path) -> Result<u64> {
    meter::allocated_bytes(dir)
        .map_err(|source| Error::System { what: "count the bytes of the files".to_owned(), source })
}

/// Syncs all files below `dir` and takes them out of the page cache. Pages that the load left there
/// would count for nobody and be read for nothing.
pub fn leave_page_cache(dir: &Path) -> Result<()> {
    let system = |path: &Path| {
        let what = format!("take {} out of the page cache", path.display());
        move |source| Error::System { what, source }
    };
    for entry in std::fs::read_dir(dir).map_err(system(dir))? {
        let path = entry.map_err(system(dir))?.path();
        if path.is_dir() {
            leave_page_cache(&path)?;
            continue;
        }
        let file = std::fs::File::open(&path).map_err(system(&path))?;
        file.sync_all().map_err(system(&path))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|error| system(&path)(error.into()))?;
    }
    Ok(())
}
