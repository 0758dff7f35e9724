//! Merge pipe: carries entries from a thread that merges to a thread that writes.
//!
//! The entries are copied into batches of some hundred kilobytes, so that a thread waits only if it
//! is the faster one. Written batches return to be filled again; there are [`BATCHES`] in all.
//!
//! Invariant: the entries of a batch are in the order in which they were added.

use terrane_io::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::entry::entry::{BlobSpan, EntryRef, Kind};
use crate::run::blob::Blob;

/// A batch is full from this many bytes of keys and values on.
const BATCH_BYTES: usize = 128 << 10;

/// One batch that is filled, one that is emptied, and two between them.
const BATCHES: usize = 4;

#[derive(Debug, Clone, Copy)]
struct BatchEntry {
    /// Offset of the key in the bytes of the batch; the value follows it.
    start: usize,
    key_len: usize,
    value_len: usize,
    kind: Kind,
}

/// Some entries of a merge, and the pages passed when they were added.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    places: Vec<BatchEntry>,
    /// Blobs of the entries that have one, in the order of the entries.
    blobs: Vec<Blob>,
    /// Pages that the merge has passed in its inputs.
    pub(crate) pages_passed: u64,
}

impl Batch {
    fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
        self.blobs.clear();
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES
    }

    /// Adds an entry; an insert with blob comes with its blob.
    pub(crate) fn push(&mut self, entry: EntryRef<'_>, blob: Option<Blob>) {
        let EntryRef { key, kind, value, .. } = entry;
        debug_assert_eq!(blob.is_some(), kind == Kind::InsertBlob);
        let start = self.bytes.len();
        let key_len = key.len();
        let value_len = value.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.places.push(BatchEntry { start, key_len, value_len, kind });
        self.blobs.extend(blob);
        debug_assert_eq!(self.bytes.len(), start + key_len + value_len);
        debug_assert!(self.blobs.len() <= self.places.len(), "an entry has one blob at most");
    }

    /// Returns the entries with their blobs; the blob spans in the entries are meaningless.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (EntryRef<'_>, Option<&Blob>)> {
        let mut blobs = self.blobs.iter();
        self.places.iter().map(move |&BatchEntry { start, key_len, value_len, kind }| {
            let (key, value) = self.bytes[start..start + key_len + value_len].split_at(key_len);
            let blob = if kind == Kind::InsertBlob { blobs.next() } else { None };
            (EntryRef { key, kind, value, blob: BlobSpan::default() }, blob)
        })
    }
}

/// Side of the pipe that fills batches.
#[derive(Debug)]
pub(crate) struct PipeWriter {
    empty: Receiver<Batch>,
    full: SyncSender<Batch>,
}

impl PipeWriter {
    /// Waits for an empty batch; `None` if the reader has gone.
    pub(crate) fn next_empty(&self) -> Option<Batch> {
        let mut batch = self.empty.recv().ok()?;
        batch.clear();
        Some(batch)
    }

    /// Sends a full batch. If the reader has gone, the next call of
    /// [`next_empty`](Self::next_empty) returns `None`.
    pub(crate) fn send(&self, batch: Batch) {
        // An error says that the reader has gone, which `next_empty` reports.
        let _ = self.full.send(batch);
    }
}

/// Side of the pipe that empties batches.
#[derive(Debug)]
pub(crate) struct PipeReader {
    empty: SyncSender<Batch>,
    full: Receiver<Batch>,
}

impl PipeReader {
    /// Waits for the next full batch; `None` after the last one.
    pub(crate) fn receive(&self) -> Option<Batch> {
        self.full.recv().ok()
    }

    /// Returns an emptied batch to the writer.
    pub(crate) fn recycle(&self, batch: Batch) {
        // An error says that the writer has ended and wants no more batches.
        let _ = self.empty.send(batch);
    }
}

/// Returns both sides of a new pipe.
pub(crate) fn merge_pipe() -> (PipeWriter, PipeReader) {
    // Each channel has room for all batches, so that a send never waits.
    let (send_empty, empty) = sync_channel(BATCHES);
    let (send_full, full) = sync_channel(BATCHES);
    for _ in 0..BATCHES {
        // The channel has room for every batch and its receiver is at hand.
        let _ = send_empty.send(Batch::default());
    }
    (PipeWriter { empty, full: send_full }, PipeReader { empty: send_empty, full })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn entry<'a>(key: &'a [u8], kind: Kind, value: &'a [u8]) -> EntryRef<'a> {
        EntryRef { key, kind, value, blob: BlobSpan::default() }
    }

    #[test]
    fn a_batch_gives_back_what_was_put_into_it() {
        let blob = |byte: u8| Blob::Memory(Arc::from([byte; 3]));
        let mut batch = Batch::default();
        batch.push(entry(b"a", Kind::InsertBlob, b"1"), Some(blob(1)));
        batch.push(entry(b"", Kind::Delete, b""), None);
        batch.push(entry(b"bc", Kind::Upsert, b"23"), None);
        batch.push(entry(b"d", Kind::InsertBlob, b""), Some(blob(2)));

        let found: Vec<_> = batch
            .entries()
            .map(|(entry, blob)| {
                let blob = blob.map(|blob| match blob {
                    Blob::Memory(bytes) => bytes.to_vec(),
                    Blob::Run { .. } => Vec::new(),
                });
                (entry.key, entry.kind, entry.value, blob)
            })
            .collect();

        let expected = [
            (b"a".as_slice(), Kind::InsertBlob, b"1".as_slice(), Some(vec![1; 3])),
            (b"", Kind::Delete, b"", None),
            (b"bc", Kind::Upsert, b"23", None),
            (b"d", Kind::InsertBlob, b"", Some(vec![2; 3])),
        ];

        assert_eq!(found, expected);
    }

    #[test]
    fn no_more_batches_are_there_than_were_made_and_each_side_learns_of_the_end_of_the_other() {
        let (writer, reader) = merge_pipe();
        for number in 0..100 {
            let mut batch = writer.next_empty().unwrap();
            assert_eq!(batch.entries().count(), 0, "emptied");
            batch.push(entry(&[number], Kind::Insert, b""), None);
            writer.send(batch);

            if number % 4 == 3 {
                // All are on their way.
                assert!(writer.empty.try_recv().is_err());
                for expected in number - 3..=number {
                    let batch = reader.receive().unwrap();
                    assert_eq!(batch.entries().next().unwrap().0.key, [expected]);
                    reader.recycle(batch);
                }
            }
        }

        writer.send(writer.next_empty().unwrap());
        drop(writer);
        assert!(reader.receive().is_some() && reader.receive().is_none());
        let (writer, reader) = merge_pipe();
        drop(reader);

        while let Ok(batch) = writer.empty.try_recv() {
            writer.send(batch);
        }

        assert!(writer.next_empty().is_none());
    }
}
