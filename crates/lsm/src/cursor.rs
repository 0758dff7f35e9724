//! Ordered reading of a table as it was when the cursor was made.

use std::ops::Bound;
use std::sync::Arc;

use crate::answer::Record;
use crate::entry::Kind;
use crate::error::{Error, Result};
use crate::kmerge::KMerge;
use crate::levels::Tree;
use crate::resolve::Resolve;
use crate::run::Run;
use crate::run_reader::Purpose;
use crate::session_core::SessionCore;
use crate::sources::Sources;

/// A position in a stable view of a table; gives the live entries of a range in key order.
///
/// Later updates of the table, and dropping it, do not disturb a cursor; it keeps the files that it reads
/// from alive. After an error it gives that error again, so that no reader takes a broken scan for a
/// complete one.
#[derive(Debug)]
pub struct Cursor {
    // Fields drop in order: readers before what keeps the session's lock.
    merge: KMerge,
    /// What the cursor reads: the buffers, and the runs that may hold keys of the range.
    view: Sources,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    resolve: Resolve,
    /// The entry that comes next, if it has been looked at.
    peeked: Option<Record>,
    failed: Option<Error>,
    session: Arc<SessionCore>,
}

/// The bytes of a bound.
fn bytes(bound: &Bound<Vec<u8>>) -> &[u8] {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => key,
        Bound::Unbounded => &[],
    }
}

/// The first key after all that begin with `prefix`, if there is one.
pub(crate) fn after_prefix(prefix: &[u8]) -> Bound<Vec<u8>> {
    let Some(last) = prefix.iter().rposition(|&byte| byte < u8::MAX) else {
        return Bound::Unbounded;
    };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Bound::Excluded(end)
}

impl Cursor {
    /// A cursor at the first entry between the bounds.
    pub(crate) fn new(
        session: Arc<SessionCore>,
        tree: &Tree,
        from: Bound<Vec<u8>>,
        to: Bound<Vec<u8>>,
        resolve: Resolve,
    ) -> Result<Self> {
        let mut view = tree.sources();
        view.buffers.insert(0, tree.buffer.clone());
        let merge = Sources::default().merge_from(&[], Purpose::Range, &resolve)?;
        let (peeked, failed) = (None, None);
        let mut cursor = Self { merge, view, from, to, resolve, peeked, failed, session };
        let Self { view, from, .. } = &cursor;
        let lowest = bytes(from);
        let in_range = |run: &Run| run.max_key() >= lowest && !cursor.is_beyond(run.min_key());
        let runs = view.runs.iter().filter(|run| in_range(run)).cloned().collect();
        cursor.view.runs = runs;
        cursor.go_to(&[])?;
        Ok(cursor)
    }

    /// Opens all sources at the first entry whose key is at least `key` and within the lower bound.
    fn go_to(&mut self, key: &[u8]) -> Result<()> {
        let key = key.max(bytes(&self.from));
        self.peeked = None;
        self.merge = self.view.merge_from(key, Purpose::Range, &self.resolve)?;
        if let Bound::Excluded(from) = &self.from
            && self.merge.current().is_some_and(|entry| entry.key == from)
        {
            self.merge.advance()?;
        }
        Ok(())
    }

    fn is_beyond(&self, key: &[u8]) -> bool {
        match &self.to {
            Bound::Included(to) => key > to.as_slice(),
            Bound::Excluded(to) => key >= to.as_slice(),
            Bound::Unbounded => false,
        }
    }

    /// Runs a step, unless an earlier one failed, and remembers its failure.
    fn step<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.session.check_open()?;
        let result = step(self);
        if let Err(error) = &result {
            self.failed = Some(error.clone());
        }
        result
    }

    /// The next live entry; `None` at the end of the range, also when asked again.
    ///
    /// Cost: one page read for each page of each run that the cursor passes, in growing chunks.
    ///
    /// # Errors
    /// Any error of the disk, damage found, and [`SessionClosed`](crate::Error::SessionClosed).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot fail once for good")]
    pub fn next(&mut self) -> Result<Option<Record>> {
        self.step(|cursor| match cursor.peeked.take() {
            Some(record) => Ok(Some(record)),
            None => cursor.next_live(),
        })
    }

    /// The entry that [`next`](Self::next) will give, without passing it.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn peek(&mut self) -> Result<Option<&Record>> {
        self.step(|cursor| {
            if cursor.peeked.is_none() {
                cursor.peeked = cursor.next_live()?;
            }
            Ok(())
        })?;
        Ok(self.peeked.as_ref())
    }

    /// Goes to the first entry of the range whose key is at least `key`, forward or back.
    ///
    /// Cost: one page read for each run, or two where the index is compact.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.step(|cursor| cursor.go_to(key))
    }

    /// The next `count` entries; fewer only at the end of the range.
    ///
    /// # Errors
    /// As [`next`](Self::next); the entries read before are lost then.
    pub fn take(&mut self, count: usize) -> Result<Vec<Record>> {
        self.take_while(count, |_| true)
    }

    /// The next entries, up to `count` of them, as long as `wanted` holds. The first that is not wanted
    /// comes with the next read.
    ///
    /// # Errors
    /// As [`next`](Self::next); the entries read before are lost then.
    pub fn take_while(
        &mut self,
        count: usize,
        mut wanted: impl FnMut(&Record) -> bool,
    ) -> Result<Vec<Record>> {
        let mut taken = Vec::new();
        while taken.len() < count && self.peek()?.is_some_and(&mut wanted) {
            taken.extend(self.next()?);
        }
        Ok(taken)
    }

    fn next_live(&mut self) -> Result<Option<Record>> {
        loop {
            let Some(entry) = self.merge.current() else { return Ok(None) };
            if self.is_beyond(entry.key) {
                return Ok(None);
            }
            let blob = || self.merge.blob().map(|blob| blob.downgrade());
            let record = (entry.kind != Kind::Delete).then(|| Record {
                key: entry.key.to_vec(),
                value: entry.value.into(),
                blob: blob(),
            });
            self.merge.advance()?;
            if record.is_some() {
                return Ok(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_string_of_its_length_or_shorter() {
        assert_eq!(after_prefix(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xFF\xFF"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xFF\xFF"), Bound::Unbounded);
        assert_eq!(after_prefix(b""), Bound::Unbounded);
    }
}
