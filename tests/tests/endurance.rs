//! A daemon under everything at once, for long: memory stays flat, counters add
//! up, and nothing of ours gets into trouble.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use limiter_tests::{
    daemon::Daemon,
    mutate::Mutator,
    net::{IFACE, Net, SERVER4},
    send::{Load, send},
    web::{Client, Server, summary},
    wire::{Ipv4, Ipv6, Tcp, Udp},
};

/// Frames of one kind.
const FRAMES: usize = 20_000;
const PER_SECOND: u64 = 60_000;

fn duration() -> Duration {
    let is_set = |name| std::env::var_os(name).is_some();
    Duration::from_secs(match (is_set("LIMITER_LONG"), is_set("LIMITER_QUICK")) {
        (true, _) => 30 * 60,
        (_, true) => 10,
        _ => 60,
    })
}

/// Random sources of both families, one source that sends SYNs, and packets
/// with faults of every kind, in turn.
fn everything() -> Vec<Vec<u8>> {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut mutator = Mutator::new(7, 100_000);
    let datagram = Udp::new(4000, 9).payload(64);
    let syn = Tcp::new(4000, 80).flags(0x02).build();
    let one = Ipv4::new("198.18.0.3", SERVER4).next(6, &syn).build();
    (0..FRAMES)
        .map(|n| match n % 4 {
            0 => {
                let [a, b, c] = [(); 3].map(|()| rng.u8(..));
                let source = format!("{}.{a}.{b}.{c}", rng.u8(1..=223));
                Ipv4::new(&source, SERVER4).next(17, &datagram).build()
            }
            1 => {
                let source = format!("2001:db8:{:x}:{:x}::1", rng.u16(..), rng.u16(..));
                Ipv6::new(&source, "2001:db8:1::1").next(17, &datagram).build()
            }
            2 => one.clone(),
            _ => mutator.packet(),
        })
        // What the link cannot carry would not be counted.
        .filter(|frame| frame.len() <= 1514)
        .collect()
}

fn resident_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("the daemon");
    let pages: u64 = text.split(' ').nth(1).expect("pages").parse().expect("a number");
    pages * rustix::param::page_size() as u64
}

fn kernel_log() -> Vec<String> {
    let output = Command::new("dmesg").output().expect("dmesg");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn a_mixed_flood_changes_nothing_but_counters() {
    let log_before = kernel_log();
    let net = Net::new();
    let _server = Server::start(&net.server, 1024);
    let mut daemon = Daemon::start(&net.server, &format!("--iface {IFACE}"));
    let memory = daemon.status().memory;
    let received_before = daemon.stats().totals.received.packets;
    let handed_before = net.handed_to_server();
    let client = Client::start(&net.client, SERVER4.parse().expect("an address"), 20);

    let stop = Arc::new(AtomicBool::new(false));
    let (start, until) = (Instant::now(), Arc::clone(&stop));
    let flood = net.attacker.spawn(move || {
        let frames = everything();
        let mut sent = 0;
        while !until.load(Relaxed) {
            // Each is bounded in time by itself.
            let load = Load { frames: frames.clone(), count: u64::MAX, per_second: PER_SECOND };
            sent += send(IFACE, &load, || until.load(Relaxed)).expect("the generator").frames;
        }
        sent
    });
    // Warm: what is allocated once is.
    std::thread::sleep(Duration::from_secs(5));
    let resident = resident_bytes(daemon.pid());
    let mut received = 0;
    while start.elapsed() < duration() {
        std::thread::sleep(Duration::from_secs(1));
        let stats = daemon.stats();
        let totals = stats.totals;
        assert!(totals.received.packets > received, "the flood has ended");
        received = totals.received.packets;
        assert_eq!(totals.received.packets, totals.passed.packets + totals.dropped.packets);
        let by_reason: u64 = stats.reasons.iter().map(|reason| reason.packets).sum();
        assert_eq!(by_reason, totals.received.packets, "every packet has one reason");
    }
    stop.store(true, Relaxed);
    let sent = flood.join().expect("the flood");
    let outcomes = client.finish();
    std::thread::sleep(Duration::from_millis(500));

    let status = daemon.status();
    assert_eq!((status.health.as_str(), &status.problems), ("ok", &Vec::new()));
    assert_eq!(status.memory, memory, "the maps grew");
    let grown = resident_bytes(daemon.pid()).saturating_sub(resident);
    assert!(grown < 8 << 20, "the daemon grew by {grown} bytes");
    let stats = daemon.stats();
    println!(
        "{sent} frames in {:.0} s; {}",
        start.elapsed().as_secs_f64(),
        serde_json::to_string(&stats.reasons).expect("JSON")
    );
    for trouble in ["map_full", "contended", "internal"] {
        assert!(stats.reasons.iter().all(|it| it.reason != trouble), "{trouble}: {stats:?}");
    }
    for reason in ["within_limit", "source_rate", "malformed", "not_ip", "neighbour"] {
        assert!(stats.reasons.iter().any(|it| it.reason == reason), "no {reason}: {stats:?}");
    }
    let received = stats.totals.received.packets - received_before;
    assert_eq!(received, net.handed_to_server() - handed_before, "a packet was not counted");
    // A bridge keeps what is addressed to itself.
    assert!(received > sent * 9 / 10, "{received} of {sent} frames");

    let (times, failed) = summary(&outcomes);
    assert_eq!(failed, 0, "the polite client lost {failed} of {}", outcomes.len());
    assert!(times.len() as u64 > 15 * duration().as_secs());
    let log = kernel_log();
    for line in log.iter().filter(|line| !log_before.contains(line)) {
        for sign in ["WARNING", "BUG", "bpf", "BPF", "XDP", "rcu", "Call Trace"] {
            assert!(!line.contains(sign), "the kernel complained: {line}");
        }
    }
    assert!(daemon.stop().status.success());
}
