//! Levels and the gate for new sources on the core: no privilege needed.

use limiter_common::{
    gate::{Flow, Gate},
    level::Level,
    limit::{Limit, Rate},
    policy::{Mode, Policy, Ruleset},
    verdict::{Decision, Reason, Verdict},
};
use limiter_tests::{
    cases::wide_gate,
    wire::{Ipv4, Ipv6, Udp},
};
use limiter_user::machine::{Machine, TICK_NS};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
const CPUS: u32 = 2;
const ROOM: usize = 1 << 16;
/// Some time after the boot.
const START: u64 = 1_000_000 * SECOND;
/// Long after a key was forgotten.
const LONG: u64 = 300 * SECOND;
/// It is remembered for two epochs at most, of 1024 ticks each.
const _: () = assert!(LONG > 2 * 1024 * TICK_NS);

/// So many packets at once, and then one a day.
fn once(burst: u32) -> Limit {
    Limit::compile(Rate::packets(1, DAY).unwrap(), burst, CPUS, true).unwrap()
}

fn once_bytes(burst: u32) -> Limit {
    Limit::compile(Rate::bytes(1, SECOND).unwrap(), burst, CPUS, true).unwrap()
}

fn flow(burst: u32) -> Flow {
    Flow { rate: Rate::packets(1, DAY).unwrap(), burst }
}

/// One policy for everything.
fn rules(policy: Policy, gate: Gate) -> Ruleset {
    let mut rules = Ruleset::new(false, gate);
    rules.set_policy(0, policy);
    rules.set_every_kind(0);
    rules
}

fn machine(policy: Policy, gate: Gate) -> Machine {
    Machine::new(CPUS, ROOM, rules(policy, gate))
}

fn enforce() -> Policy {
    Policy::new(Mode::Enforce)
}

/// So many new sources, untracked packets, and packets of a cell.
fn gate(new_sources: u32, untracked: u32, cell: u32) -> Gate {
    Gate::compile(flow(new_sources), flow(untracked), flow(cell), CPUS, TICK_NS).unwrap()
}

fn udp4(source: &str) -> Vec<u8> {
    Ipv4::new(source, "192.0.2.1").next(17, &Udp::new(1, 2).payload(18)).build()
}

fn udp6(source: &str) -> Vec<u8> {
    Ipv6::new(source, "2001:db8::1").next(17, &Udp::new(1, 2).payload(18)).build()
}

fn reasons(machine: &Machine, frames: &[Vec<u8>]) -> Vec<Reason> {
    frames.iter().map(|frame| machine.receive(0, START, frame).reason).collect()
}

#[test]
fn each_level_refuses_by_its_own_reason() {
    let wide = once(1000);
    for (level, limit) in [
        (Level::SourcePackets, once(1)),
        (Level::SourceBytes, once_bytes(60)),
        (Level::PrefixPackets, once(1)),
        (Level::PrefixBytes, once_bytes(60)),
        (Level::TotalPackets, once(1)),
        (Level::TotalBytes, once_bytes(60)),
    ] {
        let mut policy = enforce().with(Level::SourcePackets, wide);
        policy = policy.with(level, limit);
        let machine = machine(policy, wide_gate(CPUS));
        let frame = udp4("198.18.0.1");
        assert_eq!(frame.len(), 60);
        let found = reasons(&machine, &[frame.clone(), frame]);
        assert_eq!(found, [Reason::WithinLimit, level.reason()], "{level:?}");
    }
}

#[test]
fn a_prefix_is_shared_by_its_sources_and_by_no_others() {
    let policy = enforce().with(Level::PrefixPackets, once(2));
    let machine = machine(policy, wide_gate(CPUS));
    use Reason::{PrefixRate, WithinLimit};
    let four = ["198.18.0.1", "198.18.0.2", "198.18.0.3", "198.18.1.1"].map(udp4);
    assert_eq!(reasons(&machine, &four), [WithinLimit, WithinLimit, PrefixRate, WithinLimit]);
    let six = ["2001:db8:1:1::", "2001:db8:1:2::", "2001:db8:1:3::", "2001:db8:2:1::"].map(udp6);
    assert_eq!(reasons(&machine, &six), [WithinLimit, WithinLimit, PrefixRate, WithinLimit]);
}

/// One bad source must not spend what its prefix or everybody shares.
#[test]
fn what_a_narrow_level_refuses_does_not_cost_a_wide_one() {
    for wide in [Level::PrefixPackets, Level::TotalPackets] {
        let policy = enforce().with(Level::SourcePackets, once(2)).with(wide, once(5));
        let machine = machine(policy, wide_gate(CPUS));
        let bad = reasons(&machine, &vec![udp4("198.18.0.1"); 1000]);
        let passed = bad.iter().filter(|reason| **reason == Reason::WithinLimit).count();
        assert_eq!((passed, bad[999]), (2, Reason::SourceRate));
        let good: Vec<_> = (2..6).map(|n| udp4(&format!("198.18.0.{n}"))).collect();
        let good = reasons(&machine, &good);
        let expected = [Reason::WithinLimit; 3].into_iter().chain([wide.reason()]);
        assert!(good.into_iter().eq(expected), "{wide:?}");
    }
}

#[test]
fn a_source_without_bucket_is_charged_to_its_cell_and_to_the_cap() {
    use Reason::{NewSourceRate, SourceRate, Untracked, WithinLimit};
    let policy = enforce().with(Level::SourcePackets, once(1));
    // Two buckets; five untracked packets, two of each /24.
    let machine = machine(policy, gate(2, 5, 2));
    let known = ["10.0.0.1", "10.0.1.1"].map(udp4);
    assert_eq!(reasons(&machine, &known), [WithinLimit, WithinLimit]);
    // The third of one /24 is over its cell.
    let near: Vec<_> = (1..=3).map(|n| udp4(&format!("10.0.2.{n}"))).collect();
    assert_eq!(reasons(&machine, &near), [Untracked, Untracked, NewSourceRate]);
    // IPv6 shares the cap, by /48.
    let site: Vec<_> = (1..=3).map(|n| udp6(&format!("2001:db8:7:{n}::1"))).collect();
    assert_eq!(reasons(&machine, &site), [Untracked, Untracked, NewSourceRate]);
    // The cap's last, and then nothing from anywhere.
    let far: Vec<_> = (0..3).map(|n| udp4(&format!("10.1.{n}.1"))).collect();
    assert_eq!(reasons(&machine, &far), [Untracked, NewSourceRate, NewSourceRate]);
    // Those who have a bucket are judged by it alone.
    assert_eq!(reasons(&machine, &known), [SourceRate, SourceRate]);
    let (four, six) = machine.keys();
    assert_eq!((four.len(), six.len()), (2, 0));
}

/// Nothing is inserted before the budget for it is paid, at any level.
#[test]
fn no_level_inserts_without_the_budget() {
    let policy = Level::ALL.into_iter().fold(enforce(), |policy, level| {
        let packets = level.cost(2) == 1;
        policy.with(level, if packets { once(u32::MAX) } else { once_bytes(u32::MAX) })
    });
    let machine = machine(policy, gate(10, 1_000_000, 1_000_000));
    for n in 0..1000 {
        let frame = udp4(&format!("10.{}.{}.1", n / 250, n % 250));
        assert_eq!(machine.receive(n % 2, START, &frame).verdict, Verdict::Pass);
    }
    assert_eq!(machine.keys().0.len(), 10);
}

/// Untracked packets count at the levels that everybody shares.
#[test]
fn a_total_holds_for_untracked_sources_too() {
    let policy = enforce().with(Level::SourcePackets, once(1)).with(Level::TotalPackets, once(3));
    let machine = machine(policy, gate(1, 100, 100));
    let frames: Vec<_> = (0..5).map(|n| udp4(&format!("10.0.{n}.1"))).collect();
    use Reason::{PolicyRate, Untracked, WithinLimit};
    let found = reasons(&machine, &frames);
    assert_eq!(found, [WithinLimit, Untracked, Untracked, PolicyRate, PolicyRate]);
}

/// A full table lets pass what the cap allows, and no more: neither open nor
/// closed for ever.
#[test]
fn a_full_table_is_counted_as_such_and_falls_back_to_the_cap() {
    let policy = enforce().with(Level::SourcePackets, once(1));
    let rules = rules(policy, gate(1000, 3, 3));
    let machine = Machine::new(CPUS, 2, rules);
    let frames: Vec<_> = (0..7).map(|n| udp4(&format!("10.0.{n}.1"))).collect();
    let found: Vec<_> = frames
        .iter()
        .map(|frame| machine.receive(0, START, frame))
        .map(|decision| (decision.reason, decision.verdict))
        .collect();
    let expected = [
        (Reason::WithinLimit, Verdict::Pass),
        (Reason::WithinLimit, Verdict::Pass),
        (Reason::MapFull, Verdict::Pass),
        (Reason::MapFull, Verdict::Pass),
        (Reason::MapFull, Verdict::Pass),
        (Reason::MapFull, Verdict::Drop),
        (Reason::MapFull, Verdict::Drop),
    ];
    assert_eq!(found, expected);
    // Who has a bucket is not touched by it.
    assert_eq!(machine.receive(0, START, &frames[0]).reason, Reason::SourceRate);
}

#[test]
fn observing_drops_nothing_at_the_gate_either() {
    let policy = Policy::new(Mode::Observe).with(Level::SourcePackets, once(1));
    let machine = machine(policy, gate(1, 1, 1));
    let frames: Vec<_> = (0..3).map(|n| udp4(&format!("10.0.{n}.1"))).collect();
    let last = frames.iter().map(|frame| machine.receive(0, START, frame)).last();
    let expected = Decision::with(Reason::NewSourceRate, Verdict::Drop, 0, 60, false);
    assert_eq!(last, Some(expected));
    assert_eq!(expected.verdict, Verdict::WouldDrop);
}

/// On a quiet day a new source has its whole burst; once new sources have used
/// up half of their budget, ten packets.
#[test]
fn a_bucket_made_in_a_flood_starts_with_ten_packets() {
    let policy = enforce().with(Level::SourcePackets, once(100));
    let machine = machine(policy, gate(2_000, 1, 1));
    let admitted = |n: u32| {
        let frame = udp4(&format!("10.{}.{}.1", n / 200, n % 200));
        let all = (0..200).map(|_| machine.receive(n % 2, START, &frame).reason);
        all.filter(|reason| *reason == Reason::WithinLimit).count()
    };
    let bursts: Vec<_> = (0..2_000).map(admitted).collect();
    // What the CPUs have leased of the budget is gone from it: some of the
    // middle, and the last, which one CPU cannot pay while the other holds it.
    assert!(bursts[..850].iter().all(|burst| *burst == 100));
    assert!(bursts[1_000..1_850].iter().all(|burst| *burst == 10));
}

/// A key that was not seen for two epochs pays for its place again, and keeps
/// its bucket; one that was seen meanwhile does not pay.
#[test]
fn a_source_is_known_as_long_as_it_sends() {
    let policy = enforce().with(Level::SourcePackets, once(1000));
    let machine = machine(policy, gate(2, 1, 1));
    let [often, seldom] = ["10.0.0.1", "10.0.1.1"].map(udp4);
    let at = |time: u64, frame: &[u8]| machine.receive(0, START + time, frame).reason;
    assert_eq!(at(0, &often), Reason::WithinLimit);
    assert_eq!(at(0, &seldom), Reason::WithinLimit);
    // The budget is used up now.
    for n in 0..100 {
        assert_eq!(at(n * 3 * SECOND, &often), Reason::WithinLimit, "after {} s", 3 * n);
    }
    assert_eq!(at(LONG, &seldom), Reason::Untracked);
    assert_eq!(at(LONG, &seldom), Reason::NewSourceRate);
    assert_eq!(machine.keys().0.len(), 2);
}
