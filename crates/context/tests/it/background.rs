//! Collections on a thread of their own: started, skipped, waited for, cancelled, ended by `close`.
//!
//! The callback `pace` waits for messages of the test, so that each state is reached for sure.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use terrane_context::{
    Error, GcPace, GcPhase, GcProgress, Hash, Meta, Options, Retain, StartedCollection, Store,
};
use terrane_io::{Disk, MemoryDisk};

use crate::script::{create, go, open, options};

/// A chain of commits, oldest first.
fn chain(store: &Store, count: usize) -> Vec<Hash> {
    let mut commits = Vec::new();
    let mut context = store.empty();
    for number in 0..count {
        context.add(&["data", &number.to_string()], vec![number as u8; 100]).unwrap();
        let date = i64::try_from(number).unwrap();
        commits.push(store.commit(&context, &Meta::tezos(date, "")).unwrap());
        context.advance(commits[number]);
    }
    commits
}

fn new_store(options: &Options) -> (Arc<dyn Disk>, Arc<Store>, Vec<Hash>) {
    let disk: Arc<dyn Disk> = MemoryDisk::new();
    let store = Arc::new(create(&disk, options).unwrap());
    let commits = chain(&store, 40);
    (disk, store, commits)
}

/// Gate that a collection passes at its first piece of work.
struct Gate {
    reached: Receiver<GcPhase>,
    go_on: Sender<()>,
}

fn gated() -> (Gate, impl FnMut(&GcProgress) -> GcPace + Send) {
    let (reach, reached) = channel();
    let (go_on, may_go_on) = channel::<()>();
    let mut is_first = true;
    let pace = move |progress: &GcProgress| {
        if std::mem::take(&mut is_first) {
            reach.send(progress.phase).unwrap();
            may_go_on.recv().unwrap();
        }
        GcPace::Go
    };
    (Gate { reached, go_on }, pace)
}

#[test]
fn a_started_collection_runs_beside_commits_and_a_second_start_is_skipped() {
    let (disk, store, commits) = new_store(&options());
    assert_eq!(store.latest_collection_target().unwrap(), None);
    let (gate, pace) = gated();
    let handle = store.start_collection(Retain::since(commits[30]), pace).unwrap().started();
    let handle = handle.unwrap();
    assert_eq!(gate.reached.recv().unwrap(), GcPhase::Mark);

    // The thread of the caller goes on, and no other collection begins.
    assert!(!handle.is_finished());
    let again = store.start_collection(Retain::newest(1), go).unwrap();
    assert!(matches!(again, StartedCollection::AlreadyRunning));
    assert!(matches!(store.collect(&Retain::newest(1), &mut go), Err(Error::GcRunning)));
    let mut context = store.checkout(&commits[39]).unwrap().unwrap();
    context.add(&["data", "new"], *b"new").unwrap();
    let new = store.commit(&context, &Meta::tezos(99, "")).unwrap();

    gate.go_on.send(()).unwrap();
    let report = handle.wait().unwrap();
    assert_eq!((report.kept, report.collected), (10, 30));
    let kept = |hash: &Hash| store.exists(hash).unwrap();
    assert!(!kept(&commits[29]) && kept(&commits[30]) && kept(&new));
    assert_eq!(store.latest_collection_target().unwrap(), Some(commits[30]));

    // The result is seen behind the release of the lock, so the next start is never skipped.
    for newest in [9, 8, 7] {
        let handle = store.start_collection(Retain::newest(newest), go).unwrap().started();
        handle.expect("none runs").wait().unwrap();
    }
    let target = Some(commits[34]);
    assert_eq!(store.latest_collection_target().unwrap(), target);
    store.close().unwrap();
    drop(store);
    let store = Arc::new(open(&disk, &options()).unwrap());
    assert_eq!(store.latest_collection_target().unwrap(), target);
    let missing = store.start_collection(Retain::since(commits[0]), go).unwrap().started().unwrap();
    assert!(matches!(missing.wait(), Err(Error::UnknownCommit { .. })));

    // A collection that failed is not the latest.
    assert_eq!(store.latest_collection_target().unwrap(), target);
}

#[test]
fn cancelling_leaves_all_commits() {
    let (_, store, commits) = new_store(&options());
    let (gate, pace) = gated();
    let handle = store.start_collection(Retain::newest(1), pace).unwrap().started().unwrap();
    gate.reached.recv().unwrap();
    handle.cancel();
    gate.go_on.send(()).unwrap();
    assert!(matches!(handle.wait(), Err(Error::GcCancelled)));
    assert!(commits.iter().all(|hash| store.exists(hash).unwrap()));
    assert_eq!(store.latest_collection_target().unwrap(), None);

    // The next collection does all of it.
    let handle = store.start_collection(Retain::newest(1), go).unwrap().started().unwrap();
    assert_eq!(handle.wait().unwrap().collected, 39);
}

#[test]
fn closing_ends_a_collection_and_joins_its_thread() {
    let (disk, store, commits) = new_store(&options());
    let (gate, pace) = gated();
    // The phase of the last piece of work, which only the thread and this test have.
    let phase = Arc::new(Mutex::new(GcPhase::Mark));
    let of_thread = Arc::clone(&phase);
    let mut pace = pace;
    let pace = move |progress: &GcProgress| {
        *of_thread.lock().unwrap() = progress.phase;
        pace(progress)
    };
    let handle = store.start_collection(Retain::newest(1), pace).unwrap().started().unwrap();
    gate.reached.recv().unwrap();

    // `close` waits for the collection, which waits at the gate: another thread opens it.
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| store.close());
        gate.go_on.send(()).unwrap();
        closing.join().unwrap().unwrap();
    });
    assert!(handle.is_finished());
    assert_eq!(Arc::strong_count(&phase), 1, "the thread is gone, and what it had");
    assert!(matches!(store.start_collection(Retain::newest(1), go), Err(Error::Closed)));

    // It was cancelled, or was done before: all commits, or the newest one. Cancelled in its second
    // phase it leaves garbage behind, and the other commits are gone.
    let result = handle.wait();
    drop(store);
    let store = Store::open(disk, Path::new(crate::script::DIR), &options()).unwrap();
    match result {
        Err(Error::GcCancelled) => {
            let (newest, others) = commits.split_last().unwrap();
            assert!(store.exists(newest).unwrap());
            let is_whole = store.exists(&others[0]).unwrap();
            assert!(is_whole || *phase.lock().unwrap() == GcPhase::Reclaim);
            assert!(others.iter().all(|hash| store.exists(hash).unwrap() == is_whole));
        }
        other => assert_eq!(other.unwrap().kept, 1),
    }
}

#[test]
#[should_panic(expected = "the thread of the collection panicked")]
fn a_panic_of_the_callback_reaches_the_caller_that_waits() {
    let (_, store, _) = new_store(&options());
    let pace = |_: &GcProgress| -> GcPace { panic!("a callback that panics") };
    let handle = store.start_collection(Retain::newest(1), pace).unwrap().started().unwrap();
    let _ = handle.wait();
}
