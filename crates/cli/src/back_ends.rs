//! What commands on radix stores let their callers choose: back-ends and durabilities by name, and where Redis is.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use terrane::kv::Durability;
use terrane::state_dir::{BackEnd, OpenOptions, Password};

/// A back-end, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackEndArg {
    /// A sorted map in memory; it keeps nothing
    Memory,
    /// Terrane's table engine
    Lsm,
    /// Terrane's B+tree
    Btree,
    /// LMDB
    Lmdb,
    /// `SQLite`
    Sqlite,
    /// A Redis server, or a cluster
    Redis,
}

impl From<BackEndArg> for BackEnd {
    fn from(name: BackEndArg) -> Self {
        match name {
            BackEndArg::Memory => Self::Memory,
            BackEndArg::Lsm => Self::Lsm,
            BackEndArg::Btree => Self::Btree,
            BackEndArg::Lmdb => Self::Lmdb,
            BackEndArg::Sqlite => Self::Sqlite,
            BackEndArg::Redis => Self::Redis,
        }
    }
}

/// A durability, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DurabilityArg {
    /// No sync is ever asked for
    None,
    /// Commits are flushed at the system's leisure
    Async,
    /// A commit that returned survives a loss of power
    Each,
    /// The same; commits side by side share a sync
    Group,
}

impl From<DurabilityArg> for Durability {
    fn from(name: DurabilityArg) -> Self {
        match name {
            DurabilityArg::None => Self::None,
            DurabilityArg::Async => Self::Async,
            DurabilityArg::Each => Self::Each,
            DurabilityArg::Group => Self::Group,
        }
    }
}

/// Where Redis is.
#[derive(Debug, Args)]
pub(crate) struct RedisArgs {
    /// URL of a Redis server, as `redis://host:6379`; several for a cluster. For a new store, or in place of those that
    /// the store names, which have no passwords. `rediss://` is TLS, in builds with the feature `redis-tls`; its
    /// authorities are those of the system, or of the file that the variable `SSL_CERT_FILE` names
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(crate) redis_url: Vec<String>,
    /// File whose first line is the password of the Redis servers; else the variable
    /// `TERRANE_REDIS_PASSWORD`, if it is set. A password in a URL can be seen by every user of the
    /// machine
    #[arg(long, value_name = "FILE")]
    pub(crate) redis_password_file: Option<PathBuf>,
}

/// The variable of the environment that may have the password of Redis.
const PASSWORD_VARIABLE: &str = "TERRANE_REDIS_PASSWORD";

impl RedisArgs {
    /// Where the password is.
    pub(crate) fn password(&self) -> Password {
        if let Some(path) = &self.redis_password_file {
            return Password::File(path.clone());
        }
        let variable = std::env::var(PASSWORD_VARIABLE).ok().filter(|text| !text.is_empty());
        variable.map_or(Password::InUrl, Password::Text)
    }

    /// How a store is opened that has this back-end, or any.
    pub(crate) fn opening(
        &self,
        back_end: Option<BackEndArg>,
        durability: DurabilityArg,
    ) -> OpenOptions {
        OpenOptions {
            back_end: back_end.map(BackEnd::from),
            redis_urls: self.redis_url.clone(),
            redis_password: self.password(),
            durability: durability.into(),
            ..OpenOptions::default()
        }
    }

    /// How a store is opened that is only read.
    pub(crate) fn reading(&self) -> OpenOptions {
        OpenOptions {
            redis_urls: self.redis_url.clone(),
            redis_password: self.password(),
            is_read_only: true,
            ..OpenOptions::default()
        }
    }
}
