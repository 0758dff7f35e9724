//! `terrane version`: lists, retains and deletes versions of a store, and rolls back to one.
//!
//! # JSON
//!
//! | command    | fields                                                                        |
//! |------------|-------------------------------------------------------------------------------|
//! | `list`     | `versions`: list of `number`, `name` (null for none), `tables`: list of names |
//! | `retain`   | `number`, `name` (null for none)                                              |
//! | `delete`   | `number`                                                                      |
//! | `rollback` | `number`, `commit` (the one that going back is)                               |

use clap::{Args, Subcommand};
use serde::Serialize;
use terrane::lsm::SnapshotName;

use crate::stores::listed::ListedVersion;
use crate::stores::open::{open_tables, open_to_read};
use crate::stores::version_ref::{VersionRef, name, which};
use crate::ui::args::StoreArgs;
use crate::ui::exit::Failure;
use crate::ui::output;

/// Sub-commands of `terrane version`.
#[derive(Debug, Subcommand)]
pub(crate) enum Versions {
    /// Lists the retained versions; works beside a process that has the store open
    #[command(after_help = LIST_EXAMPLES)]
    List(StoreArgs),
    /// Retains all tables as of the last commit
    #[command(after_help = RETAIN_EXAMPLES)]
    Retain(RetainArgs),
    /// Deletes a version, and the files that only it needs; the tables stay as they are
    #[command(aliases = ["release", "drop", "remove"], after_help = DELETE_EXAMPLES)]
    Delete(WhichArgs),
    /// Rolls all tables back to a version
    #[command(after_help = ROLLBACK_EXAMPLES)]
    Rollback(WhichArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane version retain --name before-upgrade --store /data/ledger
  terrane version list --store /data/ledger
  terrane get alice --version before-upgrade --store /data/ledger
  terrane version rollback before-upgrade --store /data/ledger

A version is all named tables as of one commit. It has the number of that commit, and perhaps a \
name. It copies nothing, and keeps the files of its tables.";

const LIST_EXAMPLES: &str = "\
Example:
  terrane version list --store /data/ledger --json";

const RETAIN_EXAMPLES: &str = "\
Examples:
  terrane version retain --store /data/ledger
  terrane version retain --name before-upgrade --store /data/ledger";

const DELETE_EXAMPLES: &str = "\
Examples:
  terrane version delete 1024 --store /data/ledger
  terrane version delete before-upgrade --store /data/ledger";

const ROLLBACK_EXAMPLES: &str = "\
Examples:
  terrane version rollback 1024 --store /data/ledger
  terrane version rollback before-upgrade --store /data/ledger

A rollback is one step, whatever has been committed since. Tables created since are gone, tables \
deleted since are back. The version stays, and so do later versions: to keep a way forward, \
retain the present first.";

#[derive(Debug, Args)]
pub(crate) struct RetainArgs {
    /// Name of the version
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<SnapshotName>,
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct WhichArgs {
    /// Number or name of the version
    #[arg(value_name = "VERSION", value_parser = which)]
    version: VersionRef,
    #[command(flatten)]
    common: StoreArgs,
}

impl Versions {
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::List(_) => "version list",
            Self::Retain(_) => "version retain",
            Self::Delete(_) => "version delete",
            Self::Rollback(_) => "version rollback",
        }
    }

    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        match self {
            Self::List(args) => list(args),
            Self::Retain(args) => args.run(),
            Self::Delete(args) => args.delete(),
            Self::Rollback(args) => args.roll_back(),
        }
        .map(|()| 0)
    }
}

#[derive(Serialize)]
struct Listed {
    versions: Vec<ListedVersion>,
}

fn list(args: &StoreArgs) -> Result<(), Failure> {
    let versions = open_to_read(&args.store)?.versions()?;
    let listed = Listed { versions: versions.iter().map(ListedVersion::new).collect() };
    if args.output.json {
        return output::report("version list", true, &listed, &[]);
    }
    if listed.versions.is_empty() {
        return output::print("no versions");
    }
    output::print(&ListedVersion::text(&listed.versions))
}

#[derive(Serialize)]
struct Retained<'a> {
    number: u64,
    name: Option<&'a str>,
}

impl RetainArgs {
    /// Refuses the name of an existing version, before the store is opened for writing.
    fn check_is_new(&self) -> Result<(), Failure> {
        let Some(name) = &self.name else { return Ok(()) };
        let reader = open_to_read(&self.common.store)?;
        let versions = reader.versions()?;
        match versions.iter().find(|version| version.name.as_ref() == Some(name)) {
            // Retaining the last commit twice under one name is allowed.
            Some(version) if version.number != reader.last_commit() => {
                let name = name.to_string();
                let number = version.number;
                Err(terrane::lsm::Error::VersionExists { name, number }.into())
            }
            _ => Ok(()),
        }
    }

    fn run(&self) -> Result<(), Failure> {
        self.check_is_new()?;
        let store = open_tables(&self.common.store, false)?;
        let number = store.retain(self.name.as_ref())?;
        store.close()?;
        let name = self.name.as_ref().map(SnapshotName::as_str);
        let shown = name.map_or_else(|| number.to_string(), |name| format!("{number}, {name}"));
        let lines = [("retained", shown)];
        output::report(
            "version retain",
            self.common.output.json,
            &Retained { number, name },
            &lines,
        )
    }
}

#[derive(Serialize)]
struct Deleted {
    number: u64,
}

#[derive(Serialize)]
struct RolledBack {
    number: u64,
    commit: u64,
}

impl WhichArgs {
    fn delete(&self) -> Result<(), Failure> {
        let number = self.version.number(&self.common.store)?;
        let store = open_tables(&self.common.store, false)?;
        store.release(number)?;
        store.close()?;
        let lines = [("deleted", number.to_string())];
        output::report("version delete", self.common.output.json, &Deleted { number }, &lines)
    }

    fn roll_back(&self) -> Result<(), Failure> {
        let number = self.version.number(&self.common.store)?;
        let store = open_tables(&self.common.store, false)?;
        let commit = store.roll_back(number)?;
        store.close()?;
        let lines = [("back to", number.to_string()), ("commit", commit.to_string())];
        let done = RolledBack { number, commit };
        output::report("version rollback", self.common.output.json, &done, &lines)
    }
}
