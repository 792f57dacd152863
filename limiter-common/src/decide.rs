//! The line that every packet takes: parse, classify, charge, verdict.

use crate::{
    bucket::{Charge, Clock, LeaseCell, Word, charge},
    frame::Frame,
    parse::{Packet, Parsed, parse},
    policy::{Policy, Ruleset},
    source::{Address, Key, Key4, Key6},
    stats::NO_POLICY,
    verdict::{Decision, Reason},
};

/// A table of buckets, seen from the CPU that runs.
pub trait Sources<K> {
    /// A shared word in the table.
    type Word: Word;

    /// Where this CPU keeps its lease of a key.
    type Lease: LeaseCell;

    /// This CPU's lease of `key`, if the key has a bucket.
    fn lease(&self, key: &K) -> Option<Self::Lease>;

    /// The shared word of `key` in the slot of CPU `cpu`.
    fn word(&self, key: &K, cpu: u32) -> Option<Self::Word>;

    /// Gives `key` a full bucket, unless another CPU just did.
    ///
    /// # Errors
    /// The table took no new key.
    fn insert(&self, key: &K) -> Result<(), Full>;
}

/// The table of sources took no new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Everything that outlives a packet.
pub trait Tables: Clock + Sources<Key4> + Sources<Key6> {
    /// The live rule set.
    fn ruleset(&self) -> Option<&Ruleset>;
    /// Possible CPUs.
    fn cpus(&self) -> u32;
    /// Random number of this load, for hashes.
    fn seed(&self) -> u32;
}

/// Decides about one frame, and charges its source.
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
    let reason = if policy.is_off() {
        Reason::Unlimited
    } else {
        match packet.source {
            Address::V4(address) => {
                charge_source(&rules.sources().key4(address, index), policy, tables)
            }
            Address::V6(address) => {
                charge_source(&rules.sources().key6(address, index), policy, tables)
            }
        }
    };
    Decision::new(reason, index, packet.length, enforce)
}

#[inline(always)]
fn charge_source<K: Key, T: Tables + Sources<K>>(key: &K, policy: &Policy, tables: &T) -> Reason {
    let lease = match tables.lease(key) {
        Some(lease) => lease,
        None => {
            if tables.insert(key).is_err() {
                return Reason::MapFull;
            }
            match tables.lease(key) {
                Some(lease) => lease,
                None => return Reason::MapFull,
            }
        }
    };
    let home = || tables.word(key, key.home(tables.seed(), tables.cpus()));
    match charge(policy, &lease, home, tables) {
        Charge::Admitted => Reason::WithinLimit,
        Charge::Exhausted => Reason::SourceRate,
        Charge::Contended => Reason::Contended,
        Charge::Vanished => Reason::MapFull,
    }
}
