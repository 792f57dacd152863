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
const POLITE: u64 = 12_000;
const FLOOD: u64 = 48_000;
const FRAMES: usize = 20_000;

/// The network, the shield, and those who flood it.
pub struct Scene {
    /// The hosts.
    pub net: Net,
    /// The shield, with its bans.
    pub daemon: Daemon,
    stop: Arc<AtomicBool>,
    senders: Vec<JoinHandle<()>>,
}

impl Scene {
    /// With a flood from the start.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn new() -> Self {
        let mut scene = Self::quiet();
        scene.flood();
        scene
    }

    /// Puts up the shield; those who are polite come, for a minute.
    ///
    /// # Panics
    /// Without root.
    #[must_use]
    pub fn quiet() -> Self {
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
        let mut scene = Self { net, daemon, stop: Arc::default(), senders: Vec::new() };
        scene.send(polite(Senders::of(&scene.net)), POLITE);
        scene
    }

    /// The flood begins, and ends after a minute.
    pub fn flood(&mut self) {
        self.send(flood(Senders::of(&self.net)), FLOOD);
    }

    fn send(&mut self, frames: Vec<Vec<u8>>, per_second: u64) {
        let load = Load { frames, count: u64::MAX, per_second };
        let stop = Arc::clone(&self.stop);
        self.senders.push(self.net.attacker.spawn(move || {
            // If it ends early, nothing is shown, which is seen.
            let _ = send(IFACE, &load, || stop.load(Ordering::Relaxed));
        }));
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
        for sender in self.senders.drain(..) {
            let _ = sender.join();
        }
    }
}

/// Many, each with little.
fn polite(from: Senders) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(1);
    let frames = (0..FRAMES).map(|_| match random.u32(..100) {
        0..30 => udp(from, &of(0xc612_4000 | random.u32(..250)), 53, 60),
        _ => syn(from, &of(0x0a00_0000 | random.u32(..60_000))),
    });
    frames.collect()
}

/// Most of it from one source, some from one that is banned, some from a few
/// that nobody stops yet.
fn flood(from: Senders) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(2);
    let frames = (0..FRAMES).map(|_| match random.u32(..100) {
        0..63 => udp(from, "203.0.113.9", 53, 400),
        63..78 => syn(from, &of(0xc633_6400 | random.u32(..8))),
        78..88 => udp(from, "203.0.113.66", 123, 60),
        88..98 => udp(from, &of(0xc633_6580 | random.u32(..6)), 27015, 100),
        _ => from.frame("203.0.113.7", 6, &[0; 4]).build(),
    });
    frames.collect()
}

fn of(source: u32) -> String {
    Ipv4Addr::from(source).to_string()
}

fn udp(from: Senders, source: &str, port: u16, length: u16) -> Vec<u8> {
    from.frame(source, 17, &Udp::new(1024, port).payload(length)).build()
}

fn syn(from: Senders, source: &str) -> Vec<u8> {
    from.frame(source, 6, &Tcp::new(4000, 443).flags(2).build()).build()
}
