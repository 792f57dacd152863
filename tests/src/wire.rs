//! Packets composed byte by byte, each field of which can be made to lie.

use std::net::{Ipv4Addr, Ipv6Addr};

const ETHERNET: usize = 14;

/// A frame: Ethernet header, VLAN tags, body, padding.
#[derive(Clone, Debug)]
pub struct Frame {
    ether_type: u16,
    /// (type, VLAN id), the innermost first.
    tags: Vec<(u16, u16)>,
    body: Vec<u8>,
    /// End of the packet inside the body, by its own header.
    packet: usize,
    padded: usize,
    addresses: [[u8; 6]; 2],
}

impl Frame {
    /// A frame of this type without a body.
    #[must_use]
    pub fn new(ether_type: u16) -> Self {
        let addresses = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
        Self { ether_type, tags: vec![], body: vec![], packet: 0, padded: 0, addresses }
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self
    }

    /// Sets the Ethernet addresses.
    #[must_use]
    pub fn ethernet(mut self, destination: [u8; 6], source: [u8; 6]) -> Self {
        self.addresses = [destination, source];
        self
    }

    /// Puts a customer tag (802.1Q) outside of what is there.
    #[must_use]
    pub fn vlan(self, id: u16) -> Self {
        self.tag(0x8100, id)
    }

    /// Puts a service tag (802.1ad) outside of what is there.
    #[must_use]
    pub fn service_vlan(self, id: u16) -> Self {
        self.tag(0x88a8, id)
    }

    /// Puts a tag of any type outside of what is there.
    #[must_use]
    pub fn tag(mut self, kind: u16, id: u16) -> Self {
        self.tags.push((kind, id));
        self
    }

    /// Pads with zeros to `length` bytes in all.
    #[must_use]
    pub fn pad(mut self, length: usize) -> Self {
        self.padded = length;
        self
    }

    /// Offset at which the packet ends by its own header.
    #[must_use]
    pub fn end(&self) -> usize {
        ETHERNET + 4 * self.tags.len() + self.packet
    }

    /// The bytes.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = self.addresses.concat();
        let mut kinds = Vec::new();
        for &(kind, id) in self.tags.iter().rev() {
            kinds.push((kind, Some(id)));
        }
        kinds.push((self.ether_type, None));
        for (kind, id) in kinds {
            bytes.extend(kind.to_be_bytes());
            if let Some(id) = id {
                bytes.extend(id.to_be_bytes());
            }
        }
        bytes.extend(&self.body);
        bytes.resize(bytes.len().max(self.padded), 0);
        bytes
    }
}

/// An IPv4 header; [`Ipv4::next`] makes the frame.
#[derive(Clone, Debug)]
pub struct Ipv4 {
    source: Ipv4Addr,
    destination: Ipv4Addr,
    version: u8,
    options: usize,
    header_length: Option<u8>,
    total_length: Option<u16>,
    fragment: u16,
}

impl Ipv4 {
    /// Addresses as text.
    ///
    /// # Panics
    /// On text that is no IPv4 address.
    #[must_use]
    pub fn new(source: &str, destination: &str) -> Self {
        Self {
            source: source.parse().expect("an IPv4 address"),
            destination: destination.parse().expect("an IPv4 address"),
            version: 4,
            options: 0,
            header_length: None,
            total_length: None,
            fragment: 0,
        }
    }

    /// Claims another version.
    #[must_use]
    pub fn version(mut self, version: u8) -> Self {
        self.version = version;
        self
    }

    /// Adds bytes of options (no-operations), a multiple of 4.
    #[must_use]
    pub fn options(mut self, bytes: usize) -> Self {
        self.options = bytes;
        self
    }

    /// Claims a header length in bytes.
    #[must_use]
    pub fn header_length(mut self, bytes: u8) -> Self {
        self.header_length = Some(bytes);
        self
    }

    /// Claims a total length in bytes.
    #[must_use]
    pub fn total_length(mut self, bytes: u16) -> Self {
        self.total_length = Some(bytes);
        self
    }

    /// Makes a fragment at an offset in 8-byte units.
    #[must_use]
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        self.fragment = offset | u16::from(more) << 13;
        self
    }

    /// Sets the bit of that name.
    #[must_use]
    pub fn dont_fragment(mut self) -> Self {
        self.fragment |= 0x4000;
        self
    }

    /// The frame with `payload` of protocol number `protocol`, whose checksum
    /// is filled in if it is whole.
    ///
    /// # Panics
    /// If the packet is longer than IPv4 allows.
    #[must_use]
    pub fn next(self, protocol: u8, payload: &[u8]) -> Frame {
        let header = 20 + self.options;
        let length = u16::try_from(header + payload.len()).expect("at most 65,535 bytes");
        let total = self.total_length.unwrap_or(length);
        let words = self.header_length.unwrap_or(u8::try_from(header).expect("60")) / 4;
        let mut bytes = vec![self.version << 4 | words, 0];
        bytes.extend(total.to_be_bytes());
        bytes.extend([0x12, 0x34]);
        bytes.extend(self.fragment.to_be_bytes());
        bytes.extend([64, protocol, 0, 0]);
        bytes.extend(self.source.octets());
        bytes.extend(self.destination.octets());
        bytes.resize(header, 1);
        let sum = checksum(&[&bytes]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        let addresses = [&self.source.octets()[..], &self.destination.octets()[..]].concat();
        bytes.extend(summed(protocol, payload, &addresses));
        let packet = usize::from(total).max(header);
        Frame { packet, ..Frame::new(0x0800).body(&bytes) }
    }
}

/// An IPv6 header with its extension headers; [`Ipv6::next`] makes the frame.
#[derive(Clone, Debug)]
pub struct Ipv6 {
    source: Ipv6Addr,
    destination: Ipv6Addr,
    version: u8,
    hop_limit: u8,
    payload_length: Option<u16>,
    /// (type, bytes without the next-header field)
    extensions: Vec<(u8, Vec<u8>)>,
}

impl Ipv6 {
    /// Addresses as text.
    ///
    /// # Panics
    /// On text that is no IPv6 address.
    #[must_use]
    pub fn new(source: &str, destination: &str) -> Self {
        Self {
            source: source.parse().expect("an IPv6 address"),
            destination: destination.parse().expect("an IPv6 address"),
            version: 6,
            hop_limit: 64,
            payload_length: None,
            extensions: vec![],
        }
    }

    /// Claims another version.
    #[must_use]
    pub fn version(mut self, version: u8) -> Self {
        self.version = version;
        self
    }

    /// Sets the hop limit.
    #[must_use]
    pub fn hop_limit(mut self, hops: u8) -> Self {
        self.hop_limit = hops;
        self
    }

    /// Claims a payload length in bytes.
    #[must_use]
    pub fn payload_length(mut self, bytes: u16) -> Self {
        self.payload_length = Some(bytes);
        self
    }

    /// Adds an extension header with this number in its length field: 8-byte
    /// words beyond the first, or 4-byte words less 2 for authentication.
    #[must_use]
    pub fn extension(self, kind: u8, words: u8) -> Self {
        self.extension_claiming(kind, words, words)
    }

    /// Adds an extension header of one length that claims another.
    #[must_use]
    pub fn extension_claiming(mut self, kind: u8, words: u8, claimed: u8) -> Self {
        let length =
            if kind == 51 { (usize::from(words) + 2) * 4 } else { (usize::from(words) + 1) * 8 };
        let mut bytes = vec![0; length - 1];
        bytes[0] = claimed;
        self.extensions.push((kind, bytes));
        self
    }

    /// Adds a fragment header with an offset in 8-byte units.
    #[must_use]
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        // The reserved byte must be ignored (RFC 8200, 4.5).
        let mut bytes = vec![0xff];
        bytes.extend((offset << 3 | u16::from(more)).to_be_bytes());
        bytes.extend([0, 0, 0, 9]);
        self.extensions.push((44, bytes));
        self
    }

    /// The frame with `payload` of protocol number `protocol`, whose checksum
    /// is filled in if it is whole.
    ///
    /// # Panics
    /// If the packet is longer than IPv6 allows.
    #[must_use]
    pub fn next(self, protocol: u8, payload: &[u8]) -> Frame {
        let mut kinds: Vec<u8> = self.extensions.iter().map(|(kind, _)| *kind).collect();
        kinds.push(protocol);
        let mut body = Vec::new();
        for ((_, bytes), next) in self.extensions.iter().zip(&kinds[1..]) {
            body.push(*next);
            body.extend(bytes);
        }
        let addresses = [&self.source.octets()[..], &self.destination.octets()[..]].concat();
        body.extend(summed(protocol, payload, &addresses));
        let length = u16::try_from(body.len()).expect("at most 65,535 bytes");
        let length = self.payload_length.unwrap_or(length);
        let mut bytes = vec![self.version << 4, 0, 0, 0];
        bytes.extend(length.to_be_bytes());
        bytes.extend([kinds[0], self.hop_limit]);
        bytes.extend(addresses);
        bytes.extend(body);
        Frame { packet: 40 + usize::from(length), ..Frame::new(0x86dd).body(&bytes) }
    }
}

/// A TCP header.
#[derive(Clone, Copy, Debug)]
pub struct Tcp {
    ports: [u16; 2],
    flags: u8,
    options: u8,
    data_offset: Option<u8>,
}

impl Tcp {
    /// Source and destination port.
    #[must_use]
    pub fn new(source: u16, destination: u16) -> Self {
        Self { ports: [source, destination], flags: 0x10, options: 0, data_offset: None }
    }

    /// Sets the flags byte.
    #[must_use]
    pub fn flags(mut self, flags: u8) -> Self {
        self.flags = flags;
        self
    }

    /// Adds bytes of options (no-operations), a multiple of 4, at most 40.
    #[must_use]
    pub fn options(mut self, bytes: u8) -> Self {
        self.options = bytes;
        self
    }

    /// Claims a data offset in 4-byte words.
    #[must_use]
    pub fn data_offset(mut self, words: u8) -> Self {
        self.data_offset = Some(words);
        self
    }

    /// The header without payload.
    #[must_use]
    pub fn build(self) -> Vec<u8> {
        let length = 20 + self.options;
        let mut bytes = self.ports.map(u16::to_be_bytes).concat();
        bytes.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        bytes.extend([self.data_offset.unwrap_or(length / 4) << 4, self.flags]);
        bytes.extend([0xff, 0xff, 0, 0, 0, 0]);
        bytes.resize(usize::from(length), 1);
        bytes
    }
}

/// A UDP header.
#[derive(Clone, Copy, Debug)]
pub struct Udp {
    ports: [u16; 2],
    length: Option<u16>,
}

impl Udp {
    /// Source and destination port.
    #[must_use]
    pub fn new(source: u16, destination: u16) -> Self {
        Self { ports: [source, destination], length: None }
    }

    /// Claims a length in bytes, header included.
    #[must_use]
    pub fn length(mut self, bytes: u16) -> Self {
        self.length = Some(bytes);
        self
    }

    /// The datagram with so many bytes of payload.
    #[must_use]
    pub fn payload(self, bytes: u16) -> Vec<u8> {
        let mut datagram = self.ports.map(u16::to_be_bytes).concat();
        datagram.extend(self.length.unwrap_or(8 + bytes).to_be_bytes());
        datagram.resize(8 + usize::from(bytes), 0);
        datagram
    }
}

/// RFC 1071.
fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let words = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}

/// The payload with its transport checksum, where there is one to fill in.
fn summed(protocol: u8, payload: &[u8], addresses: &[u8]) -> Vec<u8> {
    let mut bytes = payload.to_vec();
    let (at, least, pseudo) = match protocol {
        1 => (2, 8, false),
        6 => (16, 20, true),
        17 => (6, 8, true),
        58 => (2, 8, true),
        _ => return bytes,
    };
    if bytes.len() < least {
        return bytes;
    }
    let length = u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes();
    let tail = [0, 0, 0, protocol];
    let sum =
        if pseudo { checksum(&[addresses, &length, &tail, &bytes]) } else { checksum(&[&bytes]) };
    let sum = if sum == 0 { 0xffff } else { sum };
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}
