//! Ctrl-C of commands that rewrite or copy a store.
//!
//! Goal: the exit code is 130, the store is whole afterwards, and the command can be repeated.
//! Method: the first file that a command writes shows that its work has begun. The work on 20 MB
//! takes many times as long as a signal. `import` and the benchmarks stop at a place of their
//! choice; their files have tests of that.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::program::{Answer, Place, call, command, text};

/// Entries of the store, 20 MB in all.
const ENTRIES: u32 = 40_000;

/// Runs a command and interrupts it as soon as `has_begun`.
fn interrupted(arguments: &[&str], has_begun: &dyn Fn() -> bool) -> Answer {
    let mut child = command();
    child.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    while !has_begun() {
        assert!(child.try_wait().unwrap().is_none(), "the command ended before its work");
        std::thread::yield_now();
    }

    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    child.wait_with_output().unwrap().into()
}

/// A store with runs that a compaction merges.
fn filled(place: &Place) -> PathBuf {
    let store = place.store();
    let value = "v".repeat(480);
    let line = |key| format!("key {key:08}\t{key} {value}\n");
    let lines: Vec<String> = (0..ENTRIES).map(line).collect();
    let file = place.write("lines", lines.concat().as_bytes());
    call(&store, &["import", "--from-sorted", text(&file)]).done();
    call(&store, &["delete", "--prefix", "key 000000"]).done();
    store
}

fn count(store: &Path) -> u64 {
    call(store, &["count"]).done()["count"].as_u64().unwrap()
}

fn is_whole(dir: &Path) {
    let verified: Answer = command().args(["verify", text(dir), "--json"]).output().unwrap().into();
    verified.done();
}

fn files(dir: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn an_interrupted_compaction_loses_nothing_and_can_be_repeated() {
    let place = Place::new();
    let store = filled(&place);
    let active = store.join("active");
    let before = files(&active);

    let arguments = ["compact", "--store", text(&store), "--json"];
    let answer = interrupted(&arguments, &|| !files(&active).is_subset(&before));
    assert_eq!(answer.failed(130), "interrupted");
    is_whole(&store);
    assert_eq!(count(&store), u64::from(ENTRIES) - 100);

    call(&store, &["compact"]).done();
    is_whole(&store);
    assert_eq!(count(&store), u64::from(ENTRIES) - 100);
}

#[test]
fn an_interrupted_salvage_says_that_it_is_unfinished_and_leaves_the_damaged_store_alone() {
    let place = Place::new();
    let store = filled(&place);
    let new = place.path("new");
    let unfinished = new.join("salvage-unfinished");
    let before = files(&store.join("active"));

    let arguments = ["salvage", text(&store), text(&new), "--json"];
    let answer = interrupted(&arguments, &|| unfinished.exists());
    assert_eq!(answer.failed(130), "interrupted");
    assert!(unfinished.exists());
    assert_eq!(files(&store.join("active")), before);
    is_whole(&store);

    let again = || -> Answer { command().args(arguments).output().unwrap().into() };
    assert!(again().failed(2).contains("is not empty"));
    fs::remove_dir_all(&new).unwrap();
    again().done();
    assert!(!unfinished.exists());
    is_whole(&new);
    assert_eq!(count(&new), u64::from(ENTRIES) - 100);
}
