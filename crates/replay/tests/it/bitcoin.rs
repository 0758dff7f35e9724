//! Bitcoin's blocks: real ones with published answers, and small chains built for one rule each.

use std::collections::BTreeMap;
use std::path::PathBuf;

use terrane::io::RealDisk;
use terrane::lsm::{Session, SessionOptions, SnapshotName, Table};
use terrane_replay::bitcoin::{Options, replay};
use terrane_replay::engines::lsm::Lsm;
use terrane_replay::engines::memory::Memory;
use terrane_replay::monitor::Silent;

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

#[expect(clippy::big_endian_bytes, reason = "so that key order is block order")]
fn undo_key(block: u64) -> Vec<u8> {
    [&[2], block.to_be_bytes().as_slice()].concat()
}

/// The old values that the undo records of blocks `from..=to` have for keys, from the earliest
/// block that changed each.
fn composed(log: &Table, from: u64, to: u64) -> BTreeMap<Vec<u8>, Option<Vec<u8>>> {
    let mut old = BTreeMap::new();
    for block in (from..=to).rev() {
        let record = log.get(&undo_key(block)).unwrap().value().unwrap().to_vec();
        let mut rest = record.as_slice();
        let sized = |rest: &mut &[u8]| {
            let (size, tail) = rest.split_first_chunk().unwrap();
            let (part, tail) = tail.split_at(u32::from_le_bytes(*size) as usize);
            *rest = tail;
            part.to_vec()
        };
        while !rest.is_empty() {
            let key = sized(&mut rest);
            let has_value = rest.split_off_first().unwrap();
            old.insert(key, (*has_value == 1).then(|| sized(&mut rest)));
        }
    }

    old
}

/// Two records of the change of a block agree: its undo record, made from the lookups of the block,
/// and the engine's diff of the states before and after.
#[test]
fn undo_records_between_two_durable_points_compose_to_the_diff_of_their_states() {
    let dir = tempfile::tempdir().unwrap();
    for (until, height) in [(99, 99), (499, 499), (999, 999)] {
        let engine = Box::new(Lsm::open(dir.path()).unwrap());
        let options = Options { until: Some(until), ..Options::default() };
        let report = replay(engine, &[data()], &options, &mut Silent).unwrap();
        assert_eq!(report.height, Some(height));
    }

    let session = Session::open(RealDisk::auto(), dir.path(), &SessionOptions::default()).unwrap();
    let label = "terrane replay bitcoin, network bitcoin";
    let open = |name: &str| {
        let name = SnapshotName::new(name).unwrap();
        session.open_snapshot(&name, label).unwrap()
    };

    let points = [(1, 99), (2, 499), (3, 999)];
    let log = open("chain-0000000003-999");
    for (older, newer) in
        [(0, 1), (1, 2), (0, 2)].map(|(older, newer)| (points[older], points[newer]))
    {
        let [before, after] =
            [older, newer].map(|(number, height)| open(&format!("utxo-{number:010}-{height}")));
        let mut undo = composed(&log, older.1 + 1, newer.1);
        // Outputs made and spent within the range.
        undo.retain(|key, old| after.get(key).unwrap().value().map(<[u8]>::to_vec) != *old);
        let mut diff = before.diff(&after).unwrap();
        let mut spent = 0;
        let mut found = BTreeMap::new();
        while let Some(change) = diff.next().transpose().unwrap() {
            let old = change.old.value().map(<[u8]>::to_vec);
            spent += u64::from(old.is_some());
            found.insert(change.key, old);
        }
        assert_eq!(found, undo, "{older:?} to {newer:?}");
        assert!(found.len() > 390 && spent > 0, "{} keys, {spent} spent", found.len());
    }
}
