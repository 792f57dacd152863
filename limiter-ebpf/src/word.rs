//! Compare-and-swap on map memory.

use limiter_common::bucket::Word;

/// A 64-bit word inside a map value, shared between CPUs.
pub(crate) struct MapWord(*mut u64);

impl MapWord {
    /// # Safety
    /// `word` points to an aligned word of a map value that stays mapped while
    /// the program runs (the kernel frees map values only after a grace period
    /// or recycles them as values of the same map).
    #[inline(always)]
    pub(crate) unsafe fn new(word: *mut u64) -> Self {
        Self(word)
    }
}

impl Word for MapWord {
    #[inline(always)]
    fn load(&self) -> u64 {
        // SAFETY: valid and aligned by `new`; one 64-bit load is not torn.
        unsafe { self.0.read_volatile() }
    }

    #[inline(always)]
    fn replace(&self, current: u64, new: u64) -> bool {
        #[cfg(target_arch = "bpf")]
        {
            let found: u64;
            // SAFETY: valid and aligned by `new`. AtomicU64 has no
            // compare_exchange on BPF targets.
            unsafe {
                core::arch::asm!(
                    "r0 = cmpxchg_64({word} + 0, r0, {new})",
                    word = in(reg) self.0,
                    new = in(reg) new,
                    inout("r0") current => found,
                    options(nostack),
                );
            }
            found == current
        }
        #[cfg(not(target_arch = "bpf"))]
        {
            use core::sync::atomic::{AtomicU64, Ordering::SeqCst};
            // SAFETY: valid and aligned by `new`.
            let word = unsafe { AtomicU64::from_ptr(self.0) };
            word.compare_exchange(current, new, SeqCst, SeqCst).is_ok()
        }
    }
}
