//! Numbers as they are written on the command line.

/// Reads a count: `100_000`, `10k`, `10M`, `2G`; the letters stand for powers of a thousand.
///
/// # Errors
/// What is wrong, in words.
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

/// Reads a count that is at least 1.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn positive_count(text: &str) -> Result<u64, String> {
    match count(text)? {
        0 => Err("must be at least 1".to_owned()),
        number => Ok(number),
    }
}

/// Reads the height of a block.
///
/// # Errors
/// What is wrong, in words.
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
}
