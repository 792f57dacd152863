//! Who is allowed, banned or denied, whatever a policy says.
//!
//! One entry of a prefix says everything about it: until when it is allowed
//! and banned at run time, and what the rules of each generation say. Single
//! addresses and IPv6 /64s stand in a hash table, other prefixes in a trie; two
//! bitmaps in front of them spare nearly every packet of others both looks.

use crate::{
    bucket::Clock,
    source::{Address, Seed, mix},
    tables::Tables,
    verdict::Reason,
};

/// For ever, as the end of an entry.
pub const FOREVER: u64 = u64::MAX;

/// What is said about one prefix: value of the maps `LISTS_EXACT` and
/// `LISTS_PREFIX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Listing {
    /// Until when it is allowed at run time: nanoseconds since the boot, time
    /// asleep included; 0 for not at all.
    pub allowed_until: u64,
    /// Until when it is banned, likewise.
    pub banned_until: u64,
    /// What the rules say: bits 0 and 1 for slot 0, bits 2 and 3 for slot 1.
    configured: u64,
}

/// What the rules say about a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum Configured {
    /// It is allowed.
    Allow = 1,
    /// It is denied.
    Deny = 2,
}

/// Key of the map `LISTS_EXACT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct ExactKey {
    /// Address in network order, IPv4 as IPv4-mapped IPv6, host bits zero.
    pub address: [u32; 4],
    /// 128 or 64.
    pub length: u32,
    _padding: u32,
}

const _: () = assert!(size_of::<Listing>() == 24 && align_of::<Listing>() == 8);
const _: () = assert!(size_of::<ExactKey>() == 24);

impl Listing {
    /// Allowed and banned until then, and nothing that the rules say.
    #[must_use]
    pub const fn new(allowed_until: u64, banned_until: u64) -> Self {
        Self { allowed_until, banned_until, configured: 0 }
    }

    /// Whether nothing is said.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.allowed_until == 0 && self.banned_until == 0 && self.configured == 0
    }

    /// With what the rules in `slot` say, and nothing else of theirs.
    #[must_use]
    pub const fn with_configured(mut self, slot: u32, allow: bool, deny: bool) -> Self {
        let shift = (slot & 1) * 2;
        let bits = (allow as u64) | (deny as u64) << 1;
        self.configured = self.configured & !(3 << shift) | bits << shift;
        self
    }

    /// Whether the rules in `slot` say so.
    #[inline(always)]
    #[must_use]
    pub const fn is_configured(&self, slot: u32, what: Configured) -> bool {
        self.configured >> ((slot & 1) * 2) & what as u64 != 0
    }

    /// What is said here or there.
    #[inline(always)]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        const fn later(a: u64, b: u64) -> u64 {
            if a > b { a } else { b }
        }
        Self {
            allowed_until: later(self.allowed_until, other.allowed_until),
            banned_until: later(self.banned_until, other.banned_until),
            configured: self.configured | other.configured,
        }
    }

    /// Whether it says this in a slot, whatever beats it.
    #[must_use]
    pub fn says(&self, slot: u32, reason: Reason, clock: &impl Clock) -> bool {
        match reason {
            Reason::Allowed => {
                self.is_configured(slot, Configured::Allow) || lasts(self.allowed_until, clock)
            }
            Reason::Banned => lasts(self.banned_until, clock),
            Reason::Denied => self.is_configured(slot, Configured::Deny),
            _ => false,
        }
    }

    /// The same by a clock that shows `there` when this one shows `here`.
    #[must_use]
    pub const fn moved(self, here: u64, there: u64) -> Self {
        const fn moved(until: u64, here: u64, there: u64) -> u64 {
            match until {
                0 | FOREVER => until,
                until if until <= here => 0,
                until => (until - here).saturating_add(there),
            }
        }
        Self {
            allowed_until: moved(self.allowed_until, here, there),
            banned_until: moved(self.banned_until, here, there),
            configured: self.configured,
        }
    }

    /// Why a packet from here needs no policy: allow beats ban beats deny.
    #[inline(always)]
    #[must_use]
    pub fn reason(&self, slot: u32, clock: &impl Clock) -> Option<Reason> {
        if self.is_configured(slot, Configured::Allow) || lasts(self.allowed_until, clock) {
            Some(Reason::Allowed)
        } else if lasts(self.banned_until, clock) {
            Some(Reason::Banned)
        } else if self.is_configured(slot, Configured::Deny) {
            Some(Reason::Denied)
        } else {
            None
        }
    }
}

/// The clock is read only where it matters.
#[inline(always)]
fn lasts(until: u64, clock: &impl Clock) -> bool {
    until == FOREVER || (until != 0 && clock.boot_ns() < until)
}

impl ExactKey {
    /// A single address, IPv4 as IPv4-mapped IPv6.
    #[inline(always)]
    #[must_use]
    pub const fn single(address: [u32; 4]) -> Self {
        Self { address, length: 128, _padding: 0 }
    }

    /// The /64 of an IPv6 address.
    #[inline(always)]
    #[must_use]
    pub const fn subnet([a, b, _, _]: [u32; 4]) -> Self {
        Self { address: [a, b, 0, 0], length: 64, _padding: 0 }
    }
}

/// What the lists hold, as bits of [`crate::control::Control::lists`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents(pub u64);

impl Contents {
    /// Single IPv4 addresses.
    pub const EXACT4: Self = Self(1);
    /// Single IPv6 addresses or /64s.
    pub const EXACT6: Self = Self(1 << 1);
    /// Other IPv4 prefixes.
    pub const PREFIX4: Self = Self(1 << 2);
    /// Other IPv6 prefixes.
    pub const PREFIX6: Self = Self(1 << 3);
    /// IPv4 prefixes shorter than [`COARSE4`].
    pub const SHORT4: Self = Self(1 << 4);
    /// IPv6 prefixes shorter than [`COARSE6`].
    pub const SHORT6: Self = Self(1 << 5);

    /// Whether all of `other` is in it.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Entries of each of the two tables.
pub const MAX_ENTRIES: u32 = 1 << 18;
/// IPv4 prefixes of at least this length have one bit in the coarse bitmap.
pub const COARSE4: u8 = 16;
/// The same for IPv6.
pub const COARSE6: u8 = 32;
const EXACT_BITS: u32 = 1 << 21;
const COARSE_BITS: u32 = 1 << 16;
/// Words of 64 bits in the map `LISTED`: single addresses, then IPv4 and then
/// IPv6 prefixes.
pub const WORDS: u32 = (EXACT_BITS + 2 * COARSE_BITS) / 64;

/// A bit of the map `LISTED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bit(u32);

impl Bit {
    /// That of a single address or a /64: a clear bit says that it is in no
    /// exact entry.
    #[inline(always)]
    #[must_use]
    pub const fn exact(address: Address, seed: Seed) -> Self {
        let word = match address {
            Address::V4(address) => address as u64,
            Address::V6([a, b, _, _]) => (a as u64) << 32 | b as u64,
        };
        Self((mix(seed[0], word) & 0xffff_ffff) as u32 & (EXACT_BITS - 1))
    }

    /// That of the wider prefix: a clear bit says that the address is in no
    /// prefix that has such a bit.
    #[inline(always)]
    #[must_use]
    pub const fn coarse(address: Address, seed: Seed) -> Self {
        match address {
            Address::V4(address) => Self(EXACT_BITS + (u32::from_be(address) >> 16)),
            Address::V6([a, ..]) => {
                let spread = mix(seed[0], a as u64) & 0xffff_ffff;
                Self(EXACT_BITS + COARSE_BITS + (spread as u32 & (COARSE_BITS - 1)))
            }
        }
    }

    /// The word below [`WORDS`] that it is in.
    #[inline(always)]
    #[must_use]
    pub const fn word(self) -> u32 {
        self.0 / 64
    }

    /// The word with this bit alone.
    #[inline(always)]
    #[must_use]
    pub const fn mask(self) -> u64 {
        1 << (self.0 % 64)
    }
}

/// Why a packet from an address needs no policy, if it does not; IPv4 as
/// IPv4-mapped IPv6.
#[inline(always)]
pub fn look_up<T: Tables>(
    words: &[u32; 4],
    contents: Contents,
    slot: u32,
    tables: &T,
) -> Option<Reason> {
    let address = Address::from_words(*words);
    let (exact, prefix, short) = match address {
        Address::V4(_) => (Contents::EXACT4, Contents::PREFIX4, Contents::SHORT4),
        Address::V6(_) => (Contents::EXACT6, Contents::PREFIX6, Contents::SHORT6),
    };
    let seed = tables.seed();
    let is_set = |bit: Bit| tables.listed(bit.word()) & bit.mask() != 0;
    let mut found = Listing::default();
    if contents.has(exact) && is_set(Bit::exact(address, seed)) {
        let listing = |key| tables.listing(&key).unwrap_or_default();
        found = listing(ExactKey::single(*words));
        if let Address::V6(_) = address {
            found = found.and(listing(ExactKey::subnet(*words)));
        }
    }
    if contents.has(prefix) && (contents.has(short) || is_set(Bit::coarse(address, seed))) {
        found = found.and(tables.listing_around(words).unwrap_or_default());
    }
    found.reason(slot, tables)
}

// SAFETY: repr(C), integers only, no padding (sizes asserted above).
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for Listing {}
// SAFETY: as above.
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for ExactKey {}

#[cfg(test)]
mod tests {
    use super::*;

    struct Boot(u64);

    impl Clock for Boot {
        fn now_ns(&self) -> u64 {
            unreachable!("another clock")
        }
        fn tick(&self) -> u64 {
            unreachable!("another clock")
        }
        fn coarse_ns(&self) -> u64 {
            unreachable!("another clock")
        }
        fn boot_ns(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn allow_beats_ban_beats_deny_and_each_ends_on_time() {
        let denied = Listing::default().with_configured(1, false, true);
        let banned = Listing { banned_until: 100, ..denied };
        let allowed = Listing { allowed_until: 50, ..banned };
        let at = |now| [denied, banned, allowed].map(|listing| listing.reason(1, &Boot(now)));
        let [deny, ban, allow] = [Reason::Denied, Reason::Banned, Reason::Allowed].map(Some);
        assert_eq!(at(0), [deny, ban, allow]);
        assert_eq!(at(49), [deny, ban, allow]);
        assert_eq!(at(50), [deny, ban, ban]);
        assert_eq!(at(100), [deny, deny, deny]);
        assert_eq!(denied.reason(0, &Boot(0)), None);
        let both = banned.with_configured(1, true, true);
        assert_eq!(both.reason(1, &Boot(0)), allow);
        assert_eq!(both.with_configured(1, false, false).reason(1, &Boot(100)), None);
    }

    #[test]
    fn for_ever_needs_no_clock() {
        struct None;
        impl Clock for None {
            fn now_ns(&self) -> u64 {
                unreachable!("not needed")
            }
            fn tick(&self) -> u64 {
                unreachable!("not needed")
            }
            fn coarse_ns(&self) -> u64 {
                unreachable!("not needed")
            }
            fn boot_ns(&self) -> u64 {
                unreachable!("not needed")
            }
        }
        let banned = Listing { banned_until: FOREVER, ..Listing::default() };
        assert_eq!(banned.reason(0, &None), Some(Reason::Banned));
        assert_eq!(Listing::default().reason(0, &None), Option::None);
    }

    #[test]
    fn bits_lie_in_the_map() {
        let seed = [0x5eed, 7];
        for n in 0..1000u32 {
            let n = n.wrapping_mul(0x9e37_79b9);
            for address in [Address::V4(n), Address::V6([n, !n, 3, 4])] {
                assert!(Bit::exact(address, seed).word() < EXACT_BITS / 64);
                let coarse = Bit::coarse(address, seed).word();
                assert!((EXACT_BITS / 64..WORDS).contains(&coarse));
            }
        }
    }
}
