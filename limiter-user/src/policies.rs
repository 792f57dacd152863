//! Policies as an operator sees them: a name, a limit, a mode.

use std::fmt;

use limiter_common::{
    parse::Kind as Packets,
    policy::{self, Policy, RangeError, Ruleset},
};

use crate::{
    error::{Error, Kind, Result},
    rate::{Burst, PacketRate},
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

/// A limit with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name of the policy.
    pub name: String,
    /// Packets per time and source.
    pub rate: PacketRate,
    /// Packets in a row and source.
    pub burst: Burst,
    /// What happens beyond.
    pub mode: Mode,
    /// The packets that it limits.
    packets: Vec<Packets>,
}

/// A change to a limit; what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The new rate.
    pub rate: Option<PacketRate>,
    /// The new burst.
    pub burst: Option<Burst>,
    /// The new mode.
    pub mode: Option<Mode>,
}

/// All policies in force, by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    limits: Vec<Limit>,
    observe: bool,
}

impl Policies {
    /// One policy named `default` for every packet.
    #[must_use]
    pub fn single(rate: PacketRate, burst: Burst, observe: bool) -> Self {
        let limit = Limit {
            name: "default".into(),
            rate,
            burst,
            mode: Mode::Enforce,
            packets: Packets::ALL.to_vec(),
        };
        Self { limits: vec![limit], observe }
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
        let limit = |name: &str, rate: &str, burst: u32, packets: &[Packets]| Limit {
            name: name.into(),
            rate: rate.parse().expect("a rate in range"),
            burst: Burst(burst),
            mode: Mode::Enforce,
            packets: packets.to_vec(),
        };
        let limits = vec![
            limit("tcp-syn", "50/s", 200, &[TcpSyn]),
            limit("tcp", "400k/s", 800_000, &[Tcp]),
            limit("udp", "20k/s", 200_000, &[Udp]),
            limit("icmp", "100/s", 200, &[Icmp, Icmpv6]),
            limit("fragment", "2k/s", 10_000, &[Fragment]),
            limit("other", "20k/s", 100_000, &[Other]),
        ];
        Self { limits, observe }
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
    /// There is no policy of that name; the hint lists those that there are.
    pub fn changed(&self, name: &str, change: Change) -> Result<Self> {
        let mut changed = self.clone();
        let limit = changed.limits.iter_mut().find(|limit| limit.name == name);
        let limit = limit.ok_or_else(|| self.unknown(name))?;
        limit.rate = change.rate.unwrap_or(limit.rate);
        limit.burst = change.burst.unwrap_or(limit.burst);
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

    /// The rule set that the packet path reads, for a machine with so many
    /// possible CPUs.
    ///
    /// # Errors
    /// Never for limits made from [`PacketRate`] and [`Burst`].
    pub fn compile(&self, cpus: u32) -> Result<Ruleset> {
        let mut rules = Ruleset::new(self.observe);
        for (index, limit) in (0u32..).zip(&self.limits) {
            let mode = limit.mode.compile();
            let policy = Policy::compile(limit.rate.0, limit.burst.0, mode, cpus, false);
            rules.set_policy(index, policy.map_err(|error| out_of_range(&limit.name, error))?);
            for &kind in &limit.packets {
                rules.set_kind(kind, index);
            }
        }
        Ok(rules)
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

    #[test]
    fn the_builtin_profile_covers_every_kind_once() {
        let policies = Policies::builtin(false);
        let mut kinds: Vec<_> = policies.limits.iter().flat_map(|limit| &limit.packets).collect();
        kinds.sort_by_key(|kind| **kind as u8);
        assert!(kinds.into_iter().eq(&Packets::ALL));
        policies.compile(2).unwrap();
    }

    #[test]
    fn a_change_touches_what_it_names() {
        let before = Policies::builtin(false);
        let rate = "7/s".parse().unwrap();
        let change = Change { rate: Some(rate), ..Change::default() };
        let after = before.changed("udp", change).unwrap();
        for (old, new) in before.limits.iter().zip(&after.limits) {
            let expected = if old.name == "udp" { rate } else { old.rate };
            assert_eq!((new.rate, new.burst, new.mode), (expected, old.burst, old.mode));
        }
        let error = before.changed("no-such", change).unwrap_err();
        assert_eq!(error.kind, Kind::NotFound);
        assert!(error.to_string().contains("tcp-syn, tcp, udp"), "{error}");
    }
}
