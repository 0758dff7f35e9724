//! Tables with a root, and radix states.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use terrane::lsm::{self, WriteBatch};
use terrane::mpt;
use terrane::radix::{Address, Change, Form, NodeHash, Root, Tree};
use terrane::state_dir::{OpenOptions, OpenStore};

use crate::error::{Failure, Outcome};
use crate::input::{Piece, RowsIn};
use crate::rows::{Rows, gather};
use crate::table::{Table, durability_of, puts};

/// A table whose entries have a root.
#[pyclass(frozen, module = "terrane")]
#[derive(Debug)]
pub(crate) struct CommittedTable {
    store: lsm::Store,
    table: mpt::CommittedTable,
}

impl CommittedTable {
    pub(crate) fn open(py: Python<'_>, store: &lsm::Store, name: &str) -> PyResult<Self> {
        let table = py.detach(|| mpt::CommittedTable::open(store, name).map_err(Failure::from))?;
        Ok(Self { store: store.clone(), table })
    }
}

#[pymethods]
impl CommittedTable {
    #[getter]
    fn entries(&self, py: Python<'_>) -> PyResult<Py<Table>> {
        Table::make(py, &self.store, self.table.entries().clone())
    }

    fn root<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let root = py.detach(|| self.table.root().map_err(Failure::from))?;
        Ok(PyBytes::new(py, root.as_slice()))
    }

    #[pyo3(signature = (keys, values, deletes = None, *, sync = false))]
    fn commit<'py>(
        &self,
        py: Python<'py>,
        keys: Bound<'py, PyAny>,
        values: Bound<'py, PyAny>,
        deletes: Option<Bound<'py, PyAny>>,
        sync: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (keys, values) = (RowsIn::of(&keys)?, RowsIn::of(&values)?);
        let (keys, values) = (keys.slices()?, values.slices()?);
        puts(&keys, &values)?;
        let deletes = deletes.as_ref().map(RowsIn::of).transpose()?;
        let deletes = deletes.as_ref().map(RowsIn::slices).transpose()?.unwrap_or_default();
        let root = py.detach(|| -> Outcome<_> {
            let set =
                keys.iter().zip(&values).map(|(key, value)| (key.to_vec(), Some(value.to_vec())));
            let deleted = deletes.iter().map(|key| (key.to_vec(), None));
            let changes: Vec<_> = set.chain(deleted).collect();
            let mut batch = WriteBatch::new();
            let staged = self.table.stage(&changes, &mut batch)?;
            let ticket = self.store.write_if(&batch, staged.commit)?;
            if sync {
                ticket.wait()?;
            }
            Ok(staged.root)
        })?;
        Ok(PyBytes::new(py, root.as_slice()))
    }

    fn prove<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let key = Piece::of(key)?;
        let key = key.bytes()?;
        let nodes = py.detach(|| self.table.prove(key).map_err(Failure::from))?;
        Ok(nodes.iter().map(|node| PyBytes::new(py, node)).collect())
    }
}

/// Root of 32 bytes.
pub(crate) fn root_of(root: &Piece<'_>) -> PyResult<Root> {
    let root = <[u8; 32]>::try_from(root.bytes()?).map(NodeHash);
    Ok(root.map_err(|_| Failure::bad_input("a radix root has 32 bytes"))?)
}

/// Addresses from rows.
pub(crate) fn addresses_of(rows: &[&[u8]]) -> Outcome<Vec<Address>> {
    let addresses: Result<_, _> = rows.iter().map(|row| Address::new(row)).collect();
    addresses.map_err(|error| Failure::bad_input(error.to_string()))
}

/// A directory with a radix state.
#[pyclass(frozen, module = "terrane")]
#[derive(Debug)]
pub(crate) struct RadixState {
    store: Arc<OpenStore>,
}

#[pymethods]
impl RadixState {
    #[new]
    #[pyo3(signature = (path, *, durability = "each"))]
    fn open(py: Python<'_>, path: PathBuf, durability: &str) -> PyResult<Self> {
        let options = OpenOptions::default().durability(durability_of(durability)?);
        let store = py.detach(|| options.open_or_create(&path).map_err(Failure::from))?;
        Ok(Self { store: Arc::new(store) })
    }

    #[pyo3(signature = (name = "main"))]
    fn tree(&self, py: Python<'_>, name: &str) -> PyResult<RadixTree> {
        let tree = py.detach(|| self.store.tree_or_create(name).map_err(Failure::from))?;
        Ok(RadixTree { tree, _store: Arc::clone(&self.store) })
    }

    fn trees(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(py.detach(|| self.store.trees().map_err(Failure::from))?)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.store.close().map_err(Failure::from))?)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (_kind, _error, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Option<Bound<'_, PyAny>>,
        _error: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        self.close(py)?;
        Ok(false)
    }
}

/// A named tree of a radix state.
#[pyclass(frozen, module = "terrane")]
#[derive(Debug)]
pub(crate) struct RadixTree {
    tree: Tree,
    /// Keeps the lock of the directory.
    _store: Arc<OpenStore>,
}

#[pymethods]
impl RadixTree {
    #[classattr]
    const EMPTY_ROOT: [u8; 32] = Root::EMPTY.0;

    #[pyo3(signature = (parent, addresses, values, deletes = None))]
    fn commit<'py>(
        &self,
        py: Python<'py>,
        parent: Bound<'py, PyAny>,
        addresses: Bound<'py, PyAny>,
        values: Bound<'py, PyAny>,
        deletes: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let parent = root_of(&Piece::of(parent)?)?;
        let (keys, values) = (RowsIn::of(&addresses)?, RowsIn::of(&values)?);
        let (keys, values) = (keys.slices()?, values.slices()?);
        puts(&keys, &values)?;
        let deletes = deletes.as_ref().map(RowsIn::of).transpose()?;
        let deletes = deletes.as_ref().map(RowsIn::slices).transpose()?.unwrap_or_default();
        let root = py.detach(|| -> Outcome<_> {
            let set = addresses_of(&keys)?.into_iter().zip(&values);
            let mut changes: Vec<_> =
                set.map(|(address, value)| Change::Set(address, value.to_vec())).collect();
            changes.extend(addresses_of(&deletes)?.into_iter().map(Change::Delete));
            Ok(self.tree.commit(&parent, &changes)?.root)
        })?;
        Ok(PyBytes::new(py, &root.0))
    }

    fn get_many<'py>(
        &self,
        py: Python<'py>,
        root: Bound<'py, PyAny>,
        addresses: Bound<'py, PyAny>,
    ) -> PyResult<Rows> {
        let root = root_of(&Piece::of(root)?)?;
        let rows = RowsIn::of(&addresses)?;
        let rows = rows.slices()?;
        let values = py.detach(|| -> Outcome<_> {
            let values = self.tree.get(&root, &addresses_of(&rows)?)?;
            Ok(gather(values.iter().map(Option::as_deref)))
        })?;
        Ok(Rows(values))
    }

    #[pyo3(signature = (root, addresses, *, compact = true))]
    fn prove<'py>(
        &self,
        py: Python<'py>,
        root: Bound<'py, PyAny>,
        addresses: Bound<'py, PyAny>,
        compact: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let root = root_of(&Piece::of(root)?)?;
        let rows = RowsIn::of(&addresses)?;
        let rows = rows.slices()?;
        let form = if compact { Form::Compact } else { Form::Full };
        let proof = py.detach(|| -> Outcome<_> {
            Ok(self.tree.prove(&root, &addresses_of(&rows)?)?.to_bytes(form))
        })?;
        Ok(PyBytes::new(py, &proof))
    }

    fn roots<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let versions = py.detach(|| self.tree.versions().map_err(Failure::from))?;
        Ok(versions.iter().map(|version| PyBytes::new(py, &version.root.0)).collect())
    }

    fn prune<'py>(&self, py: Python<'py>, root: Bound<'py, PyAny>) -> PyResult<()> {
        let root = root_of(&Piece::of(root)?)?;
        Ok(py.detach(|| self.tree.prune(&root).map(drop).map_err(Failure::from))?)
    }
}
