//! The snapshots of an open session by name, and the operations on them that are under way.
//!
//! While a snapshot is being made its name is *reserved*: nobody sees it, and nobody else can take
//! it. The lock is held for looking names up and for single calls that read, remove or rename a
//! snapshot's small file, never while runs are written, synced or read; so nobody waits for
//! somebody else's saving.
//!
//! Invariant: a name that is seen stands for a file that is whole. Closing refuses new operations
//! and waits for those under way.

use std::collections::BTreeMap;

use terrane_io::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::files::file_set::{RunRef, lock};
use crate::manifest::snapshot_meta::SnapshotMeta;

/// Meaning of a snapshot name.
#[derive(Debug)]
pub(crate) enum Stored {
    /// A snapshot.
    Whole {
        /// The runs that it needs.
        runs: Vec<RunRef>,
        /// The numbers of the files that it pins, some of which may be of unfinished runs.
        pins: Vec<u64>,
    },
    /// A snapshot whose metadata could not be read.
    Damaged,
    /// Nothing yet.
    Reserved,
}

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<String, Stored>,
    under_way: u32,
    closed: bool,
}

impl State {
    fn find(&mut self, name: &str) -> Result<&mut Stored> {
        match self.names.get_mut(name) {
            None | Some(Stored::Reserved) => {
                Err(Error::SnapshotDoesNotExist { name: name.to_owned() })
            }
            Some(stored) => Ok(stored),
        }
    }

    fn check_free(&self, name: &str) -> Result<()> {
        if self.names.contains_key(name) {
            return Err(Error::SnapshotExists { name: name.to_owned() });
        }
        Ok(())
    }
}

/// The snapshots of a session.
#[derive(Debug)]
pub(crate) struct Registry {
    state: Mutex<State>,
    /// Told when `under_way` falls.
    idle: Condvar,
}

/// Something under way that the closing of the session waits for.
#[derive(Debug)]
pub(crate) struct Operation<'a>(&'a Registry);

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        debug_assert!(state.under_way > 0, "each operation is counted once");
        state.under_way -= 1;
        drop(state);
        self.0.idle.notify_all();
    }
}

/// A name kept free for a snapshot that is being made; given up on drop.
#[derive(Debug)]
pub(crate) struct Reservation<'a> {
    name: String,
    /// From then on the name may be taken away and reserved by somebody else.
    is_published: bool,
    operation: Operation<'a>,
}

impl Stored {
    pub(crate) fn whole(meta: &SnapshotMeta) -> Self {
        Self::Whole { runs: meta.runs().copied().collect(), pins: meta.numbers().collect() }
    }
}

impl Reservation<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Lets everybody see the snapshot, which must be durable.
    pub(crate) fn publish(mut self, meta: &SnapshotMeta) {
        let stored = Stored::whole(meta);
        let mut state = lock(&self.operation.0.state);
        let before = state.names.insert(self.name.clone(), stored);
        debug_assert!(
            matches!(before, Some(Stored::Reserved)),
            "only a reserved name is published"
        );
        self.is_published = true;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        let given_up = lock(&self.operation.0.state).names.remove(&self.name);
        debug_assert!(matches!(given_up, Some(Stored::Reserved)), "a reservation keeps its name");
    }
}

impl Registry {
    pub(crate) fn new(names: BTreeMap<String, Stored>) -> Self {
        let state = Mutex::new(State { names, ..State::default() });
        Self { state, idle: Condvar::new() }
    }

    fn state(&self) -> Result<MutexGuard<'_, State>> {
        let state = lock(&self.state);
        if state.closed { Err(Error::SessionClosed) } else { Ok(state) }
    }

    fn begin(&self, state: &mut State) -> Operation<'_> {
        debug_assert!(!state.closed, "a closed session begins nothing");
        state.under_way += 1;
        Operation(self)
    }

    /// Names of the snapshots, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let state = self.state()?;
        // A reserved name has no snapshot yet.
        let seen = state.names.iter().filter(|(_, stored)| !matches!(stored, Stored::Reserved));
        Ok(seen.map(|(name, _)| name.clone()).collect())
    }

    pub(crate) fn contains(&self, name: &str) -> Result<bool> {
        Ok(self.state()?.find(name).is_ok())
    }

    /// The runs of all snapshots that can be read; those of several as often.
    pub(crate) fn runs(&self) -> Vec<RunRef> {
        let state = lock(&self.state);
        let runs = state.names.values().filter_map(|stored| match stored {
            Stored::Whole { runs, .. } => Some(runs),
            Stored::Damaged | Stored::Reserved => None,
        });
        runs.flatten().copied().collect()
    }

    /// Keeps a name for a snapshot to be made.
    pub(crate) fn reserve(&self, name: &str) -> Result<Reservation<'_>> {
        let mut state = self.state()?;
        state.check_free(name)?;
        let before = state.names.insert(name.to_owned(), Stored::Reserved);
        debug_assert!(before.is_none(), "a reservation takes a free name");
        let operation = self.begin(&mut state);
        Ok(Reservation { name: name.to_owned(), is_published: false, operation })
    }

    /// Begins an operation on a snapshot with `read`, during which the snapshot stays.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        read: impl FnOnce() -> Result<T>,
    ) -> Result<(Operation<'_>, T)> {
        let mut state = self.state()?;
        state.find(name)?;
        // Under the lock, so that the snapshot is not removed meanwhile.
        let read = read()?;
        Ok((self.begin(&mut state), read))
    }

    /// Takes a name away once `remove` has succeeded; returns the numbers of the files that the
    /// snapshot pins.
    pub(crate) fn remove(
        &self,
        name: &str,
        remove: impl FnOnce() -> Result<()>,
    ) -> Result<(Operation<'_>, Vec<u64>)> {
        let mut state = self.state()?;
        state.find(name)?;
        // The name goes after the file; a failure leaves both.
        remove()?;
        debug_assert!(state.names.contains_key(name), "the name was held meanwhile");
        let pins = match state.names.remove(name) {
            Some(Stored::Whole { pins, .. }) => pins,
            Some(Stored::Damaged | Stored::Reserved) | None => Vec::new(),
        };
        Ok((self.begin(&mut state), pins))
    }

    /// Gives a snapshot another name once `rename` has succeeded.
    pub(crate) fn rename(
        &self,
        from: &str,
        to: &str,
        rename: impl FnOnce() -> Result<()>,
    ) -> Result<Operation<'_>> {
        let mut state = self.state()?;
        state.find(from)?;
        state.check_free(to)?;
        debug_assert!(from != to, "a name that is taken is not free");
        // The registry follows the disk: a name changes only after the file has its new name.
        rename()?;
        if let Some(stored) = state.names.remove(from) {
            let before = state.names.insert(to.to_owned(), stored);
            debug_assert!(before.is_none(), "the new name was free");
        }
        Ok(self.begin(&mut state))
    }

    /// Refuses whatever comes from now on, and waits for what is under way.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        // Operations under way hold the files of snapshots.
        while state.under_way > 0 {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        debug_assert!(state.closed && state.under_way == 0, "no operation outlives the session");
    }
}
