//! Tests over all engines: targets of fuzzing, faults by place, killed processes, full disks, calls
//! that fail, liveness, kept stores.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod corpus;

mod stores;

mod writers;

mod places;

mod kills;

mod full;

mod injected;

mod liveness;

mod kept;

mod forked;
