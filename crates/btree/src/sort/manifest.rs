//! The manifest of a sort: its parameters and its finished runs.
//!
//! Each run and each merge replaces the manifest atomically. So every file that it names is whole
//! and durable, and every other file is free to be removed.
//!
//! Runs that follow each other in the input are merged with each other only. So the order of the
//! runs is the order of the input, and a record needs no number of its own, unless equal keys are
//! refused with their positions.

use std::path::Path;

use terrane_io::bytes::{Overrun, Reader, Writer};
use terrane_io::checksum::crc32c;
use terrane_io::files::{read_file, replace_file};
use terrane_io::{Disk, Result as IoResult};

use crate::page::corrupt::Corrupt;
use crate::page::error::{Error, Result};

/// Name of the file.
pub(super) const MANIFEST: &str = "sort.manifest";

/// Name of the file that an interrupted [`replace_file`] leaves behind.
pub(super) const MANIFEST_TMP: &str = "sort.manifest.tmp";

/// First bytes of the file.
pub(super) const SORT_MAGIC: [u8; 8] = *b"TerraSrt";

/// Version of a sort's files.
pub(super) const SORT_VERSION: u32 = 1;

/// Most runs at a time; above that some are merged before the next one is written. Bounds the
/// manifest to 41 KB.
pub(super) const RUNS_MAX: usize = 1024;

/// Bytes of the manifest before its runs.
const HEADER_SIZE: usize = 48;

/// Bytes of a run in the manifest.
const RUN_SIZE: usize = 40;

/// Largest manifest with its checksum, in bytes.
const MANIFEST_BYTES_MAX: u64 = (HEADER_SIZE + RUNS_MAX * RUN_SIZE + 4) as u64;

/// The parameters that must be the same for a sort to be resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parameters {
    /// The caller's identity of the input.
    pub(super) identity: u64,
    pub(super) block_bytes: u32,
    pub(super) fan_in: u32,
    /// Whether records carry their position, since equal keys are refused.
    pub(super) is_unique: bool,
}

/// A finished run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) number: u64,
    /// First record of the input that the run covers.
    pub(super) first: u64,
    /// Number of records of the input that the run covers.
    pub(super) covered: u64,
    /// Number of its own records; fewer if keys came several times.
    pub(super) records: u64,
    pub(super) blocks: u64,
}

/// The state of a sort.
///
/// Invariant: the runs follow each other in the input, from its first record on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) parameters: Parameters,
    /// The number of the next run. A number is reused only if the same run is written again.
    pub(super) next_number: u64,
    pub(super) runs: Vec<Run>,
}

/// Reason why bytes are not a manifest for this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Corrupt(Corrupt),
    /// The bytes are whole, and of this version.
    Version(u32),
}

impl From<Corrupt> for Refused {
    fn from(what: Corrupt) -> Self {
        Self::Corrupt(what)
    }
}

impl Manifest {
    /// A sort that has no run yet.
    pub(super) fn new(parameters: Parameters) -> Self {
        Self { parameters, next_number: 1, runs: Vec::new() }
    }

    /// Number of records of the input in finished runs.
    pub(super) fn covered(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.first + run.covered)
    }

    /// The bytes of the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(HEADER_SIZE + self.runs.len() * RUN_SIZE + 4);
        debug_assert!(self.runs.len() <= RUNS_MAX, "the manifest has a bounded length");
        let Parameters { identity, block_bytes, fan_in, is_unique } = self.parameters;
        out.put(&SORT_MAGIC).u32(SORT_VERSION).u64(identity);
        out.u32(block_bytes).u32(fan_in).u32(u32::from(is_unique));
        out.u64(self.next_number).u64(self.runs.len() as u64);

        for run in &self.runs {
            out.u64(run.number).u64(run.first).u64(run.covered).u64(run.records).u64(run.blocks);
        }

        let crc = crc32c(out.bytes());
        out.u32(crc);
        out.into_bytes()
    }

    /// Decodes the bytes of the file.
    pub(super) fn decode(bytes: &[u8]) -> std::result::Result<Self, Refused> {
        let short =
            |_: Overrun| Corrupt::rule("length", HEADER_SIZE as u64 + 4, bytes.len() as u64);
        let Some((content, crc)) = bytes.split_last_chunk::<4>() else {
            return Err(Corrupt::rule("length", HEADER_SIZE as u64 + 4, bytes.len() as u64).into());
        };

        let magic = content.first_chunk().copied().unwrap_or_default();
        expect("magic", u64::from_le_bytes(SORT_MAGIC), u64::from_le_bytes(magic))?;
        expect("crc", crc32c(content).into(), u32::from_le_bytes(*crc).into())?;

        let mut input = Reader::new(content);
        input.take(SORT_MAGIC.len()).map_err(short)?;

        let version = input.u32().map_err(short)?;
        // What follows in another version may mean anything.
        if version != SORT_VERSION {
            return Err(Refused::Version(version));
        }

        let parameters = Parameters {
            identity: input.u64().map_err(short)?,
            block_bytes: input.u32().map_err(short)?,
            fan_in: input.u32().map_err(short)?,
            is_unique: match input.u32().map_err(short)? {
                0 => false,
                1 => true,
                found => return Err(Corrupt::rule("unique", 1, found.into()).into()),
            },
        };

        let next_number = input.u64().map_err(short)?;
        let count = input.u64().map_err(short)?;
        // The count must fit the bytes that are there, so a forged count allocates nothing.
        expect("run count", (input.rest().len() / RUN_SIZE) as u64, count)?;

        let mut manifest = Self { parameters, next_number, runs: Vec::new() };
        while input.rest().len() >= RUN_SIZE {
            let run = Run {
                number: input.u64().map_err(short)?,
                first: input.u64().map_err(short)?,
                covered: input.u64().map_err(short)?,
                records: input.u64().map_err(short)?,
                blocks: input.u64().map_err(short)?,
            };
            // Runs follow each other in the input without a gap.
            expect("first record of a run", manifest.covered(), run.first)?;
            // The end of what the run covers must be a number, too.
            let max = u64::MAX - run.first;
            if run.covered == 0 || run.covered > max {
                return Err(Corrupt::rule("records covered by a run", 1, run.covered).into());
            }
            manifest.runs.push(run);
        }

        expect("bytes after the runs", 0, input.rest().len() as u64)?;
        Ok(manifest)
    }

    /// Writes the manifest, durably.
    pub(super) fn store(&self, disk: &dyn Disk, dir: &Path) -> IoResult<()> {
        replace_file(disk, &dir.join(MANIFEST), &self.encode())
    }

    /// Reads the manifest in `dir`, if there is one.
    pub(super) fn load(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(MANIFEST);
        let bytes = match read_file(disk, &path, MANIFEST_BYTES_MAX) {
            Err(error) if error.is_not_found() => return Ok(None),
            read => read?,
        };

        Self::decode(&bytes).map(Some).map_err(|refused| match refused {
            Refused::Corrupt(what) => Error::Corrupt { path, what },
            Refused::Version(found) => {
                Error::UnsupportedVersion { path, found, newest: SORT_VERSION }
            }
        })
    }
}

/// Checks that a field has the value that it must have.
pub(super) fn expect(
    rule: &'static str,
    expected: u64,
    found: u64,
) -> std::result::Result<(), Corrupt> {
    if expected == found { Ok(()) } else { Err(Corrupt::rule(rule, expected, found)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let parameters = Parameters { identity: 7, block_bytes: 4096, fan_in: 15, is_unique: true };
        let runs = vec![
            Run { number: 4, first: 0, covered: 100, records: 90, blocks: 2 },
            Run { number: 3, first: 100, covered: 5, records: 5, blocks: 1 },
        ];
        Manifest { parameters, next_number: 5, runs }
    }

    #[test]
    fn what_is_written_is_read() {
        let written = manifest();
        assert_eq!(Manifest::decode(&written.encode()), Ok(written.clone()));
        assert_eq!(written.covered(), 105);
        let empty = Manifest::new(written.parameters);
        assert_eq!(Manifest::decode(&empty.encode()), Ok(empty));
    }

    #[test]
    fn the_largest_manifest_is_within_the_limit() {
        let mut largest = manifest();
        largest.runs.resize(RUNS_MAX, largest.runs[0]);
        assert_eq!(largest.encode().len() as u64, MANIFEST_BYTES_MAX);
    }

    #[test]
    fn a_manifest_that_is_not_whole_is_refused() {
        let bytes = manifest().encode();
        for cut in 0..bytes.len() {
            assert!(Manifest::decode(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_manifest_that_breaks_a_rule_is_refused_by_its_name() {
        // Where in the encoded manifest, what to write there, which rule that breaks.
        let cases: [(usize, &[u8], &str); 5] = [
            (28, &[2], "unique"),
            (40, &[3], "run count"),
            (48 + 8, &[1], "first record of a run"),
            (48 + 16, &[0], "records covered by a run"),
            (48 + 40 + 16, &[0xFF; 8], "records covered by a run"),
        ];

        for (at, with, rule) in cases {
            let mut bytes = manifest().encode();
            bytes[at..at + with.len()].copy_from_slice(with);
            let end = bytes.len() - 4;
            let crc = crc32c(&bytes[..end]);
            bytes[end..].copy_from_slice(&crc.to_le_bytes());
            let refused = Manifest::decode(&bytes).unwrap_err();
            assert!(matches!(refused, Refused::Corrupt(what) if what.rule == rule), "{refused:?}");
        }
    }
}
