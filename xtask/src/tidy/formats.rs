//! Rule 5: a constant stated in a format document equals the constant of that name in the code.
//!
//! A document under `docs/format/` states its constants in tables whose header names at least the
//! columns `constant`, `value` and `where`, in any order:
//!
//! ```text
//! | constant          | value          | where                    | meaning             |
//! |-------------------|----------------|--------------------------|---------------------|
//! | `PAGE_BYTES`      | 4096           | crates/lsm/src/page.rs   | size of a page      |
//! | `MAGIC`           | b"TERRANE\0"   | crates/lsm/src/page.rs   | first bytes         |
//! | `EntryKind::Blob` | 2              | crates/lsm/src/entry.rs  | tag of an entry     |
//! ```
//!
//! Both sides may be decimal or hexadecimal numbers, byte strings, byte arrays, and sums, products
//! and shifts of these; the code may also name other constants. Every document states at least
//! one constant: a document without any is not held to the code at all.

use crate::lexer::{Kind, Token, end_of_group, tokens};
use crate::problem::{Problem, Rule};
use crate::workspace::{File, has_extension};

const FOLDER: &str = "docs/format/";
const WRONG_REMEDY: &str = "correct the document, or write the change of format down as one";
const SHAPE_REMEDY: &str =
    "state constants in a table `| constant | value | where |`, see docs/style.md";

/// A row of a table of constants.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    line: usize,
    name: &'a str,
    value: &'a str,
    path: &'a str,
}

/// Value of a constant.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Number(i128),
    Bytes(Vec<u8>),
}

/// The breaches of rule 5 in all format documents.
pub(super) fn problems(files: &[File]) -> Vec<Problem> {
    let is_document = |file: &&File| {
        file.path.starts_with(FOLDER)
            && has_extension(&file.path, "md")
            && file.name() != "README.md"
    };

    files
        .iter()
        .filter(is_document)
        .flat_map(|document| {
            let rows = rows(document.text().unwrap_or_default());
            let problem = |line, what, remedy| {
                let path = document.path.clone();
                Problem { path, line, rule: Rule::FormatConstant, what, remedy }
            };
            if rows.is_empty() {
                return vec![problem(
                    1,
                    "the document states no constant".to_owned(),
                    SHAPE_REMEDY,
                )];
            }
            rows.iter()
                .filter_map(|row| {
                    let what = check(row, files).err()?;
                    Some(problem(row.line, what, WRONG_REMEDY))
                })
                .collect()
        })
        .collect()
}

/// The rows of all tables of constants in `document`.
fn rows(document: &str) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut columns: Option<[usize; 3]> = None;
    for (number, line) in document.lines().enumerate() {
        let Some(cells) = cells(line) else {
            columns = None;
            continue;
        };

        let place = |wanted: &str| cells.iter().position(|cell| cell.eq_ignore_ascii_case(wanted));
        let Some([name, value, path]) = columns else {
            columns = place("constant")
                .zip(place("value"))
                .zip(place("where"))
                .map(|((name, value), path)| [name, value, path]);
            continue;
        };

        let is_rule = cells
            .iter()
            .all(|cell| !cell.is_empty() && cell.bytes().all(|byte| b"-:".contains(&byte)));

        if !is_rule {
            let cell = |column: usize| cells.get(column).copied().unwrap_or_default();
            rows.push(Row {
                line: number + 1,
                name: cell(name),
                value: cell(value),
                path: cell(path),
            });
        }
    }

    rows
}

/// The cells of a row of a table, without back-ticks; nothing if `line` is none.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
}

fn check(row: &Row<'_>, files: &[File]) -> Result<(), String> {
    let Row { name, value, path, .. } = row;
    let unknown = |name: &str| Err(format!("`{name}` in a value of the document"));
    let stated = evaluate(&tokens(value), &unknown)
        .map_err(|problem| format!("`{name}`: value `{value}`: cannot read {problem}"))?;

    let file = files
        .iter()
        .find(|file| file.path == *path)
        .ok_or_else(|| format!("`{name}`: there is no file `{path}`"))?;

    let actual = lookup(name, file, files, 0)
        .map_err(|problem| format!("`{name}` in `{path}`: {problem}"))?;
    if same(&stated, &actual) {
        return Ok(());
    }
    Err(format!("`{name}` is {} here and {} in `{path}`", show(&stated), show(&actual)))
}

/// Equal, or one the little-endian number of the other's bytes.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(number), Value::Bytes(bytes))
        | (Value::Bytes(bytes), Value::Number(number)) => little_endian(bytes) == Some(*number),
        _ => left == right,
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Bytes(bytes) => format!("b\"{}\"", bytes.escape_ascii()),
    }
}

fn little_endian(bytes: &[u8]) -> Option<i128> {
    let fold = |number: i128, byte: &u8| (number << 8) | i128::from(*byte);
    (bytes.len() <= 8).then(|| bytes.iter().rev().fold(0, fold))
}

/// The value of the constant or enum variant `name` as `file` defines it.
fn lookup(name: &str, file: &File, files: &[File], depth: usize) -> Result<Value, String> {
    // Constants of constants: deep enough for any table of offsets, and it ends on a cycle.
    if depth > 64 {
        return Err("refers to itself".to_owned());
    }
    let text = file.rust().ok_or("is no source file")?;
    // Most files are asked in vain, and this is much faster than their tokens.
    if !name.split("::").all(|part| text.contains(part)) {
        return Err("there is no such constant".to_owned());
    }
    let code = tokens(text);
    let expression = expression_of(name, &code).ok_or("there is no such constant")?;

    let resolve = |name: &str| -> Result<Value, String> {
        let elsewhere = || files.iter().filter(|other| other.path != file.path);
        lookup(name, file, files, depth + 1).or_else(|_| {
            let found: Vec<Value> = elsewhere()
                .filter_map(|other| lookup(name, other, files, depth + 1).ok())
                .collect();
            match found.split_first() {
                Some((first, others)) if others.iter().all(|other| other == first) => {
                    Ok(first.clone())
                }
                Some(_) => Err(format!("`{name}`, which has several values")),
                None => Err(format!("`{name}`, which is not found")),
            }
        })
    };

    evaluate(expression, &resolve).map_err(|problem| format!("cannot evaluate {problem}"))
}

/// The tokens between `=` and the end of the definition of `name`.
fn expression_of<'c, 'a>(name: &str, code: &'c [Token<'a>]) -> Option<&'c [Token<'a>]> {
    if let Some((kind, variant)) = name.split_once("::") {
        let start =
            code.windows(2).position(|pair| pair[0].is_word("enum") && pair[1].is_word(kind))?;
        let open = (start..code.len()).find(|&at| code[at].is_mark("{"))?;
        let body = &code[open + 1..end_of_group(code, open) - 1];
        let at =
            body.windows(2).position(|pair| pair[0].is_word(variant) && pair[1].is_mark("="))?;
        return Some(until(&body[at + 2..], ","));
    }

    let at = code.windows(3).position(|window| {
        (window[0].is_word("const") || window[0].is_word("static"))
            && window[1].is_word(name)
            && window[2].is_mark(":")
    })?;

    let equals = (at..code.len()).find(|&at| code[at].is_mark("="))?;
    Some(until(&code[equals + 1..], ";"))
}

/// The tokens before the first `mark` outside brackets.
fn until<'c, 'a>(code: &'c [Token<'a>], mark: &str) -> &'c [Token<'a>] {
    let mut at = 0;
    while at < code.len() && !code[at].is_mark(mark) {
        let opens = ["(", "[", "{"].iter().any(|open| code[at].is_mark(open));
        at = if opens { end_of_group(code, at) } else { at + 1 };
    }
    &code[..at]
}

/// Evaluates an expression; the error is the part that this evaluator does not know.
fn evaluate(
    code: &[Token<'_>],
    resolve: &dyn Fn(&str) -> Result<Value, String>,
) -> Result<Value, String> {
    let mut parser = Parser { code, at: 0, resolve };
    let value = parser.binary(0)?;
    match parser.peek() {
        None => Ok(value),
        Some(token) => Err(format!("`{}`", token.text)),
    }
}

struct Parser<'c> {
    code: &'c [Token<'c>],
    at: usize,
    resolve: &'c dyn Fn(&str) -> Result<Value, String>,
}

/// Operators from the loosest to the tightest; those of a row associate to the left.
const OPERATORS: [&[&str]; 4] = [&["|"], &["<<"], &["+", "-"], &["*", "/"]];

impl<'c> Parser<'c> {
    fn peek(&self) -> Option<Token<'c>> {
        self.code.get(self.at).copied()
    }

    fn take_mark(&mut self, mark: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.is_mark(mark));
        self.at += usize::from(found);
        found
    }

    fn take_operator(&mut self, operators: &[&'static str]) -> Option<&'static str> {
        operators.iter().copied().find(|operator| {
            let marks: Vec<&str> = operator.split("").filter(|mark| !mark.is_empty()).collect();
            let ahead = self.code.get(self.at..self.at + marks.len()).unwrap_or_default();
            let found = ahead.len() == marks.len()
                && ahead.iter().zip(&marks).all(|(token, mark)| token.is_mark(mark));
            self.at += if found { marks.len() } else { 0 };
            found
        })
    }

    fn binary(&mut self, level: usize) -> Result<Value, String> {
        let Some(operators) = OPERATORS.get(level) else {
            return self.cast();
        };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = self.take_operator(operators) {
            let right = self.binary(level + 1)?;
            left = apply(operator, &left, &right)?;
        }
        Ok(left)
    }

    fn cast(&mut self) -> Result<Value, String> {
        let value = self.primary()?;
        while self.peek().is_some_and(|token| token.is_word("as")) {
            self.at += 2;
        }
        Ok(value)
    }

    fn primary(&mut self) -> Result<Value, String> {
        // `*b"..."` and `&[..]` change the type, not the bytes.
        while self.take_mark("*") || self.take_mark("&") {}
        let token = self.peek().ok_or("an unfinished expression")?;
        self.at += 1;

        match token.kind {
            Kind::Number => number(token.text).ok_or_else(|| format!("`{}`", token.text)),
            Kind::Text => bytes(token.text).ok_or_else(|| format!("`{}`", token.text)),
            Kind::Word => self.path(token.text),
            Kind::Mark if token.text == "(" => {
                let value = self.binary(0)?;
                if self.take_mark(")") { Ok(value) } else { Err("an open bracket".to_owned()) }
            }
            Kind::Mark if token.text == "[" => self.array(),
            Kind::Mark | Kind::Lifetime => Err(format!("`{}`", token.text)),
        }
    }

    /// The elements of a byte array after its opening bracket.
    fn array(&mut self) -> Result<Value, String> {
        let mut bytes = Vec::new();
        while !self.take_mark("]") {
            let Value::Number(element) = self.binary(0)? else {
                return Err("an array of something else than bytes".to_owned());
            };
            bytes.push(u8::try_from(element).map_err(|_| format!("the byte `{element}`"))?);
            if !self.take_mark(",") && !self.peek().is_some_and(|token| token.is_mark("]")) {
                return Err("an array of something else than bytes".to_owned());
            }
        }
        Ok(Value::Bytes(bytes))
    }

    /// A constant, `u64::from_le_bytes(..)` or `u32::MAX`, whose first word is `first`.
    fn path(&mut self, first: &'c str) -> Result<Value, String> {
        let mut words = vec![first];
        while self.take_operator(&["::"]).is_some() {
            words.push(self.peek().ok_or("an unfinished path")?.text);
            self.at += 1;
        }

        let (last, before) = words.split_last().ok_or("an empty path")?;
        if *last == "from_le_bytes" && self.take_mark("(") {
            let inner = self.binary(0)?;
            return if self.take_mark(")") { Ok(inner) } else { Err("an open bracket".to_owned()) };
        }

        let unsigned_bits =
            before.last().and_then(|word| word.strip_prefix('u')?.parse::<u32>().ok());
        match (*last, unsigned_bits) {
            ("MAX", Some(bits)) if bits <= 64 => Ok(Value::Number((1 << bits) - 1)),
            _ => (self.resolve)(last),
        }
    }
}

fn apply(operator: &str, left: &Value, right: &Value) -> Result<Value, String> {
    let (Value::Number(left), Value::Number(right)) = (left, right) else {
        return Err(format!("`{operator}` of bytes"));
    };
    let result = match operator {
        "|" => Some(left | right),
        "<<" => u32::try_from(*right).ok().filter(|bits| *bits < 100).map(|bits| left << bits),
        "+" => left.checked_add(*right),
        "-" => left.checked_sub(*right),
        "*" => left.checked_mul(*right),
        _ => left.checked_div(*right),
    };
    result.map(Value::Number).ok_or_else(|| format!("`{left} {operator} {right}`"))
}

fn number(text: &str) -> Option<Value> {
    let plain = text.replace('_', "");
    let (digits, radix) = match plain.get(..2) {
        Some("0x") => (&plain[2..], 16),
        Some("0b") => (&plain[2..], 2),
        _ => (plain.as_str(), 10),
    };
    let suffixes = ["u8", "u16", "u32", "u64", "u128", "usize", "i32", "i64"];
    let digits = suffixes.iter().find_map(|suffix| digits.strip_suffix(suffix)).unwrap_or(digits);
    i128::from_str_radix(digits, radix).ok().map(Value::Number)
}

/// The bytes of `b"..."`, or the number of `b'.'`.
fn bytes(text: &str) -> Option<Value> {
    if let Some(inner) = text.strip_prefix("b'").and_then(|text| text.strip_suffix('\'')) {
        let byte = unescape(inner)?;
        return (byte.len() == 1).then(|| Value::Number(i128::from(byte[0])));
    }
    let inner = text.strip_prefix("b\"")?.strip_suffix('"')?;
    unescape(inner).map(Value::Bytes)
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }

        bytes.push(match rest.next()? {
            b'0' => 0,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }

    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "//! H\n\
        pub const PAGE_BYTES: usize = 4096;\n\
        const MAGIC: [u8; 8] = *b\"TERRANE\\0\";\n\
        const MAGIC_WORD: u64 = u64::from_le_bytes(*b\"TERRANE\\0\");\n\
        const LIMIT: u64 = (PAGE_BYTES as u64 - 44) * 2 + (1 << 4);\n\
        const FAR: u32 = crate::other::ELSEWHERE + 1;\n\
        const SELF: u32 = SELF;\n\
        const MOST: u64 = u32::MAX as u64;\n\
        const LIST: &[u8] = &[0x54, b'E', 3];\n\
        const SIZE: usize = size_of::<u64>();\n\
        #[repr(u8)] pub enum EntryKind { Insert = 1, Delete = 0x2_u8 }";

    fn found(rows: &str) -> Vec<String> {
        let document = format!("# Page\n\n| constant | value | where |\n|---|---|---|\n{rows}\n");
        let files = [
            File::made_up("docs/format/page.md", &document),
            File::made_up("crates/x/src/page.rs", CODE),
            File::made_up("crates/x/src/other.rs", "pub const ELSEWHERE: u32 = 0x10;"),
        ];
        problems(&files).iter().map(ToString::to_string).collect()
    }

    fn row(name: &str, value: &str) -> String {
        format!("| `{name}` | {value} | `crates/x/src/page.rs` |")
    }

    #[test]
    fn rule_5_accepts_what_agrees() {
        for (name, value) in [
            ("PAGE_BYTES", "4096"),
            ("PAGE_BYTES", "`4 * 1024`"),
            ("PAGE_BYTES", "1 << 12"),
            ("PAGE_BYTES", "0x1000"),
            ("MAGIC", "`b\"TERRANE\\0\"`"),
            ("MAGIC_WORD", "b\"TERRANE\\0\""),
            ("LIMIT", "8_120"),
            ("FAR", "17"),
            ("MOST", "4294967295"),
            ("LIST", "b\"TE\\x03\""),
            ("EntryKind::Insert", "1"),
            ("EntryKind::Delete", "2"),
        ] {
            assert_eq!(found(&row(name, value)), [""; 0], "{name} {value}");
        }
    }

    #[test]
    fn rule_5_refuses_what_differs() {
        let found = found(&row("PAGE_BYTES", "8192"));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with(
                "docs/format/page.md:5: rule 5, format constants: `PAGE_BYTES` is 8192 here and \
                 4096 in `crates/x/src/page.rs`"
            ),
            "{found:?}"
        );
    }

    #[test]
    fn rule_5_refuses_what_it_cannot_check() {
        for (name, value, problem) in [
            ("MISSING", "1", "there is no such constant"),
            ("EntryKind::Upsert", "1", "there is no such constant"),
            ("PAGE_BYTES", "4 KiB", "cannot read `KiB`"),
            ("PAGE_BYTES", "", "cannot read an unfinished expression"),
            ("SELF", "1", "cannot evaluate"),
            ("SIZE", "8", "cannot evaluate"),
            ("MAGIC", "b\"TERRANE1\"", "is b\"TERRANE1\" here and b\"TERRANE\\x00\" in"),
        ] {
            let found = found(&row(name, value));
            assert!(found.len() == 1 && found[0].contains(problem), "{name}: {found:?}");
        }

        assert!(found("| `A` | 1 | `crates/x/src/gone.rs` |")[0].contains("there is no file"));
    }

    #[test]
    fn rule_5_wants_every_document_held_to_the_code() {
        let files = [
            File::made_up(
                "docs/format/page.md",
                "# Page\n\n| field | bytes |\n|---|---|\n| a | 4 |",
            ),
            File::made_up("docs/format/README.md", "# Formats"),
            File::made_up("docs/testing.md", "# Testing"),
        ];
        let found = problems(&files);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "docs/format/page.md");
    }

    #[test]
    fn columns_may_stand_in_any_order() {
        let rows = rows("|Where|Meaning|Constant|Value|\n|:-|-|-|-:|\n|a.rs|m|`A`|1|\n\n|x|\n|y|");
        assert_eq!(rows, [Row { line: 3, name: "A", value: "1", path: "a.rs" }]);
    }
}
