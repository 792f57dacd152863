//! Network interfaces, asked from the kernel over netlink: sysfs may show
//! those of another network namespace.

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage, LinkXdp},
};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use crate::error::{Error, Kind, Result};

/// A network interface as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index in this network namespace.
    pub index: u32,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Number of the XDP program in its driver.
    pub native: Option<u32>,
    /// Number of the XDP program in generic mode.
    pub generic: Option<u32>,
    /// Number of the XDP program in its hardware.
    pub offloaded: Option<u32>,
}

impl Interface {
    /// Number of any XDP program on it.
    #[must_use]
    pub fn program(&self) -> Option<u32> {
        self.native.or(self.generic).or(self.offloaded)
    }
}

/// All interfaces of this network namespace.
///
/// # Errors
/// The kernel does not answer over netlink.
pub fn all() -> Result<Vec<Interface>> {
    dump().map_err(|error| Error::failed(format!("cannot list the network interfaces: {error}")))
}

/// The interface of this name.
///
/// # Errors
/// There is none; the message lists those that there are.
pub fn find(name: &str) -> Result<Interface> {
    let interfaces = all()?;
    if let Some(interface) = interfaces.iter().find(|interface| interface.name == name) {
        return Ok(interface.clone());
    }
    let names: Vec<_> = interfaces.iter().map(|interface| interface.name.as_str()).collect();
    Err(Error::new(Kind::NotFound, format!("there is no network interface '{name}'"))
        .hint(format!("there are: {}", names.join(", "))))
}

fn dump() -> std::io::Result<Vec<Interface>> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let mut request = NetlinkMessage::new(header, NetlinkPayload::from(request));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send_to(&bytes, &netlink_sys::SocketAddr::new(0, 0), 0)?;

    let mut interfaces = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(std::io::Error::other)?;
            match message.payload {
                NetlinkPayload::Done(_) => return Ok(interfaces),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    interfaces.push(interface(link));
                }
                _ => {}
            }
            // Messages start at multiples of 4 bytes (NLMSG_ALIGN).
            let length = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(length.max(4)..).unwrap_or_default();
        }
    }
}

fn interface(link: LinkMessage) -> Interface {
    let mut interface = Interface { index: link.header.index, ..Interface::default() };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::Mtu(mtu) => interface.mtu = mtu,
            LinkAttribute::Xdp(facts) => {
                for fact in facts {
                    match fact {
                        LinkXdp::DrvProgId(id) => interface.native = Some(id),
                        LinkXdp::SkbProgId(id) => interface.generic = Some(id),
                        LinkXdp::HwProgId(id) => interface.offloaded = Some(id),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    interface
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_and_nonsense_is_not() {
        let loopback = find("lo").unwrap();
        assert!(loopback.index > 0 && loopback.mtu > 0);
        let error = find("no-such-if0").unwrap_err();
        assert_eq!(error.kind, Kind::NotFound);
        assert!(error.to_string().contains("lo"), "{error}");
    }
}
