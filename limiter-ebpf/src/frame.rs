//! The only place where packet memory is read.

use aya_ebpf::{EbpfContext as _, helpers::bpf_xdp_get_buff_len, programs::XdpContext};
use limiter_common::{
    class::Set,
    frame::{Frame, Header},
    parse::Shape,
    tables::Tables,
};

use crate::steps;

/// The verifier wants to see a bound. The parser's own is far lower: eight
/// extension headers of at most 2 KiB. Where the compiler knows that, the
/// comparison is gone.
const MAX_OFFSET: u32 = 0x7fff;

/// A received frame. `start..end` is its first buffer, which drivers fill with
/// at least the headers.
pub(crate) struct XdpFrame<'a> {
    ctx: &'a XdpContext,
    start: usize,
    end: usize,
}

impl<'a> XdpFrame<'a> {
    #[inline(always)]
    pub(crate) fn new(ctx: &'a XdpContext) -> Self {
        Self { ctx, start: ctx.data(), end: ctx.data_end() }
    }
}

impl Frame for XdpFrame<'_> {
    #[inline(always)]
    fn head(&self) -> u32 {
        ((self.end - self.start) as u64 & 0xffff_ffff) as u32
    }

    #[inline(always)]
    fn whole(&self) -> u32 {
        // SAFETY: the context is the one that the kernel passed in.
        let length = unsafe { bpf_xdp_get_buff_len(self.ctx.as_ptr().cast()) };
        // At most 17 buffers of a page: far below 2^32.
        (length & 0xffff_ffff) as u32
    }

    #[inline(always)]
    fn header<T: Header>(&self, offset: u32) -> Option<&T> {
        if offset > MAX_OFFSET {
            return None;
        }
        let header = add(self.start, offset);
        if header + size_of::<T>() > self.end {
            return None;
        }
        // SAFETY: the kernel keeps the packet for as long as the program runs,
        // the comparison above keeps the access inside it, and `Header`
        // promises that any bytes at any address are a value.
        Some(unsafe { &*(header as *const T) })
    }

    #[inline(always)]
    fn classes_of<T: Tables>(
        &self,
        shape: Shape,
        source: &[u32; 4],
        slot: u32,
        _tables: &T,
    ) -> Set {
        steps::classes_of(self.ctx.as_ptr().cast(), shape.word(), source, slot)
    }
}

/// `address + offset`, in a way that hides the sum from the compiler. The
/// verifier takes a packet pointer as safe only in the very register that was
/// compared; left alone, the compiler may compute the sum once for the
/// comparison and once more for the access.
#[inline(always)]
fn add(address: usize, offset: u32) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let mut sum = address;
        // SAFETY: one addition.
        unsafe {
            core::arch::asm!(
                "{sum} += {offset}",
                sum = inout(reg) sum,
                offset = in(reg) u64::from(offset),
                options(pure, nomem, nostack),
            );
        }
        sum
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        address + offset as usize
    }
}
