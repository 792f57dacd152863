//! A proposed limit does what was said of it.

use std::{collections::BTreeSet, net::Ipv4Addr};

use limiter_tests::{
    daemon::Daemon,
    net::{IFACE, Net},
    senders::{Senders, flood},
};
use limiter_user::api::{Event, Suggestions, What};

const CONFIG: &str = r#"
[[policy]]
name = "dns"
mode = "observe"
match = { proto = "udp", ports = [53] }
rate = "1M/s"
burst = 1000000
"#;
const FILE: &str = "/run/limiterd.toml";
const SOURCES: u32 = 300;
const ROUNDS: usize = 60;
const PER_SECOND: u64 = 3000;

/// A mix that can be sent again: most sources send little, a few much more.
fn mix(from: Senders) -> Vec<Vec<u8>> {
    let source = |number: u32| Ipv4Addr::from(0x0a00_0000 + number).to_string();
    let round = |round: usize| {
        let often = (0..SOURCES).filter(move |number| match number {
            // Each round is a tenth of a second.
            0..3 => true,
            3..30 => round.is_multiple_of(2),
            _ => (*number as usize + round).is_multiple_of(10),
        });
        let times = |number| if number < 3 { 40 } else { 1 };
        often.flat_map(move |number| std::iter::repeat_n(number, times(number)))
    };
    (0..ROUNDS).flat_map(round).map(|number| from.udp(&source(number))).collect()
}

#[test]
fn what_it_proposes_cuts_what_it_said() {
    let net = Net::new();
    net.server.call(|| std::fs::write(FILE, CONFIG)).expect("a file");
    let daemon = Daemon::start(&net.server, &format!("--iface {IFACE} --config {FILE}"));
    std::thread::sleep(std::time::Duration::from_secs(2));
    let frames = mix(Senders::of(&net));
    let count = frames.len() as u64;
    flood(&net, frames.clone(), count, PER_SECOND);
    std::thread::sleep(std::time::Duration::from_secs(1));

    let options = "--policy dns --quantile 95 --headroom 1.5";
    let text = daemon.ask(&format!("-o json suggest {options}"));
    let suggestions: Suggestions = serde_json::from_str(&text).expect("suggestions");
    let it = &suggestions.policies[0];
    // One packet of some is sampled: of sources with few, not every one.
    assert!(it.policy == "dns" && it.one_source_in == 1, "{it:?}");
    assert!((100..=u64::from(SOURCES)).contains(&it.sources_seen), "{it:?}");
    let seen = it.packets_seen as f64 / count as f64;
    assert!((0.95..=1.001).contains(&seen), "{seen}");
    // Three of them send fifty times as much as the others.
    assert!((3..10).contains(&it.sources_cut), "{it:?}");
    assert!(it.share_cut > 0.3 && it.share_error < 0.3, "{it:?}");
    assert_eq!(it.nearest.len(), 10);
    let said = it.nearest.iter().filter(|near| near.use_of_burst > 1.0);
    let said: Vec<_> = said.map(|near| near.source.as_str()).collect();
    assert_eq!(said.len() as u64, it.sources_cut, "{it:?}");
    for source in ["10.0.0.0", "10.0.0.1", "10.0.0.2"] {
        assert!(said[..3].contains(&source), "{said:?}");
    }
    // For people, the same.
    let table = daemon.ask(&format!("suggest {options}"));
    assert!(table.contains(&it.command) && table.contains("10.0.0.1"), "{table}");

    // As it says, and enforced.
    let command = it.command.strip_prefix("limiterctl ").expect("a command");
    let _ = daemon.ask(&format!("{command} --mode enforce"));
    let before = daemon.policy("dns");
    flood(&net, frames, count, PER_SECOND);
    let after = daemon.policy("dns");
    let [passed, dropped, would] = [0, 1, 2].map(|at| after[at] - before[at]);
    assert_eq!((passed + dropped + net.lost_before_server(), would), (count, 0));
    let events = daemon.ask("-o ndjson events -n 10000 --verdict drop");
    let mut dropped_sources = BTreeSet::new();
    for line in events.lines() {
        let event: Event = serde_json::from_str(line).expect("an event");
        let What::Packet(packet) = event.what else { panic!("{line}") };
        dropped_sources.extend(packet.source);
    }
    assert!(dropped_sources.len() >= 3, "{dropped_sources:?}");
    assert!(dropped_sources.iter().all(|it| said.contains(&it.as_str())), "{dropped_sources:?}");
    let cut = dropped as f64 / count as f64;
    assert!(
        (cut - it.share_cut).abs() <= it.share_error,
        "{cut}, not {} +- {}",
        it.share_cut,
        it.share_error
    );
}
