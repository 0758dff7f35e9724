//! Connections to a server or cluster, in a pool that opens them on demand.
//!
//! Invariant: a connection in the pool has no answer outstanding. A connection whose call failed
//! other than by an error reply is closed, and all idle connections with it: the cause, such as a
//! restart of the server, usually breaks all of them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use ::redis::cluster::{ClusterClient, ClusterConnection};
use ::redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use ::redis::{Arg, Cmd, ErrorKind, IntoConnectionInfo, RedisError, ServerErrorKind, Value};
use terrane_kv::{Error, Result};

use super::error::{NAME, error_of};
use super::options::Options;
use super::script::Call;
use super::tls;

/// Retries of the cluster client, at another server if need be.
const CLUSTER_RETRIES: u32 = 3;

/// Attempts of an idempotent call.
const ATTEMPTS_MAX: u32 = 3;

/// Failure of a call, by what is known of its outcome.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The call was not sent.
    NotSent(Error),
    /// The server answered with an error. A cluster may have received the call twice and executed
    /// the first one.
    Said(RedisError),
    /// The call was sent, at least in part, and no answer arrived.
    Lost(RedisError),
}

impl Failure {
    pub(crate) fn into_error(self, call: &'static str) -> Error {
        match self {
            Self::NotSent(error) => error,
            Self::Said(error) | Self::Lost(error) => error_of(call, error),
        }
    }

    /// Whether another connection may succeed at once: the server closed this one while it was
    /// idle, or a signal ended the wait on the socket.
    pub(crate) fn may_be_stale(&self) -> bool {
        matches!(self, Self::Lost(error) if !error.is_timeout())
    }
}

/// Repeats an idempotent call while another connection may succeed.
fn again(
    attempt: impl Fn() -> std::result::Result<Value, Failure>,
) -> std::result::Result<Value, Failure> {
    // The pool may hold connections that a restarted server has closed.
    for _ in 1..ATTEMPTS_MAX {
        match attempt() {
            Err(failure) if failure.may_be_stale() => {}
            outcome => return outcome,
        }
    }
    attempt()
}

enum Client {
    Server(Box<::redis::Client>),
    Cluster(Box<ClusterClient>),
}

enum Connection {
    Server(Box<::redis::Connection>),
    Cluster(Box<ClusterConnection>),
}

impl Connection {
    fn query(&mut self, command: &Cmd) -> ::redis::RedisResult<Value> {
        match self {
            Self::Server(connection) => command.query(connection.as_mut()),
            Self::Cluster(connection) => command.query(connection.as_mut()),
        }
    }
}

#[derive(Default)]
struct Pool {
    idle: Vec<Connection>,
    in_use: usize,
}

/// Pool of connections to a server or cluster.
pub(crate) struct Connections {
    client: Client,
    options: Options,
    /// Key whose slot decides the server of commands without a key.
    route_key: Vec<u8>,
    pool: Mutex<Pool>,
    returned: Condvar,
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("to", &self.address()).finish_non_exhaustive()
    }
}

impl Connections {
    /// Checks the options; opens no connection yet.
    pub(crate) fn new(options: &Options, route_key: Vec<u8>) -> Result<Self> {
        let client = client(options)?;
        Ok(Self {
            client,
            options: options.clone(),
            route_key,
            pool: Mutex::default(),
            returned: Condvar::new(),
            bytes_sent: AtomicU64::new(0),
            bytes_received: AtomicU64::new(0),
        })
    }

    /// Addresses of the servers, without user and password.
    pub(crate) fn address(&self) -> String {
        let address = |url: &String| {
            let info = url.as_str().into_connection_info();
            info.map_or_else(|_| "?".to_owned(), |info| info.addr().to_string())
        };
        self.options.urls.iter().map(address).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.options.urls.iter().any(|url| tls::is_asked(url))
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.client, Client::Cluster(_))
    }

    /// Bytes of sent arguments and of received answers.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.bytes_sent.load(Ordering::Relaxed), self.bytes_received.load(Ordering::Relaxed))
    }

    /// Runs a script. Cost: one round trip; three the first time on a server.
    pub(crate) fn eval(&self, call: &Call<'_>) -> std::result::Result<Value, Failure> {
        self.with_connection(|connection| {
            // Most servers know the script, so its hash comes first.
            let outcome = self.query(connection, &call.command(true));
            match &outcome {
                // A server that was started anew does not know the script.
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    self.query(connection, &call.command(false))
                }
                _ => outcome,
            }
        })
    }

    /// Runs an idempotent script, again if need be.
    pub(crate) fn eval_again(&self, call: &Call<'_>) -> Result<Value> {
        again(|| self.eval(call)).map_err(|failure| failure.into_error(call.script.name))
    }

    /// Runs an idempotent command without keys on the server that has the store.
    pub(crate) fn admin(&self, command: &Cmd) -> std::result::Result<Value, Failure> {
        again(|| self.admin_once(command))
    }

    fn admin_once(&self, command: &Cmd) -> std::result::Result<Value, Failure> {
        self.with_connection(|connection| {
            self.count(&self.bytes_sent, sent(command));
            let value = match connection {
                Connection::Server(connection) => command.query(connection.as_mut()),
                Connection::Cluster(connection) => {
                    // A command without a key must still reach the node that has the database.
                    let route = Route::with_key(&self.route_key, SlotAddr::Master);
                    let node = SingleNodeRoutingInfo::SpecificNode(route);
                    connection.route_command(command, RoutingInfo::SingleNode(node))
                }
            }?;
            self.count(&self.bytes_received, received(&value));
            Ok(value)
        })
    }

    /// Closes all connections that nobody uses.
    pub(crate) fn close_idle(&self) {
        self.pool().idle.clear();
    }

    fn query(&self, connection: &mut Connection, command: &Cmd) -> ::redis::RedisResult<Value> {
        self.count(&self.bytes_sent, sent(command));
        let value = connection.query(command)?;
        self.count(&self.bytes_received, received(&value));
        Ok(value)
    }

    #[expect(clippy::unused_self, reason = "reads as what it is")]
    fn count(&self, counter: &AtomicU64, bytes: u64) {
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    fn with_connection(
        &self,
        work: impl FnOnce(&mut Connection) -> ::redis::RedisResult<Value>,
    ) -> std::result::Result<Value, Failure> {
        let mut connection = self.take().map_err(Failure::NotSent)?;
        let outcome = work(&mut connection).map_err(|error| match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => Failure::Said(error),
            _ => Failure::Lost(error),
        });

        let mut pool = self.pool();
        debug_assert!(0 < pool.in_use);
        pool.in_use -= 1;

        // The idle connections are as old as the lost one, and most likely lost too.
        if matches!(outcome, Err(Failure::Lost(_))) {
            pool.idle.clear();
        } else {
            pool.idle.push(connection);
        }

        drop(pool);
        self.returned.notify_one();
        outcome
    }

    fn take(&self) -> Result<Connection> {
        let mut pool = self.pool();
        loop {
            if let Some(connection) = pool.idle.pop() {
                pool.in_use += 1;
                return Ok(connection);
            }

            if pool.in_use < self.options.pool {
                pool.in_use += 1;
                debug_assert!(pool.in_use <= self.options.pool, "the pool is bounded");
                // Connecting may take long, so it goes without the lock.
                drop(pool);
                return self.connect().map_err(|error| {
                    self.pool().in_use -= 1;
                    self.returned.notify_one();
                    error_of("connecting", error)
                });
            }

            let waited = self.returned.wait_timeout(pool, self.options.read_timeout);
            let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            pool = after;

            if timeout.timed_out() && pool.idle.is_empty() {
                let what = format!("all {} connections are in use", self.options.pool);
                return Err(Error::Busy { back_end: NAME, what, source: None });
            }
        }
    }

    /// Connects; repeats a handshake that a signal or a suspended machine interrupted.
    fn connect(&self) -> ::redis::RedisResult<Connection> {
        for _ in 1..ATTEMPTS_MAX {
            match self.connect_once() {
                Err(error) if is_passing(&error) => {}
                connected => return connected,
            }
        }
        self.connect_once()
    }

    fn connect_once(&self) -> ::redis::RedisResult<Connection> {
        let options = &self.options;
        match &self.client {
            Client::Server(client) => {
                let connection = client.get_connection_with_timeout(options.connect_timeout)?;
                connection.set_read_timeout(Some(options.read_timeout))?;
                connection.set_write_timeout(Some(options.write_timeout))?;
                Ok(Connection::Server(Box::new(connection)))
            }
            Client::Cluster(client) => {
                let connection = client.get_connection()?;
                connection.set_read_timeout(Some(options.read_timeout))?;
                connection.set_write_timeout(Some(options.write_timeout))?;
                Ok(Connection::Cluster(Box::new(connection)))
            }
        }
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a failed handshake may succeed at once: the wait for the answer to `HELLO`, `AUTH` or
/// `SELECT` ended early, and the server neither refused nor was missing.
fn is_passing(error: &RedisError) -> bool {
    error.is_io_error() && !error.is_timeout() && !error.is_connection_refusal()
}

fn client(options: &Options) -> Result<Client> {
    let bad_url = |error| error_of("the URL", error);
    #[cfg(feature = "redis-tls")]
    let certificates = tls::certificates(&options.urls, options.ca_file.as_deref())?;
    if options.cluster {
        let urls = options.urls.iter().map(String::as_str);
        let client = ClusterClient::builder(urls)
            .retries(CLUSTER_RETRIES)
            .connection_timeout(options.connect_timeout)
            .response_timeout(options.read_timeout);

        let client = match &options.password {
            Some(password) => client.password(password),
            None => client,
        };

        #[cfg(feature = "redis-tls")]
        let client = match certificates {
            Some(certificates) => client.certs(certificates),
            None => client,
        };

        return Ok(Client::Cluster(Box::new(client.build().map_err(bad_url)?)));
    }

    let mut info = options.urls[0].as_str().into_connection_info().map_err(bad_url)?;
    if let Some(password) = &options.password {
        let settings = info.redis_settings().clone().set_password(password);
        info = info.set_redis_settings(settings);
    }

    if let Some(number) = options.database {
        let settings = info.redis_settings().clone().set_db(number);
        info = info.set_redis_settings(settings);
    }

    #[cfg(feature = "redis-tls")]
    if let Some(certificates) = certificates {
        let client = ::redis::Client::build_with_tls(info, certificates).map_err(bad_url)?;
        return Ok(Client::Server(Box::new(client)));
    }

    Ok(Client::Server(Box::new(::redis::Client::open(info).map_err(bad_url)?)))
}

/// Bytes of the arguments of a command.
fn sent(command: &Cmd) -> u64 {
    let bytes = |argument| match argument {
        Arg::Simple(bytes) => <[u8]>::len(bytes) as u64,
        _ => 0,
    };
    command.args_iter().map(bytes).sum()
}

/// Bytes of the strings of an answer, and eight for a number. Scripts answer with these, and arrays
/// of them, only.
fn received(value: &Value) -> u64 {
    match value {
        Value::BulkString(bytes) => bytes.len() as u64,
        Value::SimpleString(text) => text.len() as u64,
        Value::Int(_) => 8,
        Value::Array(members) => members.iter().map(received).sum(),
        _ => 0,
    }
}
