//! `terrane btree`: builds B+trees from other tables; and changes of entries for `terrane put` and
//! `delete`.
//!
//! # JSON
//!
//! | command | fields                                                                                      |
//! |---------|---------------------------------------------------------------------------------------------|
//! | `build` | `entries`, `digest` (of the state, as everywhere), `file_bytes`, `wall_s`, `entries_per_s` |

use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use serde::Serialize;
use terrane::btree::{Config, Index, Update};
use terrane::io::{Disk, RealDisk};
use terrane::lsm::TableName;

use crate::commands::copy::{self, Copied, FromArgs};
use crate::stores::index_path::{IndexPath, config_of};
use crate::stores::source::{KeyRange, MAIN_TABLE};
use crate::ui::args::{self, OutputArgs};
use crate::ui::exit::Failure;
use crate::ui::output::bytes;
use crate::ui::progress::Progress;

/// Keys of a range that one batch removes. With keys of 512 bytes this is a quarter of the largest
/// batch.
const BATCH_KEYS_MAX: usize = 4_000;

/// Sub-commands of `terrane btree`.
#[derive(Debug, Subcommand)]
pub(crate) enum BtreeCommand {
    /// Builds a B+tree from all entries of a table, or of another B+tree
    #[command(after_help = EXAMPLES)]
    Build(BuildArgs),
}

pub(crate) const EXAMPLES: &str = "\
Examples:
  terrane btree build --store /data/index --from /data/ledger
  One of its tables, compactly, with keys of 32 bytes and values of 13:
    terrane btree build --store /data/index --from /data/ledger \\
      --from-table commits --key-bytes 32 --value-bytes 13
  And back again:
    terrane table build commits --store /data/copy --from /data/index --create

The directory of the B+tree must be missing or empty, or contain a B+tree without entries. If the \
command ends with exit code 0, all entries are durable; otherwise the B+tree has none. Keys of \
more than 512 bytes, values of more than 768 bytes, and blobs are refused with exit code 2. \
`terrane get`, `put`, `delete`, `scan` and `count` accept the directory of a B+tree as --store.";

/// Opens the B+tree in a directory for writing; returns `None` if there is no B+tree.
///
/// # Errors
/// [`Failure`], also if a table of it is named.
pub(crate) fn open_if_index(dir: &Path, table: &TableName) -> Result<Option<Index>, Failure> {
    let disk: Arc<dyn Disk> = RealDisk::auto();
    if IndexPath::of(&disk, dir)? != Some(IndexPath::Dir) {
        return Ok(None);
    }
    if table.as_str() != MAIN_TABLE {
        return Err(Failure::usage(format!("{} is a B+tree: no tables", dir.display())));
    }
    let config = config_of(&disk, dir)?;
    Ok(Some(Index::open(disk, dir, &config)?))
}

/// Removes the keys of a range atomically, and returns their number.
///
/// # Errors
/// [`Failure`].
pub(crate) fn delete_range(index: &Index, range: KeyRange) -> Result<u64, Failure> {
    let (from, to) = range.bounds();

    let mut cursor = index.range::<Vec<u8>>((from.clone(), to.clone()))?;
    let mut keys = Vec::new();
    while let Some((key, _)) = cursor.next_ref()? {
        if keys.len() == BATCH_KEYS_MAX {
            // The keys do not fit into one batch, so the index removes the range leaf by leaf.
            let before = index.len()?;
            index.filter(|key, _| {
                !RangeBounds::<Vec<u8>>::contains::<Vec<u8>>(
                    &(from.as_ref(), to.as_ref()),
                    &key.to_vec(),
                )
            })?;
            return Ok(before.saturating_sub(index.len()?));
        }
        keys.push(key.to_vec());
    }

    let updates: Vec<Update<'_>> = keys.iter().map(|key| Update::Remove(key)).collect();

    Ok(index.apply(&updates)? as u64)
}

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// Directory of the B+tree
    #[arg(long, value_name = "DIR", required = false)]
    store: PathBuf,
    #[command(flatten)]
    from: FromArgs,
    /// Bytes of each key, if all keys are equally long
    #[arg(long, value_name = "N")]
    key_bytes: Option<usize>,
    /// Bytes of each value, if all values are equally long
    #[arg(long, value_name = "N")]
    value_bytes: Option<usize>,
    /// Fill of pages in per cent: 100 for entries that never change
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u32).range(50..=100))]
    fill: u32,
    /// Memory of the B+tree while it is built
    #[arg(long, value_name = "SIZE", value_parser = args::size, default_value = "64MiB")]
    memory_budget: u64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Built<'a> {
    file_bytes: u64,
    #[serde(flatten)]
    copied: &'a Copied,
}

impl BtreeCommand {
    pub(crate) fn command(&self) -> &'static str {
        match self {
            Self::Build(_) => "btree build",
        }
    }

    /// Runs the command and prints its report.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let Self::Build(args) = self;
        args.run()
    }
}

impl BuildArgs {
    fn run(&self) -> Result<(), Failure> {
        let mut config = Config::variable();
        (config.key_bytes, config.value_bytes) = (self.key_bytes, self.value_bytes);
        let config = config.memory_bytes(usize::try_from(self.memory_budget).unwrap_or(usize::MAX));
        let copied = copy::to_index(
            &self.from,
            Progress::new(self.output.quiet),
            &self.store,
            &config,
            self.fill,
        )?;
        let file = std::fs::metadata(self.store.join("tree"));
        let file_bytes = file.map_or(0, |file| file.len());
        let built = Built { file_bytes, copied: &copied };
        let made = format!("B+tree {}, {}", self.store.display(), bytes(file_bytes));
        copy::report("btree build", self.output.json, &built, &copied, made)
    }
}
