//! What outlives the daemon on disk: lists, the rules in force with every
//! change made at run time, and what it takes to use the maps of the daemon
//! before.
//!
//! One file, `state`, of one record a line: the CRC-32 of the record in eight
//! hexadecimal digits, a space, the record as JSON. A change is one line more,
//! written before the kernel is told; a start writes the file anew beside the
//! old one and renames it. So a record that was cut off is a change that nobody
//! was told to be done.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{ErrorKind, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread::JoinHandle,
    time::{SystemTime, UNIX_EPOCH},
};

use limiter_common::{
    lists::FOREVER,
    source::Seed,
    stats::Counter,
    verdict::{Reason, Verdict},
};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Kind, Result},
    lists::{List, Statement},
    numbers::Numbers,
    plane::{self, Count},
    prefix::Prefix,
};

/// Version of the records.
const FORMAT: u32 = 1;
/// Bytes after which the file is written anew.
const LONG: u64 = 16 << 20;
/// Rule sets that are kept: the live one, the one before, and one that was not
/// put in force any more.
const RULES_KEPT: usize = 4;

/// A load of the program: what it takes to load it again over the same maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// The kernel's number of the map `CONTROL`, by which the load is known.
    pub control: u32,
    /// What its hashes begin with.
    pub seed: Seed,
    /// The interfaces by their number; none where a number is spare.
    pub interfaces: Vec<Option<String>>,
    /// Those that it was started for, before any was added or taken off at run
    /// time.
    pub started_for: Vec<String>,
}

/// A rule set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Its number.
    pub generation: u64,
    /// The configuration, as TOML.
    pub config: String,
    /// CRC-32 of what it derives from: the text of the file, or of the command
    /// line.
    pub base: u32,
    /// Whether it waits to be confirmed.
    pub trial: bool,
    /// Rows of counters of its policies.
    pub numbers: Numbers,
    /// What rows had counted when they changed hands, by interface.
    pub baselines: Vec<(usize, Sum)>,
}

/// What was counted under one (policy, verdict, reason).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Row of the policy.
    pub policy: u32,
    /// Number of the verdict.
    pub verdict: u32,
    /// Number of the reason.
    pub reason: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl From<Count> for Sum {
    fn from(count: Count) -> Self {
        Self {
            policy: count.policy,
            verdict: count.verdict as u32,
            reason: count.reason as u32,
            packets: count.counter.packets,
            bytes: count.counter.bytes,
        }
    }
}

impl Sum {
    /// As it was counted; none if there is no such verdict or reason.
    #[must_use]
    pub fn count(self) -> Option<Count> {
        let verdict = Verdict::ALL.into_iter().find(|it| *it as u32 == self.verdict)?;
        let reason = Reason::ALL.into_iter().find(|it| *it as u32 == self.reason)?;
        let counter = Counter { packets: self.packets, bytes: self.bytes };
        Some(Count { policy: self.policy, verdict, reason, counter })
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    Head {
        format: u32,
        boot: String,
    },
    Load(Load),
    Rules(Rules),
    Confirmed(u64),
    Said {
        list: List,
        entries: Vec<Said>,
    },
    Unsaid {
        list: List,
        prefixes: Vec<Prefix>,
    },
    Carried(Vec<Sum>),
    /// An interface of the last load, by its number, and what is carried from
    /// then on.
    Detached {
        number: usize,
        carried: Vec<Sum>,
    },
}

/// What was said about a prefix.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    prefix: Prefix,
    /// Nanoseconds since the boot of the head; none for ever.
    until: Option<u64>,
    /// The same in milliseconds since 1970, for the boot after.
    ends: Option<u64>,
    created: u64,
    reason: Option<String>,
}

/// All that is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Loads, the last one last.
    pub loads: Vec<Load>,
    /// Rule sets, the last one last.
    pub rules: Vec<Rules>,
    /// What was allowed at run time.
    pub allowed: BTreeMap<Prefix, Statement>,
    /// What was banned at run time.
    pub banned: BTreeMap<Prefix, Statement>,
    /// What interfaces and loads had counted that are no more.
    pub carried: Vec<Sum>,
}

/// Now, by the clocks that ends are told in.
#[derive(Clone, Debug)]
struct Now {
    boot: String,
    boot_ns: u64,
    unix_ms: u64,
}

impl Now {
    fn here() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            boot: boot.trim().to_owned(),
            boot_ns: plane::boot_ns(),
            unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn said(&self, prefix: Prefix, statement: &Statement) -> Said {
        let until = (statement.until != FOREVER).then_some(statement.until);
        let ends = until.map(|until| self.unix_ms + until.saturating_sub(self.boot_ns) / 1_000_000);
        Said { prefix, until, ends, created: statement.created, reason: statement.reason.clone() }
    }

    /// A statement, as of a boot; none if it has ended.
    fn statement(&self, said: Said, boot: &str) -> Option<(Prefix, Statement)> {
        let until = match (said.until, said.ends) {
            (None, _) => FOREVER,
            (Some(until), _) if boot == self.boot => until,
            (Some(_), ends) => {
                let left = ends?.checked_sub(self.unix_ms)?;
                self.boot_ns.saturating_add(left.saturating_mul(1_000_000))
            }
        };
        let ended = until <= self.boot_ns;
        let statement = Statement { until, created: said.created, reason: said.reason };
        (!ended).then_some((said.prefix, statement))
    }
}

impl State {
    /// What was said on a list.
    pub const fn list(&mut self, list: List) -> &mut BTreeMap<Prefix, Statement> {
        match list {
            List::Allow => &mut self.allowed,
            List::Ban => &mut self.banned,
        }
    }

    /// The rules of a generation.
    #[must_use]
    pub fn rules_of(&self, generation: u64) -> Option<&Rules> {
        self.rules.iter().rev().find(|rules| rules.generation == generation)
    }

    /// The last rules that were not on trial.
    #[must_use]
    pub fn last_rules(&self) -> Option<&Rules> {
        self.rules.iter().rev().find(|rules| !rules.trial)
    }

    fn apply(&mut self, record: Record, boot: &mut String, now: &Now) {
        match record {
            Record::Head { boot: of, .. } => *boot = of,
            Record::Load(load) => {
                self.loads.retain(|it| it.control != load.control);
                self.loads.push(load);
            }
            Record::Rules(rules) => {
                self.rules.retain(|it| it.generation != rules.generation);
                self.rules.push(rules);
                let confirmed = self.last_rules().map(|it| it.generation);
                while self.rules.len() > RULES_KEPT {
                    let oldest = self.rules.iter().position(|it| Some(it.generation) != confirmed);
                    self.rules.remove(oldest.unwrap_or_default());
                }
            }
            Record::Confirmed(generation) => {
                let rules = self.rules.iter_mut().filter(|it| it.generation == generation);
                rules.for_each(|rules| rules.trial = false);
            }
            Record::Said { list, entries } => {
                for said in entries {
                    let prefix = said.prefix;
                    match now.statement(said, boot) {
                        Some((prefix, statement)) => self.list(list).insert(prefix, statement),
                        None => self.list(list).remove(&prefix),
                    };
                }
            }
            Record::Unsaid { list, prefixes } => {
                let list = self.list(list);
                prefixes.iter().for_each(|prefix| drop(list.remove(prefix)));
            }
            Record::Carried(sums) => self.carried = sums,
            Record::Detached { number, carried } => {
                let load = self.loads.last_mut();
                if let Some(name) = load.and_then(|load| load.interfaces.get_mut(number)) {
                    *name = None;
                }
                self.carried = carried;
            }
        }
    }

    fn records(&self, now: &Now) -> Vec<Record> {
        let mut records = vec![Record::Head { format: FORMAT, boot: now.boot.clone() }];
        records.extend(self.loads.iter().cloned().map(Record::Load));
        records.extend(self.rules.iter().cloned().map(Record::Rules));
        for (list, said) in [(List::Allow, &self.allowed), (List::Ban, &self.banned)] {
            if !said.is_empty() {
                let entries = said.iter().map(|(prefix, it)| now.said(*prefix, it)).collect();
                records.push(Record::Said { list, entries });
            }
        }
        if !self.carried.is_empty() {
            records.push(Record::Carried(self.carried.clone()));
        }
        records
    }
}

fn line(record: &Record) -> Option<String> {
    let json = serde_json::to_string(record).ok()?;
    Some(format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes())))
}

fn record(line: &str) -> Option<Record> {
    let (sum, json) = line.split_at_checked(8)?;
    let json = json.strip_prefix(' ')?;
    let matches = u32::from_str_radix(sum, 16) == Ok(crc32fast::hash(json.as_bytes()));
    if matches { serde_json::from_str(json).ok() } else { None }
}

/// What was read from a file.
struct Read {
    state: State,
    /// Why the file is to be set aside, if it is.
    damage: Option<String>,
    /// Whether its last record was cut off while it was written: a change that
    /// was not done.
    is_torn: bool,
}

fn read(bytes: &[u8], now: &Now) -> Read {
    let mut state = State::default();
    let mut boot = String::new();
    let (mut bad, mut is_torn) = (0, false);
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    for (at, line) in lines.iter().enumerate() {
        match record(line.trim_end_matches('\n')) {
            Some(Record::Head { format, .. }) if format != FORMAT => {
                let damage = format!("it is of another version of limiterd (format {format})");
                return Read { state: State::default(), damage: Some(damage), is_torn };
            }
            Some(record) => state.apply(record, &mut boot, now),
            None if at + 1 == lines.len() && !line.ends_with('\n') => is_torn = true,
            None => bad += 1,
        }
    }
    let damage = (bad > 0).then(|| format!("{bad} of its {} records cannot be read", lines.len()));
    Read { state, damage, is_torn }
}

/// Where the state is kept.
#[derive(Debug)]
pub struct Store {
    /// None if nothing is to be kept.
    directory: Option<PathBuf>,
    file: Option<File>,
    /// Why what was last written is not on disk, if so.
    problem: Option<String>,
    /// What damage was found at the start, if any.
    set_aside: Option<String>,
    unsynced: bool,
    /// Waits for the disk, so that nobody else has to.
    syncing: Option<JoinHandle<std::io::Result<()>>>,
    /// Bytes that were appended to the file since it was written anew.
    appended: u64,
    _lock: Option<File>,
}

impl Store {
    /// Keeps nothing.
    #[must_use]
    pub const fn nowhere() -> Self {
        Self {
            directory: None,
            file: None,
            problem: None,
            set_aside: None,
            unsynced: false,
            syncing: None,
            appended: 0,
            _lock: None,
        }
    }

    /// Takes a directory, which is made if it is not there, and reads what is
    /// kept in it. A damaged file is set aside, with what can be read of it
    /// kept in force.
    ///
    /// # Errors
    /// It cannot be made or written, or another daemon has it.
    pub fn open(directory: &Path) -> Result<(Self, State)> {
        let failed = |error: std::io::Error| failed(directory, &error);
        match DirBuilder::new().mode(0o700).recursive(true).create(directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let lock = File::open(directory).map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            let path = directory.display();
            Error::failed(format!("another limiterd uses the state directory {path}"))
                .hint("stop it first, or give this one its own --state-dir")
        })?;
        let path = directory.join("state");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(failed(error)),
        };
        let Read { state, damage, is_torn } = read(&bytes, &Now::here());
        let aside = directory.join("state.damaged");
        if damage.is_some() || is_torn {
            fs::write(&aside, &bytes).map_err(failed)?;
        }
        if is_torn {
            tracing::warn!(
                "the last change before the stop was cut off in {} and is not in force; the file \
                 was set aside as {}",
                path.display(),
                aside.display()
            );
        }
        let set_aside = damage.map(|damage| {
            let message = format!(
                "the state in {} is damaged: {damage}; it was set aside as {}, and what could be \
                 read is in force",
                path.display(),
                aside.display()
            );
            tracing::warn!("{message}");
            message
        });
        let mut store = Self {
            directory: Some(directory.to_owned()),
            file: None,
            problem: None,
            set_aside,
            unsynced: false,
            syncing: None,
            appended: 0,
            _lock: Some(lock),
        };
        store.write_anew(&state).map_err(failed)?;
        Ok((store, state))
    }

    /// Puts this in place of all that was kept. What fails is told by
    /// [`Store::problem`], and tried again with the next.
    pub fn rewrite(&mut self, state: &State) {
        self.problem = self.write_anew(state).err().map(|error| error.to_string());
    }

    fn write_anew(&mut self, state: &State) -> std::io::Result<()> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let text: String = state.records(&Now::here()).iter().filter_map(line).collect();
        let (path, new) = (directory.join("state"), directory.join(".state.new"));
        // Of a write that did not end.
        let _ = fs::remove_file(&new);
        let mut file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&new)?;
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&new, &path));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written?;
        self.file = Some(file);
        (self.unsynced, self.appended) = (false, 0);
        Ok(())
    }

    fn append(&mut self, record: &Record) {
        if self.directory.is_none() || self.problem.is_some() {
            return;
        }
        let (Some(line), Some(file)) = (line(record), &mut self.file) else {
            return;
        };
        let before = file.metadata().map(|facts| facts.len());
        match file.write_all(line.as_bytes()) {
            Ok(()) => {
                self.unsynced = true;
                self.appended += line.len() as u64;
            }
            Err(error) => {
                // What is half there would hide what comes after.
                if let Ok(length) = before {
                    let _ = file.set_len(length);
                }
                self.problem = Some(error.to_string());
            }
        }
    }

    /// Notes a load.
    pub fn load(&mut self, load: &Load) {
        self.append(&Record::Load(load.clone()));
    }

    /// Notes a rule set that is about to be put in force.
    pub fn rules(&mut self, rules: Rules) {
        self.append(&Record::Rules(rules));
    }

    /// Notes that a rule set was confirmed.
    pub fn confirmed(&mut self, generation: u64) {
        self.append(&Record::Confirmed(generation));
    }

    /// Notes what is about to be said.
    pub fn said(&mut self, list: List, statements: &[(Prefix, Statement)]) {
        let now = Now::here();
        let entries = statements.iter().map(|(prefix, it)| now.said(*prefix, it)).collect();
        self.append(&Record::Said { list, entries });
    }

    /// Notes what is about to be said no more.
    pub fn unsaid(&mut self, list: List, prefixes: &[Prefix]) {
        self.append(&Record::Unsaid { list, prefixes: prefixes.to_vec() });
    }

    /// Notes what was counted by what is no more.
    pub fn carried(&mut self, sums: &[Sum]) {
        self.append(&Record::Carried(sums.to_vec()));
    }

    /// Notes that an interface is protected no more, and what is carried with
    /// what was counted there.
    pub fn detached(&mut self, number: usize, carried: &[Sum]) {
        self.append(&Record::Detached { number, carried: carried.to_vec() });
    }

    /// Begins to bring to the disk what was noted, and says in
    /// [`Store::problems`] if that failed before.
    pub fn sync(&mut self) {
        if self.syncing.as_ref().is_some_and(|syncing| !syncing.is_finished()) {
            return;
        }
        self.finish();
        let file = self.file.as_ref().filter(|_| self.unsynced);
        let Some(file) = file.and_then(|file| file.try_clone().ok()) else {
            return;
        };
        self.unsynced = false;
        let sync = move || file.sync_data();
        self.syncing = std::thread::Builder::new().name("sync".into()).spawn(sync).ok();
    }

    /// Waits until what was noted is on the disk.
    pub fn finish(&mut self) {
        let ended = self.syncing.take().map(JoinHandle::join);
        if let Some(Ok(Err(error))) = ended {
            self.problem = Some(error.to_string());
        }
    }

    /// Whether the file is to be written anew: the last write failed, or it
    /// has become long.
    #[must_use]
    pub const fn wants_rewrite(&self) -> bool {
        self.problem.is_some() || self.appended > LONG
    }

    /// What is wrong, one sentence each.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let behind = self.problem.as_ref().zip(self.directory.as_ref());
        let behind = behind.map(|(problem, directory)| {
            format!(
                "changes are in force but not saved in {}: {problem}; a restart may lose them",
                directory.display()
            )
        });
        behind.into_iter().chain(self.set_aside.clone())
    }
}

fn failed(directory: &Path, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::PermissionDenied => Kind::Permission,
        _ => Kind::Failed,
    };
    let path = directory.display();
    Error::new(kind, format!("cannot keep the state in {path}: {error}"))
        .hint("make room or make it writable, name another --state-dir, or --state-dir off")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    fn statement(until: u64) -> Statement {
        Statement { until, created: 7, reason: Some("a \"reason\"\nand more".into()) }
    }

    fn rules(generation: u64, trial: bool) -> Rules {
        Rules {
            generation,
            config: "[daemon]\n".into(),
            base: 1,
            trial,
            numbers: Numbers::default(),
            baselines: Vec::new(),
        }
    }

    #[test]
    fn what_was_noted_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below/state-dir");
        let far = plane::boot_ns() + 1_000_000_000_000;
        let (mut store, state) = Store::open(&path).unwrap();
        assert_eq!(state, State::default());
        let load = Load {
            control: 5,
            seed: [u64::MAX, 2],
            interfaces: vec![Some("eth0".into()), None],
            started_for: vec!["eth0".into()],
        };
        store.load(&load);
        store.rules(rules(1, false));
        store.rules(rules(2, true));
        store.said(
            List::Ban,
            &[(prefix("192.0.2.1"), statement(far)), (prefix("2001:db8::/32"), statement(FOREVER))],
        );
        store.said(List::Allow, &[(prefix("10.0.0.0/8"), statement(FOREVER))]);
        store.said(List::Ban, &[(prefix("192.0.2.2"), statement(1))]);
        store.unsaid(List::Allow, &[prefix("10.0.0.0/8")]);
        let sum = Sum { policy: 64, verdict: 1, reason: 3, packets: u64::MAX, bytes: 9 };
        store.carried(&[sum]);
        let Err(error) = Store::open(&path) else { panic!("locked") };
        assert!(error.to_string().contains("another limiterd"), "{error}");
        drop(store);
        for turn in 0..3 {
            let (mut store, state) = Store::open(&path).unwrap();
            assert_eq!(state.loads, std::slice::from_ref(&load));
            assert_eq!(state.last_rules().unwrap().generation, 1 + u64::from(turn > 0));
            assert_eq!(state.banned.len(), 2);
            assert_eq!(state.banned[&prefix("192.0.2.1")], statement(far));
            assert!(state.allowed.is_empty());
            assert_eq!(state.carried, [sum]);
            assert_eq!(store.problems().count(), 0);
            store.confirmed(2);
            store.sync();
            store.finish();
            assert_eq!(store.problems().count(), 0);
        }
    }

    #[test]
    fn a_file_cut_off_anywhere_gives_what_was_before() {
        let now = Now::here();
        let mut whole = String::new();
        let mut states = vec![State::default()];
        let mut state = State::default();
        let mut boot = String::new();
        for n in 0..6u64 {
            let entries = vec![now.said(prefix(&format!("192.0.2.{n}")), &statement(FOREVER))];
            let text = line(&Record::Said { list: List::Ban, entries }).unwrap();
            whole.push_str(&text);
            state.apply(record(text.trim_end()).unwrap(), &mut boot, &now);
            states.push(state.clone());
        }
        for length in 0..=whole.len() {
            let found = read(&whole.as_bytes()[..length], &now);
            assert_eq!(found.damage, None, "{length}");
            let is_whole = length == 0 || whole.as_bytes()[length - 1] == b'\n';
            // Unless it lacks the end of its line only.
            let is_torn = !is_whole && whole.as_bytes().get(length) != Some(&b'\n');
            assert_eq!(found.is_torn, is_torn, "{length}");
            let lines = whole[..length].matches('\n').count();
            // A record is whole also without the end of its line.
            let is_state = states[lines..].iter().take(2).any(|it| *it == found.state);
            assert!(is_state, "{length}");
        }
    }

    #[test]
    fn a_torn_file_is_set_aside_and_is_no_problem() {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(directory.path()).unwrap();
        store.said(List::Ban, &[(prefix("192.0.2.1"), statement(FOREVER))]);
        store.said(List::Ban, &[(prefix("192.0.2.2"), statement(FOREVER))]);
        drop(store);
        let path = directory.path().join("state");
        let bytes = fs::read(&path).unwrap();
        let torn = &bytes[..bytes.len() - 5];
        fs::write(&path, torn).unwrap();
        let (store, state) = Store::open(directory.path()).unwrap();
        assert!(state.banned.keys().eq(&[prefix("192.0.2.1")]));
        assert_eq!(store.problems().count(), 0);
        assert_eq!(fs::read(directory.path().join("state.damaged")).unwrap(), torn);
    }

    #[test]
    fn a_detached_interface_leaves_what_it_counted() {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(directory.path()).unwrap();
        let name = |name: &str| Some(name.to_owned());
        let interfaces = vec![name("eth0"), name("eth1")];
        store.load(&Load { control: 1, seed: [1, 2], interfaces, started_for: Vec::new() });
        let sum = Sum { policy: 64, verdict: 0, reason: 0, packets: 7, bytes: 9 };
        store.detached(1, &[sum]);
        drop(store);
        let (_, state) = Store::open(directory.path()).unwrap();
        assert_eq!(state.loads[0].interfaces, [name("eth0"), None]);
        assert_eq!(state.carried, [sum]);
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_the_rest_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(directory.path()).unwrap();
        for n in 0..3 {
            store.said(List::Ban, &[(prefix(&format!("192.0.2.{n}")), statement(FOREVER))]);
        }
        drop(store);
        let path = directory.path().join("state");
        let mut bytes = fs::read(&path).unwrap();
        let at = String::from_utf8_lossy(&bytes).find("192.0.2.1").unwrap();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let (store, state) = Store::open(directory.path()).unwrap();
        let found: Vec<_> = state.banned.keys().copied().collect();
        assert_eq!(found, [prefix("192.0.2.0"), prefix("192.0.2.2")]);
        let problem = store.problems().next().unwrap();
        assert!(problem.contains("damaged") && problem.contains("1 of its 4"), "{problem}");
        assert_eq!(fs::read(directory.path().join("state.damaged")).unwrap(), bytes);
        drop(store);
        let (store, again) = Store::open(directory.path()).unwrap();
        assert_eq!((again, store.problems().count()), (state, 0));
        drop(store);
        for garbage in [&b"\xff\xfe\x00\n\n"[..], b"deadbeef {}\n", &[0; 4096]] {
            fs::write(&path, garbage).unwrap();
            let (_, state) = Store::open(directory.path()).unwrap();
            assert_eq!(state, State::default());
        }
    }

    #[test]
    fn ends_are_kept_over_a_boot() {
        let before = Now { boot: "one".into(), boot_ns: 50_000_000_000, unix_ms: 1_000_000 };
        let said = || before.said(prefix("192.0.2.1"), &statement(60_000_000_000));
        let same = Now { boot_ns: 55_000_000_000, unix_ms: 0, ..before.clone() };
        assert_eq!(same.statement(said(), "one").unwrap().1.until, 60_000_000_000);
        let after = Now { boot: "two".into(), boot_ns: 1_000_000_000, unix_ms: 1_004_000 };
        assert_eq!(after.statement(said(), "one").unwrap().1.until, 7_000_000_000);
        let late = Now { unix_ms: 1_010_000, ..after.clone() };
        assert_eq!(late.statement(said(), "one"), None);
        let forever = before.said(prefix("192.0.2.1"), &statement(FOREVER));
        assert_eq!(late.statement(forever, "one").unwrap().1.until, FOREVER);
    }

    #[test]
    fn the_last_confirmed_rules_are_never_forgotten() {
        let now = Now::here();
        let mut state = State::default();
        for generation in 1..50 {
            let record = Record::Rules(rules(generation, generation > 3));
            state.apply(record, &mut String::new(), &now);
        }
        assert_eq!(state.last_rules().unwrap().generation, 3);
        assert_eq!(state.rules.len(), RULES_KEPT);
        assert!(state.rules_of(49).is_some());
    }

    #[test]
    fn a_place_that_cannot_be_written_is_told() {
        let Err(error) = Store::open(Path::new("/proc/no-such")) else { panic!("writable") };
        assert!(error.to_string().contains("--state-dir"), "{error}");
    }
}
