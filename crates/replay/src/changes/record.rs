//! One line of a history: its grammar, and nothing about what it means.
//!
//! Fields are separated by exactly one space; bytes are lower-case hexadecimal, `-` for none at
//! all. Comments are told apart before.

use crate::hex;

/// The first line of every history.
pub(super) const FIRST_LINE: &[u8] = b"terrane-changes 1";

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    Begin(u64),
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    Delete {
        key: Vec<u8>,
    },
    Get {
        key: Vec<u8>,
        value: Option<Vec<u8>>,
    },
    End(Expected),
    /// `None`: to the empty state.
    Rollback(Option<u64>),
    Expect(Expected),
    /// `None`: unbounded.
    Range {
        from: Option<Vec<u8>>,
        to: Option<Vec<u8>>,
        count: u64,
        digest: String,
    },
}

/// Expected state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) count: Option<u64>,
    pub(super) digest: Option<String>,
    /// By scheme, in the order given.
    pub(super) roots: Vec<(String, String)>,
}

/// Reason why a line is not a record, or cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The first line is not that of a history.
    #[error("the first line must be `terrane-changes 1`")]
    FirstLine,
    /// The file has bytes that are no text.
    #[error("the line is not UTF-8")]
    NotText,
    /// Lines end with a line feed alone.
    #[error("a carriage return")]
    CarriageReturn,
    /// A line without a record.
    #[error("a blank line")]
    Blank,
    /// No record begins with this word.
    #[error("unknown record {0:?}")]
    Unknown(String),
    /// Too few or too many fields, or more than one space between them.
    #[error("a record of {record} has the form `{form}`, fields separated by one space")]
    Fields {
        /// The record.
        record: &'static str,
        /// Form of the record.
        form: &'static str,
    },
    /// A field that should be bytes is not.
    #[error("{0:?} is neither lower-case hexadecimal nor `-`")]
    Bytes(String),
    /// A field that should be a number is not.
    #[error("{0:?} is not a decimal number below 2^64")]
    Number(String),
    /// A field that should be a check is not, or stands twice.
    #[error("{0:?} is not a check that can stand here")]
    Check(String),
    /// The record may not stand here.
    #[error("`{record}` {rule}")]
    Misplaced {
        /// The record.
        record: &'static str,
        /// Rule for the place of the record.
        rule: &'static str,
    },
    /// The engine takes no key of this size.
    #[error("a key of {size} bytes; the engine takes at most {max}")]
    KeySize {
        /// Size of the key, in bytes.
        size: usize,
        /// The engine's limit, in bytes.
        max: usize,
    },
    /// The engine takes no key as short as this.
    #[error("a key of {size} bytes; the engine takes at least {min}")]
    ShortKey {
        /// Size of the key, in bytes.
        size: usize,
        /// The engine's limit, in bytes.
        min: usize,
    },
    /// The engine takes no value of this size.
    #[error("a value of {size} bytes; the engine takes at most {max}")]
    ValueSize {
        /// Size of the value, in bytes.
        size: usize,
        /// The engine's limit, in bytes.
        max: usize,
    },
    /// The numbers of blocks rise.
    #[error("block {block} must be above block {last}")]
    Order {
        /// The number given.
        block: u64,
        /// The block before it.
        last: u64,
    },
}

impl Record {
    /// Reads a line that is neither the first one nor a comment.
    pub(super) fn parse(line: &[u8]) -> Result<Self, Malformed> {
        let line = std::str::from_utf8(line).map_err(|_| Malformed::NotText)?;
        // A carriage return would become a part of the last field.
        if line.contains('\r') {
            return Err(Malformed::CarriageReturn);
        }

        if line.is_empty() {
            return Err(Malformed::Blank);
        }
        let (word, rest) =
            line.split_once(' ').map_or((line, None), |(word, rest)| (word, Some(rest)));

        let fields: Vec<&str> = rest.map_or_else(Vec::new, |rest| rest.split(' ').collect());
        let wrong = |record, form| Err(Malformed::Fields { record, form });
        match (word, fields.as_slice()) {
            ("begin", &[block]) => Ok(Self::Begin(number(block)?)),
            ("begin", _) => wrong("begin", "begin H"),
            ("put", &[key, value]) => Ok(Self::Put { key: bytes(key)?, value: bytes(value)? }),
            ("put", _) => wrong("put", "put K V"),
            ("del", &[key]) => Ok(Self::Delete { key: bytes(key)? }),
            ("del", _) => wrong("del", "del K"),
            ("get", &[key, value]) => {
                Ok(Self::Get { key: bytes(key)?, value: unless(value, "!", bytes)? })
            }
            ("get", _) => wrong("get", "get K V` or `get K !"),
            ("end", checks) => Ok(Self::End(Expected::parse(checks)?)),
            ("rollback", &[block]) => Ok(Self::Rollback(unless(block, "-", number)?)),
            ("rollback", _) => wrong("rollback", "rollback H"),
            ("expect", checks) => Ok(Self::Expect(Expected::parse(checks)?)),
            ("range", &[from, to, count, digest]) => {
                let field = |field: &str, name: &str| {
                    let value = field.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
                    value.map(str::to_owned).ok_or_else(|| Malformed::Check(field.to_owned()))
                };
                Ok(Self::Range {
                    from: unless(from, "!", bytes)?,
                    to: unless(to, "!", bytes)?,
                    count: number(&field(count, "n")?)?,
                    digest: sha256(&field(digest, "digest")?)?,
                })
            }
            ("range", _) => wrong("range", "range K1 K2 n=N digest=D"),
            _ => Err(Malformed::Unknown(word.to_owned())),
        }
    }
}

impl Expected {
    fn parse(fields: &[&str]) -> Result<Self, Malformed> {
        let mut expected = Self::default();
        // Each check may be named once.
        for &field in fields {
            let refused = || Malformed::Check(field.to_owned());
            let (name, value) = field.split_once('=').ok_or_else(refused)?;
            let fresh = match name.strip_prefix("root.") {
                None if name == "count" => expected.count.replace(number(value)?).is_none(),
                None if name == "digest" => expected.digest.replace(sha256(value)?).is_none(),
                Some(scheme) if !scheme.is_empty() && !value.is_empty() => {
                    // Roots are hexadecimal, whatever their scheme.
                    hex::decode(value).ok_or_else(refused)?;
                    let known = expected.roots.iter().any(|(known, _)| known == scheme);
                    expected.roots.push((scheme.to_owned(), value.to_owned()));
                    !known
                }
                _ => false,
            };

            if !fresh {
                return Err(refused());
            }
        }

        Ok(expected)
    }
}

fn number(text: &str) -> Result<u64, Malformed> {
    // `parse` alone takes a sign as well.
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| Malformed::Number(text.to_owned()))
}

fn bytes(text: &str) -> Result<Vec<u8>, Malformed> {
    let bytes = match text {
        "" => None,
        "-" => Some(Vec::new()),
        digits => hex::decode(digits),
    };
    // The text may be a whole damaged line, so an error shows its beginning only.
    bytes.ok_or_else(|| Malformed::Bytes(text.chars().take(80).collect()))
}

fn sha256(text: &str) -> Result<String, Malformed> {
    let size = hex::decode(text).map(|bytes| bytes.len());
    if size == Some(32) { Ok(text.to_owned()) } else { Err(Malformed::Check(text.to_owned())) }
}

/// `None` if `text` is `mark`, otherwise what `read` makes of it.
fn unless<T>(
    text: &str,
    mark: &str,
    read: impl Fn(&str) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    if text == mark { Ok(None) } else { read(text).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn every_record_is_read() {
        let digest = DIGEST.to_owned();
        let cases = [
            ("begin 0", Record::Begin(0)),
            ("put 00ff -", Record::Put { key: vec![0, 255], value: vec![] }),
            ("del -", Record::Delete { key: vec![] }),
            ("get 01 02", Record::Get { key: vec![1], value: Some(vec![2]) }),
            ("get 01 -", Record::Get { key: vec![1], value: Some(vec![]) }),
            ("get 01 !", Record::Get { key: vec![1], value: None }),
            ("end", Record::End(Expected::default())),
            ("rollback 7", Record::Rollback(Some(7))),
            ("rollback -", Record::Rollback(None)),
            (
                &format!("expect root.x=00 digest={DIGEST} count=18446744073709551615"),
                Record::Expect(Expected {
                    count: Some(u64::MAX),
                    digest: Some(digest.clone()),
                    roots: vec![("x".to_owned(), "00".to_owned())],
                }),
            ),
            (
                &format!("range ! - n=3 digest={DIGEST}"),
                Record::Range { from: None, to: Some(vec![]), count: 3, digest },
            ),
        ];

        for (line, record) in cases {
            assert_eq!(Record::parse(line.as_bytes()), Ok(record), "{line}");
        }
    }

    #[test]
    fn other_lines_are_refused() {
        let refused = [
            "",
            " ",
            "begin",
            "begin -1",
            "begin +1",
            "begin 18446744073709551616",
            "begin 1 ",
            "begin  1",
            " begin 1",
            "begin 1\r",
            "put 00",
            "put 00  00",
            "put 0 00",
            "put AB 00",
            "put ! 00",
            "del",
            "del !",
            "get 00",
            "end count",
            "end count=",
            "end count=1 count=1",
            "end digest=00",
            "end root.=00",
            "end root.x=",
            "end root.x=0",
            "end root.x=0 root.x=0",
            "end ",
            "rollback",
            "rollback !",
            "expect n=1",
            "range ! ! n=1",
            "range ! ! digest=1 n=1",
            "unknown",
            "Begin 1",
            "put\t00 00",
        ];

        for line in refused {
            assert!(Record::parse(line.as_bytes()).is_err(), "{line:?}");
        }
        assert_eq!(Record::parse(b"put \xff 00"), Err(Malformed::NotText));
    }
}
