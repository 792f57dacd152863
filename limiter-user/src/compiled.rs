//! From what policies ask of packets to the tables of one generation.

use std::{collections::BTreeMap, net::IpAddr, ops::RangeInclusive};

use limiter_common::{
    class::{ALL, Axis, CLASSES, Classes, INTERFACES, PORTS, Set},
    level::MAX_POLICIES,
    parse::Kind,
    policy::Ruleset,
    source::Address,
};

use crate::prefix::Prefix;

/// What a policy asks of a packet: on each axis one of the list, or anything
/// where the list is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Kinds.
    pub kinds: Vec<Kind>,
    /// IP protocols.
    pub protocols: Vec<u8>,
    /// Destination ports of TCP and UDP.
    pub ports: Vec<RangeInclusive<u16>>,
    /// VLANs; 0 for none.
    pub vlans: Vec<RangeInclusive<u16>>,
    /// Numbers of interfaces.
    pub interfaces: Vec<u32>,
    /// Prefixes of sources.
    pub sources: Vec<Prefix>,
    /// Prefixes of destinations.
    pub destinations: Vec<Prefix>,
}

/// Everything that the packet path reads of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The policies and the small tables.
    pub rules: Ruleset,
    /// By port and by VLAN: [`CLASSES`] entries; empty where neither is used.
    pub classes: Vec<Set>,
    /// By prefix, of [`Axis::Source`] (false) and of [`Axis::Destination`]
    /// (true).
    pub prefixes: BTreeMap<(bool, Prefix), Set>,
    /// Prefixes that are allowed and that are denied.
    pub configured: BTreeMap<Prefix, Configured>,
}

/// What the rules say about one prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configured {
    /// It is allowed.
    pub allow: bool,
    /// It is denied.
    pub deny: bool,
}

/// Rules as they are, with nothing beside them.
impl From<Ruleset> for Compiled {
    fn from(rules: Ruleset) -> Self {
        Self { rules, classes: Vec::new(), prefixes: BTreeMap::new(), configured: BTreeMap::new() }
    }
}

impl Compiled {
    /// Rules whose policies ask this of packets, in order; those beyond
    /// [`MAX_POLICIES`] are left out.
    #[must_use]
    pub fn new(mut rules: Ruleset, conditions: &[Conditions]) -> Self {
        let conditions = &conditions[..conditions.len().min(MAX_POLICIES as usize)];
        let mut classes = Classes::NONE;
        classes.axes = axes(conditions);
        for (kind, set) in Kind::ALL.iter().zip(&mut classes.kinds) {
            *set = set_of(conditions, |it| it.kinds.is_empty() || it.kinds.contains(kind));
        }
        for (first, set) in classes.first.iter_mut().zip(classes.kinds) {
            *first = set.trailing_zeros();
        }
        for (protocol, set) in (0u8..=u8::MAX).zip(&mut classes.protocols) {
            *set = set_of(conditions, |it| {
                it.protocols.is_empty() || it.protocols.contains(&protocol)
            });
        }
        for (interface, set) in (0u32..).zip(&mut classes.interfaces) {
            *set = set_of(conditions, |it| {
                it.interfaces.is_empty() || it.interfaces.contains(&interface)
            });
        }
        classes.no_port = set_of(conditions, |it| it.ports.is_empty());
        let (no_source, by_source) = by_prefix(conditions, |it| &it.sources);
        let (no_destination, by_destination) = by_prefix(conditions, |it| &it.destinations);
        (classes.no_source, classes.no_destination) = (no_source, no_destination);
        let by_source = by_source.into_iter().map(|(prefix, set)| ((false, prefix), set));
        let by_destination = by_destination.into_iter().map(|(prefix, set)| ((true, prefix), set));
        rules.set_classes(classes);
        Self {
            rules,
            classes: ports_and_vlans(conditions),
            prefixes: by_source.chain(by_destination).collect(),
            configured: BTreeMap::new(),
        }
    }
}

/// The axes that some policy uses.
fn axes(conditions: &[Conditions]) -> u32 {
    let used = |axis: Axis, is_used: fn(&Conditions) -> bool| {
        if conditions.iter().any(is_used) { axis as u32 } else { 0 }
    };
    used(Axis::Protocol, |it| !it.protocols.is_empty())
        | used(Axis::Port, |it| !it.ports.is_empty())
        | used(Axis::Vlan, |it| !it.vlans.is_empty())
        | used(Axis::Interface, |it| !it.interfaces.is_empty())
        | used(Axis::Source, |it| !it.sources.is_empty())
        | used(Axis::Destination, |it| !it.destinations.is_empty())
}

/// The policies of which this is true.
fn set_of(conditions: &[Conditions], is_in: impl Fn(&Conditions) -> bool) -> Set {
    let bit = |(place, it)| Set::from(is_in(it)) << place;
    (0u32..).zip(conditions).map(bit).fold(0, |set, bit| set | bit)
}

fn ports_and_vlans(conditions: &[Conditions]) -> Vec<Set> {
    if conditions.iter().all(|it| it.ports.is_empty() && it.vlans.is_empty()) {
        return Vec::new();
    }
    let mut classes = vec![0; CLASSES as usize];
    let (ports, vlans) = classes.split_at_mut(PORTS as usize);
    for (place, it) in conditions.iter().enumerate() {
        let bit: Set = 1 << place;
        let mark = |table: &mut [Set], ranges: &[RangeInclusive<u16>]| {
            if ranges.is_empty() {
                table.iter_mut().for_each(|set| *set |= bit);
            }
            for range in ranges {
                let range = usize::from(*range.start())..=usize::from(*range.end());
                table.get_mut(range).into_iter().flatten().for_each(|set| *set |= bit);
            }
        };
        mark(ports, &it.ports);
        mark(vlans, &it.vlans);
    }
    classes
}

/// The policies that an address in no prefix satisfies, and those that one in
/// each prefix does: its own and those of all prefixes around it.
fn by_prefix(
    conditions: &[Conditions],
    prefixes: impl Fn(&Conditions) -> &Vec<Prefix>,
) -> (Set, BTreeMap<Prefix, Set>) {
    let none = set_of(conditions, |it| prefixes(it).is_empty());
    let mut sets = BTreeMap::<Prefix, Set>::new();
    for (place, it) in conditions.iter().enumerate() {
        for prefix in prefixes(it) {
            *sets.entry(*prefix).or_default() |= 1 << place;
        }
    }
    shield_ipv4(&mut sets);
    // Prefixes around come first.
    let mut around: Vec<(Prefix, Set)> = Vec::new();
    for (prefix, set) in &mut sets {
        while around.last().is_some_and(|(outer, _)| !outer.contains(prefix)) {
            around.pop();
        }
        *set |= around.last().map_or(none, |(_, outer)| *outer);
        around.push((*prefix, *set));
    }
    (none, sets)
}

/// An IPv6 prefix so wide that the IPv4-mapped addresses lie in it would match
/// IPv4 too in a trie of both families: an entry for all of IPv4 is in the way.
pub(crate) fn shield_ipv4<T: Default>(entries: &mut BTreeMap<Prefix, T>) {
    if entries.keys().any(covers_ipv4) {
        entries.entry(all_ipv4()).or_default();
    }
}

/// Whether the IPv4-mapped addresses lie in an IPv6 prefix.
pub(crate) fn covers_ipv4(prefix: &Prefix) -> bool {
    let IpAddr::V6(address) = prefix.address() else {
        return false;
    };
    let mapped = u128::from(std::net::Ipv4Addr::UNSPECIFIED.to_ipv6_mapped());
    let bits = u32::from(prefix.length());
    let mask = u128::MAX.checked_shl(u128::BITS - bits).unwrap_or(0);
    mapped & mask == u128::from(address)
}

/// `0.0.0.0/0`.
pub(crate) fn all_ipv4() -> Prefix {
    Prefix::new(std::net::Ipv4Addr::UNSPECIFIED.into(), 0)
}

/// An address as the core has it.
pub(crate) fn address(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => Address::from_ipv4(address.octets()),
        IpAddr::V6(address) => Address::from_ipv6(address.octets()),
    }
}

/// Bits of a prefix where IPv4 addresses are IPv4-mapped.
pub(crate) fn mapped_length(prefix: Prefix) -> u32 {
    let before = if prefix.address().is_ipv4() { u128::BITS - u32::BITS } else { 0 };
    before + u32::from(prefix.length())
}

const _: () = assert!(ALL.count_ones() == MAX_POLICIES && INTERFACES == 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn a_prefix_has_the_policies_of_all_around_it() {
        let asks = |prefixes: &[&str]| Conditions {
            sources: prefixes.iter().map(|text| prefix(text)).collect(),
            ..Conditions::default()
        };
        let conditions = [
            asks(&["10.0.0.0/8", "2001:db8::/32"]),
            asks(&["10.1.0.0/16"]),
            asks(&[]),
            asks(&["10.1.2.3", "::/0"]),
        ];
        let (none, sets) = by_prefix(&conditions, |it| &it.sources);
        assert_eq!(none, 0b0100);
        for (text, set) in [
            ("10.0.0.0/8", 0b0101),
            ("10.1.0.0/16", 0b0111),
            ("10.1.2.3", 0b1111),
            ("::/0", 0b1100),
            ("2001:db8::/32", 0b1101),
            ("0.0.0.0/0", 0b0100),
        ] {
            assert_eq!(sets[&prefix(text)], set, "{text}");
        }
        assert_eq!(sets.len(), 6);
    }

    #[test]
    fn only_the_widest_ipv6_prefixes_cover_ipv4() {
        for (text, covers) in [
            ("::/0", true),
            ("::/80", true),
            ("::ffff:0:0/81", false),
            ("2000::/3", false),
            ("::/81", false),
            ("10.0.0.0/8", false),
        ] {
            if let Ok(prefix) = text.parse() {
                assert_eq!(covers_ipv4(&prefix), covers, "{text}");
            }
        }
    }
}
