//! Radix stores with tampered files, over each back-end that keeps files.
//!
//! Goal: opening, checking or repairing such a store gives the right error or the right data. No
//! call follows a link out of the store, waits for a FIFO, makes a lost database anew, or ends the
//! process.
//!
//! Method: each kind of tampering on a copy of a small store; then every way of opening it; a file
//! outside the store must stay as it is.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use terrane::radix::{Address, Change, Loss, Root};
use terrane::state_dir::{BackEnd, Error, OpenOptions, damage_of_files, database_path, is_store};
use terrane_replay::error::Class;

use crate::radix::with_files;

const MINE: &[u8] = b"a file of the user that no store may touch";

/// A store of one value, beside a file that is none of its own.
struct Scene {
    _place: tempfile::TempDir,
    dir: PathBuf,
    victim: PathBuf,
    root: Root,
}

impl Scene {
    fn new(back_end: BackEnd) -> Self {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("store");
        let victim = place.path().join("victim");
        fs::write(&victim, MINE).unwrap();
        let opening = OpenOptions::default().back_end(back_end);
        let store = opening.open_or_create(&dir).unwrap();
        let tree = store.create_tree("t").unwrap();
        let set = [Change::Set(address(), vec![7; 300])];
        let root = tree.commit(&Root::EMPTY, &set).unwrap().root;
        store.close().unwrap();
        Self { _place: place, dir, victim, root }
    }

    fn name(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Opens, checks and repairs the store; answers how each went.
    fn try_all(&self) -> Vec<Result<(), Error>> {
        let read = |opening: &OpenOptions| -> Result<(), Error> {
            let store = opening.open(&self.dir)?;
            let value = store.tree("t")?.get_one(&self.root, &address())?;
            assert_eq!(value, Some(vec![7; 300]), "data that are not right");
            Ok(store.close()?)
        };

        let reading = OpenOptions::default().is_read_only(true);
        let outcomes = vec![
            read(&reading),
            read(&OpenOptions::default()),
            OpenOptions::default().open_or_create(&self.dir).map(drop),
            OpenOptions::default().repair(&self.dir, Loss::Refused).map(drop),
            damage_of_files(BackEnd::Lmdb, &database_path(&self.dir)).map(drop),
        ];

        assert_eq!(fs::read(&self.victim).unwrap(), MINE, "a file outside of the store");
        outcomes
    }

    /// All calls fail, as damage and not as something that another try may mend.
    fn assert_damaged(&self, what: &str) {
        for (call, outcome) in self.try_all().into_iter().take(4).enumerate() {
            let error = outcome.expect_err(what);
            assert_eq!(Class::from(&error), Class::Check, "{what}, call {call}: {error:?}");
        }
    }
}

fn address() -> Address {
    "00ff".parse().unwrap()
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

fn remove(path: &Path) {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
}

#[test]
fn links_and_special_files_in_the_place_of_files_are_refused() {
    for back_end in with_files() {
        for name in ["radix-store", "radix-store.lock", "database"] {
            let scene = Scene::new(back_end);
            let path = scene.name(name);
            let aside = scene.dir.with_file_name("aside");
            fs::rename(&path, &aside).unwrap();
            for make in [0, 1, 2] {
                match make {
                    0 => symlink(&scene.victim, &path).unwrap(),
                    1 => symlink(&aside, &path).unwrap(),
                    _ => fifo(&path),
                }
                assert!(is_store(&scene.dir).unwrap());
                if name == "radix-store.lock" {
                    // Readers need no lock here.
                    let outcomes = scene.try_all();
                    assert!(
                        outcomes[0].is_ok() && outcomes[1].is_err(),
                        "{back_end}: {outcomes:?}"
                    );
                } else {
                    scene.assert_damaged(&format!("{back_end}: {name} is a link or a FIFO"));
                }
                fs::remove_file(&path).unwrap();
            }
        }
    }
}

#[test]
fn a_lost_or_foreign_database_is_neither_read_nor_made_anew() {
    for back_end in with_files() {
        let scene = Scene::new(back_end);
        let database = database_path(&scene.dir);
        let is_file = database.is_file();
        remove(&database);
        scene.assert_damaged(&format!("{back_end}: no database"));
        assert!(!database.exists(), "{back_end}");

        if is_file {
            fs::write(&database, b"").unwrap();
        } else {
            fs::create_dir(&database).unwrap();
        }
        scene.assert_damaged(&format!("{back_end}: an empty database"));
        remove(&database);

        // The database of another store that was just made.
        let other = tempfile::tempdir().unwrap();
        let other = other.path().join("other");
        let opening = OpenOptions::default().back_end(back_end);
        opening.open_or_create(&other).unwrap().close().unwrap();
        fs::rename(database_path(&other), &database).unwrap();
        let outcomes = scene.try_all();
        assert!(outcomes[..2].iter().all(Result::is_err), "{back_end}: {outcomes:?}");

        if is_file {
            remove(&database);
            fs::write(&database, vec![b'x'; 20_000]).unwrap();
            scene.assert_damaged(&format!("{back_end}: a file of something else"));
        }
    }
}

/// A file that was cut ended the process by SIGBUS where the map went beyond its end.
#[test]
fn a_cut_file_is_an_error_or_has_the_right_data() {
    for back_end in with_files() {
        let scene = Scene::new(back_end);
        let files: Vec<PathBuf> = files_below(&database_path(&scene.dir));
        for file in files {
            let whole = fs::read(&file).unwrap();
            for part in [0, 1, 2, 3, 5, 7] {
                let length = whole.len() * part / 8;
                fs::write(&file, &whole[..length]).unwrap();
                // A repair may have written elsewhere; the test asks only that it ends.
                let reading = OpenOptions::default().is_read_only(true);
                if let Ok(store) = reading.open(&scene.dir) {
                    let Ok(tree) = store.tree("t") else { continue };
                    let Ok(found) = tree.get_one(&scene.root, &address()) else { continue };
                    let name = file.display();
                    assert_eq!(found, Some(vec![7; 300]), "{back_end}: {name} cut to {length}");
                }
            }
            fs::write(&file, &whole).unwrap();
        }
        assert!(scene.try_all()[0].is_ok(), "{back_end}");
    }
}

fn files_below(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.flat_map(|path| files_below(&path)).collect();
    files.sort();
    files
}

/// A reader took the lock of the store exclusively, so no process could read beside a writer.
#[test]
fn a_store_is_read_beside_its_writer() {
    for back_end in with_files() {
        let scene = Scene::new(back_end);
        let writer = OpenOptions::default().open(&scene.dir).unwrap();
        // LMDB is open once in a process; the other back-ends take a second handle for another
        // process.
        if back_end == BackEnd::Lmdb {
            continue;
        }
        let reading = OpenOptions::default().is_read_only(true);
        let reader = reading.open(&scene.dir).unwrap();
        let tree = writer.tree("t").unwrap();
        let set = [Change::Set("aa".parse().unwrap(), b"new".to_vec())];
        let next = tree.commit(&scene.root, &set).unwrap().root;
        let seen = reader.tree("t").unwrap();
        assert_eq!(seen.get_one(&next, &address()).unwrap(), Some(vec![7; 300]), "{back_end}");
        assert_eq!(seen.versions().unwrap().len(), 2);
        assert!(seen.commit(&next, &set).is_err(), "{back_end}");
        assert!(OpenOptions::default().open(&scene.dir).unwrap_err().is_in_use());
        reader.close().unwrap();
        writer.close().unwrap();
    }
}
