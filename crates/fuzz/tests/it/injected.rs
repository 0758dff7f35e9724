//! Real processes whose system calls fail, by `strace` from outside.
//!
//! Goal: whatever kind of store, and whichever call the system refuses, once or again and again,
//! a writer gets an error and no panic, and no acknowledged commit is lost. The next process, to
//! which nothing is refused, continues, and the engine's own check finds nothing. So the faults of
//! the simulated disk are those of the system. Method: a writer ([`writers`](crate::writers)) runs
//! under `strace`, which lets one kind of call fail from a drawn number on.
//!
//! Without `strace`, or where the system refuses to trace, the test is skipped, and says so.

use std::path::Path;
use std::process::Command;

use terrane_testkit::draw::Draw;
use terrane_testkit::process::{Child, kill_cycles, say, skipped, succeeds};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Note;
use terrane_testkit::{ChaCha8Rng, tally};

use crate::stores::Kind;
use crate::writers::{Role, assert_last, create_all, open, recover, variables, write};

const TEST: &str = "injected::a_system_call_that_fails_costs_no_acknowledged_commit";

/// Kind of call that fails: its name, the errors that it may have, and how many of its calls at
/// least succeed, since the loader of programs makes them, too.
struct Target {
    call: &'static str,
    errors: &'static [&'static str],
    spared: u64,
}

const fn target(call: &'static str, errors: &'static [&'static str], spared: u64) -> Target {
    Target { call, errors, spared }
}

const TARGETS: [Target; 14] = [
    target("pread64", &["EIO", "EINTR", "ENOMEM"], 8),
    target("pwrite64", &["EIO", "ENOSPC", "EDQUOT", "EINTR"], 0),
    target("fdatasync", &["EIO", "ENOSPC", "EDQUOT"], 0),
    target("fsync", &["EIO", "ENOSPC"], 0),
    target("openat", &["EMFILE", "ENFILE", "EACCES", "EIO"], 60),
    target("rename", &["EIO", "ENOSPC", "EACCES"], 0),
    target("linkat", &["EPERM", "EMLINK", "ENOSPC"], 0),
    target("unlink", &["EIO", "EBUSY", "EACCES"], 0),
    target("ftruncate", &["EIO", "ENOSPC", "EINTR"], 0),
    target("fallocate", &["EOPNOTSUPP", "ENOSPC", "EIO"], 0),
    target("getdents64", &["EIO"], 0),
    target("statfs", &["EIO", "ENOSYS"], 0),
    target("io_uring_setup", &["ENOSYS", "EPERM", "ENOMEM"], 0),
    target("io_uring_enter", &["EAGAIN", "EINTR", "EBUSY"], 0),
];

/// Commits of a writer whose calls do not fail: each takes long under `strace`.
const COMMITS_MAX: u64 = 60;

/// Calls that succeed before one fails, at most, as a power of two.
const BEFORE_BITS_MAX: u64 = 9;

/// A program that is run with nothing, to see whether it may be traced.
fn can_trace() -> bool {
    let mut traced = Command::new("strace");
    traced.args([
        "-f",
        "-o",
        "/dev/null",
        "-e",
        "trace=fsync",
        "-e",
        "inject=fsync:error=EIO",
        "true",
    ]);
    succeeds(&mut traced)
}

/// Draws a call, its error, and when it fails; returns the program that injects it.
fn injecting(rng: &mut ChaCha8Rng) -> Command {
    let Target { call, errors, spared } = TARGETS[rng.index(TARGETS.len())];
    let error = errors[rng.index(errors.len())];
    // Few calls of most kinds are made in all, many of some.
    let scale = rng.below(BEFORE_BITS_MAX);
    let first = 1 + spared + rng.below(1 << scale);
    // What asks to try again must not fail for ever.
    let is_passing = ["EINTR", "EAGAIN", "EBUSY"].contains(&error);
    let again = match rng.below(3) {
        0 => String::new(),
        1 if !is_passing => "+".to_owned(),
        _ => format!("+{}", 2 + rng.below(20)),
    };
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    strace.args(["-e", &format!("inject={call}:error={error}:when={first}{again}")]);
    strace
}

/// One round on a store whose last commit is `known`; returns the number of the last one.
fn round(kind: Kind, dir: &Path, rng: &mut ChaCha8Rng, known: u64) -> u64 {
    let strace = injecting(rng);
    let injection = format!("{strace:?}");
    let _note = Note(&injection);
    let settings = rng.below(1 << 16).to_string();
    let mut child = Child::start_by(strace, TEST, variables(kind, dir, &settings));

    let (mut durable, mut has_ended) = (known, false);
    while let Some((word, numbers)) = child.line(&["durable", "ended"]) {
        match numbers.first() {
            Some(&number) => durable = number,
            None => has_ended = word == "ended",
        }
        assert!(durable >= known, "commit {known} was there");
    }
    assert!(has_ended && child.has_succeeded(), "a writer ends by an error, not by a panic");
    tally::add("writers with injected errors", 1);

    if let Ok((_store, last)) = open(kind, dir, rng.below(1 << 16)) {
        assert_last(durable, last);
        durable = last;
    }
    recover(kind, dir, rng.below(1 << 16), durable)
}

#[test]
fn a_system_call_that_fails_costs_no_acknowledged_commit() {
    if let Some(role) = Role::of_this_process() {
        write(&role, COMMITS_MAX, true);
        return say("ended");
    }
    if !can_trace() {
        return skipped("no program can be traced here; `strace` is not there, or is refused");
    }

    for_each_seed("injected", 1, |rng, _| {
        let folder = tempfile::tempdir().unwrap();
        let mut stores = create_all(folder.path());
        for cycle in 0..kill_cycles(8) {
            let (kind, dir, known) = &mut stores[(cycle % 8) as usize];
            let place = (*kind, *known);
            let _note = Note(&place);
            *known = round(*kind, dir, rng, *known);
        }
    });
}
