//! Header of every benchmark report: program, arguments, time, and the rate of the device.

use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use terrane::state_dir;
use terrane_bench::instruments::device::{self, Beside, Pattern, Yardstick};
use terrane_bench::instruments::host::{self, Host};

use crate::ui::exit::Failure;
use crate::ui::progress::Progress;
use crate::ui::text;

/// Duration of one measurement of the device.
const YARDSTICK_S: f64 = 5.0;

/// Measures the device of a store; returns `None` without a store.
pub(super) fn yardstick_of(
    store: Option<&PathBuf>,
    progress: &mut Progress,
) -> Result<Option<Yardstick>, Failure> {
    let measure = |store| device::measure(store, YARDSTICK_S, progress);
    Ok(store.map(PathBuf::as_path).map(measure).transpose()?)
}

/// Measures reads of the device of a store beside writes at a given rate; returns `None` without a
/// device.
pub(super) fn beside_writes_of(
    store: Option<&PathBuf>,
    (pattern, write_bytes_per_s): (Pattern, u64),
    progress: &mut Progress,
) -> Result<Option<Beside>, Failure> {
    let Some(store) = store else { return Ok(None) };
    let writes = write_bytes_per_s;
    Ok(device::measure_beside_writes(store, pattern, writes, YARDSTICK_S, progress)?)
}

/// Header of a report.
#[derive(Debug, Serialize)]
pub(super) struct Head {
    /// Source revision of the program, if the build recorded one.
    #[serde(skip_serializing_if = "Option::is_none")]
    git_revision: Option<&'static str>,
    command_line: String,
    /// Start of the run by RFC 3339, in UTC.
    started_at: String,
    /// Time of the whole call; absent if the report has the measured time under this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    wall_s: Option<f64>,
    status: &'static str,
    source: &'static str,
}

/// Report with its header and the machine.
#[derive(Debug, Serialize)]
pub(super) struct Headed<'a, T> {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    report: &'a T,
    host: Host,
}

/// Start of a benchmark.
pub(super) struct Started {
    at: SystemTime,
    moment: Instant,
}

impl Started {
    /// Returns the present time as the start.
    pub(super) fn now() -> Self {
        Self { at: SystemTime::now(), moment: Instant::now() }
    }

    /// Returns a report on work in `dir` that ends now, with its header.
    pub(super) fn report<'a, T>(
        &self,
        report: &'a T,
        dir: &Path,
        is_interrupted: bool,
    ) -> Headed<'a, T> {
        let head = if is_interrupted { self.head_interrupted() } else { self.head() };
        Headed { head, report, host: Host::of(dir) }
    }

    /// Returns the header of a benchmark that ends now and is complete.
    pub(super) fn head(&self) -> Head {
        let ns = self.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let words: Vec<_> =
            std::env::args_os().map(|word| without_passwords(&word.to_string_lossy())).collect();
        Head {
            git_revision: host::revision(),
            command_line: words.join(" "),
            started_at: text::time(u64::try_from(ns).unwrap_or(u64::MAX)),
            wall_s: Some(self.moment.elapsed().as_secs_f64()),
            status: "complete",
            source: "run",
        }
    }

    /// Returns the header of a benchmark that is interrupted now.
    pub(super) fn head_interrupted(&self) -> Head {
        self.head_of("interrupted")
    }

    /// Returns the header of a benchmark that ends now with this status.
    pub(super) fn head_of(&self, status: &'static str) -> Head {
        Head { status, ..self.head() }
    }

    /// Returns the [`head`](Self::head) of a report that has a `wall_s` of its own.
    pub(super) fn head_without_time(&self) -> Head {
        Head { wall_s: None, ..self.head() }
    }
}

/// Returns a word of the command line without secrets: URLs of servers lose users and passwords.
fn without_passwords(word: &str) -> String {
    let is_option = word.starts_with("--");
    let value_at = word.find('=').filter(|_| is_option).map_or(0, |at| at + 1);
    let (option, value) = word.split_at(value_at);
    let shown = |part: &str| {
        let scheme = part.split(':').next().unwrap_or_default().to_ascii_lowercase();
        let is_server = ["redis", "valkey", "unix"].iter().any(|name| scheme.starts_with(name));
        let is_url = is_server && part.contains(":/");
        if is_url { state_dir::without_user(part) } else { part.to_owned() }
    };
    let parts: Vec<String> = value.split(',').map(shown).collect();
    option.to_owned() + &parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_show_no_passwords() {
        for (word, shown) in [
            ("--redis-url=redis://me:it@a:1,redis://:it@b", "--redis-url=redis://a:1,redis://b"),
            ("rediss://me:it@a/2", "rediss://a/2"),
            ("VALKEYS://me:it@a/2", "VALKEYS://a/2"),
            ("unix:/run/a?pass=it", "unix:/run/a"),
            ("--dir=/data/a,b", "--dir=/data/a,b"),
            ("redis,lsm", "redis,lsm"),
            ("/data/x?y#z", "/data/x?y#z"),
        ] {
            assert_eq!(without_passwords(word), shown);
        }
    }
}
