//! A panic as a value, and the shortest list that still causes it.
//!
//! A random history that fails is long, and little of it matters. [`attempt`] runs one and gives
//! its panic as a [`Failure`]; [`minimise`] leaves steps out as long as the rest fails in the same
//! way.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

/// Place and message of a panic of a closure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// File, line and column; empty if the panic came from another thread.
    pub place: String,
    /// Message of the panic.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

thread_local! {
    /// Whether a panic of this thread is to be kept instead of printed.
    static IS_ATTEMPT: Cell<bool> = const { Cell::new(false) };
    static FAILURE: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

fn message_of(payload: &dyn Any) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a message".to_owned())
}

fn keep(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let failure = Failure { place, message: message_of(info.payload()) };
    // The first panic is the cause; a panic of a drop during the unwinding is not.
    FAILURE.with_borrow_mut(|kept| _ = kept.get_or_insert(failure));
}

/// Runs `act`; a panic is given as a value, and is not printed.
///
/// # Errors
/// The panic.
pub fn attempt<T>(act: impl FnOnce() -> T) -> Result<T, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(
            move |info| {
                if IS_ATTEMPT.get() { keep(info) } else { print(info) }
            },
        ));
    });

    // An attempt may stand within another one, also in a drop while that one unwinds.
    let is_within = IS_ATTEMPT.replace(true);
    let outer = FAILURE.take();
    let result = panic::catch_unwind(AssertUnwindSafe(act));
    IS_ATTEMPT.set(is_within);
    let kept = FAILURE.replace(outer);

    result.map_err(|payload| {
        kept.unwrap_or(Failure { place: String::new(), message: message_of(payload.as_ref()) })
    })
}

/// Leaves out of `steps` what `fails` can do without, and makes what is left simpler.
///
/// First whole stretches go, half of the list, a quarter, down to single steps; then each step is
/// replaced by one of the steps that `simpler` offers for it; all again until nothing changes or
/// `fails` has been asked `attempts` times. The result fails; no step of it can be left out, unless
/// the attempts ran out.
///
/// `fails` gets lists that were never drawn: a step must mean something, or nothing, after any
/// other.
#[must_use]
pub fn minimise<T: Clone>(
    mut steps: Vec<T>,
    attempts: usize,
    simpler: impl Fn(&T) -> Vec<T>,
    mut fails: impl FnMut(&[T]) -> bool,
) -> Vec<T> {
    let mut left = attempts;
    let mut try_out = |steps: &[T]| {
        left = left.checked_sub(1)?;
        Some(fails(steps))
    };

    loop {
        let before = steps.len();
        let mut has_changed = false;

        let mut stretch = before.div_ceil(2);
        while stretch > 0 {
            let mut at = 0;
            while at < steps.len() {
                let mut shorter = steps.clone();
                shorter.drain(at..steps.len().min(at + stretch));
                match try_out(&shorter) {
                    None => return steps,
                    Some(true) => steps = shorter,
                    Some(false) => at += stretch,
                }
            }
            stretch = if stretch == 1 { 0 } else { stretch.div_ceil(2) };
        }

        for at in 0..steps.len() {
            // A simpler step may have simpler ones in turn.
            let mut choices = simpler(&steps[at]).into_iter();
            while let Some(choice) = choices.next() {
                let mut other = steps.clone();
                other[at] = choice;
                match try_out(&other) {
                    None => return steps,
                    Some(true) => {
                        steps = other;
                        has_changed = true;
                        choices = simpler(&steps[at]).into_iter();
                    }
                    Some(false) => {}
                }
            }
        }

        if steps.len() == before && !has_changed {
            return steps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_value_with_its_place() {
        assert_eq!(attempt(|| 7), Ok(7));
        let failure = attempt(|| panic!("number {}", 7)).unwrap_err();
        assert_eq!(failure.message, "number 7");
        assert!(failure.place.contains("trial.rs"), "{failure}");
        let nested = attempt(|| attempt(|| panic!("inner")).unwrap_err().message);
        assert_eq!(nested, Ok("inner".to_owned()));

        let thread = attempt(|| {
            let payload = std::thread::spawn(|| {
                let quiet = attempt(|| panic!("elsewhere"));
                panic::resume_unwind(Box::new(quiet.unwrap_err().message));
            });
            panic::resume_unwind(payload.join().unwrap_err());
        });

        assert_eq!(thread.unwrap_err().message, "elsewhere");
    }

    #[test]
    fn the_first_of_two_panics_is_kept() {
        struct Late;
        impl Drop for Late {
            fn drop(&mut self) {
                assert!(attempt(|| panic!("later")).is_err());
            }
        }

        let failure = attempt(|| {
            let _late = Late;
            panic!("first");
        });

        let failure = failure.unwrap_err();
        assert_eq!(failure.message, "first");
        assert!(failure.place.contains("trial.rs"), "{failure}");
    }

    #[test]
    fn only_what_is_needed_is_left() {
        let mut asked = 0;
        let fails = |steps: &[u32]| {
            asked += 1;
            steps.contains(&17) && steps.iter().filter(|&&step| step >= 40).count() >= 2
        };
        let least = minimise((0..100).collect(), 10_000, |_| Vec::new(), fails);
        assert_eq!(least.len(), 3, "{least:?}");
        assert!(least.contains(&17));
        assert!(asked < 400, "{asked} attempts");
    }

    #[test]
    fn steps_are_made_simpler_as_long_as_the_list_fails() {
        let halves = |step: &u32| if *step > 0 { vec![step / 2, step - 1] } else { Vec::new() };
        let fails = |steps: &[u32]| steps.iter().sum::<u32>() >= 13;
        let least = minimise(vec![50, 3, 80], 10_000, halves, fails);
        assert_eq!(least, [13]);
    }

    #[test]
    fn attempts_are_bounded() {
        let mut asked = 0;
        let steps = minimise(
            (0..100).collect(),
            5,
            |_: &u32| Vec::new(),
            |steps| {
                asked += 1;
                steps.len() >= 2
            },
        );

        assert_eq!(asked, 5);
        assert!((2..100).contains(&steps.len()));
    }
}
