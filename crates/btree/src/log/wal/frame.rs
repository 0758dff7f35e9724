//! Frames of the WAL: the updates of one flush, or the end of a segment.
//!
//! A frame says how far the WAL was durable before it (`synced`), and where all entries were last
//! replaced at once (`replaced`), so that no reader puts newer updates above an older tree.

use terrane_io::bytes::{Reader, Writer};
use terrane_io::checksum::crc32c_append;

use crate::page::block::{EntryRef, REMOVED};

/// First bytes of a frame.
pub(crate) const FRAME_MAGIC: [u8; 4] = *b"TeLF";

/// Bytes of a frame besides its body.
pub(crate) const FRAME_HEAD_BYTES: usize = 40;

/// Alignment of frames, in bytes.
pub(super) const FRAME_ALIGN: usize = 8;

/// Kind of a frame with updates.
pub(super) const UPDATES: u32 = 1;

/// Kind of the frame that ends a segment.
pub(super) const SEALED: u32 = 2;

/// Updates of the next frame, behind room for its head: a flush writes them from where they are.
#[derive(Debug)]
pub(crate) struct FrameBody {
    pub(super) frame: Vec<u8>,
}

impl Default for FrameBody {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl FrameBody {
    /// An empty body with room for `bytes` bytes of updates.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + bytes + FRAME_ALIGN);
        frame.resize(FRAME_HEAD_BYTES, 0);
        Self { frame }
    }

    /// Appends an update; no value removes the key.
    pub(crate) fn push(&mut self, key: &[u8], value: Option<&[u8]>) {
        debug_assert!(
            value.is_none_or(|value| value.len() < usize::from(REMOVED)),
            "a length is no mark of a removal"
        );
        let value_len = value.map_or(REMOVED, |value| value.len() as u16);
        self.frame.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.frame.extend_from_slice(&value_len.to_le_bytes());
        self.frame.extend_from_slice(key);
        self.frame.extend_from_slice(value.unwrap_or_default());
    }

    /// Bytes of the updates.
    pub(crate) fn bytes(&self) -> usize {
        self.frame.len() - FRAME_HEAD_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Forgets the updates.
    pub(crate) fn clear(&mut self) {
        self.frame.truncate(FRAME_HEAD_BYTES);
        // The memory of one large batch is not kept.
        self.frame.shrink_to(1 << 20);
    }
}

/// A frame that was read and is whole.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Position of the frame.
    pub(crate) position: u64,
    /// Position of the next frame.
    pub(crate) next: u64,
    /// Whether the frame ends its segment.
    pub(super) is_end: bool,
    /// Number of entries of the index with this frame.
    pub(crate) entries: u64,
    /// Position up to which the WAL was durable before the frame.
    pub(super) synced: u64,
    /// Position at which all entries were last replaced at once.
    pub(crate) replaced: u64,
    pub(super) body: Vec<u8>,
}

impl Frame {
    /// The updates; `None` in place of a malformed one, which ends them.
    pub(crate) fn updates(&self) -> impl Iterator<Item = Option<EntryRef<'_>>> {
        let mut input = Reader::new(&self.body);
        std::iter::from_fn(move || {
            if input.rest().is_empty() {
                return None;
            }
            let update = read_update(&mut input);
            if update.is_none() {
                // A malformed update does not tell where the next one begins.
                input = Reader::new(&[]);
            }
            Some(update)
        })
    }
}

/// Reads an update; `None` if it is malformed.
fn read_update<'a>(input: &mut Reader<'a>) -> Option<EntryRef<'a>> {
    let key_len = usize::from(input.u16().ok()?);
    let value_len = input.u16().ok()?;
    let key = input.take(key_len).ok()?;
    let value = match value_len {
        REMOVED => None,
        len => Some(input.take(usize::from(len)).ok()?),
    };
    Some((key, value))
}

/// Checksum of a frame from its kind on. Tree and position go into it, so that a frame counts only
/// in its own place.
pub(super) fn frame_crc(tree: u64, position: u64, from_kind: &[u8]) -> u32 {
    let crc = crc32c_append(0, &tree.to_le_bytes());
    crc32c_append(crc32c_append(crc, &position.to_le_bytes()), from_kind)
}

/// Fills in the head of a frame, and the padding behind its body.
pub(super) fn encode(
    tree: u64,
    position: u64,
    kind: u32,
    [entries, synced, replaced]: [u64; 3],
    frame: &mut Vec<u8>,
) {
    assert!(FRAME_HEAD_BYTES <= frame.len(), "a body begins behind room for its head");
    let body_len = frame.len() - FRAME_HEAD_BYTES;
    let mut head = Writer::with_capacity(FRAME_HEAD_BYTES);
    assert!(u32::try_from(body_len).is_ok(), "the limit of a batch is far below");
    head.put(&FRAME_MAGIC).u32(0).u32(kind).u32(body_len as u32);
    head.u64(entries).u64(synced).u64(replaced);
    frame[..FRAME_HEAD_BYTES].copy_from_slice(head.bytes());

    // The checksum leaves out the magic, and itself.
    let crc = frame_crc(tree, position, &frame[8..]);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
    frame.resize(frame.len().next_multiple_of(FRAME_ALIGN), 0);
}
