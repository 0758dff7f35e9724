//! Headers and bodies of blocks, as far as a replay without a virtual machine needs them.

use alloy_primitives::keccak256;
use alloy_rlp::{Decodable, Header as RlpHeader, PayloadView};
use terrane::mpt::{Address, B256, U256};

use crate::ethereum::error::Error;

/// The first height with another reward (Byzantium).
const NEXT_REWARD_HEIGHT: u64 = 4_370_000;

/// The reward of a block, in wei.
const REWARD_WEI: u64 = 5_000_000_000_000_000_000;

/// Greatest difference of heights between a block and its uncle, and the divisor of its reward.
const UNCLE_AGE_DIVISOR: u64 = 8;

/// Places of the fields of a header.
const PARENT: usize = 0;
const UNCLES_HASH: usize = 1;
const COINBASE: usize = 2;
const STATE_ROOT: usize = 3;
const NUMBER: usize = 8;

/// A block without transactions.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) height: u64,
    pub(super) hash: B256,
    pub(super) parent: B256,
    pub(super) root: B256,
    coinbase: Address,
    pub(super) uncles: Vec<Uncle>,
}

/// An uncle of a block.
#[derive(Debug)]
pub(super) struct Uncle {
    height: u64,
    coinbase: Address,
}

/// An increase of a balance.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reward {
    pub(super) address: Address,
    pub(super) amount: U256,
}

impl Block {
    /// Reads header and body of the block at a height.
    pub(super) fn read(height: u64, header: &[u8], body: &[u8]) -> Result<Self, Error> {
        let fault = |what| Error::Block { height, what };
        let fields = list(header).ok_or_else(|| fault("the header is no RLP list"))?;
        let number: u64 = field(&fields, NUMBER).ok_or_else(|| fault("the header is damaged"))?;
        if number != height {
            return Err(fault("the header has another height"));
        }

        let parts = list(body).ok_or_else(|| fault("the body is no RLP list"))?;
        let &[transactions, uncles] = &parts[..] else {
            return Err(fault("the body has not two parts"));
        };
        if list(transactions).is_none_or(|transactions| !transactions.is_empty()) {
            return Err(fault("it has transactions, which need a virtual machine"));
        }
        let read = || {
            let uncles_hash: B256 = field(&fields, UNCLES_HASH)?;
            let uncle = |uncle: &&[u8]| {
                let fields = list(uncle)?;
                Some(Uncle { height: field(&fields, NUMBER)?, coinbase: field(&fields, COINBASE)? })
            };
            let found = list(uncles)?.iter().map(uncle).collect::<Option<Vec<_>>>()?;
            let block = Self {
                height,
                hash: keccak256(header),
                parent: field(&fields, PARENT)?,
                root: field(&fields, STATE_ROOT)?,
                coinbase: field(&fields, COINBASE)?,
                uncles: found,
            };
            Some((block, uncles_hash))
        };
        let (block, uncles_hash) = read().ok_or_else(|| fault("a header is damaged"))?;
        if keccak256(uncles) != uncles_hash {
            return Err(fault("the body does not have the uncles of the header"));
        }
        Ok(block)
    }

    /// The rewards of the block, one for each address.
    pub(super) fn rewards(&self) -> Result<Vec<Reward>, Error> {
        let fault = |what| Error::Block { height: self.height, what };
        if NEXT_REWARD_HEIGHT <= self.height {
            return Err(fault("its reward is not that of the first blocks"));
        }
        let reward = U256::from(REWARD_WEI);
        let count = U256::from(self.uncles.len());
        let mut rewards = vec![Reward {
            address: self.coinbase,
            amount: reward + reward / U256::from(32) * count,
        }];
        for uncle in &self.uncles {
            let age = self.height.checked_sub(uncle.height);
            let left = age.and_then(|age| UNCLE_AGE_DIVISOR.checked_sub(age));
            let left = left.ok_or_else(|| fault("an uncle is too old, or from the future"))?;
            let amount = reward * U256::from(left) / U256::from(UNCLE_AGE_DIVISOR);
            match rewards.iter_mut().find(|reward| reward.address == uncle.coinbase) {
                Some(found) => found.amount += amount,
                None => rewards.push(Reward { address: uncle.coinbase, amount }),
            }
        }
        Ok(rewards)
    }
}

/// The items of an RLP list, and nothing behind it.
fn list(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    match RlpHeader::decode_raw(&mut bytes).ok()? {
        PayloadView::List(items) if bytes.is_empty() => Some(items),
        _ => None,
    }
}

fn field<T: Decodable>(fields: &[&[u8]], index: usize) -> Option<T> {
    let mut item: &[u8] = fields.get(index)?;
    let value = T::decode(&mut item).ok()?;
    item.is_empty().then_some(value)
}
