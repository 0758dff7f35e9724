//! Database over a server: opening, readers, the writer, and the rest of the contract.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use ::redis::{Cmd, Value};
use terrane_kv::{Counts, Database, Error, Guarantee, Reader, Receipt, Result, Writer};

use super::connection::Failure;
use super::error::{NAME, bad_reply, unsupported};
use super::inner::Inner;
use super::options::Options;
use super::reader::Snapshot;
use super::server_info::ServerInfo;
use super::writer::Transaction;

/// An open store in Redis. Readers keep it open; when it and they are gone, the lock is given up.
#[derive(Debug)]
pub struct Redis {
    inner: Arc<Inner>,
}

impl Redis {
    /// Opens the store under the options' prefix. Creates a missing store, unless the options ask
    /// for reading only.
    ///
    /// Cost: a connection and three round trips.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options that cannot be honoured, also a durability that the
    /// server does not give; [`Error::Locked`] while another process has the store open for
    /// writing; [`Error::ReadOnly`] for writing on a replica; [`Error::Corruption`] if the keys are
    /// not those of a store; [`Error::Busy`] and [`Error::BackEnd`] of the server.
    pub fn open(options: Options) -> Result<Self> {
        Ok(Self { inner: Arc::new(Inner::open(options, token())?) })
    }

    /// Renews the lease of the lock. Whatever uses the store does so when a third of the lease has
    /// passed; call this where nothing uses it for long. Cost: one round trip.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process has taken the lock, [`Error::ReadOnly`], and those of
    /// the server.
    pub fn renew(&self) -> Result<()> {
        if self.inner.options.read_only {
            return Err(Error::ReadOnly { back_end: NAME });
        }
        self.inner.renew()
    }

    fn admin(&self, call: &'static str, words: &[&[u8]]) -> Result<Value> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(*word);
        }
        self.inner.connections.admin(&command).map_err(|failure| failure.into_error(call))
    }
}

/// A name for this opening that no other has: of random bits, and the process.
fn token() -> String {
    // The token must differ from those of all other processes.
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}-process-{}", random(), random(), std::process::id())
}

impl Database for Redis {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Cost: nothing; a round trip when the lease is to be renewed, or for reading only.
    fn reader(&self) -> Result<Box<dyn Reader + Send>> {
        Ok(Box::new(Snapshot::new(Arc::clone(&self.inner))?))
    }

    /// Cost: nothing; a round trip when the lease is to be renewed.
    fn writer(&self) -> Result<Box<dyn Writer + '_>> {
        Ok(Box::new(Transaction::new(&self.inner)?))
    }

    /// Cost: nothing, since a server that syncs each commit does so before it answers.
    fn settle(&self, _receipt: Receipt) -> Result<()> {
        self.inner.is_open("settle")
    }

    /// Nothing is left to do with `appendfsync always`, but to wait where the log was being written
    /// anew when the store was opened. Without a log (`appendonly no`) the server writes a snapshot
    /// of all its databases and answers nobody meanwhile, which must take no longer than the read
    /// timeout; so must one that it is writing in the background, which is waited for.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with a log that is not synced at each commit; [`Error::Busy`] where
    /// the server is still writing after the read timeout.
    fn sync(&self) -> Result<()> {
        self.inner.is_open("sync")?;
        let connections = &self.inner.connections;
        let time_max = self.inner.options.read_timeout;

        // The server syncs each commit by itself.
        if self.inner.server_info.is_always() {
            return Ok(());
        }

        if self.inner.server_info.syncs_each() {
            let what = "the server is writing its log anew";
            return ServerInfo::read_when(connections, time_max, what, ServerInfo::is_always)
                .map(drop);
        }

        if self.inner.server_info.has_log() {
            return Err(unsupported(
                "sync",
                "Redis syncs its log on demand only with appendfsync always",
            ));
        }

        let mut command = Cmd::new();
        command.arg("SAVE");
        loop {
            let what = "the server is writing a snapshot in the background";
            ServerInfo::read_when(connections, time_max, what, |server_info| {
                !server_info.is_saving()
            })?;
            match connections.admin(&command) {
                Ok(_) => break,
                // One that was begun meanwhile.
                Err(Failure::Said(_)) if ServerInfo::read(connections)?.is_saving() => {}
                Err(failure) => return Err(failure.into_error("SAVE")),
            }
        }

        self.inner.count_sync();
        Ok(())
    }

    fn guarantee(&self) -> Guarantee {
        self.inner.server_info.guarantee()
    }

    /// The options, and what the server said when the store was opened.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let options = &self.inner.options;
        let mut settings = vec![
            ("servers", self.inner.connections.address()),
            ("cluster", options.cluster.to_string()),
            ("prefix", options.prefix.clone()),
            ("pool", options.pool.to_string()),
            ("connect_timeout", format!("{:?}", options.connect_timeout)),
            ("read_timeout", format!("{:?}", options.read_timeout)),
            ("write_timeout", format!("{:?}", options.write_timeout)),
            ("lease", format!("{:?}", options.lease)),
            ("read_only", options.read_only.to_string()),
            ("tls", self.inner.connections.is_tls().to_string()),
            ("value_bytes_max", self.inner.value_bytes_max.to_string()),
        ];

        settings.extend(self.inner.server_info.settings());
        settings
    }

    /// Bytes are those of the arguments and answers, without what the protocol adds; syncs are
    /// those that confirmed a commit with `appendfsync always`, which a server may have shared with
    /// others, and those of [`sync`](Database::sync).
    fn counts(&self) -> Counts {
        self.inner.counts()
    }

    /// The server's estimate of the memory that the store takes, from samples of its entries. Files
    /// are shared with whatever else the server keeps and not counted.
    fn disk_bytes(&self) -> Result<u64> {
        self.inner.is_open("disk_bytes")?;
        let keys = &self.inner.keys;
        let tables = (0..keys.tables()).flat_map(|table| [keys.values(table), keys.order(table)]);

        let mut bytes = 0;
        for key in tables.chain([keys.meta()]) {
            bytes += match self.admin("MEMORY USAGE", &[b"MEMORY", b"USAGE", &key])? {
                Value::Nil => 0,
                Value::Int(bytes) => u64::try_from(bytes).map_err(|_| bad_reply("MEMORY USAGE"))?,
                _ => return Err(bad_reply("MEMORY USAGE")),
            };
        }

        Ok(bytes)
    }

    /// Has the server give unused memory back, and begin to write its log anew in the background
    /// unless it does already.
    fn compact(&self) -> Result<()> {
        self.inner.is_open("compact")?;
        self.admin("MEMORY PURGE", &[b"MEMORY", b"PURGE"])?;
        let server_info = ServerInfo::read(&self.inner.connections)?;
        if server_info.has_log() && !server_info.is_rewriting_log() {
            self.admin("BGREWRITEAOF", &[b"BGREWRITEAOF"])?;
        }
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }
}
