//! Answers of the daemon as text for people.

use std::fmt::Write as _;

use limiter_user::api::{
    ConfigChanges, Count, Detached, Doctor, Explanation, InterfaceStatus, Interfaces, LevelLimit,
    Limits, List, ListChanged, Stats, Status,
};

use crate::text::{duration, grouped, numbers, table, yes_no};

pub(crate) fn status(status: &Status) -> String {
    let mut text = format!(
        "limiterd {} is {}, up {}, rule set {}{}\n\
         {} MiB for {} IPv4 and {} IPv6 sources; new ones: {:.0}/s get a bucket, the others share \
         {:.0} packets/s\n",
        status.version,
        status.health,
        duration(status.uptime_seconds),
        status.generation,
        if status.observe { ", observing: nothing is dropped" } else { "" },
        status.memory.maps_bytes >> 20,
        status.memory.max_sources,
        status.memory.max_sources,
        status.new_sources.tracked_per_second,
        status.new_sources.untracked_per_second,
    );
    if let Some(file) = &status.config.file {
        let changed = if status.config.changed_on_disk { ", which has changed since" } else { "" };
        let _ = writeln!(text, "configuration: {file}{changed}");
    }
    if let Some(seconds) = status.confirm.deadline_seconds {
        let _ = writeln!(text, "waits to be confirmed: taken back in {seconds} s");
    }
    for problem in &status.problems {
        let _ = writeln!(text, "problem: {problem}");
    }
    text + &interface_table(&status.interfaces)
}

pub(crate) fn interfaces(interfaces: &Interfaces) -> String {
    interface_table(&interfaces.interfaces)
}

fn interface_table(interfaces: &[InterfaceStatus]) -> String {
    let mut table = table(&["interface", "link", "mode", "attached", "pinned", "program"]);
    for interface in interfaces {
        table.add_row([
            interface.name.clone(),
            interface.link.clone(),
            interface.mode.clone(),
            yes_no(interface.attached),
            yes_no(interface.pinned),
            interface.program_id.to_string(),
        ]);
    }
    table.to_string()
}

pub(crate) fn stats(stats: &Stats) -> String {
    let mut totals = numbers(&["", "packets", "bytes"]);
    let sums = &stats.totals;
    for (name, count) in [
        ("received", sums.received),
        ("passed", sums.passed),
        ("dropped", sums.dropped),
        ("would drop", sums.would_drop),
    ] {
        totals.add_row([name.to_owned(), grouped(count.packets), grouped(count.bytes)]);
    }
    let mut reasons = numbers(&["reason", "packets", "bytes", "verdict"]);
    for reason in &stats.reasons {
        reasons.add_row([
            reason.reason.clone(),
            grouped(reason.packets),
            grouped(reason.bytes),
            reason.verdict.replace('_', " "),
        ]);
    }
    let mut policies = numbers(&["policy", "passed", "dropped", "would drop"]);
    for policy in &stats.policies {
        let packets = |count: Count| grouped(count.packets);
        policies.add_row([
            policy.name.clone(),
            packets(policy.passed),
            packets(policy.dropped),
            packets(policy.would_drop),
        ]);
    }
    let interfaces: Vec<_> = stats.interfaces.iter().map(|it| it.name.as_str()).collect();
    format!(
        "{}, up {}\n{totals}\n\n{reasons}\n\n{policies}",
        interfaces.join(", "),
        duration(stats.uptime_seconds)
    )
}

pub(crate) fn limits(limits: &Limits) -> String {
    let mut table = numbers(&["policy", "for each", "rate", "burst", "bandwidth", "burst", "mode"]);
    for limit in &limits.policies {
        let strict = if limit.strict { ", strict" } else { "" };
        let mode = format!("{}{strict}", limit.mode);
        table.add_row(level(&limit.name, "source", &limit.source, &mode));
        if let Some(prefix) = &limit.per_prefix {
            let lengths = format!("/{} or /{}", prefix.ipv4, prefix.ipv6);
            table.add_row(level("", &lengths, &prefix.limit, ""));
        }
        if let Some(total) = &limit.total {
            table.add_row(level("", "host", total, ""));
        }
    }
    table.to_string()
}

fn level(name: &str, each: &str, limit: &LevelLimit, mode: &str) -> [String; 7] {
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    [
        name.into(),
        each.into(),
        text(&limit.rate),
        limit.burst.map_or_else(|| "-".into(), |burst| grouped(burst.into())),
        text(&limit.bandwidth),
        limit.bandwidth_burst_bytes.map_or_else(|| "-".into(), grouped),
        mode.into(),
    ]
}

pub(crate) fn differences(changes: &ConfigChanges) -> String {
    let mut text = warnings(changes);
    if changes.changes.is_empty() {
        return text + "nothing changes";
    }
    let nothing = || "-".to_owned();
    let mut table = table(&["changes", "from", "to"]);
    for change in &changes.changes {
        table.add_row([
            change.path.clone(),
            change.from.clone().unwrap_or_else(nothing),
            change.to.clone().unwrap_or_else(nothing),
        ]);
    }
    let _ = write!(text, "{table}");
    text
}

pub(crate) fn applied(changes: &ConfigChanges) -> String {
    let mut text = differences(changes);
    let _ = write!(text, "\nrule set {} is in force", changes.generation);
    if let Some(seconds) = changes.confirm.deadline_seconds {
        let _ = write!(
            text,
            ", for {seconds} s; to keep it: limiterctl config confirm, to take it back now: \
             limiterctl config rollback"
        );
    }
    text
}

fn warnings(changes: &ConfigChanges) -> String {
    changes.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect()
}

pub(crate) fn list(list: &List) -> String {
    if list.entries.is_empty() {
        return "the list is empty".into();
    }
    let mut table = table(&["prefix", "ends in", "from", "reason"]);
    for entry in &list.entries {
        table.add_row([
            entry.prefix.clone(),
            entry.expires_in_seconds.map_or_else(|| "-".into(), duration),
            entry.origin.clone(),
            entry.reason.clone().unwrap_or_default(),
        ]);
    }
    table.to_string()
}

pub(crate) fn list_changed(verb: &str, changed: &ListChanged) -> String {
    match changed.changed {
        1 => format!("{verb} one entry"),
        count => format!("{verb} {} entries", grouped(count as u64)),
    }
}

pub(crate) fn explanation(explanation: &Explanation) -> String {
    let packet = &explanation.packet;
    let mut text = format!("{} to {}", packet.source, packet.destination);
    if let Some(port) = packet.port {
        let _ = write!(text, " port {port}");
    }
    let _ = writeln!(text, ", {}, on {}", packet.kind, packet.interface);
    let mut steps = table(&["step", "result"]);
    for step in &explanation.steps {
        steps.add_row([step.step.clone(), step.result.clone()]);
    }
    let _ = write!(text, "{steps}");
    if let Some(limit) = &explanation.limit {
        let _ = write!(
            text,
            "\n{} of a burst of {} left, {} more each second",
            limit.tokens_now, limit.burst, limit.rate_per_second
        );
    }
    text
}

pub(crate) fn doctor(doctor: &Doctor) -> String {
    let lines: Vec<_> = doctor.findings.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

pub(crate) fn detached(detached: &Detached) -> String {
    if detached.interfaces.is_empty() {
        "no daemon runs; nothing of limiterd is attached any more".into()
    } else {
        format!("detached from {}", detached.interfaces.join(", "))
    }
}
