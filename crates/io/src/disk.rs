//! The disk: the trait that every engine uses, and its form over the real file system.
//!
//! May import: the modules above it in `lib.rs` (errors, aligned buffers, the clock), no other
//! folder.
//!
//! Begin with `disk` (the traits `Disk`, `DiskFile` and `IoQueue` and their promises), then `real`
//! (the disk of the machine). Below it are `posix` (positioned system calls), `anchor` (names below
//! an open directory), `threads` and `uring` (queues), and `files` (whole small files on any disk).
//!
//! Invariants: interrupted and short transfers are continued in `posix` and nowhere else; a sync is
//! never repeated. Requests own their buffers, so no queue writes to memory that is used otherwise.
//! Below an anchor no symbolic link is followed.
//!
//! Unsafe code: only in `uring`, whose requests lie in the queue until the kernel is done with
//! them.
//!
//! The traits are used as `dyn`: engines are compiled once for the real and the simulated disk,
//! wrappers stack at run time, and no type parameter spreads through the public interface. The
//! price is an indirect call for each request, nothing beside a read of 4 KiB.
//!
//! Rejected: `openat2`, which old kernels and some sandboxes lack; a disk value per store (each
//! engine would have to pass it to each of its parts); one ring on a thread of its own (two context
//! switches for each batch).

// Bottom-up: a module imports only from modules above it.
pub(crate) mod disk;
pub mod files;
pub(crate) mod anchor;
pub(crate) mod posix;
pub(crate) mod threads;
#[cfg_attr(not(target_os = "linux"), path = "disk/uring_absent.rs")]
pub(crate) mod uring;
pub(crate) mod real;
