//! Named tables: `terrane get`, `put`, `del`, `scan`, `count`, `table` and `snapshot save`, and
//! what `inspect` and `verify` say of them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::program::{Answer, Place, call, command, plain, text};
use crate::store::{edit, flip, inspect, reseal_manifest};

/// Calls `terrane <arguments> --store <store>`.
/// The report for programs.
/// Returns the standard output of a successful call.
#[track_caller]
fn written(store: &Path, arguments: &[&str]) -> String {
    let answer = plain(store, arguments);
    assert_eq!((answer.code, &*answer.stderr), (Some(0), ""), "{answer:?}");
    answer.stdout
}

/// A store with `alice`, `bob` and a key that is no text in `main`.
fn ledger() -> (Place, PathBuf) {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "alice", "100", "bob", "hex:00ff", "hex:ff", "", "--create"]).done();
    (place, store)
}

fn verify(store: &Path, arguments: &[&str]) -> Answer {
    command().arg("verify").arg(store).arg("--json").args(arguments).output().unwrap().into()
}

/// A line of any length was read into memory, several times over.
#[test]
fn lines_of_input_are_bounded() {
    let place = Place::new();
    let store = place.store();
    let long = place.write("long", &[&b"key\t"[..], &[b'v'; 100]].concat());
    let put = ["put", "--create", "--input", text(&long), "--line-max"];
    let refused = call(&store, &[&put[..], &["103"]].concat()).failed(2);
    assert!(refused.contains("line 1: longer than 103 bytes"), "{refused}");
    assert!(!store.exists());
    call(&store, &[&put[..], &["104"]].concat()).done();

    let history = place.write("history", b"terrane-changes 1\n# a comment of 26 bytes..\n");
    let replay = place.replay("changes", &[text(&history), "--line-max", "20"]);
    let refused = replay.failed(2);
    assert!(refused.contains("more than 20 bytes"), "{refused}");
}

#[test]
fn what_is_put_is_there_for_the_next_call() {
    let (_place, store) = ledger();
    assert_eq!(written(&store, &["get", "alice"]), "100\n");
    assert_eq!(written(&store, &["get", "bob"]), "hex:00ff\n");
    assert_eq!(written(&store, &["get", "hex:ff"]), "\n", "an empty value");
    assert_eq!(written(&store, &["get", "hex:626f62", "alice"]), "bob\thex:00ff\nalice\t100\n");
    assert_eq!(written(&store, &["get", "alice", "--raw"]), "100");
    assert_eq!(written(&store, &["scan"]), "alice\t100\nbob\thex:00ff\nhex:ff\t\n");
    assert_eq!(written(&store, &["count"]), "3\n");

    // The last value of a key counts; several keys are one commit.
    let put = call(&store, &["put", "alice", "90", "alice", "80", "carol", "20"]).done();
    assert_eq!(put["command"], "put");
    assert_eq!(
        (&put["created"], &put["entries"], &put["commit"]),
        (&json!(false), &json!(3), &json!(2))
    );
    let got = call(&store, &["get", "alice", "carol"]).done();
    let entry = |key, value| json!({"key": key, "found": true, "value": value, "blob": null});
    assert_eq!(got["entries"], json!([entry("alice", "80"), entry("carol", "20")]));

    let del = call(&store, &["delete", "alice", "nobody", "alice"]).done();
    assert_eq!(
        (&del["deleted"], &del["absent"], &del["commit"]),
        (&json!(1), &json!(1), &json!(3))
    );
    let del = call(&store, &["delete", "nobody"]).done();
    assert_eq!((&del["deleted"], &del["commit"]), (&json!(0), &Value::Null));
    assert_eq!(call(&store, &["count"]).done()["count"], 3);
    let report = verify(&store, &[]).done();
    assert_eq!((&report["tables"], &report["problems"]), (&json!(1), &json!([])));
}

#[test]
fn a_range_is_deleted_whole() {
    let (_place, store) = ledger();
    call(&store, &["put", "anna", "1", "b", "2", "carol", "3"]).done();
    let del = call(&store, &["delete", "--from", "anna", "--to", "c"]).done();
    assert_eq!(
        (&del["deleted"], &del["absent"], &del["commit"]),
        (&json!(3), &json!(0), &json!(3))
    );
    assert_eq!(written(&store, &["scan"]), "alice\t100\ncarol\t3\nhex:ff\t\n");
    // Deleted entries are still in the file, which is shown with them.
    call(&store, &["snapshot", "save", "gap"]).done();
    let snapshot = store.join("snapshots/gap.snapshot");
    let json = inspect(&snapshot, &["--json"]).done();
    assert_eq!(json["write_buffer"][0]["deleted_ranges"], 1, "{json}");
    let text = inspect(&snapshot, &[]).stdout;
    assert!(text.contains("with deleted ranges of keys"), "{text}");
    let del = call(&store, &["delete", "--prefix", "b"]).done();
    assert_eq!((&del["deleted"], &del["commit"]), (&json!(0), &Value::Null));
    let text = written(&store, &["delete", "--prefix", "al"]);
    assert!(text.contains("1 entry of table main"), "{text}");
    assert_eq!(call(&store, &["delete", "--from", "hex:ff"]).done()["deleted"], 1);
    assert_eq!(call(&store, &["delete", "--to", "d"]).done()["deleted"], 1);
    assert_eq!(written(&store, &["count"]), "0\n");

    for wrong in [
        &["delete"][..],
        &["delete", "alice", "--prefix", "a"],
        &["delete", "alice", "--from", "a"],
        &["delete", "--prefix", "a", "--to", "b"],
        &["delete", "--from", "hex:0"],
    ] {
        assert_eq!(plain(&store, wrong).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn a_store_keeps_the_reserve_that_it_was_given() {
    let (_place, store) = ledger();
    let reserve = || inspect(&store, &["--json"]).done()["reserve"].clone();
    assert_eq!(reserve()["is_held"], true, "a new store has one");
    call(&store, &["put", "alice", "1", "--reserve", "0"]).done();
    assert_eq!(reserve(), Value::Null);
    call(&store, &["put", "alice", "1", "--reserve", "1MiB"]).done();
    let held = json!({"bytes": 1 << 20, "is_held": true});
    assert_eq!(reserve(), held);
    call(&store, &["delete", "alice"]).done();
    call(&store, &["table", "create", "other"]).done();
    assert_eq!(reserve(), held);
    let file = inspect(&store.join("reserve"), &["--json"]).done();
    assert_eq!((&file["kind"], &file["bytes"]), (&json!("reserve"), &held["bytes"]));
    let text = inspect(&store, &[]).stdout;
    assert!(text.contains("reserve") && text.contains("1.0 MiB"), "{text}");
    assert!(verify(&store, &[]).done()["problems"].as_array().unwrap().is_empty());
    call(&store, &["table", "create", "third", "--reserve", "64KiB"]).done();
    assert_eq!(reserve()["bytes"], 64 << 10);
    call(&store, &["put", "alice", "1", "--reserve", "0"]).done();
    assert_eq!(reserve(), Value::Null);
    assert_eq!(plain(&store, &["put", "alice", "1", "--reserve", "1KiB"]).code, Some(2));
}

#[test]
fn an_absent_key_is_told_with_exit_code_1() {
    let (_place, store) = ledger();
    let answer = call(&store, &["get", "alice", "nobody"]);
    assert_eq!(answer.code, Some(1));
    let json = answer.json();
    assert_eq!((&json["ok"], &json["error"]["kind"]), (&json!(false), &json!("not_found")));
    assert_eq!(json["entries"][0]["value"], "100");
    let absent = json!({"key": "nobody", "found": false, "value": null, "blob": null});
    assert_eq!(json["entries"][1], absent);
    let answer = plain(&store, &["get", "nobody", "alice", "hex:00"]);
    assert_eq!((answer.code, &*answer.stdout), (Some(1), "alice\t100\n"));
    assert_eq!(answer.stderr, "terrane: not in table `main`: `nobody`, `hex:00`\n");

    for arguments in [&["get", "nobody"][..], &["get", "nobody", "--raw"]] {
        let answer = plain(&store, arguments);
        assert_eq!((answer.code, &*answer.stdout), (Some(1), ""), "{answer:?}");
        assert!(answer.stderr.contains("`nobody`"), "{answer:?}");
    }
}

#[test]
fn nothing_is_made_by_a_misspelt_name() {
    let place = Place::new();
    let store = place.path("some/store");

    for arguments in
        [&["put", "k", "v"][..], &["get", "k"], &["scan"], &["count"], &["delete", "k"]]
    {
        let message = call(&store, arguments).failed(2);
        assert!(message.contains("does not exist"), "{message}");
    }

    assert!(call(&store, &["put", "k", "v"]).failed(2).contains("--create"));
    assert!(!place.path("some").exists());
    // An entry that no table takes creates no store either.
    let long = "k".repeat(5_000);
    assert!(call(&store, &["put", &long, "v", "--create"]).failed(2).contains("5000 bytes"));
    call(&store, &["put", "k", "--create"]).failed(2);
    call(&store, &["put", "hex:0", "v", "--create"]).failed(2);
    call(&store, &["put", "k", "@/no/such/file", "--create"]).failed(2);
    call(&store, &["put", "k", "v", "--create", "--table", "No"]).failed(2);
    assert!(!place.path("some").exists());

    assert_eq!(call(&store, &["put", "k", "v", "--create"]).done()["created"], true);
    for arguments in
        [&["put", "k", "v"][..], &["get", "k"], &["scan"], &["count"], &["delete", "k"]]
    {
        let arguments = [arguments, &["--table", "other"]].concat();
        let message = call(&store, &arguments).failed(2);
        assert!(message.contains("`other` does not exist"), "{message}");
    }

    // A directory of something else is left as it is.
    let foreign = place.write("letters/dear.txt", b"dear");
    let message = call(foreign.parent().unwrap(), &["put", "k", "v", "--create"]).failed(2);
    assert!(message.contains("not a Terrane store"), "{message}");
    assert_eq!(std::fs::read_dir(foreign.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn files_and_bytes_of_every_kind_come_back() {
    let place = Place::new();
    let store = place.store();
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let file = place.write("picture", &bytes);
    let argument = format!("@{}", text(&file));
    call(
        &store,
        &[
            "put",
            "hex:00AB",
            &argument,
            &format!("@{}", text(&place.write("k", b"a\n"))),
            "x",
            "--create",
        ],
    )
    .done();
    let raw = command().args(["get", "hex:00ab", "--raw", "--store"]).arg(&store).output().unwrap();
    assert_eq!(raw.stdout, bytes);
    assert_eq!(written(&store, &["get", "hex:610a"]), "x\n");
    let put =
        command().args(["put", "--store"]).arg(&store).args(["--", "-5", "-6"]).output().unwrap();
    assert!(put.status.success(), "{put:?}");
    assert_eq!(
        call(&store, &["scan", "--from", "-", "--to", "."]).done()["entries"][0]["value"],
        "-6"
    );
}

#[test]
fn scans_have_bounds_and_both_directions() {
    let place = Place::new();
    let store = place.store();
    let lines: Vec<String> = (0..1_000).map(|n| format!("{n:04}\tvalue {n}\n")).collect();
    let input = lines.concat();
    let file = place.write("input", input.as_bytes());
    assert_eq!(call(&store, &["put", "--input", text(&file), "--create"]).done()["entries"], 1_000);
    assert_eq!(written(&store, &["scan"]), input);
    let mut lines: Vec<&str> = input.lines().collect();
    let range = |arguments: &[&str]| -> Vec<String> {
        let arguments = [&["scan"], arguments].concat();
        let found: Vec<String> = written(&store, &arguments).lines().map(str::to_owned).collect();
        let json = call(&store, &arguments).done();
        let entry = |entry: &Value| {
            format!("{}\t{}", entry["key"].as_str().unwrap(), entry["value"].as_str().unwrap())
        };
        let entries: Vec<String> = json["entries"].as_array().unwrap().iter().map(entry).collect();
        assert_eq!((&entries, &json["count"]), (&found, &json!(found.len())));
        found
    };
    assert_eq!(range(&["--from", "0300", "--to", "0700"]), lines[300..700]);
    assert_eq!(range(&["--prefix", "03"]), lines[300..400]);
    assert_eq!(range(&["--from", "0990", "--limit", "3"]), lines[990..993]);
    assert_eq!(range(&["--limit", "0"]), lines[..0]);
    assert_eq!(range(&["--limit", "256"]), lines[..256]);
    call(&store, &["scan", "--from", "5", "--to", "1"]).failed(2);
    lines.reverse();
    assert_eq!(range(&["--reverse"]), lines);
    assert_eq!(range(&["--reverse", "--prefix", "09", "--limit", "2"]), lines[..2]);
    assert_eq!(range(&["--reverse", "--to", "0300", "--limit", "300"]), lines[700..]);
    assert_eq!(written(&store, &["count", "--prefix", "01"]), "100\n");
    assert_eq!(written(&store, &["count", "--from", "0001", "--to", "hex:30303033"]), "2\n");
    call(&store, &["scan", "--from", "1", "--prefix", "1"]).failed(2);
}

#[test]
fn what_a_scan_writes_is_read_back() {
    let place = Place::new();
    let store = place.store();
    let copy = place.path("copy");
    let lines =
        "\tthe empty key\nblob\tvalue\thex:00ff\nhex:0a\thex:\nhex:0d\t\u{e9}t\u{e9}\n@x\ty\n";
    let file = place.write("lines", lines.as_bytes());
    call(&store, &["put", "--input", text(&file), "--create"]).done();
    let shown = "\tthe empty key\nhex:0a\t\nhex:0d\tété\nhex:4078\ty\nblob\tvalue\thex:00ff\n";
    assert_eq!(written(&store, &["scan"]), shown);
    assert_eq!(written(&store, &["get", "blob"]), "value\thex:00ff\n");
    assert_eq!(call(&store, &["get", "blob"]).done()["entries"][0]["blob"], "hex:00ff");
    let put = |arguments: &[&str], input: &str| -> Answer {
        let mut child = command()
            .args(["put", "--json", "--store", text(&copy), "--input", "-"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap().into()
    };
    put(&["--create"], shown).done();
    assert_eq!(written(&copy, &["scan"]), shown);

    for (input, wrong) in [
        ("a\tb\nno tab\n", "line 2"),
        ("a\tb\tc\td\n", "line 1"),
        ("a\tb\n\n", "line 2"),
        ("a\thex:x\n", "line 1"),
    ] {
        let message = put(&[], input).failed(2);
        assert!(message.contains(wrong), "{message}");
    }

    let message = put(&["--upsert"], "a\tb\tc\n").failed(2);
    assert!(message.contains("blob"), "{message}");
    assert_eq!(put(&[], "").done()["entries"], 0);
    assert_eq!(written(&copy, &["scan"]), shown);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let place = Place::new();
    let store = place.store();
    let lines: Vec<String> = (0..20_000).map(|n| format!("{n:06}\tsome value\n")).collect();
    let input = lines.concat();
    let file = place.write("input", input.as_bytes());
    call(&store, &["put", "--input", text(&file), "--create"]).done();
    let mut child = command()
        .args(["scan", "--store", text(&store)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "000000\tsome value\n");
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), &*stderr), (Some(0), ""));
}

#[test]
fn tables_are_made_listed_renamed_and_dropped() {
    let place = Place::new();
    let store = place.path("new/store");
    let create = |arguments: &[&str]| call(&store, &[&["table", "create"], arguments].concat());
    assert_eq!(
        create(&["sums", "--resolve", "add-u64-wrapping", "--write-buffer", "64KiB"]).done()["table"],
        "sums"
    );
    create(&["main", "--memory-budget", "1MiB"]).done();
    create(&["log", "--resolve", "terrane.concatenate", "--compression", "lz4"]).done();
    assert!(create(&["main"]).failed(2).contains("`main` exists already"));

    for wrong in [
        &["x", "--resolve", "sum"][..],
        &["x", "--write-buffer", "0"],
        &["x", "--write-buffer", "1 MiB"],
        &["x", "--memory-budget", "1"],
        &["x", "--compression", "snappy"],
        &["x", "--prefix-bytes", "0"],
        &["x", "--prefix-bytes", "256"],
        &["x", "--compression", "lz4", "--compressed-levels", "0"],
        &["x", "--compression", "lz4", "--compressed-levels", "lowest"],
        &["x", "--write-buffer", "1MiB", "--memory-budget", "1MiB"],
        &["X"],
    ] {
        create(wrong).failed(2);
    }

    let one = "hex:0100000000000000";
    for _ in 0..3 {
        call(&store, &["put", "n", one, "--upsert", "--table", "sums"]).done();
    }

    assert_eq!(written(&store, &["get", "n", "--table", "sums"]), "hex:0300000000000000\n");

    let list = |store: &Path| call(store, &["table", "list"]).done()["tables"].clone();
    let tables = list(&store);
    let column = |field: &str| -> Vec<Value> {
        tables.as_array().unwrap().iter().map(|table| table[field].clone()).collect()
    };
    assert_eq!(column("name"), ["log", "main", "sums"]);
    assert_eq!(column("id"), [2, 1, 0]);
    assert_eq!(
        column("resolve"),
        ["terrane.concatenate", "terrane.newest", "terrane.add-u64-wrapping"]
    );
    assert_eq!(column("memory_budget_bytes"), [Value::Null, json!(1 << 20), Value::Null]);
    assert_eq!(column("write_buffer_bytes")[2], 64 << 10);
    assert_eq!(column("compression"), ["lz4", "none", "none"]);
    // An upsert for each call, until a merge combines them: these are no live keys, and the name
    // says so.
    assert_eq!(column("stored_entries"), [0, 0, 3]);
    assert_eq!(column("entries"), [Value::Null, Value::Null, Value::Null]);
    let shown = written(&store, &["table", "list"]);
    assert!(shown.contains("STORED ENTRIES  OF THEM TOMBSTONES"), "{shown}");
    assert!(shown.starts_with("TABLE  RESOLVE") && shown.lines().count() == 4, "{shown}");

    assert_eq!(call(&store, &["table", "rename", "sums", "totals"]).done()["to"], "totals");
    assert!(call(&store, &["table", "rename", "sums", "x"]).failed(2).contains("does not exist"));
    assert!(call(&store, &["table", "rename", "log", "main"]).failed(2).contains("exists already"));
    assert_eq!(written(&store, &["get", "n", "--table", "totals"]), "hex:0300000000000000\n");
    assert_eq!(call(&store, &["table", "delete", "totals"]).done()["dropped"], true);
    assert!(call(&store, &["table", "delete", "totals"]).failed(2).contains("`totals`"));
    assert_eq!(
        call(&store, &["table", "delete", "totals", "--if-exists"]).done()["dropped"],
        false
    );
    assert_eq!(list(&store).as_array().unwrap().len(), 2);
    assert_eq!(verify(&store, &[]).done()["tables"], 2);
    // A store without tables, and what is none.
    let (_place, other) = ledger();
    call(&other, &["table", "delete", "main"]).done();
    assert_eq!(list(&other), json!([]));
    call(&place.path("missing"), &["table", "list"]).failed(2);
    call(&place.path("missing"), &["table", "delete", "x"]).failed(2);
}

#[test]
fn a_table_is_saved_as_a_snapshot_that_stays() {
    let (_place, store) = ledger();
    let saved = call(&store, &["snapshot", "save", "monday", "--label", "ledger"]).done();
    assert_eq!(
        (&saved["name"], &saved["table"], &saved["label"]),
        (&json!("monday"), &json!("main"), &json!("ledger"))
    );
    assert!(call(&store, &["snapshot", "save", "monday"]).failed(2).contains("exists already"));
    assert!(call(&store, &["snapshot", "save", "x", "--table", "no"]).failed(2).contains("`no`"));
    let digest = |store: &Path| {
        let export = ["snapshot", "export", "monday", "--canonical", "/dev/null"];
        call(store, &export).done()["digest"].clone()
    };
    let before = digest(&store);
    call(&store, &["delete", "alice", "bob", "hex:ff"]).done();
    call(&store, &["table", "delete", "main"]).done();
    assert_eq!(digest(&store), before);
    let listed = call(&store, &["snapshot", "list"]).done();
    assert_eq!(
        (&listed["snapshots"][0]["label"], &listed["snapshots"][0]["stored_entries"]),
        (&json!("ledger"), &json!(3))
    );
    verify(&store, &[]).done();
}

#[test]
fn a_store_in_use_is_named_with_its_process_and_can_be_looked_at() {
    let (place, store) = ledger();
    // It holds the store until its input ends.
    let mut child = command()
        .args(["snapshot", "import", "--canonical", "-", "--as", "x", "--store", text(&store)])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = format!("{:>10}\n", child.id());

    while std::fs::read(store.join("lock")).unwrap_or_default() != pid.as_bytes() {
        assert!(child.try_wait().unwrap().is_none(), "the holder has ended");
        std::thread::yield_now();
    }

    for arguments in [&["put", "a", "b"][..], &["delete", "alice"], &["table", "create", "x"]] {
        let message = call(&store, arguments).failed(3);
        assert!(message.contains(&format!("by process {}", child.id())), "{message}");
    }

    assert_eq!(call(&store, &["table", "list"]).done()["tables"][0]["name"], "main");
    assert_eq!(written(&store, &["get", "alice"]), "100\n");
    assert_eq!(call(&store, &["count"]).done()["count"], 3);
    inspect(&store, &["--json"]).done();
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert_eq!(written(&store, &["get", "alice"]), "100\n");
    drop(place);
}

/// The manifest is shown by `inspect`, also while the process that wrote it is gone without having
/// closed it.
#[test]
fn manifest_and_log_are_shown() {
    let (_place, store) = ledger();
    let json = inspect(&store, &["--json"]).done();
    let named = &json["named_tables"];
    assert_eq!((&named["checkpointed_commit"], &named["last_commit"]), (&json!(1), &json!(1)));
    assert_eq!(named["tables"][0]["name"], "main");
    assert_eq!(
        (&named["tables"][0]["stored_entries"], &named["tables"][0]["runs"]),
        (&json!(3), &json!(1))
    );
    let last = named["log_segments"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["usage"], &last["sealed"], &last["commits"]),
        (&json!("needed"), &json!(false), &json!(0))
    );
    assert_eq!((&last["number"], &last["first_commit"]), (&named["first_segment"], &json!(2)));
    let shown = inspect(&store, &[]);

    for word in ["checkpointed commit", "TABLE", "terrane.newest", "FIRST COMMIT", "needed", "open"]
    {
        assert!(shown.stdout.contains(word), "{word}: {shown:?}");
    }

    for copy in ["manifest.a", "manifest.b"] {
        let json = inspect(&store.join(copy), &["--json"]).done();
        assert_eq!((&json["kind"], &json["sequence"]), (&json!("manifest"), &named["sequence"]));
        assert_eq!(json["tables"], named["tables"]);
    }

    let json = inspect(Path::new(last["path"].as_str().unwrap()), &["--json"]).done();
    assert_eq!((&json["kind"], &json["end_bytes"]), (&json!("log"), &json!(1536)));
    assert!(
        inspect(&store.join("manifest.a"), &["--page", "0", "--json"]).failed(2).contains("page")
    );
    let json = inspect(Path::new("constants"), &["--json"]).done();

    for (name, value) in
        [("STORE_MAGIC", "TerraMan"), ("SEGMENT_MAGIC", "TerraLog"), ("SEAL_OFFSET", "512")]
    {
        assert_eq!(json["constants"][name], value);
    }
}

#[test]
fn a_damaged_copy_of_the_manifest_is_mended_from_the_other() {
    let (_place, store) = ledger();
    let copies = ["manifest.a", "manifest.b"].map(|name| store.join(name));
    let bytes = std::fs::read(&copies[0]).unwrap();
    flip(&copies[1], 30);
    let answer = verify(&store, &[]);
    answer.failed(1);
    let problem = &answer.json()["problems"][0];
    assert_eq!(
        (&problem["file"], &problem["repairable"]),
        (&json!(text(&copies[1])), &json!(true))
    );
    assert!(inspect(&store, &["--json"]).failed(1).contains("manifest.b"));
    assert!(inspect(&copies[1], &["--json"]).failed(1).contains("checksum"));
    assert_eq!(verify(&store, &["--repair"]).done()["repaired"], 1);
    assert_eq!(std::fs::read(&copies[1]).unwrap(), bytes);
    // Opening for writing mends it as well.
    std::fs::remove_file(&copies[0]).unwrap();
    verify(&store, &[]).failed(1);
    assert_eq!(written(&store, &["get", "alice"]), "100\n");
    assert!(!copies[0].exists());
    assert_eq!(call(&store, &["delete", "nobody"]).done()["deleted"], 0);
    assert_eq!(std::fs::read(&copies[0]).unwrap(), bytes);
    verify(&store, &[]).done();

    for copy in &copies {
        flip(copy, 30);
    }

    assert!(call(&store, &["get", "alice"]).failed(1).contains("damaged"));
    assert!(call(&store, &["table", "list"]).failed(1).contains("manifest.a"));
    assert_eq!(verify(&store, &["--repair"]).json()["left"], 2);

    for copy in &copies {
        flip(copy, 30);
        edit(copy, |bytes| {
            bytes[8] = 9;
            reseal_manifest(bytes);
        });
        assert!(inspect(copy, &["--json"]).failed(2).contains("format version 9"));
    }

    assert!(call(&store, &["get", "alice"]).failed(2).contains("format version 9"));
}

#[test]
fn damage_names_the_table_that_needs_the_file() {
    let (_place, store) = ledger();
    call(&store, &["put", "k", "v", "--table", "other", "--create"]).done();
    let log = inspect(&store, &["--json"]).done()["named_tables"]["log_segments"].clone();
    let last = PathBuf::from(log.as_array().unwrap().last().unwrap()["path"].as_str().unwrap());
    flip(&last, 3);
    let answer = verify(&store, &["--repair"]);
    answer.failed(1);
    let problem = &answer.json()["problems"][0];
    assert_eq!(
        (&problem["rule"], &problem["repairable"]),
        (&json!("not a segment of the log"), &json!(false))
    );
    assert!(call(&store, &["scan"]).failed(1).contains(text(&last)));
    flip(&last, 3);
    let runs = std::fs::read_dir(store.join("active")).unwrap();

    for run in runs.map(|entry| entry.unwrap().path()) {
        flip(&run, 50);
        let answer = verify(&store, &[]);
        answer.failed(1);
        let json = answer.json();
        assert_eq!(json["problems"][0]["tables"].as_array().unwrap().len(), 1, "{json}");
        let shown = command().arg("verify").arg(&store).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains("needed by table "), "{shown}");
        flip(&run, 50);
    }

    verify(&store, &[]).done();
}

#[test]
fn help_shows_examples() {
    for arguments in [
        &["get"][..],
        &["put"],
        &["delete"],
        &["scan"],
        &["count"],
        &["table"],
        &["table", "list"],
        &["table", "create"],
        &["table", "rename"],
        &["table", "delete"],
        &["snapshot", "save"],
    ] {
        let answer: Answer = command().args(arguments).arg("--help").output().unwrap().into();
        assert_eq!(answer.code, Some(0));
        assert!(
            answer.stdout.contains("Example") && answer.stdout.contains("--store"),
            "{answer:?}"
        );
    }
}

/// The bytes of each file below a directory, but for the lock and the leases of readers.
fn bytes_of(dir: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("readers") || path.ends_with("lock") {
            continue;
        }
        if path.is_dir() {
            found.extend(bytes_of(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.insert(path, bytes);
        }
    }

    found
}

/// Commands opened the store for writing, which seals its log, before they found out that there is
/// nothing to do.
#[test]
fn a_command_that_is_refused_changes_nothing_on_disk() {
    let (place, store) = ledger();
    call(&store, &["snapshot", "save", "monday"]).done();
    call(&store, &["version", "retain", "--name", "first"]).done();
    call(&store, &["put", "carol", "300"]).done();
    call(&store, &["version", "retain", "--name", "second"]).done();
    let other = place.path("other");
    call(&other, &["put", "dave", "1", "--create"]).done();
    call(&other, &["snapshot", "save", "tuesday"]).done();
    let before = bytes_of(&store);
    let refused: &[&[&str]] = &[
        &["snapshot", "delete", "tuesday"],
        &["snapshot", "rename", "tuesday", "friday"],
        &["snapshot", "rename", "monday", "monday"],
        &["snapshot", "save", "monday"],
        &["snapshot", "save", "friday", "--table", "none"],
        &["snapshot", "import", "tuesday", "--from", text(&other), "--as", "monday"],
        &["version", "delete", "third"],
        &["version", "delete", "999999"],
        &["version", "rollback", "third"],
        &["version", "retain", "--name", "first"],
    ];

    for arguments in refused {
        call(&store, arguments).failed(2);
        assert!(bytes_of(&store) == before, "{arguments:?}");
    }
}
