//! A memory budget: how write buffers, filters and indexes share it.
//!
//! **Write buffers** get an eighth of the budget at most, and the weight of a full one follows from it
//! ([`write_buffer_weight`]).
//!
//! **Indexes** take what they need. While a run is written, both forms of its index may be built, and then
//! one is encoded; [`index_bytes_planned`] is what is set aside for that.
//!
//! **Filters** share the rest. A lookup reads in vain as often as the false-positive rates of all runs
//! say together; for a given sum of filter bytes that sum is smallest if the rate of each run is in
//! proportion to its entries (Dayan, Athanassoulis and Idreos, *Monkey*, 2017). So there is one number for
//! the table, its *rate per entry*. It is chosen when a merge begins, as the smallest for which this fits:
//! filters of that rate for all runs there are; beside them that of one run with all entries, which is what
//! a merge into the last level comes to; and that of one run with all entries above the last level, for the
//! other merges. The merge gets a filter of that rate. Where filters made earlier, when the table was smaller,
//! stand in the way, the ones that are the most too large are halved ([`Filter::halve`]), which costs one
//! pass over them and no I/O; in their files they stay as they were.
//!
//! **Invariant.** What a merge is given is never more than what the runs there are, and the outputs of merges
//! under way, leave free when it begins; and nothing but the beginning of a merge ever adds to what is
//! held. So the sum stays within the budget at all times, not only in the plan.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::config::{BUFFER_WEIGHTS_HALVES, MEMORY_BUDGET_MIN, write_buffer_weight};
use crate::filter::{Filter, FilterAllocation, FilterBuilder};
use crate::index::IndexKind;
use crate::run::Run;

/// The total false-positive rate below which more memory gains nothing worth having.
const TOTAL_FPR_MIN: f64 = 1e-3;

/// Steps in which the rate per entry is found, each of which halves the error of its logarithm.
const RATE_STEPS: u32 = 18;

/// What a budget leaves for filters and indexes.
fn filters_and_indexes(budget: u64) -> u64 {
    budget - write_buffer_weight(budget) * BUFFER_WEIGHTS_HALVES / 2
}

/// The least budget for a table whose indexes take so many bytes: their successors, while a merge writes
/// them, take several times as much, and filters are to have some room.
pub(crate) fn budget_min(index_bytes: u64) -> u64 {
    MEMORY_BUDGET_MIN.max(index_bytes * 8)
}

/// Memory for building the index of a run of so many key pages, from runs whose indexes have so many bytes.
///
/// Evenly spread keys take 1.6 bytes per page in the compact form and 4 in the ordinary one; vectors
/// grow by a quarter, and the encoded index stands beside the index for a moment. Other keys take what they
/// took before.
fn index_bytes_planned(kind: IndexKind, key_pages: u64, input_bytes: u64) -> u64 {
    let (bytes_per_page, per_input_byte) = match kind {
        IndexKind::Compact => (5, 3),
        IndexKind::Auto => (8, 4),
        IndexKind::Ordinary => (10, 3),
    };
    1024 + (key_pages * bytes_per_page).max(input_bytes * per_input_byte)
}

/// Memory of a filter beside its blocks.
const FILTER_OVERHEAD_BYTES: u64 = size_of::<FilterBuilder>() as u64 + 64;

fn filter_bytes(entries: u64, allocation: FilterAllocation) -> u64 {
    Filter::blocks_for(entries, allocation) * 64 + FILTER_OVERHEAD_BYTES
}

/// Memory of the filter of a run of so many entries in a table of a given rate per entry.
fn filter_bytes_at(rate_per_entry: f64, entries: u64) -> u64 {
    filter_bytes(entries, FilterAllocation::for_rate(rate_per_entry * entries as f64))
}

/// What a merge will hold, as far as a budget goes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planned {
    /// Entries of its output at the most.
    pub(crate) entries: u64,
    /// Key pages of its output, about.
    pub(crate) key_pages: u64,
    /// Memory of the indexes of its inputs.
    pub(crate) input_index_bytes: u64,
}

impl Planned {
    /// Adds a run that is merged.
    pub(crate) fn add_run(&mut self, run: &Run) {
        self.entries += run.meta().entries;
        self.key_pages += u64::from(run.meta().key_pages);
        self.input_index_bytes += run.memory_bytes().1 as u64;
    }

    /// Memory for building filter and index of the output.
    pub(crate) fn bytes(&self, filter: Option<FilterAllocation>, index: IndexKind) -> u64 {
        let filter = filter.map_or(0, |allocation| filter_bytes(self.entries, allocation));
        filter + self.index_bytes(index)
    }

    fn index_bytes(&self, index: IndexKind) -> u64 {
        index_bytes_planned(index, self.key_pages, self.input_index_bytes)
    }
}

/// What a table holds in memory when a merge begins, beside its write buffers.
#[derive(Debug, Default)]
pub(crate) struct Held {
    runs: Vec<Arc<Run>>,
    /// The numbers of these.
    numbers: BTreeSet<u64>,
    /// Filters and indexes that merges under way are building, as planned.
    output_bytes: u64,
}

impl Held {
    /// Adds a run that readers look into.
    pub(crate) fn add_run(&mut self, run: &Arc<Run>) {
        // A union may have one twice.
        if self.numbers.insert(run.number()) {
            self.runs.push(Arc::clone(run));
        }
    }

    /// Adds the output of a merge under way.
    pub(crate) fn add_output(&mut self, planned_bytes: u64) {
        self.output_bytes += planned_bytes;
    }

    fn bytes(&self) -> u64 {
        let memory = |run: &Arc<Run>| run.memory_bytes().0 + run.memory_bytes().1;
        self.runs.iter().map(memory).sum::<usize>() as u64 + self.output_bytes
    }

    /// The filter of the run that a merge of these will write, with room made for it.
    pub(crate) fn make_room(
        &self,
        budget: u64,
        output: Planned,
        index: IndexKind,
    ) -> FilterAllocation {
        let room = filters_and_indexes(budget);
        let rate = self.rate_per_entry(room, output, index);
        let wanted = filter_bytes_at(rate, output.entries);
        let room = room.saturating_sub(output.index_bytes(index));
        self.halve_filters(rate, room.saturating_sub(wanted));
        let free = room.saturating_sub(self.bytes());
        if wanted <= free {
            return FilterAllocation::for_rate(rate * output.entries as f64);
        }
        let blocks = free.saturating_sub(FILTER_OVERHEAD_BYTES) / 64;
        FilterAllocation::for_bits(blocks as f64 * 512.0 / output.entries.max(1) as f64)
    }

    /// The smallest rate per entry whose filters fit.
    fn rate_per_entry(&self, room: u64, output: Planned, index: IndexKind) -> f64 {
        let sizes: Vec<u64> = self.runs.iter().map(|run| run.meta().entries).collect();
        let entries = sizes.iter().sum::<u64>().max(output.entries);
        let above_last = entries - sizes.iter().max().copied().unwrap_or(0).min(entries);
        let mut whole = Planned { entries, ..Planned::default() };
        for run in &self.runs {
            whole.key_pages += u64::from(run.meta().key_pages);
            whole.input_index_bytes += run.memory_bytes().1 as u64;
        }
        let room = room.saturating_sub(whole.input_index_bytes);
        let fits = |rate: f64| {
            let bytes = |entries: u64| filter_bytes_at(rate, entries);
            let there: u64 = sizes.iter().map(|&entries| bytes(entries)).sum();
            let begun = self.output_bytes + bytes(output.entries) + output.index_bytes(index);
            let to_come = bytes(entries) + bytes(above_last) + whole.index_bytes(index);
            there + begun.max(to_come) <= room
        };
        let least = TOTAL_FPR_MIN / entries.max(1) as f64;
        if fits(least) {
            return least;
        }
        // With a rate of 1 per entry nobody has a filter.
        let (mut low, mut high) = (least.ln(), 0.0);
        for _ in 0..RATE_STEPS {
            let middle = (low + high) / 2.0;
            if fits(f64::exp(middle)) {
                high = middle;
            } else {
                low = middle;
            }
        }
        f64::exp(high)
    }

    /// Halves filters, those that are the most too large first, until all is within `bytes_max` or no filter
    /// is larger than the rate per entry asks for.
    fn halve_filters(&self, rate_per_entry: f64, bytes_max: u64) {
        let mut held = self.bytes();
        while held > bytes_max {
            let excess = |run: &&Arc<Run>| {
                run.memory_bytes().0 as f64
                    / filter_bytes_at(rate_per_entry, run.meta().entries) as f64
            };
            let too_large =
                self.runs.iter().filter(|run| run.filter().can_be_halved() && excess(run) > 1.0);
            let largest = too_large.max_by(|a, b| excess(a).total_cmp(&excess(b)));
            let Some(run) = largest else { break };
            held = held.saturating_sub(run.halve_filter() as u64);
        }
    }
}
