//! Keys and values from Python.
//!
//! One key is `bytes`, text (as UTF-8), or anything with the buffer protocol. Many are
//!
//! * an iterable of such,
//! * `(data, offsets)`: bytes, and one 64-bit offset more than there are rows,
//! * rows of equal width: a NumPy array of shape (n, width) of bytes, or of strings `S<width>`,
//! * an Arrow array of binary, text or fixed-size binary, or [`Rows`].
//!
//! Invariant: what is borrowed cannot change while an engine reads it. Bytes in a buffer that may
//! change are copied, all rows at once.

use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::{Array, ArrayRef, make_array};
use arrow_schema::DataType;
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyCapsule, PyList, PyString, PyTuple};

use crate::rows::{ARRAY, Rows, SCHEMA, arrow_error};

/// Bytes of one key or value.
#[derive(Debug)]
pub(crate) enum Piece<'py> {
    Bytes(Bound<'py, PyBytes>),
    Text(Bound<'py, PyString>),
    Copied(Vec<u8>),
}

impl<'py> Piece<'py> {
    pub(crate) fn of(object: Bound<'py, PyAny>) -> PyResult<Self> {
        let object = match object.cast_into::<PyBytes>() {
            Ok(bytes) => return Ok(Self::Bytes(bytes)),
            Err(error) => error.into_inner(),
        };
        let object = match object.cast_into::<PyString>() {
            Ok(text) => return Ok(Self::Text(text)),
            Err(error) => error.into_inner(),
        };
        if let Ok(bytes) = object.cast::<PyByteArray>() {
            return Ok(Self::Copied(bytes.to_vec()));
        }
        match PyUntypedBuffer::get(&object) {
            Ok(buffer) => Ok(Self::Copied(copy(&buffer)?)),
            Err(_) => {
                let found = object.get_type().name()?.to_string();
                Err(PyTypeError::new_err(format!("a key or value is bytes or text, not {found}")))
            }
        }
    }

    pub(crate) fn bytes(&self) -> PyResult<&[u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.as_bytes()),
            Self::Text(text) => Ok(text.to_str()?.as_bytes()),
            Self::Copied(bytes) => Ok(bytes),
        }
    }
}

/// Copies the bytes of a contiguous buffer.
fn copy(buffer: &PyUntypedBuffer) -> PyResult<Vec<u8>> {
    if !buffer.is_c_contiguous() {
        return Err(PyValueError::new_err("the bytes of a buffer must be contiguous"));
    }
    let len = buffer.len_bytes();
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: a contiguous buffer has this many bytes at its pointer, and stays while it is held.
    // This thread has the interpreter's lock, so no other Python code writes to it meanwhile.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), len) }.to_vec())
}

/// Rows of keys or values.
#[derive(Debug)]
pub(crate) enum RowsIn<'py> {
    Pieces(Vec<Piece<'py>>),
    Array(ArrayRef),
    Packed { bytes: Piece<'py>, offsets: Vec<usize> },
    Fixed { bytes: Vec<u8>, width: usize },
}

impl<'py> RowsIn<'py> {
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        // The commonest come first: an object that lacks an interface answers by an exception.
        if let Ok(list) = object.cast::<PyList>() {
            let mut pieces = Vec::with_capacity(list.len());
            for piece in list {
                pieces.push(Piece::of(piece)?);
            }
            return Ok(Self::Pieces(pieces));
        }
        if let Ok(rows) = object.cast::<Rows>() {
            return array(std::sync::Arc::new(rows.get().0.clone()));
        }
        if let Ok(pair) = object.cast::<PyTuple>()
            && pair.len() == 2
            && let Some(offsets) = offsets_of(&pair.get_item(1)?)
        {
            return packed(Piece::of(pair.get_item(0)?)?, offsets?);
        }
        if object.cast::<PyBytes>().is_ok() || object.cast::<PyString>().is_ok() {
            let rule = "these are rows, not one: give a list, (data, offsets), or an array";
            return Err(PyTypeError::new_err(rule));
        }
        if let Ok(buffer) = PyUntypedBuffer::get(object) {
            return fixed(&buffer);
        }
        if object.hasattr(intern!(object.py(), "__arrow_c_array__"))? {
            return array(import(object)?);
        }
        let pieces = object.try_iter()?.map(|piece| Piece::of(piece?));
        Ok(Self::Pieces(pieces.collect::<PyResult<_>>()?))
    }

    /// Borrows the rows.
    pub(crate) fn slices(&self) -> PyResult<Vec<&[u8]>> {
        match self {
            Self::Pieces(pieces) => pieces.iter().map(Piece::bytes).collect(),
            Self::Packed { bytes, offsets } => {
                let bytes = bytes.bytes()?;
                Ok(offsets.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect())
            }
            Self::Fixed { bytes, width } => Ok(bytes.chunks_exact(*width).collect()),
            Self::Array(array) => Ok(match array.data_type() {
                DataType::Binary => array.as_binary::<i32>().iter().flatten().collect(),
                DataType::LargeBinary => array.as_binary::<i64>().iter().flatten().collect(),
                DataType::Utf8 => {
                    array.as_string::<i32>().iter().flatten().map(str::as_bytes).collect()
                }
                DataType::LargeUtf8 => {
                    array.as_string::<i64>().iter().flatten().map(str::as_bytes).collect()
                }
                DataType::FixedSizeBinary(_) => {
                    array.as_fixed_size_binary().iter().flatten().collect()
                }
                other => return Err(wrong_type(other)),
            }),
        }
    }
}

fn wrong_type(found: &DataType) -> PyErr {
    PyTypeError::new_err(format!("rows are binary, text or fixed-size binary, not {found}"))
}

fn array<'py>(array: ArrayRef) -> PyResult<RowsIn<'py>> {
    if array.null_count() > 0 {
        return Err(PyValueError::new_err("a key or value is null"));
    }
    match array.data_type() {
        DataType::Binary
        | DataType::LargeBinary
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::FixedSizeBinary(_) => Ok(RowsIn::Array(array)),
        other => Err(wrong_type(other)),
    }
}

/// Imports an array through the C data interface, without a copy.
fn import(object: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let pair = object.call_method0("__arrow_c_array__")?;
    let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) = pair.extract()?;
    let schema = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
    // SAFETY: capsules of these names hold these structures, by the PyCapsule interface of Arrow.
    // The array is moved out of its capsule, which the interface gives to its consumer; the schema
    // is read while its capsule is held.
    let data = unsafe { from_ffi(FFI_ArrowArray::from_raw(array.as_ptr()), schema.as_ref()) };
    let data = data.map_err(arrow_error)?;
    // What other code has made is checked before its offsets are believed.
    data.validate_full().map_err(arrow_error)?;
    Ok(make_array(data))
}

fn packed(bytes: Piece<'_>, offsets: Vec<usize>) -> PyResult<RowsIn<'_>> {
    let len = bytes.bytes()?.len();
    let is_whole = offsets.first() == Some(&0) && offsets.last() == Some(&len);
    if !is_whole || !offsets.is_sorted() {
        let rule =
            format!("offsets begin with 0, ascend, and end with the {len} bytes of the data");
        return Err(PyValueError::new_err(rule));
    }
    Ok(RowsIn::Packed { bytes, offsets })
}

/// Offsets from a buffer of 64-bit integers; `None` for anything else.
fn offsets_of(object: &Bound<'_, PyAny>) -> Option<PyResult<Vec<usize>>> {
    let py = object.py();
    if let Ok(offsets) = PyBuffer::<u64>::get(object) {
        return Some(offsets.to_vec(py).and_then(as_usize));
    }
    let offsets = PyBuffer::<i64>::get(object).ok()?;
    Some(offsets.to_vec(py).and_then(as_usize))
}

fn as_usize<T>(offsets: Vec<T>) -> PyResult<Vec<usize>>
where
    usize: TryFrom<T>,
{
    let offsets: Result<Vec<usize>, _> = offsets.into_iter().map(usize::try_from).collect();
    offsets.map_err(|_| PyValueError::new_err("an offset is negative"))
}

/// Rows of equal width.
fn fixed<'py>(buffer: &PyUntypedBuffer) -> PyResult<RowsIn<'py>> {
    let shape = buffer.shape();
    let is_text = buffer.format().to_bytes().last() == Some(&b's');
    let width = match *shape {
        [_, width] if buffer.item_size() == 1 => width,
        [_] if is_text => buffer.item_size(),
        _ => {
            let rule = "an array of rows has the shape (rows, width) of bytes, or strings S<width>";
            return Err(PyTypeError::new_err(rule));
        }
    };
    let bytes = copy(buffer)?;
    if width == 0 && !bytes.is_empty() || width == 0 && shape[0] > 0 {
        return Err(PyValueError::new_err("rows of an array have at least one byte"));
    }
    Ok(RowsIn::Fixed { bytes, width: width.max(1) })
}
