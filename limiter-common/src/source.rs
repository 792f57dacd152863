//! Who sent a packet, and the keys of its buckets.

/// A source address in network order, as native words; IPv4-mapped IPv6
/// addresses are the IPv4 addresses that they map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4.
    V4(u32),
    /// IPv6.
    V6([u32; 4]),
}

/// The third word of `::ffff:0:0/96` in network order.
const MAPPED: u32 = 0x0000_ffff_u32.to_be();

impl Address {
    /// From the four bytes on the wire.
    #[inline(always)]
    #[must_use]
    pub const fn from_ipv4(bytes: [u8; 4]) -> Self {
        Self::V4(u32::from_ne_bytes(bytes))
    }

    /// From the sixteen bytes on the wire.
    #[inline(always)]
    #[must_use]
    pub const fn from_ipv6(b: [u8; 16]) -> Self {
        // Word by word: a copy as a whole may become a call to memcpy, which
        // the verifier refuses without CAP_PERFMON.
        let words = [
            u32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
            u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
            u32::from_ne_bytes([b[8], b[9], b[10], b[11]]),
            u32::from_ne_bytes([b[12], b[13], b[14], b[15]]),
        ];
        if words[0] == 0 && words[1] == 0 && words[2] == MAPPED {
            Self::V4(words[3])
        } else {
            Self::V6(words)
        }
    }
}

/// What counts as one source: masks in network order, as native words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SourcePrefix {
    mask4: u32,
    mask6: [u32; 4],
}

impl SourcePrefix {
    /// One source per IPv4 address and per IPv6 /64: a host owns a whole /64
    /// and can change its address within it at will.
    pub const DEFAULT: Self = Self::new(32, 64);

    /// Prefix lengths in bits; longer ones than an address has mean all of it.
    #[must_use]
    pub const fn new(ipv4: u32, ipv6: u32) -> Self {
        Self {
            mask4: mask(ipv4, 0),
            mask6: [mask(ipv6, 0), mask(ipv6, 1), mask(ipv6, 2), mask(ipv6, 3)],
        }
    }

    /// Key of an IPv4 source's bucket.
    #[inline(always)]
    #[must_use]
    pub const fn key4(&self, address: u32, policy: u32) -> Key4 {
        Key4 { prefix: address & self.mask4, policy }
    }

    /// Key of an IPv6 source's bucket.
    #[inline(always)]
    #[must_use]
    pub const fn key6(&self, address: [u32; 4], policy: u32) -> Key6 {
        Key6 {
            prefix: [
                address[0] & self.mask6[0],
                address[1] & self.mask6[1],
                address[2] & self.mask6[2],
                address[3] & self.mask6[3],
            ],
            policy,
        }
    }
}

/// Word number `word` of a mask of `bits` leading ones, in network order.
const fn mask(bits: u32, word: u32) -> u32 {
    let ones = bits.saturating_sub(word * 32);
    let host = if ones >= 32 { u32::MAX } else { !(u32::MAX >> ones) };
    host.to_be()
}

/// Key of the map `SOURCES4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Key4 {
    /// Source prefix in network order, host bits zero.
    pub prefix: u32,
    /// Index of the policy that limits it.
    pub policy: u32,
}

/// Key of the map `SOURCES6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Key6 {
    /// Source prefix in network order, host bits zero.
    pub prefix: [u32; 4],
    /// Index of the policy that limits it.
    pub policy: u32,
}

const _: () = assert!(size_of::<Key4>() == 8 && align_of::<Key4>() == 4);
const _: () = assert!(size_of::<Key6>() == 20 && align_of::<Key6>() == 4);

/// A key that says which CPU keeps its bucket's shared word.
pub trait Key: Copy {
    /// A number that spreads keys evenly over 32 bits, different for each
    /// `seed`, so that nobody can aim his sources at one CPU.
    fn spread(&self, seed: u32) -> u32;

    /// The CPU below `cpus` that keeps the shared word.
    #[inline(always)]
    fn home(&self, seed: u32, cpus: u32) -> u32 {
        ((u64::from(self.spread(seed)) * u64::from(cpus)) >> 32) as u32
    }
}

/// Folds a word into a hash: multiplication by odd constants carries low bits
/// up, the fold brings high ones down.
#[inline(always)]
const fn mix(hash: u64, word: u32) -> u64 {
    let product = (hash ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

/// The 32 bits in the middle, which all the others have reached.
#[inline(always)]
const fn middle(hash: u64) -> u32 {
    (hash >> 16 & 0xffff_ffff) as u32
}

impl Key for Key4 {
    #[inline(always)]
    fn spread(&self, seed: u32) -> u32 {
        let hash = mix(mix(u64::from(seed), self.prefix), self.policy);
        middle(hash)
    }
}

impl Key for Key6 {
    #[inline(always)]
    fn spread(&self, seed: u32) -> u32 {
        let low = mix(mix(u64::from(seed), self.prefix[0]), self.prefix[1]);
        let high = mix(mix(low, self.prefix[2]), self.prefix[3]);
        middle(mix(high, self.policy))
    }
}

// SAFETY: repr(C), integers only, no padding (sizes asserted above).
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for Key4 {}
// SAFETY: as above.
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for Key6 {}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(text: &str) -> Address {
        Address::from_ipv6(text.parse::<std::net::Ipv6Addr>().unwrap().octets())
    }

    fn v4(text: &str) -> Address {
        Address::from_ipv4(text.parse::<std::net::Ipv4Addr>().unwrap().octets())
    }

    #[test]
    fn mapped_and_plain_ipv4_are_one_source() {
        assert_eq!(v6("::ffff:192.0.2.1"), v4("192.0.2.1"));
        assert_ne!(v6("::fffe:192.0.2.1"), v4("192.0.2.1"));
        assert_ne!(v6("::192.0.2.1"), v4("192.0.2.1"));
        assert_ne!(v6("1::ffff:192.0.2.1"), v4("192.0.2.1"));
    }

    fn key6(prefix: SourcePrefix, text: &str) -> Key6 {
        match v6(text) {
            Address::V6(words) => prefix.key6(words, 0),
            Address::V4(_) => panic!("{text} is IPv4"),
        }
    }

    #[test]
    fn one_ipv6_source_per_prefix_of_any_length() {
        let a = "2001:db8:1:2:3:4:5:6";
        for (length, near, far) in [
            (64, "2001:db8:1:2:ffff::1", "2001:db8:1:3:3:4:5:6"),
            (48, "2001:db8:1:ffff::1", "2001:db8:2:2:3:4:5:6"),
            (56, "2001:db8:1:ff::1", "2001:db8:1:102:3:4:5:6"),
            (127, "2001:db8:1:2:3:4:5:7", "2001:db8:1:2:3:4:5:4"),
        ] {
            let prefix = SourcePrefix::new(32, length);
            assert_eq!(key6(prefix, a), key6(prefix, near), "/{length}");
            assert_ne!(key6(prefix, a), key6(prefix, far), "/{length}");
        }
        let all = SourcePrefix::new(0, 0);
        assert_eq!(key6(all, a), key6(all, "fe80::1"));
        let each = SourcePrefix::new(32, 128);
        assert_ne!(key6(each, a), key6(each, "2001:db8:1:2:3:4:5:7"));
    }

    #[test]
    fn homes_are_even_and_move_with_the_seed() {
        for cpus in [1u32, 2, 3, 64, 384] {
            let mut count = vec![0u32; cpus as usize];
            let keys = 4096 * cpus;
            for n in 0u32..keys {
                let key = Key4 { prefix: n.to_be(), policy: 0 };
                count[key.home(7, cpus) as usize] += 1;
            }
            for (cpu, n) in count.iter().enumerate() {
                assert!((3600..4600).contains(n), "{cpus} CPUs: CPU {cpu} is home of {n} keys");
            }
        }
        let key = Key6 { prefix: [1, 2, 0, 0], policy: 3 };
        let homes: std::collections::HashSet<_> = (0..64).map(|seed| key.home(seed, 64)).collect();
        assert!(homes.len() > 30);
    }
}
