//! The workspace on disk: where it is, and which files belong to it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the workspace, its path relative to the root and with `/` between its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) bytes: Vec<u8>,
}

impl File {
    /// A file made up in a test.
    #[cfg(test)]
    pub(crate) fn made_up(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), bytes: text.as_bytes().to_vec() }
    }

    /// The content, if it is text.
    pub(crate) fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.bytes).ok().filter(|text| !text.contains('\0'))
    }

    /// The content, if this is Rust source.
    pub(crate) fn rust(&self) -> Option<&str> {
        if has_extension(&self.path, "rs") { self.text() } else { None }
    }

    /// The last part of the path.
    pub(crate) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// Whether the name in `path` ends in `.extension`.
pub(crate) fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// The root of the workspace, from where every command is run.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
}

impl Workspace {
    /// The workspace of which this program is a member.
    pub(crate) fn find() -> Result<Self, String> {
        let manifest_dir = env::var("CARGO_MANIFEST_DIR")
            .map_err(|_| "run me as `cargo xtask`: CARGO_MANIFEST_DIR is not set".to_owned())?;
        let root = Path::new(&manifest_dir).parent().ok_or("xtask lies in no workspace")?;
        Ok(Self { root: root.to_path_buf() })
    }

    /// `cargo` with `arguments`, to be run in the root.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(arguments).current_dir(&self.root);
        // Set for this program by the cargo that started it; wrong for the one it starts.
        command.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_PKG_NAME");
        command
    }

    /// Every file that is tracked or about to be: what git knows and what it does not ignore.
    pub(crate) fn files(&self) -> Result<Vec<File>, String> {
        let listing = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&self.root)
            .output()
            .map_err(|error| format!("git ls-files: {error}"))?;
        if !listing.status.success() {
            return Err(format!(
                "git ls-files: {}",
                String::from_utf8_lossy(&listing.stderr).trim()
            ));
        }
        let listing = String::from_utf8(listing.stdout)
            .map_err(|_| "git ls-files: a path that is not UTF-8".to_owned())?;
        let mut paths: Vec<&str> = listing.split_terminator('\0').collect();
        paths.sort_unstable();
        paths.dedup();
        // A file deleted but not yet committed is still listed.
        let present = paths.into_iter().filter(|path| self.root.join(path).is_file());
        present
            .map(|path| {
                let bytes =
                    fs::read(self.root.join(path)).map_err(|error| format!("{path}: {error}"))?;
                Ok(File { path: path.to_owned(), bytes })
            })
            .collect()
    }
}
