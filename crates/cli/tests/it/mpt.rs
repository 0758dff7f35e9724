//! `terrane mpt`, and the other commands on a state.
//!
//! Goal: what a user reads, proves, compares, exports and imports of the first blocks of the main
//! network is so; wrong input and damaged files end with their exit codes. Method: a state of 60
//! blocks with a history, called as a user calls the program.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::program::{Answer, Place, call, command, plain, text};
use crate::schema::{faults, schema};

/// The miner of block 1, whose only account it is at first.
const MINER: &str = "0x05a56e2d52c817161883f50c441c3228cfe54d9f";

/// An address without an account.
const NOBODY: &str = "0x00000000000000000000000000000000000000fe";

fn blocks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/ethereum-mainnet-0-8191.era1")
}

fn stateless(arguments: &[&str]) -> Answer {
    command().args(arguments).output().unwrap().into()
}

/// The report of a command that succeeds, which is as its schema says.
fn valid(answer: &Answer) -> Value {
    let report = answer.done();
    let command = report["command"].as_str().unwrap().replace(' ', "-");
    let found = faults(&schema(&format!("{command}.json")), &report, "$");
    assert!(found.is_empty(), "{command}: {found:?}");
    report
}

/// A state of blocks 0 to 60.
fn state() -> (Place, PathBuf, Value) {
    let place = Place::new();
    let store = place.store();
    let file = blocks();
    let arguments = ["replay", "ethereum", text(&file), "--until", "60", "--history", "--quiet"];
    let report = call(&store, &arguments).done();
    (place, store, report)
}

#[test]
fn a_state_is_read_proved_and_compared() {
    let (place, store, replayed) = state();
    let root = valid(&call(&store, &["mpt", "root"]));
    assert_eq!((&root["height"], &root["root"]), (&replayed["height"], &replayed["state_root"]));
    assert_eq!(replayed["accounts"].as_u64().map(|count| 8893 <= count), Some(true));
    let genesis = valid(&call(&store, &["mpt", "root", "--height", "0"]));
    let genesis_root = "0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544";
    assert_eq!(genesis["root"], genesis_root);
    assert!(plain(&store, &["mpt", "root"]).stdout.contains(root["root"].as_str().unwrap()));

    let account = valid(&call(&store, &["mpt", "get", MINER, "7", "0x2a"]));
    assert_eq!((&account["found"], &account["nonce"]), (&true.into(), &0.into()));
    assert_eq!(account["slots"][1]["slot"], "0x2a");
    assert_eq!(account["slots"][1]["value"], "0x0");
    let older = valid(&call(&store, &["mpt", "get", MINER, "--height", "0"]));
    assert_eq!((&older["found"], &older["balance"]), (&false.into(), &Value::Null));
    assert_eq!(plain(&store, &["mpt", "get", NOBODY]).code, Some(1));

    // Proofs of presence and absence, at the tip and below it.
    for (height, address, found) in [("60", MINER, true), ("0", MINER, false), ("3", NOBODY, false)]
    {
        let file = place.path("proof.json");
        let arguments = ["mpt", "prove", text(&file), address, "1", "--height", height, "--force"];
        let made = valid(&call(&store, &arguments));
        let root = made["root"].as_str().unwrap();
        let verify = ["mpt", "verify-proof", text(&file), "--root", root, "--json"];
        let read = valid(&stateless(&verify));
        assert_eq!((&read["found"], &read["balance"]), (&found.into(), &made["balance"]));
        let other = ["mpt", "verify-proof", text(&file), NOBODY, "--root", root, "--json"];
        assert_eq!(stateless(&other).code, Some(i32::from(address != NOBODY)));

        let wrong = root.replace(&root[60..], "0000aa");
        stateless(&["mpt", "verify-proof", text(&file), "--root", &wrong, "--json"]).failed(1);
        let proof = fs::read_to_string(&file).unwrap();
        let damaged = place.write("damaged.json", proof.replace("0xf9", "0xf8").as_bytes());
        let code = stateless(&["mpt", "verify-proof", text(&damaged), "--root", root]).code;
        assert_eq!(code, Some(1), "{height}");
    }

    let witness = place.path("witness.json");
    let of = format!("{MINER}:1,0x2a");
    let arguments = ["mpt", "witness", text(&witness), &of, NOBODY];
    let made = valid(&call(&store, &arguments));
    let read: Value = serde_json::from_slice(&fs::read(&witness).unwrap()).unwrap();
    assert_eq!(read["state"].as_array().map(|nodes| nodes.len() as u64), made["nodes"].as_u64());

    let diff = valid(&call(&store, &["mpt", "diff", "0", "1"]));
    assert_eq!(diff["accounts"].as_array().unwrap().len(), 1);
    assert_eq!(diff["accounts"][0]["before"], Value::Null);
    assert_eq!(diff["accounts"][0]["after"]["balance"], "0x4563918244f40000");
    let back = valid(&call(&store, &["mpt", "diff", "1", "0"]));
    assert_eq!(back["accounts"][0]["after"], Value::Null);
    assert!(plain(&store, &["mpt", "diff", "0", "1"]).stdout.contains("none -> nonce 0"));
}

#[test]
fn a_state_is_exported_imported_and_pruned() {
    let (place, store, _) = state();
    let file = place.path("tip.mpt");
    let made = valid(&call(&store, &["mpt", "export", text(&file), "--quiet"]));
    assert_eq!(made["bytes"].as_u64(), Some(fs::metadata(&file).unwrap().len()));
    call(&store, &["mpt", "export", text(&file)]).failed(2);
    let older = place.path("older.mpt");
    valid(&call(&store, &["mpt", "export", text(&older), "--height", "0", "--quiet"]));

    // A stream that ends early; the whole one goes on with the import.
    let copy = place.path("copy");
    let bytes = fs::read(&older).unwrap();
    let cut = place.write("cut.mpt", &bytes[..bytes.len() / 2]);
    call(&copy, &["mpt", "import", text(&cut), "--quiet"]).failed(1);
    let unfinished = call(&copy, &["mpt", "root"]);
    assert!(unfinished.failed(2).contains("has not been finished"));
    call(&copy, &["verify"]).failed(1);
    let read = valid(&call(&copy, &["mpt", "import", text(&older), "--quiet"]));
    assert_eq!((&read["height"], &read["accounts"]), (&0.into(), &8893.into()));
    let checked = call(&copy, &["verify"]).done();
    assert_eq!(
        (&checked["state"]["accounts"], &checked["state"]["left"]),
        (&8893.into(), &0.into())
    );
    call(&copy, &["mpt", "import", text(&older)]).failed(2);
    // The imported state goes on like any other.
    let file = blocks();
    call(&copy, &["replay", "ethereum", text(&file), "--until", "3", "--quiet"]).done();

    let pruned = valid(&call(&store, &["mpt", "prune", "--below", "20"]));
    assert!(0 < pruned["changes"].as_u64().unwrap());
    call(&store, &["mpt", "get", MINER, "--height", "19"]).failed(2);
    valid(&call(&store, &["mpt", "get", MINER, "--height", "20"]));
    call(&store, &["mpt", "diff", "19", "20"]).failed(2);
    call(&store, &["mpt", "prune", "--below", "61"]).failed(2);

    let shown = stateless(&["inspect", text(&store), "--json"]).done();
    let state = &shown["ethereum_state"];
    assert_eq!((&state["height"], &state["history_from"]), (&60.into(), &20.into()));
    assert!(stateless(&["inspect", text(&store)]).stdout.contains("ethereum state"));
}

#[test]
fn damaged_nodes_are_found_and_repaired() {
    let (_place, store, _) = state();
    let node = ["delete", "hex:0001", "--table", "account_nodes"];
    call(&store, &node).done();
    let found = call(&store, &["verify"]);
    assert_eq!(found.code, Some(1));
    assert_eq!(found.json()["state"]["left"], 1);
    let repaired = call(&store, &["verify", "--repair"]).done();
    let state = &repaired["state"];
    assert_eq!((&state["repaired"], &state["left"]), (&1.into(), &0.into()));
    call(&store, &["verify"]).done();

    // Without an account, the entries have another root, and nodes would hide it.
    let account = "hex:0004a6b1fbb4eb8a1d3f8d6ae2b9b4f0";
    let listed = call(&store, &["scan", "--table", "accounts", "--limit", "1"]).done();
    let key = listed["entries"][0]["key"].as_str().unwrap_or(account).to_owned();
    call(&store, &["delete", &key, "--table", "accounts"]).done();
    let refused = call(&store, &["verify", "--repair"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.json()["state"]["problems"].to_string().contains("not repaired"));
}

#[test]
fn bad_input_is_exit_2_and_changes_nothing() {
    let place = Place::new();
    let store = place.store();
    let root = "0x56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421";
    call(&store, &["mpt", "root"]).failed(2);
    assert!(!store.exists());
    call(&store, &["put", "a", "b", "--create"]).done();
    let message = call(&store, &["mpt", "root"]).failed(2);
    assert!(message.contains("is not an Ethereum state"), "{message}");
    call(&store, &["mpt", "get", "12"]).failed(2);
    call(&store, &["mpt", "get", MINER, "-1"]).failed(2);
    call(&store, &["mpt", "get", MINER, "0x"]).failed(2);
    call(&store, &["mpt", "import", "missing.mpt"]).failed(2);
    let text_file = place.write("text", b"no proof");
    let verify = ["mpt", "verify-proof", text(&text_file), "--root", root, "--json"];
    stateless(&verify).failed(2);
    stateless(&["mpt", "verify-proof", text(&text_file), "--root", "12", "--json"]).failed(2);
    let empty = place.write("empty", b"{}");
    stateless(&["mpt", "verify-proof", text(&empty), "--root", root, "--json"]).failed(2);
}

#[test]
fn blocks_on_a_state_are_measured() {
    let place = Place::new();
    let store = place.store();
    let bench = ["bench", "state", "--accounts", "1000", "--blocks", "3", "--warm-up", "1"];
    let options = ["--proofs", "5", "--history", "--distribution", "zipf:0.99", "--quiet"];
    let report = call(&store, &[&bench[..], &options].concat()).done();
    let found = faults(&schema("bench-state.json"), &report, "$");
    assert!(found.is_empty(), "{found:?}");
    assert_eq!((&report["status"], &report["blocks"]), (&"complete".into(), &3.into()));
    assert_eq!(report["reorg"]["blocks"], 4);
    assert!(!store.join("state").exists());

    let file = place.write("report.json", report.to_string().as_bytes());
    let compared = stateless(&["bench", "compare", text(&file), text(&file)]);
    assert_eq!(compared.code, Some(0), "{compared:?}");
    let page = place.path("report.html");
    stateless(&["bench", "report", text(&file), "--html", text(&page), "--json"]).done();
    assert!(fs::read_to_string(page).unwrap().contains("terrane bench state"));

    let shown = plain(&store, &[&bench[..], &["--proofs", "1", "--load", "wide-wipe"]].concat());
    assert_eq!(shown.code, Some(0), "{shown:?}");
    assert!(shown.stdout.contains("Keccak floor"), "{shown:?}");
    let refused = call(&store, &["bench", "state", "--accounts", "10"]);
    refused.failed(2);
}
