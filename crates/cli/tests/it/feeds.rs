//! `terrane changes` and `terrane feed`: what is printed, cursors that are moved, gaps and
//! refusals.

use serde_json::{Value, json};

use crate::program::{Place, call, command, plain, text};

/// The lines of a call that prints JSON lines: the events, and the report at the end.
#[track_caller]
fn lines(place: &Place, arguments: &[&str]) -> (Vec<Value>, Value) {
    let store = place.store();
    let output = command().args(["changes", text(&store), "--json-lines"]).args(arguments).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let report = lines.pop().unwrap();
    assert_eq!((&report["command"], &report["ok"]), (&json!("changes"), &json!(true)));
    (lines, report)
}

#[test]
fn a_follower_catches_up_and_is_compared() {
    let place = Place::new();
    let store = place.store();
    let copy = place.path("copy");
    let follow = |arguments: &[&str]| -> Value {
        let call = command()
            .args(["follow", text(&store), text(&copy), "--once", "--verify", "--json"])
            .args(arguments)
            .output();
        let answer: crate::program::Answer = call.unwrap().into();
        answer.done()
    };
    call(&store, &["put", "alice", "100", "--create"]).done();
    let begun = follow(&[]);
    assert_eq!((&begun["commits"], &begun["tables"][0]["equal"]), (&json!(0), &json!(true)));
    let version = call(&store, &["version", "retain"]).done()["number"].to_string();
    call(&store, &["put", "bob", "7"]).done();
    assert_eq!(follow(&[])["commits"], 1);
    call(&store, &["delete", "alice"]).done();
    call(&store, &["version", "rollback", &version]).done();
    let followed = follow(&[]);
    assert_eq!(followed["tables"][0]["equal"], true);
    assert_eq!(call(&copy, &["get", "alice"]).done()["entries"][0]["value"], "100");
    assert_eq!(call(&copy, &["count"]).done()["count"], 1);

    // A copy that was written to follows no more.
    call(&copy, &["put", "eve", "1"]).done();
    let refused =
        command().args(["follow", text(&store), text(&copy), "--once", "--json"]).output();
    let refused: crate::program::Answer = refused.unwrap().into();
    let message = refused.failed(2);
    assert!(message.contains("somebody else has committed to it"), "{message}");
}

#[test]
fn changes_are_printed_and_a_cursor_remembers_how_far() {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "alice", "100", "--create"]).done();
    let created = call(&store, &["feed", "create", "indexer", "--hold", "64MiB"]).done();
    assert_eq!(created["held_bytes_max"], 64 << 20);
    let begin = created["acknowledged"].as_u64().unwrap();

    call(&store, &["put", "bob", "7", "carol", "hex:00ff"]).done();
    let version = call(&store, &["version", "retain"]).done()["number"].as_u64().unwrap();
    call(&store, &["delete", "alice"]).done();
    call(&store, &["version", "rollback", &version.to_string()]).done();
    call(&store, &["table", "create", "other"]).done();

    let from = (begin + 1).to_string();
    let (events, report) = lines(&place, &["--from", &from]);
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["commit", "commit", "rolled_back", "table_created"]);
    assert_eq!(events[0]["commit"], begin + 1);
    assert_eq!(
        events[0]["tables"],
        json!([{"id": 0, "name": "main", "updates": [
            {"op": "insert", "key": "bob", "value": "7"},
            {"op": "insert", "key": "carol", "value": "hex:00ff"},
        ]}])
    );
    assert_eq!(events[1]["tables"][0]["updates"], json!([{"op": "delete", "key": "alice"}]));
    assert_eq!((&events[2]["to"], &events[2]["commit"]), (&json!(version), &json!(begin + 3)));
    assert_eq!(events[3]["name"], "other");
    assert_eq!((&report["commits"], &report["updates"]), (&json!(3), &json!(3)));
    assert_eq!((&report["position"], &report["acknowledged"]), (&json!(begin + 3), &Value::Null));

    // For people, the same.
    let printed = plain(&store, &["changes", "--from", &from]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let expected = format!(
        "commit {}\n+\tmain\tbob\t7\n+\tmain\tcarol\thex:00ff\ncommit {}\n-\tmain\talice\n\
         commit {}: rolled back to version {version}\ntable other created\n",
        begin + 1,
        begin + 2,
        begin + 3,
    );
    assert_eq!(printed.stdout, expected);

    // With a cursor each commit is printed once.
    let (events, report) = lines(&place, &["--cursor", "indexer"]);
    assert_eq!(events.len(), 4);
    assert_eq!(report["acknowledged"], begin + 3);
    let (events, report) = lines(&place, &["--cursor", "indexer"]);
    // Changes without a number belong to the commit behind them.
    assert_eq!(events.len(), 1);
    assert_eq!((&report["commits"], &report["position"]), (&json!(0), &json!(begin + 3)));
    let listed = call(&store, &["feed", "list"]).done();
    assert_eq!(listed["feeds"][0]["acknowledged"], begin + 3);
    let file = store.join("feeds/indexer.cursor");
    let shown = call(&store, &["inspect", text(&file)]).done();
    assert_eq!(
        (&shown["kind"], &shown["acknowledged_commit"]),
        (&json!("feed_cursor"), &json!(begin + 3))
    );

    let again = call(&store, &["feed", "create", "indexer"]).failed(2);
    assert!(again.contains("exists already"), "{again}");
    call(&store, &["feed", "delete", "indexer"]).done();
    let missing = call(&store, &["changes", "--cursor", "indexer"]).failed(2);
    assert!(missing.contains("feed `indexer` does not exist"), "{missing}");
    assert!(missing.contains("terrane feed list"), "{missing}");
    assert_eq!(call(&store, &["feed", "list"]).done()["feeds"], json!([]));

    // Nothing holds the WAL any more.
    for _ in 0..3 {
        call(&store, &["put", "dave", "1"]).done();
    }
    let gap = call(&store, &["changes", "--from", &from]).failed(2);
    assert!(gap.contains("the first available commit is"), "{gap}");
    let both = call(&store, &["changes", "--json-lines"]);
    assert_eq!(both.code, Some(2), "{both:?}");
}
