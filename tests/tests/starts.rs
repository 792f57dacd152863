//! Starts that fail leave nothing, and say what is wrong; a start needs three
//! capabilities and keeps none.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixDatagram,
    process::Command,
    time::{Duration, Instant},
};

use limiter_common::ABI_VERSION;
use limiter_tests::{
    daemon::{Daemon, ctl, limiterd},
    host::{Host, Running, binary, stderr},
    net::{IFACE, Net, SERVER4},
    program::attach_foreign,
    web::{Client, Server, summary},
};
use limiter_user::api::Status;

/// Makes what a start stumbles over.
type Obstacle = fn(&Host);

#[test]
fn failed_starts_leave_nothing_and_say_why() {
    let nothing: Obstacle = |_| {};
    let cases: [(&str, Obstacle, &str, i32, &[&str]); 11] = [
        ("second interface", nothing, "--iface eth0 --iface eth7", 3, &["'eth7'", "eth0"]),
        (
            "control socket taken",
            |host| {
                host.call(|| {
                    std::fs::create_dir_all("/run/limiterd").expect("a directory");
                    let socket = std::os::unix::net::UnixListener::bind("/run/limiterd/ctl.sock");
                    // It listens until the end of the test.
                    std::mem::forget(socket.expect("a socket"));
                });
            },
            "--iface eth0",
            1,
            &["another limiterd answers", "--socket"],
        ),
        (
            "bad configuration",
            |host| {
                host.call(|| std::fs::write("/run/bad.toml", "[[policy]]\nrat = 5\n"))
                    .expect("writing");
            },
            "--iface eth0 --config /run/bad.toml",
            6,
            &["rat", "rate"],
        ),
        (
            "no BPF file system",
            |host| drop(host.run("umount /sys/fs/bpf")),
            "--iface eth0",
            1,
            &["mount -t bpf bpf /sys/fs/bpf"],
        ),
        (
            "read-only BPF file system",
            |host| drop(host.run("mount -o remount,ro /sys/fs/bpf")),
            "--iface eth0",
            1,
            &["/sys/fs/bpf", "remount,rw"],
        ),
        (
            "foreign program",
            |host| {
                // It is on until the host is gone.
                std::mem::forget(attach_foreign(host));
            },
            "--iface eth0",
            1,
            &["eth0 already has", "'bare_drop'", "xdp off"],
        ),
        (
            "a pin that is another map",
            |host| {
                let daemon = Daemon::start(host, "--iface eth0");
                let _killed = daemon.kill();
                let live = format!("/sys/fs/bpf/limiterd/v{ABI_VERSION}");
                let _gone = host.run(&format!("rm {live}/CELLS"));
                host.call(move || {
                    let map = aya::maps::MapData::from_pin(format!("{live}/RULES"));
                    map.expect("a map").pin(format!("{live}/CELLS")).expect("pinning");
                });
            },
            "--iface eth0",
            1,
            &["CELLS", "another form", "limiterd --detach"],
        ),
        (
            "a pin that is missing",
            |host| {
                let daemon = Daemon::start(host, "--iface eth0");
                let _killed = daemon.kill();
                let _gone =
                    host.run(&format!("rm /sys/fs/bpf/limiterd/v{ABI_VERSION}/LISTS_EXACT"));
            },
            "--iface eth0",
            1,
            &["LISTS_EXACT", "limiterd --detach"],
        ),
        (
            "disk full",
            |host| {
                let _done = host.run("mkdir /run/full");
                let _done = host.run("mount -t tmpfs -o size=4k full /run/full");
                let _done = host.run("mkdir -m 700 /run/full/state");
                host.call(|| std::fs::write("/run/full/file", [0; 4096])).expect("writing");
            },
            "--iface eth0 --state-dir /run/full/state",
            1,
            &["/run/full/state", "space", "--state-dir"],
        ),
        (
            "read-only state directory",
            |host| {
                let _done = host.run("mkdir /run/fixed");
                let _done = host.run("mount -t tmpfs -o ro fixed /run/fixed");
            },
            "--iface eth0 --state-dir /run/fixed/state",
            1,
            &["/run/fixed/state", "ead-only", "--state-dir"],
        ),
        (
            "state directory that is a file",
            |host| host.call(|| std::fs::write("/run/file", "x")).expect("writing"),
            "--iface eth0 --state-dir /run/file",
            1,
            &["/run/file", "--state-dir"],
        ),
    ];
    for (what, obstacle, arguments, code, words) in cases {
        let (host, _other) = Host::pair();
        obstacle(&host);
        let before = host.left_over();
        let output = limiterd(&host, arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{what}: {text}");
        for word in words {
            assert!(text.contains(word), "{what}: no '{word}' in: {text}");
        }
        let errors = text.lines().filter(|line| line.starts_with("limiterd: "));
        assert_eq!(errors.count(), 1, "{what}: one sentence: {text}");
        assert!(!text.contains("panicked"), "{what}: {text}");
        assert_eq!(host.left_over(), before, "{what}");
    }
}

/// Lets a command make no BPF map, as a kernel without memory does.
fn refuse_maps(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    const BPF_MAP_CREATE: u32 = 0;
    let statement = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: u16::try_from(code).expect("a code"),
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let number = u32::try_from(libc::SYS_bpf).expect("a number");
    let refusal = libc::SECCOMP_RET_ERRNO | libc::ENOMEM.unsigned_abs();
    // Of struct seccomp_data: the number of the call, its first argument.
    let mut filter = [
        statement(load, 0, 0, 0),
        statement(equal, number, 0, 3),
        statement(load, 16, 0, 0),
        statement(equal, BPF_MAP_CREATE, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, refusal, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let install = move || {
        let length = u16::try_from(filter.len()).expect("short");
        let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
        // SAFETY: the program and the filter in it outlive the call.
        let done = unsafe {
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure only makes one system call.
    unsafe { command.pre_exec(install) };
}

#[test]
fn memory_that_is_refused_is_named() {
    let (host, _other) = Host::pair();
    let mut command = host.command(binary("limiterd"));
    refuse_maps(command.args(["--iface", IFACE]));
    let output = command.output().expect("limiterd");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in ["no memory", "MiB", "--max-sources"] {
        assert!(text.contains(word), "{text}");
    }
    assert_eq!(host.left_over(), "");
}

/// A directory of its own for a user, where everything can be made.
fn for_user(host: &Host, user: u32) {
    for place in ["/sys/fs/bpf/limiterd", "/run/limiterd", "/var/lib/limiterd"] {
        let _made = host.run(&format!("mkdir -p {place}"));
        let _given = host.run(&format!("chown {user}:{user} {place}"));
    }
    // A BPF file system is its maker's.
    let _opened = host.run("chmod 755 /sys/fs/bpf");
}

fn as_user(host: &Host, user: u32, capabilities: &str) -> Command {
    let mut command = host.command("setpriv");
    command
        .args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"])
        .args([&format!("--inh-caps={capabilities}"), &format!("--ambient-caps={capabilities}")])
        .arg(format!("--bounding-set={capabilities}"))
        .arg(binary("limiterd"))
        .args(["--iface", IFACE]);
    command
}

#[test]
fn three_capabilities_are_needed_and_none_is_kept() {
    const USER: u32 = 4321;
    let (host, _other) = Host::pair();
    for_user(&host, USER);
    for (held, missing) in [
        ("-all,+net_admin,+perfmon", "CAP_BPF"),
        ("-all,+net_admin,+bpf", "CAP_PERFMON"),
        ("-all,+bpf,+perfmon", "CAP_NET_ADMIN"),
    ] {
        let output = as_user(&host, USER, held).output().expect("setpriv");
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(5), "{held}: {text}");
        assert!(text.contains(&format!("lacks {missing};")), "{held}: {text}");
        assert_eq!(host.left_over().matches("link-").count(), 0);
    }
    let mut process = Running::start(&mut as_user(&host, USER, "-all,+bpf,+perfmon,+net_admin"));
    let start = Instant::now();
    while !ctl(&host, "status").status.success() {
        assert!(start.elapsed() < Duration::from_secs(10), "no answer");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = process.child().id();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let mut threads = 0;
    for task in tasks {
        let path = task.expect("a thread").path().join("status");
        let text = std::fs::read_to_string(path).expect("a status");
        for line in text.lines().filter(|line| line.starts_with("Cap")) {
            // What is bounding is not held; no privilege can be gained either.
            let none = line.ends_with("0000000000000000") || line.starts_with("CapBnd");
            assert!(none, "{line}");
        }
        assert!(text.contains("NoNewPrivs:\t1"), "{text}");
        threads += 1;
    }
    assert!(threads >= 3);
    // Nothing later needs more.
    let other = Host::new();
    host.connect("eth1", &other, "eth0");
    for arguments in [
        "iface attach eth1",
        "limit set udp --rate 5/s",
        "ban add 192.0.2.1",
        "iface detach eth1",
        "iface attach eth1",
        "detach",
    ] {
        let output = ctl(&host, arguments);
        assert!(output.status.success(), "{arguments}: {}", stderr(&output));
    }
    assert!(process.wait().status.success());
    assert_eq!(host.left_over(), "/sys/fs/bpf/limiterd\n");
}

/// What a service manager is told, and when.
#[test]
fn a_service_manager_is_told() {
    let (host, _other) = Host::pair();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let told = || {
        let mut bytes = [0; 512];
        let length = socket.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let config = directory.path().join("limiterd.toml");
    std::fs::write(&config, "[[policy]]\nname = \"all\"\nrate = \"5/s\"\n").expect("writing");
    let mut command = host.command(binary("limiterd"));
    command.args(["--iface", IFACE, "--config"]).arg(&config).env("NOTIFY_SOCKET", &path);
    let mut process = Running::start(&mut command);
    assert_eq!(told().trim(), "READY=1");
    assert!(ctl(&host, "status").status.success(), "it is ready when it says so");
    assert_eq!(told().trim(), "WATCHDOG=1");
    process.signal(rustix::process::Signal::HUP);
    let reload = std::iter::repeat_with(&told).find(|told| !told.contains("WATCHDOG"));
    let reload = reload.expect("a message");
    assert!(reload.contains("RELOADING=1") && reload.contains("MONOTONIC_USEC="), "{reload}");
    let ready = std::iter::repeat_with(&told).find(|told| !told.contains("WATCHDOG"));
    assert_eq!(ready.as_deref().map(str::trim), Some("READY=1"));
    process.signal(rustix::process::Signal::TERM);
    let stopping = std::iter::repeat_with(&told).find(|told| !told.contains("WATCHDOG"));
    assert_eq!(stopping.as_deref().map(str::trim), Some("STOPPING=1"));
    assert!(process.wait().status.success());
}

/// Interfaces come, go, and get other names while the shield runs.
#[test]
fn interfaces_come_and_go() {
    let net = Net::new();
    let host = &net.server;
    let daemon = Daemon::start(host, &format!("--iface {IFACE} --spare-interfaces 2"));
    let other = Host::new();
    host.connect("eth1", &other, "eth0");
    let _done = daemon.ask("iface attach eth1");
    assert_eq!(daemon.ctl("iface attach eth1").status.code(), Some(6));
    assert_eq!(daemon.ctl("iface attach eth8").status.code(), Some(3));
    assert_eq!(daemon.ctl("iface detach eth8").status.code(), Some(3));
    let wait_for = |what: &str, is: &dyn Fn(&Status) -> bool| {
        let start = Instant::now();
        loop {
            let status = daemon.status();
            if is(&status) {
                return status;
            }
            assert!(start.elapsed() < Duration::from_secs(1), "{what}: {status:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    // Gone, and back.
    host.ip("link del eth1");
    let gone = |status: &Status| status.interfaces[1].link == "gone";
    let status = wait_for("gone", &gone);
    assert!(!status.interfaces[1].attached && status.health == "degraded");
    host.connect("eth1", &other, "eth0");
    let back = |status: &Status| status.interfaces[1].attached && status.health == "ok";
    let status = wait_for("back", &back);
    assert!(status.interfaces[1].pinned);
    // Down, and up.
    host.ip("link set eth1 down");
    wait_for("down", &|status| status.interfaces[1].link == "down");
    host.ip("link set eth1 up");
    wait_for("up", &|status| status.interfaces[1].link == "up");
    // Another name: it is the same interface.
    host.ip("link set eth1 down");
    host.ip("link set eth1 name wan0");
    host.ip("link set wan0 up");
    let renamed = |status: &Status| status.interfaces[1].name == "wan0";
    let status = wait_for("renamed", &renamed);
    assert!(status.interfaces[1].attached, "{status:?}");
    host.connect("eth1", &other, "eth1");
    let refused = daemon.ctl("iface attach eth1");
    assert!(stderr(&refused).contains("renamed to wan0"), "{}", stderr(&refused));
    let _done = daemon.ask("iface detach wan0");
    let _done = daemon.ask("iface attach eth1");
    // There is room for one more, and no further.
    host.connect("eth2", &other, "eth2");
    host.connect("eth3", &other, "eth3");
    let _done = daemon.ask("iface attach eth2");
    let full = daemon.ctl("iface attach eth3");
    assert_eq!(full.status.code(), Some(1));
    assert!(stderr(&full).contains("restart leaves no gap"), "{}", stderr(&full));
    let _done = daemon.ask("iface detach eth1");
    let _done = daemon.ask("iface detach eth2");
    let last = daemon.ctl(&format!("iface detach {IFACE}"));
    assert!(stderr(&last).contains("only interface"), "{}", stderr(&last));
    let text = daemon.ask("-o json iface list");
    assert_eq!(text.matches("\"name\"").count(), 1, "{text}");
    assert!(daemon.stop().status.success());
    assert_eq!(host.left_over(), "");
}

/// Somebody without manners at the sockets: others, and packets, do not notice.
#[test]
fn rude_clients_disturb_nobody() {
    const RUDE: u32 = 4322;
    const SOCKET: &str = "/run/limiterd/ro.sock";
    let net = Net::new();
    let _server = Server::start(&net.server, 1024);
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE}"));
    let handed_before = net.handed_to_server() - daemon.stats().totals.received.packets;
    let list: String = (0..100_000u32)
        .map(|n| format!("2001:db8:1:2::{:x}:{:x}\n", n >> 16, n & 0xffff))
        .collect();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), list).expect("writing");
    let _done = daemon.ask(&format!("ban import {}", file.path().display()));
    // As a user of his own: credentials are those of a thread.
    let rude = net.server.spawn(|| {
        let user = rustix::process::Uid::from_raw(RUDE);
        rustix::thread::set_thread_uid(user).expect("a user");
        let start = Instant::now();
        let mut held = Vec::new();
        let mut turn = 0u32;
        while start.elapsed() < Duration::from_secs(6) {
            for _ in 0..100 {
                turn = turn.wrapping_add(1);
                let Ok(mut stream) = std::os::unix::net::UnixStream::connect(SOCKET) else {
                    continue;
                };
                let short = Some(Duration::from_millis(5));
                stream.set_write_timeout(short).expect("a timeout");
                stream.set_read_timeout(short).expect("a timeout");
                let head = "host: x\r\ncontent-type: application/json\r\ncontent-length: ";
                // Whatever of it is taken.
                let _ = match turn % 5 {
                    0 => stream.write_all(b"GET /v1/st"),
                    1 => {
                        let head = format!("POST /v1/config/diff HTTP/1.1\r\n{head}100000000\r\n");
                        stream.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| {
                            let part = [b' '; 1 << 16];
                            (0..1600).try_for_each(|_| stream.write_all(&part))
                        })
                    }
                    2 => stream.write_all(&[0xff; 4096]),
                    3 => {
                        let bans = "GET /v1/bans HTTP/1.1\r\nhost: x\r\n\r\n";
                        let asked = stream.write_all(bans.as_bytes());
                        // Reads one byte, and no more.
                        let _ = stream.read(&mut [0]);
                        asked
                    }
                    _ => Ok(()),
                };
                held.push(stream);
            }
            // As many as one process may have.
            if held.len() > 900 {
                held.drain(..100);
            }
        }
        (turn, held.len())
    });
    let client = Client::start(&net.client, SERVER4.parse().expect("an address"), 20);
    std::thread::sleep(Duration::from_millis(300));
    let (start, mut answers) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(5) {
        for arguments in
            ["--socket /run/limiterd/ro.sock status", "stats", "limit set udp --rate 5k/s"]
        {
            let output = ctl(&net.server, arguments);
            assert!(output.status.success(), "{arguments}: {}", stderr(&output));
            answers += 1;
        }
    }
    let (turns, held) = rude.join().expect("the rude one");
    println!("{turns} rude connections, {held} held; {answers} others answered");
    assert!(turns > 1_000 && held > 500 && answers > 5);
    let outcomes = client.finish();
    let (times, failed) = summary(&outcomes);
    assert_eq!(failed, 0, "packets of {} requests were lost", outcomes.len());
    assert!(times.len() > 50, "{}", times.len());
    std::thread::sleep(Duration::from_millis(300));
    let received = daemon.stats().totals.received.packets;
    assert_eq!(received, net.handed_to_server() - handed_before, "a packet was not counted");
    assert_eq!(daemon.status().health, "ok");
    assert!(daemon.stop().status.success());
}
