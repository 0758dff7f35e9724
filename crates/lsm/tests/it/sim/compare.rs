//! Comparison of the engine's answers with the model's.

use terrane_lsm::{BlobRef, Error, Lookup, Record, Result, Session, Table, Values};
use terrane_testkit::model::{Entries, Entry, Refused, Stored};

/// Whether an error reports a failing or lying disk, or a consequence of one.
pub(super) fn is_of_disk(error: &Error) -> bool {
    matches!(
        error,
        Error::Disk(_)
            | Error::Corrupt { .. }
            | Error::SnapshotCorrupted { .. }
            | Error::SessionDirCorrupted { .. }
            | Error::Poisoned { .. }
    )
}

/// Whether an error of the engine is the model's refusal.
fn is_refusal(error: &Error, refused: &Refused) -> bool {
    match (error, refused) {
        (Error::SnapshotExists { name }, Refused::SnapshotExists(expected))
        | (Error::SnapshotDoesNotExist { name }, Refused::SnapshotDoesNotExist(expected)) => {
            name == expected
        }
        (
            Error::SnapshotNotCompatible { name, expected, actual },
            Refused::SnapshotNotCompatible { name: of, expected: asked, actual: stored },
        ) => (name, expected, actual) == (of, asked, stored),
        (Error::SnapshotImportDirDoesNotExist { .. }, Refused::SnapshotImportDirDoesNotExist)
        | (Error::TableUnionNotCompatible { .. }, Refused::TableUnionNotCompatible) => true,
        _ => false,
    }
}

/// Returns both answers if engine and model answer, and `None` if both refuse.
///
/// # Errors
/// Disk errors; the model is not asked then.
pub(super) fn agree<T, U>(
    got: Result<T>,
    expected: impl FnOnce() -> std::result::Result<U, Refused>,
) -> Result<Option<(T, U)>> {
    let got = match got {
        Err(error) if is_of_disk(&error) => return Err(error),
        got => got,
    };
    match (got, expected()) {
        (Ok(got), Ok(expected)) => Ok(Some((got, expected))),
        (Err(error), Err(refused)) if is_refusal(&error, &refused) => Ok(None),
        (Ok(_), Err(refused)) => panic!("succeeded, the model says {refused:?}"),
        (Err(error), Ok(_)) => panic!("{error:?}, the model succeeds"),
        (Err(error), Err(refused)) => panic!("{error:?}, the model says {refused:?}"),
    }
}

/// The bytes of `text` as far as they are worth reading.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let shown: Vec<String> = bytes.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let shown = shown.concat();
    format!("{shown} ({} bytes)", bytes.len())
}

/// References and the blobs that they must give.
#[derive(Default)]
pub(super) struct Blobs {
    pub(super) refs: Vec<BlobRef>,
    pub(super) expected: Vec<Vec<u8>>,
}

impl Blobs {
    fn add(&mut self, got: Option<&BlobRef>, expected: Option<&Vec<u8>>, key: &[u8]) {
        let lens = (got.map(BlobRef::len), expected.map(Vec::len));
        assert!(lens.0 == lens.1, "blob of key {}: {lens:?} bytes", excerpt(key));
        self.refs.extend(got.cloned());
        self.expected.extend(expected.cloned());
    }

    pub(super) fn check(&self, session: &Session) -> Result<()> {
        let got = session.retrieve_blobs(&self.refs)?;
        assert!(got == self.expected, "{} blobs, one of them wrong", got.len());
        Ok(())
    }
}

/// Compares results with what the keys have.
pub(super) fn match_lookups(results: &[Lookup], keys: &[Vec<u8>], content: &Entries) -> Blobs {
    assert_eq!(results.len(), keys.len());
    let mut blobs = Blobs::default();
    for (key, result) in keys.iter().zip(results) {
        let expected = content.get(key);
        let is_equal = result.value() == expected.map(|stored| stored.value.as_slice());
        assert!(
            is_equal,
            "lookup of {} gave {:?}, expected {:?}",
            excerpt(key),
            result.value().map(excerpt),
            expected.map(|stored| excerpt(&stored.value)),
        );
        assert_eq!(result.is_found(), expected.is_some());
        blobs.add(result.blob(), expected.and_then(|stored| stored.blob.as_ref()), key);
    }

    blobs
}

pub(super) fn check_lookups(
    session: &Session,
    table: &Table,
    content: &Entries,
    keys: &[Vec<u8>],
) -> Result<()> {
    let results = table.get_many(keys)?;
    // Some batches come once more, into memory that has had another batch; that is the same search.
    if keys.len().is_multiple_of(4) {
        let mut values = Values::new();
        table.get_many_into(&keys[..keys.len() / 2], &mut values)?;
        table.get_many_into(keys, &mut values)?;
        assert!(results.iter().map(Lookup::value).eq(values.iter()), "values of a batch");
        assert_eq!(values.len(), keys.len());
        let bytes: Vec<&[u8]> = results.iter().filter_map(Lookup::value).collect();
        assert!(values.into_bytes() == bytes.concat(), "bytes of a batch");
    }
    match_lookups(&results, keys, content).check(session)
}

/// Compares entries that a cursor gave.
pub(super) fn match_records<'a>(
    records: &[Record],
    expected: impl ExactSizeIterator<Item = (&'a Vec<u8>, &'a Stored)>,
) -> Blobs {
    assert_eq!(records.len(), expected.len(), "entries read");
    let mut blobs = Blobs::default();
    for (record, (key, stored)) in records.iter().zip(expected) {
        let is_equal = (&record.key, &*record.value) == (key, &*stored.value);
        assert!(
            is_equal,
            "read {} = {}, expected {} = {}",
            excerpt(&record.key),
            excerpt(&record.value),
            excerpt(key),
            excerpt(&stored.value),
        );
        blobs.add(record.blob.as_ref(), stored.blob.as_ref(), key);
    }

    blobs
}

pub(super) fn pairs(entries: &[Entry]) -> impl ExactSizeIterator<Item = (&Vec<u8>, &Stored)> {
    entries.iter().map(|(key, stored)| (key, stored))
}

/// The entries of a canonical export, as its format says.
pub(super) fn canonical_entries(content: &Entries) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, Stored { value, blob }) in content {
        bytes.push(if blob.is_some() { 2 } else { 1 });
        for part in [Some(key), Some(value), blob.as_ref()].into_iter().flatten() {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
    }
    bytes
}

/// Reads all of a table, by a scan and by lookups of `keys`.
///
/// # Errors
/// Errors of the table.
///
/// # Panics
/// If it holds anything but `content`.
pub(super) fn check_table(
    session: &Session,
    table: &Table,
    content: &Entries,
    keys: &[Vec<u8>],
) -> Result<()> {
    let mut cursor = table.cursor()?;
    let records = cursor.next_many(usize::MAX)?;
    match_records(&records, content.iter()).check(session)?;
    check_lookups(session, table, content, keys)
}
