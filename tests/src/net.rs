//! A small network: a server behind one interface, a client and an attacker,
//! joined by a bridge.

use crate::host::Host;

/// The server's addresses.
pub const SERVER4: &str = "198.18.0.1";
/// The server's addresses.
pub const SERVER6: &str = "2001:db8:1::1";
/// The client's addresses.
pub const CLIENT4: &str = "198.18.0.2";
/// The client's addresses, in a /64 of its own.
pub const CLIENT6: &str = "2001:db8:2::2";
/// The attacker's addresses.
pub const ATTACKER4: &str = "198.18.0.3";
/// The attacker's addresses, in a /64 of its own.
pub const ATTACKER6: &str = "2001:db8:3::3";
/// The interface of each host.
pub const IFACE: &str = "eth0";

/// The hosts.
pub struct Net {
    /// Joins the others; its port `to-server` sends what the server receives.
    pub bridge: Host,
    /// Serves, and is shielded.
    pub server: Host,
    /// Is polite.
    pub client: Host,
    /// Is not.
    pub attacker: Host,
}

impl Net {
    /// The network, all of it up.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn new() -> Self {
        let [bridge, server, client, attacker] = [(); 4].map(|()| Host::new());
        bridge.ip("link add br0 type bridge mcast_snooping 0 forward_delay 0");
        bridge.sysctl("net/ipv6/conf/br0/addr_gen_mode", "1");
        bridge.ip("link set br0 up");
        for (host, port, four, six) in [
            (&server, "to-server", SERVER4, SERVER6),
            (&client, "to-client", CLIENT4, CLIENT6),
            (&attacker, "to-attacker", ATTACKER4, ATTACKER6),
        ] {
            bridge.connect(port, host, IFACE);
            bridge.ip(&format!("link set {port} master br0"));
            host.ip(&format!("addr add {four}/24 dev {IFACE}"));
            // All /64s are on this link.
            host.ip(&format!("addr add {six}/32 dev {IFACE} nodad"));
        }
        // Nobody has to ask for anybody.
        let hosts = [&server, &client, &attacker];
        let addresses = [[SERVER4, SERVER6], [CLIENT4, CLIENT6], [ATTACKER4, ATTACKER6]];
        for host in hosts {
            for (other, addresses) in hosts.iter().zip(addresses) {
                let mac = other.hardware_address(IFACE).map(|byte| format!("{byte:02x}"));
                let mac = mac.join(":");
                for address in addresses {
                    host.ip(&format!("neigh replace {address} lladdr {mac} dev {IFACE}"));
                }
            }
        }
        Self { bridge, server, client, attacker }
    }

    /// Frames that were handed to the server's interface.
    #[must_use]
    pub fn handed_to_server(&self) -> u64 {
        self.bridge.packets("to-server").sent
    }

    /// Frames that were lost on the way to it: a receiver that gets no
    /// processor for some milliseconds has no room for more.
    #[must_use]
    pub fn lost_before_server(&self) -> u64 {
        self.bridge.packets("to-server").unsent
    }
}

impl Default for Net {
    fn default() -> Self {
        Self::new()
    }
}
