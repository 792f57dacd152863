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
    /// As in [`Compiled`]; unknown before they are written for the first time.
    classes: Option<Vec<Set>>,
    /// By length and key.
    prefixes: BTreeMap<(u32, PrefixKey), Set>,
}

impl Rules {
    /// Opens the maps that are pinned in `directory`, with the rules that are in
    /// them; generations are counted on from `last`.
    pub(super) fn open(directory: &Path, last: u64) -> Result<Self> {
        let rules: Array<_, Ruleset> = map(directory, "RULES")?;
        let prefixes: LpmTrie<_, PrefixKey, Set> = map(directory, "CLASS_PREFIX")?;
        let mut written: [Written; 2] = Default::default();
        for (slot, written) in (0u32..).zip(&mut written) {
            written.generation = rules.get(&slot, 0).map_err(|error| failed(&error))?.generation();
        }
        for entry in &prefixes {
            let (key, set) = entry.map_err(|error| failed(&error))?;
            let (bits, key) = (key.prefix_len(), key.data());
            let [_, slot] = key.table;
            written[slot as usize & 1].prefixes.insert((bits, key), set);
        }
        Ok(Self {
            classes: map(directory, "CLASSES")?,
            control: ControlPage::open(directory)?,
            last: written.iter().map(|it| it.generation).fold(last, u64::max),
            rules,
            prefixes,
            written,
        })
    }

    /// Ends a trial that an earlier daemon began: a restart takes it back.
    pub(super) fn end_trial(&mut self) -> bool {
        let live = self.control.live();
        if live.deadline_ns.is_some() {
            self.control.set_live(Live { slot: live.slot ^ 1, deadline_ns: None });
        }
        live.deadline_ns.is_some()
    }

    /// The kernel's number of the control word's map.
    pub(super) fn control_id(&self) -> Result<u32> {
        self.control.map.info().map(|info| info.id()).map_err(|error| failed(&error))
    }

    /// Number that the next generation gets.
    pub(super) const fn next(&self) -> u64 {
        self.last + 1
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

    /// Numbers of the live generation and of the other one.
    pub(super) fn generations(&self) -> [u64; 2] {
        let slot = self.live().slot as usize & 1;
        [self.written[slot].generation, self.written[slot ^ 1].generation]
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
        let before = written.take();
        for (index, set) in (0u32..).zip(classes) {
            let same = before.as_ref().is_some_and(|before| before[index as usize] == *set);
            if !same {
                let index = slot * CLASSES + index;
                self.classes.set(index, *set, 0).map_err(|error| failed(&error))?;
            }
        }
        *written = Some(classes.to_vec());
        Ok(())
    }

    fn write_prefixes(
        &mut self,
        slot: u32,
        prefixes: &BTreeMap<(bool, Prefix), Set>,
    ) -> Result<()> {
        let written = &mut self.written[slot as usize & 1].prefixes;
        let wanted: BTreeMap<_, _> = prefixes
            .iter()
            .map(|(key, set)| {
                let key = prefix_key(slot, *key);
                ((key.prefix_len(), key.data()), (key, *set))
            })
            .collect();
        let gone: Vec<_> =
            written.keys().filter(|key| !wanted.contains_key(key)).copied().collect();
        for at in gone {
            self.prefixes.remove(&Key::new(at.0, at.1)).map_err(|error| failed(&error))?;
            written.remove(&at);
        }
        for (at, (key, set)) in wanted {
            if written.get(&at) != Some(&set) {
                self.prefixes.insert(&key, set, 0).map_err(|error| failed(&error))?;
                written.insert(at, set);
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
    map: MapData,
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
        Ok(Self { page: page.ok_or_else(|| Error::failed("the control word is nowhere"))?, map })
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
pub(super) fn wait_for_packets_in_flight() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: takes three integers and touches no memory of ours.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if done != 0 {
        // Refused on kernels with nohz_full.
        std::thread::sleep(PACKETS_IN_FLIGHT);
    }
}
