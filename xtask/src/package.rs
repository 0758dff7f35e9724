//! Archives of the crates for crates.io, made as `cargo publish` would make them.
//!
//! A member of the workspace is published unless its manifest says `publish = false`.
//!
//! Cargo makes an archive only if each dependency is a member or in a registry. Of a member that
//! depends on a crate of another workspace of ours, be it through others, the files are listed
//! instead.

use std::process::{Command, Stdio};

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
    let manifests = manifests(workspace)?;
    let unpublished = unpublished(&manifests);
    let outward = outward(&manifests);
    let mut command = workspace.cargo(&["package", "--workspace", "--allow-dirty", "--quiet"]);
    for name in unpublished.iter().chain(&outward) {
        command.args(["--exclude", name]);
    }

    // The dependencies are here: this workspace has been built.
    if mode == Mode::List {
        command.args(["--no-verify", "--offline"]);
    }

    done(&mut command)?;
    for name in &outward {
        let list = ["package", "--list", "--allow-dirty", "--quiet", "--package", name];
        done(workspace.cargo(&list).stdout(Stdio::null()))?;
    }
    Ok(())
}

fn done(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("cargo package: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo package failed ({status})")) }
}

/// Workspaces of their own below this one.
const OTHERS: [&str; 6] =
    ["peers/", "evm/", "fuzz/", "bindings/python/", "crates/cassandra/", "crates/object/"];

/// Manifests of the members.
fn manifests(workspace: &Workspace) -> Result<Vec<String>, String> {
    let files = workspace.files()?;
    let manifests = files.iter().filter(|file| file.name() == "Cargo.toml");
    let members = manifests.filter(|file| !OTHERS.iter().any(|other| file.path.starts_with(other)));
    Ok(members.filter_map(|file| file.text()).map(str::to_owned).collect())
}

/// Names of the members that stay out of crates.io.
fn unpublished(manifests: &[String]) -> Vec<String> {
    let unpublished =
        manifests.iter().filter(|text| text.lines().any(|line| line == "publish = false"));
    unpublished.filter_map(|text| package_name(text)).map(str::to_owned).collect()
}

/// Names of the members that depend on a crate of ours which is no member, be it through others.
fn outward(manifests: &[String]) -> Vec<String> {
    let mut inward: Vec<&str> = manifests.iter().filter_map(|text| package_name(text)).collect();
    let mut outward = Vec::new();
    loop {
        let is_outward = |text: &&String| {
            let names = text.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
            let is_ours = |name: &&str| *name == "terrane" || name.starts_with("terrane-");
            let is_known = package_name(text).is_some_and(|name| inward.contains(&name));
            is_known && names.filter(is_ours).any(|name| !inward.contains(&name))
        };
        let found: Vec<&str> =
            manifests.iter().filter(is_outward).filter_map(|text| package_name(text)).collect();
        if found.is_empty() {
            return outward;
        }
        // Whoever depends on these is outward, too.
        inward.retain(|name| !found.contains(name));
        outward.extend(found.into_iter().map(str::to_owned));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_that_depend_on_another_workspace_are_found() {
        let manifest = |name: &str, dependencies: &str| {
            format!("[package]\nname = \"{name}\"\n\n[dependencies]\n{dependencies}\n")
        };
        let manifests = [
            manifest("terrane-io", "serde.workspace = true"),
            manifest("terrane-lsm", "terrane-io.workspace = true"),
            manifest("terrane", "terrane-cassandra = { workspace = true, optional = true }"),
            manifest("terrane-bench", "terrane.workspace = true"),
            manifest("terrane-cli", "terrane-object = { workspace = true, optional = true }"),
        ];
        assert_eq!(outward(&manifests), ["terrane", "terrane-cli", "terrane-bench"]);
    }
}
