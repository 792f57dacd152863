//! All figures of one moment.

use super::{Service, present_name};
use crate::{api, error::Result, interface, lists::List, plane};

/// What there is to measure.
#[derive(Clone, Debug)]
pub struct Figures {
    /// How the shield stands.
    pub status: api::Status,
    /// What each attached interface counted since the load.
    pub interfaces: Vec<(String, Vec<plane::Count>)>,
    /// What each policy counted.
    pub policies: Vec<api::PolicyCount>,
    /// Banned prefixes.
    pub bans: Listed,
    /// Allowed prefixes.
    pub allows: Listed,
}

/// Entries of a list, by who put them there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The configuration.
    pub config: usize,
    /// An operator, at run time.
    pub operator: usize,
}

impl Service {
    /// Everything, as it is now.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn figures(&mut self) -> Result<Figures> {
        let status = self.status()?;
        let now = interface::all()?;
        let rows = || self.in_force.numbers.rows();
        let counts = self.plane.attached().map(|attached| {
            let counts = self.plane.counts(attached.number, rows())?;
            Ok((present_name(&attached, &now), counts))
        });
        let config = self.in_force.policies.config();
        let (deny, allow) = (config.deny.len(), config.allow.len());
        let said = |list| self.plane.statements(list).count();
        Ok(Figures {
            status,
            interfaces: counts.collect::<Result<_>>()?,
            policies: self.stats(None, None)?.policies,
            bans: Listed { config: deny, operator: said(List::Ban) },
            allows: Listed { config: allow, operator: said(List::Allow) },
        })
    }
}
