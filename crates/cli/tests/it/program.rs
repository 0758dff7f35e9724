//! Calls of the program and what they answered.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const TIP: &str = "00000000c9a61ea18fbf06b03e10033355e6eab3de038d975f40af9babbe0658";
pub(crate) const HASH: &str = "b2c7b4aeacb27c054dfff4eb4dd768015a9609570374fd978ff9083dd52c6959";
pub(crate) const HASH_999: &str =
    "1335dbc38e5436062d766394007f11e56757fd028ea49155ad34d2c993c77a51";

/// Mainnet's blocks 0 to 4999.
pub(crate) fn mainnet() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/bitcoin-mainnet-0-4999.dat")
}

pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_terrane"))
}

/// Runs a call until it has used this number of clock ticks of the processor, and interrupts it.
pub(crate) fn interrupted(mut call: Command, ticks: u64) -> Answer {
    let mut child = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let used = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields = stat.rsplit(')').next().unwrap().split_whitespace();
        fields.skip(11).take(2).map(|field| field.parse::<u64>().unwrap()).sum()
    };

    while used() < ticks {
        std::thread::yield_now();
    }

    assert!(child.try_wait().unwrap().is_none(), "the call has ended");
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    child.wait_with_output().unwrap().into()
}

/// Result of a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Answer {
    /// The one JSON object on standard output.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap()
    }

    /// The object of a call that succeeded.
    #[track_caller]
    pub(crate) fn done(&self) -> Value {
        assert_eq!(self.code, Some(0), "{self:?}");
        let json = self.json();
        assert_eq!(json["ok"], true);
        json
    }

    /// The message of a call that failed with `code`, the same in JSON and on standard error.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        let json = self.json();
        assert_eq!(json["ok"], false);
        assert_eq!(json["terrane"], env!("CARGO_PKG_VERSION"));
        // The words for programs that go with an exit code.
        let kinds: &[&str] = match code {
            1 => &["check_failed", "corrupt", "not_found"],
            2 => &["usage", "bad_input", "not_found", "unsupported", "read_only"],
            3 => &["environment", "locked", "no_space", "permission", "read_only"],
            _ => &["interrupted"],
        };
        let kind = json["error"]["kind"].as_str().unwrap();
        assert!(kinds.contains(&kind), "{self:?}");
        let message = json["error"]["message"].as_str().unwrap().to_owned();
        assert!(self.stderr.contains(&message), "{self:?}");

        message
    }
}

/// A directory with a store and input files.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// Writes an input file.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Calls `terrane replay <what> --store .. --json` with further arguments.
    pub(crate) fn replay(&self, what: &str, arguments: &[&str]) -> Answer {
        let mut command = command();
        command.args(["replay", what, "--json", "--store"]).arg(self.store()).args(arguments);
        command.output().unwrap().into()
    }
}

/// Runs a command over a store.
pub(crate) fn plain(store: &Path, arguments: &[&str]) -> Answer {
    command().args(arguments).arg("--store").arg(store).output().unwrap().into()
}

/// Runs a command over a store and asks for JSON.
pub(crate) fn call(store: &Path, arguments: &[&str]) -> Answer {
    command().args(arguments).arg("--json").arg("--store").arg(store).output().unwrap().into()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
