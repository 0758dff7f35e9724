//! Lookup batches: results submitted now and taken later.
//!
//! Goal: a batch answers from the table as of its submission, however many batches are in flight,
//! whatever happens to the table meanwhile, and in whatever order and way the results are taken;
//! an error belongs to the batch that met it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use terrane_io::{Disk, SimDisk};
use terrane_io::{FaultKind, FaultPlan, Repeat};
use terrane_lsm::{
    DiskCache, Error, Lookup, MergeOperator, PendingLookups, SUBMITTED_MAX, Session,
    SessionOptions, Table, TableConfig, Update, WriteBuffer,
};
use terrane_testkit::draw::Draw;
use terrane_testkit::seeds::for_each_seed;

use crate::{FEW_OPEN_FILES, SALT, SessionDir};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn config() -> TableConfig {
    TableConfig::default()
        .write_buffer(WriteBuffer::Entries(20))
        .merge_operator(MergeOperator::concatenate())
        .disk_cache(DiskCache::None)
}

fn key(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn check(keys: &[Vec<u8>], found: &[Lookup], model: &Model) {
    assert_eq!(keys.len(), found.len());
    for (key, found) in keys.iter().zip(found) {
        assert_eq!(found.value(), model.get(key).map(Vec::as_slice), "{key:?}");
    }
}

/// Unparks the thread that awaits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest of all runtimes.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_batch_gives_what_the_table_held_when_it_was_submitted() {
    for place in SessionDir::both() {
        let session = place.open();
        for_each_seed("submit", 2, |rng, _| {
            let mut table = session.new_table(&config()).unwrap();
            let mut model = Model::new();
            let mut pending: Vec<(Vec<Vec<u8>>, Model, PendingLookups)> = Vec::new();
            for step in 0..400_u64 {
                let key_at = key(rng.below(300));
                let value = step.to_le_bytes();
                if rng.chance(1, 5) {
                    table.delete(&key_at).unwrap();
                    model.remove(&key_at);
                } else if rng.chance(1, 4) {
                    table.upsert(&key_at, &value).unwrap();
                    model.entry(key_at).or_default().extend(value);
                } else {
                    table.insert(&key_at, &value).unwrap();
                    model.insert(key_at, value.to_vec());
                }
                if rng.chance(1, 3) {
                    let len = rng.index(60);
                    let keys: Vec<_> = (0..len).map(|_| key(rng.below(350))).collect();
                    let submitted = table.submit(&keys).unwrap();
                    pending.push((keys, model.clone(), submitted));
                }
                if pending.len() > 40 || rng.chance(1, 10) {
                    while !pending.is_empty() && !rng.chance(1, 4) {
                        let at = rng.index(pending.len());
                        let (keys, model, submitted) = pending.swap_remove(at);
                        match rng.index(3) {
                            0 => check(&keys, &submitted.wait().unwrap(), &model),
                            1 => check(&keys, &block_on(submitted).unwrap(), &model),
                            // Given up.
                            _ => drop(submitted),
                        }
                    }
                }
            }
            let lookups = table.stats().lookups;
            drop(table);
            for (keys, model, submitted) in pending {
                check(&keys, &submitted.wait().unwrap(), &model);
            }
            assert!(lookups > 0);
        });

        session.close().unwrap();
    }
}

#[test]
fn several_threads_submit_on_one_table_and_others_take_the_results() {
    let place = SessionDir::real();
    let session = place.open();

    let mut table = session.new_table(&config()).unwrap();
    let mut model = Model::new();
    for number in 0..2_000 {
        table.insert(&key(number), &key(!number)).unwrap();
        model.insert(key(number), key(!number));
    }

    let (sender, receiver) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let sender = sender.clone();
            let table = &table;
            scope.spawn(move || {
                for batch in 0..100 {
                    let first = (thread * 100 + batch) * 5;
                    let keys: Vec<_> = (first..first + 32).map(key).collect();
                    let submitted = table.submit(&keys).unwrap();
                    sender.send((keys, submitted)).unwrap();
                }
            });
        }
        drop(sender);
        let mut count = 0;
        for (keys, submitted) in receiver {
            check(&keys, &submitted.wait().unwrap(), &model);
            count += 1;
        }
        assert_eq!(count, 400);
    });

    assert_eq!(table.stats().lookups, 400 * 32);
    drop(table);
    session.close().unwrap();
}

fn simulated(disk: &Arc<SimDisk>) -> Session {
    let options = SessionOptions::with_salt(SALT).create_dir().open_files_max(FEW_OPEN_FILES);
    Session::open(Arc::clone(disk) as Arc<dyn Disk>, "/session".as_ref(), &options).unwrap()
}

fn filled(session: &Session) -> Table {
    let mut table = session.new_table(&config()).unwrap();
    let entries: Vec<_> = (0..500).map(|number| (key(number), key(!number))).collect();
    let batch: Vec<_> = entries.iter().map(|(key, value)| (key, Update::Insert(value))).collect();
    table.write_batch(&batch).unwrap();
    table
}

#[test]
fn a_failed_read_is_told_by_the_batch_that_needed_it() {
    let disk = SimDisk::new(1);
    let session = simulated(&disk);
    let table = filled(&session);
    let keys: Vec<_> = (0..50).map(key).collect();
    let at_call = disk.calls() + 1;
    disk.set_plan(FaultPlan::fail(at_call, FaultKind::Eio, Repeat::Forever));
    let failing = table.submit(&keys).unwrap();

    // Memory alone answers these.
    let in_memory = table.submit(&[key(499)]).unwrap();
    assert!(in_memory.is_ready());
    assert!(in_memory.wait().unwrap()[0].is_found());
    assert!(matches!(failing.wait(), Err(Error::Disk(_))));
    disk.set_plan(FaultPlan::default());
    let found = table.submit(&keys).unwrap().wait().unwrap();
    assert!(found.iter().all(Lookup::is_found), "the thread goes on");
    drop(table);
    session.close().unwrap();
}

#[test]
fn more_batches_than_the_limit_are_refused_until_some_are_taken() {
    let disk = SimDisk::new(1);
    let session = simulated(&disk);
    let table = filled(&session);
    let submit = || table.submit(&[key(1)]);
    let mut pending: Vec<_> = (0..SUBMITTED_MAX).map(|_| submit().unwrap()).collect();
    assert!(matches!(submit(), Err(Error::TooManyLookups { limit: SUBMITTED_MAX })));
    assert!(pending.pop().unwrap().wait().unwrap()[0].is_found());

    // Taken, the batch is over as soon as the thread has let go of it.
    pending.push(loop {
        match submit() {
            Ok(submitted) => break submitted,
            Err(error) => assert!(matches!(error, Error::TooManyLookups { .. })),
        }
        thread::yield_now();
    });

    // Closing ends what is under way; the results are there all the same.
    session.close().unwrap();
    assert!(matches!(submit(), Err(Error::SessionClosed)));
    for submitted in pending {
        assert!(submitted.wait().unwrap()[0].is_found());
    }
}

/// A key whose bytes come when the session has just been closed.
struct Closing<'a>(&'a Session, Vec<u8>);

impl AsRef<[u8]> for Closing<'_> {
    fn as_ref(&self) -> &[u8] {
        self.0.close().unwrap();
        &self.1
    }
}

/// The session is closed while a batch is on its way to the thread: no other thread is started for
/// it.
#[test]
fn a_batch_that_comes_after_the_end_of_the_thread_is_refused() {
    for is_started in [false, true] {
        let disk = SimDisk::new(1);
        let session = simulated(&disk);
        let table = filled(&session);
        if is_started {
            assert!(table.submit(&[key(1)]).unwrap().wait().unwrap()[0].is_found());
        }
        let calls = disk.calls();
        let refused = table.submit(&[Closing(&session, key(1))]);
        assert!(matches!(refused, Err(Error::SessionClosed)), "{refused:?}");
        drop(table);
        assert_eq!(disk.counts().queued, u64::from(is_started), "{} calls", disk.calls() - calls);
    }
}
