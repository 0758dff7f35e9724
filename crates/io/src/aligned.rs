//! Buffers whose address and length suit direct I/O.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment of buffers, file offsets and lengths that direct I/O asks for, in bytes.
pub const ALIGN: usize = 4096;

/// An owned, zero-filled byte buffer aligned to [`ALIGN`].
///
/// Its length is a non-zero multiple of [`ALIGN`] and never changes. It owns its bytes, so a
/// request that holds one stays valid whatever happens to the thread that made it.
pub struct AlignedBuf {
    /// Invariant: allocated by `alloc_zeroed` with `layout`, and not aliased.
    start: NonNull<u8>,
    /// Invariant: its size is a non-zero multiple of [`ALIGN`], its alignment is [`ALIGN`].
    layout: Layout,
}

impl AlignedBuf {
    /// A buffer of at least `len` bytes, rounded up to a multiple of [`ALIGN`] (and at least that).
    ///
    /// # Panics
    /// If that is more than any allocation can have, as `Vec` does.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        // Checked in release builds too: a size that wrapped to zero would break the invariant.
        let size = len.max(1).checked_next_multiple_of(ALIGN).expect("capacity overflow");
        let layout = Layout::from_size_align(size, ALIGN).expect("capacity overflow");
        // SAFETY: `layout` has a non-zero size.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout }
    }

    /// The address of the first byte, for system calls.
    #[must_use]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: by the invariant of `start`, allocated with this layout and freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

// SAFETY: the buffer owns its bytes as `Box<[u8]>` does; no other handle to them exists.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference gives only shared access to the bytes.
unsafe impl Sync for AlignedBuf {}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: by the invariant of `start` these bytes are ours and initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: by the invariant of `start` these bytes are ours and initialised; `&mut self`
        // makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.layout.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_aligned_and_rounded_up() {
        for (asked, got) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192)] {
            let mut buffer = AlignedBuf::zeroed(asked);
            assert_eq!(buffer.len(), got);
            assert_eq!(buffer.as_mut_ptr() as usize % ALIGN, 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
    }

    /// Without overflow checks the length wrapped to zero, and allocating zero bytes is undefined.
    #[test]
    fn a_length_that_no_allocation_can_have_is_refused() {
        for len in [usize::MAX, usize::MAX - ALIGN + 2, isize::MAX.cast_unsigned()] {
            let refused = std::panic::catch_unwind(|| AlignedBuf::zeroed(len)).unwrap_err();
            let message = refused.downcast_ref::<String>().map_or("", String::as_str);
            let message = refused.downcast_ref::<&str>().copied().unwrap_or(message);
            assert!(message.contains("capacity overflow"), "{len}: {message}");
        }
    }
}
