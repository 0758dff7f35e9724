//! Habits of the code in figures, a row for each crate: a hint where to look, never a failure.
//!
//! The report counts, over the sources of a crate without test-only code: lines; blank lines inside
//! functions longer than [`LONG_FUNCTION`] lines; `//` comments that are not docs, as a share of
//! the lines of code; and assertions for each function.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::lexer::{Token, end_of_group, tokens, without_tests};
use crate::tidy::lengths::end_of_body;
use crate::workspace::File;

/// Lines above which paragraphs are looked for in a function.
const LONG_FUNCTION: usize = 15;

/// The names of macros that assert.
const ASSERTIONS: [&str; 6] =
    ["assert", "assert_eq", "assert_ne", "debug_assert", "debug_assert_eq", "debug_assert_ne"];

/// The counts of one crate.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Habits {
    lines: usize,
    lines_in_long_functions: usize,
    blank_lines_in_long_functions: usize,
    comments: usize,
    functions: usize,
    assertions: usize,
}

/// Returns the table, as text of several lines.
pub(super) fn report(files: &[File]) -> String {
    let mut crates: BTreeMap<&str, Habits> = BTreeMap::new();
    for file in files {
        let folder = file.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
        let (Some((name, inside)), Some(text)) = (folder, file.rust()) else { continue };
        if !inside.split(['/', '.']).any(|part| part == "tests") {
            crates.entry(name).or_default().add(text);
        }
    }

    let mut report = String::from(
        "habits: crate, lines, blank lines in long functions, why-comments, assertions a function\n",
    );

    for (name, habits) in crates {
        let share = |part: usize, whole: usize| part as f64 / whole.max(1) as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(
            report,
            "{name:>10} {:>6} {:>5.1} % {:>5.1} % {:>5.2}",
            habits.lines,
            100.0 * share(habits.blank_lines_in_long_functions, habits.lines_in_long_functions),
            100.0 * share(habits.comments, habits.lines),
            share(habits.assertions, habits.functions),
        );
    }

    report.trim_end().to_owned()
}

impl Habits {
    /// Adds the counts of one source file.
    fn add(&mut self, text: &str) {
        let all = tokens(text);
        let code = without_tests(&all);
        let end = test_module_line(&all).unwrap_or(usize::MAX);
        let lines: Vec<&str> = text.lines().take(end - 1).map(str::trim).collect();

        let is_comment = |line: &&&str| {
            line.starts_with("//") && !line.starts_with("///") && !line.starts_with("//!")
        };
        self.lines += lines.len();
        self.comments += lines.iter().filter(is_comment).count();

        self.assertions += code
            .windows(2)
            .filter(|pair| ASSERTIONS.contains(&pair[0].text) && pair[1].is_mark("!"))
            .count();

        for (at, pair) in code.windows(2).enumerate().filter(|(_, pair)| pair[0].is_word("fn")) {
            let Some(end) = end_of_body(&code, at + 2) else { continue };
            self.functions += 1;
            let body = pair[0].line..code[end - 1].line;
            if body.len() >= LONG_FUNCTION {
                self.lines_in_long_functions += body.len();
                let blank = |line: &usize| lines.get(line - 1).is_some_and(|line| line.is_empty());
                self.blank_lines_in_long_functions += body.filter(blank).count();
            }
        }
    }
}

/// Returns the line of the `#[cfg(test)]` of the module that ends a file.
fn test_module_line(code: &[Token<'_>]) -> Option<usize> {
    let mut attributes = (0..code.len()).filter(|&at| code[at].is_mark("#"));
    attributes.find_map(|at| {
        let texts: Vec<&str> = code[at..].iter().take(9).map(|token| token.text).collect();
        let is_tests = texts.starts_with(&["#", "[", "cfg", "(", "test", ")", "]", "mod"]);
        (is_tests && end_of_group(code, at + 9) == code.len()).then(|| code[at].line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn habits_are_counted_outside_tests() {
        let body = "    step();\n".repeat(14);
        let text = format!(
            "//! Header.\n/// Doc.\nfn long() {{\n    // Why.\n{body}\n    assert!(true);\n}}\n\
             fn short() {{\n\n}}\n#[cfg(test)]\nmod tests {{\n    // No.\n    fn f() {{ assert!(1 == 1) }}\n}}\n"
        );
        let mut found = Habits::default();
        found.add(&text);
        let expected = Habits {
            lines: 24,
            lines_in_long_functions: 18,
            blank_lines_in_long_functions: 1,
            comments: 1,
            functions: 2,
            assertions: 1,
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn the_report_has_a_row_for_each_crate() {
        let files = [
            File::made_up("crates/a/src/lib.rs", "//! A.\nfn f() { assert!(true) }\n"),
            File::made_up("crates/b/src/lib.rs", "//! B.\n"),
            File::made_up("crates/b/tests/it/main.rs", "//! Left out.\n"),
        ];
        let report = report(&files);
        let rows: Vec<&str> = report.lines().skip(1).map(str::trim).collect();
        assert_eq!(rows, ["a      2   0.0 %   0.0 %  1.00", "b      1   0.0 %   0.0 %  0.00"]);
    }
}
