//! Whole sweeps, of which `cargo test` runs a sample (`terrane_testkit::effort`).
//!
//! No list names the sweeps: a test module that imports the effort or makes a sampled sweep is one.
//! CI therefore runs a new sweep whole from its first commit on.

use std::collections::BTreeSet;
use std::process::Command;

use crate::workspace::{File, Workspace, package_name};

/// Import that makes a test module a sweep.
const IMPORT: &str = "use terrane_testkit::effort::";

/// Call that makes a test module a sweep.
const CALL: &str = concat!("Sweep::", "sampled(");

/// The build of sweeps: optimised, with all assertions of the engines.
const PROFILE: &str = "sim";

/// The sweeps of the workspace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sweeps {
    packages: BTreeSet<String>,
    /// Prefixes of the names of tests.
    modules: BTreeSet<String>,
}

impl Sweeps {
    /// The sweeps among the files of the workspace.
    pub(crate) fn of(files: &[File]) -> Result<Self, String> {
        let mut sweeps = Self::default();
        for file in files {
            let text = file.rust().unwrap_or_default();
            if !text.lines().any(|line| line.starts_with(IMPORT) || line.contains(CALL)) {
                continue;
            }

            let (folder, module) = module_of(&file.path).ok_or_else(|| {
                format!("{}: a sweep is a module of `tests/it`, so that CI finds it", file.path)
            })?;

            // Tests may be a package of their own.
            let manifests = [format!("{folder}/tests/Cargo.toml"), format!("{folder}/Cargo.toml")];
            let package = manifests.iter().find_map(|path| {
                files
                    .iter()
                    .find(|file| file.path == *path)
                    .and_then(File::text)
                    .and_then(package_name)
            });

            let package = package.ok_or_else(|| format!("{folder}: the package has no name"))?;

            sweeps.packages.insert(package.to_owned());
            sweeps.modules.insert(module);
        }

        Ok(sweeps)
    }

    /// Names of the packages with sweeps.
    pub(crate) fn packages(&self) -> impl Iterator<Item = &str> {
        self.packages.iter().map(String::as_str)
    }

    /// Beginnings of the names of all sweeps.
    pub(crate) fn modules(&self) -> impl Iterator<Item = &str> {
        self.modules.iter().map(String::as_str)
    }

    /// Builds the tests, so that the time of the sweeps is that of their work.
    pub(crate) fn build(&self, workspace: &Workspace) -> Command {
        let mut command = self.cargo_test(workspace);
        command.arg("--no-run");
        command
    }

    /// Visits every place. A name that matches in another package runs there, too.
    pub(crate) fn run(&self, workspace: &Workspace) -> Command {
        let mut command = self.cargo_test(workspace);
        command.arg("--").args(&self.modules).env("TERRANE_EFFORT", "full");
        command
    }

    /// All packages in one command: a command for each would build what they share with other
    /// features.
    fn cargo_test(&self, workspace: &Workspace) -> Command {
        let mut command =
            workspace.cargo(&["test", "--profile", PROFILE, "--test", "it", "--all-features"]);
        for package in &self.packages {
            command.args(["-p", package]);
        }
        command
    }
}

/// The crate's folder, and the prefix of the names of the tests in a file.
fn module_of(path: &str) -> Option<(&str, String)> {
    let (folder, rest) = path.split_once("/tests/it/")?;
    let module = rest.strip_suffix(".rs").filter(|module| *module != "main")?;
    Some((folder, format!("{}::", module.replace('/', "::"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"terrane-a\"\n";

    fn sweep(path: &str) -> File {
        File::made_up(path, "use terrane_testkit::effort::{by_effort, places};\n")
    }

    #[test]
    fn every_module_that_reads_the_effort_is_swept() {
        let files = [
            File::made_up("crates/a/Cargo.toml", MANIFEST),
            sweep("crates/a/tests/it/crash.rs"),
            sweep("crates/a/tests/it/radix/faults.rs"),
            File::made_up(
                "crates/a/tests/it/cuts.rs",
                &format!("    let sweep = {CALL}seed, 8);\n"),
            ),
            File::made_up("crates/a/tests/it/other.rs", "use terrane_testkit::seeds;\n"),
        ];
        let sweeps = Sweeps::of(&files).unwrap();
        assert!(sweeps.packages.iter().eq(["terrane-a"]));
        assert!(sweeps.modules.iter().eq(["crash::", "cuts::", "radix::faults::"]));
    }

    #[test]
    fn a_sweep_is_of_the_package_of_the_tests() {
        let files = [
            File::made_up("crates/a/Cargo.toml", MANIFEST),
            File::made_up("crates/a/tests/Cargo.toml", "[package]\nname = \"terrane-a-tests\"\n"),
            sweep("crates/a/tests/it/crash.rs"),
        ];
        assert!(Sweeps::of(&files).unwrap().packages.iter().eq(["terrane-a-tests"]));
    }

    /// CI would never run such a sweep whole.
    #[test]
    fn a_sweep_that_is_no_module_of_the_tests_is_refused() {
        for path in ["crates/a/src/leaf.rs", "crates/a/tests/it/main.rs"] {
            assert!(
                Sweeps::of(&[sweep(path)]).is_err_and(|error| error.starts_with(path)),
                "{path}"
            );
        }
    }

    #[test]
    fn a_sweep_without_a_package_is_refused() {
        assert!(Sweeps::of(&[sweep("crates/a/tests/it/crash.rs")]).is_err());
    }
}
