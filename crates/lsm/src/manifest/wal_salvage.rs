//! Salvage of a damaged WAL: keeps its beginning, up to the last whole commit before the damage.
//!
//! Commits build on each other, so none behind the damage is applied: what is left is a state that
//! the store had. A header and a seal say nothing that the segments around do not say too; to lose
//! these loses no commit.
//!
//! Invariants: a segment is written anew under a temporary name and takes its place when it is
//! durable; its records keep their bytes. Nothing is removed here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use terrane_io::files::create_afresh;
use terrane_io::{Access, Disk, EntryKind, OpenMode};

use crate::error::{Error, Result};
use crate::manifest::wal::{
    LOG, SEGMENT_HEADER_SIZE, SegmentHeader, SegmentScan, segment_name, segment_start, segments,
};

/// Bytes that are copied with one call.
const COPY_BYTES: u64 = 1 << 20;

/// A segment that is to be written anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rewrite {
    /// The number of the commit that its first record has.
    pub(crate) first: u64,
    /// Where the last record ends that it keeps.
    pub(crate) end: u64,
    /// The commit of that record, if the next segment goes on from there.
    pub(crate) sealed: Option<u64>,
}

/// The segments that are to be written anew, by number.
pub(crate) type Rewrites = BTreeMap<u64, Rewrite>;

/// A part of the log, as far as it is whole.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The last commit before the damage, or at the end.
    pub(crate) commit: u64,
    /// The segment that this end is in.
    pub(crate) segment: u64,
    /// Whether commits that had been durable may have followed.
    pub(crate) is_cut: bool,
    pub(crate) rewrites: Rewrites,
}

/// The log of a store.
pub(crate) struct DamagedWal<'a> {
    pub(crate) disk: &'a dyn Disk,
    /// The directory of the store.
    pub(crate) dir: &'a Path,
    /// `None` if it is lost: no record can be told from other bytes then.
    pub(crate) salt: Option<u64>,
    /// No table has this number or a greater one.
    pub(crate) next_table: u64,
}

impl DamagedWal<'_> {
    pub(crate) fn path(&self, number: u64) -> PathBuf {
        self.dir.join(LOG).join(segment_name(number))
    }

    /// The numbers of the segments that are there.
    pub(crate) fn segments(&self) -> Result<Vec<u64>> {
        if self.disk.kind(&self.dir.join(LOG))? != Some(EntryKind::Directory) {
            return Ok(Vec::new());
        }
        segments(self.disk, self.dir)
    }

    /// Follows the log from a segment on, which follows on `commit`, to its end or to segment
    /// `until`.
    ///
    /// # Errors
    /// [`Error::UnknownVersion`]; [`Error::Disk`] for more than unreadable places.
    pub(crate) fn follow(
        &self,
        (mut number, mut commit): (u64, u64),
        until: Option<u64>,
    ) -> Result<Chain> {
        let mut rewrites = Rewrites::new();
        // Each round is about another segment, and a missing one ends the log.
        loop {
            let first = commit + 1;
            let header = SegmentHeader { number, first };
            let mut end = SEGMENT_HEADER_SIZE;
            let mut state = State::CUT;

            if let Some((mut scan, is_headed)) = self.open(header)? {
                let is_whole = self.pass_records(&mut scan, &mut commit)?;
                end = scan.position();
                if is_whole {
                    let next = self.next(number, commit)?;
                    state = state_of(&mut scan, commit, next)?;
                }
                state.is_changed |= !is_headed;
                // With the header the mark is lost, so that nothing tells what followed.
                state.is_cut |= !is_headed && state.sealed.is_none() && scan.durable().is_none();
            }

            let State { is_cut, is_changed, sealed } = state;
            if is_changed {
                rewrites.insert(number, Rewrite { first, end, sealed });
            }

            if is_cut || sealed.is_none() || until == Some(number) {
                return Ok(Chain { commit, segment: number, is_cut, rewrites });
            }
            number += 1;
        }
    }

    /// A segment, and whether it has its header; `None` if nothing of it can be read.
    fn open(&self, header: SegmentHeader) -> Result<Option<(SegmentScan, bool)>> {
        let Some(salt) = self.salt else { return Ok(None) };
        match SegmentScan::open(self.disk, self.dir, salt, header.number) {
            Ok(Some(scan)) if scan.header == header => return Ok(Some((scan, true))),
            Err(Error::Disk(error)) if error.is_not_found() => return Ok(None),
            Err(Error::Disk(error)) if !error.is_unreadable() => return Err(error.into()),
            Err(error @ Error::UnknownVersion { .. }) => return Err(error),
            Ok(_) | Err(_) => {}
        }
        match SegmentScan::open_without_header(self.disk, self.dir, salt, header) {
            Err(Error::Disk(error)) if error.is_unreadable() => Ok(None),
            scan => Ok(scan?.map(|scan| (scan, false))),
        }
    }

    /// Passes whole records that follow on `commit`; returns whether it came to their end and not
    /// to damage.
    fn pass_records(&self, scan: &mut SegmentScan, commit: &mut u64) -> Result<bool> {
        loop {
            let record = match scan.next() {
                Err(Error::Disk(error)) if error.is_unreadable() => return Ok(false),
                record => record?,
            };
            let Some(record) = record else { return Ok(true) };
            if record.commit != *commit + 1 || record.updates(self.next_table).is_err() {
                // The record does not count, so a rewritten segment ends before it.
                let at = record.at();
                scan.go_back(at);
                return Ok(false);
            }
            *commit = record.commit;
        }
    }

    /// Last commit of segment `number` as the header of the segment behind it records it; `commit`
    /// is a candidate.
    fn next(&self, number: u64, commit: u64) -> Result<Next> {
        let Some(salt) = self.salt else { return Ok(Next::Nothing) };
        let found = match SegmentScan::open(self.disk, self.dir, salt, number + 1) {
            Err(Error::Disk(error)) if error.is_not_found() || error.is_unreadable() => None,
            found => found?,
        };

        let Some(mut scan) = found else { return Ok(Next::Nothing) };
        let is_written = match scan.advance() {
            // Bytes that cannot be read may be a record.
            Err(Error::Disk(error)) if error.is_unreadable() => true,
            advanced => advanced?,
        };

        if !is_written && scan.sealed().is_none() {
            return Ok(Next::Nothing);
        }
        if scan.header.first == commit + 1 {
            return Ok(Next::Follows);
        }
        let told = match scan.told_durable() {
            Err(Error::Disk(error)) if error.is_unreadable() => u64::MAX,
            told => told?,
        };
        Ok(if told > commit { Next::Written } else { Next::Torn })
    }

    /// The last commit that anything from segment `number` on tells of.
    pub(crate) fn told(&self, number: u64) -> Result<Option<u64>> {
        let Some(salt) = self.salt else { return Ok(None) };
        let mut told = None;
        for number in self.segments()?.into_iter().filter(|other| *other >= number) {
            let Ok(Some(mut scan)) = SegmentScan::open(self.disk, self.dir, salt, number) else {
                continue;
            };
            let first = Some(scan.header.first.saturating_sub(1));
            told = told.max(first).max(scan.sealed()).max(scan.durable());
            while let Ok(Some(record)) = scan.next() {
                told = told.max(Some(record.commit));
            }
        }

        Ok(told)
    }

    /// Writes a segment anew.
    ///
    /// # Errors
    /// [`Error::Disk`]. The segment is as it was then, or as it is to be.
    pub(crate) fn rewrite(&self, number: u64, rewrite: &Rewrite) -> Result<()> {
        let log = self.dir.join(LOG);
        if self.disk.kind(&log)?.is_none() {
            self.disk.create_dir(&log)?;
            self.disk.sync_dir(self.dir)?;
        }

        assert!(SEGMENT_HEADER_SIZE <= rewrite.end, "a segment ends behind its header");
        let path = self.path(number);
        let temporary = path.with_extension("log.tmp");
        let mode = OpenMode::CreateNew;
        let access = Access::Buffered;
        let file = create_afresh(self.disk, &temporary, mode, access)?;
        let header = SegmentHeader { number, first: rewrite.first };
        file.write_at(&segment_start(header, rewrite.sealed), 0)?;

        if rewrite.end > SEGMENT_HEADER_SIZE {
            let old = self.disk.open(&path, OpenMode::Read, access)?;
            let mut at = SEGMENT_HEADER_SIZE;
            // The last record may end before the next multiple that records begin at.
            let end = rewrite.end.min(old.len()?);
            while at < end {
                let mut bytes = vec![0; (end - at).min(COPY_BYTES) as usize];
                old.read_at(&mut bytes, at)?;
                file.write_at(&bytes, at)?;
                at += bytes.len() as u64;
            }
        }

        // Durable before it takes the place of the damaged segment.
        file.sync()?;
        drop(file);

        self.disk.rename(&temporary, &path)?;
        Ok(self.disk.sync_dir(&log)?)
    }
}

/// Statement of a segment about the segment before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It is not there, or not written to: the one before is the last.
    Nothing,
    /// Its records follow on the commit in question.
    Follows,
    /// Its records follow on another one, and something says that this was durable.
    Written,
    /// Its records follow on another one, and nothing says that this was durable: the end before
    /// is torn.
    Torn,
}

/// Fate of a segment in a salvage.
#[derive(Debug, Clone, Copy)]
struct State {
    /// Whether commits are lost behind its last whole record.
    is_cut: bool,
    /// Whether it is to be written anew.
    is_changed: bool,
    /// Its last commit, if the next segment goes on from there.
    sealed: Option<u64>,
}

impl State {
    const CUT: Self = Self { is_cut: true, is_changed: true, sealed: None };
}

/// Returns the fate of a segment whose records are whole up to `commit`.
fn state_of(scan: &mut SegmentScan, commit: u64, next: Next) -> Result<State> {
    Ok(match (scan.sealed(), next) {
        (Some(last), _) if last == commit => {
            State { is_cut: false, is_changed: false, sealed: Some(commit) }
        }
        // Its seal is lost.
        (None, Next::Follows) => State { is_cut: false, is_changed: true, sealed: Some(commit) },
        (None, Next::Written) => State { is_changed: !is_end(scan, commit)?, ..State::CUT },
        (None, Next::Nothing | Next::Torn) if is_end(scan, commit)? => {
            State { is_cut: false, is_changed: false, sealed: None }
        }
        (Some(_), _) | (None, Next::Nothing | Next::Torn) => State::CUT,
    })
}

/// Whether nothing tells that records are missing behind those that were passed.
fn is_end(scan: &mut SegmentScan, commit: u64) -> Result<bool> {
    match scan.check_end(commit) {
        Err(Error::Corrupt { .. }) => Ok(false),
        Err(Error::Disk(error)) if error.is_unreadable() => Ok(false),
        checked => checked.map(|()| true),
    }
}
