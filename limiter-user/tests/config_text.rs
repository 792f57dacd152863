//! The configuration as text: the default file, edits, and the properties that
//! hold for all configurations.

use limiter_common::parse::Kind;
use limiter_user::{
    config::{
        Algorithm, Argument, Attack, Config, Daemon, Entry, Host, Match, Metrics, OnStop,
        PerPrefix, Policy, PortRange, Protocol, Sources, Total, VlanRange, Webhook, XdpMode,
        default_text, diff, edit, json_schema, parse,
    },
    mode::Mode,
    policies::Policies,
    prefix::Prefix,
};
use proptest::{collection::vec, option, prelude::*, sample::select};

const HOST: Host = Host { cpus: 2, memory_bytes: Some(16 << 30) };

/// The example of the README and the manual.
const EXAMPLE: &str = r#"
[daemon]
interfaces = ["eth0"]
xdp_mode = "auto"            # auto | native | generic
on_stop = "keep"             # keep | detach
metrics = "127.0.0.1:9898"   # or "off"
management = ["192.0.2.0/24"] # never locked out

[sources]
ipv4_prefix = 32             # what counts as one source
ipv6_prefix = 64
max_sources = 262144         # or memory = "64MiB"
new_sources = "50k/s"        # budget for tracking new sources, whole host
untracked = "200k/s"         # cap for all traffic of untracked sources

[[policy]]                   # first match in file order wins
name = "dns"
match = { proto = "udp", ports = [53, "5000-5010"] }
rate = "100/s"               # packets per source
burst = 200
bandwidth = "10MB/s"         # optional; MB, MiB, Mbit
per_prefix = { ipv4 = 24, ipv6 = 48, rate = "5k/s", burst = 10000 }  # optional
total = { rate = "500k/s", burst = 1000000 }                          # optional
mode = "enforce"             # enforce | observe | off
algorithm = "token-bucket"

[[allow]]
prefix = "198.51.100.7"
reason = "monitoring"

[[deny]]
prefix = "203.0.113.0/24"
"#;

/// A file in layouts that nobody should choose.
const ODD: &str = r#"# Odd.
policy = [{ name = "a", match.proto = "gre", rate = 5 }, { name = "b", match = { proto = [
    6, # TCP
    17,
] }, total.rate = "1/m" }] # all

sources.ipv4_prefix = 24
[[deny]]
prefix = "192.0.2.1"
[daemon] # below
'management' = [ "10.0.0.0/8" ,
  # the office
  '192.0.2.0/24'
]
[[allow]]
prefix = "203.0.113.1"
# In between.
[[deny]]
prefix = '192.0.2.2'
reason = """two
lines"""
[[allow]] # last
prefix = "203.0.113.2""#;

/// What a file says that may have no error and no warning.
fn clean(text: &str) -> Config {
    match parse(text, "limiterd.toml", &HOST) {
        Ok((config, report)) if report.diagnostics.is_empty() => config,
        Ok((_, report)) | Err(report) => panic!("{report}\n{text}"),
    }
}

#[test]
fn the_example_is_read_as_it_stands() {
    let config = clean(EXAMPLE);
    let policy = &config.policies[0];
    assert_eq!(policy.matches.proto, [Protocol::UDP]);
    let ports = [(53, 53), (5000, 5010)].map(|(first, last)| PortRange { first, last });
    assert_eq!(policy.matches.ports, ports);
    assert_eq!(policy.rate, Some("100/s".parse().unwrap()));
    assert_eq!(policy.per_prefix.as_ref().unwrap().burst, Some("10k".parse().unwrap()));
    assert_eq!(config.allow[0].reason.as_deref(), Some("monitoring"));
    assert_eq!(config.deny[0].prefix, "203.0.113.0/24".parse().unwrap());
}

#[test]
fn a_list_may_stand_as_its_only_value() {
    let with = |matches: &str| {
        clean(&format!("[[policy]]\nname = \"a\"\nrate = 5\nmatch = {{ {matches} }}")).policies
    };
    assert_eq!(
        with(r#"proto = 17, ports = "53", kind = "udp", vlans = 7"#),
        with(r#"proto = ["udp"], ports = [53], kind = ["udp"], vlans = ["7-7"]"#)
    );
}

#[test]
fn the_default_file_holds_the_builtin_profile() {
    let config = clean(&default_text());
    assert_eq!(config.daemon.interfaces, ["eth0"]);
    let defaults = Daemon { interfaces: config.daemon.interfaces.clone(), ..Daemon::default() };
    assert_eq!((&config.daemon, &config.sources), (&defaults, &Sources::default()));
    assert!(config.allow.is_empty() && config.deny.is_empty());
    let builtin = Policies::builtin(false);
    assert_eq!(config.policies.len(), builtin.all().len());
    for (policy, limit) in config.policies.iter().zip(builtin.all()) {
        assert_eq!(policy.name, limit.name);
        assert_eq!(policy.rate.zip(policy.burst), limit.source().packets);
        assert_eq!((policy.mode, policy.strict), (limit.mode, limit.strict));
        assert_eq!(limit.source().bytes, None);
        assert_eq!((policy.bandwidth, &policy.per_prefix, &policy.total), (None, &None, &None));
    }
    let mut kinds: Vec<_> = config.policies.iter().flat_map(|p| p.matches.kind.clone()).collect();
    kinds.sort_by_key(|kind| *kind as u8);
    assert_eq!(kinds, Kind::ALL, "each kind has one policy");
}

#[test]
fn the_schema_explains_every_key() {
    let schema = json_schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    explained("", &schema);
    for place in ["daemon/xdp_mode", "sources/untracked", "policy/match/vlans", "deny/reason"] {
        let mut here = &schema;
        for key in place.split('/') {
            let table = if here["type"] == "array" { &here["items"] } else { here };
            here = &table["properties"][key];
        }
        assert!(here.is_object(), "{place}");
    }
}

fn explained(place: &str, schema: &serde_json::Value) {
    let table = if schema["type"] == "array" { &schema["items"] } else { schema };
    let Some(keys) = table["properties"].as_object() else { return };
    assert_eq!(table["additionalProperties"], false, "{place}");
    for (key, value) in keys {
        let place = format!("{place}/{key}");
        assert!(value["description"].is_string(), "{place}");
        assert!(!value["type"].is_null() || !value["anyOf"].is_null(), "{place}: {value}");
        explained(&place, value);
    }
}

#[test]
fn an_edit_leaves_the_rest_as_it_is() {
    let mut config = clean(EXAMPLE);
    config.policies[0].burst = Some("300".parse().unwrap());
    config.daemon.management.push("192.0.3.0/24".parse().unwrap());
    let entry = Entry { prefix: "198.51.100.8".parse().unwrap(), reason: None };
    config.allow.push(entry);
    let expected = EXAMPLE
        .replace("burst = 200", "burst = 300")
        .replace("[\"192.0.2.0/24\"]", "[\"192.0.2.0/24\", \"192.0.3.0/24\"]")
        .replace("\n[[deny]]", "\n[[allow]]\nprefix = \"198.51.100.8\"\n\n[[deny]]");
    assert_eq!(edit(EXAMPLE, &config).unwrap(), expected);
    let changes = diff(&clean(EXAMPLE), &config);
    let changes: Vec<_> = changes
        .iter()
        .map(|change| {
            let shown = |value: &Option<String>| value.clone().unwrap_or("-".into());
            format!("{}: {} > {}", change.path, shown(&change.from), shown(&change.to))
        })
        .collect();
    assert_eq!(
        changes,
        [
            r#"daemon: management: ["192.0.2.0/24"] > ["192.0.2.0/24", "192.0.3.0/24"]"#,
            "policy dns: burst: 200 > 300",
            r#"allow 198.51.100.8: - > { prefix = "198.51.100.8" }"#,
        ]
    );
}

#[test]
fn comments_move_with_what_they_stand_above() {
    let file = "# The file.\n\n# Web.\n[[policy]]\nname = \"web\"\nrate = \"5k/s\" # five\n\
                [policy.match]\nproto = \"tcp\"\n\n# Names.\n[[policy]]\nname = \"dns\"\n\
                match.proto = \"udp\"\nrate = 7\n\n[daemon] # last\n";
    let mut config = clean(file);
    config.policies.reverse();
    config.policies[0].mode = Mode::Observe;
    let expected = "# The file.\n\n# Names.\n[[policy]]\nname = \"dns\"\n\
                    match.proto = \"udp\"\nrate = 7\nmode = \"observe\"\n# Web.\n[[policy]]\n\
                    name = \"web\"\nrate = \"5k/s\" # five\n[policy.match]\nproto = \"tcp\"\n\n\
                    [daemon] # last\n";
    assert_eq!(edit(file, &config).unwrap(), expected);
    let order: Vec<_> = diff(&clean(file), &config).into_iter().map(|change| change.path).collect();
    assert_eq!(order, ["policy dns: mode", "policy order"]);
}

#[test]
fn what_can_match_is_not_refused() {
    let file = |matches: [&str; 2]| {
        let policy = |(name, matches)| {
            format!("[[policy]]\nname = '{name}'\nrate = 5\nmatch = {{ {matches} }}\n")
        };
        ["a", "b"].into_iter().zip(matches).map(policy).collect::<String>()
    };
    for matches in [
        ["ports = ['80-90', '92-99']", "ports = '90-92'"],
        ["kind = 'tcp-syn'", "proto = 'tcp'"],
        ["proto = 'tcp'", "kind = ['tcp', 'fragment']"],
        ["ports = '0-65535'", "proto = 'tcp'"],
        ["sources = '0.0.0.0/0'", "kind = 'udp'"],
        ["sources = ['10.0.0.0/9', '10.128.0.0/9']", "sources = '10.0.0.0/8'"],
        ["interfaces = 'eth0'", ""],
        ["interfaces = 'eth0', vlans = 7", "interfaces = 'eth0'"],
        ["vlans = '1-4094'", "vlans = 0"],
    ] {
        clean(&file(matches));
    }
    for matches in [
        ["", "ports = 53"],
        ["vlans = '0-4094'", "kind = 'udp'"],
        ["proto = ['tcp', 'udp']", "ports = 53"],
        ["sources = ['0.0.0.0/0', '::/0']", "kind = 'udp'"],
        ["kind = ['udp', 'fragment']", "proto = 'udp'"],
    ] {
        let report = parse(&file(matches), "limiterd.toml", &HOST).unwrap_err();
        assert!(report.to_string().contains("never matches"), "{matches:?}: {report}");
    }
    clean("[[allow]]\nprefix = '192.0.2.1'\n[[deny]]\nprefix = '192.0.2.0/24'");
}

#[test]
fn the_default_needs_a_machine_that_has_room() {
    let host = Host { cpus: 2, memory_bytes: Some(96 << 20) };
    let report = parse("", "limiterd.toml", &host).unwrap_err();
    assert!(report.to_string().contains("take 69 MiB, more than half"), "{report}");
    assert!(parse("[sources]\nmemory = \"8MiB\"", "limiterd.toml", &host).is_ok());
    assert!(parse("", "limiterd.toml", &Host { memory_bytes: None, ..host }).is_ok());
}

#[test]
fn a_large_file_is_refused() {
    let report = parse(&" ".repeat((1 << 20) + 1), "limiterd.toml", &HOST).unwrap_err();
    assert!(report.to_string().contains("too large"), "{report}");
}

#[test]
fn a_flood_of_errors_is_cut_short() {
    let text = format!("allow = [{}]", "5, ".repeat(200_000));
    let report = parse(&text, "limiterd.toml", &HOST).unwrap_err();
    assert_eq!((report.diagnostics.len(), report.omitted), (100, 199_900));
    let told = report.to_string();
    assert!(told.len() < 100_000 && told.ends_with("and 199900 more\n"), "{told}");
}

#[test]
fn no_value_garbles_the_terminal() {
    let text = format!("[sources]\nuntracked = \"\\u001b[31m\\n{}\"", "x".repeat(500));
    let report = parse(&text, "limiterd.toml", &HOST).unwrap_err();
    let [found] = report.diagnostics.as_slice() else { panic!("{report}") };
    assert!(found.message.starts_with("'\\u{1b}[31m\\nxx"), "{}", found.message);
    assert!(found.message.ends_with("xx..."), "{}", found.message);
    assert!(!report.to_string().contains('\u{1b}'));
}

#[test]
fn odd_layouts_are_kept() {
    let mut config = clean(ODD);
    assert_eq!(edit(ODD, &config).unwrap(), ODD);
    config.policies[1].matches.proto.push(Protocol::ICMP);
    config.policies[1].total = None;
    config.daemon.management.remove(0);
    config.deny.reverse();
    config.allow.insert(0, Entry { prefix: "203.0.113.9".parse().unwrap(), reason: None });
    let expected = r#"# Odd.
policy = [{ name = "a", match.proto = "gre", rate = 5 }, { name = "b", match = { proto = [
    6, # TCP
    17,
    "icmp",
] }}] # all

sources.ipv4_prefix = 24
# In between.
[[deny]]
prefix = '192.0.2.2'
reason = """two
lines"""
[[deny]]
prefix = "192.0.2.1"
[daemon] # below
'management' = [
  # the office
  '192.0.2.0/24'
]

[[allow]]
prefix = "203.0.113.9"
[[allow]]
prefix = "203.0.113.1"
[[allow]] # last
prefix = "203.0.113.2"
"#;
    assert_eq!(edit(ODD, &config).unwrap(), expected);
}

fn text<T: std::str::FromStr<Err: std::fmt::Debug> + std::fmt::Debug>(
    text: impl Strategy<Value = String>,
) -> impl Strategy<Value = Option<T>> {
    option::of(
        text.prop_map(|text| text.parse().unwrap_or_else(|error| panic!("{text}: {error:?}"))),
    )
}

fn rate() -> impl Strategy<Value = Option<limiter_user::rate::PacketRate>> {
    text(
        (1u32..9_999_999, 0u32..999, select(vec!["s", "m", "h", "day"]))
            .prop_map(|(whole, part, unit)| format!("{whole}.{part:03}/{unit}")),
    )
}

fn burst() -> impl Strategy<Value = Option<limiter_user::rate::Burst>> {
    text((1..=u32::MAX).prop_map(|burst| burst.to_string()))
}

fn bandwidth() -> impl Strategy<Value = Option<limiter_user::bytes::Bandwidth>> {
    let units = select(vec!["kB/s", "MiB/s", "Mbit/s", "kbit/s", "MB/m", "KiB/h", "MB/day"]);
    text(
        (4000u32..90_000, 0u32..999, units)
            .prop_map(|(whole, part, unit)| format!("{whole}.{part}{unit}")),
    )
}

fn byte_burst() -> impl Strategy<Value = Option<limiter_user::bytes::ByteBurst>> {
    text((1514..=u32::MAX).prop_map(|bytes| format!("{bytes}B")))
}

fn prefix() -> impl Strategy<Value = Prefix> {
    let address = prop_oneof![
        any::<[u8; 4]>().prop_map(std::net::IpAddr::from),
        any::<[u16; 8]>().prop_map(std::net::IpAddr::from),
    ];
    (address, 0u8..=128).prop_map(|(address, length)| Prefix::new(address, length))
}

fn range(most: u16) -> impl Strategy<Value = (u16, u16)> {
    (0..=most, 0..=most).prop_map(|(a, b)| (a.min(b), a.max(b)))
}

fn interface() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9._-]{0,14}"
}

fn matches() -> impl Strategy<Value = Match> {
    (
        vec(prefix(), 0..3),
        vec(prefix(), 0..3),
        vec(any::<u8>().prop_map(Protocol), 0..3),
        vec(range(u16::MAX).prop_map(|(first, last)| PortRange { first, last }), 0..3),
        vec(select(Kind::ALL.to_vec()), 0..3),
        vec(interface(), 0..3),
        vec(range(4094).prop_map(|(first, last)| VlanRange { first, last }), 0..3),
    )
        .prop_map(|(sources, destinations, proto, ports, kind, interfaces, vlans)| Match {
            sources,
            destinations,
            proto,
            ports,
            kind,
            interfaces,
            vlans,
        })
}

fn per_prefix() -> impl Strategy<Value = PerPrefix> {
    (1u8..=32, 1u8..=128, rate(), burst(), bandwidth(), byte_burst()).prop_map(
        |(ipv4, ipv6, rate, burst, bandwidth, bandwidth_burst)| PerPrefix {
            ipv4,
            ipv6,
            rate,
            burst,
            bandwidth,
            bandwidth_burst,
        },
    )
}

fn total() -> impl Strategy<Value = Total> {
    (rate(), burst(), bandwidth(), byte_burst()).prop_map(
        |(rate, burst, bandwidth, bandwidth_burst)| Total {
            rate,
            burst,
            bandwidth,
            bandwidth_burst,
        },
    )
}

fn policy() -> impl Strategy<Value = Policy> {
    let name = prop_oneof!["[abc]", "[A-Za-z0-9_.-]{1,64}"];
    let levels = (option::of(per_prefix()), option::of(total()));
    let rest = (any::<bool>(), select(Mode::ALL.to_vec()));
    (name, matches(), rate(), burst(), bandwidth(), byte_burst(), levels, rest).prop_map(
        |(name, matches, rate, burst, bandwidth, bandwidth_burst, levels, (strict, mode))| Policy {
            name,
            matches,
            rate,
            burst,
            bandwidth,
            bandwidth_burst,
            per_prefix: levels.0,
            total: levels.1,
            strict,
            mode,
            algorithm: Algorithm::TokenBucket,
        },
    )
}

fn entry() -> impl Strategy<Value = Entry> {
    (prefix(), option::of(any::<String>())).prop_map(|(prefix, reason)| Entry { prefix, reason })
}

fn daemon() -> impl Strategy<Value = Daemon> {
    let metrics = prop_oneof![
        Just(Metrics::Off),
        any::<([u8; 4], u16)>().prop_map(|address| Metrics::At(address.into())),
    ];
    (
        vec(interface(), 0..3),
        select(vec![XdpMode::Auto, XdpMode::Native, XdpMode::Generic]),
        select(vec![OnStop::Keep, OnStop::Detach]),
        metrics,
        vec(prefix(), 0..3),
        option::of("[a-z]{1,8}"),
        option::of("[a-z]{1,8}"),
    )
        .prop_map(|(interfaces, xdp_mode, on_stop, metrics, management, admin, view)| Daemon {
            interfaces,
            xdp_mode,
            on_stop,
            metrics,
            management,
            admin_group: admin,
            view_group: view,
        })
}

fn sources() -> impl Strategy<Value = Sources> {
    let memory = text((0u64..1 << 50).prop_map(|bytes| format!("{bytes}B")));
    (1u8..=32, 1u8..=128, option::of(any::<u32>()), memory, rate(), rate()).prop_map(
        |(ipv4_prefix, ipv6_prefix, max_sources, memory, new_sources, untracked)| Sources {
            ipv4_prefix,
            ipv6_prefix,
            max_sources,
            memory,
            new_sources,
            untracked,
        },
    )
}

fn attack() -> impl Strategy<Value = Attack> {
    let rate = rate().prop_filter_map("a rate", |rate| rate);
    let word = any::<String>().prop_filter("no zero byte", |word| !word.contains('\0'));
    let webhook = option::of("https?://[a-z]{1,8}(:[0-9]{1,4})?(/[a-z?=]{0,8})?");
    (rate, 1u32..=3600, 1u32..=86_400, vec(word.prop_map(Argument), 0..3), webhook).prop_map(
        |(rate, begins_after, ends_after, command, webhook)| Attack {
            rate,
            begins_after,
            ends_after,
            command,
            webhook: webhook.map(Webhook),
        },
    )
}

/// Any configuration, most of them against the rules.
fn config() -> impl Strategy<Value = Config> {
    let lists = (vec(policy(), 0..4), vec(entry(), 0..4), vec(entry(), 0..4));
    (daemon(), sources(), attack(), lists).prop_map(
        |(daemon, sources, attack, (policies, allow, deny))| Config {
            daemon,
            sources,
            attack,
            policies,
            allow,
            deny,
        },
    )
}

/// Whether a file says that, be it against the rules or not: only then there
/// is nothing to edit.
fn says(text: &str, config: &Config) -> bool {
    edit(text, config).is_ok_and(|edited| edited == text)
}

/// Letters that mean something to TOML, and some that do not.
const DAMAGE: &str = "[\\[\\]{}=,.\"'#\n a-z0-9é-]{0,4}";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_normal_form_says_the_same(config in config()) {
        let text = config.to_toml();
        prop_assert!(says(&text, &config), "{}", text);
        if let Ok((read, _)) = parse(&text, "limiterd.toml", &HOST) {
            prop_assert_eq!(read, config);
        }
    }

    #[test]
    fn an_edit_says_what_it_should(old in config(), new in config(), mixed in any::<u64>()) {
        // Some of the old, so that there is something to keep.
        let mut new = new;
        for (place, policy) in old.policies.iter().enumerate() {
            if mixed >> place & 1 == 1 {
                new.policies.insert(0, policy.clone());
            }
        }
        new.allow.extend(old.allow.iter().rev().take(2).cloned());
        let dos = EXAMPLE.replace('\n', "\r\n");
        for original in [&old.to_toml(), EXAMPLE, &dos, ODD] {
            let edited = edit(original, &new).unwrap_or_else(|report| panic!("{report}"));
            prop_assert!(says(&edited, &new), "{}", edited);
        }
        let kept = Config { daemon: new.daemon.clone(), ..clean(ODD) };
        let edited = edit(ODD, &kept).unwrap();
        prop_assert!(says(&edited, &kept), "{}", edited);
        prop_assert!(edited.contains("# TCP") && edited.contains("lines\"\"\""), "{}", edited);
        prop_assert_eq!(diff(&old, &new).is_empty(), old == new);
        prop_assert!(diff(&new, &new).is_empty());
    }

    #[test]
    fn no_text_is_too_bad(text in any::<String>()) {
        if let Err(report) = parse(&text, "limiterd.toml", &HOST) {
            prop_assert!(report.has_errors() && !report.to_string().is_empty());
        }
    }

    #[test]
    fn no_damage_is_too_bad(
        damage in vec((any::<prop::sample::Index>(), 0usize..8, DAMAGE), 1..4),
    ) {
        let mut text = EXAMPLE.to_owned();
        for (at, length, other) in damage {
            let within = |at: usize| (0..=at).rev().find(|at| text.is_char_boundary(*at));
            let at = at.index(text.len() + 1);
            let range = within(at).unwrap_or(0)..within((at + length).min(text.len())).unwrap_or(0);
            text.replace_range(range, &other);
        }
        if let Err(report) = parse(&text, "limiterd.toml", &HOST) {
            prop_assert!(report.has_errors() && !report.to_string().is_empty());
        }
    }
}
