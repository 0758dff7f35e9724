//! The C interface: its header compared or written, its tests under the sanitizers of a C compiler.
//!
//! The tests need a C compiler. Where there is none, they are left out, which the output says.

use std::fs;
use std::process::{Command, Stdio};

use crate::workspace::Workspace;

/// The work on the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Compare with what the sources give.
    Compare,
    /// Write.
    Write,
}

const TEST: &str = "bindings/c/tests/c/terrane_test.c";

/// Compares or writes the header, then builds the library and runs its C tests.
pub(crate) fn run(workspace: &Workspace, mode: Mode) -> Result<(), String> {
    let mut header = workspace.cargo(&["test", "-q", "-p", "terrane-c", "--test", "header"]);
    if mode == Mode::Write {
        header.env("TERRANE_HEADER", "write");
    }
    take("header", &mut header)?;
    take("build", &mut workspace.cargo(&["build", "-q", "-p", "terrane-c"]))?;

    let is_there = Command::new("cc").arg("--version").stdout(Stdio::null()).status();
    if !is_there.is_ok_and(|status| status.success()) {
        println!("capi: the C tests are left out, there is no C compiler on this machine");
        return Ok(());
    }

    let target = workspace.target();
    let (libraries, folder) = (target.join("debug"), target.join("capi"));
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;

    let program = folder.join("terrane_test");
    let mut compile = Command::new("cc");
    compile.current_dir(&workspace.root);
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-fsanitize=address,undefined"]);
    compile.args(["-I", "bindings/c/include", TEST, "-o"]).arg(&program);
    compile.arg("-L").arg(&libraries).arg("-lterrane_c");
    compile.arg(format!("-Wl,-rpath,{}", libraries.display()));
    take("cc", &mut compile)?;
    take("the C tests", Command::new(&program).arg(folder.join("store")))
}

fn take(name: &str, command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("capi: {name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("capi: {name} failed ({status})")) }
}
