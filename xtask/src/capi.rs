//! The C interface: its header compared or written, its tests under the sanitizers of a C compiler.
//!
//! The tests need a C compiler. Where there is none, they are left out, which the output says.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::program;
use crate::workspace::Workspace;

/// The work on the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Compare with what the sources give.
    Compare,
    /// Write.
    Write,
}

/// Builds the library and returns its folder.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf, String> {
    program::run("capi: build", &mut workspace.cargo(&["build", "-q", "-p", "terrane-c"]))?;
    Ok(workspace.target().join("debug"))
}

/// Whether there is a compiler of this name.
pub(crate) fn has_compiler(name: &str) -> bool {
    program::succeeds(Command::new(name).arg("--version"))
}

/// Programs that test the interface; each gets the path of a folder that is not there.
const TESTS: [&str; 2] = ["terrane_test", "states_test"];

/// Compares or writes the header, then builds the library and runs its C tests.
pub(crate) fn run(workspace: &Workspace, mode: Mode) -> Result<(), String> {
    let mut header = workspace.cargo(&["test", "-q", "-p", "terrane-c", "--test", "header"]);
    if mode == Mode::Write {
        header.env("TERRANE_HEADER", "write");
    }
    program::run("capi: header", &mut header)?;
    let libraries = build(workspace)?;
    if !has_compiler("cc") {
        println!("capi: the C tests are left out, there is no C compiler on this machine");
        return Ok(());
    }

    let folder = workspace.target().join("capi");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;

    for test in TESTS {
        let program = folder.join(test);
        let mut compile = Command::new("cc");
        compile.current_dir(&workspace.root);
        compile.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g"]);
        compile.args(["-fsanitize=address,undefined", "-I", "bindings/c/include"]);
        compile.arg(format!("bindings/c/tests/c/{test}.c")).arg("-o").arg(&program);
        compile.arg("-L").arg(&libraries).arg("-lterrane_c");
        compile.arg(format!("-Wl,-rpath,{}", libraries.display()));
        program::run("capi: cc", &mut compile)?;
        let store = folder.join(format!("{test}.store"));
        program::run(&format!("capi: {test}"), Command::new(&program).arg(store))?;
    }
    Ok(())
}
