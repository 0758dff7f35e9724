//! Words of the command line: global options before and after the sub-command, the variable that
//! stands in for `--store`, and every old spelling.

use std::path::Path;

use serde_json::{Value, json};

use crate::program::{Answer, Place, command, text};

fn run(arguments: &[&str]) -> Answer {
    command().args(arguments).output().unwrap().into()
}

fn with_variable(store: &Path, arguments: &[&str]) -> Answer {
    command().env("TERRANE_STORE", store).args(arguments).output().unwrap().into()
}

/// A store with `alice` and `bob` in `main`.
fn ledger() -> Place {
    let place = Place::new();
    let store = place.store();
    run(&["put", "alice", "100", "bob", "7", "--create", "--json", "--store", text(&store)]).done();
    place
}

#[test]
fn global_options_stand_before_or_after_the_sub_command() {
    let place = ledger();
    let store = place.store();
    let store = text(&store);
    for arguments in [
        &["get", "alice", "--store", store, "--json", "--quiet"][..],
        &["--store", store, "--json", "--quiet", "get", "alice"],
        &["--json", "get", "alice", "--store", store],
        &["--quiet", "get", "alice", "--json", "--store", store],
    ] {
        assert_eq!(run(arguments).done()["entries"][0]["value"], "100", "{arguments:?}");
    }

    for arguments in [
        &["--store", store, "table", "list", "--json"][..],
        &["table", "--store", store, "--json", "list"],
        &["table", "list", "--json", "--store", store],
    ] {
        assert_eq!(run(arguments).done()["tables"][0]["name"], "main", "{arguments:?}");
    }

    // The option beside the command counts.
    let elsewhere = place.path("elsewhere");
    let both = ["--store", text(&elsewhere), "count", "--store", store, "--json"];
    assert_eq!(run(&both).done()["count"], 2);

    for arguments in
        [&["--store", store, "verify", "--json"][..], &["--json", "inspect", "--store", store]]
    {
        run(arguments).done();
    }
    // A path beside the command counts, too.
    let missing = run(&["verify", text(&elsewhere), "--store", store, "--json"]).failed(2);
    assert!(missing.contains("elsewhere does not exist"), "{missing}");
}

#[test]
fn a_failure_before_the_sub_command_names_the_sub_command() {
    let place = ledger();
    let store = place.store();
    let answer = run(&["--json", "--store", text(&store), "table", "frob"]);
    answer.failed(2);
    assert_eq!(answer.json()["command"], "table");
    let answer = run(&["--json", "del", "alice"]);
    answer.failed(2);
    assert_eq!(answer.json()["command"], "delete");
}

#[test]
fn the_variable_stands_in_for_the_option() {
    let place = ledger();
    let store = place.store();
    assert_eq!(with_variable(&store, &["count", "--json"]).done()["count"], 2);
    with_variable(&store, &["verify", "--json"]).done();
    assert_eq!(with_variable(&store, &["inspect", "--json"]).done()["kind"], "store");

    let other = place.path("other");
    let put = ["put", "carol", "1", "--create", "--json", "--store", text(&other)];
    with_variable(&store, &put).done();
    assert_eq!(with_variable(&store, &["count", "--json"]).done()["count"], 2);
    assert_eq!(with_variable(&other, &["count", "--json"]).done()["count"], 1);

    for arguments in [&["count", "--json"][..], &["verify", "--json"], &["inspect", "--json"]] {
        let answer = run(arguments);
        let message = answer.failed(2);
        assert_eq!(answer.json()["error"]["kind"], "usage");
        let is_helpful = message.contains("--store DIR") && message.contains("TERRANE_STORE");
        assert!(is_helpful, "{message}");
    }
}

/// Every spelling that earlier versions of the program had, beside the present one. Help shows the
/// present one only.
#[test]
fn old_spellings_work_and_are_hidden() {
    let place = ledger();
    let store = place.store();
    let store = text(&store);
    let call = |arguments: &[&str]| -> Value {
        command()
            .args(arguments)
            .args(["--json", "--store", store])
            .output()
            .map(Answer::from)
            .unwrap()
            .done()
    };

    call(&["version", "retain", "--name", "start"]);
    for (old, new) in [
        (&["get", "alice", "--at", "start"][..], &["get", "alice", "--version", "start"][..]),
        (&["scan", "--at", "1"], &["scan", "--version", "1"]),
        (&["count", "--at", "1"], &["count", "--version", "1"]),
        (&["del", "nobody"], &["delete", "nobody"]),
        (&["remove", "nobody"], &["delete", "nobody"]),
        (&["table", "drop", "none", "--if-exists"], &["table", "delete", "none", "--if-exists"]),
        (&["table", "remove", "none", "--if-exists"], &["table", "delete", "none", "--if-exists"]),
        (
            &["snapshot", "drop", "none", "--if-exists"],
            &["snapshot", "delete", "none", "--if-exists"],
        ),
        (
            &["snapshot", "remove", "none", "--if-exists"],
            &["snapshot", "delete", "none", "--if-exists"],
        ),
    ] {
        assert_eq!(call(old), call(new), "{old:?}");
    }

    for word in ["release", "drop", "remove", "delete"] {
        call(&["put", word, "1"]);
        let number = call(&["version", "retain"])["number"].to_string();
        let deleted = call(&["version", word, &number]);
        assert_eq!(deleted["command"], "version delete", "{word}");
    }

    let tree = place.path("tree");
    for word in ["index", "btree"] {
        let built = ["--json", word, "build", "--from", store, "--store", text(&tree)];
        assert_eq!(run(&built).done()["command"], "btree build", "{word}");
        std::fs::remove_dir_all(&tree).unwrap();
        let version = ["--from-table", "main", "--at", "start"];
        assert_eq!(run(&[&built[..], &version].concat()).done()["entries"], 2);
        std::fs::remove_dir_all(&tree).unwrap();
    }

    for goal in ["hit", "miss", "balanced", "hits", "misses", "both"] {
        for option in ["--goal", "--optimize-for"] {
            let model = ["bench", "model", option, goal, "--memory", "1%", "--json"];
            let found = run(&model).done()["goal"].clone();
            let expected = match goal {
                "hit" | "hits" => json!("hit"),
                "miss" | "misses" => json!("miss"),
                _ => json!("balanced"),
            };
            assert_eq!(found, expected, "{option} {goal}");
        }
    }

    // Their stores are made elsewhere; here the words must be known.
    let absent = place.path("absent");
    for (old, new) in [
        (&["radix", "scan", "--root", "00"][..], "radix leaves"),
        (&["radix", "delete", "--root", "00"], "radix prune"),
        (&["context", "list", "data"], "context ls"),
        (&["context", "get", "data", "--at", "main"], "context show"),
        (&["context", "scan", "--at", "main"], "context dump-paths"),
    ] {
        let answer = run(&[old, &["--json", "--store", text(&absent)]].concat());
        answer.failed(2);
        assert_eq!(answer.json()["command"], new, "{old:?}");
    }

    for (help, hidden) in [
        (&["--help"][..], &["  del ", "  index ", "  remove "][..]),
        (&["table", "--help"], &["  drop ", "  remove "]),
        (&["version", "--help"], &["  release ", "  drop "]),
        (&["get", "--help"], &["--at "]),
        (&["context", "show", "--help"], &["--at "]),
        (&["bench", "model", "--help"], &["--goal", "balanced"]),
    ] {
        let shown = run(help).stdout;
        for word in hidden {
            assert!(!shown.contains(word), "{help:?} shows {word}");
        }
    }
}
