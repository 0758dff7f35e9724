//! `terrane diff`: versions, snapshots and tables of one store, against a map that is compared
//! entry by entry.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::program::{Place, call, plain, text};

type Model = BTreeMap<String, String>;

/// A store with three states of `main`, each a version and a snapshot, and a table `other`.
fn history() -> (Place, Vec<Model>) {
    let place = Place::new();
    let store = place.store();
    let mut model = Model::new();
    let mut states = Vec::new();

    for round in 0..3_u32 {
        let mut lines = Vec::new();
        for key in (0..300_u32).filter(|key| key % (round + 1) == 0) {
            let (key, value) = (format!("key {key:03}"), format!("{round} of {key}"));
            lines.extend(format!("{key}\t{value}\n").bytes());
            model.insert(key, value);
        }
        let file = place.write("lines", &lines);
        call(&store, &["put", "--create", "--input", text(&file)]).done();
        if round > 0 {
            let prefix = format!("key {round}");
            call(&store, &["delete", "--prefix", &prefix]).done();
            model.retain(|key, _| !key.starts_with(&prefix));
        }
        call(&store, &["version", "retain", "--name", &format!("v{round}")]).done();
        call(&store, &["snapshot", "save", &format!("s{round}")]).done();
        states.push(model.clone());
    }

    let create = ["put", "key 000", "other", "--create", "--table", "other"];
    call(&store, &create).done();
    states.push(Model::from([("key 000".to_owned(), "other".to_owned())]));
    (place, states)
}

/// The changes as JSON, computed from two maps.
fn expected(older: &Model, newer: &Model) -> Vec<Value> {
    let entry = |value: Option<&String>| {
        value.map_or(Value::Null, |value| json!({"value": value, "blob": null}))
    };
    let mut keys: Vec<&String> = older.keys().chain(newer.keys()).collect();
    keys.sort();
    keys.dedup();
    let changed = keys.into_iter().filter(|key| older.get(*key) != newer.get(*key));
    changed
        .map(|key| json!({"key": key, "old": entry(older.get(key)), "new": entry(newer.get(key))}))
        .collect()
}

#[test]
fn a_diff_has_exactly_the_entries_that_differ() {
    let (place, states) = history();
    let store = place.store();
    let names = |state: usize| match state {
        3 => vec!["table:other".to_owned()],
        2 => ["v2", "version:v2", "snapshot:s2", "now", "table:main"].map(str::to_owned).to_vec(),
        state => vec![format!("v{state}"), format!("snapshot:s{state}")],
    };

    for (older, newer) in [(0, 1), (0, 2), (2, 1), (1, 1), (2, 3), (3, 0)] {
        let changes = expected(&states[older], &states[newer]);
        for a in names(older) {
            for b in names(newer) {
                let found = call(&store, &["diff", &a, &b]).done();
                assert_eq!(found["changes"], json!(changes), "{a} {b}");
                let count = |is: fn(&Value) -> bool| changes.iter().filter(|one| is(one)).count();
                assert_eq!(found["added"], count(|one| one["old"].is_null()), "{a} {b}");
                assert_eq!(found["removed"], count(|one| one["new"].is_null()));
            }
        }
    }

    let lines = plain(&store, &["diff", "v0", "v1", "--json-lines"]).stdout;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let changes = expected(&states[0], &states[1]);
    assert_eq!(lines[..lines.len() - 1], changes);
    assert_eq!(lines[lines.len() - 1]["command"], "diff");
    assert_eq!(call(&store, &["diff", "v0", "v1", "--summary"]).done().get("changes"), None);

    let people = plain(&store, &["diff", "table:other", "snapshot:s2"]).stdout;
    let first: Vec<&str> = people.lines().take(2).collect();
    assert_eq!(first, ["-\tkey 000\tother", "+\tkey 000\t2 of 0"]);
}

#[test]
fn what_names_no_state_is_refused() {
    let (place, _) = history();
    let store = place.store();
    for (a, b, kind) in [
        ("v9", "now", "not_found"),
        ("v0", "snapshot:none", "not_found"),
        ("v0", "table:none", "not_found"),
        ("v0", "branch:x", "usage"),
        ("v0", "snapshot:No", "usage"),
    ] {
        let answer = call(&store, &["diff", a, b]);
        answer.failed(2);
        assert_eq!(answer.json()["error"]["kind"], kind, "{a} {b}");
    }
}

#[test]
fn blobs_and_bytes_are_shown_as_scan_shows_them() {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "a", "1", "--create"]).done();
    call(&store, &["version", "retain"]).done();
    let file = place.write("lines", b"a\thex:00ff\thex:0102\n");
    call(&store, &["put", "--input", text(&file)]).done();
    let diff = plain(&store, &["diff", "1", "now"]).stdout;
    assert_eq!(diff, "-\ta\t1\n+\ta\thex:00ff\thex:0102\n");
    let scanned = plain(&store, &["scan"]).stdout;
    assert_eq!(scanned, "a\thex:00ff\thex:0102\n");
}
