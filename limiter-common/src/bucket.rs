//! The token bucket: exact across CPUs at the cost of a per-CPU one.
//!
//! A bucket is a GCRA (ITU-T I.371): its whole shared state is the theoretical
//! arrival time *tat*, the moment at which it will be full again. With a token
//! every `interval` and a burst of `span / interval` tokens, the tokens there
//! at `now` are `(now + span - max(tat, now)) / interval`.
//!
//! A token is a packet or a byte. Every CPU takes tokens from that word in
//! leases of up to L (or as many as one packet costs, if that is more) and
//! spends them without looking at it. So over any time t, with N CPUs,
//!
//! ```text
//! admitted <= burst + rate * t + N (L - 1)
//! ```
//!
//! where the last term is leases taken before and spent within t. It is at
//! most half a burst by the choice of L, and zero for L = 1. Time is what the
//! CPUs read; where their clocks differ (by microseconds), so does t. A burst
//! is rounded up to a whole unit of time, a sixteenth of a nanosecond at least:
//! at 16 GB/s and above that is a byte or, at 100 GB/s, seven.

use crate::limit::{Limit, MAX_COST};

/// Attempts at the shared word before a packet gives up as contended.
const ATTEMPTS: u32 = 4;
/// A remembered denial: this bit, so that a zeroed lease remembers none; the
/// number of the rule set; the last timer tick in which it holds.
const DENIED: u32 = 1 << 31;
const STAMP_SHIFT: u32 = 27;
const STAMPS: u32 = 15;
const TICKS: u32 = (1 << STAMP_SHIFT) - 1;
/// No denial is remembered for longer, ticks. The tick is kept modulo 2^27 (a
/// day and a half at 1000 Hz), so a denial that is older may come up again, for
/// a second at most, and with odds of two in a million.
const LONGEST_DENIAL: u32 = 255;

/// Value of the maps `SOURCES4`, `SOURCES6` and `TOTALS`, one per CPU.
///
/// All zero, as a new entry is on every CPU, means a full burst in the home
/// CPU's word and no lease anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Bucket {
    /// Theoretical arrival time in the limit's units. Used only in the slot
    /// of the key's home CPU, by all CPUs, with compare-and-swap.
    pub tat: u64,
    /// What this CPU holds.
    pub lease: Lease,
}

impl Bucket {
    /// A new one.
    pub const FULL: Self = Self { tat: 0, lease: Lease { credits: 0, denied: 0 } };
}

/// What one CPU holds of a bucket; no other CPU touches it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Lease {
    /// Tokens taken and not yet spent.
    credits: u32,
    /// Until when the bucket is known to be empty; see [`DENIED`].
    denied: u32,
}

const _: () = assert!(size_of::<Bucket>() == 16 && align_of::<Bucket>() == 8);

impl Lease {
    /// So many tokens, and no denial.
    #[must_use]
    pub const fn of(credits: u32) -> Self {
        Self { credits, denied: 0 }
    }

    /// Tokens taken and not yet spent.
    #[must_use]
    pub const fn credits(self) -> u32 {
        self.credits
    }
}

/// Tokens that are left at `now_ns` in a bucket, given as each CPU has it; only
/// the home CPU's has a time.
#[must_use]
pub fn tokens(limit: &Limit, buckets: &[Bucket], now_ns: u64) -> u32 {
    let held = buckets.iter().map(|bucket| held(limit, bucket.lease)).fold(0, u32::saturating_add);
    let tat = buckets.iter().map(|bucket| bucket.tat).max().unwrap_or_default();
    let room = limit.span().saturating_sub(tat.saturating_sub(limit.time(now_ns)));
    held.saturating_add(limit.tokens_within(room))
}

/// A shared 64-bit word.
pub trait Word {
    /// The present value, never torn.
    fn load(&self) -> u64;
    /// Stores `new` if the word still is `current`; says whether it did.
    fn replace(&self, current: u64, new: u64) -> bool;
}

/// Where this CPU's lease is kept.
pub trait LeaseCell {
    /// The lease as it is.
    fn get(&self) -> Lease;
    /// Replaces it.
    fn set(&self, lease: Lease);
}

/// The clocks of the packet path.
pub trait Clock {
    /// Monotonic nanoseconds; costly. Another CPU's may lie ahead of ours.
    fn now_ns(&self) -> u64;
    /// Timer ticks; free.
    fn tick(&self) -> u64;
    /// Monotonic nanoseconds as of the last timer tick; cheap.
    fn coarse_ns(&self) -> u64;
    /// Nanoseconds since the boot, time asleep included; costly.
    fn boot_ns(&self) -> u64;
}

/// What became of one packet's tokens.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Charge {
    /// They were there.
    Admitted = 0,
    /// They were not.
    Exhausted = 1,
    /// Other CPUs changed the shared word each time.
    Contended = 2,
    /// There is no bucket: new sources arrive faster than they may.
    NoBudget = 3,
    /// There is no bucket: the table took no new key, or evicted it a moment
    /// ago.
    NoRoom = 4,
}

impl Charge {
    /// The charge of that code; anything unknown is the last.
    #[inline(always)]
    pub const fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Admitted,
            1 => Self::Exhausted,
            2 => Self::Contended,
            3 => Self::NoBudget,
            _ => Self::NoRoom,
        }
    }
}

/// What the shared word allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    tokens: u32,
    tat: u64,
    /// Where no tokens are granted: time until they are there, in units.
    wait: u64,
}

/// A denial that holds until the end of tick number `last`.
#[inline(always)]
const fn denial(limit: &Limit, last: u64) -> u32 {
    DENIED | (limit.stamp() & STAMPS) << STAMP_SHIFT | (last & 0xffff_ffff) as u32 & TICKS
}

/// Whether a remembered denial holds in this tick.
#[inline(always)]
const fn holds(limit: &Limit, denied: u32, tick: u64) -> bool {
    // The difference of the last tick and this one; of anything else that
    // differs, the upper bits are not zero.
    denied.wrapping_sub(denial(limit, tick)) <= LONGEST_DENIAL && denied & DENIED != 0
}

/// Whether this CPU knows, without a look at the shared word, that not one
/// token is there.
#[inline(always)]
pub fn is_denied(limit: &Limit, cell: &impl LeaseCell, clock: &impl Clock) -> bool {
    let lease = cell.get();
    lease.credits == 0 && limit.gated() && holds(limit, lease.denied, clock.tick())
}

/// Remembers for the rest of this tick that nothing is left.
#[inline(always)]
pub fn deny(limit: &Limit, cell: &impl LeaseCell, clock: &impl Clock) {
    cell.set(Lease { credits: 0, denied: denial(limit, clock.tick()) });
}

/// Charges `cost` tokens to what this CPU holds; says nothing where the shared
/// word must decide. Above [`MAX_COST`] that many.
#[inline(always)]
pub fn charge_lease(
    limit: &Limit,
    cost: u32,
    cell: &impl LeaseCell,
    clock: &impl Clock,
) -> Option<Charge> {
    let cost = capped(cost);
    let lease = cell.get();
    let credits = held(limit, lease);
    if credits >= cost {
        cell.set(Lease { credits: credits - cost, ..lease });
        Some(Charge::Admitted)
    } else if limit.gated() && holds(limit, lease.denied, clock.tick()) {
        Some(Charge::Exhausted)
    } else {
        None
    }
}

const fn capped(cost: u32) -> u32 {
    if cost < MAX_COST { cost } else { MAX_COST }
}

/// What a lease is worth: not more than the limit leases today; it may have
/// leased more before.
#[inline(always)]
const fn held(limit: &Limit, lease: Lease) -> u32 {
    if lease.credits < limit.lease() { lease.credits } else { limit.lease() }
}

/// Charges `cost` tokens to what this CPU holds, or takes a new lease.
#[inline(always)]
pub fn charge<W: Word>(
    limit: &Limit,
    cost: u32,
    cell: &impl LeaseCell,
    home: impl FnOnce() -> Option<W>,
    clock: &impl Clock,
) -> Charge {
    if let Some(charge) = charge_lease(limit, cost, cell, clock) {
        return charge;
    }
    let lease = cell.get();
    let credits = held(limit, lease);
    let Some(word) = home() else {
        return Charge::NoRoom;
    };
    let needed = capped(cost) - credits;
    match take(limit, needed, &word, || limit.time(clock.now_ns())) {
        Ok(tokens) => {
            cell.set(Lease { credits: tokens - needed, ..lease });
            Charge::Admitted
        }
        Err(Refusal::Empty { wait }) => {
            let ticks = limit.ticks(wait);
            let longest = u64::from(LONGEST_DENIAL);
            let ticks = if ticks < longest { ticks } else { longest };
            cell.set(Lease { credits, denied: denial(limit, clock.tick() + ticks) });
            Charge::Exhausted
        }
        Err(Refusal::Contended) => Charge::Contended,
    }
}

/// Why a shared word gave no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// They are not there.
    Empty {
        /// Time until they are, in units.
        wait: u64,
    },
    /// Other CPUs changed it each time.
    Contended,
}

/// Takes at least `needed` tokens from a shared word, and up to a lease of
/// them; says how many.
///
/// # Errors
/// It is empty, or contended.
#[inline(always)]
pub fn take(
    limit: &Limit,
    needed: u32,
    word: &impl Word,
    now: impl Fn() -> u64,
) -> Result<u32, Refusal> {
    for _ in 0..ATTEMPTS {
        let tat = word.load();
        // Read after the word, so never behind the clock that wrote it by more
        // than the CPUs' clocks differ, however long we were stopped (a
        // virtual CPU may lose milliseconds anywhere).
        let grant = grant(limit, needed, tat, now());
        if grant.tat != tat && !word.replace(tat, grant.tat) {
            continue;
        }
        return match grant.tokens {
            0 => Err(Refusal::Empty { wait: grant.wait }),
            tokens => Ok(tokens),
        };
    }
    Err(Refusal::Contended)
}

/// The largest lease that is there (whole, a quarter, what is needed, none)
/// and the word after it.
#[inline(always)]
fn grant(limit: &Limit, needed: u32, tat: u64, now: u64) -> Grant {
    // No sum here overflows: times are below 2^62, spans at most 2^61, and what
    // else a damaged word holds is cut first.
    let full = now.wrapping_add(limit.span());
    // A limit was lowered, or the word is damaged: take it as empty. A word
    // that lies ahead by less than the slack was written by a CPU whose clock
    // is a little ahead; to pull that back would give away what it took.
    let tat = if tat > full.wrapping_add(limit.slack()) { full } else { tat };
    let from = if tat > now { tat } else { now };
    let (whole, quarter) = (limit.lease(), limit.lease() / 4);
    let after = |tokens: u32| from.wrapping_add(limit.duration(tokens));
    let tokens = if whole > needed && after(whole) <= full {
        whole
    } else if quarter > needed && after(quarter) <= full {
        quarter
    } else if after(needed) <= full {
        needed
    } else {
        return Grant { tokens: 0, tat, wait: after(needed).wrapping_sub(full) };
    };
    Grant { tokens, tat: after(tokens), wait: 0 }
}

/// Puts a bucket that nobody has charged yet in debt, as one that is made in a
/// flood of new sources starts.
#[inline(always)]
pub fn start_in_debt(limit: &Limit, word: &impl Word, clock: &impl Clock) {
    // Where it fails another CPU was first, or the bucket was there before.
    let _ = word.replace(Bucket::FULL.tat, limit.time(clock.now_ns()) + limit.debt());
}

/// Whether less than half of the burst is left in a shared word.
#[inline(always)]
pub fn is_half_drained(limit: &Limit, word: &impl Word, clock: &impl Clock) -> bool {
    let tat = word.load();
    tat > limit.time(clock.now_ns()) + limit.span() / 2
}

// SAFETY: repr(C), integers only, no padding (size asserted above).
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for Bucket {}
