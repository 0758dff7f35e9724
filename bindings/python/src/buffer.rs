//! Memory of the engine that Python reads in place, through the buffer protocol.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use arrow_buffer::Buffer as Bytes;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Items of a buffer, as the module `struct` of Python names them.
#[derive(Debug, Clone, Copy)]
enum Item {
    Byte,
    Bool,
    Offset,
}

impl Item {
    fn format(self) -> &'static CStr {
        match self {
            Self::Byte => c"B",
            Self::Bool => c"?",
            Self::Offset => c"q",
        }
    }

    fn bytes(self) -> isize {
        match self {
            Self::Byte | Self::Bool => 1,
            Self::Offset => 8,
        }
    }
}

/// Items one behind the other, which never change.
#[pyclass(frozen, module = "terrane")]
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Bytes,
    item: Item,
    /// Number of items, at an address that stays: views point to it.
    shape: [isize; 1],
    strides: [isize; 1],
}

impl Buffer {
    pub(crate) fn of_bytes(bytes: Bytes) -> Self {
        Self::new(bytes, Item::Byte)
    }

    pub(crate) fn of_bools(bools: Vec<u8>) -> Self {
        debug_assert!(bools.iter().all(|item| *item <= 1), "a bool is 0 or 1");
        Self::new(Bytes::from_vec(bools), Item::Bool)
    }

    pub(crate) fn of_offsets(bytes: Bytes) -> Self {
        Self::new(bytes, Item::Offset)
    }

    fn new(bytes: Bytes, item: Item) -> Self {
        let len = isize::try_from(bytes.len()).expect("memory is no longer than isize::MAX");
        debug_assert!(len % item.bytes() == 0, "a buffer holds whole items");
        Self { bytes, item, shape: [len / item.bytes()], strides: [item.bytes()] }
    }
}

#[pymethods]
impl Buffer {
    fn __len__(&self) -> usize {
        self.bytes.len() / self.item.bytes().unsigned_abs()
    }

    /// # Safety
    /// The interpreter calls it with a view to fill, or null.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() || flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("the memory of a store is read-only"));
        }
        let held = slf.get();
        let has = |flag: c_int| flags & flag == flag;
        // SAFETY: the interpreter gives a view to fill. What its pointers lead to is owned by the
        // object, which is frozen and which the view keeps alive.
        unsafe {
            (*view).buf = held.bytes.as_ptr().cast_mut().cast::<c_void>();
            (*view).len = held.shape[0] * held.strides[0];
            (*view).readonly = 1;
            (*view).itemsize = held.item.bytes();
            (*view).format = if has(ffi::PyBUF_FORMAT) {
                held.item.format().as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            };
            (*view).ndim = 1;
            (*view).shape =
                if has(ffi::PyBUF_ND) { held.shape.as_ptr().cast_mut() } else { ptr::null_mut() };
            (*view).strides = if has(ffi::PyBUF_STRIDES) {
                held.strides.as_ptr().cast_mut()
            } else {
                ptr::null_mut()
            };
            (*view).suboffsets = ptr::null_mut();
            (*view).internal = ptr::null_mut();
            (*view).obj = slf.clone().into_any().into_ptr();
        }
        Ok(())
    }
}
