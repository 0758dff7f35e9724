//! Constants of the formats of proofs and exports of radix states, for programs that read files
//! without this one.

use crate::proof::proof::{
    BITMAP_FROM, CHAIN_TAG, COMPACT_FORM, FULL_FORM, NODE_TAG, PROOF_VERSION,
};
use crate::transfer::version::{
    END_TAG, EXPORT_MAGIC, EXPORT_VERSION, MARK_BYTES, MARK_TAG, REMOVED, STATE_KIND, TREE_KIND,
    VERSION_TAG,
};

/// The constants of the formats of proofs and exports, by name.
#[must_use]
pub fn constants() -> Vec<(&'static str, String)> {
    vec![
        ("RADIX_PROOF_VERSION", PROOF_VERSION.to_string()),
        ("RADIX_PROOF_FULL_FORM", FULL_FORM.to_string()),
        ("RADIX_PROOF_COMPACT_FORM", COMPACT_FORM.to_string()),
        ("RADIX_PROOF_CHAIN_TAG", CHAIN_TAG.to_string()),
        ("RADIX_PROOF_NODE_TAG", NODE_TAG.to_string()),
        ("RADIX_PROOF_BITMAP_FROM", BITMAP_FROM.to_string()),
        ("RADIX_EXPORT_MAGIC", String::from_utf8_lossy(&EXPORT_MAGIC).into_owned()),
        ("RADIX_EXPORT_VERSION", EXPORT_VERSION.to_string()),
        ("RADIX_EXPORT_STATE_KIND", STATE_KIND.to_string()),
        ("RADIX_EXPORT_TREE_KIND", TREE_KIND.to_string()),
        ("RADIX_EXPORT_VERSION_TAG", VERSION_TAG.to_string()),
        ("RADIX_EXPORT_REMOVED", REMOVED.to_string()),
        ("RADIX_EXPORT_END_TAG", END_TAG.to_string()),
        ("RADIX_EXPORT_MARK_TAG", MARK_TAG.to_string()),
        ("RADIX_EXPORT_MARK_BYTES", MARK_BYTES.to_string()),
    ]
}
