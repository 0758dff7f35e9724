//! Branches that few runs take, told by name, so that tests know which of them they never took.
//!
//! [`taken`] stands in such a branch. It does nothing without the feature `sim`. With it, the first
//! time in a process is a line in the file of counts that `TERRANE_TALLY` names. `cargo xtask soak`
//! adds the lines up and lists the branches without one; it finds them in the sources by this call,
//! so the name is a literal.

/// Tells that a branch was taken.
#[cfg(not(feature = "sim"))]
#[inline(always)]
pub fn taken(_name: &'static str) {}

/// Tells that a branch was taken.
#[cfg(feature = "sim")]
pub fn taken(name: &'static str) {
    use std::collections::BTreeSet;
    use std::fs::OpenOptions;
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};

    /// Branches that this process has told of.
    static TOLD: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

    let is_new = TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
    if is_new && let Some(path) = std::env::var_os("TERRANE_TALLY") {
        let file = OpenOptions::new().create(true).append(true).open(path);
        // One write, so that processes never mix their lines. A run that cannot count says so by
        // its other counts.
        let _ = file.and_then(|mut file| file.write_all(format!("rare {name} 1\n").as_bytes()));
    }
}
