//! Who is allowed, banned and denied: what was said about each prefix, and what
//! follows for the tables of the packet path.

use std::{
    collections::{BTreeMap, HashMap},
    time::UNIX_EPOCH,
};

use limiter_common::{
    lists::{Bit, COARSE4, COARSE6, Contents, ExactKey, FOREVER, Listing, MAX_ENTRIES, WORDS},
    source::{Address, Seed},
};
use serde::{Deserialize, Serialize};

use crate::{
    compiled::{Configured, address, all_ipv4, covers_ipv4},
    error::{Error, Kind, Result},
    prefix::Prefix,
    trie::Trie,
};

/// The tables of the packet path.
pub trait Tables {
    /// Says this about a single address or a /64, or nothing.
    ///
    /// # Errors
    /// The table is full or cannot be accessed; likewise below.
    fn set_exact(&mut self, key: ExactKey, listing: Option<Listing>) -> Result<()>;
    /// Says this about another prefix, or nothing.
    ///
    /// # Errors
    /// As above.
    fn set_prefix(&mut self, prefix: Prefix, listing: Option<Listing>) -> Result<()>;
    /// Sets a word of the bitmaps.
    ///
    /// # Errors
    /// As above.
    fn set_word(&mut self, word: u32, bits: u64) -> Result<()>;
    /// Says what the lists hold.
    ///
    /// # Errors
    /// As above.
    fn set_contents(&mut self, contents: Contents) -> Result<()>;
}

/// The tables in memory.
#[derive(Debug, Default)]
pub struct InMemory {
    /// What is said about single addresses and /64s.
    pub exact: HashMap<ExactKey, Listing>,
    /// What is said about other prefixes.
    pub prefixes: Trie<(), Listing>,
    /// Words of the bitmaps that have bits.
    pub words: HashMap<u32, u64>,
    /// What the lists hold.
    pub contents: Contents,
}

impl Tables for InMemory {
    fn set_exact(&mut self, key: ExactKey, listing: Option<Listing>) -> Result<()> {
        match listing {
            Some(listing) => self.exact.insert(key, listing),
            None => self.exact.remove(&key),
        };
        Ok(())
    }

    fn set_prefix(&mut self, prefix: Prefix, listing: Option<Listing>) -> Result<()> {
        self.prefixes.set((), prefix, listing);
        Ok(())
    }

    fn set_word(&mut self, word: u32, bits: u64) -> Result<()> {
        self.words.insert(word, bits);
        Ok(())
    }

    fn set_contents(&mut self, contents: Contents) -> Result<()> {
        self.contents = contents;
        Ok(())
    }
}

/// One of the two lists that are changed at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// Passes whatever a policy says.
    Allow,
    /// Is dropped.
    Ban,
}

/// What was said about a prefix at run time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Until when, in nanoseconds since the boot; [`FOREVER`].
    pub until: u64,
    /// When it was said, seconds since 1970.
    pub created: u64,
    /// Why.
    pub reason: Option<String>,
}

/// All that was said about a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Entry {
    allow: Option<Statement>,
    ban: Option<Statement>,
    /// By slot.
    configured: [Configured; 2],
}

impl Entry {
    fn listing(&self) -> Listing {
        let until = |statement: &Option<Statement>| statement.as_ref().map_or(0, |it| it.until);
        let listing = Listing::new(until(&self.allow), until(&self.ban));
        let [even, odd] = self.configured;
        listing.with_configured(0, even.allow, even.deny).with_configured(1, odd.allow, odd.deny)
    }

    const fn statement(&mut self, list: List) -> &mut Option<Statement> {
        match list {
            List::Allow => &mut self.allow,
            List::Ban => &mut self.ban,
        }
    }
}

/// The lists, and what of them was written to the tables.
pub struct Lists<T> {
    entries: BTreeMap<Prefix, Entry>,
    /// How many there are of each length, IPv4 and IPv6, so that only lengths
    /// that occur are looked for around a prefix.
    lengths: [[u32; 129]; 2],
    /// Entries that need each bit, where there are any.
    bits: HashMap<Bit, u32>,
    words: Vec<u64>,
    /// Entries of each sort of [`Contents`].
    sorts: [u32; 6],
    seed: Seed,
    tables: T,
}

/// In the order of [`Lists::sorts`].
const SORTS: [Contents; 6] = [
    Contents::EXACT4,
    Contents::EXACT6,
    Contents::PREFIX4,
    Contents::PREFIX6,
    Contents::SHORT4,
    Contents::SHORT6,
];

impl<T: Tables> Lists<T> {
    /// Empty lists over empty tables.
    pub fn new(tables: T, seed: Seed) -> Self {
        Self {
            entries: BTreeMap::new(),
            lengths: [[0; 129]; 2],
            bits: HashMap::new(),
            words: vec![0; WORDS as usize],
            sorts: [0; 6],
            seed,
            tables,
        }
    }

    /// The same lists over other tables, which hold what these do.
    pub fn over<U>(self, tables: U) -> (Lists<U>, T) {
        let Self { entries, lengths, bits, words, sorts, seed, tables: before } = self;
        (Lists { entries, lengths, bits, words, sorts, seed, tables }, before)
    }

    /// The tables.
    pub const fn tables(&self) -> &T {
        &self.tables
    }

    /// The tables.
    pub const fn tables_mut(&mut self) -> &mut T {
        &mut self.tables
    }

    /// What was said at run time on one list, by prefix.
    pub fn statements(&self, list: List) -> impl Iterator<Item = (Prefix, &Statement)> {
        self.entries.iter().filter_map(move |(prefix, entry)| {
            let statement = match list {
                List::Allow => &entry.allow,
                List::Ban => &entry.ban,
            };
            statement.as_ref().map(|statement| (*prefix, statement))
        })
    }

    /// What was said at run time about a prefix on a list.
    #[must_use]
    pub fn statement(&self, list: List, prefix: Prefix) -> Option<&Statement> {
        let entry = self.entries.get(&prefix)?;
        match list {
            List::Allow => entry.allow.as_ref(),
            List::Ban => entry.ban.as_ref(),
        }
    }

    /// What is said about a prefix and about those around it, the narrowest
    /// first.
    #[must_use]
    pub fn around(&self, prefix: Prefix) -> Vec<(Prefix, Listing)> {
        let mut found: Vec<_> = self
            .lengths_up_to(prefix)
            .filter_map(|length| {
                let outer = Prefix::new(prefix.address(), length);
                self.entries.get(&outer).map(|entry| (outer, entry.listing()))
            })
            .collect();
        found.reverse();
        found
    }

    /// Says this about prefixes on a list, all or none; what was said about
    /// them before is replaced.
    ///
    /// # Errors
    /// There is no room, or a table cannot be accessed.
    pub fn add(&mut self, list: List, statements: Vec<(Prefix, Statement)>) -> Result<()> {
        let new = statements.iter().filter(|(prefix, _)| !self.entries.contains_key(prefix));
        let room = (MAX_ENTRIES as usize).saturating_sub(self.entries.len());
        if new.count() > room {
            return Err(Error::new(
                Kind::Invalid,
                format!("there is room for {room} more entries on the lists"),
            )
            .hint(format!("they hold {MAX_ENTRIES} together; remove some, or use prefixes")));
        }
        self.change(
            statements.into_iter().map(|(prefix, statement)| (prefix, Some(statement))),
            |entry, statement| {
                *entry.statement(list) = statement;
            },
        )
    }

    /// Says no more about prefixes on a list, all or none.
    ///
    /// # Errors
    /// A table cannot be accessed.
    pub fn remove(&mut self, list: List, prefixes: &[Prefix]) -> Result<()> {
        self.change(prefixes.iter().map(|prefix| (*prefix, ())), |entry, ()| {
            *entry.statement(list) = None;
        })
    }

    /// Says what the rules in both slots say about these prefixes.
    ///
    /// # Errors
    /// As [`Lists::add`].
    pub fn restore(&mut self, said: BTreeMap<Prefix, [Configured; 2]>) -> Result<()> {
        self.change(said.into_iter(), |entry, configured| entry.configured = configured)
    }

    /// Forgets what has ended at `now` since the boot; says how much.
    ///
    /// # Errors
    /// A table cannot be accessed.
    pub fn expire(&mut self, now: u64) -> Result<usize> {
        let ended = |statement: &Option<Statement>| {
            statement.as_ref().is_some_and(|it| it.until != FOREVER && it.until <= now)
        };
        let over = |entry: &Entry| ended(&entry.allow) || ended(&entry.ban);
        let prefixes: Vec<_> =
            self.entries.iter().filter(|(_, entry)| over(entry)).map(|(it, _)| (*it, ())).collect();
        let count = prefixes.len();
        self.change(prefixes.into_iter(), |entry, ()| {
            for statement in [&mut entry.allow, &mut entry.ban] {
                if ended(statement) {
                    *statement = None;
                }
            }
        })?;
        Ok(count)
    }

    /// Makes this what the rules in a slot say.
    ///
    /// # Errors
    /// As [`Lists::add`].
    pub fn configure(&mut self, slot: u32, said: &BTreeMap<Prefix, Configured>) -> Result<()> {
        let slot = slot as usize & 1;
        let before =
            self.entries.iter().filter(|(_, it)| it.configured[slot] != Configured::default());
        let mut changes: BTreeMap<_, _> =
            before.map(|(prefix, _)| (*prefix, Configured::default())).collect();
        changes.extend(said.iter().map(|(prefix, configured)| (*prefix, *configured)));
        changes.retain(|prefix, configured| {
            self.entries.get(prefix).map(|it| it.configured[slot]).unwrap_or_default()
                != *configured
        });
        self.change(changes.into_iter(), |entry, configured| entry.configured[slot] = configured)
    }

    /// Changes entries, all or none.
    fn change<C>(
        &mut self,
        changes: impl Iterator<Item = (Prefix, C)>,
        apply: impl Fn(&mut Entry, C),
    ) -> Result<()> {
        let mut before = Vec::new();
        let mut result = Ok(());
        for (prefix, change) in changes {
            let old = self.entries.get(&prefix).cloned().unwrap_or_default();
            let mut new = old.clone();
            apply(&mut new, change);
            if new == old {
                continue;
            }
            before.push((prefix, old));
            result = self.put(prefix, new);
            if result.is_err() {
                break;
            }
        }
        let result = result.and_then(|()| self.tables.set_contents(self.contents()));
        if result.is_err() {
            for (prefix, old) in before.into_iter().rev() {
                // What cannot be undone now cannot be told twice.
                let _ = self.put(prefix, old);
            }
        }
        result
    }

    fn contents(&self) -> Contents {
        let present = SORTS.iter().zip(self.sorts).filter(|(_, count)| *count > 0);
        present.fold(Contents::default(), |contents, (sort, _)| contents.and(*sort))
    }

    /// Replaces one entry, here and in the tables. Here it is replaced also if
    /// a table fails, so that the same with the old entry undoes it.
    fn put(&mut self, prefix: Prefix, entry: Entry) -> Result<()> {
        let (was, is) = (self.entries.contains_key(&prefix), entry != Entry::default());
        if is {
            self.entries.insert(prefix, entry);
        } else {
            self.entries.remove(&prefix);
        }
        let bit = if was == is { None } else { self.count(prefix, is) };
        let word = bit.map(|bit| (bit.word(), self.words[bit.word() as usize]));
        // A packet that sees the bit may look in vain, but none may miss it.
        if let Some((word, bits)) = word.filter(|_| is) {
            self.tables.set_word(word, bits)?;
        }
        self.write(prefix)?;
        if let Some((word, bits)) = word.filter(|_| !is) {
            self.tables.set_word(word, bits)?;
        }
        Ok(())
    }

    /// Writes what follows from the entry of a prefix.
    fn write(&mut self, prefix: Prefix) -> Result<()> {
        if let Some(key) = exact_key(prefix) {
            let listing = self.entries.get(&prefix).map(Entry::listing);
            return self.tables.set_exact(key, listing);
        }
        // Whatever lies inside inherits from it.
        let inside: Vec<_> = self
            .entries
            .range(prefix..)
            .map(|(inner, _)| *inner)
            .take_while(|inner| prefix.contains(inner))
            .filter(|inner| *inner != prefix && exact_key(*inner).is_none())
            .collect();
        for prefix in std::iter::once(prefix).chain(inside) {
            let listing = self.entries.contains_key(&prefix).then(|| self.effective(prefix));
            self.tables.set_prefix(prefix, listing.or_else(|| self.shield(prefix)))?;
        }
        if covers_ipv4(&prefix) && !self.entries.contains_key(&all_ipv4()) {
            self.tables.set_prefix(all_ipv4(), self.shield(all_ipv4()))?;
        }
        Ok(())
    }

    /// All of IPv4 has an empty entry of its own where an IPv6 prefix would
    /// match it.
    fn shield(&self, prefix: Prefix) -> Option<Listing> {
        let mapped = std::net::Ipv4Addr::UNSPECIFIED.to_ipv6_mapped();
        let wide = |length| Prefix::new(mapped.into(), length);
        // Those in the hash table match nothing but themselves.
        let in_trie = |prefix: &Prefix| exact_key(*prefix).is_none();
        let covered = || {
            let mut wider = (0..96).map(wide).filter(in_trie);
            wider.any(|prefix| self.entries.contains_key(&prefix))
        };
        (prefix == all_ipv4() && covered()).then(Listing::default)
    }

    /// What holds in a prefix: what was said about it and about those around.
    fn effective(&self, prefix: Prefix) -> Listing {
        self.around(prefix)
            .into_iter()
            .filter(|(outer, _)| exact_key(*outer).is_none())
            .fold(Listing::default(), |sum, (_, listing)| sum.and(listing))
    }

    /// Lengths of prefixes that occur, up to that of this one.
    fn lengths_up_to(&self, prefix: Prefix) -> impl Iterator<Item = u8> {
        let lengths = &self.lengths[usize::from(prefix.address().is_ipv6())];
        (0..=prefix.length()).filter(|length| lengths[usize::from(*length)] > 0)
    }

    /// Counts an entry in or out; gives its bit if it has one.
    fn count(&mut self, prefix: Prefix, is_new: bool) -> Option<Bit> {
        let step = |count: &mut u32| {
            *count = if is_new { *count + 1 } else { count.saturating_sub(1) };
        };
        let is_ipv6 = prefix.address().is_ipv6();
        let family = usize::from(is_ipv6);
        step(&mut self.lengths[family][usize::from(prefix.length())]);
        let address: Address = address(prefix.address());
        let coarse = if is_ipv6 { COARSE6 } else { COARSE4 };
        let bit = if exact_key(prefix).is_some() {
            step(&mut self.sorts[family]);
            Bit::exact(address, self.seed)
        } else {
            step(&mut self.sorts[2 + family]);
            if prefix.length() < coarse {
                step(&mut self.sorts[4 + family]);
                return None;
            }
            Bit::coarse(address, self.seed)
        };
        let users = self.bits.entry(bit).or_default();
        step(users);
        let bits = &mut self.words[bit.word() as usize];
        if *users > 0 {
            *bits |= bit.mask();
        } else {
            self.bits.remove(&bit);
            *bits &= !bit.mask();
        }
        Some(bit)
    }
}

/// Key of a prefix that stands in the hash table: a single address or an IPv6
/// /64.
pub(crate) fn exact_key(prefix: Prefix) -> Option<ExactKey> {
    let words = address(prefix.address()).mapped();
    match (prefix.is_single(), prefix.length()) {
        (true, _) => Some(ExactKey::single(words)),
        (false, 64) => Some(ExactKey::subnet(words)),
        _ => None,
    }
}

/// Now, as statements say when they were made.
pub(crate) fn seconds_since_1970() -> u64 {
    UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs())
}
