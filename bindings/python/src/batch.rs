//! Write batches and transactions, as context managers: they commit at the end of their block, and
//! do nothing if the block fails.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use terrane::lsm::{self, WriteBatch};

use crate::error::{Failure, Outcome};
use crate::input::{Piece, RowsIn};
use crate::rows::{Rows, gather};
use crate::scan::lock;
use crate::table::{Table, commit_of, deletions, puts};

/// Updates of any tables of one store, committed together.
#[pyclass(frozen, module = "terrane")]
#[derive(Debug)]
pub(crate) struct Batch {
    store: lsm::Store,
    sync: bool,
    batch: Mutex<WriteBatch>,
}

impl Batch {
    pub(crate) fn new(store: lsm::Store, sync: bool) -> Self {
        Self { store, sync, batch: Mutex::default() }
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        lock(&self.batch).len()
    }

    fn put<'py>(
        &self,
        table: &Table,
        key: Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let (key, value) = (Piece::of(key)?, Piece::of(value)?);
        lock(&self.batch).insert(&table.named, key.bytes()?, value.bytes()?);
        Ok(())
    }

    fn delete<'py>(&self, table: &Table, key: Bound<'py, PyAny>) -> PyResult<()> {
        lock(&self.batch).delete(&table.named, Piece::of(key)?.bytes()?);
        Ok(())
    }

    fn put_many<'py>(
        &self,
        table: &Table,
        keys: Bound<'py, PyAny>,
        values: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let (keys, values) = (RowsIn::of(&keys)?, RowsIn::of(&values)?);
        let (keys, values) = (keys.slices()?, values.slices()?);
        // Refuses a different number of each before anything is taken.
        puts(&keys, &values)?;
        let mut batch = lock(&self.batch);
        for (key, value) in keys.iter().zip(values) {
            batch.insert(&table.named, key, value);
        }
        Ok(())
    }

    fn delete_many<'py>(&self, table: &Table, keys: Bound<'py, PyAny>) -> PyResult<()> {
        let keys = RowsIn::of(&keys)?;
        let keys = keys.slices()?;
        let mut batch = lock(&self.batch);
        for (key, _) in deletions(&keys) {
            batch.delete(&table.named, key);
        }
        Ok(())
    }

    fn clear(&self) {
        lock(&self.batch).clear();
    }

    #[pyo3(signature = (*, sync = None, if_last_commit = None))]
    fn commit(
        &self,
        py: Python<'_>,
        sync: Option<bool>,
        if_last_commit: Option<u64>,
    ) -> PyResult<u64> {
        Ok(py.detach(|| {
            let mut batch = lock(&self.batch);
            let ticket = match if_last_commit {
                Some(last) => self.store.write_if(&batch, last)?,
                None => self.store.write(&batch)?,
            };
            // What is committed is not committed again by the end of a block.
            batch.clear();
            drop(batch);
            commit_of(&ticket, sync.unwrap_or(self.sync))
        })?)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, _error, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _error: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        if kind.is_none() && self.__len__() > 0 {
            self.commit(py, None, None)?;
        }
        self.clear();
        Ok(false)
    }
}

/// An optimistic transaction.
#[pyclass(frozen, module = "terrane")]
#[derive(Debug)]
pub(crate) struct Transaction {
    transaction: Mutex<Option<lsm::Transaction>>,
    sync: bool,
}

impl Transaction {
    pub(crate) fn new(transaction: lsm::Transaction, sync: bool) -> Self {
        Self { transaction: Mutex::new(Some(transaction)), sync }
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&lsm::Transaction) -> lsm::Result<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| {
            let held = lock(&self.transaction);
            Ok::<_, Failure>(body(held.as_ref().ok_or_else(ended)?)?)
        })?)
    }
}

fn ended() -> Failure {
    Failure::bad_input("this transaction has ended")
}

#[pymethods]
impl Transaction {
    #[pyo3(signature = (table, key, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        table: &Table,
        key: Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let key = Piece::of(key)?;
        let key = key.bytes()?;
        let found = self.with(py, |transaction| transaction.get(&table.named, key))?;
        Ok(found.value().map(|value| PyBytes::new(py, value).into_any()).or(default))
    }

    fn get_many<'py>(
        &self,
        py: Python<'py>,
        table: &Table,
        keys: Bound<'py, PyAny>,
    ) -> PyResult<Rows> {
        let keys = RowsIn::of(&keys)?;
        let keys = keys.slices()?;
        let rows = self.with(py, |transaction| {
            let lookups = transaction.get_many(&table.named, &keys)?;
            Ok(gather(lookups.iter().map(lsm::Lookup::value)))
        })?;
        Ok(Rows(rows))
    }

    fn put<'py>(
        &self,
        py: Python<'py>,
        table: &Table,
        key: Bound<'py, PyAny>,
        value: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let (key, value) = (Piece::of(key)?, Piece::of(value)?);
        let (key, value) = (key.bytes()?, value.bytes()?);
        self.with(py, |transaction| transaction.insert(&table.named, key, value))
    }

    fn delete<'py>(&self, py: Python<'py>, table: &Table, key: Bound<'py, PyAny>) -> PyResult<()> {
        let key = Piece::of(key)?;
        let key = key.bytes()?;
        self.with(py, |transaction| transaction.delete(&table.named, key))
    }

    #[pyo3(signature = (*, sync = None))]
    fn commit(&self, py: Python<'_>, sync: Option<bool>) -> PyResult<u64> {
        Ok(py.detach(|| -> Outcome<u64> {
            let transaction = lock(&self.transaction).take().ok_or_else(ended)?;
            commit_of(&transaction.commit()?, sync.unwrap_or(self.sync))
        })?)
    }

    fn rollback(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.transaction).take()));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, _error, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _error: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let is_open = py.detach(|| lock(&self.transaction).is_some());
        if kind.is_none() && is_open {
            self.commit(py, None)?;
        }
        self.rollback(py);
        Ok(false)
    }
}
