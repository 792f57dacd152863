//! What the daemon knows and does, apart from how it is asked.

mod counts;
mod explain;
mod guard;
mod limits;
mod listing;
mod transactions;

use std::time::Instant;

use self::transactions::{ConfigFile, Reload};
pub use self::{
    guard::Caller,
    listing::duration_of,
    transactions::{Overrides, Startup, read_text},
};
use crate::{
    api::{self, SCHEMA_VERSION},
    config,
    error::Result,
    interface::{self, Interface},
    numbers::Numbers,
    plane::{self, Attached, Plane},
    policies::Policies,
    trouble::{self, Counts, Trouble},
};

/// The running shield.
pub struct Service {
    plane: Plane,
    /// Those in force.
    policies: Policies,
    /// Those that come back unless the present ones are confirmed.
    previous: Option<Policies>,
    numbers: Numbers,
    /// What had been counted, on which interface, when a policy took over a row
    /// of counters.
    baselines: Vec<(usize, plane::Count)>,
    startup: Startup,
    file: Option<ConfigFile>,
    reload: Option<Reload>,
    started: Instant,
    trouble: Trouble,
}

impl Service {
    /// A service over a plane on which these policies are in force, with these
    /// numbers.
    #[must_use]
    pub fn new(plane: Plane, policies: Policies, numbers: Numbers, startup: Startup) -> Self {
        let started = Instant::now();
        let file = startup.file.as_deref().map(ConfigFile::now);
        Self {
            plane,
            policies,
            previous: None,
            numbers,
            baselines: Vec::new(),
            startup,
            file,
            reload: None,
            started,
            trouble: Trouble::new(started),
        }
    }

    /// Whether the protection stays in force when the daemon stops.
    #[must_use]
    pub fn keeps_protection(&self) -> bool {
        self.startup.file.is_some() && self.policies.config().daemon.on_stop == config::OnStop::Keep
    }

    /// Takes the protection off; says from which interfaces.
    ///
    /// # Errors
    /// A pin cannot be removed.
    pub fn detach(self) -> Result<Vec<String>> {
        let names = self.plane.attached().map(|attached| attached.name).collect();
        self.plane.detach()?;
        Ok(names)
    }

    fn uptime(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// Looks after the shield, which is to be done every few seconds. Says
    /// what is not as it should be, one sentence each.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn watch(&mut self) -> Result<Vec<String>> {
        self.settle();
        self.plane.expire()?;
        let trouble = self.trouble()?;
        self.trouble.note(Instant::now(), trouble);
        let now = interface::all()?;
        let mut problems: Vec<_> =
            self.plane.attached().filter_map(|attached| problem(&attached, &now)).collect();
        problems.extend(self.reload_problem());
        Ok(problems)
    }

    /// How the shield stands.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn status(&mut self) -> Result<api::Status> {
        self.settle();
        let now = interface::all()?;
        let mut problems = Vec::new();
        let mut interfaces = Vec::new();
        for attached in self.plane.attached() {
            problems.extend(problem(&attached, &now));
            interfaces.push(api::InterfaceStatus {
                attached: is_on(&attached, &now),
                name: present_name(&attached, &now),
                index: attached.index,
                mode: attached.mode.name().into(),
                pinned: attached.pinned,
                program_id: attached.program_id,
            });
        }
        problems.extend(self.trouble.problems(self.trouble()?));
        problems.extend(self.reload_problem());
        let (sizing, gate) = (self.plane.sizing(), self.policies.gate());
        Ok(api::Status {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION").into(),
            object_sha256: crate::object::SHA256.unwrap_or_default().into(),
            uptime_seconds: self.uptime(),
            observe: self.policies.observes(),
            interfaces,
            generation: self.plane.generation(),
            confirm: self.confirm_state(),
            config: self.config_state(),
            memory: api::Memory {
                maps_bytes: sizing.maps_bytes,
                max_sources: sizing.max_sources,
                cpus: sizing.cpus,
            },
            new_sources: api::NewSources {
                tracked_per_second: gate.new_sources(sizing).per_second(),
                untracked_per_second: gate.untracked(sizing).per_second(),
            },
            health: if problems.is_empty() { "ok" } else { "degraded" }.into(),
            problems,
        })
    }

    /// Packets under each reason that means trouble of our own.
    fn trouble(&self) -> Result<Counts> {
        let mut trouble = trouble::NONE;
        for at in 0..self.plane.attached().count() {
            for count in self.plane.counts(at, self.numbers.rows())? {
                let sum = trouble.iter_mut().find(|(reason, _)| *reason == count.reason);
                if let Some((_, packets)) = sum {
                    *packets += count.counter.packets;
                }
            }
        }
        Ok(trouble)
    }
}

/// The interface to which something was attached, as it is now.
fn present<'a>(attached: &Attached, now: &'a [Interface]) -> Option<&'a Interface> {
    now.iter().find(|interface| interface.index == attached.index)
}

/// Its name, which may have changed.
fn present_name(attached: &Attached, now: &[Interface]) -> String {
    present(attached, now).map_or_else(|| attached.name.clone(), |it| it.name.clone())
}

fn is_on(attached: &Attached, now: &[Interface]) -> bool {
    let id = Some(attached.program_id);
    present(attached, now).is_some_and(|interface| match attached.mode {
        plane::Mode::Native => interface.native == id,
        plane::Mode::Generic => interface.generic == id,
    })
}

/// What is wrong with an interface's protection, and the mend.
fn problem(attached: &Attached, now: &[Interface]) -> Option<String> {
    const RESTART: &str = "restart limiterd to protect it again";
    let name = present_name(attached, now);
    if !is_on(attached, now) {
        let what = match present(attached, now) {
            Some(interface) => match interface.program() {
                Some(program) => format!("has another XDP program on it, number {program}"),
                None => format!("is not protected: the program was taken off it; {RESTART}"),
            },
            None if now.iter().any(|interface| interface.name == attached.name) => {
                format!("is not protected: it was removed and made anew; {RESTART}")
            }
            None => format!("is gone; when it is back, {RESTART}"),
        };
        return Some(format!("{name} {what}"));
    }
    if !attached.pinned {
        return Some(format!("the pin of {name} was removed; its protection ends with limiterd"));
    }
    (attached.mode == plane::Mode::Generic).then(|| {
        format!("{name} is protected in generic mode, several times slower than in its driver")
    })
}
