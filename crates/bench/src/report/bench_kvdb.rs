//! Logs of the published benchmark `bench_kvdb`, read as results.
//!
//! A log is the text that one run printed: parameters, statistics of the cache after the warm-up,
//! the rate, counters of the measured reads, the state of the database, and the statistics again,
//! warm-up included. What a GET cost is computed anew from the counters; a log whose printed figure
//! differs by more than 0.00005 is refused.
//!
//! * Invariant: the figures by class are differences of the two tables of statistics, so they are
//!   of the measured reads alone.
//! * The size of the cache stands in the name of a log and nowhere in it.
//! * A line that is not mandatory is passed over. A mandatory line that is missing, or has another
//!   form, is an error that names line and file.

use serde::Serialize;

/// Largest difference between the printed figure and that of the counters.
const PRINTED_TOLERANCE: f64 = 0.000_05;

/// Bytes of the logs' megabyte.
const CACHE_UNIT: u64 = 1 << 20;

/// Classes of lookups, by the last part of the caller's name.
const CLASSES: [&str; 5] = ["readFilter", "readIndex", "readMetaindex", "loadBlock", "loadIndex"];

/// Reason why a log is not one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A mandatory line is not there.
    #[error("{file}: no line `{line}`")]
    Missing {
        /// The log.
        file: String,
        /// Form of the line.
        line: &'static str,
    },
    /// The printed reads per GET are not those of the counters.
    #[error("{file}: {printed} reads per GET are printed, and the counters say {counted:.6}")]
    Differs {
        /// The log.
        file: String,
        /// Printed figure.
        printed: f64,
        /// Figure by the counters.
        counted: f64,
    },
    /// A counter of the end is below that after the warm-up.
    #[error("{file}: the counters of {class} fall")]
    Falls {
        /// The log.
        file: String,
        /// The class.
        class: &'static str,
    },
    /// Neither the name nor the caller says the size of the cache.
    #[error(
        "{file}: the name is not RadmonRead_<entries>_<size>M.log, which says the size of the cache; \
         give it with --cache-mb"
    )]
    CacheSize {
        /// The log.
        file: String,
    },
}

/// Lookups of one class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Class {
    /// Lookups of the cache.
    pub lookups: u64,
    /// Lookups that the cache answered.
    pub hits: u64,
    /// Reads.
    pub requests: u64,
    /// Lookups for each GET.
    pub lookups_per_get: f64,
}

/// Lookups by class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Classes {
    /// Filters.
    pub filter: Class,
    /// Upper part of the two-level index.
    pub top_index: Class,
    /// Blocks that name other blocks of a table.
    pub meta: Class,
    /// Blocks of entries.
    pub data: Class,
    /// Blocks of the index.
    pub index: Class,
}

/// A published result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Imported {
    /// Name of the log.
    pub file: String,
    /// Always `imported`.
    pub source: &'static str,
    /// Always `engine`: what the engine asked for, of the page cache or of a device.
    pub io_layer: &'static str,
    /// Always false: the page cache was free to use all memory.
    pub memory_enforced: bool,
    /// Entries of the database.
    pub entries: u64,
    /// Bytes of the block cache.
    pub cache_bytes: u64,
    /// Threads that read.
    pub threads: u64,
    /// Measured GETs.
    pub ops: u64,
    /// Time of the GETs.
    pub measured_s: f64,
    /// GETs in a second, as printed.
    pub ops_per_s: f64,
    /// Reads for each GET, by the counters, to four digits.
    pub io_per_get: f64,
    /// Lookups of the block cache for each GET.
    pub block_lookups_per_get: f64,
    /// Lookups by class, without the warm-up.
    pub classes: Classes,
}

/// A log with its name, for messages.
struct Log<'a> {
    file: &'a str,
    text: &'a str,
}

impl<'a> Log<'a> {
    /// Returns what follows `start` in the first line that begins so.
    fn line(&self, start: &'static str) -> Result<&'a str, Error> {
        let found = self.text.lines().find_map(|line| line.strip_prefix(start));
        found.ok_or_else(|| self.missing(start))
    }

    fn missing(&self, line: &'static str) -> Error {
        Error::Missing { file: self.file.to_owned(), line }
    }

    /// Returns the two numbers of a line of counters.
    fn counters(&self, start: &'static str) -> Result<[u64; 2], Error> {
        let line = self.line(start)?;
        let numbers = line.strip_prefix(" Hit Count ").and_then(|line| {
            let (hits, misses) = line.split_once("; Miss Count: ")?;
            Some([hits.parse().ok()?, misses.trim_end().parse().ok()?])
        });
        numbers.ok_or_else(|| self.missing(start))
    }

    /// Returns hits and misses of each class, in the first table of statistics of `text`.
    fn statistics(&self, text: &str) -> Result<[[u64; 2]; 5], Error> {
        let line = "Cache Statistics:";
        let table = text.split_once(line).ok_or_else(|| self.missing(line))?.1;
        let mut found = [[0; 2]; 5];
        for (class, found) in CLASSES.into_iter().zip(&mut found) {
            let row = table.lines().find_map(|row| {
                let (name, numbers) = row.split_once('\t')?;
                if !name.ends_with(class) {
                    return None;
                }
                let mut numbers = numbers.split('\t').map(|number| number.trim().parse().ok());
                Some([numbers.next()??, numbers.next()??])
            });
            *found = row.ok_or_else(|| self.missing(class))?;
        }
        Ok(found)
    }
}

/// Reads the log `text` of the name `file`; `cache_mb` is the size of the cache if the name does
/// not say it.
///
/// # Errors
/// [`Error`].
pub fn import(file: &str, text: &str, cache_mb: Option<u64>) -> Result<Imported, Error> {
    let log = Log { file, text };
    let number = |line: &'static str| {
        let rest = log.line(line)?.trim();
        let digits = rest.split(' ').next().unwrap_or_default();
        digits.parse().map_err(|_| log.missing(line))
    };
    let threads = number("Threads: ")?;
    let entries = number("Total data: ")?;
    let cache_bytes = size_in_name(file)
        .or(cache_mb)
        .and_then(|mb| mb.checked_mul(CACHE_UNIT))
        .ok_or_else(|| Error::CacheSize { file: file.to_owned() })?;

    let (ops, measured_s, ops_per_s) = rate(&log)?;
    // Filters are blocks of the same cache, so their misses are among those of the blocks.
    log.counters("Filter:")?;
    let [block_hits, block_misses] = log.counters("BlockCache:")?;
    let [_, table_misses] = log.counters("TableCache:")?;
    let counted = block_misses.saturating_add(table_misses) as f64 / ops as f64;
    let printed = printed(&log)?;
    if (printed - counted).abs() > PRINTED_TOLERANCE {
        return Err(Error::Differs { file: file.to_owned(), printed, counted });
    }

    Ok(Imported {
        file: file.to_owned(),
        source: "imported",
        io_layer: "engine",
        memory_enforced: false,
        entries,
        cache_bytes,
        threads,
        ops,
        measured_s,
        ops_per_s,
        io_per_get: (counted * 1e4).round() / 1e4,
        block_lookups_per_get: block_hits.saturating_add(block_misses) as f64 / ops as f64,
        classes: classes(&log, ops)?,
    })
}

/// Returns the megabytes in a name such as `RadmonRead_200M_45M.log`.
fn size_in_name(file: &str) -> Option<u64> {
    let name = file.strip_prefix("RadmonRead_")?.strip_suffix("M.log")?;
    name.split_once('_')?.1.parse().ok()
}

/// Returns operations, seconds and rate of the measured reads.
fn rate(log: &Log<'_>) -> Result<(u64, f64, f64), Error> {
    const LINE: &str = "Random read: ";
    let parse = |line: &str| {
        let (ops, rest) = line.split_once(" ops in ")?;
        let (ms, rest) = rest.split_once(" ms (")?;
        let rate = rest.split_once(" ops/s)")?.0;
        let (ms, rate): (f64, f64) = (ms.parse().ok()?, rate.parse().ok()?);
        let ops = ops.parse().ok().filter(|&ops| 0 < ops)?;
        (ms.is_finite() && rate.is_finite()).then_some((ops, ms / 1e3, rate))
    };
    parse(log.line(LINE)?).ok_or_else(|| log.missing(LINE))
}

/// Returns the printed reads per GET.
fn printed(log: &Log<'_>) -> Result<f64, Error> {
    const LINE: &str = "Avg I/O per Get";
    let rest = log.line(LINE)?;
    let figure = rest.rsplit(' ').next().and_then(|figure| figure.trim().parse().ok());
    figure.filter(|figure: &f64| figure.is_finite()).ok_or_else(|| log.missing(LINE))
}

fn classes(log: &Log<'_>, ops: u64) -> Result<Classes, Error> {
    const WARM_UP: &str = "========= Warn up done";
    let (warm_up, rest) = log.text.split_once(WARM_UP).ok_or_else(|| log.missing(WARM_UP))?;
    let [before, after] = [log.statistics(warm_up)?, log.statistics(rest)?];

    let mut found = [Class { lookups: 0, hits: 0, requests: 0, lookups_per_get: 0.0 }; 5];
    for (at, class) in CLASSES.into_iter().enumerate() {
        let difference = |kind: usize| {
            let falls = || Error::Falls { file: log.file.to_owned(), class };
            after[at][kind].checked_sub(before[at][kind]).ok_or_else(falls)
        };
        let (hits, requests) = (difference(0)?, difference(1)?);
        let lookups = hits.saturating_add(requests);
        let lookups_per_get = lookups as f64 / ops as f64;
        found[at] = Class { lookups, hits, requests, lookups_per_get };
    }

    let [filter, top_index, meta, data, index] = found;
    Ok(Classes { filter, top_index, meta, data, index })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of the published form, with counters of our own: 1,000 GETs of which each reads 1.25
    /// blocks.
    fn log() -> String {
        let table = |factor: u64| {
            let row = |name: &str, hits: u64, misses: u64| {
                let (hits, misses) = (hits * factor, misses * factor);
                format!(
                    "example.com/db.(*Reader).{name}\t{hits}\t{misses}\t{}\t0.50\n",
                    hits + misses
                )
            };
            let rows = [
                row("readFilter", 2_000, 10),
                row("readIndex", 3_000, 20),
                row("readMetaindex", 0, 5),
                row("loadBlock", 10, 1_000),
                row("loadIndex", 800, 215),
            ];
            let rule = "-".repeat(20);
            format!(
                "\nCache Statistics:\n{rule}\nCaller\t\tHits\tMisses\tCalls\tHitRate\n{}",
                rows.concat()
            )
        };
        format!(
            "Threads: 64\nTotal data: 200000000 while needInit=false\n\
             Ops: 0 write ops and 1000 read ops\n{}========= Warn up done ===============\n\
             Random read: 1000 ops in 500.00 ms (2000.00 ops/s)\n\
             Filter: Hit Count 1500; Miss Count: 500\n\
             BlockCache: Hit Count 5810; Miss Count: 1250\n\
             TableCache: Hit Count 4000; Miss Count: 0\n\
             Avg I/O per Get \u{2248} 1.2500\nDB State \n level | anything\n{}",
            table(1),
            table(2)
        )
    }

    const NAME: &str = "RadmonRead_200M_45M.log";

    #[test]
    fn a_log_becomes_a_result() {
        let found = import(NAME, &log(), None).unwrap();
        assert_eq!((found.entries, found.threads, found.ops), (200_000_000, 64, 1_000));
        assert_eq!(found.cache_bytes, 45 << 20);
        assert_eq!(found.io_per_get.to_string(), "1.25");
        assert_eq!(
            (found.measured_s.to_string(), found.ops_per_s.to_string()),
            ("0.5".into(), "2000".into())
        );
        assert_eq!(found.block_lookups_per_get.to_string(), "7.06");
        assert_eq!((found.classes.data.requests, found.classes.index.requests), (1_000, 215));
        assert_eq!((found.classes.filter.hits, found.classes.meta.lookups), (2_000, 5));
        assert_eq!(
            (found.source, found.io_layer, found.memory_enforced),
            ("imported", "engine", false)
        );
    }

    #[test]
    fn the_size_of_the_cache_is_that_of_the_name_or_of_the_caller() {
        assert_eq!(import("a.log", &log(), Some(7)).unwrap().cache_bytes, 7 << 20);
        assert_eq!(import(NAME, &log(), Some(7)).unwrap().cache_bytes, 45 << 20);
        for name in ["a.log", "RadmonRead_200M_M.log", "RadmonRead_45M.log", "RadmonRead_2B_4G.log"]
        {
            let error = import(name, &log(), None).unwrap_err();
            assert_eq!(error, Error::CacheSize { file: name.to_owned() });
        }
        assert!(import("a.log", &log(), Some(u64::MAX)).is_err());
    }

    #[test]
    fn a_figure_that_the_counters_do_not_give_is_refused() {
        let figure = |figure: &str| import(NAME, &log().replace("1.2500", figure), None);
        assert!(figure("1.25004").is_ok());
        assert!(matches!(figure("1.2501").unwrap_err(), Error::Differs { .. }));
        for text in ["x", "NaN", "inf"] {
            assert!(matches!(figure(text).unwrap_err(), Error::Missing { .. }), "{text}");
        }
    }

    #[test]
    fn every_mandatory_line_is_named_when_it_is_missing() {
        for line in [
            "Threads:",
            "Total data:",
            "Random read:",
            "Filter:",
            "BlockCache:",
            "TableCache:",
            "Avg I/O",
            "Warn up done",
            "readFilter",
            "readIndex",
            "readMetaindex",
            "loadBlock",
            "loadIndex",
            "Cache Statistics",
        ] {
            let whole = log();
            let kept: String =
                whole.split_inclusive('\n').filter(|text| !text.contains(line)).collect();
            let error = import(NAME, &kept, None).unwrap_err().to_string();
            assert!(error.starts_with(NAME), "{line}: {error}");
        }
        // Unknown lines are passed over.
        assert!(import(NAME, &format!("{}\nmore\n", log()), None).is_ok());
        let falls = log().replace("loadBlock\t20\t2000", "loadBlock\t9\t2000");
        assert!(matches!(
            import(NAME, &falls, None).unwrap_err(),
            Error::Falls { class: "loadBlock", .. }
        ));
    }

    /// No bytes make the importer panic: each line of a log is cut, doubled and filled with digits.
    #[test]
    fn damaged_logs_are_refused_without_a_panic() {
        let log = log();
        for (at, _) in log.char_indices() {
            let _ = import(NAME, &log[..at], None);
        }
        for digit in ["", "-1", "99999999999999999999", "1.5", "NaN"] {
            let _ = import(NAME, &log.replace("1000", digit), None);
        }
    }
}
