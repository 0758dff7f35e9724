//! Servers and clusters of Redis on the loopback, for tests and benchmarks.
//!
//! Dropping a handle stops its process, also during a panic. A server does not read the system's
//! configuration of Redis, and writes files only in the directory it is given.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ::redis::{Client, Cmd, IntoConnectionInfo as _, Value};

/// How long a server may take to answer, and a cluster to agree.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// How long to wait before asking again.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How often another port is tried where somebody else took the first.
const PORTS_TRIED_MAX: usize = 5;
/// Hash slots of a cluster.
const SLOTS: usize = 16_384;

/// Whether there is a program `redis-server`.
pub fn is_installed() -> bool {
    let output = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    output.is_ok_and(|status| status.success())
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    port: u16,
    bus_port: u16,
    dir: PathBuf,
    arguments: Vec<String>,
}

impl Server {
    /// Starts a server in a directory, which must be there, on a free port. `arguments` are
    /// settings as its command line takes them, such as `["--appendonly", "yes"]`; without any it
    /// keeps nothing on disk. Returns when it answers.
    ///
    /// # Errors
    /// Those of starting a program, and that it does not answer; what it printed is in `redis.log`
    /// in the directory.
    pub fn start(dir: &Path, arguments: &[&str]) -> io::Result<Self> {
        let arguments: Vec<String> =
            arguments.iter().map(|&argument| argument.to_owned()).collect();

        // Another process may take a port before the server does, so other ports are tried.
        let mut tried = 0;
        loop {
            tried += 1;
            let port = free_port()?;
            let bus_port = free_port()?;
            let child = spawn(dir, port, bus_port, &arguments)?;
            let mut server =
                Self { child, port, bus_port, dir: dir.to_owned(), arguments: arguments.clone() };
            match server.wait() {
                Ok(()) => return Ok(server),
                Err(error) if tried == PORTS_TRIED_MAX => return Err(error),
                Err(_) => {}
            }
        }
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The password that its arguments ask for (`--requirepass`).
    fn password(&self) -> Option<&str> {
        let at = self.arguments.iter().position(|argument| argument == "--requirepass")?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// Sends it a command of words, with the password that it was started with. For what tests and
    /// benchmarks set and ask.
    ///
    /// # Errors
    /// Those of the connection, and error replies.
    pub fn command(&self, words: &[&str]) -> io::Result<Value> {
        let mut info = self.url().into_connection_info().map_err(io::Error::other)?;
        if let Some(password) = self.password() {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        let client = Client::open(info).map_err(io::Error::other)?;
        let mut connection =
            client.get_connection_with_timeout(START_TIME_MAX).map_err(io::Error::other)?;
        let mut command = Cmd::new();
        command.arg(words);
        command.query(&mut connection).map_err(io::Error::other)
    }

    /// Ends the process at once, as `kill -9` does.
    ///
    /// # Errors
    /// Those of the system.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts a server that was killed again: same directory, port and settings.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn restart(&mut self) -> io::Result<()> {
        self.child = spawn(&self.dir, self.port, self.bus_port, &self.arguments)?;
        self.wait()
    }

    /// Stops the process without ending it: connections stay, and nothing is answered.
    ///
    /// # Errors
    /// Those of the system.
    pub fn pause(&self) -> io::Result<()> {
        self.signal("STOP")
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// Those of the system.
    pub fn resume(&self) -> io::Result<()> {
        self.signal("CONT")
    }

    fn signal(&self, name: &str) -> io::Result<()> {
        let kill = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").arg("-c").arg(kill).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other("kill failed")) }
    }

    fn wait(&mut self) -> io::Result<()> {
        let start = Instant::now();
        loop {
            // A server that has ended will never answer.
            if let Some(status) = self.child.try_wait()? {
                let log = self.dir.join("redis.log");
                let why = format!("redis-server ended ({status}); see {}", log.display());
                return Err(io::Error::other(why));
            }
            // While it loads its data it answers with an error.
            match self.command(&["PING"]) {
                Ok(_) => return Ok(()),
                Err(error) if start.elapsed() > START_TIME_MAX => return Err(error),
                Err(_) => thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been killed already.
        drop(self.kill());
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn spawn(dir: &Path, port: u16, bus_port: u16, arguments: &[String]) -> io::Result<Child> {
    let log = File::options().create(true).append(true).open(dir.join("redis.log"))?;
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--daemonize", "no"]);
    command.args(["--save", "", "--appendonly", "no", "--cluster-port", &bus_port.to_string()]);
    command.arg("--dir").arg(dir).args(arguments);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn()
}

/// A cluster of masters that have the hash slots between them.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster, each server in a directory of its own below `dir`. Returns when all agree.
    ///
    /// # Errors
    /// Those of [`Server::start`]; also if the servers do not agree.
    pub fn start(dir: &Path, masters: usize, arguments: &[&str]) -> io::Result<Self> {
        let mut servers = Vec::new();
        for number in 0..masters {
            let dir = dir.join(format!("master-{number}"));
            fs::create_dir_all(&dir)?;
            let arguments = [&["--cluster-enabled", "yes"], arguments].concat();
            servers.push(Server::start(&dir, &arguments)?);
        }

        for (number, server) in servers.iter().enumerate() {
            // The slots are divided evenly among the masters.
            let first = number * SLOTS / masters;
            let last = (number + 1) * SLOTS / masters - 1;
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            let first = first.to_string();
            let last = last.to_string();
            server.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
            let port = servers[0].port.to_string();
            let bus_port = servers[0].bus_port.to_string();
            server.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port])?;
        }

        let cluster = Self { servers };
        let start = Instant::now();
        while !cluster.agrees()? {
            if start.elapsed() > START_TIME_MAX {
                return Err(io::Error::other("the servers of the cluster do not agree"));
            }
            thread::sleep(POLL_INTERVAL);
        }

        Ok(cluster)
    }

    /// The URLs of its servers.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.servers.iter().map(Server::url).collect()
    }

    /// Its servers.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The server that has the slot of a prefix.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn master_of(&mut self, prefix: &str) -> io::Result<&mut Server> {
        let slot = self.servers[0].command(&["CLUSTER", "KEYSLOT", prefix])?;
        let Value::Int(slot) = slot else { return Err(io::Error::other("no slot")) };
        let slot = usize::try_from(slot).map_err(io::Error::other)?;
        let masters = self.servers.len();
        let owner = (0..masters).find(|number| slot < (number + 1) * SLOTS / masters);
        let owner = owner.ok_or_else(|| io::Error::other("no such slot"))?;
        Ok(&mut self.servers[owner])
    }

    /// Whether every server knows all slots, and that all of them are served.
    fn agrees(&self) -> io::Result<bool> {
        for server in &self.servers {
            let Value::BulkString(info) = server.command(&["CLUSTER", "INFO"])? else {
                return Err(io::Error::other("CLUSTER INFO answers no text"));
            };
            let info = String::from_utf8_lossy(&info);
            let known = format!("cluster_known_nodes:{}", self.servers.len());
            let has = |line: &str| info.lines().any(|found| found.trim_end() == line);
            if !(has("cluster_state:ok") && has("cluster_slots_ok:16384") && has(&known)) {
                return Ok(false);
            }
        }

        Ok(true)
    }
}
