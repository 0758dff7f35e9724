//! Recipe: a set of unspent outputs, where each block is one atomic batch that can be undone.
//!
//! Every block writes an undo record beside its changes, in the same batch. Rolling back a block
//! reads the record and writes the opposite batch. That is cheaper than a retained version for
//! each block; see `pruning_node` for versions.

#![forbid(unsafe_code)]
#![expect(clippy::big_endian_bytes, reason = "big-endian numbers sort as keys do")]

use std::error::Error;
use std::path::Path;

use terrane::lsm::{NamedTable, Store, StoreOptions, TableConfig, WriteBatch};

/// Transaction id and output number.
type OutPoint = [u8; 36];

/// Changes of one block: the outputs that it spends and those that it creates.
struct Block {
    height: u64,
    spent: Vec<OutPoint>,
    created: Vec<(OutPoint, u64)>,
}

/// The tables of a node.
struct Node {
    store: Store,
    coins: NamedTable,
    undo: NamedTable,
}

impl Node {
    fn open(dir: &Path) -> Result<Self, Box<dyn Error>> {
        let store = Store::open_dir(dir, &StoreOptions::default().create_dir())?;
        let coins = store.table_or_create("coins", &TableConfig::default())?;
        let undo = store.table_or_create("undo", &TableConfig::default())?;
        Ok(Self { store, coins, undo })
    }

    /// Applies a block. The block is durable when this returns.
    fn connect(&self, block: &Block) -> Result<(), Box<dyn Error>> {
        let spent = self.coins.get_many(&block.spent)?; // the reads run side by side
        let mut batch = WriteBatch::new();
        let mut record = Vec::new();

        for (point, coin) in block.spent.iter().zip(&spent) {
            let amount = coin.value().ok_or("a block spends an output that is not there")?;
            record.extend_from_slice(point);
            record.extend_from_slice(amount);
            batch.delete(&self.coins, point);
        }
        for (point, amount) in &block.created {
            record.extend_from_slice(point);
            batch.insert(&self.coins, point, amount.to_le_bytes());
        }

        // The count of spent outputs tells where the created ones begin.
        record.extend_from_slice(&(block.spent.len() as u64).to_le_bytes());
        batch.insert(&self.undo, block.height.to_be_bytes(), &record);
        self.store.write(&batch)?.wait()?;
        Ok(())
    }

    /// Takes back the block of a height.
    fn disconnect(&self, height: u64) -> Result<(), Box<dyn Error>> {
        let found = self.undo.get(&height.to_be_bytes())?;
        let record = found.value().ok_or("the block was not connected")?;
        let (rest, count) = record.split_at(record.len() - 8);
        let (spent, created) = rest.split_at(u64::from_le_bytes(count.try_into()?) as usize * 44);
        let mut batch = WriteBatch::new();

        for point in created.chunks_exact(36) {
            batch.delete(&self.coins, point);
        }
        for coin in spent.chunks_exact(44) {
            batch.insert(&self.coins, &coin[..36], &coin[36..]);
        }
        batch.delete(&self.undo, height.to_be_bytes());
        self.store.write(&batch)?.wait()?;
        Ok(())
    }
}

fn point(height: u64) -> OutPoint {
    let mut point = [0; 36];
    point[..8].copy_from_slice(&height.to_be_bytes());
    point
}

/// Connects blocks, takes some back, and opens the store again.
fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let node = Node::open(&dir.join("chain"))?;
    for height in 1..=10 {
        // Each block spends the coin of the block before.
        let spent = if height == 1 { Vec::new() } else { vec![point(height - 1)] };
        node.connect(&Block { height, spent, created: vec![(point(height), 50 * height)] })?;
    }

    // Another branch turns out to be longer: go back to height 7.
    for height in (8..=10).rev() {
        node.disconnect(height)?;
    }
    node.store.close()?;
    drop(node);

    let node = Node::open(&dir.join("chain"))?;
    let coin = node.coins.get(&point(7))?;
    assert_eq!(coin.value(), Some(350_u64.to_le_bytes().as_slice()));
    assert!(!node.coins.get(&point(8))?.is_found());
    println!("rolled back to height 7; its coin has 350");
    Ok(node.store.close()?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    run(place.path())
}
