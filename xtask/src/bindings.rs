//! One history of operations through Rust, C, Python and Go, which must end in the same digests and
//! roots.
//!
//! `bindings/c/examples/history.rs` describes the history.
//! A language whose tools this machine lacks is left out, which the output says.

use std::process::{Command, Stdio};

use crate::capi;
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
    let mut build = workspace.cargo(&["build", "-q", "-p", "terrane-c", "--example", "history"]);
    program::run("bindings: build", &mut build)?;
    let rust = workspace.target().join("debug/examples/history");
    let file = folder.join("history.bin");
    let mut write = Command::new(&rust);
    write.arg("write").arg(&file).args([&seed.to_string(), OPERATIONS]);
    program::run("bindings: history", &mut write)?;

    let mut languages = vec![("Rust", Command::new(&rust))];
    languages[0].1.arg("run");
    if capi::has_compiler("cc") {
        let libraries = capi::build(workspace)?;
        let program = folder.join("history-c");
        capi::compile(workspace, &libraries, "bindings/c/tests/c/history.c", TO_C, &program)?;
        languages.push(("C", Command::new(program)));
    } else {
        println!("bindings: C is left out, there is no C compiler on this machine");
    }
    if let Some(environment) = Environment::build(workspace)? {
        let mut python = environment.command("python");
        python.arg(workspace.root.join("bindings/python/bench/history.py"));
        languages.push(("Python", python));
    }
    if let Some(go) = Go::find(workspace)? {
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
