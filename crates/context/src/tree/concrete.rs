//! Trees as plain data, and copies of trees that need no store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec;

use crate::base::error::{Error, Result};
use crate::base::path::HEIGHT_MAX;
use crate::object::pins::Pins;
use crate::tree::copy::{Blinded, copy};
use crate::tree::node::{Env, Spot};
use crate::tree::tree::Tree;
use crate::tree::walk::{Entry, dir, sorted};

/// Default limit of the memory of plain data.
const CONCRETE_BYTES_MAX: u64 = 1 << 30;
/// Memory of a binding beside the bytes of its step and value, in bytes.
const BINDING_BYTES: usize = 64;

/// A tree as plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Concrete {
    /// A value.
    Value(Vec<u8>),
    /// A directory.
    Directory(BTreeMap<Box<[u8]>, Concrete>),
}

impl Tree {
    /// Returns the tree as plain data of at most 1 GiB;
    /// [`to_concrete_within`](Self::to_concrete_within) takes another limit.
    ///
    /// # Errors
    /// Errors of [`to_concrete_within`](Self::to_concrete_within).
    pub fn to_concrete(&self) -> Result<Concrete> {
        self.to_concrete_within(CONCRETE_BYTES_MAX)
    }

    /// Returns the tree as plain data that takes at most about `bytes_max` of memory.
    ///
    /// A shared part counts at each of its paths: a tree of a few kilobytes can stand for more
    /// data than there is memory.
    ///
    /// Cost: one read for each directory, inode and value that is not in memory.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem), and [`LimitExceeded`](Error::LimitExceeded).
    pub fn to_concrete_within(&self, bytes_max: u64) -> Result<Concrete> {
        let env = &*self.env;
        let mut room = Room { left: bytes_max, bytes_max };
        let mut way: Vec<Directory> = Vec::new();
        let mut next = open(env, Spot::Own(self.root()), &mut room)?;

        loop {
            // Descend to the next entry of an open directory.
            let mut whole = match next {
                Opened::Value(bytes) => Concrete::Value(bytes),
                Opened::Directory(directory) => {
                    way.push(directory);
                    match way.last_mut().and_then(Directory::go_on) {
                        Some(entry) => {
                            next = open(env, entry.spot(), &mut room)?;
                            continue;
                        }
                        None => Directory::end(way.pop()),
                    }
                }
            };

            // Ascend while directories end, up to one with another child.
            next = loop {
                let Some(above) = way.last_mut() else { return Ok(whole) };
                above.put(whole);
                match above.go_on() {
                    Some(entry) => break open(env, entry.spot(), &mut room)?,
                    None => whole = Directory::end(way.pop()),
                }
            };
        }
    }

    /// Returns the tree of plain data, of the same store. Leaves out directories without content.
    ///
    /// # Errors
    /// Errors of [`add`](Self::add).
    pub fn of_concrete(&self, concrete: &Concrete) -> Result<Self> {
        // A list on the heap: plain data of the caller may nest deeper than a thread has stack for.
        let mut way = match concrete {
            Concrete::Value(bytes) => return Ok(self.of_value(bytes.as_slice())),
            Concrete::Directory(children) => vec![(self.empty(), [].as_slice(), children.iter())],
        };

        loop {
            let levels = way.len();
            let (tree, _, children) = way.last_mut().expect("the root ends the loop");
            match children.next() {
                Some((step, Concrete::Value(bytes))) => {
                    tree.add(&[step], bytes.as_slice())?;
                }
                Some(_) if levels >= usize::from(HEIGHT_MAX) => {
                    return Err(Error::TooDeep { levels: levels + 1 });
                }
                Some((step, Concrete::Directory(children))) => {
                    way.push((self.empty(), step, children.iter()));
                }
                None => {
                    let (tree, step, _) = way.pop().expect("it was there");
                    match way.last_mut() {
                        Some((above, ..)) => above.add_tree(&[step], &tree)?,
                        None => return Ok(tree),
                    };
                }
            }
        }
    }

    /// Returns a copy in memory that belongs to no store. Shared parts stay shared.
    ///
    /// Cost: one read for each directory, inode and value that is not in memory. The tree is
    /// hashed.
    ///
    /// # Errors
    /// Errors of [`mem`](Self::mem).
    pub fn to_memory(&self) -> Result<Self> {
        self.hash();

        // Hashed first, so that equal parts are copied once and stay shared.
        let env = Env::new(self.env.rules, None, false);
        let root = copy(&self.env, Spot::Own(self.root()), Blinded::Refuse)?;
        Ok(Self::at(Arc::new(env), root, Pins::default()))
    }
}

/// Rest of the memory limit of plain data.
struct Room {
    left: u64,
    bytes_max: u64,
}

impl Room {
    fn take(&mut self, bytes: usize) -> Result<()> {
        match self.left.checked_sub(bytes as u64) {
            Some(left) => self.left = left,
            None => return Err(Error::LimitExceeded { limit: self.bytes_max, unit: "bytes" }),
        }
        debug_assert!(self.left <= self.bytes_max, "the room only shrinks");
        Ok(())
    }
}

/// A directory that is being turned into plain data.
struct Directory {
    rest: vec::IntoIter<Entry>,
    /// Step of the child that is being converted.
    step: Box<[u8]>,
    children: BTreeMap<Box<[u8]>, Concrete>,
}

impl Directory {
    fn go_on(&mut self) -> Option<Entry> {
        let entry = self.rest.next()?;
        self.step = entry.step().into();
        Some(entry)
    }

    fn put(&mut self, child: Concrete) {
        self.children.insert(std::mem::take(&mut self.step), child);
    }

    fn end(directory: Option<Self>) -> Concrete {
        Concrete::Directory(directory.map(|directory| directory.children).unwrap_or_default())
    }
}

enum Opened {
    Value(Vec<u8>),
    Directory(Directory),
}

/// Converts a value, or opens a directory; takes the memory of the value or of the bindings.
fn open(env: &Env, spot: Spot<'_>, room: &mut Room) -> Result<Opened> {
    let Some(node) = dir(env, spot)? else {
        let bytes = spot.value(env)?.unwrap_or_default();
        room.take(bytes.len())?;
        return Ok(Opened::Value(bytes));
    };

    room.take(usize::try_from(node.count()).unwrap_or(usize::MAX).saturating_mul(BINDING_BYTES))?;

    // The bindings are charged before they are loaded: the count may be forged or huge.
    let entries = sorted(env, &node)?;
    room.take(entries.iter().map(|entry| entry.step().len()).sum())?;
    let rest = entries.into_iter();
    let step = Box::default();
    Ok(Opened::Directory(Directory { rest, step, children: BTreeMap::new() }))
}
