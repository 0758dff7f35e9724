//! `terrane import`: entries of another database, or of text, into a new named table.
//!
//! The entries are loaded in bulk, without the log, and the table appears whole or not at all. A
//! long import saves portions of the entries as snapshots. A later call with the same source
//! compares the source with the portions, entry by entry, and goes on behind them. At the end the
//! portions, whose keys ascend, are read in order into one table, and then deleted.
//!
//! Invariant: a call that ends with exit code 2 has changed nothing. If bad input follows a portion
//! that this call has saved, the exit code is 1.
//!
//! # JSON
//!
//! `table`, `source`, `replaced` (whether a table was), `entries`, `bytes` (of keys, values and
//! blobs), `portions` (that were saved, by this call and earlier ones), `resumed_entries` (of
//! portions of earlier calls), `wall_s`.
//!
//! Rejected: deletion of the portions of another source. They may be the work of hours, so only
//! `terrane snapshot delete` deletes them.

mod input;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{ArgGroup, Args};
use serde::Serialize;
use terrane::lsm::{
    BLOB_BYTES_MAX, BulkLoader, KEY_BYTES_MAX, SnapshotName, Store, Table, TableConfig, TableName,
    Update, VALUE_BYTES_MAX,
};
use terrane_replay::monitor::{Monitor as _, Phase};

use self::input::{Dump, Entry, Input, Lines, STDIN};
use crate::commands::kv::MemoryArgs;
use crate::stores::open::{
    Opening, check_table_is_new, has_snapshot, open_tables_with, open_to_read, remove_content,
};
use crate::stores::source::{Entries, KeyRange, MAIN_TABLE, Point, Source, StoredValue};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::literal;
use crate::ui::output;
use crate::ui::progress::Progress;
use crate::ui::text::{count_of, grouped, hex};

pub(crate) const EXAMPLES: &str = "\
Examples:
  A database of LMDB, read in place:
    terrane import --from-lmdb /data/lmdb --database accounts \\
      --store /data/ledger --table accounts
  The same through text, from another machine:
    mdb_dump -s accounts /data/lmdb | ssh host terrane import \\
      --from-mdb-dump - --store /data/ledger --table accounts
  The entries of another table, which takes the place of an old one:
    terrane scan --store /data/old | terrane import --from-sorted - \\
      --store /data/ledger --replace

The keys must ascend in the order of their bytes. The entries go past the log, and the table \
appears whole, or not at all. A missing store is created. After every --portion entries, the \
portion is saved as a snapshot, `import-TABLE-1` and so on. If the import is interrupted, the same \
command goes on behind the last portion: it reads the source again and compares it with the \
portions. At the end the portions are deleted. Until then they and the table need room side by \
side. A bad entry behind a new portion is exit code 1, since the portion stays.";

/// Start of the label of a portion.
const LABEL: &str = "terrane import ";

/// Text between the source and the last key in the label of a portion.
const LABEL_LAST: &str = " last=hex:";

/// Bytes of entries that are loaded at once.
const BATCH_BYTES: u64 = 1 << 20;

/// Entries of a portion that one call reads.
const CHUNK: usize = 256;

#[derive(Debug, Args)]
#[command(group(
    ArgGroup::new("source").required(true).args(["from_lmdb", "from_mdb_dump", "from_sorted"])
))]
pub(crate) struct Import {
    /// Directory of an LMDB environment, or its file; another process may have it open
    #[arg(long, value_name = "DIR|FILE")]
    from_lmdb: Option<PathBuf>,
    /// Name of the LMDB database to import; the main one if it is left out
    #[arg(long, value_name = "NAME", conflicts_with_all = ["from_mdb_dump", "from_sorted"])]
    database: Option<String>,
    /// File of the text of `mdb_dump`; `-` is standard input
    #[arg(long, value_name = "FILE")]
    from_mdb_dump: Option<PathBuf>,
    /// File of lines in the format of `terrane scan`, in ascending order of keys; `-` is standard
    /// input
    #[arg(long, value_name = "FILE")]
    from_sorted: Option<PathBuf>,
    /// Longest line that is accepted; a longer one means a file of another kind
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size, default_value = "64MiB")]
    line_max: u64,
    /// Number of entries after which they are saved, so that a later call need not load them again
    #[arg(long, value_name = "N", value_parser = args::positive_count, default_value = "10M")]
    portion: u64,
    /// Puts the new table in the place of an existing one
    #[arg(long)]
    replace: bool,
    /// Directory of the store; it is created if it is missing
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    /// Name of the table
    #[arg(long, value_name = "NAME", default_value = MAIN_TABLE, value_parser = args::table_name)]
    table: TableName,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Imported<'a> {
    table: &'a str,
    source: &'a str,
    replaced: bool,
    entries: u64,
    bytes: u64,
    portions: u64,
    resumed_entries: u64,
    wall_s: f64,
}

/// Saved entries of an import.
struct Portion {
    name: SnapshotName,
    label: String,
}

/// Entries of a source, with checks, counters and progress.
struct Feed {
    input: Box<dyn Input>,
    progress: Progress,
    last: Option<Vec<u8>>,
    entries: u64,
    bytes: u64,
}

impl Feed {
    /// Returns the next entry, whose key is above that of the last one.
    fn next(&mut self) -> Result<Option<Entry>, Failure> {
        let Some(entry) = self.input.next()? else { return Ok(None) };
        let Entry { key, value, blob } = &entry;
        let blob_len = blob.as_ref().map_or(0, Vec::len);
        for (part, bytes, limit) in [
            ("key", key.len(), KEY_BYTES_MAX),
            ("value", value.len(), VALUE_BYTES_MAX),
            ("blob", blob_len, BLOB_BYTES_MAX),
        ] {
            if bytes > limit {
                let place = self.input.place();
                let why = format!("{place}: a {part} of {bytes} bytes; the limit is {limit}");
                return Err(Failure::usage(why));
            }
        }

        if let Some(last) = self.last.as_ref().filter(|last| *last >= key) {
            let place = self.input.place();
            let last = literal::shown(last);
            let key = literal::shown(key);
            let why = format!("{place}: the key `{key}` is not above `{last}`, the one before it");
            return Err(Failure::usage(why));
        }

        self.last = Some(key.clone());
        self.entries += 1;
        self.bytes += (key.len() + value.len() + blob_len) as u64;
        Ok(Some(entry))
    }

    /// Returns the next entries, at most `limit` of them; none at the end.
    fn batch(&mut self, limit: u64) -> Result<Vec<Entry>, Failure> {
        debug_assert!(limit > 0, "an empty batch means the end");
        self.look(Phase::Copy)?;

        let mut batch = Vec::new();
        let end = self.bytes + BATCH_BYTES;
        while (batch.len() as u64) < limit && self.bytes < end {
            let Some(entry) = self.next()? else { break };
            batch.push(entry);
        }

        Ok(batch)
    }

    /// Shows the progress; fails after Ctrl-C.
    fn look(&mut self, phase: Phase) -> Result<(), Failure> {
        self.progress.progress(phase, self.entries, None);
        if self.progress.stop() { Err(Failure::interrupted("interrupted")) } else { Ok(()) }
    }

    /// Reads the entries of a portion again. Returns `false` if the source has others.
    fn skip(&mut self, stored: &mut Entries<'_>) -> Result<bool, Failure> {
        loop {
            self.look(Phase::Check)?;
            let chunk = stored.take(CHUNK)?;
            for (key, found) in &chunk {
                let same = |entry: Entry| {
                    entry.key == *key && entry.value == found.value && entry.blob == found.blob
                };
                if !self.next()?.is_some_and(same) {
                    return Ok(false);
                }
            }
            if chunk.len() < CHUNK {
                return Ok(true);
            }
        }
    }
}

/// Import under way, with the store open for writing.
struct Run<'a> {
    store: Store,
    feed: &'a mut Feed,
    table: &'a TableName,
    source: &'a str,
    portions: &'a mut Vec<Portion>,
}

impl Run<'_> {
    /// Loads what follows the portions, in further portions of `limit` entries; returns the table
    /// of the entries behind the last portion. `first` has the first of them.
    fn load(&mut self, first: Vec<Entry>, limit: u64) -> Result<Table, Failure> {
        let config = TableConfig::default();
        let mut loader = self.store.session().bulk_load(&config)?;
        let mut loaded = 0;
        let mut batch = first;

        while let Some(last) = batch.last() {
            let last = last.key.clone();
            add(&mut loader, &batch)?;
            loaded += batch.len() as u64;
            let is_whole = loaded == limit;
            let next = self.feed.batch(if is_whole { limit } else { limit - loaded });

            // A source that ends here needs no portion; one that fails here does.
            if is_whole && !next.as_ref().is_ok_and(Vec::is_empty) {
                self.save(&loader.finish()?, &last)?;
                loader = self.store.session().bulk_load(&config)?;
                loaded = 0;
            }
            batch = next?;
        }

        self.finish(loader)
    }

    /// Saves a portion.
    fn save(&mut self, table: &Table, last: &[u8]) -> Result<(), Failure> {
        let name = portion_name(self.table, self.portions.len())?;
        let label = format!("{LABEL}{}{LABEL_LAST}{}", self.source, hex(last));
        table.save_snapshot(&name, &label)?;
        self.portions.push(Portion { name, label });
        Ok(())
    }

    /// Returns the table of all portions and of `tail`, the entries behind them.
    fn join(&mut self, tail: Table) -> Result<Table, Failure> {
        if self.portions.is_empty() {
            return Ok(tail);
        }

        let session = self.store.session();
        let mut loader = session.bulk_load(&TableConfig::default())?;
        for Portion { name, label } in &*self.portions {
            let table = session.open_snapshot(name, label)?;
            self.copy(&table, &mut loader)?;
        }
        self.copy(&tail, &mut loader)?;

        self.finish(loader)
    }

    fn copy(&self, table: &Table, loader: &mut BulkLoader) -> Result<(), Failure> {
        let session = self.store.session();
        let mut entries = Entries::Table { session, cursor: table.cursor()?, reverse: false };
        loop {
            if self.feed.progress.stop() {
                return Err(Failure::interrupted("interrupted"));
            }
            let chunk = entries.take(CHUNK)?;
            let updates: Vec<_> = chunk
                .iter()
                .map(|(key, StoredValue { value, blob })| (key, update(value, blob.as_deref())))
                .collect();
            loader.write_batch(&updates)?;
            if chunk.len() < CHUNK {
                return Ok(());
            }
        }
    }

    /// Merges what was loaded into a table.
    fn finish(&self, loader: BulkLoader) -> Result<Table, Failure> {
        let merged = loader.finish_watched(&mut |_, _| {
            if self.feed.progress.stop() {
                return ControlFlow::Break(Failure::interrupted("interrupted"));
            }
            ControlFlow::Continue(())
        })?;
        match merged {
            ControlFlow::Continue(table) => Ok(table),
            ControlFlow::Break(failure) => Err(failure),
        }
    }

    /// Gives the table its name, and deletes the portions. Returns whether a table was replaced.
    fn install(&self, table: &Table, replace: bool) -> Result<bool, Failure> {
        let installed = if replace {
            match self.store.replace(self.table, table) {
                Err(terrane::lsm::Error::TableDoesNotExist { .. }) => None,
                replaced => Some(replaced?),
            }
        } else {
            None
        };
        let is_replaced = installed.is_some();
        if !is_replaced {
            self.store.install(self.table, table)?;
        }

        // From the last one down: if the deletion is cut short, the rest are still the first ones.
        let deleted = self
            .portions
            .iter()
            .rev()
            .try_for_each(|portion| self.store.session().delete_snapshot(&portion.name));
        deleted.map_err(|error| {
            Failure::from(error).about("imported and durable, but its portions are not deleted")
        })?;

        Ok(is_replaced)
    }
}

/// Adds entries to a bulk load.
fn add(loader: &mut BulkLoader, entries: &[Entry]) -> Result<(), Failure> {
    let updates: Vec<_> = entries
        .iter()
        .map(|entry| (&entry.key, update(&entry.value, entry.blob.as_deref())))
        .collect();
    Ok(loader.write_batch(&updates)?)
}

fn update<'a>(value: &'a [u8], blob: Option<&'a [u8]>) -> Update<'a> {
    blob.map_or(Update::Insert(value), |blob| Update::InsertWithBlob(value, blob))
}

/// Returns the name of the portion after `before` others.
fn portion_name(table: &TableName, before: usize) -> Result<SnapshotName, Failure> {
    let name = SnapshotName::new(&format!("import-{table}-{}", before + 1));
    name.map_err(|error| {
        Failure::from(error).with_note("next: a shorter --table, or a larger --portion")
    })
}

/// Place of a store before the import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    Missing,
    Empty,
    There,
}

impl Before {
    fn of(dir: &Path) -> Self {
        match fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
            Ok(true) => Self::Empty,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Missing,
            _ => Self::There,
        }
    }

    /// Removes the store that was created for a failed import.
    fn restore(self, dir: &Path) -> io::Result<()> {
        match self {
            Self::There => Ok(()),
            Self::Missing => fs::remove_dir_all(dir),
            Self::Empty => remove_content(dir),
        }
    }
}

impl Import {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let started = Instant::now();
        let (input, source) = self.open()?;
        let progress = Progress::new(self.output.quiet);
        let mut feed = Feed { input, progress, last: None, entries: 0, bytes: 0 };
        let mut portions = self.portions(&source)?;
        if !self.replace {
            check_table_is_new(&self.store, &self.table).map_err(|failure| match &*portions {
                [] => failure.with_note("--replace puts the new one in its place"),
                portions => failure.with_note(&self.deletion(portions)),
            })?;
        }

        let found = portions.len();
        let replaced = self.import(&mut feed, &source, &mut portions);
        let (replaced, resumed_entries) =
            replaced.map_err(|failure| explained(failure, &portions, found))?;

        let imported = Imported {
            table: self.table.as_str(),
            source: &source,
            replaced,
            entries: feed.entries,
            bytes: feed.bytes,
            portions: portions.len() as u64,
            resumed_entries,
            wall_s: started.elapsed().as_secs_f64(),
        };

        let place = if replaced { "in the place of the old" } else { "into" };
        let mut lines = vec![
            (
                "imported",
                format!(
                    "{} {place} table {}",
                    count_of(feed.entries, "entry", "entries"),
                    self.table
                ),
            ),
            ("bytes", grouped(feed.bytes)),
        ];
        if resumed_entries > 0 {
            lines.push(("resumed", format!("behind {} entries", grouped(resumed_entries))));
        }

        output::report("import", self.output.json, &imported, &lines).map(|()| 0)
    }

    /// Opens the source; returns its name, too, which the labels of portions have.
    fn open(&self) -> Result<(Box<dyn Input>, String), Failure> {
        if let Some(path) = &self.from_sorted {
            let lines = Lines::open(path, self.line_max)?;
            return Ok((Box::new(lines), format!("from-sorted:{}", full(path))));
        }
        if let Some(path) = &self.from_mdb_dump {
            let dump = Dump::open(path, self.line_max)?;
            return Ok((Box::new(dump), format!("from-mdb-dump:{}", full(path))));
        }

        let path = self.from_lmdb.as_deref().unwrap_or(Path::new(""));
        let database = self.database.as_deref();
        let shown = database.map_or(String::new(), |name| format!(" database={name}"));
        Ok((open_lmdb(path, database)?, format!("from-lmdb:{}{shown}", full(path))))
    }

    /// Returns the portions that earlier calls have saved of this source.
    fn portions(&self, source: &str) -> Result<Vec<Portion>, Failure> {
        let mut portions: Vec<Portion> = Vec::new();
        loop {
            let Ok(name) = portion_name(&self.table, portions.len()) else { return Ok(portions) };
            if has_snapshot(&self.store, &name) != Some(true) {
                return Ok(portions);
            }

            let label = open_to_read(&self.store)?.session().snapshot_info(&name)?.label;
            let of = label.strip_prefix(LABEL).and_then(|rest| rest.rsplit_once(LABEL_LAST));
            portions.push(Portion { name, label: label.clone() });
            let name = &portions[portions.len() - 1].name;
            match of {
                Some((of, _)) if of == source => {}
                Some((of, _)) => {
                    let why = format!("snapshot {name} is a portion of an import {of}");
                    let next = self.deletion(&portions);
                    return Err(Failure::usage(format!("{why}, not {source}; {next}")));
                }
                None => {
                    return Err(Failure::usage(format!(
                        "snapshot {name} is no portion of an import, and has the name of one; \
                         next: terrane snapshot rename {name} NAME --store {}",
                        self.store.display()
                    )));
                }
            }
        }
    }

    /// Returns the command that deletes the last portion.
    fn deletion(&self, portions: &[Portion]) -> String {
        let dir = self.store.display();
        let name = portions.last().map_or("", |portion| portion.name.as_str());
        format!("next: terrane snapshot delete {name} --store {dir}")
    }

    /// Imports; returns whether a table was replaced, and the number of resumed entries.
    fn import(
        &self,
        feed: &mut Feed,
        source: &str,
        portions: &mut Vec<Portion>,
    ) -> Result<(bool, u64), Failure> {
        for portion in portions.iter() {
            let stored = Source::open(&self.store, &self.table, Point::Snapshot(&portion.name))?;
            let same = feed.skip(&mut stored.entries(KeyRange::Prefix(Vec::new()), false)?)?;
            let last = portion.label.rsplit_once(LABEL_LAST).map(|(_, last)| last);
            if !same || feed.last.as_deref().map(hex).as_deref() != last {
                let place = feed.input.place();
                let name = &portion.name;
                let why = format!("{place}: the source has changed since {name} was saved from it");
                return Err(Failure::usage(format!("{why}; {}", self.deletion(portions))));
            }
        }

        let resumed = feed.entries;

        // The first entries are read before a store is created for them.
        let first = feed.batch(self.portion)?;
        let before = Before::of(&self.store);
        let found = portions.len();
        let opening = Opening { memory_budget: self.memory.budget(), ..Opening::default() };
        let store = open_tables_with(&self.store, true, opening)?;
        let mut run = Run { store, feed, table: &self.table, source, portions };
        let imported = run
            .load(first, self.portion)
            .and_then(|tail| run.join(tail))
            .and_then(|table| run.install(&table, self.replace));
        let closed = run.store.close().map_err(|error| {
            Failure::from(error).about("imported and durable, but closing the store failed")
        });

        if imported.is_err() && run.portions.len() == found {
            // The first failure is reported; if the removal fails too, an empty store is left.
            let _ = before.restore(&self.store);
        }

        imported.and_then(|replaced| closed.map(|()| (replaced, resumed)))
    }
}

/// Returns the failure of an import with a word about its portions, of which `found` are older.
fn explained(failure: Failure, portions: &[Portion], found: usize) -> Failure {
    let kept = match portions {
        [] if failure.code() == Failure::interrupted("").code() => {
            "nothing was imported".to_owned()
        }
        [] => return failure,
        [one] => format!("{} is kept; the same command goes on behind it", one.name),
        [first, .., last] => {
            let (first, last) = (&first.name, &last.name);
            format!("{first} to {last} are kept; the same command goes on behind them")
        }
    };

    // Bad input is bad usage only while nothing has changed.
    let is_usage = failure.code() == Failure::usage("").code();
    match (is_usage, portions.len() > found) {
        (true, false) => failure,
        (true, true) => Failure::check(failure.message()).with_note(&kept),
        (false, _) => failure.with_note(&kept),
    }
}

/// Returns the path by which a later call finds the same file.
fn full(path: &Path) -> String {
    if path.as_os_str() == STDIN {
        return STDIN.to_owned();
    }
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

#[cfg(feature = "lmdb")]
fn open_lmdb(path: &Path, database: Option<&str>) -> Result<Box<dyn Input>, Failure> {
    Ok(Box::new(lmdb::Database::open(path, database)?))
}

#[cfg(not(feature = "lmdb"))]
fn open_lmdb(_: &Path, _: Option<&str>) -> Result<Box<dyn Input>, Failure> {
    Err(Failure::not_built("lmdb"))
}
