//! `terrane inspect`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use terrane::btree::{Config, Index};
use terrane::io::RealDisk;
use terrane::lsm::PAGE_SIZE;

use crate::context;
use crate::program::{Answer, Place, command, text};
use crate::store::{
    LABEL, NAMES, Store, edit, flip, inspect, reseal_manifest, reseal_page, run_info,
};

/// The text of a call that succeeded.
#[track_caller]
fn shown(answer: &Answer) -> &str {
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(answer.stderr, "");
    &answer.stdout
}

fn is_time(value: &Value) -> bool {
    let text = value.as_str().unwrap();
    text.len() == 20 && text.starts_with("20") && text.ends_with('Z') && &text[10..11] == "T"
}

#[test]
fn a_store_is_listed_with_its_snapshots() {
    let store = Store::new();
    let json = inspect(&store.dir(), &["--json"]).done();
    assert_eq!((&json["command"], &json["kind"]), (&"inspect".into(), &"store".into()));
    assert_eq!(json["format_version"], 1);
    assert!(is_time(&json["created"]), "{json}");
    let files = std::fs::read_dir(store.dir().join("active")).unwrap();
    let sizes: Vec<u64> = files.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
    assert_eq!(json["run_files"], sizes.len());
    assert_eq!(json["run_files_unreferenced"], 0);
    assert_eq!(json["run_bytes"], sizes.iter().sum::<u64>());
    let snapshots = json["snapshots"].as_array().unwrap();
    let names: Vec<&str> = snapshots.iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, NAMES);

    for snapshot in snapshots {
        assert_eq!(snapshot["label"], LABEL);
        assert!(is_time(&snapshot["saved"]));
        assert!(snapshot["stored_entries"].as_u64().unwrap() > 1_000);
        assert!(snapshot["tombstones"].as_u64().unwrap() > 0);
    }

    let answer = inspect(&store.dir(), &[]);
    let text = shown(&answer);

    for word in [LABEL, NAMES[0], NAMES[1], "MERGE DEBT", "TOMBSTONES"] {
        assert!(text.contains(word), "{word}: {text}");
    }

    let metadata = inspect(&store.dir().join("metadata"), &["--json"]).done();
    assert_eq!((&metadata["kind"], &metadata["created"]), (&"metadata".into(), &json["created"]));
}

#[test]
fn a_snapshot_is_shown_level_by_level() {
    let store = Store::new();
    let of_store = inspect(&store.dir(), &["--json"]).done();

    for (at, name) in NAMES.into_iter().enumerate() {
        let json = inspect(&store.snapshot(name), &["--json"]).done();
        assert_eq!((&json["kind"], &json["name"]), (&"snapshot".into(), &name.into()));
        for field in ["label", "saved", "runs", "stored_entries", "tombstones", "bytes"] {
            assert_eq!(json[field], of_store["snapshots"][at][field], "{field}");
        }
        assert_eq!(json["config"]["write_buffer_entries"], 100);
        let levels = json["levels"].as_array().unwrap();
        let of_levels = levels.iter().flat_map(|level| level["runs"].as_array().unwrap());
        let of_buffer = json["write_buffer"].as_array().unwrap();
        let of_flush = Some(&json["last_flush"]).filter(|run| !run.is_null());
        let runs: Vec<&Value> = of_levels.chain(of_buffer).chain(of_flush).collect();
        assert_eq!(json["runs"], runs.len());
        let sum = |field: &str| runs.iter().map(|run| run[field].as_u64().unwrap()).sum::<u64>();
        assert_eq!(json["stored_entries"], sum("entries"));
        assert_eq!(json["bytes"], sum("bytes"));
        let debt = levels.iter().filter_map(|level| level["merge"]["input_bytes"].as_u64());
        assert_eq!(json["merge_debt_bytes"], debt.sum::<u64>());
        let answer = inspect(&store.snapshot(name), &[]);
        let text = shown(&answer);
        for run in runs {
            let file = Path::new(run["path"].as_str().unwrap()).file_name().unwrap();
            assert!(text.contains(file.to_str().unwrap()), "{text}");
        }
        assert!(text.contains("FILTER BITS/ENTRY") && text.contains("buffer"), "{text}");
    }
}

#[test]
fn a_run_and_its_pages_are_shown() {
    let store = Store::new();
    let run = store.run();
    let json = inspect(&run.path, &["--json"]).done();
    assert_eq!((&json["kind"], &json["purpose"]), (&"run".into(), &"level".into()));
    assert_eq!(json["entries"], run.meta.entries);
    assert_eq!(json["tombstones"], run.meta.deletes);
    assert_eq!(json["data_pages"], run.meta.data_pages);
    assert_eq!(json["bytes"], std::fs::metadata(&run.path).unwrap().len());
    assert!(json["filter_bits_per_entry"].as_f64().unwrap() > 2.0);
    assert!(json["index_bytes_per_page"].as_f64().unwrap() > 0.0);
    assert!(["compact", "ordinary"].contains(&json["index_kind"].as_str().unwrap()));
    assert!(shown(&inspect(&run.path, &[])).contains("filter"));

    // All pages together hold what the footer says.
    let mut entries = 0;
    let mut kinds = Vec::new();
    for page in 0..run.meta.pages() {
        let answer = inspect(&run.path, &["--json", "--page", &page.to_string()]).done();
        assert_eq!(answer["offset_bytes"], page * PAGE_SIZE as u64);
        entries += answer["entries"].as_array().map_or(0, Vec::len) as u64;
        kinds.push(answer["page_kind"].as_str().unwrap().to_owned());
    }

    assert_eq!(entries, run.meta.entries);
    assert_eq!(kinds.last().unwrap(), "footer");
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds, ["filter", "footer", "index", "key", "overflow"]);

    let page = inspect(&run.path, &["--page", "0", "--json"]).done();
    let first = &page["entries"][0];
    assert!(first["key_hex"].as_str().unwrap().starts_with("6163636f756e7420"), "{first}");
    let answer = inspect(&run.path, &["--page", "0"]);
    let text = shown(&answer);
    assert!(text.contains("\"account 0") && text.contains("insert"), "{text}");
    let last = (run.meta.pages() - 1).to_string();
    let answer = inspect(&run.path, &["--page", &last]);
    assert!(shown(&answer).contains("TerraRun"), "{answer:?}");
}

#[test]
fn constants_are_printed() {
    let json = inspect(Path::new("constants"), &["--json"]).done();
    assert_eq!(json["kind"], "constants");
    assert_eq!(json["constants"]["PAGE_SIZE"], PAGE_SIZE.to_string());
    assert_eq!(json["constants"]["RUN_MAGIC"], "TerraRun");
    let answer = inspect(Path::new("constants"), &[]);
    assert!(shown(&answer).lines().any(|line| line.starts_with("PAGE_SIZE ")), "{answer:?}");
}

#[test]
fn a_store_can_be_inspected_while_it_is_open() {
    let store = Store::new();
    let session =
        terrane::lsm::Session::open_dir(store.dir(), &terrane::lsm::SessionOptions::default())
            .unwrap();
    inspect(&store.dir(), &["--json"]).done();
    session.close().unwrap();
}

#[test]
fn what_is_not_terranes_is_refused_as_bad_input() {
    let store = Store::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "buy milk, write tests").unwrap();
    let message = inspect(&file, &["--json"]).failed(2);
    assert!(message.contains("not a Terrane file or directory"), "{message}");
    assert!(message.contains("TerraRun") && message.contains("TerraSnp"), "{message}");
    let message = inspect(folder.path(), &["--json"]).failed(2);
    assert!(message.contains("a store") && message.contains("notes.txt"), "{message}");
    let message = inspect(&folder.path().join("missing"), &["--json"]).failed(2);
    assert!(message.contains("missing"), "{message}");

    for (path, page) in
        [(store.dir(), "0"), (store.snapshot("late"), "0"), (store.run().path, "100000")]
    {
        let message = inspect(&path, &["--json", "--page", page]).failed(2);
        assert!(message.contains("page"), "{message}");
    }
    inspect(&store.run().path, &["--json", "--page", "-1"]).failed(2);
}

#[test]
fn damage_is_told_from_bad_input() {
    let store = Store::new();
    let run = store.run();
    flip(&run.path, 0);
    let message = inspect(&run.path, &["--json", "--page", "0"]).failed(1);
    assert!(message.contains("page 0: crc"), "{message}");
    // The index is shown for each run, so a damaged one is met; the rest is still shown.
    flip(&run.path, (run.meta.pages() - 2) * PAGE_SIZE as u64);
    let answer = inspect(&run.path, &["--json"]);
    answer.failed(1);
    assert_eq!(answer.json()["entries"], run.meta.entries);
    assert!(answer.json()["index_kind"].is_null());
    flip(&run.path, run.bytes - 1);
    inspect(&run.path, &["--json"]).failed(1);

    flip(&store.snapshot("late"), 20);
    inspect(&store.snapshot("late"), &["--json"]).failed(1);
    let answer = inspect(&store.dir(), &["--json"]);
    answer.failed(1);
    assert_eq!(answer.json()["snapshots"].as_array().unwrap().len(), 2);
    std::fs::remove_file(store.snapshot("late")).unwrap();
    std::fs::remove_file(&run.path).unwrap();
    std::fs::remove_file(store.dir().join("metadata")).unwrap();
    let message = inspect(&store.dir(), &["--json"]).failed(1);
    assert!(message.contains("missing metadata"), "{message}");
}

/// `inspect` followed a link in a store to any place, and showed the content of that place as the
/// store's.
#[test]
fn a_link_in_a_store_is_not_followed() {
    let store = Store::new();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = store.dir().join("metadata");
    let moved = elsewhere.path().join("metadata");
    std::fs::rename(&path, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &path).unwrap();
    let message = inspect(&store.dir(), &["--json"]).failed(1);
    assert!(message.contains("metadata") && message.contains("link"), "{message}");
    std::fs::remove_file(&path).unwrap();
    std::fs::rename(&moved, &path).unwrap();
    // The one that the user names may be a link.
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(store.dir(), &link).unwrap();
    inspect(&link, &["--json"]).done();
}

/// Directories below one, the deeper ones first.
fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let inner = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    inner.flat_map(|entry| [directories(&entry.path()), vec![entry.path()]].concat()).collect()
}

/// Makes a store of each kind that has directories.
fn store_of(kind: &str, place: &Place) {
    let store = place.store();
    let (path, call) = (text(&store), |arguments: &[&str]| {
        let output = command().args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    });

    match kind {
        "lsm" => {
            call(&["put", "key", "value", "--create", "--store", path]);
            call(&["snapshot", "save", "late", "--store", path]);
            std::fs::create_dir_all(store.join("lost+found")).unwrap();
        }
        "btree" => {
            let index = Index::create(RealDisk::auto(), &store, &Config::fixed(8, 4)).unwrap();
            index.replace(b"00000001", &[7; 4]).unwrap();
            index.close().unwrap();
        }
        "context" => drop(context::store(place)),
        kind => {
            let history = "terrane-changes 1\nbegin 1\nput abcd 64\nend\n";
            let history = place.write("history", history.as_bytes());
            let replay = ["replay", "changes", "--engine", "radix", "--store", path, "--backend"];
            call(&[&replay[..], &[kind.trim_start_matches("radix-"), text(&history)]].concat());
        }
    }
}

/// A link in the place of a directory of a store was an error of the environment (exit code 3) and
/// not damage of the store.
#[test]
fn a_link_in_the_place_of_a_directory_is_damage() {
    let on = |store: &Path, what: &str| -> Answer {
        command().args([what, "--json"]).arg(store).output().unwrap().into()
    };
    for kind in ["lsm", "btree", "context", "radix-lsm", "radix-btree"] {
        let place = Place::new();
        let store = place.store();
        let moved = place.path("moved");
        store_of(kind, &place);
        for path in directories(&store) {
            std::fs::rename(&path, &moved).unwrap();
            std::os::unix::fs::symlink(&moved, &path).unwrap();
            // `inspect` reads no index of a context store.
            if kind != "context" {
                on(&store, "inspect").failed(1);
            }
            on(&store, "verify").failed(1);
            std::fs::remove_file(&path).unwrap();
            std::fs::rename(&moved, &path).unwrap();
        }
        on(&store, "verify").done();
    }
}

#[test]
fn an_unknown_version_is_named_beside_the_known_one() {
    let store = Store::new();
    let run = store.run();
    let footer = run.meta.pages() - 1;
    edit(&run.path, |bytes| {
        bytes[footer as usize * PAGE_SIZE + 24] = 9;
        reseal_page(bytes, run.meta.identity, footer as u32);
    });
    let files = [run.path, store.snapshot("late"), store.dir().join("metadata")];

    for path in &files[1..] {
        edit(path, |bytes| {
            bytes[8] = 9;
            reseal_manifest(bytes);
        });
    }

    for (path, newest) in files.iter().zip([4, 6, 1]) {
        let message = inspect(path, &["--json"]).failed(2);
        let wanted = format!("format version 9; this program reads {newest}");
        assert!(message.contains(&wanted) && message.contains(path.to_str().unwrap()), "{message}");
    }
}

#[test]
fn a_run_copied_elsewhere_is_still_a_run() {
    let store = Store::new();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    std::fs::copy(store.run().path, &copy).unwrap();
    assert_eq!(run_info(&copy).meta, store.run().meta);
    inspect(&copy, &["--json"]).done();
}

#[test]
fn a_canonical_export_says_its_count_and_digest() {
    let store = Store::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("late.canonical");
    let mut export = command();
    export.args(["snapshot", "export", "late", "--json", "--store"]).arg(store.dir());
    let exported: Answer = export.arg("--canonical").arg(&file).output().unwrap().into();
    let exported = exported.done();
    let json = inspect(&file, &["--json"]).done();
    assert_eq!((&json["kind"], &json["format_version"]), (&"canonical".into(), &1.into()));

    for field in ["count", "digest", "bytes"] {
        assert_eq!(json[field], exported[field], "{field}");
    }

    let answer = inspect(&file, &[]);
    let digest = format!("digest            {}", json["digest"].as_str().unwrap());
    assert!(answer.code == Some(0) && answer.stdout.contains(&digest), "{answer:?}");
    inspect(&file, &["--page", "0", "--json"]).failed(2);

    for (bytes, words) in [
        (json["bytes"].as_u64().unwrap() - 1, "late.canonical: byte"),
        (52, "byte 52"),
        (10, "byte 10"),
    ] {
        edit(&file, |content| content.truncate(usize::try_from(bytes).unwrap()));
        let message = inspect(&file, &["--json"]).failed(2);
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn help_shows_examples() {
    for (name, word) in [("inspect", "--page 3"), ("verify", "--repair")] {
        let answer: Answer = command().args([name, "--help"]).output().unwrap().into();
        let text = shown(&answer);
        assert!(text.contains("Examples:") && text.contains(word), "{text}");
    }
}

#[test]
fn the_constants_of_context_stores_and_proofs_are_those_of_their_documents() {
    let json = inspect(Path::new("constants"), &["--json"]).done();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format");

    let mut found = 0;
    for (document, prefix) in [
        ("context-chunk.md", "CONTEXT"),
        ("context-control.md", "CONTEXT"),
        ("context-record.md", "CONTEXT"),
        ("context-snapshot.md", "CONTEXT"),
        ("merkle-proof.md", "PROOF"),
    ] {
        let text = std::fs::read_to_string(folder.join(document)).unwrap();
        let (_, table) = text.split_once("| constant |").unwrap();
        for row in table.lines().filter(|row| row.starts_with("| `")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let name = cells[1].trim_matches('`').replace("FrameKind::", "FRAME_KIND_");
            let name = name.replace("CommitTo", "Commit_To");
            let value = match cells[2].strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).unwrap().to_string(),
                None => cells[2].trim_start_matches('b').trim_matches('"').to_owned(),
            };
            let shown = &json["constants"][format!("{prefix}_{}", name.to_uppercase())];
            assert_eq!(*shown, value, "{document}: {name}");
            found += 1;
        }
    }

    assert!(found >= 35, "{found}");
}
