//! State that all handles of an open store share: the connections, the lock, the number of the last
//! commit, and the old values that snapshots need.
//!
//! # Who may write
//!
//! Opening for writing takes the lock, a key with a lease that every later use renews, and enters
//! its token as `owner`. The lease decides when another process may take over. The script of a
//! commit checks `owner` and `fence`, so that no late commit of a former owner takes place.
//!
//! # A commit whose answer is lost
//!
//! The store keeps the id of its last commit. If no answer arrives, this process raises the fence
//! on another connection. The server then either has executed the commit, which the id shows, or
//! never will, even if the request still lies in a buffer of a stopped server. While the server
//! cannot be reached, the outcome is unknown; later reads and commits find out first.
//!
//! # Snapshots
//!
//! See [`Undo`]. A commit that is sent while no snapshot lives notes no old values. A reader that
//! begins before the answer arrives waits for the answer.
//!
//! Lock order: the turn of the writer, `finding_out`, the mutex of the state. No request is sent
//! under the mutex of the state.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ::redis::Value;
use terrane_kv::overlay::undo::{Old, Undo};
use terrane_kv::turn::{Turn, TurnGuard};
use terrane_kv::{Counts, Durability, Error, Receipt, Result};

use super::batches::{Batch, Changes, batches, makes_room};
use super::connection::{Connections, Failure};
use super::error::{NAME, StoreError, bad_reply, corrupt, error_of, locked, store_error};
use super::options::Options;
use super::script::{
    ACQUIRE, COMMIT, COUNT, Call, FENCE, FORMAT, Keys, Meta, PAGE, READ, RELEASE, RENEW, STAGE,
    STATE, UNSTAGE, array_of, bytes_of, count_of,
};
use super::server_info::ServerInfo;

/// Most keys whose values one request asks for.
pub(crate) const READ_KEYS_MAX: usize = 1_000;
/// Most keys that one request counts.
const COUNT_KEYS_MAX: usize = 10_000;

/// A page of a table, ascending.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether the range has no further entries.
    pub(crate) is_last: bool,
}

/// Range of a page, in the order of the direction, with ends in the form of `ZRANGE BYLEX`.
#[derive(Debug)]
pub(crate) struct PageRange {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
    pub(crate) is_backward: bool,
    pub(crate) entries_max: usize,
    pub(crate) bytes_max: usize,
}

/// Point in the history of the store that answers must agree with.
#[derive(Debug, Clone)]
pub(crate) enum ReadPoint {
    /// This process writes, and reads as of this commit.
    Own(u64),
    /// Another process may write; the store must not have changed since.
    Other(Meta),
}

/// Reason why the database can be used no more.
#[derive(Debug, Clone, Copy)]
enum End {
    Closed,
    LockLost,
    CommitsLost { known: u64, found: u64 },
}

impl End {
    fn error(self, call: &'static str) -> Error {
        match self {
            Self::Closed => store_error(call, StoreError::Closed),
            Self::LockLost => locked(
                "the lease of the lock ran out and another process took it; nothing was changed; open the database anew",
            ),
            Self::CommitsLost { known, found } => {
                store_error(call, StoreError::CommitsLost { known, found })
            }
        }
    }
}

/// A commit without an answer yet.
#[derive(Debug, Clone)]
struct InFlight {
    id: String,
    /// Whether the replaced values were noted for snapshots.
    is_noted: bool,
    /// Whether its answer was lost.
    is_lost: bool,
}

#[derive(Debug)]
struct State {
    /// The last commit that is known to have taken place.
    version: u64,
    fence: u64,
    /// Number of begun commits, for their ids.
    begun: u64,
    undo: Undo,
    in_flight: Option<InFlight>,
    /// When the lease began for the last time.
    renewed: Instant,
    end: Option<End>,
}

/// Entries of a table, and the values of keys that a commit changes, before the commit.
struct Replaced<'c> {
    table: usize,
    count: u64,
    values: Vec<(&'c [u8], Old)>,
}

/// Outcome of a commit.
enum Outcome {
    TookPlace,
    /// The commit did not and will not take place, for this reason.
    Refused(Error),
    Unknown(Error),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) connections: Connections,
    pub(crate) keys: Keys,
    pub(crate) server_info: ServerInfo,
    pub(crate) token: String,
    pub(crate) value_bytes_max: usize,
    state: Mutex<State>,
    /// The right to write.
    turn: Turn,
    changed: Condvar,
    /// Held while a thread finds out about a lost answer.
    finding_out: Mutex<()>,
    transactions: AtomicU64,
    syncs: AtomicU64,
}

impl Inner {
    pub(crate) fn open(options: Options, token: String) -> Result<Self> {
        options.check()?;
        let keys = Keys::new(&options.prefix, &options.indexes);
        let connections = Connections::new(&options, keys.meta())?;

        // While the server rewrites its log, it does not tell whether the log has all commits.
        let must_know = matches!(options.durability, Durability::Each | Durability::Group);
        let what = "the server is writing its log anew, and promises no durable commits meanwhile";
        let server_info =
            ServerInfo::read_when(&connections, options.read_timeout, what, |server_info| {
                !(must_know && server_info.syncs_each() && server_info.is_rewriting_log())
            })?;

        server_info.check(&options)?;
        let (version, fence) = if options.read_only {
            let meta = read_state(&connections, &keys)?;
            let prefix = options.prefix.clone();
            let missing = || store_error("opening", StoreError::NoStore { prefix });
            (meta.exists.then_some(meta.version).ok_or_else(missing)?, 0)
        } else {
            acquire(&connections, &keys, &options, &token)?
        };

        let state = State {
            version,
            fence,
            begun: 0,
            undo: Undo::new(keys.tables()),
            in_flight: None,
            renewed: Instant::now(),
            end: None,
        };

        Ok(Self {
            value_bytes_max: server_info.value_bytes_max(),
            connections,
            keys,
            server_info,
            token,
            options,
            state: Mutex::new(state),
            turn: Turn::default(),
            changed: Condvar::new(),
            finding_out: Mutex::new(()),
            transactions: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if the database was closed or can be used no more.
    pub(crate) fn is_open(&self, call: &'static str) -> Result<()> {
        self.state().end.map_or(Ok(()), |end| Err(end.error(call)))
    }

    pub(crate) fn counts(&self) -> Counts {
        let (bytes_written, bytes_read) = self.connections.bytes();
        Counts {
            transactions: self.transactions.load(Ordering::Relaxed),
            syncs: self.syncs.load(Ordering::Relaxed),
            bytes_written,
            bytes_read,
        }
    }

    pub(crate) fn count_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a snapshot.
    pub(crate) fn begin_snapshot(&self) -> Result<ReadPoint> {
        self.is_open("reader")?;
        if self.options.read_only {
            return Ok(ReadPoint::Other(self.existing()?));
        }
        self.keep_lock()?;
        let mut state = self.certain_state("reader", false)?;
        let version = state.version;
        // Under the lock of the state, so that the next commit notes its old values for this
        // snapshot.
        state.undo.begin(version);
        Ok(ReadPoint::Own(version))
    }

    /// Ends a snapshot.
    pub(crate) fn end_snapshot(&self, point: &ReadPoint) {
        if let ReadPoint::Own(version) = point {
            self.state().undo.end(*version);
        }
    }

    fn existing(&self) -> Result<Meta> {
        let meta = read_state(&self.connections, &self.keys)?;
        let prefix = self.options.prefix.clone();
        if meta.exists {
            Ok(meta)
        } else {
            Err(store_error("reader", StoreError::NoStore { prefix }))
        }
    }

    /// Begins a transaction; waits for the writer of another thread. Returns the commit that it
    /// starts from.
    pub(crate) fn begin_writing(&self) -> Result<(u64, TurnGuard<'_>)> {
        self.is_open("writer")?;
        if self.options.read_only {
            return Err(Error::ReadOnly { back_end: NAME });
        }
        let turn = self.turn.take(NAME)?;
        self.keep_lock()?;
        Ok((self.certain_state("writer", true)?.version, turn))
    }

    /// Locks the state once the outcome of the last commit is known. `is_still` waits for any
    /// commit without an answer, else only for one whose old values were not noted.
    fn certain_state(&self, call: &'static str, is_still: bool) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        loop {
            if let Some(end) = state.end {
                return Err(end.error(call));
            }

            match &state.in_flight {
                None => return Ok(state),
                Some(in_flight) if in_flight.is_lost => {
                    drop(state);
                    self.find_out()?;
                    state = self.state();
                }
                Some(in_flight) if in_flight.is_noted && !is_still => return Ok(state),
                Some(_) => state = self.wait(state),
            }
        }
    }

    /// Renews the lease if a third of it has passed.
    pub(crate) fn keep_lock(&self) -> Result<()> {
        // Long before the lease ends, so that a slow server does not cost the lock.
        let is_due = self.state().renewed.elapsed() >= self.options.lease / 3;
        if is_due { self.renew() } else { Ok(()) }
    }

    /// Renews the lease. Cost: one round trip.
    pub(crate) fn renew(&self) -> Result<()> {
        self.is_open("renew")?;
        let version = self.state().version;
        // The lease counts from before the request: the server may have renewed it at once.
        let now = Instant::now();
        let lease = self.lease();
        let arguments = vec![self.token.as_bytes(), lease.as_bytes()];
        let keys = vec![self.keys.meta(), self.keys.lock()];
        let value = self.connections.eval_again(&Call { script: &RENEW, keys, arguments })?;
        self.agree(&Meta::parse("renew", value)?, &ReadPoint::Own(version))?;
        self.state().renewed = now;
        Ok(())
    }

    fn lease(&self) -> String {
        self.options.lease.as_millis().to_string()
    }

    /// Refuses an answer of the server that does not agree with `point`.
    fn agree(&self, meta: &Meta, point: &ReadPoint) -> Result<()> {
        let end = match point {
            ReadPoint::Own(_) if meta.exists && meta.owner != self.token.as_bytes() => {
                End::LockLost
            }
            ReadPoint::Own(known) if !meta.exists || meta.version < *known => {
                End::CommitsLost { known: *known, found: meta.version }
            }
            ReadPoint::Other(before)
                if (before.version, &before.commit) != (meta.version, &meta.commit) =>
            {
                return Err(Error::Busy {
                    back_end: NAME,
                    what:
                        "another process has committed since the snapshot was made; make a new one"
                            .to_owned(),
                    source: None,
                });
            }
            ReadPoint::Own(_) | ReadPoint::Other(_) => return Ok(()),
        };

        // The first reason counts.
        let end = *self.state().end.get_or_insert(end);
        Err(end.error("reading"))
    }

    /// Values of keys on the server. Cost: a round trip for every [`READ_KEYS_MAX`]
    /// keys.
    pub(crate) fn read(&self, point: &ReadPoint, table: usize, keys: &[&[u8]]) -> Result<Vec<Old>> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(READ_KEYS_MAX) {
            let names = vec![self.keys.meta(), self.keys.values(table)];
            let call = Call { script: &READ, keys: names, arguments: keys.to_vec() };
            let [meta, found] = array_of("read", self.connections.eval_again(&call)?)?;
            self.agree(&Meta::parse("read", meta)?, point)?;
            let Value::Array(found) = found else { return Err(bad_reply("read")) };
            if found.len() != keys.len() {
                return Err(bad_reply("read"));
            }
            for value in found {
                values.push(bytes_of("read", value)?);
            }
        }

        Ok(values)
    }

    /// Number of entries of a table on the server, and how many of `keys` it has.
    pub(crate) fn count(
        &self,
        point: &ReadPoint,
        table: usize,
        keys: &[&[u8]],
    ) -> Result<(u64, u64)> {
        let names = vec![self.keys.meta(), self.keys.order(table), self.keys.values(table)];
        let mut all = 0;
        let mut among = 0;

        let nothing: [&[&[u8]]; 1] = [&[]];
        let chunks: &mut dyn Iterator<Item = &[&[u8]]> = if keys.is_empty() {
            &mut nothing.into_iter()
        } else {
            &mut keys.chunks(COUNT_KEYS_MAX)
        };

        for keys in chunks {
            let call = Call { script: &COUNT, keys: names.clone(), arguments: keys.to_vec() };
            let [meta, count, found] = array_of("count", self.connections.eval_again(&call)?)?;
            self.agree(&Meta::parse("count", meta)?, point)?;
            all = count_of("count", &count)?;
            among += count_of("count", &found)?;
        }

        Ok((all, among))
    }

    /// A page of a table on the server. Cost: one round trip.
    pub(crate) fn page(&self, point: &ReadPoint, table: usize, range: &PageRange) -> Result<Page> {
        let names = vec![self.keys.meta(), self.keys.order(table), self.keys.values(table)];
        let entries_max = range.entries_max.to_string();

        let bytes_max = range.bytes_max.to_string();
        let direction: &[u8] = if range.is_backward { b"REV" } else { b"" };
        let arguments = vec![
            &range.from[..],
            &range.to,
            direction,
            entries_max.as_bytes(),
            bytes_max.as_bytes(),
        ];

        let value = self.connections.eval_again(&Call { script: &PAGE, keys: names, arguments })?;
        let [meta, is_last, strings] = array_of("page", value)?;
        self.agree(&Meta::parse("page", meta)?, point)?;
        let is_last = count_of("page", &is_last)? == 1;
        let Value::Array(strings) = strings else { return Err(bad_reply("page")) };
        let mut entries = Vec::with_capacity(strings.len() / 2);

        let mut strings = strings.into_iter();
        while let (Some(key), Some(value)) = (strings.next(), strings.next()) {
            let key = bytes_of("page", key)?.ok_or_else(|| bad_reply("page"))?;
            let value = bytes_of("page", value)?;
            entries.push((key, value.ok_or_else(|| corrupt("a key in the order has no value"))?));
        }

        // The server gave the entries from the end on.
        if range.is_backward {
            entries.reverse();
        }

        Ok(Page { entries, is_last })
    }

    /// Reads the values that later commits replaced.
    pub(crate) fn with_undo<T>(&self, read: impl FnOnce(&Undo) -> T) -> T {
        read(&self.state().undo)
    }

    /// Commits a transaction that started from commit `version`.
    pub(crate) fn commit(&self, version: u64, changes: &Changes) -> Result<Receipt> {
        self.is_open("commit")?;
        let batches = batches(changes, self.server_info.batch_bytes_max());
        let may_pass: &[u8] = if makes_room(changes) { b"1" } else { b"0" };

        // One batch goes with the commit itself. Several are staged first, so that the commit stays
        // one script.
        let staged = if batches.len() > 1 { &batches[..] } else { &[] };
        let outcome = match self.stage(staged, may_pass) {
            Ok(()) => self.carry_out(version, changes, &batches, may_pass),
            Err(error) => Outcome::Refused(error),
        };

        if !staged.is_empty() && !matches!(outcome, Outcome::TookPlace) {
            // Staged batches that stay expire with the lease.
            let keys =
                (0..staged.len()).map(|batch| self.keys.staged(&self.token, batch)).collect();
            drop(self.connections.eval(&Call { script: &UNSTAGE, keys, arguments: Vec::new() }));
        }

        match outcome {
            Outcome::TookPlace => Ok(Receipt(version + 1)),
            Outcome::Refused(error) | Outcome::Unknown(error) => Err(error),
        }
    }

    fn stage(&self, batches: &[Batch<'_>], may_pass: &[u8]) -> Result<()> {
        let lease = self.lease();
        for (number, batch) in batches.iter().enumerate() {
            self.keep_lock()?;
            let mut arguments = vec![lease.as_bytes(), may_pass];
            arguments.extend(batch.iter().map(|string| &string[..]));
            let keys = vec![self.keys.staged(&self.token, number)];
            let length = self.connections.eval_again(&Call { script: &STAGE, keys, arguments })?;
            if count_of("stage", &length)? != batch.len() as u64 {
                return Err(bad_reply("stage"));
            }
        }

        Ok(())
    }

    /// Sends a commit, whose batches are staged if there are several, and records its outcome.
    fn carry_out(
        &self,
        version: u64,
        changes: &Changes,
        batches: &[Batch<'_>],
        may_pass: &[u8],
    ) -> Outcome {
        let id = match self.take_off(version, changes) {
            Ok(id) => id,
            Err(error) => return Outcome::Refused(error),
        };
        let outcome = self.send(&id, version, batches, may_pass);
        self.land(&outcome);
        outcome
    }

    /// Notes the values that the commit replaces if a snapshot lives, and enters the commit as in
    /// flight.
    fn take_off(&self, version: u64, changes: &Changes) -> Result<String> {
        let mut replaced = None;
        loop {
            let mut state = self.state();
            if let Some(end) = state.end {
                return Err(end.error("commit"));
            }

            // The lock is given up for the reads. If a snapshot begins only after this check, it
            // waits for the commit in flight.
            if state.undo.is_needed() && replaced.is_none() {
                drop(state);
                replaced = Some(self.replaced(version, changes)?);
                continue;
            }

            state.begun += 1;
            let id = format!("{}.{}", self.token, state.begun);
            let is_noted = replaced.is_some();

            // Until the answer arrives, the commit before counts as a snapshot.
            state.undo.begin(version);
            for Replaced { table, count, values } in replaced.into_iter().flatten() {
                state.undo.note_count(version + 1, table, count);
                for (key, old) in values {
                    state.undo.note(version + 1, table, key, old);
                }
            }

            state.in_flight = Some(InFlight { id: id.clone(), is_noted, is_lost: false });
            return Ok(id);
        }
    }

    fn replaced<'c>(&self, version: u64, changes: &'c Changes) -> Result<Vec<Replaced<'c>>> {
        let point = ReadPoint::Own(version);
        let mut all = Vec::new();
        for (table, changes) in
            changes.iter().enumerate().filter(|(_, changes)| !changes.is_empty())
        {
            let keys: Vec<&[u8]> = changes.keys().map(Vec::as_slice).collect();
            let values = self.read(&point, table, &keys)?;
            let (count, _) = self.count(&point, table, &[])?;
            all.push(Replaced { table, count, values: keys.into_iter().zip(values).collect() });
        }

        Ok(all)
    }

    /// Records the outcome of the commit in flight.
    fn land(&self, outcome: &Outcome) {
        let mut state = self.state();
        let version = state.version;
        match outcome {
            Outcome::TookPlace => {
                state.version += 1;
                self.transactions.fetch_add(1, Ordering::Relaxed);
                if self.server_info.is_always() {
                    self.count_sync();
                }
            }
            // Nothing was replaced, so nothing needs to be undone.
            Outcome::Refused(_) => state.undo.forget(version + 1),
            Outcome::Unknown(_) => {
                if let Some(in_flight) = &mut state.in_flight {
                    in_flight.is_lost = true;
                }
                drop(state);
                self.changed.notify_all();
                return;
            }
        }

        debug_assert!(state.in_flight.is_some());
        state.in_flight = None;
        state.undo.end(version);
        drop(state);
        self.changed.notify_all();
    }

    fn send(&self, id: &str, version: u64, batches: &[Batch<'_>], may_pass: &[u8]) -> Outcome {
        let mut is_first = true;
        loop {
            let failure = match self.send_once(id, version, batches, may_pass) {
                Ok(reply) => return self.outcome_of(reply, version),
                Err(Failure::NotSent(error)) => return Outcome::Refused(error),
                Err(Failure::Said(error)) if !self.connections.is_cluster() => {
                    return Outcome::Refused(error_of("commit", error));
                }
                Err(failure) => failure,
            };

            let is_stale = failure.may_be_stale();
            let error = failure.into_error("commit");
            match self.void(id, version, error) {
                // The fence proves that nothing was carried out, so the commit may be sent once
                // more.
                Ok(Outcome::Refused(_)) if is_stale && is_first => is_first = false,
                Ok(Outcome::Unknown(error)) | Err(error) => {
                    return Outcome::Unknown(unknown(error));
                }
                Ok(outcome) => return outcome,
            }
        }
    }

    fn send_once(
        &self,
        id: &str,
        version: u64,
        batches: &[Batch<'_>],
        may_pass: &[u8],
    ) -> std::result::Result<Value, Failure> {
        let tables = self.keys.tables();
        let mut keys = vec![self.keys.meta(), self.keys.lock()];
        keys.extend(
            (0..tables).flat_map(|table| [self.keys.values(table), self.keys.order(table)]),
        );
        let (staged, inline) =
            if batches.len() > 1 { (batches, None) } else { (&[][..], batches.first()) };
        keys.extend((0..staged.len()).map(|batch| self.keys.staged(&self.token, batch)));
        let fence = self.state().fence;
        let mut numbers = [fence, version, version + 1].map(|number| number.to_string()).to_vec();
        numbers.push(self.lease());
        numbers.extend([tables, staged.len()].map(|number| number.to_string()));
        numbers.extend(staged.iter().map(|batch| batch.len().to_string()));
        let mut arguments = vec![self.token.as_bytes(), id.as_bytes()];
        arguments.extend(numbers[..4].iter().map(String::as_bytes));
        arguments.push(may_pass);
        arguments.extend(numbers[4..].iter().map(String::as_bytes));
        arguments.extend(inline.into_iter().flatten().map(|string: &Cow<'_, [u8]>| &string[..]));

        // The lease counts from before the request: the server may have renewed it at once.
        let sent = Instant::now();
        let reply = self.connections.eval(&Call { script: &COMMIT, keys, arguments })?;
        self.state().renewed = sent;

        Ok(reply)
    }

    fn outcome_of(&self, reply: Value, version: u64) -> Outcome {
        let reply = bytes_of("commit", reply).ok().flatten().unwrap_or_default();
        Outcome::Refused(match &reply[..] {
            b"done" => return Outcome::TookPlace,
            b"type" => corrupt("a key under the prefix has another type than the store gives it"),
            b"stage" => store_error("commit", StoreError::Unstaged),
            b"pending" => corrupt("a commit was broken off half way by the server"),
            b"owner" | b"version" => match self.renew_as(version) {
                Ok(()) => store_error("commit", StoreError::Fenced),
                Err(error) => error,
            },
            b"fence" => store_error("commit", StoreError::Fenced),
            _ => bad_reply("commit"),
        })
    }

    /// Finds out why a commit met another owner or version; returns that as an error.
    fn renew_as(&self, version: u64) -> Result<()> {
        let meta = read_state(&self.connections, &self.keys)?;
        self.agree(&meta, &ReadPoint::Own(version))
    }

    /// Finds out whether a commit without an answer took place, and prevents it from taking place
    /// later. `error` is the error of its call.
    ///
    /// # Errors
    /// Those of the server, which could not be asked.
    fn void(&self, id: &str, version: u64, error: Error) -> Result<Outcome> {
        let fence = {
            let mut state = self.state();
            // With a higher fence, a commit that is still on its way is refused.
            state.fence += 1;
            state.fence.to_string()
        };

        let arguments = vec![self.token.as_bytes(), fence.as_bytes()];
        let call = Call { script: &FENCE, keys: vec![self.keys.meta()], arguments };

        let meta = Meta::parse("fence", self.connections.eval_again(&call)?)?;
        if meta.commit == id.as_bytes() {
            return Ok(Outcome::TookPlace);
        }

        Ok(match self.agree(&meta, &ReadPoint::Own(version)) {
            Ok(()) => Outcome::Refused(error),
            Err(lost) if meta.version <= version => Outcome::Refused(lost),
            // Another process took over and committed, perhaps on top of this.
            Err(_) => Outcome::Unknown(error),
        })
    }

    /// Finds out about the commit whose answer was lost.
    fn find_out(&self) -> Result<()> {
        // One caller finds out; the others wait, and see what it found.
        let _finding_out = self.finding_out.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, version) = {
            let state = self.state();
            match &state.in_flight {
                Some(in_flight) if in_flight.is_lost => (in_flight.id.clone(), state.version),
                _ => return Ok(()),
            }
        };
        let outcome = self.void(&id, version, store_error("commit", StoreError::Fenced))?;
        self.land(&outcome);
        self.is_open("commit")
    }

    /// Gives up the lock; later calls fail.
    pub(crate) fn close(&self) -> Result<()> {
        let before = self.state().end.replace(End::Closed);
        self.changed.notify_all();
        let outcome = match before {
            Some(End::Closed) => Ok(()),
            _ if self.options.read_only => Ok(()),
            _ => self.release(),
        };
        self.connections.close_idle();
        outcome
    }

    fn release(&self) -> Result<()> {
        let keys = vec![self.keys.lock()];
        let arguments = vec![self.token.as_bytes()];
        self.connections.eval_again(&Call { script: &RELEASE, keys, arguments }).map(drop)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // If this fails, the lock expires with its lease.
        drop(self.close());
    }
}

fn unknown(error: Error) -> Error {
    Error::Unknown { back_end: NAME, source: Some(error.into()) }
}

fn read_state(connections: &Connections, keys: &Keys) -> Result<Meta> {
    let call = Call { script: &STATE, keys: vec![keys.meta()], arguments: Vec::new() };
    Meta::parse("state", connections.eval_again(&call)?)
}

/// Takes the lock; returns the number of the last commit, and the fence.
fn acquire(
    connections: &Connections,
    keys: &Keys,
    options: &Options,
    token: &str,
) -> Result<(u64, u64)> {
    let lease = options.lease.as_millis().to_string();
    let mut names = vec![keys.meta(), keys.lock()];
    names.extend(keys.probes());
    let arguments = vec![token.as_bytes(), lease.as_bytes(), FORMAT.as_bytes()];
    let value = connections.eval_again(&Call { script: &ACQUIRE, keys: names, arguments })?;
    let [meta, fence, holder, milliseconds] = array_of("acquire", value)?;

    if let Some(holder) = bytes_of("acquire", holder)? {
        let holder = String::from_utf8_lossy(&holder).into_owned();
        let left = count_of("acquire", &milliseconds).unwrap_or_default();
        return Err(locked(format!("by {holder}, whose lease has {left} ms left")));
    }

    let meta = Meta::parse("acquire", meta)?;
    Ok((meta.version, count_of("acquire", &fence)?))
}
