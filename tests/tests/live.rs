//! Limits that change while packets come: each holds from then on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use limiter_tests::{
    daemon::Daemon,
    host::Host,
    net::{IFACE, Net, SERVER4},
    send::{Load, Sent, send},
    wire::{Ipv4, Udp},
};

const FILE: &str = "/run/limiterd.toml";
/// Sources of the flood, in one /24.
const SOURCES: u64 = 4;
const PER_SECOND: u64 = 20_000;
/// For what a change still lets through of what was leased before.
const SETTLED: Duration = Duration::from_millis(300);
const WINDOW: Duration = Duration::from_millis(1000);

fn apply(host: &Host, daemon: &Daemon, text: &str) {
    let text = text.to_owned();
    host.call(move || std::fs::write(FILE, text)).expect("a file");
    let _ = daemon.ask(&format!("config apply {FILE}"));
}

/// A policy with this said of it.
fn policy(said: &str) -> String {
    format!("[[policy]]\nname = \"all\"\n{said}\n")
}

struct Flood {
    stop: Arc<AtomicBool>,
    sender: Option<std::thread::JoinHandle<std::io::Result<Sent>>>,
    /// Bytes of a frame.
    length: u64,
}

impl Flood {
    fn start(net: &Net) -> Self {
        let [server, attacker] =
            [&net.server, &net.attacker].map(|host| host.hardware_address(IFACE));
        let frame = |n: u64| {
            let frame = Ipv4::new(&format!("198.51.100.{}", n + 1), SERVER4);
            let frame = frame.next(17, &Udp::new(4000, 9).payload(100));
            frame.ethernet(server, attacker).build()
        };
        let frames: Vec<_> = (0..SOURCES).map(frame).collect();
        let length = frames[0].len() as u64;
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&stop);
        let load = Load { frames, count: PER_SECOND * 60, per_second: PER_SECOND };
        let sender = net.attacker.spawn(move || send(IFACE, &load, || ended.load(SeqCst)));
        Self { stop, sender: Some(sender), length }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let _sent = self.sender.take().map(std::thread::JoinHandle::join);
    }
}

/// Packets per second that passed, that were dropped and that would have been.
fn rates(daemon: &Daemon) -> [f64; 3] {
    let count = || (Instant::now(), daemon.policy("all"));
    let (start, before) = count();
    sleep(WINDOW);
    let (end, after) = count();
    let seconds = (end - start).as_secs_f64();
    [0, 1, 2].map(|at| (after[at] - before[at]) as f64 / seconds)
}

/// Every step changes one thing under the same flood; what passes is what the
/// new limit says, within what the pauses of the two readings take.
#[test]
fn each_change_holds_from_then_on() {
    let net = Net::new();
    let open = policy("mode = \"off\"");
    net.server.call({
        let open = open.clone();
        move || std::fs::write(FILE, open).expect("a file")
    });
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE} --config {FILE}"));
    let flood = Flood::start(&net);
    let bytes = |packets: u64| packets * flood.length;
    let prefixes = |ipv4: u8| format!("[sources]\nipv4_prefix = {ipv4}\n\n");
    let all = PER_SECOND;
    for (text, passes) in [
        (policy("rate = \"500/s\"\nburst = 50"), 500 * SOURCES),
        // Raised, and lowered again.
        (policy("rate = \"2k/s\"\nburst = 200"), 2000 * SOURCES),
        (policy("rate = \"100/s\"\nburst = 10"), 100 * SOURCES),
        (policy("rate = \"10M/s\"\nburst = 100000"), all),
        (policy("rate = \"200/s\"\nburst = 20\nstrict = true"), 200 * SOURCES),
        // What counts as one source.
        (prefixes(24) + &policy("rate = \"500/s\"\nburst = 50"), 500),
        (prefixes(32) + &policy("rate = \"500/s\"\nburst = 50"), 500 * SOURCES),
        // The wider prefix, and its length: .1, .2 and .3 share a /30 with .0.
        (policy("per_prefix = { rate = \"800/s\", burst = 80 }"), 800),
        (policy("per_prefix = { ipv4 = 30, rate = \"800/s\", burst = 80 }"), 1600),
        (
            policy("rate = \"300/s\"\nburst = 30\nper_prefix = { rate = \"800/s\", burst = 80 }"),
            800,
        ),
        // Everybody.
        (policy("total = { rate = \"700/s\", burst = 70 }"), 700),
        (policy("total = { rate = \"3k/s\", burst = 300 }"), 3000),
        // Bytes, at each level.
        (
            policy(&format!("bandwidth = \"{}B/s\"\nbandwidth_burst = \"14kB\"", bytes(400))),
            400 * SOURCES,
        ),
        (
            policy(&format!(
                "per_prefix = {{ bandwidth = \"{}B/s\", bandwidth_burst = \"14kB\" }}",
                bytes(900)
            )),
            900,
        ),
        (
            policy(&format!(
                "total = {{ bandwidth = \"{}B/s\", bandwidth_burst = \"14kB\" }}",
                bytes(900)
            )),
            900,
        ),
        // Modes.
        (policy("rate = \"500/s\"\nburst = 50\nmode = \"off\""), all),
        (policy("rate = \"500/s\"\nburst = 50"), 500 * SOURCES),
    ] {
        apply(&net.server, &daemon, &text);
        sleep(SETTLED);
        let [passed, dropped, would_drop] = rates(&daemon);
        println!("{passes}: {passed:.0} passed, {dropped:.0} dropped: {}", text.replace('\n', " "));
        // A sender that is late sends less than all.
        let least = if passes == all { 0.7 } else { 0.9 };
        let range = passes as f64 * least..=passes as f64 * 1.1;
        assert!(range.contains(&passed), "{passed:.0} of {passes} passed: {text}");
        assert!(would_drop < 1.0, "{text}");
        assert!((passes == all) == (dropped < 1.0), "{dropped:.0} dropped: {text}");
    }
    // Observing: all of it passes, and what would not is told.
    apply(&net.server, &daemon, &policy("rate = \"500/s\"\nburst = 50\nmode = \"observe\""));
    sleep(SETTLED);
    let [passed, dropped, would_drop] = rates(&daemon);
    assert!(passed > all as f64 * 0.7 && dropped < 1.0, "{passed:.0} {dropped:.0}");
    let kept = passed - would_drop;
    assert!((1800.0..=2200.0).contains(&kept), "{kept:.0} within the limit");
}
