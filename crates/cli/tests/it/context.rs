//! The context store by its commands: commits, trees, collections, the benchmark.

use std::sync::Arc;

use serde_json::{Value, json};
use terrane::backends::BtreeIndexes;
use terrane::context::{Hash, Meta, Options, Store};
use terrane::io::RealDisk;

use crate::program::{Answer, Place, command, text};
use crate::schema::{faults, schema};

fn bench(place: &Place, options: &[&str]) -> Answer {
    let mut bench = command();
    bench.args(["bench", "context", "--values", "20k", "--warm-up", "1", "--store"]);
    bench.arg(place.store()).args(options).output().unwrap().into()
}

#[test]
fn blocks_are_measured_with_and_without_collections() {
    let place = Place::new();
    let report =
        bench(&place, &["--blocks", "4", "--gc-every", "2", "--gc-distance", "2", "--json"]);
    let report = report.done();
    let found = faults(&schema("bench-context.json"), &report, "$");
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(
        (&report["status"], &report["transactions_per_block"]),
        (&"complete".into(), &46.into())
    );
    let phases = report["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 2);

    for phase in phases {
        assert_eq!((&phase["blocks"], &phase["ops"]), (&4.into(), &(4 * 9_435).into()));
        assert!(phase["tps"].as_f64() > Some(0.0), "{phase}");
        assert!(phase["tps_cpu"].as_f64() > Some(0.0), "{phase}");
    }

    assert!(phases[1]["collections"]["count"].as_u64() >= Some(1));
    assert!(!place.path("store/context").exists());
    // Blocks of another profile, with published answers only.
    let report = bench(
        &place,
        &["--blocks", "2", "--profile", "2021", "--relaxed", "--prefetch", "--direct", "--json"],
    )
    .done();
    assert_eq!((&report["prefetch"], &report["direct"]), (&true.into(), &true.into()));
    assert!(faults(&schema("bench-context.json"), &report, "$").is_empty());
    assert_eq!(
        (&report["transactions_per_block"], &report["durable"]),
        (&Value::Null, &false.into())
    );
    assert_eq!(report["in_memory"], Value::Null);
}

/// The run itself compares each read, and the last commits of the store and of the tree.
#[test]
fn blocks_are_measured_in_memory_beside_a_sorted_map() {
    for profile in ["lima", "2021"] {
        let place = Place::new();
        let options = ["--blocks", "3", "--profile", profile, "--in-memory", "--gc-every", "2"];
        let report = bench(&place, &[&options[..], &["--json"]].concat()).done();
        let found = faults(&schema("bench-context.json"), &report, "$");
        assert!(found.is_empty(), "{found:?}");
        let ops = &report["phases"][0]["ops"];
        for engine in ["tree", "map"] {
            let phase = &report["in_memory"][engine];
            assert_eq!((&phase["blocks"], &phase["ops"]), (&3.into(), ops), "{engine}");
            for rate in ["blocks_per_s", "ops_per_s"] {
                assert!(phase[rate].as_f64() > Some(0.0), "{engine} {rate}");
            }
        }
        let text = bench(&place, &options);
        assert_eq!(text.code, Some(0));
        assert!(text.stdout.contains("\nsorted map"), "{text:?}");
    }
}

/// Leaves half a write at the end of the pack, as a crash does.
fn tear(dir: &std::path::Path) {
    use std::io::Write as _;
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let is_chunk = |path: &std::path::PathBuf| text(path).contains("/chunk-");
    let last = names.filter(is_chunk).max().unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(last).unwrap();
    file.write_all(&[0xA5; 100]).unwrap();
}

/// Replays and benchmarks dropped the rest of a torn write without a word.
#[test]
fn every_command_says_what_opening_a_store_has_dropped() {
    let place = Place::new();
    let file = place.write("history", b"terrane-changes 1\nbegin 1\nput 01 01\nend\n");
    let replay = || place.replay("changes", &[text(&file), "--engine", "context", "--resume"]);
    let torn = "100 bytes of an unfinished write";
    let answer = replay();
    assert!(answer.code == Some(0) && !answer.stderr.contains("note"), "{answer:?}");
    tear(&place.store());
    let answer = replay();
    assert!(answer.code == Some(0) && answer.stderr.contains(torn), "{answer:?}");
    assert!(!replay().stderr.contains(torn));

    let place = Place::new();
    assert_eq!(bench(&place, &["--blocks", "1", "--keep", "--json"]).code, Some(0));
    tear(&place.path("store/context"));
    let answer = bench(&place, &["--blocks", "1", "--keep", "--json"]);
    assert!(answer.code == Some(0) && answer.stderr.contains(torn), "{answer:?}");
}

#[test]
fn people_are_told_the_same() {
    let place = Place::new();
    let answer = bench(&place, &["--blocks", "2", "--keep", "--quiet"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");

    for part in [
        "transactions/s",
        "of processor time",
        "hashing floor",
        "20000 values loaded",
        "last commit    Co",
    ] {
        assert!(answer.stdout.contains(part), "{part}: {answer:?}");
    }

    assert!(place.path("store/context/control").exists());
    let message = bench(&place, &["--seed", "5", "--json"]).failed(2);
    assert!(
        message.contains("is not of \"terrane bench context: 20000 values, seed 5\""),
        "{message}"
    );
    let store = place.store();
    let answer: Answer = command()
        .args(["bench", "context", "--values", "100", "--json", "--store", text(&store)])
        .output()
        .unwrap()
        .into();
    assert!(answer.failed(2).contains("values must be at least 20000"));
}

pub(crate) const GENESIS: &str = "CoV8SQumiVU9saiu3FVNeDNewJaJH8yWdsGF3WLdsRr2P9S7MzCj";

pub(crate) fn run(what: &[&str], place: &Place, options: &[&str]) -> Answer {
    let mut program = command();
    program.args(what).args(["--json", "--store"]).arg(place.store()).args(options);
    program.output().unwrap().into()
}

/// A store with the published commit and two others, of which the second one is a branch.
pub(crate) fn store(place: &Place) -> [Hash; 3] {
    let dir = place.store();
    let options = Options::new(Arc::new(BtreeIndexes::default()));
    let store = Store::create(RealDisk::auto(), &dir, &options).unwrap();
    let mut context = store.empty();
    let protocol = hex("38ecdef0cd08640f318a9b055f6b0d0c9ae030913a871d9b9d86fb846317da21");
    context.add(&["data", "version"], &b"genesis"[..]).unwrap();
    context.add(&["protocol"], protocol).unwrap();
    context.add(&["test_chain"], [0]).unwrap();
    let genesis = store.commit(&context, &Meta::tezos(1_530_374_852, "Genesis")).unwrap();
    context.advance(genesis);
    context.add(&[b"data".as_slice(), &[0xFF]], vec![7; 100]).unwrap();
    context.add(&["data", "dir", "deep"], &b""[..]).unwrap();
    let second = store.commit(&context, &Meta::tezos(-5, "")).unwrap();
    store.set_branch(b"main", &second).unwrap();
    context.advance(second);
    context.remove(&["data", "dir"]).unwrap();
    let third = store.commit(&context, &Meta::tezos(1_530_374_853, "")).unwrap();
    store.close().unwrap();
    assert_eq!(genesis.to_base58(), GENESIS);

    [genesis, second, third]
}

pub(crate) fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn commits_are_listed_with_parents_and_branches() {
    let place = Place::new();
    let [genesis, second, third] = store(&place).map(|hash| hash.to_base58());
    let log = run(&["context", "log"], &place, &[]).done();
    let commits = log["commits"].as_array().unwrap();
    let hashes: Vec<&str> = commits.iter().map(|commit| commit["hash"].as_str().unwrap()).collect();
    assert_eq!(hashes, [&third, &second, &genesis]);
    let [_, of_second, of_genesis] = commits.as_slice() else { panic!("three") };
    assert_eq!(of_second["parents"], json!([genesis]));
    assert_eq!((&of_second["branches"], &of_second["date_s"]), (&json!(["main"]), &json!(-5)));
    assert_eq!(of_genesis["author"], "Tezos");
    assert_eq!((&of_genesis["message"], &of_genesis["parents"]), (&json!("Genesis"), &json!([])));
    assert_eq!(
        run(&["context", "log"], &place, &["--limit", "1"]).done()["commits"][0]["hash"],
        third
    );
    let people: Answer =
        command().args(["context", "log", "--store"]).arg(place.store()).output().unwrap().into();
    assert!(
        people.stdout.contains("2018-06-30T16:07:32Z") && people.stdout.contains("-5"),
        "{people:?}"
    );
}

#[test]
fn directories_are_listed_and_values_shown_of_any_commit() {
    let place = Place::new();
    let [_, second, third] = store(&place).map(|hash| hash.to_base58());
    let ls = |path: &str, options: &[&str]| {
        run(&["context", "ls", path], &place, options).done()["entries"].clone()
    };
    let main = ls("data", &["--commit", "main", "--long"]);
    let expected = json!([
        {"step": "dir", "kind": "directory", "children": 1},
        {"step": "version", "kind": "value", "bytes": 7},
        {"step": "hex:ff", "kind": "value", "bytes": 100},
    ]);
    assert_eq!(main, expected);
    assert_eq!(ls("data", &[]).as_array().unwrap().len(), 2);
    assert_eq!(ls("", &["--limit", "1"]), json!([{"step": "data", "kind": "directory"}]));
    let show = |path: &str, options: &[&str]| run(&["context", "show", path], &place, options);
    let shown = show("data/version", &["--commit", &second[..20]]).done();
    assert_eq!((&shown["value_hex"], &shown["bytes"]), (&json!("67656e65736973"), &json!(7)));
    assert_eq!(shown["commit"], second);
    assert_eq!(show("data/hex:ff", &[]).done()["commit"], third);
    assert_eq!(show("/data/dir/deep/", &["--commit", &second]).done()["value_hex"], "");

    for (path, at, code, part) in [
        ("data/dir/deep", third.as_str(), 1, "nothing is at"),
        ("data", &third, 2, "a directory is at"),
        ("data/hex:f", &third, 2, "hexadecimal"),
        ("data", "Co", 2, "several commits begin with Co"),
        ("data", "nobody", 1, "no commit and no branch"),
        ("data", "CoVdWnWTqvYLikKj8koW6zpxCvK6FzZiD31YWEpD1UNAjWn7vhch", 1, "there is no commit"),
    ] {
        let answer = show(path, &["--commit", at]);
        assert_eq!(answer.code, Some(code), "{path}: {answer:?}");
        assert!(answer.stderr.contains(part), "{path}: {answer:?}");
    }

    assert!(run(&["context", "ls", "protocol"], &place, &[]).failed(2).contains("a value is at"));
    let people: Answer = command()
        .args(["context", "show", "data/version", "--store"])
        .arg(place.store())
        .output()
        .unwrap()
        .into();
    assert_eq!(people.stdout, "genesis\n");
}

#[test]
fn old_commits_are_collected_and_heads_and_named_ones_stay() {
    let place = Place::new();
    let [genesis, second, third] = store(&place).map(|hash| hash.to_base58());
    let left = || -> Vec<String> {
        let log = run(&["context", "log"], &place, &[]).done();
        let hash = |commit: &Value| commit["hash"].as_str().unwrap().to_owned();
        log["commits"].as_array().unwrap().iter().map(hash).collect()
    };
    let gc = |options: &[&str]| run(&["context", "gc"], &place, options);
    assert!(gc(&[]).failed(2).contains("--newest"));
    gc(&["--newest", "1", "--everything"]).failed(2);
    gc(&["--newest", "1", "--keep", "nobody"]);
    assert_eq!(left().len(), 3);
    let done = gc(&["--everything"]).done();
    assert_eq!((&done["kept"], &done["collected"]), (&json!(3), &json!(0)));
    let done = gc(&["--newest", "1", "--keep", &genesis[..10]]).done();
    assert_eq!((&done["kept"], &done["collected"]), (&json!(3), &json!(0)));
    let done = gc(&["--since", &third]).done();
    assert_eq!((&done["kept"], &done["collected"]), (&json!(2), &json!(1)));
    assert_eq!(left(), [third.clone(), second.clone()]);
    let done = gc(&["--newest", "0"]).done();
    assert_eq!((&done["kept"], &done["collected"]), (&json!(1), &json!(1)));
    assert_eq!(left(), [second]);
    assert!(done["store_bytes"].as_u64() > Some(0));
    let held = Store::open(
        RealDisk::auto(),
        &place.store(),
        &Options::new(Arc::new(BtreeIndexes::default())),
    );
    let message = gc(&["--newest", "0"]).failed(3);
    assert!(message.contains(&format!("by process {}", std::process::id())), "{message}");
    drop(held);
}

#[test]
fn what_collections_take_out_goes_to_volumes_and_every_commit_stays() {
    let place = Place::new();
    let [genesis, _, _] = store(&place).map(|hash| hash.to_base58());
    let volume = |what: &str| run(&["context", "volume", what], &place, &[]);
    let gc = || run(&["context", "gc"], &place, &["--newest", "1"]).done();
    let inspect = || -> Value {
        let mut inspect = command();
        inspect.args(["inspect", "--json"]).arg(place.store());
        Answer::from(inspect.output().unwrap()).done()
    };
    assert_eq!(volume("list").done()["volumes"], json!([]));
    assert_eq!((&inspect()["volumes"], &inspect()["archive_bytes"]), (&json!(0), &json!(0)));
    let archive = place.store().join("archive");
    let first = text(&archive.join("volume-00000000")).to_owned();
    let added = volume("add").done();
    assert_eq!((&added["path"], &added["volumes"]), (&json!(first), &json!(1)));
    let message = volume("add").failed(2);
    assert!(message.contains(&first) && message.contains("still empty"), "{message}");
    let done = gc();
    let archived = done["archived_bytes"].as_u64().unwrap();
    assert!(archived > 0 && done["collected"] == 0, "{done}");
    // Each volume has a marker.
    let marker = 32;
    let first_bytes = archived + marker;
    assert_eq!(inspect()["archive_bytes"], first_bytes);
    // A link is refused by its name; a mount, which looks like a directory, is not.
    let second = archive.join("volume-00000001");
    std::os::unix::fs::symlink(place.path("elsewhere"), &second).unwrap();
    let message = volume("add").failed(1);
    assert!(message.contains(text(&second)) && message.contains("symbolic link"), "{message}");
    std::fs::remove_file(&second).unwrap();
    std::fs::create_dir(&second).unwrap();
    assert_eq!(volume("add").done()["volumes"], 2);
    let listed = |bytes: Value| json!([{"path": first, "bytes": first_bytes}, {"path": text(&second), "bytes": bytes}]);
    assert_eq!(volume("list").done()["volumes"], listed(json!(marker)));
    let log = run(&["context", "log"], &place, &[]).done();
    assert_eq!(log["commits"].as_array().unwrap().len(), 3);
    let shown = run(&["context", "show", "test_chain"], &place, &["--commit", &genesis]).done();
    assert_eq!(shown["value_hex"], "00");
    std::fs::remove_dir_all(&second).unwrap();
    assert_eq!(volume("list").done()["volumes"], listed(Value::Null));
    // The commits are in the first one.
    assert_eq!(
        run(&["context", "show", "test_chain"], &place, &["--commit", &genesis]).code,
        Some(0)
    );
    let people = |what: &[&str]| -> String {
        let mut program = command();
        let program = program.args(what).arg(place.store());
        Answer::from(program.output().unwrap()).stdout
    };
    let shown = people(&["context", "volume", "list", "--store"]);
    assert!(shown.contains(&first) && shown.contains("missing"), "{shown}");
    let shown = people(&["inspect"]);
    assert!(shown.contains("in 2 volumes"), "{shown}");
    std::fs::rename(&first, place.path("unmounted")).unwrap();
    let answer = run(&["context", "show", "test_chain"], &place, &["--commit", &genesis]);
    let message = answer.failed(3);
    assert!(message.contains(&first) && message.contains("not mounted"), "{message}");
}

/// Archive and index on other disks: named once, when the store is made or moved, and honoured by
/// every command.
#[test]
fn an_archive_and_an_index_elsewhere_are_named_once() {
    let place = Place::new();
    let [genesis, _, _] = store(&place).map(|hash| hash.to_base58());
    let cold = place.path("cold");
    let fast = place.path("fast");
    let moves = |options: &[&str]| run(&["context", "move"], &place, options);
    assert!(moves(&[]).code == Some(2));
    let moved = moves(&["--archive-dir", text(&cold), "--index-dir", text(&fast)]).done();
    assert_eq!(moved["archive"], text(&cold));
    assert_eq!(moved["index"], text(&fast.join("index")));
    assert_eq!(moved["index_entries"], 3);
    assert!(!place.store().join("index").exists());
    let added = run(&["context", "volume", "add"], &place, &[]).done();
    assert_eq!(added["path"], text(&cold.join("volume-00000000")));
    let done = run(&["context", "gc"], &place, &["--newest", "1"]).done();
    let archived = done["archived_bytes"].as_u64().unwrap();
    assert!(archived > 0 && !place.store().join("archive").exists(), "{done}");
    let shown = || run(&["context", "show", "test_chain"], &place, &["--commit", &genesis]);
    assert_eq!(shown().done()["value_hex"], "00");
    let on_store = |what: &str, options: &[&str]| -> Answer {
        let mut program = command();
        program.args([what, "--json"]).arg(place.store()).args(options);
        program.output().unwrap().into()
    };
    let found = on_store("inspect", &[]).done();
    assert_eq!(found["archive_dir"], text(&cold));
    assert_eq!(found["index_dir"], text(&fast.join("index")));
    assert_eq!(found["archive_bytes"].as_u64(), Some(archived + 32));
    assert!(found["index_bytes"].as_u64() > Some(0));
    assert_eq!(on_store("verify", &[]).done()["left"], 0);

    // Away, and another store's.
    std::fs::rename(&cold, place.path("away")).unwrap();
    let message = shown().failed(2);
    assert!(message.contains(text(&cold)) && message.contains("--archive-dir"), "{message}");
    assert!(on_store("verify", &[]).failed(1).contains("left"));
    assert!(on_store("verify", &["--repair"]).failed(2).contains(text(&cold)));
    let copy = place.path("copy");
    let mut export = command();
    export.args(["context", "export", "--json", "--to"]).arg(&copy).arg("--index-dir").arg(&fast);
    export.arg("--store").arg(place.store());
    std::fs::rename(place.path("away"), &cold).unwrap();
    let message = Answer::from(export.output().unwrap()).failed(2);
    assert!(message.contains("another store") && message.contains(text(&fast)), "{message}");
    // The archive was moved.
    std::fs::rename(&cold, place.path("colder")).unwrap();
    let moved = moves(&["--archive-dir", text(&place.path("colder"))]).done();
    assert_eq!(moved["index_entries"], Value::Null);
    assert_eq!(shown().done()["value_hex"], "00");
    assert_eq!(on_store("verify", &[]).done()["left"], 0);
}

#[test]
fn a_context_store_is_inspected_beside_its_writer_and_no_other_command_takes_it() {
    let place = Place::new();
    let [_, second, third] = store(&place).map(|hash| hash.to_base58());
    let options = Options::new(Arc::new(BtreeIndexes::default()));
    let writer = Store::open(RealDisk::auto(), &place.store(), &options).unwrap();
    let inspect = |options: &[&str]| -> Answer {
        let mut inspect = command();
        inspect.args(["inspect", "--json"]).arg(place.store()).args(options);
        inspect.output().unwrap().into()
    };
    let found = inspect(&[]).done();

    for (name, expected) in [
        ("kind", json!("context")),
        ("scheme", json!("tezos")),
        ("branching", json!(32)),
        ("flat_limit", json!(256)),
        ("indexing", json!("minimal")),
        ("commits", json!(3)),
        ("newest", json!(third)),
        ("branches", json!([{"name": "main", "head": second}])),
        ("chunks", json!(1)),
        ("damage", json!([])),
    ] {
        assert_eq!(found[name], expected, "{name}");
    }

    assert!(found["chunk_bytes"].as_u64() > Some(0) && found.get("tree").is_none(), "{found}");
    let tree = inspect(&["--commit", "main"]).done()["tree"].clone();
    let expected = json!({
        "commit": second, "directories": 3, "values": 5, "value_bytes": 7 + 32 + 1 + 100,
        "value_bytes_max": 100, "depth_max": 3, "children_max": 3,
    });
    assert_eq!(tree, expected);
    assert!(inspect(&["--page", "1"]).failed(2).contains("a context store"));
    let get: Answer = run(&["get", "key"], &place, &[]);
    assert!(get.failed(2).contains("is a context store"), "{get:?}");
    drop(writer);
    let other = Place::new();
    std::fs::create_dir(other.store()).unwrap();
    assert!(run(&["context", "log"], &other, &[]).failed(2).contains("not a context store"));
}

#[test]
fn damage_is_found_and_a_lost_index_and_control_record_are_made_again() {
    let place = Place::new();
    let hashes = store(&place).map(|hash| hash.to_base58());
    let verify = |options: &[&str]| -> Answer {
        let mut verify = command();
        verify.args(["verify", "--json"]).arg(place.store()).args(options);
        verify.output().unwrap().into()
    };
    let found = verify(&[]).done();
    assert_eq!((&found["left"], &found["commits"]), (&json!(0), &json!(3)));
    assert_eq!(
        found["kinds"][5],
        json!({"kind": "commits", "records": 3, "bytes": found["kinds"][5]["bytes"]})
    );
    let control = place.store().join("control");
    std::fs::write(&control, vec![0xEE; 8192]).unwrap();
    assert_eq!(verify(&[]).code, Some(1));
    let repaired = verify(&["--repair"]).done();
    assert_eq!((&repaired["left"], &repaired["repair"]["control_made"]), (&json!(0), &json!(true)));
    assert_eq!(repaired["repair"]["index_entries"], 3);
    assert_eq!(verify(&[]).done()["left"], 0);
    let log = run(&["context", "log"], &place, &[]).done();
    assert_eq!(log["commits"][2]["hash"], hashes[0]);
    // A byte of a value that is stored on its own.
    let chunk = place.store().join("chunk-00000000");
    let mut bytes = std::fs::read(&chunk).unwrap();
    let value = bytes.windows(20).position(|part| part == [7; 20]).unwrap();
    bytes[value] ^= 1;
    std::fs::write(&chunk, &bytes).unwrap();

    for options in [&[][..], &["--repair"]] {
        let answer = verify(options);
        assert_eq!(answer.code, Some(1), "{answer:?}");
        let problem = answer.json()["problems"][0].clone();
        assert!(problem["file"].as_str().unwrap().ends_with("chunk-00000000"), "{problem}");
        assert_eq!(problem["repaired"], false);
    }
}

/// A closed store with a cut chunk was not repaired, and a repair of another said that it had lost
/// no commit.
#[test]
fn commits_that_a_cut_chunk_loses_are_counted_and_named() {
    let place = Place::new();
    let [first, _, third] = store(&place);
    let dir = place.store();
    let chunk = dir.join("chunk-00000000");
    let bytes = std::fs::read(&chunk).unwrap();
    let at = bytes.windows(32).position(|part| part == third.0).unwrap();
    std::fs::write(&chunk, &bytes[..at]).unwrap();
    let verify = |options: &[&str]| -> Answer {
        let mut verify = command();
        verify.arg("verify").arg(&dir).args(options).output().unwrap().into()
    };

    let refused = verify(&["--repair", "--json"]);
    assert!(refused.failed(1).contains("has lost 1 durable commit from record"), "{refused:?}");
    let repaired = verify(&["--repair", "--accept-loss", "--json"]);
    assert_eq!(repaired.code, Some(1), "{repaired:?}");
    let lost = repaired.json()["repair"]["lost"].clone();
    assert_eq!((&lost["commits"], &lost["commits_is_lower_bound"]), (&json!(1), &json!(false)));
    assert_eq!(lost["named"], json!([third.to_base58()]));
    let message = repaired.json()["error"]["message"].to_string();
    assert!(message.contains("1 commit was lost"), "{repaired:?}");
    assert_eq!(verify(&["--json"]).done()["left"], 0);
    let log = run(&["context", "log"], &place, &[]).done();
    assert_eq!(log["commits"].as_array().unwrap().len(), 2);
    assert_eq!(log["commits"][1]["hash"], first.to_base58());
}
