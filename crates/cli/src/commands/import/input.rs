//! Entries in ascending order of their keys, read from text: the lines of `terrane scan`, and those
//! of `mdb_dump`.
//!
//! A text that ends in the middle is refused: a line without its end, a dump without `DATA=END`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use crate::ui::exit::Failure;
use crate::ui::literal;

/// Name of standard input.
pub(super) const STDIN: &str = "-";

/// Flags of a database that keep its entries out of a table of ordered keys with one value each, as
/// `mdb_dump` writes them.
const REFUSED_FLAGS: [&str; 7] =
    ["duplicates", "dupsort", "reversekey", "integerkey", "dupfixed", "integerdup", "reversedup"];

/// Entry of a source.
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) blob: Option<Vec<u8>>,
}

/// Source of entries.
pub(super) trait Input {
    /// Returns the next entry, or `None` at the end.
    ///
    /// # Errors
    /// [`Failure`], with the place in the source.
    fn next(&mut self) -> Result<Option<Entry>, Failure>;

    /// Returns the place of the last entry, for messages.
    fn place(&self) -> String;
}

/// Returns the failure of a database whose entries no table can hold.
pub(super) fn refused_flag(place: &str, flag: &str) -> Failure {
    Failure::usage(format!(
        "{place}: the database has the flag `{flag}`; only databases with one value for each key, \
         in the order of bytes, are imported"
    ))
}

/// Lines of a file or of standard input.
struct Text {
    name: String,
    reader: Box<dyn BufRead>,
    line_max: u64,
    line: Vec<u8>,
    /// Number of the last line, from 1.
    number: u64,
}

impl Text {
    fn open(path: &Path, line_max: u64) -> Result<Self, Failure> {
        let is_stdin = path.as_os_str() == STDIN;
        let name = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
        let reader: Box<dyn BufRead> = if is_stdin {
            Box::new(BufReader::new(io::stdin()))
        } else {
            let file = File::open(path).map_err(|error| unreadable(&name, &error))?;
            Box::new(BufReader::new(file))
        };
        Ok(Self { name, reader, line_max, line: Vec::new(), number: 0 })
    }

    fn place(&self) -> String {
        format!("{}: line {}", self.name, self.number)
    }

    fn failed(&self, why: &str) -> Failure {
        Failure::usage(format!("{}: {why}", self.place()))
    }

    /// Moves to the next line, without its end; returns `false` at the end of the text.
    fn advance(&mut self) -> Result<bool, Failure> {
        self.line.clear();
        let more = self.line_max.saturating_add(1);
        let read = (&mut self.reader).take(more).read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| unreadable(&self.name, &error))?;
        if read == 0 {
            return Ok(false);
        }

        self.number += 1;
        if self.line.pop_if(|last| *last == b'\n').is_some() {
            return Ok(true);
        }

        Err(if read as u64 > self.line_max {
            let line_max = self.line_max;
            self.failed(&format!("longer than {line_max} bytes; --line-max allows more"))
        } else {
            self.failed("the line has no end: the text is cut here")
        })
    }
}

/// Returns the failure of a file that cannot be read.
fn unreadable(name: &str, error: &io::Error) -> Failure {
    let message = format!("{name}: {error}");
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            Failure::usage(message)
        }
        _ => Failure::of_system(error, message),
    }
}

/// Lines in the format of `terrane scan`.
pub(super) struct Lines(Text);

impl Lines {
    /// Opens a file, or standard input for `-`.
    ///
    /// # Errors
    /// [`Failure`].
    pub(super) fn open(path: &Path, line_max: u64) -> Result<Self, Failure> {
        Text::open(path, line_max).map(Self)
    }
}

impl Input for Lines {
    fn next(&mut self) -> Result<Option<Entry>, Failure> {
        if !self.0.advance()? {
            return Ok(None);
        }

        let fields = literal::fields(&self.0.line).map_err(|why| self.0.failed(&why))?;
        let mut fields = fields.into_iter();
        match (fields.next(), fields.next(), fields.next(), fields.next()) {
            (Some(key), Some(value), blob, None) => Ok(Some(Entry { key, value, blob })),
            _ => Err(self.0.failed("not key, tab and value, and perhaps one more tab and a blob")),
        }
    }

    fn place(&self) -> String {
        self.0.place()
    }
}

/// Notation of the bytes in a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notation {
    /// Printable characters, and `\` with two digits for other bytes.
    Print,
    /// Two hexadecimal digits for each byte.
    ByteValue,
}

/// Text of `mdb_dump`, of one database.
pub(super) struct Dump {
    text: Text,
    notation: Notation,
    is_done: bool,
}

impl Dump {
    /// Opens a file, or standard input for `-`, and reads the header.
    ///
    /// # Errors
    /// [`Failure`], also for a database with several values of a key.
    pub(super) fn open(path: &Path, line_max: u64) -> Result<Self, Failure> {
        let mut text = Text::open(path, line_max)?;
        if !text.advance()? || text.line != b"VERSION=3" {
            return Err(text.failed("no dump of `mdb_dump`, which begins with `VERSION=3`"));
        }

        let mut notation = None;
        loop {
            if !text.advance()? {
                return Err(text.failed("the header has no `HEADER=END`: the dump is cut here"));
            }
            let line = String::from_utf8_lossy(&text.line).into_owned();
            let Some((name, value)) = line.split_once('=') else {
                return Err(text.failed(&format!("`{line}` in the header is no name and value")));
            };
            match (name, value) {
                ("HEADER", "END") => break,
                ("format", "print") => notation = Some(Notation::Print),
                ("format", "bytevalue") => notation = Some(Notation::ByteValue),
                ("format", _) => {
                    return Err(text.failed(&format!("the format `{value}` is unknown")));
                }
                ("type", "btree") => {}
                ("type", _) => {
                    return Err(text.failed(&format!("the type `{value}` is not `btree`")));
                }
                (flag, value) if REFUSED_FLAGS.contains(&flag) && value != "0" => {
                    return Err(refused_flag(&text.place(), flag));
                }
                // Sizes of the environment, and the name of the database.
                _ => {}
            }
        }

        let notation = notation.ok_or_else(|| text.failed("the header has no `format`"))?;
        Ok(Self { text, notation, is_done: false })
    }

    /// Returns the bytes of the present line.
    fn field(&self) -> Result<Vec<u8>, Failure> {
        let Some(written) = self.text.line.strip_prefix(b" ") else {
            return Err(self.text.failed("neither a space and a key or value, nor `DATA=END`"));
        };
        let bytes = match self.notation {
            Notation::Print => printed(written),
            Notation::ByteValue => written.chunks(2).map(byte).collect(),
        };
        bytes.ok_or_else(|| {
            let wanted = match self.notation {
                Notation::Print => "`\\` without two hexadecimal digits behind it",
                Notation::ByteValue => "not an even number of hexadecimal digits",
            };
            self.text.failed(wanted)
        })
    }

    /// Moves to the next line of data.
    fn advance(&mut self) -> Result<(), Failure> {
        if self.text.advance()? {
            return Ok(());
        }
        Err(self.text.failed("no `DATA=END` follows: the dump is cut here"))
    }
}

/// Returns the byte that two hexadecimal digits mean.
fn byte(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    match pair {
        [high, low] => Some((digit(*high)? << 4 | digit(*low)?) as u8),
        _ => None,
    }
}

/// Returns the bytes that a line of the format `print` means. `\\` stands for `\` in dumps of older
/// versions of LMDB.
fn printed(written: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(written.len());
    let mut rest = written;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'\\' {
            bytes.push(*first);
        } else if let Some(behind) = behind.strip_prefix(b"\\") {
            bytes.push(b'\\');
            rest = behind;
        } else {
            let (pair, behind) = behind.split_at_checked(2)?;
            bytes.push(byte(pair)?);
            rest = behind;
        }
    }

    Some(bytes)
}

impl Input for Dump {
    fn next(&mut self) -> Result<Option<Entry>, Failure> {
        if self.is_done {
            return Ok(None);
        }

        self.advance()?;
        if self.text.line == b"DATA=END" {
            self.is_done = true;
            if self.text.advance()? {
                return Err(self.text.failed(
                    "a second database begins here; dump one of them with `mdb_dump -s NAME`",
                ));
            }
            return Ok(None);
        }

        let key = self.field()?;
        self.advance()?;
        if self.text.line == b"DATA=END" {
            return Err(self.text.failed("the last key has no value"));
        }

        Ok(Some(Entry { key, value: self.field()?, blob: None }))
    }

    fn place(&self) -> String {
        self.text.place()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_mean_bytes() {
        for (written, bytes) in [
            (&b""[..], Some(&b""[..])),
            (b"plain text", Some(b"plain text")),
            (b"\\00\\fF", Some(b"\x00\xFF")),
            (b"a\\5cb", Some(b"a\\b")),
            (b"a\\\\5c", Some(b"a\\5c")),
            (b"\\", None),
            (b"\\0", None),
            (b"\\0g", None),
            (b"\\+1", None),
        ] {
            assert_eq!(printed(written).as_deref(), bytes, "{}", written.escape_ascii());
        }
        assert_eq!(
            [byte(b"0a"), byte(b"F0"), byte(b"0"), byte(b"xx")],
            [Some(10), Some(240), None, None]
        );
    }
}
