//! `terrane get`, `put`, `delete`, `scan` and `count`: entries of a named table, or of a B+tree if
//! `--store` names its directory.
//!
//! The module `literal` parses and prints keys and values, so `put --input` reads the output of
//! `scan`.
//!
//! # JSON
//!
//! Keys, values and blobs are printable text as it is, or `hex:` and digits for other bytes.
//! `table` and `commit` are null for a B+tree. With `--snapshot`, `table` is null and `snapshot` of
//! `get`, `scan` and `count` is the name.
//!
//! | command | fields                                                                                     |
//! |---------|--------------------------------------------------------------------------------------------|
//! | `get`   | `table`, `entries`: list, in the order asked for, of `key`, `found`, and `value` and `blob`, which are null if there is none; `ok` is false, with exit code 1 and the kind `not_found`, if any key is absent |
//! | `put`   | `table`, `created` (whether the table was made), `entries` (how many were given), `commit` |
//! | `delete` | `table`, `deleted` and `absent` (of the keys given, each counted once; 0 for a range), `commit` (null if nothing was there to delete) |
//! | `scan`  | `table`, `count`, `entries`: list of `key`, `value`, `blob`; with `--json-lines` each entry is an object on a line of its own, before the object of the report, which has no `entries` |
//! | `count` | `table`, `count`                                                                           |

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use terrane::btree::{self, Index};
use terrane::lsm::{
    BLOB_BYTES_MAX, KEY_BYTES_MAX, NamedTable, SnapshotName, Store, TableConfig, TableName, Update,
    VALUE_BYTES_MAX,
};

use crate::commands::btree::{delete_range, open_if_index};
use crate::stores::open::{Opening, check_table, open_tables, open_tables_with};
use crate::stores::source::{KeyRange, MAIN_TABLE, Point, Source, StoredValue};
use crate::stores::version_ref::{VersionRef, snapshot_name, which};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::literal;
use crate::ui::output;
use crate::ui::text::{count_of, grouped};

/// Entries that a scan reads in one call.
const CHUNK: usize = 256;

/// Maximum bytes of the keys, values and blobs in one JSON object: a scan holds all of them.
const OBJECT_BYTES_MAX: u64 = 64 << 20;

pub(crate) const GET_EXAMPLES: &str = "\
Examples:
  terrane get alice --store /data/ledger
  terrane get alice hex:00ff --store /data/ledger --table accounts
  Bytes as they are:
    terrane get picture --store /data/ledger --raw > picture.png
  As of a retained version, or in a snapshot:
    terrane get alice --store /data/ledger --version 1024
    terrane get alice --store /data/ledger --snapshot monday
  An entry of a B+tree:
    terrane get hex:00ff --store /data/index

For one key, `get` prints its value. For several keys, it prints a line for each: key and value, \
separated by a tab. A blob is one more field. Printable text appears as it is, other bytes as \
`hex:` and digits. If a key is absent, standard error says so and the exit code is 1; the other \
keys are printed.";

pub(crate) const PUT_EXAMPLES: &str = "\
Examples:
  The first entry of a new store:
    terrane put alice 100 --store /data/ledger --create
  Several at once, all or none of them:
    terrane put alice 90 bob 10 --store /data/ledger
    terrane put hex:00ff @picture.png --store /data/ledger --table pictures
  The entries of another table:
    terrane scan --store /data/ledger | terrane put --input - \\
      --store /data/copy --create
  A store that keeps 256 MiB of the disk in reserve:
    terrane put alice 100 --store /data/ledger --create --reserve 256MiB
  An entry of a B+tree:
    terrane put hex:00ff 7 --store /data/index
  A key or a value that begins with `-`:
    terrane put --store /data/ledger -- balance -5

The entries are durable when the command ends with exit code 0. If the table or the store is \
missing, `put` refuses the entries, so that a misspelt name creates nothing. With --create it \
creates them with default options; `terrane table create` has others. When the disk is full and \
the store's reserve is in use, `put` is refused with exit code 3, and `terrane delete`, `terrane \
table delete` and `terrane snapshot delete` make room. The store remembers its reserve, which \
`terrane inspect` shows.";

pub(crate) const DELETE_EXAMPLES: &str = "\
Examples:
  terrane delete alice --store /data/ledger
  Several at once, all or none of them:
    terrane delete alice bob hex:00ff --store /data/ledger --table accounts
  All keys with a prefix, or from one key to before another:
    terrane delete --prefix account/ --store /data/ledger
    terrane delete --from hex:00 --to hex:80 --store /data/ledger

The deletions are durable when the command ends with exit code 0. Deleting an absent key is no \
error; the report counts the keys that were present. A range is deleted atomically. To remove all \
entries of a table, delete it: `terrane table delete`.";

pub(crate) const SCAN_EXAMPLES: &str = "\
Examples:
  terrane scan --store /data/ledger
  terrane scan --store /data/ledger --prefix account/ --limit 10
  The newest of some numbered keys:
    terrane scan --store /data/ledger --from hex:00 --to hex:80 --reverse \\
      --limit 1
  The entries of a snapshot, such as the state that a replay has left:
    terrane snapshot list --store /data/utxo
    terrane scan --store /data/utxo --snapshot utxo-0000000005-4999 --limit 3
  A large table for a program:
    terrane scan --store /data/ledger --json-lines

`scan` prints one line for each entry, in the byte order of the keys: key and value, separated by \
a tab, and the blob as a third field if there is one. Printable text appears as it is, other \
bytes as `hex:` and digits; `terrane put --input` reads these lines. With --json-lines each \
entry is one JSON object on a line, and the object about the scan stands on the last line; --json \
holds all entries in memory, and refuses more than 64 MiB of them. If another process has the store open, the entries are those of its \
last commit.";

pub(crate) const COUNT_EXAMPLES: &str = "\
Examples:
  terrane count --store /data/ledger
  terrane count --store /data/ledger --prefix account/

`count` reads every entry of the range; it estimates nothing. If another process has the store \
open, the entries are those of its last commit.";

/// Arguments that name a table.
#[derive(Debug, Args)]
pub(crate) struct TableArgs {
    /// Directory of the store, or of a B+tree
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Name of the table
    #[arg(long, value_name = "NAME", default_value = MAIN_TABLE, value_parser = args::table_name)]
    table: TableName,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments that name a point in time.
#[derive(Debug, Args)]
struct PointArgs {
    /// Number or name of the retained version to read; the present state if it is left out
    #[arg(long, alias = "at", value_name = "VERSION", value_parser = which)]
    version: Option<VersionRef>,
    /// Name of the snapshot to read, instead of a table
    #[arg(long, value_name = "NAME", value_parser = snapshot_name,
        conflicts_with_all = ["table", "version"])]
    snapshot: Option<SnapshotName>,
}

impl PointArgs {
    fn point(&self) -> Point<'_> {
        match (&self.snapshot, &self.version) {
            (Some(name), _) => Point::Snapshot(name),
            (None, Some(version)) => Point::Version(version),
            (None, None) => Point::Now,
        }
    }

    /// Returns the name of the snapshot, for JSON.
    fn snapshot(&self) -> Option<&str> {
        self.snapshot.as_ref().map(SnapshotName::as_str)
    }

    /// Returns the name of the table for JSON. A B+tree and a snapshot have none.
    fn table<'a>(&self, source: &Source, table: &'a TableName) -> Option<&'a str> {
        source.name(table).filter(|_| self.snapshot.is_none())
    }
}

/// Disk space that a store keeps in reserve.
#[derive(Debug, Args)]
pub(crate) struct ReserveArgs {
    /// Disk space that the store keeps in reserve from now on, so that entries can be deleted when
    /// the disk is full; 0 for none. A new store has 1 MiB, or less on a small disk
    #[arg(long, value_name = "SIZE", value_parser = args::reserve)]
    reserve: Option<u64>,
}

impl ReserveArgs {
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.reserve
    }
}

/// Memory of an open store.
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// Bytes of memory for all tables, cursors and caches of the store together; 1MiB or more
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    memory_budget: Option<u64>,
}

impl MemoryArgs {
    pub(crate) fn budget(&self) -> Option<u64> {
        self.memory_budget
    }
}

/// Arguments that name a range of keys.
#[derive(Debug, Args)]
struct RangeArgs {
    /// First key of the range
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// Key before which the range ends
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Prefix of the keys
    #[arg(long, value_name = "KEY", conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Get {
    /// Keys: text, `hex:…` or `@file`
    #[arg(value_name = "KEY", required = true)]
    keys: Vec<OsString>,
    /// Prints the bytes of the value as they are, and nothing else
    #[arg(long, conflicts_with = "json")]
    raw: bool,
    #[command(flatten)]
    point: PointArgs,
    #[command(flatten)]
    pub(crate) common: TableArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// Keys and values: text, `hex:…` or `@file`
    #[arg(value_name = "KEY VALUE", required_unless_present = "input")]
    pairs: Vec<OsString>,
    /// File of lines in the format of `terrane scan`, which become one commit; `-` is standard
    /// input
    #[arg(long, value_name = "FILE", conflicts_with = "pairs")]
    input: Option<PathBuf>,
    /// Longest line that is accepted; a longer one means a file of another kind
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size, default_value = "64MiB")]
    line_max: u64,
    /// Combines each value with the stored one, by the merge operator of the table
    #[arg(long)]
    upsert: bool,
    /// Creates the table, and the store, if it is missing
    #[arg(long)]
    create: bool,
    #[command(flatten)]
    reserve: ReserveArgs,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) common: TableArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Delete {
    /// Keys: text, `hex:…` or `@file`
    #[arg(
        value_name = "KEY",
        required_unless_present_any = ["from", "to", "prefix"],
        conflicts_with_all = ["from", "to", "prefix"]
    )]
    keys: Vec<OsString>,
    #[command(flatten)]
    range: RangeArgs,
    #[command(flatten)]
    pub(crate) common: TableArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Scan {
    #[command(flatten)]
    range: RangeArgs,
    /// Prints the entries in descending key order
    #[arg(long)]
    reverse: bool,
    /// Maximum number of entries
    #[arg(long, value_name = "N", value_parser = args::count, allow_hyphen_values = true)]
    limit: Option<u64>,
    /// Prints each entry as one JSON object on a line, and one object about the scan at the end
    #[arg(long, conflicts_with = "json")]
    json_lines: bool,
    #[command(flatten)]
    point: PointArgs,
    #[command(flatten)]
    pub(crate) common: TableArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Count {
    #[command(flatten)]
    range: RangeArgs,
    #[command(flatten)]
    point: PointArgs,
    #[command(flatten)]
    pub(crate) common: TableArgs,
}

#[derive(Serialize)]
struct Lookup {
    key: String,
    found: bool,
    value: Option<String>,
    blob: Option<String>,
}

#[derive(Serialize)]
struct Lookups<'a> {
    table: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<&'a str>,
    entries: Vec<Lookup>,
}

#[derive(Serialize)]
struct Written<'a> {
    table: Option<&'a str>,
    created: bool,
    entries: u64,
    commit: Option<u64>,
}

#[derive(Serialize)]
struct Removed<'a> {
    table: Option<&'a str>,
    deleted: u64,
    absent: u64,
    commit: Option<u64>,
}

#[derive(Serialize)]
struct Entry {
    key: String,
    value: String,
    blob: Option<String>,
}

#[derive(Serialize)]
struct Scanned<'a> {
    table: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<&'a str>,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<Entry>>,
}

#[derive(Serialize)]
struct Counted<'a> {
    table: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<&'a str>,
    count: u64,
}

fn arguments(texts: &[OsString]) -> Result<Vec<Vec<u8>>, Failure> {
    texts.iter().map(|text| literal::argument(text)).collect()
}

impl TableArgs {
    /// Opens the table of an existing store, or a B+tree, for reading. Another process may have it
    /// open.
    fn read(&self, point: &PointArgs) -> Result<Source, Failure> {
        Source::open(&self.store, &self.table, point.point())
    }

    /// Opens an existing table of an existing store for writing.
    fn open(&self) -> Result<(Store, NamedTable), Failure> {
        check_table(&self.store, &self.table)?;
        let store = open_tables(&self.store, false)?;
        let table = store.table(&self.table)?;
        Ok((store, table))
    }

    fn name(&self) -> &str {
        self.table.as_str()
    }
}

/// Closes a store after a commit. If this fails, the message says that the commit is durable.
fn close(store: &Store) -> Result<(), Failure> {
    let failed =
        |error| Failure::from(error).about("committed and durable, but closing the store failed");
    store.close().map_err(failed)
}

impl Get {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        if self.raw && self.common.output.json {
            return Err(Failure::arguments("--raw prints bytes, and --json prints one object"));
        }
        if self.raw && self.keys.len() > 1 {
            return Err(Failure::usage("--raw writes the value of one key"));
        }

        let keys = arguments(&self.keys)?;
        let source = self.common.read(&self.point)?;
        let found = source.get_many(&keys)?;
        let name = self.point.table(&source, &self.common.table);
        let snapshot = self.point.snapshot();

        let absent: Vec<String> = keys
            .iter()
            .zip(&found)
            .filter(|(_, found)| found.is_none())
            .map(|(key, _)| format!("`{}`", literal::shown(key)))
            .collect();

        let place = match (name, snapshot) {
            (Some(name), _) => format!("table `{name}`"),
            (None, Some(name)) => format!("snapshot `{name}`"),
            (None, None) => "the B+tree".to_owned(),
        };

        let failure = (!absent.is_empty())
            .then(|| Failure::not_found(format!("not in {place}: {}", absent.join(", "))));
        // Raw bytes have no place for a report: one value, or a failure.
        if self.raw {
            if let Some(failure) = failure {
                return Err(failure);
            }
            let mut out = io::stdout().lock();
            if let Some(Some(found)) = found.first() {
                output::write(&mut out, &found.value)?;
            }
            return Ok(0);
        }

        let is_single = keys.len() == 1;

        let mut lines = Vec::new();
        let mut entries = Vec::new();
        for (key, found) in keys.iter().zip(&found) {
            if let Some(found) = found {
                let key = (!is_single).then_some(key.as_slice());
                lines.push(literal::line(key.into_iter().chain(found.fields())));
            }
            let blob = found.as_ref().and_then(|found| found.blob.as_deref());
            entries.push(Lookup {
                key: literal::shown(key),
                found: found.is_some(),
                value: found.as_ref().map(|found| literal::shown(&found.value)),
                blob: blob.map(literal::shown),
            });
        }

        if lines.is_empty() && !self.common.output.json {
            // Prints not even an empty line, which would mean an empty value.
            return failure.map_or(Ok(0), Err);
        }

        let got = Lookups { table: name, snapshot, entries };

        output::checked("get", self.common.output.json, &got, &lines.join("\n"), failure.as_ref())
    }
}

/// Entry to write: key, value, and perhaps a blob.
struct Record {
    key: Vec<u8>,
    value: Vec<u8>,
    blob: Option<Vec<u8>>,
}

impl Record {
    /// Refuses an entry above the limits of tables, before a store is created for it.
    fn check(&self) -> Result<(), Failure> {
        let blob_len = self.blob.as_ref().map_or(0, Vec::len);
        for (part, bytes, limit) in [
            ("key", self.key.len(), KEY_BYTES_MAX),
            ("value", self.value.len(), VALUE_BYTES_MAX),
            ("blob", blob_len, BLOB_BYTES_MAX),
        ] {
            if bytes > limit {
                return Err(Failure::usage(format!(
                    "a {part} of {bytes} bytes; the limit is {limit}"
                )));
            }
        }

        Ok(())
    }
}

/// Maximum bytes of the entries of one commit.
const COMMIT_BYTES_MAX: u64 = 1 << 30;

/// Reads the entries from the lines of a file. Holds one commit and one line in memory.
fn entries_of(path: &Path, line_max: u64) -> Result<Vec<Record>, Failure> {
    let unreadable = |error: io::Error| {
        let message = format!("{}: {error}", path.display());
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::IsADirectory => Failure::usage(message),
            _ => Failure::of_system(&error, message),
        }
    };

    let mut input: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(File::open(path).map_err(unreadable)?))
    };

    let mut entries = Vec::new();

    let mut bytes = 0;
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();

        // One byte more than allowed tells a long line from a line at the limit.
        let more = line_max.saturating_add(1);
        let read = (&mut input).take(more).read_until(b'\n', &mut line).map_err(unreadable)?;
        if read == 0 {
            break;
        }

        let failed = |why: &str| {
            let at = format!("{}: line {number}", path.display());
            Failure::usage(format!("{at}: {why}"))
        };

        if line.pop_if(|last| *last == b'\n').is_none() && read as u64 > line_max {
            return Err(failed(&format!("longer than {line_max} bytes; --line-max allows more")));
        }

        let mut fields = literal::fields(&line).map_err(|why| failed(&why))?.into_iter();
        let (Some(key), Some(value), blob, None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(failed("not key, tab and value, and perhaps one more tab and a blob"));
        };

        bytes += [&key, &value].into_iter().chain(&blob).map(|part| part.len() as u64).sum::<u64>();
        if bytes > COMMIT_BYTES_MAX {
            return Err(failed(
                "the lines are one commit, which has 1 GiB at most; split the file",
            ));
        }

        entries.push(Record { key, value, blob });
    }

    Ok(entries)
}

impl Put {
    fn entries(&self) -> Result<Vec<Record>, Failure> {
        if let Some(path) = &self.input {
            return entries_of(path, self.line_max);
        }

        let mut entries = Vec::new();
        let mut fields = arguments(&self.pairs)?.into_iter();
        while let Some(key) = fields.next() {
            let Some(value) = fields.next() else {
                let key = literal::shown(&key);
                return Err(Failure::usage(format!("the last key, `{key}`, has no value")));
            };
            entries.push(Record { key, value, blob: None });
        }

        Ok(entries)
    }

    fn update<'a>(&self, record: &'a Record) -> Result<(&'a [u8], Update<'a>), Failure> {
        let update = match (&record.blob, self.upsert) {
            (None, false) => Update::Insert(&record.value),
            (None, true) => Update::Upsert(&record.value),
            (Some(blob), false) => Update::InsertWithBlob(&record.value, blob),
            (Some(_), true) => {
                let key = literal::shown(&record.key);
                return Err(Failure::usage(format!("`{key}` has a blob: --upsert takes none")));
            }
        };
        Ok((&record.key, update))
    }

    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let entries = self.entries()?;
        entries.iter().try_for_each(Record::check)?;
        let updates: Vec<_> =
            entries.iter().map(|record| self.update(record)).collect::<Result<_, _>>()?;
        let TableArgs { store, table: name, output } = &self.common;

        if !self.create && !store.exists() {
            let shown = store.display();
            return Err(Failure::usage(format!("{shown} does not exist; --create makes it")));
        }

        if let Some(index) = open_if_index(store, name)? {
            return self.put_into(&index, &entries);
        }

        if !self.create {
            check_table(store, name).map_err(|failure| match failure.kind() {
                "bad_input" => failure.with_note("--create makes it"),
                _ => failure,
            })?;
        }

        let opening =
            Opening { reserve_bytes: self.reserve.bytes(), memory_budget: self.memory.budget() };
        let store = open_tables_with(store, self.create, opening)?;
        let (table, created) = match store.table(name) {
            Ok(table) => (table, false),
            Err(terrane::lsm::Error::TableDoesNotExist { .. }) if self.create => {
                (store.create_table(name, &TableConfig::default())?, true)
            }
            Err(error @ terrane::lsm::Error::TableDoesNotExist { .. }) => {
                return Err(Failure::usage(format!("{error}; --create makes it")));
            }
            Err(error) => return Err(error.into()),
        };

        let commit = table.write_batch(&updates)?.commit();
        close(&store)?;
        let table = Some(name.as_str());
        let commit = Some(commit);
        let written = Written { table, created, entries: entries.len() as u64, commit };
        let put = count_of(written.entries, "entry", "entries");
        let made = if created { ", which is new" } else { "" };
        let mut lines = vec![("put", format!("{put} in table {name}{made}"))];
        lines.extend(commit.map(|commit| ("commit", commit.to_string())));

        output::report("put", output.json, &written, &lines).map(|()| 0)
    }

    fn put_into(&self, index: &Index, entries: &[Record]) -> Result<u8, Failure> {
        if self.upsert || self.reserve.bytes().is_some() {
            return Err(Failure::usage("a B+tree has no merge operator and no reserve"));
        }

        if self.memory.budget().is_some() {
            return Err(Failure::usage(
                "a B+tree has no memory budget here: `terrane btree` sets it",
            ));
        }

        if let Some(record) = entries.iter().find(|record| record.blob.is_some()) {
            let key = literal::shown(&record.key);
            return Err(Failure::usage(format!("`{key}` has a blob; a B+tree has none")));
        }

        let pairs: Vec<(&[u8], &[u8])> =
            entries.iter().map(|record| (&record.key[..], &record.value[..])).collect();
        index.replace_many(&pairs)?;
        index.close()?;
        let entries = entries.len() as u64;
        let written = Written { table: None, created: false, entries, commit: None };
        let put = format!("{} in the B+tree", count_of(entries, "entry", "entries"));

        output::report("put", self.common.output.json, &written, &[("put", put)]).map(|()| 0)
    }
}

/// Deletes the present ones of `keys`; returns their number and the commit.
fn delete(table: &NamedTable, keys: &[Vec<u8>]) -> Result<(u64, Option<u64>), Failure> {
    let found = table.get_many(keys)?;
    let present = keys.iter().zip(&found).filter(|(_, found)| found.is_found());
    let updates: Vec<_> = present.map(|(key, _)| (key, Update::Delete)).collect();
    match updates.as_slice() {
        [] => Ok((0, None)),
        updates => Ok((updates.len() as u64, Some(table.write_batch(updates)?.commit()))),
    }
}

impl Delete {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        // A key that is given twice counts once.
        let keys: BTreeSet<Vec<u8>> = arguments(&self.keys)?.into_iter().collect();

        let keys: Vec<Vec<u8>> = keys.into_iter().collect();
        let range = self.range.keys()?;
        let (name, (deleted, commit)) = match open_if_index(&self.common.store, &self.common.table)?
        {
            Some(index) => (None, (delete_from(&index, &keys, range)?, None)),
            None => {
                let (store, table) = self.common.open()?;
                let done =
                    if keys.is_empty() { range.delete(&table)? } else { delete(&table, &keys)? };
                close(&store)?;
                (Some(self.common.name()), done)
            }
        };

        let absent = (keys.len() as u64).saturating_sub(deleted);
        let report = Removed { table: name, deleted, absent, commit };
        let entries = count_of(deleted, "entry", "entries");
        let place = name.map_or("the B+tree".to_owned(), |name| format!("table {name}"));

        let mut lines = vec![("deleted", format!("{entries} of {place}"))];
        if report.absent > 0 {
            lines.push(("absent", grouped(report.absent)));
        }

        output::report("delete", self.common.output.json, &report, &lines).map(|()| 0)
    }
}

/// Deletes keys of a B+tree, or a range if `keys` is empty; returns the number of deleted keys.
fn delete_from(index: &Index, keys: &[Vec<u8>], range: KeyRange) -> Result<u64, Failure> {
    let deleted = if keys.is_empty() {
        delete_range(index, range)?
    } else {
        let updates: Vec<_> = keys.iter().map(|key| btree::Update::Remove(key)).collect();
        index.apply(&updates)? as u64
    };
    index.close()?;
    Ok(deleted)
}

impl RangeArgs {
    fn keys(&self) -> Result<KeyRange, Failure> {
        let key = |text: &Option<OsString>| text.as_deref().map(literal::argument).transpose();
        if let Some(prefix) = key(&self.prefix)? {
            return Ok(KeyRange::Prefix(prefix));
        }
        let from = key(&self.from)?;
        let to = key(&self.to)?;
        if let (Some(from), Some(to)) = (&from, &to)
            && from > to
        {
            let from = literal::shown(from);
            let to = literal::shown(to);
            return Err(Failure::arguments(format!(
                "--from {from} is behind --to {to} in key order; next: exchange the two keys"
            )));
        }

        let from = from.map_or(Bound::Unbounded, Bound::Included);
        let to = to.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(KeyRange::Between(from, to))
    }
}

impl KeyRange {
    /// Deletes the keys of the range; returns their number just before, and the commit.
    fn delete(self, table: &NamedTable) -> Result<(u64, Option<u64>), Failure> {
        let view = table.view()?;

        // A deleted range has no count of its own, so the keys are counted in a view before.
        let mut cursor = match &self {
            Self::Prefix(prefix) => view.prefix(prefix)?,
            Self::Between(from, to) => view.range::<Vec<u8>, _>((from.clone(), to.clone()))?,
        };

        let mut count = 0;
        while cursor.next_ref()?.is_some() {
            count += 1;
        }

        if count == 0 {
            return Ok((0, None));
        }

        let ticket = match self {
            Self::Prefix(prefix) => table.delete_prefix(&prefix)?,
            Self::Between(from, to) => table.delete_range::<Vec<u8>, _>((from, to))?,
        };

        Ok((count, Some(ticket.commit())))
    }
}

/// Destination of the entries of a scan.
enum Printed {
    /// Lines of fields.
    Text(output::Lines),
    /// Lines of objects.
    Lines(output::Lines),
    /// List in the one object of the report, with the bytes of its keys, values and blobs.
    Object(Vec<Entry>, u64),
}

impl Printed {
    /// Prints or keeps an entry; returns `false` if the reader of standard output went away.
    fn add(&mut self, key: &[u8], found: &StoredValue) -> Result<bool, Failure> {
        let (out, line) = match self {
            Self::Text(out) => {
                let fields = [key].into_iter().chain(found.fields());
                (out, literal::line(fields))
            }
            Self::Lines(out) => {
                let line = serde_json::to_string(&Entry::new(key, found));
                (out, line.map_err(|error| Failure::environment(error.to_string()))?)
            }
            Self::Object(entries, bytes) => {
                *bytes += found.fields().chain([key]).map(|part| part.len() as u64).sum::<u64>();
                if OBJECT_BYTES_MAX < *bytes {
                    return Err(Failure::arguments(format!(
                        "more than {} of entries are too many for one JSON object; next: \
                         --json-lines, or --limit {}",
                        output::bytes(OBJECT_BYTES_MAX),
                        entries.len()
                    )));
                }
                entries.push(Entry::new(key, found));
                return Ok(true);
            }
        };

        out.add(&line)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        match self {
            Self::Text(out) | Self::Lines(out) => out.flush().map(drop),
            Self::Object(..) => Ok(()),
        }
    }
}

impl Entry {
    fn new(key: &[u8], found: &StoredValue) -> Self {
        Self {
            key: literal::shown(key),
            value: literal::shown(&found.value),
            blob: found.blob.as_deref().map(literal::shown),
        }
    }
}

impl Scan {
    /// Returns whether the report is JSON although `--json` is not given.
    pub(crate) fn is_json_lines(&self) -> bool {
        self.json_lines
    }

    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        if self.json_lines && self.common.output.json {
            return Err(Failure::arguments("--json-lines and --json exclude each other"));
        }

        let range = self.range.keys()?;
        let source = self.common.read(&self.point)?;
        let mut printed = match (self.common.output.json, self.json_lines) {
            (true, _) => Printed::Object(Vec::new(), 0),
            (false, true) => Printed::Lines(output::Lines::default()),
            (false, false) => Printed::Text(output::Lines::default()),
        };
        let count = self.scan(&source, range, &mut printed)?;

        let entries = match printed {
            Printed::Text(_) => return Ok(0),
            Printed::Lines(_) => None,
            Printed::Object(entries, _) => Some(entries),
        };
        let table = self.point.table(&source, &self.common.table);
        let report = Scanned { table, snapshot: self.point.snapshot(), count, entries };

        output::report("scan", true, &report, &[]).map(|()| 0)
    }

    /// Prints the entries and returns their number.
    fn scan(
        &self,
        source: &Source,
        range: KeyRange,
        printed: &mut Printed,
    ) -> Result<u64, Failure> {
        let mut stored = source.entries(range, self.reverse)?;
        let mut count = 0;
        let mut left = self.limit.unwrap_or(u64::MAX);

        loop {
            // Chunks bound the memory, whatever the table has.
            let wanted = left.min(CHUNK as u64) as usize;
            let taken = stored.take(wanted)?;
            assert!(taken.len() <= wanted, "a source returns no more entries than wanted");

            for (key, found) in &taken {
                if !printed.add(key, found)? {
                    return Ok(count);
                }
                count += 1;
            }

            left -= taken.len() as u64;
            if taken.len() < wanted || left == 0 {
                break;
            }
        }

        printed.flush()?;

        Ok(count)
    }
}

impl Count {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let source = self.common.read(&self.point)?;
        let count = source.count(self.range.keys()?)?;
        let table = self.point.table(&source, &self.common.table);
        let report = Counted { table, snapshot: self.point.snapshot(), count };
        if self.common.output.json {
            return output::report("count", true, &report, &[]).map(|()| 0);
        }
        output::print(&count.to_string()).map(|()| 0)
    }
}
