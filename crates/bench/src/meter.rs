//! What a run costs in memory and on disk.

use std::io;
use std::path::Path;

/// Returns the resident memory of this process in bytes; `None` where the system does not tell.
#[must_use]
pub fn rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Returns the bytes of all files below `dir`, each counted once however many names it has; 0 if
/// there is no such directory. Files that vanish meanwhile are left out.
///
/// # Errors
/// What the system says about a directory that cannot be read.
pub fn store_bytes(dir: &Path) -> io::Result<u64> {
    let mut total = 0;
    let mut linked = std::collections::BTreeSet::new();
    let mut open = vec![dir.to_path_buf()];
    while let Some(dir) = open.pop() {
        let entries = match std::fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if meta.is_dir() {
                open.push(entry.path());
            } else if linked.insert(identity(&meta, entry.path())) {
                total += meta.len();
            }
        }
    }
    Ok(total)
}

/// What two names of one file have in common.
#[cfg(unix)]
fn identity(meta: &std::fs::Metadata, _: std::path::PathBuf) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (meta.dev(), meta.ino())
}

/// Elsewhere every name counts as a file of its own.
#[cfg(not(unix))]
fn identity(_: &std::fs::Metadata, path: std::path::PathBuf) -> std::path::PathBuf {
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_links_count_once_and_sub_directories_count() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/a"), [0; 100]).unwrap();
        std::fs::hard_link(dir.path().join("sub/a"), dir.path().join("b")).unwrap();
        std::fs::write(dir.path().join("c"), [0; 7]).unwrap();
        assert_eq!(store_bytes(dir.path()).unwrap(), 107);
        assert_eq!(store_bytes(&dir.path().join("absent")).unwrap(), 0);
    }
}
