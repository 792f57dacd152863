//! The latest samples and events, so that those of a rare reason are not
//! pushed out by those of a frequent one.

use std::{
    collections::{BTreeMap, VecDeque},
    time::SystemTime,
};

use data_encoding::HEXLOWER;
use limiter_common::{
    sample::Sample,
    stats,
    verdict::{Reason, Verdict},
};

use super::{
    names::{self, Names},
    packet::{Facts, Flags, protocol_name},
};
use crate::{
    api::{Event, Events, EventsQuery, SCHEMA_VERSION, SampledPacket, What},
    error::{Error, Kind, Result},
    prefix::Prefix,
};

/// Samples that are kept of each verdict and reason.
const KEPT_SAMPLES: usize = 1024;
/// Other events that are kept.
const KEPT_TOLD: usize = 256;
/// Numbers of samples that are kept no more, by which it is known how many
/// somebody has missed, at least.
const KEPT_NUMBERS: usize = 8192;
const DEFAULT_LIMIT: usize = 1000;
const MAX_LIMIT: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Number of the latest.
    last: u64,
    packets: BTreeMap<(u8, u8), Ring>,
    told: VecDeque<Event>,
}

#[derive(Debug, Default)]
struct Ring {
    kept: VecDeque<(u64, SystemTime, Sample)>,
    gone: VecDeque<u64>,
}

impl Ring {
    fn push(&mut self, number: u64, time: SystemTime, sample: Sample) {
        if self.kept.len() == KEPT_SAMPLES
            && let Some((gone, ..)) = self.kept.pop_front()
        {
            if self.gone.len() == KEPT_NUMBERS {
                self.gone.pop_front();
            }
            self.gone.push_back(gone);
        }
        self.kept.push_back((number, time, sample));
    }
}

impl Recent {
    pub(super) fn note(&mut self, sample: Sample, time: SystemTime) {
        // A row that stands for nothing is no program's of ours.
        let Some((_, verdict, reason)) = stats::of_row(sample.row) else {
            return;
        };
        self.last += 1;
        let ring = self.packets.entry((verdict as u8, reason as u8)).or_default();
        ring.push(self.last, time, sample);
    }

    pub(super) fn tell(&mut self, what: What, time: SystemTime) {
        self.last += 1;
        if self.told.len() == KEPT_TOLD {
            self.told.pop_front();
        }
        self.told.push_back(Event { number: self.last, time: written(time), what });
    }

    pub(super) fn events(&self, query: &EventsQuery, names: &Names, lost: u64) -> Result<Events> {
        let filter = Filter::new(query, names)?;
        let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
        if limit == 0 || limit > MAX_LIMIT {
            let message = format!("limit is from 1 to {MAX_LIMIT}, not {limit}");
            return Err(Error::new(Kind::Invalid, message));
        }
        // A number that was never given is one of an earlier daemon.
        let after = query.after.unwrap_or(0);
        let after = if after > self.last { 0 } else { after };
        let mut missed = 0;
        let mut events = Vec::new();
        for ring in self.rings(&filter) {
            if query.after.is_some() {
                missed += ring.gone.iter().rev().take_while(|number| **number > after).count();
            }
            for (number, time, sample) in ring.kept.iter().rev() {
                if *number <= after {
                    break;
                }
                if let Some(packet) = filter.packet(sample, names) {
                    let what = What::Packet(packet);
                    events.push(Event { number: *number, time: written(*time), what });
                }
            }
        }
        if !filter.only_packets {
            events.extend(self.told.iter().filter(|event| event.number > after).cloned());
        }
        events.sort_by_key(|event| event.number);
        let beyond = events.len().saturating_sub(limit);
        events.drain(..beyond);
        if query.after.is_some() {
            missed += beyond;
        }
        Ok(Events {
            schema_version: SCHEMA_VERSION,
            next: self.last,
            missed: missed as u64,
            lost,
            events,
        })
    }

    fn rings(&self, filter: &Filter) -> impl Iterator<Item = &Ring> {
        self.packets
            .iter()
            .filter(|((verdict, reason), _)| filter.takes(*verdict, *reason))
            .map(|(_, ring)| ring)
    }
}

/// As in RFC 3339, UTC; a clock that was never set may be before 1970.
pub(super) fn written(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time.max(SystemTime::UNIX_EPOCH)).to_string()
}

/// What somebody wants to see.
struct Filter {
    verdict: Option<Verdict>,
    reason: Option<Reason>,
    policy: Option<u32>,
    interface: Option<String>,
    source: Option<Prefix>,
    destination: Option<Prefix>,
    protocol: Option<String>,
    port: Option<u16>,
    bytes: bool,
    only_packets: bool,
}

impl Filter {
    fn new(query: &EventsQuery, names: &Names) -> Result<Self> {
        let prefix = |text: &Option<String>| {
            let parsed = text.as_deref().map(str::parse::<Prefix>).transpose();
            parsed.map_err(Error::from)
        };
        let filter = Self {
            verdict: query.verdict.as_deref().map(names::verdict).transpose()?,
            reason: query.reason.as_deref().map(names::reason).transpose()?,
            policy: query.policy.as_deref().map(|name| names.row(name)).transpose()?,
            interface: query.interface.clone(),
            source: prefix(&query.source)?,
            destination: prefix(&query.destination)?,
            protocol: query.protocol.as_ref().map(|name| name.to_ascii_lowercase()),
            port: query.port,
            bytes: query.bytes,
            only_packets: false,
        };
        Ok(Self { only_packets: filter.narrows(), ..filter })
    }

    const fn narrows(&self) -> bool {
        self.verdict.is_some()
            || self.reason.is_some()
            || self.policy.is_some()
            || self.interface.is_some()
            || self.source.is_some()
            || self.destination.is_some()
            || self.protocol.is_some()
            || self.port.is_some()
    }

    fn takes(&self, verdict: u8, reason: u8) -> bool {
        self.verdict.map_or(verdict != Verdict::Pass as u8, |wanted| wanted as u8 == verdict)
            && self.reason.is_none_or(|wanted| wanted as u8 == reason)
    }

    /// What is shown of a sample, if it is to be.
    fn packet(&self, sample: &Sample, names: &Names) -> Option<SampledPacket> {
        let (row, verdict, reason) = stats::of_row(sample.row)?;
        if self.policy.is_some_and(|wanted| wanted != row) {
            return None;
        }
        let interface = names.interface(sample.interface);
        if self.interface.as_ref().is_some_and(|wanted| *wanted != interface) {
            return None;
        }
        let facts = Facts::of(sample);
        let lies_in = |prefix: &Option<Prefix>, address: Option<_>| {
            prefix.is_none_or(|prefix| address.is_some_and(|it| prefix.contains_address(it)))
        };
        let of_protocol = |wanted: &String| {
            let Some(protocol) = facts.protocol else {
                return false;
            };
            let name = protocol_name(protocol);
            *wanted == name
                || *wanted == protocol.to_string()
                || wanted == "icmp" && name == "icmpv6"
        };
        let wanted = lies_in(&self.source, facts.source)
            && lies_in(&self.destination, facts.destination)
            && self.protocol.as_ref().is_none_or(of_protocol)
            && self.port.is_none_or(|port| facts.destination_port == Some(port));
        wanted.then(|| SampledPacket {
            verdict: verdict.name().into(),
            reason: reason.name().into(),
            policy: names.policy(row),
            interface,
            source: facts.source.map(|it| it.to_string()),
            destination: facts.destination.map(|it| it.to_string()),
            kind: facts.kind.map(|kind| kind.name().into()),
            protocol: facts.protocol.map(protocol_name),
            source_port: facts.source_port,
            destination_port: facts.destination_port,
            flags: facts.flags.map(Flags::names),
            vlan: facts.vlan,
            length: sample.length,
            weight: u64::from(sample.weight),
            bytes: self.bytes.then(|| HEXLOWER.encode(sample.packet())),
        })
    }
}
