//! The page of a store of tables: what `terrane inspect --html` writes.

use std::path::{Path, PathBuf};

use serde::Serialize;
use terrane::lsm::inspect::{SessionInfo, SnapshotInfo};
use terrane_bench::report::store_page::{Description, List, Shape, page};

use crate::stores::listed::Sums;
use crate::ui::exit::Failure;
use crate::ui::output::bytes;
use crate::ui::stream::Output;
use crate::ui::text::{grouped, lines, time};

/// Report of a page that was written.
#[derive(Serialize)]
pub(super) struct Written {
    html: PathBuf,
    html_bytes: usize,
    plots: usize,
}

impl Written {
    pub(super) fn text(&self) -> String {
        let size = bytes(self.html_bytes as u64);
        lines(&[("page", format!("{}, {size}, {} plots", self.html.display(), self.plots))])
    }
}

/// Writes the page of the store in `dir` to `html`. `report` stands in the page as raw data.
///
/// # Errors
/// [`Failure`]; a file of that name is as before then.
pub(super) fn write(
    html: &Path,
    dir: &Path,
    session: &SessionInfo,
    report: &impl Serialize,
) -> Result<Written, Failure> {
    if html == Path::new("-") {
        return Err(Failure::usage(
            "--html needs a file, since the report goes to standard output",
        ));
    }

    let out = Output::new(html, true, true)?;
    let failed = |error: String| Failure::environment(error);
    let description = Description {
        title: format!("Terrane: {}", dir.display()),
        facts: facts(session),
        shapes: shapes(session),
        lists: vec![tables(session), versions(session), snapshots(session)],
        command: format!("terrane inspect {} --html {}", dir.display(), html.display()),
        data: serde_json::to_value(report).map_err(|error| failed(error.to_string()))?,
    };
    let page = page(&description).map_err(|error| failed(error.to_string()))?;
    let made = page.html().map_err(|error| failed(error.to_string()))?;
    out.write(made.as_bytes())?;
    Ok(Written { html: html.to_owned(), html_bytes: made.len(), plots: page.plots() })
}

fn facts(session: &SessionInfo) -> Vec<(&'static str, String)> {
    let store = session.store.as_ref();
    let manifest = store.and_then(|store| store.manifest.as_ref());
    let log_bytes = store.map(|store| store.segments.iter().map(|log| log.bytes).sum::<u64>());
    let mut facts = vec![
        ("format version", session.metadata.version.to_string()),
        ("created", time(session.metadata.created_ns)),
        ("run files", grouped(session.run_files)),
        ("of them in no snapshot and no table", grouped(session.run_files_unreferenced)),
        ("bytes of runs", bytes(session.run_bytes)),
        ("snapshots", grouped(session.snapshots.len() as u64)),
    ];
    if let Some(manifest) = manifest {
        facts.push(("named tables", grouped(manifest.tables.len() as u64)));
        facts.push(("versions", grouped(manifest.versions.len() as u64)));
        facts.push(("checkpointed commit", grouped(manifest.commit)));
    }
    if let Some(log_bytes) = log_bytes {
        facts.push(("bytes of the log", bytes(log_bytes)));
    }
    if let Some(reserve) = session.reserve {
        let given = if reserve.is_held { "" } else { ", given up because the disk was full" };
        facts.push(("reserve", format!("{}{given}", bytes(reserve.bytes))));
    }
    facts
}

/// Runs of all tables and snapshots that can be read.
fn shapes(session: &SessionInfo) -> Vec<Shape<'_>> {
    let manifest = session.store.as_ref().and_then(|store| store.manifest.as_ref());
    let tables = manifest.into_iter().flat_map(|manifest| &manifest.tables);
    let tables = tables.filter_map(|table| {
        let info = table.shape.as_ref().ok()?;
        Some(Shape { name: table.name.clone(), info })
    });
    let snapshots = session.snapshots.iter().filter_map(|(name, info)| {
        let info = info.as_ref().ok()?;
        Some(Shape { name: format!("snapshot {name}"), info })
    });
    tables.chain(snapshots).collect()
}

/// Cells that tables and snapshots have in common.
fn sums(info: &SnapshotInfo) -> Vec<String> {
    let sums = Sums::of(info);
    let counts = [info.levels.len() as u64, sums.runs, sums.entries, sums.tombstones].map(grouped);
    let sizes = [sums.bytes, sums.merge_debt_bytes].map(bytes);
    counts.into_iter().chain(sizes).collect()
}

/// Heads of [`sums`].
const SUMS: [&str; 6] = ["levels", "runs", "stored entries", "tombstones", "bytes", "merge debt"];

fn list(title: &str, head: &[&str], rows: Vec<Vec<String>>) -> List {
    let head = head.iter().map(|name| (*name).to_owned()).collect();
    List { title: title.to_owned(), head, rows }
}

fn tables(session: &SessionInfo) -> List {
    let manifest = session.store.as_ref().and_then(|store| store.manifest.as_ref());
    let tables = manifest.into_iter().flat_map(|manifest| &manifest.tables);
    let row = |table: &terrane::lsm::inspect::NamedTableInfo| {
        let rest = match &table.shape {
            Ok(info) => sums(info),
            Err(damage) => vec![damage.clone()],
        };
        [vec![table.name.clone()], rest].concat()
    };
    list(
        "Named tables, as of the last checkpoint",
        &[&["table"], &SUMS[..]].concat(),
        tables.map(row).collect(),
    )
}

fn versions(session: &SessionInfo) -> List {
    let manifest = session.store.as_ref().and_then(|store| store.manifest.as_ref());
    let versions = manifest.into_iter().flat_map(|manifest| &manifest.versions);
    let row = |version: &terrane::lsm::VersionInfo| {
        let name = version.name.as_ref().map(ToString::to_string).unwrap_or_default();
        let tables: Vec<String> = version.tables.iter().map(ToString::to_string).collect();
        vec![version.number.to_string(), name, tables.join(", ")]
    };
    list("Retained versions", &["version", "name", "tables"], versions.map(row).collect())
}

fn snapshots(session: &SessionInfo) -> List {
    let row = |(name, info): &(String, Result<SnapshotInfo, terrane::lsm::Error>)| {
        let rest = match info {
            Ok(info) => [vec![time(info.created_ns), info.label.clone()], sums(info)].concat(),
            Err(error) => vec![error.to_string()],
        };
        [vec![name.clone()], rest].concat()
    };
    let head = [&["snapshot", "saved", "label"], &SUMS[..]].concat();
    list("Snapshots", &head, session.snapshots.iter().map(row).collect())
}
