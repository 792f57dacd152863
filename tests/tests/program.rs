//! The packet table on the loaded program, and what surrounds it.

use std::collections::BTreeSet;

use aya::{
    EbpfLoader,
    maps::{Array, MapData, PerCpuArray},
    programs::{TestRun as _, TestRunOptions, Xdp},
};
use limiter_common::{
    bucket::Bucket,
    gate::{Flow, Gate},
    level::{Level, Number, limit_number},
    limit::{Limit, Rate},
    parse::Kind,
    policy::{Mode, Policy, Ruleset},
    source::{Address, Key as _, Key4, Key6, SourcePrefix},
    stats::{NO_POLICY, Row, row},
    verdict::{Reason, Verdict},
};
use limiter_tests::{
    cases::{Expected, cases, one_packet_each, wide_gate},
    program::{Program, cpus},
    sandbox,
    wire::{Ipv4, Udp},
};
use limiter_user::{
    machine::TICK_NS,
    object,
    plane::{DEFAULT_SAMPLES, PROGRAM},
};

/// A table that fits any machine.
const SMALL: u32 = 16_384;
const ETHERNET: usize = 14;

/// Number of the limit of a source's packets in the policy of its kind.
fn first_limit(kind: Kind) -> u32 {
    limit_number(Number::new(kind as u32, 0), Level::SourcePackets)
}

#[test]
fn every_case_is_decided_and_charged_as_the_table_says() {
    sandbox::enter();
    for observe in [false, true] {
        let mut program = Program::load(one_packet_each(cpus(), observe), 7, SMALL);
        for case in cases() {
            for first in [true, false] {
                let expected = case.decision(case.expected, case.bytes.len(), first, observe);
                assert_eq!(program.decide(&case.bytes), expected, "{}", case.name);
            }
            let mut keys = (vec![], vec![]);
            if let Expected::Limited(kind, text) = case.expected {
                match text.parse().unwrap() {
                    std::net::IpAddr::V4(address) => {
                        if let Address::V4(address) = Address::from_ipv4(address.octets()) {
                            keys.0.push(Key4::new(
                                address,
                                &SourcePrefix::DEFAULT,
                                first_limit(kind),
                            ));
                        }
                    }
                    std::net::IpAddr::V6(address) => {
                        if let Address::V6(address) = Address::from_ipv6(address.octets()) {
                            keys.1.push(Key6::new(
                                address,
                                &SourcePrefix::DEFAULT,
                                first_limit(kind),
                            ));
                        }
                    }
                }
            }
            assert_eq!(program.keys(), keys, "{}", case.name);
            program.forget();
        }
    }
}

#[test]
fn every_truncation_of_a_valid_case_is_malformed() {
    sandbox::enter();
    let mut program = Program::load(one_packet_each(cpus(), false), 7, SMALL);
    // Jumbo frames have ten thousand prefixes each.
    let quick = std::env::var_os("LIMITER_QUICK").is_some();
    let most = if quick { 1_000 } else { usize::MAX };
    let mut counts = program.counts();
    for case in cases().into_iter().filter(|case| case.bytes.len() < most) {
        for length in ETHERNET..case.bytes.len() {
            let expected = case.decision(case.expected_of_prefix(length), length, true, false);
            let (found, after) = program.decide_after(&counts, &case.bytes[..length]);
            assert_eq!(found, expected, "{} cut to {length} bytes", case.name);
            counts = after;
            if found.reason == Reason::WithinLimit {
                program.forget();
            }
        }
    }
}

#[test]
fn received_is_passed_plus_dropped_for_every_mix() {
    sandbox::enter();
    let mut program = Program::load(one_packet_each(cpus(), false), 7, SMALL);
    let (mut packets, mut bytes) = (0, 0);
    for (n, case) in (0u32..).zip(cases()) {
        let repeat = 1 + n % 7;
        let _run = program.run(&case.bytes, repeat);
        packets += u64::from(repeat);
        bytes += u64::from(repeat) * case.bytes.len() as u64;
    }
    let counts = program.counts();
    let sum = |pick: fn(&limiter_common::stats::Counter) -> u64| -> u64 {
        counts.iter().map(|count| pick(&count.counter)).sum()
    };
    assert_eq!(sum(|counter| counter.packets), packets);
    assert_eq!(sum(|counter| counter.bytes), bytes);
    assert!(counts.iter().all(|count| !count.reason.is_trouble()), "{counts:?}");
    assert_eq!(program.plane().generation(), 1);
}

/// Every packet sees one rule set or the other, while they are exchanged under
/// it: one admits every packet, the other none.
#[test]
fn rules_change_as_one_and_at_once() {
    sandbox::enter();
    let cpus = cpus();
    let all = Ruleset::new(false, wide_gate(cpus));
    let none = one_packet_each(cpus, false);
    let mut program = Program::load(none, 7, SMALL);
    let frame =
        Ipv4::new("192.0.2.1", "198.51.100.9").next(17, &Udp::new(1, 2).payload(18)).build();
    let udp = Kind::Udp as u32;
    assert_eq!(program.decide(&frame).reason, Reason::WithinLimit);
    for round in 1..=50u64 {
        assert_eq!(program.decide(&frame).reason, Reason::SourceRate);
        program.plane().set_rules(&all.into()).unwrap();
        assert_eq!(program.plane().generation(), 2 * round);
        let decision = program.decide(&frame);
        assert_eq!((decision.reason, decision.policy), (Reason::Unlimited, NO_POLICY));
        program.plane().set_rules(&none.into()).unwrap();
        assert_eq!(program.decide(&frame).policy, udp);
    }
}

/// The memory that the kernel says the maps take is what was computed.
#[test]
fn maps_take_the_memory_that_is_stated() {
    sandbox::enter();
    for sources in [SMALL, 65_536] {
        let mut program = Program::load(one_packet_each(cpus(), false), 7, sources);
        let stated = program.plane().sizing().maps_bytes;
        let taken = program.memory();
        let ratio = taken as f64 / stated as f64;
        println!("{sources} sources: {stated} bytes stated, {taken} taken");
        assert!((0.90..=1.10).contains(&ratio), "{sources} sources: {taken} of {stated}");
    }
}

/// Calls to memset and the like are refused by verifiers without CAP_PERFMON:
/// of functions of its own the program has the steps of a charge and no others.
#[test]
fn the_program_calls_nothing_but_helpers_and_its_steps() {
    sandbox::enter();
    let mut program = Program::load(one_packet_each(cpus(), false), 7, SMALL);
    let _loaded = program.runner();
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap();
    // Address, type, bpf_prog_<tag>_<function>, [bpf].
    let functions: BTreeSet<_> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.strip_prefix("bpf_prog_"))
        .filter_map(|name| name.split_once('_'))
        .map(|(_tag, function)| function)
        .collect();
    let steps = ["limiterd", "look_up", "classes_of", "charge_key4", "charge_key6", "charge_total"];
    for function in steps {
        assert!(functions.contains(function), "{function} is not among {functions:?}");
    }
    for function in ["memcpy", "memmove", "memset", "memcmp", "bcmp"] {
        assert!(!functions.contains(function), "the program calls {function}");
    }
}

/// What the verifier walks through. A change that doubles it is to be looked
/// at: the kernel gives up at a million.
#[test]
fn the_program_is_within_its_budget() {
    sandbox::enter();
    let rules = one_packet_each(cpus(), false);
    let mut program = Program::load_showing(DEFAULT_SAMPLES, rules, 7, SMALL);
    let info = program.runner().info();
    let verified = info.verified_instruction_count().unwrap();
    let translated = info.size_translated().unwrap();
    let jited = info.size_jitted();
    println!("{verified} instructions verified, {translated} bytes translated, {jited} jited");
    assert!(jited > 0 && jited < 28_000, "{jited}");
    assert!(verified < 400_000, "{verified}");
    assert!(translated < 50_000, "{translated}");
}

/// A table that never evicts, in the place of the one that does: who finds no
/// room in it shares the cap of untracked sources, and is counted as such.
#[test]
fn a_table_without_room_is_neither_open_nor_closed_for_ever() {
    const PERCPU_HASH: u32 = 5;
    const ROOM: u32 = 2;
    const XDP_DROP: u32 = 1;
    const XDP_PASS: u32 = 2;
    sandbox::enter();
    sandbox::pin_to_cpu(0);
    let path = std::path::Path::new(sandbox::BPF_FS).join("full");
    let [key, value] = [size_of::<Key4>(), size_of::<Bucket>()];
    let [key, value] = [key, value].map(|size| u32::try_from(size).unwrap());
    let table = aya_obj::Map::new_from_params(PERCPU_HASH, key, value, ROOM, 0);
    let table = MapData::create(table, "full", None).unwrap();
    table.pin(&path).unwrap();

    let (cpus, day) = (cpus(), Rate::packets(1, 86_400_000_000_000).unwrap());
    let flow = |burst| Flow { rate: day, burst };
    let gate = Gate::compile(flow(1000), flow(3), flow(3), cpus, TICK_NS).unwrap();
    let limit = Limit::compile(day, 1, cpus, true).unwrap();
    let mut rules = Ruleset::new(false, gate);
    rules.set_policy(0, Policy::new(Mode::Enforce).with(Level::SourcePackets, limit));
    rules.set_every_kind(0);

    let object = object::LIMITER.unwrap();
    let mut loader = EbpfLoader::new();
    let mut ebpf = loader
        .override_global("CPUS", &cpus, true)
        .map_pin_path("SOURCES4", &path)
        .load(object)
        .unwrap();
    let mut map: Array<_, Ruleset> = ebpf.map_mut("RULES").unwrap().try_into().unwrap();
    map.set(0, rules, 0).unwrap();
    let program: &mut Xdp = ebpf.program_mut(PROGRAM).unwrap().try_into().unwrap();
    program.load().unwrap();
    let mut actions = Vec::new();
    for n in 0..7 {
        let frame = Ipv4::new(&format!("10.0.{n}.1"), "192.0.2.1");
        let frame = frame.next(17, &Udp::new(1, 2).payload(18)).build();
        let options = TestRunOptions { data_in: Some(&frame), ..TestRunOptions::default() };
        actions.push(program.test_run(options).unwrap().return_value);
    }
    let [passed, dropped] = [[XDP_PASS; 5].as_slice(), &[XDP_DROP; 2]];
    assert_eq!(actions, [passed, dropped].concat());
    let counters: PerCpuArray<_, Row> = ebpf.map("STATS").unwrap().try_into().unwrap();
    let packets = |verdict, reason| -> u64 {
        let values = counters.get(&row(0, verdict, reason), 0).unwrap();
        values.iter().map(|row| row.counter.packets).sum()
    };
    assert_eq!(packets(Verdict::Pass, Reason::WithinLimit), 2);
    assert_eq!(packets(Verdict::Pass, Reason::MapFull), 3);
    assert_eq!(packets(Verdict::Drop, Reason::MapFull), 2);
}
