//! The maps, and the core's view of them.

use core::ffi::c_void;

use aya_ebpf::{
    Global,
    bindings::BPF_NOEXIST,
    btf_maps::{Array, LruPerCpuHashMap, PerCpuArray},
    helpers::generated::bpf_map_lookup_percpu_elem,
    macros::btf_map,
};
use limiter_common::{
    bucket::{Bucket, Clock, Lease, LeaseCell},
    gate,
    policy::{Control, GENERATIONS, Ruleset},
    source::{Key4, Key6, Seed, Total},
    stats::{self, Counter},
    tables::{Buckets, Full, Sources, Tables},
    tracked::{WORDS, Words},
    verdict::Decision,
};

use crate::{clock, word::MapWord};

/// Entries of the source maps unless the loader says otherwise.
const DEFAULT_SOURCES: usize = 16_384;
const EEXIST: i32 = 17;
/// In memory of its own: on the stack it would be made by a call to memset,
/// which the verifier refuses without CAP_PERFMON.
static FULL: Bucket = Bucket::FULL;
/// Timer ticks between two reports of trouble by one CPU: 1 to 10 s.
const REPORT_INTERVAL: u64 = 1000;

/// Buckets of IPv4 sources.
#[btf_map]
static SOURCES4: LruPerCpuHashMap<Key4, Bucket, DEFAULT_SOURCES> = LruPerCpuHashMap::new();

/// Buckets of IPv6 sources.
#[btf_map]
static SOURCES6: LruPerCpuHashMap<Key6, Bucket, DEFAULT_SOURCES> = LruPerCpuHashMap::new();

/// Buckets that all sources share.
#[btf_map]
static TOTALS: PerCpuArray<Bucket, { gate::TOTALS as usize }> = PerCpuArray::new();

/// Which keys may be in the tables of sources: the words of even and of odd
/// epochs side by side.
#[btf_map]
static TRACKED: Array<[u64; 2], { WORDS as usize }> = Array::new();

/// What untracked sources of one wider prefix share.
#[btf_map]
static CELLS: Array<u64, { gate::CELLS as usize }> = Array::new();

/// The rule sets: the live generation and one to be written.
#[btf_map]
static RULES: Array<Ruleset, { GENERATIONS as usize }> = Array::new();

/// Which generation is live.
#[btf_map]
static CONTROL: Array<Control, 1> = Array::new();

/// Counters of one interface.
#[btf_map]
static STATS: PerCpuArray<Counter, { stats::ROWS as usize }> = PerCpuArray::new();

/// When each CPU last reported trouble, in timer ticks.
#[btf_map]
static REPORTED: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Number of possible CPUs, set at load.
#[unsafe(no_mangle)]
static CPUS: Global<u32> = Global::new(1);

/// Random numbers for hashes, set at load.
#[unsafe(no_mangle)]
static SEED0: Global<u64> = Global::new(0);

/// The second of them.
#[unsafe(no_mangle)]
static SEED1: Global<u64> = Global::new(0);

/// Counts one packet under its decision.
#[inline(always)]
pub(crate) fn count(decision: &Decision) {
    let row = stats::row(decision.policy, decision.verdict, decision.reason);
    if let Some(counter) = STATS.get_ptr_mut(row) {
        // SAFETY: this CPU's own value, and no other program interrupts this
        // one on its CPU to write there.
        let counter = unsafe { &mut *counter };
        counter.packets += 1;
        counter.bytes += u64::from(decision.bytes);
    }
}

/// Whether this CPU has reported no trouble for [`REPORT_INTERVAL`].
#[inline(always)]
pub(crate) fn may_report() -> bool {
    let Some(last) = REPORTED.get_ptr_mut(0) else {
        return false;
    };
    let now = clock::tick();
    // SAFETY: this CPU's own value.
    let last = unsafe { &mut *last };
    let may = now.wrapping_sub(*last) >= REPORT_INTERVAL;
    if may {
        *last = now;
    }
    may
}

/// The maps and clocks of this load.
pub(crate) struct KernelTables;

impl Tables for KernelTables {
    type Shared = MapWord;

    #[inline(always)]
    fn ruleset(&self) -> Option<&Ruleset> {
        let control = CONTROL.get_ptr(0)?;
        // SAFETY: a map value; user space replaces the word as a whole.
        let control = unsafe { control.read_volatile() };
        RULES.get(control.slot())
    }

    #[inline(always)]
    fn tracked(&self, word: u32) -> Option<Words<MapWord>> {
        let words = TRACKED.get_ptr_mut(word)?.cast::<u64>();
        // SAFETY: the first word of a map value.
        let even = unsafe { MapWord::new(words) };
        // SAFETY: a map value of two words.
        let odd = unsafe { words.add(1) };
        // SAFETY: the second word of a map value.
        let odd = unsafe { MapWord::new(odd) };
        Some(Words { even, odd })
    }

    #[inline(always)]
    fn cell(&self, cell: u32) -> Option<MapWord> {
        // SAFETY: a map value.
        CELLS.get_ptr_mut(cell).map(|word| unsafe { MapWord::new(word) })
    }

    #[inline(always)]
    fn cpus(&self) -> u32 {
        CPUS.load()
    }

    #[inline(always)]
    fn seed(&self) -> Seed {
        [SEED0.load(), SEED1.load()]
    }
}

impl Clock for KernelTables {
    #[inline(always)]
    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    #[inline(always)]
    fn tick(&self) -> u64 {
        clock::tick()
    }
}

/// This CPU's lease, inside a map value.
pub(crate) struct MapLease(*mut Lease);

impl LeaseCell for MapLease {
    #[inline(always)]
    fn get(&self) -> Lease {
        // SAFETY: inside a map value, which stays mapped while the program
        // runs; only this CPU touches it.
        unsafe { self.0.read() }
    }

    #[inline(always)]
    fn set(&self, lease: Lease) {
        // SAFETY: as in `get`.
        unsafe { self.0.write(lease) }
    }
}

/// This CPU's lease in a bucket.
///
/// # Safety
/// The bucket is a value of a map.
#[inline(always)]
unsafe fn lease_in(bucket: *mut Bucket) -> MapLease {
    // SAFETY: the address of a field of a map value.
    MapLease(unsafe { &raw mut (*bucket).lease })
}

/// The shared word of a key in the slot of a CPU.
///
/// # Safety
/// `map` is the address of a per-CPU map of buckets, and `key` of a key of its
/// type.
#[inline(always)]
unsafe fn word_in(map: *mut c_void, key: *const c_void, cpu: u32) -> Option<MapWord> {
    // SAFETY: as the caller promises.
    let bucket = unsafe { bpf_map_lookup_percpu_elem(map, key, cpu) }.cast::<Bucket>();
    if bucket.is_null() {
        return None;
    }
    // SAFETY: the address of a field of a map value.
    let word = unsafe { &raw mut (*bucket).tat };
    // SAFETY: in a map value, and aligned as the map's values are.
    Some(unsafe { MapWord::new(word) })
}

impl Buckets<Total> for KernelTables {
    type Lease = MapLease;
    type Word = MapWord;

    #[inline(always)]
    fn lease(&self, key: &Total) -> Option<MapLease> {
        // SAFETY: a value of the map.
        TOTALS.get_ptr_mut(key.0).map(|bucket| unsafe { lease_in(bucket) })
    }

    #[inline(always)]
    fn word(&self, key: &Total, cpu: u32) -> Option<MapWord> {
        // SAFETY: the map's own address and a key of its type.
        unsafe { word_in((&raw const TOTALS).cast_mut().cast(), (&raw const key.0).cast(), cpu) }
    }
}

macro_rules! sources {
    ($key:ty, $map:ident) => {
        impl Buckets<$key> for KernelTables {
            type Lease = MapLease;
            type Word = MapWord;

            #[inline(always)]
            fn lease(&self, key: &$key) -> Option<MapLease> {
                // SAFETY: a value of the map.
                $map.get_ptr_mut(key).map(|bucket| unsafe { lease_in(bucket) })
            }

            #[inline(always)]
            fn word(&self, key: &$key, cpu: u32) -> Option<MapWord> {
                let key = core::ptr::from_ref(key).cast();
                // SAFETY: the map's own address and a key of its type.
                unsafe { word_in((&raw const $map).cast_mut().cast(), key, cpu) }
            }
        }

        impl Sources<$key> for KernelTables {
            #[inline(always)]
            fn insert(&self, key: &$key) -> Result<(), Full> {
                match $map.insert(key, &FULL, u64::from(BPF_NOEXIST)) {
                    Ok(()) => Ok(()),
                    Err(error) if error == -EEXIST => Ok(()),
                    Err(_) => Err(Full),
                }
            }
        }
    };
}

sources!(Key4, SOURCES4);
sources!(Key6, SOURCES6);
