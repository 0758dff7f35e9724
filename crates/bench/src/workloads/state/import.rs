//! The import of the state before the first block: accounts and slots in the order of their hashes.
//!
//! The order is drawn and sorted, and storage roots are computed, before the clock of the import
//! goes on; they are its input.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrane::io::Disk;
use terrane::mpt::{B256, Import, KeccakMpt, Options, TrieBuilder, U256};

use super::layout::{Layout, Place};
use super::{hash_of, order_by_hash};
use crate::workloads::{Error, Result};
use terrane_replay::monitor::{Monitor, Phase};

/// Slots that are drawn before they are pushed.
const SLOTS_TOGETHER: usize = 4096;

/// Accounts between two reports to the monitor.
const TOLD_EVERY: u64 = 4096;

/// Imports a state as that after block 0 of the given hash, and closes it. Returns the time in the
/// import.
pub(super) fn import(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    options: &Options,
    (layout, hash): (&Layout, B256),
    monitor: &mut dyn Monitor,
) -> Result<Duration> {
    let order = order_by_hash(layout.accounts(), |account| layout.address(account));
    let mut import = Import::open(Arc::clone(disk), dir, options)?;
    let mut clock = Clock::default();

    for (done, (_, account)) in (0..).zip(order) {
        let number = u64::from(account);
        let slots = sorted_slots(layout, number);
        let mut account = layout.account(number, 0);
        if !slots.is_empty() {
            account = account.storage_root(storage_root(layout, number, &slots)?);
        }
        let address = hash_of(layout.address(number).as_slice());
        clock.time(|| import.push_account(address, &account))?;
        for slots in slots.chunks(SLOTS_TOGETHER) {
            let drawn: Vec<(B256, U256)> =
                slots.iter().map(|(_, index)| slot(layout, number, *index)).collect();
            clock.time(|| {
                drawn.iter().try_for_each(|(key, value)| import.push_slot(*key, *value))
            })?;
        }

        if done % TOLD_EVERY == 0 {
            monitor.progress(Phase::Fill, done, Some(layout.accounts()));
            if monitor.stop() {
                return Err(Error::Interrupted);
            }
        }
    }

    let (state, committed) = clock.time(|| import.finish(0, hash, None))?;
    clock.time(|| committed.ticket.wait())?;
    clock.time(|| state.close())?;
    Ok(clock.taken)
}

/// Time in the import.
#[derive(Default)]
struct Clock {
    taken: Duration,
}

impl Clock {
    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        self.taken += start.elapsed();
        done
    }
}

/// The slots of a contract in the order of their hashes.
fn sorted_slots(layout: &Layout, contract: u64) -> Vec<(u64, u32)> {
    let Some((_, size, _)) = layout.storage(contract) else { return Vec::new() };
    order_by_hash(size, |index| layout.slot_key(Place { contract, index }))
}

/// The hash of a slot's key, and its value.
fn slot(layout: &Layout, contract: u64, index: u32) -> (B256, U256) {
    let index = u64::from(index);
    let (first, ..) = layout.storage(contract).expect("a slot lies in a contract");
    let key = layout.slot_key(Place { contract, index });
    (hash_of(key.as_slice()), layout.value(first + index, 0))
}

fn storage_root(layout: &Layout, contract: u64, slots: &[(u64, u32)]) -> Result<B256> {
    let mut builder = TrieBuilder::<KeccakMpt>::default();
    for slots in slots.chunks(SLOTS_TOGETHER) {
        for (_, index) in slots {
            let (key, value) = slot(layout, contract, *index);
            builder.push(key.as_slice(), &alloy_rlp::encode(value))?;
        }
        drop(builder.take_nodes());
    }
    Ok(builder.finish().0)
}
