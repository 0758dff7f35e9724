//! Replay of the first blocks of Ethereum.
//!
//! Goal: each block leads to the root of its header, a rollback leads back to the root of an older
//! one, a second call goes on where the first ended, and damaged files are errors. Method: the
//! shipped file, up to some hundred blocks.

use std::path::{Path, PathBuf};

use terrane::mpt::State;
use terrane_replay::error::Class;
use terrane_replay::ethereum::{self, Error, Options, Report};
use terrane_replay::monitor::Silent;

/// Root of the state after block 0, as the chain has it.
const GENESIS_ROOT: &str = "0xd7f8974fb5ac78d9ac099b9ad5018bedc2ce0a72dad1827a1709da30580f0544";

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/ethereum-mainnet-0-8191.era1")
}

fn run(state: &mut State, file: &Path, options: &Options) -> Result<Report, Error> {
    ethereum::replay(state, &[file.to_owned()], options, &mut Silent)
}

#[test]
fn blocks_lead_to_the_roots_of_their_headers_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { until: Some(200), history: true, ..Options::default() };
    let mut state = ethereum::open(folder.path(), &options).unwrap();
    let first = run(&mut state, &shipped(), &options).unwrap();
    assert_eq!((first.height, first.blocks, first.resumed_from), (Some(200), 201, None));
    let genesis = state.block_at(0).unwrap().unwrap();
    assert_eq!(genesis.root.to_string(), GENESIS_ROOT);

    let back = Options { rollback_to: Some(100), ..options.clone() };
    let again = run(&mut state, &shipped(), &back).unwrap();
    assert_eq!((again.resumed_from, again.blocks), (Some(100), 100));
    assert_eq!((again.state_root, again.tip), (first.state_root, first.tip));
    assert!(state.verify().unwrap().is_clean());

    state.close().unwrap();
    let further = Options { until: Some(210), ..options };
    let mut state = ethereum::open(folder.path(), &further).unwrap();
    let report = run(&mut state, &shipped(), &further).unwrap();
    assert_eq!((report.resumed_from, report.blocks), (Some(200), 10));
}

#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let whole = std::fs::read(shipped()).unwrap();
    let file = folder.path().join("damaged.era1");
    let options = Options { until: Some(3), ..Options::default() };

    let refuse = |bytes: &[u8], class: Class| {
        std::fs::write(&file, bytes).unwrap();
        let store = tempfile::tempdir().unwrap();
        let mut state = ethereum::open(store.path(), &options).unwrap();
        let error = run(&mut state, &file, &options).unwrap_err();
        assert_eq!(error.class(), class, "{error}");
    };
    refuse(&[], Class::Input);
    refuse(b"e2 but no more than that", Class::Input);
    refuse(&whole[..whole.len() - 5], Class::Input);
    refuse(&whole[1..], Class::Input);

    // A changed byte in the packed header of block 0: its frame has a checksum.
    let mut damaged = whole.clone();
    damaged[60] ^= 1;
    refuse(&damaged, Class::Input);

    let missing = folder.path().join("missing.era1");
    let store = tempfile::tempdir().unwrap();
    let mut state = ethereum::open(store.path(), &options).unwrap();
    let error = run(&mut state, &missing, &options).unwrap_err();
    assert_eq!(error.class(), Class::Environment);
    assert_eq!(state.tip(), None);
}
