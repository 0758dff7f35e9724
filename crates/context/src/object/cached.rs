//! Values of the cache of a context store: decoded records and values by their addresses.

use std::sync::Arc;

use terrane_io::cache::{Key, Weigh};

use crate::base::address::Address;
use crate::object::record::Record;

/// Cached object of an address.
#[derive(Debug, Clone)]
pub(crate) enum Cached {
    Record(Arc<Record>),
    Value(Arc<[u8]>),
}

impl Weigh for Cached {
    fn weight(&self) -> usize {
        match self {
            Self::Record(record) => record.weight(),
            Self::Value(value) => value.len(),
        }
    }
}

impl Key for Address {
    /// No attacker chooses addresses, so the hash needs no key.
    fn hash(self) -> u64 {
        let wide = u128::from(self.to_u64() ^ 0x9E37_79B9_7F4A_7C15) * 0xA076_1D64_78BD_642F;
        (wide >> 64) as u64 ^ wide as u64
    }
}
