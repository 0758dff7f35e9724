//! The memory budget of a session, shared by tables, cursors and the page cache.
//!
//! Goal: whatever tables, forks, cursors and loaders do, what they hold stays within the budget and
//! the overshoot that `SessionOptions::memory_budget` states; nothing fails for it; all of it comes
//! back; and no result depends on it. Method: bytes are counted by the statistics of each table
//! beside those of the session; histories are drawn from seeds, with a map as the model.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use terrane_io::{Disk, SimDisk};
use terrane_lsm::{
    CheckpointThread, DiskCache, Durability, Error, MEMORY_BUDGET_MIN, MemoryStats, NamedTable,
    ReaderOptions, SESSION_MEMORY_BUDGET_MIN, Session, SessionOptions, Store, StoreOptions,
    StoreReader, Table, TableConfig, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::{SALT, content, fill, key, name, value};

const MIB: u64 = 1 << 20;

/// Grant that each table that is written has at the least.
const GRANT_MIN: u64 = 48 << 10;

/// Most memory of a batch of 1,000 entries of 94 bytes, with its hash table.
const BATCH_BYTES_MAX: u64 = 400_000;

fn open_on(disk: &Arc<SimDisk>, budget: Option<u64>) -> Session {
    let options = SessionOptions::with_salt(SALT).create_dir().memory_budget(budget);
    Session::open(Arc::clone(disk) as _, Path::new("/session"), &options).unwrap()
}

fn open(budget: u64) -> Session {
    open_on(&SimDisk::new(1), Some(budget))
}

fn memory(session: &Session) -> MemoryStats {
    session.stats().memory.unwrap()
}

/// Bytes for the write buffers of all tables together.
fn write_share(budget: u64) -> u64 {
    budget / 4
}

fn buffer_bytes(tables: &[Table]) -> u64 {
    tables.iter().map(|table| table.stats().buffer_bytes).sum()
}

#[test]
fn without_a_budget_there_are_no_grants() {
    let session = open_on(&SimDisk::new(1), None);
    let mut table = session.new_table(&TableConfig::default()).unwrap();
    fill(&mut table, 0..1_000);
    assert_eq!(session.stats().memory, None);
}

#[test]
fn a_budget_that_is_too_small_is_refused_with_the_minimum() {
    let refused = |error: Error, wanted: &str| {
        let Error::InvalidConfig { option: "memory_budget", allowed, .. } = &error else {
            panic!("{error:?}")
        };
        assert!(allowed.starts_with(wanted), "{allowed}");
    };
    let disk = SimDisk::new(1);
    let options = |budget: u64| {
        let session = SessionOptions::with_salt(SALT).create_dir().memory_budget(budget);
        StoreOptions::default().session(session)
    };
    let open = |budget: u64| Store::open(Arc::clone(&disk) as _, Path::new("/s"), &options(budget));
    refused(open(SESSION_MEMORY_BUDGET_MIN - 1).unwrap_err(), "1048576 to ");
    refused(open(u64::MAX).unwrap_err(), "1048576 to ");
    assert!(disk.kind(Path::new("/s")).unwrap().is_none(), "nothing was made");

    // A table with a budget of its own is set aside.
    let store = open(4 * MIB).unwrap();
    let own = TableConfig::default().memory_budget(2 * MIB);
    store.create_table("first", &own).unwrap();
    refused(store.create_table("second", &own).unwrap_err(), "at most 1048576, ");
    store.create_table("second", &TableConfig::default().memory_budget(MIB)).unwrap();
    store.close().unwrap();
    drop(store);
    refused(open(4 * MIB - 1).unwrap_err(), "4194304 to ");
    open(4 * MIB).unwrap().close().unwrap();
}

#[test]
fn the_write_buffers_of_many_tables_stay_within_their_share() {
    for write_buffer in [WriteBuffer::Bytes(4 << 20), WriteBuffer::Entries(1_000_000)] {
        let budget = 8 * MIB;
        let session = open(budget);
        let config = TableConfig::default().write_buffer(write_buffer);
        let mut tables: Vec<Table> = Vec::new();
        for round in 0..40_u64 {
            if round % 2 == 0 {
                tables.push(session.new_table(&config).unwrap());
            }
            // Some are written often, some now and then.
            let at = (round * round % 7) as usize % tables.len();
            fill(&mut tables[at], round * 1_000..(round + 1) * 1_000);
            let last = tables.len() - 1;
            fill(&mut tables[last], round * 1_000..round * 1_000 + 500);

            let overshoot = GRANT_MIN * tables.len() as u64 + 2 * BATCH_BYTES_MAX;
            let held = buffer_bytes(&tables);
            let shown = memory(&session);
            assert!(held <= write_share(budget) + overshoot, "{held} in {} tables", tables.len());
            assert!(shown.write_buffer_bytes <= write_share(budget) + overshoot, "{shown:?}");
            assert!(shown.write_buffer_used_bytes <= shown.write_buffer_bytes, "{shown:?}");
            assert!(shown.granted_bytes() <= budget + overshoot, "{shown:?}");
            assert!(shown.granted_bytes() <= shown.peak_bytes, "{shown:?}");
        }
        let sum: u64 = tables.iter().map(|table| table.count_exact().unwrap()).sum();
        assert!(sum > 30_000, "{sum} entries");
        assert!(tables.iter().all(|table| table.config() == &config), "as it was stated");
    }
}

#[test]
fn one_table_alone_has_the_write_buffer_that_it_states() {
    let session = open(64 * MIB);
    let mut table = session.new_table(&TableConfig::default()).unwrap();
    // 30,000 entries weigh 4 MB, a little less than the stated 4 MiB.
    fill(&mut table, 0..30_000);
    assert_eq!((table.stats().runs(), table.stats().buffer_entries), (0, 30_000));
    assert_eq!(memory(&session).write_buffer_bytes, 3 * (4 << 20));
}

#[test]
fn a_fork_counts_zero_until_it_is_written() {
    let session = open(16 * MIB);
    let config = TableConfig::default().write_buffer(WriteBuffer::Bytes(200_000));
    let mut table = session.new_table(&config).unwrap();
    fill(&mut table, 0..1_000);
    let alone = memory(&session).write_buffer_bytes;
    assert_eq!(alone, 600_000);

    let mut forks: Vec<Table> = (0..100).map(|_| table.fork().unwrap()).collect();
    assert_eq!(memory(&session).write_buffer_bytes, alone);
    fill(&mut forks[0], 1_000..1_001);
    assert_eq!(memory(&session).write_buffer_bytes, 2 * alone);
    // What a fork shares stays counted when the original has gone.
    drop(table);
    assert_eq!(memory(&session).write_buffer_bytes, 2 * alone);
    forks.truncate(1);
    assert_eq!(memory(&session).write_buffer_bytes, alone);
    drop(forks);
    assert_eq!(memory(&session).write_buffer_bytes, 0);
}

/// Handles of a drawn history, and their models.
#[derive(Default)]
struct Forest {
    tables: Vec<(Table, BTreeMap<u64, u64>)>,
    /// Versions of values so far.
    version: u64,
}

fn expected(model: &BTreeMap<u64, u64>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut entries: Vec<_> = model
        .iter()
        .map(|(&number, &version)| (key(number).to_vec(), value(version, 60)))
        .collect();
    entries.sort();
    entries
}

impl Forest {
    /// One drawn act.
    fn act(&mut self, session: &Session, configs: &[TableConfig], rng: &mut ChaCha8Rng) {
        let count = self.tables.len();
        match rng.below(12) {
            0 | 1 if count < 20 => {
                let table = session.new_table(rng.pick(configs)).unwrap();
                self.tables.push((table, BTreeMap::new()));
            }
            2 | 3 if 0 < count && count < 20 => {
                let (table, model) = &self.tables[rng.index(count)];
                self.tables.push((table.fork().unwrap(), model.clone()));
            }
            4 if count > 2 => drop(self.tables.swap_remove(rng.index(count))),
            5 if count > 0 => {
                let at = rng.index(count);
                let (table, model) = &mut self.tables[at];
                let snapshot = name("kept");
                table.save_snapshot(&snapshot, "").unwrap();
                let opened = session.open_snapshot(&snapshot, "").unwrap();
                session.delete_snapshot(&snapshot).unwrap();
                let model = model.clone();
                self.tables[at] = (opened, model);
            }
            6 if count > 0 => {
                let (table, model) = &self.tables[rng.index(count)];
                assert_eq!(content(table), expected(model));
            }
            _ if count > 0 => {
                let (table, model) = &mut self.tables[rng.index(count)];
                let first = rng.below(3_000);
                let numbers = first..first + 1 + rng.below(300);
                self.version += 1;
                let new = value(self.version, 60);
                let is_deletion = rng.chance(1, 5);
                let update = if is_deletion { Update::Delete } else { Update::Insert(&new) };
                let batch: Vec<_> = numbers.clone().map(|number| (key(number), update)).collect();
                table.write_batch(&batch).unwrap();
                for number in numbers {
                    if is_deletion {
                        model.remove(&number);
                    } else {
                        model.insert(number, self.version);
                    }
                }
            }
            _ => {}
        }
    }
}

#[test]
fn any_history_keeps_to_the_budget_gives_everything_back_and_reads_as_without() {
    for_each_seed("session_memory", 6, |_, seed| {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let budget = *rng.pick(&[MIB, 2 * MIB, 8 * MIB]);
        let disk = SimDisk::new(seed);
        let session = open_on(&disk, Some(budget));
        let config = TableConfig::default().disk_cache(DiskCache::None);
        let configs = [
            config.clone(),
            config.clone().write_buffer(WriteBuffer::Bytes(30_000)),
            config.write_buffer(WriteBuffer::Entries(700)).size_ratio(2),
        ];

        let mut forest = Forest::default();
        for _ in 0..250 {
            forest.act(&session, &configs, &mut rng);
            let memory = memory(&session);
            // Each table has its least grant, and all entries there are in a memtable of its own at
            // the most: those that were opened with a snapshot.
            let least = GRANT_MIN * forest.tables.len() as u64;
            let batches = 150_000 * forest.tables.len() as u64;
            let share = write_share(budget);
            assert!(memory.write_buffer_bytes <= share + least + batches, "{memory:?}");
            assert!(memory.cursor_bytes == 0 && memory.own_budget_bytes == 0, "{memory:?}");
            assert!(memory.cache_bytes <= budget - share - budget / 8, "{memory:?}");
        }

        for (table, model) in &forest.tables {
            assert_eq!(content(table), expected(model));
        }
        drop(forest);
        let left = memory(&session);
        assert_eq!((left.write_buffer_bytes, left.write_buffer_used_bytes), (0, 0));
        assert_eq!((left.filter_bytes, left.index_bytes, left.unfinished_bytes), (0, 0, 0));
        assert_eq!((left.cursor_bytes, left.own_budget_bytes), (0, 0));
        assert!(left.peak_bytes > 0);
        session.close().unwrap();
    });
}

#[test]
fn a_storm_of_cursors_keeps_to_its_allowance_and_reads_all_the_same() {
    let disk = SimDisk::new(1);
    let session = open_on(&disk, Some(2 * MIB));
    let mut table = session.new_table(&TableConfig::default()).unwrap();
    fill(&mut table, 0..40_000);
    table.save_snapshot(&name("full"), "").unwrap();
    let wanted = content(&table);
    let allowance = 2 * MIB / 8;

    let mut cursors: Vec<_> = (0..60).map(|_| table.cursor().unwrap()).collect();
    let mut most = 0;
    for step in 0..8 {
        for (at, cursor) in cursors.iter_mut().enumerate() {
            let rows = cursor.next_many(5_000).unwrap();
            let rows: Vec<_> =
                rows.into_iter().map(|row| (row.key, row.value.into_vec())).collect();
            assert_eq!(rows, wanted[step * 5_000..(step + 1) * 5_000], "cursor {at}");
            let held = memory(&session).cursor_bytes;
            assert!(held <= allowance, "{held} of {allowance} bytes");
            most = most.max(held);
        }
    }
    assert!(most > allowance / 2, "{most}: the allowance is used");

    // Those that end, turn or are dropped give back what they had.
    for cursor in &mut cursors {
        assert!(cursor.next_many(1).unwrap().is_empty());
        assert!(cursor.prev().unwrap().unwrap().key == wanted[39_999].0);
    }
    let changes = table.diff(&session.new_table(&TableConfig::default()).unwrap()).unwrap();
    assert_eq!(changes.count(), 40_000);
    drop(cursors);
    assert_eq!(memory(&session).cursor_bytes, 0);
}

/// Without other cursors a scan asks the disk as seldom as without a budget.
#[test]
fn a_cursor_alone_reads_ahead_as_ever() {
    let reads = |budget: Option<u64>| {
        let disk = SimDisk::new(1);
        let session = open_on(&disk, budget);
        let config = TableConfig::default().write_buffer(WriteBuffer::Entries(10_000));
        let mut table = session.new_table(&config).unwrap();
        fill(&mut table, 0..40_000);
        let before = disk.counts();
        assert_eq!(table.count_exact().unwrap(), 40_000);
        (disk.counts() - before).reads
    };
    let without = reads(None);
    assert_eq!(reads(Some(256 * MIB)), without);
    assert!(reads(Some(MIB)) > without, "a page at a time where there is no allowance");
}

#[test]
fn the_cache_gives_way_to_filters_and_all_tables_share_it() {
    let budget = 4 * MIB;
    let session = open(budget);
    let config = TableConfig::default().disk_cache(DiskCache::None);
    let config = config.write_buffer(WriteBuffer::Bytes(300_000));
    let mut tables: Vec<Table> = (0..2).map(|_| session.new_table(&config).unwrap()).collect();
    let read = |table: &Table, count: u64| {
        let keys: Vec<_> = (0..count).map(key).collect();
        for keys in keys.chunks(500) {
            assert!(table.get_many(keys).unwrap().iter().all(terrane_lsm::Lookup::is_found));
        }
    };

    for table in &mut tables {
        fill(table, 0..30_000);
    }
    for _ in 0..3 {
        for table in &tables {
            read(table, 30_000);
        }
    }
    let before = memory(&session);
    assert!(before.cache_bytes > budget / 4 && before.granted_bytes() <= budget, "{before:?}");
    assert!(tables.iter().all(|table| table.stats().cache_hits > 1_000), "both are served");
    assert!(tables.iter().all(|table| table.stats().cache_bytes == before.cache_bytes));

    // Filters and indexes of 20 bits an entry, until they need most of the budget.
    let large = config.filter(terrane_lsm::FilterPolicy::BitsPerEntry(32.0));
    let mut more = session.new_table(&large).unwrap();
    for first in (0..400_000).step_by(20_000) {
        fill(&mut more, first..first + 20_000);
        let now = memory(&session);
        let overshoot = 3 * (GRANT_MIN + BATCH_BYTES_MAX);
        assert!(now.granted_bytes() <= budget + overshoot, "{now:?}");
    }
    let after = memory(&session);
    assert!(after.filter_bytes > before.filter_bytes + MIB, "{after:?}");
    assert!(after.cache_bytes < before.cache_bytes, "{after:?}");
    for table in &tables {
        read(table, 30_000);
    }
}

fn store_on(disk: &Arc<SimDisk>, budget: Option<u64>, thread: CheckpointThread) -> Store {
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Buffered);
    let options = options.checkpoint_thread(thread).memory_budget(budget);
    Store::open(Arc::clone(disk) as _, Path::new("/store"), &options).unwrap()
}

fn commit(table: &NamedTable, numbers: std::ops::Range<u64>) {
    let entries: Vec<_> = numbers.map(|n| (key(n), value(n, 60))).collect();
    let batch: Vec<_> = entries.iter().map(|(k, v)| (*k, Update::Insert(v))).collect();
    drop(table.write_batch(&batch).unwrap());
}

#[test]
fn the_largest_write_buffer_of_a_store_is_flushed_first_also_if_its_table_is_idle() {
    let disk = SimDisk::new(1);
    let store = store_on(&disk, Some(4 * MIB), CheckpointThread::Caller);
    let create = |name: &str| store.create_table(name, &TableConfig::default()).unwrap();
    let idle = create("idle");
    let small = create("small");
    commit(&small, 0..20);
    for first in (0..700).step_by(100) {
        commit(&idle, first..first + 100);
    }
    let before = idle.stats().unwrap();
    assert!(before.buffer_bytes > 80_000 && before.buffer_entries == 700, "{before:?}");

    let busy: Vec<NamedTable> = (0..12).map(|n| create(&format!("busy-{n}"))).collect();
    for round in 0..12_u64 {
        for table in &busy {
            commit(table, round * 100..(round + 1) * 100);
        }
    }
    let now = idle.stats().unwrap();
    assert_eq!((now.buffer_entries, now.runs()), (0, 1), "{now:?}");
    assert_eq!(small.stats().unwrap().buffer_entries, 20, "the small one stays");
    let memory = store.session().stats().memory.unwrap();
    assert!(memory.write_buffer_bytes <= MIB + 14 * (GRANT_MIN + 30_000), "{memory:?}");
    assert_eq!(idle.view().unwrap().count_exact().unwrap(), 700);
}

#[test]
fn a_store_that_is_opened_again_keeps_to_the_budget_it_is_given_now() {
    let disk = SimDisk::new(1);
    let store = store_on(&disk, None, CheckpointThread::Caller);
    let config = TableConfig::default();
    let tables: Vec<NamedTable> =
        (0..8).map(|n| store.create_table(&format!("t{n}"), &config).unwrap()).collect();
    for table in &tables {
        commit(table, 0..5_000);
    }
    let contents: Vec<_> = tables.iter().map(|table| content(&table.view().unwrap())).collect();
    let buffers: u64 = tables.iter().map(|table| table.stats().unwrap().buffer_bytes).sum();
    assert!(buffers > 4 * MIB, "{buffers} bytes without a budget");

    // The log alone has all of it: recovery flushes what the share has no room for.
    let killed = disk.process_kill();
    store.close().unwrap();
    for (disk, is_recovered) in [(killed, true), (disk, false)] {
        for budget in [Some(2 * MIB), Some(64 * MIB), None] {
            let store = store_on(&disk, budget, CheckpointThread::Caller);
            let table = |n: usize| store.table(&format!("t{n}")).unwrap();
            for (n, content_before) in contents.iter().enumerate() {
                assert_eq!(table(n).view().unwrap().config(), &config);
                assert_eq!(&content(&table(n).view().unwrap()), content_before);
            }
            if let Some(memory) = store.session().stats().memory
                && is_recovered
                && budget == Some(2 * MIB)
            {
                let overshoot = 8 * (GRANT_MIN + 2 * BATCH_BYTES_MAX);
                assert!(memory.write_buffer_used_bytes <= MIB / 2 + overshoot, "{memory:?}");
            }
            store.close().unwrap();
        }
    }
}

#[test]
fn eight_threads_share_one_budget_and_make_the_same_state_as_without() {
    let contents = [None, Some(2 * MIB)].map(|budget| {
        let disk = SimDisk::new(1);
        let store = store_on(&disk, budget, CheckpointThread::Background);
        let tables: Vec<NamedTable> = (0..8)
            .map(|n| store.create_table(&format!("t{n}"), &TableConfig::default()).unwrap())
            .collect();
        thread::scope(|scope| {
            for (n, table) in tables.iter().enumerate() {
                let store = &store;
                scope.spawn(move || {
                    let mut volatile = store.session().new_table(table.view().unwrap().config());
                    let volatile = volatile.as_mut().unwrap();
                    for round in 0..30_u64 {
                        let numbers = round * 100..(round + 1) * 100 + n as u64;
                        commit(table, numbers.clone());
                        fill(volatile, numbers);
                        if round % 7 == 0 {
                            let view = table.view().unwrap();
                            let fork = view.fork().unwrap();
                            assert_eq!(fork.count_exact().unwrap(), (round + 1) * 100 + n as u64);
                        }
                        if let Some(memory) = store.session().stats().memory {
                            // Sixteen tables, each with a batch of 107 entries under way.
                            let overshoot = 16 * (GRANT_MIN + 60_000);
                            let most = memory.budget_bytes + overshoot;
                            assert!(memory.granted_bytes() <= most, "{memory:?}");
                            assert!(memory.cursor_bytes <= memory.budget_bytes / 8, "{memory:?}");
                        }
                    }
                    assert_eq!(volatile.count_exact().unwrap(), 3_000 + n as u64);
                });
            }
        });
        let contents: Vec<_> = tables.iter().map(|table| content(&table.view().unwrap())).collect();
        store.close().unwrap();
        drop((tables, store));
        let store = store_on(&disk, budget, CheckpointThread::Background);
        for (n, content_before) in contents.iter().enumerate() {
            let table = store.table(&format!("t{n}")).unwrap();
            assert_eq!(&content(&table.view().unwrap()), content_before);
        }
        contents
    });
    assert_eq!(contents[0], contents[1]);
}

#[test]
fn tables_with_a_budget_of_their_own_are_set_aside() {
    let session = open(4 * MIB);
    let own = TableConfig::default().memory_budget(MEMORY_BUDGET_MIN).disk_cache(DiskCache::None);
    let mut table = session.new_table(&own).unwrap();
    assert_eq!(memory(&session).own_budget_bytes, MEMORY_BUDGET_MIN);
    let fork = table.fork().unwrap();
    for first in (0..20_000).step_by(1_000) {
        fill(&mut table, first..first + 1_000);
        let memory = memory(&session);
        let runs = memory.filter_bytes + memory.index_bytes;
        assert!(memory.own_budget_bytes + runs <= MEMORY_BUDGET_MIN + 1_000, "{memory:?}");
        assert_eq!(memory.write_buffer_bytes, 0);
    }
    drop(table);
    let of_fork = memory(&session).own_budget_bytes;
    assert!((1..=MEMORY_BUDGET_MIN).contains(&of_fork), "{of_fork}");
    // Its first update sets its own budget aside.
    let mut written = fork.fork().unwrap();
    fill(&mut written, 0..1);
    let both = memory(&session).own_budget_bytes;
    assert!(of_fork < both && both <= 2 * MEMORY_BUDGET_MIN, "{both} of {of_fork}");
    drop((fork, written));
    assert_eq!(memory(&session).own_budget_bytes, 0);

    // A change of the configuration goes from the one to the other and back.
    let mut table = session.new_table(&TableConfig::default()).unwrap();
    fill(&mut table, 0..1_000);
    assert!(memory(&session).write_buffer_bytes > 0);
    table.set_config(&own).unwrap();
    let now = memory(&session);
    assert!(now.write_buffer_bytes == 0 && now.own_budget_bytes > 0, "{now:?}");
    table.set_config(&TableConfig::default()).unwrap();
    fill(&mut table, 1_000..2_000);
    let now = memory(&session);
    assert!(now.write_buffer_bytes > 0 && now.own_budget_bytes == 0, "{now:?}");
    assert_eq!(table.count_exact().unwrap(), 2_000);
}

#[test]
fn a_bulk_load_takes_a_grant_and_gives_it_back() {
    let budget = 2 * MIB;
    let session = open(budget);
    let mut loader = session.bulk_load(&TableConfig::default()).unwrap();
    for first in (0..30_000_u64).step_by(1_000) {
        let entries: Vec<_> = (first..first + 1_000).map(|n| (key(n), value(n, 60))).collect();
        let batch: Vec<_> = entries.iter().map(|(k, v)| (*k, Update::Insert(v))).collect();
        loader.write_batch(&batch).unwrap();
        let memory = memory(&session);
        assert!((1..=write_share(budget)).contains(&memory.write_buffer_bytes), "{memory:?}");
    }
    let table = loader.finish().unwrap();
    assert_eq!(memory(&session).write_buffer_bytes, 0);
    assert_eq!(table.count_exact().unwrap(), 30_000);
}

#[test]
fn a_reader_has_a_budget_of_its_own() {
    let disk = SimDisk::new(1);
    let store = store_on(&disk, None, CheckpointThread::Caller);
    let table = store.create_table("t", &TableConfig::default()).unwrap();
    commit(&table, 0..5_000);

    let read = |budget: Option<u64>| {
        let options = ReaderOptions::default().memory_budget(budget);
        StoreReader::open(Arc::clone(&disk) as _, Path::new("/store"), &options)
    };
    assert!(matches!(read(Some(1)), Err(Error::InvalidConfig { option: "memory_budget", .. })));
    let reader = read(Some(MIB)).unwrap();
    // It cannot flush what it applies from the log, and counts it.
    let used = reader.session().stats().memory.unwrap().write_buffer_used_bytes;
    assert!(used > MIB / 2, "{used}");
    assert_eq!(reader.table("t").unwrap().count_exact().unwrap(), 5_000);
    store.close().unwrap();
}
