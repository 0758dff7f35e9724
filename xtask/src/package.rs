//! Archives of the crates for crates.io, made as `cargo publish` would make them.
//!
//! A member of the workspace is published unless its manifest says `publish = false`.

use crate::workspace::{Workspace, package_name};

/// Extent of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Makes the archives only.
    List,
    /// Compiles each crate from its archive, too.
    Verify,
}

/// Makes the archives under `target/package`.
///
/// # Errors
/// A message if the files cannot be listed, or if cargo refuses a crate.
pub(crate) fn run(workspace: &Workspace, mode: Mode) -> Result<(), String> {
    let unpublished = unpublished(workspace)?;
    let mut command = workspace.cargo(&["package", "--workspace", "--allow-dirty", "--quiet"]);
    // It depends on `terrane-object`, of a workspace of its own, which no registry here has.
    command.args(["--exclude", "terrane-cli"]);
    for name in &unpublished {
        command.args(["--exclude", name]);
    }

    // The dependencies are here: this workspace has been built.
    if mode == Mode::List {
        command.args(["--no-verify", "--offline"]);
    }

    let status = command.status().map_err(|error| format!("cargo package: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo package failed ({status})")) }
}

/// Whether a manifest is one of this workspace; rivals and the Python module have their own.
fn is_member(path: &str) -> bool {
    !path.starts_with("peers/") && !path.starts_with("bindings/python/")
}

/// Names of the members that stay out of crates.io.
fn unpublished(workspace: &Workspace) -> Result<Vec<String>, String> {
    let files = workspace.files()?;
    let manifests = files.iter().filter(|file| file.name() == "Cargo.toml");
    let members = manifests.filter(|file| is_member(&file.path));
    let unpublished = members
        .filter_map(|file| file.text())
        .filter(|text| text.lines().any(|line| line == "publish = false"))
        .filter_map(package_name)
        .map(str::to_owned);
    Ok(unpublished.collect())
}
