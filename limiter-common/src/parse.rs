//! From the bytes of a frame to the few facts that later stages use.
//!
//! Lengths are the bytes present; a header that claims more than that, or
//! contradicts itself, makes the frame malformed. All work is bounded: two
//! VLAN tags, eight IPv6 extension headers.

use network_types::{
    eth::EtherType,
    icmp::Icmpv4Hdr,
    ip::{IpProto, Ipv4Hdr, Ipv6Hdr},
    udp::UdpHdr,
};

use crate::{frame::Frame, source::Address};

/// VLAN tags that are looked behind.
pub const MAX_VLAN_TAGS: u32 = 2;
/// IPv6 extension headers that are looked behind.
pub const MAX_EXTENSION_HEADERS: u32 = 8;

const ETHERNET_LENGTH: u32 = 14;
const ETHER_TYPE_OFFSET: u32 = 12;
const VLAN_LENGTH: u32 = 4;
const IPV4_LENGTH: u32 = 20;
const IPV6_LENGTH: u32 = 40;
const UDP_LENGTH: u32 = 8;
const ICMP_LENGTH: u32 = 8;
const TCP_LENGTH: u32 = 20;
const IPV4_DESTINATION: u32 = 16;
const IPV6_DESTINATION: u32 = 24;
/// In TCP and in UDP.
const PORT_OFFSET: u32 = 2;
/// Largest packet whose length fits an IPv4 or IPv6 header. A receiver that
/// merges packets beyond it (BIG TCP) leaves the header's length field zero.
const MAX_IP_LENGTH: u32 = 65_535;

const TCP_SYN: u8 = 0x02;
const TCP_ACK: u8 = 0x10;
/// RFC 4861, 4.1 to 4.5: router solicitation to redirect.
const ND_FIRST: u8 = 133;
const ND_LAST: u8 = 137;
/// RFC 4861: a smaller hop limit has passed a router, so it is not neighbour
/// discovery, whatever its type says.
const ND_HOP_LIMIT: u8 = 255;

/// What kind of IP packet it is; policies are chosen by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// TCP that opens a connection: SYN without ACK.
    TcpSyn = 0,
    /// Any other TCP.
    Tcp = 1,
    /// UDP.
    Udp = 2,
    /// ICMP for IPv4.
    Icmp = 3,
    /// ICMP for IPv6, neighbour discovery excepted.
    Icmpv6 = 4,
    /// A fragment after the first: no ports to be seen.
    Fragment = 5,
    /// Any other protocol.
    Other = 6,
}

impl Kind {
    /// Size of a table indexed by kind; a power of two.
    pub const SLOTS: usize = 8;

    /// All kinds, by their code.
    pub const ALL: [Self; 7] =
        [Self::TcpSyn, Self::Tcp, Self::Udp, Self::Icmp, Self::Icmpv6, Self::Fragment, Self::Other];

    /// The kind of that code; the last for any beyond.
    #[inline(always)]
    #[must_use]
    pub const fn numbered(code: u8) -> Self {
        match code {
            0 => Self::TcpSyn,
            1 => Self::Tcp,
            2 => Self::Udp,
            3 => Self::Icmp,
            4 => Self::Icmpv6,
            5 => Self::Fragment,
            _ => Self::Other,
        }
    }

    /// Name as it stands in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TcpSyn => "tcp-syn",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Icmpv6 => "icmpv6",
            Self::Fragment => "fragment",
            Self::Other => "other",
        }
    }
}

const _: () = assert!(Kind::ALL.len() <= Kind::SLOTS && Kind::SLOTS.is_power_of_two());

/// An IP packet, as far as later stages are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who claims to have sent it.
    pub source: Address,
    /// Bytes present, from the Ethernet header on.
    pub length: u32,
    /// What it is.
    pub shape: Shape,
}

/// What a packet is, and where its headers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What kind of packet.
    pub kind: Kind,
    /// The protocol that the last header names.
    pub protocol: u8,
    /// Whether it is IPv6; the source of such a packet may be IPv4-mapped.
    ipv6: bool,
    /// Offset of the IP header.
    network: u16,
    /// Offset of what follows all IP headers.
    transport: u16,
}

impl Shape {
    /// Offsets are bounded by what the parser looks behind: two VLAN tags, 60
    /// bytes of IPv4 or eight extension headers of at most 2 KiB.
    #[inline(always)]
    const fn new(kind: Kind, protocol: u8, ipv6: bool, network: u32, transport: u32) -> Self {
        let (network, transport) = ((network & 0xffff) as u16, (transport & 0xffff) as u16);
        Self { kind, protocol, ipv6, network, transport }
    }

    /// As one word.
    #[inline(always)]
    #[must_use]
    pub const fn word(self) -> u64 {
        self.kind as u64
            | (self.protocol as u64) << 8
            | (self.ipv6 as u64) << 16
            | (self.network as u64) << 32
            | (self.transport as u64) << 48
    }

    /// From its word.
    #[inline(always)]
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self {
            kind: Kind::numbered((word & 0xff) as u8),
            protocol: (word >> 8 & 0xff) as u8,
            ipv6: word >> 16 & 1 != 0,
            network: (word >> 32 & 0xffff) as u16,
            transport: (word >> 48) as u16,
        }
    }

    /// Who it is sent to.
    #[inline(always)]
    pub fn destination<F: Frame>(self, frame: &F) -> Option<Address> {
        let network = u32::from(self.network);
        if self.ipv6 {
            let bytes = frame.header::<[u8; 16]>(network + IPV6_DESTINATION)?;
            Some(Address::from_ipv6(*bytes))
        } else {
            let bytes = frame.header::<[u8; 4]>(network + IPV4_DESTINATION)?;
            Some(Address::from_ipv4(*bytes))
        }
    }

    /// The port that it is sent to, if it is TCP or UDP and shows one.
    #[inline(always)]
    pub fn port<F: Frame>(self, frame: &F) -> Option<u16> {
        match self.kind {
            Kind::TcpSyn | Kind::Tcp | Kind::Udp => {
                let bytes = frame.header::<[u8; 2]>(u32::from(self.transport) + PORT_OFFSET)?;
                Some(u16::from_be_bytes(*bytes))
            }
            _ => None,
        }
    }
}

/// The outermost VLAN of a frame; 0 for a frame without a tag, or with one that
/// only carries a priority (IEEE 802.1Q, 9.6).
#[inline(always)]
pub fn vlan<F: Frame>(frame: &F) -> u16 {
    match (read_u16(frame, ETHER_TYPE_OFFSET), frame.header::<[u8; 2]>(ETHERNET_LENGTH)) {
        (Ok(ether_type), Some(tag)) if is_vlan(ether_type) => u16::from_be_bytes(*tag) & 0x0fff,
        _ => 0,
    }
}

/// A frame that is what it says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Neither IPv4 nor IPv6.
    NotIp,
    /// ARP, or IPv6 neighbour discovery from this link.
    Neighbour,
    /// An IP packet.
    Ip(Packet),
}

/// What is wrong with a malformed frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A header ends beyond the bytes present, or beyond its packet.
    Truncated,
    /// A header's own fields contradict each other or the frame.
    Lying,
    /// More VLAN tags than [`MAX_VLAN_TAGS`].
    TooManyVlanTags,
    /// More IPv6 extension headers than [`MAX_EXTENSION_HEADERS`].
    TooManyExtensionHeaders,
}

/// Reads a frame from its Ethernet header on.
///
/// # Errors
/// The [`Defect`] that makes it malformed.
#[inline(always)]
pub fn parse<F: Frame>(frame: &F) -> Result<Parsed, Defect> {
    let mut ether_type = read_u16(frame, ETHER_TYPE_OFFSET)?;
    let mut offset = ETHERNET_LENGTH;
    for _ in 0..MAX_VLAN_TAGS {
        if !is_vlan(ether_type) {
            break;
        }
        ether_type = read_u16(frame, offset + 2)?;
        offset += VLAN_LENGTH;
    }
    if ether_type == EtherType::Ipv4 as u16 {
        parse_ipv4(frame, offset).map(Parsed::Ip)
    } else if ether_type == EtherType::Ipv6 as u16 {
        parse_ipv6(frame, offset)
    } else if ether_type == EtherType::Arp as u16 {
        Ok(Parsed::Neighbour)
    } else if is_vlan(ether_type) {
        Err(Defect::TooManyVlanTags)
    } else {
        Ok(Parsed::NotIp)
    }
}

/// Two bytes in wire order, to be compared with `EtherType as u16`.
#[inline(always)]
fn read_u16<F: Frame>(frame: &F, offset: u32) -> Result<u16, Defect> {
    let bytes = frame.header::<[u8; 2]>(offset).ok_or(Defect::Truncated)?;
    Ok(u16::from_ne_bytes(*bytes))
}

#[inline(always)]
const fn is_vlan(ether_type: u16) -> bool {
    ether_type == EtherType::Ieee8021q as u16
        || ether_type == EtherType::Ieee8021ad as u16
        || ether_type == EtherType::Ieee8021QinQ1 as u16
}

/// How far a packet and its frame reach, both from the start of the frame.
#[derive(Clone, Copy)]
struct Extent {
    /// End of the packet by its own header.
    end: u32,
    /// Bytes present.
    length: u32,
}

/// Holds what an IP header claims against the bytes present. Those beyond the
/// head are counted only when the claim reaches there: the count costs a
/// tenth of all the work on a packet.
#[inline(always)]
fn extent<F: Frame>(frame: &F, start: u32, claimed: u32) -> Result<Extent, Defect> {
    let end = start + claimed;
    let head = frame.head();
    if end <= head {
        return Ok(Extent { end, length: head });
    }
    let length = frame.whole();
    if end <= length { Ok(Extent { end, length }) } else { Err(Defect::Lying) }
}

/// The extent of a packet whose header leaves its length zero, because it does
/// not fit there.
#[inline(always)]
fn oversize<F: Frame>(frame: &F) -> Option<Extent> {
    let length = frame.whole();
    if length > MAX_IP_LENGTH { Some(Extent { end: length, length }) } else { None }
}

#[inline(always)]
fn parse_ipv4<F: Frame>(frame: &F, start: u32) -> Result<Packet, Defect> {
    let header = frame.header::<Ipv4Hdr>(start).ok_or(Defect::Truncated)?;
    let header_length = u32::from(header.vihl & 0x0f) * 4;
    let total = u32::from(u16::from_be_bytes(header.tot_len));
    let fragment = u16::from_be_bytes(header.frags);
    let protocol = header.proto;
    let source = Address::from_ipv4(header.src_addr);
    if header.vihl >> 4 != 4 || header_length < IPV4_LENGTH {
        return Err(Defect::Lying);
    }
    let Extent { end, length } = if total >= header_length {
        extent(frame, start, total)?
    } else if total == 0 {
        oversize(frame).ok_or(Defect::Lying)?
    } else {
        return Err(Defect::Lying);
    };
    let more = fragment & 0x2000 != 0;
    let kind = if fragment & 0x1fff != 0 {
        Kind::Fragment
    } else {
        transport(frame, protocol, start + header_length, end, more)?
    };
    let shape = Shape::new(kind, protocol, false, start, start + header_length);
    Ok(Packet { source, length, shape })
}

#[inline(always)]
fn parse_ipv6<F: Frame>(frame: &F, start: u32) -> Result<Parsed, Defect> {
    let header = frame.header::<Ipv6Hdr>(start).ok_or(Defect::Truncated)?;
    if header.vcf[0] >> 4 != 6 {
        return Err(Defect::Lying);
    }
    let source = Address::from_ipv6(header.src_addr);
    let hop_limit = header.hop_limit;
    let payload = u32::from(u16::from_be_bytes(header.payload_len));
    let mut next = header.next_hdr;
    let jumbo = if payload == 0 { oversize(frame) } else { None };
    let Extent { end, length } = match jumbo {
        Some(extent) => extent,
        None => extent(frame, start, IPV6_LENGTH + payload)?,
    };

    let mut offset = start + IPV6_LENGTH;
    let mut first_fragment = false;
    let mut room = MAX_EXTENSION_HEADERS;
    while is_extension(next) {
        if room == 0 {
            return Err(Defect::TooManyExtensionHeaders);
        }
        room -= 1;
        let extension = frame.header::<[u8; 8]>(offset).ok_or(Defect::Truncated)?;
        let mut skip = extension_length(next, extension[1]);
        if next == IpProto::Ipv6Frag as u8 {
            let fragment = u16::from_be_bytes([extension[2], extension[3]]);
            skip = 8;
            if fragment & 0xfff8 != 0 {
                fits(offset, skip, end)?;
                let shape = Shape::new(Kind::Fragment, extension[0], true, start, offset + skip);
                return Ok(Parsed::Ip(Packet { source, length, shape }));
            }
            first_fragment |= fragment & 1 != 0;
        }
        fits(offset, skip, end)?;
        next = extension[0];
        offset += skip;
    }

    let kind = if next == IpProto::Ipv6Icmp as u8 {
        fits(offset, ICMP_LENGTH, end)?;
        let header = frame.header::<Icmpv4Hdr>(offset).ok_or(Defect::Truncated)?;
        // RFC 6980: neighbour discovery is never fragmented.
        let discovery = header.type_ >= ND_FIRST && header.type_ <= ND_LAST && !first_fragment;
        if discovery && hop_limit == ND_HOP_LIMIT {
            return Ok(Parsed::Neighbour);
        }
        Kind::Icmpv6
    } else {
        transport(frame, next, offset, end, first_fragment)?
    };
    let shape = Shape::new(kind, next, true, start, offset);
    Ok(Parsed::Ip(Packet { source, length, shape }))
}

/// The extension headers that Linux looks behind, as bits by their number.
/// ESP hides what follows and the rest have no length in common with these,
/// so they count as the transport.
const EXTENSIONS: u64 = bit(IpProto::HopOpt)
    | bit(IpProto::Ipv6Route)
    | bit(IpProto::Ipv6Frag)
    | bit(IpProto::Ah)
    | bit(IpProto::Ipv6Opts);
/// The authentication header, and a number that is no extension header: with
/// one bit alone the compiler would make a branch of it.
const AUTHENTICATION: u64 = bit(IpProto::Ah) | bit(IpProto::Gre);

const fn bit(protocol: IpProto) -> u64 {
    1 << protocol as u8
}

/// A bit test, not a list of comparisons: each comparison is one more path
/// that the verifier follows through every later header.
#[inline(always)]
const fn is_extension(next: u8) -> bool {
    next < 64 && (EXTENSIONS >> next) & 1 != 0
}

/// Length in bytes of an extension header other than a fragment header:
/// 8-byte words, the first not counted (RFC 8200, 4.3), but the
/// authentication header has 4-byte words, less 2 (RFC 4302, 2.2).
#[inline(always)]
const fn extension_length(next: u8, words: u8) -> u32 {
    let authentication = ((AUTHENTICATION >> (next & 63)) & 1) as u32;
    (words as u32 + 1 + authentication) << (3 - authentication)
}

/// Checks that a header lies inside its packet.
#[inline(always)]
const fn fits(offset: u32, length: u32, end: u32) -> Result<(), Defect> {
    if offset + length <= end { Ok(()) } else { Err(Defect::Truncated) }
}

/// The kind of the transport header at `offset`. A first fragment must hold
/// the whole header (RFC 1858, RFC 7112), but its length fields speak of the
/// packet before it was cut.
#[inline(always)]
fn transport<F: Frame>(
    frame: &F,
    protocol: u8,
    offset: u32,
    end: u32,
    first_fragment: bool,
) -> Result<Kind, Defect> {
    if protocol == IpProto::Tcp as u8 {
        fits(offset, TCP_LENGTH, end)?;
        let header = frame.header::<[u8; TCP_LENGTH as usize]>(offset).ok_or(Defect::Truncated)?;
        let length = u32::from(header[12] >> 4) * 4;
        if length < TCP_LENGTH {
            return Err(Defect::Lying);
        }
        fits(offset, length, end)?;
        let opens = header[13] & (TCP_SYN | TCP_ACK) == TCP_SYN;
        Ok(if opens { Kind::TcpSyn } else { Kind::Tcp })
    } else if protocol == IpProto::Udp as u8 {
        fits(offset, UDP_LENGTH, end)?;
        let header = frame.header::<UdpHdr>(offset).ok_or(Defect::Truncated)?;
        let length = u32::from(u16::from_be_bytes(header.len));
        // RFC 2675, 4: zero says that the length does not fit the field.
        let jumbo = length == 0 && end - offset > MAX_IP_LENGTH;
        if !jumbo && (length < UDP_LENGTH || (!first_fragment && offset + length > end)) {
            return Err(Defect::Lying);
        }
        Ok(Kind::Udp)
    } else if protocol == IpProto::Icmp as u8 {
        fits(offset, ICMP_LENGTH, end)?;
        Ok(Kind::Icmp)
    } else {
        Ok(Kind::Other)
    }
}
