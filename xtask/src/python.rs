//! The Python module: a wheel, built into a virtual environment under `target/`, and its tests
//! there.
//!
//! Needs Python 3.11 with `venv`, and the packages that pip fetches. Where they are missing, the
//! output says `skipped`. `cargo xtask ci` runs the tests only when it is asked to, because the
//! module is a workspace of its own: its dependencies are compiled once more.

use std::path::PathBuf;
use std::process::Command;

use crate::capi::Profile;
use crate::program;
use crate::workspace::Workspace;

/// Folder of the module.
const FOLDER: &str = "bindings/python";
/// Packages of the tests, and of the build.
const PACKAGES: [&str; 6] =
    ["maturin>=1.9,<2", "pytest", "hypothesis", "numpy", "pyarrow", "pandas"];

/// A virtual environment that has the module.
#[derive(Debug)]
pub(crate) struct Environment {
    folder: PathBuf,
}

impl Environment {
    /// Builds the module into the environment, which is made if there is none; `None`, with the
    /// reason printed, where this machine lacks a tool.
    pub(crate) fn build(workspace: &Workspace, profile: Profile) -> Result<Option<Self>, String> {
        let folder = workspace.target().join("python/venv");
        let environment = Self { folder };
        if let Some(missing) = environment.make() {
            println!("python: skipped: {missing}");
            return Ok(None);
        }

        let mut build = environment.command("maturin");
        build.args(["develop", "--quiet", "--locked"]).args(profile.words());
        build.current_dir(workspace.root.join(FOLDER));
        build.env("CARGO_TARGET_DIR", workspace.target().join("python"));
        build.env("VIRTUAL_ENV", &environment.folder);
        program::run("python: maturin", &mut build)?;
        Ok(Some(environment))
    }

    /// Installs packages into the environment.
    pub(crate) fn install(&self, packages: &[&str]) -> Command {
        let mut install = self.command("python");
        install.args(["-m", "pip", "install", "--quiet"]).args(packages);
        install
    }

    /// A program of the environment.
    pub(crate) fn command(&self, program: &str) -> Command {
        Command::new(self.program(program))
    }

    fn program(&self, program: &str) -> PathBuf {
        self.folder.join("bin").join(program)
    }

    /// Makes the environment with its packages; the reason if that cannot be.
    fn make(&self) -> Option<String> {
        let is_new = "import sys; sys.exit(sys.version_info < (3, 11))";
        if !program::succeeds(Command::new("python3").args(["-c", is_new])) {
            return Some("there is no Python 3.11 on this machine".to_owned());
        }
        if !self.program("maturin").exists() {
            let mut make = Command::new("python3");
            make.args(["-m", "venv"]).arg(&self.folder);
            if !program::succeeds(&mut make) {
                return Some("`python3 -m venv` fails on this machine".to_owned());
            }
        }
        let has_all = "import hypothesis, maturin, numpy, pandas, pyarrow, pytest";
        if program::succeeds(self.command("python").args(["-c", has_all])) {
            return None;
        }
        if program::succeeds(&mut self.install(&PACKAGES)) {
            return None;
        }
        Some(format!("pip cannot install {}", PACKAGES.join(", ")))
    }
}

/// Builds the module and runs its tests.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    let Some(environment) = Environment::build(workspace, Profile::Debug)? else { return Ok(()) };
    let mut tests = environment.command("python");
    tests.args(["-m", "pytest"]).current_dir(workspace.root.join(FOLDER));
    program::run("python: pytest", &mut tests)
}
