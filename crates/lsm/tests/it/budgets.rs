//! I/O budgets: the `Cost:` lines of the documentation, held by counting.
//!
//! Goal: each operation asks no more of the disk than its documentation says, at every stage of a
//! table's growth. Method: the simulated disk counts calls and pages; all keys follow from numbers,
//! so the counts are the same in every run.

use std::path::Path;
use std::sync::Arc;

use terrane_io::{CountedDisk, Counts, SimDisk};
use terrane_lsm::{
    CompactionPolicy, CompactionSchedule, FilterPolicy, IndexKind, Session, SessionOptions, Table,
    TableConfig, Update,
};
use terrane_testkit::effort::by_effort;

use crate::{SALT, buffer_of, clear, fill, key, name, value};

/// Numbers from here on are those of keys that are never inserted.
const ABSENT: u64 = 1 << 40;

fn open(disk: &Arc<SimDisk>) -> Session {
    let options = SessionOptions::with_salt(SALT).create_dir();
    Session::open(Arc::clone(disk) as _, Path::new("/session"), &options).unwrap()
}

fn table_of(config: &TableConfig) -> (Arc<SimDisk>, Session, Table) {
    let disk = SimDisk::new(1);
    let session = open(&disk);
    let table = session.new_table(config).unwrap();
    (disk, session, table)
}

/// Every call that a disk counts.
fn calls(counts: Counts) -> u64 {
    counts.reads + counts.writes + metadata_calls(counts)
}

/// Calls other than reads and writes.
fn metadata_calls(counts: Counts) -> u64 {
    let Counts { opens, set_lens, allocates, syncs, dir_syncs, .. } = counts;
    let Counts { dirs_created, dirs_removed, removes, renames, links, lists, kinds, locks, .. } =
        counts;
    let files = opens + set_lens + allocates + syncs + removes + renames + links;
    files + dir_syncs + dirs_created + dirs_removed + lists + kinds + locks
}

/// Reads per key for keys of these numbers, looked up in batches; all must be present or absent.
fn reads_per_key(
    disk: &SimDisk,
    table: &Table,
    numbers: impl Iterator<Item = u64>,
    is_present: bool,
) -> f64 {
    let keys: Vec<_> = numbers.map(key).collect();

    // One that has not been updated has no merge work to do while it waits.
    let table = table.fork().unwrap();
    let before = disk.counts();
    let stats_before = table.stats();

    for batch in keys.chunks(4_096) {
        let results = table.get_many(batch).unwrap();
        assert!(results.iter().all(|result| result.is_found() == is_present));
    }

    let spent = disk.counts() - before;
    assert_eq!(calls(spent), spent.reads, "lookups do nothing but read");
    assert_eq!(table.stats().lookup_reads - stats_before.lookup_reads, spent.reads);
    assert_eq!(table.stats().lookups - stats_before.lookups, keys.len() as u64);
    assert_eq!(spent.read_pages, spent.reads, "one page each");
    spent.reads as f64 / keys.len() as f64
}

#[test]
fn a_present_key_costs_one_read_and_an_absent_one_none() {
    let (disk, _session, mut table) = table_of(&buffer_of(1_000));
    fill(&mut table, 0..60_000);

    // Deletions and overwriting between, so that newer runs hide older ones.
    clear(&mut table, (0..10_000).step_by(2));
    let mut next = 60_000;
    while table.stats().runs() < 15 {
        fill(&mut table, next..next + 1_000);
        next += 1_000;
        assert!(next < 200_000, "{} runs", table.stats().runs());
    }

    let runs = table.stats().runs();
    let present = reads_per_key(&disk, &table, 10_000..40_000, true);
    assert!((0.9..=1.02).contains(&present), "{present} reads of a present key in {runs} runs");
    let absent = reads_per_key(&disk, &table, ABSENT..ABSENT + 50_000, false);
    assert!(absent <= 0.01, "{absent} reads of an absent key in {runs} runs");

    // A deleted key is absent, but its deletion is an entry that is read.
    let deleted = reads_per_key(&disk, &table, (0..10_000).step_by(2), false);
    assert!(deleted <= 1.02, "{deleted} reads of a deleted key in {runs} runs");
}

/// The rate is one for the whole table, whatever its shape at the moment.
#[test]
fn absent_keys_cost_no_more_than_the_total_rate_at_every_stage_of_growth() {
    let shapes = [
        (CompactionPolicy::LazyLevelling, 4),
        (CompactionPolicy::LazyLevelling, 2),
        (CompactionPolicy::LazyLevelling, 3),
        (CompactionPolicy::LazyLevelling, 8),
        (CompactionPolicy::Levelling, 4),
        (CompactionPolicy::Tiering, 4),
    ];

    for (compaction_policy, size_ratio) in shapes {
        let config = buffer_of(300).compaction_policy(compaction_policy).size_ratio(size_ratio);
        let (disk, _session, mut table) = table_of(&config);
        let mut worst: f64 = 0.0;
        for flush in 0..64 {
            fill(&mut table, flush * 300..(flush + 1) * 300);
            if flush % by_effort(7, 3) == 0 {
                let absent = ABSENT..ABSENT + 20_000;
                worst = worst.max(reads_per_key(&disk, &table, absent, false));
            }
        }
        // 20,000 keys at a rate of 1 % are 200 reads, give or take 14: three of these for chance.
        assert!(worst <= 0.0121, "{compaction_policy:?}, ratio {size_ratio}: {worst}");
        let FilterPolicy::TotalFpr(rate) = config.filter else { panic!("the default") };
        assert!((rate - 0.01).abs() < 1e-9);
    }
}

#[test]
fn keys_that_the_write_buffer_decides_cost_nothing() {
    let (disk, _session, mut table) = table_of(&buffer_of(1_000));
    fill(&mut table, 0..5_000);
    // The flush of the last thousand is under way; what comes after it is still in the buffer.
    fill(&mut table, 0..400);
    clear(&mut table, 4_000..4_400);
    assert!(table.stats().buffer_entries >= 800);
    let before = disk.calls();
    let found = table.get_many(&(0..400).map(key).collect::<Vec<_>>()).unwrap();
    assert!(found.iter().all(terrane_lsm::Lookup::is_found));
    let gone = table.get_many(&(4_000..4_400).map(key).collect::<Vec<_>>()).unwrap();
    assert!(!gone.iter().any(terrane_lsm::Lookup::is_found));
    assert_eq!(disk.calls(), before);
}

#[test]
fn a_duplicate_costs_no_call_of_any_kind() {
    let (disk, _session, mut table) = table_of(&buffer_of(100));
    fill(&mut table, 0..20_050);
    assert!(table.stats().merge_debt_pages > 0, "merges are under way");
    let before = disk.calls();
    let copies: Vec<_> = (0..100).map(|_| table.fork().unwrap()).collect();
    drop(copies);
    assert_eq!(disk.calls(), before);
}

/// Merges that have begun and are not complete.
fn merges_under_way(table: &Table) -> u64 {
    let levels = table.stats().levels.into_iter();
    levels.filter(|level| (1..level.merge_pages).contains(&level.merge_pages_done)).count() as u64
}

#[test]
fn saving_a_snapshot_costs_a_few_calls_for_each_run_whatever_they_hold() {
    let spent_on = |entries: u64| {
        let (disk, session, mut table) = table_of(&buffer_of(entries));
        fill(&mut table, 0..entries * 41);
        let before = disk.counts();
        table.save_snapshot(&name("first"), "").unwrap();
        let first = disk.counts() - before;
        let runs = table.stats().files();
        let merges = merges_under_way(&table);
        assert_eq!(first.reads, 0, "a save reads nothing");
        let syncs = runs + merges + 1;
        assert_eq!(first.syncs, syncs, "each run and each merge once, and the metadata");
        assert!(metadata_calls(first) <= 2 * runs + 8, "{first:?} for {runs} runs");

        let before = disk.counts();
        table.save_snapshot(&name("second"), "").unwrap();
        let second = disk.counts() - before;
        assert!(second.syncs <= 2, "what is durable is not synced again: {second:?}");
        assert!(calls(second) <= 12, "{second:?}");

        let before = disk.counts();
        session.delete_snapshot(&name("second")).unwrap();
        let deleted = disk.counts() - before;
        assert!(calls(deleted) <= 3, "{deleted:?}");
        (runs, merges, metadata_calls(first))
    };

    let (small_runs, small_merges, small_calls) = spent_on(50);
    let (large_runs, large_merges, large_calls) = spent_on(1_600);
    assert_eq!(small_runs, large_runs);
    assert!(large_merges > small_merges, "a merge of a page or two has nothing to keep");
    let small = small_calls - small_merges;
    let large = large_calls - large_merges;
    assert_eq!(small, large, "32 times the entries in as many runs");
}

#[test]
fn opening_reads_filters_and_indexes_and_no_data() {
    let (disk, session, mut table) = table_of(&buffer_of(1_000));
    fill(&mut table, 0..60_000);
    table.save_snapshot(&name("kept"), "").unwrap();
    let stats = table.stats();
    drop(table);
    session.close().unwrap();

    let before = disk.counts();
    let session = open(&disk);
    let opening = disk.counts() - before;
    assert_eq!(opening.reads, 2, "metadata of the session and of its snapshot");

    let before = disk.counts();
    let table = session.open_snapshot(&name("kept"), "").unwrap();
    let spent = disk.counts() - before;
    assert_eq!(table.stats().runs(), stats.runs());

    // Of each run the footer, and filter and index in pages that they do not fill.
    let pages = (stats.filter_bytes + stats.index_bytes) / 4_000 + 4 * stats.files();
    assert!(spent.read_pages <= pages, "{} pages read, {pages} wanted", spent.read_pages);
    let data_pages = stats.levels.iter().map(|level| level.bytes).sum::<u64>() / 4_096;
    assert!(spent.read_pages < data_pages / 10, "of {data_pages} pages");
    assert_eq!(spent.write_pages, 0);
}

/// Returns the maximum of pages that one update reads and writes, the total of pages, and the
/// number of levels, over `count` updates of one entry each.
fn worst_update(config: &TableConfig, count: u64) -> (u64, u64, usize) {
    let disk = SimDisk::new(1);
    let counted = CountedDisk::new(Arc::clone(&disk) as _);
    let options = SessionOptions::with_salt(SALT).create_dir();
    let session = Session::open(Arc::clone(&counted) as _, Path::new("/s"), &options).unwrap();
    let mut table = session.new_table(config).unwrap();

    let pages = || {
        let counts = counted.counts();
        counts.read_pages + counts.write_pages
    };

    let mut worst = 0;
    let mut before = pages();
    for n in 0..count {
        let value = value(n, 60);
        let update = if n % 4 == 3 { Update::Delete } else { Update::Insert(&value) };
        table.write_batch(&[(key(spread_over(n, count)), update)]).unwrap();
        let now = pages();
        worst = worst.max(now - before);
        before = now;
    }

    (worst, before, table.stats().levels.len())
}

/// Mostly fresh keys, some of them again.
fn spread_over(n: u64, count: u64) -> u64 {
    if n % 4 == 3 { n / 2 } else { n % (count * 3 / 4) }
}

#[test]
fn an_update_does_its_share_of_compaction_and_no_more() {
    for compaction_policy in
        [CompactionPolicy::LazyLevelling, CompactionPolicy::Levelling, CompactionPolicy::Tiering]
    {
        let incremental = buffer_of(100).compaction_policy(compaction_policy);
        let one_shot = incremental.clone().compaction_schedule(CompactionSchedule::OneShot);
        let (worst, pages, levels) = worst_update(&incremental, 100_000);
        assert!(levels >= 4, "{levels} levels");
        assert!(
            worst <= 128 * levels as u64,
            "{compaction_policy:?}: {worst} pages, {levels} levels"
        );
        let (spike, spike_pages, _) = worst_update(&one_shot, 100_000);
        // The same work in the end, but the last level at once.
        assert!(
            spike > 4 * worst,
            "{compaction_policy:?}: {spike} pages in one update, against {worst}"
        );
        assert!(spike_pages < 2 * pages && pages < 2 * spike_pages, "{pages}, {spike_pages}");
    }
}

/// A million updates of one entry each, a sixth of them as a sample; the other policies and the
/// one-shot schedule are above.
#[test]
fn no_update_of_a_long_history_costs_more_than_128_pages_a_level() {
    let config = buffer_of(250);
    let (worst, _, levels) = worst_update(&config, by_effort(160_000, 1_000_000));
    assert!(levels >= by_effort(4, 5), "{levels} levels");
    assert!(worst <= 128 * levels as u64, "{worst} pages, {levels} levels");
}

/// Saved just before a merge is due and opened again, in the same session or in another one, a
/// table must not do what is left of the merge, or what it takes to go on with it, within one of
/// its next updates.
#[test]
fn no_update_after_reopening_redoes_a_merge() {
    let config = buffer_of(200).compaction_batch_pages(1);
    let disk = SimDisk::new(1);
    let session = open(&disk);
    let mut table = session.new_table(&config).unwrap();

    let mut worst = 0;
    let mut largest_merge = 0;
    let mut largest_done = 0;
    for n in 0..50_000_u64 {
        table.write_batch(&[(key(n), Update::Insert(&value(n, 60)))]).unwrap();

        // Just before each flush, and so before each moment at which a merge is due.
        if n % 200 != 198 {
            continue;
        }

        for level in table.stats().levels {
            largest_merge = largest_merge.max(level.merge_pages);
            largest_done = largest_done.max(level.merge_pages_done);
        }

        let name = name("late");
        table.save_snapshot(&name, "").unwrap();

        let updates: Vec<_> = (n..n + 4).map(|n| (key(n), Update::Insert(b""))).collect();
        let killed = (n / 200 % 8 == 7).then(|| disk.process_kill());
        for disk in [&disk].into_iter().chain(&killed) {
            let other = killed.as_ref().filter(|killed| Arc::ptr_eq(killed, disk)).map(open);
            let mut reopened = other.as_ref().unwrap_or(&session).open_snapshot(&name, "").unwrap();
            worst = worst.max(worst_of(disk, &mut reopened, &updates));
        }

        session.delete_snapshot(&name).unwrap();
    }

    assert!(largest_merge > 600, "a merge of {largest_merge} pages");
    assert!(largest_done > 600, "none that was late: {largest_done} pages done");

    // Chunks of each input, one of the output, at each of the few levels.
    assert!(worst <= 128 * 4, "{worst} pages in one update, with merges of {largest_merge}");
}

/// The most pages that one of these updates reads and writes.
fn worst_of(disk: &SimDisk, table: &mut Table, updates: &[([u8; 34], Update<'_>)]) -> u64 {
    let mut worst = 0;
    for update in updates {
        let before = disk.counts();
        table.write_batch(&[*update]).unwrap();
        let spent = disk.counts() - before;
        worst = worst.max(spent.read_pages + spent.write_pages);
    }
    worst
}

/// A session that lives for less than a filling of the write buffer, again and again: merges get
/// done all the same, and by no update at once.
#[test]
fn updates_do_little_each_however_often_a_table_is_reopened() {
    let config = buffer_of(100).compaction_batch_pages(1);
    let mut disk = SimDisk::new(1);
    let mut table = open(&disk).new_table(&config).unwrap();
    fill(&mut table, 0..20_000);
    table.save_snapshot(&name("at-0"), "").unwrap();
    drop(table);

    let mut worst = 0;
    let mut opening = 0;
    let mut met = 0;
    for round in 0..120_u64 {
        disk = disk.process_kill();
        let session = open(&disk);
        let before = disk.counts();
        let last = name(&format!("at-{round}"));
        let mut table = session.open_snapshot(&last, "").unwrap();
        opening += (disk.counts() - before).write_pages;
        met += u64::from(table.stats().merge_debt_pages > 0);
        let numbers = 20_000 + round * 130..20_000 + (round + 1) * 130;
        let entries: Vec<_> = numbers.map(|n| (key(n), value(n, 60))).collect();
        let updates: Vec<_> = entries.iter().map(|(k, v)| (*k, Update::Insert(v))).collect();
        worst = worst.max(worst_of(&disk, &mut table, &updates));
        table.save_snapshot(&name(&format!("at-{}", round + 1)), "").unwrap();
        session.delete_snapshot(&last).unwrap();
    }

    println!("{worst} pages in one update, {opening} written while opening, {met} times merges");
    assert!(met > 50, "merges under way {met} times");
    assert!(worst <= 128 * 4, "{worst} pages in one update");
    let session = open(&disk);
    let table = session.open_snapshot(&name("at-120"), "").unwrap();
    assert_eq!(table.stats().levels.len(), 4, "{:?}", table.stats());
    assert_eq!(crate::content(&table).len() as u64, 20_000 + 120 * 130);
}

#[test]
fn an_index_of_evenly_spread_keys_takes_1_3_to_1_6_bytes_a_page() {
    let config = buffer_of(250_000).compaction_schedule(CompactionSchedule::OneShot);
    for (index, range) in [
        (IndexKind::Auto, 1.3..1.6),
        (IndexKind::Compact, 1.3..1.6),
        (IndexKind::Ordinary, 3.0..5.0),
    ] {
        let (_disk, _session, mut table) = table_of(&config.clone().index(index));
        fill(&mut table, 0..250_000);
        let stats = table.stats();
        assert_eq!(stats.runs(), 1);
        assert!(stats.key_pages > 5_900, "{} key pages", stats.key_pages);
        let bytes = stats.index_bytes as f64 / stats.key_pages as f64;
        assert!(range.contains(&bytes), "{index:?}: {bytes} bytes a page");
    }
}
