//! The border of a store on the real file system.
//!
//! Goal: nothing that stands in an anchored directory makes a call read, write, empty or remove
//! anything outside of it, and nothing there makes a call wait. Method: every call on every kind of
//! link and special file, with a victim outside whose bytes are compared afterwards.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use terrane_io::files::{create_afresh, replace_file, replace_file_as};
use terrane_io::{Access, Disk, EntryKind, Error, FileModes, OpenMode, RealDisk, RealOptions};

const MODES: [OpenMode; 3] = [OpenMode::Read, OpenMode::ReadWrite, OpenMode::Truncate];

/// A directory for a store, and a victim beside it.
struct Place {
    temporary: tempfile::TempDir,
    disk: std::sync::Arc<RealDisk>,
}

impl Place {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        fs::create_dir(temporary.path().join("store")).unwrap();
        fs::create_dir(temporary.path().join("victim")).unwrap();
        fs::write(temporary.path().join("victim/file"), b"precious").unwrap();
        Self { temporary, disk: RealDisk::auto() }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.temporary.path().join(name)
    }

    fn check_victim(&self) {
        assert_eq!(fs::read(self.path("victim/file")).unwrap(), b"precious");
        assert_eq!(fs::read_dir(self.path("victim")).unwrap().count(), 1);
    }
}

/// The kind that the error names in the place of a file.
fn found<T>(result: terrane_io::Result<T>) -> EntryKind {
    match result.map(drop).unwrap_err() {
        Error::WrongKind { found, .. } => found,
        error => panic!("{error}"),
    }
}

#[test]
fn no_call_follows_a_link_to_a_file_out_of_an_anchored_directory() {
    let place = Place::new();
    let link = place.path("store/link");
    symlink(place.path("victim/file"), &link).unwrap();
    let _anchor = place.disk.anchor(&place.path("store")).unwrap();

    for access in [Access::Buffered, Access::Direct] {
        for mode in MODES {
            assert_eq!(found(place.disk.open(&link, mode, access)), EntryKind::Link);
        }
    }

    assert_eq!(found(place.disk.lock(&link)), EntryKind::Link);
    assert_eq!(found(place.disk.lock_shared(&link)), EntryKind::Link);
    assert_eq!(found(place.disk.is_locked(&link)), EntryKind::Link);
    assert_eq!(found(place.disk.hard_link(&link, &place.path("store/other"))), EntryKind::Link);
    assert_eq!(place.disk.kind(&link).unwrap(), Some(EntryKind::Link));
    assert_eq!(place.disk.list(&place.path("store")).unwrap()[0].kind, EntryKind::Link);
    let taken = place.disk.open(&link, OpenMode::CreateNew, Access::Buffered);
    assert!(taken.unwrap_err().is_already_exists());

    // Replacing a file replaces the link.
    replace_file(&*place.disk, &link, b"ours").unwrap();
    assert_eq!(fs::read(&link).unwrap(), b"ours");
    symlink(place.path("victim/file"), place.path("store/next.tmp")).unwrap();
    replace_file(&*place.disk, &place.path("store/next"), b"ours").unwrap();
    place.check_victim();
}

#[test]
fn no_call_follows_a_link_to_a_directory_out_of_an_anchored_one() {
    let place = Place::new();
    let link = place.path("store/dir");
    let file = place.path("store/dir/file");
    symlink(place.path("victim"), &link).unwrap();
    let _anchor = place.disk.anchor(&place.path("store")).unwrap();

    for mode in MODES.into_iter().chain([OpenMode::CreateNew]) {
        assert_eq!(found(place.disk.open(&file, mode, Access::Buffered)), EntryKind::Link);
    }

    assert_eq!(found(place.disk.remove(&file)), EntryKind::Link);
    assert_eq!(found(place.disk.rename(&file, &place.path("store/x"))), EntryKind::Link);
    assert_eq!(found(place.disk.create_dir(&link.join("new"))), EntryKind::Link);
    assert_eq!(found(place.disk.remove_dir(&link.join("file"))), EntryKind::Link);
    assert_eq!(found(place.disk.kind(&file)), EntryKind::Link);
    assert_eq!(found(place.disk.lock(&link.join("lock"))), EntryKind::Link);
    assert_eq!(found(place.disk.list(&link)), EntryKind::Link);
    assert_eq!(found(place.disk.sync_dir(&link)), EntryKind::Link);
    assert_eq!(found(place.disk.free_bytes(&link)), EntryKind::Link);
    assert_eq!(found(place.disk.anchor(&link)), EntryKind::Link);
    assert!(place.disk.remove_dir(&link).is_err(), "a link is no directory");

    // The link itself can be removed; its target stays.
    place.disk.remove(&link).unwrap();
    place.check_victim();
}

/// A FIFO in the place of a manifest made every command wait for ever.
#[test]
fn special_files_are_refused_and_not_waited_for() {
    let place = Place::new();
    let fifo = place.path("store/fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let _anchor = place.disk.anchor(&place.path("store")).unwrap();

    for mode in MODES {
        assert_eq!(found(place.disk.open(&fifo, mode, Access::Buffered)), EntryKind::Other);
    }
    assert_eq!(found(place.disk.lock(&fifo)), EntryKind::Other);
    assert_eq!(place.disk.kind(&fifo).unwrap(), Some(EntryKind::Other));
}

#[test]
fn bytes_under_another_name_survive_a_file_that_is_made_afresh() {
    let place = Place::new();
    let ours = place.path("store/00000001.log");
    fs::hard_link(place.path("victim/file"), &ours).unwrap();
    let _anchor = place.disk.anchor(&place.path("store")).unwrap();
    let file = create_afresh(&*place.disk, &ours, OpenMode::CreateNew, Access::Buffered).unwrap();
    file.write_at(b"log", 0).unwrap();
    assert_eq!(fs::read(&ours).unwrap(), b"log");
    place.check_victim();
}

#[test]
fn a_store_stays_whole_when_its_directory_is_renamed() {
    let place = Place::new();
    let store = place.path("store");
    let _anchor = place.disk.anchor(&store).unwrap();
    fs::rename(&store, place.path("moved")).unwrap();
    symlink(place.path("victim"), &store).unwrap();

    let mode = OpenMode::CreateNew;
    place.disk.open(&store.join("new"), mode, Access::Buffered).unwrap();
    assert!(place.path("moved/new").exists());
    place.check_victim();

    // An anchor taken anew is one of the directory that has the name now.
    let _newer = place.disk.anchor(&store).unwrap();
    assert_eq!(place.disk.list(&store).unwrap()[0].name, "file");
}

#[test]
fn the_directory_that_the_user_names_may_be_a_link_and_of_nested_anchors_the_inner_counts() {
    let place = Place::new();
    symlink(place.path("victim"), place.path("store/volume")).unwrap();
    let inside = place.path("store/volume/file");
    let inner = place.disk.anchor(&place.path("store/volume")).unwrap();
    let _outer = place.disk.anchor(&place.path("store")).unwrap();
    place.disk.open(&inside, OpenMode::Read, Access::Buffered).unwrap();
    drop(inner);
    assert_eq!(found(place.disk.open(&inside, OpenMode::Read, Access::Buffered)), EntryKind::Link);
}

#[test]
fn files_with_secrets_are_for_their_owner_and_modes_can_be_chosen() {
    let place = Place::new();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let secret = place.path("store/metadata");
    replace_file_as(&*place.disk, &secret, b"salt", OpenMode::CreatePrivate).unwrap();
    assert_eq!(mode(&secret), 0o600);

    assert_eq!(FileModes::of_files(0o640), FileModes { file: 0o640, private: 0o600, dir: 0o750 });
    let modes = FileModes { file: 0o640, private: 0o400, dir: 0o700 };
    let disk = RealDisk::new(RealOptions::default().modes(modes)).unwrap();
    let file = place.path("store/file");
    let dir = place.path("store/dir");
    disk.open(&file, OpenMode::CreateNew, Access::Direct).unwrap();
    disk.create_dir(&dir).unwrap();
    replace_file_as(&*disk, &secret, b"salt", OpenMode::CreatePrivate).unwrap();
    assert_eq!((mode(&file) & !0o640, mode(&dir) & !0o700, mode(&secret)), (0, 0, 0o400));
    assert_eq!(fs::metadata(&file).unwrap().nlink(), 1);
}

#[test]
fn a_relative_path_is_made_one_from_the_root_on() {
    let disk = RealDisk::auto();
    let absolute = disk.absolute(Path::new("some/store")).unwrap();
    assert!(absolute.is_absolute() && absolute.ends_with("some/store"));
    assert_eq!(disk.absolute(&absolute).unwrap(), absolute);
}
