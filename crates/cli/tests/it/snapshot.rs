//! `terrane snapshot`: list, rename, delete, export, import.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use terrane::lsm::{Session, SessionOptions, SnapshotName};

use crate::program::{Answer, Place, command, text};
use crate::store::{LABEL, NAMES, Store, edit, flip, inspect, reseal_manifest};

/// Calls `terrane snapshot <arguments> --store <store> --json`.
fn snapshot(store: &Path, arguments: &[&str]) -> Answer {
    let mut command = command();
    command.arg("snapshot").args(arguments).arg("--store").arg(store).arg("--json");
    command.output().unwrap().into()
}

/// The report for people.
fn plain(store: &Path, arguments: &[&str]) -> Answer {
    let mut command = command();
    command.arg("snapshot").args(arguments).arg("--store").arg(store);
    command.output().unwrap().into()
}

fn names(store: &Path) -> Vec<String> {
    let listed = snapshot(store, &["list"]).done();
    let names = listed["snapshots"].as_array().unwrap().iter();
    names.map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
}

/// The digest of a snapshot.
fn digest(store: &Path, name: &str) -> String {
    let answer = plain(store, &["export", name, "--canonical", "/dev/null"]);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let line = answer.stdout.lines().find(|line| line.starts_with("digest")).unwrap().to_owned();
    line.split_whitespace().last().unwrap().to_owned()
}

#[test]
fn list_tells_of_each_snapshot_also_beside_a_process_that_has_the_store_open() {
    let store = Store::new();
    let listed = snapshot(&store.dir(), &["list"]).done();
    assert_eq!(listed["command"], "snapshot list");
    let snapshots = listed["snapshots"].as_array().unwrap();
    assert_eq!(names(&store.dir()), NAMES);
    let late = &snapshots[1];
    assert_eq!((&late["label"], late["runs"].as_u64() > Some(2)), (&LABEL.into(), true));
    assert!(
        late["stored_entries"].as_u64() > Some(1_000) && late["bytes"].as_u64() > Some(100_000)
    );
    assert!(late["saved"].as_str().unwrap().ends_with('Z'), "{late}");
    let shown = plain(&store.dir(), &["list"]);
    assert_eq!((shown.code, shown.stdout.lines().count()), (Some(0), 3), "{shown:?}");
    assert!(shown.stdout.starts_with("SNAPSHOT  SAVED"), "{shown:?}");
    assert!(shown.stdout.contains("STORED ENTRIES  OF THEM TOMBSTONES"), "{shown:?}");
    assert!(late["entries"].is_null() && late["tombstones"].as_u64() > Some(0), "{late}");
    let of_store = inspect(&store.dir(), &["--json"]).done();

    for field in ["stored_entries", "tombstones", "runs", "bytes"] {
        assert_eq!(late[field], of_store["snapshots"][1][field], "{field}");
    }

    // No lock is taken and none is needed; what changes a store needs it.
    let child = Command::new(env!("CARGO_BIN_EXE_terrane"))
        .args(["snapshot", "import", "--canonical", "-", "--as", "x", "--store"])
        .arg(store.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.unwrap();
    let pid = format!("{:>10}\n", child.id());

    while std::fs::read(store.dir().join("lock")).unwrap_or_default() != pid.as_bytes() {
        assert!(child.try_wait().unwrap().is_none(), "the holder has ended");
        std::thread::yield_now();
    }

    assert_eq!(names(&store.dir()), NAMES);
    let message = snapshot(&store.dir(), &["delete", "early"]).failed(3);
    assert!(message.contains(&format!("by process {}", child.id())), "{message}");
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn list_names_damaged_snapshots() {
    let store = Store::new();
    flip(&store.snapshot("early"), 20);
    let answer = snapshot(&store.dir(), &["list"]);
    let message = answer.failed(1);
    assert!(message.contains("early") && message.contains("checksum"), "{message}");
    let json = answer.json();
    assert_eq!(json["damage"].as_array().unwrap().len(), 1);
    assert_eq!(json["snapshots"][0]["label"], Value::Null);
    assert_eq!(json["snapshots"][1]["label"], LABEL);
    // It can be deleted.
    snapshot(&store.dir(), &["delete", "early"]).done();
    assert_eq!(names(&store.dir()), ["late"]);
}

/// They were called damaged.
#[test]
fn list_tells_other_format_versions_from_damage() {
    let store = Store::new();
    edit(&store.snapshot("early"), |bytes| {
        bytes[8] = 9;
        reseal_manifest(bytes);
    });
    let listed = snapshot(&store.dir(), &["list"]).done();
    assert_eq!(listed["damage"].as_array().unwrap().len(), 0);
    let snapshots = [&listed["snapshots"][0], &listed["snapshots"][1]];
    assert_eq!(snapshots.map(|snapshot| snapshot["format_version"].as_u64()), [Some(9), Some(6)]);
    assert_eq!(snapshots[0]["saved"], Value::Null);
    let shown = plain(&store.dir(), &["list"]);
    assert!(shown.code == Some(0) && shown.stdout.contains("format version 9"), "{shown:?}");
    let message = snapshot(&store.dir(), &["export", "early", "--canonical", "-"]).failed(2);
    assert!(message.contains("--json writes"), "{message}");
    let message =
        snapshot(&store.dir(), &["export", "early", "--canonical", "/dev/null"]).failed(2);
    assert!(message.contains("format version 9; this program reads 6"), "{message}");
}

#[test]
fn rename_and_delete_do_what_they_say() {
    let store = Store::new();
    let contents = store.contents();
    let json = snapshot(&store.dir(), &["rename", "late", "kept"]).done();
    assert_eq!((&json["from"], &json["to"]), (&"late".into(), &"kept".into()));
    assert_eq!(names(&store.dir()), ["early", "kept"]);
    let message = snapshot(&store.dir(), &["rename", "early", "kept"]).failed(2);
    assert!(message.contains("`kept` exists already"), "{message}");
    let message = snapshot(&store.dir(), &["rename", "late", "other"]).failed(2);
    assert!(message.contains("`late` does not exist"), "{message}");
    snapshot(&store.dir(), &["rename", "kept", "late"]).done();
    assert_eq!(store.contents(), contents);

    assert_eq!(snapshot(&store.dir(), &["delete", "early"]).done()["deleted"], true);
    let message = snapshot(&store.dir(), &["delete", "early"]).failed(2);
    assert!(message.contains("`early` does not exist"), "{message}");
    let json = snapshot(&store.dir(), &["delete", "early", "--if-exists"]).done();
    assert_eq!((&json["name"], &json["deleted"]), (&"early".into(), &false.into()));
    assert_eq!(names(&store.dir()), ["late"]);
    assert_eq!(store.contents()["late"], contents["late"]);
}

#[test]
fn a_snapshot_goes_to_another_store_and_back() {
    let store = Store::new();
    let place = Place::new();
    let backup = place.path("backup");
    let new = place.path("some/new");
    let json = snapshot(&store.dir(), &["export", "early", "--to", text(&backup)]).done();
    assert_eq!((&json["name"], &json["as"]), (&"early".into(), &"early".into()));
    assert!(json["files_copied"].as_u64() > Some(2) && json["wall_s"].as_f64() > Some(0.0));
    // The second export brings what is new.
    let arguments = ["export", "late", "--to", text(&backup), "--as", "monday"];
    let json = snapshot(&store.dir(), &arguments).done();
    assert!(json["files_shared"].as_u64() > Some(0), "{json}");
    assert_eq!(names(&backup), ["early", "monday"]);
    let verified: Answer = command().arg("verify").arg(&backup).output().unwrap().into();
    assert!(verified.stdout.contains("no problem"), "{verified:?}");
    let answer = plain(&store.dir(), &["export", "late", "--to", text(&backup)]);
    assert!(answer.stdout.contains("copied         0 files"), "{answer:?}");
    let one = place.write("one", b"terrane-changes 1\nbegin 1\nput 01 01\nend\n");
    place.replay("changes", &[text(&one)]).done();
    let name = names(&place.store()).into_iter().find(|name| name.starts_with("state")).unwrap();
    let answer = plain(&place.store(), &["export", &name, "--to", text(&place.path("single"))]);
    assert!(answer.stdout.contains("copied         1 file, "), "{answer:?}");
    assert_eq!(answer.stderr, "", "no bar where nobody watches");

    // Into a new store, which has another salt, and back into the old one.
    let arguments = ["import", "monday", "--from", text(&backup), "--as", "tuesday"];
    let json = snapshot(&new, &arguments).done();
    assert_eq!((&json["name"], &json["as"]), (&"monday".into(), &"tuesday".into()));
    assert_eq!(json["files_rebuilt"], json["files_copied"]);
    let json = snapshot(&store.dir(), &arguments).done();
    assert_eq!(json["files_rebuilt"], 0);

    for dir in [&new, &store.dir()] {
        assert_eq!(digest(dir, "tuesday"), digest(&store.dir(), "late"));
        let verified: Answer = command().arg("verify").arg(dir).output().unwrap().into();
        assert!(verified.stdout.contains("no problem"), "{verified:?}");
    }
}

#[test]
fn what_cannot_be_exported_or_imported_is_refused_with_the_reason() {
    let store = Store::new();
    let place = Place::new();
    let dir = store.dir();
    let backup = place.path("backup");
    let foreign = place.write("photos/sea.txt", b"sea");
    let photos = foreign.parent().unwrap();
    snapshot(&dir, &["export", "late", "--to", text(&backup)]).done();

    for (arguments, words) in [
        (&["export", "none", "--to", text(&backup)][..], "`none` does not exist"),
        (&["export", "late", "--to", text(photos)], "is not a store"),
        (&["export", "late", "--to", text(&foreign)], "is not a store"),
        (&["export", "late", "--to", text(&backup)], "`late` exists already"),
        (&["import", "none", "--from", text(&backup)], "`none` does not exist"),
        (&["import", "late", "--from", text(&backup)], "`late` exists already"),
        (&["import", "late", "--from", text(&place.path("none"))], "none does not exist"),
        (&["import", "late", "--from", text(photos)], "sea.txt"),
        (&["export", "Late", "--to", "x"], "1 to 64 characters"),
        (&["export", "late"], "--to"),
        (&["import", "late"], "--from"),
        (&["import", "--canonical", "x"], "--as"),
        (&["import", "late", "--canonical", "x", "--as", "y"], "cannot be used with"),
        (&["export", "late", "--to", "x", "--canonical", "y"], "cannot be used with"),
        (&["import", "late", "--from", "x", "--label", "y"], "cannot be used with"),
    ] {
        let message = snapshot(&dir, arguments).failed(2);
        assert!(message.contains(words), "{arguments:?}: {message}");
    }

    assert_eq!(std::fs::read(&foreign).unwrap(), b"sea");
    // By whatever path: a store was said to be in use, by the very process that said so.
    for same in [&dir, &dir.join("../store/.")] {
        let message = snapshot(&dir, &["export", "late", "--to", text(same)]).failed(2);
        assert!(message.contains("--to and --store are the same store"), "{message}");
        let message = snapshot(&dir, &["import", "late", "--from", text(same)]).failed(2);
        assert!(message.contains("--from and --store are the same store"), "{message}");
    }

    // Neither a missing nor an empty nor a foreign directory is made a store by the way.
    let empty = place.path("empty");
    std::fs::create_dir(&empty).unwrap();

    for not_a_store in [&place.path("missing"), &empty, photos, &foreign] {
        for arguments in [
            &["list"][..],
            &["rename", "a", "b"],
            &["delete", "a", "--if-exists"],
            &["export", "a", "--to", "x"],
        ] {
            snapshot(not_a_store, arguments).failed(2);
        }
    }

    assert!(!place.path("missing").exists());
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(photos).unwrap().count(), 1);

    for not_a_store in [photos, &foreign] {
        snapshot(not_a_store, &["import", "late", "--from", text(&backup)]).failed(2);
    }
}

#[test]
fn damage_is_found_on_the_way_out_and_on_the_way_in() {
    let store = Store::new();
    let place = Place::new();
    let backup = place.path("backup");
    snapshot(&store.dir(), &["export", "late", "--to", text(&backup)]).done();
    let runs = std::fs::read_dir(backup.join("active")).unwrap();
    let run =
        runs.map(|entry| entry.unwrap().path()).max_by_key(|path| path.metadata().unwrap().len());
    let run = run.unwrap();
    flip(&run, 5_000);
    let message =
        snapshot(&store.dir(), &["import", "late", "--from", text(&backup), "--as", "b"]).failed(1);
    assert!(message.contains(text(&run)) && message.contains("page 1: crc"), "{message}");
    assert_eq!(names(&store.dir()), NAMES);
    let run = store.run().path;
    flip(&run, 5_000);
    let to = place.path("other");
    let message = snapshot(&store.dir(), &["export", "late", "--to", text(&to)]).failed(1);
    assert!(message.contains(text(&run)) && message.contains("page 1: crc"), "{message}");
    assert_eq!(names(&to), Vec::<String>::new());
}

/// Two histories of the same content: other blocks, other values on the way, keys that go again.
#[test]
fn the_same_content_gives_the_same_canonical_file_whatever_its_history() {
    let straight = "terrane-changes 1\nbegin 1\nput - 07\nput 01 11\nput 02ff 2222\nend\n";
    let winding = "terrane-changes 1\nbegin 1\nput 01 00\nput 09 09\nend\nbegin 5\nput 02ff 2222\n\
                   del 09\nput - 01\nend\nrollback 1\nbegin 7\ndel 09\nput 02ff 2222\nput 01 11\nend\n\
                   begin 9\nput - 07\nput 03 03\nend\nbegin 10\ndel 03\nend\n";

    let mut files = Vec::new();
    let mut digests = Vec::new();
    for history in [straight, winding] {
        let place = Place::new();
        let input = place.write("history", history.as_bytes());
        let replayed = place.replay("changes", &[text(&input)]).done();
        let name =
            names(&place.store()).into_iter().find(|name| name.starts_with("state")).unwrap();
        let file = place.path("canonical");
        let arguments = ["export", &name, "--canonical", text(&file)];
        let json = snapshot(&place.store(), &arguments).done();
        assert_eq!((&json["digest"], &json["count"]), (&replayed["digest"], &replayed["count"]));
        assert_eq!(json["bytes"].as_u64(), Some(file.metadata().unwrap().len()));
        digests.push(json["digest"].clone());
        files.push(std::fs::read(file).unwrap());
        // An export on standard output, with the report on standard error.
        let mut piped = command();
        piped.args(["snapshot", "export", &name, "--canonical", "-", "--store"]);
        let output = piped.arg(place.store()).output().unwrap();
        assert!(output.status.success() && output.stdout == files[files.len() - 1]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(json["digest"].as_str().unwrap()), "{said}");
    }

    assert_eq!(digests[0], digests[1]);
    assert!(!files[0].is_empty() && files[0] == files[1]);
}

#[test]
fn a_canonical_file_is_read_back_and_damage_is_told_with_its_place() {
    let store = Store::new();
    let place = Place::new();
    let file = place.path("late.canonical");
    let new = place.path("new");
    let exported = snapshot(&store.dir(), &["export", "late", "--canonical", text(&file)]).done();
    let arguments = ["import", "--canonical", text(&file), "--as", "back", "--label", "mine"];
    let imported = snapshot(&new, &arguments).done();

    for field in ["count", "digest", "bytes"] {
        assert_eq!(imported[field], exported[field], "{field}");
    }

    assert_eq!((&imported["as"], &imported["label"]), (&"back".into(), &"mine".into()));
    assert_eq!(digest(&new, "back"), exported["digest"].as_str().unwrap());
    let copy = tempfile::tempdir().unwrap();
    copy_tree(&new, copy.path());
    let session = Session::open_dir(copy.path(), &SessionOptions::default()).unwrap();
    session.open_snapshot(&SnapshotName::new("back").unwrap(), "mine").unwrap();
    drop(session);
    let message = snapshot(&new, &arguments).failed(2);
    assert!(message.contains("`back` exists already"), "{message}");

    // From standard input.
    let mut child = command();
    child.args(["snapshot", "import", "--canonical", "-", "--as", "piped", "--json", "--store"]);
    let mut child = child.arg(&new).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&std::fs::read(&file).unwrap()).unwrap();
    let answer = child.wait_with_output().unwrap();
    let json: Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!(json["digest"], exported["digest"]);

    edit(&file, |bytes| bytes.truncate(3_000));
    let cut = ["import", "--canonical", text(&file), "--as", "cut"];
    let message = snapshot(&new, &cut).failed(2);
    assert!(
        message.contains("late.canonical: byte 3000") && message.contains("early"),
        "{message}"
    );
    let other = place.write("letters", b"dear reader");
    let message = snapshot(&new, &["import", "--canonical", text(&other), "--as", "cut"]).failed(2);
    assert!(message.contains("letters: byte 0"), "{message}");
    std::fs::remove_file(&file).unwrap();
    let message = snapshot(&place.path("none"), &cut).failed(2);
    assert!(message.contains("late.canonical"), "{message}");
    assert!(!place.path("none").exists());
    let folder = ["import", "--canonical", text(&new), "--as", "cut"];
    let message = snapshot(&new, &folder).failed(2);
    assert!(message.contains("new is a directory"), "{message}");
    assert_eq!(names(&new), ["back", "piped"]);
    // A byte of a value: only the digest tells.
    snapshot(&store.dir(), &["export", "late", "--canonical", text(&file)]).done();
    edit(&file, |bytes| bytes[60] ^= 1);
    let message = snapshot(&new, &cut).failed(1);
    assert!(message.contains("late.canonical: ") && message.contains("digest"), "{message}");
    // An error of the store does not name the file.
    let taken = ["import", "--canonical", text(&file), "--as", "back"];
    let message = snapshot(&new, &taken).failed(2);
    assert!(!message.contains("late.canonical"), "{message}");
}

/// The store that was made for an import stayed behind, empty, when the import failed.
#[test]
fn a_failed_import_leaves_nothing_of_the_store_that_was_made_for_it() {
    let store = Store::new();
    let place = Place::new();
    let backup = place.path("deep/down/backup");
    let file = place.path("late.canonical");
    snapshot(&store.dir(), &["export", "late", "--to", text(&backup)]).done();
    snapshot(&store.dir(), &["export", "late", "--canonical", text(&file)]).done();
    edit(&file, |bytes| bytes.truncate(50_000));
    let runs = std::fs::read_dir(backup.join("active")).unwrap();
    let run =
        runs.map(|entry| entry.unwrap().path()).max_by_key(|path| path.metadata().unwrap().len());
    flip(&run.unwrap(), 5_000);
    let missing = place.path("some/new/store");
    let empty = place.path("empty");
    std::fs::create_dir(&empty).unwrap();

    for (arguments, code) in [
        (&["import", "late", "--from", text(&backup)][..], 1),
        (&["import", "none", "--from", text(&backup)], 2),
        (&["import", "--canonical", text(&file), "--as", "cut"], 2),
    ] {
        for new in [&missing, &empty] {
            snapshot(new, arguments).failed(code);
        }
        assert!(!place.path("some").exists(), "{arguments:?}");
        assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0, "{arguments:?}");
    }

    // A store that was there stays, with all that it has.
    snapshot(&store.dir(), &["import", "--canonical", text(&file), "--as", "cut"]).failed(2);
    assert_eq!(names(&store.dir()), NAMES);
    // Nor is the way to a new store made for a snapshot that is not there.
    snapshot(&store.dir(), &["export", "none", "--to", text(&missing)]).failed(2);
    assert!(!place.path("some").exists());
}

fn copy_tree(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-r").arg(from.join(".")).arg(to).status();
    assert!(status.unwrap().success());
}

/// An export to a standard output that nobody reads from.
fn export_to_silence(store: &Store) -> Child {
    let mut child = command();
    child.args(["snapshot", "export", "late", "--canonical", "-", "--store"]).arg(store.dir());
    child.stdout(Stdio::piped()).stderr(Stdio::piped());
    child.spawn().unwrap()
}

/// The reader does not read on, and the user loses patience. The first signal only set a flag,
/// which nobody looks at who waits for a pipe.
#[test]
fn ctrl_c_ends_an_export_to_standard_output() {
    let store = Store::new();
    let mut child = export_to_silence(&store);
    // From here on the program listens to signals; more than a pipe holds is to be written.
    let mut first = [0];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut first).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(names(&store.dir()), NAMES);
}

/// Like `terrane snapshot export late --canonical - | head -c 10`.
#[test]
fn a_reader_of_an_export_that_goes_away_is_no_error() {
    let store = Store::new();
    let mut child = export_to_silence(&store);
    let mut head = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut head).unwrap();
    assert!(head.starts_with(b"TerraCan"));
    let answer: Answer = child.wait_with_output().unwrap().into();
    assert_eq!((answer.code, answer.stderr.as_str()), (Some(0), ""));
    // Where no reader can go away, what stands for it says which file it is.
    let message = snapshot(&store.dir(), &["export", "late", "--canonical", "/dev/full"]).failed(3);
    assert!(message.contains("/dev/full"), "{message}");
}

#[test]
fn a_file_is_replaced_only_by_force_and_only_by_a_whole_one() {
    let store = Store::new();
    let place = Place::new();
    let file = place.write("file", b"precious");
    let export = |more: &[&str]| {
        let arguments = [&["export", "late", "--canonical", text(&file)], more].concat();
        snapshot(&store.dir(), &arguments)
    };
    let message = export(&[]).failed(2);
    assert!(message.contains("--force"), "{message}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let message =
        snapshot(&store.dir(), &["export", "none", "--canonical", text(&file), "--force"])
            .failed(2);
    assert!(message.contains("`none` does not exist"), "{message}");
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    export(&["--force"]).done();
    let whole = std::fs::read(&file).unwrap();
    assert!(whole.starts_with(b"TerraCan"));
    // Through a symbolic link, the file that it leads to.
    let link = place.path("link");
    let stranger = place.write("file.tmp", b"not ours");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    std::fs::write(&file, b"precious").unwrap();
    snapshot(&store.dir(), &["export", "late", "--canonical", text(&link), "--force"]).done();
    assert!(link.is_symlink() && std::fs::read(&file).unwrap() == whole);
    // Damage in the store ends an export, and leaves what was there.
    flip(&store.run().path, 5_000);
    export(&["--force"]).failed(1);
    assert!(std::fs::read(&file).unwrap() == whole);
    let fresh = place.path("fresh");
    snapshot(&store.dir(), &["export", "late", "--canonical", text(&fresh)]).failed(1);
    assert!(!fresh.exists());
    let mut left: Vec<_> = std::fs::read_dir(place.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["file", "file.tmp", "link"]);
    // A file of a stranger that has the name which the new file once had while it was written.
    assert_eq!(std::fs::read(&stranger).unwrap(), b"not ours");
    // A link that leads nowhere is not followed.
    let nowhere = place.path("nowhere");
    std::os::unix::fs::symlink(place.path("absent"), &nowhere).unwrap();

    for more in [&[][..], &["--force"]] {
        let arguments = [&["export", "late", "--canonical", text(&nowhere)], more].concat();
        let message = snapshot(&store.dir(), &arguments).failed(2);
        assert!(message.contains("a link to a missing file"), "{message}");
    }

    assert!(!place.path("absent").exists());
    let message = snapshot(&store.dir(), &["export", "late", "--canonical", text(&place.path(""))]);
    message.failed(2);
    snapshot(&store.dir(), &["export", "late", "--canonical", "-"]).failed(2);
}
