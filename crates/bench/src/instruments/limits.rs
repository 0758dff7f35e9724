//! A limit on the memory of this process, page cache included: a control group of Linux, made for
//! it.
//!
//! Memory counts for the group that a process was in when it asked for it, so the limit is set
//! before anything is opened. Swap is excluded where the system can do that. Dropping the limit
//! moves the process back and removes the group; after a kill the group stays, empty, and the next
//! limit of the same process id takes it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::instruments::mounts::Mount;
use terrane_replay::error::Class;

/// Reason why no limit could be set.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no memory control group below which one could be made.
    #[error(
        "this system has no control group for memory that this process could use; \
         mount one, or start the program with `systemd-run --scope -p MemoryMax=BYTES` instead of a limit of its own"
    )]
    Absent,
    /// The system refused a step.
    #[error(
        "cannot limit memory: {call} failed on {}: {source}; run as root, or have the group handed over to this user",
        .path.display()
    )]
    Refused {
        /// The attempt that failed.
        call: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl Error {
    /// Returns the class of the error, from which the exit code follows.
    #[must_use]
    pub fn class(&self) -> Class {
        Class::Environment
    }
}

/// The two generations of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Version {
    /// The file with the limit in bytes.
    fn limit(self) -> &'static str {
        match self {
            Self::V1 => "memory.limit_in_bytes",
            Self::V2 => "memory.max",
        }
    }

    /// The file with a limit that excludes swap, and what to write into it where `bytes` is the
    /// limit.
    fn swap(self, bytes: u64) -> (&'static str, String) {
        match self {
            // Memory and swap together.
            Self::V1 => ("memory.memsw.limit_in_bytes", bytes.to_string()),
            Self::V2 => ("memory.swap.max", "0".to_owned()),
        }
    }

    /// The line of `memory.stat` with the page cache.
    fn page_cache(self) -> &'static str {
        match self {
            Self::V1 => "cache",
            Self::V2 => "file",
        }
    }
}

/// A limit that holds for this process and its children as long as this is kept.
#[derive(Debug)]
pub struct MemoryLimit {
    version: Version,
    /// Made by us; gone when this is dropped.
    group: PathBuf,
    /// Control group of the process before.
    home: PathBuf,
    /// The most page cache that was there at any reading.
    page_cache_peak_bytes: AtomicU64,
}

impl MemoryLimit {
    /// Puts this process into a new control group of `bytes`. What it has in memory already does
    /// not count.
    ///
    /// # Errors
    /// [`Error`], and the process is where it was.
    pub fn set(bytes: u64) -> Result<Self, Error> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let (version, home) = home(&Mount::all(), &groups).ok_or(Error::Absent)?;
        let parent = match version {
            Version::V1 => home.clone(),
            Version::V2 => divided(&home).ok_or(Error::Absent)?,
        };

        let group = parent.join(format!("terrane-{}", std::process::id()));
        match std::fs::create_dir(&group) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::Refused { call: "mkdir", path: group, source: error });
            }
            _ => {}
        }

        // From here on, a drop restores the former group.
        let limit = Self { version, group, home, page_cache_peak_bytes: AtomicU64::new(0) };
        write(&limit.group.join(version.limit()), &bytes.to_string())?;
        let (swap, swap_bytes) = version.swap(bytes);

        // A kernel that does not count swap has no such file.
        let _ = std::fs::write(limit.group.join(swap), swap_bytes);
        enter(&limit.group)?;
        Ok(limit)
    }

    /// Name of the mechanism in reports: `cgroup_v1` or `cgroup_v2`.
    #[must_use]
    pub fn enforced_by(&self) -> &'static str {
        match self.version {
            Version::V1 => "cgroup_v1",
            Version::V2 => "cgroup_v2",
        }
    }

    /// Reads how much page cache the group has, and returns the most of all readings so far; so it
    /// is called now and then during a run.
    ///
    /// Cost: one small file.
    #[must_use]
    pub fn page_cache_peak_bytes(&self) -> Option<u64> {
        let stat = std::fs::read_to_string(self.group.join("memory.stat")).ok()?;
        let now = statistic(&stat, self.version.page_cache())?;
        Some(self.page_cache_peak_bytes.fetch_max(now, Ordering::Relaxed).max(now))
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // A drop cannot return the error; the rest is an empty group.
        let _ = enter(&self.home);
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// Moves this process, with all its threads.
fn enter(group: &Path) -> Result<(), Error> {
    write(&group.join("cgroup.procs"), &std::process::id().to_string())
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|source| Error::Refused {
        call: "write",
        path: path.to_owned(),
        source,
    })
}

/// The value of the line `name value`.
fn statistic(stat: &str, name: &str) -> Option<u64> {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

/// The directory of the control group for memory that this process is in, after the mounts and
/// `/proc/self/cgroup`. A controller is in one generation at a time, and the first if that has it.
fn home(mounts: &[Mount], groups: &str) -> Option<(Version, PathBuf)> {
    let first =
        mounts.iter().find(|mount| mount.filesystem == "cgroup" && mount.has_option("memory"));
    let (version, mount) = match first {
        Some(mount) => (Version::V1, mount),
        None => (Version::V2, mounts.iter().find(|mount| mount.filesystem == "cgroup2")?),
    };

    // Lines are `number:controllers:path`; the second generation has the number 0 and no
    // controllers.
    let path = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let path = fields.next()?;
        let is_ours = match version {
            Version::V1 => controllers.split(',').any(|controller| controller == "memory"),
            Version::V2 => controllers.is_empty(),
        };
        is_ours.then_some(path)
    })?;

    // A container may see a part of the tree only, and paths from the root of the whole one.
    let below =
        Path::new(path).strip_prefix(&mount.root).or_else(|_| Path::new(path).strip_prefix("/"));
    Some((version, mount.point.join(below.ok()?)))
}

/// The nearest group of the second generation that hands memory down to its children: `home` itself
/// only if it is the root, since others may have either processes or such children.
fn divided(home: &Path) -> Option<PathBuf> {
    let hands_down = |dir: &Path| {
        let control = std::fs::read_to_string(dir.join("cgroup.subtree_control"));
        control.is_ok_and(|control| control.split_whitespace().any(|name| name == "memory"))
    };
    [Some(home), home.parent()]
        .into_iter()
        .flatten()
        .find(|dir| hands_down(dir))
        .map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(root: &str, point: &str, filesystem: &str, options: &str) -> Mount {
        Mount {
            seen: String::new(),
            number: "0:1".to_owned(),
            root: root.into(),
            point: point.into(),
            filesystem: filesystem.to_owned(),
            source: "cgroup".to_owned(),
            options: options.to_owned(),
        }
    }

    #[test]
    fn the_group_is_found_in_either_generation() {
        let groups = "9:name=systemd:/s\n4:cpu,memory:/outer/a\n0::/b/c\n";
        let second = mount("/", "/sys/fs/cgroup/unified", "cgroup2", "rw");
        let mounts = [second.clone(), mount("/outer", "/m", "cgroup", "rw,memory")];
        assert_eq!(home(&mounts, groups), Some((Version::V1, "/m/a".into())));
        let inside = home(&mounts, "4:memory:/\n");
        assert_eq!(inside, Some((Version::V1, "/m/".into())));
        let found = home(&[second], groups);
        assert_eq!(found, Some((Version::V2, "/sys/fs/cgroup/unified/b/c".into())));
        assert_eq!(home(&[mount("/", "/m", "cgroup", "rw,cpu")], groups), None);
    }

    #[test]
    fn a_group_that_hands_memory_down_is_looked_for_upwards() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        std::fs::create_dir(&home).unwrap();
        std::fs::write(home.join("cgroup.subtree_control"), "cpu\n").unwrap();
        assert_eq!(divided(&home), None);
        std::fs::write(dir.path().join("cgroup.subtree_control"), "cpu memory\n").unwrap();
        assert_eq!(divided(&home).as_deref(), Some(dir.path()));
        std::fs::write(home.join("cgroup.subtree_control"), "memory\n").unwrap();
        assert_eq!(divided(&home), Some(home));
    }

    #[test]
    fn statistics_are_found_by_whole_names() {
        let stat = "cache 4096\nrss 1\nfile_mapped 7\nfile 9\n";
        assert_eq!(statistic(stat, Version::V1.page_cache()), Some(4096));
        assert_eq!(statistic(stat, Version::V2.page_cache()), Some(9));
        assert_eq!(statistic(stat, "mapped"), None);
    }

    /// If the system allows a limit, the test sees the whole cycle; otherwise it checks the advice.
    #[test]
    fn a_limit_holds_until_it_is_dropped_or_is_refused_with_advice() {
        const BYTES: u64 = 1 << 30;
        let group_now = || std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let before = group_now();
        let name = format!("terrane-{}", std::process::id());

        match MemoryLimit::set(BYTES) {
            Ok(limit) => {
                assert!(group_now().contains(&name), "{}", group_now());
                let group = limit.group.clone();
                let found = std::fs::read_to_string(group.join(limit.version.limit())).unwrap();
                assert_eq!(found.trim(), BYTES.to_string());
                let peak = limit.page_cache_peak_bytes().unwrap();
                assert!(peak < BYTES && limit.page_cache_peak_bytes() >= Some(peak));
                drop(limit);
                assert!(!group.exists());
            }
            Err(error) => {
                assert_eq!(error.class(), Class::Environment);
                assert!(
                    error.to_string().contains("systemd-run") || error.to_string().contains("root")
                );
            }
        }

        assert_eq!(group_now(), before);
    }
}
