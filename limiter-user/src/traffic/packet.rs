//! What the first bytes of a packet tell.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use limiter_common::{
    frame::{Frame, Header, Linear},
    parse::{self, Kind, Parsed},
    sample::Sample,
    source::Address,
};

/// A packet of which only the first bytes are known.
#[derive(Clone, Copy, Debug)]
struct Captured<'a> {
    bytes: Linear<'a>,
    length: u32,
}

impl Frame for Captured<'_> {
    fn head(&self) -> u32 {
        self.bytes.head()
    }

    fn whole(&self) -> u32 {
        self.length
    }

    fn header<T: Header>(&self, offset: u32) -> Option<&T> {
        self.bytes.header(offset)
    }
}

/// What it tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) source: Option<IpAddr>,
    pub(super) destination: Option<IpAddr>,
    /// None for what is malformed or not IP.
    pub(super) kind: Option<Kind>,
    pub(super) protocol: Option<u8>,
    pub(super) source_port: Option<u16>,
    pub(super) destination_port: Option<u16>,
    pub(super) flags: Option<Flags>,
    pub(super) vlan: Option<u16>,
}

/// TCP flags, as they stand in byte 13 of the header (RFC 9293, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    /// Such as `SYN,ACK`.
    pub(super) fn names(self) -> String {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let set = NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 != 0);
        set.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
    }
}

impl Facts {
    pub(super) fn of(sample: &Sample) -> Self {
        let bytes = Linear(sample.packet());
        let frame = Captured { bytes, length: sample.length };
        let vlan = Some(parse::vlan(&bytes)).filter(|vlan| *vlan != 0);
        // What is malformed for the shield is shown as far as it can be read.
        let mut facts = Self { vlan, ..lax(sample.packet()) };
        if let Ok(Parsed::Ip(packet)) = parse::parse(&frame) {
            facts.source = Some(address(packet.source));
            facts.destination = packet.shape.destination(&frame).map(address);
            facts.kind = Some(packet.shape.kind);
            facts.protocol = Some(packet.shape.protocol);
        }
        facts
    }
}

fn lax(bytes: &[u8]) -> Facts {
    let mut facts = Facts::default();
    let Ok(packet) = LaxSlicedPacket::from_ethernet(bytes) else {
        return facts;
    };
    match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            facts.source = Some(ip.header().source_addr().into());
            facts.destination = Some(ip.header().destination_addr().into());
            facts.protocol = Some(ip.payload().ip_number.0);
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            facts.source = Some(ip.header().source_addr().into());
            facts.destination = Some(ip.header().destination_addr().into());
            facts.protocol = Some(ip.payload().ip_number.0);
        }
        _ => {}
    }
    match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            facts.source_port = Some(tcp.source_port());
            facts.destination_port = Some(tcp.destination_port());
            facts.flags = tcp.slice().get(13).copied().map(Flags);
        }
        Some(TransportSlice::Udp(udp)) => {
            facts.source_port = Some(udp.source_port());
            facts.destination_port = Some(udp.destination_port());
        }
        _ => {}
    }
    facts
}

/// `tcp`, `udp`, `icmp`, `icmpv6` or the number.
pub(super) fn protocol_name(protocol: u8) -> String {
    match protocol {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        other => other.to_string(),
    }
}

fn address(address: Address) -> IpAddr {
    match address {
        Address::V4(word) => Ipv4Addr::from(word.to_ne_bytes()).into(),
        Address::V6(words) => {
            let [a, b, c, d] = words.map(u32::from_be).map(u128::from);
            Ipv6Addr::from(a << 96 | b << 64 | c << 32 | d).into()
        }
    }
}
