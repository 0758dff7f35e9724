//! Recipe: eight threads that commit durably, and share their fsyncs.

#![forbid(unsafe_code)]
#![expect(clippy::big_endian_bytes, reason = "big-endian numbers sort as keys do")]

use std::error::Error;
use std::path::Path;
use std::thread;

use terrane::lsm::{NamedTable, Store, StoreOptions, TableConfig};

const THREADS: u64 = 8;
const COMMITS: u64 = 50;

/// Commits events one by one; each is durable before the next begins.
fn work(events: &NamedTable, thread: u64) -> Result<(), terrane::lsm::Error> {
    for number in 0..COMMITS {
        let key = [thread.to_be_bytes(), number.to_be_bytes()].concat();
        let ticket = events.insert(&key, b"paid")?;
        // Threads that wait at the same time share one fsync.
        ticket.wait()?;
    }
    Ok(())
}

fn run(dir: &Path) -> Result<(), Box<dyn Error>> {
    let store = Store::open_dir(dir.join("events"), &StoreOptions::default().create_dir())?;
    let events = store.create_table("events", &TableConfig::default())?;

    thread::scope(|scope| {
        // A handle is cheap to clone and may be shared between threads.
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let events = &events;
                    move || work(events, thread)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread panicked"))
    })?;

    // Nothing is lost without a `close`, either: the next opening reads the log.
    assert_eq!(store.durable_commit(), THREADS * COMMITS);
    assert_eq!(events.view()?.count_exact()?, THREADS * COMMITS);
    println!("{} durable commits by {THREADS} threads", THREADS * COMMITS);
    Ok(store.close()?)
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let place = tempfile::tempdir()?;
    run(place.path())
}
