//! `terrane radix`: trees and versions of a radix store.
//!
//! # JSON
//!
//! | command    | fields                                                                             |
//! |------------|------------------------------------------------------------------------------------|
//! | `trees`    | `trees`: list of `name`, `versions`, `newest_version`, `newest_root` (null for an empty one) |
//! | `versions` | `tree`, `versions`: list of `version`, `root`, `parent` (null if that is the empty state), `children`, `metadata` (as keys and values are written) |
//! | `get`      | `tree`, `root`, `values`: list of `address`, `found`, `bytes`, `value_hex` (null if there is none) |
//! | `leaves`   | `tree`, `root`, `prefix`, `leaves`: list of `address`, `bytes`, `value_hex`         |
//! | `prune`    | `tree`, `pruned` (versions), `removed` (nodes; null for several versions), `outcome` (`removed`, `counted`, `unknown`, `fork_point`, `empty_root`, `several`), `versions` that are left |
//! | `export`   | `tree`, `root` (null with `--all`), `versions`, `file`, `values` (changes of values with `--all`), `bytes`, `wall_s` |
//! | `import`   | `tree`, `root`, `version` (of the last one; null for the empty root), `versions` (that are new), `file`, `nodes` (that are new), `bytes`, `wall_s` |
//! | `prove`    | `tree`, `root`, `file`, `bytes`, `values` as of `get`                               |
//! | `verify-proof` | the same without `tree`                                                         |

mod proofs;

mod transfer;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use terrane::radix::{Address, Prefix, PruneOptions, Pruned, Root, Store, Tree, VersionInfo};
use terrane::state_dir::{OpenOptions, OpenStore};

use self::proofs::{ProveArgs, VerifyProofArgs};
use self::transfer::{ExportArgs, ImportArgs};
use crate::stores::back_ends::{DurabilityArg, ServerArgs};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::literal;
use crate::ui::output;
use crate::ui::text::{count_of, hex, table};

/// Key in the metadata of a store that a replay has written.
const REPLAY: &[u8] = b"replay changes";

/// Sub-commands of `terrane radix`.
#[derive(Debug, Subcommand)]
pub(crate) enum RadixCommand {
    /// Lists the trees
    #[command(after_help = TREES_EXAMPLES)]
    Trees(TreesArgs),
    /// Lists the retained versions of a tree, the newest first
    #[command(after_help = VERSIONS_EXAMPLES)]
    Versions(VersionsArgs),
    /// Prints the values at addresses of a root
    #[command(after_help = GET_EXAMPLES)]
    Get(GetArgs),
    /// Prints the addresses of a root that begin with a prefix, and their values, in order
    #[command(alias = "scan", after_help = LEAVES_EXAMPLES)]
    Leaves(LeavesArgs),
    /// Drops versions, and the nodes that only they need
    #[command(aliases = ["delete", "remove"], after_help = PRUNE_EXAMPLES)]
    Prune(PruneArgs),
    /// Writes a version to a file, or all versions of a tree
    #[command(after_help = transfer::EXPORT_EXAMPLES)]
    Export(ExportArgs),
    /// Reads versions from a file and computes their roots anew
    #[command(after_help = transfer::IMPORT_EXAMPLES)]
    Import(ImportArgs),
    /// Writes a proof of the values at addresses, or of their absence
    #[command(after_help = proofs::PROVE_EXAMPLES)]
    Prove(ProveArgs),
    /// Checks a proof without a store, and prints the facts that it proves
    #[command(after_help = proofs::VERIFY_EXAMPLES)]
    VerifyProof(VerifyProofArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane radix trees --store /data/radix
  terrane radix versions --store /data/radix --limit 10
  terrane radix get 00a1ff --store /data/radix
  terrane radix leaves 00a1 --store /data/radix --limit 20
  terrane radix prune --depth 100 --store /data/radix
  terrane radix export tip.radix --store /data/radix
  terrane radix import tip.radix --store /data/copy --backend sqlite
  terrane radix prove abcd.proof abcd --store /data/radix

The directory records its back-end. A root is given by its 64 digits, or by the beginning of \
them; without a root, the newest version counts. The tree may be left out if there is only one. \
`terrane replay changes --engine radix` creates such a store; `terrane verify` and `terrane \
inspect` accept it.";

const TREES_EXAMPLES: &str = "\
Example:
  terrane radix trees --store /data/radix --json";

const VERSIONS_EXAMPLES: &str = "\
Examples:
  terrane radix versions --store /data/radix
  terrane radix versions --store /data/radix --tree state --limit 10 --json";

const GET_EXAMPLES: &str = "\
Examples:
  terrane radix get 00a1ff --store /data/radix
  terrane radix get 00a1ff 00a2 --store /data/radix --root 4c5116ae --json";

const LEAVES_EXAMPLES: &str = "\
Examples:
  terrane radix leaves --store /data/radix
  terrane radix leaves 00a1 --store /data/radix --root 4c5116ae --limit 20";

const PRUNE_EXAMPLES: &str = "\
Examples:
  Drop a version of a root, the oldest one:
    terrane radix prune --root 4c5116ae --store /data/radix
  Keep the newest version, 100 of its ancestors, and all other branches:
    terrane radix prune --depth 100 --store /data/radix
  Keep only these roots:
    terrane radix prune --keep 4c5116ae --keep 9bfe3bb0 --store /data/radix

A store of `terrane replay changes` needs the versions of the blocks that it keeps, so `prune` \
refuses it: bound them with --keep-versions there.";

#[derive(Debug, Args)]
pub(crate) struct TreesArgs {
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VersionsArgs {
    /// Maximum number of rows to list
    #[arg(long, value_name = "N", value_parser = args::count)]
    limit: Option<u64>,
    #[command(flatten)]
    tree: TreeArgs,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Addresses: 1 to 35 bytes each, in lower-case hexadecimal
    #[arg(value_name = "ADDRESS", required = true)]
    addresses: Vec<String>,
    #[command(flatten)]
    root: RootArgs,
    #[command(flatten)]
    tree: TreeArgs,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LeavesArgs {
    /// Prefix of the addresses, in lower-case hexadecimal; all addresses if it is left out
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,
    /// Maximum number of rows to list
    #[arg(long, value_name = "N", value_parser = args::count)]
    limit: Option<u64>,
    #[command(flatten)]
    root: RootArgs,
    #[command(flatten)]
    tree: TreeArgs,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
#[group(id = "what", required = true, multiple = false, args = ["root", "depth", "keep"])]
pub(crate) struct PruneArgs {
    /// Drops the oldest version of this root
    #[arg(long, value_name = "ROOT")]
    root: Option<String>,
    /// Drops the ancestors of the newest version, but for the nearest N
    #[arg(long, value_name = "N", value_parser = args::count)]
    depth: Option<u64>,
    /// Keeps the versions of this root and drops all others; may be given several times
    #[arg(long, value_name = "ROOT")]
    keep: Vec<String>,
    /// Keeps a root that several versions were made of, like Transact
    #[arg(long, requires = "root")]
    keep_fork_points: bool,
    /// Returns the space to the file system at once, as far as the back-end can
    #[arg(long)]
    compact: bool,
    /// Durability of the result when the command ends
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = DurabilityArg::Each)]
    durability: DurabilityArg,
    #[command(flatten)]
    tree: TreeArgs,
    #[command(flatten)]
    common: CommonArgs,
}

#[derive(Debug, Args)]
struct RootArgs {
    /// Root, or the beginning of it; the root of the newest version if it is left out
    #[arg(long, value_name = "ROOT")]
    root: Option<String>,
}

#[derive(Debug, Args)]
struct TreeArgs {
    /// Name of the tree; may be left out if there is only one
    #[arg(long, value_name = "NAME")]
    tree: Option<String>,
}

/// Arguments of every command on a store.
#[derive(Debug, Args)]
struct CommonArgs {
    /// Directory of the store
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Trees {
    trees: Vec<Listed>,
}

/// Row of a tree in lists.
#[derive(Serialize)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) versions: u64,
    newest_version: Option<u64>,
    /// Null for an empty tree.
    pub(crate) newest_root: Option<String>,
}

#[derive(Serialize)]
struct Versions {
    tree: String,
    versions: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    version: u64,
    root: String,
    parent: Option<u64>,
    children: Vec<u64>,
    metadata: String,
}

#[derive(Serialize)]
struct Answers {
    tree: String,
    root: String,
    values: Vec<Answer>,
}

#[derive(Serialize)]
struct Answer {
    address: String,
    found: bool,
    bytes: Option<u64>,
    value_hex: Option<String>,
}

#[derive(Serialize)]
struct Listing {
    tree: String,
    root: String,
    prefix: String,
    leaves: Vec<Leaf>,
}

#[derive(Serialize)]
struct Leaf {
    address: String,
    bytes: u64,
    value_hex: String,
}

#[derive(Serialize)]
struct Done {
    tree: String,
    pruned: u64,
    removed: Option<u64>,
    outcome: &'static str,
    versions: u64,
}

impl RadixCommand {
    /// Returns the name of the sub-command.
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::Trees(_) => "radix trees",
            Self::Versions(_) => "radix versions",
            Self::Get(_) => "radix get",
            Self::Leaves(_) => "radix leaves",
            Self::Prune(_) => "radix prune",
            Self::Export(_) => "radix export",
            Self::Import(_) => "radix import",
            Self::Prove(_) => "radix prove",
            Self::VerifyProof(_) => "radix verify-proof",
        }
    }

    /// Runs the command and prints its report.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let command = self.command();
        match self {
            Self::Trees(args) => {
                args.common.reading(|store| trees(store, command, args.common.output.json))
            }
            Self::Versions(args) => args.common.reading(|store| args.run(store, command)),
            Self::Get(args) => args.common.reading(|store| args.run(store, command)),
            Self::Leaves(args) => args.common.reading(|store| args.run(store, command)),
            Self::Prune(args) => {
                let opening = args.common.servers.opening(None, args.durability);
                args.common.with_store(&opening, |store| args.run(store, command))
            }
            Self::Export(args) => args.run(command),
            Self::Import(args) => args.run(command),
            Self::Prove(args) => args.run(command),
            Self::VerifyProof(args) => args.run(command),
        }
    }
}

impl CommonArgs {
    fn open_to_read(&self) -> Result<OpenStore, Failure> {
        Ok(self.servers.reading().open(&self.store)?)
    }

    /// Opens a store for reading, runs `work` and closes the store.
    fn reading(&self, work: impl FnOnce(&Store) -> Result<(), Failure>) -> Result<(), Failure> {
        self.with_store(&self.servers.reading(), work)
    }

    /// Opens a store for writing, runs `work` and closes the store. Ctrl-C may end the process at
    /// any point.
    fn with_store(
        &self,
        opening: &OpenOptions,
        work: impl FnOnce(&Store) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let store = opening.open(&self.store)?;
        let outcome = work(&store);
        let closed = store.close();
        outcome?;
        Ok(closed?)
    }
}

/// Refuses to change a store whose versions belong to a replay.
fn check_replay(store: &Store) -> Result<(), Failure> {
    if store.metadata(REPLAY)?.is_none() {
        return Ok(());
    }
    store.close()?;
    Err(Failure::usage(
        "the versions of this store are the blocks of `terrane replay changes`, which bounds them by --keep-versions",
    ))
}

/// Parses addresses.
fn addresses_of(texts: &[String]) -> Result<Vec<Address>, Failure> {
    let address = |text: &String| {
        let address: Result<Address, _> = text.parse();
        address.map_err(|why| Failure::usage(format!("{text:?}: {why}")))
    };
    texts.iter().map(address).collect()
}

impl Answer {
    fn new(address: &Address, value: Option<&[u8]>) -> Self {
        Self {
            address: address.to_string(),
            found: value.is_some(),
            bytes: value.map(|value| value.len() as u64),
            value_hex: value.map(hex),
        }
    }
}

/// Returns a version number as JSON has it.
pub(crate) fn number(id: impl std::fmt::Display) -> u64 {
    id.to_string().parse().unwrap_or_default()
}

impl TreeArgs {
    fn find(&self, store: &Store) -> Result<Tree, Failure> {
        if let Some(name) = &self.tree {
            return Ok(store.tree(name)?);
        }
        match store.trees()?.as_slice() {
            [name] => Ok(store.tree(name)?),
            [] => Err(Failure::not_found("the store has no tree")),
            names => {
                let names = names.join(", ");
                Err(Failure::usage(format!("name one of the trees with --tree: {names}")))
            }
        }
    }
}

/// Returns the root whose digits `text` has, or begins with. Without a text, returns the root of
/// the newest version.
fn find_root(tree: &Tree, text: Option<&str>) -> Result<Root, Failure> {
    if let Some(Ok(root)) = text.map(str::parse::<Root>) {
        return Ok(root);
    }

    let versions = tree.versions()?;
    let Some(text) = text else {
        return Ok(versions.last().map_or(Root::EMPTY, |version| version.root));
    };

    if text.is_empty() || !text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')) {
        let message = "a root is 64 lower-case hexadecimal digits, or the first of them";
        return Err(Failure::usage(format!("{text:?}: {message}")));
    }

    let roots = versions.iter().map(|version| version.root).chain([Root::EMPTY]);
    let found: BTreeSet<Root> = roots.filter(|root| root.to_string().starts_with(text)).collect();

    match found.len() {
        0 => {
            Err(Failure::not_found(format!("no root of tree {:?} begins with {text}", tree.name())))
        }
        1 => Ok(found.into_iter().next().unwrap_or(Root::EMPTY)),
        _ => Err(Failure::usage(format!("several roots begin with {text}"))),
    }
}

/// Returns the rows of all trees of a store.
pub(crate) fn list(store: &Store) -> Result<Vec<Listed>, Failure> {
    let mut trees = Vec::new();
    for name in store.trees()? {
        let versions = store.tree(&name)?.versions()?;
        let newest = versions.last();
        trees.push(Listed {
            name,
            versions: versions.len() as u64,
            newest_version: newest.map(|version| number(version.id)),
            newest_root: newest.map(|version| version.root.to_string()),
        });
    }

    Ok(trees)
}

fn trees(store: &Store, command: &str, json: bool) -> Result<(), Failure> {
    let trees = list(store)?;
    if json {
        return output::report(command, true, &Trees { trees }, &[]);
    }
    let mut rows = vec![["TREE", "NEWEST ROOT", "VERSIONS"].map(str::to_owned).to_vec()];
    rows.extend(trees.iter().map(|tree| {
        let root = tree.newest_root.clone().unwrap_or_else(|| Root::EMPTY.to_string());
        vec![tree.name.clone(), root, tree.versions.to_string()]
    }));
    output::print(&table(2, &rows))
}

impl Row {
    fn new(info: &VersionInfo) -> Self {
        Self {
            version: number(info.id),
            root: info.root.to_string(),
            parent: info.parent.map(number),
            children: info.children.iter().map(number).collect(),
            metadata: literal::shown(&info.metadata),
        }
    }
}

impl VersionsArgs {
    fn run(&self, store: &Store, command: &str) -> Result<(), Failure> {
        let tree = self.tree.find(store)?;
        let limit = self.limit.map_or(usize::MAX, |limit| limit as usize);

        let versions = tree.versions()?;
        let versions: Vec<Row> = versions.iter().rev().take(limit).map(Row::new).collect();
        if self.common.output.json {
            let tree = tree.name().to_owned();
            return output::report(command, true, &Versions { tree, versions }, &[]);
        }

        let names = ["VERSION", "ROOT", "PARENT", "METADATA"];
        let mut rows = vec![names.map(str::to_owned).to_vec()];
        rows.extend(versions.iter().map(|version| {
            let parent = version.parent.map_or("-".to_owned(), |parent| parent.to_string());
            vec![
                version.version.to_string(),
                version.root.clone(),
                parent,
                version.metadata.clone(),
            ]
        }));

        output::print(&table(names.len(), &rows))
    }
}

impl GetArgs {
    fn run(&self, store: &Store, command: &str) -> Result<(), Failure> {
        let addresses = addresses_of(&self.addresses)?;
        let tree = self.tree.find(store)?;

        let root = find_root(&tree, self.root.root.as_deref())?;
        let values = tree.get(&root, &addresses)?;
        if self.common.output.json {
            let answers = addresses.iter().zip(&values);
            let answers = answers.map(|(address, value)| Answer::new(address, value.as_deref()));
            let values = answers.collect();
            let tree = tree.name().to_owned();
            let root = root.to_string();
            return output::report(command, true, &Answers { tree, root, values }, &[]);
        }

        let mut lines = Vec::with_capacity(values.len());
        for (address, value) in addresses.iter().zip(values) {
            let absent = || Failure::not_found(format!("no value at {address} of root {root}"));
            lines.push(literal::shown(&value.ok_or_else(absent)?));
        }

        output::print(&lines.join("\n"))
    }
}

impl LeavesArgs {
    fn run(&self, store: &Store, command: &str) -> Result<(), Failure> {
        let prefix: Result<Prefix, _> = self.prefix.parse();
        let refused = |why| Failure::usage(format!("{:?}: {why}", self.prefix));
        let prefix = prefix.map_err(refused)?;
        let tree = self.tree.find(store)?;
        let root = find_root(&tree, self.root.root.as_deref())?;
        let limit = self.limit.map_or(usize::MAX, |limit| limit as usize);

        let found = tree.leaves(&root, &prefix)?.take(limit);
        if !self.common.output.json {
            let mut out = std::io::BufWriter::new(std::io::stdout().lock());
            for leaf in found {
                let (address, value) = leaf?;
                let line = format!("{address}\t{}\n", literal::shown(&value));
                if !output::write(&mut out, line.as_bytes())? {
                    return Ok(());
                }
            }
            return output::flush(&mut out);
        }

        let mut leaves = Vec::new();
        for leaf in found {
            let (address, value) = leaf?;
            let address = address.to_string();
            leaves.push(Leaf { address, bytes: value.len() as u64, value_hex: hex(&value) });
        }

        let tree = tree.name().to_owned();
        let root = root.to_string();
        let prefix = prefix.to_string();

        output::report(command, true, &Listing { tree, root, prefix, leaves }, &[])
    }
}

impl PruneArgs {
    fn run(&self, store: &Store, command: &str) -> Result<(), Failure> {
        check_replay(store)?;
        let tree = self.tree.find(store)?;
        let (pruned, removed, outcome) = if let Some(depth) = self.depth {
            let tip = find_root(&tree, None)?;
            (tree.prune_below(&tip, depth)?, None, "several")
        } else if let Some(text) = &self.root {
            let root = find_root(&tree, Some(text))?;
            let options = PruneOptions::default().keep_fork_points(self.keep_fork_points);
            match tree.prune_with(&root, &options)? {
                Pruned::Removed { count, .. } => (1, Some(count), "removed"),
                Pruned::Counted(_) => (1, Some(0), "counted"),
                Pruned::Unknown => (0, Some(0), "unknown"),
                Pruned::ForkPoint(_) => (0, Some(0), "fork_point"),
                Pruned::EmptyRoot => (0, Some(0), "empty_root"),
            }
        } else {
            let mut roots = BTreeSet::new();
            for text in &self.keep {
                let root = find_root(&tree, Some(text))?;
                if !tree.has_root(&root)? {
                    let name = tree.name();
                    return Err(Failure::not_found(format!("root {root} is not in tree {name:?}")));
                }
                roots.insert(root);
            }
            (tree.retain(&roots)?, None, "several")
        };

        if self.compact {
            store.database().compact()?;
        }

        let versions = tree.versions()?.len() as u64;
        let tree = tree.name().to_owned();
        let report = Done { tree, pruned, removed, outcome, versions };

        let mut lines = vec![("pruned", count_of(pruned, "version", "versions"))];
        match outcome {
            "counted" => lines.push(("kept", "the root, which other versions have".to_owned())),
            "unknown" => lines.push(("kept", "nothing has this root".to_owned())),
            "fork_point" => {
                lines.push(("kept", "the root: several versions were made of it".to_owned()));
            }
            "empty_root" => lines.push(("kept", "the empty root is always there".to_owned())),
            _ => {}
        }

        if let Some(removed) = removed {
            lines.push(("removed", count_of(removed, "node", "nodes")));
        }

        lines.push(("left", count_of(versions, "version", "versions")));

        output::report(command, self.common.output.json, &report, &lines)
    }
}
