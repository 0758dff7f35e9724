//! The promises of the disks, tested from outside: those of all disks in `conformance`, the
//! border of a store on the real one in `border`, locks between processes in `locks`, the simulated
//! disk against the real one in `lockstep`, and what only the simulated one can show in
//! `durability`, `faults` and `media`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod border;
mod conformance;
mod durability;
mod faults;
mod locks;
mod lockstep;
mod media;
