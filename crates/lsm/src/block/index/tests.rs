//! Goal: for any keys, the protocol of [`Index::search`] and [`Index::previous`] reads the page of
//! each key that is present, and ends for each that is not; what it costs is what the index says;
//! and no bytes make a decoded index panic or lead astray. Method: runs of random and of hostile
//! keys cut into pages at random, against the pages themselves.

#![expect(clippy::cast_precision_loss, reason = "small numbers of the tests' own")]

use super::*;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

const KINDS: [IndexKind; 3] = [IndexKind::Auto, IndexKind::Compact, IndexKind::Ordinary];

/// A run: pages of keys, all in order.
type Pages = Vec<Vec<Vec<u8>>>;

/// Cuts sorted keys into pages of the given sizes, taken round and round.
fn cut(keys: impl IntoIterator<Item = Vec<u8>>, sizes: &[usize]) -> Pages {
    let mut keys = keys.into_iter().peekable();
    let mut sizes = sizes.iter().cycle();
    let mut pages = Vec::new();
    while keys.peek().is_some() {
        pages.push(keys.by_ref().take(*sizes.next().unwrap()).collect());
    }
    pages
}

fn entries(pages: &Pages) -> u64 {
    pages.iter().map(|page| page.len() as u64).sum()
}

/// A plan with the narrowest bounds and exact counts.
fn plan(kind: IndexKind, pages: &Pages) -> IndexPlan<'_> {
    IndexPlan {
        kind,
        lower: pages.first().map_or(&[], |page| &page[0]),
        upper: pages.last().map_or(&[], |page| page.last().unwrap()),
        entries_max: entries(pages),
        pages_max: pages.len() as u64,
    }
}

fn add_pages(builder: &mut IndexBuilder, pages: &[Vec<Vec<u8>>]) {
    let mut before: &[u8] = &[];
    for page in pages {
        for (index, key) in page.iter().enumerate() {
            match index {
                0 => builder.start_page(key, before),
                _ => builder.same_page(key),
            }
        }
        before = page.last().unwrap();
    }
}

fn build(plan: IndexPlan<'_>, pages: &Pages) -> Index {
    let mut builder = IndexBuilder::new(plan);
    add_pages(&mut builder, pages);
    let index = builder.finish();
    assert_eq!(index.pages() as usize, pages.len());
    index
}

/// Follows the protocol. Returns the last page read and how many were read before it.
fn look_up(index: &Index, pages: &Pages, key: &[u8]) -> (usize, u64) {
    let mut candidate = index.search(key);
    let mut extra_reads = 0;
    loop {
        let page = &pages[candidate.ordinal as usize];
        if page[0].as_slice() <= key {
            break;
        }
        let previous = index.previous(candidate.ordinal, key);
        assert_eq!(previous.is_some(), candidate.earlier);
        let Some(previous) = previous else { break };
        assert_eq!(previous.ordinal + 1, candidate.ordinal);
        candidate = previous;
        extra_reads += 1;
    }

    (candidate.ordinal as usize, extra_reads)
}

/// Checks every key of the run, and others near them.
fn check(index: &Index, pages: &Pages) {
    let mut extra_reads = 0;
    for (ordinal, key) in
        pages.iter().enumerate().flat_map(|(n, page)| page.iter().map(move |key| (n, key)))
    {
        let (found, extra) = look_up(index, pages, key);
        assert_eq!(found, ordinal, "{key:02x?}");
        extra_reads += extra;
        let shorter = key.split_last().map_or(&[][..], |(_, rest)| rest);
        for absent in [shorter, &[key, &[0][..]].concat(), &[key, &[255][..]].concat()] {
            check_any(index, pages, absent);
        }
    }

    assert_eq!(index.extra_reads(), extra_reads);
    for key in [&[][..], &[0], &[255; 40]] {
        check_any(index, pages, key);
    }
}

/// For a key that may be absent or out of bounds: whatever page the protocol ends with, no later
/// page begins at or before the key.
fn check_any(index: &Index, pages: &Pages, key: &[u8]) {
    if pages.is_empty() {
        assert_eq!(index.search(key), PageCandidate { ordinal: 0, earlier: false });
        assert_eq!(index.previous(0, key), None);
        return;
    }
    let (found, _) = look_up(index, pages, key);
    let page_after = pages.get(found + 1);
    assert!(page_after.is_none_or(|page| page[0].as_slice() > key), "{key:02x?} ended at {found}");
}

fn check_all_kinds(pages: &Pages) {
    for kind in KINDS {
        let index = build(plan(kind, pages), pages);
        check(&index, pages);
        let bytes = index.encode();
        let again = Index::decode(&bytes, index.pages()).unwrap();
        check(&again, pages);
        assert_eq!(again.encode(), bytes);
        assert_eq!(again.kind_name(), index.kind_name());
        assert!(Index::decode(&bytes, index.pages() + 1).is_err());
    }
}

/// Keys of few different bytes: prefixes of each other, zeros at the end, the empty key.
fn hostile_keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let byte = prop_oneof![Just(0u8), Just(1), Just(0x80), Just(255)];
    (vec(any::<u8>(), 0..12), btree_set(vec(byte, 0..12), 0..200)).prop_map(|(prefix, keys)| {
        keys.into_iter().map(|key| [prefix.as_slice(), &key].concat()).collect()
    })
}

fn spread_keys() -> impl Strategy<Value = Vec<Vec<u8>>> {
    btree_set(vec(any::<u8>(), 0..20), 0..200).prop_map(|keys| keys.into_iter().collect())
}

proptest! {
    #[test]
    fn every_present_key_is_found_and_every_search_ends(
        keys in prop_oneof![hostile_keys(), spread_keys()],
        sizes in vec(1..6usize, 1..10),
    ) {
        check_all_kinds(&cut(keys, &sizes));
    }

    #[test]
    fn wide_bounds_and_wrong_estimates_change_no_result(
        keys in prop_oneof![hostile_keys(), spread_keys()],
        sizes in vec(1..6usize, 1..10),
        entries_max in 0..1_000_000u64,
        pages_max in 0..10_000u64,
        kind in 0..3usize,
    ) {
        let pages = cut(keys, &sizes);
        let upper = [255; 40];
        let kind = KINDS[kind];
        let plan = IndexPlan { kind, lower: &[], upper: &upper, entries_max, pages_max };
        check(&build(plan, &pages), &pages);
    }

    #[test]
    fn any_bytes_are_refused_or_searched_without_panic(
        mut bytes in vec(any::<u8>(), 0..200),
        kind in 0..4u8,
        pages in 0..6u32,
    ) {
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Some(count) = bytes.get_mut(4..8) {
            count.copy_from_slice(&pages.to_le_bytes());
        }
        search_decoded(&bytes, pages);
    }
}

/// Whether the bytes decode; if so, searches for a few keys.
fn search_decoded(bytes: &[u8], pages: u32) -> bool {
    let Ok(index) = Index::decode(bytes, pages) else { return false };
    assert_eq!(index.pages(), pages);
    let inner = bytes.get(36..).unwrap_or(bytes);

    for key in [&[][..], &[0; 30], &[255; 30], &[0x55], inner, &bytes[bytes.len() / 2..]] {
        let mut candidate = Some(index.search(key));
        while let Some(PageCandidate { ordinal, .. }) = candidate {
            assert!(ordinal < pages.max(1));
            candidate = index.previous(ordinal, key);
            assert!(candidate.is_none_or(|candidate| candidate.ordinal + 1 == ordinal));
        }
    }

    assert_eq!(index.previous(u32::MAX, b"key"), None);
    assert_eq!(index.encode(), bytes, "two encodings of one index");
    true
}

#[test]
fn damaged_encodings_are_refused_or_searched_without_panic() {
    let spread = Spread(5).keys(90);
    let hostile = (0..90u8).map(|n| [&b"common"[..], &vec![7; usize::from(n)]].concat()).collect();
    for keys in [spread, hostile] {
        let pages = cut(keys, &[1, 2, 3]);
        for kind in [IndexKind::Compact, IndexKind::Ordinary] {
            let index = build(plan(kind, &pages), &pages);
            let bytes = index.encode();
            assert!(search_decoded(&bytes, index.pages()));

            for size in 0..bytes.len() {
                assert!(!search_decoded(&bytes[..size], index.pages()), "cut to {size}");
            }

            assert!(!search_decoded(&[bytes.as_slice(), &[0]].concat(), index.pages()));
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let decodes = search_decoded(&damaged, index.pages());
                assert!(!decodes || !(0..8).contains(&(bit / 8)) || bit / 8 == 1, "bit {bit}");
            }
        }
    }
}

/// Counts of things that are not there must not be believed.
#[test]
fn huge_sizes_are_refused_before_anything_is_allocated() {
    let mut compact = vec![1, 0, 0, 0];
    compact.extend(u32::MAX.to_le_bytes());
    compact.extend([0; 16]);
    compact.extend(u64::MAX.to_le_bytes());
    compact.extend([0; 4]);

    for low_bits in 0..=255 {
        compact[2] = low_bits;
        assert!(Index::decode(&compact, u32::MAX).is_err());
    }

    let mut ordinary = vec![2, 0, 0, 0];
    ordinary.extend(u32::MAX.to_le_bytes());
    ordinary.extend([0; 4]);
    ordinary.extend([0xFF; 12]);
    assert!(Index::decode(&ordinary, u32::MAX).is_err());
    ordinary[8..12].fill(0xFF);

    assert!(Index::decode(&ordinary, u32::MAX).is_err());
}

/// Evenly spread keys, from SplitMix64.
struct Spread(u64);

impl Spread {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Sorted keys of 16 bytes.
    fn keys(mut self, count: usize) -> Vec<Vec<u8>> {
        let key = |_| [self.next().to_le_bytes(), self.next().to_le_bytes()].concat();
        let mut keys: Vec<Vec<u8>> = (0..count).map(key).collect();
        keys.sort_unstable();
        keys
    }
}

/// Evenly spread keys at both ends of what rounding `log2(entries)` up does: a value for each
/// eighth and for each sixteenth of a key.
#[test]
fn evenly_spread_keys_take_under_1_6_bytes_per_page_and_0_3_percent_more_reads() {
    for count in [1 << 15, (1 << 16) + 5000] {
        for per_page in [28, 42] {
            let pages = cut(Spread(count as u64).keys(count), &[per_page]);
            let index = build(plan(IndexKind::Auto, &pages), &pages);
            assert_eq!(index.kind_name(), "compact");
            let bytes_per_page = index.memory_bytes() as f64 / pages.len() as f64;
            assert!((1.2..1.6).contains(&bytes_per_page), "{count}, {per_page}: {bytes_per_page}");
            let stored_per_page = index.encode().len() as f64 / pages.len() as f64;
            assert!(stored_per_page < bytes_per_page);
            let extra = index.extra_reads() as f64 / count as f64;
            assert!((0.0004..0.003).contains(&extra), "{count}, {per_page}: {extra}");
            check(&index, &pages);
            let ordinary = build(plan(IndexKind::Ordinary, &pages), &pages);
            let bytes_per_page = ordinary.memory_bytes() as f64 / pages.len() as f64;
            assert!((3.0..4.5).contains(&bytes_per_page), "{count}, {per_page}: {bytes_per_page}");
            check(&ordinary, &pages);
        }
    }
}

/// 5,000 keys that agree in their first eight bytes, among others that do not.
#[test]
fn keys_that_agree_in_their_cut_bytes_get_the_ordinary_index() {
    let mut keys = Spread(1).keys(10_000);
    for n in 0..5_000u32 {
        keys.push([b"12345678", n.to_le_bytes().as_slice(), b"12345678"].concat());
    }

    keys.sort_unstable();
    let pages = cut(keys, &[28]);
    let auto = build(plan(IndexKind::Auto, &pages), &pages);
    assert_eq!((auto.kind_name(), auto.extra_reads()), ("ordinary", 0));
    check(&auto, &pages);
    let compact = build(plan(IndexKind::Compact, &pages), &pages);
    assert!(compact.extra_reads() > 250_000);

    check(&compact, &pages);
}

/// While a run is written, `Auto` keeps the compact form no longer than it may be chosen.
#[test]
fn a_hopeless_compact_form_is_dropped_while_building() {
    let keys: Vec<Vec<u8>> = (0..20_000u32)
        .map(|n| [&[0; 20][..], &n.to_string().into_bytes()].concat())
        .chain([vec![255]])
        .collect();
    let mut keys = keys;
    keys.sort_unstable();
    let pages = cut(keys, &[28]);
    let mut builder = IndexBuilder::new(plan(IndexKind::Auto, &pages));
    add_pages(&mut builder, &pages[..pages.len() / 2]);
    assert!(builder.fences.is_none());
}

#[test]
fn an_index_without_pages_and_one_of_the_empty_key_work() {
    check_all_kinds(&Vec::new());
    check_all_kinds(&vec![vec![vec![]]]);
    check_all_kinds(&vec![vec![vec![]], vec![vec![0]]]);
}

/// Shared parts and tails whose sizes take no, one and two bytes of their own.
#[test]
fn long_keys_that_are_prefixes_of_each_other_are_found() {
    let key = |n: usize| [vec![7; n], vec![9; n % 200]].concat();
    let mut keys: Vec<Vec<u8>> = (0..500).map(key).chain([vec![8; 5000]]).collect();
    keys.sort_unstable();
    for size in 1..4 {
        check_all_kinds(&cut(keys.clone(), &[size]));
    }
}

/// The bytes of a small index of each kind, worked out by hand from the format.
#[test]
fn encodings_are_those_of_the_format() {
    let pages: Pages = [["pa", "pb"], ["pc", "pcx"], ["pq", "pz"]]
        .map(|page| page.map(|key| key.as_bytes().to_vec()).to_vec())
        .to_vec();
    let ordinary = build(plan(IndexKind::Ordinary, &pages), &pages).encode();
    let mut expected = vec![2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, b'p'];
    expected.extend([0x00, 0x01, b'c', 0x01, b'q']);
    assert_eq!(ordinary, expected);

    // "z" - "a" is 25, with 56 bits after it: 61 bits, of which 3 + 3 are kept. Values: a 0, c 4,
    // q 32, z 50. 50 / 3 = 16, so 4 bits of each are low.
    let compact = build(plan(IndexKind::Compact, &pages), &pages).encode();
    let mut expected = vec![1, 55, 4, 0, 3, 0, 0, 0];
    for word in [0, u64::from(b'a') << 56, 50] {
        expected.extend(u64::to_le_bytes(word));
    }

    expected.extend([1, 0, 0, 0, b'p']);
    expected.extend(u64::to_le_bytes(0x040));

    // Buckets 0 to 3: two numbers, none, one, none.
    expected.extend(u64::to_le_bytes(0b001_0011));
    assert_eq!(compact, expected);
}
