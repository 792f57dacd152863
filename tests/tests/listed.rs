//! Who is allowed, banned and denied: the tables, in memory and in the kernel,
//! against a plain list of statements.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use aya::maps::{Array, HashMap, MapData, lpm_trie::LpmTrie};

use fastrand::Rng;
use limiter_common::{
    control::Control,
    lists::{Contents, ExactKey, FOREVER, Listing, WORDS},
    policy::Ruleset,
    stats::Counter,
    verdict::Reason,
};
use limiter_tests::{
    cases::wide_gate,
    network::{Network, overlapping},
    program::cpus,
    replay::{MOST, Packet, Replay},
    sandbox,
    wire::{Ipv4, Ipv6, Udp},
};
use limiter_user::{
    compiled::{Compiled, Configured},
    error::{Error, Result},
    lists::{InMemory, List, Lists, Statement, Tables},
    machine::Machine,
    prefix::Prefix,
};

const SEED: [u64; 2] = [0x1234_5678, 0x9abc_def0];
const LISTS: [List; 2] = [List::Allow, List::Ban];
const STEPS: usize = 400;

/// What was said, one thing after another.
#[derive(Clone, Default)]
struct Model {
    /// Until when, by whether it is a ban.
    said: BTreeMap<(bool, Network), u64>,
    configured: [BTreeMap<Network, Configured>; 2],
}

fn has_ended(until: u64, now: u64) -> bool {
    until != FOREVER && until <= now
}

impl Model {
    /// What becomes of a packet at a time, under the rules in a slot.
    fn reason(&self, address: IpAddr, slot: usize, now: u64) -> Option<Reason> {
        let said = |is_ban: bool| {
            let of_list = self.said.iter().filter(|((ban, _), _)| *ban == is_ban);
            let mut around = of_list.filter(|((_, network), _)| network.contains(address));
            around.any(|(_, until)| !has_ended(*until, now))
        };
        let configured = |what: fn(&Configured) -> bool| {
            let mut all = self.configured[slot].iter();
            all.any(|(network, said)| network.contains(address) && what(said))
        };
        if said(false) || configured(|said| said.allow) {
            Some(Reason::Allowed)
        } else if said(true) {
            Some(Reason::Banned)
        } else if configured(|said| said.deny) {
            Some(Reason::Denied)
        } else {
            None
        }
    }

    /// Until when something is said on a list, by prefix.
    fn statements(&self, list: List) -> BTreeMap<Prefix, u64> {
        let of_list = self.said.iter().filter(|((is_ban, _), _)| *is_ban == (list == List::Ban));
        of_list.map(|((_, network), until)| (network.prefix(false), *until)).collect()
    }

    /// What the packet path has to look for.
    fn contents(&self) -> Contents {
        let said = self.said.keys().map(|(_, network)| network);
        let networks = said.chain(self.configured.iter().flat_map(BTreeMap::keys));
        let sort = |network: &Network| match (network.is_ipv4(), network.length()) {
            (true, 32) => Contents::EXACT4,
            (true, ..16) => Contents::PREFIX4.and(Contents::SHORT4),
            (true, _) => Contents::PREFIX4,
            (false, 64 | 128) => Contents::EXACT6,
            (false, ..32) => Contents::PREFIX6.and(Contents::SHORT6),
            (false, _) => Contents::PREFIX6,
        };
        networks.map(sort).fold(Contents::default(), Contents::and)
    }

    /// Forgets what has ended; says about how many prefixes.
    fn expire(&mut self, now: u64) -> usize {
        let before = self.said.clone();
        self.said.retain(|_, until| !has_ended(*until, now));
        let gone = before.into_keys().filter(|key| !self.said.contains_key(key));
        gone.map(|(_, network)| network).collect::<BTreeSet<_>>().len()
    }
}

/// Networks that everything is said about.
struct World(Vec<Network>);

impl World {
    fn new(rng: &mut Rng) -> Self {
        Self(overlapping(rng, 40))
    }

    fn network(&self, rng: &mut Rng) -> Network {
        loop {
            let network = self.0[rng.usize(..self.0.len())];
            // Seldom one that decides about everything.
            if network.length() >= 8 || rng.u8(..16) == 0 {
                return network;
            }
        }
    }

    /// In one of them, on its edge or next to it, IPv4 in either form.
    fn address(&self, rng: &mut Rng) -> IpAddr {
        match self.network(rng).near(rng) {
            IpAddr::V4(address) if rng.bool() => address.to_ipv6_mapped().into(),
            address => address,
        }
    }
}

/// What happens next.
enum Step {
    Add(List, Vec<(Network, u64)>),
    Remove(List, Vec<Network>),
    Configure(usize, BTreeMap<Network, Configured>),
    Expire(u64),
}

impl Step {
    fn random(rng: &mut Rng, world: &World, model: &Model, now: u64) -> Self {
        // What is allowed hides everything else.
        let list = if rng.u8(..4) == 0 { List::Allow } else { List::Ban };
        let count = if rng.u8(..5) == 0 { rng.usize(1..20) } else { 1 };
        match rng.u8(..9) {
            0 => {
                let said = |rng: &mut Rng| Configured { allow: rng.u8(..6) == 0, deny: rng.bool() };
                let networks = (0..rng.usize(..20)).map(|_| (world.network(rng), said(rng)));
                let mut networks: BTreeMap<_, _> = networks.collect();
                networks.retain(|_, said| *said != Configured::default());
                Self::Configure(rng.usize(..2), networks)
            }
            1..=3 => {
                let is_ban = list == List::Ban;
                let of_list = model.said.keys().filter(|(ban, _)| *ban == is_ban);
                let mut networks: Vec<_> = of_list.map(|(_, network)| *network).collect();
                rng.shuffle(&mut networks);
                networks.truncate(count + rng.usize(..3));
                Self::Remove(list, networks)
            }
            4 => Self::Expire(now),
            _ => {
                let statement = |_| {
                    let until = if rng.bool() { FOREVER } else { now + rng.u64(..1000) };
                    (world.network(rng), until)
                };
                Self::Add(list, (0..count).map(statement).collect())
            }
        }
    }

    /// Says how many prefixes ended.
    fn tell(&self, model: &mut Model) -> usize {
        match self {
            Self::Add(list, statements) => {
                for (network, until) in statements {
                    model.said.insert((*list == List::Ban, *network), *until);
                }
            }
            Self::Remove(list, networks) => {
                for network in networks {
                    model.said.remove(&(*list == List::Ban, *network));
                }
            }
            Self::Configure(slot, said) => model.configured[*slot].clone_from(said),
            Self::Expire(now) => return model.expire(*now),
        }
        0
    }

    fn apply<T: Tables>(&self, lists: &mut Lists<T>) -> Result<usize> {
        match self {
            Self::Add(list, said) => lists.add(*list, statements(said))?,
            Self::Remove(list, networks) => lists.remove(*list, &prefixes(networks))?,
            Self::Configure(slot, said) => {
                lists.configure(u32::try_from(*slot).expect("a slot"), &configured(said))?;
            }
            Self::Expire(now) => return lists.expire(*now),
        }
        Ok(0)
    }
}

fn statements(said: &[(Network, u64)]) -> Vec<(Prefix, Statement)> {
    let statement = |until| Statement { until, created: 0, reason: None };
    let said = said.iter().enumerate();
    // Every other one as who writes IPv4 as IPv6 has it.
    said.map(|(n, (it, until))| (it.prefix(n % 2 == 1), statement(*until))).collect()
}

fn prefixes(networks: &[Network]) -> Vec<Prefix> {
    networks.iter().map(|network| network.prefix(false)).collect()
}

fn configured(said: &BTreeMap<Network, Configured>) -> BTreeMap<Prefix, Configured> {
    said.iter().map(|(network, said)| (network.prefix(true), *said)).collect()
}

/// Tables that remember what is in them, and may fail.
#[derive(Default)]
struct Recorder {
    tables: InMemory,
    exact: BTreeMap<String, Listing>,
    prefixes: BTreeMap<Prefix, Listing>,
    words: BTreeMap<u32, u64>,
    contents: Contents,
    /// Writes until one fails.
    left: Option<usize>,
}

type State = (BTreeMap<String, String>, BTreeMap<Prefix, String>, BTreeMap<u32, u64>, Contents);

impl Recorder {
    fn write(&mut self) -> Result<()> {
        match &mut self.left {
            Some(0) => {
                self.left = None;
                Err(Error::failed("no memory"))
            }
            left => {
                *left = left.map(|left| left - 1);
                Ok(())
            }
        }
    }

    fn state(&self) -> State {
        let words = self.words.iter().filter(|(_, bits)| **bits != 0);
        (
            self.exact.iter().map(|(key, listing)| (key.clone(), format!("{listing:?}"))).collect(),
            self.prefixes.iter().map(|(key, listing)| (*key, format!("{listing:?}"))).collect(),
            words.map(|(word, bits)| (*word, *bits)).collect(),
            self.contents,
        )
    }
}

impl Tables for Recorder {
    fn set_exact(&mut self, key: ExactKey, listing: Option<Listing>) -> Result<()> {
        self.write()?;
        match listing {
            Some(listing) => self.exact.insert(format!("{key:?}"), listing),
            None => self.exact.remove(&format!("{key:?}")),
        };
        self.tables.set_exact(key, listing)
    }

    fn set_prefix(&mut self, prefix: Prefix, listing: Option<Listing>) -> Result<()> {
        self.write()?;
        match listing {
            Some(listing) => self.prefixes.insert(prefix, listing),
            None => self.prefixes.remove(&prefix),
        };
        self.tables.set_prefix(prefix, listing)
    }

    fn set_word(&mut self, word: u32, bits: u64) -> Result<()> {
        self.write()?;
        self.words.insert(word, bits);
        self.tables.set_word(word, bits)
    }

    fn set_contents(&mut self, contents: Contents) -> Result<()> {
        self.write()?;
        self.contents = contents;
        self.tables.set_contents(contents)
    }
}

fn rules() -> Compiled {
    Ruleset::new(false, wide_gate(cpus())).into()
}

/// A packet, padded to a length.
fn frame(source: IpAddr, length: usize) -> Vec<u8> {
    let body = Udp::new(4000, 9).payload(18);
    match source {
        IpAddr::V4(_) => Ipv4::new(&source.to_string(), "192.0.2.1").next(17, &body),
        IpAddr::V6(_) => Ipv6::new(&source.to_string(), "2001:db8::1").next(17, &body),
    }
    .pad(length)
    .build()
}

#[test]
fn the_core_knows_what_was_said() {
    let mut rng = Rng::with_seed(limiter_tests::seed());
    let (mut met, mut failures) = (BTreeSet::new(), 0);
    for _ in 0..12 {
        let world = World::new(&mut rng);
        let mut lists = Lists::new(Recorder::default(), SEED);
        let (mut model, mut now) = (Model::default(), 1000);
        let mut machine = Machine::new(cpus(), 16, rules()).with_seed(SEED);
        for _ in 0..STEPS {
            now += rng.u64(..100);
            let step = Step::random(&mut rng, &world, &model, now);
            // Half of the attempts meet a table that fails at some write: then
            // nothing has changed.
            let (before, told) = (lists.tables().state(), model.clone());
            lists.tables_mut().left = rng.bool().then(|| rng.usize(..12));
            let ended = step.tell(&mut model);
            match step.apply(&mut lists) {
                Ok(count) => assert_eq!(count, ended),
                Err(_) => {
                    failures += 1;
                    model = told;
                    assert_eq!(lists.tables().state(), before, "a failure left something behind");
                }
            }
            lists.tables_mut().left = None;
            assert_eq!(lists.tables().contents, model.contents());
            for list in LISTS {
                let said: BTreeMap<_, _> =
                    lists.statements(list).map(|(prefix, it)| (prefix, it.until)).collect();
                assert_eq!(said, model.statements(list));
            }
            let slot = rng.usize(..2);
            machine.set_rules(rules(), u32::try_from(slot).expect("a slot"));
            std::mem::swap(machine.listed(), &mut lists.tables_mut().tables);
            for _ in 0..20 {
                let source = world.address(&mut rng);
                let found = machine.receive(0, now, &frame(source, 0)).reason;
                let expected = model.reason(source, slot, now).unwrap_or(Reason::Unlimited);
                assert_eq!(found, expected, "{source} in slot {slot} at {now}");
                met.insert(expected.name());
            }
            std::mem::swap(machine.listed(), &mut lists.tables_mut().tables);
        }
        // All taken back, nothing is left.
        for list in LISTS {
            let all: Vec<_> = lists.statements(list).map(|(prefix, _)| prefix).collect();
            lists.remove(list, &all).expect("removal");
        }
        for slot in 0..2 {
            lists.configure(slot, &BTreeMap::new()).expect("removal");
        }
        assert_eq!(lists.tables().state(), State::default());
    }
    println!("{failures} steps failed");
    assert!(failures > 100);
    assert_eq!(met, BTreeSet::from(["allowed", "banned", "denied", "unlimited"]));
}

#[test]
fn the_program_knows_what_was_said() {
    sandbox::enter();
    sandbox::pin_to_cpu(cpus() as usize - 1);
    let steps = if std::env::var_os("LIMITER_QUICK").is_some() { 20 } else { 60 };
    let mut rng = Rng::with_seed(limiter_tests::seed());
    let mut replay = Replay::load(rules(), 0, 16_384, SEED);
    let world = World::new(&mut rng);
    let (mut model, mut now) = (Model::default(), 1000);
    let mut expected = BTreeMap::<&str, Counter>::new();
    for _ in 0..steps {
        now += rng.u64(..100);
        let plane = replay.program.plane();
        for _ in 0..5 {
            match Step::random(&mut rng, &world, &model, now) {
                Step::Configure(_, said) => {
                    let compiled = Compiled { configured: configured(&said), ..rules() };
                    plane.set_rules(&compiled).expect("setting rules");
                    model.configured[plane.live().slot as usize] = said;
                }
                // By a clock that cannot be set.
                Step::Expire(_) => {}
                step => {
                    step.tell(&mut model);
                    match step {
                        Step::Add(list, said) => plane.add(list, statements(&said)).expect("room"),
                        Step::Remove(list, networks) => {
                            plane.remove(list, &prefixes(&networks)).expect("removal");
                        }
                        Step::Configure(..) | Step::Expire(_) => {}
                    }
                }
            }
        }
        let slot = plane.live().slot as usize;
        let sources: Vec<_> = (0..MOST).map(|_| world.address(&mut rng)).collect();
        let mut packets = Vec::new();
        for source in sources {
            let bytes = frame(source, rng.usize(..300));
            let reason = model.reason(source, slot, now).unwrap_or(Reason::Unlimited);
            let counter = expected.entry(reason.name()).or_default();
            counter.packets += 1;
            // Lengths differ, so that two packets cannot change places unseen.
            counter.bytes += bytes.len() as u64;
            packets.push(Packet { now_ns: now, bytes });
        }
        replay.play(&packets);
        let found: BTreeMap<_, _> = replay
            .program
            .counts()
            .into_iter()
            .map(|count| (count.reason.name(), count.counter))
            .collect();
        assert_eq!(found, expected);
    }
    println!("{expected:?}");
    assert_eq!(expected.len(), 4, "{expected:?}");
    assert_ne!(held(&mut replay), (0, 0, 0, 0), "something was said");

    let plane = replay.program.plane();
    for list in LISTS {
        let all: Vec<_> = plane.statements(list).map(|(prefix, _)| prefix).collect();
        plane.remove(list, &all).expect("removal");
    }
    // One for each slot.
    plane.set_rules(&rules()).expect("setting rules");
    plane.set_rules(&rules()).expect("setting rules");
    assert_eq!(held(&mut replay), (0, 0, 0, 0), "all was taken back");
}

/// What the kernel's tables hold: entries of the hash table and of the trie,
/// bits, and what the control word says of it.
fn held(replay: &mut Replay) -> (usize, usize, u32, u64) {
    let ebpf = &replay.program.instance().ebpf;
    let map = |name| ebpf.map(name).expect("a map");
    let exact: HashMap<&MapData, ExactKey, Listing> =
        map("LISTS_EXACT").try_into().expect("its type");
    let prefixes: LpmTrie<&MapData, [u32; 4], Listing> =
        map("LISTS_PREFIX").try_into().expect("its type");
    let words: Array<&MapData, u64> = map("LISTED").try_into().expect("its type");
    let control: Array<&MapData, Control> = map("CONTROL").try_into().expect("its type");
    let bits = |word| words.get(&word, 0).expect("a word").count_ones();
    let control = control.get(&0, 0).expect("the word");
    (exact.keys().count(), prefixes.keys().count(), (0..WORDS).map(bits).sum(), control.lists)
}
