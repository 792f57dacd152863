//! What each source sent in the last hour, by tenths of a second: all that is
//! needed to say what another limit would have done.
//!
//! Where there are more sources than there is room for, every second one is no
//! longer looked at, and so on: which ones, nobody outside can know.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
};

use limiter_common::{
    sample::Sample,
    stats::{self, NO_POLICY},
    verdict::Reason,
};

use super::{
    names::{Names, prefix},
    packet::Facts,
};
use crate::prefix::Prefix;

/// Slots in a second.
pub(super) const SLOTS_PER_SECOND: u32 = 10;
const SLOT_NS: u64 = 1_000_000_000 / SLOTS_PER_SECOND as u64;
/// Slots that are looked back: an hour.
const KEPT: u32 = 3600 * SLOTS_PER_SECOND;
/// Slots that there is room for, 12 bytes each; a source takes as much as
/// [`SOURCE_SLOTS`] more.
const MAX_SLOTS: usize = 400_000;
const SOURCE_SLOTS: usize = 8;
/// How often what is too old is looked for.
const FORGET_EVERY: u32 = 60 * SLOTS_PER_SECOND;

/// What a source sent in a tenth of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// When, tenths of a second of the monotonic clock.
    pub(super) at: u32,
    pub(super) packets: u32,
    /// The most that one of its samples stands for.
    pub(super) heaviest: u32,
}

/// What a policy is called, and since when it is looked at.
#[derive(Clone, Debug)]
struct Followed {
    name: String,
    since: u32,
}

#[derive(Debug, Default)]
pub(super) struct Series {
    sources: HashMap<(u32, Prefix), Vec<Slot>>,
    policies: BTreeMap<u32, Followed>,
    source_bits: [u8; 2],
    /// One source in `2^shift` is looked at.
    shift: u32,
    choice: RandomState,
    slots: usize,
    forgot: u32,
}

/// What was seen of one policy.
#[derive(Debug)]
pub(super) struct OfPolicy<'a> {
    /// Seconds that were looked at.
    pub(super) seconds: f64,
    /// Of so many sources, one was looked at.
    pub(super) one_in: u64,
    /// What each of them sent, the oldest first.
    pub(super) sources: Vec<(Prefix, &'a [Slot])>,
}

impl Series {
    /// Takes up a sample, if it is one of what the limits of sources decide.
    pub(super) fn note(&mut self, sample: &Sample) {
        let Some((policy, _, reason)) = stats::of_row(sample.row) else {
            return;
        };
        if policy == NO_POLICY || !is_of_sources(reason) || !self.policies.contains_key(&policy) {
            return;
        }
        let Some(address) = Facts::of(sample).source else {
            return;
        };
        self.add(policy, prefix(address, self.source_bits), slot(sample.time_ns), sample.weight);
        while self.slots > MAX_SLOTS {
            self.shift += 1;
            let (choice, shift) = (&self.choice, self.shift);
            self.sources.retain(|(_, source), _| is_chosen(choice, shift, *source));
            self.slots = self.sources.values().map(|slots| slots.len() + SOURCE_SLOTS).sum();
        }
    }

    fn add(&mut self, policy: u32, source: Prefix, at: u32, packets: u32) {
        if !is_chosen(&self.choice, self.shift, source) {
            return;
        }
        let slots = self.sources.entry((policy, source)).or_insert_with(|| {
            self.slots += SOURCE_SLOTS;
            Vec::new()
        });
        // Samples of several CPUs are nearly in order.
        let place = slots.iter().rposition(|slot| slot.at <= at);
        if let Some(slot) = place.map(|place| &mut slots[place]).filter(|slot| slot.at == at) {
            slot.packets = slot.packets.saturating_add(packets);
            slot.heaviest = slot.heaviest.max(packets);
        } else {
            let new = Slot { at, packets, heaviest: packets };
            slots.insert(place.map_or(0, |place| place + 1), new);
            self.slots += 1;
        }
    }

    /// Takes up what the policies are called: what was seen of another one, or
    /// of other sources, says nothing about them. Forgets what is too old.
    pub(super) fn follow(&mut self, names: &Names, now_ns: u64) {
        let now = slot(now_ns);
        if self.source_bits != names.source_bits {
            *self = Self { source_bits: names.source_bits, forgot: now, ..Self::default() };
        }
        self.policies.retain(|row, policy| names.policies.get(row) == Some(&policy.name));
        let policies = &self.policies;
        let gone = |row: &u32| !policies.contains_key(row);
        let is_late = now.saturating_sub(self.forgot) >= FORGET_EVERY;
        if is_late || self.sources.keys().any(|(row, _)| gone(row)) {
            let oldest = now.saturating_sub(KEPT);
            self.sources.retain(|(row, _), slots| {
                slots.retain(|slot| slot.at >= oldest);
                !slots.is_empty() && !gone(row)
            });
            self.slots = self.sources.values().map(|slots| slots.len() + SOURCE_SLOTS).sum();
            self.forgot = now;
        }
        for (row, name) in &names.policies {
            let new = || Followed { name: name.clone(), since: now };
            self.policies.entry(*row).or_insert_with(new);
        }
    }

    /// What was seen of the policy in a row of counters.
    pub(super) fn of_policy(&self, policy: u32, now_ns: u64) -> OfPolicy<'_> {
        let now = slot(now_ns);
        let since = self.policies.get(&policy).map_or(now, |policy| policy.since);
        let seconds = now.saturating_sub(since).clamp(SLOTS_PER_SECOND, KEPT);
        let of_policy = self.sources.iter().filter(|((row, _), _)| *row == policy);
        OfPolicy {
            seconds: f64::from(seconds) / f64::from(SLOTS_PER_SECOND),
            one_in: 1 << self.shift,
            sources: of_policy.map(|((_, source), slots)| (*source, slots.as_slice())).collect(),
        }
    }
}

/// Whether a packet with that reason is one that a source's limit decided
/// about, or would have, were there one.
const fn is_of_sources(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::WithinLimit
            | Reason::Unlimited
            | Reason::SourceRate
            | Reason::SourceBandwidth
            | Reason::PrefixRate
            | Reason::PolicyRate
    )
}

fn is_chosen(choice: &RandomState, shift: u32, source: Prefix) -> bool {
    shift == 0 || choice.hash_one(source) >> (u64::BITS - shift) == 0
}

/// The tenth of a second in which a moment lies.
fn slot(time_ns: u64) -> u32 {
    u32::try_from(time_ns / SLOT_NS).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn names(policies: &[(u32, &str)]) -> Names {
        let policies = policies.iter().map(|(row, name)| (*row, (*name).to_owned()));
        Names { policies: policies.collect(), ..Names::default() }
    }

    fn source(number: u32) -> Prefix {
        Prefix::new(Ipv4Addr::from(0x0a00_0000 + number).into(), 32)
    }

    #[test]
    fn slots_of_a_source_are_in_order_and_add_up() {
        let mut series = Series::default();
        series.follow(&names(&[(3, "web")]), 0);
        for (at, packets) in [(5, 2), (7, 1), (5, 4), (6, 1), (4, 9)] {
            series.add(3, source(1), at, packets);
        }
        let seen = series.of_policy(3, 2_000_000_000);
        assert!((seen.seconds - 2.0).abs() < 1e-9);
        let slots: Vec<_> = seen.sources[0].1.iter().map(|it| (it.at, it.packets)).collect();
        assert_eq!(slots, [(4, 9), (5, 6), (6, 1), (7, 1)]);
        assert_eq!(seen.sources[0].1[1].heaviest, 4);
    }

    #[test]
    fn a_row_that_another_policy_has_taken_over_begins_anew() {
        let mut series = Series::default();
        series.follow(&names(&[(3, "web"), (4, "dns")]), 0);
        series.add(3, source(1), 1, 1);
        series.add(4, source(1), 1, 1);
        series.follow(&names(&[(3, "mail"), (4, "dns")]), 5_000_000_000);
        assert!(series.of_policy(3, 6_000_000_000).sources.is_empty());
        assert!((series.of_policy(3, 6_000_000_000).seconds - 1.0).abs() < 1e-9);
        assert_eq!(series.of_policy(4, 6_000_000_000).sources.len(), 1);
    }

    #[test]
    fn an_hour_is_kept() {
        let mut series = Series::default();
        let hour = 3_600_000_000_000;
        series.follow(&names(&[(3, "web")]), 0);
        series.add(3, source(1), 1, 1);
        series.add(3, source(2), 2 * KEPT, 1);
        series.follow(&names(&[(3, "web")]), 2 * hour);
        let seen = series.of_policy(3, 2 * hour);
        assert_eq!(seen.sources.len(), 1);
        assert!((seen.seconds - 3600.0).abs() < 1e-9);
    }

    #[test]
    fn of_too_many_sources_a_part_is_looked_at() {
        let mut series = Series::default();
        series.follow(&names(&[(0, "web")]), 0);
        let mut sample = packet([10, 0, 0, 0]);
        for number in 0..200_000_u32 {
            sample.bytes[26..30].copy_from_slice(&(0x0a00_0000 + number).to_be_bytes());
            series.note(&sample);
            assert!(series.slots <= MAX_SLOTS);
        }
        let seen = series.of_policy(0, 1_000_000_000);
        assert!(seen.one_in > 1);
        let estimate = seen.sources.len() as u64 * seen.one_in;
        assert!((180_000..220_000).contains(&estimate), "{estimate}");
    }

    /// A UDP datagram that passed.
    fn packet(source: [u8; 4]) -> Sample {
        let mut bytes = Vec::new();
        etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(source, [192, 0, 2, 1], 64)
            .udp(1, 53)
            .write(&mut bytes, &[0; 20])
            .unwrap();
        let row = stats::row(0, limiter_common::verdict::Verdict::Pass, Reason::WithinLimit);
        let length = u32::try_from(bytes.len()).unwrap();
        bytes.resize(256, 0);
        let words = [1, length, 0, row, length, 0].map(u32::to_ne_bytes).concat();
        Sample::from_bytes(&[&[0; 8], words.as_slice(), &bytes].concat()).unwrap()
    }
}
