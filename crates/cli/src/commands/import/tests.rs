//! Crashes of an import.
//!
//! Goal: after a crash at any call the table is there whole or not at all, the portions are the
//! first ones of the source, and the import goes on from them. Method: a small import with two
//! portions on a simulated disk, crashed at each call; each image is opened, compared, and imported
//! into again.

use std::ops::Range;
use std::sync::Arc;

use terrane::io::{Disk, SimDisk};
use terrane::lsm::{CheckpointThread, Durability, Error, SessionOptions, StoreOptions};
use terrane_testkit::sweep::{Loss, Sweep};

use super::*;

/// Entries of the source.
const NUMBERS: Range<u8> = 0..5;

/// Entries of a portion.
const PORTION: u64 = 2;

const SOURCE: &str = "numbers";

struct Numbers(Range<u8>);

impl Input for Numbers {
    fn next(&mut self) -> Result<Option<Entry>, Failure> {
        Ok(self.0.next().map(|number| Entry {
            key: vec![number],
            value: vec![number; 300],
            blob: (number % 3 == 0).then(|| vec![number; 5_000]),
        }))
    }

    fn place(&self) -> String {
        SOURCE.to_owned()
    }
}

fn open(disk: &Arc<SimDisk>) -> Result<Store, Failure> {
    let session = SessionOptions::with_salt(1).create_dir();
    let options = StoreOptions::default().session(session).durability(Durability::Each);
    let options = options.log_bytes_max(64 << 10).checkpoint_thread(CheckpointThread::Caller);
    Ok(Store::open(Arc::clone(disk) as Arc<dyn Disk>, Path::new("/store"), &options)?)
}

fn all_entries<'a>(store: &'a Store, table: &Table) -> Result<Entries<'a>, Failure> {
    Ok(Entries::Table { session: store.session(), cursor: table.cursor()?, reverse: false })
}

/// Imports, behind the portions that are there; returns how many those were.
fn import(disk: &Arc<SimDisk>) -> Result<usize, Failure> {
    let store = open(disk)?;
    let table = TableName::default();
    let input = Box::new(Numbers(NUMBERS));
    let mut feed = Feed { input, progress: Progress::new(true), last: None, entries: 0, bytes: 0 };

    let mut portions = Vec::new();
    for name in store.session().list_snapshots()? {
        let label = store.session().snapshot_info(&name)?.label;
        assert_eq!(name, portion_name(&table, portions.len())?, "the portions are the first ones");
        let saved = store.session().open_snapshot(&name, &label)?;
        assert!(feed.skip(&mut all_entries(&store, &saved)?)?, "{name} is of the source");
        portions.push(Portion { name, label });
    }

    let found = portions.len();
    let first = feed.batch(PORTION)?;
    let portions = &mut portions;
    let mut run = Run { store, feed: &mut feed, table: &table, source: SOURCE, portions };
    let tail = run.load(first, PORTION)?;
    let whole = run.join(tail)?;
    run.install(&whole, false)?;
    run.store.close()?;

    Ok(found)
}

/// Says whether the table is there; if so, it is whole.
fn is_imported(disk: &Arc<SimDisk>) -> bool {
    let store = open(disk).unwrap();
    let table = match store.table(&TableName::default()) {
        Err(Error::TableDoesNotExist { .. }) => return false,
        table => table.unwrap().view().unwrap(),
    };

    let found = all_entries(&store, &table).unwrap().take(usize::MAX).unwrap();
    let mut input = Numbers(NUMBERS);
    for (key, stored) in found {
        let entry = input.next().unwrap().unwrap();
        assert_eq!((entry.key, entry.value, entry.blob), (key, stored.value, stored.blob));
    }
    assert!(input.next().unwrap().is_none(), "the table is whole");
    true
}

#[test]
fn a_crash_at_any_call_leaves_the_table_whole_or_portions_to_go_on_behind() {
    let mut resumed = [0_u32; 3];
    let mut whole = 0;
    let images = Sweep::whole(1).crash(import, |crash| {
        crash.images(Loss::each(crash.call), |image| {
            if is_imported(&image.disk) {
                whole += 1;
                return;
            }
            assert!(crash.run.is_err(), "an import that has ended is durable");
            resumed[import(&image.disk).unwrap()] += 1;
            assert!(is_imported(&image.disk));
            assert_eq!(open(&image.disk).unwrap().session().list_snapshots().unwrap(), []);
        })
    });

    assert!(resumed.iter().all(|count| *count > 5), "{resumed:?}");
    assert!(whole > 10 && images > 200, "{whole} of {images} whole");
}
