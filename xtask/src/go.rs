//! The Go modules: format, `go vet` and tests over the C library.
//! Tests of the binding run under the race detector, too.
//!
//! Needs Go and a C compiler. The adapters need modules that Go fetches. Where something is
//! missing, the output says `skipped`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::capi::{self, Profile};
use crate::program;
use crate::workspace::Workspace;

/// Folder of the binding, which needs no other module.
const LIBRARY: &str = "bindings/go";
/// Folders of the adapters.
const ADAPTERS: [&str; 2] = ["bindings/go-ethdb", "bindings/go-cosmosdb"];

/// Places of the program where it is not on the path.
const PROGRAMS: [&str; 2] = ["go", "/usr/local/go/bin/go"];

/// Modules of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The binding.
    Library,
    /// The adapters to interfaces of others, too.
    All,
}

/// Go, over the C library.
#[derive(Debug)]
pub(crate) struct Go {
    program: &'static str,
    libraries: PathBuf,
}

impl Go {
    /// Builds the C library; `None`, with the reason printed, where this machine lacks a tool.
    pub(crate) fn find(workspace: &Workspace, profile: Profile) -> Result<Option<Self>, String> {
        let has = |program: &str| program::succeeds(Command::new(program).arg("version"));
        let Some(program) = PROGRAMS.into_iter().find(|program| has(program)) else {
            println!("go: skipped: there is no Go on this machine");
            return Ok(None);
        };
        if !capi::has_compiler("cc") {
            println!("go: skipped: there is no C compiler on this machine");
            return Ok(None);
        }
        Ok(Some(Self { program, libraries: capi::build(workspace, profile)? }))
    }

    /// The program in the folder of a module.
    fn command(&self, workspace: &Workspace, folder: &str) -> Command {
        let mut command = Command::new(self.program);
        command.current_dir(workspace.root.join(folder)).env("CGO_ENABLED", "1");
        let libraries = self.libraries.display();
        command.env("CGO_LDFLAGS", format!("-L{libraries} -Wl,-rpath,{libraries}"));
        command
    }

    /// Builds a command of the binding.
    pub(crate) fn build(
        &self,
        workspace: &Workspace,
        package: &str,
        program: &Path,
    ) -> Result<(), String> {
        let mut build = self.command(workspace, LIBRARY);
        build.args(["build", "-o"]).arg(program).arg(package);
        program::run("go build", &mut build)
    }

    /// Whether the sources of a module are formatted.
    fn is_formatted(&self, workspace: &Workspace, folder: &str) -> Result<(), String> {
        // It lies beside `go`, or on the path with it.
        let program = format!("{}fmt", self.program);
        let mut list = Command::new(program);
        let output = list.args(["-l", "."]).current_dir(workspace.root.join(folder)).output();
        let output = output.map_err(|error| format!("go: gofmt: {error}"))?;
        let found = String::from_utf8_lossy(&output.stdout);
        if output.status.success() && found.is_empty() {
            return Ok(());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("go: gofmt -l in {folder}: {found}{errors}"))
    }
}

/// Builds the C library and tests the Go modules.
pub(crate) fn run(workspace: &Workspace, scope: Scope) -> Result<(), String> {
    let Some(go) = Go::find(workspace, Profile::Debug)? else { return Ok(()) };
    let adapters: &[&str] = if scope == Scope::All { &ADAPTERS } else { &[] };
    for folder in [LIBRARY].iter().chain(adapters) {
        go.is_formatted(workspace, folder)?;
        let command = |arguments: &[&str]| {
            let mut command = go.command(workspace, folder);
            command.args(arguments);
            command
        };
        if !program::succeeds(&mut command(&["mod", "download"])) {
            println!("go: {folder} skipped: the modules that it needs cannot be fetched");
            continue;
        }
        program::run("go vet", &mut command(&["vet", "./..."]))?;
        // Go does not see when the C library has changed, so no result of an earlier run counts.
        program::run("go test", &mut command(&["test", "-count=1", "./..."]))?;
        // Adapters start no goroutine.
        if *folder == LIBRARY {
            program::run("go test -race", &mut command(&["test", "-count=1", "-race", "./..."]))?;
        }
    }
    Ok(())
}
