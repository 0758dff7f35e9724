//! The change feed of a store: every durable commit in order, as rows.
//!
//! One thing that happened becomes one row or several. Rows wait in `terrane_changes` until memory
//! of the caller has room.

use std::collections::VecDeque;
use std::time::Duration;

use terrane::lsm::{
    Changes, Error, Feed, FeedChange, FeedCommit, FeedItem, FeedOptions, FeedTable,
};
use terrane_verify::bytes::{Arena, slice_mut, text};
use terrane_verify::error::{
    Failure, Outcome, free, give, give_handle, guard, handle, handle_mut, terrane_code,
};

use crate::store::terrane_store;

/// Kinds of rows of a change feed.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum terrane_change_kind {
    /// The key was removed.
    TERRANE_CHANGE_DELETE = 0,
    /// The key got the value.
    TERRANE_CHANGE_PUT = 1,
    /// All keys from the key on that are below the value were removed.
    TERRANE_CHANGE_DELETE_RANGE = 2,
    /// All keys from the key on were removed.
    TERRANE_CHANGE_DELETE_FROM = 3,
    /// The value was merged into that of the key.
    TERRANE_CHANGE_UPSERT = 4,
    /// The value is the blob of the key of the row before, which put it.
    TERRANE_CHANGE_BLOB = 5,
    /// The rows that follow, to the next row of this kind, are updates of this table; the key is
    /// its name.
    TERRANE_CHANGE_TABLE = 6,
    /// The rows above are all of the commit. `table` is the first commit that they stand for: the
    /// same, or an earlier one where only the difference between two versions is known.
    TERRANE_CHANGE_COMMIT = 16,
    /// An empty table was made; the key is its name.
    TERRANE_CHANGE_TABLE_CREATED = 17,
    /// A table was dropped; the key is its name.
    TERRANE_CHANGE_TABLE_DROPPED = 18,
    /// A table got another name: the key is the new one, the value the old one.
    TERRANE_CHANGE_TABLE_RENAMED = 19,
    /// A table came with entries that the feed does not tell; the key is its name. Read the table.
    TERRANE_CHANGE_TABLE_LOADED = 20,
    /// The commit made all tables what they were in a version, whose number is `table`. Rows of
    /// tables that went and of tables that came back follow.
    TERRANE_CHANGE_ROLLED_BACK = 21,
    /// A table went with the roll-back; the key is its name.
    TERRANE_CHANGE_TABLE_GONE = 22,
    /// A table came back with the roll-back; the key is its name.
    TERRANE_CHANGE_TABLE_BACK = 23,
}

/// A row of a change feed, with a key and a value beside it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct terrane_change {
    /// Number of the commit; 0 where there is none.
    pub commit: u64,
    /// Number of the table, which no other table gets, unless the kind says otherwise.
    pub table: u64,
    /// A `terrane_change_kind`.
    pub kind: u32,
}

/// A change feed. Freed by `terrane_changes_free`; until then the store keeps its log from the
/// feed's place on. One thread at a time.
#[derive(Debug)]
pub struct terrane_changes {
    source: Source,
    /// Rows that have not been given.
    rows: VecDeque<Row>,
    /// A failure behind rows that were given: that of the next call.
    failure: Option<Failure>,
}

impl terrane_changes {
    fn new(source: Source) -> Self {
        Self { source, rows: VecDeque::new(), failure: None }
    }
}

#[derive(Debug)]
enum Source {
    Changes(Changes),
    Feed(Feed),
}

impl Source {
    fn wait(&mut self, timeout: Duration) -> Result<Option<FeedItem>, Error> {
        match self {
            Self::Changes(changes) => changes.wait(timeout),
            Self::Feed(feed) => feed.wait(timeout),
        }
    }
}

#[derive(Debug)]
struct Row {
    change: terrane_change,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Row {
    fn new(kind: terrane_change_kind, commit: u64, table: u64) -> Self {
        let change = terrane_change { commit, table, kind: kind as u32 };
        Self { change, key: Vec::new(), value: Vec::new() }
    }

    /// A row about a table: its number and its name.
    fn of_table(kind: terrane_change_kind, commit: u64, table: &FeedTable) -> Self {
        let key = table.name.as_str().as_bytes().to_vec();
        Self { key, ..Self::new(kind, commit, table.id) }
    }
}

/// Rows of one thing that happened.
fn rows_of(item: FeedItem, rows: &mut VecDeque<Row>) -> Outcome<()> {
    use terrane_change_kind as Kind;
    match item {
        FeedItem::Commit(commit) => rows_of_commit(commit, rows)?,
        FeedItem::TableCreated { table, .. } => {
            rows.push_back(Row::of_table(Kind::TERRANE_CHANGE_TABLE_CREATED, 0, &table));
        }
        FeedItem::TableDropped { table } => {
            rows.push_back(Row::of_table(Kind::TERRANE_CHANGE_TABLE_DROPPED, 0, &table));
        }
        FeedItem::TableRenamed { table, from } => {
            let value = from.as_str().as_bytes().to_vec();
            let row = Row::of_table(Kind::TERRANE_CHANGE_TABLE_RENAMED, 0, &table);
            rows.push_back(Row { value, ..row });
        }
        FeedItem::TableLoaded { table, commit, .. } => {
            let kind = Kind::TERRANE_CHANGE_TABLE_LOADED;
            rows.push_back(Row::of_table(kind, commit.unwrap_or_default(), &table));
        }
        FeedItem::RolledBack { commit, to, gone, back } => {
            rows.push_back(Row::new(Kind::TERRANE_CHANGE_ROLLED_BACK, commit, to));
            let gone = gone.iter().map(|table| (Kind::TERRANE_CHANGE_TABLE_GONE, table));
            let back = back.iter().map(|table| (Kind::TERRANE_CHANGE_TABLE_BACK, table));
            rows.extend(gone.chain(back).map(|(kind, table)| Row::of_table(kind, commit, table)));
        }
        _ => return Err(unknown()),
    }
    Ok(())
}

fn unknown() -> Failure {
    let message = "the feed tells something that this interface does not know".to_owned();
    Failure { code: terrane_code::TERRANE_UNSUPPORTED, message }
}

fn rows_of_commit(commit: FeedCommit, rows: &mut VecDeque<Row>) -> Outcome<()> {
    use terrane_change_kind as Kind;
    let number = commit.number;
    for part in commit.tables {
        rows.push_back(Row::of_table(Kind::TERRANE_CHANGE_TABLE, number, &part.table));
        for update in part.updates {
            let row = |kind| Row::new(kind, number, part.table.id);
            let (kind, value, blob) = match update.change {
                FeedChange::Insert(value) => (Kind::TERRANE_CHANGE_PUT, value, None),
                FeedChange::InsertWithBlob(value, blob) => {
                    (Kind::TERRANE_CHANGE_PUT, value, Some(blob))
                }
                FeedChange::Upsert(value) => (Kind::TERRANE_CHANGE_UPSERT, value, None),
                FeedChange::DeleteRange(Some(end)) => {
                    (Kind::TERRANE_CHANGE_DELETE_RANGE, end, None)
                }
                FeedChange::DeleteRange(None) => {
                    (Kind::TERRANE_CHANGE_DELETE_FROM, Vec::new(), None)
                }
                FeedChange::Delete => (Kind::TERRANE_CHANGE_DELETE, Vec::new(), None),
                _ => return Err(unknown()),
            };
            rows.push_back(Row { key: update.key, value, ..row(kind) });
            if let Some(value) = blob {
                rows.push_back(Row { value, ..row(Kind::TERRANE_CHANGE_BLOB) });
            }
        }
    }
    if commit.is_last {
        rows.push_back(Row::new(Kind::TERRANE_CHANGE_COMMIT, number, commit.from));
    }
    Ok(())
}

/// Begins a change feed with a commit: 1 for everything, and the last commit + 1 for what is still
/// to come. Only what is durable is told. If the store has let go of that part of its log, the call
/// fails, and its message names the first commit that is there. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_changes_new(
    store: *const terrane_store,
    from_commit: u64,
    out: *mut *mut terrane_changes,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let changes = unsafe { handle(store) }?.0.changes(from_commit)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_changes::new(Source::Changes(changes))) }
    })
}

/// Makes a feed with a name, durably, that begins with a commit, or with what is still to come if
/// `from_commit` is 0. From then on the store keeps its log for it, up to a limit, also while it is
/// closed. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_feed_create(
    store: *const terrane_store,
    name: *const u8,
    name_len: usize,
    from_commit: u64,
    out: *mut *mut terrane_changes,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let name = unsafe { text(name, name_len) }?;
        let from = (from_commit > 0).then_some(from_commit);
        if out.is_null() {
            return Err(Failure::bad_input("an out-parameter is null"));
        }
        let feed = store.0.create_feed(name, from, &FeedOptions::default())?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_changes::new(Source::Feed(feed))) }
    })
}

/// Opens a feed by its name, behind the commit that was acknowledged last. The caller owns `*out`.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_feed_open(
    store: *const terrane_store,
    name: *const u8,
    name_len: usize,
    out: *mut *mut terrane_changes,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        let feed = store.0.feed(unsafe { text(name, name_len) }?)?;
        // SAFETY: the caller keeps the contract.
        unsafe { give_handle(out, terrane_changes::new(Source::Feed(feed))) }
    })
}

/// Removes a feed by its name. The store lets go of the log that only this feed needed.
///
/// # Safety
/// Pointers are valid as their types and lengths say, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_feed_drop(
    store: *const terrane_store,
    name: *const u8,
    name_len: usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let store = unsafe { handle(store) }?;
        // SAFETY: the caller keeps the contract.
        Ok(store.0.drop_feed(unsafe { text(name, name_len) }?)?)
    })
}

/// Says that the consumer of a feed with a name is done with all commits up to this one, durably:
/// no later opening of the feed tells them. `commit` is that of a `TERRANE_CHANGE_COMMIT` row.
///
/// Cost: one write and one fsync of a file of 1 KiB.
///
/// # Safety
/// `changes` is a handle that no other thread uses, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_feed_acknowledge(
    changes: *mut terrane_changes,
    commit: u64,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        match &mut unsafe { handle_mut(changes) }?.source {
            Source::Feed(feed) => Ok(feed.acknowledge(commit)?),
            Source::Changes(_) => Err(Failure::bad_input("a feed without a name has no memory")),
        }
    })
}

/// Frees a feed; one with a name stays in its store. Null is nothing.
///
/// # Safety
/// `changes` is null, or a handle that nobody uses during or after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_changes_free(changes: *mut terrane_changes) {
    // SAFETY: the caller keeps the contract.
    unsafe { free(changes) };
}

/// Writes the next rows of a feed, as many as fit and at most `rows_max`, and passes them. Gives
/// their number. If there is none, the call waits up to `timeout_ms` milliseconds for a commit to
/// become durable, and the number is 0 if none came.
///
/// Keys and values are as of `terrane_cursor_next_chunk`, a row that has none has no bytes there;
/// `changes_out` has room for `rows_max`. If the first row alone does not fit, the call fails with
/// `TERRANE_TOO_SMALL`, passes nothing, and `key_offsets[1]` and `value_offsets[1]` are how much it
/// needs. After another failure, the rows since the last `TERRANE_CHANGE_COMMIT` are told again.
///
/// Cost: reads the log once, in pieces.
///
/// # Safety
/// Pointers are valid as their types and counts say, or null; nobody else uses the feed or the
/// memory during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn terrane_changes_next_chunk(
    changes: *mut terrane_changes,
    timeout_ms: u64,
    rows_max: usize,
    changes_out: *mut terrane_change,
    keys: *mut u8,
    key_capacity: usize,
    key_offsets: *mut usize,
    values: *mut u8,
    value_capacity: usize,
    value_offsets: *mut usize,
    rows: *mut usize,
) -> terrane_code {
    guard(|| {
        // SAFETY: the caller keeps the contract.
        let feed = unsafe { handle_mut(changes) }?;
        if rows.is_null() || rows_max == 0 {
            return Err(Failure::bad_input("rows is null, or rows_max is 0"));
        }
        // SAFETY: the caller keeps the contract.
        let places = unsafe { slice_mut(changes_out, rows_max) }?;
        // SAFETY: the caller keeps the contract.
        let mut keys = unsafe { Arena::new(rows_max, keys, key_capacity, key_offsets) }?;
        // SAFETY: the caller keeps the contract.
        let mut values = unsafe { Arena::new(rows_max, values, value_capacity, value_offsets) }?;

        if let Some(failure) = feed.failure.take() {
            return Err(failure);
        }
        let mut passed = 0;
        while passed < rows_max {
            // Only a call that has nothing yet waits.
            let timeout = if passed == 0 { timeout_ms } else { 0 };
            if feed.rows.is_empty() {
                let item = feed.source.wait(Duration::from_millis(timeout));
                let told = item
                    .map_err(Failure::from)
                    .and_then(|item| item.map(|item| rows_of(item, &mut feed.rows)).transpose());
                match told {
                    Ok(Some(())) => continue,
                    Ok(None) => break,
                    Err(failure) if passed == 0 => return Err(failure),
                    Err(failure) => feed.failure = Some(failure),
                }
                break;
            }
            let row = &feed.rows[0];
            let fits = keys.has_room(row.key.len()) && values.has_room(row.value.len());
            if !fits && passed > 0 {
                break;
            }
            keys.push(&row.key);
            values.push(&row.value);
            if !fits {
                return Err(Failure::too_small("a row"));
            }
            places[passed].write(row.change);
            feed.rows.pop_front();
            passed += 1;
        }
        // SAFETY: the caller keeps the contract.
        unsafe { give(rows, passed) }
    })
}
