//! Rules on policies and their limits.

use std::collections::HashMap;

use super::Rules;
use crate::{
    bytes::{Bandwidth, ByteBurst},
    config::{PerPrefix, Policy, Total, traffic::Traffic},
    mode::Mode,
    rate::{Burst, PacketRate},
};

/// Policies that the packet path has room for.
const MOST_POLICIES: usize = 64;
const LONGEST_NAME: usize = 64;

/// The keys of one level of a limit.
struct Level {
    rate: Option<PacketRate>,
    burst: Option<Burst>,
    bandwidth: Option<Bandwidth>,
    bandwidth_burst: Option<ByteBurst>,
}

macro_rules! levels {
    ($($type:ident),*) => {$(
        impl From<&$type> for Level {
            fn from(keys: &$type) -> Self {
                let $type { rate, burst, bandwidth, bandwidth_burst, .. } = *keys;
                Self { rate, burst, bandwidth, bandwidth_burst }
            }
        }
    )*};
}
levels!(Policy, PerPrefix, Total);

impl Level {
    const fn limits(&self) -> bool {
        self.rate.is_some() || self.bandwidth.is_some()
    }

    const fn has_bursts(&self) -> bool {
        self.burst.is_some() || self.bandwidth_burst.is_some()
    }
}

impl Rules<'_> {
    pub(super) fn policies(&mut self) {
        let policies = &self.config.policies;
        let mut names = HashMap::new();
        for (index, policy) in policies.iter().enumerate() {
            let place = format!("policy.{index}");
            let first = *names.entry(&policy.name).or_insert(index);
            if first != index {
                let line = self.line(&format!("policy.{first}.name"));
                self.error(
                    self.tree.value(&format!("{place}.name")),
                    format!("there is already a policy '{}', on line {line}", policy.name),
                    "give each policy a name of its own",
                );
            }
            self.name(&place, &policy.name);
            self.limits(&place, policy);
            self.matches(&place, &policy.matches);
        }
        if policies.len() > MOST_POLICIES {
            self.error(
                self.tree.value(&format!("policy.{MOST_POLICIES}")),
                format!("there are {} policies, and room for {MOST_POLICIES}", policies.len()),
                "join policies whose limits are the same: `match` takes lists",
            );
        }
        self.order();
    }

    fn name(&mut self, place: &str, name: &str) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let problem = if name.is_empty() {
            "the name of a policy is empty".into()
        } else if name.len() > LONGEST_NAME {
            format!("the name of a policy is too long: {} bytes", name.len())
        } else if !name.bytes().all(is_plain) {
            format!("'{}' cannot be the name of a policy", name.escape_debug())
        } else {
            return;
        };
        let span = self.tree.value(&format!("{place}.name"));
        let hint = "write 1 to 64 letters, digits, '_', '.' and '-', such as web-syn";
        self.error(span, problem, hint);
    }

    fn limits(&mut self, place: &str, policy: &Policy) {
        let own = Level::from(policy);
        let bursts = self.bursts(place, &own);
        let is_limit = own.limits() || policy.per_prefix.is_some() || policy.total.is_some();
        if !is_limit && !bursts && policy.mode != Mode::Off {
            self.error(
                self.tree.value(&format!("{place}.name")),
                format!("the policy '{}' has no limit", policy.name),
                "add a `rate` or a `bandwidth`; mode = \"off\" takes packets without a limit",
            );
        }
        if let Some(per_prefix) = &policy.per_prefix {
            self.level(&format!("{place}.per_prefix"), "per_prefix", &per_prefix.into());
            self.lengths(&format!("{place}.per_prefix"), per_prefix);
        }
        if let Some(total) = &policy.total {
            self.level(&format!("{place}.total"), "total", &total.into());
        }
    }

    /// A table of its own for a level must have a limit.
    fn level(&mut self, place: &str, name: &str, level: &Level) {
        let bursts = self.bursts(place, level);
        if !level.limits() && !bursts {
            let hint = "add a `rate` or a `bandwidth` to it";
            self.error(self.tree.key(place), format!("`{name}` has no limit"), hint);
        }
    }

    /// Tells bursts of nothing; whether there were any.
    fn bursts(&mut self, place: &str, level: &Level) -> bool {
        let Level { rate, burst, bandwidth, bandwidth_burst } = level;
        for (lonely, burst, of) in [
            (burst.is_some() && rate.is_none(), "burst", "rate"),
            (bandwidth_burst.is_some() && bandwidth.is_none(), "bandwidth_burst", "bandwidth"),
        ] {
            if lonely {
                self.error(
                    self.tree.key(&format!("{place}.{burst}")),
                    format!("`{burst}` has no `{of}` that it could belong to"),
                    format!("add a `{of}`"),
                );
            }
        }
        !level.limits() && level.has_bursts()
    }

    fn lengths(&mut self, place: &str, per_prefix: &PerPrefix) {
        let sources = &self.config.sources;
        for (key, family, wider, source) in [
            ("ipv4", "IPv4", per_prefix.ipv4, sources.ipv4_prefix),
            ("ipv6", "IPv6", per_prefix.ipv6, sources.ipv6_prefix),
        ] {
            if wider > source {
                self.error(
                    self.tree.value(&format!("{place}.{key}")),
                    format!(
                        "`per_prefix` counts {family} prefixes of /{wider}, but a source is \
                         already a /{source}"
                    ),
                    format!("write {key} = {source} or less; it must hold whole sources"),
                );
            }
        }
    }

    /// Policies that an earlier one leaves nothing to.
    fn order(&mut self) {
        let policies = &self.config.policies;
        let traffic: Vec<_> = policies
            .iter()
            .take(MOST_POLICIES)
            .map(|policy| Traffic::new(&policy.matches))
            .collect();
        for (later, taken) in traffic.iter().enumerate().filter(|(_, taken)| !taken.is_empty()) {
            let covers = |earlier: &usize| traffic[*earlier].covers(taken);
            let Some(earlier) = (0..later).find(covers) else { continue };
            let (place, line) =
                (format!("policy.{later}.name"), self.line(&format!("policy.{earlier}.name")));
            let (name, first) = (&policies[later].name, &policies[earlier].name);
            let same = policies[earlier].matches == policies[later].matches;
            let what = if same { "the same packets" } else { "everything that it would match" };
            self.error(
                self.tree.value(&place),
                format!("the policy '{name}' never matches: '{first}' on line {line} takes {what}"),
                format!("move it above '{first}', or remove one of the two"),
            );
        }
    }
}
