//! A chain of random blocks, and a model of its state after each of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use alloy_primitives::{Address, B256, U256, keccak256};
use terrane_io::{Disk, MemoryDisk};
use terrane_lsm::{CheckpointThread, SessionOptions, StoreOptions};
use terrane_mpt::{Account, Committed, Options, Result, State};
use terrane_testkit::draw::Draw;

use crate::naive::{self, Map};

pub(crate) const DIR: &str = "/state";

/// An account of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ModelAccount {
    pub(crate) nonce: u64,
    pub(crate) balance: U256,
    pub(crate) code_hash: Option<B256>,
    pub(crate) slots: BTreeMap<B256, U256>,
}

/// The whole state after a block.
pub(crate) type Model = BTreeMap<Address, ModelAccount>;

/// A change of a block.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Set(Address, u64, U256, Option<B256>),
    Slot(Address, B256, U256),
    Delete(Address),
}

pub(crate) fn options() -> Options {
    // Calls on a simulated disk come in one order, and entries do not depend on chance.
    let session = SessionOptions::with_salt(7).create_dir();
    let store = StoreOptions::default().session(session);
    let store = store.checkpoint_thread(CheckpointThread::Caller);
    Options::default().store(store.log_bytes_max(1 << 20))
}

pub(crate) fn open(disk: &Arc<dyn Disk>) -> Result<State> {
    State::open(Arc::clone(disk), Path::new(DIR), &options())
}

pub(crate) fn memory_state() -> State {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    open(&disk).unwrap()
}

impl ModelAccount {
    fn slots_map(&self) -> Map {
        let leaf =
            |(slot, value): (&B256, &U256)| (keccak256(slot).to_vec(), alloy_rlp::encode(value));
        self.slots.iter().map(leaf).collect()
    }

    /// The account as the state has it.
    pub(crate) fn account(&self) -> Account {
        let account =
            Account::new(self.nonce, self.balance).storage_root(naive::root(&self.slots_map()));
        self.code_hash.map_or(account, |hash| account.code_hash(hash))
    }
}

/// The root of a model.
pub(crate) fn root(model: &Model) -> B256 {
    let leaf = |(address, account): (&Address, &ModelAccount)| {
        (keccak256(address).to_vec(), account.account().leaf_value())
    };
    naive::root(&model.iter().map(leaf).collect())
}

/// The hash of the block at a height, on a branch.
pub(crate) fn hash(height: u64, branch: u64) -> B256 {
    keccak256(format!("block {height} of branch {branch}"))
}

/// The changes that lead from one model to another.
pub(crate) fn difference(from: &Model, to: &Model) -> Vec<Step> {
    let mut steps = Vec::new();
    for address in from.keys().filter(|address| !to.contains_key(*address)) {
        steps.push(Step::Delete(*address));
    }
    let empty = ModelAccount::default();
    for (address, after) in to {
        let found = from.get(address);
        let before = found.unwrap_or(&empty);
        let head = |account: &ModelAccount| (account.nonce, account.balance, account.code_hash);
        if found.is_none() || head(before) != head(after) {
            steps.push(Step::Set(*address, after.nonce, after.balance, after.code_hash));
        }
        for slot in before.slots.keys().chain(after.slots.keys()) {
            let value = after.slots.get(slot).copied().unwrap_or_default();
            if before.slots.get(slot).copied().unwrap_or_default() != value {
                steps.push(Step::Slot(*address, *slot, value));
            }
        }
    }
    steps
}

pub(crate) fn commit(state: &mut State, steps: &[Step], branch: u64) -> Result<Committed> {
    let (height, parent) = match state.tip() {
        Some(tip) => (tip.height + 1, tip.hash),
        None => (0, B256::ZERO),
    };
    let mut block = state.block(height, parent)?;
    for step in steps {
        match step {
            Step::Set(address, nonce, balance, code_hash) => {
                let account = Account::new(*nonce, *balance);
                let account = code_hash.map_or(account, |hash| account.code_hash(hash));
                block.set_account(*address, &account);
            }
            Step::Slot(address, slot, value) => block.set_slot(*address, *slot, *value),
            Step::Delete(address) => block.delete_account(*address),
        }
    }
    block.commit(hash(height, branch))
}

/// Does to a model what a block does to a state.
pub(crate) fn apply(model: &mut Model, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Set(address, nonce, balance, code_hash) => {
                let account = model.entry(*address).or_default();
                (account.nonce, account.balance) = (*nonce, *balance);
                account.code_hash = *code_hash;
            }
            Step::Slot(address, slot, value) => {
                let account = model.get_mut(address).unwrap();
                if value.is_zero() {
                    account.slots.remove(slot);
                } else {
                    account.slots.insert(*slot, *value);
                }
            }
            Step::Delete(address) => drop(model.remove(address)),
        }
    }
}

/// Draws the changes of a block on `model`: new and changed accounts, slots, deletions with and
/// without a new account in the same place.
pub(crate) fn draw_block(rng: &mut impl Draw, model: &Model) -> Vec<Step> {
    let mut after = model.clone();
    let mut steps = Vec::new();
    let mut take = |step: Step, after: &mut Model| {
        apply(after, std::slice::from_ref(&step));
        steps.push(step);
    };
    for _ in 0..=rng.below(12) {
        let address = Address::repeat_byte(rng.below(40) as u8);
        let nonce = rng.below(3);
        let balance = U256::from(rng.below(1 << 40));
        let code_hash = rng.chance(1, 4).then(|| keccak256(b"code"));
        if rng.chance(1, 6) {
            take(Step::Delete(address), &mut after);
            if rng.chance(1, 2) {
                continue;
            }
        }
        if !after.contains_key(&address) || rng.chance(1, 3) {
            take(Step::Set(address, nonce, balance, code_hash), &mut after);
        }
        for _ in 0..rng.below(6) {
            let slot = B256::from(U256::from(rng.below(12)));
            let value = if rng.chance(1, 3) { 0 } else { rng.below(1 << 20) };
            take(Step::Slot(address, slot, U256::from(value)), &mut after);
        }
    }
    steps
}

/// Checks all entries of a state against a model.
pub(crate) fn check(state: &State, model: &Model) {
    assert_eq!(state.root(), root(model));
    let addresses: Vec<Address> = (0..40).map(Address::repeat_byte).collect();
    let accounts = state.accounts(&addresses).unwrap();
    for (address, account) in addresses.iter().zip(accounts) {
        assert_eq!(account, model.get(address).map(ModelAccount::account), "{address}");
    }
    let slots = |address: &Address| {
        let slots = model.get(address).map(|account| account.slots.clone());
        (0..12_u64).map(move |slot| {
            let slot = B256::from(U256::from(slot));
            slots.as_ref().and_then(|slots| slots.get(&slot).copied()).unwrap_or_default()
        })
    };
    let keys = addresses
        .iter()
        .flat_map(|address| (0..12_u64).map(|slot| (*address, B256::from(U256::from(slot)))));
    let values = state.slots(&keys.collect::<Vec<_>>()).unwrap();
    assert_eq!(values, addresses.iter().flat_map(slots).collect::<Vec<_>>());
}
