//! The clocks of the kernel.

use aya_ebpf::helpers::{bpf_jiffies64, bpf_ktime_get_ns};

/// Monotonic nanoseconds.
#[inline(always)]
pub(crate) fn now_ns() -> u64 {
    // SAFETY: takes nothing.
    unsafe { bpf_ktime_get_ns() }
}

/// Timer ticks.
#[inline(always)]
pub(crate) fn tick() -> u64 {
    // SAFETY: takes nothing.
    unsafe { bpf_jiffies64() }
}
