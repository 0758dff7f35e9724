//! Swarm of one seed: the shape of keys, sizes, configurations, and the actions and faults that
//! occur.
//!
//! Each seed leaves some features out and prefers others, so that histories differ in kind and not
//! only in detail (*swarm testing*); a history of everything at once would rarely get deep into
//! anything.

use std::ops::Bound;

use terrane_io::FaultKind;
use terrane_io::Survival;
use terrane_lsm::{
    CompactionPolicy, CompactionSchedule, CompactionThread, Compression, DiskCache, FilterPolicy,
    IndexKind, LevelFilter, MEMORY_BUDGET_MIN, MemoryGoal, OpenOptions, TableConfig, Verify,
    WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::keys::{Keys, Shape};
use terrane_testkit::model::{Change, MergeOperator};
use terrane_testkit::{ChaCha8Rng, RngCore, SeedableRng};

use super::action::{
    Action, CURSORS, EXPORTS, KEPT, LABELS, Mishap, SNAPSHOTS, Slot, Step, TABLES,
};
use super::world::World;
use crate::script::COMPRESSED_LEVELS;
use crate::value;

/// Shape of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Hundreds of actions on thousands of entries, a fault now and then.
    Deep,
    /// Few actions on few entries, a fault in every third one.
    Shallow,
}

/// Bytes of one batch beyond which its values are small.
const BATCH_BYTES_MAX: usize = 256 << 10;

/// Bytes of values in a table beyond which values are small and do not grow.
pub(crate) const TABLE_BYTES_MAX: usize = 2 << 20;

pub(crate) struct Swarm {
    pub(crate) keys: Keys,
    pub(crate) configs: Vec<(TableConfig, MergeOperator)>,
    pub(crate) has_background: bool,
    /// Whether everything happens in one thread, and so in one order.
    pub(crate) is_single_threaded: bool,
    /// Actions of a history.
    pub(crate) steps: usize,
    value_lens: Vec<usize>,
    blob_lens: Vec<usize>,
    batch_len_max: usize,
    /// Weights of insert, insert with blob, delete, upsert.
    changes: [u64; 4],
    /// Weights of [`KINDS`].
    weights: Vec<u64>,
    mishaps_of_1000: u64,
    faults: Vec<FaultKind>,
    has_session_budget: bool,
}

/// All kinds of faults.
pub(crate) fn fault_kinds() -> Vec<FaultKind> {
    [&FaultKind::ERRORS[..], &FaultKind::SILENT].concat()
}

impl Swarm {
    pub(crate) fn draw(profile: Profile, rng: &mut impl RngCore) -> Self {
        let is_deep = profile == Profile::Deep;
        let key_count = *rng.pick(if is_deep { &[200, 1_000, 2_000] } else { &[5, 20, 200] });
        let keys = Keys::new(*rng.pick(&Shape::ALL), key_count, rng);

        let value_lens = match rng.below(4) {
            0 => vec![0],
            1 => vec![0, 1, 8, 60],
            // With a key of 34 bytes: an entry that fills a page, and one byte more.
            2 => vec![0, 60, 4040, 4041, 4042, 4096, 4097, 10_000],
            _ => vec![20, 60, 60, 60, 60, 60, 300, 8_200, 60_000],
        };

        let blob_lens = match rng.below(3) {
            0 => vec![0, 1, 100],
            1 => vec![100, 4_080, 4_096, 4_097, 9_000],
            _ => vec![0, 10, 1_500, 70_000],
        };

        let is_single_threaded = rng.chance(2, 3);
        let background_of_4 = if is_single_threaded { 0 } else { *rng.pick(&[0, 2, 4]) };
        let resolve = *rng.pick(&MergeOperator::ALL);

        let is_of_one_kind = rng.chance(3, 4);
        let config_count = 1 + rng.below(3);
        let configs: Vec<_> = (0..config_count)
            .map(|_| {
                let resolve = if is_of_one_kind { resolve } else { *rng.pick(&MergeOperator::ALL) };
                (draw_config(resolve, background_of_4, rng), resolve)
            })
            .collect();

        let mut changes = [6, 2, 3, 3];
        for weight in &mut changes {
            *weight *= rng.below(3);
        }

        // Something has to come in.
        changes[rng.index(2)] += 1;
        let weights = KINDS.iter().map(|kind| {
            let factor = if kind.is_needed { 2 } else { *rng.pick(&[0, 1, 1, 2, 6]) };
            let is_possible = kind.name != "SideBySide" || !is_single_threaded;
            if is_possible { kind.weight * factor } else { 0 }
        });

        let weights = weights.collect();
        let kinds = fault_kinds();

        let faults = (0..=rng.below(4)).map(|_| *rng.pick(&kinds)).collect();
        Self {
            keys,
            has_background: configs
                .iter()
                .any(|(c, _)| c.compaction_thread == CompactionThread::Background),
            is_single_threaded,
            configs,
            steps: if is_deep { *rng.pick(&[150, 300, 600]) } else { *rng.pick(&[10, 30, 60]) },
            value_lens,
            blob_lens,
            batch_len_max: *rng.pick(if is_deep { &[1, 100, 100, 700] } else { &[1, 8, 30, 100] }),
            changes,
            weights,
            mishaps_of_1000: if is_deep { *rng.pick(&[0, 10, 30]) } else { *rng.pick(&[150, 400]) },
            faults,
            has_session_budget: false,
        }
    }

    /// Leaves nothing out, and keeps little in memory.
    pub(crate) fn want_everything(&mut self) {
        self.changes = [2, 2, 1, 2];
        self.batch_len_max = 20;
        for (config, _) in &mut self.configs {
            config.write_buffer = WriteBuffer::Entries(1);
            config.memory_budget = None;
        }
        self.weights = KINDS.iter().map(|kind| kind.weight).collect();
    }

    /// Leaves memory to the session, whose least budget has no room for those of tables.
    pub(crate) fn share_session_memory(&mut self) {
        self.has_session_budget = true;
        for (config, _) in &mut self.configs {
            config.memory_budget = None;
        }
    }

    /// The next step of a history.
    pub(crate) fn step(&self, world: &World, rng: &mut ChaCha8Rng) -> Step {
        let mut drawing = Drawing { swarm: self, world, rng };
        if world.is_simulated() && drawing.rng.chance(self.mishaps_of_1000, 1000) {
            let mishap = Some(drawing.mishap());
            return Step { action: drawing.action(|kind| kind.is_on_disk), mishap };
        }
        Step { action: drawing.action(|_| true), mishap: None }
    }

    /// A key of the population, or one near it that is not there.
    pub(crate) fn any_key(&self, rng: &mut impl RngCore) -> Vec<u8> {
        let mut key = self.keys.hot_or_cold(rng).to_vec();
        match rng.below(8) {
            0 => key.push(0),
            1 => {
                key.pop();
            }
            2 => {
                if let Some(last) = key.last_mut() {
                    *last ^= 1;
                }
            }
            _ => {}
        }

        key
    }

    pub(crate) fn any_keys(&self, seed: u64, len: usize) -> Vec<Vec<u8>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..len).map(|_| self.any_key(&mut rng)).collect()
    }

    pub(crate) fn bounds(&self, seed: u64) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut bound = || match rng.below(4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(self.any_key(&mut rng)),
            _ => Bound::Included(self.any_key(&mut rng)),
        };
        (bound(), bound())
    }

    /// A first part of a key.
    pub(crate) fn prefix(&self, seed: u64) -> Vec<u8> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut key = self.any_key(&mut rng);
        key.truncate(*rng.pick(&[0, 1, 2, 8, 9, 4_000]));
        key
    }

    /// Draws the options for opening a snapshot, without the merge operator, which the caller sets.
    pub(crate) fn open_options(&self, seed: u64) -> OpenOptions {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut options = OpenOptions::default();
        if rng.chance(1, 3) {
            options = options.disk_cache(*rng.pick(&[DiskCache::All, DiskCache::None]));
        }

        if rng.chance(1, 3) {
            options = options.compaction_batch_pages(*rng.pick(&[1, 200]));
        }

        if rng.chance(1, 3) {
            options = options.queue_depth(*rng.pick(&[1, 64]));
        }

        if self.has_background && rng.chance(1, 3) {
            let threads = [CompactionThread::Caller, CompactionThread::Background];
            options = options.compaction_thread(*rng.pick(&threads));
        }

        if rng.chance(1, 3) {
            options = options.verify(Verify::Full);
        }

        if rng.chance(1, 4) {
            if !self.has_session_budget {
                options = options.memory_budget(MEMORY_BUDGET_MIN);
            }
            options = options.memory_goal(*rng.pick(&[MemoryGoal::Hit, MemoryGoal::Miss]));
        }

        options
    }

    /// Changes for a table; `is_full` says that it should not grow much.
    pub(crate) fn batch(
        &self,
        seed: u64,
        len: usize,
        resolve: MergeOperator,
        is_full: bool,
    ) -> Vec<(Vec<u8>, Change)> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let small = [0, 8, 60];

        let mut bytes = 0;
        let mut batch = Vec::with_capacity(len);
        for _ in 0..len {
            let key = self.keys.hot_or_cold(&mut rng).to_vec();
            let is_small =
                is_full || bytes > BATCH_BYTES_MAX || resolve == MergeOperator::Concatenate;
            let value_lens = if is_small { &small[..] } else { &self.value_lens };
            let blob_lens = if is_small { &small[..] } else { &self.blob_lens };

            let value = value(rng.next_u64(), *rng.pick(value_lens));
            let blob = value_of_blob(rng.next_u64(), *rng.pick(blob_lens));
            let change = match pick_weighted(&self.changes, &mut rng) {
                0 => Change::Insert(value),
                1 => Change::InsertWithBlob(value, blob),
                2 => Change::Delete,
                _ if is_full => Change::Insert(value),
                _ => Change::Upsert(value),
            };

            if let Change::Insert(value)
            | Change::InsertWithBlob(value, _)
            | Change::Upsert(value) = &change
            {
                bytes += value.len();
            }

            if let Change::InsertWithBlob(_, blob) = &change {
                bytes += blob.len();
            }
            batch.push((key, change));
        }

        batch
    }
}

/// Bytes that differ from those of a value of the same number.
fn value_of_blob(number: u64, len: usize) -> Vec<u8> {
    value(!number, len)
}

fn pick_weighted(weights: &[u64], rng: &mut impl RngCore) -> usize {
    let mut draw = rng.below(weights.iter().sum());
    let passes = |&weight: &u64| {
        let is_passed = draw >= weight;
        draw = draw.wrapping_sub(if is_passed { weight } else { 0 });
        !is_passed
    };
    weights.iter().position(passes).expect("a draw below the sum")
}

fn draw_config(
    resolve: MergeOperator,
    background_of_4: u64,
    rng: &mut impl RngCore,
) -> TableConfig {
    let entries = *rng.pick(&[1, 2, 3, 4, 4, 7, 30, 1000]);
    let bytes = *rng.pick(&[1, 100, 1_000, 5_000, 50_000]);
    let write_buffer =
        if rng.chance(1, 3) { WriteBuffer::Bytes(bytes) } else { WriteBuffer::Entries(entries) };

    let levels = (0..=rng.below(3)).map(|_| *rng.pick(&LEVEL_FILTERS)).collect();
    let filters = [
        FilterPolicy::TotalFpr(0.01),
        FilterPolicy::TotalFpr(0.1),
        FilterPolicy::Fpr(0.001),
        FilterPolicy::BitsPerEntry(2.0),
        FilterPolicy::PerLevel(levels),
    ];

    let filter = rng.pick(&filters).clone();
    let has_ribbon = matches!(&filter, FilterPolicy::PerLevel(levels)
        if levels.iter().any(|level| matches!(level, LevelFilter::Ribbon(_))));
    let prefix_bytes = *rng.pick(&[None, None, Some(1), Some(2)]);
    let prefix_bytes = prefix_bytes.filter(|_| !has_ribbon);

    let config = TableConfig::default()
        .merge_operator(engine_resolve(resolve))
        .compaction_policy(*rng.pick(&[
            CompactionPolicy::LazyLevelling,
            CompactionPolicy::LazyLevelling,
            CompactionPolicy::Levelling,
            CompactionPolicy::Tiering,
        ]))
        .size_ratio(*rng.pick(&[4, 2, 3, 5, 16]))
        .compaction_schedule(*rng.pick(&[
            CompactionSchedule::Incremental,
            CompactionSchedule::Incremental,
            CompactionSchedule::Incremental,
            CompactionSchedule::OneShot,
        ]))
        .compaction_thread(if rng.chance(background_of_4, 4) {
            CompactionThread::Background
        } else {
            CompactionThread::Caller
        })
        .write_buffer(write_buffer)
        .filter(filter)
        .prefix_bytes(prefix_bytes)
        .index(*rng.pick(&[IndexKind::Auto, IndexKind::Compact, IndexKind::Ordinary]))
        .disk_cache(*rng.pick(&[DiskCache::All, DiskCache::None, DiskCache::LevelsUpTo(1)]))
        .compression(*rng.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]))
        .compressed_levels(*rng.pick(&COMPRESSED_LEVELS))
        .compaction_batch_pages(*rng.pick(&[1, 2, 16, 200]))
        .queue_depth(*rng.pick(&[1, 2, 7, 64, 128]))
        .memory_budget(None)
        .memory_goal(MemoryGoal::default());

    if rng.chance(1, 8) {
        // The engine splits it, and so wants no sizes from the user.
        let TableConfig { write_buffer, filter, .. } = TableConfig::default();
        let memory_budget = Some(*rng.pick(&[MEMORY_BUDGET_MIN, 4 * MEMORY_BUDGET_MIN]));
        let memory_goal = match config.size_ratio {
            2 => MemoryGoal::Hit,
            3 => MemoryGoal::Miss,
            _ => MemoryGoal::Balanced,
        };
        return config
            .write_buffer(write_buffer)
            .filter(filter)
            .memory_budget(memory_budget)
            .memory_goal(memory_goal);
    }

    config
}

const LEVEL_FILTERS: [LevelFilter; 5] = [
    LevelFilter::Fpr(0.1),
    LevelFilter::Fpr(1e-4),
    LevelFilter::BitsPerEntry(12.0),
    LevelFilter::Ribbon(1),
    LevelFilter::Ribbon(9),
];

/// The engine's function of the same name.
pub(crate) fn engine_resolve(resolve: MergeOperator) -> terrane_lsm::MergeOperator {
    terrane_lsm::MergeOperator::by_name(resolve.name()).unwrap_or_else(|| {
        let own = move |newer: &[u8], older: &[u8]| resolve.apply(newer, older);
        terrane_lsm::MergeOperator::new(resolve.name(), own).unwrap()
    })
}

/// A kind of action and how one is drawn.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    weight: u64,
    /// Whether no seed can do without it.
    is_needed: bool,
    /// Whether it calls the disk, as a rule.
    pub(crate) is_on_disk: bool,
    draw: fn(&mut Drawing<'_>) -> Action,
}

/// A kind that calls the disk, and that some seeds do without.
const fn disk(name: &'static str, weight: u64, draw: fn(&mut Drawing<'_>) -> Action) -> Kind {
    Kind { name, weight, is_needed: false, is_on_disk: true, draw }
}

/// A kind that some seeds do without.
const fn some(name: &'static str, weight: u64, draw: fn(&mut Drawing<'_>) -> Action) -> Kind {
    Kind { is_on_disk: false, ..disk(name, weight, draw) }
}

/// A kind that all seeds need.
const fn needed(kind: Kind) -> Kind {
    Kind { is_needed: true, ..kind }
}

/// All kinds of actions.
pub(crate) const KINDS: [Kind; 53] = [
    needed(some("NewTable", 1, |d| Action::NewTable { to: d.spot(), config: d.rng.index(3) })),
    needed(disk("Update", 12, |d| Action::Update {
        table: d.table(),
        seed: d.seed(),
        len: d.batch_len(),
    })),
    needed(disk("Lookup", 6, |d| Action::Lookup {
        table: d.table(),
        seed: d.seed(),
        len: d.lookup_len(),
    })),
    some("Duplicate", 1, |d| Action::Duplicate { from: d.table(), to: d.spot() }),
    some("DropTable", 1, |d| Action::DropTable { table: d.table() }),
    disk("UpdateOne", 6, |d| Action::UpdateOne { table: d.table(), seed: d.seed() }),
    disk("DeleteRange", 2, |d| Action::DeleteRange { table: d.table(), seed: d.seed() }),
    some("UpdateWithLongKey", 1, |d| Action::UpdateWithLongKey {
        table: d.table(),
        seed: d.seed(),
        len: d.rng.index(8),
    }),
    disk("Member", 1, |d| Action::Member { table: d.table(), seed: d.seed() }),
    disk("Range", 2, |d| Action::Range { table: d.table(), seed: d.seed() }),
    disk("RangeBack", 1, |d| Action::RangeBack { table: d.table(), seed: d.seed() }),
    disk("Prefix", 1, |d| Action::Prefix { table: d.table(), seed: d.seed() }),
    disk("Diff", 3, |d| Action::Diff { older: d.table(), newer: d.table() }),
    some("NewCursor", 2, |d| Action::NewCursor {
        table: d.table(),
        to: d.rng.index(CURSORS),
        seed: d.seed(),
    }),
    some("NewPrefixCursor", 1, |d| Action::NewPrefixCursor {
        table: d.table(),
        to: d.rng.index(CURSORS),
        seed: d.seed(),
    }),
    disk("Next", 2, |d| Action::Next { cursor: d.cursor(), count: d.read_len() }),
    disk("Prev", 2, |d| Action::Prev { cursor: d.cursor(), count: d.read_len() }),
    disk("Peek", 1, |d| Action::Peek { cursor: d.cursor() }),
    disk("PeekPrev", 1, |d| Action::PeekPrev { cursor: d.cursor() }),
    disk("Seek", 1, |d| Action::Seek { cursor: d.cursor(), seed: d.seed() }),
    disk("SeekAfter", 1, |d| Action::SeekAfter { cursor: d.cursor(), seed: d.seed() }),
    disk("SeekToStart", 1, |d| Action::SeekToStart { cursor: d.cursor() }),
    disk("SeekToEnd", 1, |d| Action::SeekToEnd { cursor: d.cursor() }),
    disk("Take", 1, |d| Action::Take { cursor: d.cursor(), count: d.read_len() }),
    disk("TakeBack", 1, |d| Action::TakeBack { cursor: d.cursor(), count: d.read_len() }),
    disk("TakeWhileBack", 1, |d| Action::TakeWhileBack {
        cursor: d.cursor(),
        count: d.read_len(),
        seed: d.seed(),
    }),
    disk("TakeWhile", 1, |d| Action::TakeWhile {
        cursor: d.cursor(),
        count: d.read_len(),
        seed: d.seed(),
    }),
    some("DropCursor", 1, |d| Action::DropCursor { cursor: d.cursor() }),
    disk("KeepBlobs", 2, |d| Action::KeepBlobs {
        table: d.table(),
        to: d.rng.index(KEPT),
        seed: d.seed(),
        len: d.lookup_len(),
    }),
    disk("KeepCursorBlobs", 1, |d| Action::KeepCursorBlobs {
        cursor: d.cursor(),
        to: d.rng.index(KEPT),
        count: d.read_len(),
    }),
    disk("RetrieveBlobs", 2, |d| Action::RetrieveBlobs { kept: d.kept() }),
    disk("Union", 1, |d| Action::Union { tables: d.tables(), to: d.spot() }),
    disk("IncrementalUnion", 2, |d| Action::IncrementalUnion { tables: d.tables(), to: d.spot() }),
    disk("SupplyCredits", 3, |d| Action::SupplyCredits { table: d.table(), credits: d.credits() }),
    some("QueryDebt", 1, |d| Action::QueryDebt { table: d.table() }),
    disk("Compact", 1, |d| Action::Compact { table: d.table() }),
    disk("Save", 3, |d| Action::Save { table: d.table(), name: d.name(), label: d.label() }),
    disk("Open", 3, |d| Action::Open {
        name: d.name(),
        label: d.label(),
        to: d.spot(),
        seed: d.seed(),
    }),
    disk("DeleteSnapshot", 2, |d| Action::DeleteSnapshot { name: d.name() }),
    disk("RenameSnapshot", 1, |d| Action::RenameSnapshot { from: d.name(), to: d.name() }),
    disk("SnapshotInfo", 1, |d| Action::SnapshotInfo { name: d.name() }),
    disk("Export", 2, |d| Action::Export { name: d.name(), dir: d.rng.index(EXPORTS) }),
    disk("Import", 2, |d| Action::Import {
        dir: d.rng.index(EXPORTS),
        from: d.name(),
        to: d.name(),
    }),
    some("ListSnapshots", 1, |_| Action::ListSnapshots),
    disk("Stats", 1, |d| Action::Stats { table: d.table() }),
    disk("ExportCanonical", 1, |d| Action::ExportCanonical { table: d.table() }),
    disk("ImportCanonical", 1, |d| Action::ImportCanonical {
        table: d.table(),
        to: d.spot(),
        config: d.rng.index(3),
    }),
    some("Reconfigure", 1, |d| Action::Reconfigure { table: d.table(), config: d.rng.index(3) }),
    disk("SideBySide", 2, |d| Action::SideBySide {
        reader: d.table(),
        writer: d.table(),
        seed: d.seed(),
        len: d.rng.index(60),
    }),
    disk("CloseAndReopen", 1, |_| Action::CloseAndReopen),
    disk("Verify", 1, |_| Action::Verify),
    disk("Kill", 1, |_| Action::Kill),
    disk("PowerCut", 1, |d| Action::PowerCut { survival: d.survival() }),
];

/// Inputs that an action is drawn from.
pub(crate) struct Drawing<'a> {
    pub(crate) swarm: &'a Swarm,
    pub(crate) world: &'a World,
    pub(crate) rng: &'a mut ChaCha8Rng,
}

impl Drawing<'_> {
    /// Draws an action of one of the wanted kinds.
    fn action(&mut self, is_wanted: impl Fn(&Kind) -> bool) -> Action {
        if self.world.open_tables().next().is_none() && self.rng.chance(7, 8) {
            let has_snapshots = !self.world.forest.snapshot_names().is_empty();
            let name = if has_snapshots && self.rng.chance(3, 4) { "Open" } else { "NewTable" };
            return self.action_of(name);
        }
        let weights = KINDS.iter().zip(&self.swarm.weights);
        let weights: Vec<u64> =
            weights.map(|(kind, w)| if is_wanted(kind) { *w } else { 0 }).collect();
        (KINDS[pick_weighted(&weights, self.rng)].draw)(self)
    }

    pub(crate) fn action_of(&mut self, name: &str) -> Action {
        let kind = KINDS.iter().find(|kind| kind.name == name).expect("a kind of action");
        (kind.draw)(self)
    }

    pub(crate) fn mishap(&mut self) -> Mishap {
        let call = match self.rng.below(4) {
            0 | 1 => 0,
            2 => self.rng.below(8),
            _ => self.rng.below(60),
        };

        if self.rng.chance(1, 8) {
            return Mishap::PowerCut { call, survival: self.survival() };
        }

        Mishap::Fault {
            kind: *self.rng.pick(&self.swarm.faults),
            call,
            forever: self.rng.chance(1, 4),
            retry: self.rng.chance(1, 2),
        }
    }

    fn seed(&mut self) -> u64 {
        self.rng.below(1 << 20)
    }

    fn table(&mut self) -> Slot {
        let open: Vec<Slot> = self.world.open_tables().collect();
        if open.is_empty() { self.rng.index(TABLES) } else { *self.rng.pick(&open) }
    }

    fn tables(&mut self) -> Vec<Slot> {
        let len = *self.rng.pick(&[0, 1, 2, 2, 2, 2, 3, 4]);
        (0..len).map(|_| self.table()).collect()
    }

    /// A place for a table: free ones first.
    fn spot(&mut self) -> Slot {
        let open: Vec<Slot> = self.world.open_tables().collect();
        let free = (0..TABLES).find(|slot| !open.contains(slot));
        free.unwrap_or_else(|| self.rng.index(TABLES))
    }

    fn cursor(&mut self) -> Slot {
        let open: Vec<Slot> = self.world.open_cursors().collect();
        if open.is_empty() { self.rng.index(CURSORS) } else { *self.rng.pick(&open) }
    }

    fn kept(&mut self) -> Slot {
        let full: Vec<Slot> = self.world.kept_slots().collect();
        if full.is_empty() { self.rng.index(KEPT) } else { *self.rng.pick(&full) }
    }

    fn name(&mut self) -> Slot {
        self.rng.index(SNAPSHOTS.len())
    }

    fn label(&mut self) -> Slot {
        if self.rng.chance(4, 5) { 0 } else { self.rng.index(LABELS.len()) }
    }

    fn batch_len(&mut self) -> usize {
        match self.rng.below(100) {
            0 => 0,
            1 => 1 + self.rng.index(3_001),
            2..=30 => 1,
            _ => 1 + self.rng.index(self.swarm.batch_len_max),
        }
    }

    fn lookup_len(&mut self) -> usize {
        match self.rng.below(6) {
            0 => 0,
            1 | 2 => 1,
            3 | 4 => self.rng.index(20),
            _ => self.rng.index(400),
        }
    }

    fn read_len(&mut self) -> usize {
        *self.rng.pick(&[0, 1, 1, 3, 10, 500])
    }

    fn credits(&mut self) -> u64 {
        *self.rng.pick(&[0, 1, 10, 100, 1_000, u64::MAX])
    }

    fn survival(&mut self) -> Survival {
        let seed = self.seed();
        *self.rng.pick(&[
            Survival::Nothing,
            Survival::Everything,
            Survival::Prefix(seed % 32),
            Survival::Random(seed),
            Survival::Torn(seed),
        ])
    }
}
