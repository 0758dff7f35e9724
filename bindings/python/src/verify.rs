//! Proofs, checked against a root that the caller trusts. No store is needed, and no I/O is done.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use terrane::context::{Hash, KindedHash, Proof, Rules};
use terrane::mpt::{self, B256, Bytes};
use terrane::radix;

use crate::error::{Failure, Outcome};
use crate::input::{Piece, RowsIn};
use crate::rows::{Rows, gather};
use crate::states::{addresses_of, root_of};

/// Root of 32 bytes.
fn bytes32(root: &Piece<'_>) -> PyResult<[u8; 32]> {
    let root = <[u8; 32]>::try_from(root.bytes()?);
    Ok(root.map_err(|_| Failure::bad_input("a root has 32 bytes"))?)
}

#[pyfunction]
pub(crate) fn verify_radix_proof<'py>(
    py: Python<'py>,
    root: Bound<'py, PyAny>,
    proof: Bound<'py, PyAny>,
    addresses: Bound<'py, PyAny>,
) -> PyResult<Rows> {
    let root = root_of(&Piece::of(root)?)?;
    let (proof, rows) = (Piece::of(proof)?, RowsIn::of(&addresses)?);
    let (proof, rows) = (proof.bytes()?, rows.slices()?);
    let values = py.detach(|| -> Outcome<_> {
        let addresses = addresses_of(&rows)?;
        let values = radix::verify_proof(&root, proof, &addresses);
        let values = values.map_err(|error| Failure::proof(&error))?;
        Ok(gather(values.iter().map(Option::as_deref)))
    })?;
    Ok(Rows(values))
}

/// Verifier of a proof of one key.
type Verify = fn(B256, &[u8], &[Bytes]) -> Result<Option<Vec<u8>>, mpt::ProofError>;

fn verify_path<'py>(
    py: Python<'py>,
    root: Bound<'py, PyAny>,
    key: Bound<'py, PyAny>,
    nodes: Bound<'py, PyAny>,
    verify: Verify,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let root = B256::from(bytes32(&Piece::of(root)?)?);
    let (key, nodes) = (Piece::of(key)?, RowsIn::of(&nodes)?);
    let (key, nodes) = (key.bytes()?, nodes.slices()?);
    let value = py.detach(|| {
        let nodes: Vec<Bytes> = nodes.iter().map(|node| Bytes::copy_from_slice(node)).collect();
        verify(root, key, &nodes).map_err(|error| Failure::proof(&error))
    })?;
    Ok(value.map(|value| PyBytes::new(py, &value)))
}

#[pyfunction]
pub(crate) fn verify_mpt_proof<'py>(
    py: Python<'py>,
    root: Bound<'py, PyAny>,
    key: Bound<'py, PyAny>,
    nodes: Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    verify_path(py, root, key, nodes, mpt::verify_proof)
}

#[pyfunction]
pub(crate) fn verify_committed_proof<'py>(
    py: Python<'py>,
    root: Bound<'py, PyAny>,
    key: Bound<'py, PyAny>,
    nodes: Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    verify_path(py, root, key, nodes, mpt::CommittedTable::verify_proof)
}

#[pyfunction]
pub(crate) fn verify_context_proof<'py>(
    py: Python<'py>,
    root: Bound<'py, PyAny>,
    proof: Bound<'py, PyAny>,
    paths: Vec<String>,
) -> PyResult<Rows> {
    let root = bytes32(&Piece::of(root)?)?;
    let proof = Piece::of(proof)?;
    let proof = proof.bytes()?;
    let values = py.detach(|| -> Outcome<_> {
        let proof = Proof::decode(proof).map_err(|error| Failure::proof(&error))?;
        let root = KindedHash::directory(Hash(root));
        let verified = proof.verify(&Rules::TEZOS, root).map_err(|error| Failure::proof(&error))?;
        let mut values = Vec::with_capacity(paths.len());
        for path in &paths {
            let steps: Vec<&str> = path.split('/').filter(|step| !step.is_empty()).collect();
            // A proof that lacks the path proves nothing about it.
            values.push(verified.tree().find(&steps).map_err(|error| Failure::proof(&error))?);
        }
        Ok(gather(values.iter().map(Option::as_deref)))
    })?;
    Ok(Rows(values))
}
