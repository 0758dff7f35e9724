//! The Redis back-end on servers that the tests start themselves, on the loopback. Where there is
//! no `redis-server` they are skipped, and say so.

mod faults;
mod limits;
mod lock;
mod passwords;
mod promises;
mod proxy;
mod suite;
#[cfg(feature = "redis-tls")]
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use terrane_backends::redis::server::{Server, is_installed};
use terrane_backends::redis::{Options, Redis};
use terrane_kv::{Database, Reader, Result, Table};
use terrane_testkit::process::skipped;

/// A server and its directory, which is removed after it.
struct Running {
    server: Server,
    _dir: TempDir,
}

/// Starts a server, or says that the test is skipped.
fn start(arguments: &[&str]) -> Option<Running> {
    if !can_run() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), arguments).unwrap();
    Some(Running { server, _dir: dir })
}

fn can_run() -> bool {
    let can_run = is_installed();
    if !can_run {
        skipped("no redis-server on this machine; install the package redis-server");
    }
    can_run
}

impl Running {
    fn options(&self) -> Options {
        Options::server(self.server.url()).indexes(["names"])
    }

    fn open(&self) -> Redis {
        Redis::open(self.options()).unwrap()
    }
}

/// Short enough not to hold tests up, long enough for whatever answers at all.
fn impatient(options: Options) -> Options {
    let time = Duration::from_millis(500);
    options.timeouts(time, time, time)
}

fn put(database: &dyn Database, key: &str, value: &[u8]) -> Result<u64> {
    let mut writer = database.writer()?;
    writer.overwrite(Table::Main, key.as_bytes(), value)?;
    Ok(writer.commit()?.0)
}

fn get(reader: &dyn Reader, key: &str) -> Result<Option<Vec<u8>>> {
    reader.get(Table::Main, key.as_bytes())
}

fn read(database: &dyn Database, key: &str) -> Result<Option<Vec<u8>>> {
    get(&*database.reader()?, key)
}

/// The keys of the main table.
fn keys(reader: &dyn Reader) -> Result<Vec<Vec<u8>>> {
    let mut cursor = reader.cursor(Table::Main)?;
    let mut keys = Vec::new();
    while let Some((key, _)) = cursor.next()? {
        keys.push(key);
    }
    Ok(keys)
}

fn shared(database: Redis) -> Arc<dyn Database> {
    Arc::new(database)
}
