//! Rule 2: the crate root lists its modules bottom-up; a module imports only from modules above it
//! in that list, by the module's own path and not through re-exports at the crate root.
//!
//! So no two modules can depend on each other, and the list is the table of contents. Submodules
//! count as the module that they belong to. What only tests see (`#[cfg(test)]`) is free.

use std::collections::BTreeMap;

use crate::lexer::{Kind, Token, end_of_group, tokens, without_tests};
use crate::problem::{Problem, Rule};
use crate::workspace::File;

/// A path from the crate root as it stands in the source: `crate::name` or enough `super`s.
#[derive(Debug, PartialEq, Eq)]
struct Import<'a> {
    name: &'a str,
    line: usize,
}

/// The breaches of rule 2 in all crates.
pub(super) fn problems(files: &[File]) -> Vec<Problem> {
    let roots: BTreeMap<&str, &File> = files
        .iter()
        .filter_map(|file| Some((file.path.strip_suffix("/src/main.rs")?, file)))
        // A library next to a program wins: its list is the one that matters.
        .chain(files.iter().filter_map(|file| Some((file.path.strip_suffix("/src/lib.rs")?, file))))
        .collect();
    let mut problems = Vec::new();
    for (folder, root) in roots {
        let Some(root_text) = root.rust() else { continue };
        let order = listed_modules(root_text);
        let source_folder = format!("{folder}/src/");
        for file in files {
            let Some(inside) = file.path.strip_prefix(&source_folder) else { continue };
            problems.extend(problems_of_file(file, inside, &order));
        }
    }
    problems
}

/// The names of `mod name;` in the crate root, in order.
fn listed_modules(root: &str) -> Vec<&str> {
    let all = tokens(root);
    let code = without_tests(&all);
    code.windows(3)
        .filter(|window| window[0].is_word("mod") && window[2].is_mark(";"))
        .map(|window| window[1].text)
        .collect()
}

/// `inside` is the file's path below `src/`.
fn problems_of_file(file: &File, inside: &str, order: &[&str]) -> Vec<Problem> {
    let parts: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
    let position = |name: &str| order.iter().position(|module| *module == name);
    let (Some(own), Some(text)) = (position(parts[0]), file.rust()) else {
        return Vec::new();
    };
    if parts.contains(&"tests") {
        return Vec::new();
    }
    imports(text, parts.len())
        .into_iter()
        .filter_map(|import| {
            let (what, remedy) = match position(import.name) {
                Some(other) if other <= own => return None,
                Some(_) => (
                    format!("`{}` imports from `{}`, which is listed below it", order[own], import.name),
                    "move what both need into a module above them, or correct the order of the list",
                ),
                None => (
                    format!("`crate::{}` is no module of the list", import.name),
                    "import by the path of the module that defines it",
                ),
            };
            let (path, line) = (file.path.clone(), import.line);
            Some(Problem { path, line, rule: Rule::ModuleOrder, what, remedy })
        })
        .collect()
}

/// Every path from the crate root in `text`, a file whose module lies `depth` below the root.
fn imports(text: &str, depth: usize) -> Vec<Import<'_>> {
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
        let after = end_of_root_path(&code, at, depth + inline_ends.len());
        match after {
            Some(after) => {
                collect_names(&code, after, &mut found);
                at = after;
            }
            None => at += 1,
        }
    }
    found
}

/// The index after `crate::` or after `depth` times `super::`, if that stands at `at`.
fn end_of_root_path(code: &[Token<'_>], at: usize, depth: usize) -> Option<usize> {
    // One colon is the type of something, two are the middle of a path.
    let continues = at >= 2 && code[at - 1].is_mark(":") && code[at - 2].is_mark(":");
    // `pub(in crate::a)` restricts, and `$crate` belongs to whoever calls the macro.
    let restricts = at >= 1 && (code[at - 1].is_word("in") || code[at - 1].is_mark("$"));
    if continues || restricts {
        return None;
    }
    if code[at].is_word("crate") {
        return after_colons(code, at + 1);
    }
    let mut end = at;
    let mut count = 0;
    while code.get(end).is_some_and(|token| token.is_word("super")) {
        end = after_colons(code, end + 1)?;
        count += 1;
    }
    (count > 0 && count == depth).then_some(end)
}

fn after_colons(code: &[Token<'_>], at: usize) -> Option<usize> {
    let is_colon = |index: usize| code.get(index).is_some_and(|token| token.is_mark(":"));
    (is_colon(at) && is_colon(at + 1)).then_some(at + 2)
}

/// Adds the first names of the path or of the group of paths at `at`.
fn collect_names<'a>(code: &[Token<'a>], at: usize, found: &mut Vec<Import<'a>>) {
    let Some(first) = code.get(at) else { return };
    if !first.is_mark("{") {
        // A macro is exported at the root wherever it is defined: it has no other path.
        let is_macro = code.get(at + 1).is_some_and(|token| token.is_mark("!"));
        if !is_macro {
            found.push(Import { name: first.text, line: first.line });
        }
        return;
    }
    let end = end_of_group(code, at);
    let mut inner = at + 1;
    let mut starts_path = true;
    while inner + 1 < end {
        let token = code[inner];
        if token.is_mark("{") {
            inner = end_of_group(code, inner);
            continue;
        }
        if starts_path && (token.kind == Kind::Word || token.is_mark("*")) {
            found.push(Import { name: token.text, line: token.line });
        }
        starts_path = token.is_mark(",");
        inner += 1;
    }
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
    fn rule_2_holds_for_programs_without_a_library() {
        let root = ("crates/y/src/main.rs", "//! H\nmod low;\nmod high;\nfn main() {}");
        assert_eq!(found(&[root, ("crates/y/src/low.rs", "use crate::high::A;")]).len(), 1);
    }
}
