//! Scrubbing: reads pages that nobody has asked for, to find rotten ones in time.
//!
//! Each call reads the next leaves in the order of their keys, and the nodes above them, past the
//! cache. A page that is damaged on disk and whole in the cache is written again as it was; any
//! other damaged page is reported with its range of keys. The caller decides how much is read when,
//! as with all background work.

use crate::page::corrupt::Problem;
use crate::page::error::{Error, Result};
use crate::page::page::{Page, PageRef};
use crate::tree::state::Core;
use crate::tree::tree::{Child, Node};

/// The result of one call of a scrub.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// Number of pages that were read.
    pub pages: u64,
    /// Number of damaged pages that were written again from memory.
    pub rewritten: u64,
    /// Damaged pages that could not be written again.
    pub problems: Vec<Problem>,
    /// Whether the last leaf was reached; the next call begins with the first.
    pub has_ended: bool,
}

/// Reads up to `leaves` leaves from the one for `from` on, and the nodes above them. Returns the
/// key to go on from.
pub(crate) fn scrub(core: &Core, from: &[u8], leaves: u64) -> Result<(ScrubReport, Vec<u8>)> {
    let mut report = ScrubReport::default();
    let tree = core.state()?.tree.clone();
    let mut from = from.to_vec();
    let mut left = leaves;

    while left > 0 {
        let Some(mut child) = tree.root.clone() else { break };
        let mut high: Option<Vec<u8>> = None;

        // A damaged node ends the descent: the scrub goes on behind the range of the node.
        for level in (1..=tree.height).rev() {
            let Some(node) =
                reread_node(core, &mut report, &child, level, (&from, high.as_deref()))?
            else {
                break;
            };

            if level > 1 {
                let at = node.view().child_for(&from);
                high = node.high_of(at, high);
                child = node.child(at);
                continue;
            }

            let first = node.view().child_for(&from);
            let end = reread_leaves(core, &mut report, &node, (first, left), high.as_deref())?;
            debug_assert!(first < end, "each round reads a leaf");
            left -= (end - first) as u64;
            high = node.high_of(end - 1, high);
        }

        if tree.height == 0 {
            let Child::Stored(page) = child else { unreachable!("leaves are on disk") };
            reread(core, &mut report, page, 0, (&[], None))?;
        }

        match high {
            Some(high) => from = high,
            None => {
                report.has_ended = true;
                return Ok((report, Vec::new()));
            }
        }
    }

    report.has_ended = tree.root.is_none();
    Ok((report, from))
}

/// Reads up to `count` leaves of a node from the disk, from child `first` on. Returns the place
/// behind the last one.
fn reread_leaves(
    core: &Core,
    report: &mut ScrubReport,
    node: &Node,
    (first, count): (usize, u64),
    high: Option<&[u8]>,
) -> Result<usize> {
    let view = node.view();
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let end = view.count().min(first.saturating_add(count));
    for at in first..end {
        let low = view.separator(at);
        let own_high = node.high_of(at, high.map(<[u8]>::to_vec));
        reread(core, report, view.child(at), 0, (&low, own_high.as_deref()))?;
    }
    Ok(end)
}

/// Reads a node from the disk; `None` if it is damaged and not in memory.
fn reread_node(
    core: &Core,
    report: &mut ScrubReport,
    child: &Child,
    level: u8,
    keys: (&[u8], Option<&[u8]>),
) -> Result<Option<Node>> {
    match child {
        // A fresh node has no page on the disk yet.
        Child::Fresh(node) => Ok(Some(node.as_ref().clone())),
        Child::Stored(page) => Ok(reread(core, report, *page, level, keys)?.map(Node::stored)),
    }
}

/// Reads a page from the disk, and writes a damaged page again if it is in memory.
fn reread(
    core: &Core,
    report: &mut ScrubReport,
    page: PageRef,
    level: u8,
    (low, high): (&[u8], Option<&[u8]>),
) -> Result<Option<Page>> {
    report.pages += 1;

    // Past the cache: the bytes on the disk count.
    let (path, what) = match core.pager.read(page, level) {
        Ok(read) => return Ok(Some(read)),
        Err(Error::Corrupt { path, what }) => (path, what),
        Err(error) => return Err(error),
    };

    if let Some(cached) = core.pager.cache.get(page) {
        let written = core.pager.write(&[(page.number, cached.clone())]);
        // This may be the last whole copy.
        core.pager.cache.put(page.number, cached.clone());
        written?;
        core.pager.sync()?;
        report.rewritten += 1;
        return Ok(Some(cached));
    }

    let keys = Some((low.to_vec(), high.map(<[u8]>::to_vec)));
    report.problems.push(Problem { path, what, keys });
    Ok(None)
}
