//! Why a packet left, and what that means for it.

/// What happens to a packet.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// Handed to the network stack.
    Pass = 0,
    /// Dropped before a socket buffer exists.
    Drop = 1,
    /// Passed only because its policy observes; it would have been dropped.
    WouldDrop = 2,
}

impl Verdict {
    /// All verdicts, by their code.
    pub const ALL: [Self; 3] = [Self::Pass, Self::Drop, Self::WouldDrop];

    /// Name as it stands in JSON and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
            Self::WouldDrop => "would_drop",
        }
    }
}

/// The one reason under which a packet is counted.
///
/// The codes are part of the counters' layout and the names part of the
/// outside interface: add, never renumber or rename.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// Neither IPv4 nor IPv6 (STP, LLDP, MPLS, ...).
    NotIp = 0,
    /// ARP or IPv6 neighbour discovery, which nothing may drop.
    Neighbour = 1,
    /// On the allow list.
    Allowed = 2,
    /// Its bucket had a token.
    WithinLimit = 3,
    /// Its policy is switched off.
    Unlimited = 4,
    /// From a source without state of its own, inside the shared cap.
    Untracked = 5,
    /// On the deny list.
    Denied = 6,
    /// Under a ban that has not expired.
    Banned = 7,
    /// Over the packet rate of its source.
    SourceRate = 8,
    /// Over the byte rate of its source.
    SourceBandwidth = 9,
    /// Over the rate of its wider prefix.
    PrefixRate = 10,
    /// Over the total rate of its policy.
    PolicyRate = 11,
    /// From a new source while new sources arrive too fast.
    NewSourceRate = 12,
    /// Truncated, contradicting itself, or beyond the parser's stated bounds.
    Malformed = 13,
    /// Trouble: the table of sources could not take a new one.
    MapFull = 14,
    /// Trouble: other CPUs won every attempt to take a token.
    Contended = 15,
    /// Trouble: something that must exist was not there.
    Internal = 16,
}

impl Reason {
    /// All reasons, by their code.
    pub const ALL: [Self; 17] = [
        Self::NotIp,
        Self::Neighbour,
        Self::Allowed,
        Self::WithinLimit,
        Self::Unlimited,
        Self::Untracked,
        Self::Denied,
        Self::Banned,
        Self::SourceRate,
        Self::SourceBandwidth,
        Self::PrefixRate,
        Self::PolicyRate,
        Self::NewSourceRate,
        Self::Malformed,
        Self::MapFull,
        Self::Contended,
        Self::Internal,
    ];

    /// The reason of a list by its code.
    #[inline(always)]
    #[must_use]
    pub const fn of_list(code: u32) -> Option<Self> {
        match code {
            code if code == Self::Allowed as u32 => Some(Self::Allowed),
            code if code == Self::Banned as u32 => Some(Self::Banned),
            code if code == Self::Denied as u32 => Some(Self::Denied),
            _ => None,
        }
    }

    /// Name as it stands in JSON and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotIp => "not_ip",
            Self::Neighbour => "neighbour",
            Self::Allowed => "allowed",
            Self::WithinLimit => "within_limit",
            Self::Unlimited => "unlimited",
            Self::Untracked => "untracked",
            Self::Denied => "denied",
            Self::Banned => "banned",
            Self::SourceRate => "source_rate",
            Self::SourceBandwidth => "source_bandwidth",
            Self::PrefixRate => "prefix_rate",
            Self::PolicyRate => "policy_rate",
            Self::NewSourceRate => "new_source_rate",
            Self::Malformed => "malformed",
            Self::MapFull => "map_full",
            Self::Contended => "contended",
            Self::Internal => "internal",
        }
    }

    /// The reason's verdict where its policy enforces.
    ///
    /// Trouble is decided by which side is safe: a missing rule set is no fault
    /// of the sender, so it passes; a word that other CPUs keep taking is a
    /// source over its rate, so it drops. A packet whose source the full table
    /// does not take passes while the shared cap of untracked sources has
    /// room, and drops as [`Reason::MapFull`] beyond: see [`crate::charge`].
    #[inline(always)]
    pub const fn verdict(self) -> Verdict {
        match self {
            Self::NotIp
            | Self::Neighbour
            | Self::Allowed
            | Self::WithinLimit
            | Self::Unlimited
            | Self::Untracked
            | Self::MapFull
            | Self::Internal => Verdict::Pass,
            Self::Denied
            | Self::Banned
            | Self::SourceRate
            | Self::SourceBandwidth
            | Self::PrefixRate
            | Self::PolicyRate
            | Self::NewSourceRate
            | Self::Malformed
            | Self::Contended => Verdict::Drop,
        }
    }

    /// Whether it is ever counted under this verdict: only a full table goes
    /// either way.
    #[must_use]
    pub const fn goes_with(self, verdict: Verdict) -> bool {
        matches!(
            (self, self.verdict(), verdict),
            (Self::MapFull, _, _)
                | (_, Verdict::Pass, Verdict::Pass)
                | (_, Verdict::Drop, Verdict::Drop | Verdict::WouldDrop)
        )
    }

    /// Whether the reason means that limiterd itself is in trouble.
    #[must_use]
    pub const fn is_trouble(self) -> bool {
        matches!(self, Self::MapFull | Self::Contended | Self::Internal)
    }
}

/// What was decided for one packet, and where it is counted.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What happens to the packet.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// Index of the policy that decided, or [`crate::stats::NO_POLICY`].
    pub policy: u32,
    /// Bytes present, from the Ethernet header on.
    pub bytes: u32,
}

impl Decision {
    /// A decision by `policy`, which drops only if `enforce`.
    #[inline(always)]
    pub const fn new(reason: Reason, policy: u32, bytes: u32, enforce: bool) -> Self {
        Self::with(reason, reason.verdict(), policy, bytes, enforce)
    }

    /// The same where the reason alone does not say which way it goes.
    #[inline(always)]
    pub const fn with(
        reason: Reason,
        verdict: Verdict,
        policy: u32,
        bytes: u32,
        enforce: bool,
    ) -> Self {
        let verdict = match (verdict, enforce) {
            (Verdict::Drop, false) => Verdict::WouldDrop,
            (verdict, _) => verdict,
        };
        debug_assert!(reason.goes_with(verdict));
        Self { verdict, reason, policy, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_index_the_tables_of_all() {
        for (code, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, code, "{}", reason.name());
        }
        for (code, verdict) in Verdict::ALL.into_iter().enumerate() {
            assert_eq!(verdict as usize, code, "{}", verdict.name());
        }
    }

    #[test]
    fn observing_turns_drops_and_only_drops_into_would_drop() {
        for reason in Reason::ALL {
            let enforced = Decision::new(reason, 0, 60, true).verdict;
            let observed = Decision::new(reason, 0, 60, false).verdict;
            match enforced {
                Verdict::Drop => assert_eq!(observed, Verdict::WouldDrop),
                other => assert_eq!(observed, other),
            }
        }
    }
}
