//! Layout of the counters: one row per (policy, verdict, reason) and CPU.

use crate::{
    level::MAX_POLICIES,
    sample::Sampling,
    verdict::{Reason, Verdict},
};

/// Policy index under which packets are counted that no policy decided.
pub const NO_POLICY: u32 = MAX_POLICIES;

/// Rows per (policy, verdict); a power of two with room for more reasons.
const REASON_SLOTS: u32 = 32;
/// Rows per policy; a power of two with room for one more verdict.
pub const POLICY_ROWS: u32 = REASON_SLOTS * 4;
/// Rows of the counter array of one interface.
pub const ROWS: u32 = (MAX_POLICIES + 1) * POLICY_ROWS;

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counter {
    /// Packets.
    pub packets: u64,
    /// Bytes present in those packets, from the Ethernet header on.
    pub bytes: u64,
}

/// One row of the per-CPU counter array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Row {
    /// What was counted in it.
    pub counter: Counter,
    /// Which of it was shown.
    pub sampling: Sampling,
}

const _: () = assert!(size_of::<Counter>() == 16 && align_of::<Counter>() == 8);
const _: () = assert!(size_of::<Row>() == 32 && align_of::<Row>() == 8);
const _: () = assert!(Reason::ALL.len() <= REASON_SLOTS as usize);

/// The row in which a decision is counted; always below [`ROWS`].
#[inline(always)]
#[must_use]
pub const fn row(policy: u32, verdict: Verdict, reason: Reason) -> u32 {
    let policy = if policy < NO_POLICY { policy } else { NO_POLICY };
    policy * POLICY_ROWS + verdict as u32 * REASON_SLOTS + reason as u32
}

/// The decision that is counted in a row: policy, verdict, reason.
#[must_use]
pub fn of_row(row: u32) -> Option<(u32, Verdict, Reason)> {
    let verdict = Verdict::ALL.get((row % POLICY_ROWS / REASON_SLOTS) as usize)?;
    let reason = Reason::ALL.get((row % REASON_SLOTS) as usize)?;
    (row < ROWS && reason.goes_with(*verdict)).then_some((row / POLICY_ROWS, *verdict, *reason))
}

/// Every row of one policy in which something may be counted, with what it
/// stands for.
pub fn rows(policy: u32) -> impl Iterator<Item = (u32, Verdict, Reason)> {
    Verdict::ALL.into_iter().flat_map(move |verdict| {
        let reasons = Reason::ALL.into_iter().filter(move |reason| reason.goes_with(verdict));
        reasons.map(move |reason| (row(policy, verdict, reason), verdict, reason))
    })
}

// SAFETY: words without padding; every bit pattern is a value.
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for Row {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_distinct_and_in_range() {
        let mut seen = std::collections::HashSet::new();
        for policy in 0..=NO_POLICY {
            for (row, verdict, reason) in rows(policy) {
                assert!(row < ROWS, "{policy} {verdict:?} {reason:?}");
                assert_eq!(of_row(row), Some((policy, verdict, reason)));
                assert!(seen.insert(row), "{policy} {verdict:?} {reason:?} shares its row");
            }
        }
        assert!((0..ROWS + 100).all(|row| of_row(row).is_some() == seen.contains(&row)));
        // Seven reasons to pass, nine to drop or to drop perhaps, and a full
        // table.
        assert_eq!(seen.len(), 65 * (7 + 9 * 2 + 3));
    }
}
