//! Policies as an operator sees them: a name, a limit, a mode.

use std::{fmt, str::FromStr};

use limiter_common::{
    level::{Level, Number},
    limit::{self, RangeError},
    parse::Kind as Packets,
    policy::{self, Policy, Ruleset},
    source::SourcePrefix,
};

use crate::{
    bytes::{Bandwidth, ByteBurst},
    compiled::{Compiled, Conditions},
    error::{Error, Kind, Result},
    gate::Gate,
    rate::{Burst, PacketRate},
    sizing::Sizing,
};

/// What happens to packets over a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are dropped.
    Enforce,
    /// They pass, and are counted as `would_drop`.
    Observe,
    /// There is no limit.
    Off,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Enforce, Self::Observe, Self::Off];

    /// Name in JSON and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        }
    }

    /// The mode of that name.
    ///
    /// # Errors
    /// There is none.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or_else(|| {
            Error::new(Kind::Invalid, format!("there is no mode '{name}'"))
                .hint("the modes are enforce, observe and off")
        })
    }

    const fn compile(self) -> policy::Mode {
        match self {
            Self::Enforce => policy::Mode::Enforce,
            Self::Observe => policy::Mode::Observe,
            Self::Off => policy::Mode::Off,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What one level of a policy allows, in packets, in bytes, in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Packets per time, and at once.
    pub packets: Option<(PacketRate, Burst)>,
    /// Bytes per time, and at once.
    pub bytes: Option<(Bandwidth, ByteBurst)>,
}

/// A limit with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name of the policy.
    pub name: String,
    /// For each source.
    pub source: Allowance,
    /// For each wider prefix.
    pub prefix: Allowance,
    /// Lengths of the wider prefixes of IPv4 and of IPv6.
    pub prefix_lengths: (u32, u32),
    /// For everybody together.
    pub total: Allowance,
    /// Whether no CPU keeps tokens that it has not spent: no excess at all,
    /// for a higher cost of each packet.
    pub strict: bool,
    /// What happens beyond.
    pub mode: Mode,
    /// The packets that it limits.
    packets: Vec<Packets>,
}

/// A value, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting<T> {
    /// No limit of this sort.
    Off,
    /// This one.
    On(T),
}

impl<T: FromStr<Err = E>, E: Into<Error>> FromStr for Setting<T> {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(Self::Off),
            value => value.parse().map(Self::On).map_err(Into::into),
        }
    }
}

/// A change to what one level allows; what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllowanceChange {
    /// The new rate; one that is new has a burst of a second.
    pub rate: Option<Setting<PacketRate>>,
    /// The new burst.
    pub burst: Option<Burst>,
    /// The new bandwidth; one that is new has a burst of a second.
    pub bandwidth: Option<Setting<Bandwidth>>,
    /// The new burst in bytes.
    pub bandwidth_burst: Option<ByteBurst>,
}

/// A change to a limit; what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// For each source.
    pub source: AllowanceChange,
    /// For each wider prefix.
    pub prefix: AllowanceChange,
    /// For everybody together.
    pub total: AllowanceChange,
    /// Whether no excess at all is possible.
    pub strict: Option<bool>,
    /// The new mode.
    pub mode: Option<Mode>,
}

impl Allowance {
    /// So many packets and nothing else.
    #[must_use]
    pub const fn packets(rate: PacketRate, burst: Burst) -> Self {
        Self { packets: Some((rate, burst)), bytes: None }
    }

    fn change(&mut self, level: &str, change: AllowanceChange) -> Result<()> {
        changed(&mut self.packets, change.rate, PacketRate::one_second, change.burst)
            .ok_or_else(|| no_rate("rate", level))?;
        changed(&mut self.bytes, change.bandwidth, Bandwidth::one_second, change.bandwidth_burst)
            .ok_or_else(|| no_rate("bandwidth", level))
    }
}

/// Changes a rate and its burst; `None` if there is no rate to have the burst.
fn changed<R: Copy, B: Copy>(
    present: &mut Option<(R, B)>,
    rate: Option<Setting<R>>,
    one_second: fn(R) -> B,
    burst: Option<B>,
) -> Option<()> {
    match rate {
        None => {}
        Some(Setting::Off) => *present = None,
        Some(Setting::On(rate)) => {
            let burst = present.map_or_else(|| one_second(rate), |(_, burst)| burst);
            *present = Some((rate, burst));
        }
    }
    if let Some(burst) = burst {
        present.as_mut()?.1 = burst;
    }
    Some(())
}

fn no_rate(what: &str, level: &str) -> Error {
    Error::new(Kind::Invalid, format!("there is no {what} {level} to have a burst"))
        .hint(format!("name the {what} too"))
}

/// All policies in force, by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    limits: Vec<Limit>,
    observe: bool,
    gate: Gate,
}

impl Policies {
    /// One policy named `default` for every packet.
    #[must_use]
    pub fn single(rate: PacketRate, burst: Burst, observe: bool) -> Self {
        let limit = Limit::new("default", rate, burst, &Packets::ALL);
        Self { limits: vec![limit], observe, gate: Gate::default() }
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
        let limit = |name: &str, rate: &str, burst: u32, packets: &[Packets]| {
            Limit::new(name, rate.parse().expect("a rate in range"), Burst(burst), packets)
        };
        let limits = vec![
            limit("tcp-syn", "50/s", 200, &[TcpSyn]),
            limit("tcp", "400k/s", 800_000, &[Tcp]),
            limit("udp", "20k/s", 200_000, &[Udp]),
            limit("icmp", "100/s", 200, &[Icmp, Icmpv6]),
            limit("fragment", "2k/s", 10_000, &[Fragment]),
            limit("other", "20k/s", 100_000, &[Other]),
        ];
        Self { limits, observe, gate: Gate::default() }
    }

    /// The same policies behind this gate.
    #[must_use]
    pub fn with_gate(mut self, gate: Gate) -> Self {
        self.gate = gate;
        self
    }

    /// What new sources may do.
    #[must_use]
    pub const fn gate(&self) -> &Gate {
        &self.gate
    }

    /// All limits, by index.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
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
    /// burst of a rate that there is not.
    pub fn changed(&self, name: &str, change: Change) -> Result<Self> {
        let mut changed = self.clone();
        let limit = changed.limits.iter_mut().find(|limit| limit.name == name);
        let limit = limit.ok_or_else(|| self.unknown(name))?;
        limit.source.change("for each source", change.source)?;
        limit.prefix.change("for each prefix", change.prefix)?;
        limit.total.change("for everybody", change.total)?;
        limit.strict = change.strict.unwrap_or(limit.strict);
        limit.mode = change.mode.unwrap_or(limit.mode);
        Ok(changed)
    }

    /// The limit of that name.
    ///
    /// # Errors
    /// As [`Policies::changed`].
    pub fn find(&self, name: &str) -> Result<&Limit> {
        self.limits.iter().find(|limit| limit.name == name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> Error {
        let names: Vec<_> = self.limits.iter().map(|limit| limit.name.as_str()).collect();
        Error::new(Kind::NotFound, format!("there is no policy '{name}'"))
            .hint(format!("there are: {}", names.join(", ")))
    }

    /// The rule set that the packet path reads, for a load of these sizes.
    ///
    /// # Errors
    /// Never for limits made from [`PacketRate`], [`Burst`] and their like.
    pub fn compile(&self, sizing: Sizing) -> Result<Compiled> {
        let mut rules = Ruleset::new(self.observe, self.gate.compile(sizing)?);
        let mut conditions = Vec::new();
        for (place, limit) in (0u32..).zip(&self.limits) {
            let policy = limit.compile(sizing.cpus);
            let policy = policy.map_err(|error| out_of_range(&limit.name, error))?;
            rules.set_policy(place, policy.numbered(Number::new(place, 0)));
            let kinds = limit.packets.clone();
            conditions.push(Conditions { kinds, ..Conditions::default() });
        }
        Ok(Compiled::new(rules, &conditions))
    }
}

impl Limit {
    fn new(name: &str, rate: PacketRate, burst: Burst, packets: &[Packets]) -> Self {
        Self {
            name: name.into(),
            source: Allowance::packets(rate, burst),
            prefix: Allowance::default(),
            prefix_lengths: (24, 48),
            total: Allowance::default(),
            strict: false,
            mode: Mode::Enforce,
            packets: packets.to_vec(),
        }
    }

    fn compile(&self, cpus: u32) -> std::result::Result<Policy, RangeError> {
        let (ipv4, ipv6) = self.prefix_lengths;
        let mut policy =
            Policy::new(self.mode.compile()).with_prefix(SourcePrefix::new(ipv4, ipv6));
        for (allowance, packets, bytes) in [
            (&self.source, Level::SourcePackets, Level::SourceBytes),
            (&self.prefix, Level::PrefixPackets, Level::PrefixBytes),
            (&self.total, Level::TotalPackets, Level::TotalBytes),
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
    use crate::sizing::Wish;

    #[test]
    fn the_builtin_profile_covers_every_kind_once() {
        let policies = Policies::builtin(false);
        let mut kinds: Vec<_> = policies.limits.iter().flat_map(|limit| &limit.packets).collect();
        kinds.sort_by_key(|kind| **kind as u8);
        assert!(kinds.into_iter().eq(&Packets::ALL));
        policies.compile(Sizing::new(2, 1, Wish::Default).unwrap()).unwrap();
    }

    #[test]
    fn a_change_touches_what_it_names() {
        let before = Policies::builtin(false);
        let rate = "7/s".parse().unwrap();
        let source = AllowanceChange { rate: Some(Setting::On(rate)), ..Default::default() };
        let change = Change { source, ..Change::default() };
        let after = before.changed("udp", change).unwrap();
        for (old, new) in before.limits.iter().zip(&after.limits) {
            let mut expected = old.clone();
            if old.name == "udp" {
                expected.source.packets = old.source.packets.map(|(_, burst)| (rate, burst));
            }
            assert_eq!(new, &expected);
        }
        let error = before.changed("no-such", change).unwrap_err();
        assert_eq!(error.kind, Kind::NotFound);
        assert!(error.to_string().contains("tcp-syn, tcp, udp"), "{error}");
    }

    #[test]
    fn levels_come_and_go() {
        let before = Policies::builtin(false);
        let total = AllowanceChange {
            rate: Some("5k/s".parse().unwrap()),
            bandwidth: Some("1MB/s".parse().unwrap()),
            bandwidth_burst: Some("2MB".parse().unwrap()),
            ..Default::default()
        };
        let change = Change { total, ..Change::default() };
        let after = before.changed("udp", change).unwrap();
        let expected = Allowance {
            packets: Some(("5k/s".parse().unwrap(), Burst(5000))),
            bytes: Some(("1MB/s".parse().unwrap(), ByteBurst(2_000_000))),
        };
        assert_eq!(after.find("udp").unwrap().total, expected);
        let total = AllowanceChange {
            rate: Some(Setting::Off),
            bandwidth: Some(Setting::Off),
            ..Default::default()
        };
        let change = Change { total, ..Change::default() };
        assert_eq!(after.changed("udp", change).unwrap(), before);
        let total = AllowanceChange { burst: Some(Burst(5)), ..Default::default() };
        let change = Change { total, ..Change::default() };
        assert_eq!(before.changed("udp", change).unwrap_err().kind, Kind::Invalid);
        assert!("offf".parse::<Setting<PacketRate>>().is_err());
    }
}
