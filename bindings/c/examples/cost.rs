//! Work of the Rust interface, whose cost the READMEs of the bindings have beside that of others.
//!
//! A batch is 256 keys of 32 bytes with values of 60 bytes, all in the memtable. `tests/c/cost.c`,
//! `bindings/go/cost` and `bindings/python/bench/cost.py` do the same work and print the same.
//!
//! usage: cost `EMPTY_FOLDER` get|put|get-one|put-one TIMES
//!
//! Prints the FNV-1a of all values at the end, which is equal in all languages.

#![forbid(unsafe_code)]

use terrane::lsm::{Durability, NamedTable, Store, StoreOptions, TableConfig, Values, WriteBatch};

const ROWS: usize = 256;
const KEY_BYTES: usize = 32;
const VALUE_BYTES: usize = 60;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().collect();
    let [_, dir, work, times] = words.as_slice() else { return Err("see the usage".into()) };
    let times: usize = times.parse()?;
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
    let mut batch = WriteBatch::new();
    fill(&mut batch, &table, &keys, &values);
    let _ = store.write(&batch)?; // nobody waits for it

    let mut found = Values::new();
    let mut sum = 0;
    for time in 0..times {
        let row = time % ROWS;
        let key = &keys[row * KEY_BYTES..][..KEY_BYTES];
        match work.as_str() {
            "get" => {
                let keys: Vec<&[u8]> = keys.chunks(KEY_BYTES).collect();
                table.get_many_into(&keys, &mut found)?;
                sum += found.iter().flatten().map(|value| u64::from(value[0])).sum::<u64>();
            }
            "get-one" => {
                sum += table.get(key)?.value().map_or(0, |value| u64::from(value[0]));
            }
            "put-one" => {
                // nobody waits for it
                let _ = table.insert(key, &values[row * VALUE_BYTES..][..VALUE_BYTES])?;
            }
            "put" => {
                batch.clear();
                fill(&mut batch, &table, &keys, &values);
                let _ = store.write(&batch)?; // nobody waits for it
            }
            _ => return Err("see the usage".into()),
        }
    }
    std::hint::black_box(sum);

    let mut fold = 0xcbf2_9ce4_8422_2325_u64;
    for key in keys.chunks(KEY_BYTES) {
        let found = table.get(key)?;
        for byte in found.value().ok_or("a key has no value")? {
            fold = (fold ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    println!("{fold:016x}");
    Ok(store.close()?)
}

fn fill(batch: &mut WriteBatch, table: &NamedTable, keys: &[u8], values: &[u8]) {
    for (key, value) in keys.chunks(KEY_BYTES).zip(values.chunks(VALUE_BYTES)) {
        batch.insert(table, key, value);
    }
}
