//! Frames that are only thought of: for explanations and for the guard.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::{
    IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, PacketBuilder, PacketBuilderStep,
    VlanId,
};

use crate::error::{Error, Kind, Result};

/// A packet in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// Who sends it.
    pub source: IpAddr,
    /// Who it is sent to, of the same family.
    pub destination: IpAddr,
    /// What it carries.
    pub transport: Transport,
    /// Port that it is sent to, where there are ports.
    pub port: u16,
    /// Bytes of the frame; at least its headers are there.
    pub length: u32,
    /// VLAN, 0 for none.
    pub vlan: u16,
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP that opens a connection, or not.
    Tcp {
        /// Whether it opens one.
        syn: bool,
    },
    /// UDP.
    Udp,
    /// An echo request of the family.
    Icmp,
    /// Another protocol.
    Other(u8),
}

const SOURCE_PORT: u16 = 40_000;
const HOPS: u8 = 64;
/// The least that Ethernet carries, checksum apart.
const SHORTEST: u32 = 60;
const LONGEST: u32 = 9_018;

impl Described {
    /// Its bytes, from the Ethernet header on.
    ///
    /// # Errors
    /// The addresses are of two families, or the length or the VLAN is out of
    /// range.
    pub fn frame(&self) -> Result<Vec<u8>> {
        if !(SHORTEST..=LONGEST).contains(&self.length) {
            return Err(Error::new(
                Kind::Invalid,
                format!("a packet of {} bytes is out of range", self.length),
            )
            .hint(format!("the length lies between {SHORTEST} and {LONGEST} bytes")));
        }
        let number = self.ip_number();
        let ip = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header =
                    Ipv4Header::new(0, HOPS, number, source.octets(), destination.octets());
                let header = header.map_err(|error| unmade(&error))?;
                IpHeaders::Ipv4(header, etherparse::Ipv4Extensions::default())
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => IpHeaders::Ipv6(
                Ipv6Header {
                    traffic_class: 0,
                    flow_label: Ipv6FlowLabel::ZERO,
                    payload_length: 0,
                    next_header: number,
                    hop_limit: HOPS,
                    source: source.octets(),
                    destination: destination.octets(),
                },
                etherparse::Ipv6Extensions::default(),
            ),
            _ => {
                return Err(Error::new(
                    Kind::Invalid,
                    format!("{} and {} are of two families", self.source, self.destination),
                )
                .hint("name a destination of the source's family with --dst"));
            }
        };
        let link = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let builder = match self.vlan {
            0 => link.ip(ip),
            vlan => link.single_vlan(VlanId::try_new(vlan).map_err(|error| unmade(&error))?).ip(ip),
        };
        self.fill(builder)
    }

    fn fill(&self, builder: PacketBuilderStep<IpHeaders>) -> Result<Vec<u8>> {
        let mut frame = Vec::new();
        let wanted = self.length as usize;
        macro_rules! write {
            ($step:expr $(, $argument:expr)*) => {{
                let step = $step;
                let payload = vec![0; wanted.saturating_sub(step.size(0))];
                step.write(&mut frame, $($argument,)* &payload).map_err(|error| unmade(&error))?;
            }};
        }
        match (self.transport, self.source) {
            (Transport::Tcp { syn: true }, _) => {
                write!(builder.tcp(SOURCE_PORT, self.port, 1, 65_535).syn());
            }
            (Transport::Tcp { syn: false }, _) => {
                write!(builder.tcp(SOURCE_PORT, self.port, 1, 65_535).ack(1));
            }
            (Transport::Udp, _) => write!(builder.udp(SOURCE_PORT, self.port)),
            (Transport::Icmp, IpAddr::V4(_)) => write!(builder.icmpv4_echo_request(1, 1)),
            (Transport::Icmp, IpAddr::V6(_)) => write!(builder.icmpv6_echo_request(1, 1)),
            (Transport::Other(number), _) => {
                let payload = vec![0; wanted.saturating_sub(builder.size(0))];
                builder
                    .write(&mut frame, IpNumber(number), &payload)
                    .map_err(|error| unmade(&error))?;
            }
        }
        Ok(frame)
    }

    fn ip_number(&self) -> IpNumber {
        match (self.transport, self.source) {
            (Transport::Tcp { .. }, _) => IpNumber::TCP,
            (Transport::Udp, _) => IpNumber::UDP,
            (Transport::Icmp, IpAddr::V4(_)) => IpNumber::ICMP,
            (Transport::Icmp, IpAddr::V6(_)) => IpNumber::IPV6_ICMP,
            (Transport::Other(number), _) => IpNumber(number),
        }
    }
}

fn unmade(error: &dyn std::error::Error) -> Error {
    Error::new(Kind::Invalid, format!("there is no such packet: {error}"))
}

/// An address of nobody, of the same family (RFC 5737, RFC 3849).
#[must_use]
pub const fn nobody(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    }
}

/// The packet that opens a TCP connection from an address to a port of another
/// of the same family, and one of those that follow.
pub(crate) fn session(source: IpAddr, destination: IpAddr, port: u16) -> [Vec<u8>; 2] {
    [true, false].map(|syn| {
        let transport = Transport::Tcp { syn };
        let length = if syn { 74 } else { 120 };
        let packet = Described { source, destination, transport, port, length, vlan: 0 };
        packet.frame().unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use limiter_common::{
        frame::Linear,
        parse::{Kind as Packets, Parsed, parse},
    };

    use super::*;

    #[test]
    fn frames_are_what_was_described() {
        for source in ["198.51.100.7", "2001:db8:7::1"] {
            let source: IpAddr = source.parse().unwrap();
            for (transport, kind4, kind6) in [
                (Transport::Tcp { syn: true }, Packets::TcpSyn, Packets::TcpSyn),
                (Transport::Tcp { syn: false }, Packets::Tcp, Packets::Tcp),
                (Transport::Udp, Packets::Udp, Packets::Udp),
                (Transport::Icmp, Packets::Icmp, Packets::Icmpv6),
                (Transport::Other(47), Packets::Other, Packets::Other),
            ] {
                for (length, vlan) in [(100, 0), (1514, 7)] {
                    let destination = nobody(source);
                    let packet =
                        Described { source, destination, transport, port: 53, length, vlan };
                    let frame = packet.frame().unwrap();
                    assert_eq!(frame.len(), length as usize);
                    let Ok(Parsed::Ip(parsed)) = parse(&Linear(&frame)) else {
                        panic!("{packet:?}: {frame:?}");
                    };
                    let kind = if source.is_ipv4() { kind4 } else { kind6 };
                    assert_eq!(parsed.shape.kind, kind);
                    assert_eq!(parsed.source, crate::compiled::address(source));
                    assert_eq!(limiter_common::parse::vlan(&Linear(&frame)), vlan);
                    if matches!(transport, Transport::Tcp { .. } | Transport::Udp) {
                        assert_eq!(parsed.shape.port(&Linear(&frame)), Some(53));
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = Described {
            source: nobody(Ipv4Addr::LOCALHOST.into()),
            destination: Ipv4Addr::LOCALHOST.into(),
            transport: Transport::Udp,
            port: 53,
            length: 60,
            vlan: 0,
        };
        assert!(good.frame().is_ok());
        for bad in [
            Described { destination: Ipv6Addr::LOCALHOST.into(), ..good },
            Described { length: 10, ..good },
            Described { length: 100_000, ..good },
            Described { vlan: 4096, ..good },
        ] {
            assert_eq!(bad.frame().unwrap_err().kind, Kind::Invalid, "{bad:?}");
        }
    }
}
