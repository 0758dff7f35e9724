//! Writer processes: the role in which a test starts itself, told by variables of the environment,
//! and what the test expects of the store afterwards.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_io::{Disk, RealDisk};
use terrane_testkit::process::say;

use crate::stores::{Kind, Opened, Result};

/// Names the kind of store in a writer.
const KIND: &str = "TERRANE_WRITER_KIND";

/// Names the store in a writer.
const DIR: &str = "TERRANE_WRITER_DIR";

/// Draws the options and the works of a writer.
const SETTINGS: &str = "TERRANE_WRITER_SETTINGS";

/// Store of a writer, and its draws.
#[derive(Debug)]
pub(crate) struct Role {
    pub(crate) kind: Kind,
    pub(crate) dir: PathBuf,
    pub(crate) settings: u64,
}

impl Role {
    /// The role of this process, if it is a writer.
    pub(crate) fn of_this_process() -> Option<Self> {
        let kind = Kind::named(&env::var(KIND).ok()?).unwrap();
        let settings = env::var(SETTINGS).unwrap().parse().unwrap();
        Some(Self { kind, dir: env::var_os(DIR).unwrap().into(), settings })
    }
}

/// Variables of a writer, whose draws are `settings` in digits.
pub(crate) fn variables<'a>(
    kind: Kind,
    dir: &'a Path,
    settings: &'a str,
) -> [(&'static str, &'a OsStr); 3] {
    [(KIND, kind.name().as_ref()), (DIR, dir.as_os_str()), (SETTINGS, settings.as_ref())]
}

pub(crate) fn disk() -> Arc<dyn Disk> {
    RealDisk::auto()
}

/// Makes a store of each kind in a folder; returns them with the numbers of their last commits.
pub(crate) fn create_all(folder: &Path) -> [(Kind, PathBuf, u64); 8] {
    Kind::ALL.map(|kind| {
        let dir = folder.join(kind.name());
        kind.create(&disk(), &dir).unwrap();
        (kind, dir, 0)
    })
}

/// Opens a store and reads all of it; returns the number of its last commit, too.
pub(crate) fn open(kind: Kind, dir: &Path, settings: u64) -> Result<(Box<dyn Opened>, u64)> {
    let store = kind.open(&disk(), dir, settings)?;
    let last = store.check()?;
    Ok((store, last))
}

/// Commits until an error, or so many times; then reads, and closes the store or drops it. Tells of
/// each durable commit. `may_refuse` says whether reads may fail.
pub(crate) fn write(role: &Role, commits_max: u64, may_refuse: bool) {
    let &Role { kind, ref dir, settings } = role;
    // Where the process lacks something, the opening may be refused.
    let Ok((mut store, mut durable)) = open(kind, dir, settings) else { return };
    say(&format!("durable {durable}"));

    let first = durable + 1;
    for number in first..first + commits_max {
        let draw = settings.wrapping_add(number);
        let mut work = || {
            store.commit(number)?;
            say(&format!("durable {number}"));
            durable = number;
            if draw.is_multiple_of(7) { store.maintain(draw / 7) } else { Ok(()) }
        };
        if work().is_err() {
            break;
        }
    }

    // What was there stays readable. Only a retained version of tables may need room: its log is
    // applied to a memtable, which may have to be written out.
    match store.check() {
        Ok(last) => assert_last(durable, last),
        Err(error) => assert!(may_refuse || kind == Kind::Lsm, "{}: {error}", kind.name()),
    }
    if settings.is_multiple_of(2) {
        // The end of the process is as good.
        let _ = store.close();
    }
}

/// Asserts that the last commit is the last durable one, or the one that was in progress.
pub(crate) fn assert_last(durable: u64, last: u64) {
    assert!((durable..=durable + 1).contains(&last), "{durable} was durable, {last} is last");
}

/// Opens a store that lacks nothing any more and makes one more commit; returns its number.
pub(crate) fn recover(kind: Kind, dir: &Path, settings: u64, durable: u64) -> u64 {
    let (mut store, last) = open(kind, dir, settings).unwrap();
    assert_last(durable, last);
    store.commit(last + 1).unwrap();
    store.maintain(settings).unwrap();
    store.close().unwrap();
    kind.verify(&disk(), dir).unwrap();
    last + 1
}
