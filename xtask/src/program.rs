//! Programs that a chore runs: a failure ends the chore with the name of its step.

use std::process::{Command, Stdio};

/// Runs a program; what it prints is seen.
///
/// # Errors
/// A sentence with `step`, if the program cannot be run or fails.
pub(crate) fn run(step: &str, command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{step}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{step} failed ({status})")) }
}

/// Whether a program can be run and succeeds; what it prints is not seen.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_fails_with_its_step() {
        let gone = || Command::new("terrane-no-such-program");
        assert!(run("step", &mut gone()).is_err_and(|message| message.starts_with("step: ")));
        assert!(!succeeds(&mut gone()));
    }
}
