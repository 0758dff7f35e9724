//! What the disks promise, tested from outside: the same for all of them in `conformance`, locks
//! between processes in `locks`, the simulated disk against the real one in `lockstep`, and in `durability` and `faults` what only the simulated one can
//! show.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod durability;
mod faults;
mod locks;
mod lockstep;
