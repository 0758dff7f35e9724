//! Runs of a compacted chunk, and an index over them.
//!
//! The index divides the units of the chunk into ranges of equal length with four to eight runs
//! each on average, and has the number of the first run of each range. So the search for an address
//! loads a place of the index and two lines of runs, where runs are spread evenly. Where they are
//! close together it is a binary search of one range.
//!
//! Invariant: runs ascend, and do not overlap.
//!
//! Rejected: a binary search of the runs alone, which took a tenth of the operations of a block on
//! a store of 10 M values, because it loads a line of memory for nearly each of its 17 steps.

/// Adjacent records, in units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Start in the chunk as it was first written.
    pub(crate) unit: u32,
    /// Start in this file.
    pub(crate) stored: u32,
    pub(crate) units: u32,
}

/// Ascending runs with their index. See the [module](self).
#[derive(Debug)]
pub(crate) struct RunMap {
    runs: Box<[Run]>,
    /// Number of the runs that begin before each range, and behind it the number of all.
    firsts: Box<[u32]>,
    /// Logarithm of the length of a range, in units.
    shift: u32,
}

/// Least number of runs in a range, on average.
const RANGE_RUNS: usize = 4;

impl RunMap {
    pub(crate) fn new(runs: Vec<Run>) -> Self {
        debug_assert!(
            runs.windows(2).all(|pair| u64::from(pair[0].unit) + u64::from(pair[0].units)
                <= u64::from(pair[1].unit)),
            "runs ascend"
        );
        let last = runs.last().map_or(0, |run| run.unit);
        let ranges = (runs.len() / RANGE_RUNS).max(1);
        let shift = (0..u32::BITS).find(|shift| (last >> shift) as usize <= ranges);
        let shift = shift.expect("the last shift leaves one bit");

        let mut firsts = Vec::with_capacity((last >> shift) as usize + 2);
        for (number, run) in (0..).zip(&runs) {
            while firsts.len() <= (run.unit >> shift) as usize {
                firsts.push(number);
            }
        }
        firsts.push(runs.len() as u32);
        Self { runs: runs.into(), firsts: firsts.into(), shift }
    }

    pub(crate) fn as_slice(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the last run that begins at or before a unit.
    pub(crate) fn find(&self, unit: u32) -> Option<Run> {
        let range = (unit >> self.shift) as usize;
        let first =
            |range: usize| self.firsts.get(range).map_or(self.runs.len(), |at| *at as usize);
        let (from, to) = (first(range), first(range + 1));
        let number = from + self.runs[from..to].partition_point(|run| run.unit <= unit);
        self.runs[..number].last().copied()
    }
}

#[cfg(test)]
mod tests {
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;

    use super::*;

    /// The index finds what a search of all runs finds: of few runs and many, close and far apart.
    #[test]
    fn an_address_leads_to_the_run_before_it() {
        for_each_seed("an_address_leads_to_the_run", 60, |rng, _| {
            let count = [0, 1, 2, 5, 40, 3_000][rng.index(6)];
            let gap = [1, 9, 1_000, 1_400_000][rng.index(4)];
            let mut runs = Vec::new();
            let mut unit = rng.below(20) as u32;
            for _ in 0..count {
                // Now and then a run is far from the one before.
                let gap = if rng.chance(1, 50) { 100 * gap } else { gap };
                let Some(start) = unit.checked_add(rng.below(gap) as u32) else { break };
                // The map on the disk may have empty runs, too.
                let units = rng.below(6) as u32;
                let Some(end) = start.checked_add(units) else { break };
                runs.push(Run { unit: start, stored: 0, units });
                unit = end;
            }

            let map = RunMap::new(runs.clone());
            assert_eq!(map.as_slice(), runs);
            assert!(map.firsts.len() <= runs.len() / RANGE_RUNS + 3, "the index is small");
            let near =
                runs.iter().flat_map(|run| [run.unit.saturating_sub(1), run.unit, run.unit + 1]);
            let far = (0..200).map(|_| rng.below(u64::from(unit) + 100) as u32);
            for unit in near.chain(far).chain([0, u32::MAX]) {
                let number = runs.partition_point(|run| run.unit <= unit);
                assert_eq!(map.find(unit), runs[..number].last().copied(), "{unit} in {runs:?}");
            }
        });
    }
}
