//! What would happen to a packet, and why.
//!
//! The packet path's own code decides, in memory, over a copy of what the
//! kernel's tables hold for this packet: so nothing is spent and nothing is
//! counted.

use std::net::IpAddr;

use limiter_common::{
    bucket::tokens,
    class::{Axis, classify},
    frame::Linear,
    level::{Level, limit_number},
    lists::Listing,
    parse::{Packet, Parsed, parse, vlan},
    policy::{Policy as Compiled, Ruleset},
    source::{Address, Key as _, Key4, Key6, Total},
    tables::Tables as _,
    verdict::{Reason, Verdict},
};

use super::{Service, guard::BootClock};
use crate::{
    api::{self, SCHEMA_VERSION},
    config::Policy,
    error::{Error, Kind, Result},
    frames::{self, Described, Transport},
    machine::Machine,
    plane,
    policies::Allowance,
    prefix::Prefix,
};

const HTTPS: u16 = 443;
const DEFAULT_LENGTH: u32 = 100;

impl Service {
    /// Explains what would happen to a packet now.
    ///
    /// # Errors
    /// There is no such packet or interface, or the kernel does not answer.
    pub fn explain(&mut self, question: &api::Question) -> Result<api::Explanation> {
        self.settle();
        let described = describe(question)?;
        let interface = self.interface_number(question.interface.as_deref())?;
        let frame = described.frame()?;
        let mut steps = Vec::new();
        let mut step = |step: &str, result: String| {
            steps.push(api::Step { step: step.into(), result });
        };
        let packet = match parse(&Linear(&frame)) {
            Ok(Parsed::Ip(packet)) => packet,
            Ok(_) => return Err(Error::failed("the packet is none that is limited")),
            Err(defect) => {
                return Err(Error::failed(format!("the packet is malformed: {defect:?}")));
            }
        };
        let slot = self.plane.live().slot;
        step("packet", format!("{}, {} bytes", packet.shape.kind.name(), packet.length));

        let mut machine = self.machine(interface)?;
        let listed = self.plane.around(Prefix::from(described.source));
        self.explain_lists(&listed, slot, &mut step);
        self.copy_lists(&listed, &mut machine)?;
        let is_listed = listed
            .iter()
            .fold(Listing::default(), |sum, (_, listing)| sum.and(*listing))
            .reason(slot, &BootClock)
            .is_some();
        let rules = *machine.ruleset(slot).ok_or_else(|| Error::failed("there are no rules"))?;
        let place = classify(&packet, &Linear(&frame), &rules, slot, &machine);
        let policy = self.in_force.policies.all().get(place as usize).filter(|_| !is_listed);
        if !is_listed {
            self.explain_policies(&packet, &frame, &rules, place, &machine, &mut step);
        }
        let mut first_limit = None;
        if let (Some(policy), Some(compiled)) = (policy, rules.policy(place))
            && !compiled.is_off()
        {
            for level in Level::ALL {
                let Some(limit) = compiled.limit(level) else { continue };
                let held = self.copy_bucket(&packet, level, compiled, &rules, &mut machine)?;
                let left = held.unwrap_or_else(|| tokens(limit, &[], plane::monotonic_ns()));
                let (what, unit) = words(level);
                let new = if held.is_none() { ", no bucket yet" } else { "" };
                let asked = level.cost(packet.length);
                step(what, format!("{left} {unit} left, {asked} needed{new}"));
                let allowance = match level {
                    Level::SourcePackets | Level::SourceBytes => policy.source(),
                    Level::PrefixPackets | Level::PrefixBytes => policy.prefix(),
                    Level::TotalPackets | Level::TotalBytes => policy.everybody(),
                };
                first_limit.get_or_insert_with(|| shown(allowance, level, left));
            }
        }
        self.copy_gate(&mut machine)?;
        let now = plane::monotonic_ns();
        let decision = machine.receive(machine.cpu_with_most(), now, &frame);
        if let Reason::Untracked | Reason::NewSourceRate = decision.reason {
            step("new sources", "the budget for new sources is spent; the cap decides".into());
        }
        let (verdict, result) = match decision.verdict {
            Verdict::Pass => ("pass", "pass"),
            Verdict::Drop => ("drop", "drop"),
            Verdict::WouldDrop => ("pass", "pass, because nothing is enforced; else drop"),
        };
        step("verdict", format!("{result}: {}", decision.reason.name()));
        Ok(api::Explanation {
            schema_version: SCHEMA_VERSION,
            source: described.source.to_string(),
            packet: api::ExplainedPacket {
                source: described.source.to_string(),
                destination: described.destination.to_string(),
                kind: packet.shape.kind.name().into(),
                protocol: packet.shape.protocol,
                port: packet.shape.port(&Linear(&frame)),
                vlan: Some(vlan(&Linear(&frame))).filter(|vlan| *vlan != 0),
                length: packet.length,
                interface: self
                    .plane
                    .names()
                    .nth(interface as usize)
                    .flatten()
                    .unwrap_or_default()
                    .into(),
            },
            verdict: verdict.into(),
            reason: decision.reason.name().into(),
            policy: policy.map(|policy| policy.name.clone()),
            mode: policy.map(|policy| self.mode_of(policy)),
            steps,
            limit: first_limit,
        })
    }

    fn mode_of(&self, policy: &Policy) -> String {
        let observes =
            self.in_force.policies.observes() && policy.mode == crate::mode::Mode::Enforce;
        if observes { "observe" } else { policy.mode.name() }.into()
    }

    fn interface_number(&self, name: Option<&str>) -> Result<u32> {
        let Some(name) = name else {
            return Ok(0);
        };
        let at = self.plane.names().position(|interface| interface == Some(name));
        at.and_then(|at| u32::try_from(at).ok()).ok_or_else(|| {
            let names: Vec<_> = self.plane.names().flatten().collect();
            Error::new(Kind::NotFound, format!("'{name}' is not protected"))
                .hint(format!("protected are: {}", names.join(", ")))
        })
    }

    /// The rules in force, in memory, without a bucket.
    fn machine(&self, interface: u32) -> Result<Machine> {
        const ROOM: usize = 64;
        let (numbered, _) = self.in_force.numbers.clone().assign(self.in_force.policies.names());
        let interfaces = self.plane.interfaces();
        let sizing = self.plane.sizing();
        let compiled = self.in_force.policies.compile_as(&numbered, sizing, &interfaces)?;
        let mut machine =
            Machine::new(sizing.cpus, ROOM, compiled.clone()).with_seed(self.plane.seed());
        machine.set_rules(compiled, self.plane.live().slot);
        machine.set_interface(interface);
        Ok(machine)
    }

    fn explain_lists(
        &self,
        listed: &[(Prefix, Listing)],
        slot: u32,
        step: &mut impl FnMut(&str, String),
    ) {
        for (list, wanted) in
            [("allow", Reason::Allowed), ("ban", Reason::Banned), ("deny", Reason::Denied)]
        {
            let hit = listed.iter().rev().find(|(_, it)| it.says(slot, wanted, &BootClock));
            step(list, hit.map_or_else(|| "no".into(), |(prefix, _)| format!("yes, {prefix}")));
        }
    }

    /// Copies what is said about an address and the prefixes around it.
    fn copy_lists(&self, listed: &[(Prefix, Listing)], machine: &mut Machine) -> Result<()> {
        let now = plane::boot_ns();
        let moved = plane::monotonic_ns();
        for (prefix, listing) in listed {
            // The machine has one clock.
            machine.list(*prefix, listing.moved(now, moved))?;
        }
        Ok(())
    }

    fn explain_policies(
        &self,
        packet: &Packet,
        frame: &[u8],
        rules: &Ruleset,
        place: u32,
        machine: &Machine,
        step: &mut impl FnMut(&str, String),
    ) {
        let axes = limiter_common::class::by_axis(
            packet,
            &Linear(frame),
            rules,
            self.plane.live().slot,
            machine,
        );
        for (at, policy) in
            (0u32..).zip(self.in_force.policies.all()).take_while(|(at, _)| *at <= place)
        {
            let name = format!("policy {}", policy.name);
            let other = axes.iter().find(|(_, set)| set >> at & 1 == 0);
            let result = match other {
                Some((None, _)) => "no: another kind of packet".into(),
                Some((Some(axis), _)) => format!("no: another {}", axis_name(*axis)),
                None => "yes, the first that matches".into(),
            };
            step(&name, result);
        }
        if self.in_force.policies.all().get(place as usize).is_none() {
            step("policy", "none matches: unlimited".into());
        }
    }

    /// Copies a bucket, if there is one; says how many tokens are left.
    fn copy_bucket(
        &self,
        packet: &Packet,
        level: Level,
        policy: &Compiled,
        rules: &Ruleset,
        machine: &mut Machine,
    ) -> Result<Option<u32>> {
        let number = limit_number(policy.number(), level);
        let prefix = if level.is_wide() { policy.prefix() } else { rules.sources() };
        let limit = policy.limit(level).ok_or_else(|| Error::failed("there is no such limit"))?;
        let now = plane::monotonic_ns();
        if matches!(level, Level::TotalPackets | Level::TotalBytes) {
            let buckets = self.plane.total(Total::of(number))?;
            machine.put_total(Total::of(number), &buckets);
            return Ok(Some(tokens(limit, &buckets, now)));
        }
        let found = match packet.source {
            Address::V4(address) => {
                let key = Key4::new(address, prefix, number);
                let found = self.plane.bucket4(&key)?;
                if let Some(buckets) = &found {
                    machine.put4(key, buckets, now);
                }
                found
            }
            Address::V6(address) => {
                let key = Key6::new(address, prefix, number);
                let found = self.plane.bucket6(&key)?;
                if let Some(buckets) = &found {
                    machine.put6(key, buckets, now);
                }
                found
            }
        };
        Ok(found.map(|buckets| tokens(limit, &buckets, now)))
    }

    /// Copies the budget for new sources and the cap of the others; the cells
    /// of prefixes are taken as full.
    fn copy_gate(&self, machine: &mut Machine) -> Result<()> {
        for key in [limiter_common::gate::NEW_SOURCES, limiter_common::gate::UNTRACKED] {
            machine.put_total(key, &self.plane.total(key)?);
        }
        Ok(())
    }
}

fn describe(question: &api::Question) -> Result<Described> {
    let address = |text: &str| -> Result<IpAddr> {
        let address: IpAddr = text.parse().map_err(|_| {
            Error::new(Kind::Invalid, format!("'{text}' is no address"))
                .hint("write one such as 192.0.2.7 or 2001:db8::1")
        })?;
        Ok(address.to_canonical())
    };
    let source = address(&question.source)?;
    let destination = question.destination.as_deref().map(address).transpose()?;
    let syn = question.syn;
    let transport = match question.protocol.as_deref() {
        None | Some("tcp") => Transport::Tcp { syn },
        Some("udp") => Transport::Udp,
        Some("icmp" | "icmpv6") => Transport::Icmp,
        Some(text) => match text.parse() {
            Ok(number) => Transport::Other(number),
            Err(_) => {
                return Err(Error::new(Kind::Invalid, format!("'{text}' is no protocol"))
                    .hint("the protocols are tcp, udp, icmp, or a number from 0 to 255"));
            }
        },
    };
    if syn && !matches!(transport, Transport::Tcp { .. }) {
        return Err(Error::new(Kind::Invalid, "only TCP opens connections")
            .hint("leave out --syn, or --proto"));
    }
    Ok(Described {
        source,
        destination: destination.unwrap_or_else(|| frames::nobody(source)),
        transport,
        port: question.port.unwrap_or(HTTPS),
        length: question.length.unwrap_or(DEFAULT_LENGTH),
        vlan: question.vlan.unwrap_or_default(),
    })
}

const fn words(level: Level) -> (&'static str, &'static str) {
    match level {
        Level::SourcePackets => ("limit of the source", "packets"),
        Level::SourceBytes => ("bandwidth of the source", "bytes"),
        Level::PrefixPackets => ("limit of the prefix", "packets"),
        Level::PrefixBytes => ("bandwidth of the prefix", "bytes"),
        Level::TotalPackets => ("limit of everybody", "packets"),
        Level::TotalBytes => ("bandwidth of everybody", "bytes"),
    }
}

const fn axis_name(axis: Axis) -> &'static str {
    match axis {
        Axis::Protocol => "protocol",
        Axis::Port => "port",
        Axis::Vlan => "VLAN",
        Axis::Interface => "interface",
        Axis::Source => "source",
        Axis::Destination => "destination",
    }
}

fn shown(allowance: Allowance, level: Level, left: u32) -> api::ExplainedLimit {
    let (rate, burst) = if level.cost(2) == 1 {
        allowance.packets.map_or((0.0, 0), |(rate, burst)| (rate.per_second(), burst.0))
    } else {
        allowance.bytes.map_or((0.0, 0), |(rate, burst)| (rate.per_second(), burst.0))
    };
    api::ExplainedLimit { rate_per_second: rate, burst, tokens_now: left }
}
