//! Compiled policies: what user space writes and the packet path reads.

use crate::{
    gate::Gate,
    level::{Level, MAX_POLICIES},
    limit::Limit,
    parse::{Kind, Packet},
    source::SourcePrefix,
};

/// Generations in the rule-set map: one live, one to be written.
pub const GENERATIONS: u32 = 2;

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

/// A policy as the packet path reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Policy {
    /// A [`Mode`]; anything unknown enforces.
    mode: u32,
    /// Bit n: there is a limit at level n.
    levels: u32,
    /// What counts as one wider prefix.
    prefix: SourcePrefix,
    _padding: u32,
    limits: [Limit; Level::ALL.len()],
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
    /// What new sources may do.
    gate: Gate,
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

const _: () =
    assert!(size_of::<Policy>() == 32 + 6 * size_of::<Limit>() && align_of::<Policy>() == 8);
const _: () = assert!(
    size_of::<Ruleset>() == 56 + size_of::<Gate>() + size_of::<Policy>() * MAX_POLICIES as usize
);
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
    /// A policy without a limit.
    #[must_use]
    pub const fn new(mode: Mode) -> Self {
        Self {
            mode: mode as u32,
            levels: 0,
            prefix: SourcePrefix::WIDER,
            _padding: 0,
            limits: [Limit::NONE; Level::ALL.len()],
        }
    }

    /// With a limit at this level.
    #[must_use]
    pub const fn with(mut self, level: Level, limit: Limit) -> Self {
        self.levels |= 1 << level as u32;
        self.limits[level as usize] = limit;
        self
    }

    /// With this wider prefix.
    #[must_use]
    pub const fn with_prefix(mut self, prefix: SourcePrefix) -> Self {
        self.prefix = prefix;
        self
    }

    /// The limit at this level, if there is one.
    #[inline(always)]
    #[must_use]
    pub const fn limit(&self, level: Level) -> Option<&Limit> {
        if self.levels & (1 << level as u32) == 0 {
            None
        } else {
            Some(&self.limits[level as usize])
        }
    }

    /// Whether there is a limit beyond that of a source's packets.
    #[inline(always)]
    #[must_use]
    pub const fn has_more_levels(&self) -> bool {
        self.levels & !(1 << Level::SourcePackets as u32) != 0
    }

    /// What counts as one wider prefix.
    #[inline(always)]
    #[must_use]
    pub const fn prefix(&self) -> &SourcePrefix {
        &self.prefix
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

impl Ruleset {
    /// A rule set in which every packet meets policy 0, which is off.
    #[must_use]
    pub const fn new(observe: bool, gate: Gate) -> Self {
        Self {
            by_kind: [0; Kind::SLOTS],
            observe: observe as u32,
            sources: SourcePrefix::DEFAULT,
            gate,
            policies: [Policy::new(Mode::Off); MAX_POLICIES as usize],
        }
    }

    /// The same rules as generation number `generation`.
    #[must_use]
    pub fn stamped(mut self, generation: u64) -> Self {
        let stamp = (generation & 0xffff_ffff) as u32;
        self.gate = self.gate.stamped(stamp);
        for limit in self.policies.iter_mut().flat_map(|policy| &mut policy.limits) {
            *limit = limit.stamped(stamp);
        }
        self
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

    /// What new sources may do.
    #[inline(always)]
    #[must_use]
    pub const fn gate(&self) -> &Gate {
        &self.gate
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
