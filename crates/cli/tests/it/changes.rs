//! `terrane replay changes`: every rule of the format, checks, going back, resuming.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::program::{Place, text};

/// The digest of entries in key order.
fn digest(entries: &[(&[u8], &[u8])]) -> String {
    let mut hash = Sha256::new();
    for part in entries.iter().flat_map(|&(key, value)| [key, value]) {
        hash.update(u32::try_from(part.len()).unwrap().to_le_bytes());
        hash.update(part);
    }
    let hash: [u8; 32] = hash.finalize().into();
    hash.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// A history with every kind of record, and what a replay of it reports.
fn history() -> (String, Value) {
    let one = digest(&[(&[1], &[0x11])]);
    let two = digest(&[(&[1], &[]), (&[2], &[0x22])]);
    let part = digest(&[(&[2], &[0x22])]);
    let none = digest(&[]);
    let last = digest(&[(&[], &[7]), (&[1], &[0x11])]);
    let text = format!(
        "terrane-changes 1\n# a comment\nexpect count=0 digest={none}\n\
         begin 3\nget 01 !\nput 01 11\nend count=1 digest={one} root.nobody=00ff\n\
         begin 7\n# inside a block\nput 01 12\nget 01 11\nput 01 -\nput 02 22\nput 03 33\ndel 03\n\
         del 02\nput 02 22\nget 02 !\nend digest={two} count=2\n\
         range ! ! n=2 digest={two}\nrange 02 ! n=1 digest={part}\nrange ! 02 n=1 digest={}\n\
         range 02 01 n=0 digest={none}\nrange - 0100 n=1 digest={}\n\
         rollback 3\nexpect count=1 digest={one}\n\
         begin 4\nput - 07\nend\nexpect root.nobody=00",
        digest(&[(&[1], &[])]),
        digest(&[(&[1], &[])]),
    );

    let report = json!({
        "ok": true, "command": "replay changes", "blocks": 3, "height": 4, "puts": 7, "deletes": 2,
        "gets": 3, "rollbacks": 1, "checks_passed": 3 + 2 + 2 + 2 + 10 + 2, "count": 2,
        "digest": last, "roots": {},
    });

    (text, report)
}

#[track_caller]
fn assert_report(found: &Value, expected: &Value) {
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&found[name], value, "{name}");
    }
}

#[test]
fn a_history_is_replayed_and_checked_on_every_engine() {
    let (text_, report) = history();
    for engine in ["lsm", "btree", "context", "memory"] {
        let place = Place::new();
        let file = place.write("history", text_.as_bytes());
        let mut found = place.replay("changes", &[text(&file), "--engine", engine]).done();
        let roots = std::mem::replace(&mut found["roots"], json!({}));
        assert_eq!(roots.get("context").is_some(), engine == "context", "{roots}");
        assert_report(&found, &report);
        for figure in ["wall_s", "changes_per_s", "rss_bytes"] {
            assert!(found[figure].as_f64().unwrap() > 0.0, "{figure}");
        }
        assert_eq!(found["store_bytes"].as_u64() > Some(0), engine != "memory");
    }
}

/// A zstd frame that holds `bytes` as they are.
fn zstd_frame(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn compressed_files_and_standard_input_give_the_same() {
    let (history, report) = history();
    let (front, back) = history.as_bytes().split_at(history.len() / 2);
    let place = Place::new();
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    let files = [
        ("a.gz", [gzip(front), gzip(back)].concat()),
        ("a.zst", [zstd_frame(front), skippable.to_vec(), zstd_frame(back)].concat()),
    ];

    for (name, bytes) in files {
        let file = place.write(name, &bytes);
        let found = place.replay("changes", &[text(&file), "--engine", "memory"]).done();
        assert_report(&found, &report);
        for cut in [bytes.len() - 1, bytes.len() / 2, 5] {
            let file = place.write(name, &bytes[..cut]);
            let message = place.replay("changes", &[text(&file), "--engine", "memory"]).failed(2);
            assert!(message.contains(name), "{message}");
        }
        let plain = place.write(name, history.as_bytes());
        place.replay("changes", &[text(&plain), "--engine", "memory"]).failed(2);
    }

    let mut child = crate::program::command();
    child.args(["replay", "changes", "-", "--engine", "memory", "--json"]);
    child.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = child.stderr(std::process::Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(history.as_bytes()).unwrap();
    let answer: crate::program::Answer = child.wait_with_output().unwrap().into();
    assert_report(&answer.done(), &report);
}

/// Cases of failure: the lines after the first one, the exit code, the line that is named, part of
/// the message.
const FAILURES: &[(&str, i32, u64, &str)] = &[
    // Checks.
    ("begin 1\nput 01 02\nend count=2", 1, 4, "block 1: count: expected 2, found 1"),
    ("expect count=1", 1, 2, "the empty state: count: expected 1, found 0"),
    (
        "begin 1\nput 01 02\nend\nbegin 2\nget 01 03\nend",
        1,
        6,
        "block 2: get 01: expected 03, found 02",
    ),
    ("begin 1\nput 01 02\nget 01 02\nend", 1, 4, "block 1: get 01: expected 02, found nothing"),
    ("begin 1\nput 01 -\nend\nbegin 2\nget 01 !\nend", 1, 6, "get 01: expected nothing, found -"),
    ("begin 1\ndel 01\nend", 1, 3, "block 1: del 01: expected a value, found nothing"),
    ("begin 1\nput 01 02\ndel 01\ndel 01\nend", 1, 5, "block 1: del 01"),
    ("begin 1\nput 01 02\nend\nbegin 2\ndel 01\ndel 01\nend", 1, 7, "block 2: del 01"),
    ("begin 1\ndel 02\nget 01 00\nend", 1, 3, "del 02"),
    (
        "expect digest=0000000000000000000000000000000000000000000000000000000000000000",
        1,
        2,
        "digest: expected 0000000000000000000000000000000000000000000000000000000000000000, \
               found e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ),
    (
        "range ! ! n=1 digest=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        1,
        2,
        "range n: expected 1, found 0",
    ),
    // Order.
    ("begin 1\nend\nbegin 1\nend", 2, 4, "block 1 must be above block 1"),
    ("begin 5\nend\nbegin 3\nend", 2, 4, "block 3 must be above block 5"),
    ("begin 1\nend\nbegin 5\nend\nrollback 1\nbegin 1\nend", 2, 7, "block 1 must be above block 1"),
    ("begin 5\nend\nrollback 6", 2, 4, "the store is at block 5"),
    ("begin 1\nend\nbegin 5\nend\nrollback 3", 2, 6, "no block of that number"),
    ("rollback 0", 2, 2, "the store is at the empty state"),
    ("begin 1\nput 01 02", 2, 4, "inside block 1"),
    ("begin 1\nbegin 2\nend", 2, 3, "`begin` stands between blocks"),
    ("begin 1\nexpect\nend", 2, 3, "`expect` stands between blocks"),
    ("begin 1\nrollback -\nend", 2, 3, "`rollback` stands between blocks"),
    (
        "begin 1\nrange ! ! n=0 digest=e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        2,
        3,
        "`range` stands between blocks",
    ),
    ("put 01 02", 2, 2, "`put` stands only inside a block"),
    ("del 01", 2, 2, "`del` stands only inside a block"),
    ("get 01 !", 2, 2, "`get` stands only inside a block"),
    ("end", 2, 2, "`end` stands only inside a block"),
    // Lines.
    ("begin 1\n\nend", 2, 3, "a blank line"),
    ("begin 1\r\nend", 2, 2, "a carriage return"),
    ("# comment\r\nbegin 1\nend", 2, 2, "a carriage return"),
    ("begin 1\nput 01 0A\nend", 2, 3, "\"0A\" is neither lower-case hexadecimal nor `-`"),
    ("begin 1\nput 01  02\nend", 2, 3, "fields separated by one space"),
    ("begin 1\nput 1 02\nend", 2, 3, "\"1\" is neither"),
    ("begin x", 2, 2, "not a decimal number"),
    ("begin 18446744073709551616", 2, 2, "not a decimal number"),
    ("begin 1\nend count=1 count=1", 2, 3, "not a check that can stand here"),
    ("begin 1\nfrob 01\nend", 2, 3, "unknown record \"frob\""),
    ("terrane-changes 1", 2, 2, "unknown record"),
];

#[test]
fn each_rule_has_its_exit_code_and_names_the_line() {
    for engine in ["memory", "lsm", "btree", "context"] {
        for &(lines, code, line, part) in FAILURES {
            let place = Place::new();
            let file = place.write("history", format!("terrane-changes 1\n{lines}\n").as_bytes());
            let message = place.replay("changes", &[text(&file), "--engine", engine]).failed(code);
            let at = format!("history line {line}");
            assert!(message.contains(&at) && message.contains(part), "{lines:?}: {message}");
        }
    }
}

#[test]
fn the_first_line_is_that_of_a_history() {
    for first in [
        "",
        "terrane-changes 2\n",
        "terrane-changes 1 \n",
        "\u{feff}terrane-changes 1\n",
        "begin 1\n",
    ] {
        let place = Place::new();
        let file = place.write("history", first.as_bytes());
        let message = place.replay("changes", &[text(&file)]).failed(2);
        assert!(message.contains("history line 1: the first line must be"), "{message}");
    }

    let place = Place::new();
    let message = place.replay("changes", &[text(&place.path("absent"))]).failed(2);
    assert!(message.contains("absent"), "{message}");
    let file = place.write("history", b"terrane-changes 1\n# \xff\n");
    assert!(
        place.replay("changes", &[text(&file)]).failed(2).contains("line 2: the line is not UTF-8")
    );
}

#[test]
fn a_failure_keeps_the_blocks_before_it() {
    let place = Place::new();
    let replay = |lines: &str, arguments: &[&str]| {
        let file = place.write("history", format!("terrane-changes 1\n{lines}\n").as_bytes());
        place.replay("changes", &[&[text(&file)], arguments].concat())
    };
    let good = "begin 1\nput 01 01\nend\nbegin 2\nput 02 02\nend";
    replay(&format!("{good}\nbegin 3\ndel 09\nend"), &[]).failed(1);
    let message = replay(good, &[]).failed(2);
    assert!(message.contains("already at block 2"), "{message}");
    let json = replay(&format!("{good}\nbegin 3\nget 02 02\nend count=2"), &["--resume"]).done();
    assert_eq!(
        (&json["blocks"], &json["height"], &json["checks_passed"]),
        (&1.into(), &3.into(), &2.into())
    );
    // A failed check after the block was committed: the block stays.
    replay("begin 4\nput 04 04\nend count=9", &["--resume"]).failed(1);
    let json = replay("expect count=3\nrollback 1\nexpect count=1", &["--resume"]).done();
    assert_eq!((&json["height"], &json["count"]), (&1.into(), &1.into()));
}

/// The engine refused such a key only when its block was applied: the message named no line, and
/// the good blocks since the last durable point were lost with it.
#[test]
fn a_key_that_the_engine_refuses_is_named_by_its_line_and_costs_no_good_block() {
    let place = Place::new();
    let mut lines = String::from("terrane-changes 1\n");
    for block in 1..=50 {
        writeln!(lines, "begin {block}\nput {block:02x} 00\nend").unwrap();
    }

    for record in ["put", "del", "get"] {
        let value = if record == "del" { "" } else { " 00" };
        let long = format!("{lines}begin 51\n{record} {}{value}\nend\n", "ab".repeat(4001));
        let file = place.write("history", long.as_bytes());
        let message = place.replay("changes", &[text(&file), "--resume"]).failed(2);
        assert!(message.contains("history line 153: a key of 4001 bytes"), "{message}");
        let file = place.write("history", lines.as_bytes());
        let json = place.replay("changes", &[text(&file), "--resume"]).done();
        assert_eq!((&json["blocks"], &json["height"]), (&0.into(), &50.into()), "{record}");
    }
}

#[test]
fn resuming_follows_the_history_through_its_rollbacks() {
    let place = Place::new();
    let first = "begin 1\nput 01 01\nend\nbegin 2\nput 02 02\nend\nbegin 3\nput 03 03\nend\n";
    let second = "rollback 1\nbegin 2\nput 02 12\nend\n";
    let third = "begin 3\nput 03 13\nend\nbegin 4\nget 02 12\nget 03 13\nput 04 14\nend count=4\n";
    let replay = |lines: &[&str], arguments: &[&str]| {
        let file =
            place.write("history", format!("terrane-changes 1\n{}", lines.concat()).as_bytes());
        place.replay("changes", &[&[text(&file)], arguments].concat())
    };
    // The store is at the second block 2; the first one's number alone would mislead.
    assert_eq!(replay(&[first, second], &[]).done()["blocks"], 4);
    let json = replay(&[first, second, third], &["--resume"]).done();
    assert_eq!(
        (&json["blocks"], &json["height"], &json["rollbacks"]),
        (&2.into(), &4.into(), &0.into())
    );
    // Nothing new; and a beginning only.
    assert_eq!(replay(&[first, second, third], &["--resume"]).done()["blocks"], 0);
    assert_eq!(replay(&[first, second], &["--resume"]).done()["height"], 4);
    // Histories that continue from the store, and histories that overlap with it.
    let json = replay(&["begin 9\nput 09 09\nend\n"], &["--resume"]).done();
    assert_eq!((&json["blocks"], &json["height"]), (&1.into(), &9.into()));
    let overlap = "begin 4\nget 02 12\nput 04 14\nend\nbegin 9\nput 09 09\nend\nbegin 10\nend\n";
    assert_eq!(replay(&[overlap], &["--resume"]).done()["blocks"], 1);
    // Another history.
    let message = replay(&[first, "begin 11\nend\n"], &["--resume"]).failed(2);
    assert!(message.contains("does not lead to the store's state at block 10"), "{message}");
    // Blocks of earlier processes can be gone back to, and the empty state always.
    let json = replay(
        &["rollback 3\nexpect count=3\nbegin 5\nget 03 13\nend\nrollback -\n"],
        &["--resume"],
    )
    .done();
    assert_eq!(
        (&json["height"], &json["count"], &json["rollbacks"]),
        (&Value::Null, &0.into(), &2.into())
    );
    // The empty state is no obstacle.
    assert_eq!(replay(&[first], &[]).done()["height"], 3);
}

/// A second file was replayed in part, so far that the last block of the first one was no longer
/// kept; resuming with the second file alone answered that it belonged to another history.
#[test]
fn a_later_file_is_resumed_even_if_the_block_before_it_is_no_longer_kept() {
    let place = Place::new();
    let replay = |blocks: std::ops::RangeInclusive<u64>| {
        let mut lines = String::from("terrane-changes 1\n");
        for block in blocks {
            writeln!(lines, "begin {block}\nput {block:04x} 00\nend").unwrap();
        }
        let file = place.write("history", lines.as_bytes());
        place.replay("changes", &[text(&file), "--resume", "--keep-versions", "30"])
    };
    assert_eq!(replay(1..=100).done()["blocks"], 100);

    for (end, blocks) in [(150, 50), (190, 40), (200, 10), (200, 0)] {
        let json = replay(101..=end).done();
        assert_eq!((&json["blocks"], &json["count"]), (&blocks.into(), &end.into()), "to {end}");
    }

    let message = replay(102..=200).failed(2);
    assert!(message.contains("does not lead to the store's state"), "{message}");
    assert_eq!(replay(1..=210).done()["blocks"], 10);
}

#[test]
fn kept_versions_bound_how_far_back_a_history_goes() {
    let place = Place::new();
    let mut lines = String::from("terrane-changes 1\n");
    for block in 0..10 {
        writeln!(lines, "begin {block}\nput {block:02x} 00\nend").unwrap();
    }

    let history = |target: u64| format!("{lines}rollback {target}\nexpect count={}\n", target + 1);

    for (target, code) in [(6, 2), (7, 0)] {
        let file = place.write("history", history(target).as_bytes());
        let arguments = [text(&file), "--keep-versions", "3", "--engine", "memory"];
        let answer = place.replay("changes", &arguments);
        assert_eq!(answer.code, Some(code), "{answer:?}");
        assert!(code == 0 || answer.stderr.contains("the oldest block kept is 7"), "{answer:?}");
    }
}

#[test]
fn several_files_are_one_history() {
    let place = Place::new();
    let first = place.write("1", b"terrane-changes 1\nbegin 1\nput 01 01\nend\n");
    let second = place.write("2", b"terrane-changes 1\nbegin 2\nget 01 01\ndel 01\nend count=0\n");
    let json = place.replay("changes", &[text(&first), text(&second)]).done();
    assert_eq!((&json["blocks"], &json["count"]), (&2.into(), &0.into()));
    let message = place.replay("changes", &["--resume", text(&second), text(&first)]).failed(2);
    assert!(message.contains("does not lead") || message.contains("must be above"), "{message}");
}

/// The root of the tree of a state: computed apart from Terrane, from the rules of hashing.
const ROOTS: [&str; 4] = [
    "81e47a19e6b29b0a65b9591762ce5143ed30d0261e5d24a3201752506b20f15c",
    "0515cc5cae2b9e0121f83ee1f7d10384fa0dbb4a7f7ec545b3af7c4fdece8b49",
    "e5d0ba5de16b3b022ed3897dc5b35d7c791e09d89d33aa9500035172b3b6f30d",
    "61a711de88faecd9d91354c5c0ed791999dd13a47ef4f3ae9d2f9533a5a5cf7d",
];

#[test]
fn the_roots_of_the_context_engine_are_those_of_trees_below_data() {
    let [none, one, two, last] = ROOTS;
    let history = format!(
        "terrane-changes 1\nexpect root.context={none}\n\
         begin 1\nput 01 11\nend root.context={one} root.radix=00\n\
         begin 2\nput 01 -\nput 02 22\nend root.context={two}\n\
         rollback 1\nexpect root.context={one}\n\
         begin 2\nput 00 07\nend root.context={last} count=2\n"
    );
    let place = Place::new();
    let replay = |lines: &str, arguments: &[&str]| {
        let file = place.write("history", lines.as_bytes());
        let arguments = [&[text(&file), "--engine", "context"], arguments].concat();
        place.replay("changes", &arguments)
    };
    let found = replay(&history, &[]).done();
    assert_eq!(found["roots"], json!({ "context": last }));
    assert_eq!((&found["checks_passed"], &found["rollbacks"]), (&6.into(), &1.into()));
    // Another process resumes with a wrong root at the end, and after a rollback to the empty
    // state.
    let wrong = format!("{history}expect root.context={one}\n");
    let message = replay(&wrong, &["--resume"]).failed(1);
    let part = format!("line 15, block 2: root.context: expected {one}, found {last}");
    assert!(message.contains(&part), "{message}");
    let back = format!("{history}rollback -\nexpect count=0 root.context={none}\n");
    let found = replay(&back, &["--resume"]).done();
    assert_eq!((&found["blocks"], &found["roots"]["context"]), (&0.into(), &none.into()));
    let long = format!("terrane-changes 1\nbegin 1\nput {} 00\nend\n", "ab".repeat(128));
    let message = replay(&long, &[]).failed(2);
    assert!(message.contains("history line 3: a key of 128 bytes"), "{message}");
}

#[test]
fn the_context_engine_goes_on_in_another_process_and_back_as_far_as_versions_are_kept() {
    let place = Place::new();
    let replay = |lines: &str| {
        let file = place.write("history", format!("terrane-changes 1\n{lines}").as_bytes());
        let arguments = ["--engine", "context", "--resume", "--keep-versions", "30"];
        place.replay(
            "changes",
            &[&[text(&file), "--checkpoint-every", "7"], &arguments[..]].concat(),
        )
    };

    let mut lines = String::new();
    for block in 1..=300 {
        writeln!(lines, "begin {block}\nput {block:04x} {block:04x}\nput 00 {block:04x}\nend")
            .unwrap();
        if block % 100 == 0 {
            let found = replay(&lines).done();
            assert_eq!((&found["blocks"], &found["count"]), (&100.into(), &(block + 1).into()));
        }
    }

    let message = replay(&format!("{lines}rollback 270\n")).failed(2);
    assert!(message.contains("the oldest block kept is 271"), "{message}");
    let found =
        replay(&format!("{lines}rollback 271\nexpect count=272\nbegin 272\nget 00 010f\nend\n"));
    assert_eq!(found.done()["height"], 272);
}
