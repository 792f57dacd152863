//! Tries in memory, as the kernel's: IPv4 is IPv4-mapped IPv6.

use std::collections::BTreeMap;

use crate::{
    compiled::{address, mapped_length},
    prefix::Prefix,
};

/// Prefixes, and the longest one around an address.
#[derive(Debug)]
pub struct Trie<K, V>(BTreeMap<(K, u32, [u32; 4]), V>);

impl<K, V> Default for Trie<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Copy + Ord, V: Copy> Trie<K, V> {
    /// All values, by table, mapped length and address in network order.
    pub fn iter(&self) -> impl Iterator<Item = (&(K, u32, [u32; 4]), &V)> {
        self.0.iter()
    }

    /// The value of exactly this prefix, likewise.
    #[must_use]
    pub fn get(&self, key: &(K, u32, [u32; 4])) -> Option<&V> {
        self.0.get(key)
    }

    /// Sets or removes the value of a prefix.
    pub fn set(&mut self, table: K, prefix: Prefix, value: Option<V>) {
        let key = (table, mapped_length(prefix), address(prefix.address()).mapped());
        match value {
            Some(value) => self.0.insert(key, value),
            None => self.0.remove(&key),
        };
    }

    /// The value of the longest prefix around an address in network order.
    #[must_use]
    pub fn around(&self, table: K, words: &[u32; 4]) -> Option<V> {
        let bits = words.iter().fold(0u128, |bits, word| bits << 32 | u128::from(word.to_be()));
        (0..=u128::BITS).rev().find_map(|length| {
            let mask = u128::MAX.checked_shl(u128::BITS - length).unwrap_or(0);
            let network = (bits & mask).to_be_bytes();
            let word = |at: usize| {
                let bytes = [network[at], network[at + 1], network[at + 2], network[at + 3]];
                u32::from_ne_bytes(bytes)
            };
            self.0.get(&(table, length, [word(0), word(4), word(8), word(12)])).copied()
        })
    }
}
