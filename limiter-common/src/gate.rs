//! What keeps a flood of new sources from exhausting the tables.
//!
//! A source gets a bucket of its own only while the whole host's budget for
//! new ones lasts. Beyond it, its packets are charged to a fixed cell of its
//! /24 or /48, and to one cap for all such traffic.

use crate::{
    level::LIMITS,
    limit::{Limit, RangeError, Rate},
    source::{SourcePrefix, Total},
    tracked::epoch_shift,
};

/// Cells that sources without a bucket share; a power of two.
pub const CELLS: u32 = 1 << 16;

/// Where the budget for new sources is kept.
pub const NEW_SOURCES: Total = Total(LIMITS);
/// Where the cap of untracked sources is kept.
pub const UNTRACKED: Total = Total(LIMITS + 1);
/// Where a CPU remembers that both are spent in this tick: one look for most
/// packets of a flood.
pub const FLOODED: Total = Total(LIMITS + 2);
/// Entries of the map `TOTALS`.
pub const TOTALS: u32 = LIMITS + 3;
/// Stands for the limit in the hash of a cell: no limit has this number.
pub const CELL: u32 = u32::MAX;
/// What shares a cell.
pub const CELL_PREFIX: SourcePrefix = SourcePrefix::WIDER;

/// The gate as the packet path reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Gate {
    /// Buckets that may be made, for the whole host.
    pub new_sources: Limit,
    /// Packets of all sources without a bucket, for the whole host.
    pub untracked: Limit,
    /// Packets of each cell; its time is counted in ticks.
    pub cell: Limit,
    /// Binary logarithm of the ticks in an epoch.
    epoch_shift: u32,
    _padding: u32,
}

const _: () = assert!(size_of::<Gate>() == 3 * size_of::<Limit>() + 8);
const _: () = assert!(CELLS.is_power_of_two());

/// A rate of packets and a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Packets per time.
    pub rate: Rate,
    /// Packets at once.
    pub burst: u32,
}

impl Gate {
    /// Compiles the gate for a machine with `cpus` CPUs and timer ticks of
    /// `tick_ns` nanoseconds.
    ///
    /// # Errors
    /// A burst of zero.
    pub const fn compile(
        new_sources: Flow,
        untracked: Flow,
        cell: Flow,
        cpus: u32,
        tick_ns: u64,
    ) -> Result<Self, RangeError> {
        // The ? operator is not for const functions.
        let new_sources = match Limit::compile(new_sources.rate, new_sources.burst, cpus, false) {
            Ok(limit) => limit,
            Err(error) => return Err(error),
        };
        let untracked = match Limit::compile(untracked.rate, untracked.burst, cpus, false) {
            Ok(limit) => limit,
            Err(error) => return Err(error),
        };
        let cell = match Limit::compile_ticks(cell.rate, cell.burst, tick_ns) {
            Ok(limit) => limit,
            Err(error) => return Err(error),
        };
        let epoch_shift = epoch_shift(tick_ns);
        Ok(Self { new_sources, untracked, cell, epoch_shift, _padding: 0 })
    }

    /// The same gate as part of rule set number `stamp`.
    #[must_use]
    pub const fn stamped(mut self, stamp: u32) -> Self {
        self.new_sources = self.new_sources.stamped(stamp);
        self.untracked = self.untracked.stamped(stamp);
        self
    }

    /// Number of the epoch at a timer tick.
    #[inline(always)]
    #[must_use]
    pub const fn epoch(&self, tick: u64) -> u64 {
        tick >> (self.epoch_shift & 63)
    }
}

/// The cell of a prefix by its [`crate::source::Key::spread`].
#[inline(always)]
#[must_use]
pub const fn cell(spread: u64) -> u32 {
    (spread & 0xffff_ffff) as u32 & (CELLS - 1)
}
