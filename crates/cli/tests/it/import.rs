//! `terrane import` from sorted text, from the text of `mdb_dump`, and from LMDB.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::program::{Answer, Place, call, command, text};

/// Standard output of `terrane scan`.
fn scan(store: &Path, table: &str) -> String {
    let output = command().args(["scan", "--table", table, "--store"]).arg(store).output().unwrap();
    let answer = Answer::from(output);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    answer.stdout
}

fn sorted(store: &Path, file: &Path, more: &[&str]) -> Answer {
    call(store, &[&["import", "--from-sorted", text(file)], more].concat())
}

fn dumped(store: &Path, file: &Path) -> Answer {
    call(store, &["import", "--table", "dumped", "--from-mdb-dump", text(file)])
}

/// Lines of the format of `scan` with the keys of a range.
fn lines(keys: std::ops::Range<u32>) -> String {
    keys.fold(String::new(), |mut lines, key| {
        writeln!(lines, "key {key:05}\tvalue of {key}").unwrap();
        lines
    })
}

fn snapshots(store: &Path) -> Vec<String> {
    let report = call(store, &["snapshot", "list"]).done();
    let listed = report["snapshots"].as_array().unwrap().iter();
    listed.map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
}

/// All files below a directory, with their content, but for the leases of readers.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.ends_with("readers") {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let content = fs::read(&path).unwrap();
            found.push((path, content));
        }
    }
    found.sort();
    found
}

#[test]
fn the_lines_of_a_scan_become_the_same_table() {
    let place = Place::new();
    let store = place.store();
    let written =
        "\tempty key\nalice\t100\nhex:00ff\thex:6865783a3030\tblob\nhex:0a\t\nzoe\tvalue\thex:00\n";
    let input = place.write("lines", written.as_bytes());
    call(&store, &["put", "--create", "--input", text(&input)]).done();
    let scanned = scan(&store, "main");
    let file = place.write("scanned", scanned.as_bytes());

    let copy = place.path("new/copy");
    let report = sorted(&copy, &file, &["--table", "accounts", "--quiet"]).done();
    assert_eq!(scan(&copy, "accounts"), scanned);
    assert_eq!(call(&copy, &["count", "--table", "accounts"]).done()["count"], 5);
    assert_eq!(report["command"], "import");
    assert_eq!(
        (&report["table"], &report["replaced"], &report["entries"], &report["bytes"]),
        (&json!("accounts"), &json!(false), &json!(5), &json!(39))
    );
    assert_eq!((&report["portions"], &report["resumed_entries"]), (&json!(0), &json!(0)));
    assert!(report["wall_s"].is_number());
    assert_eq!(snapshots(&copy), [""; 0]);

    // An empty source is an empty table.
    let empty = place.write("empty", b"");
    assert_eq!(sorted(&copy, &empty, &["--table", "none"]).done()["entries"], 0);
    assert_eq!(scan(&copy, "none"), "");
    let verified = command().args(["verify", "--json"]).arg(&copy).output().unwrap();
    Answer::from(verified).done();
}

#[test]
fn a_dump_is_read_in_both_notations() {
    let place = Place::new();
    let store = place.store();
    let header = "mapsize=1048576\nmaxreaders=126\ndb_pagesize=4096\nHEADER=END\n";
    let print = format!(
        "VERSION=3\nformat=print\ndatabase=accounts\ntype=btree\n{header} \\00\\ff\n a\\5cb\n alice\n \
         100 and more\n bob\n \nDATA=END\n"
    );
    let values = format!(
        "VERSION=3\nformat=bytevalue\ntype=btree\n{header} 00FF\n 615c62\n 616c696365\n \
         31303020616e64206d6f7265\n 626f62\n \nDATA=END\n"
    );
    let expected = "hex:00ff\ta\\b\nalice\t100 and more\nbob\t\n";

    for (name, dump) in [("print", print), ("values", values)] {
        let file = place.write(name, dump.as_bytes());
        let arguments = ["import", "--table", name, "--from-mdb-dump", text(&file)];
        assert_eq!(call(&store, &arguments).done()["entries"], 3);
        assert_eq!(scan(&store, name), expected);
    }
}

#[test]
fn a_bad_dump_is_refused_and_nothing_is_made() {
    let place = Place::new();
    let start = "VERSION=3\nformat=print\ntype=btree\nHEADER=END\n";
    for (dump, reason) in [
        (String::new(), "line 0: no dump"),
        ("VERSION=2\n".to_owned(), "line 1: no dump"),
        ("VERSION=3\ntype=btree\nHEADER=END\nDATA=END\n".to_owned(), "line 3: the header has no"),
        ("VERSION=3\nformat=print\n".to_owned(), "line 2: the header has no `HEADER=END`"),
        ("VERSION=3\nformat=hex\n".to_owned(), "format `hex`"),
        ("VERSION=3\ntype=hash\n".to_owned(), "type `hash`"),
        ("VERSION=3\nduplicates=1\n".to_owned(), "flag `duplicates`"),
        ("VERSION=3\ndupsort=1\n".to_owned(), "flag `dupsort`"),
        ("VERSION=3\nintegerkey=1\n".to_owned(), "flag `integerkey`"),
        ("VERSION=3\nnothing\n".to_owned(), "`nothing` in the header"),
        (format!("{start} a\n 1\n"), "line 6: no `DATA=END` follows: the dump is cut here"),
        (format!("{start} a\n 1"), "line 6: the line has no end"),
        (format!("{start} a\nDATA=END\n"), "line 6: the last key has no value"),
        (format!("{start}a\n 1\nDATA=END\n"), "line 5: neither a space"),
        (format!("{start} \\0\n 1\nDATA=END\n"), "line 5: `\\` without"),
        (format!("{start} b\n 1\n a\n 2\nDATA=END\n"), "line 8: the key `a` is not above `b`"),
        (format!("{start} a\n 1\n a\n 2\nDATA=END\n"), "line 8: the key `a` is not above `a`"),
        (format!("{start}DATA=END\n{start}"), "line 6: a second database"),
    ] {
        let file = place.write("dump", dump.as_bytes());
        let message = dumped(&place.store(), &file).failed(2);
        assert!(message.contains(reason), "{message}");
        assert!(!place.store().exists(), "{reason}");
    }
}

#[test]
fn disorder_and_what_is_no_line_are_refused_by_the_number_of_the_line() {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "k", "v", "--create"]).done();
    let before = files(&store);

    let long_key = format!("{}\tvalue\n", "k".repeat(4_001));
    for (written, reason) in [
        ("a\t1\nc\t2\nb\t3\n", "line 3: the key `b` is not above `c`"),
        ("a\t1\na\t1\n", "line 2: the key `a` is not above `a`"),
        ("a\t1\nb\n", "line 2: not key, tab and value"),
        ("a\t1\t2\t3\n", "line 1: not key"),
        ("a\thex:0\n", "line 1: `hex:0`"),
        ("a\t1\nb\t2", "line 2: the line has no end"),
        (&long_key, "line 1: a key of 4001 bytes"),
    ] {
        let file = place.write("lines", written.as_bytes());
        let message = sorted(&store, &file, &["--table", "new"]).failed(2);
        assert!(message.contains(reason), "{message}");
        assert_eq!(files(&store), before, "{reason}");

        // A directory that was empty is empty again, one that was missing is missing.
        let empty = place.path("empty");
        fs::create_dir_all(&empty).unwrap();
        sorted(&empty, &file, &[]).failed(2);
        sorted(&place.path("missing"), &file, &[]).failed(2);
        assert!(files(&empty).is_empty() && !place.path("missing").exists());
    }

    let file = place.write("lines", b"a\t1234\n");
    let message = sorted(&store, &file, &["--table", "new", "--line-max", "4"]).failed(2);
    assert!(message.contains("line 1: longer than 4 bytes"), "{message}");
    sorted(&store, &place.path("absent"), &["--table", "new"]).failed(2);
    call(&store, &["import", "--table", "new"]).failed(2);
    sorted(&store, &file, &["--table", "new", "--database", "accounts"]).failed(2);
    assert_eq!(files(&store), before);
}

#[test]
fn bad_input_behind_the_first_batch_leaves_no_new_store() {
    let place = Place::new();
    let value = "v".repeat(1_000);
    let mut written = (0..1_500).fold(String::new(), |mut lines, key| {
        writeln!(lines, "key {key:05}\t{value}").unwrap();
        lines
    });
    written.push_str("key 00000\tagain\n");
    let file = place.write("lines", written.as_bytes());

    let message = sorted(&place.store(), &file, &[]).failed(2);
    assert!(message.contains("line 1501: "), "{message}");
    assert!(!place.store().exists());
    let empty = place.path("empty");
    fs::create_dir_all(&empty).unwrap();
    sorted(&empty, &file, &[]).failed(2);
    assert!(fs::read_dir(&empty).unwrap().next().is_none());
}

#[test]
fn an_existing_table_stays_unless_it_is_replaced() {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "old", "1", "--create"]).done();
    let before = files(&store);
    let file = place.write("lines", lines(0..3).as_bytes());

    let message = sorted(&store, &file, &[]).failed(2);
    assert!(message.contains("exists already") && message.contains("--replace"), "{message}");
    assert_eq!(files(&store), before);

    assert_eq!(sorted(&store, &file, &["--replace"]).done()["replaced"], true);
    assert_eq!(scan(&store, "main"), lines(0..3));
    let report = sorted(&store, &file, &["--replace", "--table", "new"]).done();
    assert_eq!(report["replaced"], false);
    assert_eq!(scan(&store, "new"), lines(0..3));
}

#[test]
fn an_import_goes_on_behind_its_portions() {
    let place = Place::new();
    let store = place.store();
    let whole = lines(0..47);
    let cut = &lines(0..33)[..lines(0..33).len() - 4];
    let portion = ["--portion", "10"];

    let file = place.write("lines", cut.as_bytes());
    let message = sorted(&store, &file, &portion).failed(1);
    assert!(message.contains("line 33: the line has no end"), "{message}");
    assert!(message.contains("import-main-1 to import-main-3 are kept"), "{message}");
    assert!(message.contains("the same command goes on behind them"), "{message}");
    assert_eq!(snapshots(&store), ["import-main-1", "import-main-2", "import-main-3"]);
    call(&store, &["count"]).failed(2);

    // No new portion, so nothing has changed.
    let before = files(&store);
    sorted(&store, &file, &portion).failed(2);
    assert_eq!(files(&store), before);

    // Another source, and the same one with a change in the second portion.
    let other = place.write("other", whole.as_bytes());
    let message = sorted(&store, &other, &portion).failed(2);
    assert!(message.contains("import-main-1 is a portion of an import"), "{message}");
    for changed in [whole.replace("value of 17", "value of XX"), lines(0..20), lines(1..47)] {
        place.write("lines", changed.as_bytes());
        let message = sorted(&store, &file, &portion).failed(2);
        assert!(message.contains("the source has changed"), "{message}");
        assert!(message.contains("next: terrane snapshot delete import-main-"), "{message}");
    }
    assert_eq!(files(&store), before);

    place.write("lines", whole.as_bytes());
    let report = sorted(&store, &file, &portion).done();
    assert_eq!((&report["entries"], &report["resumed_entries"]), (&json!(47), &json!(30)));
    assert_eq!(report["portions"], 4);
    assert_eq!(scan(&store, "main"), whole);
    assert_eq!(snapshots(&store), [""; 0]);
}

#[test]
fn a_source_of_one_whole_portion_needs_no_snapshot() {
    let place = Place::new();
    let file = place.write("lines", lines(0..10).as_bytes());
    for (portion, portions) in [("10", 0), ("9", 1), ("5", 1), ("1", 9)] {
        let store = place.path(portion);
        let report = sorted(&store, &file, &["--portion", portion]).done();
        assert_eq!((&report["portions"], &report["entries"]), (&json!(portions), &json!(10)));
        assert_eq!(scan(&store, "main"), lines(0..10));
        assert_eq!(snapshots(&store), [""; 0]);
    }
}

#[test]
fn a_snapshot_of_the_name_of_a_portion_is_left_alone() {
    let place = Place::new();
    let store = place.store();
    call(&store, &["put", "k", "v", "--create"]).done();
    call(&store, &["snapshot", "save", "import-new-1", "--table", "main"]).done();
    let before = files(&store);
    let file = place.write("lines", lines(0..3).as_bytes());
    let message = sorted(&store, &file, &["--table", "new"]).failed(2);
    assert!(message.contains("next: terrane snapshot rename import-new-1"), "{message}");
    assert_eq!(files(&store), before);
}

/// Writes further lines; returns `false` if the process reads no more.
fn feed(child: &mut Child, written: &mut String, count: &mut u32) -> bool {
    let line = format!("key {count:08}\t{}\n", "v".repeat(200));
    *count += 1;
    written.push_str(&line);
    child.stdin.as_mut().unwrap().write_all(line.as_bytes()).is_ok()
}

#[test]
fn an_interrupted_import_keeps_its_portions_and_goes_on() {
    let place = Place::new();
    let store = place.store();
    let import = || {
        let mut command = command();
        command.args(["import", "--from-sorted", "-", "--portion", "200", "--json", "--store"]);
        command.arg(&store).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };

    let mut child = import();
    let mut written = String::new();
    let mut count = 0;
    let portion = store.join("snapshots/import-main-1.snapshot");
    while !portion.exists() {
        assert!(count < 1_000_000, "a portion is saved");
        assert!(feed(&mut child, &mut written, &mut count), "the process reads on");
    }
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    while feed(&mut child, &mut written, &mut count) {}
    let answer = Answer::from(child.wait_with_output().unwrap());
    let message = answer.failed(130);
    assert!(message.contains("import-main-1"), "{message}");
    assert!(message.contains("the same command goes on behind"), "{message}");
    call(&store, &["count"]).failed(2);

    let mut child = import();
    child.stdin.take().unwrap().write_all(written.as_bytes()).unwrap();
    let report = Answer::from(child.wait_with_output().unwrap()).done();
    assert_eq!(report["entries"], count);
    let resumed = report["resumed_entries"].as_u64().unwrap();
    assert!(resumed >= 200 && resumed % 200 == 0, "{resumed}");
    assert_eq!(scan(&store, "main"), written);
}

#[cfg(feature = "lmdb")]
mod from_lmdb {
    use terrane_lmdb::{Environment, EnvironmentAccess, EnvironmentOptions, Lmdb, SyncMode};

    use super::*;

    /// Keys and values of a database.
    type Pairs<'a> = &'a [(&'a [u8], &'a [u8])];

    /// Makes an environment with databases of these entries.
    fn environment(path: &Path, directory: bool, databases: &[(&str, Pairs<'_>)]) {
        let options = EnvironmentOptions {
            access: EnvironmentAccess::Write,
            map_bytes: 1 << 20,
            readers_max: 16,
            tables_max: 4,
            directory,
            read_ahead: true,
            write_map: false,
            sync: SyncMode::Full,
        };
        let environment = Environment::open(path, &options).unwrap();
        let mut transaction = environment.transaction().unwrap();
        for (name, entries) in databases {
            let table = transaction.table(name).unwrap();
            for (key, value) in *entries {
                transaction.put(table, key, value).unwrap();
            }
        }
        transaction.commit().unwrap();
    }

    fn import(store: &Path, from: &Path, more: &[&str]) -> Answer {
        call(store, &[&["import", "--from-lmdb", text(from)], more].concat())
    }

    #[test]
    fn the_main_database_is_imported_in_several_pages() {
        let place = Place::new();
        let dir = place.path("lmdb");
        fs::create_dir(&dir).unwrap();
        // Values of 48 bytes look like the records of databases.
        let entries: Vec<(String, String)> =
            (0..2_500).map(|key| (format!("key {key:05}"), format!("{key:048}"))).collect();
        let lmdb = Lmdb::open(&dir).unwrap();
        lmdb.append(entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes()))).unwrap();
        lmdb.flush().unwrap();
        drop(lmdb);
        let data = fs::read(dir.join("data.mdb")).unwrap();

        let report = import(&place.store(), &dir, &["--portion", "1000"]).done();
        assert_eq!((&report["entries"], &report["portions"]), (&json!(2_500), &json!(2)));
        let expected: Vec<String> =
            entries.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
        assert_eq!(scan(&place.store(), "main"), expected.concat());
        assert!(fs::read(dir.join("data.mdb")).unwrap() == data, "the source is only read");
    }

    #[test]
    fn a_named_database_is_imported_from_a_directory_or_a_file() {
        let place = Place::new();
        let store = place.store();
        let accounts: Pairs<'_> = &[(b"alice", b"100"), (b"\x00\xFF", b"a\\b")];
        let databases = [("accounts", accounts), ("other", &[])];
        let dir = place.path("lmdb");
        fs::create_dir(&dir).unwrap();
        environment(&dir, true, &databases);
        let file = place.path("file.mdb");
        environment(&file, false, &databases);

        for (table, from) in [("dir", &dir), ("file", &file)] {
            let arguments = ["--database", "accounts", "--table", table];
            assert_eq!(import(&store, from, &arguments).done()["entries"], 2);
            assert_eq!(scan(&store, table), "hex:00ff\ta\\b\nalice\t100\n");
        }

        let before = files(&store);
        for (from, arguments, reason) in [
            (&dir, &["--table", "new"][..], "has a database `accounts`; next: "),
            (&dir, &["--table", "new", "--database", "absent"], "no database `absent`"),
            (&place.path("absent"), &["--table", "new"], "does not exist"),
            (&store, &["--table", "new"], "does not exist"),
        ] {
            let message = import(&store, from, arguments).failed(2);
            assert!(message.contains(reason), "{message}");
        }
        let noise = place.write("noise", &[7; 10_000]);
        import(&store, &noise, &["--table", "new"]).failed(2);
        assert_eq!(files(&store), before);
    }
}

#[cfg(not(feature = "lmdb"))]
#[test]
fn a_program_without_lmdb_says_so() {
    let place = Place::new();
    let message = call(&place.store(), &["import", "--from-lmdb", "dir"]).failed(2);
    assert!(message.contains("built without lmdb"), "{message}");
}
