//! The `terrane` command.

#![forbid(unsafe_code)]

// Bottom-up: a module imports only from modules above it.
mod ui;
mod stores;
mod commands;
mod inspect;
mod verify;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{
    Arg, ArgAction, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, value_parser,
};
use mimalloc::MiMalloc;

use crate::commands::backup::Backup;
#[cfg(feature = "object-store")]
use crate::commands::backups::{self, Backups};
use crate::commands::bench::Bench;
use crate::commands::btree::BtreeCommand;
use crate::commands::changes::{self, ChangesCommand, Feeds};
use crate::commands::compact::Compact;
use crate::commands::completions::{Completions, ManPages};
use crate::commands::context::ContextCommand;
use crate::commands::diff::Diff;
use crate::commands::follow::{self, Follow};
use crate::commands::import::Import;
use crate::commands::kv::{Count, Delete, Get, Put, Scan};
use crate::commands::mpt::MptCommand;
use crate::commands::radix::RadixCommand;
use crate::commands::replay::Replay;
use crate::commands::restore::Restore;
use crate::commands::snapshot::Snapshot;
use crate::commands::stats::Stats;
use crate::commands::table::Tables;
use crate::commands::version::Versions;
use crate::commands::{
    backup, bench, btree, compact, completions, context, diff, import, kv, mpt, radix, restore,
    snapshot, stats, table, version,
};
use crate::inspect::Inspect;
use crate::ui::exit::{Failure, STORE_VARIABLE};
use crate::ui::{output, progress};
use crate::verify::{Salvage, Verify};

/// Replays allocate and free trees of many small nodes for each block.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Embedded ledger-state store: replays real histories, reads and writes tables, inspects and
/// verifies stores.
///
/// Exit codes: 0 done; 1 a check failed or stored data are damaged; 2 bad usage or bad input; 3 the
/// environment failed (disk, permission, locked store); 130 after Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "terrane", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  terrane replay bitcoin data/bitcoin-mainnet-0-4999.dat \\
    --store /tmp/terrane-demo
  terrane inspect /tmp/terrane-demo
  terrane verify /tmp/terrane-demo
  terrane snapshot list --store /tmp/terrane-demo
  terrane put alice 100 --store /tmp/ledger --create
  terrane get alice --store /tmp/ledger";

const REPLAY_EXAMPLE: &str = "\
Example:
  terrane replay bitcoin data/bitcoin-mainnet-0-4999.dat \\
    --store /tmp/terrane-demo";

#[derive(Debug, Subcommand)]
enum Command {
    /// Replays a history of blocks and checks the state on the way
    #[command(subcommand, after_help = REPLAY_EXAMPLE)]
    Replay(Replay),
    /// Measures the engines with fixed workloads and checks every result
    #[command(subcommand, after_help = bench::EXAMPLES)]
    Bench(Bench),
    /// Shows what a file or directory of Terrane is, and what it contains
    #[command(after_help = inspect::EXAMPLES)]
    Inspect(Inspect),
    /// Reads and checks everything in a store; repairs what can be repaired without loss
    #[command(after_help = verify::EXAMPLES)]
    Verify(Verify),
    /// Takes what is whole out of a damaged store into a new one, and names what is lost
    #[command(after_help = verify::SALVAGE_EXAMPLES)]
    Salvage(Salvage),
    /// Prints the values of keys of a table
    #[command(after_help = kv::GET_EXAMPLES)]
    Get(Get),
    /// Sets the values of keys of a table, atomically and durably
    #[command(after_help = kv::PUT_EXAMPLES)]
    Put(Put),
    /// Deletes keys of a table, atomically and durably
    #[command(aliases = ["del", "remove"], after_help = kv::DELETE_EXAMPLES)]
    Delete(Delete),
    /// Prints the entries of a table in key order
    #[command(after_help = kv::SCAN_EXAMPLES)]
    Scan(Scan),
    /// Counts the entries of a table
    #[command(after_help = kv::COUNT_EXAMPLES)]
    Count(Count),
    /// Loads the entries of an LMDB database, or of sorted text, into a new table; resumable
    #[command(after_help = import::EXAMPLES)]
    Import(Import),
    /// Lists, creates, fills, renames and deletes the named tables of a store
    #[command(subcommand, after_help = table::EXAMPLES)]
    Table(Tables),
    /// Builds B+trees from tables and from other B+trees
    #[command(subcommand, alias = "index", after_help = btree::EXAMPLES)]
    Btree(BtreeCommand),
    /// Lists, saves, renames, deletes, exports and imports the snapshots of a store
    #[command(subcommand, after_help = snapshot::EXAMPLES)]
    Snapshot(Snapshot),
    /// Lists, retains and deletes versions of all tables of a store; rolls the store back to a
    /// version
    #[command(subcommand, after_help = version::EXAMPLES)]
    Version(Versions),
    /// Reads, compares, proves, exports, imports and collects the commits of a context store
    #[command(subcommand, after_help = context::EXAMPLES)]
    Context(ContextCommand),
    /// Reads, prunes, exports, imports and proves the versions of a radix store
    #[command(subcommand, after_help = radix::EXAMPLES)]
    Radix(RadixCommand),
    /// Reads, compares, proves, prunes, exports and imports the state of an Ethereum chain
    #[command(subcommand, after_help = mpt::EXAMPLES)]
    Mpt(MptCommand),
    /// Copies a store while it is in use: all of it, or everything new since the last backup
    #[command(after_help = backup::EXAMPLES)]
    Backup(Backup),
    /// Makes a store from a backup, in a directory or in a bucket
    #[command(after_help = restore::EXAMPLES)]
    Restore(Restore),
    /// Lists and drops the backups in a bucket
    #[cfg(feature = "object-store")]
    #[command(subcommand, after_help = backups::EXAMPLES)]
    Backups(Backups),
    /// Reclaims the space of deleted and replaced entries of a store
    #[command(after_help = compact::EXAMPLES)]
    Compact(Compact),
    /// Prints shape and counters of a store, for people, programs or Prometheus
    #[command(after_help = stats::EXAMPLES)]
    Stats(Stats),
    /// Prints the entries that differ between two versions, snapshots or tables of a store
    #[command(after_help = diff::EXAMPLES)]
    Diff(Diff),
    /// Prints the commits of a store, those to come too, for people or programs
    #[command(after_help = changes::EXAMPLES)]
    Changes(ChangesCommand),
    /// Makes a copy of a store and keeps it up to date, commit by commit
    #[command(after_help = follow::EXAMPLES)]
    Follow(Follow),
    /// Lists, creates and deletes the named places of consumers in the changes of a store
    #[command(subcommand, after_help = changes::FEED_EXAMPLES)]
    Feed(Feeds),
    /// Prints the completions of a shell for this program
    #[command(after_help = completions::COMPLETIONS_EXAMPLES)]
    Completions(Completions),
    /// Writes the pages of the manual, one for each sub-command
    #[command(after_help = completions::MAN_EXAMPLES)]
    Man(ManPages),
}

impl Command {
    fn name(&self) -> &'static str {
        match self {
            Self::Replay(replay) => replay.command(),
            Self::Bench(bench) => bench.command(),
            Self::Inspect(_) => "inspect",
            Self::Verify(_) => "verify",
            Self::Salvage(_) => "salvage",
            Self::Get(_) => "get",
            Self::Put(_) => "put",
            Self::Delete(_) => "delete",
            Self::Scan(_) => "scan",
            Self::Count(_) => "count",
            Self::Import(_) => "import",
            Self::Table(tables) => tables.command(),
            Self::Btree(btree) => btree.command(),
            Self::Snapshot(snapshot) => snapshot.command(),
            Self::Version(versions) => versions.command(),
            Self::Context(context) => context.command(),
            Self::Radix(radix) => radix.command(),
            Self::Mpt(mpt) => mpt.command(),
            Self::Backup(_) => "backup",
            Self::Restore(_) => "restore",
            #[cfg(feature = "object-store")]
            Self::Backups(backups) => backups.command(),
            Self::Compact(_) => "compact",
            Self::Stats(_) => "stats",
            Self::Diff(_) => "diff",
            Self::Changes(_) => "changes",
            Self::Feed(feeds) => feeds.command(),
            Self::Follow(_) => "follow",
            Self::Completions(_) => "completions",
            Self::Man(_) => "man",
        }
    }

    /// Returns whether the command reports in JSON without `--json`.
    fn is_json_lines(&self) -> bool {
        match self {
            Self::Scan(scan) => scan.is_json_lines(),
            Self::Diff(diff) => diff.is_json_lines(),
            Self::Changes(changes) => changes.is_json_lines(),
            _ => false,
        }
    }

    /// Runs the command and returns the exit code.
    fn run(&self) -> Result<u8, Failure> {
        match self {
            Self::Replay(replay) => replay.run().map(|()| 0),
            Self::Bench(bench) => bench.run(),
            Self::Inspect(inspect) => inspect.run(),
            Self::Verify(verify) => verify.run(),
            Self::Salvage(salvage) => salvage.run(),
            Self::Get(get) => get.run(),
            Self::Put(put) => put.run(),
            Self::Delete(delete) => delete.run(),
            Self::Scan(scan) => scan.run(),
            Self::Count(count) => count.run(),
            Self::Import(import) => import.run(),
            Self::Table(tables) => tables.run(),
            Self::Btree(btree) => btree.run().map(|()| 0),
            Self::Snapshot(snapshot) => snapshot.run(),
            Self::Version(versions) => versions.run(),
            Self::Context(context) => context.run().map(|()| 0),
            Self::Radix(radix) => radix.run().map(|()| 0),
            Self::Mpt(mpt) => mpt.run().map(|()| 0),
            Self::Backup(backup) => backup.run(),
            Self::Restore(restore) => restore.run(),
            #[cfg(feature = "object-store")]
            Self::Backups(backups) => backups.run(),
            Self::Compact(compact) => compact.run(),
            Self::Stats(stats) => stats.run(),
            Self::Diff(diff) => diff.run(),
            Self::Changes(changes) => changes.run(),
            Self::Feed(feeds) => feeds.run(),
            Self::Follow(follow) => follow.run(),
            Self::Completions(completions) => completions.run(program()),
            Self::Man(man) => man.run(program()),
        }
    }
}

/// Returns the program's arguments. The options of every command are global: they stand before or
/// after the sub-command. A sub-command that has an option of the same name sees its value.
fn program() -> clap::Command {
    let store = Arg::new("store")
        .long("store")
        .value_name("DIR")
        .value_parser(value_parser!(PathBuf))
        .env(STORE_VARIABLE)
        .help("Directory of the store, for every command that works on one");
    let json = Arg::new(JSON)
        .long(JSON)
        .action(ArgAction::SetTrue)
        .help("Prints one JSON object to standard output at the end");
    let quiet =
        Arg::new("quiet").long("quiet").action(ArgAction::SetTrue).help("Hides the progress bar");
    Cli::command().args([store, json, quiet].map(|option| option.global(true)))
}

/// Name of the option that asks for one JSON object.
const JSON: &str = "json";

/// Command of the user, with its global options.
struct Parsed {
    command: Command,
    /// Whether the report is to be JSON.
    json: bool,
    store: Option<PathBuf>,
}

/// Parses the arguments.
fn parse(arguments: &[OsString]) -> Result<Parsed, clap::Error> {
    let matches = program().try_get_matches_from(arguments)?;
    let json = matches.get_flag(JSON);
    let Cli { command } = Cli::from_arg_matches(&matches)?;
    let json = json || command.is_json_lines();
    let store = matches.get_one("store").cloned();
    Ok(Parsed { command, json, store })
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let Parsed { command, json, store } = match parse(&arguments) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&arguments, &error),
    };

    match progress::watch(command.name(), json).and_then(|()| command.run()) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            let failure = failure.with_next(store.as_deref());
            output::failure(command.name(), json, &failure);
            ExitCode::from(failure.code())
        }
    }
}

/// Answers arguments that are not a command. Help and version were asked for; everything else is
/// bad usage, reported as JSON too if `--json` is among the arguments.
fn refuse(arguments: &[OsString], error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // A reader that goes away, as in `terrane --help | head -1`, is no failure.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }

    let json = arguments.iter().any(|argument| argument == "--json" || argument == "--json-lines");
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help && !json {
        // The reader of help may have gone away, as above.
        let _ = error.print();
        return ExitCode::from(Failure::usage("").code());
    }

    let text = error.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    // The parser itself requires no store, since the option is global, and words no usage.
    let is_store = error.kind() == ErrorKind::MissingRequiredArgument && text.ends_with(": store");
    let failure =
        if is_store { Failure::no_store("--store DIR") } else { Failure::arguments(text) };
    output::failure(&named_command(arguments), json, &failure);

    ExitCode::from(failure.code())
}

/// Returns the sub-commands that the arguments begin with.
fn named_command(arguments: &[OsString]) -> String {
    let mut names = Vec::new();
    let mut command = program();
    let mut arguments = arguments.iter().skip(1).filter_map(|argument| argument.to_str());
    while let Some(argument) = arguments.next() {
        // A global option may stand before the sub-command.
        if argument.starts_with('-') {
            if argument == "--store" {
                arguments.next();
            }
            continue;
        }
        let Some(next) = command.find_subcommand(argument).cloned() else { break };
        names.push(next.get_name().to_owned());
        command = next;
    }
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Widths of terminals for which the tests render help.
    const WIDTHS: [usize; 5] = [60, 80, 90, 100, 120];

    /// Indentations of prose in long help: of paragraphs, and of the texts of options.
    const PROSE_INDENTS: [usize; 2] = [0, 10];

    /// Columns of the narrowest terminal in which an example can be copied as one line.
    const EXAMPLE_COLUMNS: usize = 80;

    /// Calls `visit` with every sub-command, and with its name as the user types it.
    fn visit_commands(
        command: &clap::Command,
        path: &str,
        visit: &mut dyn FnMut(&clap::Command, &str),
    ) {
        visit(command, path);
        for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
            visit_commands(command, &format!("{path} {}", command.get_name()), visit);
        }
    }

    fn visit_all(visit: &mut dyn FnMut(&clap::Command, &str)) {
        let mut command = program();
        command.build();
        visit_commands(&command, "terrane", visit);
    }

    /// Returns the text of a line of prose; `None` for headings, lists, defaults and examples.
    fn prose(line: &str) -> Option<&str> {
        let text = line.trim_start();
        let is_prose = PROSE_INDENTS.contains(&(line.len() - text.len()))
            && !text.is_empty()
            && !text.ends_with(':')
            && !["- ", "[", "Usage:"].iter().any(|start| text.starts_with(start));
        is_prose.then_some(text)
    }

    /// Returns the first line of `help` that ends although the next word would still fit.
    fn early_break(help: &str, width: usize) -> Option<&str> {
        let lines: Vec<&str> = help.lines().collect();
        let ends_early = |pair: &&[&str]| {
            let next_word = prose(pair[1]).and_then(|text| text.split(' ').next());
            match (prose(pair[0]), next_word) {
                (Some(_), Some(word)) => {
                    pair[0].chars().count() + 1 + word.chars().count() <= width
                }
                _ => false,
            }
        };
        lines.windows(2).find(ends_early).map(|pair| pair[0])
    }

    /// Paragraphs that were broken by hand were wrapped once more, into lines of one word.
    #[test]
    fn no_paragraph_of_help_is_wrapped_twice() {
        let mut count = 0;
        visit_all(&mut |command, path| {
            count += 1;
            for width in WIDTHS {
                let mut command = command.clone().term_width(width);
                let help = command.render_long_help().to_string();
                let early = early_break(&help, width);
                assert_eq!(early, None, "{path} at {width} columns");
            }
        });
        assert!(count > 50, "only {count} commands");
    }

    #[test]
    fn early_breaks_are_found() {
        assert_eq!(early_break("A line that\nwas broken by hand.", 60), Some("A line that"));
        assert_eq!(early_break("A line that\nwas broken by hand.", 14), None);
        assert_eq!(early_break("A paragraph.\n\nAnother one.", 60), None);
    }

    #[test]
    fn every_command_has_examples_that_can_be_copied() {
        visit_all(&mut |command, path| {
            let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(examples.starts_with("Example"), "{path} has no examples");
            for line in examples.lines().filter(|line| line.starts_with("  ")) {
                let width = line.chars().count();
                assert!(width <= EXAMPLE_COLUMNS, "{path}: {width} columns: {line}");
            }
        });
    }
}
