//! Bulk load of a whole state from its values, ascending by address.
//!
//! The tree grows from below: a node is hashed and written when the first address arrives that does
//! not lie below it.
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

/// Estimated bytes of records that are written together.
const BATCH_BYTES: usize = 4 << 20;
/// Estimate of the memory of a record besides its content.
const ROW_BYTES: usize = 256;

/// A node above the last address that is not finished yet.
#[derive(Debug)]
struct Frame {
    /// Tokens of the last address down to this node.
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
        // Nodes below the common prefix with the last address get no more children.
        while self.frames.last().is_some_and(|top| top.depth > along) {
            self.close(writer, along)?;
        }
        self.last = address;
        let depth = address.as_bytes().len();
        debug_assert!(
            self.frames.last().is_none_or(|top| top.depth < depth),
            "frames go down to the last address"
        );
        self.frames.push(Frame { depth, value: Some(value.into()), children: Vec::new() });
        Ok(())
    }

    /// Finishes the lowest node as a child of the node above it; inserts a node at `depth` if the
    /// node above is higher.
    fn close(&mut self, writer: &mut dyn Writer, depth: usize) -> Result<()> {
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        debug_assert!(depth < frame.depth);
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

    /// The edge from `from` tokens below the root to a node, whose record is added to the batch.
    fn edge(&mut self, writer: &mut dyn Writer, from: usize, frame: Frame) -> Result<Edge> {
        let mut extension = self.last;
        extension.truncate(frame.depth);
        let extension = extension.after(from);
        debug_assert!(from <= frame.depth && frame.children.len() <= 256);
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

        // Bounds the memory for a tree of any size.
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

    /// Writes the rest. Returns the edge of the whole tree, `None` if it is empty, and the number
    /// of plain nodes that are new to the store.
    pub(crate) fn finish(mut self, writer: &mut dyn Writer) -> Result<(Option<Edge>, u64)> {
        while self.frames.len() > 1 {
            // Inserts no node: each of these frames has one above it.
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
