//! A server under a flood, for those who look at what is shown of it.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use crate::{
    daemon::Daemon,
    net::{IFACE, Net},
    send::{Load, send},
    senders::Senders,
    wire::{Tcp, Udp},
};

/// What the server allows.
pub const CONFIG: &str = r#"
[[policy]]
name = "web"
match = { proto = "tcp", ports = [80, 443] }
rate = "500/s"
burst = 1000
total = { rate = "100k/s", burst = 100000 }

[[policy]]
name = "dns"
match = { proto = "udp", ports = [53] }
rate = "200/s"
burst = 400
per_prefix = { ipv4 = 24, ipv6 = 48, rate = "2k/s", burst = 4000 }

[[policy]]
name = "game"
match = { proto = "udp", ports = [27015] }
mode = "observe"
rate = "100/s"
burst = 200

[[policy]]
name = "rest"
rate = "100/s"
burst = 200

[[deny]]
prefix = "192.0.2.0/28"
reason = "scanners"

[attack]
rate = "5k/s"
begins_after = 1
"#;
const FILE: &str = "/run/limiterd.toml";
/// Packets per second, as few as every machine can send beside a browser.
const PER_SECOND: u64 = 60_000;
const FRAMES: usize = 20_000;

/// The network, the shield, and those who flood it.
pub struct Scene {
    /// The hosts.
    pub net: Net,
    /// The shield, with its bans.
    pub daemon: Daemon,
    stop: Arc<AtomicBool>,
    senders: Option<JoinHandle<()>>,
}

impl Scene {
    /// Puts up the shield; the flood begins, and ends after a minute.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn new() -> Self {
        let net = Net::new();
        net.server.call(|| std::fs::write(FILE, CONFIG)).expect("a file");
        let daemon = Daemon::start(&net.server, &format!("--iface {IFACE} --config {FILE}"));
        for ban in [
            "203.0.113.66 --for 10m --reason scan",
            "203.0.113.128/25 --for 1h",
            "2001:db8:bad::/48 --for forever --reason abuse",
        ] {
            let _ = daemon.ask(&format!("ban add {ban}"));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let load =
            Load { frames: frames(Senders::of(&net)), count: u64::MAX, per_second: PER_SECOND };
        let until = Arc::clone(&stop);
        let senders = net.attacker.spawn(move || {
            // If it ends early, nothing is shown, which is seen.
            let _ = send(IFACE, &load, || until.load(Ordering::Relaxed));
        });
        Self { net, daemon, stop, senders: Some(senders) }
    }
}

impl Default for Scene {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(senders) = self.senders.take() {
            let _ = senders.join();
        }
    }
}

/// The traffic in turn: half of it one source, some of it a banned one, many
/// that are polite.
fn frames(from: Senders) -> Vec<Vec<u8>> {
    let of = |source: u32| Ipv4Addr::from(source).to_string();
    let udp = |source: &str, port, length| {
        from.frame(source, 17, &Udp::new(1024, port).payload(length)).build()
    };
    let syn =
        |source: &str, port| from.frame(source, 6, &Tcp::new(4000, port).flags(2).build()).build();
    let mut random = fastrand::Rng::with_seed(1);
    let frames = (0..FRAMES).map(|_| match random.u32(..100) {
        0..50 => udp("203.0.113.9", 53, 400),
        50..62 => syn(&of(0xc633_6400 | random.u32(..8)), 443),
        62..70 => udp("203.0.113.66", 123, 60),
        70..78 => udp(&of(0xc633_6580 | random.u32(..6)), 27015, 100),
        78..84 => udp(&of(0xc612_4000 | random.u32(..250)), 53, 60),
        84..98 => syn(&of(0x0a00_0000 | random.u32(..60_000)), 443),
        _ => from.frame("203.0.113.7", 6, &[0; 4]).build(),
    });
    frames.collect()
}
