//! The clocks of the kernel.

use aya_ebpf::helpers::{
    bpf_jiffies64, bpf_ktime_get_boot_ns, bpf_ktime_get_coarse_ns, bpf_ktime_get_ns,
};

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

/// Monotonic nanoseconds as of the last timer tick.
#[inline(always)]
pub(crate) fn coarse_ns() -> u64 {
    // SAFETY: takes nothing.
    unsafe { bpf_ktime_get_coarse_ns() }
}

/// Nanoseconds since the boot, time asleep included.
#[inline(always)]
pub(crate) fn boot_ns() -> u64 {
    // SAFETY: takes nothing.
    unsafe { bpf_ktime_get_boot_ns() }
}
