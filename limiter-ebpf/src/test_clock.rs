//! The clocks of tests, which stand still until they are set.

use aya_ebpf::{btf_maps::Array, macros::btf_map};

/// Nanoseconds and timer ticks.
#[btf_map]
static CLOCK: Array<u64, 2> = Array::new();

/// Monotonic nanoseconds.
#[inline(always)]
pub(crate) fn now_ns() -> u64 {
    CLOCK.get(0).copied().unwrap_or_default()
}

/// Timer ticks.
#[inline(always)]
pub(crate) fn tick() -> u64 {
    CLOCK.get(1).copied().unwrap_or_default()
}

/// The same clock as [`now_ns`].
#[inline(always)]
pub(crate) fn coarse_ns() -> u64 {
    now_ns()
}

/// The same clock as [`now_ns`].
#[inline(always)]
pub(crate) fn boot_ns() -> u64 {
    now_ns()
}
