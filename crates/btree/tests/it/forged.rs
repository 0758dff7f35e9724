//! Pages with right checksums whose content is impossible: of a hostile file, or of a defect in a
//! writer.
//!
//! Goal: whatever such a page says, every call gives an error or entries in order; none panics, and
//! what a check passes can be changed. Method: fields of leaves and nodes are changed, some at a
//! time, in a small tree; checksums are put right from the page up to the superblock. A panic in a
//! build with debug assertions is a failure, too.

use std::path::Path;
use std::sync::Arc;

use terrane_btree::{
    Config, Error, Index, IndexReader, IterRecords, Loss, PAGE_SIZE, check, repair,
};
use terrane_io::SimDisk;
use terrane_io::checksum::crc32c;
use terrane_testkit::ChaCha8Rng;
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::damage::{INNER, LEAF, Model, pages_of, shared, tree_path};
use crate::model::DIR;

/// Offsets of fields, as the format document has them.
const COUNT: usize = 6;
const LOW_LEN: usize = 32;
const CHILDREN: usize = 40;
const ROOT: usize = 48;

fn config(is_fixed: bool) -> Config {
    let config = if is_fixed { Config::fixed(12, 8) } else { Config::variable() };
    config.memory_bytes(1 << 20).buffer_bytes(0).log_bytes_max(1 << 16)
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A tree of two or three levels, closed.
fn built(is_fixed: bool) -> (Arc<SimDisk>, Model) {
    let disk = SimDisk::new(1);
    let index = Index::create(shared(&disk), Path::new(DIR), &config(is_fixed)).unwrap();
    let key = |number: u64| {
        if is_fixed { format!("key/{number:08}") } else { format!("{:>120}{number:05}", "account") }
    };
    let entries = (0..900_u64).map(|number| (key(number).into_bytes(), vec![number as u8; 8]));
    let model: Model = entries.collect();
    index.build_sorted(&mut IterRecords::new(model.clone()), 80, |_| {}).unwrap();
    index.close().unwrap();
    (disk, model)
}

/// Puts the checksum of a page right, and of all that refer to it.
fn seal(file: &mut [u8], page: usize) {
    let at = page * PAGE_SIZE;
    let before = u32_at(file, at);
    let crc = crc32c(&file[at + 4..at + PAGE_SIZE]);
    file[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    for superblock in 0..2 {
        let at = superblock * PAGE_SIZE;
        if u32_at(file, at + ROOT) == page as u32 && u32_at(file, at + ROOT + 4) == before {
            file[at + ROOT + 4..at + ROOT + 8].copy_from_slice(&crc.to_le_bytes());
            seal_superblock(file, superblock);
        }
    }

    for parent in 2..file.len() / PAGE_SIZE {
        let at = parent * PAGE_SIZE;
        if file[at + 4] != INNER {
            continue;
        }
        for child in 0..u16_at(file, at + COUNT).min(500) {
            let child = at + CHILDREN + 8 * child;
            if u32_at(file, child) == page as u32 && u32_at(file, child + 4) == before {
                file[child + 4..child + 8].copy_from_slice(&crc.to_le_bytes());
                seal(file, parent);
                break;
            }
        }
    }
}

fn seal_superblock(file: &mut [u8], superblock: usize) {
    let page = &mut file[superblock * PAGE_SIZE..(superblock + 1) * PAGE_SIZE];
    page[12..16].fill(0);
    let crc = crc32c(page);
    page[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Changes something in a page that a writer never would.
fn forge(rng: &mut ChaCha8Rng, page: &mut [u8], pages: usize) {
    let used = 44 + rng.index(2_000);
    match rng.below(7) {
        0 => {
            // Two entries, or two children, change places or become equal.
            let a = 44 + rng.index(1_500);
            let b = 44 + rng.index(1_500);
            let part = page[a..a + 20].to_vec();
            page[b..b + 20].copy_from_slice(&part);
        }
        1 => {
            let count = rng.below(700) as u16;
            page[COUNT..COUNT + 2].copy_from_slice(&count.to_le_bytes());
        }
        2 => {
            let field = LOW_LEN + 2 * rng.index(4);
            let value = [0, 1, 7, 12, 500, 4_000, 0xFFFE, 0xFFFF][rng.index(8)] as u16;
            page[field..field + 2].copy_from_slice(&value.to_le_bytes());
        }
        3 => {
            let child = CHILDREN + 8 * rng.index(20);
            let number = [0, 1, 2, rng.below(pages as u64 + 3) as u32, u32::MAX][rng.index(5)];
            page[child..child + 4].copy_from_slice(&number.to_le_bytes());
        }
        4 => {
            // One child twice.
            let a = CHILDREN + 8 * rng.index(12);
            let b = CHILDREN + 8 * rng.index(12);
            let child = page[a..a + 8].to_vec();
            page[b..b + 8].copy_from_slice(&child);
        }
        5 => page[used..used + 16].fill(rng.below(256) as u8),
        _ => page[used] = rng.below(256) as u8,
    }
}

fn is_typed(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt { .. }
            | Error::Disk(_)
            | Error::NotAnIndex { .. }
            | Error::ConfigMismatch { .. }
            | Error::UnsupportedVersion { .. }
            | Error::Full { .. }
    )
}

/// Entries in order, or an error.
fn scan(entries: Result<terrane_btree::Cursor, Error>) -> Result<Model, Error> {
    let mut found = Model::new();
    let mut last = None;
    for entry in entries? {
        let (key, value) = entry?;
        assert!(last.as_ref().is_none_or(|last| *last < key), "entries out of order");
        last = Some(key.clone());
        found.insert(key, value);
    }
    Ok(found)
}

/// Everything that can be done to an index; returns whether a check found nothing.
fn use_it(disk: &Arc<SimDisk>, config: &Config, model: &Model) -> bool {
    let dir = Path::new(DIR);
    let typed = |result: Result<(), Error>| {
        if let Err(error) = result {
            assert!(is_typed(&error), "{error}");
        }
    };

    let checked = check(&shared(disk), dir, &mut |_, _| {});
    let is_whole = checked.as_ref().is_ok_and(|report| report.problems.is_empty());
    typed(checked.map(drop));

    let reader = IndexReader::open(shared(disk), dir, config);
    typed(reader.and_then(|reader| {
        typed(
            scan(reader.range_back::<&[u8]>(..).map(|_| reader.iter()).and_then(|all| all))
                .map(drop),
        );
        for key in model.keys().step_by(90) {
            typed(reader.find(key).map(drop));
        }
        let keys: Vec<&[u8]> = model.keys().step_by(50).map(Vec::as_slice).collect();
        reader.find_many(&keys).map(drop)
    }));

    let changed = disk.clone_disk();
    let index = Index::open(shared(&changed), dir, config);
    typed(index.and_then(|index| {
        let mut failed = false;
        for (at, key) in model.keys().enumerate() {
            let done = match at % 4 {
                0 => index.replace(key, &[9; 8]),
                1 | 2 => index.remove(key).map(drop),
                _ => Ok(()),
            };
            failed |= done.is_err();
            typed(done);
        }
        typed(index.flush(true));
        typed(index.scrub(100).map(drop));
        typed(index.compact().map(drop));
        typed(index.filter(|key, _| key.len() % 2 == 0));
        assert!(!(is_whole && failed), "what a check passes can be changed");
        index.close()
    }));

    let mended = repair(&shared(disk), dir, Loss::Accepted, |_, _| {});
    if mended.is_ok() {
        let report = check(&shared(disk), dir, &mut |_, _| {}).unwrap();
        assert_eq!(report.problems, []);
        let index = Index::open(shared(disk), dir, config);
        typed(index.and_then(|index| scan(index.iter()).map(drop)));
    }

    typed(mended.map(drop));
    is_whole
}

/// Leaves with equal or descending keys panicked where they were divided, or were taken as they
/// were.
#[test]
fn forged_pages_with_right_checksums_are_refused_or_harmless() {
    let trees = [true, false].map(|is_fixed| (config(is_fixed), built(is_fixed)));
    let mut refused = 0;
    for_each_seed("forged_pages_with_right_checksums", 120, |rng, seed| {
        let (config, (disk, model)) = &trees[(seed % 2) as usize];
        let disk = disk.clone_disk();
        let mut file = disk.read_raw(tree_path()).unwrap();
        let pages = file.len() / PAGE_SIZE;
        let kind = if rng.chance(2, 3) { LEAF } else { INNER };
        let candidates = pages_of(&disk, |found| found == kind);
        let page = *rng.pick(&candidates);
        for _ in 0..=rng.below(3) {
            forge(rng, &mut file[page * PAGE_SIZE..(page + 1) * PAGE_SIZE], pages);
        }
        seal(&mut file, page);
        disk.write_raw(tree_path(), &file);
        refused += usize::from(!use_it(&disk, config, model));
    });

    assert!(refused > 60 || std::env::var_os("SEED").is_some(), "{refused}");
}

#[test]
fn a_leaf_with_equal_or_descending_keys_is_damage_wherever_it_is_read() {
    let (disk, model) = built(true);
    let leaf = pages_of(&disk, |kind| kind == LEAF)[1];
    let mut file = disk.read_raw(tree_path()).unwrap();
    let page = leaf * PAGE_SIZE;
    let entries = page + 44 + u16_at(&file, page + LOW_LEN) + u16_at(&file, page + LOW_LEN + 2);
    let suffix = 12 - u16_at(&file, page + LOW_LEN + 4);
    let each = suffix + 8;

    // The tenth entry comes again in the place of the eleventh.
    file.copy_within(entries + 10 * each..entries + 11 * each, entries + 11 * each);
    seal(&mut file, leaf);
    disk.write_raw(tree_path(), &file);
    let report = check(&shared(&disk), Path::new(DIR), &mut |_, _| {}).unwrap();
    let rules: Vec<&str> = report.problems.iter().map(|problem| problem.what.rule).collect();
    assert_eq!(rules, ["keys ascend"]);
    let keys = report.problems[0].keys.clone().unwrap();
    let reader = IndexReader::open(shared(&disk), Path::new(DIR), &config(true)).unwrap();
    for (key, value) in &model {
        let is_in = *key >= keys.0 && keys.1.as_ref().is_none_or(|high| key < high);
        match reader.find(key) {
            Ok(found) => assert!(!is_in && found.as_ref() == Some(value)),
            Err(error) => assert!(is_in && matches!(error, Error::Corrupt { .. }), "{error}"),
        }
    }
}

/// Numbers of a superblock that no checkpoint writes.
#[test]
fn forged_superblocks_are_refused() {
    let (disk, model) = built(false);
    for_each_seed("forged_superblocks_are_refused", 60, |rng, _| {
        let disk = disk.clone_disk();
        let mut file = disk.read_raw(tree_path()).unwrap();
        for superblock in 0..2 {
            for _ in 0..=rng.below(2) {
                let field = superblock * PAGE_SIZE + 24 + 8 * rng.index(28);
                let value = [0, 1, rng.below(1 << 20), 1 << 40, u64::MAX - 1, u64::MAX];
                let value = value[rng.index(6)];
                file[field..field + 8].copy_from_slice(&value.to_le_bytes());
            }
            seal_superblock(&mut file, superblock);
        }
        disk.write_raw(tree_path(), &file);
        use_it(&disk, &config(false), &model);
    });
}
