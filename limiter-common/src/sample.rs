//! Which packets are shown to user space.
//!
//! Each row of counters is sampled on each CPU for itself: after a sample, so
//! many packets of the row go by until the next, a random number whose mean is
//! what came in the time between two samples that is aimed at. A sample weighs
//! as much as packets were counted since the one before, so that sums of
//! weights are what the counters say, and each packet has the same part in
//! them on average, whoever sent it (renewal theory: the gap before a point of
//! a stationary renewal process has the length of any gap). A row of which
//! nothing was shown for a while shows its next packet. What all rows of a
//! reason show together is bounded by a budget, so that no flood costs more
//! than that, and none hides another.
//!
//! For packets that are no sample this costs two comparisons with words that
//! lie beside the counter.

use crate::stats;

/// Bytes of a packet that are shown.
pub const SHOWN: usize = 256;
/// Size of the ring buffer: half a second of ten reasons at 700 samples per
/// second each.
pub const RING_BYTES: u32 = 1 << 20;
/// Means of a gap are at most this.
const MAX_MEAN: u64 = 1 << 24;
/// A row whose last try is so many times the aimed time ago shows its next
/// packet.
const PATIENCE: u32 = 8;
/// Length of a window of a budget, as a part of a second.
const WINDOWS_PER_SECOND: u64 = 10;
/// Fewest samples of a reason on a CPU in a second.
const LEAST_PER_CPU: u32 = 20;

/// How many samples are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Ticks between two samples of a row on one CPU that are aimed at, at
    /// least 1.
    pub every: u32,
    /// Ticks of a budget's window, at least 1.
    pub window: u32,
    /// Samples of one verdict and reason in a window on one CPU; 0 for none.
    pub budget: u32,
}

impl Pace {
    /// No samples.
    pub const OFF: Self = Self { every: 1, window: 1, budget: 0 };

    /// About so many samples per second of each verdict and reason, on `cpus`
    /// CPUs with timer ticks of `tick_ns` nanoseconds.
    #[must_use]
    pub const fn new(per_second: u32, cpus: u32, tick_ns: u64) -> Self {
        if per_second == 0 {
            return Self::OFF;
        }
        let cpus = if cpus == 0 { 1 } else { cpus };
        let tick_ns = if tick_ns == 0 { crate::limit::LONGEST_TICK_NS } else { tick_ns };
        let ticks_per_second = 1_000_000_000 / tick_ns;
        let per_cpu = per_second.div_ceil(cpus);
        let per_cpu = if per_cpu < LEAST_PER_CPU { LEAST_PER_CPU } else { per_cpu } as u64;
        Self {
            every: word(ticks_per_second.div_ceil(per_cpu)),
            window: word(ticks_per_second / WINDOWS_PER_SECOND),
            budget: word(per_cpu.div_ceil(WINDOWS_PER_SECOND)),
        }
    }
}

/// At least 1, and at most what fits.
#[expect(clippy::cast_possible_truncation, reason = "compared before")]
const fn word(number: u64) -> u32 {
    match number {
        0 => 1,
        number if number > u32::MAX as u64 => u32::MAX,
        number => number as u32,
    }
}

/// What a CPU knows of the samples of a row. Counts and times are modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sampling {
    /// Packets of the row up to the last sample.
    sampled: u32,
    /// Packets of the row up to the last try, a sample or not.
    tried: u32,
    /// The packet that is tried next.
    next: u32,
    /// When the last try was, in timer ticks.
    tick: u32,
}

impl Sampling {
    /// Whether the packet that was counted last is to be tried: the row has
    /// `packets` with it.
    #[inline(always)]
    #[must_use]
    pub const fn is_due(&self, packets: u64, tick: u64, pace: Pace) -> bool {
        let ahead = self.next.wrapping_sub(low(packets)).cast_signed();
        ahead <= 0 || low(tick).wrapping_sub(self.tick) >= pace.every.wrapping_mul(PATIENCE)
    }

    /// Packets for which a sample stands that is taken now.
    #[inline(always)]
    #[must_use]
    pub const fn weight(&self, packets: u64) -> u32 {
        low(packets).wrapping_sub(self.sampled)
    }

    /// Notes a sample.
    #[inline(always)]
    pub const fn sampled(&mut self, packets: u64) {
        self.sampled = low(packets);
    }

    /// Chooses the next packet to be tried, after a try.
    #[inline(always)]
    pub const fn choose_next(&mut self, packets: u64, tick: u64, pace: Pace, random: u32) {
        let seen = low(packets).wrapping_sub(self.tried) as u64;
        let elapsed = low(tick).wrapping_sub(self.tick) as u64;
        let mean = match (seen * pace.every as u64).checked_div(elapsed) {
            Some(mean) => mean,
            // Within one tick nothing is known but that it comes fast.
            None => seen * 2,
        };
        let mean = if mean > MAX_MEAN { MAX_MEAN } else { mean };
        let mean = if mean == 0 { 1 } else { mean };
        // From 1 to 2 mean - 1, each as likely.
        let gap = 1 + ((random as u64 * (2 * mean - 1)) >> 32);
        self.tried = low(packets);
        self.next = self.tried.wrapping_add(low(gap));
        self.tick = low(tick);
    }
}

#[inline(always)]
const fn low(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

/// What a CPU has shown of a verdict and reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Budget {
    /// When the present window began, in timer ticks.
    since: u32,
    /// Samples since then.
    samples: u32,
    /// Samples that there was no room for.
    pub lost: u64,
}

impl Budget {
    /// Number of these on a CPU.
    pub const COUNT: u32 = stats::POLICY_ROWS;

    /// Which of them a row of counters has: one for each verdict and reason.
    #[inline(always)]
    #[must_use]
    pub const fn index(row: u32) -> u32 {
        row % Self::COUNT
    }

    /// Whether one more sample fits, which is taken from the budget then.
    #[inline(always)]
    pub const fn pay(&mut self, tick: u64, pace: Pace) -> bool {
        if low(tick).wrapping_sub(self.since) >= pace.window {
            (self.since, self.samples) = (low(tick), 0);
        }
        if self.samples >= pace.budget {
            return false;
        }
        self.samples += 1;
        true
    }
}

// SAFETY: words without padding; every bit pattern is a value.
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for Budget {}

/// A sample as it stands in the ring buffer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Sample {
    /// When, monotonic nanoseconds.
    pub time_ns: u64,
    /// Packets that it stands for.
    pub weight: u32,
    /// Bytes of the packet, from the Ethernet header on.
    pub length: u32,
    /// Number of the interface.
    pub interface: u32,
    /// Row of counters: policy, verdict and reason ([`crate::stats::row`]).
    pub row: u32,
    /// How many of `bytes` are of the packet.
    pub shown: u32,
    _padding: u32,
    /// The first bytes of the packet; the rest is of nothing.
    pub bytes: [u8; SHOWN],
}

impl Sample {
    /// From its bytes in the ring buffer, if it is one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (time, rest) = bytes.split_first_chunk()?;
        let (words, rest) = rest.split_first_chunk::<24>()?;
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_ne_bytes(*words.get(at * 4..)?.first_chunk()?))
        };
        let sample = Self {
            time_ns: u64::from_ne_bytes(*time),
            weight: word(0)?,
            length: word(1)?,
            interface: word(2)?,
            row: word(3)?,
            shown: word(4)?,
            _padding: 0,
            bytes: *rest.first_chunk()?,
        };
        (rest.len() == SHOWN && sample.shown as usize <= SHOWN).then_some(sample)
    }

    /// The bytes that are of the packet.
    #[must_use]
    pub fn packet(&self) -> &[u8] {
        self.bytes.get(..self.shown as usize).unwrap_or_default()
    }
}

const _: () = assert!(size_of::<Sampling>() == 16 && size_of::<Budget>() == 16);
const _: () = assert!(size_of::<Sample>() == 32 + SHOWN && align_of::<Sample>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator that is good enough to see a bias (Marsaglia, "Xorshift
    /// RNGs", 2003).
    struct Random(u32);

    impl Random {
        fn next(&mut self) -> u32 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 17;
            self.0 ^= self.0 << 5;
            self.0
        }
    }

    struct Row {
        sampling: Sampling,
        budget: Budget,
        packets: u64,
        random: Random,
        pace: Pace,
    }

    impl Row {
        fn new(seed: u32, pace: Pace) -> Self {
            let (sampling, budget) = (Sampling::default(), Budget::default());
            Self { sampling, budget, packets: 0, random: Random(seed), pace }
        }

        /// What a packet weighs as a sample, if it is one.
        fn packet(&mut self, tick: u64) -> Option<u32> {
            self.packets += 1;
            if !self.sampling.is_due(self.packets, tick, self.pace) {
                return None;
            }
            let weight = self.budget.pay(tick, self.pace).then(|| {
                let weight = self.sampling.weight(self.packets);
                self.sampling.sampled(self.packets);
                weight
            });
            let random = self.random.next();
            self.sampling.choose_next(self.packets, tick, self.pace, random);
            weight
        }
    }

    /// A tick of 4 ms.
    const TICK_NS: u64 = 4_000_000;

    #[test]
    fn few_packets_are_all_shown() {
        for per_second in [20, 2000] {
            let mut row = Row::new(1, Pace::new(per_second, 2, TICK_NS));
            // One in 60 ticks: four per second.
            for packet in 0..100 {
                assert_eq!(row.packet(1000 + packet * 60), Some(1), "packet {packet}");
            }
        }
    }

    #[test]
    fn weights_add_up_to_what_was_counted() {
        let mut row = Row::new(2, Pace::new(2000, 2, TICK_NS));
        let (mut sum, mut since) = (0, 0);
        for packet in 0..1_000_000u64 {
            since += 1;
            if let Some(weight) = row.packet(packet / 4000) {
                assert_eq!(u64::from(weight), since);
                sum += since;
                since = 0;
            }
        }
        assert_eq!(sum + since, 1_000_000);
        assert!(since < 100_000, "{since}");
    }

    #[test]
    fn the_budget_holds_at_any_rate_and_most_of_it_is_used() {
        for per_tick in [1u64, 10, 1000, 100_000] {
            let pace = Pace::new(2000, 2, TICK_NS);
            let mut row = Row::new(3, pace);
            let mut windows = [0u32; 40];
            for tick in 0..1000u64 {
                for _ in 0..per_tick {
                    let is_sample = row.packet(tick).is_some();
                    windows[usize::try_from(tick / 25).expect("small")] += u32::from(is_sample);
                }
            }
            let most = *windows.iter().max().expect("some");
            assert!(most <= pace.budget, "{per_tick} a tick: {most} in a window");
            let all: u32 = windows.iter().sum();
            // One in each tick is aimed at.
            assert!((500..=4000).contains(&all), "{per_tick} a tick: {all} samples");
        }
    }

    /// Each source gets what it sent, whatever the pattern: in turn, in bursts
    /// that begin with a tick, at the end of a tick.
    #[test]
    fn no_source_is_preferred() {
        const PER_TICK: u64 = 400;
        type Pattern = fn(u64) -> usize;
        let patterns: [(&str, Pattern); 3] = [
            ("in turn", |at| usize::try_from(at % 4).expect("small")),
            ("a burst each", |at| usize::try_from(at * 4 / PER_TICK).expect("small")),
            ("one first", |at| usize::from(at != 0)),
        ];
        for (name, source) in patterns {
            let mut row = Row::new(4, Pace::new(2000, 2, TICK_NS));
            let (mut sent, mut shown) = ([0f64; 4], [(0f64, 0f64); 4]);
            for tick in 0..20_000u64 {
                for at in 0..PER_TICK {
                    let source = source(at);
                    sent[source] += 1.0;
                    if let Some(weight) = row.packet(tick).map(f64::from) {
                        shown[source].0 += weight;
                        shown[source].1 += weight * (weight - 1.0);
                    }
                }
            }
            for (sent, (shown, variance)) in sent.into_iter().zip(shown) {
                let error = (shown - sent).abs();
                let bound = 4.0 * variance.sqrt() + 1000.0;
                assert!(error <= bound, "{name}: {sent} sent, {shown} shown, +- {bound}");
                assert!(sent < 1e6 || bound < sent / 4.0, "{name}: +- {bound} of {sent}");
            }
        }
    }

    #[test]
    fn a_flood_that_ends_does_not_hide_what_comes_after() {
        let pace = Pace::new(2000, 2, TICK_NS);
        let mut row = Row::new(5, pace);
        for tick in 0..100u64 {
            for _ in 0..100_000 {
                let _ = row.packet(tick);
            }
        }
        // One packet in 100 ticks: the first has all that was not shown.
        assert!(row.packet(300).is_some());
        for packet in 0..100 {
            assert_eq!(row.packet(400 + packet * 100), Some(1));
        }
    }

    #[test]
    fn paces_are_in_range_for_any_machine() {
        for per_second in [1, 2000, u32::MAX] {
            for cpus in [0, 1, 64, 4096] {
                for tick_ns in [0, 1, 1_000_000, TICK_NS, 10_000_000, u64::MAX] {
                    let pace = Pace::new(per_second, cpus, tick_ns);
                    assert!(pace.every >= 1 && pace.window >= 1 && pace.budget >= 1, "{pace:?}");
                }
            }
        }
        assert_eq!(Pace::new(0, 2, TICK_NS), Pace::OFF);
        assert_eq!(Pace::new(2000, 2, TICK_NS), Pace { every: 1, window: 25, budget: 100 });
        assert_eq!(Pace::new(2000, 64, 1_000_000), Pace { every: 32, window: 100, budget: 4 });
    }
}
