//! C interface of Terrane.
//!
//! | module     | contents                                                          |
//! |------------|-------------------------------------------------------------------|
//! | `error`    | codes, the message of a thread, the guard around each call         |
//! | `bytes`    | bytes that a caller gives, arenas that a caller has filled         |
//! | `store`    | stores, named tables, commits                                     |
//! | `batch`    | write batches                                                     |
//! | `view`     | views of tables, batched lookups, cursors by chunk                |
//! | `kept`     | snapshots and versions                                            |
//! | `transaction` | optimistic transactions                                        |
//! | `fork`     | forks, and differences of views                                   |
//! | `upkeep`   | lists and changes of tables, backups, digests, statistics         |
//! | `index`    | B+tree indexes                                                    |
//! | `radix`    | radix states with roots and proofs                                |
//! | `mpt`      | tables with a root, Ethereum states, their proofs                 |
//! | `context`  | Merkle context stores and their proofs                            |
//! | `verifier` | proofs, checked without a store                                   |
//!
//! `include/terrane.h` is made from these sources by cbindgen and says how to call them.
//!
//! Invariants:
//!
//! * A panic never crosses: each function works inside of `error::guard`.
//! * A handle is a box whose address the caller keeps. It is freed once, by its own function.
//! * A pointer from the caller is read only by `bytes` and by the macros of `error`, which refuse
//!   null.

// The names of C functions and types are those of C.
#![expect(non_camel_case_types, reason = "C names")]

// Bottom-up: a module imports only from modules above it.
pub mod error;
pub mod bytes;
pub mod store;
pub mod batch;
pub mod view;
pub mod kept;
pub mod transaction;
pub mod fork;
pub mod upkeep;
pub mod index;
pub mod radix;
pub mod mpt;
pub mod context;
pub mod verifier;
