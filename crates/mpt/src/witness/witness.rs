//! The witness of a block: nodes, codes and headers, and their JSON.
//!
//! The canonical form has each node and code once, in the order of their hashes, and the headers
//! from the oldest to the parent of the block. So equal reads give equal bytes.

use alloy_primitives::{B256, Bytes, hex, keccak256};
use alloy_rlp::{Decodable, Header, PayloadView};
use serde_json::{Value, json};

use crate::base::path::Path;
use crate::proof::range::NodeSet;

/// Places of fields in a header.
const PARENT_FIELD: usize = 0;
const STATE_ROOT_FIELD: usize = 3;

/// The parts of a state that a block needs.
///
/// Nothing in a witness is trusted: nodes and codes are found by their hashes, and headers by the
/// hash of the parent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Witness {
    /// Nodes of the account trie and of storage tries, in RLP.
    pub state: Vec<Bytes>,
    /// Codes.
    pub codes: Vec<Bytes>,
    /// Headers in RLP, the parent of the block last.
    pub headers: Vec<Bytes>,
}

/// A witness does not say what was asked of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WitnessError {
    /// A node that is needed is not in the witness.
    #[error("the witness lacks node {hash} at path {path}")]
    MissingNode {
        /// The account of the storage trie, by the hash of its address; `None` in the account trie.
        account: Option<B256>,
        /// Where the node begins, or the path of the key that was looked up.
        path: Path,
        /// Its hash.
        hash: B256,
    },
    /// A node whose bytes are not those of a node, an account or a slot.
    #[error("node {hash} of the witness is no node of a state")]
    MalformedNode {
        /// Its hash, or that of the node it is embedded in.
        hash: B256,
    },
    /// A code that is needed is not in the witness.
    #[error("the witness lacks code {hash}")]
    MissingCode {
        /// Its hash.
        hash: B256,
    },
    /// The headers do not lead to the parent of the block.
    #[error("header {index} of the witness {what}")]
    InvalidHeader {
        /// Index of the header.
        index: usize,
        /// The rule that is broken.
        what: &'static str,
    },
    /// A slot is set, and its account does not exist after the block.
    #[error("account {account} has slots and does not exist after the block")]
    SlotWithoutAccount {
        /// Hash of the address.
        account: B256,
    },
    /// A text that is no witness.
    #[error("no witness: {what}")]
    InvalidJson {
        /// The field that is missing or wrong.
        what: String,
    },
}

impl Witness {
    /// Makes a witness of what somebody states, in canonical form but for the headers, which stay
    /// in their order.
    #[must_use]
    pub fn new(state: Vec<Bytes>, codes: Vec<Bytes>, headers: Vec<Bytes>) -> Self {
        // Codes are sorted by hash and named once, like nodes.
        let [state, codes] = [state, codes].map(|list| NodeSet::of(&list).into_list());
        Self { state, codes, headers }
    }

    /// Checks that the headers are a chain that ends with the parent of a block, whose hash is
    /// `parent`. Returns the hashes of the headers, the parent's last, and the root of the state
    /// after the parent: the root before the block.
    ///
    /// # Errors
    /// [`WitnessError::InvalidHeader`].
    pub fn check_headers(
        &self,
        parent: B256,
    ) -> std::result::Result<(Vec<B256>, B256), WitnessError> {
        let mut expected = parent;
        let mut hashes = Vec::with_capacity(self.headers.len());
        let mut root = None;
        for (index, header) in self.headers.iter().enumerate().rev() {
            let refuse = |what| WitnessError::InvalidHeader { index, what };
            if keccak256(header) != expected {
                return Err(refuse("does not have the hash that the header after it states"));
            }
            let fields = header_fields(header).ok_or_else(|| refuse("is no header"))?;
            hashes.push(expected);
            expected = fields.0;
            root.get_or_insert(fields.1);
        }
        hashes.reverse();
        let none = || WitnessError::InvalidHeader { index: 0, what: "is missing" };
        Ok((hashes, root.ok_or_else(none)?))
    }

    /// The witness as nodes do write it (`debug_executionWitness`).
    #[must_use]
    pub fn to_json(&self) -> Value {
        let list = |items: &[Bytes]| items.iter().map(hex::encode_prefixed).collect::<Vec<_>>();
        json!({
            "state": list(&self.state),
            "codes": list(&self.codes),
            "headers": list(&self.headers),
        })
    }

    /// Reads what [`to_json`](Self::to_json) writes. Other fields are passed over.
    ///
    /// # Errors
    /// [`WitnessError::InvalidJson`].
    pub fn from_json(value: &Value) -> std::result::Result<Self, WitnessError> {
        let list = |name: &str| {
            let invalid = || WitnessError::InvalidJson { what: name.to_owned() };
            let items = value.get(name).and_then(Value::as_array).ok_or_else(invalid)?;
            let item = |item: &Value| {
                let bytes = item.as_str().and_then(|text| hex::decode(text).ok());
                bytes.map(Bytes::from).ok_or_else(invalid)
            };
            items.iter().map(item).collect::<std::result::Result<Vec<_>, _>>()
        };
        Ok(Self::new(list("state")?, list("codes")?, list("headers")?))
    }
}

/// The hash of the parent, and the root of the state.
fn header_fields(mut header: &[u8]) -> Option<(B256, B256)> {
    let PayloadView::List(fields) = Header::decode_raw(&mut header).ok()? else { return None };
    let field = |at: usize| {
        let mut item: &[u8] = fields.get(at)?;
        let hash = B256::decode(&mut item).ok()?;
        item.is_empty().then_some(hash)
    };
    header.is_empty().then_some((field(PARENT_FIELD)?, field(STATE_ROOT_FIELD)?))
}
