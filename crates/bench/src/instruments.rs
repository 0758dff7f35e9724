//! Instruments: measurements of this process, of the device and of the machine, and a limit on
//! memory.
//!
//! | module     | measures or does                                                              |
//! |------------|-------------------------------------------------------------------------------|
//! | `mounts`   | finds the file system and the device of a directory                           |
//! | [`meter`]  | processor time, memory and bytes of the process; requests of the device       |
//! | [`host`]   | machine, kernel, device and file system, for reports                          |
//! | [`limits`] | puts the process into a control group with a limit on memory                  |
//! | [`device`] | the yardstick: random 4 KiB reads that the device can do                      |
//! | [`depths`] | the device alone: rate and latency of random reads by the number in flight
//! |
//! | [`bare`]   | an append with its fdatasync, an idle timer, one core on a fixed loop         |
//!
//! Imports: nothing of this crate; the engine's I/O through `terrane::io`. Begin with [`meter`].
//!
//! * Invariant: a figure that the system does not tell is absent, never 0.
//! * The yardstick runs `fio` where it is installed, since anybody can repeat that.
//! * Rejected: the block I/O counters of the control group, which are zero on recent kernels.
//! * Rejected: a library for a few text files of `/proc`.
//! * Rejected: a child process inside the control group, a second command line that must agree.
//!
//! Latencies are histograms of [`terrane_replay::latency`], because replays of traces record them
//! too.

// Bottom-up: a module imports only from modules above it.
mod mounts;
pub mod meter;
pub mod host;
pub mod limits;
pub mod device;
pub mod depths;
pub mod bare;
