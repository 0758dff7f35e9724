//! The disks in memory, simulated or plain, against the real one.
//!
//! Goal: whatever is tested on a disk in memory holds on the real one. Method: the same random
//! operations on both; after each the answers agree, down to the kind of an error, and at the end
//! of each run all names and bytes. Seeds are printed on failure.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::checksum::crc32c;
use terrane_io::files::read_file;
use terrane_io::{
    Access, Disk, DiskFile, EntryKind, Error, MemoryDisk, OpenMode, RealDisk, Result, SimDisk,
};

/// Names that the operations choose from: few, so that they meet.
const NAMES: [&str; 9] = ["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "c/a"];

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }
}

/// A disk, where on it the run takes place, and the files that the run has open.
struct Side {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    open: Vec<Arc<dyn DiskFile>>,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Open(&'static str, OpenMode, Access),
    Close(usize),
    Write(usize, u64, usize),
    Read(usize, u64, usize),
    SetLen(usize, u64),
    Len(usize),
    Sync(usize),
    CreateDir(&'static str),
    RemoveDir(&'static str),
    Remove(&'static str),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
    List(&'static str),
    Kind(&'static str),
    SyncDir(&'static str),
}

fn draw(random: &mut Random) -> Op {
    let name = random.one_of(&NAMES);
    let other = random.one_of(&NAMES);
    let file = usize::try_from(random.below(4)).unwrap();
    let offset = random.one_of(&[0, 1, 100, 4096, 8192, 10_000]);
    let len = random.one_of(&[0, 1, 511, 4096, 5000, 8192]);
    let modes = [OpenMode::Read, OpenMode::ReadWrite, OpenMode::CreateNew, OpenMode::Truncate];
    match random.below(24) {
        0..5 => Op::Open(
            name,
            random.one_of(&modes),
            random.one_of(&[Access::Buffered, Access::Direct]),
        ),
        5 => Op::Close(file),
        6..9 => Op::Write(file, offset, len),
        9..12 => Op::Read(file, offset, len),
        12 => Op::SetLen(file, offset),
        13 => Op::Len(file),
        14 => Op::Sync(file),
        15..17 => Op::CreateDir(name),
        17 => Op::RemoveDir(name),
        18 => Op::Remove(name),
        19..21 => Op::Rename(name, other),
        21 => Op::Link(name, other),
        22 => random.one_of(&[Op::List(name), Op::Kind(name)]),
        _ => Op::SyncDir(name),
    }
}

/// The part of an answer that both sides must agree on.
fn gist<T: Debug>(answer: Result<T>) -> String {
    match answer {
        Ok(value) => format!("{value:?}"),
        Err(Error::Io { source, .. }) => format!("{:?}", source.kind()),
        Err(Error::ShortRead { offset, expected, found, .. }) => {
            format!("short read at {offset}: {found} of {expected}")
        }
        Err(error) => error.to_string(),
    }
}

impl Side {
    fn new(disk: Arc<dyn Disk>, dir: &Path) -> Self {
        Self { disk, dir: dir.to_owned(), open: Vec::new() }
    }

    fn apply(&mut self, op: Op, step: u8) -> String {
        let at = |name| self.dir.join(name);
        let on = |index: usize, act: &dyn Fn(&dyn DiskFile) -> String| {
            self.open.get(index).map_or(String::new(), |file| act(&**file))
        };

        match op {
            Op::Open(name, mode, access) => {
                let path = at(name);
                // The real disk opens directories for reading, which is of no use to anybody.
                if self.disk.kind(&path).unwrap() == Some(EntryKind::Directory) {
                    return String::new();
                }
                let opened = self.disk.open(&path, mode, access);
                if let Ok(file) = &opened {
                    self.open.insert(0, Arc::clone(file));
                    self.open.truncate(4);
                }
                gist(opened.map(|_| ()))
            }
            Op::Close(index) => {
                if index < self.open.len() {
                    self.open.remove(index);
                }
                String::new()
            }
            Op::Write(index, offset, len) => {
                let bytes: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0] ^ step).collect();
                on(index, &|file| gist(file.write_at(&bytes, offset)))
            }
            Op::Read(index, offset, len) => on(index, &|file| {
                let mut buffer = vec![0; len];
                let read = file.read_at(&mut buffer, offset);
                gist(read.map(|()| crc32c(&buffer)))
            }),
            Op::SetLen(index, len) => on(index, &|file| gist(file.set_len(len))),
            Op::Len(index) => on(index, &|file| gist(file.len())),
            Op::Sync(index) => on(index, &|file| gist(file.sync())),
            Op::CreateDir(name) => gist(self.disk.create_dir(&at(name))),
            Op::RemoveDir(name) => gist(self.disk.remove_dir(&at(name))),
            Op::Remove(name) => gist(self.disk.remove(&at(name))),
            Op::Rename(from, to) => gist(self.disk.rename(&at(from), &at(to))),
            Op::Link(from, to) => gist(self.disk.hard_link(&at(from), &at(to))),
            Op::List(name) => gist(self.disk.list(&at(name))),
            Op::Kind(name) => gist(self.disk.kind(&at(name))),
            // Files can be synced by this call on the real disk, which nobody relies on.
            Op::SyncDir(name) => match self.disk.kind(&at(name)).unwrap() {
                Some(EntryKind::File) => String::new(),
                _ => gist(self.disk.sync_dir(&at(name))),
            },
        }
    }

    /// All names below the directory, with the bytes of files.
    fn content(&self) -> Vec<(String, Option<Vec<u8>>)> {
        let mut content = Vec::new();
        let mut todo = vec![String::new()];
        while let Some(dir) = todo.pop() {
            for entry in self.disk.list(&self.dir.join(&dir)).unwrap() {
                let name = format!("{dir}{}", entry.name);
                if entry.kind == EntryKind::Directory {
                    todo.push(format!("{name}/"));
                    content.push((name, None));
                } else {
                    let bytes = read_file(&*self.disk, &self.dir.join(&name), 1 << 20).unwrap();
                    content.push((name, Some(bytes)));
                }
            }
        }

        content
    }
}

#[test]
fn the_simulated_disk_answers_as_the_real_one() {
    answers_as_the_real_one(&|seed| SimDisk::new(seed));
}

#[test]
fn the_disk_in_memory_answers_as_the_real_one() {
    answers_as_the_real_one(&|_| MemoryDisk::new());
}

fn answers_as_the_real_one(new_disk: &dyn Fn(u64) -> Arc<dyn Disk>) {
    let mut successes = 0;
    let mut failures = 0;
    for seed in 0..40 {
        let temporary = tempfile::tempdir().unwrap();
        let mut real = Side::new(RealDisk::auto(), temporary.path());
        let mut other = Side::new(new_disk(seed), Path::new("/"));
        let mut random = Random(seed);
        let mut history = Vec::new();
        for step in 0..200 {
            let op = draw(&mut random);
            history.push(op);
            let expected = real.apply(op, step);
            let found = other.apply(op, step);
            assert_eq!(found, expected, "seed {seed}, step {step}, after {history:?}");
            if expected.contains(|first: char| first.is_ascii_uppercase()) {
                failures += 1;
            } else {
                successes += 1;
            }
        }
        assert_eq!(other.content(), real.content(), "seed {seed}");
    }

    assert!(successes > 1000 && failures > 1000, "{successes} and {failures}");
}
