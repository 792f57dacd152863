//! What outlives the daemon, under traffic: nothing passes unfiltered, and
//! buckets, bans, rules and counters are what they were, whenever it is killed
//! and whatever program the next one brings.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use fastrand::Rng;
use limiter_common::ABI_VERSION;
use limiter_tests::{
    daemon::{Daemon, ctl},
    host::{Host, binary},
    net::{IFACE, Net, SERVER4},
    send::{Load, Sent, send},
    wire::{Ipv4, Udp},
};
use limiter_user::{api, object};
use rustix::process::Signal;

/// Is banned for ever.
const BANNED: &str = "198.18.9.9";
/// Has one bucket of so many packets, and no more for an hour.
const POLITE: &str = "198.18.9.8";
const BURST: u64 = 100;
const PER_SECOND: u64 = 4_000;
const CONFIG: &str = r#"
[[policy]]
name = "udp"
match = { kind = ["udp"] }
rate = "1/h"
burst = 100
strict = true

[[policy]]
name = "other"
match = { kind = ["other"] }
rate = "1k/s"
"#;

/// A server that is flooded from a banned source and from one whose bucket is
/// soon empty: what reaches its stack is that one bucket.
struct Siege {
    net: Net,
    stop: Arc<AtomicBool>,
    flood: Option<std::thread::JoinHandle<Sent>>,
    seen_before: u64,
    handed_before: u64,
    files: tempfile::TempDir,
}

impl Siege {
    /// Protects the server with this binary, then floods it.
    fn begin(program: &Path) -> (Self, Daemon) {
        let net = Net::new();
        let files = tempfile::tempdir().expect("a directory");
        std::fs::write(files.path().join("limiterd.toml"), CONFIG).expect("writing");
        let arguments =
            format!("--iface {IFACE} --config {}", files.path().join("limiterd.toml").display());
        let shield = Daemon::start_program(&net.server, program, &arguments);
        let _done = shield.ask(&format!("ban add {BANNED} --for forever --reason siege"));
        let handed_before = net.handed_to_server() - shield.stats().totals.received.packets;
        let [server, attacker] =
            [&net.server, &net.attacker].map(|host| host.hardware_address(IFACE));
        let frame = |source: &str| {
            Ipv4::new(source, SERVER4)
                .next(17, &Udp::new(4000, 9).payload(18))
                .ethernet(server, attacker)
                .build()
        };
        let frames = vec![frame(BANNED), frame(BANNED), frame(BANNED), frame(POLITE)];
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let seen_before = net.server.datagrams();
        let flood = net.attacker.spawn(move || {
            let mut sum = Sent { frames: 0, time: Duration::ZERO };
            // Each is bounded in time by itself.
            while !until.load(SeqCst) {
                let load = Load { frames: frames.clone(), count: u64::MAX, per_second: PER_SECOND };
                let sent = send(IFACE, &load, || until.load(SeqCst)).expect("the generator");
                (sum.frames, sum.time) = (sum.frames + sent.frames, sum.time + sent.time);
            }
            sum
        });
        (Self { net, stop, flood: Some(flood), seen_before, handed_before, files }, shield)
    }

    /// Datagrams that the stack has seen.
    fn seen(&self) -> u64 {
        self.net.server.datagrams() - self.seen_before
    }

    /// Ends the flood; says how many frames were sent.
    fn end(&mut self) -> u64 {
        self.stop.store(true, SeqCst);
        let sent = self.flood.take().expect("a flood").join().expect("the flood");
        std::thread::sleep(Duration::from_millis(200));
        sent.frames
    }

    /// Checks that every packet was counted, since the shield first began.
    fn require_all_counted(&self, shield: &Daemon) {
        let received = shield.stats().totals.received.packets;
        let handed = self.net.handed_to_server() - self.handed_before;
        assert_eq!(received, handed, "packets were lost from the counters");
    }
}

impl Drop for Siege {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(flood) = self.flood.take() {
            let _ = flood.join();
        }
    }
}

/// Rate of the policy `other`.
fn rate(daemon: &Daemon) -> String {
    let limits: api::Limits =
        serde_json::from_str(&daemon.ask("-o json limit show other")).expect("limits");
    limits.policies[0].source.rate.clone().expect("a rate")
}

/// Descriptors that it has open.
fn descriptors(daemon: &mut Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("the daemon").count()
}

/// Pins of a host's limiterd.
fn pins(host: &Host) -> String {
    let output = host.try_run("find /sys/fs/bpf/limiterd -printf %P\\n").stdout;
    let text = String::from_utf8(output).expect("text");
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// How long, and how many kills at the least.
fn extent() -> (Duration, u32) {
    let is_set = |name| std::env::var_os(name).is_some();
    match (is_set("LIMITER_LONG"), is_set("LIMITER_QUICK")) {
        (true, _) => (Duration::from_secs(7200), 200),
        (_, true) => (Duration::from_secs(20), 3),
        _ => (Duration::from_secs(150), 20),
    }
}

/// What may be true after a kill.
struct Model {
    /// Said for sure.
    bans: BTreeMap<String, Option<String>>,
    rate: String,
    /// Asked for, and not known to be done: all of it is, or none.
    perhaps: Option<BTreeMap<String, Option<String>>>,
    perhaps_rate: Option<String>,
    received: u64,
}

impl Model {
    /// Checks a daemon, and settles what was in doubt.
    fn settle(&mut self, shield: &Daemon, what: &str) {
        let bans = shield.bans();
        if bans != self.bans {
            let perhaps = self.perhaps.as_ref().map(|more| {
                let mut all = self.bans.clone();
                all.extend(more.clone());
                all
            });
            let sizes = (bans.len(), self.bans.len(), perhaps.as_ref().map(BTreeMap::len));
            assert_eq!(Some(&bans), perhaps.as_ref(), "{what}: found, sure, perhaps: {sizes:?}");
            self.bans = bans;
        }
        let rate = rate(shield);
        if rate != self.rate {
            assert_eq!(Some(&rate), self.perhaps_rate.as_ref(), "{what}: not {}", self.rate);
            self.rate = rate;
        }
        (self.perhaps, self.perhaps_rate) = (None, None);
        let received = shield.stats().totals.received.packets;
        assert!(received >= self.received, "{what}: {received} after {}", self.received);
        self.received = received;
    }
}

/// One change, asked for in the background; says what it is about to do.
fn change(
    rng: &mut Rng,
    siege: &Siege,
    shield: &mut Daemon,
    model: &mut Model,
    turn: u32,
) -> (String, std::thread::JoinHandle<bool>) {
    let host = &siege.net.server;
    let command = match rng.u8(..6) {
        0 => {
            let rate = format!("{}/s", 100 + rng.u32(..900));
            model.perhaps_rate = Some(rate.clone());
            format!("limit set other --rate {rate}")
        }
        1 => {
            let rate = format!("{}/s", 2000 + rng.u32(..900));
            let text = CONFIG.replace("1k/s", &rate);
            let path = siege.files.path().join("other.toml");
            std::fs::write(&path, text).expect("writing");
            model.perhaps_rate = Some(rate);
            format!("config apply {}", path.display())
        }
        2 => {
            let path = siege.files.path().join("bans");
            let reason = format!("import {turn}");
            let [low, high] = turn.to_be_bytes()[2..] else { unreachable!("two bytes") };
            let bans: BTreeMap<_, _> = (0..5_000u32)
                .map(|n| {
                    let [.., c, d] = n.to_be_bytes();
                    (format!("2001:db8:{low:x}:{high:x}::{c:x}:{d:x}"), Some(reason.clone()))
                })
                .map(|(address, reason)| {
                    let address: std::net::IpAddr = address.parse().expect("an address");
                    (address.to_string(), reason)
                })
                .collect();
            let text: String =
                bans.keys().map(|prefix| format!("{prefix} 7days {reason}\n")).collect();
            std::fs::write(&path, text).expect("writing");
            model.perhaps = Some(bans);
            format!("ban import {}", path.display())
        }
        3 => {
            let prefix = format!("10.{}.{}.0/24", turn % 256, rng.u8(..));
            let reason = format!("turn-{turn}");
            model.perhaps = Some(BTreeMap::from([(prefix.clone(), Some(reason.clone()))]));
            format!("ban add {prefix} --for 1h --reason {reason}")
        }
        4 => {
            // The file is read again and says what it always said.
            model.perhaps_rate = Some("1000/s".into());
            shield.signal(Signal::HUP);
            "-o json stats".to_owned()
        }
        _ => "status".to_owned(),
    };
    let (host, line) = (host.clone(), command.clone());
    (command, std::thread::spawn(move || ctl(&host, &line).status.success()))
}

/// The daemon is killed at random moments, in the middle of starts, changes,
/// imports, and takes up where it was.
#[test]
fn kills_change_nothing() {
    let (time, least_kills) = extent();
    let mut rng = Rng::with_seed(limiter_tests::seed());
    let program = binary("limiterd");
    let (mut siege, mut shield) = Siege::begin(&program);
    let arguments =
        format!("--iface {IFACE} --config {}", siege.files.path().join("limiterd.toml").display());
    let mut model = Model {
        bans: shield.bans(),
        rate: rate(&shield),
        perhaps: None,
        perhaps_rate: None,
        received: 0,
    };
    let (mut kills, mut kills_at_start, mut done) = (0, 0, 0);
    let mut first = None;
    let programs = loaded_programs();
    let other = other_version(siege.files.path());
    let maps_and_pins = pins(&siege.net.server);
    let start = Instant::now();
    while start.elapsed() < time || kills < least_kills {
        let turn = kills;
        let (what, asked) = change(&mut rng, &siege, &mut shield, &mut model, turn);
        std::thread::sleep(Duration::from_millis(rng.u64(..80)));
        let wait = rng.u8(..4) == 0;
        let early = if wait { None } else { Some(asked.is_finished()) };
        if wait {
            assert!(asked.join().expect("limiterctl"), "{what}");
            done += 1;
            model.settle(&shield, &what);
            let _killed = shield.kill();
        } else {
            let _killed = shield.kill();
            if asked.join().expect("limiterctl") && early == Some(true) {
                done += 1;
            }
        }
        kills += 1;
        if rng.bool() {
            let program = if rng.bool() { &program } else { &other };
            let starting = Daemon::spawn(&siege.net.server, program, &arguments);
            std::thread::sleep(Duration::from_millis(rng.u64(..1_200)));
            let _killed = starting.kill();
            (kills, kills_at_start) = (kills + 1, kills_at_start + 1);
        }
        let next = if rng.u8(..4) > 0 { &program } else { &other };
        shield = Daemon::start_program(&siege.net.server, next, &arguments);
        model.settle(&shield, &what);
        assert_eq!(pins(&siege.net.server), maps_and_pins, "after {what}");
        let seen = siege.seen();
        assert!(seen <= BURST, "{seen} datagrams passed, {BURST} may; after {what}");
        let open = descriptors(&mut shield);
        let first = *first.get_or_insert(open);
        assert!(open <= first + 8, "{open} descriptors, {first} at first");
    }
    println!(
        "{kills} kills, {kills_at_start} of them in a start; {done} changes done before; \
         {} bans",
        model.bans.len()
    );
    assert!(kills_at_start > 0 && done > 0);
    let status = shield.status();
    assert_eq!((status.health.as_str(), &status.problems), ("ok", &Vec::new()));
    // The kernel frees them a little later.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(loaded_programs(), programs, "programs were left in the kernel");
    let sent = siege.end();
    assert!(sent > PER_SECOND * time.as_secs() / 2, "{sent} frames were no flood");
    siege.require_all_counted(&shield);
    assert_eq!(siege.seen(), BURST, "the one bucket, once");
    let detach = shield.ask("detach");
    assert!(detach.contains(IFACE), "{detach}");
    assert_eq!(pins(&siege.net.server), "");
}

/// A copy of the binary whose program in the kernel differs by one byte: what
/// an upgrade brings.
fn other_version(directory: &Path) -> PathBuf {
    /// Timer ticks between two reports of trouble, in the program.
    const CONSTANT: [u8; 4] = 1000i32.to_le_bytes();
    let object = object::LIMITER.expect("a build with a BPF compiler: cargo xtask build");
    let mut bytes = std::fs::read(binary("limiterd")).expect("the binary");
    let at = bytes.windows(object.len()).position(|window| window == object);
    let at = at.expect("the object in the binary");
    // A comparison with an immediate: class JMP or JMP32, source K.
    let is_comparison = |insn: &[u8]| {
        matches!(insn[0] & 0x0f, 0x05 | 0x06) && insn[0] & 0xf0 > 0x10 && insn[4..] == CONSTANT
    };
    let place = object.chunks_exact(8).position(is_comparison).expect("the constant");
    bytes[at + place * 8 + 4] += 1;
    let path = directory.join("limiterd");
    std::fs::write(&path, bytes).expect("writing");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("a mode");
    path
}

/// Programs of ours that the kernel holds.
fn loaded_programs() -> usize {
    let all = aya::programs::loaded_programs().filter_map(Result::ok);
    all.filter(|info| info.name_as_str() == Some("limiterd")).count()
}

/// What the kernel calls the program: a hash of its instructions.
fn tag(shield: &Daemon) -> u64 {
    let id = shield.status().interfaces[0].program_id;
    let info = aya::programs::loaded_programs().filter_map(Result::ok).find(|it| it.id() == id);
    info.expect("the program").tag()
}

/// From one version to the next and back: nothing passes unfiltered, no packet
/// is lost from the counters, and a source does not get its burst again.
#[test]
fn an_upgrade_leaves_no_gap() {
    let (mut siege, mut shield) = Siege::begin(&binary("limiterd"));
    let other = other_version(siege.files.path());
    let arguments =
        format!("--iface {IFACE} --config {}", siege.files.path().join("limiterd.toml").display());
    let first = tag(&shield);
    for (program, differs) in [(other, true), (binary("limiterd"), false)] {
        std::thread::sleep(Duration::from_millis(500));
        let before = shield.stats().totals.received.packets;
        let _stopped = shield.kill();
        shield = Daemon::start_program(&siege.net.server, &program, &arguments);
        assert_eq!(tag(&shield) != first, differs);
        assert!(shield.stats().totals.received.packets > before);
        assert_eq!(shield.bans().len(), 1);
    }
    assert!(siege.end() > PER_SECOND);
    siege.require_all_counted(&shield);
    assert_eq!(siege.seen(), BURST);
}

/// From a version with other maps: protection, bans and sums go on; buckets
/// begin anew, and it says so.
#[test]
fn a_change_of_versions_migrates_what_it_can() {
    let (mut siege, shield) = Siege::begin(&binary("limiterd"));
    let arguments =
        format!("--iface {IFACE} --config {}", siege.files.path().join("limiterd.toml").display());
    let _done = shield.ask("ban add 10.1.0.0/16 --for 1h --reason kept");
    let mut bursts = 1;
    let mut shield = shield;
    for (what, command) in [
        ("a lost state", "rm /var/lib/limiterd/state".to_owned()),
        (
            "another version",
            format!("mv /sys/fs/bpf/limiterd/v{ABI_VERSION} /sys/fs/bpf/limiterd/v{}", 1),
        ),
    ] {
        std::thread::sleep(Duration::from_millis(300));
        let (bans, before) = (shield.bans(), shield.stats().totals.received.packets);
        let _killed = shield.kill();
        assert!(siege.net.server.run(&command).status.success());
        let mut starting = Daemon::spawn(&siege.net.server, &binary("limiterd"), &arguments);
        let log = starting.take_log();
        shield = starting.ready();
        bursts += 1;
        let after = shield.bans();
        assert!(after.keys().eq(bans.keys()), "{what}: {after:?}");
        assert!(shield.stats().totals.received.packets > before, "{what}");
        let log = first_lines(log, 4);
        assert!(log.contains("begin anew") && log.contains("without a gap"), "{what}: {log}");
        let links: Vec<_> = shield.status().interfaces.iter().map(|it| it.pinned).collect();
        assert_eq!(links, [true]);
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(siege.end() > PER_SECOND / 2);
    siege.require_all_counted(&shield);
    assert_eq!(siege.seen(), bursts * BURST, "one bucket for each start");
    let _done = shield.ask("detach");
    assert_eq!(pins(&siege.net.server), "");
}

fn first_lines(from: impl std::io::Read, count: usize) -> String {
    use std::io::BufRead as _;
    let lines = std::io::BufReader::new(from).lines().take(count);
    lines.map(|line| line.expect("text") + "\n").collect()
}

/// Killed while it takes everything off: what is left, if anything, can be
/// taken off and started over.
#[test]
fn a_kill_in_a_detach_leaves_nothing_that_stays() {
    let mut rng = Rng::with_seed(limiter_tests::seed());
    let net = Net::new();
    let program = binary("limiterd");
    for _ in 0..5 {
        let shield = Daemon::start_program(&net.server, &program, &format!("--iface {IFACE}"));
        let host = net.server.clone();
        let asked = std::thread::spawn(move || ctl(&host, "detach"));
        std::thread::sleep(Duration::from_micros(rng.u64(..30_000)));
        let _killed = shield.kill();
        let _answer = asked.join().expect("limiterctl");
        let shield = Daemon::start_program(&net.server, &program, &format!("--iface {IFACE}"));
        assert!(shield.status().interfaces[0].attached);
        let _killed = shield.kill();
        for _ in 0..2 {
            let detached = ctl(&net.server, "detach");
            assert!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
            assert_eq!(pins(&net.server), "");
        }
    }
}

/// The same at the worst moment: the pins are half removed.
#[test]
fn a_half_removed_load_is_in_nobodys_way() {
    let net = Net::new();
    let arguments = format!("--iface {IFACE}");
    let root = "/sys/fs/bpf/limiterd";
    for gone in ["CELLS", "link-eth0"] {
        let daemon = Daemon::start(&net.server, &arguments);
        let _done = daemon.ask("ban add 192.0.2.1 --for forever");
        let _killed = daemon.kill();
        let _moved = net.server.run(&format!("mv {root}/v{ABI_VERSION} {root}/removed"));
        let _removed = net.server.run(&format!("rm {root}/removed/{gone}"));
        let daemon = Daemon::start(&net.server, &arguments);
        assert_eq!(daemon.status().health, "ok");
        assert_eq!(daemon.bans().len(), 1);
        let _killed = daemon.kill();
        let _moved = net.server.run(&format!("mv {root}/v{ABI_VERSION} {root}/removed"));
        assert!(ctl(&net.server, "detach").status.success());
        assert_eq!(pins(&net.server), "");
        let link = net.server.run(&format!("ip link show {IFACE}")).stdout;
        assert!(!String::from_utf8_lossy(&link).contains("prog/xdp"));
    }
}

/// What was changed at run time outlives a restart, and a reboot as far as the
/// disk has it; a changed file comes in its place.
#[test]
fn changes_outlive_restarts_and_a_reboot() {
    let net = Net::new();
    let files = tempfile::tempdir().expect("a directory");
    let path = files.path().join("limiterd.toml");
    std::fs::write(&path, CONFIG).expect("writing");
    let arguments = format!("--iface {IFACE} --config {}", path.display());
    let daemon = Daemon::start(&net.server, &arguments);
    let _done = daemon.ask("limit set other --rate 77/s");
    let _done = daemon.ask("ban add 192.0.2.0/24 --for 2h --reason long");
    let _done = daemon.ask("ban add 192.0.2.7 --for 1s");
    let _done = daemon.ask("allow add 203.0.113.5");
    net.server.connect("eth1", &net.client, "eth1");
    let _done = daemon.ask("iface attach eth1");
    let rate = |daemon: &Daemon| {
        let policies = daemon.limits().policies;
        policies.iter().find(|it| it.name == "other").expect("it").source.rate.clone()
    };
    let names = |daemon: &Daemon| -> Vec<String> {
        daemon.status().interfaces.into_iter().map(|it| it.name).collect()
    };
    let list = |daemon: &Daemon, name: &str| -> api::List {
        serde_json::from_str(&daemon.ask(&format!("-o json {name} list"))).expect("a list")
    };
    let mut daemon = daemon;
    std::thread::sleep(Duration::from_millis(1_100));
    for turn in ["a restart", "a reboot"] {
        let _stopped = daemon.stop();
        if turn == "a reboot" {
            // What a boot leaves: no pins, no program, another boot.
            assert!(ctl(&net.server, "detach").status.success());
            let state = net.server.run("cat /var/lib/limiterd/state").stdout;
            assert!(!state.is_empty());
        }
        daemon = Daemon::start(&net.server, &arguments);
        assert_eq!(rate(&daemon).as_deref(), Some("77/s"), "{turn}");
        assert_eq!(names(&daemon), [IFACE, "eth1"], "{turn}");
        let bans = list(&daemon, "ban").entries;
        assert_eq!(bans.len(), 1, "{turn}: {bans:?}");
        assert_eq!(bans[0].reason.as_deref(), Some("long"));
        assert!((7_100..=7_200).contains(&bans[0].expires_in_seconds.expect("an end")));
        assert_eq!(list(&daemon, "allow").entries.len(), 1, "{turn}");
    }
    // The file has changed, so it is meant.
    let _stopped = daemon.stop();
    std::fs::write(&path, CONFIG.replace("1k/s", "2k/s")).expect("writing");
    daemon = Daemon::start(&net.server, &arguments);
    assert_eq!(rate(&daemon).as_deref(), Some("2000/s"));
    assert_eq!(list(&daemon, "ban").entries.len(), 1);
    // Or they are to be forgotten.
    let _done = daemon.ask("limit set other --rate 78/s");
    let _stopped = daemon.stop();
    daemon = Daemon::start(&net.server, &format!("{arguments} --forget"));
    assert_eq!(rate(&daemon).as_deref(), Some("2000/s"));
    assert_eq!(names(&daemon), [IFACE]);
}

/// Another number of sources takes other tables for them, and nothing else.
#[test]
fn another_number_of_sources_keeps_all_but_buckets() {
    let net = Net::new();
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE} --max-sources 16384"));
    let _done = daemon.ask("ban add 192.0.2.0/24 --for forever");
    let _done = daemon.ask("limit set udp --rate 77/s");
    let [server, attacker] = [&net.server, &net.attacker].map(|it| it.hardware_address(IFACE));
    let frame = Ipv4::new(POLITE, SERVER4).next(17, &Udp::new(1, 9).payload(18));
    let frames = vec![frame.ethernet(server, attacker).build()];
    let load = Load { frames, count: 500, per_second: 5_000 };
    net.attacker.call(move || send(IFACE, &load, || false)).expect("the generator");
    std::thread::sleep(Duration::from_millis(200));
    let before = daemon.stats();
    let _killed = daemon.kill();
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE} --max-sources 32768"));
    assert_eq!(daemon.status().memory.max_sources, 32_768);
    let after = daemon.stats();
    assert!(after.totals.received.packets >= before.totals.received.packets);
    let udp = |stats: &api::Stats| {
        stats.policies.iter().find(|it| it.name == "udp").expect("udp").passed.packets
    };
    assert!(udp(&before) > 100);
    assert!(udp(&after) >= udp(&before));
    assert!(daemon.ask("ban list").contains("192.0.2.0/24"));
    assert!(daemon.ask("limit show udp").contains("77/s"));
}

/// A full disk stops nothing; what is in force is saved once there is room.
#[test]
fn a_full_disk_stops_no_change() {
    let net = Net::new();
    let host = &net.server;
    let _made = host.run("mkdir /run/disk");
    let _made = host.run("mount -t tmpfs -o size=64k disk /run/disk");
    let arguments = format!("--iface {IFACE} --state-dir /run/disk/state");
    let daemon = Daemon::start(host, &arguments);
    let fill = "dd if=/dev/zero of=/run/disk/file bs=1k count=64 status=none";
    let _full = host.try_run(fill);
    for n in 0..100 {
        let _done = daemon.ask(&format!("ban add 192.0.2.{n} --for forever --reason full"));
    }
    let status = daemon.status();
    let told = |status: &api::Status| status.problems.iter().any(|it| it.contains("not saved"));
    assert!(told(&status) && status.health == "degraded", "{:?}", status.problems);
    let _freed = host.run("rm /run/disk/file");
    let start = Instant::now();
    while told(&daemon.status()) {
        assert!(start.elapsed() < Duration::from_secs(6), "still not saved");
        std::thread::sleep(Duration::from_millis(100));
    }
    let _killed = daemon.kill();
    let daemon = Daemon::start(host, &arguments);
    let list: api::List = serde_json::from_str(&daemon.ask("-o json ban list")).expect("bans");
    assert_eq!(list.entries.len(), 100);
    assert!(list.entries.iter().all(|it| it.reason.as_deref() == Some("full")));
}

/// Killed between two steps of attaching again: the link is found where it is.
#[test]
fn a_link_on_its_way_to_its_pin_is_found() {
    let net = Net::new();
    let arguments = format!("--iface {IFACE}");
    let _killed = Daemon::start(&net.server, &arguments).kill();
    let pins = format!("/sys/fs/bpf/limiterd/v{ABI_VERSION}");
    let _moved = net.server.run(&format!("mv {pins}/link-{IFACE} {pins}/relink-{IFACE}"));
    let daemon = Daemon::start(&net.server, &arguments);
    assert!(daemon.status().interfaces[0].pinned);
    let _killed = daemon.kill();
    let _moved = net.server.run(&format!("mv {pins}/link-{IFACE} {pins}/relink-{IFACE}"));
    assert!(ctl(&net.server, "detach").status.success());
    let link = net.server.run(&format!("ip link show {IFACE}")).stdout;
    assert!(!String::from_utf8_lossy(&link).contains("prog/xdp"));
}
