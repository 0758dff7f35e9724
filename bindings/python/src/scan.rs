//! Iterators of entries, and chunks of entries.
//!
//! Both read from a cursor, which stays as it was when the iterator was made.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};
use terrane::lsm::{Cursor, Diff, Lookup, Record};

use crate::error::{Failure, Outcome};
use crate::rows::{Entries, RowsBuilder, STREAM, entries_schema};

/// Locks a value. A panic of another thread has become an exception there; the value is a cursor,
/// which goes on or tells its error again.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entries that an iterator reads at first, and at most, at a time.
const FIRST_READ: usize = 8;
const READ_MAX: usize = 512;

/// Parts of an entry that an iterator gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Keys,
    Values,
    Items,
}

/// Where an iterator stands.
#[derive(Debug)]
struct Position {
    cursor: Cursor,
    ready: VecDeque<Record>,
    read: usize,
}

impl Position {
    fn next(&mut self, is_reverse: bool) -> Outcome<Option<Record>> {
        if self.ready.is_empty() {
            let read = self.read;
            let records =
                if is_reverse { self.cursor.prev_many(read) } else { self.cursor.next_many(read) };
            self.ready = records?.into();
            self.read = (read * 2).min(READ_MAX);
        }
        Ok(self.ready.pop_front())
    }
}

/// Iterator of keys, values or entries.
#[pyclass(frozen, module = "terrane")]
#[derive(Debug)]
pub(crate) struct Items {
    position: Mutex<Position>,
    part: Part,
    is_reverse: bool,
}

impl Items {
    pub(crate) fn new(mut cursor: Cursor, part: Part, is_reverse: bool) -> Self {
        if is_reverse {
            cursor.seek_to_end();
        }
        let position = Position { cursor, ready: VecDeque::new(), read: FIRST_READ };
        Self { position: Mutex::new(position), part, is_reverse }
    }
}

#[pymethods]
impl Items {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(record) = py.detach(|| lock(&self.position).next(self.is_reverse))? else {
            return Ok(None);
        };
        let key = || PyBytes::new(py, &record.key);
        let value = || PyBytes::new(py, &record.value);
        Ok(Some(match self.part {
            Part::Keys => key().into_any(),
            Part::Values => value().into_any(),
            Part::Items => (key(), value()).into_pyobject(py)?.into_any(),
        }))
    }
}

/// The chunks of a cursor.
#[derive(Debug)]
struct ChunkReader {
    cursor: Cursor,
    rows_max: usize,
    bytes_max: usize,
    schema: SchemaRef,
}

impl ChunkReader {
    fn read(&mut self) -> Outcome<Option<Entries>> {
        let mut keys = RowsBuilder::with_capacity(0, 0);
        let mut values = RowsBuilder::with_capacity(0, 0);
        while keys.rows() < self.rows_max && keys.bytes() + values.bytes() < self.bytes_max {
            let Some(entry) = self.cursor.next_ref()? else { break };
            keys.push(Some(entry.key));
            values.push(Some(entry.value));
        }
        let is_end = keys.rows() == 0;
        Ok((!is_end).then(|| Entries { keys: keys.finish(), values: values.finish() }))
    }
}

impl Iterator for ChunkReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.read() {
            Ok(entries) => entries.map(|entries| entries.record_batch()),
            Err(failure) => Some(Err(ArrowError::ExternalError(failure.to_string().into()))),
        }
    }
}

impl RecordBatchReader for ChunkReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

/// Iterator of chunks of entries, and a stream of Arrow.
#[pyclass(frozen, module = "terrane")]
#[derive(Debug)]
pub(crate) struct Chunks(Mutex<Option<ChunkReader>>);

impl Chunks {
    pub(crate) fn new(cursor: Cursor, rows_max: usize, bytes_max: usize) -> Self {
        let schema = SchemaRef::new(entries_schema());
        Self(Mutex::new(Some(ChunkReader { cursor, rows_max, bytes_max, schema })))
    }
}

fn taken() -> Failure {
    Failure::bad_input("an Arrow reader has taken the chunks of this scan over")
}

#[pymethods]
impl Chunks {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Entries>> {
        Ok(py.detach(|| lock(&self.0).as_mut().ok_or_else(taken)?.read())?)
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A wish that a producer may leave unfulfilled.
        let _ = requested_schema;
        let reader = py.detach(|| lock(&self.0).take()).ok_or_else(taken)?;
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), STREAM)
    }
}

/// Iterator of the keys whose values differ between two tables.
#[pyclass(frozen, module = "terrane")]
#[derive(Debug)]
pub(crate) struct Changes(Mutex<Diff>);

impl Changes {
    pub(crate) fn new(diff: Diff) -> Self {
        Self(Mutex::new(diff))
    }
}

#[pymethods]
impl Changes {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[expect(clippy::type_complexity, reason = "a tuple of Python")]
    fn __next__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<
        Option<(Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>, Option<Bound<'py, PyBytes>>)>,
    > {
        let next = py.detach(|| lock(&self.0).next().transpose().map_err(Failure::from))?;
        let value = |lookup: &Lookup| lookup.value().map(|value| PyBytes::new(py, value));
        Ok(next
            .map(|change| (PyBytes::new(py, &change.key), value(&change.old), value(&change.new))))
    }
}
