//! Limits, read and changed one at a time.

use super::{Caller, Service};
use crate::{
    api::{self, SCHEMA_VERSION},
    change::{Change, LevelChange},
    config::Policy,
    error::{Error, Kind, Result},
    mode::Mode,
    policies::Allowance,
};

impl Service {
    /// The limits in force, all or one.
    ///
    /// # Errors
    /// There is no policy of that name.
    pub fn limits(&self, policy: Option<&str>) -> Result<api::Limits> {
        let policies = match policy {
            Some(name) => vec![self.shown(self.in_force.policies.find(name)?)],
            None => self.in_force.policies.all().iter().map(|policy| self.shown(policy)).collect(),
        };
        Ok(api::Limits { schema_version: SCHEMA_VERSION, policies })
    }

    /// Changes one limit and says how it is now.
    ///
    /// # Errors
    /// There is no such policy, a value cannot be used, or nothing is changed;
    /// what was in force then stays.
    pub fn change(
        &mut self,
        name: &str,
        change: &api::LimitChange,
        caller: Option<Caller>,
    ) -> Result<api::Limits> {
        let force = change.force;
        self.settle();
        self.in_force.policies.find(name)?;
        let source = api::LevelChange {
            rate: change.rate.clone(),
            burst: change.burst.clone(),
            bandwidth: change.bandwidth.clone(),
            bandwidth_burst: change.bandwidth_burst.clone(),
        };
        let change = Change {
            source: level_change(&source)?,
            prefix: level_change(&change.per_prefix)?,
            total: level_change(&change.total)?,
            strict: change.strict,
            mode: change.mode.as_deref().map(Mode::from_name).transpose()?,
        };
        if change == Change::default() {
            return Err(Error::new(Kind::Invalid, "nothing is to be changed")
                .hint("name a rate, a burst, a bandwidth or a mode"));
        }
        if self.in_force.policies.observes() && change.mode == Some(Mode::Enforce) {
            return Err(Error::new(
                Kind::Invalid,
                "this limiterd runs with --observe: it drops nothing",
            )
            .hint("restart it without --observe; it takes over without a gap"));
        }
        self.require_none_pending()?;
        let changed = self.in_force.policies.changed(name, &change)?;
        if !force {
            self.guard_policies(&changed, &self.compiled(&changed)?, caller)?;
        }
        self.put(changed, None)?;
        self.limits(Some(name))
    }

    fn shown(&self, policy: &Policy) -> api::Limit {
        let mode = match policy.mode {
            Mode::Enforce if self.in_force.policies.observes() => Mode::Observe,
            mode => mode,
        };
        let prefix = policy.per_prefix.as_ref().map(|lengths| api::PrefixLimit {
            ipv4: lengths.ipv4.into(),
            ipv6: lengths.ipv6.into(),
            limit: shown(policy.prefix()),
        });
        api::Limit {
            name: policy.name.clone(),
            mode: mode.name().into(),
            algorithm: "token-bucket".into(),
            source: shown(policy.source()),
            strict: policy.strict,
            per_prefix: prefix,
            total: policy.total.as_ref().map(|_| shown(policy.everybody())),
        }
    }
}

fn level_change(change: &api::LevelChange) -> Result<LevelChange> {
    Ok(LevelChange {
        rate: change.rate.as_deref().map(str::parse).transpose()?,
        burst: change.burst.as_deref().map(str::parse).transpose()?,
        bandwidth: change.bandwidth.as_deref().map(str::parse).transpose()?,
        bandwidth_burst: change.bandwidth_burst.as_deref().map(str::parse).transpose()?,
    })
}

fn shown(allowance: Allowance) -> api::LevelLimit {
    let (packets, bytes) = (allowance.packets, allowance.bytes);
    api::LevelLimit {
        rate: packets.map(|(rate, _)| rate.to_string()),
        rate_per_second: packets.map(|(rate, _)| rate.per_second()),
        burst: packets.map(|(_, burst)| burst.0),
        bandwidth: bytes.map(|(rate, _)| rate.to_string()),
        bandwidth_bytes_per_second: bytes.map(|(rate, _)| rate.per_second()),
        bandwidth_burst_bytes: bytes.map(|(_, burst)| u64::from(burst.0)),
    }
}
