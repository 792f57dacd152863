//! What the daemon knows and does, apart from how it is asked.

use std::time::Instant;

use limiter_common::{stats::NO_POLICY, verdict::Verdict};

use crate::{
    api::{self, SCHEMA_VERSION},
    error::{Error, Kind, Result},
    interface::{self, Interface},
    plane::{self, Attached, Plane},
    policies::{Allowance, AllowanceChange, Change, Limit, Mode, Policies},
    trouble::{self, Counts, Trouble},
};

/// The running shield.
pub struct Service {
    plane: Plane,
    policies: Policies,
    started: Instant,
    trouble: Trouble,
}

impl Service {
    /// A service over a plane on which these policies are in force.
    #[must_use]
    pub fn new(plane: Plane, policies: Policies) -> Self {
        let started = Instant::now();
        Self { plane, policies, started, trouble: Trouble::new(started) }
    }

    /// Takes the protection off; says from which interfaces.
    ///
    /// # Errors
    /// A pin cannot be removed.
    pub fn detach(self) -> Result<Vec<String>> {
        let names = self.plane.attached().map(|attached| attached.name).collect();
        self.plane.detach()?;
        Ok(names)
    }

    fn uptime(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Looks after the shield, which is to be done every few seconds. Says
    /// which interfaces are not protected as they should be, one sentence
    /// each.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn watch(&mut self) -> Result<Vec<String>> {
        let trouble = self.trouble()?;
        self.trouble.note(Instant::now(), trouble);
        let now = interface::all()?;
        Ok(self.plane.attached().filter_map(|attached| problem(&attached, &now)).collect())
    }

    /// How the shield stands.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn status(&self) -> Result<api::Status> {
        let now = interface::all()?;
        let mut problems = Vec::new();
        let mut interfaces = Vec::new();
        for attached in self.plane.attached() {
            problems.extend(problem(&attached, &now));
            interfaces.push(api::InterfaceStatus {
                attached: is_on(&attached, &now),
                name: present_name(&attached, &now),
                index: attached.index,
                mode: attached.mode.name().into(),
                pinned: attached.pinned,
                program_id: attached.program_id,
            });
        }
        problems.extend(self.trouble.problems(self.trouble()?));
        let (sizing, gate) = (self.plane.sizing(), self.policies.gate());
        Ok(api::Status {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION").into(),
            object_sha256: crate::object::SHA256.unwrap_or_default().into(),
            uptime_seconds: self.uptime(),
            observe: self.policies.observes(),
            interfaces,
            generation: self.plane.generation(),
            confirm: api::Confirm::default(),
            memory: api::Memory {
                maps_bytes: sizing.maps_bytes,
                max_sources: sizing.max_sources,
                cpus: sizing.cpus,
            },
            new_sources: api::NewSources {
                tracked_per_second: gate.new_sources(sizing).per_second(),
                untracked_per_second: gate.untracked(sizing).per_second(),
            },
            health: if problems.is_empty() { "ok" } else { "degraded" }.into(),
            problems,
        })
    }

    /// Packets under each reason that means trouble of our own.
    fn trouble(&self) -> Result<Counts> {
        let mut trouble = trouble::NONE;
        for at in 0..self.plane.attached().count() {
            for count in self.plane.counts(at, self.policy_count())? {
                let sum = trouble.iter_mut().find(|(reason, _)| *reason == count.reason);
                if let Some((_, packets)) = sum {
                    *packets += count.counter.packets;
                }
            }
        }
        Ok(trouble)
    }

    fn policy_count(&self) -> u32 {
        u32::try_from(self.policies.limits().len()).unwrap_or(NO_POLICY)
    }

    /// What was counted, on one interface or all, under one policy or all.
    ///
    /// # Errors
    /// There is no such interface or policy, or the kernel does not answer.
    pub fn stats(&self, interface: Option<&str>, policy: Option<&str>) -> Result<api::Stats> {
        if let Some(name) = policy {
            self.policies.find(name)?;
        }
        let now = interface::all()?;
        let attached: Vec<_> = self.plane.attached().collect();
        let names: Vec<_> = attached.iter().map(|attached| present_name(attached, &now)).collect();
        if let Some(name) = interface
            && !names.iter().any(|known| known == name)
        {
            return Err(Error::new(Kind::NotFound, format!("'{name}' is not protected"))
                .hint(format!("protected are: {}", names.join(", "))));
        }
        let wanted = |at: usize| interface.is_none_or(|interface| interface == names[at]);
        let mut stats = api::Stats {
            schema_version: SCHEMA_VERSION,
            uptime_seconds: self.uptime(),
            generation: self.plane.generation(),
            interfaces: Vec::new(),
            totals: api::Totals::default(),
            reasons: Vec::new(),
            policies: Vec::new(),
        };
        let limits = self.policies.limits();
        let chosen = |name: &str| policy.is_none_or(|policy| policy == name);
        for limit in limits.iter().filter(|limit| chosen(&limit.name)) {
            stats.policies.push(api::PolicyCount {
                name: limit.name.clone(),
                passed: api::Count::default(),
                dropped: api::Count::default(),
                would_drop: api::Count::default(),
            });
        }
        for (at, attached) in attached.iter().enumerate().filter(|(at, _)| wanted(*at)) {
            stats.interfaces.push(api::StatsInterface {
                name: present_name(attached, &now),
                index: attached.index,
                mode: attached.mode.name().into(),
                attached: is_on(attached, &now),
            });
            for count in self.plane.counts(at, self.policy_count())? {
                let name = limits.get(count.policy as usize).map(|limit| limit.name.as_str());
                if policy.is_none() || policy == name {
                    add(&mut stats, &count, name);
                }
            }
        }
        stats.reasons.sort_by(|a, b| {
            (b.packets, &a.reason, &a.verdict).cmp(&(a.packets, &b.reason, &b.verdict))
        });
        Ok(stats)
    }

    /// The limits in force, all or one.
    ///
    /// # Errors
    /// There is no policy of that name.
    pub fn limits(&self, policy: Option<&str>) -> Result<api::Limits> {
        let policies = match policy {
            Some(name) => vec![self.shown(self.policies.find(name)?)],
            None => self.policies.limits().iter().map(|limit| self.shown(limit)).collect(),
        };
        Ok(api::Limits { schema_version: SCHEMA_VERSION, policies })
    }

    /// Changes one limit and says how it is now.
    ///
    /// # Errors
    /// There is no such policy, a value cannot be used, or nothing is changed;
    /// what was in force then stays.
    pub fn change(&mut self, name: &str, change: &api::LimitChange) -> Result<api::Limits> {
        self.policies.find(name)?;
        let source = api::LevelChange {
            rate: change.rate.clone(),
            burst: change.burst.clone(),
            bandwidth: change.bandwidth.clone(),
            bandwidth_burst: change.bandwidth_burst.clone(),
        };
        let change = Change {
            source: allowance_change(&source)?,
            prefix: allowance_change(&change.per_prefix)?,
            total: allowance_change(&change.total)?,
            strict: change.strict,
            mode: change.mode.as_deref().map(Mode::from_name).transpose()?,
        };
        if change == Change::default() {
            return Err(Error::new(Kind::Invalid, "nothing is to be changed")
                .hint("name a rate, a burst, a bandwidth or a mode"));
        }
        if self.policies.observes() && change.mode == Some(Mode::Enforce) {
            return Err(Error::new(
                Kind::Invalid,
                "this limiterd runs with --observe: it drops nothing",
            )
            .hint("restart it without --observe; it takes over without a gap"));
        }
        let changed = self.policies.changed(name, change)?;
        self.plane.set_rules(&changed.compile(self.plane.sizing())?)?;
        self.policies = changed;
        self.limits(Some(name))
    }

    fn shown(&self, limit: &Limit) -> api::Limit {
        let mode = match limit.mode {
            Mode::Enforce if self.policies.observes() => Mode::Observe,
            mode => mode,
        };
        let (ipv4, ipv6) = limit.prefix_lengths;
        let prefix = Some(limit.prefix).filter(|prefix| *prefix != Allowance::default());
        let total = Some(limit.total).filter(|total| *total != Allowance::default());
        api::Limit {
            name: limit.name.clone(),
            mode: mode.name().into(),
            algorithm: "token-bucket".into(),
            source: shown(limit.source),
            strict: limit.strict,
            per_prefix: prefix.map(|prefix| api::PrefixLimit { ipv4, ipv6, limit: shown(prefix) }),
            total: total.map(shown),
        }
    }
}

fn allowance_change(change: &api::LevelChange) -> Result<AllowanceChange> {
    Ok(AllowanceChange {
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

/// The interface to which something was attached, as it is now.
fn present<'a>(attached: &Attached, now: &'a [Interface]) -> Option<&'a Interface> {
    now.iter().find(|interface| interface.index == attached.index)
}

/// Its name, which may have changed.
fn present_name(attached: &Attached, now: &[Interface]) -> String {
    present(attached, now).map_or_else(|| attached.name.clone(), |it| it.name.clone())
}

fn is_on(attached: &Attached, now: &[Interface]) -> bool {
    let id = Some(attached.program_id);
    present(attached, now).is_some_and(|interface| match attached.mode {
        plane::Mode::Native => interface.native == id,
        plane::Mode::Generic => interface.generic == id,
    })
}

/// What is wrong with an interface's protection, and the mend.
fn problem(attached: &Attached, now: &[Interface]) -> Option<String> {
    const RESTART: &str = "restart limiterd to protect it again";
    let name = present_name(attached, now);
    if !is_on(attached, now) {
        let what = match present(attached, now) {
            Some(interface) => match interface.program() {
                Some(program) => format!("has another XDP program on it, number {program}"),
                None => format!("is not protected: the program was taken off it; {RESTART}"),
            },
            None if now.iter().any(|interface| interface.name == attached.name) => {
                format!("is not protected: it was removed and made anew; {RESTART}")
            }
            None => format!("is gone; when it is back, {RESTART}"),
        };
        return Some(format!("{name} {what}"));
    }
    if !attached.pinned {
        return Some(format!("the pin of {name} was removed; its protection ends with limiterd"));
    }
    (attached.mode == plane::Mode::Generic).then(|| {
        format!("{name} is protected in generic mode, several times slower than in its driver")
    })
}

fn add(stats: &mut api::Stats, count: &plane::Count, policy: Option<&str>) {
    let amount = api::Count { packets: count.counter.packets, bytes: count.counter.bytes };
    let mut unnamed = api::PolicyCount {
        name: String::new(),
        passed: api::Count::default(),
        dropped: api::Count::default(),
        would_drop: api::Count::default(),
    };
    let named = stats.policies.iter_mut().find(|it| Some(it.name.as_str()) == policy);
    let policy = named.unwrap_or(&mut unnamed);
    stats.totals.received += amount;
    match count.verdict {
        Verdict::Pass => {
            stats.totals.passed += amount;
            policy.passed += amount;
        }
        Verdict::Drop => {
            stats.totals.dropped += amount;
            policy.dropped += amount;
        }
        Verdict::WouldDrop => {
            stats.totals.passed += amount;
            stats.totals.would_drop += amount;
            policy.passed += amount;
            policy.would_drop += amount;
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
