//! Which policy a packet meets: the compiled tables, in memory and in the
//! kernel, against a slow and obvious reading of the policies.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use fastrand::Rng;
use limiter_common::{
    level::{MAX_POLICIES, Number},
    parse::Kind,
    policy::{Mode, Policy, Ruleset},
    stats::NO_POLICY,
    verdict::Reason,
};
use limiter_tests::{
    cases::wide_gate,
    program::cpus,
    replay::{MOST, Packet, Replay},
    sandbox,
    wire::{Ipv4, Ipv6, Tcp, Udp},
};
use limiter_user::{
    compiled::{Compiled, Conditions},
    machine::Machine,
    prefix::Prefix,
};

const ROOM: u32 = 16_384;
/// The loaded program has one interface; in memory there are more.
const INTERFACES: u32 = 3;
const AXES: [&str; 7] = ["kind", "protocol", "port", "vlan", "interface", "source", "destination"];

/// Packets for the core and for the program, and how many meet one set of
/// policies.
fn extent() -> (usize, usize, usize) {
    let is_set = |name| std::env::var_os(name).is_some();
    match (is_set("LIMITER_LONG"), is_set("LIMITER_QUICK")) {
        (true, _) => (1_000_000, 1_000_000, MOST),
        (_, true) => (20_000, 8 * MOST, MOST),
        _ => (200_000, 48 * MOST, MOST),
    }
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Tcp { syn: bool, port: u16 },
    Udp { port: u16 },
    Other(u8),
}

/// A packet as whoever sends it sees it.
#[derive(Clone, Debug)]
struct Sent {
    source: IpAddr,
    destination: IpAddr,
    load: Load,
    /// Outermost first, with their priority bits.
    tags: Vec<u16>,
    /// A fragment after the first.
    is_fragment: bool,
    /// IPv4 options or an IPv6 extension header.
    is_extended: bool,
    interface: u32,
}

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

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
            _ if self.is_fragment => Kind::Fragment,
            Load::Tcp { syn: true, .. } => Kind::TcpSyn,
            Load::Tcp { syn: false, .. } => Kind::Tcp,
            Load::Udp { .. } => Kind::Udp,
            Load::Other(ICMP) => Kind::Icmp,
            Load::Other(ICMPV6) if self.destination.is_ipv6() => Kind::Icmpv6,
            Load::Other(_) => Kind::Other,
        }
    }

    fn port(&self) -> Option<u16> {
        match self.load {
            Load::Tcp { port, .. } | Load::Udp { port } if !self.is_fragment => Some(port),
            _ => None,
        }
    }

    fn vlan(&self) -> u16 {
        self.tags.first().map_or(0, |tag| tag & 0x0fff)
    }

    fn bytes(&self) -> Vec<u8> {
        let body = match self.load {
            // A later fragment holds anything.
            _ if self.is_fragment => vec![0xff; 24],
            Load::Tcp { syn, port } => Tcp::new(4000, port).flags(if syn { 2 } else { 16 }).build(),
            Load::Udp { port } => Udp::new(4000, port).payload(18),
            Load::Other(_) => vec![0; 24],
        };
        let (source, destination) = (self.source.to_string(), self.destination.to_string());
        let protocol = self.protocol();
        let frame = if self.destination.is_ipv4() {
            let mut packet = Ipv4::new(&source, &destination);
            if self.is_extended {
                packet = packet.options(8);
            }
            if self.is_fragment {
                packet = packet.fragment(64, false);
            }
            packet.next(protocol, &body)
        } else {
            const DESTINATION_OPTIONS: u8 = 60;
            let mut packet = Ipv6::new(&source, &destination);
            if self.is_extended {
                packet = packet.extension(DESTINATION_OPTIONS, 1);
            }
            if self.is_fragment {
                packet = packet.fragment(64, false);
            }
            packet.next(protocol, &body)
        };
        // The innermost first.
        self.tags.iter().rev().fold(frame, |frame, tag| frame.tag(0x8100, *tag)).build()
    }
}

/// Whether a packet satisfies an axis of a policy.
fn satisfies(sent: &Sent, asked: &Conditions, axis: &str) -> bool {
    fn any<T>(list: &[T], is_it: impl FnMut(&T) -> bool) -> bool {
        list.is_empty() || list.iter().any(is_it)
    }
    match axis {
        "kind" => any(&asked.kinds, |kind| *kind == sent.kind()),
        "protocol" => any(&asked.protocols, |protocol| *protocol == sent.protocol()),
        "port" => any(&asked.ports, |range| sent.port().is_some_and(|port| range.contains(&port))),
        "vlan" => any(&asked.vlans, |range| range.contains(&sent.vlan())),
        "interface" => any(&asked.interfaces, |interface| *interface == sent.interface),
        "source" => any(&asked.sources, |prefix| inside(sent.source, *prefix)),
        "destination" => any(&asked.destinations, |prefix| inside(sent.destination, *prefix)),
        _ => panic!("no axis {axis}"),
    }
}

/// Bit by bit.
fn inside(address: IpAddr, prefix: Prefix) -> bool {
    let bits = |address: IpAddr| -> Vec<bool> {
        let bytes = match address.to_canonical() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1)).collect()
    };
    let (address, network) = (bits(address), bits(prefix.address()));
    let length = usize::from(prefix.length());
    address.len() == network.len() && address[..length] == network[..length]
}

/// The first policy that a packet satisfies, on all axes but one.
fn first(sent: &Sent, policies: &[Conditions], but: Option<&str>) -> Option<u32> {
    let axes = || AXES.into_iter().filter(|axis| Some(*axis) != but);
    let found = policies.iter().position(|asked| axes().all(|axis| satisfies(sent, asked, axis)));
    found.map(|place| u32::try_from(place).expect("few"))
}

/// Numbers near which everything happens.
struct World {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    vlans: Vec<u16>,
}

fn some<T: Clone>(rng: &mut Rng, list: &[T]) -> T {
    list[rng.usize(..list.len())].clone()
}

impl World {
    fn new(rng: &mut Rng) -> Self {
        let base4 = rng.u32(..);
        let base6 = u128::from(rng.u64(..)) << 64 | u128::from(rng.u64(..));
        let addresses = (0..24).flat_map(|_| {
            let four = base4 ^ (rng.u32(..) >> rng.u32(..32));
            let six = base6 ^ ((u128::from(rng.u64(..)) << 64) >> rng.u32(..128));
            let mapped = Ipv4Addr::from(four).to_ipv6_mapped();
            [IpAddr::V4(four.into()), IpAddr::V6(six.into()), IpAddr::V6(mapped)]
        });
        let addresses = addresses.collect();
        let ports = [0, 1, 53, 1024, 32_768, 65_535].into_iter().chain((0..6).map(|_| rng.u16(..)));
        let ports = ports.collect();
        let vlans = [0, 1, 7, 100, 4094].into_iter().chain((0..3).map(|_| rng.u16(..4095)));
        Self { addresses, ports, vlans: vlans.collect() }
    }

    fn prefix(&self, rng: &mut Rng) -> Prefix {
        let address = some(rng, &self.addresses);
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let length = match rng.u8(..8) {
            0 => 0,
            1 => longest,
            _ => rng.u8(..=longest),
        };
        Prefix::new(address, length)
    }

    fn range(rng: &mut Rng, among: &[u16], most: u16) -> RangeInclusive<u16> {
        let (a, b) = (some(rng, among), some(rng, among));
        match rng.u8(..3) {
            0 => a..=a,
            1 => a.min(b)..=a.max(b),
            _ => a..=a.saturating_add(rng.u16(..20)).min(most),
        }
    }

    fn conditions(&self, rng: &mut Rng) -> Conditions {
        let mut asked = Conditions::default();
        // One or two axes for most: else nothing would match.
        for _ in 0..rng.u8(1..=3) {
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
                5 => asked.sources = (0..count).map(|_| self.prefix(rng)).collect(),
                _ => asked.destinations = (0..count).map(|_| self.prefix(rng)).collect(),
            }
        }
        asked
    }

    fn packet(&self, rng: &mut Rng, interfaces: u32) -> Sent {
        let near = |rng: &mut Rng, six: bool| -> IpAddr {
            loop {
                let flip = rng.u32(..128);
                match some(rng, &self.addresses) {
                    IpAddr::V4(address) if !six => {
                        let flipped = u32::from(address) ^ (1u32.checked_shl(flip).unwrap_or(0));
                        return Ipv4Addr::from(flipped).into();
                    }
                    IpAddr::V6(address) if six => {
                        let keep = rng.bool();
                        let flipped = u128::from(address) ^ if keep { 0 } else { 1 << flip };
                        return Ipv6Addr::from(flipped).into();
                    }
                    _ => {}
                }
            }
        };
        let six = rng.bool();
        let port = match rng.u8(..3) {
            0 => some(rng, &self.ports),
            1 => some(rng, &self.ports).wrapping_add(1),
            _ => some(rng, &self.ports).wrapping_sub(1),
        };
        let load = match rng.u8(..4) {
            0 => Load::Tcp { syn: rng.bool(), port },
            1 => Load::Udp { port },
            _ => Load::Other(loop {
                let number = protocol(rng);
                if !matches!(number, 6 | 17) {
                    break number;
                }
            }),
        };
        let tags = (0..rng.usize(..=2)).map(|_| rng.u16(..8) << 13 | some(rng, &self.vlans));
        let tags = tags.collect();
        Sent {
            source: near(rng, six),
            destination: near(rng, six),
            load,
            tags,
            is_fragment: rng.u8(..6) == 0,
            is_extended: rng.u8(..4) == 0,
            interface: rng.u32(..interfaces),
        }
    }
}

/// Protocols that are no extension headers.
fn protocol(rng: &mut Rng) -> u8 {
    some(rng, &[1, 6, 17, 47, 50, 58, 132, 253, 255])
}

/// Policies that do nothing but be counted.
fn compile(conditions: &[Conditions]) -> Compiled {
    let mut rules = Ruleset::new(false, wide_gate(cpus()));
    for place in 0..MAX_POLICIES {
        rules.set_policy(place, Policy::new(Mode::Off).numbered(Number::new(place, 0)));
    }
    Compiled::new(rules, conditions)
}

fn seed() -> u64 {
    let seed = std::env::var("LIMITER_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("LIMITER_SEED={seed}");
    seed
}

fn random_policies(rng: &mut Rng) -> (World, Vec<Conditions>) {
    let world = World::new(rng);
    let count = match rng.u8(..4) {
        0 => MAX_POLICIES,
        1 => rng.u32(1..4),
        _ => rng.u32(1..=MAX_POLICIES),
    };
    let policies = (0..count).map(|_| world.conditions(rng)).collect();
    (world, policies)
}

#[test]
fn the_core_reads_policies_as_people_do() {
    let mut rng = Rng::with_seed(seed());
    let (packets, _, each) = extent();
    let mut decided = BTreeMap::<_, u32>::new();
    let mut places = BTreeMap::<_, u32>::new();
    let mut done = 0;
    while done < packets {
        let (world, policies) = random_policies(&mut rng);
        let mut machine = Machine::new(cpus(), 16, compile(&policies));
        for _ in 0..each {
            let sent = world.packet(&mut rng, INTERFACES);
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
                for axis in AXES {
                    let decides = first(&sent, &policies, Some(axis)) != expected;
                    *decided.entry(axis).or_default() += u32::from(decides);
                }
            }
            done += 1;
        }
    }
    println!("{done} packets; places {places:?}; decided by {decided:?}");
    assert!(decided.values().all(|count| *count > 50), "{decided:?}");
    assert!(places.len() > 25, "{places:?}");
}

#[test]
fn the_program_reads_policies_as_people_do() {
    sandbox::enter();
    sandbox::pin_to_cpu(cpus() as usize - 1);
    let mut rng = Rng::with_seed(seed());
    let (_, packets, each) = extent();
    let hashes = [rng.u64(..), rng.u64(..)];
    let mut replay = Replay::load(compile(&[]), MAX_POLICIES, ROOM, hashes);
    let mut expected = BTreeMap::<u32, u64>::new();
    let mut done = 0;
    while done < packets {
        let (world, policies) = random_policies(&mut rng);
        replay.program.plane().set_rules(&compile(&policies)).expect("setting rules");
        let batch: Vec<_> = (0..each.min(MOST)).map(|_| world.packet(&mut rng, 1)).collect();
        for sent in &batch {
            *expected.entry(first(sent, &policies, None).unwrap_or(NO_POLICY)).or_default() += 1;
        }
        let packets: Vec<_> = batch
            .iter()
            .map(|sent| Packet { now_ns: 1_000_000_000, bytes: sent.bytes() })
            .collect();
        replay.play(&packets);
        done += batch.len();
        let found: BTreeMap<u32, u64> = replay
            .program
            .counts()
            .into_iter()
            .map(|count| (count.policy, count.counter.packets))
            .collect();
        assert_eq!(found, expected, "after {done} packets, of {policies:?}");
    }
    println!("{done} packets: {expected:?}");
    assert!(expected.len() > 15, "{expected:?}");
}
