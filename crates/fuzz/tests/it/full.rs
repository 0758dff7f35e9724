//! Real processes whose disk is full, has no room for another file, or gives no more descriptors.
//!
//! Goal: whatever kind of store, such a process gets an error and no panic, reads what it had, and
//! loses no acknowledged commit; the store opens where nothing has been freed, or says why not;
//! with room again the next process continues, and the engine's own check finds nothing. Method: a
//! file system in memory (`tmpfs`) of a few MiB, which a ballast fills but for a drawn rest. The
//! test starts itself in a namespace of mounts, there mounts the file system, and starts writers,
//! whose commits are those of [`stores`](crate::stores).
//!
//! Without `unshare`, or where the system refuses namespaces, the test is skipped, and says so.

use std::env;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use terrane_testkit::draw::Draw;
use terrane_testkit::process::{Child, kill_cycles, say, skipped, succeeds, wait_for_end};
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Note;
use terrane_testkit::{ChaCha8Rng, tally};

use crate::stores::Kind;
use crate::writers::{Role, assert_last, disk, open, recover, variables, write};

const TEST: &str = "full::a_disk_that_is_full_costs_no_acknowledged_commit";

/// Set within the namespace.
const INNER: &str = "TERRANE_FULL_INNER";

/// Set for a writer that has few descriptors.
const DESCRIPTORS: &str = "TERRANE_FULL_DESCRIPTORS";

/// Commits of a writer that meets no limit.
const COMMITS_MAX: u64 = 600;

/// Bytes that a ballast leaves at most, and files.
const REST_BYTES: u64 = 256 << 10;
const REST_FILES: usize = 12;

/// Descriptors of a process that has few, at least, and how many more it may have.
const DESCRIPTORS_MIN: u64 = 12;
const DESCRIPTORS_MORE: u64 = 30;

/// The resource that runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    Bytes,
    Files,
    Descriptors,
}

/// Fills a file system in memory but for `rest` bytes.
fn fill(ballast: &Path, rest: u64) {
    let mut file = File::create(ballast).unwrap();
    let page = [0; 4 << 10];
    while file.write_all(&page).is_ok() {}
    let len = file.metadata().unwrap().len();
    file.set_len(len.saturating_sub(rest)).unwrap();
}

/// Makes files until there can be none, but for `rest` of them.
fn fill_names(folder: &Path, rest: usize) {
    fs::create_dir(folder).unwrap();
    let made = (0..).take_while(|number| File::create(folder.join(number.to_string())).is_ok());
    let made: Vec<u32> = made.collect();
    for number in &made[made.len().saturating_sub(rest)..] {
        fs::remove_file(folder.join(number.to_string())).unwrap();
    }
}

/// A command in a namespace of its own, in which it may mount file systems.
fn in_namespace(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount"]).arg(program);
    command
}

/// One round on a store whose last commit is `known`: a writer meets the limit, ends or is killed,
/// and room is made again.
fn round(kind: Kind, folder: &Path, limit: Limit, rng: &mut ChaCha8Rng, known: u64) -> u64 {
    let (dir, ballast) = (folder.join("store"), folder.join("ballast"));
    let settings = rng.below(1 << 16).to_string();
    let variables = variables(kind, &dir, &settings);
    let mut child = match limit {
        Limit::Bytes => {
            fill(&ballast, rng.below(REST_BYTES));
            Child::start(TEST, variables)
        }
        Limit::Files => {
            fill_names(&ballast, rng.index(REST_FILES));
            Child::start(TEST, variables)
        }
        Limit::Descriptors => {
            let [kind, dir, settings] = variables;
            let variables = [kind, dir, settings, (DESCRIPTORS, "few".as_ref())];
            let most = DESCRIPTORS_MIN + rng.below(DESCRIPTORS_MORE);
            Child::start_with_descriptors(most, TEST, variables)
        }
    };

    let mut durable = known;
    let mut lines_left = if rng.chance(1, 3) { rng.below(200) } else { u64::MAX };
    loop {
        let line = child.line(&["durable", "ended"]);
        let (word, numbers) = line.expect("a writer ends by an error, not by a panic");
        if word == "ended" {
            child.end();
            break;
        }
        durable = numbers[0];
        assert!(durable >= known, "commit {known} was there");
        if lines_left == 0 {
            child.kill();
            while let Some((_, numbers)) = child.line(&["durable"]) {
                durable = numbers[0];
            }
            break;
        }
        lines_left -= 1;
    }

    // Where nothing was freed, the store opens with all that it had, or says why not.
    if let Ok((_store, last)) = open(kind, &dir, rng.below(1 << 16)) {
        assert_last(durable, last);
        durable = last;
    }
    match limit {
        Limit::Bytes => fs::remove_file(&ballast).unwrap(),
        Limit::Files => fs::remove_dir_all(&ballast).unwrap(),
        Limit::Descriptors => {}
    }
    tally::add("limits met", 1);
    recover(kind, &dir, rng.below(1 << 16), durable)
}

/// Rounds on a store of each kind, within the namespace.
fn rounds(folder: &Path) {
    for_each_seed("full", 1, |rng, _| {
        let mut stores = Kind::ALL.map(|kind| (kind, folder.join(kind.name()), 0));
        for (kind, at, _) in &stores {
            fs::create_dir_all(at).unwrap();
            let options = ["-t", "tmpfs", "-o", "size=24m,nr_inodes=400", "none"];
            assert!(succeeds(Command::new("mount").args(options).arg(at)), "a namespace can mount");
            kind.create(&disk(), &at.join("store")).unwrap();
        }

        for cycle in 0..kill_cycles(8) {
            let (kind, at, known) = &mut stores[(cycle % 8) as usize];
            let limits = [Limit::Bytes, Limit::Files, Limit::Descriptors];
            let limit = limits[rng.index(limits.len())];
            let place = (*kind, limit, *known);
            let _note = Note(&place);
            *known = round(*kind, at, limit, rng, *known);
        }
        for (_, at, _) in &stores {
            assert!(succeeds(Command::new("umount").arg(at)), "nothing is open there");
        }
    });
}

#[test]
fn a_disk_that_is_full_costs_no_acknowledged_commit() {
    if let Some(role) = Role::of_this_process() {
        write(&role, COMMITS_MAX, env::var_os(DESCRIPTORS).is_some());
        say("ended");
        return wait_for_end();
    }
    if let Ok(folder) = env::var(INNER) {
        return rounds(Path::new(&folder));
    }

    let folder = tempfile::tempdir().unwrap();
    if !succeeds(in_namespace(Path::new("mount")).args(["-t", "tmpfs", "none"]).arg(folder.path()))
    {
        skipped("no file system can be mounted here; `unshare --mount` is refused");
        return;
    }
    let mut inner = in_namespace(&env::current_exe().unwrap());
    let inner = inner.args(["--exact", TEST, "--nocapture"]).env(INNER, folder.path());
    assert!(inner.status().unwrap().success(), "see above");
}
