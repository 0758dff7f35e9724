//! Descriptions of files and directories, as JSON.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use terrane::io::{Disk, RealDisk};
use terrane::{btree, lsm};

use crate::error::{Failure, Outcome};
use crate::reader::json;

#[pyfunction]
pub(crate) fn inspect_json(py: Python<'_>, path: PathBuf) -> PyResult<(&'static str, String)> {
    let described = py.detach(|| -> Outcome<_> {
        let disk: Arc<dyn Disk> = RealDisk::auto();
        if path.is_dir() && btree::inspect::is_index(&*disk, &path)? {
            return Ok(("btree", json(&btree::inspect::inspect(&disk, &path)?)?));
        }
        Ok(("lsm", json(&lsm::inspect::inspect(&disk, &path)?)?))
    });
    described.map_err(|failure: Failure| failure.into())
}
