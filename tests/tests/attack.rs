//! That an attack begins and ends is told: once, to everybody who is to know.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use limiter_tests::{
    daemon::Daemon,
    host::Host,
    http::{self, METRICS},
    net::{IFACE, Net},
    senders::{Senders, flood},
};
use limiter_user::api::{Event, What};
use serde_json::Value;

const POLICY: &str = r#"
[[policy]]
name = "rest"
rate = "10/s"
burst = 10

[attack]
rate = "1k/s"
begins_after = 1
ends_after = 2
"#;
const FILE: &str = "/run/limiterd.toml";
const TOLD: &str = "/run/told";

fn started(net: &Net, more: &str, arguments: &str) -> Daemon {
    let config = format!("{POLICY}{more}");
    net.server.call(move || std::fs::write(FILE, config)).expect("a file");
    Daemon::start(&net.server, &format!("--iface {IFACE} --config {FILE} {arguments}"))
}

/// Accepts alarms on the loopback of a host; gives what was sent.
fn webhook(host: &Host) -> Receiver<String> {
    let (send, receive) = channel();
    let listener = host.call(|| TcpListener::bind("127.0.0.1:8000")).expect("an address");
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = Vec::new();
            let mut bytes = [0; 4096];
            while body(&request).is_none() {
                match stream.read(&mut bytes) {
                    Ok(read @ 1..) => request.extend(&bytes[..read]),
                    _ => break,
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
            if send.send(body(&request).unwrap_or_default()).is_err() {
                return;
            }
        }
    });
    receive
}

/// The body of a request, once all of it is there.
fn body(request: &[u8]) -> Option<String> {
    let request = String::from_utf8_lossy(request);
    let (head, body) = request.split_once("\r\n\r\n")?;
    assert!(head.starts_with("POST /alarm HTTP/1.1"), "{head}");
    let head = head.to_lowercase();
    assert!(head.contains("content-type: application/json"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    (body.len() >= length.trim().parse().ok()?).then(|| body.to_owned())
}

fn metric(host: &Host, name: &str) -> f64 {
    std::thread::sleep(Duration::from_millis(1100));
    let body = http::get(host, METRICS, "/metrics").body;
    let line = body.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name}: {body}")).parse().expect("a number")
}

fn is_of(facts: &Value, event: &str) {
    assert_eq!(facts["event"], event, "{facts}");
    assert_eq!(facts["schema_version"], 1);
    assert!(facts["host"].as_str().is_some_and(|host| !host.is_empty()), "{facts}");
    assert_eq!(facts["reasons"][0]["reason"], "source_rate");
    assert_eq!(facts["ongoing"], event == "attack_begins");
    assert_eq!(facts["sources"][0]["source"], "198.51.100.1", "{facts}");
    assert!(facts["peak_pps"].as_f64().is_some_and(|peak| peak > 1000.0), "{facts}");
}

#[test]
fn it_is_told_when_it_begins_and_when_it_is_over() {
    let net = Net::new();
    let alarms = webhook(&net.server);
    let more = format!(
        "command = [\"/usr/bin/tee\", \"-a\", \"{TOLD}\"]\nwebhook = \"http://127.0.0.1:8000/alarm\"\n"
    );
    let daemon = started(&net, &more, "--log-format json");
    let from = Senders::of(&net);
    // A second below it is none.
    flood(&net, vec![from.udp("198.51.100.1")], 500, 500);
    std::thread::sleep(Duration::from_secs(2));
    assert!(daemon.status().attack.is_none() && metric(&net.server, "limiterd_attack") == 0.0);

    // With a short pause, which is no end.
    flood(&net, vec![from.udp("198.51.100.1")], 15_000, 5000);
    let attack = daemon.status().attack.expect("an attack");
    assert!(attack.ongoing && !attack.observed && attack.dropped_pps > 1000.0, "{attack:?}");
    assert_eq!(metric(&net.server, "limiterd_attack"), 1.0);
    flood(&net, vec![from.udp("198.51.100.1")], 10_000, 5000);
    std::thread::sleep(Duration::from_secs(5));
    assert!(daemon.status().attack.is_none());
    assert_eq!(metric(&net.server, "limiterd_attack"), 0.0);
    assert_eq!(metric(&net.server, "limiterd_attacks_total"), 1.0);

    for event in ["attack_begins", "attack_ends"] {
        let body = alarms.recv_timeout(Duration::from_secs(10)).expect("an alarm");
        is_of(&serde_json::from_str(&body).expect("JSON"), event);
    }
    assert!(alarms.try_recv().is_err(), "one alarm too many");
    let told = net.server.call(|| std::fs::read_to_string(TOLD)).expect("what was told");
    let told: Vec<Value> =
        serde_json::Deserializer::from_str(&told).into_iter().map(|it| it.expect("JSON")).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    is_of(&told[0], "attack_begins");
    is_of(&told[1], "attack_ends");
    let packets = told[1]["packets"].as_u64().expect("a number");
    assert!((20_000..=25_000).contains(&packets), "{packets}");

    let events = daemon.ask("-o ndjson events -n 10000");
    let events = events.lines().map(|line| serde_json::from_str::<Event>(line).expect("an event"));
    let attacks = events.filter(|event| !matches!(event.what, What::Packet(_)));
    let attacks: Vec<_> = attacks.map(|event| event.what).collect();
    assert!(matches!(&attacks[..], [What::AttackBegins(_), What::AttackEnds(_)]), "{attacks:?}");

    let output = daemon.stop();
    let log = String::from_utf8_lossy(&output.stderr);
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let lines: Vec<_> = lines.filter(|line| line["event"].is_string()).collect();
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str()).collect();
    assert_eq!(events, [Some("attack_begins"), Some("attack_ends")], "{log}");
    assert_eq!(lines[0]["reason"], "source_rate");
    assert_eq!(lines[0]["source"], "198.51.100.1");
}

/// Whoever is told cannot hold the shield up: a command that does not end is
/// ended, and one that is not there is named.
#[test]
fn nobody_who_is_told_holds_anything_up() {
    let net = Net::new();
    let daemon = started(&net, "command = [\"/usr/bin/sleep\", \"60\"]\n", "");
    let from = Senders::of(&net);
    flood(&net, vec![from.udp("198.51.100.1")], 15_000, 5000);
    assert!(daemon.status().attack.is_some());
    std::thread::sleep(Duration::from_secs(12));
    assert!(daemon.status().attack.is_none());
    let output = daemon.stop();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("/usr/bin/sleep: has not ended within 10 s, and was killed"), "{log}");

    let more = "command = [\"/nonexistent/alarm\"]\nwebhook = \"http://127.0.0.1:8001/\"\n";
    let daemon = started(&net, more, "");
    flood(&net, vec![from.udp("198.51.100.1")], 15_000, 5000);
    std::thread::sleep(Duration::from_secs(1));
    let output = daemon.stop();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        log.contains("/nonexistent/alarm: ") && log.contains("http://127.0.0.1:8001/: "),
        "{log}"
    );
    assert_eq!(log.matches("attack begins").count(), 1, "{log}");
}

/// Under observation nothing is dropped, and that is said.
#[test]
fn what_is_only_observed_is_an_attack_as_well() {
    let net = Net::new();
    let daemon = started(&net, "", "--observe");
    flood(&net, vec![Senders::of(&net).udp("198.51.100.1")], 15_000, 5000);
    let attack = daemon.status().attack.expect("an attack");
    assert!(attack.observed, "{attack:?}");
    let log = String::from_utf8_lossy(&daemon.stop().stderr).into_owned();
    assert!(log.contains("attack begins; it is observed, nothing is dropped"), "{log}");
}
