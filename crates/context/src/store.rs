//! Modules of one concept.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod context;
pub(crate) mod options;
pub(crate) mod watch;
pub(crate) mod inner;
pub(crate) mod reindex;
pub(crate) mod store;
pub(crate) mod reader;
pub(crate) mod gc;
pub(crate) mod check;
pub(crate) mod repair;
pub(crate) mod history;
pub(crate) mod branches;
pub(crate) mod tezos;
