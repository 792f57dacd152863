//! A limit: a rate and a burst, compiled to the arithmetic of a bucket.

/// Highest packet rate that the arithmetic holds, per second.
pub const MAX_RATE_PER_SECOND: u64 = 10_000_000;
/// Lowest packet rate that the arithmetic holds: one packet in this many
/// nanoseconds (a day).
pub const MAX_INTERVAL_NS: u64 = 86_400_000_000_000;
/// Highest bandwidth that the arithmetic holds, bytes per second (800 Gbit/s);
/// the lowest is one byte per second.
pub const MAX_BYTES_PER_SECOND: u64 = 100_000_000_000;

/// Binary logarithm of the units of bucket time in a nanosecond, before a
/// limit's shift: the finest grain keeps the rounding of the fastest packet
/// rate (100 ns a token) below 0.07 %.
pub const UNITS_SHIFT: u32 = 4;
const UNITS_PER_NS: u128 = 1 << UNITS_SHIFT;
/// Binary logarithm of the units of bucket time in a timer tick, for limits
/// that count ticks.
const TICK_SHIFT: u32 = 20;
/// Fractional bits of a byte's interval: at 100 GB/s a byte takes 0.16 units.
const BYTE_FRACTION: u32 = 12;
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

/// Most packets leased to a CPU at once.
pub const MAX_LEASE: u32 = 64;
/// Most bytes leased to a CPU at once.
pub const MAX_BYTE_LEASE: u32 = MAX_LEASE * 1024;
/// No packet costs more: an XDP frame has at most 18 buffers of a page.
pub const MAX_COST: u32 = 1 << 17;

/// Packets that a source may send at once when it gets its bucket during a
/// flood of new sources.
const FIRST_PACKETS: u32 = 10;
/// The same in bytes: that many packets of a full Ethernet frame.
const FIRST_BYTES: u32 = FIRST_PACKETS * 1514;

/// What a token stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A packet.
    Packet,
    /// A byte, from the Ethernet header on.
    Byte,
}

/// A rate as tokens per period, so that both 10 M/s and 1/day are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    token: Token,
    tokens: u64,
    period_ns: u64,
}

/// Why a rate or burst is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// Above [`MAX_RATE_PER_SECOND`] or [`MAX_BYTES_PER_SECOND`].
    TooFast,
    /// Below one packet per [`MAX_INTERVAL_NS`] or one byte per second, zero
    /// included.
    TooSlow,
    /// A burst of zero admits nothing for ever.
    NoBurst,
}

impl Rate {
    /// So many packets per `period_ns` nanoseconds.
    ///
    /// # Errors
    /// Outside one per day to ten million per second.
    pub const fn packets(tokens: u64, period_ns: u64) -> Result<Self, RangeError> {
        Self::within(Token::Packet, tokens, period_ns, MAX_INTERVAL_NS, MAX_RATE_PER_SECOND)
    }

    /// So many bytes per `period_ns` nanoseconds.
    ///
    /// # Errors
    /// Outside one to [`MAX_BYTES_PER_SECOND`] per second.
    pub const fn bytes(tokens: u64, period_ns: u64) -> Result<Self, RangeError> {
        Self::within(Token::Byte, tokens, period_ns, 1_000_000_000, MAX_BYTES_PER_SECOND)
    }

    const fn within(
        token: Token,
        tokens: u64,
        period_ns: u64,
        longest_ns: u64,
        most_per_second: u64,
    ) -> Result<Self, RangeError> {
        let (t, p) = (tokens as u128, period_ns as u128);
        if t == 0 || t * (longest_ns as u128) < p {
            return Err(RangeError::TooSlow);
        }
        if t * 1_000_000_000 > p * most_per_second as u128 {
            return Err(RangeError::TooFast);
        }
        Ok(Self { token, tokens, period_ns })
    }

    /// What a token stands for.
    #[must_use]
    pub const fn token(self) -> Token {
        self.token
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

/// A limit as the packet path reads it. Times are in the limit's own units:
/// `(nanoseconds << UNITS_SHIFT) >> shift`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Limit {
    /// Time that one token takes to refill, in units shifted left by
    /// `fraction`, rounded up (against the sender).
    interval: u64,
    /// Time that the whole burst takes to refill.
    span: u64,
    /// [`SLACK_NS`] in units, rounded up.
    slack: u64,
    /// How far a bucket that is made in a flood of new sources is from full.
    debt: u64,
    /// Right shift from the finest grain to the limit's units.
    shift: u32,
    /// Fractional bits of `interval`.
    fraction: u32,
    /// Tokens leased to a CPU at once, at least 1.
    lease: u32,
    /// 1: a CPU remembers a denial, at least until the end of a timer tick.
    gated: u32,
    /// Binary logarithm of a time in units that no timer tick is longer than.
    tick_shift: u32,
    /// Number of the rule set, so that a denial ends with the limit that it
    /// was made by.
    stamp: u32,
}

const _: () = assert!(size_of::<Limit>() == 56 && align_of::<Limit>() == 8);

impl Limit {
    /// None: no time for a token, no room for one.
    pub(crate) const NONE: Self = Self {
        interval: 0,
        span: 0,
        slack: 0,
        debt: 0,
        shift: 0,
        fraction: 0,
        lease: 0,
        gated: 0,
        tick_shift: 0,
        stamp: 0,
    };

    /// Compiles a limit for a machine with `cpus` CPUs; the burst is in the
    /// rate's tokens. `strict` leases one token at a time, so that no excess
    /// at all is possible.
    ///
    /// # Errors
    /// A burst of zero; rates are in range by their type.
    pub const fn compile(
        rate: Rate,
        burst: u32,
        cpus: u32,
        strict: bool,
    ) -> Result<Self, RangeError> {
        if burst == 0 {
            return Err(RangeError::NoBurst);
        }
        let (fraction, most, first) = match rate.token {
            Token::Packet => (0, MAX_LEASE, FIRST_PACKETS),
            Token::Byte => (BYTE_FRACTION, MAX_BYTE_LEASE, FIRST_BYTES),
        };
        let lease = if strict { 1 } else { lease(burst, cpus, most) };
        let fine = (rate.period_ns as u128 * UNITS_PER_NS) << fraction;
        Ok(Self::build(fine, rate.tokens, burst, fraction, lease, first))
    }

    /// Compiles a packet limit whose time is counted in timer ticks of
    /// `tick_ns` nanoseconds (see [`tick_time`]), for words without a lease.
    ///
    /// # Errors
    /// As [`Limit::compile`].
    pub const fn compile_ticks(rate: Rate, burst: u32, tick_ns: u64) -> Result<Self, RangeError> {
        if burst == 0 {
            return Err(RangeError::NoBurst);
        }
        let tick_ns = if tick_ns == 0 { LONGEST_TICK_NS } else { tick_ns };
        let fine = ((rate.period_ns as u128) << TICK_SHIFT).div_ceil(tick_ns as u128);
        let mut limit = Self::build(fine, rate.tokens, burst, 0, 1, burst);
        // Another CPU may already have seen the next tick.
        limit.slack = 2 << TICK_SHIFT;
        Ok(limit)
    }

    /// A token takes `fine / tokens` of the finest units, shifted left by
    /// `fraction`.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "interval <= span << fraction, span <= MAX_SPAN, and the others shrink from below 2^29"
    )]
    const fn build(
        fine: u128,
        tokens: u64,
        burst: u32,
        fraction: u32,
        lease: u32,
        first: u32,
    ) -> Self {
        let mut shift = 0;
        // Exact until the division: interval = ceil(fine / tokens / 2^shift).
        while (fine.div_ceil((tokens as u128) << shift) * burst as u128) >> fraction > MAX_SPAN {
            shift += 1;
        }
        let interval = fine.div_ceil((tokens as u128) << shift);
        let span = (interval * burst as u128).div_ceil(1 << fraction);
        let first = if first < burst { first } else { burst };
        let debt = span - (interval * first as u128).div_ceil(1 << fraction);
        let slack = (SLACK_NS as u128 * UNITS_PER_NS) >> shift;
        let two_ticks = (2 * LONGEST_TICK_NS as u128 * UNITS_PER_NS) >> shift;
        Self {
            interval: interval as u64,
            span: span as u64,
            // One more, because two times are each rounded down before they
            // are compared.
            slack: slack as u64 + 1,
            debt: debt as u64,
            shift,
            fraction,
            lease,
            gated: (span >= two_ticks) as u32,
            tick_shift: u128::BITS - (two_ticks / 2).leading_zeros(),
            stamp: 0,
        }
    }

    /// Time in the limit's units.
    #[inline(always)]
    #[must_use]
    pub const fn time(&self, now_ns: u64) -> u64 {
        (now_ns << UNITS_SHIFT) >> (self.shift & 63)
    }

    /// Time that so many tokens take, in units, rounded up. At most
    /// [`MAX_COST`] tokens are held without overflow.
    #[inline(always)]
    #[must_use]
    pub const fn duration(&self, tokens: u32) -> u64 {
        let fraction = self.fraction & 63;
        ((tokens as u64).wrapping_mul(self.interval) + ((1 << fraction) - 1)) >> fraction
    }

    /// Tokens that a time in units is enough for.
    #[must_use]
    pub fn tokens_within(&self, units: u64) -> u32 {
        let tokens = (u128::from(units) << (self.fraction & 63)) / u128::from(self.interval.max(1));
        u32::try_from(tokens).unwrap_or(u32::MAX)
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

    /// How far from full a bucket starts that is made in a flood, in units.
    #[inline(always)]
    #[must_use]
    pub const fn debt(&self) -> u64 {
        self.debt
    }

    /// Tokens leased to a CPU at once.
    #[inline(always)]
    #[must_use]
    pub const fn lease(&self) -> u32 {
        self.lease
    }

    /// The same limit as part of rule set number `stamp`.
    #[must_use]
    pub const fn stamped(mut self, stamp: u32) -> Self {
        self.stamp = stamp;
        self
    }

    /// Number of the rule set.
    #[inline(always)]
    #[must_use]
    pub const fn stamp(&self) -> u32 {
        self.stamp
    }

    /// Whole timer ticks that surely fit a time in units.
    #[inline(always)]
    #[must_use]
    pub const fn ticks(&self, time: u64) -> u64 {
        time >> (self.tick_shift & 63)
    }

    /// Whether a CPU remembers a denial. A burst that fills in less than two
    /// ticks would lose tokens by it.
    #[inline(always)]
    #[must_use]
    pub const fn gated(&self) -> bool {
        self.gated != 0
    }
}

/// A timer tick as a time of [`Limit::compile_ticks`].
#[inline(always)]
#[must_use]
pub const fn tick_time(tick: u64) -> u64 {
    tick << TICK_SHIFT
}

/// The largest lease whose unused remainder on all CPUs together, `cpus *
/// (lease - 1)`, stays within half a burst.
const fn lease(burst: u32, cpus: u32, most: u32) -> u32 {
    let cpus = if cpus == 0 { 1 } else { cpus };
    let fits = 1 + (burst / 2) / cpus;
    if fits < most { fits } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_NS: u64 = 86_400_000_000_000;
    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn rates_outside_the_range_are_refused() {
        assert_eq!(Rate::packets(0, SECOND_NS), Err(RangeError::TooSlow));
        assert_eq!(Rate::packets(1, DAY_NS + 1), Err(RangeError::TooSlow));
        assert_eq!(Rate::packets(10_000_001, SECOND_NS), Err(RangeError::TooFast));
        assert_eq!(Rate::packets(u64::MAX, 1), Err(RangeError::TooFast));
        assert_eq!(Rate::packets(1, 0), Err(RangeError::TooFast));
        assert!(Rate::packets(1, DAY_NS).is_ok());
        assert!(Rate::packets(10_000_000, SECOND_NS).is_ok());
        assert_eq!(Rate::bytes(0, SECOND_NS), Err(RangeError::TooSlow));
        assert_eq!(Rate::bytes(59, 60 * SECOND_NS), Err(RangeError::TooSlow));
        assert_eq!(Rate::bytes(MAX_BYTES_PER_SECOND + 1, SECOND_NS), Err(RangeError::TooFast));
        assert!(Rate::bytes(1, SECOND_NS).is_ok());
        assert!(Rate::bytes(MAX_BYTES_PER_SECOND, SECOND_NS).is_ok());
    }

    #[test]
    fn extremes_of_rate_and_burst_compile_without_overflow() {
        let packets = [(1, DAY_NS), (10_000_000, SECOND_NS), (1, SECOND_NS)]
            .map(|(tokens, period)| Rate::packets(tokens, period).unwrap());
        let bytes = [1, 1000, 125_000_000, MAX_BYTES_PER_SECOND]
            .map(|tokens| Rate::bytes(tokens, SECOND_NS).unwrap());
        for rate in packets.into_iter().chain(bytes) {
            for burst in [1, 2, 1000, u32::MAX] {
                let limit = Limit::compile(rate, burst, 2, false).unwrap();
                assert!(u128::from(limit.span) <= MAX_SPAN);
                let whole = u128::from(limit.interval) * u128::from(burst);
                assert_eq!(u128::from(limit.span), whole.div_ceil(1 << limit.fraction));
                let exact = (u128::from(rate.period_ns) * UNITS_PER_NS) as f64
                    / rate.tokens as f64
                    / (1u64 << limit.shift) as f64
                    * (1u64 << limit.fraction) as f64;
                let error = limit.interval as f64 / exact - 1.0;
                assert!((0.0..0.002).contains(&error), "{rate:?} burst {burst}: {error}");
                // The dearest packet does not overflow.
                let dearest = u128::from(limit.interval) * u128::from(MAX_COST);
                assert!(
                    rate.token == Token::Packet
                        || dearest + (1 << limit.fraction) <= u128::from(u64::MAX)
                );
                assert!(limit.debt <= limit.span);
            }
        }
        let day = Rate::packets(1, DAY_NS).unwrap();
        assert_eq!(Limit::compile(day, 0, 2, false), Err(RangeError::NoBurst));
    }

    #[test]
    fn idle_leases_stay_within_half_a_burst() {
        for (most, bursts) in [
            (MAX_LEASE, [1, 2, 10, 100, 1_000, u32::MAX]),
            (MAX_BYTE_LEASE, [1, 1_514, 100_000, 10_000_000, 1 << 30, u32::MAX]),
        ] {
            for cpus in [1, 2, 3, 64, 384] {
                for burst in bursts {
                    let lease = lease(burst, cpus, most);
                    assert!((1..=most).contains(&lease));
                    assert!(u64::from(cpus) * u64::from(lease - 1) <= u64::from(burst) / 2);
                }
            }
        }
    }

    #[test]
    fn ticks_are_a_time_of_their_own() {
        for tick_ns in [1_000_000, 3_333_333, 4_000_000, 10_000_000] {
            let rate = Rate::packets(1_000, SECOND_NS).unwrap();
            let limit = Limit::compile_ticks(rate, 1_000, tick_ns).unwrap();
            let per_second = tick_time(SECOND_NS) as f64 / tick_ns as f64;
            let error = limit.span as f64 / per_second - 1.0;
            assert!((0.0..0.001).contains(&error), "{tick_ns}: {error}");
        }
    }
}
