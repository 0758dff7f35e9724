//! Opening snapshots: with another configuration, and with everything checked.
//!
//! Goal: what may be chosen anew when a snapshot is opened is, and nothing else changes; a full
//! check finds every damage that a lazy opening leaves to be found later, says where it is, and
//! harms nothing. Method: bytes of runs are changed, with and without their checksums made right
//! again.

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;

use terrane_io::checksum::{crc32c, crc32c_append};
use terrane_io::{Access, OpenMode};
use terrane_lsm::{
    CompactionPolicy, CompactionSchedule, CompactionThread, DiskCache, Error, FilterPolicy,
    LevelFilter, Lookup, MEMORY_BUDGET_MIN, MemoryGoal, OpenOptions, PAGE_SIZE, Result, Session,
    Table, TableConfig, Verify,
};

use crate::{SessionDir, buffer_of, content, fill, key, name, value};

const LABEL: &str = "ledger";

#[test]
fn parts_of_the_configuration_can_be_chosen_anew() {
    for place in SessionDir::both() {
        let session = place.open();
        let mut table = session.new_table(&buffer_of(30)).unwrap();
        fill(&mut table, 0..500);
        table.save_snapshot(&name("a"), LABEL).unwrap();
        let saved = content(&table);
        drop(table);

        let options = OpenOptions::default()
            .disk_cache(DiskCache::None)
            .compaction_batch_pages(3)
            .compaction_thread(CompactionThread::Background)
            .queue_depth(5);

        let mut opened = session.open_snapshot_with(&name("a"), LABEL, &options).unwrap();
        let expected = buffer_of(30)
            .disk_cache(DiskCache::None)
            .compaction_batch_pages(3)
            .compaction_thread(CompactionThread::Background)
            .queue_depth(5);

        assert_eq!(opened.config(), &expected);
        assert_eq!(content(&opened), saved);
        fill(&mut opened, 500..1_000);
        assert_eq!(content(&opened).len(), 1_000);

        // What is not given stays, and what was given goes into the next snapshot.
        assert_eq!(session.open_snapshot(&name("a"), LABEL).unwrap().config(), &buffer_of(30));
        opened.save_snapshot(&name("b"), LABEL).unwrap();
        assert_eq!(session.snapshot_info(&name("b")).unwrap().config, expected);

        let options = OpenOptions::default().compaction_batch_pages(0);
        let error = session.open_snapshot_with(&name("a"), LABEL, &options).map(drop).unwrap_err();
        let is_refused =
            matches!(&error, Error::InvalidConfig { option: "compaction_batch_pages", .. });
        assert!(is_refused, "{error}");

        // The label is looked at all the same.
        let options = OpenOptions::default().verify(Verify::Full);
        let error = session.open_snapshot_with(&name("a"), "", &options).map(drop).unwrap_err();
        assert!(matches!(error, Error::SnapshotNotCompatible { .. }), "{error}");
    }
}

/// A budget takes the place of a write buffer and of filters that were chosen, and is kept to from
/// then on.
#[test]
fn a_memory_budget_can_be_given_to_a_snapshot_that_was_saved_without() {
    const BUDGET: u64 = 256 << 10;
    let session = SessionDir::simulated(1).open();
    let filter = FilterPolicy::BitsPerEntry(20.0);
    let stored = buffer_of(500).filter(filter);
    let mut table = session.new_table(&stored).unwrap();
    fill(&mut table, 0..20_000);
    table.save_snapshot(&name("a"), LABEL).unwrap();
    drop(table);
    let options = OpenOptions::default().memory_budget(BUDGET);
    let mut opened = session.open_snapshot_with(&name("a"), LABEL, &options).unwrap();
    let expected = TableConfig::default().memory_budget(BUDGET);
    assert_eq!(opened.config(), &expected);

    for first in (20_000..40_000).step_by(200) {
        fill(&mut opened, first..first + 200);
        assert!(opened.stats().memory_bytes() <= BUDGET, "{:?}", opened.stats());
    }

    assert_eq!(content(&opened).len(), 40_000);
    assert_eq!(session.open_snapshot(&name("a"), LABEL).unwrap().config(), &stored);

    let options = OpenOptions::default().memory_budget(1);
    let error = session.open_snapshot_with(&name("a"), LABEL, &options).map(drop).unwrap_err();
    assert!(matches!(&error, Error::InvalidConfig { option: "memory_budget", .. }), "{error}");
}

/// Levels with ribbon filters.
fn with_ribbons(columns: u8, entries: u64) -> TableConfig {
    let filter = FilterPolicy::PerLevel(vec![LevelFilter::Ribbon(columns)]);
    buffer_of(entries).filter(filter)
}

/// Opening reads as many ribbon columns as fit in the memory budget; an update of the table gives
/// them up. Each column halves the reads of absent keys, no key is lost, and the memory stays
/// within the budget.
#[test]
fn ribbons_take_the_part_of_a_memory_budget_that_there_is() {
    const ENTRIES: u64 = 250_000;
    const ABSENT: u64 = 60_000;
    let place = SessionDir::simulated(1);

    let session = place.open();
    let mut table = session
        .new_table(
            &with_ribbons(14, 25_000)
                .compaction_policy(CompactionPolicy::Levelling)
                .compaction_schedule(CompactionSchedule::OneShot),
        )
        .unwrap();

    fill(&mut table, 0..ENTRIES);
    table.save_snapshot(&name("a"), LABEL).unwrap();
    drop(table);
    let absent: Vec<_> = (ENTRIES..ENTRIES + ABSENT).map(key).collect();

    let present: Vec<_> = (0..ENTRIES).step_by(3).map(key).collect();
    let mut before = f64::INFINITY;
    for budget in [256_u64, 320, 512].map(|kilobytes| kilobytes << 10) {
        let options = OpenOptions::default().memory_budget(budget).memory_goal(MemoryGoal::Miss);
        let mut table = session.open_snapshot_with(&name("a"), LABEL, &options).unwrap();
        let stats = table.stats();
        assert!(stats.memory_bytes() <= budget, "{stats:?}");
        let found = table.get_many(&present).unwrap();
        assert!(found.iter().all(Lookup::is_found), "{budget}");
        let reads = table.stats().lookup_reads;
        assert!(table.get_many(&absent).unwrap().iter().all(|result| !result.is_found()));
        let cost = (table.stats().lookup_reads - reads) as f64 / ABSENT as f64;

        let bits = stats.filter_bytes as f64 * 8.0 / ENTRIES as f64;
        // To be shared by runs of several levels costs a bit, by the entropy of their shares.
        let expected = f64::powf(0.5, bits / 1.05 - 1.0);
        assert!(cost < before && cost < 1.2 * expected + 1e-4, "{budget}: {cost}, {bits} bits");
        before = cost;

        for first in (0..6_000).map(|step| ENTRIES + step * 10).step_by(100) {
            fill(&mut table, first..first + 10);
            assert!(table.stats().memory_bytes() <= budget, "{:?}", table.stats());
        }

        let found = table.get_many(&present).unwrap();
        assert!(found.iter().all(Lookup::is_found), "{budget}");
    }

    assert!(before < 2e-4, "{before}");
}

/// A table resumes a compaction that was half done when its snapshot was saved, and solves again
/// the filter segments that had been solved.
#[test]
fn a_ribbon_of_a_resumed_merge_has_all_keys() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let mut table = session.new_table(&with_ribbons(8, 15_000)).unwrap();

    let mut number = 0;
    let mut is_half = false;
    while !is_half {
        fill(&mut table, number..number + 200);
        number += 200;
        let stats = table.stats();
        let last = stats.levels.last().map_or(0, |level| level.entries);
        // Four segments and more are under way.
        is_half = last >= 40_000 && stats.merge_debt_pages > 200 && stats.unfinished_bytes > 70_000;
        assert!(number < 400_000, "{stats:?}");
    }

    table.save_snapshot(&name("a"), LABEL).unwrap();
    drop(table);
    session.close().unwrap();
    let session = place.open();
    let mut table = session.open_snapshot(&name("a"), LABEL).unwrap();
    fill(&mut table, number..number + 100_000);
    table.save_snapshot(&name("b"), LABEL).unwrap();
    let keys: Vec<_> = (0..number + 100_000).map(key).collect();
    assert!(table.get_many(&keys).unwrap().iter().all(Lookup::is_found));
    drop(table);
    let full = OpenOptions::default().verify(Verify::Full);
    session.open_snapshot_with(&name("b"), LABEL, &full).unwrap();
}

/// A ribbon footer with impossible fields is refused even if its checksum is right.
#[test]
fn shapes_of_ribbons_that_cannot_be_are_refused_although_their_checksum_is_right() {
    let place = SessionDir::simulated(1);
    let session = place.open();
    let mut table = session.new_table(&with_ribbons(3, 2_000)).unwrap();
    fill(&mut table, 0..9_000);
    table.save_snapshot(&name("a"), LABEL).unwrap();
    drop(table);
    session.close().unwrap();
    let path = largest_run(&place);
    let whole = read(&place, &path);
    let footer = whole.len() / PAGE_SIZE - 1;
    assert_eq!(u32_at(&whole, footer * PAGE_SIZE + FOOTER_PROBES), 3);

    for (at, number) in [
        (FOOTER_PROBES, 0),
        (FOOTER_PROBES, 17),
        (FOOTER_PROBES, 1 << 31),
        (FOOTER_FILTER_BLOCKS, 0),
        (FOOTER_FILTER_BLOCKS, u32::MAX),
        (FOOTER_FILTER_KIND, 0),
        (FOOTER_FILTER_KIND, 1),
        (FOOTER_FILTER_KIND, 3),
        (FOOTER_FILTER_KIND + 4, 0),
        (FOOTER_FILTER_KIND + 4, 2),
        (FOOTER_FILTER_KIND + 4, u32::MAX),
        (FOOTER_FILTER_KIND + 8, 0),
        (FOOTER_FILTER_KIND + 8, 2),
        (FOOTER_FILTER_KIND + 8, u32::MAX),
    ] {
        let mut bytes = whole.clone();
        change_page(&mut bytes, footer, |page| {
            page[at..at + 4].copy_from_slice(&number.to_le_bytes());
        });
        write(&place, &path, &bytes);
        let refused = open_with(&place.open(), Verify::Lazy).map(drop);
        let is_refused = matches!(refused, Err(Error::SnapshotCorrupted { .. }));
        assert!(is_refused, "{at}, {number}: {refused:?}");
    }

    write(&place, &path, &whole);
    assert!(open_with(&place.open(), Verify::Full).is_ok());
}

/// Tables opened concurrently share their runs and the filters of the runs. The first table reads
/// as much of a filter as fits in its budget; the next table keeps that part, or folds it. One
/// table used to act on the state before the other had read anything, and dropped the filters for
/// good, or found them larger than its budget.
#[test]
fn tables_opened_at_once_have_the_filters_that_their_budgets_have_room_for() {
    const BUDGETS: [u64; 3] = [1 << 20, 16 << 20, MEMORY_BUDGET_MIN];
    let place = SessionDir::real();
    let session = place.open();
    let filter = FilterPolicy::BitsPerEntry(20.0);
    let mut table = session.new_table(&buffer_of(2_000).filter(filter)).unwrap();
    fill(&mut table, 0..60_000);
    table.save_snapshot(&name("a"), LABEL).unwrap();
    let whole = table.stats().filter_bytes;
    drop(table);

    for round in 0..40 {
        let budgets = [BUDGETS[round % 2], BUDGETS[round % 3]];
        let barrier = Barrier::new(budgets.len());
        let open = |budget: u64| {
            let goal = MemoryGoal::Balanced;
            let options = OpenOptions::default().memory_budget(budget).memory_goal(goal);
            barrier.wait();
            session.open_snapshot_with(&name("a"), LABEL, &options).unwrap()
        };

        let tables = thread::scope(|scope| {
            let opening = budgets.map(|budget| scope.spawn(move || open(budget)));
            opening.map(|table| table.join().unwrap())
        });

        for (table, budget) in tables.iter().zip(budgets) {
            let stats = table.stats();
            assert!(stats.memory_bytes() <= budget, "{round}: {budget}: {stats:?}");
            let poorest = *budgets.iter().min().unwrap();
            let room = if poorest == MEMORY_BUDGET_MIN { poorest / 2 } else { whole };
            assert!(stats.filter_bytes >= room, "{round}: {budgets:?}: {stats:?}");
        }
    }
}

type Content = Vec<(Vec<u8>, Vec<u8>)>;
type Contents = (Content, Content);

/// A closed session with the snapshots `a`, of several runs and a large value, and `b`, of other
/// runs.
fn make(place: &SessionDir) -> Contents {
    let session = place.open();
    let save = |numbers: std::ops::Range<u64>, name_: &str| {
        let mut table = session.new_table(&buffer_of(2_000)).unwrap();
        table.insert_with_blob(b"blob", b"", &value(2, 9_000)).unwrap();
        fill(&mut table, numbers);
        table.insert(b"large", &value(1, 9_000)).unwrap();
        table.save_snapshot(&name(name_), LABEL).unwrap();
        content(&table)
    };
    let contents = (save(0..9_000, "a"), save(20_000..21_000, "b"));
    session.close().unwrap();
    contents
}

fn open_with(session: &Session, verify: Verify) -> Result<Table> {
    session.open_snapshot_with(&name("a"), LABEL, &OpenOptions::default().verify(verify))
}

fn read(place: &SessionDir, path: &Path) -> Vec<u8> {
    let file = place.disk().open(path, OpenMode::Read, Access::Buffered).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn write(place: &SessionDir, path: &Path, bytes: &[u8]) {
    let file = place.disk().open(path, OpenMode::ReadWrite, Access::Buffered).unwrap();
    file.write_at(bytes, 0).unwrap();
}

/// The oldest and largest run of snapshot `a`.
fn largest_run(place: &SessionDir) -> PathBuf {
    let mut runs = place.runs();
    runs.retain(|path| !is_blobs(path));
    runs.into_iter().max_by_key(|path| read(place, path).len()).unwrap()
}

/// Changes a page of a run and makes its checksum right, which the identity in the footer begins.
pub(crate) fn change_page(bytes: &mut [u8], page: usize, change: impl FnOnce(&mut [u8])) {
    let footer = bytes.len() - PAGE_SIZE;
    let identity = bytes[footer + 32..footer + 40].to_vec();
    let page_bytes = &mut bytes[page * PAGE_SIZE..(page + 1) * PAGE_SIZE];
    change(page_bytes);
    let place = [&identity[..], &(page as u32).to_le_bytes()].concat();
    let crc = crc32c_append(crc32c(&place), &page_bytes[4..]);
    page_bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_full_check_passes_what_is_whole_and_reads_all_of_it() {
    for place in SessionDir::both() {
        let contents = make(&place);
        let session = place.open();
        let table = open_with(&session, Verify::Full).unwrap();
        assert_eq!(content(&table), contents.0);
    }

    let place = SessionDir::simulated(1);
    make(&place);
    let SessionDir::Simulated { disk } = &place else { return };

    let session = place.open();
    let pages = |verify: Verify| {
        let before = disk.counts();
        drop(open_with(&session, verify).unwrap());
        (disk.counts() - before).read_pages
    };

    let lazy = pages(Verify::Lazy);
    let full = pages(Verify::Full);
    let info = session.snapshot_info(&name("a")).unwrap();

    let data_pages = info.data_bytes / PAGE_SIZE as u64;
    // Besides the entries, filters and indexes are read once more.
    assert!((data_pages + lazy..data_pages + 2 * lazy + 8).contains(&full), "{lazy}, {full}");
    assert!(3 * lazy < data_pages, "a lazy opening reads {lazy} pages of {data_pages}");
}

/// A full check reports a damaged page that a lazy opening does not read, with its file and page.
/// Other snapshots stay usable, no handle stays open, and the damaged snapshot can be deleted.
#[test]
fn a_full_check_finds_a_damaged_page_and_harms_nothing() {
    for place in SessionDir::both() {
        let contents = make(&place);
        let path = largest_run(&place);
        let mut bytes = read(&place, &path);
        bytes[7 * PAGE_SIZE + 1_000] ^= 4;
        bytes[3 * PAGE_SIZE + 2_000] ^= 4;
        write(&place, &path, &bytes);
        let session = place.open();
        drop(open_with(&session, Verify::Lazy).unwrap());

        let open_files = || match &place {
            SessionDir::Simulated { disk } => disk.open_files(),
            SessionDir::Real { .. } => 0,
        };

        let open_before = open_files();
        for _ in 0..3 {
            let error = open_with(&session, Verify::Full).map(drop).unwrap_err();
            assert!(
                matches!(&error, Error::SnapshotCorrupted { name, path: found, reason }
                    if name == "a" && *found == path && reason.starts_with("page 3: crc")),
                "{error}"
            );
        }

        assert_eq!(open_files(), open_before);
        assert_eq!(content(&session.open_snapshot(&name("b"), LABEL).unwrap()), contents.1);
        session.delete_snapshot(&name("a")).unwrap();
        assert_eq!(session.list_snapshots().unwrap(), [name("b")]);
        assert!(!place.runs().contains(&path));
    }
}

/// A full check also reads every page of the blobs, and checks their number.
#[test]
fn a_full_check_finds_damaged_and_missing_blobs() {
    for place in SessionDir::both() {
        make(&place);
        let path = place.runs().into_iter().find(|path| is_blobs(path)).unwrap();
        let whole = read(&place, &path);
        let mut flipped = whole.clone();
        flipped[PAGE_SIZE + 50] ^= 1;

        // What is wrong with the file as a whole is found without reading it.
        let check = |rule: &str, is_found_by_all: bool| {
            let session = place.open();
            let opened = open_with(&session, Verify::Lazy).map(drop);
            assert_eq!(opened.is_err(), is_found_by_all, "{rule}: {opened:?}");
            let full = open_with(&session, Verify::Full).map(drop);
            for error in opened.err().into_iter().chain(full.err()) {
                assert!(
                    matches!(&error, Error::SnapshotCorrupted { name, path: found, reason }
                        if name == "a" && *found == path && reason.contains(rule)),
                    "{rule}: {error}"
                );
            }
            open_with(&session, Verify::Full).map(drop).unwrap_err();
        };

        write(&place, &path, &flipped);
        check("page 1: crc", false);
        write(&place, &path, &whole);
        open_with(&place.open(), Verify::Full).unwrap();
        let file = place.disk().open(&path, OpenMode::ReadWrite, Access::Buffered).unwrap();
        file.set_len(whole.len() as u64 + 1).unwrap();
        check("length of the blobs", true);
        file.set_len(2 * PAGE_SIZE as u64).unwrap();
        check("length of the blobs", true);
        drop(file);
        place.disk().remove(&path).unwrap();
        check("missing", true);
    }
}

fn is_blobs(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "blobs")
}

/// Pages that are whole, each for itself, but do not belong together.
#[test]
fn a_full_check_finds_what_no_checksum_tells() {
    for place in SessionDir::both() {
        make(&place);
        let path = largest_run(&place);

        let whole = read(&place, &path);
        let footer = whole.len() / PAGE_SIZE - 1;
        let field = |at: usize| {
            let at = footer * PAGE_SIZE + at;
            u32::from_le_bytes(*whole[at..].first_chunk().unwrap()) as usize
        };

        let data_pages = field(16 + 80);
        let check = |page: usize, change: &dyn Fn(&mut [u8]), rule: &str| {
            let mut bytes = whole.clone();
            change_page(&mut bytes, page, change);
            write(&place, &path, &bytes);
            let session = place.open();
            let error = open_with(&session, Verify::Full).map(drop).unwrap_err();
            assert!(
                matches!(&error, Error::SnapshotCorrupted { name, path: found, reason }
                    if name == "a" && *found == path && reason.contains(rule)),
                "{rule}: {error}"
            );
            session.close().unwrap();
        };

        check(footer, &|page| page[16 + 32] ^= 1, "footer's sums");
        check(data_pages, &|page| page[16..].fill(0), "the filter lacks a key");
        let earlier = whole[2 * PAGE_SIZE..3 * PAGE_SIZE].to_vec();
        check(3, &|page| page.copy_from_slice(&earlier), "page 3: keys rise");
        write(&place, &path, &whole);
        open_with(&place.open(), Verify::Full).unwrap();
    }
}

/// Under a memory budget filters are folded in memory, or left out, and say yes to every key. A
/// full check looks at those that are stored, also of runs that another table has opened so, and
/// leaves these as they were.
#[test]
fn a_full_check_looks_at_stored_filters_whatever_the_memory_budget() {
    for place in SessionDir::both() {
        make(&place);
        let path = largest_run(&place);
        let mut bytes = read(&place, &path);
        let footer = bytes.len() - PAGE_SIZE;
        let filter_page = u32_at(&bytes, footer + FOOTER_DATA_PAGES) as usize;

        let open = |session: &Session, budget: u64, verify: Verify| {
            let options = OpenOptions::default().memory_budget(budget).verify(verify);
            session.open_snapshot_with(&name("a"), LABEL, &options)
        };

        for budget in [MEMORY_BUDGET_MIN, 16 << 20] {
            let session = place.open();
            let first = open(&session, budget, Verify::Full).unwrap();
            let second = open(&session, budget, Verify::Full).unwrap();
            assert_eq!(first.stats().filter_bytes, second.stats().filter_bytes);
            assert!(second.stats().memory_bytes() <= budget, "{:?}", second.stats());
        }

        change_page(&mut bytes, filter_page, |page| page[16..].fill(0));
        write(&place, &path, &bytes);
        for is_open in [false, true] {
            for budget in [MEMORY_BUDGET_MIN, 16 << 20] {
                let session = place.open();
                let other = is_open.then(|| open(&session, budget, Verify::Lazy).unwrap());
                let error = open(&session, budget, Verify::Full).map(drop).unwrap_err();
                assert!(
                    matches!(&error, Error::SnapshotCorrupted { name, path: found, reason }
                        if name == "a" && *found == path && reason.contains("the filter lacks a key")),
                    "{is_open}, {budget}: {error}"
                );
                drop(other);
                session.close().unwrap();
            }
        }
    }
}

/// Offsets of the footer fields; see the format.
const FOOTER_ENTRIES: usize = 48;
const FOOTER_KEY_BYTES: usize = 64;
const FOOTER_VALUE_BYTES: usize = 72;
const FOOTER_DATA_PAGES: usize = 96;
const FOOTER_FILTER_PAGES: usize = 104;
const FOOTER_FILTER_BLOCKS: usize = 112;
const FOOTER_PROBES: usize = 120;
const FOOTER_FILTER_KIND: usize = 136;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Counts of a footer are checked before the engine allocates by them, probes filters or adds them
/// up.
#[test]
fn counts_that_cannot_be_are_refused_although_their_checksum_is_right() {
    let place = SessionDir::simulated(1);
    make(&place);
    let path = largest_run(&place);
    let whole = read(&place, &path);

    let footer = whole.len() / PAGE_SIZE - 1;
    let field = |at: usize| u32_at(&whole, footer * PAGE_SIZE + at);
    for (at, number) in [
        (FOOTER_ENTRIES, 1_u64 << 40),
        (FOOTER_KEY_BYTES, u64::MAX),
        (FOOTER_VALUE_BYTES, u64::MAX),
        // The lower half of the number is what it was.
        (FOOTER_PROBES, u64::from(field(FOOTER_PROBES)) + 256 + (u64::from(field(124)) << 32)),
    ] {
        let mut bytes = whole.clone();
        change_page(&mut bytes, footer, |page| {
            page[at..at + 8].copy_from_slice(&number.to_le_bytes());
        });
        write(&place, &path, &bytes);
        let refused = open_with(&place.open(), Verify::Lazy).map(drop);
        assert!(matches!(refused, Err(Error::SnapshotCorrupted { .. })), "{at}: {refused:?}");
    }

    // A run whose filter is left out: whoever asks it finds nothing.
    let data = field(FOOTER_DATA_PAGES) as usize;
    let filters = field(FOOTER_FILTER_PAGES) as usize;
    let mut bytes = whole.clone();
    bytes.drain(data * PAGE_SIZE..(data + filters) * PAGE_SIZE);
    let footer = footer - filters;
    (data..footer).for_each(|page| change_page(&mut bytes, page, |_| {}));

    change_page(&mut bytes, footer, |page| {
        page[FOOTER_FILTER_PAGES..][..4].fill(0);
        page[FOOTER_FILTER_BLOCKS..][..8].fill(0);
    });

    place.disk().remove(&path).unwrap();
    let file = place.disk().open(&path, OpenMode::CreateNew, Access::Buffered).unwrap();
    file.write_at(&bytes, 0).unwrap();
    drop(file);
    let refused = open_with(&place.open(), Verify::Lazy).map(drop);
    assert!(matches!(refused, Err(Error::SnapshotCorrupted { .. })), "{refused:?}");
}

/// A merge makes its index for the keys that its runs are said to have.
#[test]
fn keys_beyond_those_of_the_index_are_found_by_whoever_reads_them() {
    for place in SessionDir::both() {
        make(&place);
        let path = largest_run(&place);
        let mut bytes = read(&place, &path);
        let footer = bytes.len() - PAGE_SIZE;

        let pages = [FOOTER_DATA_PAGES, FOOTER_FILTER_PAGES].map(|at| u32_at(&bytes, footer + at));
        // The lengths and the texts of the smallest and the largest key; then those that are large.
        change_page(&mut bytes, pages.iter().sum::<u32>() as usize, |page| {
            let min_len = u32_at(page, 16) as usize;
            page[16 + 4 + min_len + 4] -= 1;
        });

        write(&place, &path, &bytes);
        let session = place.open();
        let table = open_with(&session, Verify::Lazy).unwrap();
        let other = open_with(&session, Verify::Lazy).unwrap();
        let damaged = session.union(&[&table, &other]).map(drop);
        let is_told = matches!(&damaged, Err(Error::Corrupt { path: found, what })
            if *found == path && what.to_string().contains("largest of the run"));
        assert!(is_told, "{damaged:?}");
        let mut cursor = table.cursor().unwrap();
        let damaged = cursor.next_many(usize::MAX).map(drop);
        assert!(matches!(damaged, Err(Error::Corrupt { .. })), "{damaged:?}");
    }
}
