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

/// The name of the package that a manifest describes.
pub(crate) fn package_name(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
}

/// A compiler, as `rustc -vV` describes it.
pub(crate) struct Compiler {
    /// Its name and version, as `rustc 1.95.0 (..)`.
    pub(crate) version: String,
    /// The target of its own machine.
    pub(crate) host: String,
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

    /// `cargo` with `arguments`, to be run in a folder: that of a workspace of its own.
    pub(crate) fn cargo_in(&self, folder: &str, arguments: &[&str]) -> Command {
        let mut command = self.cargo(arguments);
        command.current_dir(self.root.join(folder));
        command
    }

    /// The folder of what cargo builds.
    pub(crate) fn target(&self) -> PathBuf {
        self.root.join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
    }

    /// Short name of the commit that is checked out; empty if git does not say.
    pub(crate) fn revision(&self) -> String {
        let mut git = Command::new("git");
        git.args(["rev-parse", "--short", "HEAD"]).current_dir(&self.root);
        let said = git.output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&said).trim().to_owned()
    }

    /// The compiler that cargo runs in the root.
    ///
    /// # Errors
    /// A sentence, if there is none.
    pub(crate) fn compiler(&self) -> Result<Compiler, String> {
        let output = Command::new("rustc").arg("-vV").current_dir(&self.root).output();
        let output = output.map_err(|error| format!("rustc: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.lines().next().unwrap_or_default();
        let host = text.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
        Ok(Compiler { version: version.to_owned(), host: host.to_owned() })
    }

    /// Every file of the workspace: what git tracks or would track, and in a copy without git
    /// whatever lies outside build folders.
    pub(crate) fn files(&self) -> Result<Vec<File>, String> {
        let mut paths =
            if self.root.join(".git").exists() { self.tracked()? } else { self.present()? };
        paths.sort_unstable();
        paths.dedup();

        paths
            .into_iter()
            // A file deleted but not yet committed is still tracked.
            .filter(|path| self.root.join(path).is_file())
            .map(|path| {
                let bytes =
                    fs::read(self.root.join(&path)).map_err(|error| format!("{path}: {error}"))?;
                Ok(File { path, bytes })
            })
            .collect()
    }

    fn tracked(&self) -> Result<Vec<String>, String> {
        let listing = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&self.root)
            .output()
            .map_err(|error| format!("git ls-files: {error}"))?;
        if !listing.status.success() {
            let reason = String::from_utf8_lossy(&listing.stderr);
            return Err(format!("git ls-files: {}", reason.trim()));
        }
        let listing = String::from_utf8(listing.stdout)
            .map_err(|_| "git ls-files: a path that is not UTF-8".to_owned())?;
        Ok(listing.split_terminator('\0').map(ToOwned::to_owned).collect())
    }

    fn present(&self) -> Result<Vec<String>, String> {
        let mut paths = Vec::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let failed = |error| format!("{}: {error}", folder.display());
            for entry in fs::read_dir(self.root.join(&folder)).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let path = folder.join(entry.file_name());
                let is_build = entry.file_name() == "target";
                if entry.file_type().map_err(failed)?.is_dir() {
                    if !is_build {
                        folders.push(path);
                    }
                } else {
                    let path = path.to_str().ok_or("a path that is not UTF-8")?;
                    paths.push(path.replace('\\', "/"));
                }
            }
        }

        Ok(paths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two listings differ in ignored files only, so each tracked file is in both.
    #[test]
    fn a_copy_without_git_has_the_same_files() {
        let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        let workspace = Workspace { root: manifest_dir.parent().unwrap().to_path_buf() };
        let present = workspace.present().unwrap();
        assert!(present.iter().any(|path| path == "xtask/src/workspace.rs"));
        for file in workspace.files().unwrap() {
            assert!(present.contains(&file.path), "{}", file.path);
        }
    }
}
