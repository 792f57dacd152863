//! `limiterctl doctor` on real hosts, and what a start takes from it.

use std::process::Output;

use limiter_common::ABI_VERSION;
use limiter_tests::{
    daemon::{Daemon, ctl},
    host::{Host, binary, text},
    net::IFACE,
    program::attach_foreign,
};
use limiter_user::api::{Doctor, Level};

/// Looks at a host; the exit code follows from the findings.
fn examine(host: &Host, arguments: &str) -> Doctor {
    let output = ctl(host, &format!("-o json doctor {arguments}"));
    read(&output, arguments)
}

fn read(output: &Output, arguments: &str) -> Doctor {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(err, "", "doctor {arguments}");
    let doctor: Doctor =
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    let errors = doctor.findings.iter().any(|finding| finding.level == Level::Error);
    assert_eq!(doctor.healthy, !errors, "{out}");
    assert_eq!(output.status.code(), Some(i32::from(errors)), "doctor {arguments}: {out}");
    doctor
}

/// Checks that a finding of this subject and level says these words.
fn says(doctor: &Doctor, level: Level, subject: &str, words: &[&str]) {
    let all: Vec<_> = doctor.findings.iter().map(ToString::to_string).collect();
    let found = doctor.findings.iter().any(|finding| {
        let told = finding.to_string();
        let right = finding.level == level && finding.subject == subject;
        right && words.iter().all(|word| told.contains(word))
    });
    assert!(found, "no {level:?} of {subject} with {words:?} in\n{}", all.join("\n"));
}

fn silent(doctor: &Doctor, subject: &str) {
    assert!(!doctor.findings.iter().any(|it| it.subject == subject), "{:#?}", doctor.findings);
}

/// Runs a command line of a user, or with fewer capabilities.
fn as_user(host: &Host, how: &str, program: &str, arguments: &str) -> Output {
    let mut command = host.command("setpriv");
    command.args(how.split_whitespace()).arg(binary(program));
    command.args(arguments.split_whitespace()).output().expect("setpriv")
}

#[test]
fn a_host_that_is_as_it_should_be() {
    let (host, _other) = Host::pair();
    let doctor = examine(&host, "");
    assert!(doctor.healthy, "{:#?}", doctor.findings);
    says(&doctor, Level::Ok, "kernel", &["Linux"]);
    says(&doctor, Level::Ok, "capabilities", &["CAP_BPF", "CAP_NET_ADMIN"]);
    says(&doctor, Level::Ok, "bpf file system", &["/sys/fs/bpf", "rw"]);
    says(&doctor, Level::Ok, "pin directory", &["/sys/fs/bpf/limiterd", "not there yet"]);
    says(&doctor, Level::Ok, "memory", &["MiB", "262144"]);
    says(&doctor, Level::Ok, "eth0 state", &["up"]);
    says(&doctor, Level::Ok, "eth0 driver", &["veth", "native XDP"]);
    says(&doctor, Level::Ok, "eth0 mtu", &["1500"]);
    silent(&doctor, "lo state");
    silent(&doctor, "eth0 program");
    // What was not there before is not there now.
    assert_eq!(text(&host.run("find /sys/fs/bpf /run -mindepth 1 -not -name *.debug").stdout), "");

    // For scripts: these fields, whatever else comes.
    let output = ctl(&host, "-o ndjson doctor --iface eth0 --max-sources 4096");
    assert!(output.status.success());
    let out = text(&output.stdout);
    assert_eq!(out.lines().count(), 1, "{out}");
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&json["schema_version"], &json["healthy"]), (&1.into(), &true.into()));
    for finding in json["findings"].as_array().expect("findings") {
        assert!(["ok", "note", "warning", "error"].map(Into::into).contains(&finding["level"]));
        assert!(finding["subject"].is_string() && finding["finding"].is_string(), "{finding}");
        for field in ["consequence", "mend"] {
            let value = finding.get(field).expect(field);
            assert!(value.is_null() || value.is_string(), "{finding}");
        }
    }
    assert!(out.contains("4096"), "{out}");

    // For people: a line each.
    let lines = text(&ctl(&host, "doctor").stdout);
    assert_eq!(lines.lines().count(), doctor.findings.len(), "{lines}");
    assert!(lines.contains("\nok eth0 driver: veth, with native XDP\n"), "{lines}");
}

#[test]
fn what_was_typed_can_be_wrong() {
    let (host, _other) = Host::pair();
    let doctor = examine(&host, "--iface nope0 --iface eth0");
    says(&doctor, Level::Error, "nope0", &["nope0", "there are", "eth0"]);
    says(&doctor, Level::Ok, "eth0 state", &["up"]);
    for (arguments, code) in [
        ("--max-sources 5", 6),
        ("--max-sources many", 6),
        ("--max-sources -1", 6),
        ("--bogus", 2),
        ("--iface", 2),
    ] {
        let output = ctl(&host, &format!("doctor {arguments}"));
        assert_eq!(output.status.code(), Some(code), "doctor {arguments}");
    }
    for name in ["../../etc", "this-name-is-too-long-for-one", "a/b", "\u{e4}"] {
        assert!(!examine(&host, &format!("--iface {name}")).healthy);
    }
}

#[test]
fn a_bpf_file_system_that_cannot_be_used() {
    let (host, _other) = Host::pair();
    let doctor = examine(&host, "--pin-dir /run/pins");
    says(&doctor, Level::Error, "pin directory", &["/run/pins", "mount -t bpf", "--pin-dir"]);

    // Read-only: the mount, then the whole file system.
    for (close, mend) in [
        ("mount -o remount,bind,ro /sys/fs/bpf", "mount -o remount,bind,rw /sys/fs/bpf"),
        ("mount -o remount,ro /sys/fs/bpf", "mount -o remount,rw /sys/fs/bpf"),
    ] {
        host.run(close);
        let doctor = examine(&host, "");
        let words = ["/sys/fs/bpf", "read-only", "mount -o remount,rw /sys/fs/bpf"];
        says(&doctor, Level::Error, "pin directory", &words);
        let mut command = host.command(binary("limiterd"));
        let output = command.args(["--iface", IFACE]).output().expect("limiterd");
        assert_eq!(output.status.code(), Some(1));
        let message = text(&output.stderr);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        assert_eq!(message.trim_end().lines().count(), 1, "{message}");
        host.run(mend);
        assert!(examine(&host, "").healthy, "after {mend}");
    }
    // What is told is what mends it.
    host.run("mount -o remount,bind,ro /sys/fs/bpf");
    host.run("mount -o remount,rw /sys/fs/bpf");
    assert!(examine(&host, "").healthy);

    host.run("umount /sys/fs/bpf");
    let doctor = examine(&host, "");
    says(&doctor, Level::Error, "pin directory", &["mount -t bpf bpf /sys/fs/bpf"]);
    host.run("mount -t bpf bpf /sys/fs/bpf");
    assert!(examine(&host, "").healthy);
}

#[test]
fn interfaces_are_told_as_they_are_set() {
    let (host, _other) = Host::pair();
    host.ip("link set eth0 mtu 9000");
    says(&examine(&host, ""), Level::Note, "eth0 mtu", &["9000", "native XDP"]);

    // Fewer receive queues than the peer sends by.
    host.ip("link add name few numtxqueues 1 numrxqueues 1 type veth peer name many numtxqueues 2 numrxqueues 2");
    host.ip("link set few up");
    host.ip("link set many up");
    let doctor = examine(&host, "--iface few");
    says(&doctor, Level::Warning, "few driver", &["without native XDP", "generic"]);
    says(&doctor, Level::Note, "few queues", &["1 receive"]);
    says(&examine(&host, "--iface many"), Level::Ok, "many driver", &["with native XDP"]);

    // A tunnel without Ethernet headers.
    host.ip("tuntap add dev tun0 mode tun");
    host.ip("link set tun0 up");
    says(&examine(&host, ""), Level::Warning, "tun0 frames", &["no Ethernet header"]);

    host.ip("link set eth0 down");
    let doctor = examine(&host, "--iface eth0");
    says(&doctor, Level::Warning, "eth0 state", &["down", "ip link set dev eth0 up"]);
    silent(&examine(&host, ""), "eth0 state");
    let none = Host::new();
    says(&examine(&none, ""), Level::Note, "interfaces", &["none is up"]);
    says(&examine(&none, "--iface lo"), Level::Warning, "lo driver", &["without native XDP"]);

    // A start says it too, unless it does not matter.
    let daemon = Daemon::start(&host, "--iface eth0 --iface few");
    let log = text(&daemon.stop().stderr);
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert!(warnings.iter().any(|line| line.contains("eth0 state: down")), "{log}");
    assert!(!warnings.iter().any(|line| line.contains("eth0 mtu")), "{log}");
}

#[test]
fn a_program_of_somebody_else_is_named() {
    let (host, _other) = Host::pair();
    let foreign = attach_foreign(&host);
    let words = ["'bare_drop'", "native mode", "ip link set dev eth0 xdp off"];
    says(&examine(&host, "--iface eth0"), Level::Error, "eth0 program", &words);
    // It may be of no interest.
    says(&examine(&host, ""), Level::Warning, "eth0 program", &words);
    drop(foreign);
    silent(&examine(&host, "--iface eth0"), "eth0 program");
}

#[test]
fn what_a_daemon_left_is_told() {
    let (host, _other) = Host::pair();
    let mut daemon = Daemon::start(&host, "--iface eth0");
    let process = format!("process {}", daemon.pid());
    let doctor = examine(&host, "--iface eth0");
    says(&doctor, Level::Note, "pins", &[&process, "limiterctl status"]);
    says(&doctor, Level::Ok, "pins", &["links of eth0"]);
    says(&doctor, Level::Ok, "eth0 program", &["limiterd's own", "native mode"]);
    // Another pin directory knows nothing of it.
    let elsewhere = examine(&host, "--iface eth0 --pin-dir /sys/fs/bpf/other");
    says(&elsewhere, Level::Error, "eth0 program", &["'limiterd'", "pins are elsewhere"]);

    let _killed = daemon.kill();
    host.ip("link set eth0 name wan0");
    let doctor = examine(&host, "--iface wan0");
    says(&doctor, Level::Note, "pins", &["links of wan0, without a daemon", "limiterd --detach"]);
    says(&doctor, Level::Ok, "wan0 program", &["limiterd's own"]);

    // Looking has not taken the lock, nor anything else.
    let daemon = Daemon::start(&host, "--iface wan0");
    assert!(daemon.status().interfaces[0].attached);
    let _killed = daemon.kill();

    host.run("mkdir /sys/fs/bpf/limiterd/v9999 /sys/fs/bpf/limiterd/new /sys/fs/bpf/limiterd/mine");
    let doctor = examine(&host, "");
    says(&doctor, Level::Warning, "pins", &["v9999", "another version", "takes over links"]);
    says(&doctor, Level::Note, "pins", &["/new", "did not end"]);
    says(&doctor, Level::Note, "pins", &["/mine", "not limiterd's"]);
    host.run(&format!("mkdir /sys/fs/bpf/limiterd/v{ABI_VERSION}/junk"));
    says(&examine(&host, ""), Level::Error, "pins", &["junk", "rm -r"]);
    host.run(&format!("rmdir /sys/fs/bpf/limiterd/v{ABI_VERSION}/junk"));

    host.ip("link del wan0");
    let doctor = examine(&host, "");
    says(&doctor, Level::Warning, "pins", &["links of wan0", "no interface"]);
    let mut command = host.command(binary("limiterd"));
    assert!(command.arg("--detach").output().expect("limiterd").status.success());
    says(&examine(&host, ""), Level::Note, "pins", &["/mine"]);
}

#[test]
fn an_ordinary_user_is_told_what_he_lacks() {
    let (host, _other) = Host::pair();
    let nobody = "--reuid 65534 --regid 65534 --clear-groups";
    let with = |held: &str| format!("{nobody} --inh-caps={held} --ambient-caps={held}");
    for (how, told) in [
        (nobody.to_owned(), "this process lacks CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN;"),
        (with("+net_admin,+perfmon"), "this process lacks CAP_BPF;"),
        (with("+net_admin,+bpf"), "this process lacks CAP_PERFMON;"),
        (with("+bpf,+perfmon"), "this process lacks CAP_NET_ADMIN;"),
        ("--bounding-set=-bpf,-sys_admin".into(), "this process lacks CAP_BPF;"),
    ] {
        let output = as_user(&host, &how, "limiterctl", "-o json doctor --iface eth0");
        let doctor = read(&output, &how);
        says(&doctor, Level::Error, "capabilities", &[told, "root"]);
        // The rest is told all the same.
        says(&doctor, Level::Ok, "eth0 driver", &["veth", "native XDP"]);

        let output = as_user(&host, &how, "limiterd", "--iface eth0");
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{how}: {message}");
        assert!(message.contains(told) && message.contains("root"), "{message}");
        assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    }
    // With all, but not the owner of the pins.
    let _daemon = Daemon::start(&host, "--iface eth0");
    let all = with("+bpf,+perfmon,+net_admin");
    let output = as_user(&host, &all, "limiterctl", "-o json doctor --iface eth0");
    let doctor = read(&output, &all);
    says(&doctor, Level::Ok, "capabilities", &["CAP_BPF"]);
    let words = ["65534", "/sys/fs/bpf/limiterd", "user 0", "--pin-dir"];
    says(&doctor, Level::Error, "pin directory", &words);
    says(&doctor, Level::Note, "pins", &["may not see"]);
    says(&doctor, Level::Note, "eth0 program", &["sudo"]);
    let output = as_user(&host, &all, "limiterd", "--iface eth0");
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));

    // A user namespace grants nothing that counts here.
    let mut command = host.command("unshare");
    command.args(["--user", "--map-root-user"]).arg(binary("limiterctl"));
    let output = command.args(["-o", "json", "doctor", "--iface", IFACE]).output();
    let doctor = read(&output.expect("unshare"), "in a user namespace");
    says(&doctor, Level::Error, "capabilities", &["user namespace"]);
}
