//! Network interfaces, asked from the kernel over netlink: sysfs may show
//! those of another network namespace.

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage, LinkXdp},
};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use tokio::io::unix::AsyncFd;

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
    /// Whether it is up and has a carrier.
    pub is_up: bool,
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

/// Tells when interfaces come, go, or change.
pub struct Changes(AsyncFd<Socket>);

/// Group of netlink messages about interfaces (`RTNLGRP_LINK`).
const LINKS: u32 = 1;

impl Changes {
    /// From now on. Needs a Tokio runtime.
    ///
    /// # Errors
    /// The kernel does not answer over netlink.
    pub fn follow() -> std::io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        socket.bind_auto()?;
        socket.add_membership(LINKS)?;
        // SAFETY: the socket owns its descriptor and keeps it open and the same.
        let registered = unsafe { AsyncFd::register(socket) };
        Ok(Self(registered.map_err(std::io::Error::from)?))
    }

    /// Done after the next change, or several.
    ///
    /// # Errors
    /// The socket cannot be used any more.
    pub async fn next(&mut self) -> std::io::Result<()> {
        let mut ready = self.0.readable().await?;
        // What has changed is asked for anew; too many messages are as good
        // as one.
        while ready.get_inner().recv_from_full().is_ok() {}
        ready.clear_ready();
        Ok(())
    }
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
    let up = LinkFlags::Up | LinkFlags::LowerUp;
    let mut interface = Interface {
        index: link.header.index,
        is_up: link.header.flags.contains(up),
        ..Interface::default()
    };
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
