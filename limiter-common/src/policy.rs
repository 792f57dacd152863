//! Compiled policies: what user space writes and the packet path reads.

use crate::{
    parse::{Kind, Packet},
    source::SourcePrefix,
};

/// Policies in one generation.
pub const MAX_POLICIES: u32 = 64;
/// Generations in the rule-set map: one live, one to be written.
pub const GENERATIONS: u32 = 2;

/// Highest rate that the arithmetic holds, tokens per second.
pub const MAX_RATE_PER_SECOND: u64 = 10_000_000;
/// Lowest rate that the arithmetic holds: one token in this many nanoseconds
/// (a day).
pub const MAX_INTERVAL_NS: u64 = 86_400_000_000_000;

/// Units of bucket time in a nanosecond, before a policy's shift: the finest
/// grain keeps the rounding of the fastest rate (100 ns a token) below 0.07 %.
const UNITS_PER_NS: u128 = 1 << UNITS_SHIFT;
/// Binary logarithm of the units in a nanosecond.
pub const UNITS_SHIFT: u32 = 4;
/// No bucket takes longer than this many units to fill, so that the sum of a
/// time (below 2^62 units for 9 years at the finest grain) and a span never
/// overflows.
const MAX_SPAN: u128 = 1 << 61;
/// A stored time this far beyond the possible is no clock skew between CPUs
/// (`ktime_get_mono_fast_ns` may differ by microseconds) but left over from a
/// larger limit, or damaged; it is then corrected. Below a timer tick.
pub const SLACK_NS: u64 = 1_000_000;
/// The longest timer tick of any kernel configuration (CONFIG_HZ=100).
pub const LONGEST_TICK_NS: u64 = 10_000_000;
/// Most tokens leased to a CPU at once.
pub const MAX_LEASE: u32 = 32;

/// What a policy does with a packet over its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Nothing is charged; everything passes as `unlimited`.
    Off = 0,
    /// Packets over the limit are dropped.
    Enforce = 1,
    /// Packets over the limit pass and are counted as `would_drop`.
    Observe = 2,
}

/// A rate as tokens per period, so that both 10 M/s and 1/day are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    tokens: u64,
    period_ns: u64,
}

/// Why a rate or burst is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// Above [`MAX_RATE_PER_SECOND`].
    TooFast,
    /// Below one token per [`MAX_INTERVAL_NS`], zero included.
    TooSlow,
    /// A burst of zero admits nothing for ever.
    NoBurst,
}

impl Rate {
    /// `tokens` per `period_ns` nanoseconds.
    ///
    /// # Errors
    /// Outside one per day to ten million per second.
    pub const fn new(tokens: u64, period_ns: u64) -> Result<Self, RangeError> {
        let (t, p) = (tokens as u128, period_ns as u128);
        if t * MAX_INTERVAL_NS as u128 == 0 || t * (MAX_INTERVAL_NS as u128) < p {
            return Err(RangeError::TooSlow);
        }
        if t * 1_000_000_000 > p * MAX_RATE_PER_SECOND as u128 {
            return Err(RangeError::TooFast);
        }
        Ok(Self { tokens, period_ns })
    }

    /// Tokens in one period.
    #[must_use]
    pub const fn tokens(self) -> u64 {
        self.tokens
    }

    /// The period, nanoseconds.
    #[must_use]
    pub const fn period_ns(self) -> u64 {
        self.period_ns
    }
}

/// A policy as the packet path reads it. Times are in the policy's own units:
/// `(nanoseconds << UNITS_SHIFT) >> shift`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Policy {
    /// Time that one token takes to refill, rounded up (against the sender).
    interval: u64,
    /// Time that the whole burst takes to refill: `interval * burst`.
    span: u64,
    /// [`SLACK_NS`] in units, rounded up.
    slack: u64,
    /// Right shift from the finest grain to the policy's units.
    shift: u32,
    /// Tokens leased to a CPU at once, at least 1.
    lease: u32,
    /// A [`Mode`]; anything unknown enforces.
    mode: u32,
    /// 1: a denial holds until the next timer tick without asking the clock.
    gated: u32,
}

/// One generation of policies and the table that chooses among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Ruleset {
    /// Policy index by packet kind.
    by_kind: [u32; Kind::SLOTS],
    /// 1: nothing is dropped, whatever a policy says.
    observe: u32,
    /// What counts as one source.
    sources: SourcePrefix,
    policies: [Policy; MAX_POLICIES as usize],
}

/// The word that makes a generation live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Control {
    /// Number of the live generation, counted from the load; its slot in the
    /// rule-set map is the number modulo [`GENERATIONS`].
    pub generation: u64,
}

const _: () = assert!(size_of::<Policy>() == 40 && align_of::<Policy>() == 8);
const _: () = assert!(size_of::<Ruleset>() == 56 + 40 * MAX_POLICIES as usize);
const _: () = assert!(size_of::<Control>() == 8);
const _: () = assert!(MAX_POLICIES.is_power_of_two() && GENERATIONS.is_power_of_two());

impl Control {
    /// Slot of the live generation in the rule-set map.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self) -> u32 {
        (self.generation & (GENERATIONS as u64 - 1) & 0xffff_ffff) as u32
    }
}

impl Policy {
    /// Compiles a limit for a machine with `cpus` CPUs. `strict` leases one
    /// token at a time, so that no excess at all is possible.
    ///
    /// # Errors
    /// A burst of zero; rates are in range by their type.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "interval <= span <= MAX_SPAN, and the other two shrink from below 2^29"
    )]
    pub const fn compile(
        rate: Rate,
        burst: u32,
        mode: Mode,
        cpus: u32,
        strict: bool,
    ) -> Result<Self, RangeError> {
        if burst == 0 {
            return Err(RangeError::NoBurst);
        }
        let fine = rate.period_ns as u128 * UNITS_PER_NS;
        let mut shift = 0;
        // Exact until the division: interval = ceil(fine / tokens / 2^shift).
        while (fine.div_ceil((rate.tokens as u128) << shift)) * burst as u128 > MAX_SPAN {
            shift += 1;
        }
        let interval = fine.div_ceil((rate.tokens as u128) << shift) as u64;
        let span = interval * burst as u64;
        let slack = ((SLACK_NS as u128 * UNITS_PER_NS) >> shift) as u64;
        let two_ticks = ((2 * LONGEST_TICK_NS as u128 * UNITS_PER_NS) >> shift) as u64;
        Ok(Self {
            interval,
            span,
            // One more, because two times are each rounded down before they
            // are compared.
            slack: slack + 1,
            shift,
            lease: if strict { 1 } else { lease(burst, cpus) },
            mode: mode as u32,
            gated: (span >= two_ticks) as u32,
        })
    }

    /// Time in the policy's units.
    #[inline(always)]
    #[must_use]
    pub const fn time(&self, now_ns: u64) -> u64 {
        (now_ns << UNITS_SHIFT) >> (self.shift & 63)
    }

    /// Time that one token takes, in units.
    #[inline(always)]
    #[must_use]
    pub const fn interval(&self) -> u64 {
        self.interval
    }

    /// Time that the burst takes, in units.
    #[inline(always)]
    #[must_use]
    pub const fn span(&self) -> u64 {
        self.span
    }

    /// How far a stored time may lie beyond the possible, in units.
    #[inline(always)]
    #[must_use]
    pub const fn slack(&self) -> u64 {
        self.slack
    }

    /// Tokens leased to a CPU at once.
    #[inline(always)]
    #[must_use]
    pub const fn lease(&self) -> u32 {
        self.lease
    }

    /// Whether a denial holds until the next timer tick.
    #[inline(always)]
    #[must_use]
    pub const fn gated(&self) -> bool {
        self.gated != 0
    }

    /// Whether the policy charges at all.
    #[inline(always)]
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.mode == Mode::Off as u32
    }

    /// Whether the policy only counts what it would drop.
    #[inline(always)]
    #[must_use]
    pub const fn observes(&self) -> bool {
        self.mode == Mode::Observe as u32
    }
}

/// The largest lease whose unused remainder on all CPUs together, `cpus *
/// (lease - 1)`, stays within half a burst.
const fn lease(burst: u32, cpus: u32) -> u32 {
    let cpus = if cpus == 0 { 1 } else { cpus };
    let most = 1 + (burst / 2) / cpus;
    if most < MAX_LEASE { most } else { MAX_LEASE }
}

impl Ruleset {
    /// A rule set in which every packet meets policy 0.
    #[must_use]
    pub const fn new(observe: bool) -> Self {
        Self {
            by_kind: [0; Kind::SLOTS],
            observe: observe as u32,
            sources: SourcePrefix::DEFAULT,
            policies: [Policy {
                interval: 0,
                span: 0,
                slack: 0,
                shift: 0,
                lease: 0,
                mode: Mode::Off as u32,
                gated: 0,
            }; MAX_POLICIES as usize],
        }
    }

    /// Sets policy number `index` modulo [`MAX_POLICIES`].
    pub const fn set_policy(&mut self, index: u32, policy: Policy) {
        self.policies[(index % MAX_POLICIES) as usize] = policy;
    }

    /// Sends packets of `kind` to policy number `index`.
    pub const fn set_kind(&mut self, kind: Kind, index: u32) {
        self.by_kind[kind as usize] = index % MAX_POLICIES;
    }

    /// The policy that a packet meets, and its index.
    #[inline(always)]
    #[must_use]
    pub const fn classify(&self, packet: &Packet) -> (u32, &Policy) {
        let index = self.by_kind[packet.kind as usize % Kind::SLOTS] % MAX_POLICIES;
        (index, &self.policies[index as usize])
    }

    /// Sets what counts as one source.
    pub const fn set_sources(&mut self, sources: SourcePrefix) {
        self.sources = sources;
    }

    /// What counts as one source.
    #[inline(always)]
    #[must_use]
    pub const fn sources(&self) -> &SourcePrefix {
        &self.sources
    }

    /// Whether nothing is dropped, whatever a policy says.
    #[inline(always)]
    #[must_use]
    pub const fn observes(&self) -> bool {
        self.observe != 0
    }
}

// SAFETY: repr(C), integers only, no padding (sizes asserted above).
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for Ruleset {}
// SAFETY: one u64.
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for Control {}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_NS: u64 = 86_400_000_000_000;
    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn rates_outside_the_range_are_refused() {
        assert_eq!(Rate::new(0, SECOND_NS), Err(RangeError::TooSlow));
        assert_eq!(Rate::new(1, DAY_NS + 1), Err(RangeError::TooSlow));
        assert_eq!(Rate::new(10_000_001, SECOND_NS), Err(RangeError::TooFast));
        assert_eq!(Rate::new(u64::MAX, 1), Err(RangeError::TooFast));
        assert_eq!(Rate::new(1, 0), Err(RangeError::TooFast));
        assert!(Rate::new(1, DAY_NS).is_ok());
        assert!(Rate::new(10_000_000, SECOND_NS).is_ok());
    }

    #[test]
    fn extremes_of_rate_and_burst_compile_without_overflow() {
        for (tokens, period) in [(1, DAY_NS), (10_000_000, SECOND_NS), (1, SECOND_NS)] {
            for burst in [1, 2, 1000, u32::MAX] {
                let rate = Rate::new(tokens, period).unwrap();
                let policy = Policy::compile(rate, burst, Mode::Enforce, 2, false).unwrap();
                assert!(u128::from(policy.span) <= MAX_SPAN);
                assert_eq!(policy.span, policy.interval * u64::from(burst));
                let exact = (u128::from(period) * UNITS_PER_NS) as f64
                    / tokens as f64
                    / (1u64 << policy.shift) as f64;
                let error = policy.interval as f64 / exact - 1.0;
                assert!((0.0..0.0007).contains(&error), "{tokens}/{period} burst {burst}: {error}");
            }
        }
        let day = Rate::new(1, DAY_NS).unwrap();
        assert_eq!(Policy::compile(day, 0, Mode::Off, 2, false), Err(RangeError::NoBurst));
    }

    #[test]
    fn idle_leases_stay_within_half_a_burst() {
        for cpus in [1, 2, 3, 64, 384] {
            for burst in [1, 2, 10, 100, 1_000, 100_000, u32::MAX] {
                let lease = lease(burst, cpus);
                assert!((1..=MAX_LEASE).contains(&lease));
                assert!(u64::from(cpus) * u64::from(lease - 1) <= u64::from(burst) / 2);
            }
        }
    }
}
