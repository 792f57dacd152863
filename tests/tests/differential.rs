//! The core in memory and the loaded program on the same packets at the same
//! times: same verdicts, same reasons, same counters, same buckets.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use limiter_common::{
    gate::{Flow, Gate},
    level::{Level, Number},
    limit::{Limit, Rate},
    parse::Kind,
    policy::{Mode, Policy, Ruleset},
    source::{Key4, Key6, SourcePrefix},
    stats::Counter,
};
use limiter_tests::{
    mutate::Mutator,
    program::cpus,
    replay::{MOST, Packet, Replay},
    sandbox,
};

use limiter_user::machine::{Machine, TICK_NS};

const SECOND_NS: u64 = 1_000_000_000;
const POLICIES: u32 = 7;
/// Far more than occur, so that nothing is evicted.
const ROOM: u32 = 1 << 17;
/// Packets under one rule set.
const PACKETS_PER_RULES: usize = 4 * MOST;

type Counts = BTreeMap<(u32, &'static str, &'static str), Counter>;

/// Packets between two fresh starts, few enough that no table gets full, and
/// how many starts.
fn extent() -> (usize, u64) {
    let is_set = |name| std::env::var_os(name).is_some();
    match (is_set("LIMITER_LONG"), is_set("LIMITER_QUICK")) {
        (true, _) => (200_000, 50),
        (_, true) => (20_000, 1),
        _ => (200_000, 1),
    }
}

fn packet_rate(rng: &mut Rng) -> Rate {
    let tokens = 10u64.pow(rng.u32(0..7));
    Rate::packets(tokens, SECOND_NS * rng.u64(1..=60)).expect("in range")
}

fn byte_rate(rng: &mut Rng) -> Rate {
    Rate::bytes(10u64.pow(rng.u32(1..9)), SECOND_NS).expect("in range")
}

fn random_rules(rng: &mut Rng, cpus: u32) -> Ruleset {
    let flow = |rng: &mut Rng| Flow { rate: packet_rate(rng), burst: rng.u32(1..=200) };
    let gate = Gate::compile(flow(rng), flow(rng), flow(rng), cpus, TICK_NS).expect("in range");
    let mut rules = Ruleset::new(rng.u8(..8) == 0, gate);
    if rng.u8(..4) == 0 {
        rules.set_sources(SourcePrefix::new(rng.u32(8..=32), rng.u32(16..=128)));
    }
    for index in 0..POLICIES {
        let mode = match rng.u8(..8) {
            0 => Mode::Off,
            1 => Mode::Observe,
            _ => Mode::Enforce,
        };
        let prefix = SourcePrefix::new(rng.u32(0..=32), rng.u32(0..=128));
        let mut policy = Policy::new(mode).with_prefix(prefix);
        for level in Level::ALL {
            let wanted = if level == Level::SourcePackets { 6 } else { 2 };
            if rng.u8(..8) >= wanted {
                continue;
            }
            let packets = level.cost(2) == 1;
            let (rate, burst) = if packets {
                (packet_rate(rng), rng.u32(1..=100))
            } else {
                (byte_rate(rng), rng.u32(60..=100_000))
            };
            let limit = Limit::compile(rate, burst, cpus, rng.u8(..4) == 0).expect("in range");
            policy = policy.with(level, limit);
        }
        rules.set_policy(index, policy.numbered(Number::new(index, 0)));
    }
    for kind in Kind::ALL {
        rules.set_kind(kind, rng.u32(..POLICIES));
    }
    rules
}

fn sorted4(keys: impl IntoIterator<Item = Key4>) -> BTreeSet<String> {
    keys.into_iter().map(|key| format!("{key:?}")).collect()
}

fn sorted6(keys: impl IntoIterator<Item = Key6>) -> BTreeSet<String> {
    keys.into_iter().map(|key| format!("{key:?}")).collect()
}

/// Plays so many packets from a fresh start; says how many, and which reasons
/// they came to.
fn play(seed: u64, least: usize, reasons: &mut BTreeSet<&'static str>) -> usize {
    println!("LIMITER_SEED={seed}");
    let cpu = cpus() - 1;
    let mut rng = Rng::with_seed(seed);
    let hashes = [rng.u64(..), rng.u64(..)];
    let mut packets = Mutator::new(rng.u64(..), 300);
    let mut now_ns = SECOND_NS * rng.u64(1..1_000_000);

    let rules = random_rules(&mut rng, cpus());
    let mut replay = Replay::load(rules, POLICIES, ROOM, hashes);
    let mut core = Machine::new(cpus(), ROOM as usize, rules).with_seed(hashes);
    let mut expected = Counts::new();
    let mut played = 0;
    while played < least {
        let rules = random_rules(&mut rng, cpus());
        let plane = replay.program.plane();
        plane.set_rules(&rules.into()).expect("setting rules");
        core.set_rules(rules.stamped(plane.generation()), plane.live().slot);
        for _ in 0..PACKETS_PER_RULES / MOST {
            let longest_pause = 10u64.pow(rng.u32(3..10));
            let batch: Vec<_> = (0..MOST)
                .map(|_| {
                    now_ns += rng.u64(..longest_pause);
                    Packet { now_ns, bytes: packets.packet() }
                })
                .collect();
            replay.play(&batch);
            for packet in &batch {
                let decision = core.receive(cpu, packet.now_ns, &packet.bytes);
                let row = (decision.policy, decision.verdict.name(), decision.reason.name());
                let counter = expected.entry(row).or_default();
                counter.packets += 1;
                counter.bytes += u64::from(decision.bytes);
                reasons.insert(decision.reason.name());
            }
            played += batch.len();
            let found: Counts = replay
                .program
                .counts()
                .into_iter()
                .map(|it| ((it.policy, it.verdict.name(), it.reason.name()), it.counter))
                .collect();
            assert_eq!(found, expected, "after {played} packets of LIMITER_SEED={seed}");
        }
        let (four, six) = replay.program.keys();
        let (core_four, core_six) = core.keys();
        assert_eq!(sorted4(four), sorted4(core_four), "IPv4 buckets");
        assert_eq!(sorted6(six), sorted6(core_six), "IPv6 buckets");
    }
    played
}

#[test]
fn core_and_program_decide_alike() {
    sandbox::enter();
    sandbox::pin_to_cpu(cpus() as usize - 1);
    let seed = limiter_tests::seed();
    let (least, starts) = extent();
    let mut reasons = BTreeSet::new();
    let played: usize =
        (0..starts).map(|start| play(seed.wrapping_add(start), least, &mut reasons)).sum();
    println!("{played} packets, reasons {reasons:?}");
    for reason in ["within_limit", "source_rate", "source_bandwidth", "prefix_rate", "policy_rate"]
    {
        assert!(reasons.contains(reason), "no packet came to {reason}");
    }
    for reason in ["untracked", "new_source_rate", "malformed", "neighbour", "not_ip", "unlimited"]
    {
        assert!(reasons.contains(reason), "no packet came to {reason}");
    }
}
