//! C interface of Terrane.
//!
//! | module     | contents                                                          |
//! |------------|-------------------------------------------------------------------|
//! | `store`    | stores, named tables, commits                                     |
//! | `batch`    | write batches                                                     |
//! | `view`     | views of tables, batched lookups, cursors by chunk                |
//! | `kept`     | snapshots and versions                                            |
//! | `transaction` | optimistic transactions                                        |
//! | `fork`     | forks, and differences of views                                   |
//! | `changes`  | the change feed of a store                                        |
//! | `upkeep`   | lists and changes of tables, backups, digests, statistics         |
//! | `index`    | B+tree indexes                                                    |
//! | `radix`    | radix states with roots and proofs                                |
//! | `mpt`      | tables with a root, Ethereum states, their proofs                 |
//! | `context`  | Merkle context stores and their proofs                            |
//!
//! Codes, messages, bytes of callers and verifiers are those of the library of verifiers
//! (`bindings/c-verify`), whose functions this library has, too.
//!
//! `include/terrane.h` is made from these sources by cbindgen and says how to call them.
//!
//! Invariants:
//!
//! * A panic never crosses: each function works inside of `terrane_verify::error::guard`.
//! * A handle is a box whose address the caller keeps. It is freed once, by its own function.
//! * A pointer from the caller is read only by `terrane_verify::bytes` and by functions of
//!   `terrane_verify::error`, which refuse null.

// The names of C functions and types are those of C.
#![expect(non_camel_case_types, reason = "C names")]

// Bottom-up: a module imports only from modules above it.
pub mod store;
pub mod batch;
pub mod view;
pub mod kept;
pub mod transaction;
pub mod fork;
pub mod changes;
pub mod upkeep;
pub mod index;
pub mod radix;
pub mod mpt;
pub mod context;
