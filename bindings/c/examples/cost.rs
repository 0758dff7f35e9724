//! Work of the Rust interface, whose instructions README.md counts beside those of
//! `tests/c/cost.c`.
//!
//! `bindings/python/bench/cost.py` runs it, too.
//!
//! usage: cost `EMPTY_FOLDER` get|put|get-one|put-one TIMES

#![forbid(unsafe_code)]

use terrane::lsm::{Durability, Store, StoreOptions, TableConfig, WriteBatch};

const ROWS: usize = 256;
const KEY_BYTES: usize = 32;
const VALUE_BYTES: usize = 60;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, dir, work, batches] = words.as_slice() else { return Err("see the usage".into()) };
    let options = StoreOptions::default().create_dir().durability(Durability::None);
    let store = Store::open_dir(dir, &options)?;
    let table = store.table_or_create("main", &TableConfig::default())?;

    let mut keys = Vec::new();
    let mut values = Vec::new();
    for row in 0..ROWS {
        let mut key = [(row * 37) as u8; KEY_BYTES];
        key[1] = row as u8;
        keys.extend_from_slice(&key);
        values.extend_from_slice(&[row as u8; VALUE_BYTES]);
    }
    let fill = |batch: &mut WriteBatch| {
        for (key, value) in keys.chunks(KEY_BYTES).zip(values.chunks(VALUE_BYTES)) {
            batch.insert(&table, key, value);
        }
    };
    let mut batch = WriteBatch::new();
    fill(&mut batch);
    let _ = store.write(&batch)?; // nobody waits for it

    let mut sum = 0;
    for time in 0..batches.parse::<usize>()? {
        let row = time % ROWS;
        let key = &keys[row * KEY_BYTES..][..KEY_BYTES];
        match work.as_str() {
            "get" => {
                let keys: Vec<&[u8]> = keys.chunks(KEY_BYTES).collect();
                for found in table.get_many(&keys)? {
                    sum += found.value().map_or(0, |value| u64::from(value[0]));
                }
            }
            "get-one" => {
                sum += table.get(key)?.value().map_or(0, |value| u64::from(value[0]));
            }
            "put-one" => {
                // nobody waits for it
                let _ = table.insert(key, &values[row * VALUE_BYTES..][..VALUE_BYTES])?;
            }
            _ => {
                batch.clear();
                fill(&mut batch);
                let _ = store.write(&batch)?; // nobody waits for it
            }
        }
    }
    println!("{sum}");
    Ok(store.close()?)
}
