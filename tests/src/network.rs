//! Prefixes as rows of bits: what the tables of prefixes are held against.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fastrand::Rng;
use limiter_user::prefix::Prefix;

/// A prefix; an IPv4-mapped one is the IPv4 prefix that it maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    is_ipv4: bool,
    /// From the highest bit on, those beyond the length zero.
    bits: u128,
    length: u32,
}

/// Bits of `::ffff:0:0/96`.
const MAPPED: u32 = 96;

/// An address as its family and its bits from the highest one on.
fn bits(address: IpAddr) -> (bool, u128) {
    match address.to_canonical() {
        IpAddr::V4(address) => (true, u128::from(u32::from(address)) << MAPPED),
        IpAddr::V6(address) => (false, u128::from(address)),
    }
}

fn address(is_ipv4: bool, bits: u128) -> IpAddr {
    if is_ipv4 {
        Ipv4Addr::from(u32::try_from(bits >> MAPPED).expect("32 bits")).into()
    } else {
        Ipv6Addr::from(bits).into()
    }
}

/// Bits beyond a length.
fn host_bits(length: u32) -> u128 {
    u128::MAX.checked_shr(length).unwrap_or(0)
}

impl Network {
    /// The prefix of that length, in bits of its family, around an address.
    #[must_use]
    pub fn new(around: IpAddr, length: u32) -> Self {
        match around {
            IpAddr::V4(_) => {
                Self { is_ipv4: true, bits: bits(around).1 & !host_bits(length), length }
            }
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) if length >= MAPPED => Self::new(v4.into(), length - MAPPED),
                // Of wider ones, IPv4-mapped addresses are only a part.
                _ => Self { is_ipv4: false, bits: u128::from(v6) & !host_bits(length), length },
            },
        }
    }

    /// Whether it is IPv4.
    #[must_use]
    pub const fn is_ipv4(&self) -> bool {
        self.is_ipv4
    }

    /// Its length in bits, of its family.
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Whether an address lies inside, an IPv4-mapped one as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (is_ipv4, bits) = bits(address);
        is_ipv4 == self.is_ipv4 && bits & !host_bits(self.length) == self.bits
    }

    /// As the code under test has it, made from IPv4-mapped IPv6 if wished.
    #[must_use]
    pub fn prefix(&self, from_mapped: bool) -> Prefix {
        let (address, length) = match address(self.is_ipv4, self.bits) {
            IpAddr::V4(first) if from_mapped => {
                (first.to_ipv6_mapped().into(), self.length + MAPPED)
            }
            first => (first, self.length),
        };
        Prefix::new(address, u8::try_from(length).expect("at most 128"))
    }

    /// An address inside, on an edge, or next to one.
    pub fn near(&self, rng: &mut Rng) -> IpAddr {
        // Between one address and the next.
        let step = if self.is_ipv4 { 1 << MAPPED } else { 1 };
        let hosts = host_bits(self.length) & !(step - 1);
        let bits = match rng.u8(..8) {
            0 => self.bits,
            1 => self.bits | hosts,
            2 => self.bits.wrapping_sub(step),
            3 => (self.bits | hosts).wrapping_add(step),
            _ => self.bits | rng.u128(..) & hosts,
        };
        address(self.is_ipv4, bits)
    }
}

/// Networks that often lie in one another, of all lengths, around a few
/// addresses, and those in which much or everything lies.
#[must_use]
pub fn overlapping(rng: &mut Rng, count: usize) -> Vec<Network> {
    const FIXED: [&str; 3] = ["::1", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3"];
    const WIDE: [(&str, u32); 5] =
        [("0.0.0.0", 0), ("::ffff:10.1.2.3", 90), ("::", 0), ("::", 64), ("::", 80)];
    let parse = |text: &str| -> IpAddr { text.parse().expect("an address") };
    let bases: Vec<_> = (0..3)
        .flat_map(|_| [address(true, rng.u128(..)), address(false, 2 << 124 | rng.u128(..) >> 4)])
        .chain(FIXED.map(parse))
        .collect();
    let one = |_| {
        let base = bases[rng.usize(..bases.len())];
        let longest = if base.is_ipv4() { 32 } else { 128 };
        let length = match rng.u8(..8) {
            0 => longest,
            1 => rng.u32(..4) * longest / 4,
            2 => longest / 2,
            3 => longest - rng.u32(..=longest / 8),
            _ => rng.u32(..=longest),
        };
        // Sometimes another one of the same length, close by.
        let base = if rng.bool() { base } else { Network::new(base, length).near(rng) };
        let length = if base.is_ipv4() { length.min(32) } else { length };
        Network::new(base, length)
    };
    let mut networks: Vec<_> = (0..count).map(one).collect();
    networks.extend(WIDE.map(|(text, length)| Network::new(parse(text), length)));
    networks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_apart_and_mapped_is_ipv4() {
        for (network, length, address, is_inside) in [
            ("10.0.0.0", 8, "::ffff:10.9.9.9", true),
            ("::ffff:10.0.0.0", 104, "10.9.9.9", true),
            ("::ffff:10.0.0.0", 104, "11.0.0.0", false),
            ("::", 0, "10.9.9.9", false),
            ("0.0.0.0", 0, "::1", false),
            ("::ffff:10.0.0.0", 95, "10.9.9.9", false),
            ("::ffff:10.0.0.0", 95, "::fffe:1:2", true),
            ("10.1.2.3", 32, "10.1.2.3", true),
            ("10.1.2.3", 32, "10.1.2.2", false),
            ("2001:db8::", 127, "2001:db8::1", true),
            ("2001:db8::", 127, "2001:db8::2", false),
        ] {
            let found =
                Network::new(network.parse().unwrap(), length).contains(address.parse().unwrap());
            assert_eq!(found, is_inside, "{address} in {network}/{length}");
        }
    }
}
