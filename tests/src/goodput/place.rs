//! Where it happens: the network of the tests, with one CPU for the server and
//! another for all that is not the server.

use crate::{
    host::Host,
    net::{ATTACKER4, IFACE, Net, SERVER4},
};

/// The CPU of the flood, and of what stands for the wire.
pub const WIRE_CPU: usize = 0;
/// The CPU of the server: its interface, shield, network stack and web server.
pub const SERVER_CPU: usize = 1;
/// Addresses of the client's, which stands for several polite users.
pub const USERS: u8 = 8;

/// A gateway that is not there: the bridge drops what is sent to it.
const HOLE: &str = "02:00:00:00:00:66";
const GATEWAY: &str = "198.18.0.254";

/// The network, arranged.
///
/// # Panics
/// Without root, or if a program is missing.
#[must_use]
pub fn place() -> Net {
    let net = Net::new();
    // Receiving works in batches, as on a network card, also without XDP.
    net.server.run(&format!("ethtool -K {IFACE} gro on"));
    // The server's CPU begins where the wire ends: before its interface, so
    // that it pays for a shield in the driver as for any other.
    steer(&net.bridge, "to-attacker", SERVER_CPU);
    steer(&net.bridge, "to-client", SERVER_CPU);
    steer(&net.bridge, "to-server", WIRE_CPU);
    swallow_replies(&net);
    give_users_addresses(&net);
    net
}

/// Has another CPU process what an interface receives.
fn steer(host: &Host, interface: &'static str, cpu: usize) {
    host.call(move || {
        let queues = std::fs::read_dir(format!("/sys/class/net/{interface}/queues"));
        let queues = queues.expect("the queues").map(|queue| queue.expect("a queue").path());
        for queue in queues.filter(|queue| queue.join("rps_cpus").exists()) {
            let mask = format!("{:x}", 1 << cpu);
            std::fs::write(queue.join("rps_cpus"), mask).expect("this needs two CPUs");
        }
    });
}

/// Replies to the flood go as far as the bridge.
fn swallow_replies(net: &Net) {
    // Where the frame came from is the port it would go to: it is dropped.
    net.bridge.run(&format!("bridge fdb add {HOLE} dev to-server master static"));
    net.attacker.ip(&format!("addr del {ATTACKER4}/24 dev {IFACE}"));
    for address in [ATTACKER4, GATEWAY] {
        net.server.ip(&format!("neigh replace {address} lladdr {HOLE} dev {IFACE}"));
    }
    net.server.ip(&format!("route add 10.0.0.0/8 via {GATEWAY} dev {IFACE}"));
    for interface in ["all", IFACE] {
        net.server.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0");
    }
}

/// New connections come from the users' addresses in turn.
fn give_users_addresses(net: &Net) {
    let mac = net.client.hardware_address(IFACE).map(|byte| format!("{byte:02x}")).join(":");
    let mut turns = Vec::new();
    for user in 0..USERS {
        let address = format!("198.18.0.{}", 10 + user);
        net.client.ip(&format!("addr add {address}/24 dev {IFACE}"));
        net.server.ip(&format!("neigh replace {address} lladdr {mac} dev {IFACE}"));
        turns.push(format!("{user} : {address}"));
    }
    let rules = format!(
        "table ip users {{\nchain out {{\ntype nat hook postrouting priority srcnat;\n\
         ip daddr {SERVER4} snat to numgen inc mod {USERS} map {{ {} }}\n}}\n}}\n",
        turns.join(", ")
    );
    super::shield::nft(&net.client, &rules);
}
