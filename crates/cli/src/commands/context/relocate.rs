//! `terrane context move`: the archive and the index of a context store in directories elsewhere.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrane::backends::BtreeIndexes;
use terrane::context::Store;
use terrane::io::{Disk, RealDisk};

use super::{CACHE_BYTES, LocationArgs, note};
use crate::ui::args::StoreArgs;
use crate::ui::exit::Failure;
use crate::ui::output;
use crate::ui::text::count_of;

pub(super) const EXAMPLES: &str = "\
Examples:
  Move the index to a fast disk; it is rebuilt there:
    terrane context move --index-dir /fast/context-index --store /data/context
  Put future volumes elsewhere, in a store without any:
    terrane context move --archive-dir /cold/context --store /data/context
  Move an archive:
    mv /data/context/archive/volume-* /cold/context/
    terrane context move --archive-dir /cold/context --store /data/context
  Back into the store, without volumes or after moving them back:
    terrane context move --archive-dir /data/context --store /data/context

The store remembers the directories, so no other command needs their names. Each directory gets a \
file that names its store. A store is refused if its directory is missing, or belongs to another \
store. Volumes are moved by hand, and must all be there. No file of the archive is removed.";

#[derive(Debug, Args)]
#[group(id = "where", required = true, multiple = true, args = ["archive_dir", "index_dir"])]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    locations: LocationArgs,
    #[command(flatten)]
    pub(super) common: StoreArgs,
}

#[derive(Serialize)]
struct Moved {
    archive: String,
    index: String,
    index_entries: Option<u64>,
    wall_s: f64,
}

impl MoveArgs {
    pub(super) fn run(&self, command: &str) -> Result<(), Failure> {
        let started = Instant::now();

        let dir = self.common.store.as_path();
        let disk: Arc<dyn Disk> = RealDisk::auto();
        // The command opens no reader, as index and volumes may be missing from their recorded
        // places.
        let options = Store::options_of(&*disk, dir, Arc::new(BtreeIndexes::default()))?;
        let options = self.locations.over(options.cache_bytes(CACHE_BYTES));
        let store = Store::open(disk, dir, &options)?;
        let mut recovery = store.recovery();
        let index_entries = recovery.indexed.take();
        note(dir, recovery);

        let report = Moved {
            archive: store.archive_dir().display().to_string(),
            index: store.index_dir().display().to_string(),
            index_entries,
            wall_s: started.elapsed().as_secs_f64(),
        };

        store.close()?;
        let mut lines = vec![("archive", report.archive.clone()), ("index", report.index.clone())];
        let made = |entries| ("made anew", count_of(entries, "entry", "entries"));
        lines.extend(report.index_entries.map(made));
        lines.push(("time", format!("{:.3} s", report.wall_s)));

        output::report(command, self.common.output.json, &report, &lines)
    }
}
