//! The configuration as values. The comments on the keys are what operators
//! read in the default file and in the schema.

use limiter_common::parse::Kind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    protocol::Protocol,
    ranges::{PortRange, VlanRange},
    scalar::List,
    values::{Algorithm, Argument, Metrics, OnStop, Webhook, XdpMode},
};
use crate::{
    bytes::{Amount, Bandwidth, ByteBurst},
    mode::Mode,
    prefix::Prefix,
    rate::{Burst, PacketRate},
};

/// Configuration of limiterd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The daemon itself.
    pub daemon: Daemon,
    /// What counts as a source, and how many are tracked.
    pub sources: Sources,
    /// What counts as an attack, and who is told of it.
    pub attack: Attack,
    /// Limits: of those that match a packet, the first in the order of the
    /// file takes it. One without `match` takes every packet and comes last.
    #[serde(rename = "policy")]
    pub policies: Vec<Policy>,
    /// Prefixes that no limit and no ban touches.
    pub allow: Vec<Entry>,
    /// Prefixes from which nothing passes.
    pub deny: Vec<Entry>,
}

/// The daemon itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Daemon {
    /// Interfaces to protect.
    #[serde(with = "List::<String>")]
    #[schemars(example = ["eth0"])]
    pub interfaces: Vec<String>,
    /// How the program is attached: "native" in the driver, "generic" in the
    /// kernel's slower path that works with every driver, "auto" in the driver
    /// where it can.
    pub xdp_mode: XdpMode,
    /// What happens to the protection when the daemon stops: "keep" leaves it
    /// in force, "detach" takes it off.
    pub on_stop: OnStop,
    /// Address of the metrics page for Prometheus, or "off".
    pub metrics: Metrics,
    /// Prefixes that the operators come from; no ban locks them out.
    #[serde(with = "List::<Prefix>")]
    #[schemars(example = ["192.0.2.0/24"])]
    pub management: Vec<Prefix>,
    /// Group whose members may change limits and bans; without it only root.
    #[schemars(example = &"limiterd")]
    pub admin_group: Option<String>,
    /// Group whose members may read; without it everybody on this host.
    #[schemars(example = &"adm")]
    pub view_group: Option<String>,
}

/// What counts as a source, and how many are tracked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Sources {
    /// Bits of an IPv4 address that make it one source, 1 to 32.
    #[schemars(range(min = 1, max = 32))]
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 address that make it one source, 1 to 128. A host owns
    /// a /64 and can send from each address in it.
    #[schemars(range(min = 1, max = 128))]
    pub ipv6_prefix: u8,
    /// Sources of each family that are tracked at a time; by default as many
    /// as fit 64 MiB and 2 MiB for each CPU, at most 262144.
    #[schemars(example = 262_144)]
    pub max_sources: Option<u32>,
    /// The same as the memory that all sources take; one of the two.
    #[schemars(example = "64MiB")]
    pub memory: Option<Amount>,
    /// New sources that begin to be tracked, of the whole host.
    #[schemars(example = "50k/s")]
    pub new_sources: Option<PacketRate>,
    /// Packets of all sources that are not tracked, together.
    #[schemars(example = "200k/s")]
    pub untracked: Option<PacketRate>,
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            ipv4_prefix: 32,
            ipv6_prefix: 64,
            max_sources: None,
            memory: None,
            new_sources: None,
            untracked: None,
        }
    }
}

/// What counts as an attack, and who is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Attack {
    /// Packets that are dropped, or would be, per time.
    pub rate: PacketRate,
    /// Seconds in a row at that rate after which it begins.
    #[schemars(range(min = 1, max = 3600))]
    pub begins_after: u32,
    /// Seconds in a row below half of it after which it is over.
    #[schemars(range(min = 1, max = 86_400))]
    pub ends_after: u32,
    /// Program with its arguments that is run when an attack begins, and when
    /// it is over: as the user of the daemon, for 10 s at most, with the facts
    /// as JSON on its standard input.
    #[serde(with = "List::<Argument>")]
    #[schemars(example = ["/usr/local/bin/attack", "--page"])]
    pub command: Vec<Argument>,
    /// URL that the same is sent to with POST.
    #[schemars(example = "https://chat.example/hooks/limiterd")]
    pub webhook: Option<Webhook>,
}

impl Default for Attack {
    fn default() -> Self {
        Self {
            rate: PacketRate::THOUSAND,
            begins_after: 3,
            ends_after: 30,
            command: Vec::new(),
            webhook: None,
        }
    }
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Its name in counters and commands: letters, digits, '_', '.' and '-', at
    /// most 64.
    #[schemars(example = &"dns")]
    pub name: String,
    /// The packets that it takes; without it all of them.
    #[serde(rename = "match", default)]
    #[schemars(example = json!({ "proto": ["udp"], "ports": [53, "5000-5010"] }))]
    pub matches: Match,
    /// Packets of each source: N/s, N/m, N/h or N/day, with k and M.
    #[serde(default)]
    #[schemars(example = "100/s")]
    pub rate: Option<PacketRate>,
    /// Packets that a source may send at once; by default those of a second.
    #[serde(default)]
    #[schemars(example = 200)]
    pub burst: Option<Burst>,
    /// Bytes of each source, from the Ethernet header on: MB/s, MiB/s, Mbit/s.
    #[serde(default)]
    #[schemars(example = "10MB/s")]
    pub bandwidth: Option<Bandwidth>,
    /// Bytes that a source may send at once; by default those of a second.
    #[serde(default)]
    #[schemars(example = "2MB")]
    pub bandwidth_burst: Option<ByteBurst>,
    /// A limit for all sources of a wider prefix together.
    #[serde(default)]
    #[schemars(example = json!({ "ipv4": 24, "ipv6": 48, "rate": "5k/s", "burst": 10_000 }))]
    pub per_prefix: Option<PerPrefix>,
    /// A limit for everybody together.
    #[serde(default)]
    #[schemars(example = json!({ "rate": "500k/s", "burst": 1_000_000 }))]
    pub total: Option<Total>,
    /// Whether no CPU keeps tokens that it has not spent: no excess at all,
    /// for a higher cost of each packet.
    #[serde(default)]
    pub strict: bool,
    /// What happens to packets over the limit: "enforce" drops them, "observe"
    /// counts them, "off" takes the packets without any limit.
    #[serde(default = "enforce")]
    pub mode: Mode,
    /// How the limit is kept.
    #[serde(default)]
    pub algorithm: Algorithm,
}

const fn enforce() -> Mode {
    Mode::Enforce
}

/// A limit for all sources of a wider prefix together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PerPrefix {
    /// Bits of the IPv4 prefix, 1 to 32, at most those of a source.
    #[schemars(range(min = 1, max = 32))]
    pub ipv4: u8,
    /// Bits of the IPv6 prefix, 1 to 128, at most those of a source.
    #[schemars(range(min = 1, max = 128))]
    pub ipv6: u8,
    /// Packets of the prefix: N/s, N/m, N/h or N/day, with k and M.
    #[schemars(example = "5k/s")]
    pub rate: Option<PacketRate>,
    /// Packets that it may send at once; by default those of a second.
    #[schemars(example = 10_000)]
    pub burst: Option<Burst>,
    /// Bytes of the prefix: MB/s, MiB/s, Mbit/s.
    #[schemars(example = "100MB/s")]
    pub bandwidth: Option<Bandwidth>,
    /// Bytes that it may send at once; by default those of a second.
    #[schemars(example = "20MB")]
    pub bandwidth_burst: Option<ByteBurst>,
}

impl Default for PerPrefix {
    fn default() -> Self {
        Self { ipv4: 24, ipv6: 48, rate: None, burst: None, bandwidth: None, bandwidth_burst: None }
    }
}

/// A limit for everybody together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Total {
    /// Packets of everybody: N/s, N/m, N/h or N/day, with k and M.
    #[schemars(example = "500k/s")]
    pub rate: Option<PacketRate>,
    /// Packets at once; by default those of a second.
    #[schemars(example = 1_000_000)]
    pub burst: Option<Burst>,
    /// Bytes of everybody: MB/s, MiB/s, Mbit/s.
    #[schemars(example = "1GB/s")]
    pub bandwidth: Option<Bandwidth>,
    /// Bytes at once; by default those of a second.
    #[schemars(example = "200MB")]
    pub bandwidth_burst: Option<ByteBurst>,
}

/// The packets that a policy takes: those that every key here agrees to. A key
/// that is absent agrees to all; one with a list, to any in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// Prefixes of the source address.
    #[serde(with = "List::<Prefix>")]
    #[schemars(example = ["192.0.2.0/24"])]
    pub sources: Vec<Prefix>,
    /// Prefixes of the destination address.
    #[serde(with = "List::<Prefix>")]
    #[schemars(example = ["198.51.100.7"])]
    pub destinations: Vec<Prefix>,
    /// Protocols by name or number: "tcp", "udp", "icmp", "icmpv6", "gre", 47.
    #[serde(with = "List::<Protocol>")]
    #[schemars(example = ["udp"])]
    pub proto: Vec<Protocol>,
    /// Destination ports of TCP and UDP, or ranges of them.
    #[serde(with = "List::<PortRange>")]
    #[schemars(example = (53, "5000-5010"))]
    pub ports: Vec<PortRange>,
    /// Kinds of packets: "tcp-syn" opens a connection, "tcp" is other TCP,
    /// "udp", "icmp", "icmpv6", "fragment" is one after the first, "other".
    #[serde(with = "List::<Kind>")]
    #[schemars(example = ["tcp-syn"])]
    pub kind: Vec<Kind>,
    /// Interfaces that it arrives at.
    #[serde(with = "List::<String>")]
    #[schemars(example = ["eth0"])]
    pub interfaces: Vec<String>,
    /// VLAN identifiers, or ranges of them; 0 stands for no tag.
    #[serde(with = "List::<VlanRange>")]
    #[schemars(example = (0, "100-199"))]
    pub vlans: Vec<VlanRange>,
}

/// A prefix of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// An address, or a prefix without host bits.
    #[schemars(example = "198.51.100.7")]
    pub prefix: Prefix,
    /// Why it is listed.
    #[serde(default)]
    #[schemars(example = &"monitoring")]
    pub reason: Option<String>,
}
