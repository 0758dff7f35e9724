//! Histories against lists of maps: going back by duplicates, by durable points and by undo
//! records, within a process and across processes, and after losses of power.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use terrane::io::{Disk, SimDisk, Survival};
use terrane_testkit::draw::Draw as _;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Sweep;
use terrane_testkit::{ChaCha8Rng, RngCore as _};

use super::*;
use crate::engines::lsm::Lsm;
use crate::engines::memory::Memory;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn names() -> Names {
    Names { log: "log", state: "state", label: "test".to_owned() }
}

fn content(table: &dyn State) -> Model {
    let mut cursor = table.scan(&[]).unwrap();
    let mut content = Model::new();
    while let Some(entry) = cursor.next().unwrap() {
        content.insert(entry.key, entry.value);
    }
    content
}

/// Appends and rolls back at random, with `versions_max` duplicates, against a list of maps.
fn walk(rng: &mut ChaCha8Rng, keep_max: Option<u64>, versions_max: usize, spacing: u32) {
    let mut history = History::open(Box::new(Memory), names(), keep_max, versions_max).unwrap();
    history.version_spacing = spacing;

    let mut models: Vec<(u64, Model)> = Vec::new();
    for step in 0..300 {
        let context = format!("step {step}");
        if rng.chance(1, 8) && !models.is_empty() {
            let index = rng.index(models.len());
            let block = models[index].0;
            match history.rollback(Some(block), |_, _| true) {
                Ok(()) => models.truncate(index + 1),
                Err(Error::NotKept { oldest, .. }) => assert!(block < oldest, "{context}"),
                Err(error) => panic!("{context}: {error}"),
            }
        } else {
            let mut model = models.last().map(|(_, model)| model.clone()).unwrap_or_default();
            let block = models.last().map_or(0, |(block, _)| block + 1 + rng.below(3));

            let mut changes = BTreeMap::new();
            for _ in 0..rng.below(6) {
                let key = rng.below(16).to_le_bytes()[..1].to_vec();
                let value = rng.next_u64().to_le_bytes().to_vec();
                let new = rng.chance(2, 3).then_some(value);
                let old = model.get(&key).cloned();
                changes.insert(key.clone(), NetChange { key, old, new });
            }

            for change in changes.values() {
                match &change.new {
                    Some(value) => model.insert(change.key.clone(), value.clone()),
                    None => model.remove(&change.key),
                };
            }

            let changes: Vec<_> = changes.into_values().collect();
            history.append(block, block.to_le_bytes().to_vec(), &changes).unwrap();
            models.push((block, model));
        }

        let Some((block, model)) = models.last() else { continue };
        assert_eq!(&content(history.state()), model, "{context}");
        let note = block.to_le_bytes().to_vec();
        assert_eq!(history.tip(), Some(&Tip { block: *block, note }), "{context}");

        if let Some(max) = keep_max {
            assert!(history.kept().count() as u64 <= max, "{context}");
        }

        // The log as the next process would read it.
        let (kept, _) = read_log(history.log.as_ref()).unwrap();
        assert_eq!(kept, history.kept, "{context}");
    }
}

#[test]
fn going_back_gives_the_old_state_whether_by_duplicate_or_by_undo() {
    let name = "going_back_gives_the_old_state_whether_by_duplicate_or_by_undo";
    for_each_seed(name, 16, |rng, _| {
        for (versions_max, spacing) in [(0, 1), (1, 1), (5, 1), (5, 4), (usize::MAX, 3)] {
            walk(rng, None, versions_max, spacing);
            walk(rng, Some(10), versions_max, spacing);
        }
    });
}

/// A duplicate of the log holds notes that were dropped from the log itself later on. Going back
/// by it brought them back, nothing ever dropped them again, and the next process took them and
/// the blocks kept since for one history: it went back to a block of the leaked part through
/// undo records that had a gap, and reported a state that never was.
#[test]
fn going_back_by_a_duplicate_brings_back_no_block_that_was_dropped() {
    let mut history = History::open(Box::new(Memory), names(), Some(4), 8).unwrap();
    history.version_spacing = 1;
    for block in 0..10 {
        history.append(block, Vec::new(), &[]).unwrap();
    }
    history.rollback(Some(7), |_, _| true).unwrap();

    for block in 8..20 {
        let notes: Vec<_> = history.notes().unwrap().iter().map(|note| note.block).collect();
        assert_eq!(notes, history.kept().collect::<Vec<_>>(), "before block {block}");
        history.append(block, Vec::new(), &[]).unwrap();
    }

    let (kept, tip) = read_log(history.log.as_ref()).unwrap();
    assert_eq!((kept, tip), (history.kept, history.tip));
}

/// An interruption was looked for only when the last block had been undone.
#[test]
fn going_back_stops_between_two_blocks_when_told_to() {
    let mut history = History::open(Box::new(Memory), names(), None, 0).unwrap();
    for block in 1..=10 {
        let key = vec![0];
        let new = Some(vec![block]);
        let old = (block > 1).then(|| vec![block - 1]);
        let changes = [NetChange { key, old, new }];
        history.append(block.into(), vec![block], &changes).unwrap();
    }

    history.rollback(Some(2), |done, _| done < 3).unwrap();
    assert_eq!(history.tip(), Some(&Tip { block: 7, note: vec![7] }));
    assert_eq!(content(history.state()), Model::from([(vec![0], vec![7])]));
    assert!(history.kept().eq(1..=7));
}

#[test]
fn a_log_with_a_gap_is_refused() {
    let mut history = History::open(Box::new(Memory), names(), None, 0).unwrap();
    for block in [1, 2, 4, 9] {
        history.append(block, Vec::new(), &[]).unwrap();
    }
    let mut log = history.log;
    log.update(&[Change { key: &record(NOTE, 1), value: None }]).unwrap();
    assert_eq!(read_log(log.as_ref()).unwrap().0, [2, 4, 9]);
    log.update(&[Change { key: &record(NOTE, 4), value: None }]).unwrap();
    assert!(matches!(read_log(log.as_ref()), Err(Error::Corrupt(_))));
}

#[test]
fn every_cut_of_an_undo_record_is_refused_or_shorter() {
    let change = |old: Option<&[u8]>| NetChange {
        key: b"key".to_vec(),
        old: old.map(<[u8]>::to_vec),
        new: None,
    };

    let bytes = encode_undo(&[change(None), change(Some(b"value")), change(Some(b""))]);
    let whole = decode_undo(&bytes).unwrap();
    assert_eq!(whole.len(), 3);
    assert_eq!(whole[1].value, Some(&b"value"[..]));

    for length in 0..bytes.len() {
        let decoded = decode_undo(&bytes[..length]);
        assert!(decoded.is_none_or(|batch| batch.len() < 3), "cut to {length}");
    }
}

#[test]
fn a_target_outside_the_history_changes_nothing() {
    let mut history = History::open(Box::new(Memory), names(), Some(2), 0).unwrap();
    let ahead = history.rollback(Some(1), |_, _| true);
    assert!(matches!(ahead, Err(Error::Ahead { tip: None, .. })));
    for block in [10, 20, 30] {
        history.append(block, Vec::new(), &[]).unwrap();
    }
    let mut refused = |block| history.rollback(Some(block), |_, _| true).unwrap_err();
    assert!(matches!(refused(10), Error::NotKept { oldest: 20, .. }));

    assert!(matches!(refused(25), Error::Unknown { block: 25 }));
    assert!(matches!(refused(31), Error::Ahead { tip: Some(30), .. }));
    assert_eq!(history.tip().unwrap().block, 30);
}

type Block = (u64, Vec<u8>, Model);

/// Opens a history in a store, with points worth opening for each block that they save.
fn open_durably(disk: &Arc<SimDisk>, keep_max: Option<u64>, versions_max: usize) -> History {
    let disk: Arc<dyn Disk> = disk.clone();
    let engine = Lsm::open_on(&disk, Path::new("/store")).unwrap();
    let mut history = History::open(Box::new(engine), names(), keep_max, versions_max).unwrap();
    (history.version_spacing, history.point_saves_min) = (3, 1);
    history
}

/// Appends a block with a few changes of a few keys, and a note of its own.
fn append_random(rng: &mut ChaCha8Rng, history: &mut History, models: &mut Vec<Block>) {
    let mut model = models.last().map(|(_, _, model)| model.clone()).unwrap_or_default();
    let block = models.last().map_or(0, |(block, _, _)| block + 1 + rng.below(2));

    let mut changes = BTreeMap::new();
    for _ in 0..rng.below(4) {
        let key = vec![rng.below(8).to_le_bytes()[0]];
        let new = rng.chance(2, 3).then(|| rng.bytes(3));
        let old = model.get(&key).cloned();
        changes.insert(key.clone(), NetChange { key, old, new });
    }

    for NetChange { key, new, .. } in changes.values() {
        match new {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }

    let note = rng.bytes(8);
    let changes = changes.into_values().collect::<Vec<_>>();
    history.append(block, note.clone(), &changes).unwrap();
    models.push((block, note, model));
}

/// Checks that a history stands at the last of `models` and keeps blocks of them alone.
#[track_caller]
fn assert_stands_at_last(history: &History, models: &[Block], context: &str) {
    let expected = models.last().map(|(block, note, _)| Tip { block: *block, note: note.clone() });
    assert_eq!(history.tip(), expected.as_ref(), "{context}");
    let model = models.last().map(|(_, _, model)| model.clone()).unwrap_or_default();
    assert_eq!(content(history.state()), model, "{context}");
    let known: Vec<_> = models.iter().map(|(block, note, _)| (*block, note.clone())).collect();
    let notes: Vec<_> =
        history.notes().unwrap().into_iter().map(|tip| (tip.block, tip.note)).collect();
    assert!(known.ends_with(&notes), "{context}: {notes:?}");
    assert!(history.kept().eq(notes.iter().map(|&(block, _)| block)), "{context}");
}

/// Checks that the points in the store are few, of this history, and within the blocks kept.
#[track_caller]
fn assert_points_are_of_use(history: &History, context: &str) {
    let snapshots = history.engine.snapshots().unwrap();
    assert_eq!(snapshots.len(), 2 * history.points.len(), "{context}: {snapshots:?}");
    assert!(history.points.len() <= POINTS_MAX, "{context}: {snapshots:?}");

    for &point in &history.points {
        let log = history.names.open_log(history.engine.as_ref(), point).unwrap();
        let tip = read_log(log.as_ref()).unwrap().1;
        assert_eq!(point.block, tip.as_ref().map(|tip| tip.block), "{context}");
        if let Some(tip) = tip {
            assert_eq!(history.note(tip.block).unwrap(), tip.note, "{context}");
        }
    }
}

#[test]
fn across_processes_going_back_gives_the_old_state_whatever_branches_there_were() {
    let name = "across_processes_going_back_gives_the_old_state_whatever_branches_there_were";
    for_each_seed(name, 8, |rng, _| {
        let disk = SimDisk::new(1);
        let versions_max = rng.index(3);
        let mut history = open_durably(&disk, None, versions_max);
        let (mut models, mut saved): (Vec<Block>, Vec<Block>) = Default::default();
        for step in 0..300 {
            let context = format!("step {step}");
            match rng.below(10) {
                0 if !models.is_empty() => {
                    let index = rng.index(models.len());
                    let block = models[index].0;
                    match history.rollback(Some(block), |_, _| true) {
                        Ok(()) => models.truncate(index + 1),
                        Err(Error::NotKept { oldest, .. }) => assert!(block < oldest, "{context}"),
                        Err(error) => panic!("{context}: {error}"),
                    }
                }
                1 if rng.chance(1, 8) => {
                    history.rollback(None, |_, _| true).unwrap();
                    models.clear();
                }
                2 | 3 => {
                    history.checkpoint().unwrap();
                    saved.clone_from(&models);
                    assert_points_are_of_use(&history, &context);
                }
                4 => {
                    drop(history);
                    let keep_max = [None, Some(4), Some(12), Some(40)][rng.index(4)];
                    history = open_durably(&disk, keep_max, versions_max);
                    models.clone_from(&saved);
                }
                _ => append_random(rng, &mut history, &mut models),
            }
            assert_stands_at_last(&history, &models, &context);
        }
    });
}

/// Appends blocks up to one with a durable point after each tenth; each block sets one key to its
/// number.
fn append_tens(history: &mut History, end: u8) {
    let begin = history.tip().map_or(1, |tip| tip.note[0] + 1);
    for block in begin..=end {
        let old = (block > 1).then(|| vec![block - 1]);
        let changes = [NetChange { key: vec![0], old, new: Some(vec![block]) }];
        history.append(block.into(), vec![block], &changes).unwrap();
        if block % 10 == 0 {
            history.checkpoint().unwrap();
        }
    }
}

#[test]
fn a_later_process_goes_back_by_the_nearest_point_and_undoes_the_rest() {
    for (target, undone) in [(50, None), (47, Some(50)), (41, Some(50)), (99, Some(100))] {
        let disk = SimDisk::new(1);
        append_tens(&mut open_durably(&disk, None, 0), 100);
        let mut history = open_durably(&disk, None, 0);
        let blocks: Vec<_> = history.points.iter().filter_map(|point| point.block).collect();
        assert_eq!(blocks, [10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);

        // Undoing any of the other blocks would fail.
        for block in (target + 1..=100).filter(|&block| undone.is_none_or(|undone| block > undone))
        {
            let key = record(UNDO, block);
            history.log.update(&[Change { key: &key, value: None }]).unwrap();
        }

        history.rollback(Some(target), |_, _| true).unwrap();
        let value = vec![u8::try_from(target).unwrap()];
        assert_eq!(content(history.state()), Model::from([(vec![0], value.clone())]));
        assert_eq!(history.tip(), Some(&Tip { block: target, note: value }));
        assert!(history.kept().eq(1..=target));

        // The points above are gone with the next one.
        history.checkpoint().unwrap();
        let left = 2 * usize::try_from(target.div_ceil(10)).unwrap();
        assert_eq!(history.engine.snapshots().unwrap().len(), left);
    }
}

#[test]
fn a_point_that_saves_little_is_not_opened() {
    let disk = SimDisk::new(1);
    append_tens(&mut open_durably(&disk, None, 0), 100);
    for (saves_min, nearest) in [(10, Some(90)), (11, None)] {
        let mut history = open_durably(&disk, None, 0);
        history.point_saves_min = saves_min;
        let version = history.nearest_version(85).unwrap();
        assert_eq!(version.map(|version| version.block), nearest);
    }
}

/// A store as it was when only the newest point was kept, and as other calls bound what is kept.
#[test]
fn points_are_kept_as_far_as_blocks_are() {
    let disk = SimDisk::new(1);
    let points = |history: &History| -> Vec<_> {
        history.points.iter().filter_map(|point| point.block).collect()
    };
    append_tens(&mut open_durably(&disk, None, 0), 40);
    let history = open_durably(&disk, None, 0);

    for name in history.engine.snapshots().unwrap() {
        if !name.ends_with("-40") {
            history.engine.delete(&name).unwrap();
        }
    }

    drop(history);
    let mut history = open_durably(&disk, Some(25), 0);
    assert_eq!(points(&history), [40]);
    append_tens(&mut history, 60);
    assert_eq!((points(&history), history.oldest()), (vec![40, 50, 60], Some(36)));
    drop(history);
    let mut history = open_durably(&disk, Some(11), 0);
    append_tens(&mut history, 70);

    assert_eq!((points(&history), history.oldest()), (vec![60, 70], Some(60)));
    drop(history);
    let mut history = open_durably(&disk, None, 0);
    append_tens(&mut history, 255);
    assert_eq!((points(&history).len(), history.oldest()), (POINTS_MAX, Some(60)));
    history.rollback(Some(61), |_, _| true).unwrap();
    assert_eq!(content(history.state()), Model::from([(vec![0], vec![61])]));

    assert!(history.kept().eq(60..=61));
}

/// A half of an older point that is missing, and a point that says it is of another block.
#[test]
fn what_is_no_point_of_this_history_is_passed_over() {
    let disk = SimDisk::new(1);
    append_tens(&mut open_durably(&disk, None, 0), 60);
    let history = open_durably(&disk, None, 0);

    let engine = history.engine.as_ref();
    let delete = |end: &str, role: &str| {
        for name in engine.snapshots().unwrap() {
            if name.starts_with(role) && name.ends_with(end) {
                engine.delete(&name).unwrap();
            }
        }
    };

    delete("-20", "log");
    for role in ["log", "state"] {
        delete("-40", role);
    }

    // Another branch's block 40, as a crash could have left it.
    let mut log = empty_log(engine).unwrap();
    let note = encode_note(40, &[77]);
    log.update(&[Change { key: &record(NOTE, 40), value: Some(&note) }]).unwrap();
    let mark = Mark { sequence: 4, block: Some(40) };
    let state = engine.new_table().unwrap();
    let tables = (log.as_ref(), state.as_ref());
    history.names.save(history.engine.as_ref(), mark, tables).unwrap();

    drop((log, state, history));

    let mut history = open_durably(&disk, None, 0);
    assert_eq!(history.points.iter().filter_map(|point| point.block).count(), 5);
    history.rollback(Some(35), |_, _| true).unwrap();
    assert_eq!(content(history.state()), Model::from([(vec![0], vec![35])]));
    history.rollback(Some(15), |_, _| true).unwrap();
    assert_eq!(content(history.state()), Model::from([(vec![0], vec![15])]));

    history.checkpoint().unwrap();
    assert_eq!(history.engine.snapshots().unwrap().len(), 4);
}

/// A crash can leave a point of a time when less was kept, if the same blocks were replayed anew.
/// Going back by it would lose the blocks that only the present log has.
#[test]
fn a_point_that_has_less_than_is_kept_is_passed_over() {
    let disk = SimDisk::new(1);
    let mut history = open_durably(&disk, Some(15), 0);
    append_tens(&mut history, 40);
    let newest = *history.points.last().unwrap();
    let less = history.open_point(newest).unwrap().unwrap();
    history.keep_max = None;
    history.rollback(None, |_, _| true).unwrap();
    append_tens(&mut history, 60);

    let at_40 = *history.points.iter().find(|point| point.block == newest.block).unwrap();
    history.names.delete_others(history.engine.as_ref(), &[at_40]).unwrap();
    history.points = vec![Mark { sequence: at_40.sequence - 1, ..at_40 }];
    let tables = (less.log.as_ref(), less.state.as_ref());
    history.names.save(history.engine.as_ref(), history.points[0], tables).unwrap();
    assert!(history.rollback(Some(38), |_, _| true).is_ok());
    history.rollback(Some(12), |_, _| true).unwrap();
    assert_eq!(content(history.state()), Model::from([(vec![0], vec![12])]));

    assert!(history.kept().eq(1..=12));
}

/// Blocks 1 to 8 of one branch, back to 3, then 4 to 9 of another, with points on the way.
fn fork(disk: &Arc<SimDisk>) -> Result<()> {
    let disk: Arc<dyn Disk> = disk.clone();
    let engine = Lsm::open_on(&disk, Path::new("/store"))?;

    let mut history = History::open(Box::new(engine), names(), None, 0)?;
    for (branch, blocks) in [(1, 1..=8), (2, 4..=9)] {
        for block in blocks {
            if branch == 2 && block == 4 {
                history.rollback(Some(3), |_, _| true)?;
            }
            let old = history.state().get_many(&[&[0]])?.remove(0);
            let new = Some(fork_value(branch, block));
            let changes = [NetChange { key: vec![0], old, new }];
            history.append(block.into(), fork_value(branch, block), &changes)?;
            // Every second block of the first branch, then the fifth and the ninth.
            if (branch == 1 && block % 2 == 0) || block % 4 == 1 {
                history.checkpoint()?;
            }
        }
    }

    Ok(())
}

/// Note and value of a block: those up to 3 are of both branches.
fn fork_value(branch: u8, block: u8) -> Vec<u8> {
    vec![if block > 3 { branch } else { 0 }, block]
}

#[test]
fn after_a_loss_of_power_at_any_call_no_way_back_leads_to_an_abandoned_branch() {
    let mut left = 0;
    let mut check = |disk: &Arc<SimDisk>| {
        let history = open_durably(disk, None, 0);
        let Some(tip) = history.tip().cloned() else { return };
        let branch = tip.note[0];
        let blocks = 1..=u8::try_from(tip.block).unwrap();
        assert!(history.kept().eq(1..=tip.block));

        left += u64::from(
            branch == 2
                && history.points.iter().any(|point| {
                    let log = history.names.open_log(history.engine.as_ref(), *point).unwrap();
                    read_log(log.as_ref()).unwrap().1.is_some_and(|tip| tip.note[0] == 1)
                }),
        );

        drop(history);
        for block in blocks {
            let mut history = open_durably(disk, None, 0);
            history.rollback(Some(block.into()), |_, _| true).unwrap();
            let value = fork_value(branch, block);
            assert_eq!(history.tip().unwrap().note, value);
            assert_eq!(content(history.state()), Model::from([(vec![0], value)]));
        }
    };

    Sweep::whole(1).crash(
        |disk| drop(fork(disk)),
        |crash| {
            let survivals = [Survival::Nothing, Survival::Everything, Survival::Torn(crash.call)];
            crash.power_losses(survivals, |image| check(&image.disk))
        },
    );

    assert!(left > 0, "no crash left a point of the abandoned branch");
}
