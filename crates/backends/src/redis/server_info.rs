//! Release and settings of a server, and the guarantee of commits that follows from them.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use ::redis::{Cmd, Value};
use terrane_kv::{Durability, Error, Guarantee, PowerLoss, Result, VALUE_BYTES_MAX};

use super::connection::{Connections, Failure};
use super::error::{NAME, bad_reply, unsupported};
use super::options::Options;

/// The oldest release that is used.
const RELEASE_MIN: (u64, u64) = (7, 0);
/// Bytes of arguments that are sent in one request at most, unless a single value has more.
const BATCH_BYTES_MAX: usize = 16 << 20;
/// Upper bound of the bytes of a request beside its values.
const REQUEST_OVERHEAD_BYTES: usize = 256 << 10;
/// `client-query-buffer-limit` where it cannot be asked for.
const QUERY_BYTES_DEFAULT: usize = 1 << 30;
/// `proto-max-bulk-len` where it cannot be asked for.
const BULK_BYTES_DEFAULT: usize = 512 << 20;

/// How long to wait before a server is asked again.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Settings that are asked for.
const SETTINGS: [&str; 8] = [
    "appendonly",
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "maxmemory",
    "maxmemory-policy",
    "proto-max-bulk-len",
    "client-query-buffer-limit",
];

/// Release and settings that a server reported when the store was opened.
#[derive(Debug)]
pub(crate) struct ServerInfo {
    info: HashMap<String, String>,
    /// `None` if the server forbids `CONFIG GET`.
    config: Option<HashMap<String, String>>,
}

impl ServerInfo {
    /// Asks the server that has the store. Cost: two round trips.
    pub(crate) fn read(connections: &Connections) -> Result<Self> {
        // INFO tells what the server is, CONFIG what it promises.
        let mut command = Cmd::new();
        command.arg("INFO");
        let info = connections.admin(&command).map_err(|failure| failure.into_error("INFO"))?;
        let info = parse_info(&text_of(info)?);
        let mut command = Cmd::new();
        command.arg("CONFIG").arg("GET").arg(&SETTINGS);

        let config = match connections.admin(&command) {
            Ok(Value::Array(pairs)) => Some(parse_pairs(pairs)?),
            Ok(Value::Map(pairs)) => Some(parse_pairs(
                pairs.into_iter().flat_map(|(key, value)| [key, value]).collect(),
            )?),
            Ok(_) => return Err(bad_reply("CONFIG GET")),
            // The server answers, and keeps its settings to itself.
            Err(Failure::Said(_)) => None,
            Err(failure) => return Err(failure.into_error("CONFIG GET")),
        };

        Ok(Self { info, config })
    }

    /// Asks until `is_so` holds; fails as busy with `what` after a time. Cost: two round trips each
    /// time.
    pub(crate) fn read_when(
        connections: &Connections,
        time_max: Duration,
        what: &str,
        is_so: impl Fn(&Self) -> bool,
    ) -> Result<Self> {
        let started = Instant::now();
        loop {
            let server_info = Self::read(connections)?;
            if is_so(&server_info) {
                return Ok(server_info);
            }
            if started.elapsed() >= time_max {
                let what = format!("{what}, for more than {time_max:?}; try again when it is done");
                return Err(Error::Busy { back_end: NAME, what, source: None });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn info(&self, name: &str) -> &str {
        self.info.get(name).map_or("", String::as_str)
    }

    fn config(&self, name: &str) -> Option<&str> {
        self.config.as_ref()?.get(name).map(String::as_str)
    }

    fn release(&self) -> (u64, u64) {
        // A part that is no number counts as 0, which is too old.
        let mut parts = self.info("redis_version").split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    /// Whether the server keeps a log of what changes.
    pub(crate) fn has_log(&self) -> bool {
        self.info("aof_enabled") == "1"
    }

    fn is_idle(&self, name: &str) -> bool {
        // An older server leaves the field out.
        matches!(self.info(name), "" | "0")
    }

    /// Whether a snapshot is being written in the background.
    pub(crate) fn is_saving(&self) -> bool {
        !self.is_idle("rdb_bgsave_in_progress")
    }

    /// Whether the log is being written anew, or about to be.
    pub(crate) fn is_rewriting_log(&self) -> bool {
        self.has_log()
            && !(self.is_idle("aof_rewrite_in_progress") && self.is_idle("aof_rewrite_scheduled"))
    }

    /// Whether the log has all commits: not until it was written for the first time since it was
    /// turned on. A server does not tell that time from others that it is written anew.
    fn is_log_whole(&self) -> bool {
        !self.is_rewriting_log() && self.info("aof_last_bgrewrite_status") != "err"
    }

    /// Whether each commit is synced before it is confirmed.
    pub(crate) fn syncs_each(&self) -> bool {
        // A rewrite of the log must not suspend the syncs.
        self.has_log()
            && self.config("appendfsync") == Some("always")
            && self.config("no-appendfsync-on-rewrite") == Some("no")
    }

    /// Whether each commit is durable when it is confirmed.
    pub(crate) fn is_always(&self) -> bool {
        self.syncs_each() && self.is_log_whole()
    }

    fn bytes(&self, name: &str, default: usize) -> usize {
        self.config(name).and_then(|text| text.parse().ok()).unwrap_or(default)
    }

    fn query_bytes(&self) -> usize {
        let limit = self.bytes("client-query-buffer-limit", QUERY_BYTES_DEFAULT);
        // The request around a value takes room too.
        limit.saturating_sub(REQUEST_OVERHEAD_BYTES)
    }

    /// Bytes that a value may have.
    pub(crate) fn value_bytes_max(&self) -> usize {
        let bulk = self.bytes("proto-max-bulk-len", BULK_BYTES_DEFAULT);
        // A value must fit into a reply and into a request.
        VALUE_BYTES_MAX.min(bulk).min(self.query_bytes())
    }

    /// Bytes of arguments that one request may have; a value of any size allowed counts as fitting
    /// alone.
    pub(crate) fn batch_bytes_max(&self) -> usize {
        BATCH_BYTES_MAX.min(self.query_bytes() / 2)
    }

    /// Refuses a server that cannot be used as the options ask for.
    pub(crate) fn check(&self, options: &Options) -> Result<()> {
        if self.release() < RELEASE_MIN {
            let (major, minor) = RELEASE_MIN;
            return Err(unsupported(
                format!("Redis {}", self.info("redis_version")),
                format!("needs {major}.{minor} or later"),
            ));
        }

        let policy = self.info("maxmemory_policy");
        if self.info("maxmemory") != "0" && policy.starts_with("allkeys-") {
            return Err(unsupported(
                format!("maxmemory-policy {policy}"),
                "the server would throw entries of the store away: set noeviction",
            ));
        }

        let asked = options.durability;
        let guarantee = self.guarantee();
        let is_enough = match asked {
            Durability::None => true,
            Durability::Buffered => guarantee.durability != Durability::None,
            Durability::Each | Durability::Group => guarantee.power_loss == PowerLoss::EveryCommit,
        };

        if is_enough {
            return Ok(());
        }

        let why = if self.config.is_none() {
            "the server forbids CONFIG GET, so what it promises cannot be told: allow it, or ask for none".to_owned()
        } else {
            format!(
                "{}; set appendonly, appendfsync, no-appendfsync-on-rewrite or save",
                guarantee.text
            )
        };

        Err(unsupported(format!("durability {}", asked.name()), why))
    }

    /// Guarantee of commits.
    pub(crate) fn guarantee(&self) -> Guarantee {
        let (durability, survives_kill, power_loss, text) = self.promise();
        let mut text = format!("Redis, {text}");
        if self.info("connected_slaves") != "0" {
            text.push_str("; a failover to a replica may lose the last commits");
        }
        Guarantee { durability, survives_kill, power_loss, text }
    }

    fn promise(&self) -> (Durability, bool, PowerLoss, &'static str) {
        let none = Durability::None;
        let promised = PowerLoss::NoPromise;
        let asynchronous = |kill, text| (Durability::Buffered, kill, PowerLoss::Consistent, text);
        if self.config.is_none() {
            let text = "its settings not readable (CONFIG GET is forbidden): no promise";
            return (none, false, promised, text);
        }

        if !self.has_log() {
            return match self.config("save") {
                None | Some("") => (
                    none,
                    false,
                    promised,
                    "appendonly no and no snapshots: a stopped server has lost all",
                ),
                Some(_) => asynchronous(
                    false,
                    "appendonly no, snapshots (save) only: a stopped server goes back to the last one",
                ),
            };
        }

        match (self.config("appendfsync"), self.is_always()) {
            (_, true) => (
                Durability::Each,
                true,
                PowerLoss::EveryCommit,
                "appendfsync always: commits survive a loss of power",
            ),
            (Some("always"), false) if self.syncs_each() => asynchronous(
                false,
                "appendfsync always, but the log is being written anew, or that has failed: if it was turned on just before, \
                 a stopped server goes back to what it had on disk then",
            ),
            (Some("always"), false) => asynchronous(
                true,
                "appendfsync always, but no-appendfsync-on-rewrite yes: while the log is rewritten, \
                 a loss of power may take commits",
            ),
            (Some("everysec"), _) => asynchronous(
                false,
                "appendfsync everysec: a loss of power may take about the last second or two, and so may \
                 killing the server while a sync lasts",
            ),
            _ => asynchronous(
                true,
                "appendfsync no: a loss of power may take what the system had not written yet",
            ),
        }
    }

    /// Settings that the server reported, for
    /// [`Database::settings`](terrane_kv::Database::settings).
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![("redis_version", self.info("redis_version").to_owned())];
        settings.extend(SETTINGS.map(|name| {
            let value = match self.config(name) {
                None => "not told (CONFIG GET is forbidden)",
                Some("") => "none",
                Some(value) => value,
            };
            (name, value.to_owned())
        }));
        settings
    }
}

fn text_of(value: Value) -> Result<String> {
    match value {
        Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => Ok(text),
        _ => Err(bad_reply("INFO")),
    }
}

/// Lines `name:value`; others are headings.
fn parse_info(text: &str) -> HashMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn parse_pairs(members: Vec<Value>) -> Result<HashMap<String, String>> {
    let mut pairs = HashMap::new();
    let mut members = members.into_iter();
    while let (Some(name), Some(value)) = (members.next(), members.next()) {
        pairs.insert(text_of(name)?, text_of(value)?);
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_info(info: &[(&str, &str)], config: Option<&[(&str, &str)]>) -> ServerInfo {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let mut info: HashMap<_, _> = map(info);
        for (name, value) in
            [("redis_version", "7.0.15"), ("maxmemory", "0"), ("connected_slaves", "0")]
        {
            info.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
        ServerInfo { info, config: config.map(map) }
    }

    fn logged(fsync: &str, on_rewrite: &str) -> ServerInfo {
        let config =
            [("appendfsync", fsync), ("no-appendfsync-on-rewrite", on_rewrite), ("save", "")];
        server_info(&[("aof_enabled", "1")], Some(&config))
    }

    #[test]
    fn the_promise_follows_from_the_settings() {
        let promise = |server_info: &ServerInfo| {
            let guarantee = server_info.guarantee();
            (guarantee.durability, guarantee.survives_kill, guarantee.power_loss)
        };

        let none = Durability::None;
        let lossy = Durability::Buffered;
        let lost = PowerLoss::NoPromise;
        let consistent = PowerLoss::Consistent;
        let each = (Durability::Each, true, PowerLoss::EveryCommit);
        assert_eq!(promise(&logged("always", "no")), each);
        assert_eq!(promise(&logged("always", "yes")), (lossy, true, consistent));
        assert_eq!(promise(&logged("everysec", "no")), (lossy, false, consistent));
        assert_eq!(promise(&logged("no", "no")), (lossy, true, consistent));
        let unlogged = |save| server_info(&[("aof_enabled", "0")], Some(&[("save", save)]));
        assert_eq!(promise(&unlogged("")), (none, false, lost));
        assert_eq!(promise(&unlogged("3600 1")), (lossy, false, consistent));

        assert_eq!(promise(&server_info(&[("aof_enabled", "1")], None)), (none, false, lost));
    }

    /// A log that was turned on a moment ago is empty on disk until it was written once; its syncs
    /// were taken for durable commits.
    #[test]
    fn a_log_that_is_being_written_anew_promises_less() {
        for field in [
            ("aof_rewrite_in_progress", "1"),
            ("aof_rewrite_scheduled", "1"),
            ("aof_last_bgrewrite_status", "err"),
        ] {
            let mut server_info = logged("always", "no");
            server_info.info.insert(field.0.to_owned(), field.1.to_owned());
            let guarantee = server_info.guarantee();
            assert_eq!(guarantee.durability, Durability::Buffered, "{field:?}");
            assert!(!guarantee.survives_kill && guarantee.power_loss == PowerLoss::Consistent);
        }
    }

    #[test]
    fn more_than_the_server_promises_is_refused() {
        let takes = |server_info: &ServerInfo, durability| {
            server_info.check(&Options::server("redis://h").durability(durability)).is_ok()
        };
        let all = [Durability::None, Durability::Buffered, Durability::Each, Durability::Group];
        let taken = |server_info: ServerInfo| all.map(|durability| takes(&server_info, durability));
        assert_eq!(taken(logged("always", "no")), [true; 4]);
        assert_eq!(taken(logged("everysec", "no")), [true, true, false, false]);

        assert_eq!(
            taken(server_info(&[("aof_enabled", "0")], Some(&[("save", "")]))),
            [true, false, false, false]
        );

        assert_eq!(taken(server_info(&[("aof_enabled", "1")], None)), [true, false, false, false]);
    }

    #[test]
    fn servers_that_are_old_or_evict_are_refused() {
        let takes = |info: &[(&str, &str)]| {
            server_info(info, None).check(&Options::server("redis://h")).is_ok()
        };
        assert!(takes(&[]));
        assert!(!takes(&[("redis_version", "6.2.14")]));
        let evicting = |policy| takes(&[("maxmemory", "1000"), ("maxmemory_policy", policy)]);
        assert!(evicting("noeviction") && evicting("volatile-lru") && !evicting("allkeys-lru"));
    }
}
