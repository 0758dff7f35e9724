//! Ranges and cursors against a sorted map.
//!
//! Goal: a cursor gives exactly the live entries between its bounds, in order and against it,
//! however it is moved. Method: tables with several runs, deletions, upserts, blobs, values of many
//! pages and a part in the write buffer; random bounds of every kind, random walks over all
//! movements, compared with a sorted map step by step while the table goes on changing; the
//! acceptance cases of the reference as they stand.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};

use terrane_lsm::{
    Compression, Cursor, DiskCache, IndexKind, MergeOperator, Record, RecordRef, Session, Table,
    TableConfig, Update,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::script::COMPRESSED_LEVELS;
use crate::{SessionDir, buffer_of, fill, key, small_configs, value};

/// An entry: key, value, blob.
type Entry = (Vec<u8>, Vec<u8>, Option<Vec<u8>>);

#[derive(Debug, Clone, Default)]
struct Content(BTreeMap<Vec<u8>, StoredValue>);

/// A value and its blob.
type StoredValue = (Vec<u8>, Option<Vec<u8>>);

impl Content {
    fn apply(&mut self, key: &[u8], update: Update<'_>) {
        let entry = match update {
            Update::Insert(value) => (value.to_vec(), None),
            Update::InsertWithBlob(value, blob) => (value.to_vec(), Some(blob.to_vec())),
            Update::Upsert(value) => {
                let old = self.0.get(key).map_or(&[][..], |(old, _)| old);
                ([old, value].concat(), None)
            }
            _ => {
                self.0.remove(key);
                return;
            }
        };

        self.0.insert(key.to_vec(), entry);
    }

    /// The entries between the bounds; `BTreeMap::range` itself refuses bounds that cross.
    fn between(&self, from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>) -> Vec<Entry> {
        let above = |key: &Vec<u8>| (from.clone(), Bound::Unbounded).contains(key);
        let below = |key: &Vec<u8>| (Bound::Unbounded, to.clone()).contains(key);
        let entries = self.0.iter().filter(|(key, _)| above(key) && below(key));
        entries.map(|(key, (value, blob))| (key.clone(), value.clone(), blob.clone())).collect()
    }
}

/// A short key, so that neighbours, prefixes and gaps are common.
fn draw_key(rng: &mut impl Draw) -> Vec<u8> {
    let len = rng.index(4);
    (0..len).map(|_| *rng.pick(&[0, 1, b'a', b'b', 0xFE, 0xFF])).collect()
}

fn draw_bound(rng: &mut impl Draw) -> Bound<Vec<u8>> {
    match rng.below(4) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(draw_key(rng)),
        _ => Bound::Included(draw_key(rng)),
    }
}

/// A value, at times of several pages.
fn draw_value(rng: &mut impl Draw) -> Vec<u8> {
    let len = if rng.chance(1, 40) { rng.index(30_000) } else { rng.index(20) };
    value(rng.below(1 << 40), len)
}

fn grow(table: &mut Table, content: &mut Content, rng: &mut impl Draw, updates: u64) {
    for _ in 0..updates {
        let key = draw_key(rng);
        let value = draw_value(rng);
        let update = match rng.below(8) {
            0 | 1 => Update::Delete,
            2 => Update::Upsert(&value[..value.len().min(9)]),
            3 => Update::InsertWithBlob(&value, b"of the key"),
            _ => Update::Insert(&value),
        };
        table.write_batch(&[(&key, update)]).unwrap();
        content.apply(&key, update);
    }
}

/// Any shape of table in which entries combine in the order of their arrival.
fn draw_config(rng: &mut impl Draw) -> TableConfig {
    buffer_of(*rng.pick(&[3, 50, 100_000]))
        .merge_operator(MergeOperator::concatenate())
        .index(*rng.pick(&[IndexKind::Auto, IndexKind::Compact, IndexKind::Ordinary]))
        .disk_cache(*rng.pick(&[DiskCache::All, DiskCache::None]))
        .compression(*rng.pick(&[Compression::None, Compression::Lz4, Compression::Zstd]))
        .compressed_levels(*rng.pick(&COMPRESSED_LEVELS))
}

/// A record with what its reference to a blob refers to.
fn entry_of(session: &Session, record: Record) -> Entry {
    let Record { key, value, blob, .. } = record;
    let blob = blob.map(|blob| session.retrieve_blobs(&[blob]).unwrap().remove(0));
    (key, value.into_vec(), blob)
}

/// A cursor, what it should give, and how many entries are before its gap.
struct Walk<'a> {
    session: &'a Session,
    cursor: Cursor,
    expected: Vec<Entry>,
    at: usize,
}

impl Walk<'_> {
    fn check(&self, given: impl IntoIterator<Item = Record>, at: impl Iterator<Item = usize>) {
        let given: Vec<_> = given.into_iter().map(|r| entry_of(self.session, r)).collect();
        assert_eq!(given, at.map(|at| self.expected[at].clone()).collect::<Vec<_>>());
    }

    /// Moves the cursor once, in a way drawn at random.
    fn step(&mut self, rng: &mut impl Draw, key: &[u8]) {
        let own = |record: Option<RecordRef<'_>>| record.map(|record| record.to_record());
        let at = self.at;
        let end = self.expected.len();
        let count = rng.index(10);

        let after = at..end.min(at + 1);
        let before = at.saturating_sub(1)..at;
        match rng.below(16) {
            0 => {
                let given = self.cursor.next().transpose().unwrap();
                self.at = after.end;
                self.check(given, after);
            }
            1 => {
                let given = self.cursor.prev().transpose().unwrap();
                self.at = before.start;
                self.check(given, before);
            }
            2 => {
                let given = own(self.cursor.next_ref().unwrap());
                self.at = after.end;
                self.check(given, after);
            }
            3 => {
                let given = own(self.cursor.prev_ref().unwrap());
                self.at = before.start;
                self.check(given, before);
            }
            4 => {
                let given = own(self.cursor.peek().unwrap());
                self.check(given, after);
            }
            5 => {
                let given = own(self.cursor.peek_prev().unwrap());
                self.check(given, before);
            }
            6 => {
                self.cursor.seek(key);
                self.at = self.expected.partition_point(|entry| entry.0.as_slice() < key);
            }
            7 => {
                self.cursor.seek_after(key);
                self.at = self.expected.partition_point(|entry| entry.0.as_slice() <= key);
            }
            8 => {
                self.cursor.seek_to_start();
                self.at = 0;
            }
            9 => {
                self.cursor.seek_to_end();
                self.at = end;
            }
            10 => {
                let given = self.cursor.next_many(count).unwrap();
                self.at = end.min(at + count);
                self.check(given, at..self.at);
            }
            11 => {
                let given = self.cursor.prev_many(count).unwrap();
                self.at = at.saturating_sub(count);
                self.check(given, (self.at..at).rev());
            }
            12 => {
                let given = self.cursor.next_while(count, |record| record.key < key).unwrap();
                let wanted = |at: &usize| self.expected[*at].0.as_slice() < key;
                self.at = at + (at..end).take(count).take_while(wanted).count();
                self.check(given, at..self.at);
            }
            13 => {
                let given = self.cursor.next_back().transpose().unwrap();
                let last = end.saturating_sub(1).max(at)..end;
                self.check(given, last.clone());
                self.expected.truncate(last.start);
            }
            14 => {
                let taken = self.cursor.by_ref().rev().take(count).map(Result::unwrap);
                let taken: Vec<_> = taken.collect();
                let first = end.saturating_sub(count).max(at);
                self.check(taken, (first..end).rev());
                self.expected.truncate(first);
            }
            _ => {
                let given = self.cursor.prev_while(count, |record| record.key > key).unwrap();
                let wanted = |at: &usize| self.expected[*at].0.as_slice() > key;
                self.at = at - (0..at).rev().take(count).take_while(wanted).count();
                self.check(given, (self.at..at).rev());
            }
        }
    }
}

#[test]
fn a_cursor_moves_through_its_range_as_through_a_sorted_map() {
    for_each_seed("a_cursor_moves_through_its_range_as_through_a_sorted_map", 12, |rng, seed| {
        let place = if seed % 4 == 0 { SessionDir::real() } else { SessionDir::simulated(seed) };
        let session = place.open();
        let mut table = session.new_table(&draw_config(rng)).unwrap();
        let mut content = Content::default();
        grow(&mut table, &mut content, rng, 600);
        for _ in 0..40 {
            let from = draw_bound(rng);
            let to = draw_bound(rng);
            let expected = content.between(&from, &to);
            let cursor = table.range::<Vec<u8>, _>((from, to)).unwrap();
            let mut walk = Walk { session: &session, cursor, expected, at: 0 };
            for _ in 0..15 {
                let key = draw_key(rng);
                walk.step(rng, &key);
                // Nothing of this shows in the cursor.
                grow(&mut table, &mut content, rng, 1);
            }
        }
    });
}

/// Checks short scans of many ranges of a table at once, which may overlap.
fn check_many(session: &Session, table: &Table, content: &Content, rng: &mut impl Draw) {
    let count = *rng.pick(&[0, 1, 3, 1_000]);
    let ranges: Vec<_> =
        (0..*rng.pick(&[0, 1, 5, 150])).map(|_| (draw_bound(rng), draw_bound(rng))).collect();
    let found = table.scan_many::<Vec<u8>, _>(&ranges, count).unwrap();
    assert_eq!(found.len(), ranges.len());
    for ((from, to), records) in ranges.iter().zip(found) {
        let mut expected = content.between(from, to);
        expected.truncate(count);
        let records: Vec<_> = records.into_iter().map(|r| entry_of(session, r)).collect();
        assert_eq!(records, expected, "{from:?} {to:?}");
    }
}

#[test]
fn short_scans_of_many_ranges_give_the_first_entries_of_each() {
    let seeds = "short_scans_of_many_ranges_give_the_first_entries_of_each";
    for_each_seed(seeds, 12, |rng, seed| {
        let place = if seed % 4 == 0 { SessionDir::real() } else { SessionDir::simulated(seed) };
        let session = place.open();
        let mut table = session.new_table(&draw_config(rng)).unwrap();
        let mut content = Content::default();
        for _ in 0..6 {
            grow(&mut table, &mut content, rng, 200);
            check_many(&session, &table, &content, rng);
        }
    });
}

/// `for`, `rev`, `collect` and reads of both ends in any order, over every kind of table and range:
/// the ends meet, and together they give each entry once.
#[test]
fn both_ends_of_a_cursor_give_each_entry_once() {
    for_each_seed("both_ends_of_a_cursor_give_each_entry_once", 12, |rng, seed| {
        let place = SessionDir::simulated(seed);
        let session = place.open();
        let mut table = session.new_table(&draw_config(rng)).unwrap();
        let mut content = Content::default();
        grow(&mut table, &mut content, rng, 400);

        for _ in 0..20 {
            let range = (draw_bound(rng), draw_bound(rng));
            let expected = content.between(&range.0, &range.1);
            let open = || table.range::<Vec<u8>, _>(range.clone()).unwrap();

            let mut forward = Vec::new();
            for record in open() {
                forward.push(entry_of(&session, record.unwrap()));
            }
            assert_eq!(forward, expected);
            let back: Vec<Record> = open().rev().collect::<terrane_lsm::Result<_>>().unwrap();
            let back: Vec<_> = back.into_iter().map(|r| entry_of(&session, r)).collect();
            assert!(back.iter().eq(expected.iter().rev()));

            let mut cursor = open();
            let mut rest = expected.iter();
            loop {
                let (given, wanted) = if rng.chance(1, 2) {
                    (cursor.next(), rest.next())
                } else {
                    (cursor.next_back(), rest.next_back())
                };
                let given = given.map(|record| entry_of(&session, record.unwrap()));
                assert_eq!(given.as_ref(), wanted);
                if wanted.is_none() {
                    break;
                }
            }
            assert!(cursor.next().is_none() && cursor.next_back().is_none());
        }
    });
}

/// A walk over enough entries that cursors prefetch in both directions and meet every transition
/// between pages.
#[test]
fn a_cursor_moves_through_many_pages() {
    for_each_seed("a_cursor_moves_through_many_pages", 4, |rng, seed| {
        let place = if seed % 2 == 0 { SessionDir::real() } else { SessionDir::simulated(seed) };
        let session = place.open();
        let config = draw_config(rng).write_buffer(buffer_of(3_000).write_buffer);
        let mut table = session.new_table(&config).unwrap();
        let mut content = Content::default();
        for number in 0..20_000 {
            let key = key(rng.below(15_000));
            let value = value(number, 60);
            let update = if number % 5 == 0 { Update::Delete } else { Update::Insert(&value) };
            table.write_batch(&[(&key, update)]).unwrap();
            content.apply(&key, update);
        }
        let expected = content.between(&Bound::Unbounded, &Bound::Unbounded);
        let cursor = table.cursor().unwrap();
        let mut walk = Walk { session: &session, cursor, at: 0, expected };
        for _ in 0..30 {
            for _ in 0..10 {
                let key = key(rng.below(15_000));
                walk.step(rng, &key);
            }
            let at = walk.at;
            let count = rng.index(walk.expected.len());
            if rng.chance(1, 2) {
                let given = walk.cursor.next_many(count).unwrap();
                walk.at = walk.expected.len().min(at + count);
                walk.check(given, at..walk.at);
            } else {
                let given = walk.cursor.prev_many(count).unwrap();
                walk.at = at.saturating_sub(count);
                walk.check(given, (walk.at..at).rev());
            }
        }
    });
}

/// Content of a union of tables, left to right, by table 1.2 of the reference.
fn united(inputs: &[&Content]) -> Content {
    let mut all = Content::default();
    for (key, (value, blob)) in inputs.iter().flat_map(|input| &input.0) {
        match all.0.get_mut(key) {
            Some((left, _)) => *left = MergeOperator::concatenate().apply(left, value),
            None => {
                all.0.insert(key.clone(), (value.clone(), blob.clone()));
            }
        }
    }
    all
}

/// Unions of unions, paid for in part, so that the walk crosses frontiers in both directions.
#[test]
fn a_cursor_moves_through_unions_at_every_level_of_debt() {
    for_each_seed("a_cursor_moves_through_unions_at_every_level_of_debt", 6, |rng, seed| {
        let place = if seed % 4 == 0 { SessionDir::real() } else { SessionDir::simulated(seed) };
        let session = place.open();
        let mut tables: Vec<(Table, Content)> = Vec::new();
        for _ in 0..4 {
            let config = draw_config(rng).compaction_batch_pages(1);
            let mut table = session.new_table(&config).unwrap();
            let mut content = Content::default();
            grow(&mut table, &mut content, rng, 150);
            tables.push((table, content));
        }
        for _ in 0..8 {
            let mut inputs: Vec<usize> = (0..=rng.index(3)).map(|_| rng.index(4)).collect();
            inputs.push(rng.index(tables.len()));
            let of: Vec<&Table> = inputs.iter().map(|&at| &tables[at].0).collect();
            let content = united(&inputs.iter().map(|&at| &tables[at].1).collect::<Vec<_>>());
            let mut union = (session.incremental_union(&of).unwrap(), content);
            let credits = rng.below(union.0.remaining_union_debt().max(1));
            union.0.supply_union_credits(credits).unwrap();
            let updates = rng.below(6);
            grow(&mut union.0, &mut union.1, rng, updates);
            check_many(&session, &union.0, &union.1, rng);
            for _ in 0..4 {
                let from = draw_bound(rng);
                let to = draw_bound(rng);
                let expected = union.1.between(&from, &to);
                let cursor = union.0.range::<Vec<u8>, _>((from, to)).unwrap();
                let mut walk = Walk { session: &session, cursor, expected, at: 0 };
                for _ in 0..15 {
                    let key = draw_key(rng);
                    walk.step(rng, &key);
                }
                union.0.supply_union_credits(rng.below(50)).unwrap();
            }
            tables.push(union);
        }
    });
}

#[test]
fn a_prefix_gives_the_keys_that_begin_with_it() {
    for_each_seed("a_prefix_gives_the_keys_that_begin_with_it", 4, |rng, seed| {
        let session = SessionDir::simulated(seed).open();
        let mut table = session.new_table(&draw_config(rng)).unwrap();
        let mut content = Content::default();
        grow(&mut table, &mut content, rng, 600);
        for _ in 0..50 {
            let prefix = draw_key(rng);
            let keys: Vec<_> = content.0.keys().filter(|key| key.starts_with(&prefix)).collect();
            let mut cursor = table.prefix(&prefix).unwrap();
            let forward = cursor.next_many(usize::MAX).unwrap();
            let back = cursor.prev_many(usize::MAX).unwrap();
            assert!(forward.iter().map(|record| &record.key).eq(keys), "prefix {prefix:?}");
            assert!(forward.iter().rev().eq(&back), "prefix {prefix:?}");
        }
    });
}

/// The first and the last entries of the range that are found by looking up every key.
fn looked_up(table: &Table, range: &impl RangeBounds<u64>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut keys: Vec<_> = (0..2_000).filter(|n| range.contains(n)).map(numbered).collect();
    keys.sort_unstable();
    let found = table.get_many(&keys).unwrap();
    let entries = keys.into_iter().zip(found);
    entries.filter_map(|(key, found)| Some((key.to_vec(), found.value()?.to_vec()))).collect()
}

/// A key whose order is that of its number.
fn numbered(number: u64) -> [u8; 8] {
    let mut key = number.to_le_bytes();
    key.reverse();
    key
}

#[test]
fn ranges_hold_the_keys_between_their_bounds() {
    for place in SessionDir::both() {
        let session = place.open();
        for config in small_configs() {
            let mut table = session.new_table(&config).unwrap();
            for key in ["", "a", "aa", "b", "c"] {
                table.insert(key.as_bytes(), key.as_bytes()).unwrap();
            }
            table.insert(b"aa", b"again").unwrap();
            table.delete(b"c").unwrap();

            let keys = |cursor: terrane_lsm::Result<Cursor>| {
                let records = cursor.unwrap().next_many(100).unwrap();
                records.iter().map(|r| String::from_utf8_lossy(&r.key).into_owned()).collect()
            };

            let check = |found: Vec<String>, expected: &[&str]| assert_eq!(found, expected);
            check(keys(table.range::<str, _>(..)), &["", "a", "aa", "b"]);
            check(keys(table.range("a".."b")), &["a", "aa"]);
            check(keys(table.range("a"..="b")), &["a", "aa", "b"]);
            check(keys(table.range("aa".."aa")), &[]);
            check(keys(table.range("aa"..="aa")), &["aa"]);
            check(keys(table.range("ab"..="ab")), &[]);
            check(keys(table.range("b".."a")), &[]);
            check(keys(table.range("".."a")), &[""]);
            assert_eq!(table.get(b"aa").unwrap().value(), Some(b"again".as_slice()));
        }
    }
}

/// Results around the chunk of the reference, each entry written twice and others deleted.
#[test]
fn ranges_of_500_501_and_1000_entries_equal_point_lookups() {
    for place in SessionDir::both() {
        let session = place.open();

        // Small buffers make a file every few updates, which takes its time on the real disk.
        let configs = match place {
            SessionDir::Real { .. } => vec![buffer_of(1_000)],
            SessionDir::Simulated { .. } => small_configs(),
        };

        for config in configs {
            let mut table = session.new_table(&config).unwrap();
            for round in 0..2_u64 {
                let updates: Vec<_> =
                    (0..2_000).map(|n| (numbered(n), value(n + round, 20))).collect();
                let update = |n: usize| match n % 4 {
                    3 if round == 1 => Update::Delete,
                    _ => Update::Insert(&updates[n].1),
                };
                let batch: Vec<_> = (0..2_000).map(|n| (updates[n].0, update(n))).collect();
                table.write_batch(&batch).unwrap();
            }

            for (count, last) in [(500, 666), (501, 668), (1_000, 1_333)] {
                let range = 0..last;
                let bounds = numbered(range.start)..numbered(range.end);
                let mut cursor = table.range::<[u8; 8], _>(bounds).unwrap();
                let given = cursor.next_many(usize::MAX).unwrap();
                let given: Vec<_> =
                    given.into_iter().map(|r| (r.key, r.value.into_vec())).collect();
                assert_eq!(given.len(), count);
                assert_eq!(given, looked_up(&table, &range));
            }
        }
    }
}

#[test]
fn cursors_read_on_from_any_position_and_miss_later_updates() {
    for place in SessionDir::both() {
        let session = place.open();
        for config in small_configs() {
            let mut table = session.new_table(&config).unwrap();
            for number in (0..100).step_by(2) {
                table.insert(&numbered(number), &number.to_le_bytes()).unwrap();
            }

            let numbers = |records: Vec<Record>| {
                let number = |r: Record| u64::from_le_bytes(r.value.as_ref().try_into().unwrap());
                records.into_iter().map(number).collect::<Vec<_>>()
            };

            // An offset between two keys.
            let mut cursor = table.cursor_at(&numbered(7)).unwrap();

            // Later updates are invisible, wherever they end up.
            for number in 0..100 {
                table.insert(&numbered(number), b"later").unwrap();
            }
            assert_eq!(numbers(cursor.next_many(0).unwrap()), [0; 0]);
            assert_eq!(numbers(cursor.next_many(3).unwrap()), [8, 10, 12]);
            assert_eq!(numbers(cursor.next_while(9, |_| false).unwrap()), [0; 0]);
            let below = |record: &RecordRef<'_>| record.key < numbered(18).as_slice();
            assert_eq!(numbers(cursor.next_while(9, below).unwrap()), [14, 16]);
            assert_eq!(numbers(cursor.next_while(9, below).unwrap()), [0; 0]);
            assert_eq!(numbers(cursor.next_while(1, |_| true).unwrap()), [18]);
            assert_eq!(cursor.next_many(40).unwrap().len(), 40, "short only at the end");
            drop(table);

            // 98 was the last. A drained cursor stays empty.
            for _ in 0..3 {
                assert_eq!(cursor.next().transpose().unwrap(), None);
                assert_eq!(cursor.next_many(9).unwrap(), []);
            }

            assert_eq!(numbers(cursor.prev_many(2).unwrap()), [98, 96]);

            // The first read after the table has gone gives what was there when the cursor was
            // made.
            cursor.seek_to_start();
            assert_eq!(cursor.next_many(usize::MAX).unwrap().len(), 46);
            table = session.new_table(&config).unwrap();
            assert_eq!(table.cursor().unwrap().next().transpose().unwrap(), None);
            assert_eq!(table.cursor().unwrap().prev().transpose().unwrap(), None);
        }
    }
}

/// An exclusive start goes on behind the last page that was read, without reading its last key
/// again.
#[test]
fn pages_of_a_table_follow_each_other() {
    let session = SessionDir::simulated(1).open();
    let mut table = session.new_table(&buffer_of(100)).unwrap();
    fill(&mut table, 0..1_000);

    let mut last = None;
    let mut count = 0;
    loop {
        let from = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let page =
            table.range::<Vec<u8>, _>((from, Bound::Unbounded)).unwrap().next_many(64).unwrap();
        let Some(record) = page.last() else { break };
        assert!(last.is_none_or(|last| last < page[0].key));
        last = Some(record.key.clone());
        count += page.len();
    }

    assert_eq!(count, 1_000);
}
