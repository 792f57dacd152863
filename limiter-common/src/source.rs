//! Who sent a packet, and the keys of its buckets.

use crate::level::LIMITS;

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
        Self::from_words([
            u32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
            u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
            u32::from_ne_bytes([b[8], b[9], b[10], b[11]]),
            u32::from_ne_bytes([b[12], b[13], b[14], b[15]]),
        ])
    }

    /// From the words of an IPv6 address.
    #[inline(always)]
    #[must_use]
    pub const fn from_words(words: [u32; 4]) -> Self {
        if words[0] == 0 && words[1] == 0 && words[2] == MAPPED {
            Self::V4(words[3])
        } else {
            Self::V6(words)
        }
    }

    /// As IPv6; IPv4 as IPv4-mapped.
    #[inline(always)]
    #[must_use]
    pub const fn mapped(self) -> [u32; 4] {
        match self {
            Self::V4(address) => [0, 0, MAPPED, address],
            Self::V6(words) => words,
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

    /// One wider prefix per IPv4 /24, the smallest that is routed, and per
    /// IPv6 /48, what a site is given.
    pub const WIDER: Self = Self::new(24, 48);

    /// Prefix lengths in bits; longer ones than an address has mean all of it.
    #[must_use]
    pub const fn new(ipv4: u32, ipv6: u32) -> Self {
        Self {
            mask4: mask(ipv4, 0),
            mask6: [mask(ipv6, 0), mask(ipv6, 1), mask(ipv6, 2), mask(ipv6, 3)],
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
    /// Number of the limit ([`crate::level::limit_number`]).
    pub limit: u32,
}

/// Key of the map `SOURCES6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Key6 {
    /// Source prefix in network order, host bits zero.
    pub prefix: [u32; 4],
    /// Number of the limit ([`crate::level::limit_number`]).
    pub limit: u32,
    /// Zero: the kernel compares whole words faster than 20 bytes.
    padding: u32,
}

const _: () = assert!(size_of::<Key4>() == 8 && align_of::<Key4>() == 4);
const _: () = assert!(size_of::<Key6>() == 24 && align_of::<Key6>() == 4);

/// Key of the map `TOTALS`: what all sources share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Total(
    /// Number of the limit ([`crate::level::limit_number`]), or of one of the
    /// gate's.
    pub u32,
);

impl Total {
    /// What all sources share under a limit.
    #[inline(always)]
    #[must_use]
    pub const fn of(limit: u32) -> Self {
        Self(limit % LIMITS)
    }

    /// The CPU below `cpus` that keeps the shared word.
    #[inline(always)]
    #[must_use]
    pub const fn home(self, cpus: u32) -> u32 {
        home((self.0 as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), cpus)
    }
}

/// Two random numbers of a load, for hashes.
pub type Seed = [u64; 2];

/// A key of a source's bucket.
pub trait Key: Copy {
    /// An address of the family.
    type Address: Copy;

    /// The key of the bucket in which an address is charged under a limit.
    fn new(address: Self::Address, prefix: &SourcePrefix, limit: u32) -> Self;

    /// A number that spreads keys evenly over 64 bits, different for each
    /// seed, so that nobody can aim his sources at one CPU or one word.
    fn spread(&self, seed: Seed) -> u64;
}

/// The CPU below `cpus` that keeps the shared word of a key, by its
/// [`Key::spread`].
#[inline(always)]
#[must_use]
pub const fn home(spread: u64, cpus: u32) -> u32 {
    (((spread >> 32) * cpus as u64) >> 32) as u32
}

/// Folds a word into a hash: multiplication by an odd constant carries low
/// bits up, the fold brings high ones down.
#[inline(always)]
pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 32)
}

impl Key for Key4 {
    type Address = u32;

    #[inline(always)]
    fn new(address: u32, prefix: &SourcePrefix, limit: u32) -> Self {
        Self { prefix: address & prefix.mask4, limit }
    }

    #[inline(always)]
    fn spread(&self, seed: Seed) -> u64 {
        let key = u64::from(self.prefix) << 32 | u64::from(self.limit);
        mix(mix(seed[0], key), seed[1])
    }
}

impl Key for Key6 {
    type Address = [u32; 4];

    #[inline(always)]
    fn new(address: [u32; 4], prefix: &SourcePrefix, limit: u32) -> Self {
        Self {
            prefix: [
                address[0] & prefix.mask6[0],
                address[1] & prefix.mask6[1],
                address[2] & prefix.mask6[2],
                address[3] & prefix.mask6[3],
            ],
            limit,
            padding: 0,
        }
    }

    #[inline(always)]
    fn spread(&self, seed: Seed) -> u64 {
        let [a, b, c, d] = self.prefix;
        let high = u64::from(a) << 32 | u64::from(b);
        let low = u64::from(c) << 32 | u64::from(d);
        mix(mix(mix(seed[0], high), low), seed[1] ^ u64::from(self.limit))
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
            Address::V6(words) => Key6::new(words, &prefix, 0),
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
                let key = Key4 { prefix: n.to_be(), limit: 0 };
                count[home(key.spread([7, 9]), cpus) as usize] += 1;
            }
            for (cpu, n) in count.iter().enumerate() {
                assert!((3600..4600).contains(n), "{cpus} CPUs: CPU {cpu} is home of {n} keys");
            }
        }
        let key = Key6 { prefix: [1, 2, 0, 0], limit: 3, padding: 0 };
        for homes in [
            (0..64).map(|seed| home(key.spread([seed, 0]), 64)).collect::<Vec<_>>(),
            (0..64).map(|seed| home(key.spread([0, seed]), 64)).collect(),
        ] {
            assert!(homes.into_iter().collect::<std::collections::HashSet<_>>().len() > 30);
        }
    }

    #[test]
    fn every_part_of_a_key_moves_its_spread() {
        let seed = [3, 5];
        let base = Key6 { prefix: [1, 2, 3, 4], limit: 5, padding: 0 };
        let mut spreads = std::collections::HashSet::from([base.spread(seed)]);
        for word in 0..4 {
            for bit in 0..32 {
                let mut key = base;
                key.prefix[word] ^= 1 << bit;
                assert!(spreads.insert(key.spread(seed)), "word {word} bit {bit}");
            }
        }
        for bit in 0..9 {
            let key = Key6 { limit: base.limit ^ (1 << bit), ..base };
            assert!(spreads.insert(key.spread(seed)), "limit bit {bit}");
        }
    }
}
