//! How much memory the maps take, and how many sources fit a budget.
//!
//! The kernel's layout: `struct htab_elem` is 48 bytes and keys and values are
//! rounded up to 8 (kernel/bpf/hashtab.c); elements and buckets are allocated
//! when the map is made, so memory is fixed from the start. A per-CPU map holds
//! a value for every *possible* CPU.

use limiter_common::{
    bucket::Bucket,
    class::{CLASSES, Set},
    control::Control,
    gate::{CELLS, TOTALS},
    lists,
    policy::{GENERATIONS, Ruleset},
    sample::{Budget, RING_BYTES},
    source::{Key4, Key6},
    stats::{ROWS, Row},
    tracked::WORDS,
};

use crate::error::{Error, Kind, Result};

/// Memory for both tables of sources unless the operator says otherwise, and
/// more for each CPU: a machine of many has much.
const DEFAULT_BUDGET: u64 = 64 << 20;
const DEFAULT_BUDGET_PER_CPU: u64 = 2 << 20;
/// The default stays within these, whatever the budget.
const DEFAULT_RANGE: std::ops::RangeInclusive<u32> = 16_384..=262_144;
/// What an operator may ask for; on many CPUs the least is [`LEAST_PER_CPU`]
/// for each.
const RANGE: std::ops::RangeInclusive<u32> = 1_024..=16_777_216;
/// Free elements that a CPU may hold back from all others
/// (`LOCAL_FREE_TARGET` of kernel/bpf/bpf_lru_list.c; since Linux 6.17, commit
/// d4adf1c9ee77, no more than half of the table together). A table that they
/// exhaust evicts what it has just taken.
const HELD_BACK: u32 = 128;
const LEAST_PER_CPU: u32 = HELD_BACK + HELD_BACK / 4;

/// The ring buffer of aya-log.
const REPORTS: u64 = 128 << 10;
const ELEMENT: u64 = 48;
const POINTER: u64 = 8;
const BUCKET: u64 = 16;
const PAGE: u64 = 4096;

/// Sizes of one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Sources of each family, IPv4 and IPv6, that have a bucket at a time.
    pub max_sources: u32,
    /// Possible CPUs.
    pub cpus: u32,
    /// Length of a timer tick, nanoseconds.
    pub tick_ns: u64,
    /// Bytes of all maps, entries of the lists apart: each takes some 100.
    pub maps_bytes: u64,
}

/// What the operator asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    Default,
    /// So many sources of each family.
    Sources(u32),
    /// So many bytes for both tables of sources.
    Memory(u64),
}

/// Reads a number of sources as an operator writes it.
///
/// # Errors
/// It is no whole number.
pub fn sources(text: &str) -> Result<u32> {
    text.parse().map_err(|_| {
        Error::new(Kind::Invalid, format!("'{text}' is no number of sources"))
            .hint("--max-sources takes a whole number such as 65536")
    })
}

impl Sizing {
    /// Sizes for a machine with so many possible CPUs, so many interfaces, and
    /// what the operator asked for.
    ///
    /// # Errors
    /// He asked for a number of sources that is out of range, or for memory
    /// for such a number.
    pub fn new(cpus: u32, interfaces: u32, wish: Wish) -> Result<Self> {
        let least = LEAST_PER_CPU.saturating_mul(cpus).min(*RANGE.end());
        let range = least.max(*RANGE.start())..=*RANGE.end();
        let max_sources = match wish {
            Wish::Default => {
                let budget = DEFAULT_BUDGET + DEFAULT_BUDGET_PER_CPU * u64::from(cpus);
                let fits = power_of_two_within(budget, cpus);
                fits.clamp(*DEFAULT_RANGE.start(), *DEFAULT_RANGE.end())
            }
            Wish::Sources(sources) if range.contains(&sources) => sources,
            Wish::Sources(sources) => {
                let range = format!("--max-sources takes {} to {}", range.start(), range.end());
                let problem = format!("{sources} sources are out of range");
                return Err(Error::new(Kind::Invalid, problem).hint(range));
            }
            Wish::Memory(bytes) => {
                let fits = largest_within(bytes, cpus);
                if !range.contains(&fits) {
                    let [least, most] = [*range.start(), *range.end()]
                        .map(|sources| sources_bytes(sources, cpus).div_ceil(1 << 20));
                    let problem = format!("{bytes} bytes for sources are out of range");
                    return Err(Error::new(Kind::Invalid, problem)
                        .hint(format!("on {cpus} CPUs --memory takes {least}MiB to {most}MiB")));
                }
                fits
            }
        };
        let maps_bytes = sources_bytes(max_sources, cpus)
            + array_bytes::<Ruleset>(GENERATIONS)
            // Made of whole pages.
            + array_bytes::<Control>(1).next_multiple_of(PAGE)
            + array_bytes::<Set>(CLASSES * GENERATIONS)
            + array_bytes::<u64>(lists::WORDS)
            + u64::from(lists::MAX_ENTRIES) * BUCKET
            + array_bytes::<[u64; 2]>(WORDS)
            + array_bytes::<u64>(CELLS)
            + per_cpu_array_bytes::<Bucket>(TOTALS, cpus)
            + per_cpu_array_bytes::<Budget>(Budget::COUNT, cpus)
            + u64::from(RING_BYTES)
            + u64::from(interfaces) * (REPORTS + per_cpu_array_bytes::<Row>(ROWS, cpus));
        Ok(Self { max_sources, cpus, tick_ns: tick_ns(), maps_bytes })
    }

    /// Sources of each family that surely have room, whatever free elements
    /// CPUs hold back.
    #[must_use]
    pub const fn kept_sources(self) -> u32 {
        self.max_sources.saturating_sub(HELD_BACK.saturating_mul(self.cpus))
    }
}

/// Length of a timer tick: what the kernel states as the resolution of the
/// clock that only ticks move.
fn tick_ns() -> u64 {
    let resolution = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
    u64::try_from(resolution.tv_nsec).unwrap_or_default()
}

/// The largest number of sources in [`RANGE`] whose tables fit; below the
/// range if none does, above it if more would.
fn largest_within(bytes: u64, cpus: u32) -> u32 {
    let (mut fits, mut beyond) = (RANGE.start() - 1, RANGE.end() + 2);
    while fits + 1 < beyond {
        let middle = fits + (beyond - fits) / 2;
        if sources_bytes(middle, cpus) <= bytes { fits = middle } else { beyond = middle }
    }
    fits
}

/// The largest power of two whose tables fit, at least 1.
fn power_of_two_within(bytes: u64, cpus: u32) -> u32 {
    let powers = (0..24).map(|power| 1 << power);
    powers.take_while(|sources| sources_bytes(*sources, cpus) <= bytes).last().unwrap_or(1)
}

const fn array_bytes<T>(entries: u32) -> u64 {
    round(size_of::<T>()) * entries as u64
}

const fn per_cpu_array_bytes<T>(entries: u32, cpus: u32) -> u64 {
    (POINTER + round(size_of::<T>()) * cpus as u64) * entries as u64
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
            [(1, 262_144, 59), (2, 262_144, 68), (64, 65_536, 163), (384, 65_536, 887)]
        {
            let sizing = Sizing::new(cpus, 1, Wish::Default).unwrap();
            assert_eq!(sizing.max_sources, sources, "{cpus} CPUs");
            assert_eq!(sizing.maps_bytes >> 20, mebibytes, "{cpus} CPUs");
        }
    }

    #[test]
    fn what_is_asked_for_is_given_or_refused() {
        let sources = |wish| Sizing::new(2, 1, wish).map(|sizing| sizing.max_sources);
        assert_eq!(sources(Wish::Sources(1_000_000)).unwrap(), 1_000_000);
        for wish in [0, 1, 1_023, 16_777_217, u32::MAX].map(Wish::Sources) {
            let error = sources(wish).unwrap_err();
            assert_eq!(error.kind, Kind::Invalid, "{wish:?}");
            assert!(error.to_string().contains("takes 1024 to 16777216"), "{error}");
        }
        assert!(Sizing::new(384, 1, Wish::Sources(61_440)).is_ok());
        let error = Sizing::new(384, 1, Wish::Sources(61_439)).unwrap_err();
        assert!(error.to_string().contains("takes 61440 to"), "{error}");
        for cpus in [1, 2, 64, 384] {
            for memory in [8 << 20, 64 << 20, 1 << 30] {
                let Ok(sizing) = Sizing::new(cpus, 1, Wish::Memory(memory)) else {
                    assert!(
                        sources_bytes(RANGE.start().max(&(160 * cpus)).to_owned(), cpus) > memory
                    );
                    continue;
                };
                let fits = sizing.max_sources;
                assert!(sources_bytes(fits, cpus) <= memory);
                assert!(sources_bytes(fits + 1, cpus) > memory);
            }
        }
        for wish in [0, 1, 100_000, u64::MAX].map(Wish::Memory) {
            let error = sources(wish).unwrap_err();
            assert_eq!(error.kind, Kind::Invalid, "{wish:?}");
            assert!(error.to_string().contains("1MiB to"), "{error}");
        }
    }

    #[test]
    fn the_kernel_states_a_tick() {
        let hz = 1_000_000_000 / tick_ns();
        assert!((100..=1000).contains(&hz), "{hz} Hz");
    }
}
