//! Store: named trees in one database, transactions over them, and reads of a retained root.
//!
//! Begin with [`store`]: [`Store`](crate::Store) and [`Tree`](crate::Tree), the handles of users.
//! [`transaction`] commits and prunes, [`leaves`] and [`diff`] read lazily from a snapshot,
//! [`inner`] is what all handles share. The folder imports [`commit`](crate::commit) and above.
//!
//! Lock order: the turn of the transaction ([`Inner::turn`](inner::Inner::turn)), then the writer
//! of the database, then the mutex of the known roots. The mutex is a leaf: no call of the database
//! runs under it. The turn is held until the outcome of a commit is noted, since the next
//! transaction relies on the noted roots.
//!
//! Invariants:
//!
//! * Reads of a retained root take no lock of the store: nodes are named by their hashes.
//! * What is in memory of trees and roots is the state after one transaction, by the count in the
//!   head of the bookkeeping. Another store or process may share the database: a snapshot or writer
//!   with another count makes the store forget it.
//! * The empty state is no version; every tree has it.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod options;
pub(crate) mod inner;
pub(crate) mod leaves;
pub(crate) mod transaction;
pub(crate) mod store;
pub(crate) mod diff;
