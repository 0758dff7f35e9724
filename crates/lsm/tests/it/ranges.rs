//! Ranges and cursors against a sorted map.
//!
//! Goal: a cursor gives exactly the live entries between its bounds, in order, however it is moved. Method:
//! tables with several runs, deletions and a part in the write buffer; random bounds of every kind, random
//! walks of `next`, `peek`, `seek`, `take` and `take_while`, compared with a `BTreeMap` step by step.

use std::collections::BTreeMap;
use std::ops::Bound;

use terrane_lsm::{Record, Table, Update};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::{Place, buffer_of};

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// A short key, so that neighbours, prefixes and gaps are common.
fn draw_key(rng: &mut impl Draw) -> Vec<u8> {
    let len = rng.index(4);
    (0..len).map(|_| *rng.pick(&[0, 1, b'a', b'b', 0xFE, 0xFF])).collect()
}

fn grow(table: &mut Table, content: &mut Content, rng: &mut impl Draw) {
    for _ in 0..600 {
        let key = draw_key(rng);
        if rng.chance(1, 3) {
            table.delete(&key).unwrap();
            content.remove(&key);
        } else {
            let value = rng.below(1 << 40).to_le_bytes().to_vec();
            table.updates(&[(&key, Update::Insert(&value))]).unwrap();
            content.insert(key, value);
        }
    }
}

fn draw_bound(rng: &mut impl Draw) -> Bound<Vec<u8>> {
    match rng.below(4) {
        0 => Bound::Unbounded,
        1 => Bound::Excluded(draw_key(rng)),
        _ => Bound::Included(draw_key(rng)),
    }
}

/// What the map has between the bounds; `BTreeMap::range` itself refuses bounds that cross.
fn between(content: &Content, from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>) -> Vec<Record> {
    let above = |key: &Vec<u8>| match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    let below = |key: &Vec<u8>| match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    };
    let entries = content.iter().filter(|(key, _)| above(key) && below(key));
    let record = |(key, value): (&Vec<u8>, &Vec<u8>)| Record {
        key: key.clone(),
        value: value.clone().into(),
        blob: None,
    };
    entries.map(record).collect()
}

#[test]
fn a_cursor_moves_through_its_range_as_a_sorted_map_does() {
    for_each_seed("a_cursor_moves_through_its_range_as_a_sorted_map_does", 6, |rng, seed| {
        let place = if seed % 3 == 0 { Place::real() } else { Place::simulated(seed) };
        let session = place.open();
        let mut table = session.new_table(&buffer_of(*rng.pick(&[3, 50, 100_000]))).unwrap();
        let mut content = Content::new();
        grow(&mut table, &mut content, rng);
        for _ in 0..60 {
            let (from, to) = (draw_bound(rng), draw_bound(rng));
            let expected = between(&content, &from, &to);
            let mut cursor = table.range::<Vec<u8>, _>((from, to)).unwrap();
            let mut at = 0;
            for _ in 0..20 {
                let left = &expected[at..];
                match rng.below(5) {
                    0 => {
                        assert_eq!(cursor.next().unwrap().as_ref(), left.first());
                        at = expected.len().min(at + 1);
                    }
                    1 => assert_eq!(cursor.peek().unwrap(), left.first()),
                    2 => {
                        let key = draw_key(rng);
                        cursor.seek(&key).unwrap();
                        at = expected.partition_point(|record| record.key < key);
                    }
                    3 => {
                        let count = rng.index(10);
                        let taken = cursor.take(count).unwrap();
                        assert_eq!(taken, left[..left.len().min(count)]);
                        at += taken.len();
                    }
                    _ => {
                        let stop = draw_key(rng);
                        let taken = cursor.take_while(7, |record| record.key < stop).unwrap();
                        let wanted = left.iter().take(7).take_while(|record| record.key < stop);
                        assert_eq!(taken, wanted.cloned().collect::<Vec<_>>());
                        at += taken.len();
                    }
                }
            }
        }
    });
}

#[test]
fn a_prefix_gives_the_keys_that_begin_with_it() {
    for_each_seed("a_prefix_gives_the_keys_that_begin_with_it", 4, |rng, seed| {
        let session = Place::simulated(seed).open();
        let mut table = session.new_table(&buffer_of(50)).unwrap();
        let mut content = Content::new();
        grow(&mut table, &mut content, rng);
        for _ in 0..50 {
            let prefix = draw_key(rng);
            let keys: Vec<_> = content.keys().filter(|key| key.starts_with(&prefix)).collect();
            let found = table.prefix(&prefix).unwrap().take(usize::MAX).unwrap();
            assert!(found.iter().map(|record| &record.key).eq(keys), "prefix {prefix:?}");
        }
    });
}

/// The ranges of acceptance case 8, by name.
#[test]
fn case_8_ranges() {
    for place in Place::both() {
        let session = place.open();
        let mut table = session.new_table(&buffer_of(2)).unwrap();
        for key in ["", "a", "aa", "b", "c"] {
            table.insert(key.as_bytes(), key.as_bytes()).unwrap();
        }
        table.insert(b"aa", b"again").unwrap();
        table.delete(b"c").unwrap();
        let keys = |cursor: terrane_lsm::Result<terrane_lsm::Cursor>| {
            let records = cursor.unwrap().take(100).unwrap();
            records.iter().map(|r| String::from_utf8_lossy(&r.key).into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(keys(table.range::<str, _>(..)), ["", "a", "aa", "b"]);
        assert_eq!(keys(table.range("a".."b")), ["a", "aa"]);
        assert_eq!(keys(table.range("a"..="b")), ["a", "aa", "b"]);
        assert_eq!(keys(table.range("aa".."aa")), [""; 0]);
        assert_eq!(keys(table.range("aa"..="aa")), ["aa"]);
        assert_eq!(keys(table.range("b".."a")), [""; 0]);
        assert_eq!(table.lookup(b"aa").unwrap().value(), Some(b"again".as_slice()));
    }
}
