//! Child processes of a test: its own program, run again in a role until it is killed.
//!
//! A child runs the same test, finds the variables of its role in its environment, and tells what
//! it has done by lines of a word and numbers ([`say`]). The parent reads the lines, kills the
//! child, and compares what is left with what the child had said.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::path::PathBuf;
use std::process::{self, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;

use crate::draw::Draw;
use crate::effort::env_value;
use crate::tally;

/// How often a process is killed; set by `cargo xtask kill`.
const CYCLES: &str = "TERRANE_KILL_CYCLES";

/// For how many seconds readers are let alone besides; set by `cargo xtask readers`.
const SECONDS: &str = "TERRANE_READERS_SECONDS";

/// How often a process is killed: as `TERRANE_KILL_CYCLES` says, or `default`.
///
/// # Panics
/// When the variable is no number.
#[must_use]
pub fn kill_cycles(default: u64) -> u64 {
    env_value(CYCLES).map_or(default, |text| text.parse().expect("a number of cycles"))
}

/// Prints a line at once, for the parent of this process.
///
/// # Panics
/// When the parent has gone.
pub fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}").expect("the parent reads");
    out.flush().expect("the parent reads");
}

/// Waits until the parent of this process ends it, or has gone.
pub fn wait_for_end() {
    // Nothing comes: the parent writes nothing.
    let _ = std::io::stdin().read(&mut [0]);
}

/// This program.
fn program() -> PathBuf {
    env::current_exe().expect("the program has a path")
}

/// Child process of a test.
#[derive(Debug)]
pub struct Child {
    child: process::Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Runs this program again, with nothing but `test` and with these variables.
    ///
    /// # Panics
    /// When the system refuses.
    #[must_use]
    pub fn start<const N: usize>(test: &str, variables: [(&str, &OsStr); N]) -> Self {
        Self::spawn(Command::new(program()), test, variables)
    }

    /// Starts a child as [`start`](Self::start) does; the system gives it no more than `most`
    /// descriptors.
    ///
    /// # Panics
    /// When the system refuses.
    #[must_use]
    pub fn start_with_descriptors<const N: usize>(
        most: u64,
        test: &str,
        variables: [(&str, &OsStr); N],
    ) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &most.to_string()]);
        Self::start_by(command, test, variables)
    }

    /// Starts a child by another program, whose last arguments are this program and its own ones.
    ///
    /// # Panics
    /// When the system refuses.
    #[must_use]
    pub fn start_by<const N: usize>(
        mut runner: Command,
        test: &str,
        variables: [(&str, &OsStr); N],
    ) -> Self {
        runner.arg(program());
        Self::spawn(runner, test, variables)
    }

    fn spawn<const N: usize>(
        mut command: Command,
        test: &str,
        variables: [(&str, &OsStr); N],
    ) -> Self {
        command.args(["--exact", test, "--nocapture"]).envs(variables);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().expect("the program runs again");
        let out = child.stdout.take().expect("it is piped");
        Self { child, lines: BufReader::new(out).lines() }
    }

    /// Returns the next line that begins with one of the words: the word, and the numbers after it;
    /// `None` at the end.
    pub fn line(&mut self, words: &[&str]) -> Option<(String, Vec<u64>)> {
        for line in self.lines.by_ref() {
            let line = line.ok()?;
            let mut parts = line.split(' ');
            if let Some(word) = parts.next().filter(|word| words.contains(word)) {
                // The last line may be torn.
                let numbers = parts.map(|number| number.parse().ok()).collect::<Option<Vec<_>>>();
                return Some((word.to_owned(), numbers?));
            }
        }

        None
    }

    /// Stops the process where it is, until [`resume`](Self::resume).
    ///
    /// # Panics
    /// When the process has ended.
    pub fn stop(&mut self) {
        self.signal("STOP");
    }

    /// Lets a stopped process go on.
    ///
    /// # Panics
    /// When the process has ended.
    pub fn resume(&mut self) {
        self.signal("CONT");
    }

    fn signal(&mut self, name: &str) {
        // A word of every shell; the program `kill` is not on every machine.
        let command = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &command]).status().expect("there is a shell");
        assert!(status.success(), "{command}");
    }

    /// Kills the process at its work.
    ///
    /// # Panics
    /// When the process has ended by itself.
    pub fn kill(&mut self) {
        self.end();
        tally::add("kills", 1);
    }

    /// Waits until the process ends by itself; returns whether it succeeded.
    ///
    /// # Panics
    /// When the system cannot tell.
    pub fn has_succeeded(&mut self) -> bool {
        self.child.wait().expect("it is a child").success()
    }

    /// Ends a process that has nothing more to do, but [waits](wait_for_end).
    ///
    /// # Panics
    /// When the process has ended by itself.
    pub fn end(&mut self) {
        let ended = self.child.try_wait().expect("it is a child");
        assert_eq!(ended, None, "a process ended by itself");
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is a child");
    }
}

/// Whether a program can be run and succeeds; what it prints is not seen.
pub fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Says that a test was skipped, past what the test harness captures of a test that passes.
///
/// # Panics
/// When there is no standard error.
pub fn skipped(why: &str) {
    writeln!(std::io::stderr(), "SKIPPED: {why}").expect("there is a standard error");
}

/// Reader process, which says `checks` and how many values it has compared.
struct Reader {
    child: Child,
    checks: u64,
}

impl Reader {
    fn start(start: &dyn Fn(&str) -> Child) -> Self {
        Self { child: start("reader"), checks: 0 }
    }

    /// Waits until the reader has compared more.
    fn see(&mut self) {
        let line = self.child.line(&["checks"]).expect("a reader goes on until it is killed");
        self.checks = line.1[0];
    }
}

/// Writer process beside three readers.
pub struct WriterBesideReaders<'a> {
    /// Starts a process in the role `writer` or `reader`.
    pub start: &'a dyn Fn(&str) -> Child,
    /// Words that begin lines of the writer.
    pub words: &'a [&'a str],
    /// Most lines of the writer before it is killed.
    pub lines_max: u64,
}

impl WriterBesideReaders<'_> {
    /// Kills the writer again and again, now and then a reader too, and lets all of them alone at
    /// the end. `heed` gets each line of the writer. Returns how many values the readers compared.
    ///
    /// # Panics
    /// When a process ends by itself.
    pub fn run(&self, rng: &mut ChaCha8Rng, mut heed: impl FnMut(&str, &[u64])) -> u64 {
        let mut heed_next = |writer: &mut Child| {
            let line = writer.line(self.words);
            line.map(|(word, numbers)| heed(&word, &numbers))
        };
        let gone = "a writer goes on until it is killed";

        let mut checks = 0;
        let mut writer = (self.start)("writer");
        let mut readers: Vec<Reader> = (0..3).map(|_| Reader::start(self.start)).collect();
        for cycle in 0..kill_cycles(6) {
            for _ in 0..=rng.below(self.lines_max) {
                heed_next(&mut writer).expect(gone);
            }

            readers.iter_mut().for_each(Reader::see);
            if cycle % 3 == 2 {
                let mut reader = readers.remove(rng.index(readers.len()));
                reader.child.kill();
                checks += reader.checks;
                readers.push(Reader::start(self.start));
            }

            writer.kill();
            // What it had said before counts.
            while heed_next(&mut writer).is_some() {}
            writer = (self.start)("writer");
        }

        let seconds = env_value(SECONDS).map_or(1, |text| text.parse().expect("seconds"));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(seconds) {
            heed_next(&mut writer).expect(gone);
            readers.iter_mut().for_each(Reader::see);
        }

        writer.kill();
        for reader in &mut readers {
            reader.child.kill();
            checks += reader.checks;
        }

        checks
    }
}
