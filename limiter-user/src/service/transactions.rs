//! Configurations, tried, kept and taken back.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{Caller, InForce, Service};
use crate::{
    api::{self, SCHEMA_VERSION},
    bytes::Amount,
    config::{self, Config, Difference, Host, Report},
    error::{Error, Kind, Result},
    gate::Gate,
    plane,
    policies::Policies,
};

/// The longest time that a change may wait to be confirmed.
const LONGEST_CONFIRM: Duration = Duration::from_secs(24 * 3600);

/// How the daemon was started.
#[derive(Clone, Debug, Default)]
pub struct Startup {
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// What the command line says in its place.
    pub overrides: Overrides,
    /// Whether nothing is dropped, whatever a policy says.
    pub observe: bool,
    /// Checksum of what the policies at the start derive from.
    pub base: u32,
    /// Whether changes made at run time before the start are dropped.
    pub forget: bool,
}

/// What the command line says in place of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Interfaces to protect, if any.
    pub interfaces: Vec<String>,
    /// How the program is attached.
    pub xdp_mode: Option<config::XdpMode>,
    /// Address of the metrics.
    pub metrics: Option<config::Metrics>,
    /// Sources of each family.
    pub max_sources: Option<u32>,
    /// The same as memory.
    pub memory: Option<Amount>,
    /// What new sources may do.
    pub gate: Gate,
}

impl Overrides {
    /// A configuration as it takes effect at a start.
    #[must_use]
    pub fn over(&self, config: &Config) -> Config {
        let mut config = config.clone();
        if !self.interfaces.is_empty() {
            config.daemon.interfaces.clone_from(&self.interfaces);
        }
        config.daemon.xdp_mode = self.xdp_mode.unwrap_or(config.daemon.xdp_mode);
        config.daemon.metrics = self.metrics.unwrap_or(config.daemon.metrics);
        let sources = &mut config.sources;
        if self.max_sources.is_some() || self.memory.is_some() {
            (sources.max_sources, sources.memory) = (self.max_sources, self.memory);
        }
        config
    }
}

/// A configuration file as it was when it was read.
#[derive(Clone, Debug)]
pub(super) struct ConfigFile {
    path: PathBuf,
    state: Option<FileState>,
}

/// What tells one content of a file from another, also where the file was
/// replaced, or a link on the way to it.
type FileState = (u64, u64, u64, i64, i64);

impl ConfigFile {
    pub(super) fn now(path: &Path) -> Self {
        Self { path: path.to_owned(), state: state(path) }
    }

    fn has_changed(&self) -> bool {
        state(&self.path) != self.state
    }
}

fn state(path: &Path) -> Option<FileState> {
    let facts = fs::metadata(path).ok()?;
    Some((facts.dev(), facts.ino(), facts.size(), facts.mtime(), facts.mtime_nsec()))
}

/// How the last reading of the file ended.
#[derive(Clone, Debug)]
pub(super) struct Reload {
    at: SystemTime,
    problem: Option<String>,
}

/// Checksum of what policies derive from.
#[must_use]
pub fn base_of(text: &str) -> u32 {
    crc32fast::hash(text.as_bytes())
}

/// Reads the text of a configuration.
///
/// # Errors
/// It cannot be read.
pub fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            std::io::ErrorKind::PermissionDenied => Kind::Permission,
            std::io::ErrorKind::InvalidData => Kind::Invalid,
            _ => Kind::Failed,
        };
        Error::new(kind, format!("cannot read the configuration {}: {error}", path.display()))
            .hint("limiterd --print-default-config writes one to begin with")
    })
}

fn parse(text: &str, name: &str) -> Result<(Config, Report)> {
    config::parse(text, name, &Host::here()).map_err(|report| invalid(&report))
}

/// A configuration with errors as one error: the first, and how many more.
fn invalid(report: &Report) -> Error {
    let errors = report.errors();
    let first = report.diagnostics.first();
    let first = first.map(|it| format!("line {}, column {}: {}", it.line, it.column, it.message));
    let more = match errors {
        0 | 1 => String::new(),
        2 => " (and one more error)".into(),
        errors => format!(" (and {} more errors)", errors - 1),
    };
    let message = format!("{} {}{more}", report.file, first.unwrap_or_default());
    Error::new(Kind::Invalid, message).hint("limiterctl config check FILE shows all of them")
}

impl Service {
    /// What would change if this configuration were applied.
    ///
    /// # Errors
    /// Something is wrong with it.
    pub fn diff(&mut self, request: &api::ConfigRequest) -> Result<api::ConfigChanges> {
        self.settle();
        let (config, report) = parse(&request.config, &request.name)?;
        self.compiled(
            &Policies::new(config.clone(), false).with_gate(self.startup.overrides.gate),
        )?;
        Ok(api::ConfigChanges {
            schema_version: SCHEMA_VERSION,
            changes: config::diff(self.in_force.policies.config(), &config),
            warnings: self.warnings(&config, &report),
            generation: self.plane.generation(),
            confirm: self.confirm_state(),
        })
    }

    /// Applies a configuration, for good or until a deadline unless it is
    /// confirmed.
    ///
    /// # Errors
    /// Something is wrong with it, it would lock the caller out, or another
    /// change waits to be confirmed; what was in force then stays.
    pub fn apply(
        &mut self,
        request: &api::ConfigRequest,
        caller: Option<Caller>,
    ) -> Result<api::ConfigChanges> {
        self.settle();
        self.require_none_pending()?;
        let (config, report) = parse(&request.config, &request.name)?;
        let time = request.confirm_seconds.map(Duration::from_secs);
        if time.is_some_and(|time| time.is_zero() || time > LONGEST_CONFIRM) {
            return Err(Error::new(Kind::Invalid, "the time to confirm is out of range")
                .hint("it lies between 1s and 24h"));
        }
        let changes = config::diff(self.in_force.policies.config(), &config);
        let warnings = self.warnings(&config, &report);
        let policies = Policies::new(config, self.startup.observe);
        let policies = policies.with_gate(self.startup.overrides.gate);
        if !request.force {
            self.guard_policies(&policies, &self.compiled(&policies)?, caller)?;
        }
        self.put(policies, time)?;
        Ok(api::ConfigChanges {
            schema_version: SCHEMA_VERSION,
            changes,
            warnings,
            generation: self.plane.generation(),
            confirm: self.confirm_state(),
        })
    }

    /// Reads the configuration file again and applies it; what was in force
    /// stays if something is wrong with it, and status says so.
    ///
    /// # Errors
    /// The daemon has no file, or something is wrong with it, or a change waits
    /// to be confirmed.
    pub fn reload(&mut self) -> Result<Vec<Difference>> {
        let Some(path) = self.startup.file.clone() else {
            return Err(Error::failed("there is no configuration file to read again")
                .hint("start limiterd with --config FILE"));
        };
        let file = ConfigFile::now(&path);
        let result = self.load(&path);
        let problem = result.as_ref().err().map(ToString::to_string);
        if problem.is_none() {
            self.file = Some(file);
        }
        self.reload = Some(Reload { at: SystemTime::now(), problem });
        result
    }

    fn load(&mut self, path: &Path) -> Result<Vec<Difference>> {
        self.settle();
        self.require_none_pending()?;
        let text = read_text(path)?;
        let (config, report) = parse(&text, &path.display().to_string())?;
        for warning in self.warnings(&config, &report) {
            tracing::warn!("{warning}");
        }
        let changes = config::diff(self.in_force.policies.config(), &config);
        let policies = Policies::new(config, self.startup.observe);
        let before = std::mem::replace(&mut self.startup.base, base_of(&text));
        let put = self.put(policies.with_gate(self.startup.overrides.gate), None);
        if put.is_err() {
            self.startup.base = before;
        }
        put.map(|()| changes)
    }

    /// Keeps the rules that wait to be confirmed.
    ///
    /// # Errors
    /// None wait, or no longer.
    pub fn confirm(&mut self) -> Result<api::ConfigState> {
        self.settle();
        if self.previous.take().is_none() {
            return Err(nothing_pending());
        }
        self.store.confirmed(self.plane.generation());
        self.plane.confirm();
        Ok(self.state())
    }

    /// Takes back the rules that wait to be confirmed.
    ///
    /// # Errors
    /// None wait, or no longer.
    pub fn roll_back(&mut self) -> Result<api::ConfigState> {
        self.settle();
        let Some(previous) = self.previous.take() else {
            return Err(nothing_pending());
        };
        self.plane.roll_back();
        self.in_force = previous;
        Ok(self.state())
    }

    /// The configuration in force, with every change made at run time.
    pub fn export(&mut self) -> api::ConfigExport {
        self.settle();
        api::ConfigExport {
            schema_version: SCHEMA_VERSION,
            generation: self.plane.generation(),
            config: self.in_force.policies.config().to_toml(),
        }
    }

    /// Writes the configuration in force to the file that the daemon was
    /// started with; comments and layout of what has not changed stay.
    ///
    /// # Errors
    /// There is no file, a change waits to be confirmed, or the file cannot be
    /// written; it is then as it was.
    pub fn save(&mut self) -> Result<api::ConfigSaved> {
        self.settle();
        self.require_none_pending()?;
        let Some(path) = self.startup.file.clone() else {
            return Err(Error::failed("limiterd was started without a configuration file")
                .hint("limiterctl config export prints the configuration in force"));
        };
        let text = config::edit(&read_text(&path)?, self.in_force.policies.config())
            .map_err(|report| invalid(&report))?;
        // A link stays one.
        let target = fs::canonicalize(&path).unwrap_or(path);
        replace(&target, &text)?;
        if let Some(file) = &mut self.file {
            *file = ConfigFile::now(&file.path);
        }
        let file = target.display().to_string();
        Ok(api::ConfigSaved { schema_version: SCHEMA_VERSION, file })
    }

    /// Puts policies in force, for good or for a time, as one store.
    pub(super) fn put(&mut self, policies: Policies, time: Option<Duration>) -> Result<()> {
        let mut numbers = self.in_force.numbers.clone();
        let (numbered, reused) = numbers.assign(policies.names());
        let interfaces = self.plane.interfaces();
        let compiled = policies.compile_as(&numbered, self.plane.sizing(), &interfaces)?;
        let mut baselines = self.in_force.baselines.clone();
        baselines.retain(|(_, count)| !reused.contains(&count.policy));
        baselines.extend(self.baselines_of(&reused)?);
        let new = InForce { policies, numbers, baselines };
        // Noted before packets meet it: who comes after a sudden end knows it.
        self.store.rules(new.rules(
            self.plane.next_generation(),
            self.startup.base,
            time.is_some(),
        ));
        let put = match time {
            None => self.plane.set_rules(&compiled),
            Some(time) => self.plane.try_rules(&compiled, time),
        };
        if let Err(error) = put {
            self.rewrite();
            return Err(error);
        }
        let before = std::mem::replace(&mut self.in_force, new);
        self.previous = time.map(|_| before);
        Ok(())
    }

    /// What the packet path would read of policies.
    pub(super) fn compiled(&self, policies: &Policies) -> Result<crate::compiled::Compiled> {
        let (numbered, _) = self.in_force.numbers.clone().assign(policies.names());
        let interfaces = self.plane.interfaces();
        policies.compile_as(&numbered, self.plane.sizing(), &interfaces)
    }

    fn baselines_of(&self, rows: &[u32]) -> Result<Vec<(usize, plane::Count)>> {
        let mut baselines = Vec::new();
        for interface in 0..self.plane.names().count() {
            let counts = self.plane.counts(interface, rows.iter().copied())?;
            let of_policies = counts.into_iter().filter(|count| rows.contains(&count.policy));
            baselines.extend(of_policies.map(|count| (interface, count)));
        }
        Ok(baselines)
    }

    /// Notices that the packet path has gone back to the rules before, because
    /// nobody confirmed.
    pub(super) fn settle(&mut self) {
        if self.previous.is_none() || self.plane.unconfirmed_for().is_some() {
            return;
        }
        self.plane.settle();
        if let Some(previous) = self.previous.take() {
            tracing::warn!("nobody confirmed the last change: the rules before it are in force");
            self.in_force = previous;
        }
    }

    pub(super) fn require_none_pending(&self) -> Result<()> {
        match self.plane.unconfirmed_for() {
            None => Ok(()),
            Some(time) => Err(Error::new(
                Kind::Pending,
                format!("a change waits to be confirmed, for {} s more", time.as_secs()),
            )
            .hint("limiterctl config confirm keeps it, limiterctl config rollback takes it back")),
        }
    }

    fn state(&self) -> api::ConfigState {
        api::ConfigState {
            schema_version: SCHEMA_VERSION,
            generation: self.plane.generation(),
            confirm: self.confirm_state(),
        }
    }

    pub(super) fn confirm_state(&self) -> api::Confirm {
        let time = self.plane.unconfirmed_for();
        api::Confirm { pending: time.is_some(), deadline_seconds: time.map(|it| it.as_secs()) }
    }

    pub(super) fn config_state(&self) -> api::ConfigFile {
        let reload = self.reload.as_ref();
        let seconds = |at: SystemTime| at.elapsed().map_or(0, |time| time.as_secs());
        api::ConfigFile {
            file: self.file.as_ref().map(|file| file.path.display().to_string()),
            changed_on_disk: self.file.as_ref().is_some_and(ConfigFile::has_changed),
            last_reload_successful: reload.is_none_or(|reload| reload.problem.is_none()),
            last_reload_seconds_ago: reload.map(|reload| seconds(reload.at)),
        }
    }

    pub(super) fn reload_problem(&self) -> Option<String> {
        let problem = self.reload.as_ref()?.problem.as_ref()?;
        Some(format!("the configuration file was not loaded, what was in force stays: {problem}"))
    }

    /// What is right, but perhaps not meant, or takes a restart.
    fn warnings(&self, config: &Config, report: &Report) -> Vec<String> {
        let told = report.diagnostics.iter();
        let mut warnings: Vec<_> = told
            .map(|it| match &it.hint {
                Some(hint) => format!("line {}: {}; {hint}", it.line, it.message),
                None => format!("line {}: {}", it.line, it.message),
            })
            .collect();
        let overrides = &self.startup.overrides;
        let (now, new) = (overrides.over(self.in_force.policies.config()), overrides.over(config));
        let fixed = |config: &Config| {
            let mut config = config.clone();
            (config.policies, config.allow, config.deny) = Default::default();
            let sources = config.sources.clone();
            config.sources = config::Sources {
                max_sources: sources.max_sources,
                memory: sources.memory,
                ..config::Sources::default()
            };
            config.attack = config::Attack::default();
            config.daemon.management = Vec::new();
            config.daemon.on_stop = config::OnStop::default();
            config
        };
        for difference in config::diff(&fixed(&now), &fixed(&new)) {
            warnings.push(format!("{} changes at the next start of limiterd", difference.path));
        }
        warnings
    }
}

/// Replaces the content of a file, all or nothing; its mode stays.
fn replace(path: &Path, text: &str) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.new"));
    let write = || -> std::io::Result<()> {
        let mode = fs::metadata(path).map_or(0o600, |facts| facts.mode() & 0o7777);
        // Of a write that did not end.
        let _ = fs::remove_file(&new);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&new);
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Kind::Permission,
            _ => Kind::Failed,
        };
        Error::new(kind, format!("cannot write {}: {error}", path.display())).hint(
            "make its directory writable for limiterd, or write it from limiterctl config export",
        )
    })
}

fn nothing_pending() -> Error {
    Error::new(Kind::NotFound, "no change waits to be confirmed")
        .hint("it was confirmed or taken back, or its time has passed; limiterctl status tells")
}
