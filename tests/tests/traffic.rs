//! Real floods against the real daemon, with a polite client beside them.

use std::{
    net::IpAddr,
    process::Stdio,
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::{Duration, Instant},
};

use limiter_tests::{
    daemon::{Daemon, ctl},
    host::{Host, Running, binary},
    net::{ATTACKER4, ATTACKER6, IFACE, Net, SERVER4, SERVER6},
    send::{Load, Sent, send},
    web::{self, Client, Server, summary},
    wire::{Frame, Ipv4, Ipv6, Tcp, Udp},
};

fn flood_seconds() -> u64 {
    if std::env::var_os("LIMITER_QUICK").is_some() { 2 } else { 4 }
}

/// A flood with a tool: for how long it sent.
type Flood = fn(&Net, u64) -> Duration;

/// Runs a tool on the attacker; says for how long its interface was sending at
/// the pace of a flood, at least so many packets in 20 ms, which is shorter
/// than the tool's life.
fn timed(net: &Net, pace: u64, line: &str) -> Duration {
    const STEP: Duration = Duration::from_millis(20);
    let mut words = line.split_whitespace();
    let mut command = net.attacker.command(words.next().expect("a program"));
    command.args(words).stdout(Stdio::null()).stderr(Stdio::null());
    let mut tool = Running::start(&mut command);
    let (mut sent, mut looked) = (net.attacker.packets(IFACE).sent, Instant::now());
    let (mut first, mut last) = (None, None);
    while tool.child().try_wait().expect("the tool").is_none() {
        std::thread::sleep(STEP);
        let (now, before) = (net.attacker.packets(IFACE).sent, looked);
        looked = Instant::now();
        if now >= sent + pace {
            first = first.or(Some(before));
            last = Some(looked);
        }
        sent = now;
    }
    match (first, last) {
        (Some(first), Some(last)) => last - first,
        _ => panic!("{line}: nothing was sent"),
    }
}

fn udp_flood(net: &Net, seconds: u64) -> Duration {
    let count = seconds * 8_000;
    timed(net, 20, &format!("hping3 --udp -q -p 9 -d 64 -i u100 -c {count} {SERVER4}"))
}

fn syn_flood(net: &Net, seconds: u64) -> Duration {
    let count = seconds * 8_000;
    timed(net, 20, &format!("hping3 -S -q -p {} -i u100 -c {count} {SERVER4}", web::PORT))
}

/// With -f, ping would wait for answers; this keeps its pace without any, a
/// packet per timer tick.
fn ping_flood(net: &Net, seconds: u64) -> Duration {
    timed(net, 2, &format!("ping -q -i 0.001 -w {seconds} {SERVER4}"))
}

fn ping_flood6(net: &Net, seconds: u64) -> Duration {
    timed(net, 2, &format!("ping -6 -q -i 0.001 -w {seconds} {SERVER6}"))
}

fn iperf(net: &Net, server: &str, seconds: u64) -> Duration {
    let mut serve = net.server.command("iperf3");
    let _server = Running::start(serve.args(["-s", "-1"]).stdout(Stdio::null()));
    wait_for_port(&net.server, 5201);
    timed(net, 20, &format!("iperf3 -c {server} -u -b 20M -l 200 -t {seconds}"))
}

fn udp_flood_iperf(net: &Net, seconds: u64) -> Duration {
    iperf(net, SERVER4, seconds)
}

fn udp_flood_iperf6(net: &Net, seconds: u64) -> Duration {
    iperf(net, SERVER6, seconds)
}

/// hping3 knows no IPv6.
fn syn_flood6(net: &Net, seconds: u64) -> Duration {
    let load = Load {
        frames: vec![addressed(net, Ipv6::new(ATTACKER6, SERVER6).next(6, &syn()))],
        count: seconds * 10_000,
        per_second: 10_000,
    };
    generate(&net.attacker, load).time
}

fn syn() -> Vec<u8> {
    Tcp::new(4000, web::PORT).flags(0x02).build()
}

fn udp4(net: &Net) -> Vec<u8> {
    addressed(net, Ipv4::new(ATTACKER4, SERVER4).next(17, &Udp::new(4000, 9).payload(64)))
}

/// A frame from the attacker to the server.
fn addressed(net: &Net, frame: Frame) -> Vec<u8> {
    let [server, attacker] = [&net.server, &net.attacker].map(|host| host.hardware_address(IFACE));
    frame.ethernet(server, attacker).build()
}

fn generate(host: &Host, load: Load) -> Sent {
    host.call(move || send(IFACE, &load, || false)).expect("the generator")
}

/// Checks that what was sent was seen by the shield, but for what was lost on
/// the way to it.
fn require_seen(net: &Net, seen: u64, sent: Sent) {
    let lost = net.lost_before_server();
    assert!(lost < sent.frames / 2, "{lost} frames were lost on the way");
    let arrived = sent.frames - lost..=sent.frames;
    assert!(arrived.contains(&seen), "{seen} of {} were seen, {lost} lost before", sent.frames);
}

fn wait_for_port(host: &Host, port: u16) {
    let listening = format!(":{port} ");
    for _ in 0..200 {
        let sockets = host.run("ss -Hltn").stdout;
        if String::from_utf8_lossy(&sockets).contains(&listening) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("nobody listens on port {port}");
}

/// Segments that a host has sent again.
fn retransmissions(host: &Host) -> u64 {
    let text = host.call(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
    let text = text.expect("counters");
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.split(' ').position(|name| name == "RetransSegs").expect("a name");
    values.split(' ').nth(at).expect("a value").parse().expect("a number")
}

fn server_address(six: bool) -> IpAddr {
    if six { SERVER6 } else { SERVER4 }.parse().expect("an address")
}

/// What the daemon has received and what was handed to its interface, at a
/// moment when nothing is under way.
fn received_and_handed(net: &Net, daemon: &Daemon) -> [u64; 2] {
    loop {
        let before = net.handed_to_server();
        std::thread::sleep(Duration::from_millis(100));
        let received = daemon.stats().totals.received.packets;
        if net.handed_to_server() == before {
            return [received, before];
        }
    }
}

/// One flood of one kind while a polite client fetches pages.
fn withstand(mode: &str, six: bool, (policy, rate): (&str, u64), flood: Flood) {
    let net = Net::new();
    let _server = Server::start(&net.server, 1024);
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE} --xdp-mode {mode}"));
    let status = daemon.status();
    assert_eq!(status.interfaces[0].mode, mode);
    let burst = rate / 10;
    let set = format!("limit set {policy} --rate {rate} --burst {burst}");
    let _answer = daemon.ask(&set);

    let [received_before, handed_before] = received_and_handed(&net, &daemon);

    let client = Client::start(&net.client, server_address(six), 20);
    std::thread::sleep(Duration::from_millis(300));
    let [passed_before, ..] = daemon.policy(policy);
    let time = flood(&net, flood_seconds());
    let [passed, dropped, would_drop] = daemon.policy(policy);
    let outcomes = client.finish();

    let (times, failed) = summary(&outcomes);
    assert_eq!(
        failed,
        0,
        "{mode} {policy}: the polite client lost {failed} of {} requests",
        outcomes.len()
    );
    assert!(times.len() as u64 >= 15 * flood_seconds(), "the polite client was hardly there");
    let again = retransmissions(&net.client) + retransmissions(&net.server);
    if policy != "tcp-syn" {
        assert_eq!(again, 0, "{mode} {policy}: segments had to be sent again");
    }

    // The client opens 20 connections per second beside a SYN flood.
    let polite = if policy == "tcp-syn" { 20.0 * time.as_secs_f64() } else { 0.0 };
    let admitted = (passed - passed_before) as f64 - polite;
    let ideal = burst as f64 + rate as f64 * time.as_secs_f64();
    println!(
        "{mode} {policy} IPv{}: {admitted} admitted of {ideal:.0}, {dropped} dropped",
        if six { 6 } else { 4 }
    );
    assert!(
        dropped > passed,
        "{mode} {policy}: that was no flood: {passed} passed, {dropped} dropped"
    );
    assert_eq!(would_drop, 0);
    assert!((0.95..=1.05).contains(&(admitted / ideal)), "{mode} {policy}: {admitted} of {ideal}");

    let totals = daemon.stats().totals;
    assert_eq!(totals.received.packets, totals.passed.packets + totals.dropped.packets);
    let [received, handed] = received_and_handed(&net, &daemon);
    assert_eq!(received - received_before, handed - handed_before, "{mode} {policy}: counts");
    assert!(daemon.stop().status.success());
}

#[test]
fn udp_floods_are_cut_to_their_rate() {
    for mode in ["native", "generic"] {
        // Far below the pace that hping3 keeps on a slow machine.
        withstand(mode, false, ("udp", 1_000), udp_flood);
        withstand(mode, false, ("udp", 2_000), udp_flood_iperf);
        withstand(mode, true, ("udp", 2_000), udp_flood_iperf6);
    }
}

#[test]
fn syn_floods_are_cut_to_their_rate() {
    for mode in ["native", "generic"] {
        withstand(mode, false, ("tcp-syn", 1_000), syn_flood);
        withstand(mode, true, ("tcp-syn", 2_000), syn_flood6);
    }
}

#[test]
fn ping_floods_are_cut_to_their_rate() {
    for mode in ["native", "generic"] {
        withstand(mode, false, ("icmp", 50), ping_flood);
        withstand(mode, true, ("icmp", 50), ping_flood6);
    }
}

/// A daemon that limits UDP to 1,000/s, burst 100. Other packets, such as the
/// kernel's own multicast reports, count elsewhere.
fn limited_udp(net: &Net, arguments: &str) -> Daemon {
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE} {arguments}"));
    let _answer = daemon.ask("limit set udp --rate 1k --burst 100");
    daemon
}

/// The generator knows what it has sent; the daemon counts the same.
#[test]
fn counters_equal_what_the_sender_sent() {
    let net = Net::new();
    let daemon = limited_udp(&net, "");
    let load = Load { frames: vec![udp4(&net)], count: 100_000, per_second: 50_000 };
    let frame_length = load.frames[0].len() as u64;
    let sent = generate(&net.attacker, load);
    let stats = daemon.stats();
    assert_eq!(sent.frames, 100_000);
    let [passed, dropped, _] = daemon.policy("udp");
    require_seen(&net, passed + dropped, sent);
    let policy = stats.policies.iter().find(|policy| policy.name == "udp").expect("the policy");
    let packets = policy.passed.packets + policy.dropped.packets;
    assert_eq!(policy.passed.bytes + policy.dropped.bytes, packets * frame_length);
    let ideal = 100.0 + 1_000.0 * sent.time.as_secs_f64();
    assert!((0.95..=1.05).contains(&(passed as f64 / ideal)), "{passed} of {ideal}");
}

/// Sources that nobody can limit one by one: each sends a packet or two. Those
/// who were there before notice nothing.
#[test]
fn a_flood_of_spoofed_sources_is_cut_to_the_cap() {
    for mode in ["native", "generic"] {
        let net = Net::new();
        let _server = Server::start(&net.server, 1024);
        let gate = "--new-sources 1k --untracked 2k";
        let arguments = format!("--iface {IFACE} --xdp-mode {mode} {gate}");
        let daemon = Daemon::start(&net.server, &arguments);
        let client = Client::start(&net.client, server_address(false), 20);
        std::thread::sleep(Duration::from_millis(500));
        let frames = (0..50_000u32).map(|n| {
            let [_, b, c, d] = n.wrapping_mul(2_654_435_761).to_be_bytes();
            let source = format!("{}.{b}.{c}.{d}", 1 + n % 223);
            addressed(&net, Ipv4::new(&source, SERVER4).next(17, &Udp::new(4000, 9).payload(18)))
        });
        let per_second = 50_000;
        let count = per_second * flood_seconds();
        let load = Load { frames: frames.collect(), count, per_second };
        let sent = generate(&net.attacker, load);
        let time = sent.time.as_secs_f64();
        let outcomes = client.finish();
        let (times, failed) = summary(&outcomes);
        assert_eq!(failed, 0, "{mode}: the polite client lost requests");
        assert!(times.len() as u64 >= 15 * flood_seconds());
        let stats = daemon.stats();
        let packets = |name: &str| -> u64 {
            stats.reasons.iter().filter(|it| it.reason == name).map(|it| it.packets).sum()
        };
        let (untracked, cut) = (packets("untracked"), packets("new_source_rate"));
        let [passed, dropped, _] = daemon.policy("udp");
        println!("{mode}: {} sent, {untracked} untracked, {passed} passed, {cut} cut", sent.frames);
        require_seen(&net, passed + dropped, sent);
        assert_eq!(cut, dropped);
        // The cap and its burst of a tenth of a second; buckets for 1,000/s.
        let cap = 200.0 + 2_000.0 * time + 128.0;
        assert!(untracked as f64 <= cap, "{mode}: {untracked} of {cap}");
        assert!(untracked as f64 >= 0.9 * 2_000.0 * time, "{mode}: {untracked} of {cap}");
        let tracked = (passed - untracked) as f64;
        // Each source that has a bucket comes again once the list is through.
        let again = 1.0 + (sent.frames / 50_000) as f64;
        let buckets = 1_000.0 + 1_000.0 * time + 128.0;
        assert!(tracked <= again * buckets, "{mode}: {tracked} of {buckets} sources");
    }
}

/// Bytes are limited as packets are.
#[test]
fn a_bandwidth_is_kept() {
    let net = Net::new();
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE}"));
    let _answer = daemon.ask("limit set udp --bandwidth 1MB/s --bandwidth-burst 100kB");
    let frame =
        addressed(&net, Ipv4::new(ATTACKER4, SERVER4).next(17, &Udp::new(1, 9).payload(958)));
    assert_eq!(frame.len(), 1000);
    let load = Load { frames: vec![frame], count: 15_000, per_second: 5_000 };
    let sent = generate(&net.attacker, load);
    let stats = daemon.stats();
    let policy = stats.policies.iter().find(|policy| policy.name == "udp").expect("the policy");
    let ideal = 1e5 + 1e6 * sent.time.as_secs_f64();
    let share = policy.passed.bytes as f64 / ideal;
    assert!((0.95..=1.05).contains(&share), "{} bytes of {ideal}", policy.passed.bytes);
    let cut = stats.reasons.iter().find(|it| it.reason == "source_bandwidth").expect("the reason");
    assert_eq!(cut.packets, policy.dropped.packets);
    require_seen(&net, policy.passed.packets + policy.dropped.packets, sent);
}

/// The limit is changed four times under one flood. Each takes effect, and at
/// no moment does more pass than the limits allow.
#[test]
fn limits_change_under_a_flood() {
    let net = Net::new();
    let daemon = limited_udp(&net, "");
    let load = Load { frames: vec![udp4(&net)], count: 40_000 * 8, per_second: 40_000 };
    static STOP: AtomicBool = AtomicBool::new(false);
    let flood = net.attacker.spawn(move || send(IFACE, &load, || STOP.load(SeqCst)));
    std::thread::sleep(Duration::from_millis(300));
    for (rate, burst) in [(5_000, 500), (500, 50), (20_000, 1_000), (100, 100)] {
        let _answer = daemon.ask(&format!("limit set udp --rate {rate} --burst {burst}"));
        let (start, [before, ..]) = (Instant::now(), daemon.policy("udp"));
        std::thread::sleep(Duration::from_millis(1_200));
        let ([after, ..], time) = (daemon.policy("udp"), start.elapsed().as_secs_f64());
        let (admitted, fair) = ((after - before) as f64, f64::from(rate) * time);
        println!("{rate}/s: {admitted} admitted, {fair:.0} fair");
        // What a larger limit has left in the bucket is at most one burst.
        assert!(admitted >= 0.95 * fair, "{rate}/s: {admitted} of {fair}");
        assert!(admitted <= 1.05 * fair + f64::from(burst), "{rate}/s: {admitted} of {fair}");
    }
    STOP.store(true, SeqCst);
    let sent = flood.join().expect("the flood").expect("the generator");
    let [passed, dropped, _] = daemon.policy("udp");
    require_seen(&net, passed + dropped, sent);
    assert_eq!(daemon.status().generation, 6);
}

/// A host that fetches at full speed is not harmed by the built-in profile.
#[test]
fn a_download_at_full_speed_loses_nothing() {
    for mode in ["native", "generic"] {
        let net = Net::new();
        // The shielded host fetches from the other.
        let _site = Server::start(&net.client, 1024);
        let daemon = Daemon::start(&net.server, &format!("--iface {IFACE} --xdp-mode {mode}"));
        let server: IpAddr = limiter_tests::net::CLIENT4.parse().expect("an address");
        let (bytes, time) = web::download(&net.server, server);
        println!("{mode}: {:.0} Mbit/s", bytes as f64 * 8e-6 / time.as_secs_f64());
        assert_eq!(bytes, 64 << 20);
        let totals = daemon.stats().totals;
        assert_eq!(totals.dropped.packets, 0, "{mode}: {:?}", daemon.stats().reasons);
        let [passed, ..] = daemon.policy("tcp");
        assert!(passed > 1_000, "{mode}: only {passed} packets: that was no download");
    }
}

#[test]
fn observing_drops_nothing_and_says_what_it_would() {
    let net = Net::new();
    let daemon = limited_udp(&net, "--observe");
    let load = Load { frames: vec![udp4(&net)], count: 20_000, per_second: 20_000 };
    let sent = generate(&net.attacker, load);
    let [passed, dropped, would_drop] = daemon.policy("udp");
    require_seen(&net, passed, sent);
    assert_eq!(dropped, 0);
    let ideal = sent.frames as f64 - 100.0 - 1_000.0 * sent.time.as_secs_f64();
    assert!((0.95..=1.05).contains(&(would_drop as f64 / ideal)), "{would_drop} of {ideal}");
    // That daemon never drops, whatever it is told.
    assert_eq!(daemon.limits().policies[0].mode, "observe");
    assert_eq!(daemon.ctl("limit set udp --mode enforce").status.code(), Some(6));
    // One policy can be off.
    let _answer = daemon.ask("limit set udp --mode off");
    let load = Load { frames: vec![udp4(&net)], count: 1_000, per_second: 20_000 };
    let sent = generate(&net.attacker, load);
    let [after, dropped, would_drop_after] = daemon.policy("udp");
    require_seen(&net, after - passed, sent);
    assert_eq!((dropped, would_drop_after), (0, would_drop));
    // And one policy can observe where the others enforce.
    drop(daemon);
    let daemon = limited_udp(&net, "");
    let _answer = daemon.ask("limit set udp --mode observe");
    let before = daemon.policy("udp");
    let load = Load { frames: vec![udp4(&net)], count: 5_000, per_second: 50_000 };
    let sent = generate(&net.attacker, load);
    let after = daemon.policy("udp");
    let [passed, dropped, would_drop] = [0, 1, 2].map(|at| after[at] - before[at]);
    require_seen(&net, passed, sent);
    assert_eq!(dropped, 0);
    assert!(would_drop > sent.frames / 2, "{would_drop} of {}", sent.frames);
}

/// What a daemon does that is killed under a flood: nothing passes unfiltered,
/// then, or while the next one starts.
#[test]
fn protection_outlives_a_killed_daemon() {
    let net = Net::new();
    let arguments = format!("--iface {IFACE} --rate 1k --burst 100");
    let daemon = Daemon::start(&net.server, &arguments);
    // Counts what the server's stack sees of the flood.
    let seen = || net.server.datagrams();
    let before = seen();
    let load = Load { frames: vec![udp4(&net)], count: 20_000 * 6, per_second: 20_000 };
    let start = Instant::now();
    let flood = net.attacker.spawn(move || send(IFACE, &load, || false));
    std::thread::sleep(Duration::from_secs(1));
    let killed = daemon.kill();
    assert!(killed.status.code().is_none());
    std::thread::sleep(Duration::from_secs(1));
    let daemon = Daemon::start(&net.server, &arguments);
    let sent = flood.join().expect("the flood").expect("the generator");
    let passed = (seen() - before) as f64;
    // Each start gives one burst.
    let most = 2.0 * 150.0 + 1_000.0 * start.elapsed().as_secs_f64();
    let least = 0.95 * 1_000.0 * sent.time.as_secs_f64();
    println!("{passed} of {} reached the stack, at most {most:.0} may", sent.frames);
    assert!((least..=most).contains(&passed), "{passed} reached the stack");
    let interface = &daemon.status().interfaces[0];
    assert_eq!((interface.mode.as_str(), interface.pinned), ("native", true));

    // Killed again, and taken off by hand.
    let _killed = daemon.kill();
    assert!(program_on(&net.server), "the shield is gone with its daemon");
    let detach =
        || net.server.command(binary("limiterd")).arg("--detach").output().expect("limiterd");
    assert!(detach().status.success());
    assert!(!program_on(&net.server), "the shield is still there");
    assert_eq!(net.server.left_over(), "");
    assert!(detach().status.success(), "a second time is no error");
}

fn program_on(host: &Host) -> bool {
    let output = host.run(&format!("ip link show {IFACE}")).stdout;
    String::from_utf8_lossy(&output).contains("prog/xdp")
}

#[test]
fn two_interfaces_have_counters_of_their_own() {
    let net = Net::new();
    net.server.connect("eth1", &net.attacker, "eth1");
    let daemon = limited_udp(&net, "--iface eth1");
    let load = Load { frames: vec![udp4(&net)], count: 5_000, per_second: 50_000 };
    let start = Instant::now();
    let sent = generate(&net.attacker, load.clone());
    let other = net.attacker.call(move || send("eth1", &load, || false)).expect("the generator");
    let of = |name: &str| -> limiter_user::api::Stats {
        serde_json::from_str(&daemon.ask(&format!("-o json stats --iface {name}"))).expect("stats")
    };
    let received = |name: &str| -> u64 {
        let policies = of(name).policies.into_iter().filter(|policy| policy.name == "udp");
        policies.map(|policy| policy.passed.packets + policy.dropped.packets).sum()
    };
    require_seen(&net, received(IFACE), sent);
    assert_eq!(received("eth1"), other.frames);
    // One source is one source on both: it gets one burst.
    let [passed, ..] = daemon.policy("udp");
    let most = 100.0 + 1_000.0 * start.elapsed().as_secs_f64() + 100.0;
    assert!((passed as f64) < most, "{passed} passed, {most} may");
    let answer = daemon.ask("detach");
    assert!(answer.contains(IFACE) && answer.contains("eth1"), "{answer}");
    let output = daemon.wait();
    assert!(output.status.success(), "the daemon ends by itself when it is detached");
    assert!(!program_on(&net.server));
    assert_eq!(net.server.left_over(), "");
}

#[test]
fn the_daemon_leaves_nothing_behind() {
    let net = Net::new();
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE}"));
    assert!(program_on(&net.server));
    assert!(daemon.stop().status.success());
    assert!(!program_on(&net.server));
    assert_eq!(net.server.left_over(), "");
    assert!(!ctl(&net.server, "status").status.success());
}
