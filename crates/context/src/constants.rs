//! Constants of the formats, for programs that read the files without this crate.

use crate::base::address::UNIT_BYTES;
use crate::base::path::HEIGHT_MAX;
use crate::object::entries::{INLINE_BYTES_MAX, TAG_DIR, TAG_INLINE, TAG_VALUE};
use crate::object::record::{
    ENTRIES_DELTA, FLAT, INNER, INNER_DELTA, LEAF, TAG_HEX, TAG_KEPT, VALUE,
};
use crate::pack::archive::{VOLUME_MAGIC, VOLUME_VERSION};
use crate::pack::chunk::{
    CHUNK_HEAD_BYTES, CHUNK_MAGIC, CHUNK_VERSION, CHUNK_VERSION_OLDEST, RUN_BYTES,
};
use crate::pack::commit::{BRANCH, BRANCHES, COMMIT, COMMITS, STATE};
use crate::pack::control::{
    CONTROL_FILE_BYTES, CONTROL_MAGIC, CONTROL_PAGE_BYTES, CONTROL_VERSION, MARK_AT, MARK_BYTES,
    MARK_MAGIC,
};
use crate::pack::frame::{FRAME_HEAD_BYTES, FRAME_MAGIC, FrameKind};
use crate::pack::locations::{
    LOCATION_MAGIC, LOCATION_VERSION, LOCATIONS_MAGIC, LOCATIONS_VERSION,
};
use crate::pack::marker::MARKER_BYTES;
use crate::proof::codec::{DENSE_MIN, DENSE_SLOTS, INDEX_BITS, SEGMENT_MAX};
use crate::proof::proof::{NESTING_MAX, VERSION};
use crate::snapshot::snapshot::{SNAPSHOT_HEAD_BYTES, SNAPSHOT_MAGIC, SNAPSHOT_VERSION};

/// Returns every constant of the formats of context stores and proofs, by name.
#[must_use]
pub fn constants() -> Vec<(&'static str, String)> {
    let text = |magic: &[u8]| String::from_utf8_lossy(magic).into_owned();
    vec![
        ("CONTEXT_CHUNK_MAGIC", text(&CHUNK_MAGIC)),
        ("CONTEXT_CHUNK_VERSION", CHUNK_VERSION.to_string()),
        ("CONTEXT_CHUNK_VERSION_OLDEST", CHUNK_VERSION_OLDEST.to_string()),
        ("CONTEXT_CHUNK_HEAD_BYTES", CHUNK_HEAD_BYTES.to_string()),
        ("CONTEXT_RUN_BYTES", RUN_BYTES.to_string()),
        ("CONTEXT_FRAME_MAGIC", text(&FRAME_MAGIC)),
        ("CONTEXT_FRAME_HEAD_BYTES", FRAME_HEAD_BYTES.to_string()),
        ("CONTEXT_FRAME_KIND_OBJECTS", (FrameKind::Objects as u8).to_string()),
        ("CONTEXT_FRAME_KIND_COMMIT", (FrameKind::Commit as u8).to_string()),
        ("CONTEXT_FRAME_KIND_BRANCHES", (FrameKind::Branches as u8).to_string()),
        ("CONTEXT_FRAME_KIND_COMMIT_TO", (FrameKind::CommitTo as u8).to_string()),
        ("CONTEXT_FRAME_KIND_COMMITS", (FrameKind::Commits as u8).to_string()),
        ("CONTEXT_UNIT_BYTES", UNIT_BYTES.to_string()),
        ("CONTEXT_CONTROL_MAGIC", text(&CONTROL_MAGIC)),
        ("CONTEXT_CONTROL_VERSION", CONTROL_VERSION.to_string()),
        ("CONTEXT_CONTROL_PAGE_BYTES", CONTROL_PAGE_BYTES.to_string()),
        ("CONTEXT_CONTROL_FILE_BYTES", CONTROL_FILE_BYTES.to_string()),
        ("CONTEXT_MARK_MAGIC", text(&MARK_MAGIC)),
        ("CONTEXT_MARK_AT", MARK_AT.to_string()),
        ("CONTEXT_MARK_BYTES", MARK_BYTES.to_string()),
        ("CONTEXT_VOLUME_MAGIC", text(&VOLUME_MAGIC)),
        ("CONTEXT_VOLUME_VERSION", VOLUME_VERSION.to_string()),
        ("CONTEXT_MARKER_BYTES", MARKER_BYTES.to_string()),
        ("CONTEXT_LOCATIONS_MAGIC", text(&LOCATIONS_MAGIC)),
        ("CONTEXT_LOCATIONS_VERSION", LOCATIONS_VERSION.to_string()),
        ("CONTEXT_LOCATION_MAGIC", text(&LOCATION_MAGIC)),
        ("CONTEXT_LOCATION_VERSION", LOCATION_VERSION.to_string()),
        ("CONTEXT_VALUE", VALUE.to_string()),
        ("CONTEXT_FLAT", FLAT.to_string()),
        ("CONTEXT_LEAF", LEAF.to_string()),
        ("CONTEXT_INNER", INNER.to_string()),
        ("CONTEXT_INNER_DELTA", INNER_DELTA.to_string()),
        ("CONTEXT_ENTRIES_DELTA", ENTRIES_DELTA.to_string()),
        ("CONTEXT_COMMIT", COMMIT.to_string()),
        ("CONTEXT_BRANCH", BRANCH.to_string()),
        ("CONTEXT_BRANCHES", BRANCHES.to_string()),
        ("CONTEXT_COMMITS", COMMITS.to_string()),
        ("CONTEXT_STATE", STATE.to_string()),
        ("CONTEXT_TAG_INLINE", TAG_INLINE.to_string()),
        ("CONTEXT_TAG_VALUE", TAG_VALUE.to_string()),
        ("CONTEXT_TAG_DIR", TAG_DIR.to_string()),
        ("CONTEXT_TAG_HEX", TAG_HEX.to_string()),
        ("CONTEXT_TAG_KEPT", TAG_KEPT.to_string()),
        ("CONTEXT_INLINE_BYTES_MAX", INLINE_BYTES_MAX.to_string()),
        ("CONTEXT_HEIGHT_MAX", HEIGHT_MAX.to_string()),
        ("CONTEXT_SNAPSHOT_MAGIC", text(SNAPSHOT_MAGIC)),
        ("CONTEXT_SNAPSHOT_VERSION", SNAPSHOT_VERSION.to_string()),
        ("CONTEXT_SNAPSHOT_HEAD_BYTES", SNAPSHOT_HEAD_BYTES.to_string()),
        ("PROOF_VERSION", VERSION.to_string()),
        ("PROOF_NESTING_MAX", NESTING_MAX.to_string()),
        ("PROOF_DENSE_SLOTS", DENSE_SLOTS.to_string()),
        ("PROOF_DENSE_MIN", DENSE_MIN.to_string()),
        ("PROOF_SEGMENT_MAX", SEGMENT_MAX.to_string()),
        ("PROOF_INDEX_BITS", INDEX_BITS.to_string()),
    ]
}
