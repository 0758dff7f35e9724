//! Problem that a check reports: the rule, the place, what is wrong there, and the remedy.

use std::fmt;

/// The rules that `cargo xtask tidy` checks; docs/style.md gives their reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// 1: every source file opens with a header.
    Header,
    /// 2: modules are listed bottom-up and import only from above.
    ModuleOrder,
    /// 3: statements and macros that have no business in a commit.
    Leftover,
    /// 4: `forbid(unsafe_code)` outside io and the bindings.
    Unsafe,
    /// 5: constants in the format documents are those of the code.
    FormatConstant,
    /// 6: no large files outside the data folders.
    LargeFile,
    /// 7: nothing that belongs to one machine.
    Machine,
    /// 8: comments name their thing first and fit the line.
    Prose,
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Header => "rule 1, header",
            Self::ModuleOrder => "rule 2, module order",
            Self::Leftover => "rule 3, leftovers",
            Self::Unsafe => "rule 4, unsafe code",
            Self::FormatConstant => "rule 5, format constants",
            Self::LargeFile => "rule 6, large files",
            Self::Machine => "rule 7, machines",
            Self::Prose => "rule 8, prose",
        })
    }
}

/// A breach of a rule. Shown as `path:line: rule: what; remedy`, so that editors find the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) path: String,
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) rule: Rule,
    pub(crate) what: String,
    pub(crate) remedy: &'static str,
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, rule, what, remedy } = self;
        write!(formatter, "{path}:{line}: {rule}: {what}; {remedy}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_place_rule_and_remedy() {
        let problem = Problem {
            path: "crates/io/src/lib.rs".to_owned(),
            line: 7,
            rule: Rule::Leftover,
            what: "`dbg!`".to_owned(),
            remedy: "remove it",
        };
        assert_eq!(
            problem.to_string(),
            "crates/io/src/lib.rs:7: rule 3, leftovers: `dbg!`; remove it"
        );
    }
}
