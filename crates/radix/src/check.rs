//! Check and repair of a store: proves that the records are those that the versions need.
//!
//! [`verify`] hashes all nodes again, counts the references that the retained versions give, and
//! compares both tables with the result. [`repair`] keeps the versions whose nodes hash to their
//! names, joins each to its nearest ancestor that is left, and makes the records of both tables
//! those that these versions need. The folder imports [`store`](crate::store) and above.
//!
//! Begin with [`verify::want`]: the records that a set of versions needs; both files use it.
//!
//! Invariants:
//!
//! * A repair writes only contents that were read and hash to their names.
//! * A repair is one transaction. With [`Loss::Refused`](crate::Loss::Refused) it changes nothing
//!   that would drop a version or a tree.
//! * Recursion is at most 36 deep: no address has more tokens, and each edge but the first has one.

// Bottom-up: a module imports only from modules above it.
pub(crate) mod verify;
pub(crate) mod repair;
