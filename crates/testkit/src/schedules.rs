//! Many schedules of the threads of one test, with `--cfg shuttle` (`cargo xtask schedules`).
//!
//! Threads, locks and atomics are then those of the crate `shuttle`: one thread runs at a time, and
//! at each lock, atomic, notification and start of a thread a draw says which one is next. A test
//! that stands still, because all threads wait, has failed. The draws follow from a seed; half of
//! the schedules are random, the other half change threads at few places (PCT), which finds what
//! needs one rare change.
//!
//! A failure prints the schedule; `TERRANE_SCHEDULE` with that text repeats it.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, MaxSteps, Runner};

use crate::effort::env_value;
use crate::seeds::for_each_seed;
use crate::tally;

/// Schedules of each kind of a test; set by `cargo xtask schedules`.
const COUNT: &str = "TERRANE_SCHEDULES";

/// A schedule to repeat.
const SCHEDULE: &str = "TERRANE_SCHEDULE";

/// Bytes of the stack of a thread.
const STACK_BYTES: usize = 1 << 20;

/// Steps of a schedule in which a test must have ended: none waits in a loop for ever.
const STEPS_MAX: usize = 2_000_000;

/// Places at which a schedule of the second kind changes threads, beside those where one waits.
const CHANGES: usize = 3;

/// Runs a test under schedules that follow from the name.
///
/// # Panics
/// When the test fails, stands still or does not end under one of them.
pub fn explore(name: &str, test: impl Fn() + Send + Sync + Clone + 'static) {
    if let Some(schedule) = env_value(SCHEDULE) {
        return shuttle::replay(test, &schedule);
    }
    let count = env_value(COUNT).map_or(50, |text| text.parse().expect("a number of schedules"));
    for_each_seed(name, 1, |_, seed| {
        let mut config = Config::new();
        config.stack_size = STACK_BYTES;
        config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
        let random = RandomScheduler::new_from_seed(seed, count);
        Runner::new(random, config.clone()).run(test.clone());
        let few = PctScheduler::new_from_seed(seed, CHANGES, count);
        Runner::new(few, config).run(test.clone());
        tally::add("schedules", 2 * count as u64);
    });
}
