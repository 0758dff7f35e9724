//! A block of operations: records in one buffer, which is used again for the next block.

use crate::workloads::{Error, Result};
use terrane_replay::engines::context::{Context, Steps};

/// An operation, and what it must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the operands are what they are called")]
pub enum Operation<'a> {
    /// Asks for a value.
    Mem { path: Steps<'a>, expected: bool },
    /// Asks for a value or a directory.
    MemTree { path: Steps<'a>, expected: bool },
    /// Looks a value up.
    Find { path: Steps<'a>, expected: Option<&'a [u8]> },
    /// Puts a value.
    Add { path: Steps<'a>, value: &'a [u8] },
    /// Removes a value.
    Remove { path: Steps<'a> },
    /// Copies what is at a path.
    Copy { from: Steps<'a>, to: Steps<'a> },
}

/// A part of a buffer.
#[derive(Debug, Clone, Copy)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn of<T>(self, buffer: &[T]) -> &[T] {
        &buffer[self.start as usize..self.end as usize]
    }
}

/// Buffer of a path: its bytes, and the ends of its steps.
#[derive(Debug, Clone, Copy)]
struct Path {
    bytes: Span,
    ends: Span,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Mem(bool),
    MemTree(bool),
    Find(Option<Span>),
    Add(Span),
    Remove,
    Copy(Path),
}

/// A block of operations.
#[derive(Debug, Default)]
pub struct Block {
    /// Number of the block, from 0 on.
    pub number: u64,
    /// The block that it follows; the starting state if there is none.
    pub parent: Option<u64>,
    /// Whether no block follows it.
    pub is_abandoned: bool,
    /// Seconds since 1970.
    pub date: i64,
    bytes: Vec<u8>,
    ends: Vec<u32>,
    records: Vec<(Path, Kind)>,
    /// The path of the operations that are appended.
    path: Option<Path>,
}

/// The length of a buffer of a block.
fn length<T>(buffer: &[T]) -> u32 {
    u32::try_from(buffer.len()).expect("a block has less than 4 GiB")
}

impl Block {
    /// A block without operations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes all operations away.
    pub(super) fn clear(&mut self, number: u64, parent: Option<u64>) {
        (self.number, self.parent, self.path) = (number, parent, None);
        self.bytes.clear();
        self.ends.clear();
        self.records.clear();
    }

    fn put_path(&mut self, path: Steps<'_>) -> Path {
        let bytes_start = length(&self.bytes);
        let ends_start = length(&self.ends);
        for step in path.iter() {
            self.bytes.extend_from_slice(step);
            self.ends.push(length(&self.bytes) - bytes_start);
        }
        Path {
            bytes: Span { start: bytes_start, end: length(&self.bytes) },
            ends: Span { start: ends_start, end: length(&self.ends) },
        }
    }

    fn put_value(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Span {
        let start = length(&self.bytes);
        write(&mut self.bytes);
        Span { start, end: length(&self.bytes) }
    }

    fn push(&mut self, kind: Kind) {
        self.records.push((self.path.expect("a path was given"), kind));
    }

    /// The operations that follow are of `path`.
    pub(super) fn path(&mut self, path: Steps<'_>) {
        self.path = Some(self.put_path(path));
    }

    pub(super) fn mem(&mut self, expected: bool) {
        self.push(Kind::Mem(expected));
    }

    pub(super) fn mem_tree(&mut self, expected: bool) {
        self.push(Kind::MemTree(expected));
    }

    /// `write` appends the value that is expected, if one is.
    pub(super) fn find(&mut self, expected: bool, write: impl FnOnce(&mut Vec<u8>)) {
        let value = expected.then(|| self.put_value(write));
        self.push(Kind::Find(value));
    }

    /// `write` appends the value.
    pub(super) fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let value = self.put_value(write);
        self.push(Kind::Add(value));
    }

    pub(super) fn remove(&mut self) {
        self.push(Kind::Remove);
    }

    pub(super) fn copy_to(&mut self, target: Steps<'_>) {
        let target = self.put_path(target);
        self.push(Kind::Copy(target));
    }

    /// Number of operations.
    #[must_use]
    pub fn count(&self) -> usize {
        self.records.len()
    }

    fn steps(&self, path: Path) -> Steps<'_> {
        Steps::from_parts(path.bytes.of(&self.bytes), path.ends.of(&self.ends))
    }

    /// The operations in their order.
    pub fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        self.records.iter().map(|&(path, kind)| {
            let path = self.steps(path);
            match kind {
                Kind::Mem(expected) => Operation::Mem { path, expected },
                Kind::MemTree(expected) => Operation::MemTree { path, expected },
                Kind::Find(expected) => {
                    Operation::Find { path, expected: expected.map(|value| value.of(&self.bytes)) }
                }
                Kind::Add(value) => Operation::Add { path, value: value.of(&self.bytes) },
                Kind::Remove => Operation::Remove { path },
                Kind::Copy(to) => Operation::Copy { from: path, to: self.steps(to) },
            }
        })
    }

    /// The paths of the operations; several in a row of one path have it once.
    #[must_use]
    pub fn paths(&self) -> Vec<Steps<'_>> {
        let mut paths: Vec<Steps<'_>> = Vec::with_capacity(self.records.len());
        for (path, kind) in &self.records {
            let path = self.steps(*path);
            if paths.last() != Some(&path) {
                paths.push(path);
            }
            if let Kind::Copy(to) = kind {
                paths.push(self.steps(*to));
            }
        }

        paths
    }

    /// Does all operations in `context` and compares what they find. `value` is a buffer for what
    /// is looked up.
    ///
    /// # Errors
    /// [`Error::Wrong`] if something else is found; [`Error::Context`].
    pub fn apply(&self, context: &mut dyn Context, value: &mut Vec<u8>) -> Result<()> {
        for operation in self.operations() {
            let is_right = match operation {
                Operation::Mem { path, expected } => context.mem(path)? == expected,
                Operation::MemTree { path, expected } => context.mem_tree(path)? == expected,
                Operation::Find { path, expected } => {
                    let is_there = context.find(path, value)?;
                    is_there.then_some(value.as_slice()) == expected
                }
                Operation::Add { path, value } => {
                    context.add(path, value)?;
                    true
                }
                Operation::Remove { path } => {
                    context.remove(path)?;
                    true
                }
                Operation::Copy { from, to } => context.copy(from, to)?,
            };

            if !is_right {
                let message = format!("block {}: not so in the engine: {operation:?}", self.number);
                return Err(Error::Wrong(message));
            }
        }

        Ok(())
    }
}
