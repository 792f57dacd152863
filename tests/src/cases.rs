//! The table of packets: bytes, and what must become of them. It runs on the
//! core and on the loaded program.

use limiter_common::{
    gate::{Flow, Gate},
    level::{Level, Number},
    limit::{Limit, Rate},
    parse::{Defect, Kind},
    policy::{Mode, Policy, Ruleset},
    stats::NO_POLICY,
    verdict::{Decision, Reason},
};

use limiter_user::machine::TICK_NS;

use crate::wire::{Frame, Ipv4, Ipv6, Tcp, Udp};

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Passes as `not_ip`.
    NotIp,
    /// Passes as `neighbour`.
    Neighbour,
    /// Dropped as `malformed`.
    Malformed(Defect),
    /// Limited as this kind, under this source (an address as text).
    Limited(Kind, &'static str),
}

/// One packet of the table.
#[derive(Debug)]
pub struct Case {
    /// What is particular about it.
    pub name: &'static str,
    /// The frame, from the Ethernet header on.
    pub bytes: Vec<u8>,
    /// What must become of it.
    pub expected: Expected,
    /// Offset at which the packet ends by its own headers; bytes after it are
    /// padding. Cut before it, a valid packet is malformed.
    pub end: usize,
}

const A4: &str = "192.0.2.1";
const A6: &str = "2001:db8:1:2:3:4:5:6";

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const NO_NEXT: u8 = 59;
const DESTINATION: u8 = 60;

const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const GRE: u8 = 47;
const ESP: u8 = 50;
const ICMPV6: u8 = 58;
const SCTP: u8 = 132;
const MOBILITY: u8 = 135;

fn v4() -> Ipv4 {
    Ipv4::new(A4, "198.51.100.9")
}

fn v6() -> Ipv6 {
    Ipv6::new(A6, "2001:db8:9::1")
}

fn udp() -> Vec<u8> {
    Udp::new(4000, 53).payload(18)
}

fn syn() -> Vec<u8> {
    Tcp::new(4000, 443).flags(0x02).build()
}

/// An ICMP message of either version.
fn icmp(kind: u8) -> Vec<u8> {
    let mut message = vec![0; 24];
    message[0] = kind;
    message
}

/// Every case of the table.
#[must_use]
#[expect(clippy::too_many_lines, reason = "a table")]
pub fn cases() -> Vec<Case> {
    use Defect::{Lying, TooManyExtensionHeaders, TooManyVlanTags, Truncated};
    use Expected::{Limited, Malformed, Neighbour, NotIp};

    let mut cases = Vec::new();
    let mut add = |name, frame: Frame, expected| {
        let end = frame.end();
        cases.push(Case { name, bytes: frame.build(), expected, end });
    };

    // What is not IP, and what keeps the link alive.
    add("a frame of 802.3 length (spanning tree)", Frame::new(0x0026).body(&[0; 38]), NotIp);
    add("LLDP", Frame::new(0x88cc).body(&[0; 46]), NotIp);
    add("MPLS", Frame::new(0x8847).body(&[0; 46]), NotIp);
    add("PPPoE session", Frame::new(0x8864).body(&[0; 46]), NotIp);
    add("an Ethernet header and nothing else", Frame::new(0x88cc), NotIp);
    add("ARP request", Frame::new(0x0806).body(&[0; 46]), Neighbour);
    add("ARP in a VLAN", Frame::new(0x0806).vlan(7).body(&[0; 46]), Neighbour);
    for (name, kind) in [
        ("router solicitation", 133),
        ("router advertisement", 134),
        ("neighbour solicitation", 135),
        ("neighbour advertisement", 136),
        ("redirect", 137),
    ] {
        add(name, v6().hop_limit(255).next(ICMPV6, &icmp(kind)), Neighbour);
    }
    add(
        "neighbour solicitation behind a hop-by-hop header",
        v6().hop_limit(255).extension(HOP_BY_HOP, 0).next(ICMPV6, &icmp(135)),
        Neighbour,
    );
    add(
        "neighbour solicitation in two VLANs",
        v6().hop_limit(255).next(ICMPV6, &icmp(135)).vlan(3).service_vlan(4),
        Neighbour,
    );
    add(
        "neighbour solicitation that passed a router is none",
        v6().hop_limit(254).next(ICMPV6, &icmp(135)),
        Limited(Kind::Icmpv6, A6),
    );
    add(
        "neighbour solicitation that was fragmented is none",
        v6().hop_limit(255).fragment(0, true).next(ICMPV6, &icmp(135)),
        Limited(Kind::Icmpv6, A6),
    );
    add("echo request", v6().hop_limit(255).next(ICMPV6, &icmp(128)), Limited(Kind::Icmpv6, A6));
    add(
        "multicast listener report",
        v6().hop_limit(1).next(ICMPV6, &icmp(143)),
        Limited(Kind::Icmpv6, A6),
    );

    // Kinds.
    add("TCP SYN", v4().next(TCP, &syn()), Limited(Kind::TcpSyn, A4));
    add("TCP SYN over IPv6", v6().next(TCP, &syn()), Limited(Kind::TcpSyn, A6));
    for (name, flags, kind) in [
        ("TCP ACK", 0x10, Kind::Tcp),
        ("TCP SYN and ACK", 0x12, Kind::Tcp),
        ("TCP RST", 0x04, Kind::Tcp),
        ("TCP FIN, PSH, ACK", 0x19, Kind::Tcp),
        ("TCP without any flag", 0x00, Kind::Tcp),
        ("TCP SYN and FIN", 0x03, Kind::TcpSyn),
        ("TCP SYN, ECE, CWR", 0xc2, Kind::TcpSyn),
        ("TCP with all flags", 0xff, Kind::Tcp),
    ] {
        add(name, v4().next(TCP, &Tcp::new(1, 2).flags(flags).build()), Limited(kind, A4));
    }
    add(
        "TCP with options",
        v4().next(TCP, &Tcp::new(1, 2).flags(0x10).options(40).build()),
        Limited(Kind::Tcp, A4),
    );
    add("UDP", v4().next(UDP, &udp()), Limited(Kind::Udp, A4));
    add("UDP over IPv6", v6().next(UDP, &udp()), Limited(Kind::Udp, A6));
    add("UDP without payload", v4().next(UDP, &Udp::new(1, 2).payload(0)), Limited(Kind::Udp, A4));
    add("ping", v4().next(ICMP, &icmp(8)), Limited(Kind::Icmp, A4));
    add(
        "ICMP for IPv6 inside IPv4 is an unknown protocol",
        v4().next(ICMPV6, &icmp(135)),
        Limited(Kind::Other, A4),
    );
    add("ICMP for IPv4 inside IPv6", v6().next(ICMP, &icmp(8)), Limited(Kind::Icmp, A6));
    for (name, protocol) in [("SCTP", SCTP), ("GRE", GRE), ("ESP", ESP), ("protocol 253", 253)] {
        add(name, v4().next(protocol, &[0; 20]), Limited(Kind::Other, A4));
        add(name, v6().next(protocol, &[0; 20]), Limited(Kind::Other, A6));
    }
    add("an unknown protocol without a byte", v4().next(253, &[]), Limited(Kind::Other, A4));

    // Ethernet.
    add("one VLAN tag", v4().next(UDP, &udp()).vlan(5), Limited(Kind::Udp, A4));
    add("a service tag alone", v4().next(UDP, &udp()).service_vlan(5), Limited(Kind::Udp, A4));
    add("two VLAN tags", v4().next(UDP, &udp()).vlan(5).service_vlan(6), Limited(Kind::Udp, A4));
    add(
        "two VLAN tags over IPv6",
        v6().next(TCP, &syn()).vlan(5).vlan(6),
        Limited(Kind::TcpSyn, A6),
    );
    add(
        "a tag of the older type 0x9100",
        v4().next(UDP, &udp()).tag(0x9100, 5),
        Limited(Kind::Udp, A4),
    );
    add(
        "three VLAN tags",
        v4().next(UDP, &udp()).vlan(5).vlan(6).vlan(7),
        Malformed(TooManyVlanTags),
    );
    add(
        "padding to the least Ethernet length",
        v4().next(UDP, &Udp::new(1, 2).payload(1)).pad(60),
        Limited(Kind::Udp, A4),
    );
    add("a trailer far beyond the packet", v6().next(UDP, &udp()).pad(900), Limited(Kind::Udp, A6));

    // IPv4.
    add("IPv4 options", v4().options(12).next(UDP, &udp()), Limited(Kind::Udp, A4));
    add(
        "IPv4 options, as many as there can be",
        v4().options(40).next(TCP, &syn()),
        Limited(Kind::TcpSyn, A4),
    );
    add(
        "IPv4 header longer than the frame",
        v4().header_length(60).next(UDP, &[0; 10]),
        Malformed(Lying),
    );
    add(
        "IPv4 header shorter than a header",
        v4().header_length(16).next(UDP, &udp()),
        Malformed(Lying),
    );
    add("IPv4 header length of zero", v4().header_length(0).next(UDP, &udp()), Malformed(Lying));
    add("version 6 in an IPv4 frame", v4().version(6).next(UDP, &udp()), Malformed(Lying));
    add(
        "total length beyond the frame",
        v4().total_length(1000).next(UDP, &udp()),
        Malformed(Lying),
    );
    add("total length below the header", v4().total_length(19).next(UDP, &udp()), Malformed(Lying));
    add("total length of zero", v4().total_length(0).next(UDP, &udp()), Malformed(Lying));
    add(
        "total length that ends inside the UDP header, padded",
        v4().total_length(27).next(UDP, &udp()).pad(60),
        Malformed(Truncated),
    );
    add(
        "total length that ends inside the TCP header, padded",
        v4().total_length(39).next(TCP, &syn()).pad(60),
        Malformed(Truncated),
    );
    add(
        "total length that ends inside the ICMP header, padded",
        v4().total_length(27).next(ICMP, &icmp(8)).pad(60),
        Malformed(Truncated),
    );
    add("first fragment", v4().fragment(0, true).next(UDP, &udp()), Limited(Kind::Udp, A4));
    add(
        "first fragment of a long datagram",
        v4().fragment(0, true).next(UDP, &Udp::new(1, 2).length(3000).payload(16)),
        Limited(Kind::Udp, A4),
    );
    add(
        "first fragment of a SYN",
        v4().fragment(0, true).next(TCP, &syn()),
        Limited(Kind::TcpSyn, A4),
    );
    add(
        "first fragment too short for its TCP header",
        v4().fragment(0, true).next(TCP, &syn()[..8]),
        Malformed(Truncated),
    );
    add(
        "middle fragment",
        v4().fragment(185, true).next(UDP, &[0; 24]),
        Limited(Kind::Fragment, A4),
    );
    add("last fragment", v4().fragment(370, false).next(TCP, &[0; 1]), Limited(Kind::Fragment, A4));
    add(
        "a fragment without a byte",
        v4().fragment(8191, false).next(TCP, &[]),
        Limited(Kind::Fragment, A4),
    );
    add(
        "don't fragment is no fragment",
        v4().dont_fragment().next(TCP, &syn()),
        Limited(Kind::TcpSyn, A4),
    );

    // Transport.
    add(
        "TCP data offset below a header",
        v4().next(TCP, &Tcp::new(1, 2).data_offset(4).build()),
        Malformed(Lying),
    );
    add(
        "TCP data offset beyond the packet",
        v4().next(TCP, &Tcp::new(1, 2).data_offset(15).build()),
        Malformed(Truncated),
    );
    add(
        "UDP length below a header",
        v4().next(UDP, &Udp::new(1, 2).length(7).payload(18)),
        Malformed(Lying),
    );
    add(
        "UDP length of zero",
        v4().next(UDP, &Udp::new(1, 2).length(0).payload(18)),
        Malformed(Lying),
    );
    add(
        "UDP length beyond the packet",
        v4().next(UDP, &Udp::new(1, 2).length(27).payload(18)),
        Malformed(Lying),
    );
    add(
        "UDP length short of the packet",
        v4().next(UDP, &Udp::new(1, 2).length(12).payload(18)),
        Limited(Kind::Udp, A4),
    );

    // IPv6.
    add("version 4 in an IPv6 frame", v6().version(4).next(UDP, &udp()), Malformed(Lying));
    add(
        "payload length beyond the frame",
        v6().payload_length(1000).next(UDP, &udp()),
        Malformed(Lying),
    );
    add(
        "payload length short of the transport",
        v6().payload_length(7).next(UDP, &udp()),
        Malformed(Truncated),
    );
    add("payload length of zero", v6().payload_length(0).next(UDP, &udp()), Malformed(Truncated));
    add("no next header", v6().next(NO_NEXT, &[]), Limited(Kind::Other, A6));
    for (name, header) in
        [("hop-by-hop", HOP_BY_HOP), ("routing", ROUTING), ("destination options", DESTINATION)]
    {
        add(name, v6().extension(header, 0).next(TCP, &syn()), Limited(Kind::TcpSyn, A6));
        add(name, v6().extension(header, 5).next(UDP, &udp()), Limited(Kind::Udp, A6));
    }
    add(
        "authentication header",
        v6().extension(AUTHENTICATION, 4).next(UDP, &udp()),
        Limited(Kind::Udp, A6),
    );
    add(
        "all extension headers in their order",
        v6().extension(HOP_BY_HOP, 1)
            .extension(DESTINATION, 0)
            .extension(ROUTING, 2)
            .fragment(0, false)
            .extension(AUTHENTICATION, 4)
            .extension(DESTINATION, 0)
            .next(TCP, &syn()),
        Limited(Kind::TcpSyn, A6),
    );
    add("eight extension headers", chain(8).next(UDP, &udp()), Limited(Kind::Udp, A6));
    add("nine extension headers", chain(9).next(UDP, &udp()), Malformed(TooManyExtensionHeaders));
    add(
        "the longest extension header",
        v6().extension(DESTINATION, 255).next(UDP, &udp()),
        Limited(Kind::Udp, A6),
    );
    add(
        "extension header beyond the packet",
        v6().extension_claiming(DESTINATION, 0, 200).next(UDP, &udp()),
        Malformed(Truncated),
    );
    add(
        "extension header at the end of the packet",
        v6().next(DESTINATION, &[]),
        Malformed(Truncated),
    );
    add("half an extension header", v6().next(ROUTING, &[UDP, 0, 0, 0]), Malformed(Truncated));
    add("mobility header is a transport", v6().next(MOBILITY, &[0; 16]), Limited(Kind::Other, A6));
    add(
        "first fragment over IPv6",
        v6().fragment(0, true).next(TCP, &syn()),
        Limited(Kind::TcpSyn, A6),
    );
    add("atomic fragment", v6().fragment(0, false).next(UDP, &udp()), Limited(Kind::Udp, A6));
    add(
        "later fragment over IPv6",
        v6().fragment(100, false).next(UDP, &[0; 30]),
        Limited(Kind::Fragment, A6),
    );
    add(
        "later fragment of one byte",
        v6().fragment(1, true).next(TCP, &[0]),
        Limited(Kind::Fragment, A6),
    );
    add("fragment header cut off", v6().next(FRAGMENT, &[UDP, 0, 1, 0]), Malformed(Truncated));
    add(
        "first fragment without its transport header",
        v6().fragment(0, true).extension(DESTINATION, 0).next(TCP, &syn()[..16]),
        Malformed(Truncated),
    );

    // Longer than one buffer of a driver.
    add("a jumbo datagram", v4().next(UDP, &Udp::new(1, 2).payload(8_900)), Limited(Kind::Udp, A4));
    add(
        "a jumbo datagram over IPv6",
        v6().next(UDP, &Udp::new(1, 2).payload(8_900)),
        Limited(Kind::Udp, A6),
    );
    add(
        "a jumbo frame that claims more than it holds",
        v4().total_length(9_000).next(UDP, &Udp::new(1, 2).payload(8_900)),
        Malformed(Lying),
    );
    add("a jumbo frame that is not IP", Frame::new(0x88cc).body(&[0; 8_000]), NotIp);

    // Sources.
    add(
        "IPv4-mapped IPv6 source is the IPv4 one",
        Ipv6::new("::ffff:192.0.2.1", "2001:db8:9::1").next(UDP, &udp()),
        Limited(Kind::Udp, A4),
    );
    add(
        "source 0.0.0.0 (DHCP)",
        Ipv4::new("0.0.0.0", "255.255.255.255").next(UDP, &udp()),
        Limited(Kind::Udp, "0.0.0.0"),
    );
    add(
        "unspecified IPv6 source",
        Ipv6::new("::", "ff02::1").next(UDP, &udp()),
        Limited(Kind::Udp, "::"),
    );
    cases
}

fn chain(headers: usize) -> Ipv6 {
    (0..headers).fold(v6(), |packet, _| packet.extension(DESTINATION, 0))
}

/// A rule set in which the policy's index says the packet's kind, each kind
/// with a burst of one token and almost no rate: the first packet of a source
/// is within its limit, the second is not.
///
/// # Panics
/// Never: the limit is in range.
#[must_use]
pub fn one_packet_each(cpus: u32, observe: bool) -> Ruleset {
    let rate = Rate::packets(1, 86_400_000_000_000).expect("one a day");
    let limit = Limit::compile(rate, 1, cpus, false).expect("in range");
    let policy = Policy::new(Mode::Enforce).with(Level::SourcePackets, limit);
    let mut rules = Ruleset::new(observe, wide_gate(cpus));
    for kind in Kind::ALL {
        rules.set_policy(kind as u32, policy.numbered(Number::new(kind as u32, 0)));
        rules.set_kind(kind, kind as u32);
    }
    rules
}

/// A gate that is never in the way.
///
/// # Panics
/// Never: its rates are in range.
#[must_use]
pub fn wide_gate(cpus: u32) -> Gate {
    let rate = Rate::packets(10_000_000, 1_000_000_000).expect("in range");
    let flow = Flow { rate, burst: u32::MAX };
    Gate::compile(flow, flow, flow, cpus, TICK_NS).expect("in range")
}

impl Case {
    /// Whether the packet is what it says it is.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !matches!(self.expected, Expected::Malformed(_))
    }

    /// What must become of the first `length` bytes of the frame.
    #[must_use]
    pub fn expected_of_prefix(&self, length: usize) -> Expected {
        const ETHERNET: usize = 14;
        if length < ETHERNET || (self.is_valid() && length < self.end) {
            Expected::Malformed(Defect::Truncated)
        } else {
            self.expected
        }
    }

    /// The decision for the frame if its source sends it first, or again.
    pub fn decision(
        &self,
        expected: Expected,
        length: usize,
        first: bool,
        observe: bool,
    ) -> Decision {
        let (reason, policy) = match expected {
            Expected::NotIp => (Reason::NotIp, NO_POLICY),
            Expected::Neighbour => (Reason::Neighbour, NO_POLICY),
            Expected::Malformed(_) => (Reason::Malformed, NO_POLICY),
            Expected::Limited(kind, _) if first => (Reason::WithinLimit, kind as u32),
            Expected::Limited(kind, _) => (Reason::SourceRate, kind as u32),
        };
        Decision::new(reason, policy, u32::try_from(length).unwrap_or(u32::MAX), !observe)
    }
}
