//! Packets of many senders, as an attacker makes them up.

use crate::{
    net::{IFACE, Net, SERVER4},
    send::{Load, Sent, send},
    wire::{Frame, Ipv4, Tcp, Udp},
};

/// Frames from the attacker's interface to the server's.
#[derive(Clone, Copy, Debug)]
pub struct Senders([[u8; 6]; 2]);

impl Senders {
    /// Those in a network.
    #[must_use]
    pub fn of(net: &Net) -> Self {
        Self([&net.server, &net.attacker].map(|host| host.hardware_address(IFACE)))
    }

    /// A datagram to port 53.
    #[must_use]
    pub fn udp(&self, source: &str) -> Vec<u8> {
        self.frame(source, 17, &Udp::new(4000, 53).payload(64)).build()
    }

    /// A segment to port 80 that opens a connection.
    #[must_use]
    pub fn syn(&self, source: &str) -> Vec<u8> {
        self.frame(source, 6, &Tcp::new(4000, 80).flags(2).build()).build()
    }

    /// Any packet of IPv4.
    #[must_use]
    pub fn frame(&self, source: &str, protocol: u8, payload: &[u8]) -> Frame {
        let [server, attacker] = self.0;
        Ipv4::new(source, SERVER4).next(protocol, payload).ethernet(server, attacker)
    }
}

/// Sends so many frames from the attacker at that pace.
///
/// # Panics
/// If they cannot be sent.
pub fn flood(net: &Net, frames: Vec<Vec<u8>>, count: u64, per_second: u64) -> Sent {
    let load = Load { frames, count, per_second };
    let sent = net.attacker.call(move || send(IFACE, &load, || false)).expect("sending");
    assert_eq!(sent.frames, count);
    sent
}
