//! Who sent a packet, and the key of its bucket.

/// A source address; IPv4-mapped IPv6 addresses are IPv4 ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4, in network order.
    V4([u8; 4]),
    /// IPv6, in network order.
    V6([u8; 16]),
}

/// Key of an IPv4 source's bucket in the map `SOURCES4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Key4 {
    /// The prefix in network order, host bits zero.
    pub prefix: [u8; 4],
    /// Index of the policy that limits.
    pub policy: u32,
}
