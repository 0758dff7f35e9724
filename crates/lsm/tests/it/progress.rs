//! Snapshots keep the progress of compactions that are under way.
//!
//! Goal: a table opened from a snapshot holds the saved content, resumes its compactions, and never
//! has much to do at once; the output of an unfinished compaction is redundant, so damage to it
//! loses nothing; and the engine never writes to a file that another snapshot relies on.
//!
//! Method: tables with upserts, blobs and values of several pages, so small that they merge all the
//! time, in lock-step with a map; sessions left in every way, on a disk that counts what it is
//! asked to do, crashes or fails at each call in turn.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::Survival;
use terrane_io::{Disk, SimDisk};
use terrane_io::{Fault, FaultKind, FaultPlan, Repeat};
use terrane_lsm::inspect::{Inspection, OutputInfo, SnapshotInfo, inspect};
use terrane_lsm::{
    CompactionPolicy, Error, IndexKind, Lookup, MergeOperator, PAGE_SIZE, Result, Session,
    SessionOptions, Table, TableConfig, Update, verify,
};
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Note, Sweep};

use crate::{SALT, SessionDir, buffer_of, fill, key, name, small_configs, value};

const DIR: &str = "/session";

/// Content of a table: the value of each key, and its blob if there is one.
type Entries = BTreeMap<Vec<u8>, (Vec<u8>, Option<Vec<u8>>)>;

#[derive(Clone)]
enum Change {
    Insert(Vec<u8>),
    InsertWithBlob(Vec<u8>, Vec<u8>),
    Upsert(Vec<u8>),
    Delete,
}

type Batch = Vec<(Vec<u8>, Change)>;

impl Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Insert(value) => write!(f, "Insert({})", value.len()),
            Self::InsertWithBlob(value, blob) => write!(f, "Blob({}, {})", value.len(), blob.len()),
            Self::Upsert(value) => write!(f, "Upsert({})", value.len()),
            Self::Delete => write!(f, "Delete"),
        }
    }
}

/// Changes of all kinds to keys below `keys`; now and then a value of several pages.
fn draw_batch(rng: &mut ChaCha8Rng, keys: u64, count: usize) -> Batch {
    let change = |rng: &mut ChaCha8Rng| {
        let len = match rng.below(12) {
            0 => 4_000 + rng.index(6_000),
            1 => 0,
            _ => rng.index(400),
        };
        let value = rng.bytes(len);
        match rng.below(8) {
            0..=2 => Change::Insert(value),
            3 | 4 => {
                let len = if rng.chance(1, 8) { rng.index(20_000) } else { rng.index(900) };
                Change::InsertWithBlob(value, rng.bytes(len))
            }
            5 | 6 => Change::Upsert(rng.bytes(4)),
            _ => Change::Delete,
        }
    };

    (0..count).map(|_| (key(rng.below(keys)).to_vec(), change(rng))).collect()
}

fn update(table: &mut Table, batch: &Batch) -> Result<()> {
    let updates: Vec<_> = batch
        .iter()
        .map(|(key, change)| {
            let update = match change {
                Change::Insert(value) => Update::Insert(value),
                Change::InsertWithBlob(value, blob) => Update::InsertWithBlob(value, blob),
                Change::Upsert(value) => Update::Upsert(value),
                Change::Delete => Update::Delete,
            };
            (key, update)
        })
        .collect();

    table.write_batch(&updates)
}

fn apply(entries: &mut Entries, batch: &Batch) {
    for (key, change) in batch.iter().cloned() {
        match change {
            Change::Insert(value) => entries.insert(key, (value, None)),
            Change::InsertWithBlob(value, blob) => entries.insert(key, (value, Some(blob))),
            Change::Upsert(value) => {
                let older = entries.get(&key).map(|(older, _)| older.as_slice());
                let value = older.map_or(value.clone(), |o| resolve().apply(&value, o));
                entries.insert(key, (value, None))
            }
            Change::Delete => entries.remove(&key),
        };
    }
}

fn resolve() -> MergeOperator {
    MergeOperator::concatenate()
}

/// Reads all of a table in every way.
fn check(session: &Session, table: &Table, entries: &Entries) -> Result<()> {
    let keys: Vec<&Vec<u8>> = entries.keys().collect();
    let found = table.get_many(&keys)?;

    let blobs: Vec<_> = found.iter().filter_map(Lookup::blob).cloned().collect();
    let mut blobs = session.retrieve_blobs(&blobs)?.into_iter();
    for ((key, (value, blob)), found) in entries.iter().zip(&found) {
        assert_eq!(found.value(), Some(value.as_slice()), "key {key:02x?}");
        assert_eq!(found.blob().and_then(|_| blobs.next()), *blob, "blob of {key:02x?}");
    }

    let mut cursor = table.cursor()?;
    for (key, (value, _)) in entries {
        let record = cursor.next().transpose()?;
        let record = record.map(|record| (record.key, record.value.into_vec()));
        assert_eq!(record.as_ref(), Some(&(key.clone(), value.clone())));
    }

    assert!(cursor.next().transpose()?.is_none());
    Ok(())
}

fn open(disk: &Arc<SimDisk>) -> Result<Session> {
    let options = SessionOptions::with_salt(SALT).create_dir();
    Session::open(Arc::clone(disk) as _, Path::new(DIR), &options)
}

/// Inspects the metadata of a snapshot.
fn look_at(disk: &Arc<dyn Disk>, dir: &Path, name: &str) -> SnapshotInfo {
    let path = dir.join("snapshots").join(format!("{name}.snapshot"));
    match inspect(disk, &path).unwrap() {
        Inspection::Snapshot(info) => *info,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn look(disk: &Arc<SimDisk>, name: &str) -> SnapshotInfo {
    look_at(&(Arc::clone(disk) as _), Path::new(DIR), name)
}

/// The unfinished runs that a snapshot refers to.
fn outputs(info: &SnapshotInfo) -> Vec<OutputInfo> {
    info.levels.iter().filter_map(|level| level.output.clone()).collect()
}

/// Whether a file is a run with a footer.
fn is_whole(disk: &Arc<SimDisk>, path: &Path) -> bool {
    let disk: Arc<dyn Disk> = Arc::clone(disk) as _;
    matches!(inspect(&disk, path), Ok(Inspection::Run(_)))
}

/// A table whose merge on the last level is nearly done, saved as `late`; the session is closed.
fn nearly_merged() -> (Arc<SimDisk>, Entries) {
    let disk = SimDisk::new(1);
    let session = open(&disk).unwrap();
    // Only level 3 has slices, and this table has no such level.
    let config = buffer_of(500).compaction_policy(CompactionPolicy::Levelling).size_ratio(12);
    let mut table = session.new_table(&config).unwrap();
    let mut entries = Entries::new();
    let mut next = 0;

    let is_late = |table: &Table| {
        table.stats().levels.iter().any(|level| {
            level.merge_pages > 300
                && level.merge_pages_done * 10 > level.merge_pages * 9
                && level.merge_pages_done < level.merge_pages
        })
    };

    while !is_late(&table) {
        fill(&mut table, next..next + 100);
        entries.extend((next..next + 100).map(|n| (key(n).to_vec(), (value(n, 60), None))));
        next += 100;
        assert!(next < 100_000, "{:?}", table.stats().levels);
    }

    table.save_snapshot(&name("late"), "").unwrap();
    drop(table);
    session.close().unwrap();
    (disk, entries)
}

/// Opens `late`, updates it until all merges that it had under way are complete, and counts.
fn pages_to_complete(disk: &Arc<SimDisk>, entries: &Entries) -> (u64, u64) {
    let session = open(disk).unwrap();
    let before = disk.counts();
    let mut table = session.open_snapshot(&name("late"), "").unwrap();
    let updates = (0..2_000).map(|n| (key(n), Update::Insert(b"again")));
    for update in updates {
        table.write_batch(&[update]).unwrap();
    }
    let spent = disk.counts() - before;
    let mut entries = entries.clone();
    entries.extend((0..2_000).map(|n| (key(n).to_vec(), (b"again".to_vec(), None))));
    check(&session, &table, &entries).unwrap();
    (spent.read_pages, spent.write_pages)
}

#[test]
fn what_a_merge_had_written_is_not_written_again() {
    let (disk, entries) = nearly_merged();
    let outputs = outputs(&look(&disk, "late"));
    let merges = look(&disk, "late").levels.into_iter().filter_map(|level| level.merge);
    let passed: u64 = merges.map(|merge| merge.passed_pages).sum();
    let kept: u64 = outputs.iter().map(|output| output.pages).sum();
    assert!(passed > 270 && kept > 250, "{passed} pages passed, {kept} written");

    let resumed = disk.clone_disk();
    let anew = disk.clone_disk();
    let (reads, writes) = pages_to_complete(&resumed, &entries);

    for output in &outputs {
        anew.remove(&output.path).unwrap();
    }
    let (reads_anew, writes_anew) = pages_to_complete(&anew, &entries);
    let saved = writes_anew - writes;
    assert!(saved >= kept * 95 / 100, "{saved} pages were not written again, of {kept}");

    // Instead of the inputs up to there, the output is read.
    assert!(reads <= reads_anew + 64, "{reads} pages read, anew {reads_anew}");
    println!("{writes} pages written, anew {writes_anew}; {reads} read, anew {reads_anew}");
}

/// Way of leaving a session before the table is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionEnd {
    SameSession,
    Closed,
    Killed,
    PowerCut,
}

/// Leaves a session in some way and opens it again.
fn leave(
    place: &mut SessionDir,
    session: Session,
    way: SessionEnd,
    rng: &mut ChaCha8Rng,
) -> Session {
    match (way, &mut *place) {
        (SessionEnd::SameSession, _) => return session,
        (SessionEnd::PowerCut, SessionDir::Simulated { disk }) => {
            let survivals =
                [Survival::Nothing, Survival::Random(rng.below(1 << 40)), Survival::Everything];
            *disk = disk.after_crash(*rng.pick(&survivals));
        }
        (SessionEnd::Killed, _) => place.kill(),
        (SessionEnd::Closed | SessionEnd::PowerCut, _) => session.close().unwrap(),
    }
    drop(session);
    place.open()
}

/// Saved every few updates, left in every way, opened again: it holds what was saved, and the
/// updates that follow do bounded work each. The table that goes on is the one that was opened.
#[test]
fn progress_of_compactions_is_kept_however_a_session_ends() {
    let test = "progress_of_compactions_is_kept_however_a_session_ends";
    for_each_seed(test, 1, |rng, seed| {
        let mut kept = 0;
        let indexes = [IndexKind::Compact, IndexKind::Ordinary];
        for (mut place, indexes) in
            [(SessionDir::simulated(seed), &indexes[..]), (SessionDir::real(), &indexes[..1])]
        {
            for (config, index) in small_configs()
                .into_iter()
                .flat_map(|config| indexes.iter().map(move |index| (config.clone(), *index)))
            {
                let buffer = buffer_size(&config);
                let rounds = match (&place, buffer) {
                    (_, 1000) => 2,
                    (SessionDir::Real { .. }, _) => 3,
                    (SessionDir::Simulated { .. }, _) => by_effort(7, 14),
                };
                let config =
                    config.merge_operator(resolve()).index(index).compaction_batch_pages(1);
                let mut mid_merge = MidMerge::new(place.open(), &config);
                for round in 0..rounds {
                    let count = if buffer == 1000 { 4_600 } else { 1 + rng.index(12) };
                    mid_merge.fill(rng, count);
                    let ways = [
                        SessionEnd::Killed,
                        SessionEnd::PowerCut,
                        SessionEnd::Closed,
                        SessionEnd::SameSession,
                    ];
                    kept += mid_merge.save(&place);
                    mid_merge = mid_merge.leave(&mut place, ways[round % 4], rng);
                    let further = small_batch(rng, 10 * buffer);
                    mid_merge.check_further(&place, &further, ways[round % 4]);
                }
                let MidMerge { session, table, .. } = mid_merge;
                session.delete_snapshot(&name("mid")).unwrap();
                drop(table);
                assert!(place.runs().is_empty(), "{:?}", place.runs());
                session.close().unwrap();
            }
        }
        assert!(kept > by_effort(8, 25), "only {kept} merges were kept");
    });
}

/// Changes that are quick to make.
fn small_batch(rng: &mut ChaCha8Rng, count: usize) -> Batch {
    let change = |number: u64| match number % 4 {
        0 => Change::Delete,
        1 => Change::InsertWithBlob(value(number, 8), value(number, 24)),
        2 => Change::Upsert(value(number, 2)),
        _ => Change::Insert(value(number, 40)),
    };
    (0..count).map(|_| (key(rng.below(2_000)).to_vec(), change(rng.below(1 << 40)))).collect()
}

fn buffer_size(config: &TableConfig) -> usize {
    match config.write_buffer {
        terrane_lsm::WriteBuffer::Entries(entries) => entries as usize,
        other => panic!("{other:?}"),
    }
}

/// A table that is saved as `mid` again and again.
struct MidMerge {
    session: Session,
    table: Table,
    entries: Entries,
}

impl MidMerge {
    fn new(session: Session, config: &TableConfig) -> Self {
        let table = session.new_table(config).unwrap();
        Self { session, table, entries: Entries::new() }
    }

    fn fill(&mut self, rng: &mut ChaCha8Rng, count: usize) {
        let keys = if count > 100 { 2_000 } else { 60 };
        let batch = draw_batch(rng, keys, count);
        update(&mut self.table, &batch).unwrap();
        apply(&mut self.entries, &batch);
    }

    /// Returns the merges whose progress is kept.
    fn save(&self, place: &SessionDir) -> usize {
        if self.session.snapshot_exists(&name("mid")).unwrap() {
            self.session.delete_snapshot(&name("mid")).unwrap();
        }
        self.table.save_snapshot(&name("mid"), "").unwrap();
        outputs(&look_at(&place.disk(), &place.dir(), "mid")).len()
    }

    fn leave(self, place: &mut SessionDir, way: SessionEnd, rng: &mut ChaCha8Rng) -> Self {
        let Self { session, table, entries } = self;
        if way != SessionEnd::SameSession {
            drop(table);
        }
        let session = leave(place, session, way, rng);
        let table = session.open_snapshot(&name("mid"), "").unwrap();
        check(&session, &table, &entries).unwrap();
        Self { session, table, entries }
    }

    /// Updates another table opened from the same snapshot.
    fn check_further(&self, place: &SessionDir, further: &Batch, way: SessionEnd) {
        let mut table = self.session.open_snapshot(&name("mid"), "").unwrap();
        let mut entries = self.entries.clone();
        if let SessionDir::Simulated { disk } = place {
            for change in further {
                let before = disk.counts();
                update(&mut table, &vec![change.clone()]).unwrap();
                let spent = disk.counts() - before;
                let pages = spent.read_pages + spent.write_pages;
                let levels = table.stats().levels;
                let is_incremental = table.config().compaction_schedule
                    == TableConfig::default().compaction_schedule;
                // Chunks of each input, one of the output, and those of blobs.
                let bound = 128 * levels.len().max(4) as u64;
                assert!(pages <= bound || !is_incremental, "{pages} pages in an update, {way:?}");
            }
        } else {
            update(&mut table, further).unwrap();
        }

        apply(&mut entries, further);
        check(&self.session, &table, &entries).unwrap();
        check(&self.session, &self.table, &self.entries).unwrap();
    }
}

/// A table with merges under way on a simulated disk, saved as `a` when one of them had written
/// something.
struct Halfway {
    disk: Arc<SimDisk>,
    session: Session,
    table: Table,
    entries: Entries,
    /// Content of snapshot `a`, and the file of its unfinished run.
    saved: Entries,
    output: OutputInfo,
}

/// The configuration of small tables that merge all the time.
/// The table has no level 3, and so no slices.
fn small() -> TableConfig {
    buffer_of(8)
        .merge_operator(resolve())
        .compaction_policy(CompactionPolicy::Levelling)
        .compaction_batch_pages(1)
        .size_ratio(12)
}

/// The hundredths of its work that the merge on the deepest level has done, if it is one of many
/// pages.
fn share_done(table: &Table) -> Option<u64> {
    let level = table.stats().levels.pop()?;
    (level.merge_pages > 40).then(|| level.merge_pages_done * 100 / level.merge_pages)
}

impl Halfway {
    fn new(rng: &mut ChaCha8Rng, seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        let session = open(&disk).unwrap();
        let table = session.new_table(&small()).unwrap();

        let mut table = table;
        let mut entries = Entries::new();
        loop {
            let batch = draw_batch(rng, 120, 3);
            update(&mut table, &batch).unwrap();
            apply(&mut entries, &batch);
            if !share_done(&table).is_some_and(|done| (30..60).contains(&done)) {
                continue;
            }
            table.save_snapshot(&name("a"), "").unwrap();
            if let Some(output) = look(&disk, "a").levels.pop().and_then(|level| level.output) {
                let saved = entries.clone();
                return Self { disk, session, table, entries, saved, output };
            }
            session.delete_snapshot(&name("a")).unwrap();
        }
    }

    fn update(&mut self, rng: &mut ChaCha8Rng, count: usize) {
        let batch = draw_batch(rng, 120, count);
        update(&mut self.table, &batch).unwrap();
        apply(&mut self.entries, &batch);
    }

    /// Updates the table until the merge has written more, and saves it as `b`; returns what that
    /// holds.
    fn save_later(&mut self, rng: &mut ChaCha8Rng) -> OutputInfo {
        loop {
            self.update(rng, 1);
            self.table.save_snapshot(&name("b"), "").unwrap();
            let output = look(&self.disk, "b").levels.pop().unwrap().output.unwrap();
            assert_eq!(output.path, self.output.path);
            if output.pages > self.output.pages {
                return output;
            }
            self.session.delete_snapshot(&name("b")).unwrap();
        }
    }

    /// Updates the table until the merge is complete.
    fn complete(&mut self, rng: &mut ChaCha8Rng) {
        while !is_whole(&self.disk, &self.output.path) {
            self.update(rng, 1);
        }
    }

    fn open(&self, name: &str) -> Table {
        self.session.open_snapshot(&crate::name(name), "").unwrap()
    }

    /// The bytes of the unfinished run.
    fn output(&self) -> Vec<u8> {
        self.disk.read_raw(&self.output.path).unwrap()
    }

    /// Closes the session and opens it again; the table is gone.
    fn reopen(self) -> Reopened {
        let Self { disk, session, table, saved, output, .. } = self;
        drop(table);
        session.close().unwrap();
        let session = open(&disk).unwrap();
        Reopened { disk, session, saved, output }
    }
}

struct Reopened {
    disk: Arc<SimDisk>,
    session: Session,
    saved: Entries,
    output: OutputInfo,
}

/// Updates a table until its merges are complete, checking what it holds before and afterwards.
fn complete_and_check(session: &Session, table: &mut Table, entries: &Entries) {
    check(session, table, entries).unwrap();
    let mut entries = entries.clone();
    for number in 0..300 {
        let batch = vec![(key(number).to_vec(), Change::Insert(value(number, 60)))];
        update(table, &batch).unwrap();
        apply(&mut entries, &batch);
    }
    check(session, table, &entries).unwrap();
}

#[test]
fn a_merge_is_shared_with_the_snapshot_that_found_it_under_way() {
    let test = "a_merge_is_shared_with_the_snapshot_that_found_it_under_way";
    for_each_seed(test, 4, |rng, seed| {
        let mut halfway = Halfway::new(rng, seed);
        let mut opened = halfway.open("a");
        assert_eq!(share_done(&opened), share_done(&halfway.table), "they share the merge");
        complete_and_check(&halfway.session, &mut opened, &halfway.saved);
        // The other table has not been touched, and has the run all the same.
        assert!(is_whole(&halfway.disk, &halfway.output.path));
        let before = halfway.disk.counts();
        halfway.complete(rng);
        assert_eq!((halfway.disk.counts() - before).writes, 0);
        check(&halfway.session, &halfway.table, &halfway.entries).unwrap();
        drop(opened);

        // Both tables are gone. Something still reads the run, so it is no merge any more for who
        // opens the snapshot now.
        let cursor = halfway.table.cursor().unwrap();
        let Halfway { disk, session, table, saved, output, .. } = halfway;
        drop(table);
        let opened = again_of(&session, "a");
        assert_eq!(share_done(&opened), None, "{:?}", opened.stats());
        assert!(is_whole(&disk, &output.path));
        // And it was never synced. It is now, being part of another snapshot.
        opened.save_snapshot(&name("b"), "").unwrap();
        let crashed = disk.after_crash(Survival::Nothing);
        let crashed_session = open(&crashed).unwrap();
        for text in ["b", "a"] {
            let table = &mut again_of(&crashed_session, text);
            complete_and_check(&crashed_session, table, &saved);
        }
        session.delete_snapshot(&name("b")).unwrap();
        drop((cursor, opened));

        // Nobody has the run, and nobody knows whether all of it will last.
        let mut table = again_of(&session, "a");
        complete_and_check(&session, &mut table, &saved);
        assert!(is_whole(&disk, &output.path));
    });
}

fn again_of(session: &Session, text: &str) -> Table {
    session.open_snapshot(&name(text), "").unwrap()
}

/// A merge goes on in the file that two snapshots refer to, one of them to more of it.
#[test]
fn a_snapshot_profits_from_what_a_later_one_has_kept() {
    let test = "a_snapshot_profits_from_what_a_later_one_has_kept";
    for_each_seed(test, 4, |rng, seed| {
        let mut halfway = Halfway::new(rng, seed);
        let kept = halfway.save_later(rng).pages as usize * PAGE_SIZE;
        let later = halfway.entries.clone();
        let Reopened { disk, session, saved, output } = halfway.reopen();
        let begin = disk.read_raw(&output.path).unwrap();
        let mut first = again_of(&session, "a");
        let second = again_of(&session, "b");
        let pages = |table: &Table| table.stats().levels.pop().map(|level| level.merge_pages);
        assert_eq!(pages(&first), pages(&second), "they share the merge");
        complete_and_check(&session, &mut first, &saved);
        check(&session, &second, &later).unwrap();
        let end = disk.read_raw(&output.path).unwrap();
        assert!(end.len() > kept && end[..kept] == begin[..kept], "pages were written again");
        drop((first, second));
        for text in ["b", "a"] {
            let entries = if text == "a" { &saved } else { &later };
            complete_and_check(&session, &mut again_of(&session, text), entries);
            session.delete_snapshot(&name(text)).unwrap();
        }
        assert!(disk.files().iter().all(|path| path.extension().is_none()), "{:?}", disk.files());
    });
}

/// The output of a merge became a run of a later snapshot, whose table is open when the earlier
/// snapshot is: to it the file is whole, too, whatever is known of the earlier one.
#[test]
fn a_run_that_others_use_is_never_written() {
    for_each_seed("a_run_that_others_use_is_never_written", 4, |rng, seed| {
        let mut halfway = Halfway::new(rng, seed);
        halfway.complete(rng);
        halfway.table.save_snapshot(&name("b"), "").unwrap();
        let later = halfway.entries.clone();
        let Reopened { disk, session, saved, output } = halfway.reopen();
        let whole = disk.read_raw(&output.path).unwrap();
        let second = again_of(&session, "b");
        // From here on no snapshot says any more that the file is whole.
        session.delete_snapshot(&name("b")).unwrap();
        for _ in 0..2 {
            complete_and_check(&session, &mut again_of(&session, "a"), &saved);
            check(&session, &second, &later).unwrap();
            assert!(disk.read_raw(&output.path).unwrap() == whole);
        }
        drop(second);
        session.close().unwrap();
        // The next session knows what the snapshot says, and goes on from there.
        let session = open(&disk).unwrap();
        complete_and_check(&session, &mut again_of(&session, "a"), &saved);
        assert!(is_whole(&disk, &output.path));
    });
}

/// Nobody knows what a snapshot with damaged metadata relies on.
#[test]
fn a_file_that_a_damaged_snapshot_may_need_is_never_written() {
    for_each_seed("a_file_that_a_damaged_snapshot_may_need_is_never_written", 4, |rng, seed| {
        let mut halfway = Halfway::new(rng, seed);
        halfway.save_later(rng);
        let later = halfway.entries.clone();
        let damaged = Path::new(DIR).join("snapshots/b.snapshot");
        halfway.disk.flip_bit(&damaged, 77);
        let Reopened { disk, session, saved, output } = halfway.reopen();
        let before = disk.read_raw(&output.path).unwrap();
        complete_and_check(&session, &mut again_of(&session, "a"), &saved);
        assert!(disk.read_raw(&output.path).unwrap() == before);
        session.close().unwrap();
        disk.flip_bit(&damaged, 77);
        let session = open(&disk).unwrap();
        complete_and_check(&session, &mut again_of(&session, "b"), &later);
        complete_and_check(&session, &mut again_of(&session, "a"), &saved);
    });
}

/// A merge that could not read its inputs begins anew. Its file belongs to a snapshot by then.
#[test]
fn a_merge_that_begins_anew_leaves_what_a_snapshot_keeps() {
    for_each_seed("a_merge_that_begins_anew_leaves_what_a_snapshot_keeps", 4, |rng, seed| {
        let mut halfway = Halfway::new(rng, seed);
        let kept = halfway.output();
        let plan = FaultPlan::fail(halfway.disk.calls(), FaultKind::Eio, Repeat::Forever);
        halfway.disk.set_plan(plan);
        let batch = draw_batch(rng, 120, 400);
        let refused = update(&mut halfway.table, &batch);
        assert!(matches!(refused, Err(Error::Disk(_))), "{refused:?}");
        halfway.disk.set_plan(FaultPlan::default());
        assert!(halfway.output().starts_with(&kept));
        halfway.update(rng, 400);
        check(&halfway.session, &halfway.table, &halfway.entries).unwrap();
        assert!(halfway.output().starts_with(&kept));
        let Reopened { session, saved, .. } = halfway.reopen();
        complete_and_check(&session, &mut again_of(&session, "a"), &saved);
    });
}

/// A call on a session with one table.
#[derive(Debug, Clone)]
enum Step {
    Open,
    OpenSnapshot(String),
    Update(Batch),
    Save(String),
    Delete(String),
    Close,
}

/// Expected content of a session.
#[derive(Debug, Clone, Default)]
struct Model {
    table: Entries,
    snapshots: BTreeMap<String, Entries>,
}

impl Model {
    fn apply(&mut self, step: &Step) {
        match step {
            Step::Open | Step::Close => {}
            Step::OpenSnapshot(name) => self.table = self.snapshots[name].clone(),
            Step::Update(batch) => apply(&mut self.table, batch),
            Step::Save(name) => drop(self.snapshots.insert(name.clone(), self.table.clone())),
            Step::Delete(name) => drop(self.snapshots.remove(name)),
        }
    }
}

struct Runner {
    disk: Arc<SimDisk>,
    table: Option<Table>,
    session: Option<Session>,
}

impl Runner {
    fn step(&mut self, step: &Step) -> Result<()> {
        let session = || self.session.as_ref().ok_or(Error::SessionClosed);
        match step {
            Step::Open => self.session = Some(open(&self.disk)?),
            Step::OpenSnapshot(text) => {
                self.table = Some(session()?.open_snapshot(&name(text), "")?);
            }
            Step::Update(batch) => update(self.table.as_mut().unwrap(), batch)?,
            Step::Save(text) => self.table.as_ref().unwrap().save_snapshot(&name(text), "")?,
            Step::Delete(text) => session()?.delete_snapshot(&name(text))?,
            Step::Close => {
                self.table = None;
                session()?.close()?;
            }
        }

        Ok(())
    }
}

/// A disk with a snapshot `a` whose merges are under way, and what can be done from there: the
/// merge goes on and becomes complete, others begin, all of it saved and left on the way.
fn script(rng: &mut ChaCha8Rng, seed: u64) -> (Arc<SimDisk>, Model, Vec<Step>) {
    let Reopened { disk, session, saved, .. } = Halfway::new(rng, seed).reopen();
    session.close().unwrap();
    drop(session);
    let snapshots = BTreeMap::from([("a".to_owned(), saved)]);

    let mut steps = vec![Step::Open, Step::OpenSnapshot("a".to_owned())];
    for round in 0..7 {
        steps.push(Step::Update(draw_batch(rng, 120, 5)));
        steps.push(Step::Save(format!("s{round}")));
        match round {
            2 => steps.push(Step::Delete("s0".to_owned())),
            4 => steps.extend([Step::Close, Step::Open, Step::OpenSnapshot("s1".to_owned())]),
            5 => steps.push(Step::Delete("a".to_owned())),
            _ => {}
        }
    }

    steps.push(Step::Close);
    (disk, Model { snapshots, ..Model::default() }, steps)
}

/// Runs steps until one fails. Returns the states of the snapshots that are legal then, and whether
/// all steps were done.
fn run(disk: &Arc<SimDisk>, mut model: Model, steps: &[Step]) -> (Vec<Model>, bool) {
    let mut runner = Runner { disk: Arc::clone(disk), table: None, session: None };
    for step in steps {
        let result = runner.step(step);
        let before = model.clone();
        model.apply(step);
        if result.is_err() {
            assert!(disk.has_crashed(), "{step:?}: {result:?}");
            return (vec![before, model], false);
        }
    }
    (vec![model], true)
}

/// Opens all snapshots, goes on with one of them until its merges are complete, and with another
/// session looks whether all are as they were.
fn check_image(disk: &Arc<SimDisk>, legal: &[Model], rng: &mut ChaCha8Rng) {
    let session = open(disk).expect("a session opens after a crash");
    let names = session.list_snapshots().unwrap();
    let names: Vec<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
    let model = legal.iter().find(|model| model.snapshots.keys().eq(&names));
    let model = model.unwrap_or_else(|| panic!("snapshots {names:?}"));
    let chosen = names[rng.index(names.len())].clone();
    let mut table = again_of(&session, &chosen);
    let mut entries = model.snapshots[&chosen].clone();
    check(&session, &table, &entries).unwrap();
    let batch: Batch = (0..80).map(|n| (key(n).to_vec(), Change::Upsert(vec![b'+']))).collect();
    update(&mut table, &batch).unwrap();
    apply(&mut entries, &batch);
    check(&session, &table, &entries).unwrap();
    drop(table);
    session.close().unwrap();

    let session = open(disk).unwrap();
    for (text, entries) in &model.snapshots {
        check(&session, &again_of(&session, text), entries).unwrap();
    }

    for text in model.snapshots.keys() {
        session.delete_snapshot(&name(text)).unwrap();
    }
    session.close().unwrap();
    drop(session);

    let left = disk.files().into_iter().filter(|path| path.extension().is_some());
    // The remains of the crash stay for a while.
    let left: Vec<_> =
        left.filter(|path| !path.starts_with(Path::new(DIR).join("lost+found"))).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    assert_eq!(disk.open_files(), 0);
}

/// Power loss and the death of the process at every call of saving unfinished merges and going on
/// with them.
#[test]
fn progress_survives_a_crash_at_any_call() {
    for_each_seed("progress_survives_a_crash_at_any_call", 1, |rng, seed| {
        let (base, model, steps) = script(rng, seed);
        let whole = base.clone_disk();
        let (last, is_complete) = run(&whole, model.clone(), &steps);
        assert!(is_complete);
        let kept: usize = last[0].snapshots.keys().map(|n| outputs(&look(&whole, n)).len()).sum();
        assert!(kept > 3, "{kept} unfinished merges in {:?}", last[0].snapshots.keys());
        let workload = |disk: &Arc<SimDisk>| run(disk, model.clone(), &steps).0;
        let images = Sweep::sampled(seed, 5).on(&base).crash(workload, |crash| {
            let torn = Survival::Torn(rng.below(1 << 40));
            let random = Survival::Random(rng.below(1 << 40));
            let survival = *rng.pick(&[Survival::Nothing, Survival::Everything, random, torn]);
            let is_kill = rng.chance(1, 5);
            let loss = if is_kill { Loss::Process } else { Loss::Power(survival) };
            crash.images([loss], |image| check_image(&image.disk, crash.run, rng))
        });
        assert!(images > by_effort(40, 200), "only {images} calls");
    });
}

/// A fault at every call from the opening of a snapshot until its merges are complete and saved.
#[test]
fn faults_of_a_resumed_merge_are_reported_and_change_nothing() {
    let test = "faults_of_a_resumed_merge_are_reported_and_change_nothing";
    for_each_seed(test, 1, |rng, seed| {
        let (base, model, steps) = script(rng, seed);
        let third = steps.iter().position(|step| matches!(step, Step::Save(name) if name == "s2"));
        let steps = &steps[..=third.unwrap()];
        let kinds = [FaultKind::Eio, FaultKind::Enospc, FaultKind::ShortRead, FaultKind::TornWrite];
        for (number, kind) in (0..).zip(kinds.into_iter().chain(FaultKind::SILENT)) {
            let is_silent = FaultKind::SILENT.contains(&kind);
            // Every call fails once; every third one in each other way.
            let stride = if kind == FaultKind::Eio { 1 } else { 3 } * by_effort(7, 1);
            let mut struck = 0;
            let mut at_call: u64 = number % stride;
            loop {
                let disk = base.clone_disk();
                // Wrong bytes may wait in memory for the next step, after the fault.
                let is_once = is_silent || at_call.is_multiple_of(2);
                let repeat = if is_once { Repeat::Once } else { Repeat::Forever };
                let fault = Fault { at_call: disk.calls() + at_call, kind, repeat };
                let _note = Note(&fault);
                disk.set_plan(FaultPlan { fail: Some(fault), ..FaultPlan::default() });
                let errors = run_with_fault(&disk, model.clone(), steps, (is_silent, rng));
                if disk.faults() == 0 {
                    break;
                }
                // Where a file ends too early it may be damaged, and of progress damage is no loss.
                // Nor is the file of a snapshot that cannot be read when the session is opened.
                let may_be_damage =
                    is_silent || matches!(kind, FaultKind::ShortRead | FaultKind::Eio);
                assert!(errors > 0 || may_be_damage, "a fault was swallowed");
                (struck, at_call) = (struck + 1, at_call + stride);
            }
            assert!(struck > by_effort(1, 10), "only {struck} runs with {kind:?}");
        }
    });
}

/// Runs steps; each one that fails is done once more without the fault. Returns how many failed.
fn run_with_fault(
    disk: &Arc<SimDisk>,
    mut model: Model,
    steps: &[Step],
    (is_silent, rng): (bool, &mut ChaCha8Rng),
) -> u64 {
    let mut runner = Runner { disk: Arc::clone(disk), table: None, session: None };
    let mut errors = 0;
    for step in steps {
        if let Err(error) = runner.step(step) {
            errors += 1;
            let is_damage = matches!(
                error,
                Error::Corrupt { .. }
                    | Error::SnapshotCorrupted { .. }
                    | Error::SessionDirCorrupted { .. }
            );

            assert!(disk.faults() > 0, "{step:?} failed without a fault: {error}");
            assert!(is_damage || !is_silent && matches!(error, Error::Disk(_)), "{error:?}");
            disk.set_plan(FaultPlan::default());

            if let (Some(session), Some(table)) = (&runner.session, &runner.table) {
                check(session, table, &model.table).expect("reads go on");
            }

            let was_deleted = matches!(step, Step::Delete(text) if {
                let session = runner.session.as_ref().unwrap();
                !session.snapshot_exists(&name(text)).unwrap()
            });

            let nothing: [(&[u8], Update<'_>); 0] = [];
            let refused = runner.table.as_mut().map(|table| table.write_batch(&nothing));
            if let Some(Err(Error::Poisoned { .. })) = refused {
                let before = model.clone();
                model.apply(step);
                drop(runner);
                let legal = [before, model];
                check_image(&disk.after_crash(Survival::Random(errors)), &legal, rng);
                check_image(disk, &legal, rng);
                return errors;
            }

            if !was_deleted {
                runner.step(step).unwrap_or_else(|error| panic!("{step:?} again: {error:?}"));
            }
        }

        model.apply(step);
        if let (Some(session), Some(table), 1..) = (&runner.session, &runner.table, errors) {
            check(session, table, &model.table).unwrap();
        }
    }

    disk.set_plan(FaultPlan::default());
    drop(runner);
    if errors > 0 && rng.chance(1, 4) {
        check_image(&disk.after_crash(Survival::Nothing), &[model], rng);
    }
    errors
}

/// The report on a session directory.
fn report(disk: &Arc<SimDisk>) -> verify::Report {
    let disk: Arc<dyn Disk> = Arc::clone(disk) as _;
    verify::verify(&disk, Path::new(DIR), &mut |_, _| {}).unwrap()
}

#[test]
fn no_damage_to_what_a_merge_had_written_is_a_loss() {
    for_each_seed("no_damage_to_what_a_merge_had_written_is_a_loss", 1, |rng, seed| {
        let Reopened { disk: base, session, saved, output } = Halfway::new(rng, seed).reopen();
        session.close().unwrap();
        drop(session);
        assert!(report(&base).is_clean(), "{:?}", report(&base).problems);
        let blobs = output.path.with_extension("blobs");
        let blob_pages = output.blob_bytes.div_ceil(PAGE_SIZE as u64 - 16);
        let mut damaged: Vec<(&str, Arc<SimDisk>, &PathBuf)> = Vec::new();
        for (path, pages) in [(&output.path, output.pages), (&blobs, blob_pages)] {
            let bytes = base.read_raw(path).unwrap();
            assert!(pages > 0 && bytes.len() as u64 >= pages * PAGE_SIZE as u64, "{pages} pages");
            for page in 0..pages {
                for _ in 0..4 {
                    let disk = base.clone_disk();
                    disk.flip_bit(path, (page * PAGE_SIZE as u64) * 8 + rng.below(8 * 4096));
                    damaged.push(("a bit", disk, path));
                }
                let disk = base.clone_disk();
                disk.write_raw(path, &bytes[..page as usize * PAGE_SIZE + 512]);
                damaged.push(("cut", disk, path));
                let to = (page + 1) % pages;
                if to == page {
                    continue;
                }
                let disk = base.clone_disk();
                let mut other = bytes.clone();
                let from = page as usize * PAGE_SIZE..(page as usize + 1) * PAGE_SIZE;
                other.copy_within(from, to as usize * PAGE_SIZE);
                disk.write_raw(path, &other);
                damaged.push(("another page", disk, path));
            }
            let disk = base.clone_disk();
            disk.remove(path).unwrap();
            damaged.push(("missing", disk, path));
        }
        for (number, (what, disk, path)) in damaged.iter().enumerate() {
            let _note = Note(&(what, number, path));
            let report = report(disk);
            assert!(!report.is_clean());
            for problem in &report.problems {
                assert!(problem.path == **path && !problem.repairable, "{problem:?}");
                assert!(problem.rule.contains("without which it begins anew"), "{problem:?}");
                assert_eq!(problem.snapshots, ["a"]);
            }
            let session = open(disk).unwrap();
            complete_and_check(&session, &mut again_of(&session, "a"), &saved);
        }
        // What is behind it nobody relies on.
        let bytes = base.read_raw(&output.path).unwrap();
        let disk = base.clone_disk();
        let end = output.pages as usize * PAGE_SIZE;
        disk.write_raw(&output.path, &[&bytes[..end], &[0xA5; 10_000]].concat());
        assert!(report(&disk).is_clean());
        let session = open(&disk).unwrap();
        complete_and_check(&session, &mut again_of(&session, "a"), &saved);
        assert!(is_whole(&disk, &output.path));
    });
}
