//! Configurations on the real daemon: tried, confirmed, taken back, and seen by
//! packets as one.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use limiter_tests::{
    daemon::{Daemon, ctl},
    host::{Host, stderr},
    net::{ATTACKER4, CLIENT4, IFACE, Net, SERVER4},
    send::{Load, send},
    wire::{Ipv4, Tcp, Udp},
};
use limiter_user::{
    api::{ConfigRequest, Stats},
    client::Client,
};
use rustix::process::Signal;

const FILE: &str = "/run/limiterd.toml";
const OPEN: &str = "\
[[policy]]
name = \"open\"
mode = \"off\"
";
/// Nobody gets through, not even by what was tracked before.
const SHUT: &str = "\
[[policy]]
name = \"open\"
rate = \"1/day\"
burst = 1
strict = true

[[deny]]
prefix = \"198.18.0.0/24\"
";

fn write(host: &Host, path: &'static str, text: &str) {
    let text = text.to_owned();
    host.call(move || std::fs::write(path, text)).expect("a file");
}

fn start(net: &Net, text: &str) -> Daemon {
    write(&net.server, FILE, text);
    Daemon::start(&net.server, &format!("--iface {IFACE} --config {FILE}"))
}

/// Whether the client's connection lives.
fn lives(net: &Net) -> bool {
    net.client.try_run(&format!("ping -q -c 1 -W 1 {SERVER4}")).status.success()
}

fn code(daemon: &Daemon, arguments: &str) -> Option<i32> {
    daemon.ctl(arguments).status.code()
}

#[test]
fn what_nobody_confirms_ends_although_the_daemon_is_dead() {
    let net = Net::new();
    let daemon = start(&net, OPEN);
    assert!(lives(&net));
    write(&net.server, "/run/shut.toml", SHUT);
    // Without --force it is refused: the operator sits in that network.
    let over_ssh = |arguments: &str| {
        let mut command = net.server.command(limiter_tests::host::binary("limiterctl"));
        command.env("SSH_CONNECTION", format!("{CLIENT4} 50000 {SERVER4} 22"));
        command.args(arguments.split_whitespace()).output().expect("limiterctl")
    };
    let refused = over_ssh("config apply /run/shut.toml --confirm 3s");
    assert_eq!(refused.status.code(), Some(8), "{}", stderr(&refused));
    assert!(stderr(&refused).contains(CLIENT4), "{}", stderr(&refused));
    assert!(lives(&net));

    let applied = over_ssh("config apply /run/shut.toml --confirm 3s --force");
    let start = Instant::now();
    assert_eq!(applied.status.code(), Some(0), "{}", stderr(&applied));
    let _ = daemon.kill();
    assert!(!lives(&net), "the new rules are not in force");
    assert!(start.elapsed() < Duration::from_secs(3), "the test is too slow");
    std::thread::sleep(Duration::from_millis(3200).saturating_sub(start.elapsed()));
    assert!(lives(&net), "the rules before are not in force again");
}

#[test]
fn a_restart_before_the_confirmation_takes_the_change_back() {
    for late in [false, true] {
        let net = Net::new();
        let daemon = start(&net, OPEN);
        // The operator has written the file itself, and applies it.
        write(&net.server, FILE, SHUT);
        let time = if late { "1s" } else { "60s" };
        let _ = daemon.ask(&format!("config apply {FILE} --confirm {time} --force"));
        assert!(!lives(&net));
        let _ = daemon.kill();
        if late {
            std::thread::sleep(Duration::from_millis(1100));
        }
        let arguments = format!("--iface {IFACE} --config {FILE}");
        let daemon = Daemon::start(&net.server, &arguments);
        assert!(lives(&net), "late: {late}");
        assert!(!daemon.status().confirm.pending);
        let export = daemon.ask("config export");
        assert!(export.contains("mode = \"off\"") && !export.contains("deny"), "{export}");
        let log = stderr(&daemon.stop());
        assert!(log.contains("nobody confirmed"), "{log}");
        // What is confirmed by nobody is taken back once: then the file counts.
        let daemon = Daemon::start(&net.server, &arguments);
        assert!(!lives(&net));
        assert!(daemon.ask("config export").contains("deny"));
    }
}

#[test]
fn changes_are_confirmed_taken_back_or_refused_meanwhile() {
    let net = Net::new();
    let daemon = start(&net, OPEN);
    write(&net.server, "/run/shut.toml", SHUT);
    let first = daemon.status().generation;
    for arguments in ["config confirm", "config rollback"] {
        assert_eq!(code(&daemon, arguments), Some(3), "{arguments}");
    }

    let _ = daemon.ask("config apply /run/shut.toml --confirm 60s --force");
    assert!(!lives(&net));
    let status = daemon.status();
    assert!(status.confirm.pending && status.confirm.deadline_seconds.is_some_and(|it| it <= 60));
    assert_eq!(status.generation, first + 1);
    for arguments in [
        "config apply /run/shut.toml --force",
        "config apply /run/shut.toml --confirm 5s --force",
        "limit set open --mode observe",
        "config save",
    ] {
        let output = daemon.ctl(arguments);
        assert_eq!(output.status.code(), Some(7), "{arguments}: {}", stderr(&output));
        assert!(stderr(&output).contains("config rollback"), "{}", stderr(&output));
    }
    // Bans go on, and are not taken back.
    let _ = daemon.ask("ban add 203.0.113.7");
    let _ = daemon.ask("config rollback");
    assert!(lives(&net));
    assert_eq!(daemon.status().generation, first);
    assert!(daemon.ask("ban list").contains("203.0.113.7"));

    let _ = daemon.ask("config apply /run/shut.toml --confirm 1s --force");
    let _ = daemon.ask("config confirm");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!lives(&net), "what was confirmed is not in force");
    assert!(daemon.ask("ban list").contains("203.0.113.7"));
    let _ = daemon.ask(&format!("config apply {FILE}"));
    assert!(lives(&net));

    // In its own time, with the daemon alive.
    let _ = daemon.ask("config apply /run/shut.toml --confirm 1s --force");
    assert!(!lives(&net));
    std::thread::sleep(Duration::from_millis(1100));
    assert!(lives(&net));
    assert!(!daemon.status().confirm.pending);
    assert_eq!(code(&daemon, "config confirm"), Some(3));
    assert!(!daemon.ask("config export").contains("deny"));
}

#[test]
fn the_file_is_read_again_when_a_signal_says_so() {
    let net = Net::new();
    let mut daemon = start(&net, OPEN);
    let mode = |daemon: &Daemon| daemon.limits().policies[0].mode.clone();
    let reloads = |daemon: &mut Daemon, expected: &str| {
        daemon.signal(Signal::HUP);
        let start = Instant::now();
        while mode(daemon) != expected {
            assert!(start.elapsed() < Duration::from_secs(5), "the file was not read");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let observing = OPEN.replace("\"off\"", "\"observe\"\nrate = 5");
    write(&net.server, FILE, &observing);
    assert!(daemon.status().config.changed_on_disk);
    reloads(&mut daemon, "observe");
    assert!(!daemon.status().config.changed_on_disk);

    // Replaced by a rename, as editors do.
    write(&net.server, "/run/new.toml", OPEN);
    let _ = net.server.run(&format!("mv /run/new.toml {FILE}"));
    reloads(&mut daemon, "off");

    // Replaced behind a link to a link, as orchestrators do.
    for (directory, text) in [("a", observing.as_str()), ("b", OPEN)] {
        let _ = net.server.run(&format!("mkdir /run/{directory}"));
        let path: &'static str =
            if directory == "a" { "/run/a/file.toml" } else { "/run/b/file.toml" };
        write(&net.server, path, text);
    }
    let _ = net.server.run("ln -s a /run/data");
    let _ = net.server.run(&format!("ln -sf data/file.toml {FILE}"));
    reloads(&mut daemon, "observe");
    let _ = net.server.run("ln -sfn b /run/data");
    assert!(daemon.status().config.changed_on_disk);
    reloads(&mut daemon, "off");

    // A bad file leaves in force what was, and status says so.
    write(&net.server, FILE, "[[policy]]\nnam = 5\n");
    daemon.signal(Signal::HUP);
    let start = Instant::now();
    while daemon.status().config.last_reload_successful {
        assert!(start.elapsed() < Duration::from_secs(5), "status says nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = daemon.status();
    assert_eq!((mode(&daemon).as_str(), status.health.as_str()), ("off", "degraded"));
    assert!(status.problems[0].contains("nam"), "{:?}", status.problems);
    assert!(lives(&net));
    write(&net.server, FILE, &observing);
    reloads(&mut daemon, "observe");
    assert_eq!(daemon.status().health, "ok");
}

/// What was changed at run time is written to the file, and its comments stay.
#[test]
fn a_save_keeps_the_comments() {
    let net = Net::new();
    let text = format!("# ours\n[daemon]\ninterfaces = \"{IFACE}\" # one\n\n# all of it\n{OPEN}");
    let daemon = start(&net, &text);
    let _ = daemon.ask("limit set open --mode enforce --rate 7/s --burst 70");
    let _ = daemon.ask("config save");
    let saved = String::from_utf8(net.server.run(&format!("cat {FILE}")).stdout).expect("text");
    for line in ["# ours", "\"eth0\" # one", "# all of it", "rate = \"7/s\"", "burst = 70"] {
        assert!(saved.contains(line), "{line} is not in {saved}");
    }
    assert!(!daemon.status().config.changed_on_disk);
    let differences = daemon.ask(&format!("config diff {FILE}"));
    assert!(differences.contains("nothing changes"), "{differences}");
    let _ = daemon.stop();
    let daemon = Daemon::start(&net.server, &format!("--config {FILE}"));
    assert_eq!(daemon.limits().policies[0].source.rate_per_second, Some(7.0));
}

/// Whether the protection outlives the daemon is the configuration's to say.
#[test]
fn what_happens_at_a_stop_is_configured() {
    let net = Net::new();
    let shut = "[[policy]]\nname = \"all\"\nrate = \"1/day\"\nburst = 1\nstrict = true\n";
    for (stop, is_kept) in
        [("", true), ("on_stop = \"keep\"", true), ("on_stop = \"detach\"", false)]
    {
        let daemon = start(&net, &format!("[daemon]\n{stop}\n\n{shut}"));
        let _ = (lives(&net), lives(&net));
        assert!(!lives(&net));
        let output = daemon.stop();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(!lives(&net), is_kept, "{stop}");
    }
    let daemon = start(&net, shut);
    let _ = daemon.kill();
    let mut detach = net.server.command(limiter_tests::host::binary("limiterd"));
    assert!(detach.arg("--detach").output().expect("limiterd").status.success());
    assert!(lives(&net));
}

/// A policy keeps its bucket and its counters by its name, wherever it stands
/// and whatever comes and goes around it.
#[test]
fn policies_move_and_keep_their_buckets() {
    const BURST: u64 = 50;
    let net = Net::new();
    let strict = "rate = \"1/day\"\nburst = 50\nstrict = true\n";
    let dns = format!(
        "[[policy]]\nname = \"dns\"\nmatch = {{ proto = \"udp\", ports = 53 }}\n{strict}\n"
    );
    let other = |name: &str, port: u16| {
        let matches = format!("match = {{ proto = \"udp\", ports = {port} }}");
        format!("[[policy]]\nname = \"{name}\"\n{matches}\n{strict}\n")
    };
    let daemon = start(&net, &(dns.clone() + &other("ntp", 123)));
    let frame = Ipv4::new(ATTACKER4, SERVER4).next(17, &Udp::new(4000, 53).payload(64));
    let [server, attacker] = [&net.server, &net.attacker].map(|host| host.hardware_address(IFACE));
    let frame = frame.ethernet(server, attacker).build();
    let send_some = |count: u64| {
        let load = Load { frames: vec![frame.clone()], count, per_second: 1000 };
        net.attacker.call(move || send(IFACE, &load, || false)).expect("the generator");
    };
    let configurations = [
        other("ntp", 123) + &dns,
        other("a", 1) + &other("b", 2) + &dns + &other("c", 3),
        dns.clone(),
        (0..62).map(|n| other(&format!("p{n}"), 1000 + n)).collect::<String>() + &dns,
        dns.clone() + &other("ntp", 123),
    ];
    let mut sent = 0;
    for text in configurations {
        send_some(6);
        sent += 6;
        write(&net.server, "/run/new.toml", &text);
        let _ = daemon.ask("config apply /run/new.toml");
        assert_eq!(daemon.policy("dns"), [sent, 0, 0]);
    }
    send_some(BURST);
    sent += BURST;
    assert_eq!(daemon.policy("dns"), [BURST, sent - BURST, 0]);
    // Gone, and back: its counters go on, and its bucket too.
    write(&net.server, "/run/new.toml", &other("ntp", 123));
    let _ = daemon.ask("config apply /run/new.toml");
    write(&net.server, "/run/new.toml", &dns);
    let _ = daemon.ask("config apply /run/new.toml");
    send_some(5);
    assert_eq!(daemon.policy("dns"), [BURST, sent + 5 - BURST, 0]);
    // Another name begins anew.
    write(&net.server, "/run/new.toml", &dns.replace("\"dns\"", "\"names\""));
    let _ = daemon.ask("config apply /run/new.toml");
    send_some(5);
    assert_eq!(daemon.policy("names"), [5, 0, 0]);
}

/// Under a flood two configurations take turns, as different as can be in every
/// table: each packet meets one or the other, never some of both, and none
/// passes by them.
#[test]
fn a_change_is_seen_as_one_under_a_flood() {
    const ODD: &str = "/run/odd.toml";
    const EVEN: &str = "/run/even.toml";
    let changes = if std::env::var_os("LIMITER_QUICK").is_some() { 100 } else { 1_000 };
    let net = Net::new();
    let policies = |good: &str, matches: &str| {
        format!(
            "[[policy]]\nname = \"{good}\"\nmatch = {{ {matches} }}\nmode = \"off\"\n\n\
             [[policy]]\nname = \"mixed\"\nrate = \"1/day\"\nburst = 1\n"
        )
    };
    // The flood satisfies each by its own tables and not one by the other's.
    let odd = policies("odd", &format!("sources = \"{ATTACKER4}\", ports = \"50-60\""));
    let even =
        policies("even", &format!("destinations = \"{SERVER4}\", proto = \"udp\", vlans = 0"));
    let unlike = "[[allow]]\nprefix = \"203.0.113.7\"\n\n";
    write(&net.server, ODD, &(unlike.to_owned() + &odd));
    write(&net.server, EVEN, &even);
    let daemon = start(&net, &odd);
    let frame = Ipv4::new(ATTACKER4, SERVER4).next(17, &Udp::new(4000, 53).payload(64));
    let [server, attacker] = [&net.server, &net.attacker].map(|host| host.hardware_address(IFACE));
    let frame = frame.ethernet(server, attacker).build();
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    let load = Load { frames: vec![frame], count: 50_000_000, per_second: 300_000 };
    let flood = net.attacker.spawn(move || send(IFACE, &load, || ended.load(SeqCst)));

    let texts = [odd, even];
    let statistics = net.server.call(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let client = Client::new("/run/limiterd/ctl.sock".as_ref());
            let mut before: Option<Stats> = None;
            for n in 0..changes {
                let request = ConfigRequest {
                    config: texts[(n + 1) % 2].clone(),
                    name: "flood".into(),
                    ..ConfigRequest::default()
                };
                client.apply(&request).await.expect("an applied configuration");
                let stats = client.stats(None, None).await.expect("counters");
                if let Some(before) = &before {
                    let sum = |stats: &Stats| stats.totals.received.packets;
                    assert!(sum(&stats) >= sum(before), "counters went back");
                }
                before = Some(stats);
            }
            before.expect("counters")
        })
    });
    stop.store(true, SeqCst);
    let sent = flood.join().expect("the generator").expect("the generator");
    let stats = daemon.stats();
    let reasons: Vec<_> = stats.reasons.iter().map(|it| (it.reason.as_str(), it.packets)).collect();
    println!("{changes} changes, {} packets: {reasons:?}", sent.frames);
    // By each policy, also by that which is not in force now.
    assert!(statistics.totals.received.packets > 1000);
    let [off, other] = ["unlimited", "neighbour"].map(|name| {
        reasons.iter().find(|(reason, _)| *reason == name).map_or(0, |(_, packets)| *packets)
    });
    assert_eq!(off + other, stats.totals.received.packets, "{reasons:?}");
    assert!(off >= sent.frames, "{off} of {}", sent.frames);
    assert_eq!(daemon.policy("mixed"), [0, 0, 0]);
    // None met no policy at all.
    let named = if changes % 2 == 0 { "odd" } else { "even" };
    let last = daemon.policy(named)[0];
    let text = if named == "odd" { EVEN } else { ODD };
    let _ = daemon.ask(&format!("config apply {text}"));
    let other = daemon.policy(if named == "odd" { "even" } else { "odd" })[0];
    assert!(last > 0 && other > 0 && last + other == off, "{last} and {other} of {off}");
}

/// What explain says is what happens.
#[test]
fn an_explanation_is_what_happens() {
    let net = Net::new();
    let text = "\
        [[policy]]\nname = \"dns\"\nmatch = { proto = \"udp\", ports = 53 }\n\
        rate = \"1/day\"\nburst = 3\nstrict = true\n\n\
        [[policy]]\nname = \"rest\"\nmode = \"off\"\n\n\
        [[deny]]\nprefix = \"192.0.2.0/24\"\n\n\
        [[allow]]\nprefix = \"192.0.2.9\"\n";
    let daemon = start(&net, text);
    let _ = daemon.ask("ban add 203.0.113.0/24");
    let [server, attacker] = [&net.server, &net.attacker].map(|host| host.hardware_address(IFACE));
    let send_one = |source: &str, protocol: u8, segment: &[u8]| {
        let frame = Ipv4::new(source, SERVER4).next(protocol, segment);
        let frame = frame.ethernet(server, attacker).build();
        let load = Load { frames: vec![frame], count: 1, per_second: 1 };
        net.attacker.call(move || send(IFACE, &load, || false)).expect("the generator");
    };
    let reasons = |daemon: &Daemon| {
        let stats = daemon.stats();
        stats.reasons.into_iter().map(|it| (it.reason, it.packets)).collect::<Vec<_>>()
    };
    let explained = |packet: &str| -> serde_json::Value {
        serde_json::from_str(&daemon.ask(&format!("-o json explain {packet}"))).expect("JSON")
    };
    let dns = Udp::new(4000, 53).payload(40);
    let syn = Tcp::new(4000, 80).flags(2).build();
    for (packet, source, protocol, segment, verdict, reason, policy, left) in [
        (
            "198.51.100.1 --proto udp --dport 53",
            "198.51.100.1",
            17,
            &dns,
            "pass",
            "within_limit",
            Some("dns"),
            Some(3),
        ),
        (
            "198.51.100.1 --proto udp --dport 53",
            "198.51.100.1",
            17,
            &dns,
            "pass",
            "within_limit",
            Some("dns"),
            Some(2),
        ),
        (
            "198.51.100.1 --proto udp --dport 53",
            "198.51.100.1",
            17,
            &dns,
            "pass",
            "within_limit",
            Some("dns"),
            Some(1),
        ),
        (
            "198.51.100.1 --proto udp --dport 53",
            "198.51.100.1",
            17,
            &dns,
            "drop",
            "source_rate",
            Some("dns"),
            Some(0),
        ),
        (
            "198.51.100.1 --syn --dport 80",
            "198.51.100.1",
            6,
            &syn,
            "pass",
            "unlimited",
            Some("rest"),
            None,
        ),
        ("192.0.2.8 --proto udp --dport 53", "192.0.2.8", 17, &dns, "drop", "denied", None, None),
        ("192.0.2.9 --proto udp --dport 53", "192.0.2.9", 17, &dns, "pass", "allowed", None, None),
        ("203.0.113.5 --syn", "203.0.113.5", 6, &syn, "drop", "banned", None, None),
    ] {
        // As often as one likes: it costs nothing.
        let before = reasons(&daemon);
        for _ in 0..3 {
            let told = explained(packet);
            assert_eq!(
                (&told["verdict"], &told["reason"]),
                (&verdict.into(), &reason.into()),
                "{told}"
            );
            assert_eq!(told["policy"].as_str(), policy, "{told}");
            assert_eq!(told["limit"]["tokens_now"].as_u64(), left, "{told}");
        }
        assert_eq!(reasons(&daemon), before, "an explanation was counted");
        send_one(source, protocol, segment);
        let counted = |reasons: &[(String, u64)]| {
            reasons.iter().find(|(name, _)| name == reason).map_or(0, |(_, packets)| *packets)
        };
        let start = Instant::now();
        while counted(&reasons(&daemon)) == counted(&before) {
            assert!(start.elapsed() < Duration::from_secs(5), "{packet}: {:?}", reasons(&daemon));
        }
    }
    for (arguments, code) in [
        ("explain nonsense", 6),
        ("explain 192.0.2.1 --dst ::1", 6),
        ("explain 192.0.2.1 --proto quic", 6),
        ("explain 192.0.2.1 --iface nope0", 3),
        ("explain 192.0.2.1 --len 5", 6),
    ] {
        assert_eq!(ctl(&net.server, arguments).status.code(), Some(code), "{arguments}");
    }
}
