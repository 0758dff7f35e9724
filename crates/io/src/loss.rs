//! Consent to loss: one type for the repairs of all engines.

/// Whether a repair may drop what is damaged.
///
/// | engine | dropped with consent | without consent |
/// |---|---|---|
/// | LSM store | entries on damaged pages, damaged blobs and snapshots, commits from the damaged one on | the damage stays, the rest is repaired |
/// | B+tree | keys of damaged leaves without an older leaf, updates of a damaged part of the WAL | nothing is changed |
/// | context store | commits behind the damage | nothing is changed |
/// | radix store | damaged versions, trees whose records cannot be read | nothing is changed |
///
/// The report of the repair names the losses, accepted or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Damage that cannot be repaired without loss stays.
    Refused,
    /// Damaged data are dropped, and named.
    Accepted,
}
