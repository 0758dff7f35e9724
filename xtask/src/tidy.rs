//! House rules that decay without a check, and a report of the longest files and functions.
//!
//! Each rule is a function from files to problems, with tests of its own on made-up files. The
//! report never fails: length is a hint where to look, not a fault.

mod formats;
mod lengths;
mod habits;
mod modules;
mod prose;
mod source;
mod tracked;

use crate::problem::Problem;
use crate::workspace::{File, Workspace};

/// Prints every problem and the report of lengths; fails if there is any problem.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    let files = workspace.files()?;
    let problems = problems(&files);
    println!("{}", lengths::report(&files));
    println!("{}", habits::report(&files));
    for problem in &problems {
        eprintln!("{problem}");
    }
    match problems.len() {
        0 => Ok(()),
        count => Err(format!("tidy: {count} problems in {} files", files.len())),
    }
}

fn problems(files: &[File]) -> Vec<Problem> {
    let mut problems: Vec<Problem> = files.iter().flat_map(source::problems).collect();
    problems.extend(files.iter().flat_map(prose::problems));
    problems.extend(modules::problems(files));
    problems.extend(formats::problems(files));
    problems.extend(files.iter().flat_map(tracked::problems));
    problems.sort_by(|left, right| (&left.path, left.line).cmp(&(&right.path, right.line)));
    problems
}
