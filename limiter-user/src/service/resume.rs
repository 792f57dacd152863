//! What a start puts in force: what was in force before, or what the
//! configuration says if it has changed since.

use limiter_common::stats::NO_POLICY;

use crate::{
    config::{self, Host},
    interface,
    numbers::Numbers,
    plane::{self, Count},
    policies::Policies,
    state::{State, Sum},
};

use super::Startup;

/// What a start puts in force.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The policies.
    pub policies: Policies,
    /// Their rows of counters.
    pub numbers: Numbers,
    /// What rows had counted before their policies had them, by interface.
    pub baselines: Vec<(usize, Count)>,
    /// Checksum of what the policies derive from.
    pub base: u32,
    /// The interfaces.
    pub interfaces: Vec<String>,
    /// The interfaces that the configuration or the command line names.
    pub started_for: Vec<String>,
}

/// The plan of a start over what an earlier daemon left.
///
/// `policies` and `named` are what the configuration and the command line say.
/// Changes made at run time stay in force as long as those are what they were.
#[must_use]
pub fn plan(
    start: &plane::Start,
    state: &State,
    policies: Policies,
    named: Vec<String>,
    startup: &Startup,
) -> Plan {
    let in_force = start.generation().and_then(|it| state.rules_of(it));
    let rules = in_force.or_else(|| state.last_rules());
    let mut plan = Plan {
        policies,
        numbers: Numbers::default(),
        baselines: Vec::new(),
        base: startup.base,
        interfaces: named.clone(),
        started_for: named,
    };
    if let (Some(rules), true) = (rules, start.load().is_some()) {
        // Rows of counters mean what they meant.
        if rules.numbers.is_valid() {
            plan.numbers = rules.numbers.clone();
        }
        let counts = rules.baselines.iter();
        plan.baselines = counts.filter_map(|(at, sum)| Some((*at, sum.count()?))).collect();
    }
    if start.is_on_trial() {
        tracing::warn!("nobody confirmed the last change: the rules before it are in force");
    }
    if startup.forget {
        return plan;
    }
    if let Some(rules) = rules {
        let same = rules.base == startup.base;
        match config::parse(&rules.config, "the state", &Host::here()) {
            Ok((config, _)) if same || start.is_on_trial() => {
                let changes = config::diff(plan.policies.config(), &config).len();
                if changes > 0 && !start.is_on_trial() {
                    tracing::info!(
                        "{changes} changes made at run time are still in force; --forget drops them"
                    );
                }
                // What nobody confirmed is taken back once: then a file that holds
                // it counts.
                plan.base = rules.base;
                plan.policies =
                    Policies::new(config, startup.observe).with_gate(startup.overrides.gate);
            }
            Ok(_) => tracing::info!("the configuration has changed and is in force as it is now"),
            Err(report) => {
                tracing::warn!("changes made at run time cannot be read and are lost: {report}");
            }
        }
    }
    if let Some(load) = state.loads.last().filter(|load| load.started_for == plan.started_for) {
        let known: Vec<_> = load.interfaces.iter().flatten().cloned().collect();
        let is_there = |name: &String| {
            let found = plan.started_for.contains(name) || interface::find(name).is_ok();
            if !found {
                tracing::warn!("{name}, which was protected too, is not there");
            }
            found
        };
        plan.interfaces = known.into_iter().filter(is_there).collect();
        for name in plan.started_for.iter().filter(|name| !plan.interfaces.contains(name)) {
            tracing::warn!("{name} was detached at run time and stays so; --forget protects it");
        }
        if plan.interfaces.is_empty() {
            plan.interfaces.clone_from(&plan.started_for);
        }
    }
    plan
}

/// Adds what was counted to what is carried, by verdict and reason.
pub(super) fn carry(carried: &mut Vec<Sum>, counts: &[Count]) {
    for count in counts {
        let sum = Sum { policy: NO_POLICY, ..(*count).into() };
        match carried.iter_mut().find(|it| (it.verdict, it.reason) == (sum.verdict, sum.reason)) {
            Some(known) => {
                known.packets = known.packets.saturating_add(sum.packets);
                known.bytes = known.bytes.saturating_add(sum.bytes);
            }
            None => carried.push(sum),
        }
    }
}
