//! `terrane bench kvget`: what a lookup of a random key costs in reads when memory is a small part
//! of the data.
//!
//! The workload of the published `bench_kvdb`: 32-byte keys, the hashes of a counter; values of 110
//! bytes, which here are incompressible and a function of the key's number, so that every one that
//! is found is compared with what it must be. [`setup`] inserts the numbers from 0 on and leaves a
//! table without unfinished merges and with an empty write buffer; [`run`] opens it with the memory
//! that is to be measured, waits until its cost is steady, and reads. A run changes nothing and can
//! be repeated.
//!
//! A *hit* is a read of a key that is there, a *miss* of one that is not; a key that is not found
//! and should be, or the other way round, ends the run.

use terrane::lsm::SnapshotName;

use super::values::Values;
use super::{Result, utxo};

// Bottom-up: a module imports only from modules above it.
pub mod data;
mod windows;
pub mod setup;
mod measured;
pub mod report;
pub mod run;

pub use utxo::Shape;

/// A prepared table: what its snapshot's label says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Seed of the values and of what is read.
    pub seed: u64,
    /// Keys in the table: the numbers below this.
    pub keys: u64,
    /// Shape of the table.
    pub shape: Shape,
    /// Values of the table.
    pub values: Values,
    /// Bytes of all keys and values.
    pub logical_bytes: u64,
}

impl Prepared {
    /// The name that the snapshot has in its store.
    fn snapshot() -> Result<SnapshotName> {
        Ok(SnapshotName::new("bench-kvget")?)
    }

    fn label(&self) -> String {
        let Self { seed, keys, shape, values, logical_bytes } = self;
        let label = format!("bench kvget 1, seed {seed}, keys {keys}, shape {}", name_of(*shape));
        if *values == Values::default() {
            return label;
        }
        // Last, since the names of some values have commas.
        format!("{label}, bytes {logical_bytes}, values {}", values.name())
    }

    fn from_label(label: &str) -> Option<Self> {
        let mut fields = label.strip_prefix("bench kvget 1, ")?.splitn(5, ", ");
        let mut field = |name: &str| fields.next()?.strip_prefix(name)?.strip_prefix(' ');
        let seed = field("seed")?.parse().ok()?;
        let keys = field("keys")?.parse().ok()?;
        let shape = field("shape")?;
        let shape = SHAPES.into_iter().find(|&known| name_of(known) == shape)?;

        let bytes = fields.next();
        let values = fields.next();
        let (logical_bytes, values) = match bytes.zip(values) {
            Some((bytes, values)) => {
                let values = Values::from_name(values.strip_prefix("values ")?)?;
                (bytes.strip_prefix("bytes ")?.parse().ok()?, values)
            }
            None if bytes.is_some() => return None,
            None => (keys * data::ENTRY_BYTES, Values::default()),
        };
        Some(Self { seed, keys, shape, values, logical_bytes })
    }

    /// Mean bytes of a key and its value.
    pub(super) fn entry_bytes(&self) -> f64 {
        self.logical_bytes as f64 / self.keys as f64
    }
}

const SHAPES: [Shape; 2] = [Shape::Default, Shape::Levelled10];

/// The name of a shape on the command line and in reports.
#[must_use]
pub fn name_of(shape: Shape) -> &'static str {
    match shape {
        Shape::Default => "default",
        Shape::Levelled10 => "levelled-10",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_back_and_nothing_else_is() {
        for shape in SHAPES {
            for values in ["random:110", "bitcoin", "hist:10x1,20x3"] {
                let values = Values::from_name(values).unwrap();
                let prepared =
                    Prepared { seed: 7, keys: 100, shape, values, logical_bytes: 14_200 };
                assert_eq!(Prepared::from_label(&prepared.label()), Some(prepared));
            }
        }

        for label in [
            "",
            "bench kvget 1, seed 7, keys 100",
            "bench kvget 2, seed 7, keys 100, shape default",
            "bench kvget 1, seed 7, keys x, shape default",
            "bench kvget 1, seed 7, keys 100, shape round",
            "bench kvget 1, seed 7, keys 100, shape default, bytes 1",
            "bench kvget 1, seed 7, keys 100, shape default, bytes 1, values odd",
        ] {
            assert_eq!(Prepared::from_label(label), None, "{label}");
        }
    }
}
