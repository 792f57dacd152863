//! Interfaces, added and taken off while the shield runs.

use super::{Service, is_on, present, present_name, resume};
use crate::{
    api::{self, SCHEMA_VERSION},
    error::{Error, Kind, Result},
    interface,
};

impl Service {
    /// Protects one more interface.
    ///
    /// # Errors
    /// It is not there or protected already, there is no room, or it cannot be
    /// attached to; nothing has changed then.
    pub fn attach(&mut self, name: &str) -> Result<api::Interfaces> {
        let now = interface::all()?;
        for attached in self.plane.attached().filter(|it| it.name == name) {
            let other = present(&attached, &now).filter(|it| it.name != name);
            if let Some(other) = other {
                return Err(Error::failed(format!(
                    "{name} was renamed to {} and is protected under that name",
                    other.name
                ))
                .hint("to protect both, name both and restart limiterd; that leaves no gap"));
            }
        }
        let number = self.plane.number_for(name)?;
        let mut load = self.load.clone();
        if let Some(of_number) = load.interfaces.get_mut(number) {
            *of_number = Some(name.to_owned());
        }
        // Noted before it is so, as all changes are.
        self.store.load(&load);
        if let Err(error) = self.plane.attach_to(number, name, self.wish) {
            self.rewrite();
            return Err(error);
        }
        self.load = load;
        self.interface_list()
    }

    /// Takes the protection off one interface.
    ///
    /// # Errors
    /// It is not protected, is the last one, or a policy names it; nothing has
    /// changed then.
    pub fn detach_interface(&mut self, name: &str) -> Result<api::Interfaces> {
        let now = interface::all()?;
        let attached: Vec<_> = self.plane.attached().collect();
        let found = attached.iter().find(|it| present_name(it, &now) == name || it.name == name);
        let Some(found) = found else {
            let names: Vec<_> = attached.iter().map(|it| present_name(it, &now)).collect();
            return Err(Error::new(Kind::NotFound, format!("'{name}' is not protected"))
                .hint(format!("protected are: {}", names.join(", "))));
        };
        if attached.len() == 1 {
            return Err(Error::failed(format!("{name} is the only interface that is protected"))
                .hint("limiterctl detach takes everything off and ends limiterd"));
        }
        let policies = self.in_force.policies.all().iter();
        let uses =
            |policy: &&crate::config::Policy| policy.matches.interfaces.contains(&found.name);
        if let Some(policy) = policies.into_iter().find(uses) {
            return Err(Error::failed(format!("policy '{}' is for {name}", policy.name))
                .hint("change the policy first: limiterctl config apply FILE"));
        }
        let number = found.number;
        let counts = self.plane.detach_from(number)?;
        resume::carry(&mut self.carried, &counts);
        if let Some(name) = self.load.interfaces.get_mut(number) {
            *name = None;
        }
        // One record: a packet that was counted there is carried, or counted
        // there still.
        self.store.detached(number, &self.carried);
        self.in_force.baselines.retain(|(at, _)| *at != number);
        self.plane.clear(number, &counts)?;
        self.interface_list()
    }

    /// The interfaces as status shows them.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn interface_list(&mut self) -> Result<api::Interfaces> {
        let interfaces = self.status()?.interfaces;
        Ok(api::Interfaces { schema_version: SCHEMA_VERSION, interfaces })
    }

    /// Protects interfaces again that were gone and are back, and those from
    /// which something else than limiterd took the program.
    pub(super) fn attach_again(&mut self) -> Result<()> {
        let now = interface::all()?;
        let bare: Vec<_> = self
            .plane
            .attached()
            .filter(|it| !is_on(it, &now))
            .filter(|it| {
                let here = present(it, &now).is_none_or(|found| found.name == it.name);
                let is_free = |found: &&interface::Interface| found.program().is_none();
                here && now.iter().filter(is_free).any(|found| found.name == it.name)
            })
            .map(|it| (it.number, it.name))
            .collect();
        for (number, name) in bare {
            match self.plane.attach_to(number, &name, self.wish) {
                Ok(()) => tracing::warn!("{name} had lost its protection and has it again"),
                Err(error) => tracing::warn!("{name} has lost its protection: {error}"),
            }
        }
        Ok(())
    }
}
