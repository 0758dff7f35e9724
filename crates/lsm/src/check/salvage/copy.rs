//! Copies of files, whose unreadable sectors become zeros.

use std::path::PathBuf;

use terrane_io::{Access, Disk, DiskFile, OpenMode};

use crate::check::verify::Progress;
use crate::error::Result;

/// Bytes that are read with one call.
const CHUNK_BYTES: u64 = 1 << 20;

/// Bytes that are given up together if they cannot be read: a page.
const SECTOR_BYTES: u64 = 4096;

/// Files to copy, each with its new path. Missing ones are left out.
pub(super) struct Copier<'a> {
    disk: &'a dyn Disk,
    files: Vec<(PathBuf, PathBuf)>,
    total_bytes: u64,
}

impl<'a> Copier<'a> {
    pub(super) fn new(disk: &'a dyn Disk, files: Vec<(PathBuf, PathBuf)>) -> Result<Self> {
        let mut there = Vec::new();
        let mut total_bytes = 0;
        for (from, to) in files {
            match disk.open(&from, OpenMode::Read, Access::Buffered) {
                Ok(file) => total_bytes += file.len()?,
                // A link or a directory in the place of a file counts as missing.
                Err(error) if error.is_not_found() || is_no_file(&error) => continue,
                Err(error) => return Err(error.into()),
            }
            there.push((from, to));
        }
        Ok(Self { disk, files: there, total_bytes })
    }

    pub(super) fn run(&self, progress: Progress<'_>) -> Result<()> {
        let mut done_bytes = 0;
        for (from, to) in &self.files {
            let from = self.disk.open(from, OpenMode::Read, Access::Buffered)?;
            let to = self.disk.open(to, OpenMode::CreateNew, Access::Buffered)?;
            let end = from.len()?;
            let mut at = 0;
            while at < end {
                let mut bytes = vec![0; (end - at).min(CHUNK_BYTES) as usize];
                if let Err(error) = from.read_at(&mut bytes, at) {
                    if !error.is_unreadable() {
                        return Err(error.into());
                    }
                    read_sectors(from.as_ref(), &mut bytes, at)?;
                }
                to.write_at(&bytes, at)?;
                at += bytes.len() as u64;
                done_bytes += bytes.len() as u64;
                progress(done_bytes, self.total_bytes);
            }
            to.sync()?;
        }
        Ok(())
    }
}

fn is_no_file(error: &terrane_io::Error) -> bool {
    matches!(error, terrane_io::Error::WrongKind { .. })
}

/// Reads sector by sector; those that cannot be read stay zeros.
fn read_sectors(file: &dyn DiskFile, bytes: &mut [u8], at: u64) -> Result<()> {
    bytes.fill(0);
    for (sector, offset) in
        bytes.chunks_mut(SECTOR_BYTES as usize).zip((at..).step_by(SECTOR_BYTES as usize))
    {
        if let Err(error) = file.read_at(sector, offset) {
            if !error.is_unreadable() {
                return Err(error.into());
            }
            sector.fill(0);
        }
    }
    Ok(())
}
