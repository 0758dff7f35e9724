//! A throw-away cluster of Apache Cassandra: three nodes on loopback addresses, and the tests of
//! `crates/cassandra` on it.
//!
//! The server comes from its Maven artefacts, by `mvn`, once; it needs no installer. Nodes run
//! under the installed Java 17 with 512 MiB of heap each. Everything lies below
//! `target/cassandra`. Where Java, Maven or the artefacts cannot be had, the output says `skipped`,
//! and no test of the cluster counts as passed.
//!
//! A cluster of tests asks for a password, and speaks TLS and plain text on one port. A cluster
//! that is started to stay asks for nothing.
//!
//! Layout of `target/cassandra`: `VERSION/lib` with the jars, `cluster/node-N` with the files of
//! a node: `cassandra.yaml`, `java.args`, `pid`, `log`, `data`. Of a cluster of tests `cluster` has
//! also `password`, `node.p12` and `node.pem` with the certificate of all nodes, and `other.pem`
//! with one that no node has.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::workspace::Workspace;

/// Version of the server.
const VERSION: &str = "5.0.6";
/// Nodes of the cluster.
const NODES: u8 = 3;
/// Port of CQL on each address; not the usual one, which may be taken.
const CQL_PORT: u16 = 19_042;
/// Port between nodes.
const STORAGE_PORT: u16 = 17_000;
/// Heap of a node.
const HEAP: &str = "512m";
/// The user that a cluster with passwords begins with, and its password.
const USER: (&str, &str) = ("cassandra", "cassandra");
/// Password of the file with the nodes' key.
const STORE_PASSWORD: &str = "of a throw-away cluster";
/// Line of a log behind which the user can log in.
const USER_MADE: &str = "Created default superuser role";
/// How long a node may take to answer.
const START_MAX: Duration = Duration::from_secs(180);

/// First tokens of the nodes: thirds of the ring.
const TOKENS: [i64; NODES as usize] =
    [-9_223_372_036_854_775_808, -3_074_457_345_618_258_603, 3_074_457_345_618_258_602];

/// Packages that the modules of Java 17 must open to the server, from its own list of options.
const OPENED: [&str; 23] = [
    "exports java.base/jdk.internal.misc",
    "exports java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "exports java.rmi/sun.rmi.registry",
    "exports java.rmi/sun.rmi.server",
    "exports java.sql/java.sql",
    "exports java.base/java.lang.ref",
    "exports jdk.unsupported/sun.misc",
    "exports jdk.compiler/com.sun.tools.javac.file",
    "exports jdk.attach/sun.tools.attach",
    "opens java.base/java.lang.module",
    "opens java.base/jdk.internal.loader",
    "opens java.base/jdk.internal.ref",
    "opens java.base/jdk.internal.reflect",
    "opens java.base/jdk.internal.math",
    "opens java.base/jdk.internal.module",
    "opens java.base/jdk.internal.util.jar",
    "opens jdk.management/com.sun.management.internal",
    "opens java.base/sun.nio.ch",
    "opens java.base/java.io",
    "opens java.base/java.lang.reflect",
    "opens jdk.compiler/com.sun.tools.javac",
    "opens java.base/java.lang",
    "opens java.base/java.util",
];

/// Work on the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Lints, tests without a cluster, then a cluster, its tests, and its end.
    Test,
    /// Starts a cluster without passwords, and leaves it running.
    Start(CommitLog),
    /// Ends the cluster and removes its files.
    Stop,
}

/// When nodes sync their commit logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommitLog {
    /// Every ten seconds, the default of the server.
    Periodic,
    /// Before each answer.
    Batch,
}

/// Whom nodes let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Everybody, in plain text.
    Open,
    /// Clients with the password, in plain text or over TLS.
    Guarded,
}

/// Runs `mode`.
///
/// # Errors
/// A sentence: what failed.
pub(crate) fn run(workspace: &Workspace, mode: Mode) -> Result<(), String> {
    let place = workspace.target().join("cassandra");
    let cluster = Cluster { folder: place.join("cluster"), jars: place.join(VERSION).join("lib") };
    match mode {
        Mode::Stop => cluster.stop(),
        Mode::Start(log) => match cluster.start(log, Access::Open)? {
            None => {
                println!("nodes: {}", addresses());
                Ok(())
            }
            Some(missing) => Err(format!("cassandra: {missing}")),
        },
        Mode::Test => test(workspace, &cluster),
    }
}

fn test(workspace: &Workspace, cluster: &Cluster) -> Result<(), String> {
    let own = |arguments: &[&str]| workspace.cargo_in("crates/cassandra", arguments);
    take("fmt cassandra", &mut own(&["fmt", "--check"]))?;
    take("clippy cassandra", &mut own(&["clippy", "--all-targets", "--", "-D", "warnings"]))?;
    take("test cassandra", &mut own(&["test", "--lib"]))?;
    let mut docs = own(&["doc", "--no-deps", "--document-private-items"]);
    take("doc cassandra", docs.env("RUSTDOCFLAGS", "-D warnings"))?;
    let program = ["-p", "terrane-cli", "--features", "cassandra"];
    let lints = [&["clippy"], &program[..], &["--all-targets", "--", "-D", "warnings"]].concat();
    take("clippy program", &mut workspace.cargo(&lints))?;
    let facade = ["test", "-p", "terrane", "--features", "cassandra", "--lib"];
    take("test facade", &mut workspace.cargo(&facade))?;

    if let Some(missing) = cluster.start(CommitLog::Periodic, Access::Guarded)? {
        println!("cassandra: tests on a cluster: skipped: {missing}");
        return Ok(());
    }
    let mut tests = own(&["test", "--test", "cluster", "--", "--test-threads=1", "--nocapture"]);
    tests.env("TERRANE_TEST_CQL", addresses());
    tests.env("TERRANE_TEST_CASSANDRA_DIR", &cluster.folder);
    tests.env("TERRANE_CASSANDRA_USER", USER.0);
    tests.env("TERRANE_CASSANDRA_PASSWORD_FILE", cluster.folder.join("password"));
    let tested = take("test cluster", &mut tests);
    let stopped = cluster.stop();
    tested.and(stopped)
}

fn take(name: &str, command: &mut Command) -> Result<(), String> {
    println!("==> {name}");
    let start = Instant::now();
    let status = command.status().map_err(|error| format!("{name}: {error}"))?;
    println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
    if status.success() { Ok(()) } else { Err(format!("{name} failed ({status})")) }
}

struct Cluster {
    folder: PathBuf,
    jars: PathBuf,
}

impl Cluster {
    /// Starts a new cluster; returns why it cannot be had, if so.
    fn start(&self, log: CommitLog, access: Access) -> Result<Option<String>, String> {
        let version = Command::new("java").arg("-version").stderr(Stdio::piped()).output();
        let is_java = version
            .is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("version \"17."));
        if !is_java {
            return Ok(Some("there is no Java 17 on this machine".to_owned()));
        }
        if let Some(missing) = self.fetch()? {
            return Ok(Some(missing));
        }

        self.stop()?;
        if access == Access::Guarded {
            self.write_secrets()?;
        }
        for node in 1..=NODES {
            if TcpStream::connect(cql_address(node)).is_ok() {
                return Err(format!(
                    "cassandra: {} is taken by another process",
                    cql_address(node)
                ));
            }
            self.write(node, log, access)?;
            self.launch(node)?;
            // The next one must find this one in the ring.
            if let Err(why) = self.wait(node) {
                self.stop()?;
                return Err(why);
            }
        }
        if access == Access::Guarded
            && let Err(why) = self.wait_for_user()
        {
            self.stop()?;
            return Err(why);
        }
        Ok(None)
    }

    /// Writes the password, and two self-signed certificates: that of the nodes, and another one.
    fn write_secrets(&self) -> Result<(), String> {
        fs::create_dir_all(&self.folder).map_err(|error| format!("cluster: {error}"))?;
        write(&self.folder, "password", USER.1)?;
        let addresses: Vec<String> =
            (1..=NODES).map(|node| format!("ip:{}", cql_address(node).ip())).collect();
        let addresses = format!("san={}", addresses.join(","));

        for name in ["node", "other"] {
            let keys = self.folder.join(format!("{name}.p12"));
            let certificate = self.folder.join(format!("{name}.pem"));
            let tool = |arguments: &[&str]| {
                let mut tool = Command::new("keytool");
                tool.args(arguments).args(["-alias", "node", "-storetype", "PKCS12"]);
                tool.args(["-storepass", STORE_PASSWORD]).arg("-keystore").arg(&keys);
                tool.stderr(Stdio::null());
                tool
            };
            let mut make = tool(&["-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1"]);
            make.args(["-dname", "CN=terrane", "-ext", &addresses]);
            let mut export = tool(&["-exportcert", "-rfc"]);
            export.arg("-file").arg(&certificate);
            for mut command in [make, export] {
                let status = command.status().map_err(|error| format!("keytool: {error}"))?;
                if !status.success() {
                    return Err(format!("keytool failed ({status})"));
                }
            }
        }
        Ok(())
    }

    /// Waits until the nodes have made the user.
    fn wait_for_user(&self) -> Result<(), String> {
        let start = Instant::now();
        let is_made = |node| {
            let log = fs::read_to_string(self.node(node).join("log"));
            log.is_ok_and(|log| log.contains(USER_MADE))
        };
        while !(1..=NODES).any(is_made) {
            if start.elapsed() > START_MAX {
                return Err("cassandra: the nodes have made no user".to_owned());
            }
            sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn node(&self, node: u8) -> PathBuf {
        self.folder.join(format!("node-{node}"))
    }

    /// Fetches the jars, once; returns why they cannot be had, if so.
    fn fetch(&self) -> Result<Option<String>, String> {
        if self.jars.join(format!("cassandra-all-{VERSION}.jar")).exists() {
            return Ok(None);
        }
        let new = self.jars.with_extension("new");
        fs::create_dir_all(&new).map_err(|error| format!("{}: {error}", new.display()))?;
        write(&new, "pom.xml", &project())?;

        println!("==> fetch cassandra-all {VERSION}");
        let mut maven = Command::new("mvn");
        maven.args(["-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]);
        maven.arg(format!("-DoutputDirectory={}", new.display())).current_dir(&new);
        match maven.status() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Some("there is no Maven on this machine".to_owned()))
            }
            Err(error) => Err(format!("mvn: {error}")),
            Ok(status) if !status.success() => {
                Ok(Some(format!("mvn cannot fetch cassandra-all {VERSION} ({status})")))
            }
            Ok(_) => {
                // A fetch that was interrupted leaves the folder under its other name.
                fs::rename(&new, &self.jars).map_err(|error| format!("lib: {error}"))?;
                Ok(None)
            }
        }
    }

    /// Writes the files of a node.
    fn write(&self, node: u8, log: CommitLog, access: Access) -> Result<(), String> {
        let folder = self.node(node);
        fs::create_dir_all(folder.join("conf")).map_err(|error| format!("node: {error}"))?;
        let guard = match access {
            Access::Open => String::new(),
            Access::Guarded => guard(&self.folder),
        };
        let settings = settings(&folder, node, log) + &guard;
        write(&folder, "conf/cassandra.yaml", &settings)?;
        write(&folder, "conf/logback.xml", LOGBACK)?;
        write(&folder, "conf/cassandra-rackdc.properties", "dc=datacenter1\nrack=rack1\n")?;
        write(&folder, "java.args", &self.arguments(&folder)?)
    }

    /// Arguments of Java, one a line.
    fn arguments(&self, folder: &Path) -> Result<String, String> {
        let names = fs::read_dir(&self.jars).map_err(|error| format!("jars: {error}"))?;
        let agent = names
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("jamm-"))
            })
            .ok_or("the jars of Cassandra have no jamm")?;

        let folder = folder.display();
        let jars = self.jars.display();
        let mut lines = vec![
            format!("-Xms{HEAP}"),
            format!("-Xmx{HEAP}"),
            "-XX:MaxDirectMemorySize=256m".to_owned(),
            // Little memory and two cores: the collector with the fewest threads.
            "-XX:+UseSerialGC".to_owned(),
            "-XX:+HeapDumpOnOutOfMemoryError".to_owned(),
            format!("-XX:HeapDumpPath={folder}"),
            "-Xss256k".to_owned(),
            format!("-javaagent:{}", agent.display()),
            "-Djdk.attach.allowAttachSelf=true".to_owned(),
            "-Dio.netty.tryReflectionSetAccessible=true".to_owned(),
            format!("-Dcassandra.config=file://{folder}/conf/cassandra.yaml"),
            format!("-Dcassandra.storagedir={folder}"),
            format!("-Dcassandra.logdir={folder}"),
            "-Dcassandra-foreground=yes".to_owned(),
            // A ring of three nodes on one machine settles at once.
            "-Dcassandra.ring_delay_ms=2000".to_owned(),
            "-Dcassandra.skip_wait_for_gossip_to_settle=0".to_owned(),
            "-Dcassandra.consistent.rangemovement=false".to_owned(),
            // Users on all nodes, so that any of them may be away; made once two nodes are there.
            format!("-Dcassandra.system_auth.default_rf={NODES}"),
            "-Dcassandra.superuser_setup_delay_ms=1000".to_owned(),
        ];
        for opened in OPENED {
            let (kind, module) = opened.split_once(' ').unwrap_or_default();
            lines.push(format!("--add-{kind}"));
            lines.push(format!("{module}=ALL-UNNAMED"));
        }
        lines.push("-cp".to_owned());
        lines.push(format!("{folder}/conf:{jars}/*"));
        lines.push("org.apache.cassandra.service.CassandraDaemon".to_owned());
        Ok(lines.join("\n") + "\n")
    }

    /// Starts a node, which goes on when this program ends.
    fn launch(&self, node: u8) -> Result<(), String> {
        let folder = self.node(node);
        let log = fs::File::create(folder.join("log")).map_err(|error| format!("log: {error}"))?;
        let errors = log.try_clone().map_err(|error| format!("log: {error}"))?;
        let mut java = Command::new("java");
        java.arg(format!("@{}", folder.join("java.args").display())).current_dir(&folder);
        java.stdin(Stdio::null()).stdout(log).stderr(errors);
        println!("==> start node {node} at {}", cql_address(node));
        let java = java.spawn().map_err(|error| format!("java: {error}"))?;
        write(&folder, "pid", &java.id().to_string())
    }

    /// Waits until a node answers.
    fn wait(&self, node: u8) -> Result<(), String> {
        let start = Instant::now();
        while TcpStream::connect(cql_address(node)).is_err() {
            if start.elapsed() > START_MAX {
                let log = fs::read_to_string(self.node(node).join("log")).unwrap_or_default();
                let lines: Vec<&str> = log.lines().rev().take(30).collect();
                let end: Vec<&str> = lines.into_iter().rev().collect();
                return Err(format!("cassandra: node {node} does not answer:\n{}", end.join("\n")));
            }
            sleep(Duration::from_millis(200));
        }
        println!("node {node} answers after {:.1} s", start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Ends all nodes of this folder, and removes their files.
    fn stop(&self) -> Result<(), String> {
        for node in 1..=NODES {
            let folder = self.node(node);
            let Ok(pid) = fs::read_to_string(folder.join("pid")) else { continue };
            let pid = pid.trim();
            // The number may belong to another program by now, which must not be ended.
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if !command.contains(&folder.join("java.args").display().to_string()) {
                continue;
            }
            let killed = Command::new("kill").args(["-9", pid]).status();
            killed.map_err(|error| format!("kill: {error}"))?;
            while Path::new("/proc").join(pid).join("exe").exists() {
                sleep(Duration::from_millis(50));
            }
        }
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(format!("{}: {error}", self.folder.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Addresses of the nodes, with commas between them.
fn addresses() -> String {
    let nodes: Vec<String> = (1..=NODES).map(|node| cql_address(node).to_string()).collect();
    nodes.join(",")
}

fn cql_address(node: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(127, 0, 0, node), CQL_PORT))
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), String> {
    fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))
}

/// A project whose dependencies are the server's.
fn project() -> String {
    format!(
        r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>terrane</groupId>
  <artifactId>cassandra</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.cassandra</groupId>
      <artifactId>cassandra-all</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"#
    )
}

/// Warnings and what a node says of its start.
const LOGBACK: &str = r#"<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %d{HH:mm:ss.SSS} %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT"/></root>
</configuration>
"#;

/// Settings of a node; all others are the server's defaults.
fn settings(folder: &Path, node: u8, log: CommitLog) -> String {
    let folder = folder.display();
    let token = TOKENS[usize::from(node) - 1];
    let sync = match log {
        CommitLog::Periodic => "commitlog_sync: periodic\ncommitlog_sync_period: 10000ms",
        CommitLog::Batch => "commitlog_sync: batch",
    };
    format!(
        "cluster_name: terrane\n\
         num_tokens: 1\n\
         initial_token: {token}\n\
         auto_bootstrap: false\n\
         partitioner: org.apache.cassandra.dht.Murmur3Partitioner\n\
         endpoint_snitch: GossipingPropertyFileSnitch\n\
         seed_provider:\n  - class_name: org.apache.cassandra.locator.SimpleSeedProvider\n    \
         parameters:\n      - seeds: \"127.0.0.1:{STORAGE_PORT}\"\n\
         listen_address: 127.0.0.{node}\n\
         rpc_address: 127.0.0.{node}\n\
         storage_port: {STORAGE_PORT}\n\
         native_transport_port: {CQL_PORT}\n\
         data_file_directories: [{folder}/data]\n\
         commitlog_directory: {folder}/commitlog\n\
         saved_caches_directory: {folder}/saved_caches\n\
         hints_directory: {folder}/hints\n\
         cdc_raw_directory: {folder}/cdc\n\
         {sync}\n\
         commitlog_total_space: 256MiB\n\
         memtable_heap_space: 96MiB\n\
         memtable_offheap_space: 96MiB\n\
         file_cache_size: 32MiB\n\
         key_cache_size: 16MiB\n\
         concurrent_reads: 16\n\
         concurrent_writes: 16\n\
         auto_snapshot: false\n"
    )
}

/// Settings of a node that asks for a password, and speaks TLS with who wants it.
fn guard(cluster: &Path) -> String {
    let keys = cluster.join("node.p12");
    format!(
        "authenticator: PasswordAuthenticator\n\
         client_encryption_options:\n  enabled: true\n  optional: true\n  \
         require_client_auth: false\n  keystore: {}\n  keystore_password: {STORE_PASSWORD}\n  \
         store_type: PKCS12\n",
        keys.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_differ_in_address_and_token() {
        let texts: Vec<String> =
            (1..=NODES).map(|node| settings(Path::new("/t"), node, CommitLog::Batch)).collect();
        assert!(texts[0].contains("listen_address: 127.0.0.1\n"));
        assert!(texts[2].contains("listen_address: 127.0.0.3\n"));
        assert_ne!(texts[0], texts[1]);
        assert!(texts.iter().all(|text| text.contains("commitlog_sync: batch\n")));
        assert!(TOKENS.is_sorted());
    }
}
