//! The sub-commands, one file or folder each: arguments, help, work, report.
//!
//! The folder imports `ui` and `stores`; a command imports another one only for the parts that they
//! share (`table build` and `btree build` share [`copy`]). `inspect` and `verify` are folders of
//! their own below this one, as they know every kind of store.
//!
//! Begin with [`version`], the shortest command with sub-commands. Each file has the same parts:
//!
//! 1. the JSON fields of its reports in the header, as a table;
//! 2. the enum or struct that clap parses, whose doc comments are the help;
//! 3. `EXAMPLES`, shown at the end of the help;
//! 4. private structs that serialize to the JSON report;
//! 5. `run`, which does the work and prints the report.
//!
//! # Invariants
//!
//! - Field names of JSON reports and exit codes are a contract with other programs. Fields may be
//!   added; they are never renamed. `docs/schema` has the large ones.
//! - Paragraphs of help have no line breaks, since clap wraps them to the width of the terminal; a
//!   test in `main.rs` renders every page.
//!
//! Rejected: one report type for all commands. Its fields would all be optional.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod bench;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod btree;
pub(crate) mod kv;
pub(crate) mod table;
pub(crate) mod import;
pub(crate) mod snapshot;
pub(crate) mod version;
pub(crate) mod radix;
pub(crate) mod mpt;
pub(crate) mod backup;
#[cfg(feature = "object-store")]
pub(crate) mod backups;
pub(crate) mod restore;
pub(crate) mod compact;
pub(crate) mod stats;
pub(crate) mod diff;
pub(crate) mod changes;
pub(crate) mod follow;
pub(crate) mod completions;
pub(crate) mod replay;
