//! Guarantees that follow from the settings of a server, and that they hold.

use terrane_backends::redis::{Options, Redis};
use terrane_kv::{Database, Durability, Error, PowerLoss};

use super::{Running, impatient, put, read, start};

fn takes(running: &Running, durability: Durability) -> bool {
    match Redis::open(running.options().durability(durability)) {
        Ok(_) => true,
        Err(Error::Unsupported { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn more_than_the_server_gives_is_refused_at_opening() {
    let all = [Durability::None, Durability::Buffered, Durability::Each, Durability::Group];
    let expected: [(&[&str], [bool; 4]); 5] = [
        (&[], [true, false, false, false]),
        (&["--save", "3600 1"], [true, true, false, false]),
        (&["--appendonly", "yes", "--appendfsync", "no"], [true, true, false, false]),
        (&["--appendonly", "yes", "--appendfsync", "everysec"], [true, true, false, false]),
        (&["--appendonly", "yes", "--appendfsync", "always"], [true; 4]),
    ];
    for (arguments, taken) in expected {
        let Some(running) = start(arguments) else { return };
        assert_eq!(all.map(|durability| takes(&running, durability)), taken, "{arguments:?}");
    }
}

#[test]
fn commits_that_a_server_synced_survive_its_end() {
    let Some(mut running) = start(&["--appendonly", "yes", "--appendfsync", "always"]) else {
        return;
    };

    let database = running.open();
    assert_eq!(database.guarantee().power_loss, PowerLoss::EveryCommit);
    for number in 0..50_u8 {
        put(&database, "key", &[number]).unwrap();
    }

    let counts = database.counts();
    assert_eq!((counts.transactions, counts.syncs), (50, 50));
    assert!(counts.bytes_written > 50 && counts.bytes_read > 50);
    database.sync().unwrap();
    database.compact().unwrap();
    assert!(database.disk_bytes().unwrap() > 0);
    database.close().unwrap();
    running.server.kill().unwrap();
    running.server.restart().unwrap();

    assert_eq!(read(&running.open(), "key").unwrap().unwrap(), [49]);
}

#[test]
fn what_was_synced_without_a_log_survives_the_servers_end() {
    let Some(mut running) = start(&[]) else { return };
    let database = running.open();
    assert_eq!(database.guarantee().power_loss, PowerLoss::NoPromise);
    put(&database, "key", b"1").unwrap();
    database.sync().unwrap();
    assert_eq!(database.counts().syncs, 1);
    running.server.kill().unwrap();
    running.server.restart().unwrap();
    assert_eq!(read(&database, "key").unwrap().unwrap(), b"1");
}

/// Fills the server with entries that take so long each when a process that writes in the
/// background begins now.
fn slow_background(running: &Running, entries: u32, delay_us: u32) {
    for number in 0..entries {
        running.server.command(&["SET", &format!("other{number}"), "value"]).unwrap();
    }
    let set = |value: &str| {
        running.server.command(&["CONFIG", "SET", "rdb-key-save-delay", value]).unwrap();
    };
    set(&delay_us.to_string());
    running.server.command(&["BGSAVE"]).unwrap();
    // What is begun keeps its delay.
    set("0");
}

/// `SAVE` was refused while the server wrote a snapshot of its own, and the sync failed.
#[test]
fn a_sync_waits_for_a_snapshot_that_the_server_is_writing() {
    let Some(mut running) = start(&[]) else { return };
    let database = running.open();
    put(&database, "key", b"1").unwrap();
    slow_background(&running, 20, 20_000);
    put(&database, "key", b"2").unwrap();
    database.sync().unwrap();
    running.server.kill().unwrap();
    running.server.restart().unwrap();
    assert_eq!(read(&database, "key").unwrap().unwrap(), b"2");
}

#[test]
fn a_sync_is_busy_where_the_server_takes_too_long() {
    let Some(running) = start(&[]) else { return };
    let database = Redis::open(impatient(running.options())).unwrap();
    put(&database, "key", b"1").unwrap();
    // A minute, which the last command cuts short.
    slow_background(&running, 60, 1_000_000);
    let busy = database.sync();
    running.server.command(&["FLUSHALL"]).unwrap();
    assert!(matches!(&busy, Err(Error::Busy { .. })), "{busy:?}");
    assert!(busy.unwrap_err().to_string().contains("snapshot"));
}

#[test]
fn a_log_that_was_turned_on_just_now_is_waited_for() {
    let Some(running) = start(&["--appendfsync", "always"]) else { return };
    let set = |name, value| running.server.command(&["CONFIG", "SET", name, value]).unwrap();
    for number in 0..60 {
        running.server.command(&["SET", &format!("other{number}"), "value"]).unwrap();
    }

    // A minute, which turning it off cuts short.
    set("rdb-key-save-delay", "1000000");
    set("appendonly", "yes");
    set("rdb-key-save-delay", "0");
    let early = running.open();
    let guarantee = early.guarantee();
    assert_eq!(guarantee.durability, Durability::Buffered, "{}", guarantee.text);
    early.close().unwrap();
    let each = running.options().durability(Durability::Each);
    let busy = Redis::open(impatient(each.clone()));
    assert!(matches!(busy, Err(Error::Busy { .. })), "{busy:?}");
    set("appendonly", "no");
    set("appendonly", "yes");
    let database = Redis::open(each).unwrap();
    assert_eq!(database.guarantee().durability, Durability::Each);
    let info = running.server.command(&["INFO", "persistence"]).unwrap();

    assert!(format!("{info:?}").contains("aof_rewrite_in_progress:0"), "{info:?}");
}

#[test]
fn a_log_that_is_not_synced_at_each_commit_cannot_be_synced_on_demand() {
    let Some(running) = start(&["--appendonly", "yes", "--appendfsync", "everysec"]) else {
        return;
    };
    let database = running.open();
    put(&database, "key", b"1").unwrap();
    assert!(matches!(database.sync(), Err(Error::Unsupported { .. })));
}

/// Opens as a user who may do all but some commands.
fn open_without(
    running: &Running,
    commands: &[&str],
    durability: Durability,
) -> Result<Redis, Error> {
    let words =
        [&["ACL", "SETUSER", "limited", "reset", "on", ">word", "~*", "+@all"], commands].concat();
    running.server.command(&words).unwrap();
    let url = running.server.url().replace("//", "//limited:word@");
    Redis::open(Options::server(url).durability(durability))
}

#[test]
fn a_server_that_hides_its_settings_promises_nothing() {
    let Some(running) = start(&["--appendonly", "yes", "--appendfsync", "always"]) else { return };
    let refused = open_without(&running, &["-config"], Durability::Each).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("CONFIG GET"), "{refused}");
    let database = open_without(&running, &["-config"], Durability::None).unwrap();
    assert_eq!(database.guarantee().power_loss, PowerLoss::NoPromise);
    assert!(database.settings().iter().any(|(_, value)| value.contains("CONFIG GET")));
    put(&database, "key", b"1").unwrap();
}

#[test]
fn a_user_who_may_not_do_what_commits_need_is_refused_at_opening() {
    let Some(running) = start(&[]) else { return };
    for command in
        ["-hset", "-hdel", "-zadd", "-zrem", "-set", "-pexpire", "-lrange", "-del", "-eval"]
    {
        // With its hash a script can be called without `EVAL` once the server knows it.
        let commands = if command == "-eval" { vec![command, "-evalsha"] } else { vec![command] };
        let refused = open_without(&running, &commands, Durability::None);
        assert!(matches!(refused, Err(Error::BackEnd { .. })), "{command}: {refused:?}");
    }
    assert!(open_without(&running, &[], Durability::None).is_ok());
}
