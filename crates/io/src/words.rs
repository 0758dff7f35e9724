//! Arrays of words that live long: large ones in memory of their own.
//!
//! An allocator keeps what is freed for what comes next, in pieces that may fit nothing, and a
//! piece of a huge page keeps all of it. For filters, which are most of the memory of a table and
//! of which merges free one after the other, that was a third more than they have. So an array of
//! 128 KiB or more is a mapping, which the system gets back at once, and only what fills huge pages
//! is on them.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::prefetch::advise_huge_pages;

/// Bytes from which on an array is a mapping.
const MAPPED_BYTES_MIN: usize = 128 << 10;

/// Alignment of an array: a cache line.
const LINE_BYTES: usize = 64;

/// Bytes of a page of memory, or a part of one; mappings end at a multiple of it.
const PAGE_BYTES: usize = 64 << 10;

/// An owned array of words, zero-filled at first, that begins with a cache line and can shrink.
pub struct Words {
    /// Invariant: the beginning of `memory`, of which the first `len` words are initialised; not
    /// aliased. Dangling if there is no memory.
    start: NonNull<u64>,
    len: usize,
    memory: Memory,
}

/// Memory that has to be freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    None,
    /// Memory of the allocator, allocated with this layout.
    Allocated(Layout),
    /// A mapping of so many bytes, a multiple of [`PAGE_BYTES`].
    Mapped(usize),
}

impl Words {
    /// An array of `len` zeros.
    ///
    /// Cost: a large one costs two or three system calls in its life; its memory comes as it is
    /// written.
    ///
    /// # Panics
    /// If that is more than any allocation can have, as `Vec` does.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let layout = Layout::array::<u64>(len).and_then(|layout| layout.align_to(LINE_BYTES));
        let layout = layout.expect("capacity overflow");
        if len == 0 {
            return Self { start: NonNull::dangling(), len, memory: Memory::None };
        }

        // Where no mapping can be had, the allocator may still have memory. Miri knows no mappings.
        if layout.size() >= MAPPED_BYTES_MIN
            && !cfg!(miri)
            && let Some(mapped) = Self::mapped(len)
        {
            return mapped;
        }

        // SAFETY: `layout` has a non-zero size.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start: start.cast(), len, memory: Memory::Allocated(layout) }
    }

    /// The same as a mapping, if the system has room for one.
    fn mapped(len: usize) -> Option<Self> {
        let bytes = mapped_bytes(len);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at a place of the system's choice overlaps none.
        let start =
            unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE).ok()? };
        let start = NonNull::new(start.cast::<u64>())?;
        debug_assert!(start.addr().get().is_multiple_of(LINE_BYTES), "mappings begin with pages");
        // SAFETY: the bytes are those of the mapping.
        unsafe { advise_huge_pages(start.as_ptr().cast(), len * size_of::<u64>()) };
        Some(Self { start, len, memory: Memory::Mapped(bytes) })
    }

    /// Keeps the first `len` words; all of them if there are fewer. What a mapping has behind them
    /// goes back to the system.
    ///
    /// Cost: one system call for a mapping; else a copy.
    pub fn truncate(&mut self, len: usize) {
        if len >= self.len {
            return;
        }
        if let Memory::Mapped(bytes) = self.memory
            && len > 0
        {
            self.len = len;
            self.unmap_behind(mapped_bytes(len), bytes);
            return;
        }

        let mut shorter = Self::zeroed(len);
        shorter.copy_from_slice(&self[..len]);
        *self = shorter;
    }

    /// Gives back what a mapping of `bytes` bytes has behind the first `kept`, in which all words
    /// lie.
    fn unmap_behind(&mut self, kept: usize, bytes: usize) {
        if kept == bytes {
            return;
        }
        // SAFETY: `kept` is a multiple of the size of a page and lies within the mapping.
        let behind = unsafe { self.start.as_ptr().byte_add(kept) };
        // SAFETY: no word is left there, and `&mut self` excludes references to what was.
        if unsafe { munmap(behind.cast(), bytes - kept) }.is_ok() {
            self.memory = Memory::Mapped(kept);
        }
    }
}

/// Bytes of a mapping of `len` words.
fn mapped_bytes(len: usize) -> usize {
    (len * size_of::<u64>()).next_multiple_of(PAGE_BYTES)
}

impl Drop for Words {
    fn drop(&mut self) {
        match self.memory {
            Memory::None => {}
            // SAFETY: allocated with this layout, and freed only here.
            Memory::Allocated(layout) => unsafe { dealloc(self.start.as_ptr().cast(), layout) },
            Memory::Mapped(bytes) => {
                // SAFETY: the mapping is this array's alone, and nothing refers to it any more.
                let unmapped = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
                debug_assert_eq!(unmapped, Ok(()), "whole mappings can be unmapped");
            }
        }
    }
}

// SAFETY: the array owns its words as `Box<[u64]>` does; no other handle to them exists.
unsafe impl Send for Words {}
// SAFETY: a shared reference gives only shared access to the words.
unsafe impl Sync for Words {}

impl Deref for Words {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        // SAFETY: by the invariant of `start` these words are ours and initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Words {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: by the invariant of `start` these words are ours and initialised; `&mut self`
        // makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Clone for Words {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Words({})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths around those at which the kind of memory changes, and some pages more.
    const LENGTHS: [usize; 9] = [0, 1, 7, 8, 1_000, 16_383, 16_384, 16_385, 100_000];

    #[test]
    fn words_are_zero_at_first_aligned_and_can_be_written() {
        for len in LENGTHS {
            let mut words = Words::zeroed(len);
            assert_eq!(words.len(), len);
            assert!(len == 0 || words.as_ptr().addr().is_multiple_of(LINE_BYTES));
            assert!(words.iter().all(|&word| word == 0));
            words.fill(u64::MAX);
            assert!(words.clone().iter().all(|&word| word == u64::MAX));
        }
    }

    #[test]
    fn what_is_left_stays_as_it_was() {
        for len in LENGTHS {
            for left in LENGTHS {
                let mut words = Words::zeroed(len);
                (0..).zip(&mut *words).for_each(|(number, word)| *word = number);
                let whole = words.clone();
                words.truncate(left);
                assert_eq!(&*words, &whole[..left.min(len)]);
                words.fill(7);
                assert!(words.iter().all(|&word| word == 7), "{len} to {left}");
            }
        }
    }

    #[test]
    fn a_large_array_gives_back_what_is_cut_off() {
        let mut words = Words::zeroed(100_000);
        assert_eq!(words.memory, Memory::Mapped(13 * PAGE_BYTES));
        words.truncate(50_000);
        assert_eq!(words.memory, Memory::Mapped(7 * PAGE_BYTES));
        words.truncate(49_999);
        assert_eq!(words.memory, Memory::Mapped(7 * PAGE_BYTES));
        words.truncate(0);
        assert_eq!((words.memory, words.len()), (Memory::None, 0));
        assert!(matches!(Words::zeroed(16_383).memory, Memory::Allocated(_)));
    }

    #[test]
    fn a_length_that_no_allocation_can_have_is_refused() {
        for len in [usize::MAX, usize::MAX / 8, isize::MAX.cast_unsigned() / 8 + 1] {
            assert!(std::panic::catch_unwind(|| Words::zeroed(len)).is_err(), "{len}");
        }
    }
}
