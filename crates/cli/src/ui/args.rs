//! Options that commands share, and parsers of numbers and names on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use terrane::lsm::{
    CompressedLevels, Compression, RESERVE_BYTES_MAX, RESERVE_BYTES_MIN, TableName,
};

/// Defines an option's names on the command line, and the value that each stands for.
macro_rules! choices {
    (
        $(#[$about:meta])*
        $visible:vis enum $choice:ident => $type:ty {
            $($(#[$help:meta])* $name:ident => $value:expr,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
        $visible enum $choice {
            $($(#[$help])* $name,)+
        }

        impl From<$choice> for $type {
            fn from(choice: $choice) -> Self {
                match choice {
                    $($choice::$name => $value,)+
                }
            }
        }
    };
}

pub(crate) use choices;

/// Options of every command that prints a report.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArgs {
    /// Prints one JSON object to standard output at the end
    #[arg(long)]
    pub(crate) json: bool,
    /// Hides the progress bar
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// Options of every command on a store.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// Directory of the store
    #[arg(long, value_name = "DIR", required = false)]
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// Parses a count: `100_000`, `10k`, `10M`, `2G`. The letters are powers of a thousand.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn count(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((end, 'k' | 'K')) => (&text[..end], 1_000),
        Some((end, 'M')) => (&text[..end], 1_000_000),
        Some((end, 'G')) => (&text[..end], 1_000_000_000),
        _ => (text, 1),
    };

    let plain = digits.replace('_', "");
    let starts_with_digit = digits.starts_with(|first: char| first.is_ascii_digit());
    if !starts_with_digit || !plain.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a count; write 5000, 100_000, 10k or 10M".to_owned());
    }

    let number: Option<u64> = plain.parse().ok();

    number.and_then(|number| number.checked_mul(unit)).ok_or_else(|| "too large".to_owned())
}

/// Parses a count that is at least 1.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn positive_count(text: &str) -> Result<u64, String> {
    match count(text)? {
        0 => Err("must be at least 1".to_owned()),
        number => Ok(number),
    }
}

/// Parses permissions of files: three octal digits, or four of which the first is 0.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn mode(text: &str) -> Result<u32, String> {
    let is_octal =
        matches!(text.len(), 3 | 4) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    match u32::from_str_radix(text, 8) {
        Ok(mode) if is_octal && mode <= 0o777 && mode & 0o600 == 0o600 => Ok(mode),
        _ => Err("not permissions that let the owner read and write; write 0640 or 600".to_owned()),
    }
}

/// Parses a number of bytes: `4096`, `4KiB`, `256MiB`, `1GB`. Units with an `i` are powers of 1024,
/// the others powers of 1000.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err("not a size; write 4096, 4KiB, 256MiB or 1GB".to_owned()),
    };

    let number =
        count(digits).map_err(|_| "not a size; write 4096, 4KiB, 256MiB or 1GB".to_owned())?;

    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

/// Parses a number of bytes that is at least 1.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn positive_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("must be at least 1".to_owned()),
        bytes => Ok(bytes),
    }
}

/// Parses a time in seconds, from a millisecond to a day: `1`, `0.5`.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: Option<f64> = text.parse().ok().filter(|_| is_plain);
    match number {
        Some(seconds) if (0.001..=86_400.0).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err("not seconds from 0.001 to 86400; write 1 or 0.5".to_owned()),
    }
}

/// Parses a share of a whole: `0.2%` or `0.002`.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn ratio(text: &str) -> Result<f64, String> {
    let (digits, unit) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits, 100.0));
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: Option<f64> = digits.parse().ok().filter(|_| is_plain);
    number.map(|number| number / unit).ok_or_else(|| "not a share; write 0.2% or 0.002".to_owned())
}

/// Parses the size of a reserve.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn reserve(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes @ (0 | RESERVE_BYTES_MIN..=RESERVE_BYTES_MAX) => Ok(bytes),
        _ => Err("must be 0, or 64KiB to 1TiB".to_owned()),
    }
}

/// Parses a compression of pages.
pub(crate) fn compression(text: &str) -> Result<Compression, String> {
    Compression::by_name(text).ok_or_else(|| "write none, lz4 or zstd".to_owned())
}

/// Parses the levels that are compressed.
pub(crate) fn compressed_levels(text: &str) -> Result<CompressedLevels, String> {
    CompressedLevels::by_name(text).ok_or_else(|| "write the number of a level or last".to_owned())
}

/// Parses the name of a table.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn table_name(text: &str) -> Result<TableName, String> {
    TableName::new(text)
        .map_err(|_| "1 to 64 characters of a-z, 0-9, `_`, `-`, no device name".to_owned())
}

/// Parses the height of a block.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn height(text: &str) -> Result<u32, String> {
    u32::try_from(count(text)?).map_err(|_| "too large for a height".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_take_underscores_and_units() {
        for (text, number) in [
            ("0", 0),
            ("100_000", 100_000),
            ("10k", 10_000),
            ("10M", 10_000_000),
            ("2G", 2_000_000_000),
        ] {
            assert_eq!(count(text), Ok(number), "{text}");
        }

        for text in ["", "M", "-1", "+1", "1.5", "1 000", "_1", "1MB", "99999999999999999999", "k"]
        {
            assert!(count(text).is_err(), "{text:?}");
        }

        assert!(count("18446744073709551615k").is_err());
        assert!(positive_count("0").is_err());
        assert!(height("4294967296").is_err());
    }

    #[test]
    fn permissions_are_octal_and_let_the_owner_work() {
        for (text, bits) in [("0640", 0o640), ("600", 0o600), ("0777", 0o777)] {
            assert_eq!(mode(text), Ok(bits), "{text}");
        }
        for text in
            ["", "6", "0o640", "640 ", "888", "1640", "00640", "0440", "040", "u=rw", "+640"]
        {
            assert!(mode(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn shares_are_per_cent_or_of_one() {
        for (text, share) in [("0.2%", 0.002), ("0.002", 0.002), ("100%", 1.0), ("0", 0.0)] {
            assert!((ratio(text).unwrap() - share).abs() < 1e-12, "{text}");
        }
        for text in ["", "%", "-1%", "1e3", "inf", "nan", "0,2%", "1 %", "."] {
            assert!(ratio(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn seconds_are_a_millisecond_to_a_day() {
        for (text, ms) in [("1", 1000), ("0.5", 500), ("0.001", 1), ("86400", 86_400_000)] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "0", "-1", "1s", "nan", "inf", "86401", "1e3", "."] {
            assert!(seconds(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn sizes_take_units_of_1024_and_of_1000() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4_096),
            ("100_000B", 100_000),
            ("4KiB", 4_096),
            ("256MiB", 256 << 20),
            ("1GB", 1_000_000_000),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }

        for (text, is_reserve) in [("0", true), ("63KiB", false), ("1TiB", true), ("2TiB", false)] {
            assert_eq!(reserve(text).is_ok(), is_reserve, "{text}");
        }

        for text in ["", "KiB", "1.5GB", "1 GB", "1gb", "4K", "1kMiB", "-1", "16777216TiB"] {
            assert!(size(text).is_err(), "{text:?}");
        }
    }
}
