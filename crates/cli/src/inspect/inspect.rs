//! `terrane inspect`: what a file or directory of Terrane is, from outside and without a lock.
//!
//! # JSON
//!
//! `kind` names the row of the table. Times are RFC 3339 in UTC. `damage` is a list of texts; if it
//! is not empty, `ok` is false and the exit code 1. Entries of LSM stores are counted as they are
//! stored, all versions of a key; a tombstone is an entry that marks its key as deleted.
//! `stored_entries` counts those of all runs together.
//!
//! With `--html`, `html` has the file of the page, `html_bytes` and `plots` (how many it has).
//!
//! | kind        | fields                                                                        |
//! |-------------|-------------------------------------------------------------------------------|
//! | `store`     | `path`, `format_version`, `created`, `run_files`, `run_files_unreferenced` (in no snapshot and no named table), `run_bytes`, `reserve`: null or `bytes` and `is_held`, `named_tables`: null or what follows, `snapshots`: list of `name`, and `label`, `saved`, `format_version`, `levels`, `runs`, `stored_entries`, `tombstones` (how many of them), `bytes`, `merge_debt_bytes`, which are null if it is damaged; `ethereum_state` (absent if there is none): `height`, `block_hash`, `root` (null before the first block), `history_from` (null without a history), `reorg_from` (null if nothing was pruned), `is_import_unfinished` |
//! | `manifest`  | `path`, and what **named tables** have of it                                  |
//! | `log`       | a segment of the log, as below                                                |
//! | `metadata`  | `path`, `format_version`, `created`                                           |
//! | `reserve`   | `path`, `format_version`, `bytes` (that it is to have), `is_held` (false if they were given up because the disk was full) |
//! | `snapshot`  | `path`, and what a store says of it; `levels` is a list of `level` (from 1), `merge` (null, or `slices` (how many of the level's runs it has written: the first ones), `input_runs` (those behind them), `input_bytes`, `due_in_flushes`, `drops_tombstones`, `deleted_ranges` (of keys that what it writes may still have)), `runs`; `write_buffer`: list of runs; `last_flush`: null or a run; `config`: `merge_policy`, `size_ratio`, `write_buffer_entries` or `write_buffer_bytes`, `compression`, `compressed_levels`, `prefix_bytes` (null if filters hold no prefixes) |
//! | `run`       | a run                                                                         |
//! | `page`      | `path`, `page`, `offset_bytes`, `page_kind`, `crc`, `codec` (`lz4` or `zstd`, of a compressed key page), and for a key page `entries`: list of `kind`, `key_hex`, `value_bytes`, `value_hex` (as far as it stands in the page), for others `content_hex` |
//! | `canonical` | `path`, `format_version`, `count` and `digest` (as its end says; `terrane snapshot import` checks them), `bytes` |
//! | `feed_cursor` | `path`, `format_version`, `acknowledged_commit`, `first_segment` (of the log that the commits behind it need; 0 for none), `held_bytes_max` |
//! | `btree`     | an index: `path`, `format_version`, `identity`, `key_bytes` and `value_bytes` (null for any size), `generation`, `oldest_generation`, `height`, `level_pages` (from the leaves up), `entries`, `checkpointed_entries`, `file_bytes`, `used_bytes`, `bytes_per_entry` (of pages of the tree; null without an entry in them), `log_start`, `log_end`, `log_bytes`, `log_updates`, `readers`, `readers_oldest` (generation; null for none) |
//! | `btree_page` | `path`, `page`, `offset_bytes`, `page_kind` (`superblock`, `leaf`, `inner`, `map`, `map_list`, `drained`), `level`, `generation`, `crc`; for a leaf `low_hex`, `high_hex` (null in the last one) and `entries`: list of `key_hex`, `value_hex`; for an inner page `children`: list of `separator_hex`, `page`; for others `content_hex` |
//! | `context` | a context store: `path`, `scheme` (`tezos`, `blake3`), `branching`, `flat_limit`, `indexing` (`minimal`, `always`), `commits` (that are kept), `newest` (hash, or null), `branches`: list of `name` and `head`, `chunks`, `chunk_bytes`, `index_bytes`, `volumes` (how many), `archive_bytes`, `other_bytes`, and with `--commit` `tree`: `commit`, `directories`, `values`, `value_bytes`, `value_bytes_max`, `depth_max`, `children_max` |
//! | `radix_store` | `path`, `format_version` (of the marker), `backend` (null for a store whose making was interrupted), `redis_urls`, `redis_prefix` (null for others), `cassandra_url`, `cassandra_store` (null for others), `store_bytes` (of files), `state`: null where another process has the store, or `scheme`, `disk_bytes`, `trees`: list of `name`, `versions`, `newest_version`, `newest_root` (null for a tree that is empty) |
//! | `constants` | `constants`: object of texts by name                                          |
//!
//! **Named tables** have of their manifest `format_version`, `sequence`, `checkpointed_commit`,
//! `first_segment` (0 for no log), `is_backup`, `tables`: those of `terrane table list`,
//! `versions`: those of `terrane version list`; and `last_commit`, `log_segments`: list of
//! **segments**. A segment has `path`, `number`, `bytes`, `usage` (`needed`, `old`, `unfinished`,
//! `unknown`), and `first_commit`, `commits`, `updates`, `end_bytes`, `sealed`, which are null if
//! nobody needs it.
//!
//! A **run** has `path`, `format_version`, `purpose` (`level` or `buffer_image`), `identity`,
//! `entries`, `tombstones`, `deleted_ranges` (of keys that are deleted and still in it; they count
//! as `entries`; 0 for a file by itself), `key_bytes`, `value_bytes`, `bytes` (of the file and of
//! that of its blobs), `data_pages`, `key_pages`, `compressed_pages` (of the key pages),
//! `overflow_pages`, `filter_pages`, `filter_kind` (`bloom`, `ribbon`, or null),
//! `filter_bits_per_entry`, `filter_probes` (of a ribbon its columns), `filter_prefix_bytes` and
//! `filter_prefixes` (0 if it holds none), `index_pages`, and `index_kind` (`compact` or
//! `ordinary`), `index_bytes_per_page` (in memory, for each key page), `index_extra_reads` (second
//! reads if each key is looked up once),
//! which are null if filter or index are damaged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use terrane::io::RealDisk;
use terrane::lsm::inspect::{self, Inspection, SessionInfo};
use terrane::state_dir;

use crate::inspect::lsm::{
    Canonical, FeedCursor, Inspector, Manifest, Metadata, PageContent, Reserve, ReserveState, Run,
    Segment, Snapshot, Store,
};
use crate::inspect::{btree, context, lsm, mpt, radix, store_page};
use crate::stores::back_ends::ServerArgs;
use crate::stores::index_path::IndexPath;
use crate::ui::args::OutputArgs;
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::text::{grouped, lines, table};

/// Examples at the end of the help.
pub(crate) const EXAMPLES: &str = "\
Examples:
  What a store holds, and its snapshots:
    terrane inspect /data/utxo
  Levels, runs and merges of a snapshot:
    terrane inspect /data/utxo/snapshots/tip.snapshot
  One run, and one of its pages:
    terrane inspect /data/utxo/active/00000007.run
    terrane inspect /data/utxo/active/00000007.run --page 3
  The named tables as of the last checkpoint, and a later segment of the log:
    terrane inspect /data/ledger/manifest.a
    terrane inspect /data/ledger/log/00000002.log
  Count and digest of a canonical export:
    terrane inspect tip.canonical
  A B+tree, and one of its pages:
    terrane inspect /data/index
    terrane inspect /data/index/tree --page 2
  A context store, and what is in the tree of a commit of it:
    terrane inspect /data/context --commit main
  Which back-end a radix store has, and its trees:
    terrane inspect /data/radix
  Levels, runs, filters, debt and memory of all tables as one page with plots:
    terrane inspect /data/ledger --html ledger.html
  Every constant of the formats, for programs:
    terrane inspect constants --json

`inspect` works while another process has the store open; it locks and writes nothing. One \
exception: a radix store must be opened to list its trees, which takes its lock with back-end lsm \
or btree. While another process has it open, `inspect` shows only the content of its directory.";

/// Word that stands for the constants, instead of a path.
const CONSTANTS: &str = "constants";

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// Directory of a store, a file in one, or a canonical export; `constants` shows the constants
    /// of the formats (write `./constants` for a file of that name)
    #[arg(value_name = "DIR|FILE")]
    path: Option<PathBuf>,
    /// Directory of the store, if no path is given
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Page of a run, or of the tree file of an index, to show; counted from 0
    #[arg(long, value_name = "N")]
    page: Option<u32>,
    /// Commit or branch of a context store whose whole tree is read and summed up
    #[arg(long, alias = "at", value_name = "COMMIT")]
    commit: Option<String>,
    /// File for a page with plots of a store of tables; one that exists is replaced
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Report of any kind of file or directory.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Shown {
    Store(StoreReport),
    Metadata(Metadata),
    Reserve(Reserve),
    Snapshot(Box<Snapshot>),
    Run(Run),
    Page(PageContent),
    Manifest(Manifest),
    Log(Segment),
    Canonical(Canonical),
    FeedCursor(FeedCursor),
    Btree(btree::BtreeInfo),
    BtreePage(btree::BtreePageInfo),
    Context(Box<context::ContextStoreInfo>),
    RadixStore(radix::RadixStoreInfo),
    Constants { constants: BTreeMap<&'static str, String> },
}

impl Shown {
    fn canonical(path: &Path, info: &inspect::CanonicalInfo) -> (Self, String) {
        let canonical = lsm::canonical(path, info);
        let text = lines(&[
            ("canonical export", canonical.path.clone()),
            ("format version", canonical.format_version.to_string()),
            ("count", canonical.count.to_string()),
            ("digest", canonical.digest.clone()),
            ("bytes", bytes(canonical.bytes)),
        ]);
        (Self::Canonical(canonical), text)
    }

    fn feed_cursor(path: &Path, info: &inspect::CursorInfo) -> (Self, String) {
        let cursor = lsm::feed_cursor(path, info);
        let text = lines(&[
            ("feed cursor", cursor.path.clone()),
            ("format version", cursor.format_version.to_string()),
            ("acknowledged", grouped(cursor.acknowledged_commit)),
            ("needs the log from", cursor.first_segment.to_string()),
            ("may hold", bytes(cursor.held_bytes_max)),
        ]);
        (Self::FeedCursor(cursor), text)
    }
}

/// Report of a store, and of the Ethereum state in it.
#[derive(Serialize)]
struct StoreReport {
    #[serde(flatten)]
    store: Store,
    #[serde(skip_serializing_if = "Option::is_none")]
    ethereum_state: Option<mpt::StateInfo>,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    shown: Shown,
    damage: Vec<String>,
    #[serde(flatten)]
    page: Option<store_page::Written>,
}

impl StoreReport {
    fn new(inspector: &mut Inspector, path: &Path, info: SessionInfo) -> (Self, String) {
        let (store, mut text) = inspector.store(path, info);
        let is_state = terrane::mpt::is_state(inspector.disk.as_ref(), path);
        let mut ethereum_state = None;
        if is_state.is_ok_and(|is_state| is_state) {
            // A damaged state is reported like damage of the store.
            match mpt::StateInfo::read(path) {
                Ok(state) => {
                    text = format!("{text}\n{}", state.text());
                    ethereum_state = Some(state);
                }
                Err(failure) => inspector.damage.push(failure.message().to_owned()),
            }
        }
        (Self { store, ethereum_state }, text)
    }
}

impl Inspect {
    /// Runs the command, prints its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let mut inspector = Inspector { disk: RealDisk::auto(), damage: Vec::new(), session: None };
        let given = self.path.as_ref().or(self.store.as_ref());
        let given = given.ok_or_else(|| Failure::no_store("DIR, FILE or --store DIR"))?;
        let (shown, text) = if given == Path::new(CONSTANTS) {
            self.refuse_page("the constants")?;
            let mut constants = inspect::constants();
            constants.extend(terrane::btree::inspect::constants());
            constants.extend(terrane::context::constants());
            constants.extend(terrane::radix::constants());
            constants.extend(terrane::mpt::constants());
            let rows: Vec<Vec<String>> = constants
                .iter()
                .map(|(name, value)| vec![(*name).to_owned(), value.clone()])
                .collect();
            (Shown::Constants { constants: constants.into_iter().collect() }, table(2, &rows))
        } else {
            // The real path of a file tells its kind, and the place of the runs of a snapshot.
            let path = given.canonicalize().map_err(|error| {
                let message = format!("{}: {error}", given.display());
                match error.kind() {
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                        Failure::usage(message)
                    }
                    _ => Failure::of_system(&error, message),
                }
            })?;
            // The anchor lives until the whole store is read: links in the store lead nowhere, and
            // nobody can exchange a directory.
            let anchored = path.is_dir().then(|| inspector.disk.anchor(&path)).transpose();
            let _anchor = anchored.map_err(terrane::lsm::Error::from)?;
            self.inspect_path(&mut inspector, &path)?
        };

        let page = self.html.as_deref().map(|html| {
            let session = inspector.session.take();
            let none = || Failure::usage("--html makes a page of the directory of a store");
            store_page::write(html, given, &session.ok_or_else(none)?, &shown)
        });
        let page = page.transpose()?;

        let damage = inspector.damage;
        let failure = damage.first().map(|first| {
            let more = damage.len() - 1;
            let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
            Failure::check(format!("damage: {first}{more}"))
        });

        let text = match &page {
            Some(page) => format!("{text}\n\n{}", page.text()),
            None => text,
        };
        let report = Report { shown, damage, page };

        output::checked("inspect", self.output.json, &report, &text, failure.as_ref())
    }

    fn inspect_merkle_store(
        &self,
        inspector: &Inspector,
        path: &Path,
    ) -> Result<Option<(Shown, String)>, Failure> {
        if state_dir::is_store(path)? {
            self.refuse_page("a radix store")?;
            let described = radix::RadixStoreInfo::read(path, &self.servers)?;
            let text = described.text();
            return Ok(Some((Shown::RadixStore(described), text)));
        }

        if terrane::context::is_store(inspector.disk.as_ref(), path)? {
            self.refuse_page("a context store")?;
            let described = context::ContextStoreInfo::read(path, self.commit.as_deref())?;
            let text = described.text();
            return Ok(Some((Shown::Context(Box::new(described)), text)));
        }

        Ok(None)
    }

    fn inspect_path(
        &self,
        inspector: &mut Inspector,
        path: &Path,
    ) -> Result<(Shown, String), Failure> {
        if let Some(place) = IndexPath::of(&inspector.disk, path)? {
            return self.inspect_btree(inspector, path, place);
        }

        if let Some(found) = self.inspect_merkle_store(inspector, path)? {
            return Ok(found);
        }

        if self.commit.is_some() {
            let path = path.display();
            return Err(Failure::usage(format!(
                "{path} is not a context store: --commit does not apply"
            )));
        }

        let inspection = inspect::inspect(&inspector.disk, path);

        match inspection.map_err(|error| Failure::with_file(error, path))? {
            Inspection::Session(info) => {
                self.refuse_page("a store")?;
                inspector.session = self.html.is_some().then(|| info.clone());
                let (report, text) = StoreReport::new(inspector, path, info);
                Ok((Shown::Store(report), text))
            }
            Inspection::Metadata(info) => {
                self.refuse_page("the metadata of a store")?;
                let metadata = lsm::metadata(path, &info);
                let text = lines(&[
                    ("metadata", metadata.path.clone()),
                    ("format version", metadata.format_version.to_string()),
                    ("created", metadata.created.clone()),
                ]);
                Ok((Shown::Metadata(metadata), text))
            }
            Inspection::Reserve(info) => {
                self.refuse_page("the reserve of a store")?;
                let path = path.display().to_string();
                let held = ReserveState::new(info);
                let text = lines(&[
                    ("reserve", path.clone()),
                    ("format version", info.version.to_string()),
                    ("bytes", held.text()),
                ]);
                Ok((Shown::Reserve(Reserve { path, format_version: info.version, held }), text))
            }
            Inspection::Snapshot(info) => {
                self.refuse_page("a snapshot")?;
                let snapshot = inspector.snapshot(path, &info)?;
                let text = snapshot.text();
                Ok((Shown::Snapshot(Box::new(snapshot)), text))
            }
            Inspection::Run(info) => match self.page {
                None => {
                    let run = inspector.run(&info)?;
                    let text = run.text();
                    Ok((Shown::Run(run), text))
                }
                Some(page) => {
                    let last = info.meta.pages() - 1;
                    if u64::from(page) > last {
                        let path = path.display();
                        let message =
                            format!("{path} has no page {page}: its pages are 0 to {last}");
                        return Err(Failure::usage(message));
                    }
                    let info = inspect::inspect_page(&inspector.disk, path, page)?;
                    let (page, text) = lsm::page(path, &info);
                    Ok((Shown::Page(page), text))
                }
            },
            Inspection::Manifest(info) => {
                self.refuse_page("a manifest")?;
                let content = inspector.manifest(&info);
                let manifest = Manifest { path: path.display().to_string(), content };
                let head = lines(&[
                    ("manifest", manifest.path.clone()),
                    ("format version", manifest.content.format_version.to_string()),
                ]);
                let text = format!("{head}\n{}", manifest.content.text());
                Ok((Shown::Manifest(manifest), text))
            }
            Inspection::Segment(info, damage) => {
                self.refuse_page("the log")?;
                inspector.damage.extend(damage);
                let segment = Segment::new(&info);
                let text = segment.text();
                Ok((Shown::Log(segment), text))
            }
            Inspection::Canonical(info) => {
                self.refuse_page("a canonical export")?;
                Ok(Shown::canonical(path, &info))
            }
            Inspection::Cursor(info) => {
                self.refuse_page("the cursor of a feed")?;
                Ok(Shown::feed_cursor(path, &info))
            }
            _ => Err(Failure::usage(format!("{}: nothing that can be shown", path.display()))),
        }
    }

    fn inspect_btree(
        &self,
        inspector: &Inspector,
        path: &Path,
        place: IndexPath,
    ) -> Result<(Shown, String), Failure> {
        match (self.page, place) {
            (Some(number), IndexPath::File) => {
                let page = btree::BtreePageInfo::read(&inspector.disk, path, number)?;
                let text = page.text();
                Ok((Shown::BtreePage(page), text))
            }
            (Some(_), IndexPath::Dir) => {
                let path = path.display();
                Err(Failure::usage(format!("--page shows a page of a file: {path}/tree")))
            }
            (None, place) => {
                let described = btree::BtreeInfo::read(&inspector.disk, place.dir(path))?;
                let text = described.text();
                Ok((Shown::Btree(described), text))
            }
        }
    }

    fn refuse_page(&self, of: &str) -> Result<(), Failure> {
        match self.page {
            None => Ok(()),
            Some(_) => Err(Failure::usage(format!("--page shows a page of a run, not of {of}"))),
        }
    }
}
