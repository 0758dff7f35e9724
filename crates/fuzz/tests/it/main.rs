//! Tests over all engines: targets of fuzzing, faults by place, killed processes, full disks, kept
//! stores.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod corpus;

mod stores;

mod places;

mod kills;

mod full;

mod kept;

mod forked;
