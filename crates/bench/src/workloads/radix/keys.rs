//! Random addresses and values of a seed: for each key 32 bytes of address, then 16 bytes of value,
//! as `ChaCha8` gives them, so that another program with the same generator makes the same states.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use terrane::radix::{Address, Change};

use super::super::{Error, Result};

/// Bytes of an address.
pub const ADDRESS_BYTES: usize = 32;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 16;

/// A key with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The address.
    pub address: [u8; ADDRESS_BYTES],
    /// The value.
    pub value: [u8; VALUE_BYTES],
}

impl Key {
    /// Returns the change that sets the value.
    ///
    /// # Errors
    /// None that can be: all addresses of this size are some.
    pub fn change(&self) -> Result<Change> {
        Ok(Change::Set(address(&self.address)?, self.value.to_vec()))
    }
}

/// An address of these bytes.
///
/// # Errors
/// [`Error::Options`] if they are none.
pub fn address(bytes: &[u8]) -> Result<Address> {
    Address::new(bytes).map_err(|error| Error::Options(error.to_string()))
}

/// The keys of a seed, one after the other.
#[derive(Debug, Clone)]
pub struct Keys(ChaCha8Rng);

impl Keys {
    /// Those of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound.max(1)
    }
}

impl Iterator for Keys {
    type Item = Key;

    fn next(&mut self) -> Option<Key> {
        let mut key = Key { address: [0; ADDRESS_BYTES], value: [0; VALUE_BYTES] };
        self.0.fill_bytes(&mut key.address);
        self.0.fill_bytes(&mut key.value);
        Some(key)
    }
}
