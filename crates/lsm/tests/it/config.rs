//! Options of a table: allowed values, effects, and the invariant that no option, nor a change of
//! one on a live table, alters a result.
//!
//! Method: each option's limits from both sides; filters and memory as the statistics show them;
//! random changes of the configuration among random updates, against a sorted map.

use std::collections::BTreeMap;

use terrane_lsm::{
    CompactionPolicy, CompactionSchedule, CompactionThread, CompressedLevels, Compression,
    DiskCache, Error, FilterPolicy, IndexKind, LevelFilter, MEMORY_BUDGET_MAX, MEMORY_BUDGET_MIN,
    MemoryGoal, MergeOperator, OpenOptions, Table, TableConfig, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;

use crate::script::COMPRESSED_LEVELS;
use crate::{SessionDir, buffer_of, clear, content, fill, key, name, spread, value};

fn with_filter(filter: FilterPolicy) -> TableConfig {
    TableConfig::default().filter(filter)
}

fn with_budget(bytes: u64) -> TableConfig {
    TableConfig::default().memory_budget(bytes)
}

/// Invalid configurations: the option, its value as the error prints it, and the allowed values.
fn bad_configs() -> Vec<(&'static str, &'static str, &'static str, TableConfig)> {
    use FilterPolicy::{BitsPerEntry, Fpr, PerLevel, TotalFpr};
    let default = TableConfig::default();

    let rates = "0.00001 to 0.1";
    let levels = |filter| with_filter(PerLevel(vec![LevelFilter::Fpr(0.01), filter]));
    vec![
        ("size_ratio", "1", "2 to 16", default.clone().size_ratio(1)),
        ("size_ratio", "17", "2 to 16", default.clone().size_ratio(17)),
        ("write_buffer", "entries: 0", "1 to 1073741824", buffer_of(0)),
        ("write_buffer", "entries: 1073741825", "1 to 1073741824", buffer_of((1 << 30) + 1)),
        (
            "write_buffer",
            "bytes: 0",
            "1 to 1073741824",
            default.clone().write_buffer(WriteBuffer::Bytes(0)),
        ),
        ("filter", "rate of 0.2", rates, with_filter(Fpr(0.2))),
        ("filter", "rate of NaN", rates, with_filter(Fpr(f64::NAN))),
        ("filter", "all runs of 0", "0.001 to 0.1", with_filter(TotalFpr(0.0))),
        ("filter", "entry: 1.5", "2 to 32", with_filter(BitsPerEntry(1.5))),
        ("filter", "entry: 33", "2 to 32", with_filter(BitsPerEntry(33.0))),
        ("filter", "own: 0", "1 to 64", with_filter(PerLevel(Vec::new()))),
        ("filter", "own: 65", "1 to 64", with_filter(PerLevel(vec![LevelFilter::Fpr(0.1); 65]))),
        ("filter", "rate of 1", rates, levels(LevelFilter::Fpr(1.0))),
        ("filter", "entry: -3", "2 to 32", levels(LevelFilter::BitsPerEntry(-3.0))),
        ("filter", "columns: 0", "1 to 16", levels(LevelFilter::Ribbon(0))),
        ("filter", "columns: 17", "1 to 16", levels(LevelFilter::Ribbon(17))),
        ("memory_budget", "bytes: 262143", "262144 to", with_budget(MEMORY_BUDGET_MIN - 1)),
        ("memory_budget", "bytes: 11258", "262144 to", with_budget(MEMORY_BUDGET_MAX + 1)),
        ("write_buffer", "Entries(7)", "memory_budget", buffer_of(7).memory_budget(1 << 20)),
        ("filter", "Fpr(0.01)", "memory_budget", with_filter(Fpr(0.01)).memory_budget(1 << 20)),
        (
            "disk_cache",
            "levels up to 0",
            "1 to 64",
            default.clone().disk_cache(DiskCache::LevelsUpTo(0)),
        ),
        (
            "compressed_levels",
            "levels from 0",
            "1 to 64",
            default.clone().compressed_levels(CompressedLevels::From(0)),
        ),
        ("compaction_batch_pages", "0", "1 to 4096", default.clone().compaction_batch_pages(0)),
        (
            "compaction_batch_pages",
            "4097",
            "1 to 4096",
            default.clone().compaction_batch_pages(4_097),
        ),
        ("prefix_bytes", "0", "1 to 255", default.clone().prefix_bytes(0)),
        (
            "prefix_bytes",
            "4",
            "none, as the filter of a level is a ribbon",
            default.clone().prefix_bytes(4).filter(FilterPolicy::PerLevel(vec![
                LevelFilter::Fpr(0.01),
                LevelFilter::Ribbon(8),
            ])),
        ),
        ("queue_depth", "0", "1 to 1024", default.clone().queue_depth(0)),
        ("queue_depth", "1025", "1 to 1024", default.queue_depth(1_025)),
    ]
}

#[test]
fn each_option_out_of_range_is_refused_with_its_value_and_what_is_allowed() {
    let session = SessionDir::simulated(1).open();
    let mut live = session.new_table(&buffer_of(5)).unwrap();
    fill(&mut live, 0..20);

    for (wanted, given, range, config) in bad_configs() {
        for error in
            [session.new_table(&config).unwrap_err(), live.set_config(&config).unwrap_err()]
        {
            let text = error.to_string();
            let Error::InvalidConfig { option, value, allowed } = error else { panic!("{text}") };
            assert_eq!(option, wanted, "{text}");
            assert!(value.contains(given) && allowed.contains(range), "{text}");
            assert_eq!(text, format!("option {option} is {value}; allowed: {allowed}"));
        }
    }

    assert_eq!(live.config(), &buffer_of(5), "a refused change changes nothing");
}

#[test]
fn options_at_the_ends_of_their_ranges_work() {
    let session = SessionDir::simulated(1).open();

    let base = buffer_of(1).compaction_batch_pages(1).queue_depth(1).size_ratio(2);
    let per_level = |levels| base.clone().filter(FilterPolicy::PerLevel(levels));
    let extremes = [
        base.clone(),
        base.clone().filter(FilterPolicy::TotalFpr(1e-3)),
        base.clone().filter(FilterPolicy::BitsPerEntry(32.0)),
        base.clone().filter(FilterPolicy::Fpr(0.1)).size_ratio(16),
        per_level(vec![LevelFilter::BitsPerEntry(2.0)]),
        per_level(vec![LevelFilter::Fpr(1e-5); 64]),
        per_level(vec![LevelFilter::Ribbon(1), LevelFilter::Ribbon(16)]),
        base.clone().prefix_bytes(1),
        base.clone().prefix_bytes(255),
        base.clone().disk_cache(DiskCache::LevelsUpTo(64)),
        base.clone().compression(Compression::Lz4).compressed_levels(CompressedLevels::From(1)),
        base.clone().compression(Compression::Lz4).compressed_levels(CompressedLevels::From(64)),
        base.clone().compaction_batch_pages(4_096).queue_depth(1_024),
        buffer_of(1 << 30),
        TableConfig::default().write_buffer(WriteBuffer::Bytes(1)),
        TableConfig::default().write_buffer(WriteBuffer::Bytes(1 << 30)),
        with_budget(MEMORY_BUDGET_MIN),
        with_budget(MEMORY_BUDGET_MAX),
    ];

    for config in extremes {
        let mut table = session.new_table(&config).unwrap();
        fill(&mut table, 0..300);
        clear(&mut table, 100..200);
        assert_eq!(content(&table).len(), 200, "{config:?}");
        let keys: Vec<_> = (0..300).map(key).collect();
        let found =
            table.get_many(&keys).unwrap().iter().filter(|result| result.is_found()).count();
        assert_eq!(found, 200, "{config:?}");
    }
}

#[test]
fn a_snapshot_keeps_every_option() {
    for place in SessionDir::both() {
        let session = place.open();

        let per_level =
            vec![LevelFilter::BitsPerEntry(20.0), LevelFilter::Fpr(0.05), LevelFilter::Ribbon(8)];
        let configs = [
            buffer_of(10).filter(FilterPolicy::PerLevel(per_level)),
            buffer_of(10).disk_cache(DiskCache::LevelsUpTo(2)),
            buffer_of(10).compression(Compression::Lz4).compressed_levels(CompressedLevels::Last),
            with_budget(300 << 10).memory_goal(MemoryGoal::Hit),
        ];

        for (at, config) in configs.iter().enumerate() {
            let mut table = session.new_table(&buffer_of(10)).unwrap();
            fill(&mut table, 0..500);
            table.set_config(config).unwrap();
            fill(&mut table, 500..1_000);
            let snapshot = name(&format!("kept-{at}"));
            table.save_snapshot(&snapshot, "").unwrap();
            let opened = session.open_snapshot(&snapshot, "").unwrap();
            assert_eq!(opened.config(), config);
            assert_eq!(content(&opened), content(&table));
        }
    }
}

/// Bits of filter for each entry of a level; `None` if it has no run.
fn bits_per_entry(table: &Table, level: usize) -> Option<f64> {
    let stats = table.stats();
    let level = stats.levels.get(level - 1).filter(|level| level.entries > 0)?;
    Some(level.filter_bytes as f64 * 8.0 / level.entries as f64)
}

#[test]
fn each_level_has_the_filters_that_the_list_gives_it() {
    let levels = [24.0, 12.0, 4.0].map(LevelFilter::BitsPerEntry).to_vec();
    let config = buffer_of(500)
        .filter(FilterPolicy::PerLevel(levels))
        .compaction_policy(CompactionPolicy::Levelling)
        .compaction_schedule(CompactionSchedule::OneShot);

    let mut table = SessionDir::simulated(1).open().new_table(&config).unwrap();
    fill(&mut table, 0..500 * 150);
    assert!(table.stats().levels.len() >= 4);

    // A run that moved down alone keeps the filter it had; a level that was merged has its own.
    let mut seen = [0; 4];
    for flush in 150..250 {
        fill(&mut table, flush * 500..(flush + 1) * 500);
        for (level, wanted) in (1..).zip([24.0, 12.0, 4.0, 4.0]) {
            let Some(bits) = bits_per_entry(&table, level) else { continue };
            // Of the runs, at most one is not a filter's last block away from what was asked for.
            seen[level - 1] += usize::from((bits - wanted).abs() < 0.1 * wanted);
        }
    }

    assert!(seen.iter().all(|&times| times >= 50), "{seen:?} of 100 times");
}

/// Reads per key, of keys that are present and of ones that are not.
fn reads(table: &Table, entries: u64) -> (f64, f64) {
    let per_key = |keys: Vec<[u8; 34]>| {
        let before = table.stats().lookup_reads;
        table.get_many(&keys).unwrap();
        (table.stats().lookup_reads - before) as f64 / keys.len() as f64
    };
    let present = (0..4_000).map(|n| key(spread(n) % entries)).collect();
    (per_key(present), per_key((0..4_000).map(|n| key(1 << 40 | n)).collect()))
}

/// The table grows from far below the budget to 15 bits of budget per entry. The test checks the
/// memory after every batch, and so at every stage of every compaction, and the reads at every
/// size.
#[test]
fn a_table_of_any_size_stays_within_its_memory_budget_and_needs_more_reads_bit_by_bit() {
    let budget = 256 << 10;

    // Entries; the most reads of a present key, and of an absent one.
    let stages =
        [(10_000, 1.01, 0.005), (40_000, 1.01, 0.01), (80_000, 1.05, 0.12), (140_000, 1.5, 1.2)];
    let config = with_budget(budget);
    let session = SessionDir::simulated(1).open();

    let mut table = session.new_table(&config).unwrap();
    let mut next = 0;
    for (entries, present_max, absent_max) in stages {
        while next < entries {
            fill(&mut table, next..next + 200);
            next += 200;
            let stats = table.stats();
            assert!(stats.memory_bytes() <= budget, "{next} entries: {stats:?}");
        }
        let (present, absent) = reads(&table, entries);
        assert!(present <= present_max, "{entries} entries: {present} reads of a present key");
        assert!(absent <= absent_max, "{entries} entries: {absent} reads of an absent key");
    }

    // What was used is most of what was given.
    let stats = table.stats();
    assert!(stats.memory_bytes() >= budget / 2, "{stats:?}");

    // Snapshots open within the budget, too, with merges in their middle.
    table.save_snapshot(&name("full"), "").unwrap();
    drop(table);

    let mut table = session.open_snapshot(&name("full"), "").unwrap();
    for batch in 0..100 {
        fill(&mut table, next + batch * 200..next + (batch + 1) * 200);
        let stats = table.stats();
        assert!(stats.memory_bytes() <= budget, "opened: {stats:?}");
    }
}

#[test]
fn overwriting_and_deleting_stay_within_the_budget() {
    let budget = 256 << 10;
    for index in [IndexKind::Auto, IndexKind::Compact, IndexKind::Ordinary] {
        for compaction_policy in [
            CompactionPolicy::LazyLevelling,
            CompactionPolicy::Levelling,
            CompactionPolicy::Tiering,
        ] {
            let config = with_budget(budget).compaction_policy(compaction_policy).index(index);
            let mut table = SessionDir::simulated(1).open().new_table(&config).unwrap();
            for round in 0..60 {
                // Few keys with ever longer values, and fresh ones.
                for n in 0..20 {
                    table.insert(&key(n), &value(round, 10 * round as usize)).unwrap();
                }
                fill(&mut table, round * 300..(round + 1) * 300 + 50);
                clear(&mut table, round * 200..round * 200 + 100);
                let stats = table.stats();
                assert!(stats.memory_bytes() <= budget, "{config:?}: {stats:?}");
            }
        }
    }
}

#[test]
fn a_budget_given_to_a_live_table_is_kept_to_at_once_where_filters_can_shrink() {
    let session = SessionDir::simulated(1).open();
    let config = buffer_of(500).filter(FilterPolicy::BitsPerEntry(20.0));
    let mut table = session.new_table(&config).unwrap();
    fill(&mut table, 0..100_000);
    let duplicate = table.fork().unwrap();
    let before = table.stats();
    assert!(before.filter_bytes > 240_000, "{before:?}");
    table.set_config(&with_budget(256 << 10)).unwrap();
    fill(&mut table, 100_000..102_000);

    let mut worst = 0;
    for batch in 0..150 {
        fill(&mut table, 102_000 + batch * 200..102_200 + batch * 200);
        worst = worst.max(table.stats().memory_bytes());
    }

    assert!(worst <= 256 << 10, "{worst}");

    // The runs that both have are the same, so the duplicate's memory has shrunk, too, and it is
    // whole.
    assert!(duplicate.stats().filter_bytes < before.filter_bytes * 3 / 4);
    assert_eq!(content(&duplicate).len(), 100_000);
    let keys: Vec<_> = (0..100_000).step_by(7).map(key).collect();
    assert!(duplicate.get_many(&keys).unwrap().iter().all(terrane_lsm::Lookup::is_found));
}

/// Keys that agree in their first 1,000 bytes by threes, so that separators are long.
#[test]
fn a_budget_that_the_indexes_leave_no_room_in_is_refused_by_name() {
    let session = SessionDir::simulated(1).open();
    let config = buffer_of(50).index(IndexKind::Ordinary);

    let mut table = session.new_table(&config).unwrap();
    for n in 0..400u64 {
        let mut key = vec![spread(n / 3) as u8; 1_000];
        key.extend(spread(n).to_le_bytes());
        table.insert(&key, &[]).unwrap();
    }

    let index_bytes = table.stats().index_bytes;
    assert!(index_bytes > 40_000, "{index_bytes}");

    let error = table.set_config(&with_budget(MEMORY_BUDGET_MIN)).unwrap_err();
    let Error::InvalidConfig { option: "memory_budget", allowed, .. } = &error else {
        panic!("{error}")
    };
    let least: u64 = allowed.split(' ').next().unwrap().parse().unwrap();
    assert!(least > index_bytes && least < 20 * index_bytes, "{error}");
    table.set_config(&with_budget(least)).unwrap();
    table.set_config(&with_budget(least - 1)).unwrap_err();
}

fn draw_config(rng: &mut impl Draw) -> TableConfig {
    let budget = rng.chance(1, 5).then(|| *rng.pick(&[256 << 10, 300 << 10, 1 << 20]));
    let default = TableConfig::default();
    let write_buffer = match rng.below(2) {
        0 => WriteBuffer::Entries(*rng.pick(&[2, 5, 20, 50, 1_000])),
        _ => WriteBuffer::Bytes(*rng.pick(&[300, 2_000, 20_000])),
    };

    let list = vec![LevelFilter::Fpr(0.001), LevelFilter::BitsPerEntry(5.0)];
    let filter = match rng.below(4) {
        0 => FilterPolicy::TotalFpr(0.05),
        1 => FilterPolicy::Fpr(0.1),
        2 => FilterPolicy::BitsPerEntry(2.5),
        _ => FilterPolicy::PerLevel(list),
    };

    default
        .clone()
        .compaction_policy(*rng.pick(&[
            CompactionPolicy::LazyLevelling,
            CompactionPolicy::Levelling,
            CompactionPolicy::Tiering,
        ]))
        .size_ratio(*rng.pick(&[2, 3, 4, 9, 16]))
        .compaction_schedule(
            *rng.pick(&[CompactionSchedule::Incremental, CompactionSchedule::OneShot]),
        )
        .compaction_thread(*rng.pick(&[
            CompactionThread::Caller,
            CompactionThread::Caller,
            CompactionThread::Background,
        ]))
        .write_buffer(if budget.is_some() { default.write_buffer } else { write_buffer })
        .filter(if budget.is_some() { default.filter.clone() } else { filter })
        .memory_budget(budget)
        .memory_goal(*rng.pick(&[MemoryGoal::Hit, MemoryGoal::Miss, MemoryGoal::Balanced]))
        .index(*rng.pick(&[IndexKind::Auto, IndexKind::Compact, IndexKind::Ordinary]))
        .disk_cache(*rng.pick(&[DiskCache::All, DiskCache::None, DiskCache::LevelsUpTo(1)]))
        .compression(*rng.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]))
        .compressed_levels(*rng.pick(&COMPRESSED_LEVELS))
        .prefix_bytes(*rng.pick(&[None, Some(1), Some(4), Some(255)]))
        .compaction_batch_pages(*rng.pick(&[1, 3, 64]))
        .queue_depth(*rng.pick(&[1, 4, 128]))
}

fn compare(table: &Table, model: &BTreeMap<u64, Vec<u8>>, population: u64) {
    let keys: Vec<_> = (0..population).map(key).collect();
    for (n, result) in (0..).zip(table.get_many(&keys).unwrap()) {
        assert_eq!(result.value(), model.get(&n).map(Vec::as_slice), "key {n}");
    }
    let expected: BTreeMap<_, _> =
        model.iter().map(|(&n, value)| (key(n).to_vec(), value.clone())).collect();
    assert!(content(table).into_iter().eq(expected), "a scan differs");
}

fn change_and_update(place: &SessionDir, rng: &mut impl Draw) {
    let session = place.open();
    let population = *rng.pick(&[50, 400, 3_000]);

    let mut table = session.new_table(&draw_config(rng)).unwrap();
    let mut model = BTreeMap::new();
    for step in 0..40 {
        if rng.chance(1, 2) {
            table.set_config(&draw_config(rng)).unwrap();
        }

        let len = *rng.pick(&[1, 10, 10, 100, 500]);
        let batch: Vec<_> = (0..len)
            .map(|_| {
                let n = rng.below(population);
                let inserted = rng.chance(2, 3).then(|| value(step, rng.below(80) as usize));
                (key(n), n, inserted)
            })
            .collect();

        for (_, n, inserted) in &batch {
            match inserted {
                Some(value) => model.insert(*n, value.clone()),
                None => model.remove(n),
            };
        }

        let updates: Vec<_> = batch
            .iter()
            .map(|(key, _, inserted)| {
                (key, inserted.as_ref().map_or(Update::Delete, |value| Update::Insert(value)))
            })
            .collect();

        table.write_batch(&updates).unwrap();
        if rng.chance(1, 8) {
            compare(&table, &model, population);
        }

        if rng.chance(1, 15) {
            let snapshot = name(&format!("step-{step}"));
            table.save_snapshot(&snapshot, "").unwrap();
            table = session.open_snapshot(&snapshot, "").unwrap();
        }
    }

    compare(&table, &model, population);
}

#[test]
fn changing_the_configuration_of_a_live_table_is_never_seen_in_a_result() {
    let test = "changing_the_configuration_of_a_live_table_is_never_seen_in_a_result";
    for_each_seed(test, by_effort(6, 16), |rng, seed| {
        let place = if seed % 4 == 0 { SessionDir::real() } else { SessionDir::simulated(seed) };
        change_and_update(&place, rng);
    });
}

/// A level that was a tiering one has residents, which are older than its newest run. When it
/// became a levelling one, that newest run alone moved down, below them, once it was too large for
/// the level: from then on the residents' older entries hid its newer ones.
#[test]
fn residents_of_a_level_that_becomes_levelling_stay_older_than_what_was_above_them() {
    let tiering = buffer_of(10).compaction_policy(CompactionPolicy::Tiering).size_ratio(4);

    let mut table = SessionDir::simulated(1).open().new_table(&tiering).unwrap();
    let mut expected = BTreeMap::new();
    for round in 0..200u64 {
        let batch: Vec<_> = (0..10).map(|n| (key(round * 7 % 30 + n), value(round, 20))).collect();
        let updates: Vec<_> = batch.iter().map(|(k, v)| (k, Update::Insert(v))).collect();
        table.write_batch(&updates).unwrap();
        expected.extend(batch.into_iter().map(|(key, value)| (key.to_vec(), value)));
        // So small that the run on each level is too large for it.
        let buffer = if round % 20 < 10 { 10 } else { 1 };
        let compaction_policy =
            if round % 20 < 10 { CompactionPolicy::Tiering } else { CompactionPolicy::Levelling };
        table
            .set_config(&buffer_of(buffer).compaction_policy(compaction_policy).size_ratio(2))
            .unwrap();
        assert!(content(&table).into_iter().eq(expected.clone()), "round {round}");
    }
}

#[test]
fn a_smaller_write_buffer_is_flushed_with_the_next_update_and_a_larger_one_later() {
    let mut table = SessionDir::simulated(1).open().new_table(&buffer_of(100)).unwrap();
    fill(&mut table, 0..90);
    assert_eq!((table.stats().buffer_entries, table.stats().merge_debt_pages), (90, 0));
    table.set_config(&buffer_of(1_000)).unwrap();
    fill(&mut table, 90..900);
    assert_eq!(table.stats().merge_debt_pages, 0, "no flush so far");
    table.set_config(&buffer_of(50)).unwrap();
    assert_eq!(table.stats().merge_debt_pages, 0, "the change alone does nothing");
    fill(&mut table, 900..901);
    assert!(table.stats().merge_debt_pages > 0, "a flush has begun");
    fill(&mut table, 901..1_001);
    assert_eq!(content(&table).len(), 1_001);
    assert!(table.stats().runs() >= 1);
}

#[test]
fn another_resolve_function_is_refused() {
    let session = SessionDir::simulated(1).open();
    let config = buffer_of(5).merge_operator(MergeOperator::add_u64_wrapping());
    let mut table = session.new_table(&config).unwrap();
    let error = table.set_config(&TableConfig::default()).unwrap_err();
    let named = matches!(&error, Error::InvalidConfig { option: "merge_operator", allowed, .. }
        if allowed.contains(config.merge_operator.name()));
    assert!(named, "{error}");
    table.set_config(&config.size_ratio(7)).unwrap();
}

#[test]
fn a_union_stays_within_its_budget_while_its_debt_is_paid() {
    let budget = 256 << 10;
    let session = SessionDir::simulated(1).open();
    let mut left = session.new_table(&with_budget(budget)).unwrap();
    let mut right = session.new_table(&with_budget(budget)).unwrap();
    fill(&mut left, 0..40_000);
    fill(&mut right, 30_000..60_000);

    // With itself, too: its runs are the same ones.
    let mut union = session.incremental_union(&[&left, &right, &left]).unwrap();
    drop((left, right));

    let mut next = 60_000;
    while union.remaining_union_debt() > 0 {
        union.supply_union_credits(5_000).unwrap();
        fill(&mut union, next..next + 100);
        next += 100;
        let stats = union.stats();
        assert!(stats.memory_bytes() <= budget, "{stats:?}");
    }

    assert_eq!(content(&union).len() as u64, next);
    let (present, absent) = reads(&union, next);
    assert!(present < 1.5 && absent < 1.0, "{present} and {absent} reads");
}

/// A snapshot of a table in which all filters have many bits, opened with budgets from a thousandth
/// of its bytes to more than all of it takes: what the goal asks for is what becomes cheap, and
/// nothing is over the budget.
#[test]
fn what_a_budget_buys_when_a_snapshot_is_opened_is_what_the_goal_asks_for() {
    use MemoryGoal::{Balanced, Hit, Miss};
    const ENTRIES: u64 = 150_000;
    let session = SessionDir::simulated(1).open();

    let config = buffer_of(1_000)
        .filter(FilterPolicy::BitsPerEntry(14.0))
        .compaction_policy(CompactionPolicy::Levelling)
        .size_ratio(10)
        .index(IndexKind::Compact);

    let mut table = session.new_table(&config).unwrap();
    fill(&mut table, 0..ENTRIES);
    table.save_snapshot(&name("full"), "").unwrap();
    let whole = table.stats();
    drop(table);
    assert!(whole.runs() >= 3 && whole.filter_bytes > 240_000, "{whole:?}");

    let open = |bytes: u64, goal| {
        let options = OpenOptions::default().memory_budget(bytes).memory_goal(goal);
        let table = session.open_snapshot_with(&name("full"), "", &options).unwrap();
        let stats = table.stats();
        let reads = reads(&table, ENTRIES);
        assert_eq!(table.config().memory_goal, goal);
        assert!(stats.memory_bytes() <= bytes, "{bytes} {goal:?}: {stats:?}");
        let is_used = stats.memory_bytes() * 20 >= bytes * 19;
        assert!(is_used || goal == Hit || stats.filter_bytes >= whole.filter_bytes, "{stats:?}");
        reads
    };

    // The whole buffer of the snapshot is in memory as well.
    let least = MEMORY_BUDGET_MIN;
    let (present, absent) = open(least, Hit);
    assert!(present <= 1.05 && absent >= 0.9, "{present} {absent}");
    let (present, absent) = open(least, Miss);
    assert!(present <= 1.3 && absent <= 0.4, "{present} {absent}");
    let (present, absent) = open(least, Balanced);
    assert!(present <= 1.2 && absent <= 0.6, "{present} {absent}");

    // With a larger budget they are read again, from the files.
    for goal in [Miss, Balanced] {
        let (present, absent) = open(2 << 20, goal);
        assert!(present <= 1.01 && absent <= 0.016, "{goal:?}: {present} {absent}");
    }

    let options = OpenOptions::default().memory_budget(2 << 20).memory_goal(Miss);
    let table = session.open_snapshot_with(&name("full"), "", &options).unwrap();
    assert!(table.stats().filter_bytes >= whole.filter_bytes);

    // What is shared is folded for all, and not unfolded for one.
    let options = OpenOptions::default().memory_budget(least);
    let small = session.open_snapshot_with(&name("full"), "", &options).unwrap();
    assert_eq!(table.stats().filter_bytes, small.stats().filter_bytes);
    let options = OpenOptions::default().memory_budget(2 << 20);
    let large = session.open_snapshot_with(&name("full"), "", &options).unwrap();
    assert_eq!(large.stats().filter_bytes, small.stats().filter_bytes);
}

/// An update of the table must find room for memtables and compactions at every moment.
#[test]
fn a_table_opened_with_full_memory_makes_room_for_updates() {
    let session = SessionDir::simulated(1).open();
    let mut table = session.new_table(&buffer_of(1_000)).unwrap();
    fill(&mut table, 0..134_000);
    table.save_snapshot(&name("full"), "").unwrap();
    drop(table);

    for goal in [MemoryGoal::Hit, MemoryGoal::Miss] {
        let options = OpenOptions::default().memory_budget(MEMORY_BUDGET_MIN).memory_goal(goal);
        let mut table = session.open_snapshot_with(&name("full"), "", &options).unwrap();
        let before = table.stats();
        let mut least = before.filter_bytes;
        for first in (134_000..164_000).step_by(100) {
            fill(&mut table, first..first + 100);
            let stats = table.stats();
            assert!(stats.memory_bytes() <= MEMORY_BUDGET_MIN, "{goal:?}: {stats:?}");
            least = least.min(stats.filter_bytes);
        }
        assert!(least < before.filter_bytes, "{goal:?}: {least} of {before:?}");
        assert_eq!(content(&table).len(), 164_000);
    }
}

/// A filter so small that nothing takes more than it was replaced by nothing, and the difference
/// underflowed: a panic in builds that check for it, while a lock was held.
#[test]
fn small_ribbon_filters_are_reduced_to_no_more_than_they_were() {
    let place = SessionDir::simulated(1);
    let session = place.open();

    let levels = vec![LevelFilter::Ribbon(1), LevelFilter::Ribbon(16)];
    let small = |entries| {
        TableConfig::default()
            .filter(FilterPolicy::PerLevel(levels.clone()))
            .write_buffer(WriteBuffer::Entries(entries))
    };

    let mut table = session.new_table(&small(1_000)).unwrap();
    let entry = |number: u64| (number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes(), number);
    for first in (0..100_000).step_by(1_000) {
        let batch: Vec<_> = (first..first + 1_000).map(entry).collect();
        let batch: Vec<_> = batch.iter().map(|(key, _)| (key, Update::Insert(b"value"))).collect();
        table.write_batch(&batch).unwrap();
    }

    table.set_config(&small(3)).unwrap();
    for number in 100_000..100_009 {
        table.insert(&entry(number).0, b"value").unwrap();
    }
    let before = table.stats().filter_bytes;
    let budget = with_budget(256 << 10);
    table.set_config(&budget).unwrap();
    assert!(table.stats().filter_bytes <= before);

    for number in (0..100_009).step_by(997) {
        assert!(table.get(&entry(number).0).unwrap().is_found(), "{number}");
    }
}
