//! Numbers, times, bytes and tables as text for people.

use std::fmt::Write as _;

pub(crate) use terrane_bench::report::text::grouped;

/// Returns a number of things: `1 run`, `2 runs`.
pub(crate) fn count_of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { many })
}

/// Returns a time, in nanoseconds since the Unix epoch, by RFC 3339 in UTC and to the second.
pub(crate) fn time(ns: u64) -> String {
    const DAY_S: u64 = 86_400;
    let seconds = ns / 1_000_000_000;
    let days = seconds / DAY_S;
    let in_day = seconds % DAY_S;

    // Years begin with March, so that the leap day is the last day of a year. An era of 400 years
    // always has the same number of days.
    let days = days + 719_468;
    let era = days / 146_097;
    let in_era = days % 146_097;
    let year_in_era = (in_era - in_era / 1_460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year_in_era + year_in_era / 4 - year_in_era / 100);
    let month_from_march = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_in_era + u64::from(month <= 2);
    let hour = in_day / 3600;
    let minute = in_day / 60 % 60;
    let second = in_day % 60;

    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns bytes in lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the first `shown_max` bytes: as quoted text if all are printable ASCII, otherwise in
/// hexadecimal.
pub(crate) fn shown(bytes: &[u8], shown_max: usize) -> String {
    let part = bytes.get(..shown_max).unwrap_or(bytes);
    let more = if part.len() < bytes.len() { "…" } else { "" };
    let printable = |byte: &u8| byte.is_ascii_graphic() || *byte == b' ';
    match std::str::from_utf8(part) {
        Ok(text) if part.iter().all(printable) => format!("\"{text}\"{more}"),
        _ => format!("{}{more}", hex(part)),
    }
}

/// Returns a hex dump: sixteen bytes a line, with offsets and printable characters. Zeros at the
/// end are only counted.
pub(crate) fn dump(bytes: &[u8]) -> String {
    let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let mut text = String::new();
    for (line, part) in bytes[..used].chunks(16).enumerate() {
        let printed: String = part
            .iter()
            .map(|&byte| if byte.is_ascii_graphic() { char::from(byte) } else { '.' })
            .collect();
        let _ = writeln!(text, "{:04x}  {:32}  {printed}", line * 16, hex(part));
    }
    let _ = write!(text, "zeros at the end: {}", bytes.len() - used);
    text
}

/// Returns a table whose first row names the columns. The first `left` columns are aligned to the
/// left, the numbers behind them to the right.
pub(crate) fn table(left: usize, rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let width = |column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column < left { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns names and values, one pair on each line.
pub(crate) fn lines(lines: &[(&str, String)]) -> String {
    let row = |(name, value): &(&str, String)| vec![(*name).to_owned(), value.clone()];
    table(2, &lines.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(time(seconds * 1_000_000_000 + 7), text);
        }
        assert_eq!(time(u64::MAX), "2554-07-21T23:34:33Z");
    }

    #[test]
    fn things_are_counted_in_their_number() {
        assert_eq!(count_of(1, "run", "runs"), "1 run");
        assert_eq!(count_of(2000, "run", "runs"), "2,000 runs");
    }

    #[test]
    fn bytes_are_text_where_they_can_be() {
        assert_eq!(shown(b"tip 7", 64), "\"tip 7\"");
        assert_eq!(shown(b"tip 7", 3), "\"tip\"…");
        assert_eq!(shown(&[0x74, 0], 64), "7400");
        assert_eq!(shown(&[0xC3, 0xA9], 64), "c3a9");
        assert_eq!(shown(b"", 64), "\"\"");
        assert_eq!(dump(&[0; 5]), "zeros at the end: 5");
        let line = "0000  4100ff                            A..\nzeros at the end: 2";
        assert_eq!(dump(&[0x41, 0, 0xFF, 0, 0]), line);
    }

    #[test]
    fn columns_of_a_table_are_aligned() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let rows = [row(["NAME", "BYTES"]), row(["a", "7"]), row(["longer", ""])];
        assert_eq!(table(1, &rows), "NAME    BYTES\na           7\nlonger");
    }
}
