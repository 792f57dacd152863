//! The packets that a match takes, as sets that can be compared.

use limiter_common::parse::Kind;

use super::{Match, PortRange, Protocol, VlanRange};
use crate::prefix::Prefix;

const PROTOCOLS: usize = 256;

/// A match, with what its keys imply for each other worked out.
pub(super) struct Traffic<'a> {
    matches: &'a Match,
    /// By kind and protocol, whether there are such packets.
    pairs: [[bool; PROTOCOLS]; Kind::ALL.len()],
}

/// Whether packets of the kind carry the protocol. ICMP for IPv6 inside IPv4 is
/// of the kind `Other`.
fn carries(kind: Kind, protocol: Protocol) -> bool {
    match kind {
        Kind::TcpSyn | Kind::Tcp => protocol == Protocol::TCP,
        Kind::Udp => protocol == Protocol::UDP,
        Kind::Icmp => protocol == Protocol::ICMP,
        Kind::Icmpv6 => protocol == Protocol::ICMPV6,
        Kind::Fragment => true,
        Kind::Other => ![Protocol::TCP, Protocol::UDP, Protocol::ICMP].contains(&protocol),
    }
}

/// Whether packets of the kind have ports to be seen.
pub(super) const fn has_ports(kind: Kind) -> bool {
    matches!(kind, Kind::TcpSyn | Kind::Tcp | Kind::Udp)
}

impl<'a> Traffic<'a> {
    pub(super) fn new(matches: &'a Match) -> Self {
        let pairs = Kind::ALL.map(|kind| {
            let is_taken = (matches.kind.is_empty() || matches.kind.contains(&kind))
                && (matches.ports.is_empty() || has_ports(kind));
            let mut protocols = [false; PROTOCOLS];
            for (number, is_carried) in (0..=u8::MAX).zip(&mut protocols) {
                let protocol = Protocol(number);
                let is_wanted = matches.proto.is_empty() || matches.proto.contains(&protocol);
                *is_carried = is_taken && is_wanted && carries(kind, protocol);
            }
            protocols
        });
        Self { matches, pairs }
    }

    /// Whether it takes any packet of the kind.
    pub(super) fn takes_kind(&self, kind: Kind) -> bool {
        self.pairs[kind as usize].contains(&true)
    }

    /// Whether it takes any packet of the protocol.
    pub(super) fn takes_protocol(&self, protocol: Protocol) -> bool {
        self.pairs.iter().any(|protocols| protocols[usize::from(protocol.0)])
    }

    /// Whether it takes no packet at all.
    pub(super) fn is_empty(&self) -> bool {
        !Kind::ALL.into_iter().any(|kind| self.takes_kind(kind))
    }

    /// Whether each packet that `other` takes it takes too.
    pub(super) fn covers(&self, other: &Traffic<'_>) -> bool {
        let (mine, its) = (self.matches, other.matches);
        let (all, wanted) = (self.pairs.as_flattened(), other.pairs.as_flattened());
        all.iter().zip(wanted).all(|(taken, wanted)| *taken || !wanted)
            && covers_prefixes(&mine.sources, &its.sources)
            && covers_prefixes(&mine.destinations, &its.destinations)
            && covers_names(&mine.interfaces, &its.interfaces)
            && covers_ranges(&mine.ports, &its.ports)
            && covers_ranges(&mine.vlans, &its.vlans)
    }
}

fn covers_prefixes(mine: &[Prefix], its: &[Prefix]) -> bool {
    let everything = [Prefix::new([0; 4].into(), 0), Prefix::new([0u16; 8].into(), 0)];
    let its = if its.is_empty() { &everything } else { its };
    mine.is_empty() || its.iter().all(|inner| mine.iter().any(|outer| outer.contains(inner)))
}

fn covers_names(mine: &[String], its: &[String]) -> bool {
    mine.is_empty() || (!its.is_empty() && its.iter().all(|name| mine.contains(name)))
}

/// A range of numbers, both ends included.
pub(super) trait Range {
    /// The highest number that there is.
    const MOST: u32;

    fn ends(&self) -> (u32, u32);
}

impl Range for PortRange {
    const MOST: u32 = u16::MAX as u32;

    fn ends(&self) -> (u32, u32) {
        (self.first.into(), self.last.into())
    }
}

impl Range for VlanRange {
    const MOST: u32 = 4094;

    fn ends(&self) -> (u32, u32) {
        (self.first.into(), self.last.into())
    }
}

fn covers_ranges<R: Range>(mine: &[R], its: &[R]) -> bool {
    let mut mine: Vec<_> = mine.iter().map(Range::ends).collect();
    mine.sort_unstable();
    let covers = |(first, last): (u32, u32)| {
        // The lowest number that is not covered yet.
        let mut open = first;
        for (from, to) in &mine {
            if *from <= open {
                open = open.max(to + 1);
            }
        }
        open > last
    };
    if mine.is_empty() {
        true
    } else if its.is_empty() {
        covers((0, R::MOST))
    } else {
        its.iter().all(|range| covers(range.ends()))
    }
}
