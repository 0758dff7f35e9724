//! Rule 8: comments name their thing first and fit the line.
//!
//! A doc line never begins with one of [`VAGUE`], and no comment line is longer than [`COLUMNS`],
//! tables and links excepted. The other rules of prose in docs/style.md are for readers to check.

use crate::problem::{Problem, Rule};
use crate::workspace::File;

/// Words at the start of a doc line that hide what the line is about.
const VAGUE: [&str; 6] = ["What", "Who", "Whoever", "So", "As", "Of"];

/// Characters of a comment line at most, with its indentation.
const COLUMNS: usize = 100;

/// Returns the breaches of rule 8 in one file.
pub(super) fn problems(file: &File) -> Vec<Problem> {
    let Some(text) = file.rust() else { return Vec::new() };
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut report = |what, remedy| {
            let path = file.path.clone();
            let line = index + 1;
            problems.push(Problem { path, line, rule: Rule::Prose, what, remedy });
        };

        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        if let Some(word) = vague_word(comment) {
            let what = format!("a doc line begins with `{word}`");
            report(what, "name the thing first: a noun, or a verb such as \"Returns\"");
        }
        if line.chars().count() > COLUMNS && !may_be_long(comment) {
            let what = format!("a comment line of {} columns", line.chars().count());
            report(what, "wrap it at 100, and see whether it makes one claim");
        }
    }
    problems
}

/// Returns the vague word that a doc line begins with. `comment` is the line behind `//`.
fn vague_word(comment: &str) -> Option<&'static str> {
    let doc = comment.strip_prefix(['/', '!'])?;
    let first = doc.trim_start().split([' ', ',']).next()?;
    VAGUE.into_iter().find(|&word| word == first)
}

/// Whether a comment line cannot be wrapped: a row of a table, or a link that is longer than a
/// line.
fn may_be_long(comment: &str) -> bool {
    let text = comment.trim_start_matches(['/', '!']).trim_start();
    text.starts_with('|') || (text.contains("://") && !text.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        problems(&File::made_up("a.rs", text)).iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn rule_8_wants_the_thing_first() {
        assert_eq!(lines("//! What it is.\n/// Who acts.\n/// Returns what is.\n"), [1, 2]);
        assert_eq!(lines("    /// So, many.\n// So a plain comment may begin.\n"), [1]);
        assert_eq!(lines("/// Offset of a page.\n/// Sort order.\n//! Assigns.\n"), [0; 0]);
        assert_eq!(lines("fn f() { g(\"/// What\") }"), [0; 0]);
    }

    #[test]
    fn rule_8_wants_comments_that_fit_the_line() {
        let long = "x ".repeat(60);
        assert_eq!(lines(&format!("// {long}\n/// | {long} |\nlet a = \"{long}\";")), [1]);
        assert_eq!(lines(&format!("    //{}", "é".repeat(94))), [0; 0]);
        assert_eq!(lines(&format!("    //{}", "é".repeat(95))), [1]);
    }
}
