//! What the daemon itself takes while a flood runs and somebody looks at it.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use limiter_user::api::View;
use serde::Serialize;

use crate::{
    daemon::Daemon,
    host::Host,
    http::{self, METRICS},
    net::{ATTACKER4, IFACE, SERVER4},
    program::cpus,
    send::{Load, send},
    wire::{Ipv4, Udp},
};

/// Until the flood is what the daemon shows, which is the last ten seconds.
const HEAD_START: Duration = Duration::from_secs(12);
const SECONDS: u32 = 10;

/// What it came to.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Watched {
    /// Addresses that the flood comes from.
    pub sources: u32,
    /// Packets of it that came to the program, each second.
    pub received_per_second: f64,
    /// Processor time of the daemon, as a part of one CPU.
    pub cpu_share: f64,
    /// Samples of packets that it took, each second.
    pub samples_per_second: f64,
    /// Samples that it lost.
    pub samples_lost: u64,
    /// Longest time that the page waited for its figures.
    pub page_ms: f64,
    /// Longest time that the metrics took.
    pub metrics_ms: f64,
    /// Time series among them.
    pub series: usize,
}

/// Floods a daemon on every CPU, from so many addresses, while the page is open
/// and the metrics are read each second.
///
/// # Panics
/// Without root.
#[must_use]
pub fn watch(sources: u32) -> Watched {
    let [server, attacker] = [(); 2].map(|()| Host::new());
    server.connect(IFACE, &attacker, IFACE);
    server.ip(&format!("addr add {SERVER4}/24 dev {IFACE}"));
    attacker.ip(&format!("addr add {ATTACKER4}/24 dev {IFACE}"));
    let mut daemon = Daemon::start(&server, &format!("--iface {IFACE}"));
    let frames = frames(&server, &attacker, sources);
    let stop = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..cpus())
        .map(|_| {
            let (stop, frames) = (Arc::clone(&stop), frames.clone());
            let load = Load { frames, count: u64::MAX, per_second: 10_000_000 };
            attacker.spawn(move || send(IFACE, &load, || stop.load(Ordering::Relaxed)))
        })
        .collect();
    sleep(HEAD_START);

    let read = |path: &str| {
        let start = Instant::now();
        let answer = http::get(&server, METRICS, path);
        assert_eq!(answer.status, 200, "{path}");
        (answer.body, start.elapsed().as_secs_f64() * 1e3)
    };
    let pid = daemon.pid();
    let (start, used, before) = (Instant::now(), processor_time(pid), received(&daemon));
    let (mut page_ms, mut metrics_ms, mut page, mut metrics) =
        (0.0, 0.0, String::new(), String::new());
    for second in 1..=SECONDS {
        let (body, ms) = read("/page.json");
        (page, page_ms) = (body, f64::max(page_ms, ms));
        let (body, ms) = read("/metrics");
        (metrics, metrics_ms) = (body, f64::max(metrics_ms, ms));
        sleep(Duration::from_secs(second.into()).saturating_sub(start.elapsed()));
    }
    let used = processor_time(pid).saturating_sub(used);
    let (packets, time) = (received(&daemon) - before, start.elapsed());
    stop.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.join().expect("a sender").expect("sending");
    }
    let view: View = serde_json::from_str(&page).expect("a view");
    Watched {
        sources,
        received_per_second: packets as f64 / time.as_secs_f64(),
        cpu_share: used.as_secs_f64() / time.as_secs_f64(),
        samples_per_second: view.top.samples as f64 / view.top.window_seconds,
        samples_lost: view.top.lost,
        page_ms,
        metrics_ms,
        series: metrics.lines().filter(|line| !line.starts_with('#')).count(),
    }
}

/// Datagrams from 10.0.0.0 and what follows.
fn frames(server: &Host, attacker: &Host, sources: u32) -> Vec<Vec<u8>> {
    let [to, from] = [server, attacker].map(|host| host.hardware_address(IFACE));
    let datagram = Udp::new(4000, 53).payload(18);
    let frame = |number: u32| {
        let source = std::net::Ipv4Addr::from(0x0a00_0000 | number).to_string();
        Ipv4::new(&source, SERVER4).next(17, &datagram).ethernet(to, from).build()
    };
    (0..sources).map(frame).collect()
}

fn received(daemon: &Daemon) -> u64 {
    daemon.stats().totals.received.packets
}

/// Of a process, in user space and in the kernel, since its start: proc(5).
fn processor_time(pid: u32) -> Duration {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the daemon");
    // The name may hold anything, parentheses too.
    let (_, fields) = line.rsplit_once(')').expect("a name");
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|it| it.parse::<u64>().expect("ticks"))
        .sum();
    Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second()).expect("Hz")
}
