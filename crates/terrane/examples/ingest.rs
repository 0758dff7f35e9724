//! Ingests a million entries, deletes half a million of them and as many others, looks up what is
//! left, and says how fast that was on one core.
//!
//! `cargo run --release --example ingest [ENTRIES [DIR]]`; then `terrane inspect DIR` shows the
//! shape. Keys are 34 bytes and uniform, values 60 bytes and random, as in a UTXO set; each update
//! batch has 500 entries. Merges run inside the updates, so the rate includes them.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Instant;

use terrane::lsm::{Session, SessionOptions, SnapshotName, TableConfig, Update};

const BATCH: u64 = 500;

/// `SplitMix64`: the words that follow state `n`.
fn words(mut state: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

fn fill(bytes: &mut [u8], state: u64) {
    for (chunk, word) in bytes.chunks_mut(8).zip(words(state)) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

fn key(n: u64) -> [u8; 34] {
    let mut key = [b'='; 34];
    fill(&mut key[..32], n);
    key
}

fn value(n: u64) -> [u8; 60] {
    let mut value = [0; 60];
    fill(&mut value, !n);
    value
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let entries: u64 = args.next().map_or(Ok(1_000_000), |text| text.parse())?;
    let dir = args.next().unwrap_or_else(|| "/tmp/terrane-ingest".to_owned());
    let session = Session::open_dir(&dir, &SessionOptions::default().create_dir())?;
    let snapshot = SnapshotName::new("ingest")?;
    if session.snapshot_exists(&snapshot)? {
        // An earlier run has left the snapshot.
        session.delete_snapshot(&snapshot)?;
    }
    let mut table = session.new_table(&TableConfig::default())?;

    // The entries are made first, so that the rate is that of the engine alone.
    let inserts: Vec<([u8; 34], [u8; 60])> = (0..entries).map(|n| (key(n), value(n))).collect();
    let start = Instant::now();
    for batch in inserts.chunks(BATCH as usize) {
        let batch: Vec<_> = batch.iter().map(|(k, v)| (k, Update::Insert(v))).collect();
        table.write_batch(&batch)?;
    }
    let insert_s = start.elapsed().as_secs_f64();

    // Every second key is deleted, and the same number of deletions is of keys that never existed.
    let deletes: Vec<[u8; 34]> =
        (0..entries).map(|n| key(if n % 2 == 0 { n } else { entries + n })).collect();
    let start = Instant::now();
    for batch in deletes.chunks(BATCH as usize) {
        let batch: Vec<_> = batch.iter().map(|key| (key, Update::Delete)).collect();
        table.write_batch(&batch)?;
    }
    let delete_s = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let mut found = 0;
    for first in (0..entries).step_by(256) {
        let numbers: Vec<u64> = (first..entries.min(first + 256)).collect();
        let keys: Vec<_> = numbers.iter().map(|&n| key(n)).collect();
        for (n, lookup) in numbers.into_iter().zip(table.get_many(&keys)?) {
            let expected = (n % 2 == 1).then(|| value(n));
            if lookup.value() != expected.as_ref().map(<[u8; 60]>::as_slice) {
                return Err(format!("key {n}: a wrong answer").into());
            }
            found += u64::from(lookup.is_found());
        }
    }
    let lookup_s = start.elapsed().as_secs_f64();
    table.save_snapshot(&snapshot, "example")?;

    let rate = |count: u64, s: f64| count as f64 / s / 1e6;
    let stats = table.stats();
    println!("inserts   {:7.3} M/s", rate(entries, insert_s));
    println!("deletes   {:7.3} M/s", rate(entries, delete_s));
    println!("updates   {:7.3} M/s", rate(2 * entries, insert_s + delete_s));
    println!("lookups   {:7.3} M/s, {found} found, all checked", rate(entries, lookup_s));
    println!(
        "reads     {:7.3} per key looked up",
        stats.lookup_reads as f64 / stats.lookups as f64
    );
    println!(
        "runs      {:7}, entries {}, snapshot `ingest` in {dir}",
        stats.runs(),
        stats.entries()
    );
    Ok(())
}
