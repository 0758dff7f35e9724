//! Base: the vocabulary of all other modules — hashes, paths, addresses, errors and the hashing
//! rules.
//!
//! Imports nothing of this crate. Nothing here reads or writes a file.
//!
//! Begin with [`address`]: a record of the pack is named by its [`Extent`](address::Extent)
//! (address and length), and a reference to it is a [`Link`](address::Link), the extent with the
//! hash of the object. Then [`hashing`]: the preimages and the buckets that make a root hash.
//!
//! **Tezos.** [`hashing`] has two schemes. [`Scheme::Tezos`](hashing::Scheme) is bit for bit what
//! Octez hashes over irmin-pack, and so are the text form of [`hash`] and `ocaml_hash`.
//! [`Scheme::Blake3`](hashing::Scheme) has the same shapes and is not bound to Tezos.
//!
//! Invariants: an address of a record never changes while the record is kept, also when a
//! collection rewrites its chunk. References point back only: an encoder asserts it, a decoder
//! refuses the rest.
//!
//! Rejected: hashes without addresses in a reference, as irmin-pack has them. Hashing one changed
//! inode then takes 31 reads, one for each sibling.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod lock;
pub(crate) mod corrupt;
pub(crate) mod fast_map;
pub(crate) mod latency;
pub(crate) mod stats;
pub(crate) mod hash;
pub(crate) mod path;
pub(crate) mod address;
pub(crate) mod error;
pub(crate) mod hashing;
