//! Salvage of a damaged run: writes all entries on whole pages as a new run.
//!
//! The entries of a damaged page are gone; which keys they had is known as the range between the
//! last key before the damage and the first one behind it. An entry whose blob is damaged keeps its
//! value and loses the blob: without the entry an older value would show, or none.
//!
//! Invariant: the damaged run stays as it is. Nothing refers to the new one yet, so a crash leaves
//! a file that nothing names.
//!
//! Memory: the filter and the index of the new run; its largest value and its largest blob.

use std::path::Path;
use std::sync::Arc;

use terrane_io::{Access, DiskFile, OpenMode};

use crate::block::page::{PAGE_SIZE, PAYLOAD_SIZE};
use crate::corrupt::Corrupt;
use crate::entry::entry::{BlobSpan, EntryRef, Kind, key_hash};
use crate::error::{Error, Result, unreadable};
use crate::files::file_set::{FileSet, RunRef};
use crate::run::blob::Blob;
use crate::run::check::{Pages, Step, Sums};
use crate::run::run::{Run, read_meta};
use crate::run::writer::{RunBuild, RunBuilder};

/// The keys between two others, which were read on both sides of damage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct KeyGap {
    /// The keys are above this one; `None` for no bound.
    pub after: Option<Vec<u8>>,
    /// The keys are below this one; `None` for no bound.
    pub before: Option<Vec<u8>>,
}

/// A run that is damaged, and how another one is made of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DamagedRun {
    pub(crate) run: RunRef,
    pub(crate) build: RunBuild,
}

/// Result of salvaging a run.
#[derive(Debug)]
pub(crate) struct Salvaged {
    /// The new run, durable but for its name; `None` if nothing was whole.
    pub(crate) run: Option<Run>,
    /// The keys whose entries are lost, ascending.
    pub(crate) gaps: Vec<KeyGap>,
    /// Number of lost entries, if the footer is readable.
    pub(crate) lost: Option<u64>,
    /// How many pages of entries are lost.
    pub(crate) lost_pages: u32,
    /// The keys whose blobs are lost, ascending: all keys in these ranges that the run has.
    pub(crate) blob_gaps: Vec<KeyGap>,
    /// How many blobs are lost.
    pub(crate) lost_blobs: u64,
}

/// Ranges of keys, as they are met on the way through a run.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// The last one has no end yet if it `is_open`.
    found: Vec<KeyGap>,
    is_open: bool,
    last_key: Option<Vec<u8>>,
}

impl Gaps {
    /// Returns the ranges that were noted.
    pub(crate) fn finish(self) -> Vec<KeyGap> {
        self.found
    }

    /// Notes damage, behind the last key that was noted.
    pub(crate) fn open(&mut self) {
        if !self.is_open {
            self.found.push(KeyGap { after: self.last_key.clone(), before: None });
            self.is_open = true;
        }
    }

    /// Notes a whole entry.
    pub(crate) fn pass(&mut self, key: &[u8]) {
        if std::mem::take(&mut self.is_open)
            && let Some(gap) = self.found.last_mut()
        {
            gap.before = Some(key.to_vec());
        }
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
    }
}

/// Opens a file of a run; `None` if there is none that can be read.
fn open_file(files: &FileSet, path: &Path) -> Result<Option<Arc<dyn DiskFile>>> {
    match files.disk().open(path, OpenMode::Read, Access::Buffered) {
        Err(error) if error.is_not_found() || unreadable(&error).is_some() => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// Pages of a file, as many as there are, up to `limit`.
fn pages_of(file: &dyn DiskFile, limit: u64) -> Result<u32> {
    Ok((file.len()? / PAGE_SIZE as u64).min(limit) as u32)
}

/// The blobs of a damaged run.
pub(crate) struct Blobs<'a> {
    pages: Pages<'a>,
    end: u32,
}

impl<'a> Blobs<'a> {
    /// The blobs of the run with this identity.
    pub(crate) fn new(file: &'a dyn DiskFile, identity: u64) -> Result<Self> {
        let end = pages_of(file, u64::from(u32::MAX))?;
        let pages = Pages::new(file, identity, end).going_on();
        Ok(Self { pages, end })
    }

    /// A blob, if all of its pages are whole.
    pub(crate) fn read(&mut self, BlobSpan { offset, len }: BlobSpan) -> Result<Option<Arc<[u8]>>> {
        let payload = PAYLOAD_SIZE as u64;
        let end = offset.saturating_add(u64::from(len));
        if end > u64::from(self.end) * payload {
            return Ok(None);
        }

        let mut blob = Vec::with_capacity(len as usize);
        let mut at = offset;
        while at < end {
            let from = (at % payload) as usize;
            let to = PAYLOAD_SIZE.min(from + (end - at) as usize);
            match self.pages.blobs((at / payload) as u32)? {
                Ok(content) => blob.extend_from_slice(&content[from..to]),
                Err(_) => return Ok(None),
            }
            at += (to - from) as u64;
        }

        Ok(Some(blob.into()))
    }
}

/// Result of the first pass through a damaged run.
struct Survey {
    /// Sums over the entries on whole pages.
    sums: Sums,
    lost_pages: u32,
}

/// First pass: finds the whole pages among the first `end`, the gaps between them, and the sums of
/// their entries.
fn survey(
    file: &dyn DiskFile,
    run: &RunRef,
    end: u32,
    mut sums: Sums,
    gaps: &mut Gaps,
) -> Result<Survey> {
    let mut lost_pages = run.data_pages;
    let mut passed_to = 0;
    Pages::new(file, run.identity, end).going_on().walk(&mut |step| {
        match step {
            Step::Damage(_) => gaps.open(),
            Step::Entry(entry_at) => {
                gaps.pass(entry_at.entry.key);
                sums.add(&entry_at);
                // Entries of one page count its pages once.
                if passed_to <= entry_at.page {
                    lost_pages = lost_pages.saturating_sub(entry_at.pages);
                    passed_to = entry_at.page + entry_at.pages;
                }
            }
        }

        Ok(())
    })?;

    // The file ends before the last page of the run.
    if end < run.data_pages {
        gaps.open();
    }
    Ok(Survey { sums, lost_pages })
}

/// Writes the whole pages of a damaged run as a new run; `salt` is the salt of the session.
///
/// Cost: reads the pages of the run twice and its blobs once, writes those that are whole.
///
/// # Errors
/// [`Error::Corrupt`] if a page cannot be read a second time; [`Error::Disk`].
pub(crate) fn salvage(files: &Arc<FileSet>, damaged: &DamagedRun, salt: u64) -> Result<Salvaged> {
    let DamagedRun { run, build } = *damaged;

    let path = files.path(run.number);
    let mut gaps = Gaps::default();
    let Some(file) = open_file(files, &path)? else {
        gaps.open();
        let gaps = gaps.found;
        let blob_gaps = Vec::new();
        let lost_pages = run.data_pages;
        return Ok(Salvaged { run: None, gaps, lost: None, lost_pages, blob_gaps, lost_blobs: 0 });
    };

    let end = pages_of(file.as_ref(), run.data_pages.into())?;
    let sums = Sums::new(build.purpose, run.identity, salt, build.prefix_bytes);
    let Survey { sums, lost_pages } = survey(file.as_ref(), &run, end, sums, &mut gaps)?;

    // A footer of another identity belongs to an older file of this number.
    let footer = read_meta(&path, file.as_ref()).ok();
    let footer = footer.filter(|footer| footer.identity == run.identity);
    let lost = footer.map(|footer| footer.entries.saturating_sub(sums.meta.entries));

    // Second pass: write these entries into a new file.
    let plan = sums.plan(salt, &build);
    let mut saved = 0;
    let mut blob_gaps = Gaps::default();
    let mut lost_blobs = 0;

    let blobs_file = open_file(files, &files.blobs_path(run.number))?;
    let mut blobs = blobs_file.as_deref().map(|file| Blobs::new(file, run.identity)).transpose()?;

    let mut builder = RunBuilder::new(files, &plan)?;
    Pages::new(file.as_ref(), run.identity, end).going_on().walk(&mut |step| {
        let Step::Entry(entry_at) = step else { return Ok(()) };
        let mut entry = entry_at.entry;
        let mut blob = None;
        if entry.kind == Kind::InsertBlob {
            let read = blobs.as_mut().map(|blobs| blobs.read(entry.blob)).transpose()?;
            blob = read.flatten().map(Blob::Memory);
            if blob.is_none() {
                lost_blobs += 1;
                blob_gaps.open();
                entry = EntryRef { kind: Kind::Insert, blob: BlobSpan::default(), ..entry };
            }
        }

        if entry_at.entry.kind == entry.kind {
            blob_gaps.pass(entry.key);
        }

        saved += 1;
        builder.push(entry, blob.as_ref(), || key_hash(salt, entry.key))
    })?;

    // A medium that fails more and more may lose pages between the passes.
    if saved != sums.meta.entries {
        let expected = sums.meta.entries;
        let found = saved;
        let rule = "entries that can be read twice";
        return Err(Error::corrupt(&path, Corrupt::rule(rule, expected, found)));
    }

    let run = builder.finish()?;
    if let Some(run) = &run {
        run.sync()?;
    }

    let gaps = gaps.found;
    let blob_gaps = blob_gaps.found;
    Ok(Salvaged { run, gaps, lost, lost_pages, blob_gaps, lost_blobs })
}
