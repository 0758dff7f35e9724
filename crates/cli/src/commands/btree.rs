//! B+trees as `terrane inspect` and `terrane verify` show them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use terrane::btree::inspect::{self, TreePage, TreePageContent};
use terrane::btree::{self, CheckReport, Config, Loss, PAGE_SIZE};
use terrane::io::Disk;
use terrane::io::EntryKind;

use crate::ui::exit::Failure;
use crate::ui::output::{self, bytes};
use crate::ui::progress::ByteBar;
use crate::ui::text::{count_of, dump, grouped, hex, shown, table};

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

/// The options of the index in a directory.
///
/// # Errors
/// [`Failure`].
pub(crate) fn config_of(disk: &Arc<dyn Disk>, dir: &Path) -> Result<Config, Failure> {
    let info = inspect::inspect(disk, dir)?;
    let mut config = Config::variable();
    config.key_bytes = info.key_bytes.map(usize::from);
    config.value_bytes = info.value_bytes.map(usize::from);
    Ok(config)
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
                dump(&terrane_replay::hex::decode(content_hex).unwrap_or_default())
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

#[derive(Serialize, PartialEq)]
struct Problem {
    file: String,
    offset_bytes: u64,
    rule: String,
    #[serde(flatten)]
    keys: Keys,
    repaired: bool,
}

/// Keys from one to before another, or to the end; without the first one, no keys are known.
#[derive(Default, Serialize, PartialEq)]
struct Keys {
    from_hex: Option<String>,
    to_hex: Option<String>,
}

/// What a repair did.
#[derive(Serialize)]
struct Repaired {
    pages_scanned: u64,
    leaves_kept: u64,
    pages_dropped: u64,
    pages_damaged: u64,
    maps_lost: u64,
    superblocks_rewritten: u64,
    stale: Vec<Keys>,
    lost: Vec<Keys>,
    tree_lost: bool,
    /// First and last position.
    log_lost: Vec<(u64, u64)>,
    was_refused: bool,
    entries: u64,
}

/// What a check found, after a repair if there was one.
#[derive(Serialize, Default)]
struct Checked {
    problems: Vec<Problem>,
    repaired: u64,
    left: u64,
    repair: Option<Repaired>,
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

/// Checks the index in a directory, with `repair` mends it, writes the report and returns the exit code.
pub(crate) fn verify(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    repair: Option<Loss>,
    (json, quiet): (bool, bool),
) -> Result<u8, Failure> {
    let started = Instant::now();
    let mut checked = if let Some(loss) = repair {
        mend(disk, dir, loss, quiet)?
    } else {
        Checked::new(with_bar("checking", quiet, |set| btree::check(disk, dir, set))?)
    };
    checked.wall_s = started.elapsed().as_secs_f64();
    let failure = (checked.left > 0).then(|| {
        let left = count_of(checked.left, "problem is", "problems are");
        Failure::check(format!("{}: {left} left", dir.display()))
    });
    output::checked("verify", json, &checked, &checked.text(), failure.as_ref())
}

/// Does what counts pages done, of all, with a bar.
fn with_bar<T>(
    name: &'static str,
    quiet: bool,
    work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> btree::Result<T>,
) -> btree::Result<T> {
    let mut bar = ByteBar::new(name, quiet);
    let page = PAGE_SIZE as u64;
    work(&mut |done, total| bar.set(done * page, total * page))
}

/// Checks an index, repairs it if there is a problem, and checks it again.
fn mend(disk: &Arc<dyn Disk>, dir: &Path, loss: Loss, quiet: bool) -> Result<Checked, Failure> {
    let check = || with_bar("checking", quiet, |set| btree::check(disk, dir, set));
    let found = match check() {
        Ok(report) if report.problems.is_empty() => return Ok(Checked::new(report)),
        Ok(report) => report.problems.into_iter().map(Problem::new).collect(),
        Err(btree::Error::Corrupt { path, what }) => {
            vec![Problem::new(btree::Problem { path, what, keys: None })]
        }
        Err(error @ (btree::Error::NotAnIndex { .. } | btree::Error::TreeMissing { .. })) => {
            let file = dir.join("tree").display().to_string();
            let rule = error.to_string();
            vec![Problem { file, offset_bytes: 0, rule, keys: Keys::default(), repaired: false }]
        }
        Err(error) => return Err(error.into()),
    };
    let repair = with_bar("repairing", quiet, |set| btree::repair(disk, dir, loss, set))?;
    if repair.was_refused {
        let mut checked = Checked { problems: found, ..Checked::default() };
        checked.left = checked.problems.len() as u64;
        checked.repair = Some(Repaired::new(repair));
        return Ok(checked);
    }
    Ok(Checked::new(check()?).after(repair, found))
}

impl Problem {
    fn new(problem: btree::Problem) -> Self {
        Self {
            file: problem.path.display().to_string(),
            offset_bytes: problem.what.page * PAGE_SIZE as u64,
            rule: problem.what.to_string(),
            keys: problem.keys.map_or_else(Keys::default, Keys::new),
            repaired: false,
        }
    }
}

impl Keys {
    fn new((from, to): (Vec<u8>, Option<Vec<u8>>)) -> Self {
        Self { from_hex: Some(hex(&from)), to_hex: to.as_deref().map(hex) }
    }

    /// Whether all of these are known to be in another range. Digits have the order of their bytes.
    fn lie_in(&self, range: &Self) -> bool {
        self.from_hex.is_some()
            && range.from_hex <= self.from_hex
            && (range.to_hex.is_none() || self.to_hex.is_some() && self.to_hex <= range.to_hex)
    }

    fn text(&self) -> Option<String> {
        let to = self.to_hex.as_deref().unwrap_or("the end");
        self.from_hex.as_ref().map(|from| format!("keys from {from:?} to {to:?}"))
    }
}

impl Repaired {
    fn new(report: btree::RepairReport) -> Self {
        let keys = |ranges: Vec<_>| ranges.into_iter().map(Keys::new).collect();
        Self {
            pages_scanned: report.pages_scanned,
            leaves_kept: report.leaves_kept,
            pages_dropped: report.pages_dropped,
            pages_damaged: report.pages_damaged,
            maps_lost: report.maps_lost,
            superblocks_rewritten: report.superblocks_rewritten,
            stale: keys(report.stale),
            lost: keys(report.lost),
            tree_lost: report.tree_lost,
            log_lost: report.log_lost,
            was_refused: report.was_refused,
            entries: report.entries,
        }
    }

    fn lines(&self) -> Vec<String> {
        let told = |ranges: &[Keys], what: &str| -> Vec<String> {
            ranges.iter().filter_map(Keys::text).map(|keys| format!("{keys}: {what}")).collect()
        };
        let (stale, lost) = if self.was_refused {
            ("would come from an older leaf", "would be lost")
        } else {
            (
                "taken from an older leaf, so perhaps out of date",
                "lost: only what the log has is left",
            )
        };
        let mut lines = told(&self.stale, stale);
        lines.extend(told(&self.lost, lost));
        let fate = if self.was_refused { "would be lost" } else { "lost" };
        lines.extend(self.log_lost.iter().map(|(from, to)| {
            format!(
                "updates of positions {from} to {to} of the log: {fate}, whichever keys they had"
            )
        }));
        if self.was_refused {
            lines.push(
                "nothing was repaired, as entries would be lost: restore a copy, or add \
                --accept-loss"
                    .into(),
            );
            return lines;
        }
        if self.tree_lost {
            lines.push("the tree file was missing: made anew from what the log has".to_owned());
        }
        if self.superblocks_rewritten > 0 {
            lines.push("repair: a superblock was written anew; everything else was whole".into());
            return lines;
        }
        let did = [
            count_of(self.pages_scanned, "page scanned", "pages scanned"),
            count_of(self.leaves_kept, "leaf kept", "leaves kept"),
            count_of(self.pages_dropped, "page dropped", "pages dropped"),
            count_of(self.pages_damaged, "page damaged", "pages damaged"),
            count_of(self.maps_lost, "part of the map lost", "parts of the map lost"),
        ];
        let entries = count_of(self.entries, "entry", "entries");
        lines.push(format!("repair: {}: {entries} in the index", did.join(", ")));
        lines
    }
}

impl Checked {
    fn new(report: CheckReport) -> Self {
        let problems: Vec<Problem> = report.problems.into_iter().map(Problem::new).collect();
        Self {
            repaired: 0,
            left: problems.len() as u64,
            problems,
            repair: None,
            leaves: report.leaves,
            nodes: report.nodes,
            height: report.height,
            entries: report.entries,
            leaf_entries: report.leaf_entries,
            log_updates: report.log_updates,
            leaf_fill: report.leaf_fill,
            sparse_leaves: report.sparse_leaves,
            wall_s: 0.0,
        }
    }

    /// The same after a repair of what had been `found`: keys whose entries are not all there are left as problems.
    fn after(mut self, report: btree::RepairReport, found: Vec<Problem>) -> Self {
        let repair = Repaired::new(report);
        let mut mended: Vec<Problem> =
            found.into_iter().filter(|problem| !self.problems.contains(problem)).collect();
        let ranges = || repair.stale.iter().chain(&repair.lost);
        for problem in &mut mended {
            problem.repaired = !ranges().any(|range| problem.keys.lie_in(range));
        }
        let is_untold = |range: &&Keys| !mended.iter().any(|problem| problem.keys.lie_in(range));
        let untold = ranges().filter(is_untold).count() + repair.log_lost.len();
        mended.append(&mut self.problems);
        self.problems = mended;
        self.repaired = self.problems.iter().filter(|problem| problem.repaired).count() as u64;
        self.left = self.problems.len() as u64 - self.repaired + untold as u64;
        self.repair = Some(repair);
        self
    }

    fn text(&self) -> String {
        let mut lines = Vec::new();
        for Problem { file, offset_bytes, rule, keys, repaired } in &self.problems {
            let keys = keys.text().map_or(String::new(), |keys| format!("; {keys}"));
            let fate = if *repaired { "; repaired" } else { "" };
            lines.push(format!("{file}: offset {offset_bytes}: {rule}{keys}{fate}"));
        }
        lines.extend(self.repair.iter().flat_map(Repaired::lines));
        let outcome = match (self.repaired, self.left) {
            (0, 0) => "no problem".to_owned(),
            (0, left) => count_of(left, "problem", "problems"),
            (repaired, left) => format!("repaired {repaired}, left {left}"),
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
