//! What the cache of a context store holds: decoded records and values, by their addresses.

use std::sync::Arc;

use terrane_io::cache::{Key, Weigh};

use crate::base::address::Address;
use crate::object::record::Record;

/// What is cached of an address.
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
    /// Nobody chooses addresses.
    fn hash(self) -> u64 {
        let wide = u128::from(self.to_u64() ^ 0x9E37_79B9_7F4A_7C15) * 0xA076_1D64_78BD_642F;
        (wide >> 64) as u64 ^ wide as u64
    }
}
