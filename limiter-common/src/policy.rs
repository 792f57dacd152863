//! Compiled policies: what user space writes and the packet path reads.

use crate::{
    class::Classes,
    gate::Gate,
    level::{Level, MAX_POLICIES, Number},
    limit::Limit,
    parse::Kind,
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
    number: Number,
    limits: [Limit; Level::ALL.len()],
}

/// One generation of policies and the tables that choose among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Ruleset {
    /// Number of the generation, counted from the load.
    generation: u64,
    /// 1: nothing is dropped, whatever a policy says.
    observe: u32,
    /// What counts as one source.
    sources: SourcePrefix,
    /// What new sources may do.
    gate: Gate,
    classes: Classes,
    policies: [Policy; MAX_POLICIES as usize],
}

const _: () =
    assert!(size_of::<Policy>() == 32 + 6 * size_of::<Limit>() && align_of::<Policy>() == 8);
const _: () = assert!(
    size_of::<Ruleset>()
        == 32
            + size_of::<Gate>()
            + size_of::<Classes>()
            + size_of::<Policy>() * MAX_POLICIES as usize
);

impl Policy {
    /// A policy without a limit.
    #[must_use]
    pub const fn new(mode: Mode) -> Self {
        Self {
            mode: mode as u32,
            levels: 0,
            prefix: SourcePrefix::WIDER,
            number: Number::new(0, 0),
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

    /// With this number.
    #[must_use]
    pub const fn numbered(mut self, number: Number) -> Self {
        self.number = number;
        self
    }

    /// Its number.
    #[inline(always)]
    #[must_use]
    pub const fn number(&self) -> Number {
        self.number
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
    /// A rule set without a policy.
    #[must_use]
    pub const fn new(observe: bool, gate: Gate) -> Self {
        Self {
            generation: 0,
            observe: observe as u32,
            sources: SourcePrefix::DEFAULT,
            gate,
            classes: Classes::NONE,
            policies: [Policy::new(Mode::Off); MAX_POLICIES as usize],
        }
    }

    /// The same rules as generation number `generation`.
    #[must_use]
    pub fn stamped(mut self, generation: u64) -> Self {
        let stamp = (generation & 0xffff_ffff) as u32;
        self.generation = generation;
        self.gate = self.gate.stamped(stamp);
        for limit in self.policies.iter_mut().flat_map(|policy| &mut policy.limits) {
            *limit = limit.stamped(stamp);
        }
        self
    }

    /// Sets the policy at a place modulo [`MAX_POLICIES`].
    pub const fn set_policy(&mut self, place: u32, policy: Policy) {
        self.policies[(place % MAX_POLICIES) as usize] = policy;
    }

    /// Sends packets of `kind` to the policy at a place, where no other axis is
    /// used.
    pub const fn set_kind(&mut self, kind: Kind, place: u32) {
        self.classes.first[kind as usize] = place;
        self.classes.kinds[kind as usize] = 1 << (place % MAX_POLICIES);
    }

    /// Sends every packet to the policy at a place, where no other axis is used.
    pub const fn set_every_kind(&mut self, place: u32) {
        let mut kind = 0;
        while kind < Kind::ALL.len() {
            self.set_kind(Kind::ALL[kind], place);
            kind += 1;
        }
    }

    /// Sets the tables that choose among the policies.
    pub const fn set_classes(&mut self, classes: Classes) {
        self.classes = classes;
    }

    /// The tables that choose among the policies.
    #[inline(always)]
    #[must_use]
    pub const fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The policy at a place, if there is such a place.
    #[inline(always)]
    #[must_use]
    pub fn policy(&self, place: u32) -> Option<&Policy> {
        self.policies.get(place as usize)
    }

    /// Number of the generation, counted from the load.
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
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
