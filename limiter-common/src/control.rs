//! The one value that says which rules are live.

use crate::{bucket::Clock, policy::GENERATIONS};

/// Value of the map `CONTROL`; each word is stored as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Control {
    /// Bit 0: the slot of the live rules. Bit 1: they wait to be confirmed.
    /// From bit 2 on: until when, in nanoseconds of the coarse monotonic clock.
    rules: u64,
    /// What the lists hold ([`crate::lists::Contents`]).
    pub lists: u64,
}

const _: () = assert!(size_of::<Control>() == 16 && GENERATIONS == 2);

const SLOT: u64 = 1;
const PENDING: u64 = 2;
const DEADLINE_SHIFT: u32 = 2;

/// The word that makes rules live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Slot of the rules.
    pub slot: u32,
    /// When the rules of the other slot come back, unless they are confirmed
    /// before: nanoseconds of the coarse monotonic clock, below 2^62.
    pub deadline_ns: Option<u64>,
}

impl Live {
    /// As one word.
    #[must_use]
    pub const fn word(self) -> u64 {
        let slot = self.slot as u64 & SLOT;
        match self.deadline_ns {
            None => slot,
            Some(deadline) => deadline << DEADLINE_SHIFT | PENDING | slot,
        }
    }

    /// From its word.
    #[inline(always)]
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        let deadline_ns = if word & PENDING == 0 { None } else { Some(word >> DEADLINE_SHIFT) };
        Self { slot: (word & SLOT) as u32, deadline_ns }
    }

    /// Slot of the rules that a packet meets now. So rules that nobody confirms
    /// end on time whether or not anything else still runs.
    #[inline(always)]
    #[must_use]
    pub fn slot_now(self, clock: &impl Clock) -> u32 {
        match self.deadline_ns {
            Some(deadline) if clock.coarse_ns() >= deadline => self.slot ^ 1,
            _ => self.slot,
        }
    }
}

impl Control {
    /// These rules, and what the lists hold.
    #[must_use]
    pub const fn new(live: Live, lists: u64) -> Self {
        Self { rules: live.word(), lists }
    }

    /// Which rules are live.
    #[inline(always)]
    #[must_use]
    pub const fn live(self) -> Live {
        Live::from_word(self.rules)
    }
}

// SAFETY: two u64.
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for Control {}

#[cfg(test)]
mod tests {
    use super::*;

    struct At(u64);

    impl Clock for At {
        fn now_ns(&self) -> u64 {
            unreachable!("costs too much")
        }
        fn tick(&self) -> u64 {
            unreachable!("not needed")
        }
        fn coarse_ns(&self) -> u64 {
            self.0
        }
        fn boot_ns(&self) -> u64 {
            unreachable!("not needed")
        }
    }

    #[test]
    fn words_say_what_they_were_made_from() {
        for slot in [0, 1] {
            for deadline_ns in [None, Some(0), Some(1), Some((1 << 62) - 1)] {
                let live = Live { slot, deadline_ns };
                assert_eq!(Control::new(live, 7).live(), live);
            }
        }
    }

    #[test]
    fn unconfirmed_rules_end_with_their_deadline() {
        let live = Live { slot: 1, deadline_ns: Some(1000) };
        for (now, slot) in [(0, 1), (999, 1), (1000, 0), (u64::MAX, 0)] {
            assert_eq!(live.slot_now(&At(now)), slot, "at {now}");
        }
        assert_eq!(Live { deadline_ns: None, ..live }.slot_now(&At(u64::MAX)), 1);
    }
}
