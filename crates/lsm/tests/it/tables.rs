//! Named properties of tables: batches, limits, sharing, reclaiming, threads, refusals.
//!
//! Goal: each promise of the documentation of `Table` has a test of its own name here, at the sizes
//! where it could break. Method: plain tables of known content, on the simulated disk unless the
//! real one matters.

use std::thread;

use terrane_io::{Access, OpenMode};
use terrane_lsm::{
    CompactionPolicy, CompactionSchedule, CompactionThread, Cursor, DiskCache, Error, FilterPolicy,
    IndexKind, KEY_BYTES_MAX, Lookup, MergeOperator, PAGE_SIZE, Session, SnapshotName, Table,
    TableConfig, Update,
};

use crate::{SALT, SessionDir, buffer_of, clear, content, fill, key, name, small_configs, value};

fn table_of(config: &TableConfig) -> (SessionDir, Session, Table) {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let table = session.new_table(config).unwrap();
    (place, session, table)
}

#[test]
fn a_batch_is_the_same_as_its_updates_one_by_one() {
    for place in SessionDir::both() {
        let session = place.open();
        let configs = small_configs().into_iter().map(|config| (config, 500));
        for (config, len) in configs.chain([(buffer_of(4), 5_001)]) {
            let config = config.merge_operator(MergeOperator::concatenate());
            let mut batched = session.new_table(&config).unwrap();
            let mut single = session.new_table(&config).unwrap();

            // Several updates of one key, far apart and next to each other.
            let values: Vec<_> = (0..len).map(|n| value(n, 20)).collect();
            let keys: Vec<_> = (0..len).map(|n| key(n * n % 419)).collect();
            let update = |n: usize| match n % 5 {
                0 => Update::Delete,
                1 | 2 => Update::Upsert(&values[n]),
                3 => Update::InsertWithBlob(&values[n], &values[n / 2]),
                _ => Update::Insert(&values[n]),
            };

            let updates = (0..values.len()).map(update);
            let batch: Vec<_> = keys.iter().copied().zip(updates).collect();
            batched.write_batch(&batch).unwrap();

            for (key, update) in &batch {
                match *update {
                    Update::Insert(value) => single.insert(key, value),
                    Update::InsertWithBlob(value, blob) => {
                        single.insert_with_blob(key, value, blob)
                    }
                    Update::Upsert(value) => single.upsert(key, value),
                    _ => single.delete(key),
                }
                .unwrap();
            }

            assert_eq!(content(&batched), content(&single), "{config:?}");

            // The values, and the blobs of those that have one.
            let found = |table: &Table| {
                let found = table.get_many(&keys).unwrap();
                let values: Vec<_> =
                    found.iter().map(|one| one.value().map(<[u8]>::to_vec)).collect();
                let refs: Vec<_> = found.iter().map(|one| one.blob().cloned()).collect();
                let blobs =
                    session.retrieve_blobs(&refs.iter().flatten().cloned().collect::<Vec<_>>());
                let have: Vec<_> = refs.iter().map(Option::is_some).collect();
                (values, have, blobs.unwrap())
            };

            let batched = found(&batched);
            let single = found(&single);
            assert!(!batched.2.is_empty() && batched == single, "{config:?}");
        }
    }
}

#[test]
fn a_batch_of_lookups_may_be_any_size() {
    let (_place, _session, mut table) = table_of(&buffer_of(1_000));
    fill(&mut table, 0..30_000);
    clear(&mut table, 10_000..15_000);

    for size in [0, 1, 2, 63, 64, 65, 4_097, 65_537, 200_000] {
        // Present, deleted and absent keys, and each of them several times in the large batches.
        let numbers: Vec<u64> = (0..size).map(|n| n * 7_919 % 40_000).collect();
        let keys: Vec<_> = numbers.iter().map(|&n| key(n)).collect();
        let results = table.get_many(&keys).unwrap();
        assert_eq!(results.len(), keys.len());
        for (&n, result) in numbers.iter().zip(&results) {
            let is_present = n < 10_000 || (15_000..30_000).contains(&n);
            let expected = is_present.then(|| value(n, 60));
            assert_eq!(result.value(), expected.as_deref(), "key {n} of a batch of {size}");
        }
        let are_there = results.iter().map(terrane_lsm::Lookup::is_found);
        assert!(table.contains(&keys).unwrap().into_iter().eq(are_there));
    }
}

#[test]
fn a_batch_of_lookups_is_the_same_as_its_keys_one_by_one_at_every_run_count() {
    for policy in
        [CompactionPolicy::LazyLevelling, CompactionPolicy::Levelling, CompactionPolicy::Tiering]
    {
        for queue_depth in [1, 3, 128] {
            let config = buffer_of(8)
                .compaction_policy(policy)
                .queue_depth(queue_depth)
                .filter(FilterPolicy::BitsPerEntry(2.0));
            let (_place, _session, mut table) = table_of(&config);
            let mut run_counts = std::collections::BTreeSet::new();
            for round in 0..60 {
                fill(&mut table, round * 8..round * 8 + 8);
                clear(&mut table, [round * 5]);
                run_counts.insert(table.stats().runs());
                let mut keys: Vec<_> = (0..500).step_by(7).map(key).collect();
                keys.extend_from_within(..20);
                let batch = table.get_many(&keys).unwrap();
                let singles: Vec<_> = keys.iter().map(|key| table.get(key).unwrap()).collect();
                assert_eq!(batch, singles, "{policy:?}, round {round}");
            }
            assert!(run_counts.len() >= 3, "{policy:?}: only {run_counts:?} runs were seen");
        }
    }
}

#[test]
fn keys_that_share_their_first_eight_bytes_are_told_apart() {
    for index in [IndexKind::Auto, IndexKind::Compact, IndexKind::Ordinary] {
        let (_place, _session, mut table) = table_of(&buffer_of(1_000).index(index));
        let shared = |n: u32| [b"eight by".as_slice(), &n.to_le_bytes()].concat();
        let entries: Vec<_> = (0..10_000).map(|n| (shared(n), value(n.into(), 40))).collect();
        let batch: Vec<_> = entries.iter().map(|(k, v)| (k, Update::Insert(v))).collect();
        table.write_batch(&batch).unwrap();
        let keys: Vec<_> = (0..20_000).map(shared).collect();

        let results = table.get_many(&keys).unwrap();
        for (n, result) in results.iter().enumerate() {
            let expected = entries.get(n).map(|(_, value)| value.as_slice());
            assert_eq!(result.value(), expected, "key {n}, {index:?}");
        }

        let mut sorted = entries.clone();
        sorted.sort();
        assert_eq!(content(&table), sorted, "{index:?}");
        let mut cursor = table.cursor_at(&sorted[5_000].0).unwrap();
        assert_eq!(
            cursor.next().transpose().unwrap().map(|record| record.key),
            Some(sorted[5_000].0.clone())
        );
    }
}

/// Entries that end exactly at a page's end, one byte further, and far beyond it.
#[test]
fn values_of_every_size_survive_flush_merge_and_snapshot() {
    let page = PAGE_SIZE;

    // Header, two ends and a kind of one entry with a key of 4 bytes.
    let fills_page = page - 16 - 4 - 1 - 4;
    let lens = [0, 1, fills_page - 1, fills_page, fills_page + 1, page, page + 1, 10_000, 5 << 20];
    for place in SessionDir::both() {
        let session = place.open();
        for disk_cache in [DiskCache::All, DiskCache::None] {
            let config = buffer_of(3).disk_cache(disk_cache);
            let mut table = session.new_table(&config).unwrap();
            let entry = |n: usize| (format!("k{n:03}").into_bytes(), value(n as u64, lens[n % 9]));

            let entries: Vec<_> = (0..27).map(entry).collect();
            for (key, value) in &entries {
                table.insert(key, value).unwrap();
            }

            let check = |table: &Table| {
                let keys: Vec<_> = entries.iter().map(|(key, _)| key).collect();
                for (result, (_, value)) in table.get_many(&keys).unwrap().iter().zip(&entries) {
                    assert!(result.value() == Some(value), "a value of {} bytes", value.len());
                }
                assert!(content(table) == entries);
            };

            check(&table);
            table.save_snapshot(&name("sizes"), "").unwrap();
            check(&session.open_snapshot(&name("sizes"), "").unwrap());
            session.delete_snapshot(&name("sizes")).unwrap();
        }
    }
}

#[test]
fn keys_of_every_length_are_kept_and_longer_ones_change_nothing() {
    let (_place, _session, mut table) = table_of(&buffer_of(50));
    let lens = (0..=20).chain([255, 256, 1_999, 2_000, KEY_BYTES_MAX - 1, KEY_BYTES_MAX]);

    let mut keys: Vec<_> = lens.map(|len| vec![b'k'; len]).collect();
    // Values that fit, fill and exceed what such a key leaves of its page.
    for (n, len) in [0, 50, 70, 80, 90, 4_100].into_iter().cycle().take(200).enumerate() {
        table.insert(&keys[n % keys.len()], &value(n as u64, len)).unwrap();
    }
    let before = content(&table);
    assert_eq!(before.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>(), keys);
    let too_long = vec![b'k'; KEY_BYTES_MAX + 1];
    keys.push(too_long.clone());

    let batch: Vec<_> = keys.iter().map(|key| (key, Update::Delete)).collect();
    for error in [
        table.write_batch(&batch).unwrap_err(),
        table.insert(&too_long, b"").unwrap_err(),
        table.delete(&too_long).unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(matches!(error, Error::KeyTooLarge { bytes: 4_001, limit: 4_000 }), "{text}");
        assert_eq!(text, "a key of 4001 bytes; the limit is 4000");
    }

    assert_eq!(content(&table), before);
    assert_eq!(table.get(&too_long).unwrap(), Lookup::NotFound);
    assert_eq!(table.cursor_at(&too_long).unwrap().next_ref().unwrap().map(drop), None);
}

#[test]
fn a_lookup_finds_the_newest_of_many_versions() {
    for config in small_configs() {
        let (_place, _session, mut table) = table_of(&config);
        for round in 0..500 {
            table.insert(b"hot", &value(round, 30)).unwrap();
            table.insert(&key(round % 37), &value(round, 30)).unwrap();
            let found = table.get(b"hot").unwrap();
            assert_eq!(found.value(), Some(value(round, 30).as_slice()));
        }
        table.delete(b"hot").unwrap();
        assert!(!table.get(b"hot").unwrap().is_found());
        assert_eq!(content(&table).len(), 37);
    }
}

/// Deletions are dropped when they reach the last level, and with them all that they hide.
#[test]
fn deleted_entries_leave_the_disk() {
    for compaction_schedule in [CompactionSchedule::Incremental, CompactionSchedule::OneShot] {
        let config = buffer_of(2_000).compaction_schedule(compaction_schedule);
        let (place, _session, mut table) = table_of(&config);
        fill(&mut table, 0..100_000);
        let full_bytes = place.run_bytes();
        assert!(full_bytes > 100_000 * (34 + 60));
        clear(&mut table, 0..100_000);

        // Merges go on only with updates: deletions of 2,000 absent keys again and again, which
        // merge into no more than 2,000 entries a run.
        for _ in 0..300 {
            clear(&mut table, 1_000_000..1_002_000);
        }
        assert_eq!(content(&table), []);

        let left_bytes = place.run_bytes();
        assert!(
            left_bytes < full_bytes / 10,
            "{compaction_schedule:?}: {left_bytes} of {full_bytes} bytes are left"
        );

        // What is left are the newest deletions, not the 200,000 entries of before.
        assert!(table.stats().entries() < 40_000);
    }
}

#[test]
fn the_background_thread_changes_no_result() {
    for place in SessionDir::both() {
        let session = place.open();
        for schedule in [CompactionSchedule::Incremental, CompactionSchedule::OneShot] {
            let with = |compaction_thread| {
                let compaction_batch_pages = 1;
                let base = buffer_of(100);
                let config = base
                    .compaction_thread(compaction_thread)
                    .compaction_batch_pages(compaction_batch_pages)
                    .compaction_schedule(schedule);
                session.new_table(&config).unwrap()
            };

            let mut caller = with(CompactionThread::Caller);
            let mut background = with(CompactionThread::Background);
            for round in 0..60 {
                for table in [&mut caller, &mut background] {
                    fill(table, round * 150..round * 150 + 200);
                    clear(table, round * 90..round * 90 + 60);
                }
                let keys: Vec<_> = (0..9_200).step_by(23).map(key).collect();
                assert_eq!(caller.get_many(&keys).unwrap(), background.get_many(&keys).unwrap());
            }

            assert_eq!(content(&caller), content(&background));
        }
    }
}

#[test]
fn many_threads_read_one_table_and_its_duplicate_is_updated() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut table = session.new_table(&buffer_of(500)).unwrap();
        fill(&mut table, 0..10_000);

        let mut writer = table.fork().unwrap();
        thread::scope(|scope| {
            for reader in 0..8 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..4 {
                        let numbers = (0..3_000).map(|n| (n * 7 + reader * 31 + round) % 12_000);
                        let numbers: Vec<u64> = numbers.collect();
                        let keys: Vec<_> = numbers.iter().map(|&n| key(n)).collect();
                        for (&n, result) in numbers.iter().zip(table.get_many(&keys).unwrap()) {
                            let expected = (n < 10_000).then(|| value(n, 60));
                            assert_eq!(result.value(), expected.as_deref());
                        }
                    }
                });
            }
            scope.spawn(|| {
                clear(&mut writer, 0..10_000);
                fill(&mut writer, 20_000..25_000);
            });
        });

        assert_eq!(content(&table).len(), 10_000);
        assert_eq!(content(&writer).len(), 5_000);
    }
}

#[test]
fn handles_cross_threads_as_documented() {
    const fn send<T: Send>() {}
    const fn send_and_sync<T: Send + Sync>() {}

    // Checked when this is compiled.
    const _: () = {
        send_and_sync::<Session>();
        send_and_sync::<Table>();
        send_and_sync::<SnapshotName>();
        send_and_sync::<Error>();
        send::<Cursor>();
    };

    // And a table that outlives its thread and its session's handle still works.
    let table = thread::spawn(|| {
        let (_place, _session, mut table) = table_of(&buffer_of(3));
        fill(&mut table, 0..20);
        table
    });

    assert_eq!(content(&table.join().unwrap()).len(), 20);
}

#[test]
fn a_session_dir_is_held_by_one_handle_at_a_time() {
    for place in SessionDir::both() {
        let session = place.open();
        let clone = session.clone();
        let error = place.try_open(SALT).unwrap_err();
        assert!(
            matches!(&error, Error::SessionDirLocked { path, .. } if *path == place.dir()),
            "{error}"
        );
        assert!(error.to_string().contains("in use"), "{error}");
        let table = session.new_table(&buffer_of(3)).unwrap();
        drop((session, clone));
        // The table keeps the session.
        assert!(matches!(place.try_open(SALT), Err(Error::SessionDirLocked { .. })));
        drop(table);
        place.open().close().unwrap();
    }
}

fn bytes_of(place: &SessionDir, path: &std::path::Path) -> Vec<u8> {
    let file = place.disk().open(path, OpenMode::Read, Access::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// A compaction that outlives its session must not write into the files of the next session, whose
/// file numbers begin anew.
#[test]
fn a_merge_under_way_when_its_session_closes_writes_no_more() {
    for place in SessionDir::both() {
        let session = place.open();

        // Closes the session in the middle of a merge, as another thread might.
        let (begin, begun) = std::sync::mpsc::channel::<()>();
        let (go_on, gone_on) = std::sync::mpsc::channel::<()>();

        let waits = std::sync::Mutex::new((2_500, begin, gone_on));
        let combine = move |newer: &[u8], _: &[u8]| {
            let mut waits = waits.lock().unwrap();
            waits.0 -= 1;
            if waits.0 == 0 {
                waits.1.send(()).unwrap();
                waits.2.recv().unwrap();
            }
            newer.to_vec()
        };

        let config = buffer_of(500)
            .merge_operator(terrane_lsm::MergeOperator::new("waits", combine).unwrap());

        let tables = [0, 1].map(|_| {
            let mut table = session.new_table(&config).unwrap();
            fill(&mut table, 0..4_000);
            table
        });

        let mut union = session.incremental_union(&tables.each_ref()).unwrap();
        thread::scope(|scope| {
            let paying = scope.spawn(|| union.supply_union_credits(u64::MAX));
            // Dropped also if this thread panics, so that the other one does not wait.
            let go_on = go_on;
            begun.recv().unwrap();
            let old = place.runs();
            // Until the file that the merge writes is closed to make room for others.
            (0..20).for_each(|_| drop(tables.each_ref().map(content)));
            session.close().unwrap();
            assert_eq!(place.runs(), [] as [std::path::PathBuf; 0]);
            let next = place.open();
            let mut table = next.new_table(&buffer_of(50)).unwrap();
            // All files that there ever were: one of them has the number of the merge's.
            let kept: Vec<Table> = (10_000..13_000)
                .map(|number| {
                    fill(&mut table, [number]);
                    table.fork().unwrap()
                })
                .collect();
            let new = place.runs();
            assert!(old.iter().all(|path| new.contains(path)), "{old:?}, {new:?}");
            let bytes = || new.iter().map(|path| bytes_of(&place, path)).collect();
            let before: Vec<Vec<u8>> = bytes();
            go_on.send(()).unwrap();
            let refused = paying.join().unwrap();
            assert!(matches!(refused, Err(Error::SessionClosed)), "{refused:?}");
            assert!(before == bytes(), "a file of the next session has changed");
            drop(kept);
        });
    }
}

/// A merge operator that panics on the background thread costs its merge a step, and nobody the
/// thread.
#[test]
fn the_background_thread_outlives_a_panic_of_a_resolve_function() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let combine = move |newer: &[u8], _: &[u8]| {
        let is_background = thread::current().name() == Some("terrane-merge");
        let first = is_background && counted.fetch_add(1, Ordering::Relaxed) == 0;
        assert!(!first, "the first call on the background thread panics, as it should");
        newer.to_vec()
    };

    let config = buffer_of(100)
        .merge_operator(terrane_lsm::MergeOperator::new("panics", combine).unwrap())
        .compaction_thread(CompactionThread::Background)
        .compaction_batch_pages(1);

    let (_place, session, mut table) = table_of(&config);
    let mut updates = 0;
    while calls.load(Ordering::Relaxed) < 50 {
        let number = updates % 1_000;
        table.write_batch(&[(key(number), Update::Upsert(&value(updates, 60)))]).unwrap();
        updates += 1;
        assert!(updates < 500_000, "nobody merges in the background any more");
    }

    session.close().unwrap();
}

#[test]
fn a_range_of_any_size_is_deleted_whole() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut table = session.new_table(&buffer_of(1_000)).unwrap();
        fill(&mut table, 0..12_000);
        let all = content(&table);
        let from = all[1_000].0.clone();
        let to = all[11_000].0.clone();
        table.delete_range(&from[..]..&to[..]).unwrap();
        let left: Vec<_> = all[..1_000].iter().chain(&all[11_000..]).cloned().collect();
        assert_eq!(content(&table), left);
        let prefix = &left[0].0[..1];
        let expected = left.iter().filter(|(key, _)| !key.starts_with(prefix)).count();
        table.delete_prefix(prefix).unwrap();
        assert_eq!(content(&table).len(), expected);
        table.delete_prefix(b"").unwrap();
        assert!(content(&table).is_empty());
        assert_eq!(place.runs(), Vec::<std::path::PathBuf>::new());
        drop(table);
        session.close().unwrap();
    }
}

/// Files of some megabytes and more are removed where nobody waits for it, but for who closes the
/// session, or lets go of the last handle on it.
#[test]
fn large_files_that_nobody_uses_are_gone_when_the_session_is() {
    for closes in [true, false] {
        let place = SessionDir::real();
        let session = place.open();
        let mut table = session.new_table(&buffer_of(60_000)).unwrap();
        fill(&mut table, 0..200_000);
        let bytes = place.run_bytes();
        let runs = place.runs().len() as u64;
        assert!(bytes > runs * (4 << 20), "{bytes} bytes in {runs} runs");
        drop(table);
        if closes {
            session.close().unwrap();
        }
        drop(session);
        assert_eq!(place.runs(), Vec::<std::path::PathBuf>::new());
        place.open();
    }
}
