//! The behaviours of the radix state, subject by subject.

use terrane_backends::conformance::Subject;

use super::{defects, faults, transact};

pub(super) fn check(subject: &mut dyn Subject) {
    transact::check(subject);
    defects::check(subject);
    faults::check(subject);
}
