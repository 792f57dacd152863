//! The line that every packet takes: parse, lists, class, charge, verdict.

use crate::{
    charge::Charged,
    class::classify,
    control::Control,
    frame::Frame,
    lists::Contents,
    parse::{Packet, Parsed, parse},
    policy::Ruleset,
    source::{Address, Key4, Key6},
    stats::NO_POLICY,
    tables::Tables,
    verdict::{Decision, Reason},
};

/// Decides about one frame, and charges what it is charged to.
#[inline(always)]
pub fn decide<F: Frame, T: Tables>(frame: &F, tables: &T) -> Decision {
    let internal = || Decision::new(Reason::Internal, NO_POLICY, frame.whole(), true);
    let Some(control) = tables.control() else {
        return internal();
    };
    let slot = control.live().slot_now(tables);
    let Some(rules) = tables.ruleset(slot) else {
        return internal();
    };
    let reason = match parse(frame) {
        Ok(Parsed::Ip(packet)) => return limit(&packet, frame, control, slot, rules, tables),
        Ok(Parsed::NotIp) => Reason::NotIp,
        Ok(Parsed::Neighbour) => Reason::Neighbour,
        Err(_) => Reason::Malformed,
    };
    Decision::new(reason, NO_POLICY, frame.whole(), !rules.observes())
}

#[inline(always)]
fn limit<F: Frame, T: Tables>(
    packet: &Packet,
    frame: &F,
    control: Control,
    slot: u32,
    rules: &Ruleset,
    tables: &T,
) -> Decision {
    if control.lists != 0
        && let Some(reason) = tables.look_up(&packet.source.mapped(), Contents(control.lists), slot)
    {
        return Decision::new(reason, NO_POLICY, packet.length, !rules.observes());
    }
    let Some(policy) = rules.policy(classify(packet, frame, rules, slot, tables)) else {
        return Decision::new(Reason::Unlimited, NO_POLICY, packet.length, true);
    };
    let (row, enforce) = (policy.number().row(), !(rules.observes() || policy.observes()));
    if policy.is_off() {
        return Decision::new(Reason::Unlimited, row, packet.length, enforce);
    }
    let charged = Charged { rules, policy, length: packet.length };
    let (reason, verdict) = match packet.source {
        Address::V4(address) => charged.at_every_level::<Key4>(address, tables),
        Address::V6(address) => charged.at_every_level::<Key6>(address, tables),
    };
    Decision::with(reason, verdict, row, packet.length, enforce)
}
