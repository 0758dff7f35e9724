//! Faults of the medium: they belong to places and not to calls, and stay until they are healed.

use std::collections::BTreeSet;
use std::ops::Range;

use rustix::io::Errno;

use super::tree::NodeNo;

/// Failure of a bad place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadMedia {
    /// Reads; a write is accepted, and does not mend the place.
    Read,
    /// Writes.
    Write,
    /// Reads and writes.
    Both,
}

/// All such faults of a disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Media {
    bad: Vec<(NodeNo, Range<u64>, BadMedia)>,
    denied: BTreeSet<NodeNo>,
    pub(super) is_read_only: bool,
}

type Check = Result<(), Errno>;

impl Media {
    pub(super) fn add_bad(&mut self, node: NodeNo, range: Range<u64>, what: BadMedia) {
        self.bad.push((node, range, what));
    }

    pub(super) fn deny(&mut self, node: NodeNo) {
        self.denied.insert(node);
    }

    pub(super) fn check_open(&self, node: NodeNo) -> Check {
        if self.denied.contains(&node) { Err(Errno::ACCESS) } else { Ok(()) }
    }

    pub(super) fn check_change(&self) -> Check {
        if self.is_read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    pub(super) fn check_read(&self, node: NodeNo, offset: u64, len: usize) -> Check {
        // A place that is bad for writes alone can still be read.
        self.check(node, offset, len, BadMedia::Write)
    }

    pub(super) fn check_write(&self, node: NodeNo, offset: u64, len: usize) -> Check {
        self.check_change()?;
        // A place that is bad for reads alone can still be written.
        self.check(node, offset, len, BadMedia::Read)
    }

    /// Fails if a bad place of the range counts; one that is `harmless` does not.
    fn check(&self, node: NodeNo, offset: u64, len: usize, harmless: BadMedia) -> Check {
        let end = offset.saturating_add(len as u64);
        let is_hit = self.bad.iter().any(|(bad_node, range, what)| {
            *bad_node == node && *what != harmless && range.start < end && offset < range.end
        });
        if is_hit { Err(Errno::IO) } else { Ok(()) }
    }
}
