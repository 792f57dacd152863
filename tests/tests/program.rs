//! The packet table on the loaded program, and two CPUs on one source.

use std::{
    collections::BTreeSet,
    sync::Barrier,
    time::{Duration, Instant},
};

use limiter_common::{
    limit::{Limit, Rate},
    parse::Kind,
    policy::{Level, Mode, Policy, Ruleset, limit_number},
    source::{Address, Key as _, Key4, Key6, SourcePrefix},
    verdict::{Reason, Verdict},
};
use limiter_tests::{
    cases::{Expected, cases, one_packet_each, wide_gate},
    program::{Program, cpus},
    sandbox,
    wire::{Ipv4, Udp},
};

const SECOND_NS: u64 = 1_000_000_000;
const ETHERNET: usize = 14;

/// Number of the limit of a source's packets in the policy of its kind.
fn first_limit(kind: Kind) -> u32 {
    limit_number(kind as u32, Level::SourcePackets)
}

#[test]
fn every_case_is_decided_and_charged_as_the_table_says() {
    sandbox::enter();
    for observe in [false, true] {
        let mut program = Program::load(&one_packet_each(cpus(), observe), 7, 1024);
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
    let mut program = Program::load(&one_packet_each(cpus(), false), 7, 1024);
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

/// One source at a rate that two CPUs exceed by far, for as long as `time`.
/// Says what share of burst + rate * t was admitted.
fn share_on_two_cpus(rate_per_second: u64, time: Duration, strict: bool) -> f64 {
    let cpus = cpus();
    let rate = Rate::packets(rate_per_second, SECOND_NS).unwrap();
    // A tenth of a second, so that the kernel's pauses between two runs of a
    // program lose no tokens.
    let burst = u32::try_from(rate_per_second / 10).unwrap();
    let limit = Limit::compile(rate, burst, cpus, strict).unwrap();
    let mut rules = Ruleset::new(false, wide_gate(cpus));
    rules.set_policy(0, Policy::new(Mode::Enforce).with(Level::SourcePackets, limit));
    let mut program = Program::load(&rules, 1, 1024);
    let runners = [program.runner(), program.runner()];
    let frame =
        Ipv4::new("192.0.2.1", "198.51.100.9").next(17, &Udp::new(1, 2).payload(18)).build();
    let barrier = Barrier::new(2);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for (cpu, runner) in runners.iter().enumerate() {
            let (barrier, frame) = (&barrier, &frame);
            scope.spawn(move || {
                sandbox::pin_to_cpu(cpu);
                barrier.wait();
                while start.elapsed() < time {
                    let _run = runner.run(frame, 20_000);
                }
            });
        }
    });
    let passed = u64::try_from(start.elapsed().as_nanos()).unwrap();
    let admitted = program.packets(Verdict::Pass, Reason::WithinLimit);
    let offered: u64 = program.counts().iter().map(|count| count.counter.packets).sum();
    let ideal = u64::from(burst)
        + u64::try_from(u128::from(rate_per_second) * u128::from(passed) / u128::from(SECOND_NS))
            .unwrap();
    let excess = 2 * u64::from(limit.lease() - 1);
    println!(
        "{rate_per_second}/s, strict {strict}: {admitted} of {ideal} admitted, {offered} offered, excess allowed {excess}"
    );
    assert!(offered > 2 * ideal, "the load was too small to say anything: {offered} packets");
    assert!(admitted <= ideal + excess, "{admitted} > {ideal} + {excess}");
    admitted as f64 / ideal as f64
}

#[test]
fn one_source_on_two_cpus_gets_its_rate_and_no_more() {
    sandbox::enter();
    for rate in [1_000, 100_000, 1_000_000] {
        let share = share_on_two_cpus(rate, Duration::from_secs(2), false);
        assert!((0.93..=1.00).contains(&share), "{rate}/s: {share}");
    }
}

#[test]
fn a_strict_policy_has_no_excess_at_all() {
    sandbox::enter();
    let share = share_on_two_cpus(10_000, Duration::from_secs(1), true);
    assert!(share <= 1.0, "{share}");
}

#[test]
fn received_is_passed_plus_dropped_for_every_mix() {
    sandbox::enter();
    let mut program = Program::load(&one_packet_each(cpus(), false), 7, 1024);
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
    let mut program = Program::load(&none, 7, 1024);
    let frame =
        Ipv4::new("192.0.2.1", "198.51.100.9").next(17, &Udp::new(1, 2).payload(18)).build();
    let udp = Kind::Udp as u32;
    assert_eq!(program.decide(&frame).reason, Reason::WithinLimit);
    for round in 1..=50u64 {
        assert_eq!(program.decide(&frame).reason, Reason::SourceRate);
        program.plane().set_rules(&all).unwrap();
        assert_eq!(program.plane().generation(), 2 * round);
        let decision = program.decide(&frame);
        assert_eq!((decision.reason, decision.policy), (Reason::Unlimited, 0));
        program.plane().set_rules(&none).unwrap();
        assert_eq!(program.decide(&frame).policy, udp);
    }
}

/// The memory that the kernel says the maps take is what was computed.
#[test]
fn maps_take_the_memory_that_is_stated() {
    sandbox::enter();
    for sources in [1024, 65_536] {
        let mut program = Program::load(&one_packet_each(cpus(), false), 7, sources);
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
    let mut program = Program::load(&one_packet_each(cpus(), false), 7, 1024);
    let _loaded = program.runner();
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap();
    // Address, type, bpf_prog_<tag>_<function>, [bpf].
    let functions: BTreeSet<_> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.strip_prefix("bpf_prog_"))
        .filter_map(|name| name.split_once('_'))
        .map(|(_tag, function)| function)
        .collect();
    for function in ["limiterd", "charge_key4", "charge_key6", "charge_total"] {
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
    let mut program = Program::load(&one_packet_each(cpus(), false), 7, 1024);
    let info = program.runner().info();
    let verified = info.verified_instruction_count().unwrap();
    let translated = info.size_translated().unwrap();
    println!("{verified} instructions verified, {translated} bytes translated");
    assert!(verified < 250_000, "{verified}");
    assert!(translated < 45_000, "{translated}");
}
