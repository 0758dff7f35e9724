//! Traces of all dialects, whole, cut and hostile.

use super::*;

/// The text of a key, behind its length.
fn text(key: [u8; KEY_BYTES]) -> Vec<u8> {
    let bytes = [&[79, 199][..], &key].concat();
    let text = bitcoin::base58::encode_check(&bytes);
    assert!(text.starts_with("Co"), "{text}");
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn frame(body: &[u8]) -> Vec<u8> {
    let length = u8::try_from(body.len()).unwrap();
    [&[0, 0, 0, length], body].concat()
}

/// A trace of these bodies, each a tag and its payload.
fn trace(bodies: &[(u8, &[u8])]) -> Vec<u8> {
    bodies.iter().flat_map(|(tag, payload)| frame(&[&[*tag], *payload].concat())).collect()
}

fn read(bytes: &[u8], dialect: Dialect) -> Result<Vec<Op>> {
    Trace::new(bytes, dialect).collect()
}

const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];

/// Offset 258, length 300, kind 66.
const VALUE: [u8; VALUE_BYTES] = [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 1, 44, 66];

/// The value as the first two dialects have it.
const PARTS: [u8; 11] = [0, 0, 0, 0, 0, 0, 1, 2, 0xAC, 0x02, 66];

/// A trace in each dialect, with every operation that it has, and what it means.
fn samples() -> Vec<(Dialect, Vec<u8>, Vec<Op>)> {
    let key = KEY;
    let text = text(KEY);
    let answered = |byte| [text.as_slice(), &[byte]].concat();
    let no = answered(0);
    let yes = answered(1);
    let other = answered(9);
    let add = [text.as_slice(), &PARTS].concat();
    let raw = [KEY.as_slice(), &VALUE].concat();

    let strings = [&[32][..], &KEY, &[13], &VALUE].concat();
    let prefixed = [&[32][..], &KEY].concat();
    let found = |expected| Op::Find { key, expected };
    let member = |expected| Op::Mem { key, expected };
    let added = Op::Add { key, value: VALUE };

    vec![
        (
            Dialect::Migration,
            trace(&[(1, &no), (3, &add), (0, &[]), (2, &yes), (1, &other), (4, &text)]),
            vec![
                member(Some(false)),
                added,
                Op::Flush,
                found(Some(true)),
                member(Some(true)),
                Op::Remove { key },
            ],
        ),
        (
            Dialect::Mirage,
            trace(&[(0, &[]), (6, &add), (1, &[]), (2, &no), (3, &yes), (4, &no), (5, &yes)]),
            vec![
                Op::Clear,
                added,
                Op::Flush,
                member(Some(false)),
                found(Some(true)),
                Op::RoMem { key, expected: Some(false) },
                Op::RoFind { key, expected: Some(true) },
            ],
        ),
        (
            Dialect::Recorder,
            trace(&[(0, &raw), (1, &KEY), (2, &KEY), (3, &[])]),
            vec![added, found(None), member(None), Op::Flush],
        ),
        (
            Dialect::RecorderStrings,
            trace(&[(0, &strings), (1, &prefixed), (2, &text), (3, &[])]),
            vec![added, found(None), member(None), Op::Flush],
        ),
    ]
}

#[test]
fn every_operation_of_every_dialect_is_read_and_the_dialect_found_out() {
    for (dialect, bytes, ops) in samples() {
        assert_eq!(read(&bytes, dialect).unwrap(), ops, "{dialect}");
        let trace = Trace::detect(bytes.as_slice()).unwrap();
        assert_eq!(trace.dialect(), dialect);
        assert_eq!(trace.collect::<Result<Vec<_>>>().unwrap(), ops, "{dialect}");
    }
}

/// The hash of 32 zeros as Tezos prints it.
#[test]
fn the_text_of_a_key_is_the_known_one() {
    let text = String::from_utf8(text([0; KEY_BYTES])).unwrap();
    assert_eq!(&text[1..], "CoUeJrcPBj3T3iJL3PY4jZHnmZa5rRZ87VQPdSBNBcwZRMWJGh9j");
}

#[test]
fn a_trace_that_is_cut_gives_its_whole_records_and_then_says_where() {
    for (dialect, bytes, ops) in samples() {
        let mut ends = vec![0];
        while let Some(&end) = ends.last()
            && end < bytes.len()
        {
            ends.push(end + 4 + usize::from(bytes[end + 3]));
        }

        for cut in 0..=bytes.len() {
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            let mut trace = Trace::new(&bytes[..cut], dialect);
            for op in &ops[..whole] {
                assert_eq!(trace.next().unwrap().unwrap(), *op);
            }

            if ends.contains(&cut) {
                assert!(trace.next().is_none());
                continue;
            }

            let error = trace.next().unwrap().unwrap_err();
            assert!(
                matches!(error, Error::TruncatedTrace { record } if record == whole as u64),
                "{dialect}, {cut} bytes: {error}"
            );

            assert!(trace.next().is_none());

            // A detected dialect gives the same records, where detection is possible.
            if let Ok(mut trace) = Trace::detect(&bytes[..cut])
                && trace.dialect() == dialect
            {
                assert_eq!(trace.by_ref().take(whole).flatten().count(), whole);
                assert!(matches!(trace.next(), Some(Err(Error::TruncatedTrace { .. }))));
            }
        }
    }
}

#[test]
fn a_body_uses_exactly_its_length() {
    for (dialect, bytes, ops) in samples() {
        let mut at = 0;
        for (record, _) in ops.iter().enumerate() {
            let body = &bytes[at + 4..at + 4 + usize::from(bytes[at + 3])];
            at += 4 + body.len();
            let error = read(&frame(&[body, &[0]].concat()), dialect).unwrap_err();
            assert!(
                matches!(error, Error::Malformed { record: 0, what: Malformed::Excess(1) }),
                "{dialect}, record {record}: {error}"
            );
            for cut in 0..body.len() {
                let error = read(&frame(&body[..cut]), dialect).unwrap_err();
                assert!(
                    matches!(error, Error::Malformed { record: 0, what: Malformed::Short }),
                    "{dialect}, record {record}, {cut} bytes: {error}"
                );
            }
        }
    }
}

#[test]
fn what_is_wrong_with_a_record_is_said() {
    let mut damaged = text(KEY);
    damaged[20] = if damaged[20] == b'z' { b'y' } else { b'z' };
    let mut no_base58 = text(KEY);
    no_base58[20] = b'0';
    let mut no_text = text(KEY);
    no_text[20] = 0xFF;
    let short_key = [[51].as_slice(), &text(KEY)[1..52]].concat();

    // Another prefix of the same length: such texts begin with other letters.
    let other = bitcoin::base58::encode_check(&[&[79, 200][..], &KEY].concat());
    let other = [&[52], other.as_bytes()].concat();
    let parts = |from: &[u8], parts: &[u8]| [from, parts].concat();

    let endless = parts(&text(KEY), &[&[0; 8][..], &[0xFF; 10]].concat());
    let too_long = parts(&text(KEY), &[&[0; 8][..], &[0x80, 0x80, 0x80, 0x80, 8], &[1]].concat());
    let cases: [(u8, &[u8], Malformed); 8] = [
        (5, &[], Malformed::Tag(5)),
        (4, &damaged, Malformed::KeyChecksum),
        (4, &no_base58, Malformed::KeyChecksum),
        (4, &no_text, Malformed::KeyChecksum),
        (4, &short_key, Malformed::KeyLength(51)),
        (4, &other, Malformed::KeyKind),
        (3, &endless, Malformed::Number),
        (3, &too_long, Malformed::Number),
    ];

    for (tag, payload, expected) in cases {
        let bytes = [trace(&[(0, &[])]), trace(&[(tag, payload)])].concat();
        let error = read(&bytes, Dialect::Migration).unwrap_err();
        assert!(
            matches!(error, Error::Malformed { record: 1, what } if what == expected),
            "{error}"
        );
    }

    let value = [&[32][..], &KEY, &[12], &VALUE[..12]].concat();
    let error = read(&trace(&[(0, &value)]), Dialect::RecorderStrings).unwrap_err();
    assert!(matches!(error, Error::Malformed { what: Malformed::ValueLength(12), .. }), "{error}");
}

#[test]
fn lengths_that_no_record_has_are_refused_before_anything_is_allocated() {
    for (bytes, expected) in
        [([0x7F, 0xFF, 0xFF, 0xFF], i32::MAX), ([0xFF; 4], -1), ([0, 0, 4, 1], 1025)]
    {
        let error = read(&bytes, Dialect::Mirage).unwrap_err();
        assert!(matches!(error, Error::Length { record: 0, length } if length == expected));
        let error = Trace::detect(bytes.as_slice()).unwrap().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Length { record: 0, .. }), "{error}");
    }
}

#[test]
fn a_dialect_that_cannot_be_told_is_asked_for() {
    let question = [text(KEY), vec![1]].concat();

    // `find` of the first dialect, `mem` of the second.
    let bytes = trace(&[(2, &question), (2, &question)]);
    let error = Trace::detect(bytes.as_slice()).map(|trace| trace.dialect()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::AmbiguousDialect {
                first: Dialect::Migration,
                second: Dialect::Mirage,
                records: 2
            }
        ),
        "{error}"
    );

    // One more record decides it.
    let bytes = [bytes, trace(&[(3, &question)])].concat();
    assert_eq!(Trace::detect(bytes.as_slice()).unwrap().dialect(), Dialect::Mirage);

    let error = Trace::detect(trace(&[(0, &[]), (77, &[])]).as_slice()).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::UnknownDialect { record: 1 }), "{error}");
    let mut empty = Trace::detect(&[][..]).unwrap();
    assert_eq!(empty.dialect(), Dialect::Migration);

    assert!(empty.next().is_none());
}

#[test]
fn what_the_recorder_writes_is_read_as_it_was() {
    let key = KEY;
    let other = [200; KEY_BYTES];
    let mut longest = VALUE;
    longest[8..12].copy_from_slice(&[0x7F, 0xFF, 0xFF, 0xFF]);

    let ops = [
        Op::Mem { key, expected: Some(false) },
        Op::Add { key, value: VALUE },
        Op::Add { key: other, value: longest },
        Op::Add { key: [0; KEY_BYTES], value: [0; VALUE_BYTES] },
        Op::Find { key: other, expected: Some(true) },
        Op::Remove { key },
        Op::Flush,
    ];

    let mut recorder = Recorder::new(Vec::new());
    for op in &ops {
        recorder.record(op).unwrap();
    }
    let mut negative = VALUE;
    negative[8] = 0x80;

    for op in [
        Op::Clear,
        Op::RoMem { key, expected: Some(true) },
        Op::RoFind { key, expected: Some(true) },
        Op::Mem { key, expected: None },
        Op::Find { key, expected: None },
        Op::Add { key, value: negative },
    ] {
        let error = recorder.record(&op).unwrap_err();
        assert!(matches!(error, Error::Unwritable { record: 7 }), "{error}");
    }

    let bytes = recorder.finish().unwrap();
    assert_eq!(read(&bytes, Dialect::Migration).unwrap(), ops);
    assert_eq!(Trace::detect(bytes.as_slice()).unwrap().dialect(), Dialect::Migration);
}

#[test]
fn an_input_or_output_that_fails_says_at_which_record() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("broken"))
        }
    }

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("broken"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let bytes = trace(&[(0, &[])]);
    let mut trace = Trace::new(bytes.as_slice().chain(Broken), Dialect::Migration);
    assert_eq!(trace.next().unwrap().unwrap(), Op::Flush);
    let error = trace.next().unwrap().unwrap_err();
    assert!(matches!(error, Error::Read { record: 1, .. }), "{error}");
    let error = Recorder::new(Broken).record(&Op::Flush).unwrap_err();

    assert!(matches!(error, Error::Write { record: 0, .. }), "{error}");
}

#[test]
fn varints_end_and_have_64_bits() {
    let number = |bytes: &[u8]| record::varint(&mut terrane::io::bytes::Reader::new(bytes));
    let longest = [[0xFF; 9].as_slice(), &[1]].concat();
    for (bytes, expected) in [
        (&[0][..], Ok(0)),
        (&[0x7F], Ok(127)),
        (&[0x80, 1], Ok(128)),
        (&longest, Ok(u64::MAX)),
        (&[0x80], Err(Malformed::Short)),
        (&[[0xFF; 9].as_slice(), &[2]].concat(), Err(Malformed::Number)),
        (&[0x80; 11], Err(Malformed::Number)),
    ] {
        assert_eq!(number(bytes), expected, "{bytes:?}");
    }
}

proptest::proptest! {
    /// Whatever the bytes, each dialect ends, with operations or with an error.
    #[test]
    fn hostile_bytes_never_panic(bytes in proptest::collection::vec(0_u8.., 0..200)) {
        for dialect in Dialect::ALL {
            let count = Trace::new(bytes.as_slice(), dialect).count();
            proptest::prop_assert!(count <= bytes.len() / 4 + 1);
            let _ = Op::decode(dialect, &bytes);
        }
        if let Ok(trace) = Trace::detect(bytes.as_slice()) {
            proptest::prop_assert!(trace.count() <= bytes.len() / 4 + 1);
        }
    }

    /// Traces that are whole but for a few bytes.
    #[test]
    fn damaged_traces_never_panic(sample in 0..4_usize, at in 0_usize.., with in 0_u8..) {
        let (dialect, mut bytes, _) = samples().swap_remove(sample);
        let at = at % bytes.len();
        bytes[at] = with;
        let count = Trace::new(bytes.as_slice(), dialect).count();
        proptest::prop_assert!(count <= bytes.len() / 4 + 1);
        drop(Trace::detect(bytes.as_slice()));
    }
}
