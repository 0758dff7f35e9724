//! Keys and values as text: parsed from the command line, and printed so that the command line
//! takes them again.
//!
//! | written       | means                                       |
//! |---------------|---------------------------------------------|
//! | `hex:00ff`    | these bytes                                 |
//! | `@file`       | the content of the file                     |
//! | anything else | its own bytes, UTF-8 for text               |
//!
//! Invariant: the output of [`shown`] parses to the same bytes, on the command line and in a line
//! of fields.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use terrane::lsm::{BLOB_BYTES_MAX, VALUE_BYTES_MAX};

use crate::ui::exit::Failure;
use crate::ui::text::hex;

const HEX: &str = "hex:";
const FILE: &str = "@";

/// Separator of the fields of a line.
const SEPARATOR: char = '\t';

/// Maximum bytes of a file in place of a key, value or blob: the longest blob.
const FILE_BYTES_MAX: usize =
    if VALUE_BYTES_MAX > BLOB_BYTES_MAX { VALUE_BYTES_MAX } else { BLOB_BYTES_MAX };

/// Parses an argument into bytes.
///
/// # Errors
/// [`Failure`] for what is no hexadecimal number, and for a file that cannot be read or is too
/// long.
pub(crate) fn argument(text: &OsStr) -> Result<Vec<u8>, Failure> {
    let bytes = text.as_encoded_bytes();
    if bytes.starts_with(FILE.as_bytes()) {
        // The rest is valid UTF-8 if the whole argument is: `@` is one byte.
        let name = text.to_str().map(|text| &text[FILE.len()..]);
        let name =
            name.ok_or_else(|| Failure::usage("the name of a file after `@` is not UTF-8"))?;
        return content(Path::new(name));
    }
    field(bytes).map_err(Failure::usage)
}

fn content(path: &Path) -> Result<Vec<u8>, Failure> {
    let shown = path.display();
    let failed = |error: io::Error| {
        let message = format!("{shown}: {error}");
        match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidInput => Failure::usage(message),
            _ => Failure::of_system(&error, message),
        }
    };

    let mut bytes = Vec::new();
    let limit = FILE_BYTES_MAX as u64 + 1;
    File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(failed)?;

    if bytes.len() > FILE_BYTES_MAX {
        return Err(Failure::usage(format!("{shown}: more than {FILE_BYTES_MAX} bytes")));
    }

    Ok(bytes)
}

/// Parses a field of a line into bytes, like an argument, but `@` has no meaning.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn field(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let Some(digits) = bytes.strip_prefix(HEX.as_bytes()) else { return Ok(bytes.to_vec()) };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    });
    pairs.collect::<Option<_>>().ok_or_else(|| {
        let text = String::from_utf8_lossy(bytes);
        format!("`{text}` is not `{HEX}` and an even number of hexadecimal digits")
    })
}

/// Parses the fields of a line.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn fields(line: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    line.split(|byte| *byte == SEPARATOR as u8).map(field).collect()
}

/// Returns a line of fields.
pub(crate) fn line<'a>(fields: impl Iterator<Item = &'a [u8]>) -> String {
    fields.map(shown).collect::<Vec<_>>().join(&SEPARATOR.to_string())
}

/// Returns bytes as text if they are printable and unambiguous, otherwise in hexadecimal.
pub(crate) fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text)
            if !text.starts_with(HEX)
                && !text.starts_with(FILE)
                && text.chars().all(is_printable) =>
        {
            text.to_owned()
        }
        _ => format!("{HEX}{}", hex(bytes)),
    }
}

/// Returns whether a terminal shows `character` by itself: no control, no change of direction, no
/// accent on the previous character.
fn is_printable(character: char) -> bool {
    matches!(character, '\'' | '"' | '\\') || character.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_as_the_same_bytes() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"alice", "alice"),
            ("naïve 日本".as_bytes(), "naïve 日本"),
            (b"it's \"\\", "it's \"\\"),
            (b"a\tb", "hex:610962"),
            (b"a\n", "hex:610a"),
            (&[0xFF, 0], "hex:ff00"),
            (b"hex:00", "hex:6865783a3030"),
            (b"@alice", "hex:40616c696365"),
            ("\u{202E}x".as_bytes(), "hex:e280ae78"),
            ("e\u{301}".as_bytes(), "hex:65cc81"),
        ] {
            assert_eq!(shown(bytes), text);
            assert_eq!(argument(OsStr::new(text)).unwrap(), bytes, "{text}");
            assert_eq!(fields(text.as_bytes()), Ok(vec![bytes.to_vec()]));
        }
    }

    #[test]
    fn every_byte_comes_back_from_a_line() {
        for byte in 0..=u8::MAX {
            let fields_in = [vec![byte], Vec::new(), vec![b'x', byte]];
            let text = line(fields_in.iter().map(Vec::as_slice));
            assert!(!text.contains('\n'));
            assert_eq!(fields(text.as_bytes()).unwrap(), fields_in, "{text}");
        }
    }

    #[test]
    fn hexadecimal_numbers_are_pairs_of_digits() {
        assert_eq!(argument(OsStr::new("hex:")).unwrap(), b"");
        assert_eq!(argument(OsStr::new("hex:aB00")).unwrap(), [0xAB, 0]);
        for text in ["hex:0", "hex:0g", "hex:+1", "hex: 00"] {
            let failure = argument(OsStr::new(text)).unwrap_err();
            assert!(failure.message().contains(text) && failure.code() == 2, "{failure:?}");
        }
        // Other spellings of `hex:` are text.
        assert_eq!(argument(OsStr::new("0x00")).unwrap(), b"0x00");
    }
}
