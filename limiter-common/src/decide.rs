//! The line that every packet takes: parse, classify, charge, verdict.

use crate::{
    bucket::{Clock, LeaseCell, Word},
    frame::Frame,
    levels::{Charged, Steps},
    parse::{Packet, Parsed, parse},
    policy::Ruleset,
    source::{Address, Key4, Key6, Seed, Total},
    stats::NO_POLICY,
    tracked::Words,
    verdict::{Decision, Reason},
};

/// A table of buckets, seen from the CPU that runs.
pub trait Buckets<K> {
    /// Where this CPU keeps its lease of a key.
    type Lease: LeaseCell;

    /// A shared word in the table.
    type Word: Word;

    /// This CPU's lease of `key`, if the key has a bucket.
    fn lease(&self, key: &K) -> Option<Self::Lease>;

    /// The shared word of `key` in the slot of CPU `cpu`.
    fn word(&self, key: &K, cpu: u32) -> Option<Self::Word>;
}

/// A table of buckets that takes new keys.
pub trait Sources<K>: Buckets<K> {
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
pub trait Tables:
    Clock + Sources<Key4> + Sources<Key6> + Buckets<Total> + Steps<Key4> + Steps<Key6>
{
    /// A shared word outside the tables of buckets.
    type Shared: Word;

    /// The live rule set.
    fn ruleset(&self) -> Option<&Ruleset>;
    /// Entry `word` below [`crate::tracked::WORDS`] of the bitmap of tracked
    /// keys.
    fn tracked(&self, word: u32) -> Option<Words<Self::Shared>>;
    /// Word `cell` below [`crate::gate::CELLS`] of the untracked sources' cells.
    fn cell(&self, cell: u32) -> Option<Self::Shared>;
    /// Possible CPUs.
    fn cpus(&self) -> u32;
    /// Random numbers of this load, for hashes.
    fn seed(&self) -> Seed;
}

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
