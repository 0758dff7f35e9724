//! Children of `fork` of a process that has a store open.
//!
//! Goal: a child that leaves the store alone changes nothing, and one that does not is refused. The
//! parent loses neither its lock nor a commit, whatever the child tries and however it ends.
//! Method: the children commit, read, close and drop; then the parent goes on, and the store is
//! verified.

use std::ops::RangeInclusive;
use std::sync::Arc;

use terrane_io::process::in_child;
use terrane_io::{Disk, QueueChoice, RealDisk, RealOptions};

use crate::stores::{Kind, Opened, Result};

/// Disks, since a child must be kept off both kinds of queues.
fn disks() -> [Arc<dyn Disk>; 2] {
    let options = RealOptions::default();
    let threads = options.queue(QueueChoice::Threads).threads(2);
    [RealDisk::auto(), RealDisk::new(threads).unwrap()]
}

#[test]
fn a_child_is_refused_and_takes_nothing_from_its_parent() {
    for kind in Kind::ON_DISK {
        for (settings, disk) in (0..).zip(disks()) {
            child_of(kind, &disk, settings);
        }
    }
}

fn child_of(kind: Kind, disk: &Arc<dyn Disk>, settings: u64) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join(kind.name());
    kind.create(disk, &dir).unwrap();
    let said = folder.path().join("said");
    // In a place that a child can empty: what it drops is a copy of its own.
    let mut place = Some(kind.open(disk, &dir, settings).unwrap());
    commit(&mut place, 1..=12);

    let child = |what: &str, ended: Option<bool>| {
        assert_eq!(ended, Some(true), "{} {settings}: a child that {what}", kind.name());
    };
    child("does nothing", in_child(|| true));
    child("drops the store", in_child(|| place.take().is_some()));
    let goes_on = || {
        let mut store = place.take().unwrap();
        let refused = [store.commit(13), store.check().map(drop), store.close()];
        let is_told = |outcome: &Result<()>| {
            outcome.as_ref().is_err_and(|error| error.contains("before a fork"))
        };
        std::fs::write(&said, format!("{refused:?}")).unwrap();
        // Nor may the child open the store beside its parent.
        let other: Arc<dyn Disk> = RealDisk::auto();
        refused.iter().all(is_told) && kind.open(&other, &dir, 0).is_err()
    };
    let ended = in_child(goes_on);
    let said = std::fs::read_to_string(&said).unwrap();
    child(&format!("goes on and gets {said}"), ended);

    commit(&mut place, 13..=24);
    let other: Arc<dyn Disk> = RealDisk::auto();
    assert!(kind.open(&other, &dir, 0).is_err(), "{}: the lock is lost", kind.name());
    let store = place.take().unwrap();
    assert_eq!(store.check(), Ok(24));
    store.close().unwrap();

    kind.verify(&other, &dir).unwrap();
    let store = kind.open(&other, &dir, 0).unwrap();
    assert_eq!(store.check(), Ok(24));
    store.close().unwrap();
}

fn commit(place: &mut Option<Box<dyn Opened>>, numbers: RangeInclusive<u64>) {
    let store = place.as_mut().unwrap();
    numbers.for_each(|number| store.commit(number).unwrap());
}
