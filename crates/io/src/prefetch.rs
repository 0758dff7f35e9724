//! Hints to the processor and the system. They change when and how memory is fetched, and never
//! what is read.

/// Prefetches the cache line of `target`, for example in the probing of many filters. Does nothing
/// on processors other than x86-64.
///
/// Cost: one instruction; the line arrives while the caller goes on.
#[inline]
pub fn prefetch<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching reads no memory as far as the program can tell, and faults for no
        // address; besides, this address is that of a live reference.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(target).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}

/// Asks the system to put the memory of a vector on huge pages, as far as they fit: random reads
/// then cost fewer walks through page tables. Does nothing on systems other than Linux.
///
/// Cost: one system call; memory that is there already stays as it is.
pub fn huge_pages<T>(vector: &Vec<T>) {
    let bytes = vector.capacity() * size_of::<T>();
    // SAFETY: these bytes are one allocation, of the vector.
    unsafe { advise_huge_pages(vector.as_ptr().cast(), bytes) };
}

/// Asks the system to put `bytes` bytes from `start` on huge pages, as far as they fit.
///
/// # Safety
/// The bytes are of one allocation or mapping.
pub(crate) unsafe fn advise_huge_pages(start: *const u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        /// Size of huge pages on x86-64, and on other processors with pages of 4 KiB.
        const HUGE_BYTES: usize = 2 << 20;
        // Only whole huge pages within the bytes can be advised.
        let before = start.align_offset(HUGE_BYTES);
        let whole = bytes.saturating_sub(before) / HUGE_BYTES * HUGE_BYTES;
        if whole > 0 {
            // SAFETY: the range lies within the bytes, since `before + whole <= bytes`, and this
            // advice changes no content. That it may be refused, as where the system has no huge
            // pages, is no matter.
            let _ = unsafe {
                madvise(start.add(before).cast_mut().cast(), whole, Advice::LinuxHugepage)
            };
        }
    }

    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}
