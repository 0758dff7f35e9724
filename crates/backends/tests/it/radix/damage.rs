//! Damaged rows: one that is missing, that has an altered byte, or that is another's.
//!
//! Goal: whoever reads what the row is needed for is told (the original reads a damaged node as
//! absent), what is not touched by it reads as ever, a check of the whole store finds it, and
//! nothing panics. Method: every row of a small store, every byte of it. All rows carry checksums;
//! in a second pass these are made to fit again, as by somebody who wrote the rows on purpose: then
//! the hashes must tell, and nothing panics all the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrane_io::checksum::{crc32c, crc32c_append};
use terrane_kv::Memory;
use terrane_kv::conformance::Subject;
use terrane_kv::{Database, Entry, Table};
use terrane_radix::{
    Error, INDEXES, METADATA, Options, Order, Prefix, PruneOptions, Root, Store, Tree, VERSIONS,
};
use terrane_testkit::effort::{by_effort, places};

use crate::memory::InMemory;

use super::fresh;
use super::words::{at, commit, content, delete, leaves, set};

pub(super) type Content = BTreeMap<&'static str, Vec<Entry>>;

/// A root, and what it reads as.
pub(super) struct State {
    pub(super) tree: &'static str,
    pub(super) root: Root,
    pub(super) leaves: Vec<(String, Vec<u8>)>,
}

/// Bytes of the key of a stop.
const STOP_KEY_BYTES: usize = 20;
const TREES: [&str; 2] = ["one", "two"];

/// A store with stops of every kind: small and larger values, branches with and without a value, a
/// value that so many chains lead to that they have rows of their own.
pub(super) fn make(store: &Store) -> Vec<State> {
    let [one, two] = TREES.map(|name| store.create_tree(name).unwrap());
    let long = vec![7; 70];
    let mut changes = vec![
        set("aa0000", "small"),
        set("aa0001", &long),
        set("aa00", "inner"),
        set("bb0000", "small"),
        set(&"cd".repeat(35), &long),
    ];
    changes.extend((0..10).map(|n| set(&format!("ee{n:02x}{n:02x}"), "often")));
    let first = commit(&one, &Root::EMPTY, &changes);
    let second = one.commit_with(&first, &[set("aa0000", "new"), delete("bb0000")], b"height");
    let second = second.unwrap().root;
    let third = commit(&one, &second, &[set("ff", "tip")]);
    let fork = commit(&one, &first, &[set("ab", "fork"), set("ab00", "below")]);
    let other = commit(&two, &Root::EMPTY, &changes[..3]);
    store.set_metadata(b"key", Some(b"of the caller")).unwrap();
    let state = |tree: &Tree, name, root| State { tree: name, root, leaves: leaves(tree, &root) };
    let mut states: Vec<State> =
        [first, second, third, fork].map(|root| state(&one, TREES[0], root)).into();
    states.push(state(&two, TREES[1], other));

    states
}

fn table(name: &'static str) -> Table<'static> {
    if name == "main" { Table::Main } else { Table::Index(name) }
}

pub(super) fn in_memory(content: &Content) -> Arc<dyn Database> {
    let database = Memory::new(&INDEXES).unwrap();
    let mut writer = database.writer().unwrap();
    for (name, entries) in content {
        for (key, value) in entries {
            writer.overwrite(table(name), key, value).unwrap();
        }
    }
    writer.commit().unwrap();
    Arc::new(database)
}

/// Damage to the rows.
struct Damage {
    name: String,
    /// A row that is gone and that says by itself that a tree or a root is there: without it they
    /// are unknown.
    hides: bool,
    /// The checksums fit.
    is_sealed: bool,
}

/// Where damage was noticed.
#[derive(Debug, Default, Clone, Copy)]
struct Found {
    /// By a check of the whole store, or as it was opened.
    by_store: bool,
    /// By a check of a root.
    by_root: bool,
    /// By reading a root.
    by_reading: bool,
}

impl Damage {
    /// An error that tells of damage, and where.
    fn is_told(&self, error: &Error, state: &State, address: Option<&str>) {
        match error {
            Error::Corruption { root, path, .. } => {
                assert_eq!(*root, Some(state.root), "{}: {error}", self.name);
                let is_above = |address: &str| at(address).as_bytes().starts_with(path.as_bytes());
                if let Some(address) = address.filter(|_| !self.is_sealed) {
                    assert!(is_above(address), "{}: {address}: {error}", self.name);
                }
            }
            Error::CorruptRecord { .. } => {}
            Error::UnknownRoot { .. } | Error::UnknownTree { .. } => {
                assert!(self.hides || self.is_sealed, "{}: {error}", self.name);
            }
            other if self.is_sealed => drop(other.to_string()),
            other => panic!("{}: {other:?}", self.name),
        }
    }

    fn read(&self, tree: &Tree, state: &State) -> bool {
        let mut is_told = false;
        let expected: BTreeMap<&str, &Vec<u8>> =
            state.leaves.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let absent = ["aa0002", "aa", "ab0001", "cd", "ee0a"];

        for address in expected.keys().copied().chain(absent) {
            match tree.get_one(&state.root, &at(address)) {
                Ok(found) => assert!(
                    self.is_sealed || found.as_ref() == expected.get(address).copied(),
                    "{}: {address} is {found:?}",
                    self.name
                ),
                Err(error) => {
                    self.is_told(&error, state, Some(address));
                    is_told = true;
                }
            }
        }

        for order in [Order::Ascending, Order::Descending] {
            let mut found = Vec::new();
            match tree.leaves_from(&state.root, None, order) {
                Err(error) => {
                    self.is_told(&error, state, None);
                    assert!(is_told || self.is_sealed);
                    continue;
                }
                Ok(mut leaves) => {
                    for leaf in leaves.by_ref() {
                        match leaf {
                            Ok((address, value)) => found.push((address.to_string(), value)),
                            Err(error) => {
                                self.is_told(&error, state, None);
                                is_told = true;
                                break;
                            }
                        }
                    }
                    assert!(leaves.next().is_none(), "{}: after an error they end", self.name);
                }
            }

            if self.is_sealed {
                continue;
            }

            let mut expected = state.leaves.clone();
            if order == Order::Descending {
                expected.reverse();
            }

            // What comes before the damage is right, and nothing is left out without a word.
            assert!(expected.starts_with(&found), "{}: {found:?}", self.name);
            assert!(is_told || found.len() == expected.len(), "{}: {found:?}", self.name);
        }

        is_told
    }

    /// By what goes over a whole state as well: differences from the empty one, and nodes. An error
    /// is the last that comes.
    fn compare(&self, tree: &Tree, state: &State) -> bool {
        let mut errors = Vec::new();
        for (from, to) in [(Root::EMPTY, state.root), (state.root, Root::EMPTY)] {
            match tree.diff(&from, &to) {
                Ok(mut diff) => {
                    errors.extend(diff.by_ref().find_map(Result::err));
                    assert!(diff.next().is_none(), "{}: after an error it ends", self.name);
                }
                Err(error) => errors.push(error),
            }
        }

        match tree.export_nodes(&state.root) {
            Ok(mut nodes) => {
                errors.extend(nodes.by_ref().find_map(Result::err));
                assert!(nodes.next().is_none(), "{}: after an error they end", self.name);
            }
            Err(error) => errors.push(error),
        }

        for error in &errors {
            self.is_told(error, state, None);
        }

        !errors.is_empty()
    }

    fn change(&self, store: &Store, state: &State) {
        let changes = [set("aa0000", "changed"), set("ee0505", "changed"), set("bb", "added")];
        let dry = store.tree(state.tree).and_then(|tree| tree.compute_root(&state.root, &changes));

        // Dropped, so that nothing of it is kept.
        let mut transaction = store.transaction().unwrap();
        let committed = transaction.commit(state.tree, &state.root, &changes);
        if let (Ok(dry), Ok(committed)) = (&dry, &committed) {
            assert_eq!(*dry, committed.root, "{}", self.name);
        }

        for error in [dry.err(), committed.err()].into_iter().flatten() {
            self.is_told(&error, state, None);
        }

        drop(transaction);
        let mut transaction = store.transaction().unwrap();
        let options = PruneOptions::default().list(true);
        if let Err(error) = transaction.prune(state.tree, &state.root, &options) {
            self.is_told(&error, state, None);
        }

        drop(transaction);
        let mut transaction = store.transaction().unwrap();

        // These are about other roots as well.
        let pruned = transaction.prune_below(state.tree, &state.root, 0).map(drop);
        drop(transaction);
        let deleted = store.transaction().unwrap().delete_tree(state.tree).map(drop);

        for error in [pruned.err(), deleted.err()].into_iter().flatten() {
            let is_told = match error {
                Error::Corruption { root, .. } => root.is_some(),
                Error::CorruptRecord { .. } => true,
                Error::UnknownRoot { .. } => self.hides || self.is_sealed,
                _ => self.is_sealed,
            };
            assert!(is_told, "{}: {error:?}", self.name);
        }
    }

    fn examine(&self, database: Arc<dyn Database>, states: &[State]) -> Found {
        let mut found = Found::default();
        // Nothing is kept in memory, so that each reads for itself.
        let store = match Store::open(database, &Options::default().cache_bytes(0).threads(1)) {
            Ok(store) => store,
            Err(Error::CorruptRecord { .. }) => return Found { by_store: true, ..found },
            Err(Error::Unsupported(_)) if self.is_sealed => return found,
            Err(error) => panic!("{}: {error:?}", self.name),
        };

        for state in states {
            let tree = match store.tree(state.tree) {
                Ok(tree) => tree,
                Err(error) => {
                    self.is_told(&error, state, None);
                    found.by_reading = true;
                    continue;
                }
            };

            let is_told = self.read(&tree, state);
            let is_clean = match tree.verify(&state.root) {
                Ok(report) => report.is_clean(),
                Err(error) => {
                    self.is_told(&error, state, None);
                    false
                }
            };

            assert!(!(is_told && is_clean), "{}: verify({}) finds nothing", self.name, state.root);
            found.by_reading |= is_told;
            found.by_root |= !is_clean;
            self.change(&store, state);
            let is_told = self.compare(&tree, state);
            assert!(!(is_told && is_clean), "{}: verify({}) finds nothing", self.name, state.root);
            drop(tree.nodes(&state.root));
            drop(tree.versions());
        }

        drop(store.node_count());
        found.by_store = !store.verify().unwrap().is_clean();
        found
    }
}

/// Each row of nodes and of the bookkeeping; those of the metadata map are the caller's.
pub(super) fn rows(content: &Content) -> Vec<(&'static str, usize)> {
    let of = |name: &'static str| (0..content[name].len()).map(move |row| (name, row));
    of("main").chain(of(VERSIONS)).collect()
}

/// Whether it is the row of a stop that roots are read from.
fn is_read(name: &str, (key, value): &Entry) -> bool {
    name == "main" && key.len() == STOP_KEY_BYTES && value[4] & 0x7f != 1
}

pub(super) fn flipped(
    content: &Content,
    name: &'static str,
    row: usize,
    byte: usize,
    mask: u8,
) -> Content {
    let mut damaged = content.clone();
    damaged.get_mut(name).unwrap()[row].1[byte] ^= mask;
    damaged
}

/// Makes the checksum of a row right again.
fn seal(content: &mut Content, name: &'static str, row: usize) {
    let (key, value) = &mut content.get_mut(name).unwrap()[row];
    let (at, body) = match name {
        "main" => (0, 4..value.len()),
        _ => (value.len() - 4, 0..value.len() - 4),
    };
    let crc = crc32c_append(crc32c(key), &value[body]);
    value[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn every_altered_byte_is_found(whole: &Content, states: &[State]) {
    for (name, row) in rows(whole) {
        let entry = &whole[name][row];
        for byte in places(0..entry.1.len() as u64, 12, row as u64).map(|byte| byte as usize) {
            let damage = Damage {
                name: format!(
                    "byte {byte} of row {:?} of {name}",
                    entry.0.escape_ascii().to_string()
                ),
                hides: false,
                is_sealed: false,
            };

            let damaged = flipped(whole, name, row, byte, 1 << (byte % 8));
            let found = damage.examine(in_memory(&damaged), states);
            assert!(found.by_store, "{}: {found:?}", damage.name);
            if is_read(name, entry) {
                assert!(found.by_root && found.by_reading, "{}: {found:?}", damage.name);
            }
        }
    }
}

fn rows_that_were_written_on_purpose_do_no_harm(whole: &Content, states: &[State]) {
    for (name, row) in rows(whole) {
        let entry = &whole[name][row];
        for byte in places(0..entry.1.len() as u64, 24, row as u64).map(|byte| byte as usize) {
            for mask in [1, 0x40, 0xff] {
                let is_checksum = if name == "main" { byte < 4 } else { byte + 4 >= entry.1.len() };
                if is_checksum {
                    continue;
                }

                let mut damaged = flipped(whole, name, row, byte, mask);
                seal(&mut damaged, name, row);
                let damage = Damage {
                    name: format!(
                        "byte {byte} of row {:?} of {name}, sealed",
                        entry.0.escape_ascii().to_string()
                    ),
                    hides: false,
                    is_sealed: true,
                };

                let found = damage.examine(in_memory(&damaged), states);
                // The hashes cover the nodes; what the bookkeeping says of itself has nothing else
                // to be held against.
                if name == "main" {
                    assert!(found.by_store || found.by_root, "{}: {found:?}", damage.name);
                }
            }
        }
    }
}

pub(super) fn write(
    database: &Arc<dyn Database>,
    name: &'static str,
    key: &[u8],
    value: Option<&[u8]>,
) {
    let mut writer = database.writer().unwrap();
    match value {
        Some(value) => writer.overwrite(table(name), key, value).unwrap(),
        None => writer.remove(table(name), key).unwrap(),
    }
    writer.commit().unwrap();
}

/// The rows of stops under the keys of others: branches that lead to themselves, and chains that
/// lead too deep.
fn stops_that_were_put_elsewhere_on_purpose_do_no_harm(whole: &Content, states: &[State]) {
    let stops: Vec<usize> = (0..whole["main"].len())
        .filter(|row| whole["main"][*row].0.len() == STOP_KEY_BYTES)
        .collect();
    for &here in &stops {
        for &there in stops.iter().filter(|there| **there != here) {
            let mut damaged = whole.clone();
            let value = whole["main"][there].1.clone();
            damaged.get_mut("main").unwrap()[here].1 = value;
            seal(&mut damaged, "main", here);

            // Stops of small values have rows that differ in little.
            if damaged == *whole {
                continue;
            }

            let damage = Damage {
                name: format!("row {here} is that of {there}, sealed"),
                hides: false,
                is_sealed: true,
            };

            let found = damage.examine(in_memory(&damaged), states);
            assert!(found.by_store, "{}: {found:?}", damage.name);
        }
    }
}

/// On the back-end itself: rows that are missing, that are another's, and one byte of each.
fn missing_and_exchanged_rows_are_found(
    database: &Arc<dyn Database>,
    whole: &Content,
    states: &[State],
) {
    let rows = rows(whole);
    // Odd, so that rows of each kind are met.
    for (number, &(name, row)) in rows.iter().enumerate().step_by(by_effort(5, 1)) {
        let (key, value) = &whole[name][row];
        let text = key.escape_ascii().to_string();
        let hides = name == VERSIONS && matches!(key[0], b't' | b'r');
        let damage =
            Damage { name: format!("row {text} of {name} is gone"), hides, is_sealed: false };
        write(database, name, key, None);
        let found = damage.examine(Arc::clone(database), states);
        assert!(found.by_store, "{}: {found:?}", damage.name);
        if is_read(name, &whole[name][row]) {
            assert!(found.by_root && found.by_reading, "{}: {found:?}", damage.name);
        }

        let mut altered = value.clone();
        let byte = number * 7 % altered.len();
        altered[byte] ^= 0x10;
        let damage =
            Damage { name: format!("byte {byte} of row {text}"), hides: false, is_sealed: false };
        write(database, name, key, Some(&altered));
        assert!(damage.examine(Arc::clone(database), states).by_store, "{}", damage.name);

        let (other_name, other) = rows[(number + 1) % rows.len()];
        let (other_key, other_value) = &whole[other_name][other];
        let damage = Damage {
            name: format!("rows {text} and {}", other_key.escape_ascii()),
            hides: false,
            is_sealed: false,
        };

        write(database, name, key, Some(other_value));
        write(database, other_name, other_key, Some(value));
        let found = damage.examine(Arc::clone(database), states);
        assert!(found.by_store, "{}: {found:?}", damage.name);
        write(database, name, key, Some(value));
        write(database, other_name, other_key, Some(other_value));
    }
}

/// Rows that belong to nothing.
fn rows_too_many_are_found(whole: &Content, states: &[State]) {
    let stop = &whole["main"][0];
    for (name, key, value) in [
        ("main", vec![9; STOP_KEY_BYTES], stop.1.clone()),
        ("main", vec![9], stop.1.clone()),
        ("main", [stop.0.as_slice(), &[0, 1]].concat(), stop.1.clone()),
        (VERSIONS, b"x".to_vec(), b"y".to_vec()),
        (VERSIONS, [b"r".as_slice(), &[0; 36]].concat(), b"y".to_vec()),
    ] {
        let mut damaged = whole.clone();
        damaged.get_mut(name).unwrap().push((key.clone(), value));
        let damage = Damage { name: format!("{key:?} in {name}"), hides: false, is_sealed: false };
        let found = damage.examine(in_memory(&damaged), states);
        assert!(found.by_store, "{}: {found:?}", damage.name);
    }
}

/// A database in which something else is.
fn another_database_is_refused() {
    for name in ["main", VERSIONS] {
        let content = BTreeMap::from([(name, vec![(b"key".to_vec(), b"value".to_vec())])]);
        let database = in_memory(&content);
        let opened = Store::open(Arc::clone(&database), &super::options());
        assert!(matches!(opened, Err(Error::CorruptRecord { .. })), "{name}: {opened:?}");
        assert_eq!(super::words::content(&*database)[name], content[name]);
    }
}

pub(super) fn check(subject: &mut dyn Subject) {
    let store = fresh(subject);
    let states = make(&store);
    let database = Arc::clone(store.database());
    drop(store);
    let whole = content(&*database);
    assert!(whole["main"].iter().any(|(key, _)| key.len() > STOP_KEY_BYTES), "spilled chains");
    assert!(!whole[METADATA].is_empty());
    let none = Damage { name: "none".to_owned(), hides: false, is_sealed: false };
    let found = none.examine(in_memory(&whole), &states);
    assert!(!(found.by_store || found.by_root || found.by_reading), "{found:?}");
    missing_and_exchanged_rows_are_found(&database, &whole, &states);
    assert_eq!(content(&*database), whole);
    assert_eq!(leaves_of_empty(&database), 0);

    // The sweeps of damage run on copies in memory: of equal rows they tell the same.
    assert_eq!(content_in_memory().0, whole);
}

fn content_in_memory() -> (Content, Vec<State>) {
    let store = fresh(&mut InMemory);
    let states = make(&store);
    (content(&**store.database()), states)
}

#[test]
fn damage_of_any_row_is_found() {
    let (whole, states) = content_in_memory();
    every_altered_byte_is_found(&whole, &states);
    rows_that_were_written_on_purpose_do_no_harm(&whole, &states);
    stops_that_were_put_elsewhere_on_purpose_do_no_harm(&whole, &states);
    rows_too_many_are_found(&whole, &states);
    another_database_is_refused();
}

/// The empty root reads as ever, whatever was tried before.
fn leaves_of_empty(database: &Arc<dyn Database>) -> usize {
    let store = Store::open(Arc::clone(database), &super::options()).unwrap();
    store.tree(TREES[0]).unwrap().leaves(&Root::EMPTY, &Prefix::EMPTY).unwrap().count()
}
