//! Counts and sizes on the command line.

/// Parses a count: 10M, 500k, 1000.
///
/// # Errors
/// A sentence about what is wrong.
pub fn count(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        _ => (text, 1),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("{text}: not a count such as 10M or 500k"))?;
    let count = number
        .checked_mul(factor)
        .filter(|count| (1_000..=u64::from(u32::MAX) / 2).contains(count));
    count.ok_or_else(|| format!("{text}: at least 1000 and at most {}", u32::MAX / 2))
}

/// Parses a size: 256MiB, 1GiB; 64M is refused.
///
/// # Errors
/// A sentence about what is wrong.
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (digits, factor) = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))
        .unwrap_or((text, 1));
    let number: u64 = digits.parse().map_err(|_| format!("{text}: not a size such as 256MiB"))?;
    let size: Option<u64> = number.checked_mul(factor).filter(|size| *size >= 64 << 20);
    size.ok_or_else(|| format!("{text}: at least 64MiB"))
}

#[cfg(test)]
mod tests {
    use super::{bytes, count};

    #[test]
    fn counts_and_sizes() {
        assert_eq!(count("10M"), Ok(10_000_000));
        assert_eq!(count("500k"), Ok(500_000));
        assert_eq!(bytes("256MiB"), Ok(256 << 20));
        for wrong in ["", "M", "-1", "1.5M", "999", "9999999M"] {
            assert!(count(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "MiB", "64M", "1MiB", "99999999999GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
