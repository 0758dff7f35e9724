//! `terrane bench index`: the workloads of an index that finds objects by their hashes.
//!
//! Keys of 32 bytes, values of 13. Entries are *numbered*; key and value follow from the number and
//! the seed, so every value that is found is compared with what it must be.
//!
//! Several engines do identical work, one after the other, each in a directory of its own
//! below the store, with the same memory budget and as many durable flushes. [`high_insert`]
//! inserts into an empty map, [`bootstrap`] does what a node does that starts with many entries,
//! [`replay`] does what a trace says.

use super::{Error, Result, seconds, splitmix};

// Bottom-up: a module imports only from modules above it.
pub mod map;
mod maps;
pub mod engine;
mod curve;
pub mod report;
mod runner;
pub mod high_insert;
pub mod bootstrap;
pub mod replay;

pub use self::runner::Common;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// Bytes of a value: an offset, a length and a kind.
pub const VALUE_BYTES: usize = 13;

/// Bytes of a key and its value.
pub const ENTRY_BYTES: u64 = (KEY_BYTES + VALUE_BYTES) as u64;

/// A key.
pub type Key = [u8; KEY_BYTES];

/// A value.
pub type Value = [u8; VALUE_BYTES];

/// The most entries of a run: four thousand million, more than any machine here could do in a week.
const ENTRIES_MAX: u64 = 1 << 32;

fn bounded_entries(name: &str, value: u64) -> Result<()> {
    if (1..=ENTRIES_MAX).contains(&value) {
        return Ok(());
    }
    Err(Error::Options(format!("{name} must be at least 1 and at most {ENTRIES_MAX}")))
}

/// The entries of a run, by number.
///
/// The first ones are those that a run begins with, and come in the order of their keys, so that no
/// sorting is needed to load them: the first eight bytes of key *i* of *n* lie in the *i*-th of *n*
/// equal parts of all numbers of eight bytes. The keys of all others are random from the first byte
/// on.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    seed: u64,
    /// Entries that a run begins with.
    loaded: u64,
}

impl Numbers {
    fn new(seed: u64, loaded: u64) -> Self {
        Self { seed, loaded }
    }

    /// Key and value of a number.
    #[expect(clippy::big_endian_bytes, reason = "so that keys ascend with their numbers")]
    fn entry(self, number: u64) -> (Key, Value) {
        let mut key = [0; KEY_BYTES];
        let mut value = [0; VALUE_BYTES];

        // `splitmix` is a bijection, so no two of these have one key.
        let drawn = splitmix(self.seed ^ number);
        fill(&mut key, drawn);
        fill(&mut value, splitmix(!self.seed ^ number));

        if number < self.loaded {
            let part = u64::MAX / self.loaded;
            key[..8].copy_from_slice(&(number * part + drawn % part).to_be_bytes());
        }

        (key, value)
    }
}

fn fill(bytes: &mut [u8], mut state: u64) {
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        state = splitmix(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_differ_by_number_and_seed_in_all_parts() {
        let numbers = Numbers::new(1, 0);
        let one = numbers.entry(1);
        let other = numbers.entry(2);
        assert!(one.0[..8] != other.0[..8] && one.0[24..] != other.0[24..]);
        assert!(one.1[..8] != other.1[..8] && one.1[8..] != other.1[8..]);
        assert_ne!(one, Numbers::new(2, 0).entry(1));
        assert_eq!(one, numbers.entry(1));
    }

    #[test]
    fn loaded_entries_ascend_and_others_do_not() {
        let numbers = Numbers::new(7, 1_000);
        let keys: Vec<Key> = (0..2_000).map(|number| numbers.entry(number).0).collect();
        assert!(keys[..1_000].is_sorted_by(|left, right| left < right));
        assert!(!keys[1_000..].is_sorted());
        assert!(keys[0][0] == 0 && keys[999][0] == 255);
    }
}
