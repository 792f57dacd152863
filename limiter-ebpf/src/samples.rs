//! Samples of packets for user space.

use aya_ebpf::{
    EbpfContext as _, Global,
    bindings::{BPF_RB_NO_WAKEUP, xdp_md},
    btf_maps::{PerCpuArray, RingBuf},
    helpers::{bpf_get_prandom_u32, bpf_xdp_load_bytes},
    macros::btf_map,
    programs::XdpContext,
};
use limiter_common::{
    sample::{Budget, Pace, RING_BYTES, SHOWN, Sample},
    stats::Row,
    verdict::Decision,
};

use crate::{
    clock,
    maps::{INTERFACE, STATS},
};

/// Samples on their way to user space.
#[btf_map]
static EVENTS: RingBuf<Sample, { RING_BYTES as usize }> = RingBuf::new();

/// What this CPU has shown of each verdict and reason.
#[btf_map]
static BUDGETS: PerCpuArray<Budget, { Budget::COUNT as usize }> = PerCpuArray::new();

/// [`Pace::every`], set at load.
#[unsafe(no_mangle)]
static PACE_EVERY: Global<u32> = Global::new(1);

/// [`Pace::window`], set at load.
#[unsafe(no_mangle)]
static PACE_WINDOW: Global<u32> = Global::new(1);

/// [`Pace::budget`], set at load; 0 for no samples.
#[unsafe(no_mangle)]
static PACE_BUDGET: Global<u32> = Global::new(0);

/// The verifier knows these words, so that a load without samples has no code
/// for them.
#[inline(always)]
fn pace() -> Pace {
    Pace { every: PACE_EVERY.load(), window: PACE_WINDOW.load(), budget: PACE_BUDGET.load() }
}

/// Takes a sample of the packet that was counted last in this row, if one is
/// due.
#[inline(always)]
pub(crate) fn take_if_due(ctx: &XdpContext, number: u32, row: &Row, decision: &Decision) {
    let pace = pace();
    if pace.budget != 0 && row.sampling.is_due(row.counter.packets, clock::tick(), pace) {
        take(ctx.as_ptr().cast(), number, decision.bytes);
    }
}

/// Takes a sample, if the budget has one left. A function of its own, so that
/// the verifier looks at it once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn take(ctx: *mut xdp_md, number: u32, length: u32) -> u32 {
    let Some(row) = STATS.get_ptr_mut(number) else {
        return 0;
    };
    let Some(budget) = BUDGETS.get_ptr_mut(Budget::index(number)) else {
        return 0;
    };
    // SAFETY: this CPU's own values, and no other program interrupts this one
    // on its CPU to write there.
    let row = unsafe { &mut *row };
    // SAFETY: as above.
    let budget = unsafe { &mut *budget };
    let (packets, tick, pace) = (row.counter.packets, clock::tick(), pace());
    if budget.pay(tick, pace) {
        let weight = row.sampling.weight(packets);
        // Also if there is no room for it: what user space does not read while
        // it is away must not weigh down what it reads later.
        row.sampling.sampled(packets);
        if !send(ctx, number, length, weight) {
            budget.lost += 1;
        }
    }
    // SAFETY: takes nothing.
    let random = unsafe { bpf_get_prandom_u32() };
    row.sampling.choose_next(packets, tick, pace, random);
    1
}

#[expect(clippy::cast_possible_truncation, reason = "256")]
const SHOWN_BYTES: u32 = SHOWN as u32;

/// Whether there was room for it.
#[expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the address of a field and the write to it are one thing"
)]
#[inline(always)]
fn send(ctx: *mut xdp_md, row: u32, length: u32, weight: u32) -> bool {
    let Some(mut entry) = EVENTS.reserve(0) else {
        return false;
    };
    let sample = entry.as_mut_ptr();
    let shown = length.min(SHOWN_BYTES);
    // SAFETY: a field of the reserved memory, word by word: it has no value
    // yet; likewise below.
    unsafe { (&raw mut (*sample).time_ns).write(clock::now_ns()) };
    // SAFETY: as above.
    unsafe { (&raw mut (*sample).weight).write(weight) };
    // SAFETY: as above.
    unsafe { (&raw mut (*sample).length).write(length) };
    // SAFETY: as above.
    unsafe { (&raw mut (*sample).interface).write(INTERFACE.load()) };
    // SAFETY: as above.
    unsafe { (&raw mut (*sample).row).write(row) };
    // SAFETY: as above.
    unsafe { (&raw mut (*sample).shown).write(shown) };
    // SAFETY: the address of a field.
    let bytes = unsafe { &raw mut (*sample).bytes };
    // SAFETY: at most as many bytes as the field has, and no more than the
    // packet has.
    let read = shown > 0 && unsafe { bpf_xdp_load_bytes(ctx, 0, bytes.cast(), shown) } == 0;
    if !read {
        entry.discard(0);
        return false;
    }
    // User space looks when it is time to: it is woken by no packet.
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    true
}
