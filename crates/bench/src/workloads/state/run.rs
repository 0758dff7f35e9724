//! Run on a state: imports it, then commits blocks one after the other, proves, goes back, and
//! derives all nodes again.
//!
//! The state is the directory `state` below the given directory. The run removes the state at the
//! end unless `keep` is set. A kept state is used again and stays: the run goes back to its first
//! block, whose hash names the workload.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrane::io::files::create_parents;
use terrane::io::{Disk, RealDisk};
use terrane::lsm::CompactionThread::{Background, Caller};
use terrane::lsm::{DiskCache, SessionStats, StoreOptions, TableConfig, TableStats};
use terrane::mpt::{self, Account, AccountProof, Address, B256, State, U256, is_state};

use super::block::{self, Block, Generator, Write};
use super::floor::Preimages;
use super::hash_of;
use super::import::import;
use super::layout::{ABSENT, Layout};
use super::report::{
    BlockReport, HistoryReport, ProofReport, ReorgReport, Report, SetUpReport, VerifyReport,
};
use crate::instruments::bare;
use crate::instruments::meter::{Usage, reset_rss_peak, rss_bytes, rss_peak_bytes, store_bytes};
use crate::workloads::draws::mix;
use crate::workloads::{Error, Result, bounded, seconds};
use terrane_replay::latency::Latency;
use terrane_replay::monitor::{Monitor, Phase};

/// Directory of the state.
const DIR: &str = "state";

/// Most blocks whose nodes are hashed as the floor.
const FLOOR_BLOCKS_MAX: u64 = 8;

/// Options of a run.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Load, state and distribution.
    pub drawn: block::Options,
    /// Blocks that are not measured.
    pub warm_up: u64,
    /// Blocks to measure.
    pub blocks: u64,
    /// Whether blocks keep what reads at older heights need.
    pub history: bool,
    /// Whether lookups read past the page cache.
    pub direct: bool,
    /// Threads of the state; with more than one, compactions have another one.
    pub threads: usize,
    /// Memory budget of the store.
    pub memory_budget: Option<u64>,
    /// Bytes of memory for nodes, beside the store.
    pub node_cache: u64,
    /// Proofs at the tip, and at older heights.
    pub proofs: u64,
    /// Blocks to go back over.
    pub reorg: u64,
    /// Whether the run keeps the state.
    pub keep: bool,
}

/// Measures the state below `store`.
///
/// # Errors
/// [`Error::Wrong`] if a read or a proof finds something else than it must, or nodes are not those
/// of the entries; [`Error::Options`]; [`Error::State`]; [`Error::Interrupted`] before the first
/// measured block. A run that is interrupted later is reported as far as it went.
pub fn run(store: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    bounded("blocks", options.blocks, 1)?;
    let dir = store.join(DIR);
    let was_there = dir.exists();
    let outcome = run_in(&dir, options, monitor);

    // A state that was not imported to its end is useless.
    let stays = was_there || (options.keep && outcome.is_ok());
    if !stays && dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(|error| Error::io(&dir, error))?;
    }
    outcome
}

fn run_in(dir: &Path, options: &Options, monitor: &mut dyn Monitor) -> Result<Report> {
    let disk: Arc<dyn Disk> = RealDisk::auto();
    let generator = Generator::new(options.drawn)?;
    let set_up = set_up(&disk, dir, options, generator.layout(), monitor)?;
    let state = open(&disk, dir, options)?;
    let mut run = Run { dir, options, state, generator, applied: VecDeque::new(), reported: 0 };

    for _ in 0..options.warm_up {
        run.block(&mut Times::default())?;
        if run.report_block(monitor) {
            return Err(Error::Interrupted);
        }
    }
    let mut report = run.measure(set_up, monitor)?;
    if !report.is_interrupted {
        run.finish(&mut report, monitor)?;
    }

    report.state_root = run.state.root().to_string();
    if options.keep {
        let back = run.state.reorg_to(0)?;
        back.ticket.wait()?;
    }
    run.state.close()?;
    Ok(report)
}

/// The hash of the first block, which names the workload.
fn identity(options: &block::Options) -> B256 {
    let block::Options { load, seed, accounts, .. } = options;
    let load = load.name();
    hash_of(format!("terrane bench state: {accounts} accounts, {load}, seed {seed}").as_bytes())
}

fn state_options(options: &Options) -> mpt::Options {
    let store = StoreOptions::default().create_dir().memory_budget(options.memory_budget);
    let state = mpt::Options::default().store(store).tables(table_config(options));
    state.history(options.history).threads(options.threads).node_cache(options.node_cache)
}

fn table_config(options: &Options) -> TableConfig {
    let cache = if options.direct { DiskCache::None } else { DiskCache::All };
    let thread = if options.threads == 1 { Caller } else { Background };
    TableConfig::default().disk_cache(cache).compaction_thread(thread)
}

fn open(disk: &Arc<dyn Disk>, dir: &Path, options: &Options) -> Result<State> {
    let state = State::open(Arc::clone(disk), dir, &state_options(options))?;
    let config = table_config(options);
    for table in state.store().tables()? {
        let table = state.store().table(&table.name)?;
        if *table.view()?.config() != config {
            table.set_config(&config)?;
        }
    }
    Ok(state)
}

/// Imports the state, or goes back to the first block of one that is there.
fn set_up(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    options: &Options,
    layout: &Layout,
    monitor: &mut dyn Monitor,
) -> Result<SetUpReport> {
    let hash = identity(&options.drawn);
    let reused = dir.exists() && is_state(disk.as_ref(), dir)?;
    let mut import_s = 0.0;
    if reused {
        let mut state = State::open(Arc::clone(disk), dir, &state_options(options))?;
        if state.block_at(0)?.is_none_or(|block| block.hash != hash) {
            let dir = dir.display();
            return Err(Error::Options(format!(
                "{dir} holds the state of another workload; remove the directory first"
            )));
        }
        if state.tip().is_some_and(|tip| 0 < tip.height) {
            let back = state.reorg_to(0)?;
            back.ticket.wait()?;
        }
        state.close()?;
    } else {
        create_parents(disk.as_ref(), dir).map_err(terrane::lsm::Error::from)?;
        let options = state_options(options);
        import_s = import(disk, dir, &options, (layout, hash), monitor)?.as_secs_f64();
    }

    let per_s = |count: u64| if reused { 0.0 } else { count as f64 / import_s };
    Ok(SetUpReport {
        reused,
        import_s,
        accounts_per_s: per_s(layout.accounts()),
        entries_per_s: per_s(layout.accounts() + layout.slots()),
        store_bytes: bytes_of(dir)?,
    })
}

fn bytes_of(dir: &Path) -> Result<u64> {
    store_bytes(dir).map_err(|error| Error::io(dir, error))
}

/// State of a run between two blocks.
struct Run<'a> {
    dir: &'a Path,
    options: &'a Options,
    state: State,
    generator: Generator,
    /// The last blocks, as many as the run goes back over, with the times of their durable commits.
    applied: VecDeque<(Block, Duration)>,
    /// Blocks reported to the monitor.
    reported: u64,
}

/// Latencies of blocks.
#[derive(Default)]
struct Times {
    blocks: Latency,
    reads: Latency,
    commits: Latency,
    syncs: Latency,
    durable: Latency,
    count: u64,
    accounts: u64,
    slots: u64,
    wiped_slots: u64,
}

/// Accounts and slots by their keys.
#[derive(Default)]
struct Keys {
    accounts: Vec<(u64, Address)>,
    slots: Vec<(u64, (Address, B256))>,
}

impl Keys {
    /// Those of numbers of accounts and slots.
    fn of(
        layout: &Layout,
        accounts: impl Iterator<Item = u64>,
        slots: impl Iterator<Item = u64>,
    ) -> Self {
        let slot = |number| {
            let place = layout.place(number);
            (number, (layout.address(place.contract), layout.slot_key(place)))
        };
        Self {
            accounts: accounts.map(|number| (number, layout.address(number))).collect(),
            slots: slots.map(slot).collect(),
        }
    }

    fn addresses(&self) -> Vec<Address> {
        self.accounts.iter().map(|(_, address)| *address).collect()
    }

    /// The slots with the addresses of their contracts.
    fn places(&self) -> Vec<(Address, B256)> {
        self.slots.iter().map(|(_, slot)| *slot).collect()
    }

    fn of_block(layout: &Layout, block: &Block) -> Self {
        let number = |write: &Write| write.number;
        Self::of(layout, block.accounts.iter().map(number), block.slots.iter().map(number))
    }
}

/// Accounts and values of [`Keys`].
type Found = (Vec<Option<Account>>, Vec<U256>);

impl Run<'_> {
    /// Draws a block, reads what it changes, and commits it.
    fn block(&mut self, times: &mut Times) -> Result<()> {
        let block = self.generator.next_block();
        let layout = self.generator.layout();
        let keys = Keys::of_block(layout, &block);
        let accounts: Vec<(Address, Account)> = block
            .accounts
            .iter()
            .filter(|write| write.after != ABSENT)
            .map(|write| (layout.address(write.number), layout.account(write.number, write.after)))
            .collect();
        let values = block.slots.iter().map(|write| value(layout, write.number, write.after));
        let slots = keys.slots.iter().zip(values);
        let slots: Vec<(Address, (B256, U256))> =
            slots.map(|((_, (address, slot)), value)| (*address, (*slot, value))).collect();
        let slots: Vec<(Address, Vec<(B256, U256)>)> = slots
            .chunk_by(|left, right| left.0 == right.0)
            .map(|own| (own[0].0, own.iter().map(|(_, slot)| *slot).collect()))
            .collect();
        let wiped = block.wiped.map(|contract| layout.address(contract));

        let (height, parent) =
            self.state.tip().map_or((0, B256::ZERO), |tip| (tip.height + 1, tip.hash));
        let hash = B256::from(U256::from(mix(self.options.drawn.seed, height)));
        let before = |writes: &[Write]| writes.iter().map(|write| write.before).collect::<Vec<_>>();
        let start = Instant::now();
        let mut batch = self.state.block(height, parent)?;
        let found = (batch.accounts(&keys.addresses())?, batch.slots(&keys.places())?);
        let read = start.elapsed();
        check(layout, &keys, &found, &before(&block.accounts), &before(&block.slots))?;

        let start = Instant::now();
        if let Some(address) = wiped {
            batch.delete_account(address);
        }
        for (address, account) in &accounts {
            batch.set_account(*address, account);
        }
        for (address, slots) in &slots {
            batch.set_slots(*address, slots);
        }
        let committed = batch.commit(hash)?;
        let commit = start.elapsed();
        committed.ticket.wait()?;
        let durable = start.elapsed();

        times.blocks.record(read + durable);
        times.reads.record(read);
        times.commits.record(commit);
        times.syncs.record(durable.saturating_sub(commit));
        times.durable.record(durable);
        times.count += 1;
        times.accounts += block.accounts.len() as u64;
        times.slots += block.slots.len() as u64;
        times.wiped_slots += block.wiped_slots.len() as u64;
        self.applied.push_back((block, durable));
        if self.applied.len() as u64 > self.options.reorg {
            self.applied.pop_front();
        }
        Ok(())
    }

    /// Reports a block to the monitor, and returns whether to stop.
    fn report_block(&mut self, monitor: &mut dyn Monitor) -> bool {
        self.reported += 1;
        let total = self.options.warm_up + self.options.blocks;
        monitor.progress(Phase::Replay, self.reported, Some(total));
        monitor.stop()
    }

    /// Measures the blocks, and the host behind them.
    fn measure(&mut self, set_up: SetUpReport, monitor: &mut dyn Monitor) -> Result<Report> {
        reset_rss_peak();
        let before = Reading::now(&self.state)?;
        let mut times = Times::default();
        let mut is_interrupted = false;
        for _ in 0..self.options.blocks {
            self.block(&mut times)?;
            is_interrupted = self.report_block(monitor);
            if is_interrupted {
                break;
            }
        }

        let now = Reading::now(&self.state)?;
        let (rss_bytes, rss_peak_bytes) = (rss_bytes(), rss_peak_bytes());
        let per_block = per_block(&times, &before, &now);
        let bare = bare::measure(self.dir, (per_block.update_bytes as usize).max(1), times.count)
            .map_err(|error| Error::io(self.dir, error))?;
        let sync_latency_ms = times.syncs.spread();

        let Options { drawn, .. } = self.options;
        let layout = self.generator.layout();
        Ok(Report {
            load: drawn.load.name(),
            distribution: drawn.distribution.name(),
            seed: drawn.seed,
            accounts: layout.accounts(),
            contracts: layout.contracts(),
            slots: layout.slots(),
            history: self.options.history,
            direct: self.options.direct,
            threads: self.options.threads,
            memory_budget_bytes: self.options.memory_budget,
            node_cache_bytes: self.options.node_cache,
            warm_up_blocks: self.options.warm_up,
            blocks: times.count,
            set_up,
            block_latency_ms: times.blocks.spread(),
            read_latency_ms: times.reads.spread(),
            commit_latency_ms: times.commits.spread(),
            sync_latency_ms,
            durable_latency_ms: times.durable.spread(),
            per_block,
            rss_bytes,
            rss_peak_bytes,
            store_bytes: bytes_of(self.dir)?,
            sync_over_bare: sync_latency_ms.mean / bare.append_sync_ms.mean.max(f64::MIN_POSITIVE),
            bare,
            history_bytes: self.options.history.then(|| history(&before, &now)),
            proofs: None,
            older_proofs: None,
            reorg: None,
            keccak_floor: None,
            over_floor: None,
            verified: None,
            state_root: String::new(),
            is_interrupted,
        })
    }

    /// Measures what does not change the blocks' figures: proofs, going back, the floor, and the
    /// verification.
    fn finish(&mut self, report: &mut Report, monitor: &mut dyn Monitor) -> Result<()> {
        report.proofs = self.proofs(false)?;
        if self.options.history {
            report.older_proofs = self.proofs(true)?;
        }
        report.reorg = self.reorg()?;

        let mut preimages = Preimages::default();
        for _ in 0..FLOOR_BLOCKS_MAX.min(self.options.blocks) {
            self.block(&mut Times::default())?;
            self.take_preimages(&mut preimages)?;
        }
        report.keccak_floor = preimages.measure();
        report.over_floor = report.keccak_floor.map(|floor| {
            report.commit_latency_ms.mean / floor.all_threads_ms.max(f64::MIN_POSITIVE)
        });

        report.is_interrupted = monitor.stop();
        if report.is_interrupted {
            return Ok(());
        }
        let start = Instant::now();
        let checked = self.state.verify()?;
        if let Some(problem) = checked.problems.first() {
            return Err(Error::Wrong(problem.to_string()));
        }
        report.verified = Some(VerifyReport {
            accounts: checked.accounts,
            slots: checked.slots,
            nodes: checked.nodes,
            wall_s: seconds(start),
        });
        Ok(())
    }

    /// Proves accounts and slots, at the tip or at heights from the first on.
    fn proofs(&mut self, is_older: bool) -> Result<Option<ProofReport>> {
        let tip = self.state.tip().map_or(0, |tip| tip.height);
        let mut latency = Latency::new();
        let mut lowest_height = tip;
        for number in 0..self.options.proofs {
            let random = mix(self.options.drawn.seed ^ tip, number);
            let (account, place) = self.generator.draw_target(random);
            let layout = self.generator.layout();
            let address = layout.address(account);
            let slots: Vec<B256> = place.map(|place| layout.slot_key(place)).into_iter().collect();
            let height = if is_older { mix(random, 0) % (tip + 1) } else { tip };

            let start = Instant::now();
            let proof = if is_older {
                self.state.at(height)?.prove(&address, &slots)?
            } else {
                self.state.prove(&address, &slots)?
            };
            latency.record(start.elapsed());
            lowest_height = lowest_height.min(height);
            self.check_proof(&proof, height)?;
        }
        let report = ProofReport { lowest_height, latency_us: latency.report() };
        Ok((self.options.proofs > 0).then_some(report))
    }

    fn check_proof(&self, proof: &AccountProof, height: u64) -> Result<()> {
        let wrong = |why: &dyn std::fmt::Display| {
            Error::Wrong(format!("the proof of {} at height {height}: {why}", proof.address))
        };
        let block = self.state.block_at(height)?.ok_or_else(|| wrong(&"no such block"))?;
        proof.verify(block.root).map_err(|error| wrong(&error))
    }

    /// Goes back over the last blocks, and compares all that they changed.
    fn reorg(&mut self) -> Result<Option<ReorgReport>> {
        let applied = std::mem::take(&mut self.applied);
        let Some(tip) = self.state.tip().filter(|_| !applied.is_empty()) else { return Ok(None) };
        let blocks = applied.len() as u64;
        let start = Instant::now();
        let back = self.state.reorg_to(tip.height - blocks)?;
        back.ticket.wait()?;
        let wall_ms = seconds(start) * 1e3;

        let mut accounts = std::collections::BTreeSet::new();
        let mut slots = std::collections::BTreeSet::new();
        let mut apply_ms = 0.0;
        for (block, took) in applied.iter().rev() {
            self.generator.undo(block);
            accounts.extend(block.accounts.iter().map(|write| write.number));
            slots.extend(block.slots.iter().map(|write| write.number));
            slots.extend(block.wiped_slots.iter().map(|(slot, _)| *slot));
            apply_ms += took.as_secs_f64() * 1e3;
        }
        let layout = self.generator.layout();
        let keys = Keys::of(layout, accounts.iter().copied(), slots.iter().copied());
        let found = (self.state.accounts(&keys.addresses())?, self.state.slots(&keys.places())?);
        let accounts: Vec<u8> =
            accounts.iter().map(|n| self.generator.account_version(*n)).collect();
        let slots: Vec<u8> = slots.iter().map(|n| self.generator.slot_version(*n)).collect();
        check(layout, &keys, &found, &accounts, &slots)?;
        Ok(Some(ReorgReport { blocks, wall_ms, apply_ms, over_apply: wall_ms / apply_ms }))
    }

    /// Takes the nodes that the last block has hashed.
    fn take_preimages(&self, preimages: &mut Preimages) -> Result<()> {
        let Some((block, _)) = self.applied.back() else { return Ok(()) };
        let layout = self.generator.layout();
        let keys = Keys::of_block(layout, block);
        let mut proofs = Vec::new();
        let mut hashed = Vec::new();
        for (_, address) in &keys.accounts {
            let own = keys.slots.iter().filter(|(_, (owner, _))| owner == address);
            let slots: Vec<B256> = own.map(|(_, (_, slot))| *slot).collect();
            hashed.push(address.to_vec());
            hashed.extend(slots.iter().map(|slot| slot.to_vec()));
            proofs.push(self.state.prove(address, &slots)?);
        }
        preimages.add(hashed, &proofs);
        Ok(())
    }
}

/// Compares what was found with what the versions say.
fn check(layout: &Layout, keys: &Keys, found: &Found, accounts: &[u8], slots: &[u8]) -> Result<()> {
    for (((number, address), found), version) in keys.accounts.iter().zip(&found.0).zip(accounts) {
        // The storage root is not known here; proofs and the verification at the end show it.
        let plain = found.map(|account| account.storage_root(Account::default().storage_root));
        let expected = (*version != ABSENT).then(|| layout.account(*number, *version));
        if plain != expected {
            return Err(Error::Wrong(format!("account {address} is {found:?}")));
        }
    }
    for (((number, (address, slot)), found), version) in keys.slots.iter().zip(&found.1).zip(slots)
    {
        if *found != value(layout, *number, *version) {
            return Err(Error::Wrong(format!("slot {slot} of {address} is {found}")));
        }
    }
    Ok(())
}

/// The value of a slot, zero if it is not there.
fn value(layout: &Layout, slot: u64, version: u8) -> U256 {
    if version == ABSENT { U256::ZERO } else { layout.value(slot, version) }
}

/// Counters at one moment.
struct Reading {
    stats: SessionStats,
    usage: Option<Usage>,
    /// Updates of tables by name, and bytes.
    tables: Vec<(String, TableStats)>,
}

impl Reading {
    fn now(state: &State) -> Result<Self> {
        let store = state.store();
        let mut tables = Vec::new();
        for table in store.tables()? {
            tables.push((table.name.as_str().to_owned(), store.table(&table.name)?.stats()?));
        }
        Ok(Self { stats: store.session().stats(), usage: Usage::now(), tables })
    }

    /// Updates and bytes of tables.
    fn updates(&self, names: &[&str]) -> (u64, u64) {
        let tables = self.tables.iter().filter(|(name, _)| names.contains(&name.as_str()));
        tables.fold((0, 0), |(updates, bytes), (_, stats)| {
            (updates + stats.updates, bytes + stats.update_bytes)
        })
    }

    fn updates_since(&self, before: &Self, names: &[&str]) -> (u64, u64) {
        let (updates, bytes) = self.updates(names);
        let (updates_before, bytes_before) = before.updates(names);
        (updates - updates_before, bytes - bytes_before)
    }
}

fn per_block(times: &Times, before: &Reading, now: &Reading) -> BlockReport {
    let each = |count: u64| count as f64 / times.count.max(1) as f64;
    let since = |of: fn(&SessionStats) -> u64| each(of(&now.stats) - of(&before.stats));
    let usage = now.usage.zip(before.usage).map(|(now, before)| now.since(&before));
    BlockReport {
        accounts: each(times.accounts),
        slots: each(times.slots),
        wiped_slots: each(times.wiped_slots),
        lookups: since(|stats| stats.lookups),
        page_reads: since(|stats| stats.lookup_reads),
        cache_hits: since(|stats| stats.cache_hits),
        updates: since(|stats| stats.updates),
        update_bytes: since(|stats| stats.update_bytes),
        read_bytes: usage.map(|usage| each(usage.read_bytes)),
        write_bytes: usage.map(|usage| each(usage.write_bytes)),
        cpu_ms: usage.map(|usage| usage.cpu_s * 1e3 / times.count.max(1) as f64),
    }
}

fn history(before: &Reading, now: &Reading) -> HistoryReport {
    let nodes = ["account_node_history", "storage_node_history"];
    let (nodes, node_bytes) = now.updates_since(before, &nodes);
    let (values, value_bytes) = now.updates_since(before, &["value_history"]);
    let (_, change_bytes) = now.updates_since(before, &["changes"]);
    let (_, entry_bytes) = now.updates_since(before, &["accounts", "slots"]);
    HistoryReport {
        nodes,
        bytes_per_node: node_bytes as f64 / nodes.max(1) as f64,
        values,
        over_values: (value_bytes + change_bytes) as f64 / entry_bytes.max(1) as f64,
    }
}
