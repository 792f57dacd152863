//! Two generations of rules and the word that says which is live.

use std::{
    collections::BTreeMap,
    os::fd::AsFd as _,
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use aya::maps::{
    Array, Map, MapData, MapError,
    lpm_trie::{Key, LpmTrie},
};
use limiter_common::{
    class::{Axis, CLASSES, PrefixKey, Set, TABLE_BITS},
    control::{Control, Live},
    lists::Contents,
    policy::Ruleset,
};
use rustix::{
    mm::{MapFlags, ProtFlags, mmap, munmap},
    time::{ClockId, clock_gettime},
};

use super::chain;
use crate::{
    compiled::{Compiled, address, mapped_length},
    error::{Error, Result},
    prefix::Prefix,
};

/// More than any packet takes; used only where the kernel offers no barrier.
const PACKETS_IN_FLIGHT: Duration = Duration::from_millis(100);

/// The tables of both generations and the control word.
pub(super) struct Rules {
    rules: Array<MapData, Ruleset>,
    classes: Array<MapData, Set>,
    prefixes: LpmTrie<MapData, PrefixKey, Set>,
    control: ControlPage,
    /// What the tables of each slot hold.
    written: [Written; 2],
    /// Number of the last generation.
    last: u64,
}

#[derive(Default)]
struct Written {
    generation: u64,
    /// As in [`Compiled`]; all zero while it is empty.
    classes: Vec<Set>,
    prefixes: BTreeMap<(bool, Prefix), Set>,
}

impl Rules {
    /// Opens the maps that are pinned in `directory`.
    pub(super) fn open(directory: &Path) -> Result<Self> {
        Ok(Self {
            rules: map(directory, "RULES")?,
            classes: map(directory, "CLASSES")?,
            prefixes: map(directory, "CLASS_PREFIX")?,
            control: ControlPage::open(directory)?,
            written: Default::default(),
            last: 0,
        })
    }

    /// Which rules are live now, and until when they wait to be confirmed.
    pub(super) fn live(&self) -> Live {
        let live = self.control.live();
        match live.deadline_ns {
            Some(deadline) if coarse_ns() >= deadline => {
                Live { slot: live.slot ^ 1, deadline_ns: None }
            }
            _ => live,
        }
    }

    /// Number of the generation that is live now, counted from the load.
    pub(super) fn generation(&self) -> u64 {
        self.written[self.live().slot as usize & 1].generation
    }

    /// Slot of the generation that no packet reads, once a change may be
    /// written there.
    pub(super) fn idle_slot(&self) -> u32 {
        self.live().slot ^ 1
    }

    /// Writes the generation that no packet reads, and reads it back.
    pub(super) fn write(&mut self, slot: u32, compiled: &Compiled) -> Result<()> {
        // Whatever waited for its confirmation waits no more.
        self.control.set_live(self.live());
        // A packet that started before the last change may still read the slot
        // that is written now.
        wait_for_packets_in_flight();
        let generation = self.last + 1;
        let rules = compiled.rules.stamped(generation);
        self.write_classes(slot, &compiled.classes)?;
        self.write_prefixes(slot, &compiled.prefixes)?;
        self.rules.set(slot, rules, 0).map_err(|error| failed(&error))?;
        let written = self.rules.get(&slot, 0).map_err(|error| failed(&error))?;
        if written != rules {
            return Err(Error::failed("the kernel did not keep the rules as they were written"));
        }
        self.written[slot as usize & 1].generation = generation;
        self.last = generation;
        Ok(())
    }

    /// Makes a slot live, for ever or until a deadline unless it is confirmed.
    pub(super) fn go_live(&mut self, slot: u32, deadline_ns: Option<u64>) {
        self.control.set_live(Live { slot, deadline_ns });
    }

    pub(super) fn set_contents(&mut self, contents: Contents) {
        self.control.set_lists(contents);
    }

    fn write_classes(&mut self, slot: u32, classes: &[Set]) -> Result<()> {
        if classes.is_empty() {
            // Nobody looks there.
            return Ok(());
        }
        let written = &mut self.written[slot as usize & 1].classes;
        written.resize(CLASSES as usize, 0);
        for (index, (written, set)) in (0u32..).zip(written.iter_mut().zip(classes)) {
            if written != set {
                let index = slot * CLASSES + index;
                self.classes.set(index, *set, 0).map_err(|error| failed(&error))?;
                *written = *set;
            }
        }
        Ok(())
    }

    fn write_prefixes(
        &mut self,
        slot: u32,
        prefixes: &BTreeMap<(bool, Prefix), Set>,
    ) -> Result<()> {
        let written = &mut self.written[slot as usize & 1].prefixes;
        let gone: Vec<_> =
            written.keys().filter(|key| !prefixes.contains_key(key)).copied().collect();
        for key in gone {
            self.prefixes.remove(&prefix_key(slot, key)).map_err(|error| failed(&error))?;
            written.remove(&key);
        }
        for (key, set) in prefixes {
            if written.get(key) != Some(set) {
                let at = prefix_key(slot, *key);
                self.prefixes.insert(&at, *set, 0).map_err(|error| failed(&error))?;
                written.insert(*key, *set);
            }
        }
        Ok(())
    }
}

fn prefix_key(slot: u32, (of_destination, prefix): (bool, Prefix)) -> Key<PrefixKey> {
    let axis = if of_destination { Axis::Destination } else { Axis::Source };
    let key = PrefixKey {
        table: PrefixKey::table(axis, slot),
        address: address(prefix.address()).mapped(),
    };
    Key::new(TABLE_BITS + mapped_length(prefix), key)
}

/// Nanoseconds of the clock by which the packet path ends unconfirmed rules.
pub(super) fn coarse_ns() -> u64 {
    nanoseconds(ClockId::MonotonicCoarse)
}

/// Nanoseconds of a clock that began with the boot.
pub(super) fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let part = |part: i64| u64::try_from(part).unwrap_or_default();
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// The control word, mapped: what the kernel copies in a system call is not
/// promised to arrive as one word.
struct ControlPage {
    page: NonNull<Control>,
    _map: MapData,
}

/// What the kernel maps at the least.
const PAGE: usize = 4096;

// SAFETY: the page is only accessed as atomic words, and unmapped by its one
// owner.
unsafe impl Send for ControlPage {}

impl ControlPage {
    fn open(directory: &Path) -> Result<Self> {
        let map = open(directory, "CONTROL")?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let page = unsafe { mmap(std::ptr::null_mut(), PAGE, access, flags, map.fd().as_fd(), 0) };
        let page = page.map_err(|error| {
            Error::failed(format!("cannot access the control word in the kernel: {error}"))
        })?;
        let page = NonNull::new(page.cast::<Control>());
        Ok(Self {
            page: page.ok_or_else(|| Error::failed("the control word is nowhere"))?,
            _map: map,
        })
    }

    fn words(&self) -> &[AtomicU64; 2] {
        // SAFETY: mapped as long as this lives, aligned as a page, and two
        // words of 64 bits as the layout of `Control` says.
        unsafe { self.page.cast().as_ref() }
    }

    fn live(&self) -> Live {
        Live::from_word(self.words()[0].load(Ordering::SeqCst))
    }

    fn set_live(&self, live: Live) {
        self.words()[0].store(live.word(), Ordering::SeqCst);
    }

    fn set_lists(&self, contents: Contents) {
        self.words()[1].store(contents.0, Ordering::SeqCst);
    }
}

impl Drop for ControlPage {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`, and not used any more.
        let _unmapped = unsafe { munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

fn open(directory: &Path, name: &str) -> Result<MapData> {
    MapData::from_pin(directory.join(name)).map_err(|error| failed(&error))
}

/// A map of that name that is pinned in `directory`.
pub(super) fn map<M: TryFrom<Map, Error = MapError>>(directory: &Path, name: &str) -> Result<M> {
    let data = open(directory, name)?;
    Map::from_map_data(data).and_then(M::try_from).map_err(|error| failed(&error))
}

fn failed(error: &MapError) -> Error {
    Error::failed(format!("cannot access the rules in the kernel: {}", chain(error)))
}

/// Waits until every packet that is being processed now has been processed:
/// XDP programs run under RCU, and this system call is `synchronize_rcu`
/// (kernel/sched/membarrier.c).
fn wait_for_packets_in_flight() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: takes three integers and touches no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        // Refused on kernels with nohz_full.
        std::thread::sleep(PACKETS_IN_FLIGHT);
    }
}
