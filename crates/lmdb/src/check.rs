//! A check of the file of an environment without mapping it: system calls read the pages, and every
//! number in a page is checked before it is followed.
//!
//! LMDB has no checksums and follows offsets and page numbers of its file unchecked, so one flipped
//! bit can end the process. A file without a finding can be mapped and read to its end. LMDB stores
//! nothing to tell a changed byte of a key that stays in order, of a value, or of free space, so no
//! check can find one.
//!
//! | bytes of a page | field |
//! |---|---|
//! | 8 | its number |
//! | 2 | 0 |
//! | 2 | flags: 1 branch, 2 leaf, 4 overflow, 8 head |
//! | 2, 2 | where the list of nodes ends, and where the nodes begin; of an overflow: pages (4) |
//! | 2 each | offsets of nodes, in the order of their keys |
//!
//! | bytes of a node | field |
//! |---|---|
//! | 4 | bytes of its value; of a branch the low bytes of a page number, whose high bytes are the flags |
//! | 2 | flags: 1 the value is in an overflow, 2 it is the record of a table |
//! | 2, .. | length of the key, and the key |
//! | .. | the value, or the page of its overflow (8) |
//!
//! A head is a page with a [`Head`]; the head of the newest transaction has the roots of two trees:
//! the free list, and the main table, in which a record of 48 bytes stands for each named table.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Number of findings after which a check ends.
const FINDINGS_MAX: usize = 1_000;
/// Most attempts to read a file that others write.
const ROUNDS_MAX: usize = 8;

const HEAD_MAGIC: u64 = 0xBEEF_C0DE;
const HEAD_VERSION: u64 = 1;
/// Bytes of a head: page header, then `MDB_meta` of a 64-bit little-endian machine.
const HEAD_BYTES: usize = 152;
const PAGE_BYTES_MIN: u64 = 256;
const PAGE_BYTES_MAX: u64 = 32_768;
/// Number of heads of a file.
const HEADS: u64 = 2;

const PAGE_HEADER_BYTES: usize = 16;
const BRANCH: u64 = 1;
const LEAF: u64 = 2;
const OVERFLOW: u64 = 4;
const HEAD: u64 = 8;

const NODE_HEADER_BYTES: usize = 8;
const IN_OVERFLOW: u64 = 1;
const OF_TABLE: u64 = 2;
/// Bytes of `MDB_db`.
const TREE_BYTES: usize = 48;
/// Flag of the free list, whose keys are integers.
const INTEGER_KEYS: u64 = 8;
/// Flag of the environment that made the file; it stands beside those of the free list.
const NO_DIRECTORY: u64 = 0x4000;
/// The number that means no page.
const NO_PAGE: u64 = u64::MAX;
/// Most levels of a tree, as in LMDB.
const LEVELS_MAX: u64 = 32;

/// Damage of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The page, if the damage lies in one.
    pub page: Option<u64>,
    /// The broken rule.
    pub rule: String,
}

/// Decodes a little-endian number of at most 8 bytes, which must be there.
fn number(bytes: &[u8], at: Range<usize>) -> u64 {
    bytes[at].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// A tree of pages: `MDB_db`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tree {
    flags: u64,
    levels: u64,
    branches: u64,
    leaves: u64,
    overflows: u64,
    entries: u64,
    root: u64,
}

impl Tree {
    fn read(bytes: &[u8]) -> Self {
        Self {
            flags: number(bytes, 4..6),
            levels: number(bytes, 6..8),
            branches: number(bytes, 8..16),
            leaves: number(bytes, 16..24),
            overflows: number(bytes, 24..32),
            entries: number(bytes, 32..40),
            root: number(bytes, 40..48),
        }
    }
}

/// One of the two heads of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    page_bytes: u64,
    map_bytes: u64,
    free: Tree,
    main: Tree,
    page_last: u64,
    transaction: u64,
}

impl Head {
    /// Reads a head; `Err` with the rule that the head breaks.
    fn read(file: &File, offset: u64) -> io::Result<Result<Self, &'static str>> {
        let mut bytes = [0; HEAD_BYTES];
        match file.read_exact_at(&mut bytes, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Ok(Err("the file ends before its heads"));
            }
            read => read?,
        }

        if number(&bytes, 10..12) & HEAD == 0 || number(&bytes, 16..20) != HEAD_MAGIC {
            return Ok(Err("it is no head of an LMDB file"));
        }

        if number(&bytes, 20..24) != HEAD_VERSION {
            return Ok(Err("the head has an unknown version"));
        }

        let head = Self {
            map_bytes: number(&bytes, 32..40),
            page_bytes: number(&bytes, 40..44),
            free: Tree::read(&bytes[40..88]),
            main: Tree::read(&bytes[88..136]),
            page_last: number(&bytes, 136..144),
            transaction: number(&bytes, 144..152),
        };

        // All offsets follow from the size of pages, so the size is checked first.
        let is_size = (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&head.page_bytes)
            && head.page_bytes.is_power_of_two();
        Ok(if is_size { Ok(head) } else { Err("the head has an impossible size of pages") })
    }

    /// The rule that the numbers of a head break, if they break one. The file has `pages` pages.
    fn broken_rule(&self, slot: u64, pages: u64) -> Option<&'static str> {
        let is_root = |tree: &Tree| tree.root == NO_PAGE || (HEADS..pages).contains(&tree.root);

        let end =
            self.page_last.checked_add(1).and_then(|count| count.checked_mul(self.page_bytes));
        if !is_root(&self.free) || !is_root(&self.main) {
            return Some("a root lies beyond the end of the file");
        }

        if end.is_none_or(|end| end > self.map_bytes) {
            return Some("the last page lies beyond the map");
        }

        // LMDB writes the head of each transaction over that of the last but one.
        if self.transaction != 0 && self.transaction % HEADS != slot {
            return Some("the number of the transaction is one of the other head");
        }

        None
    }
}

/// Reads both heads of a file, if they break no rule, and its number of pages.
fn heads(file: &File) -> io::Result<Result<([Head; 2], u64), Finding>> {
    let finding = |page, rule: &str| Ok(Err(Finding { page: Some(page), rule: rule.to_owned() }));
    let first = match Head::read(file, 0)? {
        Ok(head) => head,
        Err(rule) => return finding(0, rule),
    };

    let second = match Head::read(file, first.page_bytes)? {
        Ok(head) => head,
        Err(rule) => return finding(1, rule),
    };

    // Pages are found by one size, so both heads must have it.
    if first.page_bytes != second.page_bytes {
        return finding(1, "the heads differ in the size of pages");
    }

    let pages = file.metadata()?.len() / first.page_bytes;
    for (slot, head) in [first, second].iter().enumerate() {
        if let Some(rule) = head.broken_rule(slot as u64, pages) {
            return finding(slot as u64, rule);
        }
    }

    Ok(Ok(([first, second], pages)))
}

/// The head of the newest transaction.
fn newest(heads: &[Head; 2]) -> &Head {
    let [first, second] = heads;
    if second.transaction > first.transaction { second } else { first }
}

/// Checks the heads of a file, and that the file has the pages that they name. A missing file, or
/// an empty one, breaks no rule: LMDB makes an environment of it.
///
/// Cost: two reads; for a file that ends before its last page, those of [`check_file`].
///
/// # Errors
/// Those of the system.
pub(crate) fn check_heads(data: &Path) -> io::Result<Option<Finding>> {
    let file = match File::open(data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };

    if file.metadata()?.len() == 0 {
        return Ok(None);
    }

    let (heads, pages) = match heads(&file)? {
        Ok(found) => found,
        Err(finding) => return Ok(Some(finding)),
    };

    // If the file has all pages that the newest head counts, it was not cut.
    if newest(&heads).page_last < pages {
        return Ok(None);
    }

    // LMDB does not write the freed pages at the end of a transaction. So a short file may be
    // whole, or cut.
    Ok(check_file(data)?.into_iter().next())
}

/// The flags of the main table of a file, as the newest transaction has them; 0 for an empty file.
///
/// Cost: two reads.
///
/// # Errors
/// Those of the system; of [`heads`] as an error of invalid data.
pub(crate) fn main_flags(data: &Path) -> io::Result<u64> {
    let file = File::open(data)?;
    if file.metadata()?.len() == 0 {
        return Ok(0);
    }

    match heads(&file)? {
        Ok((heads, _)) => Ok(newest(&heads).main.flags),
        Err(finding) => Err(io::Error::new(io::ErrorKind::InvalidData, finding.rule)),
    }
}

/// Checks every page that the newest transaction reaches, and the free list. `data` is the file
/// itself; other processes may write it meanwhile. Returns at most 1,000 findings.
///
/// Cost: reads each page in use once, by a system call of its own. Memory: a bit for each page of
/// the file.
///
/// # Errors
/// Those of opening the file; a page that cannot be read is a finding.
pub fn check_file(data: &Path) -> io::Result<Vec<Finding>> {
    let file = File::open(data)?;
    // An empty file is one that LMDB has not begun to write.
    if file.metadata()?.len() == 0 {
        return Ok(Vec::new());
    }

    let mut round = 0;
    loop {
        round += 1;
        let (heads_before, pages) = match heads(&file)? {
            Ok(found) => found,
            // A head that is being written is whole the next time.
            Err(_) if round < ROUNDS_MAX => continue,
            Err(finding) => return Ok(vec![finding]),
        };

        let head = *newest(&heads_before);
        let mut walk = Walk::new(&file, &head, pages);
        walk.run();

        // The pages of a transaction are rewritten by the third one after it at the earliest.
        let is_overtaken = match heads(&file)? {
            Ok((heads_after, _)) => newest(&heads_after).transaction > head.transaction + 1,
            Err(_) => true,
        };

        // Findings of a walk that a writer has overtaken may be the writer's doing.
        if walk.findings.is_empty() || !is_overtaken || round == ROUNDS_MAX {
            return Ok(walk.findings);
        }
    }
}

/// A page that the walk has yet to read, with the bounds of its keys.
#[derive(Debug)]
struct WalkStep {
    page: u64,
    level: u64,
    /// The keys below it are not less than `from`, and less than `to`.
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
}

/// Numbers of pages and entries of a tree, as the walk finds them.
#[derive(Debug, Default)]
struct TreeCounts {
    branches: u64,
    leaves: u64,
    overflows: u64,
    entries: u64,
}

/// Kind of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TreeKind {
    FreeList,
    Main,
    Table,
}

/// A walk over all trees of a file.
struct Walk<'a> {
    file: &'a File,
    head: &'a Head,
    pages: u64,
    /// A bit for each page of the file: whether a tree or the free list has the page.
    taken: Vec<u64>,
    /// Tables that the main table names.
    tables: Vec<(Vec<u8>, Tree)>,
    findings: Vec<Finding>,
}

/// The place of a value.
enum Value {
    Here(Range<usize>),
    /// The first page of the value, and its length.
    Overflow(u64, u64),
}

impl<'a> Walk<'a> {
    fn new(file: &'a File, head: &'a Head, pages: u64) -> Self {
        let taken = vec![0; (pages / 64 + 1) as usize];
        Self { file, head, pages, taken, tables: Vec::new(), findings: Vec::new() }
    }

    fn is_full(&self) -> bool {
        self.findings.len() >= FINDINGS_MAX
    }

    /// Adds a finding, unless there are too many.
    fn note(&mut self, page: impl Into<Option<u64>>, rule: impl Into<String>) {
        if !self.is_full() {
            self.findings.push(Finding { page: page.into(), rule: rule.into() });
        }
    }

    /// Checks all trees.
    fn run(&mut self) {
        let head = *self.head;
        if head.free.flags & !NO_DIRECTORY != INTEGER_KEYS {
            self.note(None, "the free list has unknown flags");
        }

        if head.main.flags != 0 {
            self.note(None, "the main table has unknown flags");
        }

        self.tree("the main table", &head.main, TreeKind::Main);
        for (name, tree) in std::mem::take(&mut self.tables) {
            let name = format!("table {:?}", String::from_utf8_lossy(&name));
            if tree.flags == 0 {
                self.tree(&name, &tree, TreeKind::Table);
            } else {
                self.note(
                    None,
                    format!("{name} has flags {:#x}, which are not checked", tree.flags),
                );
            }
        }

        // The free list comes last: a free page must be in no tree.
        self.tree("the free list", &head.free, TreeKind::FreeList);
    }

    /// Takes pages for a tree or for the free list. Returns whether they were free to be taken.
    fn take(&mut self, first: u64, count: u64, by: u64) -> bool {
        // Both numbers come from the file, so their sum may overflow.
        let end = first.checked_add(count).filter(|end| HEADS <= first && *end <= self.pages);
        let Some(end) = end else {
            self.note(by, format!("it names page {first}, which is not in the file"));
            return false;
        };

        for page in first..end {
            let word = (page / 64) as usize;
            let bit = 1 << (page % 64);
            if self.taken[word] & bit != 0 {
                self.note(by, format!("it names page {page}, which is in use elsewhere or free"));
                return false;
            }
            self.taken[word] |= bit;
        }

        true
    }

    /// Reads a page, or the beginning of one.
    fn read(&mut self, page: u64, bytes: &mut [u8]) -> bool {
        match self.file.read_exact_at(bytes, page * self.head.page_bytes) {
            Ok(()) => true,
            Err(error) => {
                self.note(page, format!("the page cannot be read: {error}"));
                false
            }
        }
    }

    /// Checks a tree, and its numbers of pages and entries.
    fn tree(&mut self, name: &str, tree: &Tree, of: TreeKind) {
        let before = self.findings.len();
        let mut found = TreeCounts::default();
        if tree.root != NO_PAGE && self.take(tree.root, 1, tree.root) {
            let mut steps = vec![WalkStep { page: tree.root, level: 1, from: None, to: None }];
            let mut bytes = vec![0; self.head.page_bytes as usize];
            // A list and no recursion bounds the stack, whatever the file says.
            while let Some(step) = steps.pop() {
                if self.is_full() {
                    return;
                }
                if self.read(step.page, &mut bytes) {
                    self.page(&step, &bytes, (tree, of), &mut found, &mut steps);
                }
            }
        }

        // After a finding the counts cannot agree.
        if self.findings.len() > before {
            return;
        }

        let counts = [
            ("branches", found.branches, tree.branches),
            ("leaves", found.leaves, tree.leaves),
            ("pages of long values", found.overflows, tree.overflows),
            ("entries", found.entries, tree.entries),
        ];

        for (what, found, told) in counts {
            if found != told {
                self.note(
                    None,
                    format!("{name} has {found} {what}, and its record tells of {told}"),
                );
            }
        }
    }

    /// Checks a page of a tree, and adds the pages below it to the steps.
    fn page(
        &mut self,
        step: &WalkStep,
        bytes: &[u8],
        (tree, of): (&Tree, TreeKind),
        found: &mut TreeCounts,
        steps: &mut Vec<WalkStep>,
    ) {
        let page = step.page;
        let is_leaf = step.level == tree.levels;
        let upper = number(bytes, 14..16) as usize;

        let nodes = match Self::node_count(step, bytes, (tree, of)) {
            Ok(nodes) => nodes,
            Err(rule) => return self.note(page, rule),
        };

        let mut below: Vec<WalkStep> = Vec::new();
        let mut last: Option<&[u8]> = None;
        for index in 0..nodes {
            let at = PAGE_HEADER_BYTES + 2 * index;
            let offset = number(bytes, at..at + 2) as usize;
            let Some(node) = Node::read(bytes, offset, upper, is_leaf) else {
                return self.note(page, format!("node {index} does not lie in the page"));
            };
            let key = &bytes[node.key.clone()];

            // LMDB ignores the first key of a branch: all keys below it are less than the second
            // key.
            let has_key = is_leaf || index > 0;
            if has_key && !Self::is_in_order(key, last, step, of) {
                return self.note(page, format!("key {index} is out of order"));
            }

            if is_leaf {
                found.entries += 1;
                self.value(page, key, &node, (bytes, of), found);
            } else {
                if let Some(before) = below.last_mut() {
                    before.to = Some(key.to_vec());
                }
                let from = if has_key { Some(key.to_vec()) } else { step.from.clone() };
                let level = step.level + 1;
                below.push(WalkStep { page: node.child, level, from, to: step.to.clone() });
            }

            if has_key {
                last = Some(key);
            }
        }

        if is_leaf {
            found.leaves += 1;
            return;
        }

        found.branches += 1;
        for step in below {
            if self.take(step.page, 1, page) {
                steps.push(step);
            }
        }
    }

    /// The number of nodes of a page, or the rule that its header breaks. Every bound is checked
    /// before anything is read through it.
    fn node_count(
        step: &WalkStep,
        bytes: &[u8],
        (tree, of): (&Tree, TreeKind),
    ) -> Result<usize, String> {
        let kind = number(bytes, 10..12);
        let lower = number(bytes, 12..14) as usize;
        let upper = number(bytes, 14..16) as usize;
        let is_leaf = step.level == tree.levels;

        if number(bytes, 0..8) != step.page || number(bytes, 8..10) != 0 {
            return Err("the page has another number".into());
        }

        if tree.levels > LEVELS_MAX || kind != (if is_leaf { LEAF } else { BRANCH }) {
            return Err("the page is of another kind than its level of the tree has".into());
        }

        if lower < PAGE_HEADER_BYTES
            || !lower.is_multiple_of(2)
            || upper < lower
            || bytes.len() < upper
        {
            return Err("the bounds of the page's free space are impossible".into());
        }

        let nodes = (lower - PAGE_HEADER_BYTES) / 2;
        let nodes_min = if is_leaf || of == TreeKind::FreeList { 1 } else { 2 };
        if nodes < nodes_min {
            return Err(format!("the page has {nodes} nodes"));
        }
        Ok(nodes)
    }

    /// Whether a key follows the one before it, and lies within the bounds of its page.
    fn is_in_order(key: &[u8], last: Option<&[u8]>, step: &WalkStep, of: TreeKind) -> bool {
        if of == TreeKind::FreeList {
            let integer = |key: &[u8]| number(key, 0..8);
            if key.len() != 8 || step.from.iter().chain(&step.to).any(|key| key.len() != 8) {
                return false;
            }
            return last.is_none_or(|last| integer(last) < integer(key))
                && step.from.as_deref().is_none_or(|from| integer(from) <= integer(key))
                && step.to.as_deref().is_none_or(|to| integer(key) < integer(to));
        }
        last.is_none_or(|last| last < key)
            && step.from.as_deref().is_none_or(|from| from <= key)
            && step.to.as_deref().is_none_or(|to| key < to)
    }

    /// Checks the value of a leaf's node.
    fn value(
        &mut self,
        page: u64,
        key: &[u8],
        node: &Node,
        (bytes, of): (&[u8], TreeKind),
        found: &mut TreeCounts,
    ) {
        let is_table = node.flags & OF_TABLE != 0;
        if node.flags & !(IN_OVERFLOW | OF_TABLE) != 0 || (is_table && of != TreeKind::Main) {
            return self.note(page, format!("a node has flags {:#x}", node.flags));
        }

        let here;
        let value: &[u8] = match &node.value {
            Value::Here(range) => &bytes[range.clone()],
            Value::Overflow(first, length) => {
                let Some(value) = self.overflow(page, *first, *length, of, found) else { return };
                here = value;
                &here
            }
        };

        if is_table && value.len() == TREE_BYTES {
            self.tables.push((key.to_vec(), Tree::read(value)));
        } else if is_table {
            self.note(page, format!("the record of a table has {} bytes", value.len()));
        } else if of == TreeKind::FreeList {
            self.free_pages(page, value);
        }
    }

    /// Checks the pages of a long value. Returns its bytes if the free list has the value.
    fn overflow(
        &mut self,
        page: u64,
        first: u64,
        length: u64,
        of: TreeKind,
        found: &mut TreeCounts,
    ) -> Option<Vec<u8>> {
        let page_bytes = self.head.page_bytes;
        let count = (PAGE_HEADER_BYTES as u64 + length).div_ceil(page_bytes);

        if !self.take(first, count, page) {
            return None;
        }

        let mut header = [0; PAGE_HEADER_BYTES];
        if !self.read(first, &mut header) {
            return None;
        }

        let is_overflow = number(&header, 0..8) == first && number(&header, 10..12) == OVERFLOW;
        if !is_overflow || number(&header, 12..16) != count {
            self.note(
                first,
                "the page does not begin a long value of the length that its node has",
            );
            return None;
        }

        found.overflows += count;
        if of != TreeKind::FreeList {
            return Some(Vec::new());
        }

        let mut value = vec![0; length as usize];
        match self.file.read_exact_at(&mut value, first * page_bytes + PAGE_HEADER_BYTES as u64) {
            Ok(()) => Some(value),
            Err(error) => {
                self.note(first, format!("the page cannot be read: {error}"));
                None
            }
        }
    }

    /// Checks a list of free pages: its length, and the pages, descending.
    fn free_pages(&mut self, page: u64, list: &[u8]) {
        let count = if list.len() < 8 { 0 } else { number(list, 0..8) };
        if list.len() < 8 || count > list.len() as u64 / 8 - 1 {
            return self.note(page, "a list of free pages is longer than its bytes");
        }

        let mut last = NO_PAGE;
        for index in 1..=count as usize {
            let free = number(list, 8 * index..8 * index + 8);
            if last <= free || free < HEADS || self.head.page_last < free {
                return self.note(page, format!("page {free} cannot be in a list of free pages"));
            }
            last = free;
            // Pages that were never written may lie behind the end of the file.
            if free < self.pages && !self.take(free, 1, page) {
                return;
            }
        }
    }
}

/// A node of a page.
struct Node {
    flags: u64,
    key: Range<usize>,
    value: Value,
    /// The page below a node of a branch.
    child: u64,
}

impl Node {
    /// Reads a node; `None` if a part of it lies outside of the page's room for nodes.
    fn read(bytes: &[u8], offset: usize, upper: usize, is_leaf: bool) -> Option<Self> {
        let data = offset.checked_add(NODE_HEADER_BYTES)?;
        if offset < upper || !offset.is_multiple_of(2) || bytes.len() < data {
            return None;
        }

        let length = number(bytes, offset..offset + 4);
        let flags = number(bytes, offset + 4..offset + 6);

        let key = data..data + number(bytes, offset + 6..offset + 8) as usize;
        if bytes.len() < key.end {
            return None;
        }

        if !is_leaf {
            let value = Value::Here(key.end..key.end);
            return Some(Self { flags: 0, key, value, child: length | flags << 32 });
        }

        let value = if flags & IN_OVERFLOW == 0 {
            let end = key.end.checked_add(length as usize).filter(|end| *end <= bytes.len())?;
            Value::Here(key.end..end)
        } else {
            if bytes.len() < key.end + 8 {
                return None;
            }
            Value::Overflow(number(bytes, key.end..key.end + 8), length)
        };

        Some(Self { flags, key, value, child: 0 })
    }
}
