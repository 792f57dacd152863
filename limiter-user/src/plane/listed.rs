//! The tables of the lists in the kernel.

use std::{
    collections::{BTreeMap, HashMap as Table},
    net::Ipv6Addr,
    path::Path,
};

use aya::maps::{
    Array, HashMap, MapData, MapError,
    lpm_trie::{Key, LpmTrie},
};
use limiter_common::{
    lists::{Configured as Word, Contents, ExactKey, Listing, MAX_ENTRIES, WORDS},
    source::Seed,
};

use super::{
    chain, errno,
    rules::{Rules, map},
};
use crate::{
    compiled::{Configured, address, mapped_length},
    error::{Error, Result},
    lists::{InMemory, List, Lists, Statement, Tables, seconds_since_1970},
    prefix::Prefix,
};

/// The maps of the lists.
pub(super) struct Listed {
    exact: HashMap<MapData, ExactKey, Listing>,
    prefixes: LpmTrie<MapData, [u32; 4], Listing>,
    words: Array<MapData, u64>,
    contents: Contents,
}

impl Listed {
    /// Opens the maps that are pinned in `directory`.
    pub(super) fn open(directory: &Path) -> Result<Self> {
        Ok(Self {
            exact: map(directory, "LISTS_EXACT")?,
            prefixes: map(directory, "LISTS_PREFIX")?,
            words: map(directory, "LISTED")?,
            contents: Contents::default(),
        })
    }

    /// Lets packets see what the lists hold.
    pub(super) fn publish(&self, rules: &mut Rules) {
        rules.set_contents(self.contents);
    }
}

/// Why something is on a list of which no more is known than the kernel knows.
const FOUND: &str = "found in the kernel";

/// Lists over the maps that are pinned in `directory`, which then hold what is
/// said here, and what the rules in both slots say already. Packets meet what
/// is in the maps and in what is said at every moment of it.
///
/// # Errors
/// The kernel refuses a map access.
pub(super) fn adopt(
    directory: &Path,
    seed: Seed,
    allowed: Vec<(Prefix, Statement)>,
    banned: Vec<(Prefix, Statement)>,
    rules: &mut Rules,
) -> Result<Lists<Listed>> {
    let mut tables = Listed::open(directory)?;
    let found = tables.read()?;
    let mut lists = Lists::new(InMemory::default(), seed);
    lists.add(List::Allow, allowed)?;
    lists.add(List::Ban, banned)?;
    lists.restore(found.configured())?;
    tables.hold(&found, lists.tables(), rules)?;
    let (lists, _) = lists.over(tables);
    Ok(lists)
}

/// What was allowed and banned at run time in the maps that are pinned in
/// `directory`.
///
/// # Errors
/// The kernel refuses a map access.
pub(super) fn left(directory: &Path) -> Result<[BTreeMap<Prefix, Statement>; 2]> {
    let found = Listed::open(directory)?.read()?;
    let (mut allowed, mut banned) = (BTreeMap::new(), BTreeMap::new());
    let created = seconds_since_1970();
    let now = super::boot_ns();
    for (prefix, listing) in found.listings() {
        for (until, list) in
            [(listing.allowed_until, &mut allowed), (listing.banned_until, &mut banned)]
        {
            if until > now {
                let reason = Some(FOUND.to_owned());
                list.insert(prefix, Statement { until, created, reason });
            }
        }
    }
    Ok([allowed, banned])
}

/// What the tables hold.
struct Found {
    exact: Table<ExactKey, Listing>,
    /// By length and address, as a trie in memory has them.
    prefixes: Table<((), u32, [u32; 4]), Listing>,
    words: Vec<u64>,
}

impl Found {
    fn listings(&self) -> impl Iterator<Item = (Prefix, Listing)> {
        let exact = self.exact.iter().map(|(key, it)| (prefix_of(key.length, key.address), *it));
        exact.chain(
            self.prefixes
                .iter()
                .map(|((_, length, it), listing)| (prefix_of(*length, *it), *listing)),
        )
    }

    fn configured(&self) -> BTreeMap<Prefix, [Configured; 2]> {
        let said = |listing: Listing, slot| Configured {
            allow: listing.is_configured(slot, Word::Allow),
            deny: listing.is_configured(slot, Word::Deny),
        };
        self.listings().map(|(prefix, it)| (prefix, [said(it, 0), said(it, 1)])).collect()
    }
}

fn prefix_of(length: u32, address: [u32; 4]) -> Prefix {
    let mut octets = [0; 16];
    for (octets, word) in octets.chunks_exact_mut(4).zip(address) {
        octets.copy_from_slice(&word.to_ne_bytes());
    }
    Prefix::new(Ipv6Addr::from(octets).into(), u8::try_from(length).unwrap_or(u8::MAX))
}

impl Listed {
    fn read(&self) -> Result<Found> {
        let exact = self.exact.iter().collect::<std::result::Result<_, _>>();
        let mut prefixes = Table::new();
        for entry in &self.prefixes {
            let (key, listing) = entry.map_err(|error| failed(&error))?;
            prefixes.insert(((), key.prefix_len(), key.data()), listing);
        }
        let words = (0..WORDS).map(|word| self.words.get(&word, 0));
        Ok(Found {
            exact: exact.map_err(|error| failed(&error))?,
            prefixes,
            words: words.collect::<std::result::Result<_, _>>().map_err(|error| failed(&error))?,
        })
    }

    /// Makes the tables hold this. What is wanted comes before what is not
    /// goes, and bits come before entries and go after them.
    fn hold(&mut self, found: &Found, wanted: &InMemory, rules: &mut Rules) -> Result<()> {
        let bits = |word: u32| wanted.words.get(&word).copied().unwrap_or_default();
        for (word, had) in (0u32..).zip(&found.words) {
            if bits(word) & !had != 0 {
                self.set_word(word, bits(word) | had)?;
            }
        }
        for (key, listing) in &wanted.exact {
            if found.exact.get(key) != Some(listing) {
                self.set_exact(*key, Some(*listing))?;
            }
        }
        for (key, listing) in wanted.prefixes.iter() {
            if found.prefixes.get(key) != Some(listing) {
                self.prefixes
                    .insert(&Key::new(key.1, key.2), *listing, 0)
                    .map_err(|error| failed(&error))?;
            }
        }
        self.contents = wanted.contents;
        self.publish(rules);
        for key in found.exact.keys().filter(|key| !wanted.exact.contains_key(key)) {
            self.set_exact(*key, None)?;
        }
        for key in found.prefixes.keys().filter(|key| wanted.prefixes.get(key).is_none()) {
            absent(self.prefixes.remove(&Key::new(key.1, key.2)))?;
        }
        for (word, had) in (0u32..).zip(&found.words) {
            if had & !bits(word) != 0 {
                self.set_word(word, bits(word))?;
            }
        }
        Ok(())
    }
}

impl Tables for Listed {
    fn set_exact(&mut self, key: ExactKey, listing: Option<Listing>) -> Result<()> {
        match listing {
            Some(listing) => self.exact.insert(key, listing, 0).map_err(|error| failed(&error)),
            None => absent(self.exact.remove(&key)).map(|_| ()),
        }
    }

    fn set_prefix(&mut self, prefix: Prefix, listing: Option<Listing>) -> Result<()> {
        let key = Key::new(mapped_length(prefix), address(prefix.address()).mapped());
        match listing {
            Some(listing) => self.prefixes.insert(&key, listing, 0).map_err(|error| failed(&error)),
            None => absent(self.prefixes.remove(&key)).map(|_| ()),
        }
    }

    fn set_word(&mut self, word: u32, bits: u64) -> Result<()> {
        self.words.set(word, bits, 0).map_err(|error| failed(&error))
    }

    fn set_contents(&mut self, contents: Contents) -> Result<()> {
        self.contents = contents;
        Ok(())
    }
}

/// What is there, or that it is not.
fn absent<T>(result: std::result::Result<T, MapError>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) if errno(&error) == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

fn failed(error: &MapError) -> Error {
    match errno(error) {
        Some(libc::ENOSPC | libc::E2BIG) => {
            Error::failed(format!("the kernel's lists are full: {MAX_ENTRIES} entries"))
                .hint("remove some, or use prefixes")
        }
        Some(libc::ENOMEM) => Error::failed("the kernel has no memory for more entries")
            .hint("remove some, or use prefixes"),
        _ => Error::failed(format!("cannot access the lists in the kernel: {}", chain(error))),
    }
}
