//! Stores with tampered files: missing, truncated, shifted, empty, swapped, unreadable, forbidden,
//! or replaced by links and FIFOs.
//!
//! Goal: whatever takes the place of a file, reads give the right data or an error that names the
//! file, a check reports it, a repair and a writer make nothing worse, and the loss of redundant
//! files costs nothing.
//!
//! Method: each kind of damage on each file of a store with tables in runs, blobs, a snapshot, a
//! log and a lease, on the simulated disk, from a table of kinds. The real disk is for links, which
//! lead nowhere on the simulated one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{BadMedia, Disk, EntryKind, ErrorKind, FaultPlan, RealDisk, SimDisk};
use terrane_lsm::verify::{Loss, Report, repair, verify};
use terrane_lsm::{
    CheckpointThread, Durability, Error, ReaderOptions, Result, Session, SessionOptions,
    SnapshotName, Store, StoreOptions, StoreReader, Table, TableConfig, TableName, Update,
    WriteBuffer,
};

use crate::SALT;

const DIR: &str = "/store";

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

fn as_disk(disk: &Arc<SimDisk>) -> Arc<dyn Disk> {
    Arc::clone(disk) as Arc<dyn Disk>
}

fn options() -> StoreOptions {
    let session = SessionOptions::with_salt(SALT).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Each);
    options.log_bytes_max(64 << 10).checkpoint_thread(CheckpointThread::Caller)
}

fn open(disk: &Arc<SimDisk>) -> Result<Store> {
    Store::open(as_disk(disk), Path::new(DIR), &options())
}

fn reader(disk: &Arc<SimDisk>) -> Result<StoreReader> {
    StoreReader::open(as_disk(disk), Path::new(DIR), &ReaderOptions::default())
}

fn check(disk: &Arc<SimDisk>) -> Result<Report> {
    verify(&as_disk(disk), Path::new(DIR), &mut |_, _| {})
}

fn name(text: &str) -> SnapshotName {
    SnapshotName::new(text).unwrap()
}

/// All entries with their blobs, which are read through the files of blobs.
fn content(session: &Session, table: &Table) -> Result<Content> {
    let mut content = Content::new();
    let mut cursor = table.cursor()?;
    while let Some(record) = cursor.next().transpose()? {
        let mut value = record.value.into_vec();
        if let Some(blob) = record.blob {
            value.extend(session.retrieve_blobs(&[blob])?.concat());
        }
        content.insert(record.key, value);
    }
    Ok(content)
}

/// Reads the table through a reader, which writes nothing but its lease.
fn read(disk: &Arc<SimDisk>) -> Result<Content> {
    let reader = reader(disk)?;
    content(reader.session(), &*reader.table(&TableName::default())?)
}

/// Reads the table through a writer, which commits twice as well.
fn write(disk: &Arc<SimDisk>) -> Result<Content> {
    let store = open(disk)?;
    let table = store.table(&TableName::default())?;
    let found = content(store.session(), &*table.view()?)?;
    drop(table.insert(b"later", b"1")?);
    drop(table.delete(b"later")?);
    assert_eq!(content(store.session(), &*table.view()?)?, found);
    store.close()?;
    Ok(found)
}

/// A store whose process was killed, and what its table holds.
fn specimen() -> (Arc<SimDisk>, Content) {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    let config = TableConfig::default().write_buffer(WriteBuffer::Entries(16));

    let table = store.create_table(&TableName::default(), &config).unwrap();
    for number in 0..100_u8 {
        let update = match number % 3 {
            0 => Update::InsertWithBlob(b"value", &[7; 3_000]),
            _ => Update::Insert(b"value"),
        };
        drop(table.write_batch(&[([number], update)]).unwrap());
        match number {
            30 => drop(table.delete_range(&[20][..]..&[24][..]).unwrap()),
            90 => drop(table.delete_range(&[70][..]..&[72][..]).unwrap()),
            60 => table.save_snapshot(&name("kept"), "").unwrap(),
            80 => store.checkpoint().unwrap(),
            _ => {}
        }
    }

    let reader = reader(&disk).unwrap();
    let expected = content(store.session(), &table.view().unwrap()).unwrap();
    let killed = disk.process_kill();
    drop((reader, table, store));
    (killed, expected)
}

/// Damage done to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    Remove,
    Empty,
    Cut,
    Shift,
    /// The bytes of another file of the same kind.
    Swap,
    Link,
    Fifo,
    Deny,
    BadSectors,
}

const DAMAGES: [Damage; 9] = [
    Damage::Remove,
    Damage::Empty,
    Damage::Cut,
    Damage::Shift,
    Damage::Swap,
    Damage::Link,
    Damage::Fifo,
    Damage::Deny,
    Damage::BadSectors,
];

/// Purpose of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Manifest,
    Metadata,
    Snapshot,
    Run,
    Log,
    /// The lock file, whose content does not matter.
    Lock,
    /// The reserve, which only a writer reads.
    Reserve,
}

fn role(path: &Path) -> Role {
    let text = path.to_str().unwrap();
    match text.strip_prefix("/store/").unwrap() {
        "metadata" => Role::Metadata,
        "lock" => Role::Lock,
        "reserve" => Role::Reserve,
        name if name.starts_with("manifest.") => Role::Manifest,
        name if name.starts_with("snapshots/") => Role::Snapshot,
        name if name.starts_with("active/") => Role::Run,
        name if name.starts_with("log/") => Role::Log,
        name if name.starts_with("readers/") => Role::Lock,
        name => panic!("{name}"),
    }
}

impl Damage {
    /// Damages a file. Returns false if the bytes stay the same.
    pub(crate) fn apply(self, disk: &Arc<SimDisk>, path: &Path) -> bool {
        let bytes = disk.read_raw(path).unwrap();
        match self {
            Self::Remove => disk.remove(path).unwrap(),
            Self::Empty => disk.write_raw(path, b""),
            Self::Cut => disk.write_raw(path, &bytes[..bytes.len() * 2 / 3]),
            Self::Shift => disk.write_raw(path, &[b"x", &bytes[..]].concat()),
            Self::Swap => {
                let is_like = |other: &PathBuf| {
                    other != path
                        && other.parent() == path.parent()
                        && other.extension() == path.extension()
                };
                let Some(other) = disk.files().into_iter().find(is_like) else { return false };
                disk.write_raw(path, &disk.read_raw(other).unwrap());
            }
            Self::Link => disk.plant_special(path, EntryKind::Link),
            Self::Fifo => disk.plant_special(path, EntryKind::Other),
            Self::Deny => disk.deny(path),
            Self::BadSectors => disk.add_bad_range(path, 0..u64::MAX, BadMedia::Both),
        }

        disk.read_raw(path) != Some(bytes) || matches!(self, Self::Deny | Self::BadSectors)
    }
}

/// An error that says what is wrong with the file; panics at any other.
fn assert_names(error: &Error, path: &Path, place: &str) {
    let allowed = [ErrorKind::Corrupt, ErrorKind::Permission, ErrorKind::Io];
    assert!(allowed.contains(&error.kind()), "{place}: {error:?}");
    let text = error.to_string();
    // An old segment may have been given another number to be written again.
    let of_dir = match role(path) {
        Role::Metadata => text.contains("metadata"),
        Role::Log => text.contains("/store/log/"),
        _ => false,
    };
    assert!(of_dir || text.contains(path.to_str().unwrap()), "{place}: {text}");
}

#[test]
fn whatever_stands_in_the_place_of_a_file_is_found_and_named_and_what_is_redundant_is_not_missed() {
    let (pristine, expected) = specimen();
    assert_eq!(read(&pristine.clone_disk()).unwrap(), expected);
    assert_eq!(write(&pristine.clone_disk()).unwrap(), expected);
    assert_eq!(check(&pristine).unwrap().problems, []);
    let mut roles = BTreeMap::<String, u32>::new();

    for path in pristine.files() {
        for damage in DAMAGES {
            let disk = pristine.clone_disk();
            if !damage.apply(&disk, &path) {
                continue;
            }
            let role = role(&path);
            let place = format!("{damage:?} {}", path.display());
            *roles.entry(format!("{role:?}")).or_default() += 1;

            // Reading: on copies, since a reader writes its lease.
            let found = read(&disk.clone_disk());
            let is_missed = match &found {
                Ok(found) => {
                    assert_eq!(*found, expected, "{place}");
                    false
                }
                Err(error) => {
                    assert_names(error, &path, &place);
                    true
                }
            };

            // Checking: all that reading misses, and what is redundant.
            let report = match check(&disk.clone_disk()) {
                Err(error) if matches!(role, Role::Lock | Role::Reserve) => {
                    assert_names(&error, &path, &place);
                    continue;
                }
                report => report.unwrap(),
            };

            let is_named = |path: &Path| {
                report.problems.iter().any(|problem| {
                    problem.path == path || role == Role::Metadata && problem.path == Path::new(DIR)
                })
            };

            match role {
                // A lease that cannot be written is an error of the reader, and no damage.
                Role::Lock => assert!(report.is_clean(), "{place}: {report:?}"),
                Role::Reserve => assert!(!is_missed, "{place}: {found:?}"),
                Role::Manifest => {
                    assert!(!is_missed && is_named(&path), "{place}: {report:?}");
                    assert!(report.problems.iter().all(|p| p.repairable), "{place}: {report:?}");
                }
                Role::Snapshot => {
                    assert!(!is_missed, "{place}: {found:?}");
                    assert!(is_named(&path) || damage == Damage::Remove, "{place}: {report:?}");
                }
                Role::Metadata => assert!(is_missed && is_named(&path), "{place}: {report:?}"),
                // Runs of the snapshot only, and old segments, are not needed to read the table.
                Role::Run | Role::Log => {
                    assert!(!is_missed || is_named(&path), "{place}: {report:?}");
                }
            }

            // A writer gives the right data or an error, too, and so do a check and a reader after
            // a repair.
            match write(&disk.clone_disk()) {
                Ok(found) => assert_eq!(found, expected, "{place}"),
                Err(error) => assert_names(&error, &path, &place),
            }

            let mended = disk.clone_disk();
            match repair(&as_disk(&mended), Path::new(DIR), Loss::Refused, &mut |_, _| {}) {
                Ok(report) if report.is_clean() => {
                    let again = check(&mended).unwrap();
                    assert!(again.is_clean(), "{place}: {again:?}");
                    match read(&mended) {
                        Ok(found) => assert_eq!(found, expected, "{place}"),
                        // No repair makes a lease of what is no file, or of bad sectors.
                        Err(error) if role == Role::Lock => assert_names(&error, &path, &place),
                        Err(error) => panic!("{place}: {error:?}"),
                    }
                }
                Ok(report) => assert!(!report.problems.is_empty(), "{place}"),
                Err(error) => assert_names(&error, &path, &place),
            }
        }
    }

    for role in ["Manifest", "Metadata", "Snapshot", "Run", "Log", "Lock"] {
        assert!(roles.get(role).is_some_and(|count| *count >= 8), "{role}: {roles:?}");
    }
}

/// A store was closed cleanly, so its log had no commit; then both copies of its manifest were
/// lost. A check said that all was well, and the next command, though it was refused, removed every
/// run.
#[test]
fn a_cleanly_closed_store_without_its_manifests_is_damaged_and_keeps_every_file() {
    let (disk, expected) = specimen();
    assert_eq!(write(&disk).unwrap(), expected);
    let copies = ["manifest.a", "manifest.b"].map(|name| Path::new(DIR).join(name));
    let bytes = copies.clone().map(|path| disk.read_raw(path).unwrap());

    for path in &copies {
        disk.remove(path).unwrap();
    }
    disk.remove(&Path::new(DIR).join("snapshots/kept.snapshot")).unwrap();
    let files = disk.files();

    let report = check(&disk).unwrap();
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert_eq!(report.problems[0].path, copies[0]);
    assert!(report.problems[0].rule.contains("put a copy back"), "{report:?}");

    for error in [open(&disk).unwrap_err(), reader(&disk).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_names(&error, &copies[0], "both copies");
    }

    assert_eq!(disk.files(), files);

    disk.write_raw(&copies[1], &bytes[1]);
    assert_eq!(read(&disk).unwrap(), expected);
}

/// Somebody restored a session without the files of its snapshots. The next opening removed every
/// run.
#[test]
fn runs_of_lost_snapshots_are_kept_in_lost_and_found_and_come_back_with_them() {
    let disk = SimDisk::new(1);
    let open = || Session::open(as_disk(&disk), Path::new(DIR), &options().session);
    let session = open().unwrap();
    let config = TableConfig::default().write_buffer(WriteBuffer::Entries(8));

    let mut table = session.new_table(&config).unwrap();
    for number in 0..100_u8 {
        table.write_batch(&[([number], Update::InsertWithBlob(b"value", b"blob"))]).unwrap();
    }
    table.save_snapshot(&name("kept"), "").unwrap();
    let expected = content(&session, &table).unwrap();
    drop(table);
    session.close().unwrap();
    let path = Path::new(DIR).join("snapshots/kept.snapshot");
    let bytes = disk.read_raw(&path).unwrap();
    let runs = || disk.files().iter().filter(|path| path.starts_with("/store/active")).count();
    let lost = || disk.files().iter().filter(|path| path.starts_with("/store/lost+found")).count();
    let all = runs();
    assert!(all > 3);
    disk.remove(&path).unwrap();

    let report = check(&disk).unwrap();
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(report.problems[0].rule.contains("no snapshot and no manifest"), "{report:?}");

    for _ in 0..2 {
        open().unwrap().close().unwrap();
        assert_eq!((runs(), lost()), (0, all));
    }

    assert_eq!(check(&disk).unwrap().problems, []);

    disk.write_raw(&path, &bytes);

    // A repair does what opening does.
    let mended = disk.clone_disk();
    assert!(!check(&mended).unwrap().is_clean());
    assert!(
        repair(&as_disk(&mended), Path::new(DIR), Loss::Refused, &mut |_, _| {})
            .unwrap()
            .is_clean()
    );

    assert!(check(&mended).unwrap().is_clean());
    let session = open().unwrap();
    assert_eq!((runs(), lost()), (all, 0));
    let table = session.open_snapshot(&name("kept"), "").unwrap();
    assert_eq!(content(&session, &table).unwrap(), expected);
}

/// The remains of one crash are kept, and not those of all.
#[test]
fn the_remains_of_a_crash_take_the_place_of_those_of_the_crash_before() {
    let (mut disk, expected) = specimen();
    let mut kept = Vec::new();
    for round in 0..4_u8 {
        let store = open(&disk).unwrap();
        let table = store
            .session()
            .new_table(&TableConfig::default().write_buffer(WriteBuffer::Entries(4)));

        let mut table = table.unwrap();
        for number in 0..40_u8 {
            table.insert(&[round, number], b"of no use").unwrap();
        }
        let killed = disk.process_kill();
        drop((table, store));
        disk = killed;
        let opened = open(&disk).unwrap();
        drop(opened);
        let files: Vec<_> =
            disk.files().into_iter().filter(|path| path.starts_with("/store/lost+found")).collect();
        assert!(!files.is_empty() && files.iter().all(|file| !kept.contains(file)), "{files:?}");
        kept = files;
    }

    assert_eq!(read(&disk).unwrap(), expected);
}

/// A file with an impossible name among the snapshots must not keep runs alive: one such file used
/// to prevent the removal of every run.
#[test]
fn a_snapshot_of_an_impossible_name_is_reported_and_keeps_nothing() {
    let (disk, expected) = specimen();
    let path = Path::new(DIR).join("snapshots/A Copy.snapshot");
    disk.write_raw(&path, b"of no use");
    let report = check(&disk).unwrap();
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert_eq!(report.problems[0].path, path);
    assert!(report.problems[0].rule.contains("move the file away"), "{report:?}");

    let store = open(&disk).unwrap();
    store.drop_table(&TableName::default()).unwrap();
    store.session().delete_snapshot(&name("kept")).unwrap();
    store.close().unwrap();
    let left: Vec<_> =
        disk.files().into_iter().filter(|path| path.starts_with("/store/active")).collect();
    assert_eq!(left, Vec::<PathBuf>::new());
    drop(expected);
}

/// A receipt that somebody had put aside kept the directory locked.
#[test]
fn a_receipt_keeps_no_store_open_and_knows_whether_its_commit_was_durable() {
    let (disk, _) = specimen();
    let store = open(&disk).unwrap();
    let table = store.table(&TableName::default()).unwrap();
    let durable = table.insert(b"key", b"value").unwrap();
    let batch: &[(&[u8], Update<'_>)] = &[(b"key", Update::Delete)];
    let seen = store.commit_with(&[(&table, batch)], Durability::Buffered).unwrap();
    drop((table, store));
    assert!(durable.is_durable() && !seen.is_durable());
    durable.wait().unwrap();
    assert!(matches!(seen.wait(), Err(Error::SessionClosed)));
    open(&disk).unwrap();
}

/// A read-only medium and a user without write permission can still read a store. Both used to be
/// refused.
#[test]
fn read_only_media_full_disks_and_stores_of_others_are_read_and_checked() {
    let (pristine, expected) = specimen();
    let read_snapshot = |disk: &Arc<SimDisk>| {
        let session =
            Session::open_read_only(as_disk(disk), Path::new(DIR), &SessionOptions::default())?;
        assert!(matches!(session.delete_snapshot(&name("kept")), Err(Error::ReadOnly { .. })));
        content(&session, &session.open_snapshot(&name("kept"), "")?)
    };

    let snapshot = read_snapshot(&pristine.clone_disk()).unwrap();

    let frozen = pristine.clone_disk();
    frozen.set_read_only(true);

    let never_locked = pristine.clone_disk();
    for path in ["lock", "readers/1.lease"] {
        never_locked.remove(&Path::new(DIR).join(path)).unwrap();
    }
    never_locked.remove_dir(&Path::new(DIR).join("readers")).unwrap();
    never_locked.set_read_only(true);
    let full = pristine.clone_disk();
    full.set_plan(FaultPlan::capacity(0));

    for disk in [&frozen, &never_locked, &full] {
        let files = disk.files();
        assert_eq!(read(disk).unwrap(), expected);
        assert_eq!(read_snapshot(disk).unwrap(), snapshot);
        assert_eq!(check(disk).unwrap().problems, []);
        assert_eq!(disk.files(), files);
    }

    let refused = open(&frozen).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");

    // Where a reader holds the shared lock, nobody writes, and the other way round.
    let reading = reader(&frozen).unwrap();
    frozen.set_read_only(false);
    assert!(matches!(open(&frozen), Err(Error::SessionDirLocked { .. })));
    drop(reading);
    let writing = open(&frozen).unwrap();
    frozen.set_read_only(true);
    assert_eq!(read(&frozen).unwrap_err().kind(), ErrorKind::Locked);
    drop(writing);
}

/// A reader said that the session was closed, and looked as if another process were in the way.
#[test]
fn a_missing_run_is_damage_to_a_reader() {
    let (disk, _) = specimen();
    for path in disk.files().iter().filter(|path| path.starts_with("/store/active")) {
        let disk = disk.clone_disk();
        disk.remove(path).unwrap();
        let Err(error) = read(&disk) else { continue };
        assert!(
            matches!(&error, Error::StoreCorrupted { path: found, .. } if found == path),
            "{error:?}"
        );
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

/// A sector that can never be read ended the check, and whatever else was wrong remained unsaid.
#[test]
fn a_check_goes_on_behind_bad_sectors_and_names_the_keys_that_they_hold() {
    let disk = SimDisk::new(1);
    let store = open(&disk).unwrap();
    let config = TableConfig::default().write_buffer(WriteBuffer::Entries(1_000));

    let table = store.create_table(&TableName::default(), &config).unwrap();
    for number in 0..1_000_u16 {
        drop(table.insert(format!("{number:04}").as_bytes(), &[7; 100]).unwrap());
    }
    store.close().unwrap();
    let is_run = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "run");

    let path = disk.files().into_iter().find(is_run).unwrap();
    for page in [3, 9, 10] {
        disk.add_bad_range(&path, page * 4096 + 512..page * 4096 + 1024, BadMedia::Both);
    }
    disk.flip_bit(&path, 6 * 4096 * 8 + 400);

    let problems = check(&disk).unwrap().problems;
    let pages: Vec<u64> = problems.iter().map(|problem| problem.offset / 4096).collect();
    assert_eq!(pages, [3, 6, 9, 10], "{problems:?}");

    for problem in &problems {
        assert_eq!(problem.tables, ["main"]);
        let keys = problem.keys.as_ref().unwrap();
        let number = |key: &Option<Vec<u8>>| -> u16 {
            std::str::from_utf8(key.as_ref().unwrap()).unwrap().parse().unwrap()
        };
        // A page holds about 36 entries; two pages side by side are one gap.
        let count = number(&keys.before) - number(&keys.after) - 1;
        assert!((30..90).contains(&count), "{problem:?}");
    }

    let of_page = |index: usize| problems[index].keys.clone();
    assert_eq!(of_page(2), of_page(3));
}

/// A cut or missing file of blobs was found by the lookup that needed it, as a raw error of the
/// disk.
#[test]
fn blobs_that_are_cut_or_missing_are_found_when_a_snapshot_is_opened() {
    let (disk, _) = specimen();
    let blobs: Vec<_> = disk
        .files()
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "blobs"))
        .collect();

    assert!(!blobs.is_empty());
    let mut found = 0;
    for path in &blobs {
        for damage in [Damage::Remove, Damage::Cut, Damage::Empty] {
            let disk = disk.clone_disk();
            assert!(damage.apply(&disk, path));
            let session =
                Session::open_read_only(as_disk(&disk), Path::new(DIR), &SessionOptions::default());
            let opened = session.unwrap().open_snapshot(&name("kept"), "");
            let Err(error) = opened else { continue };
            assert!(
                matches!(&error, Error::SnapshotCorrupted { path: damaged, .. } if damaged == path),
                "{error:?}"
            );
            found += 1;
        }
    }

    assert!(found >= 3, "{found}");
}

/// Opened without an anchor, a lock, a segment or a temporary file was written through a link to
/// wherever it led.
#[test]
fn links_in_a_real_store_lead_nothing_out_of_it() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("store");
    let outside = scratch.path().join("precious");
    std::fs::write(&outside, b"precious").unwrap();
    let open = || Store::open(RealDisk::auto(), &dir, &options());
    let store = open().unwrap();
    let table = store.create_table(&TableName::default(), &TableConfig::default()).unwrap();
    drop(table.insert(b"key", b"value").unwrap());
    store.close().unwrap();
    drop((table, store));
    let last = std::fs::read_dir(dir.join("log")).unwrap().map(|entry| entry.unwrap().file_name());
    let last: u64 = last.map(|name| name.to_str().unwrap()[..8].parse().unwrap()).max().unwrap();

    // Where the next segments, the copies of the manifest and what is written beside them go.
    let next = [last + 1, last + 2].map(|number| format!("log/{number:08}.log"));
    let planted = ["manifest.a.tmp", "manifest.b.tmp", &next[0], &next[1]];
    for name in planted {
        symlink(&outside, dir.join(name)).unwrap();
    }

    let written = open().and_then(|store| {
        drop(store.table(&TableName::default())?.insert(b"key", b"another")?);
        store.checkpoint()?;
        store.close()
    });

    written.unwrap();
    assert_eq!(std::fs::read(&outside).unwrap(), b"precious");

    // Where links stand in the place of what is read or locked.
    for name in ["lock", "metadata", "active", "snapshots", "log"] {
        let (path, aside) = (dir.join(name), dir.join("aside"));
        std::fs::rename(&path, &aside).unwrap();
        symlink(&aside, &path).unwrap();
        let error = open().unwrap_err().to_string();
        assert!(error.contains(name), "{name}: {error}");
        let disk: Arc<dyn Disk> = RealDisk::auto();
        drop(verify(&disk, &dir, &mut |_, _| {}));
        std::fs::remove_file(&path).unwrap();
        std::fs::rename(&aside, &path).unwrap();
    }

    let found = open().unwrap().table(&TableName::default()).unwrap().get(b"key").unwrap();
    assert_eq!(found.value().map(AsRef::as_ref), Some(&b"another"[..]));

    // The salt is a secret of the store.
    let mode = std::fs::metadata(dir.join("metadata")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
