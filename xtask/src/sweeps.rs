//! The whole of the sweeps of which `cargo test` runs a sample (`terrane_testkit::effort`).
//!
//! No list names the sweeps: a test module that imports the effort is one. So a new sweep is run whole in CI
//! from its first commit on.

use std::collections::BTreeMap;
use std::process::Command;

use crate::workspace::{File, Workspace, package_name};

/// What makes a test module a sweep.
const IMPORT: &str = "use terrane_testkit::effort::";

/// The build of sweeps: optimised, with all assertions of the engines.
const PROFILE: &str = "sim";

/// The sweeps of one package.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Sweeps {
    pub(crate) package: String,
    /// Prefixes of the names of its tests.
    modules: Vec<String>,
}

impl Sweeps {
    /// `cargo test` of these modules, every place of them.
    pub(crate) fn command(&self, workspace: &Workspace) -> Command {
        let mut command = cargo_test(workspace);
        command.args(["-q", "-p", &self.package, "--"]).args(&self.modules);
        command.env("TERRANE_EFFORT", "full");
        command
    }
}

/// Builds the tests of all packages that have sweeps, so that the time of each is that of its sweeps.
pub(crate) fn build(workspace: &Workspace, sweeps: &[Sweeps]) -> Command {
    let mut command = cargo_test(workspace);
    command.arg("--no-run");
    for sweeps in sweeps {
        command.args(["-p", &sweeps.package]);
    }
    command
}

fn cargo_test(workspace: &Workspace) -> Command {
    workspace.cargo(&["test", "--profile", PROFILE, "--test", "it", "--all-features"])
}

/// The sweeps among the files of the workspace, by package.
pub(crate) fn of(files: &[File]) -> Result<Vec<Sweeps>, String> {
    let mut folders: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in files {
        let is_sweep =
            file.rust().is_some_and(|text| text.lines().any(|line| line.starts_with(IMPORT)));
        if !is_sweep {
            continue;
        }
        let (folder, module) = module_of(&file.path).ok_or_else(|| {
            format!("{}: a sweep is a module of `tests/it`, so that CI finds it", file.path)
        })?;
        folders.entry(folder).or_default().push(module);
    }

    let manifest_of = |folder: &str| {
        let path = format!("{folder}/Cargo.toml");
        files.iter().find(|file| file.path == path).and_then(File::text).and_then(package_name)
    };
    let package = |(folder, modules): (&str, Vec<String>)| {
        let package = manifest_of(folder).ok_or_else(|| format!("{folder}: no package"))?;
        Ok(Sweeps { package: package.to_owned(), modules })
    };
    folders.into_iter().map(package).collect()
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
            File::made_up("crates/a/tests/it/other.rs", "use terrane_testkit::seeds;\n"),
        ];
        let modules = vec!["crash::".to_owned(), "radix::faults::".to_owned()];
        assert_eq!(of(&files), Ok(vec![Sweeps { package: "terrane-a".to_owned(), modules }]));
    }

    /// CI would never run such a sweep whole.
    #[test]
    fn a_sweep_that_is_no_module_of_the_tests_is_refused() {
        for path in ["crates/a/src/leaf.rs", "crates/a/tests/it/main.rs"] {
            assert!(of(&[sweep(path)]).is_err_and(|error| error.starts_with(path)), "{path}");
        }
    }

    #[test]
    fn a_sweep_without_a_package_is_refused() {
        assert!(of(&[sweep("crates/a/tests/it/crash.rs")]).is_err());
    }
}
