//! `terrane bench state`: blocks of accounts and slots on an Ethereum state.
//!
//! The JSON object is described in `docs/schema/bench-state.json`, and field by field in
//! `terrane_bench::workloads::state::report`.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use terrane_bench::instruments::device::Yardstick;
use terrane_bench::instruments::host::Host;
use terrane_bench::instruments::limits::MemoryLimit;
use terrane_bench::workloads::draws::Distribution;
use terrane_bench::workloads::state::Load;
use terrane_bench::workloads::state::block;
use terrane_bench::workloads::state::report::{ProofReport, Report};
use terrane_bench::workloads::state::run::{self, Options};

use super::choices;
use super::context::spread;
use super::head::{self, Head, Started};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::progress::Progress;
use crate::ui::text::grouped;

pub(super) const EXAMPLES: &str = "\
Examples:
  500 blocks over a million accounts and two million slots, each commit durable:
    terrane bench state --store /tmp/terrane-state
  The same with skewed accounts and slots, and with a history:
    terrane bench state --store /tmp/terrane-state --distribution zipf:0.99 \\
      --history
  A large state, imported once and used again, with little memory:
    terrane bench state --store DIR --accounts 10M --keep
    terrane bench state --store DIR --accounts 10M --keep --direct \\
      --memory-budget 200MiB --calibrate --json
  Loads that an attacker would choose:
    terrane bench state --store DIR --load wide-wipe
    terrane bench state --store DIR --load deep-paths

The state is DIR/state. It is created if it is missing, and removed at the end unless --keep is \
given or it existed before. The first blocks warm up and are not measured. Every account and slot \
that is read is compared with its expected value, every proof is verified, and at the end all \
nodes are derived from the entries again; a difference ends the run with exit code 1. The Keccak \
floor is the time to hash the nodes and keys of a block in vectors. After Ctrl-C the report covers \
the blocks until then.";

args::choices! {
    /// Load on the state.
    enum LoadArg => Load {
        /// A block as the main network has it: 323 accounts and 990 slots
        Mix => Load::Mix,
        /// The mix, and in each block the largest contract that is left is deleted
        WideWipe => Load::WideWipe,
        /// Slots whose hashes share long prefixes
        DeepPaths => Load::DeepPaths,
        /// Slots that are one of two children of a branch, deleted and set again in turns
        SiblingCollapse => Load::SiblingCollapse,
        /// All slots in one contract
        BigContract => Load::BigContract,
    }
}

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub(crate) struct StateArgs {
    /// Directory to work in; created if it is missing
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Accounts of the state, which has two slots for each
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "1M")]
    accounts: u64,
    /// Load on the state
    #[arg(long, value_enum, default_value_t = LoadArg::Mix)]
    load: LoadArg,
    /// Distribution of accounts and slots
    #[arg(long, value_name = "D", value_parser = choices::distribution, default_value = "uniform")]
    distribution: Distribution,
    /// Blocks to measure
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "500")]
    blocks: u64,
    /// Blocks to warm up with, which are not measured
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "50")]
    warm_up: u64,
    /// Keeps what reads and proofs at older heights need
    #[arg(long)]
    history: bool,
    /// Proofs at the tip; --history makes as many at older heights
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1000")]
    proofs: u64,
    /// Last blocks to go back over, at most as many as were committed
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "128")]
    reorg: u64,
    /// Threads of the state; with more than one, compactions have another one
    #[arg(long, value_name = "N", default_value = "2",
        value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Memory budget of the store
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_budget: Option<u64>,
    /// Memory for nodes that blocks have visited, beside that of the store
    #[arg(long, value_name = "SIZE", value_parser = args::size, default_value = "64MiB")]
    node_cache: u64,
    /// Memory limit of a control group for this process, page cache included
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_limit: Option<u64>,
    /// Reads with direct I/O, past the page cache
    #[arg(long)]
    direct: bool,
    /// Measures the device at the end
    #[arg(long)]
    calibrate: bool,
    /// Keeps the state
    #[arg(long)]
    keep: bool,
    /// Seed of accounts, slots and blocks
    #[arg(long, value_name = "N", value_parser = args::count, default_value = "1337")]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Report with its header.
#[derive(Serialize)]
struct StateReport {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    report: Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<Device>,
    memory_enforced: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_cache_peak_bytes: Option<u64>,
    host: Host,
}

/// The device by itself.
#[derive(Serialize)]
struct Device {
    #[serde(flatten)]
    yardstick: Yardstick,
    /// Time of the page reads of a block at that rate, in milliseconds.
    block_reads_ms: f64,
}

impl StateArgs {
    fn options(&self) -> Options {
        Options {
            drawn: block::Options {
                load: self.load.into(),
                seed: self.seed,
                accounts: self.accounts,
                distribution: self.distribution,
            },
            warm_up: self.warm_up,
            blocks: self.blocks,
            history: self.history,
            direct: self.direct,
            threads: usize::from(self.threads),
            memory_budget: self.memory_budget,
            node_cache: self.node_cache,
            proofs: self.proofs,
            reorg: self.reorg,
            keep: self.keep,
        }
    }

    pub(super) fn run(&self, command: &str) -> Result<u8, Failure> {
        let started = Started::now();
        let mut progress = Progress::new(self.output.quiet);
        let limit = self.memory_limit.map(MemoryLimit::set).transpose()?;
        let report = run::run(&self.store, &self.options(), &mut progress)?;
        let page_cache_peak_bytes = limit.as_ref().and_then(MemoryLimit::page_cache_peak_bytes);
        let wanted = Some(&self.store).filter(|_| self.calibrate && !report.is_interrupted);
        let device = head::yardstick_of(wanted, &mut progress)?;
        drop(progress);
        let interrupted = report.is_interrupted.then(|| Failure::interrupted("interrupted"));

        let head = if report.is_interrupted { started.head_interrupted() } else { started.head() };
        let block_reads_ms = |rate: f64| report.per_block.page_reads / rate * 1e3;
        let whole = StateReport {
            head,
            device: device.map(|yardstick| Device {
                block_reads_ms: block_reads_ms(yardstick.read_iops),
                yardstick,
            }),
            memory_enforced: limit.is_some(),
            page_cache_peak_bytes,
            host: Host::of(&self.store),
            report,
        };

        let text = output::aligned(&lines(&whole));

        output::checked(command, self.output.json, &whole, &text, interrupted.as_ref())
    }
}

fn lines(whole: &StateReport) -> Vec<(&'static str, String)> {
    let report = &whole.report;
    let set_up = &report.set_up;
    let each = &report.per_block;
    let size = |bytes: f64| output::bytes(bytes as u64);
    let known = |bytes: Option<f64>| bytes.map_or("unknown".to_owned(), size);
    let imported = if set_up.reused {
        "found".to_owned()
    } else {
        format!(
            "imported in {:.1} s, {} accounts/s",
            set_up.import_s,
            grouped(set_up.accounts_per_s as u64)
        )
    };
    let mut lines = vec![
        ("load", format!("{}, {}", report.load, report.distribution)),
        (
            "state",
            format!(
                "{} accounts and {} slots {imported}; {}",
                grouped(report.accounts),
                grouped(report.slots),
                output::bytes(set_up.store_bytes)
            ),
        ),
        ("", String::new()),
        (
            "blocks",
            format!(
                "{} of {:.0} accounts and {:.0} slots",
                report.blocks, each.accounts, each.slots
            ),
        ),
        ("block", spread(&report.block_latency_ms)),
        ("reads", spread(&report.read_latency_ms)),
        ("commit", spread(&report.commit_latency_ms)),
        ("sync", spread(&report.sync_latency_ms)),
        (
            "lookups",
            format!(
                "{:.0} a block, {:.1} page reads, {:.1} pages in the cache; {} from the device",
                each.lookups,
                each.page_reads,
                each.cache_hits,
                known(each.read_bytes)
            ),
        ),
        (
            "written",
            format!(
                "{:.0} entries and nodes of {} a block; {} to the device",
                each.updates,
                size(each.update_bytes),
                known(each.write_bytes)
            ),
        ),
    ];

    if 0.0 < each.wiped_slots {
        lines.push((
            "deleted",
            format!("{:.1} slots a block with their contract", each.wiped_slots),
        ));
    }
    if let Some(peak) = report.rss_peak_bytes {
        lines.push(("resident", format!("{} at most", output::bytes(peak))));
    }
    if let Some(history) = &report.history_bytes {
        lines.push((
            "history",
            format!(
                "{:.1} bytes for each of {} changed nodes; values {:.2} times those written",
                history.bytes_per_node,
                grouped(history.nodes),
                history.over_values
            ),
        ));
    }
    lines.extend(report.proofs.as_ref().map(|proofs| ("proof at the tip", proof(proofs))));
    lines.extend(report.older_proofs.as_ref().map(|proofs| ("proof below", proof(proofs))));
    if let Some(reorg) = &report.reorg {
        lines.push((
            "reorg",
            format!(
                "{} blocks in {:.1} ms, {:.2} times their commits",
                reorg.blocks, reorg.wall_ms, reorg.over_apply
            ),
        ));
    }
    lines.extend(floors(whole));
    if let Some(verified) = &report.verified {
        lines.push((
            "verified",
            format!("{} nodes in {:.1} s", grouped(verified.nodes), verified.wall_s),
        ));
    }
    lines.push(("state root", report.state_root.clone()));

    lines
}

/// Yardsticks of the blocks.
fn floors(whole: &StateReport) -> Vec<(&'static str, String)> {
    let report = &whole.report;
    let bare = &report.bare;
    let mut lines = vec![("", String::new())];
    if let Some(floor) = &report.keccak_floor {
        lines.push((
            "Keccak floor",
            format!(
                "{:.2} ms on {} threads, {:.2} on one, {:.2} one by one, for {:.0} account nodes, \
                 {:.0} storage nodes and {:.0} keys; a commit takes {:.2} times as long",
                floor.all_threads_ms,
                floor.threads,
                floor.one_thread_ms,
                floor.one_by_one_ms,
                floor.account_nodes,
                floor.storage_nodes,
                floor.keys,
                report.over_floor.unwrap_or_default()
            ),
        ));
    }
    lines.extend([
        (
            "bare host",
            format!(
                "append of {} with fdatasync {}; a sync takes {:.2} times as long",
                output::bytes(bare.append_bytes),
                spread(&bare.append_sync_ms),
                report.sync_over_bare
            ),
        ),
        ("", format!("idle timer late by {}", spread(&bare.idle_late_ms))),
    ]);
    if let Some(device) = &whole.device {
        lines.push((
            "device",
            format!(
                "{} random reads/s, so {:.2} ms for the page reads of a block",
                grouped(device.yardstick.read_iops as u64),
                device.block_reads_ms
            ),
        ));
    }
    lines
}

fn proof(report: &ProofReport) -> String {
    let us = &report.latency_us;
    format!(
        "p50 {:.0} us, p99 {:.0}, longest {:.0}, from height {}",
        us.p50, us.p99, us.max, report.lowest_height
    )
}
