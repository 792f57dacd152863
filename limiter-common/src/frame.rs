//! The bytes of one received frame, as the parser sees them.

use network_types::{
    icmp::Icmpv4Hdr,
    ip::{Ipv4Hdr, Ipv6Hdr},
    udp::UdpHdr,
};

use crate::{
    class::{self, Set},
    parse::Shape,
    tables::Tables,
};

/// A frame whose headers are read in place.
pub trait Frame {
    /// Bytes that are directly readable, from the Ethernet header on.
    fn head(&self) -> u32;

    /// Bytes present, also those that are not directly readable (the later
    /// buffers of a multi-buffer frame). Costs more than [`Frame::head`].
    fn whole(&self) -> u32;

    /// The header at `offset`, if all of it is directly readable.
    fn header<T: Header>(&self, offset: u32) -> Option<&T>;

    /// [`class::classes_of`]; in the kernel a function of its own.
    fn classes_of<T: Tables>(&self, shape: Shape, source: &[u32; 4], slot: u32, tables: &T) -> Set
    where
        Self: Sized,
    {
        class::classes_of(self, shape, source, slot, tables)
    }
}

/// A wire header that can be read at any address.
///
/// # Safety
/// The type has alignment 1, no padding, and every bit pattern is a value.
pub unsafe trait Header: Copy {}

macro_rules! headers {
    ($($type:ty: $length:literal),+ $(,)?) => {$(
        const _: () = assert!(align_of::<$type>() == 1 && size_of::<$type>() == $length);
        // SAFETY: byte arrays only; alignment and size are asserted above.
        unsafe impl Header for $type {}
    )+};
}

headers!(Ipv4Hdr: 20, Ipv6Hdr: 40, UdpHdr: 8, Icmpv4Hdr: 8);

// SAFETY: bytes.
unsafe impl<const N: usize> Header for [u8; N] {}

/// A frame held in ordinary memory, all of it readable.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a>(pub &'a [u8]);

impl Frame for Linear<'_> {
    fn head(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn whole(&self) -> u32 {
        self.head()
    }

    fn header<T: Header>(&self, offset: u32) -> Option<&T> {
        let bytes = self.0.get(offset as usize..)?.get(..size_of::<T>())?;
        // SAFETY: `bytes` holds size_of::<T>() bytes and `Header` promises
        // alignment 1 and that any bytes are a value.
        Some(unsafe { &*bytes.as_ptr().cast::<T>() })
    }
}
