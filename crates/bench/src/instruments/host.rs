//! The machine that a figure was measured on: the group `host` of reports.
//!
//! A field is absent where the system does not tell.

use std::path::Path;

use serde::Serialize;
use terrane::io::{Disk, QueueKind, RealDisk};

use crate::instruments::mounts::Mount;

/// The first kernel with `io_uring`: major and minor number.
const FIRST_WITH_IO_URING: (u32, u32) = (5, 1);

/// A machine, and the device below one directory of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Host {
    /// The operating system, as `linux`.
    pub os: &'static str,
    /// The kernel's release.
    pub kernel: String,
    /// The processor, by its maker's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// Cores that this process may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<usize>,
    /// Memory of the machine in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The kind of file system, as `ext4`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<String>,
    /// The device, by its maker's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_model: Option<String>,
    /// `nvme`, `ssd`, `hdd`, `virtual`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_kind: Option<&'static str>,
    /// Bytes of a page of memory.
    pub page_size_bytes: usize,
    /// Whether this is a container, as far as can be seen.
    pub container: bool,
    /// `yes`, `denied` (the kernel has it, and does not let this process), `absent`.
    pub io_uring: &'static str,
}

impl Host {
    /// This machine, and the device that holds `dir`.
    #[must_use]
    pub fn of(dir: &Path) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mount = Mount::of(dir);
        let device = mount.as_ref().and_then(Mount::device);
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();

        Self {
            os: std::env::consts::OS,
            cpu_model: value(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().ok().map(usize::from),
            memory_bytes: value(&read("/proc/meminfo"), "MemTotal")
                .and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok())
                .map(|kibibytes| kibibytes * 1024),
            filesystem: mount.map(|mount| mount.filesystem),
            device_model: device.as_deref().and_then(device_model),
            device_kind: device.as_deref().and_then(device_kind),
            page_size_bytes: rustix::param::page_size(),
            container: is_container(),
            io_uring: io_uring(RealDisk::auto().queue_kind(), &kernel),
            kernel,
        }
    }
}

/// File system and device of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Mounted {
    /// The kind of file system, as `ext4`.
    pub filesystem: String,
    /// The device or server.
    pub device: String,
    /// Options of the mount and of the file system.
    pub mount_options: String,
}

impl Mounted {
    /// Returns the file system of `dir`; `None` where the system does not tell.
    #[must_use]
    pub fn of(dir: &Path) -> Option<Self> {
        let Mount { filesystem, source, seen, options, .. } = Mount::of(dir)?;
        let mut mount_options = seen;
        let given = mount_options.clone();
        for option in
            options.split(',').filter(|option| !given.split(',').any(|one| one == *option))
        {
            mount_options.push(',');
            mount_options.push_str(option);
        }
        Some(Self { filesystem, device: source, mount_options })
    }
}

/// Processes that ran or waited, on average over the last 1, 5 and 15 minutes.
#[must_use]
pub fn load_average() -> Option<[f64; 3]> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let mut numbers = text.split_whitespace().map_while(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

/// Revision of the source that this program was built from, if the build has set
/// `TERRANE_REVISION`.
#[must_use]
pub fn revision() -> Option<&'static str> {
    option_env!("TERRANE_REVISION")
}

/// The value of the first line `name: value`.
fn value(text: &str, name: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    values.next().map(str::to_owned)
}

/// The attribute of a block device in `/sys`; that of the whole device if `device` is a part of it.
fn attribute(device: &str, name: &str) -> Option<String> {
    let dir = Path::new("/sys/class/block").join(device).canonicalize().ok()?;
    let whole = dir.parent()?;
    let read = |dir: &Path| std::fs::read_to_string(dir.join(name)).ok();
    let text = read(&dir).or_else(|| read(whole))?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn device_model(device: &str) -> Option<String> {
    attribute(device, "device/model")
}

fn device_kind(device: &str) -> Option<&'static str> {
    // A virtual device reports rotation by default, so its answer is not used.
    match device {
        name if name.starts_with("nvme") => Some("nvme"),
        name if name.starts_with("vd") || name.starts_with("xvd") => Some("virtual"),
        name => match attribute(name, "queue/rotational")?.as_str() {
            "0" => Some("ssd"),
            _ => Some("hdd"),
        },
    }
}

/// The marks that the usual container engines leave.
fn is_container() -> bool {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    marks.iter().any(|mark| Path::new(mark).exists()) || std::env::var_os("container").is_some()
}

/// Whether this process has `io_uring`, after what a disk found out and the kernel's release.
fn io_uring(queue: QueueKind, kernel: &str) -> &'static str {
    if queue == QueueKind::IoUring {
        return "yes";
    }
    let mut numbers = kernel.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let is_there = cfg!(target_os = "linux") && version >= FIRST_WITH_IO_URING;
    if is_there { "denied" } else { "absent" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_whole_names() {
        let text = "MemTotal2: 1 kB\nmodel name\t: A B  \nMemTotal:  16 kB\nmodel name : C\n";
        assert_eq!(value(text, "model name").as_deref(), Some("A B"));
        assert_eq!(value(text, "MemTotal").as_deref(), Some("16 kB"));
        assert_eq!(value(text, "Mem"), None);
    }

    #[test]
    fn a_kernel_that_refuses_rings_is_told_from_one_without() {
        assert_eq!(io_uring(QueueKind::IoUring, "4.4"), "yes");
        assert_eq!(io_uring(QueueKind::Threads, "5.0.21-generic"), "absent");
        assert_eq!(io_uring(QueueKind::Threads, "unknown"), "absent");
        let refused = if cfg!(target_os = "linux") { "denied" } else { "absent" };
        assert_eq!(io_uring(QueueKind::Threads, "5.1.0"), refused);
        assert_eq!(io_uring(QueueKind::Threads, "6.18-rc1"), refused);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_is_described() {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::of(dir.path());
        assert_eq!(host.os, "linux");
        assert!(host.cores >= Some(1) && host.memory_bytes > Some(1 << 24), "{host:?}");
        assert!(host.page_size_bytes.is_power_of_two() && host.page_size_bytes >= 4096, "{host:?}");
        assert!(host.filesystem.is_some(), "{host:?}");
        let mounted = Mounted::of(dir.path()).unwrap();
        assert_eq!(Some(mounted.filesystem), host.filesystem);

        assert!(mounted.mount_options.split(',').any(|option| option == "rw"));
        assert!(load_average().unwrap().iter().all(|load| *load >= 0.0));
        let json = serde_json::to_value(&host).unwrap();
        assert!(json.as_object().unwrap().values().all(|value| !value.is_null()), "{json}");
    }
}
