//! Rows of bytes, and entries: one contiguous piece of memory with offsets, in Arrow's layout.
//!
//! Invariant: `Rows` is a `LargeBinary` array that begins at offset 0 of its memory.

use std::ffi::CStr;
use std::sync::Arc;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, to_ffi};
use arrow_array::{Array, ArrayRef, LargeBinaryArray, RecordBatch, StructArray};
use arrow_buffer::{Buffer as Bytes, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList, PyTuple};
use terrane::lsm::Values;

use crate::buffer::Buffer;

/// Name of the capsule of a schema, of the C data interface of Arrow.
pub(crate) const SCHEMA: &CStr = c"arrow_schema";
/// Name of the capsule of an array.
pub(crate) const ARRAY: &CStr = c"arrow_array";
/// Name of the capsule of a stream.
pub(crate) const STREAM: &CStr = c"arrow_array_stream";

pub(crate) fn arrow_error(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Makes rows, one by one.
#[derive(Debug)]
pub(crate) struct RowsBuilder {
    bytes: Vec<u8>,
    offsets: Vec<i64>,
    found: Vec<bool>,
}

impl RowsBuilder {
    pub(crate) fn with_capacity(rows: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { bytes: Vec::with_capacity(bytes), offsets, found: Vec::with_capacity(rows) }
    }

    pub(crate) fn push(&mut self, row: Option<&[u8]>) {
        self.bytes.extend_from_slice(row.unwrap_or_default());
        // Memory is no longer than `i64::MAX`.
        self.offsets.push(self.bytes.len() as i64);
        self.found.push(row.is_some());
    }

    pub(crate) fn rows(&self) -> usize {
        self.found.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn finish(self) -> LargeBinaryArray {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(self.offsets));
        let is_whole = self.found.iter().all(|found| *found);
        let nulls = (!is_whole).then(|| NullBuffer::from(self.found));
        LargeBinaryArray::new(offsets, Bytes::from_vec(self.bytes), nulls)
    }
}

/// Gathers the answers of lookups.
pub(crate) fn gather<'a>(
    answers: impl ExactSizeIterator<Item = Option<&'a [u8]>> + Clone,
) -> LargeBinaryArray {
    let bytes = answers.clone().flatten().map(<[u8]>::len).sum();
    let mut rows = RowsBuilder::with_capacity(answers.len(), bytes);
    for answer in answers {
        rows.push(answer);
    }
    rows.finish()
}

/// Rows of the values of a batch of lookups, whose memory they take over where it is in order.
pub(crate) fn rows_of(values: Values) -> LargeBinaryArray {
    let mut offsets = Vec::with_capacity(values.len() + 1);
    let mut end = 0;
    offsets.push(end);
    offsets.extend(values.iter().map(|value| {
        // Memory is no longer than `i64::MAX`.
        end += value.map_or(0, <[u8]>::len) as i64;
        end
    }));
    let is_whole = values.iter().all(|value| value.is_some());
    let found = || NullBuffer::from_iter(values.iter().map(|value| value.is_some()));
    let nulls = (!is_whole).then(found);
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    LargeBinaryArray::new(offsets, Bytes::from_vec(values.into_bytes()), nulls)
}

/// Capsules of an array, as `__arrow_c_array__` gives them.
fn capsules<'py>(py: Python<'py>, array: &dyn Array) -> PyResult<Bound<'py, PyTuple>> {
    let (array, schema): (FFI_ArrowArray, FFI_ArrowSchema) =
        to_ffi(&array.to_data()).map_err(arrow_error)?;
    let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
    let array = PyCapsule::new_with_value(py, array, ARRAY)?;
    PyTuple::new(py, [schema, array])
}

/// Rows of bytes, some of which may be absent.
#[pyclass(frozen, sequence, module = "terrane")]
#[derive(Debug, Clone)]
pub(crate) struct Rows(pub(crate) LargeBinaryArray);

impl Rows {
    fn row(&self, at: usize) -> Option<&[u8]> {
        (!self.0.is_null(at)).then(|| self.0.value(at))
    }
}

#[pymethods]
impl Rows {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        at: isize,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let len = self.0.len() as isize;
        let from_start = if at < 0 { at + len } else { at };
        if !(0..len).contains(&from_start) {
            return Err(PyIndexError::new_err(format!("row {at} of {len}")));
        }
        let row = self.row(from_start.unsigned_abs());
        Ok(row.map(|row| PyBytes::new(py, row)))
    }

    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows = (0..self.0.len()).map(|at| self.row(at).map(|row| PyBytes::new(py, row)));
        PyList::new(py, rows.collect::<Vec<_>>())
    }

    #[getter]
    fn data(&self) -> Buffer {
        Buffer::of_bytes(self.0.values().clone())
    }

    #[getter]
    fn offsets(&self) -> Buffer {
        Buffer::of_offsets(self.0.offsets().inner().inner().clone())
    }

    #[getter]
    fn found(&self) -> Buffer {
        let found = (0..self.0.len()).map(|at| u8::from(!self.0.is_null(at)));
        Buffer::of_bools(found.collect())
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // A wish that a producer may leave unfulfilled.
        let _ = requested_schema;
        capsules(py, &self.0)
    }

    fn __repr__(&self) -> String {
        let absent = self.0.null_count();
        format!("<terrane.Rows of {} rows, {absent} absent>", self.0.len())
    }
}

/// Schema of entries: a key and a value.
pub(crate) fn entries_schema() -> Schema {
    Schema::new(vec![
        Field::new("key", DataType::LargeBinary, false),
        Field::new("value", DataType::LargeBinary, false),
    ])
}

/// Entries in key order.
#[pyclass(frozen, module = "terrane")]
#[derive(Debug, Clone)]
pub(crate) struct Entries {
    pub(crate) keys: LargeBinaryArray,
    pub(crate) values: LargeBinaryArray,
}

impl Entries {
    pub(crate) fn record_batch(&self) -> Result<RecordBatch, ArrowError> {
        let columns: Vec<ArrayRef> =
            vec![Arc::new(self.keys.clone()), Arc::new(self.values.clone())];
        RecordBatch::try_new(Arc::new(entries_schema()), columns)
    }
}

#[pymethods]
impl Entries {
    fn __len__(&self) -> usize {
        self.keys.len()
    }

    #[getter]
    fn keys(&self) -> Rows {
        Rows(self.keys.clone())
    }

    #[getter]
    fn values(&self) -> Rows {
        Rows(self.values.clone())
    }

    fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let entry = |at: usize| {
            (PyBytes::new(py, self.keys.value(at)), PyBytes::new(py, self.values.value(at)))
        };
        PyList::new(py, (0..self.keys.len()).map(entry).collect::<Vec<_>>())
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // A wish that a producer may leave unfulfilled.
        let _ = requested_schema;
        let batch = self.record_batch().map_err(arrow_error)?;
        capsules(py, &StructArray::from(batch))
    }

    fn __repr__(&self) -> String {
        format!("<terrane.Entries: {} entries>", self.keys.len())
    }
}
