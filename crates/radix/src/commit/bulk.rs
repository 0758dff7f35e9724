//! Builds the records of a whole state from its values, ascending by address, from below: a node is
//! hashed and written when the first address comes that is not below it.
//!
//! The version that is made so has no neighbour (see `references`), so that each of its edges is
//! one reference.
//!
//! Memory: the branches above one address, and records up to [`BATCH_BYTES`] that are written
//! together.

use std::sync::Arc;

use crate::base::address::{Address, Prefix};
use crate::base::change::check_value;
use crate::base::error::Result;
use crate::commit::hashing::{hash_branch, hash_leaf, top_of};
use crate::commit::record_changes::RecordChanges;
use crate::node::branch::BranchWriter;
use crate::node::node::{Edge, INLINE_VALUE_BYTES_MAX, Node, common};
use crate::records::record::Content;
use terrane_kv::Writer;

/// About how many bytes of records are written together.
const BATCH_BYTES: usize = 4 << 20;
/// What a record takes in memory besides its content, about.
const ROW_BYTES: usize = 256;

/// A node on the way to the last address that has a value or will have at least two children.
#[derive(Debug)]
struct Frame {
    /// Tokens of the last address above it.
    depth: usize,
    value: Option<Arc<[u8]>>,
    children: Vec<(u8, Edge)>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Bulk {
    /// From above, down to the last address.
    frames: Vec<Frame>,
    last: Prefix,
    records: RecordChanges,
    record_bytes: usize,
    added: u64,
}

impl Bulk {
    pub(crate) fn new() -> Self {
        let frames = Vec::new();
        let last = Prefix::EMPTY;
        let records = RecordChanges::default();
        Self { frames, last, records, record_bytes: 0, added: 0 }
    }

    /// Adds the value of an address, which is greater than all before it.
    ///
    /// # Errors
    /// [`ValueTooLarge`](crate::Error::ValueTooLarge), and those of the back-end.
    pub(crate) fn push(
        &mut self,
        writer: &mut dyn Writer,
        address: &Address,
        value: Vec<u8>,
    ) -> Result<()> {
        check_value(address, &value, None)?;
        let address = Prefix::from(*address);
        assert!(self.last < address, "addresses ascend");
        let along = common(self.last.as_bytes(), address.as_bytes());
        while self.frames.last().is_some_and(|top| top.depth > along) {
            self.close(writer, along)?;
        }
        self.last = address;
        let depth = address.as_bytes().len();
        self.frames.push(Frame { depth, value: Some(value.into()), children: Vec::new() });
        Ok(())
    }

    /// Makes the lowest node a child of the one above it, which is made if it is not as low as
    /// `depth`.
    fn close(&mut self, writer: &mut dyn Writer, depth: usize) -> Result<()> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        if self.frames.last().is_none_or(|above| above.depth < depth) {
            self.frames.push(Frame { depth, value: None, children: Vec::new() });
        }
        let above = self.frames.last().map_or(0, |above| above.depth);
        let token = self.last.as_bytes()[above];
        let edge = self.edge(writer, above + 1, frame)?;
        if let Some(above) = self.frames.last_mut() {
            above.children.push((token, edge));
        }
        Ok(())
    }

    /// The edge that begins so many tokens below the root and ends at a node; its record is noted.
    fn edge(&mut self, writer: &mut dyn Writer, from: usize, frame: Frame) -> Result<Edge> {
        let mut extension = self.last;
        extension.truncate(frame.depth);
        let extension = extension.after(from);
        let Frame { value, children, .. } = frame;
        let (hash, end, content) = match value {
            Some(value) if children.is_empty() => {
                let hash = hash_leaf(&value);
                if value.len() <= INLINE_VALUE_BYTES_MAX {
                    (hash, Node::Leaf(value), Content::Inline)
                } else {
                    self.record_bytes += value.len();
                    (hash, Node::Stored(hash), Content::Value(value))
                }
            }
            value => {
                let mut writer = BranchWriter::new(value.as_deref(), children.len(), 0);
                for (token, edge) in &children {
                    writer.push(*token, edge);
                }
                let branch = writer.finish();
                let hash = hash_branch(&branch);
                self.record_bytes += branch.weight();
                (hash, Node::Stored(hash), Content::Branch(Arc::new(branch)))
            }
        };

        let edge = Edge { extension, top: top_of(hash, extension.as_bytes()), end };
        self.records.add(hash, &edge.extension, 1, Some(content));
        self.record_bytes += ROW_BYTES;
        if self.record_bytes >= BATCH_BYTES {
            self.write(writer)?;
        }

        Ok(edge)
    }

    fn write(&mut self, writer: &mut dyn Writer) -> Result<()> {
        self.record_bytes = 0;
        self.added += std::mem::take(&mut self.records).apply(writer, false)?.added;
        Ok(())
    }

    /// Writes what is left. Answers the edge of the whole tree, `None` if it is empty, and how many
    /// nodes were not there before.
    pub(crate) fn finish(mut self, writer: &mut dyn Writer) -> Result<(Option<Edge>, u64)> {
        while self.frames.len() > 1 {
            self.close(writer, 0)?;
        }
        let edge = match self.frames.pop() {
            Some(frame) => Some(self.edge(writer, 0, frame)?),
            None => None,
        };
        self.write(writer)?;
        Ok((edge, self.added))
    }
}
