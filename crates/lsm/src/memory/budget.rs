//! A memory budget: how memtables, filters and indexes share it.
//!
//! **Memtables** get an eighth of the budget at most, or a third if only lookups of keys that
//! are there count; the weight of a full one follows from it ([`write_buffer_weight`]).
//!
//! **Indexes** take what they need. While a run is written, both forms of its index may be built,
//! and then one is encoded; [`index_bytes_planned`] is what is set aside for that.
//!
//! **Filters** share the rest. A lookup reads in vain as often as the false-positive rates of all
//! runs say together; for a given sum of filter bytes that sum is smallest if the rate of each run
//! is in proportion to its members, which are its entries, and prefixes of their keys if the filter
//! holds any (Dayan, Athanassoulis and Idreos, *Monkey*, 2017). So there is
//! one number for the table, its *rate per member*. It is chosen when a merge begins, as the
//! smallest for which this fits: filters of that rate for all runs there are; beside them that of
//! one run with all entries, which is what a merge into the last level comes to; and that of one
//! run with all entries above the last level, for the other merges. The merge gets a filter of that
//! rate. Where filters made earlier, when the table was smaller, stand in the way, the ones that
//! are the most too large are reduced ([`Filter::keep`]), which costs one pass over them and no
//! I/O; in their files they stay as they were.
//!
//! **A table that is only read** needs no room for any of that. When a snapshot is opened, the
//! filters get all that is left of the budget, folded as little as that allows; they are folded
//! further, in memory, when the first update comes. Memory is shared out ([`share_out`]) where it
//! saves most lookups per byte, as a [`MemoryGoal`] counts them: a filter says no to all absent
//! keys, and to those present keys that an older run has. So the oldest run's filter is of no use
//! for keys that are present. Where a page cache takes what is left, no filter gets a byte that
//! would save more as a part of a cached page. Slices ([`crate::run::slices`]) count as one run,
//! since a lookup asks the filter of one of them.
//!
//! **Pages** that lookups read ([`page_cache`](crate::run::page_cache)) take the bytes that
//! nothing else needs: in a table that is only read all that is left, else what is left beside full
//! write buffers and the merges under way. When one more begins they are told to take less first.
//!
//! **Invariant.** What a merge is given is never more than what the runs there are, and the outputs
//! of merges under way, leave free when it begins; and nothing but the beginning of a merge ever
//! adds to what is held. So the sum stays within the budget at all times, not only in the plan.

use std::collections::BTreeSet;
use std::sync::Arc;

use terrane_io::Access;

use crate::block::index::{Index, IndexKind};
use crate::block::page::PAGE_SIZE;
use crate::config::{
    BUFFER_WEIGHTS, MEMORY_BUDGET_MAX, MEMORY_BUDGET_MIN, MemoryGoal, write_buffer_weight,
};
use crate::error::{Error, Result};
use crate::filter::bloom::BloomSize;
use crate::filter::filter::{Filter, FilterAllocation, FilterBuilder, FilterPortion, FilterShape};
use crate::run::run::Run;
use crate::run::slices::follows;

/// The total false-positive rate below which more memory gains nothing worth having.
const TOTAL_FPR_MIN: f64 = 1e-3;

/// Steps in which the rate per member is found, each of which halves the error of its logarithm.
const RATE_STEPS: u32 = 18;

/// Returns the part of a budget for memtables.
fn buffers(budget: u64, goal: MemoryGoal) -> u64 {
    let bytes = write_buffer_weight(budget, goal) * BUFFER_WEIGHTS;
    debug_assert!(bytes <= budget, "memtables leave something for the rest");
    bytes
}

/// Returns the part of a budget for filters and indexes.
fn filters_and_indexes(budget: u64, goal: MemoryGoal) -> u64 {
    budget - buffers(budget, goal)
}

/// The least budget for a table whose indexes take this many bytes: their successors, while a merge
/// writes them, take several times as much, and filters are to have some room beside full write
/// buffers.
pub(crate) fn budget_min(index_bytes: u64, goal: MemoryGoal) -> u64 {
    let per_byte = match goal {
        MemoryGoal::Hit => 11,
        MemoryGoal::Miss | MemoryGoal::Balanced => 8,
    };
    MEMORY_BUDGET_MIN.max(index_bytes * per_byte)
}

/// Refuses a memory budget of less than `least` bytes, which are needed for `purpose`.
///
/// # Errors
/// [`Error::InvalidConfig`].
pub(crate) fn check_budget(budget: u64, least: u64, purpose: &str) -> Result<()> {
    if budget >= least {
        return Ok(());
    }
    let value = format!("bytes: {budget}");
    let allowed = format!("{least} to {MEMORY_BUDGET_MAX}, {purpose}");
    Err(Error::InvalidConfig { option: "memory_budget", value, allowed })
}

/// Memory for building the index of a run of this many key pages, from runs whose indexes have so
/// many bytes.
///
/// Evenly spread keys take 1.6 bytes per page in the compact form and 4 in the ordinary one;
/// vectors grow by a quarter, and the encoded index stands beside the index for a moment. Other
/// keys take what they took before.
fn index_bytes_planned(kind: IndexKind, key_pages: u64, input_bytes: u64) -> u64 {
    let (bytes_per_page, per_input_byte) = match kind {
        IndexKind::Compact => (5, 3),
        IndexKind::Auto => (8, 4),
        IndexKind::Ordinary => (10, 3),
    };
    1024 + (key_pages * bytes_per_page).max(input_bytes * per_input_byte)
}

/// Memory of a run's index that grows with its pages.
fn index_bytes_of(run: &Run) -> u64 {
    run.memory_bytes().1.saturating_sub(size_of::<Index>()) as u64
}

/// Members of a run's filter: its entries, and prefixes.
fn members_of(run: &Run) -> u64 {
    run.meta().filter_members(run.meta().prefix_bytes)
}

/// Memory of a filter beside its blocks.
const FILTER_OVERHEAD_BYTES: u64 = 64 + {
    let filter = size_of::<Filter>();
    let builder = size_of::<FilterBuilder>();
    if filter > builder { filter as u64 } else { builder as u64 }
};

fn filter_bytes(members: u64, allocation: FilterAllocation) -> u64 {
    allocation.memory_bytes(members) + FILTER_OVERHEAD_BYTES
}

/// Memory of the filter of a run of this many members in a table of a given rate per member.
fn filter_bytes_at(rate_per_member: f64, members: u64) -> u64 {
    let size = BloomSize::for_rate(rate_per_member * members as f64);
    filter_bytes(members, FilterAllocation::Bloom(size))
}

/// A filter that takes part in sharing out memory.
#[derive(Debug, Clone, Copy)]
struct FilterCandidate {
    /// Entries of the run, and the prefixes that the filter holds.
    members: u64,
    shape: FilterShape,
    /// The share of all lookups that ask it about a key that its run does not have.
    weight: f64,
    /// Largest part of it that can be read or kept.
    most: FilterPortion,
}

/// A part of a filter that could be kept: its bytes, and the lookups that then read in vain.
#[derive(Debug, Clone, Copy)]
struct FilterOption {
    kept: FilterPortion,
    bytes: u64,
    reads: f64,
}

impl FilterOption {
    /// Reads that this part saves for each byte that it takes more than another.
    fn gain(&self, less: &Self) -> f64 {
        (less.reads - self.reads) / self.bytes.saturating_sub(less.bytes).max(1) as f64
    }
}

impl FilterCandidate {
    fn part(&self, kept: FilterPortion) -> FilterOption {
        let bytes = self.shape.memory_bytes(kept) + FILTER_OVERHEAD_BYTES;
        FilterOption { kept, bytes, reads: self.shape.rate(kept, self.members) * self.weight }
    }

    /// The parts worth having, from none on, each of which saves less per byte than the one before.
    fn parts(&self) -> Vec<FilterOption> {
        let mut parts = vec![self.part(FilterPortion::Nothing)];
        let larger = self.shape.uniform_parts().into_iter().chain([self.most]);
        for kept in
            larger.filter(|&kept| kept != FilterPortion::Nothing && self.most.leads_to(kept))
        {
            let part = self.part(kept);
            // Gains must fall from part to part, so one that gains less than the next is passed
            // over.
            while let [.., before, last] = parts.as_slice()
                && part.gain(last) >= last.gain(before)
            {
                parts.pop();
            }
            if parts.last().is_some_and(|last| part.reads < last.reads) {
                parts.push(part);
            }
        }

        debug_assert!(!parts.is_empty(), "nothing is a part, too");
        debug_assert!(parts.is_sorted_by(|less, more| more.reads < less.reads));
        parts
    }
}

/// How much of each filter to have in `room` bytes so that fewest lookups read in vain, at no place
/// for less than `gain_min` reads saved per byte.
fn share_out(candidates: &[FilterCandidate], room: u64, gain_min: f64) -> Vec<FilterPortion> {
    let parts: Vec<Vec<FilterOption>> = candidates.iter().map(FilterCandidate::parts).collect();
    let mut steps = Vec::new();
    for (at, parts) in parts.iter().enumerate() {
        steps.extend((1..parts.len()).map(|step| (parts[step].gain(&parts[step - 1]), at, step)));
    }

    // The steps of one filter stay in their order, because each saves less than the one before.
    steps.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
    let mut chosen = vec![0; candidates.len()];
    let mut shares = vec![FilterPortion::Nothing; candidates.len()];
    // Something stands for each filter even if nothing of it is kept.
    let least = parts.iter().map(|parts| parts[0].bytes).sum();

    let mut left = room.saturating_sub(least);
    for (gain, at, step) in steps {
        // Steps of a filter are taken in turn; below `gain_min` the bytes serve better as pages.
        if chosen[at] + 1 != step || gain <= 0.0 || gain < gain_min {
            continue;
        }

        let less = parts[at][step - 1];
        let more = parts[at][step];
        if let Some(rest) = left.checked_sub(more.bytes.saturating_sub(less.bytes)) {
            left = rest;
            (chosen[at], shares[at]) = (step, more.kept);
        } else if less.kept != FilterPortion::Nothing && more.kept.is_uniform() {
            let shape = candidates[at].shape;
            // The next part does not fit as a whole, so a mixture uses up what is left.
            let bytes = shape.memory_bytes(less.kept);
            shares[at] = shape.between(less.kept, more.kept, bytes + left);
            left -= shape.memory_bytes(shares[at]) - bytes;
        }
    }

    debug_assert_eq!(shares.len(), candidates.len(), "each filter has a share");
    debug_assert!(left <= room);
    shares
}

/// Memory that a compaction will hold, as far as a budget counts it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Planned {
    /// Entries of its output at the most.
    pub(crate) entries: u64,
    /// The same with the prefixes that its filter will hold.
    pub(crate) members: u64,
    /// Key pages of its output, about.
    pub(crate) key_pages: u64,
    /// Memory of the indexes of its inputs.
    pub(crate) input_index_bytes: u64,
}

impl Planned {
    /// Adds a run that is merged into one with prefixes of so many bytes.
    pub(crate) fn add_run(&mut self, run: &Run, prefix_bytes: u8) {
        self.entries += run.meta().entries;
        self.members += run.meta().filter_members(prefix_bytes);
        self.key_pages += run.meta().key_pages_uncompressed();
        self.input_index_bytes += index_bytes_of(run);
    }

    /// Memory for building filter and index of the output.
    pub(crate) fn bytes(&self, filter: Option<FilterAllocation>, index: IndexKind) -> u64 {
        let filter = filter.map_or(0, |allocation| filter_bytes(self.members, allocation));
        filter + self.index_bytes(index)
    }

    fn index_bytes(&self, index: IndexKind) -> u64 {
        index_bytes_planned(index, self.key_pages, self.input_index_bytes)
    }
}

/// Slices, or one run: a lookup asks one of their filters.
#[derive(Debug, Clone, Copy)]
struct Group {
    runs: usize,
    /// Entries of all of them.
    entries: u64,
    /// Entries of all of them, and the prefixes in their filters.
    members: u64,
}

/// Memory of a table when a compaction begins, without its memtables.
#[derive(Debug, Default)]
pub(crate) struct TableMemory {
    runs: Vec<Arc<Run>>,
    /// The runs, in their order.
    groups: Vec<Group>,
    /// Numbers of the runs.
    numbers: BTreeSet<u64>,
    /// Filters and indexes that merges under way are building, as planned.
    output_bytes: u64,
}

impl TableMemory {
    /// Adds a run that readers look into.
    pub(crate) fn add_run(&mut self, run: &Arc<Run>) {
        // A union may have one twice.
        if self.numbers.insert(run.number()) {
            let entries = run.meta().entries;
            let members = members_of(run);
            match self.groups.last_mut() {
                Some(group) if self.runs.last().is_some_and(|last| follows(last, run)) => {
                    group.runs += 1;
                    group.entries += entries;
                    group.members += members;
                }
                _ => self.groups.push(Group { runs: 1, entries, members }),
            }
            self.runs.push(Arc::clone(run));
        }
        debug_assert_eq!(self.runs.len(), self.numbers.len(), "each run counts once");
    }

    /// Adds the output of a merge under way.
    pub(crate) fn add_output(&mut self, planned_bytes: u64) {
        self.output_bytes += planned_bytes;
    }

    fn bytes(&self) -> u64 {
        self.filter_bytes() + self.index_bytes() + self.output_bytes
    }

    fn filter_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.memory_bytes().0 as u64).sum()
    }

    /// Memory of the indexes of all runs.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.memory_bytes().1 as u64).sum()
    }

    /// Each run with the place of its group.
    fn grouped(&self) -> impl Iterator<Item = (&Arc<Run>, usize)> {
        let groups = self.groups.iter().enumerate();
        let groups = groups.flat_map(|(at, group)| std::iter::repeat_n(at, group.runs));
        self.runs.iter().zip(groups)
    }

    /// Memory of what stands for the filters of all runs if nothing of them is there: a block each.
    pub(crate) fn filter_bytes_min(&self) -> u64 {
        self.runs.len() as u64 * (64 + FILTER_OVERHEAD_BYTES)
    }

    /// The runs whose filters are still to be read, and that all of them are wanted.
    pub(crate) fn unread_filters(&self) -> Vec<(Arc<Run>, FilterPortion)> {
        let unread = self.runs.iter().filter(|run| run.is_unread());
        unread.map(|run| (Arc::clone(run), run.meta().filter_shape().whole())).collect()
    }

    /// How much of the filters of all runs, which must have been added newest first, to have in
    /// `room` bytes. Of those that can be read it may be more than there is in memory.
    pub(crate) fn filters_for(
        &self,
        goal: MemoryGoal,
        room: u64,
        can_be_read: impl Fn(&Run) -> bool,
    ) -> Vec<(Arc<Run>, FilterPortion)> {
        let entries: u64 = self.runs.iter().map(|run| run.meta().entries).sum();
        let hits = match goal {
            MemoryGoal::Hit => 1.0,
            MemoryGoal::Miss => 0.0,
            MemoryGoal::Balanced => 0.5,
        };

        // A present key asks the filters of newer runs in vain, in proportion to the older entries.
        // Of slices it asks one, in proportion to its entries.
        let all = entries.max(1) as f64;
        let mut older = entries;
        let mut groups_before = 0;
        let candidates: Vec<FilterCandidate> = self
            .grouped()
            .map(|(run, at)| {
                let group = self.groups[at];
                if at == groups_before {
                    older -= group.entries;
                    groups_before += 1;
                }
                let shape = run.meta().filter_shape();
                let share = run.meta().entries as f64 / group.entries.max(1) as f64;
                FilterCandidate {
                    members: members_of(run),
                    shape,
                    weight: (1.0 - hits + hits * older as f64 / all) * share,
                    most: if can_be_read(run) { shape.whole() } else { run.filter().kept() },
                }
            })
            .collect();

        // A byte of a page in memory saves as much as its share of the pages that lookups read past
        // the cache.
        let is_direct = |run: &&Arc<Run>| run.access() == Access::Direct;
        let pages = |run: &Arc<Run>| u64::from(run.meta().data_pages) * PAGE_SIZE as u64;
        let direct_bytes: u64 = self.runs.iter().filter(is_direct).map(pages).sum();
        let gain_min = if direct_bytes > 0 { hits / direct_bytes as f64 } else { 0.0 };
        let shares = share_out(&candidates, room, gain_min);

        debug_assert_eq!(shares.len(), self.runs.len(), "each run has a share");
        self.runs.iter().cloned().zip(shares).collect()
    }

    /// Bytes of a budget for a page cache: those that nothing else needs until the next compaction
    /// begins. A table that is updated needs room for full memtables and for what merges have been
    /// planned to build.
    pub(crate) fn left_for_pages(
        &self,
        (budget, goal): (u64, MemoryGoal),
        unfiltered_bytes: u64,
        is_updated: bool,
    ) -> u64 {
        let merges = self.index_bytes() + self.output_bytes;
        let planned = if is_updated { buffers(budget, goal) + merges } else { 0 };
        budget.saturating_sub(unfiltered_bytes.max(planned) + self.filter_bytes())
    }

    /// Bytes of a budget beside filters, indexes, and what merges are planned to build.
    pub(crate) fn beside_runs(&self, budget: u64) -> u64 {
        budget.saturating_sub(self.bytes())
    }

    /// Numbers of the runs.
    pub(crate) fn run_numbers(&self) -> Vec<u64> {
        self.numbers.iter().copied().collect()
    }

    /// Folds filters so that there is room for a full memtable and for the outputs of merges.
    pub(crate) fn make_room_to_write(&self, budget: u64, goal: MemoryGoal) {
        let taken = self.index_bytes() + self.output_bytes;
        let room = filters_and_indexes(budget, goal).saturating_sub(taken);
        if self.filter_bytes() <= room {
            return;
        }
        // Making room must not wait for the disk, so no filter is read.
        for (run, part) in self.filters_for(goal, room, |_| false) {
            run.reduce_filter(part);
        }
    }

    /// The filter of the run that a merge of these will write, with room made for it. The last
    /// level needs none if only lookups of keys that are there count.
    pub(crate) fn make_room(
        &self,
        (budget, goal): (u64, MemoryGoal),
        output: Planned,
        index: IndexKind,
        is_last: bool,
    ) -> FilterAllocation {
        let room = filters_and_indexes(budget, goal);
        let rate = self.rate_per_member(room, goal, output, index);
        let needs_filter = !is_last || goal != MemoryGoal::Hit;
        let wanted = if needs_filter { filter_bytes_at(rate, output.members) } else { 0 };

        // Room is made before the filter is promised, so the budget holds at every moment.
        let room = room.saturating_sub(output.index_bytes(index));
        self.fold_filters(goal, rate, room.saturating_sub(wanted));
        let free = room.saturating_sub(self.bytes());

        if !needs_filter {
            return FilterAllocation::LEAST;
        }

        if wanted <= free {
            let size = BloomSize::for_rate(rate * output.members as f64);
            return FilterAllocation::Bloom(size);
        }

        // Too little is free even so: the filter takes what there is, in blocks of 64 bytes.
        let blocks = free.saturating_sub(FILTER_OVERHEAD_BYTES) / 64;
        let bits = blocks as f64 * 512.0 / output.members.max(1) as f64;
        FilterAllocation::Bloom(BloomSize::for_bits(bits))
    }

    /// The smallest rate per member whose filters fit.
    fn rate_per_member(
        &self,
        room: u64,
        goal: MemoryGoal,
        output: Planned,
        index: IndexKind,
    ) -> f64 {
        let mut sizes: Vec<u64> = self.groups.iter().map(|group| group.members).collect();
        sizes.sort_unstable();
        let members = sizes.iter().sum::<u64>().max(output.members);
        let above_last = members - sizes.last().copied().unwrap_or(0).min(members);
        let without_filter = usize::from(goal == MemoryGoal::Hit).min(sizes.len());
        let filtered = &sizes[..sizes.len() - without_filter];

        // The merge into the last level will come to a run of all entries, so the plan is made for
        // that run.
        let mut whole = Planned::default();
        for run in &self.runs {
            whole.key_pages += u64::from(run.meta().key_pages);
            whole.input_index_bytes += index_bytes_of(run);
        }

        let room = room.saturating_sub(whole.input_index_bytes);
        let fits = |rate: f64| {
            let bytes = |members: u64| filter_bytes_at(rate, members);
            let last = if goal == MemoryGoal::Hit { 0 } else { bytes(members) };
            let there: u64 = filtered.iter().map(|&members| bytes(members)).sum();
            let begun = self.output_bytes + bytes(output.members) + output.index_bytes(index);
            let to_come = last + bytes(above_last) + whole.index_bytes(index);
            there + begun.max(to_come) <= room
        };

        let least = TOTAL_FPR_MIN / members.max(1) as f64;
        if fits(least) {
            return least;
        }

        // With a rate of 1 per entry no run has a filter.
        let mut low = least.ln();
        let mut high = 0.0;
        // Throughout, `high` fits or nothing does.
        for _ in 0..RATE_STEPS {
            let middle = (low + high) / 2.0;
            if fits(f64::exp(middle)) {
                high = middle;
            } else {
                low = middle;
            }
        }

        debug_assert!(low <= high, "the search narrows");
        f64::exp(high)
    }

    /// Folds filters, those that are the most too large first, until all is within `bytes_max` or
    /// no filter is larger than the rate per member asks for. The largest run's always is if only
    /// lookups of keys that are there count.
    fn fold_filters(&self, goal: MemoryGoal, rate_per_member: f64, bytes_max: u64) {
        let mut held = self.bytes();
        let largest = self.groups.iter().enumerate().max_by_key(|(_, group)| group.members);
        let last = largest.map(|(at, _)| at);
        while held > bytes_max {
            let excess = |(run, at): &(&Arc<Run>, usize)| {
                if goal == MemoryGoal::Hit && Some(*at) == last {
                    return f64::INFINITY;
                }
                let group = self.groups[*at];
                // A slice's filter is as large as its share of one of all slices.
                let share = members_of(run) as f64 / group.members.max(1) as f64;
                run.memory_bytes().0 as f64
                    / (filter_bytes_at(rate_per_member, group.members) as f64 * share)
            };

            let smaller = self.grouped().filter_map(|run| Some((run, run.0.filter().smaller()?)));
            let too_large = smaller.filter(|(run, _)| excess(run) > 1.0);
            let largest = too_large.max_by(|a, b| excess(&a.0).total_cmp(&excess(&b.0)));
            let Some(((run, _), part)) = largest else { break };
            let freed = run.reduce_filter(part) as u64;
            held = held.saturating_sub(freed);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: memory goes where it saves most. Method: the shapes and budgets of ten million entries
    //! of 142 bytes, on paper; the filters behind the rates are measured in `filter`.

    use super::*;
    use crate::filter::bloom::{Bloom, Fold};
    use crate::filter::ribbon::RibbonShape;

    const ENTRIES: u64 = 10_000_000;
    /// Bytes of the index of such a table.
    const INDEX: u64 = 570_000;

    /// Levels of a size ratio of ten, the last of which has all but a share of the entries; filters
    /// of this many bits per entry on the last level and above it.
    fn levelled(above: f64, bits: (f64, f64), hits: f64) -> Vec<FilterCandidate> {
        let mut sizes = vec![(1.0 - above, bits.0)];

        // Nine tenths, nine hundredths and the rest of what is above the last level.
        for share in [0.9, 0.09, 0.01] {
            sizes.insert(0, (above * share, bits.1));
        }

        let mut older = 1.0;
        sizes
            .into_iter()
            .map(|(share, bits)| {
                older -= share;
                let entries = (share * ENTRIES as f64) as u64;
                let blocks = Bloom::blocks_for(entries, BloomSize::for_bits(bits));
                let shape = FilterShape::Bloom { blocks, probes: 6 };
                FilterCandidate {
                    members: entries,
                    shape,
                    weight: 1.0 - hits + hits * f64::round(older * 1e9) / 1e9,
                    most: shape.whole(),
                }
            })
            .collect()
    }

    /// Reads in vain of a present key and of an absent one, with memory of this many thousandths of
    /// all bytes.
    fn reads(candidates: &[FilterCandidate], hits: f64, thousandths: u64) -> (f64, f64) {
        let room = ENTRIES * 142 * thousandths / 1_000 - INDEX;
        let shares = share_out(candidates, room, hits / (ENTRIES as f64 * 146.0));
        let parts = candidates.iter().zip(&shares).map(|(candidate, &kept)| candidate.part(kept));
        assert!(parts.map(|part| part.bytes).sum::<u64>() <= room);
        let misses = candidates.iter().zip(&shares);
        let misses = misses.map(|(candidate, &kept)| candidate.shape.rate(kept, candidate.members));
        let misses: Vec<f64> = misses.collect();
        let upper: f64 = misses[..misses.len() - 1].iter().sum();
        (upper, misses.iter().sum())
    }

    /// Filters of eleven bits on the last level and of fourteen above it, with a tenth of the
    /// entries there.
    #[test]
    fn a_thousandth_of_the_bytes_suffices_for_keys_that_are_present() {
        let bits = (11.0, 14.0);
        let present =
            [1, 2, 10].map(|thousandths| reads(&levelled(0.1, bits, 1.0), 1.0, thousandths).0);
        assert!(present[0] <= 0.08 && present[1] <= 0.007 && present[2] <= 0.007, "{present:?}");
        let absent =
            [5, 10].map(|thousandths| reads(&levelled(0.1, bits, 0.5), 0.5, thousandths).1);
        assert!(absent[0] <= 0.17 && absent[1] <= 0.0145, "{absent:?}");
    }

    /// Case with a ribbon of twelve columns on the last level: absent keys cost a third, in all of
    /// the memory.
    #[test]
    fn a_ribbon_on_the_last_level_takes_memory_to_the_last_column() {
        let mut candidates = levelled(0.1, (11.0, 14.0), 0.5);
        let last = candidates.last_mut().unwrap();

        // 8192 entries take 133 blocks.
        let segments = last.members.div_ceil(8192) as u32;
        let blocks = u64::from(segments) * 133;
        let shape = RibbonShape { segments, columns: 12, directory_words: 2 * segments, blocks };
        last.shape = FilterShape::Ribbon(shape);
        last.most = last.shape.whole();
        let absent = [5, 10].map(|thousandths| reads(&candidates, 0.5, thousandths).1);
        assert!(absent[0] <= 0.07 && absent[1] <= 0.0076, "{absent:?}");

        let mut before = f64::INFINITY;
        for kilobytes in (4_000..16_000).step_by(100) {
            let shares = share_out(&candidates, kilobytes * 1_000, 0.0);
            let parts = candidates.iter().zip(&shares);
            let parts: Vec<FilterOption> =
                parts.map(|(candidate, &kept)| candidate.part(kept)).collect();
            let bytes: u64 = parts.iter().map(|part| part.bytes).sum();
            let reads: f64 = parts.iter().map(|part| part.reads).sum();

            // No more is left over than one more column of a segment takes, and of another filter a
            // few blocks.
            assert!(bytes <= kilobytes * 1_000 && reads <= before, "{kilobytes}: {bytes} {reads}");
            if shares != candidates.iter().map(|candidate| candidate.most).collect::<Vec<_>>() {
                assert!(bytes + 8_000 >= kilobytes * 1_000, "{kilobytes}: {bytes}");
            }

            before = reads;
        }
    }

    #[test]
    fn more_memory_never_makes_more_reads_and_fewer_entries_above_make_fewer() {
        for bits in [(11.0, 11.0), (11.0, 17.0), (16.0, 22.0)] {
            for hits in [0.0, 0.5, 1.0] {
                let mut before = f64::INFINITY;
                for thousandths in [1, 2, 3, 5, 8, 10, 20, 30] {
                    let candidates = levelled(0.1, bits, hits);
                    let (present, absent) = reads(&candidates, hits, thousandths);
                    let cost = hits * present + (1.0 - hits) * absent;
                    assert!(cost <= before + 1e-9, "{bits:?} {hits} {thousandths}: {cost}");
                    before = cost;
                }
            }

            let absent = |above: f64| reads(&levelled(above, bits, 0.5), 0.5, 5).1;
            assert!(absent(0.02) < absent(0.1), "{bits:?}");
        }
    }

    /// With no room no run has a filter; for pages that would save more no filter is kept.
    #[test]
    fn what_is_not_worth_its_memory_is_left_out() {
        let candidates = levelled(0.1, (11.0, 14.0), 0.5);
        let nothing = vec![FilterPortion::Nothing; candidates.len()];
        assert_eq!(share_out(&candidates, 0, 0.0), nothing);
        assert_eq!(share_out(&candidates, u64::MAX, 1.0), nothing);
        let all = share_out(&candidates, u64::MAX, 0.0);
        assert!(all.iter().all(|kept| *kept == FilterPortion::Blocks(Fold::WHOLE)), "{all:?}");
        let for_hits = share_out(&levelled(0.1, (11.0, 14.0), 1.0), u64::MAX, 0.0);
        assert_eq!(for_hits.last(), Some(&FilterPortion::Nothing));

        assert!(
            for_hits.iter().rev().skip(1).all(|kept| *kept == FilterPortion::Blocks(Fold::WHOLE))
        );

        // A filter in memory can only be folded further.
        let most = FilterPortion::Blocks(Fold::uniform(4));
        let folded = FilterCandidate { most, ..candidates[0] };
        assert_eq!(share_out(&[folded], u64::MAX, 0.0), [most]);
    }
}
