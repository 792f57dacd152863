//! Everything that outlives a packet, as the core sees it.

use crate::{
    bucket::{Charge, Clock, LeaseCell, Word},
    class::{PrefixKey, Set},
    control::Control,
    gate::Gate,
    limit::Limit,
    lists::{Contents, ExactKey, Listing},
    policy::Ruleset,
    source::{Key4, Key6, Seed, Total},
    tracked::Words,
    verdict::Reason,
};

/// A table of buckets, seen from the CPU that runs.
pub trait Buckets<K> {
    /// Where this CPU keeps its lease of a key.
    type Lease: LeaseCell;

    /// A shared word in the table.
    type Word: Word;

    /// This CPU's lease of `key`, if the key has a bucket.
    fn lease(&self, key: &K) -> Option<Self::Lease>;

    /// The shared word of `key` in the slot of CPU `cpu`.
    fn word(&self, key: &K, cpu: u32) -> Option<Self::Word>;
}

/// A table of buckets that takes new keys.
pub trait Sources<K>: Buckets<K> {
    /// Gives `key` a full bucket, unless another CPU just did.
    ///
    /// # Errors
    /// The table took no new key.
    fn insert(&self, key: &K) -> Result<(), Full>;
}

/// The table of sources took no new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Everything that outlives a packet.
pub trait Tables:
    Clock + Sources<Key4> + Sources<Key6> + Buckets<Total> + Steps<Key4> + Steps<Key6> + TotalStep
{
    /// A shared word outside the tables of buckets.
    type Shared: Word;

    /// Which rules are live, and what the lists hold.
    fn control(&self) -> Option<Control>;
    /// The rule set in slot 0 or 1.
    fn ruleset(&self, slot: u32) -> Option<&Ruleset>;
    /// Entry `index` below [`crate::class::CLASSES`] of the classes by port and
    /// VLAN in a slot.
    fn class(&self, slot: u32, index: u32) -> Set;
    /// The class of the longest prefix of an address.
    fn prefix_class(&self, key: &PrefixKey) -> Option<Set>;
    /// Word `word` below [`crate::lists::WORDS`] of the bitmaps of the lists.
    fn listed(&self, word: u32) -> u64;
    /// What the lists say about exactly this.
    fn listing(&self, key: &ExactKey) -> Option<Listing>;
    /// What the lists say about the longest prefix of an address.
    fn listing_around(&self, address: &[u32; 4]) -> Option<Listing>;
    /// [`crate::lists::look_up`]
    fn look_up(&self, address: &[u32; 4], contents: Contents, slot: u32) -> Option<Reason>;
    /// Number of the interface, below [`crate::class::INTERFACES`].
    fn interface(&self) -> u32;
    /// Entry `word` below [`crate::tracked::WORDS`] of the bitmap of tracked
    /// keys.
    fn tracked(&self, word: u32) -> Option<Words<Self::Shared>>;
    /// Word `cell` below [`crate::gate::CELLS`] of the untracked sources' cells.
    fn cell(&self, cell: u32) -> Option<Self::Shared>;
    /// Possible CPUs.
    fn cpus(&self) -> u32;
    /// Random numbers of this load, for hashes.
    fn seed(&self) -> Seed;
}

/// The steps that look at shared words, for keys of one family.
pub trait Steps<K> {
    /// [`crate::charge::charge_key`]
    fn charge_key(&self, key: &K, limit: &Limit, gate: &Gate, cost: u32) -> Charge;
    /// [`crate::charge::charge_untracked`]
    fn charge_untracked(&self, cell: &K, gate: &Gate) -> Charge;
}

/// The step for what all sources share.
pub trait TotalStep {
    /// [`crate::charge::charge_total`]
    fn charge_total(&self, key: Total, limit: &Limit, cost: u32) -> Charge;
}
