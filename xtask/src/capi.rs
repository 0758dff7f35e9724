//! The C interface: its headers compared or written, its tests under the sanitizers of a C
//! compiler and under valgrind, an installation with pkg-config files, and the C++ example over
//! that.
//!
//! The tests need a C compiler, the example a C++ compiler. Where there is none, or no valgrind,
//! they are left out, which the output says.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program;
use crate::workspace::Workspace;

/// The work on the headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Compare with what the sources give.
    Compare,
    /// Write.
    Write,
}

/// Build of the libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// For tests.
    Debug,
    /// For installation.
    Release,
}

impl Profile {
    /// Words of `cargo build`.
    pub(crate) fn words(self) -> &'static [&'static str] {
        match self {
            Self::Debug => &[],
            Self::Release => &["--release"],
        }
    }

    fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }
}

/// A library for C.
#[derive(Debug)]
struct Library {
    package: &'static str,
    name: &'static str,
    description: &'static str,
    headers: &'static [&'static str],
}

impl Library {
    /// Name of the file of the shared library on Linux.
    fn shared(&self) -> String {
        format!("lib{}.so", self.name)
    }

    /// The name that programs linked with it look for.
    fn soname(&self) -> String {
        format!("{}.{}", self.shared(), abi(VERSION))
    }
}

/// The library of verifiers comes first: the header of the other one includes its header.
const LIBRARIES: [Library; 2] = [
    Library {
        package: "terrane-c-verify",
        name: "terrane_verify",
        description: "Verifiers of Terrane's proofs, without the engines",
        headers: &["bindings/c-verify/include/terrane_verify.h"],
    },
    Library {
        package: "terrane-c",
        name: "terrane_c",
        description: "Terrane, an embedded store for ledger state",
        headers: &["bindings/c/include/terrane.h", "bindings/c/include/terrane.hpp"],
    },
];

/// Version of the libraries, which is that of the workspace.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Version of the binary interface: programs go on to work with another library that has the same.
/// It is the major version, with the minor one before 1.0.
fn abi(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if major == "0" { format!("{major}.{minor}") } else { major.to_owned() }
}

/// Selection of a build for tests: dependencies have the features that they have in `cargo test`,
/// so the engines are not compiled again. Only an example or a test brings those of tests along.
const AS_IN_TESTS: [&str; 6] =
    ["--workspace", "--exclude", "terrane-c-headers", "--lib", "--example", "light_client"];

/// Builds the libraries and returns their folder.
///
/// The shared ones bear the version of the binary interface; beside each is a link of that name.
pub(crate) fn build(workspace: &Workspace, profile: Profile) -> Result<PathBuf, String> {
    build_with(workspace, profile, &[])
}

/// Builds the libraries, and more of their packages by words of `cargo build`.
pub(crate) fn build_with(
    workspace: &Workspace,
    profile: Profile,
    more: &[&str],
) -> Result<PathBuf, String> {
    let mut build = workspace.cargo(&["build", "-q"]);
    build.args(profile.words()).args(more);
    match profile {
        Profile::Debug => build.args(AS_IN_TESTS),
        Profile::Release => {
            build.args(LIBRARIES.iter().flat_map(|library| ["-p", library.package]))
        }
    };
    if cfg!(target_os = "linux") {
        build.env("TERRANE_C_ABI", abi(VERSION));
    }
    program::run("capi: build", &mut build)?;

    let folder = workspace.target().join(profile.folder());
    if cfg!(target_os = "linux") {
        for library in &LIBRARIES {
            link(&library.shared(), &folder.join(library.soname()))?;
        }
    }
    Ok(folder)
}

/// Whether there is a compiler of this name.
pub(crate) fn has_compiler(name: &str) -> bool {
    program::succeeds(Command::new(name).arg("--version"))
}

/// Compares or writes the headers, then builds the libraries and runs the tests over them.
pub(crate) fn run(workspace: &Workspace, mode: Mode) -> Result<(), String> {
    let mut headers = workspace.cargo(&["test", "-q", "-p", "terrane-c-headers"]);
    if mode == Mode::Write {
        headers.env("TERRANE_HEADER", "write");
    }
    program::run("capi: headers", &mut headers)?;
    let libraries = build(workspace, Profile::Debug)?;
    if !has_compiler("cc") {
        println!("capi: the C tests are left out, there is no C compiler on this machine");
        return Ok(());
    }

    let folder = workspace.target().join("capi");
    make_anew(&folder)?;
    let programs = Programs { workspace, libraries, folder };
    programs.test()?;
    programs.test_in_valgrind()?;

    let prefix = programs.folder.join("prefix");
    install(workspace, &prefix, Profile::Debug)?;
    programs.run_example(&prefix)
}

/// Tests of the whole library.
const TESTS: [&str; 2] = ["terrane_test", "states_test"];

fn source_of(test: &str) -> String {
    format!("bindings/c/tests/c/{test}.c")
}

/// Words of a compiler for tests.
const SANITIZERS: &[&str] = &["-g", "-fsanitize=address,undefined"];
/// Words of a compiler for measurements.
pub(crate) const OPTIMIZED: &[&str] = &["-O2"];

/// Compiles a program in C over a shared library of a folder.
pub(crate) fn compile(
    workspace: &Workspace,
    libraries: &Path,
    source: &str,
    (library, words): (&str, &[&str]),
    program: &Path,
) -> Result<(), String> {
    let mut compile = Command::new("cc");
    compile.current_dir(&workspace.root).args(["-std=c11", "-Wall", "-Wextra", "-Werror"]);
    compile.args(words).args(["-I", "bindings/c/include", "-I", "bindings/c-verify/include"]);
    compile.arg(source).arg("-o").arg(program);
    compile.arg("-L").arg(libraries).arg(format!("-l{library}"));
    compile.arg(format!("-Wl,-rpath,{}", libraries.display()));
    program::run("capi: cc", &mut compile)
}

/// Programs over the libraries, and the folder that gets them.
struct Programs<'a> {
    workspace: &'a Workspace,
    libraries: PathBuf,
    folder: PathBuf,
}

impl Programs<'_> {
    /// Tests in C.
    fn test(&self) -> Result<(), String> {
        for test in TESTS {
            let program = self.compile(&source_of(test), test, "terrane_c")?;
            let store = self.folder.join(format!("{test}.store"));
            program::run(&format!("capi: {test}"), Command::new(&program).arg(store))?;
        }

        // The library of verifiers checks what the other one has proved.
        let source = "bindings/c/tests/c/proofs.c";
        let proofs = self.folder.join("proofs.bin");
        let mut write = Command::new(self.compile(source, "proofs", "terrane_c")?);
        write.arg(self.folder.join("proofs.store")).arg(&proofs);
        program::run("capi: proofs", &mut write)?;
        let source = "bindings/c-verify/tests/c/verify_test.c";
        let mut verify = Command::new(self.compile(source, "verify_test", "terrane_verify")?);
        program::run("capi: verify_test", verify.arg(&proofs))
    }

    /// Tests in C under valgrind: unlike the sanitizers it sees what the engines read, too.
    fn test_in_valgrind(&self) -> Result<(), String> {
        if !program::succeeds(Command::new("valgrind").arg("--version")) {
            println!("capi: the tests under valgrind are left out, it is not on this machine");
            return Ok(());
        }
        for test in TESTS {
            let name = format!("{test}-valgrind");
            let program = self.folder.join(&name);
            let words = ("terrane_c", &["-g"][..]);
            compile(self.workspace, &self.libraries, &source_of(test), words, &program)?;
            let mut valgrind = Command::new("valgrind");
            valgrind.args(["-q", "--error-exitcode=1", "--leak-check=full"]);
            valgrind.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
            valgrind.arg(&program).arg(self.folder.join(format!("{name}.store")));
            program::run(&format!("capi: valgrind {test}"), &mut valgrind)?;
        }
        Ok(())
    }

    /// Compiles a program in C over a shared library, with sanitizers.
    fn compile(&self, source: &str, name: &str, library: &str) -> Result<PathBuf, String> {
        let program = self.folder.join(name);
        compile(self.workspace, &self.libraries, source, (library, SANITIZERS), &program)?;
        Ok(program)
    }

    /// Compiles the example in C++ over an installation, shared and static, and runs it.
    fn run_example(&self, prefix: &Path) -> Result<(), String> {
        if !has_compiler("c++") {
            println!("capi: the C++ example is left out, there is no C++ compiler on this machine");
            return Ok(());
        }
        let lib = prefix.join("lib");
        let mut flags = Command::new("pkg-config");
        flags
            .args(["--cflags", "--libs", "terrane_c"])
            .env("PKG_CONFIG_PATH", lib.join("pkgconfig"));
        let shared: Vec<OsString> = match flags.output() {
            Ok(output) if output.status.success() => {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                text.split_whitespace().map(OsString::from).collect()
            }
            Ok(output) => {
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(format!("capi: pkg-config: {error}"));
            }
            Err(_) => {
                println!("capi: pkg-config is not on this machine, its files are not tried");
                let (include, lib) = (prefix.join("include"), lib.clone());
                let words = ["-I".into(), include.into(), "-L".into(), lib.into()];
                words.into_iter().chain(["-lterrane_c".into()]).collect()
            }
        };
        let mut linked: Vec<OsString> = vec!["-I".into(), prefix.join("include").into()];
        linked.push(lib.join("libterrane_c.a").into());
        linked.extend(["-lpthread", "-ldl", "-lm"].map(OsString::from));

        for (name, words) in [("ledger-shared", shared), ("ledger-static", linked)] {
            let program = self.folder.join(name);
            let mut compile = Command::new("c++");
            compile.current_dir(&self.workspace.root);
            compile.args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-g"]);
            compile.args(["-fsanitize=address,undefined", "bindings/c/examples/ledger.cpp", "-o"]);
            compile.arg(&program).args(words);
            program::run("capi: c++", &mut compile)?;
            let mut example = Command::new(&program);
            example.arg(self.folder.join(format!("{name}.store"))).env("LD_LIBRARY_PATH", &lib);
            program::run(&format!("capi: {name}"), &mut example)?;
        }
        Ok(())
    }
}

/// Installs headers, shared and static libraries and pkg-config files below a folder.
///
/// # Errors
/// A sentence, if a library cannot be built or a file cannot be written.
pub(crate) fn install(
    workspace: &Workspace,
    prefix: &Path,
    profile: Profile,
) -> Result<(), String> {
    let lib = prefix.join("lib");
    for folder in [&prefix.join("include"), &lib.join("pkgconfig")] {
        create(folder)?;
    }
    let built = build(workspace, profile)?;
    for library in &LIBRARIES {
        let Library { name, .. } = library;
        copy(&built.join(format!("lib{name}.a")), &lib.join(format!("lib{name}.a")))?;
        if cfg!(target_os = "linux") {
            let (shared, soname) = (library.shared(), library.soname());
            let whole = format!("{shared}.{VERSION}");
            copy(&built.join(&shared), &lib.join(&whole))?;
            link(&whole, &lib.join(&soname))?;
            link(&soname, &lib.join(&shared))?;
        } else {
            let shared =
                format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
            copy(&built.join(&shared), &lib.join(&shared))?;
        }
        for header in library.headers {
            let name = Path::new(header).file_name().expect("a header has a name");
            copy(&workspace.root.join(header), &prefix.join("include").join(name))?;
        }
        let path = lib.join(format!("pkgconfig/{name}.pc"));
        fs::write(&path, pkg_config(library))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// The pkg-config file of a library: it may be moved with its folder.
fn pkg_config(library: &Library) -> String {
    let Library { name, description, .. } = library;
    format!(
        "prefix=${{pcfiledir}}/../..\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\n\
         Name: {name}\nDescription: {description}\nVersion: {VERSION}\n\
         Libs: -L${{libdir}} -l{name}\nLibs.private: -lpthread -ldl -lm\n\
         Cflags: -I${{includedir}}\n"
    )
}

/// Makes a folder without anything in it.
pub(crate) fn make_anew(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    create(folder)
}

pub(crate) fn create(folder: &Path) -> Result<(), String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|error| format!("{}: {error}", from.display()))
}

/// Makes a symbolic link, in the place of one from an earlier installation.
fn link(target: &str, at: &Path) -> Result<(), String> {
    if at.is_symlink() {
        fs::remove_file(at).map_err(|error| format!("{}: {error}", at.display()))?;
    }
    symlink(target, at).map_err(|error| format!("{}: {error}", at.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_interface_has_the_version_that_may_break() {
        assert_eq!(abi("0.1.7"), "0.1");
        assert_eq!(abi("1.2.3"), "1");
        assert!(pkg_config(&LIBRARIES[1]).contains("\nLibs: -L${libdir} -lterrane_c\n"));
    }
}
