//! Radix stores: replays with checked roots, the commands on stores, verify and inspect, and the
//! benchmark.

use std::path::Path;

use serde_json::{Value, json};
use terrane::kv::{Durability, Table};
use terrane::radix::{Change, Root, VERSIONS};
use terrane::state_dir::{BackEnd, OpenOptions, OpenStore, database_path};

use crate::program::{Answer, Place, command, text};
use crate::schema::{faults, schema};

/// The root of `abcd` = `data_value`.
const ROOT: &str = "4c5116ae4e7439e4355ac190cc595225259142c42fd9d19a88dc14c48653d870";
const EMPTY: &str = "708ca7fbb701799bb387f2e50deaca402e8502abe229f705693d2d4f350e1ad6";

fn with_files() -> impl Iterator<Item = &'static str> {
    let built = BackEnd::ALL.into_iter().filter(|one| one.has_files() && one.is_built());
    built.map(BackEnd::name)
}

/// Two blocks, a rollback, and the roots on the way.
fn history() -> String {
    format!(
        "terrane-changes 1\nexpect root.radix={EMPTY}\n\
         begin 1\nput abcd 646174615f76616c7565\nend count=1 root.radix={ROOT} root.other=00\n\
         begin 2\nget abcd 646174615f76616c7565\nput 00ff 01\ndel abcd\nend count=1\n\
         rollback 1\nexpect root.radix={ROOT}\n\
         begin 5\nput 00ff 02\nend\nbegin 6\ndel 00ff\nend root.radix={ROOT}\n"
    )
}

fn replay(place: &Place, arguments: &[&str]) -> Answer {
    let arguments = [arguments, &["--engine", "radix"]].concat();
    place.replay("changes", &arguments)
}

fn call(name: &str, store: &Path, arguments: &[&str]) -> Answer {
    let mut call = command();
    call.args(["radix", name, "--json", "--store"]).arg(store).args(arguments);
    call.output().unwrap().into()
}

fn on_dir(name: &str, dir: &Path) -> Answer {
    command().args([name, "--json"]).arg(dir).output().unwrap().into()
}

fn open(back_end: &str, dir: &Path) -> OpenStore {
    let back_end = BackEnd::named(back_end);
    let durability = Durability::None;
    OpenOptions::default().back_end(back_end).durability(durability).open_or_create(dir).unwrap()
}

fn check_replay(found: &Value, back_end: &str) {
    let expected = json!({
        "engine": "radix", "blocks": 4, "height": 6, "puts": 3, "deletes": 2, "gets": 1,
        "rollbacks": 1, "checks_passed": 7, "count": 1, "roots": {"radix": ROOT},
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&found[name], value, "{back_end}: {name}");
    }
}

#[test]
fn a_history_is_replayed_on_every_back_end_with_its_roots_checked() {
    for back_end in with_files() {
        let place = Place::new();
        let file = place.write("history", history().as_bytes());
        let found = replay(&place, &[text(&file), "--backend", back_end]).done();
        check_replay(&found, back_end);
        assert!(found["store_bytes"].as_u64() > Some(0));

        // A store that is not empty is gone on with only if that is asked for.
        let message = replay(&place, &[text(&file)]).failed(2);
        assert!(message.contains("already at block 6"), "{message}");
        let longer = history() + "begin 7\nput 01 01\nend\nrollback 5\nexpect count=2\n";
        let longer = place.write("longer", longer.as_bytes());
        let found = replay(&place, &[text(&longer), "--resume"]).done();
        assert_eq!((&found["blocks"], &found["height"]), (&json!(1), &json!(5)), "{back_end}");

        let other = if back_end == "lsm" { "btree" } else { "lsm" };
        let message = replay(&place, &[text(&file), "--resume", "--backend", other]).failed(2);
        assert!(message.contains(&format!("{back_end}, not {other}")), "{message}");

        let checked = on_dir("verify", &place.store()).done();
        assert_eq!((&checked["backend"], &checked["problems"]), (&json!(back_end), &json!([])));
        assert!(checked["trees"] == 1 && checked["versions"] == 2, "{checked}");
        assert!(checked["nodes"].as_u64() > Some(3) && checked["left"] == 0, "{checked}");
        let message = call("prune", &place.store(), &["--depth", "0"]).failed(2);
        assert!(message.contains("--keep-versions"), "{message}");
    }
}

#[test]
fn memory_replays_without_a_store() {
    let place = Place::new();
    let file = place.write("history", history().as_bytes());
    let answer = replay(&place, &[text(&file), "--backend", "memory"]);
    check_replay(&answer.done(), "memory");
    assert!(answer.stderr.contains("keeps nothing"), "{answer:?}");
    assert!(!place.store().exists());
    let each = ["--backend", "memory", "--durability", "each"];
    let message = replay(&place, &[&[text(&file)][..], &each].concat()).failed(2);
    assert!(message.contains("memory keeps nothing"), "{message}");
}

/// A server without a log of its own, where one can be started.
#[cfg(feature = "redis")]
fn server(place: &Place) -> Option<terrane::backends::redis::server::Server> {
    server_with(place, &[])
}

#[cfg(feature = "redis")]
fn server_with(
    place: &Place,
    arguments: &[&str],
) -> Option<terrane::backends::redis::server::Server> {
    use terrane::backends::redis::server::{Server, is_installed};
    if !is_installed() {
        println!("skipped: redis-server is not installed");
        return None;
    }
    let dir = place.path("server");
    std::fs::create_dir(&dir).unwrap();
    Some(Server::start(&dir, &[&["--appendonly", "no"], arguments].concat()).unwrap())
}

/// Result of a command with a variable in its environment.
#[cfg(feature = "redis")]
fn with_variable(variable: (&str, &str), arguments: &[&str]) -> Answer {
    command().env(variable.0, variable.1).args(arguments).arg("--json").output().unwrap().into()
}

#[cfg(feature = "redis")]
#[test]
fn redis_keeps_a_store_whose_directory_says_where_it_is() {
    let place = Place::new();
    let file = place.write("history", history().as_bytes());
    let Some(server) = server(&place) else { return };

    let message = replay(&place, &[text(&file), "--backend", "redis"]).failed(2);
    assert!(message.contains("--redis-url"), "{message}");
    let url = server.url();
    let at = ["--backend", "redis", "--redis-url", &url];
    // The server does not give what is asked for by default.
    replay(&place, &[&[text(&file)][..], &at].concat()).failed(2);
    let none = ["--durability", "none"];
    let found = replay(&place, &[&[text(&file)][..], &at, &none].concat()).done();
    check_replay(&found, "redis");
    assert_eq!(on_dir("verify", &place.store()).done()["left"], 0);
    let shown = on_dir("inspect", &place.store()).done();
    assert_eq!(shown["redis_urls"], json!([url]));
    assert_eq!(shown["state"]["trees"][0]["newest_root"], ROOT);
    let found = call("get", &place.store(), &["abcd"]).done();
    assert_eq!(found["values"][0]["found"], true);
}

#[cfg(feature = "redis")]
#[test]
fn a_password_for_redis_is_given_to_each_command_and_written_nowhere() {
    let place = Place::new();
    let file = place.write("history", history().as_bytes());
    let Some(server) = server(&place) else { return };

    server.command(&["ACL", "SETUSER", "ledger", "on", ">s3cret", "~*", "+@all"]).unwrap();
    server.command(&["ACL", "SETUSER", "default", "off"]).unwrap();
    let url = server.url().replace("//", "//ledger:s3cret@");
    let at = ["--redis-url", &url];
    let made = ["--backend", "redis", "--durability", "none"];
    replay(&place, &[&[text(&file)][..], &at, &made].concat()).done();
    let dir = place.store();

    for file in std::fs::read_dir(&dir).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("s3cret"));
    }

    for name in ["verify", "inspect"] {
        let answer = on_dir(name, &dir);
        assert_eq!(answer.code, Some(3), "{answer:?}");
        let answer: Answer =
            command().args([name, "--json"]).args(at).arg(&dir).output().unwrap().into();
        answer.done();
        assert!(!format!("{answer:?}").contains("s3cret"), "{answer:?}");
    }

    call("trees", &dir, &at).done();
}

#[cfg(feature = "redis")]
#[test]
fn a_password_for_redis_comes_from_a_file_or_a_variable() {
    let place = Place::new();
    let history = place.write("history", history().as_bytes());
    let Some(server) = server_with(&place, &["--requirepass", "s3cret"]) else { return };

    let right = place.write("right", b"s3cret\n");
    let wrong = place.write("wrong", b"wr0ng\n");
    let url = server.url();
    let made = [text(&history), "--backend", "redis", "--durability", "none", "--redis-url", &url];
    let from_file = |path| ["--redis-password-file", path];
    let message = replay(&place, &[&made[..], &from_file(text(&wrong))].concat()).failed(3);
    assert!(!message.contains("wr0ng"), "{message}");
    let found = replay(&place, &[&made[..], &from_file(text(&right))].concat()).done();
    check_replay(&found, "redis");
    let store = place.store();
    let verify = ["verify", text(&store)];
    let variable = "TERRANE_REDIS_PASSWORD";
    assert_eq!(with_variable((variable, "s3cret"), &verify).done()["left"], 0);
    let message = with_variable((variable, "wr0ng"), &verify).failed(3);
    assert!(!message.contains("wr0ng"), "{message}");
    // The file goes before the variable.
    let both = [&verify[..], &from_file(text(&right))].concat();
    with_variable((variable, "wr0ng"), &both).done();
}

#[cfg(feature = "redis-tls")]
#[test]
fn redis_over_tls_trusts_the_file_that_the_variable_names() {
    let place = Place::new();
    let history = place.write("history", history().as_bytes());
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backends/tests/it/redis/tls");
    let made = |name: &str| made.join(name).to_str().unwrap().to_owned();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let arguments = [
        ["--tls-port", &port.to_string()],
        ["--tls-cert-file", &made("server.pem")],
        ["--tls-key-file", &made("server.key")],
        ["--tls-ca-cert-file", &made("ca.pem")],
        ["--tls-auth-clients", "no"],
        ["--requirepass", "s3cret"],
    ];
    let Some(_server) = server_with(&place, arguments.as_flattened()) else { return };

    let url = format!("rediss://:s3cret@127.0.0.1:{port}/");
    let store = place.store();
    let head = ["replay", "changes", "--engine", "radix", "--store", text(&store), text(&history)];
    let at = ["--backend", "redis", "--durability", "none", "--redis-url", &url];
    let replay = [&head[..], &at].concat();
    let trusting = |name: &str| with_variable(("SSL_CERT_FILE", &made(name)), &replay);
    let message = trusting("other-ca.pem").failed(3);
    assert!(!message.contains("s3cret"), "{message}");
    check_replay(&trusting("ca.pem").done(), "redis");
}

#[test]
fn what_a_replay_cannot_do_names_line_and_reason() {
    let place = Place::new();
    let mut number = 0;
    let mut refused = |lines: &str, code: i32, arguments: &[&str], parts: &[&str]| {
        number += 1;
        let file =
            place.write(&format!("h{number}"), format!("terrane-changes 1\n{lines}").as_bytes());
        let arguments = [&[text(&file), "--backend", "memory"][..], arguments].concat();
        let message = replay(&place, &arguments).failed(code);
        for part in parts {
            assert!(message.contains(part), "{message}");
        }
    };
    let long = "ab".repeat(36);
    refused(&format!("begin 1\nput {long} 00\nend\n"), 2, &[], &["line 3", "36 bytes"]);
    refused("begin 1\nput - 00\nend\n", 2, &[], &["line 3", "at least 1"]);
    refused(
        &format!("begin 1\nput abcd 00\nend root.radix={ROOT}\n"),
        1,
        &[],
        &["line 4", "block 1", "root.radix", ROOT, "found"],
    );
    let blocks = "begin 1\nput aa 01\nend\nbegin 2\nput aa 02\nend\nbegin 3\nput aa 03\nend\n";
    refused(
        &format!("{blocks}rollback 1\n"),
        2,
        &["--keep-versions", "2"],
        &["line 11", "the oldest block kept is 2"],
    );
    let file = place.write("plain", b"terrane-changes 1\n");

    for (option, value) in
        [("--backend", "lsm"), ("--durability", "none"), ("--redis-url", "redis://h")]
    {
        let message = place.replay("changes", &[text(&file), option, value]).failed(2);
        assert!(message.contains(option) && message.contains("radix"), "{message}");
    }
    let message = place.replay("bitcoin", &[text(&file), "--engine", "radix"]).failed(2);
    assert!(message.contains("radix"), "{message}");
    assert!(!place.store().exists());
}

#[test]
fn a_lost_row_and_a_damaged_marker_are_problems() {
    for back_end in with_files() {
        let place = Place::new();
        let dir = place.store();
        let store = open(back_end, &dir);
        let tree = store.create_tree("t").unwrap();
        let change = |text: &str| Change::Set(text.parse().unwrap(), vec![7; 300]);
        tree.commit(&Root::EMPTY, &[change("aabb"), change("aacc"), change("bbbb")]).unwrap();
        let mut writer = store.database().writer().unwrap();
        let lost = {
            let mut cursor = writer.cursor(Table::Main).unwrap();
            cursor.seek_last().unwrap();
            cursor.prev().unwrap().unwrap().0
        };
        writer.delete(Table::Main, &lost).unwrap();
        store.database().settle(writer.commit().unwrap()).unwrap();
        store.close().unwrap();
        drop((store, tree));
        let answer = on_dir("verify", &dir);
        let message = answer.failed(1);
        assert!(message.contains("left"), "{message}");
        let checked = answer.json();
        assert_eq!(
            checked["problems"].as_array().unwrap().len() as u64,
            checked["left"].as_u64().unwrap()
        );
        for problem in checked["problems"].as_array().unwrap() {
            assert!(problem["file"].is_string() && problem["rule"].is_string(), "{problem}");
        }
        let plain: Answer = command().arg("verify").arg(&dir).output().unwrap().into();
        let lines = checked["left"].as_u64().unwrap() as usize + 1;
        assert_eq!((plain.code, plain.stdout.lines().count()), (Some(1), lines), "{plain:?}");

        let marker = dir.join("radix-store");
        let text = std::fs::read_to_string(&marker).unwrap();
        std::fs::write(&marker, text.replace("store 1", "store 2")).unwrap();
        for name in ["verify", "inspect"] {
            let message = on_dir(name, &dir).failed(1);
            assert!(!message.is_empty());
        }
        let message = call("trees", &dir, &[]).failed(1);
        assert!(message.contains("checksum"), "{message}");
        std::fs::write(&marker, text).unwrap();
        let database = database_path(&dir);
        std::fs::rename(&database, place.path("away")).unwrap();
        let message = call("trees", &dir, &[]).failed(1);
        assert!(message.contains("missing"), "{message}");
        on_dir("verify", &dir).failed(1);
        let answer = repair(&dir, &[]);
        answer.failed(1);
        assert_eq!(answer.json()["repair"], Value::Null);
    }
}

fn repair(dir: &Path, arguments: &[&str]) -> Answer {
    let mut repair = command();
    repair.args(["verify", "--json", "--repair"]).args(arguments).arg(dir);
    repair.output().unwrap().into()
}

#[test]
fn a_repair_loses_nothing_unless_that_is_accepted() {
    for back_end in with_files() {
        let place = Place::new();
        let dir = place.store();
        let store = open(back_end, &dir);
        let tree = store.create_tree("t").unwrap();
        let set = |text: &str, byte| Change::Set(text.parse().unwrap(), vec![byte; 300]);
        let first = tree.commit(&Root::EMPTY, &[set("aa", 1), set("bb", 2)]).unwrap().root;
        let before: Vec<Vec<u8>> = keys(&store);
        let second = tree.commit(&first, &[set("bb", 3)]).unwrap().root;
        let value = keys(&store).into_iter().find(|key| !before.contains(key)).unwrap();
        drop(tree);
        let remove = |store: &OpenStore, table, key: &[u8]| {
            let mut writer = store.database().writer().unwrap();
            writer.delete(table, key).unwrap();
            store.database().settle(writer.commit().unwrap()).unwrap();
            store.close().unwrap();
        };
        // Which versions a root has can be told from the versions.
        let root = [&b"r\0\0\0\x01"[..], &first.0].concat();
        remove(&store, Table::Index(VERSIONS), &root);
        drop(store);
        on_dir("verify", &dir).failed(1);
        let repaired = repair(&dir, &[]).done();
        assert!(repaired["repaired"].as_u64() > Some(0), "{repaired}");
        let done = &repaired["repair"];
        assert_eq!((&done["was_refused"], &done["versions"]), (&json!(false), &json!(2)));
        assert_eq!(call("versions", &dir, &[]).done()["versions"].as_array().unwrap().len(), 2);
        // A node cannot.
        let store = open(back_end, &dir);
        remove(&store, Table::Main, &value);
        drop(store);
        let refused = repair(&dir, &[]);
        refused.failed(1);
        let done = &refused.json()["repair"];
        let dropped = json!([{"version": 2, "tree": "t", "root": second.to_string()}]);
        assert_eq!((&done["was_refused"], &done["dropped"]), (&json!(true), &dropped));
        let plain: Answer =
            command().args(["verify", "--repair"]).arg(&dir).output().unwrap().into();
        assert!(plain.stdout.contains("--accept-loss"), "{plain:?}");
        let accepted = repair(&dir, &["--accept-loss"]);
        accepted.failed(1);
        let found = accepted.json();
        assert_eq!((&found["repair"]["dropped"], &found["left"]), (&dropped, &json!(1)));
        assert_eq!(repair(&dir, &["--accept-loss"]).done()["repair"], Value::Null);
        let versions = call("versions", &dir, &[]).done();
        assert_eq!(versions["versions"][0]["root"], first.to_string());
    }
}

/// Keys of the main table.
fn keys(store: &OpenStore) -> Vec<Vec<u8>> {
    let reader = store.database().reader().unwrap();
    let mut cursor = reader.cursor(Table::Main).unwrap();
    std::iter::from_fn(|| cursor.next().unwrap().map(|(key, _)| key)).collect()
}

#[test]
fn inspect_tells_what_a_directory_has() {
    for back_end in with_files() {
        let place = Place::new();
        let dir = place.store();
        let store = open(back_end, &dir);
        let tree = store.create_tree("one").unwrap();
        let change = Change::Set("abcd".parse().unwrap(), b"data_value".to_vec());
        tree.commit(&Root::EMPTY, &[change]).unwrap();
        store.create_tree("two").unwrap();
        // While a process has it nobody else changes it.
        let message = call("prune", &dir, &["--depth", "0"]).failed(3);
        let process = format!("process {}", std::process::id());
        assert!(message.contains(&process), "{message}");
        let file = place.write("nothing", b"");
        let message = call("import", &dir, &[text(&file)]).failed(3);
        assert!(message.contains(&process), "{message}");
        let shown = on_dir("inspect", &dir).done();
        // Reading goes on beside it.
        assert_eq!(shown["state"]["trees"].as_array().unwrap().len(), 2, "{back_end}");
        call("trees", &dir, &[]).done();
        on_dir("verify", &dir).done();
        store.close().unwrap();
        drop((store, tree));
        let shown = on_dir("inspect", &dir).done();
        assert_eq!((&shown["kind"], &shown["backend"]), (&json!("radix_store"), &json!(back_end)));
        assert_eq!(shown["state"]["scheme"], "transact");
        let trees = json!([
            {"name": "one", "versions": 1, "newest_version": 1, "newest_root": ROOT},
            {"name": "two", "versions": 0, "newest_version": null, "newest_root": null},
        ]);
        assert_eq!(shown["state"]["trees"], trees);
        assert!(shown["state"]["disk_bytes"].as_u64() > Some(0));
        let plain: Answer = command().arg("inspect").arg(&dir).output().unwrap().into();
        assert!(plain.code == Some(0) && plain.stdout.contains(ROOT), "{plain:?}");
    }
}

#[test]
fn versions_are_read_pruned_and_taken_to_other_stores() {
    let place = Place::new();
    let dir = place.store();
    let store = open("lsm", &dir);
    let tree = store.create_tree("t").unwrap();
    let set = |text: &str, value: &[u8]| [Change::Set(text.parse().unwrap(), value.to_vec())];
    let first = tree.commit_with(&Root::EMPTY, &set("abcd", b"data_value"), b"height 1").unwrap();
    let second = tree.commit(&first.root, &set("ab01", b"x")).unwrap().root;
    let third = tree.commit(&second, &set("00", &[0xFF])).unwrap().root;
    store.close().unwrap();
    drop((store, tree));

    let trees = call("trees", &dir, &[]).done();
    assert_eq!(trees["trees"][0]["versions"], 3);
    let versions = call("versions", &dir, &["--limit", "2"]).done();
    assert_eq!(versions["versions"].as_array().unwrap().len(), 2);
    assert_eq!(versions["versions"][0]["root"], third.to_string());
    let versions = call("versions", &dir, &[]).done();
    let oldest = &versions["versions"][2];
    assert_eq!((&oldest["metadata"], &oldest["parent"]), (&json!("height 1"), &Value::Null));
    assert_eq!(oldest["children"], json!([versions["versions"][1]["version"]]));

    let found = call("get", &dir, &["abcd", "ff"]).done();
    assert_eq!(found["root"], third.to_string());
    let values = json!([
        {"address": "abcd", "found": true, "bytes": 10, "value_hex": "646174615f76616c7565"},
        {"address": "ff", "found": false, "bytes": null, "value_hex": null},
    ]);
    assert_eq!(found["values"], values);
    let plain: Answer = command()
        .args(["radix", "get", "00", "abcd", "--store"])
        .arg(&dir)
        .output()
        .unwrap()
        .into();
    assert_eq!(plain.stdout, "hex:ff\ndata_value\n");
    let beginning = &first.root.to_string()[..8];
    let leaves = call("leaves", &dir, &["--root", beginning]).done();
    assert_eq!(leaves["leaves"].as_array().unwrap().len(), 1);
    let leaves = call("leaves", &dir, &["ab", "--limit", "1"]).done();
    assert_eq!(leaves["leaves"][0]["address"], "ab01");

    for arguments in [&["get", "barf"][..], &["get", "AB"], &["leaves", "abc"]] {
        call(arguments[0], &dir, &arguments[1..]).failed(2);
    }

    for arguments in [&["leaves", "77"][..], &["leaves", "--root", "0123"], &["trees", "--x"]] {
        let answer = call(arguments[0], &dir, &arguments[1..]);
        assert_eq!(answer.code, Some(if arguments[1] == "--x" { 2 } else { 1 }), "{answer:?}");
    }

    let file = place.path("tip.radix");
    let exported = call("export", &dir, &[text(&file)]).done();
    assert_eq!((&exported["values"], &exported["root"]), (&json!(3), &json!(third.to_string())));
    call("export", &dir, &[text(&file)]).failed(2);

    for back_end in with_files() {
        let copy = place.path(&format!("copy-{back_end}"));
        let imported = call("import", &copy, &[text(&file), "--backend", back_end]).done();
        assert_eq!(imported["root"], third.to_string());
        assert_eq!(call("get", &copy, &["abcd"]).done()["values"][0]["found"], true);
        assert_eq!(on_dir("verify", &copy).done()["versions"], 1);
    }

    let versions = call("versions", &dir, &[]).done()["versions"].clone();
    let all = place.path("all.radix");
    let exported = call("export", &dir, &[text(&all), "--all"]).done();
    assert_eq!((&exported["root"], &exported["versions"]), (&Value::Null, &json!(3)));
    call("export", &dir, &[text(&all), "--all", "--root", beginning]).failed(2);
    let copy = place.path("copy");
    let imported = call("import", &copy, &[text(&all), "--backend", "btree"]).done();
    assert_eq!((&imported["versions"], &imported["root"]), (&json!(3), &json!(third.to_string())));
    assert_eq!(call("versions", &copy, &[]).done()["versions"], versions);
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = place.write("damaged", &bytes);
    let message = call("import", &dir, &[text(&damaged), "--tree", "new"]).failed(1);
    assert!(message.contains("damaged"), "{message}");
    assert_eq!(call("trees", &dir, &[]).done()["trees"].as_array().unwrap().len(), 1);

    let pruned = call("prune", &dir, &["--root", beginning]).done();
    assert_eq!((&pruned["pruned"], &pruned["outcome"]), (&json!(1), &json!("removed")));
    let all = first.root.to_string();
    assert_eq!(call("prune", &dir, &["--root", &all]).done()["outcome"], "unknown");
    let pruned = call("prune", &dir, &["--keep", &third.to_string(), "--compact"]).done();
    assert_eq!((&pruned["pruned"], &pruned["versions"]), (&json!(1), &json!(1)));
    call("prune", &dir, &[]).failed(2);
}

#[test]
fn proofs_are_verified_without_a_store() {
    let place = Place::new();
    let store = open("btree", &place.store());
    let tree = store.create_tree("t").unwrap();
    let change = Change::Set("abcd".parse().unwrap(), b"data_value".to_vec());
    tree.commit(&Root::EMPTY, &[change]).unwrap();
    store.close().unwrap();
    drop((store, tree));

    for form in ["full", "compact"] {
        let file = place.path(form);
        let arguments = [text(&file), "abcd", "ff", "--form", form];
        let proven = call("prove", &place.store(), &arguments).done();
        assert_eq!(proven["root"], ROOT);
        let verify = |file: &Path, root: &str, addresses: &[&str]| -> Answer {
            let mut call = command();
            call.args(["radix", "verify-proof", "--json", "--root", root])
                .arg(file)
                .args(addresses);
            call.output().unwrap().into()
        };
        for addresses in [&[][..], &["abcd", "ff"]] {
            let verified = verify(&file, ROOT, addresses).done();
            assert_eq!(verified["values"], proven["values"]);
        }
        assert_eq!(proven["values"][0]["value_hex"], "646174615f76616c7565");
        assert_eq!(proven["values"][1]["found"], false);
        verify(&file, EMPTY, &[]).failed(1);
        verify(&file, ROOT, &["abcd"]).failed(1);
        verify(&file, "4c51", &[]).failed(2);
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        verify(&place.write("bent", &bytes), ROOT, &[]).failed(1);
    }
}

fn bench(dirs: &[&Path], arguments: &[&str]) -> Answer {
    let mut bench = command();
    bench.args(["bench", "radix", "--quiet"]).args(arguments);
    for dir in dirs {
        bench.arg("--dir").arg(dir);
    }
    bench.output().unwrap().into()
}

/// A report that keeps to its schema.
fn told(answer: &Answer) -> Value {
    let told = answer.done();
    assert_eq!(faults(&schema("bench-radix.json"), &told, "$"), Vec::<String>::new());
    told
}

#[test]
fn the_benchmark_reports_every_cell_with_all_its_fields() {
    let place = tempfile::tempdir().unwrap();
    let one = place.path().join("one");
    let two = place.path().join("two");
    // A thousand synced commits take as long as the disk likes: one cell has them, and once.
    let unsynced = ["--backend", "btree", "--durability", "none", "--repeats", "2"];
    check_cells(&[&one, &two], &unsynced, 1 + 2, 2);
    check_cells(&[&one], &["--backend", "sqlite", "--repeats", "1"], 2 + 2, 1);
    // Nothing stays behind.
    for dir in [&one, &two] {
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    }
}

/// Runs the ten tests and checks the report, which has this many cells with this many runs each.
fn check_cells(dirs: &[&Path], arguments: &[&str], count: usize, runs: u64) {
    let load = ["--load", "tests", "--json"];
    let told = told(&bench(dirs, &[&load[..], arguments].concat()));
    assert_eq!(
        (&told["seed"], &told["repeats"], &told["status"]),
        (&json!(1337), &json!(runs), &json!("complete"))
    );
    assert_eq!(told["published"].as_array().unwrap().len(), 8);
    assert_eq!(told["published"][1]["real_s"], 0.850);
    assert!(told["load_average"]["before"].is_array() && told["host"]["os"].is_string());

    for dir in told["dirs"].as_array().unwrap() {
        for field in ["filesystem", "device", "mount_options"] {
            assert!(dir[field].is_string(), "{field} of {dir}");
        }
        assert!(dir["appends"]["count"] == 1000 && dir["appends"]["bytes"].as_u64() > Some(500));
        assert!(dir["appends"]["best_s"].as_f64() <= dir["appends"]["median_s"].as_f64());
    }

    let floor = &told["floors"][0];
    assert!(floor["nodes"].as_u64() > Some(33_000) && floor["wall_s"].as_f64() > Some(0.0));
    let cells = told["cells"].as_array().unwrap();
    // Memory once at each level, the others in each directory.
    assert_eq!(cells.len(), count);

    for cell in cells {
        let name = (cell["backend"].as_str().unwrap(), cell["durability"].as_str().unwrap());
        if name == ("memory", "each") {
            assert!(cell["refused"].as_str().unwrap().contains("memory"), "{cell}");
            assert_eq!((&cell["real_s"], &cell["runs"]), (&Value::Null, &json!(0)));
            continue;
        }
        assert_eq!((&cell["refused"], &cell["runs"]), (&Value::Null, &json!(runs)), "{cell}");
        for times in ["real_s", "user_s", "system_s"] {
            assert!(cell[times]["best"].is_f64() && cell[times]["median"].is_f64(), "{cell}");
        }
        assert!(cell["real_s"]["best"].as_f64() <= cell["real_s"]["median"].as_f64());
        assert!(
            cell["ratio_to_memory"].as_f64() > Some(0.0) && cell["over_floor"].as_f64() > Some(0.0)
        );
        assert!(cell["transactions"].as_u64() > Some(1_000));
        for field in ["syncs", "process_write_bytes", "rss_peak_bytes", "disk_bytes"] {
            assert!(cell[field].is_u64(), "{field} of {cell}");
        }
        assert_eq!(cell["bytes_written"].is_null(), name.0 == "sqlite", "{cell}");
        assert_eq!(cell["syncs"].as_u64() > Some(1_000), name.1 == "each", "{cell}");
        assert!(
            cell["guarantee"].is_string() && !cell["settings"].as_object().unwrap().is_empty()
                || name.0 == "memory"
        );
        assert_eq!(cell["tests"].as_array().unwrap().len(), 10);
        assert!(
            cell["tests"][3]["name"] == "update" && cell["tests"][3]["best_s"].as_f64() > Some(0.0)
        );
        let is_second = dirs.get(1).is_some_and(|two| cell["dir"] == text(two));
        assert_eq!(cell["ratio_to_first_dir"].is_f64(), is_second, "{cell}");
    }
}

#[test]
fn the_other_loads_of_the_benchmark_have_figures_and_floors() {
    let place = tempfile::tempdir().unwrap();
    let arguments = [
        "--load",
        "single,prune,batch,get,leaves,space",
        "--backend",
        "lsm,lmdb",
        "--durability",
        "none",
        "--repeats",
        "1",
        "--commits",
        "30",
        "--batches",
        "2",
    ];
    let told = told(&bench(&[place.path()], &[&arguments[..], &["--json"]].concat()));
    assert_eq!(told["published"], json!([]));
    let cells = told["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 6 * 3);

    for cell in cells {
        let figures = cell["figures"].as_array().unwrap();
        assert!(!figures.is_empty(), "{cell}");
        for figure in figures {
            let load = cell["load"].as_str().unwrap();
            assert!(figure["count"].as_u64() > Some(0) && figure["root"].is_string(), "{figure}");
            let has_floor = ["single", "prune", "batch"].contains(&load);
            assert_eq!(figure["over_floor"].is_f64(), has_floor, "{load}: {figure}");
            assert_eq!(figure["disk_bytes"].is_u64(), load == "space", "{load}: {figure}");
        }
    }

    let few = ["--load", "prune,get", "--backend", "lmdb", "--durability", "none"];
    let counts = ["--repeats", "1", "--commits", "30", "--batches", "2"];
    let shown = bench(&[place.path()], &[&few[..], &counts].concat());
    assert_eq!(shown.code, Some(0), "{shown:?}");

    for part in
        ["prune: 30 commits of 1 key, each pruning", "lookups of an absent key", "hash floor"]
    {
        assert!(shown.stdout.contains(part), "{part}: {shown:?}");
    }
    let each = ["--load", "tests", "--backend", "memory", "--durability", "each"];
    let arguments = [&each[..], &["--repeats", "1", "--per-test", "--seed", "9"]].concat();
    let shown = bench(&[place.path()], &arguments);
    assert_eq!(shown.code, Some(0), "{shown:?}");

    for part in
        ["seed 9", "PUBLISHED", "663.621", "pruning_parent", "hash floor", "memory at each: - "]
    {
        assert!(shown.stdout.contains(part), "{part}: {shown:?}");
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn synced_commits_stand_beside_as_many_appends() {
    let place = tempfile::tempdir().unwrap();
    let arguments =
        ["--load", "single", "--backend", "btree", "--repeats", "1", "--commits", "1k", "--json"];
    let told = told(&bench(&[place.path()], &arguments));

    for cell in told["cells"].as_array().unwrap() {
        let is_synced = cell["durability"] == "each" && cell["backend"] == "btree";
        for figure in cell["figures"].as_array().unwrap() {
            assert_eq!(figure["over_appends"].is_f64(), is_synced, "{cell}");
        }
    }

    // Bytes of a commit of one key: mostly the difference of the root, whose 250 children take
    // 20,000.
    let bytes = told["dirs"][0]["appends"]["bytes"].as_u64().unwrap();
    assert!((500..5_000).contains(&bytes), "{bytes}");
}

#[test]
fn the_benchmark_refuses_what_makes_no_sense() {
    let place = tempfile::tempdir().unwrap();
    bench(&[], &["--json"]).failed(2);
    bench(&[place.path()], &["--load", "abacus", "--json"]).failed(2);
    bench(&[place.path()], &["--repeats", "0", "--json"]).failed(2);
    bench(&[place.path()], &["--cell", "{}", "--json"]).failed(2);
    let file = place.path().join("file");
    std::fs::write(&file, "").unwrap();
    bench(&[&file], &["--load", "tests", "--json"]).failed(3);
}
