//! The published run that the ten tests are printed beside: Transact 0.3.7, each back-end in one
//! process, by the shell's `time`.
//!
//! LMDB ran with `WRITEMAP` and `MAPASYNC`, so without a sync; SQLite synced its log at each
//! commit, and its figures leave out two slower variants.

use serde::Serialize;

/// Published run of another program.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Published {
    /// Back-end of the state.
    pub backend: &'static str,
    /// The machine.
    pub machine: &'static str,
    /// The file system.
    pub filesystem: &'static str,
    /// Seconds from beginning to end.
    pub real_s: f64,
    /// Seconds of the processor outside the kernel.
    pub user_s: f64,
    /// Seconds of the processor inside the kernel.
    pub system_s: f64,
}

const AWS: &str = "AWS t2.medium, 2 vCPU, 4 GB, Ubuntu 18.04";
const MAC: &str = "MacBook Pro 13\" 2020, 2.3 GHz i7, 32 GB";

const fn run(
    backend: &'static str,
    machine: &'static str,
    filesystem: &'static str,
    [real_s, user_s, system_s]: [f64; 3],
) -> Published {
    Published { backend, machine, filesystem, real_s, user_s, system_s }
}

/// All of them.
pub const PUBLISHED: [Published; 8] = [
    run("btree", AWS, "EBS", [0.843, 0.822, 0.028]),
    run("lmdb", AWS, "EBS", [0.850, 0.825, 0.036]),
    run("sqlite", AWS, "EBS", [6.737, 1.510, 0.527]),
    run("lmdb", AWS, "EFS", [15.440, 1.139, 0.064]),
    run("sqlite", AWS, "EFS", [663.621, 4.483, 7.279]),
    run("btree", MAC, "APFS", [0.746, 0.744, 0.018]),
    run("lmdb", MAC, "APFS", [1.646, 0.881, 0.812]),
    run("sqlite", MAC, "APFS", [3.152, 1.416, 0.826]),
];
