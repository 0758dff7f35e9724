//! Stores that an earlier version has written, one of each kind: formats do not change unnoticed.
//!
//! Goal: every later version opens a store of each earlier format as it stands, finds nothing
//! wrong with it, reads all of it, and writes to it. Method: `golden/stores/FORMAT/KIND.gz` under
//! the crate's folder has the files of a store of [`COMMITS`] commits, whose process was killed.
//! The test unpacks, checks, reads, writes and checks again. `TERRANE_GOLDEN=write` writes what the
//! last of [`FORMATS`] lacks, and never another file: a new format gets a folder of its own, and
//! the old one stays for ever.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use terrane_testkit::golden;

use crate::stores::{Kind, content};
use crate::writers::disk;

const FOLDER: &str = "golden/stores";

/// Folders of kept stores, the oldest first; the last one has the formats that are written now.
const FORMATS: [&str; 4] = ["v1", "v2", "v3", "v4"];

/// Commits of a kept store.
const COMMITS: u64 = 24;

/// Bytes of all kept stores at most.
const BYTES_MAX: u64 = 4 << 20;

fn path_of(format: &str, kind: Kind) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    folder.join(format).join(format!("{}.gz", kind.name()))
}

/// Packs a folder: for each directory a line, for each file a line and its bytes.
fn pack(dir: &Path, below: &Path, out: &mut impl Write) {
    let mut entries: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = path.strip_prefix(below).unwrap().to_str().unwrap();
        if path.is_dir() {
            writeln!(out, "0 {name}/").unwrap();
            pack(&path, below, out);
        } else {
            let bytes = fs::read(&path).unwrap();
            writeln!(out, "{} {name}", bytes.len()).unwrap();
            out.write_all(&bytes).unwrap();
        }
    }
}

fn unpack(packed: &Path, dir: &Path) {
    fs::create_dir(dir).unwrap();
    let file = BufReader::new(fs::File::open(packed).unwrap());
    let mut input = BufReader::new(GzDecoder::new(file));
    let mut line = String::new();
    while input.read_line(&mut line).unwrap() > 0 {
        let (len, name) = line.trim_end().split_once(' ').unwrap();
        if name.ends_with('/') {
            fs::create_dir(dir.join(name)).unwrap();
        } else {
            let mut bytes = vec![0; len.parse().unwrap()];
            input.read_exact(&mut bytes).unwrap();
            fs::write(dir.join(name), bytes).unwrap();
        }
        line.clear();
    }
}

/// Makes a store, and packs its files while it is open, as its killed process would leave them.
fn keep(kind: Kind, packed: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join(kind.name());
    kind.create(&disk(), &dir).unwrap();
    let mut store = kind.open(&disk(), &dir, 0).unwrap();
    for number in 1..=COMMITS {
        store.commit(number).unwrap();
        if number.is_multiple_of(5) {
            store.maintain(number / 5).unwrap();
        }
    }

    fs::create_dir_all(packed.parent().unwrap()).unwrap();
    let mut out = GzEncoder::new(fs::File::create_new(packed).unwrap(), Compression::best());
    pack(&dir, &dir, &mut out);
    out.finish().unwrap();
    store.close().unwrap();
}

#[test]
fn stores_of_earlier_versions_are_opened_verified_and_written() {
    let now = FORMATS[FORMATS.len() - 1];
    let mut bytes = 0;
    for (format, kind) in
        FORMATS.into_iter().flat_map(|format| Kind::ALL.map(|kind| (format, kind)))
    {
        let packed = path_of(format, kind);
        if golden::is_writing() && format == now && !packed.exists() {
            keep(kind, &packed);
        }
        bytes += fs::metadata(&packed).unwrap().len();
        open_and_write(kind, &packed);
    }
    assert!(bytes <= BYTES_MAX, "{bytes} bytes of kept stores");
}

/// Opens a kept store, compares its content, writes to it, and compares again.
fn open_and_write(kind: Kind, packed: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join(kind.name());
    unpack(packed, &dir);
    let name = packed.display();
    kind.verify(&disk(), &dir).unwrap_or_else(|error| panic!("{name}: {error}"));

    let mut store = kind.open(&disk(), &dir, 0).unwrap();
    assert_eq!(store.check(), Ok(COMMITS), "{name}");
    assert!(!content(COMMITS).is_empty());
    store.commit(COMMITS + 1).unwrap();
    store.maintain(0).unwrap();
    store.maintain(1).unwrap();
    store.close().unwrap();

    kind.verify(&disk(), &dir).unwrap_or_else(|error| panic!("{name}, written: {error}"));
    let store = kind.open(&disk(), &dir, 1).unwrap();
    assert_eq!(store.check(), Ok(COMMITS + 1), "{name}");
    store.close().unwrap();
}
