//! Versions of a ledger: thousands of forks, one per block, each of which can be extended.
//!
//! Goal: keeping the newest 2,160 versions costs little: few files are open whatever their number,
//! each version holds what it held and grows apart from the others, the files of an old one go with
//! it, and what the merges of many have in common is done once. Method: a chain of small blocks on
//! both disks, a model of each version by replaying its blocks; files and descriptors are counted
//! on the simulated disk, and on the real one a process with few descriptors does what takes many
//! files.

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use terrane_io::FaultPlan;
use terrane_io::{CountedDisk, SimDisk};
use terrane_lsm::{
    CompactionThread, DiskCache, Error, Session, SessionOptions, Table, TableConfig, Update,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::{SALT, SessionDir, buffer_of, content, fill, key, name, spread, value};

/// Versions that a ledger keeps: the number of blocks that it can be rolled back by.
const VERSIONS: usize = 2_160;

const UPDATES_PER_BLOCK: u64 = 8;

/// Keys that the blocks are about.
const KEYS: u64 = 700;

/// Number and value of a key, or its deletion.
type Change = (u64, Option<Vec<u8>>);

/// The changes of a block; those of a branch differ from those of the chain.
fn changes(block: u64, branch: u64) -> Vec<Change> {
    let change = |at: u64| {
        let drawn = spread(block * UPDATES_PER_BLOCK + at + (branch << 32));
        (drawn % KEYS, (drawn >> 32 & 3 > 0).then(|| value(drawn, (drawn >> 40) as usize % 40)))
    };
    (0..UPDATES_PER_BLOCK).map(change).collect()
}

fn apply(table: &mut Table, changes: &[Change]) -> Result<(), Error> {
    let update = |change: &'_ Change| (key(change.0), change.1.clone());
    let owned: Vec<_> = changes.iter().map(update).collect();
    let batch: Vec<_> = owned
        .iter()
        .map(|(key, value)| (key, value.as_deref().map_or(Update::Delete, Update::Insert)))
        .collect();
    table.write_batch(&batch)
}

/// Content of a table after the first `blocks` blocks of the chain.
fn model(blocks: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut model = BTreeMap::new();
    (0..blocks).for_each(|block| note(&mut model, &changes(block, 0)));
    model
}

fn note(model: &mut BTreeMap<Vec<u8>, Vec<u8>>, changes: &[Change]) {
    for (number, value) in changes {
        match value {
            Some(value) => drop(model.insert(key(*number).to_vec(), value.clone())),
            None => drop(model.remove(key(*number).as_slice())),
        }
    }
}

/// The newest versions of a chain, oldest first.
#[derive(Debug)]
struct Versions {
    tables: VecDeque<Table>,
    blocks: u64,
}

impl Versions {
    fn new(session: &Session, config: &TableConfig) -> Self {
        let tables = VecDeque::from([session.new_table(config).unwrap()]);
        Self { tables, blocks: 0 }
    }

    fn newest(&self) -> &Table {
        self.tables.back().unwrap()
    }

    /// Adds a block, and drops what is too old.
    fn push(&mut self) {
        let mut next = self.newest().fork().unwrap();
        apply(&mut next, &changes(self.blocks, 0)).unwrap();
        self.tables.push_back(next);
        self.blocks += 1;
        while self.tables.len() > VERSIONS {
            self.tables.pop_front();
        }
    }

    /// The number of blocks in a version.
    fn blocks_of(&self, at: usize) -> u64 {
        self.blocks + 1 - (self.tables.len() - at) as u64
    }

    fn check(&self, at: usize) {
        let found = content(&self.tables[at]);
        let expected: Vec<_> = model(self.blocks_of(at)).into_iter().collect();
        assert!(found == expected, "version {at}: {} entries", found.len());
    }
}

#[test]
fn each_of_thousands_of_versions_can_be_extended_and_their_files_go_with_them() {
    let test = "each_of_thousands_of_versions_can_be_extended_and_their_files_go_with_them";
    for_each_seed(test, 1, |rng, _seed| {
        for place in SessionDir::both() {
            let session = place.open();
            let mut versions = Versions::new(&session, &buffer_of(64));
            (1..VERSIONS).for_each(|_| versions.push());
            let files_of_all = place.runs().len();
            assert_eq!(versions.tables.len(), VERSIONS);
            for _ in 0..300 {
                versions.push();
            }
            let files = place.runs().len();
            assert!(files < files_of_all * 5 / 4, "{files} files, {files_of_all} before");

            let drawn: Vec<usize> = (0..16).map(|_| rng.index(VERSIONS)).collect();
            let mut branches = Vec::new();
            for (branch, &at) in (1..).zip(&drawn) {
                let mut table = versions.tables[at].fork().unwrap();
                let mut model = model(versions.blocks_of(at));
                for block in 0..=rng.below(40) {
                    apply(&mut table, &changes(block, branch)).unwrap();
                    note(&mut model, &changes(block, branch));
                }
                branches.push((table, model));
            }
            for (table, model) in &branches {
                assert_eq!(content(table), model.clone().into_iter().collect::<Vec<_>>());
            }
            drawn.iter().chain(&[0, VERSIONS - 1]).for_each(|&at| versions.check(at));

            // An old version's files go when it goes, if no other needs them.
            drop(branches);
            assert_eq!(place.runs().len(), files);
            let newest = versions.tables.pop_back().unwrap();
            drop(versions);
            let stats = newest.stats();
            let needed = stats.runs() + 2 * stats.levels.len() as u64;
            assert!(place.runs().len() as u64 <= needed, "{} files, {stats:?}", place.runs().len());
            drop(newest);
            assert_eq!(place.runs(), Vec::<std::path::PathBuf>::new());
            session.close().unwrap();
        }
    });
}

#[test]
fn few_files_are_open_whatever_the_number_of_versions() {
    const OPEN_MAX: usize = 16;
    for_each_seed("few_files_are_open_whatever_the_number_of_versions", 1, |rng, _seed| {
        let place = SessionDir::simulated(1);
        let SessionDir::Simulated { disk } = &place else { panic!("as asked for") };
        let options = SessionOptions::with_salt(SALT).create_dir().open_files_max(OPEN_MAX);
        let session = Session::open(place.disk(), &place.dir(), &options).unwrap();
        // The lock beside them.
        let check = || assert!(disk.open_files() <= OPEN_MAX + 1, "{} open", disk.open_files());
        let mut versions = Versions::new(&session, &buffer_of(64));
        let mut most = 0;
        while versions.tables.len() < VERSIONS {
            versions.push();
            check();
            let at = rng.index(versions.tables.len());
            versions.tables[at].get(&key(rng.below(KEYS))).unwrap();
            check();
            most = most.max(disk.open_files());
        }
        assert_eq!(most, OPEN_MAX + 1);
        assert!(place.runs().len() > 4 * OPEN_MAX, "{} files", place.runs().len());

        // A crowd that grows apart: each has a flush and merges of its own under way, and readers.
        let mut crowd = Vec::new();
        for at in (0..VERSIONS).step_by(36) {
            crowd.push((versions.tables[at].fork().unwrap(), model(versions.blocks_of(at))));
        }
        let cursors: Vec<_> = crowd.iter().map(|(table, _)| table.cursor().unwrap()).collect();
        for block in 0..24 {
            for (branch, (table, model)) in (1..).zip(&mut crowd) {
                apply(table, &changes(block, branch)).unwrap();
                note(model, &changes(block, branch));
                check();
            }
        }
        assert!(place.runs().len() > 16 * OPEN_MAX, "{} files", place.runs().len());
        for (table, model) in &crowd {
            assert_eq!(content(table), model.clone().into_iter().collect::<Vec<_>>());
            check();
        }
        for (mut cursor, at) in cursors.into_iter().zip((0..VERSIONS).step_by(36)) {
            let count = cursor.next_many(usize::MAX).unwrap().len();
            assert_eq!(count, model(versions.blocks_of(at)).len());
            check();
        }
        drop((crowd, versions));
        session.close().unwrap();
        drop(session);
        assert_eq!(disk.open_files(), 0);
    });
}

/// The system gives fewer descriptors than the session would like.
#[test]
fn where_descriptors_run_out_closed_files_make_room() {
    let place = SessionDir::simulated(1);
    let SessionDir::Simulated { disk } = &place else { panic!("as asked for") };
    let options = SessionOptions::with_salt(SALT).create_dir();
    disk.set_plan(FaultPlan { open_files_max: Some(4), ..FaultPlan::default() });
    let session = Session::open(place.disk(), &place.dir(), &options).unwrap();

    let mut versions = Versions::new(&session, &buffer_of(16));
    for block in 0..100 {
        versions.push();
        if block % 20 == 7 {
            versions.newest().save_snapshot(&name(&format!("b{block}")), "").unwrap();
        }
    }

    (0..versions.tables.len()).step_by(9).for_each(|at| versions.check(at));
    let table = session.open_snapshot(&name("b27"), "").unwrap();
    assert_eq!(content(&table), model(28).into_iter().collect::<Vec<_>>());
    assert!(disk.open_files() <= 4);
    assert!(place.runs().len() > 20);

    // With none to spare it is an error, and nothing is lost.
    disk.set_plan(FaultPlan { open_files_max: Some(0), ..FaultPlan::default() });
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let refused = table.get_many(&keys).unwrap_err();
    assert!(matches!(&refused, Error::Disk(error) if error.is_too_many_files()), "{refused}");
    disk.set_plan(FaultPlan::default());
    let found = table.get_many(&keys).unwrap();
    assert_eq!(found.iter().filter(|found| found.is_found()).count(), model(28).len());
}

/// Many tables advance the same merges, each by as much as it needs: that is done once.
#[test]
fn progress_of_merges_is_shared() {
    let session_on = |disk: &Arc<CountedDisk>| {
        let options = SessionOptions::with_salt(SALT).create_dir();
        Session::open(Arc::clone(disk) as _, "/session".as_ref(), &options).unwrap()
    };

    let pages = |disk: &CountedDisk| disk.counts().write_pages + disk.counts().read_pages;

    // Just after a flush began, with merges on all levels; and nearly a filling of the write
    // buffer.
    let prepared = |session: &Session| {
        let mut table = session.new_table(&buffer_of(1_000)).unwrap();
        fill(&mut table, 0..42_001);
        table
    };

    let debt = |table: &Table| table.stats().merge_debt_pages;
    let disk = CountedDisk::new(SimDisk::new(1));
    let session = session_on(&disk);
    let mut alone = prepared(&session);
    let before = pages(&disk);
    let debt_before = debt(&alone);
    fill(&mut alone, 50_000..50_990);
    let of_one = pages(&disk) - before;
    let done_by_one = debt_before - debt(&alone);
    assert!(done_by_one > 40 && of_one > 60, "{done_by_one} pages of debt, {of_one} pages");

    let disk = CountedDisk::new(SimDisk::new(1));
    let session = session_on(&disk);
    let original = prepared(&session);
    let mut duplicates: Vec<_> = (0..100).map(|_| original.fork().unwrap()).collect();
    assert_eq!(debt(&original), debt_before);
    let before = pages(&disk);

    // One goes ahead, and the others find that done.
    fill(&mut duplicates[0], 50_000..50_500);
    let paid = debt_before - debt(&original);
    assert!(paid > done_by_one / 4, "{paid} of {done_by_one} pages");
    assert!(duplicates.iter().all(|table| debt(table) == debt_before - paid));
    let of_first_half = pages(&disk) - before;

    for table in &mut duplicates[1..] {
        fill(table, 50_000..50_500);
    }
    assert_eq!(pages(&disk) - before, of_first_half, "nothing is left to do for the others");

    for table in &mut duplicates {
        fill(table, 50_500..50_990);
    }
    assert_eq!(debt_before - debt(&original), done_by_one);
    assert_eq!(pages(&disk) - before, of_one, "as much for a hundred as for one");
}

/// Set for the child; the number of files that its session is to keep open, or nothing.
const CHILD_OPEN_FILES: &str = "TERRANE_TEST_OPEN_FILES";

/// Work on more files than the process may open, with four threads beside this one.
fn work_with_few_descriptors(options: &SessionOptions) {
    let place = SessionDir::real();
    let session = Session::open(place.disk(), &place.dir(), options).unwrap();

    // Past the page cache, so that many reads are in flight.
    let disk_cache = DiskCache::None;
    let compaction_thread = CompactionThread::Background;
    let config = buffer_of(16).disk_cache(disk_cache).compaction_thread(compaction_thread);
    let mut versions = Versions::new(&session, &config);
    (0..100).for_each(|_| versions.push());

    // Each with runs of its own.
    let branch = |at: usize| {
        let mut table = versions.tables[at].fork().unwrap();
        let mut model = model(versions.blocks_of(at));
        for block in 0..8 {
            apply(&mut table, &changes(block, 1 + at as u64)).unwrap();
            note(&mut model, &changes(block, 1 + at as u64));
        }
        (table, model)
    };

    let branches: Vec<_> = (0..100).map(branch).collect();
    let mut cursors: Vec<_> = branches.iter().map(|(table, _)| table.cursor().unwrap()).collect();
    assert!(place.runs().len() > 300, "{} files", place.runs().len());

    thread::scope(|scope| {
        for part in branches.chunks(branches.len() / 4) {
            scope.spawn(move || {
                let keys: Vec<_> = (0..KEYS).map(key).collect();
                for (table, model) in part {
                    for (key, found) in keys.iter().zip(table.get_many(&keys).unwrap()) {
                        let expected = model.get(key.as_slice()).map(Vec::as_slice);
                        assert_eq!(found.value(), expected);
                    }
                }
            });
        }
    });

    for (cursor, (_, model)) in cursors.iter_mut().zip(&branches) {
        assert_eq!(cursor.next_many(usize::MAX).unwrap().len(), model.len());
    }
    read_ahead_in_many_cursors(&session, options);

    for (number, (table, _)) in branches.iter().enumerate().step_by(20) {
        table.save_snapshot(&name(&format!("branch-{number}")), "").unwrap();
    }
    session.close().unwrap();

    let session = Session::open(place.disk(), &place.dir(), options).unwrap();
    for (number, (_, model)) in branches.iter().enumerate().step_by(20) {
        let table = session.open_snapshot(&name(&format!("branch-{number}")), "").unwrap();
        assert_eq!(content(&table), model.clone().into_iter().collect::<Vec<_>>());
    }
}

/// More cursors than there are descriptors, all of them in the middle of a long scan.
fn read_ahead_in_many_cursors(session: &Session, options: &SessionOptions) {
    const ENTRIES: u64 = 4_000;
    let mut table = session.new_table(&buffer_of(2_000)).unwrap();
    fill(&mut table, 0..ENTRIES);

    let mut cursors: Vec<_> = (0..300).map(|_| table.cursor().unwrap()).collect();
    for cursor in &mut cursors {
        assert_eq!(cursor.next_many(ENTRIES as usize / 2).unwrap().len() as u64, ENTRIES / 2);
    }

    if cfg!(target_os = "linux") {
        // Beside those: the lock, the rings of four threads that are no more, what every process
        // has.
        let count = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(count <= options.open_files_max + 16, "{count} descriptors");
    }

    for mut cursor in cursors {
        assert_eq!(cursor.next_many(usize::MAX).unwrap().len() as u64, ENTRIES / 2);
    }
}

#[test]
fn a_few_descriptors_are_enough() {
    const TEST: &str = "versions::a_few_descriptors_are_enough";

    // The test program runs this test again as a child, whose descriptors the shell has limited.
    if let Ok(open_files) = env::var(CHILD_OPEN_FILES) {
        let options = SessionOptions::with_salt(SALT).create_dir();
        work_with_few_descriptors(&match open_files.parse() {
            Ok(open_files) => options.open_files_max(open_files),
            Err(_) => options,
        });
        println!("child: done");
        return;
    }

    for (limit, open_files) in [(256, "as they are"), (64, "24")] {
        let limited = format!("ulimit -n {limit} && exec \"$0\" \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &limited])
            .arg(env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env(CHILD_OPEN_FILES, open_files)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("child: done"), "{said}{errors}");
    }
}
