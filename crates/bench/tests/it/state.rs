//! The benchmark of the Ethereum state, with some thousand accounts.
//!
//! Goal: the same options give the same roots, whatever is set for speed; every load runs to its
//! verification; a state that was kept is used again, and no other. Method: the smallest state, and
//! few blocks. The run itself compares every read and verifies every proof.

use std::path::Path;

use terrane_bench::workloads::Error;
use terrane_bench::workloads::draws::Distribution;
use terrane_bench::workloads::state::Load;
use terrane_bench::workloads::state::block;
use terrane_bench::workloads::state::report::Report;
use terrane_bench::workloads::state::run::{Options, run};
use terrane_replay::monitor::Silent;

fn options(load: Load) -> Options {
    Options {
        drawn: block::Options {
            load,
            seed: 7,
            accounts: 1_000,
            distribution: Distribution::Uniform,
        },
        warm_up: 1,
        blocks: 2,
        history: false,
        direct: false,
        threads: 1,
        memory_budget: None,
        node_cache: 1 << 20,
        proofs: 5,
        reorg: 2,
        keep: false,
    }
}

fn done(store: &Path, options: &Options) -> Report {
    run(store, options, &mut Silent).unwrap()
}

#[test]
fn every_load_is_measured_and_verified() {
    let store = tempfile::tempdir().unwrap();
    for load in Load::ALL {
        let report = done(store.path(), &options(load));
        assert_eq!((report.load, report.blocks), (load.name(), 2));
        assert!(0.0 < report.per_block.slots && 100.0 < report.per_block.accounts, "{report:?}");
        assert_eq!(report.per_block.wiped_slots > 0.0, load == Load::WideWipe);
        assert_eq!(report.reorg.as_ref().unwrap().blocks, 2);
        let floor = report.keccak_floor.as_ref().unwrap();
        assert!(floor.account_nodes > 100.0 && floor.storage_nodes > 50.0, "{floor:?}");
        assert!(floor.keys >= floor.account_nodes / 3.0, "{floor:?}");
        let verified = report.verified.as_ref().unwrap();
        assert!(verified.accounts >= 1_000, "{verified:?}");
        assert!(std::fs::read_dir(store.path()).unwrap().next().is_none(), "nothing is left");
    }
}

#[test]
fn roots_do_not_depend_on_settings() {
    let store = tempfile::tempdir().unwrap();
    let plain = done(store.path(), &options(Load::Mix));
    let changed = Options {
        history: true,
        direct: true,
        memory_budget: Some(32 << 20),
        ..options(Load::Mix)
    };
    let other = done(store.path(), &changed);
    assert_eq!(other.state_root, plain.state_root);
    assert!(plain.older_proofs.is_none() && plain.history_bytes.is_none());
    let history = other.history_bytes.unwrap();
    assert!(0 < history.nodes && 1.0 < history.over_values, "{history:?}");
    assert!(other.older_proofs.is_some());

    let skewed = block::Options { distribution: Distribution::Zipf(0.99), ..changed.drawn };
    let skewed = done(store.path(), &Options { drawn: skewed, ..changed });
    assert_ne!(skewed.state_root, plain.state_root);
}

#[test]
fn a_kept_state_is_used_again_and_no_other() {
    let store = tempfile::tempdir().unwrap();
    let kept = Options { keep: true, proofs: 0, reorg: 0, ..options(Load::Mix) };
    let first = done(store.path(), &kept);
    assert!(!first.set_up.reused && 0.0 < first.set_up.accounts_per_s);
    assert!(first.proofs.is_none() && first.reorg.is_none());
    let again = done(store.path(), &kept);
    assert!(again.set_up.reused);
    assert_eq!(again.state_root, first.state_root);

    let other = block::Options { seed: 8, ..kept.drawn };
    let refused = run(store.path(), &Options { drawn: other, ..kept }, &mut Silent).unwrap_err();
    assert!(matches!(refused, Error::Options(_)), "{refused}");
    for (accounts, blocks) in [(999, 1), (1_000, 0)] {
        let drawn = block::Options { accounts, ..kept.drawn };
        let wrong = Options { drawn, blocks, ..kept };
        assert!(matches!(run(store.path(), &wrong, &mut Silent), Err(Error::Options(_))));
    }
    assert!(store.path().join("state").exists());
}
