//! Bans and allowed prefixes on the real daemon.

use std::time::{Duration, Instant};

use limiter_tests::{
    daemon::Daemon,
    host::{Host, stderr},
    net::{ATTACKER4, ATTACKER6, CLIENT4, IFACE, Net, SERVER4, SERVER6},
};
use limiter_user::api::{List, ListEntry};

const FILE: &str = "/run/limiterd.toml";
const CONFIG: &str = "[[policy]]\nname = \"open\"\nmode = \"off\"\n";

fn write(host: &Host, path: &'static str, text: String) {
    host.call(move || std::fs::write(path, text)).expect("a file");
}

fn start(net: &Net) -> Daemon {
    write(&net.server, FILE, CONFIG.into());
    Daemon::start(&net.server, &format!("--iface {IFACE} --config {FILE}"))
}

fn lives(net: &Net, six: bool) -> bool {
    let server = if six { SERVER6 } else { SERVER4 };
    net.attacker.try_run(&format!("ping -q -c 1 -W 1 {server}")).status.success()
}

fn entries(daemon: &Daemon, list: &str) -> Vec<ListEntry> {
    let list: List =
        serde_json::from_str(&daemon.ask(&format!("-o json {list} list"))).expect("JSON");
    list.entries
}

fn code(daemon: &Daemon, arguments: &str) -> (Option<i32>, String) {
    let output = daemon.ctl(arguments);
    (output.status.code(), stderr(&output))
}

#[test]
fn a_ban_ends_on_time_although_the_daemon_is_dead() {
    let net = Net::new();
    let daemon = start(&net);
    let _ = daemon.ask(&format!("ban add {ATTACKER4} {ATTACKER6} --for 3s --reason scan"));
    let start = Instant::now();
    let listed = entries(&daemon, "ban");
    assert_eq!(listed.len(), 2);
    for entry in &listed {
        assert!(entry.expires_in_seconds.is_some_and(|seconds| (1..=3).contains(&seconds)));
        assert_eq!((entry.reason.as_deref(), entry.origin.as_str()), (Some("scan"), "operator"));
        assert!(entry.created.is_some());
    }
    let _ = daemon.kill();
    assert!(!lives(&net, false) && start.elapsed() < Duration::from_secs(3));
    std::thread::sleep(Duration::from_millis(3100).saturating_sub(start.elapsed()));
    assert!(lives(&net, false) && lives(&net, true));
}

#[test]
fn allow_beats_ban_beats_policy_until_each_ends() {
    let net = Net::new();
    let daemon = start(&net);
    for six in [false, true] {
        let (attacker, around) =
            if six { (ATTACKER6, "2001:db8::/32") } else { (ATTACKER4, "198.18.0.0/24") };
        assert!(lives(&net, six));
        // The server's own addresses are in there.
        assert_eq!(code(&daemon, &format!("ban add {around}")).0, Some(8));
        let _ = daemon.ask(&format!("ban add {around} --force --for forever"));
        assert!(!lives(&net, six));
        let _ = daemon.ask(&format!("allow add {attacker} --for 1s"));
        assert!(lives(&net, six));
        std::thread::sleep(Duration::from_millis(1100));
        assert!(!lives(&net, six), "the exception has not ended");
        let _ = daemon.ask(&format!("allow add {around} --reason ours"));
        assert!(lives(&net, six));
        let banned = daemon.ctl(&format!("ban add {attacker}"));
        assert!(banned.status.success() && stderr(&banned).contains("allow beats ban"));
        assert!(lives(&net, six));
        let _ = daemon.ask(&format!("allow del {around}"));
        assert!(!lives(&net, six));
        let _ = daemon.ask(&format!("ban del {attacker} {around}"));
        assert!(lives(&net, six));
    }
    assert!(entries(&daemon, "ban").is_empty() && entries(&daemon, "allow").is_empty());
    // One address, however it is written.
    let _ = daemon.ask(&format!("ban add ::ffff:{ATTACKER4}"));
    assert!(!lives(&net, false));
    let _ = daemon.ask(&format!("ban del {ATTACKER4}/32"));
    assert!(lives(&net, false));
}

#[test]
fn a_list_of_many_is_taken_whole_or_not_at_all() {
    const MANY: u32 = 100_000;
    let net = Net::new();
    let daemon = start(&net);
    // Some of each sort, none of which is of the network here.
    let prefix = |n: u32| match n % 10 {
        0 => format!("2001:db8:{:x}:{:x}::/64", 0x1000 + n / 65_536, n % 65_536),
        1 => format!("2a00:{:x}:{:x}::/48", n / 65_536, n % 65_536),
        2 => format!("{}.{}.{}.0/24", 20 + n / 65_536, n / 256 % 256, n % 256),
        _ => format!("{}.{}.{}.7", 100 + n / 65_536, n / 256 % 256, n % 256),
    };
    let lines = (0..MANY).map(|n| format!("{} 2h list {n}\n", prefix(n))).collect::<String>();
    write(&net.server, "/run/bans", format!("# a comment\n\n{lines}"));
    let start = Instant::now();
    let _ = daemon.ask("ban import /run/bans");
    println!("{MANY} bans in {:.2} s", start.elapsed().as_secs_f64());
    let start = Instant::now();
    let stream = daemon.ask("-o ndjson ban list");
    println!("listed in {:.2} s", start.elapsed().as_secs_f64());
    assert_eq!(stream.lines().count(), MANY as usize);
    let first: ListEntry =
        serde_json::from_str(stream.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first.origin, "operator");
    for packet in ["101.0.7.7", "20.0.2.9", "2001:db8:1000:a::1:2", "2a00:0:b:9::1"] {
        let told = daemon.ask(&format!("-o json explain {packet}"));
        assert!(told.contains("\"banned\""), "{packet}: {told}");
    }
    assert!(lives(&net, false) && lives(&net, true));

    // They stay when the configuration changes.
    let _ = daemon.ask(&format!("config apply {FILE}"));
    assert_eq!(entries(&daemon, "ban").len(), MANY as usize);

    // What is exported is imported again.
    let exported = daemon.ask("ban export");
    assert_eq!(exported.lines().count(), MANY as usize);
    assert!(exported.contains("101.0.7.7 7") && exported.contains("list 65543"), "no such line");
    write(&net.server, "/run/exported", exported.clone());
    let prefixes: Vec<_> = exported.lines().filter_map(|line| line.split(' ').next()).collect();
    for some in prefixes.chunks(1000) {
        let _ = daemon.ask(&format!("ban del {}", some.join(" ")));
    }
    assert!(entries(&daemon, "ban").is_empty());
    let _ = daemon.ask("ban import /run/exported");
    let again = daemon.ask("ban export");
    let names = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    assert_eq!(names(&again), names(&exported));

    // One bad line, and nothing is taken.
    for (line, words, expected) in [
        ("192.0.2.7/24 1h", &["line 2", "write 192.0.2.0/24"][..], 6),
        ("192.0.2.7 soon", &["line 2", "'soon'"], 6),
        ("nonsense", &["line 2", "nonsense"], 6),
        ("0.0.0.0/0", &["everybody"], 8),
        ("127.0.0.0/8", &["127.0.0.1"], 8),
    ] {
        write(&net.server, "/run/bad", format!("192.0.2.1\n{line}\n192.0.2.3\n"));
        let (found, text) = code(&daemon, "ban import /run/bad");
        assert_eq!(found, Some(expected), "{line}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{line}: {text}");
    }
    assert_eq!(entries(&daemon, "ban").len(), MANY as usize);
    let (found, text) = code(&daemon, "ban del 101.0.7.7 192.0.2.1");
    assert!(found == Some(3) && text.contains("192.0.2.1 is not banned"), "{found:?} {text}");
    assert_eq!(entries(&daemon, "ban").len(), MANY as usize);
}

/// What the configuration says about addresses, and who must not be locked out.
#[test]
fn management_and_callers_are_not_locked_out() {
    let net = Net::new();
    write(
        &net.server,
        FILE,
        format!(
            "[daemon]\nmanagement = [\"203.0.113.0/28\"]\n\n{CONFIG}\n\
             [[allow]]\nprefix = \"198.51.100.7\"\nreason = \"monitoring\"\n\n\
             [[deny]]\nprefix = \"198.51.100.0/24\"\n"
        ),
    );
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE} --config {FILE}"));
    let allowed = entries(&daemon, "allow");
    assert_eq!(
        (allowed[0].prefix.as_str(), allowed[0].origin.as_str()),
        ("198.51.100.7", "config")
    );
    for (arguments, expected) in [
        ("ban add 203.0.113.0/24", 8),
        ("ban add 203.0.113.5", 8),
        ("ban add 203.0.113.16", 0),
        ("ban add ::/0", 8),
        ("ban add 198.18.0.1", 8),
        ("ban add 203.0.113.0/24 --force", 0),
        ("ban add 192.0.2.0/33", 6),
        ("ban add 192.0.2.1 --for 0s", 6),
        ("ban add 192.0.2.1 --for -5s", 2),
        ("ban add", 2),
        ("allow add 192.0.2.300", 6),
    ] {
        let (found, text) = code(&daemon, arguments);
        assert_eq!(found, Some(expected), "{arguments}: {text}");
    }
    let over_ssh = |arguments: &str| {
        let mut command = net.server.command(limiter_tests::host::binary("limiterctl"));
        command.env("SSH_CONNECTION", format!("{CLIENT4} 50000 {SERVER4} 22"));
        command.args(arguments.split_whitespace()).output().expect("limiterctl").status.code()
    };
    assert_eq!(over_ssh(&format!("ban add {CLIENT4}")), Some(8));
    assert_eq!(over_ssh(&format!("ban add {ATTACKER4}")), Some(0));
    let _ = daemon.ask(&format!("allow add {CLIENT4}"));
    assert_eq!(over_ssh(&format!("ban add {CLIENT4}")), Some(0));

    // A policy that starves the session, and a deny, are no better than a ban.
    for (text, expected) in [
        ("[[policy]]\nname = \"a\"\nrate = \"1/m\"\nburst = 5\n", 8),
        ("[[policy]]\nname = \"a\"\nrate = \"100/s\"\n", 0),
        ("[[policy]]\nname = \"a\"\nrate = \"1/m\"\nmode = \"observe\"\n", 0),
        (
            "[[policy]]\nname = \"a\"\nmatch = { destinations = \"198.18.0.1\" }\nrate = \"1/m\"\n",
            8,
        ),
        ("[[policy]]\nname = \"a\"\nmatch = { interfaces = \"eth0\" }\nrate = \"1/m\"\n", 8),
        (
            "[[policy]]\nname = \"a\"\nmatch = { destinations = \"198.18.0.9\" }\nrate = \"1/m\"\n",
            0,
        ),
        ("[[deny]]\nprefix = \"198.18.0.0/24\"\n", 8),
        ("[[deny]]\nprefix = \"0.0.0.0/0\"\n", 8),
        ("[[allow]]\nprefix = \"198.18.0.2\"\n[[deny]]\nprefix = \"198.18.0.0/24\"\n", 0),
        ("[daemon]\nmanagement = \"203.0.113.0/28\"\n[[deny]]\nprefix = \"203.0.113.1\"\n", 8),
    ] {
        let _ = daemon.ctl(&format!("allow del {CLIENT4}"));
        let _ = daemon.ctl(&format!("ban del {CLIENT4}"));
        let _ = daemon.ctl("ban del 203.0.113.0/24");
        write(&net.server, "/run/new.toml", text.into());
        assert_eq!(over_ssh("config apply /run/new.toml"), Some(expected), "{text}");
    }
    write(&net.server, "/run/new.toml", "[[policy]]\nname = \"a\"\nrate = \"100/s\"\n".into());
    assert_eq!(over_ssh("config apply /run/new.toml"), Some(0));
    assert_eq!(over_ssh("limit set a --rate 1/m --burst 5"), Some(8));
    assert_eq!(over_ssh("limit set a --rate 1/m --burst 5 --force"), Some(0));
    assert_eq!(over_ssh("limit set a --rate 50/s --burst 50"), Some(0));
}
