//! Charging a packet at the levels of its policy.
//!
//! What this CPU knows by itself (a lease, a denial that holds) decides most
//! packets, in line. The steps beyond, which look at words that CPUs share, are
//! functions of their own in the kernel: there each is verified once, and not
//! once for every way that leads to it.

use crate::{
    bucket::{self, Charge, Refusal, deny, is_denied, is_half_drained, start_in_debt, take},
    gate::{self, CELL, CELL_PREFIX, FLOODED, Gate, NEW_SOURCES, UNTRACKED},
    level::{Level, limit_number},
    limit::{Limit, tick_time},
    policy::{Policy, Ruleset},
    source::{Key, Total, home},
    tables::{Sources, Steps, Tables},
    tracked::{Place, Seen},
    verdict::{Reason, Verdict},
};

/// One packet and its policy.
pub(crate) struct Charged<'a> {
    pub(crate) rules: &'a Ruleset,
    pub(crate) policy: &'a Policy,
    /// Bytes present.
    pub(crate) length: u32,
}

impl Charged<'_> {
    /// Charges each level of the policy, narrow first.
    #[inline(always)]
    pub(crate) fn at_every_level<K: Key>(
        &self,
        address: K::Address,
        tables: &(impl Tables + Sources<K> + Steps<K>),
    ) -> (Reason, Verdict) {
        let mut unplaced = Charge::Admitted;
        // The level that nearly every policy has stands for itself: so it is
        // compiled to what it needs.
        if let Some(limit) = self.policy.limit(Level::SourcePackets) {
            let level = Level::SourcePackets;
            if let Err(refused) = self.at_level::<K>(address, level, limit, &mut unplaced, tables) {
                return refused;
            }
        }
        if self.policy.has_more_levels()
            && let Err(refused) = self.at_more_levels::<K>(address, &mut unplaced, tables)
        {
            return refused;
        }
        let reason = match unplaced {
            Charge::NoBudget => Reason::Untracked,
            Charge::NoRoom => Reason::MapFull,
            _ => Reason::WithinLimit,
        };
        (reason, Verdict::Pass)
    }

    #[inline(always)]
    fn at_more_levels<K: Key>(
        &self,
        address: K::Address,
        unplaced: &mut Charge,
        tables: &(impl Tables + Sources<K> + Steps<K>),
    ) -> Result<(), (Reason, Verdict)> {
        for level in (1..Level::OF_ONE_SOURCE).map(Level::numbered) {
            if let Some(limit) = self.policy.limit(level) {
                self.at_level::<K>(address, level, limit, unplaced, tables)?;
            }
        }
        for level in [Level::TotalPackets, Level::TotalBytes] {
            let Some(limit) = self.policy.limit(level) else {
                continue;
            };
            let key = Total::of(limit_number(self.policy.number(), level));
            match tables.charge_total(key, limit, level.cost(self.length)) {
                Charge::Admitted => {}
                Charge::Contended => return Err(refused(Reason::Contended)),
                _ => return Err(refused(level.reason())),
            }
        }
        Ok(())
    }

    /// Charges a level whose buckets belong to one source or prefix. The first
    /// of a packet that has no bucket is charged to the cap instead, and why
    /// it has none is noted in `unplaced`.
    #[inline(always)]
    fn at_level<K: Key>(
        &self,
        address: K::Address,
        level: Level,
        limit: &Limit,
        unplaced: &mut Charge,
        tables: &(impl Tables + Sources<K> + Steps<K>),
    ) -> Result<(), (Reason, Verdict)> {
        let gate = self.rules.gate();
        let prefix = if level.is_wide() { self.policy.prefix() } else { self.rules.sources() };
        let key = K::new(address, prefix, limit_number(self.policy.number(), level));
        let place = Place::of(key.spread(tables.seed()));
        let Some(words) = tables.tracked(place.word()) else {
            return Err(over_cap(Charge::NoRoom));
        };
        let seen = words.seen(place, gate.epoch(tables.tick()));
        // Most packets of a flood of random sources end here.
        if seen == Seen::Never
            && *unplaced == Charge::Admitted
            && is_spent(FLOODED, &gate.untracked, tables)
        {
            return Err(over_cap(Charge::NoBudget));
        }
        let why = match at_key(&key, seen, limit, gate, level.cost(self.length), tables) {
            Charge::Admitted => return Ok(()),
            Charge::Exhausted => return Err(refused(level.reason())),
            Charge::Contended => return Err(refused(Reason::Contended)),
            why @ (Charge::NoBudget | Charge::NoRoom) => why,
        };
        if *unplaced != Charge::Admitted {
            return Ok(());
        }
        // Before any wider level: who is not known must not spend what many
        // share.
        if is_spent(UNTRACKED, &gate.untracked, tables) {
            if is_spent(NEW_SOURCES, &gate.new_sources, tables)
                && let Some(lease) = tables.lease(&FLOODED)
            {
                deny(&gate.untracked, &lease, tables);
            }
            return Err(over_cap(why));
        }
        match tables.charge_untracked(&K::new(address, &CELL_PREFIX, CELL), gate) {
            Charge::Admitted => {
                *unplaced = why;
                Ok(())
            }
            Charge::Contended => Err(refused(Reason::Contended)),
            _ => Err(over_cap(why)),
        }
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

/// Whether this CPU knows that no token is left of what all sources share.
#[inline(always)]
fn is_spent<T: Tables>(key: Total, limit: &Limit, tables: &T) -> bool {
    tables.lease(&key).is_some_and(|lease| is_denied(limit, &lease, tables))
}

/// Charges the bucket of a key that was seen then.
#[inline(always)]
fn at_key<K: Key, T: Tables + Sources<K> + Steps<K>>(
    key: &K,
    seen: Seen,
    limit: &Limit,
    gate: &Gate,
    cost: u32,
    tables: &T,
) -> Charge {
    if seen == Seen::Now
        && let Some(lease) = tables.lease(key)
        && let Some(charge) = bucket::charge_lease(limit, cost, &lease, tables)
    {
        return charge;
    }
    tables.charge_key(key, limit, gate, cost)
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
    bucket::charge(limit, cost, &lease, word, tables)
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
    bucket::charge(limit, cost, &lease, || tables.word(&key, key.home(tables.cpus())), tables)
}

/// Charges the cell of a source without a bucket, and the cap of all of them.
#[inline(always)]
pub fn charge_untracked<K: Key, T: Tables>(cell: &K, gate: &Gate, tables: &T) -> Charge {
    let Some(cell) = tables.cell(gate::cell(cell.spread(tables.seed()))) else {
        return Charge::NoRoom;
    };
    match take(&gate.cell, 1, &cell, || tick_time(tables.tick())) {
        Ok(_one) => charge_total(UNTRACKED, &gate.untracked, 1, tables),
        Err(Refusal::Empty { .. }) => Charge::Exhausted,
        Err(Refusal::Contended) => Charge::Contended,
    }
}
