//! `terrane verify`.

use std::path::Path;

use serde_json::Value;
use terrane::lsm::PAGE_SIZE;
use terrane::lsm::{Session, SessionOptions};

use crate::program::{Answer, command, text};
use crate::store::{Store, edit, flip, reseal_manifest, reseal_page};

/// The problems that a call found, all of them left.
#[track_caller]
fn problems(answer: &Answer) -> Vec<Value> {
    answer.failed(1);
    let json = answer.json();
    let problems = json["problems"].as_array().unwrap().clone();
    assert!(!problems.is_empty());
    assert_eq!((&json["left"], &json["repaired"]), (&problems.len().into(), &0.into()));
    problems
}

/// The only problem that a call found.
#[track_caller]
fn problem(answer: &Answer) -> Value {
    let mut problems = problems(answer);
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.remove(0)
}

#[track_caller]
fn is_at(problem: &Value, path: &Path, offset: u64) {
    assert_eq!((&problem["file"], &problem["offset_bytes"]), (&text(path).into(), &offset.into()));
}

/// Damage that can be repaired is, and then all is as it was.
#[track_caller]
fn is_repaired(store: &Store, damage: impl FnOnce()) {
    let before = store.contents();
    damage();
    assert_eq!(problem(&store.verify(&[]))["repairable"], true);
    let json = store.verify(&["--repair"]).done();
    assert_eq!((&json["repaired"], &json["left"]), (&1.into(), &0.into()));
    assert_eq!(json["problems"][0]["repaired"], true);
    assert_eq!(store.verify(&[]).done()["problems"], Value::Array(Vec::new()));
    assert_eq!(store.contents(), before);
}

#[test]
fn a_sound_store_is_clean() {
    let store = Store::new();
    let json = store.verify(&[]).done();
    assert_eq!(json["command"], "verify");
    assert_eq!(json["snapshots"], 2);
    assert!(json["entries"].as_u64().unwrap() > 1_550);
    assert!(json["wall_s"].as_f64().unwrap() > 0.0);
    let files = std::fs::read_dir(store.dir().join("active")).unwrap();
    let sizes: Vec<u64> = files.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(json["runs"], sizes.len());
    assert_eq!(json["pages"], sizes.iter().sum::<u64>() / PAGE_SIZE as u64);
    let answer: Answer = command().arg("verify").arg(store.dir()).output().unwrap().into();
    assert!(answer.stdout.starts_with("checked 2 snapshots, "), "{answer:?}");
    assert!(answer.stdout.ends_with(": no problem\n"), "{answer:?}");
    assert_eq!(answer.stderr, "", "no bar where nobody watches");
}

#[test]
fn a_damaged_data_page_is_placed_and_cannot_be_repaired() {
    let store = Store::new();
    let before = store.contents();
    let run = store.run();
    flip(&run.path, 2 * PAGE_SIZE as u64 + 100);
    let bytes = std::fs::read(&run.path).unwrap();
    let found = problem(&store.verify(&[]));
    is_at(&found, &run.path, 2 * PAGE_SIZE as u64);
    assert!(found["rule"].as_str().unwrap().starts_with("crc"), "{found}");
    assert_eq!(found["repairable"], false);
    assert_eq!(problem(&store.verify(&["--repair"])), found);
    assert_eq!(std::fs::read(&run.path).unwrap(), bytes);
    // Nothing else is lost.
    let needs = found["snapshots"].as_array().unwrap();

    for (name, content) in store.contents() {
        assert_eq!(content.is_none(), needs.contains(&name.into()), "{name}");
        assert!(content.is_none() || content == before[name], "{name}: {content:?}");
    }

    let answer: Answer = command().arg("verify").arg(store.dir()).output().unwrap().into();
    assert_eq!(answer.code, Some(1));
    let line = format!("{}: offset 8192: crc", run.path.display());
    assert!(answer.stdout.lines().any(|l| l.starts_with(&line)), "{answer:?}");
    assert!(answer.stdout.contains("; not repairable without loss\n"), "{answer:?}");
    assert!(answer.stdout.contains("--repair --accept-loss"), "{answer:?}");
    assert!(answer.stderr.contains("1 problem is left"), "{answer:?}");
}

/// With accepted loss the entries of a damaged page go, and their file, number and keys are named.
#[test]
fn a_damaged_data_page_is_dropped_where_loss_is_accepted() {
    let store = Store::new();
    let before = store.contents();
    let run = store.run();
    flip(&run.path, 2 * PAGE_SIZE as u64 + 100);
    let refused = store.verify(&["--repair"]);
    refused.failed(1);
    assert_eq!(refused.json()["repair"]["was_refused"], true);
    assert_eq!(refused.json()["repair"]["lost"], Value::Array(Vec::new()));

    let answer = store.verify(&["--repair", "--accept-loss"]);
    assert!(answer.failed(1).contains("1 thing was lost; the rest is whole"), "{answer:?}");
    let json = answer.json();
    let problem = &json["problems"][0];
    assert_eq!((&problem["repaired"], &problem["dropped"]), (&false.into(), &true.into()));
    let lost = &json["repair"]["lost"][0];
    assert_eq!((&lost["what"], &lost["file"]), (&"entries".into(), &text(&run.path).into()));
    let count = lost["entries"].as_u64().unwrap();
    let keys = lost["keys"].as_array().unwrap();
    assert!((1..200).contains(&count) && keys.len() == 1 && lost["pages"] == 1, "{lost}");
    assert_eq!(keys[0]["after_hex"], problem["after_hex"]);
    assert_eq!(keys[0]["before_hex"], problem["before_hex"]);
    assert!(lost["older"].is_boolean(), "{lost}");

    let again = store.verify(&["--repair", "--accept-loss"]).done();
    assert_eq!((&again["left"], &again["repair"]), (&0.into(), &Value::Null));

    for (name, content) in store.contents() {
        let users = lost["snapshots"].as_array().unwrap();
        let before = before[name].unwrap();
        let content = content.unwrap();
        assert_eq!(before != content, users.contains(&name.into()), "{name}");
    }
}

/// The loss is named for people, too.
#[test]
fn what_is_lost_is_written_line_by_line() {
    let store = Store::new();
    flip(&store.run().path, 2 * PAGE_SIZE as u64 + 100);
    std::fs::write(store.dir().join("snapshots/early.snapshot"), "").unwrap();
    let mut verify = command();
    verify.arg("verify").arg(store.dir()).args(["--repair", "--accept-loss"]);
    let answer: Answer = verify.output().unwrap().into();
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let line = |end: &str| {
        answer.stdout.lines().any(|line| line.starts_with("lost: ") && line.contains(end))
    };
    assert!(
        line(" on 1 page: keys between hex:") && line("early.snapshot: snapshot"),
        "{answer:?}"
    );
    assert!(answer.stderr.contains("2 things were lost"), "{answer:?}");
}

#[test]
fn a_damaged_filter_is_repaired() {
    let store = Store::new();
    let run = store.run();
    let page = u64::from(run.meta.data_pages);
    is_repaired(&store, || flip(&run.path, page * PAGE_SIZE as u64 + 100));
}

#[test]
fn a_damaged_index_is_repaired() {
    let store = Store::new();
    let run = store.run();
    is_repaired(&store, || flip(&run.path, (run.meta.pages() - 2) * PAGE_SIZE as u64 + 30));
}

#[test]
fn a_damaged_footer_is_repaired() {
    let store = Store::new();
    let run = store.run();
    is_repaired(&store, || flip(&run.path, (run.meta.pages() - 1) * PAGE_SIZE as u64 + 30));
}

#[test]
fn a_filter_that_lacks_a_key_is_found_and_repaired() {
    let store = Store::new();
    let run = store.run();
    let page = run.meta.data_pages;
    is_repaired(&store, || {
        edit(&run.path, |bytes| {
            let at = page as usize * PAGE_SIZE;
            bytes[at + 16..at + PAGE_SIZE].fill(0);
            reseal_page(bytes, run.meta.identity, page);
        });
        assert_eq!(problem(&store.verify(&[]))["rule"], "the filter lacks a key");
    });
}

#[test]
fn damaged_metadata_are_repaired() {
    let store = Store::new();
    is_repaired(&store, || flip(&store.dir().join("metadata"), 14));
}

#[test]
fn missing_metadata_are_repaired() {
    let store = Store::new();
    let metadata = store.dir().join("metadata");
    is_repaired(&store, || {
        std::fs::remove_file(&metadata).unwrap();
        is_at(&problem(&store.verify(&[])), &metadata, 0);
    });
}

#[test]
fn a_damaged_snapshot_cannot_be_repaired() {
    let store = Store::new();
    let before = store.contents();
    flip(&store.snapshot("late"), 30);
    let found = problem(&store.verify(&["--repair"]));
    is_at(&found, &store.snapshot("late"), 0);
    assert_eq!(found["repairable"], false);
    assert_eq!(found["snapshots"][0], "late");
    let after = store.contents();
    assert_eq!((&after["early"], &after["late"]), (&before["early"], &None));
}

#[test]
fn a_missing_run_cannot_be_repaired() {
    let store = Store::new();
    let run = store.run();
    std::fs::remove_file(&run.path).unwrap();
    let found = problem(&store.verify(&["--repair"]));
    is_at(&found, &run.path, 0);
    assert_eq!(found["rule"], "the file is missing");
}

#[test]
fn a_run_cut_after_its_data_is_repaired_and_one_cut_before_is_not() {
    let store = Store::new();
    let run = store.run();
    let cut = |pages: u64| {
        let file = std::fs::OpenOptions::new().write(true).open(&run.path).unwrap();
        file.set_len(pages * PAGE_SIZE as u64 + 10).unwrap();
    };
    is_repaired(&store, || cut(u64::from(run.meta.data_pages)));
    cut(3);
    let found = problems(&store.verify(&["--repair"]));
    let ends = found.iter().find(|p| p["rule"] == "the file ends within the data pages").unwrap();
    is_at(ends, &run.path, 3 * PAGE_SIZE as u64 + 10);
    assert!(found.iter().all(|problem| problem["repairable"] == false), "{found:?}");
}

#[test]
fn a_newer_version_is_named_and_left_alone() {
    let store = Store::new();
    let metadata = store.dir().join("metadata");
    edit(&metadata, |bytes| {
        bytes[8] = 2;
        reseal_manifest(bytes);
    });
    let bytes = std::fs::read(&metadata).unwrap();
    let found = problem(&store.verify(&["--repair"]));
    is_at(&found, &metadata, 0);
    assert_eq!(found["rule"], "format version 2; this program reads 1");
    assert_eq!(std::fs::read(&metadata).unwrap(), bytes);
}

#[test]
fn a_foreign_directory_is_refused_and_nothing_written() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("metadata"), "of something else").unwrap();
    let verify = |path: &Path| -> Answer {
        command().arg("verify").arg(path).args(["--json", "--repair"]).output().unwrap().into()
    };
    let message = verify(folder.path()).failed(2);
    assert!(message.contains("not a Terrane file or directory"), "{message}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    verify(&folder.path().join("metadata")).failed(2);
    verify(&folder.path().join("missing")).failed(2);
}

#[test]
fn a_store_in_use_is_not_checked() {
    let store = Store::new();
    let session = Session::open_dir(store.dir(), &SessionOptions::default()).unwrap();
    let message = store.verify(&[]).failed(3);
    assert!(message.contains(&format!("by process {}", std::process::id())), "{message}");
    session.close().unwrap();
}
