//! How much memory the maps take, and how many sources fit a budget.
//!
//! The kernel's layout: `struct htab_elem` is 48 bytes and keys and values are
//! rounded up to 8 (kernel/bpf/hashtab.c); elements and buckets are allocated
//! when the map is made, so memory is fixed from the start. A per-CPU map holds
//! a value for every *possible* CPU.

use limiter_common::{
    bucket::Bucket,
    policy::{Control, GENERATIONS, Ruleset},
    source::{Key4, Key6},
    stats::{Counter, ROWS},
};

use crate::error::{Error, Kind, Result};

/// Memory for both tables of sources unless the operator says otherwise.
const DEFAULT_BUDGET: u64 = 64 << 20;
/// The default stays within these, whatever the budget.
const DEFAULT_RANGE: std::ops::RangeInclusive<u32> = 16_384..=262_144;
/// What an operator may ask for. A smaller LRU evicts far below its size:
/// free elements are handed out to CPUs 128 at a time.
pub const RANGE: std::ops::RangeInclusive<u32> = 1_024..=16_777_216;

/// The ring buffer of aya-log.
const REPORTS: u64 = 128 << 10;
const ELEMENT: u64 = 48;
const POINTER: u64 = 8;
const BUCKET: u64 = 16;

/// Sizes of one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Sources of each family, IPv4 and IPv6, that have a bucket at a time.
    pub max_sources: u32,
    /// Possible CPUs.
    pub cpus: u32,
    /// Bytes of all maps.
    pub maps_bytes: u64,
}

impl Sizing {
    /// Sizes for a machine with so many possible CPUs, so many interfaces, and
    /// the number of sources that the operator asked for, if he did.
    ///
    /// # Errors
    /// That number is outside [`RANGE`].
    pub fn new(cpus: u32, interfaces: u32, max_sources: Option<u32>) -> Result<Self> {
        let max_sources = match max_sources {
            None => default_sources(cpus),
            Some(sources) if RANGE.contains(&sources) => sources,
            Some(sources) => {
                return Err(Error::new(
                    Kind::Invalid,
                    format!("{sources} sources are out of range"),
                )
                .hint(format!(
                    "--max-sources takes {} to {}",
                    RANGE.start(),
                    RANGE.end()
                )));
            }
        };
        let maps_bytes = sources_bytes(max_sources, cpus)
            + round(size_of::<Ruleset>()) * u64::from(GENERATIONS)
            + round(size_of::<Control>())
            + u64::from(interfaces)
                * (REPORTS
                    + u64::from(ROWS) * (POINTER + round(size_of::<Counter>()) * u64::from(cpus)));
        Ok(Self { max_sources, cpus, maps_bytes })
    }
}

/// The largest power of two whose tables fit the budget, within the range.
fn default_sources(cpus: u32) -> u32 {
    let fits = |sources: &u32| sources_bytes(*sources, cpus) <= DEFAULT_BUDGET;
    std::iter::successors(Some(*DEFAULT_RANGE.end()), |sources| Some(sources / 2))
        .take_while(|sources| DEFAULT_RANGE.contains(sources))
        .find(fits)
        .unwrap_or(*DEFAULT_RANGE.start())
}

fn sources_bytes(sources: u32, cpus: u32) -> u64 {
    [size_of::<Key4>(), size_of::<Key6>()]
        .into_iter()
        .map(|key| table_bytes(key, sources, cpus))
        .sum()
}

fn table_bytes(key: usize, sources: u32, cpus: u32) -> u64 {
    // An LRU is made a little larger than asked for: to a multiple of CPUs.
    let elements = u64::from(sources);
    let element = ELEMENT + round(key) + POINTER + round(size_of::<Bucket>()) * u64::from(cpus);
    elements * element + u64::from(sources).next_power_of_two() * BUCKET
}

const fn round(size: usize) -> u64 {
    size.next_multiple_of(8) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_fits_a_small_server_and_a_large_one() {
        for (cpus, sources, mebibytes) in
            [(1, 262_144, 52), (2, 262_144, 60), (64, 16_384, 43), (384, 16_384, 243)]
        {
            let sizing = Sizing::new(cpus, 1, None).unwrap();
            assert_eq!(sizing.max_sources, sources, "{cpus} CPUs");
            assert_eq!(sizing.maps_bytes >> 20, mebibytes, "{cpus} CPUs");
        }
    }

    #[test]
    fn what_is_asked_for_is_given_or_refused() {
        assert_eq!(Sizing::new(2, 1, Some(1_000_000)).unwrap().max_sources, 1_000_000);
        for sources in [0, 1, 1_023, 16_777_217, u32::MAX] {
            assert_eq!(Sizing::new(2, 1, Some(sources)).unwrap_err().kind, Kind::Invalid);
        }
    }
}
