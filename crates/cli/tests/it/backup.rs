//! `terrane backup` and `terrane version`, as an operator uses them.
//!
//! Goal: a backup equals the store, copies only new files, and overwrites nothing else; versions
//! are listed, read and rolled back to by number and by name.

use std::path::PathBuf;

use serde_json::{Value, json};
use terrane::io::{Disk, RealDisk};

use crate::program::{Answer, Place, call, command, text};
use crate::store::inspect;

/// Calls `terrane <arguments> --json --store <store>`.
fn ledger() -> (Place, PathBuf) {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "--create", "alice", "100", "bob", "20"]).done();
    (place, store)
}

#[test]
fn a_backup_is_renewed_read_and_restored() {
    let (place, store) = ledger();
    let folder = store.parent().unwrap().to_owned();
    let there = folder.join("far/backup");
    let to = ["backup", "--to", text(&there)];
    let first = call(&store, &to).done();
    assert_eq!((&first["commit"], &first["tables"]), (&json!(1), &json!(1)));
    assert_eq!(call(&there, &["get", "alice"]).done()["entries"][0]["value"], "100");
    call(&store, &["snapshot", "save", "monday"]).done();
    call(&store, &["version", "retain", "--name", "start"]).done();
    call(&store, &["put", "alice", "90"]).done();
    let second = call(&store, &to).done();
    let counts = (&second["commit"], &second["versions"], &second["snapshots"]);
    assert_eq!(counts, (&json!(2), &json!(1), &json!(1)));
    let verified: Answer =
        command().args(["verify", text(&there), "--json"]).output().unwrap().into();
    verified.done();
    let inspected = inspect(&there, &["--json"]).done();
    assert_eq!(inspected["named_tables"]["is_backup"], true);
    assert_eq!(inspected["named_tables"]["versions"][0]["name"], "start");

    // A restored store is gone on with; the backup is still one of the first.
    let restored = folder.join("restored");
    call(&there, &["backup", "--to", text(&restored)]).done();
    call(&restored, &["put", "carol", "1"]).done();
    assert_eq!(call(&restored, &["count"]).done()["count"], 3);
    let refused = call(&store, &["backup", "--to", text(&restored)]).failed(2);
    assert!(refused.contains("committed to"), "{refused}");
    call(&store, &to).done();
    let inside = store.join("deep/backup");
    let refusals = [(&store, "lies in it"), (&inside, "lies in it"), (&folder, "not a backup")];

    for (to, said) in refusals.map(|(to, said)| (text(to), said)) {
        let refused = call(&store, &["backup", "--to", to]).failed(2);
        assert!(refused.contains(said), "{refused}");
    }

    assert!(!inside.exists() && !store.join("deep").exists());
    assert!(call(&folder.join("missing"), &to).failed(2).contains("does not exist"));
    drop(place);
}

#[test]
fn versions_are_read_and_gone_back_to() {
    let (_place, store) = ledger();
    assert_eq!(call(&store, &["version", "list"]).done()["versions"], json!([]));
    let first = call(&store, &["version", "retain", "--name", "start"]).done();
    assert_eq!((&first["number"], &first["name"]), (&json!(1), &json!("start")));
    call(&store, &["put", "alice", "90"]).done();
    call(&store, &["delete", "bob"]).done();
    let second = call(&store, &["version", "retain"]).done();
    assert_eq!((&second["number"], &second["name"]), (&json!(3), &Value::Null));
    let listed = call(&store, &["version", "list"]).done();
    let expected = json!([
        {"number": 1, "name": "start", "tables": ["main"]},
        {"number": 3, "name": null, "tables": ["main"]},
    ]);
    assert_eq!(listed["versions"], expected);

    for at in ["1", "start"] {
        let value = call(&store, &["get", "bob", "--version", at]).done();
        assert_eq!(value["entries"][0]["value"], "20");
        assert_eq!(call(&store, &["count", "--version", at]).done()["count"], 2);
    }

    assert_eq!(call(&store, &["scan", "--version", "3"]).done()["count"], 1);

    assert_eq!(call(&store, &["version", "rollback", "start"]).done()["commit"], 4);
    assert_eq!(call(&store, &["count"]).done()["count"], 2);
    assert_eq!(call(&store, &["version", "rollback", "3"]).done()["commit"], 5);
    assert_eq!(call(&store, &["count"]).done()["count"], 1);
    assert_eq!(call(&store, &["version", "delete", "start"]).done()["number"], 1);

    for words in [
        &["version", "rollback", "start"][..],
        &["version", "delete", "1"],
        &["get", "bob", "--version", "2"],
    ] {
        let refused = call(&store, words).failed(2);
        assert!(refused.contains("not retained"), "{refused}");
    }

    let refused = call(&store, &["version", "retain", "--name", "12"]).failed(2);
    assert!(refused.contains("number"), "{refused}");
}

/// Deleted entries took room on the disk for ever, and no command gave it back.
#[test]
fn compact_gives_back_what_deleted_entries_take() {
    let (_place, store) = ledger();
    let value = "v".repeat(100_000);

    for key in ["one", "two", "three"] {
        call(&store, &["put", key, &value]).done();
    }

    call(&store, &["delete", "one", "two", "three"]).done();

    let made = call(&store, &["compact", "--quiet"]).done();

    assert_eq!((&made["command"], &made["tables"]), (&json!("compact"), &json!(1)));
    let [before, after] = ["bytes_before", "bytes_after"].map(|f| made[f].as_u64().unwrap());
    assert!(after + 100_000 < before, "{after} of {before} bytes");
    assert_eq!(call(&store, &["count"]).done()["count"], 2);
    assert!(call(&store.join("missing"), &["compact"]).failed(2).contains("does not exist"));
}

/// A refused reserve that the disk had no room for was stored all the same, and then every put
/// failed.
#[test]
fn a_reserve_larger_than_the_disk_is_refused_and_forgotten() {
    let (_place, store) = ledger();
    if RealDisk::auto().free_bytes(&store).unwrap() >= 1 << 40 {
        return;
    }
    let before = inspect(&store, &["--json"]).done()["reserve"].clone();
    let refused = call(&store, &["put", "carol", "1", "--reserve", "1TiB"]).failed(3);
    assert!(refused.contains("--reserve 0") && refused.contains("bytes are free"), "{refused}");
    assert_eq!(inspect(&store, &["--json"]).done()["reserve"], before);
    call(&store, &["put", "carol", "1"]).done();
}
