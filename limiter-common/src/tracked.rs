//! Which keys may be in a table of sources: a bitmap that forgets by itself.
//!
//! A bit that is clear says that the key is certainly not there, or not used
//! for one to two epochs, so that a flood of unknown sources costs no look at
//! the table. A bit that is set says "perhaps".
//!
//! Two generations lie side by side, for the epochs of even and of odd number.
//! Each word carries the number of the epoch that it was written in, and
//! counts as empty in any other: nothing ever has to be cleared. (After 256
//! epochs, a quarter of an hour, an old word may come up again once; its bits
//! then cost looks at the table and nothing else.)

use crate::bucket::Word;

/// Entries of the map `TRACKED`; each holds a word of both generations. A
/// quarter of a megabyte for each generation.
pub const WORDS: u32 = 1 << 15;
/// Bits of a word that stand for keys; the others are its epoch.
const KEY_BITS: u32 = 56;
const KEYS: u64 = (1 << KEY_BITS) - 1;
/// Attempts at a word that other CPUs write to.
const ATTEMPTS: u32 = 4;
/// Shortest epoch: a source that sends more often is never forgotten.
pub const EPOCH_NS: u64 = 4_000_000_000;

/// Binary logarithm of the timer ticks in an epoch: the shortest epoch that is
/// at least [`EPOCH_NS`] long.
#[must_use]
pub const fn epoch_shift(tick_ns: u64) -> u32 {
    let mut shift = 0;
    while shift < 32 && (tick_ns << shift) < EPOCH_NS {
        shift += 1;
    }
    shift
}

/// Where a key's bit lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    word: u32,
    bit: u64,
}

/// Since when a key was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// In this epoch.
    Now,
    /// In the last epoch and not yet in this one.
    Before,
    /// In neither.
    Never,
}

/// The two generations of one word.
pub struct Words<W> {
    /// Of epochs of even number.
    pub even: W,
    /// Of epochs of odd number.
    pub odd: W,
}

impl Place {
    /// The place of a key by its [`crate::source::Key::spread`].
    #[inline(always)]
    #[must_use]
    pub const fn of(spread: u64) -> Self {
        // Bits 32 and up choose the home CPU.
        let bit = ((spread >> 15 & 0xffff) * KEY_BITS as u64) >> 16;
        Self { word: (spread & 0xffff_ffff) as u32 & (WORDS - 1), bit: 1 << bit }
    }

    /// The entry of `TRACKED`, below [`WORDS`].
    #[inline(always)]
    #[must_use]
    pub const fn word(self) -> u32 {
        self.word
    }
}

impl<W: Word> Words<W> {
    /// Since when the key at this place was seen.
    #[inline(always)]
    pub fn seen(&self, place: Place, epoch: u64) -> Seen {
        let (even, odd) = (self.even.load(), self.odd.load());
        let (now, before) = if epoch & 1 == 0 { (even, odd) } else { (odd, even) };
        if holds(now, place, epoch) {
            Seen::Now
        } else if holds(before, place, epoch.wrapping_sub(1)) {
            Seen::Before
        } else {
            Seen::Never
        }
    }

    /// Notes that the key at this place was seen now. Where other CPUs keep
    /// writing to the word it may be missed; the next packet notes it again.
    #[inline(always)]
    pub fn see(&self, place: Place, epoch: u64) {
        let word = if epoch & 1 == 0 { &self.even } else { &self.odd };
        let tag = epoch << KEY_BITS;
        for _ in 0..ATTEMPTS {
            let present = word.load();
            let keys = if (present ^ tag) & !KEYS == 0 { present & KEYS } else { 0 };
            if word.replace(present, tag | keys | place.bit) {
                return;
            }
        }
    }
}

/// Whether a word was written in this epoch and has the key's bit.
#[inline(always)]
const fn holds(word: u64, place: Place, epoch: u64) -> bool {
    let expected = epoch << KEY_BITS | place.bit;
    (word ^ expected) & (!KEYS | place.bit) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    impl Word for &Cell<u64> {
        fn load(&self) -> u64 {
            self.get()
        }
        fn replace(&self, current: u64, new: u64) -> bool {
            let same = self.get() == current;
            if same {
                self.set(new);
            }
            same
        }
    }

    #[test]
    fn a_key_is_remembered_for_this_epoch_and_the_next() {
        for first in [0, 1, 254, 255, 256, 1 << 40] {
            let (even, odd) = (Cell::new(0), Cell::new(0));
            let words = Words { even: &even, odd: &odd };
            let (here, there) = (Place { word: 0, bit: 1 }, Place { word: 0, bit: 1 << 55 });
            assert_eq!(words.seen(here, first), Seen::Never);
            words.see(here, first);
            assert_eq!(words.seen(here, first), Seen::Now);
            assert_eq!(words.seen(there, first), Seen::Never);
            assert_eq!(words.seen(here, first + 1), Seen::Before);
            words.see(there, first + 1);
            assert_eq!(words.seen(here, first + 1), Seen::Before);
            assert_eq!(words.seen(there, first + 1), Seen::Now);
            assert_eq!(words.seen(here, first + 2), Seen::Never);
            assert_eq!(words.seen(there, first + 2), Seen::Before);
            assert_eq!(words.seen(there, first + 3), Seen::Never);
            // A new epoch in the same word leaves nothing of the old.
            words.see(there, first + 2);
            assert_eq!(words.seen(here, first + 2), Seen::Never);
        }
    }

    #[test]
    fn places_use_every_word_and_every_bit() {
        let mut words = std::collections::HashSet::new();
        let mut bits = 0;
        for n in 0u64..1 << 20 {
            let place = Place::of(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
            assert!(place.word < WORDS && place.bit & KEYS != 0);
            words.insert(place.word);
            bits |= place.bit;
        }
        assert_eq!((words.len(), bits), (WORDS as usize, KEYS));
    }

    #[test]
    fn epochs_are_at_least_four_seconds_on_every_kernel() {
        for (hz, shift) in [(100, 9), (250, 10), (300, 11), (1000, 12)] {
            assert_eq!(epoch_shift(1_000_000_000 / hz), shift, "{hz} Hz");
        }
        assert!(epoch_shift(0) <= 32);
    }
}
