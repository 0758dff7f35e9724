//! B+trees and their pages as `terrane inspect` shows them.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use terrane::btree::PAGE_SIZE;
use terrane::btree::inspect::{self, TreePage, TreePageContent};
use terrane::io::Disk;

use crate::ui::exit::Failure;
use crate::ui::output::bytes;
use crate::ui::text::{count_of, dump, grouped, hex, lines, shown, table};

/// Bytes of a key or a value shown in a table.
const SHOWN_BYTES: usize = 40;

/// Report of a B+tree.
#[derive(Serialize)]
pub(crate) struct BtreeInfo {
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

impl BtreeInfo {
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

/// Report of a page of a tree file.
#[derive(Serialize)]
pub(crate) struct BtreePageInfo {
    path: String,
    page: u32,
    offset_bytes: u64,
    page_kind: &'static str,
    level: u8,
    generation: u64,
    crc: String,
    #[serde(flatten)]
    content: PageContentInfo,
}

#[derive(Serialize)]
#[serde(untagged)]
enum PageContentInfo {
    Leaf { low_hex: String, high_hex: Option<String>, entries: Vec<LeafEntryInfo> },
    Inner { children: Vec<ChildInfo> },
    Other { content_hex: String },
}

#[derive(Serialize)]
struct LeafEntryInfo {
    key_hex: String,
    value_hex: String,
    #[serde(skip)]
    row: [String; 2],
}

#[derive(Serialize)]
struct ChildInfo {
    separator_hex: String,
    page: u32,
    #[serde(skip)]
    shown: String,
}

impl BtreePageInfo {
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
            content: PageContentInfo::new(content),
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
            PageContentInfo::Leaf { low_hex, high_hex, entries } => {
                let high = high_hex.clone().unwrap_or_else(|| "the end".to_owned());
                head.push(("keys", format!("from {low_hex:?} to {high:?}")));
                head.push(("entries", entries.len().to_string()));
                let mut rows = vec![["KEY", "VALUE"].map(str::to_owned).to_vec()];
                rows.extend(entries.iter().map(|entry| entry.row.to_vec()));
                table(2, &rows)
            }
            PageContentInfo::Inner { children } => {
                head.push(("children", children.len().to_string()));
                let mut rows = vec![["FROM", "PAGE"].map(str::to_owned).to_vec()];
                rows.extend(
                    children.iter().map(|child| vec![child.shown.clone(), child.page.to_string()]),
                );
                table(1, &rows)
            }
            PageContentInfo::Other { content_hex } => {
                dump(&terrane_replay::hex::decode(content_hex).unwrap_or_default())
            }
        };

        format!("{}\n\n{body}", lines(&head))
    }
}

impl PageContentInfo {
    fn new(content: TreePageContent) -> Self {
        match content {
            TreePageContent::Leaf { low, high, entries } => Self::Leaf {
                low_hex: hex(&low),
                high_hex: high.as_deref().map(hex),
                entries: entries
                    .iter()
                    .map(|(key, value)| LeafEntryInfo {
                        key_hex: hex(key),
                        value_hex: hex(value),
                        row: [shown(key, SHOWN_BYTES), shown(value, SHOWN_BYTES)],
                    })
                    .collect(),
            },
            TreePageContent::Inner(children) => {
                let child = |(separator, page): (Vec<u8>, u32)| ChildInfo {
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
