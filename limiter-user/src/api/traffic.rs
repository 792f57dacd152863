//! What is seen of the traffic: sampled packets, who sends most, what was
//! counted lately, attacks, and limits that would fit.
//!
//! A sample stands for as many packets as its weight says: those of its kind
//! that one CPU has counted since the sample before. Sums of weights are what
//! the counters say; how they are spread over sources is an estimate, whose
//! bound is given.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ReasonCount;

/// Query of `GET /v1/events`; everything narrows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only later ones than this number; without it, those that are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// At most so many, the latest ones; without it 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `drop`, `would_drop` or `pass`; without it, all but `pass`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Name of a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Name of a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Name of an interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Prefix that the source lies in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Prefix that the destination lies in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// `tcp`, `udp`, `icmp` (of either family) or a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Port that it is sent to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Whether the first bytes of packets are given, too.
    #[serde(default)]
    pub bytes: bool,
}

/// `GET /v1/events`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Events {
    /// [`super::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Number to ask on with.
    pub next: u64,
    /// Events after the asked number that are kept no more.
    pub missed: u64,
    /// Samples that the kernel had no room for, since the load.
    pub lost: u64,
    /// The events, the oldest first.
    pub events: Vec<Event>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// Its number, counted from the start of the daemon.
    pub number: u64,
    /// When, as in RFC 3339, UTC.
    pub time: String,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
#[schemars(transform = describe_tag)]
pub enum What {
    /// A packet came, and was chosen as a sample.
    Packet(SampledPacket),
    /// An attack begins.
    AttackBegins(Attack),
    /// An attack is over.
    AttackEnds(Attack),
}

fn describe_tag(schema: &mut schemars::Schema) {
    let kinds = schema.get_mut("oneOf").and_then(serde_json::Value::as_array_mut);
    for kind in kinds.into_iter().flatten() {
        if let Some(tag) = kind.pointer_mut("/properties/event") {
            tag["description"] = "What happened.".into();
        }
    }
}

/// A sampled packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SampledPacket {
    /// `drop`, `would_drop` or `pass`.
    pub verdict: String,
    /// Why.
    pub reason: String,
    /// The policy that decided, if one did.
    pub policy: Option<String>,
    /// Interface that it came in by.
    pub interface: String,
    /// Who claims to have sent it; none for what is not IP.
    pub source: Option<String>,
    /// Who it is sent to.
    pub destination: Option<String>,
    /// Its kind, such as `tcp-syn`.
    pub kind: Option<String>,
    /// `tcp`, `udp`, `icmp`, `icmpv6` or a number.
    pub protocol: Option<String>,
    /// Port that it is sent from.
    pub source_port: Option<u16>,
    /// Port that it is sent to.
    pub destination_port: Option<u16>,
    /// TCP flags, such as `SYN,ACK`.
    pub flags: Option<String>,
    /// VLAN.
    pub vlan: Option<u16>,
    /// Bytes, from the Ethernet header on.
    pub length: u32,
    /// Packets that it stands for.
    pub weight: u64,
    /// Its first bytes, at most 256, hexadecimal, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<String>,
}

/// Query of `GET /v1/top`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TopQuery {
    /// So many of each; without it 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// What comes first: `dropped` (with what would be), `passed`, `packets`
    /// or `bytes`; without it `packets`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    /// Only what this policy decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// `GET /v1/top`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Top {
    /// [`super::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Seconds that the figures stand for, the latest ones.
    pub window_seconds: f64,
    /// Samples in that time.
    pub samples: u64,
    /// Samples that the kernel had no room for, since the load.
    pub lost: u64,
    /// Everything, by the counters.
    pub total: Rates,
    /// Sources, as the policies tell them apart, by policy.
    pub sources: Vec<TopSource>,
    /// Wider prefixes: IPv4 /24, IPv6 /48.
    pub prefixes: Vec<TopSource>,
    /// Policies.
    pub policies: Vec<TopPolicy>,
    /// Ports that packets are sent to.
    pub ports: Vec<TopPort>,
}

/// Packets and bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// Packets per second that passed, and would pass.
    pub passed_pps: f64,
    /// Packets per second that were dropped.
    pub dropped_pps: f64,
    /// Packets per second that passed and would be dropped.
    pub would_drop_pps: f64,
    /// Bytes per second of all of them, from the Ethernet header on.
    pub bytes_per_second: f64,
    /// How far the sum of the packets per second may be off, either way; 0 is
    /// exact. Exceeded once in some ten thousand times.
    pub error_bound: f64,
}

/// A source, or a wider prefix.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopSource {
    /// The source or prefix.
    pub source: String,
    /// The policy that decided, if one did.
    pub policy: Option<String>,
    /// How much it sends.
    #[serde(flatten)]
    pub rates: Rates,
    /// Why most of it is dropped, or would be, if some is.
    pub reason: Option<String>,
}

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopPolicy {
    /// Its name; none for what no policy decided.
    pub policy: Option<String>,
    /// How much it decides about.
    #[serde(flatten)]
    pub rates: Rates,
}

/// A port that packets are sent to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TopPort {
    /// `tcp`, `udp`, `icmp`, `icmpv6` or a number.
    pub protocol: String,
    /// The port; none for protocols without, and for fragments.
    pub port: Option<u16>,
    /// How much is sent to it.
    #[serde(flatten)]
    pub rates: Rates,
}

/// `GET /v1/history`: packets per second, by the counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// [`super::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Seconds between two values.
    pub step_seconds: u64,
    /// When the last value was taken, seconds since 1970.
    pub last: u64,
    /// Packets per second that passed, those that would be dropped left out;
    /// the oldest first, at most 300. All series here are of one length.
    pub passed: Vec<f64>,
    /// Bytes per second of everything.
    pub bytes: Vec<f64>,
    /// Packets per second that were dropped, by reason; a reason without any is
    /// left out.
    pub dropped: BTreeMap<String, Vec<f64>>,
    /// The same for those that passed and would be dropped.
    pub would_drop: BTreeMap<String, Vec<f64>>,
}

/// An attack: more packets are dropped, or would be, than the configuration
/// calls one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attack {
    /// When it began, as in RFC 3339, UTC.
    pub began: String,
    /// Whether it goes on.
    pub ongoing: bool,
    /// For how long it lasts, or lasted.
    pub duration_seconds: u64,
    /// Packets per second that were dropped, or would have been, lately.
    pub dropped_pps: f64,
    /// The most of them in a second.
    pub peak_pps: f64,
    /// Packets that were dropped, or would have been, since it began.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether nothing is dropped of it: the shield only observes.
    pub observed: bool,
    /// By reason.
    pub reasons: Vec<ReasonCount>,
    /// Who sends most of it: at most ten.
    pub sources: Vec<TopSource>,
}

/// Query of `GET /v1/suggest`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SuggestQuery {
    /// Only this policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// So many sources of a hundred are to stay below the limit even without
    /// headroom: above 0, below 100; without it 99.9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantile: Option<f64>,
    /// By how much what they need is multiplied, from 1 on; without it 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headroom: Option<f64>,
}

/// `GET /v1/suggest`: limits that would fit what was seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Suggestions {
    /// [`super::SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Of a hundred.
    pub quantile: f64,
    /// Factor.
    pub headroom: f64,
    /// One for each policy that enough was seen of.
    pub policies: Vec<Suggestion>,
    /// What stands in the way of others, one sentence each.
    pub notes: Vec<String>,
}

/// A limit that would fit, and the evidence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Suggestion {
    /// The policy.
    pub policy: String,
    /// Packets per second and source.
    pub rate_per_second: f64,
    /// Packets in a row.
    pub burst: u32,
    /// The rate in force.
    pub present_rate_per_second: Option<f64>,
    /// The burst in force.
    pub present_burst: Option<u32>,
    /// The command that sets it.
    pub command: String,
    /// Seconds that were looked at.
    pub observed_seconds: f64,
    /// Sources that were seen. Where not every one was looked at, an estimate.
    pub sources_seen: u64,
    /// Of so many sources, one was looked at; 1 for every one.
    pub one_source_in: u64,
    /// Sources that would be cut at some time.
    pub sources_cut: u64,
    /// Packets of the sources that were looked at.
    pub packets_seen: u64,
    /// Share of the packets that would be cut, 0 to 1.
    pub share_cut: f64,
    /// How far that share may be off.
    pub share_error: f64,
    /// The ten that come nearest to it, or go beyond.
    pub nearest: Vec<NearSource>,
}

/// A source that comes near to a limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NearSource {
    /// The source.
    pub source: String,
    /// Packets per second, on average while it sent.
    pub rate_per_second: f64,
    /// How much of the burst it would use at most, 0 to 1; beyond 1, it would
    /// be cut.
    pub use_of_burst: f64,
    /// Share of its packets that would be cut.
    pub share_cut: f64,
}
