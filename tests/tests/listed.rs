//! Who is allowed, banned and denied: the tables, in memory and in the kernel,
//! against a plain list of statements.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use fastrand::Rng;
use limiter_common::{
    lists::{Contents, ExactKey, FOREVER, Listing},
    policy::Ruleset,
    verdict::Reason,
};
use limiter_tests::{
    cases::wide_gate,
    program::cpus,
    replay::{MOST, Packet, Replay},
    sandbox,
    wire::{Ipv4, Ipv6, Udp},
};
use limiter_user::{
    compiled::{Compiled, Configured},
    error::{Error, Result},
    lists::{List, Lists, Statement, Tables},
    machine::{Listed, Machine},
    prefix::Prefix,
};

const SEED: [u64; 2] = [0x1234_5678, 0x9abc_def0];
const LISTS: [List; 2] = [List::Allow, List::Ban];
const STEPS: usize = 400;

/// What was said, one thing after another.
#[derive(Clone, Default)]
struct Model {
    said: BTreeMap<(bool, Prefix), u64>,
    configured: [BTreeMap<Prefix, Configured>; 2],
}

impl Model {
    /// What becomes of a packet at a time, under the rules in a slot.
    fn reason(&self, address: IpAddr, slot: usize, now: u64) -> Option<Reason> {
        let said = |is_ban: bool| {
            self.said.iter().any(|((ban, prefix), until)| {
                *ban == is_ban
                    && prefix.contains_address(address)
                    && (*until == FOREVER || now < *until)
            })
        };
        let configured = |what: fn(&Configured) -> bool| {
            let mut all = self.configured[slot].iter();
            all.any(|(prefix, said)| prefix.contains_address(address) && what(said))
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
}

/// Addresses that lie close together, of both families, some of them mapped.
struct World(Vec<IpAddr>);

impl World {
    fn new(rng: &mut Rng) -> Self {
        let four = rng.u32(..);
        let six = u128::from(rng.u64(..)) << 64 | u128::from(rng.u64(..));
        let address = |n: u32| -> IpAddr {
            let four = four ^ (rng.u32(..) >> rng.u32(..32));
            match n % 3 {
                0 => Ipv4Addr::from(four).into(),
                1 => Ipv4Addr::from(four).to_ipv6_mapped().into(),
                _ => {
                    Ipv6Addr::from(six ^ ((u128::from(rng.u64(..)) << 64) >> rng.u32(..128))).into()
                }
            }
        };
        Self((0..30).map(address).collect())
    }

    fn address(&self, rng: &mut Rng) -> IpAddr {
        let bit = rng.u32(..128);
        match (self.0[rng.usize(..self.0.len())], rng.bool()) {
            (address, true) => address,
            (IpAddr::V4(address), _) => Ipv4Addr::from(u32::from(address) ^ 1 << (bit % 32)).into(),
            (IpAddr::V6(address), _) => Ipv6Addr::from(u128::from(address) ^ 1 << bit).into(),
        }
    }

    fn prefix(&self, rng: &mut Rng) -> Prefix {
        let address = self.0[rng.usize(..self.0.len())];
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let length = match rng.u8(..8) {
            0 => longest,
            1 | 2 => 64,
            3 => rng.u8(..4),
            4 => rng.u8(76..=100),
            _ => rng.u8(..=longest),
        };
        Prefix::new(address, length)
    }
}

/// What happens next.
enum Step {
    Add(List, Vec<(Prefix, Statement)>),
    Remove(List, Vec<Prefix>),
    Configure(usize, BTreeMap<Prefix, Configured>),
}

impl Step {
    fn random(rng: &mut Rng, world: &World, model: &Model, now: u64) -> Self {
        let list = LISTS[rng.usize(..2)];
        let count = if rng.u8(..5) == 0 { rng.usize(1..20) } else { 1 };
        match rng.u8(..8) {
            0 => {
                let said = |rng: &mut Rng| Configured { allow: rng.u8(..3) == 0, deny: rng.bool() };
                let prefixes = (0..rng.usize(..6)).map(|_| (world.prefix(rng), said(rng)));
                let mut prefixes: BTreeMap<_, _> = prefixes.collect();
                prefixes.retain(|_, said| *said != Configured::default());
                Self::Configure(rng.usize(..2), prefixes)
            }
            1..=3 => {
                let is_ban = list == List::Ban;
                let of_list = model.said.keys().filter(|(ban, _)| *ban == is_ban);
                let mut prefixes: Vec<_> = of_list.map(|(_, prefix)| *prefix).collect();
                rng.shuffle(&mut prefixes);
                prefixes.truncate(count + rng.usize(..3));
                Self::Remove(list, prefixes)
            }
            _ => {
                let statement = |_| {
                    let until = if rng.bool() { FOREVER } else { now + rng.u64(1..1000) };
                    (world.prefix(rng), Statement { until, created: 0, reason: None })
                };
                Self::Add(list, (0..count).map(statement).collect())
            }
        }
    }

    fn tell(&self, model: &mut Model) {
        match self {
            Self::Add(list, statements) => {
                for (prefix, statement) in statements {
                    model.said.insert((*list == List::Ban, *prefix), statement.until);
                }
            }
            Self::Remove(list, prefixes) => {
                for prefix in prefixes {
                    model.said.remove(&(*list == List::Ban, *prefix));
                }
            }
            Self::Configure(slot, said) => model.configured[*slot].clone_from(said),
        }
    }

    fn apply<T: Tables>(self, lists: &mut Lists<T>) -> Result<()> {
        match self {
            Self::Add(list, statements) => lists.add(list, statements),
            Self::Remove(list, prefixes) => lists.remove(list, &prefixes),
            Self::Configure(slot, said) => {
                lists.configure(u32::try_from(slot).expect("a slot"), &said)
            }
        }
    }
}

/// Tables that remember what is in them, and may fail.
#[derive(Default)]
struct Recorder {
    tables: Listed,
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
        self.contents = contents;
        self.tables.set_contents(contents)
    }
}

fn rules() -> Compiled {
    Ruleset::new(false, wide_gate(cpus())).into()
}

fn frame(source: IpAddr) -> Vec<u8> {
    let body = Udp::new(4000, 9).payload(18);
    match source {
        IpAddr::V4(_) => Ipv4::new(&source.to_string(), "192.0.2.1").next(17, &body).build(),
        IpAddr::V6(_) => Ipv6::new(&source.to_string(), "2001:db8::1").next(17, &body).build(),
    }
}

fn seed() -> u64 {
    let seed = std::env::var("LIMITER_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("LIMITER_SEED={seed}");
    seed
}

#[test]
fn the_core_knows_what_was_said() {
    let mut rng = Rng::with_seed(seed());
    let mut met = BTreeSet::new();
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
            step.tell(&mut model);
            let failed = step.apply(&mut lists).is_err();
            lists.tables_mut().left = None;
            if failed {
                model = told;
                assert_eq!(lists.tables().state(), before, "a failure left something behind");
            }
            if rng.u8(..10) == 0 {
                let ended = |until: &u64| *until != FOREVER && *until <= now;
                model.said.retain(|_, until| !ended(until));
                lists.expire(now).expect("expiry");
            }
            let slot = rng.usize(..2);
            machine.set_rules(rules(), u32::try_from(slot).expect("a slot"));
            std::mem::swap(machine.listed(), &mut lists.tables_mut().tables);
            for _ in 0..20 {
                let source = world.address(&mut rng);
                let found = machine.receive(0, now, &frame(source)).reason;
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
    assert_eq!(met, BTreeSet::from(["allowed", "banned", "denied", "unlimited"]));
}

#[test]
fn the_program_knows_what_was_said() {
    sandbox::enter();
    sandbox::pin_to_cpu(cpus() as usize - 1);
    let steps = if std::env::var_os("LIMITER_QUICK").is_some() { 10 } else { 60 };
    let mut rng = Rng::with_seed(seed());
    let mut replay = Replay::load(rules(), 0, 16_384, SEED);
    let world = World::new(&mut rng);
    let (mut model, mut now) = (Model::default(), 1000);
    let mut expected = BTreeMap::<&str, u64>::new();
    for _ in 0..steps {
        now += rng.u64(..100);
        let plane = replay.program.plane();
        for _ in 0..5 {
            match Step::random(&mut rng, &world, &model, now) {
                Step::Configure(_, said) => {
                    let compiled = Compiled { configured: said.clone(), ..rules() };
                    plane.set_rules(&compiled).expect("setting rules");
                    model.configured[plane.live().slot as usize] = said;
                }
                step => {
                    step.tell(&mut model);
                    match step {
                        Step::Add(list, statements) => plane.add(list, statements).expect("room"),
                        Step::Remove(list, prefixes) => {
                            plane.remove(list, &prefixes).expect("removal");
                        }
                        Step::Configure(..) => {}
                    }
                }
            }
        }
        let slot = plane.live().slot as usize;
        let sources: Vec<_> = (0..MOST).map(|_| world.address(&mut rng)).collect();
        for source in &sources {
            let reason = model.reason(*source, slot, now).unwrap_or(Reason::Unlimited);
            *expected.entry(reason.name()).or_default() += 1;
        }
        let packets: Vec<_> =
            sources.iter().map(|source| Packet { now_ns: now, bytes: frame(*source) }).collect();
        replay.play(&packets);
        let found: BTreeMap<_, _> = replay
            .program
            .counts()
            .into_iter()
            .map(|count| (count.reason.name(), count.counter.packets))
            .collect();
        assert_eq!(found, expected);
    }
    println!("{expected:?}");
    assert_eq!(expected.len(), 4, "{expected:?}");
}
