//! World of a history: the engine and the model side by side, and the invariants under faults.
//!
//! A step of a history runs one action on both and compares the answers. If a fault strikes, the
//! action has succeeded, or it has returned an error and changed nothing: the world then reads and
//! compares every table. After a failed sync the session is poisoned and is opened anew. After a
//! power loss or the death of the process only the snapshots are left; the snapshot of the action
//! under way is as before the action or as after it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_io::{SimDisk, Survival};
use terrane_lsm::verify::Problem;
use terrane_lsm::{
    BlobRef, Cursor, Error, SESSION_MEMORY_BUDGET_MIN, Session, SnapshotName, Table,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::model::{CursorId, Forest, TableId};

use super::action::{
    Action, CURSORS, EXPORTS, KEPT, LABELS, Mishap, SNAPSHOTS, Slot, Step, TABLES,
};
use super::compare::{check_table, is_of_disk};
use super::swarm::{Profile, Swarm};
use crate::{SessionDir, name};

/// Beginning of the rule of a problem: runs that nothing names, where nothing has a name.
const STRAYS: &str = "run files that no snapshot and no table refers to";

/// Times that an action is done again after errors that come late.
const LATE_ERRORS_MAX: u32 = 20;

/// A table and its model.
#[derive(Debug)]
pub(crate) struct HeldTable {
    pub(crate) table: Table,
    pub(crate) id: TableId,
    /// Equal for tables that have not been changed since one was the duplicate of the other.
    pub(crate) version: u64,
    /// The debt told last.
    pub(crate) debt: u64,
}

/// A cursor and its model.
#[derive(Debug)]
pub(crate) struct HeldCursor {
    pub(crate) cursor: Cursor,
    pub(crate) id: CursorId,
    pub(crate) version: u64,
}

/// References to blobs, with the bytes that they stand for.
#[derive(Debug, Default)]
pub(crate) struct KeptRefs {
    pub(crate) refs: Vec<BlobRef>,
    pub(crate) blobs: Vec<Vec<u8>>,
    /// They are valid as long as a table or a cursor has this version.
    pub(crate) version: u64,
}

/// Counts of the situations that histories reached.
#[derive(Debug, Clone, Default)]
pub(crate) struct Coverage {
    /// Actions by kind; those that found nothing to work on do not count.
    pub(crate) actions: BTreeMap<String, u64>,
    /// Faults by kind and action.
    pub(crate) faults: BTreeMap<(String, String), u64>,
    /// Losses of power within an action.
    pub(crate) cuts: BTreeMap<String, u64>,
    /// Errors that came out.
    pub(crate) errors: u64,
    /// Failed syncs that ended a session.
    pub(crate) poisoned: u64,
}

impl Coverage {
    pub(crate) fn add(&mut self, other: &Self) {
        fn add<K: Ord + Clone>(to: &mut BTreeMap<K, u64>, from: &BTreeMap<K, u64>) {
            for (key, count) in from {
                *to.entry(key.clone()).or_default() += count;
            }
        }
        add(&mut self.actions, &other.actions);
        add(&mut self.faults, &other.faults);
        add(&mut self.cuts, &other.cuts);
        self.errors += other.errors;
        self.poisoned += other.poisoned;
    }

    pub(crate) fn fault_kinds(&self) -> BTreeSet<&str> {
        self.faults.keys().map(|(kind, _)| kind.as_str()).collect()
    }
}

pub(crate) struct World {
    pub(crate) swarm: Swarm,
    pub(crate) place: SessionDir,
    /// Memory budget of the session: the least, in every other history.
    memory_budget: Option<u64>,
    /// `None` only while it is being opened anew.
    pub(crate) session: Option<Session>,
    pub(crate) tables: [Option<HeldTable>; TABLES],
    pub(crate) cursors: [Option<HeldCursor>; CURSORS],
    pub(crate) kept: [KeptRefs; KEPT],
    pub(crate) forest: Forest,
    pub(crate) coverage: Coverage,
    /// Whether the model is made to forget deletions, to see that this is found.
    pub(crate) is_model_wrong: bool,
    /// Unions made so far.
    pub(crate) unions: usize,
    /// The entries of the last canonical export, and their digest.
    pub(crate) last_digest: Option<(Vec<u8>, [u8; 32])>,
    /// Exports to each directory that failed.
    pub(crate) export_failures: [u64; EXPORTS],
    versions: u64,
    /// Hash of the traces of the disks before the present one.
    trace: u64,
    /// Fault or crash planned for the action under way.
    mishap: Option<Mishap>,
    /// Faults that struck on disks before the present one.
    struck_before: u64,
    /// Faults that had struck when the session was opened.
    struck_at_open: u64,
    /// Faults that had struck when the action under way began.
    struck_at_action: u64,
    /// Whether a fault struck the opening, so that runs that nothing names may be where they were.
    has_strays: bool,
    /// Whether a fault may show in a later action: if background work met it, and if it spoilt
    /// bytes that were read ahead.
    errors_come_late: bool,
}

/// End of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Close,
    CloseAndVerify,
    Kill,
    PowerCut(Survival),
}

impl World {
    pub(crate) fn new(is_real: bool, seed: u64, profile: Profile, rng: &mut ChaCha8Rng) -> Self {
        let place = if is_real { SessionDir::real() } else { SessionDir::simulated(seed) };

        let memory_budget = (seed >> 4 & 1 == 1).then_some(SESSION_MEMORY_BUDGET_MIN);
        let session = Some(place.try_open_with(crate::SALT, memory_budget).unwrap());
        let mut swarm = Swarm::draw(profile, rng);
        if memory_budget.is_some() {
            swarm.share_session_memory();
        }
        Self {
            errors_come_late: swarm.has_background,
            swarm,
            place,
            memory_budget,
            session,
            tables: Default::default(),
            cursors: Default::default(),
            kept: Default::default(),
            forest: Forest::default(),
            coverage: Coverage::default(),
            is_model_wrong: false,
            unions: 0,
            last_digest: None,
            export_failures: [0; EXPORTS],
            versions: 0,
            trace: 0,
            mishap: None,
            struck_before: 0,
            struck_at_open: 0,
            struck_at_action: 0,
            has_strays: false,
        }
    }

    pub(crate) fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    fn sim_disk(&self) -> Option<Arc<SimDisk>> {
        match &self.place {
            SessionDir::Simulated { disk } => Some(Arc::clone(disk)),
            SessionDir::Real { .. } => None,
        }
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.sim_disk().is_some()
    }

    pub(crate) fn open_tables(&self) -> impl Iterator<Item = Slot> {
        (0..TABLES).filter(|&slot| self.tables[slot].is_some())
    }

    pub(crate) fn open_cursors(&self) -> impl Iterator<Item = Slot> {
        (0..CURSORS).filter(|&slot| self.cursors[slot].is_some())
    }

    /// Slots with references to blobs.
    pub(crate) fn kept_slots(&self) -> impl Iterator<Item = Slot> {
        (0..KEPT).filter(|&slot| !self.kept[slot].refs.is_empty())
    }

    pub(crate) fn new_version(&mut self) -> u64 {
        self.versions += 1;
        self.versions
    }

    /// Puts a table into its slot, in place of the one there.
    pub(crate) fn put_table(&mut self, to: Slot, table: Table, id: TableId, version: u64) {
        self.drop_table(to);
        let debt = table.remaining_union_debt();
        self.tables[to] = Some(HeldTable { table, id, version, debt });
    }

    pub(crate) fn drop_table(&mut self, slot: Slot) {
        if let Some(held) = self.tables[slot].take() {
            self.forest.close_table(held.id);
        }
    }

    pub(crate) fn drop_cursor(&mut self, slot: Slot) {
        if let Some(held) = self.cursors[slot].take() {
            self.forest.close_cursor(held.id);
        }
    }

    /// Faults that have struck so far.
    pub(crate) fn struck(&self) -> u64 {
        self.struck_before + self.sim_disk().map_or(0, |disk| disk.faults())
    }

    fn has_crashed(&self) -> bool {
        self.sim_disk().is_some_and(|disk| disk.has_crashed())
    }

    /// Does a step.
    ///
    /// # Panics
    /// If the engine does anything that the model does not.
    pub(crate) fn perform(&mut self, step: &Step) {
        let action = &step.action;
        self.struck_at_action = self.struck();
        let mishap = step.mishap.clone().filter(|_| self.is_simulated());
        self.mishap.clone_from(&mishap);
        self.arm();
        let before = self.forest.clone();
        let result = self.act(action);
        let has_crashed = self.has_crashed();
        self.disarm();

        if result.as_ref().is_ok_and(|is_done| *is_done) || result.is_err() {
            *self.coverage.actions.entry(action.name()).or_default() += 1;
        }

        if let Some(Mishap::Fault { kind, .. }) = &mishap
            && self.struck() > self.struck_at_action
        {
            let pair = (format!("{kind:?}"), action.name());
            *self.coverage.faults.entry(pair).or_default() += 1;
            self.errors_come_late |= FaultKind::SILENT.contains(kind);
        }

        if has_crashed {
            self.go_on_after_cut(action, mishap.as_ref(), before, result.is_ok());
            return;
        }

        match result {
            Ok(_) if mishap.is_some() && self.struck() > self.struck_at_action => {
                self.compare_tables();
            }
            Ok(_) => {}
            Err(error) => self.go_on_after_error(action, mishap.as_ref(), error),
        }
    }

    /// Tells the disk what is to go wrong from now on.
    fn arm(&self) {
        let (Some(disk), Some(mishap)) = (self.sim_disk(), &self.mishap) else { return };
        disk.set_plan(match *mishap {
            Mishap::Fault { kind, call, forever, .. } => {
                let repeat = if forever { Repeat::Forever } else { Repeat::Once };
                FaultPlan::fail(disk.calls() + call, kind, repeat)
            }
            Mishap::PowerCut { call, .. } => FaultPlan::crash_at(disk.calls() + call),
        });
    }

    fn disarm(&mut self) {
        if let Some(disk) = self.sim_disk() {
            disk.set_plan(FaultPlan::default());
        }
        self.mishap = None;
    }

    /// Returns the model with the snapshots after an action, if the action changes them.
    fn after(&self, action: &Action) -> Option<Forest> {
        let mut after = self.forest.clone();
        self.change_snapshots(&mut after, action)?.ok().map(|()| after)
    }

    /// The power went during an action.
    fn go_on_after_cut(
        &mut self,
        action: &Action,
        mishap: Option<&Mishap>,
        before: Forest,
        is_done: bool,
    ) {
        let Some(Mishap::PowerCut { survival, .. }) = mishap else { panic!("no loss of power") };
        *self.coverage.cuts.entry(action.name()).or_default() += 1;
        let mut legal = vec![self.forest.clone()];
        if !is_done {
            legal.extend(self.after(action));
            legal.push(before);
        }
        self.restart(End::PowerCut(*survival), legal);
        if !is_done {
            self.settle_export(action);
        }
    }

    /// An action gave an error. It has changed nothing, or is done all the same.
    fn go_on_after_error(&mut self, action: &Action, mishap: Option<&Mishap>, error: Error) {
        let mut error = error;
        for _ in 0..LATE_ERRORS_MAX {
            self.coverage.errors += 1;
            let legal = self.struck() > self.struck_at_open;
            assert!(legal, "{action:?} failed without a fault: {error:?}");
            self.check_error(&error, mishap);

            if self.is_poisoned() {
                self.go_on_after_failed_sync(action, mishap);
                return;
            }

            let after = self.after(action).filter(|after| {
                let names = self.list_snapshots();
                after.snapshot_names() == names && self.forest.snapshot_names() != names
            });

            let is_done = after.is_some();
            self.forest = after.unwrap_or_else(|| self.forest.clone());
            self.compare_names();
            self.compare_tables();
            self.settle_export(action);

            if is_done || matches!(mishap, Some(Mishap::Fault { retry: false, .. })) {
                return;
            }

            match self.act(action) {
                Ok(_) => return,
                Err(again) => {
                    assert!(self.errors_come_late, "{action:?} fails without a fault: {again:?}");
                    error = again;
                }
            }
        }

        panic!("{action:?} still fails: {error:?}");
    }

    fn is_poisoned(&self) -> bool {
        let missing = self.session().delete_snapshot(&name("never-saved"));
        match missing {
            Err(Error::Poisoned { .. }) => true,
            Err(Error::SnapshotDoesNotExist { .. }) => false,
            other => panic!("deleting what does not exist gave {other:?}"),
        }
    }

    /// Checks a poisoned session: it promises nothing more, reads go on, and a new session has
    /// every snapshot.
    fn go_on_after_failed_sync(&mut self, action: &Action, mishap: Option<&Mishap>) {
        self.coverage.poisoned += 1;
        self.compare_tables();
        for held in self.tables.iter_mut().flatten() {
            let refused = held.table.insert(b"key", b"value");
            assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
            let refused = held.table.save_snapshot(&name("other"), "");
            assert!(matches!(refused, Err(Error::Poisoned { .. })), "{refused:?}");
        }

        let legal: Vec<Forest> =
            self.after(action).into_iter().chain([self.forest.clone()]).collect();
        let number = match mishap {
            Some(Mishap::Fault { call, .. }) => *call,
            _ => 0,
        };

        let ends = [End::Close, End::Kill, End::PowerCut(Survival::Everything)];
        self.restart(ends[number as usize % ends.len()], legal.clone());

        // What is seen now may still go with the power.
        let survivals = [Survival::Nothing, Survival::Torn(number)];
        self.restart(End::PowerCut(survivals[number as usize % 2]), legal);
        self.settle_export(action);
    }

    /// Ends the session and opens it anew; the snapshots are then those of one of the `legal`
    /// states.
    pub(crate) fn restart(&mut self, end: End, legal: Vec<Forest>) {
        if matches!(end, End::Close | End::CloseAndVerify) {
            self.close();
        }

        // A process that dies drops nothing, so the death comes before the handles go.
        if let Some(disk) = self.sim_disk() {
            let next = match end {
                End::PowerCut(survival) => Some(disk.after_crash(survival)),
                End::Kill => Some(disk.process_kill()),
                End::Close | End::CloseAndVerify => None,
            };
            self.go_to_disk(next);
        }

        self.cursors = Default::default();
        self.tables = Default::default();
        self.session = None;

        if end == End::CloseAndVerify {
            self.verify();
        }
        self.struck_at_open = self.struck();
        self.errors_come_late = self.swarm.has_background;
        self.session = Some(self.open());
        self.disarm();
        let names = self.list_snapshots();
        let found = legal.into_iter().find(|forest| forest.snapshot_names() == names);
        self.forest = found.unwrap_or_else(|| panic!("{names:?} are not as saved"));
        self.forest.crash();
        self.compare_names();

        // On a disk that was full at the opening, runs that nothing names stay where they are.
        self.has_strays = self.struck() != self.struck_at_open;
        if names.is_empty() && !self.has_strays {
            assert_eq!(self.place.runs(), Vec::<PathBuf>::new());
        }

        if !matches!(end, End::Close) {
            self.compare_snapshots();
        }
    }

    fn go_to_disk(&mut self, next: Option<Arc<SimDisk>>) {
        let Some(next) = next else { return };
        self.struck_before = self.struck();
        self.trace = self.trace_hash();
        self.place = SessionDir::Simulated { disk: next };
        if !self.has_crashed() {
            self.arm();
        }
    }

    fn close(&mut self) {
        let has_faults = self.struck() > self.struck_at_open || self.mishap.is_some();
        let closed = self.session().close();
        match closed {
            Ok(()) => {}
            // A file could not be removed, now or earlier.
            Err(Error::Disk(_)) if has_faults => {}
            Err(error) => panic!("closing gave {error:?}"),
        }

        for held in self.tables.iter_mut().flatten() {
            assert!(matches!(held.table.get(b"k"), Err(Error::SessionClosed)));
            assert!(matches!(held.table.delete(b"k"), Err(Error::SessionClosed)));
        }

        for held in self.cursors.iter_mut().flatten() {
            // One that has failed tells of its failure.
            assert!(held.cursor.next_ref().is_err());
        }
    }

    /// Opens the session; faults may prevent that until they are over, nothing else does.
    fn open(&mut self) -> Session {
        let mut opened = self.place.try_open_with(crate::SALT, self.memory_budget);
        let mishap = self.mishap.clone();
        let has_crashed = self.has_crashed();
        self.disarm();

        if let Some(Mishap::PowerCut { survival, .. }) = mishap
            && has_crashed
        {
            *self.coverage.cuts.entry("opening".to_owned()).or_default() += 1;
            let next = self.sim_disk().map(|disk| disk.after_crash(survival));
            self.go_to_disk(next);
            opened = self.place.try_open_with(crate::SALT, self.memory_budget);
        } else if let Err(error) = &opened
            && mishap.is_some()
        {
            self.check_error(error, mishap.as_ref());
            opened = self.place.try_open_with(crate::SALT, self.memory_budget);
        }

        opened.unwrap_or_else(|error| panic!("the session does not open: {error:?}"))
    }

    /// Checks all files of the closed session.
    fn verify(&self) {
        let report = terrane_lsm::verify::verify(
            &self.place.disk(),
            &self.place.dir(),
            &mut |_done, _total| {},
        );
        match report {
            Ok(report) => {
                // Runs that nothing names are all that a full disk leaves at an opening.
                let is_stray = |problem: &Problem| problem.rule.starts_with(STRAYS);
                let are_strays = self.has_strays && report.problems.iter().all(is_stray);
                let is_legal = report.is_clean() || are_strays || self.mishap.is_some();
                assert!(is_legal, "{report:?}");
            }
            Err(error) => {
                assert!(self.mishap.is_some(), "{error:?}");
            }
        }
    }

    pub(crate) fn list_snapshots(&self) -> Vec<String> {
        let names = self.session().list_snapshots().unwrap();
        names.iter().map(SnapshotName::to_string).collect()
    }

    pub(crate) fn compare_names(&self) {
        let names = self.list_snapshots();
        assert_eq!(names, self.forest.snapshot_names());
        for text in SNAPSHOTS {
            let exists = self.session().snapshot_exists(&name(text)).unwrap();
            assert_eq!(exists, names.iter().any(|name| name == text));
        }
    }

    /// Reads all tables in full.
    pub(crate) fn compare_tables(&self) {
        for held in self.tables.iter().flatten() {
            let content = self.forest.content(held.id).unwrap();
            check_table(self.session(), &held.table, content, self.swarm.keys.all())
                .unwrap_or_else(|error| panic!("reads go on: {error:?}"));
        }
    }

    /// Opens and reads all snapshots.
    fn compare_snapshots(&mut self) {
        let names: Vec<String> =
            self.forest.snapshot_names().into_iter().map(str::to_owned).collect();
        for text in names {
            let table = self.open_snapshot_as_saved(self.session(), &text).unwrap();
            let content = self.forest.snapshot_content(&text).unwrap();
            check_table(self.session(), &table, content, self.swarm.keys.all()).unwrap();
        }
    }

    /// Reads everything, drops everything, and looks for what stayed behind.
    pub(crate) fn end(mut self) -> Coverage {
        self.compare_tables();
        self.compare_snapshots();
        if self.struck() > self.struck_at_open {
            // What was misread or could not be removed is put right by the next opening.
            let forest = self.forest.clone();
            self.restart(End::Close, vec![forest]);
        }

        for text in self.list_snapshots() {
            self.session().delete_snapshot(&name(&text)).unwrap();
        }
        self.cursors = Default::default();
        self.tables = Default::default();

        let nothing = Vec::<PathBuf>::new();
        // A background thread lets go of its merges in its own time.
        if !self.swarm.has_background {
            assert_eq!(self.place.runs(), nothing);
        }
        self.close();
        self.session = None;
        assert_eq!(self.place.runs(), nothing);

        if let Some(disk) = self.sim_disk() {
            assert_eq!(disk.open_files(), 0);
        }
        self.coverage
    }

    /// Each fault shows as the error that it is documented to give.
    fn check_error(&self, error: &Error, mishap: Option<&Mishap>) {
        assert!(is_of_disk(error), "{error:?}");
        let (Some(Mishap::Fault { kind, .. }), false) = (mishap, self.errors_come_late) else {
            return;
        };

        let is_silent = FaultKind::SILENT.contains(kind);
        let is_expected = match error {
            // A fault of a read ahead may show late, or as a sync that has failed since.
            Error::Disk(_) | Error::Poisoned { .. } => {
                !is_silent || self.struck_at_action > self.struck_at_open
            }
            // A file that ends early may be a fault of the disk or damage.
            Error::SnapshotCorrupted { .. } => true,
            Error::Corrupt { what, .. } if what.rule == "the file ends early" => true,
            _ => is_silent,
        };

        assert!(is_expected, "{kind:?} gave {error:?}");
    }

    /// A number that two runs of the same history have in common.
    pub(crate) fn trace_hash(&self) -> u64 {
        self.trace.rotate_left(7) ^ self.sim_disk().map_or(0, |disk| disk.trace_hash())
    }
}

/// The label in a slot.
pub(crate) fn label(slot: Slot) -> &'static str {
    LABELS[slot % LABELS.len()]
}
