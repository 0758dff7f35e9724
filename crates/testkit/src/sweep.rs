//! Sweeps: one workload, run again and again on simulated disks that crash or fail at each call.
//!
//! A workload takes a disk, does its work, and stops when the disk fails. [`Sweep`] runs it once
//! undisturbed to count the calls, then once for each call that it visits: with a crash at the call
//! ([`Sweep::crash`]) or with a fault at the call ([`Sweep::fault`]). The oracle of the test
//! judges each [`Image`] that the crash leaves; a workload under faults judges for itself. If
//! either panics, the sweep prints the seed, the call, and the loss or fault.
//!
//! ```
//! use terrane_io::{Access, Disk, OpenMode};
//! use terrane_testkit::sweep::{Loss, Sweep};
//!
//! // A file whose writer has synced it is whole after any crash.
//! let images = Sweep::whole(1).crash(
//!     |disk| {
//!         let file = disk.open("/file".as_ref(), OpenMode::CreateNew, Access::Buffered)?;
//!         file.write_at(b"bytes", 0)?;
//!         file.sync()?;
//!         disk.sync_dir("/".as_ref())
//!     },
//!     |crash| {
//!         crash.images(Loss::each(crash.call), |image| {
//!             let found = image.disk.read_raw("/file");
//!             assert!(crash.run.is_err() || found.as_deref() == Some(&b"bytes"[..]));
//!         })
//!     },
//! );
//! assert!(images >= 20, "{images}");
//! ```
//!
//! Under a plain `cargo test` a sweep visits one call of each `every` that follow one another; see
//! [`effort`](crate::effort).

use std::fmt::Debug;
use std::sync::Arc;
use std::thread;

use terrane_io::{Fault, FaultKind, FaultPlan, Repeat, SimDisk, Survival};

use crate::effort::{by_effort, sample, series, spread};
use crate::tally;

/// End of a run on a simulated disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Power goes; so much of the unsynced operations survives.
    Power(Survival),
    /// The process dies: its writes are seen, but not durable yet.
    Process,
}

impl Loss {
    /// Returns the disk that the next process finds.
    #[must_use]
    pub fn apply(self, disk: &SimDisk) -> Arc<SimDisk> {
        match self {
            Self::Power(survival) => disk.after_crash(survival),
            Self::Process => disk.process_kill(),
        }
    }

    /// One loss of each kind, drawn from `call`; the death of the process is the last.
    #[must_use]
    pub fn each(call: u64) -> [Self; 6] {
        [
            Self::Power(Survival::Nothing),
            Self::Power(Survival::Everything),
            Self::Power(Survival::Random(call)),
            Self::Power(Survival::Torn(call)),
            Self::Power(Survival::Prefix(call % 7)),
            Self::Process,
        ]
    }
}

/// Prints where a test was when a check of it panics.
pub struct Note<'a>(pub &'a dyn Debug);

impl Drop for Note<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("at {:?}", self.0);
        }
    }
}

/// Run that ended in a crash.
pub struct Crash<'a, T> {
    /// Call at which the disk crashed, counted from the start of the run.
    pub call: u64,
    /// The crashed disk.
    pub disk: &'a Arc<SimDisk>,
    /// Result of the workload.
    pub run: &'a T,
    seed: u64,
}

/// Disk that a crash has left.
pub struct Image {
    /// Loss that made this image of the crashed disk.
    pub loss: Loss,
    /// Number of the loss among those of the crash.
    pub number: usize,
    /// The disk, with nothing open.
    pub disk: Arc<SimDisk>,
}

impl<T> Crash<'_, T> {
    /// Shows `oracle` the image that each loss leaves; returns how many images.
    pub fn images(
        &self,
        losses: impl IntoIterator<Item = Loss>,
        mut oracle: impl FnMut(&Image),
    ) -> u64 {
        let mut images = 0;
        for (number, loss) in losses.into_iter().enumerate() {
            let _note = Note(&(self.seed, self.call, loss));
            oracle(&Image { loss, number, disk: loss.apply(self.disk) });
            images += 1;
        }

        images
    }

    /// [`images`](Self::images) after losses of power with these survivals.
    pub fn power_losses(
        &self,
        survivals: impl IntoIterator<Item = Survival>,
        oracle: impl FnMut(&Image),
    ) -> u64 {
        self.images(survivals.into_iter().map(Loss::Power), oracle)
    }
}

/// Sweep over the calls of a workload. See the [module](self).
#[derive(Debug, Clone)]
pub struct Sweep {
    seed: u64,
    every: u64,
    stride: u64,
    start: Option<Arc<SimDisk>>,
    first: u64,
    plan: FaultPlan,
}

impl Sweep {
    /// A sweep over all calls, whose runs begin on an empty disk of this seed.
    #[must_use]
    pub fn whole(seed: u64) -> Self {
        Self { seed, every: 1, stride: 1, start: None, first: 0, plan: FaultPlan::default() }
    }

    /// A sweep over one of each `every` calls, or over all calls with full effort.
    ///
    /// A module that calls this is a sweep for `cargo xtask ci`, which runs it whole.
    #[must_use]
    pub fn sampled(seed: u64, every: u64) -> Self {
        Self { every, ..Self::whole(seed) }
    }

    /// Visits one of each `stride` calls with full effort too, where a fault strikes the next call
    /// of its kind anyway; a sample is that much thinner.
    #[must_use]
    pub fn one_in(self, stride: u64) -> Self {
        Self { stride, ..self }
    }

    /// Begins each run on a copy of this disk.
    #[must_use]
    pub fn on(self, start: &Arc<SimDisk>) -> Self {
        Self { start: Some(Arc::clone(start)), ..self }
    }

    /// Leaves the first calls of each run alone.
    #[must_use]
    pub fn from_call(self, first: u64) -> Self {
        Self { first, ..self }
    }

    /// Adds this plan to each run, as the size of the disk.
    #[must_use]
    pub fn with_plan(self, plan: FaultPlan) -> Self {
        Self { plan, ..self }
    }

    /// Returns a disk for a run, with its plan and the number of its next call.
    fn disk(&self) -> (Arc<SimDisk>, u64) {
        let disk = match &self.start {
            Some(start) => start.clone_disk(),
            None => SimDisk::new(self.seed),
        };
        disk.set_plan(self.plan);
        let base = disk.calls();
        (disk, base)
    }

    /// Runs the workload undisturbed; returns the calls to visit.
    fn visit<T>(
        &self,
        sample_seed: u64,
        workload: &mut impl FnMut(&Arc<SimDisk>) -> T,
    ) -> Vec<u64> {
        let (disk, base) = self.disk();
        workload(&disk);
        let calls = disk.calls() - base;
        assert!(self.first < calls, "the workload makes {calls} calls, none after {}", self.first);
        let every = self.stride * by_effort(self.every, 1);
        // Each series of a long run visits other calls.
        let sample_seed = match series() {
            0 => sample_seed,
            series => spread(sample_seed, series),
        };
        sample(self.first..calls, every, sample_seed).collect()
    }

    /// Crashes the workload at each visited call, and lets `verdict` judge the crash. Returns the
    /// sum of the verdicts, by convention the number of images.
    ///
    /// # Panics
    /// When a run has not crashed although the undisturbed one made the call.
    pub fn crash<T>(
        &self,
        mut workload: impl FnMut(&Arc<SimDisk>) -> T,
        mut verdict: impl FnMut(&Crash<'_, T>) -> u64,
    ) -> u64 {
        let mut images = 0;
        for call in self.visit(self.seed, &mut workload) {
            let (disk, base) = self.disk();
            disk.set_plan(FaultPlan { crash_at_call: Some(base + call), ..self.plan });
            let _note = Note(&(self.seed, call));
            let run = workload(&disk);
            assert!(disk.has_crashed(), "the run is not the same as the undisturbed one");
            images += verdict(&Crash { call, disk: &disk, run: &run, seed: self.seed });
        }

        tally::add("crash images", images);
        images
    }

    /// Runs the workload with a fault of `kind` at each visited call; without `repeat` the seed
    /// draws whether the fault stays. The workload gets the fault, `None` in the undisturbed run;
    /// it lifts the fault and judges. Returns how many faults struck.
    pub fn fault(
        &self,
        kind: FaultKind,
        repeat: Option<Repeat>,
        mut workload: impl FnMut(&Arc<SimDisk>, Option<Fault>),
    ) -> u64 {
        // A sample strikes other calls with each kind.
        let calls = self.visit(self.seed.wrapping_add(kind as u64), &mut |disk: &Arc<SimDisk>| {
            workload(disk, None);
        });

        let mut struck = 0;
        for call in calls {
            let (disk, base) = self.disk();
            let drawn = [Repeat::Once, Repeat::Forever][(spread(self.seed, call) % 2) as usize];
            let fault = Fault { at_call: base + call, kind, repeat: repeat.unwrap_or(drawn) };
            disk.set_plan(FaultPlan { fail: Some(fault), ..self.plan });
            let _note = Note(&(self.seed, fault));
            workload(&disk, Some(fault));
            struck += u64::from(disk.faults() > 0);
        }

        tally::add("faults", struck);
        struck
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use terrane_io::{Access, Disk, OpenMode};

    use super::*;
    use crate::trial::attempt;

    /// Writes two files, one after the other; returns how many it has promised.
    fn write_two(disk: &Arc<SimDisk>, is_synced: bool) -> usize {
        for (number, name) in ["/first", "/second"].into_iter().enumerate() {
            let write = || -> terrane_io::Result<()> {
                let file = disk.open(Path::new(name), OpenMode::CreateNew, Access::Buffered)?;
                file.write_at(&[7; 2_000], 0)?;
                if is_synced {
                    file.sync()?;
                }
                disk.sync_dir(Path::new("/"))
            };
            if write().is_err() {
                return number;
            }
        }

        2
    }

    fn check(crash: &Crash<'_, usize>) -> u64 {
        crash.images(Loss::each(crash.call), |image| {
            for name in ["/first", "/second"].into_iter().take(*crash.run) {
                assert_eq!(image.disk.read_raw(name), Some(vec![7; 2_000]), "{name}");
            }
        })
    }

    #[test]
    fn a_workload_that_syncs_passes_and_one_that_does_not_is_found_out() {
        let sweep = Sweep::whole(3);
        assert_eq!(sweep.crash(|disk| write_two(disk, true), check), 6 * 8);
        let failure = attempt(|| sweep.crash(|disk| write_two(disk, false), check));
        assert!(failure.unwrap_err().message.contains("/first"));
    }

    #[test]
    fn each_call_behind_the_first_ones_crashes_once() {
        let start = SimDisk::new(1);
        start.create_dir(Path::new("/other")).unwrap();
        let mut seen = BTreeSet::new();
        let sweep = Sweep::whole(1).on(&start).from_call(2);
        sweep.crash(|disk| write_two(disk, true), |crash| u64::from(seen.insert(crash.call)));
        assert_eq!(seen, (2..8).collect());
    }

    #[test]
    fn faults_strike_each_call_to_which_their_kind_applies() {
        let mut undisturbed = 0;
        let sweep = Sweep::whole(1);
        let run = |disk: &Arc<SimDisk>, fault: Option<Fault>| {
            undisturbed += u64::from(fault.is_none());
            let written = write_two(disk, true);
            assert_eq!(written < 2, disk.faults() > 0, "{fault:?}");
        };
        assert_eq!(sweep.fault(FaultKind::Eio, Some(Repeat::Once), run), 8);
        assert_eq!(undisturbed, 1);
    }

    #[test]
    fn a_sample_visits_fewer_calls() {
        let visited =
            Sweep { every: 4, ..Sweep::whole(1) }.crash(|disk| write_two(disk, true), |_| 1);
        assert_eq!(visited, by_effort(2, 8));
    }
}
