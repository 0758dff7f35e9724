//! The rows of a radix state, byte by byte.
//!
//! Goal: a change of any byte of the format does not pass unnoticed, and rows of a released version
//! are read for ever. Method: a store with rows of each kind; its rows as text are the golden file,
//! from which another store is made and read.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use terrane_kv::Database;
use terrane_kv::Memory;
use terrane_radix::{INDEXES, Options, Root, Store};
use terrane_testkit::golden;

use super::damage::{Content, State, in_memory, make};
use super::words::{assert_whole, commit, content, hex, leaves, prune, set};

const CRATE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const FILE: &str = "radix.rows";

/// Stops of every kind, spilled chains, a branch whose base no version has any more, roots with
/// several versions.
fn write() -> (Content, Vec<State>) {
    let database: Arc<dyn Database> = Arc::new(Memory::new(&INDEXES).unwrap());
    let store = Store::open(Arc::clone(&database), &Options::default()).unwrap();
    let mut states = make(&store);
    let tree = store.create_tree("wide").unwrap();
    let address = |token: u8| hex(&[token; 30]);
    let wide: Vec<_> = (0..40).map(|token| set(&address(token), [token; 16])).collect();
    let base = commit(&tree, &Root::EMPTY, &wide);
    let one = commit(&tree, &base, &[set(&address(3), "changed")]);
    let two = commit(&tree, &one, &[set(&address(4), "changed")]);
    prune(&tree, &base);
    let again = commit(&tree, &two, &[set(&address(4), [4; 16])]);
    assert_eq!(again, one);
    states.extend([one, two].map(|root| State {
        tree: "wide",
        root,
        leaves: leaves(&tree, &root),
    }));
    assert_whole(&store);

    (content(&*database), states)
}

fn text(content: &Content) -> String {
    let mut text = String::new();
    for (table, entries) in content {
        for (key, value) in entries {
            writeln!(text, "{table} {} {}", hex(key), hex(value)).unwrap();
        }
    }
    text
}

fn parse(text: &str) -> Content {
    let bytes = |digits: &str| {
        let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect::<Vec<u8>>()
    };
    let mut content: Content = BTreeMap::new();
    for line in text.lines() {
        let [table, key, value] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let table = ["main"].into_iter().chain(INDEXES).find(|name| *name == table).unwrap();
        content.entry(table).or_default().push((bytes(key), bytes(value)));
    }
    content
}

#[test]
fn golden_rows_of_a_radix_state_are_what_is_written_and_are_read() {
    let (written, states) = write();
    for kind in 1..5 {
        let is_of_kind = |value: &[u8]| value[4] & 0x7f == kind;
        let stops = written["main"].iter().filter(|(key, _)| key.len() == 32);
        assert!(stops.clone().any(|(_, value)| is_of_kind(value)), "kind {kind}");
    }

    golden::check(CRATE, FILE, text(&written).as_bytes());
    let read = parse(&String::from_utf8(golden::read(CRATE, FILE)).unwrap());
    let store = Store::open(in_memory(&read), &Options::default()).unwrap();
    assert_whole(&store);

    for state in states {
        let tree = store.tree(state.tree).unwrap();
        assert_eq!(leaves(&tree, &state.root), state.leaves);
    }

    golden::check_complete(CRATE, &[FILE]);
}
