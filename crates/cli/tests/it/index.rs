//! `terrane index build` and `terrane table build`: all entries from a table to a B+tree and back;
//! `put` and `del` on a B+tree.
//!
//! Goal: a copy equals its source, by digest and entry for entry; a refused copy leaves nothing
//! behind and changes nothing. Method: the command alone fills, copies and compares places.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::program::{Answer, Place, call, command, text};

/// Calls `terrane <arguments> --json --store <store>`.
/// All entries, one a line.
fn scan(store: &Path, options: &[&str]) -> String {
    let mut scan = command();
    let answer: Answer =
        scan.arg("scan").args(options).arg("--store").arg(store).output().unwrap().into();
    assert_eq!(answer.code, Some(0), "{answer:?}");
    answer.stdout
}

/// Lines of 3,000 entries, ascending.
fn lines() -> String {
    (0..3_000).fold(String::new(), |lines, number| {
        let value = "v".repeat(number % 40);
        lines + &format!("account/{number:05}\tvalue {number} {value}\n")
    })
}

/// A store with these entries in a table.
fn filled(place: &Place, table: &str) -> std::path::PathBuf {
    let input = place.write("lines", lines().as_bytes());
    let store = place.path("ledger");
    let put = call(&store, &["put", "--input", text(&input), "--create", "--table", table]);
    assert_eq!(put.done()["entries"], 3_000);
    store
}

#[test]
fn entries_go_from_a_table_to_a_btree_and_back() {
    let place = Place::new();
    let store = filled(&place, "accounts");
    let index = place.path("a/index");
    let second = place.path("b");
    let copy = place.path("c/copy");
    let from = ["btree", "build", "--from", text(&store), "--from-table", "accounts"];
    let built = call(&index, &from).done();
    assert_eq!(built["command"], "btree build");
    assert_eq!(built["entries"], 3_000);
    assert_eq!(built["file_bytes"], fs::metadata(index.join("tree")).unwrap().len());
    assert!(built["entries_per_s"].as_f64().unwrap() > 0.0 && built["wall_s"].is_number());
    assert_eq!(scan(&index, &[]), lines());
    // Beside what a directory may have: nothing at all, or an index that was emptied.
    fs::create_dir(&second).unwrap();
    let again = ["btree", "build", "--from", text(&index), "--fill", "100"];
    let second_built = call(&second, &again).done();
    assert_eq!((&second_built["digest"], scan(&second, &[])), (&built["digest"], lines()));
    assert!(second_built["file_bytes"].as_u64() < built["file_bytes"].as_u64());
    assert_eq!(call(&second, &["delete", "--prefix", ""]).done()["deleted"], 3_000);
    assert_eq!(call(&second, &again).done()["digest"], built["digest"]);

    let back = call(&copy, &["table", "build", "main", "--create", "--from", text(&second)]).done();
    assert_eq!((&back["command"], &back["table"]), (&json!("table build"), &json!("main")));
    assert_eq!((&back["entries"], &back["digest"]), (&json!(3_000), &built["digest"]));
    // The table was installed: no entry has gone through the log.
    let inspected = command().arg("inspect").arg(&copy).arg("--json").output().unwrap();
    let named = &Answer::from(inspected).done()["named_tables"];
    assert_eq!((&named["last_commit"], &named["tables"][0]["runs"]), (&json!(0), &json!(1)));
    let segments = named["log_segments"].as_array().unwrap().iter();
    assert_eq!(segments.filter_map(|segment| segment["updates"].as_u64()).sum::<u64>(), 0);
    assert_eq!(scan(&copy, &[]), lines());
    let export = place.path("export");
    call(&copy, &["snapshot", "save", "all"]).done();
    let exported = call(&copy, &["snapshot", "export", "all", "--canonical", text(&export)]);
    assert_eq!(exported.done()["digest"], built["digest"]);
    let tables = call(&copy, &["table", "list"]).done();
    assert_eq!(tables["tables"].as_array().unwrap().len(), 1, "{tables}");
    // From table to table, blobs too; and for people.
    let with_blob = place.write("blob", b"key\tvalue\thex:00ff\n");
    call(&copy, &["put", "--input", text(&with_blob), "--create", "--table", "blobs"]).done();
    let text_of = |store: &Path, arguments: &[&str]| -> Answer {
        command().args(arguments).arg("--store").arg(store).output().unwrap().into()
    };
    let build = ["table", "build", "blobs", "--from", text(&copy), "--from-table", "blobs"];
    let answer = text_of(&store, &build);
    assert_eq!((answer.code, &*answer.stderr), (Some(0), ""), "{answer:?}");
    assert!(
        answer.stdout.contains("table blobs") && answer.stdout.contains("digest"),
        "{answer:?}"
    );
    assert_eq!(scan(&store, &["--table", "blobs"]), "key\tvalue\thex:00ff\n");
    let verified = command().arg("verify").arg(&index).arg("--json").output().unwrap();
    assert_eq!(Answer::from(verified).done()["entries"], 3_000);
}

#[test]
fn what_cannot_be_copied_is_refused_and_leaves_nothing() {
    let place = Place::new();
    let store = filled(&place, "main");
    let index = place.path("index");
    let build = ["btree", "build", "--from", text(&store)];

    for (options, why) in [
        (&["--from-table", "other"][..], "does not exist"),
        (&["--key-bytes", "14"], "a key of 13 bytes"),
        (&["--key-bytes", "13", "--value-bytes", "3"], "a value of 8 bytes"),
        (&["--fill", "49"], "49"),
        (&["--memory-budget", "1KiB"], "memory_bytes"),
        (&["--version", "99"], "99"),
    ] {
        let message = call(&index, &[&build[..], options].concat()).failed(2);
        assert!(message.contains(why), "{options:?}: {message}");
        assert!(!index.exists(), "{options:?}");
    }

    let nowhere = place.path("nowhere");
    let message = call(&index, &["btree", "build", "--from", text(&nowhere)]).failed(2);
    assert!(message.contains("does not exist") && !index.exists(), "{message}");
    let long = format!("long\t{}\n", "x".repeat(800));
    let long = place.write("long", long.as_bytes());
    let blob = place.write("blob", b"key\tvalue\tblob\n");

    for (table, input, why) in [("long", &long, "800 bytes"), ("blob", &blob, "`key` has a blob")] {
        call(&store, &["put", "--input", text(input), "--create", "--table", table]).done();
        let options = [&build[..], &["--from-table", table]].concat();
        let message = call(&index, &options).failed(2);
        assert!(message.contains(why) && !index.exists(), "{message}");
    }

    // Whatever is there stays as it was.
    call(&index, &build).done();
    assert!(call(&index, &build).failed(2).contains("has entries"));
    assert_eq!(scan(&index, &[]), lines());
    let foreign = place.write("letters/dear.txt", b"dear");
    let letters = foreign.parent().unwrap();
    assert!(call(letters, &build).failed(2).contains("is not empty"));
    assert!(call(&store, &build).failed(2).contains("is not empty"));
    assert_eq!(fs::read_dir(letters).unwrap().count(), 1);
    let table = ["table", "build", "main", "--from", text(&index)];
    assert!(call(&store, &table).failed(2).contains("terrane table delete main"));
    assert!(call(letters, &table).failed(2).contains("not a Terrane store"));
    assert!(call(&nowhere, &table).failed(2).contains("does not exist"));
    let tables = call(&store, &["table", "list"]).done();
    assert_eq!(tables["tables"].as_array().unwrap().len(), 3, "{tables}");
}

#[test]
fn entries_of_a_btree_are_put_and_deleted() {
    let place = Place::new();
    let store = filled(&place, "main");
    let index = place.path("index");
    call(&index, &["btree", "build", "--from", text(&store)]).done();
    let put = call(&index, &["put", "alice", "100", "hex:00ff", "", "account/00000", "new"]).done();
    assert_eq!(
        (&put["entries"], &put["table"], &put["commit"], &put["created"]),
        (&json!(3), &Value::Null, &Value::Null, &json!(false))
    );
    let got = call(&index, &["get", "alice", "account/00000"]).done();
    assert_eq!(
        (&got["entries"][0]["value"], &got["entries"][1]["value"]),
        (&json!("100"), &json!("new"))
    );
    let del = call(&index, &["delete", "alice", "nobody", "alice"]).done();
    assert_eq!(
        (&del["deleted"], &del["absent"], &del["commit"]),
        (&json!(1), &json!(1), &Value::Null)
    );
    assert_eq!(call(&index, &["get", "alice"]).code, Some(1));
    assert_eq!(call(&index, &["delete", "--prefix", "account/000"]).done()["deleted"], 100);
    let del = call(&index, &["delete", "--from", "account/00100", "--to", "account/00103"]).done();
    assert_eq!(del["deleted"], 3);
    assert_eq!(call(&index, &["count"]).done()["count"], 3_000 + 1 - 103);
    // More than one batch takes.
    let more =
        (0..5_000).fold(String::new(), |lines, number| lines + &format!("more/{number}\t\n"));
    let more = place.write("more", more.as_bytes());
    assert_eq!(call(&index, &["put", "--input", text(&more)]).done()["entries"], 5_000);
    assert_eq!(call(&index, &["delete", "--prefix", "more/"]).done()["deleted"], 5_000);
    assert_eq!(call(&index, &["count"]).done()["count"], 3_000 + 1 - 103);
    let long = "k".repeat(600);

    for (arguments, why) in [
        (&["put", "a", "1", "--upsert"][..], "no merge operator"),
        (&["put", "a", "1", "--reserve", "1MiB"], "no reserve"),
        (&["put", "a", "1", "--memory-budget", "8MiB"], "no memory budget"),
        (&["put", "a", "1", "--table", "other"], "no tables"),
        (&["delete", "a", "--table", "other"], "no tables"),
        (&["put", &long, "1"], "600 bytes"),
    ] {
        let message = call(&index, arguments).failed(2);
        assert!(message.contains(why), "{message}");
    }

    assert_eq!(call(&index, &["count"]).done()["count"], 3_000 + 1 - 103);
}
