//! Generated blocks keep to the published counts, and the engine in memory gives the expected
//! results. Goal: both hold for every profile.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::block::Operation;
use super::profile::{ALL, LIMA, LIMA_MEAN, YEAR_2021};
use super::*;
use terrane_replay::engines::context::{CommitInfo, Context, ContextEngine, Steps};
use terrane_replay::engines::context_memory::MemoryContexts;
use terrane_replay::monitor::Silent;
use terrane_replay::traces::irmin;

const SEED: u64 = 7;

fn generator(profile: &'static Profile, values: u64) -> Generator {
    Generator::new(Options { seed: SEED, values, profile, fork_every: None }).unwrap()
}

/// Returns the number of operations of each kind in a block.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    mem: u64,
    mem_tree: u64,
    find: u64,
    add: u64,
    remove: u64,
    copy: u64,
}

/// Paths of a block, as text.
#[derive(Debug, Default)]
struct Paths {
    all: BTreeSet<String>,
    read: BTreeSet<String>,
    written: BTreeSet<String>,
    /// Questions, reads and writes of each.
    accesses: HashMap<String, [u64; 3]>,
}

fn count(block: &Block) -> (Counts, Paths) {
    let mut counts = Counts::default();
    let mut paths = Paths::default();
    for operation in block.operations() {
        let mut access = |path: Steps<'_>, kind: usize| {
            let path = path.to_string();
            match kind {
                1 => paths.read.insert(path.clone()),
                2 => paths.written.insert(path.clone()),
                _ => false,
            };
            paths.accesses.entry(path.clone()).or_default()[kind] += 1;
            paths.all.insert(path);
        };

        match operation {
            Operation::Mem { path, .. } => {
                counts.mem += 1;
                access(path, 0);
            }
            Operation::MemTree { path, .. } => {
                counts.mem_tree += 1;
                access(path, 0);
            }
            Operation::Find { path, .. } => {
                counts.find += 1;
                access(path, 1);
            }
            Operation::Add { path, .. } => {
                counts.add += 1;
                access(path, 2);
            }
            Operation::Remove { path } => {
                counts.remove += 1;
                access(path, 2);
            }
            Operation::Copy { .. } => counts.copy += 1,
        }
    }

    (counts, paths)
}

/// Returns the number of steps below `data` of each path.
fn depths(paths: &BTreeSet<String>) -> BTreeMap<usize, usize> {
    let mut depths = BTreeMap::new();
    for path in paths {
        assert!(path.starts_with("data/"), "{path}");
        *depths.entry(path.matches('/').count()).or_default() += 1;
    }
    depths
}

#[test]
fn a_block_of_lima_has_the_published_counts() {
    let mut generator = generator(&LIMA, 100_000);
    let mut block = Block::new();
    for number in 0..5 {
        generator.next_block(&mut block);
        assert_eq!((block.number, block.is_abandoned), (number, false));
        let (counts, paths) = count(&block);
        let Counts { mem, find, add, remove, .. } = counts;
        assert_eq!((mem, find, add + remove, remove), (2_363, 3_892, 3_180, 20));
        assert_eq!((counts.mem_tree, counts.copy, block.count()), (0, 0, 9_435));
        assert_eq!((paths.all.len(), paths.read.len(), paths.written.len()), (1_489, 579, 957));
        let depths = depths(&paths.all);
        assert_eq!((depths[&4], depths[&5], depths[&6]), (718, 52, 699));
        assert_eq!(depths.range(..4).map(|(_, count)| count).sum::<usize>(), 20);
        let bytes: usize = paths.all.iter().map(String::len).sum();
        let mean = bytes as f64 / paths.all.len() as f64;
        assert!((82.5..85.5).contains(&mean), "{mean}");
        let mut accesses: Vec<(&String, [u64; 3])> =
            paths.accesses.iter().map(|(path, accesses)| (path, *accesses)).collect();
        accesses.sort_by_key(|(_, [_, reads, _])| std::cmp::Reverse(*reads));
        assert_eq!(accesses[0].1, [444, 888, 444]);
        assert!(accesses[0].0.ends_with("/balance"), "{}", accesses[0].0);
        assert_eq!(accesses.iter().filter(|(_, [_, reads, _])| *reads >= 40).count(), 10);

        // Most written paths were read in the same block.
        let overwritten: u64 = accesses
            .iter()
            .filter(|(_, [_, reads, _])| *reads > 0)
            .map(|(_, [_, _, writes])| writes)
            .sum();

        assert_eq!(overwritten, 1_800);
        assert_eq!(paths.accesses["data/contracts/global_counter"], [106, 212, 106]);
    }
}

#[test]
fn a_block_of_2021_has_the_published_counts() {
    let mut generator = generator(&YEAR_2021, 20_000);
    let mut block = Block::new();
    for number in 1..=219_u64 {
        generator.next_block(&mut block);
        let copy = u64::from(number.is_multiple_of(219));
        let expected = Counts { mem: 53, mem_tree: 33, find: 224, add: 71, remove: 5, copy };
        let (counts, paths) = count(&block);
        assert_eq!(counts, expected, "{number}");
        assert_eq!(paths.accesses["data/contracts/global_counter"], [6, 12, 6]);
    }
}

/// The published means of 10,310 blocks, in tenths: 71 values written, 4.6 removed, 224 read, 53
/// questions for values and 33 for directories.
#[test]
fn a_mean_block_of_lima_has_the_published_mix() {
    let mut generator = generator(&LIMA_MEAN, 100_000);
    let mut block = Block::new();
    for _ in 0..5 {
        generator.next_block(&mut block);
        let (counts, paths) = count(&block);
        let expected =
            Counts { mem: 345, mem_tree: 215, find: 1_456, add: 462, remove: 30, copy: 0 };
        assert_eq!(counts, expected);
        let published = [(counts.add, 710), (counts.remove, 46), (counts.find, 2_240)];
        let asked = [(counts.mem, 530), (counts.mem_tree, 330)];
        for (count, tenths) in published.into_iter().chain(asked) {
            // 6.5 times each, rounded to a whole operation.
            assert!((count * 100).abs_diff(tenths * 65) <= 50, "{count} of {tenths}");
        }
        assert_eq!(paths.written.len(), 418);
    }
}

#[test]
fn profiles_have_names_of_their_own_and_groups_that_can_be_drawn() {
    assert_eq!(ALL.map(|profile| profile.name), ["lima", "lima-mean", "2021"]);
    for group in ALL.iter().flat_map(|profile| profile.groups) {
        assert!((1..=group.accesses).contains(&group.paths), "{group:?}");
    }
    assert_eq!((LIMA.transactions, YEAR_2021.transactions), (Some(46), None));
}

/// A hash of all that a block is.
fn hash(block: &Block, hasher: &mut blake3::Hasher) {
    for operation in block.operations() {
        hasher.update(format!("{} {:?} {operation:?}\n", block.number, block.parent).as_bytes());
    }
}

/// The hash of the first blocks of a seed.
fn stream_hash(seed: u64, profile: &'static Profile) -> String {
    let options = Options { seed, values: 30_000, profile, fork_every: Some(3) };
    let mut generator = Generator::new(options).unwrap();
    let mut block = Block::new();
    let mut hasher = blake3::Hasher::new();
    for _ in 0..4 {
        generator.next_block(&mut block);
        hash(&block, &mut hasher);
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

#[test]
fn a_seed_always_gives_the_same_blocks_and_another_one_others() {
    let hashes =
        [(1, &LIMA), (1, &YEAR_2021), (2, &LIMA)].map(|(seed, profile)| stream_hash(seed, profile));
    assert_eq!(hashes, ["770b5b4c046c334e", "e72b64e36b584785", "4f557395acba3acd"]);
}

/// The steps of a path, to be compared.
fn owned(path: Steps<'_>) -> Vec<Vec<u8>> {
    path.iter().map(<[u8]>::to_vec).collect()
}

#[test]
fn the_state_is_in_order_and_has_few_wide_directories_and_many_narrow_ones() {
    for values in [VALUES_MIN, 100_001] {
        let state = State::new(SEED, values);
        assert_eq!(state.count(), values);
        let mut path = StepsBuf::new();
        let mut value = Vec::new();

        let mut last = Vec::new();
        let mut widths: HashMap<Vec<Vec<u8>>, u64> = HashMap::new();
        for number in 0..values {
            state.entry(number, &mut path, &mut value);
            let steps = owned(path.steps());
            assert!(last < steps, "{number}: {:?}", path.steps());
            assert!(!value.is_empty());
            let shared = steps.iter().zip(&last).take_while(|(new, old)| new == old).count();
            for at in shared..steps.len() {
                *widths.entry(steps[..at].to_vec()).or_default() += 1;
            }
            last = steps;
        }

        let at = |path: &str| {
            let steps: Vec<Vec<u8>> =
                path.split('/').map(|step| step.as_bytes().to_vec()).collect();
            widths[&steps]
        };

        assert_eq!(at("data/contracts/index"), state.account_count());
        assert_eq!(at("data/big_maps/index"), state.map_count());
        let items =
            widths.iter().filter(|(path, _)| path.last().is_some_and(|step| step == b"contents"));
        let items: Vec<u64> = items.map(|(_, width)| *width).collect();
        assert_eq!(items.iter().sum::<u64>(), state.item_count());
        let largest = items.iter().max().unwrap();
        assert!(*largest > state.item_count() / 10, "{largest} of {}", state.item_count());
        let narrow = widths.values().filter(|width| **width < 10).count();
        assert!(narrow * 100 > widths.len() * 95, "{narrow} of {}", widths.len());
    }
}

#[test]
fn what_a_number_is_drawn_for_has_the_path_for_it() {
    let state = State::new(SEED, 50_000);
    let mut path = StepsBuf::new();
    let mut spell = |number| {
        state.path(number, &mut path);
        path.steps().to_string()
    };

    assert_eq!(spell(state.global_counter()), "data/contracts/global_counter");
    assert_eq!(spell(state.changing_global()), "data/big_maps/next");
    assert_eq!(spell(state.roll(0)), "data/rolls/owner/current/0000");
    assert_eq!(spell(49_999), "test_chain");
    let globals: BTreeSet<String> = (0..GLOBAL_COUNT).map(|at| spell(state.global(at))).collect();
    assert_eq!(globals.len(), 20);
    assert!(globals.contains("data/version") && !globals.contains("data/big_maps/next"));
    assert!(globals.iter().all(|path| path.matches('/').count() <= 3), "{globals:?}");

    for account in 0..state.account_count() {
        assert!(spell(state.balance(account)).ends_with("/balance"), "{account}");
        for random in [0, u64::MAX / 2, u64::MAX] {
            assert_eq!(spell(state.account_field(account, random)).matches('/').count(), 4);
        }
    }

    for group in 0..state.contract_count() {
        for random in [0, u64::MAX / 2, u64::MAX] {
            assert_eq!(spell(state.storage_field(group, random)).matches('/').count(), 5);
        }
    }

    for item in 0..state.item_count() {
        let data = state.item(item, false);
        let length = state.item(item, true);
        assert!(state.is_item_data(data) && !state.is_item_data(length));
        assert!(spell(data).ends_with("/data") && spell(length).ends_with("/len"), "{item}");
    }

    let sizes: Vec<u64> = (0..state.map_count()).map(|rank| state.map_size_by_rank(rank)).collect();
    assert!(sizes.iter().all(|number| spell(*number).ends_with("/total_bytes")));
    assert_eq!(sizes.iter().collect::<BTreeSet<_>>().len(), sizes.len());
    assert_eq!(spell(NEVER).matches('/').count(), 6);
}

#[test]
fn values_have_the_published_sizes_and_differ_from_version_to_version() {
    let state = State::new(SEED, 100_000);
    let mut counts = [0_u32; 18];
    let mut value = Vec::new();
    let mut next = Vec::new();

    // Items only: a field of the chain has its own size.
    let samples = 90_000;
    for number in 1_000_000..1_000_000 + samples {
        value.clear();
        state.value(number, (number % 255) as u8, &mut value);
        counts[value.len().ilog2() as usize] += 1;
        next.clear();
        state.value(number, ((number + 1) % 255) as u8, &mut next);
        assert_eq!(value.len().ilog2(), next.len().ilog2(), "{number}");
        assert_ne!(value[0], next[0], "{number}");
    }

    let percent: Vec<f64> =
        counts.iter().map(|count| f64::from(*count) * 100.0 / samples as f64).collect();

    let published = [0.75, 29.7, 48.5, 1.4, 3.9, 5.3, 9.4, 0.67, 0.24, 0.06, 0.06, 0.06];
    for (log, (found, expected)) in percent.iter().zip(published).enumerate() {
        assert!((found - expected).abs() < 0.02 + expected * 0.1, "{log}: {found} %");
    }
    let large: f64 = percent[12..].iter().sum();

    assert!((0.002..0.02).contains(&large), "{large} %");
}

/// Loads the starting state and applies blocks, each on its parent; returns what is left to look
/// at.
fn run(mut generator: Generator, blocks: u64) -> (Generator, Box<dyn Context>) {
    let engine = MemoryContexts::new();
    let info = CommitInfo { date: 0, author: b"Tezos", message: b"" };

    let mut context = engine.empty();

    let mut path = StepsBuf::new();
    let mut value = Vec::new();
    for number in 0..generator.state().count() {
        generator.state().entry(number, &mut path, &mut value);
        context.add(path.steps(), &value).unwrap();
    }

    let start = context.commit(&info, &[]).unwrap();

    let mut commits = Vec::new();

    let mut block = Block::new();
    let mut tip = start;
    for _ in 0..blocks {
        generator.next_block(&mut block);
        let parent = block.parent.map_or(start, |parent: u64| commits[parent as usize]);
        let mut context = engine.checkout(&parent).unwrap().unwrap();
        block.apply(&mut *context, &mut value).unwrap();
        let commit = context.commit(&info, &[parent]).unwrap();
        commits.push(commit);
        if !block.is_abandoned {
            tip = commit;
        }
    }

    (generator, engine.checkout(&tip).unwrap().unwrap())
}

/// Compares every value with what the generator knows of it.
fn check(generator: &Generator, context: &mut dyn Context) {
    let mut path = StepsBuf::new();

    let mut value = Vec::new();
    let mut expected = Vec::new();
    for number in 0..generator.versions.len() as u64 {
        generator.state.path(number, &mut path);
        let is_there = context.find(path.steps(), &mut value).unwrap();
        let version = generator.version(number);
        assert_eq!(is_there, version != ABSENT, "{:?}", path.steps());
        if is_there {
            expected.clear();
            generator.state.value(number, version, &mut expected);
            assert_eq!(value, expected, "{:?}", path.steps());
        }
    }
}

#[test]
fn every_expected_result_is_that_of_an_engine() {
    let (generator, mut context) = run(generator(&LIMA, VALUES_MIN), 8);
    check(&generator, &mut *context);
    let touched = generator.versions.iter().filter(|version| **version != 0).count();
    assert!(touched > 3_000, "{touched}");
    assert_eq!(generator.versions.len() as u64, VALUES_MIN + 8 * 60);
}

/// The profile of 2021, with a copy in each fifth block.
fn often_copied() -> &'static Profile {
    let Profile { hot, groups, .. } = YEAR_2021;
    let name = "often copied";
    Box::leak(Box::new(Profile { name, transactions: None, hot, groups, copy_every: Some(5) }))
}

#[test]
fn copies_are_read_after_they_are_made() {
    let (generator, mut context) = run(generator(often_copied(), VALUES_MIN), 12);
    check(&generator, &mut *context);
    assert_eq!(generator.copies, 2);
    let mut path = StepsBuf::new();
    for copy in 0..3 {
        copied_path(copy, 5, &mut path);
        assert_eq!(context.mem(path.steps()).unwrap(), copy < 2);
    }
}

#[test]
fn forks_are_two_blocks_of_one_parent_and_the_first_one_is_forgotten() {
    let options =
        Options { seed: SEED, values: VALUES_MIN, profile: often_copied(), fork_every: Some(3) };

    let mut drawn = Generator::new(options).unwrap();

    let mut block = Block::new();
    let mut shape = Vec::new();
    for _ in 0..9 {
        drawn.next_block(&mut block);
        shape.push((block.parent, block.is_abandoned));
    }

    let kept = |parent| (parent, false);
    let abandoned = |parent| (parent, true);
    let expected = [
        kept(None),
        kept(Some(0)),
        abandoned(Some(1)),
        kept(Some(1)),
        kept(Some(3)),
        kept(Some(4)),
        abandoned(Some(5)),
        kept(Some(5)),
        kept(Some(7)),
    ];

    assert_eq!(shape, expected);
    let (generator, mut context) = run(Generator::new(options).unwrap(), 20);
    check(&generator, &mut *context);
    assert_eq!((generator.kept, generator.copies), (15, 3));

    // With forks of every block, each block forks from the first one on.
    let options = Options { fork_every: Some(1), ..options };
    let mut drawn = Generator::new(options).unwrap();
    for (parent, is_abandoned) in [(None, true), (None, false), (Some(1), true), (Some(1), false)] {
        drawn.next_block(&mut block);
        assert_eq!((block.parent, block.is_abandoned), (parent, is_abandoned));
    }
}

#[test]
fn a_recorded_workload_is_replayed_with_every_check() {
    let options =
        Options { seed: SEED, values: VALUES_MIN, profile: often_copied(), fork_every: Some(3) };
    let mut generator = Generator::new(options).unwrap();
    let mut trace = Vec::new();
    let tip = record::record(&mut generator, &mut MemoryContexts::new(), 9, &mut trace).unwrap();
    let mut engine = MemoryContexts::new();
    let options = irmin::Options::default();
    let report = irmin::replay(trace.as_slice(), &mut engine, &options, &mut Silent).unwrap();

    // Seven of the nine are kept; the fifth of these has a copy.
    let expected = irmin::Counts {
        checkouts: 9,
        adds: VALUES_MIN + 9 * 71,
        removes: 9 * 5,
        copies: 1,
        finds: 9 * 224,
        mems: 9 * 53,
        mem_trees: 9 * 33,
        commits: 10,
        ..irmin::Counts::default()
    };

    assert_eq!((report.counts, report.checks_passed), (expected, 9 * 310));
    assert_eq!((report.last_commit, report.truncated_at), (Some(tip), None));
    check(&generator, &mut *engine.checkout(&tip).unwrap().unwrap());
}

#[test]
fn an_engine_that_loses_a_write_is_found_out() {
    let mut generator = generator(&YEAR_2021, VALUES_MIN);
    let mut context = MemoryContexts::new().empty();
    let mut block = Block::new();
    let mut value = Vec::new();
    generator.next_block(&mut block);

    // Nothing was loaded, so the first block finds nothing.
    let error = block.apply(&mut *context, &mut value).unwrap_err();
    assert!(
        error.to_string().starts_with("wrong answer: block 0: not so in the engine: "),
        "{error}"
    );
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let options = Options { seed: 0, values: VALUES_MIN, profile: &LIMA, fork_every: None };
    for refused in [
        Options { values: VALUES_MIN - 1, ..options },
        Options { values: OPTION_MAX + 1, ..options },
        Options { fork_every: Some(0), ..options },
    ] {
        assert!(matches!(Generator::new(refused), Err(Error::Options(_))), "{refused:?}");
    }
}
