//! `terrane inspect`: what a file or directory of Terrane is, from outside and without a lock.
//!
//! # JSON
//!
//! `kind` says which of these it is; times are RFC 3339 in UTC; `damage` is a list of texts, and `ok` is
//! false, with exit code 1, if it is not empty. Entries of LSM stores are counted as they are stored, all
//! versions of a key; a tombstone is an entry that says that its key is deleted. Of all runs together they
//! are `stored_entries`.
//!
//! | kind        | fields                                                                        |
//! |-------------|-------------------------------------------------------------------------------|
//! | `store`     | `path`, `format_version`, `created`, `run_files`, `run_files_unreferenced` (in no snapshot and no named table), `run_bytes`, `reserve`: null or `bytes` and `is_held`, `named_tables`: null or what follows, `snapshots`: list of `name`, and `label`, `saved`, `format_version`, `levels`, `runs`, `stored_entries`, `tombstones` (how many of them), `bytes`, `merge_debt_bytes`, which are null if it is damaged |
//! | `manifest`  | `path`, and what **named tables** have of it                                  |
//! | `log`       | a segment of the log, as below                                                |
//! | `metadata`  | `path`, `format_version`, `created`                                           |
//! | `reserve`   | `path`, `format_version`, `bytes` (that it is to have), `is_held` (false if they were given up because the disk was full) |
//! | `snapshot`  | `path`, and what a store says of it; `levels` is a list of `level` (from 1), `merge` (null, or `input_runs`, `input_bytes`, `due_in_flushes`, `drops_tombstones`, `deleted_ranges` (of keys that what it writes may still have)), `runs`; `write_buffer`: list of runs; `last_flush`: null or a run; `config`: `merge_policy`, `size_ratio`, `write_buffer_entries` or `write_buffer_bytes` |
//! | `run`       | a run                                                                         |
//! | `page`      | `path`, `page`, `offset_bytes`, `page_kind`, `crc`, and for a key page `entries`: list of `kind`, `key_hex`, `value_bytes`, `value_hex` (as far as it stands in the page), for others `content_hex` |
//! | `canonical` | `path`, `format_version`, `count` and `digest` (as its end says; `terrane snapshot import` checks them), `bytes` |
//! | `btree`     | an index: `path`, `format_version`, `identity`, `key_bytes` and `value_bytes` (null for any size), `generation`, `oldest_generation`, `height`, `level_pages` (from the leaves up), `entries`, `checkpointed_entries`, `file_bytes`, `used_bytes`, `bytes_per_entry` (of pages of the tree; null without an entry in them), `log_start`, `log_end`, `log_bytes`, `log_updates`, `readers`, `readers_oldest` (generation; null for none) |
//! | `btree_page` | `path`, `page`, `offset_bytes`, `page_kind` (`superblock`, `leaf`, `inner`, `map`, `map_list`, `drained`), `level`, `generation`, `crc`; for a leaf `low_hex`, `high_hex` (null in the last one) and `entries`: list of `key_hex`, `value_hex`; for an inner page `children`: list of `separator_hex`, `page`; for others `content_hex` |
//! | `context` | a context store: `path`, `scheme` (`tezos`, `blake3`), `branching`, `flat_limit`, `indexing` (`minimal`, `always`), `commits` (that are kept), `newest` (hash, or null), `branches`: list of `name` and `head`, `chunks`, `chunk_bytes`, `index_bytes`, `volumes` (how many), `archive_bytes`, `other_bytes`, and with `--at` `tree`: `commit`, `directories`, `values`, `value_bytes`, `value_bytes_max`, `depth_max`, `children_max` |
//! | `radix_store` | `path`, `format_version` (of the marker), `backend` (null for a store whose making was interrupted), `redis_urls`, `redis_prefix` (null for others), `store_bytes` (of files), `state`: null where another process has the store, or `scheme`, `disk_bytes`, `trees`: list of `name`, `versions`, `newest_version`, `newest_root` (null for a tree that is empty) |
//! | `constants` | `constants`: object of texts by name                                          |
//!
//! **Named tables** have of their manifest `format_version`, `sequence`, `checkpointed_commit`, `first_segment` (0 for
//! no log), `is_backup`, `tables`: those of `terrane table list`, `versions`: those of `terrane version list`; and `last_commit`, `log_segments`: list of **segments**. A segment
//! has `path`, `number`, `bytes`, `usage` (`needed`, `old`, `unfinished`, `unknown`), and `first_commit`, `commits`,
//! `updates`, `end_bytes`, `sealed`, which are null if nobody needs it.
//!
//! A **run** has `path`, `format_version`, `purpose` (`level` or `buffer_image`), `identity`, `entries`,
//! `tombstones`, `deleted_ranges` (of keys that are deleted and still in it; they count as `entries`; 0 for a file by itself), `key_bytes`, `value_bytes`, `bytes` (of the file and of that of its blobs), `data_pages`, `key_pages`,
//! `overflow_pages`, `filter_pages`, `filter_kind` (`bloom`, `ribbon`, or null), `filter_bits_per_entry`, `filter_probes` (of a ribbon its columns), `index_pages`, and
//! `index_kind` (`compact` or `ordinary`), `index_bytes_per_page` (in memory, for each key page),
//! `index_extra_reads` (second reads if each key is looked up once), which are null if filter or index
//! are damaged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use terrane::io::{Disk, RealDisk};
use terrane::lsm::inspect::{
    self, CanonicalInfo, Inspection, LevelInfo, ManifestInfo, MetadataInfo, PageInfo, ReserveInfo,
    RunInfo, SegmentInfo, SegmentUse, SessionInfo, SnapshotInfo, StoreInfo,
};
use terrane::lsm::{
    CanonicalSummary, Error, MergePolicy, PAGE_SIZE, Purpose, TableConfig, WriteBuffer,
};
use terrane::state_dir;

use crate::inspect::{btree, context, radix};
use crate::stores::back_ends::RedisArgs;
use crate::stores::index_path::IndexPath;
use crate::stores::listed::{ListedTable, ListedVersion, Sums};
use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::text::{count_of, dump, grouped, hex, lines, shown, table, time};

/// What `--help` shows at its end.
pub(crate) const EXAMPLES: &str = "\
Examples:
  What a store holds, and its snapshots:
    terrane inspect /data/utxo
  Levels, runs and merges of a snapshot:
    terrane inspect /data/utxo/snapshots/tip.snapshot
  One run, and one of its pages:
    terrane inspect /data/utxo/active/00000007.run
    terrane inspect /data/utxo/active/00000007.run --page 3
  The named tables as of the last checkpoint, and a segment of the log since then:
    terrane inspect /data/ledger/manifest.a
    terrane inspect /data/ledger/log/00000002.log
  Count and digest of a canonical export:
    terrane inspect tip.canonical
  A B+tree, and one of its pages:
    terrane inspect /data/index
    terrane inspect /data/index/tree --page 2
  A context store, and what is in the tree of a commit of it:
    terrane inspect /data/context --at main
  Which back-end a radix store has, and its trees:
    terrane inspect /data/radix
  Every constant of the formats, for programs:
    terrane inspect constants --json

A store can be inspected while another process has it open; nothing is locked or written. But a
radix store is opened to list its trees, which takes its lock with back-end lsm or btree; while
another process has it, what its directory says is shown.";

/// The word that stands for the constants in the place of a path.
const CONSTANTS: &str = "constants";

/// Bytes of a key or a value shown in a table.
const SHOWN_BYTES: usize = 40;

#[derive(Debug, Args)]
pub(crate) struct Inspect {
    /// Directory of a store, a file in one, or a canonical export; `constants` (write `./constants` for a file of that
    /// name) shows the constants of the formats
    #[arg(value_name = "DIR|FILE")]
    path: PathBuf,
    /// Show this page of a run or of the tree file of an index, counted from 0
    #[arg(long, value_name = "N")]
    page: Option<u32>,
    /// Of a context store: read all of the tree of this commit or branch, and say what is in it
    #[arg(long, value_name = "COMMIT")]
    at: Option<String>,
    #[command(flatten)]
    redis: RedisArgs,
    /// Write one JSON object to standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is shown of anything.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Shown {
    Store(Store),
    Metadata(Metadata),
    Reserve(Reserve),
    Snapshot(Box<Snapshot>),
    Run(Run),
    Page(PageContent),
    Manifest(Manifest),
    Log(Segment),
    Canonical(Canonical),
    Btree(btree::BtreeInfo),
    BtreePage(btree::BtreePageInfo),
    Context(Box<context::ContextStoreInfo>),
    RadixStore(radix::RadixStoreInfo),
    Constants { constants: BTreeMap<&'static str, String> },
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    shown: Shown,
    damage: Vec<String>,
}

#[derive(Serialize)]
struct Store {
    path: String,
    format_version: u32,
    created: String,
    run_files: u64,
    run_files_unreferenced: u64,
    run_bytes: u64,
    reserve: Option<ReserveState>,
    named_tables: Option<NamedTables>,
    snapshots: Vec<StoredSnapshot>,
}

/// The named tables of a store, and its log.
#[derive(Serialize)]
struct NamedTables {
    #[serde(flatten)]
    manifest: Option<ManifestContent>,
    last_commit: Option<u64>,
    log_segments: Vec<Segment>,
}

/// A copy of the manifest.
#[derive(Serialize)]
struct Manifest {
    path: String,
    #[serde(flatten)]
    content: ManifestContent,
}

#[derive(Serialize)]
struct ManifestContent {
    format_version: u32,
    sequence: u64,
    checkpointed_commit: u64,
    first_segment: u64,
    is_backup: bool,
    tables: Vec<ListedTable>,
    versions: Vec<ListedVersion>,
}

/// A segment of the log.
#[derive(Serialize)]
struct Segment {
    path: String,
    number: u64,
    bytes: u64,
    usage: &'static str,
    first_commit: Option<u64>,
    commits: Option<u64>,
    updates: Option<u64>,
    end_bytes: Option<u64>,
    sealed: Option<bool>,
}

#[derive(Serialize)]
struct Metadata {
    path: String,
    format_version: u32,
    created: String,
}

#[derive(Serialize)]
struct Reserve {
    path: String,
    format_version: u32,
    #[serde(flatten)]
    held: ReserveState,
}

/// What a store keeps of the disk.
#[derive(Serialize)]
struct ReserveState {
    bytes: u64,
    is_held: bool,
}

#[derive(Serialize)]
struct Canonical {
    path: String,
    format_version: u32,
    count: u64,
    digest: String,
    bytes: u64,
}

/// A snapshot as a store lists it: nothing is known of a damaged one but its name.
#[derive(Serialize, Default)]
struct StoredSnapshot {
    name: String,
    label: Option<String>,
    saved: Option<String>,
    format_version: Option<u32>,
    levels: Option<u64>,
    runs: Option<u64>,
    stored_entries: Option<u64>,
    tombstones: Option<u64>,
    bytes: Option<u64>,
    merge_debt_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Snapshot {
    path: String,
    name: String,
    label: String,
    saved: String,
    format_version: u32,
    runs: u64,
    stored_entries: u64,
    tombstones: u64,
    bytes: u64,
    merge_debt_bytes: u64,
    config: Config,
    write_buffer: Vec<Run>,
    last_flush: Option<Run>,
    levels: Vec<LevelRuns>,
}

#[derive(Serialize)]
struct Config {
    merge_policy: &'static str,
    size_ratio: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_buffer_entries: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_buffer_bytes: Option<u64>,
}

#[derive(Serialize)]
struct LevelRuns {
    level: usize,
    merge: Option<Merge>,
    runs: Vec<Run>,
}

#[derive(Serialize)]
struct Merge {
    input_runs: u64,
    input_bytes: u64,
    due_in_flushes: f64,
    drops_tombstones: bool,
    deleted_ranges: u64,
}

#[derive(Serialize)]
struct Run {
    path: String,
    format_version: u32,
    purpose: &'static str,
    identity: String,
    entries: u64,
    tombstones: u64,
    deleted_ranges: u64,
    key_bytes: u64,
    value_bytes: u64,
    bytes: u64,
    data_pages: u32,
    key_pages: u32,
    overflow_pages: u32,
    filter_pages: u32,
    filter_kind: Option<&'static str>,
    filter_bits_per_entry: f64,
    filter_probes: u32,
    index_pages: u32,
    index_kind: Option<&'static str>,
    index_bytes_per_page: Option<f64>,
    index_extra_reads: Option<u64>,
}

#[derive(Serialize)]
struct PageContent {
    path: String,
    page: u32,
    offset_bytes: u64,
    page_kind: &'static str,
    crc: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<Entry>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_hex: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    kind: &'static str,
    key_hex: String,
    value_bytes: u64,
    value_hex: String,
}

/// Reads what the library tells, and keeps what it says of damage.
struct Inspector {
    disk: Arc<dyn Disk>,
    damage: Vec<String>,
}

impl Inspect {
    /// Runs it, writes its report and returns the exit code.
    ///
    /// # Errors
    /// [`Failure`], not yet reported.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let mut inspector = Inspector { disk: RealDisk::auto(), damage: Vec::new() };
        let (shown, text) = if self.path == Path::new(CONSTANTS) {
            self.refuse_page("the constants")?;
            let mut constants = inspect::constants();
            constants.extend(terrane::btree::inspect::constants());
            constants.extend(terrane::context::constants());
            constants.extend(terrane::radix::constants());
            let rows: Vec<Vec<String>> = constants
                .iter()
                .map(|(name, value)| vec![(*name).to_owned(), value.clone()])
                .collect();
            (Shown::Constants { constants: constants.into_iter().collect() }, table(2, &rows))
        } else {
            // Where a file stands tells what it is for, and where the runs of a snapshot are.
            let path = self.path.canonicalize().map_err(|error| {
                let message = format!("{}: {error}", self.path.display());
                match error.kind() {
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                        Failure::usage(message)
                    }
                    _ => Failure::environment(message),
                }
            })?;
            // Kept while all of the store is looked at: no link in it leads anywhere, and nobody can exchange a directory.
            let anchored = path.is_dir().then(|| inspector.disk.anchor(&path)).transpose();
            let _anchor = anchored.map_err(terrane::lsm::Error::from)?;
            self.inspect_path(&mut inspector, &path)?
        };
        let damage = inspector.damage;
        let failure = damage.first().map(|first| {
            let more = damage.len() - 1;
            let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
            Failure::check(format!("damage: {first}{more}"))
        });
        let report = Report { shown, damage };
        output::checked("inspect", self.json, &report, &text, failure.as_ref())
    }

    fn inspect_merkle_store(
        &self,
        inspector: &Inspector,
        path: &Path,
    ) -> Result<Option<(Shown, String)>, Failure> {
        if state_dir::is_store(path)? {
            self.refuse_page("a radix store")?;
            let described = radix::RadixStoreInfo::read(path, &self.redis)?;
            let text = described.text();
            return Ok(Some((Shown::RadixStore(described), text)));
        }
        if terrane::context::is_store(inspector.disk.as_ref(), path)? {
            self.refuse_page("a context store")?;
            let described = context::ContextStoreInfo::read(path, self.at.as_deref())?;
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
        if self.at.is_some() {
            let path = path.display();
            return Err(Failure::usage(format!("{path} is no context store: --at does not apply")));
        }
        let inspection = inspect::inspect(&inspector.disk, path);
        match inspection.map_err(|error| Failure::with_file(error, path))? {
            Inspection::Session(info) => {
                self.refuse_page("a store")?;
                let (store, text) = inspector.store(path, info);
                Ok((Shown::Store(store), text))
            }
            Inspection::Metadata(info) => {
                self.refuse_page("the metadata of a store")?;
                let metadata = metadata(path, &info);
                let text = lines(&[
                    ("metadata", metadata.path.clone()),
                    ("format version", metadata.format_version.to_string()),
                    ("created", metadata.created.clone()),
                ]);
                Ok((Shown::Metadata(metadata), text))
            }
            Inspection::Reserve(info) => {
                self.refuse_page("the reserve of a store")?;
                let (path, held) = (path.display().to_string(), ReserveState::new(info));
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
                    Ok(self::page(path, &info))
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
                let canonical = canonical(path, &info);
                let text = lines(&[
                    ("canonical export", canonical.path.clone()),
                    ("format version", canonical.format_version.to_string()),
                    ("count", canonical.count.to_string()),
                    ("digest", canonical.digest.clone()),
                    ("bytes", bytes(canonical.bytes)),
                ]);
                Ok((Shown::Canonical(canonical), text))
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

impl Inspector {
    fn store(&mut self, path: &Path, info: SessionInfo) -> (Store, String) {
        let mut snapshots = Vec::new();
        for (name, snapshot) in info.snapshots {
            let stored = match snapshot {
                Ok(snapshot) => StoredSnapshot::new(name, &snapshot),
                Err(Error::UnknownVersion { found, .. }) => {
                    let format_version = Some(found);
                    StoredSnapshot { name, format_version, ..StoredSnapshot::default() }
                }
                Err(error) => {
                    self.damage.push(error.to_string());
                    StoredSnapshot { name, ..StoredSnapshot::default() }
                }
            };
            snapshots.push(stored);
        }
        let named_tables = info.store.map(|store| self.named_tables(store));
        let Metadata { path, format_version, created } = metadata(path, &info.metadata);
        let store = Store {
            path,
            format_version,
            created,
            run_files: info.run_files,
            run_files_unreferenced: info.run_files_unreferenced,
            run_bytes: info.run_bytes,
            reserve: info.reserve.map(ReserveState::new),
            named_tables,
            snapshots,
        };
        let text = store.text();
        (store, text)
    }

    fn manifest(&mut self, info: &ManifestInfo) -> ManifestContent {
        let damage = &mut self.damage;
        ManifestContent {
            format_version: info.version,
            sequence: info.sequence,
            checkpointed_commit: info.commit,
            first_segment: info.segment,
            is_backup: info.is_backup,
            tables: info.tables.iter().map(|table| ListedTable::new(table, damage)).collect(),
            versions: info.versions.iter().map(ListedVersion::new).collect(),
        }
    }

    fn named_tables(&mut self, info: StoreInfo) -> NamedTables {
        self.damage.extend(info.damage);
        let log_segments: Vec<Segment> = info.segments.iter().map(Segment::new).collect();
        let commits = log_segments.iter().filter_map(|segment| segment.commits).sum::<u64>();
        let checkpointed = info.manifest.as_ref().map(|manifest| manifest.commit);
        NamedTables {
            manifest: info.manifest.map(|manifest| self.manifest(&manifest)),
            last_commit: checkpointed.map(|commit| commit.saturating_add(commits)),
            log_segments,
        }
    }

    fn snapshot(&mut self, path: &Path, info: &SnapshotInfo) -> Result<Snapshot, Failure> {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let sums = Sums::of(info);
        let mut levels = Vec::new();
        for (level, info) in (1..).zip(&info.levels) {
            levels.push(LevelRuns { level, merge: merge(info), runs: self.runs(&info.runs)? });
        }
        Ok(Snapshot {
            path: path.display().to_string(),
            name: stem,
            label: info.label.clone(),
            saved: time(info.created_ns),
            format_version: info.version,
            runs: sums.runs,
            stored_entries: sums.entries,
            tombstones: sums.tombstones,
            bytes: sums.bytes,
            merge_debt_bytes: sums.merge_debt_bytes,
            config: config(&info.config),
            write_buffer: self.runs(&info.buffer)?,
            last_flush: info.flushed.as_ref().map(|run| self.run(run)).transpose()?,
            levels,
        })
    }

    fn runs(&mut self, infos: &[RunInfo]) -> Result<Vec<Run>, Failure> {
        infos.iter().map(|info| self.run(info)).collect()
    }

    fn run(&mut self, info: &RunInfo) -> Result<Run, Failure> {
        let meta = &info.meta;
        let index = match inspect::inspect_index(&self.disk, &info.path) {
            Ok(index) => Some(index),
            Err(error @ terrane::lsm::Error::Corrupt { .. }) => {
                self.damage.push(error.to_string());
                None
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Run {
            path: info.path.display().to_string(),
            format_version: info.version,
            purpose: match meta.purpose {
                Purpose::Level => "level",
                Purpose::BufferImage => "buffer_image",
            },
            identity: format!("{:016x}", meta.identity),
            entries: meta.entries,
            tombstones: meta.deletes,
            deleted_ranges: info.deleted_ranges,
            key_bytes: meta.key_bytes,
            value_bytes: meta.value_bytes,
            bytes: info.bytes,
            data_pages: meta.data_pages,
            key_pages: meta.key_pages,
            overflow_pages: meta.data_pages - meta.key_pages,
            filter_pages: meta.filter_pages,
            filter_kind: match meta.has_ribbon() {
                _ if meta.filter_pages == 0 => None,
                true => Some("ribbon"),
                false => Some("bloom"),
            },
            filter_bits_per_entry: meta.filter_bits_per_entry(),
            filter_probes: if meta.filter_pages == 0 { 0 } else { meta.filter_probes },
            index_pages: meta.index_pages,
            index_kind: index.map(|index| index.kind),
            index_bytes_per_page: index.map(|index| index.bytes as f64 / f64::from(meta.key_pages)),
            index_extra_reads: index.map(|index| index.extra_reads),
        })
    }
}

fn metadata(path: &Path, info: &MetadataInfo) -> Metadata {
    Metadata {
        path: path.display().to_string(),
        format_version: info.version,
        created: time(info.created_ns),
    }
}

fn canonical(path: &Path, info: &CanonicalInfo) -> Canonical {
    let CanonicalSummary { count, digest, bytes, .. } = info.summary;
    Canonical {
        path: path.display().to_string(),
        format_version: info.version,
        count,
        digest: hex(&digest),
        bytes,
    }
}

fn config(config: &TableConfig) -> Config {
    let (write_buffer_entries, write_buffer_bytes) = match config.effective_write_buffer() {
        WriteBuffer::Entries(entries) => (Some(entries), None),
        WriteBuffer::Bytes(bytes) => (None, Some(bytes)),
        _ => (None, None),
    };
    Config {
        merge_policy: match config.merge_policy {
            MergePolicy::LazyLevelling => "lazy_levelling",
            MergePolicy::Levelling => "levelling",
            MergePolicy::Tiering => "tiering",
            _ => "other",
        },
        size_ratio: config.size_ratio,
        write_buffer_entries,
        write_buffer_bytes,
    }
}

fn merge(level: &LevelInfo) -> Option<Merge> {
    level.merge.map(|merge| Merge {
        input_runs: merge.input_runs,
        input_bytes: merge.input_pages * PAGE_SIZE as u64,
        due_in_flushes: merge.due_in_milliflushes as f64 / 1000.0,
        drops_tombstones: merge.drops_deletes,
        deleted_ranges: merge.deleted_ranges,
    })
}

fn page(path: &Path, info: &PageInfo) -> (Shown, String) {
    let is_key_page = info.kind == "key";
    let entry = |entry: &inspect::EntryInfo| Entry {
        kind: entry.kind,
        key_hex: hex(&entry.key),
        value_bytes: entry.value_len,
        value_hex: hex(&entry.value),
    };
    let page = PageContent {
        path: path.display().to_string(),
        page: info.page,
        offset_bytes: u64::from(info.page) * PAGE_SIZE as u64,
        page_kind: info.kind,
        crc: format!("{:08x}", info.crc),
        entries: is_key_page.then(|| info.entries.iter().map(entry).collect()),
        content_hex: (!is_key_page).then(|| hex(&info.content)),
    };
    let mut head = vec![
        ("page", format!("{} of {}", page.page, page.path)),
        ("offset", format!("{} bytes", page.offset_bytes)),
        ("kind", page.page_kind.to_owned()),
        ("crc", format!("{}, right", page.crc)),
    ];
    let body = if is_key_page {
        head.push(("entries", info.entries.len().to_string()));
        let mut rows = vec![["KIND", "KEY", "VALUE", "VALUE BYTES"].map(str::to_owned).to_vec()];
        rows.extend(info.entries.iter().map(|entry| {
            vec![
                entry.kind.to_owned(),
                shown(&entry.key, SHOWN_BYTES),
                if entry.kind == "insert" {
                    shown(&entry.value, SHOWN_BYTES)
                } else {
                    "-".to_owned()
                },
                grouped(entry.value_len),
            ]
        }));
        table(3, &rows)
    } else {
        dump(&info.content)
    };
    let text = format!("{}\n\n{body}", lines(&head));
    (Shown::Page(page), text)
}

impl StoredSnapshot {
    fn new(name: String, info: &SnapshotInfo) -> Self {
        let sums = Sums::of(info);
        Self {
            name,
            label: Some(info.label.clone()),
            saved: Some(time(info.created_ns)),
            format_version: Some(info.version),
            levels: Some(info.levels.len() as u64),
            runs: Some(sums.runs),
            stored_entries: Some(sums.entries),
            tombstones: Some(sums.tombstones),
            bytes: Some(sums.bytes),
            merge_debt_bytes: Some(sums.merge_debt_bytes),
        }
    }
}

impl Segment {
    fn new(info: &SegmentInfo) -> Self {
        let records = info.records.as_ref();
        Self {
            path: info.path.display().to_string(),
            number: info.number,
            bytes: info.bytes,
            usage: match info.usage {
                SegmentUse::Needed => "needed",
                SegmentUse::Old => "old",
                SegmentUse::Unfinished => "unfinished",
                _ => "unknown",
            },
            first_commit: records.map(|records| records.first_commit),
            commits: records.map(|records| records.commits),
            updates: records.map(|records| records.updates),
            end_bytes: records.map(|records| records.end),
            sealed: records.map(|records| records.is_sealed),
        }
    }

    fn end(&self) -> &'static str {
        match self.sealed {
            Some(true) => "sealed",
            Some(false) => "open",
            None => "",
        }
    }

    fn text(&self) -> String {
        let number = |number: Option<u64>| number.map_or_else(|| "not read".to_owned(), grouped);
        lines(&[
            ("segment of the log", self.path.clone()),
            ("number", self.number.to_string()),
            ("file", bytes(self.bytes)),
            ("first commit", number(self.first_commit)),
            ("commits", number(self.commits)),
            ("updates", number(self.updates)),
            ("end", format!("{} {}", number(self.end_bytes), self.end()).trim_end().to_owned()),
        ])
    }

    fn row(&self) -> Vec<String> {
        let number = |number: Option<u64>| number.map(grouped).unwrap_or_default();
        let file = Path::new(&self.path).file_name().unwrap_or_default();
        vec![
            file.to_string_lossy().into_owned(),
            self.usage.to_owned(),
            self.end().to_owned(),
            number(self.first_commit),
            number(self.commits),
            number(self.updates),
            self.end_bytes.map(bytes).unwrap_or_default(),
            bytes(self.bytes),
        ]
    }
}

impl ManifestContent {
    fn text(&self) -> String {
        let head = lines(&[
            ("sequence", grouped(self.sequence)),
            ("checkpointed commit", grouped(self.checkpointed_commit)),
            ("first segment", self.first_segment.to_string()),
            ("backup", if self.is_backup { "yes" } else { "no" }.to_owned()),
            ("tables", self.tables.len().to_string()),
            ("versions", self.versions.len().to_string()),
        ]);
        let mut parts = vec![head];
        if !self.tables.is_empty() {
            parts.push(ListedTable::text(&self.tables));
        }
        if !self.versions.is_empty() {
            parts.push(ListedVersion::text(&self.versions));
        }
        parts.join("\n\n")
    }
}

impl NamedTables {
    fn text(&self) -> String {
        let mut text = match &self.manifest {
            None => "manifest             damaged".to_owned(),
            Some(manifest) => manifest.text(),
        };
        if self.log_segments.is_empty() {
            return text;
        }
        let names =
            ["LOG", "USAGE", "END", "FIRST COMMIT", "COMMITS", "UPDATES", "WRITTEN", "BYTES"];
        let mut rows = vec![names.map(str::to_owned).to_vec()];
        rows.extend(self.log_segments.iter().map(Segment::row));
        text.push_str("\n\n");
        text.push_str(&table(3, &rows));
        text
    }
}

impl ReserveState {
    fn new(info: ReserveInfo) -> Self {
        Self { bytes: info.bytes, is_held: info.is_held }
    }

    fn text(&self) -> String {
        let given = if self.is_held { "" } else { ", given up because the disk was full" };
        format!("{}{given}", bytes(self.bytes))
    }
}

impl Store {
    fn text(&self) -> String {
        let unreferenced = match self.run_files_unreferenced {
            0 => String::new(),
            number => format!("; {} in no snapshot and no table", grouped(number)),
        };
        let files = grouped(self.run_files);
        let head = lines(&[
            ("store", self.path.clone()),
            ("format version", self.format_version.to_string()),
            ("created", self.created.clone()),
            ("run files", format!("{files}, {}{unreferenced}", bytes(self.run_bytes))),
            (
                "reserve",
                self.reserve.as_ref().map_or_else(|| "none".to_owned(), ReserveState::text),
            ),
            ("snapshots", self.snapshots.len().to_string()),
        ]);
        let head = match &self.named_tables {
            None => head,
            Some(named) => format!("{head}\n\n{}", named.text()),
        };
        if self.snapshots.is_empty() {
            return head;
        }
        let names = [
            "SNAPSHOT",
            "SAVED",
            "LABEL",
            "LEVELS",
            "RUNS",
            "STORED ENTRIES",
            "OF THEM TOMBSTONES",
            "BYTES",
            "MERGE DEBT",
        ];
        let mut rows = vec![names.map(str::to_owned).to_vec()];
        for snapshot in &self.snapshots {
            let number = |number: Option<u64>| number.map(grouped).unwrap_or_default();
            let size = |number: Option<u64>| number.map(bytes).unwrap_or_default();
            rows.push(vec![
                snapshot.name.clone(),
                snapshot.saved.clone().unwrap_or_else(|| "damaged".to_owned()),
                snapshot.label.clone().unwrap_or_default(),
                number(snapshot.levels),
                number(snapshot.runs),
                number(snapshot.stored_entries),
                number(snapshot.tombstones),
                size(snapshot.bytes),
                size(snapshot.merge_debt_bytes),
            ]);
        }
        format!("{head}\n\n{}", table(3, &rows))
    }
}

impl Snapshot {
    fn text(&self) -> String {
        let Config { merge_policy, size_ratio, write_buffer_entries, write_buffer_bytes } =
            &self.config;
        let buffer = write_buffer_entries
            .map(|entries| count_of(entries, "entry", "entries"))
            .or_else(|| write_buffer_bytes.map(bytes))
            .unwrap_or_default();
        let policy = merge_policy.replace('_', " ");
        let tombstones = count_of(self.tombstones, "tombstone", "tombstones");
        let runs = count_of(self.runs, "run", "runs");
        let head = lines(&[
            ("snapshot", self.path.clone()),
            ("label", self.label.clone()),
            ("saved", self.saved.clone()),
            ("format version", self.format_version.to_string()),
            (
                "stored entries",
                format!("{} in {runs}, {tombstones} among them", grouped(self.stored_entries)),
            ),
            ("bytes", bytes(self.bytes)),
            ("merge debt", bytes(self.merge_debt_bytes)),
            ("configuration", format!("{policy}, size ratio {size_ratio}, write buffer {buffer}")),
        ]);
        let names = [
            "LEVEL",
            "RUN",
            "ENTRIES",
            "TOMBSTONES",
            "PAGES",
            "BYTES",
            "FILTER BITS/ENTRY",
            "INDEX",
            "INDEX BYTES/PAGE",
        ];
        let mut rows = vec![names.map(str::to_owned).to_vec()];
        rows.extend(self.write_buffer.iter().map(|run| run.row("buffer")));
        rows.extend(self.last_flush.iter().map(|run| run.row("flush")));
        let mut merges = Vec::new();
        for level in &self.levels {
            let inputs = level.merge.as_ref().map_or(0, |merge| merge.input_runs);
            for (at, run) in (0..).zip(&level.runs) {
                let merging = if at < inputs { " merging" } else { "" };
                rows.push(run.row(&format!("{}{merging}", level.level)));
            }
            if let Some(merge) = &level.merge {
                let runs = count_of(merge.input_runs, "run", "runs");
                let drops = if merge.drops_tombstones { ", drops tombstones" } else { "" };
                merges.push(format!(
                    "\nlevel {}: a merge of {runs}, {} to read, due in {:.2} flushes{drops}",
                    level.level,
                    bytes(merge.input_bytes),
                    merge.due_in_flushes
                ));
            }
        }
        let runs = self.levels.iter().flat_map(|level| &level.runs);
        let runs = self.write_buffer.iter().chain(&self.last_flush).chain(runs);
        let masked = runs.filter(|run| run.deleted_ranges > 0).count() as u64;
        if masked > 0 {
            let runs = count_of(masked, "run", "runs");
            merges.push(format!("\n{runs} with deleted ranges of keys, which a merge leaves out"));
        }
        if rows.len() == 1 {
            return format!("{head}\n\nempty");
        }
        format!("{head}\n\n{}{}", table(2, &rows), merges.concat())
    }
}

impl Run {
    /// The run's row in the table of a snapshot.
    fn row(&self, level: &str) -> Vec<String> {
        let file = Path::new(&self.path).file_name().unwrap_or_default();
        vec![
            level.to_owned(),
            file.to_string_lossy().into_owned(),
            grouped(self.entries),
            grouped(self.tombstones),
            grouped(self.data_pages.into()),
            bytes(self.bytes),
            self.filter_text(),
            self.index_kind.unwrap_or("damaged").to_owned(),
            self.index_bytes_per_page.map_or_else(String::new, |bytes| format!("{bytes:.2}")),
        ]
    }

    fn filter_text(&self) -> String {
        match self.filter_pages {
            0 => "none".to_owned(),
            _ => format!("{:.2}", self.filter_bits_per_entry),
        }
    }

    fn text(&self) -> String {
        let index = match (self.index_kind, self.index_bytes_per_page) {
            (Some(kind), Some(per_page)) => format!("{kind}, {per_page:.2} bytes a page in memory"),
            _ => "damaged, or the filter is".to_owned(),
        };
        let (bits, probes) = (self.filter_text(), self.filter_probes);
        let filter = match self.filter_kind {
            None => bits,
            Some("ribbon") => format!("ribbon of {probes} columns, {bits} bits an entry"),
            Some(_) => format!("{bits} bits an entry, {probes} probes"),
        };
        let purpose = match self.purpose {
            "level" => "run of a level",
            _ => "image of a write buffer",
        };
        lines(&[
            ("run", self.path.clone()),
            ("purpose", purpose.to_owned()),
            ("format version", self.format_version.to_string()),
            ("identity", self.identity.clone()),
            ("entries", grouped(self.entries)),
            ("tombstones", grouped(self.tombstones)),
            ("keys", bytes(self.key_bytes)),
            ("values", bytes(self.value_bytes)),
            ("file", bytes(self.bytes)),
            ("key pages", grouped(self.key_pages.into())),
            ("overflow pages", grouped(self.overflow_pages.into())),
            ("filter pages", grouped(self.filter_pages.into())),
            ("index pages", grouped(self.index_pages.into())),
            ("filter", filter),
            ("index", index),
            ("second reads", self.index_extra_reads.map_or_else(|| "unknown".to_owned(), grouped)),
        ])
    }
}
