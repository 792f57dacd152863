//! Network interfaces, asked from the kernel over netlink: sysfs may show
//! those of another network namespace.

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp},
};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use tokio::io::unix::AsyncFd;

use crate::{
    error::{Error, Kind, Result},
    netlink,
};

/// A network interface as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its index in this network namespace.
    pub index: u32,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether it has a carrier: a cable, or a peer that is up.
    pub carrier: bool,
    /// Whether its frames begin with an Ethernet header.
    pub ethernet: bool,
    /// The kernel's name for its kind, such as `bridge` or `vlan`; that of
    /// hardware has none.
    pub kind: Option<String>,
    /// Index of the bridge or bond that it is part of.
    pub controller: Option<u32>,
    /// Index of the interface below it: of a VLAN or tunnel. A veth has its
    /// peer there, perhaps in another network namespace.
    pub lower: Option<u32>,
    /// Receive queues that there is room for.
    pub rx_queues: Option<u32>,
    /// Transmit queues that there is room for.
    pub tx_queues: Option<u32>,
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
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let answers = netlink::request(NETLINK_ROUTE, NLM_F_DUMP, request)?;
    let interface = |answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(interface(link)),
        _ => None,
    };
    Ok(answers.into_iter().filter_map(interface).collect())
}

fn interface(link: LinkMessage) -> Interface {
    let mut interface = Interface {
        index: link.header.index,
        up: link.header.flags.contains(LinkFlags::Up),
        carrier: link.header.flags.contains(LinkFlags::LowerUp),
        ethernet: matches!(
            link.header.link_layer_type,
            LinkLayerType::Ether | LinkLayerType::Loopback
        ),
        ..Interface::default()
    };
    for attribute in link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::Mtu(mtu) => interface.mtu = mtu,
            LinkAttribute::Controller(index) => interface.controller = Some(index),
            LinkAttribute::Link(index) => interface.lower = Some(index),
            LinkAttribute::NumRxQueues(queues) => interface.rx_queues = Some(queues),
            LinkAttribute::NumTxQueues(queues) => interface.tx_queues = Some(queues),
            LinkAttribute::LinkInfo(facts) => {
                interface.kind = facts.into_iter().find_map(|fact| match fact {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
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
        assert!(loopback.index > 0 && loopback.mtu > 0 && loopback.ethernet);
        assert!(loopback.rx_queues > Some(0) && loopback.controller.is_none());
        let error = find("no-such-if0").unwrap_err();
        assert_eq!(error.kind, Kind::NotFound);
        assert!(error.to_string().contains("lo"), "{error}");
    }
}
