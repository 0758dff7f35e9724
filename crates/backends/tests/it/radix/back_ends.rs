//! The tests of the radix state on each back-end that keeps what it is given.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use terrane_backends::{BtreeDatabase, BtreeOptions, LsmDatabase, LsmOptions};
use terrane_io::RealDisk;
use terrane_kv::conformance::Subject;
use terrane_kv::{Database, Durability, Result};
use terrane_testkit::effort::by_effort;

use super::{behaviours, diffs, exchange, histories, proofs, repair, vectors};

/// Opens a database in a directory that may be there or not.
type Open = fn(&Path, &[&str]) -> Result<Arc<dyn Database>>;

/// Databases in directories, each in one of its own.
struct InDirectories {
    folder: TempDir,
    count: usize,
    open: Open,
}

impl InDirectories {
    fn new(open: Open) -> Self {
        Self { folder: tempfile::tempdir().unwrap(), count: 0, open }
    }
}

impl Subject for InDirectories {
    fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        self.count += 1;
        self.reopen(indexes)
    }

    fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
        (self.open)(&self.folder.path().join(self.count.to_string()), indexes)
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

fn lsm(dir: &Path, indexes: &[&str]) -> Result<Arc<dyn Database>> {
    let options = LsmOptions::default().durability(Durability::None);
    Ok(Arc::new(LsmDatabase::open(RealDisk::auto(), dir, indexes, &options)?))
}

fn btree(dir: &Path, indexes: &[&str]) -> Result<Arc<dyn Database>> {
    let options = BtreeOptions::default().durability(Durability::None);
    Ok(Arc::new(BtreeDatabase::open(RealDisk::auto(), dir, indexes, &options)?))
}

fn check_all(subject: &mut dyn Subject, operations: u64) {
    vectors::check(subject);
    behaviours::check(subject);
    histories::check(subject, operations);
    proofs::check(subject);
    exchange::check(subject);
    diffs::check(subject);
}

#[test]
fn the_state_on_lsm_tables() {
    check_all(&mut InDirectories::new(lsm), by_effort(2_000, 100_000));
}

#[test]
fn the_state_on_a_btree() {
    check_all(&mut InDirectories::new(btree), by_effort(1_500, 20_000));
}

#[test]
fn the_state_on_lmdb() {
    use terrane_backends::lmdb::{LmdbDatabase, LmdbOptions, SyncMode};

    let open: Open = |dir, indexes| {
        let options = LmdbOptions::default().sync(SyncMode::None);
        Ok(Arc::new(LmdbDatabase::open(dir.with_extension("mdb"), indexes, &options)?))
    };
    check_all(&mut InDirectories::new(open), by_effort(2_000, 100_000));
    repair::check(&mut InDirectories::new(open));
}

#[test]
fn the_state_on_sqlite() {
    use terrane_backends::sqlite::{SqliteDatabase, SqliteOptions, Synchronous};

    let open: Open = |dir, indexes| {
        let file = SqliteOptions::file(dir.with_extension("sqlite"));
        // A compaction in whose way snapshots are waits so long.
        let busy_timeout = Duration::from_millis(50);
        let options = file.synchronous(Synchronous::Off).busy_timeout(busy_timeout);
        Ok(Arc::new(SqliteDatabase::open(indexes, &options)?))
    };
    check_all(&mut InDirectories::new(open), by_effort(500, 5_000));
}

#[test]
fn the_state_on_redis() {
    use terrane_backends::redis::server::{Server, is_installed};
    use terrane_backends::redis::{Options, Redis};

    struct InServer(Server, usize);

    impl Subject for InServer {
        fn fresh(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
            self.1 += 1;
            self.reopen(indexes)
        }

        fn reopen(&mut self, indexes: &[&str]) -> Result<Arc<dyn Database>> {
            let options = Options::server(self.0.url()).prefix(format!("store-{}", self.1));
            Ok(Arc::new(Redis::open(options.indexes(indexes.iter().copied()))?))
        }

        fn is_persistent(&self) -> bool {
            true
        }
    }

    if !is_installed() {
        eprintln!(
            "SKIPPED: there is no redis-server on this machine; install the package redis-server"
        );
        return;
    }

    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), &[]).unwrap();
    check_all(&mut InServer(server, 0), by_effort(250, 2_000));
}
