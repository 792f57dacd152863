//! Which policy a packet meets: the compiled tables, in memory and in the
//! kernel, against a slow and obvious reading of the policies.

use std::{collections::BTreeMap, net::IpAddr, ops::RangeInclusive};

use fastrand::Rng;
use limiter_common::{
    level::{MAX_POLICIES, Number},
    parse::Kind,
    policy::{Mode, Policy, Ruleset},
    stats::{Counter, NO_POLICY},
    verdict::Reason,
};
use limiter_tests::{
    cases::wide_gate,
    network::{Network, overlapping},
    program::cpus,
    replay::{MOST, Packet, Replay},
    sandbox,
    wire::{Ipv4, Ipv6, Tcp, Udp},
};
use limiter_user::{
    compiled::{Compiled, Conditions},
    machine::Machine,
};

const ROOM: u32 = 16_384;
const INTERFACES: u32 = 3;
const AXES: [&str; 7] = ["kind", "protocol", "port", "vlan", "interface", "source", "destination"];

/// Packets for the core and for the program, and how many meet one set of
/// policies.
fn extent() -> (usize, usize, usize) {
    let is_set = |name| std::env::var_os(name).is_some();
    match (is_set("LIMITER_LONG"), is_set("LIMITER_QUICK")) {
        (true, _) => (1_000_000, 1_000_000, MOST / 2),
        (_, true) => (20_000, 8 * MOST, MOST / 2),
        _ => (200_000, 48 * MOST, MOST / 2),
    }
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Tcp { flags: u8, port: u16 },
    Udp { port: u16 },
    Other(u8),
}

/// Which part of a packet it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    First,
    Later,
}

/// A packet as whoever sends it sees it.
#[derive(Clone, Debug)]
struct Sent {
    source: IpAddr,
    destination: IpAddr,
    load: Load,
    part: Part,
    /// Outermost first: type, and number with the four bits before it.
    tags: Vec<(u16, u16)>,
    /// IPv6 extension headers, or so many words of IPv4 options.
    extensions: Vec<u8>,
    /// Least length of the frame.
    padded: usize,
    interface: u32,
}

/// A policy: what it asks, and the prefixes that this was made from.
#[derive(Debug)]
struct Asked {
    conditions: Conditions,
    sources: Vec<Network>,
    destinations: Vec<Network>,
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;
/// Hop-by-hop, routing, authentication, destination options.
const EXTENSIONS: [u8; 4] = [0, 43, 51, DESTINATION_OPTIONS];
const TAGS: [u16; 3] = [0x8100, 0x88a8, 0x9100];
/// Flags of TCP that open a connection: SYN; with ECE and CWR; with FIN.
const OPENING: [u8; 3] = [0x02, 0xc2, 0x03];
/// ACK; SYN and ACK; RST; none; all.
const NOT_OPENING: [u8; 5] = [0x10, 0x12, 0x04, 0x00, 0xff];

impl Sent {
    fn protocol(&self) -> u8 {
        match self.load {
            Load::Tcp { .. } => 6,
            Load::Udp { .. } => 17,
            Load::Other(number) => number,
        }
    }

    fn kind(&self) -> Kind {
        match self.load {
            _ if self.part == Part::Later => Kind::Fragment,
            Load::Tcp { flags, .. } if OPENING.contains(&flags) => Kind::TcpSyn,
            Load::Tcp { .. } => Kind::Tcp,
            Load::Udp { .. } => Kind::Udp,
            Load::Other(ICMP) => Kind::Icmp,
            Load::Other(ICMPV6) if self.destination.is_ipv6() => Kind::Icmpv6,
            Load::Other(_) => Kind::Other,
        }
    }

    fn port(&self) -> Option<u16> {
        match self.load {
            Load::Tcp { port, .. } | Load::Udp { port } if self.part != Part::Later => Some(port),
            _ => None,
        }
    }

    fn vlan(&self) -> u16 {
        self.tags.first().map_or(0, |(_, tag)| tag & 0x0fff)
    }

    fn bytes(&self) -> Vec<u8> {
        let body = match self.load {
            // A later fragment holds anything.
            _ if self.part == Part::Later => vec![0xff; 24],
            Load::Tcp { flags, port } => Tcp::new(4000, port).flags(flags).build(),
            Load::Udp { port } => Udp::new(4000, port).payload(18),
            Load::Other(_) => vec![0; 24],
        };
        let (source, destination) = (self.source.to_string(), self.destination.to_string());
        let frame = if self.destination.is_ipv4() {
            let packet = Ipv4::new(&source, &destination).options(4 * self.extensions.len());
            let packet = match self.part {
                Part::Whole => packet.dont_fragment(),
                Part::First => packet.fragment(0, true),
                Part::Later => packet.fragment(64, false),
            };
            packet.next(self.protocol(), &body)
        } else {
            let packet = Ipv6::new(&source, &destination);
            let extended = |packet: Ipv6, kind: &u8| packet.extension(*kind, 2);
            let packet = self.extensions.iter().fold(packet, extended);
            let packet = match self.part {
                Part::Whole => packet,
                Part::First => packet.fragment(0, true).extension(DESTINATION_OPTIONS, 0),
                Part::Later => packet.fragment(64, false),
            };
            packet.next(self.protocol(), &body)
        };
        // The innermost first.
        let tags = self.tags.iter().rev();
        tags.fold(frame, |frame, (kind, tag)| frame.tag(*kind, *tag)).pad(self.padded).build()
    }
}

/// Whether a packet satisfies an axis of a policy.
fn satisfies(sent: &Sent, policy: &Asked, axis: &str) -> bool {
    fn any<T>(list: &[T], is_it: impl FnMut(&T) -> bool) -> bool {
        list.is_empty() || list.iter().any(is_it)
    }
    let asked = &policy.conditions;
    match axis {
        "kind" => any(&asked.kinds, |kind| *kind == sent.kind()),
        "protocol" => any(&asked.protocols, |protocol| *protocol == sent.protocol()),
        "port" => any(&asked.ports, |range| sent.port().is_some_and(|port| range.contains(&port))),
        "vlan" => any(&asked.vlans, |range| range.contains(&sent.vlan())),
        "interface" => any(&asked.interfaces, |interface| *interface == sent.interface),
        "source" => any(&policy.sources, |network| network.contains(sent.source)),
        "destination" => any(&policy.destinations, |network| network.contains(sent.destination)),
        _ => panic!("no axis {axis}"),
    }
}

/// The first policy that a packet satisfies, on all axes but one.
fn first(sent: &Sent, policies: &[Asked], but: Option<&str>) -> Option<u32> {
    let axes = || AXES.into_iter().filter(|axis| Some(*axis) != but);
    let found = policies.iter().position(|asked| axes().all(|axis| satisfies(sent, asked, axis)));
    found.map(|place| u32::try_from(place).expect("few"))
}

/// Numbers near which everything happens.
struct World {
    networks: Vec<Network>,
    ports: Vec<u16>,
    vlans: Vec<u16>,
    /// Axes that a policy uses at the most; the more, the fewer packets match.
    axes: u8,
}

fn some<T: Clone>(rng: &mut Rng, list: &[T]) -> T {
    list[rng.usize(..list.len())].clone()
}

impl World {
    fn new(rng: &mut Rng) -> Self {
        let ports = [0, 1, 53, 1024, 32_768, 65_535].into_iter().chain((0..6).map(|_| rng.u16(..)));
        let ports = ports.collect();
        let vlans = [0, 1, 7, 100, 4094].into_iter().chain((0..3).map(|_| rng.u16(..4095)));
        let vlans = vlans.collect();
        Self { networks: overlapping(rng, 30), ports, vlans, axes: rng.u8(1..=5) }
    }

    fn range(rng: &mut Rng, among: &[u16], most: u16) -> RangeInclusive<u16> {
        let (a, b) = (some(rng, among), some(rng, among));
        match rng.u8(..3) {
            0 => a..=a,
            1 => a.min(b)..=a.max(b),
            _ => a..=a.saturating_add(rng.u16(..20)).min(most),
        }
    }

    fn policy(&self, rng: &mut Rng) -> Asked {
        let mut asked = Conditions::default();
        let (mut sources, mut destinations) = (Vec::new(), Vec::new());
        for _ in 0..rng.u8(1..=self.axes) {
            let count = rng.usize(1..=3);
            match rng.u8(..7) {
                0 => asked.kinds = (0..count).map(|_| some(rng, &Kind::ALL)).collect(),
                1 => asked.protocols = (0..count).map(|_| protocol(rng)).collect(),
                2 => {
                    let range = |_| Self::range(rng, &self.ports, u16::MAX);
                    asked.ports = (0..count).map(range).collect();
                }
                3 => {
                    let range = |_| Self::range(rng, &self.vlans, 4094);
                    asked.vlans = (0..count).map(range).collect();
                }
                4 => asked.interfaces = vec![rng.u32(..INTERFACES)],
                5 => sources = (0..count).map(|_| some(rng, &self.networks)).collect(),
                _ => destinations = (0..count).map(|_| some(rng, &self.networks)).collect(),
            }
        }
        let mut prefixes = |networks: &[Network]| {
            networks.iter().map(|network| network.prefix(rng.bool())).collect()
        };
        asked.sources = prefixes(&sources);
        asked.destinations = prefixes(&destinations);
        Asked { conditions: asked, sources, destinations }
    }

    /// An address in or next to one of the networks, as it stands in a packet
    /// of either version.
    fn address(&self, rng: &mut Rng, ipv6: bool) -> IpAddr {
        loop {
            match (some(rng, &self.networks).near(rng), ipv6) {
                (IpAddr::V4(address), true) => return address.to_ipv6_mapped().into(),
                (IpAddr::V6(_), false) => {}
                (address, _) => return address,
            }
        }
    }

    fn packet(&self, rng: &mut Rng, interface: u32) -> Sent {
        let ipv6 = rng.bool();
        let port = match rng.u8(..3) {
            0 => some(rng, &self.ports),
            1 => some(rng, &self.ports).wrapping_add(1),
            _ => some(rng, &self.ports).wrapping_sub(1),
        };
        let part = match rng.u8(..6) {
            0 => Part::First,
            1 => Part::Later,
            _ => Part::Whole,
        };
        let load = match rng.u8(..4) {
            0 if rng.bool() => Load::Tcp { flags: some(rng, &OPENING), port },
            0 => Load::Tcp { flags: some(rng, &NOT_OPENING), port },
            1 => Load::Udp { port },
            _ => Load::Other(loop {
                let number = protocol(rng);
                // Elsewhere in IPv6 it is no load, but leads to one.
                let is_load = number != DESTINATION_OPTIONS || !ipv6 || part == Part::Later;
                if is_load && !matches!(number, 6 | 17) {
                    break number;
                }
            }),
        };
        let tag = |rng: &mut Rng| (some(rng, &TAGS), rng.u16(..16) << 12 | some(rng, &self.vlans));
        Sent {
            source: self.address(rng, ipv6),
            destination: self.address(rng, ipv6),
            load,
            part,
            tags: (0..rng.usize(..=2)).map(|_| tag(rng)).collect(),
            extensions: (0..rng.usize(..4)).map(|_| some(rng, &EXTENSIONS)).collect(),
            padded: rng.usize(..300),
            interface,
        }
    }
}

fn protocol(rng: &mut Rng) -> u8 {
    some(rng, &[ICMP, 6, 17, 47, 50, ICMPV6, DESTINATION_OPTIONS, 132, 253, 255])
}

/// Policies that do nothing but be counted.
fn compile(policies: &[Asked]) -> Compiled {
    let mut rules = Ruleset::new(false, wide_gate(cpus()));
    for place in 0..MAX_POLICIES {
        rules.set_policy(place, Policy::new(Mode::Off).numbered(Number::new(place, 0)));
    }
    let conditions: Vec<_> = policies.iter().map(|policy| policy.conditions.clone()).collect();
    Compiled::new(rules, &conditions)
}

fn random_policies(rng: &mut Rng) -> (World, Vec<Asked>) {
    let world = World::new(rng);
    let count = match rng.u8(..4) {
        0 => MAX_POLICIES,
        1 => rng.u32(1..4),
        _ => rng.u32(1..=MAX_POLICIES),
    };
    let policies = (0..count).map(|_| world.policy(rng)).collect();
    (world, policies)
}

/// Packets that an axis decided about: without it, they would have met another
/// policy.
type Decided = BTreeMap<&'static str, u32>;

fn count_axes(decided: &mut Decided, sent: &Sent, policies: &[Asked]) {
    let expected = first(sent, policies, None);
    for axis in AXES {
        let decides = first(sent, policies, Some(axis)) != expected;
        *decided.entry(axis).or_default() += u32::from(decides);
    }
}

#[test]
fn the_core_reads_policies_as_people_do() {
    let mut rng = Rng::with_seed(limiter_tests::seed());
    let (packets, _, each) = extent();
    let mut decided = Decided::new();
    let mut places = BTreeMap::<_, u32>::new();
    let mut done = 0;
    while done < packets {
        let (world, policies) = random_policies(&mut rng);
        let mut machine = Machine::new(cpus(), 16, compile(&policies));
        for _ in 0..each {
            let interface = rng.u32(..INTERFACES);
            let sent = world.packet(&mut rng, interface);
            machine.set_interface(sent.interface);
            let decision = machine.receive(0, 1_000_000_000, &sent.bytes());
            let expected = first(&sent, &policies, None);
            assert_eq!(decision.reason, Reason::Unlimited, "{sent:?}");
            assert_eq!(
                decision.policy,
                expected.unwrap_or(NO_POLICY),
                "{sent:?}: {:?}",
                expected.map(|place| &policies[place as usize])
            );
            *places.entry(decision.policy).or_default() += 1;
            if done % 8 == 0 {
                count_axes(&mut decided, &sent, &policies);
            }
            done += 1;
        }
    }
    println!("{done} packets; places {places:?}; decided by {decided:?}");
    assert!(decided.values().all(|count| *count > 100), "{decided:?}");
    assert!(places.len() > 40, "{places:?}");
}

#[test]
fn the_program_reads_policies_as_people_do() {
    sandbox::enter();
    sandbox::pin_to_cpu(cpus() as usize - 1);
    let mut rng = Rng::with_seed(limiter_tests::seed());
    let (_, packets, each) = extent();
    let hashes = [rng.u64(..), rng.u64(..)];
    // Any but the first, whose number is what the program starts with.
    let interface = rng.u32(1..INTERFACES);
    let mut replay = Replay::load_on(interface, compile(&[]), MAX_POLICIES, ROOM, hashes);
    let mut expected = BTreeMap::<u32, Counter>::new();
    let mut decided = Decided::new();
    let mut done = 0;
    while done < packets {
        let (world, policies) = random_policies(&mut rng);
        replay.program.plane().set_rules(&compile(&policies)).expect("setting rules");
        let batch: Vec<_> = (0..each).map(|_| world.packet(&mut rng, interface)).collect();
        let mut packets = Vec::new();
        for (at, sent) in batch.iter().enumerate() {
            let bytes = sent.bytes();
            let place = first(sent, &policies, None).unwrap_or(NO_POLICY);
            let counter = expected.entry(place).or_default();
            counter.packets += 1;
            // Lengths differ, so that two packets cannot change places unseen.
            counter.bytes += bytes.len() as u64;
            packets.push(Packet { now_ns: 1_000_000_000, bytes });
            if at % 8 == 0 {
                count_axes(&mut decided, sent, &policies);
            }
        }
        replay.play(&packets);
        done += batch.len();
        let counts = replay.program.counts().into_iter();
        let found: BTreeMap<_, _> = counts.map(|count| (count.policy, count.counter)).collect();
        assert_eq!(found, expected, "after {done} packets, of {policies:?}");
    }
    println!("{done} packets: {expected:?}; decided by {decided:?}");
    assert!(expected.len() > 20, "{expected:?}");
    assert!(decided.values().all(|count| *count > 50), "{decided:?}");
}
