//! Hints to the processor. They change when memory is fetched and never what is read.

/// Asks for the cache line of `target` ahead of its use, as the probing of many filters wants it.
/// Does nothing on processors other than x86-64.
///
/// Cost: one instruction; the line is fetched while the caller goes on.
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
