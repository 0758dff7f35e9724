//! B+trees as `terrane inspect` and `terrane verify` show them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrane::btree::inspect::{self, TreePage, TreePageContent};
use terrane::btree::{self, CheckReport, PAGE_SIZE};
use terrane::io::Disk;
use terrane::io::disk::EntryKind;

use crate::exit::Failure;
use crate::output::{self, bytes};
use crate::progress::ByteBar;
use crate::text::{count_of, dump, grouped, hex, shown, table};

/// Bytes of a key or a value shown in a table.
const SHOWN_BYTES: usize = 40;

/// What of an index a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its directory.
    Dir,
    /// Its tree file.
    File,
}

impl Place {
    /// `None` if it leads to something else, or nowhere.
    pub(crate) fn of(disk: &Arc<dyn Disk>, path: &Path) -> Result<Option<Self>, Failure> {
        let disk = disk.as_ref();
        let is_file = || inspect::is_tree_file(disk, path);
        Ok(match disk.kind(path).map_err(btree::Error::from)? {
            Some(EntryKind::Directory) => inspect::is_index(disk, path)?.then_some(Self::Dir),
            Some(EntryKind::File) => is_file()?.then_some(Self::File),
            _ => None,
        })
    }

    /// The directory of the index.
    pub(crate) fn dir(self, path: &Path) -> &Path {
        match self {
            Self::Dir => path,
            Self::File => path.parent().unwrap_or(path),
        }
    }
}

/// An index.
#[derive(Serialize)]
pub(crate) struct Described {
    path: String,
    format_version: u32,
    identity: String,
    key_bytes: Option<u16>,
    value_bytes: Option<u16>,
    generation: u64,
    oldest_generation: u64,
    height: u32,
    level_pages: Vec<u64>,
    entries: u64,
    checkpointed_entries: u64,
    file_bytes: u64,
    used_bytes: u64,
    bytes_per_entry: Option<f64>,
    log_start: u64,
    log_end: u64,
    log_bytes: u64,
    log_updates: u64,
    readers: u32,
    readers_oldest: Option<u64>,
}

impl Described {
    pub(crate) fn read(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Self, Failure> {
        let info = inspect::inspect(disk, dir)?;
        let used_bytes = info.level_pages.iter().sum::<u64>() * PAGE_SIZE as u64;
        let entries = info.checkpointed_entries;
        Ok(Self {
            path: dir.display().to_string(),
            format_version: info.version,
            identity: format!("{:016x}", info.tree),
            key_bytes: info.key_bytes,
            value_bytes: info.value_bytes,
            generation: info.generation,
            oldest_generation: info.oldest_generation,
            height: info.height,
            level_pages: info.level_pages,
            entries: info.entries,
            checkpointed_entries: entries,
            file_bytes: info.file_pages * PAGE_SIZE as u64,
            used_bytes,
            bytes_per_entry: (used_bytes > 0 && entries > 0)
                .then(|| used_bytes as f64 / entries as f64),
            log_start: info.log_start,
            log_end: info.log_end,
            log_bytes: info.log_end.saturating_sub(info.log_start),
            log_updates: info.log_updates,
            readers: info.readers,
            readers_oldest: info.readers_oldest,
        })
    }

    pub(crate) fn text(&self) -> String {
        let size =
            |bytes: Option<u16>| bytes.map_or("any size".to_owned(), |b| format!("{b} bytes"));
        let entries = match self.bytes_per_entry {
            Some(each) => format!("{}, {each:.1} bytes of pages each", grouped(self.entries)),
            None => grouped(self.entries),
        };
        let pages: Vec<String> = self.level_pages.iter().copied().map(grouped).collect();
        let readers = match self.readers_oldest {
            Some(oldest) => format!("{}, the oldest at generation {oldest}", self.readers),
            None => self.readers.to_string(),
        };
        let log = format!(
            "{}, {} from position {}",
            bytes(self.log_bytes),
            count_of(self.log_updates, "update", "updates"),
            self.log_start
        );
        let generation = format!("{}, readable from {}", self.generation, self.oldest_generation);
        lines(&[
            ("B+tree", self.path.clone()),
            ("format version", self.format_version.to_string()),
            ("identity", self.identity.clone()),
            ("keys", size(self.key_bytes)),
            ("values", size(self.value_bytes)),
            ("entries", entries),
            ("height", self.height.to_string()),
            ("pages by level", if pages.is_empty() { "none".to_owned() } else { pages.join(", ") }),
            ("file", format!("{}, {} of the tree", bytes(self.file_bytes), bytes(self.used_bytes))),
            ("log", log),
            ("generation", generation),
            ("readers", readers),
        ])
    }
}

/// A page of a tree file.
#[derive(Serialize)]
pub(crate) struct DescribedPage {
    path: String,
    page: u32,
    offset_bytes: u64,
    page_kind: &'static str,
    level: u8,
    generation: u64,
    crc: String,
    #[serde(flatten)]
    content: DescribedContent,
}

#[derive(Serialize)]
#[serde(untagged)]
enum DescribedContent {
    Leaf { low_hex: String, high_hex: Option<String>, entries: Vec<DescribedEntry> },
    Inner { children: Vec<DescribedChild> },
    Other { content_hex: String },
}

#[derive(Serialize)]
struct DescribedEntry {
    key_hex: String,
    value_hex: String,
    #[serde(skip)]
    row: [String; 2],
}

#[derive(Serialize)]
struct DescribedChild {
    separator_hex: String,
    page: u32,
    #[serde(skip)]
    shown: String,
}

impl DescribedPage {
    pub(crate) fn read(disk: &Arc<dyn Disk>, path: &Path, number: u32) -> Result<Self, Failure> {
        let TreePage { kind, level, generation, crc, content, .. } =
            inspect::inspect_page(disk.as_ref(), path, number)?;
        Ok(Self {
            path: path.display().to_string(),
            page: number,
            offset_bytes: u64::from(number) * PAGE_SIZE as u64,
            page_kind: kind,
            level,
            generation,
            crc: format!("{crc:08x}"),
            content: DescribedContent::new(content),
        })
    }

    pub(crate) fn text(&self) -> String {
        let mut head = vec![
            ("page", format!("{} of {}", self.page, self.path)),
            ("offset", format!("{} bytes", self.offset_bytes)),
            ("kind", format!("{}, level {}", self.page_kind.replace('_', " "), self.level)),
            ("generation", self.generation.to_string()),
            ("crc", format!("{}, right", self.crc)),
        ];
        let body = match &self.content {
            DescribedContent::Leaf { low_hex, high_hex, entries } => {
                let high = high_hex.clone().unwrap_or_else(|| "the end".to_owned());
                head.push(("keys", format!("from {low_hex:?} to {high:?}")));
                head.push(("entries", entries.len().to_string()));
                let mut rows = vec![["KEY", "VALUE"].map(str::to_owned).to_vec()];
                rows.extend(entries.iter().map(|entry| entry.row.to_vec()));
                table(2, &rows)
            }
            DescribedContent::Inner { children } => {
                head.push(("children", children.len().to_string()));
                let mut rows = vec![["FROM", "PAGE"].map(str::to_owned).to_vec()];
                rows.extend(
                    children.iter().map(|child| vec![child.shown.clone(), child.page.to_string()]),
                );
                table(1, &rows)
            }
            DescribedContent::Other { content_hex } => {
                dump(&terrane_bench::hex::decode(content_hex).unwrap_or_default())
            }
        };
        format!("{}\n\n{body}", lines(&head))
    }
}

impl DescribedContent {
    fn new(content: TreePageContent) -> Self {
        match content {
            TreePageContent::Leaf { low, high, entries } => Self::Leaf {
                low_hex: hex(&low),
                high_hex: high.as_deref().map(hex),
                entries: entries
                    .iter()
                    .map(|(key, value)| DescribedEntry {
                        key_hex: hex(key),
                        value_hex: hex(value),
                        row: [shown(key, SHOWN_BYTES), shown(value, SHOWN_BYTES)],
                    })
                    .collect(),
            },
            TreePageContent::Inner(children) => {
                let child = |(separator, page): (Vec<u8>, u32)| DescribedChild {
                    separator_hex: hex(&separator),
                    page,
                    shown: shown(&separator, SHOWN_BYTES),
                };
                Self::Inner { children: children.into_iter().map(child).collect() }
            }
            TreePageContent::Bytes(bytes) => Self::Other { content_hex: hex(&bytes) },
            _ => Self::Other { content_hex: String::new() },
        }
    }
}

/// Names and values, one below the other.
fn lines(lines: &[(&str, String)]) -> String {
    let row = |(name, value): &(&str, String)| vec![(*name).to_owned(), value.clone()];
    table(2, &lines.iter().map(row).collect::<Vec<_>>())
}

#[derive(Serialize)]
struct Problem {
    file: String,
    offset_bytes: u64,
    rule: String,
    from_hex: Option<String>,
    to_hex: Option<String>,
}

/// What a check found.
#[derive(Serialize)]
struct Checked {
    problems: Vec<Problem>,
    left: u64,
    leaves: u64,
    nodes: u64,
    height: u32,
    entries: u64,
    leaf_entries: u64,
    log_updates: u64,
    leaf_fill: f64,
    sparse_leaves: u64,
    wall_s: f64,
}

/// Checks the index in a directory, writes the report and returns the exit code.
pub(crate) fn verify(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    (json, quiet): (bool, bool),
) -> Result<u8, Failure> {
    let started = Instant::now();
    let mut bar = ByteBar::new("checking", quiet);
    let page = PAGE_SIZE as u64;
    let report = btree::check(disk, dir, &mut |done, total| bar.set(done * page, total * page))?;
    drop(bar);
    let checked = Checked::new(report, started.elapsed().as_secs_f64());
    let failure = (checked.left > 0).then(|| {
        let left = count_of(checked.left, "problem is", "problems are");
        Failure::check(format!("{}: {left} left", dir.display()))
    });
    output::checked("verify", json, &checked, &checked.text(), failure.as_ref())
}

impl Checked {
    fn new(report: CheckReport, wall_s: f64) -> Self {
        let problems: Vec<Problem> = report
            .problems
            .into_iter()
            .map(|problem| Problem {
                file: problem.path.display().to_string(),
                offset_bytes: problem.what.page * PAGE_SIZE as u64,
                rule: problem.what.to_string(),
                from_hex: problem.keys.as_ref().map(|(from, _)| hex(from)),
                to_hex: problem.keys.and_then(|(_, to)| to).as_deref().map(hex),
            })
            .collect();
        Self {
            left: problems.len() as u64,
            problems,
            leaves: report.leaves,
            nodes: report.nodes,
            height: report.height,
            entries: report.entries,
            leaf_entries: report.leaf_entries,
            log_updates: report.log_updates,
            leaf_fill: report.leaf_fill,
            sparse_leaves: report.sparse_leaves,
            wall_s,
        }
    }

    fn text(&self) -> String {
        let mut lines = Vec::new();
        for Problem { file, offset_bytes, rule, from_hex, to_hex } in &self.problems {
            let keys = from_hex.as_ref().map_or(String::new(), |from| {
                let to = to_hex.as_deref().map_or("the end", |to| to);
                format!("; keys from {from:?} to {to:?}")
            });
            lines.push(format!("{file}: offset {offset_bytes}: {rule}{keys}"));
        }
        let outcome = match self.left {
            0 => "no problem".to_owned(),
            left => count_of(left, "problem", "problems"),
        };
        let checked = [
            count_of(self.leaves, "leaf", "leaves"),
            count_of(self.nodes, "inner page", "inner pages"),
            count_of(self.entries, "entry", "entries"),
            count_of(self.log_updates, "update in the log", "updates in the log"),
        ];
        let fill = self.leaf_fill * 100.0;
        let checked = checked.join(", ");
        lines.push(format!(
            "checked {checked} in {:.3} s, leaves {fill:.0} % full: {outcome}",
            self.wall_s
        ));
        lines.join("\n")
    }
}
