//! The line that every packet takes: parse, classify, charge, verdict.

use crate::{
    charge::Charged,
    frame::Frame,
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
    let Some(rules) = tables.ruleset() else {
        return Decision::new(Reason::Internal, NO_POLICY, frame.whole(), true);
    };
    let reason = match parse(frame) {
        Ok(Parsed::Ip(packet)) => return limit(&packet, rules, tables),
        Ok(Parsed::NotIp) => Reason::NotIp,
        Ok(Parsed::Neighbour) => Reason::Neighbour,
        Err(_) => Reason::Malformed,
    };
    Decision::new(reason, NO_POLICY, frame.whole(), !rules.observes())
}

#[inline(always)]
fn limit<T: Tables>(packet: &Packet, rules: &Ruleset, tables: &T) -> Decision {
    let (index, policy) = rules.classify(packet);
    let enforce = !(rules.observes() || policy.observes());
    if policy.is_off() {
        return Decision::new(Reason::Unlimited, index, packet.length, enforce);
    }
    let charged = Charged { rules, policy, index, length: packet.length };
    let (reason, verdict) = match packet.source {
        Address::V4(address) => charged.at_every_level::<Key4>(address, tables),
        Address::V6(address) => charged.at_every_level::<Key6>(address, tables),
    };
    Decision::with(reason, verdict, index, packet.length, enforce)
}
