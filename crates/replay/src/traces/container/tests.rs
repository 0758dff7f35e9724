//! Traces of all families, whole, cut and hostile.
//!
//! The bytes of every event are written here by hand, field by field, beside what they must be read
//! as.

use std::fmt::Debug;

use terrane_testkit::RngCore;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use super::codes::{Encode, Output};
use super::irmin::{Operation, Operations, Question, Recorder};
use super::rows::RowsWriter;
use super::*;
use crate::engines::context::{CommitHash, StepsBuf};
use crate::hex;

/// A file of irmin's own tests: one commit, and a row that is cut.
pub(crate) const FIXTURE: &str = concat!(
    "49726d5265704254000000000019040204646174610776657273696f6e000100000000000000002901020464617461077665",
    "7273696f6e0767656e6573697300000000000000000001000000000000000123040204646174611173616e64626f785f7061",
    "72616d65746572000100000000000000013e01010870726f746f636f6c2038ecdef0cd08640f318a9b055f6b0d0c9ae03091",
    "3a871d9b9d86fb846317da210000000000000000010100000000000000022101010a746573745f636861696e010000000000",
    "000000000201000000000000000351070134436f56385351756d69565539736169753346564e65444e65774a614a48387957",
    "6473474633574c6473527232503953374d7a436a000000005b37aac40747656e657369730000000000000000000340000134",
);

const FIXTURE_COMMIT: &str = "CoV8SQumiVU9saiu3FVNeDNewJaJH8yWdsGF3WLdsRr2P9S7MzCj";

fn fixture() -> Vec<u8> {
    hex::decode(FIXTURE).unwrap()
}

fn keep<T>(value: T) -> Scoped<T> {
    Scoped { is_last: false, value }
}

fn last<T>(value: T) -> Scoped<T> {
    Scoped { is_last: true, value }
}

fn path(text: &str) -> StepsBuf {
    text.split('/').map(str::as_bytes).collect()
}

/// Reads a trace: each row as text, and the error at its end.
fn read_irmin(bytes: &[u8]) -> (Vec<String>, Option<Error>) {
    let mut rows = Vec::new();
    let mut trace = match Operations::open(bytes) {
        Ok(trace) => trace,
        Err(error) => return (rows, Some(error)),
    };
    loop {
        match trace.next_operation() {
            Ok(Some(row)) => rows.push(spell(&row)),
            Ok(None) => return (rows, None),
            Err(error) => return (rows, Some(error)),
        }
    }
}

fn spell_key(key: Key<'_>) -> String {
    let mut path = StepsBuf::new();
    as_it_is(key, &mut path);
    path.steps().to_string()
}

fn spell_scoped<T: ToString + Copy>(scoped: Scoped<T>) -> String {
    format!("{}{}", scoped.value.to_string(), if scoped.is_last { "!" } else { "" })
}

fn spell(row: &Operation<'_>) -> String {
    match *row {
        Operation::Checkout { commit, context } => {
            format!("checkout {} {}", spell_scoped(commit), spell_scoped(context))
        }
        Operation::Add { key, value, from, to } => format!(
            "add {} {} {} {}",
            spell_key(key),
            hex::encode(value),
            spell_scoped(from),
            spell_scoped(to)
        ),
        Operation::Remove { key, from, to } => {
            format!("remove {} {} {}", spell_key(key), spell_scoped(from), spell_scoped(to))
        }
        Operation::Copy { source, target, from, to } => format!(
            "copy {} {} {} {}",
            spell_key(source),
            spell_key(target),
            spell_scoped(from),
            spell_scoped(to)
        ),
        Operation::Ask { question, key, answer, context } => {
            format!("{question:?} {} {answer} {}", spell_key(key), spell_scoped(context))
        }
        Operation::Commit { hash, date, message, parents, context } => format!(
            "commit {} {date} {} {:?} {}",
            spell_scoped(hash),
            String::from_utf8_lossy(message),
            parents.items().map(spell_scoped).collect::<Vec<_>>(),
            spell_scoped(context)
        ),
    }
}

#[test]
fn the_published_trace_of_one_commit_is_read_up_to_its_cut_row() {
    let (rows, end) = read_irmin(&fixture());
    assert_eq!(
        rows,
        [
            "Find data/version false 0",
            "add data/version 67656e65736973 0! 1",
            "Find data/sandbox_parameter false 1",
            "add protocol 38ecdef0cd08640f318a9b055f6b0d0c9ae030913a871d9b9d86fb846317da21 1! 2",
            "add test_chain 00 2! 3",
            &format!("commit {FIXTURE_COMMIT} 1530374852 Genesis [] 3!"),
        ]
    );

    assert!(matches!(end, Some(Error::TruncatedTrace { row: 6, offset: 296 })), "{end:?}");
}

/// A trace with every operation, and what it says.
fn sample() -> (Vec<u8>, Vec<String>) {
    let commit: CommitHash = FIXTURE_COMMIT.parse().unwrap();
    let other = CommitHash([7; 32]);
    let (deep, long) = (path("data/a/b"), path(&"x".repeat(200)));
    let mut trace = Recorder::new(Vec::new()).unwrap();
    trace.checkout(last(commit), keep(i64::MIN)).unwrap();
    trace.add((deep.steps(), b""), (keep(i64::MAX), last(-1))).unwrap();
    trace.add((long.steps(), &[0xAB; 300]), (last(1), keep(2))).unwrap();
    trace.remove(deep.steps(), (last(2), keep(3))).unwrap();
    trace.copy((deep.steps(), long.steps()), (keep(3), last(4))).unwrap();
    trace.ask(Question::Find, (deep.steps(), true), keep(4)).unwrap();
    trace.ask(Question::Mem, (deep.steps(), false), last(4)).unwrap();
    trace.ask(Question::MemTree, (StepsBuf::new().steps(), true), keep(0)).unwrap();
    let parents = [keep(commit), last(other)];
    trace.commit((keep(other), &parents), (-5, b"message"), last(4)).unwrap();
    trace.commit((last(commit), &[]), (0, b""), keep(4)).unwrap();

    let rows = [
        format!("checkout {commit}! {}", i64::MIN),
        format!("add data/a/b  {} -1!", i64::MAX),
        format!("add {} {} 1! 2", "x".repeat(200), "ab".repeat(300)),
        "remove data/a/b 2! 3".to_owned(),
        format!("copy data/a/b {} 3 4!", "x".repeat(200)),
        "Find data/a/b true 4".to_owned(),
        "Mem data/a/b false 4!".to_owned(),
        "MemTree  true 0".to_owned(),
        format!("commit {other} -5 message [\"{commit}\", \"{other}!\"] 4!"),
        format!("commit {commit}! 0  [] 4"),
    ];

    (trace.finish().unwrap(), rows.to_vec())
}

#[test]
fn what_is_recorded_is_read() {
    let (bytes, expected) = sample();
    let (rows, end) = read_irmin(&bytes);
    assert_eq!(rows, expected);
    assert!(end.is_none(), "{end:?}");
}

#[test]
fn the_recorder_writes_the_published_bytes() {
    let commit: CommitHash = FIXTURE_COMMIT.parse().unwrap();
    let protocol = "38ecdef0cd08640f318a9b055f6b0d0c9ae030913a871d9b9d86fb846317da21";

    let mut trace = Recorder::new(Vec::new()).unwrap();
    let find = |trace: &mut Recorder<Vec<u8>>, at, context| {
        trace.ask(Question::Find, (path(at).steps(), false), keep(context)).unwrap();
    };
    find(&mut trace, "data/version", 0);
    trace.add((path("data/version").steps(), b"genesis"), (last(0), keep(1))).unwrap();
    find(&mut trace, "data/sandbox_parameter", 1);
    let value = hex::decode(protocol).unwrap();
    trace.add((path("protocol").steps(), &value), (last(1), keep(2))).unwrap();
    trace.add((path("test_chain").steps(), &[0]), (last(2), keep(3))).unwrap();
    trace.commit((keep(commit), &[]), (1_530_374_852, b"Genesis"), last(3)).unwrap();
    assert_eq!(hex::encode(&trace.finish().unwrap()), hex::encode(&fixture()[..296]));
}

/// Returns the offsets of the rows, and the end of the file.
fn boundaries(bytes: &[u8]) -> Vec<usize> {
    let mut at = vec![13];
    while at[at.len() - 1] < bytes.len() {
        let start = at[at.len() - 1];
        let mut length = 0;
        let mut end = start;
        loop {
            length |= usize::from(bytes[end] & 0x7F) << (7 * (end - start));
            end += 1;
            if bytes[end - 1] < 0x80 {
                break;
            }
        }
        at.push(end + length);
    }

    at
}

#[test]
fn a_trace_that_is_cut_anywhere_gives_its_whole_rows_and_says_where_it_was_cut() {
    let (bytes, expected) = sample();
    let boundaries = boundaries(&bytes);
    assert_eq!(boundaries.len(), expected.len() + 1);

    for length in 0..bytes.len() {
        let (rows, end) = read_irmin(&bytes[..length]);
        let whole = boundaries.iter().filter(|&&at| at <= length).count().saturating_sub(1);
        assert_eq!(rows, expected[..whole], "{length}");
        let place = boundaries.get(whole).copied().unwrap_or(0) as u64;
        match end {
            None => assert!(boundaries.contains(&length), "{length}"),
            Some(Error::TooShort { bytes }) => assert!(length < 12 && bytes == length as u64),
            Some(Error::Header { offset: 12, what: Malformed::Short }) => assert_eq!(length, 12),
            Some(Error::TruncatedTrace { row, offset }) => {
                assert_eq!((row, offset), (whole as u64, place), "{length}");
                assert!(length > 12 && !boundaries.contains(&length), "{length}");
            }
            Some(other) => panic!("{length}: {other}"),
        }
    }
}

/// Reads some bytes, is interrupted once, and fails.
struct Failing {
    bytes: Vec<u8>,
    calls: usize,
}

impl std::io::Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.calls += 1;
        match self.calls {
            1 => Err(std::io::ErrorKind::Interrupted.into()),
            2 => {
                buffer[..self.bytes.len()].copy_from_slice(&self.bytes);
                Ok(self.bytes.len())
            }
            _ => Err(std::io::Error::other("as planned")),
        }
    }
}

#[test]
fn a_failing_input_or_output_is_told_from_a_damaged_trace() {
    let (bytes, _) = sample();
    for length in [5, 12, 13, 14, 40] {
        let input = Failing { bytes: bytes[..length].to_vec(), calls: 0 };
        let mut input = std::io::BufReader::new(input);
        let end = match Operations::open(&mut input) {
            Ok(mut trace) => trace.next_operation().map(drop).unwrap_err(),
            Err(error) => error,
        };
        assert!(matches!(end, Error::Read { offset, .. } if offset == length as u64), "{end:?}");
        assert_eq!(end.class(), crate::error::Class::Environment);
    }

    let mut room = [0; 20];
    assert!(matches!(Recorder::new(&mut room[..5]), Err(Error::Write { row: 0, .. })));
    let mut trace = Recorder::new(&mut room[..]).unwrap();
    let end = trace.remove(path("a").steps(), (keep(0), keep(1)));
    assert!(matches!(end, Err(Error::Write { row: 0, .. })), "{end:?}");
}

#[test]
fn another_magic_version_and_header_are_told_apart() {
    let (mut bytes, _) = sample();
    bytes[7] = b'X';
    let (_, end) = read_irmin(&bytes);

    assert!(
        matches!(&end, Some(Error::Magic { expected: Family::Irmin, found }) if found == b"IrmRepBX"),
        "{end:?}"
    );

    bytes[7] = b'T';
    bytes[11] = 1;
    let (_, end) = read_irmin(&bytes);
    assert!(matches!(end, Some(Error::UnknownVersion { found: 1, .. })), "{end:?}");
    bytes[8..12].fill(0xFF);
    let (_, end) = read_irmin(&bytes);
    assert!(matches!(end, Some(Error::UnknownVersion { found: -1, .. })), "{end:?}");
    bytes[8..12].fill(0);
    bytes[12] = 1;
    let (_, end) = read_irmin(&bytes);
    let excess = Malformed::Excess(1);
    assert!(matches!(end, Some(Error::Header { offset: 13, what }) if what == excess), "{end:?}");
    let endless = [&bytes[..12], &[0xFF; 11]].concat();
    let (_, end) = read_irmin(&endless);
    assert!(matches!(end, Some(Error::Header { what: Malformed::Number, .. })), "{end:?}");
}

/// A trace of one row, which has these bytes.
fn one_row(family: Family, row: &[u8]) -> Vec<u8> {
    let mut rows = RowsWriter::new(Vec::new(), family).unwrap();
    rows.write(row).unwrap();
    rows.finish().unwrap()
}

/// Returns the broken rule of a row, with the offset in the row.
fn wrong(end: Option<Error>) -> (u64, Malformed) {
    match end {
        Some(Error::Malformed { row: 0, offset, what }) => (offset - 14, what),
        other => panic!("{other:?}"),
    }
}

#[test]
fn damaged_rows_are_refused_with_the_place_of_the_damage() {
    let check = |row: &[u8], offset, what| {
        let (rows, end) = read_irmin(&one_row(Family::Irmin, row));
        assert_eq!((rows.len(), wrong(end)), (0, (offset, what)), "{row:?}");
    };

    check(&[8], 1, Malformed::Tag { kind: "operation", tag: 8 });
    check(&[], 0, Malformed::Short);

    // A mem of the root in context 0, then too short, too long, and of an unknown scope.
    let mem = [5, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    check(&mem[..11], 4, Malformed::Short);
    check(&[mem.as_slice(), &[0, 0]].concat(), 12, Malformed::Excess(2));
    check(&[5, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0], 4, Malformed::Tag { kind: "scope", tag: 2 });

    // Counts and lengths that nothing can have.
    let most = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1];
    check(&[[5].as_slice(), &most].concat(), 11, Malformed::Short);
    check(&[[5, 1].as_slice(), &most].concat(), 12, Malformed::Short);
    check(&[[5].as_slice(), &most[..9], &[2]].concat(), 11, Malformed::Number);
    check(&[[5].as_slice(), &[0x80; 12]].concat(), 11, Malformed::Number);

    // A checkout of the hash `Co`.
    check(&[0, 1, 2, b'C', b'o'], 5, Malformed::Hash(crate::engines::context::NoCommitHash::Kind));
}

#[test]
fn a_length_that_no_row_has_is_refused_without_reading_it() {
    let start = one_row(Family::Irmin, &[]);
    let long = [&start[..13], &[0x81, 0x80, 0x80, 0x20]].concat();
    let (_, end) = read_irmin(&long);

    let too_long = Malformed::TooLong((1 << 26) + 1);
    assert!(
        matches!(end, Some(Error::Malformed { row: 0, offset: 13, what }) if what == too_long),
        "{end:?}"
    );

    // The longest length with no bytes behind it: the reader takes no more memory than the file has
    // bytes.
    let cut = [&start[..13], &[0x80, 0x80, 0x80, 0x20, 1]].concat();
    let (_, end) = read_irmin(&cut);
    assert!(matches!(end, Some(Error::TruncatedTrace { row: 0, offset: 13 })), "{end:?}");
    let endless = [&start[..13], &[0x80; 11]].concat();
    let (_, end) = read_irmin(&endless);

    let number = Malformed::Number;
    assert!(
        matches!(end, Some(Error::Malformed { row: 0, offset: 13, what }) if what == number),
        "{end:?}"
    );
}

/// Reads a trace of any family as far as it goes: how many rows, and whether it ended well.
fn read_any(bytes: &[u8]) -> Vec<(u64, bool)> {
    fn count<T>(mut next: impl FnMut() -> Result<Option<T>>) -> (u64, bool) {
        for rows in 0.. {
            match next() {
                Ok(Some(_)) => {}
                Ok(None) => return (rows, true),
                Err(_) => return (rows, false),
            }
        }
        unreachable!("a trace ends");
    }

    let mut ends = Vec::new();
    if let Ok(mut trace) = Operations::open(bytes) {
        ends.push(count(|| trace.next_operation().map(|row| row.map(|row| drop(spell(&row))))));
    }

    if let Ok(mut trace) = replayable::Blocks::open(bytes) {
        let spell = |block: replayable::Block<'_>| {
            block.events().for_each(|event| drop(format!("{event:?}")));
        };
        ends.push(count(|| trace.next_block().map(|block| block.map(spell))));
    }

    if let Ok(mut trace) = raw::Events::open(bytes) {
        let spell = |event: raw::Event<'_>| drop(format!("{event:?}"));
        ends.push(count(|| trace.next_event().map(|event| event.map(spell))));
    }

    ends
}

#[test]
fn no_flipped_bit_and_no_garbage_stops_a_reader_other_than_by_an_error() {
    let traces = [sample().0, fixture(), replayable_trace(), raw_trace()];
    for trace in &traces {
        // Three and eight have nothing in common, so each bit of a byte has its turn.
        for bit in (0..8 * trace.len()).step_by(3) {
            let mut flipped = trace.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let is_refused = read_any(&flipped).is_empty();
            // Magic and version are checked, so a flip in them is always seen.
            assert!(is_refused || bit >= 8 * 12, "{bit}");
        }
    }

    let name = "no_flipped_bit_and_no_garbage_stops_a_reader_other_than_by_an_error";
    for_each_seed(name, 300, |rng, _| {
        let trace = &traces[rng.below(traces.len() as u64) as usize];
        let from = 13 + rng.below(trace.len() as u64 - 13) as usize;
        let mut garbage = trace.clone();
        rng.fill_bytes(&mut garbage[from..]);
        read_any(&garbage);
    });
}

fn bytes(write: impl FnOnce(&mut Output)) -> Vec<u8> {
    let mut output = Output::default();
    write(&mut output);
    output.0
}

/// A key `a/b`, as it is coded.
const KEY: [u8; 5] = [2, 1, b'a', 1, b'b'];

/// Seconds since 1970: 258.
const TIME: [u8; 8] = [0, 0, 0, 0, 0, 0, 1, 2];

/// Events with their tags and operands, joined.
fn coded(tag: u8, operands: &[&[u8]]) -> Vec<u8> {
    [&[tag], operands.concat().as_slice()].concat()
}

/// The operations on trees that both families have, but for listing: operands, and what is read in
/// short.
///
/// `tree` codes a tree of some number, `found` what was found (something), `hash` a hash.
fn tree_operations(tree: &dyn Fn(u8) -> Vec<u8>, found: &[u8], hash: &[u8]) -> Vec<Vec<u8>> {
    let one = &*tree(1);
    let two = &*tree(2);

    let three = &*tree(3);
    let some = [[1].as_slice(), two].concat();
    vec![
        coded(0, &[one, two]),
        coded(1, &[one, &[1, b'v'], two]),
        coded(2, &[&[1, 2, 1, b's', 0, 1, b'v', 1, b't', 1, 0], two]),
        coded(3, &[one, &KEY, &[1]]),
        coded(4, &[one, &KEY, &[0]]),
        coded(5, &[one, &KEY, found]),
        coded(6, &[one, &[1]]),
        coded(7, &[one, &[1]]),
        coded(8, &[one, hash]),
        coded(9, &[one, two, &[1]]),
        coded(10, &[one, found]),
        coded(11, &[&[1, 7], one]),
        coded(12, &[one, &KEY, &some]),
        coded(13, &[one, &KEY, &[1, b'v'], two]),
        coded(14, &[one, &KEY, three, two]),
        coded(15, &[one, &KEY, two]),
        coded(16, &[&[1, 4, 3, 1], one, &KEY]),
        coded(17, &[one]),
        coded(18, &[one]),
        coded(19, &[&[6]]),
    ]
}

const HASH: [u8; 3] = [2, b'h', b'h'];

/// Every event of a replayable trace.
fn replayable_events() -> Vec<Vec<u8>> {
    let tracker = |number: u8| vec![1, number];
    let one = &*tracker(1);
    let two = &*tracker(2);
    let commit = [&[0, 1], HASH.as_slice()].concat();
    let message = [1, 1, b'm'];

    let mut events: Vec<Vec<u8>> =
        tree_operations(&tracker, &[1], &[]).iter().map(|op| coded(0, &[op])).collect();
    events.extend([
        coded(1, &[one, &KEY, &[0]]),
        coded(2, &[&[0, 0], one, &KEY]),
        coded(3, &[one]),
        coded(4, &[one]),
        coded(5, &[]),
        coded(6, &[one, &KEY, two, two]),
        coded(7, &[one, &KEY, &[1]]),
        coded(8, &[one, &KEY, &[1]]),
        coded(9, &[one, &KEY, &[1]]),
        coded(10, &[one]),
        coded(11, &[&TIME, &message, one]),
        coded(12, &[one]),
        coded(13, &[one]),
        coded(14, &[one]),
        coded(15, &[&commit, &[1]]),
        coded(16, &[one, &KEY, &[1, b'v'], two]),
        coded(17, &[one, &KEY, two]),
        coded(18, &[one, &HASH, two]),
        coded(19, &[one, &HASH, two]),
        coded(20, &[one, &HASH, two]),
        coded(21, &[one, &[2], &HASH, &HASH, &HASH, &TIME, two]),
        coded(22, &[one, two]),
        coded(23, &[one, &HASH, &TIME, two]),
        coded(24, &[&commit, one]),
        coded(25, &[&HASH, &TIME, &HASH]),
        coded(26, &[&commit]),
        coded(27, &[&HASH]),
        coded(28, &[&TIME, &message, one, &commit]),
        coded(29, &[&[1]]),
        coded(30, &[one]),
        coded(31, &[one, two]),
        coded(32, &[&commit]),
        coded(33, &[]),
    ]);

    events
}

fn block(events: &[Vec<u8>]) -> Vec<u8> {
    bytes(|out| {
        (1..=8).for_each(|number| out.number(number));
        out.number(900);
        out.number(events.len() as u64);
        out.0.extend(events.concat());
        out.u8(1);
    })
}

/// A replayable trace of these rows, from level 300 to 302.
fn replayable_of(rows: &[Vec<u8>]) -> Vec<u8> {
    let header = bytes(|out| {
        out.u8(1);
        out.number(300);
        out.string(b"first");
        out.number(302);
        out.string(b"last");
        out.number(2);
    });

    bytes(|out| {
        out.0.extend_from_slice(b"TezosRep\0\0\0\0");
        out.string(&header);
        for row in rows {
            out.string(row);
        }
    })
}

fn replayable_trace() -> Vec<u8> {
    let events = replayable_events();
    let (first, second) = events.split_at(20);
    replayable_of(&[block(first), block(second)])
}

/// Every event of a raw trace.
fn raw_events() -> Vec<Vec<u8>> {
    let tracker = |number: u8| vec![number];
    let found = [1, 1, 2, b'5', b'5'];
    let times = [[0x3F, 0xF0, 0, 0, 0, 0, 0, 0], [0x40, 0, 0, 0, 0, 0, 0, 0]].concat();
    let message = [1, 1, b'm'];

    let mut events: Vec<Vec<u8>> = tree_operations(&tracker, &found, &HASH)
        .into_iter()
        .map(|mut op| {
            op[0] += u8::from(op[0] >= 13);
            coded(0, &[&op])
        })
        .collect();

    events.push(coded(0, &[&[13, 1, 1, 5, 0, 9, 4]]));
    events.extend([
        coded(1, &[&[1], &KEY, &[1, 2]]),
        coded(2, &[&[1, 0, 1, 8, 3, 2]]),
        coded(3, &[&[0, 1, 1], &KEY]),
        coded(4, &[&[1]]),
        coded(5, &[&[1]]),
        coded(6, &[&[9]]),
        coded(7, &[&[1], &KEY, &[2, 3]]),
        coded(8, &[&[1], &KEY, &[1]]),
        coded(9, &[&[1], &KEY, &[1]]),
        coded(10, &[&[1], &KEY, &[1, 0, 1, b'v']]),
        coded(11, &[&[1], &HASH]),
        coded(12, &[&TIME, &message, &[1], &HASH]),
        coded(13, &[&[1, 1], &KEY]),
        coded(14, &[&[1, 1], &HASH]),
        coded(15, &[&[1, 0]]),
        coded(16, &[&[1, 1], &HASH, &TIME]),
        coded(17, &[&HASH, &[1], &times]),
        coded(18, &[&HASH, &[0], &times]),
        coded(19, &[&[1], &KEY, &[1, b'v', 2]]),
        coded(20, &[&[1], &KEY, &[2]]),
        coded(21, &[&[1], &HASH, &[2]]),
        coded(22, &[&[1], &HASH, &[2]]),
        coded(23, &[&[1], &HASH, &[2]]),
        coded(24, &[&[1, 0, 2]]),
        coded(25, &[&[1, 2]]),
        coded(26, &[&[1], &HASH, &TIME, &[2]]),
        coded(27, &[&HASH, &[1, 2], &times]),
        coded(28, &[&HASH, &[0, 2], &times]),
        coded(29, &[]),
        coded(30, &[&times]),
        coded(31, &[&HASH]),
        coded(32, &[&HASH, &HASH]),
        coded(33, &[&HASH, &TIME, &HASH, &times[..8]]),
        coded(34, &[&[0], &HASH, &times[..8]]),
        coded(35, &[&HASH]),
        coded(36, &[&TIME, &message, &[1], &HASH, &times]),
        coded(37, &[&[1], &TIME, &[0xFF, 0xFF, 0xFF, 0xFE], &HASH, &times]),
        coded(38, &[&[0]]),
        coded(39, &[&[1]]),
        coded(40, &[&[1, 1]]),
        coded(41, &[&times]),
        coded(42, &[&[24]]),
        coded(43, &[&HASH, &times]),
        coded(44, &[]),
    ]);

    events
}

/// A tree as it is coded.
pub(crate) fn raw_tree(bytes: &[u8]) -> RawTree<'_> {
    super::codes::Input::new(bytes).read().unwrap()
}

/// Rows of a raw trace, for replays.
pub(crate) enum RawRow {
    /// The first commit of a chain, in which `a/b` is put: start, patch and end.
    Genesis {
        commit: Vec<u8>,
        chain: [u8; 4],
        protocol: [u8; 32],
        time: i64,
    },
    Checkout {
        commit: Vec<u8>,
        to: Option<u64>,
    },
    Find {
        context: u64,
        key: KeyBuf,
        found: Option<Vec<u8>>,
    },
    List {
        context: u64,
    },
    Add {
        context: u64,
        key: KeyBuf,
        value: Vec<u8>,
        to: u64,
    },
    Commit {
        context: u64,
        commit: Vec<u8>,
        time: i64,
    },
    Unhandled,
}

fn coded_key(key: &KeyBuf) -> Vec<u8> {
    bytes(|out| Encode::encode(&key.key(), out))
}

impl RawRow {
    fn coded(&self) -> Vec<Vec<u8>> {
        let string = |text: &[u8]| bytes(|out| out.string(text));
        let number = |number: u64| bytes(|out| out.number(number));
        let option = |value: &Option<Vec<u8>>| match value {
            Some(value) => [&[1], value.as_slice()].concat(),
            None => vec![0],
        };

        let times = [0; 16];
        let one = |tag, parts: &[&[u8]]| vec![coded(tag, parts)];
        match self {
            Self::Genesis { commit, chain, protocol, time } => {
                let time = bytes(|out| out.i64(*time));
                let chain = string(chain);
                let protocol = string(protocol);
                let key = coded_key(&KeyBuf::new([b"a".as_slice(), b"b"]));
                vec![
                    coded(33, &[&chain, &time, &protocol, &times[..8]]),
                    coded(39, &[&[100]]),
                    coded(19, &[&[100], &key, &[1, b'1', 101]]),
                    coded(40, &[&[100, 0, 101]]),
                    coded(34, &[&[0], &string(commit), &times[..8]]),
                ]
            }
            Self::Checkout { commit, to } => {
                let to = option(&to.map(number));
                one(27, &[&string(commit), &to, &times])
            }
            Self::Find { context, key, found } => {
                let value = |value: &Vec<u8>| [vec![0], string(value)].concat();
                let found = option(&found.as_ref().map(value));
                one(10, &[&number(*context), &coded_key(key), &found])
            }
            Self::List { context } => one(2, &[&number(*context), &[0, 0, 50, 2]]),
            Self::Add { context, key, value, to } => {
                let key = coded_key(key);
                let value = string(value);
                one(19, &[&number(*context), &key, &value, &number(*to)])
            }
            Self::Commit { context, commit, time } => {
                let time = bytes(|out| out.i64(*time));
                one(36, &[&time, &[1, 1, b'm'], &number(*context), &string(commit), &times])
            }
            Self::Unhandled => one(42, &[&[7]]),
        }
    }
}

/// A raw trace of these rows.
pub(crate) fn raw_trace_of(rows: &[RawRow]) -> Vec<u8> {
    let mut out = RowsWriter::new(Vec::new(), Family::Raw).unwrap();
    rows.iter().flat_map(RawRow::coded).for_each(|row| out.write(&row).unwrap());
    out.finish().unwrap()
}

fn raw_trace() -> Vec<u8> {
    let mut rows = RowsWriter::new(Vec::new(), Family::Raw).unwrap();
    for event in raw_events() {
        rows.write(&event).unwrap();
    }
    rows.finish().unwrap()
}

/// Debug output, with the bytes that lists and strings hold as texts of their own.
fn short(value: &dyn Debug) -> String {
    format!("{value:?}")
}

#[test]
fn every_event_of_a_replayable_trace_is_read() {
    use replayable::{Blocks, Event, MadeCommit, UsedCommit};
    let trace = replayable_trace();
    let mut blocks = Blocks::open(trace.as_slice()).unwrap();
    let header = blocks.header().clone();
    assert_eq!(header.initial, Some((300, b"first".to_vec())));
    assert_eq!((header.last, header.block_count), ((302, b"last".to_vec()), 2));
    let first = blocks.next_block().unwrap().unwrap();
    assert_eq!((first.statistics.level, first.statistics.solvetime), (1, 900));
    assert_eq!((first.statistics.tzop_count_tx, first.uses_patch_context), (3, true));
    assert!(first.events().all(|event| matches!(event, Event::Tree(_))));
    let kinds: Vec<String> = first.events().map(|event| name_of(&short(&event))).collect();
    assert_eq!(
        kinds.join(" "),
        "Tree(Empty Tree(OfValue Tree(OfRaw Tree(Mem Tree(MemTree Tree(Find Tree(IsEmpty Tree(Kind Tree(Hash \
         Tree(Equal Tree(ToValue Tree(Clear Tree(FindTree Tree(Add Tree(AddTree Tree(Remove Tree(FoldStart(Fold \
         Tree(FoldEnter Tree(FoldExit Tree(FoldEnd"
    );
    let second = blocks.next_block().unwrap().unwrap();
    let events: Vec<Event<'_>> = second.events().collect();
    assert_eq!(events.len(), 33);
    let hash = keep(b"hh".as_slice());
    assert_eq!(events[4], Event::FoldEnd);
    assert!(matches!(events[5], Event::AddTree { context, tree, to, .. }
        if context == keep(1) && tree == keep(2) && to == keep(2)));
    assert_eq!(events[10], Event::Hash { time: 258, message: Some(b"m"), context: keep(1) });
    assert!(matches!(events[15], Event::Add { key, value: b"v", .. } if spell_key(key) == "a/b"));
    let status = Status::Running { chain: b"hh", genesis: b"hh", protocol: b"hh", expiration: 258 };
    assert_eq!(events[20], Event::AddTestChain { context: keep(1), status, to: keep(2) });
    let used = UsedCommit { is_instantiated: true, hash };
    assert_eq!(events[23], Event::Checkout { commit: used, to: keep(1) });
    let commit = MadeCommit { is_first: true, hash };
    assert_eq!(
        events[27],
        Event::Commit { time: 258, message: Some(b"m"), context: keep(1), commit }
    );
    assert_eq!(events[31..], [Event::Gc { commit: used }, Event::Split]);
    assert!(blocks.next_block().unwrap().is_none());
}

#[test]
fn a_replayable_trace_that_was_read_is_written_as_it_was() {
    let trace = replayable_trace();
    let mut blocks = replayable::Blocks::open(trace.as_slice()).unwrap();
    let mut recorder = replayable::Recorder::new(Vec::new(), blocks.header()).unwrap();
    while let Some(block) = blocks.next_block().unwrap() {
        block.events().for_each(|event| recorder.event(&event));
        recorder.end_block(&block.statistics, block.uses_patch_context).unwrap();
    }
    assert_eq!(hex::encode(&recorder.finish().unwrap()), hex::encode(&trace));
    let key = KeyBuf::new([b"a".as_slice(), b"b"]);
    assert_eq!(spell_key(key.key()), "a/b");
}

#[test]
fn the_family_of_a_trace_is_told_by_its_first_bytes() {
    let of = |trace: &[u8]| Family::of(trace);
    assert_eq!(of(&fixture()), Some(Family::Irmin));
    assert_eq!(of(&replayable_trace()), Some(Family::Replayable));
    assert_eq!(of(&raw_trace()), Some(Family::Raw));
    assert_eq!((of(b"TezosRe"), of(b"TezosRex")), (None, None));
}

/// The name of a variant in its debug output.
fn name_of(text: &str) -> String {
    text.split([' ', '{']).next().unwrap_or_default().to_owned()
}

#[test]
fn every_event_of_a_raw_trace_is_read() {
    use raw::{Event, Events, Lookup, Times};
    let trace = raw_trace();
    let mut events = Events::open(trace.as_slice()).unwrap();
    let mut names = Vec::new();
    let times = Times { before: 1.0, after: 2.0 };
    while let Some(event) = events.next_event().unwrap() {
        match names.len() {
            5 => assert!(matches!(
                event,
                Event::Tree(TreeOperation::Find { tree: 1, found: Some(Lookup::Md5(b"55")), .. })
            )),
            20 => assert_eq!(
                event,
                Event::Tree(TreeOperation::List(Listing {
                    of: 1,
                    offset: Some(5),
                    length: None,
                    first: 9,
                    count: 4
                }))
            ),
            30 => assert!(matches!(event, Event::Find { found: Some(Lookup::Value(b"v")), .. })),
            33 => assert!(matches!(event, Event::MerkleTree { has_raw_leaves: true, .. })),
            47 => assert_eq!(event, Event::Checkout { commit: b"hh", to: Some(2), times }),
            54 => assert_eq!(event, Event::CommitGenesisEnd { commit: Some(b"hh"), at: 1.0 }),
            57 => assert!(matches!(event, Event::CommitTestChainGenesis { level: -2, .. })),
            _ => {}
        }
        names.push(name_of(&short(&event)));
    }
    assert_eq!(
        names[20..].join(" "),
        "Tree(List(Listing FindTree List(Listing FoldStart(Fold FoldEnter FoldExit FoldEnd AddTree Mem MemTree Find \
         GetProtocol Hash MerkleTree FindPredecessorBlock FindPredecessorOps GetTestChain Exists RetrieveCommitInfo \
         Add Remove AddProtocol AddPredecessorBlock AddPredecessorOps AddTestChain RemoveTestChain ForkTestChain \
         Checkout CheckoutExn Close Sync SetMaster SetHead CommitGenesisStart CommitGenesisEnd ClearTestChain Commit \
         CommitTestChainGenesis Init PatchContextEnter PatchContextExit DumpContext Unhandled Gc Split"
    );
}

#[test]
fn every_event_that_is_cut_or_prolonged_or_of_no_known_tag_is_refused() {
    let replayable = |event: &[u8]| {
        // Nothing follows the event, so a missing part cannot be read from the next event.
        let row = block(&[event.to_vec()]);
        let row = &row[..row.len() - 1];
        let trace = replayable_of(&[row.to_vec()]);
        let mut blocks = replayable::Blocks::open(trace.as_slice()).unwrap();
        match blocks.next_block().map(|block| block.is_some()) {
            Err(Error::Malformed { row: 0, what, .. }) => what,
            other => panic!("{event:?}: {other:?}"),
        }
    };

    let raw = |event: &[u8]| {
        let trace = one_row(Family::Raw, event);
        let mut events = raw::Events::open(trace.as_slice()).unwrap();
        match events.next_event().map(|event| event.is_some()) {
            Err(Error::Malformed { row: 0, what, .. }) => what,
            other => panic!("{event:?}: {other:?}"),
        }
    };

    for event in replayable_events() {
        (0..event.len())
            .for_each(|length| assert_eq!(replayable(&event[..length]), Malformed::Short));
    }

    for event in raw_events() {
        (0..event.len()).for_each(|length| assert_eq!(raw(&event[..length]), Malformed::Short));
        assert_eq!(raw(&[event.as_slice(), &[0]].concat()), Malformed::Excess(1));
    }

    let unknown = |kind, tag| Malformed::Tag { kind, tag };
    assert_eq!(replayable(&[34]), unknown("event", 34));
    assert_eq!(replayable(&[0, 20]), unknown("operation on a tree", 20));
    assert_eq!(replayable(&[24, 2]), unknown("occurrence", 2));
    assert_eq!(raw(&[45]), unknown("event", 45));
    assert_eq!(raw(&[0, 21]), unknown("operation on a tree", 21));
    assert_eq!(raw(&[16, 1, 3]), unknown("status", 3));
    assert_eq!(raw(&[3, 1, 5]), unknown("depth", 5));
    assert_eq!(raw(&[3, 0, 2]), unknown("order", 2));
    assert_eq!(raw(&[0, 7, 1, 2]), unknown("kind of tree", 2));
    assert_eq!(raw(&[40, 1, 2]), unknown("result", 2));
    assert_eq!(raw(&[13, 1, 2]), unknown("kind of leaf", 2));
    assert_eq!(raw(&[10, 1, 0, 1, 2]), unknown("found value", 2));
    assert_eq!(raw(&[0, 2, 2]), unknown("raw tree", 2));
}

#[test]
fn a_raw_tree_is_walked_and_one_that_is_too_deep_is_refused() {
    fn walk(tree: RawTree<'_>, at: &str, found: &mut Vec<String>) {
        match tree {
            RawTree::Value(value) => found.push(format!("{at}={}", value.len())),
            RawTree::Directory(children) => {
                found.push(format!("{at}#{}", children.count()));
                for (step, child) in children.items() {
                    walk(child, &format!("{at}/{}", String::from_utf8_lossy(step)), found);
                }
            }
        }
    }

    let nested = |depth: usize| {
        let mut tree = [1, 1, 1, b'd'].repeat(depth);
        tree.extend([0, 2, b'v', b'v', 9]);
        one_row(Family::Raw, &coded(0, &[&[2], &tree]))
    };

    let trace = nested(64);
    let mut events = raw::Events::open(trace.as_slice()).unwrap();

    let event = events.next_event().unwrap().unwrap();
    let raw::Event::Tree(TreeOperation::OfRaw { raw, to: 9 }) = event else {
        panic!("{event:?}");
    };
    let mut found = Vec::new();
    walk(raw, "", &mut found);
    assert_eq!((found.len(), found[1].as_str()), (65, "/d#1"));
    assert_eq!(found[64], format!("{}=2", "/d".repeat(64)));
    let trace = nested(65);
    let mut events = raw::Events::open(trace.as_slice()).unwrap();
    assert!(matches!(events.next_event(), Err(Error::Malformed { what: Malformed::Depth, .. })));
}

#[test]
fn keys_of_users_lie_below_data() {
    let row = [&[5][..], &KEY, &[1, 1, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    let trace = one_row(Family::Irmin, &row);
    let mut operations = Operations::open(trace.as_slice()).unwrap();
    let Some(Operation::Ask { key, .. }) = operations.next_operation().unwrap() else {
        panic!("a question");
    };
    let mut path = path("what/was/there");
    physical(key, &mut path);
    assert_eq!(path.steps().to_string(), "data/a/b");
    as_it_is(key, &mut path);
    assert_eq!(path.steps().to_string(), "a/b");
}
