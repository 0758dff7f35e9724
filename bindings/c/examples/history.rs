//! One history of operations for every language, written from a seed, and run in Rust.
//!
//! Format: records of a kind (1 byte), a key after its length (1 byte), and a value after its
//! length (1 byte). Kinds: 0 delete, 1 put, 2 delete the keys from the key on and below the value,
//! 3 look up, 4 commit (no key, no value).
//!
//! At each commit a program (1) writes the puts and deletes to the table `plain` in one batch,
//! (2) deletes each range in that table alone, (3) gives puts and deletes to the table `committed`,
//! which has a root, and to the radix tree `main`, and (4) looks all keys up in `plain` with one
//! call. At the end it prints the number of entries and the digest of `plain`, both roots, and the
//! FNV-1a of all answers: for each a byte 1 and the value, or a byte 0.
//!
//! Invariants: between two commits no key is put or deleted twice, and a deleted key has a value in
//! `committed`. `cargo xtask bindings` runs it beside C, Python and Go.
//!
//! usage: history write FILE SEED OPERATIONS | history run FILE `EMPTY_FOLDER`

#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;

use terrane::lsm::{Durability, Store, StoreOptions, TableConfig, WriteBatch};
use terrane::mpt::CommittedTable;
use terrane::radix::{Address, Change, Root};
use terrane::state_dir::OpenOptions;

/// Operations between two commits.
const BATCH: u64 = 256;
/// Different keys.
const KEYS: u64 = 20_000;

const DELETE: u8 = 0;
const PUT: u8 = 1;
const DELETE_RANGE: u8 = 2;
const LOOK_UP: u8 = 3;
const COMMIT: u8 = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["write", file, seed, operations] => {
            Ok(fs::write(file, history(seed.parse()?, operations.parse()?))?)
        }
        ["run", file, dir] => run(&fs::read(file)?, Path::new(dir)),
        _ => Err("see the usage".into()),
    }
}

/// A generator of numbers: `splitmix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Key of 16 bytes, spread over all.
fn key_of(number: u64) -> Vec<u8> {
    [ordered(mix(number)), ordered(mix(!number))].concat()
}

/// Bytes that sort as their numbers do.
#[expect(clippy::big_endian_bytes, reason = "keys sort by their bytes")]
fn ordered(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Writes a history.
fn history(seed: u64, operations: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut present: BTreeSet<u64> = BTreeSet::new();
    let mut touched: BTreeSet<u64> = BTreeSet::new();
    let mut out = Vec::new();
    for operation in 0..operations {
        let number = random.below(KEYS);
        let key = key_of(number);
        match random.below(100) {
            0 => {
                // A range of about one key in 2,000.
                let end = ordered(mix(number).saturating_add(u64::MAX / 2_000));
                push(&mut out, DELETE_RANGE, &key, &end);
            }
            1..=25 => push(&mut out, LOOK_UP, &key, &[]),
            26..=45 if present.contains(&number) && touched.insert(number) => {
                present.remove(&number);
                push(&mut out, DELETE, &key, &[]);
            }
            _ if touched.insert(number) => {
                present.insert(number);
                let value: Vec<u8> = (0..=random.below(60)).map(|_| random.next() as u8).collect();
                push(&mut out, PUT, &key, &value);
            }
            _ => push(&mut out, LOOK_UP, &key, &[]),
        }
        if operation % BATCH == BATCH - 1 || operation == operations - 1 {
            push(&mut out, COMMIT, &[], &[]);
            touched.clear();
        }
    }
    out
}

fn push(out: &mut Vec<u8>, kind: u8, key: &[u8], value: &[u8]) {
    out.extend([kind, key.len() as u8]);
    out.extend(key);
    out.push(value.len() as u8);
    out.extend(value);
}

/// A record of the history.
struct Record<'a> {
    kind: u8,
    key: &'a [u8],
    value: &'a [u8],
}

/// The records of a history.
fn records(history: &[u8]) -> impl Iterator<Item = Record<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let kind = *history.get(at)?;
        let field = |from: usize| -> Range<usize> { from + 1..from + 1 + history[from] as usize };
        let key = field(at + 1);
        let value = field(key.end);
        at = value.end;
        Some(Record { kind, key: &history[key], value: &history[value] })
    })
}

/// Tables and trees that a history goes to.
struct Target {
    store: Store,
    plain: terrane::lsm::NamedTable,
    committed: CommittedTable,
    tree: terrane::radix::Tree,
    root: Root,
    answers: u64,
}

fn run(history: &[u8], dir: &Path) -> Result<(), Box<dyn Error>> {
    let options = StoreOptions::default().create_dir().durability(Durability::Buffered);
    let store = Store::open_dir(dir.join("store"), &options)?;
    let options = OpenOptions::default().durability(Durability::Buffered);
    let state = options.open_or_create(&dir.join("radix"))?;
    let mut target = Target {
        plain: store.table_or_create("plain", &TableConfig::default())?,
        committed: CommittedTable::open(&store, "committed")?,
        tree: state.tree_or_create("main")?,
        root: Root::EMPTY,
        answers: 0xcbf2_9ce4_8422_2325,
        store,
    };

    let mut pending = Vec::new();
    for record in records(history) {
        if record.kind == COMMIT {
            target.commit(&pending)?;
            pending.clear();
        } else {
            pending.push(record);
        }
    }

    let entries = target.plain.view()?.export_canonical(std::io::sink())?;
    println!("plain {} {}", entries.count, hex(&entries.digest));
    println!("committed {}", hex(target.committed.root()?.as_slice()));
    println!("radix {}", hex(&target.root.0));
    println!("answers {:016x}", target.answers);
    target.store.close()?;
    Ok(state.close()?)
}

impl Target {
    /// Applies the operations since the commit before.
    fn commit(&mut self, records: &[Record<'_>]) -> Result<(), Box<dyn Error>> {
        let of = |kind: u8| records.iter().filter(move |record| record.kind == kind);
        let mut batch = WriteBatch::new();
        for record in of(PUT) {
            batch.insert(&self.plain, record.key, record.value);
        }
        for record in of(DELETE) {
            batch.delete(&self.plain, record.key);
        }
        drop(self.store.write(&batch)?); // nobody waits for it
        for record in of(DELETE_RANGE) {
            drop(self.plain.delete_range(record.key..record.value)?);
        }

        let puts = of(PUT).map(|record| (record.key.to_vec(), Some(record.value.to_vec())));
        let deletes = of(DELETE).map(|record| (record.key.to_vec(), None));
        let changes: Vec<(Vec<u8>, Option<Vec<u8>>)> = puts.chain(deletes).collect();
        let mut batch = WriteBatch::new();
        let staged = self.committed.stage(&changes, &mut batch)?;
        drop(self.store.write_if(&batch, staged.commit)?);

        let changes = changes.into_iter().map(|(key, value)| -> Result<Change, Box<dyn Error>> {
            let address = Address::new(&key)?;
            Ok(value.map_or(Change::Delete(address), |value| Change::Set(address, value)))
        });
        let changes = changes.collect::<Result<Vec<Change>, _>>()?;
        self.root = self.tree.commit(&self.root, &changes)?.root;

        let keys: Vec<&[u8]> = of(LOOK_UP).map(|record| record.key).collect();
        for answer in self.plain.get_many(&keys)? {
            self.fold(&[u8::from(answer.is_found())]);
            self.fold(answer.value().unwrap_or_default());
        }
        Ok(())
    }

    fn fold(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.answers = (self.answers ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // a string takes all
        text
    })
}
