//! `terrane context diff` and `dump-paths`: the differences between two commits, and all paths of
//! one.

use std::io::{self, BufWriter, StdoutLock};

use clap::Args;
use serde::Serialize;
use terrane::context::{Change, Context, Error, Fold, Kind, Tree};

use super::{checkout, open, path_text, steps};
use crate::ui::args::{self, StoreArgs};
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::text::hex;

pub(super) const DIFF_EXAMPLES: &str = "\
Examples:
  From a commit to the newest one:
    terrane context diff CoV8SQ --store /data/context
  Below a directory, between two branches:
    terrane context diff main next --below data/contracts --store /data/context
  How many values were changed:
    terrane context diff CoV8SQ main --summary --store /data/context --json

Each line is a letter and a path: A for an added value, D for a deleted value, M for a modified \
value. Subtrees that are equal in both commits are not read.";

pub(super) const DUMP_EXAMPLES: &str = "\
Examples:
  terrane context dump-paths --store /data/context
  terrane context dump-paths data/contracts --long --store /data/context \\
    --commit main > main.txt

Paths are in ascending order, step by step.";

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// Older commit, or a branch
    #[arg(value_name = "FROM")]
    from: String,
    /// Newer commit, or a branch; the newest commit if it is left out
    #[arg(value_name = "TO")]
    to: Option<String>,
    /// Path below which to compare
    #[arg(long, value_name = "PATH", default_value = "")]
    below: String,
    /// Prints the counts only
    #[arg(long)]
    summary: bool,
    #[command(flatten)]
    pub(super) common: StoreArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    /// Path of the directory; the root if it is left out
    #[arg(value_name = "PATH", default_value = "")]
    path: String,
    /// Commit or branch; the newest commit if it is left out
    #[arg(long, alias = "at", value_name = "COMMIT")]
    commit: Option<String>,
    /// Adds the hash and the bytes of each value, which reads each of them
    #[arg(long)]
    long: bool,
    /// Maximum number of paths to print
    #[arg(long, value_name = "N", value_parser = args::count)]
    limit: Option<u64>,
    #[command(flatten)]
    pub(super) common: StoreArgs,
}

/// Default maximum of paths in a JSON object, since memory holds all of them.
const JSON_PATHS_MAX: usize = 10_000_000;

fn check_json(count: usize, limit: Option<u64>) -> Result<(), Failure> {
    if limit.is_some() || count < JSON_PATHS_MAX {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "more than {JSON_PATHS_MAX} paths are too many for one JSON object; leave --json out, or ask for less"
    )))
}

#[derive(Serialize)]
struct Difference {
    from: String,
    to: String,
    below: String,
    added: u64,
    removed: u64,
    changed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Vec<Changed>>,
}

#[derive(Serialize)]
struct Changed {
    path: String,
    change: &'static str,
}

#[derive(Serialize)]
struct Dump {
    commit: String,
    path: String,
    values: Vec<Dumped>,
}

#[derive(Serialize)]
struct Dumped {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// Reason to end a walk early.
enum End {
    Failed(Failure),
    /// The limit is reached, or the reader of standard output went away.
    Enough,
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A walk that ended early is complete, too.
fn ended(walk: Result<(), End>) -> Result<(), Failure> {
    match walk {
        Err(End::Failed(failure)) => Err(failure),
        Ok(()) | Err(End::Enough) => Ok(()),
    }
}

/// Lines for standard output.
struct Lines(BufWriter<StdoutLock<'static>>);

impl Lines {
    fn new() -> Self {
        Self(BufWriter::new(io::stdout().lock()))
    }

    fn put(&mut self, line: &str) -> Result<(), End> {
        let is_read = output::write(&mut self.0, format!("{line}\n").as_bytes())?;
        if is_read { Ok(()) } else { Err(End::Enough) }
    }
}

impl DiffArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let store = open(&self.common.store)?;
        let below = steps(&self.below)?;
        let (from, older) = checkout(&store, Some(&self.from))?;
        let (to, newer) = checkout(&store, self.to.as_deref())?;

        let part = |context: &Context| -> Result<Tree, Failure> {
            let found = context.find_tree(&below)?;
            Ok(found.unwrap_or_else(|| context.tree().empty()))
        };

        let mut difference = Difference {
            from: from.to_base58(),
            to: to.to_base58(),
            below: self.below.clone(),
            added: 0,
            removed: 0,
            changed: 0,
            changes: (self.common.output.json && !self.summary).then(Vec::new),
        };

        let mut lines = (!self.common.output.json && !self.summary).then(Lines::new);
        let mut shown = below.clone();
        ended(part(&older)?.diff(&part(&newer)?, |path, change| {
            let (letter, name, count) = match change {
                Change::Added => ('A', "added", &mut difference.added),
                Change::Removed => ('D', "removed", &mut difference.removed),
                Change::Changed => ('M', "changed", &mut difference.changed),
            };
            *count += 1;
            shown.truncate(below.len());
            shown.extend(path.iter().map(|step| step.to_vec()));
            if let Some(changes) = &mut difference.changes {
                check_json(changes.len(), None)?;
                changes.push(Changed { path: path_text(&shown), change: name });
            }
            match &mut lines {
                Some(lines) => lines.put(&format!("{letter} {}", path_text(&shown))),
                None => Ok(()),
            }
        }))?;

        if let Some(mut lines) = lines {
            return output::flush(&mut lines.0);
        }

        let lines = [
            ("added", difference.added.to_string()),
            ("removed", difference.removed.to_string()),
            ("changed", difference.changed.to_string()),
        ];

        output::report(command, self.common.output.json, &difference, &lines)
    }
}

impl DumpArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let store = open(&self.common.store)?;
        let (commit, context) = checkout(&store, self.commit.as_deref())?;
        let at = steps(&self.path)?;
        let found = context.find_tree(&at)?;

        let dir =
            found.ok_or_else(|| Failure::not_found(format!("nothing is at {:?}", self.path)))?;
        if dir.kind() == Kind::Value {
            let message = format!("a value is at {:?}, not a directory", self.path);
            return Err(Failure::usage(message));
        }

        let mut values = Vec::new();
        let mut lines = (!self.common.output.json).then(Lines::new);
        let mut left = self.limit.unwrap_or(u64::MAX);
        let mut shown = at.clone();
        let root: [&[u8]; 0] = [];

        // With an explicit limit there may be that many paths.
        let fold = match self.limit {
            Some(_) => Fold { parts_max: u64::MAX, ..Fold::default() },
            None => Fold::default(),
        };

        ended(dir.fold(&root, fold, (), |path, tree, ()| {
            if tree.kind() == Kind::Directory {
                return Ok(());
            }
            left = left.checked_sub(1).ok_or(End::Enough)?;
            shown.truncate(at.len());
            shown.extend(path.iter().map(|step| step.to_vec()));
            let value = Dumped::new(path_text(&shown), &tree, self.long)?;
            match &mut lines {
                Some(lines) => lines.put(&value.line()),
                None => {
                    check_json(values.len(), self.limit)?;
                    values.push(value);
                    Ok(())
                }
            }
        }))?;

        match lines {
            Some(mut lines) => output::flush(&mut lines.0),
            None => {
                let commit = commit.to_base58();
                let path = self.path.clone();
                output::report(command, true, &Dump { commit, path, values }, &[])
            }
        }
    }
}

impl Dumped {
    fn new(path: String, tree: &Tree, is_long: bool) -> Result<Self, Error> {
        if !is_long {
            return Ok(Self { path, hash_hex: None, bytes: None });
        }
        let bytes = tree.to_value()?.map(|value| value.len() as u64);
        Ok(Self { path, hash_hex: Some(hex(tree.hash().as_bytes())), bytes })
    }

    fn line(&self) -> String {
        match (&self.hash_hex, self.bytes) {
            (Some(hash), Some(bytes)) => format!("{hash} {bytes:>10} {}", self.path),
            _ => self.path.clone(),
        }
    }
}
