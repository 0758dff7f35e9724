//! Words for programs of failures, `error.kind`: each is provoked. Commands that end with exit code
//! 2 leave every byte on the disk as it was.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::program::{Answer, Place, call, command, text};
use crate::store::{Store, edit, flip};

#[track_caller]
fn kind(answer: &Answer, code: i32) -> String {
    answer.failed(code);
    answer.json()["error"]["kind"].as_str().unwrap().to_owned()
}

/// A store with a table, a snapshot and a version.
fn ledger() -> Place {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "alice", "100", "--create"]).done();
    call(&store, &["snapshot", "save", "monday"]).done();
    call(&store, &["version", "retain", "--name", "start"]).done();
    call(&store, &["put", "bob", "1", "--create", "--table", "other"]).done();
    place
}

#[test]
fn usage_bad_input_and_not_found_are_told_apart() {
    let place = ledger();
    let store = place.store();
    assert_eq!(kind(&call(&store, &["frob"]), 2), "usage");
    assert_eq!(kind(&call(&store, &["put", "k"]), 2), "bad_input");
    let file = place.write("lines", b"one field\n");
    assert_eq!(kind(&call(&store, &["put", "--input", text(&file)]), 2), "bad_input");
    assert_eq!(kind(&call(&store, &["get", "nobody"]), 1), "not_found");
    assert_eq!(kind(&call(&store, &["count", "--table", "none"]), 2), "not_found");
    assert_eq!(kind(&call(&store, &["count", "--version", "99"]), 2), "not_found");
}

#[test]
fn damage_and_failed_checks_are_told_apart() {
    let store = Store::new();
    flip(&store.run().path, 100);
    let scan = call(&store.dir(), &["scan", "--snapshot", "late"]);
    assert_eq!(scan.code, Some(1), "{scan:?}");
    assert_eq!(scan.json()["error"]["kind"], "corrupt");
    assert_eq!(kind(&store.verify(&[]), 1), "check_failed");

    let history = b"terrane-changes 1\nbegin 1\nput 01 01\nend count=2\n";
    let place = Place::new();
    let file = place.write("history", history);
    assert_eq!(kind(&place.replay("changes", &[text(&file)]), 1), "check_failed");
}

#[test]
fn a_format_of_the_future_is_unsupported() {
    let place = ledger();
    let store = place.store();
    for name in ["manifest.a", "manifest.b"] {
        edit(&store.join(name), |bytes| {
            bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
            crate::store::reseal_manifest(bytes);
        });
    }
    let answer = call(&store, &["count"]);
    assert_eq!(kind(&answer, 2), "unsupported");
}

#[test]
fn a_message_ends_with_the_next_command_to_type() {
    let place = ledger();
    let store = place.store();
    for (arguments, list) in [
        (&["count", "--table", "none"][..], "table"),
        (&["delete", "k", "--table", "none"], "table"),
        (&["count", "--snapshot", "none"], "snapshot"),
        (&["snapshot", "delete", "none"], "snapshot"),
        (&["count", "--version", "99"], "version"),
        (&["version", "rollback", "none"], "version"),
    ] {
        let message = call(&store, arguments).failed(2);
        let next = message.split("next: terrane ").nth(1).unwrap();
        assert_eq!(next, format!("{list} list --store {}", store.display()), "{message}");
        call(&store, &next.split(' ').take(2).collect::<Vec<_>>()).done();
    }

    let damaged = Store::new();
    flip(&damaged.run().path, 100);
    let message = call(&damaged.dir(), &["scan", "--snapshot", "late"]).failed(1);
    let next = format!("next: terrane verify {}", damaged.dir().display());
    assert!(message.ends_with(&next), "{message}");
}

/// Whether this user may do everything, so that permissions refuse nothing.
fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().unwrap();
    id.stdout == b"0\n"
}

#[test]
fn what_the_system_refuses_has_its_own_words() {
    let place = ledger();
    let store = place.store();

    // Another process has the store.
    let mut holder = command();
    holder.args(["replay", "changes", "-", "--store"]).arg(place.path("held"));
    holder.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut holder = holder.spawn().unwrap();
    while !place.path("held/snapshots").is_dir() {
        assert!(holder.try_wait().unwrap().is_none(), "the holder has ended");
        std::thread::yield_now();
    }
    let file = place.write("history", b"terrane-changes 1\n");
    let mut second = command();
    second.args(["replay", "changes", text(&file), "--json", "--store"]).arg(place.path("held"));
    assert_eq!(kind(&second.output().unwrap().into(), 3), "locked");
    holder.kill().unwrap();
    holder.wait().unwrap();

    // A reserve is room that the disk does not have.
    let reserve = call(&store, &["put", "k", "v", "--reserve", "1TiB"]);
    if reserve.code == Some(3) {
        assert_eq!(kind(&reserve, 3), "no_space");
    }
    // A device that is always full.
    let full = ["snapshot", "export", "monday", "--canonical", "/dev/full"];
    assert_eq!(kind(&call(&store, &full), 3), "no_space");

    if !is_root() {
        let secret = place.write("secret", b"");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
        let put = ["put", "--input", text(&secret)];
        assert_eq!(kind(&call(&store, &put), 3), "permission");
    }

    // The system's answer for what is no directory for files.
    let refused = call(Path::new("/proc/terrane"), &["put", "k", "v", "--create"]);
    assert!(["environment", "permission"].contains(&kind(&refused, 3).as_str()), "{refused:?}");
}

#[test]
fn a_store_for_reading_only_says_so() {
    let place = ledger();
    let backup = place.path("backup");
    call(&place.store(), &["backup", "--to", text(&backup)]).done();
    // A backup can be written to; nothing else in the program opens a store for reading only and
    // is asked to write, so the word is that of the system.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let read_only = mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let is_read_only =
            fields.get(3).is_some_and(|options| options.split(',').any(|o| o == "ro"));
        fields.get(1).filter(|dir| is_read_only && Path::new(dir).is_dir()).map(PathBuf::from)
    });
    let Some(dir) = read_only else { return };
    let answer: Answer =
        command().args(["man", text(&dir.join("pages")), "--json"]).output().unwrap().into();
    let found = kind(&answer, 3);
    assert!(["read_only", "permission"].contains(&found.as_str()), "{found}");
}

/// Content of all files below a directory, and the names of all directories.
fn tree(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path.clone());
                found.insert(path, None);
            } else {
                let content = fs::read(&path).unwrap();
                // Locks and leases hold the number of the last process, and no data.
                let is_lock =
                    path.ends_with("lock") || path.extension().is_some_and(|e| e == "lease");
                found.insert(path, (!is_lock).then_some(content));
            }
        }
    }
    // An empty directory of leases is made by the first reader.
    found.retain(|path, _| {
        !path.ends_with("readers") && path.parent().is_none_or(|p| !p.ends_with("readers"))
    });
    found
}

#[test]
fn a_command_that_is_refused_changes_nothing() {
    let place = ledger();
    let store = place.store();
    let malformed = place.write("malformed", b"terrane-changes 1\nbegin 1\nput zz\nend\n");
    let history = place.write("history", b"terrane-changes 1\nbegin 1\nput 01 01\nend\n");
    let lines = place.write("lines", b"a\tb\nno tab\n");
    let garbage = place.write("blk.dat", &[7; 500]);
    let long = "k".repeat(5_000);
    // The first reader makes its directory.
    call(&store, &["count"]).done();
    let before = tree(&store);

    let [malformed, history, lines, garbage] =
        [&malformed, &history, &lines, &garbage].map(|p| text(p));
    let inside = store.join("inside");
    let cases: &[&[&str]] = &[
        &["put", "k"],
        &["put", &long, "v"],
        &["put", "k", "v", "--table", "none"],
        &["put", "--input", lines],
        &["put", "--input", "/no/such/file"],
        &["put", "k", "v", "--reserve", "1"],
        &["delete", "k", "--table", "none"],
        &["delete", "--from", "z", "--to", "a"],
        &["table", "create", "main"],
        &["table", "create", "no name"],
        &["table", "create", "new", "--write-buffer", "1", "--memory-budget", "1"],
        &["table", "rename", "none", "new"],
        &["table", "rename", "main", "other"],
        &["table", "delete", "none"],
        &["table", "build", "main", "--from", text(&store)],
        &["table", "build", "new", "--from", "/no/such/store"],
        &["snapshot", "save", "monday"],
        &["snapshot", "save", "new", "--table", "none"],
        &["snapshot", "rename", "none", "new"],
        &["snapshot", "delete", "none"],
        &["snapshot", "import", "none", "--from", "/no/such/store"],
        &["snapshot", "import", "monday", "--from", text(&store)],
        &["snapshot", "import", "--canonical", "/no/such/file", "--as", "new"],
        &["snapshot", "export", "monday", "--to", text(&store)],
        &["version", "retain", "--name", "start"],
        &["version", "delete", "99"],
        &["version", "rollback", "none"],
        &["compact", "--table", "none"],
        &["backup", "--to", text(&inside)],
        &["btree", "build", "--from", text(&store)],
        &["replay", "changes", malformed],
        &["replay", "changes", history, "--engine", "btree"],
        &["replay", "bitcoin", garbage, "--engine", "context"],
        &["replay", "bitcoin", garbage, "--until", "x"],
    ];
    for case in cases {
        let answer = call(&store, case);
        assert_eq!(answer.code, Some(2), "{case:?}: {answer:?}");
        let after = tree(&store);
        let changed: Vec<&PathBuf> = before
            .keys()
            .chain(after.keys())
            .filter(|path| before.get(*path) != after.get(*path))
            .collect();
        assert!(changed.is_empty(), "{case:?} changed {changed:?}");
    }

    // Where there is nothing, nothing is made, not even directories on the way.
    let absent = place.path("far/away/store");
    let absent_cases: &[&[&str]] = &[
        &["put", "k", "v"],
        &["put", "k", "--create"],
        &["put", &long, "v", "--create"],
        &["put", "--create", "--input", lines],
        &["delete", "k"],
        &["compact"],
        &["table", "create", "new", "--memory-budget", "1"],
        &["table", "rename", "a", "b"],
        &["table", "delete", "a"],
        &["table", "build", "a", "--create", "--from", "/no/such/store"],
        &["snapshot", "save", "a"],
        &["snapshot", "import", "none", "--from", text(&store)],
        &["snapshot", "import", "--canonical", lines, "--as", "a"],
        &["version", "retain"],
        &["version", "rollback", "1"],
        &["btree", "build", "--from", "/no/such/store"],
        &["replay", "changes", malformed],
        &["replay", "changes", malformed, "--engine", "btree"],
        &["replay", "changes", malformed, "--engine", "context"],
        &["replay", "changes", malformed, "--engine", "lmdb"],
        &["replay", "bitcoin", garbage],
        &["replay", "bitcoin", garbage, "--engine", "sqlite"],
        &["replay", "bitcoin", garbage, "--until", "x"],
    ];
    for case in absent_cases {
        let answer = call(&absent, case);
        assert_eq!(answer.code, Some(2), "{case:?}: {answer:?}");
        assert!(!place.path("far").exists(), "{case:?}");
    }
    let salvage = ["salvage", text(&absent), text(&inside), "--json"];
    command().args(salvage).output().map(Answer::from).unwrap().failed(2);
    assert!(!inside.exists());
}
