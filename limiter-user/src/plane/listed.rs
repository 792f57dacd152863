//! The tables of the lists in the kernel.

use std::path::Path;

use aya::maps::{
    Array, HashMap, MapData, MapError,
    lpm_trie::{Key, LpmTrie},
};
use limiter_common::lists::{Contents, ExactKey, Listing, MAX_ENTRIES};

use super::{
    chain, errno,
    rules::{Rules, map},
};
use crate::{
    compiled::{address, mapped_length},
    error::{Error, Result},
    lists::Tables,
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
