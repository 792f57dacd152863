//! Programs to measure against and with; no part of the shield.
//!
//! `BPF_PROG_TEST_RUN` repeats one packet, whose bytes persist over the
//! repeats. The `random_source` programs write a new source address into it
//! each time and go on to the program in slot 0 of `NEXT`.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod kernel;

use aya_ebpf::{
    bindings::xdp_action::{XDP_ABORTED, XDP_DROP},
    btf_maps::{Array, PerCpuArray, ProgramArray},
    macros::{btf_map, xdp},
    programs::XdpContext,
};

/// Bytes before the IPv4 source address: Ethernet header and 12 more.
const IPV4_SOURCE: usize = 14 + 12;
/// Bytes before the second word of the IPv6 source address.
const IPV6_SOURCE: usize = 14 + 8 + 4;

/// Slot 0: the program under test.
#[btf_map]
static NEXT: ProgramArray<1> = ProgramArray::new();

/// Slot 0: which bits of the address change.
#[btf_map]
static MASK: Array<u32, 1> = Array::new();

/// Slot 0: state of this CPU's xorshift generator.
#[btf_map]
static RANDOM: PerCpuArray<u32, 1> = PerCpuArray::new();

/// What the kernel itself takes for a dropped packet.
#[xdp(frags)]
fn bare_drop(_ctx: XdpContext) -> u32 {
    XDP_DROP
}

/// A random IPv4 source for the next program.
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
#[xdp(frags)]
fn random_source4(ctx: XdpContext) -> u32 {
    rewrite(&ctx, IPV4_SOURCE)
}

/// A random IPv6 /64 for the next program.
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
#[xdp(frags)]
fn random_source6(ctx: XdpContext) -> u32 {
    rewrite(&ctx, IPV6_SOURCE)
}

#[inline(always)]
fn rewrite(ctx: &XdpContext, offset: usize) -> u32 {
    let address = ctx.data() + offset;
    if address + size_of::<u32>() > ctx.data_end() {
        return XDP_ABORTED;
    }
    let (Some(mask), Some(random)) = (MASK.get(0), RANDOM.get_ptr_mut(0)) else {
        return XDP_ABORTED;
    };
    // SAFETY: this CPU's own value.
    let random = unsafe { &mut *random };
    let mut word = *random;
    if word == 0 {
        word = 0x9e37_79b9;
    }
    // Marsaglia, "Xorshift RNGs" (2003): period 2^32 - 1.
    word ^= word << 13;
    word ^= word >> 17;
    word ^= word << 5;
    *random = word;
    let bits = (word & *mask).to_be_bytes();
    let base = [198, 18, 0, 0];
    for (at, (bit, base)) in bits.into_iter().zip(base).enumerate() {
        // SAFETY: four bytes from `address` on lie inside the packet.
        unsafe { ((address + at) as *mut u8).write(bit ^ base) };
    }
    // SAFETY: the context is the one that the kernel passed in.
    unsafe { NEXT.tail_call(ctx, 0) };
    XDP_ABORTED
}

/// On a host the crate is only checked.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
