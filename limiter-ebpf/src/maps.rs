//! The maps, and the core's view of them.

use aya_ebpf::{
    Global,
    bindings::BPF_NOEXIST,
    btf_maps::{Array, LruPerCpuHashMap, PerCpuArray},
    helpers::{bpf_jiffies64, bpf_ktime_get_ns, generated::bpf_map_lookup_percpu_elem},
    macros::btf_map,
};
use limiter_common::{
    bucket::{Bucket, Clock, Lease, LeaseCell},
    decide::{Full, Sources, Tables},
    policy::{Control, GENERATIONS, Ruleset},
    source::{Key4, Key6},
    stats::{self, Counter},
    verdict::Decision,
};

use crate::word::MapWord;

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

/// Random number for hashes, set at load.
#[unsafe(no_mangle)]
static SEED: Global<u32> = Global::new(0);

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
    // SAFETY: takes nothing.
    let now = unsafe { bpf_jiffies64() };
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
    #[inline(always)]
    fn ruleset(&self) -> Option<&Ruleset> {
        let control = CONTROL.get_ptr(0)?;
        // SAFETY: a map value; user space replaces the word as a whole.
        let control = unsafe { control.read_volatile() };
        RULES.get(control.slot())
    }

    #[inline(always)]
    fn cpus(&self) -> u32 {
        CPUS.load()
    }

    #[inline(always)]
    fn seed(&self) -> u32 {
        SEED.load()
    }
}

impl Clock for KernelTables {
    #[inline(always)]
    fn now_ns(&self) -> u64 {
        // SAFETY: takes nothing.
        unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn tick(&self) -> u32 {
        // SAFETY: takes nothing. The low half is what the core wants.
        (unsafe { bpf_jiffies64() } & 0xffff_ffff) as u32
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

macro_rules! sources {
    ($key:ty, $map:ident) => {
        impl Sources<$key> for KernelTables {
            type Word = MapWord;
            type Lease = MapLease;

            #[inline(always)]
            fn lease(&self, key: &$key) -> Option<MapLease> {
                let bucket = $map.get_ptr_mut(key)?;
                // SAFETY: the address of a field of a map value.
                Some(MapLease(unsafe { &raw mut (*bucket).lease }))
            }

            #[inline(always)]
            fn word(&self, key: &$key, cpu: u32) -> Option<MapWord> {
                // SAFETY: the map's own address and a key of its type.
                let bucket = unsafe {
                    bpf_map_lookup_percpu_elem(
                        (&raw const $map).cast_mut().cast(),
                        core::ptr::from_ref(key).cast(),
                        cpu,
                    )
                }
                .cast::<Bucket>();
                if bucket.is_null() {
                    return None;
                }
                // SAFETY: not null, so a value of this map.
                Some(unsafe { MapWord::new(&raw mut (*bucket).tat) })
            }

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
