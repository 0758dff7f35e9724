//! `terrane backup`, `restore`, `backups`, `verify` and reads of a bucket, over a directory with
//! the layout of a bucket.
//!
//! Goal: an operator backs up, lists, restores an earlier commit, reads in place, finds damage and
//! drops backups. Without the feature, addresses are refused by name.

use crate::program::{Answer, Place, call, command, text};

fn run(arguments: &[&str]) -> Answer {
    command().args(arguments).arg("--json").output().unwrap().into()
}

#[cfg(not(feature = "object-store"))]
#[test]
fn addresses_are_refused_without_the_feature() {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "--create", "alice", "100"]).done();
    let to = text(&place.path("new")).to_owned();
    for refused in [
        call(&store, &["backup", "--to", "s3://ledger/main"]),
        run(&["restore", "s3://ledger/main", &to]),
        run(&["verify", "s3://ledger/main"]),
        run(&["get", "alice", "--store", "s3://ledger/main"]),
        run(&["follow", "s3://ledger/main", &to]),
    ] {
        assert!(refused.failed(2).contains("object-store"), "{refused:?}");
    }
}

#[test]
fn a_directory_is_restored() {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "--create", "alice", "100"]).done();
    let backup = place.path("backup");
    call(&store, &["backup", "--to", text(&backup)]).done();
    let new = place.path("new");
    let restored = run(&["restore", text(&backup), text(&new)]).done();
    assert_eq!(restored["commit"], 1);
    assert_eq!(call(&new, &["get", "alice"]).done()["entries"][0]["value"], "100");
    assert!(run(&["restore", text(&backup), text(&new)]).failed(2).contains("not empty"));
    let other = place.path("other");
    let refused = run(&["restore", text(&backup), text(&other), "--commit", "9"]).failed(2);
    assert!(refused.contains("no commit 9"), "{refused}");
}

#[cfg(feature = "object-store")]
mod with_feature {
    use std::path::PathBuf;

    use serde_json::{Value, json};

    use super::{Place, call, command, run, text};
    use crate::program::plain;
    use crate::schema::{faults, schema};

    fn assert_valid(name: &str, report: &Value) {
        let found = faults(&schema(name), report, "$");
        assert!(found.is_empty(), "{found:?}: {report}");
    }

    #[test]
    fn a_copy_follows_a_bucket() {
        let place = Place::new();
        let store = place.store();
        call(&store, &["put", "--create", "alice", "100"]).done();
        let bucket = format!("file://{}", text(&place.path("bucket")));
        let ship = || call(&store, &["backup", "--to", &bucket]).done();
        let copy = place.path("copies/ledger");
        let follow = || run(&["follow", &bucket, text(&copy), "--once", "--verify"]);
        let missing = follow().failed(2);
        assert!(missing.contains("no backup"), "{missing}");

        ship();
        let begun = follow().done();
        assert_eq!((&begun["source_commit"], &begun["commits"]), (&json!(1), &json!(0)));
        assert_eq!(begun["tables"][0]["equal"], true);
        assert!(begun["requests"]["gets"].as_u64() > Some(0), "{begun}");
        call(&store, &["put", "bob", "7"]).done();
        ship();
        let followed = follow().done();
        assert_eq!((&followed["source_commit"], &followed["commits"]), (&json!(2), &json!(1)));
        assert_eq!(call(&copy, &["get", "bob"]).done()["entries"][0]["value"], "7");
        call(&store, &["table", "create", "other"]).done();
        ship();
        assert_eq!(follow().done()["takeovers"], 1);

        // A copy that was written to follows no more.
        call(&copy, &["put", "eve", "1"]).done();
        let refused = follow().failed(2);
        assert!(refused.contains("somebody else has committed to it"), "{refused}");
    }

    #[test]
    fn a_store_goes_to_a_bucket_and_back() {
        let place = Place::new();
        let store = place.store();
        call(&store, &["put", "--create", "alice", "100", "bob", "20"]).done();
        let bucket = format!("file://{}", text(&place.path("bucket")));
        let to = ["backup", "--to", &bucket];
        let first = call(&store, &to).done();
        assert_valid("backup-bucket.json", &first);
        assert_eq!((&first["commit"], &first["contiguous"]), (&json!(1), &json!(true)));
        let again = call(&store, &to).done();
        assert_eq!((&again["files_uploaded"], &again["id"]), (&json!(0), &first["id"]));
        call(&store, &["put", "alice", "90"]).done();
        let second = call(&store, &to).done();
        assert_eq!(second["commit"], 2);

        let listed = run(&["backups", "list", &bucket]).done();
        assert_valid("backups-list.json", &listed);
        let new = place.path("new");
        let restored = run(&["restore", &bucket, text(&new), "--commit", "1"]).done();
        assert_valid("restore-bucket.json", &restored);
        assert_eq!(call(&new, &["get", "alice"]).done()["entries"][0]["value"], "100");
        call(&new, &["put", "carol", "1"]).done();
        let latest = place.path("latest");
        run(&["restore", &bucket, text(&latest)]).done();
        assert_eq!(call(&latest, &["get", "alice"]).done()["entries"][0]["value"], "90");

        let at = PathBuf::from(&bucket);
        assert_eq!(call(&at, &["get", "alice"]).done()["entries"][0]["value"], "90");
        assert_eq!(call(&at, &["count"]).done()["count"], 2);
        let earlier = PathBuf::from(format!("{bucket}#1"));
        assert_eq!(plain(&earlier, &["scan"]).stdout, "alice\t100\nbob\t20\n");
        let beyond = PathBuf::from(format!("{bucket}#9"));
        assert!(call(&beyond, &["count"]).failed(2).contains("no backup has commit 9"));
        call(&at, &["put", "alice", "1"]).failed(2);

        let verified = run(&["verify", &bucket]).done();
        assert_valid("verify-bucket.json", &verified);
        let data = place.path("bucket/data");
        let object = std::fs::read_dir(&data).unwrap().find_map(|entry| {
            let path = entry.unwrap().path();
            path.to_str().unwrap().contains("log-").then_some(path)
        });
        let object = object.unwrap();
        let mut bytes = std::fs::read(&object).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&object, &bytes).unwrap();
        let damaged = command().args(["verify", &bucket, "--json"]).output().unwrap();
        assert_eq!(damaged.status.code(), Some(1));
        run(&["verify", &bucket, "--quick"]).done();

        let dropped = run(&["backups", "drop", &bucket, "--keep-last", "1"]).done();
        assert_valid("backups-drop.json", &dropped);
        assert_eq!(dropped["left"], 1);
        let unknown = run(&["backups", "drop", &bucket, "0000000000000000"]).failed(2);
        assert!(unknown.contains("no backup"), "{unknown}");
    }
}
