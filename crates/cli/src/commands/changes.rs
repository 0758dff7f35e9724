//! `terrane changes` prints the commits of a store as they come; `terrane feed` lists, creates and
//! deletes the cursors of their consumers.
//!
//! # JSON
//!
//! | command       | fields                                                                      |
//! |---------------|-----------------------------------------------------------------------------|
//! | `changes`     | `position` (the last commit that was printed in full), `commits`, `updates`, `acknowledged` (null without a cursor) |
//! | `feed list`   | `feeds`: list of `name`, `acknowledged`, `held_bytes_max`                   |
//! | `feed create` | `name`, `acknowledged`, `held_bytes_max`                                    |
//! | `feed delete` | `name`                                                                      |
//!
//! With `--json-lines` each event is an object on a line of its own, before the object of the
//! report. `event` says which one:
//!
//! | `event`          | fields                                                                   |
//! |------------------|--------------------------------------------------------------------------|
//! | `commit`         | `commit`, `from`, `is_first`, `is_last`, `tables`: list of `id`, `name`, `updates`: list of `op`, `key` and, as far as the operation has them, `value`, `blob`, `end` |
//! | `table_created`  | `id`, `name`, `merge_operator`                                           |
//! | `table_dropped`  | `id`, `name`                                                             |
//! | `table_renamed`  | `id`, `name`, `from_name`                                                |
//! | `table_loaded`   | `id`, `name`, `merge_operator`, `commit`, `has_entries`                  |
//! | `table_entries`  | `id`, `name`, `commit`, `is_last`, `updates`                             |
//! | `rolled_back`    | `commit`, `to`, `gone`, `back`: lists of `id`, `name`                    |
//!
//! After `table_loaded` with `has_entries`, events `table_entries` come next, with updates as in
//! `commit`. The `commit` of both is null for a load that was no commit.
//!
//! `op` is `insert`, `upsert`, `delete` or `delete_range`, whose `end` is null for all keys from
//! `key` on.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;
use terrane::lsm::{
    Changes, Error, FEED_HELD_BYTES, Feed, FeedChange, FeedCommit, FeedInfo, FeedItem, FeedOptions,
    FeedTable, FeedUpdate, StoreReader,
};
use terrane_replay::monitor::Monitor as _;

use crate::stores::open::open_to_read;
use crate::ui::args::{self, OutputArgs, StoreArgs};
use crate::ui::exit::Failure;
use crate::ui::literal;
use crate::ui::output;
use crate::ui::progress::Progress;
use crate::ui::text::grouped;

pub(crate) const EXAMPLES: &str = "\
Examples:
  Everything that is still there, and what comes:
    terrane changes /data/ledger --follow
  From a commit on, for a program:
    terrane changes /data/ledger --from 1024 --json-lines
  As a consumer whose place the store remembers:
    terrane feed create indexer --store /data/ledger
    terrane changes /data/ledger --cursor indexer --json-lines

The command works beside the process that writes the store, and prints durable commits only, each \
whole and in order; a table that was loaded comes with its entries if the store still has them. Lines with `+` set a key, lines with `*` combine a value with the old one, \
lines with `-` delete a key, or with two keys a range: table, key, value and perhaps blob, \
separated by tabs. A cursor is moved when standard output has taken a commit; after a crash the \
last commits may be printed again.";

pub(crate) const FEED_EXAMPLES: &str = "\
Examples:
  terrane feed create indexer --store /data/ledger
  terrane feed list --store /data/ledger
  terrane feed delete indexer --store /data/ledger

A feed is a named place in the changes of a store. The store keeps the commits behind it, also \
while its consumer is away, up to a limit in bytes; beyond that the consumer begins again with a \
backup.";

const CREATE_EXAMPLES: &str = "\
Examples:
  terrane feed create indexer --store /data/ledger
  terrane feed create auditor --from 1 --hold 4GiB --store /data/ledger";

const LIST_EXAMPLES: &str = "\
Example:
  terrane feed list --store /data/ledger --json";

const DELETE_EXAMPLES: &str = "\
Example:
  terrane feed delete indexer --store /data/ledger";

/// Longest wait before the command looks whether it is to stop.
const WAIT: Duration = Duration::from_millis(200);

/// Commits between two moves of a cursor while more of them are there.
const ACKNOWLEDGE_EVERY: u64 = 256;

#[derive(Debug, Args)]
pub(crate) struct ChangesCommand {
    /// Directory of the store; --store is another way to name it
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Directory of the store
    #[arg(long, value_name = "DIR", required = false)]
    store: Option<PathBuf>,
    /// First commit; without it the first one that is there
    #[arg(long, value_name = "N", value_parser = args::count, conflicts_with = "cursor")]
    from: Option<u64>,
    /// Goes on behind the last acknowledged commit of this feed, and acknowledges what was printed
    #[arg(long, value_name = "NAME")]
    cursor: Option<String>,
    /// Waits for further commits until it is interrupted
    #[arg(long)]
    follow: bool,
    /// Prints each event as one JSON object on a line, and one object about the feed at the end
    #[arg(long, conflicts_with = "json")]
    json_lines: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Feed with or without a cursor.
enum Source {
    Unnamed(Box<Changes>),
    Named(Box<Feed>),
}

impl Source {
    fn wait(&mut self, timeout: Duration) -> terrane::lsm::Result<Option<FeedItem>> {
        match self {
            Self::Unnamed(changes) => changes.wait(timeout),
            Self::Named(feed) => feed.wait(timeout),
        }
    }

    fn position(&self) -> u64 {
        match self {
            Self::Unnamed(changes) => changes.position(),
            Self::Named(feed) => feed.position(),
        }
    }

    fn acknowledge(&mut self, commit: u64) -> terrane::lsm::Result<()> {
        match self {
            Self::Unnamed(_) => Ok(()),
            Self::Named(feed) => feed.acknowledge(commit),
        }
    }

    fn acknowledged(&self) -> Option<u64> {
        match self {
            Self::Unnamed(_) => None,
            Self::Named(feed) => Some(feed.acknowledged()),
        }
    }
}

#[derive(Serialize)]
struct Report {
    position: u64,
    commits: u64,
    updates: u64,
    acknowledged: Option<u64>,
}

#[derive(Serialize)]
struct NamedTable<'a> {
    id: u64,
    name: &'a str,
}

#[derive(Serialize)]
struct PrintedUpdate {
    op: &'static str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blob: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<Value>,
}

#[derive(Serialize)]
struct PrintedPart<'a> {
    #[serde(flatten)]
    table: NamedTable<'a>,
    updates: Vec<PrintedUpdate>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Printed<'a> {
    Commit {
        commit: u64,
        from: u64,
        is_first: bool,
        is_last: bool,
        tables: Vec<PrintedPart<'a>>,
    },
    TableCreated {
        #[serde(flatten)]
        table: NamedTable<'a>,
        merge_operator: &'a str,
    },
    TableDropped {
        #[serde(flatten)]
        table: NamedTable<'a>,
    },
    TableRenamed {
        #[serde(flatten)]
        table: NamedTable<'a>,
        from_name: &'a str,
    },
    TableLoaded {
        #[serde(flatten)]
        table: NamedTable<'a>,
        merge_operator: &'a str,
        commit: Option<u64>,
        has_entries: bool,
    },
    TableEntries {
        #[serde(flatten)]
        table: NamedTable<'a>,
        commit: Option<u64>,
        is_last: bool,
        updates: Vec<PrintedUpdate>,
    },
    RolledBack {
        commit: u64,
        to: u64,
        gone: Vec<NamedTable<'a>>,
        back: Vec<NamedTable<'a>>,
    },
}

fn named(table: &FeedTable) -> NamedTable<'_> {
    NamedTable { id: table.id, name: table.name.as_str() }
}

fn printed_update(update: &FeedUpdate) -> PrintedUpdate {
    let shown = |bytes: &Vec<u8>| Some(literal::shown(bytes));
    let key = literal::shown(&update.key);
    let (op, value, blob, end) = match &update.change {
        FeedChange::Insert(value) => ("insert", shown(value), None, None),
        FeedChange::InsertWithBlob(value, blob) => ("insert", shown(value), shown(blob), None),
        FeedChange::Upsert(value) => ("upsert", shown(value), None, None),
        FeedChange::DeleteRange(end) => {
            let end = end.as_ref().map_or(Value::Null, |end| Value::String(literal::shown(end)));
            ("delete_range", None, None, Some(end))
        }
        _ => ("delete", None, None, None),
    };
    PrintedUpdate { op, key, value, blob, end }
}

fn printed(item: &FeedItem) -> Option<Printed<'_>> {
    Some(match item {
        FeedItem::Commit(commit) => Printed::Commit {
            commit: commit.number,
            from: commit.from,
            is_first: commit.is_first,
            is_last: commit.is_last,
            tables: commit
                .tables
                .iter()
                .map(|part| PrintedPart {
                    table: named(&part.table),
                    updates: part.updates.iter().map(printed_update).collect(),
                })
                .collect(),
        },
        FeedItem::TableCreated { table, merge_operator, .. } => {
            Printed::TableCreated { table: named(table), merge_operator }
        }
        FeedItem::TableDropped { table } => Printed::TableDropped { table: named(table) },
        FeedItem::TableRenamed { table, from } => {
            Printed::TableRenamed { table: named(table), from_name: from.as_str() }
        }
        FeedItem::TableLoaded { table, merge_operator, commit, has_entries, .. } => {
            let (commit, has_entries) = (*commit, *has_entries);
            Printed::TableLoaded { table: named(table), merge_operator, commit, has_entries }
        }
        FeedItem::TableEntries { table, commit, is_last, updates } => Printed::TableEntries {
            table: named(table),
            commit: *commit,
            is_last: *is_last,
            updates: updates.iter().map(printed_update).collect(),
        },
        FeedItem::RolledBack { commit, to, gone, back } => Printed::RolledBack {
            commit: *commit,
            to: *to,
            gone: gone.iter().map(named).collect(),
            back: back.iter().map(named).collect(),
        },
        _ => return None,
    })
}

/// Lines of an event for people.
fn lines(item: &FeedItem) -> Vec<String> {
    match item {
        FeedItem::Commit(commit) => commit_lines(commit),
        FeedItem::TableCreated { table, .. } => vec![format!("table {} created", table.name)],
        FeedItem::TableDropped { table } => vec![format!("table {} dropped", table.name)],
        FeedItem::TableRenamed { table, from } => {
            vec![format!("table {from} renamed to {}", table.name)]
        }
        FeedItem::TableLoaded { table, commit: Some(commit), .. } => {
            vec![format!("commit {commit}: table {} loaded", table.name)]
        }
        FeedItem::TableLoaded { table, .. } => vec![format!("table {} loaded", table.name)],
        FeedItem::TableEntries { table, updates, .. } => update_lines(table, updates).collect(),
        FeedItem::RolledBack { commit, to, .. } => {
            vec![format!("commit {commit}: rolled back to version {to}")]
        }
        _ => Vec::new(),
    }
}

fn commit_lines(commit: &FeedCommit) -> Vec<String> {
    let mut lines = Vec::new();
    if commit.is_first {
        lines.push(if commit.from == commit.number {
            format!("commit {}", commit.number)
        } else {
            format!("commits {} to {}", commit.from, commit.number)
        });
    }
    for part in &commit.tables {
        lines.extend(update_lines(&part.table, &part.updates));
    }
    lines
}

fn update_lines<'a>(
    table: &'a FeedTable,
    updates: &'a [FeedUpdate],
) -> impl Iterator<Item = String> + 'a {
    updates.iter().map(|update| {
        let key = update.key.as_slice();
        let (sign, fields): (&str, Vec<&[u8]>) = match &update.change {
            FeedChange::Insert(value) => ("+", vec![key, value]),
            FeedChange::InsertWithBlob(value, blob) => ("+", vec![key, value, blob]),
            FeedChange::Upsert(value) => ("*", vec![key, value]),
            FeedChange::DeleteRange(Some(end)) => ("-", vec![key, end]),
            FeedChange::DeleteRange(None) => ("-", vec![key, b"..."]),
            _ => ("-", vec![key]),
        };
        format!("{sign}\t{}\t{}", table.name, literal::line(fields.into_iter()))
    })
}

fn update_count(item: &FeedItem) -> u64 {
    match item {
        FeedItem::Commit(commit) => {
            commit.tables.iter().map(|part| part.updates.len() as u64).sum()
        }
        FeedItem::TableEntries { updates, .. } => updates.len() as u64,
        _ => 0,
    }
}

/// The changes from the first commit that is there.
fn from_first(reader: &StoreReader, options: &FeedOptions) -> terrane::lsm::Result<Changes> {
    match reader.changes_with(1, options) {
        Err(Error::FeedGap { first, .. }) => reader.changes_with(first, options),
        changes => changes,
    }
}

impl ChangesCommand {
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
        let dir = self.dir.as_ref().or(self.store.as_ref());
        let dir = dir.ok_or_else(|| Failure::no_store("DIR"))?;
        let reader = open_to_read(dir)?;
        let options = FeedOptions::default().loaded_entries(true);
        let mut source = match (&self.cursor, self.from) {
            (Some(name), _) => Source::Named(Box::new(reader.feed_with(name, &options)?)),
            (None, Some(from)) => Source::Unnamed(Box::new(reader.changes_with(from, &options)?)),
            (None, None) => Source::Unnamed(Box::new(from_first(&reader, &options)?)),
        };
        drop(reader);

        let report = self.print_all(&mut source)?;
        if self.output.json || self.json_lines {
            return output::report("changes", true, &report, &[]).map(|()| 0);
        }
        Ok(0)
    }

    fn print_all(&self, source: &mut Source) -> Result<Report, Failure> {
        let progress = Progress::new(true);
        let mut out = output::Lines::default();
        let (mut commits, mut updates) = (0, 0);
        let mut unacknowledged = 0;
        loop {
            let mut item = source.wait(Duration::ZERO)?;
            if item.is_none() || unacknowledged >= ACKNOWLEDGE_EVERY {
                // Taken by whoever reads, before it is acknowledged.
                if !out.flush()? {
                    break;
                }
                source.acknowledge(source.position())?;
                unacknowledged = 0;
            }
            if item.is_none() && self.follow && !progress.stop() {
                item = source.wait(WAIT)?;
                if item.is_none() {
                    continue;
                }
            }
            let Some(item) = item else { break };
            if progress.stop() {
                return Err(Failure::interrupted("interrupted"));
            }

            updates += update_count(&item);
            let is_whole = match &item {
                FeedItem::Commit(commit) => commit.is_last,
                FeedItem::RolledBack { .. } => true,
                FeedItem::TableLoaded { commit, has_entries, .. } => {
                    commit.is_some() && !has_entries
                }
                FeedItem::TableEntries { commit, is_last, .. } => commit.is_some() && *is_last,
                _ => false,
            };
            commits += u64::from(is_whole);
            unacknowledged += u64::from(is_whole);
            if !self.print(&mut out, &item)? {
                break;
            }
        }
        if self.follow && progress.stop() {
            return Err(Failure::interrupted("interrupted"));
        }
        let acknowledged = source.acknowledged();
        Ok(Report { position: source.position(), commits, updates, acknowledged })
    }

    /// Prints an event; returns `false` if the reader of standard output went away.
    fn print(&self, out: &mut output::Lines, item: &FeedItem) -> Result<bool, Failure> {
        if self.json_lines {
            let Some(printed) = printed(item) else { return Ok(true) };
            let line = serde_json::to_string(&printed);
            return out.add(&line.map_err(|error| Failure::environment(error.to_string()))?);
        }
        // One object about many commits would not end.
        if self.output.json {
            return Ok(true);
        }
        for line in lines(item) {
            if !out.add(&line)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Sub-commands of `terrane feed`.
#[derive(Debug, Subcommand)]
pub(crate) enum Feeds {
    /// Lists the feeds; works beside a process that has the store open
    #[command(after_help = LIST_EXAMPLES)]
    List(StoreArgs),
    /// Creates a feed that begins with a commit, or with what is still to come
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArgs),
    /// Deletes a feed that no consumer has open; the store lets go of what it kept for the feed
    #[command(aliases = ["drop", "remove"], after_help = DELETE_EXAMPLES)]
    Delete(NameArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the feed
    #[arg(value_name = "NAME")]
    name: String,
    /// First commit; without it the next one
    #[arg(long, value_name = "N", value_parser = args::count)]
    from: Option<u64>,
    /// Size of the log that the store keeps for the feed at most; 1 GiB by default
    #[arg(long, value_name = "SIZE", value_parser = args::positive_size)]
    hold: Option<u64>,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// Name of the feed
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Serialize)]
struct ListedFeed {
    name: String,
    acknowledged: u64,
    held_bytes_max: u64,
}

#[derive(Serialize)]
struct Listed {
    feeds: Vec<ListedFeed>,
}

#[derive(Serialize)]
struct Deleted<'a> {
    name: &'a str,
}

impl ListedFeed {
    fn new(info: FeedInfo) -> Self {
        let FeedInfo { name, acknowledged, held_bytes_max, .. } = info;
        Self { name, acknowledged, held_bytes_max }
    }
}

impl Feeds {
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::List(_) => "feed list",
            Self::Create(_) => "feed create",
            Self::Delete(_) => "feed delete",
        }
    }

    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match self {
            Self::List(args) => list(args),
            Self::Create(args) => args.run(),
            Self::Delete(args) => args.delete(),
        }
        .map(|()| 0)
    }
}

fn list(args: &StoreArgs) -> Result<(), Failure> {
    let feeds = open_to_read(&args.store)?.feeds()?;
    let listed = Listed { feeds: feeds.into_iter().map(ListedFeed::new).collect() };
    if args.output.json {
        return output::report("feed list", true, &listed, &[]);
    }
    if listed.feeds.is_empty() {
        return output::print("no feeds");
    }
    let line = |feed: &ListedFeed| {
        let held = output::bytes(feed.held_bytes_max);
        format!("{}  commit {}, holds up to {held}", feed.name, grouped(feed.acknowledged))
    };
    output::print(&listed.feeds.iter().map(line).collect::<Vec<_>>().join("\n"))
}

impl CreateArgs {
    fn run(&self) -> Result<(), Failure> {
        let reader = open_to_read(&self.common.store)?;
        let held_bytes_max = self.hold.unwrap_or(FEED_HELD_BYTES);
        let options = FeedOptions::default().held_bytes_max(held_bytes_max);
        let feed = reader.create_feed(&self.name, self.from, &options)?;
        let acknowledged = feed.acknowledged();
        let created = ListedFeed { name: self.name.clone(), acknowledged, held_bytes_max };
        let lines = [("created", self.name.clone()), ("behind commit", acknowledged.to_string())];
        output::report("feed create", self.common.output.json, &created, &lines)
    }
}

impl NameArgs {
    fn delete(&self) -> Result<(), Failure> {
        open_to_read(&self.common.store)?.drop_feed(&self.name)?;
        let lines = [("deleted", self.name.clone())];
        output::report(
            "feed delete",
            self.common.output.json,
            &Deleted { name: &self.name },
            &lines,
        )
    }
}
