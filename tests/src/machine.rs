//! A machine in memory: the core's tables and clocks for any number of CPUs.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    hash::Hash,
    rc::Rc,
};

use limiter_common::{
    bucket::{Charge, Clock, Lease, LeaseCell, Word},
    charge,
    decide::decide,
    frame::Linear,
    gate::{CELLS, Gate},
    limit::Limit,
    policy::Ruleset,
    source::{Key4, Key6, Seed, Total},
    tables::{Buckets, Full, Sources, Steps, Tables, TotalStep},
    tracked::{WORDS, Words},
    verdict::Decision,
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
    rules: Ruleset,
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
    pub fn new(cpus: u32, capacity: usize, rules: Ruleset) -> Self {
        Self {
            cpus,
            rules,
            capacity,
            sources4: Table::default(),
            sources6: Table::default(),
            totals: Table::default(),
            tracked: Rc::new((0..WORDS).map(|_| Default::default()).collect()),
            cells: Rc::new((0..CELLS).map(|_| Cell::default()).collect()),
            seed: [0x5eed, 0x5eed_5eed],
            cpu: Cell::new(0),
            now_ns: Cell::new(0),
        }
    }

    /// The same with these numbers for its hashes.
    #[must_use]
    pub fn with_seed(mut self, seed: Seed) -> Self {
        self.seed = seed;
        self
    }

    /// Puts other rules in force.
    pub fn set_rules(&mut self, rules: Ruleset) {
        self.rules = rules;
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

    fn ruleset(&self) -> Option<&Ruleset> {
        Some(&self.rules)
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
