//! Faults by place: one fault in one file of a store, of every kind of store and of file.
//!
//! Goal: a store with the fault is whole, or an older state of itself where the table says so, or
//! reports the fault. It never gives a wrong answer and never panics. A store that opens goes on:
//! one more commit is there after it was opened again. Method: a store whose process was killed, as
//! [`stores`](crate::stores) fill it. Places follow from the seed. The outcomes are compared with
//! the table in `docs/testing.md`, to which `TERRANE_GOLDEN=write` adds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{
    BadMedia, Disk, EntryKind, Fault, FaultKind, FaultPlan, Repeat, SimDisk, Survival,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::by_effort;
use terrane_testkit::golden;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Note;
use terrane_testkit::tally;
use terrane_testkit::trial::attempt;

use crate::stores::{Kind, Result};

pub(crate) const DIR: &str = "/store";

/// Commits of a store.
pub(crate) const COMMITS: u64 = 24;

const SECTOR_BYTES: usize = 512;
const PAGE_BYTES: usize = 4096;

/// The atlas.
const ATLAS: &str = "../../docs/testing.md";

/// Lines around the table.
const MARKS: [&str; 2] = ["<!-- faults by place -->", "<!-- end of faults by place -->"];

/// Fault in a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Damage {
    /// A sector can never be read or written again.
    BadSector,
    /// A sector is zeros.
    Zeroed,
    /// The file ends early.
    Cut,
    /// Some bytes are inserted or missing.
    Shifted,
    /// A page as it was at an earlier time.
    StalePage,
    /// The file as it was at an earlier time.
    StaleFile,
    /// A page stands where another was.
    Misdirected,
    /// The name is gone.
    Lost,
    /// The file and another of the store have changed places.
    Swapped,
    /// Another file of the store stands in the place.
    Doubled,
    /// A link or special file stands in the place.
    Special,
    /// Nobody may open the file.
    Denied,
}

impl Damage {
    const ALL: [Self; 12] = [
        Self::BadSector,
        Self::Zeroed,
        Self::Cut,
        Self::Shifted,
        Self::StalePage,
        Self::StaleFile,
        Self::Misdirected,
        Self::Lost,
        Self::Swapped,
        Self::Doubled,
        Self::Special,
        Self::Denied,
    ];

    /// Heading of the table.
    fn name(self) -> &'static str {
        match self {
            Self::BadSector => "bad sector",
            Self::Zeroed => "zeros",
            Self::Cut => "cut",
            Self::Shifted => "shifted",
            Self::StalePage => "stale page",
            Self::StaleFile => "stale file",
            Self::Misdirected => "misdirected",
            Self::Lost => "lost",
            Self::Swapped => "swapped",
            Self::Doubled => "doubled",
            Self::Special => "link",
            Self::Denied => "denied",
        }
    }
}

/// Outcome of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// All commits are there, and one more can be made.
    Whole,
    /// The first commits are there, and one more can be made.
    Older,
    /// An error told of the fault.
    Reported,
}

impl Found {
    const ALL: [Self; 3] = [Self::Whole, Self::Older, Self::Reported];

    fn letter(self) -> char {
        match self {
            Self::Whole => 'W',
            Self::Older => 'O',
            Self::Reported => 'R',
        }
    }
}

/// A store whose process was killed.
struct Specimen {
    disk: Arc<SimDisk>,
    /// The same store when it had half of the commits.
    earlier: Arc<SimDisk>,
}

pub(crate) fn shared(disk: &Arc<SimDisk>) -> Arc<dyn Disk> {
    Arc::clone(disk) as Arc<dyn Disk>
}

/// Commits on a new store until the disk fails; returns the number of the last durable commit.
pub(crate) fn fill(
    kind: Kind,
    sim: &Arc<SimDisk>,
    settings: u64,
    mut each: impl FnMut(u64),
) -> Result<u64> {
    let (disk, dir) = (shared(sim), Path::new(DIR));
    kind.create(&disk, dir)?;
    let mut opened = kind.open(&disk, dir, settings)?;
    for number in 1..=COMMITS {
        opened.commit(number)?;
        if number.is_multiple_of(5) {
            opened.maintain(number / 5)?;
        }
        each(number);
    }
    Ok(COMMITS)
}

impl Specimen {
    fn new(kind: Kind) -> Self {
        let disk = SimDisk::new(1);
        let mut earlier = None;
        fill(kind, &disk, 0, |number| {
            if number == COMMITS / 2 {
                earlier = Some(disk.process_kill());
            }
        })
        .unwrap();
        Self { disk: disk.process_kill(), earlier: earlier.unwrap() }
    }

    fn files(&self) -> Vec<PathBuf> {
        self.disk.files()
    }

    /// Does damage to a file of a copy; `None` where this file has no such damage.
    fn damage(&self, damage: Damage, path: &Path, rng: &mut impl Draw) -> Option<Arc<SimDisk>> {
        let disk = self.disk.clone_disk();
        let whole = disk.read_raw(path)?;
        let mut bytes = whole.clone();
        let earlier = self.earlier.read_raw(path);
        let others: Vec<_> = self.files().into_iter().filter(|other| other != path).collect();
        match damage {
            Damage::BadSector => {
                let at = (rng.index(whole.len().max(1)) / SECTOR_BYTES * SECTOR_BYTES) as u64;
                disk.add_bad_range(path, at..at + SECTOR_BYTES as u64, BadMedia::Both);
                return Some(disk);
            }
            Damage::Zeroed => {
                let at = rng.index(whole.len().max(1)) / SECTOR_BYTES * SECTOR_BYTES;
                let end = whole.len().min(at + SECTOR_BYTES);
                bytes[at..end].fill(0);
            }
            Damage::Cut => bytes.truncate(rng.index(whole.len().max(1))),
            Damage::Shifted if whole.is_empty() => return None,
            Damage::Shifted => {
                let at = rng.index(whole.len());
                if rng.chance(1, 2) {
                    bytes.drain(at..whole.len().min(at + 1 + rng.index(600)));
                } else {
                    let len = 1 + rng.index(600);
                    bytes.splice(at..at, rng.bytes(len));
                }
            }
            Damage::StalePage | Damage::Misdirected => {
                let pages = whole.len().div_ceil(PAGE_BYTES);
                let from = if damage == Damage::StalePage { earlier? } else { whole.clone() };
                let range = |page: usize, len: usize| {
                    (page * PAGE_BYTES).min(len)..((page + 1) * PAGE_BYTES).min(len)
                };
                let to = rng.index(pages.max(1));
                let page = if damage == Damage::StalePage { to } else { rng.index(pages.max(1)) };
                let moved = &from[range(page, from.len())];
                let place = range(to, whole.len());
                let len = moved.len().min(place.len());
                bytes[place][..len].copy_from_slice(&moved[..len]);
            }
            Damage::StaleFile => bytes = earlier?,
            Damage::Lost => {
                disk.remove(path).unwrap();
                disk.sync_dir(path.parent().unwrap()).unwrap();
                return Some(disk);
            }
            Damage::Swapped | Damage::Doubled => {
                let other = &others[rng.index(others.len())];
                bytes = disk.read_raw(other)?;
                if damage == Damage::Swapped && bytes != whole {
                    disk.write_raw(other, &whole);
                }
            }
            Damage::Special => {
                let kind = if rng.chance(1, 2) { EntryKind::Link } else { EntryKind::Other };
                disk.plant_special(path, kind);
                return Some(disk);
            }
            Damage::Denied => {
                disk.deny(path);
                return Some(disk);
            }
        }

        if bytes == whole {
            return None;
        }
        disk.write_raw(path, &bytes);
        Some(disk)
    }
}

/// Opens a store that had `last` commits, reads all of it, and goes on.
fn judge(kind: Kind, sim: &Arc<SimDisk>, last: u64) -> Found {
    let (disk, dir) = (shared(sim), Path::new(DIR));
    let go_on = || -> Result<u64> {
        let mut opened = kind.open(&disk, dir, 0)?;
        let found = opened.check()?;
        assert!(found <= last, "commit {found} of {last}");
        opened.commit(found + 1)?;
        assert_eq!(opened.check()?, found + 1, "the commit after the fault");
        opened.close()?;
        let again = kind.open(&disk, dir, 0)?.check()?;
        assert_eq!(again, found + 1, "the commit after the fault, opened again");
        Ok(found)
    };

    match go_on() {
        Ok(found) if found == last => Found::Whole,
        Ok(_) => Found::Older,
        Err(error) => {
            assert!(!error.is_empty());
            Found::Reported
        }
    }
}

/// The kind of a file: its path within the store, numbers left out.
fn class_of(path: &Path) -> String {
    let path = path.strip_prefix(DIR).unwrap().to_str().unwrap();
    let mut class = String::new();
    for letter in path.chars() {
        let letter = if letter.is_ascii_digit() { 'N' } else { letter };
        if letter != 'N' || !class.ends_with('N') {
            class.push(letter);
        }
    }
    class
}

/// Outcomes by kind of store and file, and by fault.
type Table = BTreeMap<(Kind, String), BTreeMap<Damage, BTreeSet<Found>>>;

fn table_text(table: &Table) -> String {
    let names: Vec<_> = Damage::ALL.map(Damage::name).into();
    let rule = "---|".repeat(2 + names.len());
    let mut text = format!("| store | file | {} |\n|{rule}\n", names.join(" | "));
    for ((kind, class), row) in table {
        let cell = |damage| {
            let found = row.get(&damage).into_iter().flatten().map(|found| found.letter());
            let found: String = found.collect();
            if found.is_empty() { "–".to_owned() } else { found }
        };
        let cells = Damage::ALL.map(cell).join(" | ");
        let line = format!("| {} | `{class}` | {cells} |\n", kind.name());
        text.push_str(&line);
    }
    text
}

/// Reads what [`table_text`] wrote.
fn table_of(text: &str) -> Table {
    let mut table = Table::new();
    for line in text.lines() {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let name = cells.next().unwrap_or_default();
        let Some(kind) = Kind::named(name) else { continue };
        let class = cells.next().unwrap_or_default().trim_matches('`').to_owned();
        for (damage, cell) in Damage::ALL.into_iter().zip(cells) {
            let found = Found::ALL.into_iter().filter(|found| cell.contains(found.letter()));
            let found: BTreeSet<_> = found.collect();
            if !found.is_empty() {
                table.entry((kind, class.clone())).or_default().insert(damage, found);
            }
        }
    }
    table
}

/// Compares outcomes with the atlas, or adds to it what it has not got.
fn check_atlas(table: &Table) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(ATLAS);
    let atlas = fs::read_to_string(&path).unwrap();
    let (head, rest) = atlas.split_once(MARKS[0]).expect("the atlas has the table");
    let (written, tail) = rest.split_once(MARKS[1]).expect("the atlas has the table");
    let mut known = table_of(written);

    for ((kind, class), cells) in table {
        for (damage, found) in cells {
            let row = known.entry((*kind, class.clone())).or_default();
            let cell = row.entry(*damage).or_default();
            // Whatever is survived is no worse than the atlas says.
            let is_known = |found: &Found| *found == Found::Whole || cell.contains(found);
            assert!(
                golden::is_writing() || found.iter().all(is_known),
                "{kind:?}, {class}, {damage:?}: {found:?}, and the atlas has {cell:?}"
            );
            cell.extend(found);
        }
    }

    if golden::is_writing() {
        let text = table_text(&known);
        let new = format!("{head}{}\n{text}{}{tail}", MARKS[0], MARKS[1]);
        fs::write(&path, new).unwrap();
    }
}

#[test]
fn a_fault_in_any_place_is_survived_or_reported_as_the_atlas_says() {
    let mut table = Table::new();
    let mut wrong = Vec::new();
    for_each_seed("a_fault_in_any_place", 1, |rng, _| {
        for kind in Kind::ON_DISK {
            let specimen = Specimen::new(kind);
            assert_eq!(judge(kind, &specimen.disk.clone_disk(), COMMITS), Found::Whole);
            let mut classes: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
            for path in specimen.files() {
                classes.entry(class_of(&path)).or_default().push(path);
            }

            for (class, paths) in classes {
                for damage in Damage::ALL {
                    for _ in 0..by_effort(2, 12) {
                        let path = rng.pick(&paths);
                        let Some(disk) = specimen.damage(damage, path, rng) else { continue };
                        let _note = Note(&(kind, path, damage));
                        match attempt(|| judge(kind, &disk, COMMITS)) {
                            // Its files are those of the tables, at places that no seed repeats.
                            Ok(_) if kind == Kind::RadixLsm => {}
                            Ok(found) => {
                                let cells = table.entry((kind, class.clone())).or_default();
                                cells.entry(damage).or_default().insert(found);
                            }
                            Err(failure) => {
                                wrong.push(format!(
                                    "{kind:?}, {}, {damage:?}: {failure}",
                                    path.display()
                                ));
                            }
                        }
                        tally::add("faults by place", 1);
                    }
                }
            }
        }
    });

    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    check_atlas(&table);
}

/// Loss of power on a disk that says it has synced, and has not, from some call on: commits may be
/// lost, and what is left may be reported as damaged. Nothing else may happen.
#[test]
fn a_disk_that_lies_about_syncs_loses_commits_and_gives_no_wrong_answers() {
    for_each_seed("a_disk_that_lies_about_syncs", by_effort(1, 10), |rng, seed| {
        for kind in Kind::ON_DISK {
            let whole = SimDisk::new(seed);
            fill(kind, &whole, 0, |_| ()).unwrap();
            for _ in 0..4 {
                let disk = SimDisk::new(seed);
                let at_call = rng.below(whole.calls());
                let fail = Fault { at_call, kind: FaultKind::LyingSync, repeat: Repeat::Forever };
                disk.set_plan(FaultPlan { fail: Some(fail), ..FaultPlan::default() });
                let _note = Note(&(kind, at_call));
                let last = fill(kind, &disk, 0, |_| ()).unwrap();
                let survival = Survival::Random(rng.below(u64::MAX));
                judge(kind, &disk.after_crash(survival), last);
                tally::add("faults by place", 1);
            }
        }
    });
}

/// Where descriptors run out, calls report it, and nothing is lost.
#[test]
fn any_limit_of_descriptors_is_survived_or_reported() {
    for kind in Kind::ON_DISK {
        let specimen = Specimen::new(kind);
        let mut is_enough = false;
        for limit in (0..40).chain([80]) {
            let disk = specimen.disk.clone_disk();
            let plan = FaultPlan { open_files_max: Some(limit), ..FaultPlan::default() };
            disk.set_plan(plan);
            let _note = Note(&(kind, limit));
            let found = judge(kind, &disk, COMMITS);
            assert_ne!(found, Found::Older, "{kind:?} with {limit} files");
            is_enough = found == Found::Whole;

            // The commit that the limit has met may be there or not.
            let disk = disk.process_kill();
            disk.set_plan(FaultPlan::default());
            let opened = kind.open(&shared(&disk), Path::new(DIR), 0).unwrap();
            let last = opened.check().unwrap();
            assert!((COMMITS..=COMMITS + 1).contains(&last), "{kind:?} with {limit} files: {last}");
        }
        assert!(is_enough, "{kind:?} needs more than 80 files");
    }
}

/// Two runs of one seed do the same calls with the same bytes. The radix state on the tables is
/// left out: each of its stores draws a salt of its own.
#[test]
fn every_kind_of_store_does_the_same_calls_again() {
    for kind in Kind::ON_DISK.into_iter().filter(|kind| *kind != Kind::RadixLsm) {
        let run = || {
            let disk = SimDisk::new(3);
            fill(kind, &disk, 0, |_| ()).unwrap();
            (disk.trace_hash(), disk.calls())
        };
        assert_eq!(run(), run(), "{kind:?}");
    }
}
