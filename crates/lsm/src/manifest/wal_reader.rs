//! A walk through the records of a log, from one segment to the next, while a writer may go on with
//! it.
//!
//! Invariant: records are given in the order of their commits, without a gap. The end that the walk
//! comes to is that of the log as far as it was written then; from there the walk can go on later.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{Disk, EntryKind};

use crate::error::{Error, Result};
use crate::manifest::wal::{LOG, Record, SegmentScan, segment_name};

/// A place in a log.
pub(crate) struct WalReader {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    salt: u64,
    scan: SegmentScan,
    /// The last commit before that place.
    commit: u64,
    /// Bytes of the segments before that one.
    passed_bytes: u64,
    /// The last commit of the segment before that one, if that had no seal.
    unsealed: Option<u64>,
}

impl WalReader {
    /// Before the first record of a segment, which follows on `commit`.
    ///
    /// # Errors
    /// [`Error::StoreCorrupted`] if there is no such segment, [`Error::Corrupt`], [`Error::Disk`].
    pub(crate) fn begin(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        salt: u64,
        (segment, commit): (u64, u64),
    ) -> Result<Self> {
        let scan = open(disk.as_ref(), dir, salt, (segment, commit))?;
        Ok(Self {
            disk: Arc::clone(disk),
            dir: dir.to_owned(),
            salt,
            scan,
            commit,
            passed_bytes: 0,
            unsealed: None,
        })
    }

    /// The last commit before this place.
    pub(crate) fn commit(&self) -> u64 {
        self.commit
    }

    /// Prepares to go on from the end that was found, where more may have been written since.
    pub(crate) fn look_again(&mut self) -> Result<()> {
        self.scan.look_again()
    }

    /// Goes back to the place before the record that was just moved to.
    pub(crate) fn back_up(&mut self) {
        if let Some(at) = self.scan.last_at() {
            self.scan.go_back(at);
            self.commit -= 1;
        }
    }

    /// The last commit that is known to be durable by what this segment says.
    pub(crate) fn told_durable(&self) -> u64 {
        self.scan.told_so_far()
    }

    /// The number of the segment behind this one and its first commit, if it was begun.
    pub(crate) fn next_begun(&self) -> Result<Option<(u64, u64)>> {
        Ok(self.begun_next()?.map(|next| (next.header.number, next.header.first)))
    }

    /// Whether the record that was moved to last still stands there.
    pub(crate) fn is_last_there(&self) -> Result<bool> {
        self.scan.is_last_there()
    }

    /// The segment in which that place is.
    pub(crate) fn segment(&self) -> u64 {
        self.scan.header.number
    }

    /// Where in that segment it is.
    pub(crate) fn position(&self) -> u64 {
        self.scan.position()
    }

    /// Bytes of the segments up to that place.
    pub(crate) fn bytes(&self) -> u64 {
        self.passed_bytes + self.scan.position()
    }

    /// Moves to the next record; `false` at the end.
    ///
    /// # Errors
    /// [`Error::StoreCorrupted`] for a missing segment; [`Error::Corrupt`], [`Error::Disk`].
    pub(crate) fn advance(&mut self) -> Result<bool> {
        // The segment behind this one, once it was found begun before the seal of this one.
        let mut begun: Option<SegmentScan> = None;
        loop {
            if self.scan.advance()? {
                let expected = self.commit + 1;
                if let Some(record) = self.scan.record().filter(|record| record.commit != expected)
                {
                    return Err(record.damage("number of the commit", expected, record.commit));
                }
                self.commit = expected;
                return Ok(true);
            }

            if self.scan.sealed().is_some() {
                self.scan.check_end(self.commit)?;
                self.check_seal_before()?;
                let next = (self.segment() + 1, self.commit);
                self.go_to(open(self.disk.as_ref(), &self.dir, self.salt, next)?);
                begun = None;
                continue;
            }

            // A seal that came in the meantime stands behind records that did, too.
            self.scan.look_again()?;
            if self.scan.sealed().is_some() {
                continue;
            }
            match begun.take() {
                // Its header is newer than all records here, so these are looked for once more.
                None => {
                    begun = self.begun_next()?;
                    if begun.is_none() {
                        return Ok(false);
                    }
                }
                Some(next) if next.header.first == self.commit + 1 => {
                    self.check_seal_before()?;
                    self.go_to(next);
                    self.unsealed = Some(self.commit);
                }
                // Records here are torn, and nothing behind them was durable.
                Some(_) => return Ok(false),
            }
        }
    }

    fn go_to(&mut self, next: SegmentScan) {
        debug_assert_eq!(next.header.number, self.segment() + 1, "segments have no gap");
        debug_assert_eq!(next.header.first, self.commit + 1, "commits have no gap");
        self.passed_bytes += self.scan.position();
        self.scan = next;
        self.unsealed = None;
    }

    /// If the segment before this one had no seal: whether it needed none, or has one by now.
    fn check_seal_before(&mut self) -> Result<()> {
        let Some(last) = self.unsealed else { return Ok(()) };
        debug_assert!(last <= self.commit, "the walk goes forwards");
        let number = self.segment();
        let mut scan = self.found(number)?;
        let told = scan.as_mut().map_or(Ok(0), SegmentScan::told_durable)?;
        if told <= last {
            return Ok(());
        }

        // The seal is durable before anything tells that commits behind it are. A segment that is
        // not there any more is not needed, either.
        self.unsealed = None;
        match self.found(number - 1)? {
            Some(before) if before.sealed().is_none() => {
                let path = self.dir.join(LOG).join(segment_name(number - 1));
                Err(Error::StoreCorrupted { path, reason: "the seal is missing".to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// The segment behind this one, if it was begun.
    fn begun_next(&self) -> Result<Option<SegmentScan>> {
        self.found(self.segment() + 1)
    }

    /// A segment, if it is there and was begun.
    fn found(&self, number: u64) -> Result<Option<SegmentScan>> {
        // What is no file, as a link, is no segment: the next one takes its place.
        let path = self.dir.join(LOG).join(segment_name(number));
        if self.disk.kind(&path)? != Some(EntryKind::File) {
            return Ok(None);
        }
        match SegmentScan::open(self.disk.as_ref(), &self.dir, self.salt, number) {
            Err(Error::Disk(error)) if error.is_not_found() => Ok(None),
            found => found,
        }
    }

    /// The record that was just moved to.
    pub(crate) fn record(&self) -> Option<Record<'_>> {
        self.scan.record()
    }

    /// At the end, where nobody writes: whether it is one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if something is missing behind it that had been durable; [`Error::Disk`].
    pub(crate) fn check_end(&mut self) -> Result<()> {
        self.scan.check_end(self.commit)?;
        self.check_seal_before()?;
        match self.begun_next()? {
            Some(mut next) => self.scan.check_torn_before(&mut next, self.commit),
            None => Ok(()),
        }
    }
}

fn open(
    disk: &dyn Disk,
    dir: &Path,
    salt: u64,
    (number, commit): (u64, u64),
) -> Result<SegmentScan> {
    let path = dir.join(LOG).join(segment_name(number));
    let missing = |reason: &str| Error::StoreCorrupted { path, reason: reason.to_owned() };
    let scan = match SegmentScan::open(disk, dir, salt, number) {
        Err(Error::Disk(error)) if error.is_not_found() => {
            return Err(missing("the file is missing"));
        }
        scan => scan?.ok_or_else(|| missing("not a segment of the log"))?,
    };

    if scan.header.first != commit + 1 {
        let rule = "first commit of the segment";
        return Err(scan.damage(0, rule, commit + 1, scan.header.first));
    }

    Ok(scan)
}
