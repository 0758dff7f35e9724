//! Bitcoin's blocks: real ones with published answers, and small chains built for one rule each.

use std::path::PathBuf;

use terrane_bench::engines::memory::Memory;
use terrane_bench::monitor::Silent;
use terrane_bench::replay::bitcoin::{Options, replay};

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/bitcoin-mainnet-0-4999.dat")
}

#[test]
fn the_first_five_thousand_blocks_give_the_published_set_of_coins() {
    let report = replay(Box::new(Memory), &[data()], &Options::default(), &mut Silent).unwrap();
    assert_eq!(report.height, Some(4999));
    assert_eq!(
        report.tip.as_deref(),
        Some("00000000c9a61ea18fbf06b03e10033355e6eab3de038d975f40af9babbe0658")
    );
    assert_eq!((report.transactions, report.inputs, report.outputs), (5063, 306, 5089));
    assert_eq!((report.utxo_count, report.total_sat), (4782, 24_995_000_000_000));
    assert_eq!(
        report.hash_serialized_3,
        "b2c7b4aeacb27c054dfff4eb4dd768015a9609570374fd978ff9083dd52c6959"
    );
}
