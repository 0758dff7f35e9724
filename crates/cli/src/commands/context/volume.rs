//! `terrane context volume`: directories to which collections of a context store move old commits.

use std::path::Path;

use clap::{Args, Subcommand};
use serde::Serialize;
use terrane::io::RealDisk;

use super::{open, open_to_write, options, store_bytes};
use crate::ui::args::StoreArgs;
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::text::table;

pub(super) const EXAMPLES: &str = "\
Examples:
  Keep all commits, and let collections move the old ones away:
    terrane context volume add --store /data/context
    terrane context gc --newest 1000 --store /data/context
  Put the next ones on another disk:
    mkdir /data/context/archive/volume-00000001
    mount --bind /mnt/cold/context-1 /data/context/archive/volume-00000001
    terrane context volume add --store /data/context
  terrane context volume list --store /data/context --json

Volumes are the directories `archive/volume-00000000`, `archive/volume-00000001` and so on of the \
store, or of another directory (`terrane context move`). A volume may be a mount that exists \
before the volume is added; links are refused. Once there is a volume, no commit is removed any \
more, and all volumes must stay in their places. A further volume is added only if something was \
moved to the last one.";

const ADD_EXAMPLES: &str = "\
Example:
  terrane context volume add --store /data/context";

const LIST_EXAMPLES: &str = "\
Example:
  terrane context volume list --store /data/context --json";

/// Sub-commands of `terrane context volume`.
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Adds a volume, to which collections move old commits instead of removing them
    #[command(after_help = ADD_EXAMPLES)]
    Add(VolumeArgs),
    /// Lists the volumes in the order of their addition; works beside a process that has the store
    /// open
    #[command(after_help = LIST_EXAMPLES)]
    List(VolumeArgs),
}

#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    #[command(flatten)]
    common: StoreArgs,
}

#[derive(Serialize)]
struct Added {
    path: String,
    volumes: usize,
}

#[derive(Serialize)]
struct Volumes {
    volumes: Vec<Volume>,
}

#[derive(Serialize)]
struct Volume {
    path: String,
    bytes: Option<u64>,
}

impl VolumeCommand {
    /// Returns the name of the sub-command.
    pub(super) fn command(&self) -> &'static str {
        match self {
            Self::Add(_) => "context volume add",
            Self::List(_) => "context volume list",
        }
    }

    pub(super) fn run(&self) -> Result<(), Failure> {
        match self {
            Self::Add(args) => add(&args.common, self.command()),
            Self::List(args) => list(&args.common, self.command()),
        }
    }
}

fn add(common: &StoreArgs, command: &str) -> Result<(), Failure> {
    let reader = open(&common.store)?;
    let options = options(&reader);
    drop(reader);
    let store = open_to_write(RealDisk::auto(), &common.store, &options)?;
    let done = store.add_volume();
    let volumes = store.volumes().len();
    let closed = store.close();
    let path = done?.display().to_string();
    closed?;
    let lines = [("added", path.clone()), ("volumes", volumes.to_string())];
    output::report(command, common.output.json, &Added { path, volumes }, &lines)
}

fn list(common: &StoreArgs, command: &str) -> Result<(), Failure> {
    let volumes: Result<Vec<Volume>, Failure> =
        open(&common.store)?.volumes().iter().map(|path| Volume::of(path)).collect();
    let volumes = volumes?;
    if common.output.json {
        return output::report(command, true, &Volumes { volumes }, &[]);
    }
    let mut rows = vec![["VOLUME", "BYTES"].map(str::to_owned).to_vec()];
    rows.extend(volumes.iter().map(Volume::row));
    output::print(&table(1, &rows))
}

impl Volume {
    fn of(path: &Path) -> Result<Self, Failure> {
        let bytes = path.is_dir().then(|| store_bytes(path)).transpose()?;
        Ok(Self { path: path.display().to_string(), bytes })
    }

    fn row(&self) -> Vec<String> {
        vec![self.path.clone(), self.bytes.map_or("missing".to_owned(), bytes)]
    }
}
