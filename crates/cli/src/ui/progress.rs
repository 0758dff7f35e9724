//! Progress on standard error: a bar where a person watches and the work lasts, otherwise nothing.
//!
//! Warnings are written whether or not there is a bar. Ctrl-C is seen here too, by a thread that
//! [`watch`] starts: it ends the process at once, and says so as every command does, since commands
//! write nothing that a crash could not interrupt. Work with a [`Progress`] is asked to stop at a
//! whole block instead; a second Ctrl-C ends that at once, too.

use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use terrane_replay::monitor::{Monitor, Phase};

use crate::ui::exit::Failure;
use crate::ui::output;

/// Delay of a bar: shorter work needs none.
const DELAY: Duration = Duration::from_secs(1);

/// Template of a bar behind the position, if the number of bytes is known.
const BYTES_LEFT: &str = "/{total_bytes} {wide_bar} {eta} left";

/// Monitor of a command: a progress bar, warnings, and the wish to stop.
pub(crate) struct Progress {
    /// Whether standard error is a terminal, without `--quiet`.
    wanted: bool,
    started: Instant,
    /// Whether the present bar is visible.
    drawn: bool,
    bar: Option<(Phase, ProgressBar)>,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Creates the monitor; from now on Ctrl-C asks this work to stop. `quiet` means no bar.
    pub(crate) fn new(quiet: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        *asked_to_stop() = Some(Arc::clone(&stop));
        let wanted = !quiet && io::stderr().is_terminal();
        Self { wanted, started: Instant::now(), drawn: false, bar: None, stop }
    }
}

/// Stop flag of the work in progress, if it has a monitor.
static ASKED_TO_STOP: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

fn asked_to_stop() -> MutexGuard<'static, Option<Arc<AtomicBool>>> {
    ASKED_TO_STOP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread that handles Ctrl-C and SIGTERM until the process ends.
///
/// # Errors
/// [`Failure`] if the system refuses the signal handler or the thread.
pub(crate) fn watch(command: &'static str, json: bool) -> Result<(), Failure> {
    let refused = |error| Failure::environment(format!("signal handler: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(refused)?;
    let wait = move || {
        for _ in signals.forever() {
            let is_asked_first =
                asked_to_stop().as_ref().is_some_and(|stop| !stop.swap(true, Ordering::Relaxed));
            // Without a monitor, or at the second signal, the process ends at once: stores recover
            // from that like from a crash.
            if !is_asked_first {
                let failure = Failure::interrupted("interrupted");
                output::failure(command, json, &failure);
                process::exit(failure.code().into());
            }
        }
    };

    thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop).map_err(refused)
}

/// Progress bar over a number of bytes.
pub(crate) struct ByteBar {
    name: &'static str,
    wanted: bool,
    started: Instant,
    drawn: bool,
    bar: Option<ProgressBar>,
}

impl ByteBar {
    /// Creates a bar of the work called `name`; `quiet` means no bar.
    pub(crate) fn new(name: &'static str, quiet: bool) -> Self {
        let wanted = !quiet && io::stderr().is_terminal();
        Self { name, wanted, started: Instant::now(), drawn: false, bar: None }
    }

    /// Shows that `done` of `total` bytes are done.
    pub(crate) fn set(&mut self, done: u64, total: u64) {
        self.show(done, Some(total));
    }

    /// Shows that `done` bytes are done; `total` if the caller knows it.
    pub(crate) fn show(&mut self, done: u64, total: Option<u64>) {
        if !self.wanted {
            return;
        }

        let name = self.name;
        let bar = self.bar.get_or_insert_with(|| {
            let left = if total.is_some() { BYTES_LEFT } else { "" };
            hidden_bar(name, "{binary_bytes_per_sec}", "{bytes}", left, total)
        });

        if !self.drawn && self.started.elapsed() >= DELAY {
            self.drawn = true;
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }

        bar.set_position(done);
    }
}

impl Drop for ByteBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Monitor for Progress {
    fn progress(&mut self, phase: Phase, done: u64, total: Option<u64>) {
        if !self.wanted {
            return;
        }

        let bar = match self.bar.take() {
            Some((of, bar)) if of == phase => bar,
            _ => {
                self.drawn = false;
                bar(phase, total)
            }
        };

        // A hidden bar only measures the rate, so that it is right when it appears.
        if !self.drawn && self.started.elapsed() >= DELAY {
            self.drawn = true;
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }

        bar.set_position(done);
        self.bar = Some((phase, bar));
    }

    fn warn(&mut self, message: &dyn Display) {
        let write = || {
            // An unwritable warning is no reason to stop.
            let _ = writeln!(io::stderr(), "terrane: warning: {message}");
        };
        match &self.bar {
            Some((_, bar)) => bar.suspend(write),
            None => write(),
        }
    }

    fn stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((_, bar)) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(phase: Phase, total: Option<u64>) -> ProgressBar {
    let (name, position, rate) = match phase {
        Phase::Scan => ("reading headers", "{bytes}", "{binary_bytes_per_sec}"),
        Phase::Rollback => ("going back", "{human_pos} blocks", "{rate}"),
        Phase::Replay => ("replaying", "{human_pos} blocks", "{rate}"),
        Phase::Digest => ("reading the state", "{human_pos} entries", "{rate}"),
        Phase::Draw => ("drawing", "{human_pos} operations", "{rate}"),
        Phase::Fill => ("filling tables", "{human_pos} entries", "{rate}"),
        Phase::Copy => ("copying", "{human_pos} entries", "{rate}"),
        Phase::Merge => ("merging", "{human_pos} pages", "{rate}"),
        Phase::WarmUp => ("warming up", "{human_pos} operations", "{rate}"),
        Phase::Measure => ("measuring", "{human_pos} rounds", "{rate}"),
        Phase::Operations => ("measuring", "{human_pos} operations", "{rate}"),
        Phase::Check => ("checking", "{human_pos} finds", "{rate}"),
    };

    let of_total = match (phase, total) {
        (_, None) => "",
        (Phase::Scan, Some(_)) => BYTES_LEFT,
        (_, Some(_)) => "/{human_len} {wide_bar} {eta} left",
    };

    hidden_bar(name, rate, position, of_total, total)
}

/// Creates a bar that is not visible yet.
fn hidden_bar(
    name: &str,
    rate: &str,
    position: &str,
    of_total: &str,
    total: Option<u64>,
) -> ProgressBar {
    let template = format!("{name} {rate} {position}{of_total}");
    let style =
        ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let style = style.with_key("rate", |state: &ProgressState, text: &mut dyn fmt::Write| {
        // Writing to memory cannot fail.
        let _ = write!(text, "{:.0}/s", state.per_sec());
    });

    ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden()).with_style(style)
}
