//! What the daemon knows and does, apart from how it is asked.

mod counts;
mod explain;
mod figures;
mod guard;
mod interfaces;
mod limits;
mod listing;
mod resume;
mod transactions;

use std::time::Instant;

use self::transactions::{ConfigFile, Reload};
pub use self::{
    figures::{Figures, Listed},
    guard::Caller,
    listing::duration_of,
    resume::{Plan, plan},
    transactions::{Overrides, Startup, base_of, read_text},
};
use crate::{
    api::{self, SCHEMA_VERSION},
    config,
    error::Result,
    interface::{self, Interface},
    lists::List,
    numbers::Numbers,
    plane::{self, Attached, Plane},
    policies::Policies,
    state::{Load, Rules, State, Store, Sum},
    trouble::{self, Counts, Trouble},
};

/// Policies and what was counted under them.
#[derive(Clone, Debug)]
struct InForce {
    policies: Policies,
    numbers: Numbers,
    /// What had been counted, on which interface, when a policy took over a row
    /// of counters.
    baselines: Vec<(usize, plane::Count)>,
}

impl InForce {
    fn rules(&self, generation: u64, base: u32, trial: bool) -> Rules {
        Rules {
            generation,
            config: self.policies.config().to_toml(),
            base,
            trial,
            numbers: self.numbers.clone(),
            baselines: self.baselines.iter().map(|(at, count)| (*at, (*count).into())).collect(),
        }
    }
}

/// The running shield.
pub struct Service {
    plane: Plane,
    in_force: InForce,
    /// What comes back unless the present is confirmed.
    previous: Option<InForce>,
    startup: Startup,
    store: Store,
    load: Load,
    carried: Vec<Sum>,
    wish: plane::Wish,
    file: Option<ConfigFile>,
    reload: Option<Reload>,
    started: Instant,
    trouble: Trouble,
}

/// What a service is made of.
pub struct Parts {
    /// Loaded, and attached to nothing.
    pub plane: Plane,
    /// What to put in force.
    pub plan: Plan,
    /// How the daemon was started.
    pub startup: Startup,
    /// Where what is to outlive it is kept.
    pub store: Store,
    /// What was kept there.
    pub state: State,
    /// How interfaces are attached to.
    pub wish: plane::Wish,
}

impl Service {
    /// Attaches, puts the plan in force, and makes all of it what the next
    /// daemon finds.
    ///
    /// # Errors
    /// An interface cannot be attached to, or the kernel refuses; nothing new
    /// is attached then.
    pub fn start(parts: Parts) -> Result<Self> {
        let Parts { plane, plan, mut startup, store, state, wish } = parts;
        startup.base = plan.base;
        let started = Instant::now();
        let file = startup.file.as_deref().map(ConfigFile::now);
        let load = Load {
            control: plane.control_id()?,
            seed: plane.seed(),
            interfaces: plane.names().map(|name| name.map(str::to_owned)).collect(),
            started_for: plan.started_for,
        };
        let in_force = InForce {
            policies: plan.policies.clone(),
            numbers: plan.numbers,
            baselines: plan.baselines,
        };
        let mut service = Self {
            plane,
            in_force,
            previous: None,
            startup,
            store,
            load,
            carried: state.carried,
            wish,
            file,
            reload: None,
            started,
            trouble: Trouble::new(started, trouble::NONE),
        };
        // Maps of an earlier daemon hold its rules, which stay in force until
        // nothing can fail any more; new maps hold none, and must before a
        // packet meets them.
        let has_rules = service.plane.has_rules();
        if !has_rules {
            service.put(plan.policies.clone(), None)?;
        }
        // What an earlier daemon has told is no news.
        service.trouble = Trouble::new(started, service.trouble()?);
        service.plane.attach(wish)?;
        resume::carry(&mut service.carried, &service.plane.carry_over()?);
        // Noted before the pins are in place: at no moment is a load pinned of
        // which nothing is known.
        service.store.load(&service.load);
        service.store.carried(&service.carried);
        service.plane.publish()?;
        if has_rules {
            service.put(plan.policies, None)?;
        }
        service.rewrite();
        Ok(service)
    }

    /// Writes anew what is to outlive the daemon.
    fn rewrite(&mut self) {
        let said = |list| self.plane.statements(list).map(|(at, it)| (at, it.clone())).collect();
        let [generation, before] = self.plane.generations();
        let base = self.startup.base;
        let mut rules = Vec::new();
        if let Some(previous) = &self.previous {
            rules.push(previous.rules(before, base, false));
        }
        rules.push(self.in_force.rules(generation, base, self.previous.is_some()));
        let state = State {
            loads: vec![self.load.clone()],
            rules,
            allowed: said(List::Allow),
            banned: said(List::Ban),
            carried: self.carried.clone(),
        };
        self.store.rewrite(&state);
    }

    /// Brings all that is to outlive the daemon to the disk, and waits for it.
    pub fn save_state(&mut self) {
        self.store.finish();
        self.begin_to_save();
        self.store.finish();
    }

    fn begin_to_save(&mut self) {
        if self.store.wants_rewrite() {
            self.rewrite();
        }
        self.store.sync();
    }

    /// What is in the kernel.
    #[must_use]
    pub const fn plane(&self) -> &Plane {
        &self.plane
    }

    /// The policies in force.
    #[must_use]
    pub const fn policies(&self) -> &Policies {
        &self.in_force.policies
    }

    /// Whether the protection stays in force when the daemon stops.
    #[must_use]
    pub fn keeps_protection(&self) -> bool {
        self.startup.file.is_some()
            && self.in_force.policies.config().daemon.on_stop == config::OnStop::Keep
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
        self.begin_to_save();
        let trouble = self.trouble()?;
        self.trouble.note(Instant::now(), trouble);
        self.attach_again()?;
        let now = interface::all()?;
        let mut problems: Vec<_> =
            self.plane.attached().filter_map(|attached| problem(&attached, &now)).collect();
        problems.extend(self.trouble.states(trouble).map(str::to_owned));
        problems.extend(self.reload_problem());
        problems.extend(self.store.problems());
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
                link: match present(&attached, &now) {
                    Some(interface) if interface.up && interface.carrier => "up",
                    Some(_) => "down",
                    None => "gone",
                }
                .into(),
            });
        }
        problems.extend(self.trouble.problems(self.trouble()?));
        problems.extend(self.reload_problem());
        problems.extend(self.store.problems());
        let (sizing, gate) = (self.plane.sizing(), self.in_force.policies.gate());
        Ok(api::Status {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION").into(),
            object_sha256: crate::object::SHA256.unwrap_or_default().into(),
            uptime_seconds: self.uptime(),
            observe: self.in_force.policies.observes(),
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
            attack: None,
            health: if problems.is_empty() { "ok" } else { "degraded" }.into(),
            problems,
        })
    }

    /// Packets under each reason that means trouble of our own.
    fn trouble(&self) -> Result<Counts> {
        let mut trouble = trouble::NONE;
        for number in 0..self.plane.names().count() {
            for count in self.plane.counts(number, self.in_force.numbers.rows())? {
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
    const AGAIN: &str = "limiterctl iface attach protects it again";
    let name = present_name(attached, now);
    if !is_on(attached, now) {
        let what = match present(attached, now) {
            Some(interface) => match interface.program() {
                Some(program) => format!("has another XDP program on it, number {program}"),
                None => format!("is not protected: the program was taken off it; {AGAIN}"),
            },
            None if now.iter().any(|interface| interface.name == attached.name) => {
                format!("is not protected: it was removed and made anew; {AGAIN}")
            }
            None => "is gone; it is protected again when it is back".to_owned(),
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
