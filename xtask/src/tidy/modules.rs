//! Rule 2: a crate root and every folder file list their modules bottom-up. A module imports only
//! from modules above it in the list of the folder where the two part, by the module's own path and
//! not through re-exports at the crate root.
//!
//! So the graph of each folder is acyclic, and its list is a table of contents. A module and its
//! own submodules may use each other. What only tests see (`#[cfg(test)]`) is free.

use std::collections::BTreeMap;

use crate::lexer::{Kind, Token, end_of_group, tokens, without_tests};
use crate::problem::{Problem, Rule};
use crate::workspace::File;

/// Names from the crate root to a module or an item.
type Path<'a> = Vec<&'a str>;

/// A path that a file names, resolved from the crate root.
#[derive(Debug, PartialEq, Eq)]
struct Import<'a> {
    path: Path<'a>,
    line: usize,
}

/// The lists of modules of a crate, by the path of the module that has the list; the root's path is
/// empty.
type Lists<'a> = BTreeMap<Path<'a>, Vec<&'a str>>;

/// Returns the breaches of rule 2 in all crates.
pub(super) fn problems(files: &[File]) -> Vec<Problem> {
    let roots: BTreeMap<&str, &File> = files
        .iter()
        .filter_map(|file| Some((file.path.strip_suffix("/src/main.rs")?, file)))
        // A library next to a program wins: its list is the one that matters.
        .chain(files.iter().filter_map(|file| Some((file.path.strip_suffix("/src/lib.rs")?, file))))
        .collect();

    let mut problems = Vec::new();
    for (folder, root) in roots {
        let source_folder = format!("{folder}/src/");
        let modules: Vec<(Path<'_>, &File)> = files
            .iter()
            .filter_map(|file| Some((module_path(file.path.strip_prefix(&source_folder)?), file)))
            .collect();

        let mut lists = Lists::new();
        for (path, file) in &modules {
            lists.insert(path.clone(), file.rust().map(listed_modules).unwrap_or_default());
        }
        lists.insert(Vec::new(), root.rust().map(listed_modules).unwrap_or_default());

        for (own, file) in &modules {
            problems.extend(problems_of_file(file, own, &lists));
            // A group of names from one module is one breach.
            problems.dedup();
        }
    }
    problems
}

/// Returns the path of the module that `inside` holds; `inside` is the path of a file below `src/`.
fn module_path(inside: &str) -> Path<'_> {
    inside.strip_suffix(".rs").unwrap_or(inside).split('/').collect()
}

/// Returns the names of `mod name;` in a file, in order.
fn listed_modules(text: &str) -> Vec<&str> {
    let all = tokens(text);
    let code = without_tests(&all);
    code.windows(3)
        .filter(|window| window[0].is_word("mod") && window[2].is_mark(";"))
        .map(|window| window[1].text)
        .collect()
}

fn problems_of_file(file: &File, own: &[&str], lists: &Lists<'_>) -> Vec<Problem> {
    let is_listed = lists[&Vec::new()].contains(&own[0]);
    let Some(text) = file.rust() else { return Vec::new() };
    if !is_listed || own.contains(&"tests") {
        return Vec::new();
    }
    imports(text, own)
        .into_iter()
        .filter_map(|import| {
            let (what, remedy) = breach(own, &import.path, lists)?;
            let path = file.path.clone();
            let line = import.line;
            Some(Problem { path, line, rule: Rule::ModuleOrder, what, remedy })
        })
        .collect()
}

/// Returns what is wrong with an import of `other` by the module `own`, and what to do.
fn breach(own: &[&str], other: &[&str], lists: &Lists<'_>) -> Option<(String, &'static str)> {
    let shared = own.iter().zip(other).take_while(|(left, right)| left == right).count();
    let own_name = own.get(shared)?;
    let other_name = other.get(shared)?;
    let list = lists.get(&own[..shared])?;
    let position = |name: &str| list.iter().position(|module| *module == name);

    let own_position = position(own_name)?;
    match position(other_name) {
        Some(other_position) if other_position <= own_position => None,
        Some(_) => Some((
            format!("`{own_name}` imports from `{other_name}`, which is listed below it"),
            "move what both need into a module above them, or correct the order of the list",
        )),
        // An item of the folder file itself is not at the crate root.
        None if shared > 0 => None,
        None => Some((
            format!("`crate::{other_name}` is no module of the list"),
            "import by the path of the module that defines it",
        )),
    }
}

/// Returns every path in `text`, the file of the module `own`, that begins at the crate root or
/// with `super`.
fn imports<'a>(text: &'a str, own: &[&'a str]) -> Vec<Import<'a>> {
    let all = tokens(text);
    let code = without_tests(&all);
    let mut found = Vec::new();
    // Where each inline module that is open now ends; `super` means one less inside.
    let mut inline_ends: Vec<usize> = Vec::new();
    let mut at = 0;
    while at < code.len() {
        inline_ends.retain(|&end| at < end);
        if code[at].is_word("mod") && code.get(at + 2).is_some_and(|token| token.is_mark("{")) {
            inline_ends.push(end_of_group(&code, at + 2));
        }
        match start_of_path(&code, at, own, inline_ends.len()) {
            Some((base, after)) => {
                collect_paths(&code, after, &base, &mut found);
                at = after;
            }
            None => at += 1,
        }
    }
    found
}

/// Returns what `crate::` or `super::`s at `at` stand for, and the index behind them. `None` where
/// neither stands, or where the `super`s do not leave the inline modules of the file.
fn start_of_path<'a>(
    code: &[Token<'a>],
    at: usize,
    own: &[&'a str],
    inline: usize,
) -> Option<(Path<'a>, usize)> {
    // One colon is the type of something, two are the middle of a path.
    let continues = at >= 2 && code[at - 1].is_mark(":") && code[at - 2].is_mark(":");
    // `pub(in crate::a)` restricts, and `$crate` belongs to whoever calls the macro.
    let restricts = at >= 1 && (code[at - 1].is_word("in") || code[at - 1].is_mark("$"));
    if continues || restricts {
        return None;
    }
    if code[at].is_word("crate") {
        return Some((Vec::new(), after_colons(code, at + 1)?));
    }

    let mut end = at;
    let mut count = 0;
    while code.get(end).is_some_and(|token| token.is_word("super")) {
        end = after_colons(code, end + 1)?;
        count += 1;
    }
    let left = (own.len() + inline).checked_sub(count)?;
    (count > inline).then(|| (own[..left].to_vec(), end))
}

fn after_colons(code: &[Token<'_>], at: usize) -> Option<usize> {
    let is_colon = |index: usize| code.get(index).is_some_and(|token| token.is_mark(":"));
    (is_colon(at) && is_colon(at + 1)).then_some(at + 2)
}

/// Adds the path, or each path of the group, that goes on from `base` at `at`.
fn collect_paths<'a>(
    code: &[Token<'a>],
    mut at: usize,
    base: &[&'a str],
    found: &mut Vec<Import<'a>>,
) {
    let mut path = base.to_vec();
    while let Some(token) = code.get(at) {
        if token.is_mark("{") {
            let end = end_of_group(code, at);
            let mut inner = at + 1;
            while inner + 1 < end {
                collect_paths(code, inner, &path, found);
                inner = end_of_path(code, inner, end);
            }
            return;
        }
        // A macro is exported at the root wherever it is defined: it has no other path.
        let is_macro = code.get(at + 1).is_some_and(|next| next.is_mark("!"));
        let is_name = token.kind == Kind::Word || token.is_mark("*");
        if !is_name || is_macro {
            return;
        }
        path.push(token.text);
        match after_colons(code, at + 1) {
            Some(after) => at = after,
            None => {
                found.push(Import { path, line: token.line });
                return;
            }
        }
    }
}

/// Returns the index behind the comma that ends the path at `at` in a group that ends at `end`.
fn end_of_path(code: &[Token<'_>], mut at: usize, end: usize) -> usize {
    while at < end && !code[at].is_mark(",") {
        at = if code[at].is_mark("{") { end_of_group(code, at) } else { at + 1 };
    }
    at + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<File> = files.iter().map(|(path, text)| File::made_up(path, text)).collect();
        problems(&files).iter().map(ToString::to_string).collect()
    }

    const ROOT: (&str, &str) = (
        "crates/x/src/lib.rs",
        "//! H\npub mod low;\npub(crate) mod middle;\nmod high;\n#[cfg(test)]\nmod tests;\npub use low::Low;",
    );

    #[test]
    fn the_list_is_read_in_order() {
        assert_eq!(listed_modules(ROOT.1), ["low", "middle", "high"]);
    }

    #[test]
    fn rule_2_lets_modules_import_from_above() {
        let code =
            "use crate::low::A; use crate::{low, middle::{B, c::D}}; fn f() { crate::low::g() }";
        assert_eq!(found(&[ROOT, ("crates/x/src/high.rs", code)]), [""; 0]);
        assert_eq!(
            found(&[ROOT, ("crates/x/src/middle/part.rs", "use crate::middle::B;")]),
            [""; 0]
        );
    }

    #[test]
    fn rule_2_refuses_imports_from_below() {
        let found =
            found(&[ROOT, ("crates/x/src/middle/part.rs", "\nuse crate::{low::A, high::B};")]);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with(
                "crates/x/src/middle/part.rs:2: rule 2, module order: `middle` imports from `high`"
            ),
            "{found:?}"
        );
    }

    #[test]
    fn rule_2_refuses_re_exports() {
        for code in
            ["use crate::Low;", "use crate::{Low};", "use crate::*;", "fn f(_: crate::Low) {}"]
        {
            let found = found(&[ROOT, ("crates/x/src/high.rs", code)]);
            assert_eq!(found.len(), 1, "{code}");
            assert!(found[0].contains("is no module of the list"), "{found:?}");
        }
    }

    #[test]
    fn rule_2_follows_super_to_the_root() {
        let below = |path, code| found(&[ROOT, (path, code)]).len();
        assert_eq!(below("crates/x/src/low.rs", "use super::high::A;"), 1);
        assert_eq!(below("crates/x/src/low/part.rs", "use super::super::high::A;"), 1);
        assert_eq!(below("crates/x/src/low/part.rs", "use super::high::A;"), 0);
        assert_eq!(
            below("crates/x/src/low.rs", "mod inner { use super::A; use super::super::high::B; }"),
            1
        );
        assert_eq!(below("crates/x/src/high.rs", "use super::low::A;"), 0);
    }

    #[test]
    fn rule_2_leaves_tests_macros_and_visibility_alone() {
        let code = "#[cfg(test)] mod tests { use crate::high::A; }\n\
                    pub(in crate::low) fn f() { crate::some_macro!(); }\n\
                    // crate::high in a comment\npub(crate) struct S;";
        assert_eq!(found(&[ROOT, ("crates/x/src/low.rs", code)]), [""; 0]);
        assert_eq!(found(&[ROOT, ("crates/x/src/low/tests.rs", "use crate::high::A;")]), [""; 0]);
        assert_eq!(found(&[ROOT, ("crates/x/tests/it/low.rs", "use crate::high::A;")]), [""; 0]);
    }

    #[test]
    fn rule_2_descends_into_folders() {
        let folder = ("crates/x/src/middle.rs", "//! H\npub(crate) mod first;\nmod second;");
        let below = |path, code| found(&[ROOT, folder, (path, code)]).len();
        let first = "crates/x/src/middle/first.rs";
        let second = "crates/x/src/middle/second.rs";

        assert_eq!(below(second, "use crate::middle::first::A;"), 0);
        assert_eq!(below(second, "use super::first::{A, B};"), 0);
        assert_eq!(below(first, "use crate::middle::second::A;"), 1);
        assert_eq!(below(first, "use super::second::A;"), 1);
        assert_eq!(below(first, "use crate::{low::A, middle::{second::{B, C}, first::D}};"), 1);
        assert_eq!(below("crates/x/src/middle/first/part.rs", "use super::super::second::A;"), 1);
        assert_eq!(below("crates/x/src/middle/first/part.rs", "use super::A;"), 0);
    }

    #[test]
    fn rule_2_holds_for_programs_without_a_library() {
        let root = ("crates/y/src/main.rs", "//! H\nmod low;\nmod high;\nfn main() {}");
        assert_eq!(found(&[root, ("crates/y/src/low.rs", "use crate::high::A;")]).len(), 1);
    }
}
