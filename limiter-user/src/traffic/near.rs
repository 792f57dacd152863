//! How near what is sent comes to the limits.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use super::{
    Seen,
    names::prefix,
    window::{self, Sum, sums},
};
use crate::{
    api::{LevelLimit, Limit, LimitUse, PolicyView, Rates},
    prefix::Prefix,
};

/// What was sent most of, by one of many.
#[derive(Default)]
struct Most {
    packets: Option<(Prefix, f64)>,
    bytes: Option<(Prefix, f64)>,
}

pub(super) fn policies(seen: &Seen, limits: Vec<Limit>, now_ns: u64) -> Vec<PolicyView> {
    let rows: HashMap<_, _> =
        seen.names.policies.iter().map(|(row, name)| (name.as_str(), *row)).collect();
    let wider: HashMap<u32, [u8; 2]> = limits
        .iter()
        .filter_map(|limit| {
            let lengths = limit.per_prefix.as_ref()?;
            let [ipv4, ipv6] = [lengths.ipv4, lengths.ipv6].map(u8::try_from);
            Some((*rows.get(limit.name.as_str())?, [ipv4.ok()?, ipv6.ok()?]))
        })
        .collect();
    let sources = most_of(seen, now_ns, |_, source| Some(seen.names.source(source)));
    let prefixes = most_of(seen, now_ns, |row, source| Some(prefix(source, *wider.get(&row)?)));
    let counted = seen.seconds.policies(window::SECONDS);
    let view = |limit: Limit| {
        let row = rows.get(limit.name.as_str());
        let rates = row.and_then(|row| counted.get(row)).copied().unwrap_or_default();
        let mut uses = Vec::new();
        if let Some(most) = row.and_then(|row| sources.get(row)) {
            uses.extend(of_most("source", &limit.source, most));
        }
        if let Some(wider) = &limit.per_prefix
            && let Some(most) = row.and_then(|row| prefixes.get(row))
        {
            uses.extend(of_most("prefix", &wider.limit, most));
        }
        if let Some(total) = &limit.total {
            uses.extend(of_all(total, &rates));
        }
        PolicyView { limit, rates, use_of_limits: uses }
    };
    limits.into_iter().map(view).collect()
}

/// Who sends most to each policy.
fn most_of(
    seen: &Seen,
    now_ns: u64,
    key: impl Fn(u32, IpAddr) -> Option<Prefix>,
) -> BTreeMap<u32, Most> {
    let seconds = seen.window.seconds(now_ns);
    let sums: HashMap<_, Sum> =
        sums(seen.window.latest(now_ns), |it| Some((it.row, key(it.row, it.source?)?)));
    let mut most = BTreeMap::<u32, Most>::new();
    for ((row, who), sum) in sums {
        let rates = sum.rates(seconds, 0.0);
        let most = most.entry(row).or_default();
        more(&mut most.packets, who, packets(&rates));
        more(&mut most.bytes, who, rates.bytes_per_second);
    }
    most
}

fn more(most: &mut Option<(Prefix, f64)>, who: Prefix, rate: f64) {
    // Of those that send as much, always the same.
    if most.is_none_or(|(other, most)| rate > most || (rate >= most && who < other)) {
        *most = Some((who, rate));
    }
}

fn packets(rates: &Rates) -> f64 {
    rates.passed_pps + rates.dropped_pps + rates.would_drop_pps
}

fn of_most<'a>(
    level: &'a str,
    limit: &LevelLimit,
    most: &Most,
) -> impl Iterator<Item = LimitUse> + use<'a> {
    let packets = most.packets.zip(limit.rate_per_second);
    let bytes = most.bytes.zip(limit.bandwidth_bytes_per_second);
    let both = [("packets", packets), ("bytes", bytes)].into_iter();
    both.filter_map(move |(unit, it)| {
        let ((who, sent), rate) = it?;
        Some(used(level, unit, Some(who.to_string()), sent / rate))
    })
}

fn of_all(limit: &LevelLimit, rates: &Rates) -> impl Iterator<Item = LimitUse> + use<> {
    let of = |sent: f64| move |rate: f64| sent / rate;
    let packets = limit.rate_per_second.map(of(packets(rates)));
    let bytes = limit.bandwidth_bytes_per_second.map(of(rates.bytes_per_second));
    let both = [("packets", packets), ("bytes", bytes)].into_iter();
    both.filter_map(|(unit, share)| Some(used("total", unit, None, share?)))
}

fn used(level: &str, unit: &str, who: Option<String>, share: f64) -> LimitUse {
    LimitUse { level: level.into(), unit: unit.into(), who, share }
}
