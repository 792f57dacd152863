//! Programs to measure against and with; no part of the shield.
//!
//! `BPF_PROG_TEST_RUN` repeats one packet, whose bytes persist over the
//! repeats. The `random_source` programs write a new source address into it
//! each time and go on to the program in slot 0 of `NEXT`.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod kernel;

use aya_ebpf::{
    bindings::{
        BPF_NOEXIST,
        xdp_action::{XDP_ABORTED, XDP_DROP, XDP_PASS},
    },
    btf_maps::{Array, LruPerCpuHashMap, PerCpuArray, ProgramArray},
    helpers::{bpf_ktime_get_ns, bpf_xdp_adjust_tail, bpf_xdp_get_buff_len, bpf_xdp_store_bytes},
    macros::{btf_map, xdp},
    programs::XdpContext,
};

const IPV4: usize = 14;
const IPV6: usize = 14;
/// Bytes before the source address in the headers.
const IPV4_SOURCE: usize = IPV4 + 12;
const IPV6_SOURCE: usize = IPV6 + 8;
/// The second word of an IPv6 source, the last that a /64 has, and the last of
/// all.
const IPV6_SUBNET: usize = IPV6_SOURCE + 4;
const IPV6_HOST: usize = IPV6_SOURCE + 12;
const IPV4_CHECKSUM: usize = IPV4 + 10;
/// What the programs write where the mask says that nothing changes:
/// 198.18.0.1, or the /64 of that number.
const BASE: u32 = 0xc612_0001;

/// Slot 0: the program under test.
#[btf_map]
static NEXT: ProgramArray<1> = ProgramArray::new();

/// The same for programs without support for frames of several buffers: the
/// kernel lets programs of the two sorts not call each other.
#[btf_map]
static NEXT_PLAIN: ProgramArray<1> = ProgramArray::new();

/// Which packets get which source.
#[derive(Clone, Copy)]
#[repr(C)]
struct Shape {
    /// Which bits of the address change.
    mask: u32,
    /// 1: only in every other packet.
    every_other: u32,
    /// Not random: so many from the list, in turn. 0: random.
    listed: u32,
    /// The first of those.
    first: u32,
    /// Which bits of the last word of an IPv6 address change.
    host_mask: u32,
}

/// Addresses for [`Shape::listed`], as numbers.
#[btf_map]
static LIST: Array<u32, 65_536> = Array::new();

/// Slot 0: what is written.
#[btf_map]
static SHAPE: Array<Shape, 1> = Array::new();

/// State of this CPU's xorshift generator, and packets.
#[btf_map]
static RANDOM: PerCpuArray<[u32; 2], 1> = PerCpuArray::new();

/// Buckets of the minimal limiter: theoretical arrival times.
#[btf_map]
static MINIMAL: LruPerCpuHashMap<u32, u64, 262_144> = LruPerCpuHashMap::new();

/// What the kernel itself takes for a dropped packet.
#[xdp(frags)]
fn bare_drop(_ctx: XdpContext) -> u32 {
    XDP_DROP
}

/// The same without support for frames of several buffers.
#[xdp]
fn plain_drop(_ctx: XdpContext) -> u32 {
    XDP_DROP
}

/// Hands the packet to the network stack.
#[xdp(frags)]
fn bare_pass(_ctx: XdpContext) -> u32 {
    XDP_PASS
}

/// A random IPv4 source for the next program.
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
#[xdp(frags)]
fn random_source4(ctx: XdpContext) -> u32 {
    rewrite4(&ctx, &NEXT)
}

/// A random IPv6 /64 for the next program.
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
#[xdp(frags)]
fn random_source6(ctx: XdpContext) -> u32 {
    rewrite6(&ctx, &NEXT)
}

/// [`random_source4`] for programs without support for several buffers.
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
#[xdp]
fn plain_source4(ctx: XdpContext) -> u32 {
    rewrite4(&ctx, &NEXT_PLAIN)
}

/// [`random_source6`] for programs without support for several buffers.
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
#[xdp]
fn plain_source6(ctx: XdpContext) -> u32 {
    rewrite6(&ctx, &NEXT_PLAIN)
}

/// Bytes of the longest packet that [`replay`] writes.
const LONGEST: u32 = 2048;

/// A packet and when it comes.
#[derive(Clone, Copy)]
#[repr(C)]
struct Recorded {
    /// Nanoseconds and timer ticks, for [`CLOCK`].
    time: [u64; 2],
    /// Bytes of the packet, at least 14.
    length: u32,
    _padding: u32,
    bytes: [u8; LONGEST as usize],
}

/// The packets of [`replay`], in order.
#[btf_map]
static RECORDED: Array<Recorded, 1024> = Array::new();

/// Number of the next one.
#[btf_map]
static POSITION: Array<u32, 1> = Array::new();

/// The clock of the program under test; both objects share it by its pin.
#[btf_map]
static CLOCK: Array<u64, 2> = Array::new();

/// Makes the packet the next recorded one, sets the clock to its time, and
/// goes on to the next program.
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
#[xdp(frags)]
fn replay(ctx: XdpContext) -> u32 {
    let (Some(position), Some(now), Some(tick)) =
        (POSITION.get_ptr_mut(0), CLOCK.get_ptr_mut(0), CLOCK.get_ptr_mut(1))
    else {
        return XDP_ABORTED;
    };
    // SAFETY: a map value; one CPU replays at a time.
    let at = unsafe { *position };
    let Some(packet) = RECORDED.get_ptr_mut(at) else {
        return XDP_ABORTED;
    };
    // SAFETY: as above.
    unsafe { *position = at.wrapping_add(1) };
    // SAFETY: a map value.
    let packet = unsafe { &*packet };
    // SAFETY: a map value.
    unsafe { *now = packet.time[0] };
    // SAFETY: a map value.
    unsafe { *tick = packet.time[1] };
    let length = packet.length;
    if length == 0 || length > LONGEST {
        return XDP_ABORTED;
    }
    // SAFETY: the context is the one that the kernel passed in.
    let present = (unsafe { bpf_xdp_get_buff_len(ctx.ctx) } & 0xffff_ffff) as u32;
    let change = length.wrapping_sub(present).cast_signed();
    // SAFETY: as above.
    if unsafe { bpf_xdp_adjust_tail(ctx.ctx, change) } != 0 {
        return XDP_ABORTED;
    }
    let bytes = packet.bytes.as_ptr().cast_mut().cast();
    // SAFETY: so many bytes are there, of the packet and of the map value.
    if unsafe { bpf_xdp_store_bytes(ctx.ctx, 0, bytes, length) } != 0 {
        return XDP_ABORTED;
    }
    // SAFETY: the context is the one that the kernel passed in.
    unsafe { NEXT.tail_call(&ctx, 0) };
    XDP_ABORTED
}

/// The least that a limiter per source can be: no parser, no policy, no
/// counters, and as many limits as there are CPUs.
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
#[xdp(frags)]
fn minimal4(ctx: XdpContext) -> u32 {
    minimal(&ctx, IPV4_SOURCE)
}

/// The same for IPv6.
#[expect(clippy::needless_pass_by_value, reason = "the macro's signature")]
#[xdp(frags)]
fn minimal6(ctx: XdpContext) -> u32 {
    minimal(&ctx, IPV6_SUBNET)
}

/// The address of so many bytes at an offset of the packet, if they are there.
#[inline(always)]
fn at(ctx: &XdpContext, offset: usize, length: usize) -> Option<usize> {
    let address = ctx.data() + offset;
    if address + length > ctx.data_end() { None } else { Some(address) }
}

#[inline(always)]
fn minimal(ctx: &XdpContext, offset: usize) -> u32 {
    /// One packet per second, 10 at once.
    const INTERVAL_NS: u64 = 1_000_000_000;
    const SPAN_NS: u64 = 10 * INTERVAL_NS;
    let Some(address) = at(ctx, offset, size_of::<u32>()) else {
        return XDP_ABORTED;
    };
    // SAFETY: four bytes from `address` on lie inside the packet.
    let source = unsafe { (address as *const u32).read_unaligned() };
    // SAFETY: takes nothing.
    let now = unsafe { bpf_ktime_get_ns() };
    let Some(bucket) = MINIMAL.get_ptr_mut(source) else {
        // A full table evicts; what fails is denied.
        return match MINIMAL.insert(source, now + INTERVAL_NS, BPF_NOEXIST.into()) {
            Ok(()) => XDP_PASS,
            Err(_) => XDP_DROP,
        };
    };
    // SAFETY: this CPU's own value.
    let bucket = unsafe { &mut *bucket };
    let from = if *bucket > now { *bucket } else { now };
    if from + INTERVAL_NS > now + SPAN_NS {
        return XDP_DROP;
    }
    *bucket = from + INTERVAL_NS;
    XDP_PASS
}

#[inline(always)]
fn rewrite4(ctx: &XdpContext, next: &ProgramArray<1>) -> u32 {
    let Some([source, _]) = source() else {
        return XDP_ABORTED;
    };
    if !write(ctx, IPV4_SOURCE, source) || !mend_checksum(ctx) {
        return XDP_ABORTED;
    }
    // SAFETY: the context is the one that the kernel passed in.
    unsafe { next.tail_call(ctx, 0) };
    XDP_ABORTED
}

#[inline(always)]
fn rewrite6(ctx: &XdpContext, next: &ProgramArray<1>) -> u32 {
    let Some([source, host]) = source() else {
        return XDP_ABORTED;
    };
    if !write(ctx, IPV6_SUBNET, source) || !write(ctx, IPV6_HOST, host) {
        return XDP_ABORTED;
    }
    // SAFETY: the context is the one that the kernel passed in.
    unsafe { next.tail_call(ctx, 0) };
    XDP_ABORTED
}

/// The next source, as a number, and the number of its host.
#[inline(always)]
fn source() -> Option<[u32; 2]> {
    let (shape, state) = (SHAPE.get(0)?, RANDOM.get_ptr_mut(0)?);
    // SAFETY: this CPU's own value.
    let state = unsafe { &mut *state };
    let [mut word, packets] = *state;
    if word == 0 {
        word = 0x9e37_79b9;
    }
    // Marsaglia, "Xorshift RNGs" (2003): period 2^32 - 1.
    word ^= word << 13;
    word ^= word >> 17;
    word ^= word << 5;
    *state = [word, packets.wrapping_add(1)];
    let host = (word & shape.host_mask) ^ 1;
    if shape.listed != 0 {
        word = *LIST.get(shape.first.wrapping_add(packets % shape.listed))? ^ BASE;
    }
    let mask = if shape.every_other & packets & 1 == 1 { 0 } else { shape.mask };
    Some([(word & mask) ^ BASE, host])
}

/// Writes a number in network order.
#[inline(always)]
fn write(ctx: &XdpContext, offset: usize, number: u32) -> bool {
    let Some(address) = at(ctx, offset, size_of::<u32>()) else {
        return false;
    };
    // SAFETY: four bytes from `address` on lie inside the packet.
    unsafe { (address as *mut u32).write_unaligned(number.to_be()) };
    true
}

/// Writes the checksum of an IPv4 header without options (RFC 1071).
#[inline(always)]
fn mend_checksum(ctx: &XdpContext) -> bool {
    const WORDS: usize = 10;
    let Some(header) = at(ctx, IPV4, WORDS * size_of::<u16>()) else {
        return false;
    };
    let mut sum = 0u32;
    for word in 0..WORDS {
        let address = header + word * size_of::<u16>();
        if address != header + IPV4_CHECKSUM - IPV4 {
            // SAFETY: inside the header.
            sum += u32::from(unsafe { (address as *const u16).read_unaligned() });
        }
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !((sum & 0xffff) as u16);
    // SAFETY: inside the header.
    unsafe { ((header + IPV4_CHECKSUM - IPV4) as *mut u16).write_unaligned(checksum) };
    true
}

/// On a host the crate is only checked.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
