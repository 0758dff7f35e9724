//! Stores.

use std::path::PathBuf;

use pyo3::prelude::*;
use terrane::lsm::{self, BackupPlace, SnapshotName, StoreOptions, TableConfig, TableName};

use crate::batch::{Batch, Transaction};
use crate::error::Failure;
use crate::reader::json;
use crate::scan::lock;
use crate::states::CommittedTable;
use crate::table::{Fork, Table, View, durability_of};

/// A directory of named tables.
#[pyclass(frozen, subclass, module = "terrane")]
#[derive(Debug)]
pub(crate) struct Store {
    store: lsm::Store,
}

impl Store {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&lsm::Store) -> lsm::Result<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| body(&self.store).map_err(Failure::from))?)
    }
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (path, *, create = true, durability = "group", memory_budget = None))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        create: bool,
        durability: &str,
        memory_budget: Option<u64>,
    ) -> PyResult<Self> {
        let durability = durability_of(durability)?;
        let mut options =
            StoreOptions::default().durability(durability).memory_budget(memory_budget);
        if create {
            options = options.create_dir();
        }
        let store = py.detach(|| lsm::Store::open_dir(&path, &options).map_err(Failure::from))?;
        Ok(Self { store })
    }

    #[pyo3(signature = (name = "main", *, create = true))]
    fn table(&self, py: Python<'_>, name: &str, create: bool) -> PyResult<Py<Table>> {
        let table = self.call(py, |store| {
            let name = TableName::new(name)?;
            if create {
                store.table_or_create(&name, &TableConfig::default())
            } else {
                store.table(&name)
            }
        })?;
        Table::make(py, &self.store, table)
    }

    fn tables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let tables = self.call(py, lsm::Store::tables)?;
        Ok(tables.iter().map(|table| table.name.to_string()).collect())
    }

    fn drop_table(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, |store| store.drop_table(name))
    }

    fn rename_table(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        self.call(py, |store| store.rename_table(&TableName::new(old)?, &TableName::new(new)?))
    }

    fn install(&self, py: Python<'_>, name: &str, fork: &Fork) -> PyResult<Py<Table>> {
        let table = self.call(py, |store| store.install(name, &lock(&fork.table)))?;
        Table::make(py, &self.store, table)
    }

    fn committed_table(&self, py: Python<'_>, name: &str) -> PyResult<CommittedTable> {
        CommittedTable::open(py, &self.store, name)
    }

    #[pyo3(signature = (*, sync = false))]
    fn batch(&self, sync: bool) -> Batch {
        Batch::new(self.store.clone(), sync)
    }

    #[pyo3(signature = (*, sync = false))]
    fn transaction(&self, py: Python<'_>, sync: bool) -> PyResult<Transaction> {
        Ok(Transaction::new(self.call(py, lsm::Store::transaction)?, sync))
    }

    #[getter]
    fn last_commit(&self) -> u64 {
        self.store.last_commit()
    }

    #[getter]
    fn durable_commit(&self) -> u64 {
        self.store.durable_commit()
    }

    #[pyo3(signature = (commit = None))]
    fn sync(&self, py: Python<'_>, commit: Option<u64>) -> PyResult<()> {
        self.call(py, |store| match commit {
            Some(commit) => store.sync_to(commit),
            None => store.sync(),
        })
    }

    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, lsm::Store::checkpoint)
    }

    fn compact(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |store| store.compact(&mut |_, _| {}))
    }

    #[pyo3(signature = (name, label = ""))]
    fn open_snapshot(&self, py: Python<'_>, name: &str, label: &str) -> PyResult<Py<View>> {
        let table =
            self.call(py, |store| store.session().open_snapshot(&SnapshotName::new(name)?, label))?;
        View::make(py, table.into())
    }

    fn snapshots(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let names = self.call(py, |store| store.session().list_snapshots())?;
        Ok(names.iter().map(ToString::to_string).collect())
    }

    fn delete_snapshot(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, |store| store.session().delete_snapshot(&SnapshotName::new(name)?))
    }

    #[pyo3(signature = (name = None))]
    fn retain(&self, py: Python<'_>, name: Option<&str>) -> PyResult<u64> {
        self.call(py, |store| {
            let name = name.map(SnapshotName::new).transpose()?;
            store.retain(name.as_ref())
        })
    }

    fn release(&self, py: Python<'_>, version: u64) -> PyResult<()> {
        self.call(py, |store| store.release(version))
    }

    fn versions(&self, py: Python<'_>) -> PyResult<Vec<(u64, Option<String>, Vec<String>)>> {
        let versions = self.call(py, lsm::Store::versions)?;
        let version = |version: &lsm::VersionInfo| {
            let tables = version.tables.iter().map(ToString::to_string).collect();
            (version.number, version.name.as_ref().map(ToString::to_string), tables)
        };
        Ok(versions.iter().map(version).collect())
    }

    #[pyo3(signature = (version, table = "main"))]
    fn version(&self, py: Python<'_>, version: u64, table: &str) -> PyResult<Py<View>> {
        View::make(py, self.call(py, |store| store.version(version)?.table(table))?)
    }

    fn roll_back(&self, py: Python<'_>, version: u64) -> PyResult<u64> {
        self.call(py, |store| store.roll_back(version))
    }

    fn back_up_json(&self, py: Python<'_>, path: PathBuf) -> PyResult<String> {
        let report =
            self.call(py, |store| store.back_up(&BackupPlace::new(path), &mut |_, _| {}))?;
        Ok(json(&report)?)
    }

    fn stats_json(&self) -> PyResult<String> {
        Ok(json(&self.store.session().stats())?)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, lsm::Store::close)
    }
}
