//! `terrane salvage` of every kind of store, as a user calls it.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::program::{Answer, Place, call, command, text};
use crate::store::{Store, flip};

fn run(arguments: &[&str]) -> Answer {
    command().args(arguments).output().unwrap().into()
}

fn salvage(damaged: &Path, new: &Path) -> Answer {
    run(&["salvage", text(damaged), text(new), "--json"])
}

/// Creates a store with 3,000 entries.
fn fill(place: &Place, store: &Path) {
    let lines: Vec<String> =
        (0..3_000).map(|key| format!("key {key:05}\tvalue of {key}\n")).collect();
    let file = place.write("lines", lines.concat().as_bytes());
    call(store, &["put", "--create", "--input", text(&file)]).done();
}

#[test]
fn a_whole_store_is_complete_and_a_damaged_one_names_its_losses() {
    let place = Place::new();
    let store = place.store();
    fill(&place, &store);
    call(&store, &["compact"]).done();

    let whole = place.path("whole");
    let report = salvage(&store, &whole).done();
    assert_eq!(report["tables"], json!([{"name": "main", "entries": 3_000}]));
    assert_eq!((&report["lost"], &report["is_lower_bound"]), (&json!([]), &json!(false)));
    assert_eq!(call(&whole, &["count"]).done()["count"], 3_000);

    let run_file = fs::read_dir(store.join("active"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .max_by_key(|path| fs::metadata(path).unwrap().len())
        .unwrap();
    flip(&run_file, 2 * 4096 + 100);
    let salvaged = place.path("salvaged");
    let answer = salvage(&store, &salvaged);
    let message = answer.failed(1);
    assert!(message.contains("next: terrane table list --store"), "{message}");
    let report = answer.json();
    let lost = &report["lost"][0];
    assert_eq!((&lost["what"], &lost["file"]), (&json!("entries"), &json!(text(&run_file))));
    assert!(lost["keys"][0]["after_hex"].is_string() && lost["keys"][0]["before_hex"].is_string());
    let kept = call(&salvaged, &["count"]).done()["count"].as_u64().unwrap();
    assert_eq!(kept, 3_000 - lost["entries"].as_u64().unwrap());
    run(&["verify", text(&salvaged), "--json"]).done();

    // Without manifests the entries are in tables by the numbers of the runs.
    for name in ["manifest.a", "manifest.b"] {
        fs::remove_file(store.join(name)).unwrap();
    }
    let recovered = place.path("recovered");
    let answer = salvage(&store, &recovered);
    answer.failed(1);
    assert_eq!(answer.json()["is_lower_bound"], true);
    let name = answer.json()["tables"][0]["name"].as_str().unwrap().to_owned();
    assert!(name.starts_with("recovered-"), "{name}");
    assert_eq!(call(&recovered, &["count", "--table", &name]).done()["count"], kept);
}

#[test]
fn a_directory_that_cannot_be_read_only_is_never_written() {
    let store = Store::new();
    flip(&store.run().path, 100);
    let place = Place::new();
    let files = |dir: &Path| {
        let mut files: Vec<_> = ["active", "snapshots", "."]
            .iter()
            .flat_map(|part| fs::read_dir(dir.join(part)).unwrap())
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        files
    };
    let before = files(&store.dir());
    let answer = salvage(&store.dir(), &place.path("new"));
    answer.failed(1);
    assert_eq!(files(&store.dir()), before);
    assert_eq!(answer.json()["snapshots"].as_array().unwrap()[0], "early");
    let people = run(&["salvage", text(&store.dir()), text(&place.path("other"))]);
    assert!(people.stdout.contains("lost: ") && people.stdout.contains("salvaged "), "{people:?}");
}

#[test]
fn places_that_make_no_sense_are_refused_and_left_alone() {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "k", "v", "--create"]).done();
    let full = place.write("full/file", b"");
    for (damaged, new) in [
        (&store, &store.join("inside")),
        (&store.join("active"), &place.path("new")),
        (&store, &full.parent().unwrap().to_owned()),
        (&store, &full),
        (&place.path("missing"), &place.path("new")),
        (&full.parent().unwrap().to_owned(), &place.path("new")),
    ] {
        salvage(damaged, new).failed(2);
        assert!(!place.path("new").exists() && !store.join("inside").exists());
    }
    assert_eq!(fs::read(&full).unwrap(), b"");
}

#[test]
fn a_btree_is_salvaged_by_its_leaves() {
    let place = Place::new();
    let store = place.store();
    fill(&place, &store);
    let tree = place.path("tree");
    call(&tree, &["btree", "build", "--from", text(&store)]).done();

    let whole = place.path("whole");
    salvage(&tree, &whole).done();
    assert_eq!(call(&whole, &["count"]).done()["count"], 3_000);
    assert!(!whole.join("salvage-unfinished").exists());

    flip(&tree.join("tree"), 5 * 4096 + 50);
    let before = fs::read(tree.join("tree")).unwrap();
    let salvaged = place.path("salvaged");
    let answer = salvage(&tree, &salvaged);
    assert!(matches!(answer.code, Some(0 | 1)), "{answer:?}");
    assert_eq!(answer.json()["command"], "salvage");
    assert_eq!(fs::read(tree.join("tree")).unwrap(), before);
    run(&["verify", text(&salvaged), "--json"]).done();
    assert!(call(&salvaged, &["count"]).done()["count"].as_u64().unwrap() > 2_000);
}
