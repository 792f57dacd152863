//! Where the limits of a policy apply, and how they are numbered.

use crate::verdict::Reason;

/// Policies in one generation.
pub const MAX_POLICIES: u32 = 64;

/// Where a limit applies, narrow first: a packet passes only if each level of
/// its policy has room, and what a narrow one refuses does not cost a wide one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Level {
    /// Packets of one source.
    SourcePackets = 0,
    /// Bytes of one source.
    SourceBytes = 1,
    /// Packets of one wider prefix.
    PrefixPackets = 2,
    /// Bytes of one wider prefix.
    PrefixBytes = 3,
    /// Packets of everybody together.
    TotalPackets = 4,
    /// Bytes of everybody together.
    TotalBytes = 5,
}

impl Level {
    /// All of them, in the order in which they are charged.
    pub const ALL: [Self; 6] = [
        Self::SourcePackets,
        Self::SourceBytes,
        Self::PrefixPackets,
        Self::PrefixBytes,
        Self::TotalPackets,
        Self::TotalBytes,
    ];

    /// Levels whose bucket belongs to one source or one prefix: the first ones.
    pub const OF_ONE_SOURCE: u32 = 4;

    /// The level of that number; the last for any beyond. A match and no table,
    /// so that the verifier knows the number in each turn of a loop.
    #[inline(always)]
    #[must_use]
    pub const fn numbered(number: u32) -> Self {
        match number {
            0 => Self::SourcePackets,
            1 => Self::SourceBytes,
            2 => Self::PrefixPackets,
            3 => Self::PrefixBytes,
            4 => Self::TotalPackets,
            _ => Self::TotalBytes,
        }
    }

    /// Whether one bucket stands for a wider prefix.
    #[inline(always)]
    #[must_use]
    pub const fn is_wide(self) -> bool {
        matches!(self, Self::PrefixPackets | Self::PrefixBytes)
    }

    /// Tokens that a packet of `length` bytes costs.
    #[inline(always)]
    #[must_use]
    pub const fn cost(self, length: u32) -> u32 {
        match self {
            Self::SourcePackets | Self::PrefixPackets | Self::TotalPackets => 1,
            Self::SourceBytes | Self::PrefixBytes | Self::TotalBytes => length,
        }
    }

    /// The reason under which a packet over this limit is counted.
    #[inline(always)]
    pub const fn reason(self) -> Reason {
        match self {
            Self::SourcePackets => Reason::SourceRate,
            Self::SourceBytes => Reason::SourceBandwidth,
            Self::PrefixPackets | Self::PrefixBytes => Reason::PrefixRate,
            Self::TotalPackets | Self::TotalBytes => Reason::PolicyRate,
        }
    }
}

/// Number of the limit of a policy at a level, of the policy's number; part of
/// the keys of buckets.
#[inline(always)]
#[must_use]
pub const fn limit_number(policy: Number, level: Level) -> u32 {
    policy.0 + level as u32
}

/// Numbers of limits that exist at a time.
pub const LIMITS: u32 = MAX_POLICIES * LEVEL_SLOTS;
/// A power of two with room for every level.
const LEVEL_SLOTS: u32 = 8;

/// A policy's number, which it keeps wherever it stands among others: the
/// first of those of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Number(u32);

impl Number {
    /// Number `row` below [`MAX_POLICIES`], which counters are kept under, for
    /// the `use_`th time: buckets of an earlier use are not found.
    #[must_use]
    pub const fn new(row: u32, use_: u32) -> Self {
        Self(use_.wrapping_mul(LIMITS) + (row % MAX_POLICIES) * LEVEL_SLOTS)
    }

    /// The row of counters.
    #[inline(always)]
    #[must_use]
    pub const fn row(self) -> u32 {
        self.0 / LEVEL_SLOTS % MAX_POLICIES
    }
}
