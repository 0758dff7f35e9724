//! Batches: the changes of a transaction, cut so that each batch fits into one request.
//!
//! A batch is a list of operations in the form of the script `commit`: `p` or `d`, the number of
//! the table, the number of entries, the entries.
//!
//! Invariant: no operation is divided between two batches.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::script::OPERATION_ENTRIES_MAX;

/// Most strings of a batch: a server unpacks this many at once.
const BATCH_STRINGS_MAX: usize = 100_000;

/// Changed keys of each table with their new values; `None` removes the key.
pub(crate) type Changes = Vec<BTreeMap<Vec<u8>, Option<Vec<u8>>>>;

/// Strings of one request.
pub(crate) type Batch<'a> = Vec<Cow<'a, [u8]>>;

/// Whether a transaction removes at least as many keys as it writes, so that it may make room.
pub(crate) fn makes_room(changes: &Changes) -> bool {
    let values = || changes.iter().flat_map(BTreeMap::values);
    // With at least as many removals as values the database does not get larger.
    let written = values().filter(|value| value.is_some()).count();
    written <= values().count() - written && values().next().is_some()
}

/// Cuts changes into batches of at most `bytes_max` bytes each; a batch of a single entry may have
/// more. Returns at least one batch.
pub(crate) fn batches(changes: &Changes, bytes_max: usize) -> Vec<Batch<'_>> {
    let mut cutter = Cutter { bytes_max, batches: Vec::new(), batch: Vec::new(), bytes: 0 };
    for (table, changes) in changes.iter().enumerate() {
        let mut operation = Operation::new(b"p", table);
        for (key, value) in changes {
            if let Some(value) = value {
                cutter.add(&mut operation, &[key, value]);
            }
        }

        cutter.close(&mut operation);
        let mut operation = Operation::new(b"d", table);
        for (key, _) in changes.iter().filter(|(_, value)| value.is_none()) {
            cutter.add(&mut operation, &[key]);
        }

        cutter.close(&mut operation);
    }

    // A commit without changes is one empty batch.
    if !cutter.batch.is_empty() || cutter.batches.is_empty() {
        cutter.batches.push(cutter.batch);
    }

    cutter.batches
}

struct Operation<'a> {
    kind: &'static [u8],
    table: usize,
    entries: usize,
    strings: Vec<&'a [u8]>,
}

impl Operation<'_> {
    fn new(kind: &'static [u8], table: usize) -> Self {
        Self { kind, table, entries: 0, strings: Vec::new() }
    }
}

struct Cutter<'a> {
    bytes_max: usize,
    batches: Vec<Batch<'a>>,
    batch: Batch<'a>,
    /// Bytes of the batch and of the open operation.
    bytes: usize,
}

impl<'a> Cutter<'a> {
    fn add(&mut self, operation: &mut Operation<'a>, entry: &[&'a [u8]]) {
        let bytes: usize = entry.iter().map(|string| string.len()).sum();
        let strings = self.batch.len() + operation.strings.len();
        let is_first = strings == 0;
        let is_full = self.bytes + bytes > self.bytes_max || strings + 8 > BATCH_STRINGS_MAX;

        // An entry above the limit goes alone.
        if is_full && !is_first {
            self.close(operation);
            self.batches.push(std::mem::take(&mut self.batch));
            self.bytes = 0;
        } else if operation.entries == OPERATION_ENTRIES_MAX {
            self.close(operation);
        }

        self.bytes += bytes;
        operation.entries += 1;
        operation.strings.extend(entry);
    }

    /// Ends an operation, so that the next entry begins another.
    fn close(&mut self, operation: &mut Operation<'a>) {
        if operation.entries == 0 {
            return;
        }
        // Numbers are text, as all arguments of a script are.
        let number = |number: usize| Cow::Owned(number.to_string().into_bytes());
        self.batch.push(Cow::Borrowed(operation.kind));
        self.batch.push(number(operation.table));
        self.batch.push(number(operation.entries));
        self.batch.extend(operation.strings.drain(..).map(Cow::Borrowed));
        operation.entries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes that the script makes of the batches.
    fn carried_out(batches: &[Batch<'_>], tables: usize) -> Changes {
        let mut changes: Changes = vec![BTreeMap::new(); tables];
        for batch in batches {
            let mut strings = batch.iter().map(|string| string.to_vec());
            while let Some(kind) = strings.next() {
                let mut number = || -> usize {
                    String::from_utf8(strings.next().unwrap()).unwrap().parse().unwrap()
                };
                let table = number();
                let entries = number();
                assert!((1..=OPERATION_ENTRIES_MAX).contains(&entries));
                for _ in 0..entries {
                    let key = strings.next().unwrap();
                    let value = (kind == b"p").then(|| strings.next().unwrap());
                    assert_eq!(changes[table].insert(key, value), None, "every key once");
                }
            }
        }

        changes
    }

    #[test]
    fn parts_keep_every_change_and_their_size() {
        let mut changes: Changes = vec![BTreeMap::new(); 3];
        for number in 0..5_000_usize {
            let value = (!number.is_multiple_of(3)).then(|| vec![7; number % 50]);
            changes[number % 3].insert(number.to_string().into_bytes(), value);
        }

        changes[1].insert(b"large".to_vec(), Some(vec![1; 5_000]));
        for bytes_max in [1, 1_000, 1 << 20] {
            let batches = batches(&changes, bytes_max);
            assert_eq!(carried_out(&batches, 3), changes);
            for batch in &batches {
                let bytes: usize = batch.iter().map(|string| string.len()).sum();
                assert!(bytes <= bytes_max + 5_100 || batch.len() <= 5, "{bytes} bytes");
            }
            assert_eq!(batches.len() == 1, bytes_max == 1 << 20);
        }
    }

    #[test]
    fn no_changes_are_one_empty_part() {
        assert_eq!(batches(&vec![BTreeMap::new(); 2], 1_000), [Batch::new()]);
    }

    #[test]
    fn removing_more_than_writing_makes_room() {
        let changes = |written, removed| {
            let keys = 0..written + removed;
            let entry = |key: u8| (vec![key], (key < written).then(Vec::new));
            vec![keys.map(entry).collect::<BTreeMap<_, _>>()]
        };
        assert!(makes_room(&changes(1, 1)) && makes_room(&changes(0, 1)));
        assert!(!makes_room(&changes(2, 1)) && !makes_room(&changes(0, 0)));
    }
}
