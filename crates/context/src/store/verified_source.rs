//! Verified reads: a source that hashes each node and value again before a tree uses it.
//!
//! The checksum of a record finds what a disk or a cable changed. The hash also finds a record that
//! was forged, or written wrongly, with a checksum that fits.

use std::sync::Arc;

use crate::base::address::{Address, Extent, Link};
use crate::base::corrupt::Corrupt;
use crate::base::error::{Error, Result};
use crate::base::hash::Hash;
use crate::base::hashing::Rules;
use crate::object::record::Record;
use crate::pack::pack::Pack;
use crate::tree::digest::hash_of;
use crate::tree::node::{Env, Node, Source};

/// Source of verified records. See the [module](self).
#[derive(Debug)]
pub(crate) struct VerifiedSource {
    pack: Arc<Pack>,
    /// Rules to hash by. Hashing a node loads nothing.
    env: Env,
}

impl VerifiedSource {
    pub(crate) fn new(pack: Arc<Pack>, rules: Rules) -> Self {
        Self { pack, env: Env::new(rules, None, false) }
    }

    /// Refuses a record with another hash than the link to it says.
    fn check(&self, link: &Link, found: &Hash, rule: &'static str) -> Result<()> {
        if link.hash == *found {
            return Ok(());
        }
        let what = Corrupt::rule(rule, first_bytes(&link.hash), first_bytes(found));
        Err(self.pack.damaged(link.extent.at, what))
    }
}

/// First eight bytes of a hash, as they are written in hexadecimal.
#[expect(clippy::big_endian_bytes, reason = "hexadecimal digits are written in this order")]
fn first_bytes(hash: &Hash) -> u64 {
    let (first, _) = hash.0.split_first_chunk().expect("a hash has 32 bytes");
    u64::from_be_bytes(*first)
}

impl Source for VerifiedSource {
    fn record(&self, link: &Link) -> Result<Arc<Record>> {
        let record = self.pack.record(link)?;
        let node = Node::of_record(Arc::clone(&record), link);
        self.check(link, &hash_of(&self.env, &node), "hash of a node")?;
        Ok(record)
    }

    fn value(&self, link: &Link) -> Result<Arc<[u8]>> {
        let value = self.pack.value(link)?;
        self.check(link, &self.env.rules.value_hash(&value), "hash of a value")?;
        Ok(value)
    }

    fn damaged(&self, at: Address, what: Corrupt) -> Error {
        self.pack.damaged(at, what)
    }

    fn fetch(&self, nodes: &[Extent], values: &[Extent]) -> Vec<Option<Arc<Record>>> {
        // A guess is verified when a tree loads the node from the cache.
        self.pack.fetch(nodes, values)
    }
}
