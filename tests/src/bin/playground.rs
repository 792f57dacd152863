//! A flood, a server, a polite client: first without the shield, then with it.
//!
//! Everything happens in network namespaces of this process, which vanish with
//! it. It ends by itself within a minute.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::{JoinHandle, sleep},
    time::{Duration, Instant},
};

use limiter_tests::{
    daemon::Daemon,
    host::Host,
    net::{ATTACKER4, IFACE, Net, SERVER4},
    send::{Load, Sent, send},
    web::{Client, Outcome, PORT, Server, quantile, summary},
    wire::{Ipv4, Tcp},
};
use limiter_user::api::Stats;

/// Before the flood starts, and after it started until the shield goes up.
const CALM: u32 = 4;
const UNSHIELDED: u32 = 10;
const RECOVERING: u32 = 5;
const SHIELDED: u32 = 12;
const LINE: Duration = Duration::from_secs(1);
/// SYN packets per second: a hundredth of what one attacker on a fast link can
/// send, and enough.
const FLOOD: u64 = 20_000;
/// Source ports of the flood.
const PORTS: u16 = 4096;
const REQUESTS: u32 = 20;
/// Connections that the server holds while they are being opened.
const BACKLOG: u32 = 1024;

fn main() -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        eprintln!("playground: it makes network namespaces and needs root; run it with sudo");
        return ExitCode::FAILURE;
    }
    // Whatever hangs, this ends.
    std::thread::spawn(|| {
        sleep(Duration::from_secs(58));
        eprintln!("playground: gave up after 58 s");
        std::process::exit(1);
    });
    if play() {
        ExitCode::SUCCESS
    } else {
        eprintln!("playground: the shield did not do what it should");
        ExitCode::FAILURE
    }
}

fn play() -> bool {
    println!(
        "A web server, a polite client ({REQUESTS} requests/s, each over a new connection), and\n\
         an attacker who sends {FLOOD} SYN packets/s from one address that never answers, all\n\
         in network namespaces of this process. The server has room for {BACKLOG} half-open\n\
         connections, gives them up after 3 s, and uses no SYN cookies, which would save it\n\
         from this one kind of flood and no other.\n"
    );
    let net = Net::new();
    net.server.sysctl("net/ipv4/tcp_syncookies", "0");
    net.server.sysctl("net/ipv4/tcp_synack_retries", "1");
    // Above the listener's own, or the kernel would keep a share free for peers
    // that it knows from before.
    net.server.sysctl("net/ipv4/tcp_max_syn_backlog", "4096");
    let _server = Server::start(&net.server, BACKLOG);
    let client = Client::start(&net.client, SERVER4.parse().expect("an address"), REQUESTS);

    println!(
        "{:>4}  {:<18} {:>5} {:>6} {:>9} {:>9}   {:>12} {:>10}",
        "s", "", "ok", "failed", "p50", "p99", "flood sent/s", "dropped/s"
    );
    let mut clock = Clock { start: Instant::now(), seconds: 0 };
    for _ in 0..CALM {
        clock.tick();
        line(&clock, "calm", &client.take(), 0, 0);
    }
    let flood = Flood::start(&net);
    let mut without = Vec::new();
    for _ in 0..UNSHIELDED {
        clock.tick();
        let outcomes = client.take();
        line(&clock, "flood, no shield", &outcomes, flood.sent_lately(), 0);
        without.extend(outcomes);
    }
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE}"));
    println!("      limiterd --iface {IFACE}");
    let mut dropped = 0;
    let mut shielded = |phase: &str, clock: &mut Clock| {
        clock.tick();
        let outcomes = client.take();
        let now = daemon.stats().totals.dropped.packets;
        line(clock, phase, &outcomes, flood.sent_lately(), now - dropped);
        dropped = now;
        outcomes
    };
    // Half-open connections and requests from before have to come to an end.
    for _ in 0..RECOVERING {
        let _outcomes = shielded("flood, recovering", &mut clock);
    }
    let mut with = Vec::new();
    for _ in 0..SHIELDED {
        with.extend(shielded("flood, shield on", &mut clock));
    }
    let sent = flood.finish();
    let rest = client.finish();
    with.extend(rest);
    let stats = daemon.stats();
    report(&without, &with, &sent, &stats);
    let ended = daemon.stop();
    ended.status.success() && good(&without, &with, &stats)
}

/// Ticks once a second, however long the work between the ticks takes.
struct Clock {
    start: Instant,
    seconds: u32,
}

impl Clock {
    fn tick(&mut self) {
        self.seconds += 1;
        sleep((self.start + LINE * self.seconds).saturating_duration_since(Instant::now()));
    }
}

/// The flood, in a thread of the attacker's.
struct Flood {
    stop: Arc<AtomicBool>,
    attacker: Host,
    seen: AtomicU64,
    thread: JoinHandle<std::io::Result<Sent>>,
}

impl Flood {
    fn start(net: &Net) -> Self {
        // An address of the attacker's network that answers nobody: the
        // server's SYN-ACKs go to its hardware address and no further.
        net.attacker.ip(&format!("addr del {ATTACKER4}/24 dev {IFACE}"));
        // Each SYN from another port, or the server would take it for a
        // repetition of the one before.
        let [server, attacker] =
            [&net.server, &net.attacker].map(|host| host.hardware_address(IFACE));
        let frames = (0..PORTS).map(|port| {
            Ipv4::new(ATTACKER4, SERVER4)
                .next(6, &Tcp::new(1024 + port, PORT).flags(0x02).build())
                .ethernet(server, attacker)
                .build()
        });
        let load = Load { frames: frames.collect(), count: FLOOD * 60, per_second: FLOOD };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let seen = AtomicU64::new(net.attacker.packets(IFACE).sent);
        let thread = net.attacker.spawn(move || send(IFACE, &load, || stopped.load(SeqCst)));
        Self { stop, attacker: net.attacker.clone(), seen, thread }
    }

    fn sent_lately(&self) -> u64 {
        let now = self.attacker.packets(IFACE).sent;
        now - self.seen.swap(now, SeqCst)
    }

    fn finish(self) -> Sent {
        self.stop.store(true, SeqCst);
        self.thread.join().expect("the flood").expect("the generator")
    }
}

fn line(clock: &Clock, phase: &str, outcomes: &[Outcome], sent: u64, dropped: u64) {
    let (times, failed) = summary(outcomes);
    println!(
        "{:>4}  {phase:<18} {:>5} {failed:>6} {:>9} {:>9}   {sent:>12} {dropped:>10}",
        clock.seconds,
        times.len(),
        latency(&times, 500),
        latency(&times, 990),
    );
}

fn latency(times: &[Duration], thousandths: usize) -> String {
    if times.is_empty() {
        return "-".into();
    }
    format!("{:.1} ms", quantile(times, thousandths).as_secs_f64() * 1e3)
}

fn success(outcomes: &[Outcome]) -> f64 {
    let (times, _) = summary(outcomes);
    times.len() as f64 / outcomes.len().max(1) as f64
}

fn report(without: &[Outcome], with: &[Outcome], sent: &Sent, stats: &Stats) {
    println!("\n{:<24} {:>10} {:>10}", "the polite client", "no shield", "shield on");
    println!(
        "{:<24} {:>9.1}% {:>9.1}%",
        "requests answered",
        100.0 * success(without),
        100.0 * success(with)
    );
    for (name, thousandths) in [("p50", 500), ("p99", 990), ("slowest", 1000)] {
        let latency = |outcomes| latency(&summary(outcomes).0, thousandths);
        println!("{name:<24} {:>10} {:>10}", latency(without), latency(with));
    }
    println!("\nthe flood: {} packets sent in {:.1} s", sent.frames, sent.time.as_secs_f64());
    println!("since the shield went up:");
    for reason in &stats.reasons {
        println!("{:>10} packets  {:<6} {}", reason.packets, reason.verdict, reason.reason);
    }
    println!(
        "\nOn a real interface:   sudo limiterd --iface eth0        (Ctrl-C ends it)\n\
         To look first:         sudo limiterd --iface eth0 --observe\n\
         While it runs:         sudo limiterctl stats\n\
         To be rid of it:       sudo limiterctl detach, or sudo limiterd --detach"
    );
}

/// Whether the shield was worth it: the client was hurt without it, not with
/// it, and it was the flood that was dropped.
fn good(without: &[Outcome], with: &[Outcome], stats: &Stats) -> bool {
    let dropped = stats.totals.dropped.packets;
    success(without) < 0.9 && success(with) >= 0.99 && dropped > FLOOD * u64::from(SHIELDED) / 2
}
