//! What was counted.

use limiter_common::{stats::Counter, verdict::Verdict};

use super::{Service, is_on, present_name};
use crate::{
    api::{self, SCHEMA_VERSION},
    config,
    error::{Error, Kind, Result},
    interface, plane,
    traffic::Names,
};

impl Service {
    /// What the counters of each interface say, how it is called, and what of it
    /// is an attack.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn counted(&self) -> Result<(Vec<Vec<plane::Count>>, Names, config::Attack)> {
        let in_force = &self.in_force;
        let names = in_force.policies.names();
        let named = names.filter_map(|name| Some((in_force.numbers.row(name)?, name.to_owned())));
        let sources = &in_force.policies.config().sources;
        let names = Names {
            policies: named.collect(),
            interfaces: self.plane.names().map(|name| name.map(str::to_owned)).collect(),
            source_bits: [sources.ipv4_prefix, sources.ipv6_prefix],
        };
        let counts = (0..names.interfaces.len())
            .map(|number| self.plane.counts(number, in_force.numbers.rows()))
            .collect::<Result<_>>()?;
        Ok((counts, names, in_force.policies.config().attack.clone()))
    }

    /// What was counted, on one interface or all, under one policy or all.
    ///
    /// # Errors
    /// There is no such interface or policy, or the kernel does not answer.
    pub fn stats(&self, interface: Option<&str>, policy: Option<&str>) -> Result<api::Stats> {
        if let Some(name) = policy {
            self.in_force.policies.find(name)?;
        }
        let row = |name: &str| self.in_force.numbers.row(name);
        let now = interface::all()?;
        let attached: Vec<_> =
            self.plane.attached().map(|it| (present_name(&it, &now), it)).collect();
        if let Some(name) = interface
            && !attached.iter().any(|(known, _)| known == name)
        {
            let names: Vec<_> = attached.iter().map(|(name, _)| name.as_str()).collect();
            return Err(Error::new(Kind::NotFound, format!("'{name}' is not protected"))
                .hint(format!("protected are: {}", names.join(", "))));
        }
        let mut stats = api::Stats {
            schema_version: SCHEMA_VERSION,
            uptime_seconds: self.uptime(),
            generation: self.plane.generation(),
            interfaces: Vec::new(),
            totals: api::Totals::default(),
            reasons: Vec::new(),
            policies: Vec::new(),
        };
        let chosen = |name: &&str| policy.is_none_or(|policy| policy == *name);
        let names: Vec<_> = self.in_force.policies.names().filter(chosen).collect();
        let rows: Vec<_> = names.iter().map(|name| row(name)).collect();
        for name in &names {
            stats.policies.push(api::PolicyCount {
                name: (*name).to_owned(),
                passed: api::Count::default(),
                dropped: api::Count::default(),
                would_drop: api::Count::default(),
            });
        }
        let wanted = |name: &str| interface.is_none_or(|interface| interface == name);
        for (name, attached) in attached.iter().filter(|(name, _)| wanted(name)) {
            stats.interfaces.push(api::StatsInterface {
                name: name.clone(),
                index: attached.index,
                mode: attached.mode.name().into(),
                attached: is_on(attached, &now),
            });
            for count in self.plane.counts(attached.number, self.in_force.numbers.rows())? {
                let place = rows.iter().position(|row| *row == Some(count.policy));
                if policy.is_none() || place.is_some() {
                    let before = self.counted_before(attached.number, &count);
                    add(&mut stats, &count, place, before);
                }
            }
        }
        if interface.is_none() && policy.is_none() {
            let carried = self.carried.iter().filter_map(|sum| sum.count());
            carried.for_each(|count| add(&mut stats, &count, None, Counter::default()));
        }
        stats.reasons.sort_by(|a, b| {
            (b.packets, &a.reason, &a.verdict).cmp(&(a.packets, &b.reason, &b.verdict))
        });
        Ok(stats)
    }

    /// What was counted in a row of counters before its policy had it.
    fn counted_before(&self, at: usize, count: &plane::Count) -> Counter {
        let same = |it: &&(usize, plane::Count)| {
            let (interface, before) = it;
            *interface == at
                && (before.policy, before.verdict, before.reason)
                    == (count.policy, count.verdict, count.reason)
        };
        self.in_force
            .baselines
            .iter()
            .find(same)
            .map_or(Counter::default(), |(_, before)| before.counter)
    }
}

/// Adds to all sums what was counted, and to those of the policy at a place what
/// was counted under its name.
fn add(stats: &mut api::Stats, count: &plane::Count, place: Option<usize>, before: Counter) {
    let amount = api::Count { packets: count.counter.packets, bytes: count.counter.bytes };
    let mut unnamed = api::PolicyCount {
        name: String::new(),
        passed: api::Count::default(),
        dropped: api::Count::default(),
        would_drop: api::Count::default(),
    };
    let named = place.and_then(|place| stats.policies.get_mut(place));
    let policy = named.unwrap_or(&mut unnamed);
    let own = api::Count {
        packets: amount.packets.saturating_sub(before.packets),
        bytes: amount.bytes.saturating_sub(before.bytes),
    };
    stats.totals.received += amount;
    match count.verdict {
        Verdict::Pass => {
            stats.totals.passed += amount;
            policy.passed += own;
        }
        Verdict::Drop => {
            stats.totals.dropped += amount;
            policy.dropped += own;
        }
        Verdict::WouldDrop => {
            stats.totals.passed += amount;
            stats.totals.would_drop += amount;
            policy.passed += own;
            policy.would_drop += own;
        }
    }
    let (reason, verdict) = (count.reason.name(), count.verdict.name());
    match stats.reasons.iter_mut().find(|it| it.reason == reason && it.verdict == verdict) {
        Some(sum) => {
            sum.packets += amount.packets;
            sum.bytes += amount.bytes;
        }
        None => stats.reasons.push(api::ReasonCount {
            reason: reason.into(),
            verdict: verdict.into(),
            packets: amount.packets,
            bytes: amount.bytes,
        }),
    }
}
