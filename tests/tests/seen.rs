//! What is seen of the traffic: who, what, why and how much, within the bounds
//! that it says.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader},
    net::Ipv4Addr,
    process::Stdio,
    sync::mpsc,
    time::Duration,
};

use limiter_tests::{
    daemon::Daemon,
    host::{Running, binary, stderr, text},
    net::{IFACE, Net, SERVER4},
    seed,
    senders::{Senders, flood},
    wire::Udp,
};
use limiter_user::api::{Event, Events, SampledPacket, Stats, Top, What};

const CONFIG: &str = r#"
[[policy]]
name = "web"
match = { proto = "tcp", ports = [80] }
rate = "10/s"
burst = 10

[[policy]]
name = "rest"
mode = "observe"
rate = "10/s"
burst = 10
"#;
const FILE: &str = "/run/limiterd.toml";
/// Packets per second, of two sources or more, each of which is sampled: those
/// of one source come more than a timer tick apart.
const SHOWN_ALL: u64 = 150;

fn configured(net: &Net, config: &'static str) -> Daemon {
    net.server.call(move || std::fs::write(FILE, config)).expect("a file");
    Daemon::start(&net.server, &format!("--iface {IFACE} --config {FILE}"))
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> T {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What `limiterctl events` shows with these options.
fn events(daemon: &Daemon, options: &str) -> Vec<SampledPacket> {
    let text = daemon.ask(&format!("-o ndjson events -n 10000 {options}"));
    let packets = text.lines().map(|line| match json::<Event>(line).what {
        What::Packet(packet) => packet,
        other => panic!("{other:?}"),
    });
    packets.collect()
}

/// Samples are taken twenty times a second.
fn settle() {
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn events_say_who_what_and_why() {
    let net = Net::new();
    let daemon = configured(&net, CONFIG);
    let _ = daemon.ask("ban add 203.0.113.9 --for 1h");
    let from = Senders::of(&net);
    // The bridge on the way takes the outer tag off.
    let tagged = from.frame("203.0.113.9", 17, &Udp::new(7, 123).payload(32)).vlan(12).vlan(13);
    let tagged = tagged.build();
    let frames = vec![from.syn("198.51.100.1"), from.udp("198.51.100.2"), tagged];
    flood(&net, frames, 300, SHOWN_ALL);
    settle();

    let web = events(&daemon, "--policy web");
    let expected = SampledPacket {
        verdict: "drop".into(),
        reason: "source_rate".into(),
        policy: Some("web".into()),
        interface: IFACE.into(),
        source: Some("198.51.100.1".into()),
        destination: Some(SERVER4.into()),
        kind: Some("tcp-syn".into()),
        protocol: Some("tcp".into()),
        source_port: Some(4000),
        destination_port: Some(80),
        flags: Some("SYN".into()),
        vlan: None,
        length: web[0].length,
        weight: 1,
        bytes: None,
    };
    // A limit of 10/s with a burst of 10: of 100 in 2 s, some 30 pass.
    assert!(web.len() > 60 && web.iter().all(|packet| *packet == expected), "{web:?}");
    let observed = events(&daemon, "--verdict would-drop");
    assert!(observed.len() > 60, "{observed:?}");
    for packet in &observed {
        assert_eq!(packet.verdict, "would_drop");
        assert_eq!(packet.policy.as_deref(), Some("rest"));
        assert_eq!(packet.source.as_deref(), Some("198.51.100.2"));
        assert_eq!(packet.destination_port, Some(53));
    }
    let banned = events(&daemon, "--reason banned");
    assert_eq!(banned.len(), 100);
    assert!(banned.iter().all(|packet| packet.vlan == Some(12) && packet.policy.is_none()));
    assert!(banned.iter().all(|packet| packet.length == 14 + 4 + 20 + 8 + 32));

    for (options, count) in [
        ("--src 203.0.113.0/24", 100),
        ("--src 203.0.113.9 --dport 123 --proto udp", 100),
        ("--proto 17 --reason banned", 100),
        ("--src 192.0.2.0/24", 0),
        ("--dst 198.18.0.1 --reason banned --iface eth0", 100),
        ("--dport 124 --reason banned", 0),
        ("--proto icmp", 0),
    ] {
        assert_eq!(events(&daemon, options).len(), count, "{options}");
    }
    let passed = events(&daemon, "--verdict pass --src 198.51.100.0/24");
    assert!(passed.len() >= 20 && passed.iter().all(|packet| packet.reason == "within_limit"));
    for (options, code, word) in [
        ("--reason nonsense", 3, "source_rate"),
        ("--policy nonsense", 3, "web"),
        ("--verdict maybe", 3, "would_drop"),
        ("--src 10.0.0.1/8", 6, "10.0.0.0/8"),
        ("-n 0", 6, "10000"),
    ] {
        let output = daemon.ctl(&format!("events {options}"));
        let told = stderr(&output);
        assert!(output.status.code() == Some(code) && told.contains(word), "{options}: {told}");
    }
    // For people: one line each, in words that are also options.
    let table = daemon.ask("events -n 5 --reason banned");
    assert_eq!(table.lines().count(), 5, "{table}");
    assert!(table.lines().all(|line| line.contains("drop") && line.contains("vlan 12")), "{table}");
}

/// What a flood of one kind shows does not hide another.
#[test]
fn a_flood_hides_nothing_rare() {
    let net = Net::new();
    let daemon = configured(&net, CONFIG);
    let _ = daemon.ask("ban add 203.0.113.9 --for 1h");
    let from = Senders::of(&net);
    flood(&net, vec![from.udp("203.0.113.9")], 3, SHOWN_ALL);
    let mut frames = vec![from.syn("198.51.100.1"); 20_000];
    frames.push(from.udp("203.0.113.9"));
    flood(&net, frames, 200_010, 100_000);
    settle();
    let rare = events(&daemon, "--reason banned");
    assert_eq!(rare.len(), 3 + 10, "{rare:?}");
    assert!(rare.iter().all(|packet| packet.weight == 1));
    let events: Events = json(&daemon.ask("-o json events -n 10000 --reason source_rate"));
    let (count, stats) = (events.events.len(), daemon.stats());
    assert!((500..=1024).contains(&count), "{count}");
    assert_eq!(events.lost, 0);
    let dropped = of_reason(&stats, "source_rate", "drop");
    assert!(dropped > 150_000, "{dropped}");
}

fn of_reason(stats: &Stats, reason: &str, verdict: &str) -> u64 {
    let wanted = stats.reasons.iter().find(|it| it.reason == reason && it.verdict == verdict);
    wanted.map_or(0, |it| it.packets)
}

#[test]
fn following_goes_on_through_a_restart() {
    let net = Net::new();
    let daemon = configured(&net, CONFIG);
    let from = Senders::of(&net);
    let mut command = net.server.command(binary("limiterctl"));
    command.args(["-o", "ndjson", "events", "--follow", "--reason", "source_rate"]);
    let mut follower = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let stdout = follower.child().stdout.take().expect("its output");
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let send_and_see = |source: &str| loop {
        // The first of 10/s pass.
        flood(&net, vec![from.syn(source)], 13, 1000);
        let line = lines.recv_timeout(Duration::from_secs(10)).expect("a line in time");
        let event: Event = json(&line);
        let What::Packet(packet) = event.what else { panic!("{line}") };
        if packet.source.as_deref() == Some(source) {
            return event.number;
        }
    };
    let first = send_and_see("198.51.100.1");
    assert!(first < send_and_see("198.51.100.2"));

    let _ = daemon.stop();
    std::thread::sleep(Duration::from_secs(1));
    let daemon = configured(&net, CONFIG);
    let _ = send_and_see("198.51.100.3");
    follower.signal(rustix::process::Signal::TERM);
    let told = stderr(&follower.wait());
    assert!(told.contains("waiting for it"), "{told}");
    drop(daemon);
}

#[test]
fn a_capture_is_read_by_tshark() {
    let net = Net::new();
    let daemon = configured(&net, CONFIG);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("drops.pcapng").display().to_string();
    let mut command = net.server.command(binary("limiterctl"));
    command.args(["capture", "-w", &file, "--count", "40", "--seconds", "20"]);
    let capture = Running::start(command.stderr(Stdio::piped()));
    std::thread::sleep(Duration::from_millis(500));
    let from = Senders::of(&net);
    let large = from.frame("198.51.100.2", 17, &Udp::new(9, 53).payload(1000)).build();
    flood(&net, vec![from.syn("198.51.100.1"), large], 120, SHOWN_ALL);
    let output = capture.wait();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("40 packets written"), "{}", stderr(&output));

    let fields = "frame.len frame.cap_len frame.interface_name frame.comment ip.src tcp.dstport \
                  udp.dstport _ws.malformed";
    let fields: String = fields.split_whitespace().map(|field| format!(" -e {field}")).collect();
    let output = net.server.run(&format!("tshark -r {file} -T fields{fields}"));
    let lines = text(&output.stdout);
    assert_eq!(lines.lines().count(), 40, "{lines}");
    let (mut tcp, mut udp) = (0, 0);
    for line in lines.lines() {
        let columns: Vec<_> = line.split('\t').collect();
        match columns.as_slice() {
            [length, captured, IFACE, comment, "198.51.100.1", "80", "", ""] => {
                assert_eq!(length, captured);
                assert_eq!(*comment, "drop source_rate policy=web weight=1");
                tcp += 1;
            }
            ["1042", "256", IFACE, comment, "198.51.100.2", "", "53", ""] => {
                assert_eq!(*comment, "would-drop source_rate policy=rest weight=1");
                udp += 1;
            }
            _ => panic!("{line}"),
        }
    }
    assert!(tcp > 10 && udp > 10, "{tcp} {udp}");
    let time = net.server.run(&format!("tshark -r {file} -T fields -e frame.time_epoch -c 1"));
    let time: f64 = text(&time.stdout).trim().parse().expect("seconds");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("now");
    assert!((now.as_secs_f64() - time).abs() < 60.0, "{time}");
    // What is captured is private, and nothing is overwritten unasked.
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&file).expect("a file"));
    assert_eq!(mode & 0o777, 0o600);
    let again = daemon.ctl(&format!("capture -w {file} --seconds 1"));
    assert_eq!(again.status.code(), Some(8), "{}", stderr(&again));
    assert!(stderr(&again).contains("--force"));
    let again = daemon.ctl(&format!("capture -w {file} --seconds 1 --force"));
    assert!(again.status.success(), "{}", stderr(&again));
    let output = net.server.run(&format!("tshark -r {file}"));
    assert_eq!(text(&output.stdout), "");
    let nowhere = daemon.ctl("capture -w /nonexistent/file --seconds 1");
    assert!(!nowhere.status.success() && stderr(&nowhere).contains("/nonexistent/file"));
}

/// A hundred thousand sources, the n-th with a share of 1/n: every rate that is
/// shown lies as near to the exact one as it says, and who sends most is found.
#[test]
fn top_is_within_its_bounds() {
    const SOURCES: usize = 100_000;
    const PACKETS: usize = 300_000;
    let net = Net::new();
    let daemon = configured(&net, CONFIG);
    let from = Senders::of(&net);
    let mut random = fastrand::Rng::with_seed(seed());
    let sums: Vec<f64> = (1..=SOURCES)
        .scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        })
        .collect();
    let all = sums[SOURCES - 1];
    let mut exact = BTreeMap::<Ipv4Addr, u64>::new();
    let frames: Vec<_> = (0..PACKETS)
        .map(|_| {
            let drawn = random.f64() * all;
            let at = sums.partition_point(|sum| *sum < drawn);
            let source = Ipv4Addr::from(0x0a00_0000 + u32::try_from(at).expect("a number"));
            *exact.entry(source).or_default() += 1;
            from.udp(&source.to_string())
        })
        .collect();
    // Counters are read once a second: the window is full, and holds it all.
    std::thread::sleep(Duration::from_secs(11));
    let sent = flood(&net, frames, PACKETS as u64, 100_000);
    assert!(sent.time < Duration::from_secs(8), "{sent:?}: the window would not hold it");
    settle();
    std::thread::sleep(Duration::from_secs(1));
    let top: Top = json(&daemon.ask("-o json top --once -n 1000"));
    // What was lost before the shield has no bound there.
    let lost = net.lost_before_server() as f64;
    assert!(lost < PACKETS as f64 / 100.0, "{lost} were lost");

    let mut outside = Vec::new();
    let mut shown = BTreeMap::<Ipv4Addr, f64>::new();
    for it in &top.sources {
        let source: Ipv4Addr = it.source.trim_end_matches("/32").parse().expect("an address");
        let rates = &it.rates;
        let packets = (rates.passed_pps + rates.would_drop_pps) * top.window_seconds;
        *shown.entry(source).or_default() += packets;
        let bound = rates.error_bound * top.window_seconds;
        let of_source = exact.get(&source).copied().unwrap_or_default() as f64;
        if (packets - of_source).abs() > bound + lost {
            outside.push(format!("{source}: {packets} ± {bound}, not {of_source}"));
        }
    }
    assert!(outside.is_empty(), "{outside:?}");
    let mut ranked: Vec<_> = exact.iter().collect();
    ranked.sort_by_key(|(_, packets)| std::cmp::Reverse(**packets));
    let first: BTreeSet<_> = top.sources.iter().take(20).map(|it| it.source.clone()).collect();
    for (source, packets) in &ranked[..10] {
        let named = format!("{source}");
        assert!(
            first.iter().any(|it| it.trim_end_matches("/32") == named),
            "{source} with {packets} is not among {first:?}"
        );
    }
    // Sums of policies and of ports are known as well.
    let rest = top.policies.iter().find(|it| it.policy.as_deref() == Some("rest"));
    let rates = rest.expect("a policy").rates;
    let packets = (rates.passed_pps + rates.would_drop_pps) * top.window_seconds;
    assert!((packets / PACKETS as f64 - 1.0).abs() < 0.05, "{packets}");
    let port = &top.ports[0];
    assert_eq!((port.protocol.as_str(), port.port), ("udp", Some(53)));
    let packets = (port.rates.passed_pps + port.rates.would_drop_pps) * top.window_seconds;
    let bound = port.rates.error_bound * top.window_seconds;
    assert!((packets - PACKETS as f64).abs() <= bound + lost, "{packets} ± {bound}");
}

#[test]
fn history_adds_up_to_the_counters() {
    let net = Net::new();
    let daemon = configured(&net, CONFIG);
    std::thread::sleep(Duration::from_millis(1500));
    let before = daemon.stats();
    let from = Senders::of(&net);
    flood(&net, vec![from.syn("198.51.100.1"), from.udp("198.51.100.2")], 40_000, 20_000);
    std::thread::sleep(Duration::from_millis(2200));
    let (history, after) = (daemon.history(), daemon.stats());
    let since =
        |reason, verdict| of_reason(&after, reason, verdict) - of_reason(&before, reason, verdict);
    assert_eq!(history.step_seconds, 1);
    for (series, verdict) in [(&history.dropped, "drop"), (&history.would_drop, "would_drop")] {
        let sum: f64 = series["source_rate"].iter().sum();
        let counted = since("source_rate", verdict) as f64;
        assert!((sum / counted - 1.0).abs() < 0.1, "{verdict}: {sum}, not {counted}");
        assert_eq!(series["source_rate"].len(), history.passed.len());
    }
}
