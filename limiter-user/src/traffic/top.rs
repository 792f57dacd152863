//! Who sends most, as it is asked for.

use std::{cmp::Ordering, collections::HashMap};

use limiter_common::stats::NO_POLICY;

use super::{
    Seen,
    names::{self, prefix},
    packet::protocol_name,
    window::{self, Sum, gaps, sums},
};
use crate::{
    api::{Rates, SCHEMA_VERSION, Top, TopPolicy, TopPort, TopQuery, TopSource},
    error::{Error, Kind, Result},
};

const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 1000;
const MOST_OF_ATTACK: usize = 10;
/// As the shield counts them ([`limiter_common::source::SourcePrefix::WIDER`]).
const WIDER: [u8; 2] = [24, 48];

/// What comes first.
#[derive(Clone, Copy)]
enum Sort {
    Dropped,
    Passed,
    Packets,
    Bytes,
}

impl Sort {
    const ALL: [(&'static str, Self); 4] = [
        ("dropped", Self::Dropped),
        ("passed", Self::Passed),
        ("packets", Self::Packets),
        ("bytes", Self::Bytes),
    ];

    fn named(name: Option<&str>) -> Result<Self> {
        let name = name.unwrap_or("packets");
        let named = Self::ALL.into_iter().find(|(known, _)| *known == name);
        named
            .map(|(_, sort)| sort)
            .ok_or_else(|| names::unknown("order", name, Self::ALL.iter().map(|(name, _)| *name)))
    }

    fn of(self, rates: &Rates) -> f64 {
        match self {
            Self::Dropped => rates.dropped_pps + rates.would_drop_pps,
            Self::Passed => rates.passed_pps,
            Self::Packets => rates.passed_pps + rates.dropped_pps + rates.would_drop_pps,
            Self::Bytes => rates.bytes_per_second,
        }
    }
}

pub(super) fn top(seen: &Seen, query: &TopQuery, now_ns: u64) -> Result<Top> {
    let sort = Sort::named(query.sort.as_deref())?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if limit == 0 || limit > MAX_LIMIT {
        let message = format!("limit is from 1 to {MAX_LIMIT}, not {limit}");
        return Err(Error::new(Kind::Invalid, message));
    }
    let policy = query.policy.as_deref().map(|name| seen.names.row(name)).transpose()?;
    let wanted = |row: u32| policy.is_none_or(|wanted| wanted == row);
    let latest = || seen.window.latest(now_ns).filter(|it| wanted(it.row));
    let seconds = seen.window.seconds(now_ns);

    let gaps = gaps(latest());
    let widest = gaps.values().copied().fold(0.0, f64::max);
    let sources = sums(latest(), |it| Some((seen.names.source(it.source?), it.row)));
    let rates = |(_, row): &(_, u32), sum: &Sum| {
        sum.rates(seconds, gaps.get(row).copied().unwrap_or(widest))
    };
    let sources = first(&sources, rates, sort, limit).into_iter();
    let prefixes = sums(latest(), |it| Some(prefix(it.source?, WIDER)));
    let prefixes = first(&prefixes, |_, sum| sum.rates(seconds, widest), sort, limit).into_iter();
    let ports = sums(latest(), |it| Some((it.protocol?, it.port)));
    let ports = first(&ports, |_, sum| sum.rates(seconds, widest), sort, limit).into_iter();
    let reason = |sum: &Sum| sum.reason().map(|reason| reason.name().into());

    let counted = seen.seconds.policies(window::SECONDS);
    let mut policies: Vec<_> = counted.into_iter().filter(|(row, _)| wanted(*row)).collect();
    let total = policies.iter().fold(Rates::default(), |sum, (_, rates)| Rates {
        passed_pps: sum.passed_pps + rates.passed_pps,
        dropped_pps: sum.dropped_pps + rates.dropped_pps,
        would_drop_pps: sum.would_drop_pps + rates.would_drop_pps,
        bytes_per_second: sum.bytes_per_second + rates.bytes_per_second,
        error_bound: 0.0,
    });
    policies.sort_by(|(_, a), (_, b)| sort.of(b).total_cmp(&sort.of(a)));
    Ok(Top {
        schema_version: SCHEMA_VERSION,
        window_seconds: seconds,
        samples: latest().count() as u64,
        lost: seen.lost,
        total,
        sources: sources
            .map(|((source, row), sum, rates)| TopSource {
                source: source.to_string(),
                policy: seen.names.policy(*row),
                rates,
                reason: reason(sum),
            })
            .collect(),
        prefixes: prefixes
            .map(|(prefix, sum, rates)| TopSource {
                source: prefix.to_string(),
                policy: None,
                rates,
                reason: reason(sum),
            })
            .collect(),
        policies: policies
            .into_iter()
            .filter(|(row, _)| *row == NO_POLICY || seen.names.policies.contains_key(row))
            .take(limit)
            .map(|(row, rates)| TopPolicy { policy: seen.names.policy(row), rates })
            .collect(),
        ports: ports
            .map(|((protocol, port), _, rates)| TopPort {
                protocol: protocol_name(*protocol),
                port: *port,
                rates,
            })
            .collect(),
    })
}

/// Who sends most of what is dropped, or would be: ten at most.
pub(super) fn dropped_most(seen: &Seen, now_ns: u64) -> Vec<TopSource> {
    let query = TopQuery {
        limit: Some(MOST_OF_ATTACK),
        sort: Some("dropped".into()),
        ..TopQuery::default()
    };
    let sources = top(seen, &query, now_ns).map(|top| top.sources).unwrap_or_default();
    sources.into_iter().filter(|it| it.rates.dropped_pps + it.rates.would_drop_pps > 0.0).collect()
}

/// The first ones of an order; those that are equal in it, in their own.
fn first<K: Ord>(
    sums: &HashMap<K, Sum>,
    rates: impl Fn(&K, &Sum) -> Rates,
    sort: Sort,
    limit: usize,
) -> Vec<(&K, &Sum, Rates)> {
    let mut all: Vec<_> = sums.iter().map(|(key, sum)| (key, sum, rates(key, sum))).collect();
    let order = |(a, _, x): &(&K, &Sum, Rates), (b, _, y): &(&K, &Sum, Rates)| -> Ordering {
        sort.of(y).total_cmp(&sort.of(x)).then_with(|| a.cmp(b))
    };
    if all.len() > limit {
        all.select_nth_unstable_by(limit, order);
        all.truncate(limit);
    }
    all.sort_by(order);
    all
}
