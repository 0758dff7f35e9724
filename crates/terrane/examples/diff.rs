//! Tells how many pages it takes to find what changed between two versions of a large table.
//!
//! `cargo run --release --example diff [ENTRIES [UPDATES [VERSIONS [DIR]]]]`
//!
//! A table is filled with ENTRIES entries; keys are 34 bytes and uniform, values 60 bytes and random. Then come
//! VERSIONS versions, UPDATES updates apart, each third of them inserts of new keys, new values of old keys, and
//! deletions. Pairs of neighbours are kept: one in ten, and each between which the write buffer was flushed, since
//! there merges begin. All other versions go, so that nothing is there but for what is kept. In the end, when
//! most of these merges are complete, each pair is compared, and so are the first and the last version.
//!
//! Pages are counted at the disk; all changes are checked against what the updates did. DIR is to be removed by
//! whoever named it.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrane::io::{CountedDisk, RealDisk};
use terrane::{Session, SessionOptions, Table, TableConfig, Update};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Key and value by their numbers; an entry that is there has the number of its newest value.
type Numbers = BTreeMap<Vec<u8>, Option<u64>>;

/// `SplitMix64`: the word that belongs to state `n`.
fn word(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn filled<const LEN: usize>(n: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(n.wrapping_mul(16) + at as u64).to_le_bytes()[..chunk.len()]);
    }
    bytes
}

fn key(n: u64) -> [u8; 34] {
    filled(n)
}

/// The value that a key gets with update `round`; 0 for the first one.
fn value(n: u64, round: u64) -> [u8; 60] {
    filled(!(n + (round << 40)))
}

/// A key by its number, with the number of the value that it has from then on, if any.
type Change = (u64, Option<u64>);

/// The changes of the step before version `version`: of three disjoint kinds, of keys that no other step changes.
fn step(entries: u64, updates: u64, version: u64) -> Vec<Change> {
    let each = updates / 3;
    let first = version * each;
    let new = (0..updates - 2 * each).map(|at| (entries + version * updates + at, Some(0)));
    let overwritten = (first..first + each).map(|n| (n, Some(version)));
    let deleted = (first..first + each).map(|n| (entries / 2 + n, None));
    new.chain(overwritten).chain(deleted).collect()
}

fn apply(table: &mut Table, changes: &[Change]) -> Outcome<()> {
    let made = |&(n, round): &Change| (key(n), round.map(|round| value(n, round)));
    let made: Vec<_> = changes.iter().map(made).collect();
    let update = |value: &'_ Option<[u8; 60]>| value.is_some();
    let batch: Vec<_> = made
        .iter()
        .map(|(key, value)| match value {
            Some(value) if update(&Some(*value)) => (key, Update::Insert(value)),
            _ => (key, Update::Delete),
        })
        .collect();
    Ok(table.updates(&batch)?)
}
