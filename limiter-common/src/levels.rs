//! Charging a packet at the levels of its policy.
//!
//! The three steps below are functions of their own in the kernel, where each
//! is verified once, and not once for every way that leads to it.

use crate::{
    bucket::{Charge, charge, is_denied, is_half_drained, start_in_debt, take},
    decide::{Sources, Tables},
    gate::{self, CELL, CELL_PREFIX, Gate, NEW_SOURCES, UNTRACKED},
    limit::{Limit, tick_time},
    policy::{Level, Policy, Ruleset, limit_number},
    source::{Key, Total, home},
    tracked::{Place, Seen},
    verdict::{Reason, Verdict},
};

/// The steps, for keys of one family.
pub trait Steps<K> {
    /// [`charge_key`]
    fn charge_key(&self, key: &K, limit: &Limit, gate: &Gate, cost: u32) -> Charge;
    /// [`charge_untracked`]
    fn charge_untracked(&self, cell: &K, gate: &Gate) -> Charge;
    /// [`charge_total`]
    fn charge_total(&self, key: Total, limit: &Limit, cost: u32) -> Charge;
}

/// One packet and its policy.
pub(crate) struct Charged<'a> {
    pub(crate) rules: &'a Ruleset,
    pub(crate) policy: &'a Policy,
    /// Index of the policy.
    pub(crate) index: u32,
    /// Bytes present.
    pub(crate) length: u32,
}

impl Charged<'_> {
    /// Charges each level of the policy, narrow first.
    #[inline(always)]
    pub(crate) fn at_every_level<K: Key>(
        &self,
        address: K::Address,
        steps: &impl Steps<K>,
    ) -> (Reason, Verdict) {
        let gate = self.rules.gate();
        // Why a level has no bucket, if one has none.
        let mut unplaced = Charge::Admitted;
        for level in (0..Level::OF_ONE_SOURCE).map(Level::numbered) {
            let Some(limit) = self.policy.limit(level) else {
                continue;
            };
            let prefix = if level.is_wide() { self.policy.prefix() } else { self.rules.sources() };
            let key = K::new(address, prefix, limit_number(self.index, level));
            match steps.charge_key(&key, limit, gate, level.cost(self.length)) {
                Charge::Admitted => {}
                Charge::Exhausted => return refused(level.reason()),
                Charge::Contended => return refused(Reason::Contended),
                why @ (Charge::NoBudget | Charge::NoRoom) => {
                    // Before any wider level: who is not known must not spend
                    // what many share.
                    if unplaced == Charge::Admitted {
                        let cell = K::new(address, &CELL_PREFIX, CELL);
                        match steps.charge_untracked(&cell, gate) {
                            Charge::Admitted => unplaced = why,
                            Charge::Contended => return refused(Reason::Contended),
                            _ => return over_cap(why),
                        }
                    }
                }
            }
        }
        for level in [Level::TotalPackets, Level::TotalBytes] {
            let Some(limit) = self.policy.limit(level) else {
                continue;
            };
            let key = Total(limit_number(self.index, level));
            match steps.charge_total(key, limit, level.cost(self.length)) {
                Charge::Admitted => {}
                Charge::Contended => return refused(Reason::Contended),
                _ => return refused(level.reason()),
            }
        }
        let reason = match unplaced {
            Charge::NoBudget => Reason::Untracked,
            Charge::NoRoom => Reason::MapFull,
            _ => Reason::WithinLimit,
        };
        (reason, Verdict::Pass)
    }
}

#[inline(always)]
const fn refused(reason: Reason) -> (Reason, Verdict) {
    (reason, Verdict::Drop)
}

/// A full table must neither let everything in nor shut everybody out: what
/// passes is what fits the cap of untracked sources.
#[inline(always)]
const fn over_cap(why: Charge) -> (Reason, Verdict) {
    match why {
        Charge::NoRoom => refused(Reason::MapFull),
        _ => refused(Reason::NewSourceRate),
    }
}

/// Charges the bucket of a key, which gets one first if it has none and the
/// budget for new sources lasts.
#[inline(always)]
pub fn charge_key<K: Key, T: Tables + Sources<K>>(
    key: &K,
    limit: &Limit,
    gate: &Gate,
    cost: u32,
    tables: &T,
) -> Charge {
    let spread = key.spread(tables.seed());
    let word = || tables.word(key, home(spread, tables.cpus()));
    let place = Place::of(spread);
    let epoch = gate.epoch(tables.tick());
    let Some(words) = tables.tracked(place.word()) else {
        return Charge::NoRoom;
    };
    let seen = words.seen(place, epoch);
    let known = if seen == Seen::Never { None } else { tables.lease(key) };
    let lease = match known {
        Some(lease) => {
            if seen == Seen::Before {
                words.see(place, epoch);
            }
            lease
        }
        None => {
            if charge_total(NEW_SOURCES, &gate.new_sources, 1, tables) != Charge::Admitted {
                return Charge::NoBudget;
            }
            // It may be there and only forgotten. To insert it once more could
            // evict another (kernel/bpf/hashtab.c takes a free element first).
            if tables.lease(key).is_none() {
                if tables.insert(key).is_err() {
                    return Charge::NoRoom;
                }
                if is_flooded(gate, tables)
                    && let Some(word) = word()
                {
                    start_in_debt(limit, &word, tables);
                }
            }
            words.see(place, epoch);
            match tables.lease(key) {
                Some(lease) => lease,
                None => return Charge::NoRoom,
            }
        }
    };
    charge(limit, cost, &lease, word, tables)
}

/// Whether new sources have used up half of their budget.
#[inline(always)]
fn is_flooded<T: Tables>(gate: &Gate, tables: &T) -> bool {
    let word = tables.word(&NEW_SOURCES, NEW_SOURCES.home(tables.cpus()));
    word.is_some_and(|word| is_half_drained(&gate.new_sources, &word, tables))
}

/// Charges what all sources share.
#[inline(always)]
pub fn charge_total<T: Tables>(key: Total, limit: &Limit, cost: u32, tables: &T) -> Charge {
    let Some(lease) = tables.lease(&key) else {
        return Charge::NoRoom;
    };
    charge(limit, cost, &lease, || tables.word(&key, key.home(tables.cpus())), tables)
}

/// Charges the cell of a source without a bucket, and the cap of all of them.
#[inline(always)]
pub fn charge_untracked<K: Key, T: Tables>(cell: &K, gate: &Gate, tables: &T) -> Charge {
    let Some(lease) = tables.lease(&UNTRACKED) else {
        return Charge::NoRoom;
    };
    // Most packets of a flood end here, without a look at their cell.
    if is_denied(&gate.untracked, &lease, tables) {
        return Charge::Exhausted;
    }
    let Some(cell) = tables.cell(gate::cell(cell.spread(tables.seed()))) else {
        return Charge::NoRoom;
    };
    match take(&gate.cell, 1, &cell, || tick_time(tables.tick())) {
        Ok(_one) => charge_total(UNTRACKED, &gate.untracked, 1, tables),
        Err(refused) => refused,
    }
}
