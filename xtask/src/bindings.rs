//! One history of operations through Rust, C, Python and Go, which must end in the same digests and
//! roots; and the costs of all four side by side.
//!
//! `bindings/c/examples/history.rs` describes the history, `bindings/python/bench/cost.py` the
//! costs.
//! A language whose tools this machine lacks is left out, which the output says.

use std::process::{Command, Stdio};

use crate::capi::{self, Profile};
use crate::go::Go;
use crate::program;
use crate::python::Environment;
use crate::workspace::Workspace;

/// Library and words of the compiler of programs in C.
const TO_C: (&str, &[&str]) = ("terrane_c", capi::OPTIMIZED);

/// Operations of the history.
const OPERATIONS: &str = "100000";

/// Runs the history of a seed in every language.
///
/// # Errors
/// A sentence, if a program fails, or ends otherwise than Rust.
pub(crate) fn run(workspace: &Workspace, seed: u64) -> Result<(), String> {
    let folder = workspace.target().join("bindings");
    capi::make_anew(&folder)?;
    let libraries = capi::build_with(workspace, Profile::Debug, &["--example", "history"])?;
    let rust = workspace.target().join("debug/examples/history");
    let file = folder.join("history.bin");
    let mut write = Command::new(&rust);
    write.arg("write").arg(&file).args([&seed.to_string(), OPERATIONS]);
    program::run("bindings: history", &mut write)?;

    let mut languages = vec![("Rust", Command::new(&rust))];
    languages[0].1.arg("run");
    if capi::has_compiler("cc") {
        let program = folder.join("history-c");
        capi::compile(workspace, &libraries, "bindings/c/tests/c/history.c", TO_C, &program)?;
        languages.push(("C", Command::new(program)));
    } else {
        println!("bindings: C is left out, there is no C compiler on this machine");
    }
    if let Some(environment) = Environment::build(workspace, Profile::Debug)? {
        let mut python = environment.command("python");
        python.arg(workspace.root.join("bindings/python/bench/history.py"));
        languages.push(("Python", python));
    }
    if let Some(go) = Go::find(workspace, Profile::Debug)? {
        let program = folder.join("history-go");
        go.build(workspace, "./history", &program)?;
        languages.push(("Go", Command::new(program)));
    }

    println!("bindings: {OPERATIONS} operations of seed {seed}");
    let mut first: Option<String> = None;
    for (language, mut command) in languages {
        let store = folder.join(format!("store-{language}"));
        capi::create(&store)?;
        let output = command.arg(&file).arg(&store).stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("bindings: {language}: {error}"))?;
        if !output.status.success() {
            return Err(format!("bindings: {language} failed ({})", output.status));
        }
        let end = String::from_utf8_lossy(&output.stdout).into_owned();
        let expected = first.get_or_insert_with(|| {
            print!("{end}");
            end.clone()
        });
        if *expected != end {
            return Err(format!("bindings: {language} ends otherwise:\n{end}"));
        }
        println!("bindings: {language}: the same end");
    }
    Ok(())
}

/// Measures the costs of all languages in release builds, and prints them as a table.
///
/// # Errors
/// A sentence, if a tool is missing or a program fails.
pub(crate) fn costs(workspace: &Workspace) -> Result<(), String> {
    let folder = workspace.target().join("bindings");
    capi::make_anew(&folder)?;
    let libraries = capi::build_with(workspace, Profile::Release, &["--example", "cost"])?;
    let c = folder.join("cost-c");
    capi::compile(workspace, &libraries, "bindings/c/tests/c/cost.c", TO_C, &c)?;
    let go = folder.join("cost-go");
    let tools = Go::find(workspace, Profile::Release)?.ok_or("bindings: costs need Go")?;
    tools.build(workspace, "./cost", &go)?;
    let environment = Environment::build(workspace, Profile::Release)?;
    let environment = environment.ok_or("bindings: costs need Python")?;
    program::run("bindings: pip", &mut environment.install(&["rocksdict", "lmdb"]))?;

    let mut cost = environment.command("python");
    cost.arg(workspace.root.join("bindings/python/bench/cost.py"));
    cost.arg(workspace.target().join("release/examples/cost")).args([&c, &go]);
    // Cargo sets it for this program, and it would put libraries of the development build first.
    cost.env_remove("LD_LIBRARY_PATH");
    program::run("bindings: cost", &mut cost)
}
