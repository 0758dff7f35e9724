//! The JSON shape of `eth_getProof`.
//!
//! An account that does not exist has zero nonce and balance, and the hashes of no storage and no
//! code. Other clients write zero hashes there, which are read as well.

use std::str::FromStr;

use alloy_primitives::{B256, Bytes, U256, hex};
use serde_json::{Map, Value, json};

use crate::base::account::Account;
use crate::base::proof_error::ProofError;
use crate::proof::account_proof::{AccountProof, SlotProof};

impl AccountProof {
    /// The proof as the result of `eth_getProof`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let account = self.account.unwrap_or_default();
        let slot = |slot: &SlotProof| {
            json!({
                "key": quantity(U256::from_be_bytes(slot.slot.0)),
                "value": quantity(slot.value),
                "proof": nodes(&slot.nodes),
            })
        };
        json!({
            "address": hex::encode_prefixed(self.address),
            "accountProof": nodes(&self.nodes),
            "balance": quantity(account.balance),
            "codeHash": account.code_hash.to_string(),
            "nonce": quantity(U256::from(account.nonce)),
            "storageHash": account.storage_root.to_string(),
            "storageProof": self.slots.iter().map(slot).collect::<Vec<_>>(),
        })
    }

    /// Reads the result of `eth_getProof`. Whether the account exists is what the nodes say; the
    /// fields of an account that does not exist must be those of an empty one.
    ///
    /// # Errors
    /// [`ProofError::InvalidJson`].
    pub fn from_json(value: &Value) -> Result<Self, ProofError> {
        let object = value.as_object().ok_or_else(|| invalid("not an object"))?;
        let account = Account::new(number(object, "nonce")?, number(object, "balance")?)
            .storage_root(hash(object, "storageHash")?)
            .code_hash(hash(object, "codeHash")?);

        let slots = list(object, "storageProof")?.iter().map(|slot| {
            let slot = slot.as_object().ok_or_else(|| invalid("storageProof"))?;
            Ok(SlotProof {
                slot: B256::from(number::<U256>(slot, "key")?),
                value: number(slot, "value")?,
                nodes: node_list(slot, "proof")?,
            })
        });
        let nothing = Account::default();
        let zeros = nothing.storage_root(B256::ZERO).code_hash(B256::ZERO);
        let mut proof = Self {
            address: parse(object, "address")?,
            account: Some(account),
            nodes: node_list(object, "accountProof")?,
            slots: slots.collect::<Result<_, ProofError>>()?,
        };
        if (account == nothing || account == zeros) && proof.is_of_absence() {
            proof.account = None;
        }
        Ok(proof)
    }

    /// Whether the nodes end without an account, if they are sound.
    fn is_of_absence(&self) -> bool {
        let key = alloy_primitives::keccak256(self.address);
        let Some(root) = self.nodes.first().map(alloy_primitives::keccak256) else { return true };
        let value = crate::proof::walk::verify_proof(root, key.as_slice(), &self.nodes);
        matches!(value, Ok(None))
    }
}

fn nodes(nodes: &[Bytes]) -> Vec<String> {
    nodes.iter().map(hex::encode_prefixed).collect()
}

fn quantity(number: U256) -> String {
    format!("{number:#x}")
}

fn invalid(what: &str) -> ProofError {
    ProofError::InvalidJson { what: what.to_owned() }
}

fn field<'o>(object: &'o Map<String, Value>, name: &str) -> Result<&'o str, ProofError> {
    object.get(name).and_then(Value::as_str).ok_or_else(|| invalid(name))
}

fn parse<T: FromStr>(object: &Map<String, Value>, name: &str) -> Result<T, ProofError> {
    field(object, name)?.parse().map_err(|_| invalid(name))
}

fn hash(object: &Map<String, Value>, name: &str) -> Result<B256, ProofError> {
    parse(object, name)
}

/// A hexadecimal number, with leading zeros or without.
fn number<T: TryFrom<U256>>(object: &Map<String, Value>, name: &str) -> Result<T, ProofError> {
    let digits = field(object, name)?.strip_prefix("0x").ok_or_else(|| invalid(name))?;
    let number = U256::from_str_radix(digits, 16).map_err(|_| invalid(name))?;
    if digits.is_empty() {
        return Err(invalid(name));
    }
    T::try_from(number).map_err(|_| invalid(name))
}

fn list<'o>(object: &'o Map<String, Value>, name: &str) -> Result<&'o Vec<Value>, ProofError> {
    object.get(name).and_then(Value::as_array).ok_or_else(|| invalid(name))
}

fn node_list(object: &Map<String, Value>, name: &str) -> Result<Vec<Bytes>, ProofError> {
    let node = |node: &Value| {
        let bytes = node.as_str().and_then(|text| hex::decode(text).ok());
        bytes.map(Bytes::from).ok_or_else(|| invalid(name))
    };
    list(object, name)?.iter().map(node).collect()
}
