//! What numbers in samples and counters mean.

use std::{collections::HashMap, net::IpAddr};

use limiter_common::verdict::{Reason, Verdict};

use crate::{
    error::{Error, Kind, Result},
    prefix::Prefix,
};

/// Names of rows and numbers, as they are at present.
#[derive(Clone, Debug)]
pub struct Names {
    /// Policies by their row of counters.
    pub policies: HashMap<u32, String>,
    /// Interfaces by their number.
    pub interfaces: Vec<Option<String>>,
    /// Leading bits that make one source, of IPv4 and IPv6.
    pub source_bits: [u8; 2],
}

impl Default for Names {
    fn default() -> Self {
        Self { policies: HashMap::new(), interfaces: Vec::new(), source_bits: [32, 64] }
    }
}

impl Names {
    pub(super) fn policy(&self, row: u32) -> Option<String> {
        self.policies.get(&row).cloned()
    }

    pub(super) fn interface(&self, number: u32) -> String {
        let name = self.interfaces.get(number as usize).cloned().flatten();
        name.unwrap_or_else(|| format!("interface {number}"))
    }

    /// The row of a policy.
    pub(super) fn row(&self, policy: &str) -> Result<u32> {
        let row = self.policies.iter().find(|(_, name)| *name == policy).map(|(row, _)| *row);
        row.ok_or_else(|| unknown("policy", policy, self.policies.values().map(String::as_str)))
    }

    pub(super) fn source(&self, address: IpAddr) -> Prefix {
        prefix(address, self.source_bits)
    }
}

/// What an address lies in, by leading bits of IPv4 and IPv6.
pub(super) fn prefix(address: IpAddr, [ipv4, ipv6]: [u8; 2]) -> Prefix {
    Prefix::new(address, if address.is_ipv4() { ipv4 } else { ipv6 })
}

pub(super) fn verdict(name: &str) -> Result<Verdict> {
    let named = Verdict::ALL.into_iter().find(|verdict| verdict.name() == name);
    named.ok_or_else(|| unknown("verdict", name, Verdict::ALL.iter().map(|it| it.name())))
}

pub(super) fn reason(name: &str) -> Result<Reason> {
    let named = Reason::ALL.into_iter().find(|reason| reason.name() == name);
    named.ok_or_else(|| unknown("reason", name, Reason::ALL.iter().map(|it| it.name())))
}

pub(super) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let mut known: Vec<_> = known.collect();
    known.sort_unstable();
    Error::new(Kind::NotFound, format!("there is no {what} '{name}'"))
        .hint(format!("there are: {}", known.join(", ")))
}
