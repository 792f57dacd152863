//! What the page shows: everything at a glance.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{History, Limit, ListEntry, Rates, Status, Top};

/// `GET /page.json` on the address of the metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct View {
    /// [`super::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name of this host.
    pub host: String,
    /// How the shield stands.
    pub status: Status,
    /// Packets per second of the last minutes.
    pub history: History,
    /// Who sends most.
    pub top: Top,
    /// The policies, in the order in which they are asked.
    pub policies: Vec<PolicyView>,
    /// What is banned.
    pub bans: BansView,
}

/// A policy, and how near it is to its limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyView {
    /// What it allows.
    pub limit: Limit,
    /// What it decided lately, by the counters.
    pub rates: Rates,
    /// How near what was sent came to each of its limits: the nearest of all
    /// sources, of all prefixes, and everybody together.
    pub use_of_limits: Vec<LimitUse>,
}

/// How much of a limit is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LimitUse {
    /// `source`, `prefix` or `total`.
    pub level: String,
    /// `packets` or `bytes`.
    pub unit: String,
    /// Who comes nearest; none for everybody together.
    pub who: Option<String>,
    /// What was sent lately, as a part of the rate; beyond 1, some of it is
    /// dropped, or would be.
    pub share: f64,
}

/// What is banned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BansView {
    /// How many prefixes.
    pub count: usize,
    /// Some of them, those that end first before the others.
    pub first: Vec<ListEntry>,
}
