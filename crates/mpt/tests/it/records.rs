//! Records, paths and answers that break the rules.
//!
//! Goal: a codec that reads exactly what it writes, and an update that answers damage with an
//! error, never with a panic. Method: all records of random tries, with each byte changed.

use terrane_mpt::{
    Answer, Change, Error, ErrorKind, KeccakMpt, MemoryTrie, Path, Record, TrieBuilder, Update,
    Want,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

fn records(rng: &mut impl Draw, count: usize) -> Vec<(Path, Record)> {
    let mut keys: Vec<Vec<u8>> = (0..count)
        .map(|_| {
            let mut key = rng.bytes(32);
            key[0] &= 0x13;
            key[1] &= 0x01;
            key
        })
        .collect();
    keys.sort();
    keys.dedup();
    let mut builder = TrieBuilder::<KeccakMpt>::default();
    for key in &keys {
        builder.push(key, b"value of a leaf").unwrap();
    }
    builder.finish().1
}

#[test]
fn a_record_reads_back_and_no_other_bytes_give_it() {
    for_each_seed("a_record_reads_back_and_no_other_bytes_give_it", 4, |rng, _| {
        for (path, record) in records(rng, 40) {
            let bytes = record.to_bytes();
            assert_eq!(Record::from_bytes::<KeccakMpt>(&path, &bytes[..]).unwrap(), record);

            for at in 0..bytes.len() {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 1 << rng.below(8);
                if let Ok(other) = Record::from_bytes::<KeccakMpt>(&path, &damaged[..]) {
                    assert_ne!(other, record);
                    assert_eq!(other.to_bytes()[..], damaged);
                }
                assert!(
                    Record::from_bytes::<KeccakMpt>(&path, &bytes[..at])
                        .is_err_and(|error| error.kind() == ErrorKind::Corrupt)
                        || matches!(record, Record::Link(_))
                );
            }
        }
    });
}

#[test]
fn the_range_of_a_path_holds_the_keys_that_begin_with_it() {
    let range = |digits: &[u8]| Path::new(digits).key_range(4);
    assert_eq!(range(&[]), (vec![], None));
    assert_eq!(range(&[1]), (vec![0x10], Some(vec![0x20])));
    assert_eq!(range(&[1, 15]), (vec![0x1f], Some(vec![0x20])));
    assert_eq!(range(&[15, 15, 15]), (vec![0xff, 0xf0], None));
    assert_eq!(range(&[15, 14, 15]), (vec![0xfe, 0xf0], Some(vec![0xff])));
    assert_eq!(Path::new(&[1, 0, 1]).key_range(1), (vec![0b1010_0000], Some(vec![0b1100_0000])));
    assert_eq!(Path::new(&[1, 2]).key(4), Some(vec![0x12]));
    assert_eq!(Path::new(&[1]).key(4), None);
}

/// Runs an update of a trie whose answers are those of `trie` after `damage`.
fn run(
    mut update: Update<KeccakMpt>,
    entries: &[(Vec<u8>, Vec<u8>)],
    nodes: &[(Path, Record)],
    damage: &mut dyn FnMut(&mut Answer),
) -> Result<terrane_mpt::Outcome, Error> {
    while !update.wanted().is_empty() {
        let answer = |want: &Want| match want {
            Want::Node(path) => {
                let node = nodes.iter().find(|(at, _)| at == path);
                Answer::Node(node.map(|(_, record)| record.to_bytes()))
            }
            Want::Leaves(path) => {
                let is_below =
                    |(key, _): &&(Vec<u8>, Vec<u8>)| Path::of_key(key, 4).starts_with(path);
                Answer::Leaves(entries.iter().filter(is_below).cloned().collect())
            }
            Want::Value(path) => {
                let key = path.key(4);
                let entry = entries.iter().find(|(at, _)| Some(at) == key.as_ref());
                Answer::Value(entry.map(|(_, value)| value.clone()))
            }
        };
        let mut answers: Vec<_> = update.wanted().iter().map(answer).collect();
        answers.iter_mut().for_each(&mut *damage);
        update.supply(answers)?;
    }
    update.finish()
}

#[test]
fn damaged_answers_are_errors_or_another_root_and_never_a_panic() {
    for_each_seed("damaged_answers_are_errors_or_another_root", 100, |rng, _| {
        let mut entries: Vec<(Vec<u8>, Vec<u8>)> = (0..40)
            .map(|_| {
                let key = vec![rng.below(4) as u8 * 17, rng.below(256) as u8, rng.below(4) as u8];
                let length = 1 + rng.index(40);
                (key, vec![7; length])
            })
            .collect();
        entries.sort();
        entries.dedup_by(|right, left| right.0 == left.0);
        let mut builder = TrieBuilder::<KeccakMpt>::default();
        for (key, value) in &entries {
            builder.push(key, value).unwrap();
        }
        let (_, nodes) = builder.finish();

        let mut changes = Vec::new();
        for (key, _) in &entries {
            if rng.chance(1, 3) {
                let after = rng.chance(1, 2).then(|| vec![9; 5]);
                // Now and then the caller is wrong about what was there.
                changes.push(Change { key: key.clone(), existed: rng.chance(19, 20), after });
            }
        }
        for _ in 0..rng.below(4) {
            let key = vec![rng.below(256) as u8, 1, 2, 3];
            changes.push(Change { key, existed: rng.chance(1, 20), after: Some(vec![3]) });
        }
        changes.sort_by(|left, right| left.key.cmp(&right.key));
        changes.dedup_by(|right, left| right.key == left.key);

        let seed = rng.below(u64::MAX);
        let mut turn = 0_u64;
        let update = Update::<KeccakMpt>::new(changes).unwrap();
        let outcome = run(update, &entries, &nodes, &mut |answer| {
            turn += 1;
            if !(seed.wrapping_mul(turn) >> 32).is_multiple_of(5) {
                return;
            }
            match answer {
                Answer::Node(Some(bytes)) => {
                    let at = seed as usize % bytes.len().min(9);
                    let mut damaged = bytes.to_vec();
                    damaged[at] ^= 1 << (seed % 8);
                    *bytes = damaged.into();
                }
                Answer::Node(None) => {}
                Answer::Leaves(leaves) => drop(leaves.pop()),
                Answer::Value(value) => *value = None,
            }
        });
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    });
}

#[test]
fn what_no_trie_takes_is_refused() {
    let mut trie = MemoryTrie::<KeccakMpt>::default();
    let change = |key: &[u8], value: &[u8]| (key.to_vec(), Some(value.to_vec()));
    assert!(matches!(trie.apply(&[change(b"a", b"")]), Err(Error::EmptyValue { index: 0 })));
    assert!(matches!(
        trie.apply(&[change(b"a", b"1"), change(b"a", b"2")]),
        Err(Error::KeyOrder { index: 1 })
    ));
    assert!(matches!(trie.apply(&[change(&[7; 257], b"1")]), Err(Error::KeyTooLong { .. })));
    trie.apply(&[change(&[7; 256], b"1"), change(b"", b"2")]).unwrap();
    trie.verify().unwrap();

    let mut builder = TrieBuilder::<KeccakMpt>::default();
    builder.push(b"b", b"1").unwrap();
    assert!(matches!(builder.push(b"b", b"2"), Err(Error::KeyOrder { index: 1 })));
    assert!(matches!(builder.push(b"c", b""), Err(Error::EmptyValue { index: 1 })));

    let mut update = Update::<KeccakMpt>::new(Vec::new()).unwrap();
    assert!(matches!(update.supply(Vec::new()), Err(Error::AnswerMismatch)));
    let update = Update::<KeccakMpt>::new(Vec::new()).unwrap();
    assert!(matches!(update.finish(), Err(Error::AnswerMismatch)));
}
