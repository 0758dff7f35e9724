//! `cargo deny` on the workspace: licences, banned crates, sources, and advisories.
//!
//! Where `cargo-deny` is not installed the check is left out and says so. Licences, bans and
//! sources need the lockfile alone. Advisories need the advisory database; where it cannot be
//! fetched and was not fetched before, that part is left out and says so.

use std::process::Command;

use crate::workspace::Workspace;

/// Words of `cargo-deny` on a database that it has not got.
const NO_DATABASE: [&str; 2] = ["failed to fetch advisory database", "failed to load advisory"];

/// Checks the dependencies by `deny.toml`.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    if !is_installed() {
        println!("==> deny: left out, there is no cargo-deny (cargo install cargo-deny)");
        return Ok(());
    }

    let rules = ["deny", "--all-features", "check", "licenses", "bans", "sources"];
    let status = workspace.cargo(&rules).status().map_err(|error| format!("deny: {error}"))?;
    if !status.success() {
        return Err(format!("deny failed ({status}), see above"));
    }

    let advisories = ["deny", "--all-features", "check", "advisories"];
    let output = workspace.cargo(&advisories).output();
    let output = output.map_err(|error| format!("deny: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if is_without_database(&text) {
        println!("==> deny: advisories left out, their database cannot be fetched");
        return Ok(());
    }
    print!("{text}");
    if output.status.success() { Ok(()) } else { Err("deny: an advisory, see above".to_owned()) }
}

fn is_installed() -> bool {
    Command::new("cargo-deny").arg("--version").output().is_ok_and(|it| it.status.success())
}

fn is_without_database(text: &str) -> bool {
    NO_DATABASE.iter().any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_database_is_no_advisory() {
        let fetch = "2026-01-01 [ERROR] failed to fetch advisory database https://example.org";
        assert!(is_without_database(fetch));
        assert!(!is_without_database("error[unmaintained]: a crate is unmaintained"));
    }
}
