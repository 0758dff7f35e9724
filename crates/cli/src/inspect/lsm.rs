//! Stores, snapshots, runs, pages and segments of LSM tables as `terrane inspect` shows them.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use terrane::io::Disk;
use terrane::lsm::inspect::{
    self, CanonicalInfo, CursorInfo, LevelInfo, ManifestInfo, MetadataInfo, PageInfo, ReserveInfo,
    RunInfo, SegmentInfo, SegmentUse, SessionInfo, SnapshotInfo, StoreInfo,
};
use terrane::lsm::{
    CanonicalSummary, CompactionPolicy, Error, PAGE_SIZE, Purpose, TableConfig, WriteBuffer,
};

use crate::stores::listed::{ListedTable, ListedVersion, Sums};
use crate::ui::exit::Failure;
use crate::ui::output::bytes;
use crate::ui::text::{count_of, dump, grouped, hex, lines, shown, table, time};

/// Bytes of a key or a value shown in a table.
const SHOWN_BYTES: usize = 40;

#[derive(Serialize)]
pub(super) struct Store {
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

/// Named tables of a store, and its log.
#[derive(Serialize)]
pub(super) struct NamedTables {
    #[serde(flatten)]
    manifest: Option<ManifestContent>,
    last_commit: Option<u64>,
    log_segments: Vec<Segment>,
}

/// Report of a copy of the manifest.
#[derive(Serialize)]
pub(super) struct Manifest {
    pub(super) path: String,
    #[serde(flatten)]
    pub(super) content: ManifestContent,
}

#[derive(Serialize)]
pub(super) struct ManifestContent {
    pub(super) format_version: u32,
    sequence: u64,
    checkpointed_commit: u64,
    first_segment: u64,
    is_backup: bool,
    tables: Vec<ListedTable>,
    versions: Vec<ListedVersion>,
}

/// Report of a segment of the log.
#[derive(Serialize)]
pub(super) struct Segment {
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
pub(super) struct Metadata {
    pub(super) path: String,
    pub(super) format_version: u32,
    pub(super) created: String,
}

#[derive(Serialize)]
pub(super) struct Reserve {
    pub(super) path: String,
    pub(super) format_version: u32,
    #[serde(flatten)]
    pub(super) held: ReserveState,
}

/// Disk space that a store keeps in reserve.
#[derive(Serialize)]
pub(super) struct ReserveState {
    bytes: u64,
    is_held: bool,
}

#[derive(Serialize)]
pub(super) struct Canonical {
    pub(super) path: String,
    pub(super) format_version: u32,
    pub(super) count: u64,
    pub(super) digest: String,
    pub(super) bytes: u64,
}

#[derive(Serialize)]
pub(super) struct FeedCursor {
    pub(super) path: String,
    pub(super) format_version: u32,
    pub(super) acknowledged_commit: u64,
    pub(super) first_segment: u64,
    pub(super) held_bytes_max: u64,
}

/// Row of a snapshot in the report of a store. A damaged snapshot has only its name.
#[derive(Serialize, Default)]
pub(super) struct StoredSnapshot {
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
pub(super) struct Snapshot {
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
pub(super) struct Config {
    merge_policy: &'static str,
    size_ratio: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_buffer_entries: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_buffer_bytes: Option<u64>,
    compression: String,
    compressed_levels: String,
    prefix_bytes: Option<u8>,
}

#[derive(Serialize)]
pub(super) struct LevelRuns {
    level: usize,
    merge: Option<Merge>,
    runs: Vec<Run>,
}

#[derive(Serialize)]
pub(super) struct Merge {
    slices: u64,
    input_runs: u64,
    input_bytes: u64,
    due_in_flushes: f64,
    drops_tombstones: bool,
    deleted_ranges: u64,
}

#[derive(Serialize)]
pub(super) struct Run {
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
    compressed_pages: u32,
    overflow_pages: u32,
    filter_pages: u32,
    filter_kind: Option<&'static str>,
    filter_bits_per_entry: f64,
    filter_probes: u32,
    filter_prefix_bytes: u8,
    filter_prefixes: u64,
    index_pages: u32,
    index_kind: Option<&'static str>,
    index_bytes_per_page: Option<f64>,
    index_extra_reads: Option<u64>,
}

#[derive(Serialize)]
pub(super) struct PageContent {
    path: String,
    page: u32,
    offset_bytes: u64,
    page_kind: &'static str,
    crc: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    codec: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<Entry>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_hex: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Entry {
    kind: &'static str,
    key_hex: String,
    value_bytes: u64,
    value_hex: String,
}

/// Turns the info types of the library into reports, and collects the damage that they name.
pub(super) struct Inspector {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) damage: Vec<String>,
    /// Session whose page is to be made.
    pub(super) session: Option<SessionInfo>,
}

impl Inspector {
    pub(super) fn store(&mut self, path: &Path, info: SessionInfo) -> (Store, String) {
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

    pub(super) fn manifest(&mut self, info: &ManifestInfo) -> ManifestContent {
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
        // Old segments have no records here, so the sum counts commits after the checkpoint only.
        let commits = log_segments.iter().filter_map(|segment| segment.commits).sum::<u64>();
        let checkpointed = info.manifest.as_ref().map(|manifest| manifest.commit);
        NamedTables {
            manifest: info.manifest.map(|manifest| self.manifest(&manifest)),
            last_commit: checkpointed.map(|commit| commit.saturating_add(commits)),
            log_segments,
        }
    }

    pub(super) fn snapshot(
        &mut self,
        path: &Path,
        info: &SnapshotInfo,
    ) -> Result<Snapshot, Failure> {
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

    pub(super) fn run(&mut self, info: &RunInfo) -> Result<Run, Failure> {
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
            compressed_pages: meta.compressed_pages,
            overflow_pages: meta.data_pages - meta.key_pages,
            filter_pages: meta.filter_pages,
            filter_kind: match meta.has_ribbon() {
                _ if meta.filter_pages == 0 => None,
                true => Some("ribbon"),
                false => Some("bloom"),
            },
            filter_bits_per_entry: meta.filter_bits_per_entry(),
            filter_probes: if meta.filter_pages == 0 { 0 } else { meta.filter_probes },
            filter_prefix_bytes: meta.prefix_bytes,
            filter_prefixes: meta.prefixes,
            index_pages: meta.index_pages,
            index_kind: index.map(|index| index.kind),
            index_bytes_per_page: index.map(|index| index.bytes as f64 / f64::from(meta.key_pages)),
            index_extra_reads: index.map(|index| index.extra_reads),
        })
    }
}

pub(super) fn metadata(path: &Path, info: &MetadataInfo) -> Metadata {
    Metadata {
        path: path.display().to_string(),
        format_version: info.version,
        created: time(info.created_ns),
    }
}

pub(super) fn feed_cursor(path: &Path, info: &CursorInfo) -> FeedCursor {
    FeedCursor {
        path: path.display().to_string(),
        format_version: info.version,
        acknowledged_commit: info.acknowledged,
        first_segment: info.segment,
        held_bytes_max: info.held_bytes_max,
    }
}

pub(super) fn canonical(path: &Path, info: &CanonicalInfo) -> Canonical {
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
        merge_policy: match config.compaction_policy {
            CompactionPolicy::LazyLevelling => "lazy_levelling",
            CompactionPolicy::Levelling => "levelling",
            CompactionPolicy::Tiering => "tiering",
            _ => "other",
        },
        size_ratio: config.size_ratio,
        write_buffer_entries,
        write_buffer_bytes,
        compression: config.compression.to_string(),
        compressed_levels: config.compressed_levels.to_string(),
        prefix_bytes: config.prefix_bytes,
    }
}

fn merge(level: &LevelInfo) -> Option<Merge> {
    level.merge.map(|merge| Merge {
        slices: merge.slices,
        input_runs: merge.input_runs,
        input_bytes: merge.input_pages * PAGE_SIZE as u64,
        due_in_flushes: merge.due_in_milliflushes as f64 / 1000.0,
        drops_tombstones: merge.drops_deletes,
        deleted_ranges: merge.deleted_ranges,
    })
}

pub(super) fn page(path: &Path, info: &PageInfo) -> (PageContent, String) {
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
        codec: info.codec,
        entries: is_key_page.then(|| info.entries.iter().map(entry).collect()),
        content_hex: (!is_key_page).then(|| hex(&info.content)),
    };

    let mut head = vec![
        ("page", format!("{} of {}", page.page, page.path)),
        ("offset", format!("{} bytes", page.offset_bytes)),
        ("kind", page.page_kind.to_owned()),
        ("crc", format!("{}, right", page.crc)),
    ];

    head.extend(info.codec.map(|codec| ("codec", codec.to_owned())));

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

    (page, text)
}

impl StoredSnapshot {
    pub(super) fn new(name: String, info: &SnapshotInfo) -> Self {
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
    pub(super) fn new(info: &SegmentInfo) -> Self {
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

    pub(super) fn text(&self) -> String {
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
    pub(super) fn text(&self) -> String {
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
    pub(super) fn text(&self) -> String {
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
    pub(super) fn new(info: ReserveInfo) -> Self {
        Self { bytes: info.bytes, is_held: info.is_held }
    }

    pub(super) fn text(&self) -> String {
        let given = if self.is_held { "" } else { ", given up because the disk was full" };
        format!("{}{given}", bytes(self.bytes))
    }
}

impl Store {
    pub(super) fn text(&self) -> String {
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

        let last = self.snapshots.last().map_or("NAME", |snapshot| &snapshot.name);
        let next = format!("terrane scan --snapshot {last} --store {} --limit 10", self.path);
        format!("{head}\n\n{}\n\nto read a snapshot: {next}", table(3, &rows))
    }
}

impl Config {
    fn prefixes_text(&self) -> String {
        self.prefix_bytes.map_or_else(|| "none".to_owned(), |bytes| format!("of {bytes} bytes"))
    }

    fn compression_text(&self) -> String {
        let Self { compression, compressed_levels, .. } = self;
        match (compression.as_str(), compressed_levels.as_str()) {
            ("none", _) => "none".to_owned(),
            (_, "last") => format!("{compression}, last level"),
            _ => format!("{compression}, from level {compressed_levels} on"),
        }
    }
}

impl Snapshot {
    pub(super) fn text(&self) -> String {
        let Config { merge_policy, size_ratio, write_buffer_entries, write_buffer_bytes, .. } =
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
            ("compression", self.config.compression_text()),
            ("prefixes in filters", self.config.prefixes_text()),
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
            let merge = level.merge.as_ref();
            let (slices, inputs) = merge.map_or((0, 0), |merge| (merge.slices, merge.input_runs));
            for (at, run) in (0..).zip(&level.runs) {
                let merging = match at {
                    _ if at < slices => " merged",
                    _ if at < slices + inputs => " merging",
                    _ => "",
                };
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
    /// Returns the row of the run in the table of a snapshot.
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

    pub(super) fn text(&self) -> String {
        let index = match (self.index_kind, self.index_bytes_per_page) {
            (Some(kind), Some(per_page)) => format!("{kind}, {per_page:.2} bytes a page in memory"),
            _ => "damaged, or the filter is".to_owned(),
        };

        let bits = self.filter_text();
        let probes = self.filter_probes;
        let filter = match self.filter_kind {
            None => bits,
            Some("ribbon") => format!("ribbon of {probes} columns, {bits} bits an entry"),
            Some(_) => format!("{bits} bits an entry, {probes} probes"),
        };
        let filter = match self.filter_prefix_bytes {
            0 => filter,
            bytes => {
                let prefixes = grouped(self.filter_prefixes);
                format!("{filter}, with {prefixes} prefixes of {bytes} bytes")
            }
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
            ("compressed pages", grouped(self.compressed_pages.into())),
            ("overflow pages", grouped(self.overflow_pages.into())),
            ("filter pages", grouped(self.filter_pages.into())),
            ("index pages", grouped(self.index_pages.into())),
            ("filter", filter),
            ("index", index),
            ("second reads", self.index_extra_reads.map_or_else(|| "unknown".to_owned(), grouped)),
        ])
    }
}
