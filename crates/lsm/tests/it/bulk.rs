//! Bulk loads.
//!
//! Goal: a loaded table is what the same updates would have made, whatever their order, however
//! many runs that takes; every entry is written twice; a load that is given up leaves nothing
//! behind. Method: a map as the model, budgets so small that a few thousand entries make many runs,
//! and the simulated disk's counts.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use terrane_io::{Access, Fault, FaultKind, FaultPlan, OpenMode, Repeat};
use terrane_lsm::{
    BulkLoader, CompactionPolicy, CompactionThread, Error, MEMORY_BUDGET_MIN, MergeOperator,
    TableConfig, Update,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::{SessionDir, content, key, name, value};

/// Weight of the entries that are sorted at once under the smallest budget.
const SORTED_BYTES: u64 = MEMORY_BUDGET_MIN / 8;

fn config() -> TableConfig {
    TableConfig::default()
        .memory_budget(MEMORY_BUDGET_MIN)
        .merge_operator(MergeOperator::concatenate())
}

/// Loads distinct keys of these numbers.
fn load(loader: &mut BulkLoader, numbers: std::ops::Range<u64>) -> Result<(), Error> {
    let numbers: Vec<u64> = numbers.collect();
    numbers.chunks(20).try_for_each(|part| {
        let entries: Vec<_> = part.iter().map(|&n| (key(n), value(n, 60))).collect();
        let batch: Vec<_> = entries.iter().map(|(k, v)| (k, Update::Insert(v))).collect();
        loader.write_batch(&batch)
    })
}

#[test]
fn a_loaded_table_is_what_updates_would_have_made() {
    let name = "a_loaded_table_is_what_updates_would_have_made";
    for_each_seed(name, 3, |rng, seed| {
        for (place, thread) in [
            (SessionDir::simulated(seed), CompactionThread::Caller),
            (SessionDir::real(), CompactionThread::Background),
        ] {
            let session = place.open();
            let config = config().compaction_thread(thread);
            let mut loader = session.bulk_load(&config).unwrap();
            let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            for _ in 0..60 {
                let updates: Vec<_> = (0..rng.below(200))
                    .map(|_| (key(rng.below(3_000)), rng.below(6), value(rng.below(99), 20)))
                    .collect();
                let batch = updates.iter().map(|(key, kind, value)| match kind {
                    0 => (key, Update::Delete),
                    1 => (key, Update::Upsert(value)),
                    _ => (key, Update::Insert(value)),
                });
                let batch: Vec<_> = batch.collect();
                loader.write_batch(&batch).unwrap();
                for (key, update) in batch {
                    let old = model.remove(key.as_slice());
                    match update {
                        Update::Upsert(new) => {
                            let old = old.map(|old| MergeOperator::concatenate().apply(new, &old));
                            model.insert(key.to_vec(), old.unwrap_or_else(|| new.to_vec()));
                        }
                        Update::Insert(new) => {
                            model.insert(key.to_vec(), new.to_vec());
                        }
                        _ => {}
                    }
                }
            }
            let mut table = loader.finish().unwrap();
            let expected: Vec<_> = model.clone().into_iter().collect();
            assert_eq!(content(&table), expected);
            assert_eq!(table.stats().runs(), 1);
            let keys: Vec<_> = (0..3_000).map(key).collect();
            for (key, found) in keys.iter().zip(table.get_many(&keys).unwrap()) {
                assert_eq!(found.value(), model.get(key.as_slice()).map(Vec::as_slice));
            }
            // It is a table as any other.
            table.insert(&keys[0], b"new").unwrap();
            table.save_snapshot(&crate::name("loaded"), "").unwrap();
            let again = session.open_snapshot(&crate::name("loaded"), "").unwrap();
            model.insert(keys[0].to_vec(), b"new".to_vec());
            assert_eq!(content(&again), model.into_iter().collect::<Vec<_>>());
        }
    });
}

#[test]
fn every_entry_is_written_twice() {
    let place = SessionDir::simulated(1);
    let SessionDir::Simulated { disk } = &place else { panic!("simulated") };
    let session = place.open();
    let memory_budget = Some(4 * MEMORY_BUDGET_MIN);
    let mut loader = session.bulk_load(&config().memory_budget(memory_budget)).unwrap();
    let before = disk.counts();
    load(&mut loader, 0..20_000).unwrap();
    let table = loader.finish().unwrap();
    let written = (disk.counts() - before).write_bytes;
    let bytes = table.stats().levels.iter().map(|level| level.bytes).sum::<u64>();
    assert_eq!(table.stats().entries(), 20_000);

    // Runs that are only read in order have no filter; pages that are not full at their ends.
    assert!(written > bytes + 20_000 * 94 && written < 2 * bytes + bytes / 4, "{written}, {bytes}");
    // Of what was written in order nothing is left.
    assert_eq!((table.stats().runs(), table.stats().files()), (1, place.runs().len() as u64));
}

/// More runs than are merged at once.
#[test]
fn many_runs_are_merged_in_groups() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let mut loader = session.bulk_load(&config()).unwrap();

    // Every key twice, the second time with the value that counts.
    let per_run = SORTED_BYTES / 44;
    let count = per_run * 450;
    for round in 0..2_u8 {
        for first in (0..count).step_by(1_000) {
            let keys: Vec<_> =
                (first..first + 1_000).map(|n| (n as u32 ^ 0x155).to_le_bytes()).collect();
            let value = [round];
            let value = &value[..usize::from(round)];
            let batch: Vec<_> = keys.iter().map(|key| (key, Update::Insert(value))).collect();
            loader.write_batch(&batch).unwrap();
        }
    }

    assert!(place.runs().len() < 400, "{} runs", place.runs().len());
    let table = loader.finish().unwrap();
    assert_eq!(table.stats().runs(), 1);

    let mut cursor = table.cursor().unwrap();
    let mut entries = 0;
    while let Some(entry) = cursor.next_ref().unwrap() {
        assert_eq!(entry.value, [1]);
        entries += 1;
    }

    assert_eq!(entries, table.stats().entries());
    assert!(entries >= count);
}

#[test]
fn a_load_that_is_given_up_leaves_nothing_behind() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut loader = session.bulk_load(&config()).unwrap();
        load(&mut loader, 0..3_000).unwrap();
        assert!(!place.runs().is_empty());
        drop(loader);
        assert_eq!(place.runs(), Vec::<std::path::PathBuf>::new());
        let mut loader = session.bulk_load(&config()).unwrap();
        load(&mut loader, 0..3_000).unwrap();
        let broken = loader.finish_watched(&mut |_, _| ControlFlow::Break("enough")).unwrap();
        assert!(matches!(broken, ControlFlow::Break("enough")));
        assert_eq!(place.runs(), Vec::<std::path::PathBuf>::new());
    }
}

/// The last merge has two threads, and whichever of them meets an error ends both.
#[test]
fn a_last_merge_on_two_threads_ends_with_what_happens_to_either() {
    let config = config().compaction_thread(CompactionThread::Background);
    let place = SessionDir::real();

    let session = place.open();
    let loaded = || {
        let mut loader = session.bulk_load(&config).unwrap();
        load(&mut loader, 0..20_000).unwrap();
        loader
    };

    // The one that writes tells how far it is, and is broken off with entries still to come.
    let mut looks = Vec::new();
    let watch = &mut |done, total| {
        looks.push((done, total));
        if looks.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break("enough") }
    };

    let broken = loaded().finish_watched(watch).unwrap();
    assert!(matches!(broken, ControlFlow::Break("enough")));
    assert!(looks.is_sorted() && looks.iter().all(|(done, total)| done < total), "{looks:?}");
    assert_eq!(place.runs(), Vec::<std::path::PathBuf>::new());

    // The one that merges reads a damaged page.
    let loader = loaded();
    let damaged = place.runs().swap_remove(1);
    let disk = place.disk();
    let file = disk.open(&damaged, OpenMode::ReadWrite, Access::Buffered).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, 9_000).unwrap();
    file.write_at(&[byte[0] ^ 1], 9_000).unwrap();
    file.sync().unwrap();
    let error = loader.finish().map(drop).unwrap_err();
    let Error::Corrupt { path, .. } = &error else { panic!("{error:?}") };
    assert_eq!(path, &damaged);
    assert_eq!(place.runs(), Vec::<std::path::PathBuf>::new());

    // The session goes on.
    assert_eq!(loaded().finish().unwrap().count_exact().unwrap(), 20_000);
}

#[test]
fn an_empty_load_gives_an_empty_table_and_each_shape_takes_one() {
    for compaction_policy in
        [CompactionPolicy::LazyLevelling, CompactionPolicy::Levelling, CompactionPolicy::Tiering]
    {
        let place = SessionDir::simulated(2);
        let session = place.open();
        let config = config().compaction_policy(compaction_policy);
        let empty = session.bulk_load(&config).unwrap().finish().unwrap();
        assert_eq!(content(&empty), vec![]);
        let mut loader = session.bulk_load(&config).unwrap();
        load(&mut loader, 0..5_000).unwrap();
        let mut table = loader.finish().unwrap();
        crate::fill(&mut table, 5_000..9_000);
        crate::clear(&mut table, (0..9_000).step_by(2));
        assert_eq!(table.count_exact().unwrap(), 4_500);
    }
}

#[test]
fn a_full_disk_is_an_error_that_says_so() {
    let place = SessionDir::simulated(3);
    let SessionDir::Simulated { disk } = &place else { panic!("simulated") };
    let session = place.open();
    let mut loader = session.bulk_load(&config()).unwrap();
    let capacity_bytes = Some(200_000);
    disk.set_plan(FaultPlan { capacity_bytes, ..FaultPlan::default() });
    let error = load(&mut loader, 0..10_000).unwrap_err();
    assert!(matches!(&error, Error::Disk(error) if error.is_no_space()), "{error:?}");

    // There is room again: what was added is still there, and the load goes on.
    disk.set_plan(FaultPlan::default());
    load(&mut loader, 0..10_000).unwrap();
    let table = loader.finish().unwrap();
    assert_eq!(table.count_exact().unwrap(), 10_000);
    table.save_snapshot(&name("loaded"), "").unwrap();
}

/// The loader writes a batch larger than its memory run by run.
#[test]
fn a_batch_of_any_size_is_sorted_in_parts() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut loader = session.bulk_load(&config()).unwrap();
        let entries: Vec<_> = (0..10_000).map(|n| (key(n), value(n, 60))).collect();
        let batch: Vec<_> = entries.iter().map(|(k, v)| (k, Update::Insert(v))).collect();
        loader.write_batch(&batch).unwrap();
        let parts = batch.len() as u64 * 134 / SORTED_BYTES;
        assert!(place.runs().len() as u64 + 2 >= parts, "{} runs", place.runs().len());
        let table = loader.finish().unwrap();
        assert_eq!(content(&table).len(), 10_000);
    }
}

/// Every call of a load fails once. The batch that met the error is given again, and nothing of it
/// counts twice.
#[test]
fn a_batch_that_failed_is_given_again_and_counts_once() {
    let keys: Vec<_> = (0..300).map(key).collect();
    let batches: Vec<Vec<_>> = [80, 300, 2_000, 5, 300, 900]
        .into_iter()
        .enumerate()
        .map(|(round, count)| {
            (0..count).map(|n| (&keys[n % 300], [round as u8 + 65; 50])).collect()
        })
        .collect();

    let mut at_call = 0;
    loop {
        let place = SessionDir::simulated(1);
        let SessionDir::Simulated { disk } = &place else { panic!("simulated") };
        let session = place.open();
        let mut loader = session.bulk_load(&config()).unwrap();
        let first = disk.calls();
        let fault =
            Fault { at_call: first + at_call, kind: FaultKind::Enospc, repeat: Repeat::Once };
        disk.set_plan(FaultPlan { fail: Some(fault), ..FaultPlan::default() });

        let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for entries in &batches {
            let batch: Vec<_> = entries.iter().map(|(k, v)| (*k, Update::Upsert(v))).collect();
            if loader.write_batch(&batch).is_err() {
                loader.write_batch(&batch).unwrap();
            }
            for (key, value) in entries {
                let old = expected.entry(key.to_vec()).or_default();
                *old = MergeOperator::concatenate().apply(value, old);
            }
        }

        let calls = disk.calls() - first;
        let has_failed = disk.faults() > 0;
        disk.set_plan(FaultPlan::default());
        let table = loader.finish().unwrap();
        assert!(content(&table) == expected.into_iter().collect::<Vec<_>>(), "call {at_call}");

        if !has_failed {
            assert!(calls > 30, "{calls} calls");
            break;
        }

        at_call += 1;
    }
}

/// The budget is what it must be for a table of that size, as for one that is there.
#[test]
fn a_budget_that_a_loaded_table_has_outgrown_is_refused_by_name() {
    let session = SessionDir::simulated(1).open();

    let mut loader = session.bulk_load(&config()).unwrap();
    // Keys that differ at their ends only, each on a page of its own.
    for number in 0..2_000_u64 {
        let mut key = value(number / 2, 200);
        key.push(number as u8 % 2);
        loader.write_batch(&[(&key, Update::Insert(&[1; 3_000]))]).unwrap();
    }

    let error = loader.finish().map(drop).unwrap_err();
    let Error::InvalidConfig { option: "memory_budget", allowed, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(allowed.ends_with("for a table of this size"), "{allowed}");
}

/// A call that fails while lookups do merge work is no error of theirs.
#[test]
fn merge_work_of_lookups_that_fails_is_done_again_by_updates() {
    let place = SessionDir::simulated(5);
    let SessionDir::Simulated { disk } = &place else { panic!("simulated") };
    let session = place.open();
    let mut table = session.new_table(&crate::buffer_of(1_000)).unwrap();
    crate::fill(&mut table, 0..30_000);

    let keys: Vec<_> = (0..2_000).map(key).collect();
    let mut failed = 0;
    // Chunks are written behind, so it takes some until one fails.
    for round in 0..250 {
        let first = 30_000 + round * 400;
        crate::fill(&mut table, first..first + 400);
        let at_call = disk.calls();
        let fault = Fault { at_call, kind: FaultKind::Enospc, repeat: Repeat::Forever };
        disk.set_plan(FaultPlan { fail: Some(fault), ..FaultPlan::default() });
        let found = table.get_many(&keys).unwrap();
        assert!(found.iter().all(terrane_lsm::Lookup::is_found));
        failed += disk.faults();
        disk.set_plan(FaultPlan::default());
    }

    assert!(failed > 0, "no merge work of a lookup met the fault");
    assert_eq!(table.count_exact().unwrap(), 130_000);
}
