//! Cost of a run: processor time, memory, bytes read and written, and room on disk.
//!
//! Figures are those that Linux keeps in `/proc`; elsewhere they are absent. They count a whole
//! process, or a whole device, from its beginning, so a run is the difference of two readings.

use std::io;
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::instruments::mounts::Mount;

/// Bytes of the sectors that the kernel counts devices in, whatever their own are.
const SECTOR_BYTES: u64 = 512;

/// Resources that all threads of this process have used since it began.
///
/// Bytes and calls are also those of children that have ended and were waited for, as Linux adds
/// them; so no yardstick is measured between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Usage {
    /// Processor time in seconds, to the nanosecond.
    pub cpu_s: f64,
    /// The part of it outside the kernel, to the kernel's tick of (mostly) 10 ms.
    pub user_s: f64,
    /// The part of it inside the kernel, to the same tick.
    pub system_s: f64,
    /// Bytes that it has made block devices read.
    pub read_bytes: u64,
    /// Bytes that it has made block devices write, or will have once the page cache is written
    /// back.
    pub write_bytes: u64,
    /// Calls to read; requests of `io_uring` are not among them.
    pub read_calls: u64,
    /// Calls to write; requests of `io_uring` are not among them.
    pub write_calls: u64,
    /// Context switches of the threads that are alive, voluntary or not.
    pub context_switches: u64,
}

impl Usage {
    /// A reading; `None` where the system does not tell.
    ///
    /// Cost: a few small files of `/proc`, one of them for each thread.
    #[must_use]
    pub fn now() -> Option<Self> {
        let io = std::fs::read_to_string("/proc/self/io").ok()?;
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let (user, system) = ticks(&stat)?;
        let tick_s = 1.0 / rustix::param::clock_ticks_per_second() as f64;

        Some(Self {
            cpu_s: process_cpu_s(),
            user_s: user as f64 * tick_s,
            system_s: system as f64 * tick_s,
            read_bytes: field(&io, "read_bytes:")?,
            write_bytes: field(&io, "write_bytes:")?,
            read_calls: field(&io, "syscr:")?,
            write_calls: field(&io, "syscw:")?,
            context_switches: context_switches()?,
        })
    }

    /// Returns the use since the reading `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            cpu_s: self.cpu_s - before.cpu_s,
            user_s: self.user_s - before.user_s,
            system_s: self.system_s - before.system_s,
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
            read_calls: self.read_calls.saturating_sub(before.read_calls),
            write_calls: self.write_calls.saturating_sub(before.write_calls),
            context_switches: self.context_switches.saturating_sub(before.context_switches),
        }
    }

    /// The sum of what was used in two stretches of time.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            cpu_s: self.cpu_s + other.cpu_s,
            user_s: self.user_s + other.user_s,
            system_s: self.system_s + other.system_s,
            read_bytes: self.read_bytes + other.read_bytes,
            write_bytes: self.write_bytes + other.write_bytes,
            read_calls: self.read_calls + other.read_calls,
            write_calls: self.write_calls + other.write_calls,
            context_switches: self.context_switches + other.context_switches,
        }
    }
}

/// Returns the processor time of all threads of this process so far, in seconds.
#[must_use]
pub fn process_cpu_s() -> f64 {
    clock_s(ClockId::ProcessCPUTime)
}

/// Returns the processor time of the calling thread so far, in seconds.
#[must_use]
pub fn thread_cpu_s() -> f64 {
    clock_s(ClockId::ThreadCPUTime)
}

fn clock_s(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The number after `name` at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Ticks in user mode and in the kernel, from `/proc/self/stat`; the command's name before them may
/// hold anything.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// The switches of all threads that are alive, of either kind.
fn context_switches() -> Option<u64> {
    let mut total = 0;
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        // A thread may end meanwhile.
        let Ok(status) = std::fs::read_to_string(thread.ok()?.path().join("status")) else {
            continue;
        };
        total += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
        total += field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
    }
    Some(total)
}

/// Requests and bytes of a block device since boot, by all processes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DeviceUsage {
    /// Reads completed.
    pub read_requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub write_requests: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl DeviceUsage {
    /// A reading of the device that holds `dir`; `None` if there is none, as in memory, or the
    /// system does not tell.
    #[must_use]
    pub fn of(dir: &Path) -> Option<Self> {
        let device = Mount::of(dir)?.device()?;
        device_usage(&std::fs::read_to_string("/proc/diskstats").ok()?, &device)
    }

    /// Returns the requests and bytes since the reading `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            read_requests: self.read_requests.saturating_sub(before.read_requests),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            write_requests: self.write_requests.saturating_sub(before.write_requests),
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
        }
    }

    /// The sum of what was done in two stretches of time.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            read_requests: self.read_requests + other.read_requests,
            read_bytes: self.read_bytes + other.read_bytes,
            write_requests: self.write_requests + other.write_requests,
            write_bytes: self.write_bytes + other.write_bytes,
        }
    }
}

/// The row of `device`: numbers, name, then reads, merged ones, sectors, time; and the same for
/// writes.
fn device_usage(table: &str, device: &str) -> Option<DeviceUsage> {
    let row = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = row.into_iter().find(|row| row.get(2) == Some(&device))?;
    let number = |at: usize| row.get(at)?.parse::<u64>().ok();
    Some(DeviceUsage {
        read_requests: number(3)?,
        read_bytes: number(5)? * SECTOR_BYTES,
        write_requests: number(7)?,
        write_bytes: number(9)? * SECTOR_BYTES,
    })
}

/// Returns the resident memory of this process in bytes; `None` where the system does not tell.
#[must_use]
pub fn rss_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

/// Returns the most resident memory that this process has had, in bytes, since it began or since
/// [`reset_rss_peak`]; `None` where the system does not tell.
#[must_use]
pub fn rss_peak_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// Makes [`rss_peak_bytes`] count from now on. Returns whether the system allows it.
pub fn reset_rss_peak() -> bool {
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Returns the number of files that this process has open; `None` where the system does not tell.
#[must_use]
pub fn open_files() -> Option<u64> {
    // The directory that is read here is among the files.
    Some((std::fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1))
}

/// A line of the process's status, which is in KiB.
fn status_bytes(name: &str) -> Option<u64> {
    Some(field(&std::fs::read_to_string("/proc/self/status").ok()?, name)? * 1024)
}

/// Returns the bytes of all files below `dir`, each counted once however many names it has; 0 if
/// there is no such directory. Files that vanish meanwhile are left out.
///
/// # Errors
/// Those of the system, for a directory that cannot be read.
pub fn store_bytes(dir: &Path) -> io::Result<u64> {
    sum_of_files(dir, std::fs::Metadata::len)
}

/// Returns the bytes of the blocks that the file system has allocated to the files, whatever their
/// lengths.
///
/// # Errors
/// Those of [`store_bytes`].
pub fn allocated_bytes(dir: &Path) -> io::Result<u64> {
    sum_of_files(dir, allocated)
}

/// The unit of a file's count of blocks, whatever those of its file system.
#[cfg(unix)]
fn allocated(meta: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    meta.blocks() * 512
}

/// Elsewhere only its length is known.
#[cfg(not(unix))]
fn allocated(meta: &std::fs::Metadata) -> u64 {
    meta.len()
}

fn sum_of_files(dir: &Path, bytes: impl Fn(&std::fs::Metadata) -> u64) -> io::Result<u64> {
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
                total += bytes(&meta);
            }
        }
    }

    Ok(total)
}

/// Returns the device and inode, which two names of one file share.
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
        let sparse = std::fs::File::create(dir.path().join("sparse")).unwrap();

        sparse.set_len(1 << 30).unwrap();
        assert!(store_bytes(dir.path()).unwrap() > 1 << 30);
        assert!(allocated_bytes(dir.path()).unwrap() < 1 << 24);
    }

    #[test]
    fn fields_are_found_behind_any_name_of_a_command() {
        let stat = "7 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 123 45 0 0 20 0";
        assert_eq!(ticks(stat), Some((123, 45)));
        assert_eq!(ticks("7 (a) S 1 2"), None);
        assert_eq!(field("rchar: 1\nread_bytes: 77\n", "read_bytes:"), Some(77));
        assert_eq!(field("cancelled_write_bytes: 1\n", "write_bytes:"), None);
    }

    #[test]
    fn a_device_is_found_by_its_whole_name() {
        let table = "\
 254       0 vda1 1 1 1 1 1 1 1 1 0 1 1
 254       0 vda 100 5 1600 9 20 6 480 8 0 1 1
";
        let usage = device_usage(table, "vda").unwrap();
        assert_eq!((usage.read_requests, usage.read_bytes), (100, 1600 * 512));
        assert_eq!((usage.write_requests, usage.write_bytes), (20, 480 * 512));
        assert_eq!(device_usage(table, "vd"), None);
        let later = DeviceUsage { read_requests: 101, ..usage };
        assert_eq!(later.since(&usage), DeviceUsage { read_requests: 1, ..Default::default() });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn work_shows_in_the_usage() {
        let before = Usage::now().unwrap();
        let mut number = 1;
        while Usage::now().unwrap().since(&before).cpu_s < 0.03 {
            number = std::hint::black_box(number) * 3 % 1_000_003;
        }
        let usage = Usage::now().unwrap().since(&before);
        assert!(usage.cpu_s >= 0.03, "{usage:?} {number}");
        assert!(usage.user_s + usage.system_s <= usage.cpu_s + 0.05, "{usage:?}");
        assert!(usage.read_calls > 0, "{usage:?}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_of_memory_stays_until_it_is_reset() {
        const BYTES: u64 = 128 << 20;
        let memory = std::hint::black_box(vec![1u8; BYTES as usize]);
        assert!(rss_bytes().unwrap() >= BYTES);
        drop(memory);
        let peak = rss_peak_bytes().unwrap();
        assert!(peak >= BYTES, "{peak}");

        if reset_rss_peak() {
            // Other tests take memory at the same time, but not as much.
            let after = rss_peak_bytes().unwrap();
            assert!(after + BYTES / 2 < peak, "{after} {peak}");
        }
    }
}
