//! A machine in memory: the core's tables and clocks for any number of CPUs, for
//! simulation.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    hash::Hash,
    rc::Rc,
};

use limiter_common::{
    bucket::{Bucket, Charge, Clock, Lease, LeaseCell, Word},
    charge,
    class::{Axis, PrefixKey, Set},
    control::{Control, Live},
    decide::decide,
    frame::Linear,
    gate::{CELLS, Gate},
    limit::Limit,
    lists::{self, Bit, Contents, ExactKey, Listing},
    policy::Ruleset,
    source::{Key as _, Key4, Key6, Seed, Total},
    tables::{Buckets, Full, Sources, Steps, Tables, TotalStep},
    tracked::{Place, WORDS, Words},
    verdict::{Decision, Reason},
};

use crate::{
    compiled::{Compiled, address},
    error::Result as Told,
    lists::{InMemory, Tables as ListTables, exact_key},
    prefix::Prefix,
    trie::Trie,
};

/// A timer tick at 250 Hz.
pub const TICK_NS: u64 = 4_000_000;

/// One CPU's part of an entry.
#[derive(Default)]
struct Slot {
    tat: Cell<u64>,
    lease: Cell<Lease>,
}

type Entry = Rc<Vec<Slot>>;
type Table<K> = RefCell<HashMap<K, Entry>>;

/// The tables, and the CPU and time that are now.
pub struct Machine {
    cpus: u32,
    compiled: Compiled,
    prefixes: Trie<bool, Set>,
    listed: InMemory,
    slot: u32,
    interface: u32,
    capacity: usize,
    sources4: Table<Key4>,
    sources6: Table<Key6>,
    totals: Table<u32>,
    tracked: Rc<Vec<[Cell<u64>; 2]>>,
    cells: Rc<Vec<Cell<u64>>>,
    seed: Seed,
    cpu: Cell<u32>,
    now_ns: Cell<u64>,
}

impl Machine {
    /// A machine with so many CPUs, room for so many sources of each family
    /// (nothing is evicted), and a tick every [`TICK_NS`].
    #[must_use]
    pub fn new(cpus: u32, capacity: usize, rules: impl Into<Compiled>) -> Self {
        let mut machine = Self {
            cpus,
            compiled: rules.into(),
            prefixes: Trie::default(),
            listed: InMemory::default(),
            slot: 0,
            interface: 0,
            capacity,
            sources4: Table::default(),
            sources6: Table::default(),
            totals: Table::default(),
            tracked: Rc::new((0..WORDS).map(|_| Default::default()).collect()),
            cells: Rc::new((0..CELLS).map(|_| Cell::default()).collect()),
            seed: [0x5eed, 0x5eed_5eed],
            cpu: Cell::new(0),
            now_ns: Cell::new(0),
        };
        machine.index_prefixes();
        machine
    }

    /// The same with these numbers for its hashes.
    #[must_use]
    pub fn with_seed(mut self, seed: Seed) -> Self {
        self.seed = seed;
        self
    }

    /// Puts other rules in force, in this slot.
    pub fn set_rules(&mut self, rules: impl Into<Compiled>, slot: u32) {
        self.compiled = rules.into();
        self.slot = slot;
        self.index_prefixes();
    }

    /// Packets come by the interface of this number from now on.
    pub fn set_interface(&mut self, interface: u32) {
        self.interface = interface;
    }

    /// What the packet path reads of the lists.
    pub const fn listed(&mut self) -> &mut InMemory {
        &mut self.listed
    }

    fn index_prefixes(&mut self) {
        self.prefixes = Trie::default();
        for (&(of_destination, prefix), set) in &self.compiled.prefixes {
            self.prefixes.set(of_destination, prefix, Some(*set));
        }
    }

    /// Decides about a frame that arrives now on this CPU.
    pub fn receive(&self, cpu: u32, now_ns: u64, frame: &[u8]) -> Decision {
        self.cpu.set(cpu % self.cpus);
        self.now_ns.set(now_ns);
        decide(&Linear(frame), self)
    }

    /// Keys that have a bucket.
    #[must_use]
    pub fn keys(&self) -> (Vec<Key4>, Vec<Key6>) {
        let four = self.sources4.borrow().keys().copied().collect();
        let six = self.sources6.borrow().keys().copied().collect();
        (four, six)
    }

    /// Gives a key this bucket, one for each CPU, as one that was seen now.
    pub fn put4(&mut self, key: Key4, buckets: &[Bucket], now_ns: u64) {
        self.see(key.spread(self.seed), now_ns);
        self.sources4.borrow_mut().insert(key, entry_of(buckets));
    }

    /// The same for IPv6.
    pub fn put6(&mut self, key: Key6, buckets: &[Bucket], now_ns: u64) {
        self.see(key.spread(self.seed), now_ns);
        self.sources6.borrow_mut().insert(key, entry_of(buckets));
    }

    /// The same for a bucket that all sources share.
    pub fn put_total(&mut self, key: Total, buckets: &[Bucket]) {
        self.totals.borrow_mut().insert(key.0, entry_of(buckets));
    }

    /// Says this about a prefix.
    ///
    /// # Errors
    /// Never.
    pub fn list(&mut self, prefix: Prefix, listing: Listing) -> Told<()> {
        let address = address(prefix.address());
        let bits = [Bit::exact(address, self.seed), Bit::coarse(address, self.seed)];
        for bit in bits {
            *self.listed.words.entry(bit.word()).or_default() |= bit.mask();
        }
        self.listed.contents = Contents(u64::MAX);
        match exact_key(prefix) {
            Some(key) => self.listed.set_exact(key, Some(listing)),
            None => {
                let address = address.mapped();
                let around = self.listed.prefixes.around((), &address).unwrap_or_default();
                self.listed.set_prefix(prefix, Some(around.and(listing)))
            }
        }
    }

    /// The CPU that holds the most tokens of any bucket.
    #[must_use]
    pub fn cpu_with_most(&self) -> u32 {
        let held = |cpu: u32| {
            let at = |entry: &Entry| entry[cpu as usize].lease.get().credits();
            let four = self.sources4.borrow().values().map(at).sum::<u32>();
            let six = self.sources6.borrow().values().map(at).sum::<u32>();
            four + six
        };
        (0..self.cpus).max_by_key(|cpu| held(*cpu)).unwrap_or_default()
    }

    fn see(&self, spread: u64, now_ns: u64) {
        self.now_ns.set(now_ns);
        let place = Place::of(spread);
        if let (Some(rules), Some(words)) = (self.ruleset(0), self.tracked(place.word())) {
            words.see(place, rules.gate().epoch(self.tick()));
        }
    }

    fn entry<K: Copy + Eq + Hash>(table: &Table<K>, key: &K) -> Option<Entry> {
        table.borrow().get(key).cloned()
    }

    fn add<K: Copy + Eq + Hash>(&self, table: &Table<K>, key: &K) -> Result<(), Full> {
        let mut table = table.borrow_mut();
        if table.len() >= self.capacity {
            return Err(Full);
        }
        let slots = (0..self.cpus).map(|_| Slot::default()).collect();
        table.entry(*key).or_insert_with(|| Rc::new(slots));
        Ok(())
    }
}

/// A bucket as each CPU has it, without what CPUs remember of denials: their
/// ticks are not ours.
fn entry_of(buckets: &[Bucket]) -> Entry {
    let slot = |bucket: &Bucket| Slot {
        tat: Cell::new(bucket.tat),
        lease: Cell::new(Lease::of(bucket.lease.credits())),
    };
    Rc::new(buckets.iter().map(slot).collect())
}

/// A CPU's slot of an entry.
pub struct At(Entry, u32);

impl At {
    fn slot(&self) -> &Slot {
        &self.0[self.1 as usize]
    }
}

impl Word for At {
    fn load(&self) -> u64 {
        self.slot().tat.get()
    }

    fn replace(&self, current: u64, new: u64) -> bool {
        let same = self.slot().tat.get() == current;
        if same {
            self.slot().tat.set(new);
        }
        same
    }
}

impl LeaseCell for At {
    fn get(&self) -> Lease {
        self.slot().lease.get()
    }

    fn set(&self, lease: Lease) {
        self.slot().lease.set(lease);
    }
}

impl Clock for Machine {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn tick(&self) -> u64 {
        self.now_ns.get() / TICK_NS
    }

    fn coarse_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn boot_ns(&self) -> u64 {
        self.now_ns.get()
    }
}

/// A word in an array.
#[derive(Clone)]
pub enum InArray {
    /// Of tracked keys: entry and epoch's half.
    Tracked(Rc<Vec<[Cell<u64>; 2]>>, usize, usize),
    /// Of the untracked sources' cells.
    Cell(Rc<Vec<Cell<u64>>>, usize),
}

impl InArray {
    fn cell(&self) -> &Cell<u64> {
        match self {
            Self::Tracked(words, entry, half) => &words[*entry][*half],
            Self::Cell(cells, cell) => &cells[*cell],
        }
    }
}

impl Word for InArray {
    fn load(&self) -> u64 {
        self.cell().get()
    }

    fn replace(&self, current: u64, new: u64) -> bool {
        let same = self.load() == current;
        if same {
            self.cell().set(new);
        }
        same
    }
}

impl Buckets<Total> for Machine {
    type Lease = At;
    type Word = At;

    fn lease(&self, key: &Total) -> Option<At> {
        self.word(key, self.cpu.get())
    }

    fn word(&self, key: &Total, cpu: u32) -> Option<At> {
        let slots = || (0..self.cpus).map(|_| Slot::default()).collect();
        let mut totals = self.totals.borrow_mut();
        let entry = totals.entry(key.0).or_insert_with(|| Rc::new(slots()));
        Some(At(entry.clone(), cpu))
    }
}

impl TotalStep for Machine {
    fn charge_total(&self, key: Total, limit: &Limit, cost: u32) -> Charge {
        charge::charge_total(key, limit, cost, self)
    }
}

macro_rules! sources {
    ($key:ty, $table:ident) => {
        impl Buckets<$key> for Machine {
            type Lease = At;
            type Word = At;

            fn lease(&self, key: &$key) -> Option<At> {
                Self::entry(&self.$table, key).map(|entry| At(entry, self.cpu.get()))
            }

            fn word(&self, key: &$key, cpu: u32) -> Option<At> {
                if cpu >= self.cpus {
                    return None;
                }
                Self::entry(&self.$table, key).map(|entry| At(entry, cpu))
            }
        }

        impl Steps<$key> for Machine {
            fn charge_key(&self, key: &$key, limit: &Limit, gate: &Gate, cost: u32) -> Charge {
                charge::charge_key(key, limit, gate, cost, self)
            }

            fn charge_untracked(&self, cell: &$key, gate: &Gate) -> Charge {
                charge::charge_untracked(cell, gate, self)
            }
        }

        impl Sources<$key> for Machine {
            fn insert(&self, key: &$key) -> Result<(), Full> {
                self.add(&self.$table, key)
            }
        }
    };
}

sources!(Key4, sources4);
sources!(Key6, sources6);

impl Tables for Machine {
    type Shared = InArray;

    fn control(&self) -> Option<Control> {
        let live = Live { slot: self.slot, deadline_ns: None };
        Some(Control::new(live, self.listed.contents.0))
    }

    fn ruleset(&self, _slot: u32) -> Option<&Ruleset> {
        Some(&self.compiled.rules)
    }

    fn class(&self, _slot: u32, index: u32) -> Set {
        self.compiled.classes.get(index as usize).copied().unwrap_or_default()
    }

    fn prefix_class(&self, key: &PrefixKey) -> Option<Set> {
        let of_destination = key.table == PrefixKey::table(Axis::Destination, self.slot);
        self.prefixes.around(of_destination, &key.address)
    }

    fn listed(&self, word: u32) -> u64 {
        self.listed.words.get(&word).copied().unwrap_or_default()
    }

    fn listing(&self, key: &ExactKey) -> Option<Listing> {
        self.listed.exact.get(key).copied()
    }

    fn listing_around(&self, address: &[u32; 4]) -> Option<Listing> {
        self.listed.prefixes.around((), address)
    }

    fn look_up(&self, address: &[u32; 4], contents: Contents, slot: u32) -> Option<Reason> {
        lists::look_up(address, contents, slot, self)
    }

    fn interface(&self) -> u32 {
        self.interface
    }

    fn tracked(&self, word: u32) -> Option<Words<InArray>> {
        let half = |half| InArray::Tracked(self.tracked.clone(), word as usize, half);
        Some(Words { even: half(0), odd: half(1) })
    }

    fn cell(&self, cell: u32) -> Option<InArray> {
        Some(InArray::Cell(self.cells.clone(), cell as usize))
    }

    fn cpus(&self) -> u32 {
        self.cpus
    }

    fn seed(&self) -> Seed {
        self.seed
    }
}
