//! The token bucket: exact across CPUs at the cost of a per-CPU one.
//!
//! A bucket is a GCRA (ITU-T I.371): its whole shared state is the theoretical
//! arrival time *tat*, the moment at which it will be full again. With a token
//! every `interval` and a burst of `span / interval` tokens, the tokens there
//! at `now` are `(now + span - max(tat, now)) / interval`.
//!
//! Every CPU takes tokens from that word in small leases of up to L and spends
//! them without looking at it. So over any time t, with N CPUs,
//!
//! ```text
//! admitted <= burst + rate * t + N (L - 1)
//! ```
//!
//! where the last term is leases taken before and spent within t. It is at
//! most half a burst by the choice of L, and zero for L = 1. Time is what the
//! CPUs read; where their clocks differ (by microseconds), so does t.

use crate::policy::Policy;

/// Attempts at the shared word before a packet gives up as contended.
const ATTEMPTS: u32 = 4;
/// Set in every remembered denial, so that a zeroed lease remembers none.
const DENIED: u32 = 1 << 31;

/// Value of the maps `SOURCES4` and `SOURCES6`, one per CPU.
///
/// All zero, as a new entry is on every CPU, means a full burst in the home
/// CPU's word and no lease anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Bucket {
    /// Theoretical arrival time in the policy's units. Used only in the slot
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
    /// Timer tick (low 31 bits) in which the bucket was found empty, with
    /// [`DENIED`]; or 0.
    denied: u32,
}

const _: () = assert!(size_of::<Bucket>() == 16 && align_of::<Bucket>() == 8);

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

/// The two clocks of the packet path.
pub trait Clock {
    /// Monotonic nanoseconds; costly. Another CPU's may lie ahead of ours.
    fn now_ns(&self) -> u64;
    /// Timer ticks; free.
    fn tick(&self) -> u32;
}

/// What became of one packet's token.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// It was there.
    Admitted,
    /// It was not.
    Exhausted,
    /// Other CPUs changed the shared word each time.
    Contended,
    /// The shared word is gone: the entry was evicted a moment ago.
    Vanished,
}

/// What the shared word allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    tokens: u32,
    tat: u64,
}

/// Charges one token.
#[inline(always)]
pub fn charge<W: Word>(
    policy: &Policy,
    cell: &impl LeaseCell,
    home: impl FnOnce() -> Option<W>,
    clock: &impl Clock,
) -> Charge {
    let lease = cell.get();
    // Not more than the policy leases today: it may have leased more before.
    let credits = if lease.credits < policy.lease() { lease.credits } else { policy.lease() };
    if credits > 0 {
        cell.set(Lease { credits: credits - 1, ..lease });
        return Charge::Admitted;
    }
    let denial = clock.tick() | DENIED;
    if policy.gated() && lease.denied == denial {
        return Charge::Exhausted;
    }
    let Some(word) = home() else {
        return Charge::Vanished;
    };
    for _ in 0..ATTEMPTS {
        let tat = word.load();
        // Read after the word, so never behind the clock that wrote it by more
        // than the CPUs' clocks differ, however long we were stopped (a
        // virtual CPU may lose milliseconds anywhere).
        let now = policy.time(clock.now_ns());
        let grant = grant(policy, tat, now);
        if grant.tat != tat && !word.replace(tat, grant.tat) {
            continue;
        }
        if grant.tokens == 0 {
            cell.set(Lease { credits: 0, denied: denial });
            return Charge::Exhausted;
        }
        cell.set(Lease { credits: grant.tokens - 1, ..lease });
        return Charge::Admitted;
    }
    Charge::Contended
}

/// The largest lease that is there (whole, a quarter, one token, none) and the
/// word after it.
#[inline(always)]
fn grant(policy: &Policy, tat: u64, now: u64) -> Grant {
    let full = now.saturating_add(policy.span());
    // A limit was lowered, or the word is damaged: take it as empty. A word
    // that lies ahead by less than the slack was written by a CPU whose clock
    // is a little ahead; to pull that back would give away what it took.
    let tat = if tat > full.saturating_add(policy.slack()) { full } else { tat };
    let from = if tat > now { tat } else { now };
    let room = full.saturating_sub(from);
    let whole = policy.lease();
    let quarter = whole / 4;
    let interval = policy.interval();
    let tokens = if room >= u64::from(whole) * interval {
        whole
    } else if quarter > 1 && room >= u64::from(quarter) * interval {
        quarter
    } else if room >= interval {
        1
    } else {
        return Grant { tokens: 0, tat };
    };
    Grant { tokens, tat: from + u64::from(tokens) * interval }
}

// SAFETY: repr(C), integers only, no padding (size asserted above).
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for Bucket {}
