//! The maps, and the core's view of them.

use core::ffi::c_void;

use aya_ebpf::{
    Global,
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_NOEXIST},
    btf_maps::{Array, HashMap, LpmTrie, LruPerCpuHashMap, PerCpuArray, lpm_trie},
    helpers::generated::bpf_map_lookup_percpu_elem,
    macros::btf_map,
    programs::XdpContext,
};
use limiter_common::{
    bucket::{Bucket, Clock, Lease, LeaseCell},
    class::{CLASSES as CLASSES_OF_SLOT, PrefixKey, Set, TABLE_BITS},
    control::Control,
    gate,
    lists::{self, Contents, ExactKey, Listing},
    policy::{GENERATIONS, Ruleset},
    source::{Key4, Key6, Seed, Total},
    stats::{self, Row},
    tables::{Buckets, Full, Sources, Tables},
    tracked::{WORDS, Words},
    verdict::{Decision, Reason},
};

use crate::{clock, samples, steps, word::MapWord};

/// Entries of the source maps unless the loader says otherwise.
const DEFAULT_SOURCES: usize = 16_384;
const EEXIST: i32 = 17;
/// Entries of each list, which is made of memory only as it grows.
const MAX_LISTED: usize = limiter_common::lists::MAX_ENTRIES as usize;
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

/// Which generation is live. User space writes it by way of a mapping: one
/// store.
#[btf_map]
static CONTROL: Array<Control, 1, { BPF_F_MMAPABLE as usize }> = Array::new();

/// Which policies a port and a VLAN satisfy, by generation.
#[btf_map]
static CLASSES: Array<Set, { (CLASSES_OF_SLOT * GENERATIONS) as usize }> = Array::new();

/// Which policies a prefix satisfies, by generation.
#[btf_map]
static CLASS_PREFIX: LpmTrie<PrefixKey, Set, MAX_LISTED> = LpmTrie::new();

/// What the lists say about single addresses and IPv6 /64s.
#[btf_map]
static LISTS_EXACT: HashMap<ExactKey, Listing, MAX_LISTED, { BPF_F_NO_PREALLOC as usize }> =
    HashMap::new();

/// What the lists say about other prefixes.
#[btf_map]
static LISTS_PREFIX: LpmTrie<[u32; 4], Listing, MAX_LISTED> = LpmTrie::new();

/// Which addresses may be on the lists.
#[btf_map]
static LISTED: Array<u64, { lists::WORDS as usize }> = Array::new();

/// Counters of one interface.
#[btf_map]
pub(crate) static STATS: PerCpuArray<Row, { stats::ROWS as usize }> = PerCpuArray::new();

/// When each CPU last reported trouble, in timer ticks.
#[btf_map]
static REPORTED: PerCpuArray<u64, 1> = PerCpuArray::new();

/// Number of possible CPUs, set at load.
#[unsafe(no_mangle)]
static CPUS: Global<u32> = Global::new(1);

/// Number of the interface, set at load.
#[unsafe(no_mangle)]
pub(crate) static INTERFACE: Global<u32> = Global::new(0);

/// Random numbers for hashes, set at load.
#[unsafe(no_mangle)]
static SEED0: Global<u64> = Global::new(0);

/// The second of them.
#[unsafe(no_mangle)]
static SEED1: Global<u64> = Global::new(0);

/// Counts one packet under its decision, and shows it if it is to be a sample.
#[inline(always)]
pub(crate) fn count(ctx: &XdpContext, decision: &Decision) {
    let number = stats::row(decision.policy, decision.verdict, decision.reason);
    if let Some(row) = STATS.get_ptr_mut(number) {
        // SAFETY: this CPU's own value, and no other program interrupts this
        // one on its CPU to write there.
        let row = unsafe { &mut *row };
        row.counter.packets += 1;
        row.counter.bytes += u64::from(decision.bytes);
        samples::take_if_due(ctx, number, row, decision);
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

/// A key of a trie whose data is aligned: the verifier refuses to write whole
/// words elsewhere.
#[repr(C, align(8))]
struct Aligned<K> {
    _padding: u32,
    key: lpm_trie::Key<K>,
}

impl<K> Aligned<K> {
    #[inline(always)]
    const fn new(bits: u32, data: K) -> Self {
        Self { _padding: 0, key: lpm_trie::Key::new(bits, data) }
    }
}

/// The maps and clocks of this load.
pub(crate) struct KernelTables;

impl Tables for KernelTables {
    type Shared = MapWord;

    #[inline(always)]
    fn control(&self) -> Option<Control> {
        let control = CONTROL.get_ptr(0)?;
        // SAFETY: a map value; user space replaces each word as a whole.
        Some(unsafe { control.read_volatile() })
    }

    #[inline(always)]
    fn ruleset(&self, slot: u32) -> Option<&Ruleset> {
        RULES.get(slot)
    }

    #[inline(always)]
    fn class(&self, slot: u32, index: u32) -> Set {
        CLASSES.get(slot * CLASSES_OF_SLOT + index).copied().unwrap_or_default()
    }

    #[inline(always)]
    fn prefix_class(&self, key: &PrefixKey) -> Option<Set> {
        let key = Aligned::new(TABLE_BITS + u128::BITS, *key);
        CLASS_PREFIX.get(&key.key).copied()
    }

    #[inline(always)]
    fn listed(&self, word: u32) -> u64 {
        LISTED.get(word).copied().unwrap_or_default()
    }

    #[inline(always)]
    fn listing(&self, key: &ExactKey) -> Option<Listing> {
        // SAFETY: the kernel never changes a value in place; it stays as it is
        // while the program runs.
        unsafe { LISTS_EXACT.get(key) }.copied()
    }

    #[inline(always)]
    fn listing_around(&self, address: &[u32; 4]) -> Option<Listing> {
        LISTS_PREFIX.get(&Aligned::new(u128::BITS, *address).key).copied()
    }

    #[inline(always)]
    fn look_up(&self, address: &[u32; 4], contents: Contents, slot: u32) -> Option<Reason> {
        Reason::of_list(steps::look_up(address, contents.0, slot))
    }

    #[inline(always)]
    fn interface(&self) -> u32 {
        INTERFACE.load()
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

    #[inline(always)]
    fn coarse_ns(&self) -> u64 {
        clock::coarse_ns()
    }

    #[inline(always)]
    fn boot_ns(&self) -> u64 {
        clock::boot_ns()
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
