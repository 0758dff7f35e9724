//! Rules on a single source file: its header (1), leftovers (3), unsafe code (4).

use crate::lexer::{Token, end_of_group, tokens};
use crate::problem::{Problem, Rule};
use crate::workspace::File;

/// Folders whose crates may contain `unsafe`. The macro of libFuzzer in `fuzz/` exports a symbol.
const UNSAFE_FOLDERS: [&str; 5] =
    ["crates/io/", "crates/lmdb/", "bindings/", "peers/harness/", "fuzz/src/"];

/// Written in two halves so that this file does not break its own rule.
const FIX_ME: &str = concat!("FIX", "ME");

/// The breaches of the rules 1, 3 and 4 in one file.
pub(super) fn problems(file: &File) -> Vec<Problem> {
    let Some(text) = file.rust() else {
        return Vec::new();
    };
    let tokens = tokens(text);

    let mut problems = Vec::new();
    let mut report = |line, rule, what: String, remedy| {
        problems.push(Problem { path: file.path.clone(), line, rule, what, remedy });
    };

    if !opens_with_header(text) {
        report(
            1,
            Rule::Header,
            "the file does not open with `//!`".to_owned(),
            "say in its first lines what it is for, what must hold and what it costs",
        );
    }

    if let Some(line) = text.lines().position(|line| line.contains(FIX_ME)) {
        report(line + 1, Rule::Leftover, FIX_ME.to_owned(), "do it now, or write an issue");
    }

    for (at, token) in tokens.iter().enumerate() {
        if let Some((what, remedy)) = leftover(&tokens, at) {
            report(token.line, Rule::Leftover, what, remedy);
        }
    }

    let is_root = file.name() == "lib.rs" || file.name() == "main.rs";
    let may_be_unsafe = UNSAFE_FOLDERS.iter().any(|folder| file.path.starts_with(folder));
    if is_root && !may_be_unsafe && !forbids_unsafe(&tokens) {
        report(
            1,
            Rule::Unsafe,
            "the crate does not forbid unsafe code".to_owned(),
            "write `#![forbid(unsafe_code)]`; unsafe code belongs into crates/io",
        );
    }

    problems
}

/// A header is an inner doc comment, or the attribute that takes one from a file.
fn opens_with_header(text: &str) -> bool {
    text.starts_with("//!") || text.starts_with("#![doc = include_str!(")
}

fn forbids_unsafe(tokens: &[Token<'_>]) -> bool {
    let wanted = ["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]"];
    tokens.windows(wanted.len()).any(|window| window.iter().map(|token| token.text).eq(wanted))
}

/// Returns the leftover that starts at token `at`, if there is one, and its remedy.
fn leftover(tokens: &[Token<'_>], at: usize) -> Option<(String, &'static str)> {
    let token = tokens[at];
    let is_mark = |index: usize, mark| tokens.get(index).is_some_and(|token| token.is_mark(mark));

    let is_macro = is_mark(at + 1, "!");
    if (token.is_word("dbg") || token.is_word("todo")) && is_macro {
        return Some((format!("`{}!`", token.text), "remove it"));
    }

    if token.is_word("ignore")
        && at >= 2
        && tokens[at - 1].is_mark("[")
        && tokens[at - 2].is_mark("#")
    {
        return Some(("`#[ignore]`".to_owned(), "make the test fast and reliable, or delete it"));
    }

    if token.is_word("matches") && is_macro && starts_statement(tokens, at) {
        let end = end_of_group(tokens, at + 2);
        if is_mark(end, ";") {
            let remedy = "it asserts nothing: write `assert!(matches!(..))`";
            return Some(("a statement `matches!(..);`".to_owned(), remedy));
        }
    }

    None
}

fn starts_statement(tokens: &[Token<'_>], at: usize) -> bool {
    at.checked_sub(1)
        .is_none_or(|before| [";", "{", "}"].iter().any(|mark| tokens[before].is_mark(mark)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(Rule, usize)> {
        problems(&File::made_up(path, text))
            .iter()
            .map(|problem| (problem.rule, problem.line))
            .collect()
    }

    #[test]
    fn rule_1_wants_a_header() {
        assert_eq!(found("src/a.rs", "//! Says what it is.\nfn a() {}"), []);
        assert_eq!(found("src/a.rs", "#![doc = include_str!(\"../README.md\")]\n"), []);
        assert_eq!(found("src/a.rs", "// A plain comment.\nfn a() {}"), [(Rule::Header, 1)]);
        assert_eq!(found("src/a.rs", ""), [(Rule::Header, 1)]);
        assert_eq!(found("a.md", "no header"), []);
    }

    #[test]
    fn rule_3_finds_statements_that_assert_nothing() {
        let text = |body: &str| format!("//! H\nfn a() -> bool {{\n{body}\n}}");
        assert_eq!(found("a.rs", &text("matches!(x, Some(_));\ntrue")), [(Rule::Leftover, 3)]);
        assert_eq!(found("a.rs", &text("b();\nmatches!(x, Some(_));")), [(Rule::Leftover, 4)]);
        assert_eq!(found("a.rs", &text("matches!(x, Some(_))")), []);
        assert_eq!(found("a.rs", &text("let y = matches!(x, 1);\ny")), []);
        assert_eq!(found("a.rs", &text("assert!(matches!(x, 1));")), []);
        assert_eq!(found("a.rs", &text("// matches!(x, 1);\n\"matches!(x, 1);\"")), []);
    }

    #[test]
    fn rule_3_finds_leftovers() {
        let line = |text: &str| found("a.rs", &format!("//! H\n{text}"));
        assert_eq!(line("fn a() { dbg!(1); }"), [(Rule::Leftover, 2)]);
        assert_eq!(line("fn a() { todo!() }"), [(Rule::Leftover, 2)]);
        assert_eq!(line("#[test]\n#[ignore]\nfn a() {}"), [(Rule::Leftover, 3)]);
        assert_eq!(line("#[test]\n#[ignore = \"slow\"]\nfn a() {}"), [(Rule::Leftover, 3)]);
        assert_eq!(line(&format!("// {FIX_ME}: later")), [(Rule::Leftover, 2)]);
        assert_eq!(line("fn ignore(todo: u8) { todo; }"), []);
    }

    #[test]
    fn rule_4_wants_unsafe_code_forbidden_in_crate_roots() {
        let (with, without) =
            ("//! H\n#![forbid(unsafe_code)]", "//! H\n// #![forbid(unsafe_code)]");
        assert_eq!(found("crates/lsm/src/lib.rs", with), []);
        assert_eq!(found("crates/lsm/src/lib.rs", without), [(Rule::Unsafe, 1)]);
        assert_eq!(found("crates/cli/src/main.rs", without), [(Rule::Unsafe, 1)]);
        assert_eq!(found("crates/lsm/src/page.rs", without), []);
        assert_eq!(found("crates/io/src/lib.rs", without), []);
        assert_eq!(found("bindings/c/src/lib.rs", without), []);
    }
}
