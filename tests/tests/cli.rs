//! The built binaries, as a user and a script see them.

use std::{
    io::{Read as _, Write as _},
    os::unix::{fs::MetadataExt as _, net::UnixDatagram, process::CommandExt as _},
    process::{Output, Stdio},
    time::Duration,
};

use limiter_common::ABI_VERSION;
use limiter_tests::{
    daemon::{Daemon, ctl, limiterd},
    host::{Host, Running, binary, stderr, text},
    net::IFACE,
};
use serde_json::Value;

fn stdout(output: &Output) -> String {
    text(&output.stdout)
}

/// Checks exit code and message, and that nothing is left of the start.
fn refused(host: &Host, arguments: &str, code: i32, words: &[&str]) {
    let output = limiterd(host, arguments);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "limiterd {arguments}: {message}");
    for word in words {
        assert!(message.contains(word), "limiterd {arguments}: '{word}' is not in: {message}");
    }
    assert!(!message.contains("panicked"), "{message}");
    if code != 2 {
        assert_eq!(message.trim_end().lines().count(), 1, "one sentence: {message}");
    }
    assert_eq!(host.left_over(), "", "limiterd {arguments}");
}

#[test]
fn nonsense_is_refused_with_a_mend() {
    let (host, _other) = Host::pair();
    for (arguments, code, words) in [
        ("--iface nope0", 3, &["nope0", "there are", IFACE][..]),
        ("--iface this-name-is-too-long-for-one", 3, &["this-name-is-too-long"]),
        ("--iface ../../etc", 3, &["../../etc"]),
        ("--iface eth0 --iface nope0", 3, &["nope0"]),
        ("--iface eth0 --rate 0", 6, &["'0'", "1/day", "10M/s"]),
        ("--iface eth0 --rate -5", 6, &["'-5'", "2.5k/s"]),
        ("--iface eth0 --rate 1e30", 6, &["'1e30'"]),
        ("--iface eth0 --rate fast", 6, &["'fast'", "500"]),
        ("--iface eth0 --rate nan", 6, &["'nan'"]),
        ("--iface eth0 --rate 11M/s", 6, &["'11M/s'", "10M/s"]),
        ("--iface eth0 --rate 1k --burst 0", 6, &["'0'", "between 1 and 4294967295"]),
        ("--iface eth0 --rate 1k --burst -1", 6, &["'-1'", "whole number"]),
        ("--iface eth0 --rate 1k --burst 5000000000", 6, &["5000000000", "4294967295"]),
        ("--iface eth0 --max-sources 5", 6, &["5 sources", "--max-sources takes", "16777216"]),
        ("--iface eth0 --max-sources many", 6, &["'many'"]),
        ("--iface eth0 --max-sources -1", 6, &["'-1'"]),
        ("--iface eth0 --memory 64", 6, &["'64'", "64KiB"]),
        ("--iface eth0 --memory 1kB", 6, &["1000 bytes", "MiB to"]),
        ("--iface eth0 --memory 1MiB --max-sources 2048", 2, &["--memory", "--max-sources"]),
        ("--iface eth0 --new-sources 0", 6, &["'0'", "1/day"]),
        ("--iface eth0 --untracked fast", 6, &["'fast'"]),
        ("--iface eth0 --burst 5", 2, &["--rate"]),
        ("--iface eth0 --xdp-mode quick", 2, &["native", "generic"]),
        ("--bogus", 2, &["--bogus"]),
        ("", 2, &["--iface"]),
        ("--iface eth0 --pin-dir /run/pins", 1, &["/run/pins", "mount -t bpf"]),
        ("--iface eth0 --socket /proc/no/ctl.sock", 1, &["/proc/no", "--socket"]),
        ("--iface eth0 --socket /run/x/ro.sock", 6, &["ro.sock"]),
    ] {
        refused(&host, arguments, code, words);
    }
    let empty = host.command(binary("limiterd")).args(["--iface", "eth0", "--rate", ""]).output();
    assert_eq!(empty.expect("limiterd").status.code(), Some(6));
}

#[test]
fn what_the_host_lacks_is_named() {
    let (host, _other) = Host::pair();
    // Not root.
    let mut command = host.command(binary("limiterd"));
    // SAFETY: between fork and exec only a system call is made.
    unsafe {
        command.pre_exec(|| {
            let nobody = rustix::process::Uid::from_raw(65_534);
            Ok(rustix::thread::set_thread_uid(nobody)?)
        });
    }
    let output = command.args(["--iface", IFACE]).output().expect("limiterd");
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("root"), "{}", stderr(&output));

    // No driver mode on a loopback interface.
    refused(&host, "--iface lo --xdp-mode native", 1, &["lo", "native", "--xdp-mode auto"]);
    // The second interface cannot, so the first is not attached either.
    refused(&host, "--iface eth0 --iface lo --xdp-mode native", 1, &["lo"]);
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let (host, _other) = Host::pair();
    let daemon = Daemon::start(&host, "--iface eth0");
    let output = limiterd(&host, "--iface eth0 --socket /run/other/ctl.sock");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("another limiterd"), "{}", stderr(&output));
    let output = limiterd(&host, "--iface eth0 --pin-dir /sys/fs/bpf/other");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("another limiterd"), "{}", stderr(&output));
    let elsewhere = "--iface eth0 --pin-dir /sys/fs/bpf/other --socket /run/other/ctl.sock";
    let output = limiterd(&host, elsewhere);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--state-dir"), "{}", stderr(&output));
    let output = limiterd(&host, &format!("{elsewhere} --state-dir /var/lib/other --metrics off"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("pins are elsewhere"), "{}", stderr(&output));
    assert!(daemon.status().interfaces[0].attached);
    assert!(daemon.stop().status.success());
    assert_eq!(host.left_over(), "");
}

#[test]
fn jumbo_frames_keep_native_mode() {
    let (host, other) = Host::pair();
    host.ip("link set eth0 mtu 9000");
    other.ip("link set eth0 mtu 9000");
    let daemon = Daemon::start(&host, "--iface eth0 --xdp-mode native");
    assert_eq!(daemon.status().interfaces[0].mode, "native");
}

#[test]
fn auto_falls_back_loudly() {
    let (host, _other) = Host::pair();
    let daemon = Daemon::start(&host, "--iface lo");
    let status = daemon.status();
    assert_eq!(status.interfaces[0].mode, "generic");
    assert_eq!(status.health, "degraded");
    assert!(status.problems[0].contains("generic"), "{:?}", status.problems);
    let log = stderr(&daemon.stop());
    assert!(log.contains("WARN") && log.contains("generic"), "{log}");
    assert_eq!(host.left_over(), "");
}

/// Checks that a value has these fields, each of its type: `n` number, `s`
/// string, `b` boolean, `a` array, `o` object, `0` null.
fn has(value: &Value, fields: &[(&str, char)]) {
    for (name, kind) in fields {
        let field = value.pointer(name).unwrap_or_else(|| panic!("{name} is not in {value:#}"));
        let right = match kind {
            'n' => field.is_number(),
            's' => field.is_string(),
            'b' => field.is_boolean(),
            'a' => field.is_array(),
            'o' => field.is_object(),
            '0' => field.is_null(),
            _ => false,
        };
        assert!(right, "{name} is {field}");
    }
}

#[test]
fn json_holds_the_fields_that_scripts_rely_on() {
    let (host, other) = Host::pair();
    host.ip("addr add 198.18.0.1/24 dev eth0");
    other.ip("addr add 198.18.0.2/24 dev eth0");
    let daemon = Daemon::start(&host, "--iface eth0 --rate 10k --burst 5k");
    other.run("ping -c 3 -i 0.01 198.18.0.1");
    let json = |arguments: &str| -> Value {
        serde_json::from_str(&daemon.ask(&format!("-o json {arguments}"))).expect("JSON")
    };
    let status = json("status");
    has(
        &status,
        &[
            ("/schema_version", 'n'),
            ("/version", 's'),
            ("/uptime_seconds", 'n'),
            ("/interfaces/0/name", 's'),
            ("/interfaces/0/index", 'n'),
            ("/interfaces/0/mode", 's'),
            ("/interfaces/0/attached", 'b'),
            ("/interfaces/0/pinned", 'b'),
            ("/interfaces/0/program_id", 'n'),
            ("/generation", 'n'),
            ("/confirm/pending", 'b'),
            ("/confirm/deadline_seconds", '0'),
            ("/memory/maps_bytes", 'n'),
            ("/memory/max_sources", 'n'),
            ("/memory/cpus", 'n'),
            ("/new_sources/tracked_per_second", 'n'),
            ("/new_sources/untracked_per_second", 'n'),
            ("/health", 's'),
            ("/problems", 'a'),
        ],
    );
    assert_eq!((&status["schema_version"], &status["health"]), (&1.into(), &"ok".into()));
    let stats = json("stats");
    has(
        &stats,
        &[
            ("/schema_version", 'n'),
            ("/uptime_seconds", 'n'),
            ("/generation", 'n'),
            ("/interfaces/0/name", 's'),
            ("/interfaces/0/index", 'n'),
            ("/interfaces/0/mode", 's'),
            ("/interfaces/0/attached", 'b'),
            ("/reasons/0/reason", 's'),
            ("/reasons/0/verdict", 's'),
            ("/reasons/0/packets", 'n'),
            ("/reasons/0/bytes", 'n'),
            ("/policies/0/name", 's'),
        ],
    );
    for sum in ["received", "passed", "dropped", "would_drop"] {
        let place = format!("/totals/{sum}");
        has(&stats, &[(&format!("{place}/packets"), 'n'), (&format!("{place}/bytes"), 'n')]);
    }
    for sum in ["passed", "dropped", "would_drop"] {
        let place = format!("/policies/0/{sum}");
        has(&stats, &[(&format!("{place}/packets"), 'n'), (&format!("{place}/bytes"), 'n')]);
    }
    let limits = json("limit show default");
    has(
        &limits,
        &[
            ("/policies/0/name", 's'),
            ("/policies/0/mode", 's'),
            ("/policies/0/algorithm", 's'),
            ("/policies/0/rate_per_second", 'n'),
            ("/policies/0/burst", 'n'),
            ("/policies/0/bandwidth_bytes_per_second", '0'),
            ("/policies/0/bandwidth_burst_bytes", '0'),
        ],
    );
    let limit = &limits["policies"][0];
    assert_eq!(limit["rate_per_second"], 10_000.0);
    assert_eq!((&limit["burst"], &limit["name"]), (&5_000.into(), &"default".into()));
    assert_eq!(limit["algorithm"], "token-bucket");

    // One line a document.
    let lines = daemon.ask("-o ndjson status");
    assert_eq!(lines.lines().count(), 1);
    // Filters.
    assert_eq!(json("stats --iface eth0 --policy default")["policies"][0]["name"], "default");
    for (arguments, word) in [("stats --iface eth9", "eth0"), ("stats --policy no", "default")] {
        let output = daemon.ctl(arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments}");
        assert!(stderr(&output).contains(word), "{}", stderr(&output));
    }
}

#[test]
fn limits_are_changed_or_refused_whole() {
    let (host, _other) = Host::pair();
    let daemon = Daemon::start(&host, "--iface eth0 --rate 1k --burst 2k");
    let limit = || daemon.limits().policies.remove(0);
    let _answer = daemon.ask("limit set default --rate 90/m");
    assert_eq!((limit().source.rate_per_second, limit().source.burst), (Some(1.5), Some(2_000)));
    let _answer = daemon.ask("limit set default --burst 7 --mode observe");
    let now = limit();
    assert_eq!(
        (now.source.rate_per_second, now.source.burst, now.mode.as_str()),
        (Some(1.5), Some(7), "observe")
    );
    for (arguments, code, word) in [
        ("limit set default --rate fast", 6, "fast"),
        ("limit set default --rate 0", 6, "1/day"),
        ("limit set default --rate -5", 6, "-5"),
        ("limit set default --rate 1e30", 6, "1e30"),
        ("limit set default --burst 0", 6, "'0'"),
        ("limit set default --mode maybe", 6, "observe"),
        // The rate is good; it must not be kept.
        ("limit set default --rate 5k --burst 0", 6, "'0'"),
        ("limit set default", 6, "rate"),
        ("limit set other --rate 5", 3, "default"),
        ("limit show other", 3, "default"),
        ("limit set a/b%2e --rate 5", 3, "a/b%2e"),
        ("limit set", 2, "POLICY"),
        ("limits", 2, "limit"),
        ("status --watch 0", 2, "0"),
    ] {
        let output = daemon.ctl(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {}", stderr(&output));
        assert!(stderr(&output).contains(word), "{arguments}: {}", stderr(&output));
        assert_eq!(limit(), now, "{arguments} changed something");
    }
    assert_eq!(daemon.status().generation, 3);
    // A script gets the error as JSON as well.
    let output = daemon.ctl("-o json limit set default --rate fast");
    let error: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    has(&error, &[("/error/code", 's'), ("/error/message", 's'), ("/error/hint", 's')]);
    assert_eq!(error["error"]["code"], "invalid");

    for (arguments, code) in [("-o json frob", "usage"), ("-o ndjson limit show no", "not_found")] {
        let output = daemon.ctl(arguments);
        let error: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        assert_eq!(error["error"]["code"], code);
    }
    let empty = host.command(binary("limiterctl")).args(["limit", "show", ""]).output();
    let empty = empty.expect("limiterctl");
    assert_eq!(empty.status.code(), Some(3), "{}", stderr(&empty));

    let log = stderr(&daemon.stop());
    let changes: Vec<_> = log.lines().filter(|line| line.contains("done: limit of")).collect();
    assert_eq!(changes.len(), 2, "{log}");
    assert!(changes[0].contains("uid=0") && changes[0].contains("pid="), "{log}");
}

#[test]
fn limits_of_every_level_come_and_go() {
    let (host, _other) = Host::pair();
    let sized = "--memory 8MiB --new-sources 5k --untracked 10k";
    let daemon = Daemon::start(&host, &format!("--iface eth0 {sized}"));
    let status = daemon.status();
    let new_sources = status.new_sources;
    assert_eq!((new_sources.tracked_per_second, new_sources.untracked_per_second), (5e3, 10e3));
    assert!(status.memory.maps_bytes < 20 << 20, "{}", status.memory.maps_bytes);
    let shown = || daemon.limits().policies.into_iter().find(|it| it.name == "udp").expect("udp");
    let before = shown();
    assert_eq!(
        (&before.source.bandwidth, &before.per_prefix, &before.total),
        (&None, &None, &None)
    );
    let _answer = daemon.ask(
        "limit set udp --bandwidth 80Mbit/s --bandwidth-burst 1MiB --per-prefix-rate 50k \
         --total-rate 500k --total-burst 1M --total-bandwidth 1GB/s --strict true",
    );
    let now = shown();
    assert_eq!(
        (now.source.bandwidth_bytes_per_second, now.source.bandwidth_burst_bytes, now.strict),
        (Some(1e7), Some(1 << 20), true)
    );
    let prefix = now.per_prefix.expect("a limit of each prefix");
    assert_eq!((prefix.ipv4, prefix.ipv6), (24, 48));
    assert_eq!((prefix.limit.rate_per_second, prefix.limit.burst), (Some(5e4), Some(50_000)));
    let total = now.total.expect("a limit of all");
    assert_eq!((total.rate_per_second, total.burst), (Some(5e5), Some(1_000_000)));
    assert_eq!(total.bandwidth_bytes_per_second, Some(1e9));
    assert_eq!((&now.source.rate, now.source.burst), (&before.source.rate, before.source.burst));
    let text = daemon.ask("limit show udp");
    for word in ["10MB/s", "/24 or /48", "host", "500k/s", "strict"] {
        assert!(text.contains(word), "'{word}' is not in\n{text}");
    }
    let generation = daemon.status().generation;
    for (arguments, word) in [
        ("--bandwidth 10", "10MB/s"),
        ("--bandwidth 1MB/s --bandwidth-burst 100B", "1514"),
        ("--total-burst 5k --total-rate off", "rate"),
        ("--per-prefix-bandwidth-burst 1MB", "bandwidth"),
        ("--total-rate never", "never"),
    ] {
        let output = daemon.ctl(&format!("limit set udp {arguments}"));
        assert_eq!(output.status.code(), Some(6), "{arguments}: {}", stderr(&output));
        assert!(stderr(&output).contains(word), "{arguments}: {}", stderr(&output));
    }
    assert_eq!(daemon.status().generation, generation);
    let _answer = daemon.ask(
        "limit set udp --bandwidth off --per-prefix-rate off --total-rate off \
         --total-bandwidth off --strict false",
    );
    assert_eq!(shown(), before);
}

#[test]
fn sockets_answer_those_who_may_ask() {
    let (host, _other) = Host::pair();
    let output = ctl(&host, "status");
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("start limiterd"), "{}", stderr(&output));

    let daemon = Daemon::start(&host, "--iface eth0 --socket /run/here/my.sock");
    assert!(daemon.status().interfaces[0].pinned);
    let read_only = "/run/here/ro.sock";
    for arguments in ["status", "stats", "limit show"] {
        assert_eq!(daemon_at(&host, read_only, arguments).status.code(), Some(0));
    }
    for arguments in ["limit set udp --rate 5", "detach"] {
        let output = daemon_at(&host, read_only, arguments);
        assert_eq!(output.status.code(), Some(5), "{arguments}");
        assert!(stderr(&output).contains("reading only"), "{}", stderr(&output));
    }
    let modes = stdout(&host.run("stat -c %a:%U /run/here/my.sock /run/here/ro.sock"));
    assert_eq!(modes, "660:root\n666:root\n");
    // By the environment; an empty variable is none.
    for (socket, code) in [("/run/here/my.sock", 0), ("", 4)] {
        let mut command = host.command(binary("limiterctl"));
        command.env("LIMITERD_SOCKET", socket).arg("status");
        assert_eq!(command.output().expect("limiterctl").status.code(), Some(code));
    }
    // A stranger may look and not touch.
    for (socket, code) in [("/run/here/my.sock", 5), (read_only, 0)] {
        let mut command = host.command(binary("limiterctl"));
        // SAFETY: between fork and exec only a system call is made.
        unsafe {
            command.pre_exec(|| {
                let nobody = rustix::process::Uid::from_raw(65_534);
                let group = rustix::process::Gid::from_raw(65_534);
                rustix::thread::set_thread_groups(&[])?;
                rustix::thread::set_thread_gid(group)?;
                Ok(rustix::thread::set_thread_uid(nobody)?)
            });
        }
        let output = command.args(["--socket", socket, "status"]).output().expect("limiterctl");
        assert_eq!(output.status.code(), Some(code), "{socket}: {}", stderr(&output));
    }
    assert!(daemon_at(&host, "/run/here/my.sock", "detach").status.success());
    assert!(daemon.wait().status.success());
    assert_eq!(host.left_over(), "");
}

fn daemon_at(host: &Host, socket: &str, arguments: &str) -> Output {
    ctl(host, &format!("--socket {socket} {arguments}"))
}

/// Whatever comes in at the socket, the daemon answers the next one.
#[test]
fn bad_requests_are_answered_and_survived() {
    let (host, _other) = Host::pair();
    let daemon = Daemon::start(&host, "--iface eth0");
    let long = "x".repeat(1 << 20);
    let post = |body: &str| {
        format!(
            "PATCH /v1/limits/udp HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    for (request, answer) in [
        ("\0\u{1}\u{2} garbage\r\n\r\n".to_owned(), "400"),
        ("GET /v1/nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned(), "404"),
        ("DELETE /v1/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned(), "404"),
        ("GET /v1/stats?x=1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned(), "422"),
        (post("{"), "422"),
        (post("{\"rate\": 5}"), "422"),
        (post("{\"speed\": \"5\"}"), "422"),
        (post("{}"), "422"),
        (post("[1]"), "422"),
        (post(&format!("{{\"rate\": \"{long}\"}}")), "422"),
    ] {
        let sent = request.clone();
        let received = host.call(move || {
            let mut stream =
                std::os::unix::net::UnixStream::connect("/run/limiterd/ctl.sock").expect("socket");
            stream.set_read_timeout(Some(Duration::from_secs(5))).expect("an option");
            // The daemon may refuse before it has read all.
            let _ = stream.write_all(sent.as_bytes());
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        });
        let start = &request[..request.len().min(60)];
        assert!(received.starts_with("HTTP/1.1 4"), "{start:?}: {received}");
        assert!(received.contains(answer), "{start:?}: {received}");
        assert!(daemon.ctl("status").status.success(), "after {start:?}");
    }
}

/// A stranger who opens connections and asks nothing shuts nobody out.
#[test]
fn idle_connections_shut_nobody_out() {
    let (host, _other) = Host::pair();
    let daemon = Daemon::start(&host, "--iface eth0");
    let connections = host.call(|| -> Vec<_> {
        let connect = || std::os::unix::net::UnixStream::connect("/run/limiterd/ro.sock");
        let half = |mut stream: std::os::unix::net::UnixStream| {
            // It may be closed already.
            let _ = stream.write_all(b"GET ");
            stream
        };
        (0..900).filter_map(|_| connect().ok()).map(half).collect()
    });
    assert!(connections.len() > 800, "{}", connections.len());
    assert!(daemon.ctl("limit set udp --rate 5").status.success());
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(ctl(&host, "--socket /run/limiterd/ro.sock status").status.code(), Some(0));
    drop(connections);
    assert!(daemon.stop().status.success());
}

/// Nobody reads the log any more: the daemon goes on, and ends as it should.
#[test]
fn a_closed_log_breaks_nothing() {
    let (host, _other) = Host::pair();
    let mut command = host.command(binary("limiterd"));
    let mut process = Running::start(command.args(["--iface", IFACE]).stderr(Stdio::piped()));
    let mut log = std::io::BufReader::new(process.child().stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("ready") {
        line.clear();
        std::io::BufRead::read_line(&mut log, &mut line).expect("the log");
    }
    drop(log);
    for arguments in ["limit set udp --rate 5", "status", "limit set udp --rate 6"] {
        let output = ctl(&host, arguments);
        assert!(output.status.success(), "{arguments}: {}", stderr(&output));
    }
    // Closing a terminal is no reason to stop.
    process.signal(rustix::process::Signal::HUP);
    std::thread::sleep(Duration::from_millis(200));
    assert!(ctl(&host, "status").status.success());
    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().status.success());
    assert_eq!(host.left_over(), "");
}

/// What is not limiterd's is never removed.
#[test]
fn foreign_files_are_left_alone() {
    let (host, _other) = Host::pair();
    let shell = |script: &str| {
        let output = host.command("sh").args(["-c", script]).output().expect("sh");
        assert!(output.status.success(), "{script}: {}", stderr(&output));
        stdout(&output)
    };
    shell("mkdir -p /run/a/v1 /run/a/new; echo x > /run/a/v1/link-eth0; echo x > /run/a/file");
    let junk = format!("/sys/fs/bpf/limiterd/v{ABI_VERSION}/junk");
    shell(&format!("echo x > /run/a/ro.sock; mkdir -p {junk}"));
    let before = shell("find /run/a | sort");
    for (arguments, code) in [
        ("--detach --pin-dir /run/a", 1),
        ("--iface eth0 --socket /run/a/file", 1),
        ("--iface eth0 --socket /run/a/ctl.sock", 1),
        ("--iface eth0 --socket /run/none/here/ctl.sock", 1),
        // The junk is in the way of a start, and survives it.
        ("--iface eth0", 1),
        ("--detach", 0),
    ] {
        let output = limiterd(&host, arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {}", stderr(&output));
        let links = stdout(&host.run("ip link show eth0"));
        assert!(!links.contains("prog/xdp"), "limiterd {arguments} left its program");
    }
    assert_eq!(shell("find /run/a | sort"), before);
    shell(&format!("test -d {junk} && rm -r {junk}"));
    shell("ln -s /run/a /sys/fs/bpf/limiterd/new 2>/dev/null; true");
    assert!(limiterd(&host, "--detach").status.success());
    assert_eq!(shell("find /run/a | sort"), before);
}

/// The emergency brake works on a daemon that hangs.
#[test]
fn a_daemon_that_hangs_is_detached() {
    let (host, _other) = Host::pair();
    let mut daemon = Daemon::start(&host, "--iface eth0");
    daemon.signal(rustix::process::Signal::STOP);
    let output = limiterd(&host, "--detach");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stdout(&host.run("ip link show eth0")).contains("prog/xdp"));
    daemon.signal(rustix::process::Signal::CONT);
    // It may find the request to detach that it slept through, and end.
    let output = daemon.ctl("-o json status");
    if output.status.success() {
        let status: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        assert_eq!(status["interfaces"][0]["attached"], false);
    }
    assert!(daemon.stop().status.success());
    assert_eq!(host.left_over(), "");
}

/// The status follows what happens to the interface.
#[test]
fn interfaces_that_change_are_told_as_they_are() {
    let (host, other) = Host::pair();
    let daemon = Daemon::start(&host, "--iface eth0");
    let problem = || daemon.status().problems.first().cloned().unwrap_or_default();
    host.ip("link set eth0 name wan0");
    assert_eq!(daemon.status().interfaces[0].name, "wan0");
    assert_eq!(problem(), "");
    host.ip("link del wan0");
    assert!(problem().contains("is gone"), "{}", problem());
    assert_eq!(daemon.status().health, "degraded");
    host.connect(IFACE, &other, IFACE);
    let start = std::time::Instant::now();
    while !daemon.status().interfaces[0].attached {
        assert!(start.elapsed() < Duration::from_secs(3), "{}", problem());
        std::thread::sleep(Duration::from_millis(20));
    }
    let log = stderr(&daemon.stop());
    assert!(log.contains("WARN") && log.contains("eth0 had lost its protection"), "{log}");

    // A renamed interface is taken over by its new name.
    let _killed = Daemon::start(&host, "--iface eth0").kill();
    host.ip("link set eth0 name wan0");
    let daemon = Daemon::start(&host, "--iface wan0");
    assert!(daemon.status().interfaces[0].attached);
    assert!(daemon.stop().status.success());
    assert_eq!(host.left_over(), "");

    // Native mode is not given up for what an earlier run left.
    let _killed = Daemon::start(&host, "--iface wan0 --xdp-mode generic").kill();
    let output = limiterd(&host, "--iface wan0 --xdp-mode native");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("limiterd --detach"), "{}", stderr(&output));
    assert!(limiterd(&host, "--detach").status.success());
    assert_eq!(host.left_over(), "");
}

#[test]
fn output_is_for_people_too() {
    let (host, _other) = Host::pair();
    let daemon = Daemon::start(&host, "--iface eth0");
    for (arguments, words) in [
        ("status", &["limiterd", "ok", "eth0", "native", "MiB"][..]),
        ("stats", &["received", "passed", "dropped", "tcp-syn", "reason"]),
        ("limit show", &["tcp-syn", "icmp", "fragment", "enforce", "/s"]),
        ("completions bash", &["limiterctl", "stats"]),
        ("completions zsh", &["limiterctl", "stats"]),
        ("completions fish", &["limiterctl", "stats"]),
        ("--help", &["status", "stats", "limit", "detach"]),
        ("--version", &["limiterctl"]),
    ] {
        let text = daemon.ask(arguments);
        for word in words {
            assert!(text.contains(word), "limiterctl {arguments}: '{word}' is not in\n{text}");
        }
    }
    // Again and again, until the reader has enough.
    let mut command = host.command(binary("limiterctl"));
    command.args(["-o", "ndjson", "stats", "--watch", "1"]).stdout(Stdio::piped());
    let mut watch = Running::start(&mut command);
    let out = watch.child().stdout.take().expect("a pipe");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(out));
    for _ in 0..2 {
        let line = lines.next().expect("a line").expect("text");
        let _document: Value = serde_json::from_str(&line).expect("JSON");
    }
    drop(lines);
    assert!(watch.wait().status.success(), "a closed pipe is no error");
}

#[test]
fn every_command_has_a_manual_page() {
    let (host, _other) = Host::pair();
    let page = stdout(&limiterd(&host, "--print-manual"));
    assert!(page.contains(".TH limiterd 8"), "{page}");
    for option in ["iface", "rate", "observe", "detach", "metrics"] {
        assert!(page.contains(&format!("\\-\\-{option}")), "--{option} is not in\n{page}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let output = ctl(&host, &format!("man --to {}", directory.path().display()));
    assert!(output.status.success(), "{}", stderr(&output));
    let help = stdout(&ctl(&host, "--help"));
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let mut found = 0;
    for command in commands.take_while(|line| !line.is_empty()) {
        let Some(name) = command.split_whitespace().next().filter(|name| *name != "help") else {
            continue;
        };
        let page = directory.path().join(format!("limiterctl-{name}.1"));
        let page = std::fs::read_to_string(&page).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(page.contains(&format!(".TH limiterctl-{name} 1")), "{page}");
        found += 1;
    }
    assert!(found > 10, "{help}");
    let first = std::fs::read_to_string(directory.path().join("limiterctl.1")).expect("a page");
    assert_eq!(first, stdout(&ctl(&host, "man")));
    let nowhere = ctl(&host, "man --to /proc/none");
    assert!(nowhere.status.code() == Some(1) && stderr(&nowhere).contains("/proc/none"));
}

#[test]
fn the_log_can_be_json() {
    let (host, _other) = Host::pair();
    let daemon = Daemon::start(&host, "--iface eth0 --rate 1k --log-format json");
    let log = stderr(&daemon.stop());
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let message = |word: &str| lines.iter().any(|line| line["message"].to_string().contains(word));
    for word in ["memory", "eth0", "policy default: 1000/s", "burst 1000", "ready", "detached"] {
        assert!(message(word), "'{word}' is not in {log}");
    }
}

/// Under systemd, a line has its fields in the journal.
#[test]
fn the_journal_gets_fields() {
    let (host, _other) = Host::pair();
    let journal = host.call(|| {
        std::fs::create_dir_all("/run/systemd/journal").expect("a directory");
        UnixDatagram::bind("/run/systemd/journal/socket").expect("a socket")
    });
    journal.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("stderr");
    let started = |is_journal: bool| {
        let stderr = std::fs::File::create(&log).expect("a file");
        let meta = stderr.metadata().expect("a file");
        let inode = meta.ino() + u64::from(!is_journal);
        let mut command = host.command(binary("limiterd"));
        command.args(["--iface", IFACE, "--observe"]).stderr(stderr);
        Running::start(command.env("JOURNAL_STREAM", format!("{}:{inode}", meta.dev())))
    };
    let mut daemon = started(true);
    let mut entries = Vec::new();
    loop {
        let mut bytes = [0; 4096];
        let length = journal.recv(&mut bytes).expect("an entry");
        let entry = text(&bytes[..length]);
        assert!(entry.starts_with("SYSLOG_IDENTIFIER=limiterd\nPRIORITY="), "{entry}");
        assert!(entry.ends_with('\n') && entry.contains("\nMESSAGE="), "{entry}");
        let is_last = entry.contains("MESSAGE=ready");
        entries.push(entry);
        if is_last {
            break;
        }
    }
    let warning = entries.iter().find(|entry| entry.contains("MESSAGE=observing only"));
    assert!(warning.is_some_and(|entry| entry.contains("PRIORITY=4\n")), "{entries:?}");
    let ready = entries.last().expect("an entry");
    assert!(ready.contains("PRIORITY=6\n"), "{ready}");
    // A journal that takes nothing any more holds nothing up.
    drop(journal);
    assert!(ctl(&host, "status").status.success());
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.wait().status.success());
    assert_eq!(std::fs::read_to_string(&log).expect("a file"), "");

    // Standard error goes elsewhere.
    let mut daemon = started(false);
    while !ctl(&host, "status").status.success() {
        std::thread::sleep(Duration::from_millis(50));
    }
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.wait().status.success());
    assert!(std::fs::read_to_string(&log).expect("a file").contains("ready"));
}

#[test]
fn detach_needs_no_daemon() {
    let (host, _other) = Host::pair();
    for command in ["limiterd --detach", "limiterctl detach"] {
        let (program, arguments) = command.split_once(' ').expect("two words");
        let run = || host.command(binary(program)).args(arguments.split(' ')).output();
        // Nothing is there; a running daemon; one that was killed.
        assert!(run().expect(program).status.success(), "{command} on nothing");
        let daemon = Daemon::start(&host, "--iface eth0");
        assert!(run().expect(program).status.success(), "{command} on a running daemon");
        assert!(daemon.wait().status.success());
        assert_eq!(host.left_over(), "", "{command}");
        let _killed = Daemon::start(&host, "--iface eth0").kill();
        assert_ne!(host.left_over(), "");
        assert!(run().expect(program).status.success(), "{command} on a killed daemon");
        assert_eq!(host.left_over(), "", "{command}");
    }
}
