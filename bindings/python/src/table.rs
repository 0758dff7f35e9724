//! Named tables, views, and forks.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use terrane::lsm::{self, Durability, Lookup, NamedTable, SnapshotName, Ticket, Update};

use crate::error::{Failure, Outcome};
use crate::input::{Piece, RowsIn};
use crate::reader::{Reader, Source};
use crate::scan::lock;

/// Durability of a name.
pub(crate) fn durability_of(name: &str) -> PyResult<Durability> {
    match name {
        "none" => Ok(Durability::None),
        "buffered" => Ok(Durability::Buffered),
        "group" => Ok(Durability::Group),
        "each" => Ok(Durability::Each),
        _ => {
            let rule = format!("{name:?} is no durability: none, buffered, group or each");
            Err(PyValueError::new_err(rule))
        }
    }
}

/// The number of a commit, which is durable if the caller wishes.
pub(crate) fn commit_of(ticket: &Ticket, sync: bool) -> Outcome<u64> {
    if sync {
        ticket.wait()?;
    }
    Ok(ticket.commit())
}

/// Updates that set values.
pub(crate) fn puts<'a>(
    keys: &[&'a [u8]],
    values: &[&'a [u8]],
) -> PyResult<Vec<(&'a [u8], Update<'a>)>> {
    if keys.len() != values.len() {
        let rule = format!("{} keys and {} values", keys.len(), values.len());
        return Err(PyValueError::new_err(rule));
    }
    let pairs = keys.iter().zip(values);
    Ok(pairs.map(|(key, value)| (*key, Update::Insert(value))).collect())
}

/// Updates that remove keys.
pub(crate) fn deletions<'a>(keys: &[&'a [u8]]) -> Vec<(&'a [u8], Update<'a>)> {
    keys.iter().map(|key| (*key, Update::Delete)).collect()
}

/// A table as of one commit.
#[pyclass(frozen, extends = Reader, module = "terrane")]
#[derive(Debug)]
pub(crate) struct View;

impl View {
    pub(crate) fn make(py: Python<'_>, view: Arc<lsm::Table>) -> PyResult<Py<Self>> {
        Py::new(py, (Self, Reader::new(Source::View(view))))
    }
}

#[pymethods]
impl View {
    fn __repr__(&self) -> &'static str {
        "<terrane.View>"
    }
}

/// A named table.
#[pyclass(frozen, extends = Reader, module = "terrane")]
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) named: NamedTable,
    store: lsm::Store,
}

impl Table {
    pub(crate) fn make(
        py: Python<'_>,
        store: &lsm::Store,
        named: NamedTable,
    ) -> PyResult<Py<Self>> {
        let reader = Reader::new(Source::Named(named.clone()));
        Py::new(py, (Self { named, store: store.clone() }, reader))
    }

    fn write(&self, py: Python<'_>, updates: &[(&[u8], Update<'_>)], sync: bool) -> PyResult<u64> {
        Ok(py.detach(|| commit_of(&self.named.write_batch(updates)?, sync))?)
    }

    /// Removes a key that is there, and returns what was found. Of several threads that take a key
    /// one finds it.
    fn take(&self, py: Python<'_>, key: Bound<'_, PyAny>) -> PyResult<Lookup> {
        let key = Piece::of(key)?;
        let key = key.bytes()?;
        Ok(py.detach(|| {
            loop {
                let transaction = self.store.transaction()?;
                let found = transaction.get(&self.named, key)?;
                if !found.is_found() {
                    return Ok::<_, Failure>(found);
                }
                transaction.delete(&self.named, key)?;
                match transaction.commit() {
                    // Another commit has changed the key, so somebody gets on.
                    Err(lsm::Error::Conflict(_)) => std::thread::yield_now(),
                    committed => {
                        drop(committed?);
                        return Ok(found);
                    }
                }
            }
        })?)
    }
}

#[pymethods]
impl Table {
    #[getter]
    fn name(&self) -> &str {
        self.named.name().as_str()
    }

    fn __setitem__<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        self.put(py, key, value, false).map(drop)
    }

    fn __delitem__<'py>(&self, py: Python<'py>, key: Bound<'py, PyAny>) -> PyResult<()> {
        let was_there = self.take(py, key.clone())?.is_found();
        if was_there { Ok(()) } else { Err(PyKeyError::new_err(key.unbind())) }
    }

    #[pyo3(signature = (key, value, *, sync = false))]
    fn put<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
        sync: bool,
    ) -> PyResult<u64> {
        let (key, value) = (Piece::of(key)?, Piece::of(value)?);
        let (key, value) = (key.bytes()?, value.bytes()?);
        Ok(py.detach(|| commit_of(&self.named.insert(key, value)?, sync))?)
    }

    #[pyo3(signature = (key, *, sync = false))]
    fn delete<'py>(&self, py: Python<'py>, key: Bound<'py, PyAny>, sync: bool) -> PyResult<u64> {
        let key = Piece::of(key)?;
        let key = key.bytes()?;
        Ok(py.detach(|| commit_of(&self.named.delete(key)?, sync))?)
    }

    #[pyo3(signature = (keys, values, *, sync = false))]
    fn put_many<'py>(
        &self,
        py: Python<'py>,
        keys: Bound<'py, PyAny>,
        values: Bound<'py, PyAny>,
        sync: bool,
    ) -> PyResult<u64> {
        let (keys, values) = (RowsIn::of(&keys)?, RowsIn::of(&values)?);
        self.write(py, &puts(&keys.slices()?, &values.slices()?)?, sync)
    }

    #[pyo3(signature = (keys, *, sync = false))]
    fn delete_many<'py>(
        &self,
        py: Python<'py>,
        keys: Bound<'py, PyAny>,
        sync: bool,
    ) -> PyResult<u64> {
        let keys = RowsIn::of(&keys)?;
        self.write(py, &deletions(&keys.slices()?), sync)
    }

    #[pyo3(signature = (start, stop = None, *, sync = false))]
    fn delete_range<'py>(
        &self,
        py: Python<'py>,
        start: Bound<'py, PyAny>,
        stop: Option<Bound<'py, PyAny>>,
        sync: bool,
    ) -> PyResult<u64> {
        let (start, stop) = (Piece::of(start)?, stop.map(Piece::of).transpose()?);
        let stop = stop.as_ref().map(Piece::bytes).transpose()?;
        self.write(py, &[(start.bytes()?, Update::DeleteRange(stop))], sync)
    }

    #[pyo3(signature = (key, *default))]
    fn pop<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
        default: Bound<'py, pyo3::types::PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let found = self.take(py, key.clone())?;
        match found.value() {
            Some(value) => Ok(PyBytes::new(py, value).into_any()),
            None if default.len() == 1 => default.get_item(0),
            None => Err(PyKeyError::new_err(key.unbind())),
        }
    }

    fn view(&self, py: Python<'_>) -> PyResult<Py<View>> {
        View::make(py, py.detach(|| self.named.view().map_err(Failure::from))?)
    }

    fn fork(&self, py: Python<'_>) -> PyResult<Py<Fork>> {
        Fork::make(py, py.detach(|| self.named.fork().map_err(Failure::from))?)
    }

    #[pyo3(signature = (name, label = ""))]
    fn save_snapshot(&self, py: Python<'_>, name: &str, label: &str) -> PyResult<()> {
        Ok(py.detach(|| {
            let name = SnapshotName::new(name)?;
            Ok::<_, Failure>(self.named.save_snapshot(&name, label)?)
        })?)
    }

    fn __repr__(&self) -> String {
        format!("<terrane.Table {:?}>", self.named.name().as_str())
    }
}

/// A fork: entries of a table, which go their own way.
#[pyclass(frozen, extends = Reader, module = "terrane")]
#[derive(Debug)]
pub(crate) struct Fork {
    pub(crate) table: Arc<Mutex<lsm::Table>>,
}

impl Fork {
    fn make(py: Python<'_>, table: lsm::Table) -> PyResult<Py<Self>> {
        let table = Arc::new(Mutex::new(table));
        let reader = Reader::new(Source::Fork(Arc::clone(&table)));
        Py::new(py, (Self { table }, reader))
    }

    fn write(&self, py: Python<'_>, updates: &[(&[u8], Update<'_>)]) -> PyResult<()> {
        Ok(py.detach(|| lock(&self.table).write_batch(updates).map_err(Failure::from))?)
    }
}

#[pymethods]
impl Fork {
    fn put_many<'py>(
        &self,
        py: Python<'py>,
        keys: Bound<'py, PyAny>,
        values: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let (keys, values) = (RowsIn::of(&keys)?, RowsIn::of(&values)?);
        self.write(py, &puts(&keys.slices()?, &values.slices()?)?)
    }

    fn delete_many<'py>(&self, py: Python<'py>, keys: Bound<'py, PyAny>) -> PyResult<()> {
        let keys = RowsIn::of(&keys)?;
        self.write(py, &deletions(&keys.slices()?))
    }

    fn __setitem__<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let (key, value) = (Piece::of(key)?, Piece::of(value)?);
        self.write(py, &[(key.bytes()?, Update::Insert(value.bytes()?))])
    }

    fn fork(&self, py: Python<'_>) -> PyResult<Py<Self>> {
        Self::make(py, py.detach(|| lock(&self.table).fork().map_err(Failure::from))?)
    }

    #[pyo3(signature = (name, label = ""))]
    fn save_snapshot(&self, py: Python<'_>, name: &str, label: &str) -> PyResult<()> {
        Ok(py.detach(|| {
            let name = SnapshotName::new(name)?;
            Ok::<_, Failure>(lock(&self.table).save_snapshot(&name, label)?)
        })?)
    }

    fn __repr__(&self) -> &'static str {
        "<terrane.Fork>"
    }
}
