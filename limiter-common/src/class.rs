//! Which policy a packet meets: the first of the file that matches, in constant
//! time.
//!
//! Each axis has a table from what the packet shows to the set of policies that
//! it satisfies, one bit for each in file order; the lowest bit in all sets is
//! the policy. An axis that no policy uses is not looked at, and where none is
//! used but the kind, the first policy of each kind is known beforehand.

use crate::{
    frame::Frame,
    level::MAX_POLICIES,
    parse::{Kind, Packet, Shape, vlan},
    policy::Ruleset,
    tables::Tables,
};

/// A set of policies, by their place in the file.
pub type Set = u64;

/// Every policy.
pub const ALL: Set = u64::MAX;

const _: () = assert!(MAX_POLICIES == Set::BITS);

/// Axes beyond the kind, as bits of [`Classes::axes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Axis {
    /// IP protocol.
    Protocol = 1,
    /// Destination port of TCP and UDP.
    Port = 1 << 1,
    /// Outermost VLAN.
    Vlan = 1 << 2,
    /// Interface.
    Interface = 1 << 3,
    /// Prefixes of sources.
    Source = 1 << 4,
    /// Prefixes of destinations.
    Destination = 1 << 5,
}

/// Interfaces that can be told apart.
pub const INTERFACES: usize = 64;
/// VLAN numbers; 0 stands for frames without a tag, or with one that only
/// carries a priority.
pub const VLANS: u32 = 1 << 12;
/// Ports.
pub const PORTS: u32 = 1 << 16;
/// Entries of the map `CLASSES` for one generation: ports, then VLANs.
pub const CLASSES: u32 = PORTS + VLANS;

/// The small tables of one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Classes {
    /// Which of the [`Axis`] some policy uses.
    pub axes: u32,
    /// Zero.
    pub padding: u32,
    /// Place of the first policy by kind; [`MAX_POLICIES`] for none. It
    /// decides where no other axis is used.
    pub first: [u32; Kind::SLOTS],
    /// By kind.
    pub kinds: [Set; Kind::SLOTS],
    /// By IP protocol.
    pub protocols: [Set; 256],
    /// By interface.
    pub interfaces: [Set; INTERFACES],
    /// Of packets that show no port.
    pub no_port: Set,
    /// Of sources in none of the prefixes.
    pub no_source: Set,
    /// Of destinations in none of the prefixes.
    pub no_destination: Set,
}

/// Key of the trie `CLASS_PREFIX`; all of `table` is part of every prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct PrefixKey {
    /// [`PrefixKey::table`].
    pub table: [u32; 2],
    /// Address in network order, IPv4 as IPv4-mapped IPv6.
    pub address: [u32; 4],
}

/// Bits of a [`PrefixKey`] before its address.
pub const TABLE_BITS: u32 = 64;

const _: () = assert!(size_of::<PrefixKey>() == 24);
const _: () = assert!(size_of::<Classes>() == 8 * (4 + 8 + 256 + 64 + 4));

impl PrefixKey {
    /// Number of the table of an axis in a slot.
    #[inline(always)]
    #[must_use]
    pub const fn table(axis: Axis, slot: u32) -> [u32; 2] {
        [axis as u32, slot]
    }
}

impl Classes {
    /// No policy.
    pub const NONE: Self = Self {
        axes: 0,
        padding: 0,
        first: [MAX_POLICIES; Kind::SLOTS],
        kinds: [0; Kind::SLOTS],
        protocols: [ALL; 256],
        interfaces: [ALL; INTERFACES],
        no_port: ALL,
        no_source: ALL,
        no_destination: ALL,
    };

    /// Whether some policy uses this axis.
    #[inline(always)]
    #[must_use]
    pub const fn uses(&self, axis: Axis) -> bool {
        self.axes & axis as u32 != 0
    }
}

/// Place of the policy that a packet meets; [`MAX_POLICIES`] for none.
#[inline(always)]
pub fn classify<F: Frame, T: Tables>(
    packet: &Packet,
    frame: &F,
    rules: &Ruleset,
    slot: u32,
    tables: &T,
) -> u32 {
    let (shape, classes) = (packet.shape, rules.classes());
    if classes.axes == 0 {
        return classes.first[shape.kind as usize % Kind::SLOTS];
    }
    // BPF has no instruction for it.
    frame.classes_of(shape, &packet.source.mapped(), slot, tables).trailing_zeros()
}

/// The policies that a packet satisfies on every axis.
#[inline(always)]
pub fn classes_of<F: Frame, T: Tables>(
    frame: &F,
    shape: Shape,
    source: &[u32; 4],
    slot: u32,
    tables: &T,
) -> Set {
    let Some(rules) = tables.ruleset(slot) else {
        return 0;
    };
    let classes = rules.classes();
    let packet = Shown { frame, shape, source, slot };
    let mut set = classes.kinds[shape.kind as usize % Kind::SLOTS];
    let mut narrow = |axis| {
        if classes.uses(axis) {
            set &= packet.satisfied(axis, classes, tables);
        }
    };
    narrow(Axis::Protocol);
    narrow(Axis::Port);
    narrow(Axis::Vlan);
    narrow(Axis::Interface);
    narrow(Axis::Source);
    narrow(Axis::Destination);
    set
}

/// The policies that a packet satisfies on each axis that some policy uses; the
/// kind comes first, without an axis.
pub fn by_axis<F: Frame, T: Tables>(
    packet: &Packet,
    frame: &F,
    rules: &Ruleset,
    slot: u32,
    tables: &T,
) -> [(Option<Axis>, Set); 7] {
    let (shape, source, classes) = (packet.shape, &packet.source.mapped(), rules.classes());
    let packet = Shown { frame, shape, source, slot };
    let of = |axis| {
        let used = classes.uses(axis);
        (Some(axis), if used { packet.satisfied(axis, classes, tables) } else { ALL })
    };
    [
        (None, classes.kinds[shape.kind as usize % Kind::SLOTS]),
        of(Axis::Protocol),
        of(Axis::Port),
        of(Axis::Vlan),
        of(Axis::Interface),
        of(Axis::Source),
        of(Axis::Destination),
    ]
}

/// What a packet shows.
struct Shown<'a, F> {
    frame: &'a F,
    shape: Shape,
    source: &'a [u32; 4],
    slot: u32,
}

impl<F: Frame> Shown<'_, F> {
    #[inline(always)]
    fn satisfied<T: Tables>(&self, axis: Axis, classes: &Classes, tables: &T) -> Set {
        let within = |address, without| {
            let key = PrefixKey { table: PrefixKey::table(axis, self.slot), address };
            tables.prefix_class(&key).unwrap_or(without)
        };
        match axis {
            Axis::Protocol => classes.protocols[self.shape.protocol as usize],
            Axis::Port => match self.shape.port(self.frame) {
                Some(port) => tables.class(self.slot, port.into()),
                None => classes.no_port,
            },
            Axis::Vlan => tables.class(self.slot, PORTS + u32::from(vlan(self.frame))),
            Axis::Interface => classes.interfaces[tables.interface() as usize % INTERFACES],
            Axis::Source => within(*self.source, classes.no_source),
            Axis::Destination => match self.shape.destination(self.frame) {
                Some(destination) => within(destination.mapped(), classes.no_destination),
                None => classes.no_destination,
            },
        }
    }
}

// SAFETY: repr(C), integers only, no padding (size asserted above).
#[cfg(not(target_arch = "bpf"))]
unsafe impl aya::Pod for PrefixKey {}
