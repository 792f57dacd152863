//! What stands in the way of protection on this host, and the mend; also what
//! must be so before a start.
//!
//! Each subject is a function of texts and facts, so that all that they can say
//! is tested; only this file asks the system. What cannot be known gives no
//! finding.

mod bpffs;
mod capabilities;
mod kernel;
mod memory;
mod pins;

use std::{
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
    interface::{self, Interface},
    plane,
    sizing::{Sizing, Wish},
};

const MOUNTS: &str = "/proc/self/mountinfo";

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
    let interfaces = interface::all().unwrap_or_default();
    findings.extend(left_over(&options.pin_dir, &interfaces));
    let sizing = Sizing::new(Host::here().cpus, 1, options.sources)?;
    findings.extend(memory::need(sizing, memory::available(&text("/proc/meminfo"))));
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

fn kernel_release() -> Option<Finding> {
    kernel::release(&uname().release().to_string_lossy())
}

fn own_capabilities() -> Option<Finding> {
    let namespace = fs::read_link("/proc/self/ns/user").ok();
    let namespace = namespace.as_deref().and_then(Path::to_str);
    capabilities::capabilities(&text("/proc/self/status"), namespace)
}

/// What is in the pin directory, if there is one.
fn left_over(root: &Path, interfaces: &[Interface]) -> Vec<Finding> {
    let Ok(facts) = stat(root) else {
        return Vec::new();
    };
    match plane::survey(root) {
        Ok(survey) => {
            let device = (major(facts.st_dev), minor(facts.st_dev));
            let namespace = fs::read_link("/proc/self/ns/pid").ok();
            let namespace = namespace.as_deref().and_then(Path::to_str);
            let holder = pins::holder(&text("/proc/locks"), device, facts.st_ino, namespace);
            pins::left(&survey, holder, interfaces)
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
    fn so(mut self, consequence: impl Into<String>) -> Self {
        self.consequence = Some(consequence.into());
        self
    }

    fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
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
        write!(f, "{} {}: {}", self.level.name(), self.subject, self.finding)?;
        for more in [&self.consequence, &self.mend].into_iter().flatten() {
            write!(f, "; {more}")?;
        }
        Ok(())
    }
}
