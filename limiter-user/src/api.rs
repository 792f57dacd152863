//! What the daemon and its clients say to each other: JSON over HTTP/1.1 on a
//! Unix socket. Fields are only ever added.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};

/// Version of these types.
pub const SCHEMA_VERSION: u32 = 1;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes of those packets, from the Ethernet header on.
    pub bytes: u64,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// `GET /v1/status`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Version of the daemon.
    pub version: String,
    /// SHA-256 of the BPF object, hexadecimal.
    pub object_sha256: String,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// Whether nothing is dropped, whatever a policy's mode says.
    pub observe: bool,
    /// The interfaces.
    pub interfaces: Vec<InterfaceStatus>,
    /// Number of the rule set in force.
    pub generation: u64,
    /// A change that waits to be confirmed.
    pub confirm: Confirm,
    /// Memory in the kernel.
    pub memory: Memory,
    /// What sources without a bucket may do.
    pub new_sources: NewSources,
    /// `ok` or `degraded`.
    pub health: String,
    /// What is wrong, one sentence each.
    pub problems: Vec<String>,
}

/// One protected interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// `native` or `generic`.
    pub mode: String,
    /// Whether the program is on it now.
    pub attached: bool,
    /// Whether the link is pinned, so that it outlives the daemon.
    pub pinned: bool,
    /// The kernel's number of the program.
    pub program_id: u32,
}

/// A change that waits to be confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirm {
    /// Whether there is one.
    pub pending: bool,
    /// Seconds until it is taken back.
    pub deadline_seconds: Option<u64>,
}

/// Memory in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes of all maps, fixed from the start.
    pub maps_bytes: u64,
    /// Sources of each address family that can have a bucket at a time.
    pub max_sources: u32,
    /// Possible CPUs; each has a part of every bucket.
    pub cpus: u32,
}

/// What sources without a bucket may do, on the whole host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewSources {
    /// Buckets made for new sources per second.
    pub tracked_per_second: f64,
    /// Packets of all other new sources per second.
    pub untracked_per_second: f64,
}

/// `GET /v1/stats`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// Number of the rule set in force.
    pub generation: u64,
    /// The interfaces that are counted here.
    pub interfaces: Vec<StatsInterface>,
    /// Sums.
    pub totals: Totals,
    /// By reason and verdict; those without a packet are left out.
    pub reasons: Vec<ReasonCount>,
    /// By policy.
    pub policies: Vec<PolicyCount>,
}

/// An interface that is counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatsInterface {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// `native` or `generic`.
    pub mode: String,
    /// Whether the program is on it now.
    pub attached: bool,
}

/// Sums; received = passed + dropped, and `would_drop` is part of passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// All packets.
    pub received: Count,
    /// Those that passed.
    pub passed: Count,
    /// Those that were dropped.
    pub dropped: Count,
    /// Those that passed only because nothing is enforced.
    pub would_drop: Count,
}

/// Packets under one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReasonCount {
    /// Name of the reason.
    pub reason: String,
    /// `pass`, `drop` or `would_drop`.
    pub verdict: String,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Packets that one policy decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyCount {
    /// Name of the policy.
    pub name: String,
    /// Those that passed.
    pub passed: Count,
    /// Those that were dropped.
    pub dropped: Count,
    /// Those that passed only because nothing is enforced.
    pub would_drop: Count,
}

/// `GET /v1/limits`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// All, or the one that was asked for.
    pub policies: Vec<Limit>,
}

/// The limit of one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Name of the policy.
    pub name: String,
    /// `enforce`, `observe` or `off`.
    pub mode: String,
    /// `token-bucket`.
    pub algorithm: String,
    /// What each source may send.
    #[serde(flatten)]
    pub source: LevelLimit,
    /// Whether no excess at all is possible.
    pub strict: bool,
    /// The limit of each wider prefix.
    pub per_prefix: Option<PrefixLimit>,
    /// The limit of everybody together.
    pub total: Option<LevelLimit>,
}

/// What one level allows; `null` for no such limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelLimit {
    /// The rate as an operator writes it.
    pub rate: Option<String>,
    /// Packets per second.
    pub rate_per_second: Option<f64>,
    /// Packets in a row.
    pub burst: Option<u32>,
    /// The bandwidth as an operator writes it.
    pub bandwidth: Option<String>,
    /// Bytes per second.
    pub bandwidth_bytes_per_second: Option<f64>,
    /// Bytes in a row.
    pub bandwidth_burst_bytes: Option<u64>,
}

/// The limit of each wider prefix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefixLimit {
    /// Length of the prefix, IPv4.
    pub ipv4: u32,
    /// Length of the prefix, IPv6.
    pub ipv6: u32,
    /// What it allows.
    #[serde(flatten)]
    pub limit: LevelLimit,
}

/// `PATCH /v1/limits/{name}`: what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitChange {
    /// A rate as an operator writes it, such as `5k/s`, or `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// A burst as an operator writes it, such as `10k`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<String>,
    /// A bandwidth as an operator writes it, such as `10MB/s`, or `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
    /// A burst of bytes as an operator writes it, such as `1MiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_burst: Option<String>,
    /// For each wider prefix.
    #[serde(default, skip_serializing_if = "LevelChange::is_empty")]
    pub per_prefix: LevelChange,
    /// For everybody together.
    #[serde(default, skip_serializing_if = "LevelChange::is_empty")]
    pub total: LevelChange,
    /// Whether no excess at all is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// `enforce`, `observe` or `off`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// A change to a level beyond the single source: what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LevelChange {
    /// As in [`LimitChange`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<String>,
    /// As in [`LimitChange`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<String>,
    /// As in [`LimitChange`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
    /// As in [`LimitChange`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_burst: Option<String>,
}

impl LevelChange {
    /// Whether nothing is to be changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `POST /v1/detach`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The interfaces that are no longer protected.
    pub interfaces: Vec<String>,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What failed.
    pub error: FailureDetail,
}

/// What failed, and the mend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureDetail {
    /// [`Kind::name`].
    pub code: String,
    /// The problem in one sentence.
    pub message: String,
    /// The mend.
    pub hint: Option<String>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            error: FailureDetail {
                code: error.kind.name().into(),
                message: error.message.clone(),
                hint: error.hint.clone(),
            },
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let FailureDetail { code, message, hint } = failure.error;
        Self { kind: Kind::from_name(&code), message, hint }
    }
}
