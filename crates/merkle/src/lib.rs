//! The Merkle context store: versioned trees with the hashes of Tezos, direct pointers and fast commits.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod corrupt;

mod quick;

mod hash;

mod path;

mod address;

mod error;

mod rules;

mod record;

mod node;

mod edit;

mod digest;

mod encode;

mod pins;

mod tree;

mod walk;

mod fold;

mod diff;

mod merge;

mod concrete;

pub use address::Address;
pub use concrete::Concrete;
pub use corrupt::Corrupt;
pub use diff::Change;
pub use error::{Error, Result};
pub use fold::{Children, Depth, Fold, Order, TreeStats};
pub use hash::{Hash, HashTextError};
pub use merge::Versions;
pub use path::PathText;
pub use rules::{CommitInfo, Rules, Scheme, ocaml_hash};
pub use tree::{Kind, Tree};
