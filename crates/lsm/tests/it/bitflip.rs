//! Bit flips in every file of a small session, and coarser damage.
//!
//! Goal: damage gives exactly the right data or a typed error, never other data, never a panic; and
//! something reports it, since checksums cover every byte. The session stays usable: other
//! snapshots open, the damaged one can be deleted, a new one saved.
//!
//! Method: a session of 64 KiB with all kinds of files in it: metadata, two snapshots that share
//! runs, a merge under way, a value of several pages, the image of a write buffer. A bit is flipped
//! on the disk, looked at, and flipped back. Only what reads the file anew is done for each bit:
//! for metadata and a sample of all others that is everything from the opening of the session on,
//! `verify` included; for data pages, reading an open table; for the other pages of a run, opening
//! a snapshot. Of the pages of runs `cargo test` takes every 7th bit, in each footer every one;
//! `TERRANE_SEEDS=7` takes them all.

use std::fmt::Debug;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use terrane_io::Disk;
use terrane_io::SimDisk;
use terrane_lsm::{
    CompactionPolicy, Compression, Error, SnapshotName, TableConfig, WriteBuffer, verify,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::effort::{by_effort, places};
use terrane_testkit::model::Content;
use terrane_testkit::seeds::for_each_seed;
use terrane_testkit::sweep::Note;
use terrane_testkit::{ChaCha8Rng, SeedableRng};

use crate::script::{
    Batch, DIR, LABEL, Model, Runner, Script, Step, check_table, files_in, open, scan,
    snapshot_name,
};

const PAGE_BYTES: usize = 4096;
const PAGE_BITS: u64 = 8 * PAGE_BYTES as u64;

/// Distance between the bits of a page that one seed flips.
const STRIDE: u64 = 7;

/// The same in a sample.
const STRIDE_SAMPLED: u64 = 29;

/// One flipped bit in this many goes through every check, from the opening on.
const SAMPLE: u64 = 101;

/// A closed session with the snapshots `old` and `new`, which share runs.
struct Specimen {
    disk: Arc<SimDisk>,
    model: Model,
    keys: Vec<Vec<u8>>,
}

fn draw_values(keys: &[Vec<u8>], rng: &mut ChaCha8Rng) -> Batch {
    let value = |rng: &mut ChaCha8Rng| (!rng.chance(1, 6)).then(|| rng.bytes(40));
    keys.iter().map(|key| (key.clone(), value(rng))).collect()
}

fn specimen(began: Duration) -> Specimen {
    let rng = &mut ChaCha8Rng::seed_from_u64(1);
    let disk = SimDisk::new(1);
    disk.advance(began);

    let config = TableConfig::default()
        .size_ratio(2)
        .compaction_policy(CompactionPolicy::Tiering)
        .write_buffer(WriteBuffer::Bytes(600))
        .compression(Compression::Zstd)
        .compaction_batch_pages(4096);

    let keys: Vec<Vec<u8>> = (0..24u8).map(|number| vec![b'k', number, number]).collect();
    let script = Script { config, keys: keys.clone(), steps: Vec::new() };

    let large = vec![(keys[7].clone(), Some(rng.bytes(4_200)))];
    let steps = [
        Step::Open,
        Step::NewTable,
        Step::Updates(0, draw_values(&keys[..9], rng)),
        Step::Updates(0, large),
        Step::Save(0, "old"),
        Step::Updates(0, draw_values(&keys[9..18], rng)),
        Step::Updates(0, draw_values(&keys[4..6], rng)),
        Step::DeleteRange(0, keys[11].clone(), keys[13].clone()),
        Step::Save(0, "new"),
        Step::Close,
    ];

    let mut model = Model::default();
    let mut runner = Runner::new(&disk, &script);
    for step in &steps {
        runner.step(step, &model).unwrap();
        model.apply(step);
    }

    Specimen { disk, model, keys }
}

impl Specimen {
    fn content(&self, name: &str) -> &Content {
        &self.model.snapshots[name]
    }

    /// Opens the session on a damaged disk and reads everything; what is not refused must be right.
    /// Returns the snapshots that are damaged; `None` if the session is.
    fn read_all(&self, disk: &Arc<SimDisk>) -> Option<Vec<SnapshotName>> {
        let session = match open(disk) {
            Ok(session) => session,
            Err(Error::SessionDirCorrupted { .. }) => return None,
            Err(error) => panic!("opening the session: {error:?}"),
        };

        let is_damaged = |name: &SnapshotName| {
            let table = match session.open_snapshot(name, LABEL) {
                Ok(table) => table,
                Err(Error::SnapshotCorrupted { .. }) => return true,
                Err(error) => panic!("opening snapshot {name}: {error:?}"),
            };
            match check_table(&table, self.content(name.as_str()), &self.keys) {
                Ok(()) => false,
                Err(Error::Corrupt { .. }) => true,
                Err(error) => panic!("reading snapshot {name}: {error:?}"),
            }
        };

        let names = session.list_snapshots().unwrap();
        Some(names.into_iter().filter(is_damaged).collect())
    }

    /// Everything notices the damage, and nothing else comes of it.
    fn check_damaged(&self, disk: &Arc<SimDisk>) {
        if let Some(damaged) = self.read_all(disk) {
            assert!(!damaged.is_empty(), "nobody noticed");
        }
        let disk: Arc<dyn Disk> = Arc::clone(disk) as Arc<_>;
        let report = verify::verify(&disk, Path::new(DIR), &mut |_, _| {}).unwrap();
        assert!(!report.is_clean(), "verify did not notice");
    }

    /// Checks that a session which opens is usable: the damaged snapshots can be deleted, the
    /// others read, and a new one saved.
    fn check_usable(&self, disk: &Arc<SimDisk>) {
        let Some(damaged) = self.read_all(disk) else { return };
        let session = open(disk).unwrap();
        for name in &damaged {
            session.delete_snapshot(name).unwrap();
        }
        let mut table = session.new_table(&TableConfig::default()).unwrap();
        table.insert(b"key", b"value").unwrap();
        table.save_snapshot(&snapshot_name("fresh"), LABEL).unwrap();
        drop(table);
        session.close().unwrap();
        drop(session);

        let session = open(disk).unwrap();
        for name in session.list_snapshots().unwrap() {
            assert!(!damaged.contains(&name));
            let table = session.open_snapshot(&name, LABEL).unwrap();
            match self.model.snapshots.get(name.as_str()) {
                Some(content) => check_table(&table, content, &self.keys).unwrap(),
                None => {
                    assert_eq!(table.get(b"key").unwrap().value(), Some(b"value".as_slice()));
                }
            }
        }
    }

    /// Reads the footer of a run; `docs/format/run.md` has the offsets of its fields.
    fn run(&self, path: &Path) -> RunFile {
        const PURPOSE: usize = 16 + 12;
        const DATA_PAGES: usize = 16 + 80;
        let bytes = self.disk.read_raw(path).unwrap();
        let pages = bytes.len() / PAGE_BYTES;
        let footer = &bytes[(pages - 1) * PAGE_BYTES..];
        let field = |at: usize| u32::from_le_bytes(*footer[at..].first_chunk().unwrap());
        let data_pages = u64::from(field(DATA_PAGES));
        let is_image = field(PURPOSE) == 2;
        RunFile { path: path.to_owned(), pages: pages as u64, data_pages, is_image }
    }
}

/// A run file of the specimen.
struct RunFile {
    path: PathBuf,
    pages: u64,
    data_pages: u64,
    is_image: bool,
}

impl RunFile {
    /// The bits to flip of some pages: each seed takes others, and all those of the footer.
    fn bits(&self, pages: Range<u64>, offset: u64, stride: u64) -> impl Iterator<Item = u64> {
        let footer = (self.pages - 1) * PAGE_BITS;
        let bits = pages.start * PAGE_BITS..pages.end * PAGE_BITS;
        bits.filter(move |bit| *bit >= footer || (bit + offset).is_multiple_of(stride))
    }

    /// Pages that are read when a snapshot is opened.
    fn pages_opened(&self) -> Range<u64> {
        if self.is_image { 0..self.pages } else { self.data_pages..self.pages }
    }

    /// Pages that are read by lookups and scans.
    fn pages_read(&self) -> Range<u64> {
        if self.is_image { 0..0 } else { 0..self.data_pages }
    }
}

#[test]
fn the_specimen_has_all_kinds_of_files() {
    let specimen = specimen(Duration::ZERO);
    let runs = files_in(&specimen.disk, "active");
    let bytes: usize = runs.iter().map(|path| specimen.disk.read_raw(path).unwrap().len()).sum();
    assert!(bytes <= 64 << 10, "{bytes} bytes of runs");
    let session = open(&specimen.disk).unwrap();
    let table = session.open_snapshot(&snapshot_name("new"), LABEL).unwrap();

    let stats = table.stats();
    assert!(
        stats.merge_debt_pages > 0 && stats.runs() >= 2 && stats.buffer_entries > 0,
        "{stats:?}"
    );

    assert!(specimen.content("new").values().any(|value| value.len() > PAGE_BYTES));
    drop((table, session));
    assert_eq!(specimen.read_all(&specimen.disk), Some(vec![]));
    let disk: Arc<dyn Disk> = Arc::clone(&specimen.disk) as Arc<_>;
    assert!(verify::verify(&disk, Path::new(DIR), &mut |_, _| {}).unwrap().is_clean());
}

#[test]
fn every_bit_of_the_metadata_is_guarded() {
    let specimen = specimen(Duration::ZERO);

    let disk = &specimen.disk;
    let mut flips = 0;
    for path in disk.files().iter().filter(|path| path.extension().is_none_or(|end| end != "run")) {
        for bit in places(0..disk.read_raw(path).unwrap().len() as u64 * 8, 4, 1) {
            let at = (path, bit);
            let _note = Note(&at);
            disk.flip_bit(path, bit);
            specimen.check_damaged(disk);
            disk.flip_bit(path, bit);
            flips += 1;
        }
    }

    assert!(flips > by_effort(500, 2_000), "only {flips} bits");
    assert_eq!(specimen.read_all(disk), Some(vec![]));
}

#[test]
fn every_bit_of_the_runs_is_guarded() {
    let stride = by_effort(STRIDE_SAMPLED, STRIDE);
    let mut offset = 0;
    for_each_seed("every_bit_of_the_runs_is_guarded", 1, |_, _| {
        let specimen = specimen(Duration::ZERO);
        let disk = &specimen.disk;
        let runs: Vec<RunFile> =
            files_in(disk, "active").iter().map(|path| specimen.run(path)).collect();
        let (name, content) = (snapshot_name("new"), specimen.content("new"));
        let mut flips = 0;
        let mut flip = |run: &RunFile, bit: u64, check: &dyn Fn()| {
            let at = (&run.path, bit);
            let _note = Note(&at);
            disk.flip_bit(&run.path, bit);
            check();
            disk.flip_bit(&run.path, bit);
            flips += 1;
        };
        let session = open(disk).unwrap();
        let table = session.open_snapshot(&name, LABEL).unwrap();
        for run in &runs {
            for bit in run.bits(run.pages_read(), offset, stride) {
                flip(run, bit, &|| {
                    let found = scan(&table);
                    assert!(matches!(found, Err(Error::Corrupt { .. })), "{found:?}");
                    let key = &specimen.keys[bit as usize % specimen.keys.len()];
                    match table.get(key) {
                        Ok(found) => assert_eq!(found.value(), content.get(key).map(Vec::as_slice)),
                        Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error:?}"),
                    }
                });
            }
        }
        // A run that is open is not read again, so it is closed now.
        check_table(&table, content, &specimen.keys).unwrap();
        drop(table);
        for run in &runs {
            for bit in run.bits(run.pages_opened(), offset, stride) {
                flip(run, bit, &|| {
                    let opened = session.open_snapshot(&name, LABEL);
                    assert!(matches!(opened, Err(Error::SnapshotCorrupted { .. })), "{opened:?}");
                });
            }
        }
        drop(session);
        for run in &runs {
            for bit in run.bits(0..run.pages - 1, offset, stride * SAMPLE) {
                flip(run, bit, &|| specimen.check_damaged(disk));
            }
        }
        let pages: u64 = runs.iter().map(|run| run.pages).sum();
        assert!(flips >= pages * PAGE_BITS / stride, "only {flips} bits of {pages} pages");
        assert_eq!(specimen.read_all(disk), Some(vec![]));
        assert_eq!(disk.open_files(), 0);
        offset += 1;
    });
}

#[test]
fn files_cut_grown_emptied_or_missing_are_noticed() {
    let specimen = specimen(Duration::ZERO);
    for path in specimen.disk.files().iter().filter(|path| !path.ends_with("lock")) {
        let bytes = specimen.disk.read_raw(path).unwrap();
        let mut versions: Vec<Vec<u8>> =
            (0..bytes.len()).step_by(512).map(|len| bytes[..len].to_vec()).collect();
        versions.push(bytes[..bytes.len() - 1].to_vec());

        for more in [1, 4, 512, PAGE_BYTES] {
            versions.push([bytes.clone(), vec![0; more]].concat());
            versions.push(
                [bytes.clone(), bytes[bytes.len() - more.min(bytes.len())..].to_vec()].concat(),
            );
        }

        for start in (0..bytes.len()).step_by(512) {
            let mut zeroed = bytes.clone();
            let end = bytes.len().min(start + 512);
            zeroed[start..end].fill(0);
            versions.push(zeroed);
        }

        for version in versions.iter().filter(|version| **version != bytes) {
            let at = (path, bytes.len(), version.len());
            let _note = Note(&at);
            let disk = specimen.disk.clone_disk();
            disk.write_raw(path, version);
            specimen.check_damaged(&disk);
            specimen.check_usable(&disk);
        }

        let _note = Note(path);
        let disk = specimen.disk.clone_disk();
        disk.remove(path).unwrap();

        match path.extension().and_then(|end| end.to_str()) {
            // A snapshot is there if its metadata is: no other file names it.
            Some("snapshot") => assert_eq!(specimen.read_all(&disk), Some(vec![])),
            _ => specimen.check_damaged(&disk),
        }

        specimen.check_usable(&disk);
    }
}

#[test]
fn files_and_pages_in_the_wrong_place_are_noticed() {
    let specimen = specimen(Duration::ZERO);

    // The same session, made some time before: files of the same names and nearly the same bytes.
    let older = self::specimen(Duration::from_secs(1));
    let paths = files_in(&specimen.disk, "active");
    assert_eq!(paths, files_in(&older.disk, "active"));
    let read = |path: &PathBuf| specimen.disk.read_raw(path).unwrap();

    let check = |damage: &dyn Debug, changes: &[(&PathBuf, &Vec<u8>)]| {
        let _note = Note(damage);
        let disk = specimen.disk.clone_disk();
        for (path, bytes) in changes {
            disk.write_raw(path, bytes);
        }
        specimen.check_damaged(&disk);
        specimen.check_usable(&disk);
    };

    for path in &paths {
        let bytes = read(path);
        let stale = older.disk.read_raw(path).unwrap();
        check(&("older file", path), &[(path, &stale)]);

        for other in paths.iter().filter(|other| *other > path) {
            check(&("swapped", path, other), &[(path, &read(other)), (other, &bytes)]);
        }

        let pages = bytes.len() / PAGE_BYTES;
        for page in 0..pages {
            let place = page * PAGE_BYTES..(page + 1) * PAGE_BYTES;
            let mut version = bytes.clone();
            version[place.clone()].copy_from_slice(&stale[place.clone()]);
            check(&("older page", path, page), &[(path, &version)]);
            for other in (0..pages).filter(|other| *other != page) {
                let mut version = bytes.clone();
                version.copy_within(place.clone(), other * PAGE_BYTES);
                check(&("page", path, page, "over", other), &[(path, &version)]);
            }
        }
    }
}
