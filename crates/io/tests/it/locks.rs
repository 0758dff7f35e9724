//! Locks between processes.
//!
//! Goal: a second process is refused and told who holds the lock; a killed process leaves nothing
//! behind. Method: this test binary starts itself as the other process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use terrane_io::{Access, Disk, Error, OpenMode, RealDisk, SimDisk};

/// Set in the process that is to hold a lock: the path of the lock file.
const HOLDER: &str = "TERRANE_IO_TEST_LOCK";

/// Does nothing unless started by the test below: then holds a lock until killed.
#[test]
fn holder() {
    let Some(path) = std::env::var_os(HOLDER) else { return };
    let _guard = RealDisk::auto().lock(Path::new(&path)).unwrap();
    println!("\nlocked");
    // Ends with the parent, should that one fail.
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn a_lock_of_another_process_names_it_and_vanishes_when_that_is_killed() {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("lock");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "locks::holder", "--nocapture"])
        .env(HOLDER, &path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    assert!(output.lines().any(|line| line.unwrap() == "locked"), "the child took no lock");

    let disk = RealDisk::auto();
    match disk.lock(&path).unwrap_err() {
        Error::Locked { pid, .. } => assert_eq!(pid, Some(child.id())),
        error => panic!("{error}"),
    }

    child.kill().unwrap();
    child.wait().unwrap();
    disk.lock(&path).unwrap();
}

/// The number of the process was written into a file of somebody else.
#[test]
fn a_lock_file_with_several_names_is_refused_and_not_written_to() {
    let temporary = tempfile::tempdir().unwrap();
    let real = RealDisk::auto();
    let sim = SimDisk::new(1);
    let places: [(&dyn Disk, &Path); 2] = [(&*real, temporary.path()), (&*sim, Path::new("/"))];
    for (disk, dir) in places {
        let victim = dir.join("victim");
        let lock = dir.join("lock");
        let file = disk.open(&victim, OpenMode::CreateNew, Access::Buffered).unwrap();
        file.write_at(b"twenty precious bytes", 0).unwrap();
        disk.hard_link(&victim, &lock).unwrap();
        let refused = disk.lock(&lock).map(drop).unwrap_err();
        assert!(matches!(refused, Error::SeveralNames { .. }), "{refused}");
        let mut found = [0; 21];
        file.read_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"twenty precious bytes");
        disk.remove(&victim).unwrap();
        disk.lock(&lock).unwrap();
    }
}
