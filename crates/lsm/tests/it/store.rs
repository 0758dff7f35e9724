//! Named tables, commits, checkpoints and recovery.
//!
//! Goal: a store behaves as documented. After a crash, whatever several threads committed and
//! whatever the next process does first, the store holds all commits up to some number that is not
//! below the last durable one, each whole over all its tables. Crashes and
//! faults at every call of many workloads are in [`crate::store_sweep`] and
//! [`crate::store_faults`].

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::Disk;
use terrane_io::{BadMedia, SimDisk, Survival};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_lsm::{
    Durability, Error, MergeOperator, NamedTable, SessionOptions, Store, StoreOptions, TableConfig,
    TableName, Ticket, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::places;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::store_script::{
    Content, History, Runner, Script, State, Step, batch, check_image, config, content, name, open,
    options, run, state,
};
use crate::{SALT, SessionDir};

const SURVIVALS: [Survival; 6] = [
    Survival::Nothing,
    Survival::Everything,
    Survival::Prefix(1),
    Survival::Random(1),
    Survival::Random(2),
    Survival::Torn(3),
];

#[test]
fn commits_that_wait_together_share_an_fsync() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    let table = store.create_table(&name("main"), &TableConfig::default()).unwrap();
    table.insert(b"first", b"begins the log").unwrap().wait().unwrap();
    let before = disk.counts();
    let tickets: Vec<Ticket> =
        (0..20_u8).map(|number| table.insert(&[number], b"value").unwrap()).collect();
    assert!(tickets.iter().all(|ticket| !ticket.is_durable()));
    assert_eq!((disk.counts() - before).syncs, 0);
    tickets[10].wait().unwrap();
    assert!(tickets.iter().all(Ticket::is_durable), "one fsync is for all that is written");

    for ticket in tickets {
        ticket.wait().unwrap();
    }
    store.sync().unwrap();
    assert_eq!((disk.counts() - before).syncs, 1);

    // A record each, and the mark of the sync.
    assert_eq!((disk.counts() - before).writes, 21);

    // Each of them asks for its own, if nobody waits at the same time.
    for number in 0..5_u8 {
        let update = (&[number][..], Update::Delete);
        drop(store.commit_with(&[(&table, &[update][..])], Durability::Each).unwrap());
    }

    assert_eq!((disk.counts() - before).syncs, 6);
    store.close().unwrap();
}

/// Threads wait for each other's commits: some end early, a checkpoint makes the awaited commits
/// durable, and at last the store is closed. No thread may be left waiting, and every commit that
/// was acknowledged as durable must be there.
#[test]
fn nobody_waits_for_a_sync_that_does_not_come() {
    for place in SessionDir::both() {
        let session = SessionOptions::with_salt(SALT).create_dir();
        let options = StoreOptions::default().session(session);

        let store = Store::open(place.disk(), &place.dir(), &options).unwrap();
        let table = store.create_table(&name("main"), &config()).unwrap();
        let durable: Vec<u64> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..6_u64)
                .map(|thread| {
                    let store = &store;
                    let table = &table;
                    // Two go on until the store is closed.
                    let most = if thread < 2 { u64::MAX } else { 20 * thread };
                    scope.spawn(move || {
                        let commit = |number: &u64| {
                            let value = number.to_le_bytes();
                            let ticket = table.insert(&thread.to_le_bytes(), &value)?;
                            if number.is_multiple_of(16) && thread == 3 {
                                store.checkpoint()?;
                            }
                            ticket.wait()
                        };
                        (1..=most).take_while(|number| commit(number).is_ok()).count() as u64
                    })
                })
                .collect();
            let mut workers = workers.into_iter();
            let endless: Vec<_> = workers.by_ref().take(2).collect();
            let ended: Vec<u64> = workers.map(|worker| worker.join().unwrap()).collect();
            store.close().unwrap();
            let endless = endless.into_iter().map(|worker| worker.join().unwrap());
            endless.chain(ended).collect()
        });

        assert_eq!(durable[2..], [40, 60, 80, 100]);
        drop((table, store));
        let store = Store::open(place.disk(), &place.dir(), &options).unwrap();

        let table = store.table(&name("main")).unwrap();
        for (thread, durable) in (0_u64..).zip(durable) {
            let found = table.get(&thread.to_le_bytes()).unwrap();
            let number = found.value().map_or(0, |v| u64::from_le_bytes(v.try_into().unwrap()));
            assert!(number >= durable, "thread {thread}: {number}, not {durable}");
        }

        store.close().unwrap();
    }
}

/// Four threads commit at the same time, each its own sequence of numbers; the power goes at some
/// call.
#[test]
fn commits_of_several_threads_survive_in_the_order_of_their_numbers() {
    for_each_seed("store_threads", 12, |rng, seed| {
        let disk = SimDisk::new(seed);
        let store = open(&disk, Durability::Group).unwrap();
        let tables = ["a", "b"].map(|table| store.create_table(&name(table), &config()).unwrap());
        let call = disk.calls() + 1 + rng.below(400);
        disk.set_plan(FaultPlan { crash_at_call: Some(call), ..FaultPlan::default() });
        // For each thread the numbers of its commits, and how many of them are durable.
        let done: Vec<(Vec<u64>, usize)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4_u8)
                .map(|thread| {
                    let store = store.clone();
                    let tables = tables.clone();
                    scope.spawn(move || commit_until_crash(&store, &tables, thread))
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        assert!(disk.has_crashed());
        drop(tables);
        drop(store);
        let is_kill = rng.chance(1, 3);
        let survival = SURVIVALS[rng.index(SURVIVALS.len())];
        let disk = if is_kill { disk.process_kill() } else { disk.after_crash(survival) };
        let store = open(&disk, Durability::Group).unwrap();
        let last = store.last_commit();
        let (a, b) = (store.table(&name("a")).unwrap(), store.table(&name("b")).unwrap());
        for (thread, (commits, durable)) in (0..4_u8).zip(&done) {
            let newest = |table: &NamedTable| {
                let value = table.get(&[thread]).unwrap();
                value.value().map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
            };
            let found = newest(&a);
            assert_eq!(found, newest(&b), "a commit is whole or not there");
            let survived = commits.iter().filter(|commit| **commit <= last).count() as u64;
            // One more may be there than has returned.
            assert!((survived..=survived + 1).contains(&found), "thread {thread}: {found}");
            assert!(survived >= *durable as u64, "thread {thread} was told of {durable}");
        }
        store.close().unwrap();
    });
}

/// Commits 1, 2, 3 and so on to both tables until it fails. Returns the numbers of its commits, and
/// how many of them were durable.
fn commit_until_crash(store: &Store, tables: &[NamedTable; 2], thread: u8) -> (Vec<u64>, usize) {
    let mut commits = Vec::new();
    let mut durable = 0;
    loop {
        let value = (commits.len() as u64 + 1).to_le_bytes();
        let update = [([thread], Update::Insert(&value))];
        let Ok(ticket) = store.commit(&[(&tables[0], &update[..]), (&tables[1], &update[..])])
        else {
            return (commits, durable);
        };
        commits.push(ticket.commit());
        if commits.len() % 3 == usize::from(thread) % 3 {
            if ticket.wait().is_err() {
                return (commits, durable);
            }
            assert!(ticket.is_durable());
            durable = commits.len();
        }
    }
}

#[test]
fn what_a_store_refuses_it_names_and_changes_nothing() {
    for place in SessionDir::both() {
        let dir = place.dir();
        let open = |options: &StoreOptions| Store::open(place.disk(), &dir, options);
        let store = open(&options(Durability::Group)).unwrap();
        let (main, other) = (TableName::default(), name("other"));
        let table = store.create_table(&main, &config()).unwrap();
        let taken = store.create_table(&main, &config());
        assert!(matches!(taken, Err(Error::TableExists { name }) if name == "main"));
        store.create_table(&other, &config()).unwrap();
        let renamed = store.rename_table(&main, &other);
        assert!(matches!(renamed, Err(Error::TableExists { name }) if name == "other"));

        let missing = name("missing");
        for refused in [
            store.table(&missing).map(drop),
            store.drop_table(&missing),
            store.rename_table(&missing, &main),
        ] {
            assert!(matches!(refused, Err(Error::TableDoesNotExist { name }) if name == "missing"));
        }

        assert!(matches!(TableName::new("Main"), Err(Error::InvalidTableName { .. })));

        // All or nothing: the second table refuses.
        let (good, bad) = ([(vec![1], Update::Insert(b"1"))], [(vec![0; 5_000], Update::Delete)]);
        let other_table = store.table(&other).unwrap();
        let refused = store.commit(&[(&table, &good[..]), (&other_table, &bad[..])]);
        assert!(matches!(refused, Err(Error::KeyTooLarge { bytes: 5_000, .. })));
        assert_eq!(state(&store).unwrap()["main"], Content::new());
        let before = store.last_commit();
        drop(table.insert(b"key", b"value").unwrap());
        assert_eq!(store.last_commit(), before + 1);
        store.drop_table(&other).unwrap();
        let refused = other_table.insert(b"key", b"value");
        assert!(matches!(refused, Err(Error::TableDoesNotExist { name }) if name == "other"));
        assert!(matches!(other_table.view(), Err(Error::TableDoesNotExist { .. })));
        store.close().unwrap();
        assert!(matches!(table.insert(b"key", b"value"), Err(Error::SessionClosed)));
        assert!(matches!(store.table(&main), Err(Error::SessionClosed)));
        drop((store, table, other_table));
        let refused = open(&options(Durability::Group).log_bytes_max(1));
        assert!(matches!(refused, Err(Error::InvalidConfig { option: "log_bytes_max", .. })));
        let store = open(&options(Durability::Group)).unwrap();
        let content = Content::from([(b"key".to_vec(), b"value".to_vec())]);
        assert_eq!(state(&store).unwrap(), State::from([("main".to_owned(), content)]));
        store.close().unwrap();
    }
}

/// A view stays as it is; readers and a writer at the same time.
#[test]
fn a_view_is_one_commits_whatever_comes_after() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();

    let table = store.create_table(&name("main"), &config()).unwrap();
    let mut views = Vec::new();
    for number in 0..100_u64 {
        drop(table.insert(&(number % 7).to_le_bytes(), &number.to_le_bytes()).unwrap());
        views.push((number, table.view().unwrap()));
    }

    for (number, view) in views {
        for key in 0..7_u64 {
            let newest = (0..=number).rev().find(|n| n % 7 == key);
            let found = view.get(&key.to_le_bytes()).unwrap();
            assert_eq!(found.value(), newest.map(u64::to_le_bytes).as_ref().map(|v| &v[..]));
        }
    }

    store.drop_table(&name("main")).unwrap();
    store.close().unwrap();
}

/// Tables of own merge operators come back with them, and not without.
#[test]
fn a_store_asks_for_the_resolve_functions_of_its_tables() {
    let disk = SimDisk::new(1);
    let newest_two = || {
        MergeOperator::new("newest-two", |newer: &[u8], older: &[u8]| {
            newer.iter().chain(older).take(2).copied().collect::<Vec<u8>>()
        })
        .unwrap()
    };

    let with = || options(Durability::Group).merge_operator(newest_two());
    let open_with = |options: &StoreOptions| {
        Store::open(Arc::clone(&disk) as Arc<dyn Disk>, Path::new("/store"), options)
    };
    let store = open_with(&with()).unwrap();
    let own = config().merge_operator(newest_two());
    let table = store.create_table(&name("own"), &own).unwrap();
    let sums = config().merge_operator(MergeOperator::add_u64_wrapping());

    let sum = store.create_table(&name("sum"), &sums).unwrap();
    for number in 0..30_u8 {
        let one = 1_u64.to_le_bytes();
        let updates = [(b"key", Update::Upsert(&[number]))];
        drop(
            store
                .commit(&[(&table, &updates[..]), (&sum, &[(b"sum", Update::Upsert(&one))])])
                .unwrap(),
        );
    }

    store.sync().unwrap();
    drop((store, table, sum));

    let disk = disk.after_crash(Survival::Nothing);
    let open_with = |options: &StoreOptions| {
        Store::open(Arc::clone(&disk) as Arc<dyn Disk>, Path::new("/store"), options)
    };
    let refused = open_with(&options(Durability::Group));
    assert!(matches!(refused, Err(Error::MergeOperatorMismatch { name, .. }) if name == "own"));
    let store = open_with(&with()).unwrap();
    let found = store.table(&name("own")).unwrap().get(b"key").unwrap();
    assert_eq!(found.value(), Some(&[29, 28][..]));
    let found = store.table(&name("sum")).unwrap().get(b"sum").unwrap();
    assert_eq!(found.value(), Some(&30_u64.to_le_bytes()[..]));
    store.close().unwrap();
}

/// The log is as long as it may be and no longer, and its files are used again.
#[test]
fn the_log_stays_within_its_bytes_and_its_segments_are_written_again() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Buffered).unwrap();

    let table = store.create_table(&name("main"), &TableConfig::default()).unwrap();
    let mut files = std::collections::BTreeSet::new();
    for number in 0..2_000_u64 {
        drop(table.insert(&number.to_le_bytes(), &[7; 500]).unwrap());
        let log: Vec<_> =
            disk.files().into_iter().filter(|path| path.starts_with("/store/log")).collect();
        let bytes: u64 = log.iter().map(|path| disk.read_raw(path).unwrap().len() as u64).sum();
        // Half of it until a checkpoint is due, as much again of old segments, and the one that is
        // begun.
        assert!(bytes <= 3 * (64 << 10), "{bytes} bytes in {log:?}");
        files.extend(log);
    }

    assert!(files.len() > 40, "{} segments", files.len());

    // A commit longer than a segment has one of its own.
    table.insert(b"large", &vec![1; 300_000]).unwrap().wait().unwrap();
    drop((store, table));
    let disk = disk.after_crash(Survival::Nothing);
    let store = open(&disk, Durability::Group).unwrap();
    let table = store.table(&name("main")).unwrap();
    assert_eq!(table.view().unwrap().count_exact().unwrap(), 2_001);
    store.close().unwrap();
}

/// Paths of the segments of the log, oldest first.
fn log_files(disk: &SimDisk) -> Vec<PathBuf> {
    disk.files().into_iter().filter(|path| path.starts_with("/store/log")).collect()
}

/// Each process that dies leaves one more segment, and each opening reads them all. A checkpoint
/// comes once they are more than a log of full length has, and not before.
#[test]
fn what_processes_that_died_left_of_the_log_is_bounded() {
    // Those of a log of full length and the one behind it, and one more that asks for a checkpoint.
    const MOST: usize = 4 + 1 + 1;

    let mut disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    drop(store.create_table(&name("main"), &config()).unwrap());
    drop(store);

    for round in 0..3 * MOST {
        let store = open(&disk, Durability::Group).unwrap();
        let table = store.table(&name("main")).unwrap();
        // The last of them is the one that was made ahead.
        assert_eq!(log_files(&disk).len(), 1 + round.min(MOST), "round {round}");
        table.insert(b"key", b"value").unwrap().wait().unwrap();
        drop((store, table));
        disk = disk.after_crash(Survival::Nothing);
    }
}

/// A timer or an operator may ask for a checkpoint at any time.
#[test]
fn a_checkpoint_with_nothing_to_write_out_writes_nothing() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    let table = store.create_table(&name("main"), &config()).unwrap();
    for round in 0..4_u8 {
        table.insert(&[round], b"value").unwrap().wait().unwrap();
        let before = disk.counts();
        store.checkpoint().unwrap();
        let after = disk.counts();
        assert!((after - before).writes > 0, "round {round}");

        store.checkpoint().unwrap();
        store.checkpoint().unwrap();
        let spent = disk.counts() - after;
        assert_eq!((spent.writes, spent.syncs), (0, 0), "round {round}");
    }
}

/// An old segment is there to be written again. One with a bad sector, of which nobody needs a
/// byte, made the next commit fail that needed a segment.
#[test]
fn an_old_segment_with_a_bad_sector_is_replaced() {
    let of_a_file =
        [(0..512, BadMedia::Write), (512..1536, BadMedia::Both), (0..u64::MAX, BadMedia::Both)];
    for (range, bad) in of_a_file {
        let disk = SimDisk::new(1);
        let store = open(&disk, Durability::Buffered).unwrap();

        let table = store.create_table(&name("main"), &TableConfig::default()).unwrap();
        for number in 0..400_u64 {
            drop(table.insert(&number.to_le_bytes(), &[7; 500]).unwrap());
        }
        let log = log_files(&disk);
        assert!(log.len() > 3, "{log:?}");

        // Not the one in use, and not the one behind, if that is made already.
        for segment in &log[..log.len() - 2] {
            disk.add_bad_range(segment, range.clone(), bad);
        }

        // A checkpoint, so that the log needs none of these segments.
        store.checkpoint().unwrap();
        for number in 400..800_u64 {
            drop(table.insert(&number.to_le_bytes(), &[7; 500]).unwrap());
        }
        store.sync().unwrap();
        drop((store, table));
        let disk = disk.after_crash(Survival::Nothing);
        let store = open(&disk, Durability::Group).unwrap();
        let table = store.table(&name("main")).unwrap();
        assert_eq!(table.view().unwrap().count_exact().unwrap(), 800);
        store.close().unwrap();
    }
}

/// A bad sector in the segment in use fails the commit that meets it, and no other one.
#[test]
fn a_bad_sector_in_the_segment_in_use_fails_one_commit() {
    for bad in [BadMedia::Write, BadMedia::Both] {
        let disk = SimDisk::new(1);
        let store = open(&disk, Durability::Buffered).unwrap();
        let table = store.create_table(&name("main"), &TableConfig::default()).unwrap();
        drop(table.insert(b"first", &[7; 500]).unwrap());
        let log = log_files(&disk);
        disk.add_bad_range(log.last().unwrap(), 4096..u64::MAX, bad);

        let mut failed = 0;
        for number in 0..100_u64 {
            failed += u64::from(table.insert(&number.to_le_bytes(), &[7; 500]).is_err());
        }
        assert_eq!(failed, 1);
        store.sync().unwrap();
        let expected = content(&table).unwrap();
        drop((store, table));

        for survival in SURVIVALS {
            let store = open(&disk.after_crash(survival), Durability::Group).unwrap();
            assert_eq!(content(&store.table(&name("main")).unwrap()).unwrap(), expected);
            store.close().unwrap();
        }
    }
}

/// Each process that dies leaves a segment of the log; the next ones do not read ever more of them.
#[test]
fn processes_that_die_one_after_another_leave_a_bounded_log() {
    let mut disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    store.create_table(&name("main"), &TableConfig::default()).unwrap();
    drop(store);

    let mut calls_of_openings = Vec::new();
    for number in 0..60_u8 {
        let before = disk.calls();
        let store = open(&disk, Durability::Group).unwrap();
        store.table(&name("main")).unwrap().insert(&[number], b"value").unwrap().wait().unwrap();
        calls_of_openings.push(disk.calls() - before);
        drop(store);
        disk = disk.after_crash(Survival::Nothing);
    }

    // The segments of six processes, and the runs of a few checkpoints that wait for a merge.
    let most = calls_of_openings.iter().max().copied().unwrap();
    assert!(most < 4 * calls_of_openings[0], "{calls_of_openings:?}");
    let store = open(&disk, Durability::Group).unwrap();
    assert_eq!(store.table(&name("main")).unwrap().view().unwrap().count_exact().unwrap(), 60);
    store.close().unwrap();
}

/// Whole ranges go at once, or not at all; after a crash, too.
#[test]
fn a_range_is_deleted_whole() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    let table = store.create_table(&name("main"), &config()).unwrap();

    // In the order of their numbers.
    let key = |number: u64| {
        let mut key = number.to_le_bytes();
        key.reverse();
        key
    };

    for number in 0..300 {
        drop(table.insert(&key(number), b"value").unwrap());
    }
    drop(table.delete_range(&key(50)[..]..&key(250)[..]).unwrap());
    assert_eq!(table.view().unwrap().count_exact().unwrap(), 100);

    // 250 to 255 have another last byte only.
    let ticket = table.delete_prefix(&key(0)[..7]).unwrap();
    ticket.wait().unwrap();
    assert_eq!(table.view().unwrap().count_exact().unwrap(), 44);
    table.delete_prefix(b"nothing").unwrap().wait().unwrap();
    drop((store, table));
    let store = open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap();
    let left = content(&store.table(&name("main")).unwrap()).unwrap();
    let expected: Vec<_> = (256..300).map(|number| key(number).to_vec()).collect();
    assert_eq!(left.into_keys().collect::<Vec<_>>(), expected);
    store.close().unwrap();
}

#[test]
fn a_changed_configuration_is_that_of_the_next_process() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();

    let table = store.create_table(&name("main"), &config()).unwrap();
    for number in 0..100_u8 {
        drop(table.upsert(&[number], b"value").unwrap());
    }
    let other = config().write_buffer(WriteBuffer::Entries(33));
    let refused = other.clone().merge_operator(MergeOperator::add_u64_wrapping());
    assert!(matches!(table.set_config(&refused), Err(Error::InvalidConfig { .. })));
    table.set_config(&other).unwrap();
    assert_eq!(table.view().unwrap().config(), &other);
    drop((store, table));
    let store = open(&disk.after_crash(Survival::Nothing), Durability::Group).unwrap();
    let table = store.table(&name("main")).unwrap();
    assert_eq!(table.view().unwrap().config(), &other);
    assert_eq!(store.tables().unwrap()[0].config, other);
    assert_eq!(table.view().unwrap().count_exact().unwrap(), 100);
    store.close().unwrap();
}

/// A store whose process has died with commits that no checkpoint has, one of them not durable.
fn killed(seed: u64) -> (Arc<SimDisk>, History) {
    let disk = SimDisk::new(seed);
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let mut steps = vec![Step::Create("main"), Step::Create("undo")];
    for how in [Durability::Each, Durability::Group, Durability::Each, Durability::Buffered] {
        steps.push(Step::Commit(vec![("main", batch(rng, 5)), ("undo", batch(rng, 5))], how));
    }
    let history = run(&disk, &Script { durability: Durability::Group, buffer: 8, steps });
    (disk.process_kill(), history)
}

/// Candidates for the first step of the next process: a commit, or a change of a table.
fn first_steps(rng: &mut ChaCha8Rng) -> [Step; 5] {
    [
        Step::Commit(vec![("main", batch(rng, 3))], Durability::Each),
        Step::Create("third"),
        Step::Rename("undo", "redo"),
        Step::Drop("undo"),
        Step::Checkpoint,
    ]
}

/// Whatever the next process begins with, and wherever it ends: the files that it has found are
/// seen and may not be durable.
#[test]
fn a_crash_in_the_first_steps_after_a_kill_loses_nothing() {
    for_each_seed("store_first_steps", 2, |rng, seed| {
        for first in first_steps(rng) {
            let second = Step::Commit(vec![("main", batch(rng, 3))], Durability::Each);
            let (found, before) = killed(seed);
            let go_on = |disk: &Arc<SimDisk>| {
                // All that was logged is there.
                let states = before.states[before.durable..].to_vec();
                let logged = before.logged - before.durable;
                let mut history = History::from(states, logged);
                let script = Script { durability: Durability::Group, buffer: 8, steps: Vec::new() };
                let mut runner = Runner::new(disk, &script);
                for step in [&first, &second] {
                    history.states.extend(history.after(step));
                    if let Err(error) = runner.step(step) {
                        assert!(disk.has_crashed(), "{step:?}: {error}");
                        return history;
                    }
                    history.done(step, Durability::Group);
                }
                history
            };
            let whole = found.clone_disk();
            go_on(&whole);
            for call in 1..=whole.calls() {
                let survivals = [Survival::Nothing, Survival::Random(call), Survival::Torn(call)];
                for survival in places(0..3, 3, call) {
                    let survival = survivals[survival as usize];
                    let disk = found.clone_disk();
                    let plan = FaultPlan { crash_at_call: Some(call), ..FaultPlan::default() };
                    disk.set_plan(plan);
                    let history = go_on(&disk);
                    let disk = disk.after_crash(survival);
                    check_image(&disk, Durability::Group, &history, history.durable);
                }
            }
        }
    });
}

/// The first checkpoint fails, at each of its calls; what is committed afterwards is durable all
/// the same.
#[test]
fn nothing_is_committed_to_a_log_that_recovery_would_not_find() {
    for_each_seed("store_first_checkpoint", 1, |rng, seed| {
        let (found, before) = killed(seed);
        let step = Step::Commit(vec![("main", batch(rng, 3))], Durability::Each);
        let mut met = 0;
        for at_call in 1..200 {
            for kind in [FaultKind::Eio, FaultKind::Enospc, FaultKind::TornWrite] {
                let disk = found.clone_disk();
                let script = Script { durability: Durability::Group, buffer: 8, steps: Vec::new() };
                let mut runner = Runner::new(&disk, &script);
                runner.store().unwrap();
                let at_call = disk.calls() + at_call;
                disk.set_plan(FaultPlan::fail(at_call, kind, Repeat::Once));
                let mut history = History::from(vec![before.last().clone()], 0);
                let failed = runner.step(&step).is_err();
                disk.set_plan(FaultPlan::default());
                met += u64::from(failed);
                if failed && runner.step(&step).is_err() {
                    // Poisoned.
                    continue;
                }
                history.states.extend(history.after(&step));
                history.done(&step, Durability::Group);
                drop(runner);
                let disk = disk.after_crash(Survival::Nothing);
                check_image(&disk, Durability::Group, &history, history.durable);
            }
        }
        assert!(met > 20, "{met} failures");
    });
}

/// A commit that names a table more than once and fails is taken back whole, whatever was
/// rearranged.
#[test]
fn a_commit_that_names_a_table_again_is_taken_back_whole() {
    let disk = SimDisk::new(1);
    let store = open(&disk, Durability::Group).unwrap();
    let large = config().write_buffer(WriteBuffer::Entries(100_000));
    let table = store.create_table(&name("main"), &large).unwrap();
    let other = store.create_table(&name("other"), &config()).unwrap();

    let value = |number: u64, version: u8| vec![version ^ number as u8; 2_000];
    let updates = |version: u8| -> Vec<(Vec<u8>, Vec<u8>)> {
        (0..300_u64).map(|n| (n.to_le_bytes().to_vec(), value(n, version))).collect()
    };

    let first = updates(1);
    for (key, value) in &first {
        drop(table.insert(key, value).unwrap());
    }
    let before = content(&table).unwrap();
    let second = updates(2);
    let third = updates(3);
    let second: Vec<_> = second.iter().map(|(k, v)| (&k[..], Update::Insert(v))).collect();
    let third: Vec<_> = third.iter().map(|(k, v)| (&k[..], Update::Insert(v))).collect();
    let long = vec![0; 5_000];
    let bad = [(&long[..], Update::Delete)];
    let refused = store.commit(&[(&table, &second[..]), (&table, &third[..]), (&other, &bad[..])]);
    assert!(matches!(refused, Err(Error::KeyTooLarge { .. })));
    assert_eq!(content(&table).unwrap(), before);
    drop(store.commit(&[(&table, &second[..]), (&table, &third[..])]).unwrap());
    let expected: Content = updates(3).into_iter().collect();
    assert_eq!(content(&table).unwrap(), expected);
    store.close().unwrap();
}
