//! States that go forward and back by blocks, with durable points to resume from.
//!
//! [`history`] keeps two tables on any [`Engine`](crate::engines::engine::Engine): the state and an
//! undo log. [`radix_ledger`] keeps versions of a radix state, [`mpt_ledger`] undo records beside a
//! table that is committed to a root. All implement [`Ledger`], which replays see.
//!
//! Imports: [`engines`](crate::engines). Begin with [`history`].
//!
//! * A durable point is a pair of snapshots, the log and the state, named by a sequence number and
//!   a height. The state is saved last, so the newest pair is whole whenever the process was
//!   killed.
//! * Up to 15 older points stay, at similar distances, as far as blocks are kept. Going back starts
//!   at the nearest point at or above the target and undoes the rest by records.
//! * A crash can leave a point of an abandoned branch. A rollback uses a point only if the note of
//!   its newest block is the note that the present log has there, and its log has every block still
//!   kept.
//! * Rejected: going back by the difference of two points, which a point has already written.
//! * Rejected: a list of valid points, a third file that must agree with both snapshots.
//! * Rejected: the hash of the block in the names, which repeats what the opened log says.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod checkpoints;
pub mod history;
mod blocks;
pub mod radix_ledger;
pub mod mpt_ledger;

pub use blocks::Ledger;
