//! Lookups and scans, the same for tables, views, versions, snapshots and forks.

use std::ops::Bound as End;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use terrane::lsm::{self, Cursor, Lookup, NamedTable, Values};

use crate::error::{Failure, Outcome};
use crate::input::{Piece, RowsIn};
use crate::rows::{Rows, rows_of};
use crate::scan::{Changes, Chunks, Items, Part, lock};

/// Source of entries.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A named table, as of its last commit.
    Named(NamedTable),
    /// A table as of one commit.
    View(Arc<lsm::Table>),
    /// A fork, which changes.
    Fork(Arc<Mutex<lsm::Table>>),
}

impl Source {
    /// The entries as they are now, unchanged by what comes.
    pub(crate) fn view(&self) -> Outcome<Arc<lsm::Table>> {
        Ok(match self {
            Self::Named(table) => table.view()?,
            Self::View(view) => Arc::clone(view),
            Self::Fork(fork) => Arc::new(lock(fork).fork()?),
        })
    }

    pub(crate) fn get(&self, key: &[u8]) -> Outcome<Lookup> {
        Ok(match self {
            Self::Named(table) => table.get(key)?,
            Self::View(view) => view.get(key)?,
            Self::Fork(fork) => lock(fork).get(key)?,
        })
    }

    fn get_many(&self, keys: &[&[u8]], values: &mut Values) -> Outcome<()> {
        Ok(match self {
            Self::Named(table) => table.get_many_into(keys, values)?,
            Self::View(view) => view.get_many_into(keys, values)?,
            Self::Fork(fork) => lock(fork).get_many_into(keys, values)?,
        })
    }

    fn cursor(&self, range: &Range<'_>) -> Outcome<Cursor> {
        let view = self.view()?;
        Ok(match *range {
            Range::Prefix(prefix) => view.prefix(prefix)?,
            Range::Between(from, to) => view.range::<[u8], _>((from, to))?,
        })
    }
}

/// Keys of a scan.
enum Range<'a> {
    Prefix(&'a [u8]),
    Between(End<&'a [u8]>, End<&'a [u8]>),
}

/// Bounds of a scan from Python.
struct Bounds<'py> {
    start: Option<Piece<'py>>,
    stop: Option<Piece<'py>>,
    prefix: Option<Piece<'py>>,
}

impl<'py> Bounds<'py> {
    fn of(
        start: Option<Bound<'py, PyAny>>,
        stop: Option<Bound<'py, PyAny>>,
        prefix: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        if prefix.is_some() && (start.is_some() || stop.is_some()) {
            return Err(PyValueError::new_err("give a prefix, or start and stop"));
        }
        let piece = |object: Option<_>| object.map(Piece::of).transpose();
        Ok(Self { start: piece(start)?, stop: piece(stop)?, prefix: piece(prefix)? })
    }

    fn range(&self) -> PyResult<Range<'_>> {
        if let Some(prefix) = &self.prefix {
            return Ok(Range::Prefix(prefix.bytes()?));
        }
        let from = match &self.start {
            Some(start) => End::Included(start.bytes()?),
            None => End::Unbounded,
        };
        let to = match &self.stop {
            Some(stop) => End::Excluded(stop.bytes()?),
            None => End::Unbounded,
        };
        Ok(Range::Between(from, to))
    }
}

/// Anything that has entries.
#[pyclass(frozen, subclass, module = "terrane")]
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) source: Source,
}

impl Reader {
    pub(crate) fn new(source: Source) -> Self {
        Self { source }
    }

    pub(crate) fn get_one(&self, py: Python<'_>, key: &Piece<'_>) -> PyResult<Lookup> {
        let key = key.bytes()?;
        Ok(py.detach(|| self.source.get(key))?)
    }

    fn scan_items(
        &self,
        py: Python<'_>,
        bounds: &Bounds<'_>,
        kind: (Part, bool),
    ) -> PyResult<Items> {
        Ok(Items::new(self.cursor(py, bounds)?, kind.0, kind.1))
    }

    fn cursor(&self, py: Python<'_>, bounds: &Bounds<'_>) -> PyResult<Cursor> {
        let range = bounds.range()?;
        Ok(py.detach(|| self.source.cursor(&range))?)
    }
}

#[pymethods]
impl Reader {
    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.get_one(py, &Piece::of(key.clone())?)?;
        match found.value() {
            Some(value) => Ok(PyBytes::new(py, value)),
            None => Err(PyKeyError::new_err(key.unbind())),
        }
    }

    fn __contains__<'py>(&self, py: Python<'py>, key: Bound<'py, PyAny>) -> PyResult<bool> {
        Ok(self.get_one(py, &Piece::of(key)?)?.is_found())
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Items> {
        self.scan_items(py, &Bounds::of(None, None, None)?, (Part::Keys, false))
    }

    #[pyo3(signature = (key, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.get_one(py, &Piece::of(key)?)?;
        Ok(found.value().map(|value| PyBytes::new(py, value).into_any()).or(default))
    }

    fn get_many<'py>(&self, py: Python<'py>, keys: Bound<'py, PyAny>) -> PyResult<Rows> {
        let rows = RowsIn::of(&keys)?;
        let keys = rows.slices()?;
        let answers = py.detach(|| {
            // Memory of a small batch comes at once; a guess, since no value is known yet.
            let mut values = Values::with_capacity(keys.len(), (keys.len() * 64).min(1 << 16));
            self.source.get_many(&keys, &mut values)?;
            Ok::<_, Failure>(rows_of(values))
        })?;
        Ok(Rows(answers))
    }

    #[pyo3(signature = (start = None, stop = None, *, prefix = None, reverse = false))]
    fn keys<'py>(
        &self,
        py: Python<'py>,
        start: Option<Bound<'py, PyAny>>,
        stop: Option<Bound<'py, PyAny>>,
        prefix: Option<Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Items> {
        self.scan_items(py, &Bounds::of(start, stop, prefix)?, (Part::Keys, reverse))
    }

    #[pyo3(signature = (start = None, stop = None, *, prefix = None, reverse = false))]
    fn values<'py>(
        &self,
        py: Python<'py>,
        start: Option<Bound<'py, PyAny>>,
        stop: Option<Bound<'py, PyAny>>,
        prefix: Option<Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Items> {
        self.scan_items(py, &Bounds::of(start, stop, prefix)?, (Part::Values, reverse))
    }

    #[pyo3(signature = (start = None, stop = None, *, prefix = None, reverse = false))]
    fn items<'py>(
        &self,
        py: Python<'py>,
        start: Option<Bound<'py, PyAny>>,
        stop: Option<Bound<'py, PyAny>>,
        prefix: Option<Bound<'py, PyAny>>,
        reverse: bool,
    ) -> PyResult<Items> {
        self.scan_items(py, &Bounds::of(start, stop, prefix)?, (Part::Items, reverse))
    }

    #[pyo3(signature = (start = None, stop = None, *, prefix = None, rows = 4096, max_bytes = 1 << 20))]
    fn scan_chunks<'py>(
        &self,
        py: Python<'py>,
        start: Option<Bound<'py, PyAny>>,
        stop: Option<Bound<'py, PyAny>>,
        prefix: Option<Bound<'py, PyAny>>,
        rows: usize,
        max_bytes: usize,
    ) -> PyResult<Chunks> {
        if rows == 0 || max_bytes == 0 {
            return Err(PyValueError::new_err("a chunk has at least one row and one byte"));
        }
        let bounds = Bounds::of(start, stop, prefix)?;
        Ok(Chunks::new(self.cursor(py, &bounds)?, rows, max_bytes))
    }

    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| Ok::<_, Failure>(self.source.view()?.count_exact()?))?)
    }

    fn digest(&self, py: Python<'_>) -> PyResult<(u64, String)> {
        let summary = py.detach(|| {
            let view = self.source.view()?;
            Ok::<_, Failure>(view.export_canonical(std::io::sink())?)
        })?;
        Ok((summary.count, hex(&summary.digest)))
    }

    fn diff(&self, py: Python<'_>, newer: &Reader) -> PyResult<Changes> {
        let diff = py.detach(|| {
            let (older, newer) = (self.source.view()?, newer.source.view()?);
            Ok::<_, Failure>(older.diff(&newer)?)
        })?;
        Ok(Changes::new(diff))
    }

    fn stats_json(&self, py: Python<'_>) -> PyResult<String> {
        let text = py.detach(|| {
            let stats = match &self.source {
                Source::Named(table) => table.stats()?,
                Source::View(view) => view.stats(),
                Source::Fork(fork) => lock(fork).stats(),
            };
            json(&stats)
        })?;
        Ok(text)
    }
}

/// JSON of a description.
pub(crate) fn json(value: &impl serde::Serialize) -> Outcome<String> {
    let text = serde_json::to_string(value);
    text.map_err(|error| Failure::bad_input(format!("this has no JSON form: {error}")))
}

/// Lower-case hex of bytes.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
