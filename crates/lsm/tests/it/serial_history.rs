//! Checker of serialisability for histories of committed transactions.
//!
//! The order of the commits is known: a ticket has the number. So the checker need not search for
//! an order. It replays all committed transactions one after the other against a model, and
//! compares each read, those of ranges included, with what the model gives at that place. A
//! transaction that wrote nothing has the number of the commit that it has read, and comes behind
//! the writer of that number.

use std::collections::BTreeMap;

/// A table by key.
pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The tables of a store; their upserts append.
pub(crate) type Model = Vec<Content>;

/// A step of a transaction, with what it read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Op {
    Get {
        table: usize,
        key: Vec<u8>,
        found: Option<Vec<u8>>,
    },
    /// The first entries of a range from one side. A scan that was asked for more than there were
    /// has seen the end of the range.
    Scan {
        table: usize,
        from: Vec<u8>,
        end: Vec<u8>,
        backwards: bool,
        asked: usize,
        found: Vec<(Vec<u8>, Vec<u8>)>,
    },
    Insert {
        table: usize,
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Upsert {
        table: usize,
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Delete {
        table: usize,
        key: Vec<u8>,
    },
    DeleteRange {
        table: usize,
        from: Vec<u8>,
        end: Vec<u8>,
    },
}

impl Op {
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self, Self::Get { .. } | Self::Scan { .. })
    }

    /// Does a write to the model; compares a read with it.
    pub(crate) fn replay(&self, model: &mut Model) -> Result<(), String> {
        match self {
            Self::Get { table, key, found } => {
                let expected = model[*table].get(key);
                if expected != found.as_ref() {
                    return Err(format!("{self:?} should have found {expected:?}"));
                }
            }
            Self::Scan { table, from, end, backwards, asked, found } => {
                let range = model[*table].range(from.clone()..end.clone());
                let entries = range.map(|(key, value)| (key.clone(), value.clone()));
                let expected: Vec<_> = if *backwards {
                    entries.rev().take(*asked).collect()
                } else {
                    entries.take(*asked).collect()
                };
                if expected != *found {
                    return Err(format!("{self:?} should have found {expected:?}"));
                }
            }
            Self::Insert { table, key, value } => {
                model[*table].insert(key.clone(), value.clone());
            }
            Self::Upsert { table, key, value } => {
                model[*table].entry(key.clone()).or_default().extend_from_slice(value);
            }
            Self::Delete { table, key } => drop(model[*table].remove(key)),
            Self::DeleteRange { table, from, end } => {
                model[*table].retain(|key, _| !(from..end).contains(&key));
            }
        }
        Ok(())
    }
}

/// A committed transaction.
#[derive(Debug, Clone)]
pub(crate) struct Committed {
    /// The number of its commit; of the commit that it read if it wrote nothing.
    pub(crate) commit: u64,
    pub(crate) ops: Vec<Op>,
}

impl Committed {
    fn is_read_only(&self) -> bool {
        !self.ops.iter().any(Op::is_write)
    }
}

/// Replays a history on top of `model`, the state after commit `first`. The commits must follow on
/// each other without a gap.
pub(crate) fn check(
    mut history: Vec<Committed>,
    mut model: Model,
    first: u64,
) -> Result<Model, String> {
    history.sort_by_key(|transaction| (transaction.commit, transaction.is_read_only()));
    let mut last = first;
    for transaction in &history {
        let expected = if transaction.is_read_only() { last } else { last + 1 };
        if transaction.commit != expected {
            return Err(format!("commit {} comes after commit {last}", transaction.commit));
        }
        for op in &transaction.ops {
            let replayed = op.replay(&mut model);
            replayed.map_err(|what| format!("commit {}: {what}", transaction.commit))?;
        }
        last = transaction.commit;
    }
    Ok(model)
}

fn key(name: &str) -> Vec<u8> {
    name.as_bytes().to_vec()
}

fn get(name: &str, found: Option<&str>) -> Op {
    Op::Get { table: 0, key: key(name), found: found.map(key) }
}

fn insert(name: &str, value: &str) -> Op {
    Op::Insert { table: 0, key: key(name), value: key(value) }
}

fn scan(asked: usize, found: &[(&str, &str)]) -> Op {
    let found = found.iter().map(|(name, value)| (key(name), key(value))).collect();
    Op::Scan { table: 0, from: key("a"), end: key("n"), backwards: false, asked, found }
}

/// Histories that no serial order in the order of the commits explains, each beside the same one
/// with the reads that a valid transaction would have made.
#[test]
fn broken_histories_are_found_and_whole_ones_are_not() {
    let initial = || vec![Content::from([(key("x"), key("1")), (key("y"), key("1"))])];
    let all = |commits: Vec<Vec<Op>>| -> Vec<Committed> {
        (1..).zip(commits).map(|(commit, ops)| Committed { commit, ops }).collect()
    };

    let lost_update = |second: &str| {
        all(vec![
            vec![get("x", Some("1")), insert("x", "2")],
            vec![get("x", Some(second)), insert("x", "3")],
        ])
    };
    let write_skew = |second: &str| {
        all(vec![
            vec![get("x", Some("1")), get("y", Some("1")), insert("x", "0")],
            vec![get("x", Some(second)), get("y", Some("1")), insert("y", "0")],
        ])
    };
    let phantom = |second: &[(&str, &str)]| {
        all(vec![vec![scan(9, &[]), insert("b", "1")], vec![scan(9, second), insert("z", "1")]])
    };
    let behind_the_scan = |second: &[(&str, &str)]| {
        all(vec![
            vec![insert("b", "1"), insert("d", "1")],
            vec![insert("e", "1")],
            vec![scan(2, second), insert("z", "1")],
        ])
    };

    for (name, broken, whole) in [
        ("lost update", lost_update("1"), lost_update("2")),
        ("write skew", write_skew("1"), write_skew("0")),
        ("phantom", phantom(&[]), phantom(&[("b", "1")])),
        (
            "wrong entry of a scan",
            behind_the_scan(&[("b", "1"), ("e", "1")]),
            behind_the_scan(&[("b", "1"), ("d", "1")]),
        ),
    ] {
        assert!(check(broken, initial(), 0).is_err(), "{name}");
        check(whole, initial(), 0).unwrap();
    }

    // A missing commit, and a reader of a commit that was taken back.
    let gap = vec![Committed { commit: 2, ops: vec![insert("x", "2")] }];
    assert!(check(gap, initial(), 0).is_err());
    let dirty = vec![Committed { commit: 0, ops: vec![get("x", Some("2"))] }];
    assert!(check(dirty, initial(), 0).is_err());
    let old = vec![
        Committed { commit: 1, ops: vec![insert("x", "2")] },
        Committed { commit: 0, ops: vec![get("x", Some("1"))] },
    ];
    check(old, initial(), 0).unwrap();
}
