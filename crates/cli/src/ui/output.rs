//! Report of a command: lines for people, or one JSON object for programs.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::ui::exit::Failure;

/// Version of the program, in every object.
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Serialize)]
struct Success<'a, T> {
    terrane: &'static str,
    command: &'a str,
    ok: bool,
    #[serde(flatten)]
    report: &'a T,
}

#[derive(Serialize)]
struct Failed<'a> {
    terrane: &'static str,
    command: &'a str,
    ok: bool,
    error: FailedBy<'a>,
}

#[derive(Serialize)]
struct FailedBy<'a> {
    kind: &'static str,
    message: &'a str,
}

/// Prints a report: as an object if `json`, otherwise as `lines` of name and value.
///
/// # Errors
/// [`Failure`] if standard output does not take it; a reader that has gone away is no failure.
pub(crate) fn report<T: Serialize>(
    command: &str,
    json: bool,
    report: &T,
    lines: &[(&str, String)],
) -> Result<(), Failure> {
    let text = if json {
        let success = Success { terrane: VERSION, command, ok: true, report };
        serde_json::to_string(&success).map_err(|error| Failure::environment(error.to_string()))?
    } else {
        aligned(lines)
    };
    if json { print_object(&text) } else { print(&text) }
}

/// Report that may contain a failed check.
#[derive(Serialize)]
struct CheckedReport<'a, T> {
    terrane: &'static str,
    command: &'a str,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<FailedBy<'a>>,
    #[serde(flatten)]
    report: &'a T,
}

/// Prints a report as an object if `json`, otherwise as `text`, and the reason of a failed check.
/// Returns the exit code.
///
/// # Errors
/// Those of [`report`].
pub(crate) fn checked<T: Serialize>(
    command: &str,
    json: bool,
    report: &T,
    text: &str,
    failure: Option<&Failure>,
) -> Result<u8, Failure> {
    if json {
        print_object(&object(command, report, failure)?)?;
    } else {
        print(text)?;
    }

    let Some(failure) = failure else { return Ok(0) };
    // The exit code says it too, if standard error cannot be written.
    let _ = writeln!(io::stderr(), "terrane: {}", failure.message());

    Ok(failure.code())
}

/// Returns the object of a report, with the reason of a failed check.
///
/// # Errors
/// [`Failure`] if the report is none that JSON can say.
pub(crate) fn object<T: Serialize>(
    command: &str,
    report: &T,
    failure: Option<&Failure>,
) -> Result<String, Failure> {
    let error =
        failure.map(|failure| FailedBy { kind: failure.kind(), message: failure.message() });
    let checked = CheckedReport { terrane: VERSION, command, ok: error.is_none(), error, report };
    serde_json::to_string(&checked).map_err(|error| Failure::environment(error.to_string()))
}

/// Returns `lines` of name and value, aligned for people.
pub(crate) fn aligned(lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = lines.iter().map(|(name, value)| format!("{name:width$}  {value}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Prints the failure of a command: always to standard error, and as an object if `json`.
pub(crate) fn failure(command: &str, json: bool, failure: &Failure) {
    // If neither stream can be written, only the exit code remains.
    let _ = writeln!(io::stderr(), "terrane: {}", failure.message());
    if json {
        let error = FailedBy { kind: failure.kind(), message: failure.message() };
        let failed = Failed { terrane: VERSION, command, ok: false, error };
        if let Ok(text) = serde_json::to_string(&failed) {
            let _ = print_object(&text);
        }
    }
}

/// Prints the one object of a command. The command and Ctrl-C race for it: the first caller prints,
/// the second prints nothing.
///
/// # Errors
/// Those of [`report`].
pub(crate) fn print_object(text: &str) -> Result<(), Failure> {
    static IS_SAID: AtomicBool = AtomicBool::new(false);

    // Relaxed: the flag orders nothing else, it only picks one of two callers.
    if IS_SAID.swap(true, Ordering::Relaxed) { Ok(()) } else { print(text) }
}

/// Prints a line to standard output.
///
/// # Errors
/// Those of [`report`].
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_line(text).map(drop)
}

/// Prints a line to standard output; returns `false` if its reader went away.
///
/// # Errors
/// Those of [`report`].
pub(crate) fn print_line(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    still_read(writeln!(out, "{text}").and_then(|()| out.flush()))
}

/// Bytes of lines that are written together.
const LINES_BYTES: usize = 64 << 10;

/// Whole lines for standard output. The stream is locked only while lines are written, so that the
/// object about an interruption can follow the last whole line.
#[derive(Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
}

impl Lines {
    /// Adds a line without its end; returns `false` if the reader of standard output went away.
    ///
    /// # Errors
    /// Those of [`report`].
    pub(crate) fn add(&mut self, line: &str) -> Result<bool, Failure> {
        self.bytes.extend_from_slice(line.as_bytes());
        self.bytes.push(b'\n');
        if self.bytes.len() < LINES_BYTES { Ok(true) } else { self.flush() }
    }

    /// Writes the lines; returns `false` if the reader of standard output went away.
    ///
    /// # Errors
    /// Those of [`report`].
    pub(crate) fn flush(&mut self) -> Result<bool, Failure> {
        let mut out = io::stdout().lock();
        let written = out.write_all(&self.bytes).and_then(|()| out.flush());
        self.bytes.clear();
        still_read(written)
    }
}

/// Writes bytes to standard output; returns `false` if its reader went away.
///
/// # Errors
/// Those of [`report`].
pub(crate) fn write(out: &mut impl Write, bytes: &[u8]) -> Result<bool, Failure> {
    still_read(out.write_all(bytes))
}

/// Flushes the bytes that [`write()`] has buffered.
///
/// # Errors
/// Those of [`report`].
pub(crate) fn flush(out: &mut impl Write) -> Result<(), Failure> {
    still_read(out.flush()).map(drop)
}

fn still_read(written: io::Result<()>) -> Result<bool, Failure> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::of_system(&error, format!("standard output: {error}"))),
    }
}

/// Returns a number of bytes with its unit, for people.
#[expect(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
pub(crate) fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "bytes";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, larger);
    }
    if unit == "bytes" { format!("{bytes} bytes") } else { format!("{value:.1} {unit}") }
}

/// Prints the report of a renaming.
///
/// # Errors
/// Those of [`report`].
pub(crate) fn renamed(command: &str, json: bool, (from, to): (&str, &str)) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Renamed<'a> {
        from: &'a str,
        to: &'a str,
    }

    report(command, json, &Renamed { from, to }, &[("renamed", format!("{from} to {to}"))])
}

/// Line about a deletion, for people; `is_done` is false if nothing had the name.
pub(crate) fn deleted(is_done: bool, name: &str) -> (&'static str, String) {
    (if is_done { "deleted" } else { "nothing to delete" }, name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_have_the_largest_unit_below_them() {
        let shown = [0, 1023, 1024, 1536, 5 << 20, 3 << 40].map(bytes);
        assert_eq!(shown, ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 TiB"]);
    }
}
