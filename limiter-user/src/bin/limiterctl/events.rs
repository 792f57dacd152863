//! What happens: sampled packets, attacks.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    time::Duration,
};

use limiter_user::{
    api::{Attack, Event, Events, EventsQuery, SampledPacket, What},
    client::Client,
    error::{Kind, Result},
};
use tokio::time::{Instant, sleep};

use crate::{
    Output, print,
    text::{duration, plain, short},
    write,
};

/// Time between two questions of somebody who follows.
const PACE: Duration = Duration::from_millis(500);
/// Lines for a person at each of them; more, nobody reads.
const LINES: usize = 50;
/// Lines for a program.
const MOST: usize = 10_000;
/// What somebody who follows sees of the past.
const PAST: usize = 10;
/// How long a daemon may be away while it is restarted.
const AWAY: Duration = Duration::from_secs(30);

/// Which packets.
#[derive(Clone, clap::Args)]
pub(crate) struct Which {
    /// Only with this reason, such as `source_rate`; see limiterctl stats
    #[arg(long, value_name = "NAME")]
    reason: Option<String>,
    /// Only with this verdict: drop, would-drop or pass [default: all but pass]
    #[arg(long, value_name = "NAME")]
    verdict: Option<String>,
    /// Only what this policy decides
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Only by this interface
    #[arg(long, value_name = "NAME")]
    iface: Option<String>,
    /// Only from this address or prefix
    #[arg(long, value_name = "PREFIX")]
    src: Option<String>,
    /// Only to this address or prefix
    #[arg(long, value_name = "PREFIX")]
    dst: Option<String>,
    /// Only tcp, udp, icmp or a number
    #[arg(long, value_name = "PROTOCOL")]
    proto: Option<String>,
    /// Only to this port
    #[arg(long, value_name = "PORT")]
    dport: Option<u16>,
}

impl From<Which> for EventsQuery {
    fn from(which: Which) -> Self {
        Self {
            verdict: which.verdict.map(|name| name.replace('-', "_")),
            reason: which.reason,
            policy: which.policy,
            interface: which.iface,
            source: which.src,
            destination: which.dst,
            protocol: which.proto,
            port: which.dport,
            ..Self::default()
        }
    }
}

/// What is shown of them.
#[derive(clap::Args)]
pub(crate) struct Show {
    /// Go on with what comes, until somebody ends it
    #[arg(short, long)]
    follow: bool,
    /// So many of the latest ones [default: 1000; with --follow 10]
    #[arg(short = 'n', long = "count", value_name = "N")]
    count: Option<usize>,
    #[command(flatten)]
    which: Which,
}

impl Show {
    pub(crate) async fn run(self, client: &Client, output: Output) -> Result<()> {
        let limit = self.count.or_else(|| self.follow.then_some(PAST));
        let mut query = EventsQuery { limit, ..self.which.into() };
        let mut events = client.events(&query).await?;
        if !self.follow {
            return match output {
                Output::Ndjson => lines(&events, output),
                _ => print(&events, output, shown),
            };
        }
        query.limit = Some(if output == Output::Table { LINES } else { MOST });
        loop {
            lines(&events, output)?;
            sleep(PACE).await;
            query.after = Some(events.next);
            let next = patiently(client, &query).await?;
            if next.next < events.next {
                tell("the daemon was started anew");
            }
            events = next;
        }
    }
}

/// Asks again while the daemon is restarted.
pub(crate) async fn patiently(client: &Client, query: &EventsQuery) -> Result<Events> {
    let since = Instant::now();
    let mut told = false;
    loop {
        match client.events(query).await {
            Err(error) if error.kind == Kind::Unreachable && since.elapsed() < AWAY => {
                if !told {
                    tell("the daemon is away; waiting for it");
                }
                told = true;
                sleep(PACE).await;
            }
            result => return result,
        }
    }
}

fn tell(what: &str) {
    // Nobody is left to tell if this fails.
    let _ = writeln!(io::stderr(), "limiterctl: {what}");
}

fn lines(events: &Events, output: Output) -> Result<()> {
    if output == Output::Table {
        let text = events.events.iter().map(|event| line(event) + "\n").collect::<String>();
        let more = match events.missed {
            0 => String::new(),
            missed => format!("  and at least {missed} more\n"),
        };
        return write((more + &text).as_bytes());
    }
    events.events.iter().try_for_each(|event| print(event, Output::Ndjson, line))
}

fn shown(events: &Events) -> String {
    let mut text: String = events.events.iter().map(|event| line(event) + "\n").collect();
    if events.events.is_empty() {
        text.push_str("nothing was dropped lately, nor would have been\n");
    }
    if events.lost > 0 {
        // Into a string, nothing can fail.
        let _ = writeln!(text, "{} more were lost, for which there was no room", events.lost);
    }
    text.trim_end().to_owned()
}

/// One event on a line.
fn line(event: &Event) -> String {
    // The day is today's or yesterday's.
    let time = event.time.get(11..23).unwrap_or(&event.time);
    match &event.what {
        What::Packet(it) => format!("{time} {}", packet(it)),
        What::AttackBegins(it) => format!("{time} ATTACK begins: {}", attack(it)),
        What::AttackEnds(it) => {
            let lasted = duration(it.duration_seconds);
            format!("{time} ATTACK is over after {lasted}: {}", attack(it))
        }
    }
}

fn packet(it: &SampledPacket) -> String {
    let end = |address: &Option<String>, port: Option<u16>| match (address, port) {
        (None, _) => "-".to_owned(),
        (Some(address), None) => address.clone(),
        (Some(address), Some(port)) if address.contains(':') => format!("[{address}]:{port}"),
        (Some(address), Some(port)) => format!("{address}:{port}"),
    };
    let mut text = format!(
        "{:<10} {:<16} {:<6} {:>21} > {:<21} {:>5} B x{:<4} {}",
        it.verdict.replace('_', "-"),
        it.reason,
        it.protocol.as_deref().unwrap_or("-"),
        end(&it.source, it.source_port),
        end(&it.destination, it.destination_port),
        it.length,
        it.weight,
        plain(&it.interface),
    );
    if let Some(policy) = &it.policy {
        let _ = write!(text, " {}", plain(policy));
    }
    if let Some(flags) = it.flags.as_deref().filter(|flags| !flags.is_empty()) {
        let _ = write!(text, " {flags}");
    }
    if let Some(vlan) = it.vlan {
        let _ = write!(text, " vlan {vlan}");
    }
    text
}

fn attack(it: &Attack) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown in four digits")]
    let packets = it.packets as f64;
    let verb = if it.observed { "would be dropped" } else { "dropped" };
    let mut text = format!(
        "{} packets/s {verb}, at most {}/s, {} in all",
        short(it.dropped_pps),
        short(it.peak_pps),
        short(packets),
    );
    if let Some(first) = it.reasons.first() {
        let _ = write!(text, "; most for {}", first.reason);
    }
    if let Some(first) = it.sources.first() {
        let _ = write!(text, "; first of {} is {}", it.sources.len(), first.source);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_a_line() {
        let it = SampledPacket {
            verdict: "would_drop".into(),
            reason: "source_rate".into(),
            policy: Some("dns".into()),
            interface: "eth0\x1b".into(),
            source: Some("2001:db8::1".into()),
            destination: Some("192.0.2.1".into()),
            protocol: Some("tcp".into()),
            source_port: Some(7),
            destination_port: Some(53),
            flags: Some("SYN".into()),
            vlan: Some(12),
            length: 60,
            weight: 12,
            ..SampledPacket::default()
        };
        let event =
            Event { number: 1, time: "2026-01-02T03:04:05.678901Z".into(), what: What::Packet(it) };
        let words: Vec<_> = line(&event).split_whitespace().map(str::to_owned).collect();
        assert_eq!(
            words.join(" "),
            "03:04:05.678 would-drop source_rate tcp [2001:db8::1]:7 > 192.0.2.1:53 60 B x12 eth0? dns SYN vlan 12"
        );
    }
}
