//! `terrane completions` and `terrane man`: completions of shells and pages of the manual, made
//! from the arguments of the program.
//!
//! # JSON
//!
//! | command       | fields                                                     |
//! |---------------|------------------------------------------------------------|
//! | `completions` | `shell`, `script` (the text)                               |
//! | `man`         | `dir`, `pages`: list of the names of the files, sorted     |

use std::fs;
use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;
use serde::Serialize;

use crate::ui::args::OutputArgs;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::text::count_of;

pub(crate) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  For bash, zsh and fish:
    terrane completions bash > /etc/bash_completion.d/terrane
    terrane completions zsh > ~/.zfunc/_terrane
    terrane completions fish > ~/.config/fish/completions/terrane.fish";

pub(crate) const MAN_EXAMPLES: &str = "\
Examples:
  terrane man /usr/local/share/man/man1
  Read a page without installing it:
    terrane man /tmp/man && man /tmp/man/terrane-scan.1

`man` writes one page for each sub-command, and creates the directory if it is missing. Pages that \
are there already are replaced.";

/// Name of the program.
const PROGRAM: &str = "terrane";

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ManPages {
    /// Directory of the pages
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Script {
    shell: String,
    script: String,
}

#[derive(Serialize)]
struct Pages {
    dir: String,
    pages: Vec<String>,
}

impl Completions {
    /// Prints the script for the arguments of `program`, and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self, mut program: clap::Command) -> Result<u8, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, PROGRAM, &mut script);
        let script = String::from_utf8_lossy(&script).into_owned();
        if self.output.json {
            let report = Script { shell: self.shell.to_string(), script };
            return output::report("completions", true, &report, &[]).map(|()| 0);
        }
        output::print(script.trim_end()).map(|()| 0)
    }
}

impl ManPages {
    /// Writes the pages of `program` and its sub-commands, and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self, mut program: clap::Command) -> Result<u8, Failure> {
        // The names of sub-commands become `terrane-table-create`.
        program.build();
        let mut pages = Vec::new();
        render(&program, PROGRAM, &mut pages)?;
        pages.sort();

        fs::create_dir_all(&self.dir).map_err(|error| Failure::of_file(&self.dir, &error))?;
        for (name, content) in &pages {
            let path = self.dir.join(name);
            fs::write(&path, content).map_err(|error| Failure::of_file(&path, &error))?;
        }

        let dir = self.dir.display().to_string();
        let written = format!("{} in {dir}", count_of(pages.len() as u64, "page", "pages"));
        let report = Pages { dir, pages: pages.into_iter().map(|(name, _)| name).collect() };

        output::report("man", self.output.json, &report, &[("written", written)]).map(|()| 0)
    }
}

/// Adds the page of a command called `name`, and those of its sub-commands.
fn render(
    command: &clap::Command,
    name: &str,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), Failure> {
    let mut page = Vec::new();
    let man = Man::new(command.clone().display_name(name));
    man.render(&mut page).map_err(|error| Failure::environment(error.to_string()))?;
    pages.push((format!("{name}.1"), page));

    // The depth is that of the sub-commands: three.
    let is_shown =
        |command: &&clap::Command| !command.is_hide_set() && command.get_name() != "help";
    for command in command.get_subcommands().filter(is_shown) {
        render(command, &format!("{name}-{}", command.get_name()), pages)?;
    }
    Ok(())
}
