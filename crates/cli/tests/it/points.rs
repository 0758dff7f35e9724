//! Reading of tables at points in time: snapshots and versions, JSON Lines, and ranges that make no
//! sense.

use serde_json::{Value, json};

use crate::program::{Answer, Place, call, command, mainnet, plain, text};

/// A store whose table `main` has changed since snapshot `monday` and version `start`.
fn ledger() -> Place {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "alice", "100", "bob", "7", "--create"]).done();
    call(&store, &["snapshot", "save", "monday", "--label", "of the tests"]).done();
    call(&store, &["version", "retain", "--name", "start"]).done();
    call(&store, &["put", "alice", "90", "carol", "10"]).done();
    call(&store, &["delete", "bob"]).done();
    place
}

#[test]
fn a_snapshot_is_read_whatever_its_label() {
    let place = ledger();
    let store = place.store();
    for point in [["--snapshot", "monday"], ["--version", "start"], ["--version", "1"]] {
        let call = |arguments: &[&str]| call(&store, &[arguments, &point].concat()).done();
        assert_eq!(call(&["get", "alice"])["entries"][0]["value"], "100", "{point:?}");
        assert_eq!(call(&["count"])["count"], 2);
        assert_eq!(call(&["count", "--prefix", "b"])["count"], 1);
        let scanned = call(&["scan", "--reverse"]);
        assert_eq!(scanned["entries"][0]["key"], "bob");
        assert_eq!(plain(&store, &[&["scan"][..], &point].concat()).stdout, "alice\t100\nbob\t7\n");
    }

    let got = call(&store, &["get", "alice", "--snapshot", "monday"]).done();
    assert_eq!((&got["table"], &got["snapshot"]), (&Value::Null, &json!("monday")));
    let absent = call(&store, &["get", "carol", "--snapshot", "monday"]);
    assert!(absent.failed(1).contains("not in snapshot `monday`: `carol`"));
    assert_eq!(call(&store, &["get", "alice"]).done().get("snapshot"), None);

    let missing = call(&store, &["count", "--snapshot", "tuesday"]);
    assert!(missing.failed(2).contains("snapshot `tuesday` does not exist"));
    assert_eq!(missing.json()["error"]["kind"], "not_found");
    for wrong in [
        &["count", "--snapshot", "monday", "--version", "1"][..],
        &["count", "--snapshot", "monday", "--table", "main"],
        &["count", "--snapshot", "No"],
    ] {
        call(&store, wrong).failed(2);
    }
}

#[test]
fn a_table_is_built_from_a_snapshot() {
    let place = ledger();
    let store = place.store();
    let copy = place.path("copy");
    let build = ["table", "build", "old", "--create", "--from", text(&store)];
    call(&copy, &[&build[..], &["--snapshot", "monday"]].concat()).done();
    assert_eq!(plain(&copy, &["scan", "--table", "old"]).stdout, "alice\t100\nbob\t7\n");
    let both = ["--snapshot", "monday", "--from-table", "main"];
    call(&copy, &[&build[..], &both].concat()).failed(2);
}

/// The replay left its state in snapshots, and nothing said how to read one.
#[test]
fn the_state_of_a_replay_is_read_at_once() {
    let place = Place::new();
    let store = place.store();
    let replayed = place.replay("bitcoin", &[text(&mainnet()), "--until", "100"]).done();
    let snapshot = replayed["snapshot"].as_str().unwrap();
    assert_eq!(snapshot, "utxo-0000000001-100");
    let counted = call(&store, &["count", "--snapshot", snapshot]).done();
    assert_eq!(counted["count"], replayed["utxo_count"]);

    // The commands that the program proposes are run as they stand.
    let again = command()
        .args(["replay", "bitcoin", "--rollback-to", "100", "--store"])
        .arg(&store)
        .output()
        .map(Answer::from)
        .unwrap();
    let next = again.stdout.lines().find_map(|line| line.strip_prefix("next")).unwrap();
    let table_list = plain(&store, &["table", "list"]).stdout;
    let inspect = command().arg("inspect").arg(&store).output().map(Answer::from).unwrap().stdout;
    let missing = plain(&store, &["scan"]);
    assert_eq!(missing.code, Some(2));

    let after = |text: &str, word: &str| text.split(word).last().unwrap().trim().to_owned();
    for proposed in [
        next.trim().to_owned(),
        after(&table_list, "next: "),
        after(&inspect, "to read a snapshot: "),
        after(&missing.stderr, "next: "),
    ] {
        let mut words = proposed.split(' ');
        assert_eq!(words.next(), Some("terrane"), "{proposed}");
        let answer: Answer = command().args(words).output().unwrap().into();
        assert_eq!(answer.code, Some(0), "{answer:?}");
        assert!(answer.stdout.starts_with("hex:"), "{proposed}");
    }

    // Engine btree keeps its tables in a form of its own.
    let other = Place::new();
    let report = other.replay("bitcoin", &[text(&mainnet()), "--until", "9", "--engine", "btree"]);
    assert_eq!(report.done().get("snapshot"), None);
}

#[test]
fn json_lines_are_an_object_for_each_entry_and_one_at_the_end() {
    let place = ledger();
    let store = place.store();
    let lines = |arguments: &[&str]| -> Vec<Value> {
        let answer = plain(&store, &[&["scan", "--json-lines"][..], arguments].concat());
        assert_eq!(answer.code, Some(0), "{answer:?}");
        answer.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };

    let found = lines(&[]);
    assert_eq!(found[0], json!({"key": "alice", "value": "90", "blob": null}));
    assert_eq!(found[1]["key"], "carol");
    let end = &found[2];
    let expected = (&json!("scan"), &json!(true), &json!(2), None);
    assert_eq!((&end["command"], &end["ok"], &end["count"], end.get("entries")), expected);
    assert_eq!(lines(&["--limit", "1"]).len(), 2);
    assert_eq!(lines(&["--snapshot", "monday"])[2]["snapshot"], "monday");

    let failed = plain(&store, &["scan", "--json-lines", "--table", "none"]);
    assert_eq!(failed.json()["error"]["kind"], "not_found");
    let both = plain(&store, &["scan", "--json-lines", "--json"]);
    assert_eq!((both.code, both.json()["error"]["kind"].clone()), (Some(2), json!("usage")));
}

/// One object was held in memory whatever its size.
#[test]
fn one_object_has_64_mib_of_entries_at_most() {
    let place = Place::new();
    let store = place.store();
    // One value beyond the limit by itself: what fits is short to print.
    let file = place.write("value", &vec![b'v'; (64 << 20) + 1]);
    let value = format!("@{}", file.display());
    call(&store, &["put", "a", "1", "b", "2", "c", &value, "--create"]).done();
    let refused = call(&store, &["scan"]);
    let message = refused.failed(2);
    assert!(message.ends_with("next: --json-lines, or --limit 2"), "{message}");
    assert_eq!(call(&store, &["scan", "--limit", "2"]).done()["count"], 2);
}

#[test]
fn a_range_or_a_limit_that_makes_no_sense_is_bad_usage() {
    let place = ledger();
    let store = place.store();
    for command in ["scan", "count", "delete"] {
        let answer = call(&store, &[command, "--from", "z", "--to", "a"]);
        let message = answer.failed(2);
        assert!(message.contains("--from z is behind --to a"), "{message}");
        assert_eq!(answer.json()["error"]["kind"], "usage");
    }
    assert_eq!(call(&store, &["count", "--from", "a", "--to", "a"]).done()["count"], 0);

    let message = call(&store, &["scan", "--limit", "-1"]).failed(2);
    assert!(message.contains("'-1'") && message.contains("not a count"), "{message}");
}

/// The commands of the README are run as they stand there, but for the places; what they print has
/// each line that the README shows.
#[test]
fn the_demo_of_the_readme_ends_with_a_coin() {
    const DIR: &str = "/tmp/terrane-demo";

    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let section = readme.split("## Try it").nth(1).unwrap().split("\n## ").next().unwrap();
    let place = Place::new();
    let file = mainnet();
    let mut printed = Vec::new();
    for line in section.lines() {
        let Some(words) = line.strip_prefix("cargo run --release -- ") else { continue };
        let store = place.store();
        let place_of = |word: &str| match word {
            DIR => text(&store).to_owned(),
            word if word.starts_with("data/") => text(&file).to_owned(),
            word => word.to_owned(),
        };
        let answer: Answer =
            command().args(words.split(' ').map(place_of)).output().unwrap().into();
        assert_eq!(answer.code, Some(0), "{line}: {answer:?}");
        printed.extend(answer.stdout.lines().map(str::to_owned));
    }

    let shown = section.split("```text\n").skip(1).map(|block| block.split("```").next().unwrap());
    let shown: Vec<&str> = shown.flat_map(str::lines).collect();
    assert_eq!(shown.len(), 6, "{shown:?}");
    for line in &shown {
        assert!(printed.iter().any(|printed| printed == line), "{line} is not printed");
    }
    assert!(shown[5].starts_with("hex:00f2052a01000000"), "the last line is the coin");
}
