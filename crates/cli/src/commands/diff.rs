//! `terrane diff`: the entries that differ between two states of a store.
//!
//! # JSON
//!
//! `older`, `newer` (as they were given), `added`, `removed`, `changed` (keys), and without
//! `--summary` also `changes`: list of `key`, `old`, `new`. `old` and `new` are null for an absent
//! key, else have `value` and `blob` (null for none), in the format of `terrane scan`. With
//! `--json-lines` each change is an object on a line of its own, before the object of the report.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use terrane::lsm::{BlobRef, Change, Lookup, Session, SnapshotName, StoreReader, Table, TableName};

use crate::stores::open::open_to_read;
use crate::stores::source::{MAIN_TABLE, open_snapshot};
use crate::stores::version_ref::{VersionRef, snapshot_name, which};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::literal;
use crate::ui::output;
use crate::ui::text::grouped;

pub(crate) const EXAMPLES: &str = "\
Examples:
  The changes of the table main since a retained version:
    terrane diff 1024 now --store /data/ledger
  Between two versions, of another table:
    terrane diff before-upgrade after-upgrade --store /data/ledger \\
      --table accounts
  Between two snapshots, or a snapshot and a table:
    terrane diff snapshot:monday snapshot:tuesday --store /data/ledger
    terrane diff snapshot:monday table:accounts --store /data/ledger
  For a program, however many changes there are:
    terrane diff 1024 now --store /data/ledger --json-lines

Each state is `now`, the number or the name of a retained version, `version:NAME`, \
`snapshot:NAME` or `table:NAME`. Lines with `-` have an entry of the older state, lines with `+` \
an entry of the newer one: key, value and perhaps blob, separated by tabs. A changed entry has \
both. States that share files are compared without reading the shared files.";

/// Maximum bytes of the keys and values in one JSON object: the object is held in memory.
const OBJECT_BYTES_MAX: u64 = 64 << 20;

/// State of a table.
#[derive(Debug, Clone)]
enum State {
    Now,
    Version(VersionRef),
    Snapshot(SnapshotName),
    Table(TableName),
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "now" => Ok(Self::Now),
            None => which(text).map(Self::Version),
            Some(("version", version)) => which(version).map(Self::Version),
            Some(("snapshot", name)) => snapshot_name(name).map(Self::Snapshot),
            Some(("table", name)) => args::table_name(name).map(Self::Table),
            Some(_) => {
                Err("not now, VERSION, version:NAME, snapshot:NAME or table:NAME".to_owned())
            }
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Diff {
    /// Older state: `now`, VERSION, `snapshot:NAME` or `table:NAME`
    #[arg(value_name = "A")]
    older: String,
    /// Newer state
    #[arg(value_name = "B")]
    newer: String,
    /// Directory of the store
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Name of the table of `now` and of versions
    #[arg(long, value_name = "NAME", default_value = MAIN_TABLE, value_parser = args::table_name)]
    table: TableName,
    /// Counts the changes and prints none
    #[arg(long, conflicts_with = "json_lines")]
    summary: bool,
    /// Prints each change as one JSON object on a line, and one object about the diff at the end
    #[arg(long, conflicts_with = "json")]
    json_lines: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Entry of a state.
#[derive(Serialize)]
struct Entry {
    value: String,
    blob: Option<String>,
}

/// Key whose entries differ.
#[derive(Serialize)]
struct ChangedKey {
    key: String,
    old: Option<Entry>,
    new: Option<Entry>,
}

#[derive(Serialize)]
struct Report<'a> {
    older: &'a str,
    newer: &'a str,
    added: u64,
    removed: u64,
    changed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Vec<ChangedKey>>,
}

/// Entry of a state, as bytes.
struct Stored {
    value: Vec<u8>,
    blob: Option<Vec<u8>>,
}

impl Stored {
    /// Reads an entry of a change, with its blob; returns `None` for an absent key.
    fn read(session: &Session, lookup: &Lookup) -> Result<Option<Self>, Failure> {
        let Some(value) = lookup.value() else { return Ok(None) };
        let blob = match lookup.blob() {
            Some(blob) => session.retrieve_blobs(&[BlobRef::clone(blob)])?.pop(),
            None => None,
        };
        Ok(Some(Self { value: value.to_vec(), blob }))
    }

    fn bytes(&self) -> u64 {
        (self.value.len() + self.blob.as_ref().map_or(0, Vec::len)) as u64
    }

    fn line(&self, sign: &str, key: &[u8]) -> String {
        let fields = [key, &self.value].into_iter().chain(self.blob.as_deref());
        format!("{sign}\t{}", literal::line(fields))
    }

    fn entry(&self) -> Entry {
        let blob = self.blob.as_deref().map(literal::shown);
        Entry { value: literal::shown(&self.value), blob }
    }
}

impl Diff {
    /// Returns whether the report is JSON although `--json` is not given.
    pub(crate) fn is_json_lines(&self) -> bool {
        self.json_lines
    }

    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        if self.output.json && self.json_lines {
            return Err(Failure::arguments("--json-lines and --json exclude each other"));
        }

        let [older, newer] = [&self.older, &self.newer].map(|text| {
            State::from_str(text).map_err(|why| Failure::arguments(format!("`{text}`: {why}")))
        });
        let (older, newer) = (older?, newer?);
        let reader = open_to_read(&self.store)?;
        let older = self.open(&reader, &older)?;
        let newer = self.open(&reader, &newer)?;

        let report = self.compare(&reader, &older, &newer)?;
        if self.output.json || self.json_lines {
            return output::report("diff", true, &report, &[]).map(|()| 0);
        }
        if !self.summary {
            return Ok(0);
        }

        let lines = [
            ("added", grouped(report.added)),
            ("removed", grouped(report.removed)),
            ("changed", grouped(report.changed)),
        ];

        output::report("diff", false, &report, &lines).map(|()| 0)
    }

    fn open(&self, reader: &StoreReader, state: &State) -> Result<Arc<Table>, Failure> {
        Ok(match state {
            State::Now => reader.table(&self.table)?,
            State::Version(version) => version.open(reader)?.table(&self.table)?,
            State::Snapshot(name) => Arc::new(open_snapshot(reader, name)?),
            State::Table(name) => reader.table(name)?,
        })
    }

    /// Prints the changes, or keeps them for the one object, and counts them.
    fn compare(
        &self,
        reader: &StoreReader,
        older: &Table,
        newer: &Table,
    ) -> Result<Report<'_>, Failure> {
        let mut out = output::Lines::default();
        let mut changes = (self.output.json && !self.summary).then(Vec::new);
        let mut report = Report {
            older: &self.older,
            newer: &self.newer,
            added: 0,
            removed: 0,
            changed: 0,
            changes: None,
        };

        let mut kept_bytes = 0;
        for change in older.diff(newer)? {
            let change = change?;
            match (change.old.is_found(), change.new.is_found()) {
                (false, _) => report.added += 1,
                (true, false) => report.removed += 1,
                (true, true) => report.changed += 1,
            }
            if self.summary {
                continue;
            }

            let old = Stored::read(reader.session(), &change.old)?;
            let new = Stored::read(reader.session(), &change.new)?;
            if let Some(changes) = &mut changes {
                let entries = old.iter().chain(&new).map(Stored::bytes).sum::<u64>();
                kept_bytes += entries + change.key.len() as u64;
                if OBJECT_BYTES_MAX < kept_bytes {
                    return Err(Failure::arguments(format!(
                        "more than {} of changes are too many for one JSON object; next: \
                         --json-lines, or --summary",
                        output::bytes(OBJECT_BYTES_MAX)
                    )));
                }
                changes.push(changed_key(&change, old.as_ref(), new.as_ref()));
            } else if !self.print(&mut out, &change, (old.as_ref(), new.as_ref()))? {
                return Ok(report);
            }
        }

        out.flush()?;
        report.changes = changes;

        Ok(report)
    }

    /// Prints a change; returns `false` if the reader of standard output went away.
    fn print(
        &self,
        out: &mut output::Lines,
        change: &Change,
        (old, new): (Option<&Stored>, Option<&Stored>),
    ) -> Result<bool, Failure> {
        if self.json_lines {
            let line = serde_json::to_string(&changed_key(change, old, new));
            return out.add(&line.map_err(|error| Failure::environment(error.to_string()))?);
        }
        for (sign, entry) in [("-", old), ("+", new)] {
            if let Some(entry) = entry
                && !out.add(&entry.line(sign, &change.key))?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn changed_key(change: &Change, old: Option<&Stored>, new: Option<&Stored>) -> ChangedKey {
    ChangedKey {
        key: literal::shown(&change.key),
        old: old.map(Stored::entry),
        new: new.map(Stored::entry),
    }
}
