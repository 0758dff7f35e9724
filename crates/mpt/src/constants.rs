//! Constants of the formats, for `terrane inspect constants`.

use crate::scheme::binary_tree::GROUP_TAG;
use crate::state::tables::{
    ABSENT_TAG, BLOCK_BYTES, HASHES_TAG, PATH_END, PATHS_MAX, PRESENT_TAG, SHAPE_TAG, STATE_VERSION,
};
use crate::transfer::stream::{
    ACCOUNT_TAG, CODE_TAG, END_TAG, EXPORT_CODE_BYTES_MAX, EXPORT_MAGIC, EXPORT_VERSION, SLOT_TAG,
};
use crate::trie::record::{BRANCH_HEAD_BYTES, BRANCH_TAG, LINK_TAG, VALUE_FLAG};

/// Names and values of the constants of the formats.
#[must_use]
pub fn constants() -> Vec<(&'static str, String)> {
    vec![
        ("MPT_STATE_VERSION", STATE_VERSION.to_string()),
        ("MPT_BLOCK_BYTES", BLOCK_BYTES.to_string()),
        ("MPT_PATH_END", PATH_END.to_string()),
        ("MPT_ABSENT_TAG", ABSENT_TAG.to_string()),
        ("MPT_PRESENT_TAG", PRESENT_TAG.to_string()),
        ("MPT_HASHES_TAG", HASHES_TAG.to_string()),
        ("MPT_SHAPE_TAG", SHAPE_TAG.to_string()),
        ("MPT_PATHS_MAX", PATHS_MAX.to_string()),
        ("MPT_NODE_BRANCH_TAG", BRANCH_TAG.to_string()),
        ("MPT_NODE_LINK_TAG", LINK_TAG.to_string()),
        ("MPT_NODE_VALUE_FLAG", VALUE_FLAG.to_string()),
        ("MPT_NODE_BRANCH_HEAD_BYTES", BRANCH_HEAD_BYTES.to_string()),
        ("MPT_NODE_GROUP_TAG", GROUP_TAG.to_string()),
        ("MPT_EXPORT_MAGIC", String::from_utf8_lossy(EXPORT_MAGIC).into_owned()),
        ("MPT_EXPORT_VERSION", EXPORT_VERSION.to_string()),
        ("MPT_EXPORT_ACCOUNT_TAG", ACCOUNT_TAG.to_string()),
        ("MPT_EXPORT_SLOT_TAG", SLOT_TAG.to_string()),
        ("MPT_EXPORT_CODE_TAG", CODE_TAG.to_string()),
        ("MPT_EXPORT_END_TAG", END_TAG.to_string()),
        ("MPT_EXPORT_CODE_BYTES_MAX", EXPORT_CODE_BYTES_MAX.to_string()),
    ]
}
