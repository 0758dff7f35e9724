//! Corruption of stored bytes: the one error that every decoder of this crate returns.

/// Place and kind of a violation of the format in stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("page {page}: {rule}: expected {expected}, found {found}")]
pub struct Corrupt {
    /// The 4 KiB page of the file, counted from 0; 0 for a part that is not stored in pages.
    pub page: u32,
    /// The line of the format document that is broken.
    pub rule: &'static str,
    /// Value that the rule asks for.
    pub expected: u64,
    /// Value that stands in the bytes.
    pub found: u64,
}

impl Corrupt {
    /// Builds the error for a part that is not stored in pages, or whose page the caller fills in.
    pub(crate) fn rule(rule: &'static str, expected: u64, found: u64) -> Self {
        Self { page: 0, rule, expected, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_page_rule_and_both_values() {
        let corrupt = Corrupt { page: 0, rule: "entry_count", expected: 1362, found: 9000 };
        assert_eq!(
            Corrupt { page: 7, ..corrupt }.to_string(),
            "page 7: entry_count: expected 1362, found 9000"
        );
    }
}
