//! Real processes that commit to real stores, stopped and killed at random.
//!
//! Goal: whatever kind of store, no acknowledged commit is lost, the next process continues with
//! other options, a stopped writer keeps others out, a backup that was cut short is made again, and
//! the engine's own check finds nothing. Method: the test starts itself as a writer, which prints
//! each durable commit; the content of a store follows from the number of its last commit
//! ([`stores`](crate::stores)). `cargo xtask kill` and `soak` do it for long.

use std::path::Path;

use terrane_testkit::draw::Draw;
use terrane_testkit::process::{Child, kill_cycles, say};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Note;

use crate::stores::Kind;
use crate::writers::{Role, assert_last, create_all, disk, variables};

const TEST: &str = "kills::no_acknowledged_commit_is_lost_whatever_is_killed";

/// Commits until it is killed.
fn write(role: &Role) {
    let &Role { kind, ref dir, settings } = role;
    let mut store = kind.open(&disk(), dir, settings).unwrap();
    let first = store.check().unwrap() + 1;
    say(&format!("durable {}", first - 1));
    for number in first.. {
        store.commit(number).unwrap();
        say(&format!("durable {number}"));
        let draw = settings.wrapping_add(number);
        if draw.is_multiple_of(7) {
            store.maintain(draw / 7).unwrap();
        }
        if draw.is_multiple_of(19) {
            store.back_up(&dir.with_extension("backup")).unwrap();
        }
    }
}

/// Checks a store that had at least the commit `durable`; returns the number of its last commit.
fn check(kind: Kind, dir: &Path, settings: u64, durable: u64, is_closed: bool) -> u64 {
    let store = kind.open(&disk(), dir, settings).unwrap();
    let last = store.check().unwrap();
    assert_last(durable, last);
    let backup = dir.with_extension("backup");
    store.back_up(&backup).unwrap();
    if is_closed {
        store.close().unwrap();
        kind.verify(&disk(), dir).unwrap();
    } else {
        drop(store);
    }

    if backup.exists() {
        kind.verify(&disk(), &backup).unwrap();
    }
    last
}

#[test]
fn no_acknowledged_commit_is_lost_whatever_is_killed() {
    if let Some(role) = Role::of_this_process() {
        return write(&role);
    }

    for_each_seed("kills", 1, |rng, _| {
        let folder = tempfile::tempdir().unwrap();
        let mut stores = create_all(folder.path());

        for cycle in 0..kill_cycles(8) {
            let (kind, dir, known) = &mut stores[(cycle % 8) as usize];
            let settings = rng.below(1 << 16);
            let place = (*kind, settings, *known);
            let _note = Note(&place);
            let text = settings.to_string();
            let mut child = Child::start(TEST, variables(*kind, dir, &text));
            let mut durable = *known;
            for _ in 0..=rng.index(40) {
                let line = child.line(&["durable"]);
                durable = line.expect("a writer goes on until it is killed").1[0];
                assert!(durable >= *known, "commit {known} was there");
            }

            match rng.index(4) {
                // A stopped writer has its store all the same.
                0 => {
                    child.stop();
                    // Where writers take turns, the next one would wait for the stopped one.
                    if kind.locks() {
                        assert!(kind.open(&disk(), dir, settings).is_err(), "two writers");
                    }
                    child.resume();
                    let line = child.line(&["durable"]);
                    durable = line.expect("a writer that goes on commits").1[0];
                }
                // A stopped writer is killed.
                1 => child.stop(),
                _ => {}
            }
            child.kill();
            while let Some((_, numbers)) = child.line(&["durable"]) {
                durable = durable.max(numbers[0]);
            }

            *known = check(*kind, dir, rng.below(1 << 16), durable, rng.chance(1, 2));
        }
    });
}
