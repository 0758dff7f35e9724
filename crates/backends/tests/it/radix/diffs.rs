//! Differences of two states, against those of their maps.

use std::collections::BTreeSet;

use terrane_kv::conformance::Subject;
use terrane_radix::{Address, Difference, Error, NodeHash, Root, Store};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use super::histories::batch;
use super::rules::State;
use super::{InMemory, fresh, reopened, tree};

fn differences(before: &State, after: &State) -> Vec<Difference> {
    let addresses: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    let of = |address: &Vec<u8>| Difference {
        address: Address::new(address).unwrap(),
        before: before.get(address).cloned(),
        after: after.get(address).cloned(),
    };
    addresses.into_iter().map(of).filter(|found| found.before != found.after).collect()
}

pub(super) fn check(subject: &mut dyn Subject) {
    let sample = if subject.is_persistent() { 1 } else { 2 };
    for_each_seed("radix_diffs", by_effort(sample, 6), |rng, _| {
        let store: Store = fresh(subject);
        let mut states = vec![(Root::EMPTY, State::new())];
        for _ in 0..30 {
            let (parent, state) = states[rng.index(states.len())].clone();
            let (changes, after) = batch(rng, &state);
            states.push((tree(&store).commit(&parent, &changes).unwrap().root, after));
        }

        let store = reopened(subject, store);
        let tree = tree(&store);
        for _ in 0..120 {
            let (from, before) = rng.pick(&states);
            let (to, after) = rng.pick(&states);
            let found: Vec<Difference> = tree.diff(from, to).unwrap().map(Result::unwrap).collect();
            assert_eq!(found, differences(before, after), "from {from} to {to}");
        }

        let unknown = NodeHash([1; 32]);
        for (from, to) in [(unknown, Root::EMPTY), (Root::EMPTY, unknown)] {
            assert!(matches!(tree.diff(&from, &to), Err(Error::UnknownRoot { .. })));
        }
    });
}

#[test]
fn diffs_on_memory() {
    check(&mut InMemory);
}
