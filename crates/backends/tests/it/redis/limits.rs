//! Limits of a server, and stores that are not what they should be: typed errors, and nothing half
//! done.

use terrane_backends::redis::{Options, Redis};
use terrane_kv::{Database, Error, Table};

use super::{Running, get, keys, put, read, start};

/// Every key of the server, sorted.
fn server_keys(running: &Running) -> Vec<String> {
    let found = running.server.command(&["KEYS", "*"]).unwrap();
    let mut found: Vec<String> = redis::from_redis_value(found).unwrap();
    found.sort();
    found
}

/// The server takes requests of 1 MiB, so that the commit goes in parts.
#[test]
fn a_transaction_larger_than_a_request_is_whole() {
    let Some(running) = start(&["--client-query-buffer-limit", "1mb"]) else { return };
    let database = running.open();
    put(&database, "0", b"old").unwrap();
    let snapshot = database.reader().unwrap();
    let mut writer = database.writer().unwrap();
    let value = |number: u32| vec![number as u8; 20_000 + number as usize];

    for number in 0..200_u32 {
        writer.overwrite(Table::Main, number.to_string().as_bytes(), &value(number)).unwrap();
        writer.overwrite(Table::Index("names"), &number.to_le_bytes(), b"x").unwrap();
    }

    writer.commit().unwrap();
    let reader = database.reader().unwrap();
    for number in 0..200 {
        assert_eq!(get(&*reader, &number.to_string()).unwrap().unwrap(), value(number));
    }

    assert_eq!(reader.count(Table::Main).unwrap(), 200);
    assert_eq!(reader.count(Table::Index("names")).unwrap(), 200);
    assert_eq!(keys(&*snapshot).unwrap(), [b"0"]);
    assert_eq!(get(&*snapshot, "0").unwrap().unwrap(), b"old");
    let tables = ["k", "k:names", "lock", "meta", "v", "v:names"];

    assert_eq!(server_keys(&running), tables.map(|key| format!("{{terrane}}:{key}")));
}

#[test]
fn a_value_that_the_server_does_not_take_is_refused_at_once() {
    for limit in ["client-query-buffer-limit", "proto-max-bulk-len"] {
        let Some(running) = start(&[&format!("--{limit}"), "1mb"]) else { return };
        let database = running.open();
        let settings = database.settings();
        let max = settings.iter().find(|(name, _)| *name == "value_bytes_max").unwrap();
        let max: usize = max.1.parse().unwrap();
        let mut writer = database.writer().unwrap();
        let refused = writer.overwrite(Table::Main, b"key", &vec![1; max + 1]).unwrap_err();
        let Error::Size { bytes, max: told, .. } = refused else { panic!("{refused}") };
        assert_eq!((bytes, told), (max + 1, max), "{limit}");
        writer.overwrite(Table::Main, b"key", &vec![1; max]).unwrap();
        writer.overwrite(Table::Main, b"other", &vec![2; max]).unwrap();
        writer.commit().unwrap();
        assert_eq!(read(&database, "key").unwrap().unwrap(), vec![1; max]);
        assert_eq!(read(&database, "other").unwrap().unwrap(), vec![2; max]);
    }
}

#[test]
fn a_full_memory_is_told_and_room_can_be_made() {
    let Some(running) = start(&[]) else { return };
    let database = running.open();
    for key in ["a", "b", "c"] {
        put(&database, key, &vec![1; 1 << 20]).unwrap();
    }

    running.server.command(&["CONFIG", "SET", "maxmemory", "2mb"]).unwrap();
    let before = server_keys(&running);
    let full = put(&database, "d", b"small").unwrap_err();
    assert!(matches!(full, Error::StoreFull { .. }), "{full}");

    let mut large = database.writer().unwrap();
    for number in 0..5_u8 {
        large.overwrite(Table::Main, &[b'l', number], &vec![2; 5 << 20]).unwrap();
    }

    let full = large.commit().unwrap_err();
    assert!(matches!(full, Error::StoreFull { .. }), "{full}");
    assert_eq!(server_keys(&running), before, "nothing was left staged");
    assert_eq!(keys(&*database.reader().unwrap()).unwrap(), [b"a", b"b", b"c"]);
    drop(database);
    let database = running.open();
    let mut writer = database.writer().unwrap();
    writer.remove(Table::Main, b"a").unwrap();
    writer.remove(Table::Main, b"b").unwrap();
    writer.overwrite(Table::Main, b"pruned", b"a, b").unwrap();
    writer.commit().unwrap();
    assert_eq!(keys(&*database.reader().unwrap()).unwrap(), [&b"c"[..], b"pruned"]);
    running.server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    put(&database, "d", b"small").unwrap();

    assert_eq!(read(&database, "d").unwrap().unwrap(), b"small");
}

#[test]
fn a_server_that_would_evict_entries_is_refused() {
    let arguments = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let Some(running) = start(&arguments) else { return };
    assert!(matches!(Redis::open(running.options()), Err(Error::Unsupported { .. })));
    assert_eq!(server_keys(&running), [""; 0]);
}

#[test]
fn keys_of_others_are_noticed_before_anything_is_changed() {
    let Some(running) = start(&[]) else { return };
    let database = running.open();
    put(&database, "key", b"1").unwrap();
    running.server.command(&["SET", "{terrane}:v:names", "another's"]).unwrap();
    let mut writer = database.writer().unwrap();
    writer.overwrite(Table::Main, b"key", b"2").unwrap();
    writer.overwrite(Table::Index("names"), b"name", b"2").unwrap();
    assert!(matches!(writer.commit(), Err(Error::Corruption { .. })));
    let reader = database.reader().unwrap();
    assert_eq!(get(&*reader, "key").unwrap().unwrap(), b"1");
    let found = reader.get(Table::Index("names"), b"name");
    assert!(matches!(found, Err(Error::Corruption { .. })), "{found:?}");
    running.server.command(&["DEL", "{terrane}:v:names"]).unwrap();
    put(&database, "key", b"3").unwrap();
    drop((reader, database));
    running.server.command(&["SET", "{other}:meta", "another's"]).unwrap();
    let found = Redis::open(running.options().prefix("other"));

    assert!(matches!(found, Err(Error::Corruption { .. })));
}

#[test]
fn stored_bytes_that_break_the_layout_are_corruption() {
    let Some(running) = start(&[]) else { return };
    let is_corrupt = |outcome: Result<(), Error>| {
        assert!(matches!(outcome, Err(Error::Corruption { .. })), "{outcome:?}");
    };
    let command = |words: &[&str]| running.server.command(words).unwrap();
    let database = running.open();
    put(&database, "a", b"1").unwrap();
    put(&database, "b", b"1").unwrap();
    let reader = database.reader().unwrap();
    command(&["HDEL", "{terrane}:v", "b"]);
    is_corrupt(keys(&*reader).map(drop));

    for (field, value) in [("pending", "x"), ("version", "x"), ("version", "-1"), ("format", "2")] {
        let number = command(&["HGET", "{terrane}:meta", "version"]);
        command(&["HSET", "{terrane}:meta", field, value]);
        is_corrupt(get(&*reader, "a").map(drop));
        command(&["HDEL", "{terrane}:meta", "pending"]);
        let number: String = redis::from_redis_value(number).unwrap();
        command(&["HSET", "{terrane}:meta", "version", &number, "format", "1"]);
        assert_eq!(get(&*reader, "a").unwrap().unwrap(), b"1");
    }

    command(&["HDEL", "{terrane}:meta", "format"]);
    is_corrupt(get(&*reader, "a").map(drop));
    drop((reader, database));
    command(&["DEL", "{terrane}:lock"]);
    command(&["HSET", "{terrane}:meta", "format", "2"]);

    is_corrupt(Redis::open(running.options()).map(drop));
}

#[test]
fn options_that_cannot_be_honoured_are_refused() {
    let refused = |options: Options| {
        let outcome = Redis::open(options);
        assert!(matches!(outcome, Err(Error::Unsupported { .. })), "{outcome:?}");
    };
    let server = || Options::server("redis://127.0.0.1:1/");
    refused(server().prefix(""));
    refused(server().prefix("a{b}"));
    refused(server().pool(0));
    refused(server().lease(std::time::Duration::ZERO));
    refused(server().indexes(["Upper"]));
    refused(server().indexes(["twice", "twice"]));
    refused(server().indexes((0..17).map(|number| format!("i{number}"))));
    refused(Options::server("no URL"));
    refused(Options::server("rediss://127.0.0.1:1/#insecure"));
    refused(Options::cluster(["redis://127.0.0.1:1/"]).database(3));
    refused(Options::cluster([""; 0]));
    let away = Redis::open(server());

    assert!(matches!(away, Err(Error::BackEnd { .. })), "nobody is there");
}

#[test]
fn databases_of_a_server_are_apart() {
    let Some(running) = start(&[]) else { return };
    let first = running.open();
    let second = Redis::open(running.options().database(3)).unwrap();
    put(&first, "key", b"1").unwrap();
    assert_eq!(read(&second, "key").unwrap(), None);
}

#[test]
fn passwords_are_not_shown() {
    let Some(running) = start(&[]) else { return };
    running.server.command(&["CONFIG", "SET", "requirepass", "secret-word"]).unwrap();
    let url = running.server.url().replace("//", "//:secret-word@");
    let database = Redis::open(Options::server(url)).unwrap();
    let shown = format!("{database:?} {:?}", database.settings());
    assert!(shown.contains("127.0.0.1") && !shown.contains("secret-word"), "{shown}");
    let wrong = running.server.url().replace("//", "//:wrong-word@");
    let refused = Redis::open(Options::server(wrong)).unwrap_err();
    assert!(matches!(refused, Error::BackEnd { .. }));
    assert!(!format!("{refused:?}").contains("wrong-word"));
}
