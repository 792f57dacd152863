//! How many new sources and how much of their traffic a host takes.

use limiter_common::gate::{Flow, Gate as Compiled};

use crate::{
    error::{Error, Result},
    rate::{Burst, PacketRate},
    sizing::Sizing,
};

/// New sources per second, at most, unless the operator says otherwise.
const MOST_NEW_SOURCES: u32 = 20_000;
/// A source that sends every so many seconds keeps its bucket whatever
/// arrives: a bucket survives half a table of inserts, and so long takes the
/// budget for them, burst included.
const KEPT_SECONDS: u32 = 3;
/// Packets per second of untracked sources unless the operator says otherwise:
/// for each CPU, and at most. A CPU answers some 150,000 SYN packets/s; a sixth
/// of it may go to strangers.
const UNTRACKED_PER_CPU: u32 = 25_000;
const MOST_UNTRACKED: u32 = 200_000;
/// A cell's share of that: one /24 or /48 in a flood takes half a percent.
const CELLS_IN_CAP: u32 = 200;
/// The cap's burst is this part of a second.
const CAP_BURSTS_PER_SECOND: u32 = 10;

/// The limits for sources that have no bucket yet; `None` for the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// New sources that get a bucket, per time, for the whole host.
    pub new_sources: Option<PacketRate>,
    /// Packets of all other new sources, per time, for the whole host.
    pub untracked: Option<PacketRate>,
}

impl Gate {
    /// Buckets that may be made for new sources per time.
    #[must_use]
    pub fn new_sources(&self, sizing: Sizing) -> PacketRate {
        let kept = sizing.kept_sources() / (2 * (KEPT_SECONDS + 1));
        self.new_sources.unwrap_or_else(|| per_second(kept.min(MOST_NEW_SOURCES)))
    }

    /// Packets of untracked sources per time.
    #[must_use]
    pub fn untracked(&self, sizing: Sizing) -> PacketRate {
        let all = UNTRACKED_PER_CPU.saturating_mul(sizing.cpus);
        self.untracked.unwrap_or_else(|| per_second(all.min(MOST_UNTRACKED)))
    }

    /// The gate as the packet path reads it.
    ///
    /// # Errors
    /// Never for rates in range.
    pub fn compile(&self, sizing: Sizing) -> Result<Compiled> {
        let new_sources = self.new_sources(sizing);
        let untracked = self.untracked(sizing);
        let cell = share(untracked, CELLS_IN_CAP);
        Compiled::compile(
            Flow { rate: new_sources.0, burst: new_sources.one_second().0 },
            Flow {
                rate: untracked.0,
                burst: share(untracked, CAP_BURSTS_PER_SECOND).one_second().0,
            },
            Flow { rate: cell.0, burst: cell.one_second().0 },
            sizing.cpus,
            sizing.tick_ns,
        )
        .map_err(|_| Error::failed("the limits for new sources are out of range"))
    }
}

fn per_second(packets: u32) -> PacketRate {
    packets.max(1).to_string().parse().expect("a rate in range")
}

/// A part of a rate, but at least one per second.
fn share(rate: PacketRate, parts: u32) -> PacketRate {
    let Burst(per_second_whole) = rate.one_second();
    per_second(per_second_whole / parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizing::Wish;

    #[test]
    fn the_default_never_turns_half_the_table_over_within_the_kept_time() {
        for (cpus, max_sources) in
            [(1, 1_024), (2, 16_384), (2, 262_144), (64, 65_536), (384, 65_536), (384, 16_777_216)]
        {
            let sizing = Sizing::new(cpus, 1, Wish::Sources(max_sources)).unwrap();
            let rate = Gate::default().new_sources(sizing);
            let inserts = rate.one_second().0 * (1 + KEPT_SECONDS);
            assert!(inserts <= sizing.kept_sources() / 2, "{cpus} CPUs, {max_sources}: {inserts}");
            assert!(rate.per_second() >= 100.0 && rate.per_second() <= 20_000.0);
        }
    }

    #[test]
    fn what_is_asked_for_is_compiled() {
        let sizing = Sizing::new(2, 1, Wish::Default).unwrap();
        for (new_sources, untracked) in [("1/day", "1/day"), ("10M/s", "10M/s"), ("50k/s", "1/s")] {
            let gate = Gate {
                new_sources: Some(new_sources.parse().unwrap()),
                untracked: Some(untracked.parse().unwrap()),
            };
            gate.compile(sizing).unwrap();
        }
    }
}
