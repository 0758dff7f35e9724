//! Commands that export, import, compare and prove commits of a context store.
//!
//! Goal: an export is imported as the same commit, and nothing else is ever a commit; a proof gives
//! the answers of the store, and no changed byte of a proof goes unnoticed; a difference equals a
//! comparison by hand.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use serde_json::{Value, json};
use terrane::backends::BtreeIndexes;
use terrane::context::{Meta, Options, Store};
use terrane::io::RealDisk;

use crate::context::{run, store};
use crate::program::{Answer, Place, command, text};

/// `terrane context <what>` on the store of a place.
fn context(place: &Place, what: &[&str]) -> Answer {
    run(&[&["context"][..], what].concat(), place, &[])
}

fn hashes(place: &Place) -> Vec<String> {
    let log = context(place, &["log"]).done();
    let hash = |commit: &Value| commit["hash"].as_str().unwrap().to_owned();
    log["commits"].as_array().unwrap().iter().map(hash).collect()
}

fn is_whole(dir: &Path) {
    let answer: Answer = command().args(["verify", "--json"]).arg(dir).output().unwrap().into();
    assert_eq!(answer.done()["left"], 0);
}

/// `--mode` sets the permissions of exported files, less those that the umask withholds.
#[test]
fn exports_and_backups_have_the_permissions_that_are_asked_for() {
    use std::os::unix::fs::PermissionsExt as _;
    let bits = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let place = Place::new();
    store(&place);
    let file = place.path("file");
    let dir = place.path("dir");
    context(&place, &["export", text(&file), "--mode", "0600"]).done();
    assert_eq!(bits(&file), 0o600);
    // A file that is replaced keeps its permissions, or gets those of the option.
    context(&place, &["export", text(&file), "--force"]).done();
    assert_eq!(bits(&file), 0o600);
    context(&place, &["export", text(&file), "--force", "--mode", "640"]).done();
    assert_eq!(bits(&file), 0o640);
    context(&place, &["export", "--to", text(&dir), "--mode", "0600"]).done();
    assert_eq!((bits(&dir), bits(&dir.join("control"))), (0o700, 0o600));
    assert_eq!(bits(&dir.join("index")), 0o700);
    assert_eq!(context(&place, &["export", text(&file), "--mode", "rw"]).code, Some(2));

    let ledger = place.path("ledger");
    let on_ledger = |arguments: &[&str]| -> Answer {
        let mut program = command();
        program.args(arguments).args(["--json", "--store"]).arg(&ledger);
        program.output().unwrap().into()
    };
    on_ledger(&["put", "key", "value", "--create"]).done();
    on_ledger(&["snapshot", "save", "tip"]).done();
    let is_private = |dir: &Path| {
        let mut open = vec![dir.to_owned()];
        while let Some(path) = open.pop() {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(bits(&path), expected, "{}", path.display());
            if path.is_dir() {
                open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
    };
    let to = |name: &str| place.path(name);
    on_ledger(&["backup", "--to", text(&to("a/backup")), "--mode", "0600"]).done();
    is_private(&to("a"));
    let export = ["snapshot", "export", "tip", "--mode", "0600"];
    on_ledger(&[&export[..], &["--to", text(&to("b/copy"))]].concat()).done();
    is_private(&to("b"));
    on_ledger(&[&export[..], &["--canonical", text(&to("canonical"))]].concat()).done();
    assert_eq!(bits(&to("canonical")), 0o600);
}

#[test]
fn a_commit_goes_to_a_file_and_into_another_store_and_increments_follow() {
    let place = Place::new();
    let [genesis, second, third] = store(&place).map(|hash| hash.to_base58());
    let whole = place.path("whole");
    let increment = place.path("increment");
    let report = context(&place, &["export", text(&whole), "--commit", &genesis]).done();
    assert_eq!((&report["commit"], &report["from"]), (&json!(genesis), &Value::Null));
    assert_eq!(report["bytes"], std::fs::metadata(&whole).unwrap().len());
    // Two directories and the commit.
    assert_eq!(report["elements"], 3);
    let arguments = ["export", text(&increment), "--from", &genesis[..9], "--commit", "main"];
    let report = context(&place, &arguments).done();
    assert_eq!((&report["commit"], &report["from"]), (&json!(second), &json!(genesis)));

    let other = Place::new();
    let message = context(&other, &["import", text(&increment)]).failed(2);
    assert!(message.contains(&format!("there is no commit {genesis}")), "{message}");
    let report = context(&other, &["import", text(&whole)]).done();
    assert_eq!((&report["commit"], &report["created"]), (&json!(genesis), &json!(true)));
    let report = context(&other, &["import", text(&increment), "--branch", "main"]).done();
    assert_eq!((&report["commit"], &report["created"]), (&json!(second), &json!(false)));
    assert_eq!(hashes(&other), [second.clone(), genesis]);
    is_whole(&other.store());
    // The branch is there, and what is exported anew is the same.
    let again = place.path("again");
    context(&other, &["export", text(&again), "--commit", "main", "--from", "CoV8SQ"]).done();
    assert_eq!(std::fs::read(&again).unwrap(), std::fs::read(&increment).unwrap());
    // Once more changes nothing, and another commit beside it is welcome.
    context(&other, &["import", text(&increment)]).done();
    let newest = place.path("newest");
    context(&place, &["export", text(&newest)]).done();
    context(&other, &["import", text(&newest)]).done();
    assert_eq!(hashes(&other).len(), 3);
    assert!(hashes(&other).contains(&third));
}

#[test]
fn several_commits_go_in_one_stream_and_come_all_together() {
    let place = Place::new();
    let [genesis, second, third] = store(&place).map(|hash| hash.to_base58());
    let file = place.path("range");
    let range = ["export", text(&file), "--since", &genesis[..9], "--commit", "main"];
    let report = context(&place, &range).done();
    assert_eq!((&report["commit"], &report["from"]), (&json!(second), &json!(genesis)));
    assert_eq!(report["commits"], json!([second]));

    // The beginning of the range is needed, or comes with it.
    let other = Place::new();
    let message = context(&other, &["import", text(&file)]).failed(2);
    assert!(message.contains(&format!("there is no commit {genesis}")), "{message}");
    let whole = [&range[..], &["--whole", "--force"]].concat();
    let report = context(&place, &whole).done();
    assert_eq!((&report["commits"], &report["from"]), (&json!([genesis, second]), &Value::Null));
    let report = context(&other, &["import", text(&file), "--branch", "tip"]).done();
    assert_eq!(report["commits"], json!([genesis, second]));
    assert_eq!((&report["commit"], &report["created"]), (&json!(second), &json!(true)));
    assert_eq!(hashes(&other), [second.clone(), genesis.clone()]);
    is_whole(&other.store());

    // Any commits, in a file or in a store of their own; parents come first.
    let list = ["--commit", &third, "--commit", &genesis, "--commit", "main"];
    let listed = place.path("listed");
    let report = context(&place, &[&["export", text(&listed)][..], &list].concat()).done();
    let commits = report["commits"].as_array().unwrap().clone();
    assert_eq!((commits.len(), &commits[0]), (3, &json!(genesis)));
    let copy = Place::new();
    let to = copy.store();
    let report = context(&place, &[&["export", "--to", text(&to)][..], &list].concat()).done();
    assert_eq!(report["commits"], json!(commits));
    assert_eq!(hashes(&copy).len(), 3);
    is_whole(&copy.store());

    // As text, each commit has a line.
    let mut import = command();
    import.args(["context", "import", text(&listed), "--quiet", "--store"]).arg(other.store());
    let answer: Answer = import.output().unwrap().into();
    for hash in [&genesis, &second, &third] {
        assert!(answer.stdout.contains(&format!("commit    {hash}")), "{answer:?}");
    }

    // A range that is empty, has two ends, or would begin a new store.
    let refused = |arguments: &[&str]| {
        context(&place, &[&["export", "--since", &genesis][..], arguments].concat()).failed(2)
    };
    let no_file = place.path("none");
    let empty = refused(&[text(&no_file), "--commit", &genesis]);
    assert!(empty.contains("no commit since"), "{empty}");
    assert!(refused(&[text(&no_file), "--commit", "main", "--commit", &third]).contains("one"));
    assert!(refused(&["--to", text(&no_file), "--commit", "main"]).contains("--whole"));
    assert!(!no_file.exists());
}

#[test]
fn a_commit_goes_through_a_pipe_and_into_a_store_of_its_own() {
    let place = Place::new();
    let [_, second, third] = store(&place).map(|hash| hash.to_base58());
    let other = Place::new();
    let mut export = command();
    export.args(["context", "export", "-", "--quiet", "--store"]).arg(place.store());
    let mut export = export.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut import = command();
    import.args(["context", "import", "-", "--json", "--store"]).arg(other.store());
    import.stdin(export.stdout.take().unwrap());
    let report = Answer::from(import.output().unwrap()).done();
    assert_eq!((&report["commit"], &report["file"]), (&json!(third), &json!("-")));
    let exported: Answer = export.wait_with_output().unwrap().into();
    assert_eq!(exported.code, Some(0));
    assert!(exported.stderr.contains(&third), "{exported:?}");
    // One that has a writer is read all the same.
    let options = Options::new(Arc::new(BtreeIndexes::default()));
    let writer = Store::open(RealDisk::auto(), &place.store(), &options).unwrap();
    let copy = Place::new();
    let report =
        context(&place, &["export", "--to", text(&copy.store()), "--commit", "main"]).done();
    assert_eq!((&report["commit"], hashes(&copy)), (&json!(second), vec![second.clone()]));
    drop(writer);
    is_whole(&copy.store());
    let message = context(&place, &["export", "--to", text(&copy.store())]).failed(2);
    assert!(message.contains("holds a store already"), "{message}");
    let message = context(&place, &["export", "-"]).failed(2);
    assert!(message.contains("--json"), "{message}");
}

#[test]
fn a_damaged_or_foreign_snapshot_is_no_commit_and_a_cut_import_is_begun_anew() {
    let place = Place::new();
    let [_, second, _] = store(&place).map(|hash| hash.to_base58());
    let file = place.path("snapshot");
    context(&place, &["export", text(&file), "--commit", "main"]).done();
    let bytes = std::fs::read(&file).unwrap();
    let other = Place::new();
    let mut damaged = bytes.clone();
    let value = damaged.windows(20).position(|part| part == [7; 20]).unwrap();
    damaged[value] ^= 1;

    for (bytes, code, part) in [
        (&b"TRNMSNAQ and so on, for as long as a head of a snapshot is, which takes about a hundred bytes, and more"[..], 2, "is no snapshot"),
        (&bytes[..50], 2, "ends after 50 bytes"),
        (&bytes[..bytes.len() - 1], 2, "before its end"),
        (&damaged, 1, "has another hash"),
    ] {
        let file = other.write("bad", bytes);
        let message = context(&other, &["import", text(&file)]).failed(code);
        assert!(message.contains(part) && message.contains("bad"), "{message}");
        assert!(!other.store().join("control").exists() || {
            let message = context(&other, &["log"]).failed(2);
            message.contains("an import into")
        });
    }

    context(&other, &["import", text(&file)]).done();
    assert_eq!(hashes(&other), [second]);
    // Into a store that is there, too, and it stays as it was.
    let bad = other.write("bad", &damaged);
    context(&other, &["import", text(&bad)]).failed(1);
    assert_eq!(hashes(&other).len(), 1);
    is_whole(&other.store());
    let foreign = Place::new();
    let mine = foreign.write("store/mine", b"1");
    let message = context(&foreign, &["import", text(&file)]).failed(2);
    assert!(message.contains("it has \"mine\""), "{message}");
    assert_eq!(std::fs::read_dir(foreign.store()).unwrap().count(), 1, "{mine:?}");
}

#[test]
fn files_are_replaced_only_by_force_and_what_is_not_there_is_not_exported() {
    let place = Place::new();
    store(&place);
    let file = place.write("file", b"mine");

    for what in [&["export"][..], &["prove", "--find", "protocol"]] {
        let arguments = [what, &[text(&file)]].concat();
        assert!(context(&place, &arguments).failed(2).contains("--force"));
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
        context(&place, &[&arguments[..], &["--force"]].concat()).done();
        assert_ne!(std::fs::read(&file).unwrap(), b"mine");
        place.write("file", b"mine");
        let absent = "CoVdWnWTqvYLikKj8koW6zpxCvK6FzZiD31YWEpD1UNAjWn7vhch";
        for at in ["nobody", absent] {
            let answer = context(&place, &[&arguments[..], &["--force", "--commit", at]].concat());
            assert_eq!(answer.code, Some(1), "{answer:?}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }
}

/// A store with a wide directory, so that proofs have inodes.
fn wide(place: &Place) {
    let options = Options::new(Arc::new(BtreeIndexes::default()));
    let store = Store::create(RealDisk::auto(), &place.store(), &options).unwrap();
    let mut context = store.empty();
    for number in 0..1_000 {
        context.add(&["data", "wide", &number.to_string()], [number as u8; 60]).unwrap();
    }
    context.add(&["data", "a/b"], *b"slash").unwrap();
    context.add(&["data", "empty"], *b"").unwrap();
    store.commit(&context, &Meta::tezos(1, "")).unwrap();
    store.close().unwrap();
}

fn verify_proof(file: &Path, questions: &[&str]) -> Answer {
    let mut program = command();
    program.args(["context", "verify-proof", "--json"]).arg(file).args(questions);
    program.output().unwrap().into()
}

const QUESTIONS: [&str; 18] = [
    "--find",
    "data/wide/17",
    "--find",
    "data/wide/absent",
    "--find",
    "data/hex:612f62",
    "--find",
    "data/empty",
    "--mem",
    "data",
    "--mem-tree",
    "data",
    "--length",
    "data/wide",
    "--list",
    "data/wide",
    "--limit",
    "3",
];

#[test]
fn a_proof_shows_without_a_store_what_the_store_shows_and_nothing_else() {
    let place = Place::new();
    wide(&place);
    let file = place.path("proof");
    let made = context(&place, &[&["prove", text(&file)][..], &QUESTIONS].concat()).done();
    let root = made["root_hex"].as_str().unwrap();
    assert_eq!(root, context(&place, &["log"]).done()["commits"][0]["root_hex"]);
    let answers = made["answers"].as_array().unwrap();
    let find = |number: usize| (&answers[number]["found"], &answers[number]["value_hex"]);
    assert_eq!(find(0), (&json!(true), &json!("11".repeat(60))));
    assert_eq!(find(1), (&json!(false), &Value::Null));
    assert_eq!(find(2), (&json!(true), &json!("736c617368")));
    assert_eq!(find(3), (&json!(true), &json!("")));
    assert_eq!((find(4).0, find(5).0), (&json!(false), &json!(true)));
    assert_eq!(
        (&answers[6]["question"], &answers[6]["steps"].as_array().unwrap().len()),
        (&json!("list"), &3)
    );
    assert_eq!(answers[7], json!({"question": "length", "path": "data/wide", "children": 1000}));

    std::fs::remove_dir_all(place.store()).unwrap();
    let questions = [&["--root", root][..], &QUESTIONS].concat();
    let shown = verify_proof(&file, &questions).done();
    assert_eq!(shown["answers"], made["answers"]);
    assert!(shown["hidden"].as_u64() > Some(100) && shown.get("values").is_none(), "{shown}");
    // Part of the questions is fine, and what was not asked when it was made is not known.
    verify_proof(&file, &["--root", root, "--length", "data/wide"]).done();
    let message = verify_proof(&file, &["--root", root, "--find", "data/wide/18"]).failed(1);
    assert!(message.contains("the proof does not hold data/wide"), "{message}");
    let message = verify_proof(&file, &["--root", &"0".repeat(64)]).failed(1);
    assert!(message.contains(root), "{message}");
    // Without questions all facts of the proof are listed.
    let shown = verify_proof(&file, &["--root", root]).done();
    let expected = json!({"path": "data/hex:612f62", "bytes": 5, "value_hex": "736c617368"});
    assert!(shown["values"].as_array().unwrap().contains(&expected), "{shown}");
    let wide = json!({"path": "data/wide", "children": 1000});
    assert!(shown["directories"].as_array().unwrap().contains(&wide), "{shown}");
    let people: Answer = command()
        .args(["context", "verify-proof", "--root", root])
        .arg(&file)
        .output()
        .unwrap()
        .into();
    assert!(people.stdout.contains("data/wide/: 1,000 children"), "{people:?}");
    assert!(people.stdout.contains("data/hex:612f62: 5 bytes slash"), "{people:?}");
}

#[test]
fn no_changed_byte_of_a_proof_is_taken() {
    let place = Place::new();
    store(&place);
    let file = place.path("proof");
    let arguments = ["prove", text(&file), "--find", "data/version", "--mem", "data/absent"];
    let made = context(&place, &arguments).done();
    let root = made["root_hex"].as_str().unwrap().to_owned();
    let bytes = std::fs::read(&file).unwrap();

    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        let file = place.write("changed", &changed);
        let answer = verify_proof(&file, &["--root", &root, "--find", "data/version"]);
        assert!(matches!(answer.code, Some(1 | 2)), "{at}: {answer:?}");
    }

    let cut = place.write("cut", &bytes[..bytes.len() - 1]);
    let trusted = ["--root", &root];
    assert!(verify_proof(&cut, &trusted).failed(2).contains("cut: byte"));
    assert!(verify_proof(&place.path("none"), &trusted).failed(2).contains("none"));
    assert!(verify_proof(&file, &[]).failed(2).contains("--root"));
    let large = [&trusted[..], &["--bytes-max", "100"]].concat();
    assert!(verify_proof(&file, &large).failed(2).contains("--bytes-max allows more"));
    let answer = verify_proof(&file, &["--root", &root, "--scheme", "blake3"]);
    assert_eq!(answer.code, Some(1), "{answer:?}");
    // A proof of a change is none of questions.
    let mut change = bytes.clone();
    change[2 + 33 + 5] ^= 1;
    let message = verify_proof(&place.write("change", &change), &trusted).failed(2);
    assert!(message.contains("of a change"), "{message}");
    assert!(context(&place, &["prove", text(&file)]).failed(2).contains("--find"));
}

/// A proof that calls the root a value of the same hash once showed every path absent, with exit
/// code 0.
#[test]
fn the_hash_of_a_root_alone_is_no_proof() {
    let place = Place::new();
    store(&place);
    let log = context(&place, &["log"]).done();
    let root = log["commits"][0]["root_hex"].as_str().unwrap();
    let byte = |at: usize| u8::from_str_radix(&root[at..at + 2], 16).unwrap();
    let hash: Vec<u8> = (0..root.len()).step_by(2).map(byte).collect();
    let end = [[0].as_slice(), &hash].concat();
    let forged = [[0, 0].as_slice(), &end, &end, &[1], &hash].concat();
    let file = place.write("forged", &forged);
    let message = verify_proof(&file, &["--root", root, "--find", "data/version"]).failed(1);
    assert!(message.contains("the proof is about the value"), "{message}");
}

/// Paths and values of a commit, from `ls` and `show`.
fn values(place: &Place, commit: &str, dir: &str, found: &mut BTreeSet<(String, String)>) {
    let listed = context(place, &["ls", dir, "--commit", commit]).done();
    for entry in listed["entries"].as_array().unwrap() {
        let step = entry["step"].as_str().unwrap();
        let path = if dir.is_empty() { step.to_owned() } else { format!("{dir}/{step}") };
        if entry["kind"] == "directory" {
            values(place, commit, &path, found);
        } else {
            let shown = context(place, &["show", &path, "--commit", commit]).done();
            found.insert((path, shown["value_hex"].as_str().unwrap().to_owned()));
        }
    }
}

#[test]
fn a_difference_and_a_dump_are_what_a_walk_by_hand_finds() {
    let place = Place::new();
    let [first, second, third] = store(&place).map(|hash| hash.to_base58());

    for (from, to) in [(&first, &second), (&second, &third), (&third, &first), (&first, &first)] {
        let found = [from, to].map(|commit| {
            let mut found = BTreeSet::new();
            values(&place, commit, "", &mut found);
            found
        });
        let [old, new] = found;
        let paths = |some: &BTreeSet<(String, String)>| -> BTreeSet<String> {
            some.iter().map(|(path, _)| path.clone()).collect()
        };
        let changes = paths(&old.symmetric_difference(&new).cloned().collect());
        let expected: Vec<Value> = changes
            .iter()
            .map(|path| {
                let change = match (paths(&old).contains(path), paths(&new).contains(path)) {
                    (true, true) => "changed",
                    (true, false) => "removed",
                    _ => "added",
                };
                json!({"path": path, "change": change})
            })
            .collect();
        let report = context(&place, &["diff", from, to]).done();
        let mut told = report["changes"].as_array().unwrap().clone();
        told.sort_by_key(|change| change["path"].as_str().unwrap().to_owned());
        assert_eq!(told, expected, "{from} {to}");
        let sum = ["added", "removed", "changed"].map(|name| report[name].as_u64().unwrap());
        assert_eq!(sum.iter().sum::<u64>(), expected.len() as u64);
        let dump = context(&place, &["dump-paths", "--commit", to, "--long"]).done();
        let dumped: BTreeSet<String> = dump["values"]
            .as_array()
            .unwrap()
            .iter()
            .map(|value| value["path"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(dumped, paths(&new));
    }

    let below = context(&place, &["diff", &second, &third, "--below", "data/dir"]).done();
    assert_eq!(below["changes"], json!([{"path": "data/dir/deep", "change": "removed"}]));
    let summary = context(&place, &["diff", &first, "--summary"]).done();
    assert_eq!((&summary["added"], summary.get("changes")), (&json!(1), None));
    let people = |what: &[&str]| -> Answer {
        let mut program = command();
        program.arg("context").args(what).arg("--store").arg(place.store());
        program.output().unwrap().into()
    };
    assert_eq!(people(&["diff", &first, "main"]).stdout, "A data/dir/deep\nA data/hex:ff\n");
    assert_eq!(people(&["dump-paths", "data", "--limit", "1"]).stdout, "data/version\n");
    let long = people(&["dump-paths", "data", "--long", "--commit", "main"]).stdout;
    assert_eq!(long.lines().count(), 3);
    assert!(long.lines().next().unwrap().ends_with("          0 data/dir/deep"), "{long}");
    assert!(context(&place, &["dump-paths", "protocol"]).failed(2).contains("a value is at"));
}

#[test]
fn a_chunk_is_begun_once_and_not_without_data_between() {
    let place = Place::new();
    store(&place);
    assert_eq!(context(&place, &["split"]).done()["chunks"], 2);
    let message = context(&place, &["split"]).failed(2);
    assert!(message.contains("nothing was written"), "{message}");
}
