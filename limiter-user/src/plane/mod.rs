//! The data plane: the loaded program, its maps, its links, its pins.
//!
//! Each interface has a load of the program of its own, with counters of its
//! own, so that counting per interface costs a packet nothing. All loads share
//! the sources, the rule sets and the control word through their pins.

mod adopt;
mod attach;
mod listed;
mod load;
mod pins;
mod reports;
mod rules;
mod samples;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{Map, MapData, MapError, PerCpuArray, PerCpuHashMap, PerCpuValues},
    programs::{Xdp, links::FdLink},
};
use limiter_common::{
    bucket::Bucket,
    control::Live,
    lists::Listing,
    sample::Pace,
    source::{Key4, Key6, Seed, Total},
    stats::{self, Counter, Row},
    verdict::{Reason, Verdict},
};

pub use self::{
    adopt::Start,
    attach::{Mode, Wish},
    reports::Reports,
    samples::Samples,
};
pub(crate) use self::{
    attach::program_name,
    pins::{LinkPin, LoadPins, Stage, Survey, require_bpf_file_system, survey},
};
use self::{listed::Listed, pins::Pins, rules::Rules};
use crate::{
    compiled::Compiled,
    error::{Error, Result},
    lists::{List, Lists, Statement},
    object,
    prefix::Prefix,
    sizing::Sizing,
    state::State,
};

/// Name of the program in the object.
pub const PROGRAM: &str = "limiterd";

/// Interfaces that can be added while it runs, unless the operator says
/// otherwise: each costs memory for its counters.
pub const DEFAULT_SPARES: u32 = 1;

/// Samples of each verdict and reason per second, unless the operator says
/// otherwise.
pub const DEFAULT_SAMPLES: u32 = 2000;

/// What to load and where to pin it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory on a BPF file system; made if absent.
    pub pin_dir: PathBuf,
    /// Names of the interfaces; loads that are only run by tests may name
    /// interfaces that are not there.
    pub interfaces: Vec<String>,
    /// Interfaces that can be added later.
    pub spares: u32,
    /// Sizes of the maps.
    pub sizing: Sizing,
    /// Samples of each verdict and reason that are aimed at, per second on the
    /// whole host; 0 for none.
    pub samples: u32,
    /// What tests fix, so that a run can be repeated.
    pub fixed: Option<Fixed>,
}

/// A load in which nothing is left to chance: the program's clock stands still
/// until the map `CLOCK` is set.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    /// For hashes, instead of random numbers.
    pub seed: Seed,
}

/// The program as loaded for one interface.
pub struct Instance {
    /// Name of the interface; none while it is spare.
    pub interface: Option<String>,
    /// The object: program and maps.
    pub ebpf: Ebpf,
    counters: PerCpuArray<MapData, Row>,
    attachment: Option<Attachment>,
}

/// Where an instance is attached.
#[derive(Debug)]
struct Attachment {
    /// Index of the interface.
    index: u32,
    mode: Mode,
    program_id: u32,
    /// Holds the program on the interface while it is open (or pinned).
    _link: FdLink,
}

/// An attached instance, for status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Number of the instance.
    pub number: usize,
    /// Name of the interface.
    pub name: String,
    /// Its index when it was attached.
    pub index: u32,
    /// Where in the stack the program runs.
    pub mode: Mode,
    /// Kernel's number of the program.
    pub program_id: u32,
    /// Whether its link is pinned, so that it outlives the daemon.
    pub pinned: bool,
}

/// Packets and bytes under one (policy, verdict, reason) of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Index of the policy, or [`stats::NO_POLICY`].
    pub policy: u32,
    /// What happened to them.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// How many.
    pub counter: Counter,
}

/// Everything of ours in the kernel.
pub struct Plane {
    instances: Vec<Instance>,
    rules: Rules,
    lists: Lists<Listed>,
    seed: Seed,
    pins: Pins,
    sizing: Sizing,
    /// Counters of an earlier daemon, until they are carried over.
    former: Vec<PerCpuArray<MapData, Row>>,
}

impl Plane {
    /// Loads the program once for each interface, with these rules in force,
    /// and attaches nothing.
    ///
    /// # Errors
    /// As [`Start::take`], [`Start::look`] and [`Plane::begin`].
    pub fn load(options: &Options, rules: &Compiled) -> Result<Self> {
        let state = State::default();
        let start = Start::take(&options.pin_dir)?.look(&state)?;
        let mut plane = Self::begin(start, options, &state)?;
        plane.set_rules(rules)?;
        Ok(plane)
    }

    /// Loads the program once for each interface, over the maps of an earlier
    /// load if they can be used, with the rules that are in them, and attaches
    /// nothing. The lists hold what is remembered of them.
    ///
    /// # Errors
    /// No object in this build, or the kernel refuses; nothing of the load is
    /// then left.
    pub fn begin(start: Start, options: &Options, state: &State) -> Result<Self> {
        let (object, seed) = match (options.fixed, start.load()) {
            (Some(fixed), _) => (object::TEST, fixed.seed),
            (None, Some(load)) => (object::LIMITER, load.seed),
            (None, None) => (object::LIMITER, seed()),
        };
        let before = start.load().map_or(&[][..], |load| &load.interfaces);
        let interfaces = numbered(before, &options.interfaces, options.spares);
        if options.interfaces.is_empty() {
            return Err(Error::failed("no interface is named"));
        }
        start.stage_maps(options.sizing.max_sources)?;
        let former = start.former_counters()?;
        let is_adopted = start.load().is_some();
        let pins = start.pins;
        let staging = pins.staging();
        let online = aya::util::online_cpus().map_or(options.sizing.cpus, |online| {
            u32::try_from(online.len()).unwrap_or(options.sizing.cpus)
        });
        let pace = Pace::new(options.samples, online, options.sizing.tick_ns);
        let instances = (0u32..)
            .zip(interfaces)
            .map(|(number, interface)| {
                load::instance(interface, number, &staging, options.sizing, seed, pace, object)
            })
            .collect::<Result<Vec<_>>>()?;
        let last = state.rules.iter().map(|rules| rules.generation).max().unwrap_or_default();
        let mut rules = Rules::open(&staging, last)?;
        if is_adopted {
            rules.end_trial();
        }
        let said = |list: &BTreeMap<Prefix, Statement>| {
            list.iter().map(|(prefix, it)| (*prefix, it.clone())).collect()
        };
        let (allowed, banned) = (said(&state.allowed), said(&state.banned));
        let lists = listed::adopt(&staging, seed, allowed, banned, &mut rules)?;
        Ok(Self { instances, rules, lists, seed, pins, sizing: options.sizing, former })
    }

    /// Attaches every instance, or none: takes over links that an earlier
    /// daemon left pinned, and makes those that are missing.
    ///
    /// # Errors
    /// An interface is missing, taken, or cannot do what is wished; links that
    /// were made for this call are gone again.
    pub fn attach(&mut self, wish: Wish) -> Result<()> {
        attach::all(&mut self.instances, &self.pins, wish)
    }

    /// Makes the pins of this load the ones that the next daemon finds.
    ///
    /// # Errors
    /// The pins cannot be put in place.
    pub fn publish(&mut self) -> Result<()> {
        self.pins.publish()
    }

    /// What counters of an earlier daemon had counted that are used no more, by
    /// verdict and reason. To be called when its programs run no more.
    ///
    /// # Errors
    /// The kernel refuses a map access.
    pub fn carry_over(&mut self) -> Result<Vec<Count>> {
        rules::wait_for_packets_in_flight();
        let mut counts = Vec::new();
        for counters in std::mem::take(&mut self.former) {
            for policy in 0..=stats::NO_POLICY {
                count(&counters, policy, &mut counts)?;
            }
        }
        Ok(counts)
    }

    /// Number of the instance for an interface: the one that it has, or a spare
    /// one.
    ///
    /// # Errors
    /// There is none.
    pub fn number_for(&self, name: &str) -> Result<usize> {
        let of = |wanted: Option<&str>| self.names().position(|it| it == wanted);
        of(Some(name)).or_else(|| of(None)).ok_or_else(|| {
            Error::failed(format!("there is no room for {name}"))
                .hint("name it at the start; a restart leaves no gap")
        })
    }

    /// Attaches an instance to an interface while the others run.
    ///
    /// # Errors
    /// As [`Plane::attach`]; nothing has changed then.
    pub fn attach_to(&mut self, number: usize, name: &str, wish: Wish) -> Result<()> {
        let instance = self.instances.get_mut(number).ok_or_else(no_such_instance)?;
        attach::one(instance, &self.pins, name, wish)
    }

    /// Takes the protection off an interface; its instance is spare then. Says
    /// what was counted there; the counters stay until they are cleared.
    ///
    /// # Errors
    /// There is no such instance, or the kernel refuses.
    pub fn detach_from(&mut self, number: usize) -> Result<Vec<Count>> {
        let instance = self.instances.get_mut(number).ok_or_else(no_such_instance)?;
        if let Some(name) = &instance.interface {
            self.pins.drop_link(name)?;
        }
        (instance.interface, instance.attachment) = (None, None);
        rules::wait_for_packets_in_flight();
        let mut counts = Vec::new();
        for policy in 0..=stats::NO_POLICY {
            count(&instance.counters, policy, &mut counts)?;
        }
        Ok(counts)
    }

    /// Clears these counters of a spare instance.
    ///
    /// # Errors
    /// The kernel refuses a map access.
    pub fn clear(&mut self, number: usize, counts: &[Count]) -> Result<()> {
        let instance = self.instances.get_mut(number).ok_or_else(no_such_instance)?;
        for it in counts {
            let row = stats::row(it.policy, it.verdict, it.reason);
            let zero = vec![Row::default(); self.sizing.cpus as usize];
            let zero = PerCpuValues::try_from(zero)
                .map_err(|error| Error::failed(format!("cannot clear the counters: {error}")))?;
            instance.counters.set(row, zero, 0).map_err(|error| unreadable(&error))?;
        }
        Ok(())
    }

    /// The kernel's number of the map by which this load is known.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn control_id(&self) -> Result<u32> {
        self.rules.control_id()
    }

    /// Whether a rule set is live.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.generation() > 0
    }

    /// Numbers of the live rule set and of the other one.
    #[must_use]
    pub fn generations(&self) -> [u64; 2] {
        self.rules.generations()
    }

    /// Number that the next rule set gets.
    #[must_use]
    pub const fn next_generation(&self) -> u64 {
        self.rules.next()
    }

    /// Where the instances are attached.
    pub fn attached(&self) -> impl Iterator<Item = Attached> + '_ {
        self.instances.iter().enumerate().filter_map(|(number, instance)| {
            let (name, attachment) =
                instance.interface.as_ref().zip(instance.attachment.as_ref())?;
            Some(Attached {
                number,
                name: name.clone(),
                index: attachment.index,
                mode: attachment.mode,
                program_id: attachment.program_id,
                pinned: self.pins.holds_link(name),
            })
        })
    }

    /// Makes these rules the ones that the next packet sees, as one store.
    ///
    /// # Errors
    /// The kernel refuses a map access; the rules before then stay in force.
    pub fn set_rules(&mut self, rules: &Compiled) -> Result<()> {
        self.put_rules(rules, None)
    }

    /// The same, but the rules before come back after that time unless these
    /// are confirmed; the packet path itself sees to that.
    ///
    /// # Errors
    /// As [`Plane::set_rules`].
    pub fn try_rules(&mut self, rules: &Compiled, time: Duration) -> Result<()> {
        self.put_rules(rules, Some(time))
    }

    fn put_rules(&mut self, rules: &Compiled, time: Option<Duration>) -> Result<()> {
        let slot = self.rules.idle_slot();
        self.rules.write(slot, rules)?;
        self.lists.configure(slot, &rules.configured)?;
        self.lists.tables().publish(&mut self.rules);
        let deadline = time.map(|time| {
            let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            rules::coarse_ns().saturating_add(time).min((1 << 62) - 1)
        });
        self.rules.go_live(slot, deadline);
        Ok(())
    }

    /// Number of the live rule set, counted from the load.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.rules.generation()
    }

    /// Which rules are live.
    #[must_use]
    pub fn live(&self) -> Live {
        self.rules.live()
    }

    /// How long the live rules still wait to be confirmed, if they do.
    #[must_use]
    pub fn unconfirmed_for(&self) -> Option<Duration> {
        let deadline = self.rules.live().deadline_ns?;
        Some(Duration::from_nanos(deadline.saturating_sub(rules::coarse_ns())))
    }

    /// Keeps the live rules, whether they wait to be confirmed or not.
    pub fn confirm(&mut self) {
        let live = self.rules.live();
        self.rules.go_live(live.slot, None);
    }

    /// Makes the rules before the live ones live again, if these wait to be
    /// confirmed.
    pub fn roll_back(&mut self) {
        let live = self.rules.live();
        if live.deadline_ns.is_some() {
            self.rules.go_live(live.slot ^ 1, None);
        }
    }

    /// Makes it final that nobody has confirmed in time.
    pub fn settle(&mut self) {
        let live = self.rules.live();
        self.rules.go_live(live.slot, live.deadline_ns);
    }

    /// Names of the interfaces by their number; none where one is spare.
    pub fn names(&self) -> impl Iterator<Item = Option<&str>> {
        self.instances.iter().map(|instance| instance.interface.as_deref())
    }

    /// The same as text, empty where one is spare.
    #[must_use]
    pub fn interfaces(&self) -> Vec<String> {
        self.names().map(|name| name.unwrap_or_default().to_owned()).collect()
    }

    /// The numbers that hashes of this load begin with.
    #[must_use]
    pub const fn seed(&self) -> Seed {
        self.seed
    }

    /// A source's bucket on each CPU.
    ///
    /// # Errors
    /// The kernel refuses a map access; likewise below.
    pub fn bucket4(&self, key: &Key4) -> Result<Option<Vec<Bucket>>> {
        let map: PerCpuHashMap<&MapData, Key4, Bucket> = self.source_map("SOURCES4")?;
        found(map.get(key, 0))
    }

    /// The same for IPv6.
    ///
    /// # Errors
    /// As above.
    pub fn bucket6(&self, key: &Key6) -> Result<Option<Vec<Bucket>>> {
        let map: PerCpuHashMap<&MapData, Key6, Bucket> = self.source_map("SOURCES6")?;
        found(map.get(key, 0))
    }

    /// A bucket that all sources share, on each CPU.
    ///
    /// # Errors
    /// As above.
    pub fn total(&self, key: Total) -> Result<Vec<Bucket>> {
        let map: PerCpuArray<&MapData, Bucket> = self.source_map("TOTALS")?;
        Ok(found(map.get(&key.0, 0))?.unwrap_or_default())
    }

    fn source_map<'a, M: TryFrom<&'a Map, Error = MapError>>(&'a self, name: &str) -> Result<M> {
        let map = self.instances.first().and_then(|instance| instance.ebpf.map(name));
        let map = map.ok_or_else(|| Error::failed(format!("the map {name} is not loaded")))?;
        M::try_from(map).map_err(|error| unreadable(&error))
    }

    /// What is said about a prefix and about those around it, the narrowest
    /// first.
    #[must_use]
    pub fn around(&self, prefix: Prefix) -> Vec<(Prefix, Listing)> {
        self.lists.around(prefix)
    }

    /// What was said at run time about a prefix on a list.
    #[must_use]
    pub fn statement(&self, list: List, prefix: Prefix) -> Option<&Statement> {
        self.lists.statement(list, prefix)
    }

    /// What was said at run time on one list, by prefix.
    pub fn statements(&self, list: List) -> impl Iterator<Item = (Prefix, &Statement)> {
        self.lists.statements(list)
    }

    /// Says this about prefixes on a list, all or none.
    ///
    /// # Errors
    /// As [`Lists::add`].
    pub fn add(&mut self, list: List, statements: Vec<(Prefix, Statement)>) -> Result<()> {
        let result = self.lists.add(list, statements);
        self.lists.tables().publish(&mut self.rules);
        result
    }

    /// Says no more about prefixes on a list, all or none.
    ///
    /// # Errors
    /// As [`Lists::remove`].
    pub fn remove(&mut self, list: List, prefixes: &[Prefix]) -> Result<()> {
        let result = self.lists.remove(list, prefixes);
        self.lists.tables().publish(&mut self.rules);
        result
    }

    /// Forgets what has ended; says how much.
    ///
    /// # Errors
    /// As [`Lists::expire`].
    pub fn expire(&mut self) -> Result<usize> {
        let result = self.lists.expire(boot_ns());
        self.lists.tables().publish(&mut self.rules);
        result
    }

    /// The sizes of this load.
    #[must_use]
    pub const fn sizing(&self) -> Sizing {
        self.sizing
    }

    /// The loads, one for each interface.
    pub fn instances(&mut self) -> &mut [Instance] {
        &mut self.instances
    }

    /// What was counted since the load on one interface in these rows and
    /// under no policy. Those without a packet are left out.
    ///
    /// # Errors
    /// The kernel refuses a map access.
    pub fn counts(&self, interface: usize, rows: impl Iterator<Item = u32>) -> Result<Vec<Count>> {
        let instance = self.instances.get(interface).ok_or_else(no_such_instance)?;
        let mut counts = Vec::new();
        for policy in rows.chain([stats::NO_POLICY]) {
            count(&instance.counters, policy, &mut counts)?;
        }
        Ok(counts)
    }

    /// Writes what the programs report of trouble to the log, for as long as
    /// the returned value lives. Needs a Tokio runtime.
    pub fn forward_reports(&mut self) -> Reports {
        Reports::forward(self.instances.iter_mut().map(|instance| &mut instance.ebpf))
    }

    /// Takes the protection off and removes every pin.
    ///
    /// # Errors
    /// A pin cannot be removed.
    pub fn detach(self) -> Result<()> {
        self.pins.remove()
    }
}

impl Instance {
    /// The program.
    ///
    /// # Errors
    /// Never: loading has found it.
    pub fn program(&mut self) -> Result<&mut Xdp> {
        load::program(&mut self.ebpf)
    }
}

/// Removes every link and pin under a pin directory. Says how many interfaces
/// were protected. Nothing there is no error.
///
/// # Errors
/// A daemon still holds the directory, or a pin cannot be removed.
pub fn remove_pins(pin_dir: &Path) -> Result<usize> {
    pins::remove_all(pin_dir)
}

fn no_such_instance() -> Error {
    Error::failed("there is no such instance")
}

/// Adds what is counted under a policy, over all CPUs.
fn count(counters: &PerCpuArray<MapData, Row>, policy: u32, counts: &mut Vec<Count>) -> Result<()> {
    for (row, verdict, reason) in stats::rows(policy) {
        let values = counters.get(&row, 0).map_err(|error| {
            Error::failed(format!("cannot read the counters: {}", chain(&error)))
        })?;
        let counters = values.iter().map(|row| row.counter);
        let counter = counters.fold(Counter::default(), |sum, it| Counter {
            packets: sum.packets + it.packets,
            bytes: sum.bytes + it.bytes,
        });
        if counter != Counter::default() {
            counts.push(Count { policy, verdict, reason, counter });
        }
    }
    Ok(())
}

/// The interfaces by their number: each keeps the one that it had, and some are
/// spare.
fn numbered(before: &[Option<String>], wished: &[String], spares: u32) -> Vec<Option<String>> {
    let is_wished = |name: &String| wished.contains(name);
    let mut numbered: Vec<_> = before.iter().map(|name| name.clone().filter(is_wished)).collect();
    for name in wished {
        if numbered.contains(&Some(name.clone())) {
            continue;
        }
        match numbered.iter_mut().find(|it| it.is_none()) {
            Some(free) => *free = Some(name.clone()),
            None => numbered.push(Some(name.clone())),
        }
    }
    let most = wished.len() + spares as usize;
    let is_spare = |it: &Option<String>| it.is_none();
    while numbered.len() > most && numbered.last().is_some_and(is_spare) {
        numbered.pop();
    }
    numbered.resize(numbered.len().max(most), None);
    numbered
}

/// What is there, or that it is not.
fn found(
    result: std::result::Result<PerCpuValues<Bucket>, MapError>,
) -> Result<Option<Vec<Bucket>>> {
    match result {
        Ok(values) => Ok(Some(values.to_vec())),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(unreadable(&error)),
    }
}

fn unreadable(error: &MapError) -> Error {
    Error::failed(format!("cannot read the buckets in the kernel: {}", chain(error)))
}

/// Nanoseconds of the clock of the buckets.
#[must_use]
pub fn monotonic_ns() -> u64 {
    rules::nanoseconds(rustix::time::ClockId::Monotonic)
}

/// Nanoseconds since the boot, time asleep included: the clock of the lists.
#[must_use]
pub fn boot_ns() -> u64 {
    rules::nanoseconds(rustix::time::ClockId::Boottime)
}

/// Numbers that nobody outside can know.
fn seed() -> Seed {
    let mut bytes = [0; size_of::<Seed>()];
    // Short only before the kernel has any entropy, and then not for long.
    while rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        != Ok(bytes.len())
    {}
    let (first, second) = bytes.split_at(size_of::<u64>());
    [first, second].map(|half| half.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

/// The number of the system's error at the bottom of an error.
pub(crate) fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let io = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    let netlink = error.downcast_ref::<aya::sys::NetlinkError>();
    io.or_else(|| netlink?.raw_os_error()).or_else(|| errno(error.source()?))
}

/// An error with what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
