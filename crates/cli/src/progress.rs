//! Progress on standard error: a bar where a person watches and the work lasts, otherwise nothing.
//!
//! Warnings are written whether or not there is a bar. Ctrl-C is seen here too: the first one asks
//! the work to stop at the next block, a second one ends the process at once.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use terrane_bench::replay::monitor::{Monitor, Phase};

use crate::exit::Failure;

/// Work that is over sooner needs no bar.
const DELAY: Duration = Duration::from_secs(1);
const INTERRUPTED: i32 = 130;

/// The monitor of a command.
pub(crate) struct Progress {
    shown: bool,
    started: Instant,
    bar: Option<(Phase, ProgressBar)>,
    stop: Arc<AtomicBool>,
}

impl Progress {
    /// Begins to watch for Ctrl-C; `quiet` means no bar.
    ///
    /// # Errors
    /// [`Failure`] if the system refuses the signal handler.
    pub(crate) fn new(quiet: bool) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // In this order, so that only a signal that finds the flag set ends the process.
            signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
                .map_err(|error| Failure::environment(format!("signal handler: {error}")))?;
        }
        let shown = !quiet && io::stderr().is_terminal();
        Ok(Self { shown, started: Instant::now(), bar: None, stop })
    }
}

/// Lets Ctrl-C end the process at once, for work that can end anywhere.
///
/// # Errors
/// [`Failure`] if the system refuses the signal handler.
pub(crate) fn exit_on_interrupt() -> Result<(), Failure> {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        let at_once = Arc::new(AtomicBool::new(true));
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, at_once)
            .map_err(|error| Failure::environment(format!("signal handler: {error}")))?;
    }
    Ok(())
}

/// A bar over a known number of bytes.
pub(crate) struct ByteBar {
    name: &'static str,
    shown: bool,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl ByteBar {
    /// A bar for what `name` says; `quiet` means none.
    pub(crate) fn new(name: &'static str, quiet: bool) -> Self {
        let shown = !quiet && io::stderr().is_terminal();
        Self { name, shown, started: Instant::now(), bar: None }
    }

    /// Shows that `done` of `total` bytes are done.
    pub(crate) fn set(&mut self, done: u64, total: u64) {
        if !self.shown || self.started.elapsed() < DELAY {
            return;
        }
        let name = self.name;
        let bar = self.bar.get_or_insert_with(|| {
            let template =
                format!("{name} {{binary_bytes_per_sec}} {{bytes}}/{{total_bytes}} {{wide_bar}} {{eta}} left");
            ProgressBar::new(total).with_style(style(&template))
        });
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
        if !self.shown || self.started.elapsed() < DELAY {
            return;
        }
        if self.bar.as_ref().is_none_or(|(of, _)| *of != phase) {
            self.bar = Some((phase, bar(phase, total)));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(done);
        }
    }

    fn warn(&mut self, message: &dyn Display) {
        let write = || {
            // A warning that nobody can be given is no reason to stop.
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
        Phase::Rollback => ("going back", "{human_pos} blocks", "{per_sec}"),
        Phase::Replay => ("replaying", "{human_pos} blocks", "{per_sec}"),
        Phase::Digest => ("reading the state", "{human_pos} entries", "{per_sec}"),
    };
    let of_total = match (phase, total) {
        (_, None) => "",
        (Phase::Scan, Some(_)) => "/{total_bytes} {wide_bar} {eta} left",
        (_, Some(_)) => "/{human_len} {wide_bar} {eta} left",
    };
    let template = format!("{name} {rate} {position}{of_total}");
    let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
    bar.with_style(style(&template))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
