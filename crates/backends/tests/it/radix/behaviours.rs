//! The behaviours of the radix state, subject by subject.

use terrane_kv::conformance::Subject;

use super::{damage, defects, errors, faults, pruning, reading, sizes, threads, transact, trees};

pub(super) fn check(subject: &mut dyn Subject) {
    transact::check(subject);
    defects::check(subject);
    sizes::check(subject);
    errors::check(subject);
    pruning::check(subject);
    trees::check(subject);
    reading::check(subject);
    threads::check(subject);
    damage::check(subject);
    faults::check(subject);
}
