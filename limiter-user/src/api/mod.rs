//! What the daemon and its clients say to each other: JSON over HTTP/1.1 on a
//! Unix socket. Fields are only ever added.

mod traffic;
mod view;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{traffic::*, view::*};
use crate::{
    config::Difference,
    error::{Error, Kind},
};

/// Version of these types.
pub const SCHEMA_VERSION: u32 = 1;

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// The configuration file.
    pub config: ConfigFile,
    /// Memory in the kernel.
    pub memory: Memory,
    /// What sources without a bucket may do.
    pub new_sources: NewSources,
    /// The attack that goes on, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attack: Option<Attack>,
    /// `ok` or `degraded`.
    pub health: String,
    /// What is wrong, one sentence each.
    pub problems: Vec<String>,
}

/// One protected interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// `up`, `down` (or without a carrier), or `gone`.
    #[serde(default)]
    pub link: String,
}

/// `GET /v1/interfaces`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interfaces {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The interfaces.
    pub interfaces: Vec<InterfaceStatus>,
}

/// `POST /v1/interfaces` and `DELETE /v1/interfaces`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InterfaceRequest {
    /// Name of the interface.
    pub name: String,
}

/// A change that waits to be confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Confirm {
    /// Whether there is one.
    pub pending: bool,
    /// Seconds until it is taken back.
    pub deadline_seconds: Option<u64>,
}

/// The configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigFile {
    /// Its path, if there is one.
    pub file: Option<String>,
    /// Whether it has changed since it was read.
    pub changed_on_disk: bool,
    /// Whether it was applied when it was read for the last time.
    pub last_reload_successful: bool,
    /// Seconds since it was read again, if it was.
    pub last_reload_seconds_ago: Option<u64>,
}

/// Memory in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// Bytes of all maps, fixed from the start.
    pub maps_bytes: u64,
    /// Sources of each address family that can have a bucket at a time.
    pub max_sources: u32,
    /// Possible CPUs; each has a part of every bucket.
    pub cpus: u32,
}

/// What sources without a bucket may do, on the whole host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NewSources {
    /// Buckets made for new sources per second.
    pub tracked_per_second: f64,
    /// Packets of all other new sources per second.
    pub untracked_per_second: f64,
}

/// Query of `GET /v1/stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StatsQuery {
    /// Only this interface.
    pub interface: Option<String>,
    /// Only this policy.
    pub policy: Option<String>,
}

/// `GET /v1/stats`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Limits {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// All, or the one that was asked for.
    pub policies: Vec<Limit>,
}

/// The limit of one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// Whether it is changed even if that locks the caller out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// A change to a level beyond the single source: what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// `POST /v1/config/diff` and `POST /v1/config/apply`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigRequest {
    /// The configuration, in TOML.
    pub config: String,
    /// What errors call it.
    pub name: String,
    /// Seconds after which it is taken back unless it is confirmed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirm_seconds: Option<u64>,
    /// Whether it is applied even if it locks the caller out.
    #[serde(default)]
    pub force: bool,
}

/// What a configuration changes, or has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigChanges {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// All that changes.
    pub changes: Vec<Difference>,
    /// What is right, but perhaps not meant, or takes a restart.
    pub warnings: Vec<String>,
    /// Number of the rule set in force.
    pub generation: u64,
    /// A change that waits to be confirmed.
    pub confirm: Confirm,
}

/// `POST /v1/config/confirm` and `POST /v1/config/rollback`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigState {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Number of the rule set in force.
    pub generation: u64,
    /// A change that waits to be confirmed.
    pub confirm: Confirm,
}

/// `GET /v1/config`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigExport {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Number of the rule set in force.
    pub generation: u64,
    /// The configuration in force, in TOML.
    pub config: String,
}

/// `POST /v1/config/save`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigSaved {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The file that was written.
    pub file: String,
}

/// `POST /v1/bans` and `POST /v1/allows`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListAdd {
    /// What is added, all or nothing.
    pub entries: Vec<ListAddition>,
    /// Whether it is added even if it locks the caller out.
    #[serde(default)]
    pub force: bool,
}

/// What is added to a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListAddition {
    /// An address or a prefix.
    pub prefix: String,
    /// For how long, such as `90s`, `1h` or `forever`; without it a ban lasts
    /// an hour and an allowed prefix for ever.
    #[serde(rename = "for", default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `DELETE /v1/bans` and `DELETE /v1/allows`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListRemove {
    /// What is removed, all or nothing.
    pub prefixes: Vec<String>,
}

/// What became of a change to a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListChanged {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Entries that were added or removed.
    pub changed: usize,
    /// What is perhaps not meant.
    pub warnings: Vec<String>,
}

/// `GET /v1/bans` and `GET /v1/allows`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct List {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// All entries.
    pub entries: Vec<ListEntry>,
}

/// An entry of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ListEntry {
    /// The prefix; a single address without its length.
    pub prefix: String,
    /// Seconds until it ends; `null` for never.
    pub expires_in_seconds: Option<u64>,
    /// Why it is there.
    pub reason: Option<String>,
    /// `operator` or `config`.
    pub origin: String,
    /// When it was added, seconds since 1970; `null` if the configuration says
    /// it.
    pub created: Option<u64>,
}

/// `GET /v1/explain`: a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// Who sends it.
    pub source: String,
    /// Who it is sent to; without it an address of nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// `tcp`, `udp`, `icmp` or a number; without it TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Port that it is sent to; without it 443.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Whether it opens a TCP connection.
    #[serde(default)]
    pub syn: bool,
    /// Bytes of the frame; without it 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u32>,
    /// VLAN; without it none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// Interface that it arrives at; without it the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// What would happen to a packet, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Who sends it.
    pub source: String,
    /// The packet.
    pub packet: ExplainedPacket,
    /// `pass` or `drop`.
    pub verdict: String,
    /// Why.
    pub reason: String,
    /// The policy that decides, if one does.
    pub policy: Option<String>,
    /// Its mode.
    pub mode: Option<String>,
    /// How it came to that.
    pub steps: Vec<Step>,
    /// The narrowest limit of the policy.
    pub limit: Option<ExplainedLimit>,
}

/// A packet that was explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedPacket {
    /// Who sends it.
    pub source: String,
    /// Who it is sent to.
    pub destination: String,
    /// Its kind, such as `tcp-syn`.
    pub kind: String,
    /// Number of its protocol.
    pub protocol: u8,
    /// Port that it is sent to, if it shows one.
    pub port: Option<u16>,
    /// Its VLAN, if it has one.
    pub vlan: Option<u16>,
    /// Bytes of the frame.
    pub length: u32,
    /// Interface that it arrives at.
    pub interface: String,
}

/// A step of an explanation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// What was looked at.
    pub step: String,
    /// What came of it.
    pub result: String,
}

/// A limit, and what is left of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainedLimit {
    /// Packets or bytes per second.
    pub rate_per_second: f64,
    /// Packets or bytes in a row.
    pub burst: u32,
    /// Packets or bytes that are left now.
    pub tokens_now: u32,
}

/// `POST /v1/detach`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Detached {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The interfaces that are no longer protected.
    pub interfaces: Vec<String>,
}

/// What `limiterctl doctor` finds; no daemon is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Doctor {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Whether nothing is an error.
    pub healthy: bool,
    /// What was looked at, in the order of a start.
    pub findings: Vec<Finding>,
}

/// One fact about this host, and what it means for limiterd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at, such as `kernel` or `eth0 mtu`.
    pub subject: String,
    /// The fact.
    pub finding: String,
    /// What follows from it.
    pub consequence: Option<String>,
    /// What to do about it.
    pub mend: Option<String>,
}

/// How bad a finding is.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth to know.
    Note,
    /// Protection is possible, but slower or weaker than it could be.
    Warning,
    /// A start fails.
    Error,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// What failed.
    pub error: FailureDetail,
}

/// What failed, and the mend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
