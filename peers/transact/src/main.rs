//! The Merkle-radix state of crate `transact` on the loads that Terrane's is measured on, over
//! transact's LMDB database, configured as it configures it itself, and over its `BTree` database.
//!
//! `terrane-peer-transact [DIR [SEED]]` keeps its databases in a new folder below DIR (or the
//! folder for temporary files) that it removes at the end, and prints one JSON object.
//!
//! **Keys.** Every load starts `ChaCha8Rng::seed_from_u64(SEED)` anew and draws key after key with
//! `fill_bytes`: 32 bytes of address, then 16 bytes of value. An address is given to transact as 64
//! lower-case hex digits. So the roots of another implementation can be compared with these.
//!
//! **Loads**, each in a database of its own and each commit on the root of the one before:
//! - `single`: 1,000 and 10,000 commits of one key; `pruned`: the first of them again, with a prune
//!   of the root before after each commit;
//! - `batches`: 100 commits of 1,000 keys, all versions kept; `allocated_bytes` are the blocks of
//!   its files after a sync outside the measured time;
//! - `get`: 100,000 random reads of the last root of `batches`, each key read once before;
//!   `us_handle` by one `MerkleRadixTree`, `us_state` by `MerkleState`, which reads the root first;
//! - `update`: transact's test `update_multiple_entries`, see [`update`].
//!
//! Times are of the calls alone, in microseconds, `wall` by the clock and `cpu` of the processor,
//! as a mean over all commits and over the last tenth of them. On a busy host only `cpu` says
//! something. LMDB runs with MAPASYNC: no commit of it waits for the disk.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha512};
use transact::database::Database;
use transact::database::btree::BTreeDatabase;
use transact::database::lmdb::{LmdbContext, LmdbDatabase};
use transact::state::merkle::kv::{INDEXES, MerkleRadixTree, MerkleState};
use transact::state::{Prune as _, Read as _, StateChange, Write as _};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let seed = arguments.next().map_or(Ok(8), |text| {
        text.parse().map_err(|error| format!("SEED is {text:?}, not a number: {error}"))
    })?;
    let load_before = load_average();
    let mut report = json!({ "engine": "transact 0.4.7", "seed": seed });
    report["lmdb"] = loads(lmdb, &parent, seed)?;
    report["btree"] = loads(|_| Ok(Box::new(BTreeDatabase::new(&INDEXES))), &parent, seed)?;
    report["load_average"] = json!({ "before": load_before, "after": load_average() });
    println!("{report:#}");
    Ok(())
}

/// The load averages of the host, where it tells them.
fn load_average() -> Option<String> {
    Some(fs::read_to_string("/proc/loadavg").ok()?.trim_end().to_owned())
}

/// An empty LMDB database in the file `state` of `folder`, with the default size of its map.
fn lmdb(folder: &Path) -> Result<Box<dyn Database>> {
    let context = LmdbContext::new(&folder.join("state"), INDEXES.len(), None)?;
    Ok(Box::new(LmdbDatabase::new(context, &INDEXES)?))
}

type Open = fn(&Path) -> Result<Box<dyn Database>>;

/// All loads, each on a database of its own in a folder that is gone afterwards.
fn loads(open: Open, parent: &Path, seed: u64) -> Result<Value> {
    let fresh = |run: &dyn Fn(&dyn Database, &Path) -> Result<Value>| {
        let folder = tempfile::tempdir_in(parent)?;
        run(&*open(folder.path())?, folder.path())
    };
    let single = |commits, prune| {
        fresh(&|database, _| Ok(chain(database, &changes(seed, commits), 1, prune)?.1))
    };
    let batches = fresh(&|database, folder| {
        let changes = changes(seed, 100_000);
        let (root, mut report) = chain(database, &changes, 1_000, false)?;
        report["allocated_bytes"] = json!(allocated(folder)?);
        report["get"] = gets(database, &root, &changes, seed)?;
        Ok(report)
    })?;
    Ok(json!({
        "single": [single(1_000, false)?, single(10_000, false)?],
        "pruned": single(1_000, true)?,
        "batches": batches,
        "update": fresh(&|database, _| update(database, seed))?,
    }))
}

/// One change for each of the first `count` keys that `seed` gives.
fn changes(seed: u64, count: usize) -> Vec<StateChange> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| {
            let (mut address, mut value) = ([0; 32], vec![0; 16]);
            rng.fill_bytes(&mut address);
            rng.fill_bytes(&mut value);
            StateChange::Set { key: hex::encode(address), value }
        })
        .collect()
}

/// Microseconds of the wall clock and of the processor.
type Micros = [f64; 2];

fn now() -> Micros {
    [ClockId::Monotonic, ClockId::ThreadCPUTime].map(|clock| {
        let time = clock_gettime(clock);
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    })
}

fn since(start: Micros) -> Micros {
    let end = now();
    [end[0] - start[0], end[1] - start[1]]
}

/// The times per operation, rounded to nanoseconds.
fn mean(times: &[Micros], operations: usize) -> Value {
    let sum = |clock: usize| times.iter().map(|time| time[clock]).sum::<f64>();
    let [wall, cpu] = [0, 1].map(|clock| (sum(clock) / operations as f64 * 1e3).round() / 1e3);
    json!({ "wall": wall, "cpu": cpu })
}

/// Commits `changes` in pieces of `keys_per_commit`, each on the root of the piece before, and
/// with `prune` drops that root after each commit. Gives the last root and the times.
fn chain(
    database: &dyn Database,
    changes: &[StateChange],
    keys_per_commit: usize,
    prune: bool,
) -> Result<(String, Value)> {
    let mut root = MerkleRadixTree::new(database.clone_box(), None)?.get_merkle_root();
    let state = MerkleState::new(database.clone_box());
    let (mut times, mut removed) = (Vec::new(), 0);
    for batch in changes.chunks(keys_per_commit) {
        let start = now();
        let next = state.commit(&root, batch)?;
        let previous = std::mem::replace(&mut root, next);
        if prune {
            removed += state.prune(vec![previous])?.len();
        }
        times.push(since(start));
    }
    let last = &times[times.len() * 9 / 10..];
    let report = json!({
        "commits": times.len(),
        "keys_per_commit": keys_per_commit,
        "us_per_key": mean(&times, changes.len()),
        "us_per_key_last_tenth": mean(last, last.len() * keys_per_commit),
        "removed_nodes": removed,
        "root": root,
    });
    Ok((root, report))
}

/// The bytes of the blocks that the files of `folder` occupy once they are written back.
fn allocated(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let file = File::open(entry?.path())?;
        file.sync_all()?;
        bytes += file.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

/// Reads every key of `changes` once, with a check of its value, then as many random ones on the
/// clock, twice.
fn gets(database: &dyn Database, root: &str, changes: &[StateChange], seed: u64) -> Result<Value> {
    let tree = MerkleRadixTree::new(database.clone_box(), Some(root))?;
    for change in changes {
        let StateChange::Set { key, value } = change else { continue };
        expect(tree.get_value(key)?.as_ref() == Some(value), "a value read is the one written")?;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let keys: Vec<String> = (0..changes.len())
        .map(|_| changes[below(&mut rng, changes.len())].key().to_owned())
        .collect();
    let time = |read: &dyn Fn(&String) -> Result<bool>| {
        let start = now();
        keys.iter().try_for_each(|key| expect(read(key)?, "every key is found"))?;
        Result::Ok(mean(&[since(start)], keys.len()))
    };
    let (state, root) = (MerkleState::new(database.clone_box()), root.to_owned());
    Ok(json!({
        "us_handle": time(&|key| Ok(tree.get_value(key)?.is_some()))?,
        "us_state": time(&|key| Ok(!state.get(&root, std::slice::from_ref(key))?.is_empty()))?,
    }))
}

/// The next `next_u64` of `rng` modulo `bound`.
fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    (rng.next_u64() % bound as u64) as usize
}

/// Transact's test: 1,000 commits of one key, key `i` being the hex digits of the first 32 bytes of
/// SHA-512 of its value, which is `i` as 16 hex digits; then one batch, dry and for good, that sets
/// 50 keys below 500 to `5.0` and deletes 50 above; then a read of every key. The 50 are the first
/// distinct draws of [`below`] 500, those to set before those to delete.
fn update(database: &dyn Database, seed: u64) -> Result<Value> {
    let text = |i: usize| format!("{i:016x}");
    let keys: Vec<String> =
        (0..1_000).map(|i| hex::encode(&Sha512::digest(text(i))[..32])).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut pick = || {
        let mut picked = BTreeSet::new();
        while picked.len() < 50 {
            picked.insert(below(&mut rng, 500));
        }
        picked
    };
    let (set, deleted) = (pick(), pick().into_iter().map(|i| i + 500).collect::<BTreeSet<_>>());

    let start = now();
    let mut tree = MerkleRadixTree::new(database.clone_box(), None)?;
    for (i, key) in keys.iter().enumerate() {
        let change = StateChange::Set { key: key.clone(), value: text(i).into_bytes() };
        tree.set_merkle_root(tree.update(&[change], false)?)?;
    }
    let sets = set.iter().map(|&i| StateChange::Set { key: keys[i].clone(), value: b"5.0".into() });
    let deletes = deleted.iter().map(|&i| StateChange::Delete { key: keys[i].clone() });
    let batch: Vec<StateChange> = sets.chain(deletes).collect();
    let dry = tree.update(&batch, true)?;
    expect(tree.set_merkle_root(dry.clone()).is_err(), "the root of a dry run is unknown")?;
    tree.set_merkle_root(tree.update(&batch, false)?)?;
    expect(tree.get_merkle_root() == dry, "a dry run gives the root of the commit")?;
    for (i, key) in keys.iter().enumerate() {
        let value = match (set.contains(&i), deleted.contains(&i)) {
            (true, _) => Some(b"5.0".to_vec()),
            (_, true) => None,
            _ => Some(text(i).into_bytes()),
        };
        expect(tree.get_value(key)? == value, "a key has its last value")?;
    }
    Ok(json!({ "us": mean(&[since(start)], 1), "root": dry }))
}

/// An error that names the rule that does not hold.
fn expect(holds: bool, rule: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(format!("transact broke a rule of its own: {rule}").into()) }
}
