//! The files and directories of a simulated disk, each in its seen and in its durable state.
//!
//! Every node keeps both states, and the list of operations from the durable to the seen one, each
//! with its number in the order of issue. A sync applies the list. A loss of power applies some of
//! the list and drops the seen state.
//!
//! A rename within a directory is one operation. A rename across directories is an operation in
//! each, with the same number: a crash takes both or neither, while a sync makes only its own side
//! durable.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::image::{Image, PAGE_BYTES, SECTOR_BYTES, split};
use super::random::Random;
use crate::disk::disk::{Entry, EntryKind};
use crate::memory_disk::names_of;

/// The number of a node.
pub(super) type NodeNo = usize;

/// The root directory.
const ROOT: NodeNo = 0;

/// Greatest length of a file, in bytes. Keeps the page lists small.
const FILE_BYTES_MAX: u64 = 1 << 36;

type Outcome<T> = Result<T, Errno>;
type Names = BTreeMap<Arc<str>, NodeNo>;

/// Survival of operations that no sync has made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// No operation.
    Nothing,
    /// All operations.
    Everything,
    /// The first operations in the order of issue, this many, in full.
    Prefix(u64),
    /// Each operation in full or not at all, drawn from the seed.
    Random(u64),
    /// Each 512-byte sector, each length and each name by itself, drawn from the seed; a file may
    /// have grown by a part only.
    Torn(u64),
}

#[derive(Debug, Clone)]
enum Node {
    File(FileNode),
    Dir(DirNode),
    /// A link or special file that a test has put there.
    Special(EntryKind),
}

#[derive(Debug, Clone, Default)]
struct FileNode {
    seen: Image,
    durable: Image,
    pending: Vec<(u64, FileChange)>,
    /// Whether a sync has failed: `durable` may then lack what is neither pending nor seen to lack.
    is_unsure: bool,
    /// Bytes reserved from the start of the file.
    reserved_bytes: u64,
    /// Names of the file in the seen state.
    links: usize,
}

#[derive(Debug, Clone, Default)]
struct DirNode {
    seen: Names,
    durable: Names,
    pending: Vec<(u64, DirChange)>,
    /// Whether a sync has failed: `durable` may then lack what is neither pending nor seen to lack.
    is_unsure: bool,
}

#[derive(Debug, Clone)]
enum FileChange {
    Write { offset: u64, bytes: Arc<[u8]> },
    SetLen(u64),
}

#[derive(Debug, Clone)]
enum DirChange {
    Set(Arc<str>, NodeNo),
    Remove(Arc<str>),
    Move { from: Arc<str>, to: Arc<str>, node: NodeNo },
}

/// Effect of a crash on one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost,
    Kept,
    /// Each sector survives in this many of 8 cases; the length is drawn by itself.
    Torn {
        kept_of_8: u64,
    },
}

/// A file system in memory. A clone costs one count per file; nodes are copied when changed.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    nodes: BTreeMap<NodeNo, Arc<Node>>,
    next_node: NodeNo,
    /// Number of the next operation.
    next_change: u64,
}

fn apply_names(names: &mut Names, change: &DirChange) {
    match change {
        DirChange::Set(name, node) => {
            names.insert(Arc::clone(name), *node);
        }
        DirChange::Remove(name) => {
            names.remove(name);
        }
        DirChange::Move { from, to, node } => {
            names.remove(from);
            names.insert(Arc::clone(to), *node);
        }
    }
}

/// The error of a call that takes a link or special file for something else.
fn refusal(kind: EntryKind) -> Errno {
    if kind == EntryKind::Link { Errno::LOOP } else { Errno::NXIO }
}

impl FileChange {
    fn apply(&self, image: &mut Image, fate: Fate, random: &mut Random) {
        match (self, fate) {
            (_, Fate::Lost) => {}
            (Self::Write { offset, bytes }, Fate::Kept) => image.write(bytes, *offset),
            (Self::Write { offset, bytes }, Fate::Torn { kept_of_8 }) => {
                for sector in split(*offset, bytes.len(), SECTOR_BYTES) {
                    if random.chance(kept_of_8, 8) {
                        image.put(&bytes[sector.clone()], offset + sector.start as u64);
                    }
                }
                // The length of a file survives apart from its bytes.
                image.grow(part(image.len(), offset + bytes.len() as u64, random));
            }
            (Self::SetLen(len), Fate::Torn { .. }) if *len > image.len() => {
                image.grow(part(image.len(), *len, random));
            }
            (Self::SetLen(_), Fate::Torn { kept_of_8 }) if !random.chance(kept_of_8, 8) => {}
            (Self::SetLen(len), _) => image.set_len(*len),
        }
    }
}

/// The length of a file that was to grow: in half of the cases the full one, otherwise the old one
/// or up to a sector.
fn part(from: u64, to: u64, random: &mut Random) -> u64 {
    if to <= from {
        return from;
    }
    // One time in four the length stays as it was; one time in four it grows in part.
    match random.below(4) {
        0 => from,
        1 => {
            let sector = SECTOR_BYTES as u64;
            let cut = (from + random.below(to - from)) / sector * sector;
            cut.max(from)
        }
        _ => to,
    }
}

impl FileNode {
    fn usage_bytes(&self) -> u64 {
        self.seen.stored_bytes().max(self.reserved_bytes)
    }
}

impl Tree {
    pub(super) fn new() -> Self {
        let root = Arc::new(Node::Dir(DirNode::default()));
        Self { nodes: BTreeMap::from([(ROOT, root)]), next_node: ROOT + 1, next_change: 0 }
    }

    fn file(&self, node: NodeNo) -> Outcome<&FileNode> {
        match self.nodes.get(&node).map(AsRef::as_ref) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir(_)) => Err(Errno::ISDIR),
            Some(Node::Special(kind)) => Err(refusal(*kind)),
            None => Err(Errno::NOENT),
        }
    }

    fn file_mut(&mut self, node: NodeNo) -> Outcome<&mut FileNode> {
        match self.nodes.get_mut(&node).map(Arc::make_mut) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Dir(_)) => Err(Errno::ISDIR),
            Some(Node::Special(kind)) => Err(refusal(*kind)),
            None => Err(Errno::NOENT),
        }
    }

    fn dir(&self, node: NodeNo) -> Outcome<&DirNode> {
        match self.nodes.get(&node).map(AsRef::as_ref) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(Errno::NOTDIR),
            Some(Node::Special(kind)) => Err(refusal(*kind)),
            None => Err(Errno::NOENT),
        }
    }

    fn dir_mut(&mut self, node: NodeNo) -> Outcome<&mut DirNode> {
        match self.nodes.get_mut(&node).map(Arc::make_mut) {
            Some(Node::Dir(dir)) => Ok(dir),
            Some(Node::File(_)) => Err(Errno::NOTDIR),
            Some(Node::Special(kind)) => Err(refusal(*kind)),
            None => Err(Errno::NOENT),
        }
    }

    fn is_dir(&self, node: NodeNo) -> bool {
        self.dir(node).is_ok()
    }

    fn add(&mut self, node: Node) -> NodeNo {
        let number = self.next_node;
        self.next_node += 1;
        self.nodes.insert(number, Arc::new(node));
        number
    }

    fn number(&mut self) -> u64 {
        self.next_change += 1;
        self.next_change - 1
    }

    /// The node at a path.
    pub(super) fn find(&self, path: &Path) -> Outcome<NodeNo> {
        names_of(path)?
            .into_iter()
            .try_fold(ROOT, |dir, name| self.dir(dir)?.seen.get(name).copied().ok_or(Errno::NOENT))
    }

    /// The directory that holds a path's last name, and that name.
    fn find_parent<'path>(&self, path: &'path Path) -> Outcome<(NodeNo, &'path str)> {
        let mut names = names_of(path)?;
        let name = names.pop().ok_or(Errno::BUSY)?;
        let dir = names.into_iter().try_fold(ROOT, |dir, name| {
            self.dir(dir)?.seen.get(name).copied().ok_or(Errno::NOENT)
        })?;
        self.dir(dir)?;
        Ok((dir, name))
    }

    fn change_names(&mut self, dir: NodeNo, number: u64, change: DirChange) -> Outcome<()> {
        let dir = self.dir_mut(dir)?;
        apply_names(&mut dir.seen, &change);
        dir.pending.push((number, change));
        Ok(())
    }

    fn add_link(&mut self, node: NodeNo) {
        if let Ok(file) = self.file_mut(node) {
            file.links += 1;
        }
    }

    fn drop_link(&mut self, node: NodeNo) {
        if let Ok(file) = self.file_mut(node) {
            file.links -= 1;
        }
    }

    /// Creates an empty file under a free name.
    pub(super) fn create_file(&mut self, path: &Path) -> Outcome<NodeNo> {
        let (dir, name) = self.find_parent(path)?;
        if self.dir(dir)?.seen.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let node = self.add(Node::File(FileNode { links: 1, ..FileNode::default() }));
        let number = self.number();
        self.change_names(dir, number, DirChange::Set(name.into(), node))?;
        Ok(node)
    }

    pub(super) fn create_dir(&mut self, path: &Path) -> Outcome<()> {
        // The root exists, and has no parent.
        if self.find(path) == Ok(ROOT) {
            return Err(Errno::EXIST);
        }
        let (dir, name) = self.find_parent(path)?;
        if self.dir(dir)?.seen.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let node = self.add(Node::Dir(DirNode::default()));
        let number = self.number();
        self.change_names(dir, number, DirChange::Set(name.into(), node))
    }

    pub(super) fn remove_dir(&mut self, path: &Path) -> Outcome<()> {
        let (dir, name) = self.find_parent(path)?;
        let node = *self.dir(dir)?.seen.get(name).ok_or(Errno::NOENT)?;
        if !self.dir(node)?.seen.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        let number = self.number();
        self.change_names(dir, number, DirChange::Remove(name.into()))
    }

    pub(super) fn remove(&mut self, path: &Path) -> Outcome<()> {
        let (dir, name) = self.find_parent(path)?;
        let node = *self.dir(dir)?.seen.get(name).ok_or(Errno::NOENT)?;
        if self.is_dir(node) {
            return Err(Errno::ISDIR);
        }
        let number = self.number();
        self.change_names(dir, number, DirChange::Remove(name.into()))?;
        self.drop_link(node);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Outcome<()> {
        let (from_dir, from_name) = self.find_parent(from)?;
        let (to_dir, to_name) = self.find_parent(to)?;
        let node = *self.dir(from_dir)?.seen.get(from_name).ok_or(Errno::NOENT)?;

        let from_names = names_of(from)?;
        let to_names = names_of(to)?;
        // A directory cannot move into itself.
        if to_names.len() > from_names.len() && to_names.starts_with(&from_names) {
            return Err(Errno::INVAL);
        }

        // The target holds the source, so it is not empty.
        if from_names.len() > to_names.len() && from_names.starts_with(&to_names) {
            return Err(Errno::NOTEMPTY);
        }

        let replaced = self.dir(to_dir)?.seen.get(to_name).copied();
        // A rename between two names of one file does nothing.
        if replaced == Some(node) {
            return Ok(());
        }

        if let Some(replaced) = replaced {
            if !self.is_dir(node) {
                if self.is_dir(replaced) {
                    return Err(Errno::ISDIR);
                }
                self.drop_link(replaced);
            } else if !self.dir(replaced)?.seen.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
        }

        let number = self.number();
        // Within one directory a rename is one change, which survives as a whole or not at all.
        if from_dir == to_dir {
            let from = from_name.into();
            let to = to_name.into();
            return self.change_names(from_dir, number, DirChange::Move { from, to, node });
        }

        // Across directories one of the two names can survive without the other.
        self.change_names(from_dir, number, DirChange::Remove(from_name.into()))?;
        self.change_names(to_dir, number, DirChange::Set(to_name.into(), node))
    }

    /// Number of names of a file.
    pub(super) fn names_of(&self, node: NodeNo) -> Outcome<usize> {
        Ok(self.file(node)?.links)
    }

    pub(super) fn hard_link(&mut self, from: &Path, to: &Path) -> Outcome<()> {
        let node = self.find(from)?;
        let (dir, name) = self.find_parent(to)?;
        if self.dir(dir)?.seen.contains_key(name) {
            return Err(Errno::EXIST);
        }
        // A directory cannot have a second name.
        if self.is_dir(node) {
            return Err(Errno::PERM);
        }
        let number = self.number();
        self.change_names(dir, number, DirChange::Set(name.into(), node))?;
        self.add_link(node);
        Ok(())
    }

    pub(super) fn list(&self, path: &Path) -> Outcome<Vec<Entry>> {
        let dir = self.dir(self.find(path)?)?;
        let entries = dir.seen.iter();
        Ok(entries
            .map(|(name, &node)| Entry { name: name.to_string(), kind: self.kind(node) })
            .collect())
    }

    pub(super) fn kind(&self, node: NodeNo) -> EntryKind {
        match self.nodes.get(&node).map(AsRef::as_ref) {
            Some(Node::Dir(_)) => EntryKind::Directory,
            Some(Node::Special(kind)) => *kind,
            Some(Node::File(_)) | None => EntryKind::File,
        }
    }

    pub(super) fn image(&self, node: NodeNo) -> Outcome<&Image> {
        Ok(&self.file(node)?.seen)
    }

    /// Bytes that a write would add to what the file occupies.
    pub(super) fn new_bytes(&self, node: NodeNo, offset: u64, len: usize) -> Outcome<u64> {
        let file = self.file(node)?;
        let stored =
            file.seen.stored_bytes() + file.seen.new_pages(offset, len) * PAGE_BYTES as u64;
        Ok(stored.saturating_sub(file.usage_bytes()))
    }

    pub(super) fn write(&mut self, node: NodeNo, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Errno::FBIG)?;
        if end > FILE_BYTES_MAX {
            return Err(Errno::FBIG);
        }
        // An empty write is no change that a crash could lose.
        if bytes.is_empty() {
            return Ok(());
        }
        let number = self.number();
        let file = self.file_mut(node)?;
        file.seen.write(bytes, offset);
        file.pending.push((number, FileChange::Write { offset, bytes: bytes.into() }));
        Ok(())
    }

    pub(super) fn set_len(&mut self, node: NodeNo, len: u64) -> Outcome<()> {
        if len > FILE_BYTES_MAX {
            return Err(Errno::FBIG);
        }
        let number = self.number();
        let file = self.file_mut(node)?;
        file.seen.set_len(len);
        // A reservation behind the end goes with the end.
        file.reserved_bytes = file.reserved_bytes.min(len);
        file.pending.push((number, FileChange::SetLen(len)));
        Ok(())
    }

    /// Bytes that a reservation would add to what the file occupies.
    pub(super) fn new_reserved_bytes(&self, node: NodeNo, len: u64) -> Outcome<u64> {
        // Room is given in whole pages.
        let len = len.next_multiple_of(PAGE_BYTES as u64);
        Ok(len.saturating_sub(self.file(node)?.usage_bytes()))
    }

    pub(super) fn reserve(&mut self, node: NodeNo, len: u64) -> Outcome<()> {
        let file = self.file_mut(node)?;
        file.reserved_bytes = file.reserved_bytes.max(len.next_multiple_of(PAGE_BYTES as u64));
        Ok(())
    }

    pub(super) fn sync(&mut self, node: NodeNo) -> Outcome<()> {
        // A whole sync tears nothing, so nothing is drawn.
        let mut random = Random::new(0);
        self.settle_file(node, &mut random, |_| Fate::Kept)
    }

    /// A sync that fails: each pending operation is durable or lost for good.
    pub(super) fn sync_in_part(&mut self, node: NodeNo, random: &mut Random) -> Outcome<()> {
        // After a failed sync nobody knows what is durable.
        self.file_mut(node)?.is_unsure = true;
        self.settle_file(node, random, |_| Fate::Torn { kept_of_8: 4 })
    }

    fn settle_file(
        &mut self,
        node: NodeNo,
        random: &mut Random,
        fate: impl Fn(u64) -> Fate,
    ) -> Outcome<()> {
        // A file without pending changes stays shared with other disks.
        if self.file(node)?.pending.is_empty() {
            return Ok(());
        }

        let FileNode { durable, pending, .. } = self.file_mut(node)?;
        for (number, change) in pending.drain(..) {
            change.apply(durable, fate(number), random);
        }

        // A torn write may have left sectors behind the end, which do not exist.
        durable.cut();
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, path: &Path) -> Outcome<()> {
        self.settle_dir(path, || true)
    }

    /// A sync that fails: each pending name is durable or lost for good.
    pub(super) fn sync_dir_in_part(&mut self, path: &Path, random: &mut Random) -> Outcome<()> {
        let node = self.find(path)?;
        self.dir_mut(node)?.is_unsure = true;
        self.settle_dir(path, || random.chance(1, 2))
    }

    fn settle_dir(&mut self, path: &Path, mut is_kept: impl FnMut() -> bool) -> Outcome<()> {
        let node = self.find(path)?;
        if self.dir(node)?.pending.is_empty() {
            return Ok(());
        }
        let DirNode { durable, pending, .. } = self.dir_mut(node)?;
        for (_, change) in pending.drain(..) {
            if is_kept() {
                apply_names(durable, &change);
            }
        }
        Ok(())
    }

    /// Number of operations that no sync has made durable.
    pub(super) fn pending_count(&self) -> u64 {
        self.pending_numbers().len() as u64
    }

    fn pending_numbers(&self) -> BTreeSet<u64> {
        let mut numbers = BTreeSet::new();
        for node in self.nodes.values() {
            match &**node {
                Node::File(file) => numbers.extend(file.pending.iter().map(|(number, _)| number)),
                Node::Dir(dir) => numbers.extend(dir.pending.iter().map(|(number, _)| number)),
                Node::Special(_) => {}
            }
        }
        numbers
    }

    /// The files and directories after a loss of power.
    pub(super) fn after_crash(&self, survival: Survival) -> Self {
        let numbers = self.pending_numbers();
        let (seed, is_torn) = match survival {
            Survival::Random(seed) => (seed, false),
            Survival::Torn(seed) => (seed, true),
            _ => (0, false),
        };

        let mut random = Random::new(seed);

        // Some seeds lose nearly everything, some nearly nothing.
        let kept_of_8 = 1 + random.below(7);
        let kept: BTreeSet<u64> = match survival {
            Survival::Nothing => BTreeSet::new(),
            Survival::Everything => numbers,
            Survival::Prefix(count) => {
                numbers.into_iter().take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
            }
            Survival::Random(_) | Survival::Torn(_) => {
                numbers.into_iter().filter(|_| random.chance(kept_of_8, 8)).collect()
            }
        };

        let fate = |number| match kept.contains(&number) {
            _ if is_torn => Fate::Torn { kept_of_8 },
            true => Fate::Kept,
            false => Fate::Lost,
        };

        let mut after = self.clone();
        for (&number, node) in &self.nodes {
            // A node whose states agree stays shared with the disk before the crash.
            match &**node {
                Node::File(FileNode { pending, is_unsure, reserved_bytes, .. }) => {
                    if !pending.is_empty() || *is_unsure || *reserved_bytes > 0 {
                        after.restart_file(number, &mut random, &fate);
                    }
                }
                Node::Dir(DirNode { pending, is_unsure, .. }) => {
                    if !pending.is_empty() || *is_unsure {
                        after.restart_dir(number, &kept);
                    }
                }
                Node::Special(_) => {}
            }
        }

        // Names that did not survive no longer count as links.
        after.count_links();
        after.sweep(&|_| false);
        after
    }

    fn restart_file(&mut self, node: NodeNo, random: &mut Random, fate: &dyn Fn(u64) -> Fate) {
        let settled = self.settle_file(node, random, fate);
        assert_eq!(settled, Ok(()), "the node is a file");
        if let Ok(file) = self.file_mut(node) {
            // After a restart only durable bytes are seen.
            file.seen.clone_from(&file.durable);
            file.is_unsure = false;
            // A reservation does not survive a crash.
            file.reserved_bytes = 0;
        }
    }

    fn restart_dir(&mut self, node: NodeNo, kept: &BTreeSet<u64>) {
        if let Ok(dir) = self.dir_mut(node) {
            for (number, change) in dir.pending.drain(..) {
                if kept.contains(&number) {
                    apply_names(&mut dir.durable, &change);
                }
            }
            dir.seen.clone_from(&dir.durable);
            dir.is_unsure = false;
        }
    }

    /// Recounts the names of each file.
    fn count_links(&mut self) {
        let mut links: BTreeMap<NodeNo, usize> = BTreeMap::new();
        for node in self.nodes.values() {
            if let Node::Dir(dir) = &**node {
                for &node in dir.seen.values() {
                    *links.entry(node).or_default() += 1;
                }
            }
        }

        let numbers: Vec<NodeNo> = self.nodes.keys().copied().collect();
        for number in numbers {
            let count = links.get(&number).copied().unwrap_or(0);
            // Only a file whose count differs is copied for the change.
            if self.file(number).is_ok_and(|file| file.links != count)
                && let Ok(file) = self.file_mut(number)
            {
                file.links = count;
            }
        }
    }

    /// Drops the nodes that are neither seen, nor durable, nor about to be either, nor open.
    pub(super) fn sweep(&mut self, is_open: &dyn Fn(NodeNo) -> bool) {
        let mut reached = BTreeSet::from([ROOT]);
        let mut todo = vec![ROOT];
        // Open files stay, whatever names they have lost.
        todo.extend(self.nodes.keys().filter(|&&node| is_open(node)));
        reached.extend(&todo);

        while let Some(node) = todo.pop() {
            let Ok(dir) = self.dir(node) else { continue };
            // A node that a pending change names may come back after a crash.
            let pending = dir.pending.iter().filter_map(|(_, change)| match change {
                DirChange::Set(_, node) | DirChange::Move { node, .. } => Some(*node),
                DirChange::Remove(_) => None,
            });
            for node in dir.seen.values().chain(dir.durable.values()).copied().chain(pending) {
                if reached.insert(node) {
                    todo.push(node);
                }
            }
        }

        self.nodes.retain(|node, _| reached.contains(node));
    }

    /// Bytes that files occupy, including open files without a name.
    pub(super) fn usage_bytes(&self, is_open: &dyn Fn(NodeNo) -> bool) -> u64 {
        let usage = |(number, node): (&NodeNo, &Arc<Node>)| match &**node {
            Node::File(file) if file.links > 0 || is_open(*number) => file.usage_bytes(),
            _ => 0,
        };
        self.nodes.iter().map(usage).sum()
    }

    /// The paths of all files, sorted.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();

        // After a crash a directory may have two names; it is entered once.
        let mut entered = BTreeSet::from([ROOT]);
        let mut todo = vec![(ROOT, PathBuf::from("/"))];
        while let Some((dir, path)) = todo.pop() {
            let Ok(dir) = self.dir(dir) else { continue };
            for (name, &node) in &dir.seen {
                let path = path.join(&**name);
                if !self.is_dir(node) {
                    files.push(path);
                } else if entered.insert(node) {
                    todo.push((node, path));
                }
            }
        }

        files.sort_unstable();
        files
    }

    /// Creates the directories on the way to a name, durably.
    fn plant_dirs(&mut self, path: &Path) -> Outcome<()> {
        let ancestors: Vec<&Path> = path.ancestors().skip(1).collect();
        for dir in ancestors.into_iter().rev() {
            if self.find(dir).is_err() {
                self.create_dir(dir)?;
            }
            // A planted file is durable, as if it had always been there.
            let parent = dir.parent().unwrap_or(dir);
            self.sync_dir(parent)?;
        }
        Ok(())
    }

    /// Puts a link or special file into the place of a name, durably.
    pub(super) fn plant_special(&mut self, path: &Path, kind: EntryKind) -> Outcome<()> {
        self.plant_dirs(path)?;
        let (dir, name) = self.find_parent(path)?;
        let node = self.add(Node::Special(kind));
        let number = self.number();
        self.change_names(dir, number, DirChange::Set(name.into(), node))?;
        self.count_links();
        path.parent().map_or(Ok(()), |dir| self.sync_dir(dir))
    }

    /// Gives a file durable content at once, and creates the directories on the way.
    pub(super) fn plant(&mut self, path: &Path, bytes: &[u8]) -> Outcome<()> {
        self.plant_dirs(path)?;
        let node = match self.find(path) {
            Ok(node) => node,
            Err(_) => self.create_file(path)?,
        };
        self.set_len(node, 0)?;
        self.write(node, 0, bytes)?;
        self.sync(node)?;
        path.parent().map_or(Ok(()), |dir| self.sync_dir(dir))
    }

    /// Flips a bit of a file in both states.
    pub(super) fn flip_bit(&mut self, node: NodeNo, bit: u64) -> Outcome<()> {
        let file = self.file_mut(node)?;
        // Damage of the medium shows before a crash and after it.
        file.seen.flip_bit(bit);
        file.durable.flip_bit(bit);
        Ok(())
    }
}
