//! What is served over HTTP for Prometheus: complete, exact, bounded.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::Stdio,
    time::{Duration, Instant},
};

use limiter_tests::{
    daemon::{Daemon, limiterd},
    host::{Host, Running, stderr, text},
    http::{self, METRICS},
    net::{IFACE, Net, SERVER4},
    senders::{Senders, flood},
};

const CONFIG: &str = r#"
[[policy]]
name = "web"
match = { proto = "tcp", ports = [80] }
rate = "1k/s"
burst = 100

[[policy]]
name = "rest"
mode = "observe"
rate = "10/s"
burst = 10
"#;
const FILE: &str = "/run/limiterd.toml";

fn configured(net: &Net, arguments: &str) -> Daemon {
    net.server.call(|| std::fs::write(FILE, CONFIG)).expect("a file");
    Daemon::start(&net.server, &format!("--iface {IFACE} --config {FILE} {arguments}"))
}

/// Series with their values.
type Scrape = BTreeMap<String, f64>;

fn scrape(host: &Host) -> Scrape {
    let answer = http::get(host, METRICS, "/metrics");
    assert_eq!(answer.status, 200, "{answer:?}");
    parsed(&answer.body)
}

fn parsed(text: &str) -> Scrape {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let series = lines.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
    });
    series.collect()
}

/// Scrapes when the last collection is no longer served.
fn fresh(host: &Host) -> Scrape {
    std::thread::sleep(Duration::from_millis(1100));
    scrape(host)
}

/// Name and labels of a series.
fn labelled(series: &str) -> (String, BTreeMap<String, String>) {
    let Some((name, rest)) = series.split_once('{') else {
        return (series.into(), BTreeMap::new());
    };
    let labels = rest.trim_end_matches('}').split("\",").map(|label| {
        let (name, value) = label.split_once("=\"").unwrap_or_else(|| panic!("{series}"));
        (name.to_owned(), value.trim_end_matches('"').to_owned())
    });
    (name.into(), labels.collect())
}

fn sum(scrape: &Scrape, name: &str, wanted: &[(&str, &str)]) -> f64 {
    let fits = |series: &str| {
        let (own, labels) = labelled(series);
        own == name
            && wanted.iter().all(|(label, value)| labels.get(*label).is_some_and(|it| it == value))
    };
    scrape.iter().filter(|(series, _)| fits(series)).map(|(_, value)| value).sum()
}

#[test]
fn a_scrape_says_what_was_counted() {
    let net = Net::new();
    let daemon = configured(&net, "");
    let _ = daemon.ask("ban add 203.0.113.9 --for 1h");
    let from = Senders::of(&net);
    let frames = vec![from.syn("198.51.100.1"), from.udp("198.51.100.2"), from.udp("203.0.113.9")];
    flood(&net, frames, 30_000, 30_000);
    let (scrape, stats) = (fresh(&net.server), daemon.stats());

    for reason in &stats.reasons {
        let labels = [
            ("interface", IFACE),
            ("verdict", reason.verdict.as_str()),
            ("reason", reason.reason.as_str()),
        ];
        assert_eq!(sum(&scrape, "limiterd_packets_total", &labels), reason.packets as f64);
        assert_eq!(sum(&scrape, "limiterd_bytes_total", &labels), reason.bytes as f64);
    }
    for reason in ["banned", "source_rate"] {
        let dropped = [("verdict", "drop"), ("reason", reason)];
        assert!(sum(&scrape, "limiterd_packets_total", &dropped) > 5000.0, "{reason}");
    }
    let all = sum(&scrape, "limiterd_packets_total", &[]);
    assert_eq!(all, stats.totals.received.packets as f64);
    for policy in &stats.policies {
        for (verdict, packets) in [
            ("drop", policy.dropped.packets),
            ("would_drop", policy.would_drop.packets),
            ("pass", policy.passed.packets - policy.would_drop.packets),
        ] {
            let labels = [("policy", policy.name.as_str()), ("verdict", verdict)];
            let counted = sum(&scrape, "limiterd_policy_packets_total", &labels);
            assert_eq!(counted, packets as f64, "{labels:?}");
        }
    }
    assert!(daemon.policy("rest")[2] > 5000, "nothing would be dropped");
    let status = daemon.status();
    for (name, labels, value) in [
        ("limiterd_attached", &[("interface", IFACE)][..], 1.0),
        ("limiterd_xdp_mode", &[("interface", IFACE), ("mode", "native")], 1.0),
        ("limiterd_xdp_mode", &[("interface", IFACE), ("mode", "generic")], 0.0),
        ("limiterd_config_generation", &[], status.generation as f64),
        ("limiterd_config_last_reload_successful", &[], 1.0),
        ("limiterd_confirm_pending", &[], 0.0),
        ("limiterd_bans", &[("origin", "operator")], 1.0),
        ("limiterd_bans", &[("origin", "config")], 0.0),
        ("limiterd_map_capacity", &[("map", "sources4")], f64::from(status.memory.max_sources)),
        ("limiterd_map_errors_total", &[], 0.0),
        ("limiterd_events_lost_total", &[], 0.0),
        ("limiterd_observe", &[], 0.0),
        ("limiterd_healthy", &[], 1.0),
        ("limiterd_collection_errors_total", &[], 0.0),
        (
            "limiterd_build_info",
            &[("version", &status.version), ("object_sha256", &status.object_sha256)],
            1.0,
        ),
    ] {
        assert_eq!(sum(&scrape, name, labels), value, "{name} {labels:?}");
    }

    let pending = format!("config apply {FILE} --confirm 60s");
    net.server.call(|| std::fs::write(FILE, CONFIG.replace("1k/s", "2k/s"))).expect("a file");
    let _ = daemon.ask(&pending);
    let later = fresh(&net.server);
    assert_eq!(sum(&later, "limiterd_confirm_pending", &[]), 1.0);
    assert!(sum(&later, "limiterd_config_generation", &[]) > status.generation as f64);
    let after = sum(&later, "limiterd_packets_total", &[("reason", "source_rate")]);
    assert_eq!(after, sum(&scrape, "limiterd_packets_total", &[("reason", "source_rate")]));
}

#[test]
fn prometheus_reads_it() {
    let net = Net::new();
    let _daemon = configured(&net, "");
    flood(&net, vec![Senders::of(&net).syn("198.51.100.1")], 100, 1000);
    let body = http::get(&net.server, METRICS, "/metrics").body;
    let last = body.lines().last().expect("a line");
    assert!(last.starts_with("limiterd_collection_errors_total"), "{last}");
    let mut command = net.server.command("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = Running::start(&mut command);
    let mut input = check.child().stdin.take().expect("a pipe");
    input.write_all(body.as_bytes()).expect("promtool reads");
    drop(input);
    let output = check.wait();
    assert!(output.status.success(), "{}{}", text(&output.stdout), stderr(&output));
    let _checked =
        net.server.run(&format!("promtool check rules {}", file("prometheus/limiterd.rules.yml")));
}

fn file(name: &str) -> String {
    format!("{}/../contrib/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Names of metrics in an expression, each with the labels that stand in braces
/// behind it.
fn used(expression: &str) -> Vec<(String, Vec<String>)> {
    let mut used = Vec::new();
    let mut rest = expression;
    let is_name = |byte: char| byte.is_ascii_alphanumeric() || byte == '_';
    while let Some(start) = rest.find("limiterd_") {
        rest = &rest[start..];
        let end = rest.find(|byte| !is_name(byte)).unwrap_or(rest.len());
        let name = rest[..end].to_owned();
        rest = &rest[end..];
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            let inside = inside.split('}').next().unwrap_or_default();
            labels = inside
                .split(',')
                .map(|matcher| matcher.split(['=', '!']).next().unwrap_or_default().trim().into())
                .collect();
        }
        used.push((name, labels));
    }
    used
}

/// All strings under these keys, wherever they are.
fn strings(value: &serde_json::Value, keys: &[&str], found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                if let (true, Some(text)) = (keys.contains(&key.as_str()), value.as_str()) {
                    found.push(text.into());
                }
                strings(value, keys, found);
            }
        }
        serde_json::Value::Array(values) => {
            values.iter().for_each(|value| strings(value, keys, found));
        }
        _ => {}
    }
}

#[test]
fn the_board_and_the_alerts_name_what_there_is() {
    let net = Net::new();
    let _daemon = configured(&net, "");
    let scrape = scrape(&net.server);
    let mut known = BTreeMap::<String, BTreeSet<String>>::new();
    for series in scrape.keys() {
        let (name, labels) = labelled(series);
        known.entry(name).or_default().extend(labels.into_keys());
    }
    let board = std::fs::read_to_string(file("grafana/limiterd.json")).expect("the board");
    let board: serde_json::Value = serde_json::from_str(&board).expect("JSON");
    let mut expressions = Vec::new();
    strings(&board, &["expr", "query"], &mut expressions);
    let of_board = expressions.len();
    assert!(of_board > 15, "{expressions:?}");
    let rules = std::fs::read_to_string(file("prometheus/limiterd.rules.yml")).expect("rules");
    // The names of alerts are written otherwise.
    expressions.push(rules.lines().filter(|line| !line.contains("description:")).collect());
    let mut count = 0;
    for (name, labels) in expressions.iter().flat_map(|expression| used(expression)) {
        let Some(own) = known.get(&name) else {
            panic!("there is no metric {name}");
        };
        for label in labels {
            // What Prometheus adds.
            let is_known = ["instance", "job"].contains(&label.as_str()) || own.contains(&label);
            assert!(is_known, "{name} has no label '{label}'");
        }
        count += 1;
    }
    assert!(count > of_board, "{count}");
}

#[test]
fn a_million_sources_make_no_series() {
    let net = Net::new();
    let daemon = configured(&net, "");
    let from = Senders::of(&net);
    let source = |n: u32| Ipv4Addr::from_bits(0x0b00_0000 + n).to_string();
    let frames = |count| (0..count).map(|n| from.udp(&source(n))).collect::<Vec<_>>();
    flood(&net, frames(10), 1000, 10_000);
    let before = fresh(&net.server);
    flood(&net, frames(1_000_000), 1_000_000, 300_000);
    let start = Instant::now();
    let after = fresh(&net.server);
    println!(
        "a scrape after a million sources: {:?}",
        start.elapsed() - Duration::from_millis(1100)
    );
    let names = |scrape: &Scrape| scrape.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&before), names(&after));
    let counted = sum(&after, "limiterd_packets_total", &[]);
    assert!(counted >= 1_000_000.0, "{counted}");
    drop(daemon);
}

#[test]
fn ready_while_protected() {
    let net = Net::new();
    let daemon = configured(&net, "");
    for path in ["/livez", "/readyz"] {
        assert_eq!(http::get(&net.server, METRICS, path).status, 200, "{path}");
    }
    net.server.ip(&format!("link del {IFACE}"));
    let answer = http::get(&net.server, METRICS, "/readyz");
    assert_eq!((answer.status, answer.body.as_str()), (503, "eth0 is not protected\n"));
    assert_eq!(http::get(&net.server, METRICS, "/livez").status, 200);
    assert_eq!(sum(&fresh(&net.server), "limiterd_attached", &[("interface", IFACE)]), 0.0);
    drop(daemon);
}

#[test]
fn only_reads_are_answered_and_only_to_whom_they_are_meant() {
    let net = Net::new();
    let daemon = configured(&net, &format!("--metrics {SERVER4}:9900"));
    let open: SocketAddr = format!("{SERVER4}:9900").parse().expect("an address");
    let ask = |head: &str, host: &str| {
        let request = format!("{head} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
        http::send(&net.server, open, &request).expect("an answer").status
    };
    assert_eq!(ask("GET /metrics", SERVER4), 200);
    assert_eq!(ask("HEAD /metrics", SERVER4), 200);
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
        assert_eq!(ask(&format!("{method} /metrics"), SERVER4), 405, "{method}");
    }
    assert_eq!(ask("GET /nothing", SERVER4), 404);
    // What tells addresses of clients is not for foreign web sites.
    assert_eq!(ask("GET /", "example.org"), 400);
    assert_eq!(ask("GET /metrics", "example.org"), 200);
    let answer = http::get(&net.client, open, "/metrics");
    for header in ["x-content-type-options: nosniff", "content-security-policy: default-src 'none'"]
    {
        assert!(answer.head.contains(header), "{}", answer.head);
    }
    drop(daemon);

    let _daemon = configured(&net, "");
    let request = "GET /metrics HTTP/1.1\r\nHost: example.org\r\n\r\n";
    let answer = http::send(&net.server, METRICS, request).expect("an answer");
    assert_eq!(answer.status, 400, "{answer:?}");
}

#[test]
fn slow_clients_do_not_stop_a_scrape() {
    let net = Net::new();
    let _daemon = configured(&net, "");
    let slow = net.server.call(|| {
        let connect = |_| {
            let mut stream = TcpStream::connect(METRICS).expect("a connection");
            stream.write_all(b"GET /metrics HTTP/1.1\r\n").expect("a line");
            stream
        };
        (0..200).map(connect).collect::<Vec<_>>()
    });
    assert!(!scrape(&net.server).is_empty());
    // They are sent away.
    for mut stream in slow {
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(
            ended.is_ok() || ended.is_err_and(|it| it.kind() != std::io::ErrorKind::WouldBlock)
        );
    }
    let threads: Vec<_> =
        (0..16).map(|_| net.server.spawn(|| TcpStream::connect(METRICS).is_ok())).collect();
    assert!(threads.into_iter().all(|thread| thread.join().expect("a thread")));
    assert!(!scrape(&net.server).is_empty());
}

#[test]
fn an_address_that_cannot_be_served_is_told_before_anything_is_attached() {
    let net = Net::new();
    let daemon = configured(&net, "");
    let second =
        "--pin-dir /sys/fs/bpf/second --socket /run/second/ctl.sock --state-dir /run/second";
    let output = limiterd(&net.server, &format!("--iface lo --xdp-mode generic {second}"));
    let message = stderr(&output);
    assert!(!output.status.success());
    assert!(message.contains("127.0.0.1:9898"), "{message}");
    assert!(message.contains("another program listens there"), "{message}");
    assert!(message.contains("--metrics off"), "{message}");
    let links = text(&net.server.run("ip link show lo").stdout);
    assert!(!links.contains("xdp"), "{links}");
    drop(daemon);

    let daemon = configured(&net, "--metrics off");
    let open = net.server.call(|| TcpStream::connect_timeout(&METRICS, Duration::from_secs(1)));
    assert!(open.is_err(), "something listens");
    drop(daemon);
    let output = limiterd(&net.server, &format!("--iface {IFACE} --metrics nowhere"));
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
}
