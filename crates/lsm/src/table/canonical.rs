//! The logical content of a table as one stream of bytes: equal contents give equal bytes.
//!
//! Writing goes through a cursor, so that nothing of runs, levels or salts can show. Reading trusts
//! nothing: it takes no length for true before as many bytes have come, and gives a table only when
//! order, number and digest of the entries are right.

#![doc = include_str!("../../../../docs/format/canonical.md")]

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::sync::Arc;

use terrane_io::DiskFile;

use crate::entry::digest::StateDigest;
use crate::entry::entry::{KEY_BYTES_MAX, Update};
use crate::error::{Error, Result};
use crate::lookup::result::Record;
use crate::run::blob::{self, BlobRef};
use crate::session::inner::SessionInner;
use crate::table::cursor::Cursor;

/// First bytes of a canonical export.
pub(crate) const CANONICAL_MAGIC: [u8; 8] = *b"TerraCan";

/// Version of canonical exports that is written, and the only one that is read.
pub(crate) const CANONICAL_VERSION: u32 = 1;

/// Tag of an entry without blob.
pub(crate) const TAG_ENTRY: u8 = 1;

/// Tag of an entry with blob.
pub(crate) const TAG_ENTRY_WITH_BLOB: u8 = 2;

/// Tag of the end record.
pub(crate) const TAG_END: u8 = 3;

/// Entries that are read or written at a time.
const BATCH_ENTRIES: usize = 1024;

/// Bytes of magic and version.
const HEAD_BYTES: u64 = 12;

/// Bytes of the end record: tag, count, digest.
const END_BYTES: u64 = 41;

/// Bytes of blobs, or of entries, after which a batch is full.
const BATCH_BYTES: usize = 4 << 20;

/// Totals of a canonical export.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CanonicalSummary {
    /// Number of entries.
    pub count: u64,
    /// SHA-256 of the entries, as [`StateDigest`] gives it.
    pub digest: [u8; 32],
    /// Length of the export.
    pub bytes: u64,
}

/// Counts what passes, and digests the entries.
struct Output<W> {
    out: W,
    bytes: u64,
    digest: StateDigest,
}

impl<W: Write> Output<W> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(stream)
    }

    fn put_with_length(&mut self, bytes: &[u8]) -> Result<()> {
        debug_assert!(u32::try_from(bytes.len()).is_ok(), "a length is a u32");
        // Keys, values and blobs are shorter than 4 GiB.
        self.put(&(bytes.len() as u32).to_le_bytes())?;
        self.put(bytes)
    }

    fn put_entry(&mut self, key: &[u8], value: &[u8], blob: Option<&[u8]>) -> Result<()> {
        self.digest.add(key, value, blob);
        self.put(&[if blob.is_some() { TAG_ENTRY_WITH_BLOB } else { TAG_ENTRY }])?;
        self.put_with_length(key)?;
        self.put_with_length(value)?;
        blob.map_or(Ok(()), |blob| self.put_with_length(blob))
    }

    /// Puts entries with their blobs, which the cursor keeps that gave the references.
    fn put_all(&mut self, session: &SessionInner, records: &[Record]) -> Result<()> {
        let refs: Vec<_> = records.iter().filter_map(|record| record.blob.clone()).collect();
        let blobs = blob::retrieve(session.disk(), blob::READS_IN_FLIGHT, &refs)?;
        debug_assert_eq!(blobs.len(), refs.len(), "a blob for each reference");
        let mut blobs = blobs.iter().map(Vec::as_slice);
        for Record { key, value, blob } in records {
            self.put_entry(key, value, blob.as_ref().and_then(|_| blobs.next()))?;
        }
        Ok(())
    }
}

fn stream(error: io::Error) -> Error {
    Error::Stream { source: Arc::new(error) }
}

/// Writes what a cursor over all of a table gives.
pub(crate) fn export(
    session: &SessionInner,
    mut cursor: Cursor,
    out: impl Write,
) -> Result<CanonicalSummary> {
    let out = BufWriter::with_capacity(1 << 16, out);
    let mut output = Output { out, bytes: 0, digest: StateDigest::default() };
    output.put(&CANONICAL_MAGIC)?;
    output.put(&CANONICAL_VERSION.to_le_bytes())?;

    // Entries whose blobs are read together, and those between them.
    let mut records = Vec::new();
    let mut blob_bytes = 0;
    while let Some(record) = cursor.next_ref()? {
        let blob = record.blob();
        // While no batch is under way, an entry without a blob goes out uncopied.
        if blob.is_none() && records.is_empty() {
            output.put_entry(record.key, record.value, None)?;
            continue;
        }
        blob_bytes += blob.as_ref().map_or(0, BlobRef::len);
        records.push(record.to_record());
        if records.len() >= BATCH_ENTRIES || blob_bytes >= BATCH_BYTES {
            output.put_all(session, &records)?;
            (records, blob_bytes) = (Vec::new(), 0);
        }
    }

    output.put_all(session, &records)?;
    let digest = std::mem::take(&mut output.digest);
    let count = digest.count();
    let digest = digest.finish();
    output.put(&[TAG_END])?;
    output.put(&count.to_le_bytes())?;
    output.put(&digest)?;
    output.out.flush().map_err(stream)?;
    Ok(CanonicalSummary { count, digest, bytes: output.bytes })
}

/// Knows how far it has come.
struct Input<R> {
    input: R,
    offset: u64,
}

impl<R: Read> Input<R> {
    fn malformed<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(Error::CanonicalMalformed { offset: self.offset, reason: reason.into() })
    }

    /// The next `len` bytes, or fewer at the end of the stream. What is not there takes no memory.
    fn up_to(&mut self, len: u64) -> Result<Vec<u8>> {
        // The length may be damaged, so no memory is allocated for bytes that have not come.
        let mut bytes = Vec::new();
        self.input.by_ref().take(len).read_to_end(&mut bytes).map_err(stream)?;
        self.offset += bytes.len() as u64;
        Ok(bytes)
    }

    fn bytes(&mut self, len: u32) -> Result<Vec<u8>> {
        let bytes = self.up_to(len.into())?;
        if bytes.len() < len as usize { self.malformed("it ends early") } else { Ok(bytes) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes(N as u32)?);
        Ok(array)
    }

    fn with_length(&mut self) -> Result<Vec<u8>> {
        let len = u32::from_le_bytes(self.array()?);
        self.bytes(len)
    }
}

/// An entry read.
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    value: Vec<u8>,
    blob: Option<Vec<u8>>,
}

impl Entry {
    pub(crate) fn update(&self) -> Update<'_> {
        match &self.blob {
            None => Update::Insert(&self.value),
            Some(blob) => Update::InsertWithBlob(&self.value, blob),
        }
    }
}

/// Reads an export; `take` is given its entries in order, many at a time. Only a success says that
/// they are those of the export.
pub(crate) fn import(
    input: impl Read,
    mut take: impl FnMut(&[Entry]) -> Result<()>,
) -> Result<CanonicalSummary> {
    let input = BufReader::with_capacity(1 << 16, input);
    let mut input = Input { input, offset: 0 };
    check_head(&mut input)?;
    let mut digest = StateDigest::default();

    let mut last: Option<Vec<u8>> = None;
    let mut has_ended = false;
    while !has_ended {
        let mut batch = Vec::new();
        let mut bytes = 0;
        // Both limits bound the memory that a hostile stream can take.
        while batch.len() < BATCH_ENTRIES && bytes < BATCH_BYTES {
            let Some(entry) = next_entry(&mut input, last.as_deref())? else {
                has_ended = true;
                break;
            };
            digest.add(&entry.key, &entry.value, entry.blob.as_deref());
            bytes += entry.value.len() + entry.blob.as_ref().map_or(0, Vec::len);
            last = Some(entry.key.clone());
            batch.push(entry);
        }
        take(&batch)?;
    }

    check_end(input, digest)
}

/// Reads the header and the trailer of an export, not its entries.
pub(crate) fn summary(file: &dyn DiskFile) -> Result<CanonicalSummary> {
    let bytes = file.len()?;

    let malformed =
        |offset, reason: &str| Err(Error::CanonicalMalformed { offset, reason: reason.to_owned() });
    // The trailer must not overlap the header.
    let Some(end) = bytes.checked_sub(END_BYTES).filter(|&end| end >= HEAD_BYTES) else {
        return malformed(bytes, "it ends early");
    };
    let mut head = [0; HEAD_BYTES as usize];
    let mut last = [0; END_BYTES as usize];
    file.read_at(&mut head, 0)?;
    file.read_at(&mut last, end)?;
    check_head(&mut Input { input: head.as_slice(), offset: 0 })?;

    let mut input = Input { input: last.as_slice(), offset: end };
    if input.array()? != [TAG_END] {
        return malformed(end, "there is no end record");
    }
    let count = u64::from_le_bytes(input.array()?);
    Ok(CanonicalSummary { count, digest: input.array()?, bytes })
}

/// Reads magic and version.
fn check_head(input: &mut Input<impl Read>) -> Result<()> {
    let malformed = |offset, reason| Err(Error::CanonicalMalformed { offset, reason });
    if input.up_to(8)? != CANONICAL_MAGIC {
        return malformed(0, "it does not begin with `TerraCan`".to_owned());
    }
    let version = u32::from_le_bytes(input.array()?);
    if version != CANONICAL_VERSION {
        let known = format!("format version {version}; this program reads {CANONICAL_VERSION}");
        return malformed(8, known);
    }
    Ok(())
}

/// The next entry, whose key must be above the `last` one; `None` once the tag of the end has been
/// read.
fn next_entry(input: &mut Input<impl Read>, last: Option<&[u8]>) -> Result<Option<Entry>> {
    let [tag] = input.array()?;
    if tag == TAG_END {
        return Ok(None);
    }

    if tag != TAG_ENTRY && tag != TAG_ENTRY_WITH_BLOB {
        // The fault is at the tag, which has been passed.
        input.offset -= 1;
        return input.malformed(format!("unknown tag {tag}"));
    }

    let key_len = u32::from_le_bytes(input.array()?);
    // Only the limit of keys is checked here: the table refuses values that are too long.
    if key_len as usize > KEY_BYTES_MAX {
        return input.malformed(format!("a key of {key_len} bytes; the limit is {KEY_BYTES_MAX}"));
    }

    let key = input.bytes(key_len)?;
    // An export has each key once and in order.
    if last.is_some_and(|last| last >= key.as_slice()) {
        return input.malformed("the key is not above the one before it");
    }
    let value = input.with_length()?;
    let blob = if tag == TAG_ENTRY { None } else { Some(input.with_length()?) };
    Ok(Some(Entry { key, value, blob }))
}

/// Reads what follows the tag of the end record.
fn check_end(mut input: Input<impl Read>, digest: StateDigest) -> Result<CanonicalSummary> {
    let count = u64::from_le_bytes(input.array()?);
    if count != digest.count() {
        let read = digest.count();
        return input.malformed(format!("the end says {count} entries; {read} have been read"));
    }

    let expected = input.array()?;
    let found = digest.finish();
    if expected != found {
        return Err(Error::CanonicalDigestMismatch { expected, found });
    }

    // The digest would not cover bytes behind the end.
    if !input.up_to(1)?.is_empty() {
        return input.malformed("bytes after the end");
    }
    Ok(CanonicalSummary { count, digest: found, bytes: input.offset })
}
