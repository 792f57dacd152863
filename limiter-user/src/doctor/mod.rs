//! What stands in the way of protection on this host, and the mend; also what
//! must be so before a start.
//!
//! Each subject is a function of texts and facts, so that all that they can say
//! is tested; only this file asks the system. What cannot be known gives no
//! finding.

mod bpffs;
mod capabilities;
mod ethtool;
mod interface;
mod kernel;
mod memory;
mod netdev;
mod pins;

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{major, minor, stat},
    system::uname,
};

use crate::{
    api::{Doctor, Finding, Level, SCHEMA_VERSION},
    config::Host,
    error::{Error, Kind, Result},
    interface::{self as links, Interface},
    plane::{self, Mode, Survey},
    sizing::{Sizing, Wish},
};

const MOUNTS: &str = "/proc/thread-self/mountinfo";

/// What to look at.
#[derive(Clone, Debug)]
pub struct Options {
    /// Names of the interfaces; none for all that are up, loopback apart.
    pub interfaces: Vec<String>,
    /// The pin directory of the daemon.
    pub pin_dir: PathBuf,
    /// What the daemon would be asked for.
    pub sources: Wish,
}

/// Looks at everything.
///
/// # Errors
/// The number of sources is out of range.
pub fn examine(options: &Options) -> Result<Doctor> {
    let mut findings = Vec::new();
    findings.extend(kernel_release());
    findings.extend(kernel::jit(&text(kernel::JIT)));
    findings.extend(own_capabilities());
    let directory = bpffs::directory(&options.pin_dir, &text(MOUNTS));
    findings.extend(directory.into_iter().map(|(_, finding)| finding));
    let all = match links::all() {
        Ok(all) => all,
        Err(error) => {
            findings.push(Finding::of("interfaces", error));
            Vec::new()
        }
    };
    let survey = plane::survey(&options.pin_dir);
    findings.extend(left_over(&options.pin_dir, &survey, &all));
    let named = !options.interfaces.is_empty();
    let interfaces: Vec<_> = if named {
        all.iter().filter(|it| options.interfaces.contains(&it.name)).collect()
    } else {
        all.iter().filter(|it| it.up && it.name != "lo").collect()
    };
    let count = u32::try_from(interfaces.len().max(1)).unwrap_or(u32::MAX);
    let count = count.saturating_add(plane::DEFAULT_SPARES);
    let sizing = Sizing::new(Host::here().cpus, count, options.sources)?;
    findings.extend(memory::need(sizing, memory::available(&text("/proc/meminfo"))));
    for name in &options.interfaces {
        if let Err(error) = links::find(name) {
            findings.push(Finding::of(name, error));
        }
    }
    if interfaces.is_empty() && !named {
        findings.push(found(Level::Note, "interfaces", "none is up"));
    }
    let system = System::here();
    for link in interfaces {
        let device = ethtool::device(&link.name);
        let facts = system.facts(link, &all, &device, named);
        findings.extend(facts.findings());
        if let Some(number) = link.program() {
            let name = plane::program_name(number);
            let pinned = survey.as_ref().ok().map(|survey| survey.holds(number));
            findings.extend(facts.program(&interface::Program { name, pinned }));
        }
    }
    let healthy = findings.iter().all(|finding| finding.level < Level::Error);
    Ok(Doctor { schema_version: SCHEMA_VERSION, healthy, findings })
}

/// Checks what must be so before anything is loaded.
///
/// # Errors
/// The first thing that is missing, with its mend; [`Kind::Permission`] if it
/// is a right of this process.
pub fn require(pin_dir: &Path) -> Result<()> {
    let kernel = kernel_release().map(|finding| (Kind::Failed, finding));
    let capabilities = own_capabilities().map(|finding| (Kind::Permission, finding));
    let directory = bpffs::directory(pin_dir, &text(MOUNTS));
    let mut findings = kernel.into_iter().chain(capabilities).chain(directory);
    match findings.find(|(_, finding)| finding.level == Level::Error) {
        Some((kind, finding)) => Err(finding.into_error(kind)),
        None => Ok(()),
    }
}

/// What is worth a warning about interfaces that are protected now, in these
/// modes.
#[must_use]
pub fn warnings<'a>(protected: impl IntoIterator<Item = (&'a str, Mode)>) -> Vec<Finding> {
    let Ok(all) = links::all() else {
        return Vec::new();
    };
    let system = System::here();
    let mut findings = Vec::new();
    for (name, mode) in protected {
        if let Some(link) = all.iter().find(|link| link.name == name) {
            let device = ethtool::device(name);
            findings.extend(system.facts(link, &all, &device, true).warnings(mode));
        }
    }
    findings
}

/// What concerns all interfaces.
struct System {
    features: BTreeMap<u32, netdev::Features>,
    cpus: Option<u32>,
}

impl System {
    fn here() -> Self {
        Self {
            features: netdev::features(),
            cpus: interface::online(&text("/sys/devices/system/cpu/online")),
        }
    }

    fn facts<'a>(
        &self,
        link: &'a Interface,
        all: &'a [Interface],
        device: &'a ethtool::Device,
        named: bool,
    ) -> interface::Facts<'a> {
        let features = self.features.get(&link.index).copied();
        interface::Facts { link, all, device, features, cpus: self.cpus, named }
    }
}

fn kernel_release() -> Option<Finding> {
    kernel::release(&uname().release().to_string_lossy())
}

fn own_capabilities() -> Option<Finding> {
    let namespace = fs::read_link("/proc/thread-self/ns/user").ok();
    let namespace = namespace.as_deref().and_then(Path::to_str);
    capabilities::capabilities(&text("/proc/thread-self/status"), namespace)
}

/// What is in the pin directory, if there is one.
fn left_over(root: &Path, survey: &Result<Survey>, interfaces: &[Interface]) -> Vec<Finding> {
    match survey {
        Ok(survey) => {
            // Without a directory nothing is left.
            let Ok(facts) = stat(root) else {
                return Vec::new();
            };
            let device = (major(facts.st_dev), minor(facts.st_dev));
            let namespace = fs::read_link("/proc/thread-self/ns/pid").ok();
            let namespace = namespace.as_deref().and_then(Path::to_str);
            let holder = fs::read_to_string("/proc/locks").map_or(pins::Holder::Unknown, |locks| {
                pins::holder(&locks, device, facts.st_ino, namespace)
            });
            pins::left(survey, holder, interfaces)
        }
        Err(error) if error.kind == Kind::Permission => {
            let fact = "this user may not see what an earlier limiterd left";
            vec![found(Level::Note, "pins", fact).mend("run as root (sudo)")]
        }
        Err(_) => Vec::new(),
    }
}

/// A file of the kernel; nothing if it cannot be read.
fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn found(level: Level, subject: impl Into<String>, finding: impl Into<String>) -> Finding {
    Finding {
        level,
        subject: subject.into(),
        finding: finding.into(),
        consequence: None,
        mend: None,
    }
}

impl Finding {
    /// An error of something that had to be there.
    fn of(subject: &str, error: Error) -> Self {
        let Error { message, hint, .. } = error;
        Self { mend: hint, ..found(Level::Error, subject, message) }
    }

    fn so(mut self, consequence: impl Into<String>) -> Self {
        self.consequence = Some(consequence.into());
        self
    }

    fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    /// All that it says, in one line without its level.
    #[must_use]
    pub fn text(&self) -> String {
        let more = [&self.consequence, &self.mend].into_iter().flatten();
        more.fold(format!("{}: {}", self.subject, self.finding), |text, more| {
            format!("{text}; {more}")
        })
    }

    fn into_error(self, kind: Kind) -> Error {
        let message = match self.consequence {
            Some(consequence) => format!("{}; {consequence}", self.finding),
            None => self.finding,
        };
        Error { kind, message, hint: self.mend }
    }
}

impl Level {
    /// Name in JSON and in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.level.name(), self.text())
    }
}
