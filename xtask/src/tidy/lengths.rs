//! The ten longest files and functions: a hint where to look, never a failure.

use std::fmt::Write as _;

use crate::lexer::{Token, end_of_group, tokens};
use crate::workspace::File;

const SHOWN: usize = 10;

/// A source file or a function and how many lines it has.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Length {
    lines: usize,
    place: String,
}

/// The report, as text of several lines.
pub(super) fn report(files: &[File]) -> String {
    let sources = || files.iter().filter_map(|file| Some((file, file.rust()?)));
    let whole = sources()
        .map(|(file, text)| Length { lines: text.lines().count(), place: file.path.clone() })
        .collect();

    let functions = sources().flat_map(|(file, text)| functions(&file.path, text)).collect();
    let mut report = String::new();
    for (title, lengths) in [("longest files", whole), ("longest functions", functions)] {
        // Writing to a string cannot fail.
        let _ = writeln!(report, "{title}, in lines:");
        for length in longest(lengths) {
            let _ = writeln!(report, "{:>6}  {}", length.lines, length.place);
        }
    }

    report.trim_end().to_owned()
}

fn longest(mut lengths: Vec<Length>) -> Vec<Length> {
    lengths.sort_by(|left, right| {
        right.lines.cmp(&left.lines).then_with(|| left.place.cmp(&right.place))
    });
    lengths.truncate(SHOWN);
    lengths
}

/// Every function with a body in `text`.
fn functions(path: &str, text: &str) -> Vec<Length> {
    let code = tokens(text);
    let starts = code.windows(2).enumerate().filter(|(_, pair)| pair[0].is_word("fn"));
    starts
        .filter_map(|(at, pair)| {
            let end = end_of_body(&code, at + 2)?;
            let lines = code[end - 1].line - pair[0].line + 1;
            Some(Length { lines, place: format!("{path}:{} {}", pair[0].line, pair[1].text) })
        })
        .collect()
}

/// The index after the body of the function whose parameters start at or after `at`.
pub(super) fn end_of_body(code: &[Token<'_>], mut at: usize) -> Option<usize> {
    loop {
        let token = code.get(at)?;
        if token.is_mark("{") {
            return Some(end_of_group(code, at));
        }
        // A declaration in a trait, or the type of a function pointer.
        if [";", ",", "=", ")", "}"].iter().any(|mark| token.is_mark(mark)) {
            return None;
        }
        let opens = token.is_mark("(") || token.is_mark("[");
        at = if opens { end_of_group(code, at) } else { at + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured_from_their_name_to_their_brace() {
        let text = "fn one() {}\n\
                    trait T { fn none(&self, n: [u8; 3]); }\n\
                    fn three(f: impl Fn(u8) -> u8) -> u8\nwhere u8: Copy {\n}";
        let found = functions("a.rs", text);
        let shown: Vec<(usize, &str)> =
            found.iter().map(|length| (length.lines, length.place.as_str())).collect();
        assert_eq!(shown, [(1, "a.rs:1 one"), (3, "a.rs:3 three")]);
    }

    #[test]
    fn the_ten_longest_come_first() {
        let lengths = (0..20).map(|lines| Length { lines, place: String::new() }).collect();
        let lines: Vec<usize> = longest(lengths).iter().map(|length| length.lines).collect();
        assert_eq!(lines, (10..20).rev().collect::<Vec<_>>());
    }
}
