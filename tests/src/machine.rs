//! A machine in memory: the core's tables and clocks for any number of CPUs.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    hash::Hash,
    rc::Rc,
};

use limiter_common::{
    bucket::{Clock, Lease, LeaseCell, Word},
    decide::{Full, Sources, Tables, decide},
    frame::Linear,
    policy::Ruleset,
    source::{Key4, Key6},
    verdict::Decision,
};

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
    cpu: Cell<u32>,
    now_ns: Cell<u64>,
    tick_ns: u64,
}

impl Machine {
    /// A machine with so many CPUs, room for so many sources of each family,
    /// and 250 ticks per second.
    #[must_use]
    pub fn new(cpus: u32, capacity: usize, rules: Ruleset) -> Self {
        Self {
            cpus,
            rules,
            capacity,
            sources4: Table::default(),
            sources6: Table::default(),
            cpu: Cell::new(0),
            now_ns: Cell::new(0),
            tick_ns: 4_000_000,
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

    fn tick(&self) -> u32 {
        u32::try_from((self.now_ns.get() / self.tick_ns) & 0xffff_ffff).unwrap_or(0)
    }
}

macro_rules! sources {
    ($key:ty, $table:ident) => {
        impl Sources<$key> for Machine {
            type Word = At;
            type Lease = At;

            fn lease(&self, key: &$key) -> Option<At> {
                Self::entry(&self.$table, key).map(|entry| At(entry, self.cpu.get()))
            }

            fn word(&self, key: &$key, cpu: u32) -> Option<At> {
                if cpu >= self.cpus {
                    return None;
                }
                Self::entry(&self.$table, key).map(|entry| At(entry, cpu))
            }

            fn insert(&self, key: &$key) -> Result<(), Full> {
                self.add(&self.$table, key)
            }
        }
    };
}

sources!(Key4, sources4);
sources!(Key6, sources6);

impl Tables for Machine {
    fn ruleset(&self) -> Option<&Ruleset> {
        Some(&self.rules)
    }

    fn cpus(&self) -> u32 {
        self.cpus
    }

    fn seed(&self) -> u32 {
        0x5eed
    }
}
