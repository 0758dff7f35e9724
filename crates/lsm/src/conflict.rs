//! Conflicts: the reasons why a commit that depends on earlier reads is refused.

use std::fmt;

/// Bytes of a key that a message shows.
const KEY_BYTES_SHOWN: usize = 32;

/// The reason why a transaction, or a conditional commit, was refused. Nothing of it was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The commit that came in between; with [`ConflictCause::TooOld`] the view of the transaction.
    pub commit: u64,
    /// The change of that commit.
    pub cause: ConflictCause,
}

/// Kind of a [`Conflict`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConflictCause {
    /// The commit wrote a key that the transaction had read, or a key within a range that the
    /// transaction had read.
    Key {
        /// The table.
        table: String,
        /// The written key.
        key: Vec<u8>,
    },
    /// The commit deleted a range that the transaction had read a part of.
    Range {
        /// The table.
        table: String,
        /// First deleted key.
        from: Vec<u8>,
        /// First key behind the range; `None` if the range has no end.
        end: Option<Vec<u8>>,
    },
    /// A table that the transaction had read was dropped, or its whole content replaced
    /// ([`Store::replace`](crate::Store::replace), [`Store::roll_back`](crate::Store::roll_back)).
    Table {
        /// The table.
        table: String,
    },
    /// The transaction is older than the write sets that the store keeps; see
    /// [`StoreOptions::write_set_bytes_max`](crate::StoreOptions::write_set_bytes_max).
    TooOld,
    /// [`Store::write_if`](crate::Store::write_if) expected another last commit.
    LastCommit {
        /// The expected one.
        expected: u64,
    },
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commit = self.commit;
        match &self.cause {
            ConflictCause::Key { table, key } => {
                write!(f, "commit {commit} wrote key {} of table `{table}`", key_text(key))
            }
            ConflictCause::Range { table, from, end } => {
                let end = end.as_deref().map_or("the last key".to_owned(), key_text);
                let from = key_text(from);
                write!(f, "commit {commit} deleted {from} to {end} of table `{table}`")
            }
            ConflictCause::Table { table } => {
                write!(f, "table `{table}` was replaced or dropped with commit {commit}")
            }
            ConflictCause::TooOld => {
                write!(f, "the view of commit {commit} is older than the write sets kept")
            }
            ConflictCause::LastCommit { expected } => {
                write!(f, "the last commit is {commit}, not {expected}")
            }
        }
    }
}

/// The beginning of a key, in hexadecimal digits.
pub(crate) fn key_text(key: &[u8]) -> String {
    let shown = &key[..key.len().min(KEY_BYTES_SHOWN)];
    let digits: Vec<String> = shown.iter().map(|byte| format!("{byte:02x}")).collect();
    let more = if shown.len() < key.len() { "…" } else { "" };
    format!("hex:{}{more}", digits.concat())
}
