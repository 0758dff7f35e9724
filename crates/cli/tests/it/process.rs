//! The program as a process: usage, locks, signals, pipes, stores of another kind.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};

use crate::program::{Answer, Place, command, mainnet, text};

fn call(arguments: &[&str]) -> Answer {
    command().args(arguments).output().unwrap().into()
}

#[test]
fn bad_usage_is_exit_2_and_one_object_with_json() {
    let cases: &[&[&str]] = &[
        &["--json"],
        &["frob", "--json"],
        &["replay", "--json"],
        &["replay", "bitcoin", "--json"],
        &["replay", "bitcoin", "--json", "blk.dat"],
        &["replay", "bitcoin", "--json", "--store", "s"],
        &["replay", "bitcoin", "--json", "--store", "s", "--until", "x", "blk.dat"],
        &["replay", "bitcoin", "--json", "--store", "s", "--keep-versions", "0", "blk.dat"],
        &["snapshot", "--json"],
        &["snapshot", "list", "--json"],
        &["snapshot", "delete", "--json", "--store", "s"],
        &["snapshot", "export", "--json", "tip", "--store", "s"],
        &["context", "diff", "--json", "--store", "s"],
        &["context", "prove", "--json", "p", "--store", "s"],
        &["context", "verify-proof", "--json", "p", "--root", "12"],
        &["context", "export", "--json", "--store", "s"],
        &["context", "export", "--json", "f", "--to", "t", "--store", "s"],
        &["context", "import", "--json", "absent", "--store", "s"],
        &["radix", "--json"],
        &["radix", "get", "--json", "--store", "s"],
        &["radix", "trees", "--json", "--store", "absent"],
        &["radix", "verify-proof", "--json", "p", "--root", "12"],
        &["bench", "--json"],
        &["bench", "upsert", "--json"],
        &["bench", "union", "--json", "--store", "s", "--tables", "0"],
        &["replay", "changes", "--json", "--store", "s", "--engine", "abacus", "-"],
    ];
    for arguments in cases {
        let message = call(arguments).failed(2);
        assert!(!message.is_empty(), "{arguments:?}");
        let plain: Vec<_> = arguments.iter().copied().filter(|&one| one != "--json").collect();
        let answer = call(&plain);
        assert_eq!((answer.code, answer.stdout.as_str()), (Some(2), ""), "{answer:?}");
    }

    assert_eq!(call(cases[3]).json()["command"], "replay bitcoin");
}

#[test]
fn help_has_examples_for_every_command() {
    for arguments in [
        &["--help"][..],
        &["replay", "--help"],
        &["replay", "bitcoin", "--help"],
        &["replay", "changes", "--help"],
        &["bench", "--help"],
        &["bench", "upsert", "--help"],
        &["bench", "union", "--help"],
        &["inspect", "--help"],
        &["verify", "--help"],
        &["snapshot", "--help"],
        &["snapshot", "list", "--help"],
        &["snapshot", "rename", "--help"],
        &["snapshot", "delete", "--help"],
        &["snapshot", "export", "--help"],
        &["snapshot", "import", "--help"],
        &["context", "diff", "--help"],
        &["context", "dump-paths", "--help"],
        &["context", "prove", "--help"],
        &["context", "verify-proof", "--help"],
        &["context", "export", "--help"],
        &["context", "import", "--help"],
        &["context", "split", "--help"],
        &["radix", "--help"],
        &["radix", "trees", "--help"],
        &["radix", "versions", "--help"],
        &["radix", "get", "--help"],
        &["radix", "leaves", "--help"],
        &["radix", "prune", "--help"],
        &["radix", "export", "--help"],
        &["radix", "import", "--help"],
        &["radix", "prove", "--help"],
        &["radix", "verify-proof", "--help"],
        &["bench", "radix", "--help"],
    ] {
        let answer = call(arguments);
        assert_eq!(answer.code, Some(0));
        assert!(answer.stdout.contains("Example"), "{answer:?}");
    }

    assert!(call(&["--version"]).stdout.contains(env!("CARGO_PKG_VERSION")));
}

/// A mistyped path left the directories of an empty store behind.
#[test]
fn an_input_that_is_not_there_leaves_no_store() {
    for what in ["bitcoin", "changes"] {
        let place = Place::new();
        let message = place.replay(what, &[text(&place.path("absent"))]).failed(2);
        assert!(message.contains("absent: no such file or directory"), "{message}");
        assert!(!place.store().exists(), "{what}");
    }
}

/// The help stood behind "terrane: ", as if it were what went wrong.
#[test]
fn without_a_command_the_help_is_shown_as_it_is() {
    for arguments in [&[][..], &["replay"]] {
        let answer = call(arguments);
        assert_eq!((answer.code, answer.stdout.as_str()), (Some(2), ""));
        assert!(!answer.stderr.starts_with("terrane: "), "{answer:?}");
        assert!(answer.stderr.contains("Usage: terrane"), "{answer:?}");
    }
}

#[test]
fn people_get_lines_without_colour_and_no_bar_in_a_pipe() {
    let place = Place::new();
    let answer = call(&["replay", "bitcoin", text(&mainnet()), "--store", text(&place.store())]);
    assert_eq!((answer.code, answer.stderr.as_str()), (Some(0), ""));
    assert!(answer.stdout.contains("hash_serialized_3  b2c7b4ae"), "{answer:?}");
    assert!(!answer.stdout.contains('\u{1b}'));
}

#[test]
fn memory_says_that_it_keeps_nothing() {
    let place = Place::new();
    let file = place.write("history", b"terrane-changes 1\nbegin 1\nend\n");
    let answer = place.replay("changes", &[text(&file), "--engine", "memory"]);
    answer.done();
    assert!(answer.stderr.contains("keeps nothing"), "{answer:?}");
    assert!(!place.store().exists());
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = command();
    child.args(["replay", "bitcoin", text(&mainnet()), "--engine", "memory"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let answer: Answer = child.wait_with_output().unwrap().into();
    assert_eq!((answer.code, answer.stderr.as_str()), (Some(0), ""));
}

/// A replay that waits for its input and holds the store.
fn holder(place: &Place) -> Child {
    let mut child = command();
    child.args(["replay", "changes", "-", "--json", "--store"]).arg(place.store());
    child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    // Its store is complete and locked once the last of the directories is there.
    while !place.path("store/snapshots").is_dir() {
        assert!(child.try_wait().unwrap().is_none(), "the holder has ended");
        std::thread::yield_now();
    }
    child
}

#[test]
fn a_store_in_use_is_refused_at_once_with_the_holders_pid() {
    let place = Place::new();
    let child = holder(&place);
    let file = place.write("history", b"terrane-changes 1\n");
    let refused = place.replay("changes", &[text(&file)]);
    let message = refused.failed(3);
    assert!(message.contains(&format!("by process {}", child.id())), "{message}");
    let mut put = command();
    put.args(["put", "key", "value", "--create", "--json", "--store"]).arg(place.store());
    let refused: Answer = put.output().unwrap().into();
    refused.failed(3);
    assert_eq!(refused.json()["error"]["kind"], "locked");
    let refused: Answer = command().args(["put", "--json", "--no-such"]).output().unwrap().into();
    refused.failed(2);
    assert_eq!(refused.json()["error"]["kind"], "usage");
    let mut child = child;
    child.stdin.take().unwrap().write_all(b"terrane-changes 1\nbegin 1\nend\n").unwrap();
    let answer: Answer = child.wait_with_output().unwrap().into();
    assert_eq!(answer.done()["height"], 1);
}

/// A replay that waited for its standard input saw the first Ctrl-C only when more input came, and
/// applied the block that it came with.
#[test]
fn ctrl_c_ends_a_replay_that_waits_for_input_at_its_last_whole_block() {
    let place = Place::new();
    let mut child = command();
    child.args(["replay", "changes", "-", "--json", "--checkpoint-every", "1", "--store"]);
    child.arg(place.store());
    child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"terrane-changes 1\nbegin 1\nput 01 01\nend\nbegin 2\nput 02 02\ne").unwrap();

    while !place.path("store/snapshots/state-0000000001-1.snapshot").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the replay has ended");
        std::thread::yield_now();
    }

    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    // Its standard input stays open and silent.
    let answer: Answer = child.wait_with_output().unwrap().into();
    drop(input);
    let message = answer.failed(130);
    assert!(message.contains("the state is that of block 1"), "{message}");
    let file = place.write("history", b"terrane-changes 1\n");
    let json = place.replay("changes", &[text(&file), "--resume"]).done();
    assert_eq!((&json["height"], &json["count"]), (&1.into(), &1.into()));
}

/// Whether a process has a handler for SIGINT.
fn catches_interrupts(pid: u32) -> bool {
    const SIGINT_BIT: u64 = 1 << 1;

    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & SIGINT_BIT != 0
}

/// Commands that Ctrl-C may end anywhere ended without the object that programs wait for.
#[test]
fn ctrl_c_is_told_in_json_by_a_command_that_it_ends_at_once() {
    let place = Place::new();
    let mut child = command();
    child.args(["put", "--input", "-", "--create", "--json", "--store"]).arg(place.store());
    child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());

    let mut child = child.spawn().unwrap();
    while !catches_interrupts(child.id()) {
        assert!(child.try_wait().unwrap().is_none(), "the command has ended");
        std::thread::yield_now();
    }

    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let input = child.stdin.take();
    let answer: Answer = child.wait_with_output().unwrap().into();
    drop(input);
    assert_eq!(answer.failed(130), "interrupted");
    let json = answer.json();
    assert_eq!((&json["command"], &json["error"]["kind"]), (&"put".into(), &"interrupted".into()));
    assert!(!place.store().exists());
}

#[test]
fn killed_while_it_waits_it_has_kept_its_durable_points() {
    let place = Place::new();
    let mut child = command();
    child.args(["replay", "changes", "-", "--checkpoint-every", "2", "--store"]);

    let mut child = child.arg(place.store()).stdin(Stdio::piped()).spawn().unwrap();
    let mut history = b"terrane-changes 1\n".to_vec();
    for block in 1..=9 {
        history.extend(format!("begin {block}\nput {block:02x} 01\nend count={block}\n").bytes());
    }

    child.stdin.as_mut().unwrap().write_all(&history).unwrap();
    while !place.path("store/snapshots/state-0000000004-8.snapshot").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the replay has ended");
        std::thread::yield_now();
    }

    child.kill().unwrap();
    child.wait().unwrap();
    let file = place.write("history", &history);
    let json = place.replay("changes", &[text(&file), "--resume"]).done();
    assert_eq!((&json["blocks"], &json["count"]), (&1.into(), &9.into()));
}

#[test]
fn a_directory_or_a_store_of_another_kind_is_refused_and_left_alone() {
    let place = Place::new();
    let foreign = place.write("store/letters.txt", b"dear reader");
    let file = place.write("history", b"terrane-changes 1\nbegin 1\nput 01 01\nend\n");
    place.replay("changes", &[text(&file)]).failed(2);
    assert_eq!(std::fs::read(&foreign).unwrap(), b"dear reader");
    // The lock is taken before anything is looked at, and stays as an empty file.
    let mut others: Vec<_> =
        std::fs::read_dir(place.store()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    others.retain(|name| name != "letters.txt" && name != "lock");
    assert!(others.is_empty(), "{others:?}");
    std::fs::remove_file(foreign).unwrap();
    place.replay("changes", &[text(&file)]).done();
    let message = place.replay("bitcoin", &[text(&mainnet())]).failed(2);
    assert!(message.contains("not \"terrane replay bitcoin"), "{message}");
    assert_eq!(place.replay("changes", &[text(&file), "--resume"]).done()["count"], 1);

    let place = Place::new();
    place.write("store", b"a file");
    let message = place.replay("changes", &[text(&file)]).failed(2);
    assert!(message.contains("not a directory"), "{message}");

    let place = Place::new();
    place.replay("bitcoin", &[text(&mainnet()), "--until", "10"]).done();
    let message =
        place.replay("bitcoin", &["--rollback-to", "5", "--network", "regtest"]).failed(2);
    assert!(message.contains("label"), "{message}");
}
