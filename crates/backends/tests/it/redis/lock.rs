//! One process writes at a time. A second opening in the same process is as much of a stranger as
//! another process.

use std::time::Duration;

use terrane_backends::redis::Redis;
use terrane_kv::{Database, Error, Table};

use super::{Running, get, keys, put, read, start};

#[expect(clippy::needless_pass_by_value, reason = "calls read better")]
fn is_locked<T>(outcome: Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Locked { .. }))
}

#[test]
fn a_second_opening_is_refused_until_the_first_is_closed() {
    let Some(running) = start(&[]) else { return };
    let first = running.open();
    put(&first, "key", b"1").unwrap();
    let refused = Redis::open(running.options()).unwrap_err();
    let process = format!("process-{}", std::process::id());
    assert!(refused.to_string().contains(&process), "{refused}");
    assert!(is_locked(Redis::open(running.options())));
    first.close().unwrap();
    let second = running.open();
    assert_eq!(read(&second, "key").unwrap().unwrap(), b"1");
    assert!(is_locked(Redis::open(running.options())));
    assert!(Redis::open(running.options().prefix("another")).is_ok());
    let reader = second.reader().unwrap();
    drop(second);
    assert!(is_locked(Redis::open(running.options())), "a reader keeps the store open");
    assert_eq!(get(&*reader, "key").unwrap().unwrap(), b"1");
    drop(reader);

    running.open();
}

/// Opens with a lease so short that it has run out when this returns.
fn open_and_let_run_out(running: &Running) -> Redis {
    let database = Redis::open(running.options().lease(Duration::from_millis(1))).unwrap();
    put(&database, "key", b"1").unwrap();
    while format!("{:?}", running.server.command(&["EXISTS", "{terrane}:lock"]).unwrap())
        != "int(0)"
    {}
    database
}

#[test]
fn a_lease_that_ran_out_is_renewed_while_nobody_took_the_lock() {
    let Some(running) = start(&[]) else { return };
    let database = open_and_let_run_out(&running);
    assert_eq!(read(&database, "key").unwrap().unwrap(), b"1");
    put(&database, "key", b"2").unwrap();
    database.renew().unwrap();
    assert_eq!(read(&database, "key").unwrap().unwrap(), b"2");
}

#[test]
fn who_lost_the_lock_changes_nothing_any_more() {
    let Some(running) = start(&[]) else { return };
    let first = open_and_let_run_out(&running);
    let reader = first.reader().unwrap();
    let mut writer = first.writer().unwrap();
    writer.overwrite(Table::Main, b"key", b"2").unwrap();

    while format!("{:?}", running.server.command(&["EXISTS", "{terrane}:lock"]).unwrap())
        != "int(0)"
    {}
    let second = running.open();
    assert!(is_locked(writer.commit()));
    assert_eq!(read(&second, "key").unwrap().unwrap(), b"1");
    put(&second, "key", b"3").unwrap();
    assert!(is_locked(get(&*reader, "key")), "its snapshot is not protected any more");
    assert!(is_locked(put(&first, "key", b"4")));
    assert!(is_locked(first.renew()));
    first.close().unwrap();
    assert!(is_locked(Redis::open(running.options())), "the lock is the second's");

    assert_eq!(read(&second, "key").unwrap().unwrap(), b"3");
}

#[test]
fn reading_only_goes_beside_a_writer_and_never_mixes_commits() {
    let Some(running) = start(&[]) else { return };
    let options = running.options().read_only();
    assert!(matches!(Redis::open(options.clone()), Err(Error::BackEnd { .. })), "no store yet");
    let writer = running.open();
    put(&writer, "a", b"1").unwrap();
    put(&writer, "b", b"1").unwrap();
    let beside = Redis::open(options).unwrap();
    assert!(matches!(beside.writer(), Err(Error::ReadOnly { .. })));
    assert!(matches!(beside.renew(), Err(Error::ReadOnly { .. })));
    let reader = beside.reader().unwrap();
    assert_eq!(get(&*reader, "a").unwrap().unwrap(), b"1");
    assert_eq!(keys(&*reader).unwrap(), [b"a", b"b"]);
    assert_eq!(reader.count(Table::Main).unwrap(), 2);
    put(&writer, "a", b"2").unwrap();
    assert!(matches!(get(&*reader, "b"), Err(Error::Busy { .. })));
    assert!(matches!(keys(&*reader), Err(Error::Busy { .. })));
    assert!(matches!(reader.count(Table::Main), Err(Error::Busy { .. })));
    assert_eq!(read(&beside, "a").unwrap().unwrap(), b"2", "a new snapshot");
    beside.close().unwrap();

    assert!(is_locked(Redis::open(running.options())), "the lock is the writer's");
}
