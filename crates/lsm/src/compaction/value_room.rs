//! Value room: an upper bound of the value that upserts of a key can add up to, so that no
//! compaction makes a value that is too long.
//!
//! The entries of a key stand in several sources, at most one in each. So what upserts make of them
//! is no longer than the longest values of all sources together, for every function that makes no
//! more than it is given. As long as this sum and the bytes put since leave room below the limit,
//! an upsert is taken without any look at its key. Otherwise the sum is worked out anew; and if
//! there is still no room, each upsert is tried on the value that its key has.
//!
//! A function that makes more than it is given, and a union, get beyond it. What is too long then
//! becomes an entry that says so ([`Kind::TooLarge`](crate::entry::entry::Kind::TooLarge)).
//!
//! Invariant: the bound is never below the truth. Merges only lessen the truth, since their output
//! takes the place of their inputs.

use crate::compaction::sources::Sources;
use crate::memtable::memtable::Memtable;
use crate::memtable::part::MemtablePart;

/// The bound of one table.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ValueRoom {
    /// The sum of the longest values, when it was worked out last; `None` before the first time.
    sum: Option<u64>,
    /// Bytes of values put since then.
    put: u64,
}

impl ValueRoom {
    /// Whether values of this many bytes can be put and none combines to more than `limit`, as far
    /// as is known.
    pub(crate) fn has_room(&self, bytes: u64, limit: u64) -> bool {
        // Before the first measurement nothing is known, so there is no room.
        let bound = self.sum.map(|sum| sum.saturating_add(self.put).saturating_add(bytes));
        bound.is_some_and(|bound| bound <= limit)
    }

    /// Notes values that are put.
    pub(crate) fn note(&mut self, bytes: u64) {
        self.put = self.put.saturating_add(bytes);
    }

    /// Works the bound out anew for a limit: roughly, if that is enough.
    ///
    /// Cost: a look at each run and part; if all values together come to half of the limit, one
    /// at each entry of the memtable and each large entry of runs, all in memory.
    pub(crate) fn measure(&mut self, buffer: &Memtable, sources: &Sources, limit: u64) {
        let of_buffer = |buffer: &Memtable| buffer.weight_bytes();
        let mut sum = of_buffer(buffer).saturating_add(sum_of_buffers(sources, &of_buffer));
        sources.for_each_run(&mut |run| sum = sum.saturating_add(run.meta().value_bytes));
        // The rough sum needs no look at entries, and is enough for almost every table.
        if sum > limit / 2 {
            let of_buffer = |buffer: &Memtable| -> u64 {
                buffer.parts().iter().map(MemtablePart::longest_value_bytes).sum()
            };
            sum = of_buffer(buffer).saturating_add(sum_of_buffers(sources, &of_buffer));
            sources.for_each_run(&mut |run| sum = sum.saturating_add(run.longest_value_bytes()));
        }
        *self = Self { sum: Some(sum), put: 0 };
    }
}

/// The sum over all memtables of sources. The depth of the recursion is that of unions of
/// unions.
fn sum_of_buffers(sources: &Sources, of: &dyn Fn(&Memtable) -> u64) -> u64 {
    let own: u64 = sources.buffers.iter().map(of).fold(0, u64::saturating_add);
    let tables = sources.union.iter().flat_map(|union| &union.tables);
    tables.map(|table| sum_of_buffers(table, of)).fold(own, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use terrane_io::SimDisk;

    use crate::config::{TableConfig, WriteBuffer};
    use crate::entry::entry::Update;
    use crate::entry::merge_operator::MergeOperator;
    use crate::error::Error;
    use crate::lookup::submitted::PendingLookups;
    use crate::session::snapshot::{OpenOptions, SnapshotName};
    use crate::table::session::{Session, SessionOptions};
    use crate::table::table::Table;

    const LIMIT: usize = 10_000;

    fn table() -> (Session, Table) {
        let disk = SimDisk::new(1);
        let options = SessionOptions::with_salt(1).create_dir();
        let session = Session::open(disk, Path::new("/session"), &options).unwrap();
        let config = TableConfig {
            merge_operator: MergeOperator::concatenate().with_value_bytes_max(LIMIT),
            write_buffer: WriteBuffer::Entries(4),
            ..TableConfig::default()
        };
        let table = session.new_table(&config).unwrap();
        (session, table)
    }

    /// Other keys, so that runs are written and merged.
    fn put_others(table: &mut Table, seed: u32) {
        for number in 0..200_u32 {
            let key = (seed * 1_000 + number).to_le_bytes();
            table.insert(&key, b"other").unwrap();
        }
    }

    /// Upserts that came to too much across runs were taken, and every later merge failed.
    #[test]
    fn upserts_that_come_to_too_much_across_runs_are_refused_and_merges_go_on() {
        let (_session, mut table) = table();
        table.upsert(b"key", &[1; 6_000]).unwrap();
        put_others(&mut table, 1);

        for _ in 0..2 {
            let batch: [(&[u8], _); 2] =
                [(b"beside", Update::Insert(b"1")), (b"key", Update::Upsert(&[2; 6_000]))];
            let refused = table.write_batch(&batch).unwrap_err();
            let Error::UpsertTooLarge { key, stored_bytes, operand_bytes, bytes, limit } = refused
            else {
                panic!("{refused:?}");
            };
            assert_eq!((key.as_slice(), stored_bytes, operand_bytes), (&b"key"[..], 6_000, 6_000));
            assert_eq!((bytes, limit), (12_000, LIMIT));
            assert!(!table.get(b"beside").unwrap().is_found(), "all or nothing");
        }

        // Upserts that fit are taken, up to the last byte; also in several steps of one batch.
        let parts: [(&[u8], _); 2] =
            [(b"key", Update::Upsert(&[3; 2_000])), (b"key", Update::Upsert(&[4; 2_000]))];
        table.write_batch(&parts).unwrap();
        table.upsert(b"key", &[5]).unwrap_err();
        put_others(&mut table, 2);
        let found = table.get(b"key").unwrap();
        assert_eq!(found.value().map(<[u8]>::len), Some(LIMIT));

        // A deletion makes room, and so does another value.
        table.delete(b"key").unwrap();
        table.upsert(b"key", &[6; 9_000]).unwrap();
        put_others(&mut table, 3);
        table.upsert(b"key", &[7; 2_000]).unwrap_err();
        table.insert(b"key", b"1").unwrap();
        table.upsert(b"key", &[8; 2_000]).unwrap();

        for seed in 4..20 {
            put_others(&mut table, seed);
        }

        assert_eq!(table.get(b"key").unwrap().value().map(<[u8]>::len), Some(2_001));
    }

    /// A table whose function makes values of the product of the lengths: longer than anybody looks
    /// for.
    fn growing(session: &Session) -> Table {
        let resolve =
            MergeOperator::new("product", |newer, older| vec![7; newer.len() * older.len()]);
        let config = TableConfig {
            merge_operator: resolve.unwrap().with_value_bytes_max(LIMIT),
            write_buffer: WriteBuffer::Entries(4),
            ..TableConfig::default()
        };
        session.new_table(&config).unwrap()
    }

    /// Reading the key says that its value is too long, and names the key; other keys are read.
    fn check_too_large(table: &Table) {
        let Error::UpsertTooLarge { key, bytes, limit, .. } = table.get(b"key").unwrap_err() else {
            panic!("another error");
        };
        // The place of a blob takes room of its value.
        assert!(key == b"key" && LIMIT - limit <= 12 && bytes > limit, "{key:?} {bytes} {limit}");
        let pending = table.submit(&[b"key"]).and_then(PendingLookups::wait);
        assert!(matches!(pending, Err(Error::UpsertTooLarge { .. })));
        let read = table.cursor().unwrap().next_many(usize::MAX);
        assert!(matches!(read, Err(Error::UpsertTooLarge { key, .. }) if key == b"key"));
        assert!(table.get(&1_000_u32.to_le_bytes()).unwrap().is_found());
    }

    /// Each attempt of a merge failed that met upserts of too long a value, so the table took no
    /// more updates.
    #[test]
    fn merges_go_on_where_upserts_make_too_long_a_value() {
        let (session, _) = table();
        let mut table = growing(&session);
        for seed in 1..6 {
            table.upsert(b"key", &[1; 200]).unwrap();
            put_others(&mut table, seed);
        }

        check_too_large(&table);
        table.compact(&mut |_, _| {}).unwrap();
        check_too_large(&table);

        // Later upserts change nothing; a snapshot, and a table opened from it, give the same
        // error.
        table.upsert(b"key", &[1; 2]).unwrap();
        put_others(&mut table, 6);
        check_too_large(&table);
        let name = SnapshotName::new("late").unwrap();
        table.save_snapshot(&name, "").unwrap();
        let options = OpenOptions::default().merge_operator(table.config().merge_operator.clone());
        let snapshot = session.open_snapshot_with(&name, "", &options).unwrap();
        check_too_large(&snapshot);
        let older = growing(&session);
        let mut diff = older.diff(&table).unwrap();
        let read = diff.by_ref().find_map(Result::err);
        assert!(matches!(read, Some(Error::UpsertTooLarge { .. })));

        let mut copy = table.fork().unwrap();
        copy.delete(b"key").unwrap();
        assert!(!copy.get(b"key").unwrap().is_found());
        copy.upsert(b"key", &[1; 50]).unwrap();
        table.insert(b"key", b"1").unwrap();

        for seed in 7..12 {
            put_others(&mut copy, seed);
            put_others(&mut table, seed);
        }

        assert_eq!(copy.get(b"key").unwrap().value().map(<[u8]>::len), Some(50));
        assert_eq!(table.get(b"key").unwrap().value(), Some(&b"1"[..]));
        table.compact(&mut |_, _| {}).unwrap();
    }

    #[test]
    fn unions_of_values_that_come_to_too_much_go_on() {
        let (session, _) = table();
        let tables: Vec<Table> = (0..3)
            .map(|seed| {
                let mut table = growing(&session);
                table.insert_with_blob(b"key", &[1; 200], b"blob").unwrap();
                put_others(&mut table, seed);
                table
            })
            .collect();

        let all: Vec<&Table> = tables.iter().collect();
        let mut union = session.incremental_union(&all).unwrap();
        check_too_large(&union);

        while union.remaining_union_debt() > 0 {
            union.supply_union_credits(100).unwrap();
            check_too_large(&union);
        }

        union.delete(b"key").unwrap();
        union.compact(&mut |_, _| {}).unwrap();
        assert!(!union.get(b"key").unwrap().is_found());
    }

    /// Folding parts of a memtable cannot refuse an upsert, since no caller waits for it.
    #[test]
    fn parts_of_a_write_buffer_are_put_together_where_upserts_make_too_long_a_value() {
        let (session, _) = table();
        let mut table = growing(&session);
        let config =
            TableConfig { write_buffer: WriteBuffer::Entries(10_000), ..table.config().clone() };
        table = session.new_table(&config).unwrap();
        table.insert(&1_000_u32.to_le_bytes(), b"other").unwrap();

        let mut copies = Vec::new();
        for number in 0..100_u32 {
            if number < 5 {
                table.upsert(b"key", &[1; 200]).unwrap();
            }
            table.insert(&number.to_le_bytes(), b"other").unwrap();
            copies.push(table.fork().unwrap());
        }

        check_too_large(&table);
        table.delete(b"key").unwrap();
        assert!(!table.get(b"key").unwrap().is_found());
    }

    /// A function that makes no more than it is given is refused nothing, however long the values
    /// are.
    #[test]
    fn functions_that_do_not_grow_are_refused_nothing() {
        let (session, _) = table();
        let config = TableConfig {
            merge_operator: MergeOperator::newest().with_value_bytes_max(LIMIT),
            write_buffer: WriteBuffer::Entries(4),
            ..TableConfig::default()
        };

        let mut table = session.new_table(&config).unwrap();
        for seed in 0..5 {
            table.upsert(b"key", &[seed as u8; 9_000]).unwrap();
            put_others(&mut table, seed);
            let mut copy = table.fork().unwrap();
            copy.upsert(b"key", &[9; LIMIT]).unwrap();
        }

        assert_eq!(table.get(b"key").unwrap().value(), Some(&[4; 9_000][..]));
    }
}
