//! Checks from outside: `inspect` shows any file, `verify` reads everything and repairs what
//! redundancy allows, `salvage` takes what is whole into a new store.
//!
//! Imports: every other folder; nothing imports this one. Begin with [`verify`]; [`store`] applies
//! the rules of recovery to a store without opening it; [`inspect`] decodes single files.
//!
//! Invariants:
//! - Checks use the decoders of the engine, so a file passes a check exactly if the engine can read
//!   it.
//! - `verify` changes nothing unless it is asked to repair. It reports an unreadable sector and
//!   goes on.
//! - A repair replaces each file by one rename. A crash leaves damage that can be repaired again.
//! - With accepted loss, a repair drops damaged entries, names their file and key range, and keeps
//!   the commits before the damage: a state that the store once had.
//!
//! Rejected:
//! - Dropping older entries of a lost range too: one page of a small run spans thousands of keys of
//!   a large run.
//! - Applying commits behind the damage: the result is a state that never was.
//! - Editing runs in place: a crash would lose more.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod store;
pub mod inspect;
pub mod verify;
pub mod salvage;
