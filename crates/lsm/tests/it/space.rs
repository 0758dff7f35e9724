//! Out of disk space: the reserve, and the operations that it keeps going.
//!
//! Goal: a full disk refuses insertions, and only insertions, with an error that says so;
//! deletions, compactions, checkpoints, snapshots and changes of tables go on; once there is room,
//! insertions succeed in the same session. Nothing that was committed is lost at any point,
//! whatever fails or crashes on the way.
//!
//! Method: a script fills a simulated disk of a fixed size until it is refused, and then makes room
//! in every way that there is. It is run as it is, with a crash at call n, and with a fault at call
//! n.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use terrane_io::{Access, Disk, OpenMode};
use terrane_io::{BadMedia, SimDisk, Survival};
use terrane_io::{Fault, FaultKind, FaultPlan, Repeat};
use terrane_lsm::inspect::{self, Inspection};
use terrane_lsm::{
    CheckpointThread, CompactionThread, Durability, Error, NamedTable, RESERVE_BYTES_MIN, Result,
    Session, SessionOptions, Store, StoreOptions, Table, TableConfig, TableName, Update,
    WriteBuffer, verify,
};
use terrane_testkit::effort::by_effort;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::{Loss, Sweep};

use crate::{FEW_OPEN_FILES, SALT, SessionDir, key, name, value};

const DIR: &str = "/store";
const RESERVE: u64 = 1 << 20;
const CAPACITY: u64 = 1600 << 10;

/// Keys of one batch.
const BATCH: u64 = 16;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn session_options(reserve_bytes: Option<u64>) -> SessionOptions {
    let options = SessionOptions::with_salt(SALT).create_dir().open_files_max(FEW_OPEN_FILES);
    match reserve_bytes {
        Some(bytes) => options.reserve_bytes(bytes),
        None => options,
    }
}

fn open_with(disk: &Arc<SimDisk>, reserve_bytes: Option<u64>) -> Result<Store> {
    let options = StoreOptions::default().session(session_options(reserve_bytes));
    let options = options.durability(Durability::Each).log_bytes_max(64 << 10);
    let options = options.checkpoint_thread(CheckpointThread::Caller);
    Store::open(Arc::clone(disk) as Arc<dyn Disk>, Path::new(DIR), &options)
}

fn full(capacity_bytes: u64) -> FaultPlan {
    FaultPlan { capacity_bytes: Some(capacity_bytes), ..FaultPlan::default() }
}

fn config(compaction_thread: CompactionThread) -> TableConfig {
    let write_buffer = WriteBuffer::Entries(48);
    TableConfig::default().write_buffer(write_buffer).compaction_thread(compaction_thread)
}

fn main_table() -> TableName {
    TableName::default()
}

fn other() -> TableName {
    TableName::new("other").unwrap()
}

fn batch_of(first: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    (first..first + BATCH).map(|n| (key(n).to_vec(), value(n, 400))).collect()
}

fn insert(table: &NamedTable, first: u64) -> Result<()> {
    let entries = batch_of(first);
    let batch: Vec<_> = entries.iter().map(|(key, value)| (key, Update::Insert(value))).collect();
    table.write_batch(&batch).map(drop)
}

fn delete(table: &NamedTable, first: u64) -> Result<()> {
    let batch: Vec<_> = (first..first + BATCH).map(|n| (key(n), Update::Delete)).collect();
    table.write_batch(&batch).map(drop)
}

fn content(table: &Table) -> Result<Content> {
    let records = table.cursor()?.next_many(usize::MAX)?;
    Ok(records.into_iter().map(|r| (r.key, r.value.as_ref().to_vec())).collect())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Open,
    Create,
    /// Inserts a batch of that number into a table.
    Insert(bool, u64),
    /// Deletes it from the main table.
    Delete(u64),
    Save,
    DeleteSnapshot,
    DropOther,
    Checkpoint,
    Reopen,
}

impl Step {
    /// Whether a full disk may refuse it.
    fn grows(self) -> bool {
        matches!(self, Self::Insert(..))
    }

    fn apply(self, content: &mut Content) {
        match self {
            Self::Insert(true, number) => content.extend(batch_of(number * BATCH)),
            Self::Delete(number) => {
                for (key, _) in batch_of(number * BATCH) {
                    content.remove(&key);
                }
            }
            _ => {}
        }
    }
}

/// Fills a disk beyond what it holds, makes room, and goes on.
fn script() -> Vec<Step> {
    let mut steps = vec![Step::Open, Step::Create];
    steps.extend((0..12).map(|number| Step::Insert(false, number)));
    steps.extend((0..12).map(|number| Step::Insert(true, number)));
    steps.push(Step::Save);
    steps.extend((12..90).map(|number| Step::Insert(true, number)));
    steps.extend((0..20).map(Step::Delete));
    steps.push(Step::Checkpoint);
    steps.push(Step::Reopen);
    steps.extend((20..30).map(Step::Delete));
    steps.extend([Step::DeleteSnapshot, Step::Insert(true, 90), Step::DropOther]);
    steps.extend((30..70).map(Step::Delete));
    steps.push(Step::Checkpoint);
    steps.extend((100..110).map(|number| Step::Insert(true, number)));
    steps
}

struct Runner {
    disk: Arc<SimDisk>,
    compaction_thread: CompactionThread,
    store: Option<Store>,
}

impl Runner {
    fn new(disk: &Arc<SimDisk>) -> Self {
        Self { disk: Arc::clone(disk), compaction_thread: CompactionThread::Caller, store: None }
    }

    fn store(&mut self) -> Result<Store> {
        if self.store.is_none() {
            self.store = Some(open_with(&self.disk, Some(RESERVE))?);
        }
        Ok(self.store.clone().unwrap())
    }

    fn table(&mut self) -> Result<NamedTable> {
        self.store()?.table(&main_table())
    }

    /// Makes those of the tables that are missing.
    fn create(&mut self) -> Result<()> {
        let store = self.store()?;
        for name in [main_table(), other()] {
            match store.create_table(&name, &config(self.compaction_thread)) {
                Err(Error::TableExists { .. }) => {}
                made => drop(made?),
            }
        }
        Ok(())
    }

    fn step(&mut self, step: Step) -> Result<()> {
        let store = self.store()?;
        match step {
            Step::Open => {}
            Step::Create => self.create()?,
            Step::Insert(true, number) => insert(&self.table()?, number * BATCH)?,
            Step::Insert(false, number) => insert(&store.table(&other())?, number * BATCH)?,
            Step::Delete(number) => delete(&self.table()?, number * BATCH)?,
            Step::Save => self.table()?.save_snapshot(&name("early"), "space")?,
            Step::DeleteSnapshot => {
                store.session().delete_snapshot_if_exists(&name("early")).map(drop)?;
            }
            Step::DropOther => match store.drop_table(&other()) {
                Err(Error::TableDoesNotExist { .. }) => {}
                dropped => dropped?,
            },
            Step::Checkpoint => store.checkpoint()?,
            Step::Reopen => {
                let closed = store.close();
                self.store = None;
                closed?;
                self.store()?;
            }
        }

        Ok(())
    }
}

/// Result of the script on a disk without faults.
#[derive(Debug, Default)]
struct Outcome {
    refused: Vec<Step>,
    inserted: u64,
    content: Content,
}

/// Runs the script on a disk without faults, looking at everything `in_between`.
fn run_whole(
    disk: &Arc<SimDisk>,
    compaction_thread: CompactionThread,
    in_between: bool,
) -> Outcome {
    disk.set_plan(full(CAPACITY));

    let mut outcome = Outcome::default();
    let mut runner = Runner { compaction_thread, ..Runner::new(disk) };
    for step in script() {
        match runner.step(step) {
            Ok(()) => {
                step.apply(&mut outcome.content);
                outcome.inserted += u64::from(step.grows());
            }
            Err(error @ Error::OutOfSpace { .. }) => {
                assert!(step.grows(), "{step:?}: {error}");
                assert!(runner.store().unwrap().session().stats().is_full);
                outcome.refused.push(step);
            }
            Err(error) => panic!("{step:?}: {error}"),
        }

        if in_between && step != Step::Open && step != Step::Create {
            let found = content(&runner.table().unwrap().view().unwrap()).unwrap();
            assert!(found == outcome.content, "{step:?}");
        }
    }

    let stats = runner.store().unwrap().session().stats();
    assert!(!stats.is_full && stats.reserve_bytes == RESERVE, "{stats:?}");
    runner.store().unwrap().close().unwrap();
    outcome
}

#[test]
fn on_a_full_disk_insertions_are_refused_and_all_else_goes_on_until_there_is_room() {
    for compaction_thread in [CompactionThread::Caller, CompactionThread::Background] {
        let disk = SimDisk::new(1);
        let outcome = run_whole(&disk, compaction_thread, true);
        let refused = &outcome.refused;
        // The disk is full for a good while, and in the end all go in.
        assert!(refused.len() > 10 && outcome.inserted > 40, "{refused:?}");
        let last = Step::Insert(true, 109);
        assert!(!refused.contains(&last) && refused.contains(&Step::Insert(true, 89)));
        let found = open_with(&disk, None).unwrap();
        assert_eq!(found.session().stats().reserve_bytes, RESERVE, "it is remembered");
        let table = found.table(&main_table()).unwrap();
        assert!(content(&table.view().unwrap()).unwrap() == outcome.content);
    }
}

/// Checks the image of a crash on a disk that stays full: committed data is there, deletions
/// succeed, and insertions succeed once there is room.
fn check_image(disk: &Arc<SimDisk>, legal: &[Content]) {
    disk.set_plan(full(CAPACITY));
    let store = open_with(disk, None).expect("a full disk opens");

    let stats = store.session().stats();
    // If the crash came before the store was made, it has the reserve of a new one.
    assert!(stats.reserve_bytes <= RESERVE, "{stats:?}");
    let Ok(table) = store.table(&main_table()) else {
        assert!(legal.contains(&Content::new()));
        return;
    };

    let mut found = content(&table.view().unwrap()).unwrap();
    assert!(legal.contains(&found), "{} entries are none of {}", found.len(), legal.len());
    let first = found.keys().next().cloned().unwrap_or_default();
    drop(table.delete(&first).expect("deletions go on"));
    found.remove(&first);
    store.checkpoint().expect("checkpoints go on");
    disk.set_plan(FaultPlan::default());
    insert(&table, 1_000 * BATCH).expect("there is room");
    found.extend(batch_of(1_000 * BATCH));
    assert!(!store.session().stats().is_full);
    drop((store, table));
    let disk = disk.after_crash(Survival::Nothing);
    let store = open_with(&disk, None).unwrap();
    let table = store.table(&main_table()).unwrap();
    assert!(content(&table.view().unwrap()).unwrap() == found);
    store.close().unwrap();
}

#[test]
fn after_a_crash_at_any_call_on_a_full_disk_nothing_is_lost_and_deletions_go_on() {
    for_each_seed("space_crash", 1, |_, seed| {
        let workload = |disk: &Arc<SimDisk>| {
            let mut states = vec![Content::new()];
            let mut runner = Runner::new(disk);
            for step in script() {
                let mut next = states.last().unwrap().clone();
                step.apply(&mut next);
                let done = runner.step(step);
                if disk.has_crashed() {
                    states.push(next);
                    break;
                }
                match done {
                    Ok(()) => states = vec![next],
                    Err(Error::OutOfSpace { .. }) if step.grows() => {}
                    Err(error) => panic!("{step:?}: {error}"),
                }
            }
            states
        };
        let sweep = Sweep::sampled(seed, 2).one_in(41).from_call(1).with_plan(full(CAPACITY));
        sweep.crash(workload, |crash| {
            let survivals =
                [Survival::Nothing, Survival::Random(crash.call), Survival::Torn(crash.call)];
            let losses = survivals.map(Loss::Power).into_iter().chain([Loss::Process]);
            crash.images(losses, |image| check_image(&image.disk, crash.run))
        });
    });
}

/// A step failed: nothing of it is seen, unless it could not be made durable only. Returns whether
/// the store can go on.
fn check_failed(runner: &mut Runner, step: Step, states: &mut Vec<Content>, error: &Error) -> bool {
    let Some(store) = runner.store.clone() else { return true };
    let before = states.last().unwrap().clone();
    let mut after = before.clone();
    step.apply(&mut after);

    let found = match store.table(&main_table()) {
        Ok(table) => content(&table.view().unwrap()).expect("reads go on"),
        Err(_) => Content::new(),
    };

    assert!(found == before || found == after, "{step:?}: {error}");
    let is_poisoned = matches!(store.commit::<&[u8]>(&[]), Err(Error::Poisoned { .. }));
    if is_poisoned {
        states.push(after);
    } else {
        *states = vec![found];
    }

    !is_poisoned
}

/// Runs the script with a fault. Returns whether it struck.
fn run_with_fault(seed: u64, fault: Fault) -> bool {
    let disk = SimDisk::new(seed);
    disk.set_plan(FaultPlan { fail: Some(fault), ..full(CAPACITY) });
    let mut states = vec![Content::new()];

    let mut runner = Runner::new(&disk);
    let mut failed = false;
    for step in script() {
        let mut again = false;
        let done = loop {
            let Err(error) = runner.step(step) else { break true };
            let is_refused = matches!(error, Error::OutOfSpace { .. });
            failed |= !is_refused;
            assert!(!again || is_refused, "{step:?} again: {error}");
            assert!(!is_refused || step.grows(), "{step:?}: {error}");
            if is_refused && disk.faults() == 0 {
                break false;
            }
            // What is to be seen is what the fault has left, not what it does to looking.
            disk.set_plan(full(CAPACITY));
            if !check_failed(&mut runner, step, &mut states, &error) {
                drop(runner);
                disk.set_plan(FaultPlan::default());
                check_image(&disk.after_crash(Survival::Nothing), &states);
                check_image(&disk, &states);
                return true;
            }
            if is_refused {
                break false;
            }
            again = true;
        };

        let mut now = states.pop().unwrap();
        if done {
            step.apply(&mut now);
        }
        states = vec![now];
    }

    drop(runner);
    disk.set_plan(FaultPlan::default());
    check_image(&disk.after_crash(Survival::Nothing), &states);
    failed || disk.faults() > 0
}

#[test]
fn a_fault_at_any_call_on_a_full_disk_loses_nothing() {
    for_each_seed("space_faults", 1, |_, seed| {
        let whole = SimDisk::new(seed);
        run_whole(&whole, CompactionThread::Caller, false);
        let mut struck = 0;
        let kinds = [
            FaultKind::Eio,
            FaultKind::Enospc,
            FaultKind::ShortWrite,
            FaultKind::TornWrite,
            FaultKind::FailedSync,
        ];
        let every = by_effort(131, 41);
        for (at, call) in (seed % every..whole.calls()).step_by(every as usize).enumerate() {
            for repeat in [Repeat::Once, Repeat::Forever] {
                let kind = kinds[at % kinds.len()];
                struck += u64::from(run_with_fault(seed, Fault { at_call: call, kind, repeat }));
            }
        }
        assert!(struck > by_effort(15, 50), "{struck} of {}", whole.calls());
    });
}

#[test]
fn without_a_reserve_a_full_disk_is_an_error_of_the_call_and_work_goes_on_when_there_is_room() {
    let disk = SimDisk::new(1);
    let store = open_with(&disk, Some(0)).unwrap();
    let table = store.create_table(&main_table(), &config(CompactionThread::Caller)).unwrap();
    disk.set_plan(full(CAPACITY));

    let mut expected = Content::new();
    let refused = (0..1_000).find_map(|number| match insert(&table, number * BATCH) {
        Ok(()) => {
            expected.extend(batch_of(number * BATCH));
            None
        }
        Err(error) => Some((number, error)),
    });

    let (number, error) = refused.unwrap();
    assert!(matches!(&error, Error::Disk(error) if error.is_no_space()), "{error}");
    assert!(!store.session().stats().is_full);
    disk.set_plan(FaultPlan::default());
    insert(&table, number * BATCH).unwrap();
    expected.extend(batch_of(number * BATCH));
    assert!(content(&table.view().unwrap()).unwrap() == expected);
    store.close().unwrap();
}

/// A full disk could not be emptied again: a new store had no reserve, the first deletion after
/// opening had to write out all that was recovered from the log, and compaction was refused.
#[test]
fn a_full_disk_is_emptied_again_by_whoever_opens_the_store() {
    for is_closed in [false, true] {
        let disk = SimDisk::new(1);
        disk.set_plan(full(CAPACITY));
        let store = open_with(&disk, None).unwrap();
        assert!(store.session().stats().reserve_bytes >= RESERVE_BYTES_MIN);

        let tables = [main_table(), other()];
        let tables = tables.map(|n| store.create_table(&n, &TableConfig::default()).unwrap());
        let filled = (0..1_000)
            .find(|number| tables.iter().any(|table| insert(table, number * BATCH).is_err()))
            .unwrap();
        assert!(filled > 20, "{filled} batches");
        drop(tables);

        if is_closed {
            store.close().unwrap();
        }
        drop(store);

        let disk = disk.process_kill();
        disk.set_plan(full(CAPACITY));
        let store = open_with(&disk, None).unwrap();

        let table = store.table(&main_table()).unwrap();
        for number in 0..filled {
            delete(&table, number * BATCH).unwrap();
        }
        store.drop_table(&other()).unwrap();
        store.compact(&mut |_, _| {}).unwrap();
        insert(&table, 0).unwrap();
        assert!(!store.session().stats().is_full);
        let left = content(&table.view().unwrap()).unwrap();
        assert!(left.len() as u64 <= 2 * BATCH, "{} entries", left.len());
        drop(table);
        store.close().unwrap();
    }
}

/// The setting was kept although the call was refused, and then every insertion failed.
#[test]
fn a_reserve_larger_than_the_disk_is_refused_and_changes_nothing() {
    let disk = SimDisk::new(1);
    disk.set_plan(full(CAPACITY));
    let too_large = |reserve_bytes: u64| {
        let error = open_with(&disk, Some(reserve_bytes)).unwrap_err();
        let is_right = matches!(error, Error::ReserveTooLarge { bytes, free, .. }
            if bytes == reserve_bytes && free <= CAPACITY);
        assert!(is_right, "{error}");
    };

    too_large(1 << 40);
    assert!(disk.kind(Path::new(DIR)).unwrap().is_none(), "nothing was made");

    let store = open_with(&disk, Some(RESERVE_BYTES_MIN)).unwrap();
    store.close().unwrap();
    drop(store);
    too_large(CAPACITY);
    let store = open_with(&disk, None).unwrap();
    assert_eq!(store.session().stats().reserve_bytes, RESERVE_BYTES_MIN);
    let table = store.create_table(&main_table(), &config(CompactionThread::Caller)).unwrap();
    insert(&table, 0).unwrap();
}

/// Bytes of the file of the reserve, if it is there.
fn reserve_len(place: &SessionDir) -> Option<u64> {
    let file = place.disk().open(&place.dir().join("reserve"), OpenMode::Read, Access::Buffered);
    file.ok().map(|file| file.len().unwrap())
}

#[test]
fn a_session_keeps_the_reserve_that_it_was_told_to_have() {
    for place in SessionDir::both() {
        let open = |reserve_bytes| {
            let options = session_options(reserve_bytes);
            let session = Session::open(place.disk(), &place.dir(), &options).unwrap();
            let stats = session.stats();
            session.close().unwrap();
            assert!(!stats.is_full);
            (stats.reserve_bytes, reserve_len(&place))
        };

        assert_eq!(open(None), (0, None));
        assert_eq!(open(Some(1 << 20)), (1 << 20, Some(1 << 20)));
        assert_eq!(open(None), (1 << 20, Some(1 << 20)));
        assert_eq!(open(Some(RESERVE_BYTES_MIN)), (64 << 10, Some(64 << 10)));
        assert_eq!(open(None), (64 << 10, Some(64 << 10)));
        assert_eq!(open(Some(0)), (0, None));
        assert_eq!(open(None), (0, None));

        for refused in [1, RESERVE_BYTES_MIN - 1, u64::MAX] {
            let options = session_options(Some(refused));
            let error = Session::open(place.disk(), &place.dir(), &options).unwrap_err();
            assert!(
                matches!(&error, Error::InvalidConfig { option: "reserve_bytes", .. }),
                "{error}"
            );
        }
    }
}

/// An operator removes the file by hand to make room, and makes more later.
#[test]
fn a_reserve_that_was_removed_by_hand_is_made_again() {
    let disk = SimDisk::new(1);
    let store = open_with(&disk, Some(RESERVE)).unwrap();
    let table = store.create_table(&main_table(), &config(CompactionThread::Caller)).unwrap();
    disk.set_plan(full(CAPACITY));
    let refused = (0..1_000).find(|number| insert(&table, number * BATCH).is_err()).unwrap();
    disk.remove(Path::new("/store/reserve")).unwrap();
    assert!(matches!(insert(&table, refused * BATCH), Err(Error::OutOfSpace { .. })));
    delete(&table, 0).unwrap();
    disk.set_plan(FaultPlan::default());
    insert(&table, refused * BATCH).unwrap();
    assert!(!store.session().stats().is_full);
    let file = disk.open(Path::new("/store/reserve"), OpenMode::Read, Access::Buffered).unwrap();
    assert_eq!(file.len().unwrap(), RESERVE);
}

fn verified(disk: &Arc<SimDisk>) -> verify::Report {
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    verify::verify(&disk, Path::new(DIR), &mut |_, _| {}).unwrap()
}

/// A damaged reserve counts as none; opening refuses a reserve of another version.
#[test]
fn a_damaged_reserve_counts_as_none_and_an_unknown_one_is_refused() {
    let disk = SimDisk::new(1);
    open_with(&disk, Some(RESERVE)).unwrap().close().unwrap();
    let path = Path::new("/store/reserve");
    let whole = disk.read_raw(path).unwrap();
    assert!(verified(&disk).is_clean());
    let inspected = inspect::inspect(&(Arc::clone(&disk) as Arc<dyn Disk>), path).unwrap();
    let Inspection::Reserve(info) = inspected else { panic!("{inspected:?}") };
    assert_eq!((info.version, info.bytes, info.is_held), (1, RESERVE, true));

    for bit in 0..24 * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        disk.write_raw("/store/reserve", &bytes);
        let store = open_with(&disk, None).unwrap();
        assert_eq!(store.session().stats().reserve_bytes, 0, "bit {bit}");
        store.close().unwrap();
        let problems = verified(&disk).problems;
        assert_eq!(problems.len(), 1, "bit {bit}: {problems:?}");
        assert_eq!((&*problems[0].path, problems[0].offset), (path, 0));
    }

    for len in 0..24 {
        disk.write_raw("/store/reserve", &whole[..len]);
        let store = open_with(&disk, None).unwrap();
        assert_eq!(store.session().stats().reserve_bytes, 0, "{len} bytes");
        store.close().unwrap();
        assert!(verified(&disk).is_clean(), "its making was cut short");
    }

    let store = open_with(&disk, Some(RESERVE)).unwrap();
    assert_eq!(store.session().stats().reserve_bytes, RESERVE);
    store.close().unwrap();
    assert_eq!(disk.read_raw("/store/reserve").unwrap(), whole);
    let mut newer = whole[..20].to_vec();
    newer[8] = 2;
    newer.extend(terrane_io::checksum::crc32c(&newer).to_le_bytes());
    disk.write_raw("/store/reserve", &newer);
    let refused = open_with(&disk, None).unwrap_err();
    assert!(matches!(refused, Error::UnknownVersion { found: 2, newest: 1, .. }), "{refused}");
}

/// A sector of the reserve that could not be read stopped verify, inspect and the writer.
#[test]
fn a_reserve_that_cannot_be_read_is_told_of_and_made_anew() {
    let disk = SimDisk::new(1);
    open_with(&disk, Some(RESERVE)).unwrap().close().unwrap();
    disk.add_bad_range("/store/reserve", 0..512, BadMedia::Read);
    let problems = verified(&disk).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].rule.contains("the next opening makes it anew"), "{problems:?}");
    let shared: Arc<dyn Disk> = disk.clone();
    let inspected = inspect::inspect(&shared, Path::new("/store")).unwrap();
    let Inspection::Session(info) = inspected else { panic!("{inspected:?}") };
    assert!(info.reserve.is_none());
    let store = open_with(&disk, None).unwrap();
    assert!(store.session().stats().reserve_bytes >= RESERVE_BYTES_MIN);
    store.close().unwrap();
    disk.heal();
    assert!(verified(&disk).is_clean());

    disk.add_bad_range("/store/reserve", 0..512, BadMedia::Read);
    let shared: Arc<dyn Disk> = disk.clone();
    let report =
        verify::repair(&shared, Path::new(DIR), verify::Loss::Accepted, &mut |_, _| {}).unwrap();
    assert!(report.problems.len() == 1 && report.problems[0].dropped, "{:?}", report.problems);
    assert!(verified(&disk).is_clean());
}

/// A reserve that this user could not read was removed and made anew in the default size, so the
/// size that somebody had chosen was lost.
#[test]
fn a_reserve_that_may_not_be_read_is_left_alone() {
    let disk = SimDisk::new(1);
    open_with(&disk, Some(5 << 20)).unwrap().close().unwrap();
    disk.deny("/store/reserve");
    let problems = verified(&disk).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].rule.contains("let this user read and write it"), "{problems:?}");
    let store = open_with(&disk, None).unwrap();
    assert_eq!(store.session().stats().reserve_bytes, 0);
    store.close().unwrap();
    disk.heal();
    let store = open_with(&disk, None).unwrap();
    assert_eq!(store.session().stats().reserve_bytes, 5 << 20);
    store.close().unwrap();

    // Whoever says how large it is to be gets another.
    disk.deny("/store/reserve");
    let store = open_with(&disk, Some(RESERVE)).unwrap();
    assert_eq!(store.session().stats().reserve_bytes, RESERVE);
    store.close().unwrap();
    disk.heal();
    assert!(verified(&disk).is_clean());
}

/// A table that does not last, a snapshot to take in, and upserts: all of them need room.
#[test]
fn tables_that_do_not_last_and_imports_are_refused_too() {
    let disk = SimDisk::new(1);
    let dir = Path::new("/session");
    let reserve = 256 << 10;
    let options = session_options(Some(reserve));
    let session = Session::open(Arc::clone(&disk) as _, dir, &options).unwrap();

    let mut table = session.new_table(&config(CompactionThread::Caller)).unwrap();
    for number in 0..8 {
        table.insert(&key(number), &value(number, 60)).unwrap();
    }
    table.save_snapshot(&name("a"), "").unwrap();
    session.export_snapshot(&name("a"), "/export").unwrap();
    disk.set_plan(full(900 << 10));

    let fill = |table: &mut Table| {
        (10..5_000).find_map(|number| table.insert(&key(number), &value(number, 400)).err())
    };

    let refused = fill(&mut table).unwrap();
    assert!(
        matches!(refused, Error::OutOfSpace { reserve_bytes, .. } if reserve_bytes == reserve),
        "{refused:?}"
    );

    let refused = table.upsert(&key(0), b"1").unwrap_err();
    assert!(matches!(refused, Error::OutOfSpace { .. }), "{refused}");
    let refused = session.import_snapshot("/export", &name("a"), &name("b")).unwrap_err();
    assert!(matches!(refused, Error::OutOfSpace { .. }), "{refused}");
    table.delete(&key(0)).unwrap();
    assert!(session.stats().is_full);

    // Its runs go with it.
    drop(table);
    session.import_snapshot("/export", &name("a"), &name("b")).unwrap();
    assert!(!session.stats().is_full);
    session.close().unwrap();
}
