//! Mounted file systems by `/proc/self/mountinfo` of Linux: where a directory lies,
//! on which device, and where control groups are reached.

use std::path::{Path, PathBuf};

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Major and minor number of the device, as `8:1`.
    pub(crate) number: String,
    /// Root of the mounted part within its file system.
    pub(crate) root: PathBuf,
    /// Directory of the mount.
    pub(crate) point: PathBuf,
    /// Options of the mount, as `rw,relatime`.
    pub(crate) seen: String,
    /// Kind of the file system, as `ext4`.
    pub(crate) filesystem: String,
    /// Source of the mount, as `/dev/sda1`.
    pub(crate) source: String,
    /// Options of the file system; for control groups the controllers are among them.
    pub(crate) options: String,
}

impl Mount {
    /// All that this process sees; empty where the system does not tell.
    pub(crate) fn all() -> Vec<Self> {
        parse(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    /// The one that holds `dir`, which must exist.
    pub(crate) fn of(dir: &Path) -> Option<Self> {
        holding(Self::all(), &dir.canonicalize().ok()?)
    }

    /// Whether `option` is among the options.
    pub(crate) fn has_option(&self, option: &str) -> bool {
        self.options.split(',').any(|found| found == option)
    }

    /// The name of the block device below, as the kernel has it in `/proc/diskstats` and
    /// `/sys/block`; `None` where there is none, as in memory or over the network.
    pub(crate) fn device(&self) -> Option<String> {
        let uevent = format!("/sys/dev/block/{}/uevent", self.number);
        if let Ok(uevent) = std::fs::read_to_string(uevent) {
            let name = uevent.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
            return Some(name.to_owned());
        }
        // File systems with device numbers of their own, as btrfs, name their device.
        let source = Path::new(&self.source).canonicalize().ok()?;
        let name = source.strip_prefix("/dev").ok()?.to_str()?;
        Some(name.to_owned())
    }
}

/// The mount that shows `path`: the deepest, and of several in one place the last.
fn holding(mounts: Vec<Mount>, path: &Path) -> Option<Mount> {
    let holders = mounts.into_iter().filter(|mount| path.starts_with(&mount.point));
    holders.max_by_key(|mount| mount.point.as_os_str().len())
}

/// Reads the table; lines of another form are left out.
fn parse(table: &str) -> Vec<Mount> {
    table.lines().filter_map(line).collect()
}

fn line(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(2);
    let number = place.next()?.to_owned();
    let root = PathBuf::from(unescaped(place.next()?));
    let point = PathBuf::from(unescaped(place.next()?));
    let seen = unescaped(place.next()?);
    let mut kind = kind.split(' ').map(unescaped);
    let filesystem = kind.next()?;

    let source = kind.next()?;
    let options = kind.next().unwrap_or_default();
    Some(Mount { number, root, point, seen, filesystem, source, options })
}

/// The kernel writes blanks, line ends and backslashes as `\` and three octal digits.
fn unescaped(field: &str) -> String {
    let codes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    codes.iter().fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 22 0:40 /sub /data\\040one rw - btrfs /dev/vdb1 rw
broken line
31 22 0:28 / /data\\040one rw - tmpfs tmpfs rw,mode=755
35 31 0:32 /group /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
";

    #[test]
    fn the_deepest_and_the_last_mount_holds_a_path() {
        let mounts = parse(TABLE);
        assert_eq!(mounts.len(), 4);
        let held = |path: &str| holding(mounts.clone(), Path::new(path)).unwrap();
        assert_eq!(held("/datax").source, "/dev/vda");
        assert_eq!(held("/data one/x").filesystem, "tmpfs");
        let group = held("/sys/fs/cgroup/memory/a");
        assert_eq!((group.seen.as_str(), group.options.as_str()), ("rw,relatime", "rw,memory"));
        assert_eq!((group.root.as_path(), group.number.as_str()), (Path::new("/group"), "0:32"));
        assert!(group.has_option("memory") && !group.has_option("mem"));
    }
}
