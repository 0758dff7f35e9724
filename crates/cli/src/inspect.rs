//! `terrane inspect`: kind, format version, shape and content of any file or directory of Terrane.
//!
//! The folder imports `ui`, `stores`, and from `commands` the lists that `terrane context` and
//! `terrane radix` print too, and the opening of Ethereum states. Nothing imports it but `main.rs`.
//!
//! Begin with [`inspect`], which recognises a path and chooses the reader: [`lsm`]
//! for stores, snapshots, runs, pages and segments of the log; [`btree`], [`context`] and [`radix`]
//! for the others; [`mpt`] adds the Ethereum state that a store holds, and [`store_page`] draws a
//! store. Each reader has a struct that serializes to the JSON report, and a `text` for people.
//!
//! # Invariants
//!
//! - Nothing is written, and no lock is taken, except that a radix store has to be opened, and that
//!   the reader of an Ethereum state takes a lease.
//! - Damage ends no report: it is listed in `damage`, and the damaged fields are null.
//! - All files of a directory are read through one anchor, so that nobody can exchange the
//!   directory meanwhile.
//!
//! Rejected: serializing the engines' info types directly. Their fields are in units of the engine
//! (pages, nanoseconds, raw bytes); the JSON has bytes, dates and hexadecimal text.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod btree;
pub(crate) mod context;
pub(crate) mod radix;
pub(crate) mod mpt;
pub(crate) mod lsm;
mod store_page;
mod inspect;

pub(crate) use self::inspect::{EXAMPLES, Inspect};
