//! Connections that break and servers that stop, at the moments where it matters: the outcome that
//! is told is the true one, what was committed stays, and the same handle goes on.

use terrane_backends::redis::server::{Cluster, Server};
use terrane_backends::redis::{Options, Redis};
use terrane_kv::{Database, Durability, Error, Table};
use terrane_testkit::effort::by_effort;

use super::proxy::{Break, Proxy};
use super::{can_run, get, impatient, keys, put, read, start};

/// A store behind a proxy, with `kept` in it.
fn behind(proxy: &Proxy) -> Redis {
    let database = Redis::open(impatient(Options::server(proxy.url()))).unwrap();
    assert_eq!(put(&database, "kept", b"1").unwrap(), 1);
    database
}

#[test]
fn a_commit_whose_answer_was_lost_reports_that_it_took_place() {
    let Some(running) = start(&[]) else { return };
    let proxy = Proxy::new(running.server.port());
    let database = behind(&proxy);
    let before = database.reader().unwrap();
    proxy.break_at("MARK", Break::After);
    assert_eq!(put(&database, "key", b"MARK").unwrap(), 2);
    assert!(proxy.has_broken());
    assert_eq!(read(&database, "key").unwrap().unwrap(), b"MARK");
    assert_eq!(get(&*before, "key").unwrap(), None);
    assert_eq!(put(&database, "key", b"2").unwrap(), 3, "once and not twice");
    assert_eq!(database.counts().transactions, 3);
}

#[test]
fn a_commit_that_was_lost_on_its_way_is_sent_again() {
    let Some(running) = start(&[]) else { return };
    let proxy = Proxy::new(running.server.port());
    let database = behind(&proxy);
    proxy.break_at("MARK", Break::Before);
    assert_eq!(put(&database, "key", b"MARK").unwrap(), 2);
    assert!(proxy.has_broken());
    assert_eq!(read(&database, "key").unwrap().unwrap(), b"MARK");
}

/// A sync is idempotent, so it is repeated on another connection. A broken or interrupted
/// connection once failed the sync.
#[test]
fn a_sync_whose_connection_broke_is_done_on_another() {
    let Some(running) = start(&["--appendonly", "no"]) else { return };
    let proxy = Proxy::new(running.server.port());
    let options = impatient(Options::server(proxy.url())).durability(Durability::None);
    let database = Redis::open(options).unwrap();
    put(&database, "key", b"1").unwrap();

    for (mark, how) in [("SAVE", Break::Before), ("SAVE", Break::After), ("INFO", Break::After)] {
        let before = database.counts().syncs;
        proxy.break_at(mark, how);
        database.sync().unwrap();
        assert!(proxy.has_broken(), "{mark}");
        assert_eq!(database.counts().syncs, before + 1);
    }
}

/// A break after which the server stays away leaves the outcome unknown. Once the server is back,
/// reads tell it.
fn outcome_is_found_out(how: Break) {
    let Some(running) = start(&[]) else { return };
    let proxy = Proxy::new(running.server.port());
    let database = behind(&proxy);

    for has_snapshot in [true, false] {
        let key = if has_snapshot { "first" } else { "second" };
        let snapshot = has_snapshot.then(|| database.reader().unwrap());
        proxy.break_at("MARK", how);
        proxy.stay_shut(true);
        let outcome = put(&database, key, b"MARK");
        assert!(matches!(outcome, Err(Error::Unknown { .. })), "{outcome:?}");
        assert!(database.reader().is_err(), "the outcome cannot be found out yet");
        assert!(database.writer().is_err());
        proxy.stay_shut(false);
        if let Some(snapshot) = snapshot {
            assert_eq!(get(&*snapshot, key).unwrap(), None);
            assert_eq!(get(&*snapshot, "kept").unwrap().unwrap(), b"1");
        }

        let expected = (how == Break::After).then(|| b"MARK".to_vec());
        assert_eq!(read(&database, key).unwrap(), expected);
        let receipts = database.counts().transactions;
        assert_eq!(put(&database, "next", b"2").unwrap(), receipts + 1);
        assert_eq!(read(&database, key).unwrap(), expected);
    }
}

#[test]
fn the_outcome_of_a_commit_that_took_place_is_found_out_later() {
    outcome_is_found_out(Break::After);
}

#[test]
fn the_outcome_of_a_commit_that_did_not_take_place_is_found_out_later() {
    outcome_is_found_out(Break::Before);
}

/// A commit that was found not to have taken place must not do so afterwards, when its request
/// comes at last.
#[test]
fn a_request_that_comes_late_is_void() {
    let Some(running) = start(&[]) else { return };
    let proxy = Proxy::new(running.server.port());
    let database = behind(&proxy);
    proxy.break_at("MARK", Break::Before);
    proxy.stay_shut(true);
    assert!(matches!(put(&database, "key", b"MARK"), Err(Error::Unknown { .. })));
    proxy.stay_shut(false);
    assert_eq!(read(&database, "key").unwrap(), None);
    assert_eq!(proxy.deliver_late(), "$5\r\nfence\r\n");
    assert_eq!(read(&database, "key").unwrap(), None);

    // And one that was sent again and took place does not take place twice.
    proxy.break_at("MARK", Break::Before);
    assert_eq!(put(&database, "key", b"MARK").unwrap(), 2);
    assert_eq!(proxy.deliver_late(), "$4\r\ndone\r\n");
    put(&database, "key", b"2").unwrap();
    assert_eq!(proxy.deliver_late(), "$5\r\nfence\r\n");

    assert_eq!(read(&database, "key").unwrap().unwrap(), b"2");
}

#[test]
fn reads_go_on_over_a_new_connection() {
    let Some(running) = start(&[]) else { return };
    let proxy = Proxy::new(running.server.port());
    let database = behind(&proxy);
    let reader = database.reader().unwrap();
    proxy.cut();
    assert_eq!(get(&*reader, "kept").unwrap().unwrap(), b"1");
    proxy.cut();
    assert_eq!(keys(&*reader).unwrap(), [b"kept"]);
    proxy.cut();
    assert_eq!(reader.count(Table::Main).unwrap(), 1);
}

/// A stopped server has the request in its buffer and would carry it out when it goes on, after the
/// commit was given up.
#[test]
fn a_commit_that_was_given_up_does_not_take_place_later() {
    let Some(running) = start(&[]) else { return };
    let database = Redis::open(impatient(running.options())).unwrap();
    put(&database, "kept", b"1").unwrap();

    for round in 0..by_effort(1_u8, 3) {
        running.server.pause().unwrap();
        let outcome = put(&database, "key", &[round]);
        assert!(matches!(outcome, Err(Error::Unknown { .. })), "{outcome:?}");
        assert!(database.reader().is_err());
        running.server.resume().unwrap();
        let found = read(&database, "key").unwrap();
        // A further commit comes after all that the server had in its buffers.
        put(&database, "other", b"2").unwrap();
        assert_eq!(read(&database, "key").unwrap(), found);
        assert_eq!(read(&database, "kept").unwrap().unwrap(), b"1");
    }
}

fn goes_on_after_a_restart(database: &Redis, server: &mut Server) {
    put(database, "kept", b"1").unwrap();
    let snapshot = database.reader().unwrap();
    put(database, "kept", b"2").unwrap();
    server.kill().unwrap();

    for _ in 0..2 {
        let outcome = put(database, "key", b"3");
        let is_typed = matches!(
            outcome,
            Err(Error::Unknown { .. } | Error::BackEnd { .. } | Error::Busy { .. })
        );
        assert!(is_typed, "{outcome:?}");
    }

    server.restart().unwrap();
    assert_eq!(get(&*snapshot, "kept").unwrap().unwrap(), b"1");
    assert_eq!(read(database, "kept").unwrap().unwrap(), b"2");
    assert_eq!(read(database, "key").unwrap(), None);
    put(database, "key", b"4").unwrap();

    assert_eq!(read(database, "key").unwrap().unwrap(), b"4");
}

const LOGGED: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

#[test]
fn a_killed_server_comes_back_with_what_was_committed() {
    let Some(mut running) = start(&LOGGED) else { return };
    let database = Redis::open(impatient(running.options())).unwrap();
    goes_on_after_a_restart(&database, &mut running.server);
}

#[test]
fn a_killed_server_of_a_cluster_comes_back_with_what_was_committed() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(dir.path(), 3, &LOGGED).unwrap();
    let database = Redis::open(impatient(Options::cluster(cluster.urls()))).unwrap();
    goes_on_after_a_restart(&database, cluster.master_of("terrane").unwrap());
}

/// While a slot moves its server redirects with `ASK`, afterwards with `MOVED`.
#[test]
fn a_store_that_moves_to_another_server_of_a_cluster_goes_on() {
    if !can_run() {
        return;
    }

    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(dir.path(), 3, &[]).unwrap();
    let database = Redis::open(Options::cluster(cluster.urls())).unwrap();
    put(&database, "key", b"1").unwrap();
    let snapshot = database.reader().unwrap();
    let text = |server: &Server, words: &[&str]| -> Vec<String> {
        redis::from_redis_value(server.command(words).unwrap()).unwrap()
    };

    let id = |server: &Server| text(server, &["CLUSTER", "MYID"]).remove(0);
    let servers = cluster.servers();
    let slot: i64 =
        redis::from_redis_value(servers[0].command(&["CLUSTER", "KEYSLOT", "terrane"]).unwrap())
            .unwrap();
    let slot = slot.to_string();
    let keys_in = |server: &&Server| text(server, &["CLUSTER", "GETKEYSINSLOT", &slot, "9"]);
    let from = servers.iter().find(|server| !keys_in(server).is_empty()).unwrap();
    let to = servers.iter().find(|server| server.port() != from.port()).unwrap();
    to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]).unwrap();
    from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]).unwrap();
    let port = to.port().to_string();
    let moving = keys_in(&from);
    let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
    migrate.extend(moving.iter().map(String::as_str));
    from.command(&migrate).unwrap();
    assert_eq!(put(&database, "key", b"2").unwrap(), 2);
    assert_eq!(read(&database, "key").unwrap().unwrap(), b"2");

    for server in [to, from] {
        server.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)]).unwrap();
    }

    assert_eq!(put(&database, "key", b"3").unwrap(), 3);
    assert_eq!(read(&database, "key").unwrap().unwrap(), b"3");
    assert_eq!(get(&*snapshot, "key").unwrap().unwrap(), b"1");
    assert!(keys_in(&from).is_empty() && !keys_in(&to).is_empty());
}

#[test]
fn a_server_that_is_killed_with_a_large_commit_on_its_way_comes_back_as_it_was() {
    let Some(mut running) = start(&LOGGED) else { return };
    let database = Redis::open(impatient(running.options())).unwrap();
    put(&database, "kept", b"1").unwrap();
    running.server.pause().unwrap();

    let mut writer = database.writer().unwrap();
    for number in 0..6_u8 {
        writer.overwrite(Table::Main, &[b'n', number], &vec![number; 5 << 20]).unwrap();
    }

    assert!(writer.commit().is_err());
    running.server.kill().unwrap();
    running.server.restart().unwrap();
    let reader = database.reader().unwrap();
    assert_eq!(keys(&*reader).unwrap(), [b"kept"]);
    put(&database, "key", b"2").unwrap();

    assert_eq!(read(&database, "key").unwrap().unwrap(), b"2");
}

#[test]
fn a_server_that_lost_commits_is_noticed() {
    let Some(mut running) = start(&[]) else { return };
    let database = Redis::open(impatient(running.options())).unwrap();
    put(&database, "key", b"1").unwrap();
    let reader = database.reader().unwrap();
    running.server.kill().unwrap();
    running.server.restart().unwrap();
    let lost = get(&*reader, "key");
    assert!(matches!(lost, Err(Error::BackEnd { .. })), "absent would be a lie: {lost:?}");
    assert!(matches!(put(&database, "key", b"2"), Err(Error::BackEnd { .. })));
    assert!(database.reader().is_err());
    drop((database, reader));
    let database = running.open();
    assert_eq!(read(&database, "key").unwrap(), None);

    put(&database, "key", b"3").unwrap();
}

#[test]
fn a_server_that_lost_commits_is_noticed_by_a_commit() {
    let Some(mut running) = start(&[]) else { return };
    let database = Redis::open(impatient(running.options())).unwrap();
    put(&database, "key", b"1").unwrap();
    running.server.kill().unwrap();
    running.server.restart().unwrap();
    assert!(matches!(put(&database, "other", b"2"), Err(Error::BackEnd { .. })));
    let size = running.server.command(&["DBSIZE"]).unwrap();
    assert_eq!(format!("{size:?}"), "int(0)", "nothing was written");
}
