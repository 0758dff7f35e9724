//! Tables of a folder of results: a row for each engine, medians over the rounds with their range.

use std::io::Write as _;
use std::path::Path;

use serde_json::Value;
use terrane_bench::report::rivals::Comparison;

use crate::engine::{Error, Result};

/// Prints the tables of `results.json` in `out`, as Markdown.
///
/// # Errors
/// [`Error::Options`] if it is missing or damaged.
pub fn print(out: &Path) -> Result<()> {
    let path = out.join("results.json");
    let text = std::fs::read(&path)
        .map_err(|source| Error::System { what: format!("read {}", path.display()), source })?;
    let results: Value = serde_json::from_slice(&text)
        .map_err(|error| Error::Options(format!("{}: {error}", path.display())))?;
    std::io::stdout()
        .write_all(Comparison::of([&results]).markdown().as_bytes())
        .map_err(|source| Error::System { what: "write to standard output".to_owned(), source })
}
