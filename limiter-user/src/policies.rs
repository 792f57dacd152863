//! The policies in force: what the configuration says, ready for the packet
//! path.

use limiter_common::{
    level::{Level, Number},
    limit::{self, RangeError},
    parse::Kind as Packets,
    policy::{self, Ruleset},
    source::SourcePrefix,
};

use crate::{
    bytes::{Bandwidth, ByteBurst},
    change::Change,
    compiled::{Compiled, Conditions, Configured},
    config::{self, Config, Host, Match, Policy},
    error::{Error, Kind, Result},
    gate::Gate,
    mode::Mode,
    rate::{Burst, PacketRate},
    sizing::Sizing,
};

/// What one level of a policy allows, in packets, in bytes, in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Packets per time, and at once.
    pub packets: Option<(PacketRate, Burst)>,
    /// Bytes per time, and at once.
    pub bytes: Option<(Bandwidth, ByteBurst)>,
}

/// The allowance that a value with these fields describes.
macro_rules! allowance {
    ($value:expr) => {
        Allowance {
            packets: $value.rate.map(|rate| (rate, $value.burst.unwrap_or(rate.one_second()))),
            bytes: $value
                .bandwidth
                .map(|rate| (rate, $value.bandwidth_burst.unwrap_or(rate.one_second()))),
        }
    };
}

impl Policy {
    /// A policy with this limit for each source, for packets of these kinds.
    #[must_use]
    pub fn new(name: &str, rate: PacketRate, burst: Burst, kinds: &[Packets]) -> Self {
        Self {
            name: name.into(),
            matches: Match { kind: kinds.to_vec(), ..Match::default() },
            rate: Some(rate),
            burst: Some(burst),
            bandwidth: None,
            bandwidth_burst: None,
            per_prefix: None,
            total: None,
            strict: false,
            mode: Mode::Enforce,
            algorithm: config::Algorithm::TokenBucket,
        }
    }

    /// What each source may send.
    #[must_use]
    pub fn source(&self) -> Allowance {
        allowance!(self)
    }

    /// What each wider prefix may send.
    #[must_use]
    pub fn prefix(&self) -> Allowance {
        self.per_prefix.as_ref().map_or_else(Allowance::default, |prefix| allowance!(prefix))
    }

    /// What everybody together may send.
    #[must_use]
    pub fn everybody(&self) -> Allowance {
        self.total.as_ref().map_or_else(Allowance::default, |total| allowance!(total))
    }

    fn compile(&self, cpus: u32) -> std::result::Result<policy::Policy, RangeError> {
        let wider = self.per_prefix.clone().unwrap_or_default();
        let wider = SourcePrefix::new(wider.ipv4.into(), wider.ipv6.into());
        let mut policy = policy::Policy::new(self.mode.compile()).with_prefix(wider);
        for (allowance, packets, bytes) in [
            (self.source(), Level::SourcePackets, Level::SourceBytes),
            (self.prefix(), Level::PrefixPackets, Level::PrefixBytes),
            (self.everybody(), Level::TotalPackets, Level::TotalBytes),
        ] {
            if let Some((rate, burst)) = allowance.packets {
                let limit = limit::Limit::compile(rate.0, burst.0, cpus, self.strict)?;
                policy = policy.with(packets, limit);
            }
            if let Some((rate, burst)) = allowance.bytes {
                let limit = limit::Limit::compile(rate.0, burst.0, cpus, self.strict)?;
                policy = policy.with(bytes, limit);
            }
        }
        Ok(policy)
    }
}

impl Match {
    /// What it asks of packets; `interfaces` are numbered in this order.
    fn conditions(&self, interfaces: &[String]) -> Result<Conditions> {
        let number = |name: &String| {
            let at = interfaces.iter().position(|interface| interface == name);
            at.and_then(|at| u32::try_from(at).ok()).ok_or_else(|| {
                Error::new(Kind::Invalid, format!("the interface '{name}' is not protected"))
                    .hint(format!("protected are: {}", protected(interfaces)))
            })
        };
        Ok(Conditions {
            kinds: self.kind.clone(),
            protocols: self.proto.iter().map(|protocol| protocol.0).collect(),
            ports: self.ports.iter().map(|range| range.first..=range.last).collect(),
            vlans: self.vlans.iter().map(|range| range.first..=range.last).collect(),
            interfaces: self.interfaces.iter().map(number).collect::<Result<_>>()?,
            sources: self.sources.clone(),
            destinations: self.destinations.clone(),
        })
    }
}

/// A configuration and how the daemon was told to take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    config: Config,
    observe: bool,
    /// In place of what the configuration says.
    gate: Gate,
}

impl Policies {
    /// Those of a configuration; observing drops nothing, whatever it says.
    #[must_use]
    pub fn new(config: Config, observe: bool) -> Self {
        Self { config, observe, gate: Gate::default() }
    }

    /// The same policies; what this says of new sources is in place of what the
    /// configuration says.
    #[must_use]
    pub fn with_gate(mut self, gate: Gate) -> Self {
        self.gate = gate;
        self
    }

    /// One policy named `default` for every packet.
    #[must_use]
    pub fn single(rate: PacketRate, burst: Burst, observe: bool) -> Self {
        let policies = vec![Policy::new("default", rate, burst, &[])];
        Self::new(Config { policies, ..Config::default() }, observe)
    }

    /// The built-in profile, for a host that serves and also fetches.
    ///
    /// - `tcp`: a download from one mirror at 1 Gbit/s is 80,000 packets/s
    ///   from one source; 400k/s leaves room up to 5 Gbit/s in full packets.
    /// - `tcp-syn`: a half-open connection is kept for 63 s (Linux's default of
    ///   5 repeated SYN-ACKs), so at 50/s one source holds 3,150 and its burst
    ///   of the 4,096 that a listener has room for by default. A browser opens
    ///   tens of connections at once; a proxy for many may need more.
    /// - `udp`: QUIC fetches over UDP from one source: 1 Gbit/s in 1,200-byte
    ///   packets is 100k/s for moments, 20k/s is 200 Mbit/s sustained.
    /// - `icmp`, ICMP for IPv6 included: path MTU and errors, some pings.
    /// - `fragment`: DNS over UDP and tunnels, each packet several fragments.
    /// - `other`: tunnels such as GRE and ESP carry whole sites.
    ///
    /// # Panics
    /// Never: the figures are in range, as a test shows.
    #[must_use]
    pub fn builtin(observe: bool) -> Self {
        use Packets::{Fragment, Icmp, Icmpv6, Other, Tcp, TcpSyn, Udp};
        let policy = |name: &str, rate: &str, burst: u32, kinds: &[Packets]| {
            Policy::new(name, rate.parse().expect("a rate in range"), Burst(burst), kinds)
        };
        let policies = vec![
            policy("tcp-syn", "50/s", 200, &[TcpSyn]),
            policy("tcp", "400k/s", 800_000, &[Tcp]),
            policy("udp", "20k/s", 200_000, &[Udp]),
            policy("icmp", "100/s", 200, &[Icmp, Icmpv6]),
            policy("fragment", "2k/s", 10_000, &[Fragment]),
            policy("other", "20k/s", 100_000, &[Other]),
        ];
        Self::new(Config { policies, ..Config::default() }, observe)
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What new sources may do.
    #[must_use]
    pub fn gate(&self) -> Gate {
        let sources = &self.config.sources;
        Gate {
            new_sources: self.gate.new_sources.or(sources.new_sources),
            untracked: self.gate.untracked.or(sources.untracked),
        }
    }

    /// All policies, in order.
    #[must_use]
    pub fn all(&self) -> &[Policy] {
        &self.config.policies
    }

    /// Their names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.config.policies.iter().map(|policy| policy.name.as_str())
    }

    /// Whether nothing is dropped, whatever a policy's mode says.
    #[must_use]
    pub const fn observes(&self) -> bool {
        self.observe
    }

    /// The same policies with one changed.
    ///
    /// # Errors
    /// There is no policy of that name; the hint lists those that there are. A
    /// change that no configuration could hold.
    pub fn changed(&self, name: &str, change: &Change) -> Result<Self> {
        let mut changed = self.clone();
        let policy = changed.config.policies.iter_mut().find(|policy| policy.name == name);
        change.apply(policy.ok_or_else(|| self.unknown(name))?)?;
        // What is in force can always be written to a file and read again.
        let read = config::parse(&changed.config.to_toml(), "the change", &Host::here());
        read.map_err(|report| {
            let first = report.diagnostics.into_iter().next();
            let told = first.map(|first| (first.message, first.hint.unwrap_or_default()));
            let (message, hint) = told.unwrap_or_default();
            Error::new(Kind::Invalid, message).hint(hint)
        })?;
        Ok(changed)
    }

    /// The policy of that name.
    ///
    /// # Errors
    /// As [`Policies::changed`].
    pub fn find(&self, name: &str) -> Result<&Policy> {
        self.all().iter().find(|policy| policy.name == name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> Error {
        let names: Vec<_> = self.names().collect();
        Error::new(Kind::NotFound, format!("there is no policy '{name}'"))
            .hint(format!("there are: {}", names.join(", ")))
    }

    /// What the packet path reads, where policies are numbered by their place.
    ///
    /// # Errors
    /// As [`Policies::compile_as`].
    pub fn compile(&self, sizing: Sizing) -> Result<Compiled> {
        let numbers: Vec<_> = (0u32..).zip(self.all()).map(|(at, _)| Number::new(at, 0)).collect();
        self.compile_as(&numbers, sizing, &[])
    }

    /// What the packet path reads, for a load of these sizes, on interfaces
    /// that are numbered in this order; each policy has its number.
    ///
    /// # Errors
    /// A policy asks for an interface that is none of these.
    pub fn compile_as(
        &self,
        numbers: &[Number],
        sizing: Sizing,
        interfaces: &[String],
    ) -> Result<Compiled> {
        let sources = &self.config.sources;
        let mut rules = Ruleset::new(self.observe, self.gate().compile(sizing)?);
        rules
            .set_sources(SourcePrefix::new(sources.ipv4_prefix.into(), sources.ipv6_prefix.into()));
        let mut conditions = Vec::new();
        for ((place, policy), number) in (0u32..).zip(self.all()).zip(numbers) {
            let compiled = policy.compile(sizing.cpus);
            let compiled = compiled.map_err(|error| out_of_range(&policy.name, error))?;
            rules.set_policy(place, compiled.numbered(*number));
            conditions.push(policy.matches.conditions(interfaces)?);
        }
        let mut compiled = Compiled::new(rules, &conditions);
        for entry in &self.config.allow {
            compiled.configured.entry(entry.prefix).or_default().allow = true;
        }
        for entry in &self.config.deny {
            let said: &mut Configured = compiled.configured.entry(entry.prefix).or_default();
            said.deny = true;
        }
        Ok(compiled)
    }
}

fn protected(interfaces: &[String]) -> String {
    let names = interfaces.iter().filter(|name| !name.is_empty());
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn out_of_range(name: &str, error: RangeError) -> Error {
    let problem = match error {
        RangeError::TooFast | RangeError::TooSlow => "its rate is out of range",
        RangeError::NoBurst => "its burst is 0, which admits nothing",
    };
    Error::new(Kind::Invalid, format!("policy '{name}' cannot be used: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::{LevelChange, Setting},
        sizing::Wish,
    };

    #[test]
    fn the_builtin_profile_covers_every_kind_once() {
        let policies = Policies::builtin(false);
        let mut kinds: Vec<_> = policies.all().iter().flat_map(|it| &it.matches.kind).collect();
        kinds.sort_by_key(|kind| **kind as u8);
        assert!(kinds.into_iter().eq(&Packets::ALL));
        policies.compile(Sizing::new(2, 1, Wish::Default).unwrap()).unwrap();
    }

    #[test]
    fn a_change_touches_what_it_names() {
        let before = Policies::builtin(false);
        let rate = "7/s".parse().unwrap();
        let source = LevelChange { rate: Some(Setting::On(rate)), ..Default::default() };
        let change = Change { source, ..Change::default() };
        let after = before.changed("udp", &change).unwrap();
        for (old, new) in before.all().iter().zip(after.all()) {
            let mut expected = old.clone();
            if old.name == "udp" {
                expected.rate = Some(rate);
            }
            assert_eq!(new, &expected);
        }
        let error = before.changed("no-such", &change).unwrap_err();
        assert_eq!(error.kind, Kind::NotFound);
        assert!(error.to_string().contains("tcp-syn, tcp, udp"), "{error}");
    }

    #[test]
    fn levels_come_and_go() {
        let before = Policies::builtin(false);
        let total = LevelChange {
            rate: Some("5k/s".parse().unwrap()),
            bandwidth: Some("1MB/s".parse().unwrap()),
            bandwidth_burst: Some("2MB".parse().unwrap()),
            ..Default::default()
        };
        let change = Change { total, ..Change::default() };
        let after = before.changed("udp", &change).unwrap();
        let expected = Allowance {
            packets: Some(("5k/s".parse().unwrap(), Burst(5000))),
            bytes: Some(("1MB/s".parse().unwrap(), ByteBurst(2_000_000))),
        };
        assert_eq!(after.find("udp").unwrap().everybody(), expected);
        let off = LevelChange {
            rate: Some(Setting::Off),
            bandwidth: Some(Setting::Off),
            ..Default::default()
        };
        let change = Change { total: off, ..Change::default() };
        assert_eq!(after.changed("udp", &change).unwrap(), before);
        let total = LevelChange { burst: Some(Burst(5)), ..Default::default() };
        let change = Change { total, ..Change::default() };
        assert_eq!(before.changed("udp", &change).unwrap_err().kind, Kind::Invalid);
        let change = Change { source: off, ..Change::default() };
        let error = before.changed("udp", &change).unwrap_err();
        assert!(error.to_string().contains("mode = \"off\""), "{error}");
        assert!("offf".parse::<Setting<PacketRate>>().is_err());
    }
}
