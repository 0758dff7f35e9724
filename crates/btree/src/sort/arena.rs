//! Records in memory that become one run: their bytes in one piece of memory, and an array to be
//! sorted.
//!
//! Both are allocated at once, in a proportion that follows from the records so far, and never
//! grow. So the memory budget is a bound and no estimate.
//!
//! Rejected: a stable sort (takes half as much memory again; comparing places does the same).

use terrane_io::key_order::key_prefix;
use terrane_io::prefetch;

use super::run::{RECORD_BYTES_MAX, Record};
use crate::page::error::{Error, Result};

/// Bytes of an element of the array.
const RECORD_REF_BYTES: usize = size_of::<RecordRef>();

/// Distance at which sorted records, which can lie anywhere, are prefetched into the processor's
/// cache.
const PREFETCHED_RECORDS: usize = 16;

/// A record by its place, with the first bytes of its key.
#[derive(Debug, Clone, Copy)]
struct RecordRef {
    prefix: u64,
    at: u64,
}

/// Successive records of the input.
#[derive(Debug)]
pub(super) struct Arena {
    bytes: Vec<u8>,
    entries: Vec<RecordRef>,
    is_unique: bool,
}

impl Arena {
    /// An arena without memory.
    pub(super) fn new(is_unique: bool) -> Self {
        Self { bytes: Vec::new(), entries: Vec::new(), is_unique }
    }

    /// Allocates `budget` bytes for records of `record_bytes` bytes on average.
    ///
    /// Fails if the system does not have that much.
    pub(super) fn allocate(&mut self, budget: usize, record_bytes: usize) -> Result<()> {
        let room = budget.saturating_sub(RECORD_BYTES_MAX) / RECORD_REF_BYTES;
        let entries = (budget / (record_bytes + RECORD_REF_BYTES)).min(room);
        let bytes = budget - entries * RECORD_REF_BYTES;
        debug_assert!(self.entries.is_empty(), "memory is divided before the first record");
        let allocated = self.entries.try_reserve_exact(entries);
        allocated.and_then(|()| self.bytes.try_reserve_exact(bytes)).map_err(|_| {
            let allowed = "the system does not have so much";
            Error::InvalidConfig { option: "memory_bytes", value: budget.to_string(), allowed }
        })
    }

    /// Gives the memory back.
    pub(super) fn release(&mut self) {
        self.bytes = Vec::new();
        self.entries = Vec::new();
    }

    /// Memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * RECORD_REF_BYTES
    }

    /// Number of records.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether one more record fits.
    pub(super) fn has_room(&self, record_bytes: usize) -> bool {
        self.entries.len() < self.entries.capacity()
            && record_bytes <= self.bytes.capacity() - self.bytes.len()
    }

    /// Appends a record, which must fit.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8], position: u64) {
        debug_assert!(self.entries.len() < self.entries.capacity(), "an arena never grows");
        self.entries.push(RecordRef { prefix: key_prefix(key), at: self.bytes.len() as u64 });
        Record::put(&mut self.bytes, key, value, self.is_unique.then_some(position));
    }

    /// The record that an element of the array stands for.
    fn record(&self, entry: &RecordRef) -> Record<'_> {
        let bytes = self.bytes.get(entry.at as usize..).unwrap_or_default();
        Record::first_of(bytes, self.is_unique).expect("entries stand for whole records")
    }

    /// Sorts the records by key, equal keys in the order in which they came.
    pub(super) fn sort(&mut self) {
        let mut entries = std::mem::take(&mut self.entries);
        // The order is total, so sorting in place is stable without the memory of a stable sort.
        entries.sort_unstable_by(|left, right| {
            let prefixes = left.prefix.cmp(&right.prefix);
            let keys = || self.record(left).key.cmp(self.record(right).key);
            prefixes.then_with(keys).then(left.at.cmp(&right.at))
        });
        self.entries = entries;
    }

    /// The last record with the key of record `index`, and the index behind it; `None` at the end.
    /// The records must be sorted.
    pub(super) fn last_of_key(&self, index: usize) -> Result<Option<(Record<'_>, usize)>> {
        let Some(entry) = self.entries.get(index) else { return Ok(None) };

        if let Some(ahead) = self.entries.get(index + PREFETCHED_RECORDS)
            && let Some(byte) = self.bytes.get(ahead.at as usize)
        {
            prefetch(byte);
        }

        let mut last = self.record(entry);
        let mut next = index + 1;

        let prefix = entry.prefix;
        while let Some(entry) = self.entries.get(next).filter(|entry| entry.prefix == prefix) {
            let record = self.record(entry);
            if record.key != last.key {
                break;
            }
            if self.is_unique {
                return Err(Error::DuplicateKey { position: record.position });
            }
            last = record;
            next += 1;
        }

        Ok(Some((last, next)))
    }
}
