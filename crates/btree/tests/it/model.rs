//! The index against a sorted map.
//!
//! Goal: whatever is done, lookups, cursors and the length are those of a sorted map, the files on disk are consistent, and
//! closing and opening changes nothing. Method: random operations on both, with buffers so small that leaves are divided and
//! joined all the time, or so large that nothing is drained; compared after each step.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_btree::{Config, Cursor, Index, IndexReader, IterRecords, Update, check};
use terrane_io::{Disk, SimDisk};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) const DIR: &str = "/index";

fn disk(seed: u64) -> Arc<dyn Disk> {
    SimDisk::new(seed)
}

fn list(cursor: Cursor) -> Vec<(Vec<u8>, Vec<u8>)> {
    cursor.map(|entry| entry.unwrap()).collect()
}

fn expected<'a>(
    entries: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    entries.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Keys that are near each other, so that they are hit again and share prefixes.
fn draw_key(rng: &mut ChaCha8Rng, fixed: Option<usize>, spread: u64) -> Vec<u8> {
    let number = rng.below(spread);
    let mut key = match number % 3 {
        0 => format!("IN{number:04}"),
        1 => format!("INDEX/{number}"),
        _ => format!("account/{}/{number}", number % 7),
    }
    .into_bytes();
    if let Some(bytes) = fixed {
        key.resize(bytes, b'.');
    } else if number % 50 == 0 {
        key.resize(300, b'x');
    }
    key
}

fn draw_value(rng: &mut ChaCha8Rng, fixed: Option<usize>) -> Vec<u8> {
    let len = fixed.unwrap_or_else(|| if rng.chance(1, 20) { 700 } else { rng.index(60) });
    rng.bytes(len)
}

fn check_all(index: &Index, disk: &Arc<dyn Disk>, model: &Model) {
    assert_eq!(index.len().unwrap(), model.len() as u64);
    assert_eq!(list(index.iter().unwrap()), expected(model.iter()));
    index.checkpoint().unwrap();
    let report = check(disk, Path::new(DIR), &mut |_, _| {}).unwrap();
    assert_eq!(report.problems, []);
    assert_eq!(report.entries, model.len() as u64);
}

fn run(rng: &mut ChaCha8Rng, seed: u64, steps: u64) {
    let fixed = (seed % 2 == 0).then_some(16);
    let fixed_value = (seed % 3 == 0).then_some(13);
    let buffer = [0, 4_000, 200_000][(seed % 3) as usize];
    let mut config = Config::variable().with_memory(1 << 20).with_buffer(buffer).with_log(1 << 16);
    (config.key_bytes, config.value_bytes) = (fixed, fixed_value);
    let disk = disk(seed);
    let mut index = Index::create(disk.clone(), Path::new(DIR), &config).unwrap();
    let reader = IndexReader::open(disk.clone(), Path::new(DIR), &config).unwrap();
    let (mut model, mut flushed) = (Model::new(), Model::new());
    let spread = [60, 3_000][rng.index(2)];
    for step in 0..steps {
        match rng.below(100) {
            0..40 => {
                let mut batch = Vec::new();
                for _ in 0..1 + rng.below(60) {
                    let key = draw_key(rng, fixed, spread);
                    let value = rng.chance(2, 3).then(|| draw_value(rng, fixed_value));
                    batch.push((key, value));
                }
                let updates: Vec<Update<'_>> = batch
                    .iter()
                    .map(|(key, value)| match value {
                        Some(value) => Update::Replace(key, value),
                        None => Update::Remove(key),
                    })
                    .collect();
                let removed = index.apply(&updates).unwrap();
                let mut expected = 0;
                for (key, value) in batch {
                    match value {
                        Some(value) => {
                            model.insert(key, value);
                        }
                        None => expected += usize::from(model.remove(&key).is_some()),
                    }
                }
                assert_eq!(removed, expected);
            }
            40..60 => {
                let (key, value) = (draw_key(rng, fixed, spread), draw_value(rng, fixed_value));
                index.replace(&key, &value).unwrap();
                model.insert(key, value);
            }
            60..70 => {
                let key = draw_key(rng, fixed, spread);
                assert_eq!(index.remove(&key).unwrap(), model.remove(&key).is_some());
            }
            70..80 => {
                index.flush(rng.chance(1, 2)).unwrap();
                flushed.clone_from(&model);
            }
            80..88 => {
                let (low, high) = (draw_key(rng, fixed, spread), draw_key(rng, fixed, spread));
                let forward = list(index.range(low.clone()..high.clone()).unwrap());
                let mut backward = list(index.range_back(low.clone()..high.clone()).unwrap());
                backward.reverse();
                assert_eq!(forward, backward);
                let in_range =
                    if low < high { expected(model.range(low..high)) } else { Vec::new() };
                assert_eq!(forward, in_range);
                let prefix = draw_key(rng, fixed, spread);
                let prefix = &prefix[..rng.index(prefix.len())];
                let with_prefix = model.iter().filter(|(key, _)| key.starts_with(prefix));
                assert_eq!(list(index.prefix(prefix).unwrap()), expected(with_prefix));
            }
            88..92 => {
                let keys: Vec<_> = (0..40).map(|_| draw_key(rng, fixed, spread)).collect();
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let found = index.find_many(&keys).unwrap();
                for (key, value) in keys.iter().zip(found) {
                    assert_eq!(value.as_ref(), model.get(*key));
                    assert_eq!(index.mem(key).unwrap(), value.is_some());
                }
            }
            92 => {
                let modulus = 2 + rng.below(4) as usize;
                index
                    .filter(|key, _| {
                        key.iter().map(|&b| usize::from(b)).sum::<usize>() % modulus != 0
                    })
                    .unwrap();
                model.retain(|key, _| {
                    key.iter().map(|&b| usize::from(b)).sum::<usize>() % modulus != 0
                });
                flushed.clone_from(&model);
            }
            93 if rng.chance(1, 3) => {
                index.clear().unwrap();
                model.clear();
                flushed.clear();
            }
            94 => {
                index.compact().unwrap();
                flushed.clone_from(&model);
            }
            95 if rng.chance(1, 3) => {
                index.clear().unwrap();
                let fill = 50 + rng.below(51) as u32;
                let mut input = IterRecords::new(model.clone());
                index.build_sorted(&mut input, fill, |_| {}).unwrap();
                flushed.clone_from(&model);
            }
            96 => {
                index.close().unwrap();
                drop(index);
                index = Index::open(disk.clone(), Path::new(DIR), &config).unwrap();
                flushed.clone_from(&model);
            }
            97 => check_all(&index, &disk, &model),
            _ => {
                reader.sync().unwrap();
                // What was not flushed by hand may have been all the same; so flush before comparing.
                index.flush(false).unwrap();
                reader.sync().unwrap();
                flushed.clone_from(&model);
                assert_eq!(list(reader.iter().unwrap()), expected(flushed.iter()), "step {step}");
                assert_eq!(reader.len().unwrap(), flushed.len() as u64);
            }
        }
    }
    check_all(&index, &disk, &model);
    index.close().unwrap();
    index.close().unwrap();
}

#[test]
fn the_index_is_a_sorted_map() {
    for_each_seed("the_index_is_a_sorted_map", 12, |rng, seed| run(rng, seed, 250));
}
